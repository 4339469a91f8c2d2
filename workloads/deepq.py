"""Deep Q network that learns to play Atari games (reinforcement learning).

A training step is one update on a minibatch from the replay memory. Two networks are called in it: the target network on the next
states, forward, for the values to learn; and the Q network on the states, forward and backward. Then follows the optimiser's update.
An inference step is the choice of an action: one call of the Q network, forward, and the largest of its values. It runs at batch 1, as
an agent plays; `--batch-size 32` makes it as large as a training step. Playing the game, preparing frames, the replay memory, the
random part of the agent's choice and the copy to the target network every 10,000 updates (`copy_to_target`) are not part of a step.

The network is that of the 2015 paper's methods section: frames of 84 x 84, the last four of them a state; convolutions of 8x8/4, 4x4/2
and 3x3/1 (32, 64, 64 maps, VALID, each with bias and ReLU), a dense layer of 512 with ReLU, one linear value for each action.
(8 x 8 x 4 x 32 + 32) + (4 x 4 x 32 x 64 + 64) + (3 x 3 x 64 x 64 + 64) + (3136 x 512 + 512) + (512 x 4 + 4) = 1,686,180 trainable
parameters with 4 actions; the target network holds as many that are not trained. 9,345,024 multiply-accumulates a forward pass:
20 x 20 x 32 x 256, 9 x 9 x 64 x 512, 7 x 7 x 64 x 576, 3136 x 512, 512 x 4.

With the target y = reward + (1 - terminal) 0.99 max over a of Q'(next state, a), the loss is the sum over the minibatch of 32 of the
Huber loss of y - Q(state, action): half the square up to 1 and linear beyond, which is the paper's clipped error. The value of the
action taken is a sum over the product with a one-hot vector. Centred RMSProp with rate 2.5e-4, both decays 0.95 and 0.01 under the
root, one `ResourceApplyCenteredRMSProp` a variable.

Decided here: kernels start He-normal and biases at zero, the target network as a copy. Pixels are fed as floats in [0, 1]. The replay
memory holds 1,000,000 frames, for which memory is taken as they arrive, and the first minibatch is drawn after 50,000. By default a
made-up game fills it; `--set game=breakout` plays a real one, which takes a minute or two before the first step. Either is played at
random, for the agent's epsilon is 1 when training starts: what a step computes does not depend on who plays.

`paper` is what Fathom ran. Its training step leaves the target network's call out, so that the largest value of each next state is an
input (`next_value`, drawn with deviation 0.1 since there is no network to compute it); RMSProp is not centred; kernels start with
deviation 0.01 and biases at 0.1; training starts after 100 frames, an action lasts one frame and each is followed by an update.
Repaired: it took the largest of the product with the one-hot vector, which hides negative values. Its inference ended at the values;
here the choice follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.data import atari
from fathom_trace.data.replay import STACK, ReplayMemory, Transition, latest_states, made_up_play, replay_batches
from fathom_trace.errors import DataError, OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter, he_normal
from fathom_trace.workload import SYNTHETIC, InputSpec, Preset, Program, Values

CITATION = (
    'V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015;'
    ' V. Mnih et al., "Playing Atari with Deep Reinforcement Learning", 2013, arXiv 1312.5602'
)
DATA_FORMAT = atari.FORMAT
DEFAULT_ACTIONS = 4


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    game: str | None = option(None, "Atari game to play, such as breakout, space_invaders or seaquest; none makes frames up")
    actions: int | None = option(None, "actions to choose from; none takes the game's, and 4 without a game")
    height: int = option(84, "frame height in pixels")
    width: int = option(84, "frame width in pixels")
    maps: tuple[int, ...] = option((32, 64, 64), "feature maps of each convolution")
    kernels: tuple[int, ...] = option((8, 4, 3), "height and width of each convolution's kernel")
    strides: tuple[int, ...] = option((4, 2, 1), "stride of each convolution")
    dense: int = option(512, "units of the hidden dense layer")
    target_network: bool = option(True, "whether a training step calls the target network; without it, its largest values are fed")
    discount: float = option(0.99, "factor of the next state's value")
    optimizer: str = option("centered_rmsprop", "update rule", choices=("centered_rmsprop", "rmsprop"))
    learning_rate: float = option(2.5e-4, "step size of the update")
    decay: float = option(0.95, "share of the running means that an update keeps")
    epsilon: float = option(0.01, "added to the mean square under the root")
    kernel_deviation: float | None = option(None, "deviation of the initial kernels; none takes that of He et al.")
    initial_bias: float = option(0.0, "initial value of the biases")
    capacity: int = option(1_000_000, "frames that the replay memory holds")
    replay_start: int = option(50_000, "frames in the replay memory before the first minibatch")
    action_repeat: int = option(4, "frames that an action lasts")
    update_interval: int = option(4, "actions between two updates")

    def __post_init__(self) -> None:
        if not len(self.maps) == len(self.kernels) == len(self.strides) > 0:
            raise OptionError("deepq needs one value a convolution in each of maps, kernels and strides")
        counts = (*self.maps, *self.kernels, *self.strides, self.dense, self.action_repeat, self.update_interval)
        if min((*counts, 1 if self.actions is None else self.actions)) < 1:
            raise OptionError("deepq needs at least 1 of all that it counts")
        if self.capacity < self.replay_start or self.replay_start <= STACK:
            raise OptionError(
                f"the replay memory holds {self.capacity} frames and is first drawn from after {self.replay_start};"
                f" replay_start lies above {STACK} and up to capacity"
            )
        if min(_extents(self)[-1]) < 1:
            raise OptionError(f"frames of {self.height} x {self.width} are too small for the kernels and strides; make them larger")


def _extents(options: Options) -> list[tuple[int, int]]:
    """Height and width of the frame and of each convolution's output; not positive where the frame is too small."""
    found = [(options.height, options.width)]
    for kernel, stride in zip(options.kernels, options.strides, strict=True):
        height, width = found[-1]
        found.append(((height - kernel) // stride + 1, (width - kernel) // stride + 1))
    return found


_BATCH = {"training": 32, "inference": 1}
_FATHOM = Options(
    target_network=False,
    optimizer="rmsprop",
    kernel_deviation=0.01,
    initial_bias=0.1,
    replay_start=100,
    action_repeat=1,
    update_interval=1,
)
_TINY = replace(Options(), height=36, width=36, maps=(4, 8, 8), dense=16, capacity=1000, replay_start=50)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 1_686_180, "the network and update of the Nature paper"),
    "paper": Preset(_FATHOM, _BATCH, 1_686_180, "the update that Fathom measured, without the target network's call"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 1}, 2_344, "the seminal network with 4, 8 and 8 maps on frames of 36 x 36"),
}


