"""Is a stream of requests what the trace says: the bytes of `costs`, from the right memory, in order, with nothing live overwritten?"""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from fathom_trace import tables
from fathom_trace.accesses import VARIABLE_PIECE
from fathom_trace.addresses import REPORTED, Stream, refuse_above, selections, stream
from fathom_trace.builder import ITEM_BYTES
from fathom_trace.costs import costs
from fathom_trace.errors import ExportError
from fathom_trace.selecting import select
from fathom_trace.steps import StepView, view_steps
from fathom_trace.tables import BUFFER_SYNTHETIC
from fathom_trace.trace import Trace
from tests.handmade import Hand
from tests.memory_files import Memory, bursts, case_c19, case_c20
from tests.small import dense, diamond, loop
from tests.training import step as training_step


def view(trace: Trace) -> StepView:
    return view_steps(trace, "median", "test")[0]


def requests(found: Stream) -> list[tuple[int, bool, int]]:
    """(execution, writes, address) of each request."""
    blocks = list(found.blocks(rows=7))
    return [(int(e), bool(w), int(a)) for b in blocks for e, w, a in zip(b.execution, b.is_write, b.address, strict=True)]


def of(found: Stream, execution: int) -> list[tuple[str, int]]:
    """The requests of one execution: `R` or `W`, and the address."""
    return [("RW"[w], a) for e, w, a in requests(found) if e == execution]


# --- the cases ----------------------------------------------------------------------------------------------------------------------


def test_c19_reads_and_writes_at_the_addresses_that_were_reported() -> None:
    """96 bytes from 0x1000 and 80 bytes from 0x2000 in bursts of 64 are 4 requests, reads first."""
    found = stream(view(case_c19()), 64, REPORTED)
    assert [(w, a) for _, w, a in requests(found)] == [(False, 0x1000), (False, 0x1040), (True, 0x2000), (True, 0x2040)]
    assert (found.requests, found.moved_bytes) == (4, 256)
    moved = stream(view(case_c19()), 64)
    assert [(w, a) for _, w, a in requests(moved)] == [(False, 0), (False, 0x40), (True, 0x80), (True, 0xC0)]
    assert moved.regions.original.tolist() == [0x1000, 0x2000]


def test_c20_three_tensors_of_296_bytes_are_6_requests() -> None:
    """Reads of 96 and 120 bytes and a write of 80, 2 bursts each, at synthetic addresses."""
    found = stream(view(case_c20()), 64)
    assert found.bytes_per_execution(False).tolist() == [0, 0, 96 + 120]
    assert found.bytes_per_execution(True).tolist() == [0, 0, 80]
    assert [w for _, w, _ in requests(found)] == [False] * 4 + [True] * 2
    assert len({a for _, _, a in requests(found)}) == 6
    assert len(found.regions) == 3
    assert not found.regions.is_reported.any()


# --- bursts -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("burst", [32, 64, 128])
@pytest.mark.parametrize("seed", range(8))
def test_bursts_cover_the_bytes_and_nothing_else(burst: int, seed: int) -> None:
    """Tensors of any size at any address, aligned or not, next to each other or not: compared byte by byte."""
    rng = random.Random(seed)
    memory, at, where = Memory(), 0x1000 + rng.randrange(200), {}
    for i in range(12):
        size = rng.choice([1, 4, burst - 1, burst, burst + 1, rng.randrange(1, 700)])
        execution = memory.op(f"t{i}", "_Arg", [], [size], dtype="uint8", address=at)
        where[execution] = (at, size)
        at += size + rng.choice([0, 1, 5, burst, 1000])
    ops = {}
    for i in range(20):
        read = rng.sample(sorted(where), 2)
        ops[memory.op(f"op{i}", "AddN", read, [0])] = read
    found = stream(view(memory.build()), burst, REPORTED)
    for execution, read in ops.items():
        assert of(found, execution) == [("R", a) for t in read for a in bursts(*where[t], burst)]
    assert found.requests == len(requests(found))


