"""Runs a command line that ends with the process that began it: a capture whose sweep is killed must not go on and disturb the next.

    with Tied(["capture", "vgg"], folder) as process: ...

The child watches a pipe of which its parent holds the other end. The system closes that however the parent ends, and the child ends too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


class Tied(subprocess.Popen[str]):
    """`fathom-trace ARGUMENTS` in `folder`, with stdout and stderr as pipes; `keep_open` are handles that it inherits."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, keep_open: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        watched, self._rope = os.pipe()
        try:
            super().__init__(
                [sys.executable, "-m", "fathom_trace.sweeps.tied", str(watched), str(folder), *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                pass_fds=[watched, *keep_open], env=environment,
            )  # fmt: skip
        except BaseException:
            self.cut()
            raise
        finally:
            os.close(watched)

    def cut(self) -> None:
        """End it, if it still runs."""
        rope, self._rope = self._rope, -1
        if rope >= 0:
            os.close(rope)

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self.cut()
        super().__exit__(*exception)  # type: ignore[arg-type]
        self.cut()


def _end_with(watched: int) -> None:
    """Wait until the other end of the pipe is closed, then end this process."""
    os.read(watched, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def main(words: Sequence[str]) -> int:
    """Run the command line in `words`, after the pipe's handle and the folder to run it in."""
    watched, folder, *arguments = words
    threading.Thread(target=_end_with, args=(int(watched),), daemon=True).start()
    os.chdir(folder)
    sys.argv = ["fathom-trace", *arguments]
    from fathom_trace.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
