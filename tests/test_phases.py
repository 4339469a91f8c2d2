"""Is every node in the phase that the graph says, whatever its name, and does the trace say what it was told from?"""

from __future__ import annotations

import pytest

from fathom_trace import tables
from fathom_trace.builder import TraceBuilder
from fathom_trace.phases import NAMES, ROLES, Phases, phases
from fathom_trace.trace import Trace
from tests.handmade import Hand, Value
from tests.training import SHAPES, Training, step


def of(trace: Trace) -> dict[str, str]:
    """Node name to phase."""
    return dict(zip(trace.node_names, phases(trace), strict=True))


def in_phase(found: dict[str, str], phase: str) -> set[str]:
    return {name for name, its in found.items() if its == phase}


def expected_forward() -> set[str]:
    layers = ("conv1_1", "conv1_2", "fc6")
    names = {
        "pool1/MaxPool",
        "fc6/Reshape",
        "fc6/Reshape/shape",
        "fc6/MatMul",
        "fc6/MatMul/ReadVariableOp",
        "_arg_image",
        "_arg_label",
    }
    names |= {f"variables/{v}" for v in SHAPES}
    names |= {f"{c}/{part}" for c in layers[:2] for part in ("Conv2D", "Conv2D/ReadVariableOp", "Relu")}
    names |= {f"{layer}/{part}" for layer in layers for part in ("BiasAdd", "BiasAdd/ReadVariableOp")}
    names |= {f"loss/{part}" for part in ("SparseSoftmaxCrossEntropyWithLogits", "Mean", "Const", "AddN", "mul", "mul/y", "add")}
    return names | {f"loss/L2Loss_{layer}{part}" for layer in layers for part in ("", "/ReadVariableOp")}


def expected_optimizer() -> set[str]:
    names = {f"optimizer/{v}" for v in SHAPES} | {f"variables/optimizer/{v}/momentum" for v in SHAPES}
    names |= {"optimizer/learning_rate", "optimizer/momentum", "variables/optimizer/iterations"}
    return names | {f"optimizer/{part}" for part in ("Add", "Add/ReadVariableOp", "one", "AssignVariableOp")}


def test_a_training_step() -> None:
    trace = step().hand.build()
    found = of(trace)
    assert phases(trace).evidence == ROLES
    assert in_phase(found, "forward") == expected_forward()
    assert in_phase(found, "optimizer") == expected_optimizer()
    assert in_phase(found, "backward") == set(found) - expected_forward() - expected_optimizer()
    assert in_phase(found, "other") == set()


def test_weight_decay_in_the_loss_is_backward_until_it_is_added() -> None:
    found = of(step().hand.build())
    assert {found[f"gradient_tape/loss/mul_{n}"] for n in ("conv1_1", "conv1_2", "fc6")} == {"backward"}
    assert {found[f"AddN_{n}"] for n in ("conv1_1", "conv1_2", "fc6")} == {"backward"}


def test_clipping_by_the_global_norm_is_the_optimizers() -> None:
    found = of(step(clip=True).hand.build())
    clipping = {name for name in found if name.startswith("clip/")}
    assert len(clipping) == 2 * len(SHAPES) + 6
    assert {found[name] for name in clipping} == {"optimizer"}
    assert in_phase(found, "optimizer") == expected_optimizer() | clipping
    assert found["gradient_tape/fc6/BiasAdd/BiasAddGrad"] == found["AddN_fc6"] == "backward"


def test_names_do_not_matter_where_there_are_roles() -> None:
    plain = step(clip=True).hand.build()
    trace = step(clip=True).hand.build()
    strings = [trace.strings[i] for i in range(len(trace.strings))]
    nodes = set(trace.nodes.node_name.tolist())
    renamed = trace.replace(strings=tables.Strings.of(f"n{i}" if i in nodes else text for i, text in enumerate(strings)))
    assert set(renamed.node_names) == {f"n{i}" for i in nodes}
    assert phases(renamed).codes.tolist() == phases(plain).codes.tolist()
    assert phases(renamed).evidence == ROLES


def without_roles(trace: Trace) -> Trace:
    return trace.replace(interface=tables.Interface.empty())


def test_without_roles_names_decide_and_the_trace_says_so() -> None:
    trace = without_roles(step().hand.build())
    found, by_roles = of(trace), of(step().hand.build())
    assert phases(trace).evidence == NAMES
    differ = {name for name in found if found[name] != by_roles[name]}
    # A sum without a scope says nothing of its phase.
    assert differ == {f"AddN_{n}" for n in ("conv1_1", "conv1_2", "fc6")}


