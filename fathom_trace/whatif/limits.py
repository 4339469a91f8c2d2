"""How far each kind of op and each layer carries: the whole step with it free, what dominates once it is faster, and the fewest kinds
that must get faster for a wanted speedup of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations

import numpy as np

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.whatif.amdahl import ratio
from fathom_trace.whatif.baseline import Base, Settings, base_of
from fathom_trace.whatif.projection import finite
from fathom_trace.whatif.recording import Float, Int64
from fathom_trace.whatif.replay import BATCH_VALUES, critical_path, replay_unlimited
from fathom_trace.whatif.scenario import MOST_FACTOR, Scenario, Times

KIND, LAYER = "kind", "layer"
IDLE = "(idle)"
"""What dominates when most of the step is spent in no op: waiting, dispatch, copies to and from an accelerator."""

FACTORS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
LEAST_SHARE = 0.01
"""Kinds with less of the step than this are not sped up by themselves: they cannot move the bottleneck."""

PATHS = 4_000_000
"""Executions x kinds x factors up to which critical paths are looked at."""

REPLAYS = 20_000_000
"""Executions x sets of kinds that an exact search replays at most."""


@dataclass(frozen=True)
class Limit:
    """One kind or layer: its share of the step (of all op time and idle), and the speedup of the step if it were free."""

    by: str
    name: str
    executions: int
    time_ns: float
    share: float
    amdahl: float
    replay: float
    unlimited: float


@dataclass(frozen=True)
class Bottleneck:
    """At one factor: the speedup of the step, and the kind with most of its time, and most of the op time of its critical path.

    `on_path` is empty where critical paths were not looked at.
    """

    factor: float
    speedup: float
    kind: str
    share: float
    on_path: str
    on_path_share: float


@dataclass(frozen=True)
class Migration:
    """How the bottleneck moves as one kind gets faster."""

    kind: str
    points: tuple[Bottleneck, ...]


@dataclass(frozen=True)
class Limits:
    """Limits of every kind and layer, most time first, and where the bottleneck moves; `render_limits` prints them."""

    title: str
    scenario: str
    workers: int
    before_ns: float
    """The step as it is, replayed on the workers."""
    idle_share: float
    kinds: tuple[Limit, ...]
    layers: tuple[Limit, ...]
    migrations: tuple[Migration, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """For JSON; a speedup without bound is None."""

        def row(limit: Limit) -> dict[str, object]:
            return asdict(limit) | {key: finite(getattr(limit, key)) for key in ("amdahl", "replay", "unlimited")}

        return {
            "title": self.title,
            "scenario": self.scenario,
            "workers": self.workers,
            "before_ns": self.before_ns,
            "idle_share": self.idle_share,
            "kinds": [row(k) for k in self.kinds],
            "layers": [row(k) for k in self.layers],
            "migrations": [
                {"kind": m.kind, "points": [asdict(p) | {"speedup": finite(p.speedup)} for p in m.points]} for m in self.migrations
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Target:
    """The fewest kinds that must get `faster` times faster for a speedup of `target`; `render_target` prints it.

    `kinds` is empty where not even all of them suffice; `speedup` is then that of all. Of several sets of one size it is the fastest;
    `alternatives` counts the others. `exact` is False where sets were too many to try: then it was found greedily.
    """

    title: str
    scenario: str
    workers: int
    target: float
    faster: float
    before_ns: float
    kinds: tuple[str, ...]
    after_ns: float
    speedup: float
    reached: bool
    exact: bool
    alternatives: int
    tried: int

    def to_dict(self) -> dict[str, object]:
        """For JSON; what is infinite is None."""
        return asdict(self) | {"faster": finite(self.faster), "speedup": finite(self.speedup), "kinds": list(self.kinds)}


@dataclass(frozen=True, eq=False)
class _Groups:
    """Executions by kind or layer: names, the group of each execution, and a step to change."""

    base: Base
    times: Times
    names: list[str]
    group: Int64

    @classmethod
    def of(cls, base: Base, times: Times, by: str) -> _Groups:
        keys = np.array(base.executed.names(by), dtype=np.str_)
        names, group = np.unique(keys, return_inverse=True)
        return cls(base, times, names.tolist(), group.reshape(-1).astype(np.int64))

    @property
    def time_ns(self) -> Float:
        """Op time of each group."""
        return np.bincount(self.group, self.times.duration_ns, minlength=len(self.names)).astype(np.float64)

    def faster(self, chosen: Sequence[int], factor: float) -> Times:
        """The step with these groups `factor` times faster."""
        mask = np.isin(self.group, np.array(chosen, np.int64))
        duration = self.times.duration_ns
        return replace(self.times, duration_ns=np.where(mask, duration / factor, duration))

    def totals_ns(self, scenarios: Iterator[Times]) -> Float:
        """`Base.totals_ns`, a batch at a time: `[3, scenarios]`."""
        batch = max(1, BATCH_VALUES // max(len(self.group), 1))
        parts, pending = [np.zeros((3, 0))], []
        for times in scenarios:
            pending.append(times)
            if len(pending) == batch:
                parts.append(self.base.totals_ns(pending))
                pending = []
        if pending:
            parts.append(self.base.totals_ns(pending))
        return np.concatenate(parts, axis=1)


def find_limits(trace: Trace, settings: Settings | None = None, scenario: Scenario | None = None) -> Limits:
    """The limits of every kind and layer of a step, on top of `scenario`.

    Raises:
        ScenarioError: the trace has no times, or the scenario selects nothing that ran.
    """
    base = base_of(trace, settings or Settings())
    scenario = scenario or Scenario()
    times = scenario.apply(base.recording, base.executed)
    kinds = _Groups.of(base, times, KIND)
    before = base.totals_ns([times])[:, 0]
    idle = float(base.idle_ns + times.transfer_ns)
    migrations, notes = _migrations(kinds, before, idle)
    return Limits(
        title=base.title,
        scenario=str(scenario),
        workers=base.workers,
        before_ns=float(before[1]),
        idle_share=idle / float(before[0]) if before[0] > 0 else 0.0,
        kinds=_limits(kinds, KIND, before),
        layers=_limits(_Groups.of(base, times, LAYER), LAYER, before),
        migrations=migrations,
        notes=(*base.notes, *times.notes, *notes),
    )


def _limits(groups: _Groups, by: str, before: Float) -> tuple[Limit, ...]:
    after = groups.totals_ns(groups.faster([k], math.inf) for k in range(len(groups.names)))
    counted = groups.group[groups.base.executed.chosen]
    times, counts = groups.time_ns.tolist(), np.bincount(counted, minlength=len(groups.names)).tolist()
    rows = [
        Limit(by, name, counts[k], times[k], times[k] / float(before[0]) if before[0] > 0 else 0.0, *_speedups(before, after[:, k]))
        for k, name in enumerate(groups.names)
        if name and counts[k]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.name)))


def _speedups(before: Float, after: Float) -> list[float]:
    return [ratio(b, a) for b, a in zip(before.tolist(), after.tolist(), strict=True)]


def _migrations(kinds: _Groups, before: Float, idle_ns: float) -> tuple[tuple[Migration, ...], list[str]]:
    times = kinds.time_ns
    whole = float(before[0])
    moving = [k for k in np.argsort(-times, kind="stable").tolist() if kinds.names[k] and times[k] >= LEAST_SHARE * whole > 0]
    with_paths = len(kinds.group) * len(moving) * len(FACTORS) <= PATHS
    result = []
    for k in moving:
        after = kinds.totals_ns(kinds.faster([k], factor) for factor in FACTORS)
        points = []
        for factor, column in zip(FACTORS, after.T, strict=True):
            left = np.append(times, idle_ns)
            left[k] /= factor
            most = int(np.argmax(left))
            on_path = _on_path(kinds, kinds.faster([k], factor)) if with_paths else ("", 0.0)
            name = kinds.names[most] if most < len(kinds.names) else IDLE
            points.append(
                Bottleneck(factor, ratio(float(before[1]), float(column[1])), name, float(left[most] / left.sum()), *on_path)
            )
        result.append(Migration(kinds.names[k], tuple(points)))
    return tuple(result), [] if with_paths else ["the step is too large to look at the critical path of every kind and factor"]


def _on_path(kinds: _Groups, times: Times) -> tuple[str, float]:
    """The kind with most op time on the critical path of unlimited workers, and its share of the path's op time."""
    changed = times.replayed(kinds.base.recording)
    schedule = replay_unlimited(changed.recording, changed.duration_ns, changed.gap_ns)
    path = critical_path(changed.recording, schedule, changed.gap_ns)
    group = np.full(len(changed.recording), len(kinds.names), np.int64)
    group[changed.at] = kinds.group
    spent = np.bincount(group[path], changed.duration_ns[path], minlength=len(kinds.names) + 1)
    most, whole = int(np.argmax(spent)), float(spent.sum())
    return (kinds.names[most] if most < len(kinds.names) else IDLE, float(spent[most]) / whole) if whole > 0 else ("", 0.0)


