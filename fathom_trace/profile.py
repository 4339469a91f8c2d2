"""Where the time and the work of a step go: a table by op type, kind, layer or phase.

Times are op times as the paper defines them, node start to all done: the sum over a group's executions within one step, of which the
table gives the median over the chosen steps. Counts and costs are those of one step. In a step that ran a loop body five times its ops
count five; what is in the graph but did not run, such as the branch that was not taken, counts 0. Of a part of a trace only what the
part holds is listed. A first execution that took far longer than the same node usually takes (memory, compilation and the like were set
up in it) is listed apart.

MACs, FLOPs and bytes are of the executed ops. `logical_macs` are those of the layers that the program describes: a dilated convolution
that TensorFlow runs between SpaceToBatchND and BatchToSpaceND has fewer than the convolution that ran.

A cost of a group is a number only if it is known for every execution in it. A group with some unknown shows the sum of the known ones
apart (`known_flops`) and how many are not (`unknown_flops`); in CSV, which has no place for that, its cell is empty, never 0.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.costs import Costs, Coverage, costs
from fathom_trace.errors import TraceError, UnknownNameError
from fathom_trace.layers import layer_names
from fathom_trace.loops import logical_macs
from fathom_trace.ops import kind
from fathom_trace.phases import phases
from fathom_trace.trace import Trace, distinct
from fathom_trace.units import format_ns

CSV_COLUMNS = ("key", "count", "time_ns", "share", "macs", "flops", "bytes")

NO_LAYER = "(none)"

FIRST_RUN_RATIO = 100.0
"""A first execution is listed if it took more than so many times its node's median."""

_LABELS: dict[str, Callable[[Trace], Sequence[str]]] = {
    "op": lambda trace: trace.node_ops,
    "kind": lambda trace: [kind(op) for op in trace.node_ops],
    "layer": lambda trace: [name or NO_LAYER for name in layer_names(trace)],
    "phase": phases,
}
BY = tuple(_LABELS)


@dataclass(frozen=True)
class FirstRun:
    """A node whose first execution took more than `FIRST_RUN_RATIO` times its median over `count` executions, over all chosen steps."""

    node: str
    op: str
    first_ns: int
    median_ns: float
    count: int

    def __str__(self) -> str:
        return f"{self.op} '{self.node}' took {format_ns(self.first_ns)} when it first ran, {format_ns(self.median_ns)} usually"


@dataclass(frozen=True)
class Row:
    """One group. Times and shares are None in a trace without times; a cost is None unless it is known for all executions.

    `time_ns` is of all executions of a step, `median_ns` of one of them. `macs` are of the executed ops, `logical_macs` of their layers.
    """

    key: str
    count: int
    time_ns: float | None
    median_ns: float | None
    share: float | None
    macs: int | None
    logical_macs: int | None
    flops: int | None
    bytes: int | None
    known_macs: int
    known_flops: int
    known_bytes: int
    unknown_macs: int
    unknown_flops: int
    unknown_bytes: int

    @property
    def is_another_layer(self) -> bool:
        """True where the executed ops have other MACs than the layers that they are."""
        return self.logical_macs is not None and self.logical_macs != self.macs

    @property
    def gflops_per_s(self) -> float | None:
        """GFLOP/s, which is FLOPs per ns; None without a known cost or a time."""
        return self.flops / self.time_ns if self.flops is not None and self.time_ns else None

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOPs per byte; None where either is not known, or no bytes move."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.__dict__, "gflops_per_s": self.gflops_per_s, "intensity": self.intensity}


