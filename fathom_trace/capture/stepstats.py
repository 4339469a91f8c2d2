"""Reads TensorFlow's `StepStats` into columns: one row per record, names resolved to nodes, outputs interned.

The messages are read as bytes, in bulk: a step has up to a million records, and objects of them would take several times the memory and the
time. Field numbers are those of tensorflow/core/framework/step_stats.proto and of the messages that it refers to.

Record times are nanoseconds; the microsecond fields beside them are often 0 and are not used. On a GPU the same kernel appears under the
device that scheduled it, under `stream:all` and under each stream: the first is the execution, the per-stream ones are its device
spans, `stream:all` counts only where no stream is listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.capture.ragged import offsets_of, taken
from fathom_trace.capture.signatures import Outputs, Signatures
from fathom_trace.errors import CaptureError
from fathom_trace.wire_columns import MalformedError, Spans, iterate_spans, padded, read_fields

RECORD_CAP = 1_048_576
"""TensorFlow keeps at most this many records a step and drops the rest without a word (`kMaxCollectedNodes` of its StepStatsCollector)."""

SOURCE_NODE = "_SOURCE"
FIELDS: Mapping[str, Mapping[str, int]] = {
    "RunMetadata": {"step_stats": 1},
    "StepStats": {"dev_stats": 1},
    "DeviceStepStats": {"device": 1, "node_stats": 2},
    "NodeExecStats": {
        "node_name": 1, "all_start_micros": 2, "op_end_rel_micros": 4, "all_end_rel_micros": 5, "memory": 6, "output": 7,
        "scheduled_micros": 9, "all_start_nanos": 13, "op_end_rel_nanos": 15, "all_end_rel_nanos": 16, "scheduled_nanos": 17,
    },
    "NodeOutput": {"slot": 1, "tensor_description": 3},
    "TensorDescription": {"dtype": 1, "shape": 2, "allocation_description": 4},
    "AllocationDescription": {"requested_bytes": 1, "allocated_bytes": 2, "ptr": 6},
    "AllocatorMemoryUsed": {"allocation_records": 6},
    "AllocationRecord": {"alloc_micros": 1, "alloc_bytes": 2},
}  # fmt: skip
"""Numbers of the fields that are read, by message."""

CHUNK_RECORDS = 8192
"""So many records are read at once: enough that numpy's own time for a call does not count, and few enough for a processor's cache."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class DeviceSpan:
    """A kernel or copy on a device stream; times in ns after the origin."""

    name: str
    stream: str
    is_copy: bool
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True)
class Memory:
    """Allocation detail of a step. Record r has the outputs `output_offsets[r]` to `[r + 1]`, and likewise its allocations.

    An allocation of negative size is a release; times are in ns, after the origin where `ordered` made them so. It holds some fifty
    bytes a record.
    """

    output_offsets: Int64
    slot: NDArray[np.int32]
    size_bytes: Int64
    address: NDArray[np.uint64]
    allocation_offsets: Int64
    time: Int64
    change_bytes: Int64

    def ordered(self, order: Int64, origin_ns: int) -> Memory:
        """The same, its records in the given order, times after `origin_ns`."""
        output_offsets, output = taken(self.output_offsets, order)
        allocation_offsets, allocation = taken(self.allocation_offsets, order)
        return Memory(
            output_offsets,
            self.slot[output],
            self.size_bytes[output],
            self.address[output],
            allocation_offsets,
            self.time[allocation] - origin_ns,
            self.change_bytes[allocation],
        )


@dataclass(frozen=True)
class StepRecords:
    """The records of one step, ordered by start; times are ns after `origin_ns`. `unplaced` counts records of unknown nodes by name.

    `dropped` is how many records of known nodes were left out because there were more than the capture was to keep.
    """

    origin_ns: int
    node: NDArray[np.int32]
    scheduled: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    done: NDArray[np.int64]
    signature: NDArray[np.int32]
    unplaced: Mapping[str, int]
    spans: tuple[DeviceSpan, ...]
    memory: Memory | None
    total: int
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.node)


def read_step(
    run_metadata: bytes, node_index: Mapping[str, int], signatures: Signatures, with_memory: bool = False, limit: int = 0
) -> StepRecords:
    """The records of a serialised `RunMetadata` message for the nodes in `node_index` (name to number).

    With `limit`, only so many: those that started first.

    Raises:
        CaptureError: it is no message.
    """
    try:
        devices = _devices(run_metadata)
        reader = _StepReader({name.encode(): number for name, number in node_index.items()}, signatures, with_memory)
        for device in devices:
            for records in device.records(run_metadata) if not _is_stream(device.name) else ():
                reader.add(records)
        return reader.finish(_spans(run_metadata, devices, reader.origin), limit)
    except MalformedError as error:
        raise CaptureError(f"TensorFlow's record of a step cannot be read ({error}); please report it") from None


