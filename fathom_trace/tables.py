"""The tables of a `Trace`: every column with its dtype, unit, meaning and what it refers to. One row type a class.

This is the only place where columns are declared. `store/columns.py` flattens it into the files' columns and
`schemas/trace_hdf5.md` is generated from it. A table is a frozen dataclass of one-dimensional numpy arrays:

* a *plain* column has one value a row;
* a *ragged* column (CSR) has an offsets column of rows + 1 values that starts at 0, and value columns that share it: the values of
  row `i` are `values[offsets[i]:offsets[i + 1]]`.

A column that `refers` to a table holds row numbers of it; -1 means none where the column is `optional`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import TraceError

Array = NDArray[Any]
IntArray = NDArray[np.integer[Any]]

EXECUTION_OP, EXECUTION_COPY, EXECUTION_EXPANDED, EXECUTION_OUTSIDE = 0, 1, 2, 3
FRAME_LOOP, FRAME_BRANCH, FRAME_CALL = 0, 1, 2
FEED, FETCH = 0, 1
BUFFER_ALLOCATOR, BUFFER_VARIABLE, BUFFER_FEED, BUFFER_SYNTHETIC = 0, 1, 2, 3
SPAN_KERNEL, SPAN_COPY = 0, 1

EXECUTION_KINDS = ("op", "copy", "expanded", "outside")
FRAME_KINDS = ("loop", "branch", "call")
DIRECTIONS = ("feed", "fetch")
BUFFER_ORIGINS = ("allocator", "variable", "feed", "synthetic")
SPAN_KINDS = ("kernel", "copy")
ROLES = ("input", "label", "loss", "logits", "gradient_norm", "metric", "state")


@dataclass(frozen=True)
class Column:
    """What one column holds. `ragged` names its CSR group; `is_offsets` marks that group's offsets."""

    dtype: str
    doc: str
    unit: str = ""
    refers: str = ""
    optional: bool = False
    ragged: str = ""
    is_offsets: bool = False
    codes: tuple[str, ...] = ()
    is_time: bool = False


def column(dtype: str, doc: str, **more: Any) -> Any:
    """A dataclass field that carries its `Column`."""
    return field(metadata={"column": Column(dtype, doc, **more)})


def offsets(group: str) -> Any:
    """The offsets field of the ragged group `group`."""
    return column("int64", f"where each row's `{group}` values begin; rows + 1 values", ragged=group, is_offsets=True)


def _fail(where: str, what: str) -> None:
    raise TraceError(f"trace is damaged: {where}: {what}")


