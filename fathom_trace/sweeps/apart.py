"""What a worker of a cluster does: it runs one task, tells when it waits for its machine and when it begins, and can be stopped.

A capture is the very command that a person would give, in a process of its own and a temporary folder; the trace goes back as bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fathom_trace.errors import CaptureError, FathomError, one_line
from fathom_trace.sweeps.alone import only_one
from fathom_trace.sweeps.collection import capture_in
from fathom_trace.sweeps.engine import DONE, FAILED, RUNNING, WAITING, now
from fathom_trace.sweeps.tied import Tied
from fathom_trace.units import format_bytes

MOST_TRACE_BYTES = 500_000_000
"""The largest trace that comes back: it passes through the memory of worker, scheduler and client."""


class UnfitError(Exception):
    """What may go well on another machine."""


@dataclass(frozen=True)
class Errand:
    """What a task is handed beside its arguments: what all tasks share, the handle of the machine's lock, whom to tell of a process."""

    shared: Any
    lock: int | None
    begun: Callable[[Tied], None]


_stopped: set[str] = set()
_processes: dict[str, set[Tied]] = {}
"""Of this worker, by the sweep that they are of."""


def stop(sweep: str) -> None:
    """End the processes of a sweep on this worker, and let none begin."""
    _stopped.add(sweep)
    for process in _processes.pop(sweep, set()):
        process.cut()


def run_task(
    sweep: str, token: str, alone: bool, function: Callable[..., Any], arguments: tuple[Any, ...], shared: Any
) -> dict[str, Any]:
    """Run `function(errand, *arguments)`, with `alone` under the machine's lock; returns what `engine.Message` says of its end."""
    from distributed import get_worker

    told: set[str] = set()

    def tell(state: str) -> None:
        if state not in told:
            told.add(state)
            get_worker().log_event(sweep, {"token": token, "state": state, "at": now()})

    def waits() -> None:
        tell(WAITING)
        if sweep in _stopped:
            raise CaptureError("the sweep was stopped")

    def begun(process: Tied) -> None:
        _processes.setdefault(sweep, set()).add(process)
        if sweep in _stopped:
            process.cut()

    try:
        with only_one(waiting=waits) if alone else nullcontext() as lock:
            tell(RUNNING)
            value = function(Errand(shared, lock, begun), *arguments)
            return {"state": DONE, "at": now(), "value": value}
    except FathomError as error:
        return {"state": FAILED, "at": now(), "problem": one_line(error)}
    except UnfitError as error:
        return {"state": FAILED, "at": now(), "problem": one_line(error), "again": True}
    except Exception as error:  # whatever it is, another machine may do better
        return {"state": FAILED, "at": now(), "problem": one_line(f"{type(error).__name__}: {error}"), "again": True}


def capture_apart(errand: Errand, name: str, mode: str, file: str, flags: list[str]) -> dict[str, Any]:
    """How a capture went (a `collection.Capture` as a dict) and the `trace` as bytes, empty where none was written.

    Raises:
        UnfitError: the system ended the capture, for example for want of memory.
        CaptureError: the trace is too large to come back.
    """
    from distributed import get_worker

    with tempfile.TemporaryDirectory(prefix="fathom-trace-", dir=get_worker().local_directory) as folder:
        keep_open = () if errand.lock is None else (errand.lock,)
        capture = capture_in(Path(folder), name, mode, file, flags, keep_open, errand.begun, capture_environment())
        if capture.status is not None and capture.status < 0:
            raise UnfitError(capture.error)
        path = Path(folder) / file
        size = path.stat().st_size if path.is_file() else 0
        if size > MOST_TRACE_BYTES:
            raise CaptureError(
                f"the trace takes {format_bytes(size)}, and {format_bytes(MOST_TRACE_BYTES)} at most come back from a worker; "
                "take fewer steps, or capture on that host itself"
            )
        return {"capture": asdict(capture), "trace": path.read_bytes() if size else b""}


def capture_environment() -> dict[str, str]:
    """This worker's environment without what Dask put there for itself: its threads and its way with memory are not the capture's."""
    from dask import config

    own = {name: str(value) for name, value in (config.get("distributed.nanny.pre-spawn-environ", None) or {}).items()}
    return {name: value for name, value in os.environ.items() if own.get(name) != value}
