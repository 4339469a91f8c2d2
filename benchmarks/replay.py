"""CPU time of replays against networkx's and rustworkx's longest paths on the same dependencies, side by side in one run.

    python -m benchmarks.replay [ROUNDS] [EXECUTIONS...]

It needs the extra `fast` and rustworkx. The dependencies are random: each execution waits for one to three of the hundred before it. The
methods alternate, so that what else the machine does touches all alike. Ours project 1,000 scenarios, each with durations of its own;
networkx and rustworkx find one longest path, whose 1,000-fold is what they would take. Printed, as a Markdown table: the median CPU time
of one scenario, and how many times faster than networkx that is. Building graphs, recordings and durations, and compiling, is not
counted. Exit status 1 when a longest path differs from networkx's, or a compiled list schedule from the plain one; 3 without numba.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import networkx
import numpy as np
import rustworkx

from fathom_trace.trace import Dependencies
from fathom_trace.whatif import replay
from fathom_trace.whatif.recording import Float, Recording
from fathom_trace.whatif.replay import makespans_ns, replay_unlimited, replay_workers

SCENARIOS = 1000
LIST_SCENARIOS = 4
WORKERS = 2
BATCH_VALUES = 16_000_000
"""Durations that exist at once."""

METHODS = (
    "networkx longest path",
    "rustworkx longest path",
    "plain loop, one scenario",
    f"compiled, {SCENARIOS:,} scenarios",
    f"plain list schedule, {WORKERS} workers",
    f"compiled list schedule, {WORKERS} workers",
)


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


def as_rustworkx(recording: Recording) -> rustworkx.PyDiGraph:
    """The same graph for rustworkx; edges carry their weight."""
    graph = rustworkx.PyDiGraph()
    graph.add_nodes_from(range(len(recording) + 1))
    duration = recording.duration_ns.tolist()
    graph.add_edges_from([(i, len(recording), duration[i]) for i in range(len(recording))])
    graph.add_edges_from([(p, i, duration[p]) for i, producers in enumerate(recording.producers) for p in producers])
    return graph


def cpu_s(call: Callable[[], float]) -> tuple[float, float]:
    """CPU time of a call, and its result."""
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def batches(recording: Recording, scenarios: int) -> Iterator[Float]:
    """Durations of the scenarios, `[batch, executions]`: the first as recorded, each later one faster."""
    factors = np.linspace(1, 2, scenarios)[:, None]
    batch = max(1, BATCH_VALUES // len(recording))
    for at in range(0, scenarios, batch):
        yield recording.duration_ns / factors[at : at + batch]


def projected(recording: Recording, scenarios: int, workers: int | None) -> tuple[float, list[float]]:
    """CPU time of one scenario by compiled loops, in s, and the makespans. Making the durations is not counted."""
    spent, found = 0.0, []
    for duration in batches(recording, scenarios):
        begin = time.process_time()
        result = makespans_ns(recording, duration, workers=workers)
        spent += time.process_time() - begin
        found += result.tolist()
    return spent / scenarios, found


def compare(count: int, rounds: int) -> tuple[list[float], bool]:
    """Median CPU time of one scenario by each method, in s, and whether the results agree."""
    recording = random_recording(count)
    graph, rust = as_networkx(recording), as_rustworkx(recording)
    plain_duration = next(batches(recording, LIST_SCENARIOS))
    times: list[list[float]] = [[] for _ in METHODS]
    agreed = True
    for _ in range(rounds):
        networkx_s, expected = cpu_s(lambda: networkx.dag_longest_path_length(graph, weight="weight"))
        rustworkx_s, by_rust = cpu_s(lambda: rustworkx.dag_weighted_longest_path_length(rust, lambda _a, _b, weight: weight))
        loop_s, by_loop = cpu_s(lambda: replay_unlimited(recording).makespan_ns)
        compiled_s, makespans = projected(recording, SCENARIOS, None)
        plain_s, by_list = cpu_s(lambda: replay_workers(recording, WORKERS, plain_duration[0]).makespan_ns)
        list_s, by_compiled = projected(recording, LIST_SCENARIOS, WORKERS)
        agreed &= expected == by_rust == by_loop == makespans[0] and by_list == by_compiled[0]
        for k, spent in enumerate((networkx_s, rustworkx_s, loop_s, compiled_s, plain_s, list_s)):
            times[k].append(spent)
    return [statistics.median(t) for t in times], agreed


def main() -> int:
    """Measure and print; 1 when the methods disagree."""
    if replay.compiled() is None:
        print("numba is not installed; pip install 'fathom-trace[fast]' rustworkx", file=sys.stderr)
        return 3
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    counts = [int(float(text)) for text in sys.argv[2:]] or [10_000, 100_000, 1_000_000]
    replay.COMPILED_VALUES = 0  # the compiled loops at every size
    small = random_recording(100)
    for workers in (None, WORKERS):  # compile before anything is timed
        makespans_ns(small, np.tile(small.duration_ns, (17, 1)), workers=workers)
    print("| executions | method | CPU time of one scenario | times faster than networkx |")
    print("|---:|:---|---:|---:|")
    agreed = True
    for count in counts:
        medians, same = compare(count, rounds)
        agreed &= same
        for method, spent in zip(METHODS, medians, strict=True):
            print(f"| {count:,} | {method} | {1e3 * spent:.3f} ms | {medians[0] / spent:,.1f} |", flush=True)
    print("the results agree" if agreed else "the results DIFFER")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
