"""Say what a trace holds, how it came about and whether it is sound.

Of a trace with more than two million executions, or execution-steps, only its steps are read, and what was not checked is said; --full
reads and checks all of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fathom_trace.arguments import add_json, add_selection, add_trace, choice_of, selected

EXAMPLES = (
    "fathom-trace info vgg-training.h5",
    "fathom-trace info vgg-training.h5 --json",
    "fathom-trace info vgg-training.h5 --layer 'fc*'",
    "fathom-trace info speech-training.h5 --full",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("--full", action="store_true", help="read and check everything, however large the trace is")
    add_json(parser)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print provenance, counts and checks."""
    from fathom_trace.store import load
    from fathom_trace.summary import UNREAD_CHECKS, Summary, is_large, overview, print_overview, print_summary, summarize
    from fathom_trace.terminal import plain, print_json, print_pairs

    file = Path(arguments.file)
    choice = choice_of(arguments)
    trace = load(file, lazy=True)
    is_whole = arguments.full or bool(choice) or not is_large(trace)
    trace, part = selected(load(file), choice) if is_whole else (trace, None)
    summary = summarize(trace, file) if is_whole else overview(trace, file)
    sizes = {name: len(table) for name, table in trace.tables().items() if len(table)}
    if arguments.json:
        selection = {"selection": part.to_dict()} if part else {}
        unread = {} if is_whole else {"not_checked": UNREAD_CHECKS}
        print_json({**summary.to_dict(), **unread, **selection, "provenance": trace.provenance, "tables": sizes})
    else:
        print_summary(summary) if isinstance(summary, Summary) else print_overview(summary)
        if part:
            print(f"selected {part}")
        print("\nprovenance")
        print_pairs(
            [(key, _text(key, plain(value))) for key, value in trace.provenance.items() if value not in ("", [], {})], indent="  "
        )
        print("\nrows of its tables")
        print_pairs([(name, f"{rows:,}") for name, rows in sizes.items()], indent="  ")
    return 0


def _text(key: str, value: object) -> str:
    """A value of the provenance: with its unit where the key names one, of long lists the median."""
    from statistics import median

    from fathom_trace.units import format_bytes, format_ns

    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(k, v)}" for k, v in value.items())
    if isinstance(value, list):
        is_long = len(value) > 3 and key.endswith(("_ns", "_bytes"))
        return f"{_text(key, median(value))} (median of {len(value)})" if is_long else ", ".join(_text(key, v) for v in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and key.endswith(("_ns", "_bytes")):
        return format_ns(value) if key.endswith("_ns") else format_bytes(value)
    return str(value)
