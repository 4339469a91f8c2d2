"""Does reading protobuf messages in bulk find what protobuf itself finds, and does it refuse what is none?"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fathom_trace import wire
from fathom_trace.wire_columns import MalformedError, iterate_spans, padded, read_fields

TYPES = descriptor_pb2.FieldDescriptorProto
KINDS = {
    1: TYPES.TYPE_INT64, 2: TYPES.TYPE_INT32, 3: TYPES.TYPE_UINT64, 4: TYPES.TYPE_BYTES, 5: TYPES.TYPE_FIXED64, 6: TYPES.TYPE_FIXED32,
    17: TYPES.TYPE_INT64, 300: TYPES.TYPE_BYTES,
}  # fmt: skip
EDGES = (0, 1, 127, 128, 2**14 - 1, 2**14, 2**28, 2**35 - 1, 2**49, 2**55, 2**56 - 1, 2**56, 1_796_026_610_255_867_123, 2**63 - 1)


def message_class():
    file = descriptor_pb2.FileDescriptorProto(name="bulk.proto", package="bulk", syntax="proto2")
    described = file.message_type.add(name="M")
    for number, kind in KINDS.items():
        label = TYPES.LABEL_REPEATED if kind == TYPES.TYPE_BYTES else TYPES.LABEL_OPTIONAL
        described.field.add(name=f"f{number}", number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bulk.M"))


def random_message(random: Random, made):
    for number, kind in KINDS.items():
        if random.random() < 0.4:
            continue
        if kind == TYPES.TYPE_BYTES:
            getattr(made, f"f{number}").extend(random.randbytes(random.choice((0, 1, 5, 200))) for _ in range(random.randrange(4)))
        elif kind in (TYPES.TYPE_FIXED32, TYPES.TYPE_FIXED64):
            setattr(made, f"f{number}", random.randrange(2**32))
        else:
            value = random.choice((*EDGES, random.randrange(2**63)))
            value = value % 2**31 if kind == TYPES.TYPE_INT32 else value
            setattr(made, f"f{number}", -value if kind != TYPES.TYPE_UINT64 and random.random() < 0.3 else value)
    return made


def laid_out(raws: list[bytes]):
    ends = np.cumsum([len(raw) for raw in raws])
    return padded(b"".join(raws)), ends - [len(raw) for raw in raws], ends


@pytest.mark.parametrize("seed", range(5))
def test_fields_are_those_that_protobuf_finds(seed: int) -> None:
    random, kind = Random(seed), message_class()
    messages = [random_message(random, kind()) for _ in range(400)]
    data, begin, end = laid_out([m.SerializeToString() for m in messages])
    found = read_fields(data, begin, end, integers=(1, 2, 3, 17), spans=(4, 300))
    for number in (1, 2, 17):
        assert found.integers[number].tolist() == [getattr(m, f"f{number}") for m in messages]
    assert found.integers[3].astype(np.uint64).tolist() == [m.f3 for m in messages]
    raw = data.tobytes()
    for number in (4, 300):
        spans = found.spans[number]
        given = [(i, value) for i, m in enumerate(messages) for value in getattr(m, f"f{number}")]
        assert [(i, raw[a:b]) for i, a, b in zip(spans.message, spans.begin, spans.end, strict=True)] == given
        begins, ends = spans.last(len(messages))
        assert [raw[a:b] for a, b in zip(begins, ends, strict=True)] == [
            next(reversed(getattr(m, f"f{number}")), b"") for m in messages
        ]


@pytest.mark.parametrize("seed", range(5))
def test_values_of_one_message_are_found_one_after_the_other(seed: int) -> None:
    """Around it lie other bytes; lengths of one, two and three bytes, fields with a tag of one and of two."""
    random, made = Random(seed), message_class()()
    for _ in range(40):
        random.choice((made.f4, made.f300)).append(random.randbytes(random.choice((0, 1, 127, 128, 300, 16_383, 16_384, 20_000))))
    made.f1, made.f5, made.f6, made.f17 = -1, 2, 3, 2**62
    raw = b"\xff" * 5 + made.SerializeToString() + b"\xff" * 5
    for number in (1, 4, 17, 300, 2000):
        found = [pair for pairs in iterate_spans(raw, 5, len(raw) - 5, number, 7) for pair in zip(*pairs, strict=True)]
        assert [raw[a:b] for a, b in found] == (list(getattr(made, f"f{number}")) if number in (4, 300) else [])
    sizes = [len(begins) for begins, _ in iterate_spans(raw, 5, len(raw) - 5, 4, 7)]
    assert sizes[:-1] == [7] * (len(sizes) - 1)


def test_the_last_value_counts_and_an_empty_message_has_none() -> None:
    data, begin, end = laid_out([wire.integer(1, 5) + wire.integer(2, 6) + wire.integer(1, 7), b""])
    found = read_fields(data, begin, end, integers=(1, 2), spans=(4,))
    assert {k: v.tolist() for k, v in found.integers.items()} == {1: [7, 0], 2: [6, 0]}
    assert len(found.spans[4].begin) == 0


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\x08", "beyond"), (b"\x08\x80", "beyond"), (b"\x22\x05abc", "beyond"), (b"\x0b", "wire type 3"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "64 bits"), (b"\x22" + b"\xff" * 9 + b"\x01", "beyond"), (b"\x2d\x00\x00", "beyond"),
        (b"\x22" + wire.varint(2**62), "beyond"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(raw: bytes, says: str) -> None:
    for others in ([], [wire.integer(1, 5)], [wire.integer(1, 5)] * 20):  # alone, and beside good ones
        data, begin, end = laid_out([*others, raw])
        with pytest.raises(MalformedError, match=says):
            read_fields(data, begin, end, integers=(1,), spans=(4,))
    with pytest.raises(MalformedError, match=says):
        list(iterate_spans(raw, 0, len(raw), 4, 10))


def test_no_bytes_whatever_are_read_beyond_their_end() -> None:
    random = Random(1)
    for _ in range(2_000):
        data, begin, end = laid_out([random.randbytes(random.randrange(1, 30)) for _ in range(random.choice((3, 12)))])
        try:
            found = read_fields(data, begin, end, integers=(1,), spans=(1, 2))
        except MalformedError:
            continue
        for spans in found.spans.values():
            assert np.all(spans.end <= end[spans.message])
            assert np.all(spans.begin >= begin[spans.message])
