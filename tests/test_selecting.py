"""Is a part of a trace the chosen executions and no others, with the phases, layers, costs and loop nests that they have in the whole?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.cli import run
from fathom_trace.costs import costs
from fathom_trace.errors import ExportError, FathomError, OptionError, TraceError
from fathom_trace.exporter import REPORT_NAME, ExportedLayer, read_layer_map
from fathom_trace.exporters import REGISTRY
from fathom_trace.exporting import check, export, read_results
from fathom_trace.layers import layer_names
from fathom_trace.loops import layers
from fathom_trace.phases import phases
from fathom_trace.profile import profile
from fathom_trace.selecting import Choice, Share, parse_span, parse_steps, part_of, select
from fathom_trace.store import load, save
from fathom_trace.trace import Trace
from tests.program import Program, dilated_depthwise
from tests.small import dense, diamond, loop


def network(steps: int = 2) -> Trace:
    """Two convolutions with a pooling between them and a product behind, each of its own layer.

    conv1: [2, 7, 8, 3] by [3, 2, 3, 4], outputs 5 x 7: 2*5*7*4 * 3*2*3 = 5,040 MACs, 1,000 ns. pool: 50 ns. conv2: [2, 5, 7, 4] by
    [2, 3, 4, 6], outputs 4 x 5: 2*4*5*6 * 2*3*4 = 5,760 MACs, 2,000 ns. fc: [2, 120] by [120, 9]: 2,160 MACs, 300 ns. Five inputs of
    10 ns each.
    """
    program = Program()
    unit = {"strides": [1, 1, 1, 1], "padding": "VALID"}
    x, w1 = program.input("x", [2, 7, 8, 3]), program.input("conv1/w", [3, 2, 3, 4])
    one = program.op("conv1/Conv2D", "Conv2D", [x, w1], [2, 5, 7, 4], unit, ns=1_000)
    pool = program.op("pool/Relu", "Relu", [one], [2, 5, 7, 4], {}, ns=50)
    two = program.op("conv2/Conv2D", "Conv2D", [pool, program.input("conv2/w", [2, 3, 4, 6])], [2, 4, 5, 6], unit, ns=2_000)
    flat = program.op("flat/Reshape", "Reshape", [two, program.input("shape", [2])], [2, 120], {}, ns=20)
    program.op("fc/MatMul", "MatMul", [flat, program.input("fc/w", [120, 9])], [2, 9], {}, ns=300)
    return program.trace("network", steps)


def names(trace: Trace, rows: Any) -> list[str]:
    return [trace.node_names[n] for n in trace.executions.node[rows].tolist()]


# --- what is chosen ---------------------------------------------------------------------------------------------------------------


def test_a_layer_pattern_chooses_those_layers() -> None:
    """conv1 and conv2 with their inputs: 1,000 + 2,000 ns and 5,040 + 5,760 MACs of 3,420 ns and 12,960 MACs."""
    whole = network()
    part = part_of(whole, Choice(layer="conv*"))
    chosen = np.flatnonzero(part.trace.chosen)
    assert names(whole, chosen) == ["conv1/w", "conv1/Conv2D", "conv2/w", "conv2/Conv2D"]
    assert part.share == Share(4, 10, 3_020.0, 3_420.0, 10_800, 12_960)
    assert str(part) == "layer:conv*: 4 of 10 executions (40.0%), 3.02 us of 3.42 us (88.3%), 10.8 k of 13.0 k MACs (83.3%)"


def test_what_is_chosen_is_as_in_the_whole() -> None:
    """Numbers, phases, layers, costs and loop nests; nothing of what is outside counts."""
    whole = network()
    for choice in (Choice(layer="conv2"), Choice(layer="fc"), Choice(phase="forward"), Choice(time_ns=(1_000.0, 3_000.0))):
        part = part_of(whole, choice).trace
        chosen = part.chosen
        assert list(phases(part)) == list(phases(whole))
        assert layer_names(part) == layer_names(whole)
        assert part.tensors.equals(whole.tensors)
        for column in ("macs", "flops", "bytes_read", "bytes_written"):
            mine, its = getattr(costs(part), column), getattr(costs(whole), column)
            assert mine[chosen].tolist() == its[chosen].tolist()
            assert not mine[~chosen].any()
        assert layers(part, 0)[0] == [la for la in layers(whole, 0)[0] if chosen[la.execution]]
        assert part.durations(0)[chosen].tolist() == whole.durations(0)[chosen].tolist()
        assert not part.durations(0)[~chosen].any()


def test_the_table_of_a_part_is_that_of_its_rows() -> None:
    """By layer, the rows of the chosen layers are those of the whole table; the shares are of the part."""
    whole, part = profile(network(), by="layer"), profile(select(network(), layer="conv*"), by="layer")
    both = {row.key: (row.count, row.time_ns, row.macs, row.bytes) for row in whole.rows}
    assert {row.key: (row.count, row.time_ns, row.macs, row.bytes) for row in part.rows} == {k: both[k] for k in ("conv1", "conv2")}
    assert part.total_ns == 3_020.0
    assert sum(row.share or 0 for row in part.rows) == pytest.approx(1)


def test_coverage_is_of_the_part_alone() -> None:
    """The diamond's ops have no cost rule: what is outside does not count as known."""
    part = profile(select(diamond(), time_ns=(0.0, 5_000.0)))
    assert [row.key for row in part.rows] == ["OpA"]
    assert part.coverage["flops"].executions == 0.0


