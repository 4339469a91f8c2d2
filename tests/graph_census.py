"""The ops of a step's graph that a run of it executes: what its outputs and its side effects need."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

GRADIENTS = "gradient_tape/"


@dataclass(frozen=True)
class Op:
    """One op: its type, name, and the shapes of its inputs and outputs."""

    type: str
    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a forward convolution or matrix product; 0 of anything else."""
        if self.type == "Conv2D":
            return math.prod(self.outputs[0]) * math.prod(self.inputs[1][:3])
        if self.type == "MatMul":
            return math.prod(self.outputs[0]) * self.inputs[0][0 if self.attributes["transpose_a"] else 1]
        return 0


def executed(workload: ModuleType, options: Any, mode: str, batch_size: int) -> list[Op]:
    """The ops that one step executes. Nothing is run."""
    program = workload.build(options, mode, batch_size, seed=0)
    specs = workload.inputs(options, mode, batch_size)
    step: Any = program.step
    graph = step.get_concrete_function(**{s.name: tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in specs}).graph
    found: dict[str, Op] = {}
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            shapes = [tuple(tuple(t.shape) if t.shape.rank is not None else () for t in side) for side in (op.inputs, op.outputs)]
            attributes = {key: op.get_attr(key) for key in ("transpose_a", "is_training") if key in op.node_def.attr}
            found[op.name] = Op(op.type, op.name, shapes[0], shapes[1], attributes)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return list(found.values())


def count_types(ops: list[Op]) -> Counter[str]:
    """How many ops of each type."""
    return Counter(op.type for op in ops)


def forward_macs(ops: list[Op]) -> int:
    """Multiply-accumulates of all convolutions and matrix products that are not gradients."""
    return sum(op.macs for op in ops if not op.name.startswith(GRADIENTS))


def scopes_of(ops: list[Op], op_type: str) -> set[str]:
    """The name scopes of the forward ops of a type."""
    return {op.name.rpartition("/")[0] for op in ops if op.type == op_type and not op.name.startswith(GRADIENTS)}
