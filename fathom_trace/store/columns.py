"""The columns as files hold them: `tables.TABLES` flattened, with what is stored in place of a column's own values.

Both formats store the same numbers under the same names. Most columns are stored as they are. Times are stored as differences that
take one or two bytes: an execution is scheduled, and starts, close to the moment at which the row before it was done, and what it
does is short; so are the steps from start to end and from end to done. (On real traces that takes an eighth less than differences of one
scheduled time to the next.) Differences wrap around at 2^64, so any four int64 values survive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import TraceError
from fathom_trace.tables import TABLES, Array, Column, Steps, Structures, Table
from fathom_trace.trace import SCHEMA_VERSION, Trace

FORMAT = "fathom-trace"
VERSION = SCHEMA_VERSION

PROVENANCE = "provenance"


@dataclass(frozen=True)
class Difference:
    """A column is stored as its value less that of the column `other`: in the row before (0 before the first row), or the same row."""

    other: str
    row_before: bool

    def formula(self, key: str) -> str:
        """What is stored, as text: `start[i] - done[i-1]`."""
        return f"{key}[i] - {self.other}[{'i-1' if self.row_before else 'i'}]"


DIFFERENCES: Mapping[tuple[str, str], Difference] = {
    ("structures", "execution"): Difference("execution", row_before=True),
    ("step_times", "scheduled"): Difference("done", row_before=True),
    ("step_times", "start"): Difference("done", row_before=True),
    ("step_times", "end"): Difference("start", row_before=False),
    ("step_times", "done"): Difference("end", row_before=False),
    ("device_spans", "start"): Difference("start", row_before=True),
    ("device_spans", "end"): Difference("start", row_before=False),
    ("allocations", "time"): Difference("time", row_before=True),
}


@dataclass(frozen=True)
class StoredColumn:
    """One column of one table, as a file holds it."""

    table: str
    key: str
    spec: Column
    difference: Difference | None

    @property
    def path(self) -> str:
        """Its name in a file: `nodes/op`."""
        return f"{self.table}/{self.key}"

    @property
    def is_text(self) -> bool:
        """True for the raw bytes of names and values, which protobuf has a type for."""
        return self.spec.dtype == "uint8" and bool(self.spec.ragged)

    @property
    def proto_name(self) -> str:
        """Its field in the protobuf schema: offsets are stored as counts."""
        return f"{self.key.removesuffix('offsets')}counts" if self.spec.is_offsets else self.key

    @property
    def proto_type(self) -> str:
        """Its type in the protobuf schema: zigzag where a value may be negative."""
        spec = self.spec
        if self.is_text or spec.dtype == "bool":
            return "bytes" if self.is_text else "bool"
        if self.difference is not None:
            return "sint64"
        signed = not spec.dtype.startswith("u") and not spec.is_offsets and (spec.optional or not spec.refers)
        return f"{'sint' if signed else 'uint'}{64 if spec.dtype in ('int64', 'uint64') else 32}"


def stored_columns(table: type[Table]) -> dict[str, StoredColumn]:
    """The columns of one table by key, in the order in which files hold them."""
    return {key: StoredColumn(table.name, key, spec, DIFFERENCES.get((table.name, key))) for key, spec in table.columns().items()}


COLUMNS: tuple[StoredColumn, ...] = tuple(column for table in TABLES for column in stored_columns(table).values())


def encode(table: type[Table], values: Mapping[str, Array]) -> dict[str, Array]:
    """What is stored for these columns of `table`: differences as int64, everything else as it is.

    `values` may be a part of the table; the first row's differences then count from 0 again.
    """
    result = dict(values)
    for key, column in stored_columns(table).items():
        if column.difference is not None and key in values:
            result[key] = values[key].astype(np.int64) - _base(column.difference, values)
    return result


def decode(table: type[Table], stored: Mapping[str, Array]) -> dict[str, Array]:
    """The columns that `encode` made `stored` from, in their own dtypes.

    Raises:
        TraceError: a value does not fit its column, or columns of one row have different lengths.
    """
    return decode_away(table, dict(stored))


def decode_away(table: type[Table], stored: dict[str, Array]) -> dict[str, Array]:
    """As `decode`, but takes what it has decoded out of `stored`, so that a large table need not be in memory twice."""
    columns = stored_columns(table)
    differences = {key: c.difference for key, c in columns.items() if c.difference is not None and key in stored}
    if len({len(stored[key]) for key in differences}) > 1:
        raise TraceError(f"trace is damaged: {table.name}: its times have different lengths")
    result: dict[str, Array] = {}
    for key in differences:
        chain = [key]
        while not differences[chain[-1]].row_before:
            chain.append(differences[chain[-1]].other)
        if differences[chain[-1]].other == key:  # what is stored of these adds up to its growth from row to row
            total = wrapped(stored[key])
            for other in chain[1:]:
                total += wrapped(stored[other])
            del stored[key]
            result[key] = np.cumsum(total, out=total)
    for key, difference in differences.items():
        if difference.row_before and difference.other != key:
            values = wrapped(stored.pop(key))
            values[1:] += result[difference.other][:-1]
            result[key] = values
    for key, difference in differences.items():
        if not difference.row_before and key not in result:
            values = wrapped(stored.pop(key))
            values += result[difference.other]
            result[key] = values
    for key in [*stored]:
        result[key] = stored.pop(key)
    return {key: fit(columns[key], result.pop(key)) for key in columns if key in result}


def fit(column: StoredColumn, values: Array) -> Array:
    """`values` in the column's dtype.

    Raises:
        TraceError: a value does not fit.
    """
    dtype = np.dtype(column.spec.dtype)
    if len(values) and values.dtype != dtype:
        low, high = (0, 1) if dtype == np.bool_ else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        if int(values.min()) < low or int(values.max()) > high:
            raise TraceError(f"trace is damaged: {column.table}.{column.key}: holds a value that is no {dtype}")
    return values.astype(dtype, copy=False)


@dataclass(frozen=True)
class Block:
    """Rows of `step_times` that files hold together: those of one structure's executions in all steps that ran it.

    In a file they are the rows from `stored` on, `executions` x steps, execution by execution; in the column step by step, each step's
    from one of `begins` on.
    """

    stored: int
    executions: int
    begins: tuple[int, ...]

    def _are_consecutive(self) -> bool:
        return all(b - a == self.executions for a, b in pairwise(self.begins))

    def rows(self, begin: int, end: int) -> NDArray[np.int64]:
        """The rows of the column that the file has from its row `begin` to `end` (excluded), as far as they are of this block."""
        steps = len(self.begins)
        first, last = max(begin - self.stored, 0), min(end - self.stored, self.executions * steps)
        if first >= last:
            return np.zeros(0, np.int64)
        executions = np.arange(first // steps, (last - 1) // steps + 1)
        around = (np.array(self.begins, np.int64) + executions[:, None]).reshape(-1)
        return around[first - first // steps * steps :][: last - first]

    def store(self, column: Array, stored: Array) -> None:
        """Copy the block's rows from a column to where the file has them."""
        there = stored[self.stored : self.stored + self.executions * len(self.begins)].reshape(self.executions, -1)
        if self._are_consecutive():
            there[:] = column[self.begins[0] : self.begins[-1] + self.executions].reshape(-1, self.executions).T
            return
        for k, begin in enumerate(self.begins):
            there[:, k] = column[begin : begin + self.executions]

    def restore(self, stored: Array, column: Array) -> None:
        """Copy the block's rows from where the file has them to the column."""
        there = stored[self.stored : self.stored + self.executions * len(self.begins)].reshape(self.executions, -1)
        if self._are_consecutive():
            column[self.begins[0] : self.begins[-1] + self.executions].reshape(-1, self.executions)[:] = there.T
            return
        for k, begin in enumerate(self.begins):
            column[begin : begin + self.executions] = there[:, k]


