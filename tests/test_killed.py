"""Does a command that is killed, at whatever step, leave the old result or the new one, whole, say which, and let the next one clear up?

`benchmarks/kill_points.py` does the same at many more points, with real captures, and at random times.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import small
from killing import Command, Ended, judge, run, state, steps

from fathom_trace import placing
from fathom_trace.errors import ExportError
from fathom_trace.report import pictures
from fathom_trace.store import save
from fathom_trace.sweeps.collection import Capture, write_manifest

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


def _export(exporter: str) -> Callable[[Path, Path], list[str]]:
    return lambda source, target: ["export", str(source), exporter, "-o", str(target)]


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "out.pb": lambda source, target: ["convert", str(source), str(target)],
    "out.h5": lambda source, target: ["whatif", str(source), "--speedup", "*=2", "-o", str(target)],
    "table": _export("table"),
    "perfetto": _export("perfetto"),
    "report": lambda source, target: ["report", str(source), "-o", str(target)],
}


def _refuse(*_: object) -> None:
    raise ExportError("not here")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], Command]:
    """A command by the name of what it makes, over nothing or over an earlier result."""
    monkeypatch.setattr(pictures, "engine", _refuse)
    for trace in (small.dense(), small.diamond()):
        save(trace, tmp_path / f"{trace.provenance['workload']}.h5")
    return lambda name, over: Command(COMMANDS[name], tmp_path / "dense.h5", tmp_path / "diamond.h5", tmp_path / name, over)


@pytest.mark.parametrize("name", COMMANDS)
def test_at_every_step_the_old_or_the_new_stands_whole(name: str, make: Callable[[str, bool], Command]) -> None:
    """What a SIGKILL leaves is what is there at that moment, so one run is looked at before each of its steps."""
    assert make(name, True).watch() == []


@pytest.mark.parametrize("name", ["out.pb", "table"])
def test_at_every_step_nothing_or_the_new_stands(name: str, make: Callable[[str, bool], Command]) -> None:
    assert make(name, False).watch() == []


def test_where_names_cannot_be_exchanged_the_old_folder_is_put_back(
    make: Callable[[str, bool], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_renameat2", lambda: None)
    command = make("table", True)
    assert command.watch() == []
    names = command.steps()
    window = [at for at, name in enumerate(names) if name in ("before rename", "after rename")]
    killed = [command.kill(at, names[at], KILL) for at in window]
    assert [k.fault for k in killed] == [""] * len(killed)
    assert {k.stands for k in killed} == {"old", "new"}


@pytest.mark.parametrize(("name", "over", "number"), [
    ("out.pb", False, KILL), ("out.pb", True, INT), ("out.h5", True, TERM), ("table", False, TERM), ("table", True, KILL),
    ("table", True, INT),
])  # fmt: skip
def test_a_killed_command_tells_the_truth_and_can_be_given_again(
    name: str, over: bool, number: int, make: Callable[[str, bool], Command]
) -> None:
    command = make(name, over)
    names = command.steps()
    late = len(names) - 60
    generator = random.Random(f"{name} {over} {number}")
    points = sorted({*generator.sample(range(late), 1), *generator.sample(range(late, len(names)), 3)})
    killed = [command.kill(at, names[at], number) for at in points]
    assert [f"{k.step}: {k.fault}" for k in killed if k.fault] == []


def test_a_manifest_is_whole_at_every_step(tmp_path: Path) -> None:
    def work(count: int) -> int:
        write_manifest(tmp_path, [Capture("vgg", "training", f"{i}.h5", "fathom-trace capture vgg", 1, 1, "") for i in range(count)])
        return 0

    target = tmp_path / "captures.json"
    work(2)
    new = state(target)
    work(1)
    old = state(target)
    names = steps(lambda: work(2))
    last = next(at for at, name in enumerate(names) if name == "before fsync")
    for at in (2, last, last + 1, len(names) - 1):
        work(1)
        ended = run(lambda: work(2), at, KILL)
        assert judge(ended, KILL, state(target), old, new, target) == ""
    work(1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["captures.json"]


def test_the_judge_is_not_blind() -> None:
    """It must find each kind of fault that the other tests say is absent."""
    target = Path("out")
    assert "neither" in judge(Ended(-9, ""), KILL, "half", "old", "new", target)
    assert "neither" in judge(Ended(-9, ""), KILL, None, "old", "new", target)
    assert "ended oddly" in judge(Ended(-9, "words"), KILL, "old", "old", "new", target)
    assert "ended oddly" in judge(Ended(1, "Traceback\n  line\nKeyboardInterrupt\n"), INT, "old", "old", "new", target)
    assert "all was well, and it was not" in judge(Ended(0, ""), TERM, "old", "old", "new", target)
    false = Ended(130, "fathom-trace: interrupted; nothing was written under the final name\n")
    assert "but out is the new one" in judge(false, INT, "new", "old", "new", target)
    assert judge(false, INT, "old", "old", "new", target) == ""


def test_the_watch_is_not_blind(make: Callable[[str, bool], Command], monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is copied into its place is half there for some steps, and they are found."""

    def copied(partial: Path, target: Path, force: bool) -> None:
        content = partial.read_bytes()
        with open(target, "wb") as file:
            file.write(content)
        partial.unlink()

    from fathom_trace.store import files

    command = make("out.pb", True)
    monkeypatch.setattr(files, "place_file", copied)
    assert command.watch()
