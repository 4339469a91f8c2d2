"""Do accesses to one variable, and what goes onto a stack and comes off it, depend on each other as they happened?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.capture import Plan, StepValues
from fathom_trace.checks import check
from fathom_trace.effects import access_groups, access_key
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


def test_which_of_two_variables_was_touched_first_tells_no_steps_apart() -> None:
    first, second = [(1, False), (3, True)], [(2, False), (4, True)]
    assert list({7: first, 8: second}) != list({8: second, 7: first})
    assert access_key({7: first, 8: second}) == access_key({8: second, 7: first})
    assert access_key({7: first, 8: second}) != access_key({7: first[::-1], 8: second})
    assert access_key({7: first, 8: second}) != access_key({7: second, 8: first})
    # Where one variable's accesses end and the next one's begin counts.
    assert access_key({7: first[:1], 8: [*first[1:], *second]}) != access_key({7: first, 8: second})


@pytest.mark.capture
def test_an_assembler_joins_steps_that_touch_variables_in_another_order() -> None:
    """Nodes 1 and 3 read and write variable 0, nodes 2 and 4 variable 1: the pairs may swap, a read and its write may not."""
    pytest.importorskip("tensorflow")
    from fathom_trace.capture.assemble import Assembler

    made = SimpleNamespace(_touched={1: [(0, False)], 3: [(0, True)], 2: [(1, False)], 4: [(1, True)]})

    def key(*nodes: int) -> bytes:
        return Assembler._access_order(made, SimpleNamespace(node=np.array(nodes)))  # type: ignore[arg-type]

    assert key(0, 1, 2, 3, 4) == key(2, 4, 1, 0, 3) == key(2, 1, 3, 4, 5)
    assert key(1, 2, 3, 4) != key(3, 2, 1, 4)


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


def saved_gradients(path: Path, forward: Callable[[Any, Any], Any]) -> None:
    """A SavedModel of TensorFlow 1: what `forward` makes of x [2, 3] and w [3, 3], and its gradients, loops and branches written out."""
    import tensorflow as tf

    old = tf.compat.v1
    old.disable_control_flow_v2()
    try:
        with old.Graph().as_default() as graph, old.Session(graph=graph) as session:
            x = old.placeholder(tf.float64, [2, 3], name="x_in")
            w = old.get_variable("w", [3, 3], tf.float64, use_resource=True, initializer=old.random_uniform_initializer(seed=1))
            y = forward(x, w)
            gradients = tf.gradients(tf.reduce_sum(y), [w, x])
            session.run(old.global_variables_initializer())
            old.saved_model.simple_save(session, str(path), {"x": x}, {"y": y, "dw": gradients[0], "dx": gradients[1]})
    finally:
        old.enable_control_flow_v2()


def captured_gradients(path: Path, forward: Callable[[Any, Any], Any], inter_threads: int = 1) -> Trace:
    """A capture in which nothing is missing, and each pop takes what one push put there."""
    pytest.importorskip("tensorflow")
    from fathom_trace.capture.run import Subject, run_subject
    from fathom_trace.capture.targets import TargetRequest, load_target

    saved_gradients(path, forward)
    program = load_target(TargetRequest(str(path), "inference", 0, {}, "", "", "", 0))
    subject = Subject(program.concrete, program.input_names, program.batches, program.known, {}, True, {})
    plan = Plan(steps=2, warmup=0, inter_threads=inter_threads, times_parallel_iterations=False)
    seen: list[StepValues] = []
    trace = run_subject(subject, plan, 0, lambda what, done, of: None, seen.append)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)
    assert found.recorded == found.produced
    taken = [push for _, push in takes(trace)]
    assert sorted(taken) == of_op(trace, "StackPushV2"), "each value is taken once"
    for values in seen:
        run = with_stacks(trace, values)
        for order in (None, run.latest_first()):
            assert run.difference(run.run(order)) == ""
    return trace


def with_stacks(trace: Trace, values: StepValues) -> Any:
    """A re-execution in which a pop gives what the push gave that it depends on."""
    from reexecute import Handle, Job, Reexecution

    class WithStacks(Reexecution):
        def compute(self, job: Job, inputs: list[Any], state: list[Any], rows: Any) -> list[Any]:
            if job.op == "StackV2":
                return [Handle(-1)]
            if job.op == "StackPushV2":
                pushed[job.execution] = inputs[1]
                return [inputs[1]]
            if job.op == "StackPopV2":
                return [pushed[push_of[job.execution]]]
            return [] if job.op == "ControlTrigger" else super().compute(job, inputs, state, rows)

    pushed: dict[int, Any] = {}
    push_of = dict(takes(trace))
    blank = [np.full(shape, value) for shape in ((3, 3), (2, 3)) for value in (0.0, 1.0)]  # constants too large to be kept in a trace
    return WithStacks(trace, values, {hashlib.sha256(array.tobytes()).hexdigest(): array for array in blank})


def takes(trace: Trace) -> list[tuple[int, int]]:
    """(Pop, push) of each value that is taken from a stack."""
    depends = trace.dependencies(0)
    pushes = set(of_op(trace, "StackPushV2"))
    found = [(pop, [p for p in depends.of(pop).tolist() if p in pushes]) for pop in of_op(trace, "StackPopV2")]
    assert all(len(producers) == 1 for _, producers in found)
    return [(pop, producers[0]) for pop, producers in found]


def nested(x: Any, w: Any) -> Any:
    """A loop and a branch within a loop."""
    import tensorflow as tf

    old = tf.compat.v1

    def inner(j: Any, y: Any) -> tuple[Any, Any]:
        return j + 1, tf.sin(tf.matmul(y, w))

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        y = old.cond(tf.equal(i % 2, 0), lambda: tf.tanh(tf.matmul(y, w)), lambda: tf.exp(-y))
        return i + 1, old.while_loop(lambda j, _: j < i, inner, (0, y))[1]

    return old.while_loop(lambda i, _: i < TRIPS, body, (0, x))[1]


def entered_now_and_then(x: Any, w: Any) -> Any:
    """A loop in a branch within a loop: in the iterations that do not enter it, its counter and its triggers run all the same."""
    import tensorflow as tf

    old = tf.compat.v1

    def inner(j: Any, y: Any) -> tuple[Any, Any]:
        return j + 1, tf.sin(tf.matmul(y, w))

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        looped = old.cond(tf.equal(i % 3, 1), lambda: old.while_loop(lambda j, _: j < i, inner, (0, y))[1], lambda: tf.tanh(y))
        return i + 1, looped

    return old.while_loop(lambda i, _: i < 6, body, (0, x))[1]


def three_deep(x: Any, w: Any) -> Any:
    """Loops within a loop within a loop; what no iteration changes enters the innermost through the others, also when they end."""
    import tensorflow as tf

    old = tf.compat.v1

    def innermost(k: Any, y: Any) -> tuple[Any, Any]:
        return k + 1, tf.sin(y)

    def middle(j: Any, y: Any) -> tuple[Any, Any]:
        return j + 1, old.while_loop(lambda k, _: k < j, innermost, (0, tf.tanh(y)))[1]

    def outer(i: Any, y: Any) -> tuple[Any, Any]:
        return i + 1, old.while_loop(lambda j, _: j < i, middle, (0, tf.matmul(y, w)))[1]

    return old.while_loop(lambda i, _: i < TRIPS, outer, (0, x))[1]


@pytest.mark.capture
def test_gradient_loops_of_tensorflow_1_take_back_what_the_forward_loops_kept(tmp_path: Path) -> None:
    """4 trips: tanh in iterations 0 and 2, exp in 1 and 3; the inner loop runs 0, 1, 2 and 3 times, sin in each.

    What backward iteration b of the outer loop takes was put there in iteration 3 - b; likewise inside.
    """
    trace = captured_gradients(tmp_path / "model", nested)
    depths = set()
    for pop, push in takes(trace):
        back, forth = (trace.iteration(int(trace.executions.path[e])) for e in (pop, push))
        outer = TRIPS - 1 - back[0]
        assert forth == (outer,) if len(back) == 1 else (outer, outer - 1 - back[1])
        depths.add(len(back))
    assert depths == {1, 2}
    ran = Counter(trace.node_ops[n] for n in trace.executions.node.tolist())
    assert (ran["TanhGrad"], ran["Tanh"], ran["Sin"], ran["Cos"], ran["Exp"]) == (2, 2, 6, 6, 2)


@pytest.mark.capture
@pytest.mark.parametrize(
    ("forward", "ran"),
    [
        (entered_now_and_then, {"Sin": 1 + 4, "Cos": 1 + 4, "Tanh": 4, "TanhGrad": 4}),
        (three_deep, {"Tanh": 0 + 1 + 2 + 3, "TanhGrad": 6, "Sin": (0) + (0 + 1) + (0 + 1 + 2), "Cos": 4}),
    ],
)
def test_loops_of_tensorflow_1_that_are_not_always_entered_are_complete(
    forward: Callable[[Any, Any], Any], ran: dict[str, int], tmp_path: Path
) -> None:
    trace = captured_gradients(tmp_path / "model", forward, inter_threads=2)
    counted = Counter(trace.node_ops[n] for n in trace.executions.node.tolist())
    assert {op: counted[op] for op in ran} == ran
    assert counted["ControlTrigger"] > 0
