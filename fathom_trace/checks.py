"""Is the trace true? The invariants that need no outside knowledge, counted on the trace itself.

Construction of a `Trace` already proves that its dependencies form a DAG. Here, on the measured times of every step:

* **Causality**: a producer's end is no later than its consumer's start. A consumer that starts early has a wrong edge.
* **Readiness**: an execution is scheduled no earlier than its last dependency's end, and within `READY_NS` of that dependency's done.
  A consumer that is late lacks an edge. Without this half, a trace with no dependencies at all would pass. Only what TensorFlow waited
  for counts here: the graph's edges, not the order of accesses to a variable that merely happened.
* **Resolution**: every data input of every execution is one live tensor of the producer that the graph names. A Merge reads one of its
  inputs; it and a ControlTrigger wait only for those control inputs whose branch ran.
* **Times** are ordered: scheduled <= start <= end <= done.
* **Losses**: recorded + missing = produced.

Nodes without inputs are ready from the step's start and wait for nothing but a worker, so they cannot be late; when the dead tokens came
that a ControlTrigger ran on, nobody recorded. Because loops run with
`parallel_iterations` = 1, everything in iteration i also waits for all of iteration i - 1; readiness knows it. A node that only stood in
its worker's queue is not late either (`_queued`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.losses import losses
from fathom_trace.trace import Dependencies, Trace
from fathom_trace.units import format_share

READY_NS = 100_000
"""An execution is ready this long after its last dependency was done, at most."""

CHEAP_NS = 50_000
"""A node that took longer was not run from a worker's own queue."""

QUEUE_SLACK_NS = 5_000
"""Nodes that became ready this close together may stand in the queue in either order."""

