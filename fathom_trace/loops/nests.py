"""Loop nests: the loops of a convolution or a matrix product, with every extent under a name that says which axis it belongs to.

A convolution, its filter gradient and its input gradient run the *same* nest and differ in which operand is written, so one class
with a `role` holds all three. All are described from the forward side: `input` is the side with the larger image, `output` the side
that the strides lead to. A transposed convolution is an input gradient by structure, whichever phase it runs in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import zip_longest
from math import prod
from typing import Any

from fathom_trace.errors import TraceError

FORWARD, FILTER_GRAD, INPUT_GRAD = "forward", "filter_grad", "input_grad"
CONVOLUTION_ROLES = (FORWARD, FILTER_GRAD, INPUT_GRAD)
GEMM, BATCHED_GEMM = "gemm", "batched_gemm"
GEMM_ROLES = (GEMM, BATCHED_GEMM)
AXIS_NAMES = ("depth", "height", "width")


@dataclass(frozen=True)
class Gemm:
    """A matrix product [m, k] x [k, n] that runs `repeats` times on operands of its own."""

    m: int
    n: int
    k: int
    repeats: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all repeats."""
        return self.m * self.n * self.k * self.repeats


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution. Padding is what the windows read outside the input; positions count from the padded start.

    Raises:
        TraceError: `output` is not floor((input + pads - span) / stride) + 1.
    """

    name: str
    input: int
    output: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0
    pad_end: int = 0

    def __post_init__(self) -> None:
        if self.name not in AXIS_NAMES:
            raise TraceError(f"no axis is called '{self.name}'; there are: {', '.join(AXIS_NAMES)}")
        if min(self.kernel, self.stride, self.dilation) < 1 or min(self.input, self.output, self.pad_begin, self.pad_end) < 0:
            raise TraceError(f"{self} has an extent that no convolution can have")
        expected = max(0, (self.input + self.pad_begin + self.pad_end - self.span) // self.stride + 1)
        if expected != self.output:
            raise TraceError(
                f"{self.name}: input {self.input}, kernel {self.kernel}, stride {self.stride}, dilation {self.dilation} and padding"
                f" {self.pad_begin}+{self.pad_end} give {expected} outputs, not {self.output}"
            )

    @property
    def span(self) -> int:
        """Input positions from the first to the last that one window reads: (kernel - 1) * dilation + 1."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def effective_input(self) -> int:
        """Padded positions from the first to the last that any window reads: (output - 1) * stride + span."""
        return (self.output - 1) * self.stride + self.span if self.output else 0

    @property
    def effective_stride(self) -> int:
        """The stride, or 1 where it never acts because there is one output."""
        return self.stride if self.output > 1 else 1

    @property
    def effective_dilation(self) -> int:
        """The dilation, or 1 where it never acts because the kernel has one position."""
        return self.dilation if self.kernel > 1 else 1

    @property
    def read_with_padding(self) -> int:
        """Distinct padded positions that some window reads."""
        return _distinct(self)[0]

    @property
    def read(self) -> int:
        """Distinct positions of the real input that some window reads."""
        return _distinct(self)[1]


@lru_cache(maxsize=4096)
def _distinct(axis: Axis) -> tuple[int, int]:
    touched = {o * axis.stride + r * axis.dilation for o in range(axis.output) for r in range(axis.kernel)}
    return len(touched), sum(axis.pad_begin <= p < axis.pad_begin + axis.input for p in touched)


