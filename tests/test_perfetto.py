"""Does a timeline show what the trace has: each execution once, at its time, on a row where nothing overlaps, with every dependency?"""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.generated.perfetto_events_pb2 import Trace as Packets
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.perfetto_processor import ask
from tests.small import diamond, loop

PERFETTO: Any = REGISTRY.load("perfetto")


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    folder.mkdir()
    report: ExportReport = PERFETTO.write(trace, folder, apply_settings(PERFETTO.Options(), settings, "exporter 'perfetto'"))
    write_report(folder, report)
    assert PERFETTO.check(folder).problems == ()
    return report


def events(folder: Path, what: str = "X") -> list[dict[str, Any]]:
    """The events of one kind in the folder's JSON file."""
    [file] = [p for p in folder.glob("*.json") if p.name != "export.json"]
    return [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == what]


def timeline(times: list[tuple[int, int]], origin_ns: int = 0, lanes: list[int] | None = None, device: str = "") -> Trace:
    """Ops A, B, C, ... that wait for nothing, with (start, done) in ns."""
    builder = TraceBuilder()
    for i in range(len(times)):
        node = builder.node(chr(ord("A") + i), "Relu", device=device)
        builder.execution(node, outputs=[("float32", [2])])
    starts, done = [a for a, _ in times], [b for _, b in times]
    builder.step(builder.end_structure(), start=starts, done=done, origin_ns=origin_ns, lane=lanes)
    return builder.build({"workload": "timeline"})


def native(folder: Path) -> tuple[dict[int, list[tuple[int, int, str]]], dict[str, int]]:
    """By track, (begin, end, name) of slices as the packets give them; and clocks by number. Reads with the schema alone."""
    [file] = folder.glob("*.pftrace")
    packets = Packets.FromString(file.read_bytes()).packet
    names = {e.iid: e.name for p in packets for e in p.interned_data.event_names}
    tracks: dict[int, list[tuple[int, int, str]]] = {}
    begun: dict[int, tuple[int, str]] = {}
    clocks = {str(c.clock_id): c.timestamp for p in packets for c in p.clock_snapshot.clocks}
    for packet in packets:
        event = packet.track_event
        if event.type == 1:
            begun[event.track_uuid] = (packet.timestamp, names[event.name_iid])
        elif event.type == 2:
            start, name = begun.pop(event.track_uuid)
            tracks.setdefault(event.track_uuid, []).append((start, packet.timestamp, name))
    assert not begun
    return tracks, clocks


# --- rows ---------------------------------------------------------------------------------------------------------------------------


def test_slices_that_overlap_are_on_rows_of_their_own(tmp_path: Path) -> None:
    """Case E4: A[0,10], B[5,15], C[12,20], D[2,4] us on CPU:0, all said to be of one worker: at least 2 rows, durations 10, 10, 8, 2."""
    us = 1_000
    times = [(0, 10 * us), (5 * us, 15 * us), (12 * us, 20 * us), (2 * us, 4 * us)]
    trace = timeline(times, device="/job:localhost/replica:0/task:0/device:CPU:0")
    export(trace, tmp_path / "json", format="json")
    found = events(tmp_path / "json")
    assert {e["name"]: e["dur"] for e in found} == {"A": 10, "B": 10, "C": 8, "D": 2}
    for a, b in combinations(found, 2):
        if a["tid"] == b["tid"]:
            assert a["ts"] + a["dur"] <= b["ts"] or b["ts"] + b["dur"] <= a["ts"]
    assert len({e["tid"] for e in found}) == 2  # at 5 us A and B run, at 3 us A and D, never three
    export(trace, tmp_path / "native")
    tracks, _ = native(tmp_path / "native")
    assert sorted((e - b, n) for rows in tracks.values() for b, e, n in rows) == [
        (2_000, "D"),
        (8_000, "C"),
        (10_000, "A"),
        (10_000, "B"),
    ]
    for rows in tracks.values():
        assert all(a[1] <= b[0] for a, b in zip(sorted(rows), sorted(rows)[1:], strict=False))


