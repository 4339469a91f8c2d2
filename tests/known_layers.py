"""Layers whose right values are known from arithmetic or published tables, and that some converter got wrong: for every mapping exporter.

Each entry is a convolution as TensorFlow states it, what it must come out as by axis (height, width), and its multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fathom_trace.trace import Trace
from tests.program import Program

Pair = tuple[int, int]


@dataclass(frozen=True)
class KnownConvolution:
    """`filters` and `channels` are per group; pairs are (height, width), pads (before, behind) of each."""

    image: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    macs: int
    batch: int
    groups: int
    filters: int
    channels: int
    output: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pads: tuple[Pair, Pair] = ((0, 0), (0, 0))
    op: str = "Conv2D"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def trace(self, op: str = "") -> Trace:
        """A trace of this layer alone, or of a gradient of it."""
        program = Program()
        self.add(program, "c", op)
        return program.trace()

    def add(self, program: Program, name: str, op: str = "") -> int:
        """Add the layer to a program."""
        return program.convolution(name, self.image, self.kernel_shape, self.output_shape, op or self.op, **self.attributes)


SAME = {"padding": "SAME"}
KNOWN: dict[str, KnownConvolution] = {
    # The input size is what the tensor has, the padding is said: nothing is dropped or computed twice.
    "C3a": KnownConvolution(
        (1, 8, 8, 4), (3, 3, 4, 8), (1, 3, 3, 8), 2_592, 1, 1, 8, 4, (3, 3), (3, 3), (2, 2), attributes={"strides": [1, 2, 2, 1]}
    ),
    "C3b": KnownConvolution(
        (1, 9, 9, 4), (3, 3, 4, 8), (1, 5, 5, 8), 7_200, 1, 1, 8, 4, (5, 5), (3, 3), (2, 2), pads=((1, 1), (1, 1)),
        attributes={"strides": [1, 2, 2, 1], **SAME},
    ),
    "C5 batch": KnownConvolution(
        (3, 8, 8, 4), (3, 3, 4, 8), (3, 3, 3, 8), 7_776, 3, 1, 8, 4, (3, 3), (3, 3), (2, 2), attributes={"strides": [1, 2, 2, 1]}
    ),
    "C6 unequal strides": KnownConvolution(
        (1, 9, 9, 4), (3, 3, 4, 8), (1, 4, 7, 8), 8_064, 1, 1, 8, 4, (4, 7), (3, 3), (2, 1), attributes={"strides": [1, 2, 1, 1]}
    ),
    "C10 rectangular": KnownConvolution(
        (1, 9, 7, 4), (3, 1, 4, 8), (1, 9, 7, 8), 6_048, 1, 1, 8, 4, (9, 7), (3, 1), pads=((1, 1), (0, 0)), attributes=SAME
    ),
    "C16 depthwise, multiplier 2": KnownConvolution(
        (3, 9, 9, 4), (3, 3, 4, 2), (3, 7, 7, 8), 10_584, 3, 4, 2, 1, (7, 7), (3, 3), op="DepthwiseConv2dNative"
    ),
    "C17 channels first": KnownConvolution(
        (3, 4, 9, 9), (3, 3, 4, 8), (3, 8, 9, 9), 69_984, 3, 1, 8, 4, (9, 9), (3, 3), pads=((1, 1), (1, 1)),
        attributes={"data_format": "NCHW", **SAME},
    ),
    "asymmetric, H != W, R != S": KnownConvolution(
        (2, 10, 7, 4), (3, 2, 4, 6), (2, 5, 7, 6), 2 * 35 * 6 * 24, 2, 1, 6, 4, (5, 7), (3, 2), (2, 1), pads=((0, 1), (0, 1)),
        attributes={"strides": [1, 2, 1, 1], **SAME},
    ),
    # 9 to 5 with stride 2, which 9 // 5 would make 1.
    "stride is no quotient": KnownConvolution(
        (1, 9, 8, 1), (1, 1, 1, 1), (1, 5, 4, 1), 20, 1, 1, 1, 1, (5, 4), (1, 1), (2, 2), attributes={"strides": [1, 2, 2, 1]}
    ),
    # AlexNet's second layer works on 27 x 27 (a published topology says 207): 2 groups, which dense would be twice the work.
    "groups": KnownConvolution(
        (1, 27, 27, 96), (5, 5, 48, 256), (1, 27, 27, 256), 223_948_800, 1, 2, 128, 48, (27, 27), (5, 5), pads=((2, 2), (2, 2)),
        attributes=SAME,
    ),
    "VGG conv1_1": KnownConvolution(
        (1, 224, 224, 3), (3, 3, 3, 64), (1, 224, 224, 64), 86_704_128, 1, 1, 64, 3, (224, 224), (3, 3), pads=((1, 1), (1, 1)),
        attributes=SAME,
    ),
    "AlexNet conv1": KnownConvolution(
        (1, 227, 227, 3), (11, 11, 3, 96), (1, 55, 55, 96), 105_415_200, 1, 1, 96, 3, (55, 55), (11, 11), (4, 4),
        attributes={"strides": [1, 4, 4, 1]},
    ),
    "depthwise 112": KnownConvolution(
        (1, 112, 112, 32), (3, 3, 32, 1), (1, 112, 112, 32), 3_612_672, 1, 32, 1, 1, (112, 112), (3, 3), pads=((1, 1), (1, 1)),
        op="DepthwiseConv2dNative", attributes=SAME,
    ),
    "ResNet conv1": KnownConvolution(
        (1, 224, 224, 3), (7, 7, 3, 64), (1, 112, 112, 64), 118_013_952, 1, 1, 64, 3, (112, 112), (7, 7), (2, 2),
        pads=((3, 3), (3, 3)),
        attributes={"strides": [1, 2, 2, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 3, 3, 3, 3, 0, 0]},
    ),
}  # fmt: skip
"""By the fault that it would show."""

GRADIENTS = {
    # B12: conv x[3, 9, 9, 4], 3x3, stride 2, 8 filters: each gradient has exactly the forward multiply-accumulates.
    "B12 valid": KnownConvolution(
        (3, 9, 9, 4), (3, 3, 4, 8), (3, 4, 4, 8), 13_824, 3, 1, 8, 4, (4, 4), (3, 3), (2, 2), attributes={"strides": [1, 2, 2, 1]}
    ),
    "B12 same": KnownConvolution(
        (3, 9, 9, 4), (3, 3, 4, 8), (3, 5, 5, 8), 21_600, 3, 1, 8, 4, (5, 5), (3, 3), (2, 2), pads=((1, 1), (1, 1)),
        attributes={"strides": [1, 2, 2, 1], **SAME},
    ),
    "one position unread": KnownConvolution(
        (2, 10, 9, 4), (3, 2, 4, 6), (2, 4, 8, 6), 2 * 32 * 6 * 24, 2, 1, 6, 4, (4, 8), (3, 2), (2, 1),
        attributes={"strides": [1, 2, 1, 1]},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class KnownProduct:
    """A product by its operands as stored; rows, columns, contraction and products of a batch as it must come out."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    macs: int
    m: int
    n: int
    k: int
    batch: int = 1
    op: str = "MatMul"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def trace(self) -> Trace:
        """A trace of this product alone."""
        program = Program()
        program.product("m", self.left, self.right, self.result, self.op, **self.attributes)
        return program.trace()


