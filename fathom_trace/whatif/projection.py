"""What a scenario does to the whole step, three ways side by side: Amdahl, replay on the captured workers, replay on unlimited ones.

All three start from one recording: medians over the traced steps of each execution's duration and dispatch gap. Times in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np

from fathom_trace.trace import Trace
from fathom_trace.whatif.amdahl import ratio
from fathom_trace.whatif.baseline import Base, Baseline, Settings, base_of
from fathom_trace.whatif.recording import Bool, Float, Int64, Recording
from fathom_trace.whatif.replay import Schedule, critical_path, replay_unlimited, replay_workers
from fathom_trace.whatif.scenario import Replayed, Scenario, Times
from fathom_trace.whatif.selection import Executed

SAME = 1e-3
"""Speedups that differ by less than this, relatively, are said to coincide."""

AMDAHL, REPLAY, UNLIMITED = "amdahl", "replay", "unlimited"
METHODS = (AMDAHL, REPLAY, UNLIMITED)

TRANSFER = "(transfer)"
"""The op type of copies between host and accelerator."""

LONGEST = 50
"""Executions of the critical path that `to_dict` lists."""


@dataclass(frozen=True)
class Estimate:
    """One way to project a scenario: what the step takes as it is, after the changes, and with every changed execution free."""

    method: str
    before_ns: float
    after_ns: float
    limit_ns: float
    anomaly: bool
    """Nothing got slower, and yet the schedule got longer: Graham's anomaly, or executions that wait for the one accelerator."""

    @property
    def speedup(self) -> float:
        """Before over after."""
        return ratio(self.before_ns, self.after_ns)

    @property
    def limit(self) -> float:
        """Before over what is left when every changed execution is free; an anomaly can put it below the speedup."""
        return ratio(self.before_ns, self.limit_ns)


@dataclass(frozen=True)
class Selected:
    """What one change of the scenario selected."""

    change: str
    executions: int
    share: float
    """Of the measured op time."""


@dataclass(frozen=True)
class OpTime:
    """One op type before and after. Shares are of the op time, critical ones of the op time on the longest path."""

    op: str
    count: int
    before_ns: float
    after_ns: float
    before_share: float
    after_share: float
    critical_before: float
    critical_after: float


@dataclass(frozen=True)
class Critical:
    """One execution of the critical path: how long it lasts there, and what passes between the one before it and its start.

    `execution` is a row of the trace's `executions`; -1 is a copy between host and accelerator.
    """

    execution: int
    name: str
    op: str
    gap_ns: float
    time_ns: float


