"""Are TensorFlow's records read rightly? Hand-written StepStats, since no machine here has a GPU."""

from __future__ import annotations

import tracemalloc

import pytest

from fathom_trace.capture.signatures import Signatures, dtype_name
from fathom_trace.capture.stepstats import FIELDS, StepRecords
from fathom_trace.capture.stepstats import read_step as read_serialised
from fathom_trace.errors import CaptureError

pytestmark = pytest.mark.capture

step_stats_pb2 = pytest.importorskip("tensorflow.core.framework.step_stats_pb2")
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
ORIGIN_US = 1_796_026_610_255_867


def stats(*devices: tuple[str, list[tuple[str, int, int]]]):
    """StepStats of (device, [(name, start us, duration us)])."""
    message = step_stats_pb2.StepStats()
    for name, records in devices:
        device = message.dev_stats.add(device=name)
        for record, start, duration in records:
            device.node_stats.add(
                node_name=record,
                all_start_nanos=(ORIGIN_US + start) * 1000,
                scheduled_nanos=(ORIGIN_US + start) * 1000,
                op_end_rel_nanos=duration * 1000,
                all_end_rel_nanos=duration * 1000,
            )
    return message


def serialised(step_stats) -> bytes:
    from tensorflow.core.protobuf import config_pb2

    return config_pb2.RunMetadata(step_stats=step_stats).SerializeToString()


def read_step(message, *args, **kwargs) -> StepRecords:
    return read_serialised(serialised(message), *args, **kwargs)


def test_gpu_kernels_are_counted_once() -> None:
    """Case A5: 2 op records and 1 copy; device compute time 30 us, copy 4 us, host time 9 us."""
    message = stats(
        (GPU, [("a", 0, 5), ("b", 5, 4)]),
        (f"{GPU}/stream:all", [("a", 10, 10), ("b", 20, 20)]),
        (f"{GPU}/stream:7", [("a", 10, 10), ("b", 20, 20)]),
        (f"{GPU}/memcpy", [("a:MEMCPYHtoD", 1, 4)]),
    )
    records = read_step(message, {"a": 0, "b": 1}, Signatures())
    assert len(records) == 2
    assert (records.done - records.start).sum() == 9_000
    kernels = [s for s in records.spans if not s.is_copy]
    copies = [s for s in records.spans if s.is_copy]
    assert sum(s.end - s.start for s in kernels) == 30_000
    assert [(s.end - s.start) for s in copies] == [4_000]


def test_all_streams_copy_serves_where_no_stream_is_listed() -> None:
    message = stats((GPU, [("a", 0, 5)]), (f"{GPU}/stream:all", [("a", 10, 10)]))
    spans = read_step(message, {"a": 0}, Signatures()).spans
    assert [(s.end - s.start) for s in spans] == [10_000]


def test_times_are_relative_and_in_order_of_start() -> None:
    """Cases E1 and E5: integer nanoseconds after the step's first event, whatever the order of the records."""
    message = stats(("/device:CPU:0", [("late", 30, 5), ("early", 12, 1)]))
    records = read_step(message, {"late": 0, "early": 1}, Signatures())
    assert records.origin_ns == (ORIGIN_US + 12) * 1000
    assert records.node.tolist() == [1, 0]
    assert records.start.tolist() == [0, 18_000]
    assert (records.done - records.start).tolist() == [1_000, 5_000]


def test_nanoseconds_below_a_microsecond_stay_positive() -> None:
    """Case E1: 0.3, 0.4 and 5 us, as microsecond fields would lose them."""
    message = step_stats_pb2.StepStats()
    device = message.dev_stats.add(device="/device:CPU:0")
    for name, start, duration in (("a", 12_600, 300), ("b", 20_200, 400), ("c", 30_000, 5_000)):
        device.node_stats.add(
            node_name=name, all_start_nanos=start, scheduled_nanos=start, op_end_rel_nanos=duration, all_end_rel_nanos=duration
        )
    records = read_step(message, {"a": 0, "b": 1, "c": 2}, Signatures())
    durations = (records.done - records.start).tolist()
    assert durations == [300, 400, 5_000]
    assert sum(durations) / 3 == 1_900


def test_records_of_unknown_nodes_are_counted_not_lost() -> None:
    message = stats(("/device:CPU:0", [("_SOURCE", 0, 1), ("inner", 1, 2), ("inner", 3, 2), ("a", 6, 1)]))
    records = read_step(message, {"a": 0}, Signatures())
    assert records.unplaced == {"inner": 2}
    assert records.total == 4


def test_signatures_are_shared_between_steps() -> None:
    message = stats(("/device:CPU:0", [("a", 0, 1)]))
    output = message.dev_stats[0].node_stats[0].output.add(slot=1)
    output.tensor_description.dtype = 1
    output.tensor_description.shape.dim.add(size=3)
    signatures = Signatures()
    first = read_step(message, {"a": 0}, signatures)
    second = read_step(message, {"a": 0}, signatures)
    assert first.signature.tolist() == second.signature.tolist()
    assert signatures.values[first.signature[0]] == ((1, "float32", (3,)),)


