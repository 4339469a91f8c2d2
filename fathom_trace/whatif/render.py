"""Projections and sweeps as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fathom_trace.units import format_ns, format_share
from fathom_trace.whatif.baseline import Baseline
from fathom_trace.whatif.projection import AMDAHL, REPLAY, UNLIMITED, Projection, workers_text
from fathom_trace.whatif.sweep import Curve

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 40


def render(projection: Projection, top: int = 10) -> str:
    """The projection as a table of the three estimates, the baseline, and the `top` op types after the changes."""
    labels = {
        AMDAHL: "Amdahl: op times and idle, added up",
        REPLAY: f"replay on {workers_text(projection.workers)}",
        UNLIMITED: "replay on unlimited workers",
    }
    rows = [
        [labels[e.method], format_ns(e.before_ns), format_ns(e.after_ns), format_factor(e.speedup), format_factor(e.limit)]
        for e in projection.estimates
    ]
    lines = [f"{projection.title}: what if {projection.scenario}", ""]
    lines += _table(["", "now", "then", "speedup", "at most"], rows)
    lines += [f"  {text}" for text in projection.coincide]
    lines += ["", *_baseline(projection.baseline), ""]
    lines += [
        f"{s.change}: {s.executions} of {projection.executions} executions, {format_share(s.share)} of the op time"
        for s in projection.selected
    ]
    lines += [f"untouched: {format_share(projection.untouched_share)} of the op time", ""]
    lines += _table(
        ["op type", "count", "now", "share", "then", "share", "critical path: now", "then"],
        [
            [
                o.op, str(o.count), format_ns(o.before_ns), format_share(o.before_share), format_ns(o.after_ns),
                format_share(o.after_share), format_share(o.critical_before), format_share(o.critical_after),
            ]
            for o in projection.ops[:top]
        ],
    )  # fmt: skip
    return "\n".join(lines + _notes(projection.notes)) + "\n"


def render_curve(curve: Curve, unicode: bool = True) -> str:
    """The sweep as a table, one line a factor, with a bar as long as the replayed speedup (without `unicode`: of `#`)."""
    speedups = [[e.speedup for e in three] for three in curve.estimates]
    longest = max((s[1] for s in speedups if math.isfinite(s[1])), default=1.0)
    rows = [
        [f"{factor:.4g}x", *(format_factor(s) for s in three), _bar(three[1] / longest, unicode)]
        for factor, three in zip(curve.factors, speedups, strict=True)
    ]
    rows.append(["at most", *(format_factor(e.limit) for e in curve.estimates[0]), ""])
    on_top = f" on top of {curve.scenario}" if curve.scenario != "nothing changed" else ""
    lines = [f"{curve.title}: what if {curve.sweep}{on_top}", ""]
    lines += _table(["factor", "Amdahl", workers_text(curve.workers), "unlimited", ""], rows, left=(4,))
    lines += ["", *_baseline(curve.baseline)]
    return "\n".join(lines + _notes(curve.notes)) + "\n"


def format_factor(value: float) -> str:
    """A speedup: `1.40x`, `37.2x`, `1204x`, or `unbounded`."""
    if not math.isfinite(value):
        return "unbounded"
    return f"{value:.0f}x" if value >= 999.5 else f"{value:.1f}x" if value >= 99.95 else f"{value:.2f}x"


def _baseline(baseline: Baseline) -> list[str]:
    error = baseline.workers_error
    listed = f"captured on {baseline.captured_workers}" if error is None else f"{error:+.1%}"
    steps = "1 traced step"
    if baseline.steps > 1:
        steps = f"median of {baseline.steps} traced steps, {format_ns(baseline.fastest_ns)} to {format_ns(baseline.slowest_ns)}"
    lines = [
        f"measured: {format_ns(baseline.measured_ns)} ({steps})",
        f"replayed unchanged: {format_ns(baseline.lanes_ns)} on the captured lanes ({baseline.lanes_error:+.1%}),"
        f" {format_ns(baseline.workers_ns)} on {workers_text(baseline.workers)} ({listed})",
    ]
    if baseline.untraced_ns is not None:
        untraced = f"untraced: {format_ns(baseline.untraced_ns)}"
        if baseline.tracing_ns:
            untraced += (
                f"; {format_ns(baseline.tracing_ns)} an execution is taken off for tracing, which leaves"
                f" {format_ns(baseline.corrected_ns)} on the captured lanes"
            )
        lines.append(untraced)
    return lines


def _bar(part: float, unicode: bool) -> str:
    if not math.isfinite(part):
        return ""
    eighths = round(part * _BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip() if unicode else "#" * round(eighths / 8)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    lines = [header, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return [
        "  ".join(cell.ljust(w) if k in left else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    ]


def _notes(notes: Sequence[str]) -> list[str]:
    return ["", *(f"note: {note}" for note in notes)] if notes else []
