"""Does every node find its layer and every gradient its forward node, by the graph where it can tell?"""

from __future__ import annotations

import pytest

from fathom_trace import tables
from fathom_trace.builder import TraceBuilder
from fathom_trace.layers import GRAPH, NAMES, LayerLinks, layer_links, layer_names
from fathom_trace.node_graph import NodeGraph
from fathom_trace.scopes import LayerScopes, forward_name, inner_name
from fathom_trace.trace import Trace
from tests.handmade import Hand, Value
from tests.training import SHAPES, step


class Found:
    """Links by node name."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.links = trace, layer_links(trace)

    def layer(self, name: str) -> str:
        return self.links.layer[self.trace.node_index[name]]

    def of(self, name: str) -> tuple[str, str, str, str]:
        """(layer, role, forward node, evidence of the link)."""
        node = self.trace.node_index[name]
        forward = int(self.links.forward[node])
        its = self.trace.node_names[forward] if forward >= 0 else ""
        return self.links.layer[node], self.links.role[node], its, self.links.forward_evidence[node]


def test_a_training_step() -> None:
    found = Found(step().hand.build())
    tape = "gradient_tape/"
    assert found.of("conv1_1/Conv2D") == ("conv1_1", "forward", "", "")
    for name in ("conv1_1", "conv1_2"):
        assert found.of(f"{tape}{name}/Conv2DBackpropFilter") == (name, "filter_grad", f"{name}/Conv2D", GRAPH)
        assert found.of(f"{tape}{name}/ReluGrad") == (name, "gradient", f"{name}/Relu", GRAPH)
        assert found.of(f"{tape}{name}/BiasAdd/BiasAddGrad") == (name, "gradient", f"{name}/BiasAdd", GRAPH)
    assert found.of(f"{tape}conv1_2/Conv2DBackpropInput") == ("conv1_2", "input_grad", "conv1_2/Conv2D", GRAPH)
    assert found.of(f"{tape}fc6/MatMul/MatMul") == ("fc6", "input_grad", "fc6/MatMul", GRAPH)
    assert found.of(f"{tape}fc6/MatMul/MatMul_1") == ("fc6", "filter_grad", "fc6/MatMul", GRAPH)
    assert found.of(f"{tape}pool1/MaxPool/MaxPoolGrad") == ("pool1", "gradient", "pool1/MaxPool", GRAPH)
    assert found.layer("pool1/MaxPool") == "pool1"
    assert found.layer("loss/L2Loss_fc6") == found.layer("loss/mul/y") == found.layer(f"{tape}loss/mul_fc6") == "loss"


def test_optimizer_nodes_belong_to_the_variable_they_update() -> None:
    found = Found(step(clip=True).hand.build())
    for name in SHAPES:
        layer = name.split("/")[0]
        assert found.of(f"optimizer/{name}")[:2] == (layer, "optimizer")
        assert found.layer(f"variables/optimizer/{name}/momentum") == layer
        assert found.layer(f"clip/mul_{name}") == layer
    assert found.layer("AddN_conv1_1") == "conv1_1"
    # What serves all variables is of no single layer.
    assert found.layer("clip/Sqrt") == "clip"
    assert found.layer("optimizer/learning_rate") == "optimizer"
    # The norm that enters all gradients is told apart from the way of a gradient to its variable.
    assert found.of("gradient_tape/conv1_2/Conv2DBackpropFilter") == ("conv1_2", "filter_grad", "conv1_2/Conv2D", GRAPH)


def test_names_that_say_nothing_do_not_matter_for_products() -> None:
    plain = step(clip=True).hand.build()
    nodes = set(plain.nodes.node_name.tolist())
    texts = [f"n{i}" if i in nodes else plain.strings[i] for i in range(len(plain.strings))]
    variables = set(plain.variables.variable_name.tolist())
    assert not nodes & variables
    before, after = layer_links(plain), layer_links(plain.replace(strings=tables.Strings.of(texts)))
    products = [n for n, op in enumerate(plain.node_ops) if op.startswith(("Conv2D", "MatMul", "ResourceApply", "ReadVariable"))]
    assert len(products) == 3 + 2 + 1 + 2 + len(SHAPES) + len(SHAPES) + 3 + 1
    for node in products:
        if not plain.node_names[node].startswith("optimizer/Add"):
            assert (after.layer[node], after.role[node]) == (before.layer[node], before.role[node])
            assert after.forward[node] == before.forward[node]
            assert after.evidence[node] == GRAPH


def shared() -> Trace:
    """One dense layer applied twice, and both gradients of both uses: names are Keras's for a layer called `shared`."""
    hand = Hand()
    variable = hand.variable("shared/kernel", (6, 6))
    x = hand.feed("x", (2, 6))
    values: list[Value] = [x]
    weights: list[Value] = []
    for number in (1, 3):
        weights.append(hand.read(f"model/shared_{number}/Cast/ReadVariableOp", variable, (6, 6)))
        values.append(hand.op(f"model/shared_{number}/MatMul", "MatMul", values[-1], weights[-1], shape=(2, 6)))
    relu = hand.op("model/shared_3/Relu", "Relu", values[-1], shape=(2, 6))
    hand.fetch(hand.op("loss/Sum", "Sum", relu, hand.const("loss/axes", (2,), "int32")), "loss")
    dy = hand.op("a", "ReluGrad", hand.const("ones", (2, 6)), relu, shape=(2, 6))
    second = hand.op("b", "MatMul", values[1], dy, shape=(6, 6), transpose_a=True)
    dx = hand.op("c", "MatMul", dy, weights[1], shape=(2, 6), transpose_b=True)
    first = hand.op("d", "MatMul", x, dx, shape=(6, 6), transpose_a=True)
    total = hand.op("e", "AddN", first, second, shape=(6, 6))
    hand.op("f", "ResourceApplyGradientDescent", variable[1], hand.const("rate"), total, outputs=[], reads=[0], writes=[0])
    return hand.build()


