"""What the analyses need of one trace, as a few small arrays, so that many traces can be compared without holding them all.

Measured as the Fathom paper does (Adolf et al., IISWC 2016): op time is node start to all done; of five or more traced steps the first
and the last are dropped; the time of an op type is the sum over its executions. What feeds and fetches is not in the program's own graph
and is left out. What was left out is listed in `exclusions`, with its share of the op time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import TraceError, printable
from fathom_trace.memory import CLASSES, memory
from fathom_trace.ops import canonical, group, paper_name
from fathom_trace.profile import Row, profile
from fathom_trace.trace import Trace

Float = NDArray[np.float64]

OUTSIDE = frozenset({"_Arg", "_Retval", "_DeviceArg", "_DeviceRetval", "_SOURCE", "_SINK", "_Send", "_Recv", "_HostSend", "_HostRecv"})
"""Op types that a session adds around the program to feed, fetch and pass values on."""

CURVE_POINTS = 400
TINY = "tiny"


@dataclass(frozen=True)
class Exclusion:
    """Something that is in the trace and in no figure, and why; `share` of the op time, None where it has none."""

    what: str
    why: str
    share: float | None = None


@dataclass(frozen=True)
class LeftOut:
    """A file that is in no figure, and why."""

    file: str
    why: str


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Live bytes that a step allocated, at most `CURVE_POINTS` of them: the most in each interval of the step's time."""

    step: int
    times_ns: Float
    live_bytes: Float
    peak_bytes: int
    peak_ns: int
    variable_bytes: int
    allocated_bytes: int
    peak_by_role: dict[str, int]
    unpaired_bytes: int


