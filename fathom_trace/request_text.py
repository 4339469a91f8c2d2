"""Rows of memory requests as text and back, whole columns at once: hexadecimal addresses, words, decimal numbers.

Written by joining bytes in a matrix with a row per request, four characters at a time from tables, and dropping what is unused by one
mask. Read by finding separators first and then taking digit by digit, all rows together, so that every row is looked at strictly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]

ROWS = 8_192
"""Rows that are made at once, so that they stay in the processor's cache."""
READ_BYTES = 1 << 22
LINE_FEED, SPACE = 10, 32


@dataclass(frozen=True, eq=False)
class Hexadecimal:
    """A column of numbers, each written as `0x` and its digits in lower case, without leading zeros."""

    values: UInt64


@dataclass(frozen=True, eq=False)
class Decimal:
    """A column of numbers without leading zeros; nothing, not even the blank before it, where `known` is False."""

    values: UInt64
    known: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Words:
    """A column of words: each is `words[codes]`."""

    codes: NDArray[Any]
    words: tuple[bytes, ...]


Column = Hexadecimal | Decimal | Words


def lines(columns: Sequence[Column]) -> bytes:
    """The rows of some columns, a blank between them and a line feed after each row."""
    count = len(columns[0].codes if isinstance(columns[0], Words) else columns[0].values)
    parts = [_lines([_part(c, slice(at, at + ROWS)) for c in columns]) for at in range(0, count, ROWS)]
    if parts:  # rows are made with the line feed first, which saves a word of each
        parts[0] = parts[0][1:]
        parts.append(b"\n")
    return b"".join(parts)


def _part(column: Column, rows: slice) -> Column:
    if isinstance(column, Words):
        return Words(column.codes[rows], column.words)
    if isinstance(column, Hexadecimal):
        return Hexadecimal(column.values[rows])
    return Decimal(column.values[rows], None if column.known is None else column.known[rows])


@cache
def _table(base: int) -> NDArray[np.uint32]:
    """Four digits of each number below base**4, as one word of four bytes."""
    form = b"%04x" if base == 16 else b"%04d"
    return np.frombuffer(b"".join(form % n for n in range(base**4)), np.uint32)


