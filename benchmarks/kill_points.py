"""Kills capture, sweep, convert, what-if, export and report at many points and looks at what stands under the final name afterwards.

    python -m benchmarks.kill_points [TRACE OTHER] [--steps 12] [--times 12] [--captures 24] [--sweeps 12] [--seed 0]

Two ways of killing, each with SIGKILL, SIGTERM and SIGINT in turn, over nothing and over an earlier result:

* At its own steps: the command runs in a fork, under a hook that sends the signal before a chosen system call or line of the code that puts
  results in place (`tests/killing.py`); half of the points are among the last 60, where results take their names. Folders are killed
  once more as on a file system that cannot exchange two names.
* At random times: the command runs as a user starts it, and gets the signal at a time drawn evenly over as long as it takes unharmed.

Expected: the final name holds the old result, byte for byte, or the new one, whole (equal to that of a run that was left alone; captures:
a trace that loads and is sound), or nothing where nothing was; after SIGTERM and SIGINT the exit status is 143 or 130 with one line that
says truly what stands; the same command then succeeds and clears what was left. A sweep keeps each trace that it had finished, its
manifest can be read, and no capture outlives it. Printed is a Markdown table; exit status 1 when anything was not as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fathom_trace.sweeps.sweep
from fathom_trace import placing
from fathom_trace.errors import ExportError, FathomError
from fathom_trace.report import pictures
from fathom_trace.store import load, save
from fathom_trace.summary import summarize
from fathom_trace.sweeps.collection import Capture
from tests.killing import Command, Ended, Killed, State, command, judge, left_beside, run, state, steps

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
EXPORTERS = ("table", "scale-sim", "chakra", "perfetto", "timeloop")
LAST = 60
PATIENCE_S = 600
TOO_LATE = Ended(0, "it had ended before")
PROGRAM = (sys.executable, "-m", "fathom_trace")


@dataclass
class Row:
    """What came of the kills of one command."""

    command: str
    over: str
    how: str
    killed: list[Killed] = field(default_factory=list)

    def add(self, killed: Killed) -> None:
        """One more; each of these takes a while, so it is told at once."""
        self.killed.append(killed)
        number = signal.Signals(killed.number).name
        print(f"{self.command}: {number} {killed.step}: {killed.stands} stands {killed.fault}".rstrip(), file=sys.stderr, flush=True)

    def markdown(self) -> str:
        """A row of the table."""
        stands = Counter(k.stands for k in self.killed)
        by = " ".join(f"{sum(k.number == number for k in self.killed)}" for number in SIGNALS)
        left = sum(bool(k.left) for k in self.killed)
        faults = sum(bool(k.fault) for k in self.killed)
        counts = f"{len(self.killed)} | {by} | {stands['old']} | {stands['new']} | {stands['nothing']} | {left} | {faults}"
        return f"| {self.command} | {self.over} | {self.how} | {counts} |"


HEADER = (
    "| command | over | killed | points | KILL TERM INT | old stands | new stands | nothing stands | left-overs | faults |\n"
    "|:---|:---|:---|---:|---:|---:|---:|---:|---:|---:|"
)


def commands() -> dict[str, tuple[str, Callable[[Path, Path], list[str]]]]:
    """By name: what each makes, and its words."""

    def export(exporter: str) -> Callable[[Path, Path], list[str]]:
        return lambda source, target: ["export", str(source), exporter, "-o", str(target)]

    found: dict[str, tuple[str, Callable[[Path, Path], list[str]]]] = {
        "convert to .pb": ("out.pb", lambda source, target: ["convert", str(source), str(target)]),
        "convert to .h5": ("out.h5", lambda source, target: ["convert", str(source), str(target)]),
        "whatif -o": ("out.h5", lambda source, target: ["whatif", str(source), "--speedup", "*=2", "-o", str(target)]),
    }
    found |= {f"export {exporter}": (exporter, export(exporter)) for exporter in EXPORTERS}
    return found | {"report": ("report", lambda source, target: ["report", str(source), "-o", str(target)])}


# --- at its own steps -------------------------------------------------------------------------------------------------------------


def at_steps(source: Path, other: Path, count: int, generator: random.Random, only: Sequence[str]) -> Iterator[Row]:
    """Each command, over nothing and over an earlier result, killed at `count` of its steps."""
    for name, (made, words) in commands().items():
        if only and not any(word in name for word in only):
            continue
        is_folder = "." not in made
        for over, exchanges in [(False, True), (True, True), *([(True, False)] if is_folder else [])]:
            with tempfile.TemporaryDirectory() as folder, _numbers_only(), _without_exchange(not exchanges):
                command = Command(words, source, other, Path(folder) / made, over)
                names = command.steps()
                late = len(names) - LAST
                points = generator.sample(range(late), count // 2) + generator.sample(range(late, len(names)), count - count // 2)
                row = Row(name, "an earlier one" if over else "nothing", f"at {len(names)} steps")
                row.how += "" if exchanges else ", no exchange"
                for i, at in enumerate(sorted(points)):
                    row.killed.append(command.kill(at, names[at], SIGNALS[i % 3]))
                yield row


@contextmanager
def _without_exchange(wanted: bool) -> Iterator[None]:
    """A system that cannot exchange names, as NFS cannot."""
    real = placing._renameat2
    if wanted:
        placing._renameat2 = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        placing._renameat2 = real


@contextmanager
def _numbers_only() -> Iterator[None]:
    """A report without figures: what draws them has threads, which a fork does not have."""

    def refuse() -> None:
        raise ExportError("no figures in a fork")

    real, pictures.engine = pictures.engine, refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        pictures.engine = real


# --- at random times --------------------------------------------------------------------------------------------------------------


@dataclass
class Program:
    """A command as a user starts it: its words, what it makes, and how to tell that a new result is whole (its digest, or a test)."""

    name: str
    words: list[str]
    target: Path
    is_whole: Callable[[Path], bool] | None = None
    took_s: float = 0.0
    new: State = None

    def run(self, killed_after_s: float | None = None, number: int = signal.SIGKILL) -> Ended:
        """Run it in a process group of its own; a terminal's SIGINT goes to the whole group, other signals to the process."""
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [*PROGRAM, *self.words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
                preexec_fn=_heed_signals, env={**os.environ, "TMPDIR": str(self.target.parent)},
            )  # fmt: skip
            if killed_after_s is not None:
                try:
                    process.wait(killed_after_s)
                    return TOO_LATE
                except subprocess.TimeoutExpired:
                    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            status = process.wait(PATIENCE_S)
            said.seek(0)
            return Ended(status, said.read())

    def measure(self) -> None:
        """Run it unharmed: how long it takes, and what it makes."""
        begin = time.monotonic()
        ended = self.run()
        self.took_s = time.monotonic() - begin
        assert ended.status == 0, ended
        self.new = state(self.target)

    def kill(self, after_s: float, number: int, old: State) -> Killed:
        """Kill it, look at what stands, and give the same command again."""
        ended = self.run(after_s, number)
        if ended == TOO_LATE:  # the machine has become faster
            return Killed("", number, "too late", 0, "")
        found, left = state(self.target), left_beside(self.target)
        new = found if found is not None and found != old and self.is_whole and self.is_whole(self.target) else self.new
        fault = "" if is_pythons_own(ended) and found == old else judge(ended, number, found, old, new, self.target)
        self.words += [] if "--force" in self.words else ["--force"]
        again = self.run()
        if not fault and (again.status or not (self.is_whole(self.target) if self.is_whole else state(self.target) == self.new)):
            fault = f"the same command afterwards failed: {again}"
        if not fault and left_beside(self.target):
            fault = f"the same command afterwards left {left_beside(self.target)}"
        stands = "nothing" if found is None else "old" if found == old else "new"
        return Killed(f"after {after_s:.2f} of {self.took_s:.2f} s", number, stands, len(left), fault)


