"""AccelForge workloads: every layer as an einsum, chained by the tensors that they share, for the mapper that follows Timeloop.

Target: AccelForge 1.0.467, https://github.com/Accelergy-Project/accelforge, package `accelforge` (Python 3.12 or later); the format as its
`frontend/workload.py` reads it. A file holds one `workload`: per einsum its tensor accesses, each an index expression per rank
(`H: 2*oy_0 + 3*fy_0`), and the bounds of its rank variables. Einsums depend on each other by tensor names, so one file is a whole step.

An einsum is what `fathom_trace.loops` makes of a layer: convolutions forward and backward, with groups, unequal strides and dilation, and
products with batches are all said exactly. What it cannot say is padding: an index has no offset (`oy + fy - 1` would take the accesses
outside for none), so the image is as large as the windows reach, and positions in the padding are elements like others. Executions that
run the same einsum are its `n_instances`, by which AccelForge multiplies every sum that it reports.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fathom_trace.builder import ITEM_BYTES
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
from fathom_trace.loops import ConvolutionNest, Layer, LoopNest, Work, find_work, nest_from_json, operand_tensors
from fathom_trace.loops.projections import Access, Index, Statement, distinct, extent, operand_elements, statement
from fathom_trace.options import option
from fathom_trace.trace import Trace
from fathom_trace.units import format_count, format_ns
from fathom_trace.untrusted import read_regular, read_regular_text

RUN = (
    "python -c \"import csv, accelforge as af; from accelforge.mapper.FFM.mappings import Mappings; Mappings.render = lambda *_, **__: '';"
    " spec = af.Spec.from_yaml(af.examples.arches.simple, '{file}'); file = open('latency.csv', 'w', newline='');"
    " rows = csv.writer(file); rows.writerow(['einsum', 'latency_cycles']);"
    ' [rows.writerows(spec.map_workload_to_arch(einsum_names=[e]).latency(per_einsum=True).items()) for e in spec.workload.einsum_names]"'
)
"""Maps every einsum by itself. AccelForge draws every mapping with Graphviz, which is left out here."""
SECONDS_PER_EINSUM = (5.0, 8.0)
"""CPU time in which AccelForge 1.0.467 maps one small einsum by itself to its `simple` architecture, as measured on a slow shared core."""

TARGET = Target(
    name="AccelForge",
    version="1.0.467",
    url="https://github.com/Accelergy-Project/accelforge",
    proof=TARGET_RAN,
    proof_detail="tests have accelforge 1.0.467 itself read the files and compare MACs, loop bounds and the size of every operand with the"
    " trace, and its mapper run small convolutions, products and gradients to the end; full-size networks are read, not mapped",
    how_to_run="with Python 3.12 or later: pip install accelforge==1.0.467; then, in the exported folder, the command that the notes of"
    " export.json give, with your architecture in the place of accelforge.examples.arches.simple. It maps every einsum by itself, and does"
    " not draw the mappings, which would need Graphviz; without einsum_names AccelForge fuses einsums along the tensors that they share,"
    " which takes much longer. `latency.csv` is what results are read from: its second column is `latency_cycles` where the"
    " architecture's throughputs are per cycle (as in `simple`), and must be called `latency_s` where they are per second",
)

FILE_SUFFIX = ".yaml"
RANKS = {"batch": "B", "group": "G", "filter": "K", "channel": "C", "depth": "D", "height": "H", "width": "W"}
"""Rank of each dimension of a convolution's operands; the filters of its output are the channels of whatever reads that, so `C` too."""
VARIABLES = {
    "batch": "b", "group": "g", "filter": "k", "channel": "c", "output_depth": "oz", "output_height": "oy", "output_width": "ox",
    "kernel_depth": "fz", "kernel_height": "fy", "kernel_width": "fx", "row": "m", "column": "n", "inner": "k",
}  # fmt: skip
"""Rank variable of each loop; a suffix says of which einsum."""
KINDS = {"input": "input", "left": "input", "filter": "weight", "right": "weight", "output": "output", "result": "output"}
"""Which of the options for single operands is an operand's: named from the forward side."""
RESERVED = {"Total", "All", "Tensors", "Nothing", "Inputs", "Outputs", "Intermediates", "Shared", "Persistent", "Above"}
"""Names that mean something else in AccelForge's expressions."""
TRANSPOSED = {"left": ("transpose_a", "adj_x"), "right": ("transpose_b", "adj_y")}
"""Attributes that say that an operand of a product is stored transposed."""
MOST_BITS = 4096


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    name: str = option("", "beginning of the file name; empty: the workload's name")
    unique: bool = option(False, "write identical layers once, with the number of their runs as n_instances")
    bits: int = option(0, "bits of every value; 0: those of the traced dtype")
    bits_input: int = option(0, "bits of inputs (of a product, of the left operand); 0: as bits")
    bits_weight: int = option(0, "bits of filters (of a product, of the right operand); 0: as bits")
    bits_output: int = option(0, "bits of outputs (of a product, of the result); 0: as bits")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if type(value) is int and not 0 <= value <= MOST_BITS:
                raise OptionError(f"option '{spec.name}' is {value}; it takes a whole number from 1 to {MOST_BITS}, or 0")


