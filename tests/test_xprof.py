"""Does a profile show what the trace has, and does XProf itself say so?"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.generated.xprof_xspace_pb2 import XSpace
from fathom_trace.memory import memory
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.simulator_env import run_in_simulator
from tests.small import dense, diamond, loop
from tests.test_perfetto import memory_trace, timeline

XPROF: Any = REGISTRY.load("xprof")


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    folder.mkdir()
    report: ExportReport = XPROF.write(trace, folder, apply_settings(XPROF.Options(), settings, "exporter 'xprof'"))
    write_report(folder, report)
    assert XPROF.check(folder).problems == ()
    return report


def space(folder: Path) -> Any:
    [file] = folder.glob("plugins/profile/*/*.xplane.pb")
    return XSpace.FromString(file.read_bytes())


def lines(folder: Path) -> dict[str, list[tuple[str, int, int]]]:
    """By line, (name, start, duration) of its events in ps; the line's own time is left out."""
    [plane] = space(folder).planes
    assert plane.name == "/host:CPU"
    names = {number: m.name for number, m in plane.event_metadata.items()}
    return {line.name: [(names[e.metadata_id], e.offset_ps, e.duration_ps) for e in line.events] for line in plane.lines}


# --- what is shown ------------------------------------------------------------------------------------------------------------------


def test_an_event_is_named_by_op_and_type_with_one_colon(tmp_path: Path) -> None:
    export(dense(), tmp_path / "out")
    found = sorted(name for events in lines(tmp_path / "out").values() for name, _, _ in events)
    assert found == ["a:Placeholder", "b:Placeholder", "fc/MatMul:MatMul", "fc/Relu:Relu"]


@pytest.mark.parametrize(
    ("name", "op_type", "expected"),
    [
        ("a/b_1", "MatMul", "a/b_1:MatMul"),
        ("scope:0/Add", "AddV2", "scope_0/Add:AddV2"),
        ("_arg_x_0_0", "_Arg", "._arg_x_0_0:_Arg"),
        ("conv/日本", "Conv2D", "conv/__:Conv2D"),
        ("a b", "Addons>Op", "a_b:Addons_Op"),
        ("Iterator", "IteratorGetNext", ".Iterator:IteratorGetNext"),
        ("", "NoOp", ".:NoOp"),
    ],
)
def test_names_that_xprof_would_not_take_are_written_otherwise(name: str, op_type: str, expected: str) -> None:
    """XProf's own patterns: a name `[A-Za-z0-9.][A-Za-z0-9_./>-]*`, a type `[A-Z_][A-Za-z0-9_]*`; an op called Iterator is a dataset."""
    assert XPROF.event_name(name, op_type) == expected
    op, _, of_type = expected.partition(":")
    assert re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*", op)
    assert re.fullmatch(r"[A-Z_][A-Za-z0-9_]*", of_type)


def test_nothing_overlaps_on_a_line(tmp_path: Path) -> None:
    """Case E4: A[0,10], B[5,15], C[12,20], D[2,4] us on one worker: at least 2 lines, durations 10, 10, 8, 2 us."""
    us = 1_000
    export(timeline([(0, 10 * us), (5 * us, 15 * us), (12 * us, 20 * us), (2 * us, 4 * us)]), tmp_path / "out")
    found = lines(tmp_path / "out")
    assert set(found) == {"CPU:0 worker 0", "CPU:0 worker 0 (2)"}
    assert {n[0]: d for events in found.values() for n, _, d in events} == {"A": 10**7, "B": 10**7, "C": 8 * 10**6, "D": 2 * 10**6}
    for events in found.values():
        assert all(a[1] + a[2] <= b[1] for a, b in pairwise(events))


def test_workers_have_lines_of_their_own(tmp_path: Path) -> None:
    export(diamond(), tmp_path / "out")
    assert {name: [n for n, _, _ in events] for name, events in lines(tmp_path / "out").items()} == {
        "CPU:0 worker 0": ["A:OpA", "B:OpB", "D:OpD"], "CPU:0 worker 1": ["C:OpC"],
    }  # fmt: skip


