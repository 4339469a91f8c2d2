"""SCALE-Sim topologies: convolutions and matrix products for the cycle-level simulator of systolic arrays.

Target: SCALE-Sim 3.0.0, https://github.com/scalesim-project/SCALE-Sim, package `scalesim` (with `numpy<2.4`); formats as its
`topology_utils` and `scale_config` read them. A convolution is the line `name, IFMAP height, width, filter height, width, channels,
filters, stride,` and a product [M, K] x [K, N] is `name, M, N, K,`; a file holds one kind only. The first line is a header that is
thrown away, and so is what follows the last comma, so every line ends with one.

The format has no padding, batch, dilation, second stride, groups or gradients. Hence the IFMAP size is that which the traced outputs
need, (output - 1) * stride + kernel; a batch, a dilation or unequal strides make the layer a product by im2col; gradients are
products; each group and each product of a batch has a line. A name that contains `DP` makes SCALE-Sim take a line for a depthwise
convolution and simulate every channel as a layer of its own: depthwise lines are named so, and no other is.
"""

from __future__ import annotations

import configparser
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fathom_trace.errors import ExportError, OptionError, TraceError
from fathom_trace.exporter import (
    TARGET_RAN,
    CheckReport,
    ExportedLayer,
    ExportReport,
    Target,
    file_stem,
    misplaced,
    read_layer_map,
    unique_name,
)
from fathom_trace.loops import ConvolutionNest, Layer, LoopNest, Work, find_work, nest_from_json
from fathom_trace.loops.nests import FILTER_GRAD, FORWARD
from fathom_trace.options import option
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_count, format_ns
from fathom_trace.untrusted import read_regular, read_regular_text
from fathom_trace.whatif.hardware import DATAFLOWS, systolic_cycles

RUN = (
    'python -c "from scalesim.scale_sim import scalesim; scalesim(save_disk_space=True, verbose=False,'
    " config='{stem}.cfg', topology='{stem}.csv', layout='{layout}', input_type_gemm={gemm}).run_scale(top_path='results')\""
)

TARGET = Target(
    name="SCALE-Sim",
    version="3.0.0",
    url="https://github.com/scalesim-project/SCALE-Sim",
    proof=TARGET_RAN,
    proof_detail="tests have scalesim 3.0.0 itself parse the files and compare MACs, output size, kernel and stride of every layer"
    " with the trace, and simulate small convolutions, products and gradients to the end; full-size networks are parsed, not simulated",
    how_to_run="pip install scalesim==3.0.0 'numpy<2.4'; then, in the exported folder, the command that the notes of export.json give"
    " for each file. Success is results/NAME/COMPUTE_REPORT.csv with a row per layer: SCALE-Sim exits 0 even where a file is missing",
)

BY_IM2COL = "matrix product by im2col: "
CONV_HEADER = "Layer name,IFMAP height,IFMAP width,Filter height,Filter width,Channels,Num filter,Strides,"
GEMM_HEADER = "Layer name,M,N,K,"
HEADERS = {"conv": CONV_HEADER, "gemm": GEMM_HEADER}
REPORT_FILE = "COMPUTE_REPORT.csv"
REPORT_COLUMNS = (
    "LayerID", "Total Cycles (incl. prefetch)", "Total Cycles", "Stall Cycles", "Overall Util %", "Mapping Efficiency %",
    "Compute Util %",
)  # fmt: skip
CONFIGURATION = """\
[general]
run_name = {run_name}

[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False

[architecture_presets]
ArrayHeight = {array_rows}
ArrayWidth = {array_columns}
IfmapSramSzkB = {ifmap_sram_kb}
FilterSramSzkB = {filter_sram_kb}
OfmapSramSzkB = {ofmap_sram_kb}
IfmapOffset = 0
FilterOffset = {filter_offset}
OfmapOffset = {ofmap_offset}
Dataflow = {dataflow}
Bandwidth = 10
ReadRequestBuffer = 32
WriteRequestBuffer = 32

[layout]
IfmapCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterCustomLayout = False
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2

[sparsity]
SparsitySupport = false
"""
"""Every section that SCALE-Sim asks for. Memory is in estimate mode (CALC): it finds the bandwidth that is needed and never stalls."""

