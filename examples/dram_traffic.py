"""Print the memory traffic of a trace by layer, and write the largest part of up to a million requests as a DRAMsim3 trace.

python examples/dram_traffic.py vgg-training.h5
"""

import sys
from pathlib import Path

import fathom_trace
from fathom_trace.addresses import selections, stream
from fathom_trace.exporting import export
from fathom_trace.selecting import Choice
from fathom_trace.steps import view_steps

MOST = 1_000_000


def main(file: str) -> None:
    """Print requests by layer; write what fits beside the trace."""
    trace = fathom_trace.load(file)
    [view] = view_steps(trace, "median", "example")
    found = stream(view, burst_bytes=64)
    print(f"{found.requests:,} requests of 64 bytes, for {found.accesses.size_bytes.sum():,} bytes")
    parts = selections(found)
    for part in [p for p in parts if not p.phase][:10]:
        print(f"{part.requests:14,}  {part.layer}")
    fits = next(p for p in parts if p.requests <= MOST)
    folder = Path(f"{Path(file).with_suffix('')}-dramsim3")
    choice = Choice(phase=fits.phase, layer=fits.layer)
    report, _ = export(trace, "dramsim3", folder, {"timing": "order"}, force=True, choice=choice)
    print(f"{folder / report.files[0]}: {fits.requests:,} requests of {choice}")


if __name__ == "__main__":
    main(sys.argv[1])
