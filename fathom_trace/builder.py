"""Builds a `Trace` row by row: for capture, for synthetic traces and for tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fathom_trace import tables as t
from fathom_trace.errors import TraceError
from fathom_trace.trace import Trace

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "qint8": 1, "quint8": 1, "qint16": 2, "quint16": 2, "qint32": 4,
}  # fmt: skip
"""Bytes of one element by dtype name; handles, variants and strings have none of a fixed size."""

CONSTANT_LIMIT_BYTES = 1024

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class TraceBuilder:
    """Collects rows and interns names, shapes and paths; `build()` makes the checked `Trace`.

    Every method that adds a row returns its number, which later calls refer to.
    """

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._shapes: dict[tuple[int, ...], int] = {(): 0}
        self._rows: dict[str, list[dict[str, Any]]] = {c.name: [] for c in t.TABLES}
        self._rows["paths"].append({"parent": -1, "frame": -1, "instance": 0, "iteration": 0})
        self._paths: dict[tuple[int, int, int, int], int] = {}
        self._structure_begin = 0
        self._times: list[dict[str, NDArray[Any]]] = []
        self._tensor_at: dict[tuple[int, int], int] = {}

    # --- interned ---------------------------------------------------------------------------------------------------------------

    def string(self, text: str) -> int:
        """Row of `text` in `strings`."""
        return self._strings.setdefault(text, len(self._strings))

    def shape(self, dims: Iterable[int]) -> int:
        """Row of a shape in `shapes`."""
        return self._shapes.setdefault(tuple(int(d) for d in dims), len(self._shapes))

    def path(self, parent: int, frame: int, instance: int, iteration: int) -> int:
        """Row of an iteration path; 0 is the root."""
        key = (parent, frame, instance, iteration)
        if key not in self._paths:
            names = ("parent", "frame", "instance", "iteration")
            self._paths[key] = self.add("paths", **dict(zip(names, key, strict=True)))
        return self._paths[key]

    def add(self, table: str, **row: Any) -> int:
        """Append a raw row to any table; every column that is not an offsets column must be given."""
        self._rows[table].append(row)
        return len(self._rows[table]) - 1

    # --- graph ------------------------------------------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        op: str,
        *,
        inputs: Sequence[tuple[int, int]] = (),
        control: Sequence[int] = (),
        attributes: Mapping[str, Any] | None = None,
        device: str = "",
        frame: int = -1,
        sources: Sequence[int] = (),
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
    ) -> int:
        """A node of the executed graph. `inputs` are (node, port); loops may name nodes that are added later."""
        return self.add(
            "nodes",
            node_name=self.string(name),
            op=self.string(op),
            device=self.string(device),
            attributes=self.string(attributes_text(attributes)),
            frame=frame,
            input_node=[n for n, _ in inputs] + list(control),
            input_port=[p for _, p in inputs] + [-1] * len(control),
            source=list(sources),
            read=list(reads),
            write=list(writes),
        )

    def variable(
        self, name: str, dtype: str, dims: Sequence[int], *, trainable: bool = False, slot_of: int = -1, slot_name: str = "",
        node: int = -1, buffer: int = -1,
    ) -> int:  # fmt: skip
        """A variable of `dims` elements."""
        shape = self.shape(dims)
        return self.add(
            "variables", variable_name=self.string(name), dtype=self.string(dtype), shape=shape,
            size_bytes=tensor_bytes(dtype, dims), trainable=trainable, slot_of=slot_of, slot_name=self.string(slot_name),
            node=node, buffer=buffer,
        )  # fmt: skip

    def constant(self, node: int, value: NDArray[Any], dtype: str | None = None) -> int | None:
        """The value of a Const node, where `Constants` keeps it (others: size and digest)."""
        raw = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        name = dtype or value.dtype.name
        kept = value.ndim == 0 or (value.dtype.kind in "iub" and len(raw) <= CONSTANT_LIMIT_BYTES)
        kept = kept and value.dtype.kind in "iubfc" and len(raw) <= CONSTANT_LIMIT_BYTES
        digest = "" if kept else hashlib.sha256(raw).hexdigest()
        return self.add(
            "constants", node=node, dtype=self.string(name), shape=self.shape(value.shape), size_bytes=len(raw),
            digest=self.string(digest), value=np.frombuffer(raw, np.uint8) if kept else [],
        )  # fmt: skip

    def interface(self, name: str, direction: int, node: int, port: int = 0, role: str = "") -> int:
        """A feed (`tables.FEED`) or fetch (`tables.FETCH`)."""
        if role and role not in t.ROLES:
            raise TraceError(f"no role is called '{role}'; there are: {', '.join(t.ROLES)}")
        return self.add("interface", user_name=self.string(name), role=self.string(role), direction=direction, node=node, port=port)

    # --- executions -------------------------------------------------------------------------------------------------------------

    def execution(
        self,
        node: int,
        *,
        inputs: Sequence[int] = (),
        control: Sequence[int] = (),
        outputs: Sequence[tuple[str, Sequence[int]]] = (),
        path: int = 0,
        parent: int = -1,
        kind: int = t.EXECUTION_OP,
        timed: bool = True,
    ) -> int:
        """A run of `node`: `inputs` are rows of tensors (see `tensor`), `outputs` are (dtype, shape) for ports 0, 1, ..."""
        row = self.add(
            "executions", node=node, path=path, parent=parent, kind=kind, timed=timed, input=list(inputs),
            control=list(control),
        )  # fmt: skip
        for port, (dtype, dims) in enumerate(outputs):
            self.output(row, port, dtype, dims)
        return row

    def output(
        self, execution: int, port: int, dtype: str, dims: Sequence[int], *, buffer: int = -1, size_bytes: int | None = None,
        element_dims: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """A live output of the execution added last."""
        row = self.add(
            "tensors", execution=execution, port=port, dtype=self.string(dtype), shape=self.shape(dims),
            size_bytes=tensor_bytes(dtype, dims) if size_bytes is None else size_bytes,
            element_shape=-1 if element_dims is None else self.shape(element_dims), buffer=buffer,
        )  # fmt: skip
        self._tensor_at[execution, port] = row
        return row

    def tensor(self, execution: int, port: int = 0) -> int:
        """Row of an output that was added before."""
        return self._tensor_at[execution, port]

    def end_structure(self) -> int:
        """Close the set of executions added since the last call; returns the structure's number."""
        end = len(self._rows["executions"])
        row = self.add("structures", execution=range(self._structure_begin, end))
        self._structure_begin = end
        return row

    # --- steps ------------------------------------------------------------------------------------------------------------------

    def step(
        self,
        structure: int,
        start: ArrayLike = (),
        done: ArrayLike = (),
        *,
        scheduled: ArrayLike | None = None,
        end: ArrayLike | None = None,
        lane: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        client_wall_ns: int | None = None,
        origin_ns: int = 0,
        input_preparation_ns: int = 0,
        input_preparation_bytes: int = 0,
        synthetic_input: bool = True,
        recorded: int | None = None,
        produced: int | None = None,
        complete: bool = True,
    ) -> int:
        """A traced step: times in ns after the step's origin, one per execution of `structure`."""
        began, finished = np.asarray(start, np.int64), np.asarray(done, np.int64)
        queued = began if scheduled is None else np.asarray(scheduled, np.int64)
        returned = finished if end is None else np.asarray(end, np.int64)
        ordered = (queued <= began) & (began <= returned) & (returned <= finished)
        good = ordered if valid is None else np.asarray(valid, bool)
        self._times.append(
            {
                "scheduled": queued,
                "start": began,
                "end": returned,
                "done": finished,
                "lane": np.zeros(len(began), np.int16) if lane is None else np.asarray(lane, np.int16),
                "valid": good,
            }
        )
        span = int(finished[good].max() - queued[good].min()) if good.any() else 0
        return self.add(
            "steps", structure=structure, traced=True, client_wall_ns=span if client_wall_ns is None else client_wall_ns,
            span_ns=span, origin_ns=origin_ns, input_preparation_ns=input_preparation_ns,
            input_preparation_bytes=input_preparation_bytes, synthetic_input=synthetic_input,
            recorded=len(began) if recorded is None else recorded,
            produced=len(began) if produced is None else produced, complete=complete,
        )  # fmt: skip

    def untraced_step(self, client_wall_ns: int) -> int:
        """A step that was only timed from outside."""
        return self.add(
            "steps", structure=-1, traced=False, client_wall_ns=client_wall_ns, span_ns=0, origin_ns=0, input_preparation_ns=0,
            input_preparation_bytes=0, synthetic_input=True, recorded=0, produced=0, complete=True,
        )  # fmt: skip

    def sort_allocations(self) -> None:
        """Order the allocation records by time; equal times keep their order."""
        self._rows["allocations"].sort(key=lambda row: row["time"])

    def build(self, provenance: Mapping[str, Any] | None = None) -> Trace:
        """The `Trace` of everything added; executions after the last `end_structure` form one more structure."""
        made: dict[str, Any] = {**self.tables()}
        return Trace(**made, provenance=dict(provenance or {}))

    def tables(self) -> dict[str, t.Table]:
        """The tables of everything added, by name: for a caller that has some of them ready-made."""
        if len(self._rows["executions"]) > self._structure_begin:
            self.end_structure()
        made: dict[str, Any] = {
            c.name: c.from_rows(self._rows[c.name]) for c in t.TABLES if c not in (t.Strings, t.Shapes, t.StepTimes, t.Structures)
        }
        made["strings"] = t.Strings.of(self._strings)
        made["shapes"] = t.Shapes.from_rows([{"dims": s} for s in self._shapes])
        made["structures"] = t.Structures.from_rows(self._rows["structures"])
        keys = t.StepTimes.columns()
        made["step_times"] = t.StepTimes(
            **{k: np.concatenate([np.zeros(0, c.dtype), *(s[k] for s in self._times)]) for k, c in keys.items()}
        )
        return made


def tensor_bytes(dtype: str, dims: Sequence[int]) -> int:
    """Bytes of a dense tensor; 0 for dtypes without a fixed element size (resource, variant, string)."""
    count = 1
    for d in dims:
        count *= int(d)
    return count * ITEM_BYTES.get(dtype, 0)


def attributes_text(attributes: Mapping[str, Any] | None) -> str:
    """Attributes as stored: JSON with sorted keys, or empty."""
    return _ENCODER.encode(dict(attributes)) if attributes else ""
