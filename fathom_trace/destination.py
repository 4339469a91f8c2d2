"""Where results go: refuses what is in the way, and what cannot be written, before any long work begins."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fathom_trace.ending import ending_in_order
from fathom_trace.errors import ExportError, TraceFileError
from fathom_trace.placing import OLD, PARTIAL, begin, clear_folders, flush_folder, flush_tree, hold, place_folder, restore
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
    if os.path.islink(os.path.realpath(path)):
        raise ExportError(f"{path} is a link that leads to itself; give a folder with -o")
    restore(Path(os.path.realpath(path)))
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
def replacing_folder(path: Path, force: bool = True) -> Iterator[Path]:
    """An empty folder beside `path` that takes its place when the block ends well, and vanishes when it does not.

    It vanishes also when the process is told to end (SIGTERM): it then ends with status 143. A killed process leaves it behind, hidden,
    and the next writer to `path` removes it. Without `force` the name is taken only if it is still free at the end.

    Raises:
        ExportError: the system refuses to write, or another process has taken the name meanwhile.
    """
    path, shown = Path(os.path.realpath(path)), path
    with ending_in_order():
        restore(path)
        clear_folders(path)
        partial, lock = _make_new(path, shown)
        try:
            yield partial
            flush_tree(partial)
            begin(shown, path, os.fstat(lock))
            place_folder(partial, path, force)
        except FileExistsError as error:
            if error.filename != str(path):
                raise
            raise ExportError(f"{shown} exists; pass --force to replace it") from None
        except OSError as error:
            if partial.is_dir() and error.errno in _BUGS:
                raise
            raise _cannot_write(shown, path, error) from None
        finally:
            flush_folder(path.parent)
            restore(path)  # interrupted between two renames
            shutil.rmtree(partial.with_suffix(OLD), ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)
            os.close(lock)


_BUGS = {None, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EBADF}
"""What no disk and no network says of a file in a folder that is there: such an error is no user's."""


def _make_new(path: Path, shown: Path) -> tuple[Path, int]:
    """A new folder beside `path`, and a handle that holds its lock."""
    try:
        while True:
            partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent))
            try:
                handle = os.open(partial, os.O_RDONLY)
            except FileNotFoundError:  # taken for left over by another writer, before it had a lock
                continue
            if hold(handle, partial):
                partial.chmod(0o777 & ~_umask())
                return partial, handle
            os.close(handle)
    except OSError as error:
        raise _cannot_write(shown, path, error) from None


def _cannot_write(shown: Path, path: Path, error: OSError) -> ExportError:
    if not path.parent.is_dir():
        return ExportError(f"cannot write {shown}: the folder {path.parent} does not exist; make it, or choose another place")
    return ExportError(f"cannot write {shown} ({error.strerror or error}); make room or choose another folder with -o")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
