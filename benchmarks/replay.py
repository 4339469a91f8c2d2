"""CPU time of replays against networkx's longest path on the same dependencies, side by side in one run.

    python -m benchmarks.replay [ROUNDS] [EXECUTIONS...]

The dependencies are random: each execution waits for one to three of the hundred before it. The methods alternate, so that what else the
machine does touches all alike. Printed, as a Markdown table: the median CPU time of one scenario, and how many times faster than
networkx that is. Building the networkx graph and the recording is not counted. Exit status 1 when a longest path differs from networkx's.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

import networkx
import numpy as np

from fathom_trace.trace import Dependencies
from fathom_trace.whatif.recording import Recording
from fathom_trace.whatif.replay import makespans_ns, replay_unlimited, replay_workers

SCENARIOS = 64
METHODS = ("networkx longest path", "loop, one scenario", f"array, {SCENARIOS} scenarios at once", "list schedule, 2 workers")


def random_recording(count: int, seed: int = 0) -> Recording:
    """A recording of `count` executions on one lane, with whole durations and no gaps."""
    generator = random.Random(seed)
    parents = [
        sorted({generator.randrange(max(0, i - 100), i) for _ in range(generator.randint(1, 3))}) if i else [] for i in range(count)
    ]
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parents])]).astype(np.int64)
    duration = np.array([generator.randint(1_000, 1_000_000) for _ in range(count)], np.float64)
    nothing, order = np.zeros(count), np.arange(count, dtype=np.int64)
    producer = np.array([p for one in parents for p in one], np.int64)
    return Recording(
        dependencies=Dependencies(offsets, producer), duration_ns=duration, tail_ns=nothing, gap_ns=nothing, order=order,
        lane=np.zeros(count, np.int64), timed=np.ones(count, bool), measured_spans_ns=(float(duration.sum()),),
    )  # fmt: skip


def as_networkx(recording: Recording) -> networkx.DiGraph[int]:
    """The same dependencies; an edge weighs the duration of its producer, and every execution has an edge to a last one."""
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    duration = recording.duration_ns.tolist()
    for i, producers in enumerate(recording.producers):
        graph.add_edge(i, len(recording), weight=duration[i])
        graph.add_edges_from((p, i, {"weight": duration[p]}) for p in producers)
    return graph


def cpu_s(call: Callable[[], float]) -> tuple[float, float]:
    """CPU time of a call, and its result."""
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def compare(count: int, rounds: int) -> tuple[list[float], bool]:
    """Median CPU time of one scenario by each method, in s, and whether the longest paths agree."""
    recording = random_recording(count)
    graph = as_networkx(recording)
    scenarios = recording.duration_ns / np.linspace(1, 2, SCENARIOS)[:, None]
    calls: list[Callable[[], float]] = [
        lambda: networkx.dag_longest_path_length(graph, weight="weight"),
        lambda: replay_unlimited(recording).makespan_ns,
        lambda: float(makespans_ns(recording, scenarios)[0]),
        lambda: replay_workers(recording, 2).makespan_ns,
    ]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        results = []
        for k, call in enumerate(calls):
            spent, result = cpu_s(call)
            times[k].append(spent / (SCENARIOS if k == 2 else 1))
            results.append(result)
    return [statistics.median(t) for t in times], results[0] == results[1] == results[2]


def main() -> int:
    """Measure and print; 1 when the methods disagree."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    counts = [int(float(text)) for text in sys.argv[2:]] or [10_000, 100_000]
    print("| executions | method | CPU time of one scenario | times faster than networkx |")
    print("|---:|:---|---:|---:|")
    agreed = True
    for count in counts:
        medians, same = compare(count, rounds)
        agreed &= same
        for method, spent in zip(METHODS, medians, strict=True):
            print(f"| {count:,} | {method} | {1e3 * spent:.2f} ms | {medians[0] / spent:.1f} |", flush=True)
    print("the longest paths agree" if agreed else "the longest paths DIFFER")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
