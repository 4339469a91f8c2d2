"""Which memory each execution of a step reads and writes: its bytes as `costs` counts them, piece by piece.

A *piece* is memory that holds one tensor, under all the names that it goes by: what only hands a tensor on (`Identity`, `Reshape`, loop
and branch plumbing, reading a variable) shares the piece of what it was given, an optimizer's op writes the variable's own piece, and a
constant has one piece however often its loop runs. A variable moves to another piece where TensorFlow moves it: an assignment hands it the
value's memory, and an update copies it first while a value that was read from it is still to be used. Where TensorFlow reported an
address, that is the piece's. Elsewhere a piece has none, and is synthetic.

Where an op touches only a part of a tensor (a slice, rows that indices name), the trace does not tell which part: it is taken from the
tensor's beginning, and again from there if more is read than the tensor holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables
from fathom_trace.cost_rules.call import INPUT, LIST, OUTPUT, VARIABLE, Part
from fathom_trace.costs import parts_by_signature
from fathom_trace.ops import canonical, kind
from fathom_trace.steps import StepView

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
_Columns = tuple[NDArray[Any], ...]

BUFFER, TENSOR, VARIABLE_PIECE, LIST_PIECE, UNRESOLVED = range(5)
"""Kinds of pieces: an address that was reported; a tensor, a variable, a list's elements without one; what the trace does not name."""

KINDS = ("reported address", "tensor", "variable", "elements of a list", "not named by the trace")

_SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
_PASSING = frozenset(
    {
        "Identity", "IdentityN", "RefIdentity", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot", "Reshape", "Squeeze",
        "ExpandDims", "Bitcast", "QuantizedReshape", "GuaranteeConst", "Relayout", "RelayoutLike", "CheckNumerics", "CheckNumericsV2",
        "Enter", "RefEnter", "Exit", "RefExit", "NextIteration", "RefNextIteration", "LoopCond", "Merge", "RefMerge",
        "PlaceholderWithDefault", "TensorListSetItem", "TensorListPushBack", "TensorListPopBack", "TensorListResize",
        "TensorListConcatLists",
    }
)  # fmt: skip
"""Op types that hand input `p` on as output `p` (`_SWITCHES`: input 0 as whichever output is live)."""
_CONSTANTS = frozenset({"Const", "HostConst", "ImmutableConst", "_EagerConst"})
_READS = frozenset({"ReadVariableOp", "_ReadVariablesOp"})
_ITEM = {"TensorListSetItem": 2, "TensorListPushBack": 1}
"""Op types that keep a tensor in a list, and the input that it is."""
_KEEPING = frozenset({"_Retval", "_DeviceRetval", "_Send", "_HostSend", "AssignVariableOp", *_ITEM})
"""Op types that keep what they are given beyond their own time."""


def _ends(source: Int64) -> Int64:
    """Where each row leads, following `source` as long as it is not -1."""
    found = np.where(source >= 0, source, np.arange(len(source)))
    while True:
        further = found[found]
        if np.array_equal(further, found):
            return found
        found = further


@dataclass(frozen=True, eq=False)
class Pieces:
    """Memory that a step touches: a row per piece, all that is touched and no more.

    `kind` is one of `KINDS`. `address` counts where `kind` is `BUFFER`. `begin` and `end` are the first and last execution (local
    numbers) that need the piece; -1 as `begin`: it held something before the step, and `len(view)` as `end`: also after it.
    """

    kind: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size_bytes: Int64
    begin: Int64
    end: Int64
    name: Sequence[str]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Accesses:
    """A row per piece that an execution reads or writes, by execution (local number), an execution's reads before its writes.

    `span_bytes` is the tensor's size: where `size_bytes` is less only a part is touched, where it is more the tensor more than once.
    """

    view: StepView
    execution: Int64
    is_write: Mask
    piece: Int64
    size_bytes: Int64
    span_bytes: Int64
    pieces: Pieces
    copied_reads: int = 0
    """Reads of variables that copied them: `costs` has no bytes for that."""


