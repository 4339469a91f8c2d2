"""Kills a command at each of its own steps: the windows of microseconds that a signal sent at random hardly ever meets.

A command runs in a fork of this process, which has imported everything already, under a hook that counts its steps: each line of the
modules that put results in place, and, before and after, each call of the system that opens, writes, flushes, renames or removes.
`steps` lists them; `run` runs the command again and sends it a signal at one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fathom_trace import cli, destination, ending, placing
from fathom_trace.__main__ import main
from fathom_trace.store import files

LINES = tuple(str(module.__file__) for module in (destination, ending, files, placing))
CALLS = {
    "chmod", "close", "dup", "flock", "fsync", "flush", "link", "mkdir", "open", "rename", "replace", "rmdir", "tofile", "unlink", "write",
    "writelines",
}  # fmt: skip
SYSTEM = ("posix", "fcntl", "_io", "io", None)
HANGS_S = 120


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (minus the signal's number where that ended it), and what it said on stderr."""

    status: int
    said: str


class Hook:
    """Counts steps from 0 and sends this process `number` at the step `at`; without `at` it notes their names."""

    def __init__(self, at: int | None = None, number: int = signal.SIGKILL) -> None:
        self.at, self.number = at, number
        self.names: list[str] = []
        self.count = 0

    def step(self, name: str) -> None:
        """One step."""
        if self.at is None:
            self.names.append(name)
        elif self.count == self.at:
            self.count += 1
            os.kill(os.getpid(), self.number)
        self.count += 1

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        """Of `sys.setprofile`."""
        if event in ("c_call", "c_return") and getattr(function, "__name__", "") in CALLS and frame.f_code.co_filename != __file__:
            owner = getattr(function, "__self__", None)
            module = function.__module__ or type(owner).__module__
            if module in SYSTEM and not isinstance(owner, io.BytesIO | io.StringIO):
                self.step(f"{'before' if event == 'c_call' else 'after'} {function.__name__}")

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Of `sys.settrace`."""
        if frame.f_code.co_filename not in LINES:
            return None
        if event == "line":
            self.step(f"{Path(frame.f_code.co_filename).stem} line {frame.f_lineno}")
        return self.trace


def command(words: Sequence[str]) -> int:
    """`fathom-trace WORDS` in this process."""
    sys.argv = ["fathom-trace", *words]
    return main()


def steps(work: Callable[[], int]) -> list[str]:
    """The names of the steps of `work`, which is run, to its end, in a fork."""
    with tempfile.TemporaryFile("w+") as out:
        hook = Hook()

        def noted() -> int:
            status = _hooked(work, hook)
            out.write("\n".join(hook.names))
            out.flush()
            return status

        ended = _in_fork(noted)
        assert ended.status == 0, ended
        out.seek(0)
        return out.read().splitlines()


def run(work: Callable[[], int], at: int | None = None, number: int = signal.SIGKILL) -> Ended:
    """Run `work` in a fork and send it a signal at the step `at`; to its end without."""
    return _in_fork(work if at is None else lambda: _hooked(work, Hook(at, number)))


def _hooked(work: Callable[[], int], hook: Hook) -> int:
    sys.settrace(hook.trace)
    sys.setprofile(hook.profile)
    try:
        return work()
    finally:
        sys.setprofile(None)
        sys.settrace(None)


def _in_fork(work: Callable[[], int]) -> Ended:
    with tempfile.TemporaryFile("w+") as said:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _become(said.fileno(), work)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), said.read())


def _become(said: int, work: Callable[[], int]) -> None:
    """Run `work` and end this process as an interpreter that runs nothing else would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(HANGS_S)
    os.dup2(said, 2)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    status = 1
    try:
        status = work()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


State = str | None


def state(path: Path) -> State:
    """A digest of a file or of a folder with all that is in it; None when there is nothing."""
    if not os.path.lexists(path):
        return None
    digest = hashlib.sha256()
    for part in sorted([path, *path.rglob("*")]) if path.is_dir() else [path]:
        digest.update(f"{part.relative_to(path)} {part.is_dir()}\n".encode())
        digest.update(b"" if part.is_dir() else part.read_bytes())
    return digest.hexdigest()


def left_beside(path: Path) -> list[str]:
    """The names of unfinished results beside `path`."""
    return sorted(p.name for p in path.parent.iterdir() if p.suffix in (placing.PARTIAL, placing.OLD))


SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
NOTHING, WRITTEN = "nothing was written under the final name", "had been written, whole"


