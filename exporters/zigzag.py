"""ZigZag workloads: convolutions, their gradients and matrix products as loop nests, for ZigZag's search of mappings.

Target: ZigZag 3.9.1, https://github.com/KULeuven-MICAS/zigzag, package `zigzag-dse` (with `six`, which it needs and does not ask for).
NAME.yaml is a list of layers as its `parser/workload_validator.py` reads them: an equation over one-letter operands, the size of every
loop, how partially relevant dimensions depend on loops (`ix=S*ox+D*fx`), their sizes and padding, bits per operand and, for each input,
the id of the layer that made it (its own id: a constant).

Every nest is written as it is; nothing is padded, lowered or made dense. With E the equation's letters:

* convolution: `O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]`; G only where there are groups, OZ and FZ only in 3-D
* filter gradient: the same nest with `O[g][k][c][fy][fx]` written, from W (the gradient of the output) and I (the image)
* input gradient: `O[b][g][c][iy][ix]+=W[g][k][c][fy][fx]*I[b][g][k][oy][ox]`, where a stride scatters and no zeros are inserted
* matrix product: `O[b][d][k]+=W[b][c][k]*I[b][d][c]`; a batch that only one side has is part of its rows D or columns K

The size of a partially relevant dimension is what the windows read of the image: padding is not data here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from math import factorial, gcd, inf, prod
from pathlib import Path
from typing import Any

from fathom_trace.builder import ITEM_BYTES
from fathom_trace.errors import ExportError, OptionError, TraceError, one_line
from fathom_trace.exporter import (
    TARGET_RAN,
    CheckReport,
    ExportedLayer,
    ExportReport,
    Skipped,
    Target,
    file_stem,
    misplaced,
    read_layer_map,
    unique_name,
)
from fathom_trace.loops import (
    ConvolutionNest,
    GemmNest,
    Layer,
    LoopNest,
    Source,
    Work,
    find_work,
    nest_from_json,
    operand_sources,
    operand_tensors,
)
from fathom_trace.loops.nests import FILTER_GRAD, FORWARD, INPUT_GRAD
from fathom_trace.options import option
from fathom_trace.trace import Trace
from fathom_trace.units import format_count, format_ns
from fathom_trace.untrusted import brief, read_json, read_regular, read_yaml

RUN = (
    "python -c \"import pathlib, zigzag.api as z; inputs = pathlib.Path(z.__file__).parent / 'inputs';"
    " z.get_hardware_performance_zigzag('{file}', str(inputs / 'hardware' / 'tpu_like.yaml'), str(inputs / 'mapping' / 'tpu_like.yaml'),"
    " dump_folder='results', lpf_limit=4, loma_show_progress_bar=False)\""
)

TARGET = Target(
    name="ZigZag",
    version="3.9.1",
    url="https://github.com/KULeuven-MICAS/zigzag",
    proof=TARGET_RAN,
    proof_detail="tests have zigzag-dse 3.9.1 itself parse the files and compare multiply-accumulates, loop sizes, strides, dilations,"
    " padding and elements of every operand with the trace, and map a small convolution, product, filter gradient and input gradient onto"
    " its packaged tpu_like to the end; full-size networks are parsed, not mapped",
    how_to_run="pip install zigzag-dse==3.9.1 six; then, in the exported folder, the command that the notes of export.json give: it"
    " writes results/LAYER_complete.json for each layer, which `whatif --from` reads. Its tpu_like holds partial sums in 16 bits",
)

LETTERS = {"width": "x", "height": "y", "depth": "z"}
MOST_BITS = 1024
ARRAY = {"K": 32, "C": 32}
"""The loops that the packaged tpu_like spreads over its array, and how far."""
LPF_LIMIT = 4
SECONDS_PER_ORDER = 0.011
"""CPU time that ZigZag 3.9.1 takes for each order of loops that it tries, as measured on a slow shared core."""
RESERVED_NAMES = frozenset(
    ("overall", "default", "Add", "AveragePool", "Conv", "Conv_downsample", "Gemm", "GlobalAveragePool", "Max", "MaxPool", "Pool",
     "Pooling", "SConv")
)  # fmt: skip
"""ZigZag writes results/overall_complete.json itself, and gives a layer called as an operator the mapping of that operator."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    name: str = option("", "beginning of the file name; empty: the workload's name")
    bits: int = option(8, "bits of a value of any operand; 0: as in the trace")
    bits_input: int | None = option(None, "bits of operand I (image, rows, or the gradient that is handed back); none: as bits")
    bits_weight: int | None = option(None, "bits of operand W (filter, columns, or the gradient of the output); none: as bits")
    bits_output: int | None = option(None, "bits of a finished result (O_final); none: as bits")
    bits_partial: int | None = option(
        None, "bits of a partial sum (O), which a register of the accelerator must hold; none: twice bits, or as in the trace"
    )
    unique: bool = option(False, "write identical layers once, with a count in export.json")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value, least = getattr(self, spec.name), 0 if spec.name == "bits" else 1
            if spec.name.startswith("bits") and value is not None and not least <= value <= MOST_BITS:
                raise OptionError(f"option '{spec.name}' is {value}; it takes a whole number from {least} to {MOST_BITS}")


