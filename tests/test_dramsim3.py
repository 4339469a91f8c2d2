"""Is an export to DRAMsim3 the trace's traffic, row by row, and do its results come back as times?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.costs import costs
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import read_layer_map
from fathom_trace.exporting import export as export_part
from fathom_trace.selecting import Choice
from fathom_trace.trace import Trace
from tests.memory_files import DRAMSIM3, Memory, Request, bursts, case_c19, case_c20, dramsim3, export, of_execution, regions, rows
from tests.small import loop
from tests.test_addresses import random_program, two_layers

SENTINEL = "0x0 READ 18446744073709551615"


# --- the cases ----------------------------------------------------------------------------------------------------------------------


def test_c19_is_4_requests_in_the_dialect_of_address_word_cycle(tmp_path: Path) -> None:
    """The op runs for 1,000 ns from 10 ns on; at 1,600 MHz that is 1,600 cycles from cycle 0 (times begin with the first execution)."""
    trace = case_c19()
    export(DRAMSIM3, trace, tmp_path / "order", timing="order", placement="reported")
    assert rows(tmp_path / "order") == ["0x1000 READ 0", "0x1040 READ 1", "0x2000 WRITE 2", "0x2040 WRITE 3", SENTINEL]
    export(DRAMSIM3, trace, tmp_path / "timed", placement="reported")
    # x took 10 ns: cycle 16; the op 1,600 cycles, a quarter of them after each request
    assert rows(tmp_path / "timed") == ["0x1000 READ 16", "0x1040 READ 416", "0x2000 WRITE 816", "0x2040 WRITE 1216", SENTINEL]
    assert [(r["origin"], int(r["original_address"]), r["reads"], r["writes"]) for r in regions(tmp_path / "timed")] == [
        ("reported", 0x1000, "2", "0"), ("reported", 0x2000, "0", "2"),
    ]  # fmt: skip


def test_c20_is_6_requests_of_64_bytes_for_296_bytes(tmp_path: Path) -> None:
    report = export(DRAMSIM3, case_c20(), tmp_path / "out", timing="order")
    found = dramsim3(tmp_path / "out")
    assert [r.writes for r in found] == [False] * 4 + [True] * 2
    assert len({r.address for r in found}) == 6
    written = report.settings["written"]
    assert (written["bytes_read"], written["bytes_written"]) == (216, 80)
    assert [r["origin"] for r in regions(tmp_path / "out")] == ["synthetic"] * 3
    assert any("100.0% of the requests are at synthetic addresses" in a for a in report.approximations)
    assert report.approximations[0].startswith("traffic model: each distinct input is read once and each output written once")


# --- rows ---------------------------------------------------------------------------------------------------------------------------


def test_sizes_that_are_no_multiple_of_a_burst_straddle_as_they_lie(tmp_path: Path) -> None:
    """100 bytes from 0x1030 touch 3 bursts of 64 from 0x1000 on; 1 byte 1; an empty tensor and strings none."""
    memory = Memory()
    given = [
        memory.op("a", "_Arg", [], [100], dtype="uint8", address=0x1030),
        memory.op("b", "_Arg", [], [1], dtype="uint8", address=0x2001),
        memory.op("empty", "_Arg", [], [0]),
        memory.op("text", "_Arg", [], [3], dtype="string"),
    ]
    memory.op("sum", "AddN", given, [0])
    report = export(DRAMSIM3, memory.build(), tmp_path / "out", timing="order", placement="reported")
    assert [r.address for r in dramsim3(tmp_path / "out")] == [*bursts(0x1030, 100, 64), 0x2000]
    assert any("1 tensors of strings have no known size" in note for note in report.notes)


@pytest.mark.parametrize("burst", ["32", "64", "256"])
def test_the_burst_is_an_option(tmp_path: Path, burst: str) -> None:
    export(DRAMSIM3, case_c20(), tmp_path / "out", timing="order", burst_bytes=burst)
    count = sum(-(-size // int(burst)) for size in (96, 120, 80))
    assert len(dramsim3(tmp_path / "out")) == count


@pytest.mark.parametrize("clock", [1600.0, 1333.333, 0.5, 1200.0])
def test_cycles_are_the_exact_times_rounded_down(tmp_path: Path, clock: float) -> None:
    """Starts of ops after years of nanoseconds: floor(ns clock) in integers, where floating point would be off."""
    builder = TraceBuilder()
    starts = [0, 1, 999, 10**6 + 1, 10**15 + 7, 3 * 10**15 + 1]
    for i in range(len(starts)):
        x = builder.execution(builder.node(f"x{i}", "Range"), outputs=[("float32", [1])])
        assert x == i
    builder.step(builder.end_structure(), start=starts, done=starts)
    export(DRAMSIM3, builder.build({"workload": "clock"}), tmp_path / "out", clock_mhz=str(clock))
    khz = round(clock * 1000)
    assert [r.cycle for r in dramsim3(tmp_path / "out")] == [ns * khz // 10**6 for ns in starts]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("timing", ["execution", "order"])
def test_each_execution_has_its_rows_and_its_bytes(tmp_path: Path, seed: int, timing: str) -> None:
    """Requests per execution, counted from the rows that the map gives it, cover its bytes; cycles never fall; all rows have an owner."""
    trace = random_program(seed, addresses=True)
    report = export(DRAMSIM3, trace, tmp_path / "out", timing=timing)
    found, where, expected = dramsim3(tmp_path / "out"), of_execution(tmp_path / "out"), costs(trace, 0)
    cycles = [r.cycle for r in found]
    assert cycles == sorted(cycles)
    assert sum(b - a + 1 for a, b in where.values()) == len(found)
    for execution, (first, last) in where.items():
        mine = Counter(r.writes for r in found[first - 1 : last])
        assert 64 * mine[False] >= expected.bytes_read[execution]
        assert 64 * mine[True] >= expected.bytes_written[execution]
        if timing == "execution":
            start = trace.step_times.start[execution] * 1600 // 1000
            assert all(start <= r.cycle <= start + 50 * 1.6 for r in found[first - 1 : last])
    assert sum(layer.facts["bytes_read"] for layer in report.layers) == expected.bytes_read.sum()
    assert sum(layer.facts["bytes_written"] for layer in report.layers) == expected.bytes_written.sum()


def test_executions_that_overlap_ask_at_the_same_time(tmp_path: Path) -> None:
    """Two ops of 4 requests in cycles 0 to 39 and 20 to 59: every 10 cycles a request of the first, from 20 on one of the second too."""
    builder = TraceBuilder()
    for name in "AB":
        builder.execution(builder.node(name, "ZerosLike"), outputs=[("float32", [64])])
    builder.step(builder.end_structure(), start=[0, 20], done=[40, 60], lane=[0, 1])
    export(DRAMSIM3, builder.build({"workload": "two"}), tmp_path / "out", clock_mhz="1000")
    assert [(r.cycle, r.address // 256) for r in dramsim3(tmp_path / "out")] == [
        (0, 0), (10, 0), (20, 0), (20, 1), (30, 0), (30, 1), (40, 1), (50, 1),
    ]  # fmt: skip
    assert of_execution(tmp_path / "out") == {0: (1, 5), 1: (4, 8)}


def test_what_has_no_valid_time_is_asked_for_when_what_precedes_it_is_done(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for name in "AB":
        builder.execution(builder.node(name, "ZerosLike"), outputs=[("float32", [16])])
    builder.step(builder.end_structure(), start=[0, 0], done=[40, 0], valid=[True, False])
    report = export(DRAMSIM3, builder.build({"workload": "two"}), tmp_path / "out", clock_mhz="1000")
    assert [r.cycle for r in dramsim3(tmp_path / "out")] == [0, 40]
    assert any("1 executions have no valid time" in a for a in report.approximations)


def test_a_loop_is_there_once_per_iteration(tmp_path: Path) -> None:
    """`small.loop` multiplies twice in step 0 and once in step 1; each product reads and writes 32 bytes."""
    for step, trips in (("0", 2), ("1", 1)):
        export(DRAMSIM3, loop(), tmp_path / step, step=step, burst_bytes="32")
        assert len(dramsim3(tmp_path / step)) == 2 * trips


def test_nothing_is_dropped_silently(tmp_path: Path) -> None:
    """An op of unknown bytes, a call whose parts are there, and what moves nothing are skipped, each with its reason."""
    builder = TraceBuilder()
    call = builder.execution(builder.node("call", "StatefulPartitionedCall"), outputs=[("float32", [16])])
    builder.execution(builder.node("call/Zeros", "ZerosLike"), outputs=[("float32", [16])], parent=call, kind=2, timed=False)
    builder.execution(builder.node("odd", "NobodyKnowsThis"), outputs=[("float32", [16])])
    builder.execution(builder.node("nothing", "NoOp"))
    builder.step(builder.end_structure(), start=[0, 0, 9, 20], done=[9, 0, 19, 21])
    report = export(DRAMSIM3, builder.build(), tmp_path / "out", timing="order")
    assert {s.op: s.reason.partition(":")[0] for s in report.skipped} == {
        "StatefulPartitionedCall": "its parts are exported in its place",
        "NobodyKnowsThis": "its bytes are not known",
        "NoOp": "moves no bytes",
    }
    assert any("the bytes of 1 executions are not known and not here: 1 NobodyKnowsThis" in note for note in report.notes)


# --- size ---------------------------------------------------------------------------------------------------------------------------


def test_too_many_requests_write_nothing_and_name_what_fits(tmp_path: Path) -> None:
    """33 requests in all, 3 in layer `small`: what the message names can be exported."""
    with pytest.raises(
        ExportError, match=r"dramsim3: 33 requests .* max_requests=20; .*: fathom-trace export FILE dramsim3 .*--layer small"
    ):
        export(DRAMSIM3, two_layers(), tmp_path / "all", max_requests="20")
    assert list((tmp_path / "all").iterdir()) == []
    report, _ = export_part(two_layers(), "dramsim3", tmp_path / "part", {"max_requests": "20"}, choice=Choice(layer="small"))
    assert report.settings["written"]["rows"] == 3
    assert report.selection is not None


def test_options_are_checked() -> None:
    for settings in ({"burst_bytes": 48}, {"burst_bytes": 0}, {"max_requests": 0}, {"clock_mhz": 0.0}, {"clock_mhz": -1.0}):
        with pytest.raises(OptionError, match=f"option '{next(iter(settings))}'"):
            DRAMSIM3.Options(**settings)


def test_a_trace_without_times_needs_the_order(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("A", "ZerosLike"), outputs=[("float32", [16])], timed=False)
    builder.end_structure()
    trace = builder.build()
    with pytest.raises(ExportError, match="set timing=order"):
        export(DRAMSIM3, trace, tmp_path / "a")
    export(DRAMSIM3, trace, tmp_path / "b", timing="order")
    assert dramsim3(tmp_path / "b") == [Request(0, True)]


# --- its parser ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("0x40 READ 1", "0x40 WRITE 1", "reads, export.json says"),
        ("0x40 READ 1", "0x40 Read 1", "it has not READ or WRITE"),
        ("0x40 READ 1", "0x80 READ 1", "reads of the region at 0"),
        ("0x40 READ 1", "0x41 READ 1", "is no burst of a region"),
        ("0x40 READ 1", "0x4000 READ 1", "is no burst of a region"),
        ("0x40 READ 1", "64 READ 1", "an address in hexadecimal"),
        ("0x40 READ 1", "0x40 READ 0x1", "leading zeros"),
        ("0x40 READ 1", "0x40 READ 1.5", "a decimal number"),
        ("0x40 READ 1", "0x40 READ 9", "of an earlier cycle"),
        ("0x40 READ 1\n", "", "5 rows"),
        ("0x40 READ 1\n", "0x40 READ 1\n0x40 READ 1\n", "7 rows"),
        (f"{SENTINEL}\n", "", "cut off"),
        (f"{SENTINEL}\n", "0x0 READ 99\n", "cut off"),
        (f"{SENTINEL}\n", f"{SENTINEL.replace('READ', 'WRITE')}\n", "the last row is not"),
        (f"{SENTINEL}\n", f"{SENTINEL}\n{SENTINEL}\n", "rows follow the row that ends it"),
    ],
)
def test_its_parser_finds_what_was_changed(tmp_path: Path, old: str, new: str, problem: str) -> None:
    export(DRAMSIM3, case_c20(), tmp_path / "out", timing="order")
    file = tmp_path / "out" / "memory.trace"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(DRAMSIM3.check(tmp_path / "out").problems)


def test_its_parser_finds_requests_of_another_execution(tmp_path: Path) -> None:
    """Two executions' rows change places: totals and regions stay, the map does not."""
    builder = TraceBuilder()
    for name, shape in (("A", [32]), ("B", [16])):
        x = builder.execution(builder.node(f"x{name}", "_Arg"), outputs=[("float32", [16])])
        builder.execution(builder.node(name, "Neg"), inputs=[builder.tensor(x)], outputs=[("float32", shape)])
    builder.step(builder.end_structure(), start=[0, 0, 9, 9], done=[0, 9, 9, 19])
    export(DRAMSIM3, builder.build({"workload": "two"}), tmp_path / "out", timing="order")
    file = tmp_path / "out" / "two.trace"
    lines = file.read_text().split("\n")
    words = [line.split(" ")[:2] for line in lines[:5]]
    moved = words[3:5] + words[:3]
    lines[:5] = [f"{a} {w} {i}" for i, (a, w) in enumerate(moved)]
    file.write_text("\n".join(lines))
    assert "in its rows, in the trace" in "; ".join(DRAMSIM3.check(tmp_path / "out").problems)


