"""ONNX models: convolutions, their gradients and matrix products as operators of static shapes, for Stream, ONNXim and other readers.

Target: ONNX, opset 17 in IR version 8 (opset 22 in IR version 10 where there is bfloat16), https://github.com/onnx/onnx; operators as
https://onnx.ai/onnx/operators defines them. NAME.onnx is one ModelProto (`schemas/onnx_model.proto`). Images are channels first,
whatever layout the trace has: axes are told by their names, never by position. Every tensor has its shape in the model.

* convolution: `Conv` with explicit kernel_shape, strides, dilations, pads and group
* input gradient: `ConvTranspose`, which is its definition; with `input_gradient=product` the product by im2col (col2im is left to do)
* filter gradient: a `Conv` of the image over the gradient of the output, batch and channels exchanged and stride and dilation exchanged
* matrix product: `Gemm` of two matrices, or `MatMul`, whose batch dimensions broadcast; operands are as after transposition

All of them have the trace's multiply-accumulates. An operand that an earlier layer made, perhaps through operations that are not in the
model, is that layer's output where its shape is the same. What else is read is an input of the graph: a model has no weights unless
`weights=zeros` asks for initializers. These hold zeros: in the model where they are small, and otherwise all in the same place of
NAME.weights, which is as large as the largest. With `models=one_output` there are NAME_0.onnx, NAME_1.onnx, ... instead, in which only
one result is not read again; what one makes and another reads is an output there and an input here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, prod
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from fathom_trace import wire
from fathom_trace.errors import ExportError, TraceError, one_line
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
from fathom_trace.generated import onnx_model_pb2 as schema
from fathom_trace.loops import (
    Axis,
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
from fathom_trace.units import format_bytes, format_count, format_ns
from fathom_trace.untrusted import MOST_MESSAGE_BYTES, brief, read_regular, read_yaml

TARGET = Target(
    name="ONNX",
    version="opset 17",
    url="https://github.com/onnx/onnx",
    proof=TARGET_RAN,
    proof_detail="tests have the onnx package check the models in full, infer every shape anew and compute small convolutions and both"
    " gradients with its reference evaluator; Stream 2.1.1 reads convolutions, gradients and products with the trace's"
    " multiply-accumulates, and maps two convolutions to the end; other readers of ONNX are not run in tests",
    how_to_run="Stream (pip install stream-dse==2.1.1 six, Python 3.12 or later) takes models of one output with Conv of two axes, Gemm and"
    " MatMul: export with --set input_gradient=product --set models=one_output --set weights=zeros, then run the command that the notes of"
    " export.json give in the exported folder; `whatif --from` reads the results. Any other reader: onnx.load('NAME.onnx')",
)

RUN_STREAM = (
    'python -c "import pathlib, stream; from stream.api import evaluate_mapping;'
    " hardware = pathlib.Path(stream.__file__).parent / 'inputs' / 'examples' / 'hardware' / 'tpu_like_quad_core.yaml';"
    " [evaluate_mapping(str(hardware), str(file), 'results/' + file.stem) for file in sorted(pathlib.Path('.').glob('{stem}*.onnx'))]\""
)
SECONDS_PER_PRODUCT, SECONDS_PER_CONVOLUTION = 1, (4, 15)
"""CPU time that Stream 2.1.1 takes to map a layer of a tiny network, as measured on a slow shared core; large ones take longer."""

OPSET, IR_VERSION = 17, 8
OPSET_BFLOAT16, IR_VERSION_BFLOAT16 = 22, 10
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "float16": 10, "float64": 11,
    "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
ITEM_BYTES = {1: 4, 6: 4, 7: 8, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
CONVOLUTION_TYPES = ("float32", "float16", "float64", "bfloat16")
PRODUCT_TYPES = (*CONVOLUTION_TYPES, "int32", "int64", "uint32", "uint64")
INSIDE_BYTES = 1024
"""Initializers up to this size are in the model, larger ones in the file beside it."""

CONV_TRANSPOSE, PRODUCT = "conv_transpose", "product"
ONE_MODEL, ONE_OUTPUT = "one", "one_output"
INPUTS, ZEROS = "inputs", "zeros"
TRACED = "traced"
IMAGE, MATRIX, EXCHANGED = "image", "matrix", "exchanged"
"""What a tensor's dimensions are: batch, channels and axes; rows and columns; or an image or gradient with batch and channels exchanged."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    name: str = option("", "beginning of the file names; empty: the workload's name")
    dtype: str = option(TRACED, "type of all values; traced: as in the trace", choices=(TRACED, *CONVOLUTION_TYPES))
    weights: str = option(
        INPUTS,
        "filters and right operands that no layer made: inputs of the graph, or initializers of zeros",
        choices=(INPUTS, ZEROS),
    )
    input_gradient: str = option(
        CONV_TRANSPOSE,
        "input gradients as ConvTranspose, or (for readers that have none, such as Stream) as the product by im2col",
        choices=(CONV_TRANSPOSE, PRODUCT),
    )
    models: str = option(
        ONE_MODEL,
        "one model of all layers, or (for readers that take no more, such as Stream) as few as possible of one output each",
        choices=(ONE_MODEL, ONE_OUTPUT),
    )
    unique: bool = option(False, "write identical layers once, with a count in export.json")


