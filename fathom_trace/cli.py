"""The command line: finds the command, imports only that one, runs it and turns errors into one line and an exit status.

Exit status: 0 done, 1 an error that the user can correct (or a result that is not good), 2 wrong usage, 130 interrupted, 143 terminated.
Nothing is imported before it is needed, not even `argparse`: `--help` then costs little more than starting Python.
"""

from __future__ import annotations

import os
import sys

from fathom_trace import __version__

TYPE_CHECKING = False  # as type checkers take it, without the cost of importing `typing`
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fathom_trace.arguments import Parser

PROGRAM = "fathom-trace"

COMMANDS = {
    "capture": "run a workload once under full tracing and write what it executed",
    "sweep": "capture workloads over modes, presets, stages, batch sizes and threads, one at a time",
    "info": "say what a trace holds, how it came about and whether it is sound",
    "ops": "where the time goes: a table by op type, kind, layer or phase",
    "memory": "what a step allocates: live bytes, the peak and what it consists of",
    "rewrites": "account for the MACs that TensorFlow's own rewriting removed",
    "whatif": "project what faster operations do to the whole program",
    "report": "the Fathom paper's analyses over many traces: numbers, figures and one page",
    "export": "write a trace in the format of a simulator or viewer",
    "check": "parse an export again, as strictly as its target does",
    "convert": "copy a trace into the other file format, without loss",
    "workloads": "list the workloads, or describe one",
    "exporters": "list the exporters, or describe one",
}


def overview() -> str:
    """What `--help` prints."""
    commands = "\n".join(f"  {name:<11}{summary}" for name, summary in COMMANDS.items())
    return (
        f"usage: {PROGRAM} COMMAND [ARGUMENT ...]\n       {PROGRAM} --help | --version\n\n"
        "Capture what a deep-learning program really executes, export it to simulators, project speedups.\n\n"
        f"commands:\n{commands}\n\nexample:\n  {PROGRAM} capture vgg\n\n`{PROGRAM} COMMAND --help` explains a command."
    )


def command_parser(name: str) -> Parser:
    """The parser of one command, whose module has `EXAMPLES`, `configure(parser)` and `run(arguments) -> exit status`."""
    import importlib

    from fathom_trace.arguments import Parser

    module = importlib.import_module(f"fathom_trace.commands.{name}")
    parser = Parser(f"{PROGRAM} {name}", module.__doc__ or "", module.EXAMPLES)
    module.configure(parser)
    parser.set_defaults(run=module.run)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    if sys.stdout is None:  # closed by whoever started this: results go nowhere, as into a closed pipe
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        try:
            return _dispatch(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except KeyboardInterrupt:
        from fathom_trace.ending import INTERRUPTED, ended

        return _fail(ended("interrupted"), INTERRUPTED)
    except Exception as error:
        message = _user_message(error)
        if message is None:
            raise
        return _fail(message)


def _dispatch(argv: Sequence[str]) -> int:
    first = argv[0] if argv else None
    if first in ("-h", "--help"):
        print(overview())
        return 0
    if first == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    if first not in COMMANDS:
        return _fail(f"{_wrong_command(first)}; see {PROGRAM} --help", 2)
    arguments = command_parser(first).parse_args(argv[1:])
    arguments.command_line = [PROGRAM, *argv]
    from fathom_trace.ending import anew, ending_in_order

    anew()
    with ending_in_order():
        status: int = arguments.run(arguments)
    return status


def _wrong_command(word: str | None) -> str:
    if word is None:
        return "a command is needed"
    from fathom_trace.errors import UnknownNameError

    return str(UnknownNameError("option" if word.startswith("-") else "command", word, ["--help", "--version", *COMMANDS]))


def _user_message(error: Exception) -> str | None:
    """The line to show for an error that the user can correct; None for a bug."""
    import errno

    from fathom_trace.errors import FathomError, one_line

    if isinstance(error, FathomError):
        return one_line(error)
    if _lacks_memory(error):
        return "out of memory; take a smaller --batch-size or --preset, fewer --steps, or a machine with more"
    not_bugs = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG}
    not_bugs |= {errno.EIO, errno.EFBIG, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE}
    if isinstance(error, OSError) and error.errno in not_bugs:
        if error.filename is None:
            _discard_stdout()
        return one_line(f"cannot write {error.filename or 'the output'}: {error.strerror}; choose another place or make room")
    return None


def _lacks_memory(error: Exception) -> bool:
    """True for what is raised when memory is out: also by the dynamic linker, while a library is loaded, and by protobuf."""
    import errno

    words = ("failed to map segment from shared object", "cannot allocate memory", "Arena alloc failed")
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM or any(w in str(error) for w in words)


def _fail(message: str, status: int = 1) -> int:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return status


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not complain about it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
