"""AlexNet, the 8-layer convolutional image classifier that won ImageNet 2012.

A training step is one minibatch of images and labels: forward pass with dropout, softmax cross-entropy plus weight decay, gradients
of all parameters, and the optimiser's update. An inference step is the forward pass without dropout, up to and including the
softmax. Decoding and scaling images, and evaluating predictions, are not part of a step.

The model, as in section 3 of the paper: convolutions of 96 maps (11x11, stride 4, VALID, on 227 x 227 pixels: its 224 do not give its
55 x 55 maps), 256 (5x5), 384, 384 and 256 (3x3), all but the first SAME, each with bias and ReLU; local response normalisation
(k = 2, n = 5, alpha = 1e-4, beta = 0.75) after the ReLU of the first and second and before their pooling; overlapping 3x3 max-pools
of stride 2 after the first, second and fifth; two dense layers of 4096 with ReLU and dropout 0.5, and a linear layer of one logit a
class. SGD with momentum 0.9, learning rate 0.01, weight decay 5e-4. 60,965,224 parameters, 724,406,816 multiply-accumulates an image.

The paper split conv2, conv4 and conv5 over two GPUs. They are two towers here: the input's maps are split in two, each half has a
kernel and a convolution of its own, and the results are concatenated. One grouped convolution would be the same arithmetic, but
TensorFlow has no gradient for it on a CPU. Normalisation runs over all maps of a layer.

Decided here: no gradient is taken for the image. Kernels start He-normal, but for the last layer's, which is N(0, 0.01), and biases
at zero: the paper's N(0, 0.01) with biases of 1 belongs to its pixels of -128 to 128. Pixels lie in [-1, 1] and the batch is 64 in
both modes, as in Fathom (the paper: 128). The optimiser is one fused op a variable.

`paper` is what Fathom ran: 64, 192, 384, 256 and 256 maps without towers, 224 x 224 pixels, the first convolution SAME,
normalisation after the pooling (k = 1, radius 4, alpha = 0.001/9), no dropout, Adam with rate 1e-3, no weight decay, 1001 classes
with class 0 for background; 61,104,937 parameters, 716,771,328 multiply-accumulates an image. Its initial deviations (0.1 for
convolutions, 1 for dense layers, weights and biases alike) give logits too large for a softmax to learn from and are not kept. Its
inference ended at the logits; here the softmax follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fathom_trace.data import imagenet
from fathom_trace.errors import OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter, he_normal
from fathom_trace.workload import InputSpec, Preset, Program, Values

CITATION = 'A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", NIPS 2012'
DATA_FORMAT = imagenet.FORMAT

_KERNELS = (11, 5, 3, 3, 3)
_POOLED = (True, True, False, False, True)
_NORMALIZED = (True, True, False, False, False)
_STRIDE = 4
_POOL, _POOL_STRIDE = 3, 2


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    maps: tuple[int, ...] = option((96, 256, 384, 384, 256), "feature maps of the five convolutions")
    towers: tuple[int, ...] = option((1, 2, 1, 2, 2), "parts that each convolution is split into")
    dense: tuple[int, ...] = option((4096, 4096), "units of the hidden dense layers")
    classes: int = option(1000, "classes; 1001 adds a background class 0")
    height: int = option(227, "image height in pixels")
    width: int = option(227, "image width in pixels")
    first_padding: str = option("VALID", "padding of the first convolution", choices=("VALID", "SAME"))
    normalize: str = option("before_pool", "where local response normalisation stands", choices=("before_pool", "after_pool"))
    radius: int = option(2, "maps on either side that normalisation looks at")
    bias: float = option(2.0, "constant k of normalisation")
    alpha: float = option(1e-4, "factor of normalisation's sum of squares")
    beta: float = option(0.75, "exponent of normalisation")
    keep_probability: float = option(0.5, "share of dense units that dropout keeps; 1 leaves dropout out")
    optimizer: str = option("momentum", "update rule", choices=("momentum", "adam"))
    learning_rate: float = option(0.01, "step size of the update")
    momentum: float = option(0.9, "share of the last update that momentum keeps")
    weight_decay: float = option(5e-4, "factor of half the squared norm of every kernel in the loss; 0 leaves it out")

    def __post_init__(self) -> None:
        layers = len(_KERNELS)
        if len(self.maps) != layers or len(self.towers) != layers:
            raise OptionError(f"alexnet has {layers} convolutions; give 'maps' and 'towers' {layers} values each")
        if min(*self.maps, *self.towers, *self.dense, self.classes) < 1:
            raise OptionError("alexnet needs at least 1 in each of maps, towers, dense and classes")
        for depth, maps, towers in zip((3, *self.maps), self.maps, self.towers, strict=False):
            if depth % towers or maps % towers:
                raise OptionError(f"alexnet cannot split a convolution from {depth} to {maps} maps into {towers} towers of equal size")
        if min(_final_size(self)) < 1:
            raise OptionError(
                f"images of {self.height} x {self.width} are too small for alexnet; 67 x 67 is the least with padding VALID"
            )
        if not 0 < self.keep_probability <= 1:
            raise OptionError(f"keep_probability is {self.keep_probability}; it lies above 0 and up to 1")


def _final_size(options: Options) -> tuple[int, int]:
    """Height and width of the last feature maps."""

    def final(size: int) -> int:
        size = -(-size // _STRIDE) if options.first_padding == "SAME" else (size - _KERNELS[0]) // _STRIDE + 1
        for _ in range(sum(_POOLED)):
            size = (size - _POOL) // _POOL_STRIDE + 1
        return size

    return final(options.height), final(options.width)


_BATCH = {"training": 64, "inference": 64}
_FATHOM = Options(
    maps=(64, 192, 384, 256, 256),
    towers=(1, 1, 1, 1, 1),
    classes=1001,
    height=224,
    width=224,
    first_padding="SAME",
    normalize="after_pool",
    radius=4,
    bias=1.0,
    alpha=0.001 / 9,
    keep_probability=1.0,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=0.0,
)
_TINY = replace(Options(), maps=(12, 32, 48, 48, 32), dense=(64, 64), classes=10, height=67, width=67, learning_rate=1e-3)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 60_965_224, "the AlexNet paper, with its two towers"),
    "paper": Preset(_FATHOM, _BATCH, 61_104_937, "the network that Fathom measured"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 4}, 47_354, "the seminal network at 1/8 of its width, on images of 67 x 67"),
}


def parameters(options: Options) -> list[Parameter]:
    """All parameters in the order of the layers; kernels are [kh, kw, in, out] of one tower, and [in, out]."""
    found: list[Parameter] = []
    depth = 3
    for layer, (size, maps, towers) in enumerate(zip(_KERNELS, options.maps, options.towers, strict=True), start=1):
        shape = (size, size, depth // towers, maps // towers)
        found += [he_normal(name, shape) for name in _tower_kernels(layer, towers)]
        found.append(Parameter(f"conv{layer}/bias", (maps,)))
        depth = maps
    height, width = _final_size(options)
    units = height * width * depth
    *hidden, (last, classes) = _dense(options)
    for name, outputs in hidden:
        found += [he_normal(f"{name}/kernel", (units, outputs)), Parameter(f"{name}/bias", (outputs,))]
        units = outputs
    return [*found, Parameter(f"{last}/kernel", (units, classes), deviation=0.01), Parameter(f"{last}/bias", (classes,))]


def _tower_kernels(layer: int, towers: int) -> list[str]:
    return [f"conv{layer}/kernel_{tower}" for tower in range(1, towers + 1)] if towers > 1 else [f"conv{layer}/kernel"]


def _dense(options: Options) -> list[tuple[str, int]]:
    """Layer name and units of each dense layer; the first is `fc6`, after five convolutions."""
    return [(f"fc{len(_KERNELS) + 1 + i}", units) for i, units in enumerate((*options.dense, options.classes))]


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Images, and in training their classes."""
    return imagenet.input_specs(options.height, options.width, options.classes, mode, batch_size)


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step over images [batch, height, width, 3]: `loss` and `logits` in training, `logits` and `probabilities` in inference."""
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)

    def convolution(x: Any, layer: int, towers: int) -> Any:
        strides, padding = (_STRIDE, options.first_padding) if layer == 1 else (1, "SAME")
        parts = tf.split(x, towers, axis=3) if towers > 1 else [x]
        kernels = [variables[name] for name in _tower_kernels(layer, towers)]
        outputs = [tf.nn.conv2d(part, kernel, strides, padding) for part, kernel in zip(parts, kernels, strict=True)]
        whole = tf.concat(outputs, axis=3) if towers > 1 else outputs[0]
        return tf.nn.relu(tf.nn.bias_add(whole, variables[f"conv{layer}/bias"]))

    def pool(x: Any, layer: int) -> Any:
        with tf.name_scope(f"pool{layer}"):
            return tf.nn.max_pool2d(x, _POOL, _POOL_STRIDE, "VALID")

    def normalize(x: Any, layer: int) -> Any:
        with tf.name_scope(f"norm{layer}"):
            return tf.nn.local_response_normalization(x, options.radius, options.bias, options.alpha, options.beta)

    def forward(image: Any, is_training: bool) -> Any:
        x = image
        for layer, (towers, pooled, normalized) in enumerate(zip(options.towers, _POOLED, _NORMALIZED, strict=True), start=1):
            with tf.name_scope(f"conv{layer}"):
                x = convolution(x, layer, towers)
            if normalized and options.normalize == "before_pool":
                x = normalize(x, layer)
            if pooled:
                x = pool(x, layer)
            if normalized and options.normalize == "after_pool":
                x = normalize(x, layer)
        with tf.name_scope("flatten"):
            x = tf.reshape(x, [batch_size, -1])
        return training.dense_layers(x, _dense(options), variables, 1 - options.keep_probability if is_training else 0.0, seed)

    return training.classifier(mode, forward, variables, options)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches of real images from TFRecord shards in `folder`, without end."""
    return imagenet.read_batches(folder, options.height, options.width, options.classes, mode, batch_size, seed)