@dataclass(frozen=True)
class TensorAccess:
    """One operand of an einsum as written: the tensor's name and bits, and its index expression by rank."""

    tensor: str
    indices: Mapping[str, Index]
    output: bool
    bits: int


@dataclass(frozen=True)
class Einsum:
    """An einsum as written: rank variables with their bounds, two tensors read and one written, how often it runs."""

    name: str
    instances: int
    bounds: Mapping[str, int]
    accesses: tuple[TensorAccess, ...]

    @property
    def computes(self) -> int:
        """Points of the iteration space, once."""
        return math.prod(self.bounds.values())

    def elements(self, access: TensorAccess) -> int:
        """Distinct elements of a tensor that the einsum touches."""
        return math.prod(distinct(index, self.bounds) for index in access.indices.values())

    def lines(self, common_bits: int) -> Iterable[str]:
        """The einsum in YAML."""
        yield f'  - name: "{self.name}"'
        yield f"    n_instances: {self.instances}"
        yield "    tensor_accesses:"
        for access in self.accesses:
            projection = ", ".join(f"{rank}: {_expression(index)}" for rank, index in access.indices.items())
            more = ", output: true" * access.output + f", bits_per_value: {access.bits}" * (access.bits != common_bits)
            yield f'    - {{name: "{access.tensor}", projection: {{{projection}}}{more}}}'
        yield f"    iteration_space_shape: [{', '.join(f'0 <= {v} < {size}' for v, size in self.bounds.items())}]"
        yield f"    renames: {{{_roles(self.accesses)}}}"


def _roles(accesses: Sequence[TensorAccess]) -> str:
    """The names that architectures know the operands by."""
    return ", ".join(f'{role}: "{access.tensor}"' for role, access in zip(("input", "weight", "output"), accesses, strict=False))


