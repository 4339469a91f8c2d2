"""Every exporter on every trace given, as a table: what was exported, how long it took, and whether the target itself read it.

    python -m benchmarks.exports TRACE... [--exporters NAME,...] [--no-targets]

Each export is one of `fathom-trace export`'s, checked by the exporter's own parser. Where the target is installed
(`tests/make_simulators.sh`, `FATHOM_ENVIRONMENTS`) its parser reads the files and what it found is compared with the trace
(`tests/target_readers.py`). A refused export is tried again with the selection that the refusal names. Times are wall times of writing
and of the target's reading.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path

from fathom_trace.errors import FathomError
from fathom_trace.exporters import REGISTRY
from fathom_trace.exporting import export
from fathom_trace.selecting import select
from fathom_trace.store import load
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_share
from tests.target_readers import READERS

SELECTED = re.compile(r"--(phase|layer) ('[^']*'|\S+)")


def row(name: str, exporter: str, trace: Trace, is_asked: bool) -> str:
    """One Markdown row."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        has_step = "step" in {f.name for f in fields(REGISTRY.load(exporter).Options)}
        settings = {"step": str(trace.steps_of(trace.main_structure)[0])} if has_step else {}
        note = "whole step"
        begin = time.monotonic()
        try:
            report, found = export(trace, exporter, out, settings)
        except FathomError as error:
            chosen = {key: shlex.split(value)[0] for key, value in SELECTED.findall(str(error))}
            if not chosen:
                return f"| {name} | {exporter} | refused: {error} | | | | |"
            trace = select(trace, phase=chosen.get("phase", ""), layer=chosen.get("layer", ""))
            note = "whole step refused by estimate; " + ", ".join(f"{k} {v}" for k, v in chosen.items())
            begin = time.monotonic()
            report, found = export(trace, exporter, out, settings)
        wrote = time.monotonic() - begin
        size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
        totals = report.totals()
        shares = " ".join(
            f"{format_share(totals[k]['exported'] / totals[k]['total']) if totals[k]['total'] else '-'}" for k in ("time_ns", "macs")
        )
        problems = "" if found.ok else f"; {len(found.problems)} problems"
        read, begin = "not installed", time.monotonic()
        if exporter in READERS and is_asked:
            try:
                read = f"{READERS[exporter](report, out, trace)} ({time.monotonic() - begin:.1f} s)"
            except AssertionError as error:
                read = f"DIFFERS: {str(error)[:200]}"
        cost = f"{format_bytes(size)} in {wrote:.1f} s"
        return f"| {name} | {exporter} | {note}{problems} | {len(report.layers):,} | {shares} | {cost} | {read} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--exporters", default=",".join(REGISTRY.names()))
    parser.add_argument("--no-targets", action="store_true", help="do not ask the targets")
    arguments = parser.parse_args()
    print("| trace | exporter | exported | layers or records | share of time, of MACs | size, time to write | the target read |")
    print("|---|---|---|---:|---|---|---|")
    for file in arguments.traces:
        trace = load(Path(file))
        for exporter in arguments.exporters.split(","):
            print(row(Path(file).stem, exporter, trace, not arguments.no_targets), flush=True)


if __name__ == "__main__":
    sys.exit(main())
