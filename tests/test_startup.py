"""What does a command import before it does anything?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fathom_trace.cli import COMMANDS

ROOT = Path(__file__).parents[1]
HEAVY = ("tensorflow", "keras", "h5py", "numpy", "networkx", "pandas", "google.protobuf")


def imported(*arguments: str, module: str = "fathom_trace.__main__") -> set[str]:
    """Modules that are loaded after one command line ran in a new interpreter."""
    code = (
        "import sys\n"
        f"sys.argv = ['fathom-trace', *{arguments!r}]\n"
        f"import {module} as m\n"
        "try:\n    m.main() if hasattr(m, 'main') else None\nexcept SystemExit:\n    pass\n"
        "print('\\nMODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rsplit("MODULES ", 1)[1].split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    found = imported(module="fathom_trace")
    assert "fathom_trace" in found
    assert found.isdisjoint(HEAVY)
    assert not [m for m in found if m.startswith("fathom_trace.")]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_not_even_argparse(option: str) -> None:
    found = imported(option)
    assert "fathom_trace.cli" in found
    assert found.isdisjoint((*HEAVY, "argparse", "typing", "dataclasses", "importlib.metadata"))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_that_command_only(command: str) -> None:
    found = imported(command, "--help")
    assert found.isdisjoint(HEAVY)
    assert [m for m in found if m.startswith("fathom_trace.commands.")] == [f"fathom_trace.commands.{command}"]


@pytest.mark.parametrize("command", ["workloads", "exporters"])
def test_listing_imports_no_tensorflow(command: str) -> None:
    assert imported(command).isdisjoint(("tensorflow", "keras", "h5py", "networkx", "pandas"))
