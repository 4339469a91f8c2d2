"""Entry point of the command `fathom-trace` and of `python -m fathom_trace`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line on `sys.argv`; returns the exit status, 130 when it was interrupted, at whatever moment."""
    try:
        from fathom_trace.cli import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        print("fathom-trace: interrupted; nothing was written under the final name", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
