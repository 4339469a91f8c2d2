"""Is an ONNX model of a trace its layers? Operators by hand arithmetic, checked, shape-inferred and computed by the real package."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.errors import ExportError
from fathom_trace.exporter import read_layer_map
from fathom_trace.generated import onnx_model_pb2 as schema
from fathom_trace.store import save
from fathom_trace.trace import Trace
from tests.brute_force import Case, Counted, add, count, random_case
from tests.handmade import Hand
from tests.known_layers import GRADIENTS, KNOWN, PRODUCTS, KnownConvolution, KnownProduct, chain
from tests.onnx_files import EXPORTER, attributes, evaluate_in_stream, export, inferred, load_in_stream, package, read, shapes
from tests.program import Program, dilated_depthwise
from tests.random_layers import Product, broadcast, random_layers
from tests.simulator_env import run_example
from tests.small import dense, diamond

reference = pytest.importorskip("onnx.reference")


def only(trace: Trace, folder: Path, **settings: str) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The one node that a trace is exported as, and the shapes of all tensors."""
    export(trace, folder, **settings)
    model = read(folder)
    (node,) = model.graph.node
    assert {k: v for k, v in shapes(model).items() if k in node.output} == inferred(model)
    return node, shapes(model)


# --- cases that people ran into, and faults of other converters -----------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_a_convolution_is_a_conv(tmp_path: Path, known: KnownConvolution) -> None:
    node, shape = only(known.trace(), tmp_path)
    (top, bottom), (left, right) = known.pads
    assert node.op_type == "Conv"
    assert attributes(node) == {
        "kernel_shape": list(known.kernel), "strides": list(known.stride), "dilations": list(known.dilation),
        "pads": [top, left, bottom, right], "group": known.groups,
    }  # fmt: skip
    size = known.image[2:] if known.attributes.get("data_format") == "NCHW" else known.image[1:3]
    assert shape[node.input[0]] == (known.batch, known.groups * known.channels, *size)
    assert shape[node.input[1]] == (known.groups * known.filters, known.channels, *known.kernel)
    assert shape[node.output[0]] == (known.batch, known.groups * known.filters, *known.output)
    (layer,) = read_layer_map(tmp_path)
    assert layer.macs == known.macs == prod(shape[node.output[0]]) * known.channels * prod(known.kernel)


@pytest.mark.parametrize("known", GRADIENTS.values(), ids=GRADIENTS)
def test_an_input_gradient_is_a_transposed_convolution(tmp_path: Path, known: KnownConvolution) -> None:
    """B12: exactly the multiply-accumulates of the convolution: no zeros are inserted."""
    node, shape = only(known.trace("Conv2DBackpropInput"), tmp_path)
    assert node.op_type == "ConvTranspose"
    assert shape[node.input[0]] == (known.batch, known.groups * known.filters, *known.output)
    assert shape[node.output[0]] == (known.batch, known.groups * known.channels, *known.image[1:3])
    assert prod(shape[node.input[0]]) * known.channels * prod(known.kernel) == known.macs
    # What lies behind the last window: 9 - ((4 - 1) * 2 + 3) = 0, 9 + 2 - ((5 - 1) * 2 + 3) = 0, and 10 - ((4 - 1) * 2 + 3) = 1.
    assert attributes(node)["output_padding"] == ([1, 0] if known.image[1] == 10 else [0, 0])


@pytest.mark.parametrize("known", GRADIENTS.values(), ids=GRADIENTS)
def test_an_input_gradient_can_be_a_product(tmp_path: Path, known: KnownConvolution) -> None:
    """[N * outputs, K] x [K, window * C], for readers that have no ConvTranspose."""
    node, shape = only(known.trace("Conv2DBackpropInput"), tmp_path, input_gradient="product")
    rows, columns = known.batch * prod(known.output), prod(known.kernel) * known.channels
    assert (node.op_type, shape[node.input[0]]) == ("Gemm", (rows, known.filters))
    assert (shape[node.input[1]], shape[node.output[0]]) == ((known.filters, columns), (rows, columns))
    assert rows * columns * known.filters == known.macs
    assert "col2im" in read_layer_map(tmp_path)[0].how


@pytest.mark.parametrize("known", GRADIENTS.values(), ids=GRADIENTS)
def test_a_filter_gradient_is_a_conv_with_batch_and_channels_exchanged(tmp_path: Path, known: KnownConvolution) -> None:
    """C images of N channels with K filters of N channels and the output's extents; the stride is the dilation."""
    node, shape = only(known.trace("Conv2DBackpropFilter"), tmp_path)
    assert node.op_type == "Conv"
    assert shape[node.input[1]] == (known.filters, known.batch, *known.output)
    assert shape[node.output[0]] == (known.channels, known.filters, *known.kernel)
    assert attributes(node)["dilations"] == list(known.stride)
    assert attributes(node)["strides"] == [1, 1]
    assert prod(shape[node.output[0]]) * known.batch * prod(known.output) == known.macs