@dataclass(frozen=True, eq=False)
class Captured:
    """One trace, measured. Arrays have one row a kept step; `op_types` are TensorFlow's names, `nodes` those of the usual structure."""

    label: str
    file: str
    provenance: dict[str, Any]
    traced_steps: int
    kept_steps: tuple[int, ...]
    """Rows of the trace's `steps`."""
    op_types: tuple[str, ...]
    type_ns: Float
    """Op time by step and op type, ns."""
    span_ns: Float
    idle_ns: Float
    """Of the span, when no op ran, ns by step."""
    untraced_ns: tuple[float, ...]
    nodes: tuple[str, ...]
    node_ns: Float
    """Op time by step and node, ns, of the kept steps that ran the most frequent structure."""
    rows: tuple[Row, ...]
    """Times and costs by op type of the usual step (the median over its kept steps)."""
    input_ns: float
    input_bytes: float
    synthetic_input: bool
    trainable_bytes: int
    variable_bytes: int
    memory: MemoryCurve | None
    exclusions: tuple[Exclusion, ...]

    @property
    def workload(self) -> str:
        """Name of the workload, or of what was captured instead."""
        return str(self.provenance.get("workload") or "program")

    @property
    def mode(self) -> str:
        """training, inference or call."""
        return str(self.provenance.get("mode") or "")

    @property
    def preset(self) -> str:
        """The workload's preset."""
        return str(self.provenance.get("preset") or "")

    @property
    def device(self) -> str:
        """CPU or GPU."""
        return str(self.provenance.get("device") or "CPU")

    @property
    def batch_size(self) -> int:
        """Samples of a step, 0 where the trace does not say."""
        return int(self.provenance.get("batch_size") or 0)

    @property
    def threads(self) -> int:
        """Threads of one op, 0 where the trace does not say."""
        return int(self.provenance.get("intra_threads") or 0)

    @cached_property
    def total_ns(self) -> float:
        """Op time of a step, mean over the kept ones."""
        return float(self.type_ns.sum(axis=1).mean()) if len(self.type_ns) else 0.0

    @cached_property
    def step_ns(self) -> float:
        """What a step takes: median wall time of untraced steps, or where there are none the median span of traced ones."""
        return float(np.median(self.untraced_ns if self.untraced_ns else self.span_ns)) if len(self.span_ns) else 0.0

    def shares(self, key: Callable[[str], str] = paper_name) -> dict[str, float]:
        """Share of the op time by `key` of the op type (the paper's names by default), largest first; times of one key are added."""
        found: dict[str, float] = {}
        for op_type, time in zip(self.op_types, self.type_ns.sum(axis=0).tolist() if len(self.type_ns) else (), strict=False):
            found[key(op_type)] = found.get(key(op_type), 0.0) + time
        whole = sum(found.values())
        return {k: t / whole for k, t in sorted(found.items(), key=lambda kt: (-kt[1], kt[0]))} if whole else {}

    def group_shares(self) -> dict[str, float]:
        """Share of the op time by the paper's groups A to G; what has no group under an empty name."""
        return self.shares(group)

    @property
    def selection(self) -> str:
        """What part of a trace it is; empty for the whole."""
        return str(self.provenance.get("selection") or "")

    @property
    def projected(self) -> str:
        """The scenario that its times are projected by; empty where they were measured."""
        about = self.provenance.get("projected")
        return str(about.get("scenario") or "a scenario") if isinstance(about, dict) else ""

    @property
    def machine(self) -> str:
        """What it ran on, in one line."""
        get = self.provenance.get
        versions = get("versions") or {}
        parts = (
            get("cpu_model") or "unknown processor",
            f"{get('cores')} cores" if get("cores") else "",
            self.device if self.device != "CPU" else "",
            f"{self.threads} threads an op" if self.threads else "",
            f"{get('inter_threads')} ops at once" if get("inter_threads") else "",
            f"TensorFlow {versions['tensorflow']}" if "tensorflow" in versions else "",
            "oneDNN on" if get("onednn") else "oneDNN off",
            f"stage {get('stage')}" if get("stage") else "",
        )
        return ", ".join(str(p) for p in parts if p)

    @property
    def setting(self) -> str:
        """Preset, batch and kept steps, in one line."""
        parts = (
            f"preset {self.preset}" if self.preset else "",
            f"batch {self.batch_size}" if self.batch_size else "",
            f"{len(self.kept_steps)} of {self.traced_steps} traced steps kept",
            f"only {self.selection}" if self.selection else "",
            f"projected, not measured: {self.projected}" if self.projected else "",
        )
        return ", ".join(p for p in parts if p)

    def to_dict(self) -> dict[str, Any]:
        """What it is and what was left out, for JSON; the figures are the analyses'."""
        return {
            "label": self.label,
            "file": self.file,
            "machine": self.machine,
            "setting": self.setting,
            "kept_steps": list(self.kept_steps),
            "total_ns": self.total_ns,
            "step_ns": self.step_ns,
            "provenance": self.provenance,
            "exclusions": [asdict(e) for e in self.exclusions],
        }


def kept(steps: Sequence[int]) -> tuple[int, ...]:
    """The steps without the first and the last, where there are at least five."""
    return tuple(steps[1:-1] if len(steps) >= 5 else steps)


