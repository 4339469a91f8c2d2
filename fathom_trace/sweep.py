"""Captures of workloads over modes, presets, stages, batch sizes and threads: one at a time, going on where an earlier sweep ended.

Each is the very command that a person would give, in a process of its own. A trace that is there and was made by the same command is left
alone; traces are written whole or not at all, so it is a whole one. At most one sweep captures on a machine at any moment: times are the
product.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fathom_trace.collection import Capture, capture_one, write_manifest
from fathom_trace.errors import CaptureError, FathomError

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

    @property
    def name(self) -> str:
        """The trace's file name: workload and mode, and whatever is not the default."""
        parts = (
            self.workload,
            self.preset if self.preset != SEMINAL else "",
            self.mode,
            self.stage if self.stage != SOURCE else "",
            f"batch{self.batch_size}" if self.batch_size else "",
            f"threads{self.threads}" if self.threads else "",
        )
        return "-".join(part for part in parts if part) + ".h5"

    @property
    def flags(self) -> list[str]:
        """The options of `fathom-trace capture WORKLOAD --mode MODE` for it."""
        found = ["--preset", self.preset, "--stage", self.stage]
        found += ["--batch-size", str(self.batch_size)] if self.batch_size else []
        return found + (["--threads", str(self.threads)] if self.threads else [])


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


def sweep(wanted: Sequence[Point], folder: Path, flags: Sequence[str], force: bool, report: Callable[[str], None]) -> list[Outcome]:
    """Capture each point into `folder`; `flags` go to every capture, `report` is told what begins, what was there and what failed.

    Raises:
        CaptureError: another sweep is capturing on this machine.
    """
    outcomes = []
    with only_one():
        for i, point in enumerate(wanted, 1):
            file = folder / point.name
            told = f"{i}/{len(wanted)} {point.name.removesuffix('.h5')}"
            outcome = _there(point, file, flags) if file.exists() and not force else None
            if outcome is None:
                report(f"{told} ...")
                made = capture_one(point.workload, point.mode, file, [*point.flags, *flags, *(["--force"] if force else [])])
                outcome = Outcome(point, file, FAILED if made.error else MADE, made.error, made)
            outcomes.append(outcome)
            if outcome.status != MADE:
                report(f"{told}: {outcome.problem or outcome.status}")
            write_manifest(folder, [o.capture for o in outcomes if o.capture is not None])
    return outcomes


def _there(point: Point, file: Path, flags: Sequence[str]) -> Outcome:
    """A trace that is in the way: done if it came from the same command."""
    from fathom_trace.store import load

    wanted = _settings(["capture", point.workload, "--mode", point.mode, *point.flags, *flags])
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


@contextmanager
def only_one(folder: Path | None = None) -> Iterator[None]:
    """Hold this machine's lock of captures; the system releases it however the process ends.

    Raises:
        CaptureError: another process holds it.
    """
    path = (folder or Path(tempfile.gettempdir())) / "fathom-trace-sweep.lock"
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CaptureError("another sweep is capturing on this machine, and would spoil the times; wait until it ends") from None
        yield
    finally:
        os.close(handle)
