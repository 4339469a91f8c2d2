"""Is alexnet the AlexNet of its paper: parameters, towers, where normalisation stands, arithmetic, learning?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import workload_programs as programs
from graph_census import Op, count_types, executed, forward_macs, scopes_of
from numpy_layers import Array, colours, convolve, cross_entropy, max_pool, relu, response_normalization

from fathom_trace.errors import OptionError
from fathom_trace.parameters import count_trainable

ALEXNET = programs.load("alexnet")

# Kernel size, maps in (of one tower), maps out (of all), rows = columns of the output.
SEMINAL = [(11, 3, 96, 55), (5, 48, 256, 27), (3, 256, 384, 13), (3, 192, 384, 13), (3, 192, 256, 13)]
PAPER = [(11, 3, 64, 56), (5, 64, 192, 27), (3, 192, 384, 13), (3, 384, 256, 13), (3, 256, 256, 13)]
TINY = [(11, 3, 12, 15), (5, 6, 32, 7), (3, 32, 48, 3), (3, 24, 48, 3), (3, 24, 32, 3)]
CONVOLUTIONS = {"seminal": SEMINAL, "paper": PAPER, "tiny": TINY}
DENSE = {"seminal": (256 * 6 * 6, 4096, 4096, 1000), "paper": (256 * 6 * 6, 4096, 4096, 1001), "tiny": (32, 64, 64, 10)}


@pytest.mark.parametrize("preset", ["seminal", "paper", "tiny"])
def test_parameters_are_those_of_the_layers(preset: str) -> None:
    convolutions = sum(size * size * depth * maps + maps for size, depth, maps, _ in CONVOLUTIONS[preset])
    dense = sum(a * b + b for a, b in pairwise(DENSE[preset]))
    chosen = ALEXNET.PRESETS[preset]
    assert count_trainable(ALEXNET.parameters(chosen.options)) == convolutions + dense == chosen.parameters


def test_the_published_counts() -> None:
    """The paper speaks of 60 million parameters."""
    assert ALEXNET.PRESETS["seminal"].parameters == 60_965_224
    assert ALEXNET.PRESETS["paper"].parameters == 61_104_937


@pytest.fixture(scope="module")
def seminal() -> list[Op]:
    """The ops of a full training step, batch 2."""
    return executed(ALEXNET, ALEXNET.PRESETS["seminal"].options, "training", 2)


@pytest.mark.capture
def test_forward_macs_equal_the_hand_count(seminal: list[Op]) -> None:
    expected = sum(place**2 * size**2 * depth * maps for size, depth, maps, place in SEMINAL)
    expected += sum(a * b for a, b in pairwise(DENSE["seminal"]))
    assert expected == 724_406_816
    assert forward_macs(seminal) == 2 * expected


@pytest.mark.capture
def test_forward_macs_of_the_paper_preset_equal_the_hand_count() -> None:
    expected = sum(place**2 * size**2 * depth * maps for size, depth, maps, place in PAPER)
    expected += sum(a * b for a, b in pairwise(DENSE["paper"]))
    assert expected == 716_771_328
    assert forward_macs(executed(ALEXNET, ALEXNET.PRESETS["paper"].options, "inference", 1)) == expected


@pytest.mark.capture
def test_three_layers_are_two_towers(seminal: list[Op]) -> None:
    types = count_types(seminal)
    assert (types["Conv2D"], types["Conv2DBackpropFilter"], types["Conv2DBackpropInput"]) == (5 + 3, 5 + 3, 5 + 3 - 1)
    for op_type, expected in (("Split", {"conv2", "conv4", "conv5"}), ("ConcatV2", {"conv2", "conv4", "conv5"})):
        assert scopes_of(seminal, op_type) == expected
    assert scopes_of(seminal, "Conv2D") == {f"conv{layer}" for layer in range(1, 6)}


@pytest.mark.capture
def test_special_layers_are_single_ops(seminal: list[Op]) -> None:
    types = count_types(seminal)
    assert (types["LRN"], types["LRNGrad"], types["MaxPool"], types["MaxPoolGrad"]) == (2, 2, 3, 3)
    assert types["SparseSoftmaxCrossEntropyWithLogits"] == 1
    assert types["ResourceApplyMomentum"] == (5 + 3) + 5 + 3 * 2  # kernels and biases of convolutions, dense layers
    assert scopes_of(seminal, "LRN") == {"norm1", "norm2"}
    assert scopes_of(seminal, "MaxPool") == {"pool1", "pool2", "pool5"}


@pytest.mark.capture
def test_tiny_has_the_op_types_of_seminal(seminal: list[Op]) -> None:
    tiny = ALEXNET.PRESETS["tiny"].options
    assert count_types(executed(ALEXNET, tiny, "training", 4)) == count_types(seminal)
    full = executed(ALEXNET, ALEXNET.PRESETS["seminal"].options, "inference", 2)
    assert count_types(executed(ALEXNET, tiny, "inference", 4)) == count_types(full)


@pytest.mark.capture
@pytest.mark.parametrize(("preset", "mode", "expected"), [("tiny", "training", 2), ("tiny", "inference", 0), ("paper", "training", 0)])
def test_dropout_is_in_training_and_not_in_the_paper_preset(preset: str, mode: str, expected: int) -> None:
    options = programs.options_of(ALEXNET, preset, maps=(4, 4, 4, 4, 4), dense=(8, 8))
    types = count_types(executed(ALEXNET, options, mode, 2))
    assert types["RandomUniform"] == expected
    if preset == "paper":
        assert types["ResourceApplyAdam"] == 2 * 8
        assert (types["Split"], types["L2Loss"]) == (0, 0)


def reference_logits(p: dict[str, Array], image: Array, o: Any) -> Array:
    """Section 3.5 of the paper, under options `o`: the towers of conv2, conv4 and conv5 see one half of the maps each."""

    def normalization(x: Array) -> Array:
        return response_normalization(x, o.radius, o.bias, o.alpha, o.beta)

    def layer(x: Array, number: int) -> Array:
        stride, padding = (4, o.first_padding) if number == 1 else (1, "SAME")
        if f"conv{number}/kernel" in p:
            x = convolve(x, p[f"conv{number}/kernel"], stride, padding)
        else:
            half = x.shape[3] // 2
            lower, upper = x[..., :half], x[..., half:]
            towers = [convolve(part, p[f"conv{number}/kernel_{t}"]) for t, part in ((1, lower), (2, upper))]
            x = np.concatenate(towers, axis=3)
        return relu(x + p[f"conv{number}/bias"])

    def normalize_and_pool(x: Array) -> Array:
        if o.normalize == "before_pool":
            return max_pool(normalization(x), 3, 2)
        return normalization(max_pool(x, 3, 2))

    x = normalize_and_pool(layer(image, 1))
    x = normalize_and_pool(layer(x, 2))
    x = layer(layer(layer(x, 3), 4), 5)
    x = max_pool(x, 3, 2).reshape(len(x), -1)
    for name in ("fc6", "fc7"):
        x = relu(x @ p[f"{name}/kernel"] + p[f"{name}/bias"])
    return x @ p["fc8/kernel"] + p["fc8/bias"]


STRONG = {"bias": 1.5, "alpha": 0.5, "beta": 0.75}
"""Normalisation strong enough that its place, its width and its constants show in the logits."""


def forward(preset: str, **changes: object) -> tuple[Array, Array]:
    """Logits of TensorFlow and of plain numpy."""
    small = {"maps": (12, 32, 48, 48, 32), "dense": (64, 64), "classes": 10, "height": 67, "width": 99}
    options = programs.options_of(ALEXNET, preset, **small, **STRONG, **changes)
    program = ALEXNET.build(options, "inference", 2, seed=0)
    p = programs.randomize(program, seed=1, deviation=0.1)
    image = programs.first_inputs(ALEXNET, options, "inference", 2)["image"]
    return programs.run(program, {"image": image})["logits"], reference_logits(p, image.astype(float), options)


@pytest.mark.capture
@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_the_forward_pass_is_that_of_plain_numpy(preset: str) -> None:
    found, expected = forward(preset)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.capture
def test_the_place_and_the_width_of_normalisation_show() -> None:
    """The comparison with numpy would be blind if they did not."""
    before, _ = forward("seminal")
    after, _ = forward("seminal", normalize="after_pool")
    wider, _ = forward("seminal", radius=4)
    scale = np.abs(before).max()
    assert np.abs(before - after).max() > 0.01 * scale
    assert np.abs(before - wider).max() > 0.01 * scale


@pytest.mark.capture
def test_the_loss_is_cross_entropy_plus_weight_decay_of_every_tower() -> None:
    options = programs.options_of(ALEXNET, "tiny", keep_probability=1.0, weight_decay=0.03, learning_rate=0.0)
    program = ALEXNET.build(options, "training", 4, seed=0)
    p = programs.randomize(program, seed=2, deviation=0.1)
    values = programs.first_inputs(ALEXNET, options, "training", 4)
    kernels = [value for name, value in p.items() if "/kernel" in name]
    assert len(kernels) == 5 + 3 + 3
    expected = cross_entropy(reference_logits(p, values["image"].astype(float), options), values["label"])
    expected += 0.03 * sum((kernel**2).sum() / 2 for kernel in kernels)
    assert programs.run(program, values)["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.capture
@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_it_learns(preset: str) -> None:
    """Four images of one colour each; a network blind to its input would stay at log 4 = 1.39, its weight decay not counted."""
    small = {"dense": (64, 64), "classes": 10, "height": 67, "width": 67, "learning_rate": 1e-3, "keep_probability": 1.0}
    options = programs.options_of(ALEXNET, preset, maps=(12, 32, 48, 48, 32), **small)
    program = ALEXNET.build(options, "training", 4, seed=0)
    found = programs.losses(program, {"image": colours(67, 67), "label": np.arange(4, dtype=np.int32)}, 150)
    best = min(np.mean(found[i : i + 5]) for i in range(len(found) - 4))
    assert best < found[0] / 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maps": (96, 256)}, "5 convolutions; give 'maps' and 'towers' 5 values each"),
        ({"towers": (1, 2, 1, 2, 5)}, "cannot split a convolution from 384 to 256 maps into 5 towers"),
        ({"width": 66}, "227 x 66 are too small for alexnet; 67 x 67 is the least"),
        ({"keep_probability": 1.5}, "above 0 and up to 1"),
        ({"dense": (0,)}, "at least 1"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        programs.options_of(ALEXNET, "seminal", **changes)
