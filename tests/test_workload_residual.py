"""Is residual the ResNet-34 of its paper: parameters, blocks, batch statistics and their averages, arithmetic, learning?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import workload_programs as programs
from graph_census import Op, count_types, executed, forward_macs, scopes_of
from numpy_layers import Array, colours, convolve, cross_entropy, max_pool, normalize, relu

from fathom_trace.errors import OptionError
from fathom_trace.parameters import count_trainable

RESIDUAL = programs.load("residual")

STAGES = [(64, 3), (128, 4), (256, 6), (512, 3)]
"""The 34-layer column of table 1: maps and blocks."""

FATHOM_STAGES = [(128, 32), (256, 64), (512, 128), (1024, 256)]
"""Maps and squeezed maps of each group of three blocks."""


def layers_of_34(divisor: int, size: int) -> list[tuple[int, int, int, int]]:
    """(kernel size, maps in, maps out, rows = columns of the output) of each convolution, at 1/divisor of the width.

    The first convolution and the pool each halve the image, and so does the first block of stages 2 to 4; its shortcut is a 1x1.
    """
    size //= 2
    found = [(7, 3, 64 // divisor, size)]
    depth, size = 64 // divisor, size // 2
    for stage, (maps, blocks) in enumerate(STAGES):
        maps //= divisor
        if stage:
            size //= 2
            found.append((1, depth, maps, size))
        for _ in range(blocks):
            found += [(3, depth, maps, size), (3, maps, maps, size)]
            depth = maps
    return found


def layers_of_fathom() -> list[tuple[int, int, int, int, bool]]:
    """(kernel size, maps in, maps out, rows = columns, biased) of each convolution."""
    found = [(7, 3, 64, 112, True)]
    depth = 64
    for stage, (maps, squeezed) in enumerate(FATHOM_STAGES):
        found.append((1, depth, maps, 56, stage == 0))
        found += 3 * [(1, maps, squeezed, 56, True), (3, squeezed, squeezed, 56, True), (1, squeezed, maps, 56, True)]
        depth = maps
    return found


@pytest.mark.parametrize(("preset", "divisor", "size", "classes"), [("seminal", 1, 224, 1000), ("tiny", 16, 64, 10)])
def test_parameters_are_those_of_the_layers(preset: str, divisor: int, size: int, classes: int) -> None:
    """Each convolution has gamma and beta in place of a bias."""
    layers = layers_of_34(divisor, size)
    expected = sum(kernel**2 * depth * maps + 2 * maps for kernel, depth, maps, _ in layers) + 512 // divisor * classes + classes
    chosen = RESIDUAL.PRESETS[preset]
    assert count_trainable(RESIDUAL.parameters(chosen.options)) == expected == chosen.parameters


def test_parameters_of_the_paper_preset_are_those_of_the_layers() -> None:
    expected = sum(kernel**2 * depth * maps + maps * biased for kernel, depth, maps, _, biased in layers_of_fathom()) + 1024 * 1001
    chosen = RESIDUAL.PRESETS["paper"]
    assert count_trainable(RESIDUAL.parameters(chosen.options)) == expected == chosen.parameters == 6_178_624


def test_the_published_count() -> None:
    assert RESIDUAL.PRESETS["seminal"].parameters == 21_797_672


@pytest.fixture(scope="module")
def seminal() -> list[Op]:
    """The ops of a full training step, batch 2."""
    return executed(RESIDUAL, RESIDUAL.PRESETS["seminal"].options, "training", 2)


@pytest.mark.capture
def test_forward_macs_equal_the_hand_count(seminal: list[Op]) -> None:
    """The paper's table 1 gives 3.6 x 10^9, its shortcuts not counted."""
    expected = sum(place**2 * kernel**2 * depth * maps for kernel, depth, maps, place in layers_of_34(1, 224)) + 512 * 1000
    assert round(expected / 1e9, 2) == 3.66
    assert forward_macs(seminal) == 2 * expected


@pytest.mark.capture
def test_forward_macs_of_the_paper_preset_equal_the_hand_count() -> None:
    expected = sum(place**2 * kernel**2 * depth * maps for kernel, depth, maps, place, _ in layers_of_fathom()) + 1024 * 1001
    assert round(expected / 1e9, 2) == 16.22
    assert forward_macs(executed(RESIDUAL, RESIDUAL.PRESETS["paper"].options, "inference", 1)) == expected