@dataclass(frozen=True)
class Spelled:
    """A loop nest as an operator. `operands` are (name in the nest, kind, shape), in the operator's order; `result` likewise."""

    operator: str
    operands: tuple[tuple[str, str, tuple[int, ...]], ...]
    result: tuple[str, tuple[int, ...]]
    how: str
    attributes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)


def spell(nest: LoopNest, input_gradient: str = CONV_TRANSPOSE) -> Spelled | str:
    """A loop nest whose extents are all positive as an operator, or why there is none."""
    if isinstance(nest, GemmNest):
        left, right = (*nest.left_batch, nest.m, nest.k), (*nest.right_batch, nest.k, nest.n)
        plain = len(left) == len(right) == 2
        operands = ("left", MATRIX, left), ("right", MATRIX, right)
        return Spelled("Gemm" if plain else "MatMul", operands, (MATRIX, nest.result_shape), "matrix product")
    if nest.role == FILTER_GRAD:
        return _filter_gradient(nest)
    if nest.role == INPUT_GRAD and input_gradient == PRODUCT:
        return _input_gradient_product(nest)
    image = (nest.batch, nest.groups * nest.channels, *(a.input for a in nest.axes))
    kernel = (nest.groups * nest.filters, nest.channels, *(a.kernel for a in nest.axes))
    output = (nest.batch, nest.groups * nest.filters, *(a.output for a in nest.axes))
    attributes = _attributes(nest, nest.axes)
    kind = "depthwise " if nest.depthwise else "grouped " if nest.groups > 1 else ""
    if nest.role == FORWARD:
        return Spelled(
            "Conv", (("input", IMAGE, image), ("filter", "filter", kernel)), (IMAGE, output), kind + "convolution", attributes
        )
    attributes["output_padding"] = tuple(left_over(a) for a in nest.axes)
    operands = ("output", IMAGE, output), ("filter", "filter", kernel)
    return Spelled("ConvTranspose", operands, (IMAGE, image), kind + "input gradient", attributes)


def _filter_gradient(nest: ConvolutionNest) -> Spelled | str:
    """dW[k, c, r] = sum over n and p of x[n, c, S p + D r] dy[n, k, p]: c images of n channels, and k filters of n channels."""
    axes = [exchanged(a) for a in nest.axes]
    if any(a is None for a in axes):
        return "its windows read no image but what lies before it, and ONNX has no negative padding"
    flipped = [a for a in axes if a is not None]
    image = (nest.channels, nest.groups * nest.batch, *(a.input for a in flipped))
    gradient = (nest.groups * nest.filters, nest.batch, *(a.kernel for a in flipped))
    result = (nest.channels, nest.groups * nest.filters, *(a.output for a in flipped))
    operands = ("input", EXCHANGED, image), ("output", EXCHANGED, gradient)
    kind = "depthwise " if nest.depthwise else "grouped " if nest.groups > 1 else ""
    how = kind + "filter gradient, as the convolution of the image with the gradient"
    return Spelled("Conv", operands, (EXCHANGED, result), how, _attributes(nest, flipped))


def left_over(axis: Axis) -> int:
    """Padded positions behind the last window: fewer than the stride."""
    return axis.input + axis.pad_begin + axis.pad_end - axis.effective_input


def exchanged(axis: Axis) -> Axis | None:
    """The axis of a filter gradient: the output is the kernel, stride and dilation change places, and as many outputs as the kernel has.

    What lies behind the last window would give more outputs where it is as long as the dilation. It is not read: the padding is shorter
    by it, and where that is not enough the image. None where no image is left.
    """
    beyond = left_over(axis) if left_over(axis) >= axis.dilation else 0
    less = min(beyond, axis.pad_end)
    size = axis.input - (beyond - less)
    if size < 1:
        return None
    return Axis(axis.name, size, axis.kernel, axis.output, axis.dilation, axis.stride, axis.pad_begin, axis.pad_end - less)


def _input_gradient_product(nest: ConvolutionNest) -> Spelled:
    product = nest.as_gemm()
    batch = (product.repeats,) * (product.repeats > 1)
    operands = ("output", MATRIX, (*batch, product.m, product.k)), ("filter", MATRIX, (*batch, product.k, product.n))
    how = "input gradient as a product by im2col, col2im afterwards"
    return Spelled("MatMul" if batch else "Gemm", operands, ("columns", (*batch, product.m, product.n)), how)


def _attributes(nest: ConvolutionNest, axes: Sequence[Axis]) -> dict[str, int | tuple[int, ...]]:
    return {
        "dilations": tuple(a.dilation for a in axes),
        "group": nest.groups,
        "kernel_shape": tuple(a.kernel for a in axes),
        "pads": (*(a.pad_begin for a in axes), *(a.pad_end for a in axes)),
        "strides": tuple(a.stride for a in axes),
    }