@dataclass(frozen=True, eq=False)
class Table:
    """Base of all tables: checks dtypes, lengths and offsets on construction; arrays become read-only.

    A `deferred` table reads a column, and checks it, when it is first asked for.
    """

    name: ClassVar[str] = ""
    row: ClassVar[str] = ""

    @classmethod
    @cache
    def columns(cls) -> dict[str, Column]:
        """Field name to `Column`, in declaration order."""
        return {f.name: f.metadata["column"] for f in fields(cls)}

    def __post_init__(self) -> None:
        rows: int | None = None
        for key, spec in self.columns().items():
            array = self._keep(key, getattr(self, key))
            if spec.ragged and not spec.is_offsets:
                continue
            length = len(array) - int(spec.is_offsets)
            if rows is None:
                rows = length
            elif rows != length:
                _fail(f"{self.name}.{key}", f"has {length} rows where the table has {rows}")

    @classmethod
    def deferred(cls, rows: int, read: Callable[[Self, str], None]) -> Self:
        """The table of `rows` rows whose columns are read when they are first asked for: `read(table, key)` is to `put` that one.

        Whatever `read` raises goes to who asked for the column.
        """
        made = object.__new__(cls)
        made.__dict__.update(_rows=rows, _read=read)
        return made

    if not TYPE_CHECKING:  # type checkers know the fields

        def __getattr__(self, key: str) -> Array:
            """A column of a deferred table that has not been read yet."""
            held = self.__dict__
            if "_read" not in held or key not in type(self).columns():
                raise AttributeError(f"'{type(self).__name__}' has no attribute '{key}'")
            held["_read"](self, key)
            return held[key]

    def put(self, found: Mapping[str, Array], check: Callable[[str], None]) -> None:
        """Put columns of a deferred table in place, if they are right in themselves and `check`, called with each one's name, passes.

        Raises:
            TraceError: one is not right; or what `check` raises. Then none is in place.
        """
        rows = len(self)
        try:
            for key, values in found.items():
                array, spec = self._keep(key, values), self.columns()[key]
                if (spec.is_offsets or not spec.ragged) and len(array) - int(spec.is_offsets) != rows:
                    _fail(f"{self.name}.{key}", f"has {len(array)} values where the table has {rows} rows")
            for key in found:
                check(key)
        except BaseException:
            for key in found:
                self.__dict__.pop(key, None)
            raise

    def _keep(self, key: str, given: Any) -> Array:
        """Make `given` the column `key`: in its dtype, read-only, and right in itself."""
        spec = self.columns()[key]
        array = np.asarray(given)
        if array.dtype != np.dtype(spec.dtype):
            array = array.astype(spec.dtype)
        if array.ndim != 1:
            _fail(f"{self.name}.{key}", f"is {array.ndim}-dimensional; a column has one dimension")
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        object.__setattr__(self, key, array)
        if spec.is_offsets:
            if len(array) == 0 or array[0] != 0 or np.any(array[1:] < array[:-1]):
                _fail(f"{self.name}.{key}", "offsets must begin at 0 and never fall")
        elif spec.ragged:
            expected = int(getattr(self, f"{spec.ragged}_offsets")[-1])
            if len(array) != expected:
                _fail(f"{self.name}.{key}", f"has {len(array)} values, its offsets say {expected}")
        if spec.codes and len(array) and (array.min() < 0 or array.max() >= len(spec.codes)):
            _fail(f"{self.name}.{key}", f"codes run from 0 to {len(spec.codes) - 1}")
        return array

    def __len__(self) -> int:
        deferred: int | None = self.__dict__.get("_rows")
        if deferred is not None:
            return deferred
        first = next(iter(self.columns().items()))
        return len(getattr(self, first[0])) - int(first[1].is_offsets)

    @classmethod
    def empty(cls) -> Self:
        """The table with no rows."""
        return cls(**{k: np.zeros(int(c.is_offsets), c.dtype) for k, c in cls.columns().items()})

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, Any]]) -> Self:
        """The table made of `rows`: per plain column a scalar, per ragged value column a sequence."""
        made: dict[str, Array] = {}
        for key, spec in cls.columns().items():
            if spec.is_offsets:
                value_key = next(k for k, c in cls.columns().items() if c.ragged == spec.ragged and not c.is_offsets)
                lengths = [len(r[value_key]) for r in rows]
                made[key] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
            elif spec.ragged:
                values: list[Any] = [v for r in rows for v in r[key]]
                made[key] = np.array(values, dtype=spec.dtype)
            else:
                made[key] = np.array([r[key] for r in rows], dtype=spec.dtype)
        return cls(**made)

    def row_values(self, group: str, row: int) -> slice:
        """The slice of the ragged group `group` that belongs to `row`."""
        bounds = getattr(self, f"{group}_offsets")
        return slice(int(bounds[row]), int(bounds[row + 1]))

    def equals(self, other: object) -> bool:
        """True when `other` is the same table with every value equal, bit for bit."""
        return type(other) is type(self) and all(np.array_equal(getattr(self, k), getattr(other, k)) for k in self.columns())


