"""The unchanged step that scenarios are compared with, and how well a replay reproduces what was measured of it.

Tracing costs time at every execution, but not between its start and its end: it lengthens the gap before and the tail from end to done.
Where untraced steps were timed too and took less than the replayed span, gaps and tails are first shortened by a fixed time an
execution, no overhead below 0, with which the replay along the captured lanes takes as long as the untraced step did. The untraced wall
time is an upper bound of the untraced span, so this takes off no more than can be shown. Op times then come without that part of theirs.

Tracing can also lengthen the ops themselves: its records lie between freed tensors, so that large tensors are not put where the last ones
were, and their pages must be mapped anew (counted on one training step of memnet: 29,000 to 36,000 page faults traced, 8,000 to 22,000
untraced). Where the overhead does not explain the difference, and every traced step ran the same, all op times are multiplied by the one
factor that does: which ops it was is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.tables import FRAME_LOOP
from fathom_trace.trace import Trace
from fathom_trace.units import format_ns
from fathom_trace.whatif.alike import with_alike_steps
from fathom_trace.whatif.amdahl import total_ns
from fathom_trace.whatif.recording import Float, Recording, record
from fathom_trace.whatif.replay import BATCH_VALUES, CAPTURED, PRIORITIES, makespans_ns, replay_lanes
from fathom_trace.whatif.scenario import Times
from fathom_trace.whatif.selection import Executed, NodeLabels, executed

NOISY = 0.1
"""A replay of the medians that misses the measured span by more than this, relatively, is remarked upon."""


@dataclass(frozen=True)
class Baseline:
    """Measured against replayed, in ns."""

    steps: int
    measured_ns: float
    """Median span of the traced steps."""
    fastest_ns: float
    slowest_ns: float
    lanes_ns: float
    """Replay of the medians along the captured lanes."""
    workers_ns: float
    """List scheduling of the medians on the workers of the projection."""
    workers: int
    captured_workers: int
    untraced_ns: float | None
    """Median wall time of the untraced steps."""
    client_ns: float
    """What that is longer than the replayed span: the client's time around a step, in no projection. 0 where it is not."""
    tracing_ns: float
    """What was taken off for tracing, as a mean over the executions; 0 where nothing was."""
    op_factor: float
    """What op times were multiplied by on top of that; 1 where overhead alone explains what tracing cost."""
    corrected_ns: float
    """Replay along the captured lanes after that."""

    @property
    def lanes_error(self) -> float:
        """Relative error of the replay along the captured lanes."""
        return self.lanes_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    @property
    def workers_error(self) -> float | None:
        """Relative error of list scheduling; None on another number of workers than captured, of which nothing was measured."""
        if self.workers != self.captured_workers:
            return None
        return self.workers_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    def to_dict(self) -> dict[str, object]:
        """For JSON: times in ns, errors as shares of one."""
        return asdict(self) | {"lanes_error": self.lanes_error, "workers_error": self.workers_error}


