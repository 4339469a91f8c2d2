"""Looks inside calls that TensorFlow runs as one op (`jit_compile=True`): shapes of what they hide, from the function library.

Calls within a call are inlined, variables that it is given stand in it as variables, so that the shapes of what reads them are known. What
the call returns is a `_Retval` for each output, by which a consumer of the call is joined to what really made its value. The time stays
on the call. What is inside a loop or branch of a compiled function is not expanded: how often it ran cannot be known. A function in which
TensorFlow 1 wrote loops or branches out is not expanded at all, for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fathom_trace.capture.graph import attributes, output_offset
from fathom_trace.capture.legacy import WRITTEN_OUT
from fathom_trace.ops import UNKNOWN, kind

CALL_OPS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"})
_HANDLES = (tf.resource, tf.variant)
_MAX_DEPTH = 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class InnerOp:
    """An op inside a call. Inputs are (inner op, port), or (-1 - k, 0) for argument k of the call; outputs are (dtype, shape)."""

    name: str
    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[str, Shape], ...]
    definition: Any = None


@dataclass(frozen=True)
class Argument:
    """What a call is given: a tensor's dtype and shape, or with `is_variable` those of the variable whose handle it is."""

    dtype: str
    shape: Shape
    is_variable: bool = False


def is_opaque_call(op: str, attrs: Mapping[str, Any]) -> bool:
    """True for a node that hides a function's ops from the step stats."""
    return op in CALL_OPS and ("f" in attrs or "function" in attrs)


def runs_function(op: str, definition: Any) -> bool:
    """True for a node that runs a function whose ops the step stats do not show: a loop, a branch, a reduction of a data set, ..."""
    if kind(op) == "opaque":
        return True
    attrs = definition.attr.values() if definition is not None else ()
    has_function = any(value.WhichOneof("value") == "func" or value.list.func for value in attrs)
    return has_function and kind(op) == UNKNOWN


def expand(function: str, library: Mapping[str, Any], arguments: Sequence[Argument]) -> list[InnerOp] | None:
    """The ops of a library function called with these arguments, in topological order, then a `_Retval` for each of its outputs.

    None where the library lacks a function, or a shape cannot be told from the arguments' shapes.
    """
    inliner = _Inliner(library)
    names = [f"call_argument_{k}" for k in range(len(arguments))]
    try:
        results = inliner.inline(function, [f"{name}:0" for name in names], "", 0)
    except _HiddenError:
        return None
    definition = graph_pb2.GraphDef(node=inliner.nodes)
    definition.versions.producer = tf.version.GRAPH_DEF_VERSION
    for name, argument in zip(names, arguments, strict=True):
        _add_argument(definition, name, argument)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
    place = {f"{name}:0": (-1 - k, 0) for k, name in enumerate(names)}
    found: list[InnerOp] = []
    for op in graph.get_operations():
        if op.name in names:
            continue
        if not all(t.shape.is_fully_defined() for t in op.outputs if t.dtype not in _HANDLES):
            return None
        outputs = tuple((t.dtype.name, tuple(t.shape.as_list()) if t.shape.rank is not None else ()) for t in op.outputs)
        inputs = tuple(place[t.name] for t in op.inputs)
        place.update({t.name: (len(found), port) for port, t in enumerate(op.outputs)})
        found.append(InnerOp(op.name, op.type, attributes(op.node_def), inputs, outputs, op.node_def if op.type == "Const" else None))
    ends = (InnerOp(f"_retval_{k}", "_Retval", {"index": k}, (place[result],), ()) for k, result in enumerate(results))
    return [*found, *ends]


def _add_argument(definition: Any, name: str, argument: Argument) -> None:
    """Add a Placeholder, or of a variable its handle: TensorFlow infers the shapes of what is read from a handle, not from its copy."""
    node = definition.node.add(name=name, op="VarHandleOp" if argument.is_variable else "Placeholder")
    node.attr["dtype"].type = tf.dtypes.as_dtype(argument.dtype).as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(argument.shape).as_proto())
    if argument.is_variable:
        node.attr["shared_name"].s = name.encode()


class _HiddenError(Exception):
    """A function is not in the library, calls itself, or has loops or branches written out."""


class _Inliner:
    """Copies the ops of functions into one flat graph. Values are named `node:port` there."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self.library = library
        self.nodes: list[Any] = []

    def inline(self, function: str, arguments: Sequence[str], prefix: str, depth: int) -> list[str]:
        """Add the ops of a function and of what it calls; returns where its outputs are.

        Raises:
            _HiddenError: it cannot be inlined.
        """
        definition = self.library.get(function)
        if definition is None or depth > _MAX_DEPTH or any(node.op in WRITTEN_OUT for node in definition.node_def):
            raise _HiddenError
        bodies = {node.name: node for node in definition.node_def}
        given = {arg.name: value for arg, value in zip(definition.signature.input_arg, arguments, strict=True)}
        returned: dict[str, list[str]] = {}

        def value(text: str) -> str:
            name, *rest = text.split(":")
            if name in given:
                return given[name]
            node = bodies[name]
            port = output_offset(node, rest[0]) + int(rest[1])
            return call(node)[port] if node.op in CALL_OPS else f"{prefix}{name}:{port}"

        def call(node: Any) -> list[str]:
            if node.name not in returned:
                inner = (node.attr["f"] if "f" in node.attr else node.attr["function"]).func.name
                returned[node.name] = self.inline(inner, inputs(node), f"{prefix}{node.name}/", depth + 1)
            return returned[node.name]

        def inputs(node: Any) -> list[str]:
            return [value(text) for text in node.input if not text.startswith("^")]

        for node in definition.node_def:
            if node.op in CALL_OPS:
                call(node)
            elif node.op != "NoOp":
                self._add(node, f"{prefix}{node.name}", inputs(node))
        return [value(definition.ret[arg.name]) for arg in definition.signature.output_arg]

    def _add(self, node: Any, name: str, inputs: Sequence[str]) -> None:
        copy = type(node)()
        copy.CopyFrom(node)
        copy.name = name
        copy.device = ""
        del copy.input[:]
        copy.input.extend(inputs)
        copy.attr.pop("_output_shapes", None)
        copy.attr.pop("_class", None)
        self.nodes.append(copy)
