"""Do steps whose shapes depend on data count together, execution by execution, and nothing else?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.tables import Allocations
from fathom_trace.trace import Trace
from fathom_trace.whatif import Scenario, Settings, fit_scaling, project
from fathom_trace.whatif.alike import matching, with_alike_steps
from fathom_trace.whatif.projected import digest
from tests.small import diamond, loop


def words(steps: Sequence[tuple[int, int, int]], threads: int = 1, extra: bool = False) -> Trace:
    """Two independent ops, then their sum: of each step the rows that A yields, and the us that A and B take (the sum takes 5 us).

    Odd steps store B before A. With `extra`, the last step runs one op more.
    """
    builder = TraceBuilder()
    a, b = builder.node("A", "Unique"), builder.node("B", "Mul")
    total = builder.node("sum", "AddV2", inputs=[(a, 0), (b, 0)])
    more = builder.node("more", "Relu", inputs=[(total, 0)])
    for number, (rows, first, second) in enumerate(steps):
        at: dict[str, int] = {}
        times = []
        clock = 0
        for name in "BA" if number % 2 else "AB":
            at[name] = builder.execution(a if name == "A" else b, outputs=[("float32", [rows if name == "A" else 1, 2])])
            took = 1000 * (first if name == "A" else second)
            times.append((clock, clock + took))
            clock += took
        last = builder.execution(total, inputs=[builder.tensor(at["A"]), builder.tensor(at["B"])], outputs=[("float32", [rows, 2])])
        times.append((clock, clock + 5000))
        if extra and number == len(steps) - 1:
            builder.execution(more, inputs=[builder.tensor(last)], outputs=[("float32", [rows, 2])])
            times.append((clock + 5000, clock + 6000))
        builder.step(builder.end_structure(), start=[t[0] for t in times], done=[t[1] for t in times])
    return builder.build({"workload": "words", "inter_threads": 1, "intra_threads": threads})


def test_each_execution_meets_its_own_runs() -> None:
    trace = words([(3, 10, 20), (4, 12, 26), (5, 30, 22)])
    assert len(trace.structures) == 3
    found = matching(trace, 0, 1)
    assert found is not None
    assert found.tolist() == [1, 0, 2]  # A stands second in step 1
    merged, moved = with_alike_steps(trace, 0)
    assert moved == 2
    assert merged.steps_of(0) == [0, 1, 2]
    assert merged.median_durations(0).tolist() == [12_000, 22_000, 5_000]  # A: 10, 12, 30; B: 20, 26, 22
    assert trace.steps_of(0) == [0]  # the given trace stays as it was


def test_medians_over_steps_alike_are_what_is_projected() -> None:
    trace = words([(3, 10, 20), (4, 12, 26), (5, 30, 22)])
    projection = project(trace, Scenario())
    assert projection.baseline.steps == 3
    assert projection.makespan_ns == 12_000 + 22_000 + 5_000
    assert projection.baseline.measured_ns == 43_000  # the spans are 35, 43 and 57 us
    assert any("other shapes, whose times count too: 2" in note for note in projection.notes)
    assert project(trace, Scenario(), Settings(structure=1)).makespan_ns == 43_000  # a structure that is asked for stays alone


def test_steps_that_ran_something_else_stay_out() -> None:
    trace = words([(3, 10, 20), (4, 12, 26), (5, 30, 22)], extra=True)
    assert matching(trace, 0, 2) is None
    merged, moved = with_alike_steps(trace, 0)
    assert (moved, merged.steps_of(0)) == (1, [0, 1])
    looped = loop()  # two trips, then one
    assert with_alike_steps(looped, 0) == (looped, 0)
    assert with_alike_steps(diamond(), 0)[1] == 0


def test_a_serial_fraction_is_fitted_from_steps_alike() -> None:
    """A takes 10, 12 and 30 us on one thread: four steps of half that on two, so that A's serial fraction is 0, from 6 samples."""
    one = words([(3, 10, 20), (4, 12, 20), (5, 30, 20)])
    two = words([(3, 5, 20), (4, 6, 20), (6, 15, 20)], threads=2)
    fitted = fit_scaling([one, two])
    assert fitted.of("Unique").serial == pytest.approx(0, abs=1e-12)
    assert fitted.of("Unique").samples == 6
    assert fitted.of("Mul").serial == pytest.approx(1)


def test_numbers_of_random_orders() -> None:
    rng = np.random.default_rng(3)
    trace = words([(int(rng.integers(1, 9)), int(rng.integers(1, 99)), int(rng.integers(1, 99))) for _ in range(9)])
    merged, _ = with_alike_steps(trace, 0)
    for step in range(9):
        by_node = dict(zip(trace.executions.node[trace.structure_rows(step)].tolist(), trace.durations(step).tolist(), strict=True))
        assert merged.durations(step).tolist() == [by_node[n] for n in merged.executions.node[merged.structure_rows(0)].tolist()]


def test_a_projected_trace_is_of_the_capture_as_it_was() -> None:
    """The digest is of the captured trace; allocations of a step of another structure are of executions that are not projected."""
    trace = words([(3, 10, 20), (4, 12, 26), (4, 30, 22)])
    rows = [{"step": s, "execution": int(trace.structure_rows(s).start), "size_bytes": 8, "time": 1, "buffer": -1} for s in (0, 1)]
    for step in (0, 1):
        recorded = trace.replace(allocations=Allocations.from_rows([rows[step]]))
        made = project(recorded, Scenario()).to_trace()
        assert made.provenance["projected"]["of"] == digest(recorded)
        assert made.allocations.execution.tolist() == ([0] if step == 0 else [])
