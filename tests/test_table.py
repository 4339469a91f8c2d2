"""Do the exported tables hold the trace's values, all of them, with empty cells where nothing is known?"""

from __future__ import annotations

import csv
import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ExportError
from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.program import Program
from tests.small import dense, diamond, loop

TABLE: Any = REGISTRY.load("table")


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    folder.mkdir()
    report: ExportReport = TABLE.write(trace, folder, apply_settings(TABLE.Options(), settings, "exporter 'table'"))
    write_report(folder, report)
    assert TABLE.check(folder).problems == ()
    return report


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


@pytest.mark.parametrize("make", [diamond, dense, loop])
def test_all_steps_equal_the_traces_own_data_frame(tmp_path: Path, make: Any) -> None:
    """`Trace.to_pandas` reads the columns another way; its times count from the step's origin, here those of each step begin at 0."""
    trace = make()
    export(trace, tmp_path / "out", step="all")
    found = pandas.read_csv(tmp_path / "out" / "executions.csv", dtype={"iteration": str}, keep_default_na=False)
    expected = trace.to_pandas()
    assert len(found) == len(expected)
    for column in ("step", "execution", "start_ns", "end_ns", "done_ns", "duration_ns", "scheduled_ns", "lane"):
        assert found[column].tolist() == expected[column].tolist()
    assert found["node"].tolist() == expected["name"].tolist()
    assert found["op"].tolist() == expected["op"].tolist()
    assert found["iteration"].tolist() == [".".join(map(str, path)) for path in expected["iteration"]]


def test_costs_and_labels(tmp_path: Path) -> None:
    """MatMul [2,3] x [3,5]: 30 MACs, 60 FLOPs, 4 x (6 + 15) = 84 bytes read, 40 written."""
    export(dense(), tmp_path / "out")
    product = next(row for row in rows(tmp_path / "out", "executions") if row["op"] == "MatMul")
    expected = {"macs": "30", "flops": "60", "bytes_read": "84", "bytes_written": "40", "kind": "gemm", "layer": "fc", "record": "op"}
    assert {key: product[key] for key in expected} == expected


def test_dependencies_and_tensors(tmp_path: Path) -> None:
    """b reads a's output; c waits for a and b and reads nothing."""
    builder = TraceBuilder()
    a = builder.node("a", "Relu")
    b = builder.node("b", "Relu", inputs=[(a, 0)])
    c = builder.node("c", "NoOp", control=[a, b])
    first = builder.execution(a, outputs=[("float32", [2, 3]), ("int64", [])])
    second = builder.execution(b, inputs=[builder.tensor(first)], outputs=[("float32", [2, 3])])
    builder.execution(c, control=[first, second])
    builder.step(builder.end_structure(), start=[0, 1, 2], done=[1, 2, 3])
    export(builder.build(), tmp_path / "out")
    assert [tuple(r.values()) for r in rows(tmp_path / "out", "dependencies")] == [("1", "0", "0"), ("2", "0", ""), ("2", "1", "")]
    assert [tuple(r.values()) for r in rows(tmp_path / "out", "tensors")] == [
        ("0", "0", "0", "float32", "2x3", "24"), ("1", "0", "1", "int64", "", "8"), ("2", "1", "0", "float32", "2x3", "24"),
    ]  # fmt: skip


def test_what_is_not_known_is_empty(tmp_path: Path) -> None:
    """OpA is of no known type; B has no valid time."""
    builder = TraceBuilder()
    for name, op in (("A", "OpA"), ("B", "Relu")):
        builder.execution(builder.node(name, op), outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=[0, 5], done=[4, 9], valid=[True, False])
    export(builder.build(), tmp_path / "out")
    first, second = rows(tmp_path / "out", "executions")
    assert (first["macs"], first["flops"], first["duration_ns"]) == ("", "", "4")
    assert (second["macs"], second["duration_ns"], second["start_ns"], second["lane"]) == ("0", "", "", "")


def test_names_survive(tmp_path: Path) -> None:
    names = ['q"uote', "a,b", "line\nend", "conv/日本", "cr\r", "", " a "]
    program = Program()
    for name in names:
        program.op(name, "Relu", [], [2])
    export(program.trace(), tmp_path / "out")
    assert [row["node"] for row in rows(tmp_path / "out", "executions")] == names


def test_text_is_what_the_csv_module_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random columns of every sort, more rows than one block has, against a row at a time."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(TABLE, "BLOCK", 100)
    count = 1_007
    words = ["plain", 'q"uote', "a,b", ""]
    known = rng.random(count) < 0.5
    columns = [
        TABLE.Numbers("step", np.full(count, 3), np.ones(count, bool)),
        TABLE.Numbers("execution", np.arange(count)),
        TABLE.Texts("node", rng.integers(0, 4, count), words),
        TABLE.Texts("op", rng.integers(0, 4, count), words),
        TABLE.Numbers("start_ns", rng.integers(-(10**12), 10**12, count)),
        TABLE.Numbers("done_ns", rng.integers(0, 9, count)),
        TABLE.Numbers("macs", rng.integers(0, 5, count), known),
    ]
    expected = io.StringIO()
    writer = csv.writer(expected, lineterminator="\n")
    for i in range(count):
        cells = [words[c.codes[i]] if isinstance(c, TABLE.Texts) else c.values[i] for c in columns]
        writer.writerow([*cells[:-1], cells[-1] if known[i] else ""])
    assert "".join(TABLE.csv_text(columns)) == expected.getvalue()