def test_times_are_exact_picoseconds_after_the_steps_own_origin(tmp_path: Path) -> None:
    """Cases E1, E5 and E6: (12.6, 0.3), (20.2, 0.4), (30, 5) us after 1796026610255867.25 us, and an op of 1 ms is 10**9 ps."""
    epoch = 1_796_026_610_255_867_250
    export(timeline([(12_600, 12_900), (20_200, 20_600), (30_000, 35_000)], origin_ns=epoch), tmp_path / "out")
    [events] = lines(tmp_path / "out").values()
    assert [(start, duration) for _, start, duration in events] == [(0, 300_000), (7_600_000, 400_000), (17_400_000, 5_000_000)]
    [line] = space(tmp_path / "out").planes[0].lines
    assert line.timestamp_ns == epoch + 12_600
    export(timeline([(0, 1_000_000)]), tmp_path / "ms")
    assert next(iter(lines(tmp_path / "ms").values()))[0][2] == 10**9


def test_a_loop_body_is_there_once_per_iteration(tmp_path: Path) -> None:
    export(loop(), tmp_path / "out", step="0")
    [plane] = space(tmp_path / "out").planes
    stats = {number: m.name for number, m in plane.stat_metadata.items()}
    names = {number: m.name for number, m in plane.event_metadata.items()}
    told = [
        (
            names[e.metadata_id],
            {stats[s.metadata_id]: stats[s.ref_value] if s.WhichOneof("value") == "ref_value" else s.int64_value for s in e.stats},
        )
        for e in plane.lines[0].events
    ]
    products = [s for name, s in told if name == "while/body/MatMul:MatMul"]
    assert [(s["execution"], s["iteration"]) for s in products] == [(2, "0"), (4, "1")]
    report = export(loop(), tmp_path / "bare", step="0", plumbing="false")
    assert {(s.op, s.executions) for s in report.skipped} == {("Const", 1), ("Merge", 3), ("Identity", 1)}


def test_allocations_are_events_with_integers_only(tmp_path: Path) -> None:
    """100 B at 0, 50 B at 10, 100 B freed at 20 ns: 100, 150, 50 live; the release has the number of its allocation."""
    export(memory_trace(), tmp_path / "out", step="0")
    [plane] = space(tmp_path / "out").planes
    stats = {number: m.name for number, m in plane.stat_metadata.items()}
    [line] = [line for line in plane.lines if line.name == "allocations"]
    assert all(s.WhichOneof("value") == "int64_value" for e in line.events for s in e.stats)
    told = [{stats[s.metadata_id]: s.int64_value for s in e.stats} for e in line.events]
    assert [(t["bytes_allocated"], t["allocation_bytes"], t["addr"]) for t in told] == [(100, 100, 1), (150, 50, 2), (50, 100, 1)]
    assert [e.offset_ps for e in line.events] == [0, 10_000, 20_000]
    assert all("tf_op" not in t for t in told)
    report = export(memory_trace(), tmp_path / "other")
    assert "allocations" not in lines(tmp_path / "other")
    assert any("--set step=0 shows both" in note for note in report.notes)


def test_what_has_no_time_is_said_to_be_missing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for name in "AB":
        builder.execution(builder.node(name, "Relu"), outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=[0, 5], done=[4, 9], valid=[True, False])
    report = export(builder.build(), tmp_path / "out")
    assert [(s.op, s.executions, s.time_ns) for s in report.skipped] == [("Relu", 1, 0)]
    builder = TraceBuilder()
    builder.execution(builder.node("A", "Relu"), outputs=[("float32", [2])], timed=False)
    builder.end_structure()
    with pytest.raises(ExportError, match="nothing with a time is there to show"):
        export(builder.build(), tmp_path / "none")
    with pytest.raises(OptionError, match="it takes median or a traced step: 0, 1"):
        export(loop(), tmp_path / "step", step="7")


# --- its parser ---------------------------------------------------------------------------------------------------------------------


