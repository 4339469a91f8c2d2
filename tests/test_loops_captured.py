"""Do the loop nests fit what TensorFlow itself runs: its padding rules, its gradients, its way to dilate?"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from fathom_trace.capture import Plan, capture
from fathom_trace.loops import Axis, ConvolutionNest, GemmNest, Layer, layers, loop_nest
from fathom_trace.trace import Trace
from tests.brute_force import Case, count, random_case

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
QUICK = Plan(steps=1, warmup=0)


def ones(*dims: int) -> np.ndarray[Any, Any]:
    return np.ones(dims, np.float32)


def capture_layers(function: Any, *args: Any) -> tuple[Trace, list[Layer]]:
    trace = capture(function, *args, plan=QUICK)
    found, refused = layers(trace, trace.main_structure)
    assert refused == {}
    return trace, found


def apply(case: Case, x: Any, w: Any) -> Any:
    """The case as a call of TensorFlow; channels last, which is what its CPU kernels know."""
    padding = [(0, 0), *case.pads, (0, 0)] if case.padding == "EXPLICIT" else case.padding
    if len(case.size) == 3:
        return tf.nn.conv3d(x, w, [1, *case.stride, 1], case.padding, dilations=[1, *case.dilation, 1])
    if case.depthwise:
        return tf.nn.depthwise_conv2d(x, w, [1, *case.stride, 1], padding, dilations=case.dilation)
    return tf.nn.conv2d(x, w, [1, *case.stride, 1], padding, dilations=case.dilation)


def supported(case: Case) -> bool:
    """What TensorFlow's CPU kernels take: no groups, no dilated depthwise with a stride, depthwise strides equal, ..."""
    plain = prod(case.dilation) == 1
    if len(case.size) == 3:
        return case.groups == 1 and plain and case.padding != "EXPLICIT"
    if case.depthwise:
        return plain and case.stride[0] == case.stride[1]
    return case.groups == 1


def nest_of(case: Case, role: str) -> ConvolutionNest:
    """The nest by the brute force's own rules for padding and output size."""
    extents = zip(case.size, count(case).output, case.kernel, case.stride, case.dilation, case.pads, strict=True)
    names = ("depth", "height", "width")[-len(case.size) :]
    axes = tuple(Axis(name, *rest, *pads) for name, (*rest, pads) in zip(names, extents, strict=True))
    return ConvolutionNest(role, case.batch, case.groups, case.filters, case.channels, axes)


def test_random_convolutions_and_gradients() -> None:
    """Extents are those of TensorFlow's kernels. With operands of ones, the outputs of a VALID convolution add up to its MACs."""
    chance = random.Random(17274)
    cases: list[Case] = []
    while len(cases) < 40:
        case = replace(random_case(chance), channels_last=True)
        if supported(case) and count(case).macs:
            cases.append(case)
    operands = [
        ones(*dims)
        for c in cases
        for dims in (
            (c.batch, *c.size, c.groups * c.channels),
            (*c.kernel, c.groups * c.channels, c.filters) if c.depthwise else (*c.kernel, c.channels, c.filters),
        )
    ]

    def program(*tensors: Any) -> list[Any]:
        results = []
        for case, x, w in zip(cases, tensors[::2], tensors[1::2], strict=True):
            y = apply(case, x, w)
            results.append(y)
            if prod(case.dilation) == 1:  # the CPU has no gradient of a dilated convolution
                results += tf.gradients(tf.reduce_sum(y), [w, x])
        return results

    _, found = capture_layers(program, *operands)
    expected = Counter(nest_of(case, "forward") for case in cases)
    for role in ("filter_grad", "input_grad"):
        expected += Counter(nest_of(case, role) for case in cases if prod(case.dilation) == 1)
    assert Counter(layer.nest for layer in found) == expected
    assert len(found) > 60
    for case, x, w in zip(cases, operands[::2], operands[1::2], strict=True):
        if case.padding == "VALID":
            assert float(tf.reduce_sum(apply(case, x, w))) == count(case).macs