def test_the_compact_space_has_no_gap_and_each_region_a_burst_of_its_own() -> None:
    """Buffers of 100, 1 and 64 bytes, far apart, take 128 + 64 + 64 bytes in bursts of 64."""
    memory = Memory()
    tensors = [
        memory.op(f"t{i}", "_Arg", [], [size], dtype="uint8", address=address)
        for i, (size, address) in enumerate([(100, 0x7F00_0000_1040), (1, 0x2000_0000), (64, 0x2000_0040)])
    ]
    memory.op("sum", "AddN", tensors, [0])
    found = stream(view(memory.build()), 64)
    assert found.regions.address.tolist() == [0, 64, 128]
    assert found.regions.size_bytes.tolist() == [1, 64, 100]
    assert of(found, 3) == [("R", 128), ("R", 192), ("R", 0), ("R", 64)]


def test_what_overlaps_in_the_allocator_overlaps_here() -> None:
    """The output of `b` lies in the memory that `a` had, 64 bytes into it."""
    memory = Memory()
    x = memory.op("x", "_Arg", [], [32], address=0x9000)
    a = memory.op("a", "Neg", [x], [64], address=0x4000)
    memory.op("b", "Neg", [a], [16], address=0x4040)
    found = stream(view(memory.build()), 64)
    assert found.regions.address.tolist() == [0, 256]
    assert of(found, 1)[2:] == [("W", 0), ("W", 64), ("W", 128), ("W", 192)]
    assert of(found, 2) == [("R", 0), ("R", 64), ("R", 128), ("R", 192), ("W", 64)]
    assert found.regions.pieces.tolist() == [2, 1]


def test_a_synthetic_buffer_of_the_trace_is_called_synthetic() -> None:
    memory = Memory()
    x = memory.op("x", "_Arg", [], [16], address=0x4000)
    memory.builder._rows["buffers"][0]["origin"] = BUFFER_SYNTHETIC
    memory.op("a", "Neg", [x], [16], address=0x8000)
    assert stream(view(memory.build()), 64).regions.is_reported.tolist() == [False, True]


def test_tensors_without_bytes_make_no_request() -> None:
    """An empty tensor, a scalar of 4 bytes, and strings, whose size no trace has."""
    memory = Memory()
    empty = memory.op("empty", "_Arg", [], [0, 7])
    scalar = memory.op("scalar", "_Arg", [], [])
    text = memory.op("text", "_Arg", [], [3], dtype="string")
    memory.op("pack", "Pack", [empty, scalar, text], [0])
    found = stream(view(memory.build()), 64)
    assert [("RW"[w]) for _, w, _ in requests(found)] == ["R"]
    assert found.requests == 1


# --- whose memory it is -------------------------------------------------------------------------------------------------------------


def test_one_tensor_read_twice_by_an_op_is_read_once() -> None:
    memory = Memory()
    x = memory.op("x", "_Arg", [], [16])
    memory.op("square", "Mul", [x, x], [16])
    found = stream(view(memory.build()), 64)
    assert [(w, e) for e, w, _ in requests(found)] == [(False, 1), (True, 1)]


def test_what_only_hands_memory_on_moves_nothing_and_has_the_same_address() -> None:
    """x -> Identity -> Reshape -> Squeeze -> Neg: only Neg moves bytes, and it reads x's."""
    memory = Memory()
    x = memory.op("x", "_Arg", [], [16], address=0x4000)
    other = memory.op("other", "_Arg", [], [16], address=0x8000)
    last = x
    for op in ("Identity", "Reshape", "Squeeze"):
        last = memory.op(op, op, [last], [16])
    memory.op("neg", "Neg", [last], [16])
    memory.op("neg2", "Neg", [other], [16])
    found = stream(view(memory.build()), 64, REPORTED)
    assert [e for e, _, _ in requests(found)] == [5, 5, 6, 6]
    assert of(found, 5)[0] == ("R", 0x4000)


def test_an_address_reported_for_another_name_of_the_same_memory_counts() -> None:
    """Nothing was reported for `x`, but for what an Identity made of it."""
    memory = Memory()
    x = memory.op("x", "_Arg", [], [16])
    memory.op("identity", "Identity", [x], [16], address=0x4000)
    memory.op("neg", "Neg", [x], [16], address=0x9000)
    assert of(stream(view(memory.build()), 64, REPORTED), 2) == [("R", 0x4000), ("W", 0x9000)]


