"""Does a static capture hold what a run executes: nodes, iterations, shapes, dependencies, loop nests, MACs; and does it refuse by name?"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.capture import CaptureRequest, Plan, capture, capture_request
from fathom_trace.checks import check
from fathom_trace.cli import run
from fathom_trace.costs import costs
from fathom_trace.errors import CaptureError, OptionError
from fathom_trace.layers import layer_names
from fathom_trace.loops import layers
from fathom_trace.phases import phases
from fathom_trace.store import load
from fathom_trace.trace import Trace
from fathom_trace.workloads import REGISTRY

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
STATIC = Plan(is_static=True)
RUN = Plan(steps=1, warmup=0, memory_steps=0, times_parallel_iterations=False)


def names(trace: Trace) -> list[str]:
    """Names of nodes; helpers of lowered loops (`.../input/_12`) without their number, which TensorFlow counts up in another order."""
    return [re.sub(r"/_\d+(?=[/_]|$)", "/_", name) for name in trace.node_names]


def executed(trace: Trace) -> Counter[Any]:
    """Each execution: node, iteration, outputs, what it read of whom, whom it waited for."""
    rows, node = trace.structure_rows(trace.main_structure), names(trace)
    ex, tensors = trace.executions, trace.tensors

    def at(row: int) -> tuple[str, tuple[int, ...]]:
        return node[int(ex.node[row])], trace.iteration(int(ex.path[row]))

    def output(row: int) -> tuple[int, str, tuple[int, ...]]:
        return int(tensors.port[row]), trace.strings[int(tensors.dtype[row])], trace.shapes[int(tensors.shape[row])]

    found: Counter[Any] = Counter()
    for row in range(rows.start, rows.stop):
        made = tuple(output(t) for t in trace.outputs(row))
        read = tuple((at(int(tensors.execution[t])), int(tensors.port[t])) for t in trace.inputs(row))
        waited = tuple(sorted(at(int(e)) for e in ex.control[ex.row_values("control", row)].tolist()))
        found[(at(row), trace.node_ops[int(ex.node[row])], int(ex.kind[row]), made, read, waited)] += 1
    return found


def assert_same(static: Trace, ran: Trace) -> None:
    """All but times, devices and the numbers of helper nodes."""
    mine, its = executed(static), executed(ran)
    assert list((mine - its).items())[:3] == []
    assert list((its - mine).items())[:3] == []
    structure = ran.main_structure
    assert int(costs(static, 0).macs.sum()) == int(costs(ran, structure).macs.sum())
    nests = [Counter(str(la.nest) for la in layers(t, s)[0]) for t, s in ((static, 0), (ran, structure))]
    assert nests[0] == nests[1]
    for told in (phases, layer_names):
        assert Counter(zip(names(static), told(static), strict=True)) == Counter(zip(names(ran), told(ran), strict=True))
    for table in ("variables", "interface", "constants"):
        assert len(getattr(static, table)) == len(getattr(ran, table))


def both(function: Any, *args: Any) -> tuple[Trace, Trace]:
    return capture(function, *args, plan=STATIC), capture(function, *args, plan=RUN)


def array(*dims: int) -> Any:
    return np.random.default_rng(0).random(dims, np.float32) + np.float32(0.1)


def no_values(*_: Any) -> Any:
    raise AssertionError("a variable was given a value")


# --- workloads --------------------------------------------------------------------------------------------------------------------

DATA_DEPENDENT = {"speech-training": "'loss/Where' (Where): the shape of its output depends on data"}
"""Training runs that no static capture can follow, with what it says."""

ASSUMED = {"seq2seq-training"}
"""Runs in which a shape that depends on data is assumed."""


@pytest.mark.parametrize("run_name", [f"{name}-{mode}" for name in REGISTRY.names() for mode in ("training", "inference")])
def test_a_workload_is_as_when_it_runs(run_name: str) -> None:
    name, _, mode = run_name.partition("-")
    request = CaptureRequest(name, mode=mode, preset="tiny", plan=STATIC)
    if run_name in DATA_DEPENDENT:
        with pytest.raises(CaptureError) as caught:
            capture_request(request)
        assert str(caught.value).startswith(DATA_DEPENDENT[run_name])
        return
    static = capture_request(request)
    ran = capture_request(CaptureRequest(name, mode=mode, preset="tiny", plan=RUN))
    assert not static.has_times
    assert not static.executions.timed.any()
    assert len(static.steps) == 0
    assert (static.provenance["static"], bool(static.provenance["assumed_shapes"])) == (True, run_name in ASSUMED)
    if run_name not in ASSUMED:
        assert_same(static, ran)
        return
    assert int(costs(static, 0).macs.sum()) == int(costs(ran, ran.main_structure).macs.sum())
    assert Counter(key[:2] for key in executed(static)) == Counter(key[:2] for key in executed(ran))
    different = {key[0][0] for key in executed(static) - executed(ran)}
    assert all("sampled_softmax_loss" in node for node in different)


def test_variables_get_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """VGG-19 at full size with batch 64, whose variables and slots would hold 1.15 GB: 64 x 19,632,062,464 MACs (cases: F1) forward."""
    monkeypatch.setattr("fathom_trace.capture.training.initial_value", no_values)
    trace = capture_request(CaptureRequest("vgg", mode="inference", batch_size=64, plan=STATIC))
    assert int(costs(trace, 0).macs.sum()) == 64 * 19_632_062_464
    assert int(trace.variables.size_bytes.sum()) == 4 * 143_667_240


# --- loops and branches -----------------------------------------------------------------------------------------------------------


def test_a_loop_of_known_length_is_unrolled() -> None:
    def body(x: Any, w: Any) -> Any:
        for _ in tf.range(3):
            x = tf.nn.tanh(tf.matmul(x, w))
        return x

    static, ran = both(tf.function(body), array(2, 4), array(4, 4))
    assert_same(static, ran)
    assert sum(key[1] == "MatMul" for key in executed(static)) == 3


def test_nested_loops_lists_and_their_gradients() -> None:
    def body(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            rows = tf.TensorArray(tf.float32, size=3, element_shape=[2, 4])
            for i in tf.range(3):
                for _ in tf.range(i + 1):
                    x = tf.nn.relu(tf.matmul(x, w))
                rows = rows.write(i, x)
            loss = tf.reduce_sum(rows.stack())
        return loss, tape.gradient(loss, w)

    static, ran = both(tf.function(body), array(2, 4), array(4, 4))
    assert_same(static, ran)
    assert sum(key[1] == "MatMul" for key in executed(static)) == 6 * 3, "forward and two gradients of 1 + 2 + 3 products"


def test_the_branch_that_the_counter_chooses_is_taken() -> None:
    def body(x: Any, w: Any) -> Any:
        for i in tf.range(5):
            x = tf.matmul(x, w) if i % 2 == 0 else tf.nn.relu(x)
        return x

    static, ran = both(tf.function(body), array(2, 4), array(4, 4))
    assert_same(static, ran)
    assert sum(key[1] == "MatMul" for key in executed(static)) == 3


def test_a_loop_that_never_runs_is_entered_and_left() -> None:
    def body(x: Any) -> Any:
        for _ in tf.range(0):
            x = tf.nn.relu(x)
        return x + 1.0

    static, ran = both(tf.function(body), array(2, 4))
    assert_same(static, ran)
    assert not any(key[1] == "Relu" for key in executed(static))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "Bidirectional"])
def test_recurrent_layers_of_keras_over_a_fixed_length(kind: str) -> None:
    import keras

    inner = keras.layers.LSTM(3, unroll=False) if kind != "GRU" else keras.layers.GRU(3, unroll=False)
    model = keras.Sequential(
        [keras.layers.Input((7, 5), batch_size=2), keras.layers.Bidirectional(inner) if kind == "Bidirectional" else inner]
    )

    @tf.function  # type: ignore[untyped-decorator]
    def body(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return [loss, *tape.gradient(loss, [v.value for v in model.trainable_variables])]

    assert_same(*both(body, array(2, 7, 5)))


def test_calls_loops_and_branches_that_share_a_variable_wait_for_each_other() -> None:
    counter = tf.Variable(np.zeros((2, 2), np.float32))

    @tf.function  # type: ignore[untyped-decorator]
    def inner(x: Any) -> Any:
        counter.assign_add(x)
        return tf.matmul(x, counter)

    def body(x: Any) -> Any:
        x = inner(x) * 2.0
        for i in tf.range(3):
            x = inner(x) if i > 0 else x + counter
        for _ in tf.range(2):
            counter.assign(x)
        return inner(x)

    static, ran = both(tf.function(body), array(2, 2))
    assert_same(static, ran)
    assert sum(key[1] == "AssignAddVariableOp" for key in executed(static)) == 1 + 2 + 1


def test_a_compiled_call_is_looked_into() -> None:
    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def inner(x: Any, w: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, w))

    static, ran = both(tf.function(lambda x, w: inner(x, w) + 1.0), array(2, 4), array(4, 3))
    assert_same(static, ran)
    assert any(key[1] == "MatMul" for key in executed(static))


def test_captured_values_count_as_known() -> None:
    """A captured tensor is fed, but its value is the program's own."""
    count = tf.constant(2)

    def body(x: Any) -> Any:
        for _ in tf.range(count):
            x = tf.nn.relu(x)
        return x

    assert_same(*both(tf.function(body), array(2, 4)))