def actions(options: Options) -> int:
    """The number of actions: as set, or the game's.

    Raises:
        DataError: a game is asked for and `ale-py` is not installed.
        UnknownNameError: `ale-py` brings no such game.
    """
    if options.actions is not None:
        return options.actions
    return DEFAULT_ACTIONS if options.game is None else _actions_of(options.game)


@lru_cache
def _actions_of(game: str) -> int:
    return atari.Game(atari.own_rom(game), 1, 1, 1).actions


def parameters(options: Options) -> list[Parameter]:
    """The Q network's parameters in the order of the layers; kernels are [kh, kw, in, out] and [in, out]."""
    found: list[Parameter] = []
    depth = STACK
    for name, kernel, _stride, maps in _convolutions(options):
        found += _layer(options, name, (kernel, kernel, depth, maps))
        depth = maps
    height, width = _extents(options)[-1]
    first, last = _dense(options)
    found += _layer(options, first, (height * width * depth, options.dense))
    return found + _layer(options, last, (options.dense, actions(options)))


def _layer(options: Options, name: str, shape: tuple[int, ...]) -> list[Parameter]:
    kernel = he_normal(f"{name}/kernel", shape)
    if options.kernel_deviation is not None:
        kernel = replace(kernel, deviation=options.kernel_deviation)
    return [kernel, Parameter(f"{name}/bias", shape[-1:], constant=options.initial_bias)]


def _convolutions(options: Options) -> list[tuple[str, int, int, int]]:
    """Layer name, kernel size, stride and feature maps of each convolution."""
    layers = zip(options.kernels, options.strides, options.maps, strict=True)
    return [(f"conv{i}", kernel, stride, maps) for i, (kernel, stride, maps) in enumerate(layers, start=1)]


def _dense(options: Options) -> tuple[str, str]:
    """Names of the hidden and of the last dense layer: `fc4` and `fc5` after three convolutions."""
    count = len(options.maps)
    return f"fc{count + 1}", f"fc{count + 2}"


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """States and, in training, what followed them."""
    shape = (batch_size, options.height, options.width, STACK)
    state = InputSpec("state", shape, "float32", 0, 1, "input", "the last four frames, grey values")
    if mode == "inference":
        return (state,)
    following = (
        InputSpec("next_state", shape, "float32", 0, 1, "input", "the last four frames after the action")
        if options.target_network
        else InputSpec("next_value", (batch_size,), "float32", -1, 1, "input", "largest value of the next state")
    )
    return (
        state,
        InputSpec("action", (batch_size,), "int32", 0, actions(options) - 1, "input", "action taken"),
        InputSpec("reward", (batch_size,), "float32", -1, 1, "label", "sign of the reward"),
        following,
        InputSpec("terminal", (batch_size,), "float32", 0, 1, "label", "1 where the episode ended"),
    )


