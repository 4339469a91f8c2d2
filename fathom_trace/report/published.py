"""What the Fathom paper says of its workloads, beside what the traces at hand show.

Robert Adolf, Saketh Rama, Brandon Reagen, Gu-Yeon Wei, David Brooks, "Fathom: Reference Workloads for Modern Deep Learning Methods",
IISWC 2016, arXiv 1608.06581; measured there with TensorFlow 0.8 on a 4 GHz Skylake i7-6700k (and a GTX 960).

Each claim has a criterion, fixed beforehand and printed, and one of three findings. A disagreement is reported with the figures and, where
the traces themselves offer one, a reason; no criterion, workload or trace is chosen to avoid one. A claim that the traces lack something
for is not testable with them, and says what is missing. What the paper's figures show without a number in the text is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fathom_trace.report.captured import TINY, Captured
from fathom_trace.report.heat_map import BLANK, heat_map
from fathom_trace.report.parallelism import AT_ONE, groups_by_threads
from fathom_trace.report.similarity import similarity
from fathom_trace.report.skew import skew
from fathom_trace.report.stationarity import Series, stationarity
from fathom_trace.report.training_inference import training_inference
from fathom_trace.units import format_count, format_share

AGREES, DISAGREES, NOT_TESTABLE = "agrees", "disagrees", "not testable"

CONVOLUTIONAL = ("alexnet", "vgg", "residual", "deepq")
IMAGENET = ("alexnet", "vgg", "residual")
ALL = ("seq2seq", "memnet", "speech", "autoenc", "residual", "vgg", "alexnet", "deepq")

LEAST_STEPS = 20
"""Kept steps below which nothing is concluded about stationarity (the paper kept 100)."""


@dataclass(frozen=True)
class Figure:
    """One measured number and how it is printed."""

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class Judgement:
    """What the traces say to a claim. `note` explains a disagreement, or what a test lacks."""

    finding: str
    figures: tuple[Figure, ...]
    used: tuple[Captured, ...]
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """Something that the paper states, where, and what counts as agreement here."""

    name: str
    place: str
    text: str
    criterion: str
    judge: Callable[[Sequence[Captured]], Judgement]


@dataclass(frozen=True)
class Fact:
    """A claim beside its measurement."""

    name: str
    place: str
    claim: str
    criterion: str
    finding: str
    figures: tuple[Figure, ...]
    note: str
    traces: tuple[str, ...]
    machines: tuple[str, ...]

    @property
    def measured(self) -> str:
        """The figures in one line."""
        return "; ".join(f"{f.name} {f.text}".strip() for f in self.figures) or "-"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "place": self.place,
            "claim": self.claim,
            "criterion": self.criterion,
            "finding": self.finding,
            "figures": [{"name": f.name, "value": f.value, "text": f.text} for f in self.figures],
            "note": self.note,
            "traces": list(self.traces),
            "machines": list(self.machines),
        }


def facts(traces: Sequence[Captured]) -> tuple[Fact, ...]:
    """Every claim of `CLAIMS` judged by `traces`.

    Of several traces of one workload and mode the one nearest to the paper's way is taken: stage `source`, a preset other than tiny, CPU,
    most threads, most steps. A claim for which only tiny presets are there is not testable: they are no models of the paper's.
    """
    chosen = _chosen(traces)
    found = []
    for claim in CLAIMS:
        judged = claim.judge(traces if claim.place == _PARALLELISM else chosen)
        finding, note = judged.finding, judged.note
        tiny = sorted({c.workload for c in judged.used if c.preset == TINY})
        if tiny and finding != NOT_TESTABLE:
            finding, note = NOT_TESTABLE, f"only the tiny preset was captured of {', '.join(tiny)}, which is no model of the paper's"
        machines = tuple(dict.fromkeys(c.machine for c in judged.used))
        labels = tuple(c.label for c in judged.used)
        found.append(
            Fact(claim.name, claim.place, claim.text, claim.criterion, finding, judged.figures, note, labels, machines)
        )  # fmt: skip
    return tuple(found)


def _chosen(traces: Sequence[Captured]) -> list[Captured]:
    """One trace of each workload and mode."""

    def nearness(c: Captured) -> tuple[bool, bool, bool, int, int]:
        return (c.preset != TINY, c.provenance.get("stage") == "source", c.device == "CPU", c.threads, len(c.kept_steps))

    best: dict[tuple[str, str], Captured] = {}
    for c in traces:
        key = (c.workload, c.mode)
        if key not in best or nearness(c) > nearness(best[key]):
            best[key] = c
    return list(best.values())


# --- helpers ------------------------------------------------------------------------------------------------------------------------


def _training(traces: Sequence[Captured], names: Sequence[str] = ALL) -> dict[str, Captured]:
    found = {c.workload: c for c in traces if c.mode == "training"}
    return {name: found[name] for name in names if name in found}


def _missing(names: Sequence[str], there: dict[str, Captured]) -> str:
    missing = [name for name in names if name not in there]
    return f"no training trace of {', '.join(missing)}" if missing else ""


def _share(name: str, value: float) -> Figure:
    return Figure(name, value, _exact_share(value))


def _exact_share(value: float) -> str:
    return f"{100 * value:.2g}%" if 0 < value < 0.001 else format_share(value)


def _verdict(holds: bool, reason: str = "") -> dict[str, str]:
    return {"finding": AGREES} if holds else {"finding": DISAGREES, "note": reason}


def _untestable(why: str, figures: Sequence[Figure] = (), used: Sequence[Captured] = ()) -> Judgement:
    return Judgement(NOT_TESTABLE, tuple(figures), tuple(used), why)


# --- figure 1 -----------------------------------------------------------------------------------------------------------------------


def _stationary(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces)
    found = {name: stationarity(c) for name, c in there.items()}
    figures = [
        Figure(name, s.steps.variation or 0.0, f"{format_share(s.steps.variation or 0.0)} over {s.steps.steps} steps")
        for name, s in found.items()
        if s.steps.variation is not None
    ]
    enough = {name: s for name, s in found.items() if s.steps.steps >= LEAST_STEPS}
    if not enough:
        most = max((s.steps.steps for s in found.values()), default=0)
        return _untestable(
            f"at most {most} steps were kept of any workload, {LEAST_STEPS} are needed (the paper kept 100): capture with --steps 102",
            figures, list(there.values()),
        )  # fmt: skip
    unstable = [name for name, s in enough.items() if not _is_stable(s.steps)]
    note = f"not so: {', '.join(unstable)}; another process on the machine, or its clock, may have changed during the capture"
    return Judgement(figures=tuple(figures), used=tuple(there[n] for n in enough), **_verdict(not unstable, note))


def _is_stable(steps: Series) -> bool:
    moved = steps.halves is not None and abs(steps.halves - 1) > 0.05
    differs = steps.p_value is not None and steps.p_value < 0.01
    return (steps.variation or 0.0) <= 0.1 and not (moved and differs)


# --- figure 2 -----------------------------------------------------------------------------------------------------------------------


def _few_types(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces)
    if len(there) < 2:
        return _untestable(_missing(ALL, there), (), list(there.values()))
    counts = {name: skew(name, c.shares()).k90 for name, c in there.items()}
    figures = tuple(Figure(name, k, str(k)) for name, k in counts.items())
    inside = [name for name, k in counts.items() if 5 <= k <= 15]
    fewer = [name for name, k in counts.items() if k < 5]
    reason = (
        f"{len(inside)} of {len(counts)} lie in the range; fewer than five types suffice for {', '.join(fewer) or 'none'}, "
        f"so time is, if anything, more concentrated than in the paper; at most 15 hold for {sum(k <= 15 for k in counts.values())} of them"
    )
    return Judgement(figures=figures, used=tuple(there.values()), **_verdict(2 * len(inside) > len(counts), reason))


# --- figure 3 -----------------------------------------------------------------------------------------------------------------------


def _row_totals(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces)
    if not there:
        return _untestable(_missing(ALL, there))
    found = heat_map(list(there.values()))
    figures = tuple(_share(name, shown) for name, shown in zip(there, found.shown, strict=True))
    low = [f.name for f in figures if f.value < 0.9]
    return Judgement(
        figures=figures, used=tuple(there.values()), **_verdict(not low, f"many small op types: {', '.join(low)} lies below 90%")
    )


def _dominates(letter: str, names: Sequence[str]) -> Callable[[Sequence[Captured]], Judgement]:
    def judge(traces: Sequence[Captured]) -> Judgement:
        there = _training(traces, names)
        figures = tuple(_share(name, c.group_shares().get(letter, 0.0)) for name, c in there.items())
        if len(there) < len(names):
            return _untestable(_missing(names, there), figures, list(there.values()))
        others = [name for name, c in there.items() if max(c.group_shares(), key=c.group_shares().__getitem__) != letter]
        return Judgement(
            figures=figures, used=tuple(there.values()), **_verdict(not others, f"another group takes more in {', '.join(others)}")
        )

    return judge


CTC = "CTCLoss"


def _speech(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces, ["speech"])
    if not there:
        return _untestable(_missing(["speech"], there))
    captured = there["speech"]
    shares = captured.shares()
    products, ctc = shares.get("MatMul", 0.0), sum(share for name, share in shares.items() if name.startswith(CTC))
    rest = [f"{name} {_exact_share(share)}" for name, share in shares.items() if share > BLANK and name != "MatMul"]
    figures = (_share("MatMul", products), _share("CTC", ctc), Figure("both", products + ctc, format_share(products + ctc)))
    macs = format_count(sum(row.known_macs for row in captured.rows), "MAC")
    reason = (
        f"the loss is there, but takes {_exact_share(ctc)} of the op time"
        + (f"; the other op types above 1% are {', '.join(rest)}" if rest else "")
        + f". A step has {macs} of products, while CTC visits each frame with two states a label: far below a thousandth of that. "
        "Here the recurrent layer runs; in the code that the paper measured its output was not read, so it never ran"
    )
    holds = products + ctc >= 0.9 and ctc > BLANK
    return Judgement(figures=figures, used=(captured,), **_verdict(holds, reason))


def _dense_order(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces, IMAGENET)
    figures = tuple(_share(name, _dense(c)) for name, c in there.items())
    if len(there) < len(IMAGENET):
        return _untestable(_missing(IMAGENET, there), figures, list(there.values()))
    alexnet, vgg, residual = (_dense(there[name]) for name in IMAGENET)
    return Judgement(figures=figures, used=tuple(there.values()), **_verdict(alexnet > vgg > residual))


def _dense_size(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces, IMAGENET)
    figures = tuple(_share(name, _dense(c)) for name, c in there.items())
    if len(there) < len(IMAGENET):
        return _untestable(_missing(IMAGENET, there), figures, list(there.values()))
    far = [name for name, about in (("alexnet", 0.11), ("vgg", 0.07)) if not about / 1.5 <= _dense(there[name]) <= about * 1.5]
    far += ["residual"] if _dense(there["residual"]) >= 0.01 else []
    reason = (
        f"{', '.join(far)} is not near: the share depends on how fast this machine's convolutions are relative to its products, and on "
        "the batch, which the dense layers' cost hardly grows with"
    )
    return Judgement(figures=figures, used=tuple(there.values()), **_verdict(not far, reason))


def _dense(captured: Captured) -> float:
    """Share of matrix operations, which in these networks are the dense layers and their gradients."""
    return captured.group_shares().get("B", 0.0)


# --- figure 4 -----------------------------------------------------------------------------------------------------------------------


def _clusters(wanted: Sequence[str]) -> Callable[[Sequence[Captured]], Judgement]:
    def judge(traces: Sequence[Captured]) -> Judgement:
        there = _training(traces)
        lacking = [name for name in wanted if name not in there]
        if lacking or len(there) <= len(wanted):
            return _untestable(_missing(ALL, there), (), list(there.values()))
        found = similarity({name: c.shares() for name, c in there.items()})
        inside = max(found.between(a, b) for a in wanted for b in wanted)
        outside = min(found.between(a, b) for a in wanted for b in there if b not in wanted)
        figures = (
            Figure("farthest apart within", inside, f"{inside:.3f}"),
            Figure("nearest other workload", outside, f"{outside:.3f}"),
        )
        merged = ", then ".join(
            f"{'+'.join(found.labels[i] for i in sorted(m.members))} at {m.distance:.3f}" for m in found.merges[:4]
        )
        return Judgement(
            figures=figures, used=tuple(there.values()), **_verdict(found.is_cluster(wanted), f"merged here in this order: {merged}")
        )

    return judge


def _speech_apart(traces: Sequence[Captured]) -> Judgement:
    there = _training(traces)
    needed = ("speech", "seq2seq", *CONVOLUTIONAL)
    if not set(needed) <= there.keys():
        return _untestable(_missing(needed, there), (), list(there.values()))
    found = similarity({name: c.shares() for name, c in there.items()})
    apart = found.between("speech", "seq2seq")
    widest = max(found.between(a, b) for a in CONVOLUTIONAL for b in CONVOLUTIONAL)
    figures = (Figure("speech to seq2seq", apart, f"{apart:.3f}"), Figure("widest convolutional pair", widest, f"{widest:.3f}"))
    parts = [
        f"{name}: " + ", ".join(f"{op} {format_share(s)}" for op, s in list(there[name].shares().items())[:3])
        for name in ("speech", "seq2seq")
    ]
    reason = f"both spend most of their time in the same op type ({'; '.join(parts)})"
    if any(there[name].preset == "seminal" for name in ("speech", "seq2seq")):
        reason += (
            "; the preset seminal has wider layers than the paper ran (1,024 against 256 in seq2seq), so more of the time is products"
        )
    return Judgement(figures=figures, used=tuple(there.values()), **_verdict(apart > widest, reason))


# --- figure 5 -----------------------------------------------------------------------------------------------------------------------


def _training_slower(traces: Sequence[Captured]) -> Judgement:
    found = training_inference(traces)
    pairs = {pair.workload: pair for pair in found.pairs}
    figures = tuple(
        Figure(
            name,
            p.ratio,
            f"{p.ratio:.2f}x" + ("" if p.has_equal_batches else f" (batch {p.training_batch} against {p.inference_batch})"),
        )
        for name, p in pairs.items()
    )
    used = [c for c in traces if c.workload in pairs]
    if not pairs:
        return _untestable("no workload was captured in both modes")
    faster = [name for name, p in pairs.items() if p.ratio <= 1]
    return Judgement(figures=figures, used=tuple(used), **_verdict(not faster, f"not slower: {', '.join(faster)}"))


def _convolution_pays(traces: Sequence[Captured]) -> Judgement:
    found = training_inference(traces)
    pairs = {pair.workload: pair for pair in found.pairs if pair.has_equal_batches}
    convolutional = [p.ratio for name, p in pairs.items() if name in CONVOLUTIONAL]
    others = [p.ratio for name, p in pairs.items() if name not in CONVOLUTIONAL]
    used = [c for c in traces if c.workload in pairs]
    if len(convolutional) < 2 or len(others) < 2:
        return _untestable(
            "fewer than two convolutional networks and two others were captured in both modes with equal batches", (), used
        )
    one, other = sum(convolutional) / len(convolutional), sum(others) / len(others)
    figures = (
        Figure("convolutional", one, f"{one:.2f}x ({', '.join(n for n in pairs if n in CONVOLUTIONAL)})"),
        Figure("others", other, f"{other:.2f}x ({', '.join(n for n in pairs if n not in CONVOLUTIONAL)})"),
    )
    unequal = [p.workload for p in found.pairs if not p.has_equal_batches]
    reason = ", ".join(f"{name} {p.ratio:.2f}x" for name, p in sorted(pairs.items(), key=lambda kp: -kp[1].ratio))
    left = f"left out for unequal batches: {', '.join(unequal)}" if unequal else ""
    verdict = _verdict(one > other, "; ".join(t for t in (reason, left) if t))
    return Judgement(figures=figures, used=tuple(used), **{"note": left, **verdict})


# --- figure 6 -----------------------------------------------------------------------------------------------------------------------

_PARALLELISM = "figure 6"


def _optimizer_at_eight(traces: Sequence[Captured]) -> Judgement:
    there = [c for c in traces if c.workload == "deepq" and c.mode == "training"]
    figures = tuple(_share(f"{c.threads} threads:", c.group_shares().get("F", 0.0)) for c in sorted(there, key=lambda c: c.threads))
    at_eight = [c for c in there if c.threads >= 8]
    if not at_eight:
        most = max((c.threads for c in there), default=0)
        return _untestable(f"no trace with 8 threads (most: {most})", figures, there)
    share = at_eight[-1].group_shares().get("F", 0.0)
    return Judgement(figures=figures, used=tuple(there), **_verdict(0.07 / 1.5 <= share <= 0.07 * 1.5))


def _loss_visible(traces: Sequence[Captured]) -> Judgement:
    there = sorted((c for c in traces if c.workload == "seq2seq" and c.mode == "training"), key=lambda c: c.threads)
    shares = [(c, sum(s for n, s in c.shares().items() if "CrossEntropy" in n)) for c in there]
    figures = tuple(_share(f"{c.threads} threads:", share) for c, share in shares)
    if len({c.threads for c in there}) < 2:
        return _untestable("it needs traces of seq2seq with different numbers of threads", figures, there)
    return Judgement(figures=figures, used=tuple(there), **_verdict(shares[-1][1] > max(BLANK, shares[0][1])))


def _memnet_scaling(traces: Sequence[Captured]) -> Judgement:
    groups = [g for g in groups_by_threads(traces) if g.workload == "memnet"]
    there = [c for c in traces if c.workload == "memnet" and c.mode == "training"]
    if not groups:
        return _untestable("it needs traces of memnet with different numbers of threads", (), there)
    types = groups[0].op_types
    figures = tuple(Figure(t.op_type, t.speedup[-1], f"{t.speedup[-1]:.2f}x") for t in types if t.share > BLANK)
    flat = [t for t in types if t.share > BLANK and t.op_type != "Mul" and not t.op_type.startswith("Apply")]
    faster = [t.op_type for t in flat if t.speedup[-1] > AT_ONE]
    return Judgement(figures=figures, used=tuple(there), **_verdict(not faster, f"these do speed up: {', '.join(faster)}"))


CLAIMS = (
    Claim(
        "stationary", "figure 1", "the times of operations are stationary over training steps and vary little",
        f"of every workload with at least {LEAST_STEPS} kept steps: coefficient of variation of the step at most 10%, and the second half "
        "does not differ from the first by more than 5% and a rank-sum p below 0.01",
        _stationary,
    ),
    Claim(
        "few op types", "figure 2", "in most workloads 5 to 15 op types cover 90% of the time",
        "more than half of the workloads need 5 to 15 op types for 90% of the training step's op time", _few_types,
    ),
    Claim(
        "row totals", "figure 3", "the op types above 1% add up to 90 to 100% of each workload's time",
        "of every workload: the cells above 1% add up to at least 90%", _row_totals,
    ),
    Claim(
        "convolution dominates", "figure 3", "convolution dominates alexnet, vgg, residual and deepq",
        "group D (convolutions and their gradients) has the largest share of the training step in all four",
        _dominates("D", CONVOLUTIONAL),
    ),
    Claim(
        "products dominate dense nets", "figure 3", "matrix multiplication dominates the networks of dense layers",
        "group B (matrix operations) has the largest share of the training step of autoenc", _dominates("B", ["autoenc"]),
    ),
    Claim(
        "speech is products and CTC", "figure 3", "nearly all significant time of speech is matrix multiplication and the CTC loss",
        "MatMul and CTC together take at least 90% of the training step, and CTC more than 1%", _speech,
    ),
    Claim(
        "dense layers by network", "figure 3", "the dense layers' share falls from alexnet over vgg to residual",
        "share of group B in the training step: alexnet > vgg > residual", _dense_order,
    ),
    Claim(
        "dense layers' size", "figure 3", "dense layers take about 11% of alexnet, 7% of vgg and less than 1% of residual",
        "share of group B within a factor of 1.5 of 11% and 7%, and below 1%", _dense_size,
    ),
    Claim(
        "convolutional cluster", "figure 4", "the convolutional networks form one tight cluster",
        "alexnet, vgg, residual and deepq are one cluster before any other workload joins (cosine distance, centroid linkage)",
        _clusters(CONVOLUTIONAL),
    ),
    Claim(
        "ImageNet cluster", "figure 4", "of these the three ImageNet networks are closest",
        "alexnet, vgg and residual are one cluster before deepq joins", _clusters(IMAGENET),
    ),
    Claim(
        "recurrent nets apart", "figure 4", "speech and seq2seq lie far apart although both are recurrent",
        "they are farther apart (cosine distance) than any two of the four convolutional networks", _speech_apart,
    ),
    Claim(
        "training is slower", "figure 5", "training is slower than inference for every workload",
        "ratio of step times above 1 for every workload captured in both modes", _training_slower,
    ),
    Claim(
        "convolution pays more", "figure 5", "convolutional networks pay somewhat more for training",
        "mean ratio of the convolutional networks above that of the others, over pairs of equal batches", _convolution_pays,
    ),
    Claim(
        "deepq's optimizer", _PARALLELISM, "deepq's optimizer grows to about 7% at 8 threads",
        "share of group F within a factor of 1.5 of 7% at 8 threads or more", _optimizer_at_eight,
    ),
    Claim(
        "seq2seq's loss", _PARALLELISM, "seq2seq's loss becomes visible as threads are added",
        "share of cross-entropy ops above 1% with most threads, and above that with fewest", _loss_visible,
    ),
    Claim(
        "memnet's small ops", _PARALLELISM,
        "memnet's small memory operations do not speed up with threads, except elementwise multiplication and the optimizer",
        f"no op type above 1% other than these is more than {AT_ONE:g} times faster with most threads than with fewest", _memnet_scaling,
    ),
)  # fmt: skip
"""In the order of the paper."""


def to_markdown(found: Sequence[Fact], traces: Sequence[Captured]) -> str:
    """The table of facts, then what counts as agreement, and the traces with their machines."""
    machines = list(dict.fromkeys(machine for f in found for machine in f.machines))
    number = {machine: str(i) for i, machine in enumerate(machines, 1)}
    lines = ["| published | in | measured | on machine | finding |", "|---|---|---|---|---|"]
    for f in found:
        finding = f"**{f.finding}**" + (f": {f.note}" if f.note else "")
        cells = (f.claim, f.place, f.measured, ", ".join(number[m] for m in f.machines) or "-", finding)
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    lines += ["", f"{counts(found)}.", "", "What counts as agreement:", ""]
    lines += [f"* {f.claim} ({f.place}): {f.criterion}." for f in found]
    lines += ["", "| trace | measured | on machine |", "|---|---|---|"]
    lines += [f"| {_cell(c.label)} | {_cell(c.setting)} | {number.get(c.machine, '-')} |" for c in traces]
    return "\n".join([*lines, "", *(f"Machine {number[m]}: {m}." for m in machines)]) + "\n"


def counts(found: Sequence[Fact]) -> str:
    """How many claims hold, in one line."""
    agree, disagree, untested = (sum(f.finding == finding for f in found) for finding in (AGREES, DISAGREES, NOT_TESTABLE))
    return f"of {len(found)} published claims {agree} hold, {disagree} do not, {untested} cannot be tested with these traces"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