def _expression(index: Index) -> str:
    return " + ".join(loop if coefficient == 1 else f"{coefficient}*{loop}" for loop, coefficient in index)


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write one workload of all that the trace's most frequent structure executed.

    Raises:
        ExportError: nothing in it is a convolution or a matrix product.
        TraceError: attributes and shapes of the trace contradict each other.
    """
    work = find_work(trace)
    groups = _merged(work) if options.unique else [list(group) for group in work.groups]
    if not groups:
        raise work.nothing("and nothing else is written as an einsum")
    stem = file_stem(options.name, trace.provenance)
    file = stem + FILE_SUFFIX
    names = _Names(work, options)
    einsums = names.einsums(groups)
    bits = Counter(access.bits for einsum in einsums for access in einsum.accesses).most_common(1)[0][0]
    lines = ["workload:", f"  bits_per_value: {{All: {bits}}}", "  einsums:"]
    exported = []
    for einsum, group in zip(einsums, groups, strict=True):
        first = len(lines) + 1
        lines += einsum.lines(bits)
        exported.append(_exported(work, einsum, group, f"{file}:{first}-{len(lines)}"))
    (folder / file).write_text("\n".join(lines) + "\n", encoding="ascii")
    report = ExportReport(
        exporter="accelforge",
        target=TARGET,
        files=(file,),
        layers=tuple(exported),
        skipped=work.skipped,
        settings={**asdict(options), "name": stem, "bits_per_value": bits, "structure": work.structure},
        approximations=tuple(_approximations(groups, einsums, names, options)),
        notes=(*_notes(einsums, file), *work.notes()),
        provenance=dict(trace.provenance),
    )
    work.verify(report)
    return report


def _merged(work: Work) -> list[list[Layer]]:
    """The layers of all nodes that have the same loop nest, dtypes and number of executions, together."""
    merged: dict[Any, list[Layer]] = defaultdict(list)
    for group in work.groups:
        dtypes = tuple(_dtypes(work, group[0]).values())
        merged[group[0].nest, dtypes, len(group[0].executions)].extend(group)
    return list(merged.values())


def _dtypes(work: Work, layer: Layer) -> dict[str, str]:
    """dtype of each operand of a layer."""
    trace = work.trace
    rows = [*operand_tensors(work, layer).items(), (statement(layer.nest).accesses[-1].operand, trace.outputs(layer.execution)[0])]
    return {operand: trace.strings[int(trace.tensors.dtype[row])] for operand, row in rows}


def _exported(work: Work, einsum: Einsum, group: Sequence[Layer], place: str) -> ExportedLayer:
    nest, node = group[0].nest, work.node_name(tuple(group))
    stated = statement(nest)
    executions = sorted(e for layer in group for e in layer.executions)
    others = len({work.node_name((layer,)) for layer in group}) - 1
    tensors = {
        stated_access.operand: {"tensor": access.tensor, "bits": access.bits, "elements": einsum.elements(access)}
        for stated_access, access in zip(stated.accesses, einsum.accesses, strict=True)
    }
    if isinstance(nest, ConvolutionNest):
        tensors["input"]["elements_without_padding"] = nest.input_elements_read
    return ExportedLayer(
        name=einsum.name,
        place=place,
        how=f"einsum of a {str(nest).partition(' N=')[0].partition(' M=')[0]}",
        executions=tuple(executions),
        macs=sum(layer.nest.macs for layer in group),
        time_ns=work.time_ns(executions),
        count=einsum.instances,
        note=f"{node}{f' and {others} more' if others else ''}: {nest}",
        facts={"nest": nest.to_json(), "tensors": tensors},
    )


class _Names:
    """Gives out names: an identifier for every einsum, and one for every tensor, the same where two einsums touch the same elements.

    Einsums share a tensor by name only where they read the very tensor that the other wrote or reads, index the same elements of it by
    the same ranks, and hold it in as many bits: otherwise AccelForge would take two different data spaces for one. They then index it
    by the same rank variables too, without which its mapper fails to join them; where that would make two loops of one einsum one,
    the tensor has a name of its own.
    """

    def __init__(self, work: Work, options: Options) -> None:
        self.work, self.options = work, options
        self.taken = set(RESERVED)
        self.tensors: dict[Any, tuple[str, Mapping[str, Index]]] = {}
        self.uses: Counter[str] = Counter()
        self.variables = _Variables()
        self.apart = 0

    def einsums(self, groups: Sequence[Sequence[Layer]]) -> list[Einsum]:
        """The einsum that each group of layers is."""
        found = [self._einsum(number, group) for number, group in enumerate(groups)]
        names = self.variables.names()
        return [
            replace(
                einsum,
                bounds={names[v]: size for v, size in einsum.bounds.items()},
                accesses=tuple(
                    replace(access, indices={rank: tuple((names[v], c) for v, c in index) for rank, index in access.indices.items()})
                    for access in einsum.accesses
                ),
            )
            for einsum in found
        ]

    def _einsum(self, number: int, group: Sequence[Layer]) -> Einsum:
        stated = statement(group[0].nest)
        name = unique_name(clean_name(self.work.node_name(tuple(group))), self.taken)
        variables = {loop: variable(loop, number) for loop in stated.loops}
        self.variables.add(number, {variables[loop]: size for loop, size in stated.loops.items()})
        flipped = _flipped(self.work, group[0])
        dtypes = _dtypes(self.work, group[0])
        accesses: list[TensorAccess] = []
        for access in stated.accesses:
            bits = self._bits(access.operand, dtypes[access.operand])
            ranks = ranks_of(access, flipped.get(access.operand, False))
            indices = {rank: tuple((variables[loop], c) for loop, c in access.indices[d]) for rank, d in ranks.items()}
            key = self._key(group, access, stated, ranks, bits) if flipped else None
            tensor, other = self.tensors.get(key, ("", {})) if key else ("", {})
            if tensor and (tensor in {a.tensor for a in accesses} or not self.variables.join(indices, other)):
                self.apart += 1
                tensor, key = "", None
            if not tensor:
                tensor = unique_name(f"{name}_{access.operand}", self.taken)
                if key:
                    self.tensors[key] = tensor, indices
            self.uses[tensor] += 1
            accesses.append(TensorAccess(tensor, indices, access.written, bits))
        return Einsum(name, len(group), {variables[loop]: size for loop, size in stated.loops.items()}, tuple(accesses))

    def _key(self, group: Sequence[Layer], access: Access, stated: Statement, ranks: Mapping[str, str], bits: int) -> Any:
        """What two accesses must have in common to be of one tensor; None where the access is of several, or of a rearranged one."""
        layer, nest = group[0], group[0].nest
        if len(layer.executions) > 1 and access.operand != "filter":  # its image lies between SpaceToBatchND and BatchToSpaceND
            return None
        if access.written:
            tensors = {self.work.trace.outputs(member.execution)[0] for member in group}
        else:
            tensors = {operand_tensors(self.work, member)[access.operand] for member in group}
        if len(tensors) > 1:
            return None
        axes = {a.name: a for a in nest.axes} if isinstance(nest, ConvolutionNest) and access.operand == "input" else {}
        form = []
        for rank, dimension in ranks.items():
            axis = axes.get(dimension)
            whole = axis is None or (axis.read == axis.input and axis.read_with_padding == axis.input)
            form.append((rank, extent(access.indices[dimension], stated.loops) if whole else axis))
        return tensors.pop(), tuple(form), bits

    def _bits(self, operand: str, dtype: str) -> int:
        """Bits of an operand's values."""
        chosen = int(getattr(self.options, f"bits_{KINDS[operand]}")) or self.options.bits
        if not chosen and dtype not in ITEM_BYTES:
            raise ExportError(f"values of dtype {dtype} have no fixed size; give one with --set bits=")
        return chosen or 8 * ITEM_BYTES[dtype]


