"""Deep Speech, a bidirectional recurrent network trained with CTC to write phonemes (TIMIT).

A training step is one minibatch of utterances as features with their phonemes: forward pass with dropout, CTC loss, gradients of all
parameters and the optimiser's update. An inference step is the forward pass without dropout, up to and including the softmax.
Reading audio, computing features and searching for the best transcript are not part of a step. Fathom's own step turned padded
labels into the sparse form that TensorFlow's CTC op reads, and so does this one: a comparison, `Where` and `GatherNd` on
[batch, 75].

The model is that of the paper's section 2. Layers 1 to 3 are dense with g(z) = min(max(z, 0), 20) and see one frame at a time. Layer
4 is recurrent in both directions, h_t = g(W x_t + R h_(t-1) + b), and the two directions are summed. Layer 5 is dense with g on that
sum; linear logits for 61 phonemes and the blank follow. As in Fathom a frame has 26 features, an utterance up to 1566 frames and 75
labels. 26 x 2048 + 2048 + 2 (2048^2 + 2048) + 2 (2 x 2048^2 + 2048) + 2048^2 + 2048 + 2048 x 62 + 62 = 29,552,702 parameters; the
paper's 9 frames of context to each side (`--set context=9`) make the first layer's input 494 wide, 30,511,166 parameters. The
paper's equations write the same W and b for both directions; here as in Fathom each has its own. Nesterov's momentum of 0.99;
dropout of 5% on the dense layers (the paper: 5 to 10%); the loss is averaged over the minibatch.

Everything that a frame can do alone is one product over all frames; the recurrence is a loop in the graph for each direction, one
product [batch, units] x [units, units] an iteration, and a loop for its gradient. The gradient of a recurrent kernel is a sum over
frames; it is taken in one product after the loop, as in cuDNN, where the weights' gradients are a call of their own. TensorFlow's
own gradient of a loop would make a [units, units] product in every iteration and add it up. The backward direction reads each
utterance reversed within its own length (`ReverseSequence`), so that it begins at its last frame and not in the padding; what is
computed in the padding reaches no loss.

Decided here: kernels start He-normal and recurrent ones with variance 1 / units, so that states neither die out nor reach the limit;
the rate is 1e-5, of which the paper says nothing (at 1e-4 the first updates overshoot). Left out are its averaging over shifted
copies of an utterance and its language model.

Batch 8 in both modes, where Fathom had 32, because of the time on two cores. A training step of 32 is 4.4e12 multiply-accumulates
and was estimated at 290 s of processor time, from 48 and 144 frames; one of 8 is 1.1e12 and took 150 s, and a capture runs a dozen
steps. Memory is no obstacle: a value for each unit and frame takes 1566 x 8 x 2048 x 4 B = 103 MB, 411 MB at batch 32, and some 20
such arrays live at once; the peak was 3.7 GB at batch 8 and is estimated at 10 GB at 32. At either a training step has 366,896
executions.

`paper` is what Fathom ran: 1024 units, 7,436,350 parameters, plain SGD, no dropout, batch 32. Repaired: its output layer read layer
3, so that the recurrence never ran; all weights started at zero; the logits were cut to [0, 20]; the length of the labels was given
for that of the frames; padding was left unset. The rate is 1e-5 on the mean of the loss: Fathom's 0.01 on its sum over the minibatch
went with those defects. Its inference ended at the logits; here the softmax follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.data import timit
from fathom_trace.errors import OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter, he_normal
from fathom_trace.workload import InputSpec, Preset, Program, Values

CITATION = 'A. Hannun et al., "Deep Speech: Scaling up end-to-end speech recognition", 2014, arXiv 1412.5567'
DATA_FORMAT = timit.FORMAT

OUTPUTS = len(timit.PHONEMES) + 1
"""The phonemes and, last, the blank."""

DIRECTIONS = ("h4_forward", "h4_backward")


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    frames: int = option(1566, "frames of an utterance, padded")
    labels: int = option(75, "phonemes of an utterance, padded")
    context: int = option(0, "frames to each side that a frame is seen with; the paper has 9")
    units: int = option(2048, "units of each hidden layer")
    limit: float = option(20.0, "highest activation")
    keep_probability: float = option(0.95, "share of dense units that dropout keeps")
    optimizer: str = option("nesterov", "update rule", choices=("nesterov", "sgd"))
    learning_rate: float = option(1e-5, "step size of the update")
    momentum: float = option(0.99, "share of the last update that momentum keeps")

    def __post_init__(self) -> None:
        if min(self.frames, self.labels, self.units) < 1 or self.context < 0:
            raise OptionError("speech needs at least 1 in each of frames, labels and units, and no negative context")
        if self.labels > self.frames:
            raise OptionError(f"CTC writes at most one label a frame, but there are {self.labels} labels in {self.frames} frames")
        if not 0 < self.keep_probability <= 1:
            raise OptionError(f"keep_probability is {self.keep_probability}; it lies above 0 and up to 1")
        if self.limit <= 0:
            raise OptionError(f"limit is {self.limit}; it lies above 0")


_BATCH = {"training": 8, "inference": 8}
_FATHOM = replace(Options(), units=1024, keep_probability=1.0, optimizer="sgd")
_TINY = replace(Options(), frames=24, labels=6, units=16)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 29_552_702, "Deep Speech on TIMIT's features"),
    "paper": Preset(_FATHOM, {"training": 32, "inference": 32}, 7_436_350, "the network that Fathom meant to measure"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 4}, 3_358, "the seminal network with 16 units, on 24 frames"),
}


def parameters(options: Options) -> list[Parameter]:
    """All parameters in the order of the layers; kernels are [inputs, outputs]."""
    units = options.units
    found: list[Parameter] = []
    for name, inputs in (("h1", _features(options)), ("h2", units), ("h3", units)):
        found += _dense(name, inputs, units)
    for name in DIRECTIONS:
        found += [*_dense(name, units, units), Parameter(f"{name}/recurrent_kernel", (units, units), 1 / math.sqrt(units))]
    return [*found, *_dense("h5", units, units), *_dense("logits", units, OUTPUTS)]


def _features(options: Options) -> int:
    """Values that layer 1 sees of a frame."""
    return timit.FEATURES * (2 * options.context + 1)


def _dense(name: str, inputs: int, units: int) -> list[Parameter]:
    return [he_normal(f"{name}/kernel", (inputs, units)), Parameter(f"{name}/bias", (units,))]


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Features and their lengths; in training labels and theirs. A normalised feature of n frames lies within sqrt(n - 1) of 0."""
    limit = math.sqrt(options.frames)
    shape = (batch_size, options.frames, _features(options))
    heard = (
        InputSpec("features", shape, "float32", -limit, limit, "input", "normalised features, 0 beyond the utterance"),
        InputSpec("frame_length", (batch_size,), "int32", 1, options.frames, "input", "frames of each utterance"),
    )
    if mode == "inference":
        return heard
    return (
        *heard,
        InputSpec("label", (batch_size, options.labels), "int32", 0, OUTPUTS - 2, "label", "phonemes, 0 beyond the utterance"),
        InputSpec("label_length", (batch_size,), "int32", 1, options.labels, "label", "phonemes of each utterance"),
    )


