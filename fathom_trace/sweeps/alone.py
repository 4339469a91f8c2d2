"""Keeps a machine to one capture at a time: a lock that every sweep of the machine takes, for times are the product.

The lock lies in the folder for temporary files, so sweeps that are told different ones (`TMPDIR`) do not see each other.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fathom_trace.errors import CaptureError

NAME = "fathom-trace-sweep.lock"
POLL_S = 0.2


@contextmanager
def only_one(folder: Path | None = None, waiting: Callable[[], None] | None = None) -> Iterator[int]:
    """Hold this machine's lock of captures; yields its handle, which a child that inherits it holds as well.

    The system releases it when the last that holds it has ended, however that came about. `waiting` is called again and again while
    another has it; without, that is an error.

    Raises:
        CaptureError: another process holds it, and `waiting` is not given.
    """
    path = (folder or Path(tempfile.gettempdir())) / NAME
    handle = _open(path)
    try:
        while not _taken(handle):
            if waiting is None:
                raise CaptureError("another sweep is capturing on this machine, and would spoil the times; wait until it ends")
            waiting()
            time.sleep(POLL_S)
        yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """A handle of the lock's file. That of another user may be opened only for reading, and only where it is not also to be made."""
    try:
        return os.open(path, os.O_CREAT | os.O_RDONLY, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise CaptureError(
            f"the folder for temporary files refuses locks ({error.strerror}), by which captures keep out of each other's way; "
            "set TMPDIR to one on a disk of this machine"
        ) from None
    return True
