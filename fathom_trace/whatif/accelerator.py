"""An accelerator beside the host, from a description in YAML: what it covers, how long that takes there, and what moves over the link.

    name: a systolic array with a vector unit
    covers: [conv, conv_filter_grad, conv_input_grad, gemm, "layer:fc*"]   # kinds, or selections
    systolic: {rows: 128, columns: 128, dataflow: ws, clock: 700MHz}         # for what is a convolution or a product
    peak: {float32: 2 TFLOP/s, bfloat16: 4 TFLOP/s}                          # roofline for the rest; or one figure for all
    bandwidth: 100 GB/s
    overhead: 5us                                                            # of each launch
    link: {bandwidth: 16 GB/s, latency: 10us}                                # or none, where memory is shared

A covered execution takes the closed form of the systolic array if it is a convolution or a product and the description has an array,
else the roofline of its FLOPs and bytes; plus the launch overhead. What is known to compute and move nothing, such as a reshape, needs
no launch and takes no time. Where no time can be known the execution stays on the host, and is counted. Whatever is not covered stays on
the host as measured, and so do all dispatch gaps.

A tensor that is read on the other side than it was made on moves once: latency + bytes / bandwidth. So does a variable that is written
on one side and read on the other. A covered execution and a copy hold a worker of the replay: the host waits for them, as in a
synchronous launch. Of accelerator and link there is one each: on several workers, what needs it waits while another has it. On unlimited
workers everything overlaps that the dependencies let overlap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.builder import ITEM_BYTES
from fathom_trace.errors import OptionError, ScenarioError, UnknownNameError, one_line
from fathom_trace.ops import ALL_KINDS
from fathom_trace.trace import Trace
from fathom_trace.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_bytes, format_ns, parse_quantity
from fathom_trace.whatif.documents import read_document
from fathom_trace.whatif.hardware import DATAFLOWS, OUTPUT_STATIONARY, roofline_ns, systolic_cycles
from fathom_trace.whatif.recording import Bool, Float, Int64
from fathom_trace.whatif.selection import Executed, Selection, parse_selection
from fathom_trace.whatif.transfers import Transfers

PREFIX = "hardware:"
ANY_DTYPE = "any"
LEAST_RATE, MOST_RATE = 1.0, 1e24
"""Of FLOP/s, bytes/s and Hz: between them a description says something about hardware."""

KEYS = ("name", "covers", "systolic", "peak", "bandwidth", "overhead", "link")

_NS = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}


@dataclass(frozen=True)
class SystolicArray:
    """Rows x columns of multiply-accumulators; `dataflow` is os, ws or is."""

    rows: int
    columns: int
    dataflow: str
    clock_hz: float


@dataclass(frozen=True)
class Link:
    """Between host and accelerator; a copy takes latency + bytes / bandwidth."""

    bandwidth_bytes_per_s: float
    latency_ns: float = 0.0


@dataclass(frozen=True)
class Accelerator:
    """Described hardware. `peak_flops_per_s` is by dtype, `ANY_DTYPE` for all others; empty, and bandwidth 0: no roofline."""

    name: str
    covers: tuple[Selection, ...]
    peak_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: float
    overhead_ns: float
    link: Link | None
    systolic: SystolicArray | None


@dataclass(frozen=True, eq=False)
class Placement:
    """What runs on the accelerator, `[executions]`, how long it takes there, and what moves."""

    covered: Bool
    time_ns: Float
    transfers: Transfers
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Accelerate:
    """The change in which an accelerator takes what it covers."""

    accelerator: Accelerator
    source: str = ""

    def __str__(self) -> str:
        return f"{PREFIX}{self.source or self.accelerator.name}"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Set the covered durations; the copies are in `place`."""
        placement = self.place(among)
        duration_ns[placement.covered] = placement.time_ns[placement.covered]
        return placement.covered

    def place(self, among: Executed) -> Placement:
        """What the accelerator takes over.

        Raises:
            ScenarioError: nothing.
        """
        trace = among.source(f"'{self}'")
        wanted = np.zeros(len(among), bool)
        for selection in self.accelerator.covers:
            wanted |= selection.matches(among)
        if not wanted.any():
            covers = ", ".join(map(str, self.accelerator.covers))
            raise ScenarioError(f"'{self}' covers nothing that ran; it covers {covers}")
        time_ns, reasons = _times(self.accelerator, trace, among, wanted)
        covered = wanted & np.isfinite(time_ns)
        if not covered.any():
            raise ScenarioError(f"'{self}' gives no time for what it covers: {'; '.join(reasons)}")
        transfers = _transfers(self.accelerator.link, trace, among, covered)
        idle = (selection for selection in self.accelerator.covers if not selection.matches(among).any())
        notes = [f"'{selection}' is covered, but nothing of it ran" for selection in idle]
        notes += [f"covered, but left on the host: {count} executions ({reason})" for reason, count in reasons.most_common()]
        if len(transfers):
            notes.append(
                f"copies between host and accelerator: {len(transfers)}, of {format_bytes(transfers.total_bytes)},"
                f" which take {format_ns(transfers.total_ns)}"
            )
        return Placement(covered, time_ns, transfers, tuple(notes))


