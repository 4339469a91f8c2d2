"""What a mapping simulator is given of a trace and what is left: the layers of its most frequent structure, the rest by reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables
from fathom_trace.exporter import ExportReport, Skipped
from fathom_trace.loops.layers import Layer, layers
from fathom_trace.loops.recover import is_unknown, reason_without_nest
from fathom_trace.trace import Trace
from fathom_trace.units import format_share


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
        macs = sum(layer.nest.macs for layer in layers(self.trace, self.structure)[0])
        executions = int(np.count_nonzero(self.trace.chosen[self.trace.structure_rows(self.structure)]))
        report.verify(executions, float(self.durations_ns.sum()), macs)

    def notes(self) -> Iterable[str]:
        """What a report must say of the whole: absent times, MACs that are unknown."""
        if not self.trace.has_times:
            yield "the trace has no times: all of them are 0 here"
        unknown = [s for s in self.skipped if is_unknown(s.op)]
        if unknown:
            total = float(self.durations_ns.sum())
            share = format_share(sum(s.time_ns for s in unknown) / total if total else 0.0)
            ops = ", ".join(sorted({s.op for s in unknown}))
            yield f"the MACs of {sum(s.executions for s in unknown)} skipped executions ({ops}) are unknown, with {share} of the time"


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
    return Work(trace, structure, work.groups, tuple(_skipped(work, refused)), durations)


def _skipped(work: Work, refused: dict[int, str]) -> Iterable[Skipped]:
    """Whatever has a loop nest is exported, so the MACs of what is left are 0 or unknown."""
    trace, rows = work.trace, work.trace.structure_rows(work.structure)
    taken = {e for group in work.groups for layer in group for e in layer.executions}
    nodes = trace.executions.node[rows.start : rows.stop].tolist()
    copies = (trace.executions.kind[rows.start : rows.stop] == tables.EXECUTION_COPY).tolist()
    chosen = trace.chosen[rows].tolist()
    counts: dict[tuple[str, str], int] = defaultdict(int)
    times: dict[tuple[str, str], float] = defaultdict(float)
    for execution, node, copy, time_ns in zip(range(rows.start, rows.stop), nodes, copies, work.durations_ns.tolist(), strict=True):
        if execution in taken or not chosen[execution - rows.start]:
            continue
        op = trace.node_ops[node]
        key = op, refused.get(execution) or ("a copy between devices" if copy else reason_without_nest(op))
        counts[key] += 1
        times[key] += time_ns
    return [Skipped(*key, executions=count, macs=0, time_ns=times[key]) for key, count in counts.items()]
