"""Rows for what overlaps in time: timelines on which nothing may overlap or nest."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_BLOCK = 65_536
"""Intervals that are Python integers at once."""


def disjoint(start: Int64, duration: Int64) -> Int64:
    """The row of each interval, from 0: dealt to as few rows as possible so that none overlaps another of its row.

    What takes 0 ns counts as 1 ns: two that begin at one time on one row would be one in the other, for a reader.
    """
    rows = np.zeros(len(start), np.int64)
    order = np.argsort(start, kind="stable")
    begins = start[order]
    ends = begins + np.maximum(duration[order], 1)
    if np.all(begins[1:] >= ends[:-1]):
        return rows
    free: list[tuple[int, int]] = []
    for at in range(0, len(order), _BLOCK):
        dealt = []
        for begin, end in zip(begins[at : at + _BLOCK].tolist(), ends[at : at + _BLOCK].tolist(), strict=True):
            if free and free[0][0] <= begin:
                _, row = heapq.heapreplace(free, (end, free[0][1]))
            else:
                row = len(free)
                heapq.heappush(free, (end, row))
            dealt.append(row)
        rows[order[at : at + _BLOCK]] = dealt
    return rows