def judge(ended: Ended, number: int, found: State, old: State, new: State, target: Path) -> str:
    """What is wrong with how a killed command ended and what stands under the final name; empty when nothing is."""
    if found not in (old, new):
        return f"{target.name} is neither the old nor the new one"
    if number == signal.SIGKILL:
        return "" if ended == Ended(-signal.SIGKILL, "") else f"ended oddly: {ended}"
    if (ended.status, ended.said) in ((-number, ""), (0, "")):  # before it could say anything, or when all was done
        return "" if ended.status or found == new else "it said that all was well, and it was not"
    what = WRITTEN if found == new else NOTHING
    expected = f"fathom-trace: {SAID[signal.Signals(number)]}; "
    # CPython itself ends by SIGINT, status -2, after an interrupt that was caught, when it passed through `exec` (every dataclass does)
    if ended.status not in (128 + number, -number) or not ended.said.startswith(expected) or ended.said.count("\n") != 1:
        return f"ended oddly: {ended}"
    return (
        ""
        if what in ended.said
        else f"it said '{ended.said.strip()}', but {target.name} is the {'new' if found == new else 'old'} one"
    )


# --- commands ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """What came of one kill: at which step, what stood under the final name, what was left beside it, and what is wrong (or "")."""

    step: str
    number: int
    stands: str
    left: int
    fault: str


class Command:
    """A command that makes `target`, over nothing or over what the same command made earlier of another trace.

    `words(source, target)` is its command line without `--force`.
    """

    def __init__(self, words: Callable[[Path, Path], Sequence[str]], source: Path, other: Path, target: Path, over_old: bool) -> None:
        self.target, self.over_old = target, over_old
        self._words, self._source = words, source
        self._kept = target.with_name(f"kept-{target.name}")
        self.old: State = None
        with contextlib.redirect_stdout(io.StringIO()):
            cli.run([*words(source, target), "--force"])  # so that forks import nothing
        self._clear()
        if over_old:
            self._make(words(other, target))
            self.old = state(target)
            target.rename(self._kept)
        self._make(self.words)
        self.new = state(target)
        self._clear()
        self._make(self.again)
        self.new_again = state(target)
        assert self.old != self.new, "old and new can be told apart"

    @property
    def words(self) -> list[str]:
        """The command line."""
        return [*self._words(self._source, self.target), *(["--force"] if self.over_old else [])]

    @property
    def again(self) -> list[str]:
        """The command line for another time."""
        return [*self._words(self._source, self.target), "--force"]

    def work(self) -> int:
        """Run it here."""
        return command(self.words)

    def prepare(self) -> None:
        """As before it runs: the old result, or nothing."""
        self._clear()
        if self.over_old:
            (shutil.copytree if self._kept.is_dir() else shutil.copy2)(self._kept, self.target)

    def steps(self) -> list[str]:
        """The names of its steps."""
        self.prepare()
        return steps(self.work)

    def kill(self, at: int, name: str, number: int) -> Killed:
        """Kill it at a step, look at what stands, then run it again."""
        self.prepare()
        ended = run(self.work, at, number)
        left = left_beside(self.target)
        found = state(self.target)
        if found is None and self.old and placing.restore(self.target):  # as every command that reads or replaces it does
            found = state(self.target)
        fault = judge(ended, number, found, self.old, self.new, self.target)
        again = run(lambda: command(self.again))
        if not fault and (again.status or state(self.target) != self.new_again):
            fault = f"the same command afterwards failed: {again}"
        if not fault and left_beside(self.target):
            fault = f"the same command afterwards left {left_beside(self.target)}"
        stands = "nothing" if found is None else "old" if found == self.old else "new"
        return Killed(name, number, stands, len(left), fault)

    def watch(self) -> list[str]:
        """Run it once and look at each step at what a kill would leave; the names of the steps at which that is not whole."""
        self.prepare()
        wrong: list[str] = []

        class Watch(Hook):
            def step(hook, name: str) -> None:  # noqa: N805
                hook.names.append(name)
                sys.setprofile(None)
                if not self._is_whole():
                    wrong.append(name)
                sys.setprofile(hook.profile)

        with tempfile.TemporaryFile("w+") as out:
            hook = Watch()

            def watched() -> int:
                status = _hooked(self.work, hook)
                print(len(hook.names), *wrong, sep="\n", file=out, flush=True)
                return status

            ended = _in_fork(watched)
            assert ended.status == 0, ended
            assert state(self.target) == self.new
            out.seek(0)
            count, *names = out.read().splitlines()
            assert int(count) > 30, "the hook counts"
            return names

    def _is_whole(self) -> bool:
        found = state(self.target)
        if found is None and self.old:  # moved aside, from where the next command puts it back
            aside = [
                p for p in self.target.parent.glob(f".{self.target.name}.*{placing.OLD}") if p.with_suffix(placing.PARTIAL).is_dir()
            ]
            return len(aside) == 1 and state(aside[0]) == self.old
        return found in (self.old, self.new)

    def _make(self, words: Sequence[str]) -> None:
        made = run(lambda: command(words))
        assert made.status == 0, made

    def _clear(self) -> None:
        for path in [self.target, *(self.target.with_name(name) for name in left_beside(self.target))]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
