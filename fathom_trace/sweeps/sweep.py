"""Captures of workloads over modes, presets, stages, batch sizes and threads: going on where an earlier sweep ended.

Each is the very command that a person would give, in a process of its own: here, one after the other, or on the workers of a cluster. A
trace that is there and was made by the same command is left alone; traces are written whole or not at all, so it is a whole one. At most
one capture runs on a machine at any moment: times are the product. The folder's manifest says after every change what became of each.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from fathom_trace.errors import CaptureError, FathomError, OptionError, one_line
from fathom_trace.sweeps.alone import only_one
from fathom_trace.sweeps.apart import capture_apart
from fathom_trace.sweeps.collection import Capture, capture_one, read_manifest, update_manifest
from fathom_trace.sweeps.engine import ENDS, LOST, Attempt, Executor, Here, Task, Update

SOURCE, SEMINAL = "source", "seminal"
DONE, MADE, FAILED = "there already", "captured", "failed"


@dataclass(frozen=True)
class Point:
    """One capture of a sweep; 0 for a batch size or threads is the preset's, or all cores."""

    workload: str
    mode: str
    preset: str = SEMINAL
    stage: str = SOURCE
    batch_size: int = 0
    threads: int = 0
    settings: tuple[str, ...] = ()
    """Options of the workload, as `--set` takes them."""
    seed: int | None = None
    steps: int = 0

    @property
    def name(self) -> str:
        """The trace's file name: workload and mode, and whatever is not the default; `steps` are not in it."""
        parts = (
            self.workload,
            self.preset if self.preset != SEMINAL else "",
            self.mode,
            self.stage if self.stage != SOURCE else "",
            f"batch{self.batch_size}" if self.batch_size else "",
            f"threads{self.threads}" if self.threads else "",
            *(re.sub(r"[^\w=.,+]", "_", setting, flags=re.ASCII) for setting in self.settings),
            f"seed{self.seed}" if self.seed else "",
        )
        return "-".join(part for part in parts if part) + ".h5"

    @property
    def flags(self) -> list[str]:
        """The options of `fathom-trace capture WORKLOAD --mode MODE` for it."""
        found = ["--preset", self.preset, "--stage", self.stage]
        found += ["--batch-size", str(self.batch_size)] if self.batch_size else []
        found += ["--threads", str(self.threads)] if self.threads else []
        found += ["--seed", str(self.seed)] if self.seed is not None else []
        found += ["--steps", str(self.steps)] if self.steps else []
        return found + [word for setting in self.settings for word in ("--set", setting)]


@dataclass(frozen=True)
class Outcome:
    """What became of a point: `DONE`, `MADE` or `FAILED`; `capture` is None where nothing ran, `problem` says why it failed."""

    point: Point
    file: Path
    status: str
    problem: str = ""
    capture: Capture | None = None


def points(
    workloads: Sequence[str], modes: Sequence[str], presets: Sequence[str] = (SEMINAL,), stages: Sequence[str] = (SOURCE,),
    batch_sizes: Sequence[int] = (0,), threads: Sequence[int] = (0,),
) -> list[Point]:  # fmt: skip
    """Every combination, workload by workload, each once."""
    return list(dict.fromkeys(Point(*one) for one in product(workloads, modes, presets, stages, batch_sizes, threads)))


def sweep(
    wanted: Sequence[Point], folder: Path, flags: Sequence[str], force: bool, report: Callable[[str], None],
    executor: Executor | None = None,
) -> list[Outcome]:  # fmt: skip
    """Capture each point into `folder`; `flags` go to every capture, `report` is told what begins, what was there and what failed.

    Raises:
        CaptureError: another sweep is capturing on this machine.
        ClusterError: the cluster of the executor cannot be reached, is lost or lacks something.
        OptionError: two points have one file name.
    """
    check_names(wanted)
    runner: Executor = executor or Here()
    outcomes: dict[str, Outcome] = {}
    tasks: dict[str, Point] = {}
    told = {point.name: f"{i}/{len(wanted)} {point.name.removesuffix('.h5')}" for i, point in enumerate(wanted, 1)}
    for point in wanted:
        there = _there(point, folder / point.name, flags) if (folder / point.name).exists() and not force else None
        if there is None:
            tasks[point.name] = point
        else:
            outcomes[point.name] = there
            report(f"{told[point.name]}: {there.problem or there.status}")
    with only_one() if tasks and not runner.is_remote else nullcontext() as lock:
        made = [_task(point, folder, flags, force, lock, runner.is_remote) for point in tasks.values()]
        earlier = earlier_attempts(folder) if tasks else {}
        going: dict[str, Capture] = {}
        try:
            with closing(runner.run(made)) as updates:
                for update in updates:
                    point = tasks[update.task.name]
                    capture = _capture(point, folder, flags, force, update, runner.is_remote)
                    going[point.name] = replace(capture, attempts=(*earlier.get(point.name, ()), *update.attempts))
                    update_manifest(folder, {point.name: going[point.name]})
                    if update.is_over:
                        ended = going.pop(point.name)
                        status = FAILED if ended.error else MADE
                        outcomes[point.name] = Outcome(point, folder / point.name, status, ended.error, ended)
                    said = update.told or (capture.error or MADE * runner.is_remote if update.is_over else "")
                    if said:
                        report(f"{told[point.name]}{' ' if said == '...' else ': '}{said}")
        except BaseException:
            with suppress(FathomError, OSError):  # what ended the sweep may also be in the way of this
                update_manifest(folder, {name: replace(c, error="the sweep ended before it") for name, c in going.items()})
            raise
    return [outcomes[point.name] for point in wanted]


