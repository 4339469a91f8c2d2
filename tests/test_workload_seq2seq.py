"""Is seq2seq the translator that it says it is: parameters, cells, attention, sampled loss, updates, greedy decoding, learning?"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf
import workload_programs as programs

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.checks import check
from fathom_trace.data.parallel_text import BUCKETS, EOS, GO, PAD
from fathom_trace.errors import OptionError
from fathom_trace.loops.layers import layers
from fathom_trace.phases import phases
from fathom_trace.workload import Program

pytestmark = pytest.mark.capture

SEQ2SEQ = programs.load("seq2seq")
BATCH = 3

Arrays = dict[str, np.ndarray]
State = list[tuple[np.ndarray, np.ndarray]]


def small(**changes: Any) -> Any:
    """A network of a few hundred parameters in the shortest bucket; 30 samples of 40 words hit the true one often."""
    return programs.options_of(SEQ2SEQ, "tiny", vocabulary=40, width=6, samples=30, **changes)


@pytest.mark.parametrize(("preset", "width", "expected"), [("seminal", 1024, 184_814_656), ("paper", 256, 34_633_792)])
def test_parameters_are_those_of_the_layers(preset: str, width: int, expected: int) -> None:
    vocabulary, cell = 40_000, (2 * width) * (4 * width) + 4 * width
    embeddings = 2 * vocabulary * width
    mixes = 2 * (2 * width * width + width)
    attention = width * width + (6 * width * width + width) + width
    projection = width * vocabulary + vocabulary
    assert embeddings + 6 * cell + mixes + attention + projection == expected
    chosen = SEQ2SEQ.PRESETS[preset]
    assert chosen.parameters == expected
    assert sum(p.count for p in SEQ2SEQ.parameters(chosen.options)) == expected


def encoder_macs(options: Any, batch_size: int) -> int:
    """Each source word: three cells of [2 w] x [2 w, 4 w], and its key, [w] x [w, w]."""
    width = options.width
    return batch_size * BUCKETS[options.bucket][0] * (3 * 8 * width**2 + width**2)


def decoder_macs(options: Any, batch_size: int, scoring: int) -> int:
    """Each target word: input mix, three cells, query of 6 w, output mix, and what scores the output."""
    width = options.width
    return batch_size * BUCKETS[options.bucket][1] * (2 * width**2 + 3 * 8 * width**2 + 6 * width**2 + 2 * width**2 + scoring)


@functools.cache
def graph(preset: str, mode: str) -> tuple[frozenset[str], int]:
    """The op types of a preset's graph, and the MACs of its products and convolutions by their static shapes."""
    chosen = SEQ2SEQ.PRESETS[preset]
    program = SEQ2SEQ.build(chosen.options, mode, chosen.batch_size[mode], seed=0)
    specs = SEQ2SEQ.inputs(chosen.options, mode, chosen.batch_size[mode])
    step: Any = program.step
    ops = step.get_concrete_function(**{s.name: tf.TensorSpec(s.shape, s.dtype) for s in specs}).graph.get_operations()
    macs = 0
    for op in ops:
        if op.type == "MatMul":
            macs += op.outputs[0].shape.num_elements() * op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1]
        elif op.type == "Conv2D":
            macs += op.outputs[0].shape.num_elements() * op.inputs[1].shape[:3].num_elements()
    return frozenset(op.type for op in ops), macs


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_tiny_has_the_op_types_of_seminal(mode: str) -> None:
    assert graph("tiny", mode)[0] == graph("seminal", mode)[0]


def test_updates_and_sampling_are_the_ops_that_tensorflow_has() -> None:
    types = graph("tiny", "training")[0]
    assert types >= {
        "LogUniformCandidateSampler",
        "ResourceApplyGradientDescent",
        "ResourceScatterSub",
        "SoftmaxCrossEntropyWithLogits",
    }


