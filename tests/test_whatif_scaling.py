"""Are serial fractions found that were put in, with intervals that cover them, and do they project another number of threads?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ScenarioError
from fathom_trace.store import save
from fathom_trace.trace import Trace
from fathom_trace.whatif import fit_scaling, parse_scenario, project
from fathom_trace.whatif.scaling import fit_samples, student_t
from fathom_trace.whatif.scenario import Context
from tests.test_commands import complaint, output

SERIAL = {"Conv2D": 0.1, "MatMul": 0.25, "Relu": 1.0, "BiasAdd": 0.5}
ONE_THREAD_NS = {"Conv2D": 40_000, "MatMul": 20_000, "Relu": 8_000, "BiasAdd": 4_000}


def capture(threads: int, steps: int = 1, workload: str = "made-up", scale: int = 1) -> Trace:
    """One worker; each op type twice, in halves of c (s + (1 - s) / n), exact in whole ns; 1 us before each."""
    builder = TraceBuilder()
    nodes = [builder.node(f"{op}{k}", op) for op in SERIAL for k in range(2)]
    for node in nodes:
        builder.execution(node)
    start, done, now = [], [], 0
    for op, serial in SERIAL.items():
        time = scale * ONE_THREAD_NS[op] * (serial + (1 - serial) / threads) / 2
        assert time == int(time)
        for _ in range(2):
            start.append(now + 1000)
            now += 1000 + int(time)
            done.append(now)
    structure = builder.end_structure()
    for _ in range(steps):
        builder.step(structure, start, done, scheduled=[0, *start[1:]])
    return builder.build({"workload": workload, "mode": "inference", "intra_threads": threads, "inter_threads": 1})


# --- the fit ------------------------------------------------------------------------------------------------------------------


def test_exact_data_give_the_fractions_that_were_put_in() -> None:
    """Threads 1, 2 and 4, so one degree of freedom more than parameters: the interval has no width."""
    model = fit_scaling([capture(n) for n in (1, 2, 4)])
    assert model.threads == (1, 2, 4)
    assert list(model.ops) == ["Conv2D", "MatMul", "Relu", "BiasAdd"]  # most time first
    for op, serial in SERIAL.items():
        fit = model.ops[op]
        assert fit.serial == pytest.approx(serial, abs=1e-12)
        assert (fit.low, fit.high) == (pytest.approx(serial, abs=1e-9), pytest.approx(serial, abs=1e-9))
        assert (fit.samples, fit.programs, fit.time_ns) == (3, 1, pytest.approx(ONE_THREAD_NS[op]))
    whole = sum(ONE_THREAD_NS.values())
    assert model.everything.serial == pytest.approx(sum(SERIAL[op] * ns for op, ns in ONE_THREAD_NS.items()) / whole)


def test_two_samples_leave_no_freedom_for_an_interval() -> None:
    fit = fit_scaling([capture(1), capture(2)]).ops["MatMul"]
    assert (fit.serial, fit.low, fit.high) == (pytest.approx(0.25), None, None)
    more = fit_scaling([capture(1, steps=2), capture(2)]).ops["MatMul"]
    assert more.low == pytest.approx(0.25, abs=1e-9)


def test_several_programs_share_fractions_not_times() -> None:
    """The second takes three times as long; both say the same of each op type."""
    traces = [capture(n) for n in (1, 2)] + [capture(n, workload="other", scale=3) for n in (2, 4)]
    model = fit_scaling(traces)
    for op, serial in SERIAL.items():
        assert model.ops[op].serial == pytest.approx(serial, abs=1e-12)
        assert (model.ops[op].programs, model.ops[op].time_ns) == (2, pytest.approx(2 * ONE_THREAD_NS[op]))


def test_a_straight_line_by_hand() -> None:
    """12 and 10 on one thread, 7 and 5 on two: means 11 and 6, so 11 = c and 6 = c (s + (1 - s) / 2), s = 1/11.

    Residuals of 1 in all four, relative 1/11: sigma = sqrt(4 / 121 / 2). f = 1 and 6/11, z = 0 and 1/2, twice each:
    Szz = 1/2, Sfz = 6/11, Sff = 2 + 2 (6/11)^2.
    """
    fit = fit_samples("x", [[(1, 12.0), (2, 7.0), (1, 10.0), (2, 5.0)]])
    assert fit is not None
    assert fit.serial == pytest.approx(1 / 11)
    information = 1 / 2 - (6 / 11) ** 2 / (2 + 2 * (6 / 11) ** 2)
    half = 4.303 * (4 / 121 / 2) ** 0.5 / information**0.5
    assert (fit.low, fit.high) == (pytest.approx(1 / 11 - half), pytest.approx(1 / 11 + half))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """1,000 programs with 5% of noise, 3 steps on 1, 2 and 4 threads each: 95% of the intervals hold 0.3, +/- 3 standard errors."""
    numbers = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        samples = [(n, 500 * (0.3 + 0.7 / n) * (1 + 0.05 * numbers.standard_normal())) for n in (1, 2, 4) for _ in range(3)]
        fit = fit_samples("x", [samples])
        assert fit is not None
        assert fit.low is not None
        assert fit.high is not None
        held += fit.low <= 0.3 <= fit.high
    assert abs(held / 1000 - 0.95) < 3 * (0.95 * 0.05 / 1000) ** 0.5 + 0.01


def test_students_quantiles() -> None:
    """Against scipy; beyond the table within 0.1%."""
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 10, 30):
        assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)
    for freedom in (31, 45, 60, 120, 1000, 10**6):
        assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)


def test_ops_that_were_never_seen_take_their_kinds_fit_and_then_everybodys() -> None:
    model = fit_scaling([capture(n) for n in (1, 2, 4)])
    assert model.of("Conv2D") is model.ops["Conv2D"]
    assert model.of("_FusedConv2D") is model.kinds["conv"]
    assert model.of("FFT") is model.everything


# --- as a scenario ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("captured", "wanted"), [(1, 2), (1, 4), (2, 1), (4, 2)])
def test_another_number_of_threads_is_projected_exactly(captured: int, wanted: int) -> None:
    model = fit_scaling([capture(n) for n in (1, 2, 4)])
    projection = project(capture(captured), parse_scenario([f"threads:{wanted}"], Context(scaling=model)))
    truth = capture(wanted)
    assert projection.makespan_ns == pytest.approx(float(truth.steps.span_ns[0]), rel=1e-9)
    measured = {o.op: o.before_ns for o in project(truth, parse_scenario([])).ops}
    assert {o.op: o.after_ns for o in projection.ops} == pytest.approx(measured)


def test_what_the_times_rest_on_is_said() -> None:
    """Fitted without Relu, which is then scaled by its kind's (BiasAdd): 8 us of 72."""
    model = fit_scaling([capture(n) for n in (1, 2)])
    less = replace(model, ops={op: fit for op, fit in model.ops.items() if op != "Relu"})
    [note] = project(capture(1), parse_scenario(["threads:2"], Context(scaling=less))).notes
    assert note == "'threads:2': serial fractions fitted at 1, 2 threads; 11.1% of the op time has that of its kind or of everything"