@dataclass(frozen=True, eq=False)
class Base:
    """A step and the settings with which scenarios of it are projected."""

    title: str
    recording: Recording
    executed: Executed
    workers: int
    priority: str
    idle_ns: float
    """Time in which no op runs on the captured lanes."""
    baseline: Baseline
    notes: tuple[str, ...]

    @property
    def unchanged(self) -> Times:
        """The times as recorded."""
        return Times(self.recording.duration_ns, self.recording.gap_ns, ())

    def totals_ns(self, scenarios: Sequence[Times]) -> Float:
        """What each scenario takes, `[3, scenarios]`: by Amdahl, replayed on the workers, replayed on unlimited workers."""
        totals = np.zeros((3, len(scenarios)))
        plain = [k for k, times in enumerate(scenarios) if times.transfers is None]
        batch = max(1, BATCH_VALUES // max(len(self.recording), 1))
        for at in range(0, len(plain), batch):
            part = plain[at : at + batch]
            duration = np.stack([scenarios[k].duration_ns for k in part])
            totals[:, part] = self._totals(self.recording, duration, np.stack([scenarios[k].gap_ns for k in part]))
        for k, times in enumerate(scenarios):
            if times.transfers is not None:
                wider = times.replayed(self.recording)
                totals[:, k] = self._totals(wider.recording, wider.duration_ns[None], wider.gap_ns[None])[:, 0]
        return totals

    def _totals(self, recording: Recording, duration_ns: Float, gap_ns: Float) -> Float:
        return np.stack(
            [
                total_ns(duration_ns, self.idle_ns),
                makespans_ns(recording, duration_ns, gap_ns, self.workers, self.priority),
                makespans_ns(recording, duration_ns, gap_ns),
            ]
        )


@dataclass(frozen=True)
class Settings:
    """How to replay: on how many workers (None: as captured), in which order, which structure (None: the most frequent)."""

    workers: int | None = None
    priority: str = CAPTURED
    structure: int | None = None
    correct_tracing: bool = True
    labels: NodeLabels | None = field(default=None, repr=False, compare=False)
    """Labels of the nodes, to select by; the trace's own by default."""


def base_of(trace: Trace, settings: Settings) -> Base:
    """The unchanged step of `trace`.

    Raises:
        ScenarioError: the trace has no times, or the settings do not fit it.
        UnknownNameError: a priority that does not exist.
    """
    if settings.structure is not None and not 0 <= settings.structure < len(trace.structures):
        raise ScenarioError(f"the trace has no structure {settings.structure}; it has {len(trace.structures)}, counted from 0")
    if settings.priority not in PRIORITIES:
        raise UnknownNameError("priority", settings.priority, PRIORITIES)
    captured_trace, alike = trace, 0
    structure = settings.structure or 0
    if settings.structure is None and len(trace.structures):
        structure = trace.main_structure
        trace, alike = with_alike_steps(trace, structure)
    measured = record(trace, structure)
    captured = captured_workers(trace, measured)
    workers = captured if settings.workers is None else settings.workers
    untraced = trace.steps.client_wall_ns[~trace.steps.traced]
    untraced_ns = float(np.median(untraced)) if len(untraced) else None
    is_whole = "selection" not in trace.provenance  # a part of a step takes less than any step, traced or not
    correct = settings.correct_tracing and untraced_ns is not None and is_whole
    ran_one_thing = len(measured.measured_spans_ns) == len(trace.traced_steps)
    recording = untraced_recording(measured, untraced_ns) if correct and untraced_ns is not None else measured
    taken_off = measured.duration_ns - recording.duration_ns + measured.gap_ns - recording.gap_ns
    op_factor = 1.0
    if correct and untraced_ns is not None and ran_one_thing:
        op_factor = operations_factor(recording, untraced_ns)
        recording = recording.with_operations(op_factor)
    lanes, corrected = replay_lanes(measured), replay_lanes(recording)
    listed = makespans_ns(measured, measured.duration_ns[None], workers=workers, priority=settings.priority)
    baseline = Baseline(
        steps=len(measured.measured_spans_ns),
        measured_ns=measured.measured_span_ns,
        fastest_ns=min(measured.measured_spans_ns),
        slowest_ns=max(measured.measured_spans_ns),
        lanes_ns=lanes.makespan_ns,
        workers_ns=float(listed[0]),
        workers=workers,
        captured_workers=captured,
        untraced_ns=untraced_ns,
        client_ns=max(0.0, untraced_ns - lanes.makespan_ns) if untraced_ns is not None and is_whole else 0.0,
        tracing_ns=float(taken_off.mean()) if len(taken_off) else 0.0,
        op_factor=op_factor,
        corrected_ns=corrected.makespan_ns,
    )
    among = replace(executed(trace, structure, settings.labels), captured=captured_trace)
    notes = tuple(_notes(trace, measured, among, workers, baseline, alike))
    return Base(_title(trace), recording, among, workers, settings.priority, corrected.idle_ns, baseline, notes)


def captured_workers(trace: Trace, recording: Recording) -> int:
    """How many workers the capture ran on: its inter-op threads, or where it does not say, how many lanes ran something."""
    threads = trace.provenance.get("inter_threads")
    if isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1:
        return threads
    return max(1, recording.lanes)


def untraced_recording(recording: Recording, span_ns: float) -> Recording:
    """The recording without what tracing cost, so that its replay along the captured lanes lasts `span_ns` (to 0.01%).

    If all overhead together does not suffice, none is left.
    """

    def over(cost_ns: float) -> float:
        return replay_lanes(recording.without_tracing(cost_ns)).makespan_ns - span_ns

    high = float((recording.dispatch_ns + recording.tail_ns).max(initial=0.0))
    above, below = over(0.0), over(high)
    if above <= 0:
        return recording
    if below >= 0:
        return recording.without_tracing(high)
    # The makespan is convex and falls.
    return recording.without_tracing(_crossing(over, (0.0, above), (high, below), 1e-4 * span_ns))


def operations_factor(recording: Recording, span_ns: float) -> float:
    """What op times must be multiplied by, so that the replay along the captured lanes lasts `span_ns` (to 0.01%); 1 where it is no longer.

    Also 1 where no factor does it.
    """

    def over(factor: float) -> float:
        return span_ns - replay_lanes(recording.with_operations(factor)).makespan_ns

    whole = over(1.0)
    if whole >= -1e-4 * span_ns:
        return 1.0
    least = over(0.0)
    if least <= 0:
        return 1.0
    return _crossing(over, (0.0, least), (1.0, whole), 1e-4 * span_ns)


def _crossing(function: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], tolerance: float) -> float:
    """Where a function that falls from above 0 to below crosses it; `low` and `high` are points (argument, value) to both sides."""
    (low_at, above), (high_at, below) = low, high
    at = low_at
    for turn in range(60):
        # Where the function is curved the chord overshoots: it takes turns with halving.
        at = low_at + (high_at - low_at) * (0.5 if turn % 2 else above / (above - below))
        value = function(at)
        if abs(value) <= tolerance:
            break
        if value > 0:
            low_at, above = at, value
        else:
            high_at, below = at, value
    return at


