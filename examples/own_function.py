"""Capture a tf.function of your own, with a loop in it, and write its trace.

python examples/own_function.py power.h5
"""

import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # stage "source": the operations that the program names
import tensorflow as tf

import fathom_trace
from fathom_trace.capture import Plan, capture


@tf.function
def power_iteration(matrix: tf.Tensor) -> tf.Tensor:
    """The largest eigenvalue of `matrix`, by 20 multiplications."""
    vector = tf.ones([tf.shape(matrix)[0], 1])
    for _ in tf.range(20):
        vector = tf.linalg.normalize(tf.matmul(matrix, vector))[0]
    return tf.reduce_sum(vector * tf.matmul(matrix, vector))


def main(file: str) -> None:
    """Capture three steps and print what ran most often."""
    trace = capture(power_iteration, tf.linalg.diag([3.0, 2.0, 1.0]), plan=Plan(steps=3))
    fathom_trace.save(trace, file, force=True)
    table = trace.to_pandas()
    print(table[table.step == table.step.max()].groupby("op").size().sort_values(ascending=False).head(5))


if __name__ == "__main__":
    main(sys.argv[1])
