"""Roofline, memory and traffic as Vega-Lite specifications."""

from __future__ import annotations

from fathom_trace.ops import GROUPS
from fathom_trace.report.analyses import Report
from fathom_trace.report.vega import FEW_TICKS, LOG, Figure, chart, colour, dash, percent, quantity, shape, tips, words

LEAST_BYTES = 1000


def draw_roofline(report: Report) -> Figure | None:
    """Op types of every workload, and what the fastest of them attained."""
    found = report.roofline
    if not found.points:
        return None
    values = [
        {
            "workload": report.short(p.label),
            "op": p.op_type,
            "group": f"{p.group} {GROUPS[p.group]}" if p.group else "no group",
            "intensity": p.intensity,
            "speed": p.flops_per_s / 1e9,
            "share": p.share,
        }
        for p in found.points
    ]
    groups = sorted({str(v["group"]) for v in values})
    intensities = [p.intensity for p in found.points]
    ridge = found.attained_flops_per_s / found.attained_bytes_per_s
    roof = [
        {"intensity": i, "speed": min(found.attained_flops_per_s, found.attained_bytes_per_s * i) / 1e9}
        for i in sorted({min(intensities), ridge, max(intensities)})
    ]
    place = {
        "x": quantity("intensity", "FLOPs per byte", LOG, FEW_TICKS),
        "y": quantity("speed", "GFLOP/s", LOG, FEW_TICKS),
    }
    points = {
        "mark": {"type": "point", "filled": True, "opacity": 0.8},
        "encoding": {
            **place,
            "color": colour("group", groups),
            "shape": shape("group", groups),
            "size": quantity("share", None, {"range": [15, 350], "domain": [0, 1]}, legend=None),
            "tooltip": tips(workload="", op="", intensity=".3g", speed=".3g", share=".1%"),
        },
    }
    line = {"data": {"values": roof}, "mark": {"type": "line", "strokeDash": [5, 4], "color": "#8C8C8C"}, "encoding": place}
    return Figure(
        "roofline",
        "roofline",
        "Roofline: what does each op type compute for each byte, and how fast?",
        "Each point is an op type of a workload, larger with its share of the time. The broken line is the most FLOP/s and bytes/s that "
        "any of them attained, not the machine's peaks.",
        chart(values, 320, layer=[line, points]),
    )


def draw_memory(report: Report) -> Figure | None:
    """Live bytes over the step."""
    values, names = [], []
    for c in report.profiled:
        if c.memory is None or len(c.memory.times_ns) < 2 or c.memory.peak_bytes < LEAST_BYTES:
            continue
        names.append(report.short(c.label))
        first, last = float(c.memory.times_ns[0]), float(c.memory.times_ns[-1])
        for time, live in zip(c.memory.times_ns.tolist(), c.memory.live_bytes.tolist(), strict=True):
            if live >= LEAST_BYTES:
                part = round((time - first) / max(last - first, 1.0), 5)
                values.append({"workload": names[-1], "part": part, "ms": time / 1e6, "live": live / 1e6})
    if not values:
        return None
    encoding = {
        "x": percent("part", "part of the step"),
        "y": quantity("live", "live, allocated in the step (MB)", LOG, FEW_TICKS),
        "color": colour("workload", names),
        "strokeDash": dash("workload", names),
        "tooltip": tips(workload="", ms=".4g", live=".4g"),
    }
    return Figure(
        "memory",
        "memory",
        "Memory over the step: what is live?",
        "Bytes that the step itself allocated, from its first allocation to its last release; variables and inputs that were there before "
        "are not counted. Logarithmic; below 1 kB nothing is drawn.",
        chart(values, 300, mark={"type": "line", "interpolate": "step-after", "strokeWidth": 1.5}, encoding=encoding),
    )


def draw_traffic(report: Report) -> Figure | None:
    """Three times a workload, on one logarithmic axis."""
    synthetic = any(t.synthetic_input for t in report.traffic)
    parts = (f"data I/O{' (synthetic inputs)' if synthetic else ''}", "computation", "weights (modelled)")
    values = [
        {"workload": report.short(t.label), "part": part, "share": share, "ms": ns / 1e6}
        for t in report.traffic
        for part, share, ns in zip(parts, t.shares, (t.input_ns, t.computation_ns, t.exchange_ns), strict=True)
        if ns > 0
    ]
    if not values:
        return None
    order = [report.short(t.label) for t in report.traffic]
    encoding = {
        "x": quantity("ms", "time (ms)", LOG, FEW_TICKS),
        "y": words("workload", order, grid=True),
        "color": colour("part", parts),
        "shape": shape("part", parts),
        "tooltip": tips(workload="", part="", share=".2%", ms=".4g"),
    }
    return Figure(
        "traffic",
        "traffic",
        "Input and weight traffic: what would a data-parallel step wait for?",
        f"Recorded time to prepare a step's inputs, measured span, and the exchange of weights, {report.exchange}; no overlap, no latency. "
        "Logarithmic.",
        chart(values, 26 * len(order), mark={"type": "point", "filled": True, "size": 90, "opacity": 0.9}, encoding=encoding),
    )
