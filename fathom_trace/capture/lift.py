"""Lifts a concrete `tf.function` into a graph that a session can run under full tracing.

The function's graph is imported into a `tf.compat.v1.Graph`. Inputs stay placeholders and are fed: a constant would be folded and whole
layers with it. Captured variables become variables of the new graph, assigned from fed values, so that no value ever enters the
GraphDef (which is limited to 2 GB). Other captured tensors are fed as well. `parallel_iterations` of every while loop is set to 1, in
the function library too: only then is an op's n-th record its n-th iteration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from fathom_trace.errors import CaptureError

LOOP_OPS = frozenset({"While", "StatelessWhile", "Enter", "RefEnter"})
"""What carries `parallel_iterations`: functional loops, and in graphs of TensorFlow 1 the ops that they are lowered to."""


@dataclass(frozen=True)
class LiftedVariable:
    """A variable of the lifted graph. `slot_of` is the name of the variable whose optimiser slot it is, or empty."""

    name: str
    node_name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    slot_of: str
    slot_name: str
    handle: Any
    assign: Any
    assign_value: Any
    source: Any


@dataclass(frozen=True)
class Lifted:
    """A graph ready to run: feeds and fetches by the user's names, targets that must run, values for captured tensors."""

    graph: Any
    graph_def: Any
    feeds: dict[str, Any]
    fetches: dict[str, Any]
    targets: list[Any]
    captured: dict[str, tuple[Any, NDArray[Any]]]
    variables: tuple[LiftedVariable, ...]


@dataclass(frozen=True)
class KnownVariable:
    """What a program says about one of its variables."""

    variable: Any
    trainable: bool = False
    slot_of: Any = None
    slot_name: str = ""


def lift(concrete: Any, input_names: Sequence[str], known: Sequence[KnownVariable], is_serialised: bool = True) -> Lifted:
    """The lifted graph of a concrete function whose flattened inputs are called `input_names`.

    `is_serialised` sets every loop's `parallel_iterations` to 1; without it the graph serves for timing only.

    Raises:
        CaptureError: the function captures something that a session cannot be given (a table, an iterator).
    """
    graph_def = concrete.graph.as_graph_def()
    if not graph_def.node:
        raise CaptureError("the program has no operations; give a function that computes something with TensorFlow")
    if is_serialised:
        _serialise_loops(graph_def)
    captured = concrete.captured_inputs
    placeholders = list(concrete.graph.inputs)
    split = len(placeholders) - len(captured)
    names = _variable_names(concrete, known)
    scope = _free_scope(graph_def)
    graph = tf.compat.v1.Graph()
    variables: list[LiftedVariable] = []
    dense: dict[str, NDArray[Any]] = {}
    with graph.as_default():
        input_map: dict[str, Any] = {}
        for external, internal in zip(captured, placeholders[split:], strict=True):
            if internal.dtype == tf.resource:
                made, handle = _variable(external, internal, names, scope)
                variables.append(made)
                input_map[internal.name] = handle
            elif internal.dtype == tf.variant:
                raise CaptureError(
                    f"the program captures '{internal.op.name}', a {internal.dtype.name} object (an iterator or a data set?), which cannot"
                    " be carried into a session; pass its values as inputs instead"
                )
            else:
                dense[internal.name] = np.asarray(external.numpy())
        tf.graph_util.import_graph_def(graph_def, input_map=input_map, name="")
    at = graph.get_tensor_by_name
    return Lifted(
        graph=graph,
        graph_def=graph_def,
        feeds={n: at(p.name) for n, p in zip(input_names, placeholders[:split], strict=True)},
        fetches={n: at(o.name) for n, o in zip(_output_names(concrete), concrete.graph.outputs, strict=True)},
        targets=[graph.get_operation_by_name(o.name) for o in concrete.graph.control_outputs],
        captured={name: (at(name), value) for name, value in dense.items()},
        variables=tuple(variables),
    )


def _serialise_loops(graph_def: Any) -> None:
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        for node in nodes:
            if node.op in LOOP_OPS:
                node.attr["parallel_iterations"].i = 1


