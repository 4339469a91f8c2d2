"""Projections against measurement: each workload captured in several ways, each way predicted from another, errors as they are.

    python -m benchmarks.predictions [WORKLOAD ...] [--modes training,inference] [--preset seminal] [--rounds 2] [--folder DIR]

Run it on a machine that does nothing else. Every capture is a process of its own; each round captures every way of every workload once,
so that a drift of the machine meets all. Captures that are already in DIR are used again. All but (c)'s are on one thread within an op.

* A/A   two identical captures: how much the median step differs for no reason
* (a)   medians of every second step predict the span of the others, and, gaps corrected for tracing, their untraced wall time
* (b)   a trace of one worker predicts the untraced step on two (inter-op 2)
* (c)   serial fractions by op type, fitted on all other workloads, predict the untraced step on two threads
* (d)   a trace in which one op type runs twice (a copy of each op, which its readers wait for) predicts the untraced step without it
* (e)   times of convolutions and products with oneDNN put into the trace without: composition only, the rest is not oneDNN's
* (f)   a step of twice the batch, each op's time in proportion to its FLOPs (its bytes, if it has none)

An error is prediction / measurement - 1, the median over the rounds; that of the traced span, with gaps as traced, stands beside it: a
wall time also holds what the client does around a step (copying its inputs, for one): where the untraced step took longer than the
traced operations span, the difference counts as that, in the prediction too. A prediction passes if its error is at
most 3% in (a), 10% in (b) to (d); `in noise` says that it is more than that, but at most twice the A/A noise, so that nothing was
shown. (e) and (f) have no limit. For what fails, the op types in which prediction and measurement differ most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from fathom_trace.costs import costs
from fathom_trace.errors import FathomError
from fathom_trace.ops import kind
from fathom_trace.store import load
from fathom_trace.tables import Allocations, DeviceSpans, Steps, StepTimes
from fathom_trace.trace import Trace
from fathom_trace.whatif import Context, Scenario, Settings, fit_scaling, from_results, parse_scenario, project
from fathom_trace.whatif.alike import with_alike_steps
from fathom_trace.workload import choose_preset
from fathom_trace.workloads import REGISTRY

DOUBLED = "__again"
"""The end of the names of copied ops."""

WAYS: dict[str, tuple[str, ...]] = {
    "base": ("--threads", "1"),
    "inter": ("--threads", "1", "--inter-threads", "2"),
    "threads": ("--threads", "2"),
    "doubled": ("--threads", "1"),
    "onednn": ("--threads", "1", "--stage", "optimized"),
    "batch": ("--threads", "1"),
}
"""How the ways of capturing differ; `doubled` and `batch` also in what is run."""

SIZES: dict[tuple[str, str], tuple[int, tuple[str, ...]]] = {
    ("alexnet", "training"): (2, ("dense=1024,1024",)),
    ("alexnet", "inference"): (8, ()),
    ("autoenc", "training"): (3000, ()),
    ("autoenc", "inference"): (12000, ()),
    ("deepq", "training"): (128, ()),
    ("deepq", "inference"): (512, ()),
    ("memnet", "training"): (6144, ()),
    ("memnet", "inference"): (16384, ()),
    ("residual", "training"): (1, ()),
    ("residual", "inference"): (2, ()),
    ("seq2seq", "training"): (16, ("bucket=0", "width=256", "vocabulary=10000")),
    ("seq2seq", "inference"): (16, ("bucket=0", "width=256", "vocabulary=10000")),
    ("speech", "training"): (4, ("frames=96", "labels=24", "units=512")),
    ("speech", "inference"): (4, ("frames=96", "labels=24", "units=1024")),
    ("vgg", "training"): (1, ("dense=1024,1024", "height=112", "width=112")),
    ("vgg", "inference"): (1, ("dense=1024,1024",)),
}
"""Samples in a step and options, on the seminal presets, with which a step takes 0.1 to 1 s on one thread of the machine they were
chosen on; dense layers are narrowed where their update would be most of a step."""

LIMITS = {"a": 0.03, "a untraced": 0.03, "b": 0.10, "c": 0.10, "d": 0.10}
NO_LIMIT = {"e": "composition only", "f": ""}
SEMINAL = "seminal"
COMPUTE = ("conv", "conv_filter_grad", "conv_input_grad", "gemm", "batched_gemm")


@dataclass(frozen=True)
class Prediction:
    """One prediction in one round, in ns: of the untraced wall time, and with gaps as traced of the traced span (of which (a) is one).

    `differences` are predicted minus measured ns by op type, greatest first.
    """

    part: str
    predicted_ns: float
    measured_ns: float
    predicted_span_ns: float = 0.0
    measured_span_ns: float = 0.0
    differences: tuple[tuple[str, float], ...] = ()

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted_ns / self.measured_ns - 1

    @property
    def span_error(self) -> float | None:
        """Relative, of the traced span."""
        return self.predicted_span_ns / self.measured_span_ns - 1 if self.measured_span_ns else None


@dataclass
class Subject:
    """A workload in a mode: its captures by way and round, and why a part could not be predicted."""

    workload: str
    mode: str
    captures: dict[tuple[str, int], Trace] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.workload} {self.mode}"


# --- capturing ------------------------------------------------------------------------------------------------------------------------


def capture(subject: Subject, way: str, file: Path, arguments: argparse.Namespace) -> None:
    """Capture into `file` in a process of its own, unless it is there."""
    if not file.exists():
        words = ["capture", subject.workload, "--mode", subject.mode, "--preset", arguments.preset, "--steps", str(arguments.steps)]
        words += [*WAYS[way], "--warmup", "2", "--memory-steps", "0", "-o", str(file), "--json"]
        batch, settings = SIZES[subject.workload, subject.mode] if arguments.preset == SEMINAL else (0, ())
        if way == "batch" and not batch:
            batch = choose_preset(REGISTRY.load(subject.workload), arguments.preset, subject.workload).batch_size[subject.mode]
        if batch:
            words += ["--batch-size", str(2 * batch if way == "batch" else batch)]
        words += [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "fathom_trace", *words]
        if way == "doubled":
            base = subject.captures.get(("base", 0))
            if base is None:
                raise FathomError(f"{subject.name}, doubled: there is no base capture to choose an op type by")
            command = [sys.executable, "-m", "benchmarks.predictions", "--double", op_to_double(base), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FathomError(f"{subject.name}, {way}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    trace = load(file)
    subject.captures[way, round_of(file)] = with_alike_steps(trace, trace.main_structure)[0]


def round_of(file: Path) -> int:
    """The round that a capture's name ends with."""
    return int(file.stem.rpartition("-")[2])


