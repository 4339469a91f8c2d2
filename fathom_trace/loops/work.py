"""What a mapping simulator is given of a trace and what is left: the layers of its most frequent structure, the rest by reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables
from fathom_trace.costs import costs
from fathom_trace.errors import ExportError
from fathom_trace.exporter import ExportReport, Skipped
from fathom_trace.loops.layers import Layer, layers
from fathom_trace.loops.recover import has_nest, reason_without_nest
from fathom_trace.trace import Trace
from fathom_trace.units import format_count, format_share

NAMES_SHOWN = 3
COPY = "a copy between devices"
LOOKED_INTO = "a call whose inner ops are listed apart: its time is here, its MACs are theirs"
IN_PART = "a call with {ops} inside, whose MACs are unknown; its time is here"
NO_NEST = "it has MACs, but no loop nest is known for this op type"


@dataclass(frozen=True)
class Work:
    """`groups` are logical layers with something to compute, executions of one node and nest together (a loop runs a node many times).

    `skipped` is everything else of the structure that is in the selection; `durations_ns` are medians over its steps, by row of the
    structure.
    """

    trace: Trace
    structure: int
    groups: tuple[tuple[Layer, ...], ...]
    skipped: tuple[Skipped, ...]
    durations_ns: NDArray[np.float64]
    macs_without_nest: int = 0
    """MACs that are known of executions that have no loop nest."""

    def node_name(self, group: tuple[Layer, ...]) -> str:
        """Name of the node that a group's layers ran."""
        return self.trace.node_names[int(self.trace.executions.node[group[0].execution])]

    def time_ns(self, executions: Iterable[int]) -> float:
        """Sum of the durations of executions, in ns."""
        return float(self.durations_ns[np.array(list(executions), np.int64) - self.trace.structure_rows(self.structure).start].sum())

    def refusals(self, refused: Mapping[str, Iterable[Layer]]) -> list[Skipped]:
        """Layers that a format cannot say, by reason, as a report lists them: one line an op type and reason."""
        found: dict[tuple[str, str], list[Layer]] = defaultdict(list)
        for reason, members in refused.items():
            for layer in members:
                found[self.trace.node_ops[int(self.trace.executions.node[layer.execution])], reason].append(layer)
        return [
            Skipped(
                op=op,
                reason=reason,
                executions=sum(len(layer.executions) for layer in members),
                macs=sum(layer.nest.macs for layer in members),
                time_ns=self.time_ns(e for layer in members for e in layer.executions),
            )
            for (op, reason), members in found.items()
        ]

    def verify(self, report: ExportReport) -> None:
        """Check that a report accounts for every execution, all time and all MACs of the structure.

        Raises:
            ExportError: it does not.
        """
        macs = sum(layer.nest.macs for layer in layers(self.trace, self.structure)[0]) + self.macs_without_nest
        executions = int(np.count_nonzero(self.trace.chosen[self.trace.structure_rows(self.structure)]))
        report.verify(executions, float(self.durations_ns.sum()), macs)

    def notes(self) -> Iterable[str]:
        """What a report must say of the whole: absent times, MACs that are unknown."""
        if not self.trace.has_times:
            yield "the trace has no times: all of them are 0 here"
        unknown = [s for s in self.skipped if not s.macs_known]
        if unknown:
            ops = ", ".join(sorted({s.op for s in unknown}))
            yield (
                f"the MACs of {sum(s.executions for s in unknown)} skipped executions ({ops}) are unknown,"
                f" with {self._share(unknown)} of the time"
            )

    def nothing(self, takes: str, refused: Iterable[Skipped] = ()) -> ExportError:
        """The error of an exporter that is left with no layer; `takes` says what its target takes ("and X takes nothing else").

        It names what does or may do multiply-accumulates all the same: what has unknown MACs, what has no loop nest or an empty one,
        and what the exporter itself `refused`.
        """
        reasons: dict[tuple[str, str], list[Skipped]] = defaultdict(list)
        for item in [*self.skipped, *refused]:
            if item.macs or not item.macs_known or (has_nest(item.op) and item.reason != COPY):
                reasons[item.op, item.reason].append(item)
        if not reasons:
            return ExportError(f"the trace has no convolution and no matrix product, {takes}")
        longest = sorted(reasons.items(), key=lambda entry: (-sum(s.time_ns for s in entry[1]), entry[0]))
        said = [self._said(op, reason, items) for (op, reason), items in longest[:NAMES_SHOWN]]
        if len(longest) > NAMES_SHOWN:
            left = [item for _, items in longest[NAMES_SHOWN:] for item in items]
            said.append(f"and {len(longest) - NAMES_SHOWN} more op types, {self._share(left)} of the time")
        return ExportError(f"nothing of the trace has a loop nest that can be written, {takes}; what may multiply: {'; '.join(said)}")

    def _said(self, op: str, reason: str, items: list[Skipped]) -> str:
        """One op type that cannot be exported, with its executions, MACs and share of the time, and why."""
        count, macs = sum(s.executions for s in items), sum(s.macs for s in items)
        known = all(s.macs_known for s in items)
        amount = f"{format_count(macs)} MACs" if known else "unknown MACs"
        return f"{count} x {op} ({amount}, {self._share(items)} of the time): {reason}"

    def _share(self, items: Iterable[Skipped]) -> str:
        total = float(self.durations_ns.sum())
        return format_share(sum(s.time_ns for s in items) / total if total else 0.0)


