"""Captures in processes of their own: whether TensorFlow has oneDNN is settled when it is imported, so stage `optimized` needs another.

`python -m tests.captured_apart STAGE FOLDER NAME-MODE ...` captures tiny workloads, all in one process, as FOLDER/NAME-MODE.h5.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fathom_trace.store import load, save
from fathom_trace.trace import Trace


def capture_apart(target: str, folder: Path, stage: str, *options: str) -> Trace:
    """One traced step of a program in a file of `folder`, `file.py:callable`, by the command line."""
    output = folder / f"{target.rpartition(':')[2]}-{stage}.h5"
    words = ("capture", target, "--stage", stage, "--steps", "1", "--warmup", "0", "-o", str(output), *options)
    done = run_apart("fathom_trace", words, folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return load(output)


def capture_workloads_apart(runs: Iterable[str], folder: Path, stage: str) -> dict[str, Trace]:
    """Tiny workloads, two traced steps each; `runs` are NAME-MODE."""
    wanted = list(runs)
    folder.mkdir(exist_ok=True)
    done = run_apart("tests.captured_apart", (stage, str(folder), *wanted), folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return {run: load(folder / f"{run}.h5") for run in wanted}


def run_apart(module: str, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module in `folder`, with oneDNN as the module sets it."""
    kept = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    found_here = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder, env={**kept, "PYTHONPATH": found_here}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _main(stage: str, folder: str, *runs: str) -> None:
    from fathom_trace.capture import CaptureRequest, Plan, capture_workload

    plan = Plan(steps=2, stage=stage, times_parallel_iterations=False)
    for run in runs:
        name, _, mode = run.partition("-")
        save(capture_workload(CaptureRequest(name, mode=mode, preset="tiny", plan=plan)), Path(folder) / f"{run}.h5", force=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
