"""Which iteration each record belongs to, and what it depended on: found by dataflow, not by time.

TensorFlow records every iteration of a loop under the same name, without a number. Here each token gets a *tag*: a row of a tree of
(frame, instance, iteration). The graph is cut where NextIteration feeds a Merge and walked in topological order:

* an Enter's token j opens instance j of its loop; a constant Enter's token is seen by every iteration of it. In graphs of TensorFlow 1
  some of a loop's Enters may be live where others are dead: that instance does not run, and has one iteration for what they reach;
* a loop header (a Merge fed by a NextIteration) has iterations 0..n of each instance, where n is read off the recorded output slots of a
  Switch that the loop's condition drives: n times slot 1, closed by slot 0;
* a Switch splits its tags by recorded slot; the Merge that joins a branch unites them; an Exit drops the last element;
* a ControlTrigger (gradient loops of TensorFlow 1 have them) runs wherever its frame is, also where all that it waits for is dead: in
  the iteration that only ends a loop, and once in a loop that is not entered, for TensorFlow sends dead tokens through that one too;
* every other node runs for the tags that all its inputs have.

Zipping a node's tags with its records in start order is exact because lifting sets `parallel_iterations` to 1. Unequal counts mean that
records were lost. Edges follow by looking tags up.

This module knows no TensorFlow: it works on op type names and numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fathom_trace.capture.ragged import offsets_of, owners
from fathom_trace.errors import CaptureError

ENTER, EXIT = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
MERGE, NEXT = frozenset({"Merge", "RefMerge"}), frozenset({"NextIteration", "RefNextIteration"})
SWITCH = frozenset({"Switch", "RefSwitch", "_SwitchN"})
TRIGGER = "ControlTrigger"
ROOT = 0

Int64 = NDArray[np.int64]
Tags = tuple[int, ...]
ROOT_TAGS: Tags = (ROOT,)


@dataclass(frozen=True)
class FlowNode:
    """A node as dataflow sees it: `inputs` are (producer, port), `control` are producers. `frame` names an Enter's loop."""

    op: str
    inputs: Sequence[tuple[int, int]]
    control: Sequence[int]
    frame: str = ""
    is_constant: bool = False


@dataclass
class Frame:
    """A loop: its Enters, its headers and, once known, the tags of its instances. `running` are the `parents` of those that really run."""

    name: str
    enters: list[int] = field(default_factory=list)
    headers: list[int] = field(default_factory=list)
    tags: Tags = ()
    parents: frozenset[int] = frozenset()
    running: frozenset[int] = frozenset()
    is_open: bool = False


@dataclass(frozen=True)
class Missing:
    """A node that should have more records than it has."""

    node: int
    expected: int
    recorded: int


class Edges:
    """Who each record depended on, in 4 bytes an edge: `edges[r]` are the (producer record, port) of record r, `of(r)` without ports.

    Those of record r stand at `offsets[r]` to `offsets[r + 1]` of `producer` and `port`. Where the producer is missing it is -1.
    """

    def __init__(self, counts: NDArray[np.int64], has_ports: bool) -> None:
        """`counts` are how many edges each record has; all are missing until `put`."""
        self.offsets = offsets_of(counts)
        self.producer = np.full(self.offsets[-1], -1, np.int32)
        self.port = np.zeros(self.offsets[-1] if has_ports else 0, np.int32)

    def put(
        self, records: NDArray[np.int32], place: int, producer: NDArray[np.int32], port: int | NDArray[np.int32] | None = None
    ) -> None:
        """Set the edge at `place` (from 0 on) of each of some records."""
        at = self.offsets[records] + place
        self.producer[at] = producer
        if port is not None:
            self.port[at] = port

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, record: int) -> list[tuple[int, int]]:
        rows = slice(self.offsets[record], self.offsets[record + 1])
        return list(zip(self.producer[rows].tolist(), self.port[rows].tolist(), strict=True))

    def of(self, record: int) -> list[int]:
        """The producers of a record."""
        found: list[int] = self.producer[self.offsets[record] : self.offsets[record + 1]].tolist()
        return found

    def any_later(self) -> bool:
        """True when a record depends on one with a higher number."""
        return bool(np.any(self.producer > owners(self.offsets)))


