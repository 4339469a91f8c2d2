"""How commands take arguments: the parser, arguments that several of them share, and types of values."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fathom_trace.errors import UnknownNameError, printable
from fathom_trace.untrusted import brief

if TYPE_CHECKING:
    from fathom_trace.selecting import Choice, Part
    from fathom_trace.trace import Trace


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as they are written; asks for the terminal's width itself, which saves the import of `shutil`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_terminal_width() - 2)


def _terminal_width() -> int:
    try:
        return max(40, int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns))
    except (ValueError, OSError, AttributeError):  # not a number, not a terminal, closed
        return 100


class Parser(argparse.ArgumentParser):
    """The parser of one command.

    It answers a misspelt option with the nearest that exists, refuses an option with one value that is given twice, and exits with 2.
    """

    def __init__(self, prog: str, description: str, examples: Sequence[str]) -> None:
        epilog = "\n".join(("examples:" if len(examples) > 1 else "example:", *(f"  {line}" for line in examples)))
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=_Formatter, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does, but arguments may stand among options wherever they like: `whatif FILE --json SCENARIOS`."""
        return self.parse_intermixed_args(args, namespace)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """As argparse does, but an argument that is empty is an error: more often a variable that is not set than a wish."""
        given = sys.argv[1:] if args is None else list(args)
        if "" in given:
            before = given[given.index("") - 1] if given.index("") else ""
            self.error("an argument is empty" + (f" after {before}" if before else "") + "; is a variable not set?")
        self._refuse_repeats(given)
        return super().parse_known_args(given, namespace)

    def _refuse_repeats(self, given: Sequence[str]) -> None:
        """Of two values, argparse would take the last without a word."""
        seen: dict[int, str] = {}
        for word in given[: given.index("--")] if "--" in given else given:
            flag = word.partition("=")[0] if word.startswith("--") else word[:2]
            action = self._option_string_actions.get(flag)
            if action is None or type(action) is not argparse._StoreAction:
                continue
            if id(action) in seen:
                names = flag if seen[id(action)] == flag else f"{seen[id(action)]}, which is also {flag},"
                self.error(f"{names} is given twice; give it once")
            seen[id(action)] = flag

    def error(self, message: str) -> NoReturn:
        """Print `message` on one line of stderr and exit with 2."""
        unknown = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        if unknown:
            message = str(UnknownNameError("option", unknown[1], set(re.findall(r"--[a-z][a-z-]*", self.format_usage()))))
        self.exit(2, f"{self.prog}: {printable(message)}; see {self.prog} --help\n")


def add_trace(parser: argparse.ArgumentParser) -> None:
    """The trace file to read."""
    parser.add_argument("file", metavar="FILE", help="a trace: .h5 or .pb")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Machine-readable output."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_force(parser: argparse._ActionsContainer) -> None:
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


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Which part of the trace to take; `choice_of` reads what was given."""
    group = parser.add_argument_group("selection", "Only a part of the trace: what has all that is given.")
    group.add_argument("--phase", metavar="NAME", help="forward, backward, optimizer or other")
    group.add_argument("--layer", metavar="NAME", help="a layer, or several by a pattern: 'conv*'")
    group.add_argument("--device", metavar="NAME", help="a device, or several by a pattern: '*CPU*'")
    group.add_argument("--steps", "--step", metavar="N", help="traced steps, by number: 2, or 0,3, or 2..5")
    group.add_argument("--time", metavar="FROM..TO", help="what began then, from the step's first start on: 10ms..20ms")


def choice_of(arguments: argparse.Namespace) -> Choice:
    """What `add_selection`'s arguments select; false where they were not given.

    Raises:
        OptionError: `--steps` or `--time` is malformed.
    """
    from fathom_trace.selecting import Choice, parse_span, parse_steps

    return Choice(
        phase=arguments.phase or "",
        layer=arguments.layer or "",
        device=arguments.device or "",
        steps=parse_steps(arguments.steps) if arguments.steps else (),
        time_ns=parse_span(arguments.time) if arguments.time else None,
    )


def selected(trace: Trace, choice: Choice) -> tuple[Trace, Part | None]:
    """The trace that a command is to look at, and what of the whole it is; the whole and None where nothing is chosen.

    Raises:
        TraceError: nothing that ran is chosen; the message lists what there is.
    """
    from fathom_trace.selecting import part_of

    if not choice:
        return trace, None
    part = part_of(trace, choice)
    return part.trace, part


LARGEST = 2**31 - 1
"""Above it a number of anything is a slip of the finger, and libraries that keep it in 32 bits fail late and in words of their own."""


def at_least(minimum: int, maximum: int = LARGEST) -> Callable[[str], int]:
    """A type for whole numbers from `minimum` to `maximum`."""

    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{brief(text)}' is not a whole number from {minimum} to {maximum}") from None
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{text} is too small; it must be at least {minimum}")
        if number > maximum:
            raise argparse.ArgumentTypeError(f"{text} is too large; it must be at most {maximum}")
        return number

    return whole