SECONDS_PER_CYCLE = (0.2e-3, 0.3e-3)
"""CPU time that SCALE-Sim 3.0.0 takes to simulate one cycle, as measured on a slow shared core."""
TRACE_BYTES_PER_CYCLE = 1700
"""Size of the address traces that SCALE-Sim writes unless `save_disk_space` is set."""


MOST = 1_000_000_000
"""The greatest value of a whole-number option: far beyond any array or memory, and small enough to count with."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    name: str = option("", "beginning of the file names; empty: the workload's name")
    batch: str = option(
        "gemm",
        "convolutions of a batch: one product with M = batch x outputs (gemm), or a line of one image to run batch times (repeat)",
        choices=("gemm", "repeat"),
    )
    unique: bool = option(False, "write identical lines once, with a count in export.json")
    array_rows: int = option(32, "height of the systolic array")
    array_columns: int = option(32, "width of the systolic array")
    dataflow: str = option("os", "what stays in place: outputs (os), weights (ws) or inputs (is)", choices=DATAFLOWS)
    ifmap_sram_kb: int = option(64, "input SRAM in KiB")
    filter_sram_kb: int = option(64, "filter SRAM in KiB")
    ofmap_sram_kb: int = option(64, "output SRAM in KiB")
    warn_elements: int = option(100_000_000, "warn of layers for which SCALE-Sim holds more array elements than this (8 bytes each)")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if type(value) is int and value < 1:
                raise OptionError(f"option '{spec.name}' is {value}; it takes a whole number from 1")
            if type(value) is int and value > MOST:
                raise OptionError(f"option '{spec.name}' is {value}; it takes a whole number up to {MOST}")


@dataclass(frozen=True)
class Row:
    """How a layer is written: `lines` lines of `values` in the `conv` or the `gemm` file, to be run `repeats` times.

    SCALE-Sim makes one layer of a line, or of a depthwise line as many as it has channels.
    """

    file: str
    values: tuple[int, ...]
    how: str
    lines: int = 1
    repeats: int = 1
    depthwise: bool = False

    @property
    def simulated(self) -> int:
        """Layers that SCALE-Sim makes of all lines."""
        return self.lines * (self.values[4] if self.depthwise else 1)

    @property
    def product(self) -> tuple[int, int, int]:
        """M, N, K of one simulated layer, by the formulas of SCALE-Sim's own parser."""
        if self.file == "gemm":
            return self.values[0], self.values[1], self.values[2]
        height, width, filter_height, filter_width, channels, filters, stride = self.values
        outputs = [-(-(i - f + stride) // stride) for i, f in ((height, filter_height), (width, filter_width))]
        return outputs[0] * outputs[1], filters, filter_height * filter_width * (1 if self.depthwise else channels)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all simulated layers, once."""
        m, n, k = self.product
        return m * n * k * self.simulated

    def cycles_each(self, options: Options) -> int:
        """Total cycles of one simulated layer, by the closed form."""
        return int(systolic_cycles(*self.product, options.array_rows, options.array_columns, options.dataflow))

    def cycles(self, options: Options) -> int:
        """Total cycles of all simulated layers, once, by the closed form."""
        return self.cycles_each(options) * self.simulated

    def held_elements(self, options: Options) -> int:
        """Array elements that SCALE-Sim holds to simulate one layer: the operands and what moves at the edges in every cycle."""
        m, n, k = self.product
        return m * k + k * n + m * n + self.cycles_each(options) * (options.array_rows + 2 * options.array_columns)


def spell(nest: LoopNest, batch: str) -> Row:
    """The row of a loop nest whose extents are all positive."""
    product = nest.as_gemm()
    values = (product.m, product.n, product.k)
    if not isinstance(nest, ConvolutionNest):
        return Row("gemm", values, "matrix product", product.repeats)
    reason = _not_a_line(nest, batch)
    if reason:
        return Row("gemm", values, f"{BY_IM2COL}{reason}", product.repeats)
    height, width = nest.height, nest.width
    size = (height.effective_input, width.effective_input, height.kernel, width.kernel)
    stride = height.stride if height.stride == width.stride else max(height.effective_stride, width.effective_stride)
    if nest.depthwise:
        return Row("conv", (*size, nest.groups, nest.filters, stride), "depthwise convolution", 1, nest.batch, True)
    return Row("conv", (*size, nest.channels, nest.filters, stride), "convolution", nest.groups, nest.batch)


def _not_a_line(nest: ConvolutionNest, batch: str) -> str:
    """Why a convolution cannot be a line of the convolution file; empty where it can."""
    strides = {a.effective_stride for a in nest.axes if a.output > 1}
    if nest.role != FORWARD:
        return "filter gradient" if nest.role == FILTER_GRAD else "input gradient, col2im afterwards"
    if nest.depth is not None:
        return "3-D"
    if len(strides) > 1:
        return f"strides {nest.height.stride} and {nest.width.stride} differ"
    if any(a.effective_dilation > 1 for a in nest.axes):
        return "dilation"
    return f"batch {nest.batch} in the rows" if nest.batch > 1 and batch == "gemm" else ""


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write topologies, configurations and a layout for what the trace's most frequent structure executed.

    Raises:
        ExportError: nothing in it is a convolution or a matrix product.
        TraceError: attributes and shapes of the trace contradict each other.
    """
    work = find_work(trace)
    rows = _rows(work, options)
    if not rows:
        raise work.nothing("and SCALE-Sim takes nothing else")
    stem = file_stem(options.name, trace.provenance)
    topologies, exported = _spell_all(rows, work, stem, options)
    files = {f"{stem}_{kind}.csv": "\n".join(lines) + "\n" for kind, lines in topologies.items()}
    for kind in topologies:
        files[f"{stem}_{kind}.cfg"] = configuration(f"{stem}_{kind}", [row for row, _ in rows if row.file == kind], options)
    files[f"{stem}_layout.csv"] = ""
    for file, content in files.items():
        (folder / file).write_text(content, encoding="ascii")
    report = ExportReport(
        exporter="scale_sim",
        target=TARGET,
        files=tuple(files),
        layers=tuple(exported),
        skipped=work.skipped,
        settings={**asdict(options), "name": stem, "structure": work.structure},
        approximations=tuple(_approximations(rows)),
        notes=(*_notes(rows, work, stem, options), *work.notes()),
        provenance=dict(trace.provenance),
    )
    work.verify(report)
    return report


def _rows(work: Work, options: Options) -> list[tuple[Row, list[Layer]]]:
    """Each row with the layers that it stands for: those of a node and nest, or with `unique` all that are written alike."""
    rows = [(spell(group[0].nest, options.batch), list(group)) for group in work.groups]
    if not options.unique:
        return rows
    merged: dict[Any, tuple[Row, list[Layer]]] = {}
    for row, group in rows:
        values = (*row.values[:4], 1, *row.values[5:]) if row.depthwise else row.values
        key = (row.file, values, row.repeats * row.simulated, len(group[0].executions))
        merged.setdefault(key, (Row(row.file, values, row.how, 1, key[2]), []))[1].extend(group)
    return list(merged.values())


def _spell_all(
    rows: Sequence[tuple[Row, list[Layer]]], work: Work, stem: str, options: Options
) -> tuple[dict[str, list[str]], list[ExportedLayer]]:
    """The lines of each topology file, and where each layer is."""
    text: dict[str, list[str]] = {}
    simulated: dict[str, int] = defaultdict(int)
    taken: set[str] = set()
    exported = []
    for row, group in rows:
        lines, nest, node = text.setdefault(row.file, [HEADERS[row.file]]), group[0].nest, work.node_name(tuple(group))
        first_line, first_id = len(lines) + 1, simulated[row.file]
        name = unique_name("DP_" * row.depthwise + clean_name(node), taken)
        part = "group" if isinstance(nest, ConvolutionNest) else "batch entry"
        names = [name] if row.lines == 1 else [unique_name(f"{name}_{part[0]}{i}", taken) for i in range(row.lines)]
        lines += [",".join([line_name, *map(str, row.values), ""]) for line_name in names]
        simulated[row.file] += row.simulated
        executions = sorted(e for layer in group for e in layer.executions)
        cycles = row.cycles(options)
        facts = {
            "nest": nest.to_json(), "layer_ids": [first_id, simulated[row.file] - 1], "cycles": cycles, "depthwise": row.depthwise,
        }  # fmt: skip
        nodes = len({work.node_name((layer,)) for layer in group})
        others = f" and {nodes - 1} more" * (nodes > 1)
        images = isinstance(nest, ConvolutionNest) and row.file == "conv" and nest.batch > 1
        exported.append(
            ExportedLayer(
                name=name,
                place=f"{stem}_{row.file}.csv:{first_line}" + f"-{len(lines)}" * (row.lines > 1),
                how=row.how + f", a line per {part}" * (row.lines > 1) + ", one image" * images,
                executions=tuple(executions),
                macs=sum(layer.nest.macs for layer in group),
                time_ns=work.time_ns(executions),
                count=row.repeats * len(group),
                note=f"{node}{others}; {cycles} cycles by the closed form",
                facts=facts,
            )
        )
    return text, exported


def clean_name(name: str) -> str:
    """`name` as a row may carry it: letters, digits and underscores, without the `DP` that marks depthwise rows."""
    return re.sub(r"D(?=P)", "D_", re.sub(r"[^A-Za-z0-9_]", "_", name)) or "layer"


def configuration(run_name: str, rows: Sequence[Row], options: Options) -> str:
    """A configuration file with every section that SCALE-Sim asks for; operands start where they cannot overlap."""
    inputs = max(r.values[0] * (r.values[2] if r.file == "gemm" else r.values[1] * r.values[4]) for r in rows)
    filters = max(r.product[1] * r.product[2] for r in rows)
    filter_offset = max(10_000_000, inputs)
    ofmap_offset = filter_offset + max(10_000_000, filters)
    return CONFIGURATION.format(run_name=run_name, filter_offset=filter_offset, ofmap_offset=ofmap_offset, **asdict(options))


def _approximations(rows: Sequence[tuple[Row, list[Layer]]]) -> Iterable[str]:
    yield "SCALE-Sim counts words: it knows no precision, and no dependencies between layers"
    nests = [(row, layer.nest) for row, group in rows for layer in group if isinstance(layer.nest, ConvolutionNest)]
    padded = sum(row.file == "conv" and any(a.pad_begin or a.pad_end for a in nest.axes) for row, nest in nests)
    if padded:
        yield f"{padded} convolutions have padding: it is part of the IFMAP size, read and computed like data"
    lowered: dict[str, int] = defaultdict(int)
    for row, _ in nests:
        if row.file == "gemm":
            lowered[row.how.removeprefix(BY_IM2COL)] += 1
    if lowered:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in lowered.items())
        yield f"convolutions written as products by im2col, in which windows that overlap become separate words: {reasons}"
    repeated = sum(row.file == "conv" and nest.batch > 1 for row, nest in nests)
    if repeated:
        yield f"{repeated} convolutions are written for one image of their batch: nothing is reused from image to image"


def _notes(rows: Sequence[tuple[Row, list[Layer]]], work: Work, stem: str, options: Options) -> Iterable[str]:
    once = sum(row.cycles(options) for row, _ in rows)
    whole = sum(row.cycles(options) * row.repeats * len(group) for row, group in rows)
    low, high = (format_ns(once * seconds * 1e9) for seconds in SECONDS_PER_CYCLE)
    array = f"{options.array_rows} x {options.array_columns} {options.dataflow}"
    yield (
        f"closed form: {format_count(whole)} cycles for all executions on {array}; to simulate each file once takes"
        f" {format_count(once)} cycles in all, about {low} to {high} of CPU time"
        f" (and {format_bytes(once * TRACE_BYTES_PER_CYCLE)} of address traces, if they are saved)"
    )
    large = [(row.held_elements(options), group) for row, group in rows if row.held_elements(options) > options.warn_elements]
    if large:
        most, group = max(large, key=lambda item: item[0])
        name = work.node_name(tuple(group))
        yield f"SCALE-Sim may run out of memory in {len(large)} layers; it holds most for {name}: about {format_bytes(8 * most)}"
    for kind in HEADERS:
        if any(row.file == kind for row, _ in rows):
            yield f"{kind}: {RUN.format(stem=f'{stem}_{kind}', layout=f'{stem}_layout.csv', gemm=kind == 'gemm')}"


# --- checking ---------------------------------------------------------------------------------------------------------------------

_LINE = {"conv": re.compile(r"(\w+)((?:,[1-9][0-9]*){7}),", re.ASCII), "gemm": re.compile(r"(\w+)((?:,[1-9][0-9]*){3}),", re.ASCII)}


def check(folder: Path) -> CheckReport:
    """Parse the files as strictly as they are written, compute what SCALE-Sim will compute, and compare with `export.json`.

    Per layer: its name, MACs, output height and width, kernel, stride, channels and filters of a convolution, M, N and K of a product.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    layer_map = read_layer_map(folder)
    by_file: dict[str, list[ExportedLayer]] = defaultdict(list)
    for layer in layer_map:
        by_file[layer.place.partition(":")[0]].append(layer)
    facts = {"convolution lines": 0, "product lines": 0, "simulated layers": 0, "macs": 0}
    on_disk = {p.name for p in folder.glob("*.csv") if not p.name.endswith("_layout.csv")}
    problems = misplaced(layer_map, on_disk)
    for name, written in by_file.items():
        kind = name.removesuffix(".csv").rpartition("_")[2]
        if kind not in HEADERS:
            problems.append(f"{name} is neither a convolution nor a product file")
            continue
        rows = _parse(folder / name, kind, problems)
        facts["convolution lines" if kind == "conv" else "product lines"] += len(rows)
        _compare(name, rows, written, facts, problems)
        _check_configuration(folder, name.removesuffix(".csv"), problems)
    return CheckReport(tuple(sorted(on_disk)), facts, tuple(problems))


def _parse(path: Path, kind: str, problems: list[str]) -> list[tuple[str, Row]]:
    """(name, row) of each line after the header; what breaks the grammar becomes a problem."""
    try:
        text = read_regular(path).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} cannot be read ({type(error).__name__})")
        return []
    lines = text.split("\n")
    if lines[0] != HEADERS[kind]:
        problems.append(f"{path.name}:1 is not the header '{HEADERS[kind]}'; SCALE-Sim throws the first line away")
    if lines.pop() != "":
        problems.append(f"{path.name} does not end with a line end")
    result, names = [], set()
    for number, line in enumerate(lines[1:], start=2):
        match = _LINE[kind].fullmatch(line)
        if not match:
            problems.append(
                f"{path.name}:{number} is not a name and {7 if kind == 'conv' else 3} positive integers, each with a comma after it"
            )
            continue
        row = Row(kind, tuple(int(v) for v in match[2][1:].split(",")), "", depthwise=kind == "conv" and "DP" in match[1])
        if kind == "conv" and (row.values[2] > row.values[0] or row.values[3] > row.values[1]):
            problems.append(f"{path.name}:{number} has a filter larger than its IFMAP")
        if match[1] in names:
            problems.append(f"{path.name}:{number} repeats the name {match[1]}")
        names.add(match[1])
        result.append((match[1], row))
    return result


def _compare(
    file: str, rows: Sequence[tuple[str, Row]], written: Sequence[ExportedLayer], facts: dict[str, int], problems: list[str]
) -> None:
    """Compare the rows of a file with what `export.json` says of them, and add to `facts`."""
    next_line, next_id = 2, 0
    for layer in written:
        first, _, last = layer.place.partition(":")[2].partition("-")
        try:
            begin, end = int(first), int(last or first)
            nest, ids, depthwise = nest_from_json(layer.facts["nest"]), list(layer.facts["layer_ids"]), bool(layer.facts["depthwise"])
        except (ValueError, KeyError, TypeError, TraceError) as error:
            problems.append(f"{layer.name}: export.json says too little of it ({type(error).__name__}: {error})")
            return
        own = rows[begin - 2 : end - 1]
        if begin != next_line or len(own) != end - begin + 1:
            problems.append(f"{layer.name}: its lines {layer.place} are not where the layer before it ends")
            return
        simulated = sum(row.simulated for _, row in own)
        if ids != [next_id, next_id + simulated - 1]:
            problems.append(
                f"{layer.name}: SCALE-Sim will number its layers {next_id} to {next_id + simulated - 1}, export.json says {ids}"
            )
        for place, (name, row) in enumerate(own):
            if name != layer.name if len(own) == 1 else not re.fullmatch(rf"{re.escape(layer.name)}_[gb]{place}(_\d+)?", name):
                problems.append(f"{file}:{begin + place} is called {name}, but export.json has {layer.name} there")
            differences = _differences(nest, row, depthwise)
            problems += [f"{file}: {name}: {text}" for text in differences]
        macs = sum(row.macs for _, row in own) * layer.count
        if macs != layer.macs:
            problems.append(f"{layer.name}: {macs} MACs in the file, {layer.macs} in the trace")
        facts["simulated layers"] += simulated
        facts["macs"] += macs
        next_line, next_id = end + 1, next_id + simulated
    if next_line != len(rows) + 2:
        problems.append(f"{file}: lines from {next_line} on belong to no layer of export.json")


def _differences(nest: LoopNest, row: Row, depthwise: bool) -> Iterable[str]:
    """What a row says otherwise than the loop nest that it stands for."""
    if row.depthwise != depthwise:
        yield f"SCALE-Sim takes it for a {'depthwise' if row.depthwise else 'dense'} convolution"
    if row.file == "gemm":
        product = nest.as_gemm()
        expected = {"M": product.m, "N": product.n, "K": product.k}
        got = dict(zip(expected, row.values, strict=True))
    elif not isinstance(nest, ConvolutionNest) or nest.role != FORWARD or len(nest.axes) != 2:
        yield f"a convolution line cannot stand for {nest}"
        return
    else:
        height, width = nest.height, nest.width
        size = [row.values[i] - row.values[i + 2] + row.values[6] for i in (0, 1)]
        expected = {
            "output height": height.output, "output width": width.output, "filter height": height.kernel, "filter width": width.kernel,
            "channels": nest.groups if depthwise else nest.channels, "filters": nest.filters,
            "stride": height.stride if height.output > 1 else width.stride if width.output > 1 else row.values[6],
            "vertical dilation": 1, "horizontal dilation": 1,
        }  # fmt: skip
        got = {
            **dict(zip(expected, [-(-s // row.values[6]) for s in size] + list(row.values[2:7]), strict=False)),
            "vertical dilation": height.effective_dilation, "horizontal dilation": width.effective_dilation,
        }  # fmt: skip
        if width.output > 1 and width.stride != row.values[6]:
            yield f"horizontal stride is {row.values[6]}, the trace has {width.stride}"
    for key, value in expected.items():
        if got[key] != value:
            yield f"{key} is {got[key]}, the trace has {value}"


def _check_configuration(folder: Path, stem: str, problems: list[str]) -> None:
    path = folder / f"{stem}.cfg"
    expected = configparser.ConfigParser()
    expected.read_string(configuration(stem, [Row("gemm", (1, 1, 1), "")], Options()))
    found = configparser.ConfigParser()
    try:
        found.read_string(read_regular_text(path, "ascii"))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        problems.append(f"{path.name} cannot be read ({type(error).__name__})")
        return
    missing = [f"{s}.{k}" for s in expected.sections() for k in expected[s] if not found.has_option(s, k)]
    if missing:
        problems.append(f"{path.name} lacks {', '.join(missing)}; SCALE-Sim asks for all of them")
    elif found["general"]["run_name"] != stem or found["architecture_presets"]["Dataflow"] not in DATAFLOWS:
        problems.append(f"{path.name} names another run or an unknown dataflow")
    layout = folder / f"{stem.rpartition('_')[0]}_layout.csv"
    if not layout.is_file() or layout.stat().st_size:
        problems.append(f"{layout.name} is missing or not empty; SCALE-Sim needs the file, and there is nothing to say in it")


# --- results ----------------------------------------------------------------------------------------------------------------------


def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float, column: str = "Total Cycles") -> dict[int, float]:
    """Duration in ns of each execution, from SCALE-Sim's COMPUTE_REPORT.csv; `cycle_ns` is the length of a cycle.

    `path` is one report, or a folder that holds a report for every topology file, each in a folder named like the file (as the
    commands in the export's notes make them). `column` is `Total Cycles` or `Total Cycles (incl. prefetch)`. A layer's cycles times
    its count are spread evenly over its executions.

    Raises:
        ExportError: a report is missing, does not belong to the export, or is damaged; says which line.
    """
    by_file: dict[str, list[ExportedLayer]] = defaultdict(list)
    for layer in layer_map:
        by_file[layer.place.partition(":")[0].removesuffix(".csv")].append(layer)
    durations: dict[int, float] = {}
    for stem, report in _reports(path, by_file).items():
        cycles = _read_cycles(report, column)
        expected = 1 + max(int(layer.facts["layer_ids"][1]) for layer in by_file[stem])
        if len(cycles) != expected:
            raise ExportError(
                f"{report}: line {len(cycles) + 2}: {stem}.csv makes {expected} layers, the report ends after {len(cycles)}"
                if len(cycles) < expected
                else f"{report}: line {expected + 2}: {stem}.csv makes {expected} layers only; the report is of another export"
            )
        for layer in by_file[stem]:
            first, last = layer.facts["layer_ids"]
            each = sum(cycles[first : last + 1]) * layer.count * cycle_ns / len(layer.executions)
            durations.update(dict.fromkeys(layer.executions, each))
    return durations


def _reports(path: Path, by_file: Mapping[str, list[ExportedLayer]]) -> dict[str, Path]:
    """The report of each topology file."""
    if path.is_dir():
        found = {p.parent.name: p for p in sorted(path.rglob(REPORT_FILE))}
        missing = sorted(set(by_file) - set(found))
        if missing:
            raise ExportError(f"{path} has no {missing[0]}/{REPORT_FILE}; simulate {missing[0]}.csv, or give one report by its name")
        return {stem: found[stem] for stem in by_file}
    if path.parent.name in by_file:
        return {path.parent.name: path}
    if len(by_file) == 1:
        return {next(iter(by_file)): path}
    raise ExportError(f"{path} may be of {' or of '.join(sorted(by_file))}; put it in a folder of that name")


def _read_cycles(path: Path, column: str) -> list[int]:
    """The cycles of each layer, by LayerID."""
    if column not in REPORT_COLUMNS[1:3]:
        raise ExportError(f"'{column}' is no column of cycles; there are: {', '.join(REPORT_COLUMNS[1:3])}")
    try:
        lines = read_regular_text(path, "ascii").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be read ({type(error).__name__}); SCALE-Sim exits 0 even when it has not run") from None
    if [cell.strip() for cell in lines[0].split(",")] != [*REPORT_COLUMNS, ""]:
        raise ExportError(f"{path}: line 1 is not the header of a SCALE-Sim 3.0.0 {REPORT_FILE}")
    cycles: list[int] = []
    for number, line in enumerate(lines[1:], start=2):
        if number == len(lines) and not line:
            break
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(REPORT_COLUMNS) + 1 or cells[-1]:
            raise ExportError(
                f"{path}: line {number} has not {len(REPORT_COLUMNS)} cells with a comma after each; the report is damaged"
            )
        if cells[0] != str(len(cycles)):
            raise ExportError(f"{path}: line {number} is of layer '{cells[0]}' where layer {len(cycles)} belongs")
        text = cells[REPORT_COLUMNS.index(column)].removesuffix(".0")
        if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
            raise ExportError(f"{path}: line {number}: '{text}' is no number of cycles")
        cycles.append(int(text))
    if lines[-1]:
        raise ExportError(f"{path}: line {len(lines)} has no line end; the report is cut off")
    return cycles
