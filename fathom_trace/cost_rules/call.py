"""What a cost rule sees of an execution, and what a rule is: op types, formulas as text and as code, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

Count = Callable[["Call"], int]
Parts = Callable[["Call"], "list[Part]"]

INPUT, OUTPUT, VARIABLE, LIST = range(4)
"""Places: an input, an output, a variable that the node updates, the elements of the list that it reads or makes."""


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


class Part(NamedTuple):
    """Bytes of one place that an execution reads or writes: `number` is the input's position, the output's port, or which variable."""

    place: int
    number: int
    size_bytes: int


@dataclass(frozen=True)
class Traffic:
    """What an execution reads and writes: the formula as text, and as code the bytes of each place."""

    text: str
    reads: Parts
    writes: Parts

    def read(self, call: Call) -> int:
        """Bytes read."""
        return sum(part.size_bytes for part in self.reads(call))

    def written(self, call: Call) -> int:
        """Bytes written."""
        return sum(part.size_bytes for part in self.writes(call))


def whole_inputs(call: Call, besides: Collection[int] = ()) -> list[Part]:
    """Each distinct input, but for some positions."""
    return [Part(INPUT, i, o.size_bytes) for i, o in enumerate(call.inputs) if not o.is_repeated and i not in besides]


def whole_outputs(call: Call) -> list[Part]:
    """Each output."""
    return [Part(OUTPUT, port, operand.size_bytes) for port, operand in call.outputs.items()]


def nothing(call: Call) -> list[Part]:
    """No bytes."""
    return []


TENSORS = Traffic("each distinct input once + each output once", whole_inputs, whole_outputs)
ALIAS = Traffic("0: the output is memory that already holds the value", nothing, nothing)
GENERATED = Traffic("each output once; no input's values are read", nothing, whole_outputs)


def selected(source: int) -> Traffic:
    """The traffic of an op that takes a part of input `source`: only the part is read."""
    return Traffic(
        "the selected part (as large as the output) and the other inputs once + each output once",
        lambda c: [Part(INPUT, source, c.output_bytes), *whole_inputs(c, (source,))],
        whole_outputs,
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