def op_to_double(trace: Trace) -> str:
    """The op type of a convolution or product (or else elementwise) with most time that has no side effects."""
    structure = trace.main_structure
    times: dict[str, float] = {}
    for node, time in zip(
        trace.executions.node[trace.structure_rows(structure)].tolist(), trace.median_durations(structure), strict=True
    ):
        times[trace.node_ops[node]] = times.get(trace.node_ops[node], 0.0) + float(time)
    compute = {op: time for op, time in times.items() if kind(op) in COMPUTE} or {
        op: time for op, time in times.items() if kind(op) == "elementwise"
    }
    return max(compute, key=lambda op: compute[op])


def capture_doubled(op: str, words: Sequence[str]) -> int:
    """Run the command line with each op of type `op` followed by a copy of itself, which all that read it wait for.

    It is put into the program's graph and its functions where the capture sets `parallel_iterations`.
    """
    from fathom_trace.capture.environment import import_tensorflow
    from fathom_trace.cli import run

    import_tensorflow("source")
    from fathom_trace.capture import lift

    serialise = lift._serialise_loops

    def with_copies(graph_def: object) -> None:
        serialise(graph_def)
        double(graph_def, op)

    lift._serialise_loops = with_copies
    return run(list(words))


def double(graph_def: object, op: str) -> int:
    """Add a copy of every node of type `op` that something reads, to a GraphDef and its functions; returns how many were added."""
    added = 0
    library = graph_def.library.function  # type: ignore[attr-defined]
    for nodes in (graph_def.node, *(f.node_def for f in library)):  # type: ignore[attr-defined]
        originals = [n for n in nodes if n.op == op]
        readers = {n.name: [m for m in nodes if any(i.split(":")[0] == n.name for i in m.input)] for n in originals}
        for original in originals:
            if not readers[original.name]:
                continue
            copy = nodes.add()
            copy.CopyFrom(original)
            copy.name = original.name + DOUBLED
            copy.input.append(f"^{original.name}")
            for reader in readers[original.name]:
                if reader.name != copy.name:
                    reader.input.append(f"^{copy.name}")
            added += 1
    return added


