"""Where the time of a step goes, by op type, kind, layer or phase, and the work that was done in it.

Times run from an operation's start until its successors have been told, and are medians over the traced steps. FLOPs are twice the MACs
plus one for each elementwise operation. What is not known shows as `?`, or as `>=` where only a part of it is known.

MACs, FLOPs and bytes are of the operations that ran; where the layer that they are has other MACs, that is said below the table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_json, add_selection, add_trace, at_least, choice_of, selected

if TYPE_CHECKING:
    from fathom_trace.profile import Profile, Row

EXAMPLES = (
    "fathom-trace ops vgg-training.h5",
    "fathom-trace ops vgg-training.h5 --by layer --top 20",
    "fathom-trace ops vgg-training.h5 --csv",
    "fathom-trace ops vgg-training.h5 --by layer --phase backward --layer 'conv*' --steps 2..4",
    "fathom-trace ops vgg-training.h5 --min-coverage 99",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("--by", default="op", help="op (default), kind, layer or phase")
    parser.add_argument("--top", type=at_least(1), metavar="N", help="rows to print (default: all)")
    parser.add_argument(
        "--min-coverage", type=_percentage, default=0.0, metavar="PERCENT",
        help="exit with status 1 if MACs, FLOPs or bytes are known for less of the time than this",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print key,count,time_ns,share,macs,flops,bytes; an unknown cost is empty")
    add_json(form)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from dataclasses import replace

    from fathom_trace.profile import profile
    from fathom_trace.store import load
    from fathom_trace.terminal import print_json

    choice = choice_of(arguments)
    trace, part = selected(load(Path(arguments.file), lazy=True), choice)
    found = profile(trace, by=arguments.by)
    shown = replace(found, rows=found.rows[: arguments.top])
    if arguments.json:
        print_json({**shown.to_dict(), **({"selection": part.to_dict()} if part else {})})
    elif arguments.csv:
        print(shown.to_csv(), end="")
    else:
        _print(shown, len(found.rows), len(trace.traced_steps))
        if part:
            print(f"selected {part}")
    return _judge(found, arguments.min_coverage)


def _judge(found: Profile, least: float) -> int:
    """The exit status: 1, with a line for each cost, where less is known than was asked for."""
    from fathom_trace.units import format_share

    status = 0
    for name, coverage in found.coverage.items():
        known, of = (coverage.executions, "executions") if coverage.time is None else (coverage.time, "the time")
        if 100 * known < least:
            print(f"fathom-trace: {name} are known for {format_share(known)} of {of}, not for {least:g}%", file=sys.stderr)
            status = 1
    return status


def _percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage from 0 to 100")
    return value


def _print(found: Profile, groups: int, traced: int) -> None:
    from fathom_trace.terminal import print_table
    from fathom_trace.units import format_ns, format_share

    print_table(
        (found.by, "count", "time", "share", "MACs", "FLOPs", "bytes", "GFLOP/s", "FLOP/B"), [_cells(row) for row in found.rows]
    )
    if len(found.rows) < groups:
        print(f"and {groups - len(found.rows)} more")
    whole = "the trace has no times; " if found.total_ns is None else f"{format_ns(found.total_ns)} of op time in a step; "
    others = f" of {traced}; the others executed something else" if traced > len(found.steps) else ""
    print(f"\n{whole}{len(found.steps)} traced steps{others}")
    shares = (
        f"{name} {format_share(c.executions)}" + ("" if c.time is None else f" ({format_share(c.time)} of the time)")
        for name, c in found.coverage.items()
    )
    print(f"known for this share of executions: {', '.join(shares)}")
    if found.uncovered:
        print(f"FLOPs unknown: {', '.join(f'{count} x {op}' for op, count in found.uncovered.items())}")
    for row in found.rows:
        if row.is_another_layer:
            print(f"{row.key}: {row.logical_macs:,} MACs as the program's layers, {row.macs:,} as they were executed")
    for first in found.first_runs:
        print(f"first run: {first}")


def _cells(row: Row) -> tuple[str, ...]:
    from fathom_trace.units import format_count, format_ns, format_share

    def cost(whole: int | None, part: int) -> str:
        return format_count(whole) if whole is not None else f">={format_count(part)}" if part else "?"

    return (
        row.key,
        f"{row.count:,}",
        "-" if row.time_ns is None else format_ns(row.time_ns),
        "-" if row.share is None else format_share(row.share),
        cost(row.macs, row.known_macs),
        cost(row.flops, row.known_flops),
        cost(row.bytes, row.known_bytes),
        "-" if row.gflops_per_s is None else f"{row.gflops_per_s:.3g}",
        "-" if row.intensity is None else f"{row.intensity:.3g}",
    )