def find_work(trace: Trace) -> Work:
    """The work of the trace's most frequent structure.

    Raises:
        TraceError: the trace is empty, or attributes and shapes contradict each other.
    """
    structure = trace.main_structure
    durations = trace.median_durations(structure)
    found, refused = layers(trace, structure)
    groups: dict[object, list[Layer]] = defaultdict(list)
    for layer in found:
        if layer.nest.macs:
            groups[int(trace.executions.node[layer.execution]), layer.nest, len(layer.executions)].append(layer)
        else:
            refused[layer.execution] = "an extent is 0: there is nothing to compute"
    work = Work(trace, structure, tuple(tuple(g) for g in groups.values()), (), durations)
    return replace(work, **_without_nest(work, refused))


def _without_nest(work: Work, refused: Mapping[int, str]) -> dict[str, Any]:
    """The fields of `Work` that tell of whatever is not in its groups. Their MACs are those of `costs`: 0, a number, or unknown."""
    trace, rows = work.trace, work.trace.structure_rows(work.structure)
    taken = {e for group in work.groups for layer in group for e in layer.executions}
    nodes = trace.executions.node[rows].tolist()
    copies = (trace.executions.kind[rows] == tables.EXECUTION_COPY).tolist()
    chosen = trace.chosen[rows].tolist()
    found = costs(trace, work.structure)
    macs, known = found.macs.tolist(), found.macs_known.tolist()
    inside = _unknown_inside(trace, rows, known)
    groups: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for place, execution in enumerate(range(rows.start, rows.stop)):
        if execution in taken or not chosen[place]:
            continue
        op = trace.node_ops[nodes[place]]
        if copies[place]:
            reason = COPY
        elif place in inside:
            reason = IN_PART.format(ops=", ".join(sorted(inside[place]))) if inside[place] else LOOKED_INTO
        elif has_nest(op) and execution in refused:
            reason = refused[execution]
        elif macs[place]:
            reason = NO_NEST
        else:
            reason = reason_without_nest(op)
        groups[op, reason, known[place]].append(place)
    skipped = tuple(
        Skipped(
            op=op,
            reason=reason,
            executions=len(places),
            macs=sum(macs[place] for place in places),
            time_ns=float(sum(work.durations_ns[place] for place in places)),
            macs_known=is_known,
        )
        for (op, reason, is_known), places in groups.items()
    )
    return {"skipped": skipped, "macs_without_nest": sum(sum(macs[place] for place in places) for places in groups.values())}


def _unknown_inside(trace: Trace, rows: slice, known: list[bool]) -> dict[int, set[str]]:
    """Per call that was expanded (place in the structure), the op types inside whose MACs are unknown."""
    inside: dict[int, set[str]] = {}
    nodes = trace.executions.node[rows].tolist()
    for place, parent in enumerate((trace.executions.parent[rows].astype(np.int64) - rows.start).tolist()):
        if parent >= 0:
            ops = inside.setdefault(parent, set())
            if not known[place]:
                ops.add(trace.node_ops[nodes[place]])
    return inside
