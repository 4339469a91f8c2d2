"""What holds for the replay of any dependencies: on random graphs, against networkx, sums and Graham's bounds."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom_trace.whatif import Settings, parse_scenario, project
from fathom_trace.whatif.recording import Recording
from fathom_trace.whatif.replay import CAPTURED, CRITICAL_PATH, replay_unlimited, replay_workers
from tests.recordings import random_trace, recording_of


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Up to 30 executions, each waiting for any of those before it; whole gaps, durations and tails; a random captured order."""
    count = draw(st.integers(1, 30))
    parents = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=4))) if i else [] for i in range(count)]
    durations = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    tails = [draw(st.integers(0, d)) for d in durations]
    gaps = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    order: list[int] = []
    ready = [i for i in range(count) if not parents[i]]
    while ready:
        order.append(ready.pop(draw(st.integers(0, len(ready) - 1))))
        ready += [i for i in range(count) if i not in order and i not in ready and all(p in order for p in parents[i])]
    return replace(recording_of(durations, parents, gaps=gaps, tails=tails), order=np.array(order, np.int64))


@st.composite
def faster(draw: st.DrawFn) -> tuple[Recording, np.ndarray]:
    """A recording, and durations of which some are shorter."""
    recording = draw(recordings())
    count = len(recording)
    factors = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=count, max_size=count))
    return recording, recording.duration_ns * np.array(factors)


def longest_path(recording: Recording) -> float:
    """networkx's longest path: from a source over gaps and bodies to a sink behind every execution's whole duration."""
    graph = networkx.DiGraph()
    body = recording.duration_ns - recording.tail_ns
    for i, producers in enumerate(recording.producers):
        graph.add_edge("source", i, weight=recording.gap_ns[i])
        graph.add_edge(i, "sink", weight=recording.duration_ns[i])
        graph.add_edges_from((p, i, {"weight": body[p] + recording.gap_ns[i]}) for p in producers)
    return float(networkx.dag_longest_path_length(graph, weight="weight"))


@settings(max_examples=200, deadline=None)
@given(recordings())
def test_unlimited_workers_are_the_longest_path_and_one_is_the_sum(recording: Recording) -> None:
    work = float((recording.gap_ns + recording.duration_ns).sum())
    assert replay_unlimited(recording).makespan_ns == longest_path(recording)
    assert replay_workers(recording, 1).makespan_ns == work


@settings(max_examples=200, deadline=None)
@given(faster())
def test_faster_is_never_longer_on_unlimited_workers_and_on_one(case: tuple[Recording, np.ndarray]) -> None:
    recording, duration = case
    assert replay_unlimited(recording, duration).makespan_ns <= replay_unlimited(recording).makespan_ns
    assert replay_workers(recording, 1, duration).makespan_ns <= replay_workers(recording, 1).makespan_ns


@settings(max_examples=200, deadline=None)
@given(faster(), st.integers(2, 6), st.sampled_from([CAPTURED, CRITICAL_PATH]))
def test_list_schedules_keep_grahams_bounds_before_and_after(case: tuple[Recording, np.ndarray], workers: int, priority: str) -> None:
    recording, faster_ns = case
    for duration in (recording.duration_ns, faster_ns):
        path = replay_unlimited(recording, duration).makespan_ns
        work = float((recording.gap_ns + duration).sum())
        makespan = replay_workers(recording, workers, duration, priority=priority).makespan_ns
        assert max(path, work / workers) <= makespan * (1 + 1e-12)
        assert makespan <= (work / workers + (1 - 1 / workers) * path) * (1 + 1e-12)


@pytest.mark.parametrize("workers", [2, 3])
def test_every_anomaly_on_random_graphs_is_reported_and_nothing_else(workers: int) -> None:
    """Of 150 random graphs in which one of five op types gets 10% faster, some take longer: each is marked, and only those."""
    reported = 0
    for seed in range(150):
        trace = random_trace(random.Random(seed), 25, workers, steps=1, inter_threads=workers)
        projection = project(trace, parse_scenario(["Op0=1.1"]), Settings(workers=workers))
        longer = projection.replay.after_ns > projection.replay.before_ns
        assert projection.replay.anomaly == longer
        assert any("scheduling anomaly" in note for note in projection.notes) == longer
        assert not projection.unlimited.anomaly
        assert not projection.amdahl.anomaly
        reported += longer
    assert 0 < reported < 75
