"""Is an HDF5 file written in bounded memory, and does a disk that fills up while HDF5 writes end in one clear error?"""

from __future__ import annotations

import errno
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small
from trace_files import with_jitter

from fathom_trace import store
from fathom_trace.errors import TraceFileError
from fathom_trace.store import hdf5_writer
from fathom_trace.store.columns import DIFFERENCES, by_execution

PLAIN = tempfile.SpooledTemporaryFile


def limited(writes: int) -> tuple[type, list[int]]:
    """Temporary files that take so many writes, all together, and fail from then on; and how many are left."""
    left = [writes]

    class Limited(PLAIN):  # type: ignore[misc,valid-type]
        def write(self, data: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    return Limited, left


def test_a_full_disk_is_one_error_at_whatever_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 cannot close a file that it failed to write, and would crash the process later: it must never learn of it."""
    trace, path = small.loop(), tmp_path / "a.h5"
    plenty, left = limited(1 << 20)
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", plenty)
    store.save(trace, path)
    needed, before = (1 << 20) - left[0], path.read_bytes()
    assert needed > 20
    for writes in sorted({0, 1, 2, *np.linspace(3, needed - 4, 20).astype(int).tolist()}):
        monkeypatch.setattr(tempfile, "SpooledTemporaryFile", limited(writes)[0])
        with pytest.raises(TraceFileError, match=r"cannot write .*No space left on device.*make room"):
            store.save(trace, path, force=True)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", limited(2 * needed)[0])
    store.save(trace, path, force=True)
    assert path.read_bytes() == before


def test_writing_takes_a_part_of_what_the_trace_takes(tmp_path: Path) -> None:
    """400,000 execution-steps of 35 bytes: differences of all of them at once would take 32 bytes each, more than the bound."""
    trace = with_jitter(400, 1_000)
    tracemalloc.start()
    store.save(trace, tmp_path / "a.h5")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.7 * sum(getattr(trace.step_times, key).nbytes for key in trace.step_times.columns())


def test_large_traces_go_through_files_and_small_ones_do_not_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = with_jitter(300, 20)
    store.save(trace, tmp_path / "memory.h5")
    monkeypatch.setattr(hdf5_writer, "MEMORY_BYTES", 1)
    store.save(trace, tmp_path / "disk.h5")
    assert (tmp_path / "memory.h5").read_bytes() == (tmp_path / "disk.h5").read_bytes()


def test_chunks_hold_the_rows_of_the_whole_permuted_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences made chunk by chunk, by HDF5's own reading, against those of the whole column at once; chunks of 100 rows."""
    monkeypatch.setattr(hdf5_writer, "CHUNK_ROWS", 100)
    trace = with_jitter(130, 5)
    store.save(trace, tmp_path / "a.h5")
    times = {key: getattr(trace.step_times, key).astype(np.int64) for key in ("scheduled", "start", "end", "done")}
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert file["step_times/done"].chunks == (100,)
        for key, values in times.items():
            difference = DIFFERENCES["step_times", key]
            other = times[difference.other]
            whole = values - (np.concatenate([[0], other[:-1]]) if difference.row_before else other)
            expected = np.empty_like(whole)
            for block in by_execution(trace.structures, trace.steps, len(trace.step_times)):
                block.store(whole, expected)
            assert file[f"step_times/{key}"][:].astype(np.int64).tolist() == expected.tolist()
