"""Does the replay give the measured schedule back, and does it schedule as an independent program would?"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import networkx
import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.whatif.recording import Recording, record, record_step
from fathom_trace.whatif.replay import (
    CAPTURED,
    CRITICAL_PATH,
    critical_path,
    makespans_ns,
    replay_lanes,
    replay_unlimited,
    replay_workers,
)
from tests.recordings import random_recording, random_trace, recording_of, slow_list_schedule
from tests.small import diamond, loop


def networkx_longest_path(recording: Recording) -> float:
    """Longest path from a source to a sink; an execution's start-to-end lies on the way to its dependents, its done on the way out."""
    graph = networkx.DiGraph()
    body = recording.duration_ns - recording.tail_ns
    for i, producers in enumerate(recording.producers):
        graph.add_edge("source", i, weight=recording.gap_ns[i])
        graph.add_edge(i, "sink", weight=recording.duration_ns[i])
        graph.add_edges_from((p, i, {"weight": body[p] + recording.gap_ns[i]}) for p in producers)
    return networkx.dag_longest_path_length(graph, weight="weight")


# --- the measured schedule comes back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2, 5])
@pytest.mark.parametrize("flaws", [{}, {"invalid": 0.2}, {"early": 0.3}, {"invalid": 0.2, "early": 0.3}])
def test_replaying_a_step_on_its_own_gaps_gives_its_measured_span(lanes: int, flaws: dict[str, float]) -> None:
    trace = random_trace(random.Random(lanes), 60, lanes, steps=4, **flaws)
    for step in trace.traced_steps:
        recording, rows = record_step(trace, step), trace.step_rows(step)
        schedule = replay_lanes(recording)
        assert schedule.makespan_ns == trace.steps.span_ns[step] == recording.measured_span_ns
        valid = trace.step_times.valid[rows]
        origin = trace.step_times.scheduled[rows][valid].min()
        for replayed, measured in (
            (schedule.start_ns, trace.step_times.start),
            (schedule.end_ns, trace.step_times.end),
            (schedule.done_ns, trace.step_times.done),
        ):
            assert np.array_equal(replayed[valid], (measured[rows] - origin)[valid])


def test_early_starts_are_counted_as_negative_gaps() -> None:
    builder = TraceBuilder()
    a, b = builder.node("a", "A"), builder.node("b", "B")
    first = builder.execution(a, outputs=[("float32", [1])])
    builder.execution(b, inputs=[builder.tensor(first)])
    builder.step(0, start=[0, 7], done=[10, 20], lane=[0, 1])  # b starts 3 ns before a ends
    recording = record(builder.build())
    assert recording.gap_ns.tolist() == [0, -3]
    assert recording.negative_gaps == 1
    assert replay_lanes(recording).makespan_ns == 20
    assert replay_unlimited(recording).makespan_ns == 23  # 10 + 13: b waits for a


def test_gap_runs_from_the_last_of_dependency_end_and_lane_done() -> None:
    """`b` depends on `a` (end 8, done 10) on another lane; `c` follows `a` on its lane; the step is scheduled at 100."""
    builder = TraceBuilder()
    nodes = [builder.node(name, name) for name in "abc"]
    first = builder.execution(nodes[0], outputs=[("float32", [1])])
    builder.execution(nodes[1], inputs=[builder.tensor(first)])
    builder.execution(nodes[2])
    builder.step(0, scheduled=[100, 108, 110], start=[102, 109, 114], end=[108, 119, 115], done=[110, 121, 116], lane=[0, 1, 0])
    recording = record(builder.build())
    assert recording.gap_ns.tolist() == [2, 1, 4]  # 102-100, 109-108, 114-110
    assert recording.duration_ns.tolist() == [8, 12, 2]
    assert recording.tail_ns.tolist() == [2, 2, 1]
    assert recording.measured_span_ns == 21


def test_medians_are_taken_per_execution_over_the_steps() -> None:
    builder = TraceBuilder()
    node = builder.node("a", "A")
    for _ in range(2):
        builder.execution(node)
    structure = builder.end_structure()
    for gap, first, second in ((1, 10, 30), (2, 20, 10), (9, 12, 20)):
        builder.step(structure, scheduled=[0, 0], start=[0, first + gap], done=[first, first + gap + second])
    recording = record(builder.build())
    assert recording.duration_ns.tolist() == [12, 20]
    assert recording.gap_ns.tolist() == [0, 2]
    assert recording.measured_spans_ns == (41, 32, 41)
    assert recording.measured_span_ns == 41
    assert replay_lanes(recording).makespan_ns == 34


