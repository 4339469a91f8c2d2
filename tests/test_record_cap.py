"""Is a step that TensorFlow did not record whole told from one that it did? A loop of 60,000 iterations, more than it keeps records of.

TensorFlow keeps 1,048,576 records of a step (`kMaxCollectedNodes`) and drops the others without a word.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fathom_trace.cli import run
from fathom_trace.store import load
from tests.captured_apart import run_apart

pytestmark = pytest.mark.capture

RECORDS = 1_048_576
PROGRAM = """
import numpy as np
import tensorflow as tf


def sixty_thousand():
    @tf.function
    def step(x):
        return tf.while_loop(lambda i, _: i < 60_000, lambda i, y: (i + 1, -y), (0, x))[1]

    return step, [np.ones([2], np.float32)]
"""


def test_a_loop_of_60_000_iterations_is_incomplete_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, since a million records take much memory."""
    pytest.importorskip("tensorflow")
    (tmp_path / "loop.py").write_text(PROGRAM)
    words = ("capture", "loop.py:sixty_thousand", "--steps", "1", "--warmup", "0", "--memory-steps", "0", "-o", "loop.h5")
    done = run_apart("fathom_trace", words, tmp_path)
    assert done.returncode == 1, done.stderr[-2000:]
    advice = "TensorFlow keeps at most 1,048,576 records of a step and this one has more: the rest was dropped; make the step smaller"
    assert f"problem: {advice}" in done.stdout
    assert "problem: the trace is incomplete: " in done.stdout
    trace = load(tmp_path / "loop.h5")
    step = trace.traced_steps[0]
    assert not trace.steps.complete[step]
    assert RECORDS - 10 <= trace.steps.recorded[step] <= RECORDS < trace.steps.produced[step]
    assert trace.provenance["record_cap_reached"]
    assert trace.provenance["first_missing"]
    assert run(("info", str(tmp_path / "loop.h5"))) == 0
    assert advice in capsys.readouterr().out
