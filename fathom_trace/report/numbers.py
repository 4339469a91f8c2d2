"""Each analysis as a table: header and rows, for CSV and for the page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from fathom_trace.report.analyses import Report

BY_TYPE = "op types' serial fractions"

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Numbers:
    """One table; a value that is not known is None, an empty cell in CSV."""

    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def to_csv(self) -> str:
        """As CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(["" if value is None else value for value in row] for row in self.rows)
        return text.getvalue()


def numbers(report: Report) -> dict[str, Numbers]:
    """Every table by name, which is that of its analysis."""
    heat = report.heat_map
    return {
        "traces": _table(
            ("trace", "file", "machine", "setting", "step_ns", "op_time_ns", "left_out", "why", "left_out_share"),
            [
                (c.label, c.file, c.machine, c.setting, c.step_ns, c.total_ns, e.what if e else None, e.why if e else None,
                 e.share if e else None)
                for c in report.traces
                for e in (c.exclusions or (None,))
            ]
            + [(None, left.file, None, None, None, None, "the whole trace", left.why, None) for left in report.left_out],
        ),
        "published": _table(
            ("claim", "place", "published", "criterion", "measured", "finding", "note", "traces", "machines"),
            [
                (f.name, f.place, f.claim, f.criterion, f.measured, f.finding, f.note, "; ".join(f.traces), "; ".join(f.machines))
                for f in report.facts
            ],
        ),
        "stationarity": _table(
            ("trace", "series", "steps", "mean_ns", "deviation_ns", "variation", "autocorrelation", "drift", "halves", "p_value",
             "idle_share", "operation_variation"),
            [
                (s.label, x.name, x.steps, x.mean_ns, x.deviation_ns, x.variation, x.autocorrelation, x.drift, x.halves, x.p_value,
                 s.idle_share if x is s.steps else None, s.operation_variation if x is s.steps else None)
                for s in report.stationarity
                for x in (s.steps, *s.op_types)
            ],
        ),
        "skew": _table(
            ("trace", "rank", "op_type", "share", "cumulative", "k90"),
            [
                (s.label, i, op, share, cumulative, s.k90)
                for s in report.skew
                for i, (op, share, cumulative) in enumerate(zip(s.op_types, s.shares, s.cumulative, strict=True), 1)
            ],
        ),
        "heat_map": _table(
            ("op_type", "group", *heat.labels),
            [
                (op, letter, *(row[k] for row in heat.cells))
                for k, (op, letter) in enumerate(zip(heat.op_types, heat.groups, strict=True))
            ]
            + [("(sum of these)", "", *heat.shown), ("(without a group)", "", *heat.ungrouped), ("(1% or less)", "", *heat.blank)],
        ),
        "similarity": _table(
            ("linkage", "merge", "left", "right", "distance"),
            [
                (linkage, i, "+".join(s.labels[k] for k in m.left), "+".join(s.labels[k] for k in m.right), m.distance)
                for linkage, s in report.similarity.items()
                for i, m in enumerate(s.merges, 1)
            ],
        ),
        "distances": _table(("one", "other", "cosine_distance"), next(iter(report.similarity.values())).pairs()),
        "training_inference": _table(
            ("pair", "workload", "device", "training_ns", "inference_ns", "ratio", "training_batch", "inference_batch",
             "training_over_cpu", "inference_over_cpu"),
            [
                (p.label, p.workload, p.device, p.training_ns, p.inference_ns, p.ratio, p.training_batch, p.inference_batch,
                 *(p.normalized or (None, None)))
                for p in report.training_inference.pairs
            ],
        ),
        "parallelism": _table(
            ("workload", "op_type", "threads", "time_ns", "speedup", "serial_fraction", "method", "least", "greatest", "extrapolated"),
            [
                (s.label, t.op_type, n, time, speedup, t.serial.value, t.serial.method, *(t.serial.interval or (None, None)), False)
                for s in report.parallelism
                for t in (s.whole, *s.op_types)
                for n, time, speedup in zip(s.threads, t.time_ns, t.speedup, strict=True)
            ]
            + [
                (s.label, s.whole.op_type, n, s.whole.time_ns[0] / speedup, speedup, None, BY_TYPE, None, None, True)
                for s in report.parallelism
                for n, speedup in s.extrapolated
            ],
        ),
        "roofline": _table(
            ("trace", "op_type", "group", "flops", "bytes", "time_ns", "share", "flops_per_byte", "flops_per_s"),
            [
                (p.label, p.op_type, p.group, p.flops, p.bytes, p.time_ns, p.share, p.intensity, p.flops_per_s)
                for p in report.roofline.points
            ],
        ),
        "memory": _table(
            ("trace", "step", "time_ns", "live_bytes", "peak_bytes", "variable_bytes"),
            [
                (c.label, c.memory.step, time, live, c.memory.peak_bytes, c.memory.variable_bytes)
                for c in report.profiled
                if c.memory is not None
                for time, live in zip(c.memory.times_ns.tolist(), c.memory.live_bytes.tolist(), strict=True)
            ],
        ),
        "traffic": _table(
            ("trace", "input_ns", "input_bytes", "synthetic_input", "computation_ns", "trainable_bytes", "sent_bytes_modelled",
             "exchange_ns_modelled", "data_io_share", "computation_share", "weights_share_modelled"),
            [
                (t.label, t.input_ns, t.input_bytes, t.synthetic_input, t.computation_ns, t.trainable_bytes, t.sent_bytes, t.exchange_ns,
                 *t.shares)
                for t in report.traffic
            ],
        ),
    }  # fmt: skip


def _table(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> Numbers:
    return Numbers(tuple(header), tuple(tuple(row) for row in rows))
