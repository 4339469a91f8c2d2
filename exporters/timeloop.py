"""Timeloop problems: one file per distinct layer, forward or backward, each with the number of times it ran.

Target: Timeloop, https://github.com/NVlabs/timeloop, problem format 0.4 as its `problem-shape.cpp` and `workload.cpp` read it. A
problem is a shape (dimensions of one letter, data spaces as sums of dimensions times coefficients) and an instance (the extent of every
dimension, the value of every coefficient). Timeloop passes over a key that it does not know, so nothing may be misspelt.

A plain forward convolution is of Timeloop's own shape `cnn_layer`, which pairs P and R with `Wstride` and `Wdilation` and Q and S with
`Hstride` and `Hdilation`: P and R are the width, Q and S the height. Groups, depthwise and 3-D convolutions, gradients and products have
shapes of their own in the file. In all of these the data spaces are called `Inputs` and `Weights` (what is read) and `Outputs` (what is
written), because architectures name them so: of a filter gradient, `Weights` are the output's gradients and `Outputs` the filter's.
Padding cannot be said: Timeloop takes the image for as large as the windows reach.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fathom_trace.errors import ExportError, TraceError
from fathom_trace.exporter import OWN_GRAMMAR, CheckReport, ExportedLayer, ExportReport, Target, misplaced, read_layer_map
from fathom_trace.loops import ConvolutionNest, Layer, LoopNest, Work, find_work, nest_from_json
from fathom_trace.loops.nests import FORWARD
from fathom_trace.loops.projections import Index, distinct, operand_elements, statement
from fathom_trace.options import option
from fathom_trace.trace import Trace
from fathom_trace.units import format_count
from fathom_trace.untrusted import read_regular

VERSION = "0.4"

TARGET = Target(
    name="Timeloop",
    version=f"problem format {VERSION}",
    url="https://github.com/NVlabs/timeloop",
    proof=OWN_GRAMMAR,
    proof_detail="Timeloop is built from source and is no part of the tests. The exporter's own parser knows the grammar of its reader,"
    " evaluates every projection, and compares MACs, extents, strides, dilations and the elements of every operand with the trace",
    how_to_run="build Timeloop, then for each problem: timeloop-mapper ARCHITECTURE.yaml MAPPER.yaml PROBLEM.yaml (its shape `cnn_layer` is"
    " found in problem-shapes of TIMELOOP_DIR; --set shape=inline writes that shape into the files). Energy and cycles are of one run:"
    " export.json has the count of runs",
)

CNN_LAYER = "cnn_layer"
CNN_LAYER_DIMENSIONS = ("R", "S", "P", "Q", "C", "K", "N")
CNN_LAYER_COEFFICIENTS = ("Wstride", "Hstride", "Wdilation", "Hdilation")
CNN_LAYER_SPACES: dict[str, tuple[tuple[tuple[str, str], ...], ...]] = {
    "Inputs": ((("N", ""),), (("C", ""),), (("R", "Wdilation"), ("P", "Wstride")), (("S", "Hdilation"), ("Q", "Hstride"))),
    "Weights": ((("C", ""),), (("K", ""),), (("R", ""),), (("S", ""),)),
    "Outputs": ((("N", ""),), (("K", ""),), (("Q", ""),), (("P", ""),)),
}
"""Timeloop's own shape, as its problem-shapes/cnn_layer.yaml defines it: by data space, sums of (dimension, coefficient)."""