def input_origin(options: Options) -> str:
    """What the inputs are where no folder is given."""
    return SYNTHETIC if options.game is None else f"Atari game {options.game} played at random"


def synthetic(options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Minibatches from a made-up game or, where one is asked for, from a real one."""
    if options.game is not None:
        return _from_game(atari.own_rom(options.game), options, mode, batch_size, seed)
    return _batches(made_up_play(options.height, options.width, actions(options), seed), options, mode, batch_size, seed)


def _from_game(rom: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    game = atari.Game(rom, options.height, options.width, options.action_repeat)
    if game.actions != actions(options):
        raise DataError(
            f"{rom}: '{game.name}' has {game.actions} actions, but the model has {actions(options)}; pass --set actions={game.actions}"
        )
    return _batches(game.play(np.random.default_rng(seed)), options, mode, batch_size, seed)


def _batches(play: Iterator[Transition], options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    if mode == "inference":
        yield from latest_states(play, options.height, options.width, batch_size)
        return
    generator = np.random.default_rng([seed, 1])
    memory = ReplayMemory(options.capacity, options.height, options.width)
    for values in replay_batches(play, memory, options.replay_start, options.update_interval, batch_size, generator):
        if not options.target_network:
            del values["next_state"]
            values["next_value"] = (0.1 * generator.standard_normal(batch_size)).astype(np.float32)
        yield values


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step over states [batch, height, width, 4].

    Inference returns `q_values` [batch, actions] and the `action` with the largest, [batch]. Training returns `loss`, a sum over the
    minibatch, and `q_values`.
    """
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    choices = actions(options)
    variables = training.make_variables(parameters(options), seed)
    trainable = list(variables.values())

    def q_values(state: Any, prefix: str, weights: dict[str, Any]) -> Any:
        x = state
        for name, _kernel, stride, _maps in _convolutions(options):
            with tf.name_scope(f"{prefix}{name}"):
                x = tf.nn.conv2d(x, weights[f"{name}/kernel"], strides=stride, padding="VALID")
                x = tf.nn.relu(tf.nn.bias_add(x, weights[f"{name}/bias"]))
        with tf.name_scope(f"{prefix}flatten"):
            x = tf.reshape(x, [batch_size, -1])
        first, last = _dense(options)
        with tf.name_scope(f"{prefix}{first}"):
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights[f"{first}/kernel"]), weights[f"{first}/bias"]))
        with tf.name_scope(f"{prefix}{last}"):
            return tf.nn.bias_add(tf.matmul(x, weights[f"{last}/kernel"]), weights[f"{last}/bias"])

    def infer(state: Any) -> dict[str, Any]:
        values = q_values(state, "", variables)
        return {"q_values": values, "action": tf.argmax(values, axis=1, output_type=tf.int32, name="action")}

    roles = {"q_values": "logits"}
    if mode == "inference":
        return Program(tf.function(infer, autograph=False), trainable, roles=roles)

    target = {}
    if options.target_network:
        target = {name: tf.Variable(v, trainable=False, name=f"target/{name}") for name, v in variables.items()}
    is_centered = options.optimizer == "centered_rmsprop"
    optimizer = training.rmsprop(trainable, options.learning_rate, options.decay, options.epsilon, is_centered)

    def update(state: Any, action: Any, reward: Any, next_value: Any, terminal: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            values = q_values(state, "", variables)
            with tf.name_scope("loss"):
                wanted = reward + (1 - terminal) * options.discount * next_value
                chosen = tf.reduce_sum(values * tf.one_hot(action, choices), axis=1)
                error = tf.abs(wanted - chosen)
                quadratic = tf.minimum(error, 1)
                loss = tf.reduce_sum(0.5 * tf.square(quadratic) + (error - quadratic))
        with tf.name_scope("gradients"):
            gradients = tape.gradient(loss, trainable)
        optimizer.apply(gradients)
        return {"loss": loss, "q_values": values}

    def train(state: Any, action: Any, reward: Any, next_state: Any, terminal: Any) -> dict[str, Any]:
        following = q_values(next_state, "target/", target)
        with tf.name_scope("target/value"):
            next_value = tf.reduce_max(following, axis=1)
        return update(state, action, reward, next_value, terminal)

    step = train if options.target_network else update
    return Program(tf.function(step, autograph=False), trainable, optimizer.slots, list(target.values()), roles)


def copy_to_target(program: Program) -> None:
    """Give the target network the Q network's present parameters; the paper does so every 10,000 updates."""
    for target, variable in zip(program.state, program.trainable, strict=True):
        target.assign(variable)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Minibatches of a real game whose ROM lies in `folder`, played at random, without end."""
    return _from_game(atari.find_rom(folder, options.game), options, mode, batch_size, seed)
