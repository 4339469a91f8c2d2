"""The Fathom paper's six figures as Vega-Lite specifications."""

from __future__ import annotations

import re

import numpy as np

from fathom_trace.ops import GROUPS
from fathom_trace.report.analyses import Report
from fathom_trace.report.heat_map import BLANK
from fathom_trace.report.parallelism import Scaling
from fathom_trace.report.similarity import CENTROID
from fathom_trace.report.vega import COLOURS, SOLID, Figure, Spec, chart, colour, dash, percent, quantity, row_labels, tips, words

BINS = np.linspace(0.0, 2.0, 41)
MOST_RANKS = 30
STACKED_TYPES = 7
MOST_SLANTED = 9


def draw_stationarity(report: Report) -> Figure | None:
    """Figure 1: a histogram a workload, one above the other."""
    labels, values = [report.short(s.label) for s in report.stationarity], []
    for row, s in enumerate(report.stationarity):
        counts, _ = np.histogram(np.clip(s.operation_relative, BINS[0], BINS[-1]), BINS, weights=s.operation_weight)
        if len(s.relative) < 2:
            continue
        for low, high, share in zip(BINS[:-1].tolist(), BINS[1:].tolist(), counts.tolist(), strict=True):
            if share > 0:
                top = row + 1 - 0.92 * share / float(counts.max())
                values.append({"workload": labels[row], "low": low, "high": high, "share": share, "base": row + 1, "top": top})
    if not values:
        return None
    down = {"domain": [0, len(labels)], "reverse": True, "nice": False}
    encoding = {
        "x": quantity("low", "time in a step / the operation's mean", {"domain": [0, 2]}),
        "x2": {"field": "high"},
        "y": quantity("base", None, down, row_labels(labels, 0.6)),
        "y2": {"field": "top"},
        "tooltip": tips(workload="", low=".2f", high=".2f", share=".2%"),
    }
    return Figure(
        "stationarity",
        "stationarity",
        "Stationarity (figure 1): do operations take the same time in every step?",
        "A histogram per workload of the time of each operation in each kept step over that operation's own mean, weighted by time; each "
        "is scaled to its own highest bar, and what lies above 2 is counted at 2. A narrow peak at 1 is a stationary workload; one with a "
        "single kept step has none.",
        chart(values, 46 * len(labels), mark={"type": "rect", "color": COLOURS[0]}, encoding=encoding),
    )


def draw_skew(report: Report) -> Figure | None:
    """Figure 2: a curve a workload."""
    names = [report.short(s.label) for s in report.skew]
    values: list[Spec] = [
        {"workload": report.short(s.label), "rank": i, "share": share, "op": op}
        for s in report.skew
        for i, (op, share) in enumerate(zip(s.op_types, s.cumulative, strict=True), 1)
        if i <= MOST_RANKS
    ]
    if not values:
        return None
    encoding = {
        "x": quantity("rank", "op types, largest first", {"domain": [1, max(2, *(v["rank"] for v in values))]}),
        "y": percent("share", "share of op time"),
        "color": colour("workload", names),
        "strokeDash": dash("workload", names),
        "tooltip": tips(workload="", op="", rank="", share=".1%"),
    }
    curve = {"mark": {"type": "line", "point": {"size": 18}, "strokeWidth": 1.6}, "encoding": encoding}
    rule = {
        "data": {"values": [{"at": 0.9}]},
        "mark": {"type": "rule", "strokeDash": [4, 4]},
        "encoding": {"y": quantity("at", "share of op time")},
    }
    return Figure(
        "skew",
        "skew",
        "Skew (figure 2): how many op types make 90% of the time?",
        f"Running sum of the shares of op types, largest first, for the first {MOST_RANKS}; the broken rule is 90%.",
        chart(values, 300, layer=[curve, rule]),
    )