@dataclass(frozen=True)
class Profile:
    """The rows of a trace, longest first. `total_ns` is the sum of their times, `coverage` how much of each cost is known."""

    by: str
    structure: int
    steps: tuple[int, ...]
    total_ns: float | None
    rows: tuple[Row, ...]
    coverage: dict[str, Coverage]
    uncovered: dict[str, int]
    """Op types with unknown FLOPs, and how many executions of each."""
    first_runs: tuple[FirstRun, ...]
    """Nodes that took far longer when they first ran, longest first."""

    def to_csv(self) -> str:
        """The rows with exactly the columns `key,count,time_ns,share,macs,flops,bytes`; what is not known is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for row in self.rows:
            writer.writerow(["" if value is None else value for value in (getattr(row, name) for name in CSV_COLUMNS)])
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not known is null."""
        return {
            "by": self.by,
            "structure": self.structure,
            "steps": list(self.steps),
            "total_ns": self.total_ns,
            "rows": [row.to_dict() for row in self.rows],
            "coverage": {what: {"executions": c.executions, "time": c.time} for what, c in self.coverage.items()},
            "uncovered": self.uncovered,
            "first_runs": [asdict(first) for first in self.first_runs],
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"


def profile(trace: Trace, by: str = "op", steps: Sequence[int] | None = None) -> Profile:
    """The table of one structure by `op`, `kind`, `layer` or `phase`.

    `steps` are rows of the trace's `steps`, all of one structure; by default all traced steps of the structure that most steps ran.

    Raises:
        UnknownNameError: `by` is none of the four.
        TraceError: a step does not exist, is untraced, or executed something else than the others; or the trace holds no executions, or
            contradicts itself.
    """
    if by not in _LABELS:
        raise UnknownNameError("grouping", by, _LABELS)
    structure, taken = select_steps(trace, steps)
    labels = _LABELS[by](trace)
    rows = trace.structure_rows(structure)
    chosen = trace.chosen[rows]
    node = trace.executions.node[rows]
    keys = sorted({*labels} if chosen.all() else {labels[n] for n in distinct(node[chosen].astype(np.int64)).tolist()})
    number = {key: i for i, key in enumerate(keys)}
    group = np.array([number.get(label, len(keys)) for label in labels], np.int64)[node]
    group[~chosen] = len(keys)
    times = _times(trace, taken, group, len(keys)) if trace.has_times and taken else None
    measured = None if times is None else _measured(trace, taken)
    found = costs(trace, structure)
    logical = logical_macs(trace, structure, found.macs)
    made = []
    for i, key in enumerate(keys):
        members = np.flatnonzero(group == i)
        row = _row(key, members, found, logical)
        if times is not None and measured is not None:
            row = replace(row, time_ns=float(times[i]), median_ns=_median(measured[:, members]))
        made.append(row)
    total = None if times is None else float(times.sum())
    made = [_with_share(row, total) for row in made]
    made.sort(key=lambda row: (-(row.time_ns or 0.0), -row.count, row.key))
    durations = None if times is None else _median_durations(trace, taken)[chosen]
    counted = found.only(chosen)
    first_runs = () if measured is None else _first_runs(trace, rows, measured)
    return Profile(by, structure, taken, total, tuple(made), counted.coverage(durations), counted.uncovered("flops"), first_runs)


def select_steps(trace: Trace, steps: Sequence[int] | None = None) -> tuple[int, tuple[int, ...]]:
    """The structure and the steps to look at; see `profile`.

    Raises:
        TraceError: as `profile`.
    """
    if steps is None:
        return trace.main_structure, tuple(trace.steps_of(trace.main_structure))
    if not steps:
        raise TraceError("no step is selected; name at least one")
    for step in steps:
        if not 0 <= step < len(trace.steps):
            raise TraceError(f"there is no step {step}; the trace has steps 0 to {len(trace.steps) - 1}")
        if trace.steps.structure[step] < 0:
            raise TraceError(f"step {step} was not traced; traced steps are: {', '.join(map(str, trace.traced_steps))}")
    structures = {int(trace.steps.structure[step]) for step in steps}
    if len(structures) > 1:
        same = ", ".join(map(str, trace.steps_of(int(trace.steps.structure[steps[0]]))))
        raise TraceError(f"the selected steps executed different things; steps like step {steps[0]} are: {same}")
    return structures.pop(), tuple(dict.fromkeys(steps))


def _times(trace: Trace, steps: Sequence[int], group: NDArray[np.int64], groups: int) -> NDArray[np.float64]:
    """Median over the steps of each group's summed op time."""
    sums = [np.bincount(group, weights=trace.durations(step), minlength=groups)[:groups] for step in steps]
    return np.asarray(np.median(np.stack(sums), axis=0))


def _median_durations(trace: Trace, steps: Sequence[int]) -> NDArray[np.float64]:
    return np.asarray(np.median(np.stack([trace.durations(step) for step in steps]), axis=0))


def _measured(trace: Trace, steps: Sequence[int]) -> NDArray[np.float64]:
    """Durations in ns by step and execution; NaN for what was not timed or has no valid times."""
    stacked = np.stack([trace.durations(step) for step in steps]).astype(np.float64)
    valid = np.stack([trace.step_times.valid[trace.step_rows(step)] for step in steps])
    stacked[~valid | ~trace.executions.timed[trace.structure_rows(int(trace.steps.structure[steps[0]]))]] = np.nan
    return stacked


def _median(measured: NDArray[np.float64]) -> float | None:
    known = measured[~np.isnan(measured)]
    return float(np.median(known)) if len(known) else None


def _first_runs(trace: Trace, rows: slice, measured: NDArray[np.float64]) -> tuple[FirstRun, ...]:
    """Nodes whose first execution took far longer than their median; executions of a node stand in the order in which they ran."""
    node = trace.executions.node[rows]
    order = np.argsort(node, kind="stable")
    begins = np.flatnonzero(np.diff(node[order], prepend=-1))
    ends = np.append(begins[1:], len(order))
    first = measured[0, order[begins]] if len(order) else np.zeros(0)
    found = []
    for i in np.flatnonzero(first > FIRST_RUN_RATIO * _least(measured[:, order], begins)).tolist():
        members = order[begins[i] : ends[i]]
        known = measured[:, members][~np.isnan(measured[:, members])]
        median = float(np.median(known))
        if first[i] > FIRST_RUN_RATIO * max(median, 1.0):
            number = int(node[members[0]])
            found.append(FirstRun(trace.node_names[number], trace.node_ops[number], int(first[i]), median, len(known)))
    return tuple(sorted(found, key=lambda run: -run.first_ns))


def _least(measured: NDArray[np.float64], begins: NDArray[np.int64]) -> NDArray[np.float64]:
    """The shortest duration in each group of columns: no median is below it."""
    if not len(begins):
        return np.zeros(0)
    return np.asarray(np.fmin.reduceat(np.fmin.reduce(measured, axis=0), begins))


def _row(key: str, members: NDArray[np.int64], found: Costs, logical: NDArray[np.int64]) -> Row:
    sums = {"macs": int(found.macs[members].sum()), "flops": int(found.flops[members].sum()), "bytes": int(found.bytes[members].sum())}
    unknown = {what: int(np.count_nonzero(~found.known(what)[members])) for what in sums}
    whole = {what: None if unknown[what] else total for what, total in sums.items()}
    return Row(
        key=key,
        count=len(members),
        time_ns=None,
        median_ns=None,
        share=None,
        macs=whole["macs"],
        logical_macs=None if unknown["macs"] else int(logical[members].sum()),
        flops=whole["flops"],
        bytes=whole["bytes"],
        known_macs=sums["macs"],
        known_flops=sums["flops"],
        known_bytes=sums["bytes"],
        unknown_macs=unknown["macs"],
        unknown_flops=unknown["flops"],
        unknown_bytes=unknown["bytes"],
    )


def _with_share(row: Row, total_ns: float | None) -> Row:
    share = row.time_ns / total_ns if row.time_ns is not None and total_ns else None
    return replace(row, share=share)