@dataclass(frozen=True, eq=False)
class Strings(Table):
    """Distinct names; row 0 is the empty string in traces that this package makes."""

    name = "strings"
    row = "distinct name"
    text_offsets: IntArray = offsets("text")
    text: Array = column("uint8", "the bytes of the names, one after the other", unit="UTF-8", ragged="text")

    @classmethod
    def of(cls, texts: Iterable[str]) -> Strings:
        """The table of `texts`, in order.

        Raises:
            TraceError: a text is not valid Unicode (a lone surrogate).
        """
        encoded: list[bytes] = []
        for text in texts:
            try:
                encoded.append(text.encode())
            except UnicodeEncodeError:
                raise TraceError(f"the name {text!r} is not valid Unicode, so it cannot be stored") from None
        bounds = np.concatenate([[0], np.cumsum([len(b) for b in encoded], dtype=np.int64)]).astype(np.int64)
        return cls(text_offsets=bounds, text=np.frombuffer(b"".join(encoded), np.uint8))

    @cached_property
    def values(self) -> tuple[str, ...]:
        """All names, decoded.

        Raises:
            TraceError: the bytes are not UTF-8.
        """
        raw, bounds = self.text.tobytes(), self.text_offsets.tolist()
        try:
            return tuple(raw[a:b].decode() for a, b in pairwise(bounds))
        except UnicodeDecodeError as error:
            raise TraceError(f"trace is damaged: strings.text is not UTF-8 ({error.reason})") from None

    def __getitem__(self, index: int) -> str:
        return self.values[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    @cached_property
    def index(self) -> dict[str, int]:
        """Name to row."""
        return {text: i for i, text in enumerate(self.values)}


@dataclass(frozen=True, eq=False)
class Shapes(Table):
    """Distinct concrete shapes. A scalar has no dimensions."""

    name = "shapes"
    row = "distinct shape"
    dims_offsets: IntArray = offsets("dims")
    dims: IntArray = column("int64", "dimensions, outermost first", unit="elements", ragged="dims")

    @cached_property
    def values(self) -> tuple[tuple[int, ...], ...]:
        """All shapes as tuples."""
        flat, bounds = self.dims.tolist(), self.dims_offsets.tolist()
        return tuple(tuple(flat[a:b]) for a, b in pairwise(bounds))

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return self.values[index]

    @cached_property
    def elements(self) -> NDArray[np.int64]:
        """Number of elements of each shape."""
        products = [int(np.prod(s, dtype=object)) if s else 1 for s in self.values]
        if any(p > np.iinfo(np.int64).max for p in products):
            _fail("shapes.dims", "a shape has more elements than an int64 counts")
        return np.array(products, np.int64)


@dataclass(frozen=True, eq=False)
class Nodes(Table):
    """The executed graph. Loops are cycles here (NextIteration to Merge); executions are acyclic."""

    name = "nodes"
    row = "node of the executed graph, run or not"
    node_name: IntArray = column("int32", "name, unique in the table", refers="strings")
    op: IntArray = column("int32", "op type as TensorFlow spells it", refers="strings")
    device: IntArray = column("int32", "device the node was placed on", refers="strings")
    attributes: IntArray = column(
        "int32", "attributes as a JSON object with sorted keys, without tensor contents; deduplicated", refers="strings"
    )
    frame: IntArray = column("int32", "innermost loop, branch or call it lies in", refers="frames", optional=True)
    input_offsets: IntArray = offsets("input")
    input_node: IntArray = column("int32", "producer of each input", refers="nodes", ragged="input")
    input_port: IntArray = column("int32", "output port of the producer; -1 for a control input", ragged="input")
    source_offsets: IntArray = offsets("source")
    source: IntArray = column("int32", "nodes before rewriting that it came from", refers="source_nodes", ragged="source")
    read_offsets: IntArray = offsets("read")
    read: IntArray = column("int32", "variables it reads", refers="variables", ragged="read")
    write_offsets: IntArray = offsets("write")
    write: IntArray = column("int32", "variables it writes", refers="variables", ragged="write")


@dataclass(frozen=True, eq=False)
class SourceNodes(Table):
    """The graph as written, before TensorFlow rewrote it; calls are inlined and named `call/node`."""

    name = "source_nodes"
    row = "node before rewriting"
    node_name: IntArray = column("int32", "name", refers="strings")
    op: IntArray = column("int32", "op type", refers="strings")
    attributes: IntArray = column("int32", "attributes as in `nodes`", refers="strings")
    input_offsets: IntArray = offsets("input")
    input_node: IntArray = column("int32", "producer of each input", refers="source_nodes", ragged="input")
    input_port: IntArray = column("int32", "output port of the producer; -1 for a control input", ragged="input")


@dataclass(frozen=True, eq=False)
class Frames(Table):
    """Loops, branches and calls, nested."""

    name = "frames"
    row = "loop, branch or call"
    frame_name: IntArray = column("int32", "name", refers="strings")
    kind: IntArray = column("uint8", "0 loop, 1 branch, 2 call", codes=FRAME_KINDS)
    parent: IntArray = column("int32", "enclosing frame", refers="frames", optional=True)


@dataclass(frozen=True, eq=False)
class Paths(Table):
    """Iteration paths, as a tree: row 0 is the root (no loop); a parent precedes its children."""

    name = "paths"
    row = "distinct iteration path"
    parent: IntArray = column("int32", "path of the enclosing loop's iteration", refers="paths", optional=True)
    frame: IntArray = column("int32", "loop that the last element iterates", refers="frames", optional=True)
    instance: IntArray = column("int32", "how many times this loop had been entered before, over the whole step")
    iteration: IntArray = column("int32", "iteration of that instance, from 0")


@dataclass(frozen=True, eq=False)
class Constants(Table):
    """Values that shapes and layers hang on: integers and booleans up to 1 KiB, and any scalar."""

    name = "constants"
    row = "constant node"
    node: IntArray = column("int32", "the Const node", refers="nodes")
    dtype: IntArray = column("int32", "dtype name, as in numpy", refers="strings")
    shape: IntArray = column("int32", "shape", refers="shapes")
    size_bytes: IntArray = column("int64", "size of the value", unit="bytes")
    digest: IntArray = column("int32", "SHA-256 of the bytes, where the value is not stored", refers="strings")
    value_offsets: IntArray = offsets("value")
    value: Array = column("uint8", "little-endian, row-major bytes; empty where only the digest is kept", ragged="value")


@dataclass(frozen=True, eq=False)
class Variables(Table):
    """Resources that hold state between steps."""

    name = "variables"
    row = "variable"
    variable_name: IntArray = column("int32", "the user's name", refers="strings")
    dtype: IntArray = column("int32", "dtype name", refers="strings")
    shape: IntArray = column("int32", "shape", refers="shapes")
    size_bytes: IntArray = column("int64", "size", unit="bytes")
    trainable: Array = column("bool", "whether training updates it by its gradient")
    slot_of: IntArray = column("int32", "variable whose optimiser slot it is", refers="variables", optional=True)
    slot_name: IntArray = column("int32", "name of the slot: momentum, accumulator, ...", refers="strings")
    node: IntArray = column("int32", "node that yields its handle", refers="nodes", optional=True)
    buffer: IntArray = column("int32", "memory that held it in the memory step", refers="buffers", optional=True)


@dataclass(frozen=True, eq=False)
class Interface(Table):
    """What goes into a step and comes out of it."""

    name = "interface"
    row = "feed or fetch"
    user_name: IntArray = column("int32", "the user's name", refers="strings")
    role: IntArray = column("int32", f"one of {', '.join(ROLES)}, or empty", refers="strings")
    direction: IntArray = column("uint8", "0 feed, 1 fetch", codes=DIRECTIONS)
    node: IntArray = column("int32", "node that yields the value", refers="nodes")
    port: IntArray = column("int32", "its output port")


@dataclass(frozen=True, eq=False)
class Structures(Table):
    """A set of executions that one or more steps ran; its executions are consecutive rows."""

    name = "structures"
    row = "distinct set of executions"
    execution_offsets: IntArray = offsets("execution")
    execution: IntArray = column("int32", "the executions, in order", refers="executions", ragged="execution")


@dataclass(frozen=True, eq=False)
class Executions(Table):
    """What ran, in an order that is topological within a structure (by start, ties by dependency)."""

    name = "executions"
    row = "run of a node in a structure"
    node: IntArray = column("int32", "node that ran", refers="nodes")
    path: IntArray = column("int32", "iteration path", refers="paths")
    parent: IntArray = column("int32", "execution it was expanded from", refers="executions", optional=True)
    kind: IntArray = column(
        "uint8",
        "0 op, 1 copy, 2 expanded from an opaque call, 3 outside a selection: only what others read of it counts",
        codes=EXECUTION_KINDS,
    )
    timed: Array = column("bool", "whether its times were measured")
    input_offsets: IntArray = offsets("input")
    input: IntArray = column("int32", "tensor of each live data input, in port order", refers="tensors", ragged="input")
    control_offsets: IntArray = offsets("control")
    control: IntArray = column("int32", "executions it waited for without reading a value", refers="executions", ragged="control")


@dataclass(frozen=True, eq=False)
class Tensors(Table):
    """Outputs that were live, ordered by execution, then port."""

    name = "tensors"
    row = "output of an execution"
    execution: IntArray = column("int32", "producer", refers="executions")
    port: IntArray = column("int32", "output port")
    dtype: IntArray = column("int32", "dtype name", refers="strings")
    shape: IntArray = column("int32", "concrete shape", refers="shapes")
    size_bytes: IntArray = column("int64", "bytes of its elements; 0 for handles and lists", unit="bytes")
    element_shape: IntArray = column("int32", "shape of a list's elements", refers="shapes", optional=True)
    buffer: IntArray = column("int32", "memory that held it in the memory step", refers="buffers", optional=True)


@dataclass(frozen=True, eq=False)
class Steps(Table):
    """Runs of the program: traced ones refer to a structure, untraced ones have only a wall time."""

    name = "steps"
    row = "step"
    structure: IntArray = column(
        "int32", "what it executed; -1 for a step that is untraced, or outside a selection", refers="structures", optional=True
    )
    traced: Array = column("bool", "run under full tracing")
    client_wall_ns: IntArray = column("int64", "time of the call, as the client saw it", unit="ns")
    span_ns: IntArray = column("int64", "first scheduled to last done; 0 for untraced", unit="ns")
    origin_ns: IntArray = column("int64", "Unix time that the step's times are relative to", unit="ns")
    input_preparation_ns: IntArray = column("int64", "time to prepare its inputs, before the call", unit="ns")
    input_preparation_bytes: IntArray = column("int64", "bytes of those inputs", unit="bytes")
    synthetic_input: Array = column("bool", "inputs were generated, not read")
    recorded: IntArray = column("int64", "executions recorded")
    produced: IntArray = column("int64", "executions that ran: recorded + those known to be missing")
    complete: Array = column("bool", "nothing is known to be missing")


@dataclass(frozen=True, eq=False)
class StepTimes(Table):
    """Times of every execution of every traced step: the steps' rows one after the other, executions in order."""

    name = "step_times"
    row = "traced step x execution"
    scheduled: IntArray = column("int64", "handed to a worker", unit="ns after the step's origin", is_time=True)
    start: IntArray = column("int64", "node began", unit="ns after the step's origin", is_time=True)
    end: IntArray = column("int64", "kernel returned", unit="ns after the step's origin", is_time=True)
    done: IntArray = column("int64", "successors notified", unit="ns after the step's origin", is_time=True)
    lane: IntArray = column("int16", "worker it ran on, told from overlaps (TensorFlow does not say)")
    valid: Array = column("bool", "times are ordered; false: kept aside, excluded from sums")


@dataclass(frozen=True, eq=False)
class DeviceSpans(Table):
    """Kernels and copies on a device's own streams (GPU); host times of the same execution are in `step_times`."""

    name = "device_spans"
    row = "kernel or copy on a device stream"
    step: IntArray = column("int32", "step", refers="steps")
    execution: IntArray = column("int32", "execution that launched it", refers="executions", optional=True)
    span_name: IntArray = column("int32", "kernel name", refers="strings")
    stream: IntArray = column("int32", "stream", refers="strings")
    kind: IntArray = column("uint8", "0 kernel, 1 copy", codes=SPAN_KINDS)
    start: IntArray = column("int64", "begin", unit="ns after the step's origin")
    end: IntArray = column("int64", "end", unit="ns after the step's origin")
    size_bytes: IntArray = column("int64", "bytes copied", unit="bytes")


@dataclass(frozen=True, eq=False)
class Buffers(Table):
    """Memory of the memory step."""

    name = "buffers"
    row = "piece of memory"
    origin: IntArray = column("uint8", "0 allocator, 1 variable, 2 feed, 3 synthetic", codes=BUFFER_ORIGINS)
    address: Array = column("uint64", "address; invented where the origin is synthetic")
    size_bytes: IntArray = column("int64", "size", unit="bytes")


@dataclass(frozen=True, eq=False)
class Allocations(Table):
    """Allocation records of the memory step, by time."""

    name = "allocations"
    row = "allocation or release"
    step: IntArray = column("int32", "step", refers="steps")
    execution: IntArray = column("int32", "execution that caused it", refers="executions", optional=True)
    size_bytes: IntArray = column("int64", "positive for an allocation, negative for a release", unit="bytes")
    time: IntArray = column("int64", "when", unit="ns after the step's origin")
    buffer: IntArray = column("int32", "buffer it belongs to, where known", refers="buffers", optional=True)


TABLES: tuple[type[Table], ...] = (
    Strings, Shapes, Nodes, SourceNodes, Frames, Paths, Constants, Variables, Interface, Structures, Executions,
    Tensors, Steps, StepTimes, DeviceSpans, Buffers, Allocations,
)  # fmt: skip


def check_references(tables: Mapping[str, Table]) -> None:
    """Every row number in every column exists.

    Raises:
        TraceError: naming the first column that points outside its table.
    """
    for table in tables.values():
        for key in table.columns():
            check_reference(tables, table, key)


def check_reference(tables: Mapping[str, Table], table: Table, key: str) -> None:
    """Every row number in one column exists.

    Raises:
        TraceError: it points outside its table.
    """
    spec = table.columns()[key]
    if not spec.refers:
        return
    values = cast("IntArray", getattr(table, key))
    lowest, rows = -1 if spec.optional else 0, len(tables[spec.refers])
    if len(values) and (values.min() < lowest or values.max() >= rows):
        _fail(f"{table.name}.{key}", f"points outside {spec.refers} (0 to {rows - 1})")
