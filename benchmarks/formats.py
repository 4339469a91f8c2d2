"""A trace as HDF5 and protobuf against other ways to hold it: bytes and CPU time to write and read, side by side in one run.

    python -m benchmarks.formats TRACE... [--repeat 3]

* raw numpy: all columns in one uncompressed `.npz`, as they are in memory.
* Parquet (needs pyarrow): all columns, a file for each table and each group of ragged values, zstd.
* Chrome JSON: what the exporter perfetto writes of all traced steps; read by `json.loads`. It holds times, names and costs, no graph.
* Chakra: what the exporter chakra writes, of one step; read by the exporter's own check.

Bytes are for an execution in a step, of as many steps as the format holds; CPU time is the best of the repeats, which alternate.
Writing HDF5 and protobuf includes flushing the file to the disk, reading includes all checks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fathom_trace.exporters import REGISTRY
from fathom_trace.store import load, save
from fathom_trace.trace import Trace


@dataclass(frozen=True)
class Way:
    """A way to hold a trace: writes it to a path (a file, or a folder), reads it from there; `rows` execution-steps are in it."""

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    rows: int


def columns_of(trace: Trace) -> dict[str, np.ndarray[Any, Any]]:
    """All columns by name."""
    return {f"{name}/{key}": getattr(table, key) for name, table in trace.tables().items() for key in table.columns()}


def write_numpy(trace: Trace, path: Path) -> None:
    """One uncompressed archive."""
    with path.open("wb") as file:
        np.savez(file, **columns_of(trace), provenance=np.array(json.dumps(dict(trace.provenance))))


def read_numpy(path: Path) -> None:
    """Every column of it."""
    with np.load(path) as found:
        for name in found.files:
            found[name]


def write_parquet(trace: Trace, folder: Path) -> None:
    """A file for each set of columns that are equally long by construction."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    for name, table in trace.tables().items():
        groups: dict[str, dict[str, Any]] = {}
        for key, spec in table.columns().items():
            group = f"{spec.ragged}-offsets" if spec.is_offsets else spec.ragged
            groups.setdefault(group, {})[key] = getattr(table, key)
        for group, columns in groups.items():
            parquet.write_table(pyarrow.table(columns), folder / f"{name}-{group}.parquet", compression="zstd")


def read_parquet(folder: Path) -> None:
    """Every column as a numpy array."""
    from pyarrow import parquet

    for path in folder.iterdir():
        for column in parquet.read_table(path).columns:
            column.to_numpy()


def export_to(trace: Trace, exporter: str, settings: dict[str, str], folder: Path) -> None:
    """Write an export, without its check."""
    from fathom_trace.exporter import write_report
    from fathom_trace.options import apply_settings

    module = REGISTRY.load(exporter)
    folder.mkdir()
    write_report(folder, module.write(trace, folder, apply_settings(module.Options(), settings, exporter)))


def ways(trace: Trace) -> list[Way]:
    """All of them for a trace; Parquet where pyarrow is."""
    steps, executions = len(trace.step_times), int(np.diff(trace.structures.execution_offsets)[trace.main_structure])
    found = [
        Way("HDF5", lambda p: save(trace, p.with_suffix(".h5"), force=True), lambda p: load(p.with_suffix(".h5")), steps),
        Way("protobuf", lambda p: save(trace, p.with_suffix(".pb"), force=True), lambda p: load(p.with_suffix(".pb")), steps),
        Way("raw numpy", lambda p: write_numpy(trace, p), read_numpy, steps),
    ]
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        print("Parquet: pyarrow is not installed, so it was not measured")
    else:
        found.append(Way("Parquet, zstd", lambda p: write_parquet(trace, p), read_parquet, steps))
    found.append(
        Way(
            "Chrome JSON (exporter perfetto)",
            lambda p: export_to(trace, "perfetto", {"format": "json", "step": "all"}, p),
            lambda p: [json.loads(f.read_bytes()) for f in p.rglob("*.json") if f.name != "export.json"],
            steps,
        )
    )
    chakra = REGISTRY.load("chakra")
    found.append(Way("Chakra, one step", lambda p: export_to(trace, "chakra", {}, p), chakra.check, executions))
    return found


def measured(trace: Trace, repeat: int) -> list[tuple[str, float, float, float]]:
    """(name, bytes of an execution-step, CPU s to write, CPU s to read) of each way."""
    found = ways(trace)
    wrote: list[list[float]] = [[] for _ in found]
    read: list[list[float]] = [[] for _ in found]
    sizes = [0] * len(found)
    for _ in range(repeat):
        for k, way in enumerate(found):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace"
                begin = time.process_time()
                way.write(path)
                wrote[k].append(time.process_time() - begin)
                sizes[k] = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file() and p.name != "export.json")
                begin = time.process_time()
                way.read(path)
                read[k].append(time.process_time() - begin)
                shutil.rmtree(path, ignore_errors=True)
    return [(way.name, sizes[k] / way.rows, min(wrote[k]), min(read[k])) for k, way in enumerate(found)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print("| trace | execution-steps | format | bytes of one | write, CPU time | read, CPU time |\n|:---|---:|:---|---:|---:|---:|")
    for file in arguments.traces:
        trace = load(file)
        for name, size, wrote, read in measured(trace, arguments.repeat):
            rows = f"{len(trace.step_times):,}"
            print(f"| {file.stem} | {rows} | {name} | {size:.1f} | {1e3 * wrote:.1f} ms | {1e3 * read:.1f} ms |", flush=True)


if __name__ == "__main__":
    main()
