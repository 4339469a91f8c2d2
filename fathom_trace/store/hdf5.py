"""Traces as HDF5 files (`.h5`): one dataset a column, readable by any HDF5 library from 1.10 on. Layout: `schemas/trace_hdf5.md`.

HDF5 makes the file beside its place, in memory or in a temporary file, so nothing of its own caching and locking can leave half a file.
After the end of the HDF5 data stand 28 bytes with the size and CRC-32 of all before: accidental damage is found before the HDF5 library
sees a byte of it. HDF5 ignores these bytes, and drops them when it changes the file; a file without them is read too. The reader opens no
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
from fathom_trace.store import compact
from fathom_trace.store.columns import (
    PROVENANCE,
    Block,
    StoredColumn,
    assemble,
    by_execution,
    check_attributes,
    decode_away,
    fit,
    provenance_text,
    read_provenance,
    stored_columns,
    wrapped,
)
from fathom_trace.store.files import reading, replacing
from fathom_trace.store.hdf5_reader import COMPACT_VERSION, DECODED_FREE_BYTES, DECODED_RATIO, Dataset, Reader, check_marker
from fathom_trace.store.hdf5_writer import written
from fathom_trace.tables import TABLES, Array, Steps, StepTimes, Structures, Table
from fathom_trace.trace import Trace

SIGNATURE = b"\x89HDF\r\n\x1a\n"

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
        for is_compressed in (True, False):
            with written(trace, Path(os.path.realpath(path)).parent, is_compressed) as image:
                size = image.seek(0, io.SEEK_END)
                is_readable = decoded_bytes(trace) <= max(DECODED_FREE_BYTES, DECODED_RATIO * size)
                if is_readable or not is_compressed:
                    _copy_sealed(image, file)
                    return


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


def _copy_sealed(image: BinaryIO, file: BinaryIO) -> None:
    """Copy a file of HDF5 and put the seal behind it."""
    image.seek(0)
    size = checksum = 0
    while block := image.read(_BLOCK_BYTES):
        file.write(block)
        size, checksum = size + len(block), zlib.crc32(block, checksum)
    file.write(_SEAL.pack(SEAL_MAGIC, size, checksum))


def decoded_bytes(trace: Trace) -> int:
    """What the columns and the provenance take once they are read."""
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
    period: int
    """Of the clock, where the times are stored compactly."""

    @classmethod
    def open(cls, path: Path, opened: Path | BinaryIO, size: int) -> Source:
        """Look at everything that the file declares; `opened` is its name, or the file itself.

        Raises:
            TraceFileError: it is foreign, too new or damaged.
        """
        with _damage(path), _closed_on_failure(_opened(opened)) as file:
            root = file.id
            version = check_marker(h5py.h5g.open(root, b"/"), path)
            reader = Reader(path, size)
            found = {PROVENANCE: reader.dataset(root, PROVENANCE)}
            period = 0
            for table in TABLES:
                group = reader.group(root, table.name)
                if group is not None:
                    found |= {c.path: reader.dataset(group, c.key, c) for c in stored_columns(table).values()}
                    reader.check_rows(table, found)
                    if table is StepTimes and version >= COMPACT_VERSION:
                        period = reader.compact_times(group, found)
            return cls(path, reader, file, found, period)

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
        if table is StepTimes and compact.AFTER in self.found and compact.KEYS[0] in (wanted := list(keys)):
            others = [key for key in wanted if key not in compact.KEYS]
            return self._compact_times(blocks or ()) | (self.columns(table, others, blocks) if others else {})
        with _damage(self.path):
            stored = {key: self._values(columns[key].path, blocks) for key in keys}
        return decode_away(table, stored)

    def difference_to(self, column: StoredColumn, other: Array, blocks: Sequence[Block] | None) -> Array:
        """A column that is stored as a difference to `other`, which is known.

        Raises:
            TraceFileError: it is damaged.
            TraceError: values do not fit it.
        """
        with _damage(self.path):
            values = wrapped(self._values(column.path, blocks))
        if len(values) != len(other):
            raise TraceError(f"trace is damaged: {column.table}: its times have different lengths")
        if column.difference is not None and column.difference.row_before:
            values[1:] += other[:-1]
        else:
            values += other
        return fit(column, values)

    def _compact_times(self, blocks: Sequence[Block]) -> dict[str, Array]:
        """The four times of a file that stores them compactly."""
        columns = stored_columns(StepTimes)
        with _damage(self.path):
            times = {key: wrapped(self._values(columns[key].path, blocks)) for key in compact.KEYS}
            after = wrapped(self._values(compact.AFTER, blocks))
            codes = self._values(compact.CODES, blocks).astype(np.uint8) if self.period else np.zeros(0, np.uint8)
        stored = compact.Compact(times, after, codes, self.period)
        return {key: fit(columns[key], values) for key, values in compact.expand(stored).items()}

    def _values(self, name: str, blocks: Sequence[Block] | None) -> Array:
        """The numbers of a dataset, in the order of the column."""
        values = self.reader.values(self.found[name])
        return values if blocks is None else _restored(values, blocks)


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
        try:
            blocks = by_execution(self.trace.structures, self.trace.steps, len(table)) if isinstance(table, StepTimes) else None
            table.put(self._found(table, key, blocks), lambda k: self._check(table, k))
        except TraceError as error:
            raise TraceFileError(f"{self.source.path}: {error}") from None
        except MemoryError:
            raise TraceFileError(f"{self.source.path} needs more memory than there is; use a larger machine") from None

    def _found(self, table: Table, key: str, blocks: Sequence[Block] | None) -> dict[str, Array]:
        """The column `key`, and others that had to be read with it."""
        column = stored_columns(type(table))[key]
        other = column.difference.other if column.difference else ""
        if other and other != key and other in vars(table) and not self._is_compact(type(table), key):
            return {key: self.source.difference_to(column, vars(table)[other], blocks)}
        return self.source.columns(type(table), self._together(type(table), key), blocks)

    def _is_compact(self, table: type[Table], key: str) -> bool:
        return table is StepTimes and key in compact.KEYS and compact.AFTER in self.source.found

    def _together(self, table: type[Table], key: str) -> list[str]:
        """The columns that are read with `key`: those that it is a difference of, in turn, and of compact times all four."""
        columns = stored_columns(table)
        if self._is_compact(table, key):
            return list(compact.KEYS)
        found = [key]
        for each in found:
            difference = columns[each].difference
            if difference is not None and difference.other not in found:
                found.append(difference.other)
        return [k for k in columns if k in found]

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
