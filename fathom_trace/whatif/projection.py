"""What a scenario does to the whole step, three ways side by side: Amdahl, replay on the captured workers, replay on unlimited ones.

All three start from one recording: medians over the traced steps of each execution's duration and dispatch gap. Times in ns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np

from fathom_trace.trace import Trace
from fathom_trace.whatif.amdahl import ratio
from fathom_trace.whatif.baseline import Base, Baseline, Settings, base_of
from fathom_trace.whatif.recording import Bool, Float, Recording
from fathom_trace.whatif.replay import Schedule, critical_path, replay_unlimited, replay_workers
from fathom_trace.whatif.scenario import Scenario, Times

SAME = 1e-3
"""Speedups that differ by less than this, relatively, are said to coincide."""

AMDAHL, REPLAY, UNLIMITED = "amdahl", "replay", "unlimited"
METHODS = (AMDAHL, REPLAY, UNLIMITED)


@dataclass(frozen=True)
class Estimate:
    """One way to project a scenario: what the step takes as it is, after the changes, and with every changed execution free."""

    method: str
    before_ns: float
    after_ns: float
    limit_ns: float
    anomaly: bool
    """Nothing got slower, and yet the schedule got longer (Graham's anomaly)."""

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

    @property
    def estimates(self) -> tuple[Estimate, Estimate, Estimate]:
        """By Amdahl, replayed on the workers, replayed on unlimited workers."""
        return self.amdahl, self.replay, self.unlimited

    @cached_property
    def schedule(self) -> Schedule:
        """The changed step on the workers: when each execution runs, and where."""
        return replay_workers(self.recording, self.workers, self.times.duration_ns, self.times.gap_ns, self.priority)

    def to_dict(self) -> dict[str, object]:
        """For JSON: times in ns, shares of one; a speedup without bound is None."""
        return {
            "title": self.title,
            "scenario": self.scenario,
            "workers": self.workers,
            "priority": self.priority,
            "executions": self.executions,
            "baseline": self.baseline.to_dict(),
            "selected": [asdict(s) for s in self.selected],
            "untouched_share": self.untouched_share,
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
        executions=len(base.recording),
        baseline=base.baseline,
        selected=tuple(Selected(str(c), int(mask.sum()), _share(duration, mask)) for c, mask in changes),
        untouched_share=_share(duration, ~times.changed),
        amdahl=amdahl,
        replay=replay,
        unlimited=unlimited,
        ops=_op_times(base.recording, base.executed.names("op"), times),
        coincide=_coinciding(amdahl, replay, unlimited, base.workers),
        notes=(*base.notes, *overlap_notes(times), *_anomaly_notes(replay)),
        recording=base.recording,
        times=times,
    )


def estimates(base: Base, scenarios: list[Times], limit: Times) -> list[tuple[Estimate, Estimate, Estimate]]:
    """The three estimates of each scenario; `limit` is what all of them tend to."""
    before, at_most = base.totals_ns([base.unchanged])[:, 0], base.totals_ns([limit])[:, 0]
    result = []
    for times, after in zip(scenarios, base.totals_ns(scenarios).T, strict=True):
        no_slower = bool(np.all(times.duration_ns <= base.recording.duration_ns))
        longer = (after > before * (1 + 1e-9)).tolist()
        amdahl, replay, unlimited = (
            Estimate(method, float(before[k]), float(after[k]), float(at_most[k]), anomaly=no_slower and longer[k])
            for k, method in enumerate(METHODS)
        )
        result.append((amdahl, replay, unlimited))
    return result


def workers_text(workers: int) -> str:
    """`1 worker`, `2 workers`."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def overlap_notes(times: Times) -> list[str]:
    """Says when changes meet in one execution."""
    return [f"executions that more than one change selects, and that they change in turn: {times.overlap}"] if times.overlap else []


def _share(duration_ns: Float, mask: Bool) -> float:
    whole = float(duration_ns.sum())
    return float(duration_ns[mask].sum()) / whole if whole > 0 else 0.0


def _op_times(recording: Recording, ops: list[str], times: Times) -> tuple[OpTime, ...]:
    names, group = np.unique(np.array(ops, dtype=np.str_), return_inverse=True)

    def per_op(weights: Float) -> Float:
        return np.bincount(group, weights, minlength=len(names)).astype(np.float64)

    def shares(values: Float) -> Float:
        whole = float(values.sum())
        return values / whole if whole > 0 else values

    def critical(duration: Float, gap: Float) -> Float:
        path = critical_path(recording, replay_unlimited(recording, duration, gap), gap)
        spent = np.zeros(len(recording))
        spent[path] = duration[path]
        return shares(per_op(spent))

    counts = np.bincount(group, minlength=len(names))
    before, after = per_op(recording.duration_ns), per_op(times.duration_ns)
    paths = critical(recording.duration_ns, recording.gap_ns), critical(times.duration_ns, times.gap_ns)
    columns = [c.tolist() for c in (counts, before, after, shares(before), shares(after), *paths)]
    rows = [OpTime(name, *values) for name, *values in zip(names.tolist(), *columns, strict=True)]
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


def _anomaly_notes(replay: Estimate) -> list[str]:
    if not replay.anomaly:
        return []
    return [f"scheduling anomaly: nothing got slower, yet the schedule takes {replay.after_ns / replay.before_ns:.4g} times as long"]
