"""The phase of every node of a training step: forward, backward, optimizer or other.

From the graph, where the step names its loss and the trace knows which variables are trained (`evidence` is `roles`):

* *forward* is what the loss (or the logits) is computed from.
* *optimizer* is what writes trained variables and their slots, and what reads only gradients, slots and hyper-parameters on the way
  there: clipping, loss unscaling, bias correction, decoupled weight decay, counters. What it reads and the step writes is a slot,
  declared or not.
* *backward* is what else the optimizer's inputs are computed from. It includes the gradient of a weight-decay term in the loss, the
  sum of a variable's partial gradients, and keeping a loop's values for its gradient, since no inference does that; also forward work
  that is done again because its values were not kept, though it reads trained variables anew.
* *other* is the rest: metrics, running averages, plumbing that ends in nothing.

A call whose ops were expanded is of the phase that those have, and *other* where they are of several: its time cannot be divided. What
it computes for nothing, such as the gradient of an input that nobody asked for, is of the call's phase.

Where a gradient ends and the optimizer begins is a matter of definition for the nodes in between, which read only gradients. Here a
gradient is complete where it has the shape of its variable; what only adds up, reshapes or casts on the way is still its backward.

Without roles, names decide (`evidence` is `names`): scopes that TensorFlow's own gradient functions and optimizers make. The op type is
no evidence: a forward transposed convolution has the type of a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables
from fathom_trace.node_graph import Mask, NodeGraph, Port
from fathom_trace.ops import kind
from fathom_trace.recomputed import layer_products, repeated
from fathom_trace.trace import Trace

PHASES = ("forward", "backward", "optimizer", "other")
FORWARD, BACKWARD, OPTIMIZER, OTHER = range(4)

ROLES, NAMES = "roles", "names"

_FORMING = frozenset(
    {
        "Add", "AddV2", "AddN", "AccumulateNV2", "Sum", "Neg", "Cast", "Conj", "BiasAddGrad", "Identity", "IdentityN", "StopGradient",
        "PreventGradient", "Snapshot", "EnsureShape", "Reshape", "Squeeze", "ExpandDims", "Transpose", "Tile", "BroadcastTo", "Concat",
        "ConcatV2", "Pack", "Unpack", "Split", "SplitV", "Slice", "StridedSlice", "StridedSliceGrad", "Pad", "PadV2", "ReverseV2",
        "SegmentSum", "UnsortedSegmentSum", "ScatterNd", "Gather", "GatherV2", "GatherNd", "MatrixDiagPartV3", "Shape", "ShapeN", "Size",
        "Fill", "ZerosLike", "BroadcastGradientArgs",
    }
)  # fmt: skip
"""Op types by which partial gradients become a variable's gradient: they add, move, reshape or cast, and scale nothing."""

