"""Is a damaged, foreign, newer or hostile file one clear error, quickly, and never a traceback, a wrong trace or a memory bomb?"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small
from trace_files import messages, varint, with_jitter, write_records

from fathom_trace import store
from fathom_trace.errors import TraceFileError
from fathom_trace.generated import trace_pb2
from fathom_trace.store import hdf5

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".h5", ".pb")
SEAL_BYTES = 28

PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de")


def refused(path: Path, match: str | None = None) -> str:
    """The message of the one error that loading `path` may end in."""
    with pytest.raises(TraceFileError, match=match) as caught:
        store.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


# --- accidents ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_cut_anywhere_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    store.save(small.loop(), path)
    data = path.read_bytes()
    whole = len(data) - (SEAL_BYTES if suffix == ".h5" else 0)  # without its seal, an HDF5 trace is whole
    for size in sorted({*range(64), *np.linspace(0, whole - 1, 150).astype(int).tolist(), *range(whole - 16, whole)}):
        path.write_bytes(data[:size])
        refused(path)
    for size in range(whole, len(data)):
        path.write_bytes(data[:size])
        assert store.load(path).equals(small.loop())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_is_refused(suffix: str, tmp_path: Path) -> None:
    """300 of them. Only in the mark of the HDF5 seal may one pass: a file without a seal is read, and the trace is the same."""
    path = tmp_path / f"a{suffix}"
    store.save(small.loop(), path)
    data = path.read_bytes()
    rng = np.random.default_rng(1)
    for position in rng.integers(0, len(data), 300).tolist():
        path.write_bytes(_flipped(data, position, int(rng.integers(8))))
        if suffix == ".h5" and len(data) - SEAL_BYTES <= position < len(data) - SEAL_BYTES + 16:
            assert store.load(path).equals(small.loop())
        else:
            refused(path)


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def test_damage_that_the_seal_does_not_cover_is_refused_or_harmless(tmp_path: Path) -> None:
    """HDF5 files that lost their seal, 250 flipped bits. HDF5's own checksums and deflate's see them; unused bytes may differ.

    In a process of its own, so that a crash of the HDF5 library would be seen, and would end nothing but this test.
    """
    path = tmp_path / "a.h5"
    store.save(with_jitter(40, 6), path)
    code = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import numpy as np
from fathom_trace import store
from fathom_trace.errors import TraceFileError

data = Path({str(path)!r}).read_bytes()[:-{SEAL_BYTES}]
expected, path, rng = store.load({str(path)!r}), Path({str(tmp_path / "b.h5")!r}), np.random.default_rng(2)
refused = 0
for position in rng.integers(0, len(data), 250).tolist():
    changed = bytearray(data)
    changed[position] ^= 1 << int(rng.integers(8))
    path.write_bytes(changed)
    try:
        assert store.load(path).equals(expected)
    except TraceFileError:
        refused += 1
print(refused)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 50


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bytes_after_the_end_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    store.save(small.loop(), path)
    path.write_bytes(path.read_bytes() + path.read_bytes()[-SEAL_BYTES:])
    refused(path, "does not match its checksum")


# --- foreign and newer files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"name,count\nConv2D,3\n", b'{"traceEvents": []}', PNG, bytes(1000), b"\xff" * 1000, bytes(range(256)) * 20],
    ids=["empty", "newline", "csv", "json", "png", "zeros", "ones", "counting"],
)
def test_foreign_files_are_named_as_such(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    refused(path, "so it is no trace|is not a protobuf trace")


def test_the_other_formats_file_under_this_name(tmp_path: Path) -> None:
    store.save(small.loop(), tmp_path / "a.h5")
    store.save(small.loop(), tmp_path / "b.pb")
    (tmp_path / "a.h5").rename(tmp_path / "a.pb")
    (tmp_path / "b.pb").rename(tmp_path / "b.h5")
    refused(tmp_path / "a.pb", "is not a protobuf trace")
    refused(tmp_path / "b.h5", "is not an HDF5 file")


def test_other_hdf5_files(tmp_path: Path) -> None:
    path = tmp_path / "keras.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "3.15"
        file["layers/conv/kernel"] = np.zeros((3, 3))
    refused(path, "is an HDF5 file but no trace")
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "fathom-trace"  # of variable length, as h5py stores a str
        file.attrs["version"] = 1
    refused(path, "is an HDF5 file but no trace")
    with h5py.File(path, "w") as file:
        file.attrs["format"] = np.bytes_("somebody-else")
    refused(path, "is an HDF5 file but no trace")


def test_other_protobuf_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    path.write_bytes(trace_pb2.Nodes(node_name=range(100)).SerializeToString())
    refused(path, "is not a protobuf trace")
    write_records(path, [trace_pb2.Record(marker=trace_pb2.Marker(format="somebody-else", version=1)).SerializeToString()])
    refused(path, "is not a protobuf trace")
    write_records(path, [trace_pb2.Record(nodes=trace_pb2.Nodes(node_name=[1])).SerializeToString()])
    refused(path, "is not a protobuf trace")


@pytest.mark.parametrize(
    ("version", "suffix", "message"),
    [
        (3, ".h5", "is trace format 3; this release reads up to 2"),
        (2, ".pb", "is trace format 2; this release reads up to 1"),
        (0, ".h5", "does not tell its format version"),
        (0, ".pb", "does not tell its format version"),
    ],
)
def test_the_version_is_looked_at_first(version: int, suffix: str, message: str, tmp_path: Path) -> None:
    """Nothing else in these files could be read."""
    path = tmp_path / f"a{suffix}"
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs["format"] = np.bytes_("fathom-trace")
            file.attrs["version"] = np.int32(version)
    else:
        marker = trace_pb2.Record(marker=trace_pb2.Marker(format="fathom-trace", version=version)).SerializeToString()
        path.write_bytes(varint(len(marker)) + marker + b"\xff" * 50)
    refused(path, message)


@pytest.mark.parametrize("version", [b"1", 1.0, [1], "1", -1])
def test_a_version_that_is_no_number_is_refused(version: Any, tmp_path: Path) -> None:
    store.save(small.loop(), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["version"] = version
    refused(tmp_path / "a.h5", "does not tell its format version")


# --- HDF5 files made to harm --------------------------------------------------------------------------------------------------------


def tampered(tmp_path: Path, change: Callable[[h5py.File], None]) -> Path:
    """A trace in HDF5 after `change`; h5py drops the seal when it changes a file."""
    path = tmp_path / "a.h5"
    store.save(with_jitter(40, 6), path, force=True)
    with h5py.File(path, "r+") as file:
        change(file)
    assert not path.read_bytes().rstrip(b"\0").endswith(hdf5.SEAL_MAGIC)
    return path


def put(name: str, values: Any, **more: Any) -> Callable[[h5py.File], None]:
    """Put `values` in the place of a dataset."""

    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, data=values, **more)

    return change


def test_what_others_add_is_ignored(tmp_path: Path) -> None:
    """The written rule of `trace_hdf5.md`: unknown attributes, datasets and groups, at any level, of any kind."""

    def add(file: h5py.File) -> None:
        file.attrs["note"] = "mine"
        file["nodes/colour"] = ["red"] * 40
        file["nodes"].attrs["note"] = "mine"
        file["my_table/my_column"] = np.zeros((3, 4))
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/")

    assert store.load(tampered(tmp_path, add)).equals(with_jitter(40, 6))


def test_the_same_columns_in_other_types_and_layouts_are_read(tmp_path: Path) -> None:
    """As another program may write them: big-endian, wider, contiguous, deflated without shuffle, in small chunks."""

    def rewrite(file: h5py.File) -> None:
        for name, dtype, more in (
            ("step_times/start", ">i8", {}),
            ("step_times/done", "<i8", {"chunks": (7,), "compression": "gzip"}),
            ("nodes/op", ">u2", {"chunks": (64,), "maxshape": (None,), "compression": "gzip", "shuffle": True}),
            ("step_times/lane", "i4", {"chunks": (240,)}),
        ):
            values = file[name][:].astype(dtype)
            put(name, values, **more)(file)

    assert store.load(tampered(tmp_path, rewrite)).equals(with_jitter(40, 6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("nodes/op", np.zeros(40)), "nodes/op does not hold integers"),
        (put("nodes/op", ["x"] * 40), "nodes/op does not hold integers"),
        (put("nodes/op", np.zeros(40, "S3")), "nodes/op does not hold integers"),
        (put("nodes/op", np.zeros(40, [("a", "i4")])), "nodes/op does not hold integers"),
        (put("nodes/op", np.zeros(40, "V4")), "nodes/op does not hold integers"),
        (put("nodes/op", np.zeros(40, bool)), "nodes/op does not hold integers"),  # HDF5 has no bool: h5py makes an enumeration
        (put("nodes/op", None, shape=(40,), dtype=h5py.vlen_dtype("i4")), "nodes/op does not hold integers"),
        (put("nodes/op", [None] * 40, dtype=h5py.ref_dtype), "nodes/op does not hold integers"),
        (put("nodes/op", np.zeros((40, 1), int)), "nodes/op has 2 dimensions"),
        (put("nodes/op", 3), "nodes/op has 0 dimensions"),
        (put("nodes/op", h5py.Empty("i4")), "nodes/op"),
        (put("nodes/op", np.zeros(39, int)), "nodes has columns of 39 and of 40 rows"),
        (put("nodes/input_node", np.zeros(3, int)), "nodes.input_node: has 3 values, its offsets say"),
        (put("nodes/op", np.full(40, 10**6)), "nodes.op: points outside strings"),
        (put("nodes/op", np.full(40, -1)), "nodes.op: points outside strings"),
        (put("nodes/op", np.full(40, 2**40)), "nodes.op: holds a value that is no int32"),
        (put("executions/timed", np.full(40, 2)), "executions.timed: holds a value that is no bool"),
        (put("executions/kind", np.full(40, 4)), "executions.kind: codes run from 0 to 3"),
        (put("nodes/input_offsets", [0, 2**63 - 1] + [2**63 - 1] * 39), "nodes.input_node: has 77 values, its offsets say"),
        (put("nodes/input_offsets", np.array([0, 2**63 - 1, -2] + [77] * 38)), "offsets must begin at 0 and never fall"),
        (put("step_times/start", np.zeros(239, int)), "step_times has columns of 239 and of 240 rows"),
        (put("strings/text", np.full(10, 255, np.uint8)), "strings.text: has 10 values"),
        (put("provenance", np.frombuffer(b"{", np.uint8)), "provenance is not JSON"),
        (put("provenance", np.frombuffer(b"[]", np.uint8)), "provenance is not a JSON object"),
        (put("provenance", np.frombuffer(b'{"x": NaN}', np.uint8)), "must be JSON"),
        (put("provenance", np.frombuffer(b"[" * 100_000, np.uint8)), "provenance is not JSON"),
        (put("provenance", np.frombuffer(b"\xff\xfe", np.uint8)), "provenance is not JSON"),
        (lambda f: f.__delitem__("provenance"), "provenance is missing"),
        (lambda f: f.__delitem__("nodes/op"), "nodes/op is missing"),
        (lambda f: f.__delitem__("nodes"), "points outside nodes"),
        (lambda f: f.__delitem__("steps"), "step_times has 240 rows where its steps have 0 executions"),
        (lambda f: (f.__delitem__("nodes"), f.create_dataset("nodes", data=1)), "nodes is not a group"),
        (lambda f: (f.__delitem__("nodes/op"), f.create_group("nodes/op")), "nodes/op is not a dataset"),
        (lambda f: (f.__delitem__("nodes/op"), f.__setitem__("nodes/op", np.dtype("i4"))), "nodes/op is not a dataset"),
        (lambda f: f.move("nodes/op", "x") or f.__setitem__("nodes/op", h5py.SoftLink("/x")), "op is a soft or external link"),
        (lambda f: f.move("nodes", "x") or f.__setitem__("nodes", h5py.SoftLink("/x")), "nodes is a soft or external link"),
        (lambda f: (f.__delitem__("nodes"), f.__setitem__("nodes", h5py.ExternalLink("/etc/passwd", "/"))), "soft or external link"),
        (lambda f: (f.__delitem__("nodes"), f.__setitem__("nodes", f["/"])), "nodes/node_name is missing"),
        (put("nodes/op", np.zeros(40, int), compression="lzf"), "passes through HDF5 filters"),
        (put("nodes/op", np.zeros(40, int), chunks=(40,), fletcher32=True), "passes through HDF5 filters"),
        (put("nodes/op", np.zeros(40, int), chunks=(40,), scaleoffset=0), "passes through HDF5 filters"),
    ],
)  # fmt: skip
def test_hdf5_of_another_shape_is_refused(change: Callable[[h5py.File], None], message: str, tmp_path: Path) -> None:
    refused(tampered(tmp_path, change), message)


def test_storage_outside_the_file_is_not_followed(tmp_path: Path) -> None:
    """External storage would read any file that its name says; a virtual dataset, any HDF5 file."""
    (tmp_path / "secret").write_bytes(bytes(range(160)))

    def external(file: h5py.File) -> None:
        del file["nodes/op"]
        file.create_dataset("nodes/op", (40,), "i4", external=[(str(tmp_path / "secret"), 0, 160)])

    refused(tampered(tmp_path, external), "nodes/op lies outside the file")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros(40, int)

    def virtual(file: h5py.File) -> None:
        del file["nodes/op"]
        layout = h5py.VirtualLayout((40,), "i4")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (40,))
        file.create_virtual_dataset("nodes/op", layout)

    refused(tampered(tmp_path, virtual), "nodes/op lies outside the file")


def test_a_cycle_of_dependencies_is_refused(tmp_path: Path) -> None:
    """Execution 0 waits for execution 5, which waits for 4, 3, ... 0."""

    def change(file: h5py.File) -> None:
        put("executions/control_offsets", [0] + [1] * 40)(file)
        put("executions/control", [5])(file)

    refused(tampered(tmp_path, change), r"execution 0 \(block0/layer0/Conv2D_0\) depends on execution 5, which does not precede it")


def peak_bytes(action: Callable[[], Any]) -> int:
    """Memory that `action` held at most, as Python and numpy allocate it."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _declare(rows: int, **more: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file["nodes/op"]
        file.create_dataset("nodes/op", (rows,), "i4", **more)

    return change


