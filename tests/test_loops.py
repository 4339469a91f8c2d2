"""Are loop nests those that the op computes? Against a brute-force convolution that counts, one multiplication at a time."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from fathom_trace.errors import TraceError
from fathom_trace.loops import (
    Axis,
    ConvolutionNest,
    GemmNest,
    examine,
    find_work,
    is_unknown,
    layers,
    loop_nest,
    nest_from_json,
)
from fathom_trace.trace import Trace
from tests.brute_force import add, count, random_case
from tests.program import Program, dilated_depthwise

NAMES = ("depth", "height", "width")


def convolution_nest(trace: Trace, execution: int) -> ConvolutionNest:
    nest = loop_nest(trace, execution)
    assert isinstance(nest, ConvolutionNest)
    return nest


def test_nests_equal_a_brute_force_count() -> None:
    """300 random convolutions and both gradients of each."""
    chance = random.Random(20160925)
    program, expected = Program(), []
    seen: set[str] = set()
    while len(expected) < 300:
        case = random_case(chance)
        counted = count(case)
        if not counted.macs:
            continue
        roles = [
            add(program, f"{len(expected)}/{role}", case, counted.output, role) for role in ("forward", "filter_grad", "input_grad")
        ]
        expected.append((case, counted, roles))
        seen |= {f"{len(case.size)}-D", case.padding, f"groups {case.groups}", f"depthwise {case.depthwise}"}
    assert {"2-D", "3-D", "VALID", "SAME", "EXPLICIT", "groups 1", "groups 3", "depthwise True"} <= seen
    trace = program.trace()
    for case, counted, roles in expected:
        for role, execution in zip(("forward", "filter_grad", "input_grad"), roles, strict=True):
            nest = convolution_nest(trace, execution)
            assert nest.role == role
            assert (nest.batch, nest.groups, nest.filters, nest.channels) == (case.batch, case.groups, case.filters, case.channels)
            assert [a.name for a in nest.axes] == list(NAMES[-len(case.size) :])
            assert tuple(a.output for a in nest.axes) == counted.output
            assert [(a.input, a.kernel, a.stride, a.dilation) for a in nest.axes] == list(
                zip(case.size, case.kernel, case.stride, case.dilation, strict=True)
            )
            assert [(a.pad_begin, a.pad_end) for a in nest.axes] == case.pads
            assert nest.macs == counted.macs
            assert nest.as_gemm().macs == counted.macs
            assert nest.input_elements_read == counted.inputs
            assert nest.input_elements_with_padding == counted.inputs_with_padding
            assert nest.filter_elements == counted.filters
            assert nest.output_elements == counted.outputs
            assert nest_from_json(nest.to_json()) == nest


def test_every_lowering_is_the_convolution() -> None:
    """Multiply random operands by im2col as `as_gemm` says, and compare with the convolution computed by its definition."""
    chance, numbers = random.Random(7), np.random.default_rng(7)
    for _ in range(40):
        case = replace(random_case(chance), groups=1)
        pads, strides, dilations = case.pads, case.stride, case.dilation
        output = count(case).output
        if not prod(output):
            continue
        x = numbers.integers(-4, 5, (case.batch, *case.size, case.channels))
        w = numbers.integers(-4, 5, (*case.kernel, case.channels, case.filters))
        dy = numbers.integers(-4, 5, (case.batch, *output, case.filters))
        padded = np.pad(x, [(0, 0), *pads, (0, 0)])
        y, dw, dx = np.zeros_like(dy), np.zeros_like(w), np.zeros_like(padded)
        columns = np.zeros((case.batch, *output, *case.kernel, case.channels), int)
        for o in itertools.product(*map(range, output)):
            for r in itertools.product(*map(range, case.kernel)):
                at = (slice(None), *(i * s + j * d for i, j, s, d in zip(o, r, strides, dilations, strict=True)))
                here = (slice(None), *o)
                y[here] += padded[at] @ w[r]
                dw[r] += padded[at].T @ dy[here]
                dx[at] += dy[here] @ w[r].T
                columns[(slice(None), *o, *r)] = padded[at]
        program = Program()
        executions = [
            add(program, role, replace(case, depthwise=False), output, role) for role in ("forward", "filter_grad", "input_grad")
        ]
        forward, filter_grad, input_grad = (convolution_nest(t, e).as_gemm() for t in [program.trace()] for e in executions)
        assert forward.repeats == filter_grad.repeats == input_grad.repeats == 1
        unrolled = columns.reshape(forward.m, forward.k)
        assert np.array_equal(unrolled @ w.reshape(forward.k, forward.n), y.reshape(forward.m, forward.n))
        assert (filter_grad.m, filter_grad.k) == unrolled.T.shape
        assert np.array_equal(unrolled.T @ dy.reshape(filter_grad.k, filter_grad.n), dw.reshape(filter_grad.m, filter_grad.n))
        taps = (dy.reshape(input_grad.m, input_grad.k) @ w.reshape(input_grad.n, input_grad.k).T).reshape(columns.shape)
        summed = np.zeros_like(padded)
        for o in itertools.product(*map(range, output)):
            for r in itertools.product(*map(range, case.kernel)):
                at = (slice(None), *(i * s + j * d for i, j, s, d in zip(o, r, strides, dilations, strict=True)))
                summed[at] += taps[(slice(None), *o, *r)]
        assert np.array_equal(summed, dx)


def one(add_op: Any) -> Any:
    """The nest, or the reason for none, of a program of one op."""
    program = Program()
    execution = add_op(program)
    return examine(program.trace(), execution)


# --- cases that people ran into ---------------------------------------------------------------------------------------------------


def test_height_and_width_are_not_swapped() -> None:
    """C10: x [1, 9, 7, 4], kernel (3, 1), SAME, 8 filters: 9 * 7 * 3 * 1 * 4 * 8 = 6,048."""
    nest = one(lambda p: p.convolution("c", [1, 9, 7, 4], [3, 1, 4, 8], [1, 9, 7, 8], padding="SAME"))
    assert nest.height == Axis("height", input=9, output=9, kernel=3, pad_begin=1, pad_end=1)
    assert nest.width == Axis("width", input=7, output=7, kernel=1)
    assert nest.macs == 6_048


def test_channels_first_is_read_as_such() -> None:
    """C17: in [3, 4, 9, 9], kernel HWIO [3, 3, 4, 8], SAME: 3 * 9 * 9 * 9 * 4 * 8 = 69,984, as its channels-last twin."""
    first = one(
        lambda p: p.convolution("c", [3, 4, 9, 9], [3, 3, 4, 8], [3, 8, 9, 9], padding="SAME", data_format="NCHW")
    )  # fmt: skip
    last = one(lambda p: p.convolution("c", [3, 9, 9, 4], [3, 3, 4, 8], [3, 9, 9, 8], padding="SAME", data_format="NHWC"))
    assert first == last
    assert (first.batch, first.channels, first.filters, first.macs) == (3, 4, 8, 69_984)


def test_gradients_cost_what_the_forward_pass_costs() -> None:
    """B12: x [3, 9, 9, 4], 3x3, stride 2, 8 filters: VALID 3 * 4 * 4 * 8 * 36 = 13,824; SAME (5x5) 21,600."""
    for padding, side, macs in (("VALID", 4, 13_824), ("SAME", 5, 21_600)):
        for kind in ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"):
            nest = one(
                lambda p, kind=kind, padding=padding, side=side: p.convolution(
                    "c", [3, 9, 9, 4], [3, 3, 4, 8], [3, side, side, 8], kind, padding=padding, strides=[1, 2, 2, 1]
                )
            )
            assert nest.macs == macs


def test_depthwise_is_not_dense() -> None:
    """C16: 3x3, multiplier 2, VALID on [3, 9, 9, 4]: 3 * 7 * 7 * 9 * 4 * 2 = 10,584; 3x3 on 112x112x32: 3,612,672."""
    nest = one(lambda p: p.convolution("c", [3, 9, 9, 4], [3, 3, 4, 2], [3, 7, 7, 8], "DepthwiseConv2dNative"))
    assert (nest.batch, nest.groups, nest.filters, nest.channels, nest.macs, nest.depthwise) == (3, 4, 2, 1, 10_584, True)
    large = one(
        lambda p: p.convolution("c", [1, 112, 112, 32], [3, 3, 32, 1], [1, 112, 112, 32], "DepthwiseConv2dNative", padding="SAME")
    )
    assert large.macs == 3_612_672


def test_groups_are_not_ignored() -> None:
    """AlexNet's second layer: 2 groups, 5x5, 27x27, 96 to 256 channels: 27 * 27 * 256 * 25 * 48 = 223,948,800."""
    nest = one(lambda p: p.convolution("c", [1, 27, 27, 96], [5, 5, 48, 256], [1, 27, 27, 256], padding="SAME"))
    assert (nest.groups, nest.channels, nest.filters, nest.macs) == (2, 48, 128, 223_948_800)
    assert nest.as_gemm().repeats == 2


