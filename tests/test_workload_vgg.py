"""Is vgg the VGG-19 of its paper: parameters, multiply-accumulates, op types, layer names, arithmetic, learning?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import workload_programs as programs
from graph_census import Op, count_types, executed, forward_macs, scopes_of
from numpy_layers import Array, colours, convolve, cross_entropy, max_pool, relu, softmax

from fathom_trace.errors import OptionError
from fathom_trace.parameters import count_trainable

VGG = programs.load("vgg")

GROUPS = [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)]
"""Column E of table 1: maps and convolutions of each group."""

GROUPS_OF_FATHOM = [(64, 2), (128, 2), (256, 2), (512, 3), (512, 3)]


def convolution_parameters(groups: list[tuple[int, int]]) -> int:
    """3 x 3 x in x out weights and `out` biases of each convolution."""
    total, depth = 0, 3
    for maps, count in groups:
        for _ in range(count):
            total += 9 * depth * maps + maps
            depth = maps
    return total


def convolution_macs(groups: list[tuple[int, int]], size: int) -> int:
    """One image: 9 x in x out at each of size x size places, the size halved after each group."""
    total, depth = 0, 3
    for maps, count in groups:
        for _ in range(count):
            total += size * size * 9 * depth * maps
            depth = maps
        size //= 2
    return total


def dense_macs(*units: int) -> int:
    return sum(a * b for a, b in pairwise(units))


def dense_parameters(*units: int) -> int:
    return dense_macs(*units) + sum(units[1:])


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("seminal", convolution_parameters(GROUPS) + dense_parameters(512 * 7 * 7, 4096, 4096, 1000)),
        ("paper", convolution_parameters(GROUPS_OF_FATHOM) + dense_parameters(512 * 7 * 7, 4096, 4096, 1001)),
        ("tiny", convolution_parameters([(m // 16, n) for m, n in GROUPS]) + dense_parameters(32, 64, 64, 10)),
    ],
)
def test_parameters_are_those_of_the_layers(preset: str, expected: int) -> None:
    chosen = VGG.PRESETS[preset]
    assert count_trainable(VGG.parameters(chosen.options)) == expected == chosen.parameters


def test_the_published_counts() -> None:
    """The paper's table 2 gives 144 million for column E; 137,771,561 is Fathom's network, one convolution short of column D."""
    assert VGG.PRESETS["seminal"].parameters == 143_667_240
    assert VGG.PRESETS["paper"].parameters == 137_771_561


@pytest.fixture(scope="module")
def seminal() -> list[Op]:
    """The ops of a full training step, batch 8."""
    return executed(VGG, VGG.PRESETS["seminal"].options, "training", 8)


@pytest.mark.capture
def test_a_training_step_has_the_convolutions_of_the_paper_and_no_gradient_for_the_image(seminal: list[Op]) -> None:
    types = count_types(seminal)
    assert (types["Conv2D"], types["Conv2DBackpropFilter"], types["Conv2DBackpropInput"]) == (16, 16, 15)
    assert types["MatMul"] == 3 + 3 + 3  # forward, kernel gradients, input gradients
    assert (types["MaxPool"], types["MaxPoolGrad"]) == (5, 5)
    assert types["BiasAdd"] == types["BiasAddGrad"] == 19
    assert types["Relu"] == types["ReluGrad"] == 18
    assert types["SparseSoftmaxCrossEntropyWithLogits"] == 1


@pytest.mark.capture
def test_every_variable_is_updated_by_one_fused_op(seminal: list[Op]) -> None:
    updates = [op.name for op in seminal if op.type == "ResourceApplyMomentum"]
    names = [p.name for p in VGG.parameters(VGG.PRESETS["seminal"].options)]
    assert sorted(updates) == sorted(f"optimizer/{name}" for name in names)
    assert len(names) == 2 * 19
    assert [op.name for op in seminal if op.type.startswith(("Resource", "Assign")) and op.type != "ResourceApplyMomentum"] == []


@pytest.mark.capture
def test_weight_decay_covers_every_kernel(seminal: list[Op]) -> None:
    assert count_types(seminal)["L2Loss"] == 16 + 3


@pytest.mark.capture
def test_forward_macs_equal_the_hand_count(seminal: list[Op]) -> None:
    expected = convolution_macs(GROUPS, 224) + dense_macs(512 * 7 * 7, 4096, 4096, 1000)
    assert expected == 19_632_062_464
    assert forward_macs(seminal) == 8 * expected


@pytest.mark.capture
def test_forward_macs_of_the_paper_preset_equal_the_hand_count() -> None:
    expected = convolution_macs(GROUPS_OF_FATHOM, 224) + dense_macs(512 * 7 * 7, 4096, 4096, 1001)
    assert round(expected / 1e9, 2) == 13.62
    assert forward_macs(executed(VGG, VGG.PRESETS["paper"].options, "inference", 1)) == expected


@pytest.mark.capture
def test_layers_carry_their_names(seminal: list[Op]) -> None:
    convolutions = {f"conv{g}_{i}" for g, (_, count) in enumerate(GROUPS, 1) for i in range(1, count + 1)}
    assert scopes_of(seminal, "Conv2D") == convolutions
    assert scopes_of(seminal, "MaxPool") == {f"pool{g}" for g in range(1, 6)}
    assert scopes_of(seminal, "MatMul") == {"fc6", "fc7", "fc8"}
    assert scopes_of(seminal, "Relu") == convolutions | {"fc6", "fc7"}
    assert {op.name.split("/")[0] for op in seminal if op.type == "L2Loss"} == {"loss"}


@pytest.mark.capture
def test_tiny_trains_with_the_op_types_of_seminal(seminal: list[Op]) -> None:
    tiny = executed(VGG, VGG.PRESETS["tiny"].options, "training", 4)
    assert count_types(tiny) == count_types(seminal)


@pytest.mark.capture
def test_tiny_infers_with_the_op_types_of_seminal() -> None:
    small, full = (executed(VGG, VGG.PRESETS[preset].options, "inference", 2) for preset in ("tiny", "seminal"))
    assert count_types(small) == count_types(full)


@pytest.mark.capture
def test_paper_is_updated_by_adam() -> None:
    options = programs.options_of(VGG, "paper", maps=(4, 4, 4, 4, 4), dense=(8, 8), height=32, width=32)
    types = count_types(executed(VGG, options, "training", 2))
    assert types["ResourceApplyAdam"] == 2 * (2 + 2 + 2 + 3 + 3 + 3)
    assert types["L2Loss"] == 0


@pytest.mark.capture
@pytest.mark.parametrize(("mode", "keep_probability", "expected"), [("training", 0.5, 2), ("training", 1.0, 0), ("inference", 0.5, 0)])
def test_dropout_is_in_training_only(mode: str, keep_probability: float, expected: int) -> None:
    options = programs.options_of(VGG, "tiny", keep_probability=keep_probability)
    assert count_types(executed(VGG, options, mode, 2))["RandomUniform"] == expected


@pytest.mark.capture
def test_dropout_keeps_the_stated_share_and_scales_it_up() -> None:
    """With kernels of zero in fc7 and biases of 1, each unit of fc7 is 0 or 1/keep; fc8 adds them up into logits.

    4 x 1000 units are kept with probability 0.8, so that their mean has a deviation of sqrt(0.25 / 4000) = 0.008 about 1.
    """
    options = programs.options_of(VGG, "tiny", dense=(8, 1000), keep_probability=0.8, weight_decay=0.0)
    program = VGG.build(options, "training", 4, seed=0)
    variables = programs.by_name(program)
    variables["fc7/kernel"].assign(np.zeros((8, 1000), np.float32))
    variables["fc7/bias"].assign(np.ones(1000, np.float32))
    variables["fc8/kernel"].assign(np.ones((1000, 10), np.float32))
    logits = programs.run(program, programs.first_inputs(VGG, options, "training", 4))["logits"]
    kept = logits[:, 0] * 0.8
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)
    assert len(set(np.round(kept))) > 1
    assert abs(kept.mean() / 800 - 1) < 6 * 0.008


def reference_logits(p: dict[str, Array], image: Array) -> Array:
    """The network of preset tiny, layer after layer."""
    x = image
    for group, (_, count) in enumerate(GROUPS, 1):
        for i in range(1, count + 1):
            x = relu(convolve(x, p[f"conv{group}_{i}/kernel"]) + p[f"conv{group}_{i}/bias"])
        x = max_pool(x, 2, 2)
    x = x.reshape(len(x), -1)
    for name in ("fc6", "fc7"):
        x = relu(x @ p[f"{name}/kernel"] + p[f"{name}/bias"])
    return x @ p["fc8/kernel"] + p["fc8/bias"]


@pytest.mark.capture
def test_the_forward_pass_is_that_of_plain_numpy() -> None:
    """On images that are not square, and large enough that the order of the flattened maps matters."""
    options = programs.options_of(VGG, "tiny", height=64, width=96)
    program = VGG.build(options, "inference", 2, seed=0)
    p = programs.randomize(program, seed=1, deviation=0.2)
    image = programs.first_inputs(VGG, options, "inference", 2)["image"]
    expected = reference_logits(p, image.astype(float))
    outputs = programs.run(program, {"image": image})
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(outputs["probabilities"], softmax(expected), atol=1e-3)


@pytest.mark.capture
def test_the_loss_is_cross_entropy_plus_weight_decay() -> None:
    options = programs.options_of(VGG, "tiny", keep_probability=1.0, weight_decay=0.03, learning_rate=0.0)
    program = VGG.build(options, "training", 4, seed=0)
    p = programs.randomize(program, seed=2, deviation=0.12)
    values = programs.first_inputs(VGG, options, "training", 4)
    logits = reference_logits(p, values["image"].astype(float))
    decay = 0.03 * sum((value**2).sum() / 2 for name, value in p.items() if name.endswith("/kernel"))
    assert programs.run(program, values)["loss"] == pytest.approx(cross_entropy(logits, values["label"]) + decay, rel=1e-4)


@pytest.mark.capture
@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_it_learns(preset: str) -> None:
    """Four images of one colour each; a network blind to its input would stay at log 4 = 1.39, its weight decay not counted."""
    small = {"maps": (8, 16, 32, 64, 64), "dense": (128, 128), "height": 32, "width": 32, "classes": 10, "learning_rate": 1e-3}
    options = programs.options_of(VGG, preset, **small, keep_probability=1.0)
    program = VGG.build(options, "training", 4, seed=1)
    found = programs.losses(program, {"image": colours(32, 32), "label": np.arange(4, dtype=np.int32)}, 150)
    best = min(np.mean(found[i : i + 5]) for i in range(len(found) - 4))
    assert best < min(found[0] / 2, np.log(4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maps": (64, 128)}, "5 groups of convolutions but 2 widths"),
        ({"height": 31}, "halves the image 5 times, but it is 31 x 224"),
        ({"keep_probability": 0.0}, "above 0 and up to 1"),
        ({"dense": (0,)}, "at least 1"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        programs.options_of(VGG, "seminal", **changes)
