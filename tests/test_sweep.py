"""Does a sweep capture every combination once, go on where it ended, leave other traces alone and keep the machine to itself?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from profiles import timed

import fathom_trace.sweep
from fathom_trace.alone import only_one
from fathom_trace.cli import run
from fathom_trace.collection import MANIFEST, Capture
from fathom_trace.errors import CaptureError
from fathom_trace.report.captured import measure_files
from fathom_trace.report.parallelism import groups_by_threads
from fathom_trace.store import load, save
from fathom_trace.sweep import DONE, FAILED, MADE, Point, points, sweep

FLAGS = ["--seed", "0"]


def test_points_are_every_combination_once() -> None:
    found = points(["vgg", "deepq", "vgg"], ["training", "inference"], threads=[1, 2])
    assert len(found) == len(set(found)) == 2 * 2 * 2
    assert found[0] == Point("vgg", "training", threads=1)
    assert len({point.name for point in found}) == 8


def test_names_hold_what_is_not_the_default() -> None:
    assert Point("vgg", "training").name == "vgg-training.h5"
    assert Point("vgg", "inference", "tiny", "optimized", 4, 2).name == "vgg-tiny-inference-optimized-batch4-threads2.h5"
    assert Point("vgg", "inference", "tiny", "optimized", 4, 2).flags == [
        "--preset", "tiny", "--stage", "optimized", "--batch-size", "4", "--threads", "2",
    ]  # fmt: skip


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of captures, which are faked: each writes a trace of a MatMul that says how it was made. memnet fails."""
    made: list[list[str]] = []

    def fake(workload: str, mode: str, file: Path, flags: list[str], keep_open: Sequence[int]) -> Capture:
        words = ["fathom-trace", "capture", workload, "--mode", mode, *flags, "-o", str(file), "--json"]
        made.append(words)
        if workload != "memnet":
            save(timed([{"MatMul": 7}], workload=workload, mode=mode, command_line=" ".join(words)), file, force=True)
        return Capture(workload, mode, str(file), " ".join(words), 1, 1, "no memory" if workload == "memnet" else "")

    monkeypatch.setattr(fathom_trace.sweep, "capture_one", fake)
    return made


def test_a_sweep_goes_on_after_a_failure_and_where_it_ended(tmp_path: Path, captures: list[list[str]]) -> None:
    wanted, told = points(["vgg", "memnet", "deepq"], ["training"]), list[str]()
    first = sweep(wanted, tmp_path, FLAGS, False, told.append)
    assert [o.status for o in first] == [MADE, FAILED, MADE]
    assert "2/3 memnet-training: no memory" in told
    assert [m["workload"] for m in json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))] == ["vgg", "memnet", "deepq"]
    captures.clear()
    again = sweep(wanted, tmp_path, FLAGS, False, told.append)
    assert [o.status for o in again] == [DONE, FAILED, DONE]
    assert [words[2] for words in captures] == ["memnet"]
    sweep(wanted, tmp_path, FLAGS, True, told.append)
    assert [words[2] for words in captures[1:]] == ["vgg", "memnet", "deepq"]
    assert all("--force" in words for words in captures[1:])


def test_a_trace_of_another_command_is_left_alone(tmp_path: Path, captures: list[list[str]]) -> None:
    wanted = points(["vgg"], ["training"])
    sweep(wanted, tmp_path, FLAGS, False, lambda _: None)
    [other] = sweep(wanted, tmp_path, ["--seed", "1"], False, lambda _: None)
    assert other.status == FAILED
    assert "was made by another command" in other.problem
    assert "pass --force" in other.problem
    assert "--seed 0" in load(tmp_path / "vgg-training.h5").provenance["command_line"]
    (tmp_path / "vgg-training.h5").write_bytes(b"not a trace")
    [damaged] = sweep(wanted, tmp_path, FLAGS, False, lambda _: None)
    assert damaged.status == FAILED
    assert (tmp_path / "vgg-training.h5").read_bytes() == b"not a trace"
    assert len(captures) == 1


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    """A second process is refused while the first holds the lock, and not afterwards."""
    code = f"from pathlib import Path\nfrom fathom_trace.alone import only_one\nwith only_one(Path({str(tmp_path)!r})): print('alone')"

    def other() -> subprocess.CompletedProcess[str]:
        root = Path(__file__).parents[1]
        return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)

    with only_one(tmp_path):
        refused = other()
        with pytest.raises(CaptureError, match="another sweep is capturing"), only_one(tmp_path):
            pass
    assert "another sweep is capturing on this machine" in refused.stderr
    assert other().stdout == "alone\n"


def test_a_dry_run_prints_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    from fathom_trace.cli import command_parser

    assert run(["sweep", "memnet", "deepq", "--modes", "training", "--threads", "1,2", "--steps", "5", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    for line in lines:
        command_parser("capture").parse_args(line.split()[2:])
    assert lines[1].endswith("--threads 2 --seed 0 --steps 5 -o memnet-training-threads2.h5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["memnett"], "did you mean 'memnet'"),
        (["memnet", "--modes", "learning"], "no mode is called 'learning'"),
        (["memnet", "--stages", "sauce"], "did you mean 'source'"),
        (["memnet", "-o", "missing/traces"], "does not exist"),
    ],
)
def test_what_cannot_be_swept_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_list_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["sweep", "memnet", "--threads", "1,zero"])
    assert "'zero' is not a whole number" in capsys.readouterr().err


@pytest.mark.capture
def test_a_real_sweep_over_threads_feeds_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow")
    words = [
        "sweep",
        "deepq",
        "--preset",
        "tiny",
        "--threads",
        "1,2",
        "--modes",
        "training",
        "--steps",
        "3",
        "-o",
        str(tmp_path / "t"),
    ]
    assert run([*words, "--json"]) == 0
    assert [found["status"] for found in json.loads(capsys.readouterr().out)] == [MADE, MADE]
    traces = measure_files(sorted((tmp_path / "t").glob("*.h5")), load)
    [scaling] = groups_by_threads(traces)
    assert (scaling.threads, scaling.repeats) == ((1, 2), (3, 3))
    assert run(words) == 0
    assert "0 captured, 2 there already, 0 failed" in capsys.readouterr().out
