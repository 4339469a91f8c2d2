"""Does `capture all` go on after a failure, leave what is there alone, and report at the end?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fathom_trace.sweeps.collection import MANIFEST, capture_all

pytestmark = pytest.mark.capture
pytest.importorskip("tensorflow")

QUICK = ["--preset", "tiny", "--steps", "1", "--warmup", "0"]


def test_goes_on_after_a_failure_and_writes_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "deepq-training.h5").write_text("in the way")
    told: list[str] = []
    made = capture_all(["deepq"], tmp_path, QUICK, force=False, report=told.append)
    assert [(c.mode, bool(c.error)) for c in made] == [("training", True), ("inference", False)]
    assert "--force" in made[0].error
    assert any("--force" in line for line in told), "the failure is told when it happens"
    assert (tmp_path / "deepq-training.h5").read_text() == "in the way"
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert [m["error"] == "" for m in manifest] == [False, True]
    assert manifest[1]["executions"] == made[1].executions > 0
    assert manifest[1]["peak_bytes"] > 50_000_000, "TensorFlow alone holds more than 50 MB"


def test_an_unknown_preset_fails_each_capture_by_name(tmp_path: Path) -> None:
    made = capture_all(["deepq"], tmp_path, ["--preset", "tny"], force=False, report=lambda _: None)
    assert all("did you mean 'tiny'" in c.error for c in made)
    assert list(tmp_path.glob("*.h5")) == []
