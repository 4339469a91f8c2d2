"""Do kinds, phases, layers and costs hold for what TensorFlow itself runs: loops, branches, shared layers?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fathom_trace import ops
from fathom_trace.capture import Plan, capture
from fathom_trace.costs import Costs, costs
from fathom_trace.layers import COMPUTE, GRAPH, layer_links
from fathom_trace.phases import ROLES, phases
from fathom_trace.profile import profile
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
QUICK = Plan(steps=1, warmup=0)


def ones(*dims: int) -> Any:
    return np.ones(dims, np.float32)


def products(trace: Trace, found: Costs) -> list[tuple[str, tuple[int, ...] | None, int]]:
    """(op type, output shape, FLOPs) of every executed convolution and product, in order."""
    rows = [row for row, op in enumerate(found.op_types) if ops.kind(op) in COMPUTE]
    return [(found.op_types[row], trace.output_shape(row + found.first), int(found.flops[row])) for row in rows]


def run(function: Any, *args: Any) -> tuple[Trace, Costs]:
    trace = capture(function, *args, plan=QUICK)
    return trace, costs(trace, trace.main_structure)


def test_a_keras_lstm_counts_every_step_of_its_loop() -> None:
    import keras

    layer = keras.layers.LSTM(4)
    layer.build((2, 5, 3))
    trace, found = run(tf.function(lambda x: layer(x)), ones(2, 5, 3))
    made = products(trace, found)
    assert [op for op, _, _ in made] == ["MatMul"] * 10
    assert sum(f for _, _, f in made) == 5 * (192 + 256) == 2_240


def test_training_a_keras_lstm_links_gradients_through_the_loop() -> None:
    import keras

    model = keras.Sequential([keras.Input((6, 5)), keras.layers.LSTM(4, name="lstm"), keras.layers.Dense(2, name="out")])
    optimizer = keras.optimizers.Adam(1e-3, clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return {"loss": loss}

    trace, found = run(step, ones(2, 6, 5), ones(2, 2))
    assert found.uncovered("flops") == {}
    links, phase = layer_links(trace), phases(trace)
    assert phase.evidence == ROLES
    roles = Counter((links.layer[n], links.role[n]) for n, op in enumerate(trace.node_ops) if op == "MatMul")
    cell = "lstm/lstm_cell"
    # No gradient is taken for the inputs of the sequence, so one of the cell's two products has none for its input.
    assert roles == {
        (cell, "forward"): 2, (cell, "filter_grad"): 2, (cell, "input_grad"): 1,
        ("out", "forward"): 1, ("out", "filter_grad"): 1, ("out", "input_grad"): 1,
    }  # fmt: skip
    assert {links.forward_evidence[n] for n, op in enumerate(trace.node_ops) if op == "MatMul"} == {"", GRAPH}
    # Adam is written in single ops, and nobody declared its slots.
    adam = [n for n, name in enumerate(trace.node_names) if name.startswith("adam/")]
    assert {phase[n] for n in adam} == {"optimizer"}
    squares = {links.layer[n] for n in adam if trace.node_ops[n] == "Square"}
    assert squares == {cell, "out"}


def test_only_the_branch_that_ran_counts() -> None:
    @tf.function
    def step(p: Any, x: Any, w: Any) -> Any:
        chosen = tf.cond(p, lambda: tf.matmul(x, w), lambda: tf.broadcast_to(tf.reduce_sum(x, 1, keepdims=True), [3, 2]))
        return chosen + 1.0

    trace, found = run(step, np.array(True), ones(3, 4), ones(4, 2))
    assert products(trace, found) == [("MatMul", (3, 2), 48)]
    rows = {row.key: row for row in profile(trace).rows}
    assert (rows["AddV2"].count, rows["AddV2"].flops) == (1, 6)
    assert sum(row.flops or 0 for row in rows.values()) == 54
    assert rows["Sum"].count == 0


def test_leading_axes_are_rows_of_the_product() -> None:
    import keras

    layer = keras.layers.Dense(4, use_bias=False)
    layer.build((2, 8, 6))
    trace, found = run(tf.function(lambda x: layer(x)), ones(2, 8, 6))
    assert sum(f for _, _, f in products(trace, found)) == 768


def test_a_shared_dense_layer_is_one_layer_with_its_weights_once() -> None:
    import keras

    shared = keras.layers.Dense(6, use_bias=False, name="shared")
    inputs = keras.Input((6,))
    model = keras.Model(inputs, shared(shared(inputs)))
    trace, found = run(tf.function(lambda x: model(x)), ones(2, 6))
    assert products(trace, found) == [("MatMul", (2, 6), 144)] * 2
    links = layer_links(trace)
    assert {links.layer[n] for n, op in enumerate(trace.node_ops) if op == "MatMul"} == {"shared"}
    assert int(trace.shapes.elements[trace.variables.shape].sum()) == 36


def test_a_gradient_of_the_weights_alone_is_one_product() -> None:
    w = tf.Variable(ones(6, 5), name="w")

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.matmul(x, w, name="mm")))
        return {"loss": loss, "dw": tape.gradient(loss, w)}

    trace, found = run(step, ones(4, 6))
    assert products(trace, found) == [("MatMul", (4, 5), 240), ("MatMul", (6, 5), 240)]
    links = layer_links(trace)
    forward, gradient = (n for n, op in enumerate(trace.node_ops) if op == "MatMul")
    assert (phases(trace)[forward], phases(trace)[gradient]) == ("forward", "backward")
    assert (links.role[gradient], int(links.forward[gradient])) == ("filter_grad", forward)


def test_shapes_that_only_running_tells() -> None:
    @tf.function(input_signature=[tf.TensorSpec((5,), tf.bool), tf.TensorSpec((5, 3)), tf.TensorSpec((3, 4))])
    def step(mask: Any, x: Any, w: Any) -> Any:
        return tf.matmul(tf.boolean_mask(x, mask), w)

    trace, found = run(step, np.array([True, False, False, True, False]), ones(5, 3), ones(3, 4))
    assert products(trace, found) == [("MatMul", (2, 4), 48)]
