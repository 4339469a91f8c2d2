"""Does the benchmark of predictions find no error where there is none, and does it double what it says it doubles?"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.predictions import (
    DOUBLED,
    Subject,
    capture,
    double,
    noise_of,
    op_to_double,
    part_of,
    predictions,
    table,
    verdict,
)
from fathom_trace.builder import TraceBuilder
from fathom_trace.checks import check
from fathom_trace.errors import FathomError
from fathom_trace.store import save
from fathom_trace.trace import Trace
from tests.recordings import random_trace

PRODUCT = {"transpose_a": False, "transpose_b": False, "T": "float32"}


def world(
    workload: str, *, threads: int = 1, workers: int = 1, again: bool = False, batch: int = 2, onednn: bool = False, steps: int = 4
) -> Trace:
    """An exact machine: two MatMuls [batch, 32] x [32, 16] beside each other, then an AddV2 of them; a step takes what its ops take.

    A MatMul takes 4000 ns x batch x (0.25 + 0.75 / threads), a tenth of that with oneDNN, and an AddV2 100 ns x batch. With `again`, each
    MatMul is followed by a copy that the AddV2 waits for. Traced and untraced steps take the same.
    """
    builder = TraceBuilder()
    nodes = {name: builder.node(name, "Placeholder") for name in ("x", "w")}
    product = int(4000 * batch * (0.25 + 0.75 / threads)) // (10 if onednn else 1)
    add = 100 * batch
    copies = [""] + [DOUBLED] * again
    for side in ("left", "right"):
        for copy in copies:
            name = side + copy
            source = builder.add(
                "source_nodes", node_name=builder.string(side), op=builder.string("MatMul"), attributes=0, input_node=[], input_port=[]
            )  # fmt: skip
            control = [nodes[side]] if copy else []
            inputs = [(nodes["x"], 0), (nodes["w"], 0)]
            op = "_MklMatMul" if onednn else "MatMul"
            nodes[name] = builder.node(name, op, inputs=inputs, control=control, attributes=PRODUCT, sources=[source])
    waits = [nodes[side + DOUBLED] for side in ("left", "right")] if again else []
    nodes["sum"] = builder.node(
        "sum", "AddV2", inputs=[(nodes["left"], 0), (nodes["right"], 0)], control=waits, attributes={"T": "float32"}
    )  # fmt: skip
    rows = {"x": builder.execution(nodes["x"], outputs=[("float32", [batch, 32])])}
    rows["w"] = builder.execution(nodes["w"], outputs=[("float32", [32, 16])])
    start, done, lane = [0, 0], [0, 0], [0, 0]
    free = [0] * workers
    for side, worker in (("left", 0), ("right", workers - 1)):
        for copy in copies:
            rows[side + copy] = builder.execution(
                nodes[side + copy], inputs=[builder.tensor(rows["x"]), builder.tensor(rows["w"])],
                control=[rows[side]] if copy else [], outputs=[("float32", [batch, 16])],
            )  # fmt: skip
            start.append(free[worker])
            free[worker] += product
            done.append(free[worker])
            lane.append(worker)
    begin = max(free)
    operands = [builder.tensor(rows["left"]), builder.tensor(rows["right"])]
    builder.execution(
        nodes["sum"], inputs=operands, control=[rows[s + DOUBLED] for s in ("left", "right")] if again else [],
        outputs=[("float32", [batch, 16])],
    )  # fmt: skip
    start.append(begin)
    done.append(begin + add)
    lane.append(0)
    structure = builder.end_structure()
    for _ in range(steps):
        builder.untraced_step(begin + add)
        builder.step(structure, start, done, lane=lane)
    said = {"workload": workload, "mode": "training", "intra_threads": threads, "inter_threads": workers, "batch_size": 2}
    return builder.build(said)


def subject(workload: str) -> Subject:
    """Every way of capturing, in two rounds."""
    made = Subject(workload, "training")
    for round_number in range(2):
        made.captures |= {
            ("base", round_number): world(workload),
            ("inter", round_number): world(workload, workers=2),
            ("threads", round_number): world(workload, threads=2),
            ("doubled", round_number): world(workload, again=True),
            ("onednn", round_number): world(workload, onednn=True),
            ("batch", round_number): world(workload, batch=6),
        }
    return made


def test_an_exact_machine_is_predicted_exactly() -> None:
    """2 x 8000 + 200 = 16.2 us; on two workers 8.2, on two threads 2 x 5000 + 200, with oneDNN 2 x 800 + 200, batch 6 three times."""
    subjects = [subject("one"), subject("other")]
    found = {s.name: [predictions(s, [o for o in subjects if o is not s], r) for r in range(2)] for s in subjects}
    for s in subjects:
        assert s.missing == {}
        assert noise_of(s, 2) == (0, 0)
        for each in found[s.name]:
            assert {p.part: p.measured_ns for p in each} == {
                "a": 16_200, "a untraced": 16_200, "b": 8_200, "c": 10_200, "d": 16_200, "e": 1_800, "f": 48_600
            }  # fmt: skip
            assert [p.error for p in each] == pytest.approx([0] * 7, abs=1e-9)
            assert [p.span_error for p in each[2:]] == pytest.approx([0] * 5, abs=1e-9)
    lines, records = table(subjects, found, 2)
    assert len(lines) == 2 + 2 * 7
    assert {(r["part"], r["passes"]) for r in records if r["part"] not in "ef"} == {
        (part, "yes") for part in ("a", "a untraced", "b", "c", "d")
    }


def test_a_wrong_prediction_fails_and_names_the_op_types() -> None:
    """The doubled trace says 8 us for each product, the measured step has it faster by half: 16.2 against 8.2 us."""
    made = Subject("one", "training", {("base", 0): world("one", threads=4), ("doubled", 0): world("one", again=True)})
    found = {made.name: [predictions(made, [], 0)]}
    lines, records = table([made], found, 1)
    [failing] = [r for r in records if r["passes"] == "NO"]
    assert failing["part"] == "d"
    assert failing["median_error"] == pytest.approx(16_200 / (2 * 3500 + 200) - 1)
    assert any("most in: MatMul +0.01 ms" in line for line in lines)
    assert set(made.missing) == {"b", "c", "e", "f"}


@pytest.mark.parametrize(
    ("part", "error", "limit", "expected"),
    [
        ("a", 0.03, 0.03, "yes"),
        ("a", -0.031, 0.03, "NO"),
        ("b", -0.11, 0.12, "in noise"),
        ("b", 0.13, 0.12, "NO"),
        ("f", 9.0, None, ""),
    ],
)
def test_verdicts(part: str, error: float, limit: float | None, expected: str) -> None:
    assert verdict(part, error, limit) == expected


def test_halves_are_every_second_step() -> None:
    trace = random_trace(random.Random(1), 20, 2, steps=7)
    halves = part_of(trace, 0), part_of(trace, 1)
    assert [len(h.traced_steps) for h in halves] == [4, 3]
    for remainder, half in enumerate(halves):
        for k, step in enumerate(half.traced_steps):
            assert half.durations(step).tolist() == trace.durations(2 * k + remainder).tolist()


@pytest.mark.capture
def test_a_capture_that_fails_is_told(tmp_path: Path) -> None:
    arguments = argparse.Namespace(preset="none", steps=1)
    with pytest.raises(FathomError, match=r"autoenc training, base: fathom-trace: no preset .*is called 'none'"):
        capture(Subject("autoenc", "training"), "base", tmp_path / "x-0.h5", arguments)
    with pytest.raises(FathomError, match="there is no base capture"):
        capture(Subject("autoenc", "training"), "doubled", tmp_path / "y-0.h5", arguments)
    save(world("one"), tmp_path / "z-1.h5")
    made = Subject("autoenc", "training")
    capture(made, "base", tmp_path / "z-1.h5", arguments)
    assert list(made.captures) == [("base", 1)]


@pytest.mark.capture
def test_doubled_ops_run_twice_and_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a function, in a loop's body, and beside ops that are not doubled."""
    tf = pytest.importorskip("tensorflow")
    from fathom_trace.capture import capture as capture_function
    from fathom_trace.capture import lift

    def program(x: object, w: object) -> object:
        y = tf.nn.relu(tf.matmul(x, w))
        for _ in tf.range(3):
            y = tf.tanh(tf.matmul(y, w))
        return y

    arguments = (tf.ones([4, 4]), tf.ones([4, 4]) / 4)
    plain = capture_function(program, *arguments, steps=1)
    serialise = lift._serialise_loops
    monkeypatch.setattr(lift, "_serialise_loops", lambda graph_def: (serialise(graph_def), double(graph_def, "MatMul")))
    twice = capture_function(program, *arguments, steps=1)
    ran = [Counter(t.node_ops[n] for n in t.executions.node.tolist()) for t in (plain, twice)]
    assert (ran[0]["MatMul"], ran[1]["MatMul"]) == (4, 8)
    assert {op: count for op, count in ran[0].items() if op != "MatMul"} == {op: n for op, n in ran[1].items() if op != "MatMul"}
    assert check(twice).problems == []
    assert op_to_double(plain) == "MatMul"
    assert sum(name.endswith(DOUBLED) for name in twice.node_names) == 2
