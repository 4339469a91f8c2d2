"""Are exports written and checked piece by piece: the same bytes whatever the pieces, and no memory for what need not be held?"""

from __future__ import annotations

import gc
import io
import itertools
import json
import random
import tracemalloc
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from benchmarks.large import bootstrapped
from fathom_trace import trace as trace_module
from fathom_trace import wire
from fathom_trace.builder import TraceBuilder
from fathom_trace.costs import costs
from fathom_trace.exporter import ExportedLayer, ExportReport, Target, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.lanes import disjoint
from fathom_trace.layer_map import LayerMap
from fathom_trace.layers import layer_names
from fathom_trace.ops import kind
from fathom_trace.options import apply_settings
from fathom_trace.phases import phases
from fathom_trace.steps import LeftOut, StepView, account, view_steps
from fathom_trace.trace import Trace

FORMS = {
    "perfetto": {"format": "native"}, "perfetto json": {"format": "json"}, "chakra": {}, "table": {}, "graph": {}, "xprof": {},
}  # fmt: skip
PIECES = ("BLOCK", "READ_BYTES", "READ_ROWS")
"""What modules call the most that they handle at once."""

OPS = ("MatMul", "Mul", "Tanh", "Switch", "Identity", "Split", "Sum", "NoSuchOp")


def looped(trips: int, seed: int = 0) -> Trace:
    """A loop of eight ops on three workers, run in two steps: random reads, several outputs, control edges, names that need escapes."""
    rng = random.Random(seed)
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    names = ('a<b>&"c"', "n,日本", "back\\slash", "x\ty", "plain/Mul_1", "it=1,iteration=", "", "last")
    nodes = [
        builder.node(name, op, device=f"/device:CPU:{k % 2}", frame=frame) for k, (name, op) in enumerate(zip(names, OPS, strict=True))
    ]
    done: list[int] = []
    tensors: list[int] = []
    for trip in range(trips):
        path = builder.path(0, frame, 0, trip)
        for k, node in enumerate(nodes):
            outputs = [("float32", [2, 3]), ("int32", []), ("float32", [7])][: rng.choice((1, 1, 2, 3)) if OPS[k] == "Split" else 1]
            reads = rng.sample(tensors[-12:], min(len(tensors), rng.randrange(3)))
            waits = rng.sample(done[-9:], min(len(done), rng.randrange(2)))
            done.append(builder.execution(node, inputs=reads, control=waits, outputs=outputs, path=path if k % 4 else 0))
            tensors += [builder.tensor(done[-1], port) for port in range(len(outputs))]
    structure = builder.end_structure()
    for step in range(2):
        start = 100 * np.arange(len(done)) + step
        durations = [rng.choice((0, 1, 90, 250, 1_700)) for _ in done]
        lanes = [rng.randrange(3) for _ in done]
        builder.step(structure, scheduled=start, start=start, done=start + durations, lane=lanes, origin_ns=10**18 + step * 10**9)
    for k in range(0, len(done), 5):
        builder.add("allocations", step=0, execution=k, size_bytes=64, time=100 * k, buffer=-1)
    return builder.build({"workload": "streamed"})


