"""Random layers of every kind that a mapping exporter must say: one trace of many, each with what a brute-force loop nest counts.

Convolutions in 1-D to 3-D, with batch, groups, depthwise, dilation, unequal strides, rectangular kernels and asymmetric padding, in
either layout, forward or as one of their gradients; matrix products, transposed, batched and broadcast.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

from fathom_trace.trace import Trace
from tests.brute_force import Case, Counted, add, count, random_case
from tests.program import Program

ROLES = ("forward", "forward", "filter_grad", "input_grad")


@dataclass(frozen=True)
class Product:
    """A matrix product as a user writes it; the flags say which operand is stored transposed."""

    m: int
    n: int
    k: int
    left_batch: tuple[int, ...] = ()
    right_batch: tuple[int, ...] = ()
    left_transposed: bool = False
    right_transposed: bool = False

    @property
    def batched(self) -> bool:
        """Written as a batched product."""
        return bool(self.left_batch or self.right_batch)


@dataclass(frozen=True)
class CountedProduct:
    """What a product touched, and the shape of its result."""

    macs: int
    left: int
    right: int
    output: tuple[int, ...]


@dataclass(frozen=True)
class RandomLayer:
    """A layer of the trace: `name` of its node, its `execution`, role, the case and what it counts."""

    name: str
    execution: int
    role: str
    case: Case | Product
    counted: Counted | CountedProduct


def broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """numpy's rule, from the last dimension on."""
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(b)) + b for b in (left, right)]
    return tuple(max(a, b) for a, b in zip(*padded, strict=True))


def count_product(case: Product) -> CountedProduct:
    """Run the product's loops and count every multiplication and every operand element."""
    batch = broadcast(case.left_batch, case.right_batch)
    macs, left, right = 0, set(), set()
    for b in itertools.product(*map(range, batch)):
        at = [
            tuple(i if extent > 1 else 0 for i, extent in zip(b[len(b) - len(own) :], own, strict=True))
            for own in (case.left_batch, case.right_batch)
        ]
        for i, j, k in itertools.product(range(case.m), range(case.n), range(case.k)):
            macs += 1
            left.add((at[0], i, k))
            right.add((at[1], k, j))
    return CountedProduct(macs, len(left), len(right), (*batch, case.m, case.n))


def random_product(chance: random.Random) -> Product:
    """A product of any kind: plain, batched with equal batches, or with one side broadcast."""
    m, n, k = (chance.randint(1, 9) for _ in range(3))
    batch = tuple(chance.randint(1, 4) for _ in range(chance.choice((0, 0, 1, 1, 2))))
    left = right = batch
    if batch and chance.random() < 0.3:
        left = tuple(1 if chance.random() < 0.5 else b for b in batch)
        right = batch if chance.random() < 0.5 else batch[1:]
    if batch and chance.random() < 0.5:
        left, right = right, left
    return Product(m, n, k, left, right, chance.random() < 0.5, chance.random() < 0.5)


def add_product(program: Program, name: str, case: Product) -> int:
    """The op that computes a product, as TensorFlow spells it."""
    left = [*case.left_batch, *((case.k, case.m) if case.left_transposed else (case.m, case.k))]
    right = [*case.right_batch, *((case.n, case.k) if case.right_transposed else (case.k, case.n))]
    output = [*broadcast(case.left_batch, case.right_batch), case.m, case.n]
    flags = ("adj_x", "adj_y") if case.batched else ("transpose_a", "transpose_b")
    attributes: dict[str, Any] = dict(zip(flags, (case.left_transposed, case.right_transposed), strict=True))
    return program.product(name, left, right, output, "BatchMatMulV2" if case.batched else "MatMul", **attributes)


def random_layers(seed: int, convolutions: int = 300, products: int = 60) -> tuple[Trace, list[RandomLayer]]:
    """A trace of so many random layers in one step, and the layers in its order; none of them is empty."""
    chance = random.Random(seed)
    program, found = Program(), []
    while len(found) < convolutions:
        case = random_case(chance)
        counted = count(case)
        if counted.macs:
            name, role = f"layer{len(found)}", chance.choice(ROLES)
            found.append(RandomLayer(name, add(program, name, case, counted.output, role), role, case, counted))
    for i in range(products):
        product = random_product(chance)
        role = "batched_gemm" if product.batched else "gemm"
        execution = add_product(program, f"product{i}", product)
        found.append(RandomLayer(f"product{i}", execution, role, product, count_product(product)))
    return program.trace(), found