@dataclass(frozen=True)
class Spelled:
    """A loop nest in ZigZag's words.

    `partial` are the partially relevant dimensions: size, padding before and after. `operands` says which operand of the nest I and W are.
    """

    operator: str
    equation: str
    loops: Mapping[str, int]
    how: str
    operands: Mapping[str, str]
    relations: tuple[str, ...] = ()
    partial: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        """Multiply-accumulates: ZigZag multiplies all loops."""
        return prod(self.loops.values())

    @property
    def orders(self) -> int:
        """Orders of the loops in time that ZigZag tries on tpu_like: it splits them into `LPF_LIMIT` factors, or one per loop if more."""
        left = [-(-size // ARRAY.get(name, 1)) for name, size in self.loops.items()]
        return factorial(max(sum(size > 1 for size in left), min(LPF_LIMIT, sum(map(_prime_factors, left)))))

    def lines(self, number: int, name: str, precision: Mapping[str, int], sources: Mapping[str, int]) -> Iterable[str]:
        """The layer in YAML."""
        yield f"- id: {number}"
        yield f'  name: "{name}"'
        yield f"  operator_type: {self.operator}"
        yield f'  equation: "{self.equation}"'
        yield f"  loop_dims: [{', '.join(self.loops)}]"
        yield f"  loop_sizes: [{', '.join(map(str, self.loops.values()))}]"
        if self.partial:
            yield f"  dimension_relations: [{', '.join(self.relations)}]"
            yield f"  pr_loop_dims: [{', '.join(self.partial)}]"
            yield f"  pr_loop_sizes: [{', '.join(str(size) for size, _, _ in self.partial.values())}]"
            yield f"  padding: [{', '.join(f'[{begin}, {end}]' for _, begin, end in self.partial.values())}]"
        yield f"  operand_precision: {{{', '.join(f'{k}: {v}' for k, v in precision.items())}}}"
        yield f"  operand_source: {{{', '.join(f'{k}: {v}' for k, v in sources.items())}}}"


def _prime_factors(number: int) -> int:
    """How many there are, until it no longer matters."""
    count, divisor = 0, 2
    while number > 1 and divisor * divisor <= number and count < LPF_LIMIT:
        if number % divisor:
            divisor += 1
        else:
            number, count = number // divisor, count + 1
    return count + (number > 1)


def spell(nest: LoopNest) -> Spelled | str:
    """A loop nest whose extents are all positive in ZigZag's words, or why it cannot be said."""
    return _spell_convolution(nest) if isinstance(nest, ConvolutionNest) else _spell_product(nest)


def _spell_convolution(nest: ConvolutionNest) -> Spelled | str:
    axes = [(LETTERS[a.name], a) for a in nest.axes]
    if not all(a.read for _, a in axes):
        return "its windows read nothing but padding, and ZigZag divides by the size of every operand"
    group = ("g",) * (nest.groups > 1)
    indices = {
        "input": ("b", *group, "c", *(f"i{x}" for x, _ in axes)),
        "filter": (*group, "k", "c", *(f"f{x}" for x, _ in axes)),
        "output": ("b", *group, "k", *(f"o{x}" for x, _ in axes)),
    }
    # I is the operand that comes in from the layer before (or, going backward, after); W the other.
    written, weight, image = {
        FORWARD: ("output", "filter", "input"),
        FILTER_GRAD: ("filter", "output", "input"),
        INPUT_GRAD: ("input", "filter", "output"),
    }[nest.role]
    loops = {"B": nest.batch, "K": nest.filters, "C": nest.channels}
    if group:
        loops["G"] = nest.groups
    loops |= {f"O{x}".upper(): a.output for x, a in axes} | {f"F{x}".upper(): a.kernel for x, a in axes}
    kind = {FORWARD: "convolution", FILTER_GRAD: "filter gradient", INPUT_GRAD: "input gradient, scattered by the stride"}[nest.role]
    return Spelled(
        "Conv",
        _equation(indices[written], indices[weight], indices[image]),
        loops,
        ("depthwise " if nest.depthwise else "grouped " if group else "") + kind,
        {"I": image, "W": weight},
        tuple(f"i{x}={a.stride}*o{x}+{a.dilation}*f{x}" for x, a in reversed(axes)),
        {f"I{x}".upper(): (a.read, a.pad_begin, a.pad_end) for x, a in reversed(axes)},
    )


def _spell_product(nest: GemmNest) -> Spelled:
    shared, rows, columns = product_extents(nest)
    batch = ("b",) * (shared > 1)
    loops = ({"B": shared} if batch else {}) | {"D": rows, "K": columns, "C": nest.k}
    equation = _equation((*batch, "d", "k"), (*batch, "c", "k"), (*batch, "d", "c"))
    return Spelled("Gemm", equation, loops, "batched matrix product" if batch else "matrix product", {"I": "left", "W": "right"})


def product_extents(nest: GemmNest) -> tuple[int, int, int]:
    """Products on operands of their own, rows and columns of each: a batch dimension of one side only is part of its rows or columns."""
    shared, rows, columns = 1, nest.m, nest.n
    for left, right in zip_longest(reversed(nest.left_batch), reversed(nest.right_batch), fillvalue=1):
        if left == right:
            shared *= left
        else:
            rows, columns = rows * left, columns * right
    return shared, rows, columns


def _equation(*indices: Sequence[str]) -> str:
    output, weight, image = (letter + "".join(f"[{i}]" for i in index) for letter, index in zip("OWI", indices, strict=True))
    return f"{output}+={weight}*{image}"


# --- writing ----------------------------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    """Layers that are written as one: those of a node and nest, or with `unique` all that are written alike."""

    spelled: Spelled
    precision: Mapping[str, int]
    layers: list[Layer]


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write the layers that the trace's most frequent structure executed, in the order in which each was first executed.

    Raises:
        ExportError: nothing in it is a convolution or a matrix product.
        TraceError: attributes and shapes of the trace contradict each other.
    """
    work = find_work(trace)
    groups, refused = _groups(work, options)
    if not groups:
        raise work.nothing("and ZigZag is given nothing else", refused)
    stem = file_stem(options.name, trace.provenance)
    file = f"{stem}.yaml"
    found = operand_sources(work)
    numbers = {layer.execution: number for number, group in enumerate(groups) for layer in group.layers}
    lines: list[str] = []
    exported: list[ExportedLayer] = []
    taken = set(RESERVED_NAMES)
    shared = 0
    for number, group in enumerate(groups):
        first = group.layers[0]
        sources = found[first.execution]
        origin = {letter: _number(sources[operand], numbers, number) for letter, operand in group.spelled.operands.items()}
        shared += any(s is not None and not s.sole for s in sources.values())
        node = work.node_name((first,))
        name = unique_name(re.sub(r"[^A-Za-z0-9_]", "_", node) or "layer", taken)
        begin = len(lines) + 1
        lines += group.spelled.lines(number, name, group.precision, origin)
        nodes = len({work.node_name((layer,)) for layer in group.layers})
        executions = sorted(e for layer in group.layers for e in layer.executions)
        exported.append(
            ExportedLayer(
                name=name,
                place=f"{file}:{begin}",
                how=group.spelled.how,
                executions=tuple(executions),
                macs=sum(layer.nest.macs for layer in group.layers),
                time_ns=work.time_ns(executions),
                count=len(group.layers),
                note=node + f" and {nodes - 1} more" * (nodes > 1),
                facts={"nest": first.nest.to_json(), "id": number, "sources": origin, "precision": dict(group.precision)},
            )
        )
    (folder / file).write_text("\n".join([*lines, f"# {len(groups)} layers", ""]), encoding="ascii")
    report = ExportReport(
        exporter="zigzag",
        target=TARGET,
        files=(file,),
        layers=tuple(exported),
        skipped=(*work.skipped, *refused),
        settings={**asdict(options), "name": stem, "structure": work.structure},
        approximations=tuple(_approximations(groups, work, options, shared)),
        notes=(*_notes(exported, groups, file), *work.notes()),
        provenance=dict(trace.provenance),
    )
    work.verify(report)
    return report


def _groups(work: Work, options: Options) -> tuple[list[_Group], list[Skipped]]:
    groups: dict[Any, _Group] = {}
    refused: dict[str, list[Layer]] = defaultdict(list)
    for number, members in enumerate(work.groups):
        first = members[0]
        spelled = spell(first.nest)
        if isinstance(spelled, str):
            refused[spelled] += members
            continue
        precision = _precision(work, first, spelled, options)
        key: Any = number
        if options.unique:
            written = "\n".join(spelled.lines(0, "", precision, {}))
            key = (written, len(first.executions))
        groups.setdefault(key, _Group(spelled, precision, [])).layers.extend(members)
    return list(groups.values()), work.refusals(refused)


def _precision(work: Work, layer: Layer, spelled: Spelled, options: Options) -> dict[str, int]:
    """Bits by operand: what the options say, or of the traced tensors."""
    tensors = work.trace.tensors
    read = operand_tensors(work, layer)
    rows = {"I": read[spelled.operands["I"]], "W": read[spelled.operands["W"]], "O": work.trace.outputs(layer.execution)[0]}
    traced = {k: 8 * ITEM_BYTES.get(work.trace.strings[int(tensors.dtype[row])], 1) for k, row in rows.items()}
    bits = {k: options.bits or v for k, v in traced.items()}
    return {
        "I": options.bits_input or bits["I"],
        "W": options.bits_weight or bits["W"],
        "O": options.bits_partial or (2 * options.bits if options.bits else traced["O"]),
        "O_final": options.bits_output or bits["O"],
    }


def _number(source: Source | None, numbers: Mapping[int, int], own: int) -> int:
    """Id of the layer that an operand comes from; its own id where that is none that stands before it."""
    number = own if source is None else numbers.get(source.execution, own)
    return number if number < own else own


def _approximations(groups: Sequence[_Group], work: Work, options: Options, shared: int) -> Iterable[str]:
    tensors = work.trace.tensors
    traced = {work.trace.strings[int(tensors.dtype[work.trace.outputs(g.layers[0].execution)[0]])] for g in groups}
    if any(vars(options)[f.name] for f in fields(options) if f.name.startswith("bits")):
        bits = ", ".join(f"{k} {v}" for k, v in groups[0].precision.items())
        yield f"bits of a value: {bits}; results are {', '.join(sorted(traced))} in the trace"
    padded = sum(any(begin or end for _, begin, end in g.spelled.partial.values()) for g in groups)
    if padded:
        yield f"{padded} convolutions have padding: ZigZag computes it, and reads no data for it"
    if shared:
        yield f"{shared} layers have an operand to which several layers contributed: the last of them is its source"
    merged = sum(len(g.layers) > 1 for g in groups)
    if merged:
        yield f"{merged} layers stand for several executions: the sources of their operands are those of the first"


def _notes(exported: Sequence[ExportedLayer], groups: Sequence[_Group], file: str) -> Iterable[str]:
    links = sum(source != layer.facts["id"] for layer in exported for source in layer.facts["sources"].values())
    yield (
        f"{len(exported)} layers, {links} operands of which come from an earlier layer, perhaps through operations that are not here;"
        " the others are constants"
    )
    orders = [group.spelled.orders for group in groups]
    most = max(range(len(groups)), key=orders.__getitem__)
    yield (
        f"to map all layers onto tpu_like takes ZigZag about {format_ns(sum(orders) * SECONDS_PER_ORDER * 1e9)} of CPU time: it tries"
        f" {format_count(sum(orders))} orders of loops, {format_count(orders[most])} of them for {exported[most].name}"
    )
    yield f"run: {RUN.format(file=file)}"


# --- checking ---------------------------------------------------------------------------------------------------------------------

_REQUIRED = {"id", "name", "operator_type", "equation", "loop_dims", "loop_sizes", "operand_precision", "operand_source"}
_PARTIAL = {"dimension_relations", "pr_loop_dims", "pr_loop_sizes", "padding"}
_EQUATION = re.compile(r"O((?:\[[a-z]+\])+)\+=W((?:\[[a-z]+\])+)\*I((?:\[[a-z]+\])+)")
_RELATION = re.compile(r"i([xyz])=([1-9][0-9]*)\*o\1\+([1-9][0-9]*)\*f\1", re.ASCII)
_AXES = {letter: name for name, letter in LETTERS.items()}


@dataclass(frozen=True)
class Parsed:
    """A layer as ZigZag's parser sees it."""

    number: int
    name: str
    operator: str
    indices: Mapping[str, tuple[str, ...]]
    loops: Mapping[str, int]
    relations: Mapping[str, tuple[int, int]]
    partial: Mapping[str, tuple[int, tuple[int, int]]]
    precision: Mapping[str, int]
    sources: Mapping[str, int]

    def elements(self, operand: str) -> int:
        """ZigZag's own count of an operand's elements: the sizes of its indices."""
        return prod(self.size(index) for index in self.indices[operand])

    def size(self, index: str) -> int:
        """The size of an index: of its loop, or what loops of an output and a kernel reach, at most the given size."""
        if index.upper() in self.loops:
            return self.loops[index.upper()]
        letter = index[1:].upper()
        stride, dilation = self.relations[index[1:]]
        outputs, taps = self.loops[f"O{letter}"], self.loops[f"F{letter}"]
        common = gcd(stride, dilation)
        reached = outputs * taps - max(0, taps - stride // common) * (outputs - dilation // common)
        return min(self.partial[index.upper()][0], reached)


def check(folder: Path) -> CheckReport:
    """Parse the layers as strictly as ZigZag does and more, and compare with `export.json`.

    Per layer: loop sizes and their product, stride, dilation and padding by axis, elements of every operand, bits, and where operands
    come from.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    layer_map = read_layer_map(folder)
    on_disk = sorted(p.name for p in folder.glob("*.yaml"))
    named = {layer.place.partition(":")[0] for layer in layer_map}
    problems = misplaced(layer_map, on_disk)
    facts = {"layers": 0, "links": 0, "macs": 0}
    for file in sorted(named):
        parsed = _parse(folder / file, problems)
        mine = [layer for layer in layer_map if layer.place.partition(":")[0] == file]
        if len(parsed) != len(mine):
            problems.append(f"{file} has {len(parsed)} layers, export.json has {len(mine)}")
        for found, layer in zip(parsed, mine, strict=False):
            problems += [f"{file}: {found.name}: {text}" for text in _differences(found, layer)]
            facts["layers"] += 1
            facts["links"] += sum(source != found.number for source in found.sources.values())
            facts["macs"] += prod(found.loops.values()) * layer.count
    return CheckReport(tuple(on_disk), facts, tuple(problems))


def _parse(path: Path, problems: list[str]) -> list[Parsed]:
    """The layers of a file; what ZigZag refuses or would take for something else becomes a problem."""
    try:
        text = read_regular(path).decode("ascii")
        content = read_yaml(text)
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({one_line(error)})")
        return []
    if not isinstance(content, list) or not text.endswith(f"# {len(content)} layers\n"):
        problems.append(f"{path.name} is not a list of layers with their number in its last line")
        return []
    result: list[Parsed] = []
    names: set[str] = set()
    for number, layer in enumerate(content):
        where = f"{path.name}: layer {number}"
        try:
            parsed = _parse_layer(layer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"{where} is not as ZigZag reads layers ({one_line(error)})")
            return result
        if parsed.number != number:
            problems.append(f"{where} has the id {parsed.number}")
        if parsed.name in names or parsed.name in RESERVED_NAMES or not re.fullmatch(r"\w+", parsed.name, re.ASCII):
            problems.append(f"{where} has the name '{parsed.name}', which is no name of its own of letters and digits")
        names.add(parsed.name)
        problems += [
            f"{where} has operand {operand} from layer {source}, which is neither before it nor itself"
            for operand, source in parsed.sources.items()
            if not 0 <= source <= number
        ]
        result.append(parsed)
    return result


def _parse_layer(layer: Any) -> Parsed:
    keys = set(layer)
    if keys not in (_REQUIRED, _REQUIRED | _PARTIAL):
        raise ValueError(f"its keys are {', '.join(sorted(map(str, keys)))}")
    equation = _EQUATION.fullmatch(layer["equation"])
    if equation is None or layer["operator_type"] not in ("Conv", "Gemm"):
        raise ValueError(f"{layer['operator_type']} with the equation {layer['equation']}")
    indices = {letter: tuple(re.findall(r"[a-z]+", part)) for letter, part in zip("OWI", equation.groups(), strict=True)}
    loops = dict(zip(layer["loop_dims"], _numbers(layer["loop_sizes"], 1), strict=True))
    relations: dict[str, tuple[int, int]] = {}
    partial: dict[str, tuple[int, tuple[int, int]]] = {}
    if keys > _REQUIRED:
        for text in layer["dimension_relations"]:
            match = _RELATION.fullmatch(text)
            if match is None:
                raise ValueError(f"the relation {text}")
            relations[match[1]] = int(match[2]), int(match[3])
        sizes, padding = _numbers(layer["pr_loop_sizes"], 1), layer["padding"]
        for name, size, pads in zip(layer["pr_loop_dims"], sizes, padding, strict=True):
            before, behind = _numbers(pads, 0)
            partial[name] = size, (before, behind)
        if list(partial) != [f"I{letter.upper()}" for letter in relations] or len(partial) != len(layer["padding"]):
            raise ValueError(f"the partially relevant dimensions {list(partial)} and relations of {list(relations)}")
    used = {index.upper() for own in indices.values() for index in own}
    if used != set(loops) | set(partial) or len(loops) != len(layer["loop_dims"]):
        raise ValueError(f"indices {sorted(used)} with loops {sorted(loops)}")
    precision, sources = dict(layer["operand_precision"]), dict(layer["operand_source"])
    if set(precision) != {"I", "W", "O", "O_final"} or set(sources) != {"I", "W"}:
        raise ValueError(f"bits of {sorted(precision)} and sources of {sorted(sources)}")
    _numbers(precision.values(), 1)
    number, *_ = _numbers([layer["id"], *sources.values()], 0)
    return Parsed(number, layer["name"], layer["operator_type"], indices, loops, relations, partial, precision, sources)


def _numbers(values: Iterable[Any], least: int) -> list[int]:
    result = list(values)
    if any(type(v) is not int or v < least for v in result):
        raise ValueError(f"{brief(result)} are not whole numbers from {least}")
    return result


def _differences(found: Parsed, layer: ExportedLayer) -> Iterable[str]:
    """What a layer of the file says otherwise than the loop nest that it stands for."""
    try:
        nest = nest_from_json(layer.facts["nest"])
        expected: dict[str, Any] = {
            "name": layer.name, "id": layer.facts["id"], "bits": dict(layer.facts["precision"]),
            "sources of operands": dict(layer.facts["sources"]),
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, TraceError) as error:
        yield f"export.json says too little of it ({type(error).__name__}: {error})"
        return
    got: dict[str, Any] = {
        "name": found.name, "id": found.number, "bits": dict(found.precision), "sources of operands": dict(found.sources),
    }  # fmt: skip
    macs = prod(found.loops.values()) * layer.count
    if macs != layer.macs:
        yield f"{macs} MACs in the file, {layer.macs} in the trace"
    if isinstance(nest, ConvolutionNest):
        read, written = {
            FORWARD: (("input", "filter"), "output"),
            FILTER_GRAD: (("input", "output"), "filter"),
            INPUT_GRAD: (("output", "filter"), "input"),
        }[nest.role]
        elements = {"input": nest.input_elements_read, "filter": nest.filter_elements, "output": nest.output_elements}
        loops = {"B": nest.batch, "K": nest.filters, "C": nest.channels} | ({"G": nest.groups} if nest.groups > 1 else {})
        for axis in nest.axes:
            letter = LETTERS[axis.name]
            loops |= {f"O{letter}".upper(): axis.output, f"F{letter}".upper(): axis.kernel}
            expected |= {f"{axis.name} stride and dilation": (axis.stride, axis.dilation)}
            expected |= {f"{axis.name} padding": (axis.pad_begin, axis.pad_end)}
        got |= {f"{_AXES[x]} stride and dilation": relation for x, relation in found.relations.items()}
        got |= {f"{_AXES[name[1:].lower()]} padding": pads for name, (_, pads) in found.partial.items()}
        operator, sizes = "Conv", {"I": elements[read[0]], "W": elements[read[1]], "O": elements[written]}
    else:
        shared, rows, columns = product_extents(nest)
        loops = ({"B": shared} if shared > 1 else {}) | {"D": rows, "K": columns, "C": nest.k}
        operator, sizes = "Gemm", {"I": nest.left_elements, "W": nest.right_elements, "O": nest.output_elements}
    expected |= {
        "operator": operator,
        **{f"loop {k}": v for k, v in loops.items()},
        **{f"elements of {k}": v for k, v in sizes.items()},
    }
    got |= {"operator": found.operator, **{f"loop {k}": v for k, v in found.loops.items()}}
    for operand in sizes:
        try:
            got[f"elements of {operand}"] = found.elements(operand)
        except KeyError as error:
            yield f"index {error} of {operand} has no loop and no relation"
            return
    for key in {**expected, **got}:
        if got.get(key) != expected.get(key):
            yield f"{key} is {got.get(key)}, the trace has {expected.get(key)}"


# --- results ----------------------------------------------------------------------------------------------------------------------

RESULT_SUFFIX = "_complete.json"
LATENCY = ("data_onloading", "computation", "data_offloading")
"""Parts of a layer's latency in cycles; their sum is what ZigZag calls its latency."""


def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float) -> dict[int, float]:
    """Duration in ns of each execution, from the folder of LAYER_complete.json that ZigZag fills; `cycle_ns` is the length of a cycle.

    A layer's latency, with the loading of its operands and the storing of its results, times its count is spread evenly over its
    executions.

    Raises:
        ExportError: a result is missing, is of another export, or is damaged; says which.
    """
    durations: dict[int, float] = {}
    for layer in layer_map:
        file = path / f"{layer.name}{RESULT_SUFFIX}"
        try:
            content = read_json(read_regular(file))
            latency = [content["outputs"]["latency"][part] for part in LATENCY]
            found = content["inputs"]["layer"]
            same = {key: found[key] for key in ("name", "equation", "loop_dimensions", "equation_relations", "operand_precision")}
        except OSError as error:
            raise ExportError(f"{file} cannot be read ({type(error).__name__}); map the whole export with ZigZag first") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(f"{file} is no result of ZigZag ({one_line(error)}); map the export again") from None
        if any(type(value) not in (int, float) or not 0 <= value < inf for value in latency):
            raise ExportError(f"{file} has a latency of {brief(latency)} cycles; map the export again")
        expected = _as_reported(layer)
        other = [key for key, value in expected.items() if same[key] != value]
        if other:
            raise ExportError(
                f"{file} is of another export: its {other[0]} is {brief(same[other[0]])}, layer {layer.name} has {expected[other[0]]}"
            )
        each = sum(latency) * layer.count * cycle_ns / len(layer.executions)
        durations.update(dict.fromkeys(layer.executions, each))
    return durations


def _as_reported(layer: ExportedLayer) -> dict[str, Any]:
    """How ZigZag repeats a layer in its result."""
    try:
        spelled = spell(nest_from_json(layer.facts["nest"]))
        precision = dict(layer.facts["precision"])
    except (KeyError, TypeError, ValueError, TraceError) as error:
        raise ExportError(f"export.json says too little of {layer.name} ({one_line(error)}); export again") from None
    if isinstance(spelled, str):
        raise ExportError(f"export.json has {layer.name}, but {spelled}; export again")
    relations = [re.sub(r"[a-z]+", lambda m: m[0].upper(), r).replace("=", " = ").replace("+", " + ") for r in spelled.relations]
    return {
        "name": layer.name,
        "equation": spelled.equation.replace("+=", " = ").replace("*", " * "),
        "loop_dimensions": dict(spelled.loops),
        "equation_relations": relations,
        "operand_precision": precision,
    }
