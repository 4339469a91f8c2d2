"""Write a trace in the format of a simulator or viewer, and say what was exported, what was not, and how far that is proven."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_force, add_json, add_selection, add_settings, add_trace, choice_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fathom_trace.exporter import ExportReport

TOP = 8

EXAMPLES = (
    "fathom-trace export vgg-training.h5 scale-sim",
    "fathom-trace export vgg-training.h5 scale-sim -o /tmp/vgg --force",
    "fathom-trace export vgg-training.h5 table --phase forward --layer 'conv*' --step 2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("exporter", metavar="EXPORTER", help="one that `fathom-trace exporters` lists; - and _ are the same")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to make (default: FILE without suffix, - and EXPORTER)")
    add_settings(parser, "exporter")
    add_force(parser)
    add_json(parser)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Export, check and print the report."""
    from fathom_trace.destination import check_folder
    from fathom_trace.exporter import REPORT_NAME
    from fathom_trace.exporters import REGISTRY
    from fathom_trace.exporting import export
    from fathom_trace.options import parse_pairs
    from fathom_trace.store import load
    from fathom_trace.terminal import print_json

    name = REGISTRY.resolve(arguments.exporter)
    settings = parse_pairs(arguments.settings)
    folder = Path(arguments.output or f"{Path(arguments.file).with_suffix('')}-{name}")
    check_folder(folder, arguments.force, REPORT_NAME)
    choice = choice_of(arguments)
    report, found = export(load(Path(arguments.file), lazy=True), name, folder, settings, arguments.force, choice)
    if arguments.json:
        print_json({"folder": folder, "report": report, "totals": report.totals(), "check": found})
    else:
        _print(report, folder)
        print(f"checked by its own parser: {', '.join(f'{k} {v}' for k, v in found.facts.items())}")
    return 0


def _print(report: ExportReport, folder: Path) -> None:
    from fathom_trace.exporter import REPORT_NAME
    from fathom_trace.terminal import print_table
    from fathom_trace.units import format_count, format_ns, format_share

    print(f"{folder}: {len(report.layers)} layers for {report.target.name} {report.target.version}".rstrip())
    for file in report.files:
        print(f"  {file}")
    if report.selection:
        from fathom_trace.selecting import describe_selection

        print(f"selected {describe_selection(report.selection)}")
    totals = report.totals()
    rows = [
        (key.removesuffix("_ns"), show(totals[key]["exported"]), show(totals[key]["skipped"]), format_share(_share(totals[key])))
        for key, show in (("executions", _count), ("time_ns", format_ns), ("macs", format_count))
    ]
    if totals["macs"]["unknown_executions"]:
        label, exported, skipped, share = rows[-1]
        exported, skipped = (
            f">= {text}" if any(not row.macs_known for row in found) else text
            for text, found in ((exported, report.layers), (skipped, report.skipped))
        )
        rows[-1] = (label, exported, skipped, f"{share} of what is known" if totals["macs"]["total"] else "unknown")
    print_table(("", "exported", "skipped", "share exported"), rows)
    whole = totals["time_ns"]["total"] or 1
    if totals["macs"]["unknown_executions"]:
        time = format_share(totals["macs"]["unknown_time_ns"] / whole)
        print(f"{_count(totals['macs']['unknown_executions'])} executions have unknown MACs, with {time} of the time")
    if report.skipped:
        print("skipped, by time")
    longest = sorted(report.skipped, key=lambda s: -s.time_ns)
    for item in longest[:TOP]:
        print(f"  {format_share(item.time_ns / whole):>6}  {item.executions} x {item.op}: {item.reason}")
    if len(longest) > TOP:
        left = sum(s.time_ns for s in longest[TOP:]) / whole
        print(f"  {format_share(left):>6}  {len(longest) - TOP} more op types, listed in {REPORT_NAME}")
    for kind, lines in (("approximated", report.approximations), ("note", report.notes)):
        for line in lines:
            print(f"{kind}: {line}")
    print(f"proof: {report.target.proof} ({report.target.proof_detail})")
    print(f"to run it: {report.target.how_to_run}")


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _share(total: Mapping[str, float]) -> float:
    return total["exported"] / total["total"] if total["total"] else 0.0