def test_inference_macs_of_the_seminal_graph() -> None:
    """20 steps of the encoder and 25 of the decoder, each with the whole vocabulary."""
    options = SEQ2SEQ.PRESETS["seminal"].options
    expected = encoder_macs(options, 64) + decoder_macs(options, 64, scoring=1024 * 40_000)
    assert expected == 64 * (20 * 25 * 1024**2 + 25 * 34 * 1024**2 + 25 * 1024 * 40_000) == 156_132_966_400
    assert graph("seminal", "inference")[1] == expected


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_forward_macs_of_the_trace(mode: str) -> None:
    """In training TensorFlow multiplies outputs with 16 samples' rows, and sums products with the true row by one with ones."""
    trace = capture_workload(CaptureRequest("seq2seq", mode=mode, preset="tiny", plan=Plan(steps=1)))
    found = check(trace)
    assert found.complete
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0)
    phase = phases(trace)
    nests, refused = layers(trace, trace.main_structure)
    assert refused == {}
    forward = sum(layer.nest.macs for layer in nests if phase[int(trace.executions.node[layer.execution])] == "forward")
    options = SEQ2SEQ.PRESETS["tiny"].options
    scoring = (16 + 1) * 32 if mode == "training" else 200 * 32
    assert forward == encoder_macs(options, 4) + decoder_macs(options, 4, scoring)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def dense(p: Arrays, name: str, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts) @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def cells(p: Arrays, side: str, x: np.ndarray, state: State) -> State:
    """Three basic LSTM cells, one on the other, for one sentence."""
    found: State = []
    for layer, (c, h) in enumerate(state, start=1):
        i, j, f, o = np.split(dense(p, f"{side}{layer}", x, h), 4)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        x = sigmoid(o) * np.tanh(c)
        found.append((c, x))
    return found


class Sentence:
    """One sentence translated with loops over time and source places."""

    def __init__(self, p: Arrays, source: np.ndarray) -> None:
        self.p, self.width = p, p["attention_score/kernel"].size
        self.state: State = [(np.zeros(self.width), np.zeros(self.width))] * 3
        self.memory = []
        for word in source.tolist():
            self.state = cells(p, "encoder", p["encoder_embedding/table"][word], self.state)
            self.memory.append(self.state[-1][1])
        self.context = np.zeros(self.width)

    def step(self, word: int) -> np.ndarray:
        """The decoder's output after one more word."""
        p = self.p
        self.state = cells(p, "decoder", dense(p, "decoder_input", p["decoder_embedding/table"][word], self.context), self.state)
        query = dense(p, "attention_query", *(part for layer in self.state for part in layer))
        scores = [p["attention_score/kernel"] @ np.tanh(h @ p["attention_keys/kernel"][0, 0] + query) for h in self.memory]
        shares = np.exp(scores) / np.exp(scores).sum()
        self.context = sum(share * h for share, h in zip(shares, self.memory, strict=True))
        return dense(p, "decoder_output", self.state[-1][1], self.context)


def rows(p: Arrays, options: Any) -> np.ndarray:
    """The output projection with one row a word."""
    return p["projection/kernel"] if options.projection == "rows" else p["projection/kernel"].T


@pytest.mark.parametrize("projection", ["rows", "columns"])
def test_inference_decodes_greedily_with_attention(projection: str) -> None:
    """Parameters as large as these make it say several words, so that feeding back a wrong one shows."""
    options = small(projection=projection)
    program = SEQ2SEQ.build(options, "inference", BATCH, seed=0)
    p = programs.randomize(program, seed=8, deviation=1.5)
    values = programs.first_inputs(SEQ2SEQ, options, "inference", BATCH)
    found = programs.run(program, values)
    steps = BUCKETS[0][1]
    assert program.roles == {f"logits_{t:02}": "logits" for t in range(steps)}
    tokens = set()
    for column in range(BATCH):
        sentence, word = Sentence(p, values["source"][:, column]), GO
        for t in range(steps):
            expected = rows(p, options) @ sentence.step(word) + p["projection/bias"]
            np.testing.assert_allclose(found[f"logits_{t:02}"][column], expected, rtol=1e-3, atol=1e-4)
            word = int(np.argmax(expected))
            assert found["tokens"][t, column] == word
            tokens.add(word)
    assert len(tokens) > 2


