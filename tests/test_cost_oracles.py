"""Do the costs of common Keras layers agree with counters that share nothing with ours: XLA's cost analysis, and loops that count?

Matrix products and convolutions without padding: exactly 2 x MACs. With padding our count is that of the dense loop nest, padding
included, and XLA's that of the same nest without the products that read padding. Other ops: XLA counts m - n additions for a reduction
of m elements to n where we count m (an accumulator begins at zero), and agrees otherwise.

MACs are those of the logical layers: TensorFlow runs a dilated convolution as another one, on reshuffled images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest

from fathom_trace.capture import Plan, capture
from fathom_trace.costs import Costs, costs
from fathom_trace.loops import logical_macs
from fathom_trace.loops.recover import constant_value
from fathom_trace.ops import kind
from fathom_trace.trace import Trace
from tests.brute_force import Case, count

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytest.importorskip("jaxlib")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from tests import xla_oracle as xla  # noqa: E402

QUICK = Plan(steps=1, warmup=0)
Shape = tuple[int, ...]


class Listed:
    """A layer that takes a list of inputs, called with the inputs themselves."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, *inputs: Any) -> Any:
        return self.layer(list(inputs))

    @property
    def trainable_variables(self) -> Any:
        return self.layer.trainable_variables


def arrays(shapes: Sequence[Shape]) -> list[Any]:
    chance = np.random.default_rng(7)
    return [chance.random(shape, np.float32) + np.float32(0.1) for shape in shapes]