@dataclass(frozen=True)
class Projection:
    """What a scenario does to a step; `render` prints it."""

    title: str
    scenario: str
    workers: int
    priority: str
    executions: int
    baseline: Baseline
    selected: tuple[Selected, ...]
    untouched_share: float
    """Share of the measured op time that no change selected."""
    amdahl: Estimate
    replay: Estimate
    unlimited: Estimate
    ops: tuple[OpTime, ...]
    """Every op type, by time after the changes, longest first."""
    coincide: tuple[str, ...]
    notes: tuple[str, ...]
    recording: Recording = field(repr=False, compare=False)
    times: Times = field(repr=False, compare=False)
    executed: Executed = field(repr=False, compare=False)

    @property
    def makespan_ns(self) -> float:
        """What the step takes after the changes, replayed on the workers."""
        return self.replay.after_ns

    @property
    def speedup(self) -> float:
        """Of the whole step, replayed on the workers."""
        return self.replay.speedup

    @property
    def estimates(self) -> tuple[Estimate, Estimate, Estimate]:
        """By Amdahl, replayed on the workers, replayed on unlimited workers."""
        return self.amdahl, self.replay, self.unlimited

    @cached_property
    def replayed(self) -> Replayed:
        """The changed step: what is replayed, copies to and from an accelerator included."""
        return self.times.replayed(self.recording)

    @cached_property
    def schedule(self) -> Schedule:
        """The changed step on the workers: when each execution runs, and where. `replayed.at` says which are the trace's executions."""
        changed = self.replayed
        return replay_workers(changed.recording, self.workers, changed.duration_ns, changed.gap_ns, self.priority)

    @cached_property
    def critical_path(self) -> tuple[Critical, ...]:
        """A longest path of the changed step on unlimited workers, first execution first; its parts add up to `unlimited.after_ns`."""
        changed = self.replayed
        schedule = replay_unlimited(changed.recording, changed.duration_ns, changed.gap_ns)
        path = critical_path(changed.recording, schedule, changed.gap_ns)
        original = {place: local for local, place in enumerate(changed.at.tolist())}
        ends = [*(float(schedule.end_ns[place]) for place in path[:-1]), float(schedule.done_ns.max(initial=0.0))]
        names, ops = self.executed.labels["op"], self.executed.labels["op"]
        if "name" in self.executed.labels:
            names = self.executed.labels["name"]
        result, before = [], 0.0
        for place, end in zip(path, ends, strict=True):
            local = original.get(place, -1)
            node = int(self.executed.nodes[local]) if local >= 0 else -1
            start = float(schedule.start_ns[place])
            result.append(
                Critical(
                    execution=self.executed.first + local if local >= 0 else -1,
                    name=names[node] if node >= 0 else TRANSFER,
                    op=ops[node] if node >= 0 else TRANSFER,
                    gap_ns=start - before,
                    time_ns=end - start,
                )
            )
            before = end
        return tuple(result)

    def to_trace(self) -> Trace:
        """The changed step as a trace of one step, with the times of the replay on the workers; `projected.py` says what it holds.

        Raises:
            ScenarioError: the projection was not made from a trace.
        """
        from fathom_trace.whatif.projected import projected_trace

        about = {
            "scenario": self.scenario,
            "workers": self.workers,
            "priority": self.priority,
            "measured_span_ns": self.baseline.measured_ns,
            "taken_off_for_tracing_ns": self.baseline.tracing_ns,
            "before_ns": self.replay.before_ns,
        }
        return projected_trace(self.executed, self.recording, self.times, self.replayed, self.schedule, about)

    def to_dict(self) -> dict[str, object]:
        """For JSON: times in ns, shares of one; a speedup without bound is None."""
        moved = self.times.transfers
        return {
            "title": self.title,
            "scenario": self.scenario,
            "workers": self.workers,
            "priority": self.priority,
            "executions": self.executions,
            "baseline": self.baseline.to_dict(),
            "selected": [asdict(s) for s in self.selected],
            "untouched_share": self.untouched_share,
            "transfers": {
                "count": len(moved) if moved is not None else 0,
                "size_bytes": moved.total_bytes if moved is not None else 0,
                "time_ns": self.times.transfer_ns,
            },
            "makespan_ns": self.makespan_ns,
            "speedup": finite(self.speedup),
            "critical_path": {
                "executions": len(self.critical_path),
                "longest": [asdict(c) for c in sorted(self.critical_path, key=lambda c: -c.time_ns)[:LONGEST]],
            },
            "estimates": [asdict(e) | {"speedup": finite(e.speedup), "limit": finite(e.limit)} for e in self.estimates],
            "ops": [asdict(o) for o in self.ops],
            "coincide": list(self.coincide),
            "notes": list(self.notes),
        }


def finite(value: float) -> float | None:
    """`value`, or None where it is infinite: JSON has no infinity."""
    return value if np.isfinite(value) else None


def project(trace: Trace, scenario: Scenario, settings: Settings | None = None) -> Projection:
    """What `scenario` does to a step of `trace`.

    Raises:
        ScenarioError: the trace has no times, or the scenario selects nothing that ran.
    """
    base = base_of(trace, settings or Settings())
    times = scenario.apply(base.recording, base.executed)
    amdahl, replay, unlimited = estimates(base, [times], times.limit())[0]
    duration = base.recording.duration_ns
    changes = zip(scenario.changes, times.masks, strict=True)
    return Projection(
        title=base.title,
        scenario=str(scenario),
        workers=base.workers,
        priority=base.priority,
        executions=base.executed.count,
        baseline=base.baseline,
        selected=tuple(Selected(str(c), int(mask.sum()), share_of(duration, mask)) for c, mask in changes),
        untouched_share=share_of(duration, ~times.changed),
        amdahl=amdahl,
        replay=replay,
        unlimited=unlimited,
        ops=_op_times(base.recording, base.executed, times),
        coincide=_coinciding(amdahl, replay, unlimited, base.workers),
        notes=(*base.notes, *change_notes(times), *anomaly_notes(replay, times)),
        recording=base.recording,
        times=times,
        executed=base.executed,
    )