# --- what cannot be followed ------------------------------------------------------------------------------------------------------


def refusal(function: Any, *args: Any) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(tf.function(function), *args, plan=STATIC)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("capture it by running it, without --static")
    return str(caught.value)


def test_a_trip_count_that_depends_on_data_is_refused_by_name() -> None:
    def body(x: Any) -> Any:
        while tf.reduce_sum(x) < 10.0:
            x = tf.add(x, 1.0, name="grow")
        return x

    text = refusal(body, array(2))
    assert re.match(
        r"the loop 'while.*' ends when its condition '.*' says so, which depends on data that a static capture does not have", text
    )


def test_a_branch_that_depends_on_data_is_refused_by_name() -> None:
    def body(x: Any) -> Any:
        return tf.cond(tf.greater(tf.reduce_sum(x), 1.0, name="decide"), lambda: tf.nn.relu(x), lambda: tf.nn.tanh(x))

    assert re.search(r"\(Switch\) chooses a branch by '.*', which depends on data", refusal(body, array(2)))


def test_a_shape_that_depends_on_data_is_refused_by_name() -> None:
    assert refusal(lambda x: tf.where(x > 0.5, name="find"), array(5)).startswith(
        "'find' (Where): the shape of its output depends on data"
    )
    text = refusal(lambda x: tf.boolean_mask(x, x > 0.5), array(5))
    assert re.match(r"'boolean_mask/.*' \(Where\): the shape of its output depends on data", text)


