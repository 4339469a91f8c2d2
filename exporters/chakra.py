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

import filecmp
import heapq
import re
import shutil
from array import array
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fathom_trace import wire
from fathom_trace.builder import ITEM_BYTES
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportedLayer, ExportReport, Target, file_stem, read_report
from fathom_trace.gradients import Gradient, gradients
from fathom_trace.layer_map import LayerMap
from fathom_trace.options import option
from fathom_trace.steps import MEDIAN, STEP_DOC, LeftOut, StepView, account, bridge, notes, verify, view_steps
from fathom_trace.trace import Dependencies, Trace, distinct
from fathom_trace.units import format_bytes, format_ns, format_share
from fathom_trace.untrusted import read_regular_text

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
Int64 = NDArray[np.int64]


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
    executed = executed_collectives(view)
    found = gradients(trace, view.structure) if options.ranks > 1 and executed.max(initial=-1) < 0 else []
    found = [g for g in found if trace.chosen[list(g.producers)].all()]
    added = list(_collectives(view, found, options.bucket_bytes))
    plan = _Plan(view, added, executed, options)
    stem = file_stem(options.name, trace.provenance)
    files = tuple(f"{stem}.{rank}.et" for rank in range(options.ranks))
    with (folder / files[0]).open("wb") as out:
        out.writelines(encode(plan))
    for file in files[1:]:
        shutil.copyfile(folder / files[0], folder / file)
    dependencies = np.diff(plan.dependencies.offsets)[plan.position]

    def describe(view: StepView, node: int, members: Int64) -> Mapping[str, Any]:
        more = f" and {len(members) - 1} more" * (len(members) > 1)
        return {
            "place": f"{files[0]}:node {members[0] + view.rows.start}{more}",
            "how": _name(plan, int(members[0])),
            "facts": {"dependencies": int(dependencies[members].sum()), "type": plan.type_of(int(members[0]))},
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


def executed_collectives(view: StepView) -> Int64:
    """The collective that each execution is; -1 for those that are none."""
    of_node = np.array([EXECUTED_COLLECTIVES.get(op, -1) for op in view.trace.node_ops], np.int64)
    return of_node[view.nodes]


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

    def __init__(self, view: StepView, added: Sequence[Collective], executed: Int64, options: Options) -> None:
        self.view, self.added, self.executed, self.device = view, added, executed, options.device
        self.left_out = self._find_left_out(options.plumbing)
        consumer, producer = self._edges()
        count = len(view) + len(added)
        self.order = _in_order(consumer, producer, count, len(view), added)
        self.position = np.empty(count, np.int64)
        self.position[self.order] = np.arange(count)
        pairs = distinct(self.position[consumer] * count + self.position[producer]) if count else consumer
        offsets = np.searchsorted(pairs // max(count, 1), np.arange(count + 1)).astype(np.int64)
        self.kept = np.ones(count, bool)
        self.kept[self.position[: len(view)][~self.left_out.written]] = False
        self.kept[self.position[np.flatnonzero(~view.chosen)]] = False
        self.dependencies = bridge(Dependencies(offsets, pairs % max(count, 1)), self.kept)
        exact = np.concatenate([view.duration_ns, np.zeros(len(added), np.int64)])[self.order]
        self.exact_ns: NDArray[np.int64] = np.where(self.kept, exact, 0)
        self.rounded_us, self.longest_ns, self.longest_rounded_us = _round(self.exact_ns, self.dependencies, self.kept)

    def _find_left_out(self, plumbing: bool) -> LeftOut:
        """Executions that are not written, and why."""
        empty = np.zeros(len(self.view), bool)
        empty[[i for i in np.flatnonzero(self.executed >= 0).tolist() if not self.executed_bytes(i)]] = True
        helper = np.zeros(len(self.view), bool) if plumbing else self.view.helpers
        return LeftOut.of(len(self.view), (IS_EMPTY, empty), (IS_HELPER, helper))

    def type_of(self, local: int) -> int:
        """The type of the node of an execution."""
        return COMP_NODE if self.executed[local] < 0 else COMM_COLL_NODE

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


def _round(exact_ns: Int64, depends: Dependencies, kept: NDArray[np.bool_]) -> tuple[Int64, int, int]:
    """Whole microseconds for each time, and the longest path before (ns) and after (us).

    The longest path to the end of each is off by less than 1 us; of two numbers that allow that, the one is taken that keeps the sum.
    """
    count = len(exact_ns)
    exact, is_kept = array("q", exact_ns.tobytes()), bytes(kept.astype(np.uint8))
    true_end, end, result = (array("q", bytes(8 * count)) for _ in range(3))
    owed = 0
    for i, before in enumerate(depends.lists()):
        if not is_kept[i]:
            continue
        start = max([end[p] for p in before], default=0)
        done = true_end[i] = max([true_end[p] for p in before], default=0) + exact[i]
        owed += exact[i]
        down = max((done - start * NS_PER_US) // NS_PER_US, 0)
        up = down + (done > (start + down) * NS_PER_US)
        rounded = result[i] = up if owed - down * NS_PER_US > NS_PER_US // 2 else down
        owed -= rounded * NS_PER_US
        end[i] = start + rounded
    return np.frombuffer(result, np.int64), max(true_end, default=0), max(end, default=0)


# --- encoding ---------------------------------------------------------------------------------------------------------------------


def _attribute(name: str, field: int, value: int | str) -> bytes:
    """An attribute of a node; the field says the type of its value."""
    content = wire.delimited(field, value) if isinstance(value, str) else wire.integer(field, value)
    return wire.delimited(10, wire.delimited(1, name) + content)


INT64, UINT64, BOOL, STRING = 9, 13, 27, 29


def _name(plan: _Plan, local: int) -> str:
    op = plan.view.trace.node_ops[plan.view.nodes[local]]
    comm = int(plan.executed[local])
    return f"COMP_NODE_{_clean(op)}" if comm < 0 else f"COMM_COLL_NODE_{COMM_NAMES[comm]}"


BLOCK = 16_384
"""Nodes that are encoded at once."""


def encode(plan: _Plan) -> Iterator[bytes]:
    """The file's records: GlobalMetadata, then a Node for each kept execution and collective; many at a time."""
    yield wire.record(wire.delimited(1, SCHEMA_VERSION))
    view, count = plan.view, len(plan.view)
    shared, operands, tails = _Shared(plan), _Operands(view), _Tails(plan)
    started, identifiers = _start_us(plan), plan.identifiers
    for begin in range(0, len(plan.order), BLOCK):
        places = begin + np.flatnonzero(plan.kept[begin : begin + BLOCK])
        order = plan.order[places]
        ran = np.minimum(order, count - 1)
        columns = (
            order.tolist(), _fields(b"\x08", identifiers[places]), _waits(plan, identifiers, places),
            _fields(b"\x30", started[places]), _fields(b"\x38", plan.rounded_us[places]), operands.of(ran),
            view.nodes[ran].tolist(), view.iterations[0][ran].tolist(), tails.of(places),
        )  # fmt: skip
        records: list[bytes] = []
        for local, identifier, waits, start, time, operand, node, iteration, tail in zip(*columns, strict=True):
            if local < count:
                told = shared.attributes[node], shared.iterations[iteration], tail
                body = b"".join((identifier, shared.heads[node], waits, start, time, operand, *told))
            else:
                name = wire.delimited(2, plan.added[local - count].name) + wire.integer(3, COMM_COLL_NODE)
                body = b"".join((identifier, name, waits, start, time, tail))
            records += (wire.length(len(body)), body)
        yield b"".join(records)


def _fields(head: bytes, values: NDArray[Any]) -> list[bytes]:
    """A field of an integer type for each value; nothing for 0, as protobuf has it."""
    return [head + raw if raw != b"\0" else b"" for raw in wire.varints(values)]


def _waits(plan: _Plan, identifiers: Int64, places: Int64) -> Iterator[bytes]:
    """The dependencies of some places in the order, which are ascending."""
    offsets = plan.dependencies.offsets
    first, last = (int(offsets[places[0]]), int(offsets[places[-1] + 1])) if len(places) else (0, 0)
    raw, bounds = wire.encode_varints(identifiers[plan.dependencies.producer[first:last]])
    edges = zip(bounds[offsets[places] - first].tolist(), bounds[offsets[places + 1] - first].tolist(), strict=True)
    return (b"".join((b"\x2a", wire.length(end - begin), raw[begin:end])) if end > begin else b"" for begin, end in edges)


class _Shared:
    """What the nodes of many executions have alike: by node head and attributes, by iteration an attribute."""

    def __init__(self, plan: _Plan) -> None:
        self.heads, self.attributes = _heads(plan), _attributes(plan)
        self.iterations = [_attribute("iteration", STRING, text) if text else b"" for text in plan.view.iterations[1]]


def _start_us(plan: _Plan) -> Int64:
    """When each began; a collective when the last that it waits for was done."""
    view = plan.view
    added = [max(int(view.start_ns[p] + view.duration_ns[p]) for p in c.after) for c in plan.added]
    started = np.concatenate([view.start_ns, np.array(added, np.int64)])
    return np.asarray(np.maximum(started[plan.order], 0) // NS_PER_US)


def _heads(plan: _Plan) -> dict[int, bytes]:
    """Name and type of the executions of each node."""
    nodes, first = np.unique(plan.view.nodes, return_index=True)
    ran = zip(nodes.tolist(), first.tolist(), strict=True)
    return {n: wire.delimited(2, _name(plan, local)) + wire.integer(3, plan.type_of(local)) for n, local in ran}


def _attributes(plan: _Plan) -> dict[int, bytes]:
    """The attributes that all executions of a node share: `is_cpu_op`, `op` and `node`."""
    trace, found = plan.view.trace, dict[int, bytes]()
    for node in np.unique(plan.view.nodes).tolist():
        op = trace.node_ops[node]
        on_cpu = plan.device == TRACED and op not in EXECUTED_COLLECTIVES and _is_cpu(trace.strings[int(trace.nodes.device[node])])
        told = (_attribute("op", STRING, op), _attribute("node", STRING, trace.node_names[node]))
        found[node] = _attribute("is_cpu_op", BOOL, int(on_cpu)) + b"".join(told)
    return found


def _is_cpu(device: str) -> bool:
    """Whether a device is a CPU; an unnamed one is, as TensorFlow places ops there by default."""
    return "GPU" not in device.upper() and "TPU" not in device.upper()


class _Tails:
    """The attributes whose values differ by execution: `duration_ns` and those that ASTRA-sim computes with."""

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.work, self.moved = _work(plan.view)
        self.is_plain = not plan.added and plan.executed.max(initial=-1) < 0

    def of(self, places: Int64) -> Iterator[bytes]:
        """Those of some places in the order."""
        plan, count = self.plan, len(self.plan.view)
        order = plan.order[places]
        ran = np.minimum(order, count - 1)
        columns = (
            _numbers("num_ops", INT64, self.work[ran]), _numbers("tensor_size", UINT64, self.moved[ran]),
            _numbers("duration_ns", UINT64, plan.exact_ns[places]),
        )  # fmt: skip
        if self.is_plain:
            return map(b"".join, zip(*columns, strict=True))
        comms = np.where(order < count, plan.executed[ran], ALL_REDUCE).tolist()
        return (self._tail(*each) for each in zip(order.tolist(), comms, *columns, strict=True))

    def _tail(self, local: int, comm: int, ops: bytes, size: bytes, ns: bytes) -> bytes:
        if comm < 0:
            return ops + size + ns
        added = local - len(self.plan.view)
        return b"".join(
            (
                _attribute("is_cpu_op", BOOL, 0) if added >= 0 else ns,
                _attribute("comm_type", INT64, comm),
                _attribute("comm_size", INT64, self.plan.added[added].size_bytes if added >= 0 else self.plan.executed_bytes(local)),
                _attribute("pg_name", STRING, ALL_RANKS),
            )
        )


def _numbers(name: str, field: int, values: Int64) -> list[bytes]:
    """An attribute with each of some values."""
    rest = wire.delimited(1, name) + wire.tag(field, wire.VARINT)
    heads = [wire.tag(10, wire.LENGTH) + wire.varint(len(rest) + size) + rest for size in range(11)]
    distinct, numbers = np.unique(values, return_inverse=True)
    made = [heads[len(raw)] + raw for raw in wire.varints(distinct)]
    return [made[number] for number in numbers.reshape(-1).tolist()]


def _work(view: StepView) -> tuple[Int64, Int64]:
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
        trace, self.view = view.trace, view
        tensors = trace.tensors
        items = [ITEM_BYTES.get(text, 0) for text in trace.strings.values]
        elements, texts = trace.shapes.elements.tolist(), trace.strings.values
        shapes, strings = len(trace.shapes), len(trace.strings)
        keys = trace.nodes.device[trace.executions.node[tensors.execution]] + strings * (
            tensors.dtype + strings * tensors.shape.astype(np.int64)
        )
        distinct, numbers = np.unique(keys, return_inverse=True)
        self.kinds = numbers.reshape(-1).astype(np.int32)
        """What is said of the dtype, shape and device of each tensor: a number of `texts` and `rests`."""
        told = [(s % shapes, d % strings, e % strings) for e, d, s in ((k, k // strings, k // strings**2) for k in distinct.tolist())]
        self.texts = [(str(list(trace.shapes[s])), f"'Tensor({texts[d]})'") for s, d, _ in told]
        places = {e: re.sub(r".*/(?:device:)?", "", texts[e]) for _, _, e in told}
        self.rests = [f", 0, {elements[s]}, {items[d]}, {places[e]!r}]" for s, d, e in told]
        self.storage = np.where(tensors.buffer >= 0, tensors.buffer.astype(np.int64) + len(tensors), np.arange(len(tensors)))
        self.value = lru_cache(2 * BLOCK)(self._value)
        self._shared: dict[tuple[int, ...], bytes] = {}

    def _value(self, tensor: int) -> bytes:
        return f"[{tensor}, {self.storage[tensor]}{self.rests[self.kinds[tensor]]}".encode()

    def of(self, local: Int64) -> Iterator[bytes]:
        """Both fields of some executions."""
        executions, rows = self.view.trace.executions, local + self.view.rows.start
        sides = []
        for offsets in (executions.input_offsets, self.view.trace.tensor_offsets):
            begins, counts = offsets[rows], offsets[rows + 1] - offsets[rows]
            bounds = np.concatenate([[0], np.cumsum(counts)])
            places = np.repeat(begins - bounds[:-1], counts) + np.arange(bounds[-1])
            tensors = executions.input[places] if offsets is executions.input_offsets else places
            sides.append((list(map(self.value, tensors.tolist())), self.kinds[tensors].tolist(), list(pairwise(bounds.tolist()))))
        (read, read_kinds, read_bounds), (made, made_kinds, made_bounds) = sides
        for (a, b), (c, d) in zip(read_bounds, made_bounds, strict=True):
            inputs = self._content(read[a:b], tuple(read_kinds[a:b]))
            outputs = self._content(made[c:d], tuple(made_kinds[c:d]))
            yield b"".join((b"\x42", wire.length(len(inputs)), inputs, b"\x4a", wire.length(len(outputs)), outputs))

    def _content(self, values: Sequence[bytes], kinds: tuple[int, ...]) -> bytes:
        shared = self._shared.get(kinds)
        if shared is None:
            told = [self.texts[k] for k in kinds]
            joined = ("[" + ", ".join(shape for shape, _ in told) + "]", "[" + ", ".join(kind for _, kind in told) + "]")
            shared = self._shared[kinds] = b"]" + wire.delimited(2, joined[0]) + wire.delimited(3, joined[1])
        text = b", ".join(values)
        return b"".join((b"\x0a", wire.length(len(text) + 2), b"[", text, shared))


# --- reporting --------------------------------------------------------------------------------------------------------------------


def _approximations(plan: _Plan, found: Sequence[Gradient]) -> Iterable[str]:
    exact, rounded = plan.exact_ns, plan.rounded_us
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
    own = int(np.count_nonzero(plan.executed >= 0))
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
        layers = LayerMap(report["layers"])
        added, names = list(report["settings"]["collectives"]), [str(f) for f in report["files"]]
        np.array([[c["id"], c["size_bytes"], c["dependencies"], len(c["name"])] for c in added], np.int64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of chakra ({error}); export again") from None
    on_disk = {p.name for p in folder.glob("*.et")}
    problems += [f"{name} is not in export.json" for name in sorted(on_disk - set(names))]
    first: tuple[str, list[Any]] | None = None
    for name in names:
        try:
            if first and filecmp.cmp(folder / first[0], folder / name, shallow=False):
                facts["ranks"] += 1
                continue
            with (folder / name).open("rb") as file:
                nodes = _Nodes(name, problems)
                for node in _parse(name, file, problems):
                    nodes.add(node)
        except OSError as error:
            problems.append(f"{name} cannot be read ({type(error).__name__})")
            continue
        except OverflowError:
            problems.append(f"{name} has numbers of more than 64 bits, which are never written")
            continue
        facts["ranks"] += 1
        nodes.check()
        order = [kinds for _, _, _, kinds in nodes.collectives.values()]
        if first is None:
            first = name, order
            facts |= nodes.facts()
        elif order != first[1]:
            problems.append(f"{name}: its collectives are not those of {first[0]} in the same order")
        _compare(name, nodes, layers, added, problems)
    return CheckReport(tuple(sorted(on_disk)), facts, tuple(problems))


def _parse(name: str, file: BinaryIO, problems: list[str]) -> Iterator[Any]:
    """The nodes of a file, after its GlobalMetadata, one at a time; what breaks the framing becomes a problem."""
    from google.protobuf.message import DecodeError

    from fathom_trace.generated.chakra_execution_pb2 import GlobalMetadata, Node

    kind: Any = GlobalMetadata
    try:
        for begin, raw in wire.read_records(file):
            try:
                made = kind.FromString(raw)
                made.DiscardUnknownFields()
            except DecodeError:
                problems.append(f"{name}: the record at byte {begin} is no {kind.__name__}")
                return
            if made.SerializeToString() != raw:
                problems.append(f"{name}: the record at byte {begin} has fields that a {kind.__name__} does not have here")
                return
            if kind is Node:
                yield made
            elif made.version != SCHEMA_VERSION:
                problems.append(f"{name} is of schema '{made.version}', not {SCHEMA_VERSION}")
                return
            kind = Node
    except wire.CutOffError as error:
        problems.append(f"{name}: the record at byte {error.at} is cut off; nothing after it can be read")
        return
    if kind is GlobalMetadata:
        problems.append(f"{name}: the record at byte 0 is cut off; nothing after it can be read")


class _Nodes:
    """The nodes of a file, in columns: id, type, exact time, and dependencies as CSR. What a feeder relies on is checked."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self.name, self.problems = name, problems
        self.ids, self.types, self.times = array("q"), array("q"), array("q")
        self.waits, self.bounds = array("q"), array("q", [0])
        self.collectives: dict[int, tuple[str, int, int, list[tuple[str, int]]]] = {}
        """Of each: name, bytes, number of dependencies, its kind and size as they are written."""

    def add(self, node: Any) -> None:
        """One more, checked by itself; raises `OverflowError` where a number has more than 64 bits."""
        waits, attributes = list(node.data_deps), list(node.attr)
        problems = list(_check_node(node, waits, attributes))
        self.problems += [f"{self.name}: node {node.id}{text}" for text in problems]
        self.ids.append(node.id)
        self.types.append(node.type)
        self.times.append(sum(a.uint64_val for a in attributes if a.name == "duration_ns"))
        self.waits.extend(waits)
        self.bounds.append(len(self.waits))
        if node.type == COMM_COLL_NODE:
            kinds = [(a.name, a.int64_val) for a in attributes if a.name in ("comm_type", "comm_size")]
            size = sum(value for what, value in kinds if what == "comm_size")
            self.collectives[node.id] = (node.name, size, len(waits), kinds)

    def check(self) -> None:
        """What only all of them tell: each id once, every dependency there, no cycle (the shortest is shown)."""
        ids, waits = np.array(self.ids, np.int64), np.array(self.waits, np.int64)
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        twice = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
        if twice:
            self.problems.append(f"{self.name}: {twice} ids are given twice")
        consumer = np.repeat(np.arange(len(ids)), np.diff(np.array(self.bounds, np.int64)).astype(np.int64))
        place = np.minimum(np.searchsorted(ordered, waits), max(len(ids) - 1, 0))
        known = ordered[place] == waits if len(ids) else np.zeros(0, bool)
        self.problems += [
            f"{self.name}: node {ids[consumer[k]]} depends on node {waits[k]}, which does not exist"
            for k in np.flatnonzero(~known).tolist()
        ]
        if np.all(order[place[known]] < consumer[known]):
            return  # producers come first, so there is no cycle
        waits_for: dict[int, list[int]] = {i: [] for i in ids.tolist()}
        for before, after in zip(waits[known].tolist(), ids[consumer[known]].tolist(), strict=True):
            waits_for[after].append(before)
        cycle = shortest_cycle(waits_for)
        if cycle:
            self.problems.append(f"{self.name}: nodes wait for each other: {' -> '.join(map(str, cycle))}")

    def facts(self) -> dict[str, int]:
        """What a report of a check says."""
        collectives = sum(kind == COMM_COLL_NODE for kind in self.types)
        return {"nodes": len(self.ids), "dependencies": len(self.waits), "collectives": collectives, "time_ns": sum(self.times)}


def _check_node(node: Any, waits: Sequence[int], attributes: Sequence[Any]) -> Iterator[str]:
    """What is wrong with a node alone."""
    if len(set(waits)) != len(waits):
        yield " repeats a dependency; feeders hang on it"
    if node.ctrl_deps:
        yield " has ctrl_deps, by which feeders do not order"
    prefix = {COMP_NODE: "COMP_NODE_", COMM_COLL_NODE: "COMM_COLL_NODE_"}.get(node.type)
    if prefix is None:
        yield f" is of type {node.type}, which is never written"
        return
    if not node.name.startswith(prefix) or re.search(r"[,=\s]", node.name):
        yield f": '{node.name}' is not a name that the timeline tool reads"
    yield from (f": {text}" for text in _check_attributes(node.type, attributes))


def _check_attributes(node_type: int, attributes: Sequence[Any]) -> Iterator[str]:
    found = {a.name: a for a in attributes}
    if len(found) != len(attributes):
        yield "an attribute is given twice"
    for missing in sorted(set(REQUIRED_ATTRIBUTES[node_type]) - set(found)):
        yield f"attribute {missing} is missing"
    for attribute in found.values():
        kind = attribute.WhichOneof("value")
        if KINDS.get(attribute.name) != kind:
            yield f"attribute {attribute.name} is a {kind}, readers take {KINDS.get(attribute.name, 'no such attribute')}"
            return
    if node_type == COMM_COLL_NODE and set(REQUIRED_ATTRIBUTES[COMM_COLL_NODE]) <= set(found):
        if found["comm_size"].int64_val <= 0:
            yield f"a collective of {found['comm_size'].int64_val} bytes"
        if found["comm_type"].int64_val not in COMM_NAMES:
            yield f"comm_type {found['comm_type'].int64_val} is none that ASTRA-sim has"
        if found["is_cpu_op"].bool_val:
            yield "a collective on a CPU"
        if not found["pg_name"].string_val.isdecimal():
            yield f"pg_name '{found['pg_name'].string_val}' is not a number"
    elif node_type == COMP_NODE and any(
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


def _compare(name: str, nodes: _Nodes, layers: LayerMap, added: Sequence[Any], problems: list[str]) -> None:
    """Compare a file with what `export.json` says of the trace."""
    ids = np.array(nodes.ids, np.int64)
    expected = np.union1d(layers.executions, np.array([c["id"] for c in added], np.int64))
    for text, odd in (("lacks", np.setdiff1d(expected, ids)), ("has other", np.setdiff1d(ids, expected))):
        if len(odd):
            problems.append(
                f"{name} {text} nodes than export.json: {', '.join(map(str, odd[:5].tolist()))}" + ", ..." * (len(odd) > 5)
            )
    if not np.array_equal(np.unique(ids), expected):
        return
    of = layers.layer_of(ids)
    times, waits = layers.sums(of, nodes.times).tolist(), layers.sums(of, np.diff(np.array(nodes.bounds, np.int64))).tolist()
    types = np.array([t if isinstance(t, int) else -1 for t in layers.facts("type")] or [-1], np.int64)
    other = set(np.unique(of[(of >= 0) & (np.array(nodes.types, np.int64) != types[of])]).tolist())
    for number, layer in enumerate(layers.layers):
        if times[number] != layer.time_ns:
            problems.append(f"{name}: {layer.name}: {times[number]} ns, in the trace {layer.time_ns:.0f}")
        if waits[number] != layer.facts.get("dependencies"):
            problems.append(f"{name}: {layer.name}: {waits[number]} dependencies, in the trace {layer.facts.get('dependencies')}")
        if number in other:
            problems.append(f"{name}: {layer.name}: its nodes are of another type than {layer.facts.get('type')}")
    for collective in added:
        found = nodes.collectives.get(collective["id"], ("", 0, 0))[:3]
        if found != (collective["name"], collective["size_bytes"], collective["dependencies"]):
            problems.append(
                f"{name}: node {collective['id']} is not the collective {collective['name']} of {collective['size_bytes']} bytes"
            )


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
            lines = read_regular_text(file, "utf-8").splitlines()
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
