"""Puts what is finished under its final name, in one step of the file system, and clears what killed processes left.

While it is written, a result has a name of its own beside the final one:

| of | written as | moved aside as |
|---|---|---|
| a file `vgg.h5` | `vgg.h5.<process>.<number>.partial` | |
| a folder `out` | `.out.<8 characters>.partial` | `.out.<the same>.old` |

Whoever writes holds a lock on it, which the system releases however the process ends; so the next writer to the same name can tell what
is left over from what is at work, and removes it. Where locks are refused (some network folders) nobody can tell, and it stays.

A folder cannot take the place of another one in one step everywhere. Linux exchanges the two, where the file system can; elsewhere the old
folder is moved aside first. Killed just then, the old folder stands beside, whole, and `restore` puts it back: the commands that read or
replace such a folder ask for that first.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no POSIX: nothing is locked, so nothing is taken for left over
    fcntl = None  # type: ignore[assignment]

PARTIAL, OLD = ".partial", ".old"
_NOREPLACE, _EXCHANGE = 1, 2
_HERE = -100  # AT_FDCWD
_TRIES = 100
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
_IN_USE = {errno.ENOTEMPTY, errno.EEXIST}

_begun: deque[tuple[Path, Path, tuple[int, int]]] = deque(maxlen=16)


def begin(shown: Path, target: Path, status: os.stat_result) -> None:
    """Note that what has this `status` is about to become `target`, which the user calls `shown`."""
    _begun.append((shown, target, (status.st_dev, status.st_ino)))


def placed() -> list[Path]:
    """What this process has put under final names, and is there still; of the last few. True at any moment, also during an interrupt."""
    found = []
    for shown, target, identity in _begun:
        with suppress(OSError):
            status = os.stat(target, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == identity:
                found.append(shown)
    return found


def forget() -> None:
    """Forget what was placed before."""
    _begun.clear()


def place_file(partial: Path, target: Path, force: bool) -> None:
    """Give the file `partial` the name `target`.

    Raises:
        FileExistsError: the name is taken and `force` is not set.
        OSError: the system refuses.
    """
    if force:
        os.replace(partial, target)
        return
    for take in (_rename_if_free, _link):
        try:
            take(partial, target)
        except FileExistsError:
            raise
        except OSError:  # the file system has no such thing
            continue
        return
    with _alone_in(target.parent):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.replace(partial, target)


def place_folder(partial: Path, target: Path, force: bool) -> None:
    """Give the folder `partial` the name `target`. What had the name is afterwards `partial`, or beside it with the suffix `OLD`.

    An empty folder of that name is replaced in any case.

    Raises:
        FileExistsError: the name is taken and `force` is not set.
        OSError: the system refuses.
    """
    old = partial.with_suffix(OLD)
    for _ in range(_TRIES):
        try:
            os.rename(partial, target)
            return
        except OSError as error:
            if error.errno not in _IN_USE:
                raise
            if not force:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        if _exchange(partial, target):
            return
        shutil.rmtree(old, ignore_errors=True)  # moved aside before; what another process has put in its place is what counts now
        with suppress(FileNotFoundError):
            os.rename(target, old)
    raise OSError(errno.EBUSY, "others write there all the time", str(target))


def restore(target: Path) -> bool:
    """Put back the folder `target` that a killed process had moved aside; False where there is none, or the name is taken."""
    if os.path.lexists(target):
        return False
    names = _beside(target, _FOLDER)
    # with its `.partial` gone, the new folder had taken its place, and this one was being removed
    aside = [name for name in names if name.endswith(OLD) and name.removesuffix(OLD) + PARTIAL in names]
    for name in sorted(aside, key=lambda name: _changed(target.with_name(name)), reverse=True):
        with suppress(OSError):
            os.rename(target.with_name(name), target)
            return True
    return False


def clear_files(target: Path) -> None:
    """Remove what killed processes left of a file `target`."""
    if not fcntl:
        return
    for name in _beside(target, _FILE):
        with _if_left(target.with_name(name), os.O_RDWR) as is_left:
            if is_left:
                os.unlink(target.with_name(name))


def clear_folders(target: Path) -> None:
    """Remove what killed processes left of a folder `target`."""
    if not fcntl:
        return
    names = _beside(target, _FOLDER)
    for name in names:
        path = target.with_name(name)
        if name.endswith(OLD):
            if name.removesuffix(OLD) + PARTIAL not in names:
                shutil.rmtree(path, ignore_errors=True)
        elif name.removesuffix(PARTIAL) + OLD not in names:
            with _if_left(path, os.O_RDONLY | os.O_DIRECTORY) as is_left:
                if is_left:
                    shutil.rmtree(path, ignore_errors=True)


def hold(handle: int, path: Path) -> bool:
    """Lock what was just made and is open as `handle`; False when `path` is no longer that, because another took it for left over."""
    if not fcntl:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # refused: then nobody else can lock it either
        return True
    return _is(handle, path)


def flush(handle: int) -> None:
    """Put what was written to an open file on the disk, if its file system knows how.

    Raises:
        OSError: the disk refuses; what was written may not be there.
    """
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise


def flush_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can; the content is there already."""
    if not fcntl:
        return
    with suppress(OSError):
        _flush(folder, os.O_RDONLY | os.O_DIRECTORY)


