"""How a process ends that is told to (SIGTERM, Ctrl-C): in order, with one line that says what stands under the final names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143
"""Exit status of a process that was interrupted, or told to end: 128 and the signal's number, as shells have it."""


class _Terminated(SystemExit):
    """Raised where SIGTERM arrived."""


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM ends the process as an exception does, with status 143: what is open is cleaned up, and one line says so.

    Only the main thread may say what a signal does; and what the caller has said stands.
    """
    import signal
    import threading

    def end(_number: int, _frame: object) -> NoReturn:
        raise _Terminated(TERMINATED)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        try:  # of its own, because the signal may come also while it is set and while it is put back
            signal.signal(signal.SIGTERM, end)
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except BaseException as error:
        masked = _interruption(error)
        if isinstance(masked, _Terminated):
            print(f"fathom-trace: {ended('terminated')}", file=sys.stderr)
        if masked is None or masked is error:
            raise
        raise masked from None


def _interruption(error: BaseException) -> BaseException | None:
    """The interruption that `error` is, or that it arose from.

    Who is interrupted between closing a file and noting it closes it again on the way out, and that error takes the interruption's place:
    the standard library does, removing a folder.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt | _Terminated):
        found = found.__context__
    return found


def anew() -> None:
    """Forget what was finished before: a command begins."""
    if placing := sys.modules.get("fathom_trace.placing"):
        placing.forget()


def ended(how: str) -> str:
    """The line for a command that ended early: what it had finished before, if anything."""
    placing = sys.modules.get("fathom_trace.placing")
    names = [str(path) for path in placing.placed()] if placing else []
    if names:
        return f"{how}; {', '.join(dict.fromkeys(names))} had been written, whole"
    return f"{how}; nothing was written under the final name"
