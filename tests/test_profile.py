"""Do the tables of time and work add up, and do they show what is not known?"""

from __future__ import annotations

import csv
import io
import json

import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import TraceError, UnknownNameError
from fathom_trace.profile import BY, CSV_COLUMNS, Profile, Row, profile, select_steps
from fathom_trace.trace import Trace
from tests.handmade import Hand
from tests.small import loop
from tests.training import step


def rows(found: Profile) -> dict[str, Row]:
    return {row.key: row for row in found.rows}


def products() -> Hand:
    """Two products of 240 FLOPs, a ReLU of 20, and an op that nobody knows."""
    hand = Hand()
    x, w = hand.feed("x", (4, 6)), hand.feed("w", (6, 5))
    first = hand.op("a/mm", "MatMul", x, w, shape=(4, 5))
    hand.op("b/mm", "MatMul", x, w, shape=(4, 5))
    hand.op("a/relu", "Relu", first, shape=(4, 5))
    hand.op("b/odd", "NewFangledOp", first, shape=(4, 5))
    return hand


def test_a_table_by_op_type() -> None:
    found = profile(products().build(durations_ns=[0, 0, 30, 50, 10, 10]))
    assert [row.key for row in found.rows] == ["MatMul", "NewFangledOp", "Relu", "_Arg"]
    matmul = rows(found)["MatMul"]
    assert (matmul.count, matmul.time_ns, matmul.share, matmul.macs, matmul.flops) == (2, 80, 0.8, 240, 480)
    assert matmul.bytes == 2 * (96 + 120 + 80)
    assert matmul.gflops_per_s == 480 / 80
    assert matmul.intensity == pytest.approx(240 / 296)
    assert found.total_ns == 100
    assert sum(row.share or 0 for row in found.rows) == pytest.approx(1)


def test_the_csv_has_exactly_the_stated_columns_and_no_zero_for_the_unknown() -> None:
    found = profile(products().build(durations_ns=[0, 0, 30, 50, 10, 10]))
    read = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert found.to_csv().splitlines()[0] == "key,count,time_ns,share,macs,flops,bytes" == ",".join(CSV_COLUMNS)
    by_key = {row["key"]: row for row in read}
    assert by_key["NewFangledOp"]["macs"] == by_key["NewFangledOp"]["flops"] == by_key["NewFangledOp"]["bytes"] == ""
    assert by_key["_Arg"]["flops"] == "0"
    assert float(by_key["MatMul"]["share"]) == 0.8
    assert "\r" not in found.to_csv()


def test_a_group_with_something_unknown_shows_the_rest_apart() -> None:
    hand = products()
    hand.op("c/fused", "_FusedMatMul", hand.feed("y", (4, 6)), hand.feed("v", (6, 5)), shape=(4, 5), fused_ops=["Wobble"])
    found = rows(profile(hand.build(), by="kind"))
    gemm = found["gemm"]
    assert (gemm.flops, gemm.known_flops, gemm.unknown_flops) == (None, 480, 1)
    assert (gemm.macs, gemm.unknown_macs) == (360, 0)
    assert gemm.gflops_per_s is None
    assert gemm.intensity is None
    assert found["unknown"].to_dict()["flops"] is None


def test_json_says_null_and_states_the_coverage() -> None:
    found = json.loads(profile(products().build(durations_ns=[0, 0, 30, 50, 10, 10]), by="kind").to_json())
    row = next(row for row in found["rows"] if row["key"] == "unknown")
    assert (row["macs"], row["flops"], row["bytes"], row["unknown_flops"]) == (None, None, None, 1)
    assert found["coverage"]["flops"] == {"executions": pytest.approx(5 / 6), "time": pytest.approx(0.9)}
    assert found["uncovered"] == {"NewFangledOp": 1}