_GRADIENT_SCOPE = re.compile(r"gradient_tape|gradients(_\d+)?|.+_grad")
_OPTIMIZER_SCOPE = re.compile(
    r"(.*optimizer|adadelta|adafactor|adagrad|adam|adamax|adamw|ftrl|lamb|lion|momentum|muon|nadam|rmsprop|sgd"
    r"|clip_by_global_norm|global_norm)(_\d+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class Phases(Sequence[str]):
    """The phase of every node; as a sequence, its name. `evidence` says what it was told from: `roles` or `names`."""

    codes: NDArray[np.int8]
    evidence: str

    @overload
    def __getitem__(self, node: int) -> str: ...
    @overload
    def __getitem__(self, node: slice) -> Sequence[str]: ...
    def __getitem__(self, node: int | slice) -> str | Sequence[str]:
        if isinstance(node, slice):
            return [PHASES[c] for c in self.codes[node].tolist()]
        return PHASES[int(self.codes[node])]

    def __len__(self) -> int:
        return len(self.codes)

    def is_phase(self, code: int) -> Mask:
        """True for each node of one phase (`FORWARD`, `BACKWARD`, `OPTIMIZER`, `OTHER`)."""
        return np.asarray(self.codes == code)


def phases(trace: Trace, graph: NodeGraph | None = None) -> Phases:
    """The phase of every node of `trace`. A trace in which nothing is trained is forward throughout.

    `graph` spares building the node graph again where the caller has it.
    """
    writers = _writers(trace)
    roles = {trace.strings[r] for r in trace.interface.role.tolist()}
    named = _by_names(trace, writers)
    has_gradients = bool(np.any((named == BACKWARD) | (named == OPTIMIZER)))
    if not len(writers) and not has_gradients:
        return Phases(np.full(len(trace.nodes), FORWARD, np.int8), ROLES if roles - {""} else NAMES)
    if len(writers) and "loss" in roles:
        graph = graph or NodeGraph(trace)
        return Phases(_with_calls(_Roles(trace, graph, writers).codes, graph), ROLES)
    return Phases(_with_calls(named, graph or NodeGraph(trace)), NAMES)


def _with_calls(codes: NDArray[np.int8], graph: NodeGraph) -> NDArray[np.int8]:
    """The phases with those of expanded calls after their parts', and of parts that end in nothing after their calls'."""
    for call, parts in graph.parts.items():
        found = {int(codes[part]) for part in parts} - {OTHER}
        codes[call] = found.pop() if len(found) == 1 else OTHER
        if codes[call] != OTHER:
            codes[parts] = codes[call]
    return codes


def _writers(trace: Trace) -> NDArray[np.int64]:
    """The nodes that write a trained variable or an optimizer's slot."""
    nodes, variables = trace.nodes, trace.variables
    writer = np.repeat(np.arange(len(nodes)), np.diff(nodes.write_offsets))
    is_trained = variables.trainable | (variables.slot_of >= 0)
    return np.unique(writer[is_trained[nodes.write]]) if len(nodes.write) else np.zeros(0, np.int64)


def _by_names(trace: Trace, writers: NDArray[np.int64]) -> NDArray[np.int8]:
    codes = np.full(len(trace.nodes), FORWARD, np.int8)
    for node, (name, op) in enumerate(zip(trace.node_names, trace.node_ops, strict=True)):
        if kind(op) == "optimizer":
            codes[node] = OPTIMIZER
            continue
        for part in name.split("/")[:-1]:
            if _OPTIMIZER_SCOPE.fullmatch(part):
                codes[node] = OPTIMIZER
                break
            if _GRADIENT_SCOPE.fullmatch(part):
                codes[node] = BACKWARD
                break
    codes[writers] = OPTIMIZER
    return codes


class _Roles:
    """Phases from the graph and the step's roles."""

    def __init__(self, trace: Trace, graph: NodeGraph, writers: NDArray[np.int64]) -> None:
        self.trace, self.graph = trace, graph
        self.is_writer = np.zeros(len(graph), bool)
        self.is_writer[writers] = True
        forward = graph.ancestors(self._fetched("loss", "logits")) & ~self.is_writer
        activations = self._activations(forward)
        while True:
            backward, optimizer = self._beyond(forward, activations)
            kept = self._keepers(optimizer) & ~forward & ~self.is_writer
            if not kept.any():
                break
            self.is_writer |= kept
        self.codes = np.full(len(graph), OTHER, np.int8)
        self.codes[forward] = FORWARD
        self.codes[backward] = BACKWARD
        self.codes[optimizer | self.is_writer] = OPTIMIZER
        self.codes[self._hyper_parameter_updates()] = OPTIMIZER

    def _beyond(self, forward: Mask, activations: Mask) -> tuple[Mask, Mask]:
        """What the writers' inputs are computed from beyond the forward pass: the backward pass, and the optimizer's own arithmetic."""
        ends = [*np.flatnonzero(self.is_writer).tolist(), *self._fetched("gradient_norm")]
        beyond = self.graph.ancestors(ends) & ~forward & ~self.is_writer
        touches = self._reading(beyond, activations)
        fed = self.graph.descendants(np.flatnonzero(touches).tolist(), inside=beyond) & beyond
        again = repeated(self.graph, forward, fed, self._is_variable_shaped)
        touches |= again | self._reading(beyond, again)
        while True:
            backward = self.graph.ancestors(np.flatnonzero(touches).tolist(), inside=beyond) & beyond
            rest = beyond & ~backward
            optimizer = self._optimizer_part(rest, backward)
            products = layer_products(self.graph, optimizer, beyond, self._is_variable_shaped)
            if not products.any():
                return backward | (rest & ~optimizer), optimizer
            touches |= products

    def _keepers(self, optimizer: Mask) -> Mask:
        """The nodes that write what the optimizer reads: slots that nobody declared, counters, rates."""
        nodes = self.trace.nodes
        reader = np.repeat(np.arange(len(nodes)), np.diff(nodes.read_offsets))
        writer = np.repeat(np.arange(len(nodes)), np.diff(nodes.write_offsets))
        state = np.zeros(len(self.trace.variables), bool)
        state[nodes.read[optimizer[reader]]] = True
        found = np.zeros(len(nodes), bool)
        found[writer[state[nodes.write] & ~self.trace.variables.trainable[nodes.write]]] = True
        return found

    def _fetched(self, *roles: str) -> list[int]:
        table = self.trace.interface
        columns = (column.tolist() for column in (table.node, table.port, table.role, table.direction))
        return [
            self.graph.inside((node, port))[0]
            for node, port, role, direction in zip(*columns, strict=True)
            if direction == tables.FETCH and self.trace.strings[role] in roles
        ]

    def _reading(self, among: Mask, values: Mask) -> Mask:
        """The nodes `among` these that read a value of those."""
        found = np.zeros(len(self.graph), bool)
        for node in np.flatnonzero(among).tolist():
            found[node] = any(values[producer] for producer, _ in self.graph.producers[node])
        return found

    def _activations(self, forward: Mask) -> Mask:
        """Forward values whose use proves a gradient: all but resource handles and the values of hyper-parameters."""
        found = forward.copy()
        trainable = self.trace.variables.trainable
        for node in np.flatnonzero(forward).tolist():
            read = self.graph.values_read(node)
            is_handle = self.graph.ops[node] in ("VarHandleOp", "_VarHandlesOp", "VariableV2", "Variable")
            if is_handle or (read and not any(trainable[v] for v in read)):
                found[node] = False
        return found

    def _optimizer_part(self, rest: Mask, backward: Mask) -> Mask:
        """Of the nodes between the backward pass and the writers, those that are the optimizer's."""
        graph = self.graph
        gradients = graph.descendants(np.flatnonzero(backward).tolist(), inside=rest) & rest
        seeds = [
            node
            for node in np.flatnonzero(rest).tolist()
            if (graph.values_read(node) and not self._is_unread(node))
            or kind(graph.ops[node]) == "random"  # noise that is added to gradients
            or (gradients[node] and self._reads_whole_gradients(node, backward | gradients))
        ]
        optimizer = graph.descendants(seeds, inside=rest) & rest
        forming = (gradients & ~optimizer) | backward
        # Constants and the like belong to whom they serve.
        serving = rest & ~gradients & ~optimizer
        serves_backward = graph.ancestors(np.flatnonzero(forming).tolist(), inside=serving) & serving
        return np.asarray(optimizer | (serving & ~serves_backward))

    def _is_unread(self, node: int) -> bool:
        """True if what the node makes is only bundled with other values, as `IdentityN` does, and then read by nothing."""
        uses = self.graph.consumers[node]
        return bool(uses) and all(
            self.graph.ops[bundle] == "IdentityN"
            and not any(self.graph.producers[reader][place] == (bundle, position) for reader, place in self.graph.consumers[bundle])
            for bundle, position in uses
        )

    def _reads_whole_gradients(self, node: int, is_gradient: Mask) -> bool:
        """True if the node does more than form a gradient, and what it reads is the gradient of one trained variable.

        A product of two backward values is still backward, such as the chain rule's last step for a penalty on a kernel.
        """
        if self.graph.ops[node] in _FORMING or kind(self.graph.ops[node]) == "control":
            return False
        read = {port for port in self.graph.producers[node] if is_gradient[port[0]]}
        if len(read) != 1:
            return False
        gradient = read.pop()
        shape = self.graph.shape(gradient)
        # A constant of the gradient's own shape is the loss's derivative, spread over what was summed up.
        is_spread = shape != () and any(self.graph.shape(p) == shape for p in self.graph.producers[node] if not is_gradient[p[0]])
        return self._is_variable_shaped(gradient) and not is_spread

    def _is_variable_shaped(self, port: Port) -> bool:
        shape = self.graph.shape(port)
        if shape is None:
            return False
        return shape in self._variable_shapes or shape[1:] in self._row_shapes

    @property
    def _variable_shapes(self) -> frozenset[tuple[int, ...]]:
        if not hasattr(self, "_known_shapes"):
            self._known_shapes = frozenset(self._shapes_of(np.flatnonzero(self.trace.variables.trainable).tolist()))
        return self._known_shapes

    @property
    def _row_shapes(self) -> frozenset[tuple[int, ...]]:
        """Shapes of one row of the trained variables that are read by rows, whose gradients are rows and indices."""
        if not hasattr(self, "_known_rows"):
            by_rows = {v for node, op in enumerate(self.graph.ops) if kind(op) == "embedding" for v in self._looked_up(node)}
            self._known_rows = frozenset(shape[1:] for shape in self._shapes_of(sorted(by_rows)) if len(shape) > 1)
        return self._known_rows

    def _looked_up(self, node: int) -> set[int]:
        """The trained variables whose rows a gather reads."""
        found = {*self.graph.values_read(node), *(self.graph.variable(port) for port in self.graph.producers[node][:1])}
        return {v for v in found if v >= 0 and self.trace.variables.trainable[v]}

    def _shapes_of(self, variables: Sequence[int]) -> list[tuple[int, ...]]:
        return [self.trace.shapes[int(self.trace.variables.shape[v])] for v in variables]

    def _hyper_parameter_updates(self) -> NDArray[np.int64]:
        """Nodes so far of no phase by which a variable is updated from gradients and hyper-parameters only, such as a step counter.

        What the forward pass reads, such as the state of a random generator, is no hyper-parameter.
        """
        nodes, graph = self.trace.nodes, self.graph
        is_other = self.codes == OTHER
        forward_state = {v for n in np.flatnonzero(self.codes == FORWARD).tolist() for v in graph.values_read(n)}
        found = np.zeros(len(graph), bool)
        for node in np.flatnonzero((np.diff(nodes.write_offsets) > 0) & is_other).tolist():
            if forward_state & set(nodes.write[nodes.row_values("write", node)].tolist()):
                continue
            own = graph.ancestors([node], inside=is_other)
            if all(
                self._is_hyper(n) and all(own[p[0]] or self._may_read(p) for p in graph.producers[n])
                for n in np.flatnonzero(own).tolist()
            ):
                found |= own
        return np.flatnonzero(found)

    def _may_read(self, port: Port) -> bool:
        """True if an optimizer may read this value of a phase: its own, a whole gradient, or a hyper-parameter."""
        code = self.codes[port[0]]
        if code == BACKWARD:
            return self._is_variable_shaped(port)
        return bool(code == OPTIMIZER) or all(self._is_hyper(n) for n in np.flatnonzero(self.graph.ancestors([port[0]])).tolist())

    def _is_hyper(self, node: int) -> bool:
        """False for what brings in data, a trained weight, or chance."""
        op = self.graph.ops[node]
        if kind(op) == "random" or op in ("_Arg", "_DeviceArg", "Placeholder", "PlaceholderWithDefault", "_Recv"):
            return False
        return not any(self.trace.variables.trainable[v] for v in self.graph.values_read(node))