# --- writing ----------------------------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    """Layers that are written as one node: those of a node and nest, or with `unique` all that are written alike."""

    spelled: Spelled
    dtype: str
    layers: list[Layer]


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str
    kind: str


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write a model of the layers that the trace's most frequent structure executed, in the order in which each was first executed.

    Raises:
        ExportError: nothing in it is a convolution or a matrix product that ONNX has.
        TraceError: attributes and shapes of the trace contradict each other.
    """
    work = find_work(trace)
    groups, refused = _groups(work, options)
    if not groups:
        raise work.nothing("and ONNX is given nothing else", refused)
    stem = file_stem(options.name, trace.provenance)
    model = _Model(work, groups, options, stem)
    parts = model.parts() if options.models == ONE_OUTPUT else [list(range(len(groups)))]
    width = len(str(len(parts) - 1))
    names = [f"{stem}.onnx"] if options.models == ONE_MODEL else [f"{stem}_{i:0{width}d}.onnx" for i in range(len(parts))]
    places = {}
    for file, part in zip(names, parts, strict=True):
        (folder / file).write_bytes(model.encode(part))
        places.update({number: f"{file}:node {position}" for position, number in enumerate(part)})
    files = list(names)
    if model.outside_bytes:
        files.append(f"{stem}.weights")
        with (folder / files[-1]).open("wb") as weights:
            weights.truncate(model.outside_bytes)  # zeros that take no room where the file system has holes
    exported = []
    for number, (group, name) in enumerate(zip(groups, model.names, strict=True)):
        first = group.layers[0]
        node, nodes = work.node_name((first,)), len({work.node_name((layer,)) for layer in group.layers})
        executions = sorted(e for layer in group.layers for e in layer.executions)
        exported.append(
            ExportedLayer(
                name=name,
                place=places[number],
                how=f"{group.spelled.operator}: {group.spelled.how}",
                executions=tuple(executions),
                macs=sum(layer.nest.macs for layer in group.layers),
                time_ns=work.time_ns(executions),
                count=len(group.layers),
                note=node + f" and {nodes - 1} more" * (nodes > 1),
                facts={"nest": first.nest.to_json(), "dtype": group.dtype},
            )
        )
    report = ExportReport(
        exporter="onnx",
        target=TARGET,
        files=tuple(files),
        layers=tuple(exported),
        skipped=(*work.skipped, *refused),
        settings={**asdict(options), "name": stem, "structure": work.structure},
        approximations=tuple(_approximations(groups, model)),
        notes=(*model.notes(), *_stream_notes(groups, options, parts, model, stem), *work.notes()),
        provenance=dict(trace.provenance),
    )
    work.verify(report)
    return report


def _groups(work: Work, options: Options) -> tuple[list[_Group], list[Skipped]]:
    groups: dict[Any, _Group] = {}
    refused: dict[str, list[Layer]] = defaultdict(list)
    for number, members in enumerate(work.groups):
        first = members[0]
        spelled = spell(first.nest, options.input_gradient)
        dtype = _dtype(work, first, options)
        if isinstance(spelled, Spelled):
            allowed = PRODUCT_TYPES if spelled.operator in ("Gemm", "MatMul") else CONVOLUTION_TYPES
            if dtype not in allowed:
                spelled = f"{spelled.operator} of {dtype} is not in ONNX; --set dtype=float32 would write it as that"
        if isinstance(spelled, str):
            refused[spelled] += members
            continue
        key = (spelled.operator, spelled.operands, tuple(spelled.attributes.items()), dtype, len(first.executions))
        groups.setdefault(key if options.unique else number, _Group(spelled, dtype, [])).layers.extend(members)
    return list(groups.values()), work.refusals(refused)


def _dtype(work: Work, layer: Layer, options: Options) -> str:
    """The one type that operands and result of an operator have; several types are named together, which is a type of no operator."""
    if options.dtype != TRACED:
        return options.dtype
    rows = [*operand_tensors(work, layer).values(), work.trace.outputs(layer.execution)[0]]
    return " and ".join(dict.fromkeys(work.trace.strings[int(work.trace.tensors.dtype[row])] for row in rows))


class _Model:
    """The graph: which tensor each operand is."""

    def __init__(self, work: Work, groups: Sequence[_Group], options: Options, stem: str) -> None:
        self.groups, self.options, self.stem = groups, options, stem
        self.tensors: dict[str, _Tensor] = {}
        self.initializers: set[str] = set()
        self.names: list[str] = []
        self.nodes: list[tuple[str, Sequence[str], str]] = []
        self.linked, self.unlinked, self.several = 0, 0, 0
        self.outside_bytes = 0
        taken: set[str] = set()
        self._given: dict[tuple[int, _Tensor], str] = {}
        sources = operand_sources(work)
        made: dict[int, str] = {}
        for group in groups:
            first = group.layers[0]
            name = unique_name(re.sub(r"[^A-Za-z0-9_]", "_", work.node_name((first,))) or "layer", taken)
            self.names.append(name)
            rows = operand_tensors(work, first)
            operands = []
            for operand, kind, shape in group.spelled.operands:
                tensor = _Tensor(shape, group.dtype, kind)
                found = self._link(tensor, sources[first.execution][operand], made, _is_flipped(work, first, operand))
                operands.append(found or self._give(f"{name}_{operand}", tensor, rows[operand], operand in ("filter", "right")))
            result = f"{name}_result"
            self.tensors[result] = _Tensor(group.spelled.result[1], group.dtype, group.spelled.result[0])
            self.nodes.append((name, operands, result))
            made.update((layer.execution, result) for layer in group.layers)

    def parts(self) -> list[list[int]]:
        """The nodes by model such that each model has one output: a node joins those that read it if these are all in one model."""
        readers: dict[str, set[int]] = defaultdict(set)
        part = [0] * len(self.nodes)
        for number in reversed(range(len(self.nodes))):
            _, operands, result = self.nodes[number]
            part[number] = next(iter(readers[result])) if len(readers[result]) == 1 else number
            for operand in operands:
                readers[operand].add(part[number])
        found: dict[int, list[int]] = defaultdict(list)
        for number, end in enumerate(part):
            found[end].append(number)
        return sorted(found.values())

    def _link(self, tensor: _Tensor, source: Source | None, made: Mapping[int, str], flipped: bool) -> str | None:
        """The output of the layer that an operand comes from, if it is there and is such a tensor."""
        name = made.get(source.execution) if source else None
        if name is None or source is None:
            return None
        if self.tensors[name] != tensor or flipped or tensor.kind not in (IMAGE, MATRIX):
            self.unlinked += 1
            return None
        self.linked += 1
        self.several += not source.sole
        return name

    def _give(self, name: str, tensor: _Tensor, row: int, is_weight: bool) -> str:
        """The input or initializer that a tensor of the trace is; the same for all that read it so."""
        if (row, tensor) not in self._given:
            self._given[row, tensor] = name
            self.tensors[name] = tensor
            if is_weight and self.options.weights == ZEROS:
                self.initializers.add(name)
                size = size_bytes(tensor.shape, tensor.dtype)
                self.outside_bytes = max(self.outside_bytes, size if size > INSIDE_BYTES else 0)
        return self._given[row, tensor]

    def encode(self, part: Sequence[int]) -> bytes:
        """The ModelProto of some nodes. What another model makes is an input here."""
        nodes = [self.nodes[number] for number in part]
        made = [result for _, _, result in nodes]
        read = dict.fromkeys(operand for _, operands, _ in nodes for operand in operands)
        given = [name for name in read if name not in set(made)]
        graph = [wire.delimited(1, self._node(*self.nodes[i], self.groups[i].spelled)) for i in part]
        graph.append(wire.delimited(2, self.stem))
        graph += [wire.delimited(5, self._initializer(name)) for name in given if name in self.initializers]
        for field_number, names in (
            (11, [name for name in given if name not in self.initializers]),
            (12, [name for name in made if name not in read]),
            (13, [name for name in made if name in read]),
        ):
            graph += [wire.delimited(field_number, value_info(name, self.tensors[name])) for name in names]
        bfloat16 = any(self.groups[number].dtype == "bfloat16" for number in part)
        opset, version = (OPSET_BFLOAT16, IR_VERSION_BFLOAT16) if bfloat16 else (OPSET, IR_VERSION)
        return b"".join(
            [
                wire.integer(1, version),
                wire.delimited(2, "fathom-trace"),
                wire.delimited(7, b"".join(graph)),
                wire.delimited(8, wire.delimited(1, "") + wire.integer(2, opset)),
            ]
        )

    def _node(self, name: str, operands: Sequence[str], result: str, spelled: Spelled) -> bytes:
        parts = [wire.delimited(1, operand) for operand in operands]
        parts += [wire.delimited(2, result), wire.delimited(3, name), wire.delimited(4, spelled.operator)]
        for key, value in spelled.attributes.items():
            if isinstance(value, int):
                content = wire.delimited(1, key) + wire.integer(3, value) + wire.integer(20, schema.INT)
            else:
                content = wire.delimited(1, key) + b"".join(wire.integer(8, v) for v in value) + wire.integer(20, schema.INTS)
            parts.append(wire.delimited(5, content))
        return b"".join(parts)

    def _initializer(self, name: str) -> bytes:
        tensor = self.tensors[name]
        size = size_bytes(tensor.shape, tensor.dtype)
        parts = [wire.integer(1, d) for d in tensor.shape] + [wire.integer(2, ELEMENT_TYPES[tensor.dtype]), wire.delimited(8, name)]
        if size <= INSIDE_BYTES:
            return b"".join([*parts, wire.delimited(9, bytes(size))])
        where = {"location": f"{self.stem}.weights", "offset": "0", "length": str(size)}
        parts += [wire.delimited(13, wire.delimited(1, key) + wire.delimited(2, value)) for key, value in where.items()]
        return b"".join([*parts, wire.integer(14, schema.EXTERNAL)])

    def notes(self) -> Iterable[str]:
        """What a reader of the report should know of the graph."""
        made = {result for _, _, result in self.nodes}
        values = sum(prod(tensor.shape) for name, tensor in self.tensors.items() if name not in made)
        inputs, outputs = (
            len(self.tensors) - len(made) - len(self.initializers),
            len(made - {o for _, ops, _ in self.nodes for o in ops}),
        )
        yield (
            f"{len(self.nodes)} nodes, {inputs} inputs and {len(self.initializers)} initializers of {format_count(values)} values in all,"
            f" {outputs} outputs that no node reads"
        )
        if self.outside_bytes:
            yield f"{self.stem}.weights holds {format_bytes(self.outside_bytes)} of zeros that all large initializers share"


def _stream_notes(
    groups: Sequence[_Group], options: Options, parts: Sequence[Sequence[int]], model: _Model, stem: str
) -> Iterable[str]:
    """How to run Stream on the models, or what keeps it from taking them."""
    operators = {group.spelled.operator for group in groups}
    axes = {len(group.spelled.result[1]) - 2 for group in groups if group.spelled.operator in ("Conv", "ConvTranspose")}
    reasons = []
    if "ConvTranspose" in operators:
        reasons.append("ConvTranspose (--set input_gradient=product)")
    if axes - {2}:
        reasons.append("a convolution of three axes (select other layers)")
    if any(group.dtype in ("float64", "int64", "uint32", "uint64") for group in groups):
        reasons.append("values of 64 bits or unsigned ones (--set dtype=float32)")
    made = {result for _, _, result in model.nodes}
    if options.models == ONE_MODEL and len(made - {operand for _, operands, _ in model.nodes for operand in operands}) > 1:
        reasons.append("several outputs (--set models=one_output)")
    if reasons:
        yield f"Stream does not take {', nor '.join(reasons)}"
    else:
        convolutions = sum(group.spelled.operator == "Conv" for group in groups)
        products = (len(groups) - convolutions) * SECONDS_PER_PRODUCT
        low, high = (format_ns((products + convolutions * seconds) * 1e9) for seconds in SECONDS_PER_CONVOLUTION)
        time = low if low == high else f"{low} to {high}"
        yield f"run Stream ({len(parts)} model{'s' * (len(parts) > 1)}, about {time} of CPU time): {RUN_STREAM.format(stem=stem)}"


def _is_flipped(work: Work, layer: Layer, operand: str) -> bool:
    """Whether a product reads its operand transposed, so that it is not the tensor as it was made."""
    attributes = work.trace.node_attributes[int(work.trace.executions.node[layer.execution])]
    keys = {"left": ("transpose_a", "adj_x"), "right": ("transpose_b", "adj_y")}.get(operand, ())
    return any(attributes.get(key) for key in keys) or (bool(keys) and "equation" in attributes)


def size_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a tensor's values."""
    return prod(shape) * ITEM_BYTES[ELEMENT_TYPES[dtype]]