def test_by_layer_and_phase() -> None:
    trace = step().hand.build()
    layers, phases = rows(profile(trace, by="layer")), rows(profile(trace, by="phase"))
    conv = 2 * 4 * 8 * 4  # output elements of each convolution
    # forward, filter gradient, and for conv1_2 an input gradient; 27 and 36 products an element
    assert layers["conv1_1"].macs == 2 * conv * 27
    assert layers["conv1_2"].macs == 3 * conv * 36
    assert layers["fc6"].macs == 3 * 2 * 64 * 5
    assert layers["(none)"].macs == 0
    assert phases["forward"].macs == conv * (27 + 36) + 640
    assert phases["backward"].macs == conv * 27 + 2 * conv * 36 + 1280
    assert phases["optimizer"].macs == 0
    assert phases["optimizer"].flops == 4 * sum((108, 4, 144, 4, 320, 5)) + 1
    for by in BY:
        table = profile(trace, by=by)
        assert sum(row.count for row in table.rows) == len(trace.executions)
        assert sum(row.known_macs for row in table.rows) == sum(row.known_macs for row in profile(trace).rows)


def test_loops_count_executions() -> None:
    found = rows(profile(loop()))
    assert found["MatMul"].count == 2
    assert found["MatMul"].time_ns == 14


def test_the_branch_that_was_not_taken_counts_nothing() -> None:
    """cond(p, then: x [3, 4] w [4, 2], else: row sums broadcast to [3, 2]) + 1, with p true."""
    hand = Hand()
    x, w = hand.feed("x", (3, 4)), hand.feed("w", (4, 2))
    taken = hand.op("cond/then/_0/MatMul", "MatMul", x, w, shape=(3, 2))
    for name, op in (("Sum", "Sum"), ("BroadcastTo", "BroadcastTo")):
        hand.op(f"cond/else/_1/{name}", op, x, runs=0)
    hand.op("add", "AddV2", taken, hand.const("one"), shape=(3, 2))
    found = rows(profile(hand.build()))
    assert (found["MatMul"].count, found["MatMul"].flops) == (1, 48)
    assert (found["AddV2"].count, found["AddV2"].flops) == (1, 6)
    assert sum(row.flops or 0 for row in found.values()) == 54
    assert (found["Sum"].count, found["BroadcastTo"].count) == (0, 0)


def repeated(durations: list[list[int]]) -> Trace:
    """A MatMul and a ReLU, with their durations in each step."""
    builder = TraceBuilder()
    first, second = builder.node("a/mm", "MatMul"), builder.node("a/relu", "Relu")
    for node in (first, second):
        builder.execution(node, outputs=[("float32", (2, 2))])
    structure = builder.end_structure()
    for mm, relu in durations:
        builder.step(structure, start=[0, mm], done=[mm, mm + relu])
    builder.untraced_step(7)
    return builder.build({})


def test_times_are_medians_over_steps_of_sums_in_a_step() -> None:
    trace = repeated([[10, 1], [90, 3], [20, 2]])
    found = rows(profile(trace))
    assert (found["MatMul"].time_ns, found["Relu"].time_ns) == (20, 2)
    # By phase both are one group; sums are 11, 93 and 22, so the median is 22.
    assert profile(trace, by="phase").rows[0].time_ns == 22
    assert rows(profile(trace, steps=[0, 1]))["MatMul"].time_ns == 50
    assert rows(profile(trace, steps=[1]))["MatMul"].time_ns == 90


def test_the_structure_that_most_steps_ran_is_shown() -> None:
    trace = loop()
    assert select_steps(trace) == (0, (0,))
    assert rows(profile(trace, steps=[1]))["MatMul"].count == 1


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([5], "there is no step 5"),
        ([2], "step 2 was not traced; traced steps are: 0, 1"),
        ([0, 1], "executed different things; steps like step 0 are: 0"),
        ([], "no step is selected"),
    ],
)
def test_steps_that_cannot_be_shown_together(steps: list[int], problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        profile(loop(), steps=steps)


def test_unknown_grouping_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="no grouping is called 'layers'; did you mean 'layer'"):
        profile(loop(), by="layers")


def test_a_trace_without_times_has_counts_and_no_times() -> None:
    hand = products()
    found = profile(hand.build())
    assert {row.time_ns for row in found.rows} == {None}
    assert found.total_ns is None
    assert found.coverage["flops"].time is None
    assert found.to_csv().splitlines()[1] == "MatMul,2,,,240,480,592"


def test_invalid_times_are_left_out() -> None:
    builder = TraceBuilder()
    for name in ("a", "b"):
        builder.execution(builder.node(name, "Relu"), outputs=[("float32", (2,))])
    builder.step(builder.end_structure(), start=[0, 50], done=[10, 40])
    assert rows(profile(builder.build({})))["Relu"].time_ns == 10
