"""Do results take their names in one step whatever the file system can, is only what is left over cleared, and is each fault one line?"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small

from fathom_trace import placing
from fathom_trace.cli import run
from fathom_trace.destination import check_folder, replacing_folder
from fathom_trace.errors import CaptureError, ExportError, TraceFileError
from fathom_trace.exporters import REGISTRY
from fathom_trace.exporting import check, export
from fathom_trace.store import load, save
from fathom_trace.store.files import replacing
from fathom_trace.sweeps.alone import only_one

ROOT = Path(__file__).parents[1]
MARKER = "export.json"


def refuse(code: int) -> Callable[..., Any]:
    """A system call that fails."""

    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(params=["Linux", "no exchange", "no exchange, no links"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the file system can do."""
    if request.param != "Linux":
        monkeypatch.setattr(placing, "_renameat2", lambda: None)
    if "links" in request.param:
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    return str(request.param)


def write_folder(path: Path, text: str, force: bool = True) -> None:
    with replacing_folder(path, force) as partial:
        (partial / "a").write_text(text)


def write_file(path: Path, text: str, force: bool = True) -> None:
    with replacing(path, force) as file:
        file.write(text.encode())


@pytest.mark.usefixtures("file_system")
def test_a_free_name_is_taken_and_a_taken_one_only_by_force(tmp_path: Path) -> None:
    for write, path, content in ((write_file, tmp_path / "f", tmp_path / "f"), (write_folder, tmp_path / "d", tmp_path / "d" / "a")):
        write(path, "1", False)
        with pytest.raises((TraceFileError, ExportError), match=rf"{path} exists; pass --force to replace it"):
            write(path, "2", False)
        assert content.read_text() == "1"
        write(path, "3", True)
        assert content.read_text() == "3"
    assert names(tmp_path) == ["d", "f"]


@pytest.mark.usefixtures("file_system")
def test_of_two_writers_that_found_a_name_free_one_is_refused(tmp_path: Path) -> None:
    for write, path in ((write_file, tmp_path / "f"), (write_folder, tmp_path / "d")):
        with pytest.raises((TraceFileError, ExportError), match="exists; pass --force"):
            _write_within(write, path)
    assert (tmp_path / "f").read_text() == "first"
    assert (tmp_path / "d" / "a").read_text() == "first"
    assert names(tmp_path) == ["d", "f"]


def _write_within(write: Callable[[Path, str, bool], None], path: Path) -> None:
    """The later of two writers, which began before the earlier one ended."""
    if write is write_file:
        with replacing(path, False) as file:
            file.write(b"second")
            write(path, "first", False)
    else:
        with replacing_folder(path, False) as partial:
            (partial / "a").write_text("second")
            write(path, "first", False)


@pytest.mark.usefixtures("file_system")
def test_with_force_the_last_of_two_writers_stays(tmp_path: Path) -> None:
    write_folder(tmp_path / "d", "old")
    with replacing_folder(tmp_path / "d") as partial:
        (partial / "a").write_text("second")
        write_folder(tmp_path / "d", "first")
    assert (tmp_path / "d" / "a").read_text() == "second"
    assert names(tmp_path) == ["d"]


RACER = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
from fathom_trace import placing
from fathom_trace.destination import replacing_folder

path, text, can = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if can == "no":
    placing._renameat2 = lambda: None
for round in range(60):
    with replacing_folder(path) as partial:
        for name in "ab":
            (partial / name).write_text(text)
