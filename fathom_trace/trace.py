"""The `Trace`: what really executed, as numpy columns. Everything but capture only reads it; it never needs TensorFlow.

The graph is stored once. Each *step* is a run of it; steps that executed the same thing share one *structure*, and only their times
are stored again. Costs, kinds, phases and layers are not here: they are derived (`ops`, `costs`, `loops`), so a corrected rule
corrects old traces too. How the columns are laid out: `tables.py`. Whether the trace is true: `checks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fathom_trace.effects import stack_order, variable_order
from fathom_trace.errors import TraceError
from fathom_trace.tables import (
    EXECUTION_OUTSIDE,
    Allocations,
    Buffers,
    Constants,
    DeviceSpans,
    Executions,
    Frames,
    Interface,
    Nodes,
    Paths,
    Shapes,
    SourceNodes,
    Steps,
    StepTimes,
    Strings,
    Structures,
    Table,
    Tensors,
    Variables,
    check_reference,
    check_references,
)

if TYPE_CHECKING:
    import networkx
    import pandas

SCHEMA_VERSION = 1

_ORDERED = (
    ("structures", "execution"), ("tensors", "execution"), ("paths", "parent"), ("frames", "parent"), ("executions", "input"),
    ("executions", "control"),
)  # fmt: skip
"""Columns whose rows stand in an order, in the order in which they are looked at."""

Int64 = NDArray[np.int64]

_BLOCK = 65_536
"""Executions whose dependencies are Python lists at once."""


@dataclass(frozen=True)
class Dependencies:
    """Who each execution of one structure comes after, as CSR over *local* numbers (0 = the structure's first execution).

    The producers of execution `i` are `producer[offsets[i]:offsets[i + 1]]`, ascending, each once; every one is below `i`.
    """

    offsets: Int64
    producer: Int64

    def of(self, execution: int) -> Int64:
        """Producers of one execution (local number)."""
        return self.producer[self.offsets[execution] : self.offsets[execution + 1]]

    def lists(self) -> Iterator[list[int]]:
        """The producers of each execution in turn."""
        for begin in range(0, len(self.offsets) - 1, _BLOCK):
            bounds = self.offsets[begin : begin + _BLOCK + 1]
            flat = self.producer[bounds[0] : bounds[-1]].tolist()
            for a, b in pairwise((bounds - bounds[0]).tolist()):
                yield flat[a:b]


@dataclass(frozen=True, eq=False)
class Trace:
    """A captured program. See `tables.py` for the columns of each table.

    `provenance` says how it came about; its values are JSON. Keys that capture writes: see `schemas/trace_hdf5.md`.
    Raises `TraceError` on construction when the tables contradict each other.
    """

    strings: Strings = field(default_factory=Strings.empty)
    shapes: Shapes = field(default_factory=Shapes.empty)
    nodes: Nodes = field(default_factory=Nodes.empty)
    source_nodes: SourceNodes = field(default_factory=SourceNodes.empty)
    frames: Frames = field(default_factory=Frames.empty)
    paths: Paths = field(default_factory=Paths.empty)
    constants: Constants = field(default_factory=Constants.empty)
    variables: Variables = field(default_factory=Variables.empty)
    interface: Interface = field(default_factory=Interface.empty)
    structures: Structures = field(default_factory=Structures.empty)
    executions: Executions = field(default_factory=Executions.empty)
    tensors: Tensors = field(default_factory=Tensors.empty)
    steps: Steps = field(default_factory=Steps.empty)
    step_times: StepTimes = field(default_factory=StepTimes.empty)
    device_spans: DeviceSpans = field(default_factory=DeviceSpans.empty)
    buffers: Buffers = field(default_factory=Buffers.empty)
    allocations: Allocations = field(default_factory=Allocations.empty)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_references(self.tables())
        for table, key in _ORDERED:
            self._check_rows(table, key)
        self._check_sizes()

    @classmethod
    def deferred(cls, tables: Callable[[Self], Mapping[str, Table]], provenance: Mapping[str, Any]) -> Self:
        """A trace whose tables read their columns when first asked for; they call its `check_column` with each one that they read.

        Of what holds of a trace, only that the rows of `executions` and `step_times` are those of its steps is checked at once.
        """
        made = object.__new__(cls)
        made.__dict__.update(tables(made), provenance=provenance)
        made._check_sizes()
        return made

    def check_column(self, table: str, key: str) -> None:
        """Check what the other tables ask of one column: what a whole trace is checked for when it is made.

        Raises:
            TraceError: it contradicts them.
        """
        check_reference(self.tables(), getattr(self, table), key)
        self._check_rows(table, key)

    def _check_sizes(self) -> None:
        if len(self.structures) and int(self.structures.execution_offsets[-1]) != len(self.executions):
            raise TraceError("trace is damaged: structures.execution must list every execution once, in order")
        expected = int(np.sum(self._step_lengths()))
        if len(self.step_times) != expected:
            raise TraceError(
                f"trace is damaged: step_times has {len(self.step_times)} rows where its steps have {expected} executions"
            )
        try:
            json.dumps(dict(self.provenance), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TraceError(f"the provenance of a trace must be JSON: {error}") from None

    # --- tables ---------------------------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, Table]:
        """All tables by name, in the order in which files hold them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "provenance"}

    def replace(self, **changes: Any) -> Self:
        """This trace with some tables (or the provenance) replaced; checked again."""
        return replace(self, **changes)

    def equals(self, other: Trace) -> bool:
        """True when every column and the provenance are equal."""
        mine, its = self.tables(), other.tables()
        same = all(mine[k].equals(its[k]) for k in mine)
        return same and dict(self.provenance) == dict(other.provenance)

    # --- names ----------------------------------------------------------------------------------------------------------------

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Name of every node."""
        return self._texts(self.nodes.node_name)

    @cached_property
    def node_ops(self) -> tuple[str, ...]:
        """Op type of every node, as TensorFlow spells it."""
        return self._texts(self.nodes.op)

    @cached_property
    def node_attributes(self) -> tuple[dict[str, Any], ...]:
        """Attributes of every node. Nodes with equal attributes share one dict: do not change it."""
        texts = self.strings.values
        decoded: dict[int, dict[str, Any]] = {}
        for index in np.unique(self.nodes.attributes).tolist():
            try:
                decoded[index] = json.loads(texts[index] or "{}")
            except json.JSONDecodeError as error:
                raise TraceError(f"trace is damaged: nodes.attributes is not JSON ({error})") from None
        return tuple(decoded[i] for i in self.nodes.attributes.tolist())

    @cached_property
    def node_index(self) -> dict[str, int]:
        """Node name to row."""
        return {name: i for i, name in enumerate(self.node_names)}

    def _texts(self, rows: NDArray[Any]) -> tuple[str, ...]:
        texts = self.strings.values
        return tuple(texts[i] for i in rows.tolist())

    # --- executions -----------------------------------------------------------------------------------------------------------

    @cached_property
    def execution_structure(self) -> Int64:
        """Structure of every execution."""
        result = np.zeros(len(self.executions), np.int64)
        for structure in range(len(self.structures)):
            result[self.structure_rows(structure)] = structure
        return result

    @cached_property
    def chosen(self) -> NDArray[np.bool_]:
        """Whether each execution counts: false for what `selecting.select` left out, whose tensors others may still read."""
        return np.asarray(self.executions.kind != EXECUTION_OUTSIDE)

    def structure_rows(self, structure: int) -> slice:
        """The rows of `executions` that belong to one structure."""
        return self.structures.row_values("execution", structure)

    @cached_property
    def tensor_offsets(self) -> Int64:
        """Rows of `tensors` by execution, as CSR: the outputs of `e` are `tensor_offsets[e]:tensor_offsets[e + 1]`."""
        return np.searchsorted(self.tensors.execution, np.arange(len(self.executions) + 1)).astype(np.int64)

    def outputs(self, execution: int) -> range:
        """Rows of `tensors` that an execution produced, by port."""
        return range(int(self.tensor_offsets[execution]), int(self.tensor_offsets[execution + 1]))

    def inputs(self, execution: int) -> list[int]:
        """Rows of `tensors` that an execution read, in port order."""
        return list(self.executions.input[self.executions.row_values("input", execution)].tolist())

    def output_shape(self, execution: int, port: int = 0) -> tuple[int, ...] | None:
        """Shape of one output, or None if that port was not live."""
        for row in self.outputs(execution):
            if self.tensors.port[row] == port:
                return self.shapes[int(self.tensors.shape[row])]
        return None

    def iteration(self, path: int) -> tuple[int, ...]:
        """The iteration numbers of a path, outermost loop first; empty outside loops."""
        numbers: list[int] = []
        while path > 0:
            numbers.append(int(self.paths.iteration[path]))
            path = int(self.paths.parent[path])
        return tuple(reversed(numbers))

    def dependencies(self, structure: int) -> Dependencies:
        """All dependencies of one structure's executions, without repeats: of data, of control, and through what they share (`effects`)."""
        cached = self._dependencies.get(structure)
        if cached is None:
            cached = self._dependencies[structure] = self._with_effects(structure)
        return cached

    @cached_property
    def _dependencies(self) -> dict[int, Dependencies]:
        return {}

    def waited_for(self, structure: int) -> Dependencies:
        """The dependencies along the graph's edges, data and control: what TensorFlow waited for."""
        cached = self._waited_for.get(structure)
        if cached is None:
            cached = self._waited_for[structure] = self._merge_dependencies(structure)
        return cached

    @cached_property
    def _waited_for(self) -> dict[int, Dependencies]:
        return {}

    def _with_effects(self, structure: int) -> Dependencies:
        waited, rows = self.waited_for(structure), self.structure_rows(structure)
        steps = [self.step_rows(step) for step in self.steps_of(structure)] if self.has_times else []
        edges = waited.offsets, waited.producer
        ordered = variable_order(self.nodes, self.executions, self.step_times, rows, steps, edges)
        stacked = stack_order(self.node_ops, self.executions, self.tensors, self.tensor_offsets, rows)
        if not len(ordered[0]) and not len(stacked[0]):
            return waited
        count = rows.stop - rows.start
        consumer = np.repeat(np.arange(count), np.diff(waited.offsets))
        return _sorted_dependencies(
            count, np.concatenate([waited.producer, ordered[0], stacked[0]]), np.concatenate([consumer, ordered[1], stacked[1]])
        )

    def _merge_dependencies(self, structure: int) -> Dependencies:
        rows = self.structure_rows(structure)
        ex = self.executions
        count = rows.stop - rows.start
        data = slice(int(ex.input_offsets[rows.start]), int(ex.input_offsets[rows.stop]))
        control = slice(int(ex.control_offsets[rows.start]), int(ex.control_offsets[rows.stop]))
        consumer = np.concatenate(
            [
                np.repeat(np.arange(count), np.diff(ex.input_offsets[rows.start : rows.stop + 1])),
                np.repeat(np.arange(count), np.diff(ex.control_offsets[rows.start : rows.stop + 1])),
            ]
        ).astype(np.int64)
        producer = np.concatenate([self.tensors.execution[ex.input[data]], ex.control[control]]).astype(np.int64) - rows.start
        return _sorted_dependencies(count, producer, consumer)

    # --- steps ----------------------------------------------------------------------------------------------------------------

    @cached_property
    def traced_steps(self) -> tuple[int, ...]:
        """Rows of `steps` that have executions."""
        return tuple(np.flatnonzero(self.steps.structure >= 0).tolist())

    def _step_lengths(self) -> Int64:
        sizes = np.diff(self.structures.execution_offsets)
        structure = self.steps.structure
        if not len(sizes):
            return np.zeros(len(structure), np.int64)
        return np.where(structure >= 0, sizes[np.maximum(structure, 0)], 0).astype(np.int64)

    @cached_property
    def step_offsets(self) -> Int64:
        """Where each step's rows begin in `step_times`; steps + 1 values."""
        return np.concatenate([[0], np.cumsum(self._step_lengths())]).astype(np.int64)

    def step_rows(self, step: int) -> slice:
        """The rows of `step_times` that belong to one step, in the order of its structure's executions."""
        return slice(int(self.step_offsets[step]), int(self.step_offsets[step + 1]))

    def steps_of(self, structure: int) -> list[int]:
        """The steps that ran one structure."""
        return np.flatnonzero(self.steps.structure == structure).tolist()

    @property
    def has_times(self) -> bool:
        """False for a trace that was taken without executing (`timed` is false throughout)."""
        return bool(np.any(self.executions.timed)) and len(self.step_times) > 0

    @cached_property
    def main_structure(self) -> int:
        """The structure that most steps ran (the first, on a tie).

        Raises:
            TraceError: the trace has no executions.
        """
        if not len(self.structures):
            raise TraceError("the trace holds no executions")
        ran = np.bincount(self.steps.structure[self.steps.structure >= 0], minlength=len(self.structures))
        return int(np.argmax(ran))

    def durations(self, step: int) -> Int64:
        """Op time of each execution of a step: node start to all done, in ns (the paper's definition); 0 where not valid."""
        rows = self.step_rows(step)
        times = self.step_times
        return np.where(times.valid[rows], times.done[rows] - times.start[rows], 0).astype(np.int64)

    def median_durations(self, structure: int) -> NDArray[np.float64]:
        """Median over the structure's steps of each execution's op time, in ns; zeros when it has no times."""
        rows = self.structure_rows(structure)
        steps = self.steps_of(structure)
        if not steps or not self.has_times:
            return np.zeros(rows.stop - rows.start)
        stacked = np.stack([self.durations(s) for s in steps]).astype(np.float64)
        ok = np.stack([self.step_times.valid[self.step_rows(s)] for s in steps])
        if ok.all():
            return np.asarray(np.median(stacked, axis=0))
        stacked[~ok] = np.nan
        stacked[:, ~ok.any(axis=0)] = 0.0
        return np.asarray(np.nanmedian(stacked, axis=0))

    # --- other views ----------------------------------------------------------------------------------------------------------

    def to_networkx(self, structure: int | None = None) -> networkx.DiGraph[int]:
        """The dependency graph of one structure (the most frequent by default) as a networkx DiGraph.

        Node keys are rows of `executions`, with attributes `name`, `op`, `iteration` and `duration_ns` (median over steps).
        """
        import networkx

        structure = self.main_structure if structure is None else structure
        rows = self.structure_rows(structure)
        durations = self.median_durations(structure)
        graph: networkx.DiGraph[int] = networkx.DiGraph(provenance=dict(self.provenance))
        for row in range(rows.start, rows.stop):
            node = int(self.executions.node[row])
            graph.add_node(
                row,
                name=self.node_names[node],
                op=self.node_ops[node],
                iteration=self.iteration(int(self.executions.path[row])),
                duration_ns=float(durations[row - rows.start]),
            )
        depends = self.dependencies(structure)
        for local in range(rows.stop - rows.start):
            graph.add_edges_from((int(p) + rows.start, local + rows.start) for p in depends.of(local))
        return graph

    def to_pandas(self) -> pandas.DataFrame:
        """One row per traced step and execution, as a pandas DataFrame (needs the extra `pandas`).

        Columns: step, execution, name, op, iteration, output_shape, scheduled_ns, start_ns, end_ns, done_ns, duration_ns, lane, valid.
        """
        try:
            import pandas
        except ImportError:
            raise TraceError("to_pandas needs pandas; install it with: pip install 'fathom-trace[pandas]'") from None

        frames = [self._step_frame(step) for step in self.traced_steps]
        return pandas.concat([pandas.DataFrame(f) for f in frames], ignore_index=True) if frames else pandas.DataFrame()

    def _step_frame(self, step: int) -> dict[str, Any]:
        rows, times = self.step_rows(step), self.step_times
        executions = range(*self.structure_rows(int(self.steps.structure[step])).indices(len(self.executions)))
        nodes = self.executions.node[executions.start : executions.stop].tolist()
        return {
            "step": step,
            "execution": list(executions),
            "name": [self.node_names[n] for n in nodes],
            "op": [self.node_ops[n] for n in nodes],
            "iteration": [self.iteration(int(self.executions.path[e])) for e in executions],
            "output_shape": [self.output_shape(e) for e in executions],
            "scheduled_ns": times.scheduled[rows],
            "start_ns": times.start[rows],
            "end_ns": times.end[rows],
            "done_ns": times.done[rows],
            "duration_ns": self.durations(step),
            "lane": times.lane[rows],
            "valid": times.valid[rows],
        }

    # --- validation -----------------------------------------------------------------------------------------------------------

    def _check_rows(self, table: str, key: str) -> None:
        """What order the rows of some columns have (`_ORDERED`); dependencies form a DAG, since the stored order is topological."""
        if (table, key) == ("structures", "execution"):
            if not np.array_equal(self.structures.execution, np.arange(len(self.executions))):
                raise TraceError("trace is damaged: structures.execution must list every execution once, in order")
        elif (table, key) == ("tensors", "execution"):
            if np.any(self.tensors.execution[1:] < self.tensors.execution[:-1]):
                raise TraceError("trace is damaged: tensors must be ordered by execution")
        elif (table, key) in (("paths", "parent"), ("frames", "parent")):
            parent = (self.paths if table == "paths" else self.frames).parent
            if np.any(parent >= np.arange(len(parent))):
                raise TraceError(f"trace is damaged: {table}.parent must precede its children")
        elif (table, key) == ("executions", "input"):
            ex = self.executions
            self._check_order(key, ex.input_offsets, self.tensors.execution[ex.input] if len(ex.input) else ex.input)
        elif (table, key) == ("executions", "control"):
            self._check_order(key, self.executions.control_offsets, self.executions.control)

    def _check_order(self, what: str, bounds: NDArray[Any], producer: NDArray[Any]) -> None:
        """No dependency points forward or leaves its structure."""
        ex = self.executions
        consumer = np.repeat(np.arange(len(ex)), np.diff(bounds))
        wrong = np.flatnonzero(producer >= consumer)
        if len(wrong):
            row, before = int(consumer[wrong[0]]), int(producer[wrong[0]])
            raise TraceError(
                f"trace is damaged: executions.{what}: execution {row} ({self.node_names[int(ex.node[row])]}) depends on"
                f" execution {before}, which does not precede it"
            )
        if len(consumer) and np.any(self.execution_structure[producer] != self.execution_structure[consumer]):
            raise TraceError(f"trace is damaged: executions.{what}: a dependency leaves its structure")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a Trace is not iterable; see its tables, for example trace.executions")

    def __repr__(self) -> str:
        name = self.provenance.get("workload", "?")
        return f"<Trace {name}: {len(self.nodes)} nodes, {len(self.executions)} executions, {len(self.steps)} steps>"


def _sorted_dependencies(count: int, producer: Int64, consumer: Int64) -> Dependencies:
    """The dependencies of `count` executions, each once."""
    pairs = distinct(consumer * max(count, 1) + producer)
    consumer, producer = pairs // max(count, 1), pairs % max(count, 1)
    return Dependencies(np.searchsorted(consumer, np.arange(count + 1)).astype(np.int64), producer)


def distinct(values: Int64) -> Int64:
    """The values, ascending, each once: as `np.unique`, which since numpy 2.3 goes through a hash table and takes fifty times as long."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
