"""Is an export to Chakra the trace: its nodes, dependencies, exact times and work, with the collectives that training needs?"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import read_layer_map
from fathom_trace.generated.chakra_execution_pb2 import Node
from fathom_trace.gradients import gradients
from fathom_trace.trace import Trace
from tests.chakra_files import CHAKRA, Read, export, read, read_with_reference, records, replay
from tests.handmade import Hand, Value
from tests.program import Program
from tests.simulator_env import simulator_python
from tests.small import dense, diamond, loop

COMP, COLLECTIVE = 4, 7


def by_name(nodes: list[Read]) -> dict[str, Read]:
    """Nodes by the trace's name; each ran once."""
    found = {n.attributes["node"][1] if "node" in n.attributes else n.name: n for n in nodes}
    assert len(found) == len(nodes)
    return found


def trained(names: str = "wb", clip: bool = False, device: str = "", momentum: bool = False) -> Trace:
    """A step that trains variables of 1,000 float32 each: x @ v -> loss; a MatMul of 5 us makes each gradient; SGD of 1 us each."""
    hand = Hand()
    x = hand.feed("x", (1000,))
    variables = {n: hand.variable(n, (1000,)) for n in names}
    reads = {n: hand.read(f"{n}/Read", v, (1000,)) for n, v in variables.items()}
    forward = {n: hand.op(f"{n}/MatMul", "MatMul", x, r, shape=(1000,)) for n, r in reads.items()}
    loss = hand.op("loss", "Sum", *forward.values())
    hand.fetch(loss, "loss")
    made = {n: hand.op(f"gradients/{n}/MatMul", "MatMul", x, f, shape=(1000,)) for n, f in forward.items()}
    lr = hand.const("lr")
    if clip:
        squares = [hand.op(f"clip/L2Loss_{n}", "L2Loss", g) for n, g in made.items()]
        norm = hand.op("clip/AddN", "AddN", *squares)
        made = {n: hand.op(f"clip/Mul_{n}", "Mul", g, norm, shape=(1000,)) for n, g in made.items()}
    for n, (row, handle) in variables.items():
        if momentum:
            slot, slot_handle = hand.variable(f"{n}/momentum", (1000,), trainable=False, slot_of=row, slot_name="momentum")
            hand.op(f"{n}/update", "ResourceApplyMomentum", handle, slot_handle, lr, made[n], lr, outputs=(), writes=[row, slot])
        else:
            hand.op(f"{n}/update", "ResourceApplyGradientDescent", handle, lr, made[n], outputs=(), writes=[row])
    count = len(hand.builder._rows["executions"])
    ops = [hand.builder._rows["nodes"][r["node"]] for r in hand.builder._rows["executions"]]
    if device:
        for row in hand.builder._rows["nodes"]:
            row["device"] = hand.builder.string(device)
    text = list(hand.builder._strings)
    times = [5_000 if text[o["op"]] == "MatMul" else 1_000 for o in ops]
    assert len(times) == count
    return hand.build(times)


# --- nodes, dependencies, times -----------------------------------------------------------------------------------------------------


def test_every_execution_is_a_node_with_all_it_waited_for(tmp_path: Path) -> None:
    trace = diamond()
    export(trace, tmp_path / "out")
    nodes = read(tmp_path / "out" / "diamond.0.et")
    assert [n.id for n in nodes] == [0, 1, 2, 3]
    assert [n.name for n in nodes] == ["COMP_NODE_OpA", "COMP_NODE_OpB", "COMP_NODE_OpC", "COMP_NODE_OpD"]
    assert [n.deps for n in nodes] == [(), (0,), (0,), (1, 2)]
    assert [(n.start, n.duration, n.duration_ns) for n in nodes] == [
        (0, 10, 10_000), (10, 50, 50_000), (10, 30, 30_000), (60, 10, 10_000),
    ]  # fmt: skip
    assert replay(nodes) == 70_000  # A, B, D


