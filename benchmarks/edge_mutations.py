"""How many wrong edges would the checks notice? Deletes, adds and shifts single edges of a stored trace.

    python -m benchmarks.edge_mutations TRACE [--trials N] [--seed N]

`delete` takes away one dependency of one execution, `last` the one that ended last (the only one whose absence the clock can show), `add`
gives it a dependency that it does not have, `shift` replaces one by another, `future` makes it depend on what is stored after it. For each
kind: the share that causality and readiness notice by the clock alone, and the share that all invariants together notice (also that the
stored order is topological and that the executions' edges are the graph's).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fathom_trace.checks import Checks, check
from fathom_trace.errors import TraceError
from fathom_trace.store import load
from fathom_trace.tables import Executions
from fathom_trace.trace import Trace

KINDS = ("delete", "last", "add", "shift", "future")


def mutated(trace: Trace, execution: int, inputs: list[int]) -> Trace:
    """`trace` with other data inputs for one execution.

    Raises:
        TraceError: the trace cannot be so.
    """
    old = trace.executions
    columns = {name: getattr(old, name) for name in Executions.columns()}
    span = old.row_values("input", execution)
    columns["input"] = np.concatenate([old.input[: span.start], np.array(inputs, np.int32), old.input[span.stop :]])
    grown = len(inputs) - (span.stop - span.start)
    shift = np.zeros(len(old) + 1, np.int64)
    shift[execution + 1 :] = grown
    columns["input_offsets"] = old.input_offsets + shift
    return trace.replace(executions=Executions(**columns))


def mutations(trace: Trace, kind: str, generator: np.random.Generator) -> Iterator[tuple[int, list[int]]]:
    """Endless (execution, its new inputs) of one kind, over the most frequent structure."""
    rows = trace.structure_rows(trace.main_structure)
    step = trace.steps_of(trace.main_structure)[0]
    done = trace.step_times.done[trace.step_rows(step)]
    tensors = range(int(trace.tensor_offsets[rows.start]), int(trace.tensor_offsets[rows.stop]))
    while True:
        execution = int(generator.integers(rows.start, rows.stop))
        inputs = trace.inputs(execution)
        producers = trace.tensors.execution[inputs]
        if kind in ("delete", "last", "shift") and not inputs:
            continue
        place = int(generator.integers(len(inputs))) if inputs else 0
        if kind == "last":
            place = int(np.argmax(done[producers - rows.start]))
        if kind in ("delete", "last"):
            yield execution, inputs[:place] + inputs[place + 1 :]
            continue
        first_later = int(trace.tensor_offsets[execution])
        low, high = (first_later, tensors.stop) if kind == "future" else (tensors.start, first_later)
        if low >= high:
            continue
        other = int(generator.integers(low, high))
        if other in inputs:
            continue
        if kind == "add" or not inputs:
            yield execution, [*inputs, other]
        else:
            yield execution, [*inputs[:place], other, *inputs[place + 1 :]]


def noticed(trace: Trace, base: Checks, execution: int, inputs: list[int]) -> tuple[bool, bool]:
    """Whether the clock alone, and whether all invariants, notice a mutation."""
    try:
        found = check(mutated(trace, execution, inputs))
    except TraceError:
        return False, True
    by_clock = found.causality_violations > base.causality_violations or found.readiness_violations > base.readiness_violations
    return by_clock, found.problems != base.problems or by_clock


def shares(trace: Trace, kind: str, trials: int, seed: int) -> tuple[float, float]:
    """Shares noticed by the clock alone and by all invariants."""
    base, generator = check(trace), np.random.default_rng(seed)
    source = mutations(trace, kind, generator)
    results = [noticed(trace, base, *next(source)) for _ in range(trials)]
    return float(np.mean([r[0] for r in results])), float(np.mean([r[1] for r in results]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    trace = load(arguments.trace)
    print("| edges | trials | noticed by causality or readiness | noticed by any invariant |\n|---|---|---|---|")
    for kind in KINDS:
        clock, everything = shares(trace, kind, arguments.trials, arguments.seed)
        print(f"| {kind} | {arguments.trials} | {100 * clock:.1f}% | {100 * everything:.1f}% |", flush=True)


if __name__ == "__main__":
    main()
