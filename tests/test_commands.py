"""Does each command print what its trace holds, and refuse what cannot work before it begins?"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from small import dense, diamond, loop

import fathom_trace.capture
from fathom_trace.builder import TraceBuilder
from fathom_trace.capture import CaptureRequest, Plan
from fathom_trace.cli import command_parser, run
from fathom_trace.commands.capture import default_name, request_of
from fathom_trace.store import load, save
from fathom_trace.terminal import ProgressBar, plain
from fathom_trace.trace import Trace


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two stored traces."""
    monkeypatch.chdir(tmp_path)
    save(diamond(), "diamond.h5")
    save(loop(), "loop.h5")
    return tmp_path


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def output(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """What a command line prints on stdout, having said nothing on stderr."""
    assert run(words) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of an error that the user can correct."""
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fathom-trace: ")
    assert err.count("\n") == 1
    return err.removeprefix("fathom-trace: ").rstrip("\n")


def incomplete() -> Trace:
    """One execution was recorded where two ran."""
    builder = TraceBuilder()
    node = builder.node("a", "NoOp")
    builder.execution(node)
    builder.step(builder.end_structure(), start=[0], done=[10], produced=2, complete=False)
    return builder.build({"workload": "broken"})


# --- reading commands ---------------------------------------------------------------------------------------------------------


def test_info_counts_what_is_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diamond: 4 executions, edges A-B, A-C, B-D, C-D, one step of 70 us, op times 10 + 50 + 30 + 10 us."""
    found = json.loads(output(capsys, "info", "diamond.h5", "--json"))
    assert (found["executions"], found["nodes"], found["traced_steps"], found["untraced_steps"]) == (4, 4, 1, 0)
    assert (found["traced_ns"], found["untraced_ns"], found["disturbance"]) == (70_000, None, None)
    assert found["checks"]["edges"] == 4
    assert found["checks"]["problems"] == []
    assert [(row["key"], row["time_ns"], row["share"]) for row in found["top_ops"]][:2] == [("OpB", 50_000, 0.5), ("OpC", 30_000, 0.3)]
    assert found["provenance"]["workload"] == "diamond"
    assert found["size_bytes"] == (here / "diamond.h5").stat().st_size


def test_info_for_people_has_the_same_figures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "info", "diamond.h5")
    for line in ("steps       1 traced, 0 untraced", "causality   0 violations in 4 dependencies", "complete    yes: 4 recorded of 4"):
        assert f"  {line}\n" in out
    assert "  OpB          1  50.0 us  50.0%\n" in out


def test_info_compares_traced_with_untraced_steps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two structures; the untraced step took 55 ns."""
    found = json.loads(output(capsys, "info", "loop.h5", "--json"))
    traced = load("loop.h5").steps
    walls = sorted(traced.client_wall_ns[traced.traced].tolist())
    assert (found["structures"], found["untraced_ns"]) == (2, 55)
    assert found["disturbance"] == pytest.approx(sum(walls) / len(walls) / 55)


def test_info_says_what_is_wrong(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(incomplete(), "broken.h5")
    out = output(capsys, "info", "broken.h5")
    assert "complete    NO: 1 recorded of 2" in out
    assert "problem: the trace is incomplete: 1 executions recorded, at least 2 ran" in out


def test_info_says_how_much_of_the_time_is_in_calls_that_nobody_can_look_into(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the diamond's 10 + 50 + 30 + 10 us, B takes half."""
    trace = diamond()
    save(trace.replace(provenance={**trace.provenance, "opaque_calls": ["B"]}), "opaque.h5")
    out = output(capsys, "info", "opaque.h5")
    assert "note: what is inside 'B' (50.0% of the op time) is unknown: TensorFlow runs it as one op\n" in out
    assert json.loads(output(capsys, "info", "opaque.h5", "--json"))["opaque_share"] == 0.5
    assert "unknown" not in output(capsys, "info", "diamond.h5")


