"""How much work each op type does for each byte, and how fast it does it: intensity in FLOPs per byte against FLOP/s.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. FLOPs and bytes are what the
executed operations need by formula, each distinct byte once: nobody counted cache misses. The machine's own peaks are not measured; the
roof is what the fastest op types of these traces attained, and no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fathom_trace.ops import group
from fathom_trace.report.captured import Captured


@dataclass(frozen=True)
class Point:
    """One op type of one trace: a step's FLOPs, bytes and time (ns), and its share of the step's op time."""

    label: str
    op_type: str
    group: str
    flops: int
    bytes: int
    time_ns: float
    share: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """FLOP/s."""
        return self.flops / self.time_ns * 1e9

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "intensity": self.intensity, "flops_per_s": self.flops_per_s}


@dataclass(frozen=True)
class Roofline:
    """Points, and the roof that the fastest of them span. `left_out` is by trace the share of time without a point, and why."""

    points: tuple[Point, ...]
    attained_flops_per_s: float
    attained_bytes_per_s: float
    left_out: tuple[tuple[str, float, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "points": [point.to_dict() for point in self.points],
            "attained_flops_per_s": self.attained_flops_per_s,
            "attained_bytes_per_s": self.attained_bytes_per_s,
            "left_out": [{"label": label, "share": share, "why": why} for label, share, why in self.left_out],
        }


def roofline(traces: Sequence[Captured]) -> Roofline:
    """A point for each op type that took time and whose FLOPs and bytes are known and not zero."""
    points, left_out = [], []
    for captured in traces:
        total = sum(row.time_ns or 0.0 for row in captured.rows)
        unknown = idle = 0.0
        for row in captured.rows:
            share = (row.time_ns or 0.0) / total if total else 0.0
            if row.flops is None or row.bytes is None:
                unknown += share
            elif not row.flops or not row.bytes or not row.time_ns:
                idle += share
            else:
                points.append(Point(captured.label, row.key, group(row.key), row.flops, row.bytes, row.time_ns, share))
        left_out += [
            (captured.label, share, why)
            for share, why in ((idle, "op types that compute nothing or move no bytes"), (unknown, "op types whose cost is not known"))
            if share > 0
        ]
    return Roofline(
        points=tuple(points),
        attained_flops_per_s=max((p.flops_per_s for p in points), default=0.0),
        attained_bytes_per_s=max((p.bytes / p.time_ns * 1e9 for p in points), default=0.0),
        left_out=tuple(left_out),
    )
