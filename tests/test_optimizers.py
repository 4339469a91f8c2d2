"""Do the fused updates that workloads share compute their published rules?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fathom_trace.capture import training  # noqa: E402

pytestmark = pytest.mark.capture

START = (np.array([1.0, -2.0, 0.5]), np.array([[3.0], [-1.0]]))
RATE = 0.1


def gradients(step: int) -> list[np.ndarray]:
    """Other gradients at each step, one for each variable."""
    return [np.array([0.5, -1.5, 2.0]) * (step + 1), np.array([[-2.0], [0.25]]) + step]


def run(make: Callable[[list[Any]], training.Optimizer], steps: int) -> list[np.ndarray]:
    """The variables after so many updates."""
    variables = [tf.Variable(value.astype(np.float32), name=f"v{i}") for i, value in enumerate(START)]
    optimizer = make(variables)
    update = tf.function(lambda *given: optimizer.apply(given))
    for step in range(steps):
        update(*(tf.constant(g.astype(np.float32)) for g in gradients(step)))
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize("use_nesterov", [False, True])
def test_momentum(use_nesterov: bool) -> None:
    """a = 0.9 a + g; v = v - rate a, or v - rate (g + 0.9 a)."""
    expected = []
    for i, value in enumerate(START):
        total = np.zeros_like(value)
        for step in range(4):
            g = gradients(step)[i]
            total = 0.9 * total + g
            value = value - RATE * (g + 0.9 * total if use_nesterov else total)
        expected.append(value)
    found = run(lambda variables: training.momentum(variables, RATE, 0.9, use_nesterov), steps=4)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_adam() -> None:
    """Algorithm 1 of Kingma & Ba, with epsilon beside the root of the uncorrected second moment, as they propose before section 2.1."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    expected = []
    for i, value in enumerate(START):
        m, v = np.zeros_like(value), np.zeros_like(value)
        for step in range(4):
            g = gradients(step)[i]
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
            rate = RATE * np.sqrt(1 - beta2 ** (step + 1)) / (1 - beta1 ** (step + 1))
            value = value - rate * m / (np.sqrt(v) + epsilon)
        expected.append(value)
    found = run(lambda variables: training.adam(variables, RATE), steps=4)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_slots_know_their_variables() -> None:
    variables = [tf.Variable(tf.ones([2, 3]), name="conv1/kernel"), tf.Variable(tf.ones([3]), name="conv1/bias")]
    optimizer = training.adam(variables, RATE)
    assert [(s.name, s.of is variables[i % 2], s.variable.shape == s.of.shape) for i, s in enumerate(optimizer.slots)] == [
        ("m", True, True),
        ("m", True, True),
        ("v", True, True),
        ("v", True, True),
    ]
    assert optimizer.slots[0].variable.name == "optimizer/conv1/kernel/m:0"
    assert [v.name for v in optimizer.state] == ["optimizer/beta1_power:0", "optimizer/beta2_power:0"]