def value_info(name: str, tensor: _Tensor) -> bytes:
    """A ValueInfoProto: name, element type and every extent."""
    shape = b"".join(wire.delimited(1, wire.integer(1, extent)) for extent in tensor.shape)
    content = wire.integer(1, ELEMENT_TYPES[tensor.dtype]) + wire.delimited(2, shape)
    return wire.delimited(1, name) + wire.delimited(2, wire.delimited(1, content))


def _approximations(groups: Sequence[_Group], model: _Model) -> Iterable[str]:
    yield "only convolutions and matrix products are in the model: what was executed between them is not"
    if model.unlinked:
        yield f"{model.unlinked} operands that a layer made are inputs of the graph: pooling or the like changes their shape or order"
    if model.several:
        yield f"{model.several} operands to which several layers contributed are linked to the last of them"
    if model.options.dtype != TRACED:
        yield f"all values are {model.options.dtype}, whatever they are in the trace"
    merged = sum(len(g.layers) > 1 for g in groups)
    if merged:
        yield f"{merged} nodes stand for several executions: their operands are those of the first"
    cut = sum(_is_cut(layer.nest) for group in groups for layer in group.layers)
    if cut:
        yield f"{cut} filter gradients are given the image without its end, which no window reads"
    lowered = sum(group.spelled.result[0] == "columns" for group in groups)
    if lowered:
        yield f"{lowered} input gradients are products by im2col: the adding up of their result (col2im) is not in the model"