def test_its_parser_finds_what_was_changed(tmp_path: Path) -> None:
    export(memory_trace(), tmp_path / "out", step="0")
    [file] = (tmp_path / "out").glob("plugins/profile/*/*.xplane.pb")
    whole = file.read_bytes()

    def rename(s: Any) -> None:
        next(m for m in s.planes[0].event_metadata.values() if m.name == "A:Relu").name = "A:b:Relu"

    def other_name(s: Any) -> None:
        next(m for m in s.planes[0].event_metadata.values() if m.name == "A:Relu").name = "Z:Relu"

    def text_in_memory(s: Any) -> None:
        stat = s.planes[0].lines[-1].events[0].stats.add()
        stat.metadata_id, stat.ref_value = 1, 1

    def shift(s: Any) -> None:
        s.planes[0].lines[0].events[1].offset_ps -= 5_000

    def longer(s: Any) -> None:
        s.planes[0].lines[0].events[1].duration_ps += 1_000

    def half(s: Any) -> None:
        s.planes[0].lines[0].events[1].duration_ps += 1

    def lose(s: Any) -> None:
        del s.planes[0].lines[0].events[1]

    def lose_memory(s: Any) -> None:
        del s.planes[0].lines[-1].events[1]

    def unknown(s: Any) -> None:
        s.planes[0].lines[0].events[0].metadata_id = 77

    def second_plane(s: Any) -> None:
        s.planes.add().name = "/device:GPU:0"

    changes = (rename, other_name, text_in_memory, shift, longer, half, lose, lose_memory, unknown, second_plane)
    for change in changes:
        changed = XSpace.FromString(whole)
        change(changed)
        file.write_bytes(changed.SerializeToString())
        assert not XPROF.check(tmp_path / "out").ok, change.__name__
    file.write_bytes(whole + b"\xf2\x3f\x01x")
    assert "fields that are never written" in "; ".join(XPROF.check(tmp_path / "out").problems)
    file.write_bytes(whole)
    assert XPROF.check(tmp_path / "out").ok


# --- XProf itself -------------------------------------------------------------------------------------------------------------------

ASK = """
import json, sys
from xprof.convert.raw_to_tool_data import xspace_to_tool_data
found = {}
for tool in sys.argv[2:]:
    data, kind = xspace_to_tool_data([sys.argv[1]], tool, {"use_saved_result": False})
    found[tool] = data.decode() if isinstance(data, bytes) else data
print(json.dumps(found))
"""


def ask(folder: Path, *tools: str) -> dict[str, Any]:
    """What XProf makes of the folder's profile, by tool."""
    import json

    [file] = folder.resolve().glob("plugins/profile/*/*.xplane.pb")
    found: dict[str, str] = run_in_simulator("xprof", ASK, folder, str(file), *tools)
    return {tool: json.loads(text) for tool, text in found.items()}


def op_stats(answer: Any) -> dict[tuple[str, str], tuple[int, float, float]]:
    """(type, operation) to occurrences, total time and self time in us, from the table of framework_op_stats."""
    table = answer[0]
    columns = [c["id"] for c in table["cols"]]
    found = {}
    for row in table["rows"]:
        cells = dict(zip(columns, [c["v"] for c in row["c"]], strict=True))
        assert cells["host_or_device"] == "Host"
        found[cells["type"], cells["operation"]] = (int(cells["occurrences"]), cells["total_time"], cells["total_self_time"])
    return found


