"""Runs code in a process of its own in which importing TensorFlow or Keras raises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

_BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras"):
            raise ImportError(name + " must not be imported here")

sys.meta_path.insert(0, Block())
sys.path.insert(0, {str(ROOT)!r})
"""


def run_without_tensorflow(code: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python `code` in `folder`; `sys.argv[1:]` are the arguments."""
    command = [sys.executable, "-c", _BLOCK + code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