def measure(trace: Trace, file: str = "", drops_ends: bool = True) -> Captured:
    """The figures of one trace; of all its steps where it `drops_ends` not.

    Raises:
        TraceError: the trace has no times.
    """
    if not trace.has_times or not trace.traced_steps:
        raise TraceError(f"{file or 'the trace'} has no times; a report needs traces of steps that ran")
    steps = kept(trace.traced_steps) if drops_ends else tuple(trace.traced_steps)
    usual = [s for s in steps if int(trace.steps.structure[s]) == trace.main_structure] or trace.steps_of(trace.main_structure)
    types = tuple(dict.fromkeys(op for op in trace.node_ops if canonical(op) not in OUTSIDE))
    number = {op: i for i, op in enumerate(types)}
    type_of = np.array([number.get(op, len(types)) for op in trace.node_ops], np.int64)
    by_type = np.zeros((len(steps), len(types) + 1))
    by_node = np.zeros((len(usual), len(trace.nodes)))
    idle = np.zeros(len(steps))
    for i, step in enumerate(steps):
        node = trace.executions.node[trace.structure_rows(int(trace.steps.structure[step]))]
        by_type[i] = np.bincount(type_of[node], trace.durations(step), len(types) + 1)
        idle[i] = float(trace.steps.span_ns[step]) - _busy_ns(trace, step)
    for i, step in enumerate(usual):
        node = trace.executions.node[trace.structure_rows(trace.main_structure)]
        by_node[i] = np.bincount(node, trace.durations(step), len(trace.nodes))
    ran = by_node.any(axis=0) & (type_of < len(types))
    untraced = trace.steps.client_wall_ns[~trace.steps.traced]
    variables, prepared = trace.variables, trace.steps
    seen = by_type[:, :-1].any(axis=0) | np.isin(
        np.arange(len(types)), type_of[trace.executions.node[trace.structure_rows(trace.main_structure)]]
    )
    return Captured(
        label=_label(trace, file),
        file=file,
        provenance=dict(trace.provenance),
        traced_steps=len(trace.traced_steps),
        kept_steps=steps,
        op_types=tuple(op for op, there in zip(types, seen.tolist(), strict=True) if there),
        type_ns=by_type[:, :-1][:, seen],
        span_ns=trace.steps.span_ns[list(steps)].astype(np.float64),
        idle_ns=np.maximum(idle, 0.0),
        untraced_ns=tuple(float(t) for t in untraced.tolist()),
        nodes=tuple(n for n, there in zip(trace.node_names, ran.tolist(), strict=True) if there),
        node_ns=by_node[:, ran],
        rows=tuple(row for row in profile(trace, steps=usual).rows if canonical(row.key) not in OUTSIDE),
        input_ns=float(np.median(prepared.input_preparation_ns[trace.steps.traced])),
        input_bytes=float(np.median(prepared.input_preparation_bytes[trace.steps.traced])),
        synthetic_input=bool(np.any(prepared.synthetic_input[trace.steps.traced])),
        trainable_bytes=int(variables.size_bytes[variables.trainable].sum()),
        variable_bytes=int(variables.size_bytes.sum()),
        memory=_memory(trace),
        exclusions=tuple(_exclusions(trace, steps, by_type)),
    )


def measure_files(
    files: Iterable[Path],
    load: Callable[[Path], Trace],
    report: Callable[[Path], None] | None = None,
    left_out: list[LeftOut] | None = None,
    drops_ends: bool = True,
) -> tuple[Captured, ...]:
    """The figures of every file, one trace in memory at a time; equal labels are told apart by what differs.

    Files without figures are put in the list `left_out`, if there is one.

    Raises:
        TraceError: a trace has no times, or nothing of what `load` selects, and there is no list for it; or none of them has figures.
        TraceFileError: a file cannot be read.
    """
    found: list[Captured] = []
    for file in files:
        if report is not None:
            report(file)
        name = printable(str(file))
        try:
            found.append(measure(load(file), name, drops_ends))
        except TraceError as error:
            if left_out is None:
                raise
            left_out.append(LeftOut(name, str(error).removeprefix(f"{name} ")))
    if not found and left_out:
        more = f"; the other {len(left_out) - 1} have no figures either" if len(left_out) > 1 else ""
        raise TraceError(f"there is nothing to report: {left_out[0].file}: {left_out[0].why}{more}")
    return tuple(told_apart(found))


def _busy_ns(trace: Trace, step: int) -> float:
    """Time in which at least one op ran."""
    rows, times = trace.step_rows(step), trace.step_times
    ok = times.valid[rows]
    start, done = times.start[rows][ok].astype(np.int64), times.done[rows][ok].astype(np.int64)
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(done[order])
    gaps = np.maximum(start[1:] - reach[:-1], 0).sum()
    return float(reach[-1] - start[0] - gaps)


def _memory(trace: Trace) -> MemoryCurve | None:
    if not len(trace.allocations):
        return None
    found = memory(trace)
    times, live = _thinned(found.times_ns, found.live_bytes)
    roles = found.peak_by_role()
    return MemoryCurve(
        step=found.step,
        times_ns=times,
        live_bytes=live,
        peak_bytes=found.peak_bytes,
        peak_ns=found.peak_ns,
        variable_bytes=found.variable_bytes,
        allocated_bytes=found.allocated_bytes,
        peak_by_role={role: roles[role] for role in CLASSES},
        unpaired_bytes=found.unpaired_bytes,
    )


