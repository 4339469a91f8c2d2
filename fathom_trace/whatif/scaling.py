"""How op times depend on the threads within an op: Amdahl's serial fraction of each op type, fitted from captures at several counts.

On n threads an op type takes c (s + (1 - s) / n): s is its serial fraction, c its time on one thread. The samples are the sums of its op
times in each traced step. Programs (workload, mode, preset, batch size, stage) have a c of their own and share s. With z = 1 - 1/n:

* c of a program comes from the straight line through its samples over 1/n, at n = 1; samples are divided by it;
* s is the least-squares slope of (sample - 1/n) over z, which for one program is that line's own;
* the interval is s -/+ t sigma / sqrt(sum over programs of (Szz - Sfz^2 / Sff)), f = s + (1 - s) / n: the usual one of a least-squares
  fit, linearised, that knows each c to be fitted too; sigma from the residuals, t of Student for 95% and N - programs - 1 degrees.

s below 0 (more than proportional gain) is kept as found and used as 0; s above 1 (more threads take longer) is used as found.

Short executions are not split among threads at all, and long ones pay for it once: over 14 captures of eight workloads on 1 and 2 threads,
MatMuls of less than 0.5 ms took 0.9 to 1.7 times as long on two threads, those above 10 ms 0.4 to 0.8. One fraction for both misleads, so
executions are also fitted apart by how long they take (`SIZES_NS`, on the fewest threads that their program was captured on), and that fit
is preferred: of the op type, else of its kind, else of everything of that size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.units import format_share
from fathom_trace.untrusted import whole_number
from fathom_trace.whatif.alike import with_alike_steps
from fathom_trace.whatif.recording import Bool, Float
from fathom_trace.whatif.selection import Executed

PREFIX = "threads:"
ALL = ""
"""The key of the fit over all op types together."""

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
    2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, 97.5%, for 1 to 30 degrees of freedom; beyond, it tends to 1.960 about linearly in 1 / degrees."""

SIZES_NS = (100_000, 500_000, 2_000_000, 10_000_000)
"""Executions are fitted apart below, between and above these durations."""

Samples = Sequence[tuple[int, float]]
"""(threads, time in ns) of one program, in any order."""


@dataclass(frozen=True)
class Fit:
    """The serial fraction of an op type (kind, or everything), with its 95% interval: None where the samples leave no freedom."""

    name: str
    serial: float
    low: float | None
    high: float | None
    samples: int
    programs: int
    time_ns: float
    """On one thread, mean over the programs, by the fit."""

    def factor(self, threads: int, captured_threads: int) -> float:
        """Time on `threads` over time on `captured_threads`."""
        serial = max(self.serial, 0.0)
        return (serial + (1 - serial) / threads) / (serial + (1 - serial) / captured_threads)


def fit_samples(name: str, programs: Iterable[Samples]) -> Fit | None:
    """The fit of one op type; programs whose samples are at one thread count, or take no time, say nothing. None: none says anything."""
    threads: list[Float] = []
    values: list[Float] = []
    scales: list[float] = []
    spans: list[slice] = []
    for samples in programs:
        n = np.array([count for count, _ in samples], np.float64)
        time = np.array([t for _, t in samples], np.float64)
        if len(set(n.tolist())) < 2:
            continue
        z = 1 - 1 / n
        slope = float(np.sum((z - z.mean()) * time) / np.sum((z - z.mean()) ** 2))
        scale = float(time.mean() - slope * z.mean())  # the line at z = 0, one thread
        if scale <= 0:
            continue
        begin = spans[-1].stop if spans else 0
        spans.append(slice(begin, begin + len(n)))
        threads.append(n)
        values.append(time / scale)
        scales.append(scale)
    if not threads:
        return None
    x = 1 / np.concatenate(threads)
    y, z = np.concatenate(values), 1 - x
    serial = float(np.sum(z * (y - x)) / np.sum(z * z))
    f = serial + (1 - serial) * x
    freedom = len(y) - len(scales) - 1
    low = high = None
    if freedom > 0:
        sigma = math.sqrt(float(np.sum((y - f) ** 2)) / freedom)
        information = sum(float(np.sum(z[p] ** 2) - np.sum(f[p] * z[p]) ** 2 / np.sum(f[p] ** 2)) for p in spans)
        half = student_t(freedom) * sigma / math.sqrt(information)
        low, high = serial - half, serial + half
    return Fit(name, serial, low, high, len(y), len(scales), float(np.mean(scales)))