@pytest.mark.capture
def test_a_training_step_has_the_ops_of_34_layers(seminal: list[Op]) -> None:
    """33 convolutions on the way and 3 on shortcuts, each with one fused normalisation; a block ends in one addition and ReLU."""
    types = count_types(seminal)
    assert (types["Conv2D"], types["Conv2DBackpropFilter"], types["Conv2DBackpropInput"]) == (36, 36, 35)
    assert types["FusedBatchNormV3"] == types["FusedBatchNormGradV3"] == 36
    assert all(op.attributes["is_training"] for op in seminal if op.type == "FusedBatchNormV3")
    assert types["Relu"] == types["ReluGrad"] == 1 + 2 * 16
    assert (types["MaxPool"], types["AvgPool"]) == (1, 1)
    assert types["ResourceApplyMomentum"] == 36 * 3 + 2
    assert types["AssignVariableOp"] == 2 * 36
    assert types["L2Loss"] == 36 + 1


@pytest.mark.capture
def test_layers_carry_their_names(seminal: list[Op]) -> None:
    blocks = [f"conv{stage}_{i}" for stage, (_, count) in enumerate(STAGES, 2) for i in range(1, count + 1)]
    on_the_way = {f"{block}/{place}" for block in blocks for place in ("first", "second")}
    shortcuts = {f"conv{stage}_1/shortcut" for stage in (3, 4, 5)}
    assert scopes_of(seminal, "Conv2D") == {"conv1"} | on_the_way | shortcuts
    assert scopes_of(seminal, "AddV2") == {f"{block}/add" for block in blocks} | {"loss"}
    assert scopes_of(seminal, "AvgPool") == {"average"}
    assert scopes_of(seminal, "MatMul") == {"fc"}


@pytest.mark.capture
def test_tiny_has_the_op_types_of_seminal(seminal: list[Op]) -> None:
    tiny = RESIDUAL.PRESETS["tiny"].options
    assert count_types(executed(RESIDUAL, tiny, "training", 4)) == count_types(seminal)
    full = executed(RESIDUAL, RESIDUAL.PRESETS["seminal"].options, "inference", 2)
    assert count_types(executed(RESIDUAL, tiny, "inference", 4)) == count_types(full)
    assert not any(op.attributes["is_training"] for op in full if op.type == "FusedBatchNormV3")


def small_options(preset: str, **changes: Any) -> Any:
    """Few and narrow blocks on small images that are not square; every kind of block is there."""
    small = {"stem": 4, "repeats": (2, 1), "maps": (4, 8), "classes": 5, "height": 21, "width": 30}
    return programs.options_of(RESIDUAL, preset, **(small | changes))


def randomize_all(program: Any, seed: int) -> dict[str, Array]:
    """Random parameters, and random moving averages with positive variances."""
    values = programs.randomize(program, seed, deviation=0.3)
    generator = np.random.default_rng(seed + 1)
    for variable in program.state:
        name = variable.name.partition(":")[0]
        if "moving" in name:
            variable.assign(generator.uniform(0.5, 1.5, variable.shape).astype(np.float32))
            values[name] = variable.numpy().astype(np.float64)
    return values


def reference_logits(p: dict[str, Array], image: Array, is_training: bool) -> Array:
    """The small network with basic blocks: stage 1 of two blocks with identity shortcuts, stage 2 of one that halves."""

    def layer(x: Array, name: str, stride: int = 1) -> Array:
        x = convolve(x, p[f"{name}/kernel"], stride)
        mean, variance = (
            (x.mean((0, 1, 2)), x.var((0, 1, 2))) if is_training else (p[f"{name}/moving_mean"], p[f"{name}/moving_variance"])
        )
        return normalize(x, p[f"{name}/gamma"], p[f"{name}/beta"], mean, variance)

    x = max_pool(relu(layer(image, "conv1", 2)), 3, 2, "SAME")
    for name in ("conv2_1", "conv2_2"):
        x = relu(layer(relu(layer(x, f"{name}/first")), f"{name}/second") + x)
    x = relu(layer(relu(layer(x, "conv3_1/first", 2)), "conv3_1/second") + layer(x, "conv3_1/shortcut", 2))
    return x.mean((1, 2)) @ p["fc/kernel"] + p["fc/bias"]


