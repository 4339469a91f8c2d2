"""VGG-19, a 19-layer convolutional image classifier (ImageNet).

A training step is one minibatch of images and labels: forward pass with dropout, softmax cross-entropy plus weight decay, gradients
of all parameters, and the optimiser's update. An inference step is the forward pass without dropout, up to and including the
softmax. Decoding and scaling images, and evaluating predictions, are not part of a step.

The model is column E of table 1 of the paper: groups of 2, 2, 4, 4, 4 convolutions of 3x3 (64, 128, 256, 512, 512 maps, SAME, each
with bias and ReLU), a 2x2 max-pool of stride 2 after each group, two dense layers of 4096 with ReLU and dropout, and a linear layer
of one logit a class. Training as in its section 3.1: SGD with momentum 0.9, weight decay 5e-4 (the loss holds 5e-4 times half the
squared norm of every kernel), dropout 0.5 on both dense layers. 143,667,240 parameters, 19,632,062,464 multiply-accumulates an image.

Decided here: no gradient is taken for the image, so that 16 convolutions have 15 input gradients. Kernels start He-normal, but for
the last layer's, which is N(0, 0.01), and biases at zero, in every preset: the paper started this depth from a trained 11-layer
network, and without one its N(0, 0.01) everywhere dies out on the way. Pixels lie in [-1, 1] and the batch is 8 in both modes, as in
Fathom (the paper: pixels less their mean, batch 256). The learning rate is the paper's 0.01 in proportion to the batch, 0.01 x 8/256:
with 0.01 itself batches of 8 were seen to diverge within five steps. The optimiser is one fused op a variable.

`paper` is what Fathom ran: groups of 2, 2, 2, 3, 3, keep-probability 0.8, Adam with rate 1e-4, no weight decay, 1001 classes with
class 0 for background; 137,771,561 parameters, 13.62 G multiply-accumulates an image. Two of its defects stop learning and are
repaired: it applied a ReLU to the logits, which takes the gradient from each that is not positive, and it started kernels with
deviation 0.1, with which the logits of this depth are too large for a softmax. Its inference ended at the logits; here the softmax
follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from fathom_trace.data import imagenet
from fathom_trace.errors import OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter, he_normal
from fathom_trace.workload import InputSpec, Preset, Program, Values

CITATION = (
    'K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015, arXiv 1409.1556'
)
DATA_FORMAT = imagenet.FORMAT


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    convolutions: tuple[int, ...] = option((2, 2, 4, 4, 4), "3x3 convolutions in each group; a 2x2 max-pool follows each group")
    maps: tuple[int, ...] = option((64, 128, 256, 512, 512), "feature maps of each group's convolutions")
    dense: tuple[int, ...] = option((4096, 4096), "units of the hidden dense layers")
    classes: int = option(1000, "classes; 1001 adds a background class 0")
    height: int = option(224, "image height in pixels")
    width: int = option(224, "image width in pixels")
    keep_probability: float = option(0.5, "share of dense units that dropout keeps")
    optimizer: str = option("momentum", "update rule", choices=("momentum", "adam"))
    learning_rate: float = option(0.01 * 8 / 256, "step size of the update")
    momentum: float = option(0.9, "share of the last update that momentum keeps")
    weight_decay: float = option(5e-4, "factor of half the squared norm of every kernel in the loss; 0 leaves it out")

    def __post_init__(self) -> None:
        groups = len(self.convolutions)
        if not groups or groups != len(self.maps):
            raise OptionError(f"vgg has {groups} groups of convolutions but {len(self.maps)} widths; give 'maps' one value a group")
        if min(*self.convolutions, *self.maps, *self.dense, self.classes) < 1:
            raise OptionError("vgg needs at least 1 in each of convolutions, maps, dense and classes")
        if min(self.height, self.width) < 2**groups:
            raise OptionError(
                f"vgg halves the image {groups} times, but it is {self.height} x {self.width}; both must be at least {2**groups}"
            )
        if not 0 < self.keep_probability <= 1:
            raise OptionError(f"keep_probability is {self.keep_probability}; it lies above 0 and up to 1")


_BATCH = {"training": 8, "inference": 8}
_FATHOM = Options(
    convolutions=(2, 2, 2, 3, 3), classes=1001, keep_probability=0.8, optimizer="adam", learning_rate=1e-4, weight_decay=0.0
)
_TINY = replace(Options(), maps=(4, 8, 16, 32, 32), dense=(64, 64), classes=10, height=32, width=32, learning_rate=1e-3)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 143_667_240, "column E of the VGG paper"),
    "paper": Preset(_FATHOM, _BATCH, 137_771_561, "the network that Fathom measured"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 4}, 85_566, "the seminal network at 1/16 of its width, on images of 32 x 32"),
}


def parameters(options: Options) -> list[Parameter]:
    """All parameters in the order of the layers; kernels are [kh, kw, in, out] and [in, out]."""
    found: list[Parameter] = []
    depth = 3
    for name, maps in _convolutions(options):
        found += [he_normal(f"{name}/kernel", (3, 3, depth, maps)), Parameter(f"{name}/bias", (maps,))]
        depth = maps
    groups = len(options.convolutions)
    units = (options.height >> groups) * (options.width >> groups) * depth
    *hidden, (last, classes) = _dense(options)
    for name, outputs in hidden:
        found += [he_normal(f"{name}/kernel", (units, outputs)), Parameter(f"{name}/bias", (outputs,))]
        units = outputs
    return [*found, Parameter(f"{last}/kernel", (units, classes), deviation=0.01), Parameter(f"{last}/bias", (classes,))]


def _convolutions(options: Options) -> list[tuple[str, int]]:
    """Layer name and feature maps of each convolution: `conv1_1` is the first of group 1."""
    groups = enumerate(zip(options.convolutions, options.maps, strict=True), start=1)
    return [(f"conv{group}_{i + 1}", maps) for group, (count, maps) in groups for i in range(count)]


def _dense(options: Options) -> list[tuple[str, int]]:
    """Layer name and units of each dense layer; the first is `fc6`, after five groups of convolutions."""
    first = len(options.convolutions) + 1
    return [(f"fc{first + i}", units) for i, units in enumerate((*options.dense, options.classes))]


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Images, and in training their classes."""
    return imagenet.input_specs(options.height, options.width, options.classes, mode, batch_size)


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step over images [batch, height, width, 3]: `loss` and `logits` in training, `logits` and `probabilities` in inference."""
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)

    def forward(image: Any, is_training: bool) -> Any:
        x = image
        names = iter(_convolutions(options))
        for group, count in enumerate(options.convolutions, start=1):
            for name, _maps in islice(names, count):
                with tf.name_scope(name):
                    x = tf.nn.conv2d(x, variables[f"{name}/kernel"], strides=1, padding="SAME")
                    x = tf.nn.relu(tf.nn.bias_add(x, variables[f"{name}/bias"]))
            with tf.name_scope(f"pool{group}"):
                x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")
        with tf.name_scope("flatten"):
            x = tf.reshape(x, [batch_size, -1])
        return training.dense_layers(x, _dense(options), variables, 1 - options.keep_probability if is_training else 0.0, seed)

    return training.classifier(mode, forward, variables, options)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches of real images from TFRecord shards in `folder`, without end."""
    return imagenet.read_batches(folder, options.height, options.width, options.classes, mode, batch_size, seed)
