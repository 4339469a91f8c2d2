"""How op types scale with the threads of one op (the Fathom paper's figure 6): absolute times, speedups and serial fractions.

Training traces of one workload that differ in `intra_threads` only are compared. With a serial fraction s an op type takes
T(n) = T(1) (s + (1 - s) / n): G. M. Amdahl, AFIPS 1967. `whatif.scaling` fits s to the times of every kept step: two numbers of threads
determine it, more give it by least squares, and repeated steps give a 95% interval. Speedups at thread counts that were not measured are
extrapolated, and labelled so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fathom_trace.ops import paper_name
from fathom_trace.report.captured import Captured, names_of
from fathom_trace.whatif.scaling import fit_samples

COMPUTED, FITTED = "computed from two thread counts", "fitted by least squares"
AT_ONE = 1.1
"""A speedup up to this is none: steps differ by about as much."""
EXTRAPOLATED_TO = 64


@dataclass(frozen=True)
class SerialFraction:
    """Amdahl's serial fraction, how it was found, and its 95% interval (None without repeats).

    A value below 0 is a gain beyond proportion, one above 1 a loss; 1 stands where there was no time to fit.
    """

    value: float
    method: str
    interval: tuple[float, float] | None

    def factor(self, threads: int, fewest: int) -> float:
        """T(threads) / T(fewest) by Amdahl's law; a value below 0 counts as 0."""
        serial = max(self.value, 0.0)
        return (serial + (1 - serial) / threads) / (serial + (1 - serial) / fewest)


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
    """One workload over numbers of threads, with so many repeated steps at each, and what all op types together do.

    `label` is the workload, and where several are of it, what tells them apart.
    """

    label: str
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

    Only traces with one op at a time are compared: beside each other, ops disturb each other's times. Parts are compared with the same
    parts; projections are no measurements.
    """
    several = _comparable(traces)
    labels = names_of(list(several))
    return tuple(_scaling(labels[key], next(iter(by[min(by)])).workload, by) for key, by in several.items())


def in_no_group(traces: Sequence[Captured]) -> list[Captured]:
    """The traces that `groups_by_threads` has nothing to compare with."""
    used = {id(c) for by in _comparable(traces).values() for several in by.values() for c in several}
    return [c for c in traces if id(c) not in used]


def _comparable(traces: Sequence[Captured]) -> dict[tuple[object, ...], dict[int, list[Captured]]]:
    """Traces that differ in the number of threads only, by what they share, and then by that number."""
    alike: dict[tuple[object, ...], dict[int, list[Captured]]] = {}
    for c in traces:
        get = c.provenance.get
        if c.mode == "training" and c.threads and get("inter_threads") == 1 and not c.projected:
            key = (c.workload, c.preset, get("stage"), c.device, c.batch_size, get("cpu_model"), c.selection)
            alike.setdefault(key, {}).setdefault(c.threads, []).append(c)
    return {key: by for key, by in alike.items() if len(by) > 1}


def _scaling(label: str, workload: str, by_threads: dict[int, list[Captured]]) -> Scaling:
    threads = tuple(sorted(by_threads))
    times = {n: [step for c in by_threads[n] for step in _steps(c)] for n in threads}
    names = sorted({name for steps in times.values() for step in steps for name in step})
    whole = scale("all op types", {n: [sum(step.values()) for step in times[n]] for n in threads})
    total = whole.time_ns[0]
    rows = [scale(name, {n: [step.get(name, 0.0) for step in times[n]] for n in threads}) for name in names]
    rows = [replace(row, share=row.time_ns[0] / total if total else 0.0) for row in rows if any(row.time_ns)]
    rows.sort(key=lambda row: (-row.time_ns[0], row.op_type))
    beyond, n = [], threads[-1] * 2
    while n <= EXTRAPOLATED_TO and rows:
        beyond.append((n, total / sum(row.time_ns[0] * row.serial.factor(n, threads[0]) for row in rows)))
        n *= 2
    repeats = tuple(len(times[n]) for n in threads)
    return Scaling(label, workload, threads, repeats, replace(whole, share=1.0), tuple(rows), tuple(beyond))


def _steps(captured: Captured) -> list[dict[str, float]]:
    """Each kept step's times by op type, under the paper's names."""
    found: list[dict[str, float]] = []
    for times in captured.type_ns.tolist():
        step: dict[str, float] = {}
        for op, time in zip(captured.op_types, times, strict=True):
            step[paper_name(op)] = step.get(paper_name(op), 0.0) + time
        found.append(step)
    return found


def scale(name: str, times_ns: Mapping[int, Sequence[float]]) -> TypeScaling:
    """Scaling of one op type from its times by number of threads, each with one or more repeats (whose median is shown)."""
    threads = sorted(times_ns)
    medians = tuple(float(np.median(times_ns[n])) for n in threads)
    fit = fit_samples(name, [[(n, time) for n in threads for time in times_ns[n]]])
    method = COMPUTED if len(threads) == 2 else FITTED
    serial = SerialFraction(1.0, method, None)
    if fit is not None:
        interval = None if fit.low is None or fit.high is None else (fit.low, fit.high)
        serial = SerialFraction(fit.serial, method, interval)
    return TypeScaling(name, 0.0, medians, tuple(medians[0] / t if t > 0 else 1.0 for t in medians), serial)
