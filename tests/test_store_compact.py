"""Are the times of small traces stored in fewer bytes, by the document's words, and does every one of them come back?"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import with_jitter

from fathom_trace import store
from fathom_trace import tables as t
from fathom_trace.errors import TraceFileError
from fathom_trace.store.compact import AS_IS_NS, KEYS, compact, expand, find_period, from_ticks, to_ticks
from fathom_trace.trace import Trace

PERIOD_NS = 10.0188
PERIOD = round(PERIOD_NS * 2**24)


def on_a_clock(trace: Trace, period_ns: float = PERIOD_NS) -> Trace:
    """The same, read from a clock that moves by `period_ns`, each reading cut off to whole ns; like times keep their order."""
    times = trace.step_times
    read = {key: np.floor(np.floor(getattr(times, key) / period_ns) * period_ns).astype(np.int64) for key in KEYS}
    kept = {key: getattr(times, key) for key in times.columns()}
    return trace.replace(step_times=t.StepTimes(**{**kept, **read}))


def bytes_of_times(path: Path) -> float:
    """What an execution's four times take in a step, and what is stored to read them."""
    with h5py.File(path, "r") as file:
        group = file["step_times"]
        held = sum(group[key].id.get_storage_size() for key in group if key not in ("lane", "valid"))
        return float(held / len(group["start"]))


def test_a_small_trace_from_a_coarse_clock_takes_less_than_eight_bytes(tmp_path: Path) -> None:
    """A period of 10 ns leaves out log2(10) = 3.3 bits of each of the four times; how they were rounded takes about 1.3 each again.

    That is a byte less than the same times from a clock of 1 ns, of which deflate leaves three quarters.
    """
    fine, coarse = with_jitter(440, 3), on_a_clock(with_jitter(440, 3))
    store.save(fine, tmp_path / "fine.h5")
    store.save(coarse, tmp_path / "coarse.h5")
    assert bytes_of_times(tmp_path / "coarse.h5") <= min(8, bytes_of_times(tmp_path / "fine.h5") - 0.75)
    assert store.load(tmp_path / "coarse.h5").equals(coarse)
    assert store.load(tmp_path / "coarse.h5", lazy=True).equals(coarse)
    assert store.load(tmp_path / "fine.h5").equals(fine)


def test_only_files_that_need_it_are_of_version_2(tmp_path: Path) -> None:
    """What a release that knows version 1 can read, it may."""
    for name, trace, version in (
        ("a", on_a_clock(with_jitter(440, 3)), 2),
        ("b", with_jitter(20, 2), 1),
        ("c", with_jitter(440, 200), 1),
    ):
        store.save(trace, tmp_path / f"{name}.h5")
        with h5py.File(tmp_path / f"{name}.h5", "r") as file:
            assert file.attrs["version"] == version


def test_another_program_reads_compact_times_by_the_documents_words(tmp_path: Path) -> None:
    """With h5py alone, value by value in Python's own integers, by the sentences of `trace_hdf5.md`."""
    trace = on_a_clock(with_jitter(300, 2))
    store.save(trace, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r") as file:
        group = file["step_times"]
        period = int(group.attrs["period"])
        rows = {key: group[key][:].reshape(300, 2).T.ravel().tolist() for key in (*KEYS, "after", "codes")}
    assert period / 2**24 == pytest.approx(PERIOD_NS, rel=1e-5)
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for i in range(600):
        d = {}
        for place, key in enumerate(KEYS):
            value, code = rows[key][i], rows["codes"][i] >> 2 * place & 3
            if abs(value) <= 4_194_304 and code != 3:
                product = value * period
                nearest = (product + 2**23) >> 24
                side = 1 if product >= nearest << 24 else -1
                value = (nearest, nearest + side, nearest - side)[code]
            d[key] = value
        before = found["done"][i - 1] if i else 0
        found["start"].append(before + d["start"])
        found["end"].append(found["start"][i] + d["end"])
        found["done"].append(found["end"][i] + d["done"])
        back = rows["after"][i]
        found["scheduled"].append(d["scheduled"] + (found["done"][i - back] if back else 0))
    for key in KEYS:
        assert found[key] == getattr(trace.step_times, key).tolist()


WIDE = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-2000, 2000), st.sampled_from([AS_IS_NS, AS_IS_NS + 1, -AS_IS_NS, -AS_IS_NS - 1])
)


@given(st.lists(WIDE, max_size=50), st.integers(3 << 24, 64 << 24))
def test_every_difference_comes_back(values: list[int], period: int) -> None:
    given_ = np.array(values, np.int64)
    assert from_ticks(*to_ticks(given_, period), period).tolist() == values


@given(st.lists(st.tuples(WIDE, WIDE, WIDE, WIDE), max_size=40), st.integers(0, 40))
def test_any_four_columns_come_back(rows: list[tuple[int, int, int, int]], cut: int) -> None:
    columns = {key: np.array([row[k] for row in rows], np.int64) for k, key in enumerate(KEYS)}
    offsets = np.array([0, min(cut, len(rows)), len(rows)], np.int64)
    found = expand(compact(columns, offsets))
    assert all(found[key].tolist() == columns[key].tolist() for key in KEYS)


@pytest.mark.parametrize("period_ns", [3.5, 8.2051, 10.0188, 41.6667])
def test_the_period_of_a_clock_is_found(period_ns: float) -> None:
    """Readings of a clock that moves by `period_ns`, at random moments some us apart."""
    moments = np.cumsum(np.random.default_rng(1).exponential(2_000, 5_000))
    read = np.floor(np.floor(moments / period_ns) * period_ns).astype(np.int64)
    assert find_period(np.diff(read)) / 2**24 == pytest.approx(period_ns, rel=1e-5)


def test_a_period_is_found_where_all_differences_are_long() -> None:
    """None is below 200 ns, where the search for the exact period begins."""
    ticks = np.random.default_rng(1).integers(30, 400, 5_000)
    read = np.floor(np.cumsum(ticks) * 10.0188).astype(np.int64)
    with np.errstate(all="raise"):
        assert find_period(np.diff(read)) / 2**24 == pytest.approx(10.0188, rel=1e-5)


def test_a_clock_of_nanoseconds_has_no_period() -> None:
    assert find_period(np.random.default_rng(1).exponential(2_000, 5_000).astype(np.int64)) == 0
    assert find_period(np.full(5_000, 1_000)) == 0
    assert find_period(np.zeros(0, np.int64)) == 0


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("after", np.zeros(1_319, np.uint8), "step_times has columns of 1319 and of 1320 rows"),
        ("codes", np.zeros(1_321, np.uint8), "step_times has columns of 1321 and of 1320 rows"),
        ("after", np.full(1_320, 3, np.uint8), "step_times.after: points before the first row"),
        ("after", np.full(1_320, -1, np.int8), "step_times.after: points before the first row"),
        ("codes", np.zeros(1_320), "does not hold integers"),
        ("period", np.int64(0x7FFF_FFFF_FFFF_FFFF), "declares a clock with a period of"),
        ("period", np.int64(-5), "declares a clock with a period of"),
    ],
)
def test_compact_times_that_cannot_be_are_refused(name: str, values: np.ndarray, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    store.save(on_a_clock(with_jitter(440, 3)), path)
    with h5py.File(path, "r+") as file:
        if name == "period":
            file["step_times"].attrs[name] = values
        else:
            del file[f"step_times/{name}"]
            file[f"step_times/{name}"] = values
    with pytest.raises(TraceFileError, match=message):
        store.load(path)
    with pytest.raises(TraceFileError, match=message):
        _ = store.load(path, lazy=True).step_times.start
