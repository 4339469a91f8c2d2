"""A program written down op by op, as a `Trace`: for tests that need layers of known shapes without running TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Trace

Shape = Sequence[int]


class Program:
    """Ops in execution order; every op has one output and is named by its execution."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self._names: dict[str, int] = {}
        self._durations: list[int] = []
        self._operands: dict[str, list[int]] = {}

    def op(
        self, name: str, kind: str, inputs: Sequence[int], shape: Shape, attributes: Mapping[str, Any] | None = None, ns: int = 10
    ) -> int:  # fmt: skip
        """Run a node (a new one, or again the one of that name) on the outputs of executions; returns the execution."""
        if name not in self._names:
            nodes = [int(self.builder._rows["executions"][e]["node"]) for e in inputs]
            self._names[name] = self.builder.node(name, kind, inputs=[(n, 0) for n in nodes], attributes=attributes)
        tensors = [self.builder.tensor(e) for e in inputs]
        self._durations.append(ns)
        return self.builder.execution(self._names[name], inputs=tensors, outputs=[("float32", list(shape))])

    def input(self, name: str, shape: Shape) -> int:
        """A placeholder or variable of a shape."""
        return self.op(name, "Placeholder", [], shape)

    def constant(self, name: str, value: object) -> int:
        """A constant whose value the trace keeps."""
        array = np.array(value, np.int32)
        execution = self.op(name, "Const", [], array.shape)
        self.builder.constant(self._names[name], array)
        return execution

    def convolution(
        self, name: str, image: Shape, kernel: Shape, output: Shape, kind: str = "Conv2D", ns: int = 10, **attributes: Any
    ) -> int:  # fmt: skip
        """A convolution, or with another `kind` one of its gradients, on inputs of its own; `output` is that of the forward side."""
        attributes = {"strides": [1] * len(image), "padding": "VALID", **attributes}
        shapes = {"x": image, "w": kernel, "y": output}
        written = "w" if "BackpropFilter" in kind else "x" if "BackpropInput" in kind else "y"
        if name not in self._operands:
            sides = "xw" if written == "y" else "xwy"
            # A gradient op takes the shape of what it writes as a vector, in the place of the tensor itself.
            self._operands[name] = [self.input(f"{name}/{s}", [len(shapes[s])] if s == written else shapes[s]) for s in sides]
        return self.op(name, kind, self._operands[name], shapes[written], attributes, ns)

    def product(
        self, name: str, left: Shape, right: Shape, output: Shape, kind: str = "MatMul", ns: int = 10, **attributes: Any
    ) -> int:
        """A matrix product on inputs of its own."""
        operands = [self.input(f"{name}/a", left), self.input(f"{name}/b", right)]
        return self.op(name, kind, operands, output, attributes, ns)

    def trace(self, workload: str = "test", steps: int = 1) -> Trace:
        """The trace of one step (or of several alike), ops one after the other."""
        structure = self.builder.end_structure()
        done = np.cumsum(self._durations)
        for _ in range(steps):
            self.builder.step(structure, start=done - self._durations, done=done)
        return self.builder.build({"workload": workload, "stage": "source"})


def dilated_depthwise(training: bool = False) -> tuple[Trace, dict[str, int]]:
    """C12: depthwise 3x3, dilation 2, multiplier 2, VALID on [3, 9, 9, 4], as TensorFlow runs it, perhaps with both gradients.

    9 is padded to 10 and cut into 2 x 2 blocks: 4 * 3 images of 5 x 5, 3 x 3 outputs each; put together 6 x 6, cropped to 5 x 5.
    """
    program = Program()
    x, w = program.input("x", [3, 9, 9, 4]), program.input("w", [3, 3, 4, 2])
    block, pads, crops = (
        program.constant("block", [2, 2]),
        program.constant("pads", [[0, 1], [0, 1]]),
        program.constant("crops", [[0, 1], [0, 1]]),
    )
    inner = {"strides": [1, 1, 1, 1], "padding": "VALID", "dilations": [1, 1, 1, 1]}
    ran = {"x2b": program.op("dw/SpaceToBatchND", "SpaceToBatchND", [x, block, pads], [12, 5, 5, 4])}
    ran["conv"] = program.op("dw", "DepthwiseConv2dNative", [ran["x2b"], w], [12, 3, 3, 8], inner)
    ran["y2s"] = program.op("dw/BatchToSpaceND", "BatchToSpaceND", [ran["conv"], block, crops], [3, 5, 5, 8])
    if training:
        dy = program.input("dy", [3, 5, 5, 8])
        sizes = program.input("sizes", [4])
        ran["dy2b"] = program.op("grad/SpaceToBatchND", "SpaceToBatchND", [dy, block, crops], [12, 3, 3, 8])
        ran["dw"] = program.op(
            "grad/filter", "DepthwiseConv2dNativeBackpropFilter", [ran["x2b"], sizes, ran["dy2b"]], [3, 3, 4, 2], inner
        )
        ran["dx"] = program.op("grad/input", "DepthwiseConv2dNativeBackpropInput", [sizes, w, ran["dy2b"]], [12, 5, 5, 4], inner)
        ran["dx2s"] = program.op("grad/BatchToSpaceND", "BatchToSpaceND", [ran["dx"], block, pads], [3, 9, 9, 4])
    return program.trace(), ran