def test_what_is_said_of_a_node(tmp_path: Path) -> None:
    """MatMul [2,3] x [3,5]: 30 MACs, 60 FLOPs, 4 x (6 + 15 + 10) = 124 bytes; attributes of the types that feeders read."""
    export(dense(), tmp_path / "out")
    product = by_name(read(tmp_path / "out" / "dense.0.et"))["fc/MatMul"]
    assert product.type == COMP
    assert product.attributes == {
        "is_cpu_op": ("bool_val", False), "op": ("string_val", "MatMul"), "node": ("string_val", "fc/MatMul"),
        "num_ops": ("int64_val", 60), "tensor_size": ("uint64_val", 124), "duration_ns": ("uint64_val", 30_000),
    }  # fmt: skip
    assert [eval(text) for text in product.inputs[1:]] == [[[2, 3], [3, 5]], ["Tensor(float32)", "Tensor(float32)"]]
    assert eval(product.inputs[0]) == [
        [0, 0, 0, 6, 4, ""],
        [1, 1, 0, 15, 4, ""],
    ]  # tensor, storage, offset, elements, bytes each, device
    assert eval(product.outputs[0]) == [[2, 2, 0, 10, 4, ""]]


def test_nothing_is_zero_where_a_roofline_would_stall(tmp_path: Path) -> None:
    """The two placeholders of `dense` compute and read nothing."""
    report = export(dense(), tmp_path / "out")
    nodes = read(tmp_path / "out" / "dense.0.et")
    assert all(n.attributes["num_ops"][1] >= 1 and n.attributes["tensor_size"][1] >= 1 for n in nodes)
    assert any(text.startswith("2 nodes") and "num_ops" in text for text in report.approximations)


def test_a_loop_is_a_chain_of_its_iterations(tmp_path: Path) -> None:
    """Case D4: a while loop of 3 x MatMul [2,4] x [4,4] is 3 nodes, 1 -> 2 -> 3, and the graph has no cycle."""
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    x, w = builder.node("x", "_Arg"), builder.node("w", "_Arg")
    merge = builder.node("while/Merge", "Merge", inputs=[(x, 0), (4, 0)], frame=frame)
    body = builder.node("while/MatMul", "MatMul", inputs=[(merge, 0), (w, 0)], frame=frame)
    following = builder.node("while/NextIteration", "NextIteration", inputs=[(body, 0)], frame=frame)
    assert following == 4
    last = builder.execution(x, outputs=[("float32", [2, 4])])
    weights = builder.execution(w, outputs=[("float32", [4, 4])])
    for i in range(3):
        path = builder.path(0, frame, 0, i)
        state = builder.execution(merge, inputs=[builder.tensor(last)], outputs=[("float32", [2, 4])], path=path)
        operands = [builder.tensor(state), builder.tensor(weights)]
        product = builder.execution(body, inputs=operands, outputs=[("float32", [2, 4])], path=path)
        last = builder.execution(following, inputs=[builder.tensor(product)], outputs=[("float32", [2, 4])], path=path)
    times = list(range(0, 110, 10))
    builder.step(builder.end_structure(), start=times, done=[t + 10 for t in times])
    trace = builder.build({"workload": "loop"})
    for plumbing in ("true", "false"):
        export(trace, tmp_path / plumbing, plumbing=plumbing)
        nodes = read(tmp_path / plumbing / "loop.0.et")
        graph = networkx.DiGraph((d, n.id) for n in nodes for d in n.deps)
        assert networkx.is_directed_acyclic_graph(graph)
        products = [n for n in nodes if n.name == "COMP_NODE_MatMul"]
        assert [n.attributes["iteration"] for n in products] == [("string_val", str(i)) for i in range(3)]
        assert all(networkx.has_path(graph, a.id, b.id) for a, b in pairwise(products))
    assert [n.deps for n in products] == [(), (products[0].id,), (products[1].id,)]
    assert len(nodes) == 3


