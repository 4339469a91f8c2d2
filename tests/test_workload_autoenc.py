"""Is autoenc the variational autoencoder of its paper: parameters, loss, sampling, learning?"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import workload_programs as programs

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.checks import check
from fathom_trace.errors import OptionError

pytestmark = pytest.mark.capture

AUTOENC = programs.load("autoenc")


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("seminal", 784 * 500 + 500 + 2 * (500 * 20 + 20) + 20 * 500 + 500 + 500 * 784 + 784),
        ("paper", 2 * (784 * 200 + 200) + 200 * 784 + 784),
        ("tiny", 784 * 16 + 16 + 2 * (16 * 4 + 4) + 4 * 16 + 16 + 16 * 784 + 784),
    ],
)
def test_parameters_are_those_of_the_layers(preset: str, expected: int) -> None:
    chosen = AUTOENC.PRESETS[preset]
    assert chosen.parameters == expected
    assert programs.parameter_count(AUTOENC.build(chosen.options, "training", 1, seed=0)) == expected


def test_the_table_of_parameters() -> None:
    assert {name: AUTOENC.PRESETS[name].parameters for name in ("seminal", "paper")} == {"seminal": 815_824, "paper": 471_584}


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_tiny_has_the_op_types_of_seminal(mode: str) -> None:
    assert programs.op_types(AUTOENC, "tiny", mode) == programs.op_types(AUTOENC, "seminal", mode)


def test_updates_are_fused_ops() -> None:
    assert "ResourceApplyAdagradV2" in programs.op_types(AUTOENC, "seminal", "training")
    assert "ResourceApplyAdam" in programs.op_types(AUTOENC, "paper", "training")


def without_noise(program) -> dict[str, np.ndarray]:
    """Random parameters, and a log variance of -30, at which the noise is 3e-7: the code is its mean."""
    values = programs.randomize(program, seed=3, deviation=0.1)
    variables = programs.by_name(program)
    variables["log_variance/kernel"].assign(np.zeros(variables["log_variance/kernel"].shape, np.float32))
    variables["log_variance/bias"].assign(np.full(variables["log_variance/bias"].shape, -30, np.float32))
    return values | {"log_variance": np.float64(-30)}


def test_bernoulli_loss_is_the_negative_lower_bound_per_image() -> None:
    """Equation 10 of the paper image by image: log(sigmoid) of each pixel, the divergence from N(0, I), and the decoder's prior."""
    options = programs.options_of(AUTOENC, "tiny", weight_decay=0.25, learning_rate=0.0)
    program = AUTOENC.build(options, "training", 3, seed=0)
    p = without_noise(program)
    images = programs.first_inputs(AUTOENC, options, "training", 3)["image"]
    total = 0.0
    for image in images.astype(np.float64):
        code = np.tanh(image @ p["encoder1/kernel"] + p["encoder1/bias"]) @ p["mean/kernel"] + p["mean/bias"]
        hidden = np.tanh(code @ p["decoder1/kernel"] + p["decoder1/bias"])
        probability = 1 / (1 + np.exp(-(hidden @ p["reconstruction/kernel"] + p["reconstruction/bias"])))
        log_likelihood = sum(x * np.log(q) + (1 - x) * np.log(1 - q) for x, q in zip(image, probability, strict=True))
        divergence = -0.5 * sum(1 + p["log_variance"] - m**2 - np.exp(p["log_variance"]) for m in code)
        total += divergence - log_likelihood
    decoder = [p[f"{layer}/{part}"] for layer in ("decoder1", "reconstruction") for part in ("kernel", "bias")]
    expected = total / 3 + 0.25 * sum((v**2).sum() for v in decoder) / 2
    assert programs.run(program, {"image": images})["loss"] == pytest.approx(expected, rel=1e-5)


def test_loss_of_the_paper_preset_sums_the_error_and_averages_the_divergence() -> None:
    options = programs.options_of(AUTOENC, "paper", code=5, learning_rate=0.0)
    program = AUTOENC.build(options, "training", 3, seed=0)
    p = without_noise(program)
    images = programs.first_inputs(AUTOENC, options, "training", 3)["image"].astype(np.float64)
    code = images @ p["mean/kernel"] + p["mean/bias"]
    error = 0.5 * np.sum((code @ p["reconstruction/kernel"] + p["reconstruction/bias"] - images) ** 2)
    divergence = -0.5 * np.sum(1 + p["log_variance"] - code**2 - np.exp(p["log_variance"]), axis=1)
    expected = error + divergence.mean()
    assert programs.run(program, {"image": images.astype(np.float32)})["loss"] == pytest.approx(expected, rel=1e-5)


