"""Does every command that reads traces take the same selections, in the same words, and say what its numbers are then of?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import small
from program import Program

from fathom_trace.builder import TraceBuilder
from fathom_trace.cli import COMMANDS, command_parser, run
from fathom_trace.errors import ExportError
from fathom_trace.report.captured import LeftOut
from fathom_trace.report.page import _traces
from fathom_trace.rewrites import rewrites
from fathom_trace.selecting import select
from fathom_trace.store import load, save
from fathom_trace.trace import Trace
from fathom_trace.whatif import find_limits, from_results, parse_scenario, project, project_all

READ_NO_TRACE = {"capture", "sweep", "check", "workloads", "exporters"}
"""The commands that read no trace. A new command stands here, or takes selections."""

SELECTIONS = ("--phase", "--layer", "--device", "--steps", "--time")


def network(steps: int = 2) -> Trace:
    """A convolution of 1,000 ns and a product of 300 ns, each of its own layer, with two inputs of 10 ns each.

    conv1: [2, 7, 8, 3] by [3, 2, 3, 4], outputs 5 x 7: 2*5*7*4 * 3*2*3 = 5,040 MACs. fc: [2, 140] by [140, 9]: 2,520 MACs.
    """
    program = Program()
    x, w1 = program.input("x", [2, 7, 8, 3]), program.input("conv1/w", [3, 2, 3, 4])
    one = program.op("conv1/Conv2D", "Conv2D", [x, w1], [2, 5, 7, 4], {"strides": [1, 1, 1, 1], "padding": "VALID"}, ns=1_000)
    flat = program.op("flat/Reshape", "Reshape", [one, program.input("shape", [2])], [2, 140], {}, ns=20)
    program.op("fc/MatMul", "MatMul", [flat, program.input("fc/w", [140, 9])], [2, 9], {}, ns=300)
    return program.trace("network", steps)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(network(), "network.h5")
    return tmp_path


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


# --- one vocabulary ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - READ_NO_TRACE))
def test_every_reading_command_takes_every_selection(name: str) -> None:
    """Under one name, with one help text, and `--step` for `--steps`."""
    options = command_parser(name)._option_string_actions
    reference = command_parser("ops")._option_string_actions
    assert [o for o in SELECTIONS if o not in options] == []
    assert options["--step"] is options["--steps"]
    assert [options[o].help for o in SELECTIONS] == [reference[o].help for o in SELECTIONS]


def test_the_list_of_those_that_read_none_holds_no_others() -> None:
    assert COMMANDS.keys() >= READ_NO_TRACE


# --- whatif -----------------------------------------------------------------------------------------------------------------------


def test_a_what_if_of_a_part_is_of_its_op_time(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of layer conv1, 1,010 ns with its input, the convolution has 99.0%; the line says which part of a step it is."""
    out = printed(["whatif", "network.h5", "--speedup", "Conv2D=10", "--layer", "conv1"], capsys)
    first = out.splitlines()[:2]
    assert first[0].startswith("selected layer:conv1: 2 of 7 executions (28.6%), 1.01 us of")
    assert first[1] == "shares are of its op time; totals hold all else from its first operation to its last as idle time"
    assert "99.0% of the op time" in out
    found = json.loads(printed(["whatif", "network.h5", "--speedup", "Conv2D=10", "--layer", "conv1", "--json"], capsys))
    assert found["selection"]["text"] == "layer:conv1"
    for more in (["--limits"], ["--sweep", "Conv2D=1..10"]):
        assert "selected step 1: " in printed(["whatif", "network.h5", "--step", "1", *more], capsys)
        assert json.loads(printed(["whatif", "network.h5", "--step", "1", "--json", *more], capsys))["selection"]["steps"] == [1]