# --- the fewest kinds for a target ---------------------------------------------------------------------------------------------------


def find_target(
    trace: Trace, target: float, settings: Settings | None = None, scenario: Scenario | None = None, *, faster: float = math.inf
) -> Target:
    """The smallest set of kinds that must get `faster` times faster so that the step gets `target` times faster, by replay.

    Sets are tried from the smallest on; a set whose work alone (op time and gaps over the workers) takes too long is not replayed.

    Raises:
        ScenarioError: the target is not above 1 and finite, or `faster` not above 1; or as `find_limits`.
    """
    if not 1 < target <= MOST_FACTOR:
        raise ScenarioError(f"a target of {target:g} is none; give a speedup above 1 and up to {MOST_FACTOR:g}, such as 5x")
    if not faster > 1:
        raise ScenarioError(f"kinds that get {faster:g} times faster reach no target; give a factor above 1, or inf")
    base = base_of(trace, settings or Settings())
    scenario = scenario or Scenario()
    times = scenario.apply(base.recording, base.executed)
    search = _Search(_Groups.of(base, times, KIND), target, faster)
    chosen, after, exact, alternatives = search.run()
    reached = bool(chosen)
    return Target(
        title=base.title,
        scenario=str(scenario),
        workers=base.workers,
        target=target,
        faster=faster,
        before_ns=search.before_ns,
        kinds=tuple(search.kinds.names[k] for k in chosen),
        after_ns=after,
        speedup=ratio(search.before_ns, after),
        reached=reached,
        exact=exact,
        alternatives=alternatives,
        tried=search.tried,
    )


