"""Layers of image classifiers in plain numpy and float64, images as [batch, height, width, maps]: a slow and independent second opinion."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pad_same(x: Array, size: int, stride: int, fill: float) -> Array:
    """`x` with what padding SAME adds: enough for ceil(extent / stride) windows, the odd one at the end."""
    pads = []
    for extent in x.shape[1:3]:
        total = max((-(-extent // stride) - 1) * stride + size - extent, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)


def windows(x: Array, size: int, stride: int) -> Array:
    """[batch, rows, columns, maps, size, size]: every square window inside `x`."""
    return sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def convolve(x: Array, kernel: Array, stride: int = 1, padding: str = "SAME") -> Array:
    """A convolution with a square kernel [size, size, in, out]."""
    size = kernel.shape[0]
    if padding == "SAME":
        x = pad_same(x, size, stride, 0)
    return np.einsum("nyxcij,ijck->nyxk", windows(x, size, stride), kernel)


def max_pool(x: Array, size: int, stride: int, padding: str = "VALID") -> Array:
    """The largest value of each window."""
    if padding == "SAME":
        x = pad_same(x, size, stride, -np.inf)
    return windows(x, size, stride).max(axis=(4, 5))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


def response_normalization(x: Array, radius: int, bias: float, alpha: float, beta: float) -> Array:
    """Krizhevsky et al. 2012, section 3.3, map by map: x / (bias + alpha x sum of squares of the maps within `radius`) ^ beta."""
    result = np.empty_like(x)
    for m in range(x.shape[3]):
        near = x[..., max(m - radius, 0) : m + radius + 1]
        result[..., m] = x[..., m] / (bias + alpha * (near**2).sum(axis=3)) ** beta
    return result


def normalize(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
    """Batch normalisation with given statistics, epsilon 1e-5."""
    return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta


def softmax(logits: Array) -> Array:
    """Probabilities along the last axis."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def cross_entropy(logits: Array, labels: NDArray[np.integer]) -> float:
    """Mean over the batch of -log(probability of the label)."""
    largest = logits.max(axis=-1)
    log_sum = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=-1))
    return float((log_sum - logits[np.arange(len(labels)), labels]).mean())


def colours(height: int, width: int) -> NDArray[np.float32]:
    """Four images [4, height, width, 3], each of one colour, as far from each other as pixels in [-1, 1] can be."""
    corners = np.array([[-1, -1, -1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]], np.float32)
    return np.ascontiguousarray(np.broadcast_to(corners[:, None, None, :], (4, height, width, 3)))
