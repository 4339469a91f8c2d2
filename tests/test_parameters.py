"""Are initial values of the stated distribution, and the same for the same seed and name?"""

from __future__ import annotations

import numpy as np

from fathom_trace.parameters import Parameter, count_trainable, he_normal, initial_value


def test_constants_are_exact() -> None:
    value = initial_value(Parameter("gamma", (3,), constant=1), seed=0)
    assert value.dtype == np.float32
    assert value.tolist() == [1, 1, 1]


def test_kernels_have_two_over_fan_in_as_variance() -> None:
    """A kernel [5, 5, 16, 100] has 400 inputs, hence a variance of 2/400; 40,000 values give it to 6 x sqrt(2/40,000) = 4%."""
    value = initial_value(he_normal("conv/kernel", (5, 5, 16, 100)), seed=0)
    assert abs(value.var() * 200 - 1) < 0.04
    assert abs(value.mean()) < 6 * np.sqrt(1 / 200 / value.size)


def test_uniform_values_fill_their_range() -> None:
    value = initial_value(Parameter("embedding", (200, 50), half_range=0.1), seed=0)
    assert -0.1 <= value.min() < -0.099
    assert 0.099 < value.max() < 0.1


def test_values_depend_on_seed_and_name_only() -> None:
    first = initial_value(he_normal("a/kernel", (4, 5)), seed=3)
    np.testing.assert_array_equal(initial_value(he_normal("a/kernel", (4, 5)), seed=3), first)
    assert not np.array_equal(initial_value(he_normal("b/kernel", (4, 5)), seed=3), first)
    assert not np.array_equal(initial_value(he_normal("a/kernel", (4, 5)), seed=4), first)


def test_only_trainable_elements_are_counted() -> None:
    assert count_trainable([Parameter("kernel", (3, 4)), Parameter("bias", (4,)), Parameter("mean", (4,), trainable=False)]) == 16
