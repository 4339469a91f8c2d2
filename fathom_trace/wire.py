"""Protobuf's wire format, written in bulk: varints of whole columns at once, fields, and delimited records.

For formats with a message per execution, where building message objects would take most of an export's time. What a field number
means is in the schema of the format (`schemas/`); what is written is read back with the module generated from it. Source:
https://protobuf.dev/programming-guides/encoding (base 128 varints, tag = field number << 3 | wire type).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

VARINT, FIXED64, LENGTH = 0, 1, 2


def varint(value: int) -> bytes:
    """A non-negative integer below 2**64 as a base 128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varints(values: ArrayLike) -> tuple[bytes, NDArray[np.int64]]:
    """Non-negative integers `[n]` as varints one after the other, and where each begins: `n + 1` offsets into the bytes."""
    numbers = np.asarray(values, np.uint64)
    length = np.ones(len(numbers), np.int64)
    for bits in range(7, 64, 7):
        more = numbers >> np.uint64(bits) != 0
        if not more.any():
            break
        length += more
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    out = np.empty(int(offsets[-1]), np.uint8)
    for position in range(int(length.max(initial=0))):
        rows = np.flatnonzero(length > position)
        part = (numbers[rows] >> np.uint64(7 * position)).astype(np.uint8) & np.uint8(0x7F)
        out[offsets[rows] + position] = part | np.where(length[rows] > position + 1, 0x80, 0).astype(np.uint8)
    return out.tobytes(), offsets


def varints(values: ArrayLike) -> list[bytes]:
    """Each of some non-negative integers as a varint."""
    raw, offsets = encode_varints(values)
    return [raw[a:b] for a, b in pairwise(offsets.tolist())]


def tag(field: int, wire_type: int) -> bytes:
    """What precedes a field's value."""
    return varint(field << 3 | wire_type)


def integer(field: int, value: int) -> bytes:
    """A field of type uint32, uint64, bool, enum, or int32 and int64 where the value is not negative."""
    return tag(field, VARINT) + varint(value)


def delimited(field: int, content: bytes | str) -> bytes:
    """A field of type bytes, string or message."""
    raw = content.encode() if isinstance(content, str) else content
    return tag(field, LENGTH) + varint(len(raw)) + raw


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return tag(field, FIXED64) + value.to_bytes(8, "little")


def record(content: bytes) -> bytes:
    """A message with its length before it, as files of many messages hold it."""
    return varint(len(content)) + content


_LENGTHS = tuple(varint(n) for n in range(4096))


def length(size: int) -> bytes:
    """`varint`, faster for small numbers: what precedes a record or a delimited field."""
    return _LENGTHS[size] if size < len(_LENGTHS) else varint(size)


class CutOffError(ValueError):
    """A record ends before its length says; `at` is the byte where it begins."""

    def __init__(self, at: int) -> None:
        super().__init__(f"the record at byte {at} is cut off")
        self.at = at


def read_records(stream: BinaryIO, head: bytes = b"") -> Iterator[tuple[int, bytes]]:
    """Where each record of a file begins, and its content: one at a time. Before the length of each stands `head`.

    Raises:
        CutOffError: a record is cut off, empty or not begun by `head`.
    """
    size = os.fstat(stream.fileno()).st_size
    at, begin, buffer = 0, 0, b""
    """The next record, and the place in the file of the bytes in `buffer`."""
    while at < size:
        if at - begin + MOST_HEAD > len(buffer) and begin + len(buffer) < size:
            buffer = buffer[at - begin :] + stream.read(max(READ_BYTES, MOST_HEAD))
            begin = at
        place = at - begin
        if not buffer.startswith(head, place):
            raise CutOffError(at)
        place += len(head)
        count = shift = 0
        while place < len(buffer) and shift < 64:
            byte = buffer[place]
            count, shift, place = count | (byte & 0x7F) << shift, shift + 7, place + 1
            if byte < 0x80:
                break
        if not count or begin + place + count > size:
            raise CutOffError(at)
        while place + count > len(buffer):
            more = stream.read(max(READ_BYTES, place + count - len(buffer)))
            if not more:
                raise CutOffError(at)
            buffer += more
        yield at, buffer[place : place + count]
        at = begin + place + count


MOST_HEAD = 16
"""Bytes before a record's content, at most: a tag and a varint."""
READ_BYTES = 1 << 20
