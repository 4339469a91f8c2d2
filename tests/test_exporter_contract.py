"""Does every file in `exporters/` keep the contract? Parametrised by the registry: a new exporter is tested by existing."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.errors import ExportError, FathomError, UnknownNameError
from fathom_trace.exporter import PROOFS, REPORT_NAME, CheckReport, ExportReport, Skipped, read_layer_map, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings, describe_options
from fathom_trace.trace import Trace
from tests.program import Program

ROOT = Path(__file__).parents[1]


def everything() -> Trace:
    """A trace with something for every kind of target: convolutions and gradients, products, a loop, other ops, two steps."""
    program = Program()
    program.convolution("conv/Conv2D", [2, 9, 12, 4], [3, 2, 4, 8], [2, 4, 11, 8], strides=[1, 2, 1, 1], ns=1_500)
    program.convolution("same/Conv2D", [1, 6, 5, 4], [3, 1, 4, 6], [1, 6, 5, 6], padding="SAME", ns=1_200)
    program.convolution("dw", [1, 8, 9, 3], [3, 2, 3, 2], [1, 6, 8, 6], "DepthwiseConv2dNative", ns=900)
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(f"gradients/{kind}", [2, 9, 12, 4], [3, 2, 4, 8], [2, 4, 11, 8], kind, strides=[1, 2, 1, 1], ns=2_500)
    program.product("dense/MatMul", [2, 24], [24, 10], [2, 10], ns=700)
    program.product("attention/MatMul", [2, 3, 7, 4], [2, 3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2", ns=400)
    state, weights = program.input("state", [2, 4]), program.input("weights", [4, 4])
    for _ in range(3):
        product = program.op("rnn/MatMul", "MatMul", [state, weights], [2, 4], {}, ns=300)
        state = program.op("rnn/Tanh", "Tanh", [product], [2, 4], ns=100)
    program.op("pool/MaxPool", "MaxPool", [program.input("map", [1, 4, 4, 2])], [1, 2, 2, 2], ns=200)
    return program.trace("contract", steps=2)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return everything()


@pytest.fixture(params=REGISTRY.names())
def exporter(request: pytest.FixtureRequest) -> Any:
    return REGISTRY.load(request.param)


def name_of(exporter: Any) -> str:
    return str(exporter.__name__).rpartition(".")[2]


def export(exporter: Any, trace: Trace, folder: Path) -> ExportReport:
    folder.mkdir()
    report: ExportReport = exporter.write(trace, folder, exporter.Options())
    write_report(folder, report)
    return report


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_it_says_what_it_is_for(exporter: Any) -> None:
    """A summary, the target with version and address, how to run it, and how far it is proven."""
    tree = ast.parse(Path(exporter.__file__).read_text(encoding="utf-8"))
    assert len((ast.get_docstring(tree) or "").splitlines()[0]) > 20
    target = exporter.TARGET
    assert target.proof in PROOFS
    assert all((target.name, target.version, target.url, target.proof_detail, target.how_to_run))
    if target.url.startswith("http"):
        assert target.url in exporter.__doc__
        assert target.version in exporter.__doc__


def test_its_options_are_frozen_described_and_strict(exporter: Any) -> None:
    options = exporter.Options()
    assert is_dataclass(options)
    assert options.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(option.doc for option in describe_options(options))
    with pytest.raises(UnknownNameError):
        apply_settings(options, {"no_such_option": "1"}, name_of(exporter))


def test_it_writes_what_it_says(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    """Every file is in the report and every reported file is there; nothing is written anywhere else."""
    report = export(exporter, trace, tmp_path / "out")
    assert set(content(tmp_path / "out")) == {*report.files, REPORT_NAME}
    assert len(report.files) == len(set(report.files)) > 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert report.exporter == name_of(exporter)
    assert report.target == exporter.TARGET
    assert set(report.settings) >= {f.name for f in fields(exporter.Options)}
    assert report.provenance.get("workload", "contract") == "contract"


def test_it_drops_nothing_silently(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    """Exported + skipped is all executions and all time; no execution is exported twice; every skip has a reason."""
    report = export(exporter, trace, tmp_path / "out")
    rows = trace.structure_rows(trace.main_structure)
    totals = report.totals()
    assert totals["executions"]["total"] == rows.stop - rows.start
    assert totals["time_ns"]["total"] == pytest.approx(trace.median_durations(trace.main_structure).sum())
    exported = [e for layer in report.layers for e in layer.executions]
    assert len(exported) == len(set(exported))
    assert set(exported) <= set(range(rows.start, rows.stop))
    assert all(s.reason and s.op and s.executions > 0 for s in report.skipped)
    assert len({(s.op, s.reason) for s in report.skipped}) == len(report.skipped)


def test_every_layer_has_a_place_in_a_file(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    report = export(exporter, trace, tmp_path / "out")
    for layer in report.layers:
        assert layer.place.partition(":")[0] in report.files
        assert layer.name
        assert layer.how
        assert layer.count >= 1
        assert layer.executions


def test_it_is_reproducible(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    export(exporter, trace, tmp_path / "a")
    export(exporter, everything(), tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_its_own_parser_accepts_its_files(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    export(exporter, trace, tmp_path / "out")
    found = exporter.check(tmp_path / "out")
    assert isinstance(found, CheckReport)
    assert found.problems == ()
    assert found.facts
    json.dumps(dict(found.facts))


def test_its_own_parser_finds_damage(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    """Each file garbled, cut in half (where that is not too short to tell) and missing."""
    report = export(exporter, trace, tmp_path / "out")
    for file in report.files:
        path = tmp_path / "out" / file
        whole = path.read_bytes()
        damages = {"garbled": b"\x00 damaged\n", "cut in half": whole[: len(whole) // 2]}
        for damage, damaged in damages.items():
            if damage == "garbled" or len(whole) >= 32:
                path.write_bytes(damaged)
                assert refuses(exporter, tmp_path / "out"), f"{file} {damage}"
        path.unlink()
        assert refuses(exporter, tmp_path / "out"), f"{file} missing"
        path.write_bytes(whole)
    assert exporter.check(tmp_path / "out").ok
    (tmp_path / "out" / REPORT_NAME).unlink()
    with pytest.raises(ExportError):
        exporter.check(tmp_path / "out")


def refuses(exporter: Any, folder: Path) -> bool:
    try:
        return not exporter.check(folder).ok
    except FathomError:
        return True


def test_its_map_reads_back(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    report = export(exporter, trace, tmp_path / "out")
    assert tuple(read_layer_map(tmp_path / "out")) == report.layers
    saved = json.loads((tmp_path / "out" / REPORT_NAME).read_text(encoding="utf-8"))
    assert tuple(Skipped(**row) for row in saved["skipped"]) == report.skipped


def test_its_reader_refuses_what_is_no_result(exporter: Any, trace: Trace, tmp_path: Path) -> None:
    """Exporters whose target answers: signature as in the contract, and a clear error for a file that is none of its results."""
    if not hasattr(exporter, "read_results"):
        assert "read_results" not in Path(exporter.__file__).read_text(encoding="utf-8")
        return
    assert list(inspect.signature(exporter.read_results).parameters)[:3] == ["path", "layer_map", "cycle_ns"]
    report = export(exporter, trace, tmp_path / "out")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\x00 no result\n")
    for path in (wrong, tmp_path / "missing"):
        with pytest.raises(FathomError) as caught:
            exporter.read_results(path, list(report.layers), 1.0)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


# --- one made up, in one file -----------------------------------------------------------------------------------------------------

MADE_UP = '''"""Made-up format: a line of name and duration for each execution.

