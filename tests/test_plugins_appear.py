"""Is a file in a plug-in folder all that a new workload or exporter takes?

Both are made up here and put into a copy of the checkout; nothing else in it is edited.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small import diamond
from test_exporter_contract import MADE_UP as EXPORTER

from fathom_trace.store import save

ROOT = Path(__file__).parents[1]

WORKLOAD = '''"""A linear model, made up by a test.

A training step fits one weight a feature to targets by gradient descent.
"""

from dataclasses import dataclass

from fathom_trace.errors import DataError
from fathom_trace.options import option
from fathom_trace.workload import InputSpec, Preset, Program

CITATION = "none: it is made up"
DATA_FORMAT = "nothing: it reads no data"


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    features: int = option(3, "numbers in a sample")


PRESETS = {name: Preset(Options(), {"training": 4, "inference": 4}, 3, "made up") for name in ("seminal", "paper", "tiny")}


def inputs(options, mode, batch_size):
    """The samples, and in training their targets."""
    sample = InputSpec("sample", (batch_size, options.features), "float32", 0, 1)
    target = InputSpec("target", (batch_size, 1), "float32", 0, 1, role="label")
    return (sample, target) if mode == "training" else (sample,)


def build(options, mode, batch_size, seed):
    """The step."""
    import tensorflow as tf

    weight = tf.Variable(tf.ones([options.features, 1]), name="linear/weight")

    def predict(sample):
        with tf.name_scope("linear"):
            return tf.matmul(sample, weight)

    def train(sample, target):
        logits = predict(sample)
        with tf.name_scope("loss"):
            loss = tf.reduce_mean(tf.square(logits - target))
        [gradient] = tf.gradients(loss, [weight])
        tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.1, delta=gradient)
        return {"loss": loss, "logits": logits}

    return Program(train if mode == "training" else lambda sample: {"logits": predict(sample)}, trainable=[weight])


def read_data(folder, options, mode, batch_size, seed):
    """Nothing."""
    raise DataError(f"{folder}: the made-up workload reads no data; leave --data out")
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with both files in it."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    ignored = shutil.ignore_patterns(".git", ".*_cache", "__pycache__", ".hypothesis", ".venv")
    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / "workloads" / "made_up.py").write_text(WORKLOAD)
    (copy / "exporters" / "made_up.py").write_text(EXPORTER)
    return copy


def run(checkout: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy in place of this checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": str(checkout)}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def passed(checkout: Path, test: str) -> set[str]:
    """Names of the tests of `test` for the made-up plug-in, all of which passed in the copy."""
    done = run(
        checkout, checkout, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "made_up", f"tests/{test}.py"
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return set(re.findall(rf"^tests/{test}\.py::(\w+)\S* PASSED", done.stdout, re.MULTILINE))


@pytest.mark.parametrize(
    ("kind", "summary"),
    [
        ("workloads", "A linear model, made up by a test"),
        ("exporters", "Made-up format: a line of name and duration for each execution"),
    ],
)
def test_it_is_listed_and_described(checkout: Path, tmp_path: Path, kind: str, summary: str) -> None:
    listed = run(checkout, tmp_path, "-m", "fathom_trace", kind)
    assert listed.returncode == 0, listed.stderr
    assert re.search(rf"^made_up .*{summary}$", listed.stdout, re.MULTILINE)
    described = run(checkout, tmp_path, "-m", "fathom_trace", kind, "made-up", "--json")
    assert described.returncode == 0, described.stderr
    assert json.loads(described.stdout)["description"].startswith(summary)


def test_an_exporter_that_breaks_its_contract_does_not_hide_the_others(checkout: Path, tmp_path: Path) -> None:
    broken = checkout / "exporters" / "broken.py"
    broken.write_text('"""Lacks everything."""\n')
    try:
        listed = run(checkout, tmp_path, "-m", "fathom_trace", "exporters")
    finally:
        broken.unlink()
    assert listed.returncode == 1
    assert re.search(r"^broken +- +unusable +exporter 'broken' .* lacks TARGET, Options, write, check", listed.stdout, re.MULTILINE)
    assert re.search(r"^made_up ", listed.stdout, re.MULTILINE)


def test_the_exporter_exports_checks_and_feeds_results_back(checkout: Path, tmp_path: Path) -> None:
    """A 10 us, then B 50 us beside C 30 us, then D 10 us. The target answers 10, 5, 30 and 10 cycles of 1 us: 50 us remain."""
    save(diamond(), tmp_path / "diamond.h5")
    done = run(checkout, tmp_path, "-m", "fathom_trace", "export", "diamond.h5", "made-up")
    assert done.returncode == 0, done.stderr
    exported = tmp_path / "diamond-made_up"
    assert (exported / "made_up.txt").read_text() == "A 10000\nB 50000\nC 30000\nD 10000\nend\n"
    assert run(checkout, tmp_path, "-m", "fathom_trace", "check", exported.name).returncode == 0
    (exported / "results").write_text("10\n5\n30\n10\n")
    words = ("whatif", "diamond.h5", "--from", exported.name, "--clock", "1MHz", "--json")
    projected = json.loads(run(checkout, tmp_path, "-m", "fathom_trace", *words).stdout)
    assert {e["method"]: e["after_ns"] for e in projected["estimates"]} == {"amdahl": 55_000, "replay": 50_000, "unlimited": 50_000}
    (exported / "made_up.txt").write_text("cut off")
    assert run(checkout, tmp_path, "-m", "fathom_trace", "check", exported.name).returncode == 1


@pytest.mark.capture
def test_the_workload_contract_tests_run_over_it(checkout: Path) -> None:
    assert passed(checkout, "test_workload_contract")


@pytest.mark.capture
def test_the_workload_is_captured(checkout: Path, tmp_path: Path) -> None:
    """A step multiplies once forward and once for the gradient of the weight: 4 x 3 MACs each."""
    done = run(checkout, tmp_path, "-m", "fathom_trace", "capture", "made-up", "--steps", "1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["checks"]["problems"] == []
    assert {row["key"]: row["count"] for row in summary["top_ops"]}["MatMul"] == 2
    assert (tmp_path / "made_up-training.h5").is_file()