def test_a_loop_reads_what_the_iteration_before_wrote() -> None:
    """Const -> Merge -> MatMul -> Merge -> MatMul: each MatMul [2, 4] float32 reads the 32 bytes that the one before it wrote."""
    found = stream(view_steps(loop(), "0", "test")[0], 32)
    products = sorted({e for e, _, _ in requests(found)})
    assert len(products) == 2
    first, second = (of(found, e) for e in products)
    assert [what for what, _ in first] == [what for what, _ in second] == ["R", "W"]
    assert second[0][1] == first[1][1]


def test_a_constant_has_one_address_however_often_it_runs() -> None:
    hand = Hand()
    node = hand.op("c", "Const", shape=(16,), runs=0)
    neg = hand.builder.node("n", "Neg", inputs=[(node.node, 0)])
    for _ in range(3):
        execution = hand.builder.execution(node.node, outputs=[("float32", (16,))])
        hand.builder.execution(neg, inputs=[hand.builder.tensor(execution)], outputs=[("float32", (16,))])
    found = stream(view(hand.build()), 64)
    assert len({a for _, w, a in requests(found) if not w}) == 1
    assert found.per_execution(False).tolist() == [0, 1] * 3


def updating(op: str, inputs: int, states: int) -> tuple[Trace, list[int]]:
    """An optimizer's op on variables of 16 float32, between two reads of the first; its gradient is the input after the states' handles."""
    hand = Hand()
    variables = [hand.variable(f"v{i}", (16,)) for i in range(states)]
    before = hand.read("before", variables[0], (16,))
    hand.op("use", "Neg", before, shape=(16,))
    rest = [hand.const(f"s{i}") for i in range(inputs - states)]
    gradient = hand.op("gradient", "_Arg", shape=(16,))
    given = [handle for _, handle in variables] + rest + [gradient]
    rows = [row for row, _ in variables]
    hand.op("update", op, *given, outputs=(), reads=rows, writes=rows)
    after = hand.read("after", variables[0], (16,))
    hand.op("again", "Neg", after, shape=(16,))
    return hand.build(), rows


def test_an_update_reads_and_writes_the_variables_own_memory() -> None:
    """Momentum: inputs are variable, slot, learning rate, gradient. It reads 4 + 64 bytes and both states, and writes both."""
    trace, _ = updating("ResourceApplyMomentum", 3, 2)
    found = stream(view(trace), 64)
    by_name = {trace.node_names[n]: e for e, n in enumerate(trace.executions.node.tolist())}
    update = of(found, by_name["update"])
    assert [what for what, _ in update] == ["R"] * 4 + ["W"] * 2
    assert [a for what, a in update if what == "W"] == [a for what, a in update if what == "R"][-2:]
    read = of(found, by_name["use"])[0][1]
    assert read == update[-2][1] == of(found, by_name["again"])[0][1]
    assert found.bytes_per_execution(False)[by_name["update"]] == 4 + 64 + 64 + 64


def test_a_variable_that_was_assigned_is_the_memory_of_the_value() -> None:
    hand = Hand()
    variable = hand.variable("v", (16,))
    first = hand.read("first", variable, (16,))
    value = hand.op("value", "Neg", first, shape=(16,))
    hand.op("assign", "AssignVariableOp", variable[1], value, outputs=(), writes=[variable[0]])
    second = hand.read("second", variable, (16,))
    hand.op("use", "Neg", second, shape=(16,))
    found = stream(view(hand.build()), 64)
    value_requests, use_requests = of(found, value.execution), of(found, second.execution + 1)
    assert use_requests[0][1] == value_requests[1][1] != value_requests[0][1]


def test_an_update_copies_a_variable_whose_old_value_is_still_to_be_used() -> None:
    """`value` is read, the variable is updated, and only then `value` is used: TensorFlow copies the variable before it updates it."""
    hand = Hand()
    variable = hand.variable("v", (16,))
    value = hand.read("value", variable, (16,))
    delta = hand.op("delta", "_Arg", shape=(16,))
    update = hand.op("update", "AssignSubVariableOp", variable[1], delta, outputs=(), reads=[variable[0]], writes=[variable[0]])
    use = hand.op("use", "Neg", value, shape=(16,))
    again = hand.op("again", "Neg", hand.read("new", variable, (16,)), shape=(16,))
    found = stream(view(hand.build()), 64)
    old, new = of(found, use.execution)[0][1], of(found, again.execution)[0][1]
    assert old != new
    assert of(found, update.execution)[1:] == [("R", old), ("W", new)]


