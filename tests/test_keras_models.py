"""Are all layers of well-known Keras models found, with exactly their MACs, as written and as TensorFlow rewrites them?

The MACs of convolutions and dense layers in inference, batch 1, are counted again here from the layers' own shapes: elements of the
kernel x output positions. Weights are random: no file is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.capture import CaptureRequest, Plan, capture, capture_request
from fathom_trace.checks import check
from fathom_trace.costs import costs
from fathom_trace.layers import layer_links
from fathom_trace.node_graph import NodeGraph
from fathom_trace.ops import kind
from fathom_trace.phases import ROLES, phases
from fathom_trace.profile import profile
from fathom_trace.rewrites import rewrites
from fathom_trace.trace import Trace
from tests.captured_apart import capture_apart

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

QUICK = Plan(steps=1, warmup=0)

MODELS = {
    "MobileNet": (568_740_352, 32),
    "MobileNetV2": (300_774_272, 32),
    "EfficientNetB0": (385_814_752, 32),
    "DenseNet121": (2_834_161_664, 32),
    "InceptionV3": (5_713_216_096, 75),
    "ResNet50": (3_857_973_248, 32),
}
"""MACs of convolutions and dense layers in inference at the usual image size, and the side of a small image to train on."""


@pytest.fixture(autouse=True)
def fresh_names() -> Iterator[None]:
    """Layers without a name of their own are numbered from the beginning for each model."""
    keras.backend.clear_session()
    yield
    keras.backend.clear_session()


def forward_macs(layer: Any) -> int:
    """MACs of a layer for one image; 0 for what is neither a convolution nor dense."""
    if isinstance(layer, keras.layers.DepthwiseConv2D | keras.layers.Conv2D):
        return prod(layer.kernel.shape) * prod(layer.output.shape[1:3])
    return prod(layer.kernel.shape) if isinstance(layer, keras.layers.Dense) else 0


def is_sound(trace: Trace) -> bool:
    found = check(trace)
    return (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)


@pytest.mark.parametrize("name", MODELS)
def test_inference_has_the_macs_of_every_layer(name: str) -> None:
    model = getattr(keras.applications, name)(weights=None)
    side = model.input_shape[1]
    trace = capture(lambda image: model(image, training=False), np.ones((1, side, side, 3), np.float32), plan=QUICK)
    assert is_sound(trace)
    by_layer = {layer.name: macs for layer in model.layers if (macs := forward_macs(layer))}
    assert sum(by_layer.values()) == MODELS[name][0]
    assert {row.key: row.macs for row in profile(trace, by="layer").rows if row.macs} == by_layer
    by_kind = {row.key: row for row in profile(trace, by="kind").rows}
    assert sum(by_kind[k].macs for k in ("conv", "gemm") if k in by_kind) == MODELS[name][0]
    assert profile(trace).coverage["macs"].executions == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_has_every_layer_with_its_gradients_and_updates(name: str) -> None:
    """Each product has a gradient for its kernel and, but for the first layer, which reads the image, one for its input."""
    side = MODELS[name][1]
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=10)
    variables = model.trainable_variables

    def step(image: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(label, model(image, training=True)))
        for variable, gradient in zip(variables, tape.gradient(loss, [v.value for v in variables]), strict=True):
            variable.value.assign_sub(0.01 * gradient)
        return {"loss": loss}

    trace = capture(step, np.ones((1, side, side, 3), np.float32), np.array([1], np.int32), plan=QUICK)
    assert is_sound(trace)
    graph = NodeGraph(trace)
    found, told = costs(trace, 0), phases(trace, graph)
    links = layer_links(trace, told, graph)
    assert told.evidence == ROLES
    macs: dict[str, dict[str, int]] = defaultdict(dict)
    roles: dict[str, set[str]] = defaultdict(set)
    for node, value in zip(trace.executions.node.tolist(), found.macs.tolist(), strict=True):
        layer, role = links.layer[node], links.role[node]
        roles[layer].add(role)
        if value:
            assert told[node] == ("forward" if role == "forward" else "backward")
            assert role not in macs[layer], f"{layer} has two products of role {role}"
            macs[layer][role] = value
    expected = {}
    for layer in model.layers:
        if value := forward_macs(layer):
            both = {} if layer is first_with_kernel(model) else {"input_grad": value}
            expected[layer.name] = {"forward": value, "filter_grad": value, **both}
    assert macs == expected
    for layer in model.layers:
        if layer.trainable_weights:
            wanted = {"forward", "optimizer"} | ({"filter_grad"} if layer.name in expected else {"gradient"})
            assert wanted <= roles[layer.name], layer.name


def first_with_kernel(model: Any) -> Any:
    """The layer that reads the image: the only one whose input nothing trained leads to."""
    return next(layer for layer in model.layers if forward_macs(layer))


RESNET = """
import keras


def resnet():
    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
"""


def test_all_work_of_a_model_is_accounted_for_after_rewriting(tmp_path: Path) -> None:
    """MACs executed + MACs folded, merged or pruned away (node by node) = MACs written; convolutions run fused with their biases."""
    (tmp_path / "models.py").write_text(RESNET)
    source = capture_request(CaptureRequest(f"{tmp_path}/models.py:resnet", mode="inference", batch_size=1, plan=QUICK))
    optimized = capture_apart("models.py:resnet", tmp_path, "optimized", "--mode", "inference", "--batch-size", "1")
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    found = rewrites(source, optimized)
    assert found.source_macs == sum(forward_macs(layer) for layer in model.layers)
    assert found.changed == ()
    assert found.executed_macs + sum(item.macs for item in found.removed) == found.source_macs
    fused = {optimized.node_names[n] for n in optimized.executions.node.tolist() if optimized.node_attributes[n].get("fused_ops")}
    products = {name for name, op in zip(source.node_names, source.node_ops, strict=True) if kind(op) in ("conv", "gemm")}
    assert len(fused - products) > 40, "they run under the names of other ops, and are accounted for all the same"
