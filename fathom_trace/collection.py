"""Captures every workload in both modes, one at a time, each in a process of its own; goes on after a failure and reports at the end.

A process of its own keeps one capture's memory and threads out of the next one's times. Each is the very command that a person would
give, so its trace says how to make it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fathom_trace.errors import one_line
from fathom_trace.terminal import print_table
from fathom_trace.units import format_bytes, format_ns
from fathom_trace.workload import MODES

MANIFEST = "captures.json"


@dataclass(frozen=True)
class Capture:
    """How one capture went. `error` is empty when it went well; sizes in bytes, times in ns, the ratio is traced over untraced."""

    workload: str
    mode: str
    file: str
    command: str
    wall_ns: int
    peak_bytes: int
    error: str
    executions: int | None = None
    steps: int | None = None
    traced_ns: float | None = None
    untraced_ns: float | None = None
    size_bytes: int | None = None
    complete: bool | None = None
    readiness_share: float | None = None

    @property
    def ratio(self) -> float | None:
        """Traced over untraced wall time of a step."""
        return self.traced_ns / self.untraced_ns if self.traced_ns and self.untraced_ns else None


def capture_all(names: Iterable[str], folder: Path, flags: Sequence[str], force: bool, report: Callable[[str], None]) -> list[Capture]:
    """Capture each workload in each mode into `folder`, as `NAME-MODE.h5`; `flags` go to every capture command.

    A trace that is there already is left alone and said to be, unless `force` is set. `report` is told what begins and what failed.
    """
    made: list[Capture] = []
    for name in names:
        for mode in MODES:
            file = folder / f"{name}-{mode}.h5"
            report(f"{name} {mode} ...")
            result = capture_one(name, mode, file, [*flags, *(["--force"] if force else [])])
            if result.error:
                report(f"{name} {mode}: {result.error}")
            made.append(result)
            write_manifest(folder, made)
    return made


def capture_one(name: str, mode: str, file: Path, flags: Sequence[str]) -> Capture:
    """Capture one workload in one mode into `file`, in a process of its own, and say how it went."""
    arguments = ["capture", name, "--mode", mode, *flags, "-o", str(file)]
    shown = " ".join(["fathom-trace", *arguments])
    begin = time.monotonic_ns()
    with subprocess.Popen(
        [sys.executable, "-m", "fathom_trace", *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, err, peak = _finish(process)
    wall = time.monotonic_ns() - begin
    found = _parsed(out)
    if found is None:
        text = one_line(err.strip().splitlines()[-1]) if err.strip() else f"ended with status {process.returncode}"
        return Capture(name, mode, str(file), shown, wall, peak, text)
    checks = found["checks"]
    return Capture(
        workload=name,
        mode=mode,
        file=str(file),
        command=shown,
        wall_ns=wall,
        peak_bytes=peak,
        error="" if checks["is_sound"] else "; ".join(checks["problems"]),
        executions=found["executions"],
        steps=found["traced_steps"],
        traced_ns=found["traced_ns"],
        untraced_ns=found["untraced_ns"],
        size_bytes=found["size_bytes"],
        complete=checks["complete"],
        readiness_share=checks["readiness_share"],
    )


def _finish(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """What a process printed, and the most memory it held, in bytes (read every half second from /proc; 0 where there is none)."""
    peak = 0
    while True:
        try:
            out, err = process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            peak = max(peak, _high_water_bytes(process.pid))
            continue
        return out, err, peak


def _high_water_bytes(pid: int) -> int:
    """The kernel's own high-water mark of a process's resident memory."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _parsed(text: str) -> dict[str, Any] | None:
    import json

    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return found


def write_manifest(folder: Path, made: Sequence[Capture]) -> None:
    """Write how the captures into `folder` went, as JSON."""
    import json

    path = folder / MANIFEST
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps([asdict(c) for c in made], indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def print_captures(made: Sequence[Capture]) -> None:
    """One line a capture: how long it took in all, what a step took, how far tracing slowed it, what was written."""

    def text(value: float | None, form: Callable[[float], str]) -> str:
        return "-" if value is None else form(value)

    rows = [
        (
            f"{c.workload} {c.mode}",
            format_ns(c.wall_ns),
            text(c.steps, str),
            text(c.executions, lambda n: f"{int(n):,}"),
            text(c.untraced_ns, format_ns),
            text(c.ratio, lambda r: f"{r:.2f}"),
            text(c.size_bytes, format_bytes),
            format_bytes(c.peak_bytes),
            c.error or "ok",
        )
        for c in made
    ]
    header = ("capture", "in all", "steps", "executions", "untraced step", "traced/untraced", "file", "peak memory", "")
    print_table(header, rows, left=(0, len(header) - 1))