@dataclass(frozen=True)
class ConvolutionNest:
    """The loops n, g, k, c, outputs and kernel of a convolution or of one of its gradients.

    `filters` (K) and `channels` (C) are per group; `axes` are the spatial axes, depth before height before width.
    """

    role: str
    batch: int
    groups: int
    filters: int
    channels: int
    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        names = tuple(a.name for a in self.axes)
        if self.role not in CONVOLUTION_ROLES or names not in (AXIS_NAMES[1:], AXIS_NAMES):
            raise TraceError(f"no convolution has role '{self.role}' and axes {names}")

    @property
    def depth(self) -> Axis | None:
        """The depth axis of a 3-D convolution."""
        return self.axes[0] if len(self.axes) == 3 else None

    @property
    def height(self) -> Axis:
        """The height axis; of extent 1 in a 1-D convolution."""
        return self.axes[-2]

    @property
    def width(self) -> Axis:
        """The width axis."""
        return self.axes[-1]

    @property
    def depthwise(self) -> bool:
        """True when each of several groups reads one channel."""
        return self.groups > 1 and self.channels == 1

    @property
    def outputs(self) -> int:
        """Output positions of one image and filter."""
        return prod(a.output for a in self.axes)

    @property
    def window(self) -> int:
        """Kernel positions of one channel."""
        return prod(a.kernel for a in self.axes)

    @property
    def macs(self) -> int:
        """Multiply-accumulates; positions in the padding count, because they are computed."""
        return self.batch * self.groups * self.filters * self.channels * self.outputs * self.window

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of what is written, channels last: output, filter [kernel, C, G * K] or input."""
        if self.role == FILTER_GRAD:
            return (*(a.kernel for a in self.axes), self.channels, self.groups * self.filters)
        if self.role == INPUT_GRAD:
            return (self.batch, *(a.input for a in self.axes), self.groups * self.channels)
        return (self.batch, *(a.output for a in self.axes), self.groups * self.filters)

    @property
    def filter_elements(self) -> int:
        """Elements of the filter."""
        return self.groups * self.filters * self.channels * self.window

    @property
    def output_elements(self) -> int:
        """Elements of the output side."""
        return self.batch * self.groups * self.filters * self.outputs

    @property
    def input_elements(self) -> int:
        """Elements of the input tensor, without padding and read or not."""
        return self.batch * self.groups * self.channels * prod(a.input for a in self.axes)

    @property
    def input_elements_read(self) -> int:
        """Distinct elements of the input tensor that some window reads, without padding."""
        return self.batch * self.groups * self.channels * prod(a.read for a in self.axes)

    @property
    def input_elements_with_padding(self) -> int:
        """Distinct positions that some window reads, padding included."""
        return self.batch * self.groups * self.channels * prod(a.read_with_padding for a in self.axes)

    def as_gemm(self) -> Gemm:
        """The lowering by im2col; one product per group.

        Forward: [N * outputs, window * C] x [window * C, K]. Filter gradient: [window * C, N * outputs] x [N * outputs, K].
        Input gradient: [N * outputs, K] x [K, window * C], whose result col2im adds up into the input. All have the nest's MACs.
        """
        pixels, taps = self.batch * self.outputs, self.window * self.channels
        if self.role == FILTER_GRAD:
            return Gemm(taps, self.filters, pixels, self.groups)
        if self.role == INPUT_GRAD:
            return Gemm(pixels, taps, self.filters, self.groups)
        return Gemm(pixels, self.filters, taps, self.groups)

    def to_json(self) -> dict[str, Any]:
        """The nest as JSON values; `nest_from_json` reads it back."""
        extents = ("input", "output", "kernel", "stride", "dilation", "pad_begin", "pad_end")
        return {
            "role": self.role, "batch": self.batch, "groups": self.groups, "filters": self.filters, "channels": self.channels,
            "axes": {a.name: {e: getattr(a, e) for e in extents} for a in self.axes},
        }  # fmt: skip

    def __str__(self) -> str:
        def by_axis(extent: str) -> str:
            return "x".join(str(getattr(a, extent)) for a in self.axes)

        parts = [f"N={self.batch}", *([f"G={self.groups}"] if self.groups > 1 else []), f"K={self.filters}", f"C={self.channels}"]
        parts += [f"{e} {by_axis(e)}" for e in ("input", "output", "kernel")]
        parts += [f"{e} {by_axis(e)}" for e in ("stride", "dilation") if any(getattr(a, e) > 1 for a in self.axes)]
        return f"{self.role.replace('_', ' ')} convolution {' '.join(parts)}"


@dataclass(frozen=True)
class GemmNest:
    """[*left_batch, m, k] x [*right_batch, k, n] after transposition; the batch dimensions broadcast as in numpy."""

    role: str
    m: int
    n: int
    k: int
    left_batch: tuple[int, ...] = ()
    right_batch: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in GEMM_ROLES:
            raise TraceError(f"no matrix product has role '{self.role}'; there are: {', '.join(GEMM_ROLES)}")
        for a, b in zip_longest(reversed(self.left_batch), reversed(self.right_batch), fillvalue=1):
            if a != b and 1 not in (a, b):
                raise TraceError(f"batch dimensions {self.left_batch} and {self.right_batch} do not broadcast")

    @cached_property
    def batch_shape(self) -> tuple[int, ...]:
        """The batch dimensions of the result."""
        pairs = zip_longest(reversed(self.left_batch), reversed(self.right_batch), fillvalue=1)
        return tuple(b if a == 1 else a for a, b in pairs)[::-1]

    @property
    def batch(self) -> int:
        """Products in the batch."""
        return prod(self.batch_shape)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.m * self.n * self.k

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.batch_shape, self.m, self.n)

    @property
    def left_elements(self) -> int:
        """Distinct elements of the left operand."""
        return prod(self.left_batch) * self.m * self.k

    @property
    def right_elements(self) -> int:
        """Distinct elements of the right operand."""
        return prod(self.right_batch) * self.k * self.n

    @property
    def output_elements(self) -> int:
        """Elements of the result."""
        return self.batch * self.m * self.n

    def as_gemm(self) -> Gemm:
        """One product per batch entry, or a single one with more rows where every entry has the same right operand."""
        if prod(self.right_batch) == 1:
            return Gemm(self.batch * self.m, self.n, self.k)
        return Gemm(self.m, self.n, self.k, self.batch)

    def to_json(self) -> dict[str, Any]:
        """The nest as JSON values; `nest_from_json` reads it back."""
        batches = {"left_batch": list(self.left_batch), "right_batch": list(self.right_batch)}
        return {"role": self.role, "m": self.m, "n": self.n, "k": self.k, **batches}

    def __str__(self) -> str:
        batch = f" batch {'x'.join(map(str, self.batch_shape))}" if self.batch_shape else ""
        return f"{self.role.replace('_', ' ')} M={self.m} N={self.n} K={self.k}{batch}"


LoopNest = ConvolutionNest | GemmNest


def nest_from_json(values: Mapping[str, Any]) -> LoopNest:
    """The nest that `to_json` wrote.

    Raises:
        TraceError: the values describe no loop nest.
    """
    try:
        if values["role"] in GEMM_ROLES:
            batches = {k: tuple(int(b) for b in values[k]) for k in ("left_batch", "right_batch")}
            return GemmNest(values["role"], int(values["m"]), int(values["n"]), int(values["k"]), **batches)
        counts = {k: int(values[k]) for k in ("batch", "groups", "filters", "channels")}
        axes = tuple(Axis(name, **{k: int(v) for k, v in axis.items()}) for name, axis in values["axes"].items())
        return ConvolutionNest(values["role"], **counts, axes=axes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"this is no loop nest ({type(error).__name__}: {error})") from None