def test_what_no_window_reads_is_left_out_of_a_filter_gradient(tmp_path: Path) -> None:
    """10 rows, 3 of kernel, stride 2: the windows end at row 9. With all 10, the convolution with the gradient would give a 4th row."""
    node, shape = only(GRADIENTS["one position unread"].trace("Conv2DBackpropFilter"), tmp_path)
    assert shape[node.input[0]] == (4, 2, 9, 9)
    assert any("without its end" in text for text in json.loads((tmp_path / "export.json").read_text())["approximations"])


@pytest.mark.parametrize("known", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_is_a_gemm_or_a_matmul(tmp_path: Path, known: KnownProduct) -> None:
    """C11: operands are as after transposition; B3: batch dimensions stay dimensions."""
    node, shape = only(known.trace(), tmp_path)
    assert node.op_type == ("Gemm" if known.batch == 1 else "MatMul")
    assert not node.attribute
    assert shape[node.input[0]] == (*known.left[:-2], known.m, known.k)
    assert shape[node.input[1]] == (*known.right[:-2], known.k, known.n)
    assert shape[node.output[0]] == known.result
    assert read_layer_map(tmp_path)[0].macs == known.macs


def test_batches_broadcast(tmp_path: Path) -> None:
    """B3: a[2, 1, 7, 4] x b[3, 4, 5]."""
    program = Program()
    program.product("m", [2, 1, 7, 4], [3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2")
    node, shape = only(program.trace(), tmp_path)
    assert [shape[name] for name in (*node.input, *node.output)] == [(2, 1, 7, 4), (3, 4, 5), (2, 3, 7, 5)]


def test_a_dilated_depthwise_convolution_is_its_logical_layer(tmp_path: Path) -> None:
    """C9 and C12: x[3, 4, 9, 9], 4 groups of 2 filters, dilation 2, 5 x 5 outputs: 5,400 MACs of three executions."""
    trace, ran = dilated_depthwise()
    node, shape = only(trace, tmp_path)
    assert (attributes(node)["group"], attributes(node)["dilations"]) == (4, [2, 2])
    assert [shape[name] for name in (*node.input, *node.output)] == [(3, 4, 9, 9), (8, 1, 3, 3), (3, 8, 5, 5)]
    (layer,) = read_layer_map(tmp_path)
    assert (layer.macs, layer.executions) == (5_400, (ran["x2b"], ran["conv"], ran["y2s"]))


def test_the_gradients_of_a_dilated_depthwise_convolution(tmp_path: Path) -> None:
    trace, _ = dilated_depthwise(training=True)
    report = export(trace, tmp_path)
    model = read(tmp_path)
    assert [node.op_type for node in model.graph.node] == ["Conv", "Conv", "ConvTranspose"]
    assert [layer.macs for layer in report.layers] == [5_400] * 3
    assert inferred(model) == {name: shape for name, shape in shapes(model).items() if name.endswith("_result")}


def test_channels_first_gives_the_same_model(tmp_path: Path) -> None:
    """C17 with unequal sides."""
    content = []
    for name, image, output in (("NCHW", [3, 4, 9, 8], [3, 8, 7, 7]), ("NHWC", [3, 9, 8, 4], [3, 7, 7, 8])):
        program = Program()
        program.convolution("c", image, [3, 2, 4, 8], output, data_format=name)
        export(program.trace(), tmp_path / name)
        content.append((tmp_path / name / "test.onnx").read_bytes())
    assert content[0] == content[1]


def test_a_loop_keeps_its_length(tmp_path: Path) -> None:
    """B7: a recurrent product [2, 4] x [4, 4] that runs 5 times is one node with count 5: 5 * 32 MACs."""
    program = Program()
    a, b = program.input("a", [2, 4]), program.input("b", [4, 4])
    ran = [program.op("rnn/MatMul", "MatMul", [a, b], [2, 4], {}) for _ in range(5)]
    (layer,) = export(program.trace(), tmp_path).layers
    assert (layer.count, layer.macs, layer.executions) == (5, 160, tuple(ran))


def test_branches_that_never_ran_are_not_exported(tmp_path: Path) -> None:
    program = Program()
    program.product("taken", [2, 3], [3, 4], [2, 4])
    program.builder.node("auxiliary/MatMul", "MatMul")
    export(program.trace(), tmp_path)
    assert [node.name for node in read(tmp_path).graph.node] == ["taken"]


# --- the graph ------------------------------------------------------------------------------------------------------------------------


def test_layers_are_linked_where_the_shape_is_the_same(tmp_path: Path) -> None:
    """conv1 -> ReLU -> conv2, dense -> softmax -> dense/dx (the other way round), and pooled or exchanged operands are inputs."""
    report = export(chain(), tmp_path)
    model = read(tmp_path)
    made = {name: node.name for node in model.graph.node for name in node.output}
    links = {(node.name, made[name]) for node in model.graph.node for name in node.input if name in made}
    assert links == {("conv2", "conv1"), ("dense_dx", "dense"), ("dense_dw", "dense")}
    # dense reads what was pooled; dense/dw reads that transposed; conv2/dw exchanges both; conv2/dx reads what was pooled.
    assert any(text.startswith("5 operands that a layer made are inputs of the graph") for text in report.approximations)
    assert [output.name for output in model.graph.output] == ["conv2_result", "dense_dx_result", "dense_dw_result", "conv2_dw_result",
                                                              "conv2_dx_result"]  # fmt: skip
    assert inferred(model) == {name: shape for name, shape in shapes(model).items() if name.endswith("_result")}


def test_what_is_read_twice_is_one_input(tmp_path: Path) -> None:
    """The filter of conv2 and of its input gradient is one tensor, and so are the columns that dense and dense/dx read differently not."""
    export(chain(), tmp_path)
    by_name = {node.name: node for node in read(tmp_path).graph.node}
    assert by_name["conv2"].input[1] == by_name["conv2_dx"].input[1] == "conv2_filter"
    assert by_name["dense"].input[1] != by_name["dense_dx"].input[1]


def test_a_transposed_operand_is_not_linked(tmp_path: Path) -> None:
    """[4, 4] transposed has the shape of the result that it comes from, but is another matrix."""
    for flag, links in ((False, 1), (True, 0)):
        program = Program()
        first = program.product("a", [4, 4], [4, 4], [4, 4])
        weights = program.input("w", [4, 4])
        program.op("b", "MatMul", [first, weights], [4, 4], {"transpose_a": flag})
        export(program.trace(), tmp_path / str(flag))
        assert EXPORTER.check(tmp_path / str(flag)).facts["links"] == links


def test_models_of_one_output_each(tmp_path: Path) -> None:
    """chain: dense is read by dense/dx and dense/dw, so it is a result of its own model and an input of theirs; conv1 and conv2 are one."""
    report = export(chain(), tmp_path, models="one_output")
    assert [layer.place for layer in report.layers] == [
        "test_0.onnx:node 0", "test_0.onnx:node 1", "test_1.onnx:node 0", "test_2.onnx:node 0", "test_3.onnx:node 0", "test_4.onnx:node 0",
        "test_5.onnx:node 0",
    ]  # fmt: skip
    for file in report.files:
        model = read(tmp_path, file.removesuffix(".onnx"))
        assert len(model.graph.output) == 1
        results = {name for node in model.graph.node for name in node.output}
        assert inferred(model) == {name: shape for name, shape in shapes(model).items() if name in results}
    assert "dense_result" in {value.name for value in read(tmp_path, "test_2").graph.input}
    assert EXPORTER.check(tmp_path).facts["nodes"] == 7


def test_the_cost_of_stream_is_estimated(tmp_path: Path) -> None:
    """chain: three products of 1 s, two convolutions and two gradients of 4 to 15 s, one of the gradients a product: 16 to 49 s."""
    report = export(chain(), tmp_path, models="one_output", input_gradient="product")
    (note,) = (note for note in report.notes if note.startswith("run Stream"))
    assert note.startswith("run Stream (6 models, about 16.0 s to 49.0 s of CPU time): python -c")
    program = Program()
    program.product("m", [2, 3], [3, 4], [2, 4])
    (note,) = (note for note in export(program.trace(), tmp_path / "product").notes if note.startswith("run Stream"))
    assert note.startswith("run Stream (1 model, about 1.00 s of CPU time): python -c")


def test_what_keeps_stream_from_a_model_is_said(tmp_path: Path) -> None:
    report = export(chain(), tmp_path)
    assert (
        "Stream does not take ConvTranspose (--set input_gradient=product), nor several outputs (--set models=one_output)"
        in report.notes
    )
    program = Program()
    program.convolution("v", [1, 4, 5, 6, 3], [2, 3, 2, 3, 8], [1, 3, 3, 5, 8], "Conv3D")
    report = export(program.trace(), tmp_path / "volume", dtype="float64")
    assert (
        "Stream does not take a convolution of three axes (select other layers),"
        " nor values of 64 bits or unsigned ones (--set dtype=float32)" in report.notes
    )


def test_a_result_read_twice_in_one_model_stays_inside(tmp_path: Path) -> None:
    """a is read by b and c, whose product is d: one model, although a has two readers."""
    program = Program()
    w = program.input("w", [4, 4])
    a = program.op("a", "MatMul", [program.input("x", [4, 4]), w], [4, 4], {})
    b, c = program.op("b", "MatMul", [a, w], [4, 4], {}), program.op("c", "MatMul", [a, w], [4, 4], {})
    program.op("d", "MatMul", [b, c], [4, 4], {})
    report = export(program.trace(), tmp_path, models="one_output")
    assert [layer.place for layer in report.layers] == [f"test_0.onnx:node {i}" for i in range(4)]


def test_weights_are_inputs_or_zeros(tmp_path: Path) -> None:
    """Filters and right operands that no layer made: 24 * 4 * 4 = 384 bytes in the model, 4 * 64 * 16 = 4,096 bytes beside it."""
    program = Program()
    program.convolution("c", [1, 6, 5, 4], [3, 2, 4, 4], [1, 4, 4, 4])
    program.product("m", [2, 64], [64, 16], [2, 16])
    program.product("n", [2, 48], [48, 16], [2, 16])
    trace = program.trace()
    export(trace, tmp_path / "inputs")
    assert len(read(tmp_path / "inputs").graph.input) == 6
    assert not (tmp_path / "inputs" / "test.weights").exists()
    report = export(trace, tmp_path / "zeros", weights="zeros")
    assert report.files == ("test.onnx", "test.weights")
    assert (tmp_path / "zeros" / "test.weights").read_bytes() == bytes(4_096)
    model = read(tmp_path / "zeros")
    assert [value.name for value in model.graph.input] == ["c_input", "m_left", "n_left"]
    numpy_helper = package().numpy_helper
    values = {t.name: numpy_helper.to_array(t, base_dir=str(tmp_path / "zeros")) for t in model.graph.initializer}
    assert {name: value.shape for name, value in values.items()} == {
        "c_filter": (4, 4, 3, 2),
        "m_right": (64, 16),
        "n_right": (48, 16),
    }
    assert not any(value.any() for value in values.values())


@pytest.mark.parametrize(
    ("dtype", "number", "opset"), [("float32", 1, 17), ("float16", 10, 17), ("float64", 11, 17), ("bfloat16", 16, 22)]
)
def test_types(tmp_path: Path, dtype: str, number: int, opset: int) -> None:
    """bfloat16 convolutions came with opset 22."""
    hand = Hand()
    x, w = hand.feed("x", (1, 6, 5, 4), dtype), hand.feed("w", (3, 2, 4, 4), dtype)
    hand.op("c", "Conv2D", x, w, shape=(1, 4, 4, 4), dtype=dtype, strides=[1, 1, 1, 1], padding="VALID")
    trace = hand.build([10] * 3)
    for folder, settings in (("traced", {}), ("asked", {"dtype": dtype})):
        export(trace, tmp_path / folder, **settings)
        model = read(tmp_path / folder, "handmade")
        assert {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)} == {number}
        assert [o.version for o in model.opset_import] == [opset]


def test_types_that_an_operator_does_not_take_are_skipped_with_a_reason(tmp_path: Path) -> None:
    """Conv takes no int8, Gemm takes int32, and operands of two types are no operator's."""
    hand = Hand()
    x, w = hand.feed("x", (1, 6, 5, 4), "int8"), hand.feed("w", (3, 2, 4, 4), "int8")
    hand.op("c", "Conv2D", x, w, shape=(1, 4, 4, 4), dtype="int32", strides=[1, 1, 1, 1], padding="VALID")
    a, b = hand.feed("a", (2, 3), "int32"), hand.feed("b", (3, 4), "int32")
    hand.op("m", "MatMul", a, b, shape=(2, 4), dtype="int32")
    trace = hand.build([10] * 6)
    report = export(trace, tmp_path / "traced")
    assert [layer.name for layer in report.layers] == ["m"]
    (skipped,) = (s for s in report.skipped if s.op == "Conv2D")
    assert (skipped.macs, skipped.time_ns) == (16 * 4 * 24, 10.0)
    assert skipped.reason == "Conv of int8 and int32 is not in ONNX; --set dtype=float32 would write it as that"
    assert len(export(trace, tmp_path / "asked", dtype="float32").layers) == 2


def test_identical_layers_are_merged_on_request(tmp_path: Path) -> None:
    program = Program()
    for name in ("a", "b"):
        program.convolution(name, [2, 9, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8])
    program.convolution("c", [2, 15, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8], strides=[1, 2, 1, 1])
    report = export(program.trace(), tmp_path, unique="true")
    assert [(layer.name, layer.count, layer.macs) for layer in report.layers] == [("a", 2, 2 * 98 * 8 * 24), ("c", 1, 98 * 8 * 24)]
    assert len(read(tmp_path).graph.node) == 2


def test_a_trace_without_products_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nothing of the trace has a loop nest .*; what may multiply: 1 x OpB"):
        EXPORTER.write(diamond(), tmp_path, EXPORTER.Options())


# --- the real package ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowering", ["conv_transpose", "product"])
def test_shape_inference_agrees_on_random_layers(tmp_path: Path, lowering: str) -> None:
    """300 random convolutions of every kind and 60 products: shapes as the package infers them, and a brute-force count."""
    trace, expected = random_layers(106)
    report = export(trace, tmp_path, input_gradient=lowering)
    model = read(tmp_path)
    shape = shapes(model)
    assert inferred(model) == {name: extents for name, extents in shape.items() if name.endswith("_result")}
    nodes = {layer.executions[0]: node for layer, node in zip(report.layers, model.graph.node, strict=True)}
    refused = 0
    for layer in expected:
        case, counted = layer.case, layer.counted
        node = nodes.get(layer.execution)
        if node is None:
            assert layer.role == "filter_grad"
            refused += 1
            continue
        left, right, result = (shape[name] for name in (*node.input, *node.output))
        if isinstance(case, Product):
            assert result == (*broadcast(case.left_batch, case.right_batch), case.m, case.n)
            assert (prod(left), prod(right)) == (counted.left, counted.right)  # type: ignore[union-attr]
            assert prod(result) * left[-1] == counted.macs
            continue
        assert isinstance(counted, Counted)
        channels, filters = case.groups * case.channels, case.groups * case.filters
        if node.op_type in ("Gemm", "MatMul"):
            assert (layer.role, lowering) == ("input_grad", "product")
            assert prod(result) * left[-1] == counted.macs
            assert (prod(left), prod(right)) == (counted.outputs, counted.filters)
            continue
        got = attributes(node)
        assert got["group"] == case.groups
        strides, dilations = ("dilations", "strides") if layer.role == "filter_grad" else ("strides", "dilations")
        assert (got[strides], got[dilations]) == (list(case.stride), list(case.dilation))
        begin = [pads[0] for pads in case.pads]
        assert got["pads"][: len(begin)] == begin
        if layer.role == "forward":
            assert (left, result) == ((case.batch, channels, *case.size), (case.batch, filters, *counted.output))
            assert prod(right) == counted.filters
            assert prod(result) * prod(right[1:]) == counted.macs
        elif layer.role == "input_grad":
            assert (left, result) == ((case.batch, filters, *counted.output), (case.batch, channels, *case.size))
            assert prod(right) == counted.filters
            assert prod(left) * prod(right[1:]) == counted.macs
        else:
            assert right == (filters, case.batch, *counted.output)
            assert (result, prod(result)) == ((case.channels, filters, *case.kernel), counted.filters)
            assert prod(result) * prod(right[1:]) == counted.macs
            assert left[:2] == (case.channels, case.groups * case.batch)
            assert all(n <= size for n, size in zip(left[2:], case.size, strict=True))
            assert prod(left) >= counted.inputs
    assert refused == len(expected) - len(nodes) < 10


def every_multiplication(case: Case, visit: Callable[..., None]) -> None:
    """Call `visit(image index, filter index, output index)` for every multiplication of a convolution, channels first."""
    outputs = count(case).output
    for n, g, k, c in product(range(case.batch), range(case.groups), range(case.filters), range(case.channels)):
        for o in product(*map(range, outputs)):
            for r in product(*map(range, case.kernel)):
                at = tuple(i * s + j * d - p[0] for i, j, s, d, p in zip(o, r, case.stride, case.dilation, case.pads, strict=True))
                if all(0 <= a < size for a, size in zip(at, case.size, strict=True)):
                    visit((n, g * case.channels + c, *at), (g * case.filters + k, c, *r), (n, g * case.filters + k, *o))


@pytest.mark.parametrize("seed", range(24))
def test_the_operators_compute_what_the_layers_computed(tmp_path: Path, seed: int) -> None:
    """A random convolution and both gradients by the package's own reference evaluator, against sums over every multiplication."""
    chance = random.Random(seed)
    while True:
        case = random_case(chance)
        counted = count(case)
        if 0 < counted.macs <= 3_000 and counted.inputs and len(case.size) == 2:
            break
    # The reference evaluator of ConvTranspose does not take groups (onnx 1.23.2).
    roles = ["forward", "filter_grad"] + ["input_grad"] * (case.groups == 1)
    program = Program()
    for role in roles:
        add(program, role, case, counted.output, role)
    report = export(program.trace(), tmp_path)
    model = read(tmp_path)
    rng = np.random.default_rng(seed)
    channels, filters = case.groups * case.channels, case.groups * case.filters
    x = rng.standard_normal((case.batch, channels, *case.size)).astype(np.float32)
    w = rng.standard_normal((filters, case.channels, *case.kernel)).astype(np.float32)
    dy = rng.standard_normal((case.batch, filters, *counted.output)).astype(np.float32)
    y, dw, dx = np.zeros(dy.shape), np.zeros(w.shape), np.zeros(x.shape)

    def visit(i: tuple[int, ...], f: tuple[int, ...], o: tuple[int, ...]) -> None:
        y[o] += float(x[i]) * float(w[f])
        dw[f] += float(x[i]) * float(dy[o])
        dx[i] += float(w[f]) * float(dy[o])

    every_multiplication(case, visit)
    # The filter gradient's image: channels of a group become images, images become channels; the gradient's images become channels.
    grouped = x.reshape(case.batch, case.groups, case.channels, *case.size)
    exchanged = np.moveaxis(grouped, 2, 0).transpose(0, 2, 1, 3, 4).reshape(case.channels, case.groups * case.batch, *case.size)
    gradient = dy.transpose(1, 0, 2, 3)
    feeds = {
        "forward_input": x, "forward_filter": w, "input_grad_output": dy, "input_grad_filter": w,
        "filter_grad_input": exchanged, "filter_grad_output": gradient,
    }  # fmt: skip
    wanted = shapes(model)
    feeds = {
        name: np.ascontiguousarray(value[tuple(slice(n) for n in wanted[name])]) for name, value in feeds.items() if name in wanted
    }
    found = dict(zip((v.name for v in model.graph.output), reference.ReferenceEvaluator(model).run(None, feeds), strict=True))
    assert [layer.name for layer in report.layers] == roles
    np.testing.assert_allclose(found["forward_result"], y, rtol=1e-3, atol=1e-3)
    if "input_grad" in roles:
        np.testing.assert_allclose(found["input_grad_result"], dx, rtol=1e-3, atol=1e-3)
    # [C, G * K, R, S] is the filter [G * K, C, R, S] with the first two exchanged.
    np.testing.assert_allclose(found["filter_grad_result"], dw.transpose(1, 0, 2, 3), rtol=1e-3, atol=1e-3)


# --- its own parser --------------------------------------------------------------------------------------------------------------------


def damage(folder: Path, change: Callable[[Any], None]) -> tuple[str, ...]:
    """Change a good model, and what `check` then says."""
    export(chain(), folder)
    model = schema.ModelProto()
    model.ParseFromString((folder / "test.onnx").read_bytes())
    change(model)
    (folder / "test.onnx").write_bytes(model.SerializeToString())
    problems: tuple[str, ...] = EXPORTER.check(folder).problems
    return problems


def attribute(model: Any, node: int, name: str) -> Any:
    return next(a for a in model.graph.node[node].attribute if a.name == name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: setattr(m, "ir_version", 3), "has IR version 3"),
        (lambda m: setattr(m.opset_import[0], "version", 7), "which this exporter does not write"),
        (lambda m: setattr(m.graph.node[0], "op_type", "Relu"), "is no Conv, ConvTranspose, Gemm or MatMul of two operands"),
        (lambda m: m.graph.node[0].input.append("x"), "is no Conv, ConvTranspose, Gemm or MatMul of two operands"),
        (lambda m: setattr(m.graph.node[1], "name", "conv1"), "has no name of its own"),
        (lambda m: m.graph.node.pop(), "has 6 nodes, export.json has 7 layers"),
        (lambda m: m.graph.node[1].input.__setitem__(0, "nothing"), "which is declared nowhere before or made twice"),
        (lambda m: m.graph.node[1].input.__setitem__(0, "conv2_result"), "which is declared nowhere before or made twice"),
        (lambda m: m.graph.input.add().CopyFrom(m.graph.input[0]), "declares conv1_input twice"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 0), "every extent must be known and positive"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 10), "has operands of the element types [1, 10]"),
        (lambda m: setattr(m.graph.value_info[0].type.tensor_type.shape.dim[2], "dim_value", 5), "the model says (2, 4, 5, 5)"),
        (lambda m: attribute(m, 0, "strides").ints.__setitem__(0, 2), "Conv gives (2, 4, 3, 5), the model says (2, 4, 6, 5)"),
        (lambda m: setattr(attribute(m, 0, "group"), "i", 3), "Conv gives nothing for such operands"),
        (lambda m: attribute(m, 6, "output_padding").ints.__setitem__(0, 1), "ConvTranspose gives (2, 4, 7, 5)"),
        (lambda m: m.graph.node[0].attribute.pop(), "which are not those of Conv"),
        (lambda m: m.graph.output.pop(), "which is declared nowhere before or made twice"),
        (lambda m: m.graph.input.add(name="spare").type.tensor_type.shape.dim.add(dim_value=1), "nothing reads spare"),
        (lambda m: (attribute(m, 0, "pads").ints.__setitem__(0, 0), attribute(m, 0, "pads").ints.__setitem__(2, 2)),
         "height padding before is 0, the trace has 1"),
    ],
)  # fmt: skip
def test_check_finds(tmp_path: Path, change: Callable[[Any], None], problem: str) -> None:
    problems = damage(tmp_path, change)
    assert any(problem in p for p in problems), problems


