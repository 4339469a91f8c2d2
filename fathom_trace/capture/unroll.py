"""Runs a graph in the head: every execution of every node with the shapes of its outputs, without computing anything.

Loops and branches are as TensorFlow lowers them (Enter, Merge, Switch, LoopCond, NextIteration, Exit). A graph is cut into levels, one for
each loop; a loop is one item of the level around it and is repeated while its condition, which must be known from the graph alone, holds.
An output that is not live (the other side of a Switch) is `None`, and so is all that reads it, as in TensorFlow's executor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fathom_trace.capture.dataflow import ENTER, EXIT, MERGE, NEXT, SWITCH
from fathom_trace.capture.graph import GraphNode
from fathom_trace.capture.shapes import ShapeInference, UnknownShapeError, Value
from fathom_trace.errors import CaptureError

MOST_EXECUTIONS = 20_000_000
"""With more, a loop is taken for endless."""

Outputs = list[Value | None]
"""What a node gives, by port; `None` where a port is not live."""

State = dict[int, Outputs | None]
"""By node, in one iteration of a level; `None` for a node that did not run."""

ALTERNATIVE = "capture it by running it, without --static"


@dataclass
class Level:
    """What one loop (or, with an empty name, the whole graph) repeats: nodes and inner loops, in an order in which they can run."""

    name: str
    parent: str = ""
    enters: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    nexts: list[int] = field(default_factory=list)
    items: list[int | str] = field(default_factory=list)


Item = TypeVar("Item", bound="int | str")


class Unroller:
    """Unrolls one graph; `run` gives (node, live outputs by port) of each execution, in an order in which they can run."""

    def __init__(self, nodes: Sequence[GraphNode], fed: Mapping[int, Value], inference: ShapeInference) -> None:
        """`fed` are the values of the nodes that yield what is fed."""
        self.nodes, self.fed, self.inference = nodes, fed, inference
        self.is_header = [n.op in MERGE and any(nodes[p].op in NEXT for p, _ in n.inputs) for n in nodes]
        self.order = self._order()
        self.level_of = self._levels()
        self.levels: dict[str, Level] = self._items()
        self.executions = 0
        self.indexed = {p for n in nodes for p, port in n.inputs if port == 1 and nodes[p].op in MERGE}
        """Merges whose second output is read: only then TensorFlow makes it."""
        self._report: Callable[[int, dict[int, Value]], None] = lambda _node, _outputs: None

    def run(self, report: Callable[[int, dict[int, Value]], None]) -> None:
        """Unroll, telling `report` of each execution.

        Raises:
            CaptureError: a branch, a trip count or a shape depends on data; names the node.
        """
        self._report = report
        self._level(self.levels[""], {}, {})

    # --- levels -----------------------------------------------------------------------------------------------------------------

    def _before(self, node: int) -> list[int]:
        """Producers, without the back edges of loops."""
        spec = self.nodes[node]
        return [p for p, _ in spec.inputs if not (self.is_header[node] and self.nodes[p].op in NEXT)] + list(spec.control)

    def _order(self) -> list[int]:
        return _sorted({n: self._before(n) for n in range(len(self.nodes))}, "the graph has a cycle that is no TensorFlow loop")

    def _levels(self) -> list[str]:
        """The loop that each node is in; an Enter is in the loop that it opens, an Exit in the one that it leaves."""
        found = [""] * len(self.nodes)
        self._depth = {"": 0}
        self._parents = {"": ""}
        for node in self.order:
            outside = ""
            for producer in self._before(node):
                given = found[producer]
                if self.nodes[producer].op in EXIT:
                    given = self._parents[given]
                if self._depth[given] > self._depth[outside]:
                    outside = given
            if self.nodes[node].op in ENTER:
                name = str(self.nodes[node].attributes["frame_name"])
                if self._parents.setdefault(name, outside) != outside:
                    outside = max(self._parents[name], outside, key=lambda level: self._depth[level])
                self._parents[name], self._depth[name] = outside, self._depth[outside] + 1
                found[node] = name
            else:
                found[node] = outside
        return found

    def _items(self) -> dict[str, Level]:
        levels = {name: Level(name, parent) for name, parent in self._parents.items()}
        before: dict[str, dict[int | str, list[int | str]]] = {name: {} for name in levels}
        for name in levels:
            if name:
                before[self._parents[name]].setdefault(name, [])
        for node in self.order:
            home, op = self.level_of[node], self.nodes[node].op
            item: int | str = node
            level = home
            if op in ENTER:
                levels[home].enters.append(node)
                item, level = home, self._parents[home]
            elif op in EXIT:
                levels[home].exits.append(node)
            elif op in NEXT:
                levels[home].nexts.append(node)
            places = (self._place(producer, level) for producer in self._before(node))
            before[level].setdefault(item, []).extend(place for place in places if place is not None and place != item)
        for name, made in levels.items():
            made.items = _sorted(before[name], f"the loop '{name}' has a cycle that is no TensorFlow loop")
        return levels

    def _place(self, producer: int, level: str) -> int | str | None:
        """The item of a level that yields what `producer` does: itself, the loop that it leaves; None for what enters the level."""
        home = self.level_of[producer]
        if home == level:
            return None if self.nodes[producer].op in ENTER else producer
        while home and self._parents[home] != level:
            home = self._parents[home]
        return home or None

    # --- running ----------------------------------------------------------------------------------------------------------------

    def _level(self, level: Level, entering: Mapping[int, Outputs | None], exits: State) -> None:
        """Run a level until no NextIteration is live; what leaves it goes into `exits`."""
        carried: State = {}
        iteration = 0
        while True:
            state: State = {}
            for enter in level.enters:
                is_seen = iteration == 0 or bool(self.nodes[enter].attributes.get("is_constant", False))
                state[enter] = entering[enter] if is_seen else None
            for item in level.items:
                if isinstance(item, str):
                    self._loop(self.levels[item], state)
                else:
                    self._node(item, state, carried, iteration)
            exits.update({n: state[n] for n in level.exits if state[n] is not None})
            carried = {n: state[n] for n in level.nexts if state[n] is not None}
            if not carried:
                return
            iteration += 1

    def _loop(self, level: Level, state: State) -> None:
        """Run an inner loop once, if it is entered, and put what leaves it into the state of the level around."""
        entering: State = {}
        for enter in level.enters:
            inputs = self._inputs(enter, state)
            entering[enter] = None if inputs is None else list(inputs)
            if inputs is not None:
                self._tell(enter, dict(enumerate(inputs)))
        exits: State = {}
        if any(o is not None for o in entering.values()):
            self._level(level, entering, exits)
        for node in level.exits:
            state[node] = exits.get(node)

    def _inputs(self, node: int, state: State) -> list[Value] | None:
        """The values that a node reads; None when one of them, or a control input, is not live."""
        spec = self.nodes[node]
        if any(state.get(p) is None for p in spec.control):
            return None
        found: list[Value] = []
        for producer, port in spec.inputs:
            outputs = state.get(producer)
            value = outputs[port] if outputs is not None and port < len(outputs) else None
            if value is None:
                return None
            found.append(value)
        return found

    def _node(self, node: int, state: State, carried: State, iteration: int) -> None:
        spec = self.nodes[node]
        if spec.op in MERGE:
            state[node] = self._merge(node, state, carried, iteration)
            return
        inputs = self._inputs(node, state)
        if inputs is None and spec.op != "ControlTrigger":
            state[node] = None
            return
        outputs: Outputs
        if spec.op in SWITCH:
            outputs = self._switch(node, inputs or [])
        elif spec.op in EXIT or spec.op in NEXT:
            outputs = list(inputs or [])
        elif spec.op == "_Retval":
            outputs = []
        elif node in self.fed:
            outputs = [self.fed[node]]
        else:
            try:
                outputs = list(self.inference.outputs(spec, inputs or []))
            except UnknownShapeError as error:
                raise CaptureError(f"{self._named(node)}: {error}, which a static capture does not have; {ALTERNATIVE}") from None
        state[node] = outputs
        self._tell(node, {port: value for port, value in enumerate(outputs) if value is not None})

    def _merge(self, node: int, state: State, carried: State, iteration: int) -> Outputs | None:
        """The one live input, and its number."""
        for number, (producer, port) in enumerate(self.nodes[node].inputs):
            is_back = self.is_header[node] and self.nodes[producer].op in NEXT
            if self.is_header[node] and is_back != (iteration > 0):
                continue
            outputs = (carried if is_back else state).get(producer)
            value = outputs[port] if outputs is not None else None
            if value is not None:
                made: Outputs = [value, Value("int32", (), known=np.array(number, np.int32))]
                self._tell(node, {k: v for k, v in enumerate(made) if v is not None and (k == 0 or node in self.indexed)})
                return made
        return None

    def _switch(self, node: int, inputs: Sequence[Value]) -> Outputs:
        data, predicate = inputs
        spec = self.nodes[node]
        if predicate.known is None:
            decider = self.nodes[spec.inputs[1][0]]
            if decider.op == "LoopCond":
                condition = self.nodes[decider.inputs[0][0]].name
                raise CaptureError(
                    f"the loop '{self.level_of[node]}' ends when its condition '{condition}' says so, which depends on data that a static"
                    f" capture does not have; {ALTERNATIVE}"
                )
            raise CaptureError(
                f"{self._named(node)} chooses a branch by '{decider.name}', which depends on data that a static capture does not have;"
                f" {ALTERNATIVE}"
            )
        taken = int(predicate.known)
        count = int(spec.attributes.get("num_outs", 2)) if spec.op == "_SwitchN" else 2
        if spec.op == "_SwitchN" and not 0 <= taken < count:
            taken = count - 1
        return [data if port == taken else None for port in range(count)]

    def _tell(self, node: int, outputs: dict[int, Value]) -> None:
        self.executions += 1
        if self.executions > MOST_EXECUTIONS:
            raise CaptureError(
                f"{self._named(node)} is in a loop that goes on after {MOST_EXECUTIONS:,} executions of the graph's nodes; {ALTERNATIVE}"
            )
        self._report(node, outputs)

    def _named(self, node: int) -> str:
        return f"'{self.nodes[node].name}' ({self.nodes[node].op})"


def _sorted(before: Mapping[Item, Sequence[Item]], complaint: str) -> list[Item]:
    """The keys so that each comes after those that it needs."""
    waiting = {item: len(set(needed)) for item, needed in before.items()}
    after: dict[Item, list[Item]] = {item: [] for item in before}
    for item, needed in before.items():
        for other in set(needed):
            after[other].append(item)
    ready = deque(item for item, count in waiting.items() if not count)
    order: list[Item] = []
    while ready:
        item = ready.popleft()
        order.append(item)
        for consumer in after[item]:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                ready.append(consumer)
    if len(order) < len(before):
        raise CaptureError(f"{complaint}; its dataflow cannot be followed")
    return order
