"""Random and hand-made recordings and traces that the what-if tests share, and a slow list scheduler to compare with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Dependencies, Trace
from fathom_trace.whatif.recording import Recording


def recording_of(
    durations: Sequence[float],
    parents: Sequence[Sequence[int]],
    *,
    gaps: Sequence[float] | None = None,
    tails: Sequence[float] | None = None,
) -> Recording:
    """A recording with execution `i` depending on `parents[i]`, all below `i`; captured order is by number, on one lane."""
    count = len(durations)
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parents], dtype=np.int64)]).astype(np.int64)
    return Recording(
        dependencies=Dependencies(offsets, np.array([p for one in parents for p in sorted(one)], np.int64)),
        duration_ns=np.array(durations, np.float64),
        tail_ns=np.zeros(count) if tails is None else np.array(tails, np.float64),
        gap_ns=np.zeros(count) if gaps is None else np.array(gaps, np.float64),
        order=np.arange(count, dtype=np.int64),
        lane=np.zeros(count, np.int64),
        timed=np.ones(count, bool),
        measured_spans_ns=(float(sum(durations)),),
    )


def random_parents(rng: random.Random, count: int, most: int = 3) -> list[list[int]]:
    """Up to `most` earlier executions for each one."""
    return [rng.sample(range(i), rng.randint(0, min(i, most))) for i in range(count)]


def random_recording(rng: random.Random, count: int, *, gaps: bool = False, tails: bool = False, shortest: int = 0) -> Recording:
    """Whole durations up to 9 ns; on request gaps, and tails that are part of the duration."""
    durations = [rng.randint(shortest, 9) for _ in range(count)]
    return recording_of(
        durations,
        random_parents(rng, count),
        gaps=[rng.randint(0, 3) for _ in range(count)] if gaps else None,
        tails=[rng.randint(0, d) for d in durations] if tails else None,
    )


def random_trace(
    rng: random.Random, count: int, lanes: int, steps: int, *, invalid: float = 0.0, early: float = 0.0, inter_threads: int | None = None
) -> Trace:  # fmt: skip
    """A trace whose steps each put the same executions on random lanes, with random durations, tails and gaps.

    A share `invalid` of the times is not ordered; a share `early` of the executions begins before its producers end.
    """
    builder = TraceBuilder()
    parents = random_parents(rng, count)
    nodes = [builder.node(f"n{i}", f"Op{i % 5}", inputs=[(p, 0) for p in parents[i]]) for i in range(count)]
    executions: list[int] = []
    for i in range(count):
        inputs = [builder.tensor(executions[p]) for p in parents[i]]
        executions.append(builder.execution(nodes[i], inputs=inputs, outputs=[("float32", [2, 3])]))
    structure = builder.end_structure()
    for _ in range(steps):
        free = [rng.randint(0, 50)] * lanes
        scheduled, start, end, done, lane = ([0] * count for _ in range(5))
        for i in range(count):
            lane[i] = rng.randrange(lanes)
            possible = max([free[lane[i]], *(end[p] for p in parents[i])])
            start[i] = possible + rng.randint(0, 4)
            if rng.random() < early and parents[i]:
                start[i] = free[lane[i]]
            scheduled[i] = start[i] - rng.randint(0, 2)
            end[i] = start[i] + rng.randint(0, 9)
            done[i] = free[lane[i]] = end[i] + rng.randint(0, 2)
        for i in range(count):
            if rng.random() < invalid:
                end[i] = start[i] - 1
        builder.step(structure, start, done, scheduled=scheduled, end=end, lane=lane)
    provenance = {"workload": "random"} if inter_threads is None else {"workload": "random", "inter_threads": inter_threads}
    return builder.build(provenance)


def slow_list_schedule(recording: Recording, workers: int, rank: Sequence[int]) -> list[int]:
    """Starts by looking, at every nanosecond, for the ready execution of the lowest rank; all times must be whole.

    One that needs something for itself is not ready while another has it.
    """
    needs = [-1] * len(recording) if recording.exclusive is None else recording.exclusive.tolist()
    gap, duration = recording.gap_ns.astype(int).tolist(), recording.duration_ns.astype(int).tolist()
    body = (recording.duration_ns - recording.tail_ns).astype(int).tolist()
    picked: dict[int, int] = {}
    now = 0
    while len(picked) < len(recording):
        held = [i for i, at in picked.items() if at + gap[i] + duration[i] > now]
        ready = [
            i
            for i in range(len(recording))
            if i not in picked
            and needs[i] not in {needs[h] for h in held if needs[h] >= 0}
            and all(p in picked and picked[p] + gap[p] + body[p] <= now for p in recording.producers[i])
        ]
        if ready and len(held) < workers:
            picked[min(ready, key=lambda i: rank[i])] = now
        else:
            now += 1
    return [picked[i] + gap[i] for i in range(len(recording))]
