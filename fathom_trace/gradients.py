"""The gradient of each trained variable: the tensors in which it is complete, and the optimizer's executions that read them first.

This is where data-parallel training puts its collectives: after a variable's last gradient, before its optimizer op. A gradient is
found from what writes the variable or a slot of it: backwards through the optimizer's arithmetic that keeps the variable's shape (also
through slots, which are written and read again), to the first tensor that the backward pass made. Reductions are not passed, so the
global norm of a clipping does not join the variables. Where no such tensor has the variable's shape, the gradient is sparse (rows and
their indices): then it is all that the variable's updates read from the backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fathom_trace.ops import kind
from fathom_trace.phases import BACKWARD, OPTIMIZER, Phases, phases
from fathom_trace.trace import Trace


@dataclass(frozen=True)
class Gradient:
    """The gradient of `variable` (a row of `variables`); `tensors`, `producers` and `readers` are rows, ascending.

    `readers` are the executions outside the backward pass that read it. `size_bytes` is that of the dense gradient.
    """

    variable: int
    tensors: tuple[int, ...]
    producers: tuple[int, ...]
    readers: tuple[int, ...]
    size_bytes: int
    is_dense: bool


def gradients(trace: Trace, structure: int, phase: Phases | None = None) -> list[Gradient]:
    """The gradients of one structure by when they are complete; a trained variable that the structure does not update has none."""
    finder = _Finder(trace, structure, phases(trace) if phase is None else phase)
    found = [g for v in np.flatnonzero(trace.variables.trainable).tolist() if (g := finder.gradient(v)) is not None]
    return sorted(found, key=lambda g: (g.producers[-1], g.variable))


class _Finder:
    """Who writes, reads and makes what, in one structure."""

    def __init__(self, trace: Trace, structure: int, phase: Phases) -> None:
        self.trace, self.phase = trace, phase.codes
        self.rows = range(*trace.structure_rows(structure).indices(len(trace.executions)))
        self.writers: dict[int, list[int]] = defaultdict(list)
        nodes, of_execution = trace.nodes, trace.executions.node
        for execution in self.rows:
            node = int(of_execution[execution])
            for variable in nodes.write[nodes.row_values("write", node)].tolist():
                if self.phase[node] == OPTIMIZER:
                    self.writers[variable].append(execution)

    @cached_property
    def readers_of(self) -> dict[int, list[int]]:
        """Executions by the tensor that they read."""
        found: dict[int, list[int]] = defaultdict(list)
        for execution in self.rows:
            for tensor in set(self.trace.inputs(execution)):
                found[tensor].append(execution)
        return found

    def gradient(self, variable: int) -> Gradient | None:
        """The gradient of one variable; None if nothing of the backward pass reaches it."""
        variables = self.trace.variables
        slots = np.flatnonzero(variables.slot_of == variable).tolist()
        writers = [e for v in (variable, *slots) for e in self.writers.get(v, ())]
        shape = int(variables.shape[variable])
        found, is_dense = self._reached(writers, variable, shape), True
        if not found:
            found, is_dense = self._reached(writers, variable, None), False
        if not found:
            return None
        size = int(variables.size_bytes[variable])
        if is_dense:
            size = max(int(self.trace.tensors.size_bytes[t]) for t in found)
        readers = {e for t in found for e in self.readers_of[t] if self._phase(e) != BACKWARD}
        producers = {int(self.trace.tensors.execution[t]) for t in found}
        return Gradient(variable, tuple(sorted(found)), tuple(sorted(producers)), tuple(sorted(readers)), size, is_dense)

    def _phase(self, execution: int) -> int:
        return int(self.phase[int(self.trace.executions.node[execution])])

    def _reached(self, writers: Iterable[int], variable: int, shape: int | None) -> set[int]:
        """The first tensors of the backward pass on the ways back from `writers`, all of a shape where one is given."""
        trace, found = self.trace, set[int]()
        waiting, seen = list(writers), set(writers)
        while waiting:
            execution = waiting.pop()
            node = int(trace.executions.node[execution])
            before: list[int] = [] if self._stops(execution, node) else trace.inputs(execution)
            further = []
            for tensor in before:
                if shape is not None and int(trace.tensors.shape[tensor]) != shape:
                    continue
                producer = int(trace.tensors.execution[tensor])
                if self._phase(producer) == BACKWARD and trace.tensors.size_bytes[tensor] > 0:
                    found.add(tensor)
                else:
                    further.append(producer)
            for kept in trace.nodes.read[trace.nodes.row_values("read", node)].tolist():
                if kept != variable and not trace.variables.trainable[kept]:
                    further += [w for w in self.writers.get(kept, ()) if w < execution]
            for producer in further:
                if producer not in seen:
                    seen.add(producer)
                    waiting.append(producer)
        return found

    def _stops(self, execution: int, node: int) -> bool:
        """Whether what an execution reads is no longer this variable's own: it reduces, or is not the optimizer's."""
        return self._phase(execution) != OPTIMIZER or kind(self.trace.node_ops[node]) == "reduction"
