"""Lists of different lengths in one array: list i is what lies between offsets i and i + 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def offsets_of(counts: NDArray[np.integer] | Sequence[int]) -> Int64:
    """Where lists of so many values begin, and at last where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64))])


def taken(offsets: Int64, rows: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """The lists of `rows`, one after the other: their offsets, and for each of their values the place where it lies now."""
    counts = (offsets[1:] - offsets[:-1])[rows]
    made = offsets_of(counts)
    return made, np.arange(made[-1]) + np.repeat(offsets[:-1][rows] - made[:-1], counts)


def owners(offsets: Int64) -> Int64:
    """The list that each value is of."""
    return np.repeat(np.arange(len(offsets) - 1), offsets[1:] - offsets[:-1])