def test_inference_is_forward_throughout() -> None:
    hand = Hand()
    weights = hand.variable("fc/kernel", (3, 5))
    product = hand.op(
        "fc/MatMul", "MatMul", hand.feed("x", (7, 3)), hand.read("fc/MatMul/ReadVariableOp", weights, (3, 5)), shape=(7, 5)
    )
    hand.op("_retval", "_Retval", product, outputs=[])
    hand.fetch(product, "logits")
    trace = hand.build()
    assert set(phases(trace)) == {"forward"}
    assert phases(trace).evidence == ROLES
    assert phases(without_roles(trace)).evidence == NAMES


def test_a_forward_transposed_convolution_is_no_gradient() -> None:
    hand = Hand()
    kernel = hand.variable("up/kernel", (3, 3, 4, 6))
    sizes = hand.const("up/sizes", (4,), "int32")
    weights = hand.read("up/ReadVariableOp", kernel, (3, 3, 4, 6))
    x = hand.feed("x", (1, 4, 4, 6))
    up = hand.op("up/conv2d_transpose", "Conv2DBackpropInput", sizes, weights, x, shape=(1, 8, 8, 4))
    loss = hand.op("loss/Sum", "Sum", up, hand.const("loss/axes", (4,), "int32"))
    hand.fetch(loss, "loss")
    dy = hand.op("n1", "Fill", hand.const("n0", (4,), "int32"), shape=(1, 8, 8, 4))
    dw = hand.op("n2", "Conv2DBackpropFilter", dy, hand.const("n3", (4,), "int32"), x, shape=(3, 3, 4, 6))
    hand.op("n4", "ResourceApplyGradientDescent", kernel[1], hand.const("n5"), dw, outputs=[], reads=[0], writes=[0])
    found = of(hand.build())
    assert found["up/conv2d_transpose"] == "forward"
    assert [found[f"n{i}"] for i in range(6)] == ["backward"] * 4 + ["optimizer"] * 2


class Dense:
    """loss = sum(x w), dw = x' dy: one product and its gradient, for what comes after the gradient."""

    def __init__(self) -> None:
        self.hand = hand = Hand()
        self.variable = hand.variable("w", (3, 5))
        self.x = hand.feed("x", (7, 3))
        self.y = hand.op("mm", "MatMul", self.x, hand.read("read", self.variable, (3, 5)), shape=(7, 5))
        self.loss = hand.op("sum", "Sum", self.y, hand.const("axes", (2,), "int32"))
        hand.fetch(self.loss, "loss")
        self.dy = hand.op("dy", "Fill", hand.const("dy_shape", (2,), "int32"), hand.const("one"), shape=(7, 5))
        self.dw = hand.op("dw", "MatMul", self.x, self.dy, shape=(3, 5), transpose_a=True)

    def apply(self, gradient: Value) -> None:
        self.hand.op(
            "apply", "ResourceApplyGradientDescent", self.variable[1], self.hand.const("rate"), gradient, outputs=[],
            reads=[self.variable[0]], writes=[self.variable[0]],
        )  # fmt: skip

    def phases(self) -> dict[str, str]:
        return of(self.hand.build())


def test_loss_scaling() -> None:
    """The loss is multiplied by a kept scale for the gradients; the gradient is divided by it again, by the optimizer."""
    made = Dense()
    scale = made.hand.variable("scale", (), trainable=False)
    first = made.hand.read("scale/read", scale, ())
    dy = made.hand.op("scaled_dy", "Mul", made.dy, first, shape=(7, 5))
    dw = made.hand.op("scaled_dw", "MatMul", made.x, dy, shape=(3, 5), transpose_a=True)
    again = made.hand.read("scale/read_1", scale, ())
    unscaled = made.hand.op("unscale", "RealDiv", dw, again, shape=(3, 5))
    finite = made.hand.op("finite", "IsFinite", unscaled, shape=(3, 5), dtype="bool")
    every = made.hand.op("all", "All", finite, made.hand.const("all_axes", (2,), "int32"), dtype="bool")
    new = made.hand.op("new_scale", "Select", every, again, again)
    made.hand.op("assign_scale", "AssignVariableOp", scale[1], new, outputs=[], writes=[scale[0]])
    made.apply(unscaled)
    found = made.phases()
    assert {found[n] for n in ("scale/read", "scaled_dy", "scaled_dw")} == {"backward"}
    names = ("scale/read_1", "unscale", "finite", "all", "all_axes", "new_scale", "assign_scale", "apply")
    assert {found[n] for n in names} == {"optimizer"}