def test_a_shared_layer_is_one_layer_of_two_products() -> None:
    trace = shared()
    found = Found(trace)
    products = ["model/shared_1/MatMul", "model/shared_3/MatMul"]
    assert {found.layer(name) for name in (*products, "model/shared_3/Relu", "a", "e", "f")} == {"shared"}
    assert found.of("b") == ("shared", "filter_grad", "model/shared_3/MatMul", GRAPH)
    assert found.of("c") == ("shared", "input_grad", "model/shared_3/MatMul", GRAPH)
    assert found.of("d") == ("shared", "filter_grad", "model/shared_1/MatMul", GRAPH)
    # Weights are counted by variable: 36, not 72.
    assert sum(trace.shapes.elements[trace.variables.shape].tolist()) == 36


def test_layers_that_share_an_input_are_told_by_the_variable_their_gradient_reaches() -> None:
    """Query, key and value read one input and are of one size; nothing is told by names."""
    hand = Hand()
    variables = {name: hand.variable(f"attention/{name}/kernel", (8, 8)) for name in ("query", "key", "value")}
    x = hand.feed("x", (2, 8))
    outs = {n: hand.op(f"p{n}", "MatMul", x, hand.read(f"r{n}", v, (8, 8)), shape=(2, 8)) for n, v in variables.items()}
    total = hand.op("total", "AddN", *outs.values(), shape=(2, 8))
    hand.fetch(hand.op("loss", "Sum", total, hand.const("axes", (2,), "int32")), "loss")
    dy = hand.op("dy", "Fill", hand.const("s", (2,), "int32"), shape=(2, 8))
    for number, (_, handle) in enumerate(variables.values()):
        dw = hand.op(f"g{number}", "MatMul", x, dy, shape=(8, 8), transpose_a=True)
        hand.op(f"u{number}", "ResourceApplyGradientDescent", handle, hand.const(f"c{number}"), dw, outputs=[], writes=[number])
    found = Found(hand.build())
    for number, name in enumerate(variables):
        assert found.of(f"g{number}") == (name, "filter_grad", f"p{name}", GRAPH)