def draw_heat_map(report: Report) -> Figure | None:
    """Figure 3: op types by group against workloads."""
    heat = report.heat_map
    if not heat.op_types:
        return None
    rows = [f"{letter}  {op}" for op, letter in zip(heat.op_types, heat.groups, strict=True)]
    values = [
        {"workload": report.short(label), "op": op, "group": GROUPS[letter], "share": share, "percent": f"{100 * share:.0f}"}
        for label, cells in zip(heat.labels, heat.cells, strict=True)
        for op, letter, share in zip(rows, heat.groups, cells, strict=True)
        if share is not None
    ]
    many = len(heat.labels) > MOST_SLANTED
    place = {
        "x": words("workload", [report.short(label) for label in heat.labels], orient="top", labelAngle=-90 if many else -60),
        "y": words("op", rows),
    }
    scale = {"type": "log", "domain": [BLANK, 1], "scheme": "viridis"}
    below = {"orient": "bottom", "format": "%", "gradientLength": 180, "values": [0.01, 0.1, 1]}
    cell = {
        "mark": "rect",
        "encoding": {
            **place,
            "color": quantity("share", "share of op time (logarithmic)", scale, legend=below),
            "tooltip": tips(workload="", op="", group="", share=".1%"),
        },
    }
    on_light = {"condition": {"test": "datum.share > 0.25", "value": "#000000"}, "value": "#ffffff"}
    number: Spec = {"mark": {"type": "text", "fontSize": 10}, "encoding": {**place, "text": {"field": "percent"}, "color": on_light}}
    number["encoding"]["opacity"] = {"condition": {"test": "bandwidth('x') < 14", "value": 0}, "value": 1}
    return Figure(
        "heat_map",
        "heat_map",
        "Op types by workload (figure 3): where does the time go?",
        "Percent of each workload's true total op time; cells of 1% or less are blank. Letters are the paper's groups: "
        + "; ".join(f"{letter} {text}" for letter, text in GROUPS.items())
        + ".",
        chart(values, 17 * len(rows) + 4, layer=[cell, number]),
        least_width=140 + 14 * len(heat.labels) if many else 0,
    )


def draw_dendrogram(report: Report, linkage: str, name: str) -> Figure | None:
    """Figure 4: a merge is a bracket at its distance."""
    found = report.similarity[linkage]
    if not found.merges:
        return None
    at: dict[frozenset[int], tuple[float, float]] = {frozenset([leaf]): (float(i), 0.0) for i, leaf in enumerate(found.order)}
    lines = []
    for merge in found.merges:
        (low, near), (high, far) = at[frozenset(merge.left)], at[frozenset(merge.right)]
        sides = (" + ".join(report.short(found.labels[i]) for i in side) for side in (merge.left, merge.right))
        both = {"distance": merge.distance, "merge": " | ".join(sides)}
        lines += [
            {"x": near, "x2": merge.distance, "y": low, "y2": low, **both},
            {"x": far, "x2": merge.distance, "y": high, "y2": high, **both},
            {"x": merge.distance, "x2": merge.distance, "y": low, "y2": high, **both},
        ]
        at[merge.members] = ((low + high) / 2, merge.distance)
    labels = [report.short(found.labels[i]) for i in found.order]
    root = {"type": "sqrt", "domain": [0, max(1.0, max(m.distance for m in found.merges))]}
    down = {"domain": [-0.5, len(labels) - 0.5], "nice": False, "reverse": True}
    encoding = {
        "x": quantity("x", "cosine distance (square-root scale)", root),
        "x2": {"field": "x2"},
        "y": quantity("y", None, down, row_labels(labels, 0)),
        "y2": {"field": "y2"},
        "tooltip": tips(merge="", distance=".4f"),
    }
    how = "whose mean vectors are nearest by cosine (centroid)" if linkage == CENTROID else "that are nearest on average (average)"
    return Figure(
        name,
        "similarity",
        f"Similarity (figure 4, {linkage} linkage): which workloads spend their time alike?",
        f"Profiles by op type, under the paper's names; the two clusters {how} are merged, one pair at a time.",
        chart(lines, 26 * len(labels), mark={"type": "rule", "strokeWidth": 2, "color": COLOURS[0]}, encoding=encoding),
    )


