"""Does a trace file appear whole or not at all, whatever happens meanwhile, and never in place of one that should stay?"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import small

from fathom_trace import store
from fathom_trace.errors import TraceFileError
from fathom_trace.store import files

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".h5", ".pb")

WRITER = """
import os, sys, time
sys.path[:0] = [{root!r}, {tests!r}]
import small
from fathom_trace import store

path = sys.argv[1]
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs `code` with the traces of `small` at hand."""
    text = WRITER.format(root=str(ROOT), tests=str(ROOT / "tests")) + code
    return subprocess.Popen([sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, text=True)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_existing_file_is_refused_without_force(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vgg{suffix}"
    store.save(small.diamond(), path)
    before = digest(path)
    with pytest.raises(TraceFileError, match=rf"^{path} exists; pass --force to replace it$"):
        store.save(small.loop(), path)
    assert digest(path) == before
    store.save(small.loop(), path, force=True)
    assert store.load(path).equals(small.loop())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_refusal_is_worded_with_the_name_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(small.diamond(), "vgg.h5")
    with pytest.raises(TraceFileError, match=r"^vgg\.h5 exists; pass --force to replace it$"):
        store.save(small.diamond(), "vgg.h5")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_appears_during_the_write_is_not_replaced(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers that both found the name free: the later one is refused. Also where the file system has no hard links."""
    path = tmp_path / "a.h5"
    if not has_links:
        monkeypatch.setattr(os, "link", _refuse(errno.EPERM))

    def write() -> None:
        with files.replacing(path, force=False) as file:
            file.write(b"later")
            path.write_bytes(b"earlier")

    with pytest.raises(TraceFileError, match="exists; pass --force"):
        write()
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_without_hard_links_a_free_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _refuse(errno.EPERM))
    store.save(small.diamond(), tmp_path / "a.h5")
    assert store.load(tmp_path / "a.h5").equals(small.diamond())
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def _refuse(code: int) -> object:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{suffix}"
    store.save(small.diamond(), path)
    before = digest(path)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(small.loop(), path, force=True)
    assert digest(path) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_is_one_line(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _refuse(errno.ENOSPC))
    path = tmp_path / f"a{suffix}"
    with pytest.raises(TraceFileError, match=r"^cannot write .* \(No space left on device\); make room or choose another folder"):
        store.save(small.loop(), path)
    assert not list(tmp_path.iterdir())