def _overfull_chunk(file: h5py.File) -> None:
    """A chunk of 4 MiB declared, and 256 MiB in it: HDF5 itself would unpack it all."""
    del file["nodes/op"]
    dataset = file.create_dataset("nodes/op", (40,), "i4", maxshape=(None,), chunks=(1 << 20,), compression="gzip")
    packer = zlib.compressobj(1)
    packed = b"".join([packer.compress(bytes(1 << 20)) for _ in range(256)]) + packer.flush()
    dataset.id.write_direct_chunk((0,), packed)


def _chunks_of_zeros(file: h5py.File) -> None:
    """16 GiB of names in 16 MB, each chunk honest: what the ratio of the whole file is for."""
    del file["strings/text"]
    dataset = file.create_dataset("strings/text", (1 << 34,), "u1", chunks=(1 << 26,), compression="gzip")
    packed = zlib.compress(bytes(1 << 26), 9)
    for begin in range(0, 1 << 34, 1 << 26):
        dataset.id.write_direct_chunk((begin,), packed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_declare(2**40), r"nodes/op declares 1099511627776 values, which 0 stored bytes cannot hold"),
        (_declare(2**62, chunks=(1000,), compression="gzip"), "which 0 stored bytes cannot hold"),
        (_declare(2**40, maxshape=(None,), chunks=(2**26,)), "has chunks of 268435456 bytes; the limit is 67108864"),
        (_declare(40, chunks=(40,)), "nodes/op declares 40 values, which 0 stored bytes cannot hold"),
        (_overfull_chunk, "a chunk holds more than it declares"),
        (_chunks_of_zeros, r"strings/text declares \d+ bytes in a file of \d+"),
    ],
    ids=["contiguous", "chunked", "chunk", "missing chunk", "overfull chunk", "zeros"],
)
def test_sizes_are_not_believed(change: Callable[[h5py.File], None], message: str, tmp_path: Path) -> None:
    path = tampered(tmp_path, change)
    assert peak_bytes(lambda: refused(path, message)) < 32 << 20