@pytest.mark.parametrize("copied", [False, True])
def test_a_read_that_allocated_is_a_copy_of_the_variable(copied: bool) -> None:
    """`value` is at 0x4000. If its own execution allocated that, the variable, which the update changes, is elsewhere."""
    hand = Hand()
    variable = hand.variable("v", (16,))
    value = hand.read("value", variable, (16,))
    use = hand.op("use", "Neg", value, shape=(16,))
    delta = hand.op("delta", "_Arg", shape=(16,))
    update = hand.op("update", "AssignSubVariableOp", variable[1], delta, outputs=(), reads=[variable[0]], writes=[variable[0]])
    buffer = hand.builder.add("buffers", origin=tables.BUFFER_VARIABLE, address=0x4000, size_bytes=64)
    hand.builder._rows["tensors"][hand.tensor(value)]["buffer"] = buffer
    if copied:
        hand.builder.add("allocations", step=0, execution=value.execution, size_bytes=64, time=1, buffer=-1)
    found = stream(view(hand.build([1] * 5)), 64, REPORTED)
    assert of(found, use.execution)[0] == ("R", 0x4000)
    assert (of(found, update.execution)[-1] == ("W", 0x4000)) == (not copied)
    assert found.accesses.copied_reads == copied


def test_a_list_that_is_stacked_is_read_from_what_was_put_into_it() -> None:
    """Two tensors of 64 bytes are set into a list; stacking it reads both, in order, and writes 128 bytes."""
    hand = Hand()
    shape, count = hand.const("shape", (1,), "int32"), hand.const("count", (), "int32")
    made = hand.op("list", "TensorListReserve", shape, count, outputs=[("variant", ())])
    items = [hand.op(f"item{i}", "_Arg", shape=(16,)) for i in range(2)]
    for i, item in enumerate(items):
        made = hand.op(f"set{i}", "TensorListSetItem", made, hand.const(f"i{i}", (), "int32"), item, outputs=[("variant", ())])
    hand.op("use0", "Neg", items[0], shape=(16,))
    hand.op("use1", "Neg", items[1], shape=(16,))
    stacked = hand.op("stack", "TensorListStack", made, shape, shape=(2, 16))
    found = stream(view(hand.build()), 64)
    where = [of(found, stacked.execution - 2)[0][1], of(found, stacked.execution - 1)[0][1]]
    assert of(found, stacked.execution)[:2] == [("R", where[0]), ("R", where[1])]
    assert [what for what, _ in of(found, stacked.execution)[2:]] == ["W", "W"]


def test_a_slice_reads_as_much_as_it_writes_from_the_beginning() -> None:
    """24 bytes of a tensor of 96, and the two index tensors of 8 bytes each."""
    memory = Memory()
    x = memory.op("x", "_Arg", [], [4, 6], address=0x1000)
    begin, size = (memory.op(n, "_Arg", [], [2], dtype="int32", address=a) for n, a in (("begin", 0x2000), ("size", 0x3000)))
    memory.op("slice", "Slice", [x, begin, size], [1, 6], address=0x4000)
    found = stream(view(memory.build()), 64, REPORTED)
    assert of(found, 3) == [("R", 0x1000), ("R", 0x2000), ("R", 0x3000), ("W", 0x4000)]
    assert found.bytes_per_execution(False)[3] == 24 + 8 + 8


def test_more_rows_than_a_table_has_are_read_from_its_beginning_again() -> None:
    """GatherV2 of 5 rows out of 2 of 64 bytes: 5 bursts, going round the table's 2."""
    memory = Memory()
    table = memory.op("table", "_Arg", [], [2, 16], address=0x1000)
    indices, axis = (
        memory.op("indices", "_Arg", [], [5], dtype="int32", address=0x2000),
        memory.op("axis", "_Arg", [], [], dtype="int32", address=0x3000),
    )
    memory.op("gather", "GatherV2", [table, indices, axis], [5, 16], address=0x4000)
    found = stream(view(memory.build()), 64, REPORTED)
    reads = [a for what, a in of(found, 3) if what == "R"]
    assert reads == [0x1000, 0x1040, 0x1000, 0x1040, 0x1000, 0x2000, 0x3000]
    assert [a for what, a in of(found, 3) if what == "W"] == [0x4000 + 64 * i for i in range(5)]