LEAST_READY_SHARE = 0.98
MERGE_OPS = frozenset({"Merge", "RefMerge"})
TRIGGER_OP = "ControlTrigger"
"""Runs once all its control inputs have come, dead ones too."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Checks:
    """Counts over all traced steps. `edges` and `executions` say out of how many; shares are fractions of one."""

    steps: int
    executions: int
    edges: int
    causality_violations: int
    early: int
    late: int
    queued: int
    unresolved_inputs: int
    wrong_edges: int
    invalid_times: int
    recorded: int
    produced: int
    complete: bool
    timed: bool
    losses: tuple[str, ...] = ()
    """Why something is missing, and what to do about it, where it is known."""

    @property
    def is_sound(self) -> bool:
        """Nothing is missing, in contradiction or out of order; readiness apart, since a busy machine alone makes workers late."""
        contradictions = self.causality_violations + self.unresolved_inputs + self.wrong_edges + self.invalid_times
        return self.complete and self.recorded == self.produced and not contradictions

    @property
    def readiness_violations(self) -> int:
        """Executions that were scheduled too early or too late."""
        return self.early + self.late

    @property
    def readiness_share(self) -> float:
        """Share of executions scheduled when their dependencies allow; 1 for a trace without times."""
        return 1.0 - self.readiness_violations / self.executions if self.executions and self.timed else 1.0

    @property
    def problems(self) -> list[str]:
        """One line for each invariant that does not hold; empty for a true trace."""
        found = []
        if self.causality_violations:
            found.append(f"{self.causality_violations} of {self.edges} dependencies end after their consumer starts")
        if self.readiness_share < LEAST_READY_SHARE:
            found.append(
                f"only {format_share(self.readiness_share)} of executions were scheduled when their dependencies allow"
                f" ({self.early} early, {self.late} late)"
            )
        if self.unresolved_inputs:
            found.append(f"{self.unresolved_inputs} data inputs have no producer")
        if self.wrong_edges:
            found.append(f"{self.wrong_edges} dependencies contradict the graph")
        if self.invalid_times:
            found.append(f"{self.invalid_times} executions have times out of order; they are left out of all sums; capture it again")
        if self.recorded != self.produced or not self.complete:
            found.append(f"the trace is incomplete: {self.recorded} executions recorded, at least {self.produced} ran")
        return found + list(self.losses)

    def to_dict(self) -> dict[str, Any]:
        """All counts, for `--json`."""
        derived = {
            "readiness_share": self.readiness_share,
            "readiness_violations": self.readiness_violations,
            "is_sound": self.is_sound,
        }
        return {**asdict(self), **derived, "problems": self.problems}


def check(trace: Trace) -> Checks:
    """Check every traced step of a trace."""
    counts = {"executions": 0, "edges": 0, "causality": 0, "early": 0, "late": 0, "queued": 0, "invalid": 0}
    structures = {s: _Structure(trace, s) for s in sorted({int(trace.steps.structure[k]) for k in trace.traced_steps})}
    is_timed = trace.has_times
    for step in trace.traced_steps:
        structure = structures[int(trace.steps.structure[step])]
        counts["executions"] += int(structure.timed.sum()) if is_timed else structure.count
        counts["edges"] += len(structure.producer)
        if is_timed:
            structure.check_step(trace, step, counts)
    unresolved, wrong = _resolution(trace)
    return Checks(
        steps=len(trace.traced_steps),
        executions=counts["executions"],
        edges=counts["edges"],
        causality_violations=counts["causality"],
        early=counts["early"],
        late=counts["late"],
        queued=counts["queued"],
        unresolved_inputs=unresolved,
        wrong_edges=wrong,
        invalid_times=counts["invalid"],
        recorded=int(trace.steps.recorded.sum()),
        produced=int(trace.steps.produced.sum()),
        complete=bool(trace.steps.complete.all()),
        timed=is_timed,
        losses=losses(trace),
    )


class _Structure:
    """The edges of one structure, and the iteration before each execution's own."""

    def __init__(self, trace: Trace, structure: int) -> None:
        rows = trace.structure_rows(structure)
        self.count = rows.stop - rows.start
        self.timed = np.asarray(trace.executions.timed[rows])
        self.producer, self.consumer = _edges(trace.dependencies(structure))
        self.waited_for, self.waiting = _edges(trace.waited_for(structure))
        self.path = np.asarray(trace.executions.path[rows], np.int64)
        inputs = np.diff(trace.nodes.input_offsets)
        self.is_root = inputs[trace.executions.node[rows]] == 0
        triggers = np.array([op == TRIGGER_OP for op in trace.node_ops], bool)[trace.executions.node[rows]]
        self.is_root |= triggers & (np.diff(trace.executions.control_offsets[rows.start : rows.stop + 1]) == 0)
        self.previous = _previous_iteration(trace)[self.path]

    def check_step(self, trace: Trace, step: int, counts: dict[str, int]) -> None:
        """Add one step's violations to `counts`."""
        rows, times = trace.step_rows(step), trace.step_times
        scheduled, start, end, done = (np.asarray(getattr(times, k)[rows]) for k in ("scheduled", "start", "end", "done"))
        valid = np.asarray(times.valid[rows]) | ~self.timed
        counts["invalid"] += int(np.count_nonzero(~valid))
        valid = valid & self.timed
        usable = valid[self.producer] & valid[self.consumer]
        counts["causality"] += int(np.count_nonzero((end[self.producer] > start[self.consumer]) & usable))
        ready_end, ready_done = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        np.maximum.at(ready_end, self.waiting, end[self.waited_for])
        np.maximum.at(ready_done, self.waiting, done[self.waited_for])
        barrier = self._barrier(trace, np.where(valid, done, 0))
        counts["early"] += int(np.count_nonzero((scheduled < ready_end) & valid))
        ready = np.maximum(ready_done, barrier)
        late = np.flatnonzero((scheduled > ready + READY_NS) & valid & ~self.is_root)
        lane = np.asarray(times.lane[rows], np.int64)
        queued = np.count_nonzero(_queued(late, lane, ready, scheduled, start, done)) if len(late) else 0
        counts["queued"] += int(queued)
        counts["late"] += len(late) - int(queued)

    def _barrier(self, trace: Trace, done: Int64) -> Int64:
        """When the iteration before each execution's own was over; 0 outside loops and in first iterations."""
        if not np.any(self.path):
            return np.zeros(self.count, np.int64)
        over = np.zeros(len(trace.paths), np.int64)
        np.maximum.at(over, self.path, done)
        parent = trace.paths.parent.tolist()
        ends = over.tolist()
        for row in range(len(ends) - 1, 0, -1):
            ends[parent[row]] = max(ends[parent[row]], ends[row])
        over = np.array(ends, np.int64)
        return np.where(self.previous >= 0, over[self.previous], 0)


def _edges(depends: Dependencies) -> tuple[Int64, Int64]:
    """Producer and consumer of each dependency, in local numbers."""
    return depends.producer, np.repeat(np.arange(len(depends.offsets) - 1), np.diff(depends.offsets))


