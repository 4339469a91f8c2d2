"""Shapes of one op's outputs without running it, and the values of the small integers that shapes and trip counts hang on.

TensorFlow's own shape functions are asked, each signature once. What they cannot say and the op computes from values that are all known
(constants, shapes, loop counters) is folded, as TensorFlow's constant folding does. Lists (`TensorList...`) are followed here: their length
and the shapes of their items. Whatever depends on data has no shape here: `UnknownShapeError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

from fathom_trace.capture.graph import GraphNode
from fathom_trace.capture.opaque import Argument, expand, is_opaque_call
from fathom_trace.capture.signatures import dtype_name
from fathom_trace.ops import kind

Shape = tuple[int, ...]

FOLDED_ELEMENTS = 4096
"""The most elements of a value that is kept."""

PASSES_ON = frozenset(
    {"Identity", "IdentityN", "Snapshot", "StopGradient", "PreventGradient", "EnsureShape", "CheckNumerics", "LoopCond"}
)
"""Op types whose outputs are their inputs."""

KERNEL_SHAPES: Mapping[str, Mapping[int, Shape]] = {"FusedBatchNormV3": {5: ()}}
"""Outputs that TensorFlow's shape functions leave open and its CPU kernels fix: `reserve_space_3` is empty there."""

ASSUMED_SHAPES: Mapping[str, Sequence[Shape]] = {"ComputeAccidentalHits": ((0,), (0,), (0,))}
"""Outputs whose shape depends on data but which no product reads, with what is taken instead; whoever asks is told (`assumed`).

A sampled softmax takes its accidental hits, sampled classes that are true ones, out of the logits; here there are none.
"""

_SHAPE_READERS = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})


_HANDLES = (tf.resource, tf.variant)


class UnknownShapeError(Exception):
    """The shape of an output cannot be told without the data; the text says why."""


@dataclass(frozen=True)
class ItemList:
    """A list: how many items (None if not known), the shape asked of each (-1: free; None: any), and the shapes that they have.

    `stack` are the pushed items, the last one first, as (item, the rest): a loop's trip count may be among them, for its gradient's loop.
    `item` is the shape of items that were set by number.
    """

    length: int | None
    dtype: str
    asked: Shape | None
    item: Shape | None = None
    stack: tuple[Value, Any] | None = None
    is_mixed: bool = False


@dataclass(frozen=True, eq=False)
class Value:
    """A live output: dtype, shape, its content where that is known, and what a handle refers to."""

    dtype: str
    shape: Shape
    known: NDArray[Any] | None = None
    variable: tuple[str, Shape] | None = None
    items: ItemList | None = None


