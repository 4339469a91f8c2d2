"""Does a described accelerator take what it covers, as long as its formulas say, and does every crossing pay its transfer once?"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.whatif import Accelerate, Settings, parse_scenario, project, read_accelerator
from fathom_trace.whatif.recording import record
from fathom_trace.whatif.replay import replay_unlimited, replay_workers
from fathom_trace.whatif.scenario import Context, Scenario
from fathom_trace.whatif.selection import executed
from fathom_trace.whatif.transfers import Transfers, places, with_transfers
from tests.program import Program, dilated_depthwise
from tests.recordings import random_recording, recording_of

ROOFLINE = "covers: [gemm]\npeak: 1 GFLOP/s\nbandwidth: 1 GB/s\noverhead: 7ns\nlink: {bandwidth: 1 GB/s, latency: 100ns}\n"
ARRAY = "covers: [gemm]\nsystolic: {rows: 4, columns: 8, dataflow: ws, clock: 1GHz}\nlink: none\n"


def accelerate(folder: Path, text: str) -> Scenario:
    (folder / "accelerator.yaml").write_text(text, encoding="utf-8")
    return parse_scenario(["hardware:accelerator.yaml"], Context(folder))


def sandwich(*, readers: int = 1) -> Trace:
    """MatMul [10, 5] x [5, 12] (1000 ns) -> Relu (300 ns, once a reader) -> MatMul [10, 12] x [12, 3] of the first Relu (2000 ns)."""
    program = Program()
    first = program.product("first", [10, 5], [5, 12], [10, 12], ns=1000)
    relus = [program.op(f"relu{k}", "Relu", [first], [10, 12], {"T": "float32"}, ns=300) for k in range(readers)]
    weights = program.input("second/w", [12, 3])
    program.op("second", "MatMul", [relus[0], weights], [10, 3], {"T": "float32", "transpose_a": False, "transpose_b": False}, ns=2000)
    return program.trace()


# --- time on the accelerator --------------------------------------------------------------------------------------------------


def test_covered_products_take_their_roofline_and_the_rest_stays(tmp_path: Path) -> None:
    """First: 2 x 600 FLOPs take 1200 ns at 1 GFLOP/s, its (50 + 60 + 120) x 4 bytes 920 ns; second: 720 FLOPs, (120 + 36 + 30) x 4 = 744 B.

    Both 7 ns more. Copies at 1 B/ns + 100: the operands 200 + 240, the output 480, the Relu's 480 and the weights' 144 bytes.
    """
    projection = project(sandwich(), accelerate(tmp_path, ROOFLINE))
    ops = {o.op: o.after_ns for o in projection.ops}
    assert ops["MatMul"] == (1200 + 7) + (744 + 7)
    assert ops["Relu"] == 300
    assert ops["(transfer)"] == 5 * 100 + 200 + 240 + 480 + 480 + 144
    before = {o.op: o.before_ns for o in projection.ops}
    assert (before["MatMul"], before["(transfer)"]) == (3000, 0)
    assert projection.replay.after_ns == projection.amdahl.after_ns == projection.amdahl.before_ns - 3000 + 1958 + 2044
    assert "copies between host and accelerator: 5, of 1.54 kB, which take 2.04 us" in projection.notes
    assert projection.to_dict()["transfers"] == {"count": 5, "size_bytes": 1544, "time_ns": 2044}


def test_a_tensor_moves_once_however_many_read_it(tmp_path: Path) -> None:
    """Three Relus on the host read the first product: one copy. Only the first of them is read on the accelerator."""
    one, three = (project(sandwich(readers=n), accelerate(tmp_path, ROOFLINE)) for n in (1, 3))
    for projection in (one, three):
        assert {o.op: o.count for o in projection.ops}["(transfer)"] == 5
    assert three.replay.after_ns == one.replay.after_ns + 2 * 300


def test_what_stays_on_one_side_moves_nothing(tmp_path: Path) -> None:
    """With the Relu covered too, only operands of placeholders cross: 3 of them. Relu: 120 FLOPs, 960 bytes."""
    text = ROOFLINE.replace("[gemm]", "[gemm, op:Relu]")
    projection = project(sandwich(), accelerate(tmp_path, text))
    ops = {o.op: (o.count, o.after_ns) for o in projection.ops}
    assert ops["(transfer)"] == (3, 3 * 100 + 200 + 240 + 144)
    assert ops["Relu"] == (1, pytest.approx(960 + 7))


def test_shared_memory_needs_no_link(tmp_path: Path) -> None:
    projection = project(sandwich(), accelerate(tmp_path, ROOFLINE.partition("link")[0] + "link: none\n"))
    assert "(transfer)" not in {o.op for o in projection.ops}
    assert projection.replay.before_ns - projection.replay.after_ns == 3000 - 1207 - 751


def test_a_systolic_array_takes_its_closed_form(tmp_path: Path) -> None:
    """ws on 4 x 8: ceil(5/4) ceil(12/8) (10 + 8 + 8 - 2) - 1 = 95 and ceil(12/4) ceil(3/8) (10 + 8 + 8 - 2) - 1 = 71 cycles of 1 ns."""
    projection = project(sandwich(), accelerate(tmp_path, ARRAY))
    assert {o.op: o.after_ns for o in projection.ops}["MatMul"] == 95 + 71
    assert projection.unlimited.after_ns == projection.unlimited.before_ns - 3000 + 166


def test_convolutions_run_by_groups_and_batches(tmp_path: Path) -> None:
    """Grouped: [2, 9, 7, 4] by [3, 2, 2, 6] in 2 groups, outputs 7 x 6, os on 4 x 8: per group M = 84, N = 3, K = 12.

    ceil(84/4) ceil(3/8) (12 + 4 + 8 - 2) - 1 = 461 cycles, twice, at 500 MHz 2 ns each, and 5 ns of overhead.
    """
    program = Program()
    program.convolution("c", [2, 9, 7, 4], [3, 2, 2, 6], [2, 7, 6, 6], ns=9000)
    text = "covers: conv\nsystolic: {rows: 4, columns: 8, clock: 500MHz}\noverhead: 5ns\nlink: none\n"
    projection = project(program.trace(), accelerate(tmp_path, text))
    assert {o.op: o.after_ns for o in projection.ops}["Conv2D"] == pytest.approx(2 * 461 * 2 + 5)


def test_what_is_a_dilated_convolution_runs_as_one(tmp_path: Path) -> None:
    """Where the reshuffles around it are covered, they vanish; where they are not, they stay."""
    trace, _ = dilated_depthwise()
    text = "covers: [conv, op:SpaceToBatchND, op:BatchToSpaceND]\nsystolic: {rows: 4, columns: 4, clock: 1GHz}\noverhead: 9us\nlink: none\n"
    ops = {o.op: o.after_ns for o in project(trace, accelerate(tmp_path, text)).ops}
    assert ops["SpaceToBatchND"] == ops["BatchToSpaceND"] == 0
    assert ops["DepthwiseConv2dNative"] > 9000
    left = {o.op: o.after_ns for o in project(trace, accelerate(tmp_path, text.replace(", op:BatchToSpaceND", ""))).ops}
    assert left["BatchToSpaceND"] > 0


def test_what_has_no_known_time_stays_on_the_host_and_is_counted(tmp_path: Path) -> None:
    projection = project(sandwich(), accelerate(tmp_path, ARRAY.replace("[gemm]", "[gemm, op:Relu]")))
    assert {o.op: o.after_ns for o in projection.ops}["Relu"] == 300
    reason = "covered, but left on the host: 1 executions (no convolution or product, and no peak and bandwidth are given)"
    assert reason in projection.notes
    other = "covers: [gemm]\npeak: {bfloat16: 1T}\nbandwidth: 1G\nlink: none\n"
    with pytest.raises(ScenarioError, match="gives no time for what it covers: no peak is given for float32"):
        project(sandwich(), accelerate(tmp_path, other))
    with pytest.raises(ScenarioError, match="covers nothing that ran; it covers kind:pooling"):
        project(sandwich(), accelerate(tmp_path, other.replace("gemm", "pooling")))


def test_what_computes_and_moves_nothing_needs_no_launch(tmp_path: Path) -> None:
    program = Program()
    image, size = program.input("image", [4, 6]), program.constant("size", [24])
    program.op("flat", "Reshape", [image, size], [24], {"T": "float32"}, ns=500)
    text = ROOFLINE.replace("[gemm]", "op:Reshape")
    assert {o.op: o.after_ns for o in project(program.trace(), accelerate(tmp_path, text)).ops}["Reshape"] == 0


def test_a_variable_that_is_written_here_and_read_there_moves_too(tmp_path: Path) -> None:
    """w [5, 12] is read into a product on the accelerator by a read that is covered too, and updated on the host: 240 bytes a step."""
    builder = TraceBuilder()
    x, handle = builder.node("x", "Placeholder"), builder.node("w", "VarHandleOp")
    w = builder.variable("w", "float32", [5, 12], trainable=True, node=handle)
    read = builder.node("read", "ReadVariableOp", inputs=[(handle, 0)], reads=[w], attributes={"dtype": "float32"})
    product = builder.node(
        "product", "MatMul", inputs=[(x, 0), (read, 0)], attributes={"T": "float32", "transpose_a": False, "transpose_b": False}
    )
    update = builder.node("update", "AssignAddVariableOp", inputs=[(handle, 0), (read, 0)], writes=[w])
    rows = [
        builder.execution(x, outputs=[("float32", [10, 5])]),
        builder.execution(handle, outputs=[("resource", [])]),
    ]
    rows.append(builder.execution(read, inputs=[builder.tensor(rows[1])], outputs=[("float32", [5, 12])]))
    rows.append(builder.execution(product, inputs=[builder.tensor(rows[0]), builder.tensor(rows[2])], outputs=[("float32", [10, 12])]))
    builder.execution(update, inputs=[builder.tensor(rows[1]), builder.tensor(rows[2])], control=[rows[3]])
    times = [10 * k for k in range(5)]
    builder.step(builder.end_structure(), start=times, done=[t + 10 for t in times])
    text = ROOFLINE.replace("[gemm]", "[gemm, op:ReadVariableOp]")
    change = accelerate(tmp_path, text).changes[0]
    assert isinstance(change, Accelerate)
    moves = change.place(executed(builder.build(), 0)).transfers
    # x (200 B, to the product), the value read (240 B, back to the host's update), and w itself after its update (240 B)
    assert list(zip(moves.producer.tolist(), moves.size_bytes.tolist(), np.diff(moves.offsets).tolist(), strict=True)) == [
        (0, 200, 1), (2, 240, 1), (4, 240, 0)
    ]  # fmt: skip


def test_a_second_accelerator_is_refused(tmp_path: Path) -> None:
    twice = accelerate(tmp_path, ARRAY).then(*accelerate(tmp_path, ARRAY).changes)
    with pytest.raises(ScenarioError, match="is a second accelerator; a scenario has one"):
        project(sandwich(), twice)


def test_other_changes_before_and_after_apply_in_turn(tmp_path: Path) -> None:
    """A factor of 2 before is overwritten by the hardware's time, after it halves it: 95 + 71 = 166 ns."""
    hardware = accelerate(tmp_path, ARRAY)
    faster = parse_scenario(["MatMul=2"])
    assert {o.op: o.after_ns for o in project(sandwich(), faster.then(*hardware.changes)).ops}["MatMul"] == 166
    assert {o.op: o.after_ns for o in project(sandwich(), hardware.then(*faster.changes)).ops}["MatMul"] == 83