# --- predicting -----------------------------------------------------------------------------------------------------------------------


def part_of(trace: Trace, remainder: int) -> Trace:
    """The trace of every second traced step of its main structure, and every second pair of untraced ones.

    By pairs, since untraced steps can alternate: memnet's training steps had 7,895 and 22,328 page faults in turn, as what glibc gave
    back after one had to be mapped again in the next.
    """
    traced, untraced = trace.steps_of(trace.main_structure), np.flatnonzero(~trace.steps.traced).tolist()
    kept = sorted(traced[remainder::2] + [step for k, step in enumerate(untraced) if k // 2 % 2 == remainder])
    rows = np.concatenate([np.arange(*trace.step_rows(s).indices(len(trace.step_times))) for s in kept])
    return trace.replace(
        steps=Steps(**{key: getattr(trace.steps, key)[kept] for key in Steps.columns()}),
        step_times=StepTimes(**{key: getattr(trace.step_times, key)[rows.astype(np.int64)] for key in StepTimes.columns()}),
        allocations=Allocations.empty(),
        device_spans=DeviceSpans.empty(),
    )


def span_ns(trace: Trace) -> float:
    """Median span of the traced steps."""
    return float(np.median(trace.steps.span_ns[trace.steps.traced]))


def wall_ns(trace: Trace) -> float:
    """Median wall time of the untraced steps."""
    return float(np.median(trace.steps.client_wall_ns[~trace.steps.traced]))


def predict(trace: Trace, scenario: Scenario, measured: Trace, part: str, workers: int | None = None) -> Prediction:
    """The step of `measured`, from `trace` and a scenario."""
    projection = project(trace, scenario, Settings(workers=workers))
    traced = project(trace, scenario, Settings(workers=workers, correct_tracing=False))
    there = {o.op: o.before_ns for o in project(measured, Scenario()).ops}
    here = {o.op: o.after_ns for o in projection.ops}
    differences = {op: here.get(op, 0.0) - there.get(op, 0.0) for op in {*here, *there}}
    most = sorted(differences.items(), key=lambda item: -abs(item[1]))[:3]
    predicted = projection.makespan_ns + projection.baseline.client_ns
    return Prediction(part, predicted, wall_ns(measured), traced.makespan_ns, span_ns(measured), tuple(most))


def odd_and_even(trace: Trace) -> list[Prediction]:
    """(a): every second step predicts the others."""
    fitted, held_out = part_of(trace, 0), part_of(trace, 1)
    baseline = project(fitted, Scenario()).baseline
    return [
        Prediction("a", baseline.lanes_ns, span_ns(held_out)),
        Prediction("a untraced", baseline.corrected_ns + baseline.client_ns, wall_ns(held_out)),
    ]


def with_onednn(trace: Trace, other: Trace) -> Scenario:
    """The times that convolutions and products have in `other`, of stage optimized; matched by the source nodes they stand for."""
    structure, rows = other.main_structure, other.structure_rows(other.main_structure)
    times: dict[str, float] = {}
    source_names = [other.strings[i] for i in other.source_nodes.node_name.tolist()]
    for node, time in zip(other.executions.node[rows].tolist(), other.median_durations(structure), strict=True):
        if kind(other.node_ops[node]) in COMPUTE:
            for source in other.nodes.source[other.nodes.row_values("source", node)].tolist():
                times[source_names[source]] = times.get(source_names[source], 0.0) + float(time)
    found: dict[int, float] = {}
    rows = trace.structure_rows(trace.main_structure)
    names = [trace.node_names[n] for n in trace.executions.node[rows].tolist()]
    for row, node in zip(range(rows.start, rows.stop), trace.executions.node[rows].tolist(), strict=True):
        name = trace.node_names[node]
        if kind(trace.node_ops[node]) in COMPUTE and name in times:
            found[row] = times[name] / names.count(name)
    return from_results(trace, found, "oneDNN")


def names_in(trace: Trace, structure: int) -> list[tuple[str, tuple[int, ...]]]:
    """Node name and iteration of each execution of a structure: executions of one program in any order."""
    rows = trace.structure_rows(structure)
    pairs = zip(trace.executions.node[rows].tolist(), trace.executions.path[rows].tolist(), strict=True)
    return [(trace.node_names[node], trace.iteration(path)) for node, path in pairs]


def with_batch_of(trace: Trace, other: Trace) -> Scenario:
    """Every execution's time in proportion to its FLOPs, or bytes, in `other`, of which nothing but shapes is used."""
    here, there = trace.main_structure, other.main_structure
    mine, its = names_in(trace, here), names_in(other, there)
    if sorted(mine) != sorted(its):
        raise FathomError(f"the other batch executes something else: {len(set(mine) ^ set(its))} executions are of one only")
    at = {key: place for place, key in enumerate(its)}
    same = np.array([at[key] for key in mine], np.int64)
    a, b = costs(trace, here), costs(other, there)
    ratio = np.ones(len(mine))
    for what in ("bytes", "flops"):
        x, y = np.asarray(getattr(a, what), np.float64), np.asarray(getattr(b, what), np.float64)[same]
        usable = a.known(what) & b.known(what)[same] & (x > 0) & (y > 0)
        ratio[usable] = y[usable] / x[usable]
    first = trace.structure_rows(here).start
    durations = trace.median_durations(here) * ratio
    return from_results(trace, dict(enumerate(durations.tolist(), start=first)), "another batch")


def predictions(subject: Subject, others: Sequence[Subject], round_number: int) -> list[Prediction]:
    """Everything that can be predicted of a subject in one round; what cannot is noted in it."""
    of = {way: subject.captures[way, round_number] for way in WAYS if (way, round_number) in subject.captures}
    base = of["base"]
    found = odd_and_even(base)

    def attempt(part: str, way: str, make: object) -> None:
        try:
            if way not in of:
                raise FathomError("not captured")
            found.append(make())  # type: ignore[operator]
        except FathomError as error:
            subject.missing[part] = str(error)

    def scaled() -> Prediction:
        others_captures = [
            o.captures[way, round_number] for o in others for way in ("base", "threads") if (way, round_number) in o.captures
        ]
        if not others_captures:
            raise FathomError("needs another workload to fit on")
        return predict(base, parse_scenario(["threads:2"], Context(scaling=fit_scaling(others_captures))), of["threads"], "c")

    attempt("b", "inter", lambda: predict(base, Scenario(), of["inter"], "b", workers=2))
    attempt("c", "threads", scaled)
    attempt("d", "doubled", lambda: predict(of["doubled"], parse_scenario([f"name:*{DOUBLED}=remove"]), base, "d"))
    attempt("e", "onednn", lambda: predict(base, with_onednn(base, of["onednn"]), of["onednn"], "e"))
    attempt("f", "batch", lambda: predict(base, with_batch_of(base, of["batch"]), of["batch"], "f"))
    return found


# --- telling --------------------------------------------------------------------------------------------------------------------------


def noise_of(subject: Subject, rounds: int) -> tuple[float, float] | None:
    """Greatest relative difference of identical captures: of the median span, of the median untraced wall time."""
    bases = [subject.captures["base", r] for r in range(rounds) if ("base", r) in subject.captures]
    if len(bases) < 2:
        return None
    spans, walls = [span_ns(t) for t in bases], [wall_ns(t) for t in bases]
    return max(spans) / min(spans) - 1, max(walls) / min(walls) - 1


def verdict(part: str, error: float, limit: float | None) -> str:
    """Whether a prediction passes, and by which limit."""
    if limit is None:
        return NO_LIMIT[part]
    return "yes" if abs(error) <= LIMITS[part] else "in noise" if abs(error) <= limit else "NO"


def table(
    subjects: Sequence[Subject], found: dict[str, list[list[Prediction]]], rounds: int
) -> tuple[list[str], list[dict[str, object]]]:
    """The Markdown table, and the same for JSON."""
    lines = [
        "| workload | part | step | A/A noise | error, each round | median error | of the traced span | limit | passes |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    records: list[dict[str, object]] = []
    for subject in subjects:
        noise = noise_of(subject, rounds)
        for part in (*LIMITS, *NO_LIMIT):
            each = [p for one in found[subject.name] for p in one if p.part == part]
            if not each:
                lines.append(f"| {subject.name} | {part} | | | | | | | {subject.missing.get(part, 'not captured')} |")
                continue
            errors = [p.error for p in each]
            own_noise = None if noise is None else noise[0] if part == "a" else noise[1]
            limit = max(LIMITS[part], 2 * (own_noise or 0.0)) if part in LIMITS else None
            error = statistics.median(errors)
            passes = verdict(part, error, limit)
            of_spans = [e for p in each if (e := p.span_error) is not None]
            of_span = f"{statistics.median(of_spans):+.1%}" if of_spans else "-"
            step = statistics.median(p.measured_ns for p in each) / 1e6
            lines.append(
                f"| {subject.name} | {part} | {step:.2f} ms | {'-' if own_noise is None else f'{own_noise:.1%}'} |"
                f" {', '.join(f'{e:+.1%}' for e in errors)} | {error:+.1%} | {of_span} |"
                f" {'-' if limit is None else f'{limit:.1%}'} | {passes} |"
            )
            records.append(
                {
                    "workload": subject.workload, "mode": subject.mode, "part": part, "noise": own_noise, "median_error": error,
                    "limit": limit, "passes": passes, "rounds": [asdict(p) | {"error": p.error, "span_error": p.span_error} for p in each],
                }
            )  # fmt: skip
            if passes == "NO":
                worst = ", ".join(f"{op} {difference / 1e6:+.2f} ms" for op, difference in each[-1].differences)
                lines.append(f"| | | | | {'most in: ' + worst if worst else ''} | | | | |")
    return lines, records


def main() -> int:
    """Capture, predict, print; 1 when a capture failed or a prediction with a limit does not pass."""
    if sys.argv[1:2] == ["--double"]:
        return capture_doubled(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", help="all by default")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--preset", default=SEMINAL, help="seminal is made small enough for steps of 0.1 to 1 s; tiny is for trying")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2, help="at least 2, for the A/A noise")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"which of {', '.join(WAYS)}; base is needed")
    parser.add_argument("--folder", help="where captures are kept and used again (default: a temporary one)")
    parser.add_argument("-o", "--output", help="write the figures as JSON")
    arguments = parser.parse_args()
    subjects = [Subject(w, mode) for w in arguments.workloads or REGISTRY.names() for mode in arguments.modes.split(",")]
    ways = [way for way in WAYS if way in arguments.ways.split(",")]
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for round_number in range(arguments.rounds):
            for way in ways:
                for subject in subjects:
                    file = folder / f"{subject.workload}-{subject.mode}-{arguments.preset}-{way}-{round_number}.h5"
                    print(f"{subject.name}: {way}, round {round_number + 1}", file=sys.stderr, flush=True)
                    try:
                        capture(subject, way, file, arguments)
                    except FathomError as error:
                        failed.append(str(error))
                        print(f"FAILED {error}", file=sys.stderr, flush=True)
    found: dict[str, list[list[Prediction]]] = {}
    for subject in subjects:
        others = [o for o in subjects if o.workload != subject.workload]
        rounds = [r for r in range(arguments.rounds) if ("base", r) in subject.captures]
        found[subject.name] = [predictions(subject, others, r) for r in rounds]
    lines, records = table(subjects, found, arguments.rounds)
    print("\n".join(lines))
    for text in failed:
        print(f"FAILED {text}")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps({"preset": arguments.preset, "predictions": records, "failed": failed}, indent=1))
    return 1 if failed or any(r["passes"] == "NO" for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
