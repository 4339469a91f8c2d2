"""Are multiply-accumulates that nobody can count said to be unknown: by exports, by their errors, and by what tells of a trace?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fathom_trace import tables
from fathom_trace.cli import run as run_command
from fathom_trace.errors import ExportError
from fathom_trace.exporting import export
from fathom_trace.store import save
from fathom_trace.summary import summarize
from fathom_trace.trace import Trace
from tests.program import Program

MAPPING = ("accelforge", "onnx", "scale_sim", "timeloop", "zigzag")


def compiled(inside: str, product: bool = True) -> Trace:
    """A call of 75 ns which was expanded into a `Relu` and an op of type `inside`, then perhaps a product [4, 3] x [3, 3] of 25 ns."""
    program = Program()
    call = program.op("call", "StatefulPartitionedCall", [], [4, 3], ns=75)
    if product:
        weights = program.op("weights", "Const", [], [3, 3], ns=0)
        program.op("after", "MatMul", [call, weights], [4, 3], ns=25)
    for name, op in (("call/relu", "Relu"), ("call/loop", inside)):
        node = program.builder.node(name, op)
        program.builder.execution(node, outputs=[("float32", [4, 3])], parent=call, kind=tables.EXECUTION_EXPANDED, timed=False)
        program._durations.append(0)
    return program.trace()


@pytest.mark.parametrize("exporter", MAPPING)
def test_an_export_does_not_claim_all_macs_where_some_are_unknown(exporter: str, tmp_path: Path) -> None:
    """4 * 3 * 3 are exported; the call and the loop in it have unknown ones, with 75 of 100 ns."""
    report, _ = export(compiled("While"), exporter, tmp_path / "out")
    assert report.totals()["macs"] == {
        "exported": 36, "skipped": 0, "total": 36, "unknown_executions": 2, "unknown_time_ns": 75.0,
    }  # fmt: skip
    saved = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert saved["totals"]["macs"]["unknown_executions"] == 2
    assert {s["op"] for s in saved["skipped"] if not s["macs_known"]} == {"StatefulPartitionedCall", "While"}
    (call,) = (s for s in report.skipped if s.op == "StatefulPartitionedCall")
    assert call.reason == "a call with While inside, whose MACs are unknown; its time is here"


@pytest.mark.parametrize("exporter", MAPPING)
def test_a_call_that_was_looked_into_whole_has_no_unknown_macs(exporter: str, tmp_path: Path) -> None:
    report, _ = export(compiled("Tanh"), exporter, tmp_path / "out")
    assert report.totals()["macs"]["unknown_executions"] == 0
    assert all(s.macs_known for s in report.skipped)


@pytest.mark.parametrize("exporter", ["scale_sim", "table"])
def test_the_table_says_that_the_share_is_of_what_is_known(exporter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the executions of unknown MACs are skipped (a mapping) or exported (a listing)."""
    save(compiled("While"), tmp_path / "call.h5")
    assert run_command(("export", str(tmp_path / "call.h5"), exporter, "-o", str(tmp_path / "out"))) == 0
    out = capsys.readouterr().out
    (line,) = (line.split() for line in out.splitlines() if line.startswith("macs "))
    assert (
        line[1:]
        == {
            "scale_sim": ["36", ">=", "0", "100.0%", "of", "what", "is", "known"],
            "table": [">=", "36", "0", "100.0%", "of", "what", "is", "known"],
        }[exporter]
    )
    assert "2 executions have unknown MACs, with 75.0% of the time\n" in out


@pytest.mark.parametrize("exporter", MAPPING)
def test_where_nothing_can_be_exported_it_says_what_has_unknown_macs(exporter: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export(compiled("While", product=False), exporter, tmp_path / "call")
    assert "1 x StatefulPartitionedCall (unknown MACs, 100.0% of the time): a call with While inside" in str(caught.value)
    program = Program()
    program.op("reduce", "ReduceDataset", [], [], ns=90)
    program.op("relu", "Relu", [], [2, 3], ns=10)
    with pytest.raises(ExportError) as caught:
        export(program.trace(), exporter, tmp_path / "data")
    assert "1 x ReduceDataset (unknown MACs, 90.0% of the time): a call whose inner ops are not in the trace" in str(caught.value)
    assert "Relu" not in str(caught.value)


@pytest.mark.parametrize("exporter", MAPPING)
def test_where_nothing_can_be_exported_it_says_what_has_macs_but_no_loop_nest(exporter: str, tmp_path: Path) -> None:
    """10 stored values of a [4, 3] matrix times [3, 3]: 10 * 3 MACs, which are in the totals of an export beside them as skipped."""
    program = Program()
    inputs = [program.input(n, s) for n, s in (("indices", [10, 2]), ("values", [10]), ("shape", [2]), ("dense", [3, 3]))]
    program.op("product", "SparseTensorDenseMatMul", inputs, [4, 3], ns=60)
    with pytest.raises(ExportError) as caught:
        export(program.trace(), exporter, tmp_path / "alone")
    assert "1 x SparseTensorDenseMatMul (30 MACs, 60.0% of the time): it has MACs, but no loop nest is known" in str(caught.value)
    beside = Program()
    inputs = [beside.input(n, s) for n, s in (("indices", [10, 2]), ("values", [10]), ("shape", [2]), ("dense", [3, 3]))]
    beside.op("product", "SparseTensorDenseMatMul", inputs, [4, 3])
    beside.product("m", [2, 3], [3, 4], [2, 4])
    totals = export(beside.trace(), exporter, tmp_path / "beside")[0].totals()["macs"]
    assert (totals["exported"], totals["skipped"], totals["unknown_executions"]) == (24, 30, 0)


@pytest.mark.parametrize("exporter", MAPPING)
def test_where_nothing_multiplies_it_says_so_and_an_empty_product_is_named(exporter: str, tmp_path: Path) -> None:
    program = Program()
    program.op("relu", "Relu", [], [2, 3])
    with pytest.raises(ExportError, match="the trace has no convolution and no matrix product, and "):
        export(program.trace(), exporter, tmp_path / "relu")
    program = Program()
    program.product("m", [0, 3], [3, 4], [0, 4])
    with pytest.raises(ExportError, match=r"1 x MatMul \(0 MACs, .*\): an extent is 0: there is nothing to compute"):
        export(program.trace(), exporter, tmp_path / "empty")


def test_a_summary_names_what_is_hidden_in_part_with_its_share(tmp_path: Path) -> None:
    """Also of a trace whose capture noted nothing."""
    file = tmp_path / "call.h5"
    for trace, text in (
        (compiled("While"), "what is inside 'call' (in part: While; 75.0% of the op time) is unknown"),
        (compiled("Tanh"), ""),
    ):
        save(trace, file, force=True)
        found = summarize(trace, file)
        assert found.opaque_calls == (("call",) if text else ())
        assert any(note.startswith(text) for note in found.notes) if text else found.notes == []
    program = Program()
    for name, op, ns in (("b", "ReduceDataset", 60), ("a", "PyFunc", 30), ("c", "Relu", 10)):
        program.op(name, op, [], [2], ns=ns)
    trace = program.trace()
    save(trace, file, force=True)
    found = summarize(trace, file)
    assert found.opaque_share == pytest.approx(0.9)
    assert any("what is inside 'b' (60.0%), 'a' (30.0%), in all 90.0% of the op time, is unknown" in note for note in found.notes)