def _heed_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_pythons_own(ended: Ended) -> bool:
    """True when the interpreter was interrupted before the first line of the program ran, or while its package's first file did."""
    frames = [line for line in ended.said.splitlines() if line.lstrip().startswith("File ")]
    ours = [line for line in frames if "/fathom_trace/" in line and "/fathom_trace/__init__.py" not in line]
    return "KeyboardInterrupt" in ended.said and not ours


def at_times(program: Program, count: int, generator: random.Random, make_old: Callable[[], None]) -> Iterator[Row]:
    """A program killed `count` times, half of them over an earlier result."""
    program.measure()
    for over in (False, True):
        row = Row(program.name, "an earlier one" if over else "nothing", f"at random times of {program.took_s:.1f} s")
        first = [word for word in program.words if word != "--force"]
        while len(row.killed) < count // 2:
            _remove(program.target)
            program.words = [*first, *(["--force"] if over else [])]
            if over:
                make_old()
            number = SIGNALS[len(row.killed) % 3]
            killed = program.kill(generator.uniform(0, program.took_s), number, state(program.target))
            if killed.stands != "too late":
                row.add(killed)
        yield row
    _remove(program.target)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def is_sound(path: Path) -> bool:
    """True when a captured trace loads and is complete and consistent."""
    try:
        return bool(summarize(load(path), path).checks.is_sound)
    except FathomError:
        return False


