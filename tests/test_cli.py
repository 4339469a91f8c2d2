"""Does the command line say what went wrong, on one line and with the right exit status, and leave nothing half done?"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fathom_trace.commands.workloads as some_command
from fathom_trace.cli import COMMANDS, command_parser, overview, run
from fathom_trace.errors import FathomError

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def fathom_trace(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """One command line in a process of its own."""
    command = [sys.executable, "-m", "fathom_trace", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def fail(_arguments: argparse.Namespace) -> int:
        raise error

    return fail


# --- finding the command ------------------------------------------------------------------------------------------------------


def test_every_command_has_a_file_and_every_file_is_a_command() -> None:
    files = {p.stem for p in (ROOT / "fathom_trace" / "commands").glob("*.py")} - {"__init__"}
    assert files == set(COMMANDS)


def test_help_lists_every_command_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == overview()
    assert err == ""
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example_that_parses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run([command, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    examples = [line.split()[1:] for line in out.partition("example")[2].splitlines() if line.startswith("  fathom-trace ")]
    assert examples
    for words in examples:
        assert words[0] == command
        command_parser(command).parse_args(words[1:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["captre", "vgg"], "no command is called 'captre'; did you mean 'capture'?"),
        (["--hepl"], "no option is called '--hepl'; did you mean '--help'?"),
        ([], "a command is needed"),
    ],
)
def test_a_wrong_command_is_a_usage_error_with_the_nearest(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"fathom-trace: {message}; see fathom-trace --help\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["workloads", "--jsn"], "no option is called '--jsn'; did you mean '--json'?"),
        (["capture", "vgg", "--batchsize", "4"], "no option is called '--batchsize'; did you mean '--batch-size'?"),
        (["capture"], "the following arguments are required: WORKLOAD"),
        (["capture", "vgg", "--batch-size", "0"], "argument --batch-size: 0 is too small; it must be at least 1"),
        (["capture", "vgg", "--steps", "few"], "argument --steps: 'few' is not a whole number from 1 to 2147483647"),
        (["capture", "vgg", "--steps", "9" * 20], f"argument --steps: {'9' * 20} is too large; it must be at most 2147483647"),
        (["capture", "vgg", "--max-events", "0"], "argument --max-events: 0 is too small; it must be at least 1"),
        (["ops", "a.h5", "--min-coverage", "101"], "argument --min-coverage: '101' is not a percentage from 0 to 100"),
        (["capture", "vgg", "--pre", "tiny"], "no option is called '--pre'; did you mean '--preset'?"),
    ],
)
def test_wrong_arguments_are_a_usage_error_on_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(words)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"fathom-trace {words[0]}: {message}; see fathom-trace {words[0]} --help\n"


# --- errors -------------------------------------------------------------------------------------------------------------------


OUT_OF_MEMORY = "out of memory; take a smaller --batch-size or --preset, fewer --steps, or a machine with more"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (FathomError("two\nlines"), 1, "two\\nlines"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written under the final name"),
        (MemoryError(), 1, OUT_OF_MEMORY),
        (OSError(12, "Cannot allocate memory"), 1, OUT_OF_MEMORY),
        (ImportError("libhdf5.so: failed to map segment from shared object"), 1, OUT_OF_MEMORY),
        (
            OSError(5, "Input/output error", "/x/y.h5"),
            1,
            "cannot write /x/y.h5: Input/output error; choose another place or make room",
        ),
        (
            PermissionError(13, "Permission denied", "/x/y.h5"),
            1,
            "cannot write /x/y.h5: Permission denied; choose another place or make room",
        ),
    ],
)
def test_an_error_that_is_no_bug_is_one_line(
    error: BaseException, status: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(some_command, "run", raising(error))
    assert run(["workloads"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"fathom-trace: {message}\n"


@pytest.mark.parametrize(("option", "most"), [("steps", 1_000_000), ("warmup", 1_000_000), ("threads", 4096)])
def test_what_would_run_until_the_machine_is_full_is_refused(option: str, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "vgg", f"--{option}", str(most + 1)]) == 1
    assert capsys.readouterr().err == f"fathom-trace: {option} is {most + 1}; it must be at most {most}\n"


@pytest.mark.parametrize("error", [KeyError("x"), FileNotFoundError(2, "No such file", "internal"), AssertionError()])
def test_a_bug_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_command, "run", raising(error))
    with pytest.raises(type(error)):
        run(["workloads"])


def test_a_closed_pipe_is_no_error() -> None:
    for words in (["--help"], ["workloads"]):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "fathom_trace", *words]
        done = subprocess.run(command, env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fathom_trace", "--help"]
        done = subprocess.run(command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "fathom-trace: cannot write the output: No space left on device; choose another place or make room\n"


@pytest.mark.parametrize("words", [["capture", "vgg", "--data", ""], ["whatif", "x.h5", "--sweep", ""], ["info", ""]])
def test_an_empty_argument_is_a_variable_that_was_not_set(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(words)
    assert left.value.code == 2
    assert "an argument is empty" in capsys.readouterr().err


def test_a_closed_stdout_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m fathom_trace exporters >&-"],
        env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ops", "x.h5", "--top", "1", "--top", "2"], "--top is given twice; give it once"),
        (["ops", "x.h5", "--by=op", "--by", "kind"], "--by is given twice; give it once"),
        (["export", "x.h5", "table", "-o", "a", "--output=b"], "-o, which is also --output, is given twice; give it once"),
        (["ops", "x.h5", "--step", "1", "--steps", "2"], "--step, which is also --steps, is given twice; give it once"),
        (["capture", "vgg", "--seed", "1", "--mode", "inference", "--seed", "1"], "--seed is given twice; give it once"),
        (["capture", "model.keras", "--shape", "x=0"], "argument --shape: 0 is too small; it must be at least 1"),
        (["capture", "model.keras", "--shape", "x=2,0,3"], "argument --shape: 0 is too small; it must be at least 1"),
    ],
)
def test_values_that_would_be_lost_or_hold_nothing_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_options_that_may_be_repeated_still_may() -> None:
    arguments = command_parser("export").parse_args(["x.h5", "table", "--set", "a=1", "--set", "b=2", "--json", "--json"])
    assert arguments.settings == ["a=1", "b=2"]
