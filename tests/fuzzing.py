"""Feeds damaged and hostile files to a reader, many a second, and tells what it did: a value, one clear error, or a finding.

A `Target` is a reader with its seeds (small valid inputs) and a mutator. `fuzz` reads mutated inputs in a process of its own, so that a
crash of native code, too, is a finding; the input is kept. Findings are: an exception that is no `FathomError`; a message that is not one
printable line of a sensible length; more than `MOST_SECONDS` of CPU time, or more than `MOST_BYTES` of memory, for an input of some kB;
a warning; anything printed; anything done outside the input's own folder, or with the network, another process or code.

An input that makes a reader say something new joins the seeds: a cheap guide to what lies deeper. Everything follows from one seed number.
`benchmarks/fuzz.py` runs it at length, `test_fuzz.py` in short.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fathom_trace.errors import FathomError
from fathom_trace.exporter import CheckReport

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS = 2.0
MOST_BYTES = 300 << 20
MOST_CHARACTERS = 2_500
MOST_NEW_SEEDS = 150
_ADDRESS_SPACE_BYTES = 6 << 30
_SILENCE_SECONDS = 90.0
"""Wall time without a finished input after which a process is taken for hung in native code."""

_DEEDS = (
    "socket.", "subprocess.", "shutil.", "ctypes.dlopen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.remove", "os.rename",
    "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
)  # fmt: skip
"""Events of the interpreter that no reader may cause."""

Files = dict[str, bytes]
"""An input: content by name in the input's folder."""


@dataclass(frozen=True)
class Target:
    """A reader: `read` is given a folder with the input; `mutate` returns the files that it changed, of one seed (others may help)."""

    name: str
    seeds: Callable[[], list[Files]]
    mutate: Callable[[Random, Files, Sequence[Files]], Files]
    read: Callable[[Path], object]


@dataclass
class Tally:
    """What became of some inputs. `refusals` counts messages without their numbers and names; `findings` has one input of each kind."""

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    processor_seconds: float = 0.0
    slowest_seconds: float = 0.0
    peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a file holds it."""
        return {**self.__dict__, "refusals": dict(self.refusals), "findings": dict(self.findings)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Tally:
        """What `to_json` made."""
        return cls(**{**content, "refusals": Counter(content["refusals"]), "findings": Counter(content["findings"])})

    def share_refused_by(self, pattern: str) -> float:
        """The share of inputs that were refused with a message that `pattern` is found in."""
        return sum(count for message, count in self.refusals.items() if re.search(pattern, message)) / max(1, self.inputs)


def fuzz(target: Target, count: int, seed: int, folder: Path, first: int = 0, most_seconds: float = float("inf")) -> Tally:
    """Read `count` mutated inputs, from number `first` on, in processes of their own. Inputs of findings are left in `folder`/findings.

    `most_seconds` of wall time end it early; the tally says how many were read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seeds = target.seeds()
    state = folder / "tally.json"
    state.unlink(missing_ok=True)
    tally = Tally(target.name)
    deadline = time.monotonic() + most_seconds
    at, passed_over = first, 0
    while at < first + count and time.monotonic() < deadline:
        status = _run_apart(lambda begin=at: _work(target, seeds, begin, first + count, seed, folder, deadline), folder)
        if state.is_file():
            tally = Tally.from_json(json.loads(state.read_text()))
        told = (folder / "progress").read_text().split() if (folder / "progress").is_file() else []
        number, which, phase = (int(told[0]), told[1], told[2]) if len(told) == 3 else (at, "0", "seed")
        at = max(at, number)
        if status == 0:
            break
        if status > 0:  # ended to be begun anew: after a finding of memory
            continue
        if phase == "read":
            kind = f"native: {_signal_name(-status)}"
            tally.findings[kind] += 1
            _keep(folder, kind, at, _content(folder / "input" / which))
        elif phase == "change":  # the mutator crashed: HDF5, of which it asks odd things
            passed_over += 1
        else:
            raise RuntimeError(f"the fuzzer itself ended by {_signal_name(-status)}")
        at += 1
        tally.inputs = at - first - passed_over
        state.write_text(json.dumps(tally.to_json()))
    shutil.rmtree(folder / "input", ignore_errors=True)
    return tally


def flaw(text: str) -> str:
    """What is wrong with a message; empty if it is one printable line."""
    if not text.strip():
        return "empty"
    if len(text.splitlines()) > 1:
        return "more than one line"
    if not text.isprintable():
        return "not printable"
    return "too long" if len(text) > MOST_CHARACTERS else ""


# --- the process ------------------------------------------------------------------------------------------------------------------------


class _Hang(BaseException):
    """An input took too long."""


