"""Copy a trace into the other file format; the suffix says which: .h5 (HDF5) or .pb (protobuf). Nothing is lost."""

from __future__ import annotations

import argparse
from pathlib import Path

from fathom_trace.arguments import add_force

EXAMPLES = ("fathom-trace convert vgg-training.h5 vgg-training.pb",)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="IN", help="the trace to read")
    parser.add_argument("target", metavar="OUT", help="the file to write")
    add_force(parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert and say how large the result is."""
    from fathom_trace.destination import check_file
    from fathom_trace.store import convert
    from fathom_trace.units import format_bytes

    target = check_file(Path(arguments.target), arguments.force)
    convert(Path(arguments.source), target, force=arguments.force)
    print(f"{target}: {format_bytes(target.stat().st_size)}")
    return 0