# --- times and copies -----------------------------------------------------------------------------------------------------------------


def _times(accelerator: Accelerator, trace: Trace, among: Executed, wanted: Bool) -> tuple[Float, Counter[str]]:
    """Time of each wanted execution on the accelerator, infinite where it is not known, and how often for which reason."""
    time_ns = np.full(len(among), np.inf)
    reasons: Counter[str] = Counter()
    open_ = wanted.copy()
    if accelerator.systolic is not None:
        _systolic_times(accelerator, accelerator.systolic, trace, among, wanted, time_ns)
        open_ &= ~np.isfinite(time_ns)
    if accelerator.bandwidth_bytes_per_s > 0:
        _roofline_times(accelerator, trace, among, open_, time_ns, reasons)
    elif open_.any():
        reasons["no convolution or product, and no peak and bandwidth are given"] += int(open_.sum())
    return time_ns, reasons


def _systolic_times(
    accelerator: Accelerator, array: SystolicArray, trace: Trace, among: Executed, wanted: Bool, time_ns: Float
) -> None:
    """Closed-form times of layers. Where one runs as a convolution between two reshuffles, those vanish and take no time."""
    from fathom_trace.loops import layers

    for layer in layers(trace, among.structure)[0]:
        local = layer.execution - among.first
        if not wanted[local] or not layer.nest.macs:
            continue
        gemm = layer.nest.as_gemm()
        cycles = systolic_cycles(gemm.m, gemm.n, gemm.k, array.rows, array.columns, array.dataflow).item() * gemm.repeats
        time_ns[local] = cycles / array.clock_hz * NS_PER_S + accelerator.overhead_ns
        vanished = [e - among.first for e in layer.executions if e != layer.execution and wanted[e - among.first]]
        time_ns[vanished] = 0.0


def _roofline_times(
    accelerator: Accelerator, trace: Trace, among: Executed, wanted: Bool, time_ns: Float, reasons: Counter[str]
) -> None:
    from fathom_trace.costs import costs

    priced = costs(trace, among.structure)
    known = wanted & priced.flops_known & priced.bytes_known
    if (wanted & ~known).any():
        reasons["its FLOPs or bytes are not known"] += int((wanted & ~known).sum())
    for local in np.flatnonzero(known).tolist():
        dtype = _dtype(trace, among.first + local, int(among.nodes[local]))
        peak = accelerator.peak_flops_per_s.get(dtype, accelerator.peak_flops_per_s.get(ANY_DTYPE))
        flops, size = int(priced.flops[local]), int(priced.bytes[local])
        if peak is None and flops:
            reasons[f"no peak is given for {dtype or 'it'}"] += 1
            continue
        overhead = accelerator.overhead_ns if flops or size else 0.0
        time_ns[local] = float(roofline_ns(flops, size, peak or 1.0, accelerator.bandwidth_bytes_per_s, overhead))


def _dtype(trace: Trace, row: int, node: int) -> str:
    """The dtype that an execution computes in: its attribute `T` or `dtype`, else that of its first output."""
    attributes = trace.node_attributes[node]
    for key in ("T", "dtype"):
        if isinstance(attributes.get(key), str):
            return str(attributes[key])
    outputs = trace.outputs(row)
    return trace.strings[int(trace.tensors.dtype[outputs[0]])] if len(outputs) else ""


