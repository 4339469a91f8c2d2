"""Exports of memory traces in tests, read with nothing but their grammar, and slow counts of what they must hold."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fathom_trace.builder import TraceBuilder
from fathom_trace.exporter import ExportReport, read_layer_map, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.tables import BUFFER_ALLOCATOR
from fathom_trace.trace import Trace

DRAMSIM3: Any = REGISTRY.load("dramsim3")
RAMULATOR: Any = REGISTRY.load("ramulator")


@dataclass(frozen=True)
class Request:
    """A row: its address, whether it writes, and its cycle (0 where rows have none)."""

    address: int
    writes: bool
    cycle: int = 0


def export(exporter: Any, trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True)
    report: ExportReport = exporter.write(trace, folder, apply_settings(exporter.Options(), settings, "the exporter"))
    write_report(folder, report)
    assert exporter.check(folder).problems == ()
    return report


def rows(folder: Path) -> list[str]:
    """The rows of a folder's trace."""
    [file] = folder.glob("*.trace")
    text = file.read_text(encoding="ascii")
    assert text.endswith("\n")
    return text.split("\n")[:-1]


def dramsim3(folder: Path) -> list[Request]:
    """The requests of a DRAMsim3 trace, without the row that ends it."""
    *found, last = rows(folder)
    assert last == "0x0 READ 18446744073709551615"
    parts = [row.split(" ") for row in found]
    assert all(len(p) == 3 and p[0].startswith("0x") and p[1] in ("READ", "WRITE") for p in parts)
    return [Request(int(address, 16), word == "WRITE", int(cycle)) for address, word, cycle in parts]


def ramulator(folder: Path) -> list[Request]:
    """The requests of a LoadStoreTrace."""
    parts = [row.split(" ") for row in rows(folder)]
    assert all(len(p) == 2 and p[0] in ("LD", "ST") and p[1].startswith("0x") for p in parts)
    return [Request(int(address, 16), word == "ST") for word, address in parts]


def of_execution(folder: Path) -> dict[int, tuple[int, int]]:
    """First and last row of each execution that was written."""
    found = {}
    for layer in read_layer_map(folder):
        found |= dict(zip(layer.executions, zip(layer.facts["first"], layer.facts["last"], strict=True), strict=True))
    return found


def regions(folder: Path) -> list[dict[str, str]]:
    """The rows of the region table."""
    [file] = folder.glob("*_regions.csv")
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def bursts(begin: int, size: int, burst: int) -> list[int]:
    """The bursts that bytes touch, found byte by byte."""
    return sorted({(begin + i) // burst * burst for i in range(size)})


class Memory:
    """A trace whose tensors lie at addresses that the test chooses; every op takes its time in turn."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.times: list[int] = []

    def buffer(self, address: int, size: int, origin: int = BUFFER_ALLOCATOR) -> int:
        """A piece of memory at a reported address."""
        return self.builder.add("buffers", origin=origin, address=address, size_bytes=size)

    def op(
        self, name: str, op: str, inputs: list[int], dims: list[int], *, address: int | None = None, dtype: str = "float32", ns: int = 10,
        size_bytes: int | None = None, **attributes: Any,
    ) -> int:  # fmt: skip
        """An op with one output; returns its execution."""
        nodes = [(int(self.builder._rows["executions"][e]["node"]), 0) for e in inputs]
        node = self.builder.node(name, op, inputs=nodes, attributes=attributes)
        execution = self.builder.execution(node, inputs=[self.builder.tensor(e) for e in inputs])
        tensor = self.builder.output(execution, 0, dtype, dims, size_bytes=size_bytes)
        if address is not None:
            row = self.builder._rows["tensors"][tensor]
            row["buffer"] = self.buffer(address, row["size_bytes"])
        self.times.append(ns)
        return execution

    def build(self) -> Trace:
        """The trace of one step."""
        structure = self.builder.end_structure()
        done = [sum(self.times[: i + 1]) for i in range(len(self.times))]
        self.builder.step(structure, start=[d - t for d, t in zip(done, self.times, strict=True)], done=done)
        return self.builder.build({"workload": "memory", "stage": "source"})


def case_c19() -> Trace:
    """An op reads a [4, 6] float32 tensor at 0x1000 (96 bytes) and writes a [4, 5] one at 0x2000 (80 bytes)."""
    memory = Memory()
    x = memory.op("x", "_Arg", [], [4, 6], address=0x1000)
    memory.op("op", "Cumsum", [x], [4, 5], address=0x2000, ns=1_000)
    return memory.build()


def case_c20() -> Trace:
    """x . w: [4, 6] and [6, 5] float32, no address reported."""
    memory = Memory()
    x, w = memory.op("x", "_Arg", [], [4, 6]), memory.op("w", "_Arg", [], [6, 5])
    memory.op("x.w", "MatMul", [x, w], [4, 5], ns=1_000, transpose_a=False, transpose_b=False)
    return memory.build()