def test_workers_and_devices_have_rows_of_their_own(tmp_path: Path) -> None:
    export(timeline([(0, 5), (1, 6), (7, 9)], lanes=[0, 1, 0]), tmp_path / "a", format="json")
    named = {e["tid"]: e["args"]["name"] for e in events(tmp_path / "a", "M") if e["name"] == "thread_name"}
    assert {e["name"]: named[e["tid"]] for e in events(tmp_path / "a")} == {
        "A": "CPU:0 worker 0", "B": "CPU:0 worker 1", "C": "CPU:0 worker 0",
    }  # fmt: skip


# --- times --------------------------------------------------------------------------------------------------------------------------


def test_fractions_of_a_microsecond_survive(tmp_path: Path) -> None:
    """Case E1: (start, duration) in us of (12.6, 0.3), (20.2, 0.4), (30.0, 5.0): no negative duration, mean 1.9 us."""
    trace = timeline([(12_600, 12_900), (20_200, 20_600), (30_000, 35_000)])
    assert trace.durations(0).tolist() == [300, 400, 5_000]
    export(trace, tmp_path / "json", format="json")
    assert [e["dur"] for e in events(tmp_path / "json")] == [0.3, 0.4, 5.0]
    assert [e["ts"] for e in events(tmp_path / "json")] == [0.0, 7.6, 17.4]
    assert sum(e["dur"] for e in events(tmp_path / "json")) / 3 == pytest.approx(1.9)
    export(trace, tmp_path / "native")
    [rows] = native(tmp_path / "native")[0].values()
    assert [end - begin for begin, end, _ in rows] == [300, 400, 5_000]


@pytest.mark.parametrize("stored", ["origin", "times"])
def test_times_are_relative_and_the_epoch_is_kept(tmp_path: Path, stored: str) -> None:
    """Case E5: two events at 1796026610255867.25 us and 0.4 us later, 0.1 us long: 0 and 0.4; as epochs they would be 0.5 apart."""
    epoch = 1_796_026_610_255_867_250
    assert 1796026610255867.65 - 1796026610255867.25 == 0.5
    base = 0 if stored == "origin" else 5_000
    trace = timeline([(base, base + 100), (base + 400, base + 500)], origin_ns=epoch - base)
    export(trace, tmp_path / "json", format="json")
    found = events(tmp_path / "json")
    assert [(e["ts"], e["dur"]) for e in found] == [(0.0, 0.1), (0.4, 0.1)]
    content = json.loads((tmp_path / "json" / "timeline.json").read_text())
    assert content["otherData"]["origin_unix_ns"] == str(epoch)
    export(trace, tmp_path / "native")
    [rows], clocks = list(native(tmp_path / "native")[0].values()), native(tmp_path / "native")[1]
    assert [(b, e) for b, e, _ in rows] == [(0, 100), (400, 500)]
    assert clocks == {"6": 0, "1": epoch}


def test_the_unit_is_the_formats_own(tmp_path: Path) -> None:
    """Case E6: an op of 1 ms is 1000 in JSON, whatever `displayTimeUnit` says, and 1,000,000 ns in protobuf."""
    trace = timeline([(0, 1_000_000)])
    export(trace, tmp_path / "json", format="json")
    assert [e["dur"] for e in events(tmp_path / "json")] == [1000]
    assert json.loads((tmp_path / "json" / "timeline.json").read_text())["displayTimeUnit"] == "ns"
    export(trace, tmp_path / "native")
    assert list(native(tmp_path / "native")[0].values()) == [[(0, 1_000_000, "A")]]


# --- dependencies, loops, steps -----------------------------------------------------------------------------------------------------


