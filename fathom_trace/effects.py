"""Order between executions that goes through what they share and not along the graph's edges: variables, and stacks of TensorFlow 1.

**Variables.** Where no control dependency orders two accesses to a variable, one of them a write, what they see is settled by who came
first. A read then depends on the write before it, a write on the reads and the write before it: as recorded, provided that in every step
the one ended before the other started. Accesses that overlap ran at once; nothing orders them, and no order is made up.

**Stacks.** A gradient loop of TensorFlow 1 takes from a stack, last in first out, what the forward loop put there. The value itself
travels through the stack, so each `StackPopV2` depends on the very `StackPushV2` of that value. Stacks are told apart by the
execution that made them, and are followed through other stacks that they are put on (loops within loops).

Both are read off a trace's executions; a trace does not store them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fathom_trace.tables import Executions, Nodes, StepTimes, Tensors

Int64 = NDArray[np.int64]
Pairs = tuple[Int64, Int64]
"""Producers and consumers, in local numbers of a structure."""

SEARCH_LIMIT = 300_000
"""Dependencies looked at, at most, to find that accesses are ordered already; what is not found then is stated once more."""

MADE, PUSH, POP = "StackV2", "StackPushV2", "StackPopV2"
_PASSING = frozenset({"Identity", "Enter", "Exit", "Merge", "NextIteration", "Switch"})


def variable_order(
    nodes: Nodes, executions: Executions, times: StepTimes, rows: slice, steps: Sequence[slice], waited: tuple[Int64, Int64]
) -> Pairs:
    """Accesses to variables that only their order in time settles.

    `rows` are the executions of one structure, `steps` the rows of `times` of each step that ran it, `waited` the dependencies along the
    graph's edges as CSR (offsets, producers) in local numbers. What those order is left out.
    """
    accesses = _accesses(nodes, executions, rows)
    if not accesses:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    start, end = (np.array([getattr(times, name)[step] for step in steps]) for name in ("start", "end"))

    def follows(before: int, after: int) -> bool:
        return not steps or bool(np.all(end[:, before] <= start[:, after]))

    pairs = sorted({pair for sequence in accesses for pair in _conflicts(sequence, follows)}, key=lambda pair: (pair[1], pair[0]))
    left = _unordered(pairs, *waited)
    return np.array([a for a, _ in left], np.int64), np.array([b for _, b in left], np.int64)


def access_groups(accesses: Sequence[Sequence[tuple[int, bool]]]) -> list[list[int]]:
    """The accesses (who, whether it writes) to each variable in an order, such that reads with no write in between may swap."""
    found: list[list[int]] = []
    for sequence in accesses:
        reads: list[int] = []
        made: list[int] = []
        for who, writes in sequence:
            if writes:
                made += [*sorted(reads), who]
                reads = []
            else:
                reads.append(who)
        found.append([*made, *sorted(reads)])
    return found


def access_key(accesses: Mapping[int, Sequence[tuple[int, bool]]]) -> bytes:
    """What tells steps apart by the order of the accesses to each variable. Which of two variables was touched first says nothing."""
    variables = sorted(accesses)
    groups = access_groups([accesses[v] for v in variables])
    return b"".join(np.array([v, len(group), *group], np.int64).tobytes() for v, group in zip(variables, groups, strict=True))


def _accesses(nodes: Nodes, executions: Executions, rows: slice) -> list[list[tuple[int, bool]]]:
    """Per variable that is written, who touches it, in order, and whether by writing. What is inside opaque calls is left out."""
    node = executions.node[rows]
    touches = (np.diff(nodes.read_offsets) + np.diff(nodes.write_offsets)) > 0
    found: dict[int, list[tuple[int, bool]]] = {}
    is_op = executions.parent[rows] < 0
    for local in np.flatnonzero(touches[node] & is_op).tolist():
        written = nodes.write[nodes.row_values("write", int(node[local]))].tolist()
        read = nodes.read[nodes.row_values("read", int(node[local]))].tolist()
        for variable in dict.fromkeys([*written, *read]):
            found.setdefault(variable, []).append((local, variable in written))
    return [sequence for sequence in found.values() if len(sequence) > 1 and any(writes for _, writes in sequence)]


def _conflicts(sequence: Sequence[tuple[int, bool]], follows: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """(Before, after) of the accesses to one variable that must not swap, without what follows from others."""
    found: list[tuple[int, int]] = []
    base: list[int] = []  # the last write that came after all before it
    reads: list[int] = []  # since then
    writes: list[int] = []  # since then, not after all before them
    for who, is_write in sequence:
        since = [other for other in (*reads, *writes) if follows(other, who)] if is_write else [w for w in writes if follows(w, who)]
        first = [other for other in base if follows(other, who)]
        is_implied = any(follows(other, between) for other in first for between in since)
        found += [(other, who) for other in ([] if is_implied else first) + since]
        if is_write and len(first) + len(since) == len(base) + len(reads) + len(writes):
            base, reads, writes = [who], [], []
        else:
            (writes if is_write else reads).append(who)
    return found


def _unordered(pairs: Sequence[tuple[int, int]], offsets: Int64, producer: Int64) -> list[tuple[int, int]]:
    """The pairs (ordered by who comes after) that no path of dependencies orders, as far as `SEARCH_LIMIT` lets see."""
    if not pairs:
        return []
    found: list[tuple[int, int]] = []
    bounds, producers = offsets.tolist(), producer.tolist()
    budget = SEARCH_LIMIT
    wanted: set[int] = set()
    for place, (before, after) in enumerate(pairs):
        wanted.add(before)
        if place + 1 < len(pairs) and pairs[place + 1][1] == after:
            continue
        lowest, seen, waiting = min(wanted), {after}, [after]
        while waiting and wanted and budget > 0:
            current = waiting.pop()
            for p in producers[bounds[current] : bounds[current + 1]]:
                budget -= 1
                if p >= lowest and p not in seen:
                    seen.add(p)
                    waiting.append(p)
                    wanted.discard(p)
        found += [(a, after) for a in sorted(wanted)]
        wanted = set()
    return found


def stack_order(node_ops: Sequence[str], executions: Executions, tensors: Tensors, tensor_offsets: Int64, rows: slice) -> Pairs:
    """For each pop from a stack the push of the value that it takes, over the executions `rows` of one structure."""
    pushed: list[int] = []
    popped: list[int] = []
    node = executions.node[rows].tolist()
    if not any(node_ops[n] == POP for n in set(node)):
        return np.array(pushed, np.int64), np.array(popped, np.int64)
    holds: dict[int, int] = {}  # tensor to the execution that made the stack whose handle it is
    contents: dict[int, list[tuple[int, int | None]]] = {}  # stack to (push, the stack whose handle was pushed)
    for local, n in enumerate(node):
        op, execution = node_ops[n], local + rows.start
        if op == MADE:
            contents[execution] = []
            holds[int(tensor_offsets[execution])] = execution
            continue
        inputs = executions.input[executions.row_values("input", execution)].tolist()
        held: int | None = None
        if op == PUSH and inputs and inputs[0] in holds:
            held = holds.get(inputs[1])
            contents[holds[inputs[0]]].append((local, held))
        elif op == POP and inputs and contents.get(holds.get(inputs[0], -1)):
            push, held = contents[holds[inputs[0]]].pop()
            pushed.append(push)
            popped.append(local)
        elif op in _PASSING and inputs:
            held = holds.get(inputs[0])
        if held is not None:
            for output in range(int(tensor_offsets[execution]), int(tensor_offsets[execution + 1])):
                if tensors.port[output] == 0 or op == "Switch":
                    holds[output] = held
    return np.array(pushed, np.int64), np.array(popped, np.int64)