_MEAN_FRAMES, _DEVIATION_FRAMES, _LEAST_FRAMES, _MOST_FRAMES = 614, 170, 183, 1556
"""Of TIMIT's utterances in frames of 5 ms: 3.1 s on average, 0.9 to 7.8 s."""
_FRAMES_A_LABEL = 16
"""An utterance has 38 of the 61 phonemes on average, one in 80 ms."""


def synthetic(options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Noise of TIMIT's lengths; labels in proportion, none like the one before.

    Lengths are drawn once and dealt out anew for every minibatch: with as many labels in all, every step has the same shapes.
    """
    generator = np.random.default_rng(seed)
    shrink = options.frames / Options().frames
    lengths = generator.normal(_MEAN_FRAMES, _DEVIATION_FRAMES, batch_size).clip(_LEAST_FRAMES, _MOST_FRAMES)
    frame_length = np.rint(lengths * shrink).clip(1, options.frames).astype(np.int32)
    density = options.labels / Options().labels / shrink / _FRAMES_A_LABEL
    spread = generator.normal(1, 0.1, batch_size)
    label_length = np.rint(frame_length * density * spread).clip(1, np.minimum(options.labels, frame_length)).astype(np.int32)
    while True:
        dealt = generator.permutation(batch_size)
        features = generator.standard_normal((batch_size, options.frames, timit.FEATURES), np.float32)
        features[np.arange(options.frames) >= frame_length[dealt, None]] = 0
        values: Values = {"features": _with_context(features, options.context), "frame_length": frame_length[dealt]}
        if mode == "training":
            steps = generator.integers(1, OUTPUTS - 1, (batch_size, options.labels))
            label = (np.cumsum(steps, axis=1) % (OUTPUTS - 1)).astype(np.int32)
            label[np.arange(options.labels) >= label_length[dealt, None]] = 0
            values |= {"label": label, "label_length": label_length[dealt]}
        yield values


def _with_context(features: np.ndarray[Any, np.dtype[np.float32]], context: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.stack([timit.stack_context(frames, context) for frames in features]) if context else features


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step over features [batch, frames, features].

    Training returns `loss` and `logits` [frames, batch, 62]; inference `logits` and `probabilities`, their softmax.
    """
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)
    trainable = list(variables.values())
    frames, units = options.frames, options.units

    def linear(x: Any, name: str) -> Any:
        return tf.nn.bias_add(tf.matmul(x, variables[f"{name}/kernel"]), variables[f"{name}/bias"])

    def dense(x: Any, name: str, is_training: bool) -> Any:
        with tf.name_scope(name):
            x = _clipped(linear(x, name), options.limit)
            if is_training and options.keep_probability < 1:
                x = tf.nn.dropout(x, rate=1 - options.keep_probability, seed=seed + int(name[1:]))
            return x

    def direction(x: Any, frame_length: Any, name: str) -> Any:
        with tf.name_scope(name):
            projected = tf.reshape(linear(x, name), [frames, batch_size, units])
            kernel = tf.convert_to_tensor(variables[f"{name}/recurrent_kernel"])
            states = _recurrence(name, options, batch_size)
            if name == DIRECTIONS[0]:
                return states(projected, kernel)
            reversed_states = states(tf.reverse_sequence(projected, frame_length, seq_axis=0, batch_axis=1), kernel)
            return tf.reverse_sequence(reversed_states, frame_length, seq_axis=0, batch_axis=1)

    def forward(features: Any, frame_length: Any, is_training: bool) -> Any:
        with tf.name_scope("time_major"):
            x = tf.reshape(tf.transpose(features, [1, 0, 2]), [frames * batch_size, _features(options)])
        for name in ("h1", "h2", "h3"):
            x = dense(x, name, is_training)
        onward, back = (direction(x, frame_length, name) for name in DIRECTIONS)
        with tf.name_scope("h4"):
            x = tf.reshape(onward + back, [frames * batch_size, units])
        x = dense(x, "h5", is_training)
        with tf.name_scope("logits"):
            return tf.reshape(linear(x, "logits"), [frames, batch_size, OUTPUTS])

    def infer(features: Any, frame_length: Any) -> dict[str, Any]:
        logits = forward(features, frame_length, False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits, name="softmax")}

    if mode == "inference":
        return Program(tf.function(infer, autograph=False), trainable)

    if options.optimizer == "nesterov":
        optimizer = training.momentum(trainable, options.learning_rate, options.momentum, use_nesterov=True)
    else:
        optimizer = training.gradient_descent(trainable, options.learning_rate)

    def train(features: Any, frame_length: Any, label: Any, label_length: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = forward(features, frame_length, True)
            with tf.name_scope("loss"):
                places = tf.where(tf.range(options.labels) < label_length[:, tf.newaxis])
                written = tf.SparseTensor(places, tf.gather_nd(label, places), [batch_size, options.labels])
                loss = tf.reduce_mean(tf.compat.v1.nn.ctc_loss(written, logits, frame_length))
        with tf.name_scope("gradients"):
            gradients = tape.gradient(loss, trainable)
        optimizer.apply(gradients)
        return {"loss": loss, "logits": logits}

    return Program(tf.function(train, autograph=False), trainable, optimizer.slots, optimizer.state)


def _clipped(x: Any, limit: float) -> Any:
    """min(max(x, 0), limit)."""
    import tensorflow as tf

    return tf.minimum(tf.nn.relu(x), limit)


def _recurrence(name: str, options: Options, batch_size: int) -> Callable[[Any, Any], Any]:
    """States [frames, batch, units] of inputs that are already multiplied and of a kernel, one after the other from a state of 0.

    The gradient runs through the frames from the last, and makes that of the kernel in one product over all frames. Its ops are named
    after the layer `name`.
    """
    import tensorflow as tf

    frames, element = options.frames, [batch_size, options.units]

    def array(values: Any = None) -> Any:
        empty = tf.TensorArray(tf.float32, frames, element_shape=element)
        return empty if values is None else empty.unstack(values)

    def nothing() -> Any:
        return tf.fill(element, 0.0)  # not `tf.zeros`, which is a constant where it is small

    def recur(projected: Any, kernel: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        read = array(projected)

        def onward(frame: Any, state: Any, states: Any) -> tuple[Any, Any, Any]:
            state = _clipped(read.read(frame) + tf.matmul(state, kernel), options.limit)
            return frame + 1, state, states.write(frame, state)

        states = tf.while_loop(lambda frame, *_: frame < frames, onward, (0, nothing(), array()))[2].stack()

        def gradient(wanted: Any) -> tuple[Any, Any]:
            with tf.name_scope(name):
                later, passes = array(wanted), array(tf.cast((states > 0) & (states < options.limit), tf.float32))

                def back(frame: Any, following: Any, found: Any) -> tuple[Any, Any, Any]:
                    following = (later.read(frame) + tf.matmul(following, kernel, transpose_b=True)) * passes.read(frame)
                    return frame - 1, following, found.write(frame, following)

                found = tf.while_loop(lambda frame, *_: frame >= 0, back, (frames - 1, nothing(), array()))[2].stack()
                before = tf.concat([nothing()[tf.newaxis], states[:-1]], axis=0)
                rows = [frames * batch_size, options.units]
                return found, tf.matmul(tf.reshape(before, rows), tf.reshape(found, rows), transpose_a=True)

        return states, gradient

    made: Callable[[Any, Any], Any] = tf.custom_gradient(recur)
    return made


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Minibatches of real utterances from the TIMIT tree in `folder`, without end."""
    return timit.read_batches(folder, options.frames, options.labels, options.context, mode, batch_size, seed)