LETTERS = {
    "batch": "N", "group": "G", "filter": "M", "channel": "C", "output_width": "P", "output_height": "Q", "output_depth": "D",
    "kernel_width": "R", "kernel_height": "S", "kernel_depth": "T",
}  # fmt: skip
"""Dimension of each loop of a convolution. `cnn_layer` calls the filters K."""
PRODUCT_LETTERS = {"row": "M", "column": "N", "inner": "K"}
BATCH_LETTERS = "BADEFGHIJLOPQRSTUVWXYZ"
SPACES = ("Inputs", "Weights", "Outputs")
"""Data spaces: the two operands that are read, and the one that is written."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    shape: str = option(CNN_LAYER, "plain convolutions: by the name of Timeloop's own shape, or inline", (CNN_LAYER, "inline"))
    unique: bool = option(True, "one problem for all identical layers, with a count in export.json; false: one for every node")


@dataclass(frozen=True)
class Problem:
    """A problem as written. A data space has for each of its dimensions a sum of (dimension, name of a coefficient or '')."""

    shape: str
    dimensions: tuple[str, ...]
    coefficients: tuple[str, ...]
    spaces: Mapping[str, tuple[tuple[tuple[str, str], ...], ...]]
    instance: Mapping[str, int]

    @property
    def macs(self) -> int:
        """Operations of the problem."""
        return math.prod(self.instance[d] for d in self.dimensions)

    def indices(self, space: str) -> tuple[Index, ...]:
        """The projection of a data space with the values of its coefficients."""
        return tuple(tuple((d, self.instance[c] if c else 1) for d, c in terms) for terms in self.spaces[space])

    def elements(self, space: str) -> int:
        """Distinct elements of a data space."""
        return math.prod(distinct(index, self.instance) for index in self.indices(space))

    def text(self) -> str:
        """The problem as YAML."""
        lines = ["problem:", f"  version: {VERSION}"]
        if self.shape == CNN_LAYER:
            lines.append(f"  shape: {CNN_LAYER}")
        else:
            lines += ["  shape:", f"    name: {self.shape}", f"    dimensions: [{', '.join(self.dimensions)}]"]
            if self.coefficients:
                lines += ["    coefficients:", *(f"    - {{name: {c}, default: 1}}" for c in self.coefficients)]
            lines.append("    data_spaces:")
            for name in SPACES:
                terms = ", ".join("[" + ", ".join(_term(*t) for t in sums) + "]" for sums in self.spaces[name])
                lines += [f"    - name: {name}", f"      projection: [{terms}]"]
            lines.append("      read_write: true")
        values = ", ".join(f"{key}: {value}" for key, value in self.instance.items())
        return "\n".join([*lines, f"  instance: {{{values}}}"]) + "\n"


def _term(dimension: str, coefficient: str) -> str:
    return f"[{dimension}, {coefficient}]" if coefficient else f"[{dimension}]"


def spell(nest: LoopNest, shape: str) -> Problem:
    """The problem that a loop nest is; `shape` says how a plain forward convolution is written.

    Raises:
        ExportError: a product has more batch dimensions than there are letters.
    """
    stated = statement(nest)
    is_plain = isinstance(nest, ConvolutionNest) and nest.role == FORWARD and nest.groups == 1 and nest.depth is None
    if is_plain and shape == CNN_LAYER:
        sizes = {"K" if loop == "filter" else LETTERS[loop]: size for loop, size in stated.loops.items()}
        instance = {d: sizes[d] for d in CNN_LAYER_DIMENSIONS} | _coefficients(nest)
        return Problem(CNN_LAYER, CNN_LAYER_DIMENSIONS, CNN_LAYER_COEFFICIENTS, CNN_LAYER_SPACES, instance)
    letters = {loop: _letter(loop, nest) for loop in stated.loops}
    spaces = {
        space: tuple(
            tuple((letters[loop], _coefficient(dimension, loop) if len(index) > 1 else "") for loop, _ in index)
            for dimension, index in access.indices.items()
        )
        for space, access in zip(SPACES, stated.accesses, strict=True)
    }
    values = _coefficients(nest)
    instance = {letters[loop]: size for loop, size in stated.loops.items()} | values
    return Problem(_shape_name(nest), tuple(letters.values()), tuple(values), spaces, instance)


def _letter(loop: str, nest: LoopNest) -> str:
    if isinstance(nest, ConvolutionNest):
        return LETTERS[loop]
    if loop in PRODUCT_LETTERS:
        return PRODUCT_LETTERS[loop]
    number = int(loop.partition("_")[2])
    if number >= len(BATCH_LETTERS):
        raise ExportError(f"{nest}: Timeloop's dimensions are single letters, and there are only {len(BATCH_LETTERS)} for batches")
    return BATCH_LETTERS[number]


def _coefficient(axis: str, loop: str) -> str:
    """The name of the coefficient of a loop in the index of an axis of the image."""
    return f"{axis[0].upper()}{'stride' if loop.startswith('output') else 'dilation'}"


def _coefficients(nest: LoopNest) -> dict[str, int]:
    """Stride and dilation of each axis, by coefficient."""
    if not isinstance(nest, ConvolutionNest):
        return {}
    return {f"{a.name[0].upper()}{kind}": getattr(a, kind) for kind in ("stride", "dilation") for a in nest.axes[::-1]}


def _shape_name(nest: LoopNest) -> str:
    if not isinstance(nest, ConvolutionNest):
        return nest.role
    kind = "depthwise_" if nest.depthwise else "grouped_" if nest.groups > 1 else ""
    role = "" if nest.role == FORWARD else f"_{nest.role.replace('grad', 'gradient')}"
    return f"{kind}convolution{'_3d' * (nest.depth is not None)}{role}"


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write a problem for each distinct layer that the trace's most frequent structure executed.

    Raises:
        ExportError: nothing in it is a convolution or a matrix product.
        TraceError: attributes and shapes of the trace contradict each other.
    """
    work = find_work(trace)
    groups: dict[Any, list[Layer]] = defaultdict(list)
    for number, group in enumerate(work.groups):
        groups[(group[0].nest, len(group[0].executions)) if options.unique else number].extend(group)
    if not groups:
        raise work.nothing("and nothing else is a problem for Timeloop")
    digits = len(str(len(groups) - 1))
    exported = []
    for number, layers in enumerate(groups.values()):
        problem = spell(layers[0].nest, options.shape)
        name = f"layer{number:0{digits}}_{re.sub(r'[^A-Za-z0-9_]+', '_', work.node_name(tuple(layers)))[:100]}"
        (folder / f"{name}.yaml").write_text(problem.text(), encoding="ascii")
        exported.append(_exported(work, problem, layers, name))
    report = ExportReport(
        exporter="timeloop",
        target=TARGET,
        files=tuple(f"{layer.name}.yaml" for layer in exported),
        layers=tuple(exported),
        skipped=work.skipped,
        settings={**asdict(options), "structure": work.structure},
        approximations=tuple(_approximations(list(groups.values()))),
        notes=(*_notes(exported), *work.notes()),
        provenance=dict(trace.provenance),
    )
    work.verify(report)
    return report


