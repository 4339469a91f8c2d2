"""Several named scenarios of one step side by side, in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fathom_trace.errors import FathomError, ScenarioError, one_line
from fathom_trace.trace import Trace
from fathom_trace.whatif.baseline import Base, Baseline, Settings, base_of
from fathom_trace.whatif.projection import Estimate, anomaly_notes, change_notes, estimates, finite, share_of
from fathom_trace.whatif.replay import BATCH_VALUES
from fathom_trace.whatif.scenario import Scenario


@dataclass(frozen=True)
class Compared:
    """One scenario of a comparison. `executions` and `untouched_share` (of the measured op time) say what it changes."""

    name: str
    scenario: str
    executions: int
    untouched_share: float
    amdahl: Estimate
    replay: Estimate
    unlimited: Estimate
    notes: tuple[str, ...]

    @property
    def estimates(self) -> tuple[Estimate, Estimate, Estimate]:
        """By Amdahl, replayed on the workers, replayed on unlimited workers."""
        return self.amdahl, self.replay, self.unlimited


@dataclass(frozen=True)
class Comparison:
    """What each of several scenarios does to a step; `render_comparison` prints it."""

    title: str
    workers: int
    priority: str
    executions: int
    baseline: Baseline
    scenarios: tuple[Compared, ...]
    notes: tuple[str, ...]
    problems: tuple[tuple[str, str], ...] = ()
    """Scenarios that cannot be applied, and why."""

    def to_dict(self) -> dict[str, object]:
        """For JSON: times in ns, shares of one; a speedup without bound is None."""
        return {
            "title": self.title,
            "workers": self.workers,
            "priority": self.priority,
            "executions": self.executions,
            "baseline": self.baseline.to_dict(),
            "scenarios": [
                {
                    "name": s.name,
                    "scenario": s.scenario,
                    "executions": s.executions,
                    "untouched_share": s.untouched_share,
                    "makespan_ns": s.replay.after_ns,
                    "speedup": finite(s.replay.speedup),
                    "estimates": [asdict(e) | {"speedup": finite(e.speedup), "limit": finite(e.limit)} for e in s.estimates],
                    "notes": list(s.notes),
                }
                for s in self.scenarios
            ],
            "notes": list(self.notes),
            "problems": [{"name": name, "problem": problem} for name, problem in self.problems],
        }


def project_all(
    trace: Trace, scenarios: Mapping[str, Scenario], settings: Settings | None = None, *, go_on: bool = False, base: Base | None = None
) -> Comparison:
    """What each of `scenarios` does to a step of `trace`, in their order; `base` is that of the trace and settings, if it is known.

    Raises:
        ScenarioError: the trace has no times, or a scenario (which is named) selects nothing that ran: with `go_on` it is left out and
            among the `problems`.
    """
    base = base or base_of(trace, settings or Settings())
    batch = max(1, BATCH_VALUES // max(len(base.recording), 1))
    names, rows, problems = list(scenarios), [], []
    for at in range(0, len(names), batch):
        part, changed = [], []
        for name in names[at : at + batch]:
            try:
                changed.append(scenarios[name].apply(base.recording, base.executed))
                part.append(name)
            except FathomError as error:
                problem = one_line(f"scenario '{name}': {error}")
                if not go_on:
                    raise ScenarioError(problem) from None
                problems.append((name, problem))
        if not part:
            continue
        found = estimates(base, changed, [times.limit() for times in changed])
        for name, times, three in zip(part, changed, found, strict=True):
            notes = (*change_notes(times), *anomaly_notes(three[1], times))
            untouched = share_of(base.recording.duration_ns, ~times.changed)
            rows.append(Compared(name, str(scenarios[name]), int(times.changed.sum()), untouched, *three, notes))
    return Comparison(
        base.title, base.workers, base.priority, base.executed.count, base.baseline, tuple(rows), base.notes, tuple(problems)
    )