def test_its_parser_finds_addresses_that_two_executions_have_swapped(tmp_path: Path) -> None:
    """A and B each read and write 64 bytes; B's read and A's change places: all counts stay, the sums of their addresses do not."""
    memory = Memory()
    given = [memory.op(name, "_Arg", [], [16]) for name in ("x", "y")]
    for name, x in zip("AB", given, strict=True):
        memory.op(name, "Neg", [x], [16])
    export(DRAMSIM3, memory.build(), tmp_path / "out", timing="order")
    file = tmp_path / "out" / "memory.trace"
    lines = file.read_text().split("\n")
    assert [line.split(" ")[1] for line in lines[:4]] == ["READ", "WRITE", "READ", "WRITE"]
    first, third = (lines[i].split(" ")[0] for i in (0, 2))
    lines[0], lines[2] = lines[0].replace(first, third), lines[2].replace(third, first)
    file.write_text("\n".join(lines))
    assert [p.partition(":")[2].split()[1] for p in DRAMSIM3.check(tmp_path / "out").problems] == ["address_sum"] * 2


def test_its_parser_finds_a_changed_region_table(tmp_path: Path) -> None:
    export(DRAMSIM3, case_c20(), tmp_path / "out", timing="order")
    file = tmp_path / "out" / "memory_regions.csv"
    text = file.read_text()
    for old, new in (("\n0,", "\n64,"), ("synthetic", "unheard"), ("\n128,128,2,", "\n128,128,3,"), ("address,", "addr,")):
        assert old in text
        file.write_text(text.replace(old, new, 1))
        assert not DRAMSIM3.check(tmp_path / "out").ok
    file.write_text(text)
    assert DRAMSIM3.check(tmp_path / "out").ok


