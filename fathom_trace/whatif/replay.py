"""Schedules of a recording: along the captured lanes, on unlimited workers, and on P workers by list scheduling. Times in ns.

* **Captured lanes**: each execution on the worker and in the turn it was measured in. Unchanged, this gives the measured span
  exactly (`recording.py` says why). Making something faster never makes it longer. What an iteration of a loop waited for is in the
  order of the lanes, so the barrier between iterations (`parallel_iterations=1` while tracing) stays.
* **Unlimited workers**: the longest path through the dependencies, each execution weighing its gap and its duration. Faster is never
  longer. The barrier between iterations is dropped: it belongs to tracing, not to the program.
* **P workers**: list scheduling (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969). Whenever a worker is free, the
  ready execution of the highest priority starts; its worker is held for gap and duration. Priority `captured` takes executions by
  their measured start; `critical-path` takes first what has the longest path still ahead. One worker gives the sum. With W the sum and
  CP the longest path, max(CP, W/P) <= makespan <= W/P + (1 - 1/P) CP, and a faster op can make it *longer*. The barrier between
  iterations is dropped. What needs something for itself (`Recording.exclusive`) starts only when nothing else has it; until then others
  of lower priority go first, and the upper bound does not hold.

`makespans_ns` takes many scenarios at once, `[scenarios, executions]`, in one pass over the dependencies; one scenario runs in a plain
loop over lists. Beyond `COMPILED_VALUES` executions x scenarios the loops are compiled by numba, if it is installed (the extra `fast`);
importing it takes longer than small work. All do the same floating-point operations in the same order, so they agree to the last bit.
"""

from __future__ import annotations

import heapq
import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.whatif.recording import Float, Int64, Recording

CAPTURED, CRITICAL_PATH = "captured", "critical-path"
PRIORITIES = (CAPTURED, CRITICAL_PATH)

BATCH_VALUES = 4_000_000
"""Scenarios x executions that one vectorised pass holds, in a few arrays of 8 bytes each."""

COMPILED_VALUES = 1_000_000
"""Scenarios x executions from which on compiled loops pay for the import of numba."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each execution runs, `[executions]` in ns, and on which worker (-1 where workers are unlimited)."""

    start_ns: Float
    end_ns: Float
    done_ns: Float
    worker: Int64

    @property
    def makespan_ns(self) -> float:
        """Last done."""
        return float(self.done_ns.max()) if len(self.done_ns) else 0.0

    @property
    def idle_ns(self) -> float:
        """Time, from 0 to the last done, in which no execution runs."""
        if not len(self.start_ns):
            return 0.0
        by_start = np.argsort(self.start_ns, kind="stable")
        covered = np.concatenate([[0.0], np.maximum.accumulate(self.done_ns[by_start])[:-1]])
        return float(np.maximum(self.start_ns[by_start] - covered, 0.0).sum())


def replay_lanes(recording: Recording, duration_ns: Float | None = None, gap_ns: Float | None = None) -> Schedule:
    """The schedule along the captured lanes; without arguments, the measured one."""
    duration = recording.duration_ns if duration_ns is None else duration_ns
    gap = recording.gap_ns if gap_ns is None else gap_ns
    return Schedule(*_lanes_loop(recording, duration, gap), recording.lane)


def replay_unlimited(recording: Recording, duration_ns: Float | None = None, gap_ns: Float | None = None) -> Schedule:
    """The schedule on unlimited workers; its makespan is the longest path."""
    duration = recording.duration_ns if duration_ns is None else duration_ns
    gap = recording.dispatch_ns if gap_ns is None else np.maximum(gap_ns, 0.0)
    fast = compiled() if len(recording) >= COMPILED_VALUES else None
    nobody = np.full(len(recording), -1, np.int64)
    if fast is None:
        return Schedule(*_unlimited_loop(recording, duration, gap), nobody)
    depends = recording.dependencies
    start, end = fast.unlimited(
        depends.offsets, depends.producer, recording.bodies_ns(duration), np.ascontiguousarray(gap, np.float64)
    )
    return Schedule(start, end, start + duration, nobody)