Version 7 of https://example.org/made-up.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from fathom_trace.errors import ExportError
from fathom_trace.exporter import OWN_GRAMMAR, CheckReport, ExportedLayer, ExportReport, Target, read_layer_map

TARGET = Target("Made Up", "7", "https://example.org/made-up", OWN_GRAMMAR, "read by `check` only", "cat made_up.txt")


@dataclass(frozen=True)
class Options:
    sign: str = field(default=" ", metadata={"doc": "between name and duration"})


def write(trace, folder, options):
    rows, times = trace.structure_rows(trace.main_structure), trace.median_durations(trace.main_structure)
    layers, lines = [], []
    for e in range(rows.start, rows.stop):
        name, ns = trace.node_names[trace.executions.node[e]], float(times[e - rows.start])
        lines.append(f"{name}{options.sign}{ns:.0f}")
        layers.append(ExportedLayer(name, f"made_up.txt:{len(lines)}", "line", (e,), 0, ns))
    (folder / "made_up.txt").write_text("\\n".join([*lines, "end", ""]))
    return ExportReport("made_up", TARGET, ("made_up.txt",), tuple(layers), (), asdict(options), provenance=dict(trace.provenance))


def check(folder):
    layers, path = read_layer_map(folder), folder / "made_up.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    ok = len(lines) == len(layers) + 1 and lines[-1] == "end"
    return CheckReport(("made_up.txt",), {"lines": len(lines)}, () if ok else ("made_up.txt is cut off",))


def read_results(path, layer_map, cycle_ns):
    try:
        cycles = [int(line) for line in path.read_text().splitlines()]
        return {e: c * cycle_ns for layer, c in zip(layer_map, cycles, strict=True) for e in layer.executions}
    except (OSError, ValueError):
        raise ExportError(f"{path} is no result of Made Up") from None
'''


def test_a_dropped_in_file_is_an_exporter(tmp_path: Path) -> None:
    """A copy of the checkout with one more file in `exporters/`: the command line lists it and these very tests test it."""
    ignore = shutil.ignore_patterns("__pycache__", "*.h5", ".*")
    for folder in ("fathom_trace", "exporters", "workloads"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    (tmp_path / "tests").mkdir()
    for file in ("pyproject.toml", "tests/program.py", "tests/test_exporter_contract.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "exporters" / "made_up.py").write_text(MADE_UP)

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listing = run("-m", "fathom_trace", "exporters")
    assert "made_up" in listing
    assert "a line of name and duration for each execution" in listing
    assert "between name and duration" in run("-m", "fathom_trace", "exporters", "made-up")
    tests = run("-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/test_exporter_contract.py", "-k", "made_up and not dropped_in")
    parametrised = [
        name for name, test in globals().items() if name.startswith("test_") and "exporter" in inspect.signature(test).parameters
    ]
    assert len(parametrised) >= 9
    assert all(f"{name}[made_up] PASSED" in tests for name in parametrised)