def test_info_reads_a_trace_in_which_nothing_ran(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(TraceBuilder().build(), "empty.h5")
    assert json.loads(output(capsys, "info", "empty.h5", "--json"))["top_ops"] == []
    assert "executions  0 in a step" in output(capsys, "info", "empty.h5")


def test_ops_csv_has_exactly_the_promised_columns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "ops", "diamond.h5", "--csv").splitlines()
    assert lines[0] == "key,count,time_ns,share,macs,flops,bytes"
    assert [line.split(",")[:4] for line in lines[1:3]] == [["OpB", "1", "50000.0", "0.5"], ["OpC", "1", "30000.0", "0.3"]]


def test_ops_shows_the_unknown_as_unknown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No op of the diamond has a cost rule."""
    out = output(capsys, "ops", "diamond.h5", "--top", "1")
    assert out.splitlines()[1].split() == ["OpB", "1", "50.0", "us", "50.0%", "?", "?", "?", "-", "-"]
    assert "and 3 more" in out
    assert "FLOPs unknown: 1 x OpA, 1 x OpB, 1 x OpC, 1 x OpD" in out


def test_ops_groups_as_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["key"] for row in json.loads(output(capsys, "ops", "loop.h5", "--by", "kind", "--json"))["rows"]] != []
    assert complaint(capsys, "ops", "loop.h5", "--by", "layr") == "no grouping is called 'layr'; did you mean 'layer'?"


def test_whatif_on_the_diamond(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B five times faster: 10 + 30 + 10 = 50 us of 70 us, where Amdahl, adding up, has 100 / 60 = 1.667."""
    out = output(capsys, "whatif", "diamond.h5", "--speedup", "OpB=5")
    assert "1.67x" in out
    assert "1.40x" in out
    curve = json.loads(output(capsys, "whatif", "diamond.h5", "--sweep", "OpB=1..1000:4", "--json"))
    assert [p["replay"]["after_ns"] for p in curve["points"]] == pytest.approx([70_000, 50_000, 50_000, 50_000])


def test_whatif_refuses_what_it_cannot_project(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "OpZ" in complaint(capsys, "whatif", "diamond.h5", "--speedup", "OpZ=5")
    assert "is not a speedup; write for example Conv2D=10" in complaint(capsys, "whatif", "diamond.h5", "--speedup", "OpB")
    assert "export.json does not exist" in complaint(capsys, "whatif", "diamond.h5", "--from", "nowhere")
    assert "export.json does not exist; give the folder" in complaint(capsys, "check", "diamond.h5")
    assert "'fast' is not a quantity in Hz" in complaint(capsys, "whatif", "diamond.h5", "--from", "nowhere", "--clock", "fast")


def test_convert_there_and_back_loses_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "convert", "loop.h5", "loop.pb").startswith("loop.pb: ")
    assert complaint(capsys, "convert", "loop.pb", "diamond.h5") == "diamond.h5 exists; pass --force to replace it"
    output(capsys, "convert", "loop.pb", "diamond.h5", "--force")
    assert load("diamond.h5").equals(loop())


@pytest.mark.parametrize("words", [("info",), ("ops",), ("whatif",), ("export", "scale-sim"), ("convert", "out.h5")])
def test_a_file_that_cannot_be_read_is_one_line(words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "foreign.h5").write_bytes(b"no trace at all")
    command, *rest = words
    assert "missing.h5 does not exist" in complaint(capsys, command, "missing.h5", *rest)
    assert "missing does not exist" in complaint(capsys, command, "missing", *rest)
    assert "foreign.h5" in complaint(capsys, command, "foreign.h5", *rest)
    assert names(here) == {"diamond.h5", "loop.h5", "foreign.h5"}


# --- export -------------------------------------------------------------------------------------------------------------------