def _queued(late: Int64, lane: Int64, ready: Int64, scheduled: Int64, start: Int64, done: Int64) -> NDArray[np.bool_]:
    """Which of `late` only waited in their worker's queue.

    A worker of TensorFlow's executor runs cheap nodes itself, first in, first out, before it hands on the next dear one; a node's
    `scheduled` is then the moment when its turn came. So a late node was queued if, from the moment it was ready to the moment it was
    scheduled, its worker was never idle and ran only cheap nodes that had been ready before it.
    """
    order = np.lexsort((start, lane))
    span = int(done.max()) + 2
    key = lane[order] * span + start[order]
    first = np.searchsorted(key, lane[late] * span + ready[late], "left")
    last = np.searchsorted(key, lane[late] * span + scheduled[late], "left")
    is_some = last > first
    pairs = np.stack([first, np.maximum(last, first + 1)], axis=1).ravel()
    pad = np.append(order, order[-1])
    idle = np.append(start[order][1:] - done[order][:-1], [0, 0])
    longest = np.maximum.reduceat((done - start)[pad], pairs)[::2]
    youngest = np.maximum.reduceat(ready[pad], pairs)[::2]
    idlest = np.maximum.reduceat(idle, pairs)[::2]
    is_fifo = youngest <= ready[late] + QUEUE_SLACK_NS
    return is_some & is_fifo & (longest <= CHEAP_NS) & (idlest <= READY_NS)


def _previous_iteration(trace: Trace) -> Int64:
    """Per path, the path of the iteration before it in the same loop instance, or -1."""
    paths = trace.paths
    result = np.full(len(paths), -1, np.int64)
    keys = zip(*(c.tolist() for c in (paths.parent, paths.frame, paths.instance, paths.iteration)), strict=True)
    at = {key: row for row, key in enumerate(keys)}
    for (parent, frame, instance, iteration), row in at.items():
        if iteration > 0:
            result[row] = at.get((parent, frame, instance, iteration - 1), -1)
    return result


def _resolution(trace: Trace) -> tuple[int, int]:
    """Data inputs without a producer, and edges whose producer is not the one that the graph names."""
    ex, nodes = trace.executions, trace.nodes
    is_merge = np.array([op in MERGE_OPS for op in trace.node_ops], bool)
    takes_dead = is_merge | np.array([op == TRIGGER_OP for op in trace.node_ops], bool)
    is_data = nodes.input_port >= 0
    owner = np.repeat(np.arange(len(nodes)), np.diff(nodes.input_offsets))
    data_count = np.bincount(owner[is_data], minlength=len(nodes))
    control_count = np.bincount(owner[~is_data], minlength=len(nodes))
    expected = np.where(is_merge, np.minimum(data_count, 1), data_count)[ex.node]
    found = np.diff(ex.input_offsets)
    is_op = ex.kind == 0
    unresolved = int(np.maximum(expected - found, 0)[is_op].sum())
    wrong = int(np.maximum(found - expected, 0)[is_op].sum())
    lacking = _distinct_controls(trace, control_count)[ex.node] - np.diff(ex.control_offsets)
    wrong += int(np.where(takes_dead[ex.node], np.maximum(-lacking, 0), np.abs(lacking))[is_op].sum())
    tensor = ex.input
    producer = ex.node[trace.tensors.execution[tensor]] if len(tensor) else tensor
    port = trace.tensors.port[tensor] if len(tensor) else tensor
    consumer = np.repeat(np.arange(len(ex)), found)
    allowed = _edge_keys(trace, np.asarray(owner[is_data]), nodes.input_node[is_data], nodes.input_port[is_data])
    given = _edge_keys(trace, ex.node[consumer], producer, port)
    wrong += int(np.count_nonzero(~np.isin(given, allowed) & is_op[consumer]))
    waited = np.repeat(np.arange(len(ex)), np.diff(ex.control_offsets))
    allowed = _edge_keys(trace, owner[~is_data], nodes.input_node[~is_data], nodes.input_port[~is_data])
    given = _edge_keys(trace, ex.node[waited], ex.node[ex.control], np.full(len(waited), -1))
    wrong += int(np.count_nonzero(~np.isin(given, allowed) & is_op[waited]))
    return unresolved, wrong


def _distinct_controls(trace: Trace, control_count: NDArray[Any]) -> NDArray[Any]:
    """Control inputs of each node, repeats counted once (as executions hold them)."""
    nodes = trace.nodes
    result = control_count.copy()
    for node in np.flatnonzero(control_count > 1).tolist():
        span = nodes.row_values("input", node)
        ports = nodes.input_port[span]
        result[node] = len(np.unique(nodes.input_node[span][ports < 0]))
    return result


def _edge_keys(trace: Trace, consumer: NDArray[Any], producer: NDArray[Any], port: NDArray[Any]) -> Int64:
    """One number for each (consumer, producer, port)."""
    count, ports = len(trace.nodes) + 1, int(max(port.max(initial=0), 0)) + 2
    ports = max(ports, 1024)
    return (consumer.astype(np.int64) * count + producer.astype(np.int64)) * ports + port.astype(np.int64) + 1
