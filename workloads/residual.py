"""ResNet-34, a 34-layer residual image classifier with batch normalisation (ImageNet).

A training step is one minibatch of images and labels: forward pass with the batch's own statistics, softmax cross-entropy plus
weight decay, gradients of all parameters, the optimiser's update, and the update of the moving averages. An inference step is the
forward pass with the moving averages, up to and including the softmax. Decoding and scaling images, and evaluating predictions, are
not part of a step.

The model is the 34-layer column of table 1 of the paper: a 7x7 convolution of 64 maps and stride 2, a 3x3 max-pool of stride 2,
stages of 3, 4, 6, 3 basic blocks (two 3x3 convolutions) of 64, 128, 256, 512 maps, the first convolution of the later stages with
stride 2, an average over the whole map, and a linear layer. Batch normalisation follows every convolution, ReLU follows the first of
a block and the addition, and no convolution has a bias. SGD with momentum 0.9, learning rate 0.1, weight decay 1e-4. 21,797,672
parameters with gamma and beta, 3.66 G multiply-accumulates an image.

Decided here: a shortcut that changes the shape is a 1x1 convolution with batch normalisation (option B of the paper). Weight decay
covers kernels, not gamma, beta or the bias. Batch normalisation is TensorFlow's fused op, which itself moves the averages by a tenth
of the way to the batch's mean and unbiased variance; epsilon is 1e-5. Kernels start He-normal, as in the paper. No gradient is taken
for the image. Pixels lie in [-1, 1] and the batch is 16 in both modes, as in Fathom (the paper: 256). The optimiser is one fused op
a variable.

`paper` is what Fathom ran, and is no ResNet-34: after the 7x7 convolution (with ReLU) and the pool, four groups of three bottleneck
blocks (1x1, 3x3, 1x1, each with ReLU, then added to their input) of 128, 256, 512 and 1024 maps squeezed to a quarter, all at
56 x 56; a 1x1 convolution widens the maps before each group. There is no batch normalisation. Every convolution has a bias but the
widening ones after the first, and neither has the classifier. All start N(0, 0.02). Adam with rate 0.01, no weight decay, 1001
classes with class 0 for background; 6,178,624 parameters, 16.22 G multiply-accumulates an image. Its inference ended at the logits;
here the softmax follows.
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

CITATION = 'K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv 1512.03385'
DATA_FORMAT = imagenet.FORMAT

_AVERAGE_STEP = 0.1
_EPSILON = 1e-5
_SQUEEZE = 4
_FATHOM_DEVIATION = 0.02


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    block: str = option(
        "basic", "basic: ResNet-34's blocks; bottleneck: Fathom's, without normalisation", choices=("basic", "bottleneck")
    )
    stem: int = option(64, "feature maps of the first convolution")
    repeats: tuple[int, ...] = option((3, 4, 6, 3), "blocks in each stage")
    maps: tuple[int, ...] = option((64, 128, 256, 512), "feature maps of each stage")
    classes: int = option(1000, "classes; 1001 adds a background class 0")
    height: int = option(224, "image height in pixels")
    width: int = option(224, "image width in pixels")
    optimizer: str = option("momentum", "update rule", choices=("momentum", "adam"))
    learning_rate: float = option(0.1, "step size of the update")
    momentum: float = option(0.9, "share of the last update that momentum keeps")
    weight_decay: float = option(1e-4, "factor of half the squared norm of every kernel in the loss; 0 leaves it out")

    def __post_init__(self) -> None:
        if not self.repeats or len(self.repeats) != len(self.maps):
            raise OptionError(f"residual has {len(self.repeats)} stages but {len(self.maps)} widths; give 'maps' one value a stage")
        if min(*self.repeats, *self.maps, self.stem, self.classes, self.height, self.width) < 1:
            raise OptionError("residual needs at least 1 in each of repeats, maps, stem, classes, height and width")
        if self.block == "bottleneck" and min(self.maps) < _SQUEEZE:
            raise OptionError(f"a bottleneck squeezes its maps to 1/{_SQUEEZE}; each of 'maps' must be at least {_SQUEEZE}")


@dataclass(frozen=True)
class Convolution:
    """One convolution, SAME: its layer name, kernel size, maps in and out, stride, and what follows it before any ReLU."""

    name: str
    kernel: int
    inputs: int
    outputs: int
    stride: int = 1
    normalized: bool = False
    biased: bool = False

    def parameters(self, deviation: float | None) -> list[Parameter]:
        """Its kernel [kh, kw, in, out], then bias, or gamma, beta and the moving averages."""
        maps = (self.outputs,)
        found = [_kernel(f"{self.name}/kernel", (self.kernel, self.kernel, self.inputs, self.outputs), deviation)]
        if self.biased:
            found.append(Parameter(f"{self.name}/bias", maps, deviation or 0.0))
        if self.normalized:
            found += [
                Parameter(f"{self.name}/gamma", maps, constant=1),
                Parameter(f"{self.name}/beta", maps),
                Parameter(f"{self.name}/moving_mean", maps, trainable=False),
                Parameter(f"{self.name}/moving_variance", maps, constant=1, trainable=False),
            ]
        return found


@dataclass(frozen=True)
class Block:
    """A residual block: its branch, its shortcut's convolution unless that is the identity, and one before both where there is one."""

    name: str
    branch: tuple[Convolution, ...]
    shortcut: Convolution | None = None
    before: Convolution | None = None

    def convolutions(self) -> list[Convolution]:
        """All its convolutions in order."""
        return [layer for layer in (self.before, *self.branch, self.shortcut) if layer]


