"""Traces as HDF5 files (`.h5`): one dataset a column, readable by any HDF5 library from 1.10 on. Layout: `schemas/trace_hdf5.md`.

The file is made in memory and written in one go, so nothing of HDF5's own caching and locking can leave half a file. After the end of
the HDF5 data stand 28 bytes with the size and CRC-32 of all before: accidental damage is found before the HDF5 library sees a
byte of it. HDF5 ignores these bytes, and drops them when it changes the file; a file without them is read too. The reader opens no
links, decompresses by itself with a limit, and believes no size before it has compared it with the file's.
"""

from __future__ import annotations

import io
import os
import struct
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from fathom_trace.errors import TraceError, TraceFileError, one_line
from fathom_trace.store.columns import (
    FORMAT,
    PROVENANCE,
    VERSION,
    Block,
    StoredColumn,
    assemble,
    by_execution,
    check_attributes,
    decode,
    encode,
    fit,
    narrowest,
    provenance_text,
    read_provenance,
    stored_columns,
)
from fathom_trace.store.files import reading, replacing
from fathom_trace.store.hdf5_reader import DECODED_FREE_BYTES, DECODED_RATIO, Dataset, Reader, check_marker
from fathom_trace.tables import TABLES, Array, Steps, StepTimes, Structures, Table
from fathom_trace.trace import Trace

SIGNATURE = b"\x89HDF\r\n\x1a\n"

COMPACT_BYTES = 192
"""Columns up to this size lie in their own header, uncompressed: a chunk would cost more than it saves."""

CHUNK_ROWS = 1 << 16
_SEAL = struct.Struct("<16sQI")
SEAL_MAGIC = b"\nfathom-trace\r\n\x1a"
_BLOCK_BYTES = 1 << 20
_DAMAGE = (OSError, KeyError, ValueError, RuntimeError, TypeError, OverflowError, NotImplementedError, zlib.error)


def write(trace: Trace, path: Path, force: bool = False) -> None:
    """Put `trace` in a file that appears whole or not at all.

    Raises:
        TraceFileError: `path` exists and `force` is not set, or the system refuses to write.
    """
    with replacing(path, force) as file:
        image = _image(trace, level=1)
        if _decoded_bytes(trace) > max(DECODED_FREE_BYTES, DECODED_RATIO * len(image)):
            image = _image(trace, level=0)
        file.write(image)
        file.write(_SEAL.pack(SEAL_MAGIC, len(image), zlib.crc32(image)))


def read(path: Path) -> Trace:
    """The trace in a file.

    Raises:
        TraceFileError: it is missing, foreign, too new or damaged.
        TraceError: its parts contradict each other; `store.load` adds the file's name.
    """
    with reading(path) as file:
        source = Source.open(path, path, _check_seal(file, path))
        with closing(source.file):
            tables: dict[str, Table] = {}
            for table in TABLES:
                tables[table.name] = _table(table, source, tables)
            return assemble(tables.values(), source.provenance())


def read_lazily(path: Path) -> Trace:
    """The trace in a file, its columns read, and checked, when they are first asked for. The file stays open as long as the trace exists.

    Checked at once are the mark, the version, what all columns declare (types, sizes, storage), the size under the seal, and what of
    `Trace.deferred`. The seal's CRC is not: HDF5's own checksums and deflate's see to what is read.

    Raises:
        TraceFileError: it is missing, foreign, too new or damaged. Columns that are read later may raise it too.
        TraceError: its parts contradict each other; `store.load` adds the file's name.
    """
    with reading(path) as file:
        size = _check_seal(file, path, with_content=False)
        # open until the trace is gone, and not by its name: HDF5 takes a file that it has open for the one that has its name now
        handle = open(os.dup(file.fileno()), "rb", buffering=0)  # noqa: SIM115
    with _closed_on_failure(handle):
        source = Source.open(path, handle, size)
        weakref.finalize(source, handle.close)
        provenance = read_provenance(source.provenance())
        return Trace.deferred(lambda trace: _OnDemand(source, trace).tables(), provenance)


# --- writing ------------------------------------------------------------------------------------------------------------------------


def _image(trace: Trace, level: int) -> memoryview:
    """The bytes of the HDF5 file.

    HDF5 leaves each new dataset a header of 256 bytes, mostly empty, and packs it only when it copies the dataset: so that is done.
    """
    draft, buffer = io.BytesIO(), io.BytesIO()
    with _new_file(draft) as source:
        _put(source.id, PROVENANCE, np.frombuffer(provenance_text(trace), np.uint8), level)
        for name, table in trace.tables().items():
            if len(table):
                _put_table(h5py.h5g.create(source.id, name.encode(), gcpl=_without_times(h5py.h5p.GROUP_CREATE)), table, trace, level)
        with _new_file(buffer) as file:
            file.attrs["format"] = np.bytes_(FORMAT)
            file.attrs["version"] = np.int32(VERSION)
            for name in source:
                h5py.h5o.copy(source.id, name.encode(), file.id, name.encode())
    return buffer.getbuffer()


