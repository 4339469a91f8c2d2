"""Is deepq the network and the update of its papers: parameters, MACs, target, loss, learning, games?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import workload_programs as programs

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.checks import check
from fathom_trace.costs import costs
from fathom_trace.errors import DataError, OptionError
from fathom_trace.phases import phases
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

DEEPQ = programs.load("deepq")
CONVOLUTIONS = (8 * 8 * 4 * 32 + 32) + (4 * 4 * 32 * 64 + 64) + (3 * 3 * 64 * 64 + 64)


@pytest.mark.parametrize(("actions", "expected"), [(4, 1_686_180), (6, 1_687_206), (18, 1_693_362)])
def test_parameters_are_those_of_the_layers(actions: int, expected: int) -> None:
    """84 - 20 - 9 - 7 pixels leave 7 x 7 x 64 = 3136 inputs of the dense layer."""
    assert CONVOLUTIONS + (3136 * 512 + 512) + (512 * actions + actions) == expected
    program = DEEPQ.build(programs.options_of(DEEPQ, "seminal", actions=actions), "training", 1, seed=0)
    assert programs.parameter_count(program) == expected
    assert sum(int(np.prod(v.shape)) for v in program.state) == expected, "the target network has as many"
    assert not any(v.trainable for v in program.state)


def test_presets_state_their_parameters() -> None:
    """`tiny`: 36 - 8 - 3 - 1 pixels and 4, 8, 8 maps."""
    tiny = (8 * 8 * 4 * 4 + 4) + (4 * 4 * 4 * 8 + 8) + (3 * 3 * 8 * 8 + 8) + (8 * 16 + 16) + (16 * 4 + 4)
    expected = {"seminal": 1_686_180, "paper": 1_686_180, "tiny": tiny}
    assert {name: preset.parameters for name, preset in DEEPQ.PRESETS.items()} == expected
    for name, preset in DEEPQ.PRESETS.items():
        assert programs.parameter_count(DEEPQ.build(preset.options, "inference", 1, seed=0)) == expected[name]


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_tiny_has_the_op_types_of_seminal(mode: str) -> None:
    assert programs.op_types(DEEPQ, "tiny", mode) == programs.op_types(DEEPQ, "seminal", mode)


def test_updates_are_fused_ops() -> None:
    assert "ResourceApplyCenteredRMSProp" in programs.op_types(DEEPQ, "seminal", "training")
    paper = programs.op_types(DEEPQ, "paper", "training")
    assert "ResourceApplyRMSProp" in paper
    assert "Max" not in paper, "the target network's call is left out"


def q_values(state: np.ndarray, p: dict[str, np.ndarray], strides: tuple[int, ...] = (4, 2, 1)) -> np.ndarray:
    """The network of one state [height, width, 4], pixel by pixel."""
    x = state.astype(np.float64)
    for layer, stride in enumerate(strides, start=1):
        kernel, bias = p[f"conv{layer}/kernel"], p[f"conv{layer}/bias"]
        size = kernel.shape[0]
        height, width = (x.shape[0] - size) // stride + 1, (x.shape[1] - size) // stride + 1
        y = np.zeros((height, width, kernel.shape[3]))
        for i in range(height):
            for j in range(width):
                window = x[i * stride : i * stride + size, j * stride : j * stride + size]
                y[i, j] = np.maximum(np.sum(window[:, :, :, None] * kernel, axis=(0, 1, 2)) + bias, 0)
        x = y
    hidden = np.maximum(x.reshape(-1) @ p["fc4/kernel"] + p["fc4/bias"], 0)
    return hidden @ p["fc5/kernel"] + p["fc5/bias"]


def random_batch(options, batch_size: int, seed: int) -> dict[str, np.ndarray]:
    """States, actions, rewards, next states and ends without any pattern; at least one episode ends and one does not."""
    generator = np.random.default_rng(seed)
    shape = (batch_size, options.height, options.width, 4)
    return {
        "state": generator.random(shape, np.float32),
        "action": generator.integers(0, DEEPQ.actions(options), batch_size).astype(np.int32),
        "reward": generator.integers(-1, 2, batch_size).astype(np.float32),
        "next_state": generator.random(shape, np.float32),
        "terminal": (np.arange(batch_size) % 3 == 1).astype(np.float32),
    }


def test_loss_is_the_summed_huber_loss_of_the_target_networks_best_value() -> None:
    """Sample by sample; negative values must count too, errors lie on both sides of 1, and both networks differ."""
    options = programs.options_of(DEEPQ, "tiny", height=40, learning_rate=0.0)
    program = DEEPQ.build(options, "training", 6, seed=0)
    target = programs.randomize(program, seed=1, deviation=0.2)
    DEEPQ.copy_to_target(program)
    p = programs.randomize(program, seed=2, deviation=0.2)
    batch = random_batch(options, 6, seed=3)
    expected, errors, taken = 0.0, [], []
    for k in range(6):
        best = max(q_values(batch["next_state"][k], target))
        wanted = batch["reward"][k] + (0 if batch["terminal"][k] else 0.99 * best)
        taken.append(q_values(batch["state"][k], p)[batch["action"][k]])
        error = abs(wanted - taken[-1])
        errors.append(error)
        expected += error**2 / 2 if error <= 1 else error - 0.5
    assert min(errors) < 1 < max(errors), "both parts of the loss are tested"
    assert min(taken) < 0, "a negative value is tested"
    outputs = programs.run(program, batch)
    assert outputs["loss"] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(outputs["q_values"], [q_values(s, p) for s in batch["state"]], rtol=1e-4, atol=1e-5)


def test_the_paper_preset_is_fed_the_best_next_value() -> None:
    """Values 0 but for the bias: Q = 0.1 for every action after a forward pass of zeros. Two samples, one of them terminal."""
    options = programs.options_of(DEEPQ, "paper", kernel_deviation=0.0, learning_rate=0.0)
    program = DEEPQ.build(options, "training", 2, seed=0)
    batch = random_batch(options, 2, seed=0)
    del batch["next_state"]
    batch |= {"next_value": np.array([0.5, 9], np.float32), "reward": np.array([1, -1], np.float32)}
    first, second = 1 + 0.99 * 0.5 - 0.1, 1 + 0.1
    assert batch["terminal"].tolist() == [0, 1]
    assert programs.run(program, batch)["loss"] == pytest.approx((first - 0.5) + (second - 0.5), rel=1e-6)


def test_inference_chooses_the_action_with_the_largest_value() -> None:
    options = programs.options_of(DEEPQ, "tiny")
    program = DEEPQ.build(options, "inference", 32, seed=0)
    p = programs.randomize(program, seed=5, deviation=0.2)
    states = random_batch(options, 32, seed=6)["state"]
    outputs = programs.run(program, {"state": states})
    values = np.array([q_values(s, p) for s in states])
    assert outputs["action"].tolist() == values.argmax(axis=1).tolist()
    assert len(set(outputs["action"].tolist())) > 1


def test_the_temporal_difference_loss_falls_on_a_fixed_replay() -> None:
    options = programs.options_of(DEEPQ, "tiny", learning_rate=2.5e-3)
    program = DEEPQ.build(options, "training", 8, seed=0)
    found = programs.losses(program, random_batch(options, 8, seed=7), 150)
    assert found[-1] < found[0] / 2


def test_the_target_network_stays_until_it_is_copied() -> None:
    options = programs.options_of(DEEPQ, "tiny")
    program = DEEPQ.build(options, "training", 8, seed=0)
    assert all(np.array_equal(t.numpy(), v.numpy()) for t, v in zip(program.state, program.trainable, strict=True))
    before = [t.numpy() for t in program.state]
    programs.losses(program, random_batch(options, 8, seed=7), 3)
    assert all(np.array_equal(t.numpy(), b) for t, b in zip(program.state, before, strict=True))
    DEEPQ.copy_to_target(program)
    assert not any(np.array_equal(t.numpy(), b) for t, b in zip(program.state, before, strict=True))
    assert all(np.array_equal(t.numpy(), v.numpy()) for t, v in zip(program.state, program.trainable, strict=True))


@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_gradients_reach_every_variable(preset: str) -> None:
    options = programs.options_of(DEEPQ, preset)
    program = DEEPQ.build(options, "training", 8, seed=0)
    batch = random_batch(options, 8, seed=7)
    if not options.target_network:
        del batch["next_state"]
        batch["next_value"] = np.linspace(-1, 1, 8, dtype=np.float32)
    assert programs.unchanged_after(program, batch, 1) == []


def test_the_update_is_centred_rmsprop() -> None:
    """One update from zero means: m = 0.05 g, s = 0.05 g^2, step = 2.5e-4 g / sqrt(s - m^2 + 0.01), for the last bias, whose gradient
    is minus the sum of the clipped errors of the samples that took its action."""
    options = programs.options_of(DEEPQ, "tiny")
    program = DEEPQ.build(options, "training", 6, seed=0)
    batch = random_batch(options, 6, seed=8) | {"terminal": np.ones(6, np.float32)}
    bias = programs.by_name(program)["fc5/bias"]
    before = bias.numpy().astype(np.float64)
    values = programs.run(program, batch)["q_values"]
    gradient = np.zeros(4)
    for k, action in enumerate(batch["action"]):
        gradient[action] -= np.clip(batch["reward"][k] - values[k, action], -1, 1)
    step = 2.5e-4 * gradient / np.sqrt(0.05 * gradient**2 - (0.05 * gradient) ** 2 + 0.01)
    np.testing.assert_allclose(bias.numpy() - before, -step, rtol=1e-3, atol=1e-8)


def captured(mode: str, preset: str = "tiny", **settings: str) -> Trace:
    trace = capture_workload(CaptureRequest("deepq", mode=mode, preset=preset, settings=settings, plan=Plan(steps=1, warmup=0)))
    found = check(trace)
    assert found.complete
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0)
    return trace


def forward_macs(trace: Trace) -> int:
    structure = trace.main_structure
    rows = trace.structure_rows(structure)
    codes = np.array(phases(trace)[:])[trace.executions.node[rows]]
    return int(costs(trace, structure).macs[codes == "forward"].sum())


SEMINAL_MACS = 20 * 20 * 32 * (8 * 8 * 4) + 9 * 9 * 64 * (4 * 4 * 32) + 7 * 7 * 64 * (3 * 3 * 64) + 3136 * 512 + 512 * 4
TINY_MACS = 8 * 8 * 4 * (8 * 8 * 4) + 3 * 3 * 8 * (4 * 4 * 4) + 1 * 1 * 8 * (3 * 3 * 8) + 8 * 16 + 16 * 4


def test_macs_of_choosing_an_action() -> None:
    assert SEMINAL_MACS == 9_345_024
    assert forward_macs(captured("inference", "seminal")) == SEMINAL_MACS


def test_macs_of_an_update() -> None:
    """Both networks forward at batch 4; backward once more for the kernels, and for all inputs but the first layer's."""
    trace = captured("training")
    assert forward_macs(trace) == 2 * 4 * TINY_MACS
    first = 8 * 8 * 4 * (8 * 8 * 4)
    assert int(costs(trace, trace.main_structure).macs.sum()) == 4 * (2 * TINY_MACS + TINY_MACS + (TINY_MACS - first))