def accesses(view: StepView) -> Accesses:
    """What each execution of a step reads and writes."""
    return _Finder(view).find()


class _Finder:
    """Finds the piece of every tensor, then of every access. Tensors and executions have local numbers here."""

    def __init__(self, view: StepView) -> None:
        self.view, self.trace = view, view.trace
        trace, rows = view.trace, view.rows
        self.first_tensor = int(trace.tensor_offsets[rows.start])
        mine = slice(self.first_tensor, int(trace.tensor_offsets[rows.stop]))
        self.owner = trace.tensors.execution[mine].astype(np.int64) - rows.start
        self.port = trace.tensors.port[mine].astype(np.int64)
        self.size = trace.tensors.size_bytes[mine].astype(np.int64)
        self.buffer = trace.tensors.buffer[mine].astype(np.int64)
        self.node = trace.executions.node[rows].astype(np.int64)
        bounds = trace.executions.input_offsets[rows.start : rows.stop + 1]
        self.inputs = trace.executions.input[bounds[0] : bounds[-1]].astype(np.int64) - self.first_tensor
        self.input_offsets = (bounds - bounds[0]).astype(np.int64)
        self.outputs = trace.tensor_offsets[rows.start : rows.stop + 1] - self.first_tensor
        self.ops = [canonical(op) for op in trace.node_ops]
        self.unresolved: list[tuple[int, int]] = []
        """(node, which) of variables that the trace does not name."""
        assert self._changes is not None  # settles how many generations variables have

    # --- tensors ----------------------------------------------------------------------------------------------------------------

    def _runs(self, ops: frozenset[str]) -> Mask:
        """Which executions are of some op types."""
        of_node = np.array([op in ops for op in self.ops], bool)
        return np.asarray(of_node[self.node])

    @cached_property
    def _passed_on(self) -> Int64:
        """The tensor whose memory each tensor is, one step back, but for what a variable was read to be; -1 for memory of its own."""
        source = np.full(len(self.owner), -1, np.int64)
        for ops, by_port in ((_PASSING, True), (_SWITCHES, False)):
            found = np.flatnonzero(self._runs(ops)[self.owner])
            position = self.port[found] if by_port else np.zeros(len(found), np.int64)
            runs = self.owner[found]
            found, position, runs = (c[position < np.diff(self.input_offsets)[runs]] for c in (found, position, runs))
            given = self.inputs[self.input_offsets[runs] + position]
            same = self.size[given] == self.size[found]
            source[found[same]] = given[same]
        constant = np.flatnonzero(self._runs(_CONSTANTS)[self.owner])
        _, first, which = np.unique(self.node[self.owner[constant]], return_index=True, return_inverse=True)
        again = constant != constant[first][which.reshape(-1)]
        source[constant[again]] = constant[first][which.reshape(-1)][again]
        return source

    @cached_property
    def handed_on(self) -> Int64:
        """The tensor whose memory each tensor is, one step back; -1 for memory of its own, or a variable's."""
        source = self._passed_on.copy()
        for tensor, generation in self._read_generation.items():
            source[tensor] = self._generations[generation][1]
        return source

    @cached_property
    def root(self) -> Int64:
        """The tensor that each tensor's memory was made for."""
        return _ends(self.handed_on)

    @cached_property
    def of_tensor(self) -> Int64:
        """The piece of each tensor: the buffer that was reported for it, or for the same memory under another name, else its own."""
        of_root = self.bases[1] + np.arange(len(self.owner))
        for tensor, generation in self._read_generation.items():
            of_root[tensor] = self._generation_piece(generation)
        named = np.flatnonzero(self.buffer >= 0)[::-1]
        reported = np.full(len(self.owner), -1, np.int64)
        reported[self.root[named]] = self.buffer[named]
        found = np.where(reported[self.root] >= 0, reported[self.root], of_root[self.root])
        return np.where(self.buffer >= 0, self.buffer, found)

    # --- variables --------------------------------------------------------------------------------------------------------------

    @cached_property
    def bases(self) -> Int64:
        """Where the ids of each kind of piece begin."""
        return np.cumsum([0, len(self.trace.buffers), len(self.owner), len(self._generations), len(self.owner)])

    @cached_property
    def _variable_reads(self) -> list[tuple[int, int]]:
        """Tensors that read a variable, and the variable."""
        nodes, found = self.trace.nodes, []
        bounds = nodes.read_offsets
        for tensor in np.flatnonzero(self._runs(_READS)[self.owner]).tolist():
            at = int(bounds[self.node[self.owner[tensor]]]) + int(self.port[tensor])
            if at < bounds[self.node[self.owner[tensor]] + 1]:
                found.append((tensor, int(nodes.read[at])))
        return found

    @cached_property
    def _copies(self) -> frozenset[int]:
        """Tensors that read a variable but are a copy of it: their execution allocated as much (TensorFlow does so to embeddings)."""
        table = self.trace.allocations
        made: dict[int, int] = defaultdict(int)
        for execution, size in zip(table.execution.tolist(), table.size_bytes.tolist(), strict=True):
            made[execution - self.view.rows.start] = max(made[execution - self.view.rows.start], size)
        return frozenset(t for t, _ in self._variable_reads if self.size[t] and made.get(int(self.owner[t]), 0) >= self.size[t])

    @cached_property
    def _changes(self) -> dict[int, list[tuple[int, int]]]:
        """By variable, (execution, generation) from which on it is other memory, ascending; at first it is generation `variable`."""
        self._generations: list[tuple[int, int]] = [(v, -1) for v in range(len(self.trace.variables))]
        """(variable, the tensor whose memory it took over, or -1)."""
        nodes = self.trace.nodes
        writers = np.flatnonzero((np.diff(nodes.write_offsets) > 0)[self.node])
        if not len(writers):
            return {}
        root = _ends(self._passed_on)
        last_use = np.full(len(self.owner), -1)
        np.maximum.at(last_use, root[self.inputs], np.repeat(np.arange(len(self.node)), np.diff(self.input_offsets)))
        reads: dict[int, list[int]] = defaultdict(list)
        for tensor, variable in self._variable_reads:
            if tensor not in self._copies:
                reads[variable].append(tensor)
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for run in writers.tolist():
            given = self.inputs[self.input_offsets[run] : self.input_offsets[run + 1]]
            for variable in nodes.write[nodes.row_values("write", int(self.node[run]))].tolist():
                since = found[variable][-1][0] if found[variable] else -1
                if self.ops[int(self.node[run])] == "AssignVariableOp" and len(given) > 1:
                    value = int(given[1])
                else:
                    # an update copies first where a value that was read is still to be used
                    value = -1
                    held = self._generations[found[variable][-1][1]][1] if found[variable] else -1
                    users = [t for t in reads[variable] if since < self.owner[t] < run] + [int(root[held])] * (held >= 0)
                    if not any(last_use[t] > run for t in users):
                        continue
                found[variable].append((run, len(self._generations)))
                self._generations.append((variable, value))
        return found

    def _generation(self, variable: int, run: int) -> int:
        """Which memory a variable is when an execution begins."""
        before = [g for when, g in self._changes.get(variable, ()) if when < run]
        return before[-1] if before else variable

    @cached_property
    def _read_generation(self) -> dict[int, int]:
        """The generation that each tensor reads which reads a variable."""
        whole = (pair for pair in self._variable_reads if pair[0] not in self._copies)
        return {tensor: self._generation(variable, int(self.owner[tensor])) for tensor, variable in whole}

    def _generation_piece(self, generation: int) -> int:
        """The piece of a generation of a variable that is no tensor's."""
        buffer = self._generation_buffers.get(generation, -1)
        return buffer if buffer >= 0 else int(self.bases[2]) + generation

    @cached_property
    def _generation_buffers(self) -> dict[int, int]:
        """The reported buffer of generations, where there is one."""
        found = {v: int(b) for v, b in enumerate(self.trace.variables.buffer.tolist()) if b >= 0}
        for tensor, generation in self._read_generation.items():
            if self.buffer[tensor] >= 0:
                found.setdefault(generation, int(self.buffer[tensor]))
        return found

    def _variable_piece(self, variable: int, run: int) -> int:
        """The piece that a variable is when an execution begins."""
        generation = self._generation(variable, run)
        value = self._generations[generation][1]
        return int(self.of_tensor[value]) if value >= 0 else self._generation_piece(generation)

    # --- accesses ---------------------------------------------------------------------------------------------------------------

    def find(self) -> Accesses:
        """All accesses of the step."""
        found: list[_Columns] = []
        for runs, reads, writes in parts_by_signature(self.trace, self.view.structure):
            parts = [(part, False) for part in reads] + [(part, True) for part in writes]
            for number, (part, writes_it) in enumerate(parts):
                if part.size_bytes > 0:
                    found += [
                        (*columns, np.full(len(columns[0]), writes_it)) for columns in self._places(runs, part, writes_it, number)
                    ]
        nothing = (np.zeros(0, np.int64),) * 5 + (np.zeros(0, bool),)
        run, order, piece, size, span, is_write = (np.concatenate(same) for same in zip(nothing, *found, strict=True))
        by = np.lexsort((order, run))
        used, piece = np.unique(piece[by], return_inverse=True)
        run, piece, size, span = run[by], piece.reshape(-1), size[by], span[by]
        pieces = self._pieces(used, run, piece, span)
        return Accesses(self.view, run, is_write[by], piece, size, span, pieces, len(self._copies))

    def _places(self, runs: Int64, part: Part, is_write: bool, number: int) -> Iterator[tuple[Int64, ...]]:
        """(executions, order, pieces, bytes, bytes of the whole tensor) of one part of executions that cost the same."""
        order, size = np.full(len(runs), number << 32), np.full(len(runs), part.size_bytes)
        if part.place == OUTPUT:
            tensors = self.outputs[runs] + self._output(int(runs[0]), part.number)
            yield runs, order, self.of_tensor[tensors], size, self.size[tensors]
            return
        if part.place == INPUT and np.diff(self.input_offsets)[runs[0]] > part.number:
            tensors = self.inputs[self.input_offsets[runs] + part.number]
            if self.size[tensors[0]] > 0:
                yield runs, order, self.of_tensor[tensors], size, self.size[tensors]
                return
        for run in runs.tolist():
            if part.place == LIST:
                yield from self._list(run, part, is_write, number)
            else:
                which = part.number if part.place == VARIABLE else 0
                piece, span = self._variable(run, which, part.place == INPUT, is_write, part.size_bytes)
                yield tuple(np.array([value], np.int64) for value in (run, number << 32, piece, part.size_bytes, span))

    def _output(self, run: int, port: int) -> int:
        """Which of an execution's live outputs a port is."""
        return int(np.flatnonzero(self.port[self.outputs[run] : self.outputs[run + 1]] == port)[0])

    def _variable(self, run: int, which: int, is_read: bool, is_write: bool, size: int) -> tuple[int, int]:
        """The piece and bytes of a variable that an execution's node updates or, through a handle, reads."""
        nodes, node = self.trace.nodes, int(self.node[run])
        both = [(nodes.read, "read"), (nodes.write, "write")]
        for values, group in both if is_read else both[::-1]:
            mine = values[nodes.row_values(group, node)].tolist()
            if which < len(mine):
                piece = self._variable_piece(mine[which], run + is_write)
                return piece, int(self.trace.variables.size_bytes[mine[which]]) or size
        if (node, which) not in self.unresolved:
            self.unresolved.append((node, which))
        return int(self.bases[4]) + self.unresolved.index((node, which)), size

    def _list(self, run: int, part: Part, is_write: bool, number: int) -> Iterator[tuple[Int64, ...]]:
        """The elements of the list that an execution makes or reads: the tensors put into it if these are all, else the list's own."""
        given = self.inputs[self.input_offsets[run] : self.input_offsets[run + 1]]
        tensor = int(self.outputs[run] if is_write else given[0])
        items = [] if is_write else [i for i in self._items(tensor) if self.size[i]]
        size, piece = self.size[items], self.of_tensor[items]
        if not items or int(size.sum()) != part.size_bytes:
            size, piece = np.array([part.size_bytes]), np.array([self.bases[3] + self.root[tensor]])
        yield np.full(len(size), run), (number << 32) + np.arange(len(size)), piece, size, size

    def _items(self, tensor: int) -> list[int]:
        """The tensors that were put into a list, first to last."""
        found: list[int] = []
        while tensor >= 0:
            run = int(self.owner[tensor])
            position = _ITEM.get(self.ops[int(self.node[run])])
            if position is not None and self.input_offsets[run] + position < self.input_offsets[run + 1]:
                found.append(int(self.inputs[self.input_offsets[run] + position]))
            tensor = int(self.handed_on[tensor])
        return found[::-1]

    # --- pieces -----------------------------------------------------------------------------------------------------------------

    def _pieces(self, used: Int64, run: Int64, piece: Int64, span: Int64) -> Pieces:
        trace, count = self.trace, len(used)
        which = (np.searchsorted(self.bases, used, side="right") - 1).astype(np.uint8)
        number = used - self.bases[np.minimum(which, len(self.bases) - 1)]
        size_bytes = np.zeros(count, np.int64)
        owned = which == TENSOR
        size_bytes[owned] = self.size[number[owned]]
        mine = which == VARIABLE_PIECE
        variables = np.array([v for v, _ in self._generations], np.int64)
        size_bytes[mine] = trace.variables.size_bytes[variables[number[mine]]]
        told = which == BUFFER
        is_open = ~(owned | mine | told)
        largest = np.zeros(count, np.int64)
        np.maximum.at(largest, piece, span)
        size_bytes[is_open] = largest[is_open]
        size_bytes[told] = np.maximum(trace.buffers.size_bytes[number[told]], largest[told])
        address = np.zeros(count, np.uint64)
        address[told] = trace.buffers.address[number[told]]
        origin = np.full(count, tables.BUFFER_SYNTHETIC, np.uint8)
        origin[told] = trace.buffers.origin[number[told]]
        begin, end = np.full(count, len(self.view)), np.full(count, -1)
        np.minimum.at(begin, piece, run)
        np.maximum.at(end, piece, run)
        begin[owned] = self.owner[number[owned]]
        lasting = is_open | mine | told
        given = np.array([kind(op) == "control" or op in _CONSTANTS for op in self.ops], bool)[self.node[self.owner[number[owned]]]]
        lasting[np.flatnonzero(owned)[given]] = True
        begin[lasting], end[lasting] = -1, len(self.view)
        kept = self._kept
        end[np.isin(used, kept)] = len(self.view)
        names = [self._name(int(w), int(n)) for w, n in zip(which, number, strict=True)]
        return Pieces(which, origin, address, size_bytes, begin, end, names)

    @property
    def _kept(self) -> Int64:
        """Pieces that something keeps: fetched, sent away, in a variable or in a list."""
        runs = np.flatnonzero(self._runs(_KEEPING))
        spans = [np.arange(a, b) for a, b in zip(self.input_offsets[runs], self.input_offsets[runs + 1], strict=True)]
        return np.unique(self.of_tensor[self.inputs[np.concatenate([np.zeros(0, np.int64), *spans])]])

    def _name(self, which: int, number: int) -> str:
        trace = self.trace
        if which == BUFFER:
            return ""
        if which == VARIABLE_PIECE:
            variable = self._generations[number][0]
            return str(trace.strings[int(trace.variables.variable_name[variable])]) + " (copied)" * (number != variable)
        if which == UNRESOLVED:
            return trace.node_names[self.unresolved[number][0]]
        return trace.node_names[int(self.node[self.owner[number]])]
