"""The parameters of a workload as data: names, shapes and seeded initial values, without TensorFlow.

A workload lists its parameters from its options alone; `build` makes one variable of each and a test counts them, so that the
count that is stated and the model that is built cannot differ.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Parameter:
    """One variable of a model. Its initial value is constant + deviation x N(0, 1) + half_range x U[-1, 1), in float32."""

    name: str
    shape: tuple[int, ...]
    deviation: float = 0.0
    constant: float = 0.0
    trainable: bool = True
    half_range: float = 0.0

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def he_normal(name: str, shape: tuple[int, ...]) -> Parameter:
    """A kernel whose last axis is the outputs, initially N(0, 2 / fan-in).

    He et al., "Delving Deep into Rectifiers", 2015, arXiv 1502.01852, equation 10: keeps the variance of activations through ReLUs.
    """
    return Parameter(name, shape, deviation=math.sqrt(2 / math.prod(shape[:-1])))


def count_trainable(parameters: Iterable[Parameter]) -> int:
    """Number of trainable elements."""
    return sum(p.count for p in parameters if p.trainable)


def initial_value(parameter: Parameter, seed: int) -> NDArray[np.float32]:
    """The initial value, of `parameter.shape`. It depends on the seed and the name only, never on what else the model holds."""
    if not (parameter.deviation or parameter.half_range):
        return np.full(parameter.shape, parameter.constant, np.float32)
    generator = np.random.default_rng([seed, zlib.crc32(parameter.name.encode())])
    value = np.full(parameter.shape, parameter.constant, np.float32)
    if parameter.deviation:
        value += np.float32(parameter.deviation) * generator.standard_normal(parameter.shape, dtype=np.float32)
    if parameter.half_range:
        value += np.float32(parameter.half_range) * (2 * generator.random(parameter.shape, dtype=np.float32) - 1)
    return value
