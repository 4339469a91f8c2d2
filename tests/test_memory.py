"""Are live bytes, the peak and what it consists of right? A chain computed by hand, then TensorFlow's own records."""

from __future__ import annotations

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import TraceError
from fathom_trace.memory import memory
from fathom_trace.tables import BUFFER_ALLOCATOR, FETCH
from fathom_trace.trace import Trace


def chain(is_assigned: bool = True, is_fetched: bool = False) -> Trace:
    """a (400 B) -> b (800 B, and 1000 B of scratch) -> c (200 B, kept by an assignment to variable v of 200 B).

    us:  1: +400 (a)   3: +1000 scratch, +800 (b)   5: -1000   6: -400 (a freed)   7: +200 (c)   9: -800 (b freed)
    live:  400           2200                         1200       800                 1000          200
    """
    builder = TraceBuilder()
    variable = builder.variable("v", "float32", [50])
    a = builder.node("a", "Relu")
    b = builder.node("b", "Conv2D", inputs=[(a, 0)])
    c = builder.node("c", "Sum", inputs=[(b, 0)])
    handle = builder.node("v", "VarHandleOp")
    assign = builder.node("assign", "AssignVariableOp", inputs=[(handle, 0), (c, 0)], writes=[variable] if is_assigned else [])
    if is_fetched:
        builder.interface("y", FETCH, c)
    buffers = [
        builder.add("buffers", origin=BUFFER_ALLOCATOR, address=4096 * (k + 1), size_bytes=s) for k, s in enumerate((400, 800, 200))
    ]
    rows = {}
    for k, (node, dims, inputs) in enumerate(((a, 100, ""), (b, 200, "a"), (c, 50, "b"))):
        rows["abc"[k]] = builder.execution(node, inputs=[builder.tensor(rows[i]) for i in inputs])
        builder.output(rows["abc"[k]], 0, "float32", [dims], buffer=buffers[k])
    rows["handle"] = builder.execution(handle, outputs=[("resource", [])])
    builder.execution(assign, inputs=[builder.tensor(rows["handle"]), builder.tensor(rows["c"])])
    step = builder.step(builder.end_structure(), start=[0, 2_000, 6_000, 8_000, 9_000], done=[2_000, 5_500, 8_000, 8_500, 9_500])
    events = [(1, "a", 400), (3, "b", 1000), (3, "b", 800), (5, "b", -1000), (6, "a", -400), (7, "c", 200), (9, "b", -800)]
    for us, owner, size in events:
        builder.add("allocations", step=step, execution=rows[owner], size_bytes=size, time=us * 1000, buffer=-1)
    return builder.build()


