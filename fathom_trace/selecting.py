"""A part of a trace: the executions of a phase, layer, device, of some steps, or of a span of time, as a `Trace` of its own.

In the part nothing is renumbered. What was not chosen stays as executions of the kind *outside*: they have no time and no cost and count
nowhere, but their tensors still give shapes and dtypes to what reads them, and dependencies lead through them. So phases, layers, costs
and loop nests of what was chosen are those that it has in the whole, and results that a simulator finds for the part are of the whole's
executions.

Phases, layers and devices are named as in what-if scenarios (`whatif.selection`): a name, or a glob. What TensorFlow runs as several
executions for one convolution (one between SpaceToBatchND and BatchToSpaceND) is chosen as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables
from fathom_trace.costs import costs
from fathom_trace.errors import OptionError, ScenarioError, TraceError
from fathom_trace.loops import layers
from fathom_trace.trace import Trace
from fathom_trace.units import format_count, format_ns, format_share, parse_duration_ns
from fathom_trace.whatif.selection import Executed, Selection, TraceLabels

Mask = NDArray[np.bool_]
Span = tuple[float | None, float | None]
"""From (included) and to (excluded) in ns; None where it is open."""


@dataclass(frozen=True)
class Choice:
    """What to select: all that is given must hold. `time_ns` is when executions began, after their step's first one began.

    Without `steps`, it is of the steps that executed what most steps did.
    """

    phase: str = ""
    layer: str = ""
    device: str = ""
    steps: tuple[int, ...] = ()
    time_ns: Span | None = None

    def __bool__(self) -> bool:
        """Whether anything is to be selected at all."""
        return bool(self.selections or self.steps or self.time_ns)

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The labels that executions must have."""
        given = (("phase", self.phase), ("layer", self.layer), ("device", self.device))
        return tuple(Selection(by, pattern) for by, pattern in given if pattern)

    def __str__(self) -> str:
        """As reports have it: `phase:forward, layer:conv*, step 2, began in 0 ns..10.0 ms`."""
        found = [str(s) for s in self.selections]
        if self.steps:
            found.append(("step " if len(self.steps) == 1 else "steps ") + ", ".join(map(str, self.steps)))
        if self.time_ns:
            found.append(f"began in {_span_text(self.time_ns)}")
        return ", ".join(found)


@dataclass(frozen=True)
class Share:
    """How much of a whole step was chosen: executions, op time (ns, median over the steps) and MACs, and those of the whole."""

    executions: int
    of_executions: int
    time_ns: float
    of_time_ns: float
    macs: int
    of_macs: int

    def __str__(self) -> str:
        time = f", {format_ns(self.time_ns)} of {format_ns(self.of_time_ns)} ({_share(self.time_ns, self.of_time_ns)})"
        return (
            f"{self.executions:,} of {self.of_executions:,} executions ({_share(self.executions, self.of_executions)})"
            + time * (self.of_time_ns > 0)
            + f", {format_count(self.macs)} of {format_count(self.of_macs)} MACs ({_share(self.macs, self.of_macs)})"
        )


@dataclass(frozen=True, eq=False)
class Part:
    """What `select` chose of a trace, as a trace, and how much of the whole it is."""

    trace: Trace
    choice: Choice
    share: Share

    def to_dict(self) -> dict[str, Any]:
        """For reports: what was selected, by which words, and its share."""
        words = {key: value for key, value in asdict(self.choice).items() if value}
        return {"text": str(self.choice), **words, **asdict(self.share)}

    def __str__(self) -> str:
        return f"{self.choice}: {self.share}"


def select(
    trace: Trace, *, phase: str = "", layer: str = "", device: str = "", steps: Sequence[int] = (), time_ns: Span | None = None
) -> Trace:
    """The part of a trace that is in a phase, in layers, on a device, in some steps and began in a span of time; see `part_of`."""
    return part_of(trace, Choice(phase, layer, device, tuple(steps), time_ns)).trace


def part_of(trace: Trace, choice: Choice) -> Part:
    """The part of a trace that a choice names. The whole is all that the chosen steps executed.

    Raises:
        TraceError: there is no such step, nothing of what ran is chosen (the message lists what there is), the trace has no times to
            choose by, or it is a part already.
    """
    if not trace.chosen.all():
        raise TraceError("the trace is already a part of another; select from the whole")
    finder = _Finder(trace, choice)
    chosen = finder.chosen()
    share = finder.share(chosen)
    return Part(_reduced(trace, chosen, finder.steps, bool(choice.selections or choice.time_ns), str(choice)), choice, share)


