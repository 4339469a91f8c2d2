"""Do the fused Adagrad and RMSProp compute their published rules, and is Nesterov's momentum the one that looks ahead?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fathom_trace.capture import training  # noqa: E402

pytestmark = pytest.mark.capture

GRADIENTS = np.array([[0.5, -2.0, 0.0, 1e-3], [0.25, 1.0, 0.0, -1e-3], [-1.0, 1.0, 3.0, 2e-3]], np.float64)
START = np.array([1.0, -1.0, 0.5, 0.0])


def run(make: Callable[[list[Any]], training.Optimizer]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A variable after three updates, and the slots by their names."""
    variable = tf.Variable(START.astype(np.float32), name="layer/kernel")
    optimizer = make([variable])
    step = tf.function(lambda gradient: optimizer.apply([gradient]), autograph=False)
    for gradient in GRADIENTS:
        step(tf.constant(gradient, tf.float32))
    assert all(slot.of is variable for slot in optimizer.slots)
    return variable.numpy(), {slot.name: slot.variable.numpy() for slot in optimizer.slots}


def test_nesterov_looks_ahead() -> None:
    """Sutskever et al. 2013, equations 3 and 4, on f(x) = x^2 / 2: the velocity's gradient is taken at x + 0.9 v. The variable of the
    fused op is that point x + 0.9 v."""
    x, velocity = 1.0, 0.0
    variable = tf.Variable([1.0], name="x")
    optimizer = training.momentum([variable], 0.1, 0.9, use_nesterov=True)
    step = tf.function(lambda: optimizer.apply([tf.convert_to_tensor(variable)]), autograph=False)
    for _ in range(5):
        velocity = 0.9 * velocity - 0.1 * (x + 0.9 * velocity)
        x += velocity
        step()
        assert variable.numpy()[0] == pytest.approx(x + 0.9 * velocity, rel=1e-5)


def test_adagrad() -> None:
    expected, total = START.copy(), np.zeros(4)
    for gradient in GRADIENTS:
        total += gradient**2
        expected -= 0.1 * gradient / (np.sqrt(total) + 1e-7)
    found, slots = run(lambda v: training.adagrad(v, 0.1))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    np.testing.assert_allclose(slots["square_sum"], total, rtol=1e-5)


@pytest.mark.parametrize("is_centered", [False, True])
def test_rmsprop(is_centered: bool) -> None:
    """Graves 2013, equations 38 to 42, without momentum."""
    expected, mean, square = START.copy(), np.zeros(4), np.zeros(4)
    for gradient in GRADIENTS:
        square = 0.95 * square + 0.05 * gradient**2
        mean = 0.95 * mean + 0.05 * gradient
        expected -= 0.1 * gradient / np.sqrt(square - (mean**2 if is_centered else 0) + 0.01)
    found, slots = run(lambda v: training.rmsprop(v, 0.1, 0.95, 0.01, is_centered))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert set(slots) == {"mean_square", "momentum"} | ({"mean_gradient"} if is_centered else set())
    np.testing.assert_allclose(slots["mean_square"], square, rtol=1e-5)
    if is_centered:
        np.testing.assert_allclose(slots["mean_gradient"], mean, rtol=1e-5)