def test_a_chunk_that_ends_early_is_refused(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["nodes/op"]
        dataset = file.create_dataset("nodes/op", (40,), "i4", chunks=(40,), compression="gzip", shuffle=True)
        dataset.id.write_direct_chunk((0,), zlib.compress(bytes(156)))

    refused(tampered(tmp_path, change), "a chunk holds 156 bytes where it declares 160")


def test_a_chunk_cut_within_its_stream_is_refused(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["nodes/op"]
        dataset = file.create_dataset("nodes/op", (40,), "i4", chunks=(40,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(np.arange(40, dtype="i4").tobytes())[:-4])

    refused(tampered(tmp_path, change), "a chunk ends too early")


def test_the_writer_keeps_to_what_readers_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace so uniform that its file would look like a bomb is stored without compression."""
    monkeypatch.setattr(hdf5, "DECODED_FREE_BYTES", 0)
    monkeypatch.setattr(hdf5, "DECODED_RATIO", 4)
    monkeypatch.setattr("fathom_trace.store.hdf5_reader.DECODED_FREE_BYTES", 0)
    monkeypatch.setattr("fathom_trace.store.hdf5_reader.DECODED_RATIO", 4)
    trace = with_jitter(40, 6).replace(provenance={"note": "x" * 2_000_000})
    store.save(trace, tmp_path / "a.h5")
    assert (tmp_path / "a.h5").stat().st_size > 2_000_000 / 4
    assert store.load(tmp_path / "a.h5").equals(trace)


# --- protobuf files made to harm ----------------------------------------------------------------------------------------------------


def rewritten(tmp_path: Path, **tables: dict[str, Any]) -> Path:
    """A trace in protobuf with some fields replaced, and a checksum that agrees."""
    path = tmp_path / "a.pb"
    store.save(with_jitter(40, 6), path)
    payloads = []
    for payload in messages(path)[:-1]:
        record = trace_pb2.Record.FromString(payload)
        for field, values in tables.get(record.WhichOneof("content"), {}).items():
            message = getattr(record, record.WhichOneof("content"))
            message.ClearField(field)
            if isinstance(values, bytes):
                setattr(message, field, values)
            else:
                getattr(message, field).extend(values)
        payloads.append(record.SerializeToString())
    write_records(path, payloads)
    return path


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"nodes": {"op": [10**6] * 40}}, "nodes.op: points outside strings"),
        ({"nodes": {"op": [2**32 - 1] * 40}}, "nodes.op: holds a value that is no int32"),
        ({"nodes": {"op": []}}, "nodes.op: has 0 rows where the table has 40"),
        ({"nodes": {"op": [0] * 41}}, "nodes.op: has 41 rows where the table has 40"),
        ({"nodes": {"input_counts": [2**63] * 40}}, "nodes.input_offsets: holds a value that is no int64"),
        ({"nodes": {"input_counts": [2**63 - 1, 2**63 - 1, 79] + [0] * 37}}, "offsets must begin at 0 and never fall"),
        ({"step_times": {"start": [0] * 239}}, "step_times: its times have different lengths"),
        ({"step_times": {"lane": [2**20] * 240}}, "step_times.lane: holds a value that is no int16"),
        ({"executions": {"control_counts": [1] + [0] * 39, "control": [5]}}, "execution 0 .* depends on execution 5"),
        ({"executions": {"kind": [7] * 40}}, "executions.kind: codes run from 0 to 3"),
        ({"structures": {"execution": [0] * 40}}, "structures.execution must list every execution once"),
        ({"strings": {"text": b"\xff" * 3}}, "strings.text: has 3 values"),
        ({"provenance": {"json": b'{"a":'}}, "provenance is not JSON"),
        ({"provenance": {"json": b""}}, "provenance is not JSON"),
    ],
)
def test_protobuf_with_wrong_numbers_is_refused(tables: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(rewritten(tmp_path, **tables), message)


def test_a_record_larger_than_the_file_or_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    store.save(small.loop(), path)
    marker = messages(path)[0]
    begin = varint(len(marker)) + marker
    for length in (b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\x07", b"\x80"):
        path.write_bytes(begin + length + b"xyz")
        assert peak_bytes(lambda: refused(path, "is longer than the file or than 16777216 bytes")) < 1 << 20
    path.write_bytes(begin + varint((16 << 20) + 1) + bytes((16 << 20) + 1))
    assert peak_bytes(lambda: refused(path, "is longer than the file or than 16777216 bytes")) < 1 << 20


def test_a_protobuf_trace_without_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    store.save(small.loop(), path)
    end = len(messages(path)[-1]) + 1
    path.write_bytes(path.read_bytes()[:-end])
    refused(path, "is damaged or cut short: its end is missing")


def test_random_records_between_marker_and_end_are_refused_or_ignored(tmp_path: Path) -> None:
    """300 messages of random bytes, checksum and all: whatever they parse as, no other error comes out."""
    path = tmp_path / "a.pb"
    store.save(small.loop(), path)
    kept = messages(path)[:-1]
    rng = np.random.default_rng(3)
    outcomes = set()
    for _ in range(300):
        write_records(path, [*kept, bytes(rng.integers(0, 256, int(rng.integers(1, 30)), dtype=np.uint8))])
        try:
            outcomes.add(store.load(path).equals(small.loop()))
        except TraceFileError:
            outcomes.add("refused")
    assert "refused" in outcomes
