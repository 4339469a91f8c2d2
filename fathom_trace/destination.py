"""Where results go: refuses what is in the way, and what cannot be written, before any long work begins."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from fathom_trace.errors import ExportError, TraceFileError
from fathom_trace.store import format_of
from fathom_trace.store.files import check_replaceable


def check_file(path: Path, force: bool) -> Path:
    """`path`, where a trace can be written.

    Raises:
        TraceFileError: the suffix is unknown, something is in the way, or the folder does not exist or cannot be written.
    """
    format_of(path)
    check_replaceable(path, force)
    check_writable(path)
    return path


def check_folder(path: Path, force: bool, marker: str) -> Path:
    """`path`, where a folder of results can be put. `marker` is the file by which earlier results are known.

    Raises:
        ExportError: it holds files and `force` is not set, or holds files but no `marker`, so that they are not ours to replace.
        TraceFileError: the folder around it does not exist or cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise ExportError(f"{path} is a file; give a folder with -o")
    if path.is_dir() and any(path.iterdir()):
        if not (path / marker).is_file():
            raise ExportError(f"{path} holds files that no export wrote; choose another folder with -o")
        if not force:
            raise ExportError(f"{path} exists; pass --force to replace it")
    check_writable(path)
    return path


def check_writable(path: Path) -> None:
    """Raise `TraceFileError` when the folder around `path` does not exist or refuses files."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise TraceFileError(f"cannot write {path}: the folder {parent} does not exist; make it, or choose another place")
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise TraceFileError(
            f"cannot write {path}: the folder {parent} refuses files ({error.strerror}); choose another place"
        ) from None


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` that takes its place when the block ends well, and vanishes when it does not.

    It vanishes also when the process is told to end (SIGTERM): it then ends with status 143.
    """
    path = path.resolve()
    with _ending_in_order():
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        old = partial.with_suffix(".old")
        try:
            partial.chmod(0o777 & ~_umask())
            yield partial
            if path.exists():
                path.rename(old)
            partial.rename(path)
        finally:
            if old.exists() and not path.exists():  # interrupted between the two
                old.rename(path)
            shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)


TERMINATED = 143
"""Exit status of a process that was told to end: 128 and the signal's number, as shells have it."""


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM ends the process as an exception does, so that what is open is cleaned up, and says so in one line."""

    def end(_number: int, _frame: object) -> NoReturn:
        print("fathom-trace: terminated; nothing was written under the final name", file=sys.stderr)
        raise SystemExit(TERMINATED)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # only the main thread may say what a signal does; what the caller has said stands
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
