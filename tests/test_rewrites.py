"""Is all work of a program accounted for after TensorFlow rewrote it: fused, folded, merged, pruned?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fathom_trace.capture import CaptureRequest, Plan, capture_request
from fathom_trace.cli import run
from fathom_trace.errors import TraceError
from fathom_trace.rewrites import FOLDED, MERGED, PRUNED, Changed, Removed, rewrites
from fathom_trace.store import save
from fathom_trace.trace import Trace
from tests.captured_apart import capture_apart
from tests.handmade import Hand


def written() -> Hand:
    """Products of 30 MACs each: x w, again x w, a b of constants, and x v."""
    hand = Hand()
    x = hand.feed("x", (2, 3))
    variable, other = hand.variable("w", (3, 5)), hand.variable("v", (3, 5))
    for name in ("first", "second"):
        w = hand.read(f"{name}/read", variable, (3, 5))
        hand.op(f"{name}/mm", "MatMul", x, w, shape=(2, 5), transpose_a=False)
    hand.op("folded", "MatMul", hand.const("a", (2, 3)), hand.const("b", (3, 5)), shape=(2, 5), transpose_a=False)
    hand.op("pruned", "MatMul", x, hand.read("v/read", other, (3, 5)), shape=(2, 5), transpose_a=False)
    return hand


def executed(name: str, columns: int = 5) -> Trace:
    hand = Hand()
    x, w = hand.feed("x", (2, 3)), hand.feed("w", (3, columns))
    hand.op(name, "MatMul", x, w, shape=(2, columns))
    return hand.build()


def test_products_that_did_not_run_are_listed_with_the_reason() -> None:
    found = rewrites(written().build(), executed("first/mm"))
    assert found.removed == (
        Removed("second/mm", "MatMul", 30, MERGED, "first/mm"),
        Removed("folded", "MatMul", 30, FOLDED),
        Removed("pruned", "MatMul", 30, PRUNED),
    )
    assert (found.source_macs, found.executed_macs, found.removed_macs, found.changed) == (120, 30, 90, ())


def test_a_product_of_other_size_or_unknown_name_is_a_change() -> None:
    found = rewrites(written().build(), executed("first/mm", columns=4))
    assert found.changed == (Changed("first/mm", "MatMul", 30, 24),)
    assert found.executed_macs + found.removed_macs == found.source_macs + found.added_macs == 114
    found = rewrites(written().build(), executed("made_up"))
    assert found.changed == (Changed("made_up", "MatMul", 0, 30),)
    assert found.executed_macs + found.removed_macs == found.source_macs + found.added_macs == 150
    assert [item.how for item in found.removed] == [PRUNED, PRUNED, FOLDED, PRUNED], "nothing serves instead of the first two"


def test_unknown_macs_cannot_be_accounted_for() -> None:
    hand = Hand()
    hand.op("odd", "NewFangledOp", hand.feed("x", (2, 3)), shape=(2, 5))
    with pytest.raises(TraceError, match="MACs of NewFangledOp are not known"):
        rewrites(hand.build(), executed("odd"))


def stored(trace: Trace, path: Path, **provenance: object) -> str:
    save(trace.replace(provenance={**trace.provenance, **provenance}), path)
    return str(path)


def test_the_command_lists_what_was_removed_and_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """120 MACs in the source; 30 of each product are merged, folded, pruned and executed."""
    source = stored(written().build(), tmp_path / "a.h5")
    optimized = stored(executed("first/mm"), tmp_path / "b.pb", stage="optimized")
    assert run(("rewrites", source, optimized)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["MACs", "of", "the", "source", "120", "100.0%"], ["executed", "30", "25.0%"],
        ["folded", "30", "25.0%"], ["merged", "30", "25.0%"], ["pruned", "30", "25.0%"],
    ]  # fmt: skip
    assert lines[5] == "30 executed + 90 removed = 120 of the source"
    assert "second/mm  MatMul     30  merged into first/mm" in lines
    assert run(("rewrites", source, optimized, "--top", "1", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source_macs"], found["executed_macs"], found["removed_macs"], found["added_macs"]) == (120, 30, 90, 0)
    assert found["removed_by_reason"] == {"folded": 30, "merged": 30, "pruned": 30}
    assert [item["node"] for item in found["removed"]] == ["second/mm"]


def test_the_command_shows_products_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """24 MACs were executed where 30 were written: 24 + 90 = 120 - 6."""
    source = stored(written().build(), tmp_path / "a.h5")
    optimized = stored(executed("first/mm", columns=4), tmp_path / "b.h5", stage="optimized")
    assert run(("rewrites", source, optimized)) == 0
    out = capsys.readouterr().out
    assert "24 executed + 90 removed = 120 of the source - 6 added\n" in out
    assert out.splitlines()[-1].split() == ["first/mm", "MatMul", "30", "24"]


def test_the_command_refuses_traces_that_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = stored(written().build(), tmp_path / "a.h5")
    optimized = stored(executed("first/mm"), tmp_path / "b.h5", stage="optimized")
    other = stored(executed("first/mm"), tmp_path / "c.h5", stage="optimized", batch_size=7)
    assert run(("rewrites", optimized, source)) == 1
    assert "b.h5 is a trace of stage 'optimized', not of 'source'; give the trace of stage source first" in capsys.readouterr().err
    assert run(("rewrites", source, other)) == 1
    assert "different programs: batch_size is '' in the first and 7 in the second" in capsys.readouterr().err


PROGRAM = """
import numpy as np
import tensorflow as tf