def test_executions_without_any_valid_time_pass_dependencies_through() -> None:
    """a (10 ns) -> b (times out of order) -> c (5 ns): c waits for a, b takes nothing."""
    builder = TraceBuilder()
    rows = []
    for name in "abc":
        inputs = [builder.tensor(rows[-1])] if rows else []
        rows.append(builder.execution(builder.node(name, name), inputs=inputs, outputs=[("float32", [1])]))
    builder.step(0, start=[0, 999, 12], done=[10, 900, 17])
    recording = record(builder.build())
    assert recording.timed.tolist() == [True, False, True]
    assert recording.duration_ns.tolist() == [10, 0, 5]
    assert recording.gap_ns.tolist() == [0, 0, 2]
    assert replay_lanes(recording).makespan_ns == replay_unlimited(recording).makespan_ns == 17


def test_idle_is_the_time_in_which_nothing_runs() -> None:
    """Lane 0 runs 2..10, lane 1 runs 4..6 and 15..20: idle before 2 and from 10 to 15."""
    recording = replace(recording_of([8, 2, 5], [[], [], []], gaps=[2, 4, 9]), lane=np.array([0, 1, 1]))
    assert replay_lanes(recording).done_ns.tolist() == [10, 6, 20]
    assert replay_lanes(recording).idle_ns == 7


# --- against independent methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_unlimited_workers_give_the_longest_path_of_networkx(seed: int) -> None:
    rng = random.Random(seed)
    for recording in (random_recording(rng, 40), random_recording(rng, 40, gaps=True, tails=True)):
        assert replay_unlimited(recording).makespan_ns == networkx_longest_path(recording)


@pytest.mark.parametrize("seed", range(20))
def test_one_worker_gives_the_sum(seed: int) -> None:
    recording = random_recording(random.Random(seed), 40, gaps=True, tails=True)
    work = recording.gap_ns.sum() + recording.duration_ns.sum()
    assert replay_workers(recording, 1).makespan_ns == work
    assert replay_workers(recording, 1, priority=CRITICAL_PATH).makespan_ns == work
    assert makespans_ns(recording, recording.duration_ns[None], workers=1).tolist() == [work]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(30))
def test_list_schedule_equals_a_slow_one(seed: int, workers: int) -> None:
    rng = random.Random(seed)
    rank = rng.sample(range(10), 10)
    recording = random_recording(rng, 10, gaps=seed % 2 == 0, tails=seed % 3 == 0)
    ranked = replace(recording, order=np.argsort(rank))
    assert replay_workers(ranked, workers).start_ns.tolist() == slow_list_schedule(ranked, workers, rank)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("seed", range(30))
def test_what_is_needed_exclusively_is_waited_for(seed: int, workers: int) -> None:
    rng = random.Random(seed)
    rank = rng.sample(range(12), 12)
    recording = random_recording(rng, 12, gaps=seed % 2 == 0, tails=seed % 3 == 0)
    needs = np.array([rng.choice([-1, 0, 0, 1]) for _ in range(12)])
    ranked = replace(recording, order=np.argsort(rank), exclusive=needs)
    schedule = replay_workers(ranked, workers)
    assert schedule.start_ns.tolist() == slow_list_schedule(ranked, workers, rank)
    for need in (0, 1):
        mine = np.flatnonzero(needs == need)
        begun = schedule.start_ns[mine] - ranked.gap_ns[mine]
        in_turn = np.lexsort((schedule.done_ns[mine], begun))
        assert np.all(begun[in_turn[1:]] >= schedule.done_ns[mine][in_turn[:-1]])


