"""Looks inside calls that TensorFlow runs as one op (`jit_compile=True`): shapes of what they hide, from the function library.

The time stays on the call. What is inside a loop or branch of a compiled function is not expanded: how often it ran cannot be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from fathom_trace.capture.graph import attributes

CALL_OPS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"})
_INTERFACE_OPS = frozenset({"Placeholder", "_Arg", "_Retval", "NoOp"})
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


def is_opaque_call(op: str, attrs: Mapping[str, Any]) -> bool:
    """True for a node that hides a function's ops from the step stats."""
    return op in CALL_OPS and ("f" in attrs or "function" in attrs)


def expand(function: str, library: Mapping[str, Any], shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[InnerOp] | None:
    """The ops of a library function called with these argument shapes, in topological order.

    None where the library lacks the function, or a shape inside it cannot be told from the arguments' shapes.
    """
    found: list[InnerOp] = []
    arguments = [(-1 - k, 0) for k in range(len(shapes))]
    outputs = _walk(function, library, shapes, arguments, "", found, 0)
    return found if outputs is not None else None


def _walk(
    function: str,
    library: Mapping[str, Any],
    shapes: Sequence[Shape],
    arguments: Sequence[tuple[int, int]],
    prefix: str,
    found: list[InnerOp],
    depth: int,
) -> list[tuple[int, int]] | None:
    """Append the ops of one function; returns where its outputs come from, or None when it cannot be expanded."""
    definition = library.get(function)
    if definition is None or depth > _MAX_DEPTH:
        return None
    with tf.Graph().as_default():
        graph = function_def_to_graph(definition, input_shapes=[tf.TensorShape(s) for s in shapes], include_library_functions=True)
    place: dict[str, tuple[int, int]] = {t.name: arguments[k] for k, t in enumerate(graph.inputs[: len(arguments)])}
    for op in graph.get_operations():
        if op.type in _INTERFACE_OPS:
            continue
        inputs = tuple(place[t.name] for t in op.inputs)
        if op.type in CALL_OPS:
            inner = _walk(
                op.get_attr("f").name,
                library,
                [tuple(t.shape.as_list()) for t in op.inputs],
                inputs,
                f"{prefix}{op.name}/",
                found,
                depth + 1,
            )
            if inner is None:
                return None
            place.update({t.name: source for t, source in zip(op.outputs, inner, strict=True)})
            continue
        if not all(t.shape.is_fully_defined() for t in op.outputs if t.dtype not in (tf.resource, tf.variant)):
            return None
        outputs = tuple((t.dtype.name, tuple(t.shape.as_list()) if t.shape.rank is not None else ()) for t in op.outputs)
        found.append(InnerOp(f"{prefix}{op.name}", op.type, attributes(op.node_def), inputs, outputs))
        place.update({t.name: (len(found) - 1, port) for port, t in enumerate(op.outputs)})
    return [place[t.name] for t in graph.outputs]
