"""A loop nest written out: its loops, and which elements of each operand they touch. The form in which einsum-like targets take it.

Every dimension of an operand is an index: a sum of loops, each times a coefficient. The height of a convolution's input is
`stride * output_height + dilation * kernel_height`, counted from the padded start; everything else is one loop. No two dimensions of an
operand share a loop, so its distinct elements are the product of those of its dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, zip_longest
from math import gcd, prod

from fathom_trace.loops.nests import FILTER_GRAD, FORWARD, INPUT_GRAD, ConvolutionNest, GemmNest, LoopNest

Index = tuple[tuple[str, int], ...]
"""A sum of (loop, coefficient)."""

CONVOLUTION_OPERANDS = {FORWARD: ("input", "filter", "output"), FILTER_GRAD: ("input", "output", "filter"),
                        INPUT_GRAD: ("output", "filter", "input")}  # fmt: skip
"""The operands of a convolution by role; the last is written."""
PRODUCT_OPERANDS = ("left", "right", "result")
MOST_COUNTED = 1_000_000
"""Values of a sum of more than two loops that are counted one by one: no nest here has such a sum, a changed file may."""


@dataclass(frozen=True)
class Access:
    """How a statement indexes one operand: an index for each of its dimensions, by name."""

    operand: str
    indices: Mapping[str, Index]
    written: bool = False


@dataclass(frozen=True)
class Statement:
    """The loops of a nest with their extents, and the three operands of its multiply-accumulate: two that are read, one written."""

    loops: Mapping[str, int]
    accesses: tuple[Access, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates: the product of all extents."""
        return prod(self.loops.values())

    def access(self, operand: str) -> Access:
        """The access of an operand."""
        return next(a for a in self.accesses if a.operand == operand)

    def elements(self, operand: str) -> int:
        """Distinct elements of an operand that the loops touch, padding included."""
        return prod(distinct(index, self.loops) for index in self.access(operand).indices.values())

    def extents(self, operand: str) -> dict[str, int]:
        """Positions from the first to the last that the loops touch, by dimension of an operand."""
        return {name: extent(index, self.loops) for name, index in self.access(operand).indices.items()}


def operand_elements(nest: LoopNest) -> dict[str, int]:
    """Distinct elements of each operand by the nest's own formulas, padding included."""
    if isinstance(nest, ConvolutionNest):
        return {"input": nest.input_elements_with_padding, "filter": nest.filter_elements, "output": nest.output_elements}
    return {"left": nest.left_elements, "right": nest.right_elements, "result": nest.output_elements}


def distinct(index: Index, loops: Mapping[str, int]) -> int:
    """Distinct values that a sum of loops takes."""
    if len(index) == 1:
        return loops[index[0][0]]
    return _distinct(tuple((loops[loop], coefficient) for loop, coefficient in index))


@lru_cache(maxsize=4096)
def _distinct(terms: tuple[tuple[int, int], ...]) -> int:
    """Of two terms by a formula, however large they are: i s + j d is met again at (i + d/g, j - s/g), where g is the divisor of both."""
    if len(terms) == 2 and min(min(term) for term in terms) > 0:
        (outer, stride), (inner, dilation) = terms
        common = gcd(stride, dilation)
        return outer * inner - max(0, outer - dilation // common) * max(0, inner - stride // common)
    if prod(max(size, 1) for size, _ in terms) > MOST_COUNTED:
        raise ValueError(f"a sum of {len(terms)} loops takes too many values to be counted")
    values = {0}
    for size, coefficient in terms:
        values = {v + i * coefficient for v in values for i in range(size)}
    return len(values)


def extent(index: Index, loops: Mapping[str, int]) -> int:
    """Positions from the least to the greatest value of a sum of loops."""
    return sum((loops[loop] - 1) * coefficient for loop, coefficient in index) + 1


def statement(nest: LoopNest) -> Statement:
    """A loop nest as loops and accesses.

    Convolution: loops `batch`, `group` (of several), `filter`, `channel` (unless depthwise) and for each axis `output_AXIS` and
    `kernel_AXIS`; dimensions of the input `batch`, `group`, `channel` and the axes, of the filter `group`, `filter`, `channel` and the
    axes, of the output `batch`, `group`, `filter` and the axes. Product: loops `row`, `column`, `inner` and a loop for each run of batch
    dimensions that the same operands have; an operand that is broadcast along one lacks it.
    """
    if isinstance(nest, ConvolutionNest):
        return _convolution(nest)
    return _product(nest)


def _convolution(nest: ConvolutionNest) -> Statement:
    sizes = {"batch": nest.batch, "group": nest.groups, "filter": nest.filters, "channel": nest.channels}
    if nest.groups == 1:
        del sizes["group"]
    if nest.depthwise:
        del sizes["channel"]
    sizes |= {f"output_{a.name}": a.output for a in nest.axes} | {f"kernel_{a.name}": a.kernel for a in nest.axes}

    def plain(*names: str) -> dict[str, Index]:
        return {name: ((name, 1),) for name in names if name in sizes}

    indices: dict[str, dict[str, Index]] = {
        "input": plain("batch", "group", "channel")
        | {a.name: ((f"output_{a.name}", a.stride), (f"kernel_{a.name}", a.dilation)) for a in nest.axes},
        "filter": plain("group", "filter", "channel") | {a.name: ((f"kernel_{a.name}", 1),) for a in nest.axes},
        "output": plain("batch", "group", "filter") | {a.name: ((f"output_{a.name}", 1),) for a in nest.axes},
    }
    *read, written = CONVOLUTION_OPERANDS[nest.role]
    return Statement(sizes, (*(Access(name, indices[name]) for name in read), Access(written, indices[written], True)))


def _product(nest: GemmNest) -> Statement:
    loops: dict[str, int] = {}
    has: dict[str, tuple[bool, bool]] = {}
    for size, in_left, in_right in _batch_runs(nest):
        name = f"batch_{len(has)}"
        loops[name], has[name] = size, (in_left, in_right)
    loops |= {"row": nest.m, "column": nest.n, "inner": nest.k}

    def indices(side: int | None, *names: str) -> dict[str, Index]:
        batch = [name for name, sides in has.items() if side is None or sides[side]]
        return {name: ((name, 1),) for name in (*batch, *names)}

    return Statement(
        loops,
        (
            Access("left", indices(0, "row", "inner")),
            Access("right", indices(1, "inner", "column")),
            Access("result", indices(None, "row", "column"), True),
        ),
    )


def _batch_runs(nest: GemmNest) -> list[tuple[int, bool, bool]]:
    """(extent, does the left operand have it, does the right) of each run of batch dimensions that the same operands have."""
    pairs = list(zip_longest(reversed(nest.left_batch), reversed(nest.right_batch), fillvalue=1))[::-1]
    kinds = [(a > 1, b > 1) for a, b in pairs if max(a, b) > 1]
    sizes = [max(a, b) for a, b in pairs if max(a, b) > 1]
    return [
        (prod(size for _, size in run), *kind)
        for kind, run in ((kind, list(group)) for kind, group in groupby(zip(kinds, sizes, strict=True), key=lambda item: item[0]))
    ]
