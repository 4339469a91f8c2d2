"""Do the invariants notice a false trace?"""

from __future__ import annotations

import numpy as np
import pytest
from small import diamond, loop

from fathom_trace.builder import TraceBuilder
from fathom_trace.checks import READY_NS, check
from fathom_trace.errors import TraceError
from fathom_trace.tables import Executions
from fathom_trace.trace import Trace


def with_inputs(trace: Trace, rows: list[list[int]]) -> Trace:
    """`trace` with the data inputs of every execution replaced."""
    old = trace.executions
    columns = {k: getattr(old, k) for k in Executions.columns()}
    columns["input_offsets"] = np.cumsum([0, *map(len, rows)])
    columns["input"] = np.array([i for row in rows for i in row], np.int32)
    return trace.replace(executions=Executions(**columns))


def test_true_traces_pass() -> None:
    for trace in (diamond(), loop()):
        found = check(trace)
        assert found.problems == []
        assert (found.causality_violations, found.readiness_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0, 0)
    assert check(diamond()).edges == 4
    assert check(loop()).executions == 7 + 5, "steps of both structures are counted"


def test_missing_edge_is_late_and_unresolved() -> None:
    trace = diamond()
    inputs = [trace.inputs(e) for e in range(4)]
    inputs[3] = [inputs[3][1]]  # D no longer waits for B, which ended 20 us after C
    found = check(with_inputs(trace, inputs))
    assert found.unresolved_inputs == 1
    assert found.problems


def test_late_by_more_than_the_limit() -> None:
    builder = TraceBuilder()
    a, b = builder.node("a", "Const"), None
    b = builder.node("b", "Relu", inputs=[(a, 0)])
    first = builder.execution(a, outputs=[("float32", [1])])
    builder.execution(b, inputs=[builder.tensor(first)], outputs=[("float32", [1])])
    structure = builder.end_structure()
    for delay in (READY_NS, READY_NS + 1):
        builder.step(structure, start=[0, 10 + delay], done=[10, 20 + delay])
    assert check(builder.build()).late == 1, "exactly the limit is allowed, one more is not"


def test_early_consumer_violates_causality_and_readiness() -> None:
    builder = TraceBuilder()
    a = builder.node("a", "Const")
    b = builder.node("b", "Relu", inputs=[(a, 0)])
    first = builder.execution(a, outputs=[("float32", [1])])
    builder.execution(b, inputs=[builder.tensor(first)], outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[0, 9], done=[10, 20])
    found = check(builder.build())
    assert (found.causality_violations, found.early) == (1, 1)


def test_swapped_producer_contradicts_the_graph() -> None:
    trace = diamond()
    inputs = [trace.inputs(e) for e in range(4)]
    inputs[3] = [inputs[3][0], inputs[1][0]]  # reads A's output in place of C's
    assert check(with_inputs(trace, inputs)).wrong_edges == 1


def test_iteration_barrier_is_known() -> None:
    """Iteration 1 starts only when all of iteration 0 is over, though nothing in it depends on the slow part."""
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    merge = builder.node("merge", "Merge", frame=frame)
    slow = builder.node("slow", "MatMul", inputs=[(merge, 0)], frame=frame)
    step = builder.node("next", "NextIteration", inputs=[(merge, 0)], frame=frame)
    builder._rows["nodes"][merge].update(input_node=[step], input_port=[0])
    paths = [builder.path(0, frame, 0, i) for i in range(2)]
    m0 = builder.execution(merge, outputs=[("float32", [1])], path=paths[0])
    n0 = builder.execution(step, inputs=[builder.tensor(m0)], outputs=[("float32", [1])], path=paths[0])
    builder.execution(slow, inputs=[builder.tensor(m0)], outputs=[("float32", [1])], path=paths[0])
    builder.execution(merge, inputs=[builder.tensor(n0)], outputs=[("float32", [1])], path=paths[1])
    late = 50 * READY_NS
    builder.step(builder.end_structure(), start=[0, 10, 20, late + 10], done=[10, 20, late, late + 20])
    assert check(builder.build()).late == 0


def test_times_out_of_order_are_set_aside() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "Const"), outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[10], done=[5])
    trace = builder.build()
    assert check(trace).invalid_times == 1
    assert trace.durations(0).tolist() == [0], "not a negative duration"


def test_losses_are_a_problem() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "Const"), outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[0], done=[5], produced=3, complete=False)
    found = check(builder.build())
    assert (found.recorded, found.produced, found.complete) == (1, 3, False)
    assert any("incomplete" in p for p in found.problems)