def test_criteria_narrow_each_other() -> None:
    part = part_of(network(), Choice(phase="forward", layer="c*", time_ns=(1_050.0, None)))
    assert names(part.trace, part.trace.chosen) == ["conv2/w", "conv2/Conv2D"]


def test_a_dilated_convolution_is_chosen_whole() -> None:
    """SpaceToBatchND, convolution and BatchToSpaceND are one layer, also where only one of them began in the span."""
    whole, ran = dilated_depthwise()
    begin = float(whole.step_times.start[ran["conv"]] - whole.step_times.start.min())
    part = select(whole, time_ns=(begin, begin + 1))
    assert np.flatnonzero(part.chosen).tolist() == [ran["x2b"], ran["conv"], ran["y2s"]]
    assert layers(part, 0)[0] == layers(whole, 0)[0]


def test_steps_keep_their_numbers() -> None:
    """Step 1 of `loop` made one trip: x, merge, body, merge, y. The other structure is outside."""
    whole = loop()
    part = select(whole, steps=[1])
    assert part.traced_steps == (1,)
    assert part.main_structure == 1
    assert names(part, part.chosen) == ["x", "while/merge", "while/body/MatMul", "while/merge", "y"]
    assert part.durations(1).tolist() == whole.durations(1).tolist()
    assert np.flatnonzero(part.chosen).tolist() == list(range(7, 12))
    assert profile(part).steps == (1,)
    both = part_of(whole, Choice(steps=(0, 1)))
    assert both.trace.chosen.all()
    assert both.share.of_executions == 12


def test_medians_are_over_the_chosen_steps() -> None:
    """An op of 10, 20 and 90 ns: steps 1 and 2 have a median of 55."""
    builder = TraceBuilder()
    builder.execution(builder.node("a", "Relu"), outputs=[("float32", [1])])
    structure = builder.end_structure()
    for ns in (10, 20, 90):
        builder.step(structure, start=[0], done=[ns])
    assert part_of(builder.build(), Choice(steps=(1, 2))).share.time_ns == 55.0


def test_time_is_from_the_first_start_and_ends_before_its_end() -> None:
    """The diamond's A begins at 0, B and C at 10 us, D at 60 us."""
    for span, found in (
        ((0.0, 10_000.0), "A"), ((10_000.0, 60_000.0), "BC"), ((None, 60_000.0), "ABC"), ((60_000.0, None), "D"),
    ):  # fmt: skip
        part = select(diamond(), time_ns=span)
        assert "".join(names(part, part.chosen)) == found


def test_a_part_is_a_trace_that_can_be_stored(tmp_path: Path) -> None:
    part = select(network(), layer="conv2", steps=[1])
    for name in ("part.h5", "part.pb"):
        save(part, tmp_path / name)
        assert load(tmp_path / name).equals(part)
    assert part.provenance["selection"] == "layer:conv2, step 1"