def random_times(source: Path, other: Path, folder: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """Conversions, exports, reports and captures."""
    generator = random.Random(f"times {arguments.seed}")
    for name, (made, words) in commands().items():
        if arguments.times and (not arguments.only or any(word in name for word in arguments.only)):
            target = folder / made
            old = Program(name, words(other, target), target)
            yield from at_times(Program(name, words(source, target), target), arguments.times, generator, lambda old=old: _made(old))
    if arguments.captures and (not arguments.only or "capture" in arguments.only):
        target = folder / "captured.h5"
        words = ["capture", "autoenc", "--mode", "inference", "--preset", "tiny", "--steps", "1", "-o", str(target)]
        capture = Program("capture autoenc (tiny)", words, target, is_sound)
        yield from at_times(capture, arguments.captures, generator, lambda: _copied(source, target))


def _made(program: Program) -> None:
    ended = program.run()
    assert ended.status == 0, ended


def _copied(source: Path, target: Path) -> None:
    shutil.copy2(source, target)


# --- sweeps -----------------------------------------------------------------------------------------------------------------------


def _sweep_words(folder: Path) -> list[str]:
    return ["sweep", "autoenc", "--preset", "tiny", "--modes", "training,inference", "--steps", "1", "-o", str(folder)]


def sweeps_at_steps(source: Path, count: int, generator: random.Random) -> Iterator[Row]:
    """A sweep whose two captures are copies of a trace, killed at its steps, over nothing and over the first of its traces."""
    trace = load(source)

    def copied(workload: str, mode: str, file: Path, flags: Sequence[str], _: Sequence[int] = ()) -> Capture:
        words = ["fathom-trace", "capture", workload, "--mode", mode, *flags, "-o", str(file)]
        made = trace.replace(provenance={**trace.provenance, "mode": mode, "command_line": " ".join(words)})
        save(made, file, force="--force" in flags)
        return Capture(workload, mode, str(file), " ".join(words), 1, 1, "")

    real, fathom_trace.sweeps.sweep.capture_one = fathom_trace.sweeps.sweep.capture_one, copied
    with tempfile.TemporaryDirectory() as base:
        folder, kept, tempfile.tempdir = Path(base) / "traces", Path(base) / "kept", base
        try:
            work = partial(command, _sweep_words(folder))
            for over in (False, True):
                _remove(folder)
                if over:
                    assert run(work).status == 0
                    for name in ("autoenc-tiny-inference.h5", "captures.json"):
                        (folder / name).unlink()
                    folder.rename(kept)
                row = Row("sweep (captures copied)", "its first trace" if over else "nothing", "")

                def prepare(over: bool = over) -> None:
                    _remove(folder)
                    if over:
                        shutil.copytree(kept, folder)

                prepare()
                names = steps(work)
                row.how = f"at {len(names)} steps"
                for i, at in enumerate(sorted(generator.sample(range(len(names)), count))):
                    prepare()
                    before, number = _traces(folder), SIGNALS[i % 3]
                    ended = run(work, at, number)
                    fault = _lost(before, folder) or _ended_oddly(ended, number)
                    row.killed.append(_again(folder, partial(run, work), before, names[at], number, fault))
                yield row
        finally:
            fathom_trace.sweeps.sweep.capture_one, tempfile.tempdir = real, None


def _again(folder: Path, give: Callable[[], Ended], before: dict[str, State], step: str, number: int, fault: str) -> Killed:
    """What stands in the folder of a killed sweep, and what comes of giving it again, to its end."""
    after, left = _traces(folder), _partials(folder)
    stands = "new" if len(after) > len(before) else "old" if after else "nothing"
    again = give()
    if not fault and (again.status or len(_traces(folder)) != 2):
        fault = f"the same command afterwards failed: {again}"
    fault = fault or _lost(after, folder)
    rest = _partials(folder)
    fault = fault or (f"the same command afterwards left {rest}" if rest else "")
    return Killed(step, number, stands, len(left), fault)


def _partials(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix == placing.PARTIAL) if folder.is_dir() else []


def sweeps(count: int, generator: random.Random) -> Iterator[Row]:
    """A sweep of two captures, killed and given again until it is through, `count` times in all."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "traces"
        program = Program("sweep of two captures", _sweep_words(folder), folder)
        program.measure()
        row = Row(program.name, "what was done", f"at random times of {program.took_s:.1f} s")
        _remove(folder)
        while len(row.killed) < count:
            i = len(row.killed)
            number = SIGNALS[i % 3]
            before = _traces(folder)
            after_s = generator.uniform(0, program.took_s)
            step = f"after {after_s:.2f} of {program.took_s:.2f} s"
            ended = program.run(after_s, number)
            if ended == TOO_LATE:
                _remove(folder)
                continue
            fault = _orphans(folder) or _lost(before, folder) or _ended_oddly(ended, number)
            if i % 3 == 2 or len(_traces(folder)) == 2:  # give it again, to its end, then begin anew
                row.add(_again(folder, program.run, before, step, number, fault))
                _remove(folder)
            else:
                after = _traces(folder)
                stands = "new" if len(after) > len(before) else "old" if after else "nothing"
                row.add(Killed(step, number, stands, len(_partials(folder)), fault))
        yield row


def _traces(folder: Path) -> dict[str, State]:
    return {p.name: state(p) for p in folder.glob("*.h5")} if folder.is_dir() else {}


def _lost(before: dict[str, State], folder: Path) -> str:
    """What is wrong with the folder: a trace that is gone or changed, one that is not whole, a manifest that cannot be read."""
    after = _traces(folder)
    for name, digest in before.items():
        if after.get(name) != digest:
            return f"{name} is {'changed' if name in after else 'gone'}"
    for name in after:
        if not is_sound(folder / name):
            return f"{name} is not a whole trace"
    manifest = folder / "captures.json"
    if manifest.exists():
        try:
            json.loads(manifest.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"the manifest is not JSON: {error}"
    return ""


def _orphans(folder: Path) -> str:
    """What still runs for a sweep that has ended, after a while."""
    found: list[str] = []
    for _ in range(100):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line and process.name != str(os.getpid()) and "kill_points" not in line:
                found.append(f"{process.name}: {line}")
        if not found:
            return ""
        time.sleep(0.1)
    return f"outlived by {found}"


def _ended_oddly(ended: Ended, number: int) -> str:
    if number == signal.SIGKILL or is_pythons_own(ended) or (ended.status, ended.said) in ((0, ""), (-number, "")):
        return ""
    lines = [line for line in ended.said.splitlines() if "Traceback" in line or "Error" in line or "ignored" in line]
    is_told = ended.said.splitlines()[-1:] and ended.said.splitlines()[-1].startswith("fathom-trace: ")
    return "" if ended.status in (128 + number, -number) and is_told and not lines else f"ended oddly: {ended}"


def main() -> int:
    """Kill, look, print; 1 when anything was not as expected."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill_points", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="*", type=Path, help="two traces; without, tiny captures are made")
    parser.add_argument("--steps", type=int, default=12, help="kills at steps, of each command and what it is over (0: none)")
    parser.add_argument("--times", type=int, default=12, help="kills at random times, of each command")
    parser.add_argument("--captures", type=int, default=24, help="kills of a capture at random times")
    parser.add_argument("--sweeps", type=int, default=12, help="kills of a sweep at random times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="commands whose name has one of these words")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, other = [path.resolve() for path in arguments.traces] or _captured(folder)
        (folder / "killed").mkdir()
        print(HEADER)
        for row in _rows(source, other, folder / "killed", arguments):
            rows.append(row)
            print(row.markdown(), flush=True)
    killed = [k for row in rows for k in row.killed]
    print(Row("all", "", "", killed).markdown())
    for row in rows:
        for k in row.killed:
            if k.fault:
                print(f"\n{row.command} over {row.over}, signal {k.number} {k.step}: {k.fault}")
    return 1 if any(k.fault for k in killed) else 0


def _rows(source: Path, other: Path, folder: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    if arguments.steps and (not arguments.only or "sweep" in arguments.only):
        yield from sweeps_at_steps(source, arguments.steps, random.Random(f"steps of sweeps {arguments.seed}"))
    if arguments.steps:
        yield from at_steps(source, other, arguments.steps, random.Random(f"steps {arguments.seed}"), arguments.only)
    yield from random_times(source, other, folder, arguments)
    if arguments.sweeps and (not arguments.only or "sweep" in arguments.only):
        yield from sweeps(arguments.sweeps, random.Random(f"sweeps {arguments.seed}"))


def _captured(folder: Path) -> list[Path]:
    """Two tiny traces."""
    made = []
    for mode in ("training", "inference"):
        made.append(folder / f"{mode}.h5")
        words = ["capture", "autoenc", "--mode", mode, "--preset", "tiny", "-o", str(made[-1])]
        subprocess.run([*PROGRAM, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return made


if __name__ == "__main__":
    sys.exit(main())
