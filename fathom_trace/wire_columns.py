"""Protobuf's wire format, read in bulk: the fields of many messages of one type as columns.

All messages advance together, one field of each at a time. For records of which there are hundreds of thousands, where making an object
of each message would take most of the time. What a field number means is in the schema of the format. Source: as `wire`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom_trace.wire import FIXED64, LENGTH, VARINT

Int64 = NDArray[np.int64]

FIXED32 = 5

_PADDING_BYTES = 16
_FEW_MESSAGES = 8
"""So few messages are read one after the other, which takes less than all of numpy's calls for each of their fields."""
_BEYOND, _TOO_LONG = "a field ends beyond its message", "a number is longer than 64 bits"
_SEVEN_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_HALVES = tuple(
    (np.uint64(gap), np.uint64(low)) for gap, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF))
)
"""How the seven bits of each byte of a word move together: pairs of bytes, then of pairs, then of both halves."""


class MalformedError(ValueError):
    """Bytes are no protobuf message."""


@dataclass(frozen=True)
class Spans:
    """Values of a field of type bytes, string or message: where each begins and ends in the data, and the message that it is of.

    They are in the order of the messages and, of one message, in its own order.
    """

    message: Int64
    begin: Int64
    end: Int64

    def last(self, messages: int) -> tuple[Int64, Int64]:
        """Begin and end of the last value of each of so many messages; 0 and 0 where it has none."""
        begin, end = np.zeros(messages, np.int64), np.zeros(messages, np.int64)
        begin[self.message], end[self.message] = self.begin, self.end
        return begin, end


@dataclass(frozen=True)
class Fields:
    """Fields by number. `integers` `[messages]` are the last value of each message as int64, 0 where it has none."""

    integers: dict[int, Int64]
    spans: dict[int, Spans]