def test_a_transposed_kernel_is_found_although_it_keeps_the_macs(tmp_path: Path) -> None:
    """3 x 1 against 1 x 3 with the padding of the other axis: the shapes agree, the axes do not."""
    export(KNOWN["C10 rectangular"].trace(), tmp_path)
    model = schema.ModelProto()
    model.ParseFromString((tmp_path / "test.onnx").read_bytes())
    filter_shape = next(v for v in model.graph.input if v.name == "c_filter").type.tensor_type.shape
    for dimension, extent in zip(filter_shape.dim, (8, 4, 1, 3), strict=True):
        dimension.dim_value = extent
    attribute(model, 0, "kernel_shape").ints[:] = [1, 3]
    attribute(model, 0, "pads").ints[:] = [0, 1, 0, 1]
    (tmp_path / "test.onnx").write_bytes(model.SerializeToString())
    problems = EXPORTER.check(tmp_path).problems
    assert "test.onnx: c: height kernel is 1, the trace has 3" in problems
    assert "test.onnx: c: width kernel is 3, the trace has 1" in problems


def test_check_finds_missing_weights(tmp_path: Path) -> None:
    program = Program()
    program.product("m", [2, 64], [64, 16], [2, 16])
    export(program.trace(), tmp_path, weights="zeros")
    (tmp_path / "test.weights").write_bytes(bytes(4_095))
    assert EXPORTER.check(tmp_path).problems == ("test.onnx: initializer m_right: test.weights does not have its 4096 bytes",)
    (tmp_path / "test.weights").unlink()
    assert not EXPORTER.check(tmp_path).ok