@pytest.mark.capture
def test_inference_is_that_of_plain_numpy_with_the_moving_averages() -> None:
    options = small_options("seminal")
    program = RESIDUAL.build(options, "inference", 3, seed=0)
    p = randomize_all(program, seed=1)
    image = programs.first_inputs(RESIDUAL, options, "inference", 3)["image"]
    expected = reference_logits(p, image.astype(float), is_training=False)
    found = programs.run(program, {"image": image})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.capture
def test_training_is_that_of_plain_numpy_with_the_statistics_of_the_batch() -> None:
    options = small_options("seminal", weight_decay=0.02, learning_rate=0.0)
    program = RESIDUAL.build(options, "training", 3, seed=0)
    p = randomize_all(program, seed=2)
    values = programs.first_inputs(RESIDUAL, options, "training", 3)
    expected = reference_logits(p, values["image"].astype(float), is_training=True)
    decay = 0.02 * sum((value**2).sum() / 2 for name, value in p.items() if name.endswith("/kernel"))
    outputs = programs.run(program, values)
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert outputs["loss"] == pytest.approx(cross_entropy(expected, values["label"]) + decay, rel=1e-3)


@pytest.mark.capture
def test_a_training_step_moves_the_averages_a_tenth_of_the_way() -> None:
    """To the batch's mean, and to its variance with n - 1 in the denominator."""
    options = small_options("seminal")
    program = RESIDUAL.build(options, "training", 3, seed=0)
    p = randomize_all(program, seed=3)
    values = programs.first_inputs(RESIDUAL, options, "training", 3)
    first = convolve(values["image"].astype(float), p["conv1/kernel"], 2)
    programs.run(program, values)
    after = {v.name.partition(":")[0]: v.numpy() for v in program.state}
    mean = 0.9 * p["conv1/moving_mean"] + 0.1 * first.mean((0, 1, 2))
    variance = 0.9 * p["conv1/moving_variance"] + 0.1 * first.var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(after["conv1/moving_mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["conv1/moving_variance"], variance, rtol=1e-4, atol=1e-6)
    assert all(not np.allclose(after[name], value) for name, value in p.items() if "moving" in name)


@pytest.mark.capture
def test_the_paper_preset_is_that_of_plain_numpy() -> None:
    """ReLU after each convolution of a branch and not after the addition; no change of size after the pool."""
    options = small_options("paper", height=13, width=18)
    program = RESIDUAL.build(options, "inference", 2, seed=0)
    p = programs.randomize(program, seed=4, deviation=0.3)
    image = programs.first_inputs(RESIDUAL, options, "inference", 2)["image"]

    def layer(x: Array, name: str, stride: int = 1) -> Array:
        return convolve(x, p[f"{name}/kernel"], stride) + p.get(f"{name}/bias", 0)

    x = max_pool(relu(layer(image.astype(float), "conv1", 2)), 3, 2, "SAME")
    for widening, names in (("widen2", ["conv2_1", "conv2_2"]), ("widen3", ["conv3_1"])):
        x = layer(x, widening)
        for name in names:
            branch = x
            for part in ("squeeze", "middle", "expand"):
                branch = relu(layer(branch, f"{name}/{part}"))
            x = x + branch
    expected = x.mean((1, 2)) @ p["fc/kernel"]
    assert "widen3/bias" not in p
    found = programs.run(program, {"image": image})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.capture
@pytest.mark.parametrize(("preset", "steps"), [("seminal", 30), ("paper", 100)])
def test_it_learns(preset: str, steps: int) -> None:
    """Four images of one colour each; a network blind to its input would stay at log 4 = 1.39."""
    options = small_options(preset, stem=8, maps=(8, 16), classes=10, height=32, width=32, learning_rate=0.01)
    program = RESIDUAL.build(options, "training", 4, seed=0)
    found = programs.losses(program, {"image": colours(32, 32), "label": np.arange(4, dtype=np.int32)}, steps)
    best = min(np.mean(found[i : i + 5]) for i in range(len(found) - 4))
    assert best < found[0] / 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maps": (64, 128)}, "4 stages but 2 widths"),
        ({"stem": 0}, "at least 1"),
        ({"block": "bottleneck", "maps": (2, 2, 2, 2)}, "squeezes its maps to 1/4"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        programs.options_of(RESIDUAL, "seminal", **changes)
