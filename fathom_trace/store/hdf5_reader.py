"""Reads datasets from an HDF5 file that may be damaged or hostile: looks at everything it declares, adds it up, and only then reads.

Only the objects that a trace has are opened, never listed; links and storage that lead out of the file are refused. HDF5's own filters
are not used, because its decompression lets a chunk grow beyond what it declares.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np

from fathom_trace.errors import TraceFileError
from fathom_trace.store.columns import FORMAT, VERSION, StoredColumn, stored_columns
from fathom_trace.store.compact import AFTER, CODES, LONGEST_NS, PERIOD, PERIOD_BITS, SHORTEST_NS
from fathom_trace.tables import Array, StepTimes, Table

COMPACT_VERSION = VERSION + 1
"""Of files that store the times of `step_times` as `compact` does; all others are of the version of the columns."""

CHUNK_LIMIT_BYTES = 64 << 20

DEFLATE_RATIO = 1032
"""No deflate stream holds more than 1032 times its own size."""

DECODED_FREE_BYTES = 1 << 30
DECODED_RATIO = 256
"""A file may decode to 1 GiB, or to 256 times its size where that is more."""


@dataclass(frozen=True)
class Dataset:
    """A dataset that passed all checks of what it declares."""

    id: Any
    rows: int
    dtype: np.dtype[Any]
    chunk_rows: int
    filters: tuple[int, ...]


@dataclass
class Reader:
    """Looks at what a file declares, adds it up, and only then reads."""

    path: Path
    size_bytes: int
    stored_bytes: int = field(default=0, init=False)
    decoded_bytes: int = field(default=0, init=False)

    def group(self, root: Any, name: str) -> Any | None:
        """The group of a table; None where the table has no rows and therefore no group."""
        opened = self._open(root, name)
        if opened is not None and not isinstance(opened, h5py.h5g.GroupID):
            self._refuse(name, "is not a group")
        return opened

    def compact_times(self, group: Any, found: dict[str, Dataset]) -> int:
        """Look at what belongs to times stored compactly and put it in `found`; returns the period of the clock, 0 for none."""
        if not group.links.exists(AFTER.encode()):
            return 0
        period = _attribute(group, PERIOD.encode(), h5py.h5t.INTEGER) or 0
        if period and not SHORTEST_NS << PERIOD_BITS <= period <= LONGEST_NS << PERIOD_BITS:
            self._refuse(StepTimes.name, f"declares a clock with a period of {period / (1 << PERIOD_BITS):g} ns")
        rows = found[f"{StepTimes.name}/start"].rows
        for name in (AFTER, CODES) if period else (AFTER,):
            found[name] = self.dataset(group, name)
            self.decoded_bytes += 7 * found[name].rows
            if found[name].rows != rows:
                self._refuse(StepTimes.name, f"has columns of {found[name].rows} and of {rows} rows")
        return int(period)

    def dataset(self, group: Any, name: str, column: StoredColumn | None = None) -> Dataset:
        """One column, checked but not read."""
        label = column.path if column else name
        opened = self._open(group, name)
        if opened is None:
            self._refuse(label, "is missing")
        if not isinstance(opened, h5py.h5d.DatasetID):
            self._refuse(label, "is not a dataset")
        kind, layout = opened.get_type(), opened.get_create_plist()
        if kind.get_class() != h5py.h5t.INTEGER or kind.get_size() not in (1, 2, 4, 8) or kind.get_precision() != 8 * kind.get_size():
            self._refuse(label, "does not hold integers")
        if opened.rank != 1:
            self._refuse(label, f"has {opened.rank} dimensions; a column has one")
        rows = int(opened.shape[0])
        stored, item = int(opened.get_storage_size()), int(kind.get_size())
        chunk_rows, filters = self._layout(label, layout, item)
        ratio = DEFLATE_RATIO if h5py.h5z.FILTER_DEFLATE in filters else 1
        if rows * item > stored * ratio:
            self._refuse(label, f"declares {rows} values, which {stored} stored bytes cannot hold")
        self.stored_bytes += stored
        self.decoded_bytes += rows * max(item, np.dtype(column.spec.dtype).itemsize if column else 1)
        if self.stored_bytes > self.size_bytes:
            self._refuse(label, "overlaps other columns: together they are larger than the file")
        if self.decoded_bytes > max(DECODED_FREE_BYTES, DECODED_RATIO * self.size_bytes):
            self._refuse(label, f"declares {self.decoded_bytes} bytes in a file of {self.size_bytes}")
        return Dataset(opened, rows, kind.dtype, chunk_rows, filters)

    def check_rows(self, table: type[Table], found: dict[str, Dataset]) -> None:
        """All columns of a table declare equally many rows; ragged values are compared with their offsets later, by the table."""
        rows = {
            found[c.path].rows - int(c.spec.is_offsets)
            for c in stored_columns(table).values()
            if c.spec.is_offsets or not c.spec.ragged
        }
        if min(rows) < 0:
            self._refuse(table.name, "has offsets without a value; there is one more than rows")
        if len(rows) > 1:
            self._refuse(table.name, f"has columns of {min(rows)} and of {max(rows)} rows")

    def values(self, dataset: Dataset) -> Array:
        """The numbers in a dataset."""
        result = np.empty(dataset.rows, dataset.dtype)
        if not dataset.chunk_rows:
            if dataset.rows:
                dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, result)
            return result
        for begin in range(0, dataset.rows, dataset.chunk_rows):
            part = result[begin : begin + dataset.chunk_rows]
            part[:] = self._chunk(dataset, begin)[: len(part)]
        return result

    def _chunk(self, dataset: Dataset, begin: int) -> Array:
        """One chunk. Decompressed here, not by HDF5, which would let a chunk grow beyond what it declares."""
        if dataset.id.get_chunk_info_by_coord((begin,)).size > self.size_bytes:
            raise ValueError("a chunk is larger than the file")
        skipped, raw = dataset.id.read_direct_chunk((begin,))
        expected = dataset.chunk_rows * dataset.dtype.itemsize
        for number in reversed(range(len(dataset.filters))):
            if skipped >> number & 1:
                continue
            if dataset.filters[number] == h5py.h5z.FILTER_DEFLATE:
                raw = _inflated(raw, expected)
            elif len(raw) == expected:
                raw = np.frombuffer(raw, np.uint8).reshape(dataset.dtype.itemsize, -1).T.tobytes()
        if len(raw) != expected:
            raise ValueError(f"a chunk holds {len(raw)} bytes where it declares {expected}")
        return np.frombuffer(raw, dataset.dtype)

    def _layout(self, label: str, layout: Any, item: int) -> tuple[int, tuple[int, ...]]:
        """Rows of a chunk (0: not chunked) and the filters."""
        kind = layout.get_layout()
        if kind in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS) and not layout.get_external_count():
            return 0, ()
        if kind != h5py.h5d.CHUNKED:
            self._refuse(label, "lies outside the file (external or virtual storage), which is not followed")
        (chunk_rows,) = layout.get_chunk()
        if chunk_rows * item > CHUNK_LIMIT_BYTES:
            self._refuse(label, f"has chunks of {chunk_rows * item} bytes; the limit is {CHUNK_LIMIT_BYTES}")
        filters = tuple(layout.get_filter(i)[0] for i in range(layout.get_nfilters()))
        if filters not in ((), (h5py.h5z.FILTER_DEFLATE,), (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE)):
            self._refuse(label, f"passes through HDF5 filters {filters}; shuffle and gzip are read")
        return chunk_rows, filters

    def _open(self, group: Any, name: str) -> Any | None:
        key = name.encode()
        if not group.links.exists(key):
            return None
        if group.links.get_info(key).type != h5py.h5l.TYPE_HARD:
            self._refuse(name, "is a soft or external link, which is not followed")
        return h5py.h5o.open(group, key)

    def _refuse(self, what: str, problem: str) -> NoReturn:
        raise TraceFileError(f"{self.path} is damaged or not a trace: {what} {problem}")


def _inflated(packed: bytes, expected: int) -> bytes:
    """What a deflate stream holds, which must end within `expected` bytes and with its checksum."""
    inflater = zlib.decompressobj()
    result = inflater.decompress(packed, expected)
    if not inflater.eof and inflater.decompress(inflater.unconsumed_tail, 1):
        raise ValueError("a chunk holds more than it declares")
    if not inflater.eof:
        raise ValueError("a chunk ends too early")
    return result


def check_marker(root: Any, path: Path) -> int:
    """The version of the file, which says that it is a trace, of a version that this release reads."""
    if _attribute(root, b"format", h5py.h5t.STRING) != FORMAT.encode():
        raise TraceFileError(f"{path} is an HDF5 file but no trace (it lacks the mark of one); `fathom-trace capture` writes traces")
    version = _attribute(root, b"version", h5py.h5t.INTEGER)
    if version is None or version < 1:
        raise TraceFileError(f"{path} is damaged: it does not tell its format version")
    if version > COMPACT_VERSION:
        raise TraceFileError(f"{path} is trace format {version}; this release reads up to {COMPACT_VERSION}")
    return int(version)


def _attribute(root: Any, name: bytes, kind: int) -> Any | None:
    """A scalar attribute of the given HDF5 class and fixed size, or None."""
    if not h5py.h5a.exists(root, name):
        return None
    attribute = h5py.h5a.open(root, name)
    stored = attribute.get_type()
    if (
        attribute.shape != ()
        or stored.get_class() != kind
        or stored.get_size() > 64
        or (kind == h5py.h5t.STRING and stored.is_variable_str())
    ):
        return None
    value = np.empty((), attribute.dtype)
    attribute.read(value)
    return value.item()
