"""Memory over a step: live bytes, the peak and what it consists of, how long tensors lived, what was used again.

All of it comes from the allocation records of the memory step. TensorFlow books each release under the execution that allocated, so an
allocation and its release are paired within one execution, by size, in order. Times of allocations are whole microseconds. Bytes that
were allocated before the step (variables, fed inputs) have no record; the curve counts what the step itself allocates and starts at 0.

At the end of a step live what it put in the place of variables' buffers (whose old ones are given back without a record) and its outputs;
the curve without those returns to 0, or the rest is named as unexplained.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import TraceError
from fathom_trace.tables import BUFFER_ALLOCATOR, FETCH
from fathom_trace.trace import Trace

Int64 = NDArray[np.int64]

TENSOR, TEMPORARY, VARIABLE, AMBIGUOUS = "tensor", "temporary", "variable", "ambiguous"
CLASSES = (TENSOR, TEMPORARY, VARIABLE, AMBIGUOUS)


@dataclass(frozen=True)
class Block:
    """One allocation. `freed_ns` is None where it outlived the step; `role` is one of `CLASSES`.

    `variable` names the variable whose buffer it became, where a step replaces one; `is_fetched` is set for an output of the step.
    """

    execution: int
    size_bytes: int
    allocated_ns: int
    freed_ns: int | None
    role: str
    variable: str = ""
    is_fetched: bool = False


@dataclass(frozen=True)
class Memory:
    """The memory of one step. Curve: after `times_ns[i]`, `live_bytes[i]` bytes that the step allocated are live."""

    step: int
    blocks: tuple[Block, ...]
    unpaired_releases: int
    unpaired_bytes: int
    variable_bytes: int

    @cached_property
    def _events(self) -> list[tuple[int, int]]:
        # at one time, releases count first: with whole microseconds their true order is unknown, and this is the lower bound. So a block
        # that is released when it is allocated counts nothing: it cannot be released before
        sizes = [b.size_bytes * (b.freed_ns != b.allocated_ns) for b in self.blocks]
        events = [(b.allocated_ns, size) for b, size in zip(self.blocks, sizes, strict=True)]
        events += [(b.freed_ns, -size) for b, size in zip(self.blocks, sizes, strict=True) if b.freed_ns is not None]
        return sorted(events, key=lambda e: (e[0], e[1]))

    @cached_property
    def times_ns(self) -> Int64:
        """Times of allocations and releases."""
        return np.array([t for t, _ in self._events], np.int64)

    @cached_property
    def live_bytes(self) -> Int64:
        """Bytes live after each of them."""
        return np.cumsum(np.array([s for _, s in self._events], np.int64))

    @cached_property
    def peak_index(self) -> int:
        """Where the curve is highest, first time; -1 for a step without allocations."""
        return int(np.argmax(self.live_bytes)) if len(self.live_bytes) else -1

    @property
    def peak_bytes(self) -> int:
        """Most bytes live at once."""
        return max(int(self.live_bytes[self.peak_index]), 0) if self.peak_index >= 0 else 0

    @property
    def peak_ns(self) -> int:
        """When, in ns after the step's origin."""
        return int(self.times_ns[self.peak_index]) if self.peak_index >= 0 else 0

    @property
    def final_bytes(self) -> int:
        """Bytes still live at the end of the step: what it put in place of variables' buffers, and its outputs."""
        return int(self.live_bytes[-1]) if len(self.live_bytes) else 0

    def at_peak(self) -> list[Block]:
        """The blocks that are live at the peak, largest first."""
        live = [b for b in self.blocks if b.allocated_ns <= self.peak_ns and (b.freed_ns is None or b.freed_ns > self.peak_ns)]
        return sorted(live, key=lambda b: -b.size_bytes)

    def peak_by_role(self) -> dict[str, int]:
        """Bytes of the peak by class; they add up to `peak_bytes`."""
        found = dict.fromkeys(CLASSES, 0)
        for block in self.at_peak():
            found[block.role] += block.size_bytes
        return found

    def replaced(self) -> list[Block]:
        """Blocks that became the buffer of a variable."""
        return [b for b in self.blocks if b.variable]

    @property
    def replaced_bytes(self) -> int:
        """Bytes of variables whose buffer the step replaced."""
        return sum(b.size_bytes for b in self.replaced())

    @property
    def output_bytes(self) -> int:
        """Bytes of the step's outputs that outlive it."""
        return sum(b.size_bytes for b in self.blocks if b.is_fetched and b.freed_ns is None)

    @property
    def unexplained_bytes(self) -> int:
        """Bytes that are live at the end and neither a variable's nor an output's."""
        return self.final_bytes - self.replaced_bytes - self.output_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated over the step; over `peak_bytes`, how often memory was used again."""
        return sum(b.size_bytes for b in self.blocks)

    def to_dict(self, trace: Trace, top: int = 20) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "step": self.step,
            "peak_bytes": self.peak_bytes,
            "peak_ns": self.peak_ns,
            "final_bytes": self.final_bytes,
            "replaced_bytes": self.replaced_bytes,
            "output_bytes": self.output_bytes,
            "unexplained_bytes": self.unexplained_bytes,
            "allocated_bytes": self.allocated_bytes,
            "variable_bytes": self.variable_bytes,
            "peak_by_role": self.peak_by_role(),
            "unpaired_releases": self.unpaired_releases,
            "unpaired_bytes": self.unpaired_bytes,
            "replaced_variables": {b.variable: b.size_bytes for b in self.replaced()},
            "curve": {"time_ns": self.times_ns.tolist(), "live_bytes": self.live_bytes.tolist()},
            "largest_at_peak": [describe_block(trace, b) for b in self.at_peak()[:top]],
        }


def describe_block(trace: Trace, block: Block) -> dict[str, Any]:
    """A block with the name and op type of its execution."""
    node = int(trace.executions.node[block.execution])
    return {
        "name": trace.node_names[node],
        "op": trace.node_ops[node],
        "iteration": list(trace.iteration(int(trace.executions.path[block.execution]))),
        "size_bytes": block.size_bytes,
        "role": block.role,
        "variable": block.variable,
        "lifetime_ns": None if block.freed_ns is None else block.freed_ns - block.allocated_ns,
    }


def memory(trace: Trace) -> Memory:
    """The memory of the trace's memory step.

    Raises:
        TraceError: the trace holds no allocation records.
    """
    records = trace.allocations
    if not len(records):
        if "selection" in trace.provenance:
            raise TraceError(f"nothing of {trace.provenance['selection']} allocated in a step whose allocations were recorded")
        raise TraceError("the trace holds no allocation records; capture it with --memory-steps 1 (the default)")
    step = int(records.step[0])
    mine = np.flatnonzero(records.step == step)
    rows = trace.step_rows(step)
    base = trace.structure_rows(int(trace.steps.structure[step])).start
    end_of = trace.step_times.end[rows]
    updated, assigned = _replacing(trace)
    fetched = _fetched(trace)
    buffers = _output_buffers(trace)
    size_of = trace.buffers.size_bytes
    open_blocks: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    made: list[list[Any]] = []
    unpaired, unpaired_bytes = 0, 0
    for row in mine.tolist():
        execution, size, when = int(records.execution[row]), int(records.size_bytes[row]), int(records.time[row])
        if size >= 0:
            open_blocks[execution, size].append(len(made))
            made.append([execution, size, when, None])
        elif open_blocks[execution, -size]:
            made[open_blocks[execution, -size].popleft()][3] = when
        else:
            unpaired, unpaired_bytes = unpaired + 1, unpaired_bytes - size
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (execution, size, _, _) in enumerate(made):
        alike[execution, size].append(place)
    roles: dict[int, str] = {}
    for (execution, size), places in alike.items():
        freed_ns = [made[place][3] for place in places]
        outputs = sum(size_of[buffer] == size for buffer in buffers.get(execution, ()))
        roles.update(zip(places, _roles(freed_ns, outputs, int(end_of[execution - base])), strict=True))
    blocks = []
    for place, (execution, size, when, freed) in enumerate(made):
        if freed is not None:
            blocks.append(Block(execution, size, when, freed, roles[place]))
            continue
        became = [buffer for buffer in buffers.get(execution, ()) if size_of[buffer] == size]
        variable = updated.get((execution, size)) or next((assigned[b] for b in became if b in assigned), "")
        is_fetched = not variable and any(buffer in fetched for buffer in became)
        blocks.append(Block(execution, size, when, None, VARIABLE if variable else roles[place], variable, is_fetched))
    return Memory(step, tuple(blocks), unpaired, unpaired_bytes, int(trace.variables.size_bytes.sum()))


def _roles(freed_ns: Sequence[int | None], outputs: int, end_ns: int) -> list[str]:
    """What the allocations of one size by one execution were, when so many of its outputs have that size.

    What is given back before the execution ends is scratch, what is left an output. Where their numbers do not agree, nobody knows which
    is which, and all are ambiguous.
    """
    is_short = [freed is not None and freed <= end_ns + 1_000 for freed in freed_ns]  # releases are in whole microseconds
    scratch = len(freed_ns) - outputs
    if scratch <= 0:
        return [TENSOR] * len(freed_ns)
    if not outputs:
        return [TEMPORARY if short else AMBIGUOUS for short in is_short]
    if sum(is_short) == scratch:
        return [TEMPORARY if short else TENSOR for short in is_short]
    return [AMBIGUOUS] * len(freed_ns)


def _fetched(trace: Trace) -> set[int]:
    """The buffers of what the step returns. An op may have been handed its output's buffer by the one before it."""
    nodes = trace.interface.node[trace.interface.direction == FETCH]
    ends = np.flatnonzero(np.isin(trace.executions.node, nodes))
    return {int(trace.tensors.buffer[row]) for end in ends.tolist() for row in trace.outputs(end)} - {-1}