@dataclass(frozen=True)
class _Layout:
    """How a column lies in the words of a row: fixed characters, right in a whole number of words, then groups of four digits.

    A column of words has no digits; the fixed characters are then one of `words`. If it `vanishes`, all of it is unused for code 0.
    """

    words: tuple[bytes, ...]
    groups: int
    vanishes: bool

    @property
    def width(self) -> int:
        """Words of four bytes."""
        return -(-max(map(len, self.words)) // 4) + self.groups

    @property
    def codes(self) -> int:
        """How many sets of bytes rows may use."""
        return len(self.words) * max(4 * self.groups, 1) + self.vanishes

    def masks(self) -> NDArray[np.bool_]:
        """The bytes that each code uses: by word, then by digits from 1 on."""
        masks = np.zeros((self.codes, 4 * self.width), bool)
        places = 4 * self.groups
        for number, word in enumerate(self.words):
            for digits in range(1, max(places, 1) + 1):
                mask = masks[self.vanishes + number * max(places, 1) + digits - 1]
                mask[4 * self.width - places - len(word) : 4 * self.width - places] = True
                mask[4 * self.width - min(digits, places) :] = places > 0
                if not places:
                    mask[-len(word) :] = True
        return masks

    def fixed(self) -> NDArray[np.uint32]:
        """The fixed characters as words."""
        size = 4 * (self.width - self.groups)
        return np.frombuffer(b"".join(word.rjust(size) for word in self.words), np.uint32).reshape(len(self.words), -1)


@cache
def _masks(layouts: tuple[_Layout, ...]) -> NDArray[np.bool_]:
    """The bytes that a row uses, for each combination of codes, the last column's changing fastest."""
    table = np.ones((1, 0), bool)
    for layout in layouts:
        own = layout.masks()
        table = np.hstack([np.repeat(table, len(own), axis=0), np.tile(own, (len(table), 1))])
    return table


def _lines(columns: Sequence[Column]) -> bytes:
    layouts: list[_Layout] = []
    for number, column in enumerate(columns):
        before = b"\n" if not number else b"" if isinstance(columns[number - 1], Words) and not _vanishes(column) else b" "
        after = b" " if number + 1 < len(columns) and not _vanishes(columns[number + 1]) else b""
        if isinstance(column, Words):
            layouts.append(_Layout(tuple(before + word + after for word in column.words), 0, False))
        elif isinstance(column, Hexadecimal):
            layouts.append(_Layout((before + b"0x",), _groups(column.values, 16), False))
        else:
            layouts.append(_Layout((before,), _groups(column.values, 10), _vanishes(column)))
    count = len(columns[0].codes if isinstance(columns[0], Words) else columns[0].values)
    words = np.empty((count, sum(layout.width for layout in layouts)), np.uint32)
    code = np.zeros(count, np.int64)
    at = 0
    for column, layout in zip(columns, layouts, strict=True):
        own = words[:, at : at + layout.width]
        if isinstance(column, Words):
            own[:] = layout.fixed()[column.codes]
            code = code * layout.codes + column.codes
        else:
            own[:, : layout.width - layout.groups] = layout.fixed()
            digits = _digits(column.values, 16 if isinstance(column, Hexadecimal) else 10, own[:, layout.width - layout.groups :])
            if isinstance(column, Decimal) and column.known is not None:
                digits = np.where(column.known, digits, 0)
            code = code * layout.codes + digits - (not layout.vanishes)
        at += layout.width
    return words.view(np.uint8)[np.take(_masks(tuple(layouts)), code, axis=0)].tobytes()


def _vanishes(column: Column) -> bool:
    """Whether a column is absent from some rows."""
    return isinstance(column, Decimal) and column.known is not None


def _groups(values: UInt64, base: int) -> int:
    """Groups of four digits that the largest of some numbers needs."""
    most, groups = int(values.max(initial=np.uint64(0))), 1
    while most >= base ** (4 * groups):
        groups += 1
    return groups


def _digits(values: UInt64, base: int, out: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Write the digits of some numbers, right in `out`; returns how many each has."""
    groups, table = out.shape[1], _table(base)
    if base == 16:
        for group in range(groups):
            out[:, groups - 1 - group] = table[(values >> np.uint64(16 * group)) & np.uint64(0xFFFF)]
    else:
        left = values
        for group in range(groups - 1, 0, -1):
            above = left // np.uint64(10_000)
            out[:, group] = table[left - above * np.uint64(10_000)]
            left = above
        out[:, 0] = table[left]
    digits = np.ones(len(values), np.int64)
    for power in range(1, 4 * groups):
        if base**power < 2**64:
            digits += values >= np.uint64(base**power)
    return digits


# --- reading ----------------------------------------------------------------------------------------------------------------------


class MalformedError(ValueError):
    """A row that breaks the grammar; says which, counted from 1, and how."""


def blocks(path: Path) -> Iterator[tuple[int, Bytes]]:
    """A file in blocks of whole rows, with the number of the first row (from 0) of each.

    Raises:
        MalformedError: the last row has no line feed.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        row, rest = 0, b""
        while True:
            new = file.read(READ_BYTES)
            end = new.rfind(b"\n") + 1
            if not new:
                break
            if not end:
                rest += new
                continue
            block = np.frombuffer(rest + new[:end], np.uint8)
            yield row, block
            row += int(np.count_nonzero(block == LINE_FEED))
            rest = new[end:]
        if rest:
            raise MalformedError(f"row {row + 1} has no line end: the file is cut off")


@dataclass(frozen=True, eq=False)
class Fields:
    """The fields of some rows: `begin` and `end` have a row each, absent fields are empty. `first` is the first row's number, from 0."""

    raw: Bytes
    first: int
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin)

    def _refuse(self, wrong: Any, what: str) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            text = self.raw[self.begin[row, 0] : self.end[row].max()].tobytes()[:80].decode("ascii", "backslashreplace")
            raise MalformedError(f"row {self.first + row + 1} ('{text}'): {what}")

    def words(self, column: int, words: tuple[bytes, ...]) -> NDArray[np.int64]:
        """Which of some words each row has in a column.

        Raises:
            MalformedError: a row has none of them.
        """
        begin, length = self.begin[:, column], self.end[:, column] - self.begin[:, column]
        found = np.full(len(self), -1)
        for number, word in enumerate(words):
            same = length == len(word)
            for at, character in enumerate(word):
                same &= self.raw[np.minimum(begin + at, len(self.raw) - 1)] == character
            found[same] = number
        self._refuse(found < 0, f"it has not {' or '.join(w.decode() for w in words)} where it must")
        return found

    def numbers(self, column: int, base: int, optional: bool = False) -> UInt64:
        """The numbers of a column, of base 16 with `0x` before them or of base 10; 0 where an optional one is absent.

        Raises:
            MalformedError: a row has no such number, one with leading zeros, or one that 64 bits do not hold.
        """
        begin, end = self.begin[:, column], self.end[:, column]
        there = end > begin if optional else np.ones(len(self), bool)
        what = "an address in hexadecimal after 0x" if base == 16 else "a decimal number"
        if base == 16:
            self._refuse(there & (end - begin < 3), f"it has not {what} where it must")
            for at, character in enumerate(b"0x"):
                self._refuse(
                    there & (self.raw[np.minimum(begin + at, len(self.raw) - 1)] != character), f"it has not {what} where it must"
                )
            begin = np.where(there, begin + 2, begin)
        length = end - begin
        self._refuse(there & (length < 1), f"it has not {what} where it must")
        self._refuse(there & (length > (16 if base == 16 else 20)), "the number is too long")
        self._refuse(
            there & (length > 1) & (self.raw[np.minimum(begin, len(self.raw) - 1)] == ord("0")), "the number has leading zeros"
        )
        values = np.zeros(len(self), np.uint64)
        for place in range(int(length.max(initial=0))):
            rows = there & (length > place)
            digit = _DIGITS[self.raw[np.where(rows, begin + place, 0)]]
            self._refuse(rows & (digit >= base), f"it has not {what} where it must")
            too_large = rows & (values > (_MOST - digit) // np.uint64(base))
            self._refuse(too_large, "the number is too large")
            values = np.where(rows, values * np.uint64(base) + digit, values)
        return values


_MOST = np.uint64(2**64 - 1)
_DIGITS = np.full(256, 255, np.uint64)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def fields(first: int, raw: Bytes, least: int, most: int) -> Fields:
    """The fields of a block's rows, one blank between two of them.

    Raises:
        MalformedError: a row has less than `least` or more than `most` fields, or an empty one.
    """
    ends = np.flatnonzero(raw == LINE_FEED)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    blanks = np.flatnonzero(raw == SPACE)
    before = np.searchsorted(blanks, starts)
    count = np.searchsorted(blanks, ends) - before + 1
    begin, end = (np.repeat(ends[:, None], most, axis=1) for _ in range(2))
    begin[:, 0] = starts
    for column in range(most - 1):
        has = count > column + 1
        at = blanks[before[has] + column]
        end[has, column] = at
        begin[has, column + 1] = at + 1
    found = Fields(raw, first, begin, end)
    wanted = str(least) if least == most else f"{least} to {most}"
    found._refuse((count < least) | (count > most), f"it has not {wanted} fields with a blank between two of them")
    there = np.arange(most) < count[:, None]
    found._refuse((there & (end <= begin)).any(axis=1), "a field is empty")
    return found