class _Variables:
    """Rank variables, and which of different einsums must be one because they index one tensor alike."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.classes: dict[str, dict[int, str]] = {}
        """By variable, its class: by einsum, the variable that it is there. All variables of a class have the same object."""

    def add(self, einsum: int, bounds: Mapping[str, int]) -> None:
        """New variables of an einsum, each a class of its own."""
        self.sizes.update(bounds)
        self.classes.update({name: {einsum: name} for name in bounds})

    def join(self, indices: Mapping[str, Index], others: Mapping[str, Index]) -> bool:
        """Make the variables that index a tensor's ranks one; False, and nothing done, where they cannot be.

        They cannot where two of one einsum would become one, or where two sums of variables differ. A rank that is indexed by one
        variable here and by a sum there keeps both: AccelForge translates by the rank.
        """
        changed: dict[str, dict[int, str]] = {}
        for rank, index in indices.items():
            other = others[rank]
            if len(index) != len(other):
                continue
            if any((self.sizes[a], c) != (self.sizes[b], d) for (a, c), (b, d) in zip(index, other, strict=True)):
                return False
            for (a, _), (b, _) in zip(index, other, strict=True):
                first, second = (changed.get(name) or self.classes[name] for name in (b, a))
                if first is second:
                    continue
                if first.keys() & second.keys():
                    return False
                joined = first | second
                changed.update(dict.fromkeys(joined.values(), joined))
        self.classes.update(changed)
        return True

    def names(self) -> dict[str, str]:
        """The name of each variable: that of its class's first einsum."""
        return {name: members[min(members)] for name, members in self.classes.items()}


