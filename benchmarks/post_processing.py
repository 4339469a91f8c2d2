"""What does it cost to make a trace of TensorFlow's records? CPU time per execution, beside merely reading the records' fields.

    python -m benchmarks.post_processing [WORKLOAD ...] [--mode MODE] [--preset PRESET] [--steps N]

One capture a row. Post-processing is everything between TensorFlow's step statistics and the finished file: reading the records, finding
iterations and dependencies, assembling the tables, writing. Reading alone is a plain loop over the same messages, run right before, that
only looks at each record's name, four times and output shapes. Both are CPU time of this process; the executions are those of all traced
steps. Peak memory beyond that of the step itself: what the process holds at most while it assembles, less what it held before, beside the
size of the finished trace in memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.store import save
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_ns


class Meter:
    """CPU time in s spent in what it wraps, without what is nested in it and wrapped too."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = [0.0]

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, metered as `name`."""

        def metered(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begin = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.process_time() - begin
                self.spent[name] = self.spent.get(name, 0.0) + whole - self._inner.pop()
                self._inner[-1] += whole

        return metered


def read_fields(step_stats: Any) -> int:
    """Look at the fields that a trace is made of and keep nothing; returns how many records there are."""
    count = 0
    for device in step_stats.dev_stats:
        for record in device.node_stats:
            count += 1
            _ = record.node_name
            _ = (record.scheduled_nanos, record.all_start_nanos, record.op_end_rel_nanos, record.all_end_rel_nanos)
            for output in record.output:
                tensor = output.tensor_description
                _ = (output.slot, tensor.dtype, [d.size for d in tensor.shape.dim])
    return count


def size_of(trace: Trace) -> int:
    """Bytes of all columns of a trace."""
    return sum(int(getattr(table, key).nbytes) for table in trace.tables().values() for key in table.columns())


def resident_bytes() -> int:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def row(name: str, arguments: argparse.Namespace) -> str:
    """One Markdown row."""
    from fathom_trace.capture import run
    from fathom_trace.capture.assemble import Assembler

    meter = Meter()
    read_step, add_step, build = run.read_step, Assembler.add_step, Assembler.build
    held: dict[str, int] = {}

    def read(step_stats: Any, *args: Any, **kwargs: Any) -> Any:
        meter.wrap("alone", read_fields)(step_stats)
        return meter.wrap("read", read_step)(step_stats, *args, **kwargs)

    def built(self: Assembler, provenance: Any) -> Trace:
        held["before"] = resident_bytes()
        trace = meter.wrap("build", build)(self, provenance)
        held["after"] = resident_bytes()
        return trace

    run.read_step, Assembler.add_step, Assembler.build = read, meter.wrap("assemble", add_step), built  # type: ignore[method-assign,assignment]
    try:
        plan = Plan(steps=arguments.steps, warmup=1, times_parallel_iterations=False)
        trace = capture_workload(CaptureRequest(name, mode=arguments.mode, preset=arguments.preset, plan=plan))
    finally:
        run.read_step, Assembler.add_step, Assembler.build = read_step, add_step, build  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        meter.wrap("write", save)(trace, Path(folder) / "trace.h5")
    count = len(trace.step_times)
    alone = meter.spent.pop("alone")
    each = {part: spent / count * 1e9 for part, spent in meter.spent.items()}
    whole = sum(each.values())
    parts = ", ".join(f"{part} {format_ns(spent)}" for part, spent in each.items())
    size = size_of(trace)
    return (
        f"| {name} {arguments.mode} `{arguments.preset}` | {count:,} | {format_ns(whole)} ({parts}) | {format_ns(alone / count * 1e9)} |"
        f" {whole / (alone / count * 1e9):.1f} | {format_bytes(size)} | {format_bytes(max(held['after'] - held['before'], 0))} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["vgg", "seq2seq", "speech"])
    parser.add_argument("--mode", default="training")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    print(
        "| capture | executions | post-processing | reading the fields | ratio | trace in memory | held more after assembling |"
    )
    print("|---|---:|---|---:|---:|---:|---:|")
    for name in arguments.workloads:
        print(row(name, arguments), flush=True)


if __name__ == "__main__":
    main()
