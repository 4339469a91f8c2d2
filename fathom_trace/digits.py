"""Integers as decimal text, whole columns at once: for formats with a line per execution.

Digits are taken four at a time from a table, all rows together; leading zeros are then dropped by one mask over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fathom_trace.units import NS_PER_US

BLOCK = 4_096
"""Rows that are turned into text at once, so that they stay in the processor's cache."""

_GROUP, _BASE = 4, 10_000
_POWERS = tuple(10**k for k in range(1, 19))


Column = tuple[NDArray[np.int64], NDArray[np.bool_] | None, bool]
"""Integers, where they are known (None: everywhere), and whether they are ns to be written in microseconds."""


def lines(columns: Sequence[NDArray[np.int64]], known: Sequence[NDArray[np.bool_] | None] | None = None) -> str:
    """Columns of integers as lines: for each row its numbers, commas between them, a line feed after the last.

    `known` is, for each column, False where nothing is to be written; None where all of it is.
    """
    masks = known or [None] * len(columns)
    return "".join(
        _block([(c[at : at + BLOCK], k if k is None else k[at : at + BLOCK], False) for c, k in zip(columns, masks, strict=True)])
        for at in range(0, len(columns[0]), BLOCK)
    )


def microseconds(ns: NDArray[np.int64]) -> list[str]:
    """Each of some numbers of nanoseconds (not negative) in microseconds with three decimals: 1500 is `1.500`."""
    text = "".join(_block([(ns[at : at + BLOCK], None, True)]) for at in range(0, len(ns), BLOCK))
    return text.split("\n")[:-1]


def texts(values: NDArray[np.int64]) -> list[str]:
    """Each integer as text."""
    return lines([values]).split("\n")[:-1]


@cache
def _table(width: int, before: bytes = b"") -> NDArray[np.uint32]:
    """The numbers below 10**width in `width` digits, with `before` before them: four bytes each, as one word."""
    raw = b"".join(before + b"%0*d" % (width, n) for n in range(10**width))
    return np.frombuffer(raw, np.uint32)


def _block(columns: Sequence[Column]) -> str:
    """The lines of some rows.

    A row is laid out in words of four bytes: for each column groups of digits, perhaps `.ddd`, and a comma or line feed.
    """
    sizes = [np.abs(values) for values, _, _ in columns]
    wholes = [size // NS_PER_US if is_time else size for size, (_, _, is_time) in zip(sizes, columns, strict=True)]
    groups = [-(-(len(str(int(whole.max(initial=0)))) + 1) // _GROUP) for whole in wholes]  # one more, for a sign
    words = np.empty((len(sizes[0]), sum(groups) + sum(is_time for _, _, is_time in columns) + len(columns)), np.uint32)
    raw = words.view(np.uint8)
    mask = np.empty(raw.shape, bool)
    at = 0
    for number, ((values, known, is_time), size, whole, count) in enumerate(zip(columns, sizes, wholes, groups, strict=True)):
        digits = np.ones(len(whole), np.int8)
        for power in _POWERS[: count * _GROUP - 1]:
            digits += whole >= power
        left = whole
        for group in range(count - 1, 0, -1):
            above = left // _BASE
            words[:, at + group] = _table(_GROUP)[left - above * _BASE]
            left = above
        words[:, at] = _table(_GROUP)[left]
        first = count * _GROUP - digits
        negative = np.flatnonzero(values < 0)
        if len(negative):
            first[negative] -= 1
            raw[negative, at * 4 + first[negative]] = ord("-")
        if known is not None:
            first[~known] = count * _GROUP
        end = at + count + is_time
        if is_time:
            words[:, end - 1] = _table(3, b".")[size - whole * NS_PER_US]
        words[:, end] = int.from_bytes(b"\n" if number == len(columns) - 1 else b",", "little")
        np.greater_equal(np.arange((end + 1 - at) * 4, dtype=np.int8), first[:, None], out=mask[:, at * 4 : (end + 1) * 4])
        mask[:, end * 4 + 1 : (end + 1) * 4] = False
        at = end + 1
    return raw[mask].tobytes().decode("ascii")
