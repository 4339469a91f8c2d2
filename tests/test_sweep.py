"""Does a sweep capture every combination once, go on where it ended, leave other traces alone and keep the machine to itself?"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from profiles import timed

import fathom_trace.sweeps.sweep
from fathom_trace.cli import run
from fathom_trace.errors import CaptureError, OptionError
from fathom_trace.report.captured import measure_files
from fathom_trace.report.parallelism import groups_by_threads
from fathom_trace.store import load, save
from fathom_trace.sweeps.alone import only_one
from fathom_trace.sweeps.collection import MANIFEST, Capture
from fathom_trace.sweeps.engine import DONE as ENDED
from fathom_trace.sweeps.engine import LOST, RUNNING, Attempt, Task, Update
from fathom_trace.sweeps.sweep import DONE, FAILED, MADE, Point, points, sweep

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

    monkeypatch.setattr(fathom_trace.sweeps.sweep, "capture_one", fake)
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


class Elsewhere:
    """An executor that is far away: its tasks are never run here, and end as `ends` says by file name."""

    is_remote = True

    def __init__(self, ends: Mapping[str, Update], interrupted: str = "") -> None:
        self.ends, self.interrupted, self.asked = ends, interrupted, list[Task]()

    def run(self, tasks: Sequence[Task]) -> Generator[Update, None, None]:
        self.asked += tasks
        for task in tasks:
            lost, going = Attempt("one", "tcp://1", "1", "2", LOST, "its worker was lost"), Attempt("two", "tcp://2", "3", "", RUNNING)
            yield Update(task, (lost, going), "runs on two (tcp://2)")
            if task.name == self.interrupted:
                raise KeyboardInterrupt
            yield replace(self.ends[task.name], task=task, attempts=(lost, replace(going, ended="4", outcome=ENDED)), is_over=True)


def arrived(folder: Path, *words: str, workload: str = "vgg", **capture: object) -> Update:
    """The end of a task whose worker sends a trace that this command line made, and its own account of it."""
    save(timed([{"MatMul": 7}], workload=workload, mode="training", command_line=shlex.join(words)), folder / "sent.h5", force=True)
    said = asdict(Capture("?", "?", "/etc/passwd", "fathom-trace capture", 5, 6, "", size_bytes=7)) | capture
    return Update(Task("", print), (), value={"capture": said, "trace": (folder / "sent.h5").read_bytes()})


def command_of(workload: str) -> tuple[str, ...]:
    point = Point(workload, "training")
    return ("fathom-trace", "capture", workload, "--mode", "training", *point.flags, *FLAGS, "-o", point.name, "--json")


def test_what_comes_from_elsewhere_is_put_in_its_place_when_it_is_what_was_asked_for(tmp_path: Path) -> None:
    """vgg arrives whole; deepq as another's trace, memnet damaged, speech not at all, alexnet fails there."""
    out = tmp_path / "traces"
    out.mkdir()
    whole = arrived(tmp_path, *command_of("vgg"))
    sent: bytes = whole.value["trace"]
    ends = {
        "vgg-training.h5": whole,
        "deepq-training.h5": arrived(tmp_path, *command_of("vgg")),
        "memnet-training.h5": replace(whole, value=whole.value | {"trace": sent[: len(sent) // 2]}),
        "speech-training.h5": replace(whole, value=whole.value | {"trace": b""}),
        "alexnet-training.h5": replace(whole, value=None, problem="no memory"),
    }
    wanted, told = points([name.partition("-")[0] for name in ends], ["training"]), list[str]()
    elsewhere = Elsewhere(ends)
    outcomes = {o.point.workload: o for o in sweep(wanted, out, FLAGS, False, told.append, elsewhere)}
    assert {w: o.status for w, o in outcomes.items()} == {w: MADE if w == "vgg" else FAILED for w in outcomes}
    assert outcomes["deepq"].problem.startswith("its worker sent the trace of another command (capture vgg --mode training")
    assert "arrived.h5" in outcomes["memnet"].problem
    assert outcomes["speech"].problem == "its worker sent no trace"
    assert outcomes["alexnet"].problem == "no memory"
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, "vgg-training.h5"]
    assert (out / "vgg-training.h5").read_bytes() == sent
    entries = {e["workload"]: e for e in json.loads((out / MANIFEST).read_text(encoding="utf-8"))}
    assert {w: e["file"] for w, e in entries.items()} == {w: str(out / f"{w}-training.h5") for w in outcomes}
    assert (entries["vgg"]["wall_ns"], entries["vgg"]["peak_bytes"], entries["vgg"]["size_bytes"]) == (5, 6, 7)
    assert [(a["host"], a["outcome"]) for a in entries["vgg"]["attempts"]] == [("one", LOST), ("two", ENDED)]
    assert "1/5 vgg-training: captured" in told
    assert [task.arguments[2] for task in elsewhere.asked] == list(ends)

    again = Elsewhere(dict.fromkeys(ends, replace(whole, value=None, problem="no memory")))
    sweep(wanted, out, FLAGS, False, told.append, again)
    assert [task.name for task in again.asked] == [name for name in ends if not name.startswith("vgg")]
    entries = {e["workload"]: e for e in json.loads((out / MANIFEST).read_text(encoding="utf-8"))}
    assert [len(entries[w]["attempts"]) for w in ("vgg", "deepq", "alexnet")] == [2, 4, 4], "earlier attempts stay"


def test_an_interrupted_sweep_says_so_in_the_manifest(tmp_path: Path) -> None:
    ends = {"vgg-training.h5": arrived(tmp_path, *command_of("vgg"))}
    wanted = points(["vgg", "deepq", "memnet"], ["training"])
    with pytest.raises(KeyboardInterrupt):
        sweep(wanted, tmp_path, FLAGS, False, lambda _: None, Elsewhere(ends, interrupted="deepq-training.h5"))
    vgg, deepq = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    assert (vgg["error"], deepq["error"]) == ("", "the sweep ended before it")
    sweep(wanted[:2], tmp_path, FLAGS, False, lambda _: None, Elsewhere({"deepq-training.h5": Update(wanted, (), problem="x")}))  # type: ignore[arg-type]
    deepq = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))[1]
    assert [(a["outcome"], a["problem"]) for a in deepq["attempts"]][1] == (LOST, "the sweep ended before it")
    assert len(deepq["attempts"]) == 4


@pytest.mark.parametrize("text", ["", "{", '[1, {}, {"file": 3}]', "{}", "[" * 100_000])
def test_a_manifest_that_says_nothing_is_begun_anew(tmp_path: Path, captures: list[list[str]], text: str) -> None:
    (tmp_path / MANIFEST).write_text(text, encoding="utf-8")
    sweep(points(["vgg"], ["training"]), tmp_path, FLAGS, False, lambda _: None)
    [entry] = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    assert [a["outcome"] for a in entry["attempts"]] == [ENDED]


def test_two_captures_of_one_name_are_refused(tmp_path: Path, captures: list[list[str]]) -> None:
    with pytest.raises(OptionError, match="two captures of the sweep would be written to vgg-training"):
        sweep([Point("vgg", "training", steps=1), Point("vgg", "training", steps=2)], tmp_path, [], False, print)
    assert captures == []


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    """A second process is refused while the first holds the lock, and not afterwards."""
    code = (
        "from pathlib import Path\nfrom fathom_trace.sweeps.alone import only_one\n"
        f"with only_one(Path({str(tmp_path)!r})): print('alone')"
    )

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
