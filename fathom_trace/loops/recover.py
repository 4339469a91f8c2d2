"""The loop nest of one execution, from its op type, attributes and the shapes that really ran.

The output extent is computed again from input, kernel, stride, dilation and padding; where it differs from the traced one, the trace
contradicts itself and that is an error. Whatever has no loop nest has a reason instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from fathom_trace import tables
from fathom_trace.errors import TraceError
from fathom_trace.loops.einsum import einsum_nest
from fathom_trace.loops.nests import BATCHED_GEMM, FILTER_GRAD, FORWARD, GEMM, INPUT_GRAD, Axis, ConvolutionNest, GemmNest, LoopNest
from fathom_trace.ops import kind
from fathom_trace.trace import Trace

Shape = tuple[int, ...]
Pads = Sequence[tuple[int, int]]

CONVOLUTIONS = {
    "Conv": FORWARD,
    "Conv2D": FORWARD,
    "Conv2DBackpropFilter": FILTER_GRAD,
    "Conv2DBackpropFilterV2": FILTER_GRAD,
    "Conv2DBackpropInput": INPUT_GRAD,
    "Conv2DBackpropInputV2": INPUT_GRAD,
    "Conv3D": FORWARD,
    "Conv3DBackpropFilter": FILTER_GRAD,
    "Conv3DBackpropFilterV2": FILTER_GRAD,
    "Conv3DBackpropInput": INPUT_GRAD,
    "Conv3DBackpropInputV2": INPUT_GRAD,
    "DepthwiseConv2dNative": FORWARD,
    "DepthwiseConv2dNativeBackpropFilter": FILTER_GRAD,
    "DepthwiseConv2dNativeBackpropInput": INPUT_GRAD,
}
"""Op type, without the prefixes and suffixes of fused and oneDNN kernels, to the role of its nest."""

MATMULS = ("MatMul", "SparseMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
PRODUCT_KINDS = frozenset({"conv", "conv_filter_grad", "conv_input_grad", "gemm", "batched_gemm", "recurrent", "opaque", "unknown"})
"""Kinds of ops that do, or may do, multiply-accumulates."""

NOT_A_PRODUCT = "neither a convolution nor a matrix product"
AXIS_OF_LETTER = {"D": "depth", "H": "height", "W": "width"}

_SPELLING = re.compile(r"_*(?:Mkl)?(?:Dummy)?(?:Native)?(PadWith)?(?:Fused)?(\w+?)(?:WithBias)?")


def base_op(op: str) -> tuple[str, bool]:
    """The op type without the marks of fusion and of oneDNN, and whether a Pad is fused into it.

    `_FusedConv2D` and `_MklNativeFusedConv2D` are `Conv2D`; `FusedPadConv2D`, whose inputs stand otherwise, is not.
    """
    match = _SPELLING.fullmatch(op) if op.startswith("_") else None
    return (match[2], match[1] is not None) if match else (op, False)


def has_nest(op: str) -> bool:
    """True for op types that are convolutions or matrix products."""
    base = base_op(op)[0]
    return base in CONVOLUTIONS or base in MATMULS or base in ("Einsum", "XlaEinsum")


def is_unknown(op: str) -> bool:
    """True for op types that do, or may do, multiply-accumulates that no loop nest here states: their MACs are unknown, not zero."""
    return not has_nest(op) and kind(op) in PRODUCT_KINDS


def reason_without_nest(op: str) -> str:
    """Why an op type has no loop nest."""
    if not is_unknown(op):
        return f"{kind(op).replace('_', ' ')}: {NOT_A_PRODUCT}"
    if kind(op) == "opaque":
        return "a call whose inner ops are not in the trace: its MACs are unknown"
    return "no loop nest is known for this op type: its MACs are unknown"


def loop_nest(trace: Trace, execution: int) -> LoopNest | None:
    """The loop nest of an execution, or None; `examine` says why.

    Raises:
        TraceError: attributes and shapes contradict each other.
    """
    found = examine(trace, execution)
    return None if isinstance(found, str) else found


def examine(trace: Trace, execution: int) -> LoopNest | str:
    """The loop nest of an execution, or the reason why there is none.

    Raises:
        TraceError: attributes and shapes contradict each other.
    """
    node = int(trace.executions.node[execution])
    op, name, attributes = trace.node_ops[node], trace.node_names[node], trace.node_attributes[node]
    if trace.executions.kind[execution] == tables.EXECUTION_COPY:
        return "a copy between devices"
    if not trace.chosen[execution]:
        return "it is outside the selection"
    if not has_nest(op):
        return reason_without_nest(op)
    base, padded = base_op(op)
    inputs = [trace.shapes[int(trace.tensors.shape[row])] for row in trace.inputs(execution)]
    result = trace.output_shape(execution)
    needed = 3 if CONVOLUTIONS.get(base, FORWARD) != FORWARD else 2
    if result is None or len(inputs) < needed:
        return "its inputs or its output are not recorded"
    try:
        if base in CONVOLUTIONS:
            pads = fused_pads(trace, execution, attributes, padded)
            return pads if isinstance(pads, str) else convolution(base, attributes, inputs, result, pads)
        if base in MATMULS:
            return matrix_product(base, attributes, inputs[0], inputs[1], result)
        return einsum_nest(str(attributes.get("equation", "")), inputs, result)
    except TraceError as error:
        raise TraceError(f"{op} '{name}': {error}; the trace contradicts itself") from None


def matrix_product(base: str, attributes: Mapping[str, Any], left: Shape, right: Shape, result: Shape) -> GemmNest:
    """The nest of a MatMul or BatchMatMul; `result` must be what the operands give after transposition."""
    batched = base.startswith("Batch")
    flip_left, flip_right = ("adj_x", "adj_y") if batched else ("transpose_a", "transpose_b")
    if min(len(left), len(right)) < 2:
        raise TraceError(f"operands {left} and {right} are no matrices")
    m, k = left[-2:][::-1] if attributes.get(flip_left) else left[-2:]
    k_right, n = right[-2:][::-1] if attributes.get(flip_right) else right[-2:]
    if k != k_right:
        raise TraceError(f"operands {left} and {right} contract {k} with {k_right}")
    nest = GemmNest(BATCHED_GEMM if batched else GEMM, m, n, k, left[:-2], right[:-2])
    if nest.result_shape != result:
        raise TraceError(f"operands {left} and {right} give {nest.result_shape}, not {result}")
    return nest


def convolution(
    base: str, attributes: Mapping[str, Any], inputs: Sequence[Shape], result: Shape, pads: Pads | None = None
) -> ConvolutionNest | str:
    """The nest of a convolution op, from the shapes of its inputs and of its output; `pads` (by data format) replace the attribute."""
    role = CONVOLUTIONS[base]
    if role == FORWARD:
        image, kernel, output = inputs[0], inputs[1], result
    elif role == FILTER_GRAD:
        image, kernel, output = inputs[0], result, inputs[2]
    else:
        image, kernel, output = result, inputs[1], inputs[2]
    layout = data_format(attributes, len(image))
    if attributes.get("filter_format", "HWIO") not in ("HWIO", "DHWIO"):
        return f"filter format {attributes['filter_format']} is not supported"
    if attributes.get("batch_dims", 1) != 1:
        return f"batch_dims {attributes['batch_dims']} is not supported"
    if not set(layout) <= set("NCDHW") or {len(image), len(kernel), len(output)} != {len(layout)}:
        return f"data format {layout} with shapes {image}, {kernel} and {output} is not supported"
    rank = len(layout)
    n, c = layout.index("N"), layout.index("C")
    spatial = [i for i in range(rank) if i not in (n, c)]
    groups, filters, channels = _channels(base, image[c], kernel[-2:], output[c])
    if image[n] != output[n]:
        raise TraceError(f"the batch is {image[n]} on one side and {output[n]} on the other")
    strides = _per_dimension(attributes, "strides", rank)
    dilations = _per_dimension(attributes, "dilations", rank)
    axes = []
    for dimension, extent in zip(spatial, kernel, strict=False):
        size, stride, dilation = image[dimension], strides[dimension], dilations[dimension]
        begin, end = pads[dimension] if pads else _padding(attributes, dimension, size, (extent - 1) * dilation + 1, stride)
        axes.append(Axis(AXIS_OF_LETTER[layout[dimension]], size, output[dimension], extent, stride, dilation, begin, end))
    return ConvolutionNest(role, image[n], groups, filters, channels, tuple(axes))


def data_format(attributes: Mapping[str, Any], rank: int) -> str:
    """The layout as letters, one per dimension: `NHWC`, `NCDHW`, ..."""
    letters = "DHW" if rank == 5 else "HW"
    text = str(attributes.get("data_format", f"N{letters}C"))
    return {"CHANNELS_LAST": f"N{letters}C", "CHANNELS_FIRST": f"NC{letters}"}.get(text, text)


def fused_pads(trace: Trace, execution: int, attributes: Mapping[str, Any], padded: bool) -> Pads | str | None:
    """Padding by dimension that a fused Pad adds, None where there is none, or why it cannot be told."""
    listed = attributes.get("padding_list")
    if listed:
        return _pairs(listed)
    if not padded:
        return None
    value = constant_value(trace, trace.inputs(execution)[-1])
    return "the paddings of the fused Pad are not a constant" if value is None else _pairs(value.reshape(-1).tolist())


def constant_value(trace: Trace, tensor: int) -> np.ndarray[Any, Any] | None:
    """The value of a tensor that a constant (perhaps through Identity) yields, or None where it is not stored."""
    execution = int(trace.tensors.execution[tensor])
    node = int(trace.executions.node[execution])
    if trace.node_ops[node] == "Identity":
        inputs = trace.inputs(execution)
        return constant_value(trace, inputs[0]) if inputs else None
    rows = np.flatnonzero(trace.constants.node == node)
    if not len(rows):
        return None
    row = int(rows[0])
    raw = trace.constants.value[trace.constants.row_values("value", row)]
    shape = trace.shapes[int(trace.constants.shape[row])]
    dtype = np.dtype(trace.strings[int(trace.constants.dtype[row])])
    if raw.nbytes != dtype.itemsize * prod(shape):
        return None
    return np.frombuffer(raw.tobytes(), dtype.newbyteorder("<")).reshape(shape)


def _channels(base: str, image_channels: int, kernel: Shape, output_channels: int) -> tuple[int, int, int]:
    """Groups, and filters and channels per group."""
    channels, filters = kernel
    if base.startswith("Depthwise"):
        if channels != image_channels or channels * filters != output_channels:
            raise TraceError(f"filter channels {channels} x {filters} do not fit {image_channels} to {output_channels} channels")
        return channels, filters, 1
    if channels == 0 or image_channels % channels or filters != output_channels:
        raise TraceError(f"filter channels {channels} to {filters} do not fit {image_channels} to {output_channels} channels")
    groups = image_channels // channels
    if filters % groups:
        raise TraceError(f"{filters} filters do not divide into {groups} groups")
    return groups, filters // groups, channels


def _per_dimension(attributes: Mapping[str, Any], key: str, rank: int) -> list[int]:
    values = [int(v) for v in attributes.get(key) or [1] * rank]
    if key == "strides" and "strides" not in attributes:
        raise TraceError("it has no strides")
    if len(values) != rank:
        raise TraceError(f"{key} {values} are not one per dimension")
    return values


def _padding(attributes: Mapping[str, Any], dimension: int, size: int, span: int, stride: int) -> tuple[int, int]:
    """Padding before and after one dimension; SAME pads as much as ceil(size / stride) windows need, the odd one at the end."""
    padding = attributes.get("padding")
    if padding == "VALID":
        return 0, 0
    if padding == "SAME":
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        return total // 2, total - total // 2
    if padding == "EXPLICIT":
        return _pairs(attributes["explicit_paddings"])[dimension]
    raise TraceError(f"padding is {padding!r}, not SAME, VALID or EXPLICIT")


def _pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip((int(v) for v in values[::2]), (int(v) for v in values[1::2]), strict=True))