# --- what cannot be ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(layer="dense*"), "no layer that ran matches 'dense*'; there are: conv1, conv2, fc, flat, pool"),
        (Choice(layer="pol"), "no layer that ran is called 'pol'; did you mean 'pool'?"),
        (Choice(phase="x"), "no phase that ran is called 'x'; there are: forward"),
        (Choice(device="*GPU*"), "no device that ran matches '*GPU*'; the trace has no device at all"),
        (Choice(steps=(2,)), "there is no step 2; the trace has steps 0 to 1, of which these are traced: 0, 1"),
        (Choice(layer="fc", time_ns=(0.0, 5.0)), "nothing of what is selected began in 0 ns..5 ns; it began between 3.11 us and 3.12 us"),
    ],
)  # fmt: skip
def test_to_find_nothing_is_an_error_that_says_what_there_is(choice: Choice, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        part_of(network(), choice)
    assert str(caught.value).startswith(message)


def test_an_error_names_what_the_choice_was_narrowed_to() -> None:
    builder = TraceBuilder()
    for name, device in (("a/Relu", "CPU:0"), ("b/Relu", "GPU:0")):
        builder.execution(builder.node(name, "Relu", device=device), outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[0, 10], done=[10, 20])
    with pytest.raises(TraceError, match=r"matches 'GPU\*'; there are: CPU:0 \(among what is layer:a\)"):
        part_of(builder.build(), Choice(layer="a", device="GPU*"))


def test_an_untraced_step_and_a_part_of_a_part_are_refused() -> None:
    with pytest.raises(TraceError, match="step 2 was not traced; traced steps are: 0, 1"):
        part_of(loop(), Choice(steps=(2,)))
    with pytest.raises(TraceError, match="already a part of another; select from the whole"):
        select(select(network(), layer="fc"), phase="forward")


def test_a_trace_without_times_has_none_to_choose_by() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a/Relu", "Relu"), timed=False)
    builder.end_structure()
    trace = builder.build()
    assert part_of(trace, Choice(layer="a")).share == Share(1, 1, 0.0, 0.0, 0, 0)
    with pytest.raises(TraceError, match="the trace has no times, so nothing can be selected by time"):
        part_of(trace, Choice(time_ns=(0.0, None)))


# --- as text ----------------------------------------------------------------------------------------------------------------------


def test_steps_and_spans_are_read() -> None:
    assert parse_steps("2") == (2,)
    assert parse_steps("5, 0,2..4,3") == (0, 2, 3, 4, 5)
    assert parse_span("10ms..20 ms") == (10e6, 20e6)
    assert parse_span("..1.5us") == (None, 1_500.0)
    assert parse_span("0..2s") == (0.0, 2e9)
    assert parse_span("7ns..") == (7.0, None)


@pytest.mark.parametrize("text", ["", "a", "1-2", "3..1", "1,", "-1", "0..999999999", "1.5", "²"])
def test_no_steps_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is no selection of steps; write for example 2, or 0,3, or 2\.\.5"):
        parse_steps(text)


@pytest.mark.parametrize(
    "text", ["", "..", "10ms", "1..2..3", "10..20ms", "1ms..1ms", "2ms..1ms", "x..y", "1m..2m", "1...2", "-1s..2s"]
)
def test_no_spans_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_span(text)


# --- exports ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGISTRY.names())
@pytest.mark.parametrize("choice", [Choice(layer="conv*"), Choice(layer="fc", steps=(1,)), Choice(phase="forward")], ids=str)
def test_every_exporter_exports_the_part_and_accounts_for_it(name: str, choice: Choice, tmp_path: Path) -> None:
    """Executions, time and what is exported are those of the part, by their numbers in the whole."""
    part, folder = part_of(network(), choice), tmp_path / "out"
    report, found = export(network(), name, folder, choice=choice)
    assert found.ok
    assert check(folder)[1].ok
    totals = report.totals()
    assert totals["executions"]["total"] == part.share.executions
    assert totals["time_ns"]["total"] == pytest.approx(part.share.time_ns)
    assert totals["macs"]["total"] == part.share.macs
    exported = {e for layer in read_layer_map(folder) for e in layer.executions}
    assert exported
    assert exported <= set(np.flatnonzero(part.trace.chosen).tolist())
    saved = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))["selection"]
    assert saved["text"] == str(choice)
    assert (saved["executions"], saved["of_executions"]) == (part.share.executions, 10)
    assert (saved["macs"], saved["of_macs"]) == (part.share.macs, 12_960)


def test_an_export_of_the_whole_says_of_no_selection(tmp_path: Path) -> None:
    export(dense(), "table", tmp_path / "out")
    assert json.loads((tmp_path / "out" / REPORT_NAME).read_text(encoding="utf-8"))["selection"] is None


def test_an_exporter_that_takes_no_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = REGISTRY.load("scale_sim")
    original = module.write

    def all_of_it(trace: Trace, folder: Path, options: Any) -> Any:
        report = original(trace, folder, options)
        more = ExportedLayer("x", "network_conv.csv:2", "convolution", (0,), 0, 0.0)
        return type(report)(**{**report.__dict__, "layers": (*report.layers, more)})

    monkeypatch.setattr(module, "write", all_of_it)
    with pytest.raises(ExportError, match="exported execution 0, which is not of layer:conv1; it takes no part of a trace"):
        export(network(), "scale_sim", tmp_path / "out", choice=Choice(layer="conv1"))
    assert list(tmp_path.iterdir()) == []


def test_results_for_a_part_are_of_the_executions_of_the_whole(tmp_path: Path) -> None:
    """SCALE-Sim's answer for conv2 alone, 1,000 cycles at 1 GHz, is the time of execution 5 of the whole trace."""
    export(network(), "scale_sim", tmp_path / "out", choice=Choice(layer="conv2"))
    report = tmp_path / "COMPUTE_REPORT.csv"
    header = (
        "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %,"
    )
    report.write_text(f"{header}\n0, 1100, 1000, 0, 50.0, 100.0, 50.0,\n")
    times = read_results(tmp_path / "out", report, 1e9)
    assert list(times) == [5]
    assert network().node_names[int(network().executions.node[5])] == "conv2/Conv2D"


