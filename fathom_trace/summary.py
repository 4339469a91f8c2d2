"""What a trace holds and whether it is true, in a few figures: `capture` prints them at the end, `info` at any time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.checks import Checks, check
from fathom_trace.ops import kind
from fathom_trace.profile import FIRST_RUN_RATIO, FirstRun, Row, profile
from fathom_trace.terminal import print_pairs, print_table
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_ns, format_share

TOP = 10
NAMES_SHOWN = 3


LARGE_ROWS = 2_000_000
"""Executions, and execution-steps, above which `info` reads them only when it is asked to."""

UNREAD_CHECKS = ("causality", "readiness", "inputs", "order of times", "references", "checksum of the file")


@dataclass(frozen=True)
class Overview:
    """Counts and times of a trace that its steps and its provenance tell, without any execution.

    Times are medians over the steps, in ns; None where there is no such step.
    """

    file: str
    size_bytes: int
    title: str
    traced_steps: int
    untraced_steps: int
    structures: int
    nodes: int
    executions: int
    """Of the structure that most steps ran."""
    traced_ns: float | None
    untraced_ns: float | None
    span_ns: float | None
    first_run_ns: float | None
    """The very first step, a warm-up; no other figure includes it."""
    recorded: int
    produced: int
    complete: bool
    is_static: bool
    """Nothing was run: the trace is what the graph alone says, without times."""

    @property
    def disturbance(self) -> float | None:
        """Traced over untraced wall time."""
        return self.traced_ns / self.untraced_ns if self.traced_ns and self.untraced_ns else None

    @property
    def first_run_ratio(self) -> float | None:
        """The very first step over the usual untraced one."""
        return self.first_run_ns / self.untraced_ns if self.first_run_ns and self.untraced_ns else None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.__dict__, "disturbance": self.disturbance, "first_run_ratio": self.first_run_ratio}

    def lines(self) -> list[tuple[str, str]]:
        """Names and values, for people."""
        if self.is_static:
            return [
                ("steps", "none: it was taken from the graph without running it, so there are no times"),
                ("executions", f"{self.executions:,} in a step, of {self.nodes:,} nodes"),
                *self.findings(),
                ("file", f"{self.file}, {format_bytes(self.size_bytes)}"),
            ]
        traced, untraced = _text(self.traced_ns, format_ns), _text(self.untraced_ns, format_ns)
        ratio = f" ({self.disturbance:.2f} x)" if self.disturbance else ""
        return [
            ("steps", f"{self.traced_steps} traced, {self.untraced_steps} untraced"),
            ("executions", f"{self.executions:,} in a step, of {self.nodes:,} nodes" + _structures_text(self.structures)),
            ("wall time", f"{traced} traced, {untraced} untraced{ratio}"),
            *([("first run", format_ns(self.first_run_ns))] if self.first_run_ns else []),
            *self.findings(),
            ("complete", f"{'yes' if self.complete else 'NO'}: {self.recorded:,} recorded of {self.produced:,}"),
            ("file", f"{self.file}, {format_bytes(self.size_bytes)}"),
        ]

    def findings(self) -> list[tuple[str, str]]:
        """What was looked for in the executions, and found."""
        return [("not checked", f"{', '.join(UNREAD_CHECKS)}: executions were not read; --full reads everything")]


@dataclass(frozen=True)
class Summary(Overview):
    """Counts and times of a trace, of all that ran, and whether it is true."""

    top_ops: tuple[Row, ...]
    first_runs: tuple[FirstRun, ...]
    opaque_calls: tuple[str, ...]
    """Nodes that ran functions which could not be looked into, or not whole: their costs are unknown. The longest first."""
    opaque_shares: tuple[float | None, ...]
    """The share of the op time of each; None without times."""
    opaque_parts: tuple[tuple[str, ...], ...]
    """Of each, what could not be looked into where the rest could: the op types inside it; empty where nothing could."""
    opaque_share: float | None
    """The share of the op time of all of them."""
    dropped: int
    """Executions that the capture was told not to keep, over all steps."""
    assumed: tuple[tuple[str, str], ...]
    """Of a static trace: nodes whose shapes depend on data, with what was taken instead."""
    checks: Checks

    @property
    def notes(self) -> list[str]:
        """What is not wrong, but must be known to read the figures."""
        found = []
        if self.dropped:
            found.append(f"{self.dropped} executions were dropped as --max-events asks; capture without it for a complete trace")
        if self.opaque_calls:
            found.append(f"what is inside {self._opaque_text()} is unknown: TensorFlow runs it as one op")
        if self.first_run_ratio and self.first_run_ratio > FIRST_RUN_RATIO:
            found.append(
                f"the first run took {self.first_run_ratio:.0f} times as long as the usual step; it is in no figure but its own"
            )
        found += [f"the shape of {node} depends on data; {taken} was taken" for node, taken in self.assumed]
        return found + [f"{first}; medians are shown" for first in self.first_runs]

    def _opaque_text(self) -> str:
        """The opaque calls that take longest, with what is hidden in those that are so in part, and shares of the op time."""
        calls = list(zip(self.opaque_calls, self.opaque_shares, self.opaque_parts, strict=True))
        what, texts = " of the op time" if len(calls) == 1 else "", []
        for name, share, parts in calls[:NAMES_SHOWN]:
            said = [f"in part: {', '.join(parts)}"] if parts else []
            said += [format_share(share) + what] if share is not None else []
            texts.append(f"'{name}'" + (f" ({'; '.join(said)})" if said else ""))
        text = ", ".join(texts) + (f" and {len(calls) - NAMES_SHOWN} more" if len(calls) > NAMES_SHOWN else "")
        if len(calls) > 1 and self.opaque_share is not None:
            text += f", in all {format_share(self.opaque_share)} of the op time,"
        return text

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**super().to_dict(), "checks": self.checks.to_dict(), "notes": self.notes}

    def findings(self) -> list[tuple[str, str]]:
        """What the checks counted."""
        found = self.checks
        inputs = ("inputs", f"{found.unresolved_inputs} unresolved, {found.wrong_edges} contradict the graph")
        if self.is_static:
            return [inputs]
        ready = f"({format_share(found.readiness_share)} ready)"
        return [
            ("causality", f"{found.causality_violations} violations in {found.edges:,} dependencies"),
            ("readiness", f"{found.readiness_violations} violations in {found.executions:,} executions {ready}"),
            inputs,
        ]


def is_large(trace: Trace) -> bool:
    """Whether there are so many executions that `overview` is to be preferred; asks for no column."""
    return max(len(trace.executions), len(trace.step_times)) > LARGE_ROWS


def overview(trace: Trace, file: Path) -> Overview:
    """What the steps and the provenance of a trace in `file` tell: of a lazily loaded trace, nothing else is read."""
    sizes = np.diff(trace.structures.execution_offsets)
    return Overview(**_overall(trace, file), executions=int(sizes[trace.main_structure]) if len(sizes) else 0)


def _overall(trace: Trace, file: Path) -> dict[str, Any]:
    """The fields of an `Overview` but for `executions`."""
    untraced = trace.steps.client_wall_ns[~trace.steps.traced]
    ran = trace.steps.structure >= 0
    traced = trace.steps.client_wall_ns[ran]
    provenance = trace.provenance
    title = " ".join(str(provenance[k]) for k in ("workload", "mode", "preset") if provenance.get(k))
    return {
        "file": str(file),
        "size_bytes": file.stat().st_size,
        "title": f"{title or 'trace'}, projected" if "projected" in provenance else title or "trace",
        "traced_steps": len(traced),
        "untraced_steps": len(untraced),
        "structures": len(trace.structures),
        "nodes": len(trace.nodes),
        "traced_ns": _median(traced),
        "untraced_ns": _median(untraced),
        "span_ns": _median(trace.steps.span_ns[ran]),
        "first_run_ns": float(provenance.get("first_run_ns") or 0) or None,
        "recorded": int(trace.steps.recorded.sum()),
        "produced": int(trace.steps.produced.sum()),
        "complete": bool(trace.steps.complete.all()),
        "is_static": bool(provenance.get("static")),
    }


def summarize(trace: Trace, file: Path) -> Summary:
    """The summary of a trace that lies in `file`."""
    provenance = trace.provenance
    table = profile(trace) if len(trace.structures) else None
    found = check(trace)
    return Summary(
        **_overall(trace, file),
        executions=_main_executions(trace),
        top_ops=table.rows[:TOP] if table else (),
        first_runs=table.first_runs if table else (),
        **_opaque(trace),
        dropped=found.produced - found.recorded if provenance.get("max_events") else 0,
        assumed=tuple(dict(provenance.get("assumed_shapes") or {}).items()),
        checks=found,
    )


def print_overview(found: Overview) -> None:
    """The overview as people read it."""
    print(found.title)
    print_pairs(found.lines(), indent="  ")


def print_summary(summary: Summary) -> None:
    """The summary as people read it: figures, the op types that take longest, and what is wrong."""
    print_overview(summary)
    if summary.top_ops:
        print("\nwhat would run most often" if summary.is_static else "\nwhere the time goes")
        rows = [(r.key, f"{r.count:,}", _text(r.time_ns, format_ns), _text(r.share, format_share)) for r in summary.top_ops]
        print_table(("op type", "count", "time", "share"), rows, indent="  ")
    for note in summary.notes:
        print(f"note: {note}")
    for problem in summary.checks.problems:
        print(f"problem: {problem}")


def _opaque(trace: Trace) -> dict[str, Any]:
    """The fields of a `Summary` on functions that could not be looked into: from what ran, and from what capture noted."""
    inside = _opaque_nodes(trace)
    for name in trace.provenance.get("opaque_calls") or ():
        inside.setdefault(trace.node_index.get(name, -1), set())
    inside.pop(-1, None)
    shares: dict[int, float | None] = dict.fromkeys(inside)
    if trace.has_times and len(trace.structures):
        durations = trace.median_durations(trace.main_structure)
        nodes = trace.executions.node[trace.structure_rows(trace.main_structure)]
        total = float(durations.sum())
        spent = np.bincount(nodes, durations, len(trace.nodes))
        shares = {node: float(spent[node]) / total if total else 0.0 for node in inside}
    calls = sorted(inside, key=lambda node: (-(shares[node] or 0.0), trace.node_names[node]))
    known = [share for share in shares.values() if share is not None]
    return {
        "opaque_calls": tuple(trace.node_names[node] for node in calls),
        "opaque_shares": tuple(shares[node] for node in calls),
        "opaque_parts": tuple(tuple(sorted(inside[node])) for node in calls),
        "opaque_share": sum(known) if known else None,
    }


def _opaque_nodes(trace: Trace) -> dict[int, set[str]]:
    """Nodes that ran a function which was not expanded; and calls that were, but for nodes inside, with the op types of these."""
    executions = trace.executions
    is_opaque = np.array([kind(op) == "opaque" for op in trace.node_ops], bool)[executions.node] & trace.chosen
    is_opaque[executions.parent[executions.parent >= 0]] = False
    inside: dict[int, set[str]] = {}
    for row in np.flatnonzero(is_opaque).tolist():
        node, parent = int(executions.node[row]), int(executions.parent[row])
        if parent < 0:
            inside.setdefault(node, set())
        else:
            inside.setdefault(int(executions.node[parent]), set()).add(trace.node_ops[node])
    return inside


def _main_executions(trace: Trace) -> int:
    if not len(trace.structures):
        return 0
    return int(np.count_nonzero(trace.chosen[trace.structure_rows(trace.main_structure)]))


def _structures_text(count: int) -> str:
    return f"; steps of {count} different structures" if count > 1 else ""


def _median(values: np.ndarray[Any, Any]) -> float | None:
    return float(statistics.median(values.tolist())) if len(values) else None


def _text(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)