def draw_training_inference(report: Report) -> Figure | None:
    """Figure 5: two bars a workload and device."""
    pairs = [(p, p.normalized) for p in report.training_inference.pairs if p.normalized is not None]
    if not pairs:
        return None
    values: list[Spec] = []
    for p, (training, inference) in pairs:
        batches = "" if p.has_equal_batches else f" (batch {p.training_batch} : {p.inference_batch})"
        values.append({"workload": p.label, "mode": "training", "time": training, "text": ""})
        values.append({"workload": p.label, "mode": "inference", "time": inference, "text": f"training {p.ratio:.1f}x{batches}"})
    order, modes = list(dict.fromkeys(v["workload"] for v in values)), ["training", "inference"]
    place = {
        "x": quantity("time", "step time / training on CPU", {"domain": [0, max(v["time"] for v in values)]}),
        "y": words("workload", order),
        "yOffset": {"field": "mode", "scale": {"domain": modes}},
    }
    bars = {"mark": "bar", "encoding": {**place, "color": colour("mode", modes), "tooltip": tips(workload="", mode="", time=".3f")}}
    text = {"mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 10}, "encoding": {**place, "text": {"field": "text"}}}
    return Figure(
        "training_inference",
        "training_inference",
        "Training and inference (figure 5): what does training cost?",
        "Step times (median of untraced steps) over that of training on CPU. Where batches differ, the two do different amounts of work.",
        chart(values, 38 * len(order), layer=[bars, text]),
    )


LONGEST_NAME = 100
"""Characters of a label in the name of a file."""


def draw_parallelism(found: Scaling) -> Figure:
    """Figure 6: times of op types stacked over threads, pale where extrapolated."""
    shown = [t.op_type for t in found.op_types[:STACKED_TYPES]]
    names = [*shown, *(["others"] if len(found.op_types) > len(shown) else [])]
    first, last = found.threads[0], found.threads[-1]
    beyond = [n for n, _ in found.extrapolated]
    times: dict[tuple[str, int, str], float] = {}
    for t in found.op_types:
        name = t.op_type if t.op_type in shown else "others"
        points = [(n, time, "measured") for n, time in zip(found.threads, t.time_ns, strict=True)]
        points += [(last, t.time_ns[-1], "extrapolated")] if beyond else []  # where the two areas meet
        points += [(n, t.time_ns[0] * t.serial.factor(n, first), "extrapolated") for n in beyond]
        for n, time, how in points:
            times[name, n, how] = times.get((name, n, how), 0.0) + time / 1e6
    values = [{"op": name, "threads": n, "how": how, "time": time} for (name, n, how), time in times.items()]
    encoding = {
        "x": quantity("threads", "threads of one op", {"type": "log", "base": 2}, {"values": [*found.threads, *beyond]}),
        "y": quantity("time", "op time of a step (ms)", stack="zero"),
        "color": colour("op", names),
        "tooltip": tips(op="", threads="", time=".4g", how=""),
    }

    def area(how: str, opacity: float, stroke: tuple[int, ...]) -> Spec:
        mark = {"type": "area", "opacity": opacity, "line": {"strokeDash": stroke, "strokeWidth": 1}}
        return {"transform": [{"filter": f"datum.how == '{how}'"}], "mark": mark, "encoding": encoding}

    layers = [area("measured", 0.95, SOLID), *([area("extrapolated", 0.4, (4, 3))] if beyond else [])]
    return Figure(
        "parallelism_" + re.sub(r"\W+", "_", found.label)[:LONGEST_NAME],
        "parallelism",
        f"Parallelism (figure 6): {found.label} over threads",
        f"Measured at {', '.join(map(str, found.threads))} threads (solid). Pale and broken beyond {last}: extrapolated, not measured, by "
        f"each op type's serial fraction, {found.whole.serial.method}.",
        chart(values, 280, layer=layers),
    )
