"""Amdahl's law over op times: what the paper's own arithmetic says, blind to what runs beside what.

The total is the sum of all op times plus the time in which no op runs. Idle stays in the denominator: an op that gets faster does not
make it go away. On several workers the total exceeds the span, for op times that overlap are added.

G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", AFIPS 1967.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fathom_trace.whatif.recording import Float


def total_ns(duration_ns: Float, idle_ns: float) -> Float:
    """Op times `[..., executions]` summed, plus idle: `[...]`."""
    return np.asarray(np.sum(duration_ns, axis=-1) + idle_ns)


def ratio(before_ns: float, after_ns: float) -> float:
    """Speedup from `before_ns` to `after_ns`: 1 when neither takes time, infinite when only the latter takes none."""
    if after_ns > 0:
        return before_ns / after_ns
    return 1.0 if before_ns == 0 else float("inf")


def speedup(share: ArrayLike, factor: ArrayLike) -> Float:
    """Speedup of the whole, 1 / ((1 - share) + share / factor), when `share` of its time gets `factor` times faster."""
    part = np.asarray(share, np.float64)
    rest = (1.0 - part) + part / np.asarray(factor, np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / rest)


def limit(share: ArrayLike) -> Float:
    """Speedup of the whole, 1 / (1 - share), when `share` of its time is gone."""
    return speedup(share, np.inf)


@dataclass(frozen=True)
class GroupTime:
    """What one op type (kind, layer, phase) takes, and what the whole would gain if it were free."""

    name: str
    count: int
    time_ns: float
    share: float
    """Of the total, idle included."""
    limit: float


def group_times(keys: Sequence[str], duration_ns: Float, idle_ns: float) -> list[GroupTime]:
    """Executions grouped by `keys` (one each), longest first; ties by name."""
    names = sorted(set(keys))
    number = {name: k for k, name in enumerate(names)}
    group = np.array([number[key] for key in keys], np.int64)
    times = np.bincount(group, duration_ns, minlength=len(names)) if len(names) else np.zeros(0)
    counts = np.bincount(group, minlength=len(names))
    whole = float(total_ns(duration_ns, idle_ns))
    shares = times / whole if whole > 0 else np.zeros(len(names))
    rows = [
        GroupTime(name, int(counts[k]), float(times[k]), float(shares[k]), ratio(whole, whole - float(times[k])))
        for k, name in enumerate(names)
    ]
    return sorted(rows, key=lambda row: (-row.time_ns, row.name))
