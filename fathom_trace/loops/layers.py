"""The logical layers of a structure: each loop nest with every execution that did a part of its work.

Mostly one execution is one layer. A convolution between SpaceToBatchND and BatchToSpaceND is how TensorFlow runs a dilated one: the
layer is the dilated convolution, the three executions keep their own times. Its gradients consist of the same ops the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables
from fathom_trace.errors import TraceError
from fathom_trace.loops.nests import FILTER_GRAD, FORWARD, ConvolutionNest, LoopNest
from fathom_trace.loops.recover import CONVOLUTIONS, base_op, constant_value, convolution, data_format, examine, has_nest
from fathom_trace.trace import Trace


@dataclass(frozen=True)
class Layer:
    """A loop nest, the execution of the convolution or product itself, and all executions that belong to it (in order)."""

    nest: LoopNest
    execution: int
    executions: tuple[int, ...]


def layers(trace: Trace, structure: int) -> tuple[list[Layer], dict[int, str]]:
    """The logical layers of a structure in execution order, and the reason for each convolution or product that has no loop nest.

    Raises:
        TraceError: attributes and shapes contradict each other.
    """
    finder = _Finder(trace, structure)
    found: list[Layer] = []
    refused: dict[int, str] = {}
    claimed: set[int] = set()
    for execution in finder.candidates():
        layer = finder.dilated(execution, claimed)
        if layer is None:
            nest = finder.nest(execution)
            if isinstance(nest, str):
                refused[execution] = nest
                continue
            layer = Layer(nest, execution, (execution,))
        claimed.update(layer.executions)
        found.append(layer)
    return found, refused


def logical_macs(trace: Trace, structure: int, executed: NDArray[np.int64]) -> NDArray[np.int64]:
    """MACs of the layers that the executions of a structure are; `executed` are those of the executed ops themselves, one each.

    They differ where TensorFlow computes another convolution than the layer is: one between SpaceToBatchND and BatchToSpaceND is of more
    images, which are padded to whole blocks. The layer's MACs stand at the convolution.

    Raises:
        TraceError: attributes and shapes contradict each other.
    """
    result = executed.copy()
    finder = _Finder(trace, structure)
    if finder.has_reshuffles:
        claimed: set[int] = set()
        for execution in finder.candidates():
            layer = finder.dilated(execution, claimed)
            if layer is not None:
                claimed.update(layer.executions)
                result[execution - finder.rows.start] = layer.nest.macs
    return result


class _Finder:
    """One pass over a structure; executions of one node with equal shapes share one nest."""

    def __init__(self, trace: Trace, structure: int) -> None:
        self.trace = trace
        self.rows = trace.structure_rows(structure)
        self.ops = trace.node_ops
        self._nests: dict[tuple[Any, ...], LoopNest | str] = {}

    def candidates(self) -> Iterator[int]:
        """Executions of convolutions and products; a copy between devices is none, nor is what lies outside a selection."""
        wanted = np.array([has_nest(op) for op in self.ops], bool)
        nodes = self.trace.executions.node[self.rows.start : self.rows.stop]
        kinds = self.trace.executions.kind[self.rows.start : self.rows.stop]
        if not len(nodes):
            return
        chosen = wanted[nodes] & (kinds != tables.EXECUTION_COPY) & (kinds != tables.EXECUTION_OUTSIDE)
        yield from (np.flatnonzero(chosen) + self.rows.start).tolist()

    def nest(self, execution: int) -> LoopNest | str:
        """`examine`, once per node and shapes."""
        trace = self.trace
        shapes = trace.tensors.shape
        key = (
            int(trace.executions.node[execution]),
            *(int(shapes[row]) for row in trace.inputs(execution)),
            *(int(shapes[row]) for row in trace.outputs(execution)),
        )
        if key not in self._nests:
            self._nests[key] = examine(trace, execution)
        return self._nests[key]

    # --- dilation by SpaceToBatchND -------------------------------------------------------------------------------------------

    def _executions_of(self, op: str) -> NDArray[np.int64]:
        nodes = np.flatnonzero(np.array([o == op for o in self.ops], bool))
        ran = self.trace.executions.node[self.rows.start : self.rows.stop]
        return np.asarray(np.flatnonzero(np.isin(ran, nodes)) + self.rows.start, np.int64)

    @cached_property
    def _space_to_batch(self) -> set[int]:
        return set(self._executions_of("SpaceToBatchND").tolist())

    @cached_property
    def _batch_to_space_of(self) -> dict[int, int]:
        """Tensor to the BatchToSpaceND that reads it."""
        return {self.trace.inputs(e)[0]: e for e in self._executions_of("BatchToSpaceND").tolist() if self.trace.inputs(e)}

    @property
    def has_reshuffles(self) -> bool:
        """True where a SpaceToBatchND ran: without one there is no dilation by it."""
        return bool(self._space_to_batch)

    def dilated(self, execution: int, claimed: set[int]) -> Layer | None:
        """The dilated convolution that this execution is the middle of, or None."""
        if not self.has_reshuffles:
            return None
        trace = self.trace
        node = int(trace.executions.node[execution])
        base, fused_pad = base_op(self.ops[node])
        role = CONVOLUTIONS.get(base)
        attributes = trace.node_attributes[node]
        inputs, outputs = trace.inputs(execution), list(trace.outputs(execution))
        unit = all(int(v) == 1 for key in ("strides", "dilations") for v in attributes.get(key) or ())
        if role is None or fused_pad or attributes.get("padding") != "VALID" or not unit or not outputs or len(inputs) < 2:
            return None
        if role == FORWARD:
            image, output = self._batched_from(inputs[0]), self._spaced_into(outputs[0])
        elif role == FILTER_GRAD:
            image, output = self._batched_from(inputs[0]), self._batched_from(inputs[2])
        else:
            image, output = self._spaced_into(outputs[0]), self._batched_from(inputs[2])
        if image is None or output is None or not np.array_equal(image.block, output.block):
            return None
        nest = self._dilated_nest(execution, base, role, attributes, image, output)
        helpers = {image.execution, output.execution} - claimed
        return None if nest is None else Layer(nest, execution, tuple(sorted({execution, *helpers})))

    def _dilated_nest(
        self, execution: int, base: str, role: str, attributes: dict[str, Any], image: _Reshuffle, output: _Reshuffle
    ) -> ConvolutionNest | None:
        trace = self.trace
        rank = len(image.shape)
        layout = data_format(attributes, rank)
        channel = layout.find("C")
        count = len(image.block)
        if channel < 0 or count >= rank or (channel <= count and image.block[channel - 1] != 1):
            return None
        shapes = [trace.shapes[int(trace.tensors.shape[row])] for row in trace.inputs(execution)]
        result = trace.output_shape(execution) or ()
        if role == FORWARD:
            shapes[0], result = image.shape, output.shape
        elif role == FILTER_GRAD:
            shapes[0], shapes[2] = image.shape, output.shape
        else:
            shapes[2], result = output.shape, image.shape
        # What SpaceToBatchND pads beyond what BatchToSpaceND crops is the layer's own padding.
        net = image.edges - output.edges
        if np.any(net < 0):
            return None
        dilations = [1] + image.block.tolist() + [1] * (rank - 1 - count)
        pads = [(0, 0)] + [(int(a), int(b)) for a, b in net] + [(0, 0)] * (rank - 1 - count)
        logical = {**attributes, "dilations": dilations, "strides": [1] * rank}
        node = int(trace.executions.node[execution])
        try:
            nest = convolution(base, logical, shapes, result, pads)
        except TraceError as error:
            where = f"{self.ops[node]} '{trace.node_names[node]}' between SpaceToBatchND and BatchToSpaceND"
            raise TraceError(f"{where}: {error}; the trace contradicts itself") from None
        return None if isinstance(nest, str) else nest

    def _batched_from(self, tensor: int) -> _Reshuffle | None:
        """The SpaceToBatchND that made a tensor; its shape is that of the image before."""
        producer = int(self.trace.tensors.execution[tensor])
        if producer not in self._space_to_batch:
            return None
        return self._reshuffle(producer, self.trace.inputs(producer)[0])

    def _spaced_into(self, tensor: int) -> _Reshuffle | None:
        """The BatchToSpaceND that reads a tensor; its shape is that of the image after."""
        consumer = self._batch_to_space_of.get(tensor)
        if consumer is None or not len(self.trace.outputs(consumer)):
            return None
        return self._reshuffle(consumer, self.trace.outputs(consumer)[0])

    def _reshuffle(self, execution: int, image: int) -> _Reshuffle | None:
        inputs = self.trace.inputs(execution)
        block = constant_value(self.trace, inputs[1])
        edges = constant_value(self.trace, inputs[2])
        if block is None or edges is None or edges.shape != (len(block), 2):
            return None
        return _Reshuffle(execution, self.trace.shapes[int(self.trace.tensors.shape[image])], block, edges.astype(np.int64))


@dataclass(frozen=True, eq=False)
class _Reshuffle:
    """A SpaceToBatchND or BatchToSpaceND: the shape of its image side, block, and paddings or crops [dimensions, 2]."""

    execution: int
    shape: tuple[int, ...]
    block: NDArray[Any]
    edges: NDArray[np.int64]
