"""What does it cost to make a trace of TensorFlow's records? CPU time per execution, beside merely reading the records' fields.

    python -m benchmarks.post_processing [WORKLOAD ...] [--mode MODE] [--preset PRESET] [--steps N] [--set NAME=VALUE ...]

One capture a row. Post-processing is everything between TensorFlow's step statistics and the finished file: reading the records, finding
iterations and dependencies, assembling the tables, writing. Reading alone is a plain loop over the parsed messages, after the capture,
that only looks at each record's name, four times and output shapes; parsing them is told apart. All are CPU time of this process; the
executions are those of all traced steps. Peak memory is what post-processing holds at most beyond what the process held when TensorFlow
handed over the step and its RunMetadata: what earlier steps left behind and what the present one adds. It is beside the size of the
finished trace in memory, of which it may be four times (on steps of a few MB, Python's own blocks of memory count more than what is in
them). RunMetadata is its size as a message.
"""

from __future__ import annotations

import argparse
import contextlib
import os
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


class Memory:
    """Resident memory in bytes that the wrapped calls added up to, at most; 0 where the system does not tell peaks."""

    def __init__(self) -> None:
        self.kept = self.peak = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, watched."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
            before = _status("VmRSS")
            try:
                return function(*args, **kwargs)
            finally:
                self.peak = max(self.peak, self.kept + _status("VmHWM") - before)
                self.kept += _status("VmRSS") - before

        return watched


def _status(key: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def row(name: str, arguments: argparse.Namespace) -> str:
    """One Markdown row."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # as capture sets it, were it the first to import TensorFlow

    from tensorflow.core.protobuf import config_pb2

    from fathom_trace.capture import run
    from fathom_trace.capture.assemble import Assembler

    meter, memory = Meter(), Memory()
    read_step, add_step, build = run.read_step, Assembler.add_step, Assembler.build

    kept = tempfile.TemporaryFile()  # noqa: SIM115
    sizes: list[int] = []

    def read(run_metadata: bytes, *args: Any, **kwargs: Any) -> Any:
        sizes.append(kept.write(run_metadata))
        return memory.wrap(meter.wrap("read", read_step))(run_metadata, *args, **kwargs)

    run.read_step = read
    Assembler.add_step = memory.wrap(meter.wrap("assemble", add_step))  # type: ignore[method-assign]
    Assembler.build = memory.wrap(meter.wrap("build", build))  # type: ignore[method-assign]
    try:
        plan = Plan(steps=arguments.steps, warmup=1, times_parallel_iterations=False)
        settings = dict(pair.split("=", 1) for pair in arguments.settings)
        trace = capture_workload(CaptureRequest(name, mode=arguments.mode, preset=arguments.preset, plan=plan, settings=settings))
    finally:
        run.read_step, Assembler.add_step, Assembler.build = read_step, add_step, build  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        memory.wrap(meter.wrap("write", save))(trace, Path(folder) / "trace.h5")
    count = len(trace.step_times)
    kept.seek(0)
    parse = Meter()
    for size in sizes:
        metadata = parse.wrap("parse", config_pb2.RunMetadata.FromString)(kept.read(size))
        parse.wrap("read", read_fields)(metadata.step_stats)
    alone = parse.spent["read"]
    each = {part: spent / count * 1e9 for part, spent in meter.spent.items()}
    whole = sum(each.values())
    parts = ", ".join(f"{part} {format_ns(spent)}" for part, spent in each.items())
    size, largest = size_of(trace), max(trace.provenance["run_metadata_bytes"])
    title = " ".join([f"{name} {arguments.mode}", *(f"`{text}`" for text in (arguments.preset, *arguments.settings))])
    return (
        f"| {title} | {count:,} | {format_ns(whole)} ({parts}) | {format_ns(alone / count * 1e9)} |"
        f" {format_ns(parse.spent['parse'] / count * 1e9)} |"
        f" {whole / (alone / count * 1e9):.1f} | {format_bytes(size)} | {format_bytes(largest)} | {format_bytes(memory.peak)} |"
        f" {memory.peak / size:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["vgg", "seq2seq", "speech"])
    parser.add_argument("--mode", default="training")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    arguments = parser.parse_args()
    print(
        "| capture | executions | post-processing | reading the fields | parsing | ratio | trace in memory | RunMetadata of a step |"
        " peak of post-processing | ratio to the trace |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in arguments.workloads:
        print(row(name, arguments), flush=True)


if __name__ == "__main__":
    main()