def test_one_step_is_chosen(tmp_path: Path) -> None:
    assert {row["step"] for row in rows_of(loop(), tmp_path / "a", step="1")} == {"1"}
    assert len(rows_of(loop(), tmp_path / "b", step="1")) == 5
    assert len(rows_of(loop(), tmp_path / "c", step="all")) == 12


def rows_of(trace: Trace, folder: Path, **settings: str) -> list[dict[str, str]]:
    export(trace, folder, **settings)
    return rows(folder, "executions")


def test_a_trace_without_times_has_empty_cells(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("A", "Relu"), outputs=[("float32", [2])], timed=False)
    builder.end_structure()
    report = export(builder.build(), tmp_path / "out")
    [row] = rows(tmp_path / "out", "executions")
    assert (row["step"], row["start_ns"], row["duration_ns"], row["macs"]) == ("", "", "", "0")
    assert any("no times" in note for note in report.notes)


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("executions.csv", ",50000,0,", ",50001,0,", "B: 50001 ns, in the trace 50000"),
        ("executions.csv", "\n0,1,B,", "\n0,1,Z,", "of another name"),
        ("executions.csv", "\n0,1,B,", "\n9,1,B,", "a step that export.json does not have"),
        ("executions.csv", "\n0,1,B,", "\n0,0,B,", "not those of export.json"),
        ("executions.csv", ",50000,0,", ",five,0,", "is no integer"),
        ("executions.csv", "step,", "steps,", "has the columns steps"),
        ("dependencies.csv", "\n1,0,0\n", "\n0,1,0\n", "does not precede it"),
        ("dependencies.csv", "\n1,0,0\n", "\n2,1,0\n", "tensor 0 is not of execution 1"),
        ("tensors.csv", "\n3,3,0,", "\n", "has not 6 cells"),
    ],
)
def test_its_parser_finds_what_was_changed(tmp_path: Path, file: str, old: str, new: str, problem: str) -> None:
    export(diamond(), tmp_path / "out")
    path = tmp_path / "out" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(TABLE.check(tmp_path / "out").problems)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (",30,60,", ",31,60,", "fc/MatMul: macs 31 and 0 unknown; in the trace 30 and 0 unknown"),
        (",30,60,", ",30,61,", "fc/MatMul: flops 61 and 0 unknown; in the trace 60 and 0 unknown"),
        (",30,60,84,40\n", ",30,60,84,41\n", "fc/MatMul: bytes_written 41 and 0 unknown; in the trace 40 and 0 unknown"),
        (",30,60,84,40\n", ",30,60,,40\n", "fc/MatMul: bytes_read 0 and 1 unknown; in the trace 84 and 0 unknown"),
    ],
)
def test_its_parser_compares_costs_with_the_trace(tmp_path: Path, old: str, new: str, problem: str) -> None:
    """The product [2, 3] x [3, 5]: 30 MACs, 60 FLOPs, 4 x (6 + 15) bytes read, 4 x 10 written."""
    export(dense(), tmp_path / "out")
    assert TABLE.check(tmp_path / "out").ok
    path = tmp_path / "out" / "executions.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(TABLE.check(tmp_path / "out").problems)


def test_costs_that_differ_from_step_to_step_are_found(tmp_path: Path) -> None:
    export(loop(), tmp_path / "out", step="all")
    path = tmp_path / "out" / "executions.csv"
    whole = path.read_text()
    assert TABLE.check(tmp_path / "out").ok
    lines = whole.splitlines()
    last = lines[-1].rsplit(",", 1)
    path.write_text("\n".join([*lines[:-1], f"{last[0]},{int(last[1]) + 1}"]) + "\n")
    assert "bytes_written" in "; ".join(TABLE.check(tmp_path / "out").problems)


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    trace = loop()
    export(trace, tmp_path / "text", step="all")
    export(trace, tmp_path / "parquet", step="all", format="parquet")
    parquet = importlib.import_module("pyarrow.parquet")
    for name, columns in TABLE.COLUMNS.items():
        table = parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
        assert tuple(table.column_names) == columns
        cells = [{k: "" if v is None else str(v) for k, v in row.items()} for row in table.to_pylist()]
        assert cells == rows(tmp_path / "text", name)


def test_parquet_is_written_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    trace = loop()
    export(trace, tmp_path / "whole", step="all", format="parquet")
    monkeypatch.setattr(TABLE, "ROW_GROUP", 3)
    export(trace, tmp_path / "parts", step="all", format="parquet")
    for name in ("executions", "tensors", "dependencies"):
        whole, parts = (parquet.ParquetFile(tmp_path / folder / f"{name}.parquet") for folder in ("whole", "parts"))
        assert parts.read().equals(whole.read())
        groups = [parts.metadata.row_group(i).num_rows for i in range(parts.num_row_groups)]
        assert max(groups) == 3
        assert sum(groups) == whole.metadata.num_rows > 3


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(TABLE.importlib, "import_module", missing)
    with pytest.raises(ExportError, match="pip install 'fathom-trace\\[parquet\\]'"):
        export(diamond(), tmp_path / "out", format="parquet")