@pytest.mark.parametrize("workers", range(2, 9))
@pytest.mark.parametrize("priority", [CAPTURED, CRITICAL_PATH])
def test_list_schedule_keeps_the_bounds_its_dependencies_and_its_workers(workers: int, priority: str) -> None:
    for seed in range(20):
        recording = random_recording(random.Random(seed), 40, gaps=True, tails=True)
        schedule = replay_workers(recording, workers, priority=priority)
        path, work = replay_unlimited(recording).makespan_ns, float(recording.gap_ns.sum() + recording.duration_ns.sum())
        assert max(path, work / workers) <= schedule.makespan_ns <= work / workers + (1 - 1 / workers) * path
        for i, producers in enumerate(recording.producers):
            assert all(schedule.end_ns[p] + recording.gap_ns[i] <= schedule.start_ns[i] for p in producers)
        for worker in range(workers):
            mine = np.flatnonzero(schedule.worker == worker)
            taken = schedule.start_ns[mine] - recording.gap_ns[mine]
            in_turn = np.lexsort((schedule.done_ns[mine], taken))
            assert np.all(taken[in_turn[1:]] >= schedule.done_ns[mine][in_turn[:-1]])
        assert set(schedule.worker.tolist()) <= set(range(workers))


def test_enough_workers_are_as_good_as_unlimited_ones() -> None:
    recording = random_recording(random.Random(1), 30, gaps=True, tails=True)
    assert replay_workers(recording, 30).makespan_ns == replay_unlimited(recording).makespan_ns


def test_critical_path_first_beats_the_captured_order_where_that_is_unlucky() -> None:
    """On 2 workers a (1), b (1), c (5): captured a, b, c takes 1 + 5; c first takes 5, beside a and b."""
    recording = recording_of([1, 1, 5], [[], [], []])
    assert replay_workers(recording, 2).makespan_ns == 6
    assert replay_workers(recording, 2, priority=CRITICAL_PATH).makespan_ns == 5


def test_critical_path_counts_what_comes_after() -> None:
    """On 2 workers a (3), b (3), c (1) before d (6): c and a first, d from 1 to 7; longest first would start d at 4."""
    recording = recording_of([3, 3, 1, 6], [[], [], [], [2]])
    assert replay_workers(recording, 2, priority=CRITICAL_PATH).start_ns.tolist() == [0, 3, 0, 1]


def test_what_an_execution_without_time_frees_comes_before_later_ones() -> None:
    """On 2 workers: z (0) frees a (5) and b (5), which stand before c (5) in the order."""
    recording = recording_of([0, 5, 5, 5], [[], [0], [0], []])
    assert replay_workers(recording, 2).start_ns.tolist() == [0, 0, 0, 5]


@pytest.mark.parametrize("seed", range(10))
def test_critical_path_adds_up_to_the_makespan(seed: int) -> None:
    recording = random_recording(random.Random(seed), 40, gaps=True, tails=True, shortest=1)
    schedule = replay_unlimited(recording)
    path = critical_path(recording, schedule)
    assert all(a in recording.producers[b] for a, b in pairwise(path))
    body = recording.duration_ns - recording.tail_ns
    assert recording.gap_ns[path].sum() + body[path[:-1]].sum() + recording.duration_ns[path[-1]] == schedule.makespan_ns


# --- monotony and anomalies ---------------------------------------------------------------------------------------------------


def test_faster_is_never_longer_on_one_worker_on_unlimited_ones_and_along_the_lanes() -> None:
    rng = random.Random(7)
    for seed in range(20):
        trace = random_trace(random.Random(seed), 40, 3, steps=1)
        recording = record(trace)
        faster = recording.duration_ns * np.array([rng.choice([0.0, 0.1, 0.5, 1.0]) for _ in range(40)])
        assert replay_lanes(recording, faster).makespan_ns <= replay_lanes(recording).makespan_ns
        assert replay_unlimited(recording, faster).makespan_ns <= replay_unlimited(recording).makespan_ns
        assert replay_workers(recording, 1, faster).makespan_ns <= replay_workers(recording, 1).makespan_ns


def test_grahams_nine_tasks_take_longer_when_each_gets_shorter() -> None:
    """Graham 1969, figure 2 and the example of reduced times: 3 machines, 12 units; every task one unit shorter, 13 units."""
    times = [3.0, 2, 2, 2, 4, 4, 4, 4, 9]
    parents = [[], [], [], [], [3], [3], [3], [3], [0]]
    recording = recording_of(times, parents)
    assert replay_workers(recording, 3).makespan_ns == 12
    assert replay_workers(recording, 3, recording.duration_ns - 1).makespan_ns == 13
    assert replay_workers(recording, 4).makespan_ns == 15  # and one more machine: 15


