"""Is what stands in the way refused before any work, and does a failure leave what was there as it was?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fathom_trace.destination import check_file, check_folder, replacing_folder
from fathom_trace.errors import FathomError

MARKER = "export.json"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A folder that an earlier export wrote."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / MARKER).write_text("{}")
    (folder / "layers.csv").write_text("old")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_new_file_is_accepted_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert check_file(tmp_path / "new.h5", force=False) == tmp_path / "new.h5"
    assert names(tmp_path) == []


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("old")
    with pytest.raises(FathomError, match=r"a\.h5 exists; pass --force to replace it"):
        check_file(tmp_path / "a.h5", force=False)
    check_file(tmp_path / "a.h5", force=True)
    assert (tmp_path / "a.h5").read_text() == "old"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere/at/all/a.h5", "the folder /nowhere/at/all does not exist; make it, or choose another place"),
        ("/proc/a.h5", r"the folder /proc refuses files \(.+\); choose another place"),
    ],
)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root cannot write")
def test_a_place_that_cannot_be_written_is_refused(path: str, message: str) -> None:
    with pytest.raises(FathomError, match=message):
        check_file(Path(path), force=True)


def test_what_cannot_be_a_trace_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.h5").mkdir()
    with pytest.raises(FathomError, match=r"folder\.h5 is a folder; give the name of a file"):
        check_file(tmp_path / "folder.h5", force=True)
    with pytest.raises(FathomError, match=r"a\.csv is not a trace's file name; give it the suffix \.h5"):
        check_file(tmp_path / "a.csv", force=True)


def test_a_folder_of_an_earlier_export_needs_force(earlier: Path) -> None:
    with pytest.raises(FathomError, match="earlier exists; pass --force to replace it"):
        check_folder(earlier, force=False, marker=MARKER)
    check_folder(earlier, force=True, marker=MARKER)


def test_other_peoples_files_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FathomError, match="holds files that no export wrote; choose another folder with -o"):
        check_folder(tmp_path, force=True, marker=MARKER)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty", force=False, marker=MARKER)
    with replacing_folder(tmp_path / "empty") as partial:
        (partial / "new").write_text("new")
    assert names(tmp_path / "empty") == ["new"]
    assert names(tmp_path) == ["empty"]


def test_a_folder_takes_the_place_of_the_old_one_whole(earlier: Path) -> None:
    with replacing_folder(earlier) as partial:
        (partial / "new").write_text("new")
        assert names(earlier) == [MARKER, "layers.csv"]
    assert names(earlier) == ["new"]
    assert names(earlier.parent) == ["earlier"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_folder_and_nothing_else(error: type[BaseException], earlier: Path) -> None:
    def write_half() -> None:
        with replacing_folder(earlier) as partial:
            (partial / "half").write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert names(earlier) == [MARKER, "layers.csv"]
    assert names(earlier.parent) == ["earlier"]


def test_the_new_folder_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with replacing_folder(tmp_path / "made"):
        pass
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "other").stat().st_mode