def test_check_compares_with_the_report(tmp_path: Path) -> None:
    export(chain(), tmp_path)
    content = json.loads((tmp_path / "export.json").read_text())
    for change, problem in (
        (lambda c: c["layers"].pop(), "test.onnx has 7 nodes, export.json has 6 layers"),
        (lambda c: c["layers"][0].update(macs=1), "4320 MACs in the file, 1 in the trace"),
        (lambda c: c["layers"][0].update(name="other"), "node 0 is conv1, export.json has other"),
        (lambda c: c["layers"][0]["facts"].pop("nest"), "export.json says too little of it"),
        (lambda c: c["layers"][0]["facts"].update(dtype="float16"), "its values are float32, the trace has float16"),
        (lambda c: c["layers"][0]["facts"]["nest"].update(role="input_grad"), "a Conv cannot stand for"),
        (lambda c: c["layers"][0].update(executions=c["layers"][1]["executions"]), "lists an execution twice"),
    ):
        changed = json.loads(json.dumps(content))
        change(changed)
        (tmp_path / "export.json").write_text(json.dumps(changed))
        found = EXPORTER.check(tmp_path).problems
        assert any(problem in p for p in found), found


# --- Stream ----------------------------------------------------------------------------------------------------------------------------

SMALL = ("C3a", "C3b", "C5 batch", "C6 unequal strides", "C10 rectangular", "C16 depthwise, multiplier 2", "C17 channels first",
         "asymmetric, H != W, R != S", "groups")  # fmt: skip


