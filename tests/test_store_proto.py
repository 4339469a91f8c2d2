"""Is the protobuf file what its schema says, in messages of bounded size, with code that gets along with TensorFlow's own?"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import small
from google.protobuf import descriptor_pool
from trace_files import messages, write_records

from fathom_trace import store
from fathom_trace.builder import TraceBuilder
from fathom_trace.generated import trace_pb2
from fathom_trace.store import proto
from fathom_trace.trace import Trace

ROOT = Path(__file__).resolve().parents[1]


def records(path: Path) -> list[trace_pb2.Record]:
    return [trace_pb2.Record.FromString(message) for message in messages(path)]


def chain(nodes: int) -> Trace:
    builder = TraceBuilder()
    for i in range(nodes):
        builder.node(f"node{i}", "Relu", inputs=[(i - 1, 0)] if i else [])
    return builder.build()


def test_no_tensor_contents_in_the_file(tmp_path: Path) -> None:
    """Case F7, first half: a constant of 4 MB leaves its size and digest."""
    builder = TraceBuilder()
    node = builder.node("weights", "Const", attributes={"dtype": "float32"})
    builder.constant(node, np.arange(1 << 20, dtype=np.float32))
    store.save(builder.build(), tmp_path / "a.pb")
    assert (tmp_path / "a.pb").stat().st_size < 100_000
    assert store.load(tmp_path / "a.pb").constants.size_bytes.tolist() == [4 << 20]


def test_messages_stay_below_the_size_asked_for(tmp_path: Path) -> None:
    """Case F7, second half: 10,000 nodes in messages of 64 KiB."""
    path = tmp_path / "a.pb"
    proto.write(chain(10_000), path, max_message_bytes=64 << 10)
    found = messages(path)
    assert len(found) >= 2
    assert max(map(len, found)) <= 64 << 10
    of_nodes = [r.nodes for r in records(path) if r.WhichOneof("content") == "nodes"]
    assert len(of_nodes) >= 2
    assert sum(len(n.node_name) for n in of_nodes) == 10_000
    assert len(store.load(path).nodes) == 10_000


def test_messages_fill_most_of_the_size_asked_for(tmp_path: Path) -> None:
    """All but the last of a table; otherwise a small limit would make a large file."""
    path = tmp_path / "a.pb"
    proto.write(chain(10_000), path, max_message_bytes=16 << 10)
    of_nodes = [m for m in messages(path) if trace_pb2.Record.FromString(m).WhichOneof("content") == "nodes"]
    assert len(of_nodes) > 3
    assert min(map(len, of_nodes[:-1])) > 0.9 * (16 << 10)


def test_one_row_larger_than_a_message_is_continued(tmp_path: Path) -> None:
    """A structure is one row that lists all its executions, and a name may have any length."""
    builder = TraceBuilder()
    node = builder.node("n" * 5_000, "Relu")
    for _ in range(10_000):
        builder.execution(node)
    trace = builder.build({"long": "x" * 5_000})
    path = tmp_path / "a.pb"
    proto.write(trace, path, max_message_bytes=1024)
    assert max(map(len, messages(path))) <= 1024
    of_structures = [r.structures for r in records(path) if r.WhichOneof("content") == "structures"]
    assert [list(s.execution_counts) for s in of_structures] == [[10_000]] + [[]] * (len(of_structures) - 1)
    assert sum(len(s.execution) for s in of_structures) == 10_000
    assert store.load(path).equals(trace)


@pytest.mark.parametrize("limit", [0, 1023, (16 << 20) + 1])
def test_sizes_that_no_reader_would_take_are_refused(limit: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a message takes 1024 to 16777216 bytes"):
        proto.write(small.diamond(), tmp_path / "a.pb", max_message_bytes=limit)
    assert not list(tmp_path.iterdir())


def test_the_records_are_a_marker_the_tables_and_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    store.save(small.loop(), path)
    found = records(path)
    kinds = [r.WhichOneof("content") for r in found]
    assert kinds == ["marker", "provenance", *(name for name, table in small.loop().tables().items() if len(table)), "end"]
    assert (found[0].marker.format, found[0].marker.version) == ("fathom-trace", 1)
    before = path.read_bytes()[: found[-1].end.size_bytes]
    assert len(path.read_bytes()) == len(before) + 1 + len(messages(path)[-1])
    assert found[-1].end.crc32 == zlib.crc32(before)


def test_a_program_without_this_package_reads_the_times(tmp_path: Path) -> None:
    """By the words of the schema alone: differences to the row before in the same record."""
    trace = small.diamond()
    store.save(trace, tmp_path / "a.pb")
    (times,) = (r.step_times for r in records(tmp_path / "a.pb") if r.WhichOneof("content") == "step_times")
    before = 0
    for row in range(4):
        scheduled, start = before + times.scheduled[row], before + times.start[row]
        end = start + times.end[row]
        before = end + times.done[row]
        expected = [int(getattr(trace.step_times, key)[row]) for key in ("scheduled", "start", "end", "done")]
        assert [scheduled, start, end, before] == expected


def test_unknown_fields_and_records_are_ignored(tmp_path: Path) -> None:
    """What a later release may add: a field in a table (number 500), and a kind of record (number 900)."""
    path = tmp_path / "a.pb"
    store.save(small.diamond(), path)
    kept = messages(path)[:-1]
    extra_field = trace_pb2.Record.FromString(b"\x32\x04\xa2\x1f\x01x")  # nodes { 500: "x" }
    extra_record = b"\xa2\x38\x01x"  # 900: "x"
    assert extra_field.WhichOneof("content") == "nodes"
    write_records(path, [*kept, extra_field.SerializeToString(), extra_record])
    assert store.load(path).equals(small.diamond())


def test_the_schema_is_registered_under_a_name_of_our_own() -> None:
    """`trace.proto` in the table that all protobuf users of a process share would clash with anyone else's."""
    assert trace_pb2.DESCRIPTOR.name == "fathom_trace/v1/trace.proto"
    assert trace_pb2.DESCRIPTOR.package == "fathom_trace.v1"
    assert descriptor_pool.Default().FindFileByName("fathom_trace/v1/trace.proto") is not None


def test_the_pure_python_runtime_makes_the_same_bytes(tmp_path: Path) -> None:
    assert _in_process("", "python", tmp_path / "a.pb") == _in_process("", "upb", tmp_path / "b.pb")


@pytest.mark.capture
def test_tensorflow_may_be_imported_before_or_after(tmp_path: Path) -> None:
    """Case F8: both orders, warnings of our modules (and of protobuf on their account) as errors, the same bytes."""
    tensorflow = "import tensorflow\n"
    before, after = tmp_path / "before.pb", tmp_path / "after.pb"
    first = _in_process(tensorflow, "upb", before)
    second = _in_process("", "upb", after, then=tensorflow)
    assert first == second
    assert store.load(before).equals(small.loop())


def _in_process(first: str, implementation: str, path: Path, then: str = "") -> bytes:
    code = f"""
import sys, warnings
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
{first}
warnings.simplefilter("error")
import fathom_trace.generated.trace_pb2
import small
from fathom_trace import store
store.save(small.loop(), {str(path)!r})
warnings.simplefilter("default")
{then}
warnings.simplefilter("error")
assert store.load({str(path)!r}).equals(small.loop())
"""
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    subprocess.run([sys.executable, "-W", "error::Warning:fathom_trace", "-c", code], check=True, env=environment, timeout=300)
    return path.read_bytes()
