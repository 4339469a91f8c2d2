"""Selects executions by a function of the user's: `predicate:mine.py` asks `select(execution)` of that file, for each execution.

Opening the file runs it, with all that it imports: open only files that you would run.

    def select(execution):
        return execution.kind == "conv" and execution.output_shapes[0][1] > 28
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.errors import ScenarioError, one_line
from fathom_trace.trace import Trace
from fathom_trace.whatif.recording import Bool
from fathom_trace.whatif.selection import Executed

PREFIX = "predicate:"
FUNCTION = "select"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Execution:
    """One execution as a predicate sees it. `duration_ns` is the median over the steps; shapes are those that ran, by port."""

    row: int
    name: str
    op: str
    kind: str
    layer: str
    phase: str
    device: str
    duration_ns: float
    attributes: Mapping[str, Any]
    iteration: tuple[int, ...]
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Predicate:
    """Executions for which the function `select` of a file is true. The file runs when it is first asked."""

    path: Path

    def __str__(self) -> str:
        return f"{PREFIX}{self.path}"

    @cached_property
    def function(self) -> Callable[[Execution], object]:
        """The function of the file, which this runs.

        Raises:
            ScenarioError: the file does not exist, fails, or has no such function.
        """
        if not self.path.is_file():
            raise ScenarioError(f"the predicate {self.path} does not exist; give a Python file that defines {FUNCTION}(execution)")
        spec = importlib.util.spec_from_file_location("fathom_trace_predicate", self.path)
        if spec is None or spec.loader is None:
            raise ScenarioError(f"the predicate {self.path} is no Python file; give one that defines {FUNCTION}(execution)")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ScenarioError(f"the predicate {self.path} does not run: {_of(error)}") from error
        found = getattr(module, FUNCTION, None)
        if not callable(found):
            raise ScenarioError(f"the predicate {self.path} defines no function {FUNCTION}(execution)")
        function: Callable[[Execution], object] = found
        return function

    def mask(self, among: Executed) -> Bool:
        """True for each selected execution.

        Raises:
            ScenarioError: the file or its function fails, answers anything but true or false, or selects nothing.
        """
        function = self.function
        mask = np.zeros(len(among), bool)
        for execution in executions(among):
            try:
                answer = function(execution)
            except (Exception, SystemExit) as error:
                raise ScenarioError(f"the predicate {self.path} failed for '{execution.name}': {_of(error)}") from error
            if not isinstance(answer, (bool, np.bool_)):
                what = type(answer).__name__
                raise ScenarioError(f"the predicate {self.path} answers {what} for '{execution.name}'; it must answer True or False")
            mask[execution.row - among.first] = answer
        if not mask.any():
            raise ScenarioError(f"the predicate {self.path} selects none of {among.count} executions")
        return mask


def executions(among: Executed) -> Iterator[Execution]:
    """The executions as predicates see them: all that count."""
    trace = among.source("a predicate")
    labels = {key: among.labels.get(key) for key in ("name", "op", "kind", "layer", "phase", "device")}
    durations = trace.median_durations(among.structure).tolist()
    attributes, shapes = trace.node_attributes, [trace.shapes[i] for i in range(len(trace.shapes))]
    of_tensor = trace.tensors.shape.tolist()
    for local in np.flatnonzero(among.chosen).tolist():
        node = int(among.nodes[local])
        row = among.first + local
        yield Execution(
            row=row,
            **{key: values[node] if values is not None else "" for key, values in labels.items()},
            duration_ns=durations[local],
            attributes=attributes[node],
            iteration=_iteration(trace, row),
            input_shapes=tuple(shapes[of_tensor[t]] for t in trace.inputs(row)),
            output_shapes=tuple(shapes[of_tensor[t]] for t in trace.outputs(row)),
        )


def _iteration(trace: Trace, row: int) -> tuple[int, ...]:
    return trace.iteration(int(trace.executions.path[row]))


def _of(error: BaseException) -> str:
    """Type, message and, where it is known, the line of the user's file."""
    line, at = "", error.__traceback__
    while at is not None:
        line, at = f", line {at.tb_lineno}", at.tb_next
    return f"{type(error).__name__}: {one_line(error)}{line}"
