"""What a replay needs of one structure: durations, dispatch gaps, and who ran what in which order. All times in ns.

The gap model, per traced step. Time 0 is the first `scheduled` of the step. Execution `i` was *free to start* at

    free(i) = max(0, end of each dependency, done of the execution before `i` on its lane)

and its dispatch gap is `start(i) - free(i)`. A dependency counts from its `end` (kernel returned), because consumers may begin while
the producer still notifies others; the lane counts from `done`, because the worker notifies. So an unchanged replay along the
captured lanes starts every execution where it was measured, and its makespan is the measured span: exactly, for each step.
A gap is negative only where the trace itself contradicts causality (a consumer that starts before its producer's end); it is kept
for that replay, so that the arithmetic stays honest, counted, and taken as 0 wherever another schedule is computed.

Executions without a valid time take no time and hold no lane: their dependents wait for what they waited for. They are counted.

Idle stays: whatever made an execution start later than it could have is in its gap, and a speedup of ops leaves it there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Dependencies, Trace

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Recording:
    """Measured times of one structure's executions, `[executions]` each, and the order in which its workers took them."""

    dependencies: Dependencies
    duration_ns: Float
    """Start to done: the paper's op time."""
    tail_ns: Float
    """End to done, the part of the duration in which dependents may already run."""
    gap_ns: Float
    order: Int64
    """Executions by captured start, but no execution before one that it depends on."""
    lane: Int64
    """Captured worker; -1 where the execution has no valid time."""
    timed: Bool
    """False: no valid time in any step; taken as 0 and counted."""
    measured_spans_ns: tuple[float, ...]
    """Span of each step that the medians are over: first scheduled to last done."""
    exclusive: Int64 | None = None
    """What an execution needs for itself besides a worker, such as an accelerator, by number from 0; -1 for nothing; None: none does."""

    def __len__(self) -> int:
        return len(self.duration_ns)

    @property
    def measured_span_ns(self) -> float:
        """Median over the steps of first scheduled to last done."""
        return float(np.median(self.measured_spans_ns)) if self.measured_spans_ns else 0.0

    @property
    def lanes(self) -> int:
        """How many workers ran something."""
        return int(self.lane.max()) + 1 if len(self.lane) else 0

    @cached_property
    def previous(self) -> Int64:
        """The execution before each one on its lane, or -1."""
        return _previous(self.order, self.lane)

    @cached_property
    def dispatch_ns(self) -> Float:
        """The gaps, negative ones as 0: what schedules other than the captured one add before each execution."""
        return np.maximum(self.gap_ns, 0.0)

    @property
    def negative_gaps(self) -> int:
        """Executions that started before what they depend on had ended."""
        return int(np.count_nonzero(self.gap_ns < 0))

    @cached_property
    def producers(self) -> list[list[int]]:
        """Dependencies as plain lists, for the loops."""
        flat, bounds = self.dependencies.producer.tolist(), self.dependencies.offsets.tolist()
        return [flat[a:b] for a, b in pairwise(bounds)]

    @cached_property
    def consumers(self) -> list[list[int]]:
        """Who depends on each execution, ascending."""
        result: list[list[int]] = [[] for _ in range(len(self))]
        for i, producers in enumerate(self.producers):
            for p in producers:
                result[p].append(i)
        return result

    def bodies_ns(self, duration_ns: Float) -> Float:
        """Start to end for changed durations `[..., executions]`: the tail shrinks or grows as the whole does."""
        ratio = np.divide(duration_ns, self.duration_ns, out=np.ones_like(duration_ns), where=self.duration_ns > 0)
        return np.asarray(np.maximum(duration_ns - self.tail_ns * ratio, 0.0))

    def without_tracing(self, cost_ns: float) -> Recording:
        """The recording with `cost_ns` taken off each execution's overhead: off its gap, and what that does not hold off its tail."""
        off_gap = np.minimum(self.dispatch_ns, cost_ns)
        off_tail = np.minimum(self.tail_ns, cost_ns - off_gap)
        return replace(self, gap_ns=self.gap_ns - off_gap, tail_ns=self.tail_ns - off_tail, duration_ns=self.duration_ns - off_tail)

    def with_operations(self, factor: float) -> Recording:
        """The recording with every duration multiplied by `factor`, tails with them; gaps stay."""
        return replace(self, duration_ns=self.duration_ns * factor, tail_ns=self.tail_ns * factor)


def record_step(trace: Trace, step: int) -> Recording:
    """The recording of one traced step, exact to the nanosecond."""
    structure = int(trace.steps.structure[step])
    depends = trace.dependencies(structure)
    seen = _observe(trace, structure, step, depends)
    return Recording(
        dependencies=depends,
        duration_ns=np.where(seen.valid, seen.done - seen.start, 0.0),
        tail_ns=np.where(seen.valid, seen.done - seen.end, 0.0),
        gap_ns=np.where(seen.valid, seen.gap, 0.0),
        order=seen.order,
        lane=seen.lane,
        timed=seen.valid,
        measured_spans_ns=(seen.span,),
    )