@pytest.mark.simulator
def test_stream_sees_the_loops_of_every_layer(tmp_path: Path) -> None:
    """Its loops multiply to the known multiply-accumulates, for convolutions of all kinds, both gradients and products."""
    traces = {f"conv{i}": (KNOWN[name].trace(), KNOWN[name].macs) for i, name in enumerate(SMALL)}
    for i, known in enumerate(GRADIENTS.values()):
        for op in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
            traces[f"{op}{i}"] = known.trace(op), known.macs
    traces |= {f"product{i}": (known.trace(), known.macs) for i, known in enumerate(PRODUCTS.values())}
    files = {}
    for name, (trace, macs) in traces.items():
        export(trace, tmp_path / name, name=name, input_gradient="product", weights="zeros")
        files[f"{name}/{name}.onnx"] = name, macs
    found = load_in_stream(tmp_path, *files)
    assert [row["file"] for row in found] == list(files)
    for row in found:
        name, macs = files[row["file"]]
        assert row["macs"] == macs, row
        (layer,) = read_layer_map(tmp_path / name)
        assert layer.macs == macs
    c6 = next(
        row for row in found if row["file"] == f"conv{SMALL.index('C6 unequal strides')}/conv{SMALL.index('C6 unequal strides')}.onnx"
    )
    # b, ox, oy, fx, fy, c, k: rows of the image are 2 oy + fy, columns ox + fx.
    assert c6["maps"][0].replace(" ", "") == "(d0,d1,d2,d3,d4,d5,d6)->(d0,d5,((d2*2)+d4),(d1+d3))"


