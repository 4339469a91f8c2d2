"""What does a command import before it does anything?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small import dense
from without_tensorflow import run_without_tensorflow

from fathom_trace.cli import COMMANDS
from fathom_trace.store import save

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


COMMAND_LINE = "from fathom_trace.cli import run\nsys.exit(run(sys.argv[1:]))"


def test_all_but_capture_works_where_tensorflow_cannot_be_imported(tmp_path: Path) -> None:
    save(dense(), tmp_path / "mlp.h5")
    lines = [
        "info mlp.h5", "ops mlp.h5 --by layer", "ops mlp.h5 --by phase", "ops mlp.h5 --by kind", "whatif mlp.h5 --speedup MatMul=10",
        "whatif mlp.h5 --speedup layer:*=2 --sweep kind:gemm=1..10", "export mlp.h5 scale-sim", "check mlp-scale_sim",
        "convert mlp.h5 mlp.pb", "workloads", "exporters", "exporters scale-sim",
    ]  # fmt: skip
    for words in [*lines, *(f"workloads {p.stem}" for p in sorted((ROOT / "workloads").glob("*.py")))]:
        done = run_without_tensorflow(COMMAND_LINE, *words.split(), folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout


def test_capture_says_that_tensorflow_is_missing(tmp_path: Path) -> None:
    done = run_without_tensorflow(COMMAND_LINE, "capture", "vgg", "--preset", "tiny", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("fathom-trace: TensorFlow ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
