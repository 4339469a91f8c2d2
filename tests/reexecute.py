"""Runs a trace again in plain numpy: execution by execution, along the trace's own edges, from what was fed. No TensorFlow here.

The trace says who reads whom; nothing else does. A value travels only from a tensor's row to the executions that list that row. Values
that a trace does not hold come from outside it: inputs and variables from the observer of the captured step, constants that are
too large to be kept from a side file, drawn random numbers from the fetch that bears the op's name.

On the way everything that the trace claims is held against what comes out: live ports of every Switch against the predicate, dtype and
shape of every tensor, the variables that a node is said to read and write.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy_kernels import KERNELS, Optional, TensorList

from fathom_trace.capture import StepValues
from fathom_trace.tables import FEED, FETCH
from fathom_trace.trace import Trace

RANDOM_OPS = frozenset({"RandomStandardNormal", "RandomUniform", "RandomUniformInt"})
TOLERANCE = 1e-9
"""Of the largest number of an array. Everything is computed in float64, whose rounding alone gave less than 1e-12 of it."""


class ContradictionError(Exception):
    """What was computed is not what the trace says happened."""


@dataclass(frozen=True)
class Handle:
    """A resource handle: which variable it is of."""

    variable: int


@dataclass
class Job:
    """An execution, ready to run. `inputs` are rows of tensors, `expected` the dtype and shape of each output row."""

    execution: int
    node: int
    op: str
    attributes: Mapping[str, Any]
    inputs: list[int]
    first_row: int
    ports: list[int]
    expected: list[tuple[str, tuple[int, ...]]]


@dataclass
class Result:
    """What a re-execution gives: fetched outputs and variables by name, and the value of every tensor by row of the structure."""

    outputs: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)


class Reexecution:
    """One step of a trace, to be run as often as wanted; tensor rows and jobs are counted from the structure's first."""

    def __init__(self, trace: Trace, seen: StepValues, constants: Mapping[str, Any], structure: int | None = None) -> None:
        """`constants` are by SHA-256 digest. `structure` is the step's own unless a wrong one is wanted."""
        self.trace, self.seen, self.side_file = trace, seen, constants
        self.structure = int(trace.steps.structure[seen.step]) if structure is None else structure
        self.rows = trace.structure_rows(self.structure)
        self.first_tensor = int(trace.tensor_offsets[self.rows.start])
        self.tensor_count = int(trace.tensor_offsets[self.rows.stop]) - self.first_tensor
        self.names = [trace.strings[int(n)] for n in trace.variables.variable_name]
        self.handles = {int(n): Handle(v) for v, n in enumerate(trace.variables.node)}
        self.constants = _constants(trace, constants)
        self.fed, self.fetched = _interface(trace)
        self.jobs = [self._job(e) for e in range(self.rows.start, self.rows.stop)]
        self._by_node: dict[int, list[int]] = {}
        for k, job in enumerate(self.jobs):
            self._by_node.setdefault(job.node, []).append(k)
        self.producer = [k for k, job in enumerate(self.jobs) for _ in job.ports]
        self.port = [p for job in self.jobs for p in job.ports]
        self.accesses: dict[int, tuple[frozenset[int], bool, bool]] = {}
        self.random_count = 0
        self._stateful: dict[str, Callable[[Job, list[Any], list[Any]], Any]] = _stateful_kernels()

    def _job(self, execution: int) -> Job:
        trace = self.trace
        node = int(trace.executions.node[execution])
        outputs = trace.outputs(execution)
        expected = [(trace.strings[int(trace.tensors.dtype[r])], trace.shapes[int(trace.tensors.shape[r])]) for r in outputs]
        return Job(
            execution=execution,
            node=node,
            op=trace.node_ops[node],
            attributes=trace.node_attributes[node],
            inputs=[row - self.first_tensor for row in trace.inputs(execution)],
            first_row=outputs.start - self.first_tensor,
            ports=trace.tensors.port[outputs.start : outputs.stop].tolist(),
            expected=expected,
        )

    # --- running ----------------------------------------------------------------------------------------------------------------

    def run(
        self, order: Iterable[int] | None = None, replaced: Mapping[int, list[int]] | None = None, truth: Result | None = None
    ) -> Result:
        """Run all jobs, in the stored order or the given one. `replaced` gives other input rows to some of them.

        With an earlier result as `truth`, jobs that read the very arrays that they read then are not computed again.

        Raises:
            ContradictionError: a branch, a dtype, a shape or a variable access came out other than the trace says.
        """
        result = Result(values=[None] * self.tensor_count)
        state = [np.asarray(self.seen.before[name]) for name in self.names]
        self.random_count = 0
        replaced = replaced or {}
        for number in range(len(self.jobs)) if order is None else order:
            job = self.jobs[number]
            rows = replaced.get(number, job.inputs)
            inputs = [result.values[r] for r in rows]
            if truth is None:
                outputs = self.compute(job, inputs, state, rows)
            else:
                outputs = truth.values[job.first_row : job.first_row + len(job.ports)]
                known = [truth.values[r] for r in job.inputs]
                if job.op in self._stateful or number in replaced or any(x is not y for x, y in zip(inputs, known, strict=True)):
                    computed = self.compute(job, inputs, state, rows)
                    outputs = [y if _identical(x, y) else x for x, y in zip(computed, outputs, strict=True)]
            result.values[job.first_row : job.first_row + len(outputs)] = outputs
        result.variables = dict(zip(self.names, state, strict=True))
        result.outputs = {name: result.values[row] for name, row in self.fetch_rows().items()}
        return result

    def compute(self, job: Job, inputs: list[Any], state: list[Any], rows: Sequence[int]) -> list[Any]:
        """The live outputs of one job, checked against what the trace says of them."""
        if any(x is None for x in inputs):
            raise ContradictionError(f"{self.name_of(job)} reads a tensor that was not made before")
        if job.op in ("Switch", "_SwitchN"):
            return [self._switch(job, inputs)]
        if job.op == "Merge":
            found: Any = (inputs[0], np.int32(self._live_input(job, rows[0])))
        elif job.op in self._stateful:
            found = self._stateful[job.op](job, inputs, state)
            self._check_access(job, inputs)
        elif job.op in ("_Arg", "Const", "VarHandleOp"):
            found = self._source(job)
        elif job.op in RANDOM_OPS:
            found = self._drawn(job)
        elif job.op in KERNELS:
            found = KERNELS[job.op](job.attributes, *inputs)
        else:
            raise NotImplementedError(f"no numpy kernel for {job.op} ({self.name_of(job)})")
        outputs = found if isinstance(found, tuple) else (found,)
        return [self._checked(job, outputs[port], *expected) for port, expected in zip(job.ports, job.expected, strict=True)]

    def _checked(self, job: Job, value: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        if isinstance(value, TensorList | Optional | Handle):
            wanted = "resource" if isinstance(value, Handle) else "variant"
            if dtype != wanted:
                raise ContradictionError(f"{self.name_of(job)} gives a {wanted}, the trace says {dtype}")
            return value
        array = np.asarray(value)
        if array.dtype.name != dtype and array.dtype.kind in "iu" and dtype.startswith(("int", "uint")):
            array = array.astype(dtype)  # numpy widens integers in sums and products
        if array.dtype.name != dtype or array.shape != shape:
            raise ContradictionError(
                f"{self.name_of(job)} gives {array.dtype.name}{list(array.shape)}, the trace says {dtype}{list(shape)}"
            )
        return array

    def _switch(self, job: Job, inputs: list[Any]) -> Any:
        last = len(job.attributes["output_dtypes"]) if "output_dtypes" in job.attributes else job.attributes.get("num_outs", 2)
        taken = int(inputs[1])
        taken = taken if 0 <= taken < last else last - 1
        if job.ports != [taken]:
            raise ContradictionError(f"{self.name_of(job)} takes output {taken}, the trace says {job.ports}")
        return inputs[0]

    def _live_input(self, job: Job, row: int) -> int:
        """Which of a Merge's inputs a tensor is."""
        span = self.trace.nodes.row_values("input", job.node)
        source = self.jobs[self.producer[row]].node, self.port[row]
        edges = list(zip(self.trace.nodes.input_node[span].tolist(), self.trace.nodes.input_port[span].tolist(), strict=True))
        return edges.index(source) if source in edges else -1

    def _source(self, job: Job) -> Any:
        if job.op == "VarHandleOp":
            return self.handles[job.node]
        if job.op == "Const":
            return self.constants[job.node]
        return np.asarray(self.seen.inputs[self.fed[job.node]])

    def _drawn(self, job: Job) -> Any:
        """What a random op drew: the fetch of its name, of which a loop's iterations are the rows."""
        self.random_count += 1
        name = self.trace.node_names[job.node].rpartition("/")[2]
        return self.seen.outputs[name][self.trace.iteration(int(self.trace.executions.path[job.execution]))]

    def _check_access(self, job: Job, inputs: list[Any]) -> None:
        nodes = self.trace.nodes
        touched = [x.variable for x in inputs if isinstance(x, Handle)]
        reads = nodes.read[nodes.row_values("read", job.node)].tolist()
        writes = nodes.write[nodes.row_values("write", job.node)].tolist()
        if not touched or any(v not in reads and v not in writes for v in touched):
            raise ContradictionError(
                f"{self.name_of(job)} touches variables {touched}; the trace says it reads {reads} and writes {writes}"
            )
        self.accesses[job.execution - self.rows.start] = frozenset(touched), bool(reads), bool(writes)

    # --- asking -----------------------------------------------------------------------------------------------------------------

    def fetch_rows(self) -> dict[str, int]:
        """The tensor row of every fetch, by name."""
        rows = {}
        for name, (node, port) in self.fetched.items():
            found = [k for k in self.jobs_of(node) if port in self.jobs[k].ports]
            if len(found) != 1:
                raise ContradictionError(f"the fetch '{name}' is made by {len(found)} executions")
            job = self.jobs[found[0]]
            rows[name] = job.first_row + job.ports.index(port)
        return rows

    def jobs_of(self, node: int) -> list[int]:
        """The jobs of one node, in order."""
        return self._by_node.get(node, [])

    def name_of(self, job: Job) -> str:
        """For messages."""
        path = self.trace.iteration(int(self.trace.executions.path[job.execution]))
        return f"{self.trace.node_names[job.node]} ({job.op}) {list(path)}"

    def latest_first(self) -> list[int]:
        """An order that the dependencies allow, and that differs most from the stored one: of what is ready always what came last."""
        depends = self.trace.dependencies(self.structure)
        count = len(self.jobs)
        waiting = np.diff(depends.offsets).tolist()
        after: list[list[int]] = [[] for _ in range(count)]
        for k in range(count):
            for p in depends.of(k).tolist():
                after[p].append(k)
        ready = [-k for k in range(count) if waiting[k] == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            k = -heapq.heappop(ready)
            order.append(k)
            for consumer in after[k]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    heapq.heappush(ready, -consumer)
        return order

    def unordered_accesses(self) -> list[str]:
        """Pairs of accesses to one variable, one of them a write, that no path of dependencies orders."""
        depends = self.trace.dependencies(self.structure)
        ancestors: list[int] = []  # as bits
        for k in range(len(self.jobs)):
            bits = 0
            for p in depends.of(k).tolist():
                bits |= ancestors[p] | 1 << p
            ancestors.append(bits)
        numbers = sorted(self.accesses)
        return [
            f"{self.name_of(self.jobs[a])} and {self.name_of(self.jobs[b])}"
            for k, b in enumerate(numbers)
            for a in numbers[:k]
            if self.accesses[a][0] & self.accesses[b][0] and (self.accesses[a][2] or self.accesses[b][2]) and not ancestors[b] >> a & 1
        ]

    def difference(self, result: Result) -> str:
        """The first value in which a result is not what TensorFlow returned, or nothing."""
        for what, mine, its in (("output", result.outputs, self.seen.outputs), ("variable", result.variables, self.seen.after)):
            for name, value in its.items():
                if not same(mine[name], value):
                    return f"{what} '{name}' is {mine[name]!r}, TensorFlow's is {value!r}"
        return ""


def same(mine: Any, its: Any) -> bool:
    """Equal but for the rounding of float64; nothing is equal to what is not finite."""
    if isinstance(its, TensorList):
        return isinstance(mine, TensorList) and len(mine.items) == len(its.items) and all(map(same, mine.items, its.items))
    if isinstance(its, Optional):
        both = (
            isinstance(mine, Optional) and mine.values is not None and its.values is not None and len(mine.values) == len(its.values)
        )
        return mine == its if not both else all(map(same, mine.values, its.values))
    if isinstance(mine, TensorList | Optional | Handle) or isinstance(its, Handle) or its is None or mine is None:
        return mine is its or (isinstance(mine, Handle) and mine == its)
    mine, its = np.asarray(mine), np.asarray(its)
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return False
    if its.dtype.kind != "f":
        return bool(np.array_equal(mine, its))
    if not (np.isfinite(mine).all() and np.isfinite(its).all()):
        return False
    return not its.size or float(np.abs(mine - its).max()) <= TOLERANCE * float(np.abs(its).max())


def _identical(x: Any, y: Any) -> bool:
    """The same object, or arrays of the same bits."""
    return x is y or (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == y.dtype and np.array_equal(x, y))


def _constants(trace: Trace, side_file: Mapping[str, Any]) -> dict[int, Any]:
    """Value of every Const node: from the trace where it keeps it, else from the side file by digest."""
    table = trace.constants
    found = {}
    for row, node in enumerate(table.node.tolist()):
        digest = trace.strings[int(table.digest[row])]
        if digest:
            found[node] = side_file[digest]
        else:
            raw = table.value[table.row_values("value", row)].tobytes()
            found[node] = np.frombuffer(raw, trace.strings[int(table.dtype[row])]).reshape(trace.shapes[int(table.shape[row])])
    return found


def _interface(trace: Trace) -> tuple[dict[int, str], dict[str, tuple[int, int]]]:
    """Name of each fed node; node and port of each fetch."""
    table = trace.interface
    names = [trace.strings[int(n)] for n in table.user_name]
    ends = list(zip(names, table.direction.tolist(), table.node.tolist(), table.port.tolist(), strict=True))
    return {n: name for name, way, n, _ in ends if way == FEED}, {name: (n, p) for name, way, n, p in ends if way == FETCH}


# --- variables --------------------------------------------------------------------------------------------------------------------


def _stateful_kernels() -> dict[str, Callable[[Job, list[Any], list[Any]], Any]]:
    def read(job: Job, inputs: list[Any], state: list[Any]) -> Any:
        return state[inputs[0].variable]

    def gather(job: Job, inputs: list[Any], state: list[Any]) -> Any:
        return np.take(state[inputs[0].variable], inputs[1], 0)

    def shape(job: Job, inputs: list[Any], state: list[Any]) -> Any:
        return np.array(state[inputs[0].variable].shape, job.attributes.get("out_type", "int32"))

    def update(change: Callable[..., Any]) -> Callable[[Job, list[Any], list[Any]], Any]:
        def kernel(job: Job, inputs: list[Any], state: list[Any]) -> Any:
            variable = inputs[0].variable
            old = state[variable]
            state[variable] = new = np.asarray(change(old, *inputs[1:]))
            if new.shape != old.shape or new.dtype != old.dtype:
                raise ContradictionError(f"{job.op} would turn {old.dtype}{list(old.shape)} into {new.dtype}{list(new.shape)}")
            return ()

        return kernel

    def scatter_add(old: Any, indices: Any, updates: Any) -> Any:
        new = old.copy()
        np.add.at(new, indices, updates)
        return new

    def momentum(job: Job, inputs: list[Any], state: list[Any]) -> Any:
        variable, slot, rate, gradient, decay = inputs
        _scalar(job, rate, decay)
        state[slot.variable] = state[slot.variable] * decay + gradient
        state[variable.variable] = state[variable.variable] - rate * state[slot.variable]
        return ()

    def descend(job: Job, inputs: list[Any], state: list[Any]) -> Any:
        _scalar(job, inputs[1])
        return update(lambda old, rate, gradient: old - rate * gradient)(job, inputs, state)

    return {
        "ReadVariableOp": read,
        "ResourceGather": gather,
        "VariableShape": shape,
        "AssignVariableOp": update(lambda old, value: value),
        "AssignAddVariableOp": update(lambda old, value: old + value),
        "AssignSubVariableOp": update(lambda old, value: old - value),
        "ResourceScatterAdd": update(scatter_add),
        "ResourceApplyGradientDescent": descend,
        "ResourceApplyMomentum": momentum,
    }


def _scalar(job: Job, *rates: Any) -> None:
    """TensorFlow takes rates that are scalars only."""
    if any(np.ndim(rate) for rate in rates):
        raise ContradictionError(f"{job.op} is given a rate that is no scalar")
