"""MACs, FLOPs and bytes of every execution, from its op type, attributes and the shapes that really ran.

The rules are in `cost_rules`. What has no rule, or does not fit its rule, is *not known*: its cost is no zero, and it lowers the
coverage, which is stated for MACs, FLOPs and bytes apart, by executions and by time. Counts are dense and per execution: a loop body that
ran five times has five costs. A call that was expanded has no cost of its own; its parts have, and it is known where they all are.

Executions that agree in op type, attributes and shapes cost the same, so each rule runs once for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fathom_trace import tables
from fathom_trace.cost_rules import Call, Operand, Rule, UnknownPartError, find
from fathom_trace.cost_rules.call import INPUT, Part, whole_outputs
from fathom_trace.errors import TraceError
from fathom_trace.ops import UNKNOWN, canonical, kind
from fathom_trace.trace import Trace

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

WHAT = ("macs", "flops", "bytes")

MAY_MULTIPLY = frozenset({"conv", "conv_filter_grad", "conv_input_grad", "gemm", "batched_gemm", "recurrent", "opaque", UNKNOWN})
"""Kinds that may hold MACs; an op of any other kind has none, also where its FLOPs are not known."""


@dataclass(frozen=True)
class Coverage:
    """The share of executions, and of their time, whose cost is known. `time` is None where no time was given or spent."""

    executions: float
    time: float | None


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of consecutive executions: row `i` is row `first + i` of the trace's `executions`.

    What lies outside a selection costs nothing. Where a cost is not known its value is 0, and its `..._known` is False.
    """

    first: int
    macs: Int64
    flops: Int64
    bytes_read: Int64
    bytes_written: Int64
    macs_known: Mask
    flops_known: Mask
    bytes_known: Mask
    op_types: tuple[str, ...]
    reasons: Mapping[str, str]
    """Op type to why a cost of it is not known."""

    def __len__(self) -> int:
        return len(self.macs)

    @property
    def bytes(self) -> Int64:
        """Bytes read and written."""
        return np.asarray(self.bytes_read + self.bytes_written)

    def only(self, mask: Mask) -> Costs:
        """The costs of some of the executions, without their rows."""
        columns = {f.name: getattr(self, f.name)[mask] for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)}
        return replace(self, **columns, op_types=tuple(compress(self.op_types, mask.tolist())))

    def known(self, what: str) -> Mask:
        """Whether `macs`, `flops` or `bytes` are known, per execution."""
        return {"macs": self.macs_known, "flops": self.flops_known, "bytes": self.bytes_known}[what]

    def coverage(self, durations_ns: ArrayLike | None = None) -> dict[str, Coverage]:
        """How much of MACs, FLOPs and bytes is known; `durations_ns` has one value per execution."""
        times = np.zeros(len(self)) if durations_ns is None else np.asarray(durations_ns, np.float64)
        if times.shape != (len(self),):
            raise TraceError(f"costs are of {len(self)} executions, but {times.shape} durations were given; give one each")
        total = float(times.sum())
        result: dict[str, Coverage] = {}
        for what in WHAT:
            known = self.known(what)
            share = float(known.mean()) if len(known) else 1.0
            result[what] = Coverage(share, float(times[known].sum()) / total if total > 0 else None)
        return result

    def uncovered(self, what: str = "flops") -> dict[str, int]:
        """Op types some of whose executions have no known cost, with how many, most first."""
        missing = np.flatnonzero(~self.known(what)).tolist()
        return dict(Counter(self.op_types[row] for row in missing).most_common())


def costs(trace: Trace, structure: int | None = None) -> Costs:
    """The costs of one structure's executions; of all executions of the trace without `structure`."""
    rows = slice(0, len(trace.executions)) if structure is None else trace.structure_rows(structure)
    signature, examples = _signatures(trace, rows)
    found = np.zeros((len(examples), 4), np.int64)
    known = np.zeros((len(examples), 3), bool)
    reasons: dict[str, str] = {}
    for number, row in enumerate(examples.tolist()):
        _cost_of(trace, row + rows.start, found[number], known[number], reasons)
    values, is_known = found[signature], known[signature]
    _settle_calls(trace, rows, values, is_known)
    ops = trace.node_ops
    return Costs(
        first=rows.start,
        macs=values[:, 0],
        flops=values[:, 1],
        bytes_read=values[:, 2],
        bytes_written=values[:, 3],
        macs_known=is_known[:, 0],
        flops_known=is_known[:, 1],
        bytes_known=is_known[:, 2],
        op_types=tuple(ops[n] for n in trace.executions.node[rows].tolist()),
        reasons=reasons,
    )


