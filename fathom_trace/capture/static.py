"""A trace without a run: the graph that TensorFlow would execute, with the shapes that its executions would have, and no times.

Calls are inlined and loops lowered by TensorFlow's own function optimizer, with the settings of stage `source`, so nodes have the names
that a run gives them. Then the graph is unrolled (`unroll`): each node is executed as often as the graph alone says. Where data decides
how often, or which branch, or what shape, the capture is refused by name. No variable is given a value, and no kernel runs but on the
small constants that shapes are made of.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.ops import resource_variable_ops

from fathom_trace.capture import Plan, Progress
from fathom_trace.capture.assemble import Assembler
from fathom_trace.capture.graph import GraphNode, read_graphs
from fathom_trace.capture.lift import Lifted
from fathom_trace.capture.provenance import describe
from fathom_trace.capture.session import session_config
from fathom_trace.capture.shapes import FOLDED_ELEMENTS, ShapeInference, Value
from fathom_trace.capture.signatures import Signatures, dtype_name
from fathom_trace.capture.stepstats import StepRecords
from fathom_trace.capture.unroll import Unroller
from fathom_trace.errors import CaptureError, one_line
from fathom_trace.tables import Executions
from fathom_trace.trace import Trace


@contextlib.contextmanager
def variables_without_values() -> Iterator[None]:
    """Inside, a `tf.Variable` of known shape is made without its initial value, and without the memory for it."""

    def make(next_creator: Any, **given: Any) -> Any:
        initial: Any = given.get("initial_value")
        shape, dtype = given.get("shape"), given.get("dtype")
        if shape is None and not callable(initial):
            shape = initial.shape if hasattr(initial, "shape") else np.shape(initial)
        if dtype is None and not callable(initial):
            dtype = initial.dtype if hasattr(initial, "dtype") else tf.convert_to_tensor(initial).dtype
        if shape is None or dtype is None or not tf.TensorShape(shape).is_fully_defined():
            return next_creator(**given)
        trainable = given.get("trainable")
        return resource_variable_ops.UninitializedVariable(
            trainable=True if trainable is None else trainable, shape=shape, dtype=dtype, name=given.get("name")
        )

    with tf.variable_creator_scope(make):
        yield


def static_trace(
    lifted: Lifted, roles: Mapping[str, str], provenance: Mapping[str, Any], plan: Plan, threads: int, progress: Progress
) -> Trace:
    """The trace of a lifted graph, without running it. `roles` are by input or output name.

    Raises:
        CaptureError: a trip count, a branch or a shape depends on data; names the node.
    """
    progress("reading the graph", 0, 1)
    definition = executed_graph(lifted)
    nodes = read_graphs([definition])
    library = {f.signature.name: f for g in (lifted.graph_def, definition) for f in g.library.function}
    progress("reading the graph", 1, 1)
    signatures = Signatures()
    assembler = Assembler(lifted, nodes, signatures, roles, library)
    ran: list[int] = []
    shown: list[int] = []

    def report(node: int, outputs: Mapping[int, Value]) -> None:
        ran.append(node)
        shown.append(signatures.of(tuple((port, value.dtype, value.shape) for port, value in sorted(outputs.items()))))
        if len(ran) % 10_000 == 0:
            progress("following the graph", len(ran), 0)

    inference = ShapeInference(library)
    Unroller(nodes, _fed(lifted, nodes), inference).run(report)
    structure = assembler.add_untimed(_records(ran, shown))
    if structure.missing or structure.surplus:
        raise CaptureError(f"what the graph would execute contradicts its dataflow at '{structure.first_missing}'; please report it")
    progress("assembling", 0, 1)
    trace = assembler.build(
        {**provenance, **describe(plan, threads, has_onednn=False), "static": True, "assumed_shapes": inference.assumed}
    )
    progress("assembling", 1, 1)
    columns = {key: getattr(trace.executions, key) for key in Executions.columns()}
    return trace.replace(executions=Executions(**{**columns, "timed": np.zeros(len(trace.executions), bool)}))


def _records(ran: Sequence[int], signature: Sequence[int]) -> StepRecords:
    """Executions as records of a step, each at a time of its own, so that their order is kept; no time of them goes into the trace."""
    when = np.arange(len(ran), dtype=np.int64)
    return StepRecords(
        origin_ns=0,
        node=np.array(ran, np.int32),
        scheduled=when,
        start=when,
        end=when,
        done=when,
        signature=np.array(signature, np.int32),
        unplaced={},
        spans=(),
        memory=None,
        total=len(ran),
    )


# --- the graph --------------------------------------------------------------------------------------------------------------------


def executed_graph(lifted: Lifted) -> Any:
    """The GraphDef that a session in stage `source` would execute: what no fetch needs left out, calls inlined, loops lowered.

    What is fed is an `_Arg`, what is fetched ends in a `_Retval`, named and numbered (by name) as a session does.

    Raises:
        CaptureError: TensorFlow cannot inline it.
    """
    fed = _fed_names(lifted)
    arguments = {_node_of(name): f"_arg_{_joined(name)}_{number}" for number, name in enumerate(fed)}
    fetched = sorted({tensor.name for tensor in lifted.fetches.values()})
    targets = [operation.name for operation in lifted.targets]
    needed = [_node_of(name) for name in fetched] + targets
    result = _pruned(lifted.graph.as_graph_def(), needed, set(arguments))
    result = _without_strictness(_inlined(result, [*fetched, *targets]), {n.name: n for n in result.node})
    result = _pruned(result, needed, set(arguments))
    for node in result.node:
        if node.name in arguments:
            dtype, index = node.attr["dtype"].type, fed.index(f"{node.name}:0")
            node.Clear()
            node.name, node.op = arguments[_node_of(fed[index])], "_Arg"
            node.attr["T"].type, node.attr["index"].i = dtype, index
        inputs = [_renamed(text, arguments) for text in node.input]
        del node.input[:]
        node.input.extend(inputs)
    for number, name in enumerate(fetched):
        source = _renamed(name.removesuffix(":0"), arguments)
        node = result.node.add(name=f"_retval_{_joined(name)}_{number}", op="_Retval", input=[source])
        node.attr["T"].type = lifted.graph.get_tensor_by_name(name).dtype.as_datatype_enum
        node.attr["index"].i = number
    return result


_GATE = re.compile(r"/LoopControlInputs(/_\d+)?$|^Func/.+/_\d+/input_control_node(/_\d+)?$|/switch_pred/_\d+$")


def _put_loops_back(definition: Any, before: Mapping[str, Any]) -> None:
    """Make what has the name of a lowered loop an IdentityN of its results, as a session does, where something waits for it."""
    exits: dict[str, list[tuple[int, str]]] = {}
    present = {node.name for node in definition.node}
    for node in definition.node:
        match = re.fullmatch(r"(.+)/exit/_(\d+)", node.name)
        if match and node.op == "Exit":
            exits.setdefault(match[1], []).append((int(match[2]), node.name))
    for node in definition.node:
        loop = before.get(node.name)
        if node.op != "NoOp" or loop is None or loop.op not in ("While", "StatelessWhile"):
            continue
        types, given = list(loop.attr["T"].list.type), [text for text in loop.input if not text.startswith("^")]
        left = iter(name for _, name in sorted(exits.get(node.name, [])))
        results = [text if kind == tf.resource.as_datatype_enum else next(left, "") for kind, text in zip(types, given, strict=True)]
        if all(_node_of(text) in present for text in results):
            waited = list(node.input)
            node.op = "IdentityN"
            node.attr["T"].list.type.extend(types)
            del node.input[:]
            node.input.extend(results)
            node.input.extend(text for text in waited if "/LoopExecuted/" not in text)


def _without_strictness(definition: Any, before: Mapping[str, Any]) -> Any:
    """The graph without what the function optimizer adds to a loop or branch that is given a variable, and a session does not.

    It lets it, and the functions that it consists of, wait for all their inputs (`_GATE`: what reads these inputs waits for that node in
    turn, or is of the same branch). What a loop waited for `before`, and what is waited for without being read, stays.
    """
    gates = {node.name: node for node in definition.node if _GATE.search(node.name)}
    read: dict[str, set[str]] = {name: set() for name in gates}
    branches = {name.rpartition("switch_pred/")[0]: name for name, node in gates.items() if node.op == "Switch"}
    for node in definition.node:
        for prefix, gate in branches.items() if node.op == "Switch" else ():
            if node.name.startswith(prefix):
                read[gate] |= {_node_of(text) for text in node.input if not text.startswith("^")}
        for gate in {_node_of(text) for text in node.input if text.startswith("^")} & set(gates):
            read[gate] |= {_node_of(text) for text in node.input if not text.startswith("^")}
    for name, gate in gates.items():
        own = before.get(name.rpartition("/LoopControlInputs")[0])
        asked = {text for text in own.input if text.startswith("^")} if own is not None else set()
        data = [text for text in gate.input if not text.startswith("^")]
        kept = data + [t for t in gate.input if t.startswith("^") and (t in asked or _node_of(t) not in read[name])]
        merges = [text for text in gate.input if re.search(r"/merge/_\d+$", text)]
        if not kept and not own and merges:  # a loop's condition waits for the first of its headers
            kept = [min(merges, key=lambda text: int(text.rpartition("_")[2]))]
        del gate.input[:]
        gate.input.extend(kept)
    _put_loops_back(definition, before)
    empty = {f"^{name}" for name, gate in gates.items() if not gate.input}
    for node in definition.node:
        if empty & set(node.input):
            kept = [text for text in node.input if text not in empty]
            del node.input[:]
            node.input.extend(kept)
    return definition


def _inlined(definition: Any, ends: Sequence[str]) -> Any:
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(definition)
    meta.collection_def["train_op"].node_list.value.extend(ends)
    try:
        return tf_optimizer.OptimizeGraph(session_config("source", 1, 1), meta, graph_id=b"static", strip_default_attributes=False)
    except (tf.errors.OpError, ValueError) as error:
        raise CaptureError(f"TensorFlow cannot inline the program's graph: {one_line(error)[:300]}") from None


def _fed_names(lifted: Lifted) -> list[str]:
    return sorted({tensor.name for tensor in lifted.feeds.values()} | set(lifted.captured))


def _pruned(definition: Any, ends: Sequence[str], fed: set[str]) -> Any:
    """The graph of what the ends are computed from."""
    needed = _needed({node.name: node for node in definition.node}, ends, fed)
    result = graph_pb2.GraphDef()
    result.versions.CopyFrom(definition.versions)
    result.library.CopyFrom(definition.library)
    result.node.extend(node for node in definition.node if node.name in needed)
    return result


def _needed(by_name: Mapping[str, Any], ends: Sequence[str], fed: set[str]) -> set[str]:
    """The nodes that the ends are computed from, with what they wait for; what is fed needs nothing."""
    found: set[str] = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name not in fed:
            waiting += [_node_of(text) for text in by_name[name].input]
    return found


def _node_of(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]


def _joined(tensor: str) -> str:
    name, _, port = tensor.partition(":")
    return f"{name}_{port or 0}"


def _renamed(text: str, arguments: Mapping[str, str]) -> str:
    name = _node_of(text)
    return text.replace(name, arguments[name], 1) if name in arguments else text


def _fed(lifted: Lifted, nodes: Sequence[GraphNode]) -> dict[int, Value]:
    """What each `_Arg` yields: the shape of the input that it is, or a captured tensor with its content.

    Raises:
        CaptureError: an input has a free dimension.
    """
    number = {node.name: i for i, node in enumerate(nodes)}
    place = {name: f"_arg_{_joined(name)}_{k}" for k, name in enumerate(_fed_names(lifted))}
    found: dict[int, Value] = {}
    for name, tensor in lifted.feeds.items():
        if place[tensor.name] not in number:
            continue
        if not tensor.shape.is_fully_defined():
            raise CaptureError(
                f"the input '{name}' has the shape {tensor.shape}; a static capture needs all of it: --shape {name}=..."
            )
        found[number[place[tensor.name]]] = Value(dtype_name(tensor.dtype.as_datatype_enum), tuple(tensor.shape.as_list()))
    for name, (tensor, content) in lifted.captured.items():
        if place[name] in number:
            value = content if content.size <= FOLDED_ELEMENTS and content.dtype.kind in "biuf" else None
            found[number[place[name]]] = Value(dtype_name(tensor.dtype.as_datatype_enum), content.shape, known=value)
    return found
