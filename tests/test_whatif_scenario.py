"""Does text become the scenario that was meant, and is what cannot be meant refused with a way out?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import FathomError, ScenarioError
from fathom_trace.tables import FETCH
from fathom_trace.whatif.recording import record
from fathom_trace.whatif.scenario import Remove, Scenario, SetTime, Speedup, from_results, parse_change, parse_scenario
from fathom_trace.whatif.selection import Executed, Selection, TraceLabels, executed, parse_selection
from fathom_trace.whatif.sweep import parse_sweep
from tests.recordings import recording_of
from tests.small import diamond, loop

LABELS = {
    "op": ["Conv2D", "MatMul", "MatMul", "Relu", "NeverRan"],
    "kind": ["conv", "gemm", "gemm", "elementwise", "opaque"],
    "layer": ["conv1_1", "fc6", "fc7", "", "gone"],
    "phase": ["forward", "forward", "backward", "forward", "forward"],
    "device": ["/device:CPU:0", "/device:CPU:0", "/device:GPU:0", "/device:GPU:0", ""],
}
AMONG = Executed(first=100, nodes=np.array([0, 1, 2, 3, 1]), labels=LABELS)
RECORDING = recording_of([80, 40, 20, 10, 40], [[], [0], [1], [2], [3]], gaps=[1, 2, 3, 4, 5])


def durations(*texts: str) -> list[float]:
    return parse_scenario(texts).apply(RECORDING, AMONG).duration_ns.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Conv2D=10", [8, 40, 20, 10, 40]),
        ("Conv2D=10x", [8, 40, 20, 10, 40]),
        ("op:Conv2D=10", [8, 40, 20, 10, 40]),
        (" Conv2D = 10 ", [8, 40, 20, 10, 40]),
        ("MatMul=0.5", [80, 80, 40, 10, 80]),
        ("MatMul=2e1", [80, 2, 1, 10, 2]),
        ("MatMul=inf", [80, 0, 0, 10, 0]),
        ("*=4", [20, 10, 5, 2.5, 10]),
        ("layer:fc*=4", [80, 10, 5, 10, 10]),
        ("layer:fc[7-9]=4", [80, 40, 5, 10, 40]),
        ("kind:conv=8", [10, 40, 20, 10, 40]),
        ("phase:backward=2", [80, 40, 10, 10, 40]),
        ("device:*GPU*=2", [80, 40, 10, 5, 40]),
        ("MatMul=7us", [80, 7000, 7000, 10, 7000]),
        ("MatMul=7ns", [80, 7, 7, 10, 7]),
        ("MatMul=1.5ms", [80, 1.5e6, 1.5e6, 10, 1.5e6]),
        ("MatMul=2s", [80, 2e9, 2e9, 10, 2e9]),
        ("MatMul=0ns", [80, 0, 0, 10, 0]),
    ],
)
def test_one_change(text: str, expected: list[float]) -> None:
    assert durations(text) == pytest.approx(expected, rel=1e-12)


def test_free_keeps_the_dispatch_gap_and_removed_does_not() -> None:
    assert parse_scenario(["MatMul=inf"]).apply(RECORDING, AMONG).gap_ns.tolist() == [1, 2, 3, 4, 5]
    removed = parse_scenario(["MatMul=remove"]).apply(RECORDING, AMONG)
    assert removed.duration_ns.tolist() == [80, 0, 0, 10, 0]
    assert removed.gap_ns.tolist() == [1, 0, 0, 4, 0]


def test_changes_apply_in_turn_and_say_where_they_meet() -> None:
    scenario = parse_scenario(["MatMul=10", "layer:fc6=2", "kind:elementwise=30ns"])
    times = scenario.apply(RECORDING, AMONG)
    assert times.duration_ns.tolist() == [80, 2, 2, 30, 2]  # fc6: 40 / 10 / 2
    assert times.overlap == 2  # both executions of fc6
    assert times.changed.tolist() == [False, True, True, True, True]
    assert times.limit().duration_ns.tolist() == [80, 0, 0, 0, 0]
    assert RECORDING.duration_ns.tolist() == [80, 40, 20, 10, 40]  # the recording is left alone


def test_the_empty_scenario_changes_nothing() -> None:
    times = Scenario().apply(RECORDING, AMONG)
    assert times.duration_ns.tolist() == RECORDING.duration_ns.tolist()
    assert not times.changed.any()
    assert times.overlap == 0
    assert str(Scenario()) == "nothing changed"


def test_a_scenario_reads_back_as_it_was_written() -> None:
    for text in ("Conv2D=10", "layer:fc*=2.5", "phase:backward=inf", "kind:conv=remove", "MatMul=50ns"):
        assert str(parse_change(text)) == text
    assert parse_change("a=1") == Speedup(Selection("op", "a"), 1.0)
    assert parse_change("layer:a=b=remove") == Remove(Selection("layer", "a=b"))
    assert parse_change("a=1us") == SetTime(Selection("op", "a"), 1000.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Conv2d=10", "no op type that ran is called 'Conv2d'; did you mean 'Conv2D'?"),
        ("NeverRan=10", "no op type that ran is called 'NeverRan'; there are: Conv2D, MatMul, Relu"),
        ("gemm=10", "no op type that ran is called 'gemm'; did you mean 'kind:gemm'?"),
        ("backward=10", "no op type that ran is called 'backward'; did you mean 'phase:backward'?"),
        ("layer:conv1=3", "no layer that ran is called 'conv1'; did you mean 'conv1_1'?"),
        ("layer:fully*=3", "no layer that ran matches 'fully*'; there are: conv1_1, fc6, fc7"),
        ("layer:gone=3", "no layer that ran is called 'gone'; there are: conv1_1, fc6, fc7"),
        ("kind:convolution=3", "no kind that ran is called 'convolution'; did you mean 'conv'?"),
        ("kind:xyz=3", "no kind that ran is called 'xyz'; there are: conv, elementwise, gemm"),
        ("phase:forwards=3", "no phase that ran is called 'forwards'; did you mean 'forward'?"),
        ("kind:conv_convolution=3", "no kind that ran is called 'conv_convolution'; did you mean 'conv'?"),
        ("phase:back=3", "no phase that ran is called 'back'; did you mean 'backward'?"),
        (
            "lyer:fc6=3",
            "'lyer:fc6' selects by 'lyer', which is none of op, kind, layer, phase, device, name; did you mean 'layer:fc6'?",
        ),
        ("layer:=3", "'layer:' names no layer; write for example Conv2D or layer:fc*"),
        ("Conv2D", "'Conv2D' is not a speedup; write for example Conv2D=10"),
        ("=10", "'=10' is not a speedup; write for example Conv2D=10"),
        ("Conv2D=0", "cannot make 'Conv2D' 0 times faster; give a factor above 0, or inf"),
        ("Conv2D=-3", "cannot make 'Conv2D' -3 times faster; give a factor above 0, or inf"),
        ("Conv2D=-inf", "cannot make 'Conv2D' -inf times faster; give a factor above 0, or inf"),
        ("Conv2D=nan", "'Conv2D=nan': 'nan' is no factor; write a number above 0, inf, a time such as 50us, or remove"),
        ("Conv2D=fast", "'Conv2D=fast': 'fast' is no factor; write a number above 0, inf, a time such as 50us, or remove"),
        ("Conv2D=", "'Conv2D=': '' is no factor; write a number above 0, inf, a time such as 50us, or remove"),
        ("Conv2D=1e400", "'Conv2D=1e400': '1e400' is no factor; write a number above 0, inf, a time such as 50us, or remove"),
        ("Conv2D=1_0", "'Conv2D=1_0': '1_0' is no factor; write a number above 0, inf, a time such as 50us, or remove"),
        ("Conv2D=-5us", "'Conv2D' cannot take -5000 ns; give a finite time that is not below 0"),
        ("Conv2D=infs", "'Conv2D' cannot take inf ns; give a finite time that is not below 0"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        durations(text)
    assert str(error.value) == message


def test_a_selection_given_twice_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"'Conv2D' is given twice, as 'Conv2D=10' and 'op:Conv2D=3'; give it once"):
        parse_scenario(["Conv2D=10", "MatMul=2", "op:Conv2D=3"])


def test_long_lists_of_names_are_cut() -> None:
    among = Executed(0, np.arange(30), {"layer": [f"block{i:02}" for i in range(30)]})
    with pytest.raises(ScenarioError, match=r"there are: block00, .*, block11 and 18 more$"):
        parse_selection("layer:zzz*").mask(among)
    with pytest.raises(ScenarioError, match="the trace has no layer at all"):
        parse_selection("layer:fc").mask(Executed(0, np.arange(2), {"layer": ["", ""]}))


def test_a_pattern_that_is_also_a_name_means_the_name() -> None:
    among = Executed(0, np.arange(2), {"layer": ["a*", "ab"]})
    assert parse_selection("layer:a*").mask(among).tolist() == [True, False]


# --- the labels of a trace ----------------------------------------------------------------------------------------------------


def test_executions_of_a_structure_carry_the_op_types_of_the_trace() -> None:
    trace = loop()
    among = executed(trace, 1)
    rows = range(*trace.structure_rows(1).indices(len(trace.executions)))
    assert among.first == rows.start > 0
    assert among.names("op") == [trace.node_ops[n] for n in trace.executions.node[rows.start : rows.stop]]
    assert set(TraceLabels(trace)) == {"op", "kind", "layer", "phase", "device", "name"}
    assert parse_selection("name:while/*").mask(among).sum() == among.names("op").count("MatMul") + among.names("op").count("Merge")


def test_kinds_phases_and_layers_of_a_trace_can_be_selected() -> None:
    """A training step of one convolution and one dense layer, with its loss and one gradient."""
    builder = TraceBuilder()
    x = builder.node("x", "Placeholder")
    w = builder.node("w", "VarHandleOp")
    variable = builder.variable("fc6/kernel", "float32", [36, 5], trainable=True, node=w)
    read = builder.node("fc6/MatMul/ReadVariableOp", "ReadVariableOp", inputs=[(w, 0)], reads=[variable])
    conv = builder.node("conv1_1/Conv2D", "Conv2D", inputs=[(x, 0), (x, 0)])
    pool = builder.node("pool1/MaxPool", "MaxPool", inputs=[(conv, 0)])
    dense = builder.node("fc6/MatMul", "MatMul", inputs=[(pool, 0), (read, 0)])
    loss = builder.node("loss/Sum", "Sum", inputs=[(dense, 0)])
    grad = builder.node("gradient_tape/fc6/MatMul/MatMul_1", "MatMul", inputs=[(pool, 0), (loss, 0)])
    update = builder.node("sgd/update", "ResourceApplyGradientDescent", inputs=[(w, 0), (x, 0), (grad, 0)], writes=[variable])
    builder.interface("loss", FETCH, loss, role="loss")
    shapes = {
        x: [3, 9, 9, 4],
        w: [],
        read: [36, 5],
        conv: [3, 6, 6, 1],
        pool: [3, 36],
        dense: [3, 5],
        loss: [],
        grad: [36, 5],
        update: [],
    }
    rows: dict[int, int] = {}
    inputs = {x: [], w: [], read: [w], conv: [x, x], pool: [conv], dense: [pool, read], loss: [dense], grad: [pool, loss]}
    for node, dims in shapes.items():
        given = [builder.tensor(rows[n]) for n in inputs.get(node, [w, x, grad])]
        rows[node] = builder.execution(node, inputs=given, outputs=[("float32", dims)])
    builder.step(0, start=[10 * k for k in range(9)], done=[10 * k + 10 for k in range(9)])
    trace = builder.build({"inter_threads": 1})
    among = executed(trace, 0)

    def selected(text: str) -> set[int]:
        return set(among.nodes[parse_selection(text).mask(among)].tolist())

    assert selected("kind:conv") == {conv}
    assert selected("kind:gemm") == {dense, grad}
    assert selected("kind:pool*") == {pool}
    assert {conv, pool, dense, loss} <= selected("phase:forward")
    assert selected("phase:backward") == {grad}
    assert update in selected("phase:optimizer")
    assert selected("layer:conv1_1") == {conv}
    assert {dense, grad} <= selected("layer:fc*")
    assert selected("name:fc6/*") == {read, dense}


# --- results of a simulator ---------------------------------------------------------------------------------------------------


def test_results_set_what_they_cover_and_leave_the_rest() -> None:
    trace = diamond()
    times = from_results(trace, {1: 7000.0, 2: 0.0}, "a simulator").apply(record(trace), executed(trace, 0))
    assert times.duration_ns.tolist() == [10_000, 7000, 0, 10_000]
    assert times.changed.tolist() == [False, True, True, False]


def test_results_are_for_rows_of_the_trace_not_of_a_structure() -> None:
    trace = loop()
    first, rows = trace.structure_rows(1).start, len(trace.executions)
    scenario = from_results(trace, {first: 99.0, 0: 1.0})
    times = scenario.apply(record(trace, 1), executed(trace, 1))
    assert times.duration_ns.tolist() == [99] + [7] * (rows - first - 1)
    with pytest.raises(ScenarioError, match="the times of 1 execution from results are of none in the steps"):
        from_results(trace, {first: 1.0}).apply(record(trace, 0), executed(trace, 0))


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "sim gives the time of no execution"),
        ({4: 1.0}, "sim times execution 4, but the trace has 4"),
        ({-1: 1.0}, "sim times execution -1"),
        ({0: -1.0}, "a time of -1 ns"),
        ({0: math.nan}, "a time of nan ns"),
        ({0: math.inf}, "a time of inf ns"),
    ],
)
def test_results_that_cannot_be_are_refused(results: dict[int, float], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        from_results(diamond(), results, "sim")


# --- sweeps -------------------------------------------------------------------------------------------------------------------


def test_sweep_factors_are_evenly_spaced_on_a_logarithmic_scale() -> None:
    sweep = parse_sweep("layer:fc*=1..1000:4")
    assert sweep.factors.tolist() == pytest.approx([1, 10, 100, 1000], rel=1e-12)
    assert (sweep.factors[0], sweep.factors[-1]) == (1, 1000)
    assert str(sweep) == "layer:fc*=1..1000:4"
    assert [str(c) for c in parse_sweep("A=1..4:3").changes] == ["A=1", "A=2", "A=4"]


@pytest.mark.parametrize(("text", "points"), [("A=1..1000", 13), ("A=1..2", 5), ("A=0.1..10", 9), ("A=1..10:2", 2)])
def test_sweep_takes_four_points_a_decade_unless_told(text: str, points: int) -> None:
    assert parse_sweep(text).points == len(parse_sweep(text).factors) == points


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=10", "'A=10' is not a sweep; write for example Conv2D=1..1000"),
        ("A", "is not a sweep"),
        ("=1..10", "is not a sweep"),
        ("A=1...10", "'.10'|from a factor above 0"),
        ("A=1..2..3", "is not a sweep"),
        ("A=10..1", "runs from a factor above 0 to a greater, finite one"),
        ("A=3..3", "runs from a factor above 0 to a greater, finite one"),
        ("A=0..10", "runs from a factor above 0"),
        ("A=1..inf", "its limit is shown anyway"),
        ("A=a..b", "'a' is no factor"),
        ("A=1..10:1", "'1' is no number of points; give 2 to 10000"),
        ("A=1..10:many", "'many' is no number of points"),
        ("A=1..10:99999", "give 2 to 10000"),
        ("lyer:A=1..10", "did you mean 'layer:A'"),
    ],
)
def test_what_is_no_sweep_is_refused(text: str, message: str) -> None:
    with pytest.raises(FathomError, match=message):
        parse_sweep(text)
