"""Captures every workload in both modes, one at a time, each in a process of its own; goes on after a failure and reports at the end.

A process of its own keeps one capture's memory and threads out of the next one's times. Each is the very command that a person would
give, so its trace says how to make it again.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fathom_trace.errors import one_line
from fathom_trace.sweeps.engine import Attempt
from fathom_trace.sweeps.tied import Tied
from fathom_trace.terminal import print_table
from fathom_trace.units import format_bytes, format_ns
from fathom_trace.workload import MODES

MANIFEST = "captures.json"
MOST_MANIFEST_BYTES = 100_000_000


@dataclass(frozen=True)
class Capture:
    """How one capture went. `error` is empty when it went well; sizes in bytes, times in ns, the ratio is traced over untraced.

    `attempts` are those of a sweep, the last one last.
    """

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
    status: int | None = None
    """How its process ended; below 0: by that signal."""
    attempts: tuple[Attempt, ...] = ()

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


def capture_one(name: str, mode: str, file: Path, flags: Sequence[str], keep_open: Sequence[int] = ()) -> Capture:
    """Capture one workload in one mode into `file`, in a process of its own that ends when this one does, and say how it went.

    The process inherits the handles in `keep_open`.
    """
    return capture_in(Path(), name, mode, str(file), flags, keep_open)


def capture_in(
    folder: Path, name: str, mode: str, file: str, flags: Sequence[str], keep_open: Sequence[int] = (),
    begun: Callable[[Tied], None] | None = None, environment: Mapping[str, str] | None = None,
) -> Capture:  # fmt: skip
    """As `capture_one`, with `folder` as the working folder, from which `file` starts, and in `environment` (default: this one).

    `begun` is handed the process.
    """
    arguments = ["capture", name, "--mode", mode, *flags, "-o", file]
    shown = " ".join(["fathom-trace", *arguments])
    begin = time.monotonic_ns()
    with Tied([*arguments, "--json"], folder, keep_open, environment) as process:
        if begun is not None:
            begun(process)
        out, err, peak = _finish(process)
    wall = time.monotonic_ns() - begin
    status = process.returncode
    found = _parsed(out)
    if found is None:
        last = err.strip().splitlines()[-1:]
        text = ended_by(status) if status < 0 else one_line(last[0]) if last else f"ended with status {status}"
        return Capture(name, mode, file, shown, wall, peak, text, status=status)
    checks = found["checks"]
    return Capture(
        workload=name,
        mode=mode,
        file=file,
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
        status=status,
    )


def ended_by(status: int) -> str:
    """What a status below 0 says: which signal ended the process."""
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"it was ended by {name}" + ("; was the machine out of memory?" if -status == signal.SIGKILL else "")


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
    _write(folder / MANIFEST, [asdict(c) for c in made])


def update_manifest(folder: Path, made: Mapping[str, Capture]) -> None:
    """Put captures, by file name, into the manifest of `folder`; what it says of other files stays."""
    entries = read_manifest(folder) | {name: asdict(capture) for name, capture in made.items()}
    _write(folder / MANIFEST, list(entries.values()))


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """What the manifest of `folder` says, by file name; nothing where there is none, or none that can be read."""
    import json

    try:
        with (folder / MANIFEST).open("rb") as file:
            raw = file.read(MOST_MANIFEST_BYTES + 1)
        found = json.loads(raw) if len(raw) <= MOST_MANIFEST_BYTES else []
    except (OSError, ValueError, RecursionError):
        return {}
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return {Path(entry["file"]).name: entry for entry in entries if isinstance(entry.get("file"), str)}


def _write(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Whole or not at all, as traces are."""
    import json

    from fathom_trace.store.files import replacing

    with replacing(path, force=True) as file:
        file.write(json.dumps(entries, indent=1).encode() + b"\n")


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