"""


@pytest.mark.parametrize("can", ["yes", "no"])
def test_racing_writers_of_a_folder_leave_one_whole_and_nothing_else(can: str, tmp_path: Path) -> None:
    code = RACER.format(root=str(ROOT), tests=str(ROOT / "tests"))
    path = tmp_path / "d"
    racers = [subprocess.Popen([sys.executable, "-c", code, str(path), text, can], stderr=subprocess.PIPE) for text in "xy"]
    ended = [racer.communicate(timeout=300)[1] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0], ended
    assert len({(path / name).read_text() for name in "ab"}) == 1
    assert names(tmp_path) == ["d"]


# --- what is left over ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def left(tmp_path: Path) -> Iterator[list[str]]:
    """What killed writers of `f` and `d` left, and what is none of that: of other names, of a user, and of writers at work."""
    for name in (f"f.{os.getpid()}.0.partial", "f.1.7.partial"):
        (tmp_path / name).write_text("half")
    for name in (".d.abcdefgh.partial", ".d.12345678.old"):
        (tmp_path / name / "more").mkdir(parents=True)
    stays = ["f.2.0.partial", "f.mine.partial", "ff.1.0.partial", ".d.atwork__.partial", ".d.mine.partial", ".dd.abcdefgh.partial"]
    handles = []
    for name in stays:
        (tmp_path / name).mkdir() if name.startswith(".") else (tmp_path / name).write_text("")
        if name in ("f.2.0.partial", ".d.atwork__.partial"):
            handles.append(os.open(tmp_path / name, os.O_RDONLY))
            fcntl.flock(handles[-1], fcntl.LOCK_SH)
    yield stays
    for handle in handles:
        os.close(handle)


def test_the_next_writer_removes_what_is_left_and_nothing_else(tmp_path: Path, left: list[str]) -> None:
    write_file(tmp_path / "f", "new")
    write_folder(tmp_path / "d", "new")
    assert names(tmp_path) == sorted([*left, "d", "f"])


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_locks_are_refused_all_is_written_and_nothing_cleared(
    code: int, tmp_path: Path, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [name for name in names(tmp_path) if not name.endswith(".old")]  # of that, no lock needs to tell
    monkeypatch.setattr(fcntl, "flock", refuse(code))
    write_file(tmp_path / "f", "new")
    write_folder(tmp_path / "d", "new")
    assert names(tmp_path) == sorted([*before, "d", "f"])


def test_a_partial_that_another_took_for_left_over_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a file and its lock, the next writer may come by."""
    flock, taken = fcntl.flock, list[Path]()

    def steal(handle: int, how: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            shutil.rmtree(taken[0]) if taken[0].is_dir() else taken[0].unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", steal)
    for write, path in ((write_file, tmp_path / "f"), (write_folder, tmp_path / "d")):
        write(path, "whole", False)
        assert len(taken) == 1
        assert names(tmp_path) == [path.name]
        (shutil.rmtree if path.is_dir() else os.unlink)(path)
        taken.clear()


def moved_aside(tmp_path: Path, is_placed: bool) -> Path:
    """An export that a killed process had moved aside; with `is_placed`, the new one had its name, and was removed since."""
    save(small.dense(), tmp_path / "dense.h5", force=True)
    folder = tmp_path / "d"
    export(small.dense(), "table", folder)
    folder.rename(tmp_path / ".d.abcdefgh.old")
    if not is_placed:
        (tmp_path / ".d.abcdefgh.partial").mkdir()
    return folder


def test_every_command_that_reads_or_replaces_a_folder_finds_it_again(tmp_path: Path) -> None:
    folder = moved_aside(tmp_path, is_placed=False)
    assert check(folder)[1].ok
    assert (folder / MARKER).is_file()
    shutil.rmtree(tmp_path / ".d.abcdefgh.partial")
    folder = tmp_path / "again"
    (tmp_path / "d").rename(folder)
    moved = moved_aside(tmp_path, is_placed=False)
    with pytest.raises(ExportError, match="d exists; pass --force to replace it"):
        check_folder(moved, force=False, marker=MARKER)
    export(small.dense(), "table", moved, force=True)
    assert names(tmp_path) == ["again", "d", "dense.h5"]


def test_what_was_being_removed_is_not_put_back(tmp_path: Path) -> None:
    folder = moved_aside(tmp_path, is_placed=True)
    with pytest.raises(ExportError, match="does not exist"):
        check(folder)
    export(small.dense(), "perfetto", folder)
    assert names(tmp_path) == ["d", "dense.h5"]


def test_what_stands_under_the_name_is_never_replaced_by_what_was_moved_aside(tmp_path: Path) -> None:
    folder = moved_aside(tmp_path, is_placed=False)
    folder.mkdir()
    assert not placing.restore(folder)
    assert names(tmp_path) == [".d.abcdefgh.old", ".d.abcdefgh.partial", "d", "dense.h5"]


# --- faults -----------------------------------------------------------------------------------------------------------------------


def test_a_folder_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could leave the name and lose the content: each file is flushed after it is written, then the folder is renamed."""
    flushed: set[int] = set()
    rename = os.rename

    def note(handle: int) -> None:
        flushed.add(os.fstat(handle).st_ino)

    def check_flushed(source: Path, target: Path) -> None:
        if Path(source).suffix == placing.PARTIAL:
            wanted = [source, *source.rglob("*")]
            assert len(wanted) > 3
            assert {p.stat().st_ino for p in wanted} <= flushed
            flushed.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", check_flushed)
    export(small.dense(), "table", tmp_path / "d")
    assert flushed == {tmp_path.stat().st_ino}, "the folder with the new name, at last"


def _write_and(fault: Callable[[Path], None]) -> Callable[..., Any]:
    write = REGISTRY.load("table").write

    def faulty(trace: Any, folder: Path, options: Any) -> Any:
        report = write(trace, folder, options)
        fault(folder)
        return report

    return faulty


FULL, BROKEN = r"\(No space left on device\); make room or choose another folder with -o$", r"\(Input/output error\); make room"


@pytest.mark.parametrize(("fault", "message"), [
    (lambda _: refuse(errno.ENOSPC)(), FULL),
    (lambda _: refuse(errno.EIO)(), BROKEN),
    (lambda _: refuse(errno.ESTALE)(), r"\(Stale file handle\); make room"),
    (lambda folder: shutil.rmtree(folder), r"cannot write .*d \(No such file or directory\); make room"),
    (lambda folder: (shutil.rmtree(folder.parent), (folder / "x").write_text("")), r"the folder .* does not exist; make it, or choose"),
])  # fmt: skip
def test_what_the_disk_refuses_is_one_line(fault: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(REGISTRY.load("table"), "write", _write_and(fault))
    with pytest.raises(ExportError, match=message):
        export(small.dense(), "table", tmp_path / "in" / "d")
    assert not [p for p in tmp_path.rglob("*") if p.name != "in"]


def test_a_disk_that_fails_at_the_last_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "f", "old")
    write_folder(tmp_path / "d", "old")
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(TraceFileError, match=BROKEN):
        write_file(tmp_path / "f", "new")
    with pytest.raises(ExportError, match=BROKEN):
        write_folder(tmp_path / "d", "new")
    assert ((tmp_path / "f").read_text(), (tmp_path / "d" / "a").read_text()) == ("old", "old")
    assert names(tmp_path) == ["d", "f"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_flushes_nothing_is_written_to(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refuse(code))
    write_file(tmp_path / "f", "new")
    write_folder(tmp_path / "d", "new")
    assert names(tmp_path) == ["d", "f"]


def test_a_machine_without_locks_cannot_keep_captures_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    with pytest.raises(CaptureError, match=r"refuses locks \(No locks available\), .* set TMPDIR"), only_one(tmp_path):
        pass


def test_an_exporter_that_looks_for_a_file_it_did_not_write_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY.load("table"), "write", _write_and(lambda folder: (folder / "none").read_text()))
    with pytest.raises(FileNotFoundError):
        export(small.dense(), "table", tmp_path / "d")
    assert names(tmp_path) == []


def test_what_a_simulator_wrote_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    export(small.dense(), "table", folder)
    monkeypatch.setattr(REGISTRY.load("table"), "write", _write_and(lambda _: (folder / "results.csv").write_text("a night's work")))
    with pytest.raises(ExportError, match=r"d holds results\.csv, which no export wrote; move it away"):
        export(small.dense(), "table", folder, force=True)
    assert (folder / "results.csv").read_text() == "a night's work"
    assert names(tmp_path) == ["d"]


FULL_DISK = """
mount -t tmpfs -o size=256k none {disk} || exit 77
cd {disk}
cp ../dense.h5 ../diamond.h5 .
export PYTHONPATH={root}
program="{python} -m fathom_trace"
$program convert diamond.h5 old.pb > /dev/null
$program export diamond.h5 table -o old > /dev/null
cat old.pb old/* | cksum
head -c 1M /dev/zero > fill 2> /dev/null
$program convert dense.h5 old.pb --force; echo $?
$program export dense.h5 table -o old --force; echo $?
$program export dense.h5 table -o new; echo $?
cat old.pb old/* | cksum
ls -A
"""


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare, to mount a small disk")
def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path: Path) -> None:
    """A real disk without room."""
    (tmp_path / "disk").mkdir()
    for trace in (small.dense(), small.diamond()):
        save(trace, tmp_path / f"{trace.provenance['workload']}.h5")
    script = FULL_DISK.format(disk=tmp_path / "disk", python=sys.executable, root=ROOT)
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip(f"may not mount here: {done.stderr.strip()}")
    before, *statuses, after, dense, diamond, fill, old, converted = done.stdout.splitlines()
    assert statuses == ["1", "1", "1"]
    assert before == after
    assert (dense, diamond, fill, old, converted) == ("dense.h5", "diamond.h5", "fill", "old", "old.pb")
    said = done.stderr.splitlines()
    assert len(said) == 3
    assert all("No space left on device" in line for line in said), said


def test_a_folder_that_refuses_files_is_one_line_for_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs a folder that even root cannot write")
    source = str(tmp_path / "dense.h5")
    save(small.dense(), source)
    for words in (
        ["convert", source, "/proc/a.pb"], ["export", source, "table", "-o", "/proc/out"], ["report", source, "-o", "/proc/out"],
        ["whatif", source, "--speedup", "*=2", "-o", "/proc/a.h5"], ["sweep", "vgg", "-o", "/proc/out"],
        ["capture", "vgg", "-o", "/proc/a.h5"],
    ):  # fmt: skip
        assert run(words) == 1, words
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), words
        assert "the folder /proc refuses files" in err, words


def test_a_trace_can_be_read_while_it_is_replaced(tmp_path: Path) -> None:
    """A lazy reader keeps what it opened."""
    save(small.dense(), tmp_path / "a.h5")
    lazy = load(tmp_path / "a.h5", lazy=True)
    save(small.diamond(), tmp_path / "a.h5", force=True)
    assert lazy.equals(small.dense())
    assert load(tmp_path / "a.h5").equals(small.diamond())