def test_decoupled_weight_decay_reads_the_weight_for_the_optimizer() -> None:
    made = Dense()
    weight = made.hand.read("decay/read", made.variable, (3, 5))
    decay = made.hand.op("decay/Mul", "Mul", weight, made.hand.const("decay/rate"), shape=(3, 5))
    made.hand.op("decay/assign", "AssignSubVariableOp", made.variable[1], decay, outputs=[], reads=[0], writes=[0])
    made.apply(made.dw)
    found = made.phases()
    assert {found[f"decay/{n}"] for n in ("read", "Mul", "rate", "assign")} == {"optimizer"}
    assert found["read"] == "forward"


def test_slots_that_nobody_declared_are_found_by_what_reads_them() -> None:
    """m += (g - m) c; w -= m r, in single ops: the gradient reaches w only through m."""
    made = Dense()
    row, handle = made.hand.variable("m", (3, 5), trainable=False)
    old = made.hand.read("m/read", (row, handle), (3, 5))
    step_ = made.hand.op("m/Mul", "Mul", made.hand.op("m/Sub", "Sub", made.dw, old, shape=(3, 5)), made.hand.const("c"), shape=(3, 5))
    made.hand.op("m/assign", "AssignAddVariableOp", handle, step_, outputs=[], reads=[row], writes=[row])
    new = made.hand.read("m/read_1", (row, handle), (3, 5))
    made.hand.op(
        "w/assign", "AssignSubVariableOp", made.variable[1], made.hand.op("w/Mul", "Mul", new, made.hand.const("r"), shape=(3, 5)),
        outputs=[], reads=[0], writes=[0],
    )  # fmt: skip
    found = made.phases()
    assert {n for n, p in found.items() if p == "backward"} == {"dy", "dy_shape", "one", "dw"}
    assert {found[n] for n in ("m/read", "m/Sub", "m/Mul", "m/assign", "m/read_1", "w/Mul", "w/assign", "variables/m")} == {
        "optimizer"
    }


@pytest.mark.parametrize("scaled", [False, True])
def test_a_penalty_by_elementwise_ops_is_still_backward(scaled: bool) -> None:
    """sum(w w), or 0.01 sum(w w): its gradient c x (2 w) has the variable's shape before it is added to the rest."""
    made = Dense()
    weight = made.hand.read("penalty/read", made.variable, (3, 5))
    square = made.hand.op("penalty/Square", "Square", weight, shape=(3, 5))
    penalty = made.hand.op("penalty/Sum", "Sum", square, made.hand.const("penalty/axes", (2,), "int32"))
    factor, one = made.hand.const("penalty/factor"), made.hand.const("d/one")
    if scaled:
        penalty = made.hand.op("penalty/Mul", "Mul", penalty, factor)
        one = made.hand.op("d/scale", "Mul", one, factor)
    made.hand.fetch(made.hand.op("total", "AddV2", made.loss, penalty), "loss")
    tile = made.hand.op("d/Tile", "Tile", one, made.hand.const("d/shape", (2,), "int32"), shape=(3, 5))
    double = made.hand.op("d/Mul", "Mul", weight, made.hand.const("d/two"), shape=(3, 5))
    both = made.hand.op("d/Mul_1", "Mul", tile, double, shape=(3, 5))
    added = made.hand.op("AddN", "AddN", both, made.dw, shape=(3, 5))
    norm = made.hand.op("clip/L2Loss", "L2Loss", added)
    made.apply(made.hand.op("clip/truediv", "RealDiv", added, norm, shape=(3, 5)))
    found = made.phases()
    assert {found[n] for n in ("d/Tile", "d/Mul", "d/Mul_1", "AddN")} == {"backward"}
    assert {found[n] for n in ("clip/L2Loss", "clip/truediv", "apply")} == {"optimizer"}


def test_noise_on_gradients_is_the_optimizers() -> None:
    made = Dense()
    noise = made.hand.op("noise", "RandomStandardNormal", made.hand.const("noise/shape", (2,), "int32"), shape=(3, 5))
    made.apply(made.hand.op("noisy", "AddV2", made.dw, noise, shape=(3, 5)))
    found = made.phases()
    assert {found[n] for n in ("noise", "noise/shape", "noisy", "apply")} == {"optimizer"}
    assert found["dw"] == "backward"


