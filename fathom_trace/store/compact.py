"""The four times of a small trace in fewer bytes than differences of neighbours take: format version 2 of HDF5 files.

Two things make the differences smaller. An execution is scheduled when the one that it waited for is about to be done: `after` says how
many rows before it that one stands (0: it is relative to the step's origin), and is mostly the same from step to step. And where the
clock moves in steps of several nanoseconds (that of AMD's processors by 10.02), differences are multiples of that period but for
rounding: the multiple is stored, and two bits of `codes` say how the difference was rounded. A deflated column of a few thousand rows
has no repetitions to gain from, so these bits count. Any four int64 columns survive; what does not fit is stored as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import TraceError
from fathom_trace.tables import Array

KEYS = ("scheduled", "start", "end", "done")
AFTER, CODES, PERIOD = "after", "codes", "period"
FORMULAS = {
    "scheduled": "scheduled[i] - done[i-after[i]]", "start": "start[i] - done[i-1]", "end": "end[i] - start[i]", "done": "done[i] - end[i]",
}  # fmt: skip

PERIOD_BITS = 24
"""The period of the clock is stored in units of 2^-24 ns."""

SHORTEST_NS, LONGEST_NS = 3, 64
AS_IS_NS = 1 << 22
"""Longer differences are stored as they are: over more than 4 ms clocks drift by more than a rounding."""

_FEWEST, _LEAST_PEAK, _HISTOGRAM_NS, _FREQUENCIES = 256, 0.5, 1 << 12, 1 << 15

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Compact:
    """What is stored. `codes` has two bits for each of `KEYS`, the first lowest, and is empty where the clock has no period (0)."""

    times: Mapping[str, Int64]
    after: Int64
    codes: NDArray[np.uint8]
    period: int


def compact(times: Mapping[str, Array], offsets: Int64) -> Compact:
    """What is stored of the four `times`, whose steps begin at `offsets` (steps + 1 values)."""
    exact = {key: times[key].astype(np.int64) for key in KEYS}
    after = _after(exact["scheduled"], exact["done"], offsets)
    before = np.concatenate([np.zeros(min(1, len(after)), np.int64), exact["done"][:-1]])
    differences = {
        "scheduled": exact["scheduled"] - _released(exact["done"], after),
        "start": exact["start"] - before,
        "end": exact["end"] - exact["start"],
        "done": exact["done"] - exact["end"],
    }
    period = find_period(np.concatenate([differences[key] for key in KEYS[1:]]))
    if not period:
        return Compact(differences, after, np.zeros(0, np.uint8), 0)
    stored, codes = {}, np.zeros(len(after), np.uint8)
    for place, key in enumerate(KEYS):
        stored[key], code = to_ticks(differences[key], period)
        codes |= code << np.uint8(2 * place)
    return Compact(stored, after, codes, period)


def expand(stored: Compact) -> dict[str, Int64]:
    """The four times that `compact` was given.

    Raises:
        TraceError: columns have different lengths, or `after` points before the first row.
    """
    rows = len(stored.after)
    if {len(values) for values in stored.times.values()} != {rows} or (stored.period and len(stored.codes) != rows):
        raise TraceError("trace is damaged: step_times: its times have different lengths")
    if rows and (int(stored.after.min()) < 0 or np.any(stored.after > np.arange(rows))):
        raise TraceError("trace is damaged: step_times.after: points before the first row")
    given = dict(stored.times)
    for place, key in enumerate(KEYS) if stored.period else ():
        given[key] = from_ticks(given[key], stored.codes >> np.uint8(2 * place) & np.uint8(3), stored.period)
    done = np.cumsum(given["start"] + given["end"] + given["done"])
    start = np.concatenate([np.zeros(min(1, rows), np.int64), done[:-1]]) + given["start"]
    return {
        "scheduled": given["scheduled"] + _released(done, stored.after),
        "start": start,
        "end": start + given["end"],
        "done": done,
    }


def to_ticks(differences: Int64, period: int) -> tuple[Int64, NDArray[np.uint8]]:
    """Differences in periods of the clock, and how each was rounded.

    Codes: 0 it is the nearest integer to ticks x period; 1 the next one towards the exact product, 2 away from it; 3 it is stored as it is.
    Differences longer than `AS_IS_NS` are stored as they are, with code 0.
    """
    is_long = _is_long(differences)
    short = np.where(is_long, 0, differences)
    ticks = ((short << PERIOD_BITS) + period // 2) // period
    nearest, towards = _nearest(ticks, period)
    beside = (short - nearest) * towards
    codes = np.where(beside == 0, 0, np.where(beside == 1, 1, np.where(beside == -1, 2, 3))).astype(np.uint8)
    return np.where(is_long | (codes == 3), differences, ticks), codes


def from_ticks(stored: Int64, codes: NDArray[np.uint8], period: int) -> Int64:
    """The differences that `to_ticks` was given."""
    as_is = _is_long(stored) | (codes == 3)
    nearest, towards = _nearest(np.where(as_is, 0, stored), period)
    return np.where(as_is, stored, nearest + towards * np.array([0, 1, -1, 0], np.int64)[codes])


def find_period(differences: Int64) -> int:
    """The period of the clock that differences of its readings come from, in 2^-24 ns; 0 where none shows.

    It is the strongest frequency in the histogram of short differences, made exact by longer ones. A wrong one would only cost space.
    """
    positive = differences[differences > 0]
    histogram = np.bincount(positive[positive < _HISTOGRAM_NS], minlength=_HISTOGRAM_NS)
    if int(histogram.sum()) < _FEWEST or np.count_nonzero(histogram) < _FEWEST // 4:
        return 0
    strength = np.abs(np.fft.rfft(histogram, _FREQUENCIES)) / histogram.sum()
    lowest, highest = _FREQUENCIES // LONGEST_NS, _FREQUENCIES // SHORTEST_NS
    found = lowest + int(np.argmax(strength[lowest:highest]))
    if strength[found] < _LEAST_PEAK:
        return 0
    period = _FREQUENCIES / found
    for longest in np.geomspace(200, AS_IS_NS / 2, 10).tolist():
        known = positive[positive < longest].astype(np.float64)
        for _ in range(2):
            ticks = np.round(known / period)
            if ticks.any():
                period = float((known * ticks).sum() / (ticks * ticks).sum())
    return round(period * (1 << PERIOD_BITS)) if SHORTEST_NS <= period <= LONGEST_NS else 0


def _nearest(ticks: Int64, period: int) -> tuple[Int64, Int64]:
    """The nearest integers to ticks x period, and on which side of them the product lies: 1 or -1."""
    exact = ticks * period
    nearest = exact + (1 << PERIOD_BITS - 1) >> PERIOD_BITS
    return nearest, np.where(exact >= nearest << PERIOD_BITS, 1, -1)


def _is_long(values: Int64) -> NDArray[np.bool_]:
    return (values > AS_IS_NS) | (values < -AS_IS_NS)


def _released(done: Int64, after: Int64) -> Int64:
    """When the row that each came after was done; 0 for those that came after none."""
    return np.where(after > 0, done[np.arange(len(done)) - after], 0) if len(done) else done


def _after(scheduled: Int64, done: Int64, offsets: Int64) -> Int64:
    """How many rows before each row, in its step, stands the one that was done next once it had been scheduled; else the row before."""
    found = np.ones(len(done), np.int64)
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if end == begin:
            continue
        there = done[begin:end]
        order = np.argsort(there, kind="stable")
        next_done = order[np.minimum(np.searchsorted(there[order], scheduled[begin:end]), end - begin - 1)]
        rows = np.arange(end - begin)
        found[begin:end] = np.where(next_done < rows, rows - next_done, 1)
        found[begin] = 0
    return found