def test_neighbours_of_what_is_left_out_are_linked(tmp_path: Path) -> None:
    """Case D5: Const -> MatMul -> Identity -> Relu without helpers is MatMul (no dependency) and Relu (which waits for it)."""
    program = Program()
    constant = program.constant("c", [[1, 2], [3, 4]])
    product = program.op("mm", "MatMul", [constant, constant], [2, 2])
    relu = program.op("relu", "Relu", [program.op("id", "Identity", [product], [2, 2])], [2, 2])
    report = export(program.trace(), tmp_path / "out", plumbing="false")
    nodes = read(tmp_path / "out" / "test.0.et")
    assert [(n.id, n.name, n.deps) for n in nodes] == [(product, "COMP_NODE_MatMul", ()), (relu, "COMP_NODE_Relu", (product,))]
    assert {(s.op, s.executions, s.time_ns) for s in report.skipped} == {("Const", 1, 10), ("Identity", 1, 10)}


def random_trace(seed: int, size: int = 60) -> Trace:
    """Random dependencies, durations from 1 ns to some us, a third of it helpers."""
    rng = random.Random(seed)
    builder = TraceBuilder()
    durations = []
    for i in range(size):
        before = sorted(rng.sample(range(i), min(i, rng.choice([0, 1, 1, 2, 3]))))
        waits = sorted(rng.sample(range(i), min(i, rng.choice([0, 0, 1]))))
        node = builder.node(f"n{i}", rng.choice(["Relu", "Mul", "Identity"]), inputs=[(p, 0) for p in before], control=waits)
        builder.execution(node, inputs=[builder.tensor(p) for p in before], control=waits, outputs=[("float32", [2])])
        durations.append(rng.choice([1, 7, 400, 499, 500, 501, 999, 1_000, 4_321]))
    done = np.cumsum(durations)
    builder.step(builder.end_structure(), start=done - durations, done=done)
    return builder.build({"workload": "random"})


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_gives_the_traces_critical_path(tmp_path: Path, seed: int) -> None:
    trace = random_trace(seed)
    graph = trace.to_networkx()

    def longest(durations: dict[int, float]) -> float:
        end: dict[int, float] = {}
        for node in networkx.topological_sort(graph):
            end[node] = durations[node] + max((end[p] for p in graph.predecessors(node)), default=0)
        return max(end.values())

    durations = dict(graph.nodes(data="duration_ns"))
    export(trace, tmp_path / "all")
    nodes = read(tmp_path / "all" / "random.0.et")
    assert {n.id: set(n.deps) for n in nodes} == {n: set(graph.predecessors(n)) for n in graph}
    assert sum(n.duration_ns for n in nodes) == sum(durations.values())
    assert replay(nodes) == longest(durations)
    export(trace, tmp_path / "bare", plumbing="false")
    bare = read(tmp_path / "bare" / "random.0.et")
    helpers = {n for n, op in graph.nodes(data="op") if op == "Identity"}
    assert {n.id for n in bare} == set(graph) - helpers
    assert replay(bare) == longest({n: 0 if n in helpers else d for n, d in durations.items()})


@pytest.mark.parametrize("seed", range(8))
def test_rounding_is_carried_along_every_path(tmp_path: Path, seed: int) -> None:
    """To the end of every node the longest path in whole microseconds is within 1 us of the exact one; no single time is off by 2 us."""
    trace = random_trace(seed)
    export(trace, tmp_path / "out")
    nodes = read(tmp_path / "out" / "random.0.et")
    for count in range(1, len(nodes) + 1):
        exact, rounded = replay(nodes[:count]), replay(nodes[:count], lambda n: n.duration * 1000)
        assert abs(exact - rounded) < 1_000
    assert all(abs(n.duration * 1000 - n.duration_ns) < 2_000 for n in nodes)