def by_execution(structures: Structures, steps: Steps, rows: int) -> list[Block]:
    """How files hold the `rows` rows of `step_times`: execution by execution, the first of every step that ran it, then the second, ...

    Times of one execution resemble each other from step to step, so in this order they deflate better: a training step of VGG by 7%.

    Raises:
        TraceError: the steps ran something that does not exist, or not as many executions as there are rows.
    """
    ran = steps.structure[steps.structure >= 0].astype(np.int64)
    if len(ran) and int(ran.max()) >= len(structures):
        raise TraceError("trace is damaged: steps.structure: points outside structures")
    lengths = np.diff(structures.execution_offsets)[ran]
    if int(lengths.sum()) != rows:
        raise TraceError(f"trace is damaged: step_times has {rows} rows where its steps have {int(lengths.sum())} executions")
    begins = np.cumsum(lengths) - lengths
    order = np.argsort(ran, kind="stable")
    blocks: list[Block] = []
    stored = 0
    for members in np.split(order, np.flatnonzero(np.diff(ran[order])) + 1) if len(ran) else ():
        executions = int(lengths[members[0]])
        if executions:
            blocks.append(Block(stored, executions, tuple(begins[members].tolist())))
            stored += executions * len(members)
    return blocks


def narrowest(values: Array) -> Array:
    """`values` in the smallest integer dtype that holds them all: unsigned where none is negative."""
    if values.dtype == np.bool_:
        return values.view(np.uint8)
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return values.astype(smallest_dtype(low, high), copy=False)