def test_each_dependency_is_a_flow_of_its_own(tmp_path: Path) -> None:
    """A -> B, A -> C, B -> D, C -> D."""
    export(diamond(), tmp_path / "json", format="json")
    at = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in events(tmp_path / "json")}
    starts = {e["id"]: at[e["pid"], e["tid"], e["ts"]] for e in events(tmp_path / "json", "s")}
    ends = {e["id"]: at[e["pid"], e["tid"], e["ts"]] for e in events(tmp_path / "json", "f")}
    assert sorted((starts[i], ends[i]) for i in starts) == [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")]


@pytest.mark.parametrize("form", ["native", "json"])
def test_a_node_without_a_name_is_shown_by_its_op_type(tmp_path: Path, form: str) -> None:
    builder = TraceBuilder()
    for name, op in (("", "Relu"), ("named", "Tanh")):
        builder.execution(builder.node(name, op), outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[0, 20], done=[10, 30])
    export(builder.build(), tmp_path / "out", format=form)
    if form == "json":
        assert [e["name"] for e in events(tmp_path / "out")] == ["Relu", "named"]
    else:
        assert sorted(name for track in native(tmp_path / "out")[0].values() for _, _, name in track) == ["Relu", "named"]


def test_a_loop_body_is_shown_once_per_iteration(tmp_path: Path) -> None:
    """The loop of `small.loop` ran 2 times in step 0, and once in step 1: 7 and 5 executions."""
    report = export(loop(), tmp_path / "all", format="json", step="all")
    assert Counter(e["name"] for e in events(tmp_path / "all")) == {"x": 2, "while/merge": 5, "while/body/MatMul": 3, "y": 2}
    assert {e["args"]["name"] for e in events(tmp_path / "all", "M") if e["name"] == "process_name"} == {"step 0", "step 1"}
    report = export(loop(), tmp_path / "one", format="json", step="0")
    matmuls = [e["args"] for e in events(tmp_path / "one") if e["name"] == "while/body/MatMul"]
    assert [m["iteration"] for m in matmuls] == ["0", "1"]
    assert {layer.name: len(layer.executions) for layer in report.layers}["while/merge"] == 3
    bare = export(loop(), tmp_path / "bare", format="json", step="0", plumbing="false")
    assert [e["name"] for e in events(tmp_path / "bare")] == ["while/body/MatMul"] * 2
    assert {(s.op, s.executions) for s in bare.skipped} == {("Const", 1), ("Merge", 3), ("Identity", 1)}


def test_steps_stand_where_they_ran(tmp_path: Path) -> None:
    """Two steps of one op, 5 us apart: the second is at 5 us."""
    builder = TraceBuilder()
    builder.execution(builder.node("A", "Relu"), outputs=[("float32", [2])])
    structure = builder.end_structure()
    for origin in (1_000_000_000, 1_000_005_000):
        builder.step(structure, start=[0], done=[700], origin_ns=origin)
    export(builder.build({"workload": "two"}), tmp_path / "all", format="json", step="all")
    assert [(e["pid"], e["ts"]) for e in events(tmp_path / "all")] == [(1, 0.0), (2, 5.0)]


def test_what_has_no_time_is_said_to_be_missing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for name in "AB":
        builder.execution(builder.node(name, "Relu"), outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=[0, 5], done=[4, 9], valid=[True, False])
    report = export(builder.build(), tmp_path / "out")
    assert [(s.op, s.executions, s.time_ns) for s in report.skipped] == [("Relu", 1, 0)]
    assert "no valid time" in report.skipped[0].reason


def memory_trace() -> Trace:
    """Step 0 (span 30) allocates 100 B at 0, 50 B at 10, and frees 100 B at 20. Steps 1 and 2 (span 40) are not watched."""
    builder = TraceBuilder()
    for name in "AB":
        builder.execution(builder.node(name, "Relu"), outputs=[("float32", [2])])
    structure = builder.end_structure()
    for span in (30, 40, 40):
        builder.step(structure, start=[0, 10], done=[10, span])
    for execution, size, time in ((0, 100, 0), (1, 50, 10), (0, -100, 20)):
        builder.add("allocations", step=0, execution=execution, size_bytes=size, time=time, buffer=-1)
    return builder.build({"workload": "memory"})


def test_memory_is_a_counter(tmp_path: Path) -> None:
    """Live bytes: 100 from 0, 150 from 10, 50 from 20 ns."""
    export(memory_trace(), tmp_path / "own", format="json", step="0")
    values = events(tmp_path / "own", "C")
    assert [(e["ts"], e["args"]["bytes"]) for e in values] == [(0.0, 100), (0.01, 150), (0.02, 50)]
    assert {e["pid"] for e in values} == {e["pid"] for e in events(tmp_path / "own")}
    report = export(memory_trace(), tmp_path / "other", format="json")
    assert report.settings["steps"] == [1]
    assert {e["pid"] for e in events(tmp_path / "other", "C")}.isdisjoint(e["pid"] for e in events(tmp_path / "other"))
    assert any("--set step=0" in note for note in report.notes)


def test_a_counter_may_fall_below_zero(tmp_path: Path) -> None:
    """Records that contradict each other: 8 bytes are released at 10 ns and allocated at 20. Values are signed, of 64 bits."""
    builder = TraceBuilder()
    builder.execution(builder.node("A", "Relu"), outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=[0], done=[30])
    for size, time in ((8, 20), (-8, 10)):
        builder.add("allocations", step=0, execution=0, size_bytes=size, time=time, buffer=-1)
    export(builder.build(), tmp_path / "out", format="native")
    packets = Packets.FromString(next((tmp_path / "out").glob("*.pftrace")).read_bytes()).packet
    assert [p.track_event.counter_value for p in packets if p.track_event.HasField("counter_value")] == [-8, 0]


def test_what_ran_on_a_device_has_rows_of_its_own(tmp_path: Path) -> None:
    """A launches a kernel of 6 ns at 3 ns and a copy of 64 bytes at 4 ns, on two streams of the device."""
    builder = TraceBuilder()
    builder.execution(builder.node("A", "Relu"), outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=[100], done=[110])
    for name, stream, what, start, end, size in (("relu_kernel", "gpu:0", 0, 103, 109, 0), ("MemcpyD2H", "gpu:1", 1, 104, 108, 64)):
        texts = {"span_name": builder.string(name), "stream": builder.string(stream)}
        builder.add("device_spans", step=0, execution=0, kind=what, start=start, end=end, size_bytes=size, **texts)
    export(builder.build({"workload": "gpu"}), tmp_path / "out", format="json")
    rows = {e["tid"]: e["args"]["name"] for e in events(tmp_path / "out", "M") if e["name"] == "thread_name"}
    found = {e["name"]: (rows[e["tid"]], e["ts"], e["dur"], e["cat"]) for e in events(tmp_path / "out")}
    assert found["relu_kernel"] == ("gpu:0", 0.003, 0.006, "kernel")
    assert found["MemcpyD2H"] == ("gpu:1", 0.004, 0.004, "copy")
    assert [e["args"] for e in events(tmp_path / "out") if e["cat"] == "copy"] == [{"bytes": "64"}]
    assert [(e["ph"], e["ts"]) for what in "sf" for e in events(tmp_path / "out", what)] == [
        ("s", 0.0), ("s", 0.0), ("f", 0.003), ("f", 0.004),
    ]  # fmt: skip


def test_parts_of_a_compiled_call_are_left_to_the_call(tmp_path: Path) -> None:
    builder = TraceBuilder()
    call = builder.execution(builder.node("call", "StatefulPartitionedCall"), outputs=[("float32", [2])])
    builder.execution(builder.node("call/Relu", "Relu"), outputs=[("float32", [2])], parent=call, kind=2, timed=False)
    builder.step(builder.end_structure(), start=[0, 0], done=[9, 0])
    report = export(builder.build(), tmp_path / "out", format="json")
    assert [e["name"] for e in events(tmp_path / "out")] == ["call"]
    assert [(s.op, "compiled call" in s.reason) for s in report.skipped] == [("Relu", True)]


def test_a_flow_never_goes_back_in_time(tmp_path: Path) -> None:
    """B reads A's output, but is said to have begun 5 ns before A."""
    builder = TraceBuilder()
    a = builder.node("A", "Relu")
    first = builder.execution(a, outputs=[("float32", [2])])
    builder.execution(builder.node("B", "Relu", inputs=[(a, 0)]), inputs=[builder.tensor(first)], outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=[5, 0], done=[9, 3])
    report = export(builder.build(), tmp_path / "out", format="json")
    assert events(tmp_path / "out", "s") == []
    assert any("1 dependencies have no flow" in note for note in report.notes)


# --- errors -------------------------------------------------------------------------------------------------------------------------


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"option 'step' of exporter 'perfetto' is '2'; it takes median, all or a traced step: 0, 1$"
    ):
        export(loop(), tmp_path / "a", step="2")
    with pytest.raises(OptionError, match="it takes one of: native, json"):
        export(loop(), tmp_path / "b", format="svg")
    builder = TraceBuilder()
    builder.execution(builder.node("A", "Relu"), outputs=[("float32", [2])], timed=False)
    builder.end_structure()
    with pytest.raises(ExportError, match="the trace has no times"):
        export(builder.build(), tmp_path / "c")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"dur":10.000', '"dur":11.000', "11000 ns in 1 slices, in the trace 10000"),
        ('"dur":10.000', '"dur":80.000', "overlaps"),
        ('"dur":10.000', '"dur":10.0', "three decimals"),
        ('"ph":"s","id":1,', '"ph":"s","id":9,', "only one end"),
        ('"name":"A"', '"name":"Z"', "another name"),
    ],
)
def test_its_parser_finds_what_was_changed(tmp_path: Path, old: str, new: str, problem: str) -> None:
    export(diamond(), tmp_path / "out", format="json")
    file = tmp_path / "out" / "diamond.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(PERFETTO.check(tmp_path / "out").problems)


