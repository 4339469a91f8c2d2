"""Traces of given times by op type, made for the analyses: one node and one execution an op type, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fathom_trace.builder import TraceBuilder
from fathom_trace.report.captured import Captured, measure
from fathom_trace.trace import Trace


def timed(steps: Sequence[Mapping[str, int]], untraced: Sequence[int] = (), gap_ns: int = 0, **provenance: Any) -> Trace:
    """A trace whose steps ran the op types of the first for so many ns each, with `gap_ns` of nothing between two."""
    builder = TraceBuilder()
    for op in steps[0]:
        builder.execution(builder.node(op.lower(), op), outputs=[("float32", (2, 2))])
    structure = builder.end_structure()
    for step in steps:
        start, now = [], 0
        for op in steps[0]:
            start.append(now)
            now += step[op] + gap_ns
        builder.step(structure, start=start, done=[s + step[op] for s, op in zip(start, steps[0], strict=True)])
    for wall in untraced:
        builder.untraced_step(wall)
    return builder.build({"stage": "source", "inter_threads": 1, "preset": "seminal", **provenance})


def captured(workload: str, times: Mapping[str, int], mode: str = "training", **more: Any) -> Captured:
    """A workload of one step with these op times."""
    return measure(timed([times], workload=workload, mode=mode, **more), f"{workload}-{mode}.h5")
