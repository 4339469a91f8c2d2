"""Does replacing an export remove only what an export wrote?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small import dense

from fathom_trace.errors import ExportError, FathomError
from fathom_trace.exporting import check, export, read_results


def test_results_of_a_simulator_are_not_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(dense(), "scale_sim", folder)
    (folder / "results").mkdir()
    (folder / "results" / "COMPUTE_REPORT.csv").write_text("hours of simulation")
    with pytest.raises(ExportError, match=r"holds results/COMPUTE_REPORT.csv, which no export wrote; move it away"):
        export(dense(), "scale_sim", folder, force=True)
    assert (folder / "results" / "COMPUTE_REPORT.csv").read_text() == "hours of simulation"


def test_an_export_of_another_kind_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    report, _ = export(dense(), "scale_sim", folder)
    export(dense(), "table", folder, force=True)
    assert not any((folder / name).exists() for name in report.files)


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(dense(), "scale_sim", tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    export(dense(), "table", tmp_path / "link", force=True)
    assert check(tmp_path / "out")[1].ok
    assert check(tmp_path / "other")[1].ok


def test_a_destination_that_leads_to_itself_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FathomError, match="loop"):
        export(dense(), "scale_sim", tmp_path / "loop")


@pytest.mark.parametrize("name", [None, "export.json", "dense_gemm.csv", "further"])
@pytest.mark.parametrize("is_device", [False, True])
def test_pipes_and_devices_in_an_export_are_refused_unread(tmp_path: Path, name: str | None, is_device: bool) -> None:
    """A pipe makes whoever opens it wait, /dev/zero never ends."""
    folder = tmp_path / "out"
    report, _ = export(dense(), "scale_sim", folder)
    odd = folder / (name or report.files[0])
    odd.unlink(missing_ok=True)
    if is_device:
        odd.symlink_to("/dev/zero")
    else:
        os.mkfifo(odd)
    with pytest.raises(ExportError, match="no regular file"):
        check(folder)


def test_pipes_among_results_are_refused_unread(tmp_path: Path) -> None:
    export(dense(), "scale_sim", tmp_path / "out")
    (tmp_path / "results" / "deep").mkdir(parents=True)
    os.mkfifo(tmp_path / "results" / "deep" / "COMPUTE_REPORT.csv")
    with pytest.raises(ExportError, match="no regular file"):
        read_results(tmp_path / "out", tmp_path / "results", 1e9)
    with pytest.raises(ExportError, match="no regular file"):
        read_results(tmp_path / "out", Path("/dev/zero"), 1e9)


def test_a_text_larger_than_any_is_refused_unread(tmp_path: Path) -> None:
    report, _ = export(dense(), "scale_sim", tmp_path / "out")
    with (tmp_path / "out" / report.files[0]).open("r+b") as file:
        file.truncate(1 << 40)
    assert not check(tmp_path / "out")[1].ok