def test_inference_samples_the_code_from_the_encoders_distribution() -> None:
    """20,000 copies of one image through a linear decoder: code ~ N(m, s^2) gives outputs of mean m W + b and variance s^2 W^2."""
    count = 20_000
    options = programs.options_of(AUTOENC, "paper", code=3)
    program = AUTOENC.build(options, "inference", count, seed=1)
    p = programs.randomize(program, seed=4, deviation=0.05)
    image = programs.first_inputs(AUTOENC, options, "inference", 1)["image"]
    outputs = programs.run(program, {"image": np.repeat(image, count, axis=0)})["mean"]
    mean = image[0] @ p["mean/kernel"] + p["mean/bias"]
    deviation = np.exp((image[0] @ p["log_variance/kernel"] + p["log_variance/bias"]) / 2)
    expected_mean = mean @ p["reconstruction/kernel"] + p["reconstruction/bias"]
    expected_deviation = np.sqrt(deviation**2 @ p["reconstruction/kernel"] ** 2)
    # A sample mean is within 6 standard errors in all but 1 of 5e8 cases; a sample deviation has the standard error s / sqrt(2 n).
    assert np.all(np.abs(outputs.mean(axis=0) - expected_mean) < 6 * expected_deviation / np.sqrt(count))
    assert np.all(np.abs(outputs.std(axis=0) / expected_deviation - 1) < 6 / np.sqrt(2 * count))


def test_probabilities_are_the_sigmoid_of_the_logits() -> None:
    options = programs.options_of(AUTOENC, "tiny")
    program = AUTOENC.build(options, "inference", 4, seed=0)
    outputs = programs.run(program, programs.first_inputs(AUTOENC, options, "inference", 4))
    assert outputs["logits"].shape == (4, 784)
    np.testing.assert_allclose(outputs["probabilities"], 1 / (1 + np.exp(-outputs["logits"].astype(np.float64))), rtol=1e-5)


def test_it_learns_through_the_code() -> None:
    """Ten images, each one of four lit quarters. A decoder blind to the code would at best give each pixel 3/10 or 2/10, which costs
    392 x (H(3/10) + H(2/10)) = 435 nats (H in nats: 0.611 and 0.500): more than half of the first loss, 784 log 2 = 543."""
    quarters = np.repeat(np.eye(4, dtype=np.float32), 784 // 4, axis=1)
    images = quarters[np.arange(10) % 4]
    program = AUTOENC.build(programs.options_of(AUTOENC, "tiny"), "training", 10, seed=0)
    found = programs.losses(program, {"image": images}, 200)
    assert np.mean(found[-5:]) < found[0] / 2


@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_gradients_reach_every_variable(preset: str) -> None:
    """Two steps: the decoder of `paper` starts at zero, so that its encoder has a gradient of the error from the second on."""
    options = programs.options_of(AUTOENC, preset)
    program = AUTOENC.build(options, "training", 10, seed=0)
    assert programs.unchanged_after(program, programs.first_inputs(AUTOENC, options, "training", 10), 2) == []


def test_synthetic_images_have_the_stated_statistics() -> None:
    image = programs.first_inputs(AUTOENC, AUTOENC.Options(), "training", 5000)["image"]
    assert image.dtype == np.float32
    assert image.min() == 0
    assert image.max() <= 1
    assert np.mean(image > 0) == pytest.approx(0.191, abs=0.001)
    assert image.mean() == pytest.approx(0.1307, abs=0.001)
    scaled = programs.first_inputs(AUTOENC, AUTOENC.PRESETS["paper"].options, "training", 5000)["image"]
    assert (scaled.mean(), scaled.std()) == pytest.approx((0, 1), abs=0.005)


def test_pixels_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(OptionError, match="decoder=gaussian"):
        AUTOENC.Options(is_standardized=True)
    with pytest.raises(OptionError, match="at least 1"):
        AUTOENC.Options(hidden=(5, 0))


def test_idx_files_are_captured(tmp_path: Path) -> None:
    """Twelve white images: what the step is fed is what the file holds, and it is not called synthetic."""
    header = struct.pack(">IIII", 2051, 12, 28, 28)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes([255]) * 12 * 784))
    trace = capture_workload(CaptureRequest("autoenc", preset="tiny", data=tmp_path, plan=Plan(steps=1, warmup=0)))
    assert check(trace).complete
    assert trace.provenance["data"] == str(tmp_path)
    assert not trace.steps.synthetic_input[trace.steps.traced].any()
    batch = next(AUTOENC.read_data(tmp_path, programs.options_of(AUTOENC, "tiny"), "training", 10, 0))
    assert np.all(batch["image"] == 1)


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_tiny_is_captured(mode: str) -> None:
    trace = capture_workload(CaptureRequest("autoenc", mode=mode, preset="tiny", plan=Plan(steps=1)))
    found = check(trace)
    assert found.complete
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0)
    products = [n for n in trace.executions.node.tolist() if trace.node_ops[n] == "MatMul"]
    # Five layers, of which two share their input; in training one product more for each kernel and for each input but the image's.
    assert len(products) == (5 + 5 + 4 if mode == "training" else 5)