def test_dtype_names_follow_tensorflow() -> None:
    import tensorflow as tf

    for number in (1, 2, 3, 9, 10, 14, 19, 20, 21, 23):
        assert dtype_name(number) == tf.dtypes.as_dtype(number).name
    assert dtype_name(101) == "float32", "a reference type is named as what it refers to"


def test_output_lists_are_told_apart_by_slot_dtype_and_shape() -> None:
    """Eight records: (slot, dtype, shape), the first four all different, a scalar, a record without outputs, and two seen before."""
    message = step_stats_pb2.StepStats()
    device = message.dev_stats.add(device="/device:CPU:0")
    given = [[(0, 1, (2, 3))], [(1, 1, (2, 3))], [(0, 2, (2, 3))], [(0, 1, (3, 2))], [(0, 1, ())], [], [(0, 1, (2, 3))], [(0, 1, ())]]
    for start, outputs in enumerate(given):
        record = device.node_stats.add(node_name="a", all_start_nanos=start + 1)
        for slot, dtype, dims in outputs:
            output = record.output.add(slot=slot)
            output.tensor_description.dtype = dtype
            for size in dims:
                output.tensor_description.shape.dim.add(size=size)
            output.tensor_description.allocation_description.ptr = start  # is of no matter
    signatures = Signatures()
    assert read_step(message, {"a": 0}, signatures).signature.tolist() == [0, 1, 2, 3, 4, 5, 0, 4]
    names = {1: "float32", 2: "float64"}
    assert [list(found) for found in signatures.values] == [[(slot, names[d], dims) for slot, d, dims in o] for o in given[:6]]


def test_reading_takes_some_hundred_bytes_a_record() -> None:
    """What 20,000 more records add: four times of 8 bytes and two numbers of 4 are 40 bytes, which are there as read, joined and sorted.

    That is below 150. Objects of the messages would be ten times as much.
    """
    peaks = []
    for count in (20_000, 40_000):
        data = serialised(stats(("/device:CPU:0", [("a", i, 1) for i in range(count)])))
        tracemalloc.start()
        records = read_serialised(data, {"a": 0}, Signatures())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(records) == count
    assert peaks[1] - peaks[0] < 150 * 20_000


def test_field_numbers_are_tensorflows() -> None:
    pool = step_stats_pb2.DESCRIPTOR.pool
    import tensorflow.core.protobuf.config_pb2  # noqa: F401

    for message, fields in FIELDS.items():
        described = pool.FindMessageTypeByName(f"tensorflow.{message}")
        assert {name: described.fields_by_name[name].number for name in fields} == fields


@pytest.mark.parametrize("cut", [1, 2, 5, 40, 90])
def test_step_stats_that_are_cut_off_are_refused(cut: int) -> None:
    data = serialised(stats(("/device:CPU:0", [("a", i, 1) for i in range(3)])))
    with pytest.raises(CaptureError, match="cannot be read"):
        read_serialised(data[:-cut], {"a": 0}, Signatures())


def test_what_else_run_metadata_holds_is_passed_over() -> None:
    from tensorflow.core.protobuf import config_pb2

    metadata = config_pb2.RunMetadata(step_stats=stats(("/device:CPU:0", [("a", 0, 1)])))
    metadata.partition_graphs.add().node.add(name="a")
    assert len(read_serialised(metadata.SerializeToString(), {"a": 0}, Signatures())) == 1
    assert len(read_serialised(b"", {"a": 0}, Signatures())) == 0


def test_memory_follows_the_order_of_start() -> None:
    """Two records, the later one first: outputs and allocations (at 7 and 9 us after the origin, +64 and -64 bytes) stay with theirs."""
    message = stats(("/device:CPU:0", [("late", 5, 9), ("early", 0, 1)]))
    late, early = message.dev_stats[0].node_stats
    output = late.output.add(slot=1)
    output.tensor_description.allocation_description.allocated_bytes = 64
    output.tensor_description.allocation_description.ptr = 2**63 + 8
    used = late.memory.add()
    used.allocation_records.add(alloc_micros=ORIGIN_US + 7, alloc_bytes=64)
    used.allocation_records.add(alloc_micros=ORIGIN_US + 9, alloc_bytes=-64)
    early.output.add(slot=0).tensor_description.allocation_description.requested_bytes = 16
    records = read_step(message, {"late": 0, "early": 1}, Signatures(), with_memory=True)
    assert records.node.tolist() == [1, 0]
    assert records.memory is not None
    memory = records.memory
    assert memory.output_offsets.tolist() == [0, 1, 2]
    assert (memory.slot.tolist(), memory.size_bytes.tolist(), memory.address.tolist()) == ([0, 1], [16, 64], [0, 2**63 + 8])
    assert memory.allocation_offsets.tolist() == [0, 0, 2]
    assert (memory.time.tolist(), memory.change_bytes.tolist()) == ([7_000, 9_000], [64, -64])
