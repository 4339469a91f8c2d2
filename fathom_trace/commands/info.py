"""Say what a trace holds, how it came about and whether it is sound."""

from __future__ import annotations

import argparse
from pathlib import Path

from fathom_trace.arguments import add_json, add_trace

EXAMPLES = ("fathom-trace info vgg-training.h5", "fathom-trace info vgg-training.h5 --json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print provenance, counts and checks."""
    from fathom_trace.store import load
    from fathom_trace.summary import print_summary, summarize
    from fathom_trace.terminal import plain, print_json, print_pairs

    file = Path(arguments.file)
    trace = load(file)
    summary = summarize(trace, file)
    sizes = {name: len(table) for name, table in trace.tables().items() if len(table)}
    if arguments.json:
        print_json({**summary.to_dict(), "provenance": trace.provenance, "tables": sizes})
    else:
        print_summary(summary)
        print("\nprovenance")
        print_pairs([(key, _text(plain(value))) for key, value in trace.provenance.items()], indent="  ")
        print("\nrows of its tables")
        print_pairs([(name, f"{rows:,}") for name, rows in sizes.items()], indent="  ")
    return 0


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