def test_metrics_and_running_averages_are_other() -> None:
    made = Dense()
    made.apply(made.dw)
    made.hand.fetch(
        made.hand.op("accuracy", "ArgMax", made.y, made.hand.const("axis", (), "int32"), shape=(7,), dtype="int64"), "metric"
    )
    row, handle = made.hand.variable("moving_mean", (5,), trainable=False)
    mean = made.hand.op("mean", "Mean", made.y, made.hand.const("mean/axes", (1,), "int32"), shape=(5,))
    made.hand.op("update", "AssignVariableOp", handle, mean, outputs=[], writes=[row])
    found = made.phases()
    assert {found[n] for n in ("accuracy", "axis", "mean", "mean/axes", "update", "variables/moving_mean")} == {"other"}


def test_the_state_of_a_random_generator_is_no_hyper_parameter() -> None:
    made = Dense()
    made.apply(made.dw)
    row, handle = made.hand.variable("seed", (2,), trainable=False)
    seed = made.hand.read("seed/read", (row, handle), (2,))
    noise = made.hand.op("noise", "StatelessRandomUniformV2", seed)
    made.hand.fetch(made.hand.op("noisy", "AddV2", made.loss, noise), "loss")
    again = made.hand.read("seed/read_1", (row, handle), (2,))
    more = made.hand.op("seed/Add", "AddV2", again, made.hand.const("seed/one", (2,)), shape=(2,))
    made.hand.op("seed/assign", "AssignVariableOp", handle, more, outputs=[], writes=[row])
    found = made.phases()
    assert found["noise"] == found["seed/read"] == "forward"
    assert {found[n] for n in ("seed/read_1", "seed/Add", "seed/assign")} == {"other"}


def test_rows_of_an_embedding_are_a_whole_gradient() -> None:
    hand = Hand()
    table = hand.variable("table", (100, 8))
    ids = hand.feed("ids", (4,), "int32")
    rows = hand.op("gather", "ResourceGather", table[1], ids, shape=(4, 8), reads=[table[0]])
    loss = hand.op("sum", "Sum", rows, hand.const("axes", (2,), "int32"))
    hand.fetch(loss, "loss")
    grad = hand.op("d/Reshape", "Reshape", hand.op("d/Tile", "Tile", hand.const("d/one"), hand.const("d/n"), shape=(4, 8)),
                   hand.const("d/shape", (2,), "int32"), shape=(4, 8))  # fmt: skip
    index = hand.op("d/ids", "Reshape", ids, hand.const("d/count", (1,), "int32"), shape=(4,), dtype="int32")
    clipped = hand.op("clip", "ClipByValue", hand.op("marked", "Mul", grad, hand.op("ones", "Cast", index, shape=(4, 1)), shape=(4, 8)),
                      hand.const("low"), hand.const("high"), shape=(4, 8))  # fmt: skip
    hand.op("apply", "ResourceSparseApplyAdagrad", table[1], hand.const("slot"), hand.const("rate"), clipped, index, outputs=[],
            reads=[0], writes=[0])  # fmt: skip
    found = of(hand.build())
    assert {found[n] for n in ("d/Tile", "d/Reshape", "d/ids", "marked")} == {"backward"}
    assert {found[n] for n in ("clip", "low", "high", "apply", "rate")} == {"optimizer"}


def loop_step() -> Trace:
    """x is multiplied by w in a loop; a second loop sums the gradients: headers close cycles in the graph."""
    builder = TraceBuilder()
    node, names = builder.node, {}

    def add(name: str, op: str, *inputs: tuple[str, int], later: tuple[int, int] | None = None, **more: object) -> int:
        given = [(names[n], p) for n, p in inputs] + ([later] if later else [])
        names[name] = node(name, op, inputs=given, **more)  # type: ignore[arg-type]
        return names[name]

    add("w", "VarHandleOp")
    builder.variable("w", "float32", (4, 4), trainable=True, node=0)
    add("x", "_Arg")
    add("limit", "Const")
    add("enter", "Enter", ("x", 0))
    add("enter_w", "Enter", ("w", 0))
    count = 5
    add("merge", "Merge", ("enter", 0), later=(count + 7, 0))
    add("cond", "LoopCond", ("limit", 0))
    add("switch", "Switch", ("merge", 0), ("cond", 0))
    add("read", "ReadVariableOp", ("enter_w", 0), reads=[0])
    add("body", "MatMul", ("switch", 1), ("read", 0))
    add("list", "EmptyTensorList")
    add("push", "TensorListPushBack", ("list", 0), ("switch", 1))
    add("next", "NextIteration", ("body", 0))
    assert names["next"] == count + 7
    add("exit", "Exit", ("switch", 0))
    add("loss", "Sum", ("exit", 0))
    add("one", "Const")
    add("zeros", "Const")
    add("g_enter", "Enter", ("zeros", 0))
    start = len(names)
    add("g_merge", "Merge", ("g_enter", 0), later=(start + 5, 0))
    add("g_switch", "Switch", ("g_merge", 0), ("cond", 0))
    add("pop", "TensorListPopBack", ("push", 0))
    add("dw", "MatMul", ("pop", 1), ("one", 0))
    add("sum", "AddV2", ("g_switch", 1), ("dw", 0))
    add("g_next", "NextIteration", ("sum", 0))
    assert names["g_next"] == start + 5
    add("g_exit", "Exit", ("g_switch", 0))
    add("rate", "Const")
    add("apply", "ResourceApplyGradientDescent", ("w", 0), ("rate", 0), ("g_exit", 0), reads=[0], writes=[0])
    builder.interface("loss", tables.FETCH, names["loss"], 0, "loss")
    return builder.build({})