@dataclass(frozen=True)
class Flow:
    """The result, by record. `path[r]` is a row of `paths`; `inputs[r]` are (producer record, port), `control.of(r)` producer records.

    `paths` are (parent, frame, instance, iteration), the root first. `frames` are loop names, `frame_parents` their enclosing loops.
    """

    path: Int64
    inputs: Edges
    control: Edges
    paths: list[tuple[int, int, int, int]]
    frames: list[str]
    frame_parents: list[int]
    node_frame: list[int]
    missing: list[Missing]
    surplus: list[Missing]


class FlowAnalysis:
    """One pass over a graph and one step's records of it."""

    def __init__(self, nodes: Sequence[FlowNode], records: Sequence[Sequence[int]], slots: Sequence[tuple[int, ...]]) -> None:
        """`records[n]` are the records of node n in start order; `slots[r]` the output slots that record r shows."""
        self.nodes, self.records, self.slots = nodes, records, slots
        self.paths: list[tuple[int, int, int, int]] = [(-1, -1, 0, 0)]
        self.frames: dict[str, Frame] = {}
        self.first_of: list[int] = [ROOT]
        self.next_of: list[int] = [-1]
        count = len(nodes)
        self.in_tags: list[Tags] = [()] * count
        self.out_tags: list[Tags] = [()] * count
        self.slot_tags: list[dict[int, Tags]] = [{} for _ in range(count)]
        self._places: dict[int, tuple[Int64, Int64]] = {}
        self._arrays: dict[int, tuple[Tags, Int64]] = {}
        self.missing: list[Missing] = []
        self.surplus: list[Missing] = []
        self._meets: dict[tuple[int, int], tuple[Tags, Tags, Tags]] = {}
        self._everywhere: dict[str, Tags] = {}
        self._constant: dict[int, Tags] = {}
        self._find_frames()
        self._frame_of = self._static_frames() if any(node.op == TRIGGER for node in nodes) else []

    # --- walking ----------------------------------------------------------------------------------------------------------------

    def run(self) -> Flow:
        """Tags for every node, then edges for every record."""
        for node in self._order():
            self._tag(node)
        return self._edges()

    def _find_frames(self) -> None:
        self.header_frame: dict[int, str] = {}
        for i, node in enumerate(self.nodes):
            if node.op in ENTER:
                self.frames.setdefault(node.frame, Frame(node.frame)).enters.append(i)
        for i, node in enumerate(self.nodes):
            if node.op in MERGE and any(self.nodes[p].op in NEXT for p, _ in node.inputs):
                frame = next((self.nodes[p].frame for p, _ in node.inputs if self.nodes[p].op in ENTER), None)
                if frame is None:
                    raise CaptureError(f"loop header {i} ({node.op}) has no Enter; the graph is not a TensorFlow loop")
                self.header_frame[i] = frame
                self.frames[frame].headers.append(i)
        self.frame_number = {name: k for k, name in enumerate(self.frames)}
        self.frame_parent = [-1] * len(self.frames)
        self.switch_of = self._loop_switches()

    def _loop_switches(self) -> dict[str, list[int]]:
        """Per loop, the Switches of its headers that its condition drives."""
        found: dict[str, list[int]] = {name: [] for name in self.frames}
        for i, node in enumerate(self.nodes):
            if node.op in SWITCH and len(node.inputs) == 2 and self.nodes[node.inputs[1][0]].op == "LoopCond":
                frame = self.header_frame.get(node.inputs[0][0])
                if frame is not None:
                    found[frame].append(i)
        return found

    def _producers(self, node: int) -> list[int]:
        """Who must be tagged before `node`: its producers without back edges; all Enters of the loop for what they feed."""
        spec = self.nodes[node]
        is_header = node in self.header_frame
        before = [p for p, _ in spec.inputs if not (is_header and self.nodes[p].op in NEXT)] + list(spec.control)
        loops = {self.nodes[p].frame for p, _ in spec.inputs if self.nodes[p].op in ENTER}
        loops |= {self.nodes[p].frame for p in spec.control if self.nodes[p].op in ENTER}
        return before + [e for name in loops for e in self.frames[name].enters]

    def _order(self) -> list[int]:
        waiting = [0] * len(self.nodes)
        after: list[list[int]] = [[] for _ in self.nodes]
        for node in range(len(self.nodes)):
            for producer in set(self._producers(node)):
                after[producer].append(node)
                waiting[node] += 1
        ready = deque(n for n, count in enumerate(waiting) if count == 0)
        order: list[int] = []
        while ready:
            node = ready.popleft()
            order.append(node)
            for consumer in after[node]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    ready.append(consumer)
        if len(order) != len(self.nodes):
            raise CaptureError("the executed graph has a cycle that is no TensorFlow loop; its dataflow cannot be followed")
        return order

    # --- tags -------------------------------------------------------------------------------------------------------------------

    def _live(self, producer: int, port: int) -> Tags:
        """Tags at which an output of `producer` is live for its consumers."""
        spec = self.nodes[producer]
        if spec.op in ENTER:
            self._open(self.frames[spec.frame])
            if spec.is_constant:
                return self._constant_tags(producer)
        if port >= 0 and spec.op in SWITCH:
            return self.slot_tags[producer].get(port, ())
        return self.out_tags[producer]

    def _meet(self, left: Tags, right: Tags) -> Tags:
        if left is right or left == right:
            return left
        key = (id(left), id(right))
        known = self._meets.get(key)
        if known is None:
            members = set(right)
            both = tuple(t for t in left if t in members)
            result = left if len(both) == len(left) else right if len(both) == len(right) else both
            known = self._meets[key] = (left, right, result)
        return known[2]

    def _tag(self, node: int) -> None:
        spec = self.nodes[node]
        if node in self.header_frame:
            tags = self._header_tags(node, self.frames[self.header_frame[node]])
        elif spec.op in MERGE:
            tags = tuple(sorted({t for p, port in spec.inputs for t in self._live(p, port)}))
        elif spec.op == TRIGGER:
            tags = self._all_tags(self._frame_of[node])
        else:
            tags = self._common(spec)
        if spec.op in EXIT:
            self.in_tags[node] = tags
            self.out_tags[node] = tuple(self.paths[t][0] for t in tags)
        elif spec.op in NEXT:
            self.in_tags[node] = tags
            self.out_tags[node] = tuple(self.next_of[t] for t in tags)
        else:
            self.in_tags[node] = self.out_tags[node] = tags
        self._match(node)
        if spec.op in SWITCH:
            split: dict[int, list[int]] = {}
            for tag, record in zip(tags, self.records[node], strict=False):
                for slot in self.slots[record]:
                    split.setdefault(slot, []).append(tag)
            self.slot_tags[node] = {slot: tags if len(t) == len(tags) else tuple(t) for slot, t in split.items()}

    def _common(self, spec: FlowNode) -> Tags:
        tags: Tags | None = None
        for producer, port in spec.inputs:
            live = self._live(producer, port)
            tags = live if tags is None else self._meet(tags, live)
        for producer in spec.control:
            live = self._live(producer, -1)
            tags = live if tags is None else self._meet(tags, live)
        return ROOT_TAGS if tags is None else tags

    def _match(self, node: int) -> None:
        expected, recorded = len(self.in_tags[node]), len(self.records[node])
        if recorded < expected:
            self.missing.append(Missing(node, expected, recorded))
        elif recorded > expected:
            self.surplus.append(Missing(node, expected, recorded))

    def _constant_tags(self, enter: int) -> Tags:
        """All iterations of the instances that a constant Enter has a token for."""
        frame = self.frames[self.nodes[enter].frame]
        if enter not in self._constant:
            parents = set(self.in_tags[enter])
            is_whole = len(parents) == len(frame.parents)
            self._constant[enter] = frame.tags if is_whole else tuple(t for t in frame.tags if self.paths[t][0] in parents)
        return self._constant[enter]

    def _header_tags(self, node: int, frame: Frame) -> Tags:
        """All iterations of the instances that run, and the only one of those others that the header's Enter has a token for."""
        self._open(frame)
        if frame.running == frame.parents:
            return frame.tags
        entered = frame.running.union(*(self.in_tags[p] for p, _ in self.nodes[node].inputs if self.nodes[p].op in ENTER))
        return tuple(t for t in frame.tags if self.paths[t][0] in entered)

    def _open(self, frame: Frame) -> None:
        """Make the tags of a loop's instances, once all its Enters are tagged."""
        if frame.is_open:
            return
        frame.is_open = True
        number = self.frame_number[frame.name]
        running: Tags | None = None
        for enter in frame.enters:
            running = self.in_tags[enter] if running is None else self._meet(running, self.in_tags[enter])
        frame.running = frozenset(running or ())
        frame.parents = frame.running.union(*(self.in_tags[enter] for enter in frame.enters))
        trips = iter(self._trips(frame))
        tags: list[int] = []
        for instance, parent in enumerate(sorted(frame.parents)):
            self.frame_parent[number] = self.paths[parent][1]
            first = len(self.paths)
            last = next(trips, 0) if parent in frame.running else 0  # one that is cut off may show no Switch yet
            for iteration in range(last + 1):
                self.paths.append((parent, number, instance, iteration))
                self.first_of.append(first)
                self.next_of.append(len(self.paths) if iteration < last else -1)
                tags.append(len(self.paths) - 1)
        frame.tags = tuple(tags)
        for enter in frame.enters:
            known = {self.paths[t][0]: t for t in tags if self.paths[t][3] == 0}
            self.out_tags[enter] = tuple(known.get(p, -1) for p in self.in_tags[enter])

    def _static_frames(self) -> list[str]:
        """The loop that each node lies in, by name; empty outside loops."""
        found = [""] * len(self.nodes)
        around = {"": ""}
        for node in self._order():
            spec = self.nodes[node]
            inputs = [p for p, _ in spec.inputs if self.nodes[p].op not in NEXT] + list(spec.control)
            inner = found[inputs[0]] if inputs else ""
            if spec.op in ENTER:
                around[spec.frame], inner = inner, spec.frame
            elif spec.op in EXIT:
                inner = around[inner]
            found[node] = inner
        self._around = around
        return found

    def _all_tags(self, name: str) -> Tags:
        """The tags of a loop's iterations and, for each time that it is not entered, of one in which everything is dead."""
        if not name:
            return ROOT_TAGS
        if name not in self._everywhere:
            frame = self.frames[name]
            self._open(frame)
            live: dict[int, list[int]] = {}
            for tag in frame.tags:
                live.setdefault(self.paths[tag][0], []).append(tag)
            number, instance = self.frame_number[name], len(live)
            found: list[int] = []
            for parent in self._all_tags(self._around[name]):
                if parent not in live:
                    live[parent] = [len(self.paths)]
                    self.paths.append((parent, number, instance, 0))
                    self.first_of.append(live[parent][0])
                    self.next_of.append(-1)
                    instance += 1
                found += live[parent]
            self._everywhere[name] = tuple(found)
        return self._everywhere[name]

    def _trips(self, frame: Frame) -> list[int]:
        """Trip count of each instance: the longest account among the loop's Switches, should records be missing."""
        best: list[int] = []
        for switch in self.switch_of[frame.name]:
            trips, run = [], 0
            is_inside = False
            for record in self.records[switch]:
                if 1 in self.slots[record]:
                    run, is_inside = run + 1, True
                else:
                    trips.append(run)
                    run, is_inside = 0, False
            if is_inside:
                trips.append(run)
            if sum(trips) + len(trips) > sum(best) + len(best):
                best = trips
        return best

    # --- edges ------------------------------------------------------------------------------------------------------------------

    def _array(self, tags: Tags) -> Int64:
        """Tags as an array; many nodes share them."""
        found = self._arrays.get(id(tags))
        if found is None or found[0] is not tags:
            found = self._arrays[id(tags)] = tags, np.array(tags, np.int64)
        return found[1]

    def _records_at(self, producer: int, tags: Tags, at: Int64) -> NDArray[np.int32]:
        """For each of `tags` (`at` as an array) the record of `producer` whose token a consumer running there sees, or -1."""
        spec, own = self.nodes[producer], self.out_tags[producer]
        records = np.append(self._records[producer][: len(own)], np.int32(-1))
        if own is tags:
            place = np.arange(len(at))
        else:
            if spec.op in ENTER and spec.is_constant:
                at = self._first_of[at]
            known = self._places.get(id(own))  # of tuples that `out_tags` keeps; most nodes of a loop share one
            if known is None:
                order = np.argsort(self._array(own), kind="stable")
                known = self._places[id(own)] = self._array(own)[order], order
            where = np.searchsorted(known[0], at, side="right") - 1
            is_there = where >= 0
            is_there[is_there] = known[0][where[is_there]] == at[is_there]
            place = np.full(len(at), -1)
            place[is_there] = known[1][where[is_there]]
        found: NDArray[np.int32] = records[np.where((place < 0) | (place >= len(records) - 1), len(records) - 1, place)]
        return found

    def _edges(self) -> Flow:
        total = len(self.slots)
        path = np.full(total, ROOT, np.int64)
        self._first_of = np.array(self.first_of, np.int64)
        self._iterations = np.array([iteration for _, _, _, iteration in self.paths], np.int64)
        self._records = [np.array(records, np.int32) for records in self.records]
        input_counts, control_counts = np.zeros(total, np.int64), np.zeros(total, np.int64)
        for node, spec in enumerate(self.nodes):
            known = self._records[node][: len(self.in_tags[node])]
            input_counts[known] = 1 if spec.op in MERGE else len(spec.inputs)
            control_counts[known] = len(spec.control)
        inputs, control = Edges(input_counts, has_ports=True), Edges(control_counts, has_ports=False)
        node_frame = [-1] * len(self.nodes)
        for node, spec in enumerate(self.nodes):
            tags, records = self.in_tags[node], self._records[node]
            if tags:
                node_frame[node] = self.paths[tags[0]][1]
            if len(records) < len(tags):
                tags = tags[: len(records)]
            records, at = records[: len(tags)], self._array(tags)
            path[records] = at
            if spec.op in MERGE:
                inputs.put(records, 0, *self._merge_inputs(node, tags, at))
            else:
                for place, (producer, port) in enumerate(spec.inputs):
                    inputs.put(records, place, self._records_at(producer, tags, at), port)
            for place, producer in enumerate(spec.control):
                control.put(records, place, self._records_at(producer, tags, at))
        return Flow(
            path=path,
            inputs=inputs,
            control=control,
            paths=self.paths,
            frames=list(self.frames),
            frame_parents=self.frame_parent,
            node_frame=node_frame,
            missing=self.missing,
            surplus=self.surplus,
        )

    def _merge_inputs(self, node: int, tags: Tags, at: Int64) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The one live input of a Merge at each of `tags` (`at` as an array): its producer, or -1, and port."""
        producers, ports = np.full(len(at), -1, np.int32), np.zeros(len(at), np.int32)
        is_first = self._iterations[at] == 0
        for producer, port in self.nodes[node].inputs:
            is_open = producers < 0
            if node in self.header_frame:
                is_open &= is_first != (self.nodes[producer].op in NEXT)
            if self.nodes[producer].op in SWITCH:
                is_open &= np.isin(at, self._array(self.slot_tags[producer].get(port, ())))
            found = self._records_at(producer, tags, at)
            is_open &= found >= 0
            producers[is_open], ports[is_open] = found[is_open], port
        return producers, ports