class ShapeInference:
    """Outputs of ops from values of their inputs; remembers what it was asked."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self.library = library
        self._attributes: dict[int, bytes] = {}
        self._answers: dict[Any, list[Shape | None]] = {}
        self._constants: dict[int, Value] = {}
        self.assumed: dict[str, str] = {}
        """Nodes whose shapes depend on data, with what was taken instead."""

    def outputs(self, node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of one execution.

        Raises:
            UnknownShapeError: a shape depends on data.
        """
        if node.op in PASSES_ON:
            return list(inputs)
        if node.op == "Const":
            return [self._constant(node)]
        if node.op == "VarHandleOp":
            dtype, shape = str(node.attributes["dtype"]), tuple(int(d) for d in node.attributes["shape"])
            return [Value("resource", (), variable=(dtype, shape))]
        if node.op in _LIST_RULES:
            return _LIST_RULES[node.op](node, inputs)
        if is_opaque_call(node.op, node.attributes):
            return self._call(node, inputs)
        lists = [value.items for value in inputs if value.items is not None]
        if lists:
            if node.op in ("AddN", "ZerosLike"):
                return [Value("variant", (), items=lists[0])]
            raise UnknownShapeError("it takes a list apart in a way that is not followed here")
        shapes = self._infer(node, inputs)
        dtypes = _output_dtypes(node)
        if None in shapes and node.op in ASSUMED_SHAPES:
            shapes = list(ASSUMED_SHAPES[node.op])
            self.assumed[node.name] = f"{node.op}: {', '.join(str(list(s)) for s in shapes if s is not None)}"
        if node.op in _SHAPE_READERS:
            return [Value(d, s, known=v) for d, s, v in zip(dtypes, _whole(shapes), _shapes_read(node, inputs, dtypes), strict=True)]
        if all(value.known is not None for value in inputs) and inputs and _is_foldable(node, shapes, dtypes):
            return self._fold(node, inputs)
        return [Value(dtype, shape) for dtype, shape in zip(dtypes, _whole(shapes), strict=True)]

    # --- constants and calls ----------------------------------------------------------------------------------------------------

    def _constant(self, node: GraphNode) -> Value:
        key = id(node)
        if key not in self._constants:
            proto = node.definition.attr["value"].tensor
            shape = tuple(int(d.size) for d in proto.tensor_shape.dim)
            dtype = dtype_name(proto.dtype)
            is_small = math.prod(shape) <= FOLDED_ELEMENTS and dtype not in ("string", "resource", "variant")
            self._constants[key] = Value(dtype, shape, known=tf.make_ndarray(proto) if is_small else None)
        return self._constants[key]

    def _call(self, node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
        given = [Argument(*(v.variable or (v.dtype, v.shape)), is_variable=v.variable is not None) for v in inputs]
        function = str(node.attributes.get("f") or node.attributes.get("function", ""))
        inner = expand(function, self.library, given)
        if inner is None:
            raise UnknownShapeError(f"it is a call of '{function}', which is compiled as a whole and has shapes that depend on data")
        made: list[Value] = []
        for op in inner:
            if op.op == "_Retval":
                producer, port = op.inputs[0]
                made.append(inputs[-1 - producer] if producer < 0 else Value(*inner[producer].outputs[port]))
        return made

    # --- shape functions --------------------------------------------------------------------------------------------------------

    def _infer(self, node: GraphNode, inputs: Sequence[Value]) -> list[Shape | None]:
        """The shape of each output, None where it is not fully known: first from shapes alone, then from values too."""
        attributes = self._attributes.get(id(node))
        if attributes is None:
            own = {k: v for k, v in node.definition.attr.items() if not k.startswith("_")}
            attributes = b"".join(k.encode() + v.SerializeToString(deterministic=True) for k, v in sorted(own.items()))
            self._attributes[id(node)] = attributes
        shapes = tuple((v.dtype, v.shape, v.variable) for v in inputs)
        key: Any = (node.op, attributes, shapes)
        if key not in self._answers:
            self._answers[key] = self._ask(node, inputs, False)
        found = self._answers[key]
        if None not in found or all(v.known is None for v in inputs):
            return found
        key = (*key, tuple(None if v.known is None else v.known.tobytes() for v in inputs))
        if key not in self._answers:
            self._answers[key] = self._ask(node, inputs, True)
        return self._answers[key]

    def _ask(self, node: GraphNode, inputs: Sequence[Value], with_values: bool) -> list[Shape | None]:
        definition = graph_pb2.GraphDef()
        definition.versions.producer = tf.version.GRAPH_DEF_VERSION
        for number, value in enumerate(inputs):
            _add_input(definition, f"input_{number}", value, with_values)
        asked = definition.node.add(name="asked", op=node.op, input=[f"input_{n}" for n in range(len(inputs))])
        for name, attribute in node.definition.attr.items():
            if not name.startswith("_"):
                asked.attr[name].CopyFrom(attribute)
        functions = [a.func.name for a in asked.attr.values() if a.HasField("func")]
        if functions:
            definition.library.function.extend(self.library.values())
        with tf.Graph().as_default() as graph:
            try:
                tf.graph_util.import_graph_def(definition, name="")
            except ValueError as error:
                raise UnknownShapeError(f"TensorFlow refuses its inputs ({' '.join(str(error).split())[:200]})") from None
        found: list[Shape | None] = []
        fixed = KERNEL_SHAPES.get(node.op, {})
        for port, tensor in enumerate(graph.get_operation_by_name("asked").outputs):
            is_whole = tensor.shape.is_fully_defined()
            found.append(tuple(tensor.shape.as_list()) if is_whole else () if tensor.dtype in _HANDLES else fixed.get(port))
        return found

    # --- folding ----------------------------------------------------------------------------------------------------------------

    def _fold(self, node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
        definition = op_def_registry.get(node.op)
        attributes: list[Any] = []
        for spec in definition.attr:
            if spec.name in node.definition.attr:
                attributes += [spec.name, _plain(node.definition.attr[spec.name])]
        given = [tf.constant(v.known) for v in inputs]
        dtypes = _output_dtypes(node)
        try:
            made = execute.execute(node.op.encode(), len(dtypes), given, tuple(attributes), context.context())
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise UnknownShapeError(f"its constant inputs do not fit it ({' '.join(str(error).split())[:200]})") from None
        values = [np.asarray(tensor.numpy()) for tensor in made]
        return [Value(d, v.shape, known=v if v.size <= FOLDED_ELEMENTS else None) for d, v in zip(dtypes, values, strict=True)]


def _add_input(definition: Any, name: str, value: Value, with_values: bool) -> None:
    """A constant where the value is known and wanted; else a placeholder, or of a variable its handle, from which shapes are inferred."""
    if with_values and value.known is not None:
        node = definition.node.add(name=name, op="Const")
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value.known))
        node.attr["dtype"].type = node.attr["value"].tensor.dtype
        return
    dtype, shape = value.variable or (value.dtype, value.shape)
    node = definition.node.add(name=name, op="VarHandleOp" if value.variable else "Placeholder")
    node.attr["dtype"].type = tf.dtypes.as_dtype(dtype).as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())