def _thinned(times: NDArray[np.int64], live: NDArray[np.int64]) -> tuple[Float, Float]:
    """The curve with the highest point of each of `CURVE_POINTS` equal intervals; all of a short one. Negative is shown as 0."""
    if len(times) > CURVE_POINTS:
        place = (times - times[0]) * (CURVE_POINTS - 1) // max(int(times[-1] - times[0]), 1)
        order = np.lexsort((-live, place))
        first = order[np.flatnonzero(np.diff(place[order], prepend=-1))]
        times, live = times[first], live[first]
    return times.astype(np.float64), np.maximum(live, 0).astype(np.float64)


def _exclusions(trace: Trace, steps: Sequence[int], by_type: Float) -> Iterable[Exclusion]:
    whole = float(by_type.sum())
    dropped = len(trace.traced_steps) - len(steps)
    if dropped:
        yield Exclusion(f"{dropped} traced steps", "the first and the last, as the paper drops them")
    outside = sorted({op for op in trace.node_ops if canonical(op) in OUTSIDE})
    if outside:
        share = float(by_type[:, -1].sum()) / whole if whole else 0.0
        yield Exclusion(", ".join(outside), "feeds and fetches are not in the program's own graph", share)
    others = len({int(trace.steps.structure[s]) for s in steps}) - 1
    if others > 0:
        yield Exclusion(f"steps of {others} other structures", "left out of times by operation and of costs; in all else they count")
    invalid = sum(int(np.count_nonzero(~trace.step_times.valid[trace.step_rows(s)])) for s in steps)
    untimed = int(np.count_nonzero(~trace.executions.timed & trace.chosen))
    if not trace.chosen.all():
        yield Exclusion(f"{int(np.count_nonzero(~trace.chosen)):,} executions", f"not selected ({trace.provenance.get('selection')})")
        invalid = 0  # those outside have no times
    if invalid or untimed:
        yield Exclusion(f"{max(invalid, untimed)} executions", "they have no valid time; their time is missing from every sum")
    missing = int((trace.steps.produced - trace.steps.recorded).sum())
    if missing:
        yield Exclusion(f"{missing} executions", "they ran and were not recorded: the trace is incomplete")


def _label(trace: Trace, file: str) -> str:
    parts = (trace.provenance.get("workload"), trace.provenance.get("mode"))
    label = " ".join(str(p) for p in parts if p) or Path(file).stem or "program"
    return f"{label}, projected" if "projected" in trace.provenance else label


def told_apart(found: Sequence[Captured]) -> Iterable[Captured]:
    """The traces with labels that are unlike each other: those of equal labels carry what differs, or at last a number."""
    shared = {c.label for c in found if sum(d.label == c.label for d in found) > 1}
    used: dict[str, int] = {}
    for captured in found:
        label = captured.label
        if label in shared:
            alike = [c for c in found if c.label == label]
            fields = ("preset", "stage", "device", "batch_size", "intra_threads", "selection")
            telling = [k for k in fields if len({str(c.provenance.get(k)) for c in alike}) > 1]
            label += f" ({', '.join(_told(k, captured.provenance.get(k)) for k in telling)})" if telling else ""
        used[label] = used.get(label, 0) + 1
        yield replace(captured, label=label if used[label] == 1 else f"{label} [{used[label]}]")


def names_of(keys: Sequence[tuple[object, ...]]) -> dict[tuple[object, ...], str]:
    """A name for each key, whose first part is a workload: that, and what differs among the keys of that workload."""
    names = {}
    for key in keys:
        alike = [other for other in keys if other[0] == key[0]]
        telling = [part for k, part in enumerate(key) if k and len({other[k] for other in alike}) > 1]
        names[key] = " ".join(str(part) for part in (key[0], *telling) if part != "")
    return names


def _told(key: str, value: object) -> str:
    if key == "selection":
        return f"only {value}" if value else "whole"
    return {"batch_size": f"batch {value}", "intra_threads": f"{value} threads"}.get(key, str(value))