def smallest_dtype(low: int, high: int) -> np.dtype[Any]:
    """The smallest integer dtype for values from `low` to `high`: unsigned where none is negative."""
    for letter in "1248":
        info = np.iinfo(f"{'i' if low < 0 else 'u'}{letter}")
        if info.min <= low and high <= info.max:
            break
    return info.dtype


def provenance_text(trace: Trace) -> bytes:
    """The provenance as files hold it: JSON in ASCII."""
    return json.dumps(dict(trace.provenance), allow_nan=False, separators=(",", ":")).encode("ascii")


def assemble(tables: Iterable[Table], provenance: bytes) -> Trace:
    """The `Trace` made of what a file held.

    Raises:
        TraceError: the parts contradict each other, or a text is not what it should be.
    """
    named: dict[str, Any] = {table.name: table for table in tables}
    trace = Trace(**named, provenance=read_provenance(provenance))
    check_texts(trace)
    return trace


def read_provenance(text: bytes) -> dict[str, Any]:
    """The provenance that `provenance_text` made.

    Raises:
        TraceError: it is no JSON object.
    """
    return _json_object(text, PROVENANCE)


def check_texts(trace: Trace) -> None:
    """What `Trace` itself takes on trust until it is asked: names are UTF-8, attributes are JSON objects. True of every stored trace.

    Raises:
        TraceError: a text is not.
    """
    for table in (trace.nodes, trace.source_nodes):
        check_attributes(trace, table.name)


def check_attributes(trace: Trace, table: str) -> None:
    """The attributes of `nodes` or `source_nodes` are JSON objects.

    Raises:
        TraceError: one is not.
    """
    texts = trace.strings.values
    for row in np.unique(trace.tables()[table].attributes).tolist():  # type: ignore[attr-defined]
        if texts[row]:
            _json_object(texts[row], f"{table}.attributes")


def _json_object(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"trace is damaged: {where} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise TraceError(f"trace is damaged: {where} is not a JSON object")
    return content


def _base(difference: Difference, values: Mapping[str, Array]) -> NDArray[np.int64]:
    other = values[difference.other].astype(np.int64, copy=False)
    return np.concatenate([np.zeros(min(1, len(other)), np.int64), other[:-1]]) if difference.row_before else other


def wrapped(values: Array) -> NDArray[np.int64]:
    """Stored differences as int64; a file may hold those above 2^63 as uint64."""
    return values.astype(np.uint64).view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