def test_a_product_of_two_activations_has_two_gradients() -> None:
    """scores = q k': the gradient of q reads k, that of k reads q."""
    hand = Hand()
    q, k = hand.feed("q", (2, 7, 4)), hand.feed("k", (2, 7, 4))
    scores = hand.op("attention/scores/BatchMatMulV2", "BatchMatMulV2", q, k, shape=(2, 7, 7), adj_y=True)
    hand.fetch(hand.op("loss/Sum", "Sum", scores, hand.const("loss/axes", (3,), "int32")), "loss")
    dy = hand.op("gradient_tape/loss/Tile", "Tile", hand.const("gradient_tape/ones"), shape=(2, 7, 7))
    hand.op("gradient_tape/attention/scores/dq", "BatchMatMulV2", dy, k, shape=(2, 7, 4))
    hand.op("gradient_tape/attention/scores/dk", "BatchMatMulV2", dy, q, shape=(2, 7, 4), adj_x=True)
    found = Found(hand.build())
    name = "attention/scores/BatchMatMulV2"
    assert found.of("gradient_tape/attention/scores/dq")[1:] == ("input_grad", name, GRAPH)
    assert found.of("gradient_tape/attention/scores/dk")[1:] == ("filter_grad", name, GRAPH)


def test_the_gradient_of_a_transposed_convolution_is_a_convolution() -> None:
    hand = Hand()
    kernel = hand.variable("up/kernel", (3, 3, 4, 6))
    weights = hand.read("up/ReadVariableOp", kernel, (3, 3, 4, 6))
    before = hand.variable("down/kernel", (1, 1, 2, 6))
    first = hand.op(
        "down/Conv2D", "Conv2D", hand.feed("x", (1, 4, 5, 2)), hand.read("down/r", before, (1, 1, 2, 6)), shape=(1, 4, 5, 6)
    )
    up = hand.op("up/transposed", "Conv2DBackpropInput", hand.const("up/sizes", (4,), "int32"), weights, first, shape=(1, 8, 10, 4))
    hand.fetch(hand.op("loss", "Sum", up, hand.const("axes", (4,), "int32")), "loss")
    dy = hand.op("g0", "Fill", hand.const("s", (4,), "int32"), shape=(1, 8, 10, 4))
    dw = hand.op("g1", "Conv2DBackpropFilter", dy, hand.const("g1/sizes", (4,), "int32"), first, shape=(3, 3, 4, 6))
    dx = hand.op("g2", "Conv2D", dy, weights, shape=(1, 4, 5, 6))
    more = hand.op("g3", "Conv2DBackpropFilter", Value(3, 3), hand.const("g3/sizes", (4,), "int32"), dx, shape=(1, 1, 2, 6))
    assert more.node > 0
    for number, gradient in enumerate((dw, more)):
        handle = (kernel, before)[number][1]
        hand.op(f"u{number}", "ResourceApplyGradientDescent", handle, hand.const(f"c{number}"), gradient, outputs=[], writes=[number])
    trace = hand.build()
    found = Found(trace)
    assert trace.node_names[3] == "_arg_x"
    assert found.of("g1") == ("up", "filter_grad", "up/transposed", GRAPH)
    assert found.of("g2") == ("up", "input_grad", "up/transposed", GRAPH)
    assert found.of("g3") == ("down", "filter_grad", "down/Conv2D", GRAPH)


def test_unscoped_products_are_layers_of_their_own_name() -> None:
    """TensorFlow 1's names: `mm`, and its gradient `gradients/mm_grad/MatMul_1`."""
    hand = Hand()
    x, w = hand.feed("x", (4, 6)), hand.feed("w", (6, 5))
    active = hand.op("relu", "Relu", hand.op("mm", "MatMul", x, w, shape=(4, 5)), shape=(4, 5))
    hand.fetch(hand.op("sum", "Sum", active), "loss")
    dy = hand.op("gradients/relu_grad/ReluGrad", "ReluGrad", hand.const("gradients/Fill", (4, 5)), active, shape=(4, 5))
    hand.op("gradients/mm_grad/MatMul_1", "MatMul", x, dy, shape=(6, 5), transpose_a=True)
    found = Found(hand.build())
    assert found.of("mm") == ("mm", "forward", "", "")
    assert found.of("gradients/mm_grad/MatMul_1") == ("mm", "filter_grad", "mm", GRAPH)


