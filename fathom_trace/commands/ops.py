"""Where the time goes: a table by op type, kind, layer or phase, with the work that was done in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from fathom_trace.arguments import add_json, add_trace, at_least

EXAMPLES = ("fathom-trace ops vgg-training.h5", "fathom-trace ops vgg-training.h5 --by layer --top 20 --csv")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("--by", default="op", help="op (default), kind, layer or phase")
    parser.add_argument("--top", type=at_least(1), metavar="N", help="rows to print (default: all)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print key,count,time_ns,share,macs,flops,bytes")
    add_json(form)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    return 0
