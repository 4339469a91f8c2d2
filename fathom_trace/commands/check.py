"""Parse an export again, as strictly as its target does; exit status 1 when something is wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

from fathom_trace.arguments import add_json

EXAMPLES = ("fathom-trace check vgg-training-scale_sim",)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="what `fathom-trace export` wrote")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check and print what was found."""
    from fathom_trace.exporting import check
    from fathom_trace.terminal import print_json

    name, found = check(Path(arguments.folder))
    if arguments.json:
        print_json({"exporter": name, "ok": found.ok, "check": found})
    else:
        print(f"{arguments.folder}: {name}, {len(found.files)} files, {len(found.problems)} problems")
        for key, value in found.facts.items():
            print(f"  {key}: {value}")
        for problem in found.problems:
            print(f"  problem: {problem}")
    return 0 if found.ok else 1