def test_untrained_weights_make_layers_too() -> None:
    """A target network's variables are not trained, but what multiplies by them has a layer."""
    hand = Hand()
    trained, target = hand.variable("conv1/kernel", (3, 4)), hand.variable("target/conv1/kernel", (3, 4), trainable=False)
    x = hand.feed("x", (2, 3))
    for scope, variable in (("conv1", trained), ("target/conv1", target)):
        product = hand.op(f"{scope}/MatMul", "MatMul", x, hand.read(f"{scope}/ReadVariableOp", variable, (3, 4)), shape=(2, 4))
        hand.op(f"{scope}/Relu", "Relu", product, shape=(2, 4))
    found = Found(hand.build())
    assert [found.layer(f"{scope}/{op}") for scope in ("conv1", "target/conv1") for op in ("MatMul", "Relu")] == [
        "conv1", "conv1", "target/conv1", "target/conv1",
    ]  # fmt: skip


def test_a_bundle_of_gradients_mixes_nothing() -> None:
    """Clipped one by one, then through one IdentityN, as Keras does: each gradient keeps its variable."""
    hand = Hand()
    x = hand.feed("x", (2, 3))
    variables = [hand.variable(f"{name}/kernel", (3, 4)) for name in ("a", "b")]
    ys = [hand.op(f"y{i}", "MatMul", x, hand.read(f"r{i}", v, (3, 4)), shape=(2, 4)) for i, v in enumerate(variables)]
    hand.fetch(hand.op("loss", "Sum", hand.op("both", "AddV2", *ys, shape=(2, 4))), "loss")
    dy = hand.op("dy", "Fill", hand.const("s", (2,), "int32"), shape=(2, 4))
    clipped = [
        hand.op(f"clip{i}", "Square", hand.op(f"dw{i}", "MatMul", x, dy, shape=(3, 4), transpose_a=True), shape=(3, 4)) for i in (0, 1)
    ]
    bundle = hand.op("bundle", "IdentityN", *clipped, outputs=[("float32", (3, 4))] * 2)
    for i, (_, handle) in enumerate(variables):
        gradient = Value(bundle.node, bundle.execution, i)
        hand.op(f"u{i}", "ResourceApplyGradientDescent", handle, hand.const(f"c{i}"), gradient, outputs=[], writes=[i])
    found = Found(hand.build())
    assert [found.layer(f"clip{i}") for i in (0, 1)] == ["a", "b"]
    assert [found.of(f"dw{i}") for i in (0, 1)] == [("a", "filter_grad", "y0", GRAPH), ("b", "filter_grad", "y1", GRAPH)]


def test_fused_and_onednn_spellings_are_linked_too() -> None:
    hand = Hand()
    kernel = hand.variable("c/kernel", (3, 3, 2, 4))
    x, weights = hand.feed("x", (1, 4, 5, 2)), hand.read("c/Conv2D/ReadVariableOp", kernel, (3, 3, 2, 4))
    out = hand.op("c/Relu", "_MklNativeFusedConv2D", x, weights, hand.const("b", (4,)), shape=(1, 4, 5, 4))
    hand.fetch(hand.op("loss/Sum", "Sum", out), "loss")
    dy = hand.op("gradient_tape/c/ReluGrad", "ReluGrad", hand.const("ones", (1, 4, 5, 4)), out, shape=(1, 4, 5, 4))
    sizes = hand.const("sizes", (4,), "int32")
    dw = hand.op(
        "gradient_tape/c/Conv2DBackpropFilter", "_MklNativeConv2DBackpropFilterWithBias", x, sizes, dy,
        outputs=[("float32", (3, 3, 2, 4)), ("float32", (4,))],
    )  # fmt: skip
    hand.op("apply", "ResourceApplyGradientDescent", kernel[1], hand.const("rate"), dw, outputs=[], writes=[0])
    found = Found(hand.build())
    assert found.of("c/Relu")[:2] == ("c", "forward")
    assert found.of("gradient_tape/c/Conv2DBackpropFilter") == ("c", "filter_grad", "c/Relu", GRAPH)
    assert found.of("gradient_tape/c/ReluGrad") == ("c", "gradient", "c/Relu", NAMES)


