"""Whether steps take the same time over and over (the Fathom paper's figure 1).

Of the op time of each step, and of each operation (node) and op type: mean, standard deviation (of a sample), coefficient of variation,
autocorrelation at lag 1, slope by least squares, and whether the second half of the steps differs from the first (Wilcoxon's rank-sum
test, two-sided: exact by counting for short halves, otherwise the normal approximation with ties and continuity corrected).
Beside it the share of the span in which no operation ran.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fathom_trace.ops import paper_name
from fathom_trace.report.captured import Captured

Float = NDArray[np.float64]

EXACT = 20
"""Halves of up to so many steps are compared by counting all ways to divide them."""
MOST_TYPES = 15


@dataclass(frozen=True)
class Series:
    """Statistics of one time, step by step. What too few steps cannot tell is None: two for a deviation and a slope, three for a lag."""

    name: str
    steps: int
    mean_ns: float
    deviation_ns: float | None
    variation: float | None
    """Coefficient of variation: deviation over mean."""
    autocorrelation: float | None
    drift: float | None
    """Slope over the whole series, as a share of the mean."""
    halves: float | None
    """Median of the second half over that of the first."""
    p_value: float | None
    """Of the rank-sum test that the halves do not differ."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Stationarity:
    """One workload: its steps, its heaviest op types, and the spread of all its operations."""

    label: str
    steps: Series
    op_types: tuple[Series, ...]
    relative: Float
    """Op time of each kept step over their mean."""
    operation_variation: float | None
    """Coefficient of variation of single operations: their mean, weighted by time."""
    operation_relative: Float
    """Time of each operation in each step over that operation's mean, operation by operation."""
    operation_weight: Float
    """Share of each of those in the op time of all kept steps."""
    idle_share: float
    """Of the span, without any operation, mean over the kept steps."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "label": self.label,
            "steps": self.steps.to_dict(),
            "op_types": [series.to_dict() for series in self.op_types],
            "relative": self.relative.tolist(),
            "operation_variation": self.operation_variation,
            "idle_share": self.idle_share,
        }


def stationarity(captured: Captured) -> Stationarity:
    """The statistics of one trace's kept steps; operations are those of its most frequent structure."""
    totals = captured.type_ns.sum(axis=1)
    names: dict[str, Float] = {}
    for k, op_type in enumerate(captured.op_types):
        name = paper_name(op_type)
        names[name] = names.get(name, np.zeros(len(totals))) + captured.type_ns[:, k]
    heaviest = sorted(names, key=lambda name: (-float(names[name].sum()), name))[:MOST_TYPES]
    nodes = captured.node_ns[:, captured.node_ns.any(axis=0)]
    means = nodes.mean(axis=0) if len(nodes) else np.zeros(0)
    spread = None
    if len(nodes) > 1 and means.sum() > 0:
        spread = float(np.average(nodes.std(axis=0, ddof=1) / means, weights=means))
    mean = float(totals.mean()) if len(totals) else 0.0
    spans = captured.span_ns
    return Stationarity(
        label=captured.label,
        steps=series("all operations", totals),
        op_types=tuple(series(name, names[name]) for name in heaviest),
        relative=totals / mean if mean else np.ones(len(totals)),
        operation_variation=spread,
        operation_relative=(nodes / means).T.ravel() if len(nodes) else np.zeros(0),
        operation_weight=(nodes / nodes.sum()).T.ravel() if nodes.sum() > 0 else np.zeros(nodes.size),
        idle_share=float(np.mean(captured.idle_ns / spans)) if len(spans) and np.all(spans > 0) else 0.0,
    )


def series(name: str, times_ns: ArrayLike) -> Series:
    """Statistics of one value a step, in the order of the steps."""
    x = np.asarray(times_ns, np.float64)
    n = len(x)
    mean = float(x.mean()) if n else 0.0
    enough = n >= 2 and mean > 0
    deviation = float(x.std(ddof=1)) if n >= 2 else None
    middle = n // 2
    first, second = x[:middle], x[n - middle :]  # an odd middle step is in neither half
    return Series(
        name=name,
        steps=n,
        mean_ns=mean,
        deviation_ns=deviation,
        variation=deviation / mean if enough and deviation is not None else None,
        autocorrelation=_autocorrelation(x),
        drift=float(_slope(x) * (n - 1) / mean) if enough else None,
        halves=float(np.median(second) / np.median(first)) if enough and np.median(first) > 0 else None,
        p_value=rank_sum_p(first, second) if middle >= 2 else None,
    )


def _autocorrelation(x: Float) -> float | None:
    """Sum of products of neighbours' deviations over the sum of squared deviations."""
    centred = x - x.mean() if len(x) else x
    squares = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / squares if len(x) >= 3 and squares > 0 else None


def _slope(x: Float) -> float:
    at = np.arange(len(x)) - (len(x) - 1) / 2
    return float(at @ x) / float(at @ at)


def rank_sum_p(one: ArrayLike, other: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's rank-sum test (F. Wilcoxon, Biometrics Bulletin 1(6), 1945); equal values share their mean rank."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    both = np.concatenate([a, b])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    doubled = (2 * last - counts + 1)[inverse]  # twice the mean rank: whole numbers
    observed, n, m = int(doubled[: len(a)].sum()), len(a), len(b)
    centre = n * (n + m + 1)
    if max(n, m) <= EXACT:
        ways = np.zeros((n + 1, int(doubled.sum()) + 1))
        ways[0, 0] = 1
        for rank in doubled.tolist():
            ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
        sums = np.arange(ways.shape[1])
        extreme = np.abs(sums - centre) >= abs(observed - centre)
        return float(ways[n, extreme].sum() / ways[n].sum())
    ties = float((counts**3 - counts).sum()) / ((n + m) * (n + m - 1))
    variance = n * m / 12 * (n + m + 1 - ties)
    if variance == 0:
        return 1.0
    distance = max(abs(observed - centre) / 2 - 0.5, 0.0)
    return math.erfc(distance / math.sqrt(2 * variance))
