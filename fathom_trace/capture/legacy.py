"""Graphs of TensorFlow 1, in which loops and branches are written out as Enter, Switch and Merge instead of being functions.

TensorFlow runs a call of such a graph as one op: the ops inside are recorded under names that stand in no executed graph. So the graph
is copied to where the call would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

WRITTEN_OUT = frozenset({"Enter", "RefEnter", "Switch", "RefSwitch"})


def is_written_out(concrete: Any) -> bool:
    """True when a concrete function's graph holds loops or branches as TensorFlow 1 wrote them."""
    return any(op.type in WRITTEN_OUT for op in concrete.graph.get_operations())


def copied(concrete: Any, specs: Sequence[Any], names: Mapping[str, str]) -> Any:
    """A concrete function of inputs `specs` whose graph is that of a signature itself; `names` gives its input for each spec's name.

    Shapes of the specs may be more definite than those of the inputs that they replace.
    """
    definition = concrete.graph.as_graph_def()
    inputs, captured = list(concrete.graph.inputs), list(concrete.captured_inputs)
    split = len(inputs) - len(captured)
    own = {key: tensor.name for key, tensor in zip(sorted(concrete.structured_input_signature[1]), inputs, strict=False)}
    returned = concrete.structured_outputs
    outputs = [tensor.name for tensor in concrete.graph.outputs]

    def body(*values: Any) -> Any:
        graph: Any = tf.compat.v1.get_default_graph()
        given = {own[names[spec.name]]: value for spec, value in zip(specs, values, strict=True)}
        given |= {inner.name: graph.capture(outer) for inner, outer in zip(inputs[split:], captured, strict=True)}
        flat = tf.graph_util.import_graph_def(definition, input_map=given, return_elements=outputs, name="")
        return tf.nest.pack_sequence_as(returned, flat)

    return tf.compat.v1.wrap_function(body, list(specs))
