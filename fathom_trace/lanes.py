"""Rows for what overlaps in time: timelines on which nothing may overlap or nest."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def disjoint(intervals: Iterable[tuple[int, int, int]]) -> list[list[int]]:
    """(start, duration, item) dealt to as few rows as possible so that none overlaps another of its row: the items of each row.

    What takes 0 ns counts as 1 ns: two that begin at one time on one row would be one in the other, for a reader.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []
    for start, duration, item in sorted(intervals, key=lambda each: (each[0], each[2])):
        if free and free[0][0] <= start:
            _, row = heapq.heappop(free)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(item)
        heapq.heappush(free, (start + max(duration, 1), row))
    return rows