class _Finder:
    """Finds the chosen executions of the chosen steps."""

    def __init__(self, trace: Trace, choice: Choice) -> None:
        self.trace, self.choice = trace, choice
        self.steps = tuple(_checked_steps(trace, choice.steps)) if choice.steps else tuple(trace.steps_of(trace.main_structure))
        structures = {int(trace.steps.structure[s]) for s in self.steps}
        self.structures = sorted(structures) or [trace.main_structure]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """All executions of the chosen steps."""
        return np.concatenate([np.arange(r.start, r.stop) for r in map(self.trace.structure_rows, self.structures)]).astype(np.int64)

    def chosen(self) -> Mask:
        """True for each chosen execution of the trace."""
        trace, rows, labels = self.trace, self.rows, TraceLabels(self.trace)
        held: list[str] = []
        for selection in self.choice.selections:
            among = Executed(0, trace.executions.node[rows].astype(np.int64), labels)
            try:
                rows = rows[selection.mask(among)]
            except ScenarioError as error:
                raise TraceError(f"{error} (among what is {' and '.join(held)})" if held else str(error)) from None
            held.append(str(selection))
        if self.choice.time_ns is not None:
            rows = self._within(rows, self.choice.time_ns)
        found = np.zeros(len(trace.executions), bool)
        found[rows] = True
        return self._whole_layers(found) if self.choice.selections or self.choice.time_ns else found

    def _within(self, rows: NDArray[np.int64], span: Span) -> NDArray[np.int64]:
        begins = self._begins()
        low, high = (-np.inf if span[0] is None else span[0]), (np.inf if span[1] is None else span[1])
        there = begins[rows]
        found = rows[(there >= low) & (there < high)]
        if not len(found):
            known = there[~np.isnan(there)]
            if not len(known):
                raise TraceError("the trace has no times, so nothing can be selected by time; name a phase or a layer instead")
            first, last = (format_ns(float(t)) for t in (known.min(), known.max()))
            raise TraceError(f"nothing of what is selected began in {_span_text(span)}; it began between {first} and {last}")
        return found

    def _begins(self) -> NDArray[np.float64]:
        """When each execution began, in ns after the step's first: the median over the chosen steps that ran it; NaN without a time."""
        trace, times = self.trace, self.trace.step_times
        found = np.full(len(trace.executions), np.nan)
        for structure in self.structures:
            rows = trace.structure_rows(structure)
            begins = []
            for step in (s for s in self.steps if trace.steps.structure[s] == structure):
                span = trace.step_rows(step)
                valid = times.valid[span] & trace.executions.timed[rows]
                first = times.start[span][valid].min(initial=np.iinfo(np.int64).max)
                begins.append(np.where(valid, times.start[span] - first, np.nan))
            if begins and len(begins[0]):
                found[rows] = _nanmedian(np.stack(begins))
        return found

    def _whole_layers(self, chosen: Mask) -> Mask:
        """The same with every execution of each logical layer of which one is chosen."""
        if "SpaceToBatchND" not in self.trace.node_ops:
            return chosen
        result = chosen.copy()
        for structure in self.structures:
            for layer in layers(self.trace, structure)[0]:
                members = list(layer.executions)
                result[members] = chosen[members].any()
        return result

    def share(self, chosen: Mask) -> Share:
        """How much of the whole is chosen."""
        time, macs = np.zeros(len(self.trace.executions)), np.zeros(len(self.trace.executions), np.int64)
        for structure in self.structures:
            rows = self.trace.structure_rows(structure)
            mine = [self.trace.durations(s) for s in self.steps if self.trace.steps.structure[s] == structure]
            time[rows] = np.median(np.stack(mine), axis=0) if mine and self.trace.has_times else 0.0
            macs[rows] = costs(self.trace, structure).macs
        return Share(
            executions=int(np.count_nonzero(chosen)),
            of_executions=len(self.rows),
            time_ns=float(time[chosen].sum()),
            of_time_ns=float(time[self.rows].sum()),
            macs=int(macs[chosen].sum()),
            of_macs=int(macs[self.rows].sum()),
        )


def _checked_steps(trace: Trace, steps: Sequence[int]) -> Iterator[int]:
    traced = ", ".join(map(str, trace.traced_steps[:12])) + ", ..." * (len(trace.traced_steps) > 12)
    for step in sorted(set(steps)):
        if not 0 <= step < len(trace.steps):
            last = (
                f"steps 0 to {len(trace.steps) - 1}, of which these are traced: {traced or 'none'}" if len(trace.steps) else "no steps"
            )
            raise TraceError(f"there is no step {step}; the trace has {last}")
        if trace.steps.structure[step] < 0:
            raise TraceError(f"step {step} was not traced; traced steps are: {traced or 'none'}")
        yield step