def test_the_content_is_on_the_disk_before_the_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    monkeypatch.setattr(os, "fsync", lambda _: events.append(f"flushed, {len(list(tmp_path.glob('*.h5')))} final"))
    store.save(small.loop(), tmp_path / "a.h5")
    assert events[0] == "flushed, 0 final"
    assert events[1:] == ["flushed, 1 final"]  # the folder, with the new name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_killed_writer_leaves_the_old_file_readable(suffix: str, tmp_path: Path) -> None:
    """Case F4: kill -9 while it writes over a good trace."""
    path = tmp_path / f"a{suffix}"
    store.save(small.diamond(), path)
    process = start(
        "os.fsync = lambda _: (print('writing', flush=True), time.sleep(60))\nstore.save(small.loop(), path, force=True)", str(path)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert store.load(path).equals(small.diamond())
    (partial,) = (p for p in tmp_path.iterdir() if p != path)
    assert partial.name.startswith(f"{path.name}.")
    assert partial.name.endswith(".partial")
    with pytest.raises(TraceFileError, match="is an unfinished trace, left by a program that was stopped while writing it"):
        store.load(partial)


def test_a_reader_is_disturbed_by_no_one(tmp_path: Path) -> None:
    """Case F5: held open by another process under HDF5's own lock, a trace can be read, is not overwritten, and can be replaced."""
    path = tmp_path / "a.h5"
    store.save(small.diamond(), path)
    before = digest(path)
    process = start("import h5py\nfile = h5py.File(path, 'r', locking=True)\nprint('open', flush=True)\ntime.sleep(60)", str(path))
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n"
        assert store.load(path).equals(small.diamond())
        with pytest.raises(TraceFileError, match="exists; pass --force"):
            store.save(small.loop(), path)
        assert digest(path) == before
        store.save(small.loop(), path, force=True)
        assert store.load(path).equals(small.loop())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_writers_and_a_reader_never_see_a_mixture(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    store.save(small.diamond(), path)
    code = "for _ in range(15): store.save(getattr(small, sys.argv[2])(), path, force=True)"
    writers = [start(code, str(path), name) for name in ("diamond", "loop")]
    wholes = (small.diamond(), small.loop())
    seen = 0
    while any(w.poll() is None for w in writers):
        found = store.load(path)
        assert any(found.equals(whole) for whole in wholes)
        seen += 1
    assert seen
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
        assert writer.returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "a.h5", tmp_path / "link.h5"
    store.save(small.diamond(), real)
    link.symlink_to(real)
    with pytest.raises(TraceFileError, match="exists"):
        store.save(small.loop(), link)
    store.save(small.loop(), link, force=True)
    assert link.is_symlink()
    assert store.load(real).equals(small.loop())


def test_files_get_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    store.save(small.diamond(), tmp_path / "a.h5")
    assert (tmp_path / "a.h5").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("name", ["a", "a.json", "a.h5.gz", ".h5", "h5"])
def test_an_unknown_suffix_is_one_line(name: str, tmp_path: Path) -> None:
    message = r"is not a trace's file name; give it the suffix \.h5 or \.hdf5 \(HDF5\), or \.pb \(protobuf\)$"
    with pytest.raises(TraceFileError, match=message):
        store.save(small.diamond(), tmp_path / name)
    with pytest.raises(TraceFileError, match=r"does not exist; `fathom-trace capture` writes traces$"):
        store.load(tmp_path / name)
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(TraceFileError, match=message):
        store.load(tmp_path / name)


def test_suffixes_are_told_in_any_case(tmp_path: Path) -> None:
    store.save(small.diamond(), tmp_path / "A.HDF5")
    assert h5py.is_hdf5(tmp_path / "A.HDF5")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_cannot_be_read_is_one_line(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a{suffix}"
    with pytest.raises(TraceFileError, match=rf"^{path} does not exist; `fathom-trace capture` writes traces$"):
        store.load(path)
    path.mkdir()
    with pytest.raises(TraceFileError, match=rf"^{path} is a folder; give the name of a trace file$"):
        store.load(path)
    fifo = tmp_path / f"fifo{suffix}"
    os.mkfifo(fifo)
    with pytest.raises(TraceFileError, match="is not a regular file"):
        store.load(fifo)
    with pytest.raises(TraceFileError, match=r"cannot be read \(File name too long\)"):
        store.load(tmp_path / f"{'x' * 300}{suffix}")
    with pytest.raises(TraceFileError, match=r"cannot be read \(embedded null"):
        store.load(tmp_path / f"a\0{suffix}")
    denied = tmp_path / f"denied{suffix}"
    store.save(small.diamond(), denied)
    monkeypatch.setattr(Path, "open", _refuse(errno.EACCES))  # the tests may run as root, whom no permission stops
    with pytest.raises(TraceFileError, match=r"cannot be read \(Permission denied\); check its name and permissions"):
        store.load(denied)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_cannot_be_written_is_one_line(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match=rf"the folder {tmp_path / 'no'} does not exist; make it, or choose another place"):
        store.save(small.diamond(), tmp_path / "no" / f"a{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    for force in (False, True):
        with pytest.raises(TraceFileError, match="is a folder; give the name of a file"):
            store.save(small.diamond(), tmp_path / f"folder{suffix}", force=force)
    with pytest.raises(TraceFileError, match=r"^cannot write .* \(File name too long\)"):
        store.save(small.diamond(), tmp_path / f"{'x' * 250}{suffix}")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc is the folder in which even root may not write")
def test_an_unwritable_folder_is_one_line() -> None:
    with pytest.raises(TraceFileError, match=r"^cannot write /proc/a\.h5 \(.*\); make room or choose another folder with -o$"):
        store.save(small.diamond(), "/proc/a.h5")


def test_convert_looks_at_its_destination_first(tmp_path: Path) -> None:
    (tmp_path / "b.pb").write_bytes(b"old")
    with pytest.raises(TraceFileError, match="exists; pass --force"):
        store.convert(tmp_path / "missing.h5", tmp_path / "b.pb")
    with pytest.raises(TraceFileError, match=r"b\.txt is not a trace's file name"):
        store.convert(tmp_path / "missing.h5", tmp_path / "b.txt")
    store.save(small.loop(), tmp_path / "a.h5")
    store.convert(tmp_path / "a.h5", tmp_path / "b.pb", force=True)
    assert store.load(tmp_path / "b.pb").equals(small.loop())


def test_convert_onto_itself_keeps_the_trace(tmp_path: Path) -> None:
    store.save(small.loop(), tmp_path / "a.h5")
    store.convert(tmp_path / "a.h5", tmp_path / "a.h5", force=True)
    assert store.load(tmp_path / "a.h5").equals(small.loop())


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, is_link: bool) -> None:
    """With --force neither; /dev/null is most often reached by a link."""
    os.mkfifo(tmp_path / "pipe.h5")
    path = tmp_path / "pipe.h5"
    if is_link:
        path = tmp_path / "link.h5"
        path.symlink_to(tmp_path / "pipe.h5")
    with pytest.raises(TraceFileError, match="no regular file, and is not replaced"):
        store.save(small.diamond(), path, force=True)
    assert (tmp_path / "pipe.h5").is_fifo()