def export(form: str, trace: Trace, folder: Path) -> ExportReport:
    """Write, report and check."""
    module = REGISTRY.load(form.split()[0])
    folder.mkdir()
    report: ExportReport = module.write(trace, folder, apply_settings(module.Options(), FORMS[form], form))
    write_report(folder, report)
    found = module.check(folder)
    assert found.problems == ()
    return report


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def in_pieces(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let the exporters, and what they share, handle at most so many rows or bytes at once."""
    for module in (*(REGISTRY.load(form.split()[0]) for form in FORMS), wire):
        for name in PIECES:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, most)
    monkeypatch.setattr(trace_module, "_BLOCK", most)


@pytest.mark.parametrize("form", FORMS)
def test_pieces_make_no_difference(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = looped(9)
    export(form, trace, tmp_path / "whole")
    in_pieces(monkeypatch, 7)
    export(form, trace, tmp_path / "pieces")
    assert content(tmp_path / "whole") == content(tmp_path / "pieces")


@pytest.mark.parametrize("form", FORMS)
def test_memory_grows_with_columns_and_not_with_objects(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing, reporting and checking a step of three times as many executions, in pieces of 200: less than 800 bytes each."""
    in_pieces(monkeypatch, 200)
    monkeypatch.setattr(wire, "READ_BYTES", 4_096)
    small = looped(40)
    count = len(small.executions)
    peaks = []
    for rounds in (1, 2, 6):  # the first only to import and to fill caches
        trace = bootstrapped(small, rounds * len(small.step_times), True)
        gc.collect()
        tracemalloc.start()
        export(form, trace, tmp_path / f"out{rounds}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[2] - peaks[1]) / (4 * count) < 800


# --- what it is made of -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_intervals_are_dealt_to_the_first_row_that_is_free_for_longest(seed: int) -> None:
    """Against trying every row for each interval in turn; as few rows as the most that run at once."""
    rng = np.random.default_rng(seed)
    start, duration = rng.integers(0, 60, 80), rng.integers(0, 9, 80)
    rows = disjoint(start, duration)
    free: list[int] = []
    for i in np.argsort(start, kind="stable").tolist():
        ready = [(end, row) for row, end in enumerate(free) if end <= start[i]]
        row = min(ready)[1] if ready else len(free)
        free[row : row + 1] = [int(start[i] + max(duration[i], 1))]
        assert rows[i] == row
    most = max(int(np.count_nonzero((start <= t) & (t < start + np.maximum(duration, 1)))) for t in range(70))
    assert rows.max() + 1 == most
    assert disjoint(start[:0], duration[:0]).tolist() == []


@pytest.mark.parametrize("read_bytes", [1, 3, 64, 1 << 20])
def test_records_are_read_one_at_a_time(read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "READ_BYTES", read_bytes)
    contents = [b"a", b"b" * 127, b"c" * 128, b"d" * 40_000, b"e"]
    for head in (b"", b"\x0a"):
        file = tmp_path / "records"
        whole = b"".join(head + wire.record(one) for one in contents)
        file.write_bytes(whole)
        with file.open("rb") as stream:
            read = list(wire.read_records(stream, head))
        assert [raw for _, raw in read] == contents
        assert [whole[at:].startswith(head + wire.record(raw)) for at, raw in read] == [True] * 5
        for damaged, at in (
            (whole[:-1], read[-1][0]), (head + b"\x00" + whole, 0), (head + b"\xff" * 9 + b"\x01a", 0), (head + b"\x80", 0),
            (whole + b"\x0b", len(whole)),
        ):  # fmt: skip
            file.write_bytes(damaged)
            with file.open("rb") as stream, pytest.raises(wire.CutOffError) as caught:
                list(wire.read_records(stream, head))
            assert caught.value.at == at


def test_a_report_is_written_as_it_would_be_whole(tmp_path: Path) -> None:
    layers = tuple(
        ExportedLayer(f"layer {k}", "f:1", "row", tuple(range(k)), 10**20, 0.5, facts={"x": [1, {"y": None}]}) for k in range(4)
    )
    target = Target("t", "1", "url", "target ran", "", "")
    report = ExportReport("table", target, ("f",), layers, (), {"a": ["日本", True]}, provenance={"n": {}}, selection={"text": "x"})
    write_report(tmp_path, report)
    written = (tmp_path / "export.json").read_text(encoding="utf-8")
    assert written == json.dumps({**asdict(report), "totals": report.totals()}, indent=1) + "\n" == report.to_json()
    with pytest.raises(TypeError, match="object is no part of a report"):
        write_report(tmp_path, ExportReport("table", target, (), (), (), {"a": object()}))


def test_a_layer_map_sums_by_layer() -> None:
    rows = [asdict(ExportedLayer(name, "f", "row", (), 0, 0.0, facts={"n": name})) for name in "abc"]
    for row, executions in zip(rows, ([7, 3], [6], [5]), strict=True):
        row["executions"] = executions
    found = LayerMap(rows)
    of = found.layer_of([3, 5, 4, 7, 99, -1])
    assert of.tolist() == [0, 2, -1, 0, -1, -1]
    assert found.sums(of).tolist() == [2, 0, 1]
    assert found.sums(of, [1, 10, 100, 1_000, 0, 0]).tolist() == [1_001, 0, 10]
    assert (len(found), found.facts("n"), found.executions.tolist()) == (3, ["a", "b", "c"], [3, 5, 6, 7])
    for wrong in ([1, 1], [1.5], ["1"], [True], [[1]], "12", [2**63], [-1], []):
        with pytest.raises((TypeError, ValueError)):
            LayerMap([{**rows[0], "executions": wrong}])


def test_what_is_left_out_has_the_first_reason_that_holds() -> None:
    masks = np.array([[0, 1, 1, 0], [1, 1, 0, 0]], bool)
    found = LeftOut.of(4, ("one", masks[0]), ("two", masks[1]))
    assert [found.reasons[code - 1] if code else "" for code in found.code.tolist()] == ["two", "one", "one", ""]
    assert found.written.tolist() == [False, False, False, True]
    by_number = LeftOut.by_number(4, {2: "b", 0: "a", 1: "b"})
    assert [by_number.reasons[code - 1] if code else "" for code in by_number.code.tolist()] == ["a", "b", "b", ""]


def test_executions_are_grouped_by_node_in_the_order_in_which_nodes_first_ran() -> None:
    """Against a plain loop over the executions."""
    trace = looped(6)
    [view] = view_steps(trace, "median", "test")
    out = LeftOut.of(len(view), ("long", view.duration_ns > 1_000), ("first", np.arange(len(view)) < 10))
    layers, skipped = account(
        [view], {view.structure: out}, lambda view, node, members: {"place": str(node), "how": str(len(members))}
    )
    members: dict[int, list[int]] = defaultdict(list)
    left: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for i, node in enumerate(view.nodes.tolist()):
        if out.code[i]:
            left[trace.node_ops[node], out.reasons[out.code[i] - 1], bool(view.costs.macs_known[i])].append(i)
        else:
            members[node].append(i)
    assert [(int(la.place), list(la.executions), la.time_ns) for la in layers] == [
        (node, [i + view.rows.start for i in mine], sum(view.duration_ns[mine])) for node, mine in members.items()
    ]
    assert [((s.op, s.reason, s.macs_known), s.executions, s.time_ns) for s in skipped] == [
        (key, len(mine), sum(view.duration_ns[mine])) for key, mine in left.items()
    ]


def test_texts_of_outputs_and_lists_of_producers_are_those_of_each_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = looped(6)
    monkeypatch.setattr(trace_module, "_BLOCK", 5)
    view = StepView(trace, 0, 0)
    codes, texts = view.output_texts
    for i in range(len(view)):
        made = [
            f"{trace.strings[int(trace.tensors.dtype[t])]}[{','.join(map(str, trace.shapes[int(trace.tensors.shape[t])]))}]"
            for t in trace.outputs(i)
        ]
        assert texts[codes[i]] == " ".join(made)
    assert len(set(texts)) == len(texts) > 3
    assert list(view.dependencies.lists()) == [view.dependencies.of(i).tolist() for i in range(len(view))]


def as_networkx(trace: Trace, view: StepView) -> networkx.DiGraph[int]:
    """What the exporter `graph` writes of a step, as objects: one node and one edge after the other."""
    work, phase, layer = costs(trace, view.structure), phases(trace), layer_names(trace)
    graph: networkx.DiGraph[int] = networkx.DiGraph(
        workload=trace.provenance["workload"], step=view.step, structures=len(trace.structures)
    )
    for i, node in enumerate(trace.executions.node[view.rows].tolist()):
        op, name = trace.node_ops[node], trace.node_names[node].replace("\t", "\\x09")
        told: dict[str, Any] = {
            "name": name,
            "op": op,
            "kind": kind(op),
            "phase": phase[node],
            "layer": layer[node].replace("\t", "\\x09"),
        }
        told |= {"device": trace.strings[int(trace.nodes.device[node])]}
        told |= {"iteration": ".".join(map(str, trace.iteration(int(trace.executions.path[view.rows.start + i]))))}
        told |= {"outputs": view.output_texts[1][view.output_texts[0][i]]}
        told |= {"start_ns": int(view.start_ns[i]), "duration_ns": int(view.duration_ns[i])}
        known = (
            ("macs", work.macs_known, work.macs),
            ("flops", work.flops_known, work.flops),
            ("bytes", work.bytes_known, work.bytes),
        )
        graph.add_node(i + view.rows.start, **told, **{key: int(values[i]) for key, has, values in known if has[i]})
    for is_read, i in itertools.product((True, False), range(len(view))):
        consumer = i + view.rows.start
        sizes: dict[int, int] = defaultdict(int)
        for tensor in set(trace.inputs(consumer)):
            sizes[int(trace.tensors.execution[tensor])] += int(trace.tensors.size_bytes[tensor])
        for producer in (view.dependencies.of(i) + view.rows.start).tolist():
            if producer in sizes and is_read:
                graph.add_edge(producer, consumer, kind="data", size_bytes=sizes[producer])
            elif producer not in sizes and not is_read:
                graph.add_edge(producer, consumer, kind="control")
    return graph


def test_graphml_is_what_networkx_writes(tmp_path: Path) -> None:
    trace = looped(5)
    export("graph", trace, tmp_path / "out")
    expected = io.BytesIO()
    networkx.write_graphml_xml(as_networkx(trace, view_steps(trace, "median", "test")[0]), expected, encoding="utf-8")
    assert (tmp_path / "out" / "streamed.graphml").read_bytes() == expected.getvalue()
