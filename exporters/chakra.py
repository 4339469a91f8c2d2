"""Chakra execution traces: a step's executions with their dependencies, for ASTRA-sim, with the collectives of data-parallel training.

Target: Chakra schema 1.0.0, https://github.com/mlcommons/chakra (package `mlc-chakra` 1.0.0); read by ASTRA-sim,
https://github.com/astra-sim/astra-sim. Each rank has a file NAME.RANK.et: a GlobalMetadata, then Nodes, each with its length before it
(`schemas/chakra_execution.proto`). The ranks of data-parallel training do the same, so their files are equal.

A node is one execution: loop bodies are there once per iteration, so the graph has no cycle. Its id is the row of the trace's
`executions`. All that it waited for, data and control, is in `data_deps`, because feeders order by these alone; there are no `ctrl_deps`.
`num_ops` are FLOPs and `tensor_size` the bytes read and written; 0 is written as 1, because ASTRA-sim's roofline never finishes a node
of 0, and what is not known is told from MACs or tensors, which the report counts. Own attributes: `duration_ns` (exact), `op`, `node`,
and `iteration` in loops.

Times are whole microseconds in this format. Each is rounded up or down so that, at every node, the longest path to its end is off by at
most 1 us and, where that leaves a choice, so that the sum of all times stays true too. A time of 0 us is replayed as 1 ns.

With `ranks` above 1 each trained variable's gradient gets an ALL_REDUCE that waits for all of the gradient and that all of its readers
outside the backward pass wait for (or several gradients share one, with `bucket_bytes`). Collectives that the trace itself executed
are collectives here; then none are added. Their ids follow the last row of `executions`.
"""

from __future__ import annotations

import heapq
import operator
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import wire
from fathom_trace.builder import ITEM_BYTES
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportedLayer, ExportReport, Target, read_report
from fathom_trace.gradients import Gradient, gradients
from fathom_trace.options import option
from fathom_trace.steps import MEDIAN, STEP_DOC, StepView, account, bridge, notes, verify, view_steps
from fathom_trace.trace import Dependencies, Trace, distinct
from fathom_trace.units import format_bytes, format_ns, format_share

TARGET = Target(
    name="Chakra / ASTRA-sim",
    version="1.0.0",
    url="https://github.com/mlcommons/chakra",
    proof=TARGET_PARSED,
    proof_detail="tests read the files with the reader and the chakra_jsonizer of mlc-chakra 1.0.0 and compare nodes, dependencies,"
    " attributes, critical path and the order of collectives with the trace; ASTRA-sim itself is built from source and is not run in tests",
    how_to_run="AstraSim_Analytical_Congestion_Aware --workload-configuration=FOLDER/NAME --system-configuration=SYSTEM.json"
    " --network-configuration=NETWORK.yml --remote-memory-configuration=MEMORY.json: at least 2 ranks (--set ranks=N), as many as the"
    " network has. Its exit code proves nothing: look for a line 'finished' of every rank. For `whatif --from`, set trace-enabled to 1"
    " in SYSTEM.json, keep its log folder, and give a clock of 1 GHz: its ticks are ns",
)

SCHEMA_VERSION = "1.0.0"
COMP_NODE, COMM_COLL_NODE = 4, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
COMM_NAMES = {ALL_REDUCE: "ALL_REDUCE", ALL_GATHER: "ALL_GATHER", ALL_TO_ALL: "ALL_TO_ALL", REDUCE_SCATTER: "REDUCE_SCATTER"}
EXECUTED_COLLECTIVES = {
    "CollectiveReduce": ALL_REDUCE, "CollectiveReduceV2": ALL_REDUCE, "CollectiveReduceV3": ALL_REDUCE, "NcclAllReduce": ALL_REDUCE,
    "CollectiveGather": ALL_GATHER, "CollectiveGatherV2": ALL_GATHER, "CollectiveAllToAllV2": ALL_TO_ALL,
    "CollectiveAllToAllV3": ALL_TO_ALL, "CollectiveReduceScatterV2": REDUCE_SCATTER,
}  # fmt: skip
ALL_RANKS = "0"
"""Name of the process group that holds all ranks."""

NPU, TRACED = "npu", "traced"
NS_PER_US = 1_000
IS_HELPER = "helper, bridged (plumbing=false)"
IS_EMPTY = "collective of 0 bytes, bridged"


MOST_RANKS = 65_536


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    step: str = option(MEDIAN, STEP_DOC)
    ranks: int = option(1, "devices of data-parallel training; above 1, gradients are all-reduced")
    bucket_bytes: int = option(0, "let gradients share a collective until it has as many bytes; 0: a collective for each variable")
    plumbing: bool = option(True, "keep helpers: loop and branch plumbing, feeds, fetches, constants, handles, identities")
    device: str = option(
        NPU,
        "where compute nodes run: on the simulated accelerator (npu), or on a CPU (is_cpu_op) where the traced op did (traced); ASTRA-sim"
        " has no roofline for CPU ops, and its statistics of 2025 and later stop at one",
        choices=(NPU, TRACED),
    )
    name: str = option("", "beginning of the file names; empty: the workload's name")

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise OptionError(
                f"option 'ranks' is {self.ranks}; it takes a whole number from 1 to {MOST_RANKS} (there is a file for each)"
            )
        if self.bucket_bytes < 0:
            raise OptionError(f"option 'bucket_bytes' is {self.bucket_bytes}; it takes a whole number of bytes, or 0")