def run(layer: Any, shapes: Sequence[Shape], training: bool = False) -> tuple[Trace, Costs]:
    """Capture a layer, with `training` also the gradients for all its inputs and weights."""
    layer(*arrays(shapes))

    def forward(*inputs: Any) -> Any:
        return layer(*inputs)

    def step(*inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = layer(*inputs)
        return y, tape.gradient(y, [*inputs, *(v.value for v in layer.trainable_variables)])

    trace = capture(step if training else forward, *arrays(shapes), plan=QUICK)
    found = costs(trace, trace.main_structure)
    assert (found.uncovered("macs"), trace.provenance["opaque_calls"]) == ({}, [])
    return trace, found


def macs_of(layer: Any, shapes: Sequence[Shape], training: bool = False) -> int:
    trace, found = run(layer, shapes, training)
    return int(logical_macs(trace, trace.main_structure, found.macs).sum())


# --- products, and convolutions without padding -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A Keras layer on inputs of some shapes, and in jax the same products of these inputs and further operands."""

    name: str
    make: Callable[[], Any]
    inputs: list[Shape]
    function: Callable[..., Any]
    others: list[Shape]

    @property
    def operands(self) -> list[Shape]:
        """Shapes of what jax multiplies."""
        return [*self.inputs, *self.others]


def einsum(equation: str) -> Callable[..., Any]:
    return lambda a, b: jnp.einsum(equation, a, b)


def separable(rank: int, channels: int) -> Callable[..., Any]:
    return lambda x, depthwise, pointwise: conv(rank)(conv(rank, groups=channels)(x, depthwise), pointwise)


def recurrent(x: Any, h: Any, w: Any, u: Any) -> Any:
    """The products of a recurrent layer over all steps, of its inputs [B, T, I] and of its states [B, T, H]."""
    return jnp.concatenate([jnp.einsum("bti,ij->btj", x, w), jnp.einsum("bth,hj->btj", h, u)], -1)


def both_directions(x: Any, reversed_x: Any, h: Any, reversed_h: Any, w: Any, u: Any, reversed_w: Any, reversed_u: Any) -> Any:
    return jnp.concatenate([recurrent(x, h, w, u), recurrent(reversed_x, reversed_h, reversed_w, reversed_u)], -1)


def attend(q: Any, k: Any, v: Any) -> Any:
    """Scores and weighted values [..., T, D], without the softmax between them."""
    return jnp.einsum("...ts,...sd->...td", jnp.einsum("...td,...sd->...ts", q, k), v)


def multi_head(query: Any, value: Any, key: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    """Projections to heads, attention, and the projection back. Heads of keys and values serve several heads of queries."""
    q, k, v = (jnp.einsum("bti,ihd->bhtd", x, w) for x, w in ((query, wq), (key, wk), (value, wv)))
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    return jnp.einsum("bhtd,hdi->bti", attend(q, k, v), wo)


L, conv, transposed = keras.layers, xla.convolution, xla.transposed_convolution
SEQUENCE, IMAGE, VOLUME, STEPS = (2, 9, 4), (2, 9, 7, 4), (1, 4, 7, 5, 2), (2, 5, 3)
X, STATES, WEIGHTS, KEYS = (3, 5, 8), (2, 5, 4), [(3, 16), (4, 16)], [(8, 2, 4), (8, 2, 4)]
DILATED: dict[str, Any] = {"dilation_rate": (2, 3)}

PRODUCTS = [
    Product("Dense", lambda: L.Dense(5), [(4, 6)], jnp.matmul, [(6, 5)]),
    Product("Dense of a sequence", lambda: L.Dense(4), [(2, 8, 6)], jnp.matmul, [(6, 4)]),
    Product("EinsumDense", lambda: L.EinsumDense("abc,cde->abde", (None, 4, 2)), [(2, 3, 5)], einsum("abc,cde->abde"), [(5, 4, 2)]),
    Product("TimeDistributed", lambda: L.TimeDistributed(L.Dense(4)), [STEPS], jnp.matmul, [(3, 4)]),
    Product("Dot", lambda: Listed(L.Dot(axes=(2, 1))), [(2, 3, 4), (2, 4, 5)], einsum("bij,bjk->bik"), []),
    Product("Conv1D, strided", lambda: L.Conv1D(6, 3, strides=2), [SEQUENCE], conv(1, 2), [(3, 4, 6)]),
    Product("Conv1D, dilated", lambda: L.Conv1D(6, 3, dilation_rate=3), [SEQUENCE], conv(1, dilation=3), [(3, 4, 6)]),
    Product("Conv2D", lambda: L.Conv2D(8, (3, 2)), [IMAGE], conv(2), [(3, 2, 4, 8)]),
    Product("Conv2D, strided", lambda: L.Conv2D(8, (3, 2), strides=(2, 3)), [IMAGE], conv(2, (2, 3)), [(3, 2, 4, 8)]),
    Product("Conv2D, dilated", lambda: L.Conv2D(8, (3, 2), **DILATED), [IMAGE], conv(2, dilation=(2, 3)), [(3, 2, 4, 8)]),
    Product("Conv2D, grouped", lambda: L.Conv2D(6, (3, 2), groups=2), [IMAGE], conv(2, groups=2), [(3, 2, 2, 6)]),
    Product("Conv3D", lambda: L.Conv3D(3, (2, 3, 1), strides=(1, 2, 2)), [VOLUME], conv(3, (1, 2, 2)), [(2, 3, 1, 2, 3)]),
    Product("DepthwiseConv1D", lambda: L.DepthwiseConv1D(3, depth_multiplier=2), [SEQUENCE], conv(1, groups=4), [(3, 1, 8)]),
    Product("DepthwiseConv2D", lambda: L.DepthwiseConv2D((3, 2), 2), [IMAGE], conv(2, 2, groups=4), [(3, 2, 1, 4)]),
    Product("Depthwise, dilated", lambda: L.DepthwiseConv2D(2, **DILATED), [IMAGE], conv(2, 1, "VALID", (2, 3), 4), [(2, 2, 1, 4)]),
    Product("SeparableConv1D", lambda: L.SeparableConv1D(5, 3), [SEQUENCE], separable(1, 4), [(3, 1, 4), (1, 4, 5)]),
    Product("SeparableConv2D", lambda: L.SeparableConv2D(5, (3, 2)), [IMAGE], separable(2, 4), [(3, 2, 1, 4), (1, 1, 4, 5)]),
    Product("Conv1DTranspose", lambda: L.Conv1DTranspose(3, 4, 2), [SEQUENCE], transposed(1, (2,)), [(4, 4, 3)]),
    Product("Conv2DTranspose", lambda: L.Conv2DTranspose(3, (5, 4), (2, 3)), [IMAGE], transposed(2, (2, 3)), [(5, 4, 4, 3)]),
    Product("Conv3DTranspose", lambda: L.Conv3DTranspose(3, (2, 3, 1), 2), [VOLUME], transposed(3, [2] * 3), [(2, 3, 1, 2, 3)]),
    Product("SimpleRNN", lambda: L.SimpleRNN(4), [STEPS], recurrent, [STATES, (3, 4), (4, 4)]),
    Product("LSTM", lambda: L.LSTM(4), [STEPS], recurrent, [STATES, *WEIGHTS]),
    Product("GRU", lambda: L.GRU(4), [STEPS], recurrent, [STATES, (3, 12), (4, 12)]),
    Product("Bidirectional", lambda: L.Bidirectional(L.LSTM(4)), [STEPS], both_directions, [STEPS, STATES, STATES, *WEIGHTS * 2]),
    Product("MultiHeadAttention", lambda: L.MultiHeadAttention(2, 4), [X] * 3, multi_head, [*[(8, 2, 4)] * 3, (2, 4, 8)]),
    Product("GroupQueryAttention", lambda: L.GroupQueryAttention(4, 4, 2), [X] * 3, multi_head, [(8, 4, 4), *KEYS, (4, 4, 8)]),
    Product("Attention", lambda: Listed(L.Attention()), [X] * 3, lambda q, v, k: attend(q, k, v), []),
]  # fmt: skip

NOT_TRAINED = ("TimeDistributed", "Dot", "Conv1D, strided", "SeparableConv1D", "Conv1DTranspose", "Bidirectional", "Attention",
               "GroupQueryAttention")  # fmt: skip
"""Layers whose gradients are not compared as well, because a similar one's are (or add up over the heads that share one)."""


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_products_have_the_flops_that_xla_counts(case: Product) -> None:
    expected = xla.compiled_flops(case.function, case.operands)
    assert 2 * macs_of(case.make(), case.inputs) == expected > 0


@pytest.mark.parametrize("case", [case for case in PRODUCTS if case.name not in NOT_TRAINED], ids=lambda case: case.name)
def test_gradients_have_the_flops_that_xla_counts(case: Product) -> None:
    """Every product has two gradients of its size. XLA rewrites some gradients of depthwise filters, so what is written counts."""
    expected = xla.written_flops(xla.with_gradients(case.function), case.operands)
    assert expected == 3 * xla.written_flops(case.function, case.operands)
    assert 2 * macs_of(case.make(), case.inputs, training=True) == expected


def test_an_embedding_multiplies_nothing_and_reads_the_rows_it_takes() -> None:
    """6 rows of 16 floats of a table of 1000: 6 * 64 bytes read and written, and 6 indices."""
    layer = L.Embedding(1000, 16)
    layer.build(None)
    trace = capture(layer, np.arange(6, dtype=np.int32).reshape(2, 3), plan=QUICK)
    found = costs(trace, 0)
    row = next(i for i, op in enumerate(found.op_types) if kind(op) == "embedding")
    indices, axis = 6 * 4, 4 * (found.op_types[row] == "GatherV2")
    assert (found.macs.sum(), found.flops[row]) == (0, 0)
    assert (found.bytes_read[row], found.bytes_written[row]) == (6 * 64 + indices + axis, 6 * 64)


# --- convolutions with padding ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Padded:
    """A Keras convolution with padding, and the same as a case for the counting loops. A transposed one runs its case backwards."""

    name: str
    make: Callable[[], Any]
    case: Case
    is_transposed: bool = False

    @property
    def function(self) -> Callable[..., Any]:
        """The case in jax."""
        case, rank = self.case, len(self.case.size)
        padding: Any = list(case.explicit) if case.padding == "EXPLICIT" else case.padding
        if self.is_transposed:
            return xla.transposed_convolution(rank, case.stride, padding)
        return xla.convolution(rank, case.stride, padding, case.dilation, case.groups)

    @property
    def operands(self) -> list[Shape]:
        """Shapes of the layer's input and of the filter [kernel, channels read per group, channels written]."""
        case = self.case
        if self.is_transposed:
            return [(case.batch, *count(case).output, case.filters), (*case.kernel, case.filters, case.channels)]
        return [(case.batch, *case.size, case.groups * case.channels), (*case.kernel, case.channels, case.groups * case.filters)]


def same(filters: int, channels: int, size: Shape, kernel: Shape, **more: Any) -> Case:
    """A case of batch 2 with padding SAME; strides, dilations and groups are 1 unless given."""
    defaults = {"groups": 1, "stride": (1,) * len(size), "dilation": (1,) * len(size), "padding": "SAME"}
    return Case(batch=2, filters=filters, channels=channels, size=size, kernel=kernel, **{**defaults, **more})


def layer(kind_of_layer: Any, *arguments: Any, padding: str = "same", **more: Any) -> Callable[[], Any]:
    return lambda: kind_of_layer(*arguments, padding=padding, **more)


PADDED = [
    Padded("Conv1D", layer(L.Conv1D, 6, 3, 2), same(6, 4, (9,), (3,), stride=(2,))),
    Padded("Conv1D, causal", layer(L.Conv1D, 6, 3, padding="causal"), same(6, 4, (9,), (3,), padding="EXPLICIT", explicit=((2, 0),))),
    Padded("Conv2D", layer(L.Conv2D, 5, (3, 2)), same(5, 4, (9, 7), (3, 2))),
    Padded("Conv2D, strided", layer(L.Conv2D, 5, (3, 4), (2, 3)), same(5, 4, (9, 7), (3, 4), stride=(2, 3))),
    Padded("Conv2D, dilated", layer(L.Conv2D, 5, (3, 2), **DILATED), same(5, 4, (9, 7), (3, 2), dilation=(2, 3))),
    Padded("Conv2D, grouped", layer(L.Conv2D, 6, (3, 2), groups=2), same(3, 2, (9, 7), (3, 2), groups=2)),
    Padded("Conv3D", layer(L.Conv3D, 3, (2, 3, 2), (1, 2, 1)), same(3, 2, (3, 5, 4), (2, 3, 2), stride=(1, 2, 1))),
    Padded("DepthwiseConv2D", layer(L.DepthwiseConv2D, (3, 2), 2), same(1, 1, (9, 7), (3, 2), groups=4, stride=(2, 2))),
    Padded("Conv2DTranspose", layer(L.Conv2DTranspose, 3, (5, 4), (2, 3)), same(4, 3, (12, 15), (5, 4), stride=(2, 3)), True),
]


@pytest.mark.parametrize("training", [False, True], ids=["forward", "with gradients"])
@pytest.mark.parametrize("case", PADDED, ids=lambda case: case.name)
def test_padding_is_computed_on_by_us_and_left_out_by_xla(case: Padded, training: bool) -> None:
    counted, times = count(case.case), 3 if training else 1
    assert counted.macs > counted.macs_inside
    assert macs_of(case.make(), case.operands[:1], training) == times * counted.macs
    function = xla.with_gradients(case.function) if training else case.function
    assert xla.written_flops(function, case.operands) == times * 2 * counted.macs_inside


def test_a_separable_convolution_pads_its_depthwise_half() -> None:
    """SeparableConv2D(5, (3, 2), same) on [2, 9, 7, 4]: depthwise as the loops count, then [126, 4] x [4, 5]."""
    depthwise = count(same(1, 1, (9, 7), (3, 2), groups=4))
    assert macs_of(L.SeparableConv2D(5, (3, 2), padding="same"), [IMAGE]) == depthwise.macs + 2 * 9 * 7 * 4 * 5


# --- everything else, op by op ------------------------------------------------------------------------------------------------

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Abs": jnp.abs, "Add": jnp.add, "AddV2": jnp.add, "AddN": lambda *xs: sum(xs[1:], xs[0]), "BiasAdd": jnp.add, "Erf": lax.erf,
    "Exp": jnp.exp, "GreaterEqual": jnp.greater_equal, "Maximum": jnp.maximum, "Minimum": jnp.minimum, "Mul": jnp.multiply,
    "Neg": jnp.negative, "Pow": lax.pow, "RealDiv": jnp.divide, "Relu": lambda x: jnp.maximum(x, 0),
    "Relu6": lambda x: lax.clamp(0.0, x, 6.0), "Rsqrt": lax.rsqrt, "Sqrt": jnp.sqrt, "Square": lax.square,
    "SquaredDifference": lambda x, y: lax.square(x - y), "Sub": jnp.subtract, "Tanh": jnp.tanh,
}  # fmt: skip
"""Op types that XLA counts as we do, in jax."""


def softmax(x: Any) -> Any:
    e = jnp.exp(x - lax.reduce(x, -jnp.inf, lax.max, (x.ndim - 1,))[..., None])
    return e / e.sum(-1, keepdims=True)


def in_jax(trace: Trace, row: int, op: str) -> tuple[Callable[..., Any], list[Shape], int]:
    """An execution in jax, the shapes of its operands, and how much more we count: one for each output of a reduction."""
    attributes = trace.node_attributes[int(trace.executions.node[row])]
    inputs = [trace.shapes[int(trace.tensors.shape[i])] for i in trace.inputs(row)]
    outputs = prod(trace.output_shape(row) or ())
    if op in ELEMENTWISE:
        return ELEMENTWISE[op], inputs, 0
    if op == "Softmax":
        return softmax, inputs, 2 * prod(inputs[0][:-1])
    if op in ("MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D"):
        window = tuple(attributes["ksize"]), tuple(attributes["strides"]), attributes["padding"]
        if op.startswith("Max"):
            return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *window), inputs, outputs
        return lambda x: lax.reduce_window(x, 0.0, lax.add, *window) / prod(window[0]), inputs, outputs
    assert op in ("Sum", "Mean", "Max"), f"{op} is not written in jax here"
    value = constant_value(trace, trace.inputs(row)[1])
    assert value is not None
    axes = tuple(int(axis) % len(inputs[0]) for axis in value.reshape(-1))
    if op == "Max":
        return lambda x: lax.reduce(x, -jnp.inf, lax.max, axes), inputs[:1], outputs
    divisor = prod(inputs[0][axis] for axis in axes)
    return (lambda x: x.sum(axes) / divisor) if op == "Mean" else (lambda x: x.sum(axes)), inputs[:1], outputs