def loop() -> TraceBuilder:
    """A loop that multiplies by a variable and keeps x and w for a second loop, which pops them: [2, 4] [4, 4], in nodes only."""
    builder = TraceBuilder()
    nodes: dict[str, int] = {}
    pending: list[tuple[str, str, list[tuple[str, int]], dict[str, object]]] = []

    def add(name: str, op: str, *inputs: tuple[str, int], **more: object) -> None:
        nodes[name] = len(pending)
        pending.append((name, op, list(inputs), more))

    add("handle", "VarHandleOp")
    add("x", "_Arg")
    add("limit", "Const")
    for loop_name, entries in (("f", ("handle", "x", "list_x", "list_w")), ("g", ("f/exit_list_x", "f/exit_list_w", "zeros"))):
        if loop_name == "f":
            add("list_x", "EmptyTensorList")
            add("list_w", "EmptyTensorList")
        else:
            add("zeros", "Const")
        add(f"{loop_name}/cond", "LoopCond", ("limit", 0))
        for entry in entries:
            short = entry.removeprefix("f/exit_")
            add(f"{loop_name}/enter_{short}", "Enter", (entry, 0))
            add(f"{loop_name}/merge_{short}", "Merge", (f"{loop_name}/enter_{short}", 0), (f"{loop_name}/next_{short}", 0))
            add(f"{loop_name}/switch_{short}", "Switch", (f"{loop_name}/merge_{short}", 0), (f"{loop_name}/cond", 0))
            add(f"{loop_name}/exit_{short}", "Exit", (f"{loop_name}/switch_{short}", 0))
            add(f"{loop_name}/in_{short}", "Identity", (f"{loop_name}/switch_{short}", 1))
    add("f/read", "ReadVariableOp", ("f/in_handle", 0), reads=[0])
    add("f/body", "MatMul", ("f/in_x", 0), ("f/read", 0))
    add("f/push_x", "TensorListPushBack", ("f/in_list_x", 0), ("f/in_x", 0))
    add("f/push_w", "TensorListPushBack", ("f/in_list_w", 0), ("f/read", 0))
    for short, source in (("handle", "f/in_handle"), ("x", "f/body"), ("list_x", "f/push_x"), ("list_w", "f/push_w")):
        add(f"f/next_{short}", "NextIteration", (source, 0))
    add("loss", "Sum", ("f/exit_x", 0))
    add("g/pop_x", "TensorListPopBack", ("g/in_list_x", 0))
    add("g/pop_w", "TensorListPopBack", ("g/in_list_w", 0))
    add("dy", "Const")
    add("g/dw", "MatMul", ("g/pop_x", 1), ("dy", 0))
    add("g/dx", "MatMul", ("dy", 0), ("g/pop_w", 1))
    add("g/sum", "AddV2", ("g/in_zeros", 0), ("g/dw", 0))
    add("g/use_dx", "Relu", ("g/dx", 0))
    for short, source in (("list_x", "g/pop_x"), ("list_w", "g/pop_w"), ("zeros", "g/sum")):
        add(f"g/next_{short}", "NextIteration", (source, 0))
    add("rate", "Const")
    add("apply", "ResourceApplyGradientDescent", ("handle", 0), ("rate", 0), ("g/exit_zeros", 0), reads=[0], writes=[0])
    add("dx_end", "Neg", ("g/use_dx", 0))
    add("other", "ResourceApplyGradientDescent", ("handle", 0), ("rate", 0), ("dx_end", 0), writes=[0])
    for name, op, inputs, more in pending:
        builder.node(name, op, inputs=[(nodes[n], p) for n, p in inputs], **more)  # type: ignore[arg-type]
    builder.variable("cell/kernel", "float32", (4, 4), trainable=True, node=0)
    builder.interface("loss", tables.FETCH, nodes["loss"], 0, "loss")
    return builder


def test_values_kept_in_lists_are_followed_out_of_their_loop() -> None:
    trace = loop().build()
    graph, index = NodeGraph(trace), trace.node_index
    assert graph.origin((index["g/pop_w"], 1)) == (index["f/read"], 0)
    assert graph.variable((index["g/pop_w"], 1)) == 0
    # x changes from iteration to iteration, so its origin is the loop's header, not what enters it.
    assert graph.origin((index["g/pop_x"], 1)) == graph.origin((index["f/in_x"], 0)) == (index["f/merge_x"], 0)
    assert graph.origin((index["f/in_handle"], 0)) == (index["handle"], 0)


def test_gradients_in_loops_find_their_forward_product() -> None:
    found = Found(loop().build())
    assert found.of("g/dw") == ("cell", "filter_grad", "f/body", GRAPH)
    assert found.of("g/dx") == ("cell", "input_grad", "f/body", GRAPH)


