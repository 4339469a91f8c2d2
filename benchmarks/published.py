"""What the Fathom paper says, beside what traces show, as Markdown.

    python -m benchmarks.published TRACE...

Nothing is measured here: the traces were. Traces of all eight workloads in both modes come from `fathom-trace capture all`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fathom_trace.errors import FathomError
from fathom_trace.report.captured import measure_files
from fathom_trace.report.published import facts, to_markdown
from fathom_trace.store import load


def main() -> int:
    """Print the table; 1 when a trace cannot be read."""
    files = [Path(name) for name in sys.argv[1:]]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        traces = measure_files(files, load)
        print(to_markdown(facts(traces), traces), end="")
    except FathomError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