def replay_workers(
    recording: Recording,
    workers: int,
    duration_ns: Float | None = None,
    gap_ns: Float | None = None,
    priority: str = CAPTURED,
) -> Schedule:
    """The list schedule on `workers` workers.

    Raises:
        ScenarioError: fewer than one worker.
        UnknownNameError: a priority that does not exist.
    """
    if workers < 1:
        raise ScenarioError(f"cannot replay on {workers} workers; give 1 or more")
    duration = recording.duration_ns if duration_ns is None else duration_ns
    gap = recording.dispatch_ns if gap_ns is None else np.maximum(gap_ns, 0.0)
    rank = _ranks(recording, duration, gap, priority)
    by_rank = np.argsort(rank).tolist()
    ranks, waits = rank.tolist(), np.diff(recording.dependencies.offsets).tolist()
    gaps, durations, bodies = gap.tolist(), duration.tolist(), recording.bodies_ns(duration).tolist()
    consumers = recording.consumers
    start, end, done = [0.0] * len(waits), [0.0] * len(waits), [0.0] * len(waits)
    worker = [-1] * len(waits)
    needs = [-1] * len(waits) if recording.exclusive is None else recording.exclusive.tolist()
    taken = [False] * (max(needs, default=-1) + 1)
    queues: list[list[int]] = [[] for _ in taken]
    ready = [ranks[i] for i, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    free = list(range(min(workers, max(len(waits), 1))))
    # Events are (time, execution) when it ends, and (time, ~execution) when its worker is free again (and it ends, if it has no tail).
    events: list[tuple[float, int]] = []
    now = 0.0
    while ready or events:
        while ready and free:
            i = by_rank[heapq.heappop(ready)]
            if needs[i] >= 0:
                if taken[needs[i]]:
                    heapq.heappush(queues[needs[i]], ranks[i])
                    continue
                taken[needs[i]] = True
            worker[i] = heapq.heappop(free)
            start[i] = now + gaps[i]
            end[i] = start[i] + bodies[i]
            done[i] = start[i] + durations[i]
            if end[i] < done[i]:
                heapq.heappush(events, (end[i], i))
            heapq.heappush(events, (done[i], ~i))
            if events[0][0] <= now:  # it took no time: what it frees may come before the rest of `ready`
                break
        if not events:
            continue
        now = events[0][0]
        while events and events[0][0] <= now:
            i = heapq.heappop(events)[1]
            if i < 0:
                i = ~i
                heapq.heappush(free, worker[i])
                if needs[i] >= 0:
                    taken[needs[i]] = False
                    if queues[needs[i]]:
                        heapq.heappush(ready, heapq.heappop(queues[needs[i]]))
                if end[i] < done[i]:
                    continue
            for consumer in consumers[i]:
                waits[consumer] -= 1
                if waits[consumer] == 0:
                    heapq.heappush(ready, ranks[consumer])
    return Schedule(np.array(start), np.array(end), np.array(done), np.array(worker, np.int64))


def makespans_ns(
    recording: Recording,
    duration_ns: Float,
    gap_ns: Float | None = None,
    workers: int | None = None,
    priority: str = CAPTURED,
) -> Float:
    """Makespan of each scenario, `[scenarios]`, for durations `[scenarios, executions]` on `workers` workers (None: unlimited).

    `gap_ns` is `[executions]` or `[scenarios, executions]`; by default the measured one. One worker is a sum, unlimited workers one
    vectorised pass; list scheduling goes through the scenarios one by one.
    """
    gap = recording.dispatch_ns if gap_ns is None else np.maximum(gap_ns, 0.0)
    gap = np.broadcast_to(gap, duration_ns.shape)
    if workers == 1:
        return np.asarray((np.ascontiguousarray(gap) + duration_ns).sum(axis=1))
    fast = compiled() if duration_ns.size >= COMPILED_VALUES else None
    if fast is not None:
        return _compiled_makespans(fast, recording, duration_ns, gap, workers, priority)
    if workers is not None:
        pairs = zip(duration_ns, gap, strict=True)
        return np.array([replay_workers(recording, workers, d, g, priority).makespan_ns for d, g in pairs])
    if len(duration_ns) == 1:
        return np.array([replay_unlimited(recording, duration_ns[0], gap[0]).makespan_ns])
    batch = max(2, BATCH_VALUES // max(len(recording), 1))
    parts = [slice(at, at + batch) for at in range(0, len(duration_ns), batch)]
    return np.concatenate([np.zeros(0), *(_unlimited_pass(recording, duration_ns[p], gap[p]) for p in parts)])


@cache
def compiled() -> ModuleType | None:
    """The compiled loops; None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from fathom_trace.whatif import compiled

    return compiled


def _compiled_makespans(
    fast: ModuleType, recording: Recording, duration: Float, gap: Float, workers: int | None, priority: str
) -> Float:
    """`makespans_ns` by compiled loops."""
    depends, tail, base = recording.dependencies, recording.tail_ns, recording.duration_ns
    duration = np.ascontiguousarray(duration, np.float64)
    if workers is None:
        gaps = np.ascontiguousarray(gap[:1] if gap.strides[0] == 0 else gap, np.float64)
        return np.asarray(fast.longest_paths(depends.offsets, depends.producer, base, tail, duration, gaps))
    if workers < 1:
        raise ScenarioError(f"cannot replay on {workers} workers; give 1 or more")
    if priority not in PRIORITIES:
        raise UnknownNameError("priority", priority, PRIORITIES)
    count = len(recording)
    consumers = np.repeat(np.arange(count), np.diff(depends.offsets))
    by_producer = np.argsort(depends.producer, kind="stable")
    offsets = np.searchsorted(depends.producer[by_producer], np.arange(count + 1)).astype(np.int64)
    consumer, waits = consumers[by_producer], np.diff(depends.offsets)
    needs = np.zeros(0, np.int64) if recording.exclusive is None else recording.exclusive
    result = np.zeros(len(duration))
    for k, (took, before) in enumerate(zip(duration, np.ascontiguousarray(gap, np.float64), strict=True)):
        body, order = recording.bodies_ns(took), recording.order
        if priority == CRITICAL_PATH:
            order = np.argsort(-fast.paths_ahead(offsets, consumer, before, took, body), kind="stable")
        result[k] = fast.list_makespan(offsets, consumer, waits, order, needs, before, took, body, min(workers, max(count, 1)))
    return result


def critical_path(recording: Recording, schedule: Schedule, gap_ns: Float | None = None) -> list[int]:
    """A longest path of an unlimited schedule, first execution first: each waited for the one before it, the last is done last."""
    if not len(recording):
        return []
    gaps = recording.dispatch_ns if gap_ns is None else np.maximum(gap_ns, 0.0)
    last = int(np.argmax(schedule.done_ns))
    fast = compiled() if len(recording) >= COMPILED_VALUES else None
    if fast is not None:
        depends = recording.dependencies
        found = fast.path_to(last, depends.offsets, depends.producer, schedule.start_ns, schedule.end_ns, gaps)
        back: list[int] = found[::-1].tolist()
        return back
    gap = gaps.tolist()
    start, end = schedule.start_ns.tolist(), schedule.end_ns.tolist()
    path = [last]
    while True:
        i = path[-1]
        binding = max(recording.producers[i], key=end.__getitem__, default=None)
        if binding is None or start[i] > max(end[binding], 0.0) + gap[i]:
            return path[::-1]
        path.append(binding)


def _lanes_loop(recording: Recording, duration: Float, gap: Float) -> tuple[Float, Float, Float]:
    """Starts, ends and dones along the lanes: start = max(0, ends of dependencies, done of the lane's previous) + gap."""
    count = len(recording)
    producers, before = recording.producers, recording.previous.tolist()
    gaps, durations, bodies = gap.tolist(), duration.tolist(), recording.bodies_ns(duration).tolist()
    start, end = [0.0] * count, [0.0] * count
    done = [0.0] * (count + 1)  # the last one stands for "no previous": index -1
    for i in recording.order.tolist():
        free = done[before[i]]
        for p in producers[i]:
            ended = end[p]
            if ended > free:
                free = ended
        begun = start[i] = free + gaps[i]
        end[i] = begun + bodies[i]
        done[i] = begun + durations[i]
    return np.array(start), np.array(end), np.array(done[:count])


def _unlimited_loop(recording: Recording, duration: Float, gap: Float) -> tuple[Float, Float, Float]:
    """Starts, ends and dones on unlimited workers: start = max(0, ends of dependencies) + gap, in the stored order."""
    start: list[float] = []
    end: list[float] = []
    for producers, wait, body in zip(recording.producers, gap.tolist(), recording.bodies_ns(duration).tolist(), strict=True):
        free = 0.0
        for p in producers:
            ended = end[p]
            if ended > free:
                free = ended
        begun = free + wait
        start.append(begun)
        end.append(begun + body)
    begun_ns = np.array(start)
    return begun_ns, np.array(end), begun_ns + duration


def _unlimited_pass(recording: Recording, duration: Float, gap: Float) -> Float:
    """Longest path of each scenario, `[scenarios]`: `_unlimited_loop` with a row of scenarios in place of each number."""
    bodies = np.ascontiguousarray(recording.bodies_ns(duration).T)
    shared = gap.strides[0] == 0
    gaps = gap[0].tolist() if shared else np.ascontiguousarray(gap.T)
    start, end = np.empty_like(bodies), np.empty_like(bodies)
    nothing = np.zeros(len(duration))
    for i, producers in enumerate(recording.producers):
        free = end[producers[0]] if producers else nothing
        for p in producers[1:]:
            free = np.maximum(free, end[p])
        np.add(free, gaps[i], out=start[i])
        np.add(start[i], bodies[i], out=end[i])
    start += duration.T
    return np.asarray(start.max(axis=0, initial=0.0))


def _ranks(recording: Recording, duration: Float, gap: Float, priority: str) -> NDArray[np.int64]:
    """Place of each execution in the list, 0 first."""
    if priority == CAPTURED:
        order = recording.order
    elif priority == CRITICAL_PATH:
        ahead = (gap + duration).tolist()
        bodies = (gap + recording.bodies_ns(duration)).tolist()
        for i, consumers in reversed(list(enumerate(recording.consumers))):
            if consumers:
                ahead[i] = max(ahead[i], bodies[i] + max(ahead[c] for c in consumers))
        order = np.argsort(-np.array(ahead), kind="stable")
    else:
        raise UnknownNameError("priority", priority, PRIORITIES)
    rank = np.empty(len(recording), np.int64)
    rank[order] = np.arange(len(recording))
    return rank