# --- results ------------------------------------------------------------------------------------------------------------------------


def answer(folder: Path, epochs: list[list[tuple[int, int]]], last: list[tuple[int, int]], period: int, tail: int) -> Path:
    """DRAMsim3's two files as its source writes them: an entry per epoch and channel with (reads, writes) done, then totals by channel.

    `last` is what was done after the last whole epoch, in `tail` cycles.
    """
    folder.mkdir()
    channels = range(len(last))
    entries = [
        {"channel": c, "epoch_num": number, "num_cycles": period, "num_reads_done": done[c][0], "num_writes_done": done[c][1],
         "average_read_latency": 30.5}
        for number, done in enumerate(epochs, start=1)
        for c in channels
    ]  # fmt: skip
    totals = {
        str(c): {
            "channel": c, "epoch_num": len(epochs), "num_cycles": period * len(epochs) + tail,
            "num_reads_done": sum(e[c][0] for e in epochs) + last[c][0], "num_writes_done": sum(e[c][1] for e in epochs) + last[c][1],
        }
        for c in channels
    }  # fmt: skip
    (folder / "dramsim3epoch.json").write_text(json.dumps(entries))
    (folder / "dramsim3.json").write_text(json.dumps(totals))
    return folder


def two_ops() -> Trace:
    """A and B: a read of 64 and a write of 192 bytes; two reads of 64 and a write of 64. 4 and 3 requests, 100 and 300 ns."""
    memory = Memory()
    x, y = memory.op("x", "_Arg", [], [16], ns=0), memory.op("y", "_Arg", [], [16], ns=0)
    memory.op("A", "Neg", [x], [48], ns=100)
    memory.op("B", "AddN", [x, y], [16], ns=300)
    return memory.build()