@pytest.mark.simulator
def test_stream_refuses_what_the_notes_say_it_does(tmp_path: Path) -> None:
    """ConvTranspose is no operator of Stream: hence `input_gradient=product`."""
    export(GRADIENTS["B12 valid"].trace("Conv2DBackpropInput"), tmp_path)
    with pytest.raises(AssertionError, match="No parser registered for ONNX op type 'ConvTranspose'"):
        load_in_stream(tmp_path, "test.onnx")


@pytest.mark.simulator
def test_stream_evaluates_models_to_the_end(tmp_path: Path) -> None:
    """Two convolutions, one reading the other; a product; both gradients of a convolution with stride 2: by the command of the report.

    A model takes at least as long as 4 cores of 32 x 32 multipliers that never wait. The chain has
    16 x 16 x 16 x 9 x 8 + 16 x 16 x 16 x 9 x 16 multiply-accumulates, which are 216 cycles of 4,096 multipliers.
    """
    program = Program()
    same = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    x, w1, w2 = program.input("x", [1, 16, 16, 8]), program.input("w1", [3, 3, 8, 16]), program.input("w2", [3, 3, 16, 16])
    first = program.op("conv1", "Conv2D", [x, w1], [1, 16, 16, 16], same)
    program.op("conv2", "Conv2D", [program.op("relu", "Relu", [first], [1, 16, 16, 16]), w2], [1, 16, 16, 16], same)
    program.product("product", [8, 16], [16, 32], [8, 32])
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(kind, [2, 8, 8, 4], [3, 3, 4, 8], [2, 4, 4, 8], kind, strides=[1, 2, 2, 1], padding="SAME")
    report = export(program.trace(), tmp_path, weights="zeros", models="one_output", input_gradient="product")
    assert [layer.place for layer in report.layers] == [
        "test_0.onnx:node 0", "test_0.onnx:node 1", "test_1.onnx:node 0", "test_2.onnx:node 0", "test_3.onnx:node 0",
    ]  # fmt: skip
    cycles = evaluate_in_stream(report, tmp_path)
    macs = [report.layers[0].macs + report.layers[1].macs, *(layer.macs for layer in report.layers[2:])]
    assert macs[0] == 4_096 * 216
    assert all(work / 4_096 <= took < 1_000_000 for work, took in zip(macs, cycles, strict=True))
    found = EXPORTER.read_results(tmp_path / "results", read_layer_map(tmp_path), 2.0)
    assert set(found) == {e for layer in report.layers for e in layer.executions}
    assert sum(found.values()) == pytest.approx(2 * sum(cycles))
    # The two of the chain share its cycles as 8 : 16 channels.
    assert found[report.layers[1].executions[0]] == pytest.approx(2 * found[report.layers[0].executions[0]])