def clean_name(name: str) -> str:
    """`name` as an identifier that AccelForge and isl take: letters, digits and underscores, a letter first."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return text if re.match("[A-Za-z]", text) else f"layer{text}" if text.startswith("_") else f"layer_{text}"


def variable(loop: str, number: int) -> str:
    """The rank variable of a loop in an einsum."""
    kind, _, batch = loop.partition("_")
    return f"b{batch}_{number}" if kind == "batch" and batch else f"{VARIABLES[loop]}_{number}"


def ranks_of(access: Access, flipped: bool) -> dict[str, str]:
    """The dimension of an operand under each of its ranks, in the order in which every einsum must state them.

    A matrix has ranks `Row` and `Column` as it is stored; `flipped` says that the product reads it transposed.
    """
    found: dict[str, str] = {}
    matrix = [d for d in access.indices if d in ("row", "inner", "column")]
    for dimension in access.indices:
        batch = dimension.partition("_")[2]
        if batch:
            found[f"B{batch}"] = dimension
        elif dimension not in matrix:
            found["C" if dimension == "filter" and access.operand == "output" else RANKS[dimension]] = dimension
    return found | dict(zip(("Row", "Column"), matrix[::-1] if flipped else matrix, strict=False))


def _flipped(work: Work, layer: Layer) -> dict[str, bool]:
    """Whether each operand is stored transposed; nothing where that cannot be told, because dimensions were merged (an Einsum)."""
    node = int(work.trace.executions.node[layer.execution])
    if isinstance(layer.nest, ConvolutionNest):
        return dict.fromkeys(("input", "filter", "output"), False)
    if "Einsum" in work.trace.node_ops[node]:
        return {}
    attributes = work.trace.node_attributes[node]
    sides = {side: any(attributes.get(key) for key in keys) for side, keys in TRANSPOSED.items()}
    return {**sides, "result": False}


def _approximations(groups: Sequence[Sequence[Layer]], einsums: Sequence[Einsum], names: _Names, options: Options) -> Iterable[str]:
    nests = [(group[0].nest, len(group)) for group in groups]
    padded = [
        (nest, runs)
        for nest, runs in nests
        if isinstance(nest, ConvolutionNest) and nest.input_elements_with_padding != nest.input_elements_read
    ]
    if padded:
        with_padding = sum(nest.input_elements_with_padding * runs for nest, runs in padded)
        without = sum(nest.input_elements_read * runs for nest, runs in padded)
        yield (
            f"{sum(runs for _, runs in padded)} convolutions read padding, which counts as elements of their image:"
            f" {with_padding} with it, {without} without"
        )
    if options.bits or options.bits_input or options.bits_weight or options.bits_output:
        yield "the numbers of bits are chosen, not those that were traced"
    if names.apart:
        yield (
            f"{names.apart} operands that other einsums have too are under names of their own: AccelForge would need the same loops in both"
        )
    read = sum(not access.output for einsum in einsums for access in einsum.accesses)
    shared = sum(names.uses[access.tensor] > 1 for einsum in einsums for access in einsum.accesses if not access.output)
    yield (
        f"{shared} of {read} operands are read under a name that another einsum has too; the others come from elsewhere, pass through"
        " operations that are no layers, are padded, or differ from run to run: AccelForge sees no dependency there"
    )


def _notes(einsums: Sequence[Einsum], file: str) -> Iterable[str]:
    runs = sum(einsum.instances for einsum in einsums)
    yield f"{len(einsums)} einsums, {format_count(runs)} runs (n_instances); AccelForge's sums are of all runs"
    low, high = (format_ns(len(einsums) * seconds * 1e9) for seconds in SECONDS_PER_EINSUM)
    yield f"to map each by itself takes about {low} to {high} of CPU time, where they are small; large extents and joining take longer"
    yield f"run: {RUN.format(file=file)}"


# --- checking ---------------------------------------------------------------------------------------------------------------------

_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_TERM = rf"(?:([1-9][0-9]*)\*)?({_NAME})"
_INDEX = rf"(?:[1-9][0-9]*\*)?{_NAME}(?: \+ (?:[1-9][0-9]*\*)?{_NAME})*"
_HEADER = re.compile(r"workload:\n  bits_per_value: \{All: ([1-9][0-9]*)\}\n  einsums:\n")
_EINSUM = re.compile(
    rf'  - name: "({_NAME})"\n    n_instances: ([1-9][0-9]*)\n    tensor_accesses:\n((?:    - .*\n)+)'
    r"    iteration_space_shape: \[(.*)\]\n    renames: \{(.*)\}\n"
)
_ACCESS = re.compile(
    rf'    - \{{name: "({_NAME})", projection: \{{({_NAME}: {_INDEX}(?:, {_NAME}: {_INDEX})*)\}}(, output: true)?'
    r"(?:, bits_per_value: ([1-9][0-9]*))?\}"
)
_BOUND = re.compile(rf"0 <= ({_NAME}) < ([1-9][0-9]*)")


def check(folder: Path) -> CheckReport:
    """Parse the workload as strictly as it is written, and compare every einsum with the layer in `export.json`.

    Per layer: MACs, every loop bound (so output extents and kernel by axis), every index (so stride and dilation by axis), distinct
    elements of each operand; in the whole, that names are unique and that tensors with one name are one tensor.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    layer_map = read_layer_map(folder)
    expected = {layer.place.partition(":")[0] for layer in layer_map}
    on_disk = {path.name for path in folder.glob(f"*{FILE_SUFFIX}")}
    problems = misplaced(layer_map, on_disk)
    facts = {"einsums": 0, "instances": 0, "tensors": 0, "shared tensors": 0, "macs": 0}
    for name in sorted(expected):
        einsums = _parse(folder / name, problems)
        written = [layer for layer in layer_map if layer.place.partition(":")[0] == name]
        if [einsum.name for einsum in einsums] != [layer.name for layer in written]:
            problems.append(f"{name} holds other einsums than export.json lists, or in another order")
            continue
        for einsum, layer in zip(einsums, written, strict=True):
            problems += [f"{name}: {einsum.name}: {text}" for text in _differences(einsum, layer)]
        problems += [f"{name}: {text}" for text in _inconsistencies(einsums)]
        uses = Counter(access.tensor for einsum in einsums for access in einsum.accesses)
        facts["einsums"] += len(einsums)
        facts["instances"] += sum(einsum.instances for einsum in einsums)
        facts["tensors"] += len(uses)
        facts["shared tensors"] += sum(count > 1 for count in uses.values())
        facts["macs"] += sum(einsum.computes * einsum.instances for einsum in einsums)
    return CheckReport(tuple(sorted(on_disk)), facts, tuple(problems))