_BATCH = {"training": 16, "inference": 16}
_FATHOM = Options(
    block="bottleneck",
    repeats=(3, 3, 3, 3),
    maps=(128, 256, 512, 1024),
    classes=1001,
    optimizer="adam",
    learning_rate=0.01,
    weight_decay=0.0,
)
_TINY = replace(Options(), stem=4, maps=(4, 8, 16, 32), classes=10, height=64, width=64, learning_rate=0.01)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 21_797_672, "the 34-layer network of the ResNet paper"),
    "paper": Preset(_FATHOM, _BATCH, 6_178_624, "the bottleneck network that Fathom measured"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 4}, 85_022, "the seminal network at 1/16 of its width, on images of 64 x 64"),
}


def stem(options: Options) -> Convolution:
    """The first convolution."""
    is_basic = options.block == "basic"
    return Convolution("conv1", 7, 3, options.stem, 2, normalized=is_basic, biased=not is_basic)


def blocks(options: Options) -> list[Block]:
    """The residual blocks in order; stage s of n blocks is `conv{s}_1` to `conv{s}_{n}`, from stage 2 on."""
    return _basic_blocks(options) if options.block == "basic" else _bottleneck_blocks(options)


def _basic_blocks(options: Options) -> list[Block]:
    found = []
    depth = options.stem
    for stage, (repeats, maps) in enumerate(zip(options.repeats, options.maps, strict=True), start=2):
        for place in range(1, repeats + 1):
            name = f"conv{stage}_{place}"
            stride = 2 if stage > 2 and place == 1 else 1
            branch = (
                Convolution(f"{name}/first", 3, depth, maps, stride, normalized=True),
                Convolution(f"{name}/second", 3, maps, maps, normalized=True),
            )
            is_identity = stride == 1 and depth == maps
            shortcut = None if is_identity else Convolution(f"{name}/shortcut", 1, depth, maps, stride, normalized=True)
            found.append(Block(name, branch, shortcut))
            depth = maps
    return found


def _bottleneck_blocks(options: Options) -> list[Block]:
    found = []
    depth = options.stem
    for stage, (repeats, maps) in enumerate(zip(options.repeats, options.maps, strict=True), start=2):
        squeezed = maps // _SQUEEZE
        for place in range(1, repeats + 1):
            name = f"conv{stage}_{place}"
            branch = (
                Convolution(f"{name}/squeeze", 1, maps, squeezed, biased=True),
                Convolution(f"{name}/middle", 3, squeezed, squeezed, biased=True),
                Convolution(f"{name}/expand", 1, squeezed, maps, biased=True),
            )
            widening = Convolution(f"widen{stage}", 1, depth, maps, biased=stage == 2) if place == 1 else None
            found.append(Block(name, branch, before=widening))
        depth = maps
    return found


