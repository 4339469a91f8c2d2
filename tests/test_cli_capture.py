"""Does a real capture through the command line end in a file, and an interrupted one in none?"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fathom_trace.store import load

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.capture


def start(folder: Path, *words: str, stderr: int) -> subprocess.Popen[str]:
    """`fathom-trace` in a process of its own, which heeds an interrupt even where this one was started to ignore it (in the background)."""
    command = [sys.executable, "-m", "fathom_trace", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=heed_interrupts
    )


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_capture_writes_what_its_summary_says(tmp_path: Path) -> None:
    process = start(tmp_path, "capture", "vgg", "--preset", "tiny", "--steps", "2", "--json", stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    summary = json.loads(out)
    assert [p.name for p in tmp_path.iterdir()] == [summary["file"]] == ["vgg-tiny-training.h5"]
    trace = load(tmp_path / summary["file"])
    assert len(trace.traced_steps) == summary["traced_steps"] == 2
    assert summary["checks"]["recorded"] == summary["checks"]["produced"] == 2 * summary["executions"]
    assert trace.provenance["command_line"] == "fathom-trace capture vgg --preset tiny --steps 2 --json"


def test_interrupting_a_capture_leaves_no_file_and_one_line(tmp_path: Path) -> None:
    """On a terminal, so that the progress bar tells when steps are running."""
    terminal, end = pty.openpty()
    process = start(tmp_path, "capture", "vgg", "--preset", "tiny", "--steps", "1000000", stderr=end)
    os.close(end)
    shown = ""
    while "/1000000 step" not in shown:
        shown += os.read(terminal, 1024).decode()
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(terminal, 1024).decode():
            shown += more
    except OSError:  # how Linux says that the other end has closed
        pass
    os.close(terminal)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert shown.rpartition("\x1b[K")[2].splitlines() == ["fathom-trace: interrupted; nothing was written under the final name"]
    assert list(tmp_path.iterdir()) == []
