"""What a cost rule sees of an execution, and what a rule is: op types, formulas as text and as code, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

Count = Callable[["Call"], int]


class UnknownPartError(Exception):
    """An op that is fused into the execution has no formula; caught where rules are applied."""


@dataclass(frozen=True)
class Operand:
    """A tensor that is read or written. `is_repeated`: an earlier input of the same execution is the same tensor."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    is_repeated: bool = False

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Call:
    """An execution: canonical op type, attributes, inputs in port order, and live outputs by port."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Operand, ...]
    outputs: Mapping[int, Operand]

    def elements(self, port: int = 0) -> int:
        """Elements of an output."""
        return self.outputs[port].elements

    def read_elements(self, position: int = 0) -> int:
        """Elements of an input."""
        return self.inputs[position].elements

    def flag(self, name: str) -> bool:
        """A boolean attribute; False where it is absent."""
        return bool(self.attributes.get(name, False))

    @property
    def input_bytes(self) -> int:
        """Bytes of all distinct inputs."""
        return sum(operand.size_bytes for operand in self.inputs if not operand.is_repeated)

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        return sum(operand.size_bytes for operand in self.outputs.values())


@dataclass(frozen=True)
class Traffic:
    """How many bytes an execution reads and writes: the formula as text and as code."""

    text: str
    read: Count
    written: Count


TENSORS = Traffic("each distinct input once + each output once", lambda c: c.input_bytes, lambda c: c.output_bytes)
ALIAS = Traffic("0: the output is memory that already holds the value", lambda c: 0, lambda c: 0)
GENERATED = Traffic("each output once; no input's values are read", lambda c: 0, lambda c: c.output_bytes)


def selected(source: int) -> Traffic:
    """The traffic of an op that takes a part of input `source`: only the part is read."""
    return Traffic(
        "the selected part (as large as the output) and the other inputs once + each output once",
        lambda c: c.output_bytes + c.input_bytes - c.inputs[source].size_bytes,
        lambda c: c.output_bytes,
    )


@dataclass(frozen=True)
class Rule:
    """The cost of some op types. FLOPs are 2 x MACs + `operations`.

    In the texts, `n` is the elements of output 0 and `m` those of input 0, unless they say otherwise. A count that is None is not known.
    """

    ops: tuple[str, ...]
    operations_text: str
    operations: Count | None
    source: str
    traffic: Traffic = TENSORS
    macs_text: str = "0"
    macs: Count | None = None

    @property
    def flops_text(self) -> str:
        """The formula of all FLOPs."""
        if self.macs is None:
            return self.operations_text
        return "2 MACs" if self.operations_text == "0" else f"2 MACs + {self.operations_text}"


def rule(
    ops: str,
    text: str,
    operations: Count | None,
    source: str,
    traffic: Traffic = TENSORS,
    macs_text: str = "0",
    macs: Count | None = None,
) -> Rule:
    """A `Rule`, with its op types in one string."""
    return Rule(tuple(ops.split()), text, operations, source, traffic, macs_text, macs)


def none(call: Call) -> int:
    """No operation."""
    return 0