def test_an_endless_loop_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom_trace.capture.unroll.MOST_EXECUTIONS", 1_000)

    def body(x: Any) -> Any:
        i = tf.constant(0)
        while i >= 0:
            i, x = i * 1, tf.nn.relu(x)
        return x

    assert re.search(r"is in a loop that goes on after 1,000 executions", refusal(body, array(2)))


def test_how_it_would_run_is_no_question_of_a_static_capture() -> None:
    with pytest.raises(OptionError, match="a static capture has stage source, not optimized"):
        Plan(is_static=True, stage="optimized")


# --- commands ---------------------------------------------------------------------------------------------------------------------


def test_commands_take_a_static_trace_and_say_that_there_are_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["capture", "vgg", "--preset", "tiny", "--static", "--batch-size", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "steps       none: it was taken from the graph without running it, so there are no times" in out
    file = "vgg-tiny-training-static.h5"
    trace = load(file)
    assert check(trace).problems == []
    assert trace.provenance["batch_size"] == 3
    assert run(["info", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_static"], found["traced_steps"], found["span_ns"]) == (True, 0, None)
    assert run(["ops", file]) == 0
    assert "the trace has no times; 0 traced steps" in capsys.readouterr().out
    for exporter in ("scale-sim", "table", "graph", "chakra"):
        assert run(["export", file, exporter]) == 0
        assert "note: the trace has no times: all of them are 0 here" in capsys.readouterr().out
        assert run(["check", f"vgg-tiny-training-static-{exporter.replace('-', '_')}"]) == 0
        capsys.readouterr()
    assert run(["export", file, "perfetto"]) == 1
    assert "the trace has no times" in capsys.readouterr().err
    assert run(["whatif", file, "--speedup", "Conv2D=2"]) == 1
    assert "the trace holds no times" in capsys.readouterr().err


def test_a_program_of_ones_own_is_as_when_it_runs(tmp_path: Path) -> None:
    import keras

    (tmp_path / "model.py").write_text(
        "import keras\n\n"
        "def model():\n"
        "    layers = [keras.layers.Input((9, 8, 3)), keras.layers.Conv2D(4, (3, 2), activation='relu'), keras.layers.Flatten()]\n"
        "    return keras.Sequential([*layers, keras.layers.Dense(5, activation='softmax')])\n"
    )
    target, made = f"{tmp_path / 'model.py'}:model", []
    for plan in (STATIC, RUN):
        keras.backend.clear_session()  # so that names are not numbered on
        request = CaptureRequest(
            target, mode="training", loss="sparse_categorical_crossentropy", optimizer="adam", batch_size=3, plan=plan
        )
        made.append(capture_request(request))
    assert_same(*made)


def test_a_shape_that_was_taken_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["capture", "seq2seq", "--preset", "tiny", "--static", "-o", "s.h5"]) == 0
    taken = (
        "the shape of loss/sampled_softmax_loss/ComputeAccidentalHits depends on data; ComputeAccidentalHits: [0], [0], [0] was taken"
    )
    assert f"note: {taken}" in capsys.readouterr().out


def test_all_workloads_can_be_captured_without_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def note(_names: Any, _folder: Path, flags: list[str], *_: Any) -> list[Any]:
        asked.extend(flags)
        return []

    monkeypatch.setattr("fathom_trace.sweeps.collection.capture_all", note)
    assert run(["capture", "all", "--static", "--json", "-o", str(tmp_path / "traces")]) == 0
    assert "--static" in asked


@pytest.mark.parametrize(
    "words", [["--steps", "3"], ["--warmup", "2"], ["--data", "."], ["--inter-threads", "2"], ["--memory-steps", "0"]]
)
def test_flags_of_a_run_are_refused(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["capture", "vgg", "--static", *words]) == 1
    assert f"--static runs nothing, so {words[0]} has no meaning with it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