def _transfers(link: Link | None, trace: Trace, among: Executed, covered: Bool) -> Transfers:
    """What crosses, each tensor once, and each variable that is written on one side and read on the other."""
    none = np.zeros(0, np.int64)
    if link is None:
        return Transfers(none, np.zeros(0), none, np.zeros(1, np.int64), none)
    rows, executions = slice(among.first, among.first + len(among)), trace.executions
    bounds = executions.input_offsets[rows.start : rows.stop + 1]
    tensor = executions.input[int(bounds[0]) : int(bounds[-1])].astype(np.int64)
    consumer = np.repeat(np.arange(len(among)), np.diff(bounds))
    producer = trace.tensors.execution[tensor].astype(np.int64) - rows.start
    crosses = (covered[producer] != covered[consumer]) & (trace.tensors.size_bytes[tensor] > 0)
    pairs = np.unique(np.stack([tensor[crosses], consumer[crosses]], axis=1), axis=0)
    moved, first = np.unique(pairs[:, 0], return_index=True)
    made = trace.tensors.execution[moved].astype(np.int64) - rows.start
    written, variables = _variables_crossing(trace, among, covered)
    source = np.concatenate([made, written])
    size = np.concatenate([trace.tensors.size_bytes[moved], trace.variables.size_bytes[variables]]).astype(np.int64)
    counts = np.concatenate([np.diff(np.append(first, len(pairs))), np.zeros(len(written), np.int64)])
    readers = np.split(pairs[:, 1], first[1:]) + [none] * len(written) if len(moved) else [none] * len(written)
    order = np.argsort(source, kind="stable")
    return Transfers(
        producer=source[order],
        time_ns=link.latency_ns + size[order] / link.bandwidth_bytes_per_s * NS_PER_S,
        size_bytes=size[order],
        offsets=np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64),
        consumer=np.concatenate([none, *(readers[k] for k in order.tolist())]).astype(np.int64),
    )


def _variables_crossing(trace: Trace, among: Executed, covered: Bool) -> tuple[Int64, Int64]:
    """(last writer on one side, variable) of each variable that is also read on the other side."""
    written, read = _touches(trace, among, "write"), _touches(trace, among, "read")
    found = []
    for side in (False, True):
        last: dict[int, int] = {}
        for local, variable in zip(*(c.tolist() for c in written), strict=True):
            if covered[local] == side:
                last[variable] = local
        elsewhere = set(read[1][covered[read[0]] != side].tolist())
        found += [(local, variable) for variable, local in last.items() if variable in elsewhere]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _touches(trace: Trace, among: Executed, how: str) -> tuple[Int64, Int64]:
    """(execution, variable) of everything that is `read` or `write`-n, in order."""
    offsets, values = getattr(trace.nodes, f"{how}_offsets"), getattr(trace.nodes, how)
    counts = np.diff(offsets)[among.nodes]
    touching = np.flatnonzero(counts)
    variables = [values[offsets[n] : offsets[n + 1]] for n in among.nodes[touching].tolist()]
    return np.repeat(touching, counts[touching]), np.concatenate([np.zeros(0, np.int64), *variables]).astype(np.int64)


# --- descriptions ---------------------------------------------------------------------------------------------------------------------


def read_accelerator(path: Path) -> Accelerator:
    """The accelerator that a YAML file describes.

    Raises:
        ScenarioError: it describes none; names the file and the key.
    """
    document = read_document(path)
    if not isinstance(document, dict):
        raise ScenarioError(f"{path} describes no accelerator; it holds keys such as covers, peak, bandwidth and link")
    try:
        return _accelerator(document, path.stem)
    except (ScenarioError, UnknownNameError) as error:
        raise ScenarioError(one_line(f"{path}: {error}")) from None


