"""Does a lazily loaded trace read only what is asked for, hold the same, and refuse the same damage when it meets it?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small
from hypothesis import HealthCheck, given, settings
from random_traces import traces
from trace_files import with_jitter

import fathom_trace.summary
from fathom_trace import store
from fathom_trace.cli import run
from fathom_trace.errors import TraceFileError
from fathom_trace.summary import overview, summarize
from fathom_trace.trace import Trace

SEAL_BYTES = 28


def bytes_read() -> int:
    """Bytes that this process has asked files for so far, as Linux counts them."""
    counts = Path("/proc/self/io")
    if not counts.exists():
        pytest.skip("needs /proc/self/io")
    return int(counts.read_text(encoding="ascii").split()[1])


def touch_all(trace: Trace) -> None:
    for table in trace.tables().values():
        for key in table.columns():
            getattr(table, key)


def without_seal(path: Path) -> bytes:
    return path.read_bytes()[:-SEAL_BYTES]


def test_an_overview_reads_kilobytes_of_a_file_of_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(with_jitter(1_000, 1_000), path)
    assert path.stat().st_size > 5_000_000
    store.load(path, lazy=True)  # what is imported and set up once
    before = bytes_read()
    found = overview(store.load(path, lazy=True), path)
    assert bytes_read() - before < 200_000
    assert (found.executions, found.traced_steps, found.recorded) == (1_000, 1_000, 1_000_000)


def test_an_overview_tells_what_a_summary_tells(tmp_path: Path) -> None:
    for trace in (small.diamond(), small.loop(), with_jitter(20, 3), Trace()):
        path = tmp_path / "a.h5"
        store.save(trace, path, force=True)
        whole = summarize(trace, path).to_dict()
        part = overview(store.load(path, lazy=True), path).to_dict()
        assert part == {key: whole[key] for key in part}
        assert (whole["checks"]["recorded"], whole["checks"]["produced"]) == (part["recorded"], part["produced"])


@pytest.mark.parametrize("suffix", [".h5", ".pb"])
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_every_column_is_the_same(suffix: str, tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / f"a{suffix}"
    store.save(trace, path, force=True)
    found = store.load(path, lazy=True)
    assert {name: len(table) for name, table in found.tables().items()} == {name: len(t) for name, t in trace.tables().items()}
    assert found.equals(trace)
    assert all(not getattr(table, key).flags.writeable for table in found.tables().values() for key in table.columns())


def test_columns_are_read_once_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(with_jitter(20, 3), path)
    found = store.load(path, lazy=True)
    assert found.executions.node is found.executions.node
    assert "control" not in vars(found.executions)
    assert "start" not in vars(found.step_times)
    assert found.step_times.done[0] > 0
    assert {"start", "end", "done"} <= vars(found.step_times).keys()  # stored as differences of each other
    assert "lane" not in vars(found.step_times)
    with pytest.raises(AttributeError, match="no attribute 'nodes'"):
        found.executions.nodes  # type: ignore[attr-defined]  # noqa: B018


def test_a_file_that_is_replaced_meanwhile_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(small.diamond(), path)
    found = store.load(path, lazy=True)
    store.save(small.loop(), path, force=True)
    assert found.equals(small.diamond())


def test_other_readers_in_the_process_see_what_the_file_holds_now(tmp_path: Path) -> None:
    """HDF5 takes a file that it has open for the one that has its name; written over in place, it would be a mixture."""
    path = tmp_path / "a.h5"
    store.save(small.diamond(), path)
    kept = store.load(path, lazy=True)
    store.save(small.loop(), tmp_path / "b.h5")
    path.write_bytes((tmp_path / "b.h5").read_bytes())
    assert store.load(path).equals(small.loop())
    assert store.load(path, lazy=True).equals(small.loop())
    assert len(kept.executions) == len(small.diamond().executions)


# --- damage -------------------------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    """Opened without looking at the seal's CRC, 250 files with one bit changed: an error at once, or by the time all was read, or none."""
    path, changed = tmp_path / "a.h5", tmp_path / "b.h5"
    store.save(with_jitter(40, 6), path)
    data, expected, rng = path.read_bytes(), store.load(path), np.random.default_rng(3)
    refused: list[str] = []
    for position in rng.integers(0, len(data), 250).tolist():
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        changed.write_bytes(damaged)
        try:
            found = store.load(changed, lazy=True)
            touch_all(found)
            assert found.equals(expected), position
        except TraceFileError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert all(message.startswith(str(changed)) and "\n" not in message for message in refused)