# --- many scenarios at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [None, 1, 3])
@pytest.mark.parametrize("per_scenario_gaps", [False, True])
def test_many_scenarios_at_once_equal_one_by_one_to_the_last_bit(workers: int | None, per_scenario_gaps: bool) -> None:
    numbers = np.random.default_rng(3)
    recording = random_recording(random.Random(3), 200, gaps=True, tails=True)
    duration = recording.duration_ns * numbers.random((17, 200))
    gap = recording.gap_ns * numbers.random((17, 200)) if per_scenario_gaps else recording.gap_ns / 3
    together = makespans_ns(recording, duration, gap, workers)
    rows = np.broadcast_to(gap, duration.shape)
    assert together.tolist() == [makespans_ns(recording, d[None], g, workers)[0] for d, g in zip(duration, rows, strict=True)]
    if workers is None:
        assert together.tolist() == [replay_unlimited(recording, d, g).makespan_ns for d, g in zip(duration, rows, strict=True)]
    assert len(set(together.tolist())) == 17


def test_batches_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = random_recording(random.Random(5), 50, gaps=True)
    duration = recording.duration_ns * np.random.default_rng(5).random((9, 50))
    whole = makespans_ns(recording, duration)
    monkeypatch.setattr("fathom_trace.whatif.replay.BATCH_VALUES", 100)  # two scenarios at a time, the last one alone
    assert makespans_ns(recording, duration).tolist() == whole.tolist()


def test_no_scenario_and_no_execution_are_fine() -> None:
    nothing = recording_of([], [])
    assert makespans_ns(nothing, np.zeros((3, 0))).tolist() == [0, 0, 0]
    assert replay_workers(nothing, 2).makespan_ns == replay_unlimited(nothing).makespan_ns == 0
    assert critical_path(nothing, replay_unlimited(nothing)) == []
    assert makespans_ns(recording_of([1], [[]]), np.zeros((0, 1))).tolist() == []


def test_a_scaled_duration_scales_the_part_that_dependents_wait_for() -> None:
    """a: 10 ns of which the last 4 overlap b (5 ns). Now 6 + 5 = 11; a twice as fast: 3 + 5 = 8."""
    recording = recording_of([10, 5], [[], [0]], tails=[4, 0])
    assert replay_unlimited(recording).makespan_ns == 11
    assert replay_unlimited(recording, np.array([5.0, 5.0])).makespan_ns == 8


# --- small traces and errors --------------------------------------------------------------------------------------------------


def test_the_diamond_replays_as_measured_on_its_two_lanes() -> None:
    recording = record(diamond())
    assert replay_lanes(recording).start_ns.tolist() == [0, 10_000, 10_000, 60_000]
    assert [replay_workers(recording, p).makespan_ns for p in (1, 2, 3)] == [100_000, 70_000, 70_000]


def test_each_structure_has_a_recording_of_its_own() -> None:
    trace = loop()  # one lane, an execution every 10 ns, 7 ns each
    for structure in (0, 1):
        recording = record(trace, structure)
        count = len(range(*trace.structure_rows(structure).indices(len(trace.executions))))
        assert len(recording) == count
        assert replay_lanes(recording).makespan_ns == 10 * (count - 1) + 7
        assert recording.gap_ns.tolist() == [0] + [3] * (count - 1)
    assert len(record(trace, 0)) > len(record(trace, 1))


def test_a_trace_without_times_is_one_clear_error() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "A"), timed=False)
    with pytest.raises(ScenarioError, match="holds no times"):
        record(builder.build())
    with pytest.raises(ScenarioError, match="no executions"):
        record(TraceBuilder().build())
    builder = TraceBuilder()
    builder.execution(builder.node("a", "A"))
    builder.step(0, start=[5], done=[3])
    with pytest.raises(ScenarioError, match="valid time"):
        record(builder.build())


def test_workers_and_priority_are_checked() -> None:
    recording = recording_of([1], [[]])
    with pytest.raises(ScenarioError, match="0 workers"):
        replay_workers(recording, 0)
    with pytest.raises(UnknownNameError, match="did you mean 'critical-path'"):
        replay_workers(recording, 2, priority="critical")


def test_more_workers_than_executions_are_as_many_as_there_are() -> None:
    from small import diamond

    from fathom_trace.whatif import Settings, parse_scenario, project

    many = project(diamond(), parse_scenario(["OpB=5"]), Settings(workers=10**9))
    assert many.replay.after_ns == project(diamond(), parse_scenario(["OpB=5"]), Settings(workers=4)).replay.after_ns == 50_000
