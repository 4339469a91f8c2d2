"""Is what a compiled call hides found: its ops, shapes, costs, variables, phases and layers, also through calls within it?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.capture import Plan, capture
from fathom_trace.checks import check
from fathom_trace.cli import run as run_command
from fathom_trace.costs import costs
from fathom_trace.layers import layer_links
from fathom_trace.loops.recover import constant_value
from fathom_trace.node_graph import NodeGraph
from fathom_trace.ops import kind
from fathom_trace.phases import ROLES, phases
from fathom_trace.profile import profile
from fathom_trace.store import load
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
QUICK = Plan(steps=1, warmup=0)


def ones(*dims: int) -> Any:
    return np.ones(dims, np.float32)


def run(function: Any, *args: Any) -> Trace:
    trace = capture(function, *args, plan=QUICK)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)
    return trace


def inner(trace: Trace, op: str) -> list[int]:
    """The executions of an op type that stand inside a call."""
    return [
        e
        for e, (n, p) in enumerate(zip(trace.executions.node.tolist(), trace.executions.parent.tolist(), strict=True))
        if p >= 0 and trace.node_ops[n] == op
    ]


def test_a_variable_that_is_read_inside_has_its_shape() -> None:
    """x [2, 3] times a variable [3, 5]: 2 * 3 * 5 MACs; whoever multiplies by it is of its layer."""
    weight = tf.Variable(tf.ones([3, 5]), name="fc/kernel")
    product = tf.function(lambda x: tf.matmul(x, weight), jit_compile=True)
    trace = run(lambda x: product(x) + 1.0, ones(2, 3))
    found = costs(trace)
    assert (int(found.macs.sum()), found.uncovered("macs"), trace.provenance["opaque_calls"]) == (30, {}, [])
    (read,), (mm,) = inner(trace, "ReadVariableOp"), inner(trace, "MatMul")
    node = int(trace.executions.node[read])
    names = [trace.strings[int(v)] for v in trace.variables.variable_name]
    assert [names[v] for v in trace.nodes.read[trace.nodes.row_values("read", node)]] == ["fc/kernel"]
    assert layer_links(trace).layer[int(trace.executions.node[mm])] == "fc"
    call = int(trace.executions.parent[mm])
    assert layer_links(trace).layer[int(trace.executions.node[call])] == "fc", "the time stands at the call"


def test_calls_within_a_call_are_looked_into() -> None:
    """[2, 3] [3, 4] in the inner call, then [2, 4] [4, 5] outside it, on its result: 24 + 40 MACs."""
    first = tf.function(lambda x, a: (tf.matmul(x, a), tf.shape(x)))
    both = tf.function(lambda x, a, b: tf.matmul(tf.nn.relu(first(x, a)[0]), b), jit_compile=True)
    trace = run(lambda x, a, b: both(x, a, b) * 2.0, ones(2, 3), ones(3, 4), ones(4, 5))
    assert [trace.output_shape(e) for e in inner(trace, "MatMul")] == [(2, 4), (2, 5)]
    assert costs(trace).macs.sum() == 24 + 40
    (relu,) = inner(trace, "Relu")
    graph = NodeGraph(trace)
    (read,) = graph.producers[int(trace.executions.node[relu])]
    assert graph.ops[graph.origin(read)[0]] == "MatMul"


def test_rows_of_a_table_that_are_gathered_inside() -> None:
    table = tf.Variable(tf.ones([100, 8]), name="table")
    look_up = tf.function(lambda ids: tf.nn.embedding_lookup(table, ids), jit_compile=True)
    trace = run(lambda ids: look_up(ids) + 1.0, np.array([[1, 2, 3]], np.int32))
    (gather,) = inner(trace, "ResourceGather")
    assert trace.output_shape(gather) == (1, 3, 8)


def test_small_constants_inside_are_kept() -> None:
    total = tf.function(lambda x: tf.reduce_sum(x, [0, 2]), jit_compile=True)
    trace = run(lambda x: total(x) + 1.0, ones(2, 3, 4))
    (reduction,) = inner(trace, "Sum")
    axes = constant_value(trace, trace.inputs(reduction)[1])
    assert axes is not None
    assert (axes.tolist(), trace.output_shape(reduction)) == ([0, 2], (3,))


def test_a_training_step_that_is_one_call_has_phases_and_layers_inside() -> None:
    """w [3, 5], loss = sum(relu(x w)): forward 2 * 3 * 5 MACs, and as many for dW alone; the call itself is of no single phase."""
    weight = tf.Variable(tf.ones([3, 5]), name="fc/kernel")

    @tf.function(jit_compile=True)
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.matmul(x, weight)))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    trace = run(lambda x: {"loss": train(x)}, ones(2, 3))
    found, links = phases(trace), layer_links(trace)
    assert found.evidence == ROLES
    forward, gradient = (int(trace.executions.node[e]) for e in inner(trace, "MatMul"))
    assert [(found[n], links.role[n], links.layer[n]) for n in (forward, gradient)] == [
        ("forward", "forward", "fc"), ("backward", "filter_grad", "fc"),
    ]  # fmt: skip
    assert int(links.forward[gradient]) == forward
    (update,) = inner(trace, "AssignSubVariableOp")
    assert found[int(trace.executions.node[update])] == "optimizer"
    call = int(trace.executions.parent[update])
    assert found[int(trace.executions.node[call])] == "other"
    by_phase = {row.key: row for row in profile(trace, by="phase").rows}
    assert [by_phase[p].macs for p in ("forward", "backward", "optimizer")] == [30, 30, 0]


def test_gradients_of_a_grouped_convolution_are_in_calls_of_their_own() -> None:
    """Keras compiles it on a CPU: 2 images, 7 x 6 outputs of 6 filters, 3 x 2 x 2 products each: 6,048 MACs, three times."""
    keras = pytest.importorskip("keras")
    layer = keras.layers.Conv2D(6, (3, 2), groups=2, name="grouped")
    layer.build((2, 9, 7, 4))
    kernel = layer.kernel.value

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x)))
        gradient, towards = tape.gradient(loss, [kernel, x])
        kernel.assign_sub(0.1 * gradient)
        return {"loss": loss, "towards": towards}

    trace = run(step, ones(2, 9, 7, 4))
    links, found = layer_links(trace), phases(trace)
    rows = {op: inner(trace, op) for op in ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")}
    assert {op: len(r) for op, r in rows.items()} == dict.fromkeys(rows, 1)
    nodes = [int(trace.executions.node[r[0]]) for r in rows.values()]
    assert [links.role[n] for n in nodes] == ["forward", "filter_grad", "input_grad"]
    assert [links.layer[n] for n in nodes] == ["grouped"] * 3
    assert [costs(trace).macs[r[0]] for r in rows.values()] == [2 * 7 * 6 * 6 * 12] * 3
    calls = {int(trace.executions.node[trace.executions.parent[r[0]]]) for r in rows.values()}
    assert Counter(found[c] for c in calls) == {"forward": 1, "backward": 1}


def test_a_loop_inside_is_opaque_with_its_share_of_time_and_never_zero() -> None:
    """How often a compiled loop ran cannot be known."""

    @tf.function(jit_compile=True)
    def loop(x: Any, w: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x))[1]

    trace = run(lambda x, w: loop(x, w) + 1.0, ones(2, 4), ones(4, 4))
    table = {row.key: row for row in profile(trace, by="kind").rows}
    assert table["opaque"].macs is None
    assert table["opaque"].flops is None
    assert table["opaque"].time_ns is not None
    assert table["opaque"].time_ns > 0
    assert profile(trace).coverage["macs"].time < 1  # type: ignore[operator]
    (hidden,) = inner(trace, "StatelessWhile")
    call = int(trace.executions.parent[hidden])
    assert trace.provenance["opaque_calls"] == [trace.node_names[int(trace.executions.node[call])]]


def test_a_loop_in_a_call_that_is_not_compiled_leaves_the_trace_incomplete() -> None:
    """TensorFlow records what the loop ran under names that stand in no graph: it was lost."""
    kept = tf.function(
        lambda x, w: tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x))[1],
        experimental_attributes={"_noinline": True},
    )
    trace = capture(lambda x, w: kept(x, w) + 1.0, ones(2, 4), ones(4, 4), plan=QUICK)
    step = trace.traced_steps[0]
    assert sum(count for name, count in trace.provenance["unplaced_records"].items() if name.endswith("MatMul")) == 5
    assert not trace.steps.complete[step]
    assert trace.steps.produced[step] - trace.steps.recorded[step] >= 5


def test_what_runs_over_a_data_set_or_in_python_is_opaque() -> None:
    @tf.function
    def total(x: Any) -> Any:
        result = tf.zeros([])
        for batch in tf.data.Dataset.from_tensor_slices(x).map(lambda row: row * 2.0).batch(2):
            result += tf.reduce_sum(batch)
        return result + tf.numpy_function(np.sum, [x], tf.float32)

    trace = run(total, ones(6, 3))
    hidden = {trace.node_ops[trace.node_index[name]] for name in trace.provenance["opaque_calls"]}
    assert {"ReduceDataset", "PyFunc"} <= hidden <= {"MapDataset", "ScanDataset", "ReduceDataset", "PyFunc"}


def test_every_op_type_that_runs_a_function_is_opaque() -> None:
    """By TensorFlow's own list of op types. The rest are its test ops, and two that hand a function over without running it."""
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    listed = op_def_pb2.OpList()
    listed.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    with_function = {op.name for op in listed.op if any(a.type in ("func", "list(func)") for a in op.attr)}
    assert len(with_function) > 50
    assert {name for name in with_function if kind(name) != "opaque"} == {
        "FuncAttr",
        "FuncListAttr",
        "RpcServerRegister",
        "TPUCompile",
    }


