"""Is speech Deep Speech: parameters, bidirectional recurrence with clipped ReLU, CTC on two separate lengths, learning?"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf
import timit_files
import workload_programs as programs

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.checks import check
from fathom_trace.costs import costs
from fathom_trace.data.timit import frames_needed
from fathom_trace.errors import OptionError
from fathom_trace.phases import phases
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

SPEECH = programs.load("speech")
RECORD_CAP = 1_048_576
"""Records that TensorFlow keeps of one step."""


def parameters_of(features: int, units: int) -> int:
    """Layers 1 to 3; two directions with an input kernel, a recurrent kernel and a bias each; layer 5; 61 phonemes and the blank."""
    square = units * units
    return (features * units + units) + 2 * (square + units) + 2 * (2 * square + units) + (square + units) + (units * 62 + 62)


@pytest.mark.parametrize(
    ("preset", "changes", "expected"),
    [
        ("seminal", {}, 29_552_702),
        ("seminal", {"context": 9}, 30_511_166),
        ("paper", {}, 7_436_350),
        ("tiny", {}, parameters_of(26, 16)),
    ],
)
def test_parameters_are_those_of_the_layers(preset: str, changes: dict, expected: int) -> None:
    options = programs.options_of(SPEECH, preset, **changes)
    assert parameters_of(26 * (2 * options.context + 1), options.units) == expected
    if not changes:
        assert SPEECH.PRESETS[preset].parameters == expected
    assert programs.parameter_count(SPEECH.build(options, "inference", 1, seed=0)) == expected


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_tiny_has_the_op_types_of_seminal(mode: str) -> None:
    assert programs.op_types(SPEECH, "tiny", mode) == programs.op_types(SPEECH, "seminal", mode)


def test_what_tensorflow_has_as_one_op_is_one_op() -> None:
    found = programs.op_types(SPEECH, "tiny", "training")
    assert {"CTCLoss", "ResourceApplyMomentum", "ReverseSequence"} <= found
    assert found & {"While", "StatelessWhile"}, "the recurrence is a loop in the graph"
    assert "ResourceApplyGradientDescent" in programs.op_types(SPEECH, "paper", "training")


def clipped(x: np.ndarray, limit: float) -> np.ndarray:
    return np.minimum(np.maximum(x, 0), limit)


def logits_of(frames: np.ndarray, p: dict[str, np.ndarray], limit: float) -> np.ndarray:
    """Logits [frames, 62] of one utterance without padding, [frames, features], one frame after the other."""
    x = frames.astype(np.float64)
    for name in ("h1", "h2", "h3"):
        x = clipped(x @ p[f"{name}/kernel"] + p[f"{name}/bias"], limit)
    total = np.zeros_like(x)
    for name, times in (("h4_forward", range(len(x))), ("h4_backward", reversed(range(len(x))))):
        state = np.zeros(x.shape[1])
        for t in times:
            state = clipped(x[t] @ p[f"{name}/kernel"] + state @ p[f"{name}/recurrent_kernel"] + p[f"{name}/bias"], limit)
            total[t] += state
    x = clipped(total @ p["h5/kernel"] + p["h5/bias"], limit)
    return x @ p["logits/kernel"] + p["logits/bias"]


def test_the_recurrence_runs_both_ways_within_each_utterance() -> None:
    """Three utterances of different lengths, with rubbish in the padding; a limit of 2, which many activations reach."""
    options = programs.options_of(SPEECH, "tiny", frames=7, limit=2.0)
    program = SPEECH.build(options, "inference", 3, seed=0)
    p = programs.randomize(program, seed=1, deviation=0.5)
    features = np.random.default_rng(2).normal(size=(3, 7, 26)).astype(np.float32)
    lengths = np.array([7, 4, 1], np.int32)
    outputs = programs.run(program, {"features": features, "frame_length": lengths})
    assert outputs["logits"].shape == (7, 3, 62)
    for k, length in enumerate(lengths):
        expected = logits_of(features[k, :length], p, 2.0)
        np.testing.assert_allclose(outputs["logits"][:length, k], expected, rtol=1e-3, atol=1e-4)
        exponential = np.exp(expected - expected.max(axis=1, keepdims=True))
        probabilities = exponential / exponential.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(outputs["probabilities"][:length, k], probabilities, rtol=1e-3, atol=1e-6)
    first = features[0] @ p["h1/kernel"] + p["h1/bias"]
    assert np.mean(first > 2) > 0.1, "the upper limit is tested"
    assert np.mean(first < 0) > 0.1, "so is the lower"


def without_repeats(path: tuple[int, ...]) -> list[int]:
    """What CTC reads in a path: repeats merged, then blanks (61) dropped."""
    return [label for label, _group in itertools.groupby(path) if label != 61]


def test_the_loss_is_the_probability_of_all_paths_that_spell_the_labels() -> None:
    """Two utterances: 3 frames with 2 labels that are alike, 2 frames with 1 label. All paths of their labels, the blank (61) and one
    more label are tried; no path through another label can spell them."""
    options = programs.options_of(SPEECH, "tiny", frames=3, labels=2, keep_probability=1.0, learning_rate=0.0)
    program = SPEECH.build(options, "training", 2, seed=0)
    programs.randomize(program, seed=3, deviation=0.3)
    values = {
        "features": np.random.default_rng(4).normal(size=(2, 3, 26)).astype(np.float32),
        "frame_length": np.array([3, 2], np.int32),
        "label": np.array([[7, 7], [60, 0]], np.int32),
        "label_length": np.array([2, 1], np.int32),
    }
    outputs = programs.run(program, values)
    logits = outputs["logits"].astype(np.float64)
    total = 0.0
    for k, (length, written) in enumerate([(3, [7, 7]), (2, [60])]):
        probability = np.exp(logits[:length, k])
        probability /= probability.sum(axis=1, keepdims=True)
        paths = (path for path in itertools.product((7, 60, 61, 5), repeat=length) if without_repeats(path) == written)
        total -= np.log(sum(np.prod([probability[t, label] for t, label in enumerate(path)]) for path in paths))
    assert outputs["loss"] == pytest.approx(total / 2, rel=1e-5)


def test_the_two_lengths_are_separate() -> None:
    """The loss changes with either; the labels beyond `label_length` and the frames beyond `frame_length` do not matter."""
    options = programs.options_of(SPEECH, "tiny", keep_probability=1.0, learning_rate=0.0)
    program = SPEECH.build(options, "training", 2, seed=0)
    programs.randomize(program, seed=5, deviation=0.3)
    values = programs.first_inputs(SPEECH, options, "training", 2) | {
        "frame_length": np.array([12, 9], np.int32),
        "label": np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]], np.int32),
        "label_length": np.array([4, 3], np.int32),
    }
    loss = float(programs.run(program, values)["loss"])
    rubbish = {name: value.copy() for name, value in values.items()}
    rubbish["features"][0, 12:], rubbish["features"][1, 9:] = 5, -5
    rubbish["label"][0, 4:], rubbish["label"][1, 3:] = 60, 17
    assert float(programs.run(program, rubbish)["loss"]) == pytest.approx(loss, rel=1e-6)
    for name, changed in (("frame_length", [11, 9]), ("label_length", [4, 2])):
        other = float(programs.run(program, values | {name: np.array(changed, np.int32)})["loss"])
        assert abs(other - loss) > 1e-3, name


def test_dropout_is_in_training_and_on_the_dense_layers_only() -> None:
    options = programs.options_of(SPEECH, "tiny")

    def random_ops(mode: str) -> list[str]:
        program = SPEECH.build(options, mode, 2, seed=0)
        specs = {s.name: tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in SPEECH.inputs(options, mode, 2)}
        operations = program.step.get_concrete_function(**specs).graph.get_operations()
        return sorted(o.name.split("/")[0] for o in operations if o.type == "RandomUniform")

    assert random_ops("training") == ["h1", "h2", "h3", "h5"]
    assert random_ops("inference") == []


def test_it_learns() -> None:
    options = programs.options_of(SPEECH, "tiny", learning_rate=1e-3, momentum=0.9)
    program = SPEECH.build(options, "training", 4, seed=0)
    found = programs.losses(program, programs.first_inputs(SPEECH, options, "training", 4), 150)
    assert np.mean(found[-5:]) < found[0] / 2


@pytest.mark.parametrize("optimizer", ["nesterov", "sgd"])
def test_gradients_reach_every_variable(optimizer: str) -> None:
    options = programs.options_of(SPEECH, "tiny", optimizer=optimizer)
    program = SPEECH.build(options, "training", 4, seed=0)
    assert programs.unchanged_after(program, programs.first_inputs(SPEECH, options, "training", 4), 1) == []


def test_the_gradient_through_time_is_that_of_small_differences() -> None:
    """The recurrent kernels' gradients, read off one plain SGD update, against (f(w + h) - f(w - h)) / 2h at some elements."""
    options = programs.options_of(
        SPEECH, "tiny", frames=6, labels=2, units=5, keep_probability=1.0, optimizer="sgd", learning_rate=1.0
    )
    program = SPEECH.build(options, "training", 2, seed=0)
    programs.randomize(program, seed=6, deviation=0.4)
    values = programs.first_inputs(SPEECH, options, "training", 2, seed=7) | {"frame_length": np.array([6, 5], np.int32)}
    start = {name: v.numpy() for name, v in programs.by_name(program).items()}
    variables = programs.by_name(program)

    def restore() -> None:
        for name, variable in variables.items():
            variable.assign(start[name])

    def loss_at(name: str, place: tuple[int, int], change: float) -> float:
        restore()
        moved = start[name].copy()
        moved[place] += change
        variables[name].assign(moved)
        return float(programs.run(program, values)["loss"])

    programs.run(program, values)
    gradients = {name: start[name] - variables[name].numpy() for name in start}
    tried = 0
    for name in ("h4_forward/recurrent_kernel", "h4_backward/recurrent_kernel"):
        for place in np.argwhere(np.abs(gradients[name]) > 0.02)[:4]:
            slope = (loss_at(name, tuple(place), 1e-2) - loss_at(name, tuple(place), -1e-2)) / 2e-2
            assert gradients[name][tuple(place)] == pytest.approx(slope, rel=0.05, abs=2e-3)
            tried += 1
    assert tried >= 4


