"""Random traces that are legal and otherwise as odd as they can be: for tests that any trace must pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from fathom_trace import tables as t
from fathom_trace.trace import Trace

NAMES = ("", "dw", "dw/SpaceToBatchND", "a//b", ".", "x:0", "conv/日本", "x\0y", "\0", "a b", "..", "/", "\N{ROCKET}", "\x7f\r\n")
ATTRIBUTES = ("", "{}", '{"T":"float32","strides":[1,2,1,1]}', '{"名":"\\u0000"}')
EXTREMES = {
    "int16": (0, 1, -1, 2**15 - 1, -(2**15)),
    "int32": (0, 1, 3, 200, -1, 2**31 - 1, -(2**31)),
    "int64": (0, 1, 7, 300, 70_000, -1, 2**31, 2**63 - 1, -(2**63), 10**12),
    "uint64": (0, 1, 2**63, 2**64 - 1, 0xFFFF_FFFF_FFFF_F000),
    "uint8": (0, 1, 127, 128, 255),
}
LEAF_TABLES = ("source_nodes", "frames", "paths", "constants", "variables", "interface", "device_spans", "buffers", "allocations")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def traces(draw: Any, most_rows: int = 12) -> Trace:
    """A legal trace with up to `most_rows` rows a table, ragged columns empty or not, values at the ends of their ranges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = st.integers(0, most_rows)
    counts = {name: draw(rows) for name in ("nodes", "shapes", *LEAF_TABLES)}
    sizes = draw(st.just([]) | st.lists(rows, min_size=1, max_size=3)) if counts["nodes"] and counts["paths"] else []
    runs = draw(st.just([]) | st.lists(st.integers(-1, len(sizes) - 1), min_size=1, max_size=4))
    provenance = draw(st.dictionaries(st.text(max_size=6), JSON, max_size=4))
    return make_trace(rng, counts, sizes, runs, provenance)


def make_trace(
    rng: np.random.Generator, counts: dict[str, int], sizes: list[int], runs: list[int], provenance: dict[str, Any]
) -> Trace:
    """A legal trace of `counts` rows; `sizes` are the executions of each structure, `runs` each step's structure."""
    texts = [*NAMES, *ATTRIBUTES]
    counts = {"strings": len(texts), "shapes": 1, "steps": len(runs), "tensors": 0, "executions": sum(sizes)} | counts
    counts["shapes"] = max(1, counts["shapes"])
    structures = [i for i, size in enumerate(sizes) for _ in range(size)]
    counts["tensors"] = 2 * len(structures) if structures else 0
    made: dict[str, Any] = {"strings": t.Strings.of(texts)}
    for table in t.TABLES:
        if table.name not in ("strings", "structures", "step_times"):
            made[table.name] = _table(rng, table, counts)
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    made["structures"] = t.Structures(execution_offsets=bounds, execution=np.arange(bounds[-1]))
    producers = np.sort(rng.integers(0, max(1, len(structures)), counts["tensors"]))
    made["tensors"] = _replace(made["tensors"], execution=producers)
    made["executions"] = _executions(rng, made["executions"], structures, producers)
    made["steps"] = _replace(made["steps"], structure=np.array(runs, np.int32))
    made["step_times"] = _table(rng, t.StepTimes, {"step_times": sum(sizes[r] for r in runs if r >= 0)})
    for name in ("frames", "paths"):
        parents = [int(rng.integers(-1, i)) if i else -1 for i in range(counts[name])]
        made[name] = _replace(made[name], parent=np.array(parents, np.int32))
    attributes = rng.integers(len(NAMES), len(texts), counts["nodes"])
    made["nodes"] = _replace(made["nodes"], attributes=attributes)
    made["source_nodes"] = _replace(made["source_nodes"], attributes=rng.integers(len(NAMES), len(texts), counts["source_nodes"]))
    return Trace(**made, provenance=provenance)


def _replace(table: t.Table, **changes: Any) -> t.Table:
    return type(table)(**{key: changes.get(key, getattr(table, key)) for key in table.columns()})


def _executions(rng: np.random.Generator, table: t.Table, structures: list[int], producers: np.ndarray) -> t.Table:
    """Random inputs and control dependencies that precede their consumer in its own structure."""
    inputs: list[list[int]] = []
    controls: list[list[int]] = []
    for row, structure in enumerate(structures):
        before = [i for i in range(row) if structures[i] == structure]
        tensors = [i for i, p in enumerate(producers) if p in before]
        inputs.append([int(i) for i in rng.choice(tensors, rng.integers(0, 4))] if tensors else [])
        controls.append([int(i) for i in rng.choice(before, rng.integers(0, 3))] if before else [])
    return _replace(table, **_ragged("input", inputs), **_ragged("control", controls))


def _ragged(group: str, rows: list[list[int]]) -> dict[str, Any]:
    bounds = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    return {f"{group}_offsets": bounds, group: np.array([v for r in rows for v in r], np.int32)}


def _table(rng: np.random.Generator, table: type[t.Table], counts: dict[str, int]) -> t.Table:
    rows = counts[table.name]
    made: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for key, spec in table.columns().items():
        if spec.is_offsets:
            refers = [c.refers for c in table.columns().values() if c.ragged == spec.ragged and c.refers]
            most = 0 if any(not counts.get(r, 0) for r in refers) else 4
            made[key] = np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, rows))]).astype(np.int64)
            lengths[spec.ragged] = int(made[key][-1])
            continue
        length = lengths[spec.ragged] if spec.ragged else rows
        if spec.refers:
            lowest, highest = -1 if spec.optional else 0, counts.get(spec.refers, 0)
            made[key] = rng.integers(lowest, highest, length) if highest > lowest else np.full(length, lowest)
        elif spec.codes:
            made[key] = rng.integers(0, len(spec.codes), length).astype(spec.dtype)
        elif spec.dtype == "bool":
            made[key] = rng.integers(0, 2, length).astype(bool)
        else:
            made[key] = np.array(EXTREMES[spec.dtype], spec.dtype)[rng.integers(0, len(EXTREMES[spec.dtype]), length)]
    if any(c.refers and not c.optional and not c.ragged and not counts.get(c.refers, 0) for c in table.columns().values()):
        return table.empty()
    return table(**made)
