"""Does replacing an export remove only what an export wrote?"""

from __future__ import annotations

from pathlib import Path

import pytest
from small import dense

from fathom_trace.errors import ExportError
from fathom_trace.exporting import export


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