@dataclass(frozen=True)
class Collective:
    """A collective that is added: it waits for `after`, and `before` wait for it (local numbers of executions)."""

    name: str
    size_bytes: int
    after: tuple[int, ...]
    before: tuple[int, ...]
    variables: tuple[str, ...]


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write a file for each rank.

    Raises:
        ExportError: gradients that share a collective wait for each other.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    view = view_steps(trace, options.step, "exporter 'chakra'")[0]
    executed = [EXECUTED_COLLECTIVES.get(trace.node_ops[node], -1) for node in view.nodes]
    found = gradients(trace, view.structure) if options.ranks > 1 and max(executed, default=-1) < 0 else []
    found = [g for g in found if trace.chosen[list(g.producers)].all()]
    added = list(_collectives(view, found, options.bucket_bytes))
    plan = _Plan(view, added, executed, options)
    content = b"".join(encode(plan))
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", options.name or str(trace.provenance.get("workload") or "trace"))
    files = tuple(f"{stem}.{rank}.et" for rank in range(options.ranks))
    for file in files:
        (folder / file).write_bytes(content)
    dependencies = np.diff(plan.dependencies.offsets)[plan.position].tolist()

    def describe(view: StepView, node: int, members: list[int]) -> Mapping[str, Any]:
        more = f" and {len(members) - 1} more" * (len(members) > 1)
        return {
            "place": f"{files[0]}:node {members[0] + view.rows.start}{more}",
            "how": _name(plan, members[0]),
            "facts": {"dependencies": sum(dependencies[i] for i in members), "type": plan.types[members[0]]},
        }

    layers, skipped = account([view], {view.structure: plan.left_out}, describe)
    facts = [
        {"id": plan.identifier(len(view) + k), "name": c.name, "size_bytes": c.size_bytes, "variables": list(c.variables),
         "dependencies": int(np.diff(plan.dependencies.offsets)[plan.position[len(view) + k]])}
        for k, c in enumerate(added)
    ]  # fmt: skip
    report = ExportReport(
        exporter="chakra",
        target=TARGET,
        files=files,
        layers=layers,
        skipped=skipped,
        settings={**asdict(options), "name": stem, "step": view.step, "structure": view.structure, "collectives": facts},
        approximations=tuple(_approximations(plan, found)),
        notes=tuple(_notes(plan, found, options)),
        provenance=dict(trace.provenance),
    )
    verify([view], report)
    return report


def _collectives(view: StepView, found: Sequence[Gradient], bucket_bytes: int) -> Iterator[Collective]:
    """The collectives of some gradients, which are given in the order in which they become complete."""
    trace, start = view.trace, view.rows.start
    buckets: list[list[Gradient]] = []
    for gradient in found:
        if buckets and sum(g.size_bytes for g in buckets[-1]) < bucket_bytes:
            buckets[-1].append(gradient)
        else:
            buckets.append([gradient])
    for number, bucket in enumerate(buckets):
        names = tuple(trace.strings[int(trace.variables.variable_name[g.variable])] for g in bucket)
        label = names[0] if len(names) == 1 else f"bucket_{number}"
        yield Collective(
            name=f"COMM_COLL_NODE_ALL_REDUCE_{_clean(label)}",
            size_bytes=sum(g.size_bytes for g in bucket),
            after=tuple(sorted({p - start for g in bucket for p in g.producers})),
            before=tuple(sorted({r - start for g in bucket for r in g.readers})),
            variables=names,
        )


def _clean(name: str) -> str:
    """`name` as a node may carry it: Chakra's timeline tool splits at commas and equals signs."""
    return re.sub(r"[,=\s]", "_", name)


