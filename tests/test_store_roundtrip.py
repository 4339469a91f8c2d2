"""Is a trace that was stored the trace that is read, in both formats and from one to the other?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_traces import traces

from fathom_trace import store
from fathom_trace import tables as t
from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import TraceError
from fathom_trace.store import proto
from fathom_trace.store.columns import COLUMNS, DIFFERENCES, by_execution, decode, encode, narrowest
from fathom_trace.trace import Trace

SUFFIXES = (".h5", ".hdf5", ".pb")
INT64 = st.integers(-(2**63), 2**63 - 1)


def assert_equal(found: Trace, expected: Trace) -> None:
    """Every column equal in dtype and value, named one by one so that a failure says which."""
    for name, table in expected.tables().items():
        for key, spec in table.columns().items():
            column = getattr(found.tables()[name], key)
            assert column.dtype == np.dtype(spec.dtype), f"{name}.{key}"
            assert column.tobytes() == getattr(table, key).tobytes(), f"{name}.{key}"
    assert dict(found.provenance) == dict(expected.provenance)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trace=traces())
def test_any_legal_trace_survives_h5_to_pb_to_h5(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second, third = (Path(folder, name) for name in ("a.h5", "b.pb", "c.hdf5"))
        store.save(trace, first)
        store.convert(first, second)
        store.convert(second, third)
        for path in (first, second, third):
            assert_equal(store.load(path), trace)
        assert first.read_bytes() == third.read_bytes()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trace=traces(), limit=st.integers(proto.SMALLEST_MESSAGE_BYTES, 1500))
def test_any_legal_trace_survives_being_cut_into_small_messages(trace: Trace, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.pb")
        proto.write(trace, path, max_message_bytes=limit)
        assert_equal(store.load(path), trace)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("make", [Trace, small.diamond, small.loop])
def test_small_traces_survive(make: type[Trace], suffix: str, tmp_path: Path) -> None:
    store.save(make(), tmp_path / f"trace{suffix}")
    assert_equal(store.load(tmp_path / f"trace{suffix}"), make())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_larger_trace_survives(suffix: str, tmp_path: Path) -> None:
    """200,000 rows of times: several chunks of HDF5 and several messages of protobuf, none of them full at the end."""
    rng = np.random.default_rng(7)
    builder = TraceBuilder()
    node = builder.node("n", "MatMul")
    for _ in range(10_000):
        builder.execution(node)
    structure = builder.end_structure()
    for _ in range(20):
        times = np.cumsum(rng.integers(1, 100_000, 40_000)).reshape(4, 10_000, order="F")
        builder.step(structure, scheduled=times[0], start=times[1], end=times[2], done=times[3], lane=rng.integers(0, 3, 10_000))
    trace = builder.build({"workload": "long"})
    assert len(trace.step_times) == 200_000
    store.save(trace, tmp_path / f"trace{suffix}")
    assert_equal(store.load(tmp_path / f"trace{suffix}"), trace)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_with_slashes_are_data(suffix: str, tmp_path: Path) -> None:
    """Case F1: as HDF5 names, the second would collide with the first and `a//b` would become a/b."""
    names = ["dw", "dw/SpaceToBatchND", "a//b", ".", "x:0"]
    assert _names_after(names, tmp_path / f"trace{suffix}") == names


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_of_any_characters_come_back_as_str(suffix: str, tmp_path: Path) -> None:
    """Case F6. NUL needs no escape, because names are neither fixed-length nor C strings in a file."""
    names = ["conv/日本", "a b", "x\0y", "ends in nul\0"]
    assert _names_after(names, tmp_path / f"trace{suffix}") == names


def test_a_name_that_is_no_unicode_is_refused_and_named() -> None:
    builder = TraceBuilder()
    builder.node("bad\udc80name", "MatMul")
    with pytest.raises(TraceError, match=r"the name 'bad\\udc80name' is not valid Unicode"):
        builder.build()


def _names_after(names: list[str], path: Path) -> list[str]:
    builder = TraceBuilder()
    for name in names:
        builder.node(name, "DepthwiseConv2dNative")
    store.save(builder.build(), path)
    return list(store.load(path).node_names)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(INT64, INT64, INT64, INT64), max_size=8))
def test_any_four_times_survive_as_differences(rows: list[tuple[int, int, int, int]]) -> None:
    keys = ("scheduled", "start", "end", "done")
    times = {key: np.array([row[i] for row in rows], np.int64) for i, key in enumerate(keys)}
    stored = {key: narrowest(values) for key, values in encode(t.StepTimes, times).items()}
    found = decode(t.StepTimes, stored)
    assert all(np.array_equal(found[key], times[key]) for key in keys)


def test_times_are_stored_as_the_formulas_say() -> None:
    """Two executions: queued 100, run 110 to 150, done 160; queued 155 (before that), run 170 to 175, done 180."""
    times = {"scheduled": [100, 155], "start": [110, 170], "end": [150, 175], "done": [160, 180]}
    stored = encode(t.StepTimes, {key: np.array(values, np.int64) for key, values in times.items()})
    assert {key: values.tolist() for key, values in stored.items()} == {
        "scheduled": [100 - 0, 155 - 160],
        "start": [110 - 0, 170 - 160],
        "end": [150 - 110, 175 - 170],
        "done": [160 - 150, 180 - 175],
    }


def test_rows_of_times_stand_execution_by_execution() -> None:
    """Executions 0 and 1 make one structure, 2 another; steps ran the first, the second, nothing, the first: rows 0 1 | 2 | 3 4."""
    structures = t.Structures(execution_offsets=[0, 2, 3], execution=[0, 1, 2])
    columns = {key: np.zeros(4, spec.dtype) for key, spec in t.Steps.columns().items()}
    steps = t.Steps(**columns | {"structure": np.array([0, 1, -1, 0])})
    stored, column = np.full(5, -1), np.full(5, -1)
    for block in by_execution(structures, steps, 5):
        block.store(np.arange(5), stored)
    assert stored.tolist() == [0, 3, 1, 4, 2]
    for block in by_execution(structures, steps, 5):
        block.restore(stored, column)
    assert column.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TraceError, match="step_times has 6 rows where its steps have 5 executions"):
        by_execution(structures, steps, 6)


def test_differences_refer_to_columns_that_exist() -> None:
    known = {(column.table, column.key) for column in COLUMNS}
    for (table, key), difference in DIFFERENCES.items():
        assert {(table, key), (table, difference.other)} <= known


def test_every_time_of_a_step_is_stored_as_a_difference() -> None:
    assert {c.key for c in COLUMNS if c.spec.is_time} == {key for table, key in DIFFERENCES if table == "step_times"}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([], "u1"), ([0, 255], "u1"), ([0, 256], "u2"), ([-1, 127], "i1"), ([-1, 128], "i2"), ([2**63 - 1], "u8"), ([-(2**63)], "i8")],
)
def test_columns_take_the_smallest_type(values: list[int], dtype: str) -> None:
    assert narrowest(np.array(values, np.int64)).dtype == np.dtype(dtype)


def test_the_same_trace_makes_the_same_bytes(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        store.save(small.loop(), first)
        store.save(small.loop(), second)
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strings": t.Strings(text_offsets=[0, 1], text=[0xFF])}, "strings.text is not UTF-8"),
        ({"attributes": "not JSON"}, "nodes.attributes is not JSON"),
        ({"attributes": "[1]"}, "nodes.attributes is not a JSON object"),
    ],
)
def test_what_no_reader_would_accept_is_not_written(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    if "strings" in changes:
        trace = Trace(strings=changes["strings"])
    else:
        builder = TraceBuilder()
        builder.string(str(changes["attributes"]))
        builder.node("n", "MatMul")
        trace = builder.build()
        row = {key: getattr(trace.nodes, key) for key in trace.nodes.columns()} | {"attributes": [1]}
        trace = trace.replace(nodes=t.Nodes(**row))
    for suffix in SUFFIXES:
        with pytest.raises(TraceError, match=message):
            store.save(trace, tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())
