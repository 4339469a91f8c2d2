"""Are integers that are encoded a column at a time the same as one at a time, as varints and as text?"""

from __future__ import annotations

import random

import numpy as np
import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]

from fathom_trace import digits, wire
from fathom_trace.generated.chakra_execution_pb2 import AttributeProto, Node
from fathom_trace.generated.perfetto_events_pb2 import TrackEvent


def edges(bits: int) -> list[int]:
    """0, 1, and both sides of every power of two and of ten below 2**bits."""
    powers = [2**k for k in range(bits)] + [10**k for k in range(19) if 10**k < 2**bits]
    return sorted({max(p + d, 0) for p in powers for d in (-1, 0, 1)} | {2**bits - 1})


def test_varints_are_protobufs_own() -> None:
    values = edges(64)
    assert wire.varints(np.array(values, np.uint64)) == [_VarintBytes(v) for v in values]
    assert [wire.varint(v) for v in values] == [_VarintBytes(v) for v in values]
    raw, offsets = wire.encode_varints(np.array(values, np.uint64))
    assert len(raw) == offsets[-1]
    assert wire.varints(np.zeros(0, np.int64)) == []


def test_fields_are_protobufs_own() -> None:
    node = Node(id=300, name="日本", data_deps=[0, 1, 300], attr=[AttributeProto(name="a", int64_val=0)])
    packed = b"".join(wire.varints([0, 1, 300]))
    attribute = wire.delimited(1, "a") + wire.integer(9, 0)
    written = wire.integer(1, 300) + wire.delimited(2, "日本") + wire.delimited(5, packed) + wire.delimited(10, attribute)
    assert written == node.SerializeToString()
    assert wire.record(written) == _VarintBytes(len(written)) + written
    assert wire.fixed64(47, 2**63) == TrackEvent(flow_ids=[2**63]).SerializeToString()


@pytest.mark.parametrize("columns", [1, 3])
def test_lines_are_what_str_gives(columns: int) -> None:
    values = edges(63) + [-v for v in edges(63)]
    random.Random(1).shuffle(values)
    table = [np.roll(np.array(values, np.int64), k) for k in range(columns)]
    expected = "".join(",".join(map(str, row)) + "\n" for row in zip(*(c.tolist() for c in table), strict=True))
    assert digits.lines(table) == expected
    assert digits.texts(table[0]) == [str(v) for v in values]


def test_blocks_join_and_gaps_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "BLOCK", 7)
    values, known = np.arange(-20, 20) * 997, np.arange(40) % 3 > 0
    expected = "".join(f"{v},{v if k else ''},{v}\n" for v, k in zip(values.tolist(), known.tolist(), strict=True))
    assert digits.lines([values, values, values], [None, known, None]) == expected
    assert digits.lines([values[:0]]) == ""


def test_microseconds_have_three_decimals() -> None:
    values = [v for v in edges(63) if v >= 0]
    assert digits.microseconds(np.array(values, np.int64)) == [f"{v // 1000}.{v % 1000:03d}" for v in values]