def flush_tree(folder: Path) -> None:
    """Put a folder with all that is in it on the disk.

    Raises:
        OSError: the disk refuses; what was written may not be there.
    """
    if not fcntl:
        return
    for base, _, names in os.walk(folder):
        for name in names:
            _flush(Path(base, name), os.O_RDONLY)
        flush_folder(Path(base))


# --- the system's calls -----------------------------------------------------------------------------------------------------------


@cache
def _renameat2() -> Callable[..., int] | None:
    """Linux' own rename, which can exchange two names and can refuse one that is taken."""
    if sys.platform != "linux":
        return None
    import ctypes

    function: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function  # type: ignore[no-any-return]


def rename_with(source: Path, target: Path, flag: int) -> None:
    """`renameat2(2)`.

    Raises:
        OSError: as the system says; `ENOSYS` where there is no such call.
    """
    import ctypes

    function = _renameat2()
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(_HERE, os.fsencode(source), _HERE, os.fsencode(target), flag):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(source), None, str(target))


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names; False where the system cannot, or one of them is gone."""
    try:
        rename_with(one, other, _EXCHANGE)
    except OSError:  # what else is wrong, a plain rename meets too, and says
        return False
    return True


def _rename_if_free(partial: Path, target: Path) -> None:
    rename_with(partial, target, _NOREPLACE)


def _link(partial: Path, target: Path) -> None:
    try:
        os.link(partial, target)
    except FileExistsError:  # over a network, also of a link that was made, when the answer was lost
        if not os.path.samefile(partial, target):
            raise
    os.unlink(partial)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time, where the system has locks."""
    if not fcntl:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _if_left(path: Path, flags: int) -> Iterator[bool]:
    """True, and nobody else's turn, when no process that lives is writing `path`."""
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # gone, another user's, or none of ours
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use, or nobody can tell
            yield False
            return
        yield _is(handle, path)
    finally:
        os.close(handle)


def _is(handle: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    return False


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        flush(handle)
    finally:
        os.close(handle)


# --- names ------------------------------------------------------------------------------------------------------------------------

_FILE = r"{}\.\d+\.\d+\.partial"
_FOLDER = r"\.{}\.[a-z0-9_]{{8}}\.(partial|old)"


def _beside(target: Path, pattern: str) -> set[str]:
    """The names in `target`'s folder that are those of unfinished results of that name."""
    wanted = re.compile(pattern.format(re.escape(target.name)))
    try:
        return {name for name in os.listdir(target.parent) if wanted.fullmatch(name)}
    except OSError:  # the folder is gone, or may not be listed
        return set()


def _changed(path: Path) -> int:
    """When a name was last changed, in ns; 0 when it is gone."""
    with suppress(OSError):
        return os.stat(path).st_ctime_ns
    return 0
