"""Account for a program's MACs after TensorFlow rewrote it: those executed, and those folded, merged or pruned away, node by node.

SOURCE is a trace of stage `source`, OPTIMIZED one of stage `optimized`, of the same program. A product was folded when its value was
computed before the step, merged when another that computes the same serves for both, pruned when nobody needed its value; a fused one
is executed under the name of the last operation that was fused. MACs executed + MACs removed = MACs of the source.

A selection is of the operations of SOURCE, each with all its executions, and of what stands for them in OPTIMIZED.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_json, add_selection, at_least, choice_of, selected

if TYPE_CHECKING:
    from fathom_trace.rewrites import Rewrites
    from fathom_trace.trace import Trace

EXAMPLES = (
    "fathom-trace rewrites vgg-training.h5 vgg-training-optimized.h5",
    "fathom-trace rewrites vgg-training.h5 vgg-training-optimized.h5 --top 5 --json",
)

SAME = ("workload", "mode", "preset", "batch_size", "options", "signature")
"""What in the provenance says that two traces are of one program."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", help="a trace of stage source: .h5 or .pb")
    parser.add_argument("optimized", metavar="OPTIMIZED", help="a trace of the same program of stage optimized")
    parser.add_argument("--top", type=at_least(1), metavar="N", help="products to list, those with most MACs first (default: all)")
    add_json(parser)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the account."""
    from fathom_trace.rewrites import rewrites
    from fathom_trace.store import load
    from fathom_trace.terminal import print_json

    choice = choice_of(arguments)
    traces = []
    for stage in ("source", "optimized"):
        file = Path(getattr(arguments, stage))
        traces.append(load(file, lazy=True))
        _check_stage(file, traces[-1], stage)
    source, optimized = traces
    _check_program(source, optimized)
    part = selected(source, choice)[1]
    found = rewrites(source, optimized, part.trace if part else None)
    if arguments.json:
        print_json({**found.to_dict(arguments.top), **({"selection": part.to_dict()} if part else {})})
    else:
        if part:
            print(f"selected {part}")
        _print(found, arguments.top)
    return 0


def _check_stage(file: Path, trace: Trace, stage: str) -> None:
    from fathom_trace.errors import TraceError

    found = trace.provenance.get("stage", "")
    if found != stage:
        raise TraceError(
            f"{file} is a trace of stage '{found}', not of '{stage}'; give the trace of stage source first and that of optimized second"
        )


def _check_program(source: Trace, optimized: Trace) -> None:
    from fathom_trace.errors import TraceError

    for key in SAME:
        before, after = (trace.provenance.get(key, "") for trace in (source, optimized))
        if before != after:
            raise TraceError(
                f"the traces are of different programs: {key} is {before!r} in the first and {after!r} in the second;"
                " capture one program in both stages, with the same options"
            )


def _print(found: Rewrites, top: int | None) -> None:
    from fathom_trace.terminal import print_pairs, print_table
    from fathom_trace.units import format_share

    of = found.source_macs
    sums = [("MACs of the source", of), ("executed", found.executed_macs)]
    sums += [(how, macs) for how, macs in found.removed_by_reason().items()]
    if found.changed:
        sums.append(("executed beyond what they stand for", -found.added_macs))
    width = max(len(f"{macs:,}") for _, macs in sums)
    print_pairs([(name, f"{macs:{width},}  {format_share(macs / of) if of else '-':>6}") for name, macs in sums])
    print(f"{found.executed_macs:,} executed + {found.removed_macs:,} removed = {of:,} of the source", end="")
    print(f" {'+' if found.added_macs >= 0 else '-'} {abs(found.added_macs):,} added" if found.changed else "")
    if found.removed:
        print("\nnot executed")
        rows = [(item.node, item.op, f"{item.macs:,}", f"{item.how} into {item.into}" if item.into else item.how) for item in
                found.largest_removed(top)]  # fmt: skip
        print_table(("operation", "op type", "MACs", "how"), rows, left=(0, 1, 3))
        if len(rows) < len(found.removed):
            print(f"and {len(found.removed) - len(rows)} more")
    if found.changed:
        print("\nexecuted with other MACs than in the source")
        changed = [(item.node, item.op, f"{item.source_macs:,}", f"{item.executed_macs:,}") for item in found.changed[:top]]
        print_table(("operation", "op type", "MACs in the source", "MACs executed"), changed, left=(0, 1))
        if len(changed) < len(found.changed):
            print(f"and {len(found.changed) - len(changed)} more")