def _is_cut(nest: LoopNest) -> bool:
    if not isinstance(nest, ConvolutionNest) or nest.role != FILTER_GRAD:
        return False
    return any(flipped is not None and flipped.input != axis.input for axis, flipped in ((a, exchanged(a)) for a in nest.axes))


# --- checking ---------------------------------------------------------------------------------------------------------------------

_CONVOLUTION = {"dilations", "group", "kernel_shape", "pads", "strides"}
_KNOWN_ATTRIBUTES = {"Conv": _CONVOLUTION, "ConvTranspose": _CONVOLUTION | {"output_padding"}, "Gemm": set(), "MatMul": set()}
_TYPE_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}


@dataclass(frozen=True)
class Parsed:
    """A node as a reader of the file sees it: shapes of its operands and of its result, attributes, element type."""

    name: str
    operator: str
    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    attributes: Mapping[str, tuple[int, ...]]
    dtype: str

    @property
    def macs(self) -> int:
        """Multiply-accumulates, by the definition of the operator."""
        if self.operator == "Conv":
            return prod(self.result) * prod(self.operands[1][1:])
        if self.operator == "ConvTranspose":
            return prod(self.operands[0]) * prod(self.operands[1][1:])
        return prod(self.result) * self.operands[0][-1]

    def inferred(self) -> tuple[int, ...] | None:
        """The shape of the result by the definition of the operator, or None where operands do not fit together."""
        left, right = self.operands
        if self.operator in ("Gemm", "MatMul"):
            if min(len(left), len(right)) < 2 or left[-1] != right[-2] or (self.operator == "Gemm" and len(left) + len(right) != 4):
                return None
            return GemmNest("batched_gemm", left[-2], right[-1], left[-1], left[:-2], right[:-2]).result_shape
        values = {key: self.attributes[key] for key in ("kernel_shape", "strides", "dilations", "pads")}
        (group,) = self.attributes["group"]
        rank = len(left) - 2
        sizes = [len(values["pads"]) // 2, *(len(values[key]) for key in ("kernel_shape", "strides", "dilations"))]
        if len(right) != len(left) or set(sizes) != {rank} or right[2:] != values["kernel_shape"] or right[0] % group:
            return None
        spans = [(k - 1) * d + 1 for k, d in zip(values["kernel_shape"], values["dilations"], strict=True)]
        padding = [values["pads"][i] + values["pads"][i + rank] for i in range(rank)]
        if self.operator == "Conv":
            if left[1] != right[1] * group:
                return None
            extents = [(n + p - k) // s + 1 for n, p, k, s in zip(left[2:], padding, spans, values["strides"], strict=True)]
            return (left[0], right[0], *extents)
        behind = self.attributes["output_padding"]
        if left[1] != right[0] or len(behind) != rank:
            return None
        extents = [(n - 1) * s + b + k - p for n, s, b, k, p in zip(left[2:], values["strides"], behind, spans, padding, strict=True)]
        return (left[0], right[1] * group, *extents)


def check(folder: Path) -> CheckReport:
    """Parse the model as strictly as it is written, infer every shape from the operators, and compare with `export.json`.

    Per node: multiply-accumulates, extents, kernel, stride, dilation and padding by axis, groups, and elements of every operand.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    layer_map = read_layer_map(folder)
    on_disk = sorted(p.name for p in folder.iterdir() if p.suffix in (".onnx", ".weights"))
    named = {layer.place.partition(":")[0] for layer in layer_map}
    problems = misplaced(layer_map, (name for name in on_disk if name.endswith(".onnx")))
    facts = {"nodes": 0, "inputs": 0, "initializers": 0, "outputs": 0, "links": 0, "macs": 0}
    for file in sorted(named):
        nodes = _parse(folder, file, facts, problems)
        mine = [layer for layer in layer_map if layer.place.partition(":")[0] == file]
        if len(nodes) != len(mine):
            problems.append(f"{file} has {len(nodes)} nodes, export.json has {len(mine)} layers")
        for number, (node, layer) in enumerate(zip(nodes, mine, strict=False)):
            if layer.place != f"{file}:node {number}" or layer.name != node.name:
                problems.append(f"{file}: node {number} is {node.name}, export.json has {layer.name} at {layer.place}")
            try:
                nest, dtype = nest_from_json(layer.facts["nest"]), str(layer.facts["dtype"])
            except (KeyError, TypeError, TraceError) as error:
                problems.append(f"{layer.name}: export.json says too little of it ({type(error).__name__}: {error})")
                continue
            problems += [f"{file}: {node.name}: {text}" for text in _differences(nest, dtype, node)]
            facts["macs"] += node.macs * layer.count
            if node.macs * layer.count != layer.macs:
                problems.append(f"{layer.name}: {node.macs * layer.count} MACs in the file, {layer.macs} in the trace")
    return CheckReport(tuple(on_disk), facts, tuple(problems))


def _parse(folder: Path, file: str, facts: dict[str, int], problems: list[str]) -> list[Parsed]:
    """The nodes of a model in its order; what breaks the rules of ONNX, or is not as this exporter writes, becomes a problem."""
    model = schema.ModelProto()
    try:
        model.ParseFromString(read_regular(folder / file, MOST_MESSAGE_BYTES))
    except (OSError, DecodeError) as error:
        problems.append(f"{file} cannot be read ({type(error).__name__})")
        return []
    graph = model.graph
    versions = (model.ir_version, [(o.domain, o.version) for o in model.opset_import])
    if versions not in ((IR_VERSION, [("", OPSET)]), (IR_VERSION_BFLOAT16, [("", OPSET_BFLOAT16)])):
        problems.append(f"{file} has IR version {model.ir_version} and opsets {versions[1]}, which this exporter does not write")
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, int] = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        extents = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        if info.name in shapes:
            problems.append(f"{file} declares {info.name} twice")
        if not extents or min(extents) < 1:
            problems.append(f"{file}: the shape of {info.name} is {list(extents)}: every extent must be known and positive")
        shapes[info.name], types[info.name] = extents, info.type.tensor_type.elem_type
    given = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if tensor.name in shapes:
            problems.append(f"{file} declares {tensor.name} twice")
        shapes[tensor.name], types[tensor.name] = tuple(tensor.dims), tensor.data_type
        given.add(tensor.name)
        problems += [f"{file}: initializer {tensor.name}: {text}" for text in _check_initializer(folder, tensor)]
    found: list[Parsed] = []
    read: set[str] = set()
    names: set[str] = set()
    available = set(given)
    for number, node in enumerate(graph.node):
        operands, results = list(node.input), list(node.output)
        where = f"{file}: node {number} ({node.name})"
        if node.name in names or not node.name:
            problems.append(f"{where} has no name of its own")
        names.add(node.name)
        if node.op_type not in _KNOWN_ATTRIBUTES or node.domain or len(operands) != 2 or len(results) != 1:
            problems.append(f"{where} is no Conv, ConvTranspose, Gemm or MatMul of two operands")
            return found
        missing = [name for name in operands if name not in available] + [name for name in results if name not in shapes]
        if missing or results[0] in available:
            problems.append(f"{where} reads or makes {(missing or results)[0]}, which is declared nowhere before or made twice")
            return found
        facts["links"] += sum(name not in given for name in operands)
        read.update(operands)
        available.update(results)
        attributes = {a.name: tuple(a.ints) if a.type == schema.INTS else (a.i,) for a in node.attribute}
        if set(attributes) != _KNOWN_ATTRIBUTES[node.op_type] or len(attributes) != len(node.attribute):
            problems.append(f"{where} has the attributes {sorted(attributes)}, which are not those of {node.op_type}")
            return found
        kinds = {types[name] for name in (*operands, *results)}
        if len(kinds) != 1 or not kinds <= set(ITEM_BYTES):
            problems.append(f"{where} has operands of the element types {sorted(kinds)}")
            return found
        parsed = Parsed(
            node.name,
            node.op_type,
            tuple(shapes[name] for name in operands),
            shapes[results[0]],
            attributes,
            _TYPE_NAMES[kinds.pop()],
        )
        try:
            inferred = parsed.inferred()
        except TraceError:
            inferred = None
        if inferred != parsed.result:
            problems.append(f"{where}: {node.op_type} gives {inferred or 'nothing for such operands'}, the model says {parsed.result}")
        found.append(parsed)
    made = available - given
    if {info.name for info in graph.output} != made - read or {info.name for info in graph.value_info} != made & read:
        problems.append(f"{file}: what no node reads is to be an output, and what one reads a value of the graph; they are not")
    if given - read:
        problems.append(f"{file}: nothing reads {', '.join(sorted(given - read)[:3])}")
    facts["nodes"] += len(found)
    facts["inputs"] += len(graph.input)
    facts["initializers"] += len(graph.initializer)
    facts["outputs"] += len(graph.output)
    return found


def _check_initializer(folder: Path, tensor: schema.TensorProto) -> Iterable[str]:
    """What is wrong with the zeros of an initializer."""
    if tensor.data_type not in ITEM_BYTES:
        yield f"element type {tensor.data_type} is none that this exporter writes"
        return
    size = prod(tensor.dims) * ITEM_BYTES[tensor.data_type]
    if tensor.data_location != schema.EXTERNAL:
        if tensor.raw_data != bytes(size):
            yield f"it does not hold {size} bytes of zeros"
        return
    where = {entry.key: entry.value for entry in tensor.external_data}
    path = folder / Path(where.get("location", "")).name
    if set(where) != {"location", "offset", "length"} or where["offset"] != "0" or where["length"] != str(size):
        yield f"its values are said to be {where}, not {size} bytes at offset 0"
    elif path.name != where["location"] or not path.is_file() or path.stat().st_size < size:
        yield f"{path.name} does not have its {size} bytes"


def _differences(nest: LoopNest, dtype: str, node: Parsed) -> Iterable[str]:
    """What a node says otherwise than the loop nest that it stands for."""
    if node.dtype != dtype:
        yield f"its values are {node.dtype}, the trace has {dtype}"
    left, right = node.operands
    if isinstance(nest, GemmNest):
        expected: dict[str, Any] = {
            "rows": nest.m, "columns": nest.n, "contraction": nest.k, "elements of the left operand": nest.left_elements,
            "elements of the right operand": nest.right_elements, "elements of the result": nest.output_elements,
        }  # fmt: skip
        got: dict[str, Any] = {"rows": left[-2], "columns": right[-1], "contraction": left[-1]}
        got |= dict(zip(list(expected)[3:], (prod(left), prod(right), prod(node.result)), strict=True))
    elif node.operator in ("Gemm", "MatMul"):
        if nest.role != INPUT_GRAD:
            yield f"a {node.operator} cannot stand for {nest}"
            return
        product = nest.as_gemm()
        expected = {
            "rows": product.m, "columns": product.n, "contraction": product.k, "elements of the gradient": nest.output_elements,
            "elements of the filter": nest.filter_elements,
        }  # fmt: skip
        got = dict(zip(expected, (left[-2], right[-1], left[-1], prod(left), prod(right)), strict=True))
    else:
        if (node.operator == "ConvTranspose") != (nest.role == INPUT_GRAD):
            yield f"a {node.operator} cannot stand for {nest}"
            return
        expected, got = _convolution_facts(nest, node)
    for key, value in expected.items():
        if got[key] != value:
            yield f"{key} is {got[key]}, the trace has {value}"


def _convolution_facts(nest: ConvolutionNest, node: Parsed) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a convolution must say by its nest, and what its node says: everything by axis in the trace's sense."""
    left, right, result, attributes = *node.operands, node.result, node.attributes
    rank, exchange = len(nest.axes), nest.role == FILTER_GRAD
    image, kernel, output = (
        (result, right, left) if nest.role == INPUT_GRAD else (left, result, right) if exchange else (left, right, result)
    )
    strides, dilations = ("dilations", "strides") if exchange else ("strides", "dilations")
    expected: dict[str, Any] = {"groups": nest.groups, "axes": rank}
    got: dict[str, Any] = {"groups": attributes["group"][0], "axes": len(result) - 2}
    behind = attributes.get("output_padding", (0,) * rank)
    for i, axis in enumerate(nest.axes if got["axes"] == rank else ()):
        unread = axis.input - image[2 + i]  # of a filter gradient: what no window reads may be missing
        less = axis.pad_end - attributes["pads"][rank + i]
        cut = unread > 0 or less > 0
        size = axis.input if not cut or not exchange else axis.effective_input - axis.pad_begin - (axis.pad_end - less)
        expected |= {
            f"{axis.name} {key}": value
            for key, value in (
                ("input", size), ("output", axis.output), ("kernel", axis.kernel), ("stride", axis.stride), ("dilation", axis.dilation),
                ("padding before", axis.pad_begin), ("padding behind", axis.pad_end - (less if cut and exchange else 0)),
                ("positions behind the last window", left_over(axis) if nest.role == INPUT_GRAD else 0),
            )
        }  # fmt: skip
        got |= {
            f"{axis.name} {key}": value
            for key, value in (
                ("input", image[2 + i]), ("output", output[2 + i]), ("kernel", kernel[2 + i]), ("stride", attributes[strides][i]),
                ("dilation", attributes[dilations][i]), ("padding before", attributes["pads"][i]),
                ("padding behind", attributes["pads"][rank + i]), ("positions behind the last window", behind[i]),
            )
        }  # fmt: skip
    batch, channels, filters = nest.batch, nest.groups * nest.channels, nest.groups * nest.filters
    if exchange:
        expected |= {"image": (nest.channels, nest.groups * batch), "gradient": (filters, batch), "filter": (nest.channels, filters)}
        got |= {"image": left[:2], "gradient": right[:2], "filter": result[:2]}
    else:
        expected |= {"input batch and channels": (batch, channels), "output batch and channels": (batch, filters)}
        expected |= {"filter": (filters, nest.channels)}
        got |= {"input batch and channels": image[:2], "output batch and channels": output[:2], "filter": right[:2]}
    return expected, got


# --- results ----------------------------------------------------------------------------------------------------------------------

BREAKDOWN = "slot_latency_breakdown.yaml"


def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float) -> dict[int, float]:
    """Duration in ns of each execution, from the folder that Stream fills; `cycle_ns` is the length of a cycle.

    Stream runs layers fused in groups and says how long a group takes with its transfers. These cycles are shared out among the layers
    of the group by their multiply-accumulates, and those of a layer, times its count, evenly among its executions.

    Raises:
        ExportError: a result is missing, is of another export, or is damaged; says which.
    """
    layers = {layer.name: layer for layer in layer_map}
    reports = sorted(path.rglob(BREAKDOWN)) if path.is_dir() else []
    if not reports:
        raise ExportError(f"{path} is no folder with a {BREAKDOWN}; evaluate the models with Stream first")
    durations: dict[int, float] = {}
    found: dict[str, Path] = {}
    for report in reports:
        group = report.parents[2]
        names, cycles = _stream_group(group, report)
        for name in names:
            if name not in layers:
                raise ExportError(f"{group / 'mapping.yaml'} has a layer {name}, which the export has not; it is of another export")
            if name in found:
                raise ExportError(
                    f"{group / 'mapping.yaml'} has the layer {name} again after {found[name]}; evaluate into a new folder"
                )
            found[name] = group / "mapping.yaml"
        once = {name: layers[name].macs / layers[name].count for name in names}
        for name in names:
            layer = layers[name]
            share = cycles * once[name] / sum(once.values())
            durations.update(dict.fromkeys(layer.executions, share * layer.count * cycle_ns / len(layer.executions)))
    missing = [name for name in layers if name not in found]
    if missing:
        raise ExportError(
            f"{path} has no result for {missing[0]} and {len(missing) - 1} other layers; evaluate all models with Stream"
        )
    return durations


def _stream_group(group: Path, report: Path) -> tuple[list[str], float]:
    """The layers that a group fuses, and its cycles."""
    file = report
    try:
        cycles = _yaml(file)["totals"]["total_latency_cycles"]
        file = group / "mapping.yaml"
        names = [layer["name"] for layer in _yaml(file)["layers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{file} is no result of Stream ({one_line(error)}); evaluate the models again") from None
    if type(cycles) not in (int, float) or not 0 <= cycles < inf or not names or not all(isinstance(name, str) for name in names):
        raise ExportError(f"{report} and {file} say {brief(cycles)} cycles for layers {brief(names)}; evaluate the models again")
    return names, float(cycles)


def _yaml(path: Path) -> Any:
    return read_yaml(read_regular(path).decode("utf-8"))
