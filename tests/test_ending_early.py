"""Does a command that is interrupted, or told to end, leave nothing half-written behind and say so in one line?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fathom_trace import placing
from fathom_trace.destination import replacing_folder
from fathom_trace.ending import ending_in_order
from fathom_trace.exporting import export
from fathom_trace.store import save
from tests.small import dense

ROOT = Path(__file__).parents[1]

SLOW_EXPORT = """
import sys, time
from fathom_trace.exporters import REGISTRY

module = REGISTRY.load("table")

def write(trace, folder, options):
    (folder / "half.csv").write_text("half of it")
    print("writing", flush=True)
    time.sleep(600)

module.write = write
from fathom_trace.__main__ import main
sys.argv = ["fathom-trace", *sys.argv[1:]]
sys.exit(main())
"""

INTERRUPTED_IMPORT = """
import sys
from fathom_trace.__main__ import main

module = sys.argv.pop(1)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(main())
"""


def start(script: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    """A Python script in a process of its own, in which signals do what they do by default."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_signals,
    )  # fmt: skip


def heed_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "status", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")])
def test_an_export_that_is_ended_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, status: int, word: str) -> None:
    save(dense(), tmp_path / "dense.h5")
    process = start(SLOW_EXPORT, tmp_path, "export", "dense.h5", "table")
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert any(p.name.endswith(".partial") for p in tmp_path.iterdir())
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, f"fathom-trace: {word}; nothing was written under the final name\n")
    assert [p.name for p in tmp_path.iterdir()] == ["dense.h5"]


def test_the_export_that_was_there_stays(tmp_path: Path) -> None:
    save(dense(), tmp_path / "dense.h5")
    export(dense(), "table", tmp_path / "dense-table")
    before = {p.name: p.read_bytes() for p in (tmp_path / "dense-table").iterdir()}
    process = start(SLOW_EXPORT, tmp_path, "export", "dense.h5", "table", "--force")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert {p.name for p in tmp_path.iterdir()} == {"dense.h5", "dense-table"}
    assert {p.name: p.read_bytes() for p in (tmp_path / "dense-table").iterdir()} == before


def test_an_interrupt_between_two_renames_puts_the_old_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old").write_text("old")
    rename = os.rename
    aside: list[Path] = []

    def interrupted(path: Path, target: Path) -> None:
        if path.suffix == ".partial" and aside:
            raise KeyboardInterrupt
        rename(path, target)
        aside.append(target)

    monkeypatch.setattr(placing, "_renameat2", lambda: None)  # a file system that exchanges no names
    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), replacing_folder(folder) as partial:
        (partial / "new").write_text("new")
    assert aside == [partial.with_suffix(".old"), folder], "moved aside, and back"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in folder.iterdir()] == ["old"]


def test_what_sigterm_does_elsewhere_stays(tmp_path: Path) -> None:
    """The program that calls `export` may have its own handler; afterwards everything is as before."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with replacing_folder(tmp_path / "a"):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with replacing_folder(tmp_path / "b"):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


IMPORTED = (
    "fathom_trace.cli",
    "argparse",
    "fathom_trace.arguments",
    "fathom_trace.commands.info",
    "fathom_trace.store",
    "numpy",
    "h5py",
)


@pytest.mark.parametrize("module", IMPORTED)
def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path: Path, module: str) -> None:
    save(dense(), tmp_path / "dense.h5")
    process = start(INTERRUPTED_IMPORT, tmp_path, module, "info", "dense.h5")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err == "fathom-trace: interrupted; nothing was written under the final name\n"


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_error_on_the_way_out_does_not_hide_an_interrupt(
    number: signal.Signals, ends: type[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the standard library does when it is interrupted between closing a folder and noting it: it closes it once more."""
    handle = os.open(tmp_path, os.O_RDONLY)

    def close_and_be_ended() -> None:
        try:
            os.close(handle)
            os.kill(os.getpid(), number)
        finally:
            os.close(handle)  # EBADF

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background has it ignored
    try:
        with pytest.raises(ends), ending_in_order():
            close_and_be_ended()
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.startswith("fathom-trace: terminated; ") is (number == signal.SIGTERM)
