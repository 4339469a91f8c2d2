"""Steps that ran the same executions with other shapes, counted as steps of one structure.

A structure is what a step executed, shapes included. Where shapes depend on data (the gradient of a table holds a row for each distinct
word that was looked up), no two steps are of one structure, and medians over the steps of one would be single measurements. Times are
comparable all the same: every node ran as often, in the same iterations. Shapes and costs stay those of the structure that is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fathom_trace.tables import Steps, StepTimes
from fathom_trace.trace import Trace


def matching(trace: Trace, structure: int, other: int) -> NDArray[np.int64] | None:
    """For each execution of `structure` the number, within `other`, of the run of the same node in the same iteration; None: not alike."""
    mine, its = (_runs(trace, s) for s in (structure, other))
    if mine.shape != its.shape:
        return None
    here, there = (np.lexsort(runs) for runs in (mine, its))
    if not np.array_equal(mine[:, here], its[:, there]):
        return None
    result = np.empty(len(here), np.int64)
    result[here] = there
    return result


def with_alike_steps(trace: Trace, structure: int) -> tuple[Trace, int]:
    """The trace with every step that is alike counted to `structure`, and how many those are.

    The same trace where there are none, or where nothing was timed.
    """
    others = sorted({*trace.steps.structure.tolist()} - {structure, -1})
    if not others or not trace.has_times:
        return trace, 0
    belongs, rows, moved = trace.steps.structure.copy(), np.arange(len(trace.step_times)), 0
    for other in others:
        match = matching(trace, structure, other)
        if match is None:
            continue
        for step in trace.steps_of(other):
            rows[trace.step_rows(step)] = rows[trace.step_rows(step)][match]
            belongs[step] = structure
            moved += 1
    if not moved:
        return trace, 0
    steps = {key: getattr(trace.steps, key) for key in Steps.columns()} | {"structure": belongs}
    times = {key: getattr(trace.step_times, key)[rows] for key in StepTimes.columns()}
    return trace.replace(steps=Steps(**steps), step_times=StepTimes(**times)), moved


def _runs(trace: Trace, structure: int) -> NDArray[np.int64]:
    """Iteration path and node of each execution, `[2, executions]`."""
    rows = trace.structure_rows(structure)
    return np.stack([trace.executions.path[rows], trace.executions.node[rows]]).astype(np.int64)