def test_stacks_are_followed_too() -> None:
    hand = Hand()
    x = hand.feed("x", (3,))
    stack = hand.op("stack", "StackV2", outputs=[("resource", ())])
    kept = hand.op("push", "StackPushV2", stack, x, shape=(3,))
    popped = hand.op("pop", "StackPopV2", stack, shape=(3,))
    graph = NodeGraph(hand.build())
    assert graph.origin((popped.node, 0)) == (x.node, 0)
    assert kept.node != popped.node


# --- names ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("conv1/Conv2D", "conv1/Conv2D"),
        ("StatefulPartitionedCall/conv1/Conv2D", "conv1/Conv2D"),
        ("model/lstm/while/body/_12/model/lstm/while/cell/MatMul", "model/lstm/while/cell/MatMul"),
        (
            "gradient_tape/lstm/while/lstm/while_grad/body/_9/gradient_tape/lstm/while/gradients/AddN",
            "gradient_tape/lstm/while/gradients/AddN",
        ),
        ("Func/model/while/body/_1/input/_233", "model/while/input/_233"),
        ("cond/then/_0/MatMul", "cond/MatMul"),
        ("MatMul", "MatMul"),
    ],
)
def test_bodies_and_calls_are_taken_off_names(name: str, inner: str) -> None:
    assert inner_name(name) == inner


@pytest.mark.parametrize(
    ("gradient", "forward"),
    [
        ("gradient_tape/fc6/MatMul/MatMul_1", "fc6/MatMul"),
        ("gradient_tape/conv1/Conv2DBackpropFilter", "conv1/Conv2D"),
        ("gradient_tape/conv1/ReluGrad", "conv1/Relu"),
        ("gradients/mm_grad/MatMul_1", "mm"),
        ("gradient_tape/while/gradients/fc6/MatMul_grad/MatMul/TensorListPopBack", "fc6/MatMul"),
        ("gradient_tape/elsewhere/Mul", ""),
        ("conv1/Relu", ""),
    ],
)
def test_a_gradients_name_names_its_forward_node(gradient: str, forward: str) -> None:
    assert forward_name(gradient, {"fc6/MatMul", "conv1/Conv2D", "conv1/Relu", "mm"}) == forward


def test_layers_are_named_below_the_scope_that_they_share() -> None:
    scopes = LayerScopes(["net/a/kernel", "net/b/cell/kernel", "opt/rate", "opt/m"], [True, True, False, False], [0, 1, -1, 1], [])
    assert scopes.layer_of_variable == ["a", "b/cell", "opt", "b/cell"]
    scopes.learn("net_1/a_1/MatMul", "a")
    assert scopes.layer_of_name("net_1/a_1/Relu") == "a"
    assert scopes.layer_of_name("gradient_tape/net_1/a_1/ReluGrad") == "a"
    assert scopes.layer_of_name("net_1/b_1/Transpose") == "b"
    assert scopes.layer_of_name("net_1/pool/MaxPool") == "pool"
    assert scopes.layer_of_name("net_1/Add") == ""
    assert LayerScopes(["only/kernel", "only/bias"], [True, True], [0, 1], []).layer_of_variable == ["only", "only"]


def test_the_parts_of_an_op_are_no_layer() -> None:
    scopes = LayerScopes(["a/kernel"], [True], [0], ["Mean", "a/MatMul", "gradient_tape/Reshape"])
    assert scopes.layer_of_name("Mean/axis") == ""
    assert scopes.layer_of_name("gradient_tape/Reshape/shape") == ""
    assert scopes.layer_of_name("a/MatMul/ReadVariableOp") == "a"


def test_links_cover_every_node() -> None:
    trace = step(clip=True).hand.build()
    links = layer_links(trace)
    assert isinstance(links, LayerLinks)
    assert {len(links.layer), len(links.role), len(links.forward), len(links.evidence)} == {len(trace.nodes)}
    assert layer_names(trace) == links.layer
    assert all(bool(layer) == bool(evidence) for layer, evidence in zip(links.layer, links.evidence, strict=True))
    assert all((f >= 0) == bool(e) for f, e in zip(links.forward.tolist(), links.forward_evidence, strict=True))
