"""Convolutions by their definition: counts every multiplication and every element touched. Slow, and independent of the package."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from math import ceil
from typing import Any

from tests.program import Program


@dataclass(frozen=True)
class Case:
    """A convolution as a user writes it; one entry per spatial axis, pads as (begin, end) or SAME or VALID."""

    batch: int
    groups: int
    filters: int
    channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: str
    explicit: tuple[tuple[int, int], ...] = ()
    channels_last: bool = True
    depthwise: bool = False

    @property
    def pads(self) -> list[tuple[int, int]]:
        """TensorFlow's rules: VALID none; SAME the least padding that lets ceil(size / stride) windows fit, the odd one behind."""
        if self.padding == "EXPLICIT":
            return list(self.explicit)
        if self.padding == "VALID":
            return [(0, 0)] * len(self.size)
        result = []
        for n, k, s, d in zip(self.size, self.kernel, self.stride, self.dilation, strict=True):
            total = 0
            while windows(n + total, k, s, d) < ceil(n / s):
                total += 1
            result.append((total // 2, total - total // 2))
        return result


def windows(size: int, kernel: int, stride: int, dilation: int) -> int:
    """How many windows fit, by sliding one along."""
    count = 0
    while count * stride + (kernel - 1) * dilation < size:
        count += 1
    return count


@dataclass
class Counted:
    """What a convolution touched. `macs_inside` are the multiplications that read the image itself, not its padding."""

    macs: int
    macs_inside: int
    output: tuple[int, ...]
    inputs: int
    inputs_with_padding: int
    filters: int
    outputs: int


def count(case: Case) -> Counted:
    """Run the convolution's loops and count every multiplication and every operand element."""
    pads = case.pads
    output = tuple(
        windows(n + sum(p), k, s, d)
        for n, p, k, s, d in zip(case.size, pads, case.kernel, case.stride, case.dilation, strict=True)
    )  # fmt: skip
    macs = inside = 0
    inputs, padded, filters, outputs = set(), set(), set(), set()
    heads = itertools.product(range(case.batch), range(case.groups), range(case.filters), range(case.channels))
    for n, g, k, c in heads:
        for o in itertools.product(*map(range, output)):
            for r in itertools.product(*map(range, case.kernel)):
                at = tuple(i * s + j * d - p[0] for i, j, s, d, p in zip(o, r, case.stride, case.dilation, pads, strict=True))
                macs += 1
                padded.add((n, g, c, at))
                if all(0 <= a < size for a, size in zip(at, case.size, strict=True)):
                    inside += 1
                    inputs.add((n, g, c, at))
                filters.add((g, k, c, r))
                outputs.add((n, g, k, o))
    return Counted(macs, inside, output, len(inputs), len(padded), len(filters), len(outputs))


def random_case(chance: random.Random) -> Case:
    """A small convolution of any kind that TensorFlow's ops can say."""
    rank = chance.choice((1, 2, 2, 2, 2, 3))
    kernel = tuple(chance.randint(1, 3 if rank < 3 else 2) for _ in range(rank))
    dilation = tuple(chance.choice((1, 1, 2, 3)) for _ in range(rank))
    stride = tuple(chance.choice((1, 1, 2, 3)) for _ in range(rank))
    size = tuple((k - 1) * d + 1 + chance.randint(0, 5) for k, d in zip(kernel, dilation, strict=True))
    if rank == 1:
        size, kernel, stride, dilation = (1, *size), (1, *kernel), (1, *stride), (1, *dilation)
    depthwise = rank < 3 and chance.random() < 0.25
    return Case(
        batch=chance.randint(1, 2), groups=chance.randint(2, 3) if depthwise or chance.random() < 0.2 else 1,
        filters=chance.randint(1, 3), channels=1 if depthwise else chance.randint(1, 3),
        size=size, kernel=kernel, stride=stride, dilation=dilation, padding=chance.choice(("VALID", "SAME", "EXPLICIT")),
        explicit=tuple((chance.randint(0, 2), chance.randint(0, 2)) for _ in size),
        channels_last=chance.random() < 0.6, depthwise=depthwise,
    )  # fmt: skip


def add(program: Program, name: str, case: Case, output: tuple[int, ...], role: str = "forward", **changes: Any) -> int:
    """The op that computes a case, as TensorFlow spells it."""

    def laid_out(n: Any, spatial: Any, c: Any) -> list[Any]:
        return [n, *spatial, c] if case.channels_last else [n, c, *spatial]

    letters = "DHW"[-len(case.size) :]
    channels, filters = case.groups * case.channels, case.groups * case.filters
    kernel = [*case.kernel, channels, case.filters] if case.depthwise else [*case.kernel, case.channels, filters]
    base = "DepthwiseConv2dNative" if case.depthwise else f"Conv{len(case.size)}D"
    suffix = {"forward": "", "filter_grad": "BackpropFilter", "input_grad": "BackpropInput"}[role] + "V2" * (
        role != "forward" and len(case.size) == 3
    )
    attributes = {
        "strides": laid_out(1, case.stride, 1),
        "dilations": laid_out(1, case.dilation, 1),
        "padding": case.padding,
        "explicit_paddings": [v for pair in laid_out((0, 0), case.explicit, (0, 0)) for v in pair]
        if case.padding == "EXPLICIT"
        else [],
        "data_format": "".join(laid_out("N", letters, "C")),
        **changes,
    }
    image, out = laid_out(case.batch, case.size, channels), laid_out(case.batch, output, filters)
    return program.convolution(name, image, kernel, out, base + suffix, **attributes)
