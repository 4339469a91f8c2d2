"""Where the operands of layers come from: the earlier layer whose result reaches them through executions that are no layers.

What comes from a convolution or a product that is not among the layers (outside a selection, or without a loop nest) comes from no layer:
what that one read is not what it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fathom_trace.loops.layers import Layer
from fathom_trace.loops.nests import FILTER_GRAD, FORWARD, ConvolutionNest, LoopNest
from fathom_trace.loops.recover import has_nest
from fathom_trace.loops.work import Work

SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs"})
"""Ops whose outputs say nothing of the values that they read, only of their shape: what comes through them does not come from a layer."""


@dataclass(frozen=True)
class Source:
    """The layer, by its main execution, that was the last to contribute to an operand; `sole` is False where others contributed too."""

    execution: int
    sole: bool = True


def operand_names(nest: LoopNest) -> tuple[str, str]:
    """The two operands that are read: of a convolution, two of `input`, `filter` and `output`; of a product, `left` and `right`."""
    if not isinstance(nest, ConvolutionNest):
        return "left", "right"
    return ("input", "filter") if nest.role == FORWARD else ("input", "output") if nest.role == FILTER_GRAD else ("filter", "output")


def operand_tensors(work: Work, layer: Layer) -> Mapping[str, int]:
    """The tensors that a layer's main execution reads, by operand name, as rows of the trace's tensors.

    A dilated convolution between SpaceToBatchND and BatchToSpaceND reads the rearranged image.
    """
    inputs = work.trace.inputs(layer.execution)
    nest = layer.nest
    # A gradient takes the shape of what it writes in the place of the tensor itself.
    ports = (0, 1) if not isinstance(nest, ConvolutionNest) or nest.role == FORWARD else (0, 2) if nest.role == FILTER_GRAD else (1, 2)
    return {name: inputs[port] for name, port in zip(operand_names(nest), ports, strict=True)}


def operand_sources(work: Work) -> dict[int, dict[str, Source | None]]:
    """For each group of layers, by the main execution of its first: the source of each operand, or None where no layer contributes.

    A source is an earlier execution, so the layer that it belongs to has its first execution before that of the group: in the order of
    `Work.groups` every source comes first. Variables, feeds and constants have no source.
    """
    trace, rows = work.trace, work.trace.structure_rows(work.structure)
    mains = {layer.execution for group in work.groups for layer in group}
    wanted = {group[0].execution: operand_tensors(work, group[0]) for group in work.groups}
    blind = np.array([op in SHAPE_ONLY or has_nest(op) for op in trace.node_ops], bool)
    nodes = trace.executions.node[rows].tolist()
    offsets = trace.executions.input_offsets[rows.start : rows.stop + 1].tolist()
    read = trace.executions.input[offsets[0] : offsets[-1]] if len(offsets) > 1 else np.zeros(0, np.int64)
    producers = trace.tensors.execution[read].tolist()
    latest: list[Source | None] = []  # by execution: what a reader of its outputs gets
    for i, execution in enumerate(range(rows.start, rows.stop)):
        if execution in mains:
            latest.append(Source(execution))
            continue
        found: Source | None = None
        if not blind[nodes[i]]:
            for producer in producers[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]]:
                found = _later(found, latest[producer - rows.start])
        latest.append(found)
    return {
        execution: {name: latest[int(trace.tensors.execution[tensor]) - rows.start] for name, tensor in tensors.items()}
        for execution, tensors in wanted.items()
    }


def _later(one: Source | None, other: Source | None) -> Source | None:
    if one is None or other is None or one == other:
        return one or other
    if one.execution == other.execution:
        return Source(one.execution, False)
    return Source(max(one.execution, other.execution), False)