def test_inference_can_have_the_batch_of_training() -> None:
    trace = capture_workload(CaptureRequest("deepq", mode="inference", preset="tiny", batch_size=4, plan=Plan(steps=1, warmup=0)))
    assert forward_macs(trace) == 4 * TINY_MACS


def test_synthetic_minibatches_come_from_the_replay_memory() -> None:
    options = programs.options_of(DEEPQ, "tiny")
    batch = programs.first_inputs(DEEPQ, options, "training", 32)
    assert {n: v.shape for n, v in batch.items()} == {s.name: s.shape for s in DEEPQ.inputs(options, "training", 32)}
    assert {n: v.dtype.name for n, v in batch.items()} == {s.name: s.dtype for s in DEEPQ.inputs(options, "training", 32)}
    going_on = batch["terminal"] == 0
    assert going_on.any()
    np.testing.assert_array_equal(batch["next_state"][going_on][..., :3], batch["state"][going_on][..., 1:])
    assert DEEPQ.input_origin(options) == "synthetic"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"maps": (4, 8)}, "one value a convolution"),
        ({"height": 35}, "frames of 35 x 84 are too small"),
        ({"actions": 0}, "at least 1"),
        ({"replay_start": 4}, "replay_start lies above 4"),
        ({"capacity": 10_000}, "holds 10000 frames and is first drawn from after 50000"),
    ],
)
def test_options_that_cannot_be_built_are_refused(changes: dict, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        programs.options_of(DEEPQ, "seminal", **changes)


def test_a_real_game_is_captured_and_said_to_be_real() -> None:
    pytest.importorskip("ale_py")
    trace = captured("training", game="space_invaders", replay_start="20")
    assert trace.provenance["data"] == "Atari game space_invaders played at random"
    assert not trace.steps.synthetic_input[trace.steps.traced].any()
    assert any(trace.shapes[int(s)] == (16, 6) for s in trace.variables.shape), "space_invaders has 6 actions"


def test_a_rom_from_a_folder_is_captured(tmp_path: Path) -> None:
    roms = pytest.importorskip("ale_py.roms")
    rom = Path(roms.__file__).parent / "seaquest.bin"
    (tmp_path / "seaquest.bin").write_bytes(rom.read_bytes())
    request = {"mode": "inference", "preset": "tiny", "data": tmp_path, "plan": Plan(steps=1, warmup=0)}
    with pytest.raises(DataError, match="'seaquest' has 18 actions, but the model has 4; pass --set actions=18"):
        capture_workload(CaptureRequest("deepq", **request))
    trace = capture_workload(CaptureRequest("deepq", settings={"actions": "18"}, **request))
    assert check(trace).complete
    assert not trace.steps.synthetic_input[trace.steps.traced].any()


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_folder_of_roms_is_captured(tmp_path: Path, mode: str) -> None:
    """The file that the emulator's own package ships, given as a user's: its frames are what the step is fed, and none is made up."""
    pytest.importorskip("ale_py")
    from fathom_trace.data import atari

    rom = atari.own_rom("breakout")
    (tmp_path / rom.name).write_bytes(rom.read_bytes())
    settings = {"game": "breakout", "replay_start": "40"}
    request = CaptureRequest("deepq", mode=mode, preset="tiny", settings=settings, data=tmp_path, plan=Plan(steps=1, warmup=0))
    trace = capture_workload(request)
    assert check(trace).complete
    assert trace.provenance["data"] == str(tmp_path)
    assert not trace.steps.synthetic_input[trace.steps.traced].any()
