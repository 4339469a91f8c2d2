"""Does plain SGD update whole variables, and rows of gathered ones, as its rule says?"""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fathom_trace.capture import training  # noqa: E402

pytestmark = pytest.mark.capture


def test_whole_variables_and_rows_move_against_their_gradient() -> None:
    """v = v - rate g; a row that is given twice moves by both, rows that are not given stay."""
    whole = tf.Variable([1.0, -2.0], name="whole")
    table = tf.Variable([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], name="table")
    optimizer = training.gradient_descent([whole, table], learning_rate=0.5)

    @tf.function
    def update() -> None:
        rows = tf.IndexedSlices(tf.constant([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]]), tf.constant([2, 0, 2]), tf.constant([3, 2]))
        optimizer.apply([tf.constant([2.0, -4.0]), rows])

    update()
    np.testing.assert_allclose(whole.numpy(), [1 - 0.5 * 2, -2 + 0.5 * 4])
    np.testing.assert_allclose(table.numpy(), [[1, 1 - 0.5 * 2], [2, 2], [3 - 0.5 * (1 + 4), 3 - 0.5 * 4]])
    types = [op.type for op in update.get_concrete_function().graph.get_operations()]
    assert (types.count("ResourceApplyGradientDescent"), types.count("ResourceScatterSub")) == (1, 1)


def test_the_rate_is_state_that_can_be_lowered_between_steps() -> None:
    variable = tf.Variable([1.0], name="variable")
    optimizer = training.gradient_descent([variable], learning_rate=0.5)
    update = tf.function(lambda: optimizer.apply([tf.constant([1.0])]))
    update()
    [rate] = optimizer.state
    rate.assign(0.25)
    update()
    assert variable.numpy() == pytest.approx([1 - 0.5 - 0.25])
    assert optimizer.slots == ()
