"""Do the published schemas say what the files hold: every column, with its unit, under a number that never changes?"""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import pytest
import small

from fathom_trace import store
from fathom_trace.generated import trace_pb2
from fathom_trace.store import document
from fathom_trace.store.columns import COLUMNS, stored_columns
from fathom_trace.tables import TABLES, Table

SCHEMAS = Path(__file__).resolve().parents[1] / "schemas"
PROTO = (SCHEMAS / "trace.proto").read_text(encoding="utf-8")
HDF5 = (SCHEMAS / "trace_hdf5.md").read_text(encoding="utf-8")


def test_the_schemas_are_up_to_date() -> None:
    """After a change of the columns: `python -m fathom_trace.store.document`, then `python schemas/compile.py`."""
    assert document.proto(PROTO) == PROTO
    assert document.hdf5() == HDF5


def test_the_generator_writes_both_schemas(tmp_path: Path) -> None:
    (tmp_path / "trace.proto").write_text(PROTO, encoding="utf-8")
    document.main(tmp_path)
    assert (tmp_path / "trace.proto").read_text(encoding="utf-8") == PROTO
    assert (tmp_path / "trace_hdf5.md").read_text(encoding="utf-8") == HDF5


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.path)
def test_every_column_is_documented_in_both(column: document.StoredColumn) -> None:
    rows = [line for line in HDF5.splitlines() if line.startswith(f"| `{column.path}` |")]
    assert len(rows) == 1
    _, _, dtype, unit, meaning, _, _ = (cell.strip() for cell in rows[0].split("|"))
    assert (dtype, unit) == (column.spec.dtype, column.spec.unit)
    assert meaning
    table = next(t for t in TABLES if t.name == column.table)
    comment = re.search(
        rf"^message {table.__name__} {{.*?// ([^\n]+)\n  [a-z0-9 ]+ {column.proto_name} = \d+;", PROTO, re.DOTALL | re.MULTILINE
    )
    assert comment is not None
    assert f"[{column.spec.unit}]" in comment[1] or not column.spec.unit


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_the_compiled_code_agrees_with_the_schema(table: type[Table]) -> None:
    """Name, number and type of every field: `trace_pb2.py` was made from this `trace.proto`."""
    descriptor = trace_pb2.DESCRIPTOR.message_types_by_name[table.__name__]
    (body,) = re.findall(rf"^message {table.__name__} {{\n(.*?)^}}", PROTO, re.DOTALL | re.MULTILINE)
    declared = [
        (kind, name, int(number)) for kind, name, number in re.findall(r"^ +(?:repeated )?(\w+) (\w+) = (\d+);", body, re.MULTILINE)
    ]
    types = {v: k for k, v in vars(type(descriptor.fields[0])).items() if k.startswith("TYPE_")}
    assert [(types[f.type].removeprefix("TYPE_").lower(), f.name, f.number) for f in descriptor.fields] == declared
    assert [name for _, name, _ in declared] == [c.proto_name for c in stored_columns(table).values()]
    record = trace_pb2.Record.DESCRIPTOR.fields_by_name[table.name]
    assert f"    {table.__name__} {table.name} = {record.number};" in PROTO


def test_numbers_of_fields_never_change() -> None:
    """The numbers that files out there carry. Never edit a line of this table; a new column adds one."""
    assert {f.name: f.number for f in trace_pb2.Record.DESCRIPTOR.fields} == {
        "marker": 1, "provenance": 2, "end": 3, "strings": 4, "shapes": 5, "nodes": 6, "source_nodes": 7, "frames": 8, "paths": 9,
        "constants": 10, "variables": 11, "interface": 12, "structures": 13, "executions": 14, "tensors": 15, "steps": 16,
        "step_times": 17, "device_spans": 18, "buffers": 19, "allocations": 20,
    }  # fmt: skip
    assert {f.name: f.number for f in trace_pb2.StepTimes.DESCRIPTOR.fields} == {
        "scheduled": 1, "start": 2, "end": 3, "done": 4, "lane": 5, "valid": 6,
    }  # fmt: skip


def test_a_new_column_gets_the_next_number_and_a_lost_one_is_reserved() -> None:
    """`op` of the nodes did not exist yet, and there was a `colour`, number 40."""
    text = re.sub(
        r"(message Nodes \{\n.*?)  // [^\n]+\n  repeated uint32 op = 2;\n",
        r"\1  repeated uint32 colour = 40;\n",
        PROTO,
        flags=re.DOTALL,
    )
    assert "colour = 40" in text
    (body,) = re.findall(r"^message Nodes \{\n(.*?)^\}", document.proto(text), re.DOTALL | re.MULTILINE)
    assert "  reserved 40;" in body
    assert "repeated uint32 op = 41;" in body
    assert "repeated uint32 node_name = 1;" in body
    again = document.proto(document.proto(text))
    assert again == document.proto(text)


def test_the_file_holds_what_the_document_lists(tmp_path: Path) -> None:
    store.save(small.loop(), tmp_path / "a.h5")
    found: list[str] = []
    with h5py.File(tmp_path / "a.h5", "r") as file:
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
        attributes = dict(file.attrs)
    filled = {name for name, table in small.loop().tables().items() if len(table)}
    assert set(found) == {"provenance"} | {c.path for c in COLUMNS if c.table in filled}
    assert attributes == {"format": b"fathom-trace", "version": 1}


def test_another_program_reads_the_file_by_the_documents_words(tmp_path: Path) -> None:
    """With h5py alone and the sentences of `trace_hdf5.md`; the times are those that `small.diamond` gives."""
    store.save(small.diamond(), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r") as file:
        offsets, text = file["strings/text_offsets"][:], file["strings/text"][:].tobytes()
        names = [text[offsets[i] : offsets[i + 1]].decode() for i in file["nodes/node_name"]]
        d = {
            key: file[f"step_times/{key}"][:].astype("int64") for key in ("scheduled", "start", "end", "done")
        }  # one step: no transposing
        assert file["step_times/end"].attrs["stored"] == b"end[i] - start[i]"
        assert file["step_times/end"].attrs["unit"] == b"ns after the step's origin"
    assert names == ["A", "B", "C", "D"]
    done = (d["start"] + d["end"] + d["done"]).cumsum()
    before = [0, *done[:-1]]
    assert done.tolist() == [10_000, 60_000, 40_000, 70_000]
    assert (before + d["start"]).tolist() == [0, 10_000, 10_000, 60_000]
    assert (before + d["scheduled"]).tolist() == [0, 10_000, 10_000, 60_000]
    assert (before + d["start"] + d["end"]).tolist() == done.tolist()
