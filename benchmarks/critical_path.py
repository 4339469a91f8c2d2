"""The critical path of a step: ours against HolisticTraceAnalysis and networkx, CPU time for a node, side by side in one run.

    HTA_PYTHON=DIR/bin/python python -m benchmarks.critical_path [EXECUTIONS...]

HolisticTraceAnalysis 0.5.0 is run in an environment of its own, whose Python `HTA_PYTHON` names (`python -m venv DIR`, then
`DIR/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<2.3' 'numpy<2.3'`: with pandas 3 it fails). It reads traces of PyTorch's profiler,
so it gets one made up: operators one after the other on a thread, each of which launches a kernel on one stream, two nodes for each
event. We get as many executions as it has nodes, each of which waits for one to three of the hundred before it, so several times the
edges. Graphs differ, hence times are for a node, not of one and the same graph.

*From the trace* is all that leads from a loaded trace to the path: finding dependencies (HolisticTraceAnalysis: building its graph) and
the longest path. *Path alone* starts from the graph in memory. The last row, which needs numba, is the length of the path for each of
100 scenarios. Our loops are the compiled ones where numba is there, the plain ones elsewhere. Best of three. Exit status 3 when
HolisticTraceAnalysis is not there; our rows are printed anyway.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np

from fathom_trace import tables as t
from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Trace
from fathom_trace.whatif import replay
from fathom_trace.whatif.recording import record
from fathom_trace.whatif.replay import critical_path, makespans_ns, replay_unlimited

NODES_AN_OPERATOR = 6
"""Start and end of an operator, of the call that launches its kernel, and of the kernel."""

SCENARIOS = 100
ROUNDS = 3

HOLISTIC = """
import json, os, sys, tempfile, time
count = int(sys.argv[1])
def event(category, name, process, thread, begin, duration, **more):
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": begin, "dur": duration, "args": more}
events = [event("user_annotation", "ProfilerStep#1", 1, 1, 1000, count * 20 + 100)]
for i in range(count):
    begin = 1010 + i * 20
    events.append(event("cpu_op", f"aten::mm{i % 7}", 1, 1, begin, 15, **{"External id": i + 2}))
    events.append(event("cuda_runtime", "cudaLaunchKernel", 1, 1, begin + 2, 4, **{"External id": i + 2, "correlation": i + 1}))
    events.append(event("kernel", "gemm", 0, 7, begin + 8, 11, **{"External id": i + 2, "correlation": i + 1, "stream": 7, "device": 0}))
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "trace.json")
    with open(file, "w") as out:
        world = {"rank": 0, "world_size": 1, "backend": "nccl"}
        json.dump({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "distributedInfo": world, "traceEvents": events}, out)
    from hta.trace_analysis import TraceAnalysis
    analysis = TraceAnalysis(trace_files={0: file})
whole, alone = [], []
for _ in range(int(sys.argv[2])):
    begin = time.process_time()
    graph, found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
    whole.append(time.process_time() - begin)
    begin = time.process_time()
    found = graph.critical_path() and found
    alone.append(time.process_time() - begin)
assert found
print(json.dumps([graph.number_of_nodes(), min(whole), min(alone)]))
"""


def random_trace(count: int) -> Trace:
    """`count` executions of one node, one after the other on a worker; each reads one to three of the hundred before it."""
    generator = random.Random(0)
    builder = TraceBuilder()
    builder.node("a", "MatMul")
    inputs = [
        sorted({generator.randrange(max(0, i - 100), i) for _ in range(generator.randint(1, 3))}) if i else [] for i in range(count)
    ]
    duration = np.array([generator.randint(1_000, 1_000_000) for _ in range(count)])
    done = np.cumsum(duration)
    zeros, none = np.zeros(count, np.int64), np.full(count, -1)
    tables: dict[str, Any] = builder.tables()
    tables["executions"] = t.Executions(
        node=zeros, path=zeros, parent=none, kind=zeros, timed=np.ones(count, bool),
        input_offsets=np.concatenate([[0], np.cumsum([len(i) for i in inputs])]), input=np.array([p for i in inputs for p in i]),
        control_offsets=np.zeros(count + 1, np.int64), control=np.zeros(0, np.int64),
    )  # fmt: skip
    tables["tensors"] = t.Tensors(
        execution=np.arange(count), port=zeros, dtype=zeros, shape=zeros, size_bytes=zeros, element_shape=none, buffer=none
    )
    tables["structures"] = t.Structures(execution_offsets=np.array([0, count]), execution=np.arange(count))
    timed = TraceBuilder()
    timed.step(0, done - duration, done)
    return Trace(**{**tables, **{name: timed.tables()[name] for name in ("steps", "step_times")}})


def best(call: Callable[[], Any]) -> float:
    """Least CPU seconds of a few calls."""
    spent = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return min(spent)


def from_trace(trace: Trace) -> list[int]:
    """The path, if nothing of the trace has been worked out before."""
    recording = record(trace)
    return critical_path(recording, replay_unlimited(recording))


def measure(count: int) -> bool:
    """Print the rows of one size; false where HolisticTraceAnalysis is not there."""
    python = os.environ.get("HTA_PYTHON", "")
    theirs: list[float] | None = None
    if python and Path(python).exists():
        command = [python, "-c", HOLISTIC, str(count // NODES_AN_OPERATOR), str(ROUNDS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        nodes, whole, alone = json.loads(done.stdout.strip().splitlines()[-1])
        theirs = [whole / nodes, alone / nodes]
    trace = random_trace(count)
    fresh = [trace.replace() for _ in range(ROUNDS)]
    recording = record(trace)
    recording.producers  # noqa: B018  (lists that are made once and shared)
    graph = trace.to_networkx()
    for producer, consumer in graph.edges:
        graph.edges[producer, consumer]["weight"] = graph.nodes[producer]["duration_ns"]
    rows = [
        ("HolisticTraceAnalysis, from the trace", theirs[0] if theirs else None, 0),
        ("ours, from the trace", best(lambda: from_trace(fresh.pop())) / count, 0),
        ("HolisticTraceAnalysis, path alone", theirs[1] if theirs else None, 1),
        ("networkx, path alone", best(lambda: networkx.dag_longest_path(graph)) / count, 1),
        ("ours, path alone", best(lambda: critical_path(recording, replay_unlimited(recording))) / count, 1),
    ]
    if replay.compiled() is not None:
        durations = recording.duration_ns / np.linspace(1, 2, SCENARIOS)[:, None]
        makespans_ns(recording, durations)
        rows.append(("ours, length of the path, compiled", best(lambda: makespans_ns(recording, durations)) / count / SCENARIOS, 1))
    for name, spent, against in rows:
        shown = "not measured" if spent is None else f"{1e6 * spent:.3f} us"
        ratio = f"{theirs[against] / spent:,.1f}" if theirs and spent else "-"
        print(f"| {count:,} | {name} | {shown} | {ratio} |", flush=True)
    return theirs is not None


def main() -> int:
    """Print the table."""
    replay.COMPILED_VALUES = 0
    print("| nodes | method | CPU time of a node | times faster than HolisticTraceAnalysis |\n|---:|:---|---:|---:|")
    found = [measure(int(float(text))) for text in sys.argv[1:] or ("10000", "100000")]
    if not all(found):
        print("HolisticTraceAnalysis: HTA_PYTHON names no Python that has it", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