def test_curve_and_peak_of_a_chain_are_exact() -> None:
    found = memory(chain())
    at = {}
    for when, live in zip(found.times_ns.tolist(), found.live_bytes.tolist(), strict=True):
        at[when // 1000] = live
    assert at == {1: 400, 3: 2200, 5: 1200, 6: 800, 7: 1000, 9: 200}
    assert (found.peak_bytes, found.peak_ns) == (2200, 3000)
    assert found.allocated_bytes == 400 + 1000 + 800 + 200


def test_a_block_that_is_released_when_it_is_allocated_counts_nothing() -> None:
    """Times are whole microseconds: 500 bytes come and go within the first, 40 stay, and no moment has fewer than none."""
    builder = TraceBuilder()
    execution = builder.execution(builder.node("a", "Relu"), outputs=[("float32", [10])])
    step = builder.step(builder.end_structure(), start=[1000], done=[9000])
    for us, size in ((1, 500), (1, -500), (1, 40), (3, 500), (3, -500)):
        builder.add("allocations", step=step, execution=execution, size_bytes=size, time=us * 1000, buffer=-1)
    found = memory(builder.build())
    assert found.live_bytes.tolist() == [0, 0, 40, 40, 40]
    assert (found.peak_bytes, found.final_bytes, found.allocated_bytes) == (40, 40, 1040)
    assert sum(found.peak_by_role().values()) == 40


def test_each_byte_of_the_peak_has_an_owner() -> None:
    found = memory(chain())
    assert found.peak_by_role() == {"tensor": 1200, "temporary": 1000, "variable": 0, "ambiguous": 0}
    assert sum(found.peak_by_role().values()) == found.peak_bytes


def test_what_persists_is_the_variables_new_buffer() -> None:
    found = memory(chain())
    assert found.final_bytes == 200
    assert [(b.variable, b.size_bytes) for b in found.replaced()] == [("v", 200)]


@pytest.mark.parametrize(
    ("outputs", "releases_us", "roles"),
    [
        (1, [None], ["tensor"]),
        (2, [9, 9], ["tensor", "tensor"]),
        (0, [5, 9], ["temporary", "ambiguous"]),
        (1, [5, 9], ["temporary", "tensor"]),
        (1, [5, 5], ["ambiguous", "ambiguous"]),
        (1, [9, 9], ["ambiguous", "ambiguous"]),
    ],
)
def test_scratch_of_an_output_s_size_is_told_by_when_it_was_given_back(
    outputs: int, releases_us: list[int | None], roles: list[str]
) -> None:
    """One execution, until 5 us, allocates 400 B once or twice and has no, one or two outputs of 400 B."""
    builder = TraceBuilder()
    row = builder.execution(builder.node("a", "Relu"))
    for port in range(outputs):
        buffer = builder.add("buffers", origin=BUFFER_ALLOCATOR, address=4096 * (port + 1), size_bytes=400)
        builder.output(row, port, "float32", [100], buffer=buffer)
    step = builder.step(builder.end_structure(), start=[0], done=[5_000])
    events = [(1, 400)] * len(releases_us) + [(us, -400) for us in releases_us if us is not None]
    for us, size in events:
        builder.add("allocations", step=step, execution=row, size_bytes=size, time=us * 1000, buffer=-1)
    found = memory(builder.build())
    assert [block.role for block in found.blocks] == roles
    assert found.peak_bytes == 400 * len(releases_us) == sum(found.peak_by_role().values())


def test_what_is_live_at_the_end_is_variables_outputs_or_unexplained() -> None:
    """Of the chain's c, 200 B stay as v's buffer. Once c is fetched and no variable's, it is an output; else nobody knows."""
    for trace, expected in (
        (chain(), (200, 0, 0)),
        (chain(is_assigned=False), (0, 0, 200)),
        (chain(is_assigned=False, is_fetched=True), (0, 200, 0)),
    ):
        found = memory(trace)
        assert (found.replaced_bytes, found.output_bytes, found.unexplained_bytes) == expected
        assert found.final_bytes == 200


def test_lifetimes() -> None:
    found = memory(chain())
    lived = {b.size_bytes: None if b.freed_ns is None else b.freed_ns - b.allocated_ns for b in found.blocks}
    assert lived == {400: 5_000, 1000: 2_000, 800: 6_000, 200: None}


def test_release_without_allocation_is_counted() -> None:
    trace = chain()
    columns = {k: getattr(trace.allocations, k) for k in trace.allocations.columns()}
    first = {k: v[1:] for k, v in columns.items()}
    found = memory(trace.replace(allocations=type(trace.allocations)(**first)))
    assert (found.unpaired_releases, found.unpaired_bytes) == (1, 400)


def test_a_trace_without_records_says_so() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "Relu"), outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[0], done=[1])
    with pytest.raises(TraceError, match="--memory-steps"):
        memory(builder.build())


@pytest.mark.capture
def test_captured_product_and_temporaries() -> None:
    """relu(x w): the product's 80 B and what Relu does with it; everything but the output is given back."""
    tf = pytest.importorskip("tensorflow")
    from fathom_trace.capture import Plan, capture

    x, w = np.ones([4, 6], np.float32), np.ones([6, 5], np.float32)
    trace = capture(lambda x, w: tf.reduce_sum(tf.matmul(x, w) * 2.0), x, w, plan=Plan(steps=1))
    found = memory(trace)
    assert found.unpaired_releases == 0
    assert found.peak_bytes >= 4 * 5 * 4
    assert found.final_bytes <= 4 * 5 * 4, "only the fetched scalar may remain"
    assert {b.role for b in found.blocks} <= {"tensor", "temporary", "ambiguous"}
