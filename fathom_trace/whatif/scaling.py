"""How op times depend on the threads within an op: Amdahl's serial fraction of each op type, fitted from captures at several counts.

On n threads an op type takes c (s + (1 - s) / n): s is its serial fraction, c its time on one thread. The samples are the sums of its op
times in each traced step. Programs (workload, mode, preset, batch size, stage) have a c of their own and share s. With z = 1 - 1/n:

* c of a program comes from the straight line through its samples over 1/n, at n = 1; samples are divided by it;
* s is the least-squares slope of (sample - 1/n) over z, which for one program is that line's own;
* the interval is s -/+ t sigma / sqrt(sum over programs of (Szz - Sfz^2 / Sff)), f = s + (1 - s) / n: the usual one of a least-squares
  fit, linearised, that knows each c to be fitted too; sigma from the residuals, t of Student for 95% and N - programs - 1 degrees.

s below 0 (more than proportional gain) is kept as found and used as 0; s above 1 (more threads take longer) is used as found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.units import format_share
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
    """Serial fractions by op type, by kind for op types that were never seen, and over everything for kinds that were not."""

    ops: Mapping[str, Fit]
    kinds: Mapping[str, Fit]
    everything: Fit
    threads: tuple[int, ...]
    """The thread counts that it was fitted from."""

    def of(self, op: str) -> Fit:
        """The fit that serves an op type."""
        from fathom_trace.ops import kind

        return self.ops.get(op) or self.kinds.get(kind(op)) or self.everything

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "threads": list(self.threads),
            "everything": asdict(self.everything),
            "kinds": [asdict(f) for f in self.kinds.values()],
            "ops": [asdict(f) for f in self.ops.values()],
        }


def fit_scaling(traces: Sequence[Trace]) -> ScalingModel:
    """The model of captures at several thread counts, of one program or of several.

    Raises:
        ScenarioError: no program was captured at two thread counts, or a capture does not say at how many.
    """
    from fathom_trace.ops import kind

    by_op: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    by_kind: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    overall: dict[str, list[tuple[int, float]]] = defaultdict(list)
    counts: dict[str, set[int]] = defaultdict(set)
    for trace in traces:
        threads, program = threads_of(trace), program_of(trace)
        counts[program].add(threads)
        for times in step_times_by_op(trace):
            kinds: dict[str, float] = defaultdict(float)
            for op, time_ns in times.items():
                by_op[op][program].append((threads, time_ns))
                kinds[kind(op)] += time_ns
            for name, time_ns in kinds.items():
                by_kind[name][program].append((threads, time_ns))
            overall[program].append((threads, sum(times.values())))
    everything = fit_samples(ALL, overall.values())
    if everything is None:
        found = "; ".join(f"{p} at {sorted(c)}" for p, c in counts.items()) or "no capture"
        raise ScenarioError(f"no program was captured at two thread counts: {found}; capture one with --threads 1 and --threads 2")
    ops = [fit for op, programs in by_op.items() if (fit := fit_samples(op, programs.values()))]
    kinds_found = [fit for name, programs in by_kind.items() if (fit := fit_samples(name, programs.values()))]
    usable = {n for c in counts.values() if len(c) > 1 for n in c}
    return ScalingModel(_by_time(ops), _by_time(kinds_found), everything, tuple(sorted(usable)))


def _by_time(fits: list[Fit]) -> dict[str, Fit]:
    return {fit.name: fit for fit in sorted(fits, key=lambda f: (-f.time_ns, f.name))}


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


def step_times_by_op(trace: Trace) -> list[dict[str, float]]:
    """For each traced step of the most frequent structure, and those alike, the op time of each op type in ns."""
    structure = trace.main_structure
    trace, _ = with_alike_steps(trace, structure)
    ops = np.array(trace.node_ops, dtype=np.str_)[trace.executions.node[trace.structure_rows(structure)]]
    names, group = np.unique(ops, return_inverse=True)
    return [
        dict(zip(names.tolist(), np.bincount(group, trace.durations(step), minlength=len(names)).tolist(), strict=True))
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
        """Scale every duration by its op type's fit; gaps stay."""
        captured = threads_of(among.source(f"'{self}'"))
        ops = among.names("op")
        factors = {op: self.model.of(op).factor(self.threads, captured) for op in set(ops)}
        duration_ns *= np.array([factors[op] for op in ops])
        return np.ones(len(among), bool)


def parse_threads(text: str, model: ScalingModel | None) -> Threads:
    """The change that `threads:N` describes.

    Raises:
        ScenarioError: it is malformed, or there is no model.
    """
    count = text.strip().removeprefix(PREFIX).strip()
    if not count.isascii() or not count.isdecimal() or not 1 <= int(count) <= 1_000_000:
        raise ScenarioError(f"'{text}': '{count}' is no number of threads; write for example threads:2")
    if model is None:
        raise ScenarioError(f"'{text}' needs captures of a program at several --threads; give them with --scaling")
    return Threads(int(count), model)