def _title(trace: Trace) -> str:
    parts = [trace.provenance.get(key) for key in ("workload", "mode")]
    title = " ".join(p for p in parts if isinstance(p, str) and p) or "trace"
    return f"{title}, projected" if "projected" in trace.provenance else title


def _notes(trace: Trace, recording: Recording, among: Executed, workers: int, baseline: Baseline, alike: int) -> list[str]:
    """What a reader must know about the recording before believing a projection."""
    notes = []
    if abs(baseline.lanes_error) > NOISY:
        notes.append("each step lost time in other executions, which their medians leave out; capture on a quieter machine")
    if baseline.client_ns > NOISY * baseline.lanes_ns:
        notes.append(
            f"an untraced step took {format_ns(baseline.client_ns)} longer than the traced operations span: time of the client around a"
            " step, such as handing over its inputs; no projection holds it"
        )
    if baseline.op_factor < 1:
        notes.append(
            f"untraced steps took less than the traced operations alone, so op times are multiplied by {baseline.op_factor:.3g}: tracing"
            " lengthened them, but which of them is not known"
        )
    if alike:
        notes.append(f"steps that ran the same executions with other shapes, whose times count too: {alike}")
    traced, steps = len(trace.traced_steps), len(recording.measured_spans_ns)
    if traced > steps:
        notes.append(f"traced steps that executed something else and are left out: {traced - steps} of {traced}")
    missing = int(np.count_nonzero(~recording.timed & among.chosen))
    if missing:
        notes.append(f"executions without a valid time, taken as 0: {missing} of {among.count}")
    if recording.negative_gaps:
        notes.append(
            f"executions that began before what they depend on had ended; replays let them wait for it: {recording.negative_gaps}"
        )
    if recording.lanes > workers:
        notes.append(f"the captured executions overlap on {recording.lanes} lanes; the replay has {workers} for them")
    if np.any(trace.frames.kind == FRAME_LOOP):
        notes.append("iterations of loops may overlap in the replays: tracing kept them apart, the program does not")
    return notes