@pytest.mark.simulator
def test_stream_takes_one_output_only(tmp_path: Path) -> None:
    """Why there is `models=one_output`: of a model with two results, one goes nowhere."""
    program = Program()
    for name in ("a", "b"):
        program.product(name, [8, 16], [16, 32], [8, 32])
    report = export(program.trace(), tmp_path)
    (note,) = (note for note in report.notes if "Stream" in note)
    assert note == "Stream does not take several outputs (--set models=one_output)"
    with pytest.raises(AssertionError, match="ValueError"):
        evaluate_in_stream(replace(report, notes=(f"run Stream: {EXPORTER.RUN_STREAM.format(stem='test')}",)), tmp_path)


@pytest.mark.simulator
def test_the_example_closes_the_loop(tmp_path: Path) -> None:
    """A product of 30 us becomes one of less than 3 us, a ReLU of 10 us stays: 40 / 13 to 40 / 10 times faster, a quarter untouched."""
    save(dense(), tmp_path / "dense.h5")
    mapped, gained, untouched = run_example("stream_closes_the_loop.py", "stream", "dense.h5", tmp_path)
    assert mapped == "1 layers mapped for 1 executions"
    found = re.fullmatch(r"the whole step gets ([0-9.]+) times faster \(by Amdahl ([0-9.]+)\)", gained)
    assert found is not None
    assert all(40 / 13 < float(value) <= 4.0 for value in found.groups())
    assert untouched == "25.0% of the op time the accelerator never touched"


