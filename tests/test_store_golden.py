"""Does today's code still read the files of formats 1 and 2 that were written when the formats were made?"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fathom_trace import store
from fathom_trace import tables as t
from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Trace

FIXTURES = Path(__file__).resolve().parent / "fixtures"


def made_then() -> Trace:
    """What was stored in `format1.h5` and `format1.pb`. Files and values stay as they are, whatever becomes of the builder."""
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=t.FRAME_LOOP, parent=-1)
    buffer = builder.add("buffers", origin=t.BUFFER_ALLOCATOR, address=0xFFFF_8000_0000_0040, size_bytes=32)
    axis = builder.node("a//b", "Const", attributes={"dtype": "int32"}, device="/device:CPU:0")
    builder.constant(axis, np.arange(3, dtype=np.int32))
    body = builder.node("conv/日本", "MatMul", inputs=[(axis, 0), (1, 0)], control=[axis], frame=frame, writes=[0])
    builder.variable("dense/kernel", "float32", [2, 4], trainable=True, node=axis, buffer=buffer)
    builder.interface("x\0y", t.FETCH, body, role="loss")
    last = builder.execution(axis, outputs=[("int32", [3])])
    for i in range(2):
        last = builder.execution(body, inputs=[builder.tensor(last)], outputs=[("float32", [2, 4])], path=builder.path(0, frame, 0, i))
    structure = builder.end_structure()
    builder.step(
        structure, scheduled=[0, 5, 30], start=[0, 10, 35], end=[4, 25, 34], done=[6, 30, 50], lane=[0, 1, 0], origin_ns=10**18
    )
    step = builder.step(structure, start=[1, 2, 3], done=[2, 3, 4])
    builder.untraced_step(55)
    builder.add("allocations", step=step, execution=1, size_bytes=-32, time=7, buffer=buffer)
    builder.add("device_spans", step=step, execution=-1, span_name=0, stream=0, kind=t.SPAN_COPY, start=8, end=9, size_bytes=64)
    return builder.build({"workload": "frozen", "options": {"rate": 0.1}, "versions": []})


@pytest.mark.parametrize("name", ["format1.h5", "format1.pb"])
def test_files_of_format_1_are_read(name: str) -> None:
    """Every value as `made_then` gives it, written out."""
    trace = store.load(FIXTURES / name)
    assert trace.node_names == ("a//b", "conv/日本")
    assert trace.node_ops == ("Const", "MatMul")
    assert trace.node_attributes == ({"dtype": "int32"}, {})
    assert trace.nodes.input_node.tolist() == [0, 1, 0]
    assert trace.nodes.input_port.tolist() == [0, 0, -1]
    assert trace.nodes.input_offsets.tolist() == [0, 0, 3]
    assert trace.nodes.frame.tolist() == [-1, 0]
    assert trace.nodes.write.tolist() == [0]
    assert trace.constants.value.tobytes() == bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])
    assert trace.constants.size_bytes.tolist() == [12]
    assert trace.variables.trainable.tolist() == [True]
    assert trace.shapes[int(trace.variables.shape[0])] == (2, 4)
    assert trace.strings[int(trace.interface.user_name[0])] == "x\0y"
    assert trace.interface.direction.tolist() == [1]
    assert [trace.iteration(int(path)) for path in trace.executions.path] == [(), (0,), (1,)]
    assert [trace.inputs(execution) for execution in range(3)] == [[], [0], [1]]
    assert trace.tensors.size_bytes.tolist() == [12, 32, 32]
    assert trace.steps.structure.tolist() == [0, 0, -1]
    assert trace.steps.origin_ns.tolist() == [10**18, 0, 0]
    assert trace.steps.client_wall_ns.tolist()[2] == 55
    assert trace.step_times.scheduled.tolist() == [0, 5, 30, 1, 2, 3]
    assert trace.step_times.start.tolist() == [0, 10, 35, 1, 2, 3]
    assert trace.step_times.end.tolist() == [4, 25, 34, 2, 3, 4]
    assert trace.step_times.done.tolist() == [6, 30, 50, 2, 3, 4]
    assert trace.step_times.lane.tolist() == [0, 1, 0, 0, 0, 0]
    assert trace.step_times.valid.tolist() == [True, True, False, True, True, True]  # it ended, at 34, before it started
    assert trace.buffers.address.tolist() == [0xFFFF_8000_0000_0040]
    assert trace.allocations.size_bytes.tolist() == [-32]
    assert trace.allocations.time.tolist() == [7]
    assert trace.device_spans.end.tolist() == [9]
    assert dict(trace.provenance) == {"workload": "frozen", "options": {"rate": 0.1}, "versions": []}


EXECUTIONS, STEPS = 300, 3


def times_then() -> list[list[list[int]]]:
    """Scheduled, start, end and done of each step in `format2.h5`: readings of a clock that moves by 10.019 ns, in whole numbers."""
    state, found = 1, []
    for _ in range(STEPS):
        columns: list[list[int]] = [[], [], [], []]
        ticks = 0
        for _ in range(EXECUTIONS):
            moved = []
            for least, most in ((0, 60), (10, 200), (20, 5_000), (5, 120)):
                state = (1_103_515_245 * state + 12_345) % 2**31
                moved.append(least + (state >> 8) % (most - least))
            at = [max(0, ticks - 4), ticks + moved[0] + moved[1], ticks + sum(moved[:3]), ticks + sum(moved)]
            for column, tick in zip(columns, at, strict=True):
                column.append(tick * 10_019 // 1_000)
            ticks = at[3]
        found.append(columns)
    return found


def made_with_a_clock() -> Trace:
    """What was stored in `format2.h5`."""
    builder = TraceBuilder()
    node = builder.node("a", "MatMul")
    for _ in range(EXECUTIONS):
        builder.execution(node, outputs=[("float32", [2])])
    structure = builder.end_structure()
    for scheduled, start, end, done in times_then():
        builder.step(structure, start, done, scheduled=scheduled, end=end)
    return builder.build({"workload": "frozen"})


def test_files_of_format_2_are_read() -> None:
    """Format 2 differs in how it stores times: all of them, and that it is one."""
    with h5py.File(FIXTURES / "format2.h5", "r") as file:
        assert file.attrs["version"] == 2
        assert "codes" in file["step_times"]
    trace = store.load(FIXTURES / "format2.h5")
    for k, key in enumerate(("scheduled", "start", "end", "done")):
        assert getattr(trace.step_times, key).tolist() == [value for step in times_then() for value in step[k]]
    assert trace.equals(made_with_a_clock())


def test_the_two_files_hold_the_same() -> None:
    assert store.load(FIXTURES / "format1.h5").equals(store.load(FIXTURES / "format1.pb"))