@pytest.mark.parametrize("parallel", [False, True])
def test_rounding_keeps_the_sum(tmp_path: Path, parallel: bool) -> None:
    """1,000 ops of 400 ns, one after the other or all at once: 400 us in all, not 0."""
    builder = TraceBuilder()
    for i in range(1000):
        before = [(i - 1, 0)] * (i > 0 and not parallel)
        node = builder.node(f"n{i}", "Relu", inputs=before)
        builder.execution(node, inputs=[builder.tensor(p) for p, _ in before], outputs=[("float32", [2])])
    start = np.zeros(1000, int) if parallel else np.arange(1000) * 400
    builder.step(builder.end_structure(), start=start, done=start + 400)
    report = export(builder.build({"workload": "many"}), tmp_path / "out")
    assert sum(n.duration for n in read(tmp_path / "out" / "many.0.et")) == 400
    assert "the sum 400 us where it was 400.000" in report.approximations[0]
    assert "600 nodes of 0 us" in report.approximations[0]


def test_one_step_is_exported_and_which_is_said(tmp_path: Path) -> None:
    """`loop`: step 0 ran 2 iterations, step 1 one; both structures ran once, so the first is the usual one."""
    report = export(loop(), tmp_path / "usual")
    assert (report.settings["step"], len(read(tmp_path / "usual" / "loop.0.et"))) == (0, 7)
    report = export(loop(), tmp_path / "other", step="1")
    assert [n.id for n in read(tmp_path / "other" / "loop.0.et")] == [7, 8, 9, 10, 11]
    with pytest.raises(OptionError, match=r"option 'step' of exporter 'chakra' is '7'; it takes median or a traced step: 0, 1$"):
        export(loop(), tmp_path / "none", step="7")


# --- collectives --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["", "/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"])
def test_a_collective_is_complete(tmp_path: Path, device: str) -> None:
    """Case D1: MatMul (5 us) -> all-reduce of 1,000 float32: size 4000 in the int64 field, type 0, not on a CPU, waits for the MatMul."""
    trace = trained("w", device=device)
    export(trace, tmp_path / "out", ranks="2", device="traced")
    nodes = read(tmp_path / "out" / "handmade.0.et")
    [collective] = [n for n in nodes if n.type == COLLECTIVE]
    product = by_name(nodes)["gradients/w/MatMul"]
    assert collective.deps == (product.id,)
    assert product.duration == 5
    assert collective.attributes == {
        "is_cpu_op": ("bool_val", False), "comm_type": ("int64_val", 0), "comm_size": ("int64_val", 4000), "pg_name": ("string_val", "0"),
    }  # fmt: skip
    assert product.attributes["is_cpu_op"] == ("bool_val", "GPU" not in device)
    export(trace, tmp_path / "npu", ranks="2")
    assert {n.attributes["is_cpu_op"] for n in read(tmp_path / "npu" / "handmade.0.et")} == {("bool_val", False)}


def test_collectives_of_the_trace_stay_collectives(tmp_path: Path) -> None:
    """D1, executed: MatMul -> CollectiveReduceV3 of [1000] float32."""
    program = Program()
    product = program.product("mm", [1, 10], [10, 1000], [1, 1000], ns=5_000)
    program.op("reduce", "CollectiveReduceV3", [product], [1, 1000])
    report = export(program.trace(), tmp_path / "out", ranks="4")
    nodes = read(tmp_path / "out" / "test.3.et")
    [collective] = [n for n in nodes if n.type == COLLECTIVE]
    assert collective.deps == (product,)
    assert collective.attributes["comm_size"] == ("int64_val", 4000)
    assert collective.attributes["comm_type"] == ("int64_val", 0)
    assert any("collectives of its own" in note for note in report.notes)