# --- copies in the replay -----------------------------------------------------------------------------------------------------


def test_copies_stand_behind_their_producer_and_before_their_consumers() -> None:
    """0 (10) -> 1 (10) and 2 (10), 1 -> 3. A copy of 0 for 1 takes 5, one of 1 for nobody 7.

    On one worker 40 + 12, on unlimited ones 10 + 5 + 10 + 10.
    """
    recording = recording_of([10, 10, 10, 10], [[], [0], [0], [1]])
    moves = Transfers(
        np.array([0, 1]), np.array([5.0, 7.0]), np.array([1, 1]), np.array([0, 1, 1]), np.array([1])
    )  # fmt: skip
    wider = with_transfers(recording, moves)
    at, copies = places(4, moves)
    assert (at.tolist(), copies.tolist()) == ([0, 2, 4, 5], [1, 3])
    assert wider.producers == [[], [0], [1], [2], [0], [2]]
    assert wider.order.tolist() == [0, 1, 2, 3, 4, 5]
    assert replay_workers(wider, 1).makespan_ns == 52
    assert replay_unlimited(wider).makespan_ns == 35


@pytest.mark.parametrize("seed", range(20))
def test_random_copies_keep_order_and_dependencies(seed: int) -> None:
    rng = random.Random(seed)
    recording = random_recording(rng, 40, gaps=True, tails=True)
    consumers = recording.consumers
    chosen = [p for p in range(40) if consumers[p] and rng.random() < 0.5]
    readers = [sorted(rng.sample(consumers[p], rng.randint(1, len(consumers[p])))) for p in chosen]
    moves = Transfers(
        producer=np.array(chosen, np.int64),
        time_ns=np.array([float(rng.randint(0, 9)) for _ in chosen]),
        size_bytes=np.ones(len(chosen), np.int64),
        offsets=np.concatenate([[0], np.cumsum([len(r) for r in readers])]).astype(np.int64),
        consumer=np.array([c for r in readers for c in r], np.int64),
    )
    wider, (at, copies) = with_transfers(recording, moves), places(40, moves)
    assert sorted([*at.tolist(), *copies.tolist()]) == list(range(40 + len(chosen)))
    for i in range(40):
        expected = set()
        for p in recording.producers[i]:
            moved = p in chosen and i in readers[chosen.index(p)]
            expected.add(int(copies[chosen.index(p)]) if moved else int(at[p]))
        assert set(wider.producers[at[i]]) == expected
    for k, p in enumerate(chosen):
        assert wider.producers[copies[k]] == [at[p]]
    assert all(p < i for i, producers in enumerate(wider.producers) for p in producers)
    assert [place for place in wider.order.tolist() if place in set(at.tolist())] == at[recording.order].tolist()
    assert replay_workers(wider, 1).makespan_ns == replay_workers(recording, 1).makespan_ns + moves.total_ns
    assert replay_unlimited(wider).makespan_ns >= replay_unlimited(recording).makespan_ns


