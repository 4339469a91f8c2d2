"""Pooling, normalisation, softmax and its losses, CTC. Windows are dense: positions in the padding count, as for convolutions."""

from __future__ import annotations

from math import prod

from fathom_trace.cost_rules.call import Call, rule

_XENT_KERNEL = "tensorflow/core/kernels/xent_op.h"


def _window(call: Call) -> int:
    return prod(int(extent) for extent in call.attributes["ksize"])


def _lrn_window(call: Call) -> int:
    return 2 * int(call.attributes["depth_radius"]) + 1


def _channels(call: Call) -> int:
    """Channels of a batch normalisation, the elements of its scale: input 1 forward, input 2 of the gradient."""
    return call.read_elements(2 if "Grad" in call.op else 1)


def _training(call: Call) -> bool:
    return bool(call.attributes.get("is_training", True))


def _batch_norm(call: Call) -> int:
    return 6 * call.read_elements() + 6 * _channels(call) if _training(call) else 3 * call.read_elements() + 3 * _channels(call)


def _batch_norm_gradient(call: Call) -> int:
    return 8 * call.read_elements() + 8 * _channels(call) if _training(call) else 5 * call.read_elements() + 4 * _channels(call)


def _batch_norm_fused(call: Call) -> int:
    """Batch normalisation, then an added side input and a ReLU."""
    extra = int(call.attributes.get("num_side_inputs", 0)) + int(call.attributes.get("activation_mode", "Identity") != "Identity")
    return _batch_norm(call) + extra * call.read_elements()


def _rows(call: Call) -> int:
    """Elements over the extent of the last axis."""
    return call.read_elements() // max(call.inputs[0].shape[-1], 1)


def _layer_norm(call: Call) -> int:
    return 7 * call.read_elements() + 4 * (call.read_elements() // max(call.read_elements(1), 1))


def _ctc(call: Call) -> int:
    """Frames T, batch B, classes C from input 0 [T, B, C]; label positions from the values of the sparse labels."""
    frames, batch, _ = call.inputs[0].shape
    positions = 2 * call.read_elements(2) + batch
    return 30 * frames * positions + 8 * call.read_elements() + frames * batch


RULES = (
    rule("MaxPool MaxPool3D MaxPoolWithArgmax", "n x window", lambda c: c.elements() * _window(c), "one comparison per window position"),
    rule("AvgPool AvgPool3D", "n (window + 1)", lambda c: c.elements() * (_window(c) + 1), "a sum over the window and a division"),
    rule("MaxPoolGrad MaxPool3DGrad", "g (window + 1), of g gradient elements", lambda c: c.read_elements(2) * (_window(c) + 1),
         "the maximum is searched again, then the gradient is added at its place"),
    rule("MaxPoolGradWithArgmax", "g, of g gradient elements", lambda c: c.read_elements(1), "the gradient is added at the stored place"),
    rule("AvgPoolGrad AvgPool3DGrad", "g (window + 1), of g gradient elements", lambda c: c.read_elements(1) * (_window(c) + 1),
         "a division, then one addition per window position"),
    rule("LRN", "n (w + 5), w = 2 depth_radius + 1", lambda c: c.elements() * (_lrn_window(c) + 5),
         "x (bias + alpha sum_w x^2)^-beta: square, w additions, product, sum, power, product; Krizhevsky et al. 2012, section 3.3"),
    rule("LRNGrad", "n (6 w + 5), w = 2 depth_radius + 1", lambda c: c.elements() * (6 * _lrn_window(c) + 5),
         "the norm again (w + 3) and its power (1); then for each of w neighbours -2 alpha beta x y / norm times g, added (5); the power is"
         " added once (1)"),
    rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", "training: 6 m + 6 channels; inference: 3 m + 3 channels", _batch_norm,
         "sum, x - mean, square, sum, scale, shift; per channel two divisions, + epsilon, rsqrt, x gamma, Bessel's correction; Ioffe &"
         " Szegedy 2015, algorithm 1"),
    rule("_FusedBatchNormEx", "as FusedBatchNormV3, + m for the side input, + m for the activation", _batch_norm_fused,
         "as FusedBatchNormV3, then an addition and a ReLU"),
    rule("FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
         "training: 8 m + 8 channels; inference: 5 m + 4 channels", _batch_norm_gradient,
         "d beta: sum; d gamma: x - mean, product, sum; dx: two differences, two products (one product, if the statistics are constants);"
         " the rest is per channel; Ioffe & Szegedy 2015, section 3"),
    rule("_MklLayerNorm", "7 m + 4 rows", _layer_norm,
         "sum, x - mean, square, sum, scale, gamma, beta; per row two divisions, + epsilon, rsqrt"),
    rule("Softmax", "5 m", lambda c: 5 * c.read_elements(), "max, x - max, exp, sum, division"),
    rule("LogSoftmax", "5 m + rows", lambda c: 5 * c.read_elements() + _rows(c), "max, x - max, exp, sum, - log; a logarithm per row"),
    rule("SoftmaxCrossEntropyWithLogits", "10 m + rows", lambda c: 10 * c.read_elements() + _rows(c),
         f"{_XENT_KERNEL}: max, x - max, exp, sum; log - x, product with labels, sum; exp, division, - labels; a logarithm per row"),
    rule("SparseSoftmaxCrossEntropyWithLogits", "6 m + 3 rows", lambda c: 6 * c.read_elements() + 3 * _rows(c),
         "max, x - max, exp, sum, exp, division; per row a logarithm, the loss's difference, - 1 at the label"),
    rule("CTCLoss CTCLossV2", "30 T S + 8 T B C + T B, S = 2 labels + B", _ctc,
         "Graves et al. 2006, section 4: forward and backward variables at 2 L + 1 positions per frame, 12 each (two log-sums of 5, two"
         " additions), their log-sum with the label's (6); softmax (5) and gradient (3) per class, a logarithm per frame."
         " Every frame counts as valid (an upper bound: lengths are data)"),
    rule("CTCGreedyDecoder", "m", lambda c: c.read_elements(), "the best class of each frame is searched"),
)  # fmt: skip