def test_more_gain_than_threads_is_kept_as_found_and_used_as_none_serial() -> None:
    """10 on one thread and 4 on two: s = 2 x 4 / 10 - 1 = -0.2; used, two threads halve the time and no more."""
    fit = fit_samples("x", [[(1, 10.0), (2, 4.0)]])
    assert fit is not None
    assert fit.serial == pytest.approx(-0.2)
    assert fit.factor(2, 1) == 0.5
    slower = fit_samples("x", [[(1, 10.0), (2, 12.0)]])
    assert slower is not None
    assert slower.factor(2, 1) == pytest.approx(1.2)


def test_the_command_takes_captures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for n in (1, 2, 4):
        save(capture(n), f"t{n}.h5")
    words = ("whatif", "t1.h5", "--speedup", "threads:2", "--scaling", "t1.h5", "t2.h5", "t4.h5")
    assert json.loads(output(capsys, *words, "--json"))["makespan_ns"] == pytest.approx(float(capture(2).steps.span_ns[0]))
    (tmp_path / "s.yaml").write_text("two:\n  - threads: 2\nfour:\n  - threads:4\n")
    words = ("whatif", "t1.h5", "s.yaml", "--json", "--scaling", "t1.h5", "t2.h5", "t4.h5")
    found = json.loads(output(capsys, *words))["scenarios"]
    assert [s["makespan_ns"] for s in found] == [pytest.approx(float(capture(n).steps.span_ns[0])) for n in (2, 4)]
    words = ("whatif", "t1.h5", "--speedup", "threads:2", "--scaling", "t1.h5", "t2.h5", "t4.h5")
    assert "MatMul          20.0 us   0.250  0.250 to 0.250      3\n" in output(capsys, *words)
    fits = {f["name"]: f["serial"] for f in json.loads(output(capsys, *words, "--json"))["scaling"]["ops"]}
    assert fits == pytest.approx(SERIAL)
    said = complaint(capsys, "whatif", "t1.h5", "--speedup", "threads:2")
    assert said == "'threads:2' needs captures of a program at several --threads; give them with --scaling"
    said = complaint(capsys, "whatif", "t1.h5", "--speedup", "threads:2", "--scaling", "t1.h5")
    assert said.startswith("no program was captured at two thread counts: made-up inference at [1]")