def everything():
    inner = tf.function(lambda x, w: tf.matmul(x, w))

    @tf.function
    def step(x, w, b, v, u, k, image):
        fused = tf.nn.relu(tf.nn.bias_add(inner(x, w), b), name="fused")
        merged = tf.tanh(tf.matmul(x, v, name="one")) + tf.sigmoid(tf.matmul(x, v, name="two"))
        folded = tf.matmul(tf.constant(np.ones([4, 3], np.float32)), tf.constant(np.ones([3, 5], np.float32)), name="constants")
        pruned = tf.cast(tf.raw_ops.Rank(input=tf.matmul(x, u, name="for_its_rank")), tf.float32)
        padded = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, k, 1, "SAME", name="conv"), b), name="conv_fused")
        return fused + merged + folded + tf.reduce_sum(padded) + pruned

    shapes = [[4, 6], [6, 5], [5], [6, 5], [6, 7], [3, 3, 2, 5], [1, 8, 6, 2]]
    return step, [np.ones(shape, np.float32) for shape in shapes]
"""


@pytest.mark.capture
def test_what_tensorflow_folds_merges_prunes_and_fuses(tmp_path: Path) -> None:
    """4 * 5 * 6 = 120 MACs in each product of x and w or v, 60 of constants, 168 for a rank; 8 * 6 * 5 * 18 = 4,320 convolved."""
    pytest.importorskip("tensorflow")
    (tmp_path / "program.py").write_text(PROGRAM)
    source = capture_request(CaptureRequest(f"{tmp_path}/program.py:everything", plan=Plan(steps=1, warmup=0)))
    optimized = capture_apart("program.py:everything", tmp_path, "optimized")
    found = rewrites(source, optimized)
    assert (found.source_macs, found.executed_macs) == (120 + 2 * 120 + 60 + 168 + 4_320, 120 + 120 + 4_320)
    assert found.changed == ()
    assert {(item.node, item.how, item.macs) for item in found.removed} in (
        {("constants", FOLDED, 60), ("for_its_rank", PRUNED, 168), (twin, MERGED, 120)} for twin in ("one", "two")
    )
    assert found.executed_macs + found.removed_macs == found.source_macs
    fused = optimized.node_names.index("fused")
    assert optimized.node_ops[fused].endswith("FusedMatMul")
    rows = optimized.nodes.source[optimized.nodes.row_values("source", fused)].tolist()
    ops = [optimized.strings[int(optimized.source_nodes.op[row])] for row in rows]
    assert (ops[0], {"BiasAdd", "MatMul"} <= set(ops)) == ("Relu", True)
