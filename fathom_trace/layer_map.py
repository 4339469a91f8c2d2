"""The layer map of an export as columns: which layer each execution is of, and sums by layer. What `check` compares files with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fathom_trace.exporter import ExportedLayer, checked

Int64 = NDArray[np.int64]


class LayerMap:
    """Layers as `export.json` lists them, by number. Their executions are kept as a column; `layers` have but the first of each."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """`rows` is what `export.json` has as layers; a list that it holds of executions is emptied.

        Raises:
            KeyError, TypeError, ValueError: it is no list of layers, or executions are no whole numbers or are listed twice.
        """
        parts = [_whole_numbers(row["executions"]) for row in rows]
        self.layers = [checked(ExportedLayer(**{**row, "executions": tuple(row["executions"][:1])})) for row in rows]
        for row in rows:
            row["executions"].clear()
        self.counts = np.array([len(part) for part in parts], np.int64)
        executions = np.concatenate([np.zeros(0, np.int64), *parts])
        order = np.argsort(executions, kind="stable")
        self.executions: Int64 = executions[order]
        """All executions, ascending."""
        self.layer: Int64 = np.repeat(np.arange(len(self.layers)), self.counts)[order]
        """The layer of each of `executions`."""
        twice = np.flatnonzero(self.executions[1:] == self.executions[:-1])
        if len(twice):
            raise ValueError(f"execution {self.executions[twice[0]]} is listed twice")

    def __len__(self) -> int:
        return len(self.layers)

    def layer_of(self, executions: ArrayLike) -> Int64:
        """The number of the layer that each of some executions is of; -1 where it is of none."""
        wanted = np.asarray(executions, np.int64)
        if not len(self.executions):
            return np.full(len(wanted), -1)
        place = np.minimum(np.searchsorted(self.executions, wanted), len(self.executions) - 1)
        return np.where(self.executions[place] == wanted, self.layer[place], -1)

    def sums(self, layer: Int64, values: ArrayLike | None = None) -> Int64:
        """By layer, the sum of values of `layer`s (those of -1 left out); without values, how many there are."""
        found = np.zeros(len(self.layers), np.int64)
        inside = layer >= 0
        np.add.at(found, layer[inside], 1 if values is None else np.asarray(values, np.int64)[inside])
        return found

    def facts(self, name: str) -> list[Any]:
        """One fact of each layer; None where a layer does not have it."""
        return [layer.facts.get(name) for layer in self.layers]


def _whole_numbers(values: Any) -> Int64:
    """A list of integers as a column.

    Raises:
        TypeError, ValueError: it is anything else.
    """
    if not isinstance(values, list):
        raise TypeError("executions are no list")
    found = np.array(values or np.zeros(0, np.int64))
    if found.ndim != 1 or found.dtype != np.int64 or found.min(initial=0) < 0:
        raise ValueError("executions are not numbered by integers from 0")
    return found