class _Search:
    """The search for one target."""

    def __init__(self, kinds: _Groups, target: float, faster: float) -> None:
        self.kinds, self.faster, self.tried = kinds, faster, 0
        self.before_ns = float(kinds.base.totals_ns([kinds.times])[1, 0])
        self.most_ns = self.before_ns / target
        saved = kinds.time_ns * (1 - 1 / faster)
        self.order = [k for k in np.argsort(-saved, kind="stable").tolist() if saved[k] > 0]
        self.saved = saved
        gaps = float(np.maximum(kinds.times.gap_ns, 0.0).sum())
        self.work_ns = float(kinds.times.duration_ns.sum()) + gaps + kinds.times.transfer_ns

    def run(self) -> tuple[tuple[int, ...], float, bool, int]:
        """The chosen kinds (none: all do not suffice), the step with them, whether the search was exact, and how many other sets do."""
        everything = float(self.replay_ns([tuple(self.order)])[0])
        if everything > self.most_ns:
            return (), everything, True, 0
        spent = 0
        for size in range(1, len(self.order) + 1):
            possible = [s for s in combinations(self.order, size) if self._may_reach(s)]
            spent += len(possible) * max(len(self.kinds.group), 1)
            if self.kinds.base.workers == 1:
                possible = possible[:1]  # one worker takes the sum, and combinations come with the greatest saving first
            elif spent > REPLAYS:
                return self._greedy()
            if not possible:
                continue
            after = self.replay_ns(possible)
            good = np.flatnonzero(after <= self.most_ns)
            if len(good):
                best = int(good[np.argmin(after[good])])
                others = (
                    sum(map(self._may_reach, combinations(self.order, size))) - 1 if self.kinds.base.workers == 1 else len(good) - 1
                )
                return possible[best], float(after[best]), True, others
        return tuple(self.order), everything, True, 0

    def _may_reach(self, chosen: Sequence[int]) -> bool:
        """False if the work that is left takes too long even on evenly busy workers."""
        left = (self.work_ns - float(self.saved[list(chosen)].sum())) / self.kinds.base.workers
        return left <= self.most_ns * (1 + 1e-12)

    def _greedy(self) -> tuple[tuple[int, ...], float, bool, int]:
        """Adds the kind that shortens the step most, until the target is reached."""
        chosen: tuple[int, ...] = ()
        while True:
            sets = [(*chosen, k) for k in self.order if k not in chosen]
            after = self.replay_ns(sets)
            best = int(np.argmin(after))
            chosen = sets[best]
            if after[best] <= self.most_ns or len(chosen) == len(self.order):
                return chosen, float(after[best]), False, 0

    def replay_ns(self, sets: Sequence[tuple[int, ...]]) -> Float:
        """The step with each set of kinds faster, replayed on the workers."""
        self.tried += len(sets)
        return np.asarray(self.kinds.totals_ns(self.kinds.faster(s, self.faster) for s in sets)[1])


def parse_factor(text: str, option: str) -> float:
    """`5x`, `5` or `inf` as a factor.

    Raises:
        ScenarioError: it is none.
    """
    try:
        value = float(text.strip().removesuffix("x"))
    except ValueError:
        value = math.nan
    if not value > 0 or "_" in text:
        raise ScenarioError(f"'{text}' is no factor for {option}; write for example 5x")
    return value
