"""A projection as a trace: the captured program with the times of its replay, so that reports and exporters take it like any other.

It has one step, of the structure that was projected. Start, end, done and worker of each execution are those of the replay on the
workers, in whole nanoseconds; `scheduled` is when its last dependency ended. What a change removed or fused away is still there and takes
no time. Copies to and from an accelerator are no executions of the trace: they are in the wait between `scheduled` and `start`, and
those that nothing in the step waits for (a variable for the next step) only in the step's wall time, which is the whole makespan.
Allocation records of the projected structure are moved with the executions around them; spans on device streams are left out, for
nobody projected them. `provenance["projected"]` says what was projected from what; a digest tells the captured trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ScenarioError
from fathom_trace.tables import Allocations, DeviceSpans, Steps, StepTimes
from fathom_trace.trace import Trace
from fathom_trace.whatif.recording import Float, Recording
from fathom_trace.whatif.replay import Schedule
from fathom_trace.whatif.scenario import Replayed, Times
from fathom_trace.whatif.selection import Executed

MEASURED_KEYS = ("first_run_ns", "run_metadata_bytes")
"""Keys of provenance that are of the captured steps only."""

LONGEST_NS = 1e18
"""Of a projected step: thirty years, with room for sums of its times in 64 bits."""
MOST_LANES = int(np.iinfo(np.int16).max)


def projected_trace(
    executed: Executed, recording: Recording, changed: Times, replayed: Replayed, schedule: Schedule, about: Mapping[str, Any]
) -> Trace:
    """The trace of a schedule of changed times; see above. `about` goes into the provenance.

    Raises:
        ScenarioError: the projection was not made from a trace, ran on more workers than a trace can number, or longer than it can hold.
    """
    trace = executed.captured or executed.source("a projected trace")
    structure, at = executed.structure, replayed.at
    if schedule.makespan_ns > LONGEST_NS:
        raise ScenarioError(
            f"the projection takes {schedule.makespan_ns:.3g} ns; a trace holds times up to {LONGEST_NS:.3g} ns, so look at it without -o"
        )
    start, end, done = (np.rint(times[at]).astype(np.int64) for times in (schedule.start_ns, schedule.end_ns, schedule.done_ns))
    worker = schedule.worker[at]
    if worker.max(initial=0) > MOST_LANES:
        raise ScenarioError(
            f"the projection runs on {int(worker.max()) + 1} workers at once; a trace holds {MOST_LANES}, so give --workers"
        )
    scheduled = np.zeros(len(start), np.int64)
    depends = trace.dependencies(structure)
    np.maximum.at(scheduled, np.repeat(np.arange(len(start)), np.diff(depends.offsets)), end[depends.producer])
    valid = recording.timed | changed.changed
    times = StepTimes(scheduled=scheduled, start=start, end=end, done=done, lane=worker.astype(np.int16), valid=valid)
    return trace.replace(
        steps=_steps(trace, structure, times, round(schedule.makespan_ns)),
        step_times=times,
        allocations=_allocations(trace, structure, times),
        device_spans=DeviceSpans.empty(),
        provenance=_provenance(trace, structure, changed, about),
    )


def _steps(trace: Trace, structure: int, times: StepTimes, makespan_ns: int) -> Steps:
    """One traced step; what is not projected (inputs and their preparation) is that of the first captured step."""
    captured = trace.steps_of(structure)[0]
    valid = times.valid
    span = int(times.done[valid].max() - times.scheduled[valid].min()) if valid.any() else 0
    kept = {key: getattr(trace.steps, key)[captured : captured + 1] for key in Steps.columns()}
    count = np.array([np.count_nonzero(trace.chosen[trace.structure_rows(structure)])], np.int64)
    changed: dict[str, NDArray[Any]] = {
        "client_wall_ns": np.array([makespan_ns], np.int64), "span_ns": np.array([span], np.int64), "origin_ns": np.zeros(1, np.int64),
        "recorded": count, "produced": count, "complete": np.ones(1, bool),
    }  # fmt: skip
    return Steps(**{**kept, **changed})


def _allocations(trace: Trace, structure: int, times: StepTimes) -> Allocations:
    """The records of the memory step, if it ran the structure, each moved as the times around it moved."""
    records = trace.allocations
    steps = set(records.step.tolist()) & set(trace.steps_of(structure))
    if not steps:
        return Allocations.empty()
    step = min(steps)
    mine = np.flatnonzero(records.step == step)
    rows, columns = trace.step_rows(step), {key: getattr(records, key)[mine] for key in Allocations.columns()}
    valid = times.valid & trace.step_times.valid[rows]
    before = np.concatenate([trace.step_times.start[rows][valid], trace.step_times.done[rows][valid]]).astype(np.float64)
    after = np.concatenate([times.start[valid], times.done[valid]]).astype(np.float64)
    if not len(before):
        return Allocations.empty()
    columns["time"] = np.rint(_moved(columns["time"].astype(np.float64), before, after)).astype(np.int64)
    columns["step"] = np.zeros(len(mine), np.int32)
    return Allocations(**columns)


def _moved(when: Float, before: Float, after: Float) -> Float:
    """Times on the line through the points (before, after); where workers overlap, the line never runs backwards."""
    order = np.lexsort((after, before))
    at, to = before[order], np.maximum.accumulate(after[order])
    last = np.append(at[1:] != at[:-1], True)
    at, to = at[last], to[last]
    inside = np.interp(when, at, to)
    return np.asarray(inside + np.minimum(when - at[0], 0.0) + np.maximum(when - at[-1], 0.0))


def _provenance(trace: Trace, structure: int, changed: Times, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: value for key, value in trace.provenance.items() if key not in MEASURED_KEYS},
        "inter_threads": about["workers"],
        "projected": {
            **about,
            "structure": structure,
            "transfers": len(changed.transfers) if changed.transfers is not None else 0,
            "transfers_ns": changed.transfer_ns,
            "of": digest(trace),
        },
    }


def digest(trace: Trace) -> str:
    """A digest of what was captured: graph, executions and times."""
    found = hashlib.sha256()
    for name in ("nodes", "executions", "tensors", "steps", "step_times"):
        table = trace.tables()[name]
        for key in table.columns():
            found.update(np.ascontiguousarray(getattr(table, key)).tobytes())
    return found.hexdigest()