def test_a_file_cut_short_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(with_jitter(40, 6), path)
    data = path.read_bytes()
    for size in (0, 5, 100, len(data) // 2, len(data) - SEAL_BYTES - 1):
        path.write_bytes(data[:size])
        with pytest.raises(TraceFileError):
            store.load(path, lazy=True)


def test_bytes_between_the_trace_and_its_seal_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(small.loop(), path)
    data = path.read_bytes()
    path.write_bytes(data[:-SEAL_BYTES] + b"more" + data[-SEAL_BYTES:])
    with pytest.raises(TraceFileError, match="its size does not match its seal"):
        store.load(path, lazy=True)


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("executions/node", lambda v: v + 100, "executions.node: points outside nodes"),
        ("executions/input", lambda v: v[::-1].copy(), "does not precede it"),
        ("executions/kind", lambda v: v + 9, "executions.kind: codes run from 0 to 3"),
        ("executions/input_offsets", lambda v: v[::-1].copy(), "offsets must begin at 0 and never fall"),
        ("executions/input_offsets", lambda v: np.minimum(v, v[-1] - 1), "executions.input: has 4 values, its offsets say 3"),
        ("tensors/execution", lambda v: v[::-1].copy(), "tensors must be ordered by execution"),
        ("nodes/attributes", lambda v: np.full_like(v, 1), "nodes.attributes is not JSON"),
    ],
)
def test_what_a_whole_trace_is_checked_for_holds_of_each_column(column: str, change: Any, message: str, tmp_path: Path) -> None:
    """Asked for twice: a column that was refused is not there the second time either."""
    path = tmp_path / "a.h5"
    store.save(small.diamond(), path)
    path.write_bytes(without_seal(path))
    with h5py.File(path, "r+") as file:
        values = change(file[column][:].astype(np.int64))
        del file[column]
        file[column] = values
    with pytest.raises(TraceFileError, match=message):
        store.load(path)
    found = store.load(path, lazy=True)
    table, key = column.split("/")
    for _ in range(2):
        with pytest.raises(TraceFileError, match=message):
            getattr(found.tables()[table], key)
    assert len(found.steps.traced) == len(small.diamond().steps)


def test_steps_that_do_not_fit_their_times_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(small.diamond(), path)
    path.write_bytes(without_seal(path))
    with h5py.File(path, "r+") as file:
        del file["steps/structure"]
        file["steps/structure"] = np.full(len(small.diamond().steps), -1, np.int32)
    with pytest.raises(TraceFileError, match="step_times has"):
        store.load(path, lazy=True)


# --- info ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of 60 execution-steps in a release to which 50 are many; its times are damaged."""
    monkeypatch.setattr(fathom_trace.summary, "LARGE_ROWS", 50)
    path = tmp_path / "large.h5"
    store.save(with_jitter(20, 3), path)
    with h5py.File(path, "r+") as file:
        values = file["step_times/lane"][:].astype(np.int64) + 2**40
        del file["step_times/lane"]
        file["step_times/lane"] = values
    return path


def test_info_of_a_large_trace_says_what_it_did_not_check(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(large)]) == 0
    text = capsys.readouterr().out
    assert "not checked  causality, readiness, inputs, order of times, references, checksum of the file" in text
    assert "--full" in text
    assert "3 traced, 0 untraced" in text
    assert "where the time goes" not in text
    assert run(["info", str(large), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "causality" in found["not_checked"]
    assert found["tables"]["step_times"] == 60
    assert "checks" not in found


def test_info_full_checks_a_large_trace(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(large), "--full"]) == 1
    assert "step_times.lane: holds a value that is no int16" in capsys.readouterr().err
    store.save(with_jitter(20, 3), large, force=True)
    assert run(["info", str(large), "--full"]) == 0
    text = capsys.readouterr().out
    assert "causality" in text
    assert "not checked" not in text


# --- commands -----------------------------------------------------------------------------------------------------------------------


def test_times_are_read_as_far_as_they_are_asked_for(tmp_path: Path) -> None:
    """Scheduled times are a column that the others do not need; asked for later, they alone are read."""
    whole = with_jitter(300, 300)
    store.save(whole, tmp_path / "a.h5")
    times = store.load(tmp_path / "a.h5", lazy=True).step_times
    assert times.done.tolist() == whole.step_times.done.tolist()
    assert {"start", "end", "done"} <= vars(times).keys()
    assert "scheduled" not in vars(times)
    before = bytes_read()
    assert times.scheduled.tolist() == whole.step_times.scheduled.tolist()
    size = (tmp_path / "a.h5").stat().st_size
    assert bytes_read() - before < size / 3
    assert times.start.tolist() == whole.step_times.start.tolist()


def damaged_times(path: Path) -> None:
    """Flip a bit in the middle of the stored `start` of `step_times`; the file keeps its size, but no seal would tell its content."""
    with h5py.File(path, "r") as file:
        chunk = file["step_times/start"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    "words",
    [
        ["ops", "a.h5"],
        ["ops", "a.h5", "--steps", "2"],
        ["memory", "a.h5", "--time", "..1ms"],
        ["whatif", "a.h5", "--speedup", "Conv2D=2"],
        ["export", "a.h5", "table", "-o", "out"],
        ["export", "a.h5", "perfetto", "-o", "out"],
        ["report", "a.h5", "--out", "out"],
        ["convert", "a.h5", "out.pb"],
        ["info", "a.h5"],
    ],
    ids=" ".join,
)
def test_a_command_that_meets_damage_says_so_once_and_leaves_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(with_jitter(200, 12), "a.h5")
    damaged_times(Path("a.h5"))
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "a.h5" in err
    assert "damaged" in err
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