def _variable_names(concrete: Any, known: Sequence[KnownVariable]) -> dict[int, tuple[str, KnownVariable]]:
    """By the identity of each variable's handle: its name, unique among them, and what is known of it."""
    listed = {id(k.variable.handle): k for k in known}
    for variable in concrete.graph.variables:
        listed.setdefault(id(variable.handle), KnownVariable(variable, bool(variable.trainable)))
    result: dict[int, tuple[str, KnownVariable]] = {}
    taken: set[str] = set()
    for key, item in listed.items():
        base = str(getattr(item.variable, "path", "") or item.variable.name).split(":")[0]
        name, count = base, 1
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        taken.add(name)
        result[key] = (name, item)
    return result


def _variable(external: Any, internal: Any, names: Mapping[int, tuple[str, KnownVariable]], scope: str) -> tuple[LiftedVariable, Any]:
    data = getattr(external, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        raise CaptureError(
            f"the program captures '{internal.op.name}', a resource that is not a variable (a lookup table or an iterator?);"
            " it cannot be carried into a session: look its values up before the step and pass them as inputs"
        )
    dtype = tf.dtypes.as_dtype(data.shape_and_type[0].dtype)
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    name, item = names.get(id(external), (_handle_name(external, internal), KnownVariable(None)))
    source = item.variable if item.variable is not None else _Handle(external, dtype)
    if not shape.is_fully_defined():
        shape = tf.TensorShape(np.shape(source.numpy()))
    node_name = tf.compat.v1.get_default_graph().unique_name(f"{scope}/{_node_name(name)}", mark_as_used=False)
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=node_name, name=node_name)
    value = tf.compat.v1.placeholder(dtype, shape, name=f"{node_name}/initial_value")
    assign = tf.raw_ops.AssignVariableOp(resource=handle, value=value, name=f"{node_name}/assign")
    slot_of = names[id(item.slot_of.handle)][0] if item.slot_of is not None else ""
    made = LiftedVariable(
        name=name,
        node_name=handle.op.name,
        dtype=dtype.name,
        shape=tuple(shape.as_list()),
        trainable=item.trainable,
        slot_of=slot_of,
        slot_name=item.slot_name,
        handle=handle,
        assign=assign,
        assign_value=value,
        source=source,
    )
    return made, handle


@dataclass(frozen=True)
class _Handle:
    """The value behind a resource handle that no `tf.Variable` object was found for."""

    handle: Any
    dtype: Any

    def numpy(self) -> NDArray[Any]:
        return np.asarray(tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype).numpy())


def _free_scope(graph_def: Any) -> str:
    """A name scope that no node of the graph lies in, so that variables do not take the names of its ops."""
    taken = {node.name.split("/")[0] for node in graph_def.node}
    scope = "variables"
    while scope in taken:
        scope += "_"
    return scope


def _handle_name(external: Any, internal: Any) -> str:
    """The name that a variable was made with, which its handle shows as `name/number`; else that of the capturing placeholder."""
    shown = re.search(r'name="([^"]+)/\d+"', repr(external))
    return shown.group(1) if shown else str(internal.op.name)


def _node_name(name: str) -> str:
    """`name` with the characters that a node name may not have replaced."""
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "_.-/") else "_" for c in name).strip("/")
    return cleaned if cleaned[:1].isalnum() or cleaned[:1] == "." else f"v{cleaned}"


def _output_names(concrete: Any) -> list[str]:
    """The user's name of every flat output: the path in the returned structure."""
    paths = tf.nest.flatten_with_joined_string_paths if hasattr(tf.nest, "flatten_with_joined_string_paths") else _joined_paths
    names = [path for path, tensor in paths(concrete.graph.structured_outputs) if tensor is not None]
    if len(names) != len(concrete.graph.outputs):
        return [f"output_{i}" for i in range(len(concrete.graph.outputs))]
    return [name or "output" for name in names]


def _joined_paths(structure: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(structure, Mapping):
        items = [(str(k), structure[k]) for k in sorted(structure)]
    elif isinstance(structure, list | tuple):
        keys = getattr(structure, "_fields", None) or [str(i) for i in range(len(structure))]
        items = list(zip(keys, structure, strict=True))
    else:
        return [(prefix, structure)]
    return [found for key, value in items for found in _joined_paths(value, f"{prefix}/{key}" if prefix else key)]