def _output_buffers(trace: Trace) -> dict[int, list[int]]:
    """The buffers of each execution's outputs, where they were recorded."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(trace.tensors.buffer >= 0).tolist():
        buffer = int(trace.tensors.buffer[row])
        if trace.buffers.origin[buffer] == BUFFER_ALLOCATOR:
            found[int(trace.tensors.execution[row])].append(buffer)
    return found


def _replacing(trace: Trace) -> tuple[dict[tuple[int, int], str], dict[int, str]]:
    """What may take the place of a variable's buffer: (execution, bytes) that it allocates, and buffers, each to the variable.

    An assignment hands over the buffer of the value it was given. An update in place copies first when something else still holds the
    variable's buffer: then the update itself allocates as many bytes as the variable has.
    """
    updated: dict[tuple[int, int], str] = {}
    assigned: dict[int, str] = {}
    nodes, ex = trace.nodes, trace.executions
    for execution, node in enumerate(ex.node.tolist()):
        for variable in nodes.write[nodes.row_values("write", node)].tolist():
            name, size = trace.strings[int(trace.variables.variable_name[variable])], int(trace.variables.size_bytes[variable])
            updated.setdefault((execution, size), name)
            inputs = trace.inputs(execution)
            if trace.node_ops[node] == "AssignVariableOp" and len(inputs) > 1 and trace.tensors.buffer[inputs[1]] >= 0:
                assigned[int(trace.tensors.buffer[inputs[1]])] = name
    return updated, assigned