def test_its_parser_finds_a_lost_packet(tmp_path: Path) -> None:
    """Each packet of the native file removed in turn."""
    export(diamond(), tmp_path / "out")
    file = tmp_path / "out" / "diamond.pftrace"
    whole = Packets.FromString(file.read_bytes())
    for missing in range(len(whole.packet)):
        kept = [p for i, p in enumerate(whole.packet) if i != missing]
        file.write_bytes(Packets(packet=kept).SerializeToString())
        is_process = whole.packet[missing].track_descriptor.HasField("process")
        assert PERFETTO.check(tmp_path / "out").ok == is_process, whole.packet[missing]


# --- the trace processor ------------------------------------------------------------------------------------------------------------

QUERIES = (
    "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0",
    "select s.name, s.ts, s.dur, s.depth, s.track_id, p.name as process from slice s join thread_track k on s.track_id = k.id"
    " join thread t using (utid) join process p using (upid) order by s.ts, s.name",
    "select a.name as producer, b.name as consumer from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in",
    "select c.ts, c.value from counter c order by c.ts",
)


def several() -> Trace:
    """Zero-length and overlapping slices, names that need escapes, fan-out and fan-in, two workers."""
    builder = TraceBuilder()
    names, times = ["a/b", 'q"uote', "日本", "zero", "zero2", "last"], [(0, 5), (5, 9), (6, 8), (9, 9), (9, 9), (9, 20)]
    before = [[], [0], [0], [1, 2], [3], [3, 4]]
    for name, producers in zip(names, before, strict=True):
        node = builder.node(name, "Relu", inputs=[(p, 0) for p in producers])
        builder.execution(node, inputs=[builder.tensor(p) for p in producers], outputs=[("float32", [2])])
    structure = builder.end_structure()
    builder.step(
        structure, start=[a for a, _ in times], done=[b for _, b in times], lane=[0, 0, 1, 0, 0, 0], origin_ns=1_800_000_000_000
    )
    builder.add("allocations", step=0, execution=0, size_bytes=64, time=1, buffer=-1)
    builder.add("allocations", step=0, execution=0, size_bytes=-64, time=8, buffer=-1)
    return builder.build({"workload": "several"})


@pytest.mark.simulator
@pytest.mark.parametrize("form", ["native", "json"])
def test_the_trace_processor_sees_what_the_trace_has(tmp_path: Path, form: str) -> None:
    trace = several()
    report = export(trace, tmp_path / "out", format=form)
    problems, slices, flows, counters = ask(tmp_path / "out" / report.files[0], *QUERIES)
    assert problems == []
    times = trace.step_times
    expected = zip(trace.node_names, times.start.tolist(), (times.done - times.start).tolist(), strict=True)
    assert sorted((s["name"], s["ts"], s["dur"]) for s in slices) == sorted(expected)
    assert {s["depth"] for s in slices} == {0}
    assert {s["process"] for s in slices} == {"step 0"}
    pairs = [(trace.node_names[p], trace.node_names[i]) for i in range(6) for p in trace.dependencies(0).of(i).tolist()]
    assert len(pairs) == 7
    assert sorted((f["producer"], f["consumer"]) for f in flows) == sorted(pairs)
    assert [(c["ts"], c["value"]) for c in counters] == [(1, 64), (8, 0)]
