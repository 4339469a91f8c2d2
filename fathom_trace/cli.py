"""The command line: finds the command, imports only that one, runs it and turns errors into one line and an exit status.

Exit status: 0 done, 1 an error that the user can correct (or a result that is not good), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NoReturn

from fathom_trace import __version__

PROGRAM = "fathom-trace"

COMMANDS = {
    "capture": "run a workload once under full tracing and write what it executed",
    "info": "say what a trace holds, how it came about and whether it is sound",
    "ops": "where the time goes: a table by op type, kind, layer or phase",
    "whatif": "project what faster operations do to the whole program",
    "export": "write a trace in the format of a simulator or viewer",
    "check": "parse an export again, as strictly as its target does",
    "convert": "copy a trace into the other file format, without loss",
    "workloads": "list the workloads, or describe one",
    "exporters": "list the exporters, or describe one",
}

_NOT_BUGS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as written. Asks for the terminal's width itself, which saves the import of `shutil`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_terminal_width() - 2)


def _terminal_width() -> int:
    try:
        return max(40, int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.__stdout__.fileno()).columns))  # type: ignore[union-attr]
    except (ValueError, OSError, AttributeError):
        return 100


class Parser(argparse.ArgumentParser):
    """A parser that answers a misspelt option with the nearest one that exists."""

    def error(self, message: str) -> NoReturn:
        """Print the message with a hint on stderr and exit with 2."""
        unknown = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        if unknown:
            message = _unknown("option", unknown[1], set(re.findall(r"--[a-z][a-z-]*", self.format_usage())))
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser(command: str | None = None) -> Parser:
    """The parser, with the arguments of one command, or of all when `command` is None."""
    parser = Parser(
        prog=PROGRAM,
        description="Capture what a deep-learning program really executes, export it to simulators, project speedups.",
        epilog=_overview(),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}", help="print the version and exit")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", help="one of those below", parser_class=Parser)
    for name in COMMANDS:
        wanted = command in (None, name)
        module = command_module(name) if wanted else None
        child = choices.add_parser(
            name,
            description=module.__doc__ if module else None,
            epilog="example:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES) if module else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        if module:
            module.configure(child)
            child.set_defaults(run=module.run, parser=child)
    return parser


def _overview() -> str:
    commands = "\n".join(f"  {name:<11}{summary}" for name, summary in COMMANDS.items())
    return f"commands:\n{commands}\n\nexample:\n  {PROGRAM} capture vgg\n\n{PROGRAM} COMMAND --help explains a command."


def command_module(name: str) -> ModuleType:
    """The module of one command; it has `EXAMPLES`, `configure(parser)` and `run(arguments) -> exit status`."""
    return importlib.import_module(f"fathom_trace.commands.{name}")


def run(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    try:
        try:
            return _dispatch(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written under the final name", 130)
    except MemoryError:
        return _fail("out of memory; take a smaller --batch-size or --preset, fewer --steps, or a machine with more")
    except Exception as error:
        message = _user_message(error)
        if message is None:
            raise
        return _fail(message)


def _dispatch(argv: Sequence[str]) -> int:
    command = next((word for word in argv if not word.startswith("-")), None)
    parser = build_parser(command or "")
    if command is not None and command not in COMMANDS:
        parser.error(_unknown("command", command, COMMANDS))
    arguments, rest = parser.parse_known_args(argv)
    if command is None:
        parser.error(f"unrecognized arguments: {rest[0]}" if rest else "a command is needed")
    if rest:
        arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    status: int = arguments.run(arguments)
    return status


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    from fathom_trace.errors import UnknownNameError

    return str(UnknownNameError(kind, name, known))


def _user_message(error: Exception) -> str | None:
    """The line to show for an error that the user can correct; None for a bug."""
    from fathom_trace.errors import FathomError, one_line

    if isinstance(error, FathomError):
        return one_line(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in ("tensorflow", "keras"):
        return "capturing needs TensorFlow, which is not installed here; install it with: pip install 'tensorflow>=2.21,<2.22'"
    if isinstance(error, OSError) and error.errno in _NOT_BUGS:
        return one_line(f"{error.filename or 'output'}: {error.strerror}; choose another place with -o, or make room")
    return None


def _fail(message: str, status: int = 1) -> int:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return status


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not complain about the closed pipe again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
