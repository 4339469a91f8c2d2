"""Traces as protobuf files (`.pb`): length-delimited records, each small. Schema: `schemas/trace.proto`.

Columns are packed repeated fields, one message type a table, so that any language reads them with code made from the schema and nothing
else. Varints suit the data, which is mostly small differences and small row numbers: the four times of an execution take about eight
bytes, uncompressed. (Byte fields with compressed arrays would be a third smaller, and quicker here by
a few tenths of a second for a million executions, but opaque to everyone else: that is what the HDF5 format is for.)
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fathom_trace import wire
from fathom_trace.errors import TraceFileError
from fathom_trace.store.columns import (
    FORMAT,
    PROVENANCE,
    VERSION,
    StoredColumn,
    assemble,
    decode,
    encode,
    provenance_text,
    stored_columns,
)
from fathom_trace.store.files import reading, replacing
from fathom_trace.tables import TABLES, Array, Table
from fathom_trace.trace import Trace

_pb: Any = importlib.import_module("fathom_trace.generated.trace_pb2")

MESSAGE_BYTES = 1 << 20
SMALLEST_MESSAGE_BYTES = 1 << 10
LARGEST_MESSAGE_BYTES = 16 << 20

_FIELD_OVERHEAD_BYTES = 20
"""Of one field in a message: tag, length, and its first value, which may be larger here than counted (differences begin anew)."""

_MARKER_BYTES = 128
_ROWS_AT_ONCE = 1 << 18
_DTYPES = {"bool": np.bool_, "sint32": np.int64, "sint64": np.int64, "uint32": np.uint64, "uint64": np.uint64}

Ranges = dict[str, slice]


def write(trace: Trace, path: Path, force: bool = False, max_message_bytes: int = MESSAGE_BYTES) -> None:
    """Put `trace` in a file that appears whole or not at all. No message in it is larger than `max_message_bytes` (1 KiB to 16 MiB).

    Raises:
        TraceFileError: `path` exists and `force` is not set, or the system refuses to write.
        ValueError: `max_message_bytes` is out of range.
    """
    if not SMALLEST_MESSAGE_BYTES <= max_message_bytes <= LARGEST_MESSAGE_BYTES:
        raise ValueError(f"a message takes {SMALLEST_MESSAGE_BYTES} to {LARGEST_MESSAGE_BYTES} bytes, not {max_message_bytes}")
    with replacing(path, force) as file:
        size, checksum = 0, 0
        for record in _records(trace, max_message_bytes):
            written = _delimited(record)
            file.write(written)
            size, checksum = size + len(written), zlib.crc32(written, checksum)
        file.write(_delimited(_pb.Record(end=_pb.End(size_bytes=size, crc32=checksum))))


def read(path: Path) -> Trace:
    """The trace in a file. Holds one message at a time beside the columns.

    Raises:
        TraceFileError: it is missing, foreign, too new or damaged.
        TraceError: its parts contradict each other; `store.load` adds the file's name.
    """
    found: dict[str, list[dict[str, Array]]] = {table.name: [] for table in TABLES}
    tables = {table.name: table for table in TABLES}
    provenance = b""
    with reading(path) as file:
        _check_marker(file, path)
        for kind, message in _messages(file, path):
            if kind == PROVENANCE:
                provenance += message.json
            elif kind in tables:
                found[kind].append(_part(tables[kind], message))
    return assemble((_joined(tables[name], parts) for name, parts in found.items()), provenance)


def read_lazily(path: Path) -> Trace:
    """The same as `read`: columns do not stand together in this format."""
    return read(path)


# --- writing ------------------------------------------------------------------------------------------------------------------------


def _delimited(record: Any) -> bytes:
    payload: bytes = record.SerializeToString(deterministic=True)
    return wire.record(payload)


def _records(trace: Trace, limit: int) -> Iterator[Any]:
    """All records but the last."""
    yield _pb.Record(marker=_pb.Marker(format=FORMAT, version=VERSION))
    text = provenance_text(trace)
    for begin in range(0, len(text), limit - 2 * _FIELD_OVERHEAD_BYTES):
        yield _pb.Record(provenance=_pb.Provenance(json=text[begin : begin + limit - 2 * _FIELD_OVERHEAD_BYTES]))
    for name, table in trace.tables().items():
        columns = stored_columns(type(table))
        values = {key: np.diff(getattr(table, key)) if c.spec.is_offsets else getattr(table, key) for key, c in columns.items()}
        for ranges in _cuts(type(table), columns, values, limit) if len(table) else ():
            yield _pb.Record(**{name: _message(type(table), columns, values, ranges)})


def _message(table: type[Table], columns: dict[str, StoredColumn], values: dict[str, Array], ranges: Ranges) -> Any:
    message = getattr(_pb, table.__name__)()
    for key, part in encode(table, {key: values[key][cut] for key, cut in ranges.items()}).items():
        if columns[key].is_text:
            setattr(message, key, part.tobytes())
        else:
            getattr(message, columns[key].proto_name).extend(part.tolist())
    return message


def _cuts(table: type[Table], columns: dict[str, StoredColumn], values: dict[str, Array], limit: int) -> Iterator[Ranges]:
    """What goes into each record: whole rows, as many as fit. Looks at some rows at a time, to hold the sizes of no more."""
    groups = {c.spec.ragged for c in columns.values() if c.spec.ragged}
    at = dict.fromkeys(groups, 0)
    rows = len(next(values[key] for key, c in columns.items() if c.spec.is_offsets or not c.spec.ragged))
    for begin in range(0, rows, _ROWS_AT_ONCE):
        end = min(rows, begin + _ROWS_AT_ONCE)
        inside = {group: (at[group], at[group] + int(values[f"{group}_offsets"][begin:end].sum())) for group in groups}
        spans = {key: (begin, end) if c.spec.is_offsets or not c.spec.ragged else inside[c.spec.ragged] for key, c in columns.items()}
        for ranges in _cuts_of(table, columns, {key: values[key][slice(*span)] for key, span in spans.items()}, limit):
            yield {key: slice(cut.start + spans[key][0], cut.stop + spans[key][0]) for key, cut in ranges.items()}
        at = {group: span[1] for group, span in inside.items()}


def _cuts_of(table: type[Table], columns: dict[str, StoredColumn], values: dict[str, Array], limit: int) -> Iterator[Ranges]:
    """The same for a part of a table. A row too large for one record gets further ones for its values alone."""
    budget = limit - _FIELD_OVERHEAD_BYTES * (len(columns) + 1)
    stored = encode(table, values)
    sizes = {key: _sizes(column, stored[key]) for key, column in columns.items()}
    row_keys = [key for key, c in columns.items() if c.spec.is_offsets or not c.spec.ragged]
    groups: dict[str, list[str]] = {}
    for key, column in columns.items():
        if key not in row_keys:
            groups.setdefault(column.spec.ragged, []).append(key)
    bounds = {group: _running(values[f"{group}_offsets"]) for group in groups}
    value_ends = {group: _running(_sum(sizes[key] for key in keys)) for group, keys in groups.items()}
    row_ends = _running(_sum([*(sizes[key] for key in row_keys), *(np.diff(value_ends[g][bounds[g]]) for g in groups)]))
    for begin, end in _pieces(row_ends, 0, len(row_ends) - 1, budget):
        rows: Ranges = dict.fromkeys(row_keys, slice(begin, end))
        inside = {group: (int(bounds[group][begin]), int(bounds[group][end])) for group in groups}
        if row_ends[end] - row_ends[begin] <= budget:
            yield rows | {key: slice(*inside[group]) for group, keys in groups.items() for key in keys}
            continue
        yield rows
        for group, keys in groups.items():
            for cut in _pieces(value_ends[group], *inside[group], budget):
                yield dict.fromkeys(keys, slice(*cut))


def _pieces(ends: NDArray[np.int64], begin: int, stop: int, budget: int) -> Iterator[tuple[int, int]]:
    """`begin` to `stop` in pieces whose sizes, by the running totals `ends`, stay within `budget`; a larger item is a piece of its own."""
    while begin < stop:
        end = min(stop, max(begin + 1, int(np.searchsorted(ends, ends[begin] + budget, side="right")) - 1))
        yield begin, end
        begin = end


def _sizes(column: StoredColumn, values: Array) -> NDArray[np.int64]:
    """Bytes that each stored value takes in a message: of a varint one for every seven bits begun, zigzag where it has a sign."""
    if column.is_text or values.dtype == np.bool_:
        return np.ones(len(values), np.int64)
    wide = values.astype(np.int64) if values.dtype != np.uint64 else values
    bits = (wide << 1 ^ wide >> 63).view(np.uint64) if column.proto_type.startswith("sint") else wide.view(np.uint64)
    sizes = np.ones(len(values), np.int64)
    for shift in range(7, int(bits.max()).bit_length() if len(bits) else 0, 7):
        sizes += bits >= np.uint64(1 << shift)
    return sizes


def _sum(parts: Iterable[Array]) -> NDArray[np.int64]:
    first, *others = parts
    return sum(others, start=first)


def _running(sizes: Array) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


# --- reading ------------------------------------------------------------------------------------------------------------------------


def _check_marker(file: BinaryIO, path: Path) -> None:
    """The first record says that the file is a trace, of a version that this release reads. Leaves the file at its beginning."""
    head = file.read(_MARKER_BYTES)
    file.seek(0)
    if not head:
        raise TraceFileError(f"{path} is empty, so it is no trace; `fathom-trace capture` writes traces as .h5 or .pb")
    record = _parsed(head[1 : 1 + head[0]]) or _pb.Record()
    if record.marker.format != FORMAT:
        raise TraceFileError(f"{path} is not a protobuf trace (it lacks the mark of one); `fathom-trace capture` writes traces")
    if record.marker.version > VERSION:
        raise TraceFileError(f"{path} is trace format {record.marker.version}; this release reads up to {VERSION}")
    if record.marker.version < 1:
        raise TraceFileError(f"{path} is damaged: it does not tell its format version")


def _messages(file: BinaryIO, path: Path) -> Iterator[tuple[str, Any]]:
    """(kind, message) of every record before the `End`, which must stand last and agree with all before it."""
    size, position, checksum = os.fstat(file.fileno()).st_size, 0, 0
    while position < size:
        prefix, length = _read_length(file)
        if not 0 <= length <= min(LARGEST_MESSAGE_BYTES, size - position - len(prefix)):
            raise _damaged(path, f"the record at byte {position} is longer than the file or than {LARGEST_MESSAGE_BYTES} bytes")
        payload = file.read(length)
        record = _parsed(payload)
        if record is None:
            raise _damaged(path, f"there is no record at byte {position}")
        kind = record.WhichOneof("content")
        if kind == "end":
            if record.end.size_bytes != position or record.end.crc32 != checksum or file.read(1):
                raise _damaged(path, "its content does not match its checksum")
            return
        if kind is not None:
            yield kind, getattr(record, kind)
        position += len(prefix) + length
        checksum = zlib.crc32(payload, zlib.crc32(prefix, checksum))
    raise _damaged(path, "its end is missing")


def _read_length(file: BinaryIO) -> tuple[bytes, int]:
    """The bytes of a varint and its value; -1 where there is none of at most five bytes."""
    prefix, value = b"", 0
    for shift in range(0, 35, 7):
        byte = file.read(1)
        if not byte:
            break
        prefix += byte
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return prefix, value
    return prefix, -1


def _parsed(payload: bytes) -> Any | None:
    record = _pb.Record()
    try:
        record.ParseFromString(payload)
    except (DecodeError, ValueError):
        return None
    return record


def _part(table: type[Table], message: Any) -> dict[str, Array]:
    """The columns in one record, with counts in place of offsets."""
    stored = {}
    for key, column in stored_columns(table).items():
        values = getattr(message, column.proto_name)
        if column.is_text:
            stored[key] = np.frombuffer(values, np.uint8)
        else:
            stored[key] = np.fromiter(values, _DTYPES[column.proto_type], count=len(values))
    return decode(table, stored)


def _joined(table: type[Table], parts: list[dict[str, Array]]) -> Table:
    if not parts:
        return table.empty()
    columns = {}
    for key, column in stored_columns(table).items():
        values = np.concatenate([part.pop(key) for part in parts])  # and no longer in the parts
        columns[key] = _running(values) if column.spec.is_offsets else values
    return table(**columns)


def _damaged(path: Path, problem: str) -> TraceFileError:
    return TraceFileError(f"{path} is damaged or cut short: {problem}; use a copy, or capture again")