def test_results_in_order_are_the_time_that_memory_alone_takes(tmp_path: Path) -> None:
    """7 requests: 2 are done in the first 100 cycles, none in the second, 4 in the third, 1 in the last 50; a cycle is 0.5 ns.

    A ends with the 4th: half way through the third epoch, at cycle 250: 125 ns. B ends with the 7th, at the end, at cycle 350: 50 ns.
    """
    export(DRAMSIM3, two_ops(), tmp_path / "out", timing="order")
    folder = answer(tmp_path / "results", [[(1, 0), (0, 1)], [(0, 0), (0, 0)], [(2, 1), (0, 1)]], [(0, 1), (0, 0)], 100, 50)
    layers = read_layer_map(tmp_path / "out")
    expected = {2: 125.0, 3: 50.0}
    for path in (folder, folder / "dramsim3.json", folder / "dramsim3epoch.json"):
        assert DRAMSIM3.read_results(path, layers, 0.5) == pytest.approx(expected)


def test_files_that_dramsim3_itself_wrote_are_read(tmp_path: Path) -> None:
    """The same trace, simulated by DRAMsim3 (commit 2981759) with 2 channels of HBM2, unified_queue and epochs of 20 cycles, -c 110.

    It took 4 writes in the first epoch and answered 3 reads in the second: A ends with the 4th request, at cycle 20, B at cycle 40.
    """
    export(DRAMSIM3, two_ops(), tmp_path / "out", timing="order")
    found = DRAMSIM3.read_results(Path(__file__).parent / "fixtures" / "dramsim3", read_layer_map(tmp_path / "out"), 1.0)
    assert found == pytest.approx({2: 20.0, 3: 20.0})


