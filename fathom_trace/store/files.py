"""Trace files as files: what is refused before work begins, and a file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fathom_trace.errors import TraceFileError
from fathom_trace.placing import PARTIAL, begin, clear_files, flush, flush_folder, hold, place_file

_numbers = itertools.count()


def check_replaceable(path: Path, force: bool) -> None:
    """Refuses a destination that is in the way.

    Raises:
        TraceFileError: `path` is a folder, or exists and `force` is not set.
    """
    if path.is_dir():
        raise TraceFileError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise TraceFileError(f"{path} is no regular file, and is not replaced; give the name of a file")
    if os.path.lexists(path) and not force:
        raise _exists(path)


@contextmanager
def replacing(path: Path, force: bool) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes when it does not.

    It is written beside `path` under a name of its own (`vgg.h5.<process>.<number>.partial`), flushed to the disk, then renamed: whoever
    opens `path`, at whatever moment, finds the old file or the new one, whole. A killed process leaves its `.partial` behind, which the
    next writer to `path` removes, and the old file in place. Without `force` the name is taken only if it is still free at the end, so
    of two writers one is refused.

    Raises:
        TraceFileError: `path` is in the way, or the system refuses to write.
    """
    check_replaceable(path, force)
    target = Path(os.path.realpath(path))
    partial: Path | None = None
    lock: int | None = None
    try:
        clear_files(target)
        partial, lock = _open_new(target)
        with os.fdopen(os.dup(lock), "wb") as file:
            yield file
            file.flush()
            flush(file.fileno())
        begin(path, target, os.fstat(lock))
        place_file(partial, target, force)
        partial = None
        flush_folder(target.parent)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise _cannot_write(path, target, error) from None
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()
        if lock is not None:
            os.close(lock)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """`path`, open for reading.

    Raises:
        TraceFileError: it is missing, not a file, unfinished, or may not be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceFileError(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}; give the name of a trace file")
        file = path.open("rb")
    except FileNotFoundError:
        raise TraceFileError(f"{path} does not exist; `fathom-trace capture` writes traces") from None
    except (OSError, ValueError) as error:
        raise TraceFileError(f"{path} cannot be read ({_reason(error)}); check its name and permissions") from None
    with file:
        yield file


def _open_new(target: Path) -> tuple[Path, int]:
    """A new file beside `target`, and a handle that holds its lock."""
    while True:
        partial = target.with_name(f"{target.name}.{os.getpid()}.{next(_numbers)}{PARTIAL}")
        try:
            handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except FileExistsError:
            continue
        if hold(handle, partial):
            return partial, handle
        os.close(handle)


def _exists(path: Path) -> TraceFileError:
    return TraceFileError(f"{path} exists; pass --force to replace it")


def _cannot_write(path: Path, target: Path, error: OSError) -> TraceFileError:
    if not target.parent.is_dir():
        return TraceFileError(f"cannot write {path}: the folder {target.parent} does not exist; make it, or choose another place")
    return TraceFileError(f"cannot write {path} ({_reason(error)}); make room or choose another folder with -o")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