def parameters(options: Options) -> list[Parameter]:
    """All parameters in the order of the layers, moving averages (not trainable) among them."""
    is_basic = options.block == "basic"
    deviation = None if is_basic else _FATHOM_DEVIATION
    layers = [stem(options), *(layer for block in blocks(options) for layer in block.convolutions())]
    found = [parameter for layer in layers for parameter in layer.parameters(deviation)]
    found.append(_kernel("fc/kernel", (options.maps[-1], options.classes), deviation))
    return [*found, Parameter("fc/bias", (options.classes,))] if is_basic else found


def _kernel(name: str, shape: tuple[int, ...], deviation: float | None) -> Parameter:
    """A kernel of that initial deviation, He-normal where there is none."""
    return he_normal(name, shape) if deviation is None else Parameter(name, shape, deviation)


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Images, and in training their classes."""
    return imagenet.input_specs(options.height, options.width, options.classes, mode, batch_size)


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step over images [batch, height, width, 3]: `loss` and `logits` in training, `logits` and `probabilities` in inference."""
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)

    def convolve(x: Any, layer: Convolution, is_training: bool, activation: Any = None) -> Any:
        with tf.name_scope(layer.name):
            x = tf.nn.conv2d(x, variables[f"{layer.name}/kernel"], layer.stride, "SAME")
            if layer.biased:
                x = tf.nn.bias_add(x, variables[f"{layer.name}/bias"])
            if layer.normalized:
                x = normalize(x, layer.name, is_training)
            return activation(x) if activation else x

    def normalize(x: Any, name: str, is_training: bool) -> Any:
        mean, variance = variables[f"{name}/moving_mean"], variables[f"{name}/moving_variance"]
        result = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=variables[f"{name}/gamma"],
            offset=variables[f"{name}/beta"],
            mean=mean,
            variance=variance,
            epsilon=_EPSILON,
            exponential_avg_factor=_AVERAGE_STEP if is_training else 1.0,
            is_training=is_training,
        )
        if is_training:
            mean.assign(result.batch_mean)
            variance.assign(result.batch_variance)
        return result.y

    def basic(x: Any, block: Block, is_training: bool) -> Any:
        first, second = block.branch
        branch = convolve(convolve(x, first, is_training, tf.nn.relu), second, is_training)
        shortcut = convolve(x, block.shortcut, is_training) if block.shortcut else x
        with tf.name_scope(f"{block.name}/add"):
            return tf.nn.relu(branch + shortcut)

    def bottleneck(x: Any, block: Block, is_training: bool) -> Any:
        x = convolve(x, block.before, is_training) if block.before else x
        branch = x
        for layer in block.branch:
            branch = convolve(branch, layer, is_training, tf.nn.relu)
        with tf.name_scope(f"{block.name}/add"):
            return branch + x

    def forward(image: Any, is_training: bool) -> Any:
        x = convolve(image, stem(options), is_training, tf.nn.relu)
        with tf.name_scope("pool1"):
            x = tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")
        apply_block = basic if options.block == "basic" else bottleneck
        for block in blocks(options):
            x = apply_block(x, block, is_training)
        with tf.name_scope("average"):
            x = tf.nn.avg_pool2d(x, ksize=x.shape[1:3], strides=1, padding="VALID")
            x = tf.reshape(x, [batch_size, options.maps[-1]])
        with tf.name_scope("fc"):
            x = tf.matmul(x, variables["fc/kernel"])
            return tf.nn.bias_add(x, variables["fc/bias"]) if "fc/bias" in variables else x

    return training.classifier(mode, forward, variables, options)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches of real images from TFRecord shards in `folder`, without end."""
    return imagenet.read_batches(folder, options.height, options.width, options.classes, mode, batch_size, seed)