@pytest.mark.parametrize("text", ["threads:", "threads:0", "threads:-1", "threads:two", "threads:1.5", "threads:²"])
def test_what_is_no_number_of_threads_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="is no number of threads; write for example threads:2"):
        parse_scenario([text], Context(scaling=fit_scaling([capture(1), capture(2)])))


def test_a_capture_that_does_not_say_on_how_many_threads_is_refused() -> None:
    silent = capture(1).replace(provenance={})
    with pytest.raises(ScenarioError, match="does not say on how many threads"):
        fit_scaling([silent, capture(2)])
    model = fit_scaling([capture(1), capture(2)])
    with pytest.raises(ScenarioError, match="does not say on how many threads"):
        project(silent, parse_scenario(["threads:2"], Context(scaling=model)))


# --- executions of several sizes ----------------------------------------------------------------------------------------------


def mixed(threads: int, short: int = 20_000, long: int = 4_000_000, workload: str = "mixed", op: str = "Mul") -> Trace:
    """A short execution of an op type, which no thread helps, and a long one of serial fraction 1/4."""
    builder = TraceBuilder()
    for name in ("short", "long"):
        builder.execution(builder.node(name, op))
    split = long // 4 + 3 * long // 4 // threads
    builder.step(builder.end_structure(), start=[0, short], done=[short, short + split])
    return builder.build({"workload": workload, "mode": "inference", "intra_threads": threads, "inter_threads": 1})


def test_short_and_long_executions_of_an_op_type_have_fits_of_their_own() -> None:
    """20 us is below the first bound, 4 ms between the third and the fourth; on two threads 20 us and 2.5 ms."""
    model = fit_scaling([mixed(1), mixed(2)])
    assert {size: fit.serial for (_, size), fit in model.sized_ops.items()} == pytest.approx({0: 1.0, 3: 0.25})
    assert model.of("Mul", 0) is model.sized_ops["Mul", 0]
    assert model.of("Sub", 3) is model.sized_kinds["elementwise", 3]
    assert model.of("MatMul", 3) is model.sized[3]
    assert model.of("Mul", 2) is model.ops["Mul"]  # no execution of that size was seen
    for workload, short, long in (("tiny", 8_000, 8_000_000), ("huge", 80_000, 2_400_000)):
        captured, truth = (mixed(n, short, long, workload) for n in (1, 2))
        projected = project(captured, parse_scenario(["threads:2"], Context(scaling=model)))
        assert projected.makespan_ns == pytest.approx(float(truth.steps.span_ns[0]))


def test_the_size_of_an_execution_is_that_on_the_fewest_threads() -> None:
    """3 ms become 1.875 ms on two threads, below a bound: the node stays of one size, or nothing could be fitted."""
    model = fit_scaling([mixed(2, long=3_000_000), mixed(1, long=3_000_000)])
    assert set(model.sized_ops) == {("Mul", 0), ("Mul", 3)}
    assert model.sized_ops["Mul", 3].serial == pytest.approx(0.25)


def test_a_capture_on_more_threads_is_scaled_by_the_same_fits() -> None:
    """A MatMul of 20 ms with s = 0.2 takes 8 ms on 4 threads: the time of another size, but the fit stays that of 20 ms."""

    def sized(threads: int) -> Trace:
        builder = TraceBuilder()
        times = [int(c * (s + (1 - s) / threads)) for c, s in ((20_000_000, 0.2), (3_000_000, 0.5))]
        for k in range(2):
            builder.execution(builder.node(f"product{k}", "MatMul"))
        builder.step(builder.end_structure(), [0, times[0]], [times[0], sum(times)])
        return builder.build({"workload": "sized", "intra_threads": threads, "inter_threads": 1})

    model = fit_scaling([sized(n) for n in (1, 2, 4)])
    assert {size: round(fit.serial, 9) for (_, size), fit in model.sized_ops.items()} == {4: 0.2, 3: 0.5}
    for captured in (1, 2, 4):
        for asked in (1, 2, 4):
            found = project(sized(captured), parse_scenario([f"threads:{asked}"], Context(scaling=model))).times.duration_ns
            assert found == pytest.approx(sized(asked).median_durations(0), rel=1e-9), (captured, asked)


def test_a_second_number_of_threads_is_refused() -> None:
    """Both would start from the captured number: neither number of threads is what came out."""
    model = fit_scaling([capture(n) for n in (1, 2)])
    with pytest.raises(ScenarioError, match="'threads:4' is a second number of threads"):
        project(capture(1), parse_scenario(["threads:2", "threads:4"], Context(scaling=model)))