def _new_file(buffer: io.BytesIO) -> h5py.File:
    """An HDF5 file in memory. It holds no time of creation, so that the same trace always makes the same bytes."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, buffer)
    return h5py.File(h5py.h5f.create(b"trace", h5py.h5f.ACC_TRUNC, _without_times(h5py.h5p.FILE_CREATE), access))


def _without_times(kind: Any) -> Any:
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def _put_table(group: Any, table: Table, trace: Trace, level: int) -> None:
    """Write the columns of one table."""
    stored = encode(type(table), {key: getattr(table, key) for key in table.columns()})
    blocks = by_execution(trace.structures, trace.steps, len(table)) if isinstance(table, StepTimes) else None
    for key, column in stored_columns(type(table)).items():
        values = narrowest(stored.pop(key))
        if blocks is not None:
            given, values = values, np.empty_like(values)
            for block in blocks:
                block.store(given, values)
        _describe(_put(group, key, values, level), column)


def _put(group: Any, name: str, values: Array, level: int) -> Any:
    """Write one dataset; returns it."""
    layout = _without_times(h5py.h5p.DATASET_CREATE)
    if values.nbytes <= COMPACT_BYTES:
        layout.set_layout(h5py.h5d.COMPACT)
    else:
        layout.set_chunk((min(len(values), CHUNK_ROWS),))
        layout.set_shuffle()
        layout.set_deflate(level)
    kind = h5py.h5t.py_create(values.dtype.newbyteorder("<"))
    dataset = h5py.h5d.create(group, name.encode(), kind, h5py.h5s.create_simple(values.shape), layout)
    if len(values):
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
    return dataset


def _describe(dataset: Any, column: StoredColumn) -> None:
    """Unit and stored difference, as attributes of fixed length, for whoever opens the file with other tools."""
    texts = {"unit": column.spec.unit, "stored": column.difference.formula(column.key) if column.difference else ""}
    for name, text in texts.items():
        if text:
            value = np.array(text.encode(), f"S{len(text)}")
            attribute = h5py.h5a.create(dataset, name.encode(), h5py.h5t.py_create(value.dtype), h5py.h5s.create(h5py.h5s.SCALAR))
            attribute.write(value)


def _decoded_bytes(trace: Trace) -> int:
    columns = (getattr(table, key) for table in trace.tables().values() for key in table.columns())
    return len(provenance_text(trace)) + sum(int(values.nbytes) for values in columns)


# --- reading ------------------------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """The open file of a trace, looked at but not read. It stays open as long as something refers to this."""

    path: Path
    reader: Reader
    file: Any
    found: dict[str, Dataset]

    @classmethod
    def open(cls, path: Path, opened: Path | BinaryIO, size: int) -> Source:
        """Look at everything that the file declares; `opened` is its name, or the file itself.

        Raises:
            TraceFileError: it is foreign, too new or damaged.
        """
        with _damage(path), _closed_on_failure(_opened(opened)) as file:
            root = file.id
            check_marker(h5py.h5g.open(root, b"/"), path)
            reader = Reader(path, size)
            found = {PROVENANCE: reader.dataset(root, PROVENANCE)}
            for table in TABLES:
                group = reader.group(root, table.name)
                if group is not None:
                    found |= {c.path: reader.dataset(group, c.key, c) for c in stored_columns(table).values()}
                    reader.check_rows(table, found)
            return cls(path, reader, file, found)

    def rows(self, table: type[Table]) -> int:
        """How many rows a table declares."""
        first = next(iter(stored_columns(table).values()))
        return self.found[first.path].rows - int(first.spec.is_offsets) if first.path in self.found else 0

    def provenance(self) -> bytes:
        """The provenance as the file holds it."""
        with _damage(self.path):
            return self.reader.values(self.found[PROVENANCE]).tobytes()

    def columns(self, table: type[Table], keys: Iterable[str], blocks: Sequence[Block] | None) -> dict[str, Array]:
        """Some columns of a table, which must be all that are stored as differences of each other; `blocks` are of `step_times`.

        Raises:
            TraceFileError: they are damaged.
            TraceError: values do not fit their columns, or each other.
        """
        columns = stored_columns(table)
        with _damage(self.path):
            stored = {key: self.reader.values(self.found[columns[key].path]) for key in keys}
        if blocks is not None:
            stored = {key: _restored(values, blocks) for key, values in stored.items()}
        return {key: fit(columns[key], values) for key, values in decode(table, stored).items()}


def _table(table: type[Table], source: Source, before: dict[str, Table]) -> Table:
    """One table; `before` holds those that stand before it in a file."""
    if not any(c.path in source.found for c in stored_columns(table).values()):
        return table.empty()
    structures, steps, blocks = before.get(Structures.name), before.get(Steps.name), None
    if table is StepTimes and isinstance(structures, Structures) and isinstance(steps, Steps):
        blocks = by_execution(structures, steps, source.rows(table))
    return table(**source.columns(table, stored_columns(table), blocks))


class _OnDemand:
    """Makes the tables of a trace in `source`, whose columns are read, and checked, when they are first asked for."""

    def __init__(self, source: Source, trace: Trace) -> None:
        self.source, self.trace = source, trace

    def tables(self) -> dict[str, Table]:
        """All of them."""
        rows = {table: self.source.rows(table) for table in TABLES}
        return {table.name: table.deferred(count, self.read) if count else table.empty() for table, count in rows.items()}

    def read(self, table: Table, key: str) -> None:
        """Put a column of `table` in place, and those that it is stored as a difference of.

        Raises:
            TraceFileError: it is damaged, contradicts another, or is too large for this machine.
        """
        columns = stored_columns(type(table))
        together = [k for k, c in columns.items() if c.difference is not None] if columns[key].difference else [key]
        try:
            blocks = by_execution(self.trace.structures, self.trace.steps, len(table)) if isinstance(table, StepTimes) else None
            table.put(self.source.columns(type(table), together, blocks), lambda k: self._check(table, k))
        except TraceError as error:
            raise TraceFileError(f"{self.source.path}: {error}") from None
        except MemoryError:
            raise TraceFileError(f"{self.source.path} needs more memory than there is; use a larger machine") from None

    def _check(self, table: Table, key: str) -> None:
        self.trace.check_column(table.name, key)
        if key == "attributes":
            check_attributes(self.trace, table.name)
        columns = stored_columns(type(table))
        if columns[key].spec.is_offsets:
            self._check_end(int(getattr(table, key)[-1]), [c for c in columns.values() if c.spec.ragged == columns[key].spec.ragged])

    def _check_end(self, end: int, columns: Iterable[StoredColumn]) -> None:
        """Offsets end where the values that they are of end: told from what the file declares, without reading the values."""
        for column in columns:
            held = self.source.found[column.path].rows
            if not column.spec.is_offsets and held != end:
                raise TraceError(f"trace is damaged: {column.table}.{column.key}: has {held} values, its offsets say {end}")


def _restored(stored: Array, blocks: Sequence[Block]) -> Array:
    result = np.empty_like(stored)
    for block in blocks:
        block.restore(stored, result)
    return result


def _check_seal(file: BinaryIO, path: Path, with_content: bool = True) -> int:
    """The file's size, after comparing it, and its bytes `with_content`, with the size and CRC-32 at its end, if it has them."""
    head = file.read(len(SIGNATURE))
    if head != SIGNATURE:
        what = "is empty" if not head else "is not an HDF5 file"
        raise TraceFileError(f"{path} {what}, so it is no trace; `fathom-trace capture` writes traces as .h5 or .pb")
    size = file.seek(0, io.SEEK_END)
    if size < _SEAL.size:
        return size
    file.seek(size - _SEAL.size)
    magic, sealed, checksum = _SEAL.unpack(file.read(_SEAL.size))
    if magic != SEAL_MAGIC:
        return size
    if not with_content:
        if sealed != size - _SEAL.size:
            raise TraceFileError(f"{path} is damaged: its size does not match its seal; use a copy, or capture again")
        return size
    file.seek(0)
    left, found = size - _SEAL.size, 0
    while left and (block := file.read(min(left, _BLOCK_BYTES))):
        found = zlib.crc32(block, found)
        left -= len(block)
    if sealed != size - _SEAL.size or found != checksum:
        raise TraceFileError(f"{path} is damaged: its content does not match its checksum; use a copy, or capture again")
    return size


def _opened(file: Path | BinaryIO) -> h5py.File:
    return h5py.File(file, "r", locking=False) if isinstance(file, Path) else h5py.File(file, "r")


@contextmanager
def _closed_on_failure(file: Any) -> Iterator[Any]:
    """An open file that is closed when the block fails, and stays open when it does not."""
    try:
        yield file
    except BaseException:
        file.close()
        raise


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Whatever HDF5, zlib and numpy raise over damaged bytes, as one kind of error."""
    try:
        yield
    except _DAMAGE as error:
        raise TraceFileError(f"{path} is damaged or cut short ({one_line(error)}); use a copy, or capture again") from None
