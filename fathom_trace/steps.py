"""One step of a trace as viewers and graph formats show it: its executions with times and costs, who waits for whom, what is left out.

By default that is the *median step*: the traced step of the most frequent structure whose span is nearest to the median of their spans.
Helpers (loop and branch plumbing, feeds, fetches, constants, handles, ops that hand their input on) can be left out; what waited for a
helper then waits for what the helper waited for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.costs import Costs, costs
from fathom_trace.errors import OptionError
from fathom_trace.exporter import ExportedLayer, ExportReport, Skipped
from fathom_trace.ops import canonical, is_plumbing
from fathom_trace.trace import Dependencies, Trace
from fathom_trace.untrusted import whole_number

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

MEDIAN, ALL = "median", "all"
STEP_DOC = "row of the trace's steps, or median: of the usual steps the one whose span is nearest to their median"

PASSING = frozenset(
    {
        "Const", "HostConst", "ImmutableConst", "GuaranteeConst", "VarHandleOp", "_VarHandlesOp", "Identity", "IdentityN", "RefIdentity",
        "StopGradient", "PreventGradient", "Snapshot",
    }
)  # fmt: skip
"""Op types that compute and move nothing: they hold a value or a handle, or hand their input on."""


def is_helper(op_type: str) -> bool:
    """True for plumbing (`ops.is_plumbing`) and for `PASSING`."""
    return is_plumbing(op_type) or canonical(op_type) in PASSING


@dataclass(frozen=True, eq=False)
class StepView:
    """The executions of one structure, as one step ran them. Columns have a value per execution, in the structure's order.

    `step` is None where the trace has no traced step. Times are in ns after the step's earliest valid start, `base_ns` after its origin.
    """

    trace: Trace
    structure: int
    step: int | None

    @cached_property
    def rows(self) -> slice:
        """The rows of `executions`."""
        return self.trace.structure_rows(self.structure)

    def __len__(self) -> int:
        return int(self.rows.stop) - int(self.rows.start)

    @cached_property
    def nodes(self) -> Int64:
        """The node that ran."""
        return self.trace.executions.node[self.rows].astype(np.int64)

    @cached_property
    def chosen(self) -> Mask:
        """Whether it counts: false for what is outside a selection. Of that, viewers show nothing; `bridge` leads through it."""
        return self.trace.chosen[self.rows]

    @cached_property
    def timed(self) -> Mask:
        """Whether there is a valid time."""
        if self.step is None or not self.trace.has_times:
            return np.zeros(len(self), bool)
        return self.trace.step_times.valid[self.trace.step_rows(self.step)] & self.trace.executions.timed[self.rows]

    @cached_property
    def base_ns(self) -> int:
        """The earliest valid start, in ns after the step's origin."""
        return int(self._column("start")[self.timed].min(initial=np.iinfo(np.int64).max)) if self.timed.any() else 0

    @cached_property
    def origin_unix_ns(self) -> int:
        """The Unix time of 0, in ns; 0 where the trace does not say."""
        origin = int(self.trace.steps.origin_ns[self.step]) if self.step is not None else 0
        return origin + self.base_ns if origin else 0

    def _column(self, name: str) -> Int64:
        if self.step is None or not len(self.trace.step_times):
            return np.zeros(len(self), np.int64)
        return np.asarray(getattr(self.trace.step_times, name)[self.trace.step_rows(self.step)], np.int64)

    def times_ns(self, name: str) -> Int64:
        """`scheduled`, `start`, `end` or `done`; 0 where not timed. What precedes the earliest start (`scheduled` may) is negative."""
        return np.where(self.timed, self._column(name) - self.base_ns, 0)

    @cached_property
    def start_ns(self) -> Int64:
        """Node began."""
        return self.times_ns("start")

    @cached_property
    def duration_ns(self) -> Int64:
        """Op time, start to done; 0 where not timed."""
        return np.where(self.timed, self._column("done") - self._column("start"), 0)

    @cached_property
    def lane(self) -> Int64:
        """Worker it ran on."""
        return self._column("lane")

    @cached_property
    def costs(self) -> Costs:
        """MACs, FLOPs and bytes."""
        return costs(self.trace, self.structure)

    @cached_property
    def dependencies(self) -> Dependencies:
        """Who each waited for, as local numbers."""
        return self.trace.dependencies(self.structure)

    @cached_property
    def helpers(self) -> Mask:
        """Whether the op is a helper."""
        of_node = np.array([is_helper(op) for op in self.trace.node_ops], bool)
        return np.asarray(of_node[self.trace.executions.node[self.rows]])

    @cached_property
    def iterations(self) -> tuple[Int64, list[str]]:
        """Iteration numbers of the loops around, outermost first: `2` or `2.0`; empty outside loops. A code each, and the texts by code."""
        paths, codes = np.unique(self.trace.executions.path[self.rows], return_inverse=True)
        return codes.reshape(-1).astype(np.int64), [".".join(map(str, self.trace.iteration(p))) for p in paths.tolist()]

    @cached_property
    def output_texts(self) -> tuple[Int64, list[str]]:
        """What each put out, `float32[2,3] int32[]`: a code each, and the texts by code. Executions of one code have equal outputs."""
        tensors, offsets = self.trace.tensors, self.trace.tensor_offsets[self.rows.start : self.rows.stop + 1]
        kinds = tensors.dtype.astype(np.int64) * len(self.trace.shapes) + tensors.shape
        counts = np.diff(offsets)
        codes, texts = np.zeros(len(self), np.int64), [""]
        for position in range(int(counts.max(initial=0))):
            longer = np.flatnonzero(counts > position)
            pairs = np.stack([codes[longer], kinds[offsets[longer] + position]])
            order = np.lexsort(pairs[::-1])
            is_first = np.ones(len(longer), bool)
            is_first[1:] = np.any(pairs[:, order[1:]] != pairs[:, order[:-1]], axis=0)
            codes[longer[order]] = len(texts) - 1 + np.cumsum(is_first)
            for before, made in pairs[:, order[is_first]].T.tolist():
                dtype, shape = divmod(made, len(self.trace.shapes))
                one = f"{self.trace.strings[dtype]}[{','.join(map(str, self.trace.shapes[shape]))}]"
                texts.append(f"{texts[before]} {one}" if position else one)
        return codes, texts

    def longest_path_ns(self, duration_ns: Int64 | None = None) -> int:
        """The longest path through the dependencies, each execution weighing its op time."""
        finished = array("q")
        durations = array("q", (self.duration_ns if duration_ns is None else duration_ns).astype(np.int64).tobytes())
        for duration, before in zip(durations, self.dependencies.lists(), strict=True):
            finished.append(duration + max([finished[p] for p in before], default=0))
        return max(finished, default=0)


