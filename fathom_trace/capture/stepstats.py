"""Reads TensorFlow's `StepStats` into columns: one row per record, names resolved to nodes, outputs interned.

Record times are nanoseconds; the microsecond fields beside them are often 0 and are not used. On a GPU the same kernel appears under the
device that scheduled it, under `stream:all` and under each stream: the first is the execution, the per-stream ones are its device
spans, `stream:all` counts only where no stream is listed.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD_CAP = 1_048_576
"""TensorFlow keeps at most this many records a step and drops the rest without a word (`kMaxCollectedNodes` of its StepStatsCollector)."""

SOURCE_NODE = "_SOURCE"
_DTYPE_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64", 10: "bool",
    11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16", 18: "complex128",
    19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64",
    24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip

Output = tuple[int, str, tuple[int, ...]]
"""Slot, dtype name, shape."""


@dataclass
class Signatures:
    """Distinct output lists of records, shared by all steps of a capture."""

    index: dict[tuple[Output, ...], int] = field(default_factory=dict)
    values: list[tuple[Output, ...]] = field(default_factory=list)
    _seen: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def of(self, outputs: tuple[Output, ...]) -> int:
        """Number of an output list."""
        found = self.index.get(outputs)
        if found is None:
            found = self.index[outputs] = len(self.values)
            self.values.append(outputs)
        return found

    def of_record(self, outputs: Any) -> int:
        """Number of the output list of a record. Shapes are compared as bytes and taken apart when they are new: few are."""
        key: tuple[Any, ...] = ()
        for output in outputs:
            tensor = output.tensor_description
            key += (output.slot, tensor.dtype, tensor.shape.SerializeToString())
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self.of(tuple(_output(output) for output in outputs))
        return found


@dataclass(frozen=True)
class DeviceSpan:
    """A kernel or copy on a device stream; times in ns after the origin."""

    name: str
    stream: str
    is_copy: bool
    start: int
    end: int
    size_bytes: int


class Memory:
    """Allocation detail of a step, by record: (slot, allocated bytes, address) of its outputs, (ns, bytes) of its allocations.

    It holds some fifty bytes a record, for as long as the capture takes.
    """

    def __init__(self) -> None:
        self._output_ends, self._slot, self._size, self._address = array("q", [0]), array("i"), array("q"), array("Q")
        self._allocation_ends, self._micros, self._bytes = array("q", [0]), array("q"), array("q")
        self._order = array("q")
        self._origin = 0

    def add(self, record: Any) -> None:
        """Take one more record of the step."""
        for output in record.output:
            described = output.tensor_description.allocation_description
            self._slot.append(output.slot)
            self._size.append(described.allocated_bytes or described.requested_bytes)
            self._address.append(described.ptr)
        self._output_ends.append(len(self._slot))
        for used in record.memory:
            for allocation in used.allocation_records:
                self._micros.append(allocation.alloc_micros)
                self._bytes.append(allocation.alloc_bytes)
        self._allocation_ends.append(len(self._micros))

    def ordered(self, order: NDArray[np.int64], origin_ns: int) -> Memory:
        """The same, its records in the given order (by the numbers in which they were added), times after `origin_ns`."""
        self._order, self._origin = array("q", order.astype(np.int64).tobytes()), origin_ns
        return self

    def outputs(self, record: int) -> list[tuple[int, int, int]]:
        """Slot, allocated bytes and address of each output of a record."""
        row = self._order[record]
        begin, end = self._output_ends[row], self._output_ends[row + 1]
        return list(zip(self._slot[begin:end], self._size[begin:end], self._address[begin:end], strict=True))

    def allocations(self, record: int) -> list[tuple[int, int]]:
        """Time and bytes of each allocation (or, negative, release) of a record."""
        row = self._order[record]
        begin, end = self._allocation_ends[row], self._allocation_ends[row + 1]
        return [
            (micros * 1000 - self._origin, size) for micros, size in zip(self._micros[begin:end], self._bytes[begin:end], strict=True)
        ]


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
    step_stats: Any, node_index: Mapping[str, int], signatures: Signatures, with_memory: bool = False, limit: int = 0
) -> StepRecords:
    """The records of a `StepStats` message for the nodes in `node_index` (name to number); with `limit`, the first so many by start."""
    nodes, found, times = array("i"), array("i"), array("q")  # a tenth of what lists of tuples would take
    memory = Memory() if with_memory else None
    unplaced: dict[str, int] = {}
    total = 0
    first = None
    for device in step_stats.dev_stats:
        if _is_stream(device.device):
            continue
        for record in device.node_stats:
            begin = record.all_start_nanos or record.all_start_micros * 1000
            queued = record.scheduled_nanos or record.scheduled_micros * 1000 or begin
            first = queued if first is None or queued < first else first
            total += 1
            node = node_index.get(record.node_name)
            if node is None:
                if record.node_name != SOURCE_NODE:
                    unplaced[record.node_name] = unplaced.get(record.node_name, 0) + 1
                continue
            nodes.append(node)
            times.append(queued)
            times.append(begin)
            times.append(begin + (record.op_end_rel_nanos or record.op_end_rel_micros * 1000))
            times.append(begin + (record.all_end_rel_nanos or record.all_end_rel_micros * 1000))
            found.append(signatures.of_record(record.output))
            if memory is not None:
                memory.add(record)
    origin = first or 0
    table = np.array(times, np.int64).reshape(-1, 4) - origin
    order = np.lexsort((table[:, 3], table[:, 1]))[: limit or len(table)]
    dropped = len(table) - len(order)
    table = table[order]
    return StepRecords(
        origin_ns=origin,
        node=np.array(nodes, np.int32)[order],
        scheduled=table[:, 0],
        start=table[:, 1],
        end=table[:, 2],
        done=table[:, 3],
        signature=np.array(found, np.int32)[order],
        unplaced=unplaced,
        spans=_spans(step_stats, origin),
        memory=memory.ordered(order, origin) if memory is not None else None,
        total=total,
        dropped=dropped,
    )


def dtype_name(number: int) -> str:
    """The numpy-like name of a TensorFlow `DataType` number (reference types as the type they refer to)."""
    return _DTYPE_NAMES.get(number % 100, f"dtype_{number}")


def _output(output: Any) -> Output:
    tensor = output.tensor_description
    return output.slot, dtype_name(tensor.dtype), tuple(d.size for d in tensor.shape.dim)


def _is_stream(device: str) -> bool:
    return "/stream:" in device or device.endswith("/memcpy")


def _spans(step_stats: Any, origin: int) -> tuple[DeviceSpan, ...]:
    streams = [d for d in step_stats.dev_stats if _is_stream(d.device)]
    single = [d for d in streams if not d.device.endswith("stream:all")]
    has_kernels = any(not d.device.endswith("memcpy") for d in single)
    spans: list[DeviceSpan] = []
    for device in streams:
        if device.device.endswith("stream:all") and has_kernels:
            continue
        is_copy = device.device.endswith("memcpy")
        for record in device.node_stats:
            start = (record.all_start_nanos or record.all_start_micros * 1000) - origin
            length = record.all_end_rel_nanos or record.all_end_rel_micros * 1000
            size = sum(o.tensor_description.allocation_description.requested_bytes for o in record.output)
            spans.append(DeviceSpan(record.node_name, device.device, is_copy, start, start + length, size))
    return tuple(sorted(spans, key=lambda s: (s.start, s.end, s.name)))