@dataclass(frozen=True)
class _Messages:
    """Messages of one type: where each begins and ends in some bytes, of which there is a padded copy."""

    raw: bytes
    data: NDArray[np.uint8]
    begin: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.begin)

    def read(self, message: str, integers: Sequence[str], spans: Sequence[str] = ()) -> tuple[dict[str, Int64], dict[str, Spans]]:
        """Fields by name: integers `[messages]` and spans."""
        number = FIELDS[message]
        found = read_fields(self.data, self.begin, self.end, [number[name] for name in integers], [number[name] for name in spans])
        return {name: found.integers[number[name]] for name in integers}, {name: found.spans[number[name]] for name in spans}

    def at(self, begin: Int64, end: Int64) -> _Messages:
        """Messages elsewhere in the same bytes."""
        return replace(self, begin=begin, end=end)

    def contents(self) -> list[bytes]:
        """The bytes of each message."""
        return list(map(self.raw.__getitem__, map(slice, self.begin.tolist(), self.end.tolist())))


@dataclass(frozen=True)
class _Device:
    """Where the records of a device lie."""

    name: str
    begin: int
    end: int

    def records(self, data: bytes) -> Iterator[_Messages]:
        """The records, `CHUNK_RECORDS` at a time."""
        for begin, end in iterate_spans(data, self.begin, self.end, FIELDS["DeviceStepStats"]["node_stats"], CHUNK_RECORDS):
            raw = data[begin[0] : end[-1]]
            yield _Messages(raw, padded(raw), begin - begin[0], end - begin[0])


def _devices(run_metadata: bytes) -> list[_Device]:
    found: list[_Device] = []
    for begin, end in _parts(run_metadata, 0, len(run_metadata), "RunMetadata", "step_stats"):
        for device_begin, device_end in _parts(run_metadata, begin, end, "StepStats", "dev_stats"):
            name = next(_parts(run_metadata, device_begin, device_end, "DeviceStepStats", "device", 1), (0, 0))
            found.append(_Device(run_metadata[slice(*name)].decode(errors="replace"), device_begin, device_end))
    return found


def _parts(data: bytes, begin: int, end: int, message: str, field: str, at_once: int = CHUNK_RECORDS) -> Iterator[tuple[int, int]]:
    """Where the values of a field of one message lie."""
    for begins, ends in iterate_spans(data, begin, end, FIELDS[message][field], at_once):
        yield from zip(begins.tolist(), ends.tolist(), strict=True)


_TIMES = ("all_start", "op_end_rel", "all_end_rel", "scheduled")
_TIME_FIELDS = tuple(f"{name}_{unit}" for name in _TIMES for unit in ("nanos", "micros"))


def _in_ns(found: Mapping[str, Int64]) -> Iterator[Int64]:
    """Each of `_TIMES` in ns: of the field in ns or, where that is 0, of the one in microseconds."""
    for name in _TIMES:
        exact = found[f"{name}_nanos"]
        yield np.where(exact == 0, found[f"{name}_micros"] * 1000, exact)


class _StepReader:
    """Takes the records of a step, chunk by chunk."""

    def __init__(self, index: Mapping[bytes, int], signatures: Signatures, with_memory: bool) -> None:
        self.index, self.signatures = index, signatures
        self.total = 0
        self.origin = 0
        self.unplaced: Counter[bytes] = Counter()
        self._parts: list[tuple[NDArray[np.int32], Int64, NDArray[np.int32]]] = []
        self._memory: list[Memory] | None = [] if with_memory else None

    def add(self, records: _Messages) -> None:
        """Take some records of the step."""
        lists = ("node_name", "output", *(("memory",) if self._memory is not None else ()))
        found, spans = records.read("NodeExecStats", _TIME_FIELDS, lists)
        start, op_end, all_end, queued = _in_ns(found)
        queued = np.where(queued == 0, start, queued)
        earliest = int(queued.min())
        self.origin = min(self.origin, earliest) if self.total else earliest
        self.total += len(records)
        names = records.at(*spans["node_name"].last(len(records))).contents()
        node = np.fromiter(map(self.index.get, names, repeat(-1)), np.int32, len(names))
        is_placed = node >= 0
        if not is_placed.all():
            self.unplaced.update(name for name, is_known in zip(names, is_placed.tolist(), strict=True) if not is_known)
        outputs, allocation = _outputs(records, spans["output"], self._memory is not None)
        signature = self.signatures.of_records(outputs.of(is_placed), int(is_placed.sum()))
        times = np.stack([queued, start, start + op_end, start + all_end], axis=1)
        self._parts.append((node[is_placed], times[is_placed], signature))
        if self._memory is not None:
            allocated = allocation["allocated_bytes"]
            whole = Memory(
                offsets_of(np.bincount(outputs.record, minlength=len(records))),
                outputs.slot.astype(np.int32),
                np.where(allocated == 0, allocation["requested_bytes"], allocated),
                allocation["ptr"].astype(np.uint64),
                *_allocations(records, spans["memory"]),
            )
            self._memory.append(whole.ordered(np.flatnonzero(is_placed), 0))

    def finish(self, spans: tuple[DeviceSpan, ...], limit: int) -> StepRecords:
        """All of them, by start."""
        none = (np.zeros(0, np.int32), np.zeros((0, 4), np.int64), np.zeros(0, np.int32))
        node, times, signature = (np.concatenate(columns) for columns in zip(none, *self._parts, strict=True))
        self._parts.clear()
        times -= self.origin
        order = np.lexsort((times[:, 3], times[:, 1]))[: limit or len(times)]
        dropped = len(times) - len(order)
        times = times[order]
        self.unplaced.pop(SOURCE_NODE.encode(), None)
        return StepRecords(
            origin_ns=self.origin,
            node=node[order],
            scheduled=times[:, 0],
            start=times[:, 1],
            end=times[:, 2],
            done=times[:, 3],
            signature=signature[order],
            unplaced={name.decode(errors="replace"): count for name, count in self.unplaced.items()},
            spans=spans,
            memory=None if self._memory is None else _joined(self._memory).ordered(order, self.origin),
            total=self.total,
            dropped=dropped,
        )


