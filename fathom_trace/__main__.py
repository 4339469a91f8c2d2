"""Entry point of the command `fathom-trace` and of `python -m fathom_trace`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line on `sys.argv`; returns the exit status."""
    from fathom_trace.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