def test_what_is_outside_the_part_is_not_sped_up(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", "network.h5", "--speedup", "MatMul=10", "--layer", "conv1"]) == 1
    assert "no op type that ran is called 'MatMul'; there are: Conv2D, Placeholder" in capsys.readouterr().err


def test_what_is_outside_the_part_is_counted_nowhere() -> None:
    """Conv1 is the convolution and its weights, of which there are four more inputs outside."""
    part = select(network(), layer="conv1")
    projection = project(part, parse_scenario(["Conv2D=10"]))
    assert projection.executions == 2
    assert {o.op: o.count for o in projection.ops} == {"Conv2D": 1, "Placeholder": 1}
    assert not [note for note in projection.notes if "without a valid time" in note]
    limits = find_limits(part)
    assert {row.name: row.executions for row in limits.layers} == {"conv1": 1 + 1}
    assert sum(row.executions for row in limits.kinds) == 2
    assert project_all(part, {"a": parse_scenario(["Conv2D=2"])}).executions == 2
    assert projection.to_trace().steps.recorded.tolist() == part.steps.recorded[:1].tolist() == [2]


def test_no_change_gives_time_to_what_is_outside_the_part(here: Path) -> None:
    """A predicate that is true of everything, and times for everything: only conv1's 1,000 and 10 ns change."""
    part, before = select(network(), layer="conv1"), select(network(), layer="conv1").median_durations(0)
    Path("all.py").write_text("def select(execution):\n    return True\n")
    for scenario in (
        parse_scenario(["predicate:all.py=5ns"]),
        from_results(network(), dict.fromkeys(range(len(part.executions)), 5.0)),
    ):
        projection = project(part, scenario)
        assert projection.times.duration_ns.tolist() == [5.0 if time else 0.0 for time in before.tolist()]
        assert sum(projection.times.duration_ns) == 10
        assert [s.executions for s in projection.selected] == [2]


# --- convert ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["part.h5", "part.pb"])
def test_convert_writes_the_part_as_a_trace_that_says_so(target: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(["convert", "network.h5", target, "--layer", "conv1", "--steps", "0"], capsys)
    assert out.startswith("selected layer:conv1, step 0: 2 of 7 executions")
    assert load(target).equals(select(network(), layer="conv1", steps=[0]))
    assert load(target).provenance["selection"] == "layer:conv1, step 0"


# --- rewrites ---------------------------------------------------------------------------------------------------------------------


def stages() -> tuple[Trace, Trace]:
    """A program of two products, of 2*3*4 = 24 and 2*4*5 = 40 MACs, and what was left of it: the second.

    TensorFlow had no use for the first in the optimized stage; both are in layers of their own.
    """

    def made(stage: str, names: tuple[str, ...]) -> Trace:
        program = Program()
        x = program.input("x", [2, 3])
        one = program.op("one/MatMul", "MatMul", [x, program.input("one/w", [3, 4])], [2, 4], {}, ns=10) if "one" in names else None
        two_in = program.input("y", [2, 4])
        program.op("two/MatMul", "MatMul", [two_in, program.input("two/w", [4, 5])], [2, 5], {}, ns=10)
        del one
        trace = program.trace("stages", 1)
        return trace.replace(provenance={**trace.provenance, "stage": stage})

    return made("source", ("one", "two")), made("optimized", ("two",))


def test_rewrites_of_a_part_are_of_its_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Whole: 64 MACs of which 40 are executed. Layer one: 24, none executed. Layer two: 40, all executed."""
    source, optimized = stages()
    whole = rewrites(source, optimized)
    assert (whole.source_macs, whole.executed_macs, whole.removed_macs, whole.added_macs) == (64, 40, 24, 0)
    for layer, numbers in (("one", (24, 0, 24, 0)), ("two", (40, 40, 0, 0))):
        found = rewrites(source, optimized, select(source, layer=layer))
        assert (found.source_macs, found.executed_macs, found.removed_macs, found.added_macs) == numbers
    monkeypatch.chdir(tmp_path)
    save(source, "source.h5")
    save(optimized, "optimized.h5")
    found = json.loads(printed(["rewrites", "source.h5", "optimized.h5", "--layer", "one", "--json"], capsys))
    assert (found["source_macs"], found["executed_macs"], found["selection"]["text"]) == (24, 0, "layer:one")
    assert printed(["rewrites", "source.h5", "optimized.h5", "--layer", "two"], capsys).startswith("selected layer:two: ")


# --- report -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def numbers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take seconds to draw."""

    def none() -> None:
        raise ExportError("no figures here")

    monkeypatch.setattr("fathom_trace.report.pictures.engine", none)


def static() -> Trace:
    """A trace of which nothing was run."""
    builder = TraceBuilder()
    builder.execution(builder.node("a", "MatMul"), outputs=[("float32", [2])], timed=False)
    return builder.build({"workload": "static", "static": True})


@pytest.mark.usefixtures("numbers_only")
def test_a_report_leaves_out_what_has_no_times_and_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(static(), "static.h5")
    save(small.diamond(), "other.h5")
    out = printed(["report", "static.h5", "network.h5", "other.h5", "--out", "out"], capsys)
    assert out.startswith("out: 2 traces, ")
    assert "left out: static.h5: has no times; a report needs traces of steps that ran" in out
    report = json.loads((here / "out/report.json").read_text())
    assert [left["file"] for left in report["left_out"]] == ["static.h5"]
    assert [trace["file"] for trace in report["traces"]] == ["network.h5", "other.h5"]
    assert "static.h5" in (here / "out/traces.csv").read_text()


def test_the_page_names_the_files_that_are_left_out() -> None:
    assert "&lt;a&gt;.h5 is in no figure: has no times" in _traces((), (), [LeftOut("<a>.h5", "has no times")])


def test_a_report_of_nothing_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(static(), "static.h5")
    assert run(["report", "static.h5", "--out", "out"]) == 1
    assert "there is nothing to report: static.h5: has no times" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_damaged_file_still_ends_a_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.h5").write_bytes(Path("network.h5").read_bytes()[:-100])
    assert run(["report", "network.h5", "bad.h5", "--out", "out"]) == 1
    assert "bad.h5 is damaged" in capsys.readouterr().err


@pytest.mark.usefixtures("numbers_only")
def test_a_report_of_parts_is_of_the_traces_that_have_any(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diamond has no layer conv1; nothing of a part is held against the paper."""
    save(small.diamond(), "other.h5")
    out = printed(["report", "network.h5", "other.h5", "--out", "out", "--layer", "conv1"], capsys)
    assert "left out: other.h5: no layer that ran is called 'conv1'" in out
    assert "selected layer:conv1; nothing is compared with what was published" in out
    report = json.loads((here / "out/report.json").read_text())
    assert report["traces"][0]["provenance"]["selection"] == "layer:conv1"
    assert report["traces"][0]["total_ns"] == 1_010.0
    assert any("not selected (layer:conv1)" in e["why"] for e in report["traces"][0]["exclusions"])
    assert {fact["finding"] for fact in report["published"]} == {"not testable"}


@pytest.mark.usefixtures("numbers_only")
def test_a_report_of_chosen_steps_keeps_them_all(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of five or more steps the paper's way drops the first and the last; not of those that were asked for."""
    save(network(8), "long.h5")
    printed(["report", "long.h5", "--out", "out", "--steps", "1..6"], capsys)
    assert json.loads((here / "out/report.json").read_text())["traces"][0]["kept_steps"] == [1, 2, 3, 4, 5, 6]
