"""What records show of their outputs: slots, dtypes and shapes, each different list of them once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fathom_trace.capture.ragged import offsets_of
from fathom_trace.wire_columns import padded, read_fields

Int64 = NDArray[np.int64]

_DTYPE_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64", 10: "bool",
    11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16", 18: "complex128",
    19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64",
    24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip

Output = tuple[int, str, tuple[int, ...]]
"""Slot, dtype name, shape."""


class _Numbers(dict[Any, int]):
    """A number for each different key that it is asked for, from 0 on."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Outputs(NamedTuple):
    """The outputs of some records, in order: the record of each, its slot, the number of its dtype, and its shape as a message."""

    record: Int64
    slot: Int64
    dtype: Int64
    shape: list[bytes]

    def of(self, chosen: NDArray[np.bool_]) -> Outputs:
        """Those of some of the records `[records]`, which are numbered anew."""
        if chosen.all():
            return self
        keep = chosen[self.record]
        number = np.cumsum(chosen) - 1
        return Outputs(number[self.record[keep]], self.slot[keep], self.dtype[keep], list(compress(self.shape, keep.tolist())))


@dataclass
class Signatures:
    """Distinct output lists of records, shared by all steps of a capture."""

    index: dict[tuple[Output, ...], int] = field(default_factory=dict)
    values: list[tuple[Output, ...]] = field(default_factory=list)
    _outputs: _Numbers = field(default_factory=_Numbers)
    """By slot, dtype and shape."""
    _lists: _Numbers = field(default_factory=lambda: _Numbers({None: 0}))
    """By the list without its last output, and that output; the empty list is 0."""
    _known: dict[int, int] = field(default_factory=dict)
    """Number of an output list by its number in `_lists`."""

    def of(self, outputs: tuple[Output, ...]) -> int:
        """Number of an output list."""
        found = self.index.get(outputs)
        if found is None:
            found = self.index[outputs] = len(self.values)
            self.values.append(outputs)
        return found

    def of_records(self, outputs: Outputs, records: int) -> NDArray[np.int32]:
        """Number of the output list of each of so many records. Shapes are compared as bytes and taken apart when they are new: few are."""
        number = np.array(
            list(map(self._outputs.__getitem__, zip(outputs.slot.tolist(), outputs.dtype.tolist(), outputs.shape, strict=True))),
            np.int64,
        )
        listed = np.zeros(records, np.int64)
        offsets = offsets_of(np.bincount(outputs.record, minlength=records))
        rank = np.arange(len(number)) - offsets[outputs.record]
        by_rank = np.argsort(rank, kind="stable")
        ends = np.cumsum(np.bincount(rank))
        for begin, end in zip([0, *ends[:-1]], ends, strict=False):
            rows = by_rank[begin:end]
            owner = outputs.record[rows]
            listed[owner] = list(map(self._lists.__getitem__, zip(listed[owner].tolist(), number[rows].tolist(), strict=True)))
        different, first, which = np.unique(listed, return_index=True, return_inverse=True)
        for place in np.argsort(first, kind="stable").tolist():
            if int(different[place]) not in self._known:
                begin, end = offsets[first[place]], offsets[first[place] + 1]
                self._known[int(different[place])] = self.of(
                    tuple(
                        (slot, dtype_name(dtype), _dims(shape))
                        for slot, dtype, shape in zip(
                            outputs.slot[begin:end].tolist(), outputs.dtype[begin:end].tolist(), outputs.shape[begin:end], strict=True
                        )
                    )
                )
        return np.array([self._known[each] for each in different.tolist()], np.int32)[which]


def dtype_name(number: int) -> str:
    """The numpy-like name of a TensorFlow `DataType` number (reference types as the type they refer to)."""
    return _DTYPE_NAMES.get(number % 100, f"dtype_{number}")


def _dims(shape: bytes) -> tuple[int, ...]:
    """The sizes in a serialised `TensorShapeProto`: its field 2 are messages, whose field 1 is a size."""
    data, dim, size = padded(shape), 2, 1
    found = read_fields(data, np.zeros(1, np.int64), np.array([len(shape)]), spans=(dim,)).spans[dim]
    return tuple(read_fields(data, found.begin, found.end, integers=(size,)).integers[size].tolist())
