"""Writes the datasets of a trace into HDF5 with bounded memory: column by column, chunk by chunk, compressed here.

HDF5 leaves each new dataset a header of 256 bytes, mostly empty, and packs it only when it copies the dataset: so all of them are drafted
in one temporary file and copied to another. The same trace always makes the same bytes.
"""

from __future__ import annotations

import io
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import h5py
import numpy as np

from fathom_trace.store.columns import (
    FORMAT,
    PROVENANCE,
    VERSION,
    Block,
    Difference,
    by_execution,
    narrowest,
    provenance_text,
    smallest_dtype,
    stored_columns,
)
from fathom_trace.store.compact import AFTER, CODES, FORMULAS, KEYS, PERIOD, Compact, compact
from fathom_trace.store.hdf5_reader import COMPACT_VERSION
from fathom_trace.tables import Array, StepTimes, Table
from fathom_trace.trace import Trace

COMPACT_BYTES = 192
"""Columns up to this size lie in their own header, uncompressed: a chunk would cost more than it saves."""

CHUNK_ROWS = 1 << 16
FAST, SMALL = 1, 6
"""How hard deflate tries: `SMALL` for columns of one chunk, on which it takes no time that counts, `FAST` for longer ones."""

MEMORY_BYTES = 32 << 20
"""Of an unfinished file, so much is held in memory; what is larger goes to the disk."""

_HEADER_BYTES = 256
_BLOCK_BYTES = 1 << 20
_SCAN_ROWS = 1 << 20

Part = Callable[[int, int], Array]
"""What is stored of a column from one row to another (excluded)."""


@dataclass(frozen=True)
class _Column:
    """A dataset to be: its rows come in parts, which need not exist at once."""

    rows: int
    dtype: np.dtype[Any]
    part: Part
    attributes: Mapping[str, str]


@contextmanager
def written(trace: Trace, folder: Path, is_compressed: bool) -> Iterator[BinaryIO]:
    """The HDF5 file of a trace, as a file that is read from its beginning and vanishes at the end of the block.

    Raises:
        OSError: `folder`, in which temporary files lie if they are large, has no room for them.
    """
    with _Temporary(folder) as draft, _Temporary(folder) as image:
        with _new_file(draft) as source:
            for _ in _put_all(source, trace, is_compressed):
                draft.check()
            with _new_file(image) as file:
                file.attrs["format"] = np.bytes_(FORMAT)
                file.attrs["version"] = np.int32(COMPACT_VERSION if _is_compact(source) else VERSION)
                for name in source:
                    h5py.h5o.copy(source.id, name.encode(), file.id, name.encode())
                    image.check()
        draft.check()
        image.check()
        image.seek(0)
        yield cast(BinaryIO, image)