def test_dependencies_lead_through_what_is_left_out(tmp_path: Path) -> None:
    """conv1 -> (pool) -> conv2: the graph has the edge, called bridged, and the longest path of Chakra is 10 + 1,000 + 2,000 ns."""
    import networkx

    export(network(), "graph", tmp_path / "graph", choice=Choice(layer="conv*"))
    graph = networkx.read_graphml(tmp_path / "graph" / "network.graphml")
    by_name = {data["name"]: node for node, data in graph.nodes(data=True)}
    assert set(by_name) == {"conv1/w", "conv1/Conv2D", "conv2/w", "conv2/Conv2D"}
    assert graph.edges[by_name["conv1/Conv2D"], by_name["conv2/Conv2D"]]["kind"] == "bridged"
    report, _ = export(network(), "chakra", tmp_path / "chakra", choice=Choice(layer="conv*"))
    assert any("3.010" in text for text in report.approximations)


def test_a_table_keeps_the_shapes_of_what_is_read_from_outside(tmp_path: Path) -> None:
    """conv2 reads the pool's output: its row is marked `outside` and has no time and no cost, its tensor has a shape."""
    import csv

    export(network(), "table", tmp_path / "out", choice=Choice(layer="conv2"))

    def rows(name: str) -> list[dict[str, str]]:
        with (tmp_path / "out" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    table = {row["node"]: row for row in rows("executions")}
    assert {name: row["record"] for name, row in table.items()} == {"pool/Relu": "outside", "conv2/w": "op", "conv2/Conv2D": "op"}
    assert (table["pool/Relu"]["duration_ns"], table["pool/Relu"]["macs"], table["conv2/Conv2D"]["macs"]) == ("", "", "5760")
    shapes = {row["execution"]: row["shape"] for row in rows("tensors")}
    assert shapes[table["pool/Relu"]["execution"]] == "2x5x7x4"
    waits = {row["waits_for"] for row in rows("dependencies")}
    assert waits == {table["pool/Relu"]["execution"], table["conv2/w"]["execution"]}


# --- commands ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(network(), "network.h5")
    return tmp_path


def test_the_export_command_says_what_was_selected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "network.h5", "scale-sim", "--phase", "forward", "--layer", "conv*", "--step", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    line = "selected phase:forward, layer:conv*, step 1: 4 of 10 executions (40.0%), 3.02 us of 3.42 us (88.3%), 10.8 k of 13.0 k MACs"
    assert line in out
    assert [layer.executions for layer in read_layer_map(here / "network-scale_sim")] == [(2,), (5,)]


def test_reading_commands_take_the_same_flags(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "network.h5", "--layer", "conv*", "--steps", "0..1", "--time", "..1.05us", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["count"], row["macs"]) for row in found["rows"]] == [("Conv2D", 1, 5_040), ("Placeholder", 1, 0)]
    assert found["selection"]["text"] == "layer:conv*, steps 0, 1, began in ..1.05 us"
    assert run(["info", "network.h5", "--layer", "fc"]) == 0
    out = capsys.readouterr().out
    assert "executions  2 in a step" in out
    assert "selected layer:fc: 2 of 10 executions" in out
    assert run(["memory", "network.h5", "--layer", "fc"]) == 1
    assert "nothing of layer:fc allocated in a step whose allocations were recorded" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["export", "network.h5", "table", "--layer", "nothing*"], ["ops", "network.h5", "--phase", "sideways"],
        ["info", "network.h5", "--steps", "9"], ["memory", "network.h5", "--time", "10ms"], ["ops", "network.h5", "--device", "*TPU*"],
    ],
)  # fmt: skip
def test_commands_refuse_what_selects_nothing(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fathom-trace: ")
    assert err.count("\n") == 1
    assert {p.name for p in here.iterdir()} == {"network.h5"}


def test_memory_of_a_part_is_what_it_allocated() -> None:
    """a allocates 100 bytes, b 60: of the part that began before 15 ns, only a's count."""
    from fathom_trace.memory import memory

    builder = TraceBuilder()
    for name in "ab":
        builder.execution(builder.node(f"{name}/Relu", "Relu"), outputs=[("float32", [1])])
    step = builder.step(builder.end_structure(), start=[0, 20], done=[10, 30])
    for execution, size in ((0, 100), (1, 60)):
        builder.add("allocations", step=step, execution=execution, size_bytes=size, time=20 * execution, buffer=-1)
    assert memory(builder.build()).peak_bytes == 160
    assert memory(select(builder.build(), time_ns=(0.0, 15.0))).peak_bytes == 100


def test_errors_are_of_the_users_kind() -> None:
    assert issubclass(TraceError, FathomError)