def check_names(wanted: Sequence[Point]) -> None:
    """Refuse points that would be written under one name.

    Raises:
        OptionError: two would.
    """
    seen: dict[str, Point] = {}
    for point in wanted:
        other = seen.setdefault(point.name.lower(), point)
        if other != point:
            raise OptionError(
                f"two captures of the sweep would be written to {point.name}: {shlex.join(other.flags)}, and {shlex.join(point.flags)}; "
                "leave one of them out, or put it into a sweep with a folder of its own"
            )


def _task(point: Point, folder: Path, flags: Sequence[str], force: bool, lock: int | None, is_remote: bool) -> Task:
    """A point's capture: here into `folder`, elsewhere into a folder there."""
    words = [*point.flags, *flags]
    if is_remote:
        return Task(point.name, capture_apart, (point.workload, point.mode, point.name, words))
    words += ["--force"] if force else []
    return Task(point.name, _capture_here, (point, folder / point.name, words, () if lock is None else (lock,)))


def _capture_here(point: Point, file: Path, words: list[str], keep_open: tuple[int, ...]) -> Capture:
    return capture_one(point.workload, point.mode, file, words, keep_open)


def _capture(point: Point, folder: Path, flags: Sequence[str], force: bool, update: Update, is_remote: bool) -> Capture:
    """How a point's capture is going; what came from elsewhere is put in its place."""
    file = folder / point.name
    if not update.is_over or update.problem:
        command = shlex.join(["fathom-trace", "capture", point.workload, "--mode", point.mode, *point.flags, *flags, "-o", point.name])
        return Capture(point.workload, point.mode, str(file), command, 0, 0, update.problem or "it has not ended")
    if not is_remote:
        return cast(Capture, update.value)
    capture = _told_by_worker(update.value["capture"], point, file)
    trace = update.value["trace"]
    if not trace:
        return capture if capture.error else replace(capture, error="its worker sent no trace")
    try:
        _put(point, file, flags, force, trace)
    except FathomError as error:
        return replace(capture, error=one_line(error))
    return capture


def _told_by_worker(said: Mapping[str, Any], point: Point, file: Path) -> Capture:
    """A worker's account of a capture; what it is of and where it lies, this side knows."""
    known = {f.name for f in fields(Capture)} - {"attempts"}
    return Capture(
        **{k: v for k, v in said.items() if k in known} | {"workload": point.workload, "mode": point.mode, "file": str(file)}
    )


def _put(point: Point, file: Path, flags: Sequence[str], force: bool, trace: bytes) -> None:
    """Put a trace that came from elsewhere in its place, whole, if it can be read and is the one that was asked for.

    Raises:
        TraceFileError: it cannot be read, or cannot be written.
        CaptureError: it is another one.
    """
    from fathom_trace.store import load
    from fathom_trace.store.files import replacing

    with tempfile.TemporaryDirectory(prefix="fathom-trace-") as apart:
        copy = Path(apart) / "arrived.h5"
        copy.write_bytes(trace)
        made_by = shlex.split(str(load(copy).provenance.get("command_line", "")))[1:]
    if _settings(made_by) != _command(point, flags):
        raise CaptureError(f"its worker sent the trace of another command ({shlex.join(made_by)})")
    with replacing(file, force) as target:
        target.write(trace)


def earlier_attempts(folder: Path) -> dict[str, tuple[Attempt, ...]]:
    """What the manifest in `folder` tells of earlier attempts, by file name; nothing where it tells nothing that can be read."""
    return {name: _attempts(entry) for name, entry in read_manifest(folder).items()}


def _attempts(entry: Mapping[str, Any]) -> tuple[Attempt, ...]:
    """The attempts that a manifest tells of."""
    known = {f.name for f in fields(Attempt)}
    said = entry.get("attempts")
    found = [a for a in said if isinstance(a, dict)] if isinstance(said, list) else []
    attempts = [Attempt(**{"host": ""} | {k: str(v) for k, v in a.items() if k in known}) for a in found]
    return tuple(a if a.outcome in ENDS else replace(a, outcome=LOST, problem="the sweep ended before it") for a in attempts)


def _command(point: Point, flags: Sequence[str]) -> list[str]:
    """The words of a point's capture that matter."""
    return _settings(["capture", point.workload, "--mode", point.mode, *point.flags, *flags])


def _there(point: Point, file: Path, flags: Sequence[str]) -> Outcome:
    """A trace that is in the way: done if it came from the same command."""
    from fathom_trace.store import load

    wanted = _command(point, flags)
    try:
        made_by = shlex.split(str(load(file).provenance.get("command_line", "")))[1:]
    except (FathomError, ValueError) as error:
        return Outcome(point, file, FAILED, f"{error}; remove it, or pass --force")
    if _settings(made_by) != wanted:
        return Outcome(point, file, FAILED, f"{file} was made by another command ({shlex.join(made_by)}); pass --force to replace it")
    return Outcome(point, file, DONE)


def _settings(words: Sequence[str]) -> list[str]:
    """A capture's words without those that say where its result goes."""
    found, skip = [], False
    for word in words:
        if skip or word in ("--json", "--force"):
            skip = False
        elif word in ("-o", "--output"):
            skip = True
        else:
            found.append(word)
    return found
