"""All analyses of some traces at once, with what each of them left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fathom_trace.report.captured import Captured, LeftOut, told_apart
from fathom_trace.report.heat_map import HeatMap, heat_map
from fathom_trace.report.parallelism import Scaling, groups_by_threads, in_no_group
from fathom_trace.report.published import Fact, facts
from fathom_trace.report.roofline import Roofline, roofline
from fathom_trace.report.similarity import LINKAGES, Similarity, similarity
from fathom_trace.report.skew import Skew, skew
from fathom_trace.report.stationarity import Stationarity, stationarity
from fathom_trace.report.traffic import Exchange, Traffic, traffic
from fathom_trace.report.training_inference import TrainingInference, training_inference
from fathom_trace.units import format_share


@dataclass(frozen=True, eq=False)
class Report:
    """Every analysis. `profiled` are the traces that the profiles are of: training, or all where none is of training."""

    traces: tuple[Captured, ...]
    profiled: tuple[Captured, ...]
    facts: tuple[Fact, ...]
    stationarity: tuple[Stationarity, ...]
    skew: tuple[Skew, ...]
    heat_map: HeatMap
    similarity: dict[str, Similarity]
    training_inference: TrainingInference
    parallelism: tuple[Scaling, ...]
    roofline: Roofline
    traffic: tuple[Traffic, ...]
    exchange: Exchange
    left_out: tuple[LeftOut, ...] = ()
    """Files that are in nothing of this."""

    def short(self, label: str) -> str:
        """The name of a profiled trace in figures: without its mode, where all have the same."""
        found = next((c for c in self.profiled if c.label == label), None)
        is_plain = found is not None and len({c.mode for c in self.profiled}) == 1
        return label.replace(f"{found.workload} {found.mode}", found.workload, 1) if found and is_plain else label

    @property
    def excluded(self) -> dict[str, tuple[str, ...]]:
        """By analysis, what it left out and why; what a single trace lacks is in its own `exclusions`."""
        profiled = set(self.profiled)
        others = [c.label for c in self.traces if c not in profiled]
        profiles = (f"{len(others)} traces that are not of training",) if others else ()
        plumbing = [
            f"{label} {format_share(share)}"
            for label, share in zip(self.heat_map.labels, self.heat_map.ungrouped, strict=True)
            if share >= 0.0005
        ]
        ungrouped = (f"plumbing, opaque calls and op types of no known kind, in the totals only: {', '.join(plumbing)}",)
        few = [s.label for s in self.stationarity if s.steps.p_value is None]
        short = (f"tests of halves with fewer than four kept steps: {', '.join(few)}",) if few else ()
        unpaired = self.training_inference.left_out
        fixed = in_no_group(self.traces)
        bare = [c.label for c in self.profiled if c.memory is None]
        return {
            "stationarity": (*profiles, *short),
            "skew": profiles,
            "heat_map": (*profiles, *(ungrouped if plumbing else ())),
            "similarity": profiles,
            "training_inference": (f"traces without a partner in the other mode: {', '.join(unpaired)}",) if unpaired else (),
            "parallelism": (f"{len(fixed)} traces at one number of threads, projected, or not of training",) if fixed else (),
            "roofline": (*profiles, *_by_reason(self.roofline)),
            "memory": (*profiles, *((f"traces without allocation records: {', '.join(bare)}",) if bare else ())),
            "traffic": profiles,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "traces": [c.to_dict() for c in self.traces],
            "left_out": [asdict(file) for file in self.left_out],
            "published": [fact.to_dict() for fact in self.facts],
            "stationarity": [s.to_dict() for s in self.stationarity],
            "skew": [s.to_dict() for s in self.skew],
            "heat_map": self.heat_map.to_dict(),
            "similarity": {linkage: s.to_dict() for linkage, s in self.similarity.items()},
            "training_inference": self.training_inference.to_dict(),
            "parallelism": [s.to_dict() for s in self.parallelism],
            "roofline": self.roofline.to_dict(),
            "memory": {c.label: _memory(c) for c in self.profiled if c.memory is not None},
            "traffic": {"exchange": str(self.exchange), "steps": [t.to_dict() for t in self.traffic]},
            "excluded": {name: list(texts) for name, texts in self.excluded.items()},
        }


def analyse(traces: Sequence[Captured], exchange: Exchange | None = None, left_out: Sequence[LeftOut] = ()) -> Report:
    """Run every analysis; traces of equal labels are told apart first. Only what was measured, of whole steps, meets what was published."""
    traces = tuple(told_apart(traces))
    exchange = exchange or Exchange()
    profiled = tuple(c for c in traces if c.mode == "training") or tuple(traces)
    profiles = {c.label: c.shares() for c in profiled}
    return Report(
        traces=traces,
        profiled=profiled,
        facts=facts([c for c in traces if not c.selection and not c.projected]),
        stationarity=tuple(stationarity(c) for c in profiled),
        skew=tuple(skew(label, shares) for label, shares in profiles.items()),
        heat_map=heat_map(profiled),
        similarity={linkage: similarity(profiles, linkage) for linkage in LINKAGES},
        training_inference=training_inference(traces),
        parallelism=groups_by_threads(traces),
        roofline=roofline(profiled),
        traffic=tuple(traffic(c, exchange) for c in profiled),
        exchange=exchange,
        left_out=tuple(left_out),
    )


def _by_reason(found: Roofline) -> list[str]:
    """Each reason once, with the share of time that it left out of each trace."""
    reasons: dict[str, list[str]] = {}
    for label, share, why in found.left_out:
        reasons.setdefault(why, []).append(f"{label} {format_share(share)}")
    return [f"{why}, by share of the time: {', '.join(shares)}" for why, shares in reasons.items()]


def _memory(captured: Captured) -> dict[str, Any]:
    found = captured.memory
    if found is None:
        return {}
    return {**found.__dict__, "times_ns": found.times_ns.tolist(), "live_bytes": found.live_bytes.tolist()}