def test_the_critical_path_goes_through_copies(tmp_path: Path) -> None:
    projection = project(sandwich(), accelerate(tmp_path, ROOFLINE), Settings(workers=3))
    path = projection.critical_path
    assert [c.op for c in path] == ["Placeholder", "(transfer)", "MatMul", "(transfer)", "Relu", "(transfer)", "MatMul"]
    assert sum(c.gap_ns + c.time_ns for c in path) == pytest.approx(projection.unlimited.after_ns)
    assert [c.execution >= 0 for c in path] == [True, False, True, False, True, False, True]
    assert len(projection.schedule.start_ns) == len(record(sandwich())) + 5


def test_there_is_one_accelerator_however_many_workers(tmp_path: Path) -> None:
    """Two products of 95 cycles and two Relus of 300 ns, none of which waits for another: on 4 workers 190 ns for the array alone."""
    builder = TraceBuilder()
    x, w = builder.node("x", "Placeholder"), builder.node("w", "Placeholder")
    rows = [builder.execution(x, outputs=[("float32", [10, 5])]), builder.execution(w, outputs=[("float32", [5, 12])])]
    attributes = {"T": "float32", "transpose_a": False, "transpose_b": False}
    for k in range(2):
        node = builder.node(f"product{k}", "MatMul", inputs=[(x, 0), (w, 0)], attributes=attributes)
        builder.execution(node, inputs=[builder.tensor(r) for r in rows], outputs=[("float32", [10, 12])])
    relu = builder.node("relu", "Relu", inputs=[(x, 0)], attributes={"T": "float32"})
    builder.execution(relu, inputs=[builder.tensor(rows[0])], outputs=[("float32", [10, 5])])
    builder.step(builder.end_structure(), start=[0] * 5, done=[0, 0, 1000, 1000, 150], lane=[0, 0, 0, 1, 2])
    trace = builder.build({"inter_threads": 4})
    projection = project(trace, accelerate(tmp_path, ARRAY))
    assert projection.replay.before_ns == 1000
    assert projection.replay.after_ns == 190  # 95 + 95, beside a Relu of 150
    assert projection.unlimited.after_ns == 150
    assert sorted(projection.schedule.start_ns.tolist()) == [0, 0, 0, 0, 95]