@pytest.mark.parametrize(
    ("padding", "dilation", "multiplier", "size", "output", "macs"), [("valid", 2, 2, 9, 5, 5_400), ("same", 3, 1, 10, 10, 10_800)]
)
def test_a_dilated_depthwise_layer(padding: str, dilation: int, multiplier: int, size: int, output: int, macs: int) -> None:
    """C12: Keras runs three ops; they are one layer, and each gradient costs as much."""
    layer = tf.keras.layers.DepthwiseConv2D(3, dilation_rate=dilation, depth_multiplier=multiplier, padding=padding, use_bias=False)
    layer.build((3, size, size, 4))

    def program(x: Any) -> Any:
        y = layer(x)
        return y, tf.gradients(tf.reduce_sum(tf.square(y)), [x, layer.trainable_variables[0].value])

    trace, found = capture_layers(program, ones(3, size, size, 4))
    assert [(f.nest.role, f.nest.macs) for f in sorted(found, key=lambda f: f.nest.role)] == [  # type: ignore[union-attr]
        ("filter_grad", macs), ("forward", macs), ("input_grad", macs),
    ]  # fmt: skip
    forward = next(f for f in found if f.nest.role == "forward")
    pad = (3 - 1) * dilation // 2 if padding == "same" else 0
    assert isinstance(forward.nest, ConvolutionNest)
    assert (forward.nest.groups, forward.nest.filters, forward.nest.batch) == (4, multiplier, 3)
    assert forward.nest.height == Axis("height", size, output, 3, dilation=dilation, pad_begin=pad, pad_end=pad)
    ops = [trace.node_ops[int(trace.executions.node[e])] for e in forward.executions]
    assert ops == ["SpaceToBatchND", "DepthwiseConv2dNative", "BatchToSpaceND"]
    taken = [e for f in found for e in f.executions]
    assert len(taken) == len(set(taken))
    reshuffles = [e for e, n in enumerate(trace.executions.node.tolist()) if trace.node_ops[n] in ("SpaceToBatchND", "BatchToSpaceND")]
    assert set(reshuffles) <= set(taken)


def test_a_forward_transposed_convolution_is_an_input_gradient_by_structure() -> None:
    """Conv2DTranspose(3, 5x4, strides (2, 3), same) on [2, 6, 5, 4] gives [2, 12, 15, 3]: 2 * 6 * 5 * 4 * 5 * 4 * 3 MACs."""
    layer = tf.keras.layers.Conv2DTranspose(3, (5, 4), strides=(2, 3), padding="same", use_bias=False)
    layer.build((2, 6, 5, 4))
    _, (found,) = capture_layers(layer, ones(2, 6, 5, 4))
    nest = found.nest
    assert isinstance(nest, ConvolutionNest)
    assert (nest.role, nest.result_shape, nest.macs) == ("input_grad", (2, 12, 15, 3), 14_400)
    assert (nest.height.stride, nest.width.stride, nest.height.kernel, nest.width.kernel) == (2, 3, 5, 4)


def test_a_one_dimensional_convolution_has_height_one() -> None:
    """Conv1D(6, 3, strides 2, valid) on [2, 9, 4]: 4 outputs, 2 * 4 * 6 * 12 MACs."""
    layer = tf.keras.layers.Conv1D(6, 3, strides=2, use_bias=False)
    layer.build((2, 9, 4))
    _, (found,) = capture_layers(layer, ones(2, 9, 4))
    assert isinstance(found.nest, ConvolutionNest)
    assert (found.nest.height.input, found.nest.height.kernel, found.nest.width.output, found.nest.macs) == (1, 1, 4, 576)


def test_attention() -> None:
    """Two heads of 4 on [3, 5, 8]: four projections of 3 * 5 * 8 * 8, then 3 * 2 products of 5 x 5 x 4, twice."""
    layer = tf.keras.layers.MultiHeadAttention(2, 4, use_bias=False, flash_attention=False)
    layer.build((3, 5, 8), (3, 5, 8))
    trace, found = capture_layers(lambda x: layer(x, x), ones(3, 5, 8))
    assert sorted(f.nest.macs for f in found) == [600, 600, 960, 960, 960, 960]
    batched = [f.nest for f in found if f.nest.macs == 600]
    assert all(isinstance(n, GemmNest) and n.batch == 6 and n.as_gemm().repeats == 6 for n in batched)
    assert all(loop_nest(trace, f.execution) == f.nest for f in found)


def test_recurrent_products_are_one_per_step() -> None:
    """B7: Keras LSTM(4) on [2, 5, 3]: five products [2, 3] x [3, 16] and five [2, 4] x [4, 16]: 5 * (96 + 128) MACs."""
    layer = tf.keras.layers.LSTM(4)
    layer.build((2, 5, 3))
    _, found = capture_layers(layer, ones(2, 5, 3))
    assert sorted(f.nest.macs for f in found) == [96] * 5 + [128] * 5
