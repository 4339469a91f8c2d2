"""How many executions a second each exporter writes: CPU time of a whole `export`, its own check of the files included.

    python -m benchmarks.rates TRACE... [--only NAME ...] [--limit SECONDS]

One export a row, of the median step, in this process. What a target takes of a step (layers, or everything) is the column "exported"; the
rate counts the executions of the whole step, since all of them are looked at. An export that takes longer than the limit is ended, and
that is said; one that refuses the trace is shown with its first words.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fathom_trace.errors import FathomError
from fathom_trace.exporters import REGISTRY
from fathom_trace.exporting import export
from fathom_trace.store import load
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises `TimeoutError` in the block after so many seconds."""

    def end(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def row(trace: Trace, exporter: str, limit: int) -> str:
    """What follows the trace's name in a Markdown row."""
    count = trace.structure_rows(trace.main_structure).stop - trace.structure_rows(trace.main_structure).start
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        begin = time.process_time()
        try:
            with at_most(limit):
                report, _ = export(trace, exporter, out)
        except FathomError as error:
            return f"{count:,} | {exporter} | refused: {' '.join(str(error).split()[:12])} ... | | | |"
        except TimeoutError:
            return f"{count:,} | {exporter} | not done in {limit} s | | | |"
        spent = time.process_time() - begin
        size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    taken = sum(len(layer.executions) for layer in report.layers)
    return f"{count:,} | {exporter} | {taken:,} | {spent:.2f} s | {count / spent:,.0f} | {format_bytes(size)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", help="exporters, by name (default: all)")
    parser.add_argument("--limit", type=int, default=120)
    arguments = parser.parse_args()
    print("| trace | executions | exporter | exported | CPU time | executions a second | size |\n|:---|---:|:---|---:|---:|---:|---:|")
    for file in arguments.traces:
        trace = load(file)
        for exporter in arguments.only or REGISTRY.names():
            print(f"| {file.stem} | {row(trace, exporter, arguments.limit)}", flush=True)


if __name__ == "__main__":
    main()
