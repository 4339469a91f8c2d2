"""Variational autoencoder of dense layers (MNIST).

A training step is one minibatch of images: encoder, a sampled code, decoder, the loss, the gradients of all parameters and the
optimiser's update. An inference step is the forward pass from the image to the reconstruction; the code is sampled there too. Reading
and scaling images is not part of a step.

The model is that of the paper's section 5 and appendix C. The encoder is a layer of 500 tanh units with two linear layers on it, the
mean and the logarithm of the variance of a code of 20 elements; the code is mean + exp(log variance / 2) x noise, with noise from
N(0, I). The decoder is a layer of 500 tanh units and a linear layer whose sigmoid is the probability of each of 28 x 28 pixels. The
loss is the negative lower bound of equation 10, with one sample, averaged over the minibatch of 100: for each image

    sum over pixels of the sigmoid cross-entropy  -  1/2 sum over the code of (1 + log variance - mean^2 - variance)

plus the paper's "small weight decay", the prior N(0, I) of the decoder's parameters, of which each of 60,000 images bears its part:
their squared norm / 120,000. 784 x 500 + 500 + 2 (500 x 20 + 20) + 20 x 500 + 500 + 500 x 784 + 784 = 815,824 parameters, updated by
Adagrad.

Decided here: the paper draws all parameters from N(0, 0.01) and writes variances elsewhere, so 0.01 is read as a variance, and
biases are drawn like kernels. Of its rates 0.01, 0.02 and 0.1 the middle one is taken. Adagrad starts from sums of zero and is one
`ResourceApplyAdagradV2` a variable. Pixels are grey values in [0, 1], read as probabilities. No gradient is taken for the image.

`paper` is what Fathom ran: no hidden layers, a code of 200, a linear decoder that is compared with the image by half the squared
difference, Adam with rate 1e-3, batch 128, and each pixel scaled to mean 0 and deviation 1 over the data set; 2 (784 x 200 + 200) +
200 x 784 + 784 = 471,584 parameters. As in Fathom the squared differences are summed over the batch, where the divergence is
averaged, and the decoder starts at zero. The encoder is drawn from a normal distribution in place of a uniform one of the same
deviation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.data import mnist
from fathom_trace.errors import OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter
from fathom_trace.workload import InputSpec, Preset, Program, Values

CITATION = 'D. P. Kingma, M. Welling, "Auto-Encoding Variational Bayes", ICLR 2014, arXiv 1312.6114'
DATA_FORMAT = mnist.FORMAT


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    hidden: tuple[int, ...] = option(
        (500,), "tanh units of the encoder's hidden layers, which the decoder has in reverse; may be empty"
    )
    code: int = option(20, "elements of the code")
    decoder: str = option("bernoulli", "distribution of a pixel", choices=("bernoulli", "gaussian"))
    optimizer: str = option("adagrad", "update rule", choices=("adagrad", "adam"))
    learning_rate: float = option(0.02, "step size of the update")
    weight_decay: float = option(1 / mnist.TRAINING_IMAGES, "factor of half the decoder's squared norm in the loss; 0 leaves it out")
    is_standardized: bool = option(False, "scale each pixel to mean 0 and deviation 1 over the data set")

    def __post_init__(self) -> None:
        if min((self.code, *self.hidden)) < 1:
            raise OptionError("autoenc needs at least 1 in each of hidden and code")
        if self.decoder == "bernoulli" and self.is_standardized:
            raise OptionError(
                "a bernoulli decoder reads pixels in 0 to 1 as probabilities; pass --set decoder=gaussian to standardize them"
            )


_BATCH = {"training": 100, "inference": 100}
_FATHOM = Options(
    hidden=(), code=200, decoder="gaussian", optimizer="adam", learning_rate=1e-3, weight_decay=0.0, is_standardized=True
)
_TINY = replace(Options(), hidden=(16,), code=4)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 815_824, "the MNIST model of the VAE paper"),
    "paper": Preset(_FATHOM, {"training": 128, "inference": 128}, 471_584, "the linear model that Fathom measured"),
    "tiny": Preset(_TINY, {"training": 10, "inference": 10}, 26_104, "the seminal model with 16 units and a code of 4"),
}


def parameters(options: Options) -> list[Parameter]:
    """All parameters in the order of the layers; kernels are [inputs, outputs]."""
    found: list[Parameter] = []
    inputs = mnist.PIXELS
    for name, units in _encoder(options):
        found += _dense(options, name, inputs, units)
        inputs = units
    for name in ("mean", "log_variance"):
        found += _dense(options, name, inputs, options.code)
    inputs = options.code
    for name, units in _decoder(options):
        found += _dense(options, name, inputs, units)
        inputs = units
    return found


def _encoder(options: Options) -> list[tuple[str, int]]:
    """Name and units of the encoder's hidden layers."""
    return [(f"encoder{i}", units) for i, units in enumerate(options.hidden, start=1)]