def test_unknown_ops_move_nothing_and_are_known_to_be_unknown() -> None:
    memory = Memory()
    x = memory.op("x", "_Arg", [], [16])
    memory.op("mystery", "NobodyKnowsThisOp", [x], [16])
    memory.op("neg", "Neg", [x], [16])
    found = stream(view(memory.build()), 64)
    assert {e for e, _, _ in requests(found)} == {2}
    assert found.view.costs.bytes_known.tolist() == [True, False, True]


# --- random programs ----------------------------------------------------------------------------------------------------------------


def random_program(seed: int, addresses: bool, unknown: bool = True) -> Trace:
    """Ops of many kinds on tensors of odd sizes, on several workers; with an allocator that uses memory again, or without addresses."""
    rng = random.Random(seed)
    memory = Memory()
    made = [memory.op(f"in{i}", "_Arg", [], [rng.randrange(1, 90)]) for i in range(3)]
    size = {e: memory.builder._rows["tensors"][memory.builder.tensor(e)]["size_bytes"] // 4 for e in made}
    for i in range(60):
        op = rng.choice(["AddN", "Neg", "Identity", "Reshape", "ZerosLike", "Shape", "Slice", *["Nobody"] * unknown])
        count = 2 if op == "AddN" else 3 if op == "Slice" else 1
        read = [rng.choice(made[-8:]) for _ in range(count)]
        length = (
            size[read[0]] if op in ("Identity", "Reshape", "Neg", "ZerosLike") else rng.choice([1, 3, 7, 16, rng.randrange(1, 300)])
        )
        execution = memory.op(f"{op}{i}", op, read, [length], ns=rng.choice([0, 3, 50]))
        size[execution] = length
        made.append(execution)
    trace = memory.build()
    if not addresses:
        return trace
    buffers = np.array([rng.randrange(0, 40) for _ in range(len(trace.tensors))])
    table = tables.Buffers(
        origin=np.zeros(40, np.uint8), address=np.array([0x7000 + 640 * i for i in range(40)], np.uint64), size_bytes=np.full(40, 1200)
    )
    columns = {key: getattr(trace.tensors, key) for key in trace.tensors.columns()}
    return trace.replace(
        buffers=table, tensors=tables.Tensors(**{**columns, "buffer": np.where(np.arange(len(buffers)) % 3, buffers, -1)})
    )


@pytest.mark.parametrize("addresses", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_bytes_are_those_of_costs(seed: int, addresses: bool) -> None:
    trace = random_program(seed, addresses)
    found, expected = stream(view(trace), 64), costs(trace, 0)
    assert found.bytes_per_execution(False).tolist() == expected.bytes_read.tolist()
    assert found.bytes_per_execution(True).tolist() == expected.bytes_written.tolist()
    order = [(e, w) for e, w, _ in requests(found)]
    assert order == sorted(order)


@pytest.mark.parametrize("seed", range(25))
def test_no_live_tensor_is_overwritten(seed: int) -> None:
    """Memory played through request by request: each read finds what the execution that made the tensor wrote, or nobody's bytes."""
    trace = random_program(seed, addresses=False, unknown=False)
    found = stream(view(trace), 64)
    content: dict[int, int] = {}
    reads: dict[int, set[int]] = defaultdict(set)
    for execution, writes, address in requests(found):
        if writes:
            content[address] = execution
        elif address in content:
            reads[execution].add(content[address])
    assert len(found.regions) < len(found.accesses.pieces)  # memory is used again at all
    for execution, writers in reads.items():
        assert writers <= {maker(trace, t) for t in trace.inputs(execution)}


def maker(trace: Trace, tensor: int) -> int:
    """The execution that wrote a tensor's memory: through ops that only hand it on."""
    execution = int(trace.tensors.execution[tensor])
    while trace.node_ops[int(trace.executions.node[execution])] in ("Identity", "Reshape"):
        execution = int(trace.tensors.execution[trace.inputs(execution)[0]])
    return execution


def test_a_training_step_updates_what_its_forward_pass_reads() -> None:
    """Each variable is written once, by the update of its own name, and read before that by what its ReadVariableOp feeds."""
    trace = training_step().hand.build()
    found = stream(view(trace), 64)
    expected = costs(trace, 0)
    assert found.bytes_per_execution(False).tolist() == expected.bytes_read.tolist()
    assert found.bytes_per_execution(True).tolist() == expected.bytes_written.tolist()
    names = [trace.node_names[n] for n in trace.executions.node.tolist()]
    table = found.accesses
    for piece in np.flatnonzero(table.pieces.kind == VARIABLE_PIECE).tolist():
        variable = table.pieces.name[piece]
        mine = table.piece == piece
        writers = [names[e] for e in table.execution[mine & table.is_write].tolist()]
        readers = [names[e] for e in table.execution[mine & ~table.is_write].tolist()]
        if variable == "optimizer/iterations":  # assigned, which hands memory over
            assert (writers, readers) == ([], ["optimizer/Add"])
            continue
        assert writers == [f"optimizer/{variable.removeprefix('optimizer/').removesuffix('/momentum')}"]
        assert readers[-1] == writers[0]
        assert variable.endswith("momentum") or readers[0].partition("/")[0] == variable.partition("/")[0]


# --- times --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 5, 64, 10_000])
@pytest.mark.parametrize("seed", range(10))
def test_requests_are_spread_evenly_over_their_executions_time(seed: int, block: int) -> None:
    """Request k of n comes in cycle begin + floor(k duration / n); all of them sorted, whatever overlaps and however they are cut."""
    found = stream(view(random_program(seed, addresses=True)), 64)
    rng = np.random.default_rng(seed)
    count = len(found.view)
    begin = np.sort(rng.integers(0, 300, count)) if seed % 2 else rng.integers(0, 300, count)
    duration = rng.choice([0, 1, 7, 90, 1000], count)
    expected: dict[int, list[int]] = defaultdict(list)
    for execution, n in enumerate(found.per_execution().tolist()):
        expected[execution] = [int(begin[execution]) + k * int(duration[execution]) // n for k in range(n)]
    blocks = list(found.timed_blocks(begin, duration, rows=block))
    cycles = np.concatenate([b.cycle for b in blocks])  # type: ignore[arg-type]
    assert np.all(cycles[1:] >= cycles[:-1])
    got: dict[int, list[int]] = defaultdict(list)
    addresses: dict[int, list[int]] = defaultdict(list)
    for b in blocks:
        assert b.cycle is not None
        for execution, cycle, address in zip(b.execution.tolist(), b.cycle.tolist(), b.address.tolist(), strict=True):
            got[execution].append(cycle)
            addresses[execution].append(address)
    assert got == {e: c for e, c in expected.items() if c}
    for execution in got:
        assert addresses[execution] == [a for _, a in of(found, execution)]


def test_memory_does_not_grow_with_the_requests() -> None:
    """A stream of 4 million requests is made in blocks: no more memory at once than for one of a tenth, beyond a few blocks."""

    def peak(elements: int, timed: bool) -> int:
        memory = Memory()
        x = memory.op("x", "_Arg", [], [elements])
        memory.op("neg", "Neg", [x], [elements], ns=1_000_000)
        found = stream(view(memory.build()), 64)
        tracemalloc.start()
        begin = np.array([0, 0])
        made = found.timed_blocks(begin, np.array([0, 1_600_000])) if timed else found.blocks()
        total = sum(len(block) for block in made)
        found_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == 2 * elements * 4 // 64
        return found_peak

    for timed in (False, True):
        assert peak(32_000_000, timed) < 1.5 * peak(3_200_000, timed)


# --- estimates ----------------------------------------------------------------------------------------------------------------------


def two_layers() -> Trace:
    """Layers `small` (4 requests: 2 reads of 64 bytes and a write of 128) and `large` (30)."""
    hand = Hand()
    x = hand.feed("x", (16,))
    small = hand.op("small/Concat", "ConcatV2", x, x, hand.const("axis", (0,), "int32"), shape=(32,))
    hand.op("large/Tile", "Tile", small, hand.const("n", (0,), "int32"), shape=(448,))
    return hand.build([1] * 5)


def test_too_many_requests_are_refused_with_what_fits() -> None:
    found = stream(view(two_layers()), 64)
    parts = {(s.phase, s.layer): s.requests for s in selections(found)}
    assert parts["", "small"] == 1 + 2  # x is one tensor, read once
    assert parts["", "large"] == 2 + 28
    assert sum(v for (p, la), v in parts.items() if p and not la) == found.requests == 33
    with pytest.raises(ExportError) as caught:
        refuse_above(found, 20, "dramsim3")
    text = str(caught.value)
    assert "33 requests (2.11 kB) are more than max_requests=20" in text
    assert "fathom-trace export FILE dramsim3 --layer small" in text or "--layer small" in text
    assert "\n" not in text
    refuse_above(found, 33, "dramsim3")
    with pytest.raises(ExportError, match=r"no layer fits; the smallest part has 3: .* --set max_requests=3"):
        refuse_above(found, 2, "dramsim3")


def test_a_part_of_a_trace_has_the_requests_of_that_part() -> None:
    """What is estimated for a layer is what exporting the layer alone gives, with the bytes of that part only."""
    trace = two_layers()
    whole = stream(view(trace), 64)
    for chosen in selections(whole):
        part = stream(view(select(trace, phase=chosen.phase, layer=chosen.layer)), 64)
        assert part.requests == chosen.requests


def test_what_does_not_fit_of_a_part_is_named_with_all_that_selects_it() -> None:
    """Of a part of a trace, a layer alone or a phase alone would be more than was counted."""
    found = stream(view(select(two_layers(), layer="small")), 64)
    with pytest.raises(ExportError, match="--phase forward --layer small --set max_requests=3"):
        refuse_above(found, 2, "dramsim3")


@pytest.mark.parametrize(("address", "size"), [(2**64 - 64, 128), (64, 2**61), (2**63, 2**62)])
def test_sizes_that_no_memory_has_are_refused(address: int, size: int) -> None:
    memory = Memory()
    x = memory.op("x", "_Arg", [], [1], address=address, size_bytes=size)
    memory.op("y", "_Arg", [], [1], size_bytes=size)
    memory.op("neg", "Neg", [x], [1])
    with pytest.raises(ExportError, match="no memory is as large as this trace says"):
        stream(view(memory.build()), 64)


@pytest.mark.parametrize("trace", [diamond(), dense(), loop()], ids=["diamond", "dense", "loop"])
def test_small_traces_have_their_bytes(trace: Trace) -> None:
    step = view(trace)
    found, expected = stream(step, 64), costs(trace, step.structure)
    assert found.bytes_per_execution(False).tolist() == expected.bytes_read.tolist()
    assert found.bytes_per_execution(True).tolist() == expected.bytes_written.tolist()


# --- captured -----------------------------------------------------------------------------------------------------------------------


def _train_step() -> tuple[Any, Any]:
    tf = pytest.importorskip("tensorflow")
    kernel, weights = tf.Variable(tf.ones([3, 3, 2, 4])), tf.Variable(tf.ones([4 * 6 * 4, 3]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "VALID"))
            loss = tf.reduce_mean(tf.square(tf.tanh(tf.reshape(y, [2, -1]) @ weights)))
        for variable, gradient in zip((kernel, weights), tape.gradient(loss, [kernel, weights]), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, np.ones((2, 6, 8, 2), np.float32)


@pytest.mark.capture
def test_reported_addresses_hold_what_was_written_there() -> None:
    """A captured training step, played through at TensorFlow's own addresses: each read finds what the tensor's maker wrote."""
    from fathom_trace.capture import Plan, capture

    function, x = _train_step()
    trace = capture(function, x, plan=Plan(steps=2, warmup=1))
    found = stream(view(trace), 64, REPORTED)
    expected = costs(trace, trace.main_structure)
    assert found.bytes_per_execution(False).tolist() == expected.bytes_read.tolist()
    assert found.bytes_per_execution(True).tolist() == expected.bytes_written.tolist()
    reported = found.regions.is_reported[found.region]
    assert found.count[reported].sum() > 0.8 * found.requests
    content: dict[int, int] = {}
    wrong, checked = [], 0
    for execution, writes, address in requests(found):
        if writes:
            content[address] = execution
        elif address in content:
            makers = {maker(trace, t) - found.view.rows.start for t in trace.inputs(execution + found.view.rows.start)}
            checked += 1
            if content[address] not in makers:
                wrong.append((execution, address))
    assert checked > 20
    assert wrong == []


def test_sizes_of_elements_are_known() -> None:
    """The dtypes of these tests have the sizes that the bytes above assume."""
    assert (ITEM_BYTES["float32"], ITEM_BYTES["uint8"], ITEM_BYTES["int32"]) == (4, 1, 4)