def _exported(work: Work, problem: Problem, layers: Sequence[Layer], name: str) -> ExportedLayer:
    nest, node = layers[0].nest, work.node_name(tuple(layers))
    executions = sorted(e for layer in layers for e in layer.executions)
    others = len({work.node_name((layer,)) for layer in layers}) - 1
    operands: dict[str, dict[str, Any]] = {
        access.operand: {"data_space": space, "elements": problem.elements(space)}
        for space, access in zip(SPACES, statement(nest).accesses, strict=True)
    }
    if isinstance(nest, ConvolutionNest):
        operands["input"]["elements_without_padding"] = nest.input_elements_read
    return ExportedLayer(
        name=name,
        place=f"{name}.yaml",
        how=f"problem of the shape {problem.shape}" + ", which Timeloop has" * (problem.shape == CNN_LAYER),
        executions=tuple(executions),
        macs=sum(layer.nest.macs for layer in layers),
        time_ns=work.time_ns(executions),
        count=len(layers),
        note=f"{node}{f' and {others} more' if others else ''}: {nest}",
        facts={"nest": nest.to_json(), "operands": operands},
    )


def _approximations(groups: Sequence[Sequence[Layer]]) -> Iterable[str]:
    yield "Timeloop takes one layer at a time: it sees no dependency between layers, and precision is the architecture's"
    nests = [(layer.nest, len(group)) for group in groups for layer in group[:1] if isinstance(layer.nest, ConvolutionNest)]
    padded = [(nest, runs) for nest, runs in nests if nest.input_elements_with_padding != nest.input_elements_read]
    if padded:
        with_padding = sum(nest.input_elements_with_padding * runs for nest, runs in padded)
        without = sum(nest.input_elements_read * runs for nest, runs in padded)
        yield (
            f"{sum(runs for _, runs in padded)} convolutions read padding, which counts as elements of their image:"
            f" {with_padding} with it, {without} without"
        )


def _notes(exported: Sequence[ExportedLayer]) -> Iterable[str]:
    runs = sum(layer.count for layer in exported)
    yield f"{len(exported)} problems for {format_count(runs)} runs; Timeloop's results are of one run, export.json has the count of each"