def test_a_collective_of_nothing_is_bridged(tmp_path: Path) -> None:
    """mm -> reduce of a [0, 10] tensor -> relu: a collective of 0 bytes is an error to ASTRA-sim."""
    program = Program()
    product = program.product("mm", [0, 5], [5, 10], [0, 10])
    reduced = program.op("reduce", "CollectiveReduceV3", [product], [0, 10])
    relu = program.op("relu", "Relu", [reduced], [0, 10])
    report = export(program.trace(), tmp_path / "out")
    nodes = {n.id: n for n in read(tmp_path / "out" / "test.0.et")}
    assert reduced not in nodes
    assert nodes[relu].deps == (product,)
    assert [(s.op, s.executions) for s in report.skipped] == [("CollectiveReduceV3", 1)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_ranks_have_the_same_collectives_in_the_same_order(tmp_path: Path, ranks: int) -> None:
    report = export(trained("wbv"), tmp_path / "out", ranks=str(ranks))
    assert list(report.files) == [f"handmade.{r}.et" for r in range(ranks)]
    found = []
    for file in report.files:
        nodes = read(tmp_path / "out" / file)
        found.append([(n.name, n.attributes["comm_size"]) for n in nodes if n.type == COLLECTIVE])
    assert found == [found[0]] * ranks
    assert [name for name, _ in found[0]] == [f"COMM_COLL_NODE_ALL_REDUCE_{v}" for v in "wbv"]


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_a_collective_is_between_a_gradient_and_its_readers(tmp_path: Path, clip: bool, momentum: bool) -> None:
    """One for each trained variable; with clipping by the global norm already the norm waits for it."""
    trace = trained("wb", clip=clip, momentum=momentum)
    export(trace, tmp_path / "out", ranks="2")
    nodes = read(tmp_path / "out" / "handmade.0.et")
    named = by_name(nodes)
    graph = networkx.DiGraph((d, n.id) for n in nodes for d in n.deps)
    assert sum(n.type == COLLECTIVE for n in nodes) == 2
    for v in "wb":
        collective = named[f"COMM_COLL_NODE_ALL_REDUCE_{v}"]
        assert collective.deps == (named[f"gradients/{v}/MatMul"].id,)
        assert networkx.has_path(graph, collective.id, named[f"{v}/update"].id)
        readers = [f"clip/L2Loss_{v}", f"clip/Mul_{v}"] if clip else [f"{v}/update"]
        assert {n for n, node in named.items() if collective.id in node.deps} == set(readers)
    ids = [n.id for n in nodes]
    assert all(ids.index(d) < ids.index(n.id) for n in nodes for d in n.deps), "a feeder reads producers first"


def test_without_the_added_collectives_the_rest_is_the_trace(tmp_path: Path) -> None:
    trace = trained("wb", clip=True)
    export(trace, tmp_path / "one")
    export(trace, tmp_path / "two", ranks="2")
    plain = {n.id: n for n in read(tmp_path / "one" / "handmade.0.et")}
    ranks = {n.id: n for n in read(tmp_path / "two" / "handmade.0.et") if n.id in plain}
    assert set(plain) == set(ranks)
    assert {i: n.attributes for i, n in plain.items()} == {i: n.attributes for i, n in ranks.items()}
    assert all(set(ranks[i].deps) - set(n.deps) <= {len(plain), len(plain) + 1} for i, n in plain.items())


def test_gradients_share_a_collective(tmp_path: Path) -> None:
    """3 variables of 4,000 bytes in buckets that are closed from 5,000 bytes on: 8,000 and 4,000."""
    export(trained("wbv"), tmp_path / "out", ranks="2", bucket_bytes="5000")
    nodes = read(tmp_path / "out" / "handmade.0.et")
    named = by_name(nodes)
    found = [n for n in nodes if n.type == COLLECTIVE]
    assert [n.attributes["comm_size"][1] for n in found] == [8000, 4000]
    assert set(found[0].deps) == {named[f"gradients/{v}/MatMul"].id for v in "wb"}
    assert all(found[0].id in named[f"{v}/update"].deps for v in "wb")


def adam(hand: Hand, name: str, variable: tuple[int, Value], gradient: Value) -> None:
    """m += (g - m) * c; v -= m * c, written as variable ops, the slot read again after it was written."""
    row, handle = variable
    slot = hand.variable(f"{name}/m", (4,), trainable=False, slot_of=row, slot_name="m")
    rate = hand.const(f"{name}/rate")
    before = hand.read(f"adam/{name}/m", slot, (4,))
    change = hand.op(f"adam/{name}/Sub", "Sub", gradient, before, shape=(4,))
    hand.op(f"adam/{name}/AssignAdd", "AssignAddVariableOp", slot[1], change, outputs=(), writes=[slot[0]])
    after = hand.read(f"adam/{name}/m_1", slot, (4,))
    step = hand.op(f"adam/{name}/Mul", "Mul", after, rate, shape=(4,))
    hand.op(f"adam/{name}/AssignSub", "AssignSubVariableOp", handle, step, outputs=(), writes=[row])


def test_gradients_are_found_through_slots_and_sums_and_where_they_are_sparse() -> None:
    """`a` by Adam written out, its gradient a sum of two; `e`, a table of which two rows are updated; `frozen` gets none."""
    hand = Hand()
    tokens = hand.feed("tokens", (2,), dtype="int32")
    a, e, frozen = hand.variable("a", (4,)), hand.variable("e", (10, 4)), hand.variable("frozen", (4,))
    rows = hand.op("lookup", "ResourceGather", e[1], tokens, shape=(2, 4), reads=[e[0]])
    value, other = hand.read("a/Read", a, (4,)), hand.read("frozen/Read", frozen, (4,))
    loss = hand.op("loss", "Sum", hand.op("mul", "Mul", rows, value, other, shape=(2, 4)))
    hand.fetch(loss, "loss")
    first = hand.op("gradients/Sum", "Sum", rows, shape=(4,))
    second = hand.op("gradients/Sum_1", "Sum", rows, shape=(4,))
    total = hand.op("gradients/AddN", "AddN", first, second, shape=(4,))
    adam(hand, "a", a, total)
    sparse = hand.op("gradients/Mul", "Mul", rows, value, shape=(2, 4))
    rate = hand.const("sgd/lr")
    hand.op(
        "sgd/update",
        "ResourceScatterSub",
        e[1],
        tokens,
        hand.op("sgd/Mul", "Mul", sparse, rate, shape=(2, 4)),
        outputs=(),
        writes=[e[0]],
    )
    trace = hand.build([10] * len(hand.builder._rows["executions"]))
    found = {trace.strings[int(trace.variables.variable_name[g.variable])]: g for g in gradients(trace, 0)}

    def names(executions: tuple[int, ...]) -> list[str]:
        return [trace.node_names[int(trace.executions.node[x])] for x in executions]

    assert set(found) == {"a", "e"}
    assert (names(found["a"].producers), names(found["a"].readers)) == (["gradients/AddN"], ["adam/a/Sub"])
    assert (found["a"].is_dense, found["a"].size_bytes) == (True, 16)
    assert (names(found["e"].producers), names(found["e"].readers)) == (["gradients/Mul"], ["sgd/Mul"])
    assert (found["e"].is_dense, found["e"].size_bytes) == (False, 160)


# --- what a feeder would hang on ----------------------------------------------------------------------------------------------------


def damaged(folder: Path, change: Callable[[list[Any]], None]) -> str:
    """The problems that `check` finds in the file once its nodes were changed."""
    file = folder / "diamond.0.et"
    head, *rest = records(file.read_bytes())
    nodes = [Node.FromString(raw) for raw in rest]
    change(nodes)
    made = [head, *(n.SerializeToString() for n in nodes)]
    file.write_bytes(b"".join(CHAKRA.wire.record(raw) for raw in made))
    return "; ".join(CHAKRA.check(folder).problems)


def attribute(node: Any, name: str) -> Any:
    return next(a for a in node.attr if a.name == name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda n: n[0].data_deps.append(3), "wait for each other: 0 -> 1 -> 3 -> 0|wait for each other: 1 -> 3 -> 0 -> 1"),
        (lambda n: n[2].data_deps.append(2), "wait for each other: 2 -> 2;"),
        (lambda n: n[1].data_deps.append(0), "node 1 repeats a dependency"),
        (lambda n: n[1].data_deps.append(77), "depends on node 77, which does not exist"),
        (lambda n: n[1].ctrl_deps.append(0), "ctrl_deps"),
        (lambda n: n[3].data_deps.pop(), "D: 1 dependencies, in the trace 2"),
        (lambda n: n.pop(), "lacks nodes than export.json: 3"),
        (lambda n: setattr(n[1], "id", 0), "given twice"),
        (lambda n: setattr(n[1], "type", 1), "of type 1, which is never written"),
        (lambda n: setattr(n[1], "name", "COMP_NODE_a,b"), "not a name that the timeline tool reads"),
        (lambda n: setattr(attribute(n[1], "duration_ns"), "uint64_val", 1), "B: 1 ns, in the trace 50000"),
        (lambda n: setattr(attribute(n[1], "num_ops"), "int64_val", 0), "must not be 0"),
        (lambda n: setattr(attribute(n[1], "num_ops"), "uint64_val", 5), "num_ops is a uint64_val, readers take int64_val"),
        (lambda n: n[1].attr.remove(attribute(n[1], "is_cpu_op")), "is_cpu_op is missing"),
    ],
)
def test_its_parser_finds_what_makes_feeders_hang(tmp_path: Path, change: Callable[[list[Any]], None], problem: str) -> None:
    export(diamond(), tmp_path / "out")
    assert re.search(problem, damaged(tmp_path / "out", change))