def student_t(freedom: int) -> float:
    """Student's t for a two-sided 95% interval."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    last = len(_T_975)
    return 1.95996 + (_T_975[-1] - 1.95996) * last / freedom


@dataclass(frozen=True, eq=False)
class ScalingModel:
    """Serial fractions by op type, by kind for op types that were never seen, and over everything for kinds that were not.

    The sized ones are of executions of one size only; the key's second part counts the `SIZES_NS` that their time reaches.
    """

    ops: Mapping[str, Fit]
    kinds: Mapping[str, Fit]
    everything: Fit
    threads: tuple[int, ...]
    """The thread counts that it was fitted from."""
    sized_ops: Mapping[tuple[str, int], Fit] = field(default_factory=dict)
    sized_kinds: Mapping[tuple[str, int], Fit] = field(default_factory=dict)
    sized: Mapping[int, Fit] = field(default_factory=dict)

    def of(self, op: str, size: int | None = None) -> Fit:
        """The fit that serves an op type, or its executions of one size."""
        from fathom_trace.ops import kind

        if size is not None:
            found = self.sized_ops.get((op, size)) or self.sized_kinds.get((kind(op), size)) or self.sized.get(size)
            if found:
                return found
        return self.ops.get(op) or self.kinds.get(kind(op)) or self.everything

    def sizes(self, ops: Sequence[str], duration_ns: Float, captured_threads: int) -> NDArray[np.int64]:
        """Size of each execution, captured on any number of threads, as the fits have it: by its time on the fewest fitted ones.

        It is the size whose own fit gives a time of that size there; of several the nearest to that of the duration itself, which also
        stands where there is none.
        """
        here = sizes_of(duration_ns)
        fewest, found = self.threads[0], here.copy()
        if captured_threads == fewest:
            return found
        names, group = np.unique(np.array(ops, np.str_), return_inverse=True)
        nearest = np.full(len(here), len(SIZES_NS) + 1)
        for size in range(len(SIZES_NS) + 1):
            factors = np.array([self.of(name, size).factor(fewest, captured_threads) for name in names.tolist()])
            fits = (sizes_of(duration_ns * factors[group]) == size) & (np.abs(here - size) < nearest)
            found[fits], nearest[fits] = size, np.abs(here - size)[fits]
        return found

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "threads": list(self.threads),
            "everything": asdict(self.everything),
            "kinds": [asdict(f) for f in self.kinds.values()],
            "ops": [asdict(f) for f in self.ops.values()],
            "sizes_ns": list(SIZES_NS),
            "ops_by_size": [{**asdict(f), "size": size} for (_, size), f in self.sized_ops.items()],
        }


class _Sampled:
    """Samples by name and program of one way of grouping executions; a step's times under one name are added up."""

    def __init__(self, name: Callable[[str, int], Hashable]) -> None:
        self.name = name
        self.samples: dict[Hashable, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))

    def add(self, program: str, threads: int, times: Mapping[tuple[str, int], float]) -> None:
        """One step: time in ns by op type and size."""
        sums: dict[Hashable, float] = defaultdict(float)
        for (op, size), time_ns in times.items():
            sums[self.name(op, size)] += time_ns
        for name, time_ns in sums.items():
            self.samples[name][program].append((threads, time_ns))

    def fits(self) -> dict[Any, Fit]:
        """By name, most time first."""
        found = {}
        for name, programs in self.samples.items():
            fit = fit_samples(name[0] if isinstance(name, tuple) else str(name), programs.values())
            if fit:
                found[name] = fit
        return dict(sorted(found.items(), key=lambda item: (-item[1].time_ns, str(item[0]))))


