"""Builds workloads and runs their steps eagerly, for tests of what a workload computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from fathom_trace.workload import Program, Values, synthetic_inputs
from fathom_trace.workloads import REGISTRY


def load(name: str) -> ModuleType:
    """A workload by its name."""
    return REGISTRY.load(name)


def options_of(workload: ModuleType, preset: str, **changes: Any) -> Any:
    """The options of a preset, with some of them changed."""
    return replace(workload.PRESETS[preset].options, **changes)


def first_inputs(workload: ModuleType, options: Any, mode: str, batch_size: int, seed: int = 0) -> Values:
    """The first synthetic inputs, as tensors' values."""
    return next(synthetic_inputs(workload, options, mode, batch_size, seed))


def run(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """One step; its outputs as arrays."""
    outputs = program.step(**{name: tf.constant(value) for name, value in values.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def by_name(program: Program) -> dict[str, Any]:
    """The trainable variables by the names that the workload gave them."""
    return {v.name.partition(":")[0]: v for v in program.trainable}


def randomize(program: Program, seed: int, deviation: float) -> dict[str, np.ndarray]:
    """Give every trainable variable random values, so that no term is hidden by a zero; returns them in float64."""
    generator = np.random.default_rng(seed)
    for variable in program.trainable:
        variable.assign(generator.normal(0, deviation, variable.shape).astype(np.float32))
    return {name: variable.numpy().astype(np.float64) for name, variable in by_name(program).items()}


def op_types(workload: ModuleType, preset: str, mode: str) -> set[str]:
    """The op types of a preset's graph, loop bodies included."""
    chosen = workload.PRESETS[preset]
    batch_size = chosen.batch_size[mode]
    program = workload.build(chosen.options, mode, batch_size, seed=0)
    specs = workload.inputs(chosen.options, mode, batch_size)
    concrete: Any = program.step
    definition = concrete.get_concrete_function(
        **{s.name: tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in specs}
    ).graph.as_graph_def()
    return {n.op for n in definition.node} | {n.op for f in definition.library.function for n in f.node_def}


def losses(program: Program, values: Values, steps: int) -> list[float]:
    """The loss of each of so many training steps on the same inputs."""
    return [float(run(program, values)["loss"]) for _ in range(steps)]


def unchanged_after(program: Program, values: Values, steps: int) -> list[str]:
    """The trainable variables that training leaves as they were: those that no gradient reaches."""
    before = {name: variable.numpy() for name, variable in by_name(program).items()}
    losses(program, values, steps)
    return [name for name, variable in by_name(program).items() if np.array_equal(variable.numpy(), before[name])]


def parameter_count(program: Program) -> int:
    """Elements of all trainable variables."""
    return sum(int(np.prod(variable.shape)) for variable in program.trainable)
