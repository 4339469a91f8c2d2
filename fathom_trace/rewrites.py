"""What TensorFlow's own rewriting did to the work of a program: a trace of stage `optimized` against one of stage `source`.

Every convolution and matrix product of the source is accounted for by name. A fused op has the name of the last one of those that were
fused, and stands for all of them. What is in no executed op was *folded* (its value was computed before the step), *merged* (another op
that computes the same serves for both) or *pruned* (nobody needed its value). So MACs executed + MACs removed = MACs of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fathom_trace.costs import costs
from fathom_trace.errors import TraceError
from fathom_trace.node_graph import NodeGraph, Port
from fathom_trace.trace import Trace

FOLDED, MERGED, PRUNED = "folded", "merged", "pruned"

_FED = frozenset(
    {"_Arg", "_DeviceArg", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "VarHandleOp", "VariableV2", "Variable"}
)


@dataclass(frozen=True)
class Removed:
    """A product of the source that was not executed: its node, its MACs in a step, and how it went. `into` is what serves instead."""

    node: str
    op: str
    macs: int
    how: str
    into: str = ""


@dataclass(frozen=True)
class Changed:
    """An executed product whose MACs are not those of the source nodes it stands for (none, if nothing is known of it there)."""

    node: str
    op: str
    source_macs: int
    executed_macs: int


@dataclass(frozen=True)
class Rewrites:
    """MACs of a step as written and as executed, and every product that is the difference."""

    source_macs: int
    executed_macs: int
    removed: tuple[Removed, ...]
    changed: tuple[Changed, ...]

    @property
    def removed_macs(self) -> int:
        """MACs of all products that were folded, merged or pruned."""
        return sum(item.macs for item in self.removed)

    @property
    def added_macs(self) -> int:
        """MACs that executed products have more (if negative, fewer) than the source nodes they stand for."""
        return sum(item.executed_macs - item.source_macs for item in self.changed)

    def removed_by_reason(self) -> dict[str, int]:
        """MACs folded, merged and pruned."""
        return {how: sum(item.macs for item in self.removed if item.how == how) for how in (FOLDED, MERGED, PRUNED)}

    def largest_removed(self, top: int | None = None) -> list[Removed]:
        """The removed products, those with most MACs first."""
        return sorted(self.removed, key=lambda item: -item.macs)[:top]

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Everything, for `--json`; of the products the `top` largest."""
        return {
            "source_macs": self.source_macs,
            "executed_macs": self.executed_macs,
            "removed_macs": self.removed_macs,
            "added_macs": self.added_macs,
            "removed_by_reason": self.removed_by_reason(),
            "removed": self.largest_removed(top),
            "changed": self.changed[:top],
        }


def rewrites(source: Trace, optimized: Trace, part: Trace | None = None) -> Rewrites:
    """Account for the MACs of `source` in `optimized`, two traces of one program; always executed + removed = source + added.

    With a `part` of `source`, of its nodes that have an execution in the part, whole, and of what stands for them in `optimized`.

    Raises:
        TraceError: MACs of one of them are not known.
    """
    structure = None if part is None else part.main_structure
    before, after = _macs_by_node(source, structure), _macs_by_node(optimized)
    asked = set(before) if part is None else _chosen_nodes(part)
    names = source.node_names
    by_name = {names[node]: node for node in before}
    taken: set[int] = set()
    beside: set[int] = set()
    executed = 0
    changed = []
    for node, macs in after.items():
        stands_for = {by_name[name] for name in _origins(optimized, node) if name in by_name} - taken
        taken |= stands_for
        if part is not None and not stands_for & asked:
            continue
        executed += macs
        beside |= stands_for
        written = sum(before[n] for n in stands_for)
        if written != macs:
            changed.append(Changed(optimized.node_names[node], optimized.node_ops[node], written, macs))
    finder = _Finder(source, optimized, taken)
    removed = tuple(finder.removed(node, macs) for node, macs in before.items() if node in asked and node not in taken)
    counted = sum(macs for node, macs in before.items() if node in asked or node in beside)
    return Rewrites(counted, executed, removed, tuple(changed))


def _chosen_nodes(part: Trace) -> set[int]:
    rows = part.structure_rows(part.main_structure)
    return set(part.executions.node[rows][part.chosen[rows]].tolist())


def _macs_by_node(trace: Trace, structure: int | None = None) -> dict[int, int]:
    """MACs in a step (of the usual structure by default) of each node that has any, in the order of first execution."""
    structure = trace.main_structure if structure is None else structure
    found = costs(trace, structure)
    unknown = found.uncovered("macs")
    if unknown:
        raise TraceError(f"MACs of {', '.join(unknown)} are not known, so they cannot be accounted for")
    rows = np.flatnonzero(found.macs)
    nodes = trace.executions.node[trace.structure_rows(structure)][rows].tolist()
    totals: dict[int, int] = {}
    for node, macs in zip(nodes, found.macs[rows].tolist(), strict=True):
        totals[node] = totals.get(node, 0) + macs
    return totals


def _origins(trace: Trace, node: int) -> list[str]:
    """Names of a node and of the source nodes it came from."""
    rows = trace.nodes.source[trace.nodes.row_values("source", node)].tolist()
    return [trace.node_names[node], *(trace.strings[int(trace.source_nodes.node_name[row])] for row in rows)]


class _Finder:
    """Says how a product of the source went. `kept` are its nodes that something executed stands for."""

    def __init__(self, source: Trace, optimized: Trace, kept: set[int]) -> None:
        self.source, self.graph = source, NodeGraph(source)
        self.executed_ops = dict(zip(optimized.node_names, optimized.node_ops, strict=True))
        self.same: dict[object, str] = {}
        for node in sorted(kept):
            self.same.setdefault(self._value(node), source.node_names[node])

    def removed(self, node: int, macs: int) -> Removed:
        """The account of one node that was not executed."""
        name, op = self.source.node_names[node], self.source.node_ops[node]
        if self.executed_ops.get(name) == "Const" or self._is_constant(node):
            return Removed(name, op, macs, FOLDED)
        twin = self.same.get(self._value(node), "")
        return Removed(name, op, macs, MERGED, twin) if twin else Removed(name, op, macs, PRUNED)

    def _is_constant(self, node: int) -> bool:
        ran = np.flatnonzero(self.graph.ancestors([node])).tolist()
        return not any(self.graph.ops[n] in _FED or self.graph.values_read(n) for n in ran)

    def _value(self, node: int) -> object:
        """Equal for nodes that compute the same from the same."""
        inputs = tuple(self._origin(port) for port in self.graph.producers[node])
        return self.graph.ops[node], int(self.source.nodes.attributes[node]), inputs

    def _origin(self, port: Port) -> object:
        """Where a value comes from; two reads of one variable are one."""
        variable = self.graph.variable(port)
        return ("variable", variable) if variable >= 0 else self.graph.origin(port)
