"""Is memnet the memory network of its paper: parameters, encodings, attention, tying, nil, clipping, learning?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import workload_programs as programs

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.checks import check
from fathom_trace.errors import OptionError
from fathom_trace.loops.layers import layers
from fathom_trace.phases import phases
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

MEMNET = programs.load("memnet")

Arrays = dict[str, np.ndarray]


def test_the_table_of_parameters() -> None:
    """Four tables of words and four of times; layer-wise: question, memory and answer, one table of times, H."""
    assert MEMNET.PRESETS["seminal"].parameters == 4 * 20 * 20 + 4 * 10 * 20 == 2_400
    assert MEMNET.PRESETS["paper"].parameters == 3 * 20 * 20 + 10 * 20 + 20 * 20 == 1_800
    assert sum(p.count for p in MEMNET.parameters(MEMNET.Options(memory=50))) == 4 * 20 * 20 + 4 * 50 * 20 == 5_600


@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_as_many_parameters_are_built_as_stated(preset: str) -> None:
    chosen = MEMNET.PRESETS[preset]
    assert programs.parameter_count(MEMNET.build(chosen.options, "training", 2, seed=0)) == chosen.parameters


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_tiny_has_the_op_types_of_seminal(mode: str) -> None:
    assert programs.op_types(MEMNET, "tiny", mode) == programs.op_types(MEMNET, "seminal", mode)


def test_updates_are_fused_ops() -> None:
    assert "ResourceApplyGradientDescent" in programs.op_types(MEMNET, "seminal", "training")
    assert "ResourceApplyAdam" in programs.op_types(MEMNET, "paper", "training")


def test_position_encoding_is_the_papers() -> None:
    """l_kj = (1 - j/J) - (k/d)(1 - 2j/J), term by term; the first is (1 - 1/6) - (1/20)(1 - 2/6) = 0.8, the last 0 - (1 - 2) = 1."""
    found = MEMNET.position_encoding(6, 20)
    assert (found[0, 0], found[5, 19]) == pytest.approx((0.8, 1.0))
    for j in range(1, 7):
        for k in range(1, 21):
            assert found[j - 1, k - 1] == pytest.approx((1 - j / 6) - (k / 20) * (1 - 2 * j / 6), abs=1e-6)


def test_position_encoding_of_fathom_is_twice_the_papers() -> None:
    """Fathom's is 1 + 4 (k - d/2)(j - J/2) / (d J) for even d and J."""
    j, k = np.mgrid[1:7, 1:21]
    fathom = 1 + 4 * (k - 10) * (j - 3) / (20 * 6)
    np.testing.assert_allclose(MEMNET.PRESETS["paper"].options.position_scale * MEMNET.position_encoding(6, 20), fathom, atol=1e-6)


def sentence(table: np.ndarray, words: np.ndarray, scale: float) -> np.ndarray:
    """A sentence as a vector, word by word."""
    units = table.shape[1]
    total = np.zeros(units)
    for j, word in enumerate(words.tolist(), start=1):
        share = j / len(words)
        total += scale * ((1 - share) - np.arange(1, units + 1) / units * (1 - 2 * share)) * table[word]
    return total


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def logits(p: Arrays, options: MEMNET.Options, story: np.ndarray, question: np.ndarray) -> np.ndarray:
    """The logits of one story, sentence by sentence, from the paper's equations."""

    def memory(name: str) -> np.ndarray:
        places = zip(story, p[f"{name}/times"], strict=True)
        return np.array([sentence(p[f"{name}/words"], words, options.position_scale) + time for words, time in places])

    is_adjacent = options.tying == "adjacent"
    u = sentence(p["embedding0/words" if is_adjacent else "question/words"], question, options.position_scale)
    for hop in range(1, options.hops + 1):
        m = memory(f"embedding{hop - 1}" if is_adjacent else "memory")
        c = memory(f"embedding{hop}") if is_adjacent else m
        weights = softmax(np.array([u @ m_i for m_i in m]))
        o = sum(p_i * c_i for p_i, c_i in zip(weights, c, strict=True))
        u = u + o if is_adjacent else u @ p["hop/kernel"] + o
    return p[f"embedding{options.hops}/words"] @ u if is_adjacent else u @ p["answer/kernel"]


def loss(p: Arrays, options: MEMNET.Options, values: Arrays) -> float:
    """The cross-entropy, summed over the batch."""
    rows = zip(values["story"], values["question"], values["answer"], strict=True)
    return float(sum(-np.log(softmax(logits(p, options, story, question))[answer]) for story, question, answer in rows))


@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_forward_pass_is_that_of_the_equations(preset: str) -> None:
    """All parameters random and nil not zero, so that a table, a time or a word in the wrong place shows."""
    options = programs.options_of(MEMNET, preset)
    program = MEMNET.build(options, "inference", 8, seed=0)
    p = programs.randomize(program, seed=5, deviation=0.5)
    values = programs.first_inputs(MEMNET, options, "inference", 8)
    found = programs.run(program, values)
    expected = np.array([logits(p, options, s, q) for s, q in zip(values["story"], values["question"], strict=True)])
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["probabilities"], [softmax(row) for row in expected], rtol=1e-4, atol=1e-6)


