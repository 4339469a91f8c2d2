"""One selection sped up over a range of factors: how far it carries, and where something else becomes the bottleneck."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.untrusted import whole_number
from fathom_trace.whatif.baseline import Baseline, Settings, base_of
from fathom_trace.whatif.projection import Estimate, change_notes, estimates, finite
from fathom_trace.whatif.recording import Float
from fathom_trace.whatif.replay import BATCH_VALUES
from fathom_trace.whatif.scenario import LEAST_FACTOR, MOST_FACTOR, Scenario, Speedup, number
from fathom_trace.whatif.selection import Selection, parse_selection

POINTS_PER_DECADE = 4
MOST_POINTS = 10_000


@dataclass(frozen=True)
class Sweep:
    """Factors from `low` to `high`, `points` of them, evenly spaced on a logarithmic scale, both ends included."""

    selection: Selection
    low: float
    high: float
    points: int

    def __str__(self) -> str:
        return f"{self.selection}={self.low:.12g}..{self.high:.12g}:{self.points}"

    @property
    def factors(self) -> Float:
        """The factors, ascending; the ends are exact."""
        inner = np.geomspace(self.low, self.high, self.points)
        inner[0], inner[-1] = self.low, self.high
        return inner

    @property
    def changes(self) -> list[Speedup]:
        """One speedup per factor."""
        return [Speedup(self.selection, factor) for factor in self.factors.tolist()]


def parse_sweep(text: str) -> Sweep:
    """The sweep that `text` describes: `SELECTION=LOW..HIGH`, with `:POINTS` if wanted.

    Raises:
        ScenarioError: it is malformed, or the range is empty or not finite.
    """
    name, sign, value = text.rpartition("=")
    span, colon, count = value.partition(":")
    ends = span.split("..")
    if not sign or not name.strip() or len(ends) != 2:
        raise ScenarioError(f"'{text}' is not a sweep; write for example Conv2D=1..1000 or Conv2D=1..1000:20")
    low, high = number(ends[0].strip(), text), number(ends[1].strip(), text)
    if not 0 < low < high < math.inf:
        raise ScenarioError(f"'{text}': a sweep runs from a factor above 0 to a greater, finite one; its limit is shown anyway")
    if low < LEAST_FACTOR or high > MOST_FACTOR:
        raise ScenarioError(
            f"'{text}': the factors of a sweep lie from {LEAST_FACTOR:g} to {MOST_FACTOR:g}; its limit is shown anyway"
        )
    points = max(5, round(POINTS_PER_DECADE * math.log10(high / low)) + 1)
    if colon:
        given = whole_number(count.strip(), 2, MOST_POINTS)
        if given is None:
            raise ScenarioError(f"'{text}': '{count}' is no number of points; give 2 to {MOST_POINTS}")
        points = given
    return Sweep(parse_selection(name), low, high, points)


@dataclass(frozen=True)
class Curve:
    """What a step takes at each factor of a sweep; `render_curve` prints it."""

    title: str
    sweep: str
    scenario: str
    workers: int
    priority: str
    factors: tuple[float, ...]
    estimates: tuple[tuple[Estimate, Estimate, Estimate], ...]
    """At each factor: by Amdahl, replayed on the workers, replayed on unlimited workers."""
    baseline: Baseline
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """For JSON: times in ns; a speedup without bound is None."""
        return {
            "title": self.title,
            "sweep": self.sweep,
            "scenario": self.scenario,
            "workers": self.workers,
            "priority": self.priority,
            "before_ns": {e.method: e.before_ns for e in self.estimates[0]},
            "limit_ns": {e.method: e.limit_ns for e in self.estimates[0]},
            "limit": {e.method: finite(e.limit) for e in self.estimates[0]},
            "points": [
                {"factor": factor} | {e.method: {"after_ns": e.after_ns, "speedup": finite(e.speedup)} for e in three}
                for factor, three in zip(self.factors, self.estimates, strict=True)
            ],
            "baseline": self.baseline.to_dict(),
            "notes": list(self.notes),
        }


def project_sweep(trace: Trace, sweep: Sweep, scenario: Scenario | None = None, settings: Settings | None = None) -> Curve:
    """`sweep` on top of `scenario`, factor by factor; speedups are over the unchanged step.

    Raises:
        ScenarioError: the trace has no times, or nothing that ran is selected.
    """
    scenario = scenario or Scenario()
    base = base_of(trace, settings or Settings())
    first = scenario.then(sweep.changes[0]).apply(base.recording, base.executed)
    limit = replace(first, duration_ns=np.where(first.masks[-1], 0.0, first.duration_ns))
    batch = max(1, BATCH_VALUES // max(len(base.recording), 1))
    rows: list[tuple[Estimate, Estimate, Estimate]] = []
    for at in range(0, sweep.points, batch):
        changes = sweep.changes[at : at + batch]
        rows += estimates(base, [scenario.then(c).apply(base.recording, base.executed) for c in changes], limit)
    factors = sweep.factors.tolist()
    return Curve(
        title=base.title,
        sweep=str(sweep),
        scenario=str(scenario),
        workers=base.workers,
        priority=base.priority,
        factors=tuple(factors),
        estimates=tuple(rows),
        baseline=base.baseline,
        notes=(*base.notes, *change_notes(first), *_longer_notes(factors, [replay for _, replay, _ in rows])),
    )


def _longer_notes(factors: list[float], replays: list[Estimate]) -> list[str]:
    """Says where more speed made the schedule longer."""
    points = list(zip(factors, replays, strict=True))
    longer = [f"{b:.4g} after {a:.4g}" for (a, x), (b, y) in pairwise(points) if y.after_ns > x.after_ns * (1 + 1e-9)]
    return [f"scheduling anomaly: the step takes longer at a factor of {', '.join(longer)}"] if longer else []