def test_results_at_own_times_are_stretched_alike(tmp_path: Path) -> None:
    """400 ns at 1 GHz ask until cycle 300 (the last of 3 requests over 300 cycles from 100 on), 301 cycles; done at cycle 602: twice."""
    report = export(DRAMSIM3, two_ops(), tmp_path / "out", clock_mhz="1000")
    assert report.settings["asked_cycles"] == 301
    layers = read_layer_map(tmp_path / "out")
    late = answer(tmp_path / "late", [[(1, 1)]] * 2 + [[(0, 0)]] * 3 + [[(1, 2)]], [(0, 0)], 100, 0)
    assert DRAMSIM3.read_results(late, layers, 1.0) == pytest.approx({2: 100 * 600 / 301, 3: 300 * 600 / 301})
    in_time = answer(tmp_path / "in_time", [[(1, 1)], [(1, 1)], [(1, 2)]], [(0, 0)], 100, 200)
    assert DRAMSIM3.read_results(in_time, layers, 1.0) == {2: 100.0, 3: 300.0}


def test_results_that_are_none_are_refused(tmp_path: Path) -> None:
    export(DRAMSIM3, two_ops(), tmp_path / "out", timing="order")
    layers = read_layer_map(tmp_path / "out")

    def refused(path: Path, reason: str) -> None:
        with pytest.raises(ExportError, match=reason) as caught:
            DRAMSIM3.read_results(path, layers, 1.0)
        assert str(path) in str(caught.value)

    refused(
        answer(tmp_path / "few", [[(2, 4)]], [(0, 0)], 100, 0), r"num_reads_done is 2, the export has 3; simulate more cycles \(-c\)"
    )
    refused(answer(tmp_path / "many", [[(3, 4)]], [(0, 5)], 100, 1), "num_writes_done is 9, the export has 4; it is of another export")
    good = answer(tmp_path / "good", [[(3, 4)]], [(0, 0)], 100, 0)
    assert DRAMSIM3.read_results(good, layers, 1.0)
    (good / "dramsim3epoch.json").rename(tmp_path / "kept.json")
    refused(good, "totals do not tell when requests were done: set epoch_period")
    refused(good / "dramsim3.json", "totals do not tell when")
    (good / "dramsim3epoch.json").write_text("[")
    refused(good, "is not DRAMsim3's statistics")
    (good / "dramsim3epoch.json").write_text(json.dumps([{"epoch_num": 1}]))
    refused(good, "'num_cycles' is missing or no count")
    (good / "dramsim3epoch.json").write_text(
        (tmp_path / "kept.json").read_text().replace('"num_reads_done": 3', '"num_reads_done": 9')
    )
    refused(good, "the two files are of different runs")


def test_the_command_line_closes_the_loop(tmp_path: Path) -> None:
    """`whatif --from` projects the step with the memory's times in place of its own."""
    from fathom_trace.exporting import read_results

    trace = two_ops()
    export_part(trace, "dramsim3", tmp_path / "out", {"timing": "order"})
    folder = answer(tmp_path / "results", [[(3, 4)]], [(0, 0)], 700, 0)
    found: dict[int, Any] = read_results(tmp_path / "out", folder, 1e9)
    assert found == pytest.approx({2: 400.0, 3: 300.0})
    assert np.isclose(sum(found.values()), 700)