def _output_dtypes(node: GraphNode) -> list[str]:
    """The dtype of every output, from the op's definition and the node's attributes."""
    found: list[str] = []
    attributes = node.definition.attr
    definition = op_def_registry.get(node.op)
    if definition is None:
        raise UnknownShapeError("TensorFlow has no definition of this op type")
    for output in definition.output_arg:
        if output.type_list_attr:
            found += [dtype_name(number) for number in attributes[output.type_list_attr].list.type]
            continue
        number = attributes[output.type_attr].type if output.type_attr else output.type
        found += [dtype_name(number)] * (attributes[output.number_attr].i if output.number_attr else 1)
    return found


def _is_foldable(node: GraphNode, shapes: Sequence[Shape | None], dtypes: Sequence[str]) -> bool:
    """True where the op always makes the same of the same, and not too much; its inputs are all known."""
    definition = op_def_registry.get(node.op)
    if definition is None or definition.is_stateful or kind(node.op) == "random" or not dtypes:
        return False
    if any(a.type in ("func", "list(func)", "tensor", "list(tensor)") for a in definition.attr):
        return False
    if any(dtype in ("resource", "variant", "string") for dtype in dtypes):
        return False
    return all(shape is None or math.prod(shape) <= FOLDED_ELEMENTS for shape in shapes)


def _plain(attribute: Any) -> Any:
    """A node's attribute as eager execution takes it."""
    field = attribute.WhichOneof("value")
    if field == "list":
        values = attribute.list
        return next((list(items) for items in (values.i, values.type, values.f, values.b, values.s) if len(items)), [])
    if field == "shape":
        return None if attribute.shape.unknown_rank else [d.size for d in attribute.shape.dim]
    return getattr(attribute, field)


def _whole(shapes: Sequence[Shape | None]) -> list[Shape]:
    if any(shape is None for shape in shapes):
        raise UnknownShapeError("the shape of its output depends on data")
    return [shape for shape in shapes if shape is not None]


def _shapes_read(node: GraphNode, inputs: Sequence[Value], dtypes: Sequence[str]) -> list[NDArray[Any]]:
    """What an op that looks only at shapes gives."""
    if node.op == "Size":
        found: list[Any] = [math.prod(inputs[0].shape)]
    elif node.op == "Rank":
        found = [len(inputs[0].shape)]
    else:
        found = [value.variable[1] if value.variable else value.shape for value in inputs]
    return [np.array(content, dtype) for content, dtype in zip(found, dtypes, strict=True)]


# --- lists ------------------------------------------------------------------------------------------------------------------------

Rule = Callable[[GraphNode, Sequence[Value]], list[Value]]


def _list_of(value: Value) -> ItemList:
    if value.items is None:
        raise UnknownShapeError("it reads a list that was made in a way that is not followed here")
    return value.items


def _number(value: Value, what: str) -> int:
    if value.known is None:
        raise UnknownShapeError(f"{what} depends on data")
    return int(value.known.reshape(-1)[0])


def _asked(value: Value) -> Shape | None:
    """The shape that is asked of items: -1 where a dimension is free, None where all are."""
    if value.known is None:
        raise UnknownShapeError("the shape of a list's items depends on data")
    return None if value.known.ndim == 0 else tuple(int(d) for d in value.known)