def record(trace: Trace, structure: int | None = None) -> Recording:
    """The recording of a structure (the most frequent by default): medians over its steps of durations, tails and gaps.

    Lanes and order are those of the step whose span is nearest to the median span.

    Raises:
        ScenarioError: the trace holds no times to replay.
    """
    if not len(trace.structures):
        raise ScenarioError("the trace holds no executions, so there is nothing to project; capture it again")
    structure = trace.main_structure if structure is None else structure
    steps = trace.steps_of(structure)
    if not steps or not trace.has_times:
        raise ScenarioError("the trace holds no times, so nothing can be projected; capture it by running it")
    depends = trace.dependencies(structure)
    seen = [_observe(trace, structure, s, depends) for s in steps]
    valid = np.stack([s.valid for s in seen])
    timed: Bool = np.asarray(valid.any(axis=0))
    if len(timed) and not timed.any():
        raise ScenarioError("no execution of the trace has a valid time, so nothing can be projected; capture it again")
    spans = tuple(s.span for s in seen)
    nearest = seen[int(np.argmin(np.abs(np.array(spans) - np.median(spans))))]
    duration = trace.median_durations(structure)
    body = _median(np.stack([s.end - s.start for s in seen]), valid)
    return Recording(
        dependencies=depends,
        duration_ns=np.where(timed, duration, 0.0),
        tail_ns=np.where(timed, duration - body, 0.0),
        gap_ns=_median(np.stack([s.gap for s in seen]), valid),
        order=nearest.order,
        lane=nearest.lane,
        timed=timed,
        measured_spans_ns=spans,
    )


@dataclass(frozen=True, eq=False)
class _Observed:
    """One step as measured: times since its first `scheduled`, and what the gap model makes of them."""

    start: Float
    end: Float
    done: Float
    valid: Bool
    lane: Int64
    order: Int64
    gap: Float
    span: float


def _observe(trace: Trace, structure: int, step: int, depends: Dependencies) -> _Observed:
    rows, times = trace.step_rows(step), trace.step_times
    valid = times.valid[rows] & trace.executions.timed[trace.structure_rows(structure)]
    origin = int(times.scheduled[rows][valid].min()) if valid.any() else 0
    start, end, done = ((column[rows] - origin).astype(np.float64) for column in (times.start, times.end, times.done))
    for local in np.flatnonzero(~valid).tolist():  # ascending, hence producers first
        before = depends.of(local)
        start[local] = start[before].max() if len(before) else 0.0
        end[local] = done[local] = end[before].max() if len(before) else 0.0
    lane = np.where(valid, times.lane[rows], -1).astype(np.int64)
    order = _captured_order(start, depends)
    previous = _previous(order, lane)
    free = np.zeros(len(start))
    np.maximum.at(free, np.repeat(np.arange(len(start)), np.diff(depends.offsets)), end[depends.producer])
    free = np.maximum(free, np.where(previous >= 0, done[previous], 0.0))
    return _Observed(start, end, done, valid, lane, order, start - free, float(done[valid].max()) if valid.any() else 0.0)


def _captured_order(start: Float, depends: Dependencies) -> Int64:
    """Executions by start; where a start contradicts a dependency, the dependency wins."""
    order = np.argsort(start, kind="stable").astype(np.int64)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    consumer = np.repeat(np.arange(len(order)), np.diff(depends.offsets))
    if np.all(position[depends.producer] < position[consumer]):
        return order
    waiting = np.diff(depends.offsets).tolist()
    consumers: list[list[int]] = [[] for _ in waiting]
    for c, p in zip(consumer.tolist(), depends.producer.tolist(), strict=True):
        consumers[p].append(c)
    when = start.tolist()
    heap = [(when[i], i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(heap)
    result: list[int] = []
    while heap:
        _, i = heapq.heappop(heap)
        result.append(i)
        for c in consumers[i]:
            waiting[c] -= 1
            if waiting[c] == 0:
                heapq.heappush(heap, (when[c], c))
    return np.array(result, np.int64)


def _previous(order: Int64, lane: Int64) -> Int64:
    """The execution before each one on its lane, in `order`; -1 for the first of a lane and where there is no lane."""
    result = np.full(len(order), -1, np.int64)
    on_lane = order[lane[order] >= 0]
    by_lane = on_lane[np.argsort(lane[on_lane], kind="stable")]
    same = lane[by_lane[1:]] == lane[by_lane[:-1]]
    result[by_lane[1:][same]] = by_lane[:-1][same]
    return result


def _median(values: Float, valid: Bool) -> Float:
    """Median along the steps of the valid values `[steps, executions]`; 0 where there is none."""
    if valid.all():
        return np.asarray(np.median(values, axis=0))
    kept = np.where(valid, values, np.nan)
    kept[:, ~valid.any(axis=0)] = 0.0
    return np.asarray(np.nanmedian(kept, axis=0))