def view_steps(trace: Trace, step: str, owner: str, allow_all: bool = False) -> list[StepView]:
    """The view of the step that an exporter's option `step` asks for; of every traced step with `all`, where that is allowed.

    Raises:
        TraceError: the trace has no executions.
        OptionError: there is no such step, or it was not traced.
    """
    if step == MEDIAN:
        return [_median_view(trace)]
    if step == ALL and allow_all:
        return [StepView(trace, int(trace.steps.structure[s]), s) for s in trace.traced_steps] or [_median_view(trace)]
    traced = ", ".join(map(str, trace.traced_steps[:12])) + ", ..." * (len(trace.traced_steps) > 12)
    number = whole_number(step, 0, len(trace.steps))
    if number is None or number not in trace.traced_steps:
        words = "median, all or" if allow_all else "median or"
        raise OptionError(f"option 'step' of {owner} is '{step}'; it takes {words} a traced step: {traced or 'this trace has none'}")
    return [StepView(trace, int(trace.steps.structure[number]), number)]


def _median_view(trace: Trace) -> StepView:
    structure = trace.main_structure
    steps = trace.steps_of(structure)
    if not steps:
        return StepView(trace, structure, None)
    spans = trace.steps.span_ns[steps].astype(np.float64)
    return StepView(trace, structure, steps[int(np.argmin(np.abs(spans - np.median(spans))))])


MANY = 32
"""From so many dependencies on, `bridge` looks for implied ones: without that, those of a long loop's lists grow with its square."""


def bridge(depends: Dependencies, kept: Mask) -> Dependencies:
    """The dependencies among the kept executions: through those left out, transitively. Numbers stay; rows left out become empty.

    Where very many come together through what is left out, one that another of them waits for itself is not listed: it is implied.
    """
    if kept.all():
        return depends
    flat, bounds, keep = depends.producer.tolist(), depends.offsets.tolist(), kept.tolist()
    leads = kept.tolist()
    """Kept, or leading to something kept: what else is left out never needs to be looked through."""
    for i in range(len(leads) - 1, -1, -1):
        if leads[i]:
            for p in flat[bounds[i] : bounds[i + 1]]:
                leads[p] = True
    through: dict[int, set[int]] = {}
    producer: list[int] = []
    offsets = [0]
    for i, (a, b) in enumerate(pairwise(bounds)):
        found: set[int] = set()
        for p in flat[a:b] if leads[i] else ():
            if keep[p]:
                found.add(p)
            else:
                found |= through[p]
        if len(found) > MANY and not (keep[i] and all(keep[p] for p in flat[a:b])):
            found -= {q for p in found for q in producer[offsets[p] : offsets[p + 1]]}
        if keep[i]:
            producer.extend(sorted(found))
        elif leads[i]:
            through[i] = found
        offsets.append(len(producer))
    return Dependencies(np.array(offsets, np.int64), np.array(producer, np.int64))


# --- what a report says of it --------------------------------------------------------------------------------------------------------