def test_export_refuses_before_it_reads(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "full").mkdir()
    (here / "full" / "thesis.tex").write_text("years of work")
    assert complaint(capsys, "export", "missing.h5", "scale-smi") == "no exporter is called 'scale-smi'; did you mean 'scale_sim'?"
    assert "full holds files that no export wrote" in complaint(capsys, "export", "missing.h5", "scale-sim", "-o", "full", "--force")
    message = complaint(capsys, "export", "diamond.h5", "scale-sim", "--set", "batsh=gemm")
    assert message == "no option of exporter 'scale_sim' is called 'batsh'; did you mean 'batch'?"


def test_export_leaves_nothing_where_there_is_nothing_to_export(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diamond has neither a convolution nor a product."""
    assert "SCALE-Sim takes nothing else" in complaint(capsys, "export", "diamond.h5", "scale-sim")
    assert names(here) == {"diamond.h5", "loop.h5"}


def test_export_writes_checks_and_replaces_only_with_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(dense(), "mlp.h5")
    out = output(capsys, "export", "mlp.h5", "scale_sim")
    assert (here / "mlp-scale_sim" / "export.json").is_file()
    assert "proof: target ran" in out
    assert "mlp-scale_sim exists; pass --force" in complaint(capsys, "export", "mlp.h5", "scale-sim")
    report = json.loads(output(capsys, "export", "mlp.h5", "scale-sim", "--force", "--json"))
    assert report["totals"]["macs"] == {
        "exported": 2 * 3 * 5, "skipped": 0, "total": 2 * 3 * 5, "unknown_executions": 0, "unknown_time_ns": 0,
    }  # fmt: skip
    assert report["check"]["problems"] == []
    assert "0 problems" in output(capsys, "check", "mlp-scale_sim")
    (here / "mlp-scale_sim" / "dense_gemm.csv").write_text("half")
    assert json.loads(output(capsys, "check", "mlp-scale_sim", "--json", status=1))["ok"] is False


# --- capture ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def captured(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[CaptureRequest]:
    """Capturing is replaced by the diamond; what was asked for is kept."""
    requests: list[CaptureRequest] = []

    def capture(request: CaptureRequest, progress: object) -> Trace:
        requests.append(request)
        return diamond()

    monkeypatch.setattr(fathom_trace.capture, "capture_request", capture)
    return requests


def test_capture_writes_where_it_says_and_prints_the_summary(
    here: Path, captured: list[CaptureRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    out = output(capsys, "capture", "vgg", "--seed", "3")
    assert load("vgg-training.h5").equals(diamond())
    for word in ("steps", "executions", "wall time", "causality", "readiness", "inputs", "complete", "file", "where the time goes"):
        assert f"\n  {word} " in out or f"\n{word}" in out
    assert "vgg-training.h5" in out
    assert captured[0].command_line == "fathom-trace capture vgg --seed 3"


def test_capture_asks_for_what_the_defaults_of_the_interface_are() -> None:
    """The parser cannot import them, lest `--help` imports numpy."""
    arguments = command_parser("capture").parse_args(["vgg"])
    arguments.command_line = []
    assert request_of(arguments) == CaptureRequest("vgg")


def test_capture_passes_on_what_it_is_told() -> None:
    words = (
        "autoenc --mode inference --preset tiny --batch-size 2 --steps 4 --warmup 0 --stage optimized --threads 2 --inter-threads 3"
        " --memory-steps 2 --max-events 7 --seed 5 --set a=1 --set b-c=x,y --data dir --shape in=2,3 --shape scalar= --signature s"
        " --loss mse --optimizer sgd"
    )
    arguments = command_parser("capture").parse_args(words.split())
    arguments.program, arguments.command_line = "my.keras", ["fathom-trace", "capture", "a b"]
    assert request_of(arguments) == CaptureRequest(
        workload="my.keras",
        mode="inference",
        preset="tiny",
        batch_size=2,
        seed=5,
        settings={"a": "1", "b_c": "x,y"},
        data=Path("dir"),
        plan=Plan(steps=4, warmup=0, stage="optimized", threads=2, inter_threads=3, memory_steps=2, max_events=7),
        command_line="fathom-trace capture 'a b'",
        shapes={"in": (2, 3), "scalar": ()},
        signature="s",
        loss="mse",
        optimizer="sgd",
    )


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (CaptureRequest("vgg"), "vgg-training.h5"),
        (CaptureRequest("vgg", mode="inference", preset="tiny"), "vgg-tiny-inference.h5"),
        (CaptureRequest("vgg", plan=Plan(stage="optimized")), "vgg-training-optimized.h5"),
        (CaptureRequest("models/net.keras"), "net-training.h5"),
        (CaptureRequest("dir/steps.py:train"), "train-training.h5"),
        (CaptureRequest("models/saved/"), "saved-training.h5"),
    ],
)
def test_the_name_of_a_trace_says_what_it_is_of(request_: CaptureRequest, name: str) -> None:
    assert default_name(request_) == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vg"], "no workload is called 'vg'; did you mean 'vgg'?"),
        (["vgg", "--stage", "sorce"], "no stage is called 'sorce'; did you mean 'source'?"),
        (["vgg", "--mode", "trainig"], "no mode is called 'trainig'; did you mean 'training'?"),
        (["vgg", "--set", "classes"], "'classes' is not a setting; write --set name=value"),
        (["vgg", "-o", "diamond.h5"], "diamond.h5 exists; pass --force to replace it"),
        (["vgg", "-o", "vgg.csv"], "vgg.csv is not a trace's file name; give it the suffix .h5 or .hdf5 (HDF5), or .pb (protobuf)"),
    ],
)
def test_capture_refuses_before_it_begins(
    words: list[str], message: str, captured: list[CaptureRequest], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, "capture", *words) == message
    assert captured == []
    assert names(here) == {"diamond.h5", "loop.h5"}


def test_an_incomplete_trace_is_written_and_is_a_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fathom_trace.capture, "capture_request", lambda request, progress: incomplete())
    assert "NO: 1 recorded of 2" in output(capsys, "capture", "vgg", status=1)
    assert load("vgg-training.h5").equals(incomplete())


def test_a_trace_with_times_out_of_order_is_written_and_is_a_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "NoOp"))
    builder.step(builder.end_structure(), start=[10], done=[5])
    broken = builder.build({"workload": "clock"})
    monkeypatch.setattr(fathom_trace.capture, "capture_request", lambda request, progress: broken)
    out = output(capsys, "capture", "vgg", status=1)
    assert "problem: 1 executions have times out of order; they are left out of all sums; capture it again" in out
    assert not load("vgg-training.h5").step_times.valid.any()


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130), (MemoryError, 1)])
def test_a_capture_that_is_cut_short_leaves_no_file(
    error: type[BaseException], status: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(request: CaptureRequest, progress: object) -> Trace:
        raise error

    monkeypatch.setattr(fathom_trace.capture, "capture_request", stop)
    assert run(["capture", "vgg"]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert names(here) == {"diamond.h5", "loop.h5"}


# --- what commands print with -------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_progress_bar_is_drawn_on_a_terminal_and_cleared() -> None:
    stream = Terminal()
    with ProgressBar(stream) as progress:
        progress("step", 3, 12)
        assert stream.getvalue().endswith("[######..................] 3/12 step (0 s)")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_progress_bar_is_silent_elsewhere() -> None:
    stream = io.StringIO()
    with ProgressBar(stream) as progress:
        progress("step", 3, 12)
    assert stream.getvalue() == ""


def test_json_has_no_infinity_and_no_numpy() -> None:
    import numpy as np

    value = {"a": float("nan"), "b": float("inf"), "c": np.int64(3), "d": np.array([1.5]), "e": (Path("x"), None, True)}
    assert plain(value) == {"a": None, "b": None, "c": 3, "d": [1.5], "e": ["x", None, True]}