def test_ranks_that_differ_are_found(tmp_path: Path) -> None:
    export(trained("wb"), tmp_path / "out", ranks="2")
    file = tmp_path / "out" / "handmade.1.et"
    head, *rest = records(file.read_bytes())
    nodes = [Node.FromString(raw) for raw in rest]
    attribute(next(n for n in nodes if n.type == COLLECTIVE), "comm_size").int64_val = 8
    file.write_bytes(b"".join(CHAKRA.wire.record(raw) for raw in [head, *(n.SerializeToString() for n in nodes)]))
    assert "its collectives are not those of handmade.0.et" in "; ".join(CHAKRA.check(tmp_path / "out").problems)


def test_a_shortest_cycle_is_the_shortest() -> None:
    """A ring of 5 with a chord that closes 3 of it: 1 -> 2 -> 3 -> 1, each waiting for the one before."""
    ring = {1: [5, 3], 2: [1], 3: [2], 4: [3], 5: [4], 6: [5], 0: []}
    cycle = CHAKRA.shortest_cycle(ring)
    assert len(cycle) == 4
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {1, 2, 3}
    assert all(a in ring[b] for a, b in pairwise(cycle))
    assert CHAKRA.shortest_cycle({1: [], 2: [1]}) == []


@pytest.mark.parametrize(("settings", "words"), [({"ranks": "0"}, "from 1"), ({"bucket_bytes": "-1"}, "whole number of bytes")])
def test_options_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        export(diamond(), tmp_path / "out", **settings)


