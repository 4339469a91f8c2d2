"""Copy a trace into the other file format; the suffix says which: .h5 (HDF5) or .pb (protobuf). Nothing is lost.

A part of a trace is written as a trace of its own, which says so in its provenance. Nothing in it is renumbered: what was not selected
stays as executions of the kind `outside`, without times, so that what was selected keeps its inputs, dependencies, layers and phases.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fathom_trace.arguments import add_force, add_selection, choice_of, selected

EXAMPLES = (
    "fathom-trace convert vgg-training.h5 vgg-training.pb",
    "fathom-trace convert vgg-training.h5 forward.h5 --phase forward --step 2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="IN", help="the trace to read")
    parser.add_argument("target", metavar="OUT", help="the file to write")
    add_force(parser)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert and say how large the result is."""
    from fathom_trace.destination import check_file
    from fathom_trace.store import load, save
    from fathom_trace.units import format_bytes

    choice = choice_of(arguments)
    target = check_file(Path(arguments.target), arguments.force)
    trace, part = selected(load(Path(arguments.source)), choice)
    save(trace, target, force=arguments.force)
    if part:
        print(f"selected {part}")
    print(f"{target}: {format_bytes(target.stat().st_size)}")
    return 0
