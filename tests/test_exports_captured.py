"""G3: does every exporter take what the eight workloads really execute, in both modes, and account for all of it?

The workloads are captured at preset `tiny`, once for all tests of this file.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.costs import costs
from fathom_trace.exporters import REGISTRY as EXPORTERS
from fathom_trace.exporting import export
from fathom_trace.loops import layers
from fathom_trace.trace import Trace
from fathom_trace.workload import MODES
from fathom_trace.workloads import REGISTRY
from tests import accelforge_files, onnx_files, target_readers, zigzag_files
from tests.captured_apart import capture_workloads_apart

pytestmark = pytest.mark.capture
pytest.importorskip("tensorflow")

RUNS = [f"{name}-{mode}" for name in REGISTRY.names() for mode in MODES]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    return capture_workloads_apart(RUNS, tmp_path_factory.mktemp("workloads"), "source")


def accounted(trace: Trace, exporter: str, folder: Path, **settings: str) -> Any:
    """The report of an export, in which exported and skipped are all executions, all time and all multiply-accumulates."""
    report, found = export(trace, exporter, folder, settings)
    assert found.problems == ()
    structure = trace.main_structure
    totals = report.totals()
    assert totals["executions"]["total"] == len(range(*trace.structure_rows(structure).indices(len(trace.executions))))
    assert totals["time_ns"]["total"] == pytest.approx(float(trace.median_durations(structure).sum()))
    assert totals["macs"]["total"] == int(costs(trace, structure).macs.sum()) > 0
    return report


@pytest.mark.parametrize("run", RUNS)
def test_zigzag_takes_every_layer(traces: dict[str, Trace], run: str, tmp_path: Path) -> None:
    """All multiply-accumulates are written, each layer as its loop nest."""
    report = accounted(traces[run], "zigzag", tmp_path / "out")
    assert report.totals()["macs"]["skipped"] == 0
    assert len(zigzag_files.read(tmp_path / "out", report.settings["name"])) == len(report.layers)
    merged = accounted(traces[run], "zigzag", tmp_path / "unique", unique="true")
    assert len(merged.layers) <= len(report.layers)
    found, _ = layers(traces[run], traces[run].main_structure)
    assert sum(layer.count for layer in report.layers) == sum(layer.count for layer in merged.layers) == len(found)


@pytest.mark.simulator
@pytest.mark.parametrize("run", RUNS)
def test_zigzag_s_parser_agrees(traces: dict[str, Trace], run: str, tmp_path: Path) -> None:
    """Multiply-accumulates of each layer, and which layer its operands come from."""
    report = accounted(traces[run], "zigzag", tmp_path / "out")
    for layer, row in zip(report.layers, zigzag_files.parse(tmp_path / "out", report.settings["name"]), strict=True):
        assert row["macs"] * layer.count == layer.macs
        assert row["sources"] == {k: v for k, v in layer.facts["sources"].items() if v != layer.facts["id"]}


@pytest.mark.parametrize("weights", ["inputs", "zeros"])
@pytest.mark.parametrize("run", RUNS)
def test_onnx_takes_every_layer(traces: dict[str, Trace], run: str, weights: str, tmp_path: Path) -> None:
    """The real package checks the model in full and infers the shapes that it says."""
    report = accounted(traces[run], "onnx", tmp_path / "out", weights=weights)
    assert report.totals()["macs"]["skipped"] == 0
    model = onnx_files.read(tmp_path / "out", report.settings["name"])
    results = {name for node in model.graph.node for name in node.output}
    assert onnx_files.inferred(model) == {name: shape for name, shape in onnx_files.shapes(model).items() if name in results}


@pytest.mark.parametrize("exporter", ["accelforge", "timeloop"])
@pytest.mark.parametrize("run", RUNS)
def test_einsums_and_problems_are_all_layers(traces: dict[str, Trace], run: str, exporter: str, tmp_path: Path) -> None:
    """All multiply-accumulates are written, and as many runs as there are layers, whether or not equal layers are merged."""
    found, _ = layers(traces[run], traces[run].main_structure)
    for unique in ("false", "true"):
        report = accounted(traces[run], exporter, tmp_path / unique, unique=unique)
        assert report.totals()["macs"]["skipped"] == 0
        assert sum(layer.count for layer in report.layers) == len(found)


@pytest.mark.simulator
def test_accelforge_reads_what_it_is_given(traces: dict[str, Trace], tmp_path: Path) -> None:
    """Of all workloads and modes: multiply-accumulates of each einsum, and the size of every tensor, also of those that einsums share."""
    reports = {run: accounted(traces[run], "accelforge", tmp_path / run) for run in RUNS}
    found = accelforge_files.read(tmp_path, *(f"{run}/{report.files[0]}" for run, report in reports.items()))
    for (run, report), own in zip(reports.items(), found.values(), strict=True):
        for layer in report.layers:
            einsum = own["einsums"][layer.name]
            assert einsum["computes"] * einsum["instances"] == layer.macs, (run, layer.name)
            for values in layer.facts["tensors"].values():
                assert own["tensors"][values["tensor"]]["size"] == values["elements"], (run, layer.name, values)


def one_step(exporter: str, trace: Trace) -> dict[str, str]:
    """The settings with which an exporter writes one step, where it can write several."""
    has_step = "step" in {f.name for f in fields(EXPORTERS.load(exporter).Options)}
    return {"step": str(trace.steps_of(trace.main_structure)[0])} if has_step else {}


@pytest.mark.simulator
@pytest.mark.parametrize("exporter", sorted(set(target_readers.READERS) - {"zigzag", "accelforge", "onnx"}))
@pytest.mark.parametrize("run", RUNS)
def test_targets_read_what_the_trace_has(traces: dict[str, Trace], run: str, exporter: str, tmp_path: Path) -> None:
    """As each target's own parser sees it: layers and their work, or executions, dependencies and times."""
    report, found = export(traces[run], exporter, tmp_path / "out", one_step(exporter, traces[run]))
    assert found.problems == ()
    assert target_readers.READERS[exporter](report, tmp_path / "out", traces[run])


@pytest.mark.parametrize("exporter", EXPORTERS.names())
@pytest.mark.parametrize("run", RUNS)
def test_every_exporter_accounts_for_everything(traces: dict[str, Trace], run: str, exporter: str, tmp_path: Path) -> None:
    """Exported and skipped together are all executions and all multiply-accumulates; the exporter's own parser finds no problem."""
    trace = traces[run]
    report, found = export(trace, exporter, tmp_path / "out", one_step(exporter, trace))
    assert found.problems == ()
    totals, structure = report.totals(), trace.main_structure
    rows = trace.structure_rows(structure)
    step = report.settings.get("step")
    durations = trace.median_durations(structure) if step is None else trace.durations(int(step))
    assert totals["executions"]["total"] == rows.stop - rows.start
    assert totals["time_ns"]["total"] == pytest.approx(float(durations.sum()))
    assert totals["macs"]["total"] == int(costs(trace, structure).macs.sum()) > 0
