"""Arguments that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_trace(parser: argparse.ArgumentParser) -> None:
    """The trace file to read."""
    parser.add_argument("file", metavar="FILE", help="a trace: .h5 or .pb")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Machine-readable output."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_force(parser: argparse.ArgumentParser) -> None:
    """Whether what is there may be replaced."""
    parser.add_argument("--force", action="store_true", help="replace what is there")


def add_settings(parser: argparse.ArgumentParser, owner: str) -> None:
    """Options of a plug-in of the kind `owner`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help=f"an option of the {owner}, as `fathom-trace {owner}s NAME` lists them; may be repeated",
    )


def at_least(minimum: int) -> Callable[[str], int]:
    """A type for whole numbers not below `minimum`."""

    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{text} is too small; it must be at least {minimum}")
        return number

    return whole