def parts_by_signature(trace: Trace, structure: int) -> Iterator[tuple[Int64, list[Part], list[Part]]]:
    """Executions of a structure (local numbers, ascending) that cost the same, with what each reads and what it writes, place by place.

    The bytes are those of `costs`. What moves none, or of which the bytes are not known, is left out.
    """
    rows = trace.structure_rows(structure)
    signature, examples = _signatures(trace, rows)
    parents = trace.executions.parent[rows].astype(np.int64) - rows.start
    signature[parents[(parents >= 0) & (parents < len(parents))]] = len(examples)
    order = np.argsort(signature, kind="stable")
    bounds = np.searchsorted(signature[order], np.arange(len(examples) + 1))
    for number, row in enumerate(examples.tolist()):
        runs = order[bounds[number] : bounds[number + 1]]
        values, known = np.zeros(4, np.int64), np.zeros(3, bool)
        _cost_of(trace, row + rows.start, values, known, {})
        if len(runs) and known[2] and values[2:].any():
            call, rule = _call(trace, row + rows.start), find(canonical(trace.node_ops[int(trace.executions.node[row + rows.start])]))
            if trace.executions.kind[row + rows.start] == tables.EXECUTION_COPY or rule is None:
                yield runs, [Part(INPUT, 0, call.output_bytes)], whole_outputs(call)
            else:
                yield runs, rule.traffic.reads(call), rule.traffic.writes(call)


def _cost_of(trace: Trace, row: int, values: Int64, known: Mask, reasons: dict[str, str]) -> None:
    """Fill in macs, flops, bytes read and written of one execution, and which of them are known."""
    node = int(trace.executions.node[row])
    op_type = trace.node_ops[node]
    known[0] = kind(op_type) not in MAY_MULTIPLY
    call = _call(trace, row)
    if trace.executions.kind[row] == tables.EXECUTION_OUTSIDE:
        known[:] = True
        return
    if trace.executions.kind[row] == tables.EXECUTION_COPY:
        values[:], known[:] = (0, 0, call.output_bytes, call.output_bytes), True
        return
    rule = find(call.op)
    if rule is None:
        reasons.setdefault(op_type, "no rule")
        return
    if _lacks_inputs(trace, row, node):
        reasons.setdefault(op_type, "an input of it is not in the trace")
        return
    try:
        macs = rule.macs(call) if rule.macs is not None else 0
        read, written = rule.traffic.read(call), rule.traffic.written(call)
        operations = _operations(rule, call)
    except (LookupError, TypeError, ValueError) as error:
        reasons.setdefault(op_type, f"does not fit its rule ({type(error).__name__}: {error})")
        return
    if isinstance(operations, str):
        reasons.setdefault(op_type, operations)
        values[:], known[:] = (macs, 0, read, written), (True, False, True)
    else:
        values[:], known[:] = (macs, 2 * macs + operations, read, written), True


def _operations(rule: Rule, call: Call) -> int | str:
    """Elementwise and reduction operations, or why they have no formula: what is fused into a product may be unknown, the product is not.

    Raises:
        LookupError, TypeError, ValueError: the execution has not the inputs, attributes or shapes that the rule speaks of.
    """
    if rule.operations is None:
        return "its operations have no formula"
    try:
        return rule.operations(call)
    except UnknownPartError as error:
        return str(error)


def _call(trace: Trace, row: int) -> Call:
    """The execution as its rule sees it."""
    node = int(trace.executions.node[row])
    seen: set[int] = set()
    inputs: list[Operand] = []
    for tensor in trace.inputs(row):
        inputs.append(_operand(trace, tensor, tensor in seen))
        seen.add(tensor)
    outputs = {int(trace.tensors.port[tensor]): _operand(trace, tensor, False) for tensor in trace.outputs(row)}
    return Call(canonical(trace.node_ops[node]), trace.node_attributes[node], tuple(inputs), outputs)


def _operand(trace: Trace, tensor: int, is_repeated: bool) -> Operand:
    columns = trace.tensors
    return Operand(
        trace.strings[int(columns.dtype[tensor])],
        trace.shapes[int(columns.shape[tensor])],
        int(columns.size_bytes[tensor]),
        is_repeated,
    )


