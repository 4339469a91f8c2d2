"""What XLA's own cost analysis counts for a program written with jax: an oracle that shares no code with the package.

XLA counts 2 FLOPs per multiply-accumulate and leaves out those that read padding or a hole of a dilated operand. It counts one per
element for an elementwise op, functions such as `exp` apart as transcendentals, and m - n for a reduction of m elements to n.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax

Shape = tuple[int, ...]
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
"""Layouts of images, filters and results by the number of spatial axes."""


def compiled_flops(function: Callable[..., Any], shapes: Sequence[Shape]) -> int:
    """FLOPs of a program as XLA compiles it."""
    return _count(_lowered(function, shapes).compile().cost_analysis(), "flops")


def written_flops(function: Callable[..., Any], shapes: Sequence[Shape]) -> int:
    """FLOPs of a program as it is written, before XLA rewrites it."""
    return _count(_lowered(function, shapes).cost_analysis(), "flops")


def written_operations(function: Callable[..., Any], shapes: Sequence[Shape]) -> int:
    """FLOPs and transcendental functions of a program as it is written."""
    found = _lowered(function, shapes).cost_analysis()
    return _count(found, "flops") + _count(found, "transcendentals")


def _lowered(function: Callable[..., Any], shapes: Sequence[Shape]) -> Any:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def _count(found: Any, what: str) -> int:
    return int((found or {}).get(what, 0))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and its gradients for all operands."""

    def both(*operands: Any) -> Any:
        result, pull_back = jax.vjp(function, *operands)
        return result, pull_back(jnp.ones_like(result))

    return both


def convolution(rank: int, strides: Any = 1, padding: Any = "VALID", dilation: Any = 1, groups: int = 1) -> Callable[..., Any]:
    """A convolution over `rank` spatial axes, channels last. A depthwise one has as many groups as channels."""
    stride, dilate = ((value,) * rank if isinstance(value, int) else tuple(value) for value in (strides, dilation))

    def run(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, stride, padding, rhs_dilation=dilate, dimension_numbers=LAYOUTS[rank], feature_group_count=groups
        )

    return run


def transposed_convolution(rank: int, strides: Sequence[int], padding: str = "VALID") -> Callable[..., Any]:
    """A transposed convolution; the filter is [kernel..., channels read, channels written]."""

    def run(x: Any, w: Any) -> Any:
        return lax.conv_transpose(x, w, tuple(strides), padding, dimension_numbers=LAYOUTS[rank])

    return run