def test_loops_with_their_cycles() -> None:
    found = of(loop_step())
    forward = {"w", "x", "limit", "enter", "enter_w", "merge", "cond", "switch", "read", "body", "next", "exit", "loss"}
    # Keeping values for the gradient is work that inference would not do.
    backward = {"list", "push", "pop", "one", "dw", "zeros", "g_enter", "g_merge", "g_switch", "sum", "g_next", "g_exit"}
    assert in_phase(found, "forward") == forward
    assert in_phase(found, "backward") == backward
    assert in_phase(found, "optimizer") == {"rate", "apply"}


def test_a_sent_value_carries_its_phase_to_the_receiver() -> None:
    hand = Hand()
    x = hand.feed("x", (3,))
    pair = {"tensor_name": "edge_1", "send_device": "/cpu:0", "recv_device": "/cpu:1"}
    hand.op("send", "_Send", hand.op("before", "Exp", x, shape=(3,)), outputs=[], **pair)
    received = hand.op("recv", "_Recv", shape=(3,), **pair)
    hand.fetch(hand.op("after", "Sum", received), "loss")
    variable = hand.variable("w", (3,))
    hand.op("apply", "ResourceApplyGradientDescent", variable[1], hand.const("rate"), received, outputs=[], writes=[0])
    assert of(hand.build())["before"] == "forward"


def test_phases_are_a_sequence_of_names() -> None:
    trace = step().hand.build()
    found = phases(trace)
    assert isinstance(found, Phases)
    assert len(found) == len(trace.nodes)
    assert found[trace.node_index["conv1_1/Conv2D"]] == "forward"
    assert list(found[:2]) == [found[0], found[1]]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("gradient_tape/model/dense/MatMul/MatMul_1", "backward"),
        ("gradients/mm_grad/MatMul_1", "backward"),
        ("gradients_1/mm_grad/MatMul", "backward"),
        ("adam/truediv", "optimizer"),
        ("AdamW_2/Sqrt", "optimizer"),
        ("optimizer/clip_by_global_norm/mul", "optimizer"),
        ("loss_scale_optimizer/mul", "optimizer"),
        ("model/gradients_of_interest/Relu", "forward"),
        ("adamant/Relu", "forward"),
    ],
)
def test_what_names_say(name: str, phase: str) -> None:
    hand = Hand()
    x = hand.feed("x", (3,))
    hand.op(name, "Mul", x, x, shape=(3,))
    hand.op("gradient_tape/marker/Mul", "Mul", x, x, shape=(3,))
    found = phases(hand.build())
    assert (found[1], found.evidence) == (phase, NAMES)


def test_a_gradient_for_the_weights_only() -> None:
    """x w -> relu -> sum, and the gradient of w alone, with TensorFlow 1's names and no optimizer."""
    made = Training()
    hand = made.hand
    x, w = hand.feed("x", (4, 6)), hand.feed("w", (6, 5))
    product = hand.op("mm", "MatMul", x, w, shape=(4, 5))
    active = hand.op("relu", "Relu", product, shape=(4, 5))
    hand.fetch(hand.op("sum", "Sum", active), "loss")
    dy = hand.op("gradients/relu_grad/ReluGrad", "ReluGrad", hand.const("gradients/Fill", (4, 5)), active, shape=(4, 5))
    hand.fetch(hand.op("gradients/mm_grad/MatMul_1", "MatMul", x, dy, shape=(6, 5), transpose_a=True), "", "dw")
    found = of(hand.build())
    assert found["mm"] == found["relu"] == "forward"
    assert found["gradients/mm_grad/MatMul_1"] == "backward"