def padded(data: bytes | memoryview) -> NDArray[np.uint8]:
    """A copy of serialised messages as `read_fields` takes it: with some bytes more than there are."""
    buffer = np.zeros(len(data) + _PADDING_BYTES, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer


def read_fields(
    data: NDArray[np.uint8], begin: Int64, end: Int64, integers: Collection[int] = (), spans: Collection[int] = ()
) -> Fields:
    """The given fields of the messages that lie at `data[begin[i]:end[i]]`; others are passed over.

    `data` comes from `padded`. `integers` are the numbers of fields of type int32, int64, uint32, uint64, bool or enum (uint64 beyond
    2**63 comes out negative), `spans` of those of type bytes, string or message.

    Raises:
        MalformedError: a field ends beyond its message, or is of a type that protobuf does not have.
    """
    words = np.ndarray(len(data) - 7, "<u8", data.data, strides=(1,))
    found = {field: np.zeros(len(begin), np.int64) for field in integers}
    parts: dict[int, list[tuple[Int64, Int64, Int64]]] = {field: [] for field in spans}
    message, at, stop = np.arange(len(begin)), begin.astype(np.int64), end.astype(np.int64)
    while True:
        going = at < stop
        if not going.all():
            message, at, stop = message[going], at[going], stop[going]
        if len(message) <= _FEW_MESSAGES:
            _read_singly(data.data, (message, at, stop), found, parts)
            break
        tags, size = _varints(data, words, at)
        at = at + size
        values, size = _varints(data, words, at)
        after = at + size
        for tag, rows in _alike(tags):
            field, kind = tag >> 3, tag & 7
            if kind == VARINT:
                if field in found:
                    found[field][message[rows]] = values[rows]
            elif kind == LENGTH:
                first, length = np.array(after[rows]), values[rows]
                if int(length.min()) < 0:
                    raise MalformedError(_BEYOND)
                after[rows] = np.minimum(first + length, len(data))
                if field in parts:
                    parts[field].append((message[rows], first, after[rows]))
            elif kind in (FIXED32, FIXED64):
                after[rows] = at[rows] + (4 if kind == FIXED32 else 8)
            else:
                raise MalformedError(f"field {field} is of wire type {kind}")
        if np.any(after > stop):
            raise MalformedError(_BEYOND)
        at = after
    return Fields(found, {field: _in_order(found) for field, found in parts.items()})


def _read_singly(
    data: memoryview, rest: tuple[Int64, Int64, Int64], found: dict[int, Int64], parts: dict[int, list[tuple[Int64, Int64, Int64]]]
) -> None:
    """What is left of a few messages (number, begin, end), which may be long: field by field."""
    for message, at, stop in zip(*(column.tolist() for column in rest), strict=True):
        begun: dict[int, list[int]] = {}
        while at < stop:
            tag, place = _varint(data, at, stop)
            field = tag >> 3
            at = _past_value(data, place, stop, tag)
            if tag & 7 == VARINT and field in found:
                value = _varint(data, place, stop)[0]
                found[field][message] = value - (1 << 64) if value >> 63 else value
            elif tag & 7 == LENGTH and field in parts:
                begun.setdefault(field, []).extend((_varint(data, place, stop)[1], at))
        for field, places in begun.items():
            begin, end = _pairs(places)
            parts[field].append((np.full(len(begin), message), begin, end))


def _alike(tags: Int64) -> list[tuple[int, slice | Int64]]:
    """The different tags, and the rows that have each."""
    first = int(tags[0])
    if np.all(tags == first):
        return [(first, slice(None))]
    return [(tag, np.flatnonzero(tags == tag)) for tag in np.unique(tags).tolist()]


def _in_order(parts: list[tuple[Int64, Int64, Int64]]) -> Spans:
    if not parts:
        return Spans(*(np.zeros(0, np.int64) for _ in range(3)))
    message, begin, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(message, kind="stable")
    return Spans(message[order], begin[order], end[order])


def _varints(data: NDArray[np.uint8], words: NDArray[np.uint64], at: Int64) -> tuple[Int64, Int64 | int]:
    """The varints that begin at `at`, and of how many bytes each is."""
    first = data[at]
    if not np.any(first & 0x80):
        return first.astype(np.int64), 1
    word = words[at]
    last = ~word & ~_SEVEN_BITS
    last &= ~last + np.uint64(1)  # the highest bit of the first byte that does not have it set
    value = word & (last - np.uint64(1)) & _SEVEN_BITS
    for bits, low in _HALVES:
        value = (value & low) | (value & ~low) >> bits
    size = np.frexp(last.astype(np.float64))[1].astype(np.int64) >> 3
    long = np.flatnonzero(size == 0)
    if len(long):
        ninth, tenth = data[at[long] + 8].astype(np.uint64), data[at[long] + 9].astype(np.uint64)
        goes_on = ninth > 0x7F
        if np.any(goes_on & (tenth > 1)):
            raise MalformedError(_TOO_LONG)
        value[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | np.where(goes_on, tenth, np.uint64(0)) << np.uint64(63)
        size[long] = 9 + goes_on
    return value.view(np.int64), size


def iterate_spans(data: bytes, begin: int, end: int, field: int, at_once: int) -> Iterator[tuple[Int64, Int64]]:
    """Where the values of a field of type bytes, string or message lie in one message, `at_once` at most at a time: begins and ends.

    Raises:
        MalformedError: as `read_fields`.
    """
    places: list[int] = []
    wanted = field << 3 | LENGTH
    frequent = wanted if wanted < 0x80 else -1
    at = begin
    while at < end:
        if data[at] == frequent and at + 3 <= end and (data[at + 1] < 0x80 or data[at + 2] < 0x80):  # without a call
            length = data[at + 1]
            at += 2
            if length >= 0x80:
                length += (data[at] - 1) << 7
                at += 1
            places += (at, at + length)
            at += length
        else:
            tag, place = _varint(data, at, end)
            at = _past_value(data, place, end, tag)
            if tag == wanted:
                places += (_varint(data, place, end)[1], at)
        if at > end:
            raise MalformedError(_BEYOND)
        if len(places) == 2 * at_once:
            yield _pairs(places)
            places = []
    if places:
        yield _pairs(places)


def _pairs(places: list[int]) -> tuple[Int64, Int64]:
    found = np.array(places, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _past_value(data: bytes | memoryview, at: int, end: int, tag: int) -> int:
    """Where the value of a field ends that begins at `at`, after its tag."""
    kind = tag & 7
    if kind == VARINT:
        after = _varint(data, at, end)[1]
    elif kind == LENGTH:
        length, after = _varint(data, at, end)
        after += length
    elif kind in (FIXED32, FIXED64):
        after = at + (4 if kind == FIXED32 else 8)
    else:
        raise MalformedError(f"field {tag >> 3} is of wire type {kind}")
    if after > end:
        raise MalformedError(_BEYOND)
    return after


def _varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The varint that begins at `at`, and where the next byte stands."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise MalformedError(_TOO_LONG if shift >= 63 else _BEYOND)