# --- checking ---------------------------------------------------------------------------------------------------------------------

_WORD = r"[A-Za-z][A-Za-z0-9_]*"
_TERM = rf"\[([A-Z])(?:, ({_WORD}))?\]"
_SUM = rf"\[\[[A-Z](?:, {_WORD})?\](?:, \[[A-Z](?:, {_WORD})?\])*\]"
_SPACE = re.compile(rf"    - name: ({_WORD})\n      projection: \[({_SUM}(?:, {_SUM})*)\]\n(      read_write: true\n)?")
_PROBLEM = re.compile(
    rf"problem:\n  version: {re.escape(VERSION)}\n"
    rf"(?:  shape: (?P<known>{_WORD})\n"
    rf"|  shape:\n    name: (?P<shape>{_WORD})\n    dimensions: \[(?P<dimensions>[A-Z](?:, [A-Z])*)\]\n"
    rf"(?:    coefficients:\n(?P<coefficients>(?:    - \{{name: {_WORD}, default: 1\}}\n)+))?"
    rf"    data_spaces:\n(?P<spaces>(?:{_SPACE.pattern})+))"
    rf"  instance: \{{(?P<instance>{_WORD}: [1-9][0-9]*(?:, {_WORD}: [1-9][0-9]*)*)\}}\n"
)


def check(folder: Path) -> CheckReport:
    """Parse every problem as strictly as it is written, evaluate its projections, and compare with `export.json`.

    Per layer: MACs, the extent of every dimension (so outputs and kernel by axis), every projection with the values of its coefficients
    (so stride and dilation by axis), the distinct elements and the extents of every data space.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    layer_map = read_layer_map(folder)
    on_disk = {path.name for path in folder.glob("*.yaml")}
    problems = misplaced(layer_map, on_disk)
    if len({layer.place for layer in layer_map}) != len(layer_map):
        problems.append("export.json names a file twice")
    facts = {"problems": 0, "runs": 0, "macs": 0}
    for layer in layer_map:
        problem = _parse(folder / layer.place, problems)
        if problem is None:
            continue
        different = [f"{layer.place}: {text}" for text in _differences(problem, layer)]
        problems += different
        facts["problems"] += 1
        facts["runs"] += 0 if different else layer.count
        facts["macs"] += 0 if different else problem.macs * layer.count
    return CheckReport(tuple(sorted(on_disk)), facts, tuple(problems))


def _parse(path: Path, problems: list[str]) -> Problem | None:
    """The problem in a file; None where it breaks the grammar, which becomes a problem."""
    try:
        text = read_regular(path).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} cannot be read ({type(error).__name__})")
        return None
    match = _PROBLEM.fullmatch(text)
    if match is None:
        problems.append(f"{path.name} is not a problem as this exporter writes it: {_where(text)}")
        return None
    pairs = [part.split(": ") for part in match["instance"].split(", ")]
    instance = {key: int(value) for key, value in pairs}
    if match["known"]:
        found = Problem(match["known"], CNN_LAYER_DIMENSIONS, CNN_LAYER_COEFFICIENTS, CNN_LAYER_SPACES, instance)
    else:
        spaces = {space[1]: _sums(space[2]) for space in _SPACE.finditer(match["spaces"])}
        coefficients = tuple(re.findall(rf"name: ({_WORD})", match["coefficients"] or ""))
        found = Problem(match["shape"], tuple(match["dimensions"].split(", ")), coefficients, spaces, instance)
        written = [space[1] for space in _SPACE.finditer(match["spaces"]) if space[3]]
        if tuple(spaces) != SPACES or written != ["Outputs"] or len(_SPACE.findall(match["spaces"])) != len(SPACES):
            problems.append(f"{path.name}: its data spaces are not {', '.join(SPACES)}, of which the last is written")
            return None
    wrong = list(_undeclared(found, len(pairs)))
    problems += [f"{path.name}: {text}" for text in wrong]
    return None if wrong else found


def _sums(text: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The projection of a data space: its dimensions, each a sum of (dimension, coefficient)."""
    return tuple(tuple(re.findall(_TERM, part)) for part in re.findall(_SUM, text))