PRODUCTS: dict[str, KnownProduct] = {
    "C2": KnownProduct((7, 4), (4, 5), (7, 5), 140, 7, 5, 4),
    "C11 transposed operand": KnownProduct((4, 6), (4, 5), (6, 5), 120, 6, 5, 4, attributes={"transpose_a": True}),
    "B2": KnownProduct((3, 7), (3, 5), (7, 5), 105, 7, 5, 3, attributes={"transpose_a": True}),
    "B3 batched": KnownProduct((2, 3, 7, 4), (2, 3, 4, 5), (2, 3, 7, 5), 840, 7, 5, 4, 6, "BatchMatMulV2"),
    "GEMM 128x64x512": KnownProduct((128, 512), (512, 64), (128, 64), 4_194_304, 128, 64, 512),
    "12 heads": KnownProduct((12, 197, 64), (12, 64, 197), (12, 197, 197), 29_805_312, 197, 197, 64, 12, "BatchMatMulV2"),
    "a filter of 768 x 3072 and not 768 x 1": KnownProduct((197, 768), (768, 3072), (197, 3072), 464_781_312, 197, 3072, 768),
}


def chain() -> Trace:
    """conv1 -> ReLU -> conv2 + ReLU's output -> pool -> dense; then dense's and conv2's gradients, as training runs them."""
    p = Program()
    same = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    x, w1, w2, w3 = p.input("x", [2, 6, 5, 3]), p.input("w1", [3, 2, 3, 4]), p.input("w2", [3, 3, 4, 4]), p.input("w3", [24, 10])
    y1 = p.op("conv1", "Conv2D", [x, w1], [2, 6, 5, 4], same)
    r1 = p.op("relu1", "Relu", [y1], [2, 6, 5, 4])
    y2 = p.op("conv2", "Conv2D", [r1, w2], [2, 6, 5, 4], same)
    added = p.op("add", "AddV2", [y2, r1], [2, 6, 5, 4])
    pool = p.op("pool", "AvgPool", [added], [2, 3, 2, 4])
    flat = p.op("flat", "Reshape", [pool, p.constant("shape", [2, 24])], [2, 24])
    y3 = p.op("dense", "MatMul", [flat, w3], [2, 10])
    loss = p.op("loss", "Softmax", [y3], [2, 10])
    back = p.op("dense/dx", "MatMul", [loss, w3], [2, 24], {"transpose_b": True})
    p.op("dense/dw", "MatMul", [flat, loss], [24, 10], {"transpose_a": True})
    unpool = p.op("unpool", "AvgPoolGrad", [back], [2, 6, 5, 4])
    sizes = p.op("sizes", "Shape", [r1], [4])
    p.op("conv2/dw", "Conv2DBackpropFilter", [r1, p.constant("s", [3, 3, 4, 4]), unpool], [3, 3, 4, 4], same)
    p.op("conv2/dx", "Conv2DBackpropInput", [sizes, w2, unpool], [2, 6, 5, 4], same)
    return p.trace()


CHAIN_SOURCES: dict[str, tuple[str | None, str | None]] = {
    "conv1": (None, None), "conv2": ("conv1", None), "dense": ("conv2", None), "dense_dx": ("dense", None),
    "dense_dw": ("conv2", "dense"), "conv2_dw": ("conv1", "dense_dx"), "conv2_dx": ("dense_dx", None),
}  # fmt: skip
"""By layer of `chain`: what made the operand that comes in (image, rows, or gradient handed back), and what made the other one."""