def test_loss_is_summed_and_the_update_descends_along_its_gradient() -> None:
    """To first order a step of rate r lowers the loss by r |g|^2, and moves all parameters together by r |g|."""
    rate = 1e-5
    options = programs.options_of(MEMNET, "seminal", learning_rate=rate)
    program = MEMNET.build(options, "training", 16, seed=0)
    values = programs.first_inputs(MEMNET, options, "training", 16)
    before = {name: v.numpy().astype(np.float64) for name, v in programs.by_name(program).items()}
    found = programs.run(program, values)
    after = {name: v.numpy().astype(np.float64) for name, v in programs.by_name(program).items()}
    norm = float(found["gradient_norm"])
    assert 0 < norm < options.clip_norm
    assert found["loss"] == pytest.approx(loss(before, options, values), rel=1e-5)
    assert np.sqrt(sum(((after[n] - before[n]) ** 2).sum() for n in before)) == pytest.approx(rate * norm, rel=1e-2)
    assert loss(before, options, values) - loss(after, options, values) == pytest.approx(rate * norm**2, rel=2e-2)


def test_the_whole_gradient_is_clipped() -> None:
    options = programs.options_of(MEMNET, "tiny", clip_norm=0.5, learning_rate=1.0)
    program = MEMNET.build(options, "training", 4, seed=0)
    before = [v.numpy() for v in program.trainable]
    found = programs.run(program, programs.first_inputs(MEMNET, options, "training", 4))
    assert found["gradient_norm"] > 0.5
    moved = np.sqrt(sum(((v.numpy() - b) ** 2).sum() for v, b in zip(program.trainable, before, strict=True)))
    assert moved == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_nil_stays_zero(preset: str) -> None:
    options = programs.options_of(MEMNET, preset)
    program = MEMNET.build(options, "training", 8, seed=0)
    values = programs.first_inputs(MEMNET, options, "training", 8)
    assert 0 in values["story"]
    programs.losses(program, values, 5)
    tables = {name: v.numpy() for name, v in programs.by_name(program).items() if name.endswith("words")}
    assert len(tables) == (4 if preset == "seminal" else 2)
    assert [name for name, table in tables.items() if table[0].any()] == []
    assert [name for name, table in tables.items() if not table[1:].any(axis=1).all()] == []


@pytest.mark.parametrize("preset", ["seminal", "paper", "tiny"])
def test_it_learns(preset: str) -> None:
    chosen = MEMNET.PRESETS[preset]
    batch_size = chosen.batch_size["training"]
    program = MEMNET.build(chosen.options, "training", batch_size, seed=0)
    found = programs.losses(program, programs.first_inputs(MEMNET, chosen.options, "training", batch_size), 100)
    assert found[-1] < found[0] / 2


@pytest.mark.parametrize("preset", ["seminal", "paper"])
def test_gradients_reach_every_variable(preset: str) -> None:
    """Without the noise of `paper`, which would move what no gradient reaches."""
    options = programs.options_of(MEMNET, preset, gradient_noise=0.0)
    program = MEMNET.build(options, "training", 8, seed=0)
    assert programs.unchanged_after(program, programs.first_inputs(MEMNET, options, "training", 8), 1) == []


def test_the_rate_can_be_lowered_between_steps() -> None:
    options = programs.options_of(MEMNET, "tiny")
    program = MEMNET.build(options, "training", 4, seed=0)
    [rate] = program.state
    rate.assign(0.0)
    values = programs.first_inputs(MEMNET, options, "training", 4)
    assert len(programs.unchanged_after(program, values, 1)) == len(program.trainable)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": 21}, "task is 21; bAbI has tasks 1 to 20"),
        ({"hops": 0}, "at least 1 in each of memory, width, embedding and hops"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
    ],
)
def test_options_that_make_no_model_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        programs.options_of(MEMNET, "seminal", **changes)


def forward_macs(trace: Trace) -> int:
    phase = phases(trace)
    found, refused = layers(trace, trace.main_structure)
    assert refused == {}
    return sum(layer.nest.macs for layer in found if phase[int(trace.executions.node[layer.execution])] == "forward")


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_forward_macs_of_the_trace(mode: str) -> None:
    """Only the answer is a matrix product, [32, 20] by [20, 20]; reading the memory is elementwise."""
    trace = capture_workload(CaptureRequest("memnet", mode=mode, plan=Plan(steps=1)))
    found = check(trace)
    assert found.complete
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0)
    assert forward_macs(trace) == 32 * 20 * 20


def test_forward_macs_of_the_paper_preset() -> None:
    """H at each of 3 hops, and the answer."""
    trace = capture_workload(CaptureRequest("memnet", mode="inference", preset="paper", plan=Plan(steps=1)))
    assert forward_macs(trace) == 32 * (3 * 20 * 20 + 20 * 20)


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_real_text_is_captured(tmp_path: Path, mode: str) -> None:
    text = "1 Mary moved to the bathroom.\n2 John went back to the hallway.\n3 Where is Mary? \tbathroom\t1\n"
    for part in ("train", "test"):
        (tmp_path / f"qa2_made-here_{part}.txt").write_text(text, encoding="utf-8")
    request = CaptureRequest("memnet", mode=mode, preset="tiny", settings={"task": "2"}, data=tmp_path, plan=Plan(steps=1))
    trace = capture_workload(request)
    assert check(trace).complete
    assert trace.provenance["data"] == str(tmp_path)