def many() -> Trace:
    """Three workers with random ops, names that need writing otherwise, zero durations, repeated runs, allocations, two steps."""
    import random

    rng = random.Random(5)
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    nodes = [
        builder.node(name, op)
        for name, op in (
            ("a/MatMul", "MatMul"), ("_arg_x_0_0", "_Arg"), ("conv:1/日本", "Conv2D"), ("Iterator", "IdentityN"), ("a/MatMul_1", "MatMul"),
            ("gradients/a b/Relu", "ReluGrad"), ("MEMCPYHtoD", "Cast"), ("x", "_FusedMatMul"),
        )
    ]  # fmt: skip
    starts, done, lanes, at = [], [], [], [0, 0, 0]
    for i in range(60):
        builder.execution(nodes[i % len(nodes)], outputs=[("float32", [3])], path=builder.path(0, frame, 0, i // len(nodes)))
        lane = rng.randrange(3)
        starts.append(at[lane] + rng.choice([0, 0, 137]))
        done.append(starts[-1] + rng.choice([0, 1, 999, 12_345]))
        at[lane] = done[-1]
        lanes.append(lane)
    structure = builder.end_structure()
    builder.step(structure, start=starts, done=done, lane=lanes, origin_ns=1_796_026_610_255_867_250)
    for execution, size, time in ((0, 4_096, 10), (3, 1_024, 40), (0, -4_096, 90), (9, 512, 95)):
        builder.add("allocations", step=0, execution=execution, size_bytes=size, time=time, buffer=-1)
    return builder.build({"workload": "many"})


@pytest.mark.simulator
@pytest.mark.parametrize("trace", [many(), dense(), diamond()], ids=["many", "dense", "diamond"])
def test_xprof_counts_and_times_what_the_trace_has(tmp_path: Path, trace: Trace) -> None:
    """Occurrences and total time of each op and op type, from XProf's own table; its other tools make something of the file too."""
    export(trace, tmp_path / "out", step="0")
    found = ask(tmp_path / "out", "framework_op_stats", "overview_page", "trace_viewer", "memory_profile")
    stats = op_stats(found["framework_op_stats"])
    count: Counter[tuple[str, str]] = Counter()
    time_ns: dict[tuple[str, str], int] = defaultdict(int)
    for node, duration in zip(trace.executions.node.tolist(), trace.durations(0).tolist(), strict=True):
        op, _, op_type = XPROF.event_name(trace.node_names[node], trace.node_ops[node]).partition(":")
        count[op_type, op] += 1
        time_ns[op_type, op] += duration
    idle = {key: value for key, value in stats.items() if key[0] == "IDLE"}
    ops = {key: value for key, value in stats.items() if key[0] != "IDLE"}
    assert len(idle) <= 1
    assert {key: value[0] for key, value in ops.items()} == dict(count)
    for key, (_, total_us, self_us) in ops.items():
        assert total_us == pytest.approx(time_ns[key] / 1e3, abs=1e-6)
        assert self_us == pytest.approx(total_us)  # nothing nests
    shown = [e for e in found["trace_viewer"]["traceEvents"] if e.get("ph") in ("X", "i") and e["name"].count(":") == 1]
    # what takes no time is an instant there
    kinds = Counter("X" if duration else "i" for duration in trace.durations(0).tolist())
    assert Counter(e["ph"] for e in shown) == kinds
    assert sum(e.get("dur", 0) for e in shown) == pytest.approx(trace.durations(0).sum() / 1e3, abs=1e-3)
    assert found["overview_page"]


@pytest.mark.simulator
def test_xprof_finds_the_peak_of_memory(tmp_path: Path) -> None:
    trace = many()
    export(trace, tmp_path / "out", step="0")
    answer = ask(tmp_path / "out", "memory_profile")["memory_profile"]
    [profile] = answer["memoryProfilePerAllocator"].values()
    peak = memory(trace).peak_bytes
    assert peak == 4_096 + 1_024
    assert int(profile["profileSummary"]["peakStats"]["peakBytesInUse"]) == peak
    assert int(profile["profileSummary"]["peakBytesUsageLifetime"]) == peak


@pytest.mark.simulator
def test_xprof_lists_500_ops_at_most_which_the_report_says(tmp_path: Path) -> None:
    """600 ops of 1, 2, 3, ... us: the table has the 499 longest, and idle time; each is right."""
    builder = TraceBuilder()
    for i in range(600):
        builder.execution(builder.node(f"op_{i}", "Relu"), outputs=[("float32", [2])])
    done = [1_000 * (i + 1) * (i + 2) // 2 for i in range(600)]
    builder.step(builder.end_structure(), start=[0, *done[:-1]], done=done)
    report = export(builder.build({"workload": "wide"}), tmp_path / "out")
    assert any("lists the 500 ops of most time only; 600 ran" in note for note in report.notes)
    stats = op_stats(ask(tmp_path / "out", "framework_op_stats")["framework_op_stats"])
    ops = {op: value for (op_type, op), value in stats.items() if op_type != "IDLE"}
    assert len(stats) == 500
    assert ops == {f"op_{i}": (1, pytest.approx(i + 1), pytest.approx(i + 1)) for i in range(600 - len(ops), 600)}
