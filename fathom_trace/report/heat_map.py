"""Which op types take the time of which workload (the Fathom paper's figure 3), in the paper's groups A to G.

A cell is the share of an op type in the workload's true total op time; cells of 1% or less are blank, and op types without any other are
left out. Op types stand under the paper's names, those of one name added. Plumbing, opaque calls and op types of no known kind have no
group in the paper; their share is stated apart, and they stay in the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fathom_trace.ops import GROUPS, group, paper_name
from fathom_trace.report.captured import Captured

BLANK = 0.01


@dataclass(frozen=True)
class HeatMap:
    """Rows are workloads, columns op types by group; `cells[row][column]` is a share of the row's total, None where blank."""

    labels: tuple[str, ...]
    op_types: tuple[str, ...]
    groups: tuple[str, ...]
    """Group of each column, `A` to `G`."""
    cells: tuple[tuple[float | None, ...], ...]
    shown: tuple[float, ...]
    """Sum of the cells of each row."""
    ungrouped: tuple[float, ...]
    """Share of what has no group, of each row."""

    @property
    def blank(self) -> tuple[float, ...]:
        """Share that the blank cells and left out op types hold, of each row."""
        return tuple(max(0.0, 1.0 - s - u) for s, u in zip(self.shown, self.ungrouped, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "labels": list(self.labels),
            "columns": [{"op_type": o, "group": g, "group_name": GROUPS[g]} for o, g in zip(self.op_types, self.groups, strict=True)],
            "cells": [list(row) for row in self.cells],
            "shown": list(self.shown),
            "ungrouped": list(self.ungrouped),
            "blank": list(self.blank),
        }


def heat_map(traces: Sequence[Captured]) -> HeatMap:
    """The heat map of the given traces, one row each."""
    shares = [_grouped(captured) for captured in traces]
    wanted = {key for row in shares for key, share in row.items() if share > BLANK and key[0]}
    columns = sorted(wanted, key=lambda key: (key[0], -max(row.get(key, 0.0) for row in shares), key[1]))
    cells = tuple(
        tuple(row[key] if row.get(key, 0.0) > BLANK else None for key in columns) for row in shares
    )  # fmt: skip
    return HeatMap(
        labels=tuple(captured.label for captured in traces),
        op_types=tuple(op for _, op in columns),
        groups=tuple(letter for letter, _ in columns),
        cells=cells,
        shown=tuple(sum(cell for cell in row if cell is not None) for row in cells),
        ungrouped=tuple(sum(share for (letter, _), share in row.items() if not letter) for row in shares),
    )


def _grouped(captured: Captured) -> dict[tuple[str, str], float]:
    """Share by group and paper's name."""
    names = {f"{group(op)} {paper_name(op)}": (group(op), paper_name(op)) for op in captured.op_types}
    return {names[key]: share for key, share in captured.shares(lambda op: f"{group(op)} {paper_name(op)}").items()}
