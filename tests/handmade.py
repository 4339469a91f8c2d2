"""Writes traces by hand, one op a line: each call adds a node and its execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fathom_trace import tables
from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Trace

Shape = Sequence[int]


@dataclass(frozen=True)
class Value:
    """One output of an op: node and execution that made it, and its port."""

    node: int
    execution: int
    port: int = 0


class Hand:
    """A straight-line program: every op runs once, in the order in which it is added."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()

    def op(
        self, name: str, op: str, *inputs: Value, shape: Shape = (), dtype: str = "float32",
        outputs: Sequence[tuple[str, Shape]] | None = None, reads: Sequence[int] = (), writes: Sequence[int] = (), runs: int = 1,
        **attributes: Any,
    ) -> Value:  # fmt: skip
        """An op with one output of `shape`, or with `outputs` (dtype, shape); `runs=0` adds the node only."""
        node = self.builder.node(
            name, op, inputs=[(i.node, i.port) for i in inputs], attributes=attributes, reads=list(reads), writes=list(writes)
        )
        execution = -1
        for _ in range(runs):
            execution = self.builder.execution(
                node, inputs=[self.tensor(i) for i in inputs], outputs=[(dtype, shape)] if outputs is None else outputs
            )
        return Value(node, execution)

    def tensor(self, value: Value) -> int:
        """The row of a value's tensor."""
        return self.builder.tensor(value.execution, value.port)

    def feed(self, name: str, shape: Shape, dtype: str = "float32", role: str = "input") -> Value:
        """A fed input."""
        value = self.op(f"_arg_{name}", "_Arg", shape=shape, dtype=dtype)
        self.builder.interface(name, tables.FEED, value.node, 0, role)
        return value

    def const(self, name: str, shape: Shape = (), dtype: str = "float32") -> Value:
        """A constant."""
        return self.op(name, "Const", shape=shape, dtype=dtype)

    def variable(
        self, name: str, shape: Shape, *, trainable: bool = True, slot_of: int = -1, slot_name: str = ""
    ) -> tuple[int, Value]:
        """A variable and its handle."""
        handle = self.op(f"variables/{name}", "VarHandleOp", outputs=[("resource", ())])
        row = self.builder.variable(
            name, "float32", shape, trainable=trainable, slot_of=slot_of, slot_name=slot_name, node=handle.node
        )
        return row, handle

    def read(self, name: str, variable: tuple[int, Value], shape: Shape) -> Value:
        """The value of a variable."""
        return self.op(name, "ReadVariableOp", variable[1], shape=shape, reads=[variable[0]])

    def fetch(self, value: Value, role: str, name: str = "") -> None:
        """Name a value as an output of the step."""
        self.builder.interface(name or role or "output", tables.FETCH, value.node, value.port, role)

    def build(self, durations_ns: Sequence[int] | None = None) -> Trace:
        """The trace, with one step that ran the ops one after the other if durations are given."""
        if durations_ns is not None:
            structure = self.builder.end_structure()
            done = [sum(durations_ns[: i + 1]) for i in range(len(durations_ns))]
            self.builder.step(structure, start=[d - t for d, t in zip(done, durations_ns, strict=True)], done=done)
        return self.builder.build({"workload": "handmade", "stage": "source"})