class _Temporary:
    """A temporary file that HDF5 writes.

    HDF5 cannot close a file that it failed to write, so it never learns of a failure: what is written from then on is kept in memory,
    which is not much, because whoever makes the file asks `check` after each column.
    """

    def __init__(self, folder: Path) -> None:
        self._file: Any = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(folder))  # noqa: SIM115
        self._failure: OSError | None = None
        self._at = 0
        self._kept: list[tuple[int, bytes]] = []

    def __enter__(self) -> _Temporary:
        return self

    def __exit__(self, *unused: object) -> None:
        self._file.close()

    def check(self) -> None:
        """Raise what writing failed with."""
        if self._failure is not None:
            raise self._failure

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = int(self._file.seek(position, whence))
        if whence == io.SEEK_END:
            self._at = max(self._at, *(at + len(data) for at, data in self._kept), 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        return bytes(self._file.read(size))

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if not self._kept:
            return int(self._file.readinto(view))
        view[:] = self._file.read(len(view)).ljust(len(view), b"\0")
        for at, data in self._kept:
            first, last = max(at, self._at), min(at + len(data), self._at + len(view))
            if first < last:
                view[first - self._at : last - self._at] = data[first - at : last - at]
        return len(view)

    def write(self, data: Any) -> int:
        try:
            self.check()
            self._file.write(data)
        except OSError as error:
            self._failure = error
            self._kept.append((self._at, bytes(data)))
        return len(data)

    def truncate(self, size: int) -> None:
        if self._failure is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._failure = error

    def flush(self) -> None:
        """Nothing to do: what is written here is read here."""


def _new_file(buffer: _Temporary) -> h5py.File:
    """An HDF5 file. It holds no time of creation, so that the same trace always makes the same bytes."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, buffer)
    return h5py.File(h5py.h5f.create(b"trace", h5py.h5f.ACC_TRUNC, _without_times(h5py.h5p.FILE_CREATE), access))


def _without_times(kind: Any) -> Any:
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def _is_compact(file: h5py.File) -> bool:
    return f"{StepTimes.name}/{AFTER}" in file


# --- columns ------------------------------------------------------------------------------------------------------------------------


def _put_all(file: h5py.File, trace: Trace, is_compressed: bool) -> Iterator[None]:
    """Write everything; yields after each column."""
    _put(file.id, PROVENANCE, _whole(np.frombuffer(provenance_text(trace), np.uint8)), is_compressed)
    for name, table in trace.tables().items():
        if not len(table):
            continue
        group = h5py.h5g.create(file.id, name.encode(), gcpl=_without_times(h5py.h5p.GROUP_CREATE))
        blocks = by_execution(trace.structures, trace.steps, len(table)) if isinstance(table, StepTimes) else None
        columns = {key: _column(table, key, blocks) for key in table.columns()}
        if isinstance(table, StepTimes) and blocks is not None and len(table) <= CHUNK_ROWS:
            stored = compact({key: getattr(table, key) for key in KEYS}, trace.step_offsets)
            smaller = _compact_columns(stored, blocks)
            if _size(smaller.values()) + 2 * _HEADER_BYTES < _size(columns[key] for key in KEYS):
                columns |= smaller
                if stored.period:
                    _put_attribute(group, PERIOD, np.array(stored.period, np.int64))
        for key, column in columns.items():
            _put(group, key, column, is_compressed)
            yield


def _column(table: Table, key: str, blocks: Sequence[Block] | None) -> _Column:
    """A column as version 1 stores it."""
    column = stored_columns(type(table))[key]
    values = getattr(table, key)
    given = values.view(np.uint8) if values.dtype == np.bool_ else values
    texts = {"unit": column.spec.unit, "stored": column.difference.formula(key) if column.difference else ""}
    part = _differences(given, getattr(table, column.difference.other), column.difference) if column.difference else _slices(given)
    dtype = _dtype_of(part, len(values))
    if blocks is None:
        return _Column(len(values), dtype, part, texts)
    if column.difference is None:
        return _Column(len(values), dtype, _picked(given, None, blocks), texts)
    other = getattr(table, column.difference.other)
    return _Column(len(values), dtype, _picked(given, (other, column.difference), blocks), texts)


def _compact_columns(stored: Compact, blocks: Sequence[Block]) -> dict[str, _Column]:
    """The times, and what belongs to them, as version 2 stores them."""
    given: dict[str, Array] = {**stored.times, AFTER: stored.after, **({CODES: stored.codes} if stored.period else {})}
    columns = stored_columns(StepTimes)
    made = {}
    for key, values in given.items():
        unit = columns[key].spec.unit if key in columns else ""
        ticks = " (in periods of the clock, see codes)" if stored.period and key in KEYS else ""
        texts = {"unit": unit, "stored": FORMULAS[key] + ticks if key in FORMULAS else ""}
        made[key] = _whole(_permuted(values, blocks), texts)
    return made


def _whole(values: Array, attributes: Mapping[str, str] | None = None) -> _Column:
    stored = narrowest(values)
    return _Column(len(stored), stored.dtype, _slices(stored), attributes or {})


def _slices(values: Array) -> Part:
    return lambda begin, end: values[begin:end]


def _differences(values: Array, other: Array, difference: Difference) -> Part:
    """`values` less those of `other`, in the order of the table."""

    def part(begin: int, end: int) -> Array:
        mine: Array = values[begin:end].astype(np.int64)
        first = max(0, 1 - begin) if difference.row_before else 0
        shift = int(difference.row_before)
        mine[first:] -= other[begin + first - shift : end - shift]
        return mine

    return part


def _picked(values: Array, less: tuple[Array, Difference] | None, blocks: Sequence[Block]) -> Part:
    """`values`, less those of another column, in the order of `blocks`."""

    def part(begin: int, end: int) -> Array:
        rows = np.concatenate([block.rows(begin, end) for block in blocks])
        picked: Array = values[rows]
        if less is None:
            return picked
        other, difference = less
        less_by: Array = np.where(rows > 0, other[rows - 1], 0) if difference.row_before else other[rows]
        result: Array = picked.astype(np.int64) - less_by
        return result

    return part


def _permuted(values: Array, blocks: Sequence[Block]) -> Array:
    result = np.empty_like(values)
    for block in blocks:
        block.store(values, result)
    return result


def _dtype_of(part: Part, rows: int) -> np.dtype[Any]:
    """The smallest type for all of a column; the order of its rows does not matter."""
    low = high = 0
    for begin in range(0, rows, _SCAN_ROWS):
        values = part(begin, min(rows, begin + _SCAN_ROWS))
        low, high = min(low, int(values.min())), max(high, int(values.max()))
    return smallest_dtype(low, high)


# --- datasets -----------------------------------------------------------------------------------------------------------------------


def _put(group: Any, name: str, column: _Column, is_compressed: bool) -> None:
    """Write one dataset and its attributes."""
    layout = _without_times(h5py.h5p.DATASET_CREATE)
    level = 0 if not is_compressed else _level(column)
    is_chunked = column.rows * column.dtype.itemsize > COMPACT_BYTES
    if is_chunked:
        layout.set_chunk((min(column.rows, CHUNK_ROWS),))
        layout.set_shuffle()
        layout.set_deflate(level)
    else:
        layout.set_layout(h5py.h5d.COMPACT)
    kind = h5py.h5t.py_create(column.dtype.newbyteorder("<"))
    dataset = h5py.h5d.create(group, name.encode(), kind, h5py.h5s.create_simple((column.rows,)), layout)
    if is_chunked:
        for begin, chunk in _chunks(column):
            dataset.write_direct_chunk((begin,), _packed(chunk, level))
    elif column.rows:
        values = column.part(0, column.rows).astype(column.dtype, copy=False)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
    for key, text in column.attributes.items():
        if text:
            _put_attribute(dataset, key, np.array(text.encode(), f"S{len(text)}"))


def _put_attribute(owner: Any, name: str, value: Array) -> None:
    """A scalar of fixed size, for whoever opens the file with other tools."""
    attribute = h5py.h5a.create(owner, name.encode(), h5py.h5t.py_create(value.dtype), h5py.h5s.create(h5py.h5s.SCALAR))
    attribute.write(value)


def _level(column: _Column) -> int:
    return SMALL if column.rows <= CHUNK_ROWS else FAST


def _chunks(column: _Column) -> Iterator[tuple[int, Array]]:
    """The first row of each chunk, and its values, the last filled up with zeros."""
    size = min(column.rows, CHUNK_ROWS)
    for begin in range(0, column.rows, size):
        values = column.part(begin, min(column.rows, begin + size)).astype(column.dtype, copy=False)
        missing = size - len(values)
        yield begin, np.concatenate([values, np.zeros(missing, column.dtype)]) if missing else values


def _packed(values: Array, level: int) -> bytes:
    """A chunk as HDF5's filters shuffle and deflate make it, but each byte of the values, which has a distribution of its own, is coded
    by a table of its own: deflate would begin a new one only every 16,384 bytes."""
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    planes = little.view(np.uint8).reshape(len(values), -1).T
    deflater = zlib.compressobj(level)
    parts: list[bytes] = []
    for plane in planes:
        if parts:
            parts.append(deflater.flush(zlib.Z_BLOCK))
        parts.append(deflater.compress(np.ascontiguousarray(plane).tobytes()))
    return b"".join([*parts, deflater.flush()])


def _size(columns: Any) -> int:
    """Bytes that columns of one chunk take, about, without their headers."""
    total = 0
    for column in columns:
        raw = column.rows * column.dtype.itemsize
        if raw <= COMPACT_BYTES:
            total += raw
        else:
            total += sum(len(_packed(chunk, FAST)) for _, chunk in _chunks(column))
    return total