PICTURE = [(2, 8, 6, 4)]
ROWS = [(3, 5), (3, 5), (3, 5)]
OTHERS: dict[str, tuple[Callable[[], Any], list[Shape]]] = {
    "Activation relu": (lambda: L.Activation("relu"), PICTURE),
    "Activation tanh": (lambda: L.Activation("tanh"), PICTURE),
    "Activation exponential": (lambda: L.Activation("exponential"), PICTURE),
    "Activation hard_sigmoid": (lambda: L.Activation("hard_sigmoid"), PICTURE),
    "ReLU, at most 6": (lambda: L.ReLU(max_value=6.0), PICTURE),
    "PReLU": (lambda: L.PReLU(), PICTURE),
    "Softmax": (lambda: L.Softmax(), [(4, 7)]),
    "BatchNormalization": (lambda: L.BatchNormalization(), PICTURE),
    "LayerNormalization": (lambda: L.LayerNormalization(), [X]),
    "RMSNormalization": (lambda: L.RMSNormalization(), [X]),
    "GroupNormalization": (lambda: L.GroupNormalization(2), PICTURE),
    "UnitNormalization": (lambda: L.UnitNormalization(), [X]),
    "Normalization": (lambda: L.Normalization(mean=1.0, variance=2.0), [(3, 5)]),
    "Rescaling": (lambda: L.Rescaling(0.5, 1.0), PICTURE),
    "MaxPooling1D": (lambda: L.MaxPooling1D(2), [(2, 8, 4)]),
    "MaxPooling2D": (lambda: L.MaxPooling2D((2, 3)), PICTURE),
    "MaxPooling3D": (lambda: L.MaxPooling3D((2, 3, 1)), [(2, 4, 6, 3, 2)]),
    "AveragePooling2D": (lambda: L.AveragePooling2D((2, 3)), PICTURE),
    "GlobalAveragePooling2D": (lambda: L.GlobalAveragePooling2D(), PICTURE),
    "GlobalMaxPooling1D": (lambda: L.GlobalMaxPooling1D(), [(2, 8, 4)]),
    "Add": (lambda: Listed(L.Add()), ROWS),
    "Multiply": (lambda: Listed(L.Multiply()), ROWS),
    "Average": (lambda: Listed(L.Average()), ROWS),
    "Maximum": (lambda: Listed(L.Maximum()), ROWS),
    "Concatenate": (lambda: Listed(L.Concatenate()), ROWS),
    "Flatten": (lambda: L.Flatten(), PICTURE),
    "ZeroPadding2D": (lambda: L.ZeroPadding2D(1), PICTURE),
    "UpSampling2D": (lambda: L.UpSampling2D(2), PICTURE),
}
ONLY_MOVE = ("Concatenate", "Flatten", "ZeroPadding2D", "UpSampling2D")


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_count_op_by_op_what_xla_counts(name: str) -> None:
    """Of what computes floats; integers are shapes and sizes."""
    make, shapes = OTHERS[name]
    trace, found = run(make(), shapes)
    assert found.uncovered("flops") == {}
    compared = 0
    for i, (op, flops) in enumerate(zip(found.op_types, found.flops.tolist(), strict=True)):
        dtypes = {trace.strings[int(trace.tensors.dtype[row])] for row in trace.outputs(i + found.first)}
        if flops and dtypes == {"float32"}:
            function, operands, more = in_jax(trace, i + found.first, op)
            assert (op, flops) == (op, xla.written_operations(function, operands) + more)
            compared += flops
    assert (compared == 0) == (name in ONLY_MOVE)
