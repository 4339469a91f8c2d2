"""The executed graph as node-to-node dataflow: ancestors, descendants, and where a value really comes from.

Loops are cycles here (NextIteration to Merge). A value is followed through whatever hands it on unchanged: identities, loop and branch
plumbing, and the lists and stacks by which a loop keeps values for its gradient. A call whose ops were expanded is looked through: what
reads its output reads what made it inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fathom_trace.ops import canonical
from fathom_trace.trace import Trace

Port = tuple[int, int]
"""A node and one of its output ports."""

Mask = NDArray[np.bool_]

HANDS_ON = frozenset(
    {
        "Identity", "RefIdentity", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot", "CheckNumerics", "Enter", "RefEnter",
        "Exit", "RefExit", "Switch", "RefSwitch", "_SwitchN", "NextIteration", "RefNextIteration", "LoopCond",
    }
)  # fmt: skip
"""Op types whose every output is their input 0."""

MERGES = frozenset({"Merge", "RefMerge"})
RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims", "Cast", "Transpose", "ConjugateTranspose", "Bitcast", "Conj"})
"""Op types whose output holds the values of input 0 in another shape, order or dtype."""

_METADATA_READERS = frozenset({"VarHandleOp", "VariableShape", "VarIsInitializedOp", "IsVariableInitialized"})
_LIST_STEPS = HANDS_ON | MERGES | {"TensorListPopBack", "TensorListResize", "TensorListSetItem"}


class NodeGraph:
    """Producers and consumers of every node by data, with a sent value joined to its receiver."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ops: tuple[str, ...] = tuple(canonical(op) for op in trace.node_ops)
        self.producers: list[list[Port]] = _data_inputs(trace)
        for receiver, sender in _transfers(trace, self.ops):
            self.producers[receiver] = list(self.producers[sender])
        self.parts: dict[int, list[int]] = _parts(trace)
        """The nodes inside each call that was expanded."""
        self._returned = {
            (call, int(trace.node_attributes[part].get("index", 0))): self.producers[part][0]
            for call, parts in self.parts.items()
            for part in parts
            if self.ops[part] == "_Retval" and self.producers[part]
        }
        if self._returned:
            self.producers = [[self.inside(port) for port in ports] for ports in self.producers]
        self.consumers: list[list[tuple[int, int]]] = [[] for _ in self.ops]
        """For each node the (consumer, input position) of every use of any of its outputs."""
        for node, inputs in enumerate(self.producers):
            for position, (producer, _) in enumerate(inputs):
                self.consumers[producer].append((node, position))
        self._shapes: dict[Port, tuple[int, ...]] | None = None
        self._origins: dict[Port, Port] = {}
        self._stacks: dict[Port, list[Port]] | None = None

    def __len__(self) -> int:
        return len(self.ops)

    def inside(self, port: Port) -> Port:
        """The output that made a value: of an expanded call's output, the one inside; else `port` itself."""
        while port in self._returned:
            port = self._returned[port]
        return port

    # --- reachability -----------------------------------------------------------------------------------------------------------

    def ancestors(self, nodes: Iterable[int], inside: Mask | None = None) -> Mask:
        """The nodes themselves and all they are computed from, by data. `inside` limits the walk, not the start."""
        return self._reach(nodes, lambda n: (p for p, _ in self.producers[n]), inside)

    def descendants(self, nodes: Iterable[int], inside: Mask | None = None) -> Mask:
        """The nodes themselves and all that is computed from them, by data. `inside` limits the walk, not the start."""
        return self._reach(nodes, lambda n: (c for c, _ in self.consumers[n]), inside)

    def _reach(self, nodes: Iterable[int], step: Callable[[int], Iterator[int]], inside: Mask | None) -> Mask:
        found = np.zeros(len(self), bool)
        waiting = list(nodes)
        found[waiting] = True
        while waiting:
            for other in step(waiting.pop()):
                if not found[other] and (inside is None or inside[other]):
                    found[other] = True
                    waiting.append(other)
        return found

    # --- shapes -----------------------------------------------------------------------------------------------------------------

    def shape(self, port: Port) -> tuple[int, ...] | None:
        """Shape of an output as first executed; None for one that never was."""
        if self._shapes is None:
            tensors = self.trace.tensors
            nodes = self.trace.executions.node[tensors.execution] if len(tensors) else np.zeros(0, np.int64)
            keys = nodes.astype(np.int64) << 32 | tensors.port.astype(np.int64)
            distinct, first = np.unique(keys, return_index=True)
            shapes = self.trace.shapes.values
            self._shapes = {
                (key >> 32, key & 0xFFFFFFFF): shapes[row]
                for key, row in zip(distinct.tolist(), tensors.shape[first].tolist(), strict=True)
            }
        return self._shapes.get(port)

    # --- origins ----------------------------------------------------------------------------------------------------------------

    def origin(self, port: Port) -> Port:
        """The output that made the value found at `port`: itself, unless its node only hands values on."""
        if port not in self._origins:
            self._origins[port] = self._follow(port, frozenset())
        return self._origins[port]

    def _follow(self, port: Port, merges: frozenset[int]) -> Port:
        seen: set[Port] = set()
        while port not in seen:
            seen.add(port)
            node, number = port
            op, inputs = self.ops[node], self.producers[node]
            if op in HANDS_ON and inputs:
                port = inputs[0]
            elif op == "IdentityN" and number < len(inputs):
                port = inputs[number]
            elif op in MERGES and node not in merges:
                entry = self._invariant(node, merges | {node})
                if entry is None:
                    return port
                port = entry
            elif op == "TensorListPopBack" and number == 1:
                pushed = self._pushed(inputs[0])
                if pushed is None:
                    return port
                port = pushed
            elif op in ("StackPop", "StackPopV2"):
                kept = self._kept(inputs[0])
                if kept is None:
                    return port
                port = kept
            else:
                return port
        return port

    def _invariant(self, merge: int, merges: frozenset[int]) -> Port | None:
        """What enters a loop at this header, if every iteration hands the same value on; None for any other merge."""
        entries = [p for p in self.producers[merge] if self.ops[p[0]] not in ("NextIteration", "RefNextIteration")]
        backs = [p for p in self.producers[merge] if self.ops[p[0]] in ("NextIteration", "RefNextIteration")]
        if len(entries) != 1 or not backs:
            return None
        return entries[0] if all(self._follow(back, merges)[0] == merge for back in backs) else None

    def _pushed(self, handle: Port) -> Port | None:
        """The one value that was pushed on a list before it was popped; None where the list is filled in several places."""
        found: set[Port] = set()
        waiting, seen = [handle], {handle}
        while waiting:
            node, number = waiting.pop()
            op = self.ops[node]
            if op in ("TensorListPushBack", "TensorListPushBackBatch"):
                found.add(self.producers[node][1])
                continue
            if op == "IdentityN":
                onward = self.producers[node][number : number + 1]
            elif op in MERGES:
                onward = self.producers[node]
            else:
                onward = self.producers[node][:1] if op in _LIST_STEPS else []
            for port in onward:
                if port not in seen:
                    seen.add(port)
                    waiting.append(port)
        return found.pop() if len(found) == 1 else None

    def _kept(self, handle: Port) -> Port | None:
        """The one value that was pushed on a stack resource."""
        if self._stacks is None:
            self._stacks = {}
            for node, op in enumerate(self.ops):
                if op in ("StackPush", "StackPushV2") and len(self.producers[node]) > 1:
                    stack, value = self.producers[node][:2]
                    self._stacks.setdefault(self._follow(stack, frozenset()), []).append(value)
        values = self._stacks.get(self._follow(handle, frozenset()), [])
        return values[0] if len(values) == 1 else None

    def values_read(self, node: int) -> list[int]:
        """The variables whose values, not only shapes, a node reads."""
        if self.ops[node] in _METADATA_READERS:
            return []
        table = self.trace.nodes
        return list(table.read[table.row_values("read", node)].tolist())

    def variable(self, port: Port) -> int:
        """The variable whose value lies at `port`, be it reshaped, transposed or cast; -1 if it is not one variable's."""
        for _ in range(64):
            port = self.origin(port)
            node = port[0]
            read = self.values_read(node)
            if self.ops[node] in ("ReadVariableOp", "_ReadVariablesOp", "VariableV2", "Variable") and read:
                return read[min(port[1], len(read) - 1)]
            if self.ops[node] not in RESHAPES or not self.producers[node]:
                return -1
            port = self.producers[node][0]
        return -1