class _Plan:
    """What is written, in order: executions by local number, and after these the added collectives (`len(view) + k`).

    `order` lists them so that producers come first, `position` is its inverse, `dependencies` are among places in `order`.
    """

    def __init__(self, view: StepView, added: Sequence[Collective], executed: Sequence[int], options: Options) -> None:
        self.view, self.added, self.executed, self.device = view, added, executed, options.device
        self.left_out = self._find_left_out(options.plumbing)
        self.types = [COMP_NODE if comm < 0 else COMM_COLL_NODE for comm in executed] + [COMM_COLL_NODE] * len(added)
        consumer, producer = self._edges()
        count = len(view) + len(added)
        self.order = _in_order(consumer, producer, count, len(view), added)
        self.position = np.empty(count, np.int64)
        self.position[self.order] = np.arange(count)
        pairs = distinct(self.position[consumer] * count + self.position[producer]) if count else consumer
        offsets = np.searchsorted(pairs // max(count, 1), np.arange(count + 1)).astype(np.int64)
        self.kept = np.ones(count, bool)
        self.kept[self.position[list(self.left_out)]] = False
        self.kept[self.position[np.flatnonzero(~view.chosen)]] = False
        self.dependencies = bridge(Dependencies(offsets, pairs % max(count, 1)), self.kept)
        exact = np.concatenate([view.duration_ns, np.zeros(len(added), np.int64)])[self.order]
        self.exact_ns: NDArray[np.int64] = np.where(self.kept, exact, 0)
        self.rounded_us, self.longest_ns, self.longest_rounded_us = _round(
            self.exact_ns.tolist(), self.dependencies, self.kept.tolist()
        )

    def _find_left_out(self, plumbing: bool) -> dict[int, str]:
        """Executions that are not written, and why."""
        found = {} if plumbing else dict.fromkeys(np.flatnonzero(self.view.helpers).tolist(), IS_HELPER)
        found |= {i: IS_EMPTY for i, comm in enumerate(self.executed) if comm >= 0 and not self.executed_bytes(i)}
        return found

    def executed_bytes(self, local: int) -> int:
        """Bytes that an executed collective was given."""
        trace = self.view.trace
        return sum(int(trace.tensors.size_bytes[t]) for t in trace.inputs(local + self.view.rows.start)[:1])

    def _edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(consumer, producer) of every dependency, those of the added collectives too."""
        depends, count = self.view.dependencies, len(self.view)
        consumers = [np.repeat(np.arange(count), np.diff(depends.offsets))]
        producers = [depends.producer]
        for number, collective in enumerate(self.added, start=count):
            consumers += [np.full(len(collective.after), number), np.array(collective.before, np.int64)]
            producers += [np.array(collective.after, np.int64), np.full(len(collective.before), number)]
        return np.concatenate(consumers).astype(np.int64), np.concatenate(producers).astype(np.int64)

    def identifier(self, local: int) -> int:
        """The id of an execution or an added collective."""
        count = len(self.view)
        return local + int(self.view.rows.start) if local < count else len(self.view.trace.executions) + local - count

    @property
    def identifiers(self) -> NDArray[np.int64]:
        """The ids by place."""
        count = len(self.view)
        return np.where(self.order < count, self.order + self.view.rows.start, self.order + len(self.view.trace.executions) - count)


def _in_order(
    consumer: NDArray[np.int64], producer: NDArray[np.int64], count: int, executions: int, added: Sequence[Collective]
) -> NDArray[np.int64]:
    """Everything so that producers come first: executions as in the trace where possible, a collective as soon as it can run."""
    if not added:
        return np.arange(count)
    rank = [*range(executions), *(c.after[-1] + 0.5 for c in added)]
    waiting = np.bincount(consumer, minlength=count).tolist()
    consumers: dict[int, list[int]] = defaultdict(list)
    for c, p in zip(consumer.tolist(), producer.tolist(), strict=True):
        consumers[p].append(c)
    ready = [(rank[i], i) for i in range(count) if not waiting[i]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for c in consumers.get(i, ()):
            waiting[c] -= 1
            if not waiting[c]:
                heapq.heappush(ready, (rank[c], c))
    if len(order) < count:
        stuck = next(c for i, c in enumerate(added, start=executions) if waiting[i])
        raise ExportError(
            f"the gradients of {', '.join(stuck.variables[:3])} wait for each other in one collective; set bucket_bytes=0"
        )
    return np.array(order, np.int64)


def _round(exact_ns: Sequence[int], depends: Dependencies, kept: Sequence[bool]) -> tuple[list[int], int, int]:
    """Whole microseconds for each time, and the longest path before (ns) and after (us).

    The longest path to the end of each is off by less than 1 us; of two numbers that allow that, the one is taken that keeps the sum.
    """
    flat, bounds = depends.producer.tolist(), depends.offsets.tolist()
    true_end, end, result = [0] * len(exact_ns), [0] * len(exact_ns), [0] * len(exact_ns)
    owed = 0
    for i, (a, b) in enumerate(pairwise(bounds)):
        if not kept[i]:
            continue
        before = flat[a:b]
        start = max([end[p] for p in before], default=0)
        true_end[i] = max([true_end[p] for p in before], default=0) + exact_ns[i]
        owed += exact_ns[i]
        down = max((true_end[i] - start * NS_PER_US) // NS_PER_US, 0)
        up = down + (true_end[i] > (start + down) * NS_PER_US)
        result[i] = up if owed - down * NS_PER_US > NS_PER_US // 2 else down
        owed -= result[i] * NS_PER_US
        end[i] = start + result[i]
    return result, max(true_end, default=0), max(end, default=0)


# --- encoding ---------------------------------------------------------------------------------------------------------------------


def _attribute(name: str, field: int, value: int | str) -> bytes:
    """An attribute of a node; the field says the type of its value."""
    content = wire.delimited(field, value) if isinstance(value, str) else wire.integer(field, value)
    return wire.delimited(10, wire.delimited(1, name) + content)


INT64, UINT64, BOOL, STRING = 9, 13, 27, 29


def _name(plan: _Plan, local: int) -> str:
    op = plan.view.trace.node_ops[plan.view.nodes[local]]
    comm = plan.executed[local]
    return f"COMP_NODE_{_clean(op)}" if comm < 0 else f"COMM_COLL_NODE_{COMM_NAMES[comm]}"


def encode(plan: _Plan) -> Iterator[bytes]:
    """The file's records: GlobalMetadata, then a Node for each kept execution and collective."""
    yield wire.record(wire.delimited(1, SCHEMA_VERSION))
    view, count = plan.view, len(plan.view)
    identifiers = plan.identifiers
    deps, dep_offsets = wire.encode_varints(identifiers[plan.dependencies.producer])
    bounds = dep_offsets[plan.dependencies.offsets].tolist()
    ids = _fields(b"\x08", identifiers)
    times = map(operator.add, _fields(b"\x30", _start_us(plan)), _fields(b"\x38", np.array(plan.rounded_us, np.int64)))
    heads, attributes = _heads(plan), _attributes(plan)
    operands = _Operands(view)
    iterations = {text: _attribute("iteration", STRING, text) if text else b"" for text in set(view.iterations)}
    iteration, nodes = view.iterations, view.nodes
    columns = (plan.kept.tolist(), plan.order.tolist(), ids, times, bounds, bounds[1:], _tails(plan))
    for kept, local, identifier, time, begin, end, tail in zip(*columns, strict=False):
        if not kept:
            continue
        waits = b"\x2a" + _length(end - begin) + deps[begin:end] if end > begin else b""
        if local < count:
            node = nodes[local]
            parts = (identifier, heads[node], waits, time, operands.of(local), attributes[node], iterations[iteration[local]], tail)
        else:
            name = wire.delimited(2, plan.added[local - count].name) + wire.integer(3, COMM_COLL_NODE)
            parts = (identifier, name, waits, time, b"", b"", b"", tail)
        body = b"".join(parts)
        yield _length(len(body)) + body


def _fields(head: bytes, values: NDArray[Any]) -> list[bytes]:
    """A field of an integer type for each value; nothing for 0, as protobuf has it."""
    return [head + raw if raw != b"\0" else b"" for raw in wire.varints(values)]


_LENGTHS = tuple(wire.varint(n) for n in range(4096))


def _length(n: int) -> bytes:
    return _LENGTHS[n] if n < 4096 else wire.varint(n)


def _start_us(plan: _Plan) -> NDArray[np.int64]:
    """When each began; a collective when the last that it waits for was done."""
    view = plan.view
    started = view.start_ns.tolist() + [max(int(view.start_ns[p] + view.duration_ns[p]) for p in c.after) for c in plan.added]
    return np.maximum(np.array(started, np.int64)[plan.order], 0) // NS_PER_US


def _heads(plan: _Plan) -> dict[int, bytes]:
    """Name and type of the executions of each node."""
    first = {node: local for local, node in reversed(list(enumerate(plan.view.nodes)))}
    return {n: wire.delimited(2, _name(plan, local)) + wire.integer(3, plan.types[local]) for n, local in first.items()}


def _attributes(plan: _Plan) -> dict[int, bytes]:
    """The attributes that all executions of a node share: `is_cpu_op`, `op` and `node`."""
    trace, found = plan.view.trace, dict[int, bytes]()
    for node in set(plan.view.nodes):
        op = trace.node_ops[node]
        on_cpu = plan.device == TRACED and op not in EXECUTED_COLLECTIVES and _is_cpu(trace.strings[int(trace.nodes.device[node])])
        told = (_attribute("op", STRING, op), _attribute("node", STRING, trace.node_names[node]))
        found[node] = _attribute("is_cpu_op", BOOL, int(on_cpu)) + b"".join(told)
    return found


def _is_cpu(device: str) -> bool:
    """Whether a device is a CPU; an unnamed one is, as TensorFlow places ops there by default."""
    return "GPU" not in device.upper() and "TPU" not in device.upper()


def _tails(plan: _Plan) -> list[bytes]:
    """The attributes whose values differ by execution: `duration_ns` and those that ASTRA-sim computes with."""
    view = plan.view
    work, moved = (np.concatenate([column, np.ones(len(plan.added), np.int64)])[plan.order] for column in _work(view))

    def attributes(name: str, field: int, values: NDArray[np.int64]) -> list[bytes]:
        rest = wire.delimited(1, name) + wire.tag(field, wire.VARINT)
        heads = [wire.tag(10, wire.LENGTH) + wire.varint(len(rest) + size) + rest for size in range(11)]
        distinct, numbers = np.unique(values, return_inverse=True)
        made = [heads[len(raw)] + raw for raw in wire.varints(distinct)]
        return [made[number] for number in numbers.reshape(-1).tolist()]

    columns = [
        attributes("num_ops", INT64, work), attributes("tensor_size", UINT64, moved), attributes("duration_ns", UINT64, plan.exact_ns)
    ]  # fmt: skip
    if max(plan.executed, default=-1) < 0 and not plan.added:
        return list(map(b"".join, zip(*columns, strict=True)))
    result, count = [], len(view)
    for local, ops, size, ns in zip(plan.order.tolist(), *columns, strict=True):
        comm = ALL_REDUCE if local >= count else plan.executed[local]
        if comm < 0:
            result.append(ops + size + ns)
            continue
        size_bytes = plan.added[local - count].size_bytes if local >= count else plan.executed_bytes(local)
        own = _attribute("is_cpu_op", BOOL, 0) if local >= count else ns
        result.append(
            own
            + _attribute("comm_type", INT64, comm)
            + _attribute("comm_size", INT64, size_bytes)
            + _attribute("pg_name", STRING, ALL_RANKS)
        )
    return result


def _work(view: StepView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """FLOPs and bytes of each execution, at least 1; unknown bytes are those of its tensors."""
    found = view.costs
    moved = np.where(found.bytes_known, found.bytes, 0)
    trace = view.trace
    for i in np.flatnonzero(~found.bytes_known).tolist():
        row = i + view.rows.start
        moved[i] = sum(int(trace.tensors.size_bytes[t]) for t in {*trace.inputs(row), *trace.outputs(row)})
    return np.maximum(np.where(found.flops_known, found.flops, 2 * found.macs), 1), np.maximum(moved, 1)


class _Operands:
    """`inputs` and `outputs` of nodes: values, shapes and types as texts of Python lists."""

    def __init__(self, view: StepView) -> None:
        trace, self.start = view.trace, view.rows.start
        tensors = trace.tensors
        items = [ITEM_BYTES.get(text, 0) for text in trace.strings.values]
        elements = trace.shapes.elements.tolist()
        shapes = [str(list(shape)) for shape in trace.shapes.values]
        devices = trace.nodes.device[trace.executions.node[tensors.execution]].astype(np.int64)
        kinds = np.stack([tensors.shape.astype(np.int64), tensors.dtype, devices], axis=1)
        distinct, numbers = np.unique(kinds, axis=0, return_inverse=True)
        self.kinds: list[int] = numbers.reshape(-1).tolist()
        self.texts = [(shapes[s], f"'Tensor({trace.strings[d]})'") for s, d, _ in distinct.tolist()]
        places = [re.sub(r".*/(?:device:)?", "", text) for text in trace.strings.values]
        rests = [f", 0, {elements[s]}, {items[d]}, {places[e]!r}]" for s, d, e in distinct.tolist()]
        storage = np.where(tensors.buffer >= 0, tensors.buffer + len(tensors), np.arange(len(tensors))).tolist()
        self.values = [f"[{t}, {kept}{rests[k]}".encode() for t, (kept, k) in enumerate(zip(storage, self.kinds, strict=True))]
        self.inputs, self.input_offsets = trace.executions.input.tolist(), trace.executions.input_offsets.tolist()
        self.output_offsets = trace.tensor_offsets.tolist()
        self._shared: dict[tuple[int, ...], bytes] = {}

    def of(self, local: int) -> bytes:
        """Both fields of one execution."""
        row = local + self.start
        read = self.inputs[self.input_offsets[row] : self.input_offsets[row + 1]]
        first, end = self.output_offsets[row], self.output_offsets[row + 1]
        inputs = self._content([self.values[t] for t in read], tuple([self.kinds[t] for t in read]))
        outputs = self._content(self.values[first:end], tuple(self.kinds[first:end]))
        return b"".join((b"\x42", _length(len(inputs)), inputs, b"\x4a", _length(len(outputs)), outputs))

    def _content(self, values: Sequence[bytes], kinds: tuple[int, ...]) -> bytes:
        shared = self._shared.get(kinds)
        if shared is None:
            told = [self.texts[k] for k in kinds]
            joined = ("[" + ", ".join(shape for shape, _ in told) + "]", "[" + ", ".join(kind for _, kind in told) + "]")
            shared = self._shared[kinds] = b"]" + wire.delimited(2, joined[0]) + wire.delimited(3, joined[1])
        text = b", ".join(values)
        return b"".join((b"\x0a", _length(len(text) + 2), b"[", text, shared))


# --- reporting --------------------------------------------------------------------------------------------------------------------


def _approximations(plan: _Plan, found: Sequence[Gradient]) -> Iterable[str]:
    exact, rounded = plan.exact_ns, np.array(plan.rounded_us, np.int64)
    zeros = int(np.count_nonzero(plan.kept & (rounded == 0)) - len(plan.added))
    yield (
        f"times are whole microseconds: the longest path is {plan.longest_rounded_us} us where it was {plan.longest_ns / NS_PER_US:.3f},"
        f" the sum {rounded.sum()} us where it was {exact.sum() / NS_PER_US:.3f}; {zeros} nodes of 0 us are replayed as 1 ns each"
    )
    view, costs = plan.view, plan.view.costs
    here = plan.kept[plan.position[: len(view)]]
    total = int(view.duration_ns.sum()) or 1
    for what, known, value in (("num_ops", costs.flops_known, costs.flops), ("tensor_size", costs.bytes_known, costs.bytes)):
        made_up = here & known & (value == 0)
        if made_up.any():
            yield f"{int(made_up.sum())} nodes that have none have {what} 1: ASTRA-sim's roofline never finishes a node of 0"
        unknown = here & ~known
        if unknown.any():
            share = format_share(float(view.duration_ns[unknown].sum()) / total)
            instead = "that of their MACs, or 1" if what == "num_ops" else "the bytes of their tensors, or 1"
            yield f"{int(unknown.sum())} nodes of unknown {what} ({share} of the time) have {instead}"
    sparse = [g for g in found if not g.is_dense]
    if sparse:
        yield f"{len(sparse)} sparse gradients are all-reduced as if they were dense"


def _notes(plan: _Plan, found: Sequence[Gradient], options: Options) -> Iterable[str]:
    view = plan.view
    trace = view.trace
    yield from notes([view])
    if plan.added:
        size = sum(c.size_bytes for c in plan.added)
        yield f"{len(plan.added)} collectives of {format_bytes(size)} in all were added, for {len(found)} trained variables"
    lacking = sorted(
        trace.strings[int(trace.variables.variable_name[v])]
        for v in set(np.flatnonzero(trace.variables.trainable).tolist()) - {g.variable for g in found}
    )
    own = sum(comm >= 0 for comm in plan.executed)
    where = "this step" if view.chosen.all() else "what was selected"
    if own:
        yield f"the trace executed {own} collectives of its own" + ", so no collectives were added for gradients" * (options.ranks > 1)
    elif options.ranks == 1:
        yield "one rank, no collectives: ASTRA-sim needs at least 2 ranks (--set ranks=2)"
    elif not found:
        yield f"no trained variable gets a gradient in {where}, so the ranks do not communicate"
    elif lacking:
        yield f"{len(lacking)} trained variables get no gradient in {where} and have no collective: {', '.join(lacking[:3])}"
    if not options.plumbing:
        yield f"without helpers the longest path is {format_ns(plan.longest_ns)}, with them {format_ns(view.longest_path_ns())}"


# --- checking ---------------------------------------------------------------------------------------------------------------------

KINDS = {"is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val", "duration_ns": "uint64_val", "op": "string_val",
         "node": "string_val", "iteration": "string_val", "comm_type": "int64_val", "comm_size": "int64_val",
         "pg_name": "string_val"}  # fmt: skip
REQUIRED_ATTRIBUTES = {
    COMP_NODE: ("is_cpu_op", "num_ops", "tensor_size", "duration_ns"),
    COMM_COLL_NODE: ("is_cpu_op", "comm_type", "comm_size", "pg_name"),
}


def check(folder: Path) -> CheckReport:
    """Parse the files strictly, look for what makes feeders hang, and compare with `export.json`.

    Per file: framing, no unknown field, ids unique, dependencies there and not repeated, no cycle (the shortest is shown), the attributes
    that a feeder reads with the types that it reads. Against the trace: nodes, exact time and dependencies of every layer, collectives in
    the same order on all ranks.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    facts = {"ranks": 0, "nodes": 0, "dependencies": 0, "collectives": 0, "time_ns": 0}
    try:
        layers = [ExportedLayer(**row) for row in report["layers"]]
        added, names = list(report["settings"]["collectives"]), [str(f) for f in report["files"]]
    except (KeyError, TypeError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of chakra ({error}); export again") from None
    on_disk = {p.name for p in folder.glob("*.et")}
    problems += [f"{name} is not in export.json" for name in sorted(on_disk - set(names))]
    first: bytes | None = None
    collectives: list[Any] = []
    for name in names:
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            problems.append(f"{name} cannot be read ({type(error).__name__})")
            continue
        facts["ranks"] += 1
        if content == first:
            continue
        nodes = _parse(name, content, problems)
        _check_nodes(name, nodes, problems)
        order = [
            [(a.name, a.int64_val) for a in n.attr if a.name in ("comm_type", "comm_size")] for n in nodes if n.type == COMM_COLL_NODE
        ]
        if first is None:
            first, collectives = content, order
            facts |= _facts(nodes)
        elif order != collectives:
            problems.append(f"{name}: its collectives are not those of {names[0]} in the same order")
        _compare(name, nodes, layers, added, problems)
    return CheckReport(tuple(sorted(on_disk)), facts, tuple(problems))


def _facts(nodes: Sequence[Any]) -> dict[str, int]:
    return {
        "nodes": len(nodes),
        "dependencies": sum(len(n.data_deps) for n in nodes),
        "collectives": sum(n.type == COMM_COLL_NODE for n in nodes),
        "time_ns": sum(a.uint64_val for n in nodes for a in n.attr if a.name == "duration_ns"),
    }


def _parse(name: str, content: bytes, problems: list[str]) -> list[Any]:
    """The nodes of a file, after its GlobalMetadata; what breaks the framing becomes a problem."""
    from google.protobuf.message import DecodeError

    from fathom_trace.generated.chakra_execution_pb2 import GlobalMetadata, Node

    at, nodes = 0, list[Any]()
    made: Any = GlobalMetadata()
    while at < len(content) or isinstance(made, GlobalMetadata):
        begin = at
        size = shift = 0
        while at < len(content):
            byte = content[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        raw = content[at : at + size]
        if not size or len(raw) < size:
            problems.append(f"{name}: the record at byte {begin} is cut off; nothing after it can be read")
            return nodes
        at += size
        try:
            made.ParseFromString(raw)
            made.DiscardUnknownFields()
        except DecodeError:
            problems.append(f"{name}: the record at byte {begin} is no {type(made).__name__}")
            return nodes
        if made.SerializeToString() != raw:
            problems.append(f"{name}: the record at byte {begin} has fields that a {type(made).__name__} does not have here")
            return nodes
        if not isinstance(made, GlobalMetadata):
            nodes.append(made)
        elif made.version != SCHEMA_VERSION:
            problems.append(f"{name} is of schema '{made.version}', not {SCHEMA_VERSION}")
            return nodes
        made = Node()
    return nodes


def _check_nodes(name: str, nodes: Sequence[Any], problems: list[str]) -> None:
    """What a feeder relies on."""
    ids = {n.id for n in nodes}
    if len(ids) != len(nodes):
        problems.append(f"{name}: {len(nodes) - len(ids)} ids are given twice")
    for node in nodes:
        where = f"{name}: node {node.id}"
        waits = list(node.data_deps)
        if len(set(waits)) != len(waits):
            problems.append(f"{where} repeats a dependency; feeders hang on it")
        problems += [f"{where} depends on node {d}, which does not exist" for d in waits if d not in ids]
        if node.ctrl_deps:
            problems.append(f"{where} has ctrl_deps, by which feeders do not order")
        prefix = {COMP_NODE: "COMP_NODE_", COMM_COLL_NODE: "COMM_COLL_NODE_"}.get(node.type)
        if prefix is None:
            problems.append(f"{where} is of type {node.type}, which is never written")
            continue
        if not node.name.startswith(prefix) or re.search(r"[,=\s]", node.name):
            problems.append(f"{where}: '{node.name}' is not a name that the timeline tool reads")
        problems += [f"{where}: {text}" for text in _check_attributes(node)]
    cycle = shortest_cycle({n.id: [d for d in n.data_deps if d in ids] for n in nodes})
    if cycle:
        problems.append(f"{name}: nodes wait for each other: {' -> '.join(map(str, cycle))}")


def _check_attributes(node: Any) -> Iterable[str]:
    found = {a.name: a for a in node.attr}
    if len(found) != len(node.attr):
        yield "an attribute is given twice"
    for missing in sorted(set(REQUIRED_ATTRIBUTES[node.type]) - set(found)):
        yield f"attribute {missing} is missing"
    for attribute in found.values():
        kind = attribute.WhichOneof("value")
        if KINDS.get(attribute.name) != kind:
            yield f"attribute {attribute.name} is a {kind}, readers take {KINDS.get(attribute.name, 'no such attribute')}"
            return
    if node.type == COMM_COLL_NODE and set(REQUIRED_ATTRIBUTES[COMM_COLL_NODE]) <= set(found):
        if found["comm_size"].int64_val <= 0:
            yield f"a collective of {found['comm_size'].int64_val} bytes"
        if found["comm_type"].int64_val not in COMM_NAMES:
            yield f"comm_type {found['comm_type'].int64_val} is none that ASTRA-sim has"
        if found["is_cpu_op"].bool_val:
            yield "a collective on a CPU"
        if not found["pg_name"].string_val.isdecimal():
            yield f"pg_name '{found['pg_name'].string_val}' is not a number"
    elif node.type == COMP_NODE and any(
        found[a].int64_val + found[a].uint64_val < 1 for a in ("num_ops", "tensor_size") if a in found
    ):
        yield "num_ops and tensor_size must not be 0: ASTRA-sim's roofline never finishes such a node"


def shortest_cycle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """The shortest cycle of a graph, first node repeated at the end; empty if there is none."""
    waiting = {node: len(set(before)) for node, before in waits_for.items()}
    followers: dict[int, list[int]] = defaultdict(list)
    for node, before in waits_for.items():
        for producer in set(before):
            followers[producer].append(node)
    free = deque(node for node, count in waiting.items() if not count)
    while free:
        node = free.popleft()
        del waiting[node]
        for follower in followers.get(node, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                free.append(follower)
    best: list[int] = []
    for start in waiting:
        came_from = {start: start}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for follower in followers.get(node, ()):
                if follower == start:
                    path = [start, node]
                    while node != start:
                        node = came_from[node]
                        path.append(node)
                    if not best or len(path) < len(best):
                        best = path
                    queue.clear()
                    break
                if follower in waiting and follower not in came_from:
                    came_from[follower] = node
                    queue.append(follower)
    return best[::-1]


def _compare(name: str, nodes: Sequence[Any], layers: Sequence[ExportedLayer], added: Sequence[Any], problems: list[str]) -> None:
    """Compare a file with what `export.json` says of the trace."""
    by_id = {n.id: n for n in nodes}
    expected = {e for layer in layers for e in layer.executions} | {c["id"] for c in added}
    for text, ids in (("lacks", expected - set(by_id)), ("has other", set(by_id) - expected)):
        if ids:
            problems.append(f"{name} {text} nodes than export.json: {', '.join(map(str, sorted(ids)[:5]))}" + ", ..." * (len(ids) > 5))
    if expected != set(by_id):
        return
    for layer in layers:
        mine = [by_id[e] for e in layer.executions]
        time = sum(a.uint64_val for n in mine for a in n.attr if a.name == "duration_ns")
        if time != layer.time_ns:
            problems.append(f"{name}: {layer.name}: {time} ns, in the trace {layer.time_ns:.0f}")
        waits = sum(len(n.data_deps) for n in mine)
        if waits != layer.facts.get("dependencies"):
            problems.append(f"{name}: {layer.name}: {waits} dependencies, in the trace {layer.facts.get('dependencies')}")
        if any(n.type != layer.facts.get("type") for n in mine):
            problems.append(f"{name}: {layer.name}: its nodes are of another type than {layer.facts.get('type')}")
    for collective in added:
        node = by_id[collective["id"]]
        size = sum(a.int64_val for a in node.attr if a.name == "comm_size")
        if (size, node.name, len(node.data_deps)) != (collective["size_bytes"], collective["name"], collective["dependencies"]):
            problems.append(f"{name}: node {node.id} is not the collective {collective['name']} of {collective['size_bytes']} bytes")


# --- results ----------------------------------------------------------------------------------------------------------------------

_EVENT = re.compile(r"<workload>: (issue|callback),sys->id=([0-9]+), tick=([0-9]+), node->id=([0-9]+), ")
_FINISHED = re.compile(r"<workload>: sys\[([0-9]+)\] finished, ")


def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float) -> dict[int, float]:
    """Duration in ns of each execution, from ASTRA-sim's log; `cycle_ns` is the length of a tick, which ASTRA-sim means as 1 ns.

    `path` is a log file, or the folder of log.log and the files that it was continued from (log.1.log, ...). The log holds an `issue` and
    a `callback` line for each node if the system's `trace-enabled` is 1. The first rank in it is read. Collectives are no executions of
    the trace: their time is not in the result. The lines are those that astra-sim/workload/Workload.cc writes in the version of March 2026.

    Raises:
        ExportError: the log is missing, incomplete, not of this export, or the rank did not finish; says which line or node.
    """
    issued: dict[int, int] = {}
    took: dict[int, int] = {}
    finished: set[int] = set()
    rank: int | None = None
    for file in _logs(path):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"{file} cannot be read ({type(error).__name__}); give ASTRA-sim's log.log or its folder") from None
        for number, line in enumerate(lines, start=1):
            if match := _FINISHED.search(line):
                finished.add(int(match[1]))
            match = _EVENT.search(line)
            if not match:
                continue
            who, tick, node = int(match[2]), int(match[3]), int(match[4])
            rank = who if rank is None else rank
            if who != rank:
                continue
            if match[1] == "issue":
                issued[node] = tick
            elif node not in issued or tick < issued[node]:
                raise ExportError(f"{file}: line {number}: node {node} ends before it was issued; the log is incomplete")
            else:
                took[node] = tick - issued[node]
    if rank is None:
        raise ExportError(f"{path} has no line of a node; set trace-enabled to 1 in ASTRA-sim's system configuration")
    if rank not in finished:
        raise ExportError(f"{path}: rank {rank} did not finish: it has no line 'sys[{rank}] finished'")
    expected = [e for layer in layer_map for e in layer.executions]
    missing = [e for e in expected if e not in took]
    if missing:
        raise ExportError(
            f"{path}: {len(missing)} of {len(expected)} nodes have no time, the first is {missing[0]}; it is of another export"
        )
    return {e: took[e] * cycle_ns for e in expected}


def _logs(path: Path) -> list[Path]:
    """Log files, oldest first."""
    if not path.is_dir():
        return [path]
    numbered = [(int(m[1] or 0), p) for p in path.glob("log*.log") if (m := re.fullmatch(r"log(?:\.([0-9]+))?\.log", p.name))]
    if not numbered:
        raise ExportError(f"{path} holds no log.log; give the folder that ASTRA-sim logged into")
    return [p for _, p in sorted(numbered, reverse=True)]
