"""Is forward work that is done again for its gradient backward, and an optimizer's own use of the weights still the optimizer's?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fathom_trace.phases import ROLES, phases
from fathom_trace.profile import profile
from fathom_trace.trace import Trace
from tests.handmade import Hand, Value


def of(trace: Trace) -> dict[str, str]:
    """Node name to phase."""
    return dict(zip(trace.node_names, phases(trace), strict=True))


class Recomputing:
    """loss = sum((relu(tanh(x v)) w) ** 2), whose gradient computes relu(tanh(x v)) once more, from x and a zero that waits for dy."""

    def __init__(self, batch: int, is_trained_input: bool = False) -> None:
        self.hand = hand = Hand()
        self.batch = batch
        self.v, self.w = hand.variable("v", (3, 3)), hand.variable("w", (3, 2))
        if is_trained_input:
            self.e = hand.variable("e", (batch, 3))
            x = hand.read("x", self.e, (batch, 3))
        else:
            x = hand.feed("x", (batch, 3))
        active = self.layer("", x)
        y = hand.op("mm_w", "MatMul", active, hand.read("read_w", self.w, (3, 2)), shape=(batch, 2))
        square = hand.op("square", "Square", y, shape=(batch, 2))
        hand.fetch(hand.op("sum", "Sum", square, hand.const("axes", (2,), "int32")), "loss")
        dy = hand.op("dy", "Mul", y, hand.const("two"), shape=(batch, 2))
        zero = hand.op("zero", "Mul", hand.op("max", "Max", dy, hand.const("max_axes", (2,), "int32")), hand.const("nothing"))
        if is_trained_input:
            x = hand.read("x_1", self.e, (batch, 3))
        late = hand.op("late", "AddV2", hand.op("same", "Identity", x, shape=(batch, 3)), zero, shape=(batch, 3))
        again = self.layer("again/", late)
        read = hand.read("again/read_w", self.w, (3, 2))
        self.dw = hand.op("dw", "MatMul", again, dy, shape=(3, 2), transpose_a=True)
        d = hand.op("d_mm_w", "MatMul", dy, read, shape=(batch, 3), transpose_b=True)
        d = hand.op("d_relu", "ReluGrad", d, again, shape=(batch, 3))
        d = hand.op("d_tanh", "TanhGrad", self.tanh, d, shape=(batch, 3))
        self.dv = hand.op("dv", "MatMul", late, d, shape=(3, 3), transpose_a=True)
        self.dx = hand.op("dx", "MatMul", d, self.read_v, shape=(batch, 3), transpose_b=True)

    def layer(self, scope: str, x: Value) -> Value:
        """relu(tanh(x v)), with v read anew."""
        shape = (self.batch, 3)
        self.read_v = self.hand.read(f"{scope}read_v", self.v, (3, 3))
        product = self.hand.op(f"{scope}mm_v", "MatMul", x, self.read_v, shape=shape)
        self.tanh = self.hand.op(f"{scope}tanh", "Tanh", product, shape=shape)
        return self.hand.op(f"{scope}relu", "Relu", self.tanh, shape=shape)

    def update(self, variable: tuple[int, Value], gradient: Value, shape: tuple[int, ...], scope: str) -> None:
        """variable -= rate gradient, in single ops."""
        change = self.hand.op(f"{scope}/mul", "Mul", gradient, self.hand.const(f"{scope}/rate"), shape=shape)
        self.hand.op(
            f"{scope}/assign", "AssignSubVariableOp", variable[1], change, outputs=[], reads=[variable[0]], writes=[variable[0]]
        )

    def phases(self) -> dict[str, str]:
        self.update(self.v, self.dv, (3, 3), "update_v")
        self.update(self.w, self.dw, (3, 2), "update_w")
        return of(self.hand.build())


AGAIN = {f"again/{name}" for name in ("read_v", "mm_v", "tanh", "relu", "read_w")}
UPDATES = {f"update_{v}/{part}" for v in "vw" for part in ("mul", "rate", "assign")}


@pytest.mark.parametrize("batch", [4, 3, 2])
def test_forward_work_done_again_is_backward(batch: int) -> None:
    """A batch of 3 gives every activation the shape of v."""
    found = Recomputing(batch).phases()
    beyond = {"late", "same", "zero", "max", "dy", "d_mm_w", "d_relu", "d_tanh", "dv", "dw"} | AGAIN
    assert {name: found[name] for name in beyond} == dict.fromkeys(beyond, "backward")
    assert {found[name] for name in ("read_v", "mm_v", "tanh", "relu", "read_w", "mm_w", "sum")} == {"forward"}
    assert {name for name, phase in found.items() if phase == "optimizer"} == UPDATES


@pytest.mark.parametrize("batch", [4, 3])
def test_weight_decay_beside_it_stays_the_optimizers(batch: int) -> None:
    made = Recomputing(batch)
    weight = made.hand.read("decay/read", made.v, (3, 3))
    decay = made.hand.op("decay/mul", "Mul", weight, made.hand.const("decay/rate"), shape=(3, 3))
    made.dv = made.hand.op("decay/add", "AddV2", made.dv, decay, shape=(3, 3))
    found = made.phases()
    decays = {f"decay/{part}" for part in ("read", "mul", "rate", "add")}
    assert {name for name, phase in found.items() if phase == "optimizer"} == UPDATES | decays


@pytest.mark.parametrize("is_reshaped", [False, True])
def test_a_product_of_a_weight_and_its_whole_gradient_is_the_optimizers(is_reshaped: bool) -> None:
    """The gradient's part along the weight is taken away: dw - w (w' dw), with w as (3, 2) or laid out as (2, 3)."""
    made = Recomputing(4)
    rows, columns = (2, 3) if is_reshaped else (3, 2)
    weight, gradient = made.hand.read("project/read", made.w, (3, 2)), made.dw
    if is_reshaped:
        size = made.hand.const("project/size", (2,), "int32")
        weight = made.hand.op("project/w", "Reshape", weight, size, shape=(rows, columns))
        gradient = made.hand.op("project/dw", "Reshape", gradient, size, shape=(rows, columns))
    along = made.hand.op("project/along", "MatMul", weight, gradient, shape=(columns, columns), transpose_a=True)
    part = made.hand.op("project/part", "MatMul", weight, along, shape=(rows, columns))
    left = made.hand.op("project/left", "Sub", gradient, part, shape=(rows, columns))
    if is_reshaped:
        left = made.hand.op("project/back", "Reshape", left, made.hand.const("project/old", (2,), "int32"), shape=(3, 2))
    made.dw = left
    found = made.phases()
    assert {found[f"project/{name}"] for name in ("read", "along", "left")} == {"optimizer"}
    assert found["dw"] == "backward"


def test_a_trained_input_has_a_gradient_that_the_optimizer_takes_from_there() -> None:
    made = Recomputing(4, is_trained_input=True)
    made.update(made.e, made.dx, (4, 3), "update_e")
    found = made.phases()
    assert {found[name] for name in AGAIN | {"dx", "late"}} == {"backward"}
    assert {found[f"update_e/{part}"] for part in ("mul", "rate", "assign")} == {"optimizer"}


def captured(program: Callable[[Any, Any, Any], Any], batch: int) -> Trace:
    """A step of loss = sum(program(x, v, w) ** 2) and of plain descent, in TensorFlow."""
    tf = pytest.importorskip("tensorflow")
    from fathom_trace.capture import Plan
    from fathom_trace.capture.lift import KnownVariable
    from fathom_trace.capture.run import Subject, run_subject

    v, w = tf.Variable(tf.ones([3, 3]) * 0.1, name="v"), tf.Variable(tf.ones([3, 2]) * 0.1, name="w")

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(program(x, v, w) ** 2)
        dv, dw = tape.gradient(loss, [v, w])
        v.assign_sub(dv * 0.1)
        w.assign_sub(dw * 0.1)
        return {"loss": loss}

    def batches() -> Any:
        while True:
            yield {"x": np.ones((batch, 3), np.float32)}

    function = tf.function(step).get_concrete_function(tf.TensorSpec([batch, 3], tf.float32, name="x"))
    known = [KnownVariable(v, True), KnownVariable(w, True)]
    subject = Subject(function, ["x"], batches(), known, {"loss": "loss"}, False, {})
    return run_subject(subject, Plan(steps=1, warmup=1), 0, lambda what, done, of: None, lambda values: None)


def block(tf: Any, is_own: bool) -> Callable[[Any, Any, Any], Any]:
    """tanh(tanh(x v) w), recomputed by TensorFlow itself or by a gradient of the program's own that reads v and w anew."""

    def layers(x: Any, v: Any, w: Any) -> Any:
        return tf.tanh(tf.matmul(tf.tanh(tf.matmul(x, v)), w))

    if not is_own:
        return lambda x, v, w: tf.recompute_grad(lambda a: layers(a, v, w))(x)

    def program(x: Any, v: Any, w: Any) -> Any:
        def inner(a: Any) -> Any:
            def grad(d: Any, variables: Any = None) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(a)
                    y = layers(a + 0.0 * tf.reduce_max(d), v, w)
                da, dvariables = tape.gradient(y, [a, list(variables)], d)
                return da, dvariables

            return layers(a, v, w), grad

        return tf.custom_gradient(inner)(x)

    return program


@pytest.mark.capture
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("batch", [4, 3])
def test_what_tensorflow_recomputes(batch: int, is_own: bool) -> None:
    """Forward n (3 3 + 3 2); backward once more that, and twice for the two gradients of each product.

    TensorFlow's recomputation makes the gradient of x too, n 3 3; of the program's own, nothing reads it, so it is left out.
    """
    tf = pytest.importorskip("tensorflow")
    trace = captured(block(tf, is_own), batch)
    once = batch * (3 * 3 + 3 * 2)
    macs = {row.key: row.macs for row in profile(trace, by="phase").rows}
    assert phases(trace).evidence == ROLES
    assert (macs["forward"], macs["backward"], macs["optimizer"]) == (once, 3 * once - (batch * 3 * 3 if is_own else 0), 0)