LOADED = """
import numpy as np
import tensorflow as tf

model = tf.saved_model.load("model")


def inside_another():
    run = model.signatures["serving_default"]

    @tf.function
    def step(x):
        return run(x=tf.nn.relu(x))["y"] + 1.0

    return step, [np.ones([2, 3], np.float32)]
"""


def test_a_function_of_tensorflow_1_inside_another_is_incomplete_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loop is written out, so TensorFlow does not inline it: 5 products are recorded under a name that stands in no graph."""
    old = tf.compat.v1
    old.disable_control_flow_v2()
    try:
        with old.Graph().as_default(), old.Session() as session:
            x = old.placeholder(tf.float32, [2, 3], name="x_in")
            _, y = old.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.matmul(y, tf.eye(3), name="product")), (0, x))
            old.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": y})
    finally:
        old.enable_control_flow_v2()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOADED)
    assert run_command(("capture", "mine.py:inside_another", "--steps", "1", "--warmup", "0", "-o", "mine.h5")) == 1
    out = capsys.readouterr().out
    trace = load("mine.h5")
    step = trace.traced_steps[0]
    unplaced = trace.provenance["unplaced_records"]
    (products,) = [count for name, count in unplaced.items() if name.endswith("while/product")]
    assert products == 5
    assert not trace.steps.complete[step]
    assert trace.steps.produced[step] - trace.steps.recorded[step] == sum(unplaced.values())
    (call,) = trace.provenance["opaque_calls"]
    assert trace.node_ops[trace.node_index[call]] == "PartitionedCall"
    assert f"problem: {sum(unplaced.values())} records are of ops that stand in no executed graph" in out
    assert f"inside '{call}', which TensorFlow ran as one call" in out
    assert "capture its SavedModel folder itself, with --signature" in out
    table = {row.key: row for row in profile(trace, by="kind").rows}
    assert table["opaque"].macs is None


def test_records_of_a_call_that_was_looked_into_are_not_lost() -> None:
    """TensorFlow does not inline it and records what is in it under bare names; the trace has its ops expanded from the call."""
    kept = tf.function(lambda x, w: tf.nn.relu(tf.matmul(x, w)), experimental_attributes={"_noinline": True})
    trace = run(lambda x, w: kept(x, w) + 1.0, ones(4, 6), ones(6, 5))
    assert trace.provenance["unplaced_records"]["MatMul"] == 1
    assert [trace.output_shape(e) for e in inner(trace, "MatMul")] == [(4, 5)]
    assert int(costs(trace).macs.sum()) == 4 * 5 * 6
