"""TensorFlow ops in plain numpy, by op type: what an execution computes from its inputs' values. No TensorFlow here.

A kernel takes a node's attributes and its inputs and returns its output, or a tuple of its outputs. Formulas are those of the op's
documentation (https://www.tensorflow.org/api_docs/python/tf/raw_ops); gradient ops are the derivative written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Attributes = Mapping[str, Any]
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class TensorList:
    """The contents behind a variant handle: a new one for each op that changes a list. An item that was never set is None."""

    items: tuple[Array | None, ...]
    element_shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Optional:
    """What a branch leaves for its gradient: values, or None where the other branch ran."""

    values: tuple[Any, ...] | None


def _optional_values(a: Attributes, held: Optional) -> tuple[Any, ...]:
    if held.values is None:
        raise ValueError("OptionalGetValue: the other branch ran, there is no value")
    return held.values


def _simple(function: Callable[..., Any]) -> Kernel:
    return lambda a, *inputs: function(*inputs)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _axes(axis: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.atleast_1d(axis))


def _reduction(function: Callable[..., Any]) -> Kernel:
    def kernel(a: Attributes, x: Array, axis: Array) -> Array:
        axes = _axes(axis)
        return x if not axes and x.ndim == 0 else function(x, axis=axes, keepdims=bool(a.get("keep_dims", False)))

    return kernel


# --- products ---------------------------------------------------------------------------------------------------------------------


def _matmul(a: Attributes, x: Array, y: Array) -> Array:
    return (x.T if a.get("transpose_a") else x) @ (y.T if a.get("transpose_b") else y)


def _batch_matmul(a: Attributes, x: Array, y: Array) -> Array:
    return (np.swapaxes(x, -1, -2) if a.get("adj_x") else x) @ (np.swapaxes(y, -1, -2) if a.get("adj_y") else y)


def _windows(
    a: Attributes, height: int, width: int, rows: int, columns: int
) -> tuple[list[int], list[int], tuple[int, int, int, int]]:
    """Top and left corners of a VALID or SAME window on [height, width], and the padding (top, bottom, left, right)."""
    _, step_y, step_x, _ = a["strides"]
    if a["padding"] == "VALID":
        tops = list(range(0, height - rows + 1, step_y))
        return tops, list(range(0, width - columns + 1, step_x)), (0, 0, 0, 0)
    count_y, count_x = -(-height // step_y), -(-width // step_x)
    pad_y = max((count_y - 1) * step_y + rows - height, 0)
    pad_x = max((count_x - 1) * step_x + columns - width, 0)
    corners = [k * step_y for k in range(count_y)], [k * step_x for k in range(count_x)]
    return *corners, (pad_y // 2, pad_y - pad_y // 2, pad_x // 2, pad_x - pad_x // 2)


def _padded(x: Array, pads: tuple[int, int, int, int], fill: float = 0.0) -> Array:
    return np.pad(x, ((0, 0), pads[:2], pads[2:], (0, 0)), constant_values=fill)


def _conv2d(a: Attributes, x: Array, w: Array) -> Array:
    rows, columns = w.shape[:2]
    tops, lefts, pads = _windows(a, x.shape[1], x.shape[2], rows, columns)
    x = _padded(x, pads)
    out = np.zeros((x.shape[0], len(tops), len(lefts), w.shape[3]), x.dtype)
    for p, top in enumerate(tops):
        for q, left in enumerate(lefts):
            out[:, p, q] = np.tensordot(x[:, top : top + rows, left : left + columns], w, 3)
    return out


def _conv2d_input_grad(a: Attributes, sizes: Array, w: Array, dy: Array) -> Array:
    n, height, width, channels = (int(s) for s in sizes)
    rows, columns = w.shape[:2]
    tops, lefts, pads = _windows(a, height, width, rows, columns)
    out = np.zeros((n, height + pads[0] + pads[1], width + pads[2] + pads[3], channels), dy.dtype)
    for p, top in enumerate(tops):
        for q, left in enumerate(lefts):
            out[:, top : top + rows, left : left + columns] += np.tensordot(dy[:, p, q], w, ([1], [3]))
    return out[:, pads[0] : pads[0] + height, pads[2] : pads[2] + width]


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- shapes -----------------------------------------------------------------------------------------------------------------------


def _index_dtype(a: Attributes, key: str = "out_type") -> Any:
    return np.dtype(a.get(key, "int32"))


def _strided_slice_index(a: Attributes, begin: Array, end: Array, strides: Array) -> tuple[Any, ...]:
    index: list[Any] = []
    for k in range(len(begin)):
        bit = 1 << k
        if a.get("ellipsis_mask", 0) & bit:
            index.append(Ellipsis)
        elif a.get("new_axis_mask", 0) & bit:
            index.append(None)
        elif a.get("shrink_axis_mask", 0) & bit:
            index.append(int(begin[k]))
        else:
            first = None if a.get("begin_mask", 0) & bit else int(begin[k])
            last = None if a.get("end_mask", 0) & bit else int(end[k])
            index.append(slice(first, last, int(strides[k])))
    return tuple(index)


def _strided_slice(a: Attributes, x: Array, begin: Array, end: Array, strides: Array) -> Array:
    return x[_strided_slice_index(a, begin, end, strides)]


def _strided_slice_grad(a: Attributes, shape: Array, begin: Array, end: Array, strides: Array, dy: Array) -> Array:
    out = np.zeros([int(s) for s in shape], dy.dtype)
    out[_strided_slice_index(a, begin, end, strides)] = dy
    return out


def _slice(a: Attributes, x: Array, begin: Array, size: Array) -> Array:
    return x[tuple(slice(int(b), None if s == -1 else int(b + s)) for b, s in zip(begin, size, strict=True))]


def _concat_offset(a: Attributes, axis: Array, *shapes: Array) -> tuple[Array, ...]:
    offset, found = 0, []
    for shape in shapes:
        found.append(np.array([offset if k == int(axis) else 0 for k in range(len(shape))], np.int32))
        offset += int(shape[int(axis)])
    return tuple(found)


def _split(a: Attributes, axis: Array, x: Array) -> tuple[Array, ...]:
    return tuple(np.split(x, a["num_split"], int(axis)))


def _one_hot(a: Attributes, indices: Array, depth: Array, on: Array, off: Array) -> Array:
    return np.where(np.expand_dims(indices, -1) == np.arange(int(depth)), on, off).astype(on.dtype)


def _cumsum(a: Attributes, x: Array, axis: Array) -> Array:
    k = int(axis)
    if a.get("reverse"):
        x = np.flip(x, k)
    out = np.cumsum(x, k)
    if a.get("exclusive"):
        out = out - x
    return np.flip(out, k) if a.get("reverse") else out


def _roll(a: Attributes, x: Array, shift: Array, axis: Array) -> Array:
    return np.roll(x, tuple(np.atleast_1d(shift).tolist()), tuple(np.atleast_1d(axis).tolist()))


def _top_k(a: Attributes, x: Array, k: Array) -> tuple[Array, Array]:
    order = np.argsort(-x, -1, kind="stable")[..., : int(k)]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def _gather(a: Attributes, x: Array, indices: Array, axis: Array = np.int32(0)) -> Array:  # noqa: B008
    if a.get("batch_dims", 0):
        raise NotImplementedError("GatherV2 with batch_dims")
    return np.take(x, indices, int(axis))


def _gather_nd(a: Attributes, x: Array, indices: Array) -> Array:
    return x[tuple(np.moveaxis(indices, -1, 0))]


def _scatter_nd(a: Attributes, indices: Array, updates: Array, shape: Array) -> Array:
    out = np.zeros([int(s) for s in shape], updates.dtype)
    np.add.at(out, tuple(np.moveaxis(indices, -1, 0)), updates)
    return out


def _tensor_scatter_update(a: Attributes, x: Array, indices: Array, updates: Array) -> Array:
    out = x.copy()
    out[tuple(np.moveaxis(indices, -1, 0))] = updates
    return out


def _unsorted_segment_sum(a: Attributes, x: Array, segments: Array, count: Array) -> Array:
    out = np.zeros((int(count), *x.shape[segments.ndim :]), x.dtype)
    np.add.at(out, segments, x)
    return out


def _segment_sum(a: Attributes, x: Array, segments: Array) -> Array:
    return _unsorted_segment_sum(a, x, segments, segments[-1] + 1)


def _squeeze(a: Attributes, x: Array) -> Array:
    dims = a.get("squeeze_dims") or [k for k, d in enumerate(x.shape) if d == 1]
    return np.squeeze(x, tuple(dims))


def _argmax(a: Attributes, x: Array, axis: Array) -> Array:
    return np.argmax(x, int(axis)).astype(_index_dtype(a, "output_type"))


# --- sums of anything -------------------------------------------------------------------------------------------------------------


def _add_n(a: Attributes, *inputs: Any) -> Any:
    if isinstance(inputs[0], TensorList):
        first = inputs[0]
        items = tuple(_sum_items(column) for column in zip(*(x.items for x in inputs), strict=True))
        return TensorList(items, first.element_shape, first.dtype)
    total = inputs[0]
    for x in inputs[1:]:
        total = total + x
    return total


def _sum_items(items: Sequence[Array | None]) -> Array | None:
    """Elements that were never set count as zeros."""
    given = [x for x in items if x is not None]
    return _add_n({}, *given) if given else None


def _zeros_like(a: Attributes, x: Any) -> Any:
    if isinstance(x, TensorList):
        return TensorList(tuple(None if i is None else np.zeros_like(i) for i in x.items), x.element_shape, x.dtype)
    return np.zeros_like(x)


# --- lists ------------------------------------------------------------------------------------------------------------------------


def _dims(shape: Array) -> tuple[int, ...]:
    return tuple(np.atleast_1d(shape).tolist()) if np.ndim(shape) else ()


def _element(a: Attributes, held: TensorList, item: Array | None, shape: tuple[int, ...]) -> Array:
    """An item; one that was never set is zeros of whichever shape is known."""
    if item is not None:
        return item
    known = held.element_shape if -1 not in held.element_shape else shape
    known = known if -1 not in known else next(i.shape for i in held.items if i is not None)
    return np.zeros(known, held.dtype)


def _list_reserve(a: Attributes, shape: Array, count: Array) -> TensorList:
    return TensorList((None,) * int(count), _dims(shape), a["element_dtype"])


def _list_empty(a: Attributes, shape: Array, limit: Array) -> TensorList:
    return TensorList((), _dims(shape), a["element_dtype"])


def _list_push(a: Attributes, held: TensorList, item: Array) -> TensorList:
    return TensorList((*held.items, item), held.element_shape, held.dtype)


def _list_pop(a: Attributes, held: TensorList, shape: Array) -> tuple[TensorList, Array]:
    rest = TensorList(held.items[:-1], held.element_shape, held.dtype)
    return rest, _element(a, held, held.items[-1], _dims(shape))


def _list_set(a: Attributes, held: TensorList, index: Array, item: Array) -> TensorList:
    k, items = int(index), list(held.items)
    if k < 0 or (k >= len(items) and not a.get("resize_if_index_out_of_bounds")):
        raise IndexError(f"TensorListSetItem: index {k} of {len(items)}")
    items += [None] * (k + 1 - len(items))
    items[k] = item
    return TensorList(tuple(items), held.element_shape, held.dtype)


def _list_get(a: Attributes, held: TensorList, index: Array, shape: Array) -> Array:
    if not 0 <= int(index) < len(held.items):
        raise IndexError(f"TensorListGetItem: index {int(index)} of {len(held.items)}")
    return _element(a, held, held.items[int(index)], _dims(shape))


def _list_stack(a: Attributes, held: TensorList, shape: Array) -> Array:
    items = [_element(a, held, i, _dims(shape)) for i in held.items]
    known = held.element_shape if -1 not in held.element_shape else _dims(shape)
    return np.stack(items) if items else np.zeros((0, *known), held.dtype)


def _list_from_tensor(a: Attributes, x: Array, shape: Array) -> TensorList:
    return TensorList(tuple(x), _dims(shape), a["element_dtype"])


def _list_concat(a: Attributes, held: TensorList, shape: Array, leading: Array) -> tuple[Array, Array]:
    items = [i for i in held.items if i is not None]
    return np.concatenate(items), np.array([len(i) for i in items], np.int64)


def _list_gather(a: Attributes, held: TensorList, indices: Array, shape: Array) -> Array:
    return np.stack([_element(a, held, held.items[int(i)], _dims(shape)) for i in indices])


def _list_scatter(a: Attributes, held: TensorList, x: Array, indices: Array) -> TensorList:
    items = [*held.items, *[None] * (1 + int(indices.max(initial=-1)) - len(held.items))]
    for k, i in enumerate(indices):
        items[int(i)] = x[k]
    return TensorList(tuple(items), held.element_shape, held.dtype)


KERNELS: dict[str, Kernel] = {
    # numbers
    "Abs": _simple(np.abs),
    "AddV2": _simple(np.add),
    "AddN": _add_n,
    "Asinh": _simple(np.arcsinh),
    "Atan": _simple(np.arctan),
    "Atan2": _simple(np.arctan2),
    "BiasAdd": _simple(np.add),
    "Cos": _simple(np.cos),
    "DivNoNan": lambda a, x, y: np.where(y == 0, 0, x / np.where(y == 0, 1, y)),
    "Elu": _simple(lambda x: np.where(x < 0, np.expm1(x), x)),
    "EluGrad": _simple(lambda dy, y: np.where(y < 0, dy * (y + 1), dy)),
    "Erf": _simple(np.vectorize(math.erf, otypes=[float])),
    "Exp": _simple(np.exp),
    "Expm1": _simple(np.expm1),
    "Floor": _simple(np.floor),
    "FloorMod": _simple(np.mod),
    "L2Loss": _simple(lambda x: (x * x).sum() / 2),
    "LeakyRelu": lambda a, x: np.where(x > 0, x, x * a["alpha"]),
    "Log1p": _simple(np.log1p),
    "LogSoftmax": _simple(lambda x: np.log(_softmax(x))),
    "Maximum": _simple(np.maximum),
    "Minimum": _simple(np.minimum),
    "Mul": _simple(np.multiply),
    "Neg": _simple(np.negative),
    "Pow": _simple(np.power),
    "RealDiv": _simple(np.divide),
    "Reciprocal": _simple(np.reciprocal),
    "Relu": _simple(lambda x: np.maximum(x, 0)),
    "Rsqrt": _simple(lambda x: 1 / np.sqrt(x)),
    "RsqrtGrad": _simple(lambda y, dy: -dy * y**3 / 2),
    "Selu": _simple(lambda x: np.where(x < 0, 1.7580993408473768599 * np.expm1(x), 1.0507009873554804934 * x)),
    "SeluGrad": _simple(lambda dy, y: np.where(y < 0, dy * (y + 1.7580993408473768599), dy * 1.0507009873554804934)),
    "Sigmoid": _simple(sigmoid),
    "SigmoidGrad": _simple(lambda y, dy: dy * y * (1 - y)),
    "Sign": _simple(np.sign),
    "Sin": _simple(np.sin),
    "Softmax": _simple(_softmax),
    "Softplus": _simple(lambda x: np.logaddexp(x, 0)),
    "SoftplusGrad": _simple(lambda dy, x: dy * sigmoid(x)),
    "Softsign": _simple(lambda x: x / (1 + np.abs(x))),
    "SoftsignGrad": _simple(lambda dy, x: dy / (1 + np.abs(x)) ** 2),
    "Sqrt": _simple(np.sqrt),
    "SqrtGrad": _simple(lambda y, dy: dy / (2 * y)),
    "Square": _simple(np.square),
    "SquaredDifference": _simple(lambda x, y: (x - y) ** 2),
    "Sub": _simple(np.subtract),
    "Tanh": _simple(np.tanh),
    "TanhGrad": _simple(lambda y, dy: dy * (1 - y * y)),
    # truth
    "Any": _reduction(np.any),
    "Equal": _simple(np.equal),
    "Greater": _simple(np.greater),
    "GreaterEqual": _simple(np.greater_equal),
    "Less": _simple(np.less),
    "LogicalAnd": _simple(np.logical_and),
    "SelectV2": _simple(np.where),
    # reductions
    "Max": _reduction(np.max),
    "Mean": _reduction(np.mean),
    "Min": _reduction(np.min),
    "Prod": _reduction(np.prod),
    "Sum": _reduction(np.sum),
    "ArgMax": _argmax,
    "Cumsum": _cumsum,
    "SegmentSum": _segment_sum,
    "TopKV2": _top_k,
    "UnsortedSegmentSum": _unsorted_segment_sum,
    # products
    "BatchMatMulV2": _batch_matmul,
    "Conv2D": _conv2d,
    "Conv2DBackpropInput": _conv2d_input_grad,
    "Einsum": lambda a, *inputs: np.einsum(a["equation"], *inputs),
    "MatMul": _matmul,
    # shapes and places
    "BroadcastTo": lambda a, x, shape: np.broadcast_to(x, tuple(shape)),
    "Cast": lambda a, x: x.astype(a["DstT"]),
    "ConcatOffset": _concat_offset,
    "ConcatV2": lambda a, *inputs: np.concatenate(inputs[:-1], int(inputs[-1])),
    "ExpandDims": lambda a, x, axis: np.expand_dims(x, int(axis)),
    "Fill": lambda a, shape, value: np.full(tuple(shape), value),
    "GatherNd": _gather_nd,
    "GatherV2": _gather,
    "InvertPermutation": lambda a, x: np.argsort(x).astype(x.dtype),
    "MatrixBandPart": lambda a, x, low, high: np.tril(np.triu(x, -low if low >= 0 else -(10**6)), high if high >= 0 else 10**6),
    "OneHot": _one_hot,
    "Pack": lambda a, *inputs: np.stack(inputs, a.get("axis", 0)),
    "Pad": lambda a, x, pads: np.pad(x, pads),
    "Range": lambda a, start, limit, delta: np.arange(start, limit, delta),
    "Reshape": lambda a, x, shape: x.reshape(tuple(shape)),
    "ReverseV2": lambda a, x, axis: np.flip(x, _axes(axis)),
    "Roll": _roll,
    "ScatterNd": _scatter_nd,
    "Shape": lambda a, x: np.array(x.shape, _index_dtype(a)),
    "ShapeN": lambda a, *inputs: tuple(np.array(x.shape, _index_dtype(a)) for x in inputs),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": _strided_slice_grad,
    "TensorScatterUpdate": _tensor_scatter_update,
    "Tile": lambda a, x, times: np.tile(x, tuple(times)),
    "Transpose": lambda a, x, order: np.transpose(x, tuple(order)),
    "Unpack": lambda a, x: tuple(np.moveaxis(x, a.get("axis", 0), 0)),
    "Where": lambda a, x: np.argwhere(x),
    "ZerosLike": _zeros_like,
    # lists
    "EmptyTensorList": _list_empty,
    "TensorListConcatV2": _list_concat,
    "TensorListElementShape": lambda a, held: np.array(held.element_shape, a.get("shape_type", "int32")),
    "TensorListFromTensor": _list_from_tensor,
    "TensorListGather": _list_gather,
    "TensorListGetItem": _list_get,
    "TensorListLength": lambda a, held: np.int32(len(held.items)),
    "TensorListPopBack": _list_pop,
    "TensorListPushBack": _list_push,
    "TensorListReserve": _list_reserve,
    "TensorListScatterIntoExistingList": _list_scatter,
    "TensorListSetItem": _list_set,
    "TensorListStack": _list_stack,
    # what branches leave for their gradients
    "OptionalFromValue": lambda a, *values: Optional(values),
    "OptionalGetValue": _optional_values,
    "OptionalNone": lambda a: Optional(None),
    # what only passes on
    "Enter": lambda a, x: x,
    "Exit": lambda a, x: x,
    "Identity": lambda a, x: x,
    "IdentityN": lambda a, *inputs: inputs,
    "LoopCond": lambda a, x: x,
    "NextIteration": lambda a, x: x,
    "NoOp": lambda a, *inputs: (),
    "_Retval": lambda a, *inputs: (),
}
