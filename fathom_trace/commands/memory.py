"""What a step allocates: the peak and what it consists of, what persists, how often memory was used again.

The curve starts at 0: variables and inputs that were there before the step are listed, not counted. At the peak each byte belongs to a
tensor, to scratch of one operation, to a variable whose buffer the step replaced, or is ambiguous.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_json, add_selection, add_trace, at_least, choice_of, selected

if TYPE_CHECKING:
    from fathom_trace.memory import Memory
    from fathom_trace.trace import Trace

EXAMPLES = ("fathom-trace memory vgg-training.h5", "fathom-trace memory vgg-training.h5 --top 20 --json --phase forward")

COLUMNS = 60
BARS = " ▁▂▃▄▅▆▇█"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("--top", type=at_least(1), default=10, metavar="N", help="blocks at the peak to list (default: 10)")
    add_json(parser)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the memory of the trace's memory step."""
    from fathom_trace.memory import memory
    from fathom_trace.store import load
    from fathom_trace.terminal import print_json

    choice = choice_of(arguments)
    trace, part = selected(load(Path(arguments.file), lazy=True), choice)
    found = memory(trace)
    if arguments.json:
        print_json({**found.to_dict(trace, arguments.top), **({"selection": part.to_dict()} if part else {})})
    else:
        if part:
            print(f"selected {part}")
        _print(trace, found, arguments.top)
    return 0


def _print(trace: Trace, found: Memory, top: int) -> None:
    from fathom_trace.memory import describe_block
    from fathom_trace.terminal import print_table
    from fathom_trace.units import format_bytes, format_ns, format_share

    peak = found.peak_bytes
    print(f"step {found.step}: peak {format_bytes(peak)} at {format_ns(found.peak_ns)}, above what was there before it")
    print(f"  {curve(found)}")
    print(f"variables before the step: {format_bytes(found.variable_bytes)}")
    again = f", {found.allocated_bytes / peak:.1f} times the peak" if peak else ""
    print(f"allocated over the step:   {format_bytes(found.allocated_bytes)}{again}")
    parts = [f"{format_bytes(found.replaced_bytes)} in place of the buffers of {len(found.replaced())} variables"]
    parts.append(f"{format_bytes(found.output_bytes)} of outputs")
    if found.unexplained_bytes:
        parts.append(f"{format_bytes(found.unexplained_bytes)} unexplained")
    print(f"live at its end:           {format_bytes(found.final_bytes)}: {', '.join(parts)}")
    shares = (f"{role} {format_bytes(size)} ({format_share(size / peak)})" for role, size in found.peak_by_role().items() if peak)
    print(f"at the peak:               {', '.join(shares)}")
    if found.unpaired_releases:
        print(f"releases of what the step did not allocate: {found.unpaired_releases}, {format_bytes(found.unpaired_bytes)}")
    print("\nlargest at the peak")
    rows = [describe_block(trace, block) for block in found.at_peak()[:top]]
    print_table(
        ("operation", "op type", "bytes", "share", "what", "lived"),
        [
            (
                r["name"],
                r["op"],
                format_bytes(r["size_bytes"]),
                format_share(r["size_bytes"] / peak),
                r["role"],
                "-" if r["lifetime_ns"] is None else format_ns(r["lifetime_ns"]),
            )
            for r in rows
        ],
    )
    replaced = sorted(found.replaced(), key=lambda block: -block.size_bytes)
    if replaced:
        print("\nvariables whose buffers were replaced")
        made_by = [(b.variable, describe_block(trace, b)["name"], format_bytes(b.size_bytes)) for b in replaced[:top]]
        print_table(("variable", "by operation", "bytes"), made_by, left=(0, 1))
        if len(replaced) > top:
            print(f"and {len(replaced) - top} more")


def curve(found: Memory) -> str:
    """Live bytes over the step as one line of bars: in each column the most that was live."""
    import numpy as np

    if not len(found.times_ns) or not found.peak_bytes:
        return ""
    first, last = int(found.times_ns[0]), int(found.times_ns[-1])
    place = ((found.times_ns - first) * (COLUMNS - 1)) // max(last - first, 1)
    most = np.zeros(COLUMNS, np.int64)
    held = 0
    for column in range(COLUMNS):
        inside = found.live_bytes[place == column]
        most[column] = max(held, int(inside.max(initial=0)))
        held = int(inside[-1]) if len(inside) else held
    return "".join(BARS[round(m * (len(BARS) - 1) / found.peak_bytes)] for m in np.maximum(most, 0).tolist())
