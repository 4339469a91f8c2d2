"""Reads TensorFlow graphs: attributes without tensor contents, inputs as numbers, calls inlined by name."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from fathom_trace.capture.signatures import dtype_name
from fathom_trace.ops import canonical, kind

RESOURCE_READERS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})
RESOURCE_WRITERS = frozenset({"AssignVariableOp"})
RESOURCE_UPDATERS = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply", "ResourceSparseApply", "ResourceScatter",
                     "ResourceStridedSliceAssign")  # fmt: skip
PASS_THROUGH = frozenset({"Identity", "IdentityN", "Enter", "Merge", "Switch", "Exit", "NextIteration", "_SwitchN", "_Arg"})
_PADS = frozenset({"Pad", "PadV2", "MirrorPad"})
_MAX_LIST = 64
_MAX_DEPTH = 50


@dataclass
class GraphNode:
    """A node with its inputs resolved: (producer, port); `control` are producers."""

    name: str
    op: str
    device: str
    attributes: dict[str, Any]
    definition: Any
    inputs: list[tuple[int, int]] = field(default_factory=list)
    control: list[int] = field(default_factory=list)


def read_graphs(graph_defs: Iterable[Any]) -> list[GraphNode]:
    """The nodes of one or several (partition) graphs, numbered in order."""
    definitions = [n for g in graph_defs for n in g.node]
    number = {n.name: i for i, n in enumerate(definitions)}
    nodes = [GraphNode(n.name, n.op, n.device, attributes(n), n) for n in definitions]
    for node in nodes:
        for text in node.definition.input:
            if text.startswith("^"):
                node.control.append(number[text[1:]])
            else:
                name, _, port = text.partition(":")
                node.inputs.append((number[name], int(port or 0)))
    return nodes


def attributes(definition: Any) -> dict[str, Any]:
    """A node's attributes as JSON values: no tensor contents, no private ones but those that change what runs."""
    found: dict[str, Any] = {}
    for key, value in definition.attr.items():
        if key.startswith("_") and key not in ("_XlaMustCompile",):
            continue
        plain = _plain(value)
        if plain is not None:
            found[key] = plain
    return found


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "s":
        return value.s.decode(errors="replace")
    if kind == "i":
        return value.i
    if kind == "f":
        return value.f if math.isfinite(value.f) else str(value.f)
    if kind == "b":
        return value.b
    if kind == "type":
        return dtype_name(value.type)
    if kind == "shape":
        return None if value.shape.unknown_rank else [d.size for d in value.shape.dim]
    if kind == "func":
        return value.func.name
    if kind == "list":
        return _plain_list(value.list)
    return None


def _plain_list(value: Any) -> list[Any]:
    items: list[Any] = [s.decode(errors="replace") for s in value.s]
    items += list(value.i) + list(value.b) + [f if math.isfinite(f) else str(f) for f in value.f]
    items += [dtype_name(t) for t in value.type]
    items += [None if s.unknown_rank else [d.size for d in s.dim] for s in value.shape]
    items += [f.name for f in value.func]
    return items[:_MAX_LIST]


def constant_value(definition: Any) -> Any:
    """The value of a Const node as a numpy array; None for strings and other contents that are no numbers."""
    proto = definition.attr["value"].tensor
    if proto.dtype in (tf.string.as_datatype_enum, tf.resource.as_datatype_enum, tf.variant.as_datatype_enum):
        return None
    return tf.make_ndarray(proto)


def variable_access(nodes: Sequence[GraphNode], handles: Mapping[int, int]) -> tuple[list[list[int]], list[list[int]]]:
    """Per node, the variables it reads and those it writes. `handles` gives the variable of each handle node.

    Handles are followed through ops that only pass them on, so that accesses inside loops and branches are found too.
    """
    holds = handle_holders(nodes, handles)
    reads: list[list[int]] = [[] for _ in nodes]
    writes: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        touched = list(dict.fromkeys(holds[key] for key in node.inputs if key in holds))
        if not touched or node.op in PASS_THROUGH:
            continue
        if node.op in RESOURCE_WRITERS:
            writes[i] = touched
        elif node.op.startswith(RESOURCE_UPDATERS):
            reads[i], writes[i] = touched, touched
        elif node.op in RESOURCE_READERS or node.op.startswith("Resource"):
            reads[i] = touched
    return reads, writes


