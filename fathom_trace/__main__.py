"""Entry point of the command `fathom-trace` and of `python -m fathom_trace`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line on `sys.argv`; returns the exit status, 130 when it was interrupted, at whatever moment."""
    try:
        from fathom_trace.cli import run

        status = run(sys.argv[1:])
        if "signal" in sys.modules:  # all is done: an interrupt that comes while the interpreter ends has nothing to tell
            import signal
            from contextlib import suppress

            with suppress(ValueError):  # not the main thread: no interrupt comes here
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        return status
    except KeyboardInterrupt:
        ending = sys.modules.get("fathom_trace.ending")
        ended = getattr(ending, "ended", "{}; nothing was written under the final name".format)
        print(f"fathom-trace: {ended('interrupted')}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
