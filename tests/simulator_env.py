"""Finds the simulators' virtual environments and runs code in them. `tests/make_simulators.sh` makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def simulator_folder() -> Path:
    """Where the environments are: `FATHOM_SIMULATORS`, or `simulators` in `FATHOM_ENVIRONMENTS` (by default ~/.venvs)."""
    given = os.environ.get("FATHOM_SIMULATORS")
    return Path(given) if given else Path(os.environ.get("FATHOM_ENVIRONMENTS", Path.home() / ".venvs")) / "simulators"


def simulator_python(name: str) -> Path:
    """The Python that has a simulator; without it the test is skipped, or fails where `FATHOM_REQUIRE_SIMULATORS` is 1."""
    python = simulator_folder() / name / "bin" / "python"
    if not python.exists():
        message = f"{python} does not exist; make it with: bash tests/make_simulators.sh {name}"
        if os.environ.get("FATHOM_REQUIRE_SIMULATORS") == "1":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return python


def run_example(script: str, simulator: str, argument: str, folder: Path) -> list[str]:
    """The lines that a script of `examples/` prints in `folder`, given an argument and a simulator's Python."""
    root = Path(__file__).parents[1]
    command = [sys.executable, str(root / "examples" / script), argument, str(simulator_python(simulator))]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def run_in_simulator(name: str, code: str, folder: Path, *arguments: str) -> Any:
    """Run Python `code` in `folder` with a simulator's own Python; returns what it printed last, read as JSON."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [str(simulator_python(name)), "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{name} failed in {folder}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])