def handle_holders(nodes: Sequence[GraphNode], handles: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """The variable of each output (node, port) that is its handle; `handles` gives that of each handle node."""
    holds: dict[tuple[int, int], int] = {(node, 0): variable for node, variable in handles.items()}
    has_changed = True
    while has_changed:
        before = len(holds)
        for i, node in enumerate(nodes):
            if node.op in PASS_THROUGH:
                holds.update({key: holds[source] for key, source in _passed_on(i, node) if source in holds and key not in holds})
        has_changed = len(holds) > before
    return holds


def _passed_on(number: int, node: GraphNode) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Which output of a node may hand on which of its inputs, as (node, port) each."""
    if node.op == "IdentityN":
        return [((number, port), source) for port, source in enumerate(node.inputs)]
    if node.op in ("Switch", "_SwitchN"):
        return [((number, port), node.inputs[0]) for port in range(int(node.attributes.get("num_outs", 2)))]
    return [((number, 0), source) for source in node.inputs]


@dataclass(frozen=True)
class SourceNode:
    """A node of the graph as written; inputs are (name of the producer, port), control inputs have port -1.

    `results` of a call whose body was inlined are where its outputs are made.
    """

    name: str
    definition: Any
    inputs: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...] = ()


def flatten_source(graph_def: Any) -> list[SourceNode]:
    """The graph as written, with the bodies of plain calls inlined and named `call/node`, as TensorFlow inlines them.

    Bodies of loops and branches are left out: they are told by their own names in the executed graph.
    """
    library = {f.signature.name: f for f in graph_def.library.function}
    found: list[SourceNode] = []

    def walk(prefix: str, definitions: Iterable[Any], arguments: Mapping[str, tuple[str, int]], depth: int) -> None:
        ops = {d.name: d for d in definitions}
        for definition in definitions:
            inputs = tuple(_source_input(prefix, text, ops, arguments) for text in definition.input)
            name = f"{prefix}{definition.name}"
            body = library.get(definition.attr["f"].func.name) if "f" in definition.attr else None
            if body is None or definition.op not in ("PartitionedCall", "StatefulPartitionedCall") or depth >= _MAX_DEPTH:
                found.append(SourceNode(name, definition, inputs))
                continue
            data = [i for i in inputs if i[1] >= 0]
            given = {arg.name: data[k] for k, arg in enumerate(body.signature.input_arg) if k < len(data)}
            inner = {d.name: d for d in body.node_def}
            results = tuple(_source_input(f"{name}/", body.ret[arg.name], inner, given) for arg in body.signature.output_arg)
            found.append(SourceNode(name, definition, inputs, results))
            walk(f"{name}/", body.node_def, given, depth + 1)

    walk("", graph_def.node, {}, 0)
    return found


def came_from(nodes: Sequence[GraphNode], source: Sequence[SourceNode]) -> list[list[int]]:
    """For each executed node the rows of the source nodes that it does the work of, that of its own name first.

    A fused op has the name of the last op that was fused. The others are what that one read, directly or not, and did not survive itself,
    back to the one op of the fused op's own kind and a Pad before it. Beyond that, what did not survive went otherwise.
    """
    row = {node.name: i for i, node in enumerate(source)}
    survived = {node.name for node in nodes}
    found: list[list[int]] = []
    for node in nodes:
        first = row.get(node.name)
        is_fused = first is not None and (node.attributes.get("fused_ops") or canonical(node.op) != source[first].definition.op)
        found.append([] if first is None else [first])
        if first is not None and is_fused and node.op != "Const":
            found[-1] = _fused(first, kind(node.op), source, row, survived)
    return found


def _fused(last: int, kind_of_op: str, source: Sequence[SourceNode], row: Mapping[str, int], survived: Container[str]) -> list[int]:
    """The source nodes of one fused op, nearest to its last one first."""
    rows = [last]
    has_main = False
    for current in rows:
        is_main = kind(source[current].definition.op) == kind_of_op
        has_main |= is_main
        for name, port in source[current].inputs:
            while name in row and 0 <= port < len(source[row[name]].results):
                name, port = source[row[name]].results[port]
            if port < 0 or name not in row or name in survived or row[name] in rows:
                continue
            op = source[row[name]].definition.op
            if op in _PADS if is_main else not (has_main and kind(op) == kind_of_op):
                rows.append(row[name])
    return rows


def _source_input(prefix: str, text: str, ops: Mapping[str, Any], arguments: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    if text.startswith("^"):
        return f"{prefix}{text[1:]}", -1
    name, *rest = text.split(":")
    if name in arguments:
        return arguments[name]
    if len(rest) == 2:
        return f"{prefix}{name}", output_offset(ops[name], rest[0]) + int(rest[1])
    return f"{prefix}{name}", int(rest[0]) if rest else 0


def output_offset(definition: Any, output: str) -> int:
    """Flat port of the first tensor of a named output."""
    offset = 0
    signature = op_def_registry.get(definition.op)
    for arg in signature.output_arg if signature is not None else ():
        if arg.name == output:
            return offset
        if arg.number_attr:
            offset += definition.attr[arg.number_attr].i
        elif arg.type_list_attr:
            offset += len(definition.attr[arg.type_list_attr].list.type)
        else:
            offset += 1
    return 0
