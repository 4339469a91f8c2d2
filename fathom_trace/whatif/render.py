"""Projections and sweeps as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fathom_trace.units import format_ns, format_share
from fathom_trace.whatif.baseline import Baseline
from fathom_trace.whatif.compare import Comparison
from fathom_trace.whatif.limits import Limits, Target
from fathom_trace.whatif.projection import AMDAHL, REPLAY, UNLIMITED, Projection, workers_text
from fathom_trace.whatif.scaling import ScalingModel
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


def render_comparison(comparison: Comparison) -> str:
    """The scenarios as a table, one line each: the step after the changes, replayed, and the three speedups."""
    rows = [
        [
            s.name, str(s.executions), format_share(1 - s.untouched_share), format_ns(s.replay.after_ns),
            *(format_factor(e.speedup) for e in s.estimates), format_factor(s.replay.limit),
        ]
        for s in comparison.scenarios
    ]  # fmt: skip
    on = workers_text(comparison.workers)
    of = f" of a step that takes {format_ns(comparison.scenarios[0].replay.before_ns)} replayed on {on}" if rows else ""
    lines = [f"{comparison.title}: {len(rows)} scenario{'' if len(rows) == 1 else 's'}{of}", ""]
    lines += _table(["scenario", "executions", "op time", "then", "Amdahl", on, "unlimited", "at most"], rows)
    lines += ["", *_baseline(comparison.baseline)]
    notes = [*comparison.notes, *(f"{s.name}: {note}" for s in comparison.scenarios for note in s.notes)]
    return "\n".join(lines + _notes(notes)) + "\n"


def render_scaling(model: ScalingModel, top: int = 10) -> str:
    """The serial fractions of the `top` op types with most time, each with its 95% interval."""
    fits = [model.everything, *model.ops.values()][: top + 1]
    rows = [
        [
            fit.name or "everything",
            format_ns(fit.time_ns),
            f"{fit.serial:.3f}",
            "-" if fit.low is None or fit.high is None else f"{fit.low:.3f} to {fit.high:.3f}",
            str(fit.samples),
        ]
        for fit in fits
    ]
    lines = [f"serial fractions within an op, fitted at {', '.join(map(str, model.threads))} threads", ""]
    lines += _table(["op type", "on 1 thread", "serial", "95%", "steps"], rows)
    return "\n".join(lines) + "\n"


def render_limits(limits: Limits, top: int = 10) -> str:
    """The limits of the `top` kinds and layers, and what dominates as each kind gets faster."""
    on = workers_text(limits.workers)
    lines = [f"{limits.title}: limits, {_changed(limits.scenario)}", ""]
    lines += [f"replayed on {on}: {format_ns(limits.before_ns)}, {format_share(limits.idle_share)} of it in no op", ""]
    for noun, rows in (("kind", limits.kinds), ("layer", limits.layers)):
        if not rows:
            continue
        lines += _table(
            [noun, "executions", "time", "share", "if free: Amdahl", on, "unlimited"],
            [
                [
                    r.name,
                    str(r.executions),
                    format_ns(r.time_ns),
                    format_share(r.share),
                    *map(format_factor, (r.amdahl, r.replay, r.unlimited)),
                ]
                for r in rows[:top]
            ],
        )
        lines += [f"and {len(rows) - top} more"] if len(rows) > top else []
        lines.append("")
    lines += ["what has most of the step's time, and of the critical path's op time, as one kind gets faster"]
    moves = []
    for migration in limits.migrations[:top]:
        for k, point in enumerate(migration.points):
            before = migration.points[k - 1] if k else None
            last = k == len(migration.points) - 1
            if last or before is None or (before.kind, before.on_path) != (point.kind, point.on_path):
                on_path = f"{point.on_path} {format_share(point.on_path_share)}" if point.on_path else "-"
                most = f"{point.kind} {format_share(point.share)}"
                moves.append([migration.kind if not k else "", f"{point.factor:g}x", format_factor(point.speedup), most, on_path])
    lines += _table(["kind", "faster", "step", "most time", "on the path"], moves, left=(0, 3, 4))
    return "\n".join(lines + _notes(limits.notes)) + "\n"


def render_target(target: Target) -> str:
    """Which kinds must get faster for the target."""
    wanted = "free" if math.isinf(target.faster) else f"{target.faster:g}x faster"
    on = workers_text(target.workers)
    lines = [f"{target.title}: {format_factor(target.target)} for the whole on {on}, {_changed(target.scenario)}"]
    if not target.reached:
        lines.append(f"out of reach: with every kind {wanted} it is {format_factor(target.speedup)}")
        return "\n".join(lines) + "\n"
    count = len(target.kinds)
    tried = f"{target.tried} sets replayed"
    how = f"the fewest that do; {tried}" if target.exact else f"found greedily, fewer may do; {tried}"
    lines.append(f"{count} kind{'' if count == 1 else 's'} must be {wanted}: {', '.join(target.kinds)} ({how})")
    lines.append(f"then {format_ns(target.after_ns)} of {format_ns(target.before_ns)}: {format_factor(target.speedup)}")
    if target.alternatives:
        lines.append(f"other sets of {count} that do: {target.alternatives}")
    return "\n".join(lines) + "\n"


def _changed(scenario: str) -> str:
    return "as captured" if scenario == "nothing changed" else f"on top of {scenario}"


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