def _run_apart(work: Callable[[], int], folder: Path) -> int:
    """Exit status of `work` in a process of its own; minus the signal that ended it. One that is silent for long is killed."""
    process = os.fork()
    if not process:
        status = 70
        try:
            status = work()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    heard, last = time.monotonic(), ""
    while True:
        ended, raw = os.waitpid(process, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(raw)
            if status == 70:
                raise RuntimeError(f"the fuzzer itself failed: {(folder / 'output').read_text()[-3000:]}")
            return status
        time.sleep(0.005 if time.monotonic() - heard < 1 else 0.1)
        now = (folder / "progress").read_text() if (folder / "progress").is_file() else ""
        if now != last:
            heard, last = time.monotonic(), now
        elif time.monotonic() - heard > _SILENCE_SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -int(signal.SIGKILL)


def _work(target: Target, given: Sequence[Files], begin: int, end: int, seed: int, folder: Path, deadline: float) -> int:
    """Read inputs `begin` to `end`; 0 when all are done, 3 to be begun anew."""
    watch = _Watch(folder)
    seeds = list(given)
    place = folder / "input"
    shutil.rmtree(place, ignore_errors=True)
    for number, files in enumerate(seeds):
        _write(place / str(number), files)
        watch.measure(lambda n=number: target.read(place / str(n)))  # imports what is imported late
    state = folder / "tally.json"
    tally = Tally.from_json(json.loads(state.read_text())) if state.is_file() else Tally(target.name)
    progress = os.open(folder / "progress", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    watch.start()
    started, own = time.monotonic(), len(seeds)
    before, used = tally.seconds, tally.processor_seconds - time.process_time()
    status = 0
    for number in range(begin, end):
        random = Random((seed << 32) + number)
        which = random.randrange(len(seeds)) if random.random() < 0.5 else random.randrange(own)
        os.pwrite(progress, b"%-12d %-6d change" % (number, which), 0)
        changed = target.mutate(random, seeds[which], seeds)
        spot = place / str(which)
        for name, data in changed.items():
            (spot / name).write_bytes(data)
        os.pwrite(progress, b"%-12d %-6d read  " % (number, which), 0)
        outcome = watch.measure(lambda at=spot: target.read(at))
        tally.inputs += 1
        tally.slowest_seconds = max(tally.slowest_seconds, outcome.seconds)
        if outcome.finding:
            if outcome.finding not in tally.findings:
                _keep(folder, outcome.finding, number, seeds[which] | changed, outcome.detail)
            tally.findings[outcome.finding] += 1
        elif outcome.refusal:
            tally.refused += 1
            if (
                outcome.refusal not in tally.refusals
                and len(seeds) < own + MOST_NEW_SEEDS
                and sum(map(len, changed.values())) < 20_000
            ):
                seeds.append(seeds[which] | changed)
                _write(place / str(len(seeds) - 1), seeds[-1])
            tally.refusals[outcome.refusal] += 1
        else:
            tally.accepted += 1
        for name in changed:
            if name in seeds[which]:
                (spot / name).write_bytes(seeds[which][name])
            else:
                (spot / name).unlink(missing_ok=True)
        os.pwrite(progress, b"%-12d %-6d done  " % (number + 1, which), 0)
        tally.peak_bytes = max(tally.peak_bytes, watch.peak_bytes)
        if watch.is_spent:
            status = 3
        if number % 10 == 9:
            tally.seconds, tally.processor_seconds = before + time.monotonic() - started, used + time.process_time()
            state.write_text(json.dumps(tally.to_json()))
        if status or time.monotonic() > deadline:
            break
    tally.seconds, tally.processor_seconds = before + time.monotonic() - started, used + time.process_time()
    state.write_text(json.dumps(tally.to_json()))
    return status


@dataclass
class _Outcome:
    """What a reader made of an input: a finding, a refusal (the message without its numbers and names), or neither."""

    seconds: float = 0.0
    finding: str = ""
    detail: str = ""
    refusal: str = ""


class _Watch:
    """Time, memory, output, warnings and deeds of a reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.deeds: list[str] = []
        self.warned: list[str] = []
        self.is_active, self.is_spent = False, False
        self.base_bytes = self.peak_bytes = 0
        output = os.open(folder / "output", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(2)
        signal.signal(signal.SIGPROF, self._stop)
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_, **__: self.warned.append(f"{category.__name__}: {message}")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def start(self) -> None:
        """From now on what readers do is looked at, and the memory that is held is what they may add to."""
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE_BYTES,) * 2)
        sys.addaudithook(self._audit)
        self.base_bytes = _peak_bytes()
        self.printed = os.fstat(1).st_size

    def measure(self, read: Callable[[], object]) -> _Outcome:
        """What a reader does."""
        outcome = _Outcome()
        self.is_active = True
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        begin = time.process_time()
        try:
            outcome = self._outcome(read)
        except _Hang:
            outcome.finding = f"more than {MOST_SECONDS:g} s in {_place(sys.exc_info()[1])}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.is_active = False
        outcome.seconds = time.process_time() - begin
        if self.base_bytes:
            self._look_around(outcome)
        return outcome

    def _outcome(self, read: Callable[[], object]) -> _Outcome:
        try:
            result = read()
        except FathomError as error:
            message = str(error)
            wrong = flaw(message)
            if wrong:
                return _Outcome(finding=f"message {wrong} in {_place(error)}", detail=ascii(message[:2000]))
            if "needs more memory" in message:
                return _Outcome(finding="memory: it ran out", detail=message)
            return _Outcome(refusal=_skeleton(message, self.folder))
        except Exception as error:
            return _Outcome(
                finding=f"{type(error).__name__} in {_place(error)}", detail="".join(traceback.format_exception(error)[-12:])
            )
        if isinstance(result, CheckReport) and not result.ok:
            wrong = next(((text, what) for text in result.problems if (what := flaw(text))), None)
            if wrong:
                return _Outcome(finding=f"problem {wrong[1]}: {_skeleton(wrong[0], self.folder)[:60]}", detail=ascii(wrong[0][:2000]))
            if len(result.problems) > 1000:
                return _Outcome(finding="more than 1000 problems")
            return _Outcome(refusal=_skeleton(result.problems[0], self.folder))
        if isinstance(result, CheckReport):
            try:
                json.dumps(dict(result.facts))
            except (TypeError, ValueError) as error:
                return _Outcome(finding=f"facts are no JSON: {type(error).__name__}", detail=repr(result.facts)[:2000])
        return _Outcome()

    def _look_around(self, outcome: _Outcome) -> None:
        peak = _peak_bytes()
        self.peak_bytes = max(self.peak_bytes, peak - self.base_bytes)
        found = ""
        if peak - self.base_bytes > MOST_BYTES:
            found, self.is_spent = f"memory: more than {MOST_BYTES >> 20} MiB", True
        elif self.deeds:
            found = f"does {self.deeds[0]}"
        elif self.warned:
            found = f"warns {self.warned[0][:100]}"
        elif os.fstat(1).st_size != self.printed:
            found, self.printed = "prints", os.fstat(1).st_size
        if found and not outcome.finding:
            outcome.finding, outcome.detail = found, f"{outcome.refusal or 'accepted'} {self.deeds[:3]} {self.warned[:3]}"
        self.deeds.clear()
        self.warned.clear()

    def _stop(self, _number: int, _frame: object) -> None:
        if self.is_active:
            raise _Hang

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_active:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and any(c in mode for c in "wax+")) or (isinstance(flags, int) and flags & 3)
            if writes and isinstance(path, (str, bytes)) and not os.fsdecode(path).startswith(self.folder):
                self.deeds.append("open for writing")
        elif event.startswith(
            ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "ctypes.dlopen", "shutil.")
        ) or event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"):
            self.deeds.append(event)
        elif event == "exec":
            code = arguments[0]
            name = getattr(code, "co_filename", "")
            if not name.startswith((str(ROOT), sys.prefix, sys.base_prefix, "<frozen")) and name not in (
                "<string>",
                "<__array_function__ internals>",
            ):
                self.deeds.append(f"exec of {name[:60]}")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place(error: BaseException | None) -> str:
    """The innermost line of the project that an exception came through: `proto.py:212 (_messages)`."""
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    own = [
        f for f in frames if f.filename.startswith(str(ROOT)) and "/tests/" not in f.filename and "/site-packages/" not in f.filename
    ]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].name})" if own else "the fuzzer"


def _skeleton(message: str, folder: str) -> str:
    """A message without what differs from input to input."""
    text = re.sub(re.escape(folder) + r"\S*?(?=[:;,\s]|$)", "FILE", message)
    return re.sub(r"[\w.+-]*\d[\w.+-]*", "N", re.sub(r"'[^']*'|\"[^\"]*\"|\([^()]*\)", "X", text))[:100]


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number != signal.SIGKILL else "hang, killed"


def _write(folder: Path, files: Files) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _content(folder: Path) -> Files:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _keep(folder: Path, kind: str, number: int, files: Files, detail: str = "") -> None:
    """Leave the input of a finding, and what is known of it, in a folder of its own."""
    place = folder / "findings" / f"{re.sub(r'[^A-Za-z0-9]+', '-', kind)[:80]}-{number}"
    _write(place, files)
    (place / "FINDING.txt").write_text(f"{kind}\ninput {number}\n{detail}\n", encoding="utf-8", errors="backslashreplace")
