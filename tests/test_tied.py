"""Does a capture end with the sweep that began it, and does the machine's lock hold until the last that has it ends?

The process that stands for a capture asks a predicate that never answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import diamond

from fathom_trace.errors import CaptureError
from fathom_trace.store import save
from fathom_trace.sweeps.alone import NAME, only_one
from fathom_trace.sweeps.tied import Tied

ROOT = Path(__file__).parents[1]
ENDLESS = """\
import time
def select(execution):
    open("began", "w").close()
    time.sleep(100_000)
"""
WORDS = ["whatif", "diamond.h5", "--speedup", "predicate:endless.py=2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(diamond(), tmp_path / "diamond.h5")
    (tmp_path / "endless.py").write_text(ENDLESS, encoding="utf-8")
    return tmp_path


def await_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def test_it_runs_the_command_in_its_folder_and_says_how_it_ended(folder: Path) -> None:
    with Tied(["info", "diamond.h5"], folder) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "diamond" in out
    with Tied(["info", "diamond.h6"], folder) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err.startswith("fathom-trace: ")


def test_cut_loose_it_ends(folder: Path) -> None:
    with Tied(WORDS, folder) as process:
        await_file(folder / "began")
        process.cut()
        assert process.wait() == -signal.SIGKILL


def test_an_error_in_its_parent_ends_it(folder: Path) -> None:
    process = Tied(WORDS, folder)

    def interrupted() -> None:
        with process:
            await_file(folder / "began")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert process.returncode == -signal.SIGKILL


def test_it_ends_when_its_parent_is_killed_and_has_the_lock_until_then(folder: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from fathom_trace.sweeps.alone import only_one\nfrom fathom_trace.sweeps.tied import Tied\n"
        f"folder = Path({str(folder)!r})\nwith only_one(folder) as lock:\n    Tied({WORDS!r}, folder, [lock])\n    time.sleep(100_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}) as parent:
        await_file(folder / "began")
        with pytest.raises(CaptureError, match="another sweep is capturing"), only_one(folder):
            pass
        parent.kill()
    waited: list[None] = []
    with only_one(folder, waiting=lambda: waited.append(None)):
        assert (folder / NAME).exists()


def test_a_lock_that_another_user_made_is_taken_as_well(tmp_path: Path) -> None:
    (tmp_path / NAME).touch(0o444)
    with only_one(tmp_path), pytest.raises(CaptureError), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass
