"""How many bytes does a trace take, in all and for each more step?"""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
import small
from trace_files import with_jitter

from fathom_trace import store
from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Trace


def test_ten_more_steps_take_eight_bytes_an_execution(tmp_path: Path) -> None:
    """Everything counted: the four times, lane, validity and the rows of `steps`."""
    sizes = []
    for steps in (10, 20):
        path = tmp_path / f"{steps}.h5"
        store.save(with_jitter(120, steps), path)
        sizes.append(path.stat().st_size)
    assert (sizes[1] - sizes[0]) / (10 * 120) <= 8


def test_a_larger_trace_takes_eight_bytes_an_execution_and_step_in_all(tmp_path: Path) -> None:
    store.save(with_jitter(2_000, 20), tmp_path / "a.h5")
    assert (tmp_path / "a.h5").stat().st_size / (2_000 * 20) <= 8


def test_lane_and_validity_cost_nearly_nothing(tmp_path: Path) -> None:
    store.save(with_jitter(1_000, 20), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r") as file:
        stored = sum(file[f"step_times/{key}"].id.get_storage_size() for key in ("lane", "valid"))
    assert stored / (1_000 * 20) <= 0.02


def test_an_empty_trace_is_less_than_a_kilobyte(tmp_path: Path) -> None:
    store.save(Trace(), tmp_path / "a.h5")
    store.save(Trace(), tmp_path / "a.pb")
    assert (tmp_path / "a.h5").stat().st_size < 1024
    assert (tmp_path / "a.pb").stat().st_size < 100


def test_a_column_of_few_rows_costs_its_header(tmp_path: Path) -> None:
    """A new dataset has a header of 256 bytes in HDF5 besides its name; packed, name and values of a small one take less than that."""
    store.save(small.diamond(), tmp_path / "a.h5")
    columns: list[str] = []
    with h5py.File(tmp_path / "a.h5", "r") as file:
        file.visititems(lambda name, item: columns.append(name) if isinstance(item, h5py.Dataset) else None)
        text = len(file["strings/text"]) + len(file["provenance"])
    assert len(columns) > 50
    assert ((tmp_path / "a.h5").stat().st_size - text) / len(columns) < 256


@pytest.mark.parametrize("suffix", [".h5", ".pb"])
def test_20_000_shapes_take_less_than_5_mb(suffix: str, tmp_path: Path) -> None:
    """Case F3: a group for each op would take 31 MB."""
    builder = TraceBuilder()
    for i in range(20_000):
        node = builder.node(f"layer{i}", "Conv2D")
        builder.execution(node, outputs=[("float32", [i % 50 + 1, i % 7 + 1, i + 1, 3])])
    trace = builder.build()
    assert len(trace.shapes) >= 20_000
    path = tmp_path / f"a{suffix}"
    store.save(trace, path)
    assert path.stat().st_size < 5_000_000
    found = store.load(path)
    assert found.shapes[19_999 + 1] == (19_999 % 50 + 1, 19_999 % 7 + 1, 20_000, 3)  # row 0 is the scalar