def test_published_layers() -> None:
    """VGG conv1_1: 224 * 224 * 64 * 27; AlexNet conv1: 55 * 55 * 96 * 363."""
    vgg = one(lambda p: p.convolution("c", [1, 224, 224, 3], [3, 3, 3, 64], [1, 224, 224, 64], padding="SAME"))
    alexnet = one(lambda p: p.convolution("c", [1, 227, 227, 3], [11, 11, 3, 96], [1, 55, 55, 96], strides=[1, 4, 4, 1]))
    assert (vgg.macs, alexnet.macs) == (86_704_128, 105_415_200)


def test_products_use_shapes_after_transposition() -> None:
    """B1, B2 and C11: [7, 3] x [3, 5]; a[3, 7] transposed, b[3, 5]; dW = transpose(x[4, 6]) dy[4, 5]."""
    assert one(lambda p: p.product("m", [7, 3], [3, 5], [7, 5])) == GemmNest("gemm", 7, 5, 3)
    assert one(lambda p: p.product("m", [3, 7], [3, 5], [7, 5], transpose_a=True)) == GemmNest("gemm", 7, 5, 3)
    assert one(lambda p: p.product("m", [4, 6], [4, 5], [6, 5], transpose_a=True)).macs == 120
    assert one(lambda p: p.product("m", [7, 3], [5, 3], [7, 5], transpose_b=True)) == GemmNest("gemm", 7, 5, 3)