def fit_scaling(traces: Sequence[Trace]) -> ScalingModel:
    """The model of captures at several thread counts, of one program or of several.

    Raises:
        ScenarioError: no program was captured at two thread counts, or a capture does not say at how many.
    """
    from fathom_trace.ops import kind

    counts: dict[str, set[int]] = defaultdict(set)
    sizes: dict[str, dict[str, int]] = {}
    groupings = (
        _Sampled(lambda op, _: op), _Sampled(lambda op, _: kind(op)), _Sampled(lambda _op, _size: ALL),
        _Sampled(lambda op, size: (op, size)), _Sampled(lambda op, size: (kind(op), size)), _Sampled(lambda _, size: size),
    )  # fmt: skip
    for trace in sorted(traces, key=threads_of):
        threads, program = threads_of(trace), program_of(trace)
        counts[program].add(threads)
        for times in step_times_by_op(trace, sizes.setdefault(program, {})):
            for grouping in groupings:
                grouping.add(program, threads, times)
    ops, kinds, everything, sized_ops, sized_kinds, sized = (grouping.fits() for grouping in groupings)
    if ALL not in everything:
        found = "; ".join(f"{p} at {sorted(c)}" for p, c in counts.items()) or "no capture"
        raise ScenarioError(f"no program was captured at two thread counts: {found}; capture one with --threads 1 and --threads 2")
    usable = {n for c in counts.values() if len(c) > 1 for n in c}
    return ScalingModel(ops, kinds, everything[ALL], tuple(sorted(usable)), sized_ops, sized_kinds, sized)


def threads_of(trace: Trace) -> int:
    """Threads within an op of a capture.

    Raises:
        ScenarioError: the trace does not say.
    """
    threads = trace.provenance.get("intra_threads")
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ScenarioError("the trace does not say on how many threads an op ran (intra_threads); capture it again with --threads")
    return threads


def program_of(trace: Trace) -> str:
    """What must be equal for two captures to be of one program."""
    keys = ("workload", "mode", "preset", "batch_size", "stage")
    return " ".join(str(trace.provenance.get(key) or "") for key in keys).strip() or "a program"


def sizes_of(duration_ns: Float) -> NDArray[np.int64]:
    """How many of `SIZES_NS` each duration reaches."""
    return np.searchsorted(np.array(SIZES_NS), duration_ns, side="right").astype(np.int64)


def step_times_by_op(trace: Trace, sizes: dict[str, int]) -> list[dict[tuple[str, int], float]]:
    """For each traced step of the most frequent structure, and those alike, op times in ns by op type and size.

    `sizes` holds the size of executions by node; nodes that it lacks are added, with what they take here at the median.
    """
    structure = trace.main_structure
    trace, _ = with_alike_steps(trace, structure)
    nodes = trace.executions.node[trace.structure_rows(structure)].tolist()
    for node, size in zip(nodes, sizes_of(trace.median_durations(structure)).tolist(), strict=True):
        sizes.setdefault(trace.node_names[node], size)
    keys = [(trace.node_ops[node], sizes[trace.node_names[node]]) for node in nodes]
    number = {key: i for i, key in enumerate(sorted(set(keys)))}
    group = np.array([number[key] for key in keys], np.int64)
    return [
        dict(zip(number, np.bincount(group, trace.durations(step), minlength=len(number)).tolist(), strict=True))
        for step in trace.steps_of(structure)
    ]


@dataclass(frozen=True)
class Threads:
    """The change in which ops run on another number of threads than they were captured on."""

    threads: int
    model: ScalingModel

    def __str__(self) -> str:
        return f"{PREFIX}{self.threads}"

    def note(self, among: Executed, duration_ns: Float) -> str:
        """What the times rest on, with the share of op time whose op type has no fit of its own."""
        alone = np.array([op in self.model.ops for op in among.names("op")], bool)
        whole = float(duration_ns.sum())
        share = format_share(float(duration_ns[~alone].sum()) / whole if whole > 0 else 0.0)
        fitted = ", ".join(map(str, self.model.threads))
        return f"'{self}': serial fractions fitted at {fitted} threads; {share} of the op time has that of its kind or of everything"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Scale every duration by the fit of its op type and size; gaps stay."""
        captured, ops = threads_of(among.source(f"'{self}'")), among.names("op")
        keys = list(zip(ops, self.model.sizes(ops, duration_ns, captured).tolist(), strict=True))
        factors = {key: self.model.of(*key).factor(self.threads, captured) for key in set(keys)}
        duration_ns *= np.array([factors[key] for key in keys])
        return among.chosen.copy()


def parse_threads(text: str, model: ScalingModel | None) -> Threads:
    """The change that `threads:N` describes.

    Raises:
        ScenarioError: it is malformed, or there is no model.
    """
    count = text.strip().removeprefix(PREFIX).strip()
    threads = whole_number(count, 1, 1_000_000)
    if threads is None:
        raise ScenarioError(f"'{text}': '{count}' is no number of threads; write for example threads:2")
    if model is None:
        raise ScenarioError(f"'{text}' needs captures of a program at several --threads; give them with --scaling")
    return Threads(threads, model)