# --- results ---------------------------------------------------------------------------------------------------------------------------


def stream_result(folder: Path, cycles: object, *names: str) -> None:
    """A group of Stream's results, as far as it is read."""
    reports = folder / "allocation" / "reports"
    reports.mkdir(parents=True)
    (reports / "slot_latency_breakdown.yaml").write_text(f"totals:\n  overlap_cycles: 0\n  total_latency_cycles: {cycles}\n")
    (folder / "mapping.yaml").write_text("layers:\n" + "".join(f"- name: {name}\n" for name in names) + "fused_groups: []\n")


def two_products(folder: Path) -> None:
    """[2, 3] x [3, 4], 24 multiply-accumulates, three times; [2, 4] x [4, 9], 72."""
    program = Program()
    a, b = program.input("a", [2, 3]), program.input("b", [3, 4])
    for _ in range(3):
        first = program.op("m", "MatMul", [a, b], [2, 4], {})
    program.op("n", "MatMul", [first, program.input("c", [4, 9])], [2, 9], {})
    export(program.trace(), folder)


def test_a_group_s_cycles_are_shared_by_work(tmp_path: Path) -> None:
    """400 cycles of 0.5 ns for a group of 24 + 72 multiply-accumulates: 50 and 150 ns, the first for each of three executions."""
    two_products(tmp_path)
    stream_result(tmp_path / "results" / "test" / "group_0", 400, "m", "n")
    m, n = read_layer_map(tmp_path)
    found = EXPORTER.read_results(tmp_path / "results", [m, n], 0.5)
    assert found == {**dict.fromkeys(m.executions, 50.0), n.executions[0]: 150.0}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "is no folder with a slot_latency_breakdown.yaml"),
        ([(400, "m")], "has no result for n and 0 other layers"),
        ([(400, "m", "n"), (4, "n")], "has the layer n again after"),
        ([(400, "m", "other")], "has a layer other, which the export has not"),
        ([("many", "m", "n")], "say many cycles for layers ['m', 'n']"),
        ([(-1, "m", "n")], "say -1 cycles"),
        ([(".inf", "m", "n")], "say inf cycles"),
        ([(400,)], "is no result of Stream"),
        ([("[", "m")], "is no result of Stream"),
    ],
)
def test_damaged_results_are_named(tmp_path: Path, groups: list[tuple[Any, ...]], message: str) -> None:
    two_products(tmp_path)
    for i, (cycles, *names) in enumerate(groups):
        stream_result(tmp_path / "results" / f"group_{i}", cycles, *names)
    with pytest.raises(ExportError) as caught:
        EXPORTER.read_results(tmp_path / "results", read_layer_map(tmp_path), 1.0)
    assert message in str(caught.value)
    assert str(tmp_path / "results") in str(caught.value)