def samples(options: Any, variables_of: Program, values: Arrays) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What the sampler of each step draws at first: words [samples], expected counts of true words [batch, 1] and of samples."""
    step: Any = variables_of.step
    specs = [tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in SEQ2SEQ.inputs(options, "training", BATCH)]
    wrapped = tf.compat.v1.wrap_function(step.python_function, specs)
    drawn = [op.outputs for op in wrapped.graph.get_operations() if op.type == "LogUniformCandidateSampler"]
    found = wrapped.prune(wrapped.inputs[: len(specs)], drawn)(**{s.name: tf.constant(values[s.name]) for s in specs})
    return [tuple(part.numpy() for part in parts) for parts in found]


def loss(p: Arrays, options: Any, values: Arrays, drawn: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
    """The sampled softmax by its definition (Jean et al. 2014, section 3), by word; samples that are the true word are left out."""
    kernel, bias, total = rows(p, options), p["projection/bias"], 0.0
    for column in range(BATCH):
        sentence, losses, weights = Sentence(p, values["source"][:, column]), 0.0, 0.0
        for t, (words, true_count, counts) in enumerate(drawn):
            output = sentence.step(int(values["decoder_input"][t, column]))
            true = int(values["target"][t, column])
            score = kernel[true] @ output + bias[true] - np.log(true_count[column, 0])
            others = [kernel[w] @ output + bias[w] - np.log(q) for w, q in zip(words.tolist(), counts, strict=True) if w != true]
            weight = 0.0 if true == PAD or t == len(drawn) - 1 else 1.0
            losses += weight * (np.log(np.exp([score, *others]).sum()) - score)
            weights += weight
        total += losses / weights
    return total / BATCH


@pytest.mark.parametrize("projection", ["rows", "columns"])
def test_loss_is_the_sampled_softmax_and_the_update_descends_along_its_gradient(projection: str) -> None:
    """To first order a step of rate r that moves the parameters by m lowers the loss of the same samples by m^2 / r."""
    rate = 1e-3
    options = small(projection=projection, learning_rate=rate, clip_norm=1e6)
    program = SEQ2SEQ.build(options, "training", BATCH, seed=0)
    before = programs.randomize(program, seed=8, deviation=0.5)
    values = programs.first_inputs(SEQ2SEQ, options, "training", BATCH)
    drawn = samples(options, program, values)
    assert len(drawn) == BUCKETS[0][1]
    assert any(set(words.tolist()) & set(values["target"][t].tolist()) - {PAD} for t, (words, _, _) in enumerate(drawn))
    found = programs.run(program, values)
    after = {name: v.numpy().astype(np.float64) for name, v in programs.by_name(program).items()}
    assert found["loss"] == pytest.approx(loss(before, options, values, drawn), rel=1e-4)
    assert [name for name in before if np.array_equal(before[name], after[name])] == []
    moved = sum(((after[name] - before[name]) ** 2).sum() for name in before)
    assert loss(before, options, values, drawn) - loss(after, options, values, drawn) == pytest.approx(moved / rate, rel=5e-2)


def test_padding_and_the_last_step_have_no_weight() -> None:
    """What is predicted there changes nothing."""
    values = programs.first_inputs(SEQ2SEQ, small(), "training", BATCH)
    losses = []
    for word in (PAD, EOS):
        program = SEQ2SEQ.build(small(), "training", BATCH, seed=0)
        changed = values | {"target": np.where(values["weight"] == 0, word, values["target"]).astype(np.int32)}
        losses.append(programs.run(program, changed)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_gradient_is_clipped_to_its_global_norm() -> None:
    """A gradient of norm n is scaled by c / n; all else equal, so is the movement."""
    values = programs.first_inputs(SEQ2SEQ, small(), "training", BATCH)
    moved, norms = [], []
    for clip_norm in (1e6, 0.01):
        program = SEQ2SEQ.build(small(clip_norm=clip_norm), "training", BATCH, seed=0)
        before = [v.numpy().astype(np.float64) for v in program.trainable]
        norms.append(float(programs.run(program, values)["gradient_norm"]))
        moved.append(np.sqrt(sum(((v.numpy() - b) ** 2).sum() for v, b in zip(program.trainable, before, strict=True))))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[0] > 0.01
    assert moved[1] / moved[0] == pytest.approx(0.01 / norms[0], rel=1e-2)


def test_it_learns() -> None:
    """Four sentence pairs by heart; the loss is noisy, because each step draws other samples."""
    options = SEQ2SEQ.PRESETS["tiny"].options
    program = SEQ2SEQ.build(options, "training", 4, seed=0)
    found = programs.losses(program, programs.first_inputs(SEQ2SEQ, options, "training", 4), 120)
    assert np.mean(found[-20:]) < found[0] / 2


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_real_text_is_captured(tmp_path: Path, mode: str) -> None:
    for name in ("train.en", "test.en", "train.fr"):
        (tmp_path / name).write_text(
            "the cat sleeps\nthe dog\n" if name.endswith("en") else "le chat dort\nle chien\n", encoding="utf-8"
        )
    trace = capture_workload(CaptureRequest("seq2seq", mode=mode, preset="tiny", data=tmp_path, plan=Plan(steps=1)))
    assert check(trace).complete
    assert trace.provenance["data"] == str(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 200}, r"vocabulary is 200; it must exceed samples \(200\)"),
        ({"layers": 0}, "at least 1 in each of width, layers and samples"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
    ],
)
def test_options_that_make_no_model_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        programs.options_of(SEQ2SEQ, "tiny", **changes)