def _decoder(options: Options) -> list[tuple[str, int]]:
    """Name and units of the decoder's layers; the last is the image."""
    hidden = [(f"decoder{i}", units) for i, units in enumerate(reversed(options.hidden), start=1)]
    return [*hidden, ("reconstruction", mnist.PIXELS)]


def _dense(options: Options, name: str, inputs: int, units: int) -> list[Parameter]:
    """Kernel and bias of a dense layer, with the deviations of the preset's source."""
    if options.decoder == "bernoulli":
        kernel = bias = math.sqrt(0.01)
    else:
        kernel, bias = 0.0 if name == "reconstruction" else math.sqrt(2 / (inputs + units)), 0.0
    return [Parameter(f"{name}/kernel", (inputs, units), kernel), Parameter(f"{name}/bias", (units,), bias)]


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Images as rows of pixels. A standardized value of n images lies within sqrt(n - 1) of 0."""
    limit = math.sqrt(mnist.TRAINING_IMAGES)
    low, high = (-limit, limit) if options.is_standardized else (0, 1)
    return (InputSpec("image", (batch_size, mnist.PIXELS), "float32", low, high, "input", "grey values"),)


def synthetic(options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Images with MNIST's share of pixels that are not 0 (19%) and mean (0.131); their deviation is 0.287, MNIST's is 0.308."""
    generator = np.random.default_rng(seed)
    while True:
        grey = generator.random((batch_size, mnist.PIXELS), np.float32) ** np.float32(_GREY_POWER)
        image = np.where(generator.random(grey.shape, np.float32) < _INK_SHARE, grey, np.float32(0))
        yield {"image": (image - np.float32(_MEAN)) / np.float32(_DEVIATION) if options.is_standardized else image}


_INK_SHARE, _MEAN = 0.191, 0.1307
_GREY_POWER = _INK_SHARE / _MEAN - 1
"""For u uniform in [0, 1) the mean of u^p is 1 / (1 + p), here the mean grey value of a pixel that is not 0."""
_DEVIATION = math.sqrt(_INK_SHARE / (1 + 2 * _GREY_POWER) - _MEAN**2)


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step over images [batch, 784].

    Inference returns `logits` and `probabilities` (their sigmoid) or, of a gaussian decoder, its `mean`. Training returns `loss` and
    `logits` or `mean`.
    """
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)
    is_bernoulli = options.decoder == "bernoulli"
    output = "logits" if is_bernoulli else "mean"

    def dense(x: Any, name: str) -> Any:
        return tf.nn.bias_add(tf.matmul(x, variables[f"{name}/kernel"]), variables[f"{name}/bias"])

    def encode(image: Any) -> tuple[Any, Any]:
        x = image
        for name, _units in _encoder(options):
            with tf.name_scope(name):
                x = tf.tanh(dense(x, name))
        with tf.name_scope("mean"):
            mean = dense(x, "mean")
        with tf.name_scope("log_variance"):
            log_variance = dense(x, "log_variance")
        return mean, log_variance

    def sample(mean: Any, log_variance: Any) -> Any:
        with tf.name_scope("code"):
            noise = tf.random.normal([batch_size, options.code], seed=seed)
            return mean + tf.exp(0.5 * log_variance) * noise

    def decode(code: Any) -> Any:
        x = code
        *hidden, (last, _pixels) = _decoder(options)
        for name, _units in hidden:
            with tf.name_scope(name):
                x = tf.tanh(dense(x, name))
        with tf.name_scope(last):
            return dense(x, last)

    def infer(image: Any) -> dict[str, Any]:
        decoded = decode(sample(*encode(image)))
        return {output: decoded, "probabilities": tf.sigmoid(decoded, name="sigmoid")} if is_bernoulli else {output: decoded}

    trainable = list(variables.values())
    roles = {output: "logits"}
    if mode == "inference":
        return Program(tf.function(infer, autograph=False), trainable, roles=roles)

    optimizer = (training.adam if options.optimizer == "adam" else training.adagrad)(trainable, options.learning_rate)
    generative = [variables[f"{name}/{part}"] for name, _units in _decoder(options) for part in ("kernel", "bias")]

    def train(image: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            mean, log_variance = encode(image)
            decoded = decode(sample(mean, log_variance))
            with tf.name_scope("loss"):
                divergence = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance), axis=1)
                if is_bernoulli:
                    difference = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=image, logits=decoded), axis=1)
                else:
                    difference = 0.5 * tf.reduce_sum(tf.math.squared_difference(decoded, image))
                loss = tf.reduce_mean(difference + divergence)
                if options.weight_decay:
                    loss += options.weight_decay * tf.add_n([tf.nn.l2_loss(v) for v in generative])
        with tf.name_scope("gradients"):
            gradients = tape.gradient(loss, trainable)
        optimizer.apply(gradients)
        return {"loss": loss, output: decoded}

    return Program(tf.function(train, autograph=False), trainable, optimizer.slots, optimizer.state, roles)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Minibatches of real images from idx files in `folder`, without end."""
    return mnist.read_batches(folder, mode, batch_size, seed, options.is_standardized)