def _where(text: str) -> str:
    """The first line after which no problem can go on."""
    keys = {"problem", "version", "shape", "name", "dimensions", "coefficients", "data_spaces", "projection", "read_write", "instance"}
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip().removeprefix("- ").removeprefix("{").partition(":")[0]
        if key not in keys:
            return f"line {number} has the key '{key}', which Timeloop would pass over"
    return "a value or the order of its lines is wrong"


def _undeclared(problem: Problem, values: int) -> Iterable[str]:
    """Dimensions and coefficients that are not declared, not used or have no value, or more than one."""
    if problem.shape == CNN_LAYER and problem.dimensions != CNN_LAYER_DIMENSIONS:
        yield f"{CNN_LAYER} is a shape that Timeloop has already"
    if problem.spaces is CNN_LAYER_SPACES and problem.shape != CNN_LAYER:
        yield f"Timeloop's shape {problem.shape} is none that this exporter writes"
    terms = [term for sums in problem.spaces.values() for dimension in sums for term in dimension]
    declared = [*problem.dimensions, *problem.coefficients]
    if len(set(declared)) != len(declared):
        yield "a dimension or coefficient is declared twice"
    if {d for d, _ in terms} != set(problem.dimensions):
        yield f"projections use {', '.join(sorted({d for d, _ in terms}))}, declared are {', '.join(problem.dimensions)}"
    if {c for _, c in terms if c} != set(problem.coefficients):
        yield f"projections use other coefficients than the declared {', '.join(problem.coefficients)}"
    if set(problem.instance) != set(declared) or values != len(declared):
        yield f"the instance gives {', '.join(problem.instance)}, the shape declares {', '.join(declared)}"


def _differences(problem: Problem, layer: ExportedLayer) -> Iterable[str]:
    """What a problem says otherwise than the loop nest that it stands for."""
    try:
        nest: LoopNest = nest_from_json(layer.facts["nest"])
        stated_facts = {operand: dict(values) for operand, values in layer.facts["operands"].items()}
    except (KeyError, TypeError, AttributeError, ValueError, TraceError) as error:
        yield f"export.json says too little of it ({type(error).__name__}: {error})"
        return
    stated = statement(nest)
    letters = {loop: "K" if problem.shape == CNN_LAYER and loop == "filter" else _letter(loop, nest) for loop in stated.loops}
    if problem.shape not in (CNN_LAYER, _shape_name(nest)):
        yield f"its shape is called {problem.shape}, not {_shape_name(nest)}"
    if set(letters.values()) != set(problem.dimensions):
        yield f"its dimensions {', '.join(problem.dimensions)} are not the loops {', '.join(stated.loops)}"
        return
    wrong = {loop: size for loop, size in stated.loops.items() if problem.instance[letters[loop]] != size}
    yield from (f"{loop} ({letters[loop]}) is {problem.instance[letters[loop]]}, the trace has {size}" for loop, size in wrong.items())
    if problem.macs * layer.count != layer.macs:
        yield f"{problem.macs} MACs in the file, {layer.count} times, {layer.macs} in the trace"
    for space, access in zip(SPACES, stated.accesses, strict=True):
        wanted = {d: frozenset((letters[loop], c) for loop, c in index) for d, index in access.indices.items()}
        found = [frozenset(index) for index in problem.indices(space)]
        if sorted(found, key=sorted) != sorted(wanted.values(), key=sorted):
            yield f"{space} ({access.operand}) is indexed by {_text(found)}, the trace has {_text(wanted.values())}"
            continue
        if wrong:
            continue
        expected = operand_elements(nest)[access.operand]
        listed = stated_facts.get(access.operand, {}).get("elements")
        if not problem.elements(space) == expected == listed:
            yield f"{space} ({access.operand}) has {problem.elements(space)} elements, the trace {expected}, export.json {listed}"
    listed = stated_facts.get("input", {}).get("elements_without_padding")
    if isinstance(nest, ConvolutionNest) and listed != nest.input_elements_read:
        yield f"the input has {nest.input_elements_read} elements without padding, export.json says {listed}"


def _text(indices: Iterable[Iterable[tuple[str, int]]]) -> str:
    return ", ".join(" + ".join(d if c == 1 else f"{c}*{d}" for d, c in sorted(index)) for index in indices)