def test_reasons_of_a_loss_are_given_with_advice() -> None:
    def problems(complete: bool = False, **provenance: object) -> list[str]:
        builder = TraceBuilder()
        builder.execution(builder.node("a", "Const"), outputs=[("float32", [1])])
        builder.step(builder.end_structure(), start=[0], done=[5], produced=1 if complete else 3, complete=complete)
        return check(builder.build(provenance)).problems

    capped, missing = problems(record_cap_reached=True, first_missing="loop/add")[1:]
    assert capped.startswith("TensorFlow keeps at most 1,048,576 records of a step")
    assert "make the step smaller" in capped
    assert missing == "the first node that lacks records is 'loop/add'"
    (missing,) = problems(first_missing="b")[1:]
    assert missing.endswith("; capture it again, and if it stays so with a smaller step")
    (unplaced,) = problems(unplaced_records={"d": 1, "c": 2, "b": 1, "e": 1}, opaque_calls=["call"])[1:]
    assert unplaced.startswith(
        "5 records are of ops that stand in no executed graph ('b', 'c', 'd' and 1 more) inside 'call', which TensorFlow ran as one call"
    )
    assert problems(complete=True, unplaced_records={"c": 2}) == [], "records of a call that was looked into"


def test_what_is_not_sound() -> None:
    """Losses and contradictions are; that workers were late is not, since a busy machine makes them so."""
    builder = TraceBuilder()
    a = builder.node("a", "Const")
    first = builder.execution(a, outputs=[("float32", [1])])
    builder.execution(builder.node("b", "Relu", inputs=[(a, 0)]), inputs=[builder.tensor(first)], outputs=[("float32", [1])])
    builder.step(builder.end_structure(), start=[0, 10 * READY_NS], done=[10, 11 * READY_NS])
    late = check(builder.build())
    assert (late.late, late.is_sound) == (1, True)
    assert late.problems
    assert check(diamond()).is_sound
    trace = diamond()
    inputs = [trace.inputs(e) for e in range(4)]
    assert not check(with_inputs(trace, [*inputs[:3], inputs[3][:1]])).is_sound


def test_cycle_cannot_be_stored() -> None:
    trace = diamond()
    inputs = [trace.inputs(e) for e in range(4)]
    inputs[0] = [3]
    with pytest.raises(TraceError, match="does not precede"):
        with_inputs(trace, inputs)


def test_random_edge_mutations_are_detected() -> None:
    """Delete, redirect or add any one edge of a random trace: some invariant notices."""
    rng = np.random.default_rng(7)
    trace = random_trace(rng, 60)
    assert check(trace).problems == []
    base, noticed, trials = check(trace), 0, 0
    for execution in range(1, 60):
        inputs = [trace.inputs(e) for e in range(60)]
        for kind in ("delete", "shift", "add"):
            changed = [list(i) for i in inputs]
            if kind == "delete" and changed[execution]:
                changed[execution].pop(int(rng.integers(len(changed[execution]))))
            elif kind == "shift" and changed[execution] and execution > 1:
                k = int(rng.integers(len(changed[execution])))
                others = [t for t in range(execution) if t not in inputs[execution]]
                if not others:
                    continue
                changed[execution][k] = int(rng.choice(others))
            elif kind == "add":
                others = [t for t in range(execution) if t not in inputs[execution]]
                if not others:
                    continue
                changed[execution].append(int(rng.choice(others)))
            else:
                continue
            trials += 1
            found = check(with_inputs(trace, changed))
            noticed += found != base
    assert trials > 100
    assert noticed / trials >= 0.99


def random_trace(rng: np.random.Generator, count: int) -> Trace:
    """A random DAG run by one worker in order, without gaps."""
    builder = TraceBuilder()
    nodes: list[int] = []
    for i in range(count):
        parents = sorted(rng.choice(i, size=min(i, int(rng.integers(1, 4))), replace=False).tolist()) if i else []
        nodes.append(builder.node(f"n{i}", "AddN", inputs=[(nodes[p], 0) for p in parents]))
        builder.execution(nodes[-1], inputs=[builder.tensor(p) for p in parents], outputs=[("float32", [4])])
    lengths = rng.integers(60_000, 900_000, count)
    done = np.cumsum(lengths)
    # ready when the last producer is done: shift each start to it, on as many lanes as that takes
    start = np.zeros(count, np.int64)
    for i in range(count):
        row = builder._rows["executions"][i]["input"]
        start[i] = max((done[p] for p in row), default=0)
        done[i] = start[i] + lengths[i]
    builder.step(builder.end_structure(), start=start, done=done)
    return builder.build()


@pytest.mark.capture
def test_wrong_edges_of_a_captured_trace_are_noticed() -> None:
    """At least 99% of deleted, added and shifted edges, by one invariant or another."""
    pytest.importorskip("tensorflow")
    from benchmarks.edge_mutations import KINDS, shares
    from fathom_trace.capture import CaptureRequest, Plan, capture_workload

    trace = capture_workload(CaptureRequest("vgg", preset="tiny", plan=Plan(steps=2)))
    for kind in KINDS:
        assert shares(trace, kind, 60, seed=1)[1] >= 0.99, kind
