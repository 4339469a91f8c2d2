"""How op types scale with the threads of one op (the Fathom paper's figure 6): absolute times, speedups and serial fractions.

Training traces of one workload that differ in `intra_threads` only are compared. With a serial fraction s an op type takes
T(n) = T(1) (s + (1 - s) / n): G. M. Amdahl, AFIPS 1967. Times at two numbers of threads give s by computation; more give it by least
squares on T(n), linear in T(1) s and T(1) (1 - s). Repeated traces at a number of threads give an interval: s of every combination of
repeats, from the least to the greatest. Speedups at thread counts that were not measured are extrapolated, and labelled so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np

from fathom_trace.ops import paper_name
from fathom_trace.report.captured import Captured

COMPUTED, FITTED = "computed from two points", "fitted by least squares"
AT_ONE = 1.1
"""A speedup up to this is none: steps differ by about as much."""
EXTRAPOLATED_TO = 64
MOST_COMBINATIONS = 1000


@dataclass(frozen=True)
class SerialFraction:
    """Amdahl's serial fraction, how it was found, and from least to greatest over repeats (None without any)."""

    value: float
    method: str
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class TypeScaling:
    """One op type: times in ns and speedups over the fewest threads, by number of threads; share of the op time at the fewest."""

    op_type: str
    share: float
    time_ns: tuple[float, ...]
    speedup: tuple[float, ...]
    serial: SerialFraction


@dataclass(frozen=True)
class Scaling:
    """One workload over numbers of threads, and what all op types together do."""

    workload: str
    threads: tuple[int, ...]
    repeats: tuple[int, ...]
    whole: TypeScaling
    op_types: tuple[TypeScaling, ...]
    extrapolated: tuple[tuple[int, float], ...]
    """Threads beyond those measured, and the speedup of the whole that the op types' serial fractions give there."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def groups_by_threads(traces: Sequence[Captured]) -> tuple[Scaling, ...]:
    """The scaling of each workload whose training was captured at two or more numbers of intra-op threads, all else equal.

    Only traces with one op at a time are compared: beside each other, ops disturb each other's times.
    """
    alike: dict[tuple[object, ...], dict[int, list[Captured]]] = {}
    for c in traces:
        get = c.provenance.get
        if c.mode == "training" and c.threads and get("inter_threads") == 1:
            key = (c.workload, c.preset, get("stage"), c.device, c.batch_size, get("cpu_model"))
            alike.setdefault(key, {}).setdefault(c.threads, []).append(c)
    return tuple(_scaling(next(iter(by[min(by)])).workload, by) for by in alike.values() if len(by) > 1)


def _scaling(workload: str, by_threads: dict[int, list[Captured]]) -> Scaling:
    threads = tuple(sorted(by_threads))
    times = [[_times(c) for c in by_threads[n]] for n in threads]
    names = sorted({name for group in times for t in group for name in t})
    rows = [
        scale(name, {n: [t.get(name, 0.0) for t in group] for n, group in zip(threads, times, strict=True)}) for name in names
    ]  # fmt: skip
    whole = scale("all op types", {n: [sum(t.values()) for t in group] for n, group in zip(threads, times, strict=True)})
    total = whole.time_ns[0]
    rows = sorted((_with_share(row, total) for row in rows if any(row.time_ns)), key=lambda row: (-row.time_ns[0], row.op_type))
    beyond, n = [], threads[-1] * 2
    while n <= EXTRAPOLATED_TO:
        beyond.append((n, total / sum(row.time_ns[0] * _relative(row.serial.value, threads[0], n) for row in rows)))
        n *= 2
    return Scaling(
        workload, threads, tuple(len(group) for group in times), _with_share(whole, total), tuple(rows), tuple(beyond)
    )  # fmt: skip


def _times(captured: Captured) -> dict[str, float]:
    """Median over the kept steps of each op type's time, under the paper's names."""
    found: dict[str, float] = {}
    for op, time in zip(captured.op_types, np.median(captured.type_ns, axis=0).tolist(), strict=True):
        found[paper_name(op)] = found.get(paper_name(op), 0.0) + time
    return found


def _with_share(row: TypeScaling, total_ns: float) -> TypeScaling:
    return replace(row, share=row.time_ns[0] / total_ns if total_ns else 0.0)


def scale(name: str, times_ns: Mapping[int, Sequence[float]]) -> TypeScaling:
    """Scaling of one op type from its times by number of threads, each with one or more repeats (of which the median counts)."""
    threads = sorted(times_ns)
    medians = [float(np.median(times_ns[n])) for n in threads]
    base = medians[0]
    speedups = tuple(base / t if t > 0 else 1.0 for t in medians)
    value = serial_fraction(threads, medians)
    interval = None
    if any(len(times_ns[n]) > 1 for n in threads):
        every = [serial_fraction(threads, c) for c in islice(product(*(times_ns[n] for n in threads)), MOST_COMBINATIONS)]
        interval = (min(every), max(every))
    return TypeScaling(name, 0.0, tuple(medians), speedups, SerialFraction(value, COMPUTED if len(threads) == 2 else FITTED, interval))


def serial_fraction(threads: Sequence[int], times_ns: Sequence[float]) -> float:
    """Amdahl's s from times at two or more numbers of threads, within 0 (perfect scaling) to 1 (none); 1 where no time was spent."""
    n, t = np.asarray(threads, np.float64), np.asarray(times_ns, np.float64)
    if not np.any(t > 0):
        return 1.0
    [serial, parallel], *_ = np.linalg.lstsq(np.stack([np.ones(len(n)), 1 / n], axis=1), t, rcond=None)
    whole = serial + parallel
    return float(min(max(serial / whole, 0.0), 1.0)) if whole > 0 else 1.0


def _relative(serial: float, fewest: int, threads: int) -> float:
    """T(threads) / T(fewest) by Amdahl's law."""
    return (serial + (1 - serial) / threads) / (serial + (1 - serial) / fewest)
