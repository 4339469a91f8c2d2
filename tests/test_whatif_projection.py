"""What do faster ops do to the whole? Against hand arithmetic: case by case, side by side, with limits, idle and anomalies."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.trace import Trace
from fathom_trace.whatif import Settings, from_results, parse_scenario, parse_sweep, project, project_sweep, render, render_curve
from fathom_trace.whatif.amdahl import group_times, limit, ratio, speedup
from fathom_trace.whatif.baseline import operations_factor, untraced_recording
from fathom_trace.whatif.recording import record
from fathom_trace.whatif.replay import replay_lanes
from tests.recordings import random_trace, recording_of
from tests.small import diamond, loop

US = 1000


def chain(times: list[tuple[str, int, int]], *, untraced: tuple[int, ...] = (), **provenance: Any) -> Trace:
    """One lane of ops in a row; each is (op type, dispatch gap, duration) in ns."""
    builder = TraceBuilder()
    rows: list[int] = []
    now, start, done = 0, [], []
    for k, (op, gap, duration) in enumerate(times):
        inputs = [builder.tensor(rows[-1])] if rows else []
        rows.append(builder.execution(builder.node(f"n{k}", op), inputs=inputs, outputs=[("float32", [1])]))
        start.append(now + gap)
        now += gap + duration
        done.append(now)
    scheduled = [0, *start[1:]]
    builder.step(builder.end_structure(), start, done, scheduled=scheduled)
    for wall in untraced:
        builder.untraced_step(wall)
    return builder.build({"inter_threads": 1} | provenance)


def anomalous() -> Trace:
    """On two workers: A (4) and B (4) at once; A frees C (3) and D (8); E (5) waits for nothing but a worker: done after 12."""
    builder = TraceBuilder()
    a = builder.execution(builder.node("a", "A"), outputs=[("float32", [1])])
    builder.execution(builder.node("b", "B"))
    for name in "CD":
        builder.execution(builder.node(name.lower(), name), inputs=[builder.tensor(a)])
    builder.execution(builder.node("e", "E"))
    builder.step(0, start=[0, 0, 4, 4, 7], done=[4, 4, 7, 12, 12], lane=[0, 1, 0, 1, 0])
    return builder.build({"inter_threads": 2})


# --- off the critical path a faster op gives nothing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "then_us", "gain", "amdahl_gain", "limit_us"),
    [
        ("OpB=5", 50, 1.40, 100 / 60, 50),
        ("OpC=inf", 70, 1.00, 100 / 70, 70),
        ("OpB=inf", 50, 1.40, 100 / 50, 50),
    ],
)
def test_diamond_on_two_workers(text: str, then_us: int, gain: float, amdahl_gain: float, limit_us: int) -> None:
    projection = project(diamond(), parse_scenario([text]))
    assert projection.workers == 2
    for estimate in (projection.replay, projection.unlimited):
        assert estimate.before_ns == 70 * US
        assert estimate.after_ns == then_us * US
        assert estimate.speedup == pytest.approx(gain, rel=1e-12)
        assert estimate.limit_ns == limit_us * US
        assert not estimate.anomaly
    assert projection.amdahl.before_ns == 100 * US  # 10 + 50 + 30 + 10: op times added up, although two overlap
    assert projection.amdahl.speedup == pytest.approx(amdahl_gain, rel=1e-12)
    assert projection.coincide == ("the replays on 2 workers and on unlimited workers coincide",)
    assert projection.baseline.lanes_error == projection.baseline.workers_error == 0


def test_diamond_prints_both_claims() -> None:
    text = render(project(diamond(), parse_scenario(["OpB=5"])))
    rows = {line.split("  ")[0]: line.split()[-2:] for line in text.splitlines() if line.endswith("x")}
    assert rows == {
        "Amdahl: op times and idle, added up": ["1.67x", "2.00x"],
        "replay on 2 workers": ["1.40x", "1.40x"],
        "replay on unlimited workers": ["1.40x", "1.40x"],
    }


def test_op_types_before_and_after_and_on_the_critical_path() -> None:
    ops = {o.op: o for o in project(diamond(), parse_scenario(["OpB=5"])).ops}
    assert list(ops) == ["OpC", "OpB", "OpA", "OpD"]  # 30, then three of 10: the longer before first
    assert (ops["OpB"].before_ns, ops["OpB"].after_ns) == (50 * US, 10 * US)
    assert (ops["OpC"].before_share, ops["OpC"].after_share) == (0.3, 0.5)  # 30 of 100, 30 of 60
    assert ops["OpB"].critical_before == pytest.approx(50 / 70)
    assert (ops["OpC"].critical_before, ops["OpC"].critical_after) == (0, pytest.approx(30 / 50))


def test_schedule_of_the_changed_step_is_kept() -> None:
    schedule = project(diamond(), parse_scenario(["OpB=5"])).schedule
    assert schedule.start_ns.tolist() == [0, 10 * US, 10 * US, 40 * US]
    assert schedule.makespan_ns == 50 * US


# --- idle stays ---------------------------------------------------------------------------------------------------------------


def test_idle_stays_in_the_denominator() -> None:
    """Op times 60 + 20, idle 5 + 15: 100. A 3x faster: 20 + 20 + 20 = 60. Free: 40. Removed with its gap of 5: 35 replayed."""
    trace = chain([("A", 5, 60), ("B", 15, 20)])
    faster = project(trace, parse_scenario(["A=3"]))
    assert [e.before_ns for e in faster.estimates] == [100, 100, 100]
    assert [e.after_ns for e in faster.estimates] == [60, 60, 60]
    assert faster.coincide == ("all three coincide: 1.67x",)
    assert [e.limit_ns for e in faster.estimates] == [40, 40, 40]
    everything = project(trace, parse_scenario(["*=inf"]))
    assert everything.replay.speedup == pytest.approx(5)  # 100 / 20: what dispatching takes is left
    removed = project(trace, parse_scenario(["A=remove"]))
    assert removed.replay.after_ns == removed.unlimited.after_ns == 35
    assert removed.amdahl.after_ns == 40


def test_one_worker_says_what_amdahl_says() -> None:
    for seed in range(5):
        trace = random_trace(random.Random(seed), 50, 1, steps=3, inter_threads=1)
        projection = project(trace, parse_scenario(["Op1=7", "Op3=inf"]))
        assert projection.replay.before_ns == pytest.approx(projection.amdahl.before_ns, rel=1e-12)
        assert projection.replay.after_ns == pytest.approx(projection.amdahl.after_ns, rel=1e-12)
        assert "Amdahl and the replay on 1 worker coincide" in projection.coincide


def test_everything_free_is_unbounded_and_still_json() -> None:
    projection = project(diamond(), parse_scenario(["*=inf"]))
    assert math.isinf(projection.replay.speedup)
    assert "unbounded" in render(projection)
    data = json.loads(json.dumps(projection.to_dict(), allow_nan=False))
    assert [e["speedup"] for e in data["estimates"]] == [None, None, None]


def test_nothing_changed_is_a_speedup_of_one() -> None:
    projection = project(diamond(), parse_scenario([]))
    assert [e.speedup for e in projection.estimates] == [1, 1, 1]
    assert projection.untouched_share == 1
    assert "what if nothing changed" in render(projection)


# --- what was selected, and from where ----------------------------------------------------------------------------------------


def test_selected_and_untouched_shares() -> None:
    projection = project(diamond(), parse_scenario(["OpB=5", "Op[AB]=2"]))
    assert [(s.change, s.executions, s.share) for s in projection.selected] == [("OpB=5", 1, 0.5), ("Op[AB]=2", 2, 0.6)]
    assert projection.untouched_share == 0.4
    assert "executions that more than one change selects, and that they change in turn: 1" in projection.notes


def test_results_of_a_simulator_give_the_speedup_of_the_whole() -> None:
    projection = project(diamond(), from_results(diamond(), {1: 5.0 * US, 3: 4.0 * US}, "scale_sim"))
    assert projection.replay.after_ns == (10 + 30 + 4) * US
    assert projection.amdahl.after_ns == (10 + 5 + 30 + 4) * US
    assert projection.untouched_share == 0.4  # A and C: 40 of 100
    assert projection.scenario == "times of 2 executions from scale_sim"


def test_injected_labels_are_used() -> None:
    labels = {"op": ["x"] * 4, "layer": ["in", "fc6", "fc7", "out"]}
    projection = project(diamond(), parse_scenario(["layer:fc*=5"]), Settings(labels=labels))
    assert projection.replay.after_ns == (10 + 10 + 10) * US
    assert [o.op for o in projection.ops] == ["x"]


def test_workers_come_from_the_capture_unless_given() -> None:
    assert project(diamond(), parse_scenario(["OpB=5"]), Settings(workers=1)).replay.after_ns == 60 * US
    unsaid = diamond().replace(provenance={})
    assert project(unsaid, parse_scenario(["OpB=5"])).workers == 2  # two lanes ran something
    assert project(unsaid.replace(provenance={"inter_threads": 0}), parse_scenario([])).workers == 2
    narrow = project(diamond().replace(provenance={"inter_threads": 1}), parse_scenario(["OpB=5"]))
    assert narrow.workers == 1
    assert "the captured executions overlap on 2 lanes; the replay has 1 for them" in narrow.notes
    assert narrow.baseline.workers_error == pytest.approx(100 / 70 - 1)
    other = project(diamond(), parse_scenario([]), Settings(workers=1))
    assert other.baseline.workers_error is None
    assert "100 us on 1 worker (captured on 2)" in render(other)
    with pytest.raises(UnknownNameError, match="no priority is called 'capture'; did you mean 'captured'"):
        project(diamond(), parse_scenario([]), Settings(workers=1, priority="capture"))
    with pytest.raises(ScenarioError, match="cannot replay on 0 workers"):
        project(diamond(), parse_scenario([]), Settings(workers=0))


def test_another_structure_can_be_projected() -> None:
    trace = loop()
    first, second = (project(trace, parse_scenario(["MatMul=inf"]), Settings(structure=s, correct_tracing=False)) for s in (0, 1))
    trips = [o.count for p in (first, second) for o in p.ops if o.op == "MatMul"]
    assert trips == [2, 1]
    assert first.replay.before_ns - first.replay.after_ns == 2 * 7
    assert "traced steps that executed something else and are left out: 1 of 2" in first.notes
    assert any("iterations of loops may overlap" in note for note in first.notes)
    with pytest.raises(ScenarioError, match="no structure 2; it has 2"):
        project(trace, parse_scenario([]), Settings(structure=2))


def test_executions_without_valid_times_are_counted() -> None:
    builder = TraceBuilder()
    for name in "ab":
        builder.execution(builder.node(name, name.upper()))
    builder.step(0, start=[0, 10], done=[8, 9])
    projection = project(builder.build(), parse_scenario(["A=2"]))
    assert "executions without a valid time, taken as 0: 1 of 2" in projection.notes
    assert projection.replay.after_ns == 4


def test_a_trace_without_times_is_one_clear_error() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "A"), timed=False)
    with pytest.raises(ScenarioError, match="the trace holds no times"):
        project(builder.build(), parse_scenario(["A=2"]))


# --- baseline -----------------------------------------------------------------------------------------------------------------


def test_baseline_error_is_that_of_the_medians() -> None:
    """Spans 30, 40 and 50; medians of the two durations are 10 and 10 (of 10, 10, 40 and 20, 30, 10): replayed 30 against 40."""
    builder = TraceBuilder()
    for name in "ab":
        builder.execution(builder.node(name, name.upper()))
    structure = builder.end_structure()
    for first, second in ((10, 20), (10, 30), (40, 10)):
        builder.step(structure, start=[0, first], done=[first, first + second])
    projection = project(builder.build({"inter_threads": 1}), parse_scenario([]))
    baseline = projection.baseline
    assert (baseline.fastest_ns, baseline.slowest_ns) == (30, 50)
    assert "measured: 40 ns (median of 3 traced steps, 30 ns to 50 ns)" in render(projection)
    assert any("each step lost time in other executions" in note for note in projection.notes)
    assert (baseline.steps, baseline.measured_ns, baseline.lanes_ns, baseline.workers_ns) == (3, 40, 30, 30)
    assert baseline.lanes_error == baseline.workers_error == pytest.approx(-0.25)


def test_gaps_are_corrected_by_what_tracing_cost() -> None:
    """Traced 130 = 100 of ops and gaps of 6, 4 and 20; untraced 118, so 12 less: 4 each. Gaps become 2, 0 and 16."""
    trace = chain([("A", 6, 50), ("B", 4, 20), ("C", 20, 30)], untraced=(118, 140, 100))
    projection = project(trace, parse_scenario(["A=inf"]))
    assert projection.baseline.measured_ns == 130
    assert projection.baseline.untraced_ns == 118
    assert projection.baseline.tracing_ns == pytest.approx(4, rel=0.01)
    assert projection.baseline.corrected_ns == pytest.approx(118, rel=1e-3)
    assert projection.replay.before_ns == pytest.approx(118, rel=1e-3)
    assert projection.amdahl.after_ns == pytest.approx(68, rel=1e-3)
    plain = project(trace, parse_scenario(["A=inf"]), Settings(correct_tracing=False))
    assert (plain.replay.before_ns, plain.baseline.tracing_ns) == (130, 0)
    assert "4 ns an execution is taken off for tracing, which leaves 118 ns on the captured lanes" in render(projection)


def test_what_tracing_cost_is_taken_off_gaps_first_and_then_off_tails() -> None:
    """Gaps 2 and 9, bodies 10 and 20, tails 6 and 4. At 5 each: gaps 0 and 4, tails 3 and 4, hence durations 13 and 24."""
    recording = recording_of([16, 24], [[], [0]], gaps=[2, 9], tails=[6, 4]).without_tracing(5)
    assert recording.gap_ns.tolist() == [0, 4]
    assert recording.tail_ns.tolist() == [3, 4]
    assert recording.duration_ns.tolist() == [13, 24]


def test_where_overhead_does_not_explain_it_the_operations_are_shortened_alike() -> None:
    """Ops of 50 and 20 after gaps of 6 and 4; untraced 63: without the gaps 7 too many, so ops are taken for 0.9 of their time."""
    projection = project(chain([("A", 6, 50), ("B", 4, 20)], untraced=(63,)), parse_scenario(["A=inf"]))
    baseline = projection.baseline
    assert baseline.tracing_ns == 5  # 6 and 4
    assert baseline.op_factor == pytest.approx(0.9, rel=1e-3)
    assert baseline.corrected_ns == pytest.approx(63, rel=1e-3)
    assert projection.replay.after_ns == pytest.approx(18, rel=1e-3)
    assert any("op times are multiplied by 0.9: tracing lengthened them" in note for note in projection.notes)


def test_operations_are_not_shortened_where_steps_ran_different_things() -> None:
    """An untraced step may then have run the shorter of them: two steps of A, B and one of A alone, untraced 55."""
    builder = TraceBuilder()
    a, b = builder.node("a", "A"), builder.node("b", "B")
    for nodes, ends in (((a, b), (50, 70)), ((a,), (50,))):
        for node in nodes:
            builder.execution(node)
        structure = builder.end_structure()
        for _ in range(2 if len(nodes) == 2 else 1):
            builder.step(structure, start=[0, 50][: len(nodes)], done=list(ends))
    builder.untraced_step(55)
    baseline = project(builder.build({"inter_threads": 1}), parse_scenario([])).baseline
    assert (baseline.op_factor, baseline.corrected_ns) == (1, 70)


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_what_tracing_cost_operations_is_found_on_several_lanes(lanes: int) -> None:
    recording = record(random_trace(random.Random(lanes), 200, lanes, steps=1))
    for factor in (0.5, 0.8, 0.99):
        target = replay_lanes(recording.with_operations(factor)).makespan_ns
        found = operations_factor(recording, target)
        assert replay_lanes(recording.with_operations(found)).makespan_ns == pytest.approx(target, rel=2e-4)
    assert operations_factor(recording, 2 * recording.measured_span_ns) == 1


def test_slower_untraced_steps_correct_nothing() -> None:
    baseline = project(chain([("A", 6, 50)], untraced=(99,)), parse_scenario([])).baseline
    assert (baseline.tracing_ns, baseline.untraced_ns, baseline.corrected_ns) == (0, 99, 56)


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_what_tracing_cost_is_found_on_several_lanes(lanes: int) -> None:
    recording = record(random_trace(random.Random(lanes), 200, lanes, steps=1))
    for cost in (0.5, 1.0, 2.5, 4.0):
        target = replay_lanes(recording.without_tracing(cost)).makespan_ns
        assert replay_lanes(untraced_recording(recording, target)).makespan_ns == pytest.approx(target, rel=1e-4)
    assert untraced_recording(recording, 2 * recording.measured_span_ns) is recording


# --- anomalies ----------------------------------------------------------------------------------------------------------------


def test_a_speedup_that_lengthens_the_schedule_is_reported() -> None:
    """B twice as fast frees its worker at 2, which takes E until 7; at 4 the other takes C until 7; D then runs to 15, not 12."""
    projection = project(anomalous(), parse_scenario(["B=2"]))
    assert (projection.replay.before_ns, projection.replay.after_ns) == (12, 15)
    assert projection.replay.anomaly
    assert not projection.amdahl.anomaly
    assert not projection.unlimited.anomaly
    assert "scheduling anomaly: nothing got slower, yet the schedule takes 1.25 times as long" in projection.notes
    assert "scheduling anomaly" in render(projection)


def test_a_slowdown_is_no_anomaly() -> None:
    projection = project(anomalous(), parse_scenario(["D=0.5"]))
    assert projection.replay.after_ns > projection.replay.before_ns
    assert not projection.replay.anomaly


# --- sweeps -------------------------------------------------------------------------------------------------------------------


def test_sweep_equals_projecting_each_factor() -> None:
    trace = random_trace(random.Random(2), 80, 3, steps=2, inter_threads=2)
    curve = project_sweep(trace, parse_sweep("Op1=1..1000"), parse_scenario(["Op2=2"]))
    assert len(curve.factors) == 13
    for factor, three in zip(curve.factors, curve.estimates, strict=True):
        alone = project(trace, parse_scenario(["Op2=2", f"Op1={factor!r}"]))
        assert [e.after_ns for e in three] == [e.after_ns for e in alone.estimates]
        assert [e.before_ns for e in three] == [e.before_ns for e in alone.estimates]
    free = project(trace, parse_scenario(["Op2=2", "Op1=inf"]))
    assert [e.limit_ns for e in curve.estimates[0]] == [e.after_ns for e in free.estimates]


def test_sweep_in_batches_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(random.Random(2), 80, 3, steps=2, inter_threads=2)
    whole = project_sweep(trace, parse_sweep("Op1=1..1000"))
    monkeypatch.setattr("fathom_trace.whatif.sweep.BATCH_VALUES", 200)
    assert project_sweep(trace, parse_sweep("Op1=1..1000")) == whole


def test_sweep_of_the_diamond() -> None:
    """C bounds it from 5/3 on: 10 + max(50 / f, 30) + 10 us replayed, 50 + 50 / f us by Amdahl."""
    curve = project_sweep(diamond(), parse_sweep("OpB=1..16:5"))
    for factor, (amdahl, replay, unlimited) in zip([1, 2, 4, 8, 16], curve.estimates, strict=True):
        assert amdahl.after_ns == pytest.approx((50 + 50 / factor) * US, rel=1e-9)
        assert replay.after_ns == unlimited.after_ns == pytest.approx((20 + max(50 / factor, 30)) * US, rel=1e-9)
    data = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert data["limit"] == {"amdahl": 2.0, "replay": 1.4, "unlimited": 1.4}
    assert [p["factor"] for p in data["points"]] == pytest.approx([1, 2, 4, 8, 16])


def test_sweep_prints_a_line_a_factor_and_the_limit() -> None:
    curve = project_sweep(diamond(), parse_sweep("OpB=1..16:5"), parse_scenario(["OpA=2"]))
    text = render_curve(curve, unicode=False)
    assert text.isascii()
    lines = [line.split() for line in text.splitlines()]
    factors = [words[0] for words in lines if len(words) == 5 and words[0].endswith("x")]
    assert factors == ["1x", "2x", "4x", "8x", "16x"]
    longest = max(words[-1].count("#") for words in lines if words and words[-1].startswith("#"))
    assert longest == 40
    # OpA at 5 us, OpB free: Amdahl 100 / 45, replay 70 / 45
    assert ["at", "most", "2.22x", "1.56x", "1.56x"] in lines
    assert "on top of OpA=2" in text
    assert "█" in render_curve(curve)


def test_sweep_reports_where_more_speed_takes_longer() -> None:
    curve = project_sweep(anomalous(), parse_sweep("B=1..2:2"))
    assert [three[1].after_ns for three in curve.estimates] == [12, 15]
    assert "scheduling anomaly: the step takes longer at a factor of 2 after 1" in curve.notes


# --- Amdahl's law -------------------------------------------------------------------------------------------------------------


def test_amdahls_law_by_hand() -> None:
    assert speedup(0.5, 5).item() == pytest.approx(1 / 0.6)
    assert speedup(0.9, [1, 10, np.inf]).tolist() == pytest.approx([1, 1 / 0.19, 10])
    assert limit([0, 0.75, 1]).tolist() == [1, 4, np.inf]
    assert ratio(0, 0) == 1
    assert math.isinf(ratio(5, 0))


def test_groups_with_their_limits() -> None:
    rows = group_times(["conv", "fc", "conv", "pool"], np.array([30.0, 20, 20, 10]), idle_ns=20)
    assert [(r.name, r.count, r.time_ns, r.share) for r in rows] == [
        ("conv", 2, 50, 0.5), ("fc", 1, 20, 0.2), ("pool", 1, 10, 0.1)
    ]  # fmt: skip
    assert [r.limit for r in rows] == pytest.approx([2, 1.25, 100 / 90])
    assert group_times([], np.zeros(0), 0) == []