def test_waiting_for_the_accelerator_is_no_scheduling_anomaly(tmp_path: Path) -> None:
    """Two Relus of 1,000 ns side by side; the accelerator takes 2 x 4 x 100 bytes / 1 GB/s = 800 ns for each, one after the other."""
    builder = TraceBuilder()
    x = builder.node("x", "Placeholder")
    given = builder.execution(x, outputs=[("float32", [100])])
    for k in range(2):
        relu = builder.node(f"relu{k}", "Relu", inputs=[(x, 0)], attributes={"T": "float32"})
        builder.execution(relu, inputs=[builder.tensor(given)], outputs=[("float32", [100])])
    builder.step(builder.end_structure(), start=[0, 0, 0], done=[0, 1000, 1000], lane=[0, 0, 1])
    text = "covers: [elementwise]\npeak: 1 TFLOP/s\nbandwidth: 1 GB/s\nlink: none\n"
    projection = project(builder.build({"inter_threads": 2}), accelerate(tmp_path, text))
    assert (projection.replay.before_ns, projection.replay.after_ns) == (1000, 1600)
    assert projection.notes[-1].endswith("1.6 times as long: what the accelerator covers runs there one after the other")
    assert not [note for note in projection.notes if "anomaly" in note]


# --- descriptions -------------------------------------------------------------------------------------------------------------