def _outputs(records: _Messages, spans: Spans, with_memory: bool = True) -> tuple[Outputs, dict[str, Int64]]:
    """The outputs of records and, where they are wanted, the fields of their `AllocationDescription`."""
    given = records.at(spans.begin, spans.end)
    slots, tensors = given.read("NodeOutput", ("slot",), ("tensor_description",))
    described, parts = records.at(*tensors["tensor_description"].last(len(given))).read(
        "TensorDescription", ("dtype",), ("shape", *(("allocation_description",) if with_memory else ()))
    )
    shapes = records.at(*parts["shape"].last(len(given))).contents()
    outputs = Outputs(spans.message, slots["slot"], described["dtype"], shapes)
    if not with_memory:
        return outputs, {}
    allocation, name = records.at(*parts["allocation_description"].last(len(given))), "AllocationDescription"
    return outputs, allocation.read(name, tuple(FIELDS[name]))[0]


def _allocations(records: _Messages, spans: Spans) -> tuple[Int64, Int64, Int64]:
    """The allocations of records: where those of each begin, their times in ns, their bytes."""
    _, found = records.at(spans.begin, spans.end).read("AllocatorMemoryUsed", (), ("allocation_records",))
    each = found["allocation_records"]
    values, _ = records.at(each.begin, each.end).read("AllocationRecord", ("alloc_micros", "alloc_bytes"))
    offsets = offsets_of(np.bincount(spans.message[each.message], minlength=len(records)))
    return offsets, values["alloc_micros"] * 1000, values["alloc_bytes"]


def _joined(parts: Sequence[Memory]) -> Memory:
    """The records of several parts, one after the other."""
    output_counts, allocation_counts = (
        np.concatenate([np.zeros(0, np.int64), *(np.diff(getattr(part, name)) for part in parts)])
        for name in ("output_offsets", "allocation_offsets")
    )

    def column(name: str, dtype: type[np.integer[Any]]) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])

    return Memory(
        offsets_of(output_counts),
        column("slot", np.int32),
        column("size_bytes", np.int64),
        column("address", np.uint64),
        offsets_of(allocation_counts),
        column("time", np.int64),
        column("change_bytes", np.int64),
    )


def _is_stream(device: str) -> bool:
    return "/stream:" in device or device.endswith("/memcpy")


def _spans(run_metadata: bytes, devices: Sequence[_Device], origin: int) -> tuple[DeviceSpan, ...]:
    streams = [d for d in devices if _is_stream(d.name)]
    single = [d for d in streams if not d.name.endswith("stream:all")]
    has_kernels = any(not d.name.endswith("memcpy") for d in single)
    spans: list[DeviceSpan] = []
    for device in streams:
        if device.name.endswith("stream:all") and has_kernels:
            continue
        is_copy = device.name.endswith("memcpy")
        for records in device.records(run_metadata):
            found, parts = records.read("NodeExecStats", _TIME_FIELDS, ("node_name", "output"))
            start, _, length, _ = _in_ns(found)
            outputs, allocation = _outputs(records, parts["output"])
            sizes = np.zeros(len(records), np.int64)
            np.add.at(sizes, outputs.record, allocation["requested_bytes"])
            names = records.at(*parts["node_name"].last(len(records))).contents()
            begin = start - origin
            spans += (
                DeviceSpan(name.decode(errors="replace"), device.name, is_copy, *numbers)
                for name, *numbers in zip(names, begin.tolist(), (begin + length).tolist(), sizes.tolist(), strict=True)
            )
    return tuple(sorted(spans, key=lambda s: (s.start, s.end, s.name)))