Describe = Callable[[StepView, int, Int64], Mapping[str, Any]]
"""(view, node, its local numbers) to fields of `ExportedLayer`: `place`, `how`, `facts`, ..."""


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Which executions of a structure are not written, and why: `reasons[code - 1]`, by execution; those of code 0 are written."""

    code: NDArray[np.int32]
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, count: int, *given: tuple[str, Mask]) -> LeftOut:
        """Of `count` executions, with each reason those that it keeps out; the first reason that does counts."""
        code = np.zeros(count, np.int32)
        for number, (_, mask) in enumerate(given, start=1):
            code[mask & (code == 0)] = number
        return cls(code, tuple(reason for reason, _ in given))

    @classmethod
    def by_number(cls, count: int, reasons: Mapping[int, str]) -> LeftOut:
        """Of `count` executions, those that have a reason by number."""
        code, texts = np.zeros(count, np.int32), {text: k for k, text in enumerate(dict.fromkeys(reasons.values()), start=1)}
        code[list(reasons)] = [texts[text] for text in reasons.values()]
        return cls(code, tuple(texts))

    @property
    def written(self) -> Mask:
        """Whether each is written."""
        return np.asarray(self.code == 0)


def account(
    views: Sequence[StepView], left_out: Mapping[int, LeftOut], describe: Describe
) -> tuple[tuple[ExportedLayer, ...], tuple[Skipped, ...]]:
    """An `ExportedLayer` for each node (and structure) whose executions were written, and what was left out by op type and reason.

    `left_out` is by structure. Times are summed over the views. What is outside a selection is in neither.
    """
    layers: list[ExportedLayer] = []
    skipped: dict[tuple[str, str, bool], list[int]] = {}
    for structure, group in _by_structure(views).items():
        view = group[0]
        time = np.sum([v.duration_ns for v in group], axis=0)
        macs, known = view.costs.macs, view.costs.macs_known
        out = left_out.get(structure) or LeftOut.of(len(view))
        for members in _alike(np.flatnonzero(view.chosen & out.written), view.nodes):
            node = int(view.nodes[members[0]])
            layers.append(
                ExportedLayer(
                    name=view.trace.node_names[node],
                    executions=tuple((members + view.rows.start).tolist()),
                    macs=int(macs[members].sum()),
                    time_ns=float(time[members].sum()),
                    macs_known=bool(known[members].all()),
                    **describe(view, node, members),
                )
            )
        ops = {op: number for number, op in enumerate(dict.fromkeys(view.trace.node_ops))}
        op_of_node = np.array([ops[op] for op in view.trace.node_ops], np.int64)
        kinds = (op_of_node[view.nodes] * (len(out.reasons) + 1) + out.code) * 2 + known
        for members in _alike(np.flatnonzero(view.chosen & ~out.written), kinds):
            first = members[0]
            key = view.trace.node_ops[int(view.nodes[first])], out.reasons[int(out.code[first]) - 1], bool(known[first])
            sums = skipped.setdefault(key, [0, 0, 0])
            sums[:] = sums[0] + len(members), sums[1] + int(macs[members].sum()), sums[2] + int(time[members].sum())
    return tuple(layers), tuple(
        Skipped(op, reason, count, macs, float(time_ns), is_known)
        for (op, reason, is_known), (count, macs, time_ns) in skipped.items()
    )


def _alike(rows: Int64, key: Int64) -> Iterator[Int64]:
    """The rows of each key: keys by their first row, rows ascending."""
    order = np.argsort(key[rows], kind="stable")
    ordered = key[rows[order]]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(rows) else order
    ends = np.append(begins[1:], len(rows))
    for group in np.argsort(order[begins]).tolist():
        yield rows[order[begins[group] : ends[group]]]


def verify(views: Sequence[StepView], report: ExportReport) -> None:
    """Check that a report made by `account` holds every execution, all time and all known MACs.

    Raises:
        ExportError: it does not.
    """
    groups = _by_structure(views).values()
    report.verify(
        sum(int(np.count_nonzero(group[0].chosen)) for group in groups),
        float(sum(v.duration_ns.sum() for v in views)),
        sum(int(group[0].costs.macs.sum()) for group in groups),
    )


def notes(views: Sequence[StepView]) -> Iterable[str]:
    """What a report must say of the steps: which they are, absent times, unknown MACs."""
    trace = views[0].trace
    if not any(view.timed.any() for view in views):
        yield "the trace has no times: all of them are 0 here"
    elif len(views) == 1:
        others = len(trace.traced_steps) - 1
        yield f"step {views[0].step} of the trace" + f"; its {others} other traced steps: --set step=N" * (others > 0)
    unknown = sum(int(np.count_nonzero(~group[0].costs.macs_known)) for group in _by_structure(views).values())
    if unknown:
        yield f"the MACs of {unknown} executions are unknown and count 0 here"


def _by_structure(views: Sequence[StepView]) -> dict[int, list[StepView]]:
    groups: dict[int, list[StepView]] = {}
    for view in views:
        groups.setdefault(view.structure, []).append(view)
    return groups