def test_synthetic_utterances_are_plausible_and_every_step_has_as_many_labels() -> None:
    options = SPEECH.Options()
    source = SPEECH.synthetic(options, "training", 64, 0)
    batches = [next(source) for _ in range(2)]
    assert len({int(b["label_length"].sum()) for b in batches}) == 1
    assert not np.array_equal(batches[0]["frame_length"], batches[1]["frame_length"]), "dealt out anew"
    for batch in batches:
        for k in range(64):
            frames, labels = int(batch["frame_length"][k]), int(batch["label_length"][k])
            assert frames_needed(batch["label"][k, :labels]) == labels <= frames, "none is like the one before"
            assert not batch["features"][k, frames:].any()
            assert not batch["label"][k, labels:].any()
            assert 10 < frames / labels < 25, "a phoneme lasts 80 ms on average"
        assert batch["features"][0, : batch["frame_length"][0]].std() == pytest.approx(1, abs=0.02)
        assert batch["label"].max() <= 60
    assert 500 < batches[0]["frame_length"].mean() < 730
    wide = programs.first_inputs(SPEECH, programs.options_of(SPEECH, "tiny", context=2), "training", 3)["features"]
    assert wide.shape == (3, 24, 130)
    np.testing.assert_array_equal(wide[:, 1:, :26], np.concatenate([wide[:, :1, 26:52], wide[:, 1:-1, 26:52]], axis=1))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"units": 0}, "at least 1"),
        ({"context": -1}, "no negative context"),
        ({"frames": 5}, "there are 6 labels in 5 frames"),
        ({"keep_probability": 0.0}, "above 0 and up to 1"),
        ({"limit": 0.0}, "limit is 0.0"),
    ],
)
def test_options_that_cannot_be_built_are_refused(changes: dict, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        programs.options_of(SPEECH, "tiny", **changes)


def captured(mode: str, **settings: str) -> Trace:
    trace = capture_workload(CaptureRequest("speech", mode=mode, preset="tiny", settings=settings, plan=Plan(steps=2, warmup=0)))
    found = check(trace)
    assert found.complete
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0)
    assert len(trace.structures) == 1, "every step ran the same"
    return trace


