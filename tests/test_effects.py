"""Do accesses to one variable, and what goes onto a stack and comes off it, depend on each other as they happened?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.capture import CaptureRequest, Plan, StepValues, capture_request
from fathom_trace.checks import check
from fathom_trace.effects import access_groups
from fathom_trace.trace import Trace

READ, WRITE, BOTH = "ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp"


def accesses(
    *ops: str, steps: list[list[tuple[int, int]]] | None = None, control: dict[int, list[int]] | None = None
) -> list[tuple[int, int]]:
    """The dependencies between accesses to one variable: `steps` are (start, end) of each, one after the other if not given."""
    builder = TraceBuilder()
    variable = builder.variable("v", "float32", [2])
    handle = builder.node("v", "VarHandleOp")
    held = builder.tensor(builder.execution(handle, outputs=[("resource", [])]))
    for k, op in enumerate(ops):
        before = [b + 1 for b in (control or {}).get(k, [])]
        node = builder.node(
            f"access{k}", op, inputs=[(handle, 0)], control=before, reads=[variable] if op != WRITE else [],
            writes=[variable] if op != READ else [],
        )  # fmt: skip
        builder.execution(node, inputs=[held], control=before, outputs=[("float32", [2])])
    structure = builder.end_structure()
    for times in steps if steps is not None else [[(10 * k, 10 * k + 5) for k in range(len(ops))]]:
        builder.step(structure, start=[0, *(1 + s for s, _ in times)], done=[1, *(1 + e for _, e in times)])
    trace = builder.build()
    depends = trace.dependencies(0)
    return [(p - 1, k) for k in range(len(ops)) for p in depends.of(k + 1).tolist() if p]


def test_reads_alone_need_no_order() -> None:
    assert accesses(READ, READ, READ) == []


def test_a_read_comes_after_the_write_before_it_and_a_write_after_the_reads() -> None:
    assert accesses(READ, READ, WRITE, READ, WRITE) == [(0, 2), (1, 2), (2, 3), (3, 4)]
    assert accesses(WRITE, WRITE, READ, READ) == [(0, 1), (1, 2), (1, 3)]
    assert accesses(BOTH, BOTH, BOTH) == [(0, 1), (1, 2)]


def test_what_the_graph_orders_is_not_stated_again() -> None:
    """The last write waits for the middle one, which waits for the read: nothing is to be added."""
    assert accesses(READ, WRITE, WRITE, control={1: [0], 2: [1]}) == [(0, 1), (1, 2)]
    assert accesses(READ, WRITE, READ, control={2: [0]}) == [(0, 1), (0, 2), (1, 2)]


def test_accesses_at_once_have_no_order() -> None:
    """0 writes from 0 to 10; 1 reads from 5 to 15 meanwhile; 2 writes from 20 on, after both."""
    assert accesses(WRITE, READ, WRITE, steps=[[(0, 10), (5, 15), (20, 30)]]) == [(0, 2), (1, 2)]
    assert accesses(WRITE, WRITE, READ, steps=[[(0, 10), (5, 15), (20, 30)]]) == [(0, 2), (1, 2)]


def test_an_order_holds_in_every_step_or_is_none() -> None:
    """In the second step the read began before the write had ended."""
    apart, at_once = [(0, 5), (10, 15)], [(0, 12), (10, 15)]
    assert accesses(WRITE, READ, steps=[apart, apart]) == [(0, 1)]
    assert accesses(WRITE, READ, steps=[apart, at_once]) == []


def test_without_times_the_stored_order_counts() -> None:
    assert accesses(WRITE, READ, BOTH, steps=[]) == [(0, 1), (1, 2)]


def test_order_that_merely_happened_is_causal_but_no_matter_of_readiness() -> None:
    """Both writes were queued at 0; the second one ran when the first had ended, 1 ms later."""
    builder = TraceBuilder()
    variable = builder.variable("v", "float32", [2])
    handle = builder.node("v", "VarHandleOp")
    held = builder.tensor(builder.execution(handle, outputs=[("resource", [])]))
    for k in range(2):
        builder.execution(builder.node(f"write{k}", WRITE, inputs=[(handle, 0)], writes=[variable]), inputs=[held])
    builder.step(builder.end_structure(), scheduled=[0, 1, 1], start=[0, 1, 1_000_000], done=[1, 1_000_000, 1_000_001])
    trace = builder.build()
    assert trace.dependencies(0).of(2).tolist() == [0, 1]
    assert trace.waited_for(0).of(2).tolist() == [0]
    found = check(trace)
    assert (found.edges, found.causality_violations, found.early) == (3, 0, 0)


def test_steps_that_differ_only_in_who_came_first_are_told_apart() -> None:
    """Who writes after whom counts; in which order the reads between two writes ran does not."""
    assert access_groups([[(1, False), (2, False), (3, True)]]) == access_groups([[(2, False), (1, False), (3, True)]])
    assert access_groups([[(1, False), (3, True), (2, False)]]) != access_groups([[(1, False), (2, False), (3, True)]])


def test_a_pop_depends_on_the_push_of_the_value_that_it_takes() -> None:
    """Push 0, 1 and 2, pop twice, push 3, pop twice: 2, 1, 3, 0."""
    builder = TraceBuilder()
    made = builder.node("stack", "StackV2")
    value = builder.node("value", "Const")
    enter = builder.node("enter", "Enter", inputs=[(made, 0)])
    push, pop = (
        builder.node("push", "StackPushV2", inputs=[(enter, 0), (value, 0)]),
        builder.node("pop", "StackPopV2", inputs=[(enter, 0)]),
    )
    handle = builder.tensor(builder.execution(made, outputs=[("resource", [])]))
    number = builder.tensor(builder.execution(value, outputs=[("float32", [2])]))
    held = builder.tensor(builder.execution(enter, inputs=[handle], outputs=[("resource", [])]))
    rows = [
        builder.execution(push, inputs=[held, number], outputs=[("float32", [2])])
        if word == "+"
        else builder.execution(pop, inputs=[held], outputs=[("float32", [2])])
        for word in "+++--+--"
    ]
    trace = builder.build()
    found = {k: [rows.index(p) for p in trace.dependencies(0).of(row).tolist() if p in rows] for k, row in enumerate(rows)}
    assert {k: found[k] for k in (3, 4, 6, 7)} == {3: [2], 4: [1], 6: [5], 7: [0]}
    assert all(found[k] == [] for k in (0, 1, 2, 5))


def test_a_stack_is_followed_through_another_that_it_was_put_on() -> None:
    """Each outer iteration makes a stack, puts a value on it, and it on the outer stack; later the last stack made comes off first."""
    builder = TraceBuilder()
    outer, inner = builder.node("outer", "StackV2"), builder.node("inner", "StackV2")
    value = builder.node("value", "Const")
    fill = builder.node("fill", "StackPushV2", inputs=[(inner, 0), (value, 0)])
    keep = builder.node("keep", "StackPushV2", inputs=[(outer, 0), (inner, 0)])
    take = builder.node("take", "StackPopV2", inputs=[(outer, 0)])
    drain = builder.node("drain", "StackPopV2", inputs=[(take, 0)])
    held = builder.tensor(builder.execution(outer, outputs=[("resource", [])]))
    number = builder.tensor(builder.execution(value, outputs=[("float32", [2])]))
    fills = []
    for _ in range(3):
        handle = builder.tensor(builder.execution(inner, outputs=[("resource", [])]))
        fills.append(builder.execution(fill, inputs=[handle, number], outputs=[("float32", [2])]))
        builder.execution(keep, inputs=[held, handle], outputs=[("resource", [])])
    drains = []
    for _ in range(3):
        taken = builder.tensor(builder.execution(take, inputs=[held], outputs=[("resource", [])]))
        drains.append(builder.execution(drain, inputs=[taken], outputs=[("float32", [2])]))
    depends = builder.build().dependencies(0)
    assert [[p for p in depends.of(d).tolist() if p in fills] for d in drains] == [[fills[2]], [fills[1]], [fills[0]]]


# --- what TensorFlow really does ------------------------------------------------------------------------------------------------


def racing(tf: Any, variable: Any) -> Any:
    """A function without automatic control dependencies: two reads and two writes race; in a loop a read and two additions do."""

    def program(x: Any) -> dict[str, Any]:
        read = [tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32, name=f"read{k}") for k in range(2)]
        write = [tf.raw_ops.AssignVariableOp(resource=variable.handle, value=x * float(k + 2), name=f"write{k}") for k in range(2)]

        def body(i: Any, seen: Any) -> tuple[Any, Any]:
            inside = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
            added = [tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=x * float(k + 5)) for k in range(2)]
            with tf.control_dependencies(added):
                return i + 1, seen * 0.5 + inside

        _, seen = tf.while_loop(lambda i, _: i < 4, body, (0, x))
        with tf.control_dependencies(write):
            return {"first": read[0] + 1.0, "second": read[1] * 2.0, "seen": seen, "x": tf.identity(x)}

    return tf.compat.v1.wrap_function(program, [tf.TensorSpec([3], tf.float32, name="x")])


@pytest.mark.capture
@pytest.mark.parametrize("inter_threads", [1, 2])
def test_racing_accesses_are_ordered_as_they_happened(inter_threads: int) -> None:
    """Run again in numpy along the dependencies, in the order stored and in the one least like it: what TensorFlow returned."""
    tf = pytest.importorskip("tensorflow")
    from reexecute import Reexecution

    from fathom_trace.capture.lift import KnownVariable
    from fathom_trace.capture.run import Subject, run_subject

    variable = tf.Variable([1.0, 2.0, 3.0], name="v")
    random = np.random.default_rng(0)

    def batches() -> Any:
        while True:
            yield {"x": random.random(3, np.float32)}

    seen: list[StepValues] = []
    subject = Subject(racing(tf, variable), ["x"], batches(), [KnownVariable(variable, True)], {}, False, {})
    plan = Plan(steps=8, warmup=1, inter_threads=inter_threads, times_parallel_iterations=False)
    trace = run_subject(subject, plan, 0, lambda what, done, of: None, seen.append)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)
    assert inter_threads > 1 or not overlapping(trace), "one worker runs one at a time"
    proven = 0
    for values in seen:
        run = Reexecution(trace, values, {})
        differences = [run.difference(run.run(order)) for order in (None, run.latest_first())]
        if not overlapping(trace, values.step):
            assert (differences, run.unordered_accesses()) == (["", ""], [])
            proven += 1
        assert sum(writes for _, _, writes in run.accesses.values()) == 2 + 4 * 2
    assert proven == len(seen) or inter_threads > 1
    edges = trace.dependencies(0).producer.size - trace.waited_for(0).producer.size
    assert edges >= 4, "the graph itself does not order them"


def overlapping(trace: Trace, step: int | None = None) -> list[tuple[int, int]]:
    """Pairs of accesses, one of them a write, that ran at once in a step, or in any."""
    found = []
    for row in trace.traced_steps if step is None else trace.steps_of(int(trace.steps.structure[step])):
        structure = trace.structure_rows(int(trace.steps.structure[row]))
        times = trace.step_rows(row)
        start, end = trace.step_times.start[times], trace.step_times.end[times]
        touching = [
            (k, trace.node_ops[n] != READ)
            for k, n in enumerate(trace.executions.node[structure].tolist())
            if trace.node_ops[n] in (READ, WRITE, BOTH)
        ]
        found += [
            (a, b) for i, (a, wa) in enumerate(touching) for b, wb in touching[i + 1 :] if (wa or wb) and end[a] > start[b]
        ]  # fmt: skip
    return found


def of_op(trace: Trace, op: str) -> list[int]:
    return [e for e, n in enumerate(trace.executions.node.tolist()) if trace.node_ops[n] == op]


TRIPS = 4


def saved_gradients(path: Path) -> None:
    """A SavedModel of TensorFlow 1: loops within a loop, a branch in it, and the gradients of it all."""
    import tensorflow as tf

    old = tf.compat.v1
    old.disable_control_flow_v2()
    try:
        with old.Graph().as_default() as graph, old.Session(graph=graph) as session:
            x = old.placeholder(tf.float32, [2, 3], name="x_in")
            trips = tf.constant(TRIPS)
            w = old.get_variable("w", [3, 3], use_resource=True, initializer=old.random_uniform_initializer(seed=1))

            def inner(j: Any, y: Any) -> tuple[Any, Any]:
                return j + 1, tf.sin(tf.matmul(y, w))

            def body(i: Any, y: Any) -> tuple[Any, Any]:
                y = old.cond(tf.equal(i % 2, 0), lambda: tf.tanh(tf.matmul(y, w)), lambda: tf.exp(-y))
                return i + 1, old.while_loop(lambda j, _: j < i, inner, (0, y))[1]

            y = old.while_loop(lambda i, _: i < trips, body, (0, x))[1]
            gradients = tf.gradients(tf.reduce_sum(y), [w, x])
            session.run(old.global_variables_initializer())
            old.saved_model.simple_save(session, str(path), {"x": x}, {"y": y, "dw": gradients[0], "dx": gradients[1]})
    finally:
        old.enable_control_flow_v2()


@pytest.mark.capture
def test_gradient_loops_of_tensorflow_1_take_back_what_the_forward_loops_kept(tmp_path: Path) -> None:
    """4 trips: tanh in iterations 0 and 2, exp in 1 and 3; the inner loop runs 0, 1, 2 and 3 times, sin in each.

    What backward iteration b of the outer loop takes was put there in iteration 3 - b; likewise inside.
    """
    pytest.importorskip("tensorflow")
    saved_gradients(tmp_path / "model")
    trace = capture_request(CaptureRequest(str(tmp_path / "model"), mode="inference", seed=0, plan=Plan(steps=2, warmup=0)))
    found = check(trace)
    assert found.problems == []
    depends = trace.dependencies(0)
    pops, pushes = of_op(trace, "StackPopV2"), of_op(trace, "StackPushV2")
    taken = {pop: [p for p in depends.of(pop).tolist() if p in pushes] for pop in pops}
    assert all(len(producers) == 1 for producers in taken.values())
    assert sorted(p for (p,) in taken.values()) == pushes, "each value is taken once"
    depths = set()
    for pop, (push,) in taken.items():
        back, forth = (trace.iteration(int(trace.executions.path[e])) for e in (pop, push))
        outer = TRIPS - 1 - back[0]
        assert forth == (outer,) if len(back) == 1 else (outer, outer - 1 - back[1])
        depths.add(len(back))
    assert depths == {1, 2}
    ran = Counter(trace.node_ops[n] for n in trace.executions.node.tolist())
    assert (ran["TanhGrad"], ran["Tanh"], ran["Sin"], ran["Cos"], ran["Exp"]) == (2, 2, 6, 6, 2)