def _reduced(trace: Trace, chosen: Mask, steps: Sequence[int], is_partial: bool, text: str) -> Trace:
    """The trace with all but `chosen` outside, and no times of other steps."""
    ex, table, times = trace.executions, trace.steps, trace.step_times
    kept = np.zeros(len(table), bool)
    kept[list(steps)] = True
    structure = np.where(kept, table.structure, -1)
    counts = np.zeros(len(table), np.int64)
    parts: list[NDArray[np.int64]] = []
    outside: list[Mask] = []
    for step in steps:
        rows = trace.structure_rows(int(table.structure[step]))
        counts[step] = int(np.count_nonzero(chosen[rows]))
        parts.append(np.arange(trace.step_rows(step).start, trace.step_rows(step).stop))
        outside.append(~chosen[rows])
    picked = np.concatenate([np.zeros(0, np.int64), *parts])
    columns = {key: getattr(times, key)[picked] for key in times.columns()}
    columns["valid"] = columns["valid"] & ~np.concatenate([np.zeros(0, bool), *outside])
    lost = np.where(kept, table.produced - table.recorded, 0)
    return trace.replace(
        executions=_with(ex, kind=np.where(chosen, ex.kind, tables.EXECUTION_OUTSIDE), timed=ex.timed & chosen),
        steps=_with(table, structure=structure, recorded=counts, produced=counts + lost, complete=table.complete | ~kept),
        step_times=tables.StepTimes(**columns),
        allocations=_of_chosen(trace.allocations, chosen, kept, is_partial),
        device_spans=_of_chosen(trace.device_spans, chosen, kept, is_partial),
        provenance={**trace.provenance, "selection": text},
    )


def _with(table: Any, **changes: Any) -> Any:
    return type(table)(**{key: getattr(table, key) for key in table.columns()} | changes)


def _of_chosen(table: Any, chosen: Mask, steps: Mask, is_partial: bool) -> Any:
    """The rows of chosen executions in chosen steps; those of no execution only where whole steps are chosen."""
    owner = table.execution
    keep = steps[table.step] & np.where(owner >= 0, chosen[np.maximum(owner, 0)] if len(chosen) else False, not is_partial)
    return type(table)(**{key: getattr(table, key)[keep] for key in table.columns()})


def _nanmedian(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values).all(axis=0)
    result = np.full(values.shape[1], np.nan)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result


def _span_text(span: Span) -> str:
    return "..".join("" if t is None else format_ns(t) for t in span)


def _share(part: float, whole: float) -> str:
    return format_share(part / whole) if whole else "-"


def describe_selection(selection: Mapping[str, Any]) -> str:
    """What `Part.to_dict` holds, as people read it."""
    return f"{selection['text']}: {Share(**{f.name: selection[f.name] for f in fields(Share)})}"


# --- as text ----------------------------------------------------------------------------------------------------------------------


def parse_steps(text: str) -> tuple[int, ...]:
    """The steps that a text names: `2`, `0,3`, `2..5` (both included), or several of these.

    Raises:
        OptionError: it is none of that.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]) or int(match[2] or match[1]) - int(match[1]) > MOST_STEPS:
            raise OptionError(f"'{text}' is no selection of steps; write for example 2, or 0,3, or 2..5")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(sorted(set(found)))


MOST_STEPS = 100_000


def parse_span(text: str) -> Span:
    """The span of time that a text names: `10ms..20ms`, `..5ms`, `1.5s..`; the end is excluded.

    Raises:
        OptionError: it is none of that, or ends before it begins.
    """
    ends = text.split("..")
    # the dots of `..` next to a decimal point would be ambiguous, so numbers must not end in a point
    if len(ends) != 2 or not any(end.strip() for end in ends) or any(end.strip().endswith(".") for end in ends):
        raise OptionError(f"'{text}' is no span of time; write for example 10ms..20ms, or ..5ms, or 1.5s..")
    low, high = (parse_duration_ns(end) if end.strip() else None for end in ends)
    if low is not None and high is not None and high <= low:
        raise OptionError(f"the span '{text}' ends before it begins; write for example 10ms..20ms")
    return low, high


__all__ = ["Choice", "Part", "Share", "describe_selection", "parse_span", "parse_steps", "part_of", "select"]
