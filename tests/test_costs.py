"""Are MACs, FLOPs and bytes what the shapes say, counted by hand or by a slow method, and is what is not known said to be so?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace import cost_rules, ops, tables
from fathom_trace.builder import TraceBuilder
from fathom_trace.costs import Costs, costs
from fathom_trace.errors import TraceError
from fathom_trace.trace import Trace
from tests.handmade import Hand

Shape = tuple[int, ...]


def cost(op: str, inputs: Sequence[Shape | tuple[str, Shape]], outputs: Sequence[Shape | tuple[str, Shape]], **attributes: Any) -> Any:
    """(macs, flops, bytes read, bytes written) of one execution; None for one that is not known. Tensors are float32 by default."""
    hand = Hand()
    given = [_typed(tensor) for tensor in inputs]
    values = [hand.op(f"input{i}", "_Arg", shape=shape, dtype=dtype) for i, (dtype, shape) in enumerate(given)]
    hand.op("it", op, *values, outputs=[_typed(tensor) for tensor in outputs], **attributes)
    found = costs(hand.build())
    row = len(found) - 1
    return (
        int(found.macs[row]) if found.macs_known[row] else None,
        int(found.flops[row]) if found.flops_known[row] else None,
        int(found.bytes_read[row]) if found.bytes_known[row] else None,
        int(found.bytes_written[row]) if found.bytes_known[row] else None,
    )


def _typed(tensor: Any) -> tuple[str, Shape]:
    return tensor if tensor and isinstance(tensor[0], str) else ("float32", tensor)


def macs(op: str, inputs: Sequence[Any], outputs: Sequence[Any], **attributes: Any) -> Any:
    return cost(op, inputs, outputs, **attributes)[0]


def flops(op: str, inputs: Sequence[Any], outputs: Sequence[Any], **attributes: Any) -> Any:
    return cost(op, inputs, outputs, **attributes)[1]


# --- matrix products --------------------------------------------------------------------------------------------------------------


def test_flops_of_a_product_are_twice_its_macs() -> None:
    assert cost("MatMul", [(7, 3), (3, 5)], [(7, 5)])[:2] == (7 * 3 * 5, 2 * 7 * 3 * 5)


def test_inner_extent_is_taken_after_transposes() -> None:
    assert cost("MatMul", [(3, 7), (3, 5)], [(7, 5)], transpose_a=True)[:2] == (105, 210)
    assert cost("MatMul", [(7, 3), (5, 3)], [(7, 5)], transpose_b=True)[:2] == (105, 210)
    assert cost("MatMul", [(3, 7), (5, 3)], [(7, 5)], transpose_a=True, transpose_b=True)[:2] == (105, 210)


def test_a_weight_gradient_contracts_the_batch() -> None:
    assert macs("MatMul", [(4, 6), (4, 5)], [(6, 5)], transpose_a=True) == 6 * 5 * 4 == 120


@pytest.mark.parametrize("op", ["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"])
def test_batched_products_multiply_by_the_broadcast_batch(op: str) -> None:
    assert cost(op, [(2, 3, 7, 4), (2, 3, 4, 5)], [(2, 3, 7, 5)])[:2] == (840, 1680)
    assert cost(op, [(2, 1, 7, 4), (3, 4, 5)], [(2, 3, 7, 5)])[:2] == (840, 1680)
    assert cost(op, [(2, 3, 4, 7), (2, 3, 4, 5)], [(2, 3, 7, 5)], adj_x=True)[:2] == (840, 1680)


def test_published_sizes() -> None:
    assert macs("MatMul", [(128, 512), (512, 64)], [(128, 64)]) == 4_194_304
    assert macs("BatchMatMulV2", [(1, 12, 197, 64), (1, 12, 64, 197)], [(1, 12, 197, 197)]) == 29_805_312
    assert macs("Conv2D", [(1, 227, 227, 3), (11, 11, 3, 96)], [(1, 55, 55, 96)]) == 105_415_200
    assert macs("Conv2D", [(1, 27, 27, 96), (5, 5, 48, 256)], [(1, 27, 27, 256)]) == 223_948_800
    assert macs("DepthwiseConv2dNative", [(1, 112, 112, 32), (3, 3, 32, 1)], [(1, 112, 112, 32)]) == 3_612_672


def einsum_products(equation: str, shapes: Sequence[Shape]) -> int:
    """Multiplications of a contraction without repeated or lonely labels, counted by looping over all labels."""
    terms = equation.split("->")[0].split(",")
    extents = {label: extent for term, shape in zip(terms, shapes, strict=True) for label, extent in zip(term, shape, strict=True)}
    return sum(1 for _ in itertools.product(*(range(extent) for extent in extents.values())))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ab,bc->ac", [(2, 3), (3, 4)]),
        ("abc,acd->abd", [(2, 3, 4), (2, 4, 5)]),
        ("aecd,abcd->acbe", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 2, 3)]),
        ("a,b->ab", [(3,), (4,)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
    ],
)
def test_einsum_is_a_contraction(equation: str, shapes: list[Shape]) -> None:
    result = np.einsum(equation, *(np.ones(s) for s in shapes)).shape
    expected = einsum_products(equation, shapes)
    assert cost("Einsum", shapes, [result], equation=equation)[:2] == (expected, 2 * expected)


def test_einsum_with_an_ellipsis_broadcasts() -> None:
    assert macs("Einsum", [(2, 1, 7, 4), (3, 4, 5)], [(2, 3, 7, 5)], equation="...ij,...jk->...ik") == 840


def test_einsum_that_only_sums_or_multiplies_elements_is_no_product() -> None:
    assert cost("Einsum", [(3, 4)], [(3,)], equation="ij->i")[:2] == (0, 12)
    assert cost("Einsum", [(3, 4)], [(4, 3)], equation="ij->ji")[:2] == (0, 0)
    assert cost("Einsum", [(3, 4), (3, 4)], [(3, 4)], equation="ij,ij->ij")[:2] == (0, 12)
    # j stands in the first operand alone: it is summed up (12) before the product of i and k (3 x 5).
    assert cost("Einsum", [(3, 4), (5,)], [(3, 5)], equation="ij,k->ik")[:2] == (15, 12 + 30)


# --- convolutions -----------------------------------------------------------------------------------------------------------------


def windows(extent: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int]) -> Iterator[tuple[int, list[int]]]:
    """(output position, padded input positions) of one axis, found by sliding a window over the padded input."""
    reach = dilation * (kernel - 1)
    for output, start in enumerate(range(0, extent + sum(padding) - reach, stride)):
        yield output, [start + dilation * tap for tap in range(kernel)]


def same(extent: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """TensorFlow's SAME padding of one axis: outputs are ceil(extent / stride), the odd pad goes behind."""
    outputs = -(-extent // stride)
    total = max(0, (outputs - 1) * stride + dilation * (kernel - 1) + 1 - extent)
    return total // 2, total - total // 2


class Loops:
    """A convolution as nested loops that counts its products, also those with padding; x is [N, H, W, C], filters [R, S, C / groups, K]."""

    def __init__(self, x: Shape, kernel: Shape, stride: Shape, dilation: Shape, padding: str, groups: int = 1) -> None:
        (n, h, w, c), (r, s, per_group, k) = x, kernel
        assert per_group * groups == c
        pads = [same(e, f, t, d) if padding == "SAME" else (0, 0) for e, f, t, d in zip((h, w), (r, s), stride, dilation, strict=True)]
        rows = list(windows(h, r, stride[0], dilation[0], pads[0]))
        columns = list(windows(w, s, stride[1], dilation[1], pads[1]))
        self.out = (n, len(rows), len(columns), k)
        self.forward = self.filter_gradient = self.input_gradient = 0
        filter_sums: dict[tuple[int, ...], int] = {}
        input_sums: dict[tuple[int, ...], int] = {}
        for image, (_, ys), (_, xs), filters in itertools.product(range(n), rows, columns, range(k)):
            for (i, y), (j, z), channel in itertools.product(enumerate(ys), enumerate(xs), range(per_group)):
                source = filters // (k // groups) * per_group + channel
                self.forward += 1
                filter_sums[i, j, channel, filters] = filter_sums.get((i, j, channel, filters), 0) + 1
                input_sums[image, y, z, source] = input_sums.get((image, y, z, source), 0) + 1
        self.filter_gradient = sum(filter_sums.values())
        self.input_gradient = sum(input_sums.values())


CONVOLUTIONS = [
    pytest.param((3, 9, 9, 4), (3, 3, 4, 8), (2, 2), (1, 1), "VALID", 1, id="strided-valid"),
    pytest.param((3, 9, 9, 4), (3, 3, 4, 8), (2, 2), (1, 1), "SAME", 1, id="strided-same"),
    pytest.param((1, 9, 7, 4), (3, 1, 4, 8), (1, 1), (1, 1), "SAME", 1, id="tall-kernel"),
    pytest.param((2, 9, 9, 4), (3, 3, 4, 8), (2, 1), (1, 1), "VALID", 1, id="unequal-strides"),
    pytest.param((1, 12, 10, 2), (3, 2, 2, 3), (1, 1), (2, 3), "VALID", 1, id="dilated"),
    pytest.param((1, 12, 10, 2), (3, 2, 2, 3), (1, 1), (2, 3), "SAME", 1, id="dilated-same"),
    pytest.param((2, 8, 6, 6), (3, 2, 3, 4), (1, 2), (1, 1), "SAME", 2, id="grouped"),
    pytest.param((1, 5, 4, 3), (5, 4, 3, 2), (1, 1), (1, 1), "VALID", 1, id="kernel-as-large-as-the-image"),
]


@pytest.mark.parametrize(("x", "kernel", "stride", "dilation", "padding", "groups"), CONVOLUTIONS)
def test_convolutions_and_their_gradients_cost_what_loops_count(
    x: Shape, kernel: Shape, stride: Shape, dilation: Shape, padding: str, groups: int
) -> None:
    loops = Loops(x, kernel, stride, dilation, padding, groups)
    settings = {"strides": [1, *stride, 1], "dilations": [1, *dilation, 1], "padding": padding, "data_format": "NHWC"}
    assert macs("Conv2D", [x, kernel], [loops.out], **settings) == loops.forward
    sizes = ("int32", (4,))
    assert macs("Conv2DBackpropInput", [sizes, kernel, loops.out], [x], **settings) == loops.input_gradient
    assert macs("Conv2DBackpropFilter", [x, sizes, loops.out], [kernel], **settings) == loops.filter_gradient
    assert loops.forward == loops.input_gradient == loops.filter_gradient


def test_values_of_a_strided_convolution() -> None:
    valid = ("Conv2D", [(3, 9, 9, 4), (3, 3, 4, 8)], [(3, 4, 4, 8)])
    assert cost(*valid, strides=[1, 2, 2, 1])[:2] == (13_824, 27_648)
    assert cost("Conv2D", [(3, 9, 9, 4), (3, 3, 4, 8)], [(3, 5, 5, 8)], strides=[1, 2, 2, 1])[:2] == (21_600, 43_200)
    sizes = ("int32", (4,))
    for out, expected in (((3, 4, 4, 8), 27_648), ((3, 5, 5, 8), 43_200)):
        assert flops("Conv2DBackpropInput", [sizes, (3, 3, 4, 8), out], [(3, 9, 9, 4)], strides=[1, 2, 2, 1]) == expected
        assert flops("Conv2DBackpropFilter", [(3, 9, 9, 4), sizes, out], [(3, 3, 4, 8)], strides=[1, 2, 2, 1]) == expected


def test_layout_does_not_change_the_work() -> None:
    first = macs("Conv2D", [(3, 4, 9, 9), (3, 3, 4, 8)], [(3, 8, 9, 9)], data_format="NCHW", padding="SAME")
    last = macs("Conv2D", [(3, 9, 9, 4), (3, 3, 4, 8)], [(3, 9, 9, 8)], data_format="NHWC", padding="SAME")
    assert first == last == 69_984
    sizes = ("int32", (4,))
    assert macs("Conv2DBackpropInput", [sizes, (3, 3, 4, 8), (3, 8, 9, 9)], [(3, 4, 9, 9)], data_format="NCHW") == 69_984


def test_depthwise_multiplies_one_channel_only() -> None:
    assert macs("DepthwiseConv2dNative", [(3, 9, 9, 4), (3, 3, 4, 2)], [(3, 7, 7, 8)]) == 3 * 7 * 7 * 4 * 2 * 3 * 3 == 10_584
    sizes = ("int32", (4,))
    assert macs("DepthwiseConv2dNativeBackpropInput", [sizes, (3, 3, 4, 2), (3, 7, 7, 8)], [(3, 9, 9, 4)]) == 10_584
    assert macs("DepthwiseConv2dNativeBackpropFilter", [(3, 9, 9, 4), sizes, (3, 7, 7, 8)], [(3, 3, 4, 2)]) == 10_584


def test_a_dilated_depthwise_layer_costs_more_as_executed() -> None:
    # [3, 9, 9, 4] in 2 x 2 blocks is [12, 5, 5, 4]; the layer itself has 3 x 5 x 5 x 8 outputs of 9 products: 5,400.
    assert macs("DepthwiseConv2dNative", [(12, 5, 5, 4), (3, 3, 4, 2)], [(12, 3, 3, 8)]) == 12 * 3 * 3 * 8 * 9 == 7_776


def test_three_dimensional_convolution() -> None:
    x, kernel, out = (2, 5, 6, 7, 3), (2, 3, 4, 3, 8), (2, 4, 4, 4, 8)
    expected = math.prod(out) * 2 * 3 * 4 * 3
    assert macs("Conv3D", [x, kernel], [out]) == expected
    assert macs("Conv3DBackpropInputV2", [("int32", (5,)), kernel, out], [x]) == expected
    assert macs("Conv3DBackpropFilterV2", [x, ("int32", (5,)), out], [kernel]) == expected


def test_what_is_fused_into_a_convolution_is_counted_too() -> None:
    shapes = [(1, 4, 4, 3), (3, 3, 3, 6), (6,)], [(1, 4, 4, 6)]
    product = 96 * 27
    assert cost("_FusedConv2D", *shapes, fused_ops=["BiasAdd"])[:2] == (product, 2 * product + 96)
    assert cost("_MklNativeFusedConv2D", *shapes, fused_ops=["BiasAdd", "Relu"])[:2] == (product, 2 * product + 192)
    # A fused batch normalisation has constant statistics: x - mean, times scale, plus offset; per channel + epsilon, rsqrt, times gamma.
    many = [(1, 4, 4, 3), (3, 3, 3, 6), (6,), (6,), (6,), (6,)]
    assert flops("_FusedConv2D", many, [(1, 4, 4, 6)], fused_ops=["FusedBatchNorm", "Relu"]) == 2 * product + 3 * 96 + 18 + 96
    assert cost("_FusedMatMul", [(7, 3), (3, 5), (5,)], [(7, 5)], fused_ops=["BiasAdd", "Tanh"])[:2] == (105, 210 + 70)
    assert cost("_MklNativeConv2DBackpropFilterWithBias", [(1, 4, 4, 3), ("int32", (4,)), (1, 4, 4, 6)], [(3, 3, 3, 6), (6,)])[:2] == (
        product, 2 * product + 96,
    )  # fmt: skip


def test_an_unknown_fused_op_hides_flops_but_not_macs() -> None:
    hand = Hand()
    x, w = hand.feed("x", (7, 3)), hand.feed("w", (3, 5))
    hand.op("it", "_FusedMatMul", x, w, shape=(7, 5), fused_ops=["Wobble"])
    found = costs(hand.build())
    assert (found.macs[2], found.macs_known[2], found.flops_known[2], found.bytes_known[2]) == (105, True, False, True)
    assert "Wobble" in found.reasons["_FusedMatMul"]


# --- elementwise, reductions and formulas -------------------------------------------------------------------------------------------


def test_bias_is_one_addition_per_output() -> None:
    assert flops("BiasAdd", [(1, 4, 4, 6), (6,)], [(1, 4, 4, 6)]) == 96


def test_a_broadcast_operand_counts_at_the_output() -> None:
    assert flops("AddV2", [(3, 4), (4,)], [(3, 4)]) == 12
    assert flops("Mul", [(3, 1), (1, 4)], [(3, 4)]) == 12
    assert flops("AddN", [(3, 4)] * 5, [(3, 4)]) == 4 * 12


def test_reductions_count_what_enters_them() -> None:
    axes = ("int32", (1,))
    assert flops("Sum", [(3, 4), axes], [(3,)]) == 12
    assert flops("Mean", [(3, 4), axes], [(3,)]) == 12 + 3
    assert flops("BiasAddGrad", [(3, 4)], [(4,)]) == 12
    assert flops("L2Loss", [(3, 4)], [()]) == 12 + 12 + 1
    assert flops("UnsortedSegmentSum", [(6, 4), ("int32", (6,)), ("int32", ())], [(3, 4)]) == 24


def test_pooling_looks_at_every_window_position() -> None:
    settings = {"ksize": [1, 2, 3, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    out = (1, 4, 3, 5)
    positions = sum(6 for _ in itertools.product(*map(range, out)))
    assert flops("MaxPool", [(1, 8, 7, 5)], [out], **settings) == positions
    assert flops("AvgPool", [(1, 8, 7, 5)], [out], **settings) == positions + 60
    assert flops("MaxPoolGrad", [(1, 8, 7, 5), out, out], [(1, 8, 7, 5)], **settings) == positions + 60
    assert flops("AvgPoolGrad", [("int32", (4,)), out], [(1, 8, 7, 5)], **settings) == positions + 60


class Counting:
    """A number that counts the operations done with it and with what comes of it: formulas are run to be counted."""

    total = 0

    def __init__(self, value: float) -> None:
        self.value = value

    @classmethod
    def count(cls, formula: Callable[[], object]) -> int:
        cls.total = 0
        formula()
        return cls.total

    def _do(self, result: float) -> Counting:
        Counting.total += 1
        return Counting(result)

    def __add__(self, other: Any) -> Counting:
        return self._do(self.value + _value(other))

    def __sub__(self, other: Any) -> Counting:
        return self._do(self.value - _value(other))

    def __mul__(self, other: Any) -> Counting:
        return self._do(self.value * _value(other))

    def __truediv__(self, other: Any) -> Counting:
        return self._do(self.value / _value(other))

    def __gt__(self, other: Any) -> Any:
        Counting.total += 1
        return self.value > _value(other)

    def __lt__(self, other: Any) -> Any:
        Counting.total += 1
        return self.value < _value(other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Counting:
        return self._do(_value(other) - self.value)

    def __rtruediv__(self, other: Any) -> Counting:
        return self._do(_value(other) / self.value)


def _value(x: Any) -> float:
    return x.value if isinstance(x, Counting) else float(x)


def apply(function: Callable[..., float], *arguments: Any) -> Counting:
    """One function call, counted as one operation."""
    Counting.total += 1
    return Counting(function(*(_value(a) for a in arguments)))


def square(x: Any) -> Counting:
    return apply(lambda v: v * v, x)


def sqrt(x: Any) -> Counting:
    return apply(math.sqrt, x)


def rsqrt(x: Any) -> Counting:
    return apply(lambda v: 1 / math.sqrt(v), x)


def sign(x: Any) -> Counting:
    return apply(lambda v: math.copysign(1, v), x)


g, var, a, b, c = (Counting(v) for v in (0.5, 0.7, 0.3, 0.2, 0.1))
RATE = 0.1  # a hyper-parameter: combining two of them is done once, not per element


def momentum(nesterov: bool) -> object:
    accum = a * RATE + g
    return var - (g * RATE + accum * RATE * RATE if nesterov else accum * RATE)


def keras_momentum(nesterov: bool) -> object:
    accum = a * RATE - g * RATE
    return var + (accum * RATE - g * RATE if nesterov else accum)


def adam(nesterov: bool) -> object:
    m = a + (g - a) * RATE
    v = b + (square(g) - b) * RATE
    return var - ((g * RATE + m * RATE) if nesterov else m) * RATE / (sqrt(v) + RATE)


def adam_amsgrad() -> object:
    m = a + (g - a) * RATE
    v = b + (square(g) - b) * RATE
    return var - m * RATE / (sqrt(apply(max, v, c)) + RATE)


def adamax() -> object:
    m = a + (g - a) * RATE
    v = apply(max, b * RATE, apply(abs, g))
    return var - RATE * (m / (v + RATE))


def adagrad() -> object:
    accum = a + square(g)
    return var - g * RATE * rsqrt(accum)


def adagrad_v2() -> object:
    accum = a + square(g)
    return var - g * RATE / (sqrt(accum) + RATE)


def adadelta() -> object:
    accum = a * RATE + square(g) * RATE
    update = sqrt(b + RATE) * rsqrt(accum + RATE) * g
    return var - update * RATE, b * RATE + square(update) * RATE


def rmsprop() -> object:
    s = a + (square(g) - a) * RATE
    return var - (b * RATE + g * RATE / sqrt(s + RATE))


def centered_rmsprop() -> object:
    s = a + (square(g) - a) * RATE
    mean = c + (g - c) * RATE
    return var - (b * RATE + g * RATE / sqrt(s - square(mean) + RATE))


def ftrl(shrinkage: bool) -> object:
    new = a + square(g)
    root = sqrt(new)
    shrunk = g + RATE * var if shrinkage else g
    linear = b + (shrunk - (root - sqrt(a)) / RATE * var)
    _ = apply(abs, linear) > RATE
    return (RATE * sign(linear) - linear) / (root / RATE + RATE)


def add_sign() -> object:
    m = a * RATE + g * RATE
    return var - RATE * (RATE + RATE * (sign(g) * sign(m))) * g


def power_sign() -> object:
    m = a * RATE + g * RATE
    return var - RATE * apply(math.exp, RATE * (sign(g) * sign(m))) * g


OPTIMIZERS = [
    ("GradientDescent", 1, 2, 0, {}, lambda: var - g * RATE),
    ("Momentum", 2, 3, 0, {}, lambda: momentum(False)),
    ("Momentum", 2, 3, 0, {"use_nesterov": True}, lambda: momentum(True)),
    ("KerasMomentum", 2, 3, 0, {}, lambda: keras_momentum(False)),
    ("KerasMomentum", 2, 3, 0, {"use_nesterov": True}, lambda: keras_momentum(True)),
    # Once per execution: lr sqrt(1 - b2^t) / (1 - b1^t) is 5 operations, 1 - b1 and 1 - b2 are 2.
    ("Adam", 3, 9, 7, {}, lambda: adam(False)),
    ("Adam", 3, 9, 7, {"use_nesterov": True}, lambda: adam(True)),
    ("AdamWithAmsgrad", 4, 10, 7, {}, adam_amsgrad),
    ("AdaMax", 3, 8, 3, {}, adamax),
    ("Adagrad", 2, 3, 0, {}, adagrad),
    ("Adagrad", 2, 3, 0, {"update_slots": False}, lambda: var - g * RATE * rsqrt(a)),
    ("AdagradV2", 2, 4, 0, {}, adagrad_v2),
    ("Adadelta", 3, 6, 0, {}, adadelta),
    ("RMSProp", 3, 7, 0, {}, rmsprop),
    ("CenteredRMSProp", 4, 8, 0, {}, centered_rmsprop),
    ("Ftrl", 3, 3, 0, {}, lambda: ftrl(False)),
    ("FtrlV2", 3, 3, 0, {}, lambda: ftrl(True)),
    ("AddSign", 2, 6, 0, {}, add_sign),
    ("PowerSign", 2, 6, 0, {}, power_sign),
]


@pytest.mark.parametrize(("name", "states", "position", "once", "attributes", "formula"), OPTIMIZERS)
def test_optimizers_do_what_their_update_says(
    name: str, states: int, position: int, once: int, attributes: dict[str, Any], formula: Callable[[], object]
) -> None:
    """Inputs are handles, then scalars, the gradient at `position`; the variable and its slots are read and written."""
    inputs: list[Any] = [("resource", ()) if i < states else () for i in range(position)] + [(6, 5)]
    per_element = Counting.count(formula)
    state_bytes = states * 30 * 4
    scalars = 4 * (position - states)
    expected = (0, 30 * per_element + once, 30 * 4 + state_bytes + scalars, state_bytes)
    assert cost(f"ResourceApply{name}", inputs, [], **attributes) == expected


def test_momentum_is_four_operations_an_element() -> None:
    resource = ("resource", ())
    assert flops("ResourceApplyMomentum", [resource, resource, (), (10,), ()], []) == 40


def test_a_sparse_update_costs_by_the_rows_it_touches() -> None:
    resource = ("resource", ())
    # 3 rows of 5: the gradient, variable rows and slot rows are read (180 B), with 2 scalars and 3 indices (8 + 24 B).
    inputs = [resource, resource, (), (3, 5), ("int64", (3,)), ()]
    assert cost("ResourceSparseApplyMomentum", inputs, []) == (0, 60, 180 + 8 + 24, 120)


def test_softmax_and_its_losses_by_running_them() -> None:
    rows, classes = 3, 4

    def softmax(logits: list[Counting]) -> tuple[list[Counting], list[Counting], Counting]:
        top, total = Counting(-9.0), Counting(0.0)
        for x in logits:
            top = apply(max, top, x)
        shifted = [x - top for x in logits]
        exps = [apply(math.exp, x) for x in shifted]
        for x in exps:
            total = total + x
        return shifted, exps, total

    def logits() -> list[Counting]:
        return [Counting(0.1 * i) for i in range(classes)]

    def plain() -> None:
        _, exps, total = softmax(logits())
        [x / total for x in exps]

    def log() -> None:
        shifted, _, total = softmax(logits())
        last = apply(math.log, total)
        [x - last for x in shifted]

    def dense() -> None:
        shifted, _, total = softmax(logits())
        last, loss = apply(math.log, total), Counting(0.0)
        for x in shifted:
            loss = loss + (last - x) * RATE
        [apply(math.exp, x) / total - RATE for x in shifted]

    def sparse() -> None:
        shifted, _, total = softmax(logits())
        _ = apply(math.log, total) - shifted[1]
        _ = [apply(math.exp, x) / total for x in shifted][1] - 1

    shape = (rows, classes)
    assert flops("Softmax", [shape], [shape]) == rows * Counting.count(plain)
    assert flops("LogSoftmax", [shape], [shape]) == rows * Counting.count(log)
    assert flops("SoftmaxCrossEntropyWithLogits", [shape, shape], [(rows,), shape]) == rows * Counting.count(dense)
    assert flops("SparseSoftmaxCrossEntropyWithLogits", [shape, ("int32", (rows,))], [(rows,), shape]) == rows * Counting.count(sparse)


def test_local_response_normalisation_by_running_it() -> None:
    channels, radius = 7, 2
    x = [Counting(0.1 * (i + 1)) for i in range(channels)]
    zero = Counting(0.0)

    def norms() -> list[Counting]:
        squares = [square(v) for v in x]
        found = []
        for i in range(channels):
            total = Counting(0.0)
            for j in range(i - radius, i + radius + 1):
                total = total + (squares[j] if 0 <= j < channels else zero)  # dense: the window counts beyond the edge too
            found.append(RATE + RATE * total)
        return found

    def forward() -> None:
        [v * apply(pow, n, -0.75) for v, n in zip(x, norms(), strict=True)]

    def gradient() -> None:
        out = [Counting(0.0) for _ in x]
        for j, n in enumerate(norms()):
            power = apply(pow, n, -0.75)
            for k in range(j - radius, j + radius + 1):
                part = RATE * x[k % channels] * x[j] / n  # -2 alpha beta is one constant
                part = part + power if k == j else part
                out[k % channels] = out[k % channels] + part * RATE

    shape = (2, 3, 3, channels)
    assert flops("LRN", [shape], [shape], depth_radius=radius) == 18 * Counting.count(forward)
    assert flops("LRNGrad", [shape, shape, shape], [shape], depth_radius=radius) == 18 * Counting.count(gradient)


def test_batch_normalisation_by_running_it() -> None:
    count, channels = 6, 5
    x = [Counting(0.3 * i) for i in range(count)]
    dy = [Counting(0.2 * i - 0.1) for i in range(count)]

    def total(values: list[Counting]) -> Counting:
        result = Counting(0.0)
        for v in values:
            result = result + v
        return result

    def training() -> None:
        mean = total(x) / count
        centred = [v - mean for v in x]
        variance = total([square(v) for v in centred]) / count
        scale = rsqrt(variance + RATE) * RATE
        [v * scale + RATE for v in centred]
        _ = variance * (count / (count - 1))

    def inference() -> None:
        scale = rsqrt(Counting(0.4) + RATE) * RATE
        [(v - RATE) * scale + RATE for v in x]

    def gradient() -> None:
        r = rsqrt(Counting(0.4) + RATE)
        centred = [v - RATE for v in x]
        d_beta = total(dy)
        d_gamma = total([d * v for d, v in zip(dy, centred, strict=True)])
        _ = d_gamma * r
        mean_dy, coefficient, scale = d_beta / count, d_gamma / count * (r * r), r * RATE
        [(d - mean_dy - v * coefficient) * scale for d, v in zip(dy, centred, strict=True)]

    def gradient_of_inference() -> None:
        r = rsqrt(Counting(0.4) + RATE)
        total(dy)
        _ = total([d * (v - RATE) for d, v in zip(dy, x, strict=True)]) * r
        scale = r * RATE
        [d * scale for d in dy]

    shape, per_channel = (1, 2, 3, channels), [(channels,)] * 4
    assert flops("FusedBatchNormV3", [shape, *per_channel], [shape, *per_channel], is_training=True) == channels * Counting.count(
        training
    )
    assert flops("FusedBatchNormV3", [shape, *per_channel], [shape, *per_channel], is_training=False) == channels * Counting.count(
        inference
    )
    inputs, outputs = [shape, shape, *per_channel], [shape, *per_channel]
    assert flops("FusedBatchNormGradV3", inputs, outputs, is_training=True) == channels * Counting.count(gradient)
    assert flops("FusedBatchNormGradV3", inputs, outputs, is_training=False) == channels * Counting.count(gradient_of_inference)


def test_gradients_of_activations_by_running_them() -> None:
    y = Counting(0.4)
    formulas: dict[str, Callable[[], object]] = {
        "ReluGrad": lambda: g * (y > 0),
        "Relu6Grad": lambda: g * (Counting(float(y > 0)) * Counting(float(y < 6))),
        "SigmoidGrad": lambda: g * y * (1 - y),
        "TanhGrad": lambda: g * (1 - y * y),
        "SqrtGrad": lambda: 0.5 * g / y,
        "RsqrtGrad": lambda: -0.5 * g * y * y * y,
        "EluGrad": lambda: ((y + 1) * g, y < 0),
        "SoftplusGrad": lambda: g / (apply(math.exp, apply(lambda v: -v, y)) + 1),
        "SoftsignGrad": lambda: g / square(apply(abs, y) + 1),
    }
    for op, formula in formulas.items():
        assert flops(op, [(3, 4), (3, 4)], [(3, 4)]) == 12 * Counting.count(formula), op


def test_normal_samples_come_in_pairs() -> None:
    def box_muller() -> None:
        u1, u2 = Counting(1.4) - 1, Counting(1.3) - 1
        radius = sqrt(-2 * apply(math.log, apply(max, u1, 1e-7)))
        angle = 2 * math.pi * u2
        _ = apply(math.sin, angle) * radius, apply(math.cos, angle) * radius

    per_pair = Counting.count(box_muller)
    assert flops("RandomStandardNormal", [("int32", (1,))], [(8,)]) == 4 * per_pair
    assert flops("RandomUniform", [("int32", (1,))], [(8,)]) == 8


def test_ctc_grows_with_frames_labels_and_classes() -> None:
    frames, batch, classes, labels = 5, 2, 4, 3  # 3 labels in both samples together
    inputs = [(frames, batch, classes), ("int64", (labels, 2)), ("int32", (labels,)), ("int32", (batch,))]
    positions = sum(2 * length + 1 for length in (1, 2))
    # log-sum of two numbers: max, difference, exp, log1p, sum; forward and backward: two log-sums and two additions each, then
    # one more log-sum and an addition; softmax is 5 and the gradient 3 per class; a logarithm per frame
    expected = frames * positions * (2 * (2 * 5 + 2) + 5 + 1) + frames * batch * classes * (5 + 3) + frames * batch
    assert flops("CTCLoss", inputs, [(batch,), (frames, batch, classes)]) == expected


@pytest.mark.capture
def test_tensorflows_own_counter_agrees_where_it_counts_the_same() -> None:
    """TensorFlow's static profiler knows some ops; it counts reductions as m - n and is wrong for gradients of strided convolutions."""
    import tensorflow as tf
    from tensorflow.python.framework import ops as framework
    from tensorflow.python.profiler.internal import flops_registry

    assert flops_registry
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x, y, image = (v1.placeholder(tf.float32, s) for s in ((3, 4), (4,), (2, 8, 7, 3)))
        kernel = v1.placeholder(tf.float32, (3, 2, 3, 5))
        pooled = tf.nn.max_pool2d(image, 2, 2, "VALID")
        raw = tf.raw_ops
        made = [
            raw.AddV2(x=x, y=y), raw.Mul(x=x, y=y), raw.Sub(x=x, y=y), raw.RealDiv(x=x, y=y), raw.Maximum(x=x, y=y), raw.Pow(x=x, y=y),
            raw.Less(x=x, y=y), raw.SquaredDifference(x=x, y=y), raw.Neg(x=x), raw.Square(x=x), raw.Log(x=x), raw.Softmax(logits=x),
            raw.RsqrtGrad(y=x, dy=x), raw.AddN(inputs=[x, x, x]), raw.MatMul(a=x, b=x, transpose_a=True), raw.BiasAdd(value=x, bias=y),
            raw.MatMul(a=x, b=x, transpose_b=True),
            raw.Conv2D(input=image, filter=kernel, strides=[1, 2, 1, 1], padding="VALID"),
            raw.DepthwiseConv2dNative(input=image, filter=kernel, strides=[1, 1, 1, 1], padding="SAME"),
            raw.MaxPool(input=image, ksize=[1, 2, 3, 1], strides=[1, 2, 2, 1], padding="SAME"),
            raw.MaxPoolGrad(orig_input=image, orig_output=pooled, grad=pooled, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"),
        ]  # fmt: skip
    attributes = ("transpose_a", "transpose_b")
    for tensor in made:
        op = tensor.op
        theirs = framework.get_stats_for_node_def(graph, op.node_def, "flops").value
        given = {k: bool(op.get_attr(k)) for k in attributes if k in op.node_def.attr}
        if "ksize" in op.node_def.attr:
            given["ksize"] = list(op.get_attr("ksize"))
        ours = flops(op.type, [tuple(i.shape) for i in op.inputs], [tuple(o.shape) for o in op.outputs], **given)
        assert ours == theirs, op.type


# --- bytes ------------------------------------------------------------------------------------------------------------------------


def test_bytes_of_a_product_and_its_intensity() -> None:
    _, work, read, written = cost("MatMul", [(4, 6), (6, 5)], [(4, 5)])
    assert (work, read + written) == (240, 96 + 120 + 80)
    assert work / (read + written) == pytest.approx(0.811, abs=5e-4)


def test_a_tensor_read_twice_counts_once() -> None:
    hand = Hand()
    x = hand.feed("x", (10,))
    hand.op("square", "Mul", x, x, shape=(10,))
    hand.op("sum", "Mul", x, hand.feed("y", (10,)), shape=(10,))
    found = costs(hand.build())
    assert found.bytes_read.tolist() == [0, 40, 0, 80]
    assert found.bytes_written.tolist() == [0, 40, 0, 40]


def test_one_tensor_two_readers() -> None:
    """x is read by a and b, c = a + b: three records, four tensors, and each reader reads x."""
    hand = Hand()
    x = hand.feed("x", (2, 3))
    first, second = hand.op("a", "Neg", x, shape=(2, 3)), hand.op("b", "Exp", x, shape=(2, 3))
    hand.op("c", "AddV2", first, second, shape=(2, 3))
    trace = hand.build()
    assert len(trace.tensors) == 4
    assert [trace.inputs(e) for e in range(4)] == [[], [0], [0], [1, 2]]
    assert costs(trace).bytes_read.tolist() == [0, 24, 24, 48]
    assert costs(trace).flops.tolist() == [0, 6, 6, 6]


@pytest.mark.parametrize(
    "op", ["Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "Enter", "Exit", "NextIteration", "Const"]
)
def test_handing_a_tensor_on_moves_nothing(op: str) -> None:
    assert cost(op, [(3, 4)], [(3, 4)]) == (0, 0, 0, 0)


def test_reading_a_variable_moves_nothing_and_its_reader_reads_it() -> None:
    hand = Hand()
    variable = hand.variable("w", (3, 5))
    value = hand.read("w/read", variable, (3, 5))
    hand.op("mm", "MatMul", hand.feed("x", (7, 3)), value, shape=(7, 5))
    found = costs(hand.build())
    assert found.bytes_read.tolist() == [0, 0, 0, 7 * 3 * 4 + 3 * 5 * 4]


def test_data_movement_has_bytes_and_no_flops() -> None:
    assert cost("Transpose", [(3, 4), ("int32", (2,))], [(4, 3)]) == (0, 0, 48 + 8, 48)
    assert cost("ConcatV2", [(3, 4), (3, 2), ("int32", ())], [(3, 6)]) == (0, 0, 48 + 24 + 4, 72)
    assert cost("Tile", [(3, 4), ("int32", (2,))], [(6, 4)]) == (0, 0, 48 + 8, 96)
    assert cost("Fill", [("int32", (2,)), ()], [(3, 4)]) == (0, 0, 0, 48)
    assert cost("Shape", [(3, 4)], [("int32", (2,))]) == (0, 0, 0, 8)


def test_a_gather_reads_the_rows_it_takes() -> None:
    table, indices, axis = (1000, 16), ("int32", (5,)), ("int32", ())
    assert cost("GatherV2", [table, indices, axis], [(5, 16)]) == (0, 0, 5 * 64 + 20 + 4, 5 * 64)
    assert cost("ResourceGather", [("resource", ()), indices], [(5, 16)]) == (0, 0, 5 * 64 + 20, 5 * 64)
    assert cost("StridedSlice", [(100, 8), *[("int32", (1,))] * 3], [(8,)]) == (0, 0, 32 + 12, 32)


def test_an_update_in_place_reads_and_writes_the_variable() -> None:
    assert cost("AssignAddVariableOp", [("resource", ()), (10,)], []) == (0, 10, 80, 40)
    assert cost("AssignVariableOp", [("resource", ()), (10,)], []) == (0, 0, 0, 0)
    assert cost("ResourceScatterAdd", [("resource", ()), ("int32", (3,)), (3, 5)], []) == (0, 15, 12 + 60 + 60, 60)


def test_a_copy_between_devices_moves_its_tensor_whatever_its_op() -> None:
    hand = Hand()
    x = hand.feed("x", (10,))
    node = hand.builder.node("copy", "Whatever", inputs=[(x.node, 0)])
    hand.builder.execution(node, inputs=[hand.tensor(x)], outputs=[("float32", (10,))], kind=tables.EXECUTION_COPY)
    found = costs(hand.build())
    assert (found.flops[1], found.bytes_read[1], found.bytes_written[1], found.flops_known[1]) == (0, 40, 40, True)


# --- what is not known ------------------------------------------------------------------------------------------------------------


def test_an_op_without_a_rule_is_unknown_and_never_zero() -> None:
    hand = Hand()
    x = hand.feed("x", (3, 4))
    hand.op("add", "AddV2", x, hand.feed("y", (4,)), shape=(3, 4))
    hand.op("odd", "NewFangledOp", x, shape=(3, 4))
    found = costs(hand.build())
    assert found.flops[2] == 12
    assert [bool(found.known(what)[3]) for what in ("macs", "flops", "bytes")] == [False] * 3
    assert found.uncovered("flops") == found.uncovered("macs") == {"NewFangledOp": 1}
    assert found.coverage()["flops"].executions == 3 / 4 < 1
    assert found.reasons == {"NewFangledOp": "no rule"}


def test_coverage_by_executions_and_by_time() -> None:
    hand = Hand()
    odd = hand.op("odd", "NewFangledOp", outputs=[("float32", (4, 6)), ("float32", (6, 5))])
    weights = type(odd)(odd.node, odd.execution, 1)
    hand.op("mm", "MatMul", odd, weights, shape=(4, 5))
    trace = hand.build(durations_ns=[6000, 2000])
    found = costs(trace, 0)
    assert found.flops.tolist() == [0, 240]
    coverage = found.coverage(trace.durations(0))
    for what in ("macs", "flops", "bytes"):
        assert (coverage[what].executions, coverage[what].time) == (0.5, 0.25)
    assert found.coverage()["flops"].time is None
    with pytest.raises(TraceError, match="2 executions"):
        found.coverage([1.0])


def test_a_listed_kind_without_a_rule_has_no_macs_but_unknown_flops() -> None:
    assert cost("AdjustHue", [(2, 2, 3), ()], [(2, 2, 3)]) == (0, None, None, None)
    assert cost("BlockLSTMV2", [(2, 2, 3)], [(2, 2, 3)]) == (None, None, None, None)


def test_an_execution_that_does_not_fit_its_rule_is_unknown_with_a_reason() -> None:
    hand = Hand()
    hand.op("pool", "MaxPool", hand.feed("x", (1, 4, 4, 2)), shape=(1, 2, 2, 2))
    found = costs(hand.build())
    assert not found.flops_known[1]
    assert "ksize" in found.reasons["MaxPool"]


def test_a_lost_input_makes_a_cost_unknown() -> None:
    hand = Hand()
    x, w = hand.feed("x", (7, 3)), hand.feed("w", (3, 5))
    node = hand.builder.node("mm", "MatMul", inputs=[(x.node, 0), (w.node, 0)])
    hand.builder.execution(node, inputs=[hand.tensor(w)], outputs=[("float32", (7, 5))])
    found = costs(hand.build())
    assert [bool(found.known(what)[2]) for what in ("macs", "flops", "bytes")] == [False] * 3
    assert found.reasons == {"MatMul": "an input of it is not in the trace"}


def call_with_parts(part: str) -> Costs:
    hand = Hand()
    x, w = hand.feed("x", (7, 3)), hand.feed("w", (3, 5))
    call = hand.op("call", "StatefulPartitionedCall", x, w, shape=(7, 5))
    inner = hand.builder.node("call/mm", part, inputs=[(x.node, 0), (w.node, 0)])
    hand.builder.execution(
        inner, inputs=[hand.tensor(x), hand.tensor(w)], outputs=[("float32", (7, 5))], parent=call.execution, timed=False,
        kind=tables.EXECUTION_EXPANDED,
    )  # fmt: skip
    return costs(hand.build())


def test_a_call_is_known_by_its_parts_and_unknown_without() -> None:
    known = call_with_parts("MatMul")
    assert (known.macs.tolist()[2:], known.macs_known.tolist()[2:]) == ([0, 105], [True, True])
    assert call_with_parts("NewFangledOp").macs_known.tolist()[2:] == [False, False]
    assert cost("StatefulPartitionedCall", [(7, 3)], [(7, 5)]) == (None, None, None, None)


# --- loops and branches -----------------------------------------------------------------------------------------------------------


def loop_of_products(trips: int, products: Sequence[tuple[Shape, Shape]]) -> Trace:
    """A loop whose body multiplies each pair of shapes, with its plumbing and a counter, executed iteration by iteration."""
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    names = [
        ("while/enter", "Enter"),
        ("while/merge", "Merge"),
        ("while/less", "Less"),
        ("while/add", "AddV2"),
        ("while/next", "NextIteration"),
    ]
    start = builder.node("start", "Const")
    nodes = {name: builder.node(name, op, frame=frame) for name, op in names}
    operands = [(builder.node(f"x{i}", "Const"), builder.node(f"w{i}", "Const")) for i in range(len(products))]
    bodies = [
        builder.node(f"while/body/MatMul_{i}", "MatMul", inputs=[(a, 0), (b, 0)], frame=frame) for i, (a, b) in enumerate(operands)
    ]
    scalar = [("int32", ())]
    counter = builder.execution(start, outputs=scalar)
    given = [
        tuple(builder.execution(node, outputs=[("float32", shape)]) for node, shape in zip(pair, shapes, strict=True))
        for pair, shapes in zip(operands, products, strict=True)
    ]
    counter = builder.execution(nodes["while/enter"], inputs=[builder.tensor(counter)], outputs=scalar)
    for trip in range(trips):
        path = builder.path(0, frame, 0, trip)
        merged = builder.execution(nodes["while/merge"], inputs=[builder.tensor(counter)], outputs=scalar, path=path)
        number = builder.tensor(merged)
        builder.execution(nodes["while/less"], inputs=[number, number], outputs=[("bool", ())], path=path)
        for body, (left, right), shapes in zip(bodies, given, products, strict=True):
            out = (shapes[0][0], shapes[1][1])
            inputs = [builder.tensor(left), builder.tensor(right)]
            builder.execution(body, inputs=inputs, outputs=[("float32", out)], path=path)
        added = builder.execution(nodes["while/add"], inputs=[number, number], outputs=scalar, path=path)
        counter = builder.execution(nodes["while/next"], inputs=[builder.tensor(added)], outputs=scalar, path=path)
    return builder.build({"workload": "loop"})


def test_a_recurrent_layer_counts_every_step() -> None:
    """An LSTM of 4 units, 5 steps, 3 features, batch 2: [2, 3] [3, 16] and [2, 4] [4, 16] in each step."""
    trace = loop_of_products(5, [((2, 3), (3, 16)), ((2, 4), (4, 16))])
    found = costs(trace)
    products = [row for row, op in enumerate(found.op_types) if op == "MatMul"]
    assert len(products) == 10
    assert int(found.flops[products].sum()) == 5 * (192 + 256) == 2_240
    assert len({trace.node_names[n] for n in trace.executions.node[products].tolist()}) == 2


def test_hiding_the_plumbing_of_a_loop_leaves_its_work() -> None:
    found = costs(loop_of_products(5, [((2, 4), (4, 4))]))
    work = [(op, int(f)) for op, f in zip(found.op_types, found.flops, strict=True) if not ops.is_plumbing(op) and op != "Const"]
    assert [f for op, f in work if op == "MatMul"] == [64] * 5
    assert {op for op, _ in work} == {"MatMul", "Less", "AddV2"}
    assert sum(f for op, f in work if op == "MatMul") == 320
    assert [f for op, f in work if op != "MatMul"] == [1] * 10


# --- VGG-19 -----------------------------------------------------------------------------------------------------------------------

# Simonyan & Zisserman 2014, table 1, column E: (maps, how many convolutions) of each group, then the dense layers.
VGG_GROUPS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
VGG_DENSE = ((25_088, 4096), (4096, 4096), (4096, 1000))


def vgg_macs(batch: int) -> dict[str, int]:
    """MACs of all forward ops, filter gradients (dW) and input gradients (dX) of a trace of VGG-19's products."""
    hand = Hand()
    extent, depth = 224, 3
    sizes = hand.const("sizes", (4,), "int32")
    for group, (maps, count) in enumerate(VGG_GROUPS, start=1):
        for number in range(1, count + 1):
            name = f"conv{group}_{number}"
            x, out = hand.feed(f"{name}/x", (batch, extent, extent, depth)), (batch, extent, extent, maps)
            kernel, gradient = hand.feed(f"{name}/kernel", (3, 3, depth, maps)), hand.feed(f"{name}/gradient", out)
            hand.op(f"{name}/Conv2D", "Conv2D", x, kernel, shape=out)
            hand.op(f"{name}/dW", "Conv2DBackpropFilter", x, sizes, gradient, shape=(3, 3, depth, maps))
            if name != "conv1_1":
                hand.op(f"{name}/dX", "Conv2DBackpropInput", sizes, kernel, gradient, shape=(batch, extent, extent, depth))
            depth = maps
        extent //= 2
    for number, (inputs, outputs) in enumerate(VGG_DENSE, start=6):
        x, kernel = hand.feed(f"fc{number}/x", (batch, inputs)), hand.feed(f"fc{number}/kernel", (inputs, outputs))
        gradient = hand.feed(f"fc{number}/gradient", (batch, outputs))
        hand.op(f"fc{number}/MatMul", "MatMul", x, kernel, shape=(batch, outputs))
        hand.op(f"fc{number}/dW", "MatMul", x, gradient, shape=(inputs, outputs), transpose_a=True)
        hand.op(f"fc{number}/dX", "MatMul", gradient, kernel, shape=(batch, inputs), transpose_b=True)
    trace = hand.build()
    found = costs(trace)
    names = [trace.node_names[n] for n in trace.executions.node.tolist()]
    parts = {"dW": 0, "dX": 0, "forward": 0}
    for name, value in zip(names, found.macs.tolist(), strict=True):
        parts[name.rpartition("/")[2] if name.endswith(("/dW", "/dX")) else "forward"] += value
    assert bool(found.macs_known.all())
    return parts


@pytest.mark.parametrize("batch", [1, 8])
def test_vgg_19_by_hand(batch: int) -> None:
    # A 3 x 3 convolution at e x e has 9 e e maps_in maps_out MACs; below, e e of each group and the products of maps within it.
    by_group = [
        9 * 224 * 224 * (3 * 64 + 64 * 64),
        9 * 112 * 112 * (64 * 128 + 128 * 128),
        9 * 56 * 56 * (128 * 256 + 3 * 256 * 256),
        9 * 28 * 28 * (256 * 512 + 3 * 512 * 512),
        9 * 14 * 14 * (4 * 512 * 512),
    ]
    forward = sum(by_group) + 25_088 * 4096 + 4096 * 4096 + 4096 * 1000
    assert forward == 19_632_062_464
    first = 9 * 224 * 224 * 3 * 64
    assert first == 86_704_128
    assert vgg_macs(batch) == {"forward": batch * forward, "dW": batch * forward, "dX": batch * (forward - first)}


# --- the table and its speed --------------------------------------------------------------------------------------------------------


def test_every_rule_says_what_it_computes_and_why() -> None:
    for rule in cost_rules.RULES:
        assert rule.ops
        assert rule.flops_text
        assert rule.traffic.text
        assert len(rule.source) > 5
        assert (rule.macs is None) == (rule.macs_text == "0")
        assert all(ops.kind(op) != "unknown" for op in rule.ops)


def test_only_products_have_macs() -> None:
    with_macs = {op for rule in cost_rules.RULES if rule.macs is not None for op in rule.ops}
    assert {ops.kind(op) for op in with_macs} == {"conv", "conv_filter_grad", "conv_input_grad", "gemm", "batched_gemm"}


def test_the_printed_table_is_up_to_date() -> None:
    stored = Path(__file__).parents[1] / "schemas" / "cost_rules.md"
    assert stored.read_text(encoding="utf-8") == cost_rules.to_markdown(), (
        "run: python -m fathom_trace.cost_rules > schemas/cost_rules.md"
    )


def test_equal_executions_are_costed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fathom_trace import costs as module

    looked_up: list[str] = []

    def counting(op: str) -> cost_rules.Rule | None:
        looked_up.append(op)
        return cost_rules.find(op)

    monkeypatch.setattr(module, "find", counting)
    found = costs(loop_of_products(500, [((2, 4), (4, 4))]))
    assert len(found) > 2500
    # One a class: three shapes of constants, and one each of the loop's six op types.
    assert sorted(looked_up) == sorted(["Const"] * 3 + ["Enter", "Merge", "Less", "MatMul", "AddV2", "NextIteration"])


def test_each_execution_has_its_own_shape() -> None:
    """One node, three executions of different sizes: what ran decides."""
    builder = TraceBuilder()
    source, node = builder.node("x", "Const"), builder.node("relu", "Relu")
    for size in (4, 9, 4):
        value = builder.execution(source, outputs=[("float32", (size,))])
        builder.execution(node, inputs=[builder.tensor(value)], outputs=[("float32", (size,))])
    assert costs(builder.build()).flops.tolist() == [0, 4, 0, 9, 0, 4]


def test_costs_of_one_structure_line_up_with_its_executions() -> None:
    builder = TraceBuilder()
    source, node = builder.node("x", "Const"), builder.node("relu", "Relu")
    for size in (3, 5):
        value = builder.execution(source, outputs=[("float32", (size,))])
        builder.execution(node, inputs=[builder.tensor(value)], outputs=[("float32", (size,))])
        builder.end_structure()
    trace = builder.build()
    assert costs(trace, 1).first == 2
    assert costs(trace, 1).flops.tolist() == [0, 5]
    assert costs(trace).flops.tolist() == [0, 3, 0, 5]
    assert len(costs(TraceBuilder().build())) == 0