def _lacks_inputs(trace: Trace, row: int, node: int) -> bool:
    """True if fewer inputs were resolved than the node has: positions would be wrong. Plumbing runs on those that are live."""
    if kind(trace.node_ops[node]) == "control":
        return False
    ports = trace.nodes.input_port[trace.nodes.row_values("input", node)]
    inputs = trace.executions.row_values("input", row)
    return bool(np.count_nonzero(ports >= 0) > inputs.stop - inputs.start)


def _settle_calls(trace: Trace, rows: slice, values: Int64, known: Mask) -> None:
    """A call that was expanded costs nothing itself, and is known where all its parts are (parts follow their call)."""
    parents = trace.executions.parent[rows].astype(np.int64) - rows.start
    parts = np.flatnonzero(parents >= 0)
    if not len(parts):
        return
    calls = np.unique(parents[parts])
    values[calls], known[calls] = 0, True
    for part in parts[::-1].tolist():
        known[parents[part]] &= known[part]


def _signatures(trace: Trace, rows: slice) -> tuple[Int64, Int64]:
    """The class of each execution, and one execution of each class (numbered from `rows.start`).

    Executions of one class agree in op type, attributes, kind, and in dtype, shape and size of every input and output, and read the same
    tensor twice in the same places. Found position by position, so that no two classes can be taken for one.
    """
    executions, tensors = trace.executions, trace.tensors
    node = executions.node[rows].astype(np.int64)
    keys = _combine(trace.nodes.op.astype(np.int64), trace.nodes.attributes, np.diff(trace.nodes.input_offsets))[node]
    keys = _combine(
        keys, executions.kind[rows], *(_counts(bounds, rows) for bounds in (executions.input_offsets, trace.tensor_offsets))
    )
    tensor_class = _combine(tensors.dtype, tensors.shape, tensors.size_bytes)
    inputs = executions.input[executions.input_offsets[rows.start] : executions.input_offsets[rows.stop]]
    starts = executions.input_offsets[rows.start : rows.stop] - executions.input_offsets[rows.start]
    repeated = _repeats(np.repeat(np.arange(len(node)), _counts(executions.input_offsets, rows)), inputs)
    keys = _fold(keys, starts, _counts(executions.input_offsets, rows), tensor_class[inputs] * 2 + repeated)
    begin, end = int(trace.tensor_offsets[rows.start]), int(trace.tensor_offsets[rows.stop])
    outputs = _combine(tensor_class[begin:end], tensors.port[begin:end])
    keys = _fold(keys, trace.tensor_offsets[rows.start : rows.stop] - begin, _counts(trace.tensor_offsets, rows), outputs)
    _, examples, classes = np.unique(keys, return_index=True, return_inverse=True)
    return classes.reshape(-1).astype(np.int64), examples.astype(np.int64)


def _counts(offsets: NDArray[Any], rows: slice) -> Int64:
    return np.diff(offsets[rows.start : rows.stop + 1]).astype(np.int64)


def _combine(*columns: NDArray[Any]) -> Int64:
    """A number for each distinct row of the columns, from 0."""
    keys = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if len(column):
            _, found = np.unique(column, return_inverse=True)
            _, keys = np.unique(keys * (int(found.max()) + 1) + found.reshape(-1), return_inverse=True)
            keys = keys.reshape(-1)
    return keys.astype(np.int64)


def _fold(keys: Int64, starts: Int64, counts: Int64, values: Int64) -> Int64:
    """`keys` refined by the ragged values of each row; rows of one key must already have one count."""
    keys = keys.copy()
    span = int(values.max()) + 1 if len(values) else 1
    for position in range(int(counts.max()) if len(counts) else 0):
        longer = np.flatnonzero(counts > position)
        _, refined = np.unique(keys[longer] * span + values[starts[longer] + position], return_inverse=True)
        keys[longer] = refined.reshape(-1) + int(keys.max()) + 1
    return keys


def _repeats(owner: NDArray[Any], tensor: NDArray[Any]) -> Int64:
    """1 for each tensor that the same owner listed before, else 0."""
    result = np.zeros(len(tensor), np.int64)
    order = np.lexsort((np.arange(len(tensor)), tensor, owner))
    same = (owner[order][1:] == owner[order][:-1]) & (tensor[order][1:] == tensor[order][:-1])
    result[order[1:]] = same
    return result
