"""What a loop nest touches, by running it: for tests that read a mapping tool's file and must not trust any formula."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Indices = Sequence[Mapping[str, int]]
"""Of one operand: for each of its dimensions the coefficient of every loop in the sum that indexes it."""


@dataclass(frozen=True)
class Touched:
    """Points of the iteration space, and of each operand the distinct elements and the extent (last - first + 1) of each dimension."""

    macs: int
    elements: Mapping[str, int]
    extents: Mapping[str, tuple[int, ...]]


def touch(loops: Mapping[str, int], operands: Mapping[str, Indices]) -> Touched:
    """Run the loops and note every element of every operand."""
    seen: dict[str, set[tuple[int, ...]]] = {name: set() for name in operands}
    macs = 0
    for point in itertools.product(*map(range, loops.values())):
        at = dict(zip(loops, point, strict=True))
        macs += 1
        for name, indices in operands.items():
            seen[name].add(tuple(sum(at[loop] * c for loop, c in index.items()) for index in indices))
    return Touched(
        macs,
        {name: len(found) for name, found in seen.items()},
        {name: tuple(max(column) - min(column) + 1 for column in zip(*found, strict=True)) for name, found in seen.items()},
    )