def test_what_lacks_gradients_is_said(tmp_path: Path) -> None:
    assert any("no trained variable gets a gradient" in note for note in export(diamond(), tmp_path / "a", ranks="2").notes)
    assert any("at least 2 ranks" in note for note in export(diamond(), tmp_path / "b").notes)


# --- results ------------------------------------------------------------------------------------------------------------------------


def log_line(text: str) -> str:
    """As `Logging.cc` of ASTRA-sim sets the pattern: [time] [level] <logger>: text."""
    return f"[2026-03-26T02:50:47+0000] [D] <workload>: {text}\n"


def event(what: str, tick: int, node: int, rank: int = 0) -> str:
    """As `Workload.cc` of ASTRA-sim writes it."""
    return log_line(f"{what},sys->id={rank}, tick={tick}, node->id={node}, node->name=COMP_NODE_Op, node->type=4")


def finished(rank: int = 0) -> str:
    return log_line(f"sys[{rank}] finished, 70 cycles, exposed communication 0 cycles.")


def test_results_are_read_from_the_log(tmp_path: Path) -> None:
    """Node 1 from tick 10 to 60, ticks of 2 ns: 100 ns; rank 1 and collectives are passed over."""
    export(diamond(), tmp_path / "out")
    layers = read_layer_map(tmp_path / "out")
    ran = [(0, 0, 10), (1, 10, 60), (2, 10, 40), (9, 60, 99), (3, 99, 109)]
    lines = [event("issue", a, i) + event("callback", b, i) + event("issue", a + 1, i, 1) for i, a, b in ran]
    log = tmp_path / "log" / "log.log"
    log.parent.mkdir()
    log.write_text("".join(lines) + finished(1) + finished())
    assert CHAKRA.read_results(log, layers, 2.0) == {0: 20.0, 1: 100.0, 2: 60.0, 3: 20.0}
    (log.parent / "log.1.log").write_text("".join(lines[:2]))
    log.write_text("".join(lines[2:]) + finished())
    assert CHAKRA.read_results(log.parent, layers, 1.0)[1] == 50.0


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([event("issue", 0, 0), event("callback", 5, 0)], "rank 0 did not finish"),
        ([event("issue", 0, 0), event("callback", 5, 0), finished()], "3 of 4 nodes have no time"),
        ([event("callback", 5, 0), finished()], "line 1: node 0 ends before it was issued"),
        ([finished()], "set trace-enabled to 1"),
    ],
)
def test_a_log_that_is_incomplete_is_refused(tmp_path: Path, lines: list[str], problem: str) -> None:
    export(diamond(), tmp_path / "out")
    (tmp_path / "log.log").write_text("".join(lines))
    with pytest.raises(ExportError, match=problem):
        CHAKRA.read_results(tmp_path / "log.log", read_layer_map(tmp_path / "out"), 1.0)