def estimates(base: Base, scenarios: Sequence[Times], limits: Times | Sequence[Times]) -> list[tuple[Estimate, Estimate, Estimate]]:
    """The three estimates of each scenario; `limits` is what each (or all of them) tends to."""
    before = base.totals_ns([base.unchanged])[:, 0]
    at_most = base.totals_ns([limits] if isinstance(limits, Times) else limits)
    at_most = np.broadcast_to(at_most, (len(METHODS), len(scenarios)))
    result = []
    for times, after, least in zip(scenarios, base.totals_ns(scenarios).T, at_most.T, strict=True):
        no_slower = bool(np.all(times.duration_ns <= base.recording.duration_ns)) and times.transfer_ns == 0
        longer = (after > before * (1 + 1e-9)).tolist()
        amdahl, replay, unlimited = (
            Estimate(method, float(before[k]), float(after[k]), float(least[k]), anomaly=no_slower and longer[k])
            for k, method in enumerate(METHODS)
        )
        result.append((amdahl, replay, unlimited))
    return result


def workers_text(workers: int) -> str:
    """`1 worker`, `2 workers`."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def change_notes(times: Times) -> list[str]:
    """What must be known of the changes: what they rest on, and where they meet in one execution."""
    notes = [f"executions that more than one change selects, and that they change in turn: {times.overlap}"] if times.overlap else []
    return [*notes, *times.notes]


def share_of(duration_ns: Float, mask: Bool) -> float:
    """Share of all op time that is in `mask`; 0 where there is none."""
    whole = float(duration_ns.sum())
    return float(duration_ns[mask].sum()) / whole if whole > 0 else 0.0


def _op_times(recording: Recording, executed: Executed, times: Times) -> tuple[OpTime, ...]:
    changed = times.replayed(recording)
    all_ops = np.full(len(changed.recording), TRANSFER, dtype=object)
    all_ops[changed.at] = executed.names("op")
    names, group_after = np.unique(all_ops.astype(np.str_), return_inverse=True)
    group_before = group_after[changed.at]

    def per_op(group: Int64, weights: Float) -> Float:
        return np.bincount(group, weights, minlength=len(names)).astype(np.float64)

    def shares(values: Float) -> Float:
        whole = float(values.sum())
        return values / whole if whole > 0 else values

    def critical(of: Recording, group: Int64, duration: Float, gap: Float) -> Float:
        path = critical_path(of, replay_unlimited(of, duration, gap), gap)
        spent = np.zeros(len(of))
        spent[path] = duration[path]
        return shares(per_op(group, spent))

    counted = np.ones(len(changed.recording), bool)
    counted[changed.at] = executed.chosen
    counts = np.bincount(group_after[counted], minlength=len(names))
    before, after = per_op(group_before, recording.duration_ns), per_op(group_after, changed.duration_ns)
    paths = (
        critical(recording, group_before, recording.duration_ns, recording.gap_ns),
        critical(changed.recording, group_after, changed.duration_ns, changed.gap_ns),
    )
    columns = [c.tolist() for c in (counts, before, after, shares(before), shares(after), *paths)]
    rows = [OpTime(name, *values) for name, *values in zip(names.tolist(), *columns, strict=True) if values[0]]
    return tuple(sorted(rows, key=lambda row: (-row.after_ns, -row.before_ns, row.op)))


def _coinciding(amdahl: Estimate, replay: Estimate, unlimited: Estimate, workers: int) -> tuple[str, ...]:
    def same(a: Estimate, b: Estimate) -> bool:
        return a.speedup == b.speedup or abs(a.speedup / b.speedup - 1) < SAME

    on = workers_text(workers)
    pairs = (
        (amdahl, replay, f"Amdahl and the replay on {on}"),
        (replay, unlimited, f"the replays on {on} and on unlimited workers"),
        (amdahl, unlimited, "Amdahl and the replay on unlimited workers"),
    )
    found = [text for a, b, text in pairs if same(a, b)]
    return (f"all three coincide: {amdahl.speedup:.3g}x",) if len(found) == 3 else tuple(f"{text} coincide" for text in found)


def anomaly_notes(replay: Estimate, times: Times) -> list[str]:
    """Says when more speed made the schedule longer."""
    if not replay.anomaly:
        return []
    longer = f"nothing got slower, yet the schedule takes {replay.after_ns / replay.before_ns:.4g} times as long"
    if times.covered is not None:
        return [f"{longer}: what the accelerator covers runs there one after the other"]
    return [f"scheduling anomaly: {longer}"]