def _parse(path: Path, problems: list[str]) -> list[Einsum]:
    """The einsums of a file; what breaks the grammar becomes a problem that names the line."""
    try:
        text = read_regular(path).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} cannot be read ({type(error).__name__})")
        return []
    header = _HEADER.match(text)
    if not header:
        problems.append(f"{path.name}:1 does not begin a workload with bits_per_value and einsums")
        return []
    einsums: list[Einsum] = []
    position = header.end()
    while position < len(text):
        match = _EINSUM.match(text, position)
        line = text.count("\n", 0, position) + 1
        einsum = _einsum(match, int(header[1])) if match else None
        if match is None or einsum is None:
            problems.append(f"{path.name}:{line} does not begin an einsum as this exporter writes it")
            return einsums
        einsums.append(einsum)
        position = match.end()
    return einsums


def _einsum(match: re.Match[str], common_bits: int) -> Einsum | None:
    """The einsum of a match, or None where a line of it breaks the grammar."""
    accesses = []
    for line in match[3].splitlines():
        found = _ACCESS.fullmatch(line)
        if not found:
            return None
        pairs = [part.split(": ") for part in found[2].split(", ")]
        if len({rank for rank, _ in pairs}) != len(pairs):
            return None
        indices = {rank: tuple((v, int(c or 1)) for c, v in re.findall(_TERM, text)) for rank, text in pairs}
        accesses.append(TensorAccess(found[1], indices, bool(found[3]), int(found[4] or common_bits)))
    bounds = [_BOUND.fullmatch(part) for part in match[4].split(", ")]
    sizes = {bound[1]: int(bound[2]) for bound in bounds if bound}
    used = {name for access in accesses for index in access.indices.values() for name, _ in index}
    is_complete = [a.output for a in accesses] == [False, False, True] and len(sizes) == len(bounds) and used == set(sizes)
    if not is_complete or match[5] != _roles(accesses):
        return None
    return Einsum(match[1], int(match[2]), sizes, tuple(accesses))