def test_batched_products() -> None:
    """B3: a[2, 3, 7, 4] b[2, 3, 4, 5], and a[2, 1, 7, 4] b[3, 4, 5]: six products of 7 * 5 * 4 = 140, 840 in all."""
    full = one(lambda p: p.product("m", [2, 3, 7, 4], [2, 3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2"))
    broadcast = one(lambda p: p.product("m", [2, 1, 7, 4], [3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2"))
    for nest in (full, broadcast):
        gemm = nest.as_gemm()
        assert (gemm.m, gemm.n, gemm.k, gemm.repeats, nest.macs) == (7, 5, 4, 6, 840)
    assert (full.left_elements, full.right_elements, full.output_elements) == (168, 120, 210)
    assert (broadcast.left_elements, broadcast.right_elements, broadcast.output_elements) == (56, 60, 210)
    flipped = one(lambda p: p.product("m", [6, 4, 7], [6, 5, 4], [6, 7, 5], "BatchMatMulV2", adj_x=True, adj_y=True))
    assert (flipped.m, flipped.n, flipped.k, flipped.batch) == (7, 5, 4, 6)
    shared = one(lambda p: p.product("m", [6, 7, 4], [4, 5], [6, 7, 5], "BatchMatMulV2"))
    assert (shared.as_gemm().m, shared.as_gemm().repeats, shared.macs) == (42, 1, 840)
    heads = one(lambda p: p.product("m", [12, 197, 64], [12, 64, 197], [12, 197, 197], "BatchMatMulV2"))
    assert heads.macs == 29_805_312


@pytest.mark.parametrize(
    ("equation", "left", "right", "output", "product", "repeats"),
    [
        ("ab,bc->ac", (7, 4), (4, 5), (7, 5), (7, 5, 4), 1),
        ("aecd,abcd->acbe", (2, 3, 4, 5), (2, 6, 4, 5), (2, 4, 6, 3), (3, 6, 5), 8),
        ("abc,cde->abde", (2, 3, 4), (4, 5, 6), (2, 3, 5, 6), (6, 30, 4), 1),
        ("...ij,...jk->...ik", (2, 1, 7, 4), (3, 4, 5), (2, 3, 7, 5), None, None),
        ("bij,bjk->bik", (6, 7, 4), (6, 4, 5), (6, 7, 5), (7, 5, 4), 6),
    ],
)
def test_einsum_is_a_batched_product(equation: str, left: Any, right: Any, output: Any, product: Any, repeats: Any) -> None:
    """The result has as many elements, and each sums as many products, as numpy's einsum of ones says."""
    nest = one(lambda p: p.product("e", left, right, output, "Einsum", equation=equation))
    if product is not None:
        gemm = nest.as_gemm()
        assert ((gemm.m, gemm.n, gemm.k), gemm.repeats) == (product, repeats)
    ones = np.einsum(equation, np.ones(left), np.ones(right))
    assert nest.macs == ones.sum()
    assert nest.output_elements == ones.size


def test_einsum_that_is_no_product_says_so() -> None:
    assert "elementwise" in one(lambda p: p.product("e", [3, 4], [3, 4], [3, 4], "Einsum", equation="ab,ab->ab"))
    assert "diagonal" in one(lambda p: p.product("e", [3, 3], [3, 4], [3, 4], "Einsum", equation="aa,ab->ab"))
    with pytest.raises(TraceError, match=r"Einsum 'e': equation 'ab,bc->ac' on \(3, 4\) and \(4, 5\) does not give \(3, 6\)"):
        one(lambda p: p.product("e", [3, 4], [4, 5], [3, 6], "Einsum", equation="ab,bc->ac"))


# --- dilation by SpaceToBatchND ---------------------------------------------------------------------------------------------------


def test_space_to_batch_is_a_dilated_convolution() -> None:
    """N=3, G=4, K=2, C=1, 5 x 5 outputs, dilation 2: 3 * 4 * 2 * 25 * 9 = 5,400; the executed op alone has 12 * 8 * 9 * 9 = 7,776."""
    trace, ran = dilated_depthwise()
    (layer,), refused = layers(trace, 0)
    assert layer.nest.macs == 5_400
    assert isinstance(layer.nest, ConvolutionNest)
    assert (layer.nest.batch, layer.nest.groups, layer.nest.filters, layer.nest.channels) == (3, 4, 2, 1)
    assert layer.nest.height == Axis("height", input=9, output=5, kernel=3, dilation=2)
    assert layer.nest.width == replace(layer.nest.height, name="width")
    assert layer.executions == (ran["x2b"], ran["conv"], ran["y2s"])
    assert refused == {}
    assert convolution_nest(trace, ran["conv"]).macs == 7_776


def test_gradients_of_a_dilated_convolution() -> None:
    """Each has the forward MACs; the SpaceToBatchND of the gradient, which both read, is counted once."""
    trace, ran = dilated_depthwise(training=True)
    found, _ = layers(trace, 0)
    assert [(layer.nest.role, layer.nest.macs) for layer in found] == [
        ("forward", 5_400),
        ("filter_grad", 5_400),
        ("input_grad", 5_400),
    ]
    assert len({str(layer.nest).split(" ", 2)[2].split("N=")[1] for layer in found}) == 1
    assert found[1].executions == (ran["dy2b"], ran["dw"])
    assert found[2].executions == (ran["dx"], ran["dx2s"])


def test_space_to_batch_with_padding() -> None:
    """C12, second: SAME, dilation 3, multiplier 1 on [3, 10, 10, 4]: 3 * 10 * 10 * 4 * 9 = 10,800 (executed: 15,552)."""
    program = Program()
    x, w = program.input("x", [3, 10, 10, 4]), program.input("w", [3, 3, 4, 1])
    block = program.constant("block", [3, 3])
    pads, crops = program.constant("pads", [[3, 5], [3, 5]]), program.constant("crops", [[0, 2], [0, 2]])
    inside = program.op("s", "SpaceToBatchND", [x, block, pads], [27, 6, 6, 4])
    attributes = {"strides": [1, 1, 1, 1], "padding": "VALID"}
    conv = program.op("c", "DepthwiseConv2dNative", [inside, w], [27, 4, 4, 4], attributes)
    program.op("b", "BatchToSpaceND", [conv, block, crops], [3, 10, 10, 4])
    trace = program.trace()
    (layer,), _ = layers(trace, 0)
    assert layer.nest.macs == 10_800
    assert convolution_nest(trace, conv).macs == 15_552
    assert isinstance(layer.nest, ConvolutionNest)
    assert layer.nest.height == Axis("height", input=10, output=10, kernel=3, dilation=3, pad_begin=3, pad_end=3)


# --- spellings, reasons and errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["Conv2D", "_FusedConv2D", "_MklConv2D", "_MklNativeConv2D", "_MklNativeFusedConv2D", "_MklNativeConv2DWithBias"]
)  # fmt: skip
def test_fused_and_onednn_spellings_are_the_same_layer(kind: str) -> None:
    nest = one(lambda p: p.convolution("c", [2, 9, 7, 4], [3, 2, 4, 8], [2, 4, 6, 8], kind, strides=[1, 2, 1, 1]))
    assert nest == one(lambda p: p.convolution("c", [2, 9, 7, 4], [3, 2, 4, 8], [2, 4, 6, 8], strides=[1, 2, 1, 1]))


@pytest.mark.parametrize(
    "kind", ["_FusedMatMul", "_MklMatMul", "_MklNativeFusedMatMul", "_MklBatchMatMulV2", "_MklFusedBatchMatMulV2"]
)
def test_fused_and_onednn_products(kind: str) -> None:
    assert one(lambda p: p.product("m", [7, 4], [4, 5], [7, 5], kind)).macs == 140


def test_a_pad_fused_into_a_convolution_is_its_padding() -> None:
    """3x3 stride 2 on 9x9 padded by (1, 2) and (0, 1): 5 and 4 outputs."""
    program = Program()
    x, w = program.input("x", [1, 9, 9, 4]), program.input("w", [3, 3, 4, 8])
    pads = program.constant("pads", [[0, 0], [1, 2], [0, 1], [0, 0]])
    attributes = {"strides": [1, 2, 2, 1], "padding": "VALID"}
    conv = program.op("c", "_MklNativePadWithConv2D", [x, w, pads], [1, 5, 4, 8], attributes)
    nest = convolution_nest(program.trace(), conv)
    assert (nest.height.pad_begin, nest.height.pad_end, nest.width.pad_begin, nest.width.pad_end) == (1, 2, 0, 1)
    assert nest.macs == 5 * 4 * 8 * 36


def test_generic_conv_op() -> None:
    """`Conv` names its layout otherwise."""
    nest = one(
        lambda p: p.convolution(
            "c", [2, 4, 9, 7], [3, 2, 4, 8], [2, 8, 7, 6], "Conv", data_format="CHANNELS_FIRST", groups=1, batch_dims=1
        )
    )
    assert (nest.height.output, nest.width.output, nest.macs) == (7, 6, 2 * 7 * 6 * 8 * 24)


def test_what_has_no_nest_has_a_reason() -> None:
    assert one(lambda p: p.op("r", "Relu", [], [3])) == "elementwise: neither a convolution nor a matrix product"
    assert "unknown" in one(lambda p: p.op("r", "BlockLSTMV2", [], [3]))
    assert "not in the trace" in one(lambda p: p.op("r", "StatefulPartitionedCall", [], [3]))
    assert "filter format OIHW" in one(
        lambda p: p.convolution("c", [1, 4, 4, 1], [3, 3, 1, 1], [1, 2, 2, 1], "_FusedConv2D", filter_format="OIHW")
    )
    assert "NCHW_VECT_C" in one(
        lambda p: p.convolution("c", [1, 1, 4, 4, 4], [3, 3, 1, 1], [1, 1, 2, 2, 4], data_format="NCHW_VECT_C")
    )
    assert is_unknown("CudnnRNNV3")
    assert is_unknown("XlaLaunch")
    assert not is_unknown("Conv2D")
    assert not is_unknown("LeakyReluGrad")
    assert loop_nest(*_relu()) is None


def _relu() -> tuple[Trace, int]:
    program = Program()
    execution = program.op("r", "Relu", [program.input("x", [3])], [3])
    return program.trace(), execution


@pytest.mark.parametrize(
    ("message", "arguments", "attributes"),
    [
        (
            "height: input 9, kernel 3, stride 2, dilation 1 and padding 0\\+0 give 4 outputs, not 5",
            ([1, 9, 9, 4], [3, 3, 4, 8], [1, 5, 4, 8]),
            {},
        ),
        ("width: .* give 5 outputs, not 4", ([1, 9, 9, 4], [3, 3, 4, 8], [1, 5, 4, 8]), {"padding": "SAME"}),
        ("height: .* give 2 outputs, not 4", ([1, 9, 9, 4], [3, 3, 4, 8], [1, 4, 4, 8]), {"strides": [1, 4, 2, 1]}),
        ("filter channels 3 to 8 do not fit 4 to 8 channels", ([1, 9, 9, 4], [3, 3, 3, 8], [1, 4, 4, 8]), {}),
        ("filter channels 4 to 8 do not fit 4 to 7 channels", ([1, 9, 9, 4], [3, 3, 4, 8], [1, 4, 4, 7]), {}),
        ("3 filters do not divide into 2 groups", ([1, 9, 9, 4], [3, 3, 2, 3], [1, 4, 4, 3]), {}),
        ("the batch is 2 on one side and 1 on the other", ([2, 9, 9, 4], [3, 3, 4, 8], [1, 4, 4, 8]), {}),
        ("padding is 'FULL', not SAME, VALID or EXPLICIT", ([1, 9, 9, 4], [3, 3, 4, 8], [1, 4, 4, 8]), {"padding": "FULL"}),
    ],
)
def test_shapes_that_contradict_the_attributes_are_an_error(message: str, arguments: Any, attributes: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=f"Conv2D 'c': {message}.*; the trace contradicts itself"):
        one(lambda p: p.convolution("c", *arguments, **{"strides": [1, 2, 2, 1], **attributes}))


def test_products_that_contradict_themselves_are_an_error() -> None:
    with pytest.raises(TraceError, match=r"MatMul 'm': operands \(7, 4\) and \(5, 4\) contract 4 with 5"):
        one(lambda p: p.product("m", [7, 4], [5, 4], [7, 4]))
    with pytest.raises(TraceError, match=r"give \(7, 5\), not \(5, 7\)"):
        one(lambda p: p.product("m", [7, 4], [4, 5], [5, 7]))
    with pytest.raises(TraceError, match="do not broadcast"):
        one(lambda p: p.product("m", [2, 7, 4], [3, 4, 5], [3, 7, 5], "BatchMatMulV2"))


def test_work_accounts_for_everything() -> None:
    """A loop that runs one product five times, a shape of extent 0, and two other ops."""
    program = Program()
    a, b = program.input("a", [2, 4]), program.input("b", [4, 4])
    for _ in range(5):
        program.op("loop/MatMul", "MatMul", [a, b], [2, 4], {}, ns=100)
    program.product("empty", [0, 4], [4, 5], [0, 5], ns=3)
    program.op("y", "Relu", [a], [2, 4], ns=7)
    work = find_work(program.trace())
    (group,) = work.groups
    assert [layer.nest.macs for layer in group] == [32] * 5
    assert work.time_ns(layer.execution for layer in group) == 500.0
    left = {(s.op, s.reason): (s.executions, s.time_ns) for s in work.skipped}
    assert left["MatMul", "an extent is 0: there is nothing to compute"] == (1, 3.0)
    assert left["Relu", "elementwise: neither a convolution nor a matrix product"] == (1, 7.0)
    assert sum(s.executions for s in work.skipped) + 5 == len(work.durations_ns)


def test_a_nest_that_is_none_is_refused() -> None:
    with pytest.raises(TraceError, match="this is no loop nest"):
        nest_from_json({"role": "forward", "batch": 1})
    with pytest.raises(TraceError, match="no matrix product has role"):
        GemmNest("forward", 1, 1, 1)
    with pytest.raises(TraceError, match="no axis is called 'time'"):
        Axis("time", 1, 1, 1)
