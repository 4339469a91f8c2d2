"""Captures in a process of their own: whether TensorFlow has oneDNN is settled when it is imported, so stage `optimized` needs another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fathom_trace.store import load
from fathom_trace.trace import Trace


def capture_apart(target: str, folder: Path, stage: str, *options: str) -> Trace:
    """One traced step of a program in a file of `folder`, `file.py:callable`, by the command line."""
    output = folder / f"{target.rpartition(':')[2]}-{stage}.h5"
    words = ("capture", target, "--stage", stage, "--steps", "1", "--warmup", "0", "-o", str(output), *options)
    kept = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    found_here = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "fathom_trace", *words],
        cwd=folder, env={**kept, "PYTHONPATH": found_here}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return load(output)