# --- the reference package ----------------------------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_the_reference_reader_reads_the_same(tmp_path: Path) -> None:
    """Every field of every node, of a training step with collectives and of a loop."""
    for name, trace in (("handmade", trained("wb", clip=True)), ("loop", loop()), ("random", random_trace(3))):
        report = export(trace, tmp_path / name, ranks="2")
        found = read_with_reference(tmp_path / name, report.files)
        assert found == {file: read(tmp_path / name / file) for file in report.files}
        assert all(len(set(n.deps)) == len(n.deps) and n.id not in n.deps for nodes in found.values() for n in nodes)
        step = report.settings["step"]
        weights = dict(enumerate(trace.durations(step).tolist(), start=trace.structure_rows(report.settings["structure"]).start))
        graph = trace.to_networkx(report.settings["structure"])
        for node in networkx.topological_sort(graph):
            weights[node] += max((weights[p] for p in graph.predecessors(node)), default=0)
        assert replay(found[report.files[0]]) == max(weights.values())


@pytest.mark.simulator
def test_the_jsonizer_takes_the_file(tmp_path: Path) -> None:
    report = export(trained("wb"), tmp_path / "out", ranks="2")
    tool = simulator_python("chakra").parent / "chakra_jsonizer"
    command = [str(tool), "--input_filename", str(tmp_path / "out" / report.files[0]), "--output_filename", str(tmp_path / "out.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    text, decoder, at, found = (tmp_path / "out.json").read_text(), json.JSONDecoder(), 0, []
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    nodes = read(tmp_path / "out" / report.files[0])
    assert [(int(v.get("id", 0)), v["name"], v["type"]) for v in found[1:]] == [
        (n.id, n.name, {COMP: "COMP_NODE", COLLECTIVE: "COMM_COLL_NODE"}[n.type]) for n in nodes
    ]