def macs(trace: Trace, phase: str = "") -> int:
    structure = trace.main_structure
    codes = np.array(phases(trace)[:])[trace.executions.node[trace.structure_rows(structure)]]
    found = costs(trace, structure).macs
    return int(found[codes == phase].sum() if phase else found.sum())


def test_macs_and_records_of_a_step() -> None:
    """4 utterances of 24 frames. Backward once more for the kernels, and once for all inputs but the features.

    Records grow by as much with each frame, so two lengths give those of 1566 frames.
    """
    frame = 26 * 16 + 2 * 16 * 16 + 2 * (16 * 16 + 16 * 16) + 16 * 16 + 16 * 62
    assert macs(captured("inference")) == 4 * 24 * frame
    trace = captured("training")
    assert macs(trace, "forward") == 4 * 24 * frame
    assert macs(trace) == 4 * 24 * (3 * frame - 26 * 16)
    shorter = len(captured("training", frames="12").executions)
    each = (len(trace.executions) - shorter) / 12
    assert len(trace.executions) + (1566 - 24) * each < RECORD_CAP


def test_a_timit_tree_is_captured(tmp_path: Path) -> None:
    for k in range(3):
        timit_files.write_utterance(tmp_path / "TRAIN" / "DR1" / "FAAA0" / f"SX{k}", 1000 + 400 * k, ["h#", "b", "iy", "h#"])
    request = CaptureRequest("speech", preset="tiny", data=tmp_path, batch_size=2, plan=Plan(steps=1, warmup=0))
    trace = capture_workload(request)
    assert check(trace).complete
    assert not trace.steps.synthetic_input[trace.steps.traced].any()