def _data_inputs(trace: Trace) -> list[list[Port]]:
    bounds = trace.nodes.input_offsets.tolist()
    pairs = list(zip(trace.nodes.input_node.tolist(), trace.nodes.input_port.tolist(), strict=True))
    return [[pair for pair in pairs[a:b] if pair[1] >= 0] for a, b in pairwise(bounds)]


def _parts(trace: Trace) -> dict[int, list[int]]:
    """The nodes inside each expanded call, by the call's node."""
    executions = trace.executions
    found: dict[int, list[int]] = {}
    inner = np.flatnonzero(executions.parent >= 0)
    pairs = zip(executions.node[executions.parent[inner]].tolist(), executions.node[inner].tolist(), strict=True)
    for call, part in dict.fromkeys(pairs):
        found.setdefault(call, []).append(part)
    return found


def _transfers(trace: Trace, ops: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """(receiver, sender) of each value that is sent from one device to another, matched by the name it is sent under."""
    senders: dict[tuple[object, ...], int] = {}
    keys = ("tensor_name", "send_device", "recv_device")
    for node, op in enumerate(ops):
        if op in ("_Send", "_HostSend", "Send"):
            senders[tuple(trace.node_attributes[node].get(k) for k in keys)] = node
    for node, op in enumerate(ops):
        if op in ("_Recv", "_HostRecv", "Recv"):
            sender = senders.get(tuple(trace.node_attributes[node].get(k) for k in keys))
            if sender is not None:
                yield node, sender