def _handle(items: ItemList) -> Value:
    return Value("variant", (), items=items)


def _item(items: ItemList, asked: Shape | None) -> Value:
    """One item: the shape of what was put in, or what is asked for where nothing was (it is then all zeros)."""
    if items.is_mixed:
        raise UnknownShapeError("the items of the list that it reads have different shapes")
    return Value(items.dtype, _item_shape(items, asked))


def _item_shape(items: ItemList, asked: Shape | None) -> Shape:
    pushed = items.stack[0].shape if items.stack else None
    for shape in (items.item, pushed, asked, items.asked):
        if shape is not None and all(d >= 0 for d in shape):
            return shape
    raise UnknownShapeError("nothing says the shape of the items of the list that it reads")


def _reserve(node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    return [_handle(ItemList(_number(inputs[1], "the length of the list"), str(node.attributes["element_dtype"]), _asked(inputs[0])))]


def _empty(node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    return [_handle(ItemList(0, str(node.attributes["element_dtype"]), _asked(inputs[0])))]


def _push(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    items = _list_of(inputs[0])
    return [_handle(replace(items, length=None if items.length is None else items.length + 1, stack=(inputs[1], items.stack)))]


def _pop(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    items = _list_of(inputs[0])
    item = items.stack[0] if items.stack else _item(items, _asked(inputs[1]))
    shorter = None if items.length is None else max(items.length - 1, 0)
    return [_handle(replace(items, length=shorter, stack=items.stack[1] if items.stack else None)), item]


def _set_item(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    items, shape = _list_of(inputs[0]), inputs[2].shape
    differs = items.item is not None and items.item != shape
    index = inputs[1].known
    length = items.length
    if length is not None and index is not None:
        length = max(length, int(index) + 1)
    return [_handle(replace(items, length=length, item=shape, is_mixed=items.is_mixed or differs))]


def _get_item(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    return [_item(_list_of(inputs[0]), _asked(inputs[2]))]


def _stack(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    items = _list_of(inputs[0])
    if items.length is None:
        raise UnknownShapeError("the length of the list that it reads depends on data")
    return [Value(items.dtype, (items.length, *_item(items, _asked(inputs[1])).shape))]


def _from_tensor(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    length, *item = inputs[0].shape
    return [_handle(ItemList(length, inputs[0].dtype, _asked(inputs[1]), item=tuple(item)))]


def _length(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    length = _list_of(inputs[0]).length
    return [Value("int32", (), known=None if length is None else np.array(length, np.int32))]


def _element_shape(node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    asked, dtype = _list_of(inputs[0]).asked, str(node.attributes["shape_type"])
    known = np.array(-1 if asked is None else asked, dtype)
    return [Value(dtype, known.shape, known=known)]


def _resize(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    return [_handle(replace(_list_of(inputs[0]), length=_number(inputs[1], "the length of the list")))]


def _gather(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    items = _list_of(inputs[0])
    return [Value(items.dtype, (*inputs[1].shape, *_item(items, _asked(inputs[2])).shape))]


def _scatter(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    length = _number(inputs[3], "the length of the list")
    if length < 0:
        length = inputs[1].shape[0]
    return [_handle(ItemList(length, inputs[0].dtype, _asked(inputs[2]), item=inputs[0].shape[1:]))]


def _concat(_node: GraphNode, inputs: Sequence[Value]) -> list[Value]:
    items = _list_of(inputs[0])
    shape = _item(items, None).shape
    if items.length is None or not shape:
        raise UnknownShapeError("the length of the list that it reads depends on data")
    return [Value(items.dtype, (items.length * shape[0], *shape[1:])), Value("int64", (items.length,))]


_LIST_RULES: Mapping[str, Rule] = {
    "TensorListReserve": _reserve,
    "EmptyTensorList": _empty,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListSetItem": _set_item,
    "TensorListGetItem": _get_item,
    "TensorListStack": _stack,
    "TensorListFromTensor": _from_tensor,
    "TensorListLength": _length,
    "TensorListElementShape": _element_shape,
    "TensorListResize": _resize,
    "TensorListGather": _gather,
    "TensorListScatterV2": _scatter,
    "TensorListConcatV2": _concat,
}
