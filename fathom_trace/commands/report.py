"""The Fathom paper's analyses over many traces, to be looked at: one HTML page, a picture and a table for each, and the paper's claims
beside what these traces show.

Written are report.html, which needs no network, an SVG and a PNG for each figure, a CSV for each table, and report.json with everything.
Figures and page need the extra `report`; without it the numbers are written. Profiles are of training traces, where there are any. The
exchange of weights is modelled, as the options describe it. Traces without times, and those of which nothing is selected, are left out,
and the report says so. Of parts of traces nothing is compared with what the paper published.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from fathom_trace.arguments import add_force, add_json, add_selection, at_least, choice_of, selected

EXAMPLES = (
    "fathom-trace report traces/*.h5 --out report",
    "fathom-trace report traces --out report --workers 64 --link 50GB/s --force",
)

SUFFIXES = (".h5", ".pb")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("traces", nargs="+", metavar="TRACES", help="traces, or folders of them: .h5 or .pb")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument("--workers", type=at_least(1), default=8, metavar="N", help="workers that exchange weights (default: 8)")
    parser.add_argument("--link", default="12.5GB/s", metavar="RATE", help="bytes a second that each can send (default: 12.5GB/s)")
    parser.add_argument("--scheme", default="ring", help="how they exchange: ring (all-reduce, default) or server (parameter server)")
    add_force(parser)
    add_json(parser)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Analyse and write."""
    from fathom_trace.destination import check_folder, replacing_folder
    from fathom_trace.report.analyses import analyse
    from fathom_trace.report.captured import LeftOut, measure_files
    from fathom_trace.report.files import MARKER, PAGE, refuse_to_lose, write
    from fathom_trace.report.published import counts
    from fathom_trace.report.traffic import Exchange
    from fathom_trace.store import load
    from fathom_trace.terminal import ProgressBar, print_json
    from fathom_trace.units import parse_quantity

    folder = check_folder(Path(arguments.out), arguments.force, MARKER)
    refuse_to_lose(folder)
    exchange = Exchange(arguments.workers, parse_quantity(arguments.link, "B/s"), arguments.scheme)
    choice = choice_of(arguments)
    files = list(trace_files(arguments.traces))
    done = iter(range(len(files)))
    left_out: list[LeftOut] = []
    with ProgressBar() as bar:
        traces = measure_files(
            files,
            lambda file: selected(load(file, lazy=True), choice)[0],
            lambda file: bar(file.name, next(done), len(files)),
            left_out,
            drops_ends=not choice.steps,
        )
        bar("figures", len(files), len(files))
        report = analyse(traces, exchange, left_out)
        with replacing_folder(folder, arguments.force) as partial:
            written = write(report, partial)
            refuse_to_lose(folder)
    if written.no_figures:
        print(f"fathom-trace: only numbers were written: {written.no_figures}", file=sys.stderr)
    if arguments.json:
        print_json({**report.to_dict(), "files": written.files})
        return 0
    print(f"{folder}: {len(traces)} traces, {len(written.figures)} figures, {len(written.files)} files")
    if written.figures:
        print(f"  {folder / PAGE}")
    for file in left_out:
        print(f"  left out: {file.file}: {file.why}")
    if choice:
        print(f"  selected {choice}; nothing is compared with what was published")
        return 0
    print(f"  {counts(report.facts)}")
    for fact in report.facts:
        if fact.finding == "disagrees":
            print(f"  not as published ({fact.place}): {fact.claim}: {fact.measured}")
    return 0


def trace_files(names: Iterable[str]) -> Iterable[Path]:
    """The named files, and the traces in the named folders, by name; each once.

    Raises:
        TraceFileError: a folder holds no trace.
    """
    from fathom_trace.errors import TraceFileError

    seen: set[str] = set()
    for name in names:
        path = Path(name)
        inside = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise TraceFileError(f"{path} holds no trace; a trace ends in {' or '.join(SUFFIXES)}")
        for file in inside:
            if os.path.realpath(file) not in seen:
                seen.add(os.path.realpath(file))
                yield file