def _differences(einsum: Einsum, layer: ExportedLayer) -> Iterable[str]:
    """What an einsum says otherwise than the loop nest that it stands for."""
    try:
        nest: LoopNest = nest_from_json(layer.facts["nest"])
        tensors = {operand: dict(values) for operand, values in layer.facts["tensors"].items()}
    except (KeyError, TypeError, AttributeError, ValueError, TraceError) as error:
        yield f"export.json says too little of it ({type(error).__name__}: {error})"
        return
    stated = statement(nest)
    if len(einsum.bounds) != len(stated.loops):
        yield f"its rank variables {', '.join(einsum.bounds)} are not the loops {', '.join(stated.loops)}"
        return
    loops = dict(zip(stated.loops, einsum.bounds.items(), strict=True))
    wrong = {loop: size for loop, size in stated.loops.items() if loops[loop][1] != size}
    yield from (f"{loop} is {loops[loop][1]}, the trace has {size}" for loop, size in wrong.items())
    macs = einsum.computes * einsum.instances
    if macs != layer.macs or einsum.instances != layer.count:
        yield f"{macs} MACs in {einsum.instances} runs in the file, {layer.macs} in {layer.count} in the trace"
    for access, written in zip(stated.accesses, einsum.accesses, strict=True):
        wanted, flipped = (
            {rank: tuple((loops[loop][0], c) for loop, c in access.indices[d]) for rank, d in ranks_of(access, order).items()}
            for order in (False, True)
        )
        if list(written.indices.items()) not in (list(wanted.items()), list(flipped.items())):
            yield f"{access.operand} is indexed by {_text(written.indices)}, the trace has {_text(wanted)}"
            continue
        if wrong:
            continue
        expected = operand_elements(nest)[access.operand]
        stated_facts = tensors.get(access.operand, {})
        listed = stated_facts.get("elements")
        if not einsum.elements(written) == expected == listed:
            yield f"{access.operand} has {einsum.elements(written)} elements, the trace {expected}, export.json {listed}"
        if (written.tensor, written.bits) != (stated_facts.get("tensor"), stated_facts.get("bits")):
            yield f"{access.operand} is {written.tensor} with {written.bits} bits, export.json says otherwise"
    listed = tensors.get("input", {}).get("elements_without_padding")
    if isinstance(nest, ConvolutionNest) and listed != nest.input_elements_read:
        yield f"the input has {nest.input_elements_read} elements without padding, export.json says {listed}"