def _accelerator(values: dict[str, Any], name: str) -> Accelerator:
    _check_keys(values, KEYS, "")
    given = values.get("covers")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise ScenarioError("covers: it is a list of kinds or selections, for example [conv, gemm]")
    covers = tuple(_covered(t if ":" in t else f"kind:{t}") for t in texts)
    systolic = _systolic(values["systolic"]) if "systolic" in values else None
    has_roofline = "peak" in values or "bandwidth" in values
    if has_roofline and not ("peak" in values and "bandwidth" in values):
        raise ScenarioError("a roofline needs both peak and bandwidth; give the other too")
    if systolic is None and not has_roofline:
        raise ScenarioError("nothing says how fast it is; give systolic, or peak and bandwidth")
    if "link" not in values:
        raise ScenarioError("link is missing; give {bandwidth: ..., latency: ...}, or none where host and accelerator share memory")
    return Accelerator(
        name=_text(values.get("name", name), "name"),
        covers=covers,
        peak_flops_per_s=_peaks(values["peak"]) if has_roofline else {},
        bandwidth_bytes_per_s=_above_zero(values["bandwidth"], "B/s", "bandwidth") if has_roofline else 0.0,
        overhead_ns=_time(values.get("overhead", "0ns"), "overhead"),
        link=_link(values["link"]),
        systolic=systolic,
    )


def _covered(text: str) -> Selection:
    """A selection; a kind without wildcards is one that there is."""
    selection = parse_selection(text)
    if selection.by == "kind" and not any(sign in selection.pattern for sign in "*?[") and selection.pattern not in ALL_KINDS:
        raise ScenarioError(f"covers: {UnknownNameError('kind', selection.pattern, ALL_KINDS)}")
    return selection


def _systolic(values: Any) -> SystolicArray:
    keys = ("rows", "columns", "dataflow", "clock")
    _check_keys(values, keys, "systolic")
    missing = [k for k in keys if k not in values and k != "dataflow"]
    if missing:
        raise ScenarioError(f"systolic: {missing[0]} is missing")
    dataflow = _text(values.get("dataflow", OUTPUT_STATIONARY), "systolic: dataflow")
    if dataflow not in DATAFLOWS:
        raise ScenarioError(f"systolic: {UnknownNameError('dataflow', dataflow, DATAFLOWS)}")
    sizes = []
    for key in ("rows", "columns"):
        text = _text(values[key], f"systolic: {key}")
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
            raise ScenarioError(f"systolic: {key} is '{text}'; it is a whole number of 1 or more")
        sizes.append(int(text))
    return SystolicArray(sizes[0], sizes[1], dataflow, _above_zero(values["clock"], "Hz", "systolic: clock"))


def _link(values: Any) -> Link | None:
    if values == "none":
        return None
    _check_keys(values, ("bandwidth", "latency"), "link")
    if "bandwidth" not in values:
        raise ScenarioError("link: bandwidth is missing")
    return Link(_above_zero(values["bandwidth"], "B/s", "link: bandwidth"), _time(values.get("latency", "0ns"), "link: latency"))


def _peaks(values: Any) -> dict[str, float]:
    if isinstance(values, str):
        return {ANY_DTYPE: _above_zero(values, "FLOP/s", "peak")}
    if not isinstance(values, dict) or not values:
        raise ScenarioError("peak: it is FLOP/s by dtype, for example {float32: 2 TFLOP/s}, or one figure for all")
    for dtype in values:
        if dtype != ANY_DTYPE and dtype not in ITEM_BYTES:
            raise ScenarioError(f"peak: {UnknownNameError('dtype', dtype, (*ITEM_BYTES, ANY_DTYPE))}")
    return {dtype: _above_zero(value, "FLOP/s", f"peak: {dtype}") for dtype, value in values.items()}


def _check_keys(values: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(values, dict):
        raise ScenarioError(f"{where}: it is a mapping of {', '.join(known)}")
    for key in values:
        if key not in known:
            raise UnknownNameError(f"key of {where}" if where else "key", key, known)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise ScenarioError(f"{key}: it is a word or a number")
    return value


def _above_zero(value: Any, unit: str, key: str) -> float:
    try:
        number = parse_quantity(_text(value, key), unit)
    except OptionError as error:
        raise ScenarioError(f"{key}: {error}") from None
    if not LEAST_RATE <= number <= MOST_RATE:
        raise ScenarioError(f"{key}: '{value}' is no rate of hardware; give one from {LEAST_RATE:g} to {MOST_RATE:g} {unit}")
    return number


def _time(value: Any, key: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(ns|us|ms|s)", _text(value, key))
    number = float(match[1]) * _NS[match[2]] if match else np.inf
    if not np.isfinite(number):
        raise ScenarioError(f"{key}: '{value}' is no time; write for example 5us")
    return number