def test_a_description_is_read_with_its_units(tmp_path: Path) -> None:
    text = """\
name: mine
covers: [conv, "layer:fc*"]
systolic: {rows: 16, columns: 32, dataflow: is, clock: 700MHz}
peak: {float32: 2 TFLOP/s, any: 1e12}
bandwidth: 100 GB/s
overhead: 5us
link: {bandwidth: 16 GB/s, latency: 1.5us}
"""
    (tmp_path / "a.yaml").write_text(text)
    found = read_accelerator(tmp_path / "a.yaml")
    assert (found.name, [str(s) for s in found.covers]) == ("mine", ["kind:conv", "layer:fc*"])
    assert found.systolic is not None
    assert (found.systolic.rows, found.systolic.columns, found.systolic.dataflow, found.systolic.clock_hz) == (16, 32, "is", 7e8)
    assert found.peak_flops_per_s == {"float32": 2e12, "any": 1e12}
    assert (found.bandwidth_bytes_per_s, found.overhead_ns) == (1e11, 5000)
    assert found.link is not None
    assert (found.link.bandwidth_bytes_per_s, found.link.latency_ns) == (16e9, 1500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("covers: [gemm]\n", ""), "covers: it is a list of kinds or selections"),
        (("[gemm]", "[]"), "covers: it is a list"),
        (("[gemm]", "[{a: b}]"), "covers: it is a list"),
        (("[gemm]", "['lyer:x']"), "did you mean 'layer:x'"),
        (("peak: 1 GFLOP/s\n", ""), "a roofline needs both peak and bandwidth"),
        (("peak: 1 GFLOP/s\nbandwidth: 1 GB/s\n", ""), "nothing says how fast it is"),
        (("1 GFLOP/s", "fast"), "peak: 'fast' is not a quantity in FLOP/s"),
        (("1 GFLOP/s", "0"), "peak: '0' is no rate of hardware"),
        (("1 GFLOP/s", "1e-300"), "peak: '1e-300' is no rate of hardware; give one from 1 to 1e\\+24 FLOP/s"),
        (("1 GFLOP/s", "{float33: 1e12}"), "peak: no dtype is called 'float33'; did you mean 'float32'"),
        (("[gemm]", "[gemm, gem]"), "covers: no kind is called 'gem'; did you mean 'gemm'"),
        (("bandwidth: 1 GB/s\no", "bandwidth: 1e-310 B/s\no"), "bandwidth: '1e-310 B/s' is no rate of hardware"),
        (("1 GFLOP/s", "[1]"), "peak: it is FLOP/s by dtype"),
        (("1 GFLOP/s", "{float32: x}"), "peak: float32: 'x' is not a quantity"),
        (("bandwidth: 1 GB/s\no", "bandwidht: 1 GB/s\no"), "no key is called 'bandwidht'; did you mean 'bandwidth'"),
        (("7ns", "7"), "overhead: '7' is no time; write for example 5us"),
        (("7ns", "-7ns"), "overhead: '-7ns' is no time"),
        (("link: {bandwidth: 1 GB/s, latency: 100ns}\n", ""), "link is missing"),
        (("{bandwidth: 1 GB/s, latency: 100ns}", "{latency: 100ns}"), "link: bandwidth is missing"),
        (("{bandwidth: 1 GB/s, latency: 100ns}", "{speed: 1}"), "no key of link is called 'speed'"),
        (("{bandwidth: 1 GB/s, latency: 100ns}", "fast"), "link: it is a mapping"),
        (("overhead", "systolic: {rows: 4}\noverhead"), "systolic: columns is missing"),
        (("overhead", "systolic: {rows: 4.5, columns: 4, clock: 1G}\noverhead"), "systolic: rows is '4.5'; it is a whole number"),
        (("overhead", "systolic: {rows: 0, columns: 4, clock: 1G}\noverhead"), "systolic: rows is '0'"),
        (("overhead", "systolic: {rows: 4, columns: 4, clock: 1G, dataflow: ows}\noverhead"), "no dataflow is called 'ows'"),
        (("overhead", "systolic: {rows: 4, columns: 4, clock: 1 s}\noverhead"), "systolic: clock: '1 s' is not a quantity in Hz"),
    ],
)
def test_a_wrong_description_names_the_file_and_the_key(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in ROOFLINE
    with pytest.raises(ScenarioError, match=message) as error:
        accelerate(tmp_path, ROOFLINE.replace(*change))
    assert str(error.value).startswith(f"{tmp_path / 'accelerator.yaml'}: ")


def test_no_description_at_all(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="describes no accelerator"):
        accelerate(tmp_path, "- a\n")
    with pytest.raises(ScenarioError, match="'hardware:' names no file"):
        parse_scenario(["hardware:"])


def test_what_is_covered_and_did_not_run_is_named(tmp_path: Path) -> None:
    text = ROOFLINE.replace("[gemm]", "[gemm, conv, 'layer:nowhere*']")
    notes = project(sandwich(), accelerate(tmp_path, text)).notes
    assert "'kind:conv' is covered, but nothing of it ran" in notes
    assert "'layer:nowhere*' is covered, but nothing of it ran" in notes
    assert not any("'kind:gemm' is covered" in note for note in notes)