def _text(indices: Mapping[str, Index]) -> str:
    return ", ".join(f"{rank}: {_expression(index)}" for rank, index in indices.items())


def _inconsistencies(einsums: Sequence[Einsum]) -> Iterable[str]:
    """Names that are not unique, and tensors that two einsums describe differently or in the wrong order."""
    names = Counter(einsum.name for einsum in einsums)
    yield from (f"{count} einsums are called {name}" for name, count in names.items() if count > 1)
    sizes: dict[str, int] = {}
    for einsum in einsums:
        for name, size in einsum.bounds.items():
            if sizes.setdefault(name, size) != size:
                yield f"the rank variable {name} is below {size} in {einsum.name}, below {sizes[name]} in an einsum before it"
    yield from (f"{name} is a name that AccelForge has for something else" for name in names if name in RESERVED)
    seen: dict[str, tuple[Any, ...]] = {}
    for einsum in einsums:
        if len({access.tensor for access in einsum.accesses}) != len(einsum.accesses):
            yield f"{einsum.name} accesses a tensor twice"
        for access in einsum.accesses:
            shape = tuple(
                (rank, extent(index, einsum.bounds), distinct(index, einsum.bounds)) for rank, index in access.indices.items()
            )
            if access.tensor in seen and access.output:
                yield f"{einsum.name} writes {access.tensor}, which an einsum before it writes or reads"
            if seen.setdefault(access.tensor, (shape, access.bits)) != (shape, access.bits):
                yield f"{einsum.name} takes {access.tensor} for another tensor than the einsum before it"


# --- results ----------------------------------------------------------------------------------------------------------------------

RESULT_COLUMNS = {"latency_s": 1e9, "latency_cycles": None}
"""The second column of a results file, and how many ns are one of it; of a cycle as many as `read_results` is told."""


def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float) -> dict[int, float]:
    """Duration in ns of each execution, from the latencies that AccelForge gives for each einsum.

    `path` is the `latency.csv` that the command in the export's notes writes, or a folder with one: lines `einsum,latency`, where the
    header calls the second column `latency_s` (seconds) or `latency_cycles` (then `cycle_ns` is the length of one). A latency is that
    of all runs of an einsum, as AccelForge gives it, and is spread evenly over the executions.

    Raises:
        ExportError: the file is missing, does not belong to the export, or is damaged; says which line.
    """
    file = path / "latency.csv" if path.is_dir() else path
    try:
        rows = list(csv.reader(read_regular_text(file, "ascii").splitlines(), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExportError(f"{file} cannot be read ({type(error).__name__}); write it as export.json's notes say") from None
    if not rows or len(rows[0]) != 2 or rows[0][0] != "einsum" or rows[0][1] not in RESULT_COLUMNS:
        raise ExportError(f"{file}: line 1 is not einsum,latency_s or einsum,latency_cycles")
    unit_ns = RESULT_COLUMNS[rows[0][1]] or cycle_ns
    latencies: dict[str, float] = {}
    for number, row in enumerate(rows[1:], start=2):
        try:
            name, text = row
            value = float(text)
        except ValueError:
            raise ExportError(f"{file}: line {number} is not an einsum and a number; the file is damaged") from None
        if not math.isfinite(value) or value < 0:
            raise ExportError(f"{file}: line {number}: '{text}' is no latency")
        if name in latencies:
            raise ExportError(f"{file}: line {number} names {name} again; give one mapping's latencies")
        latencies[name] = value
    known = {layer.name: layer for layer in layer_map}
    foreign, missing = sorted(set(latencies) - set(known)), sorted(set(known) - set(latencies))
    if foreign:
        raise ExportError(f"{file} names the einsum {foreign[0]}, which the export does not have; the file is of another export")
    if missing:
        raise ExportError(f"{file} lacks the einsum {missing[0]}; map all of them, or export fewer layers")
    return {e: latencies[name] * unit_ns / len(layer.executions) for name, layer in known.items() for e in layer.executions}
