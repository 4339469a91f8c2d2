"""Traces of ten million execution-steps: written, read, summarised, replayed and exported, each in a process of its own.

    python -m benchmarks.large TRACE... [--rows 10000000] [--tiled] [--export NAME[:OPTION=VALUE] ...] [--only-export]
        [--folder DIR]

Each TRACE, one that `fathom-trace capture` wrote, is made larger: by further steps, or (`--tiled`) by letting each step run its executions
several times over, one round after the other, as one larger structure. Times are bootstrapped: every execution of every new step takes
its gap, wait, run and notification, together, from the same execution in two of the measured steps, drawn at random, and lies at random
between the two (so that few measured steps do not make many equal ones, which would be smaller on disk).

No process may map more than 8 GiB (RLIMIT_AS), and one runs at a time. Printed, as Markdown: what the four times take on disk, in bytes
for an execution in a step, of the captured trace and of the larger one; then CPU time, elapsed time and peak resident memory of each
process, and what an export takes on disk (it is removed then). An export is one of the median step and its own check of the files.
Exit status 1 when a process fails, or the captured times take more than 8 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import tables as t
from fathom_trace.store import load, save
from fathom_trace.store.compact import AFTER, CODES
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes

LIMIT_BYTES = 8 << 30
BOUND_BYTES = 8.0
TIMES = ("scheduled", "start", "end", "done")
COMMAND = "import sys; from fathom_trace.__main__ import main; sys.exit(main())"
"""What the installed script `fathom-trace` does."""

Int64 = NDArray[np.int64]


# --- making ------------------------------------------------------------------------------------------------------------------------


def bootstrapped(trace: Trace, rows: int, is_tiled: bool, seed: int = 0) -> Trace:
    """`trace` made larger, to `rows` execution-steps or a little above; untraced steps are as they were."""
    generator = np.random.default_rng(seed)
    have = len(trace.step_times)
    rounds = max(1, -(-rows // have))
    larger = tiled(trace, rounds) if is_tiled else trace
    traced = list(trace.traced_steps)
    new = [(s, r) for r in range(1 if is_tiled else rounds) for s in traced]
    parts: dict[str, list[NDArray[Any]]] = {key: [] for key in t.StepTimes.columns()}
    for step, _ in new:
        same = trace.steps_of(int(trace.steps.structure[step]))
        for key, values in _resampled(trace, same, rounds if is_tiled else 1, generator).items():
            parts[key].append(values)
    times = t.StepTimes(**{key: np.concatenate(values) for key, values in parts.items()})
    picked = np.concatenate([np.array([s for s, _ in new], np.int64), np.flatnonzero(~trace.steps.traced)])
    columns = {key: getattr(trace.steps, key)[picked] for key in t.Steps.columns()}
    lengths = np.array([len(range(*larger.structure_rows(int(s)).indices(1 << 62))) for s in columns["structure"] if s >= 0])
    ends = np.cumsum(lengths)
    begins = ends - lengths
    spans = np.zeros(len(picked), np.int64)
    spans[: len(new)] = [int(times.done[a:b].max() - times.scheduled[a:b].min()) for a, b in zip(begins, ends, strict=True)]
    columns["span_ns"] = spans
    columns["recorded"] = columns["produced"] = np.concatenate([lengths, np.zeros(len(picked) - len(new), np.int64)])
    return Trace(**{**larger.tables(), "steps": t.Steps(**columns), "step_times": times}, provenance=trace.provenance)  # type: ignore[arg-type]


def _resampled(trace: Trace, steps: list[int], rounds: int, generator: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The columns of `step_times` for one new step: `rounds` times the executions, each between what two of `steps` measured for it."""
    measured = {key: np.stack([getattr(trace.step_times, key)[trace.step_rows(s)] for s in steps]) for key in t.StepTimes.columns()}
    count = measured["start"].shape[1]
    one, other = generator.integers(0, len(steps), (2, rounds * count))
    column, share = np.tile(np.arange(count), rounds), generator.random(rounds * count)
    before = np.zeros_like(measured["done"])
    before[:, 1:] = measured["done"][:, :-1]
    since = {key: measured[key] - before for key in TIMES}
    drawn = {key: v[one, column] + np.rint((v[other, column] - v[one, column]) * share).astype(np.int64) for key, v in since.items()}
    begin = np.concatenate([[0], np.cumsum(drawn["done"])[:-1]])
    return {**{key: values[one, column] for key, values in measured.items()}, **{key: drawn[key] + begin for key in TIMES}}


def tiled(trace: Trace, rounds: int) -> Trace:
    """`trace` without steps, every structure's executions `rounds` times over. The rounds do not depend on each other."""
    made: dict[str, t.Table] = {}
    pieces = [_repeated(trace, trace.structure_rows(s), rounds) for s in range(len(trace.structures))]
    sizes = np.diff(trace.structures.execution_offsets) * rounds
    tensor_base = execution_base = 0
    executions: list[dict[str, NDArray[Any]]] = []
    tensors: list[dict[str, NDArray[Any]]] = []
    for ex, out in pieces:
        ex["input"] += tensor_base
        ex["control"] += execution_base
        ex["parent"][ex["parent"] >= 0] += execution_base
        out["execution"] += execution_base
        execution_base += len(ex["node"])
        tensor_base += len(out["port"])
        executions.append(ex)
        tensors.append(out)
    made["executions"] = _table(t.Executions, executions)
    made["tensors"] = _table(t.Tensors, tensors)
    made["structures"] = t.Structures(
        execution_offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), execution=np.arange(int(sizes.sum()))
    )
    for table in (t.Steps, t.StepTimes, t.DeviceSpans, t.Allocations):
        made[table.name] = table.empty()
    return Trace(**{**trace.tables(), **made}, provenance=trace.provenance)  # type: ignore[arg-type]


def _repeated(trace: Trace, rows: slice, rounds: int) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Executions and tensors of one structure, `rounds` times over, numbered from 0. Offsets are counts here."""
    ex, offsets = trace.executions, trace.tensor_offsets
    count = rows.stop - rows.start
    held = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    size = held.stop - held.start
    inputs = ex.input[ex.input_offsets[rows.start] : ex.input_offsets[rows.stop]].astype(np.int64) - held.start
    control = ex.control[ex.control_offsets[rows.start] : ex.control_offsets[rows.stop]].astype(np.int64) - rows.start
    parent = np.where(ex.parent[rows] >= 0, ex.parent[rows].astype(np.int64) - rows.start, -1)
    made = {key: np.tile(getattr(ex, key)[rows], rounds) for key in ("node", "path", "kind", "timed")}
    made |= {
        f"{k}_offsets": np.tile(np.diff(getattr(ex, f"{k}_offsets")[rows.start : rows.stop + 1]), rounds) for k in ("input", "control")
    }
    made |= {"input": _shifted(inputs, rounds, size), "control": _shifted(control, rounds, count)}
    made["parent"] = np.where(np.tile(parent, rounds) >= 0, _shifted(parent, rounds, count), -1)
    out = {key: np.tile(getattr(trace.tensors, key)[held], rounds) for key in t.Tensors.columns()}
    out["execution"] = _shifted(trace.tensors.execution[held].astype(np.int64) - rows.start, rounds, count)
    return made, out


def _shifted(values: Int64, rounds: int, step: int) -> Int64:
    return np.tile(values, rounds) + np.repeat(np.arange(rounds) * step, len(values))


def _table(table: type[t.Table], parts: list[dict[str, NDArray[Any]]]) -> t.Table:
    columns = {}
    for key, spec in table.columns().items():
        values = np.concatenate([part[key] for part in parts])
        columns[key] = np.concatenate([[0], np.cumsum(values)]).astype(np.int64) if spec.is_offsets else values
    return table(**columns)


# --- measuring ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    ok: bool
    cpu_s: float
    wall_s: float
    peak_bytes: int
    output: str


def run(command: list[str]) -> Cost:
    """Run a process that may map no more than the limit; wait for it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))

    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=output, preexec_fn=limit, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    return Cost(child.returncode == 0, used.ru_utime + used.ru_stime, time.perf_counter() - begin, used.ru_maxrss * 1024, text)


def times_bytes(path: Path) -> float:
    """Bytes that the four times, and what is stored to read them, take in a file, for an execution in a step."""
    import h5py

    with h5py.File(path, "r") as file:
        group = file["step_times"]
        held = [key for key in (*TIMES, AFTER, CODES) if key in group]
        return float(sum(group[key].id.get_storage_size() for key in held) / max(1, len(group["start"])))


def steps_of(source: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """What is done with one trace, in order: name to command."""
    large, proto = folder / f"{source.stem}.h5", folder / f"{source.stem}.pb"
    this, command = [sys.executable, "-m", "benchmarks.large"], [sys.executable, "-c", COMMAND]
    made = [str(source), "--rows", str(arguments.rows), *(["--tiled"] if arguments.tiled else [])]
    done = {
        "make and write HDF5": [*this, *made, "--make", str(large)],
        "read HDF5": [*this, str(large), "--only-read"],
        "info": [*command, "info", str(large)],
        "ops": [*command, "ops", str(large), "--top", "5"],
        "whatif: two replays": [*command, "whatif", str(large), "--speedup", "MatMul=10"],
    }
    if arguments.only_export:
        done = {name: command for name, command in done.items() if name.startswith("make")}
    for name in arguments.export:
        exporter, _, setting = name.partition(":")
        chosen = ["--set", setting] if setting else []
        done[f"export {name}"] = [*command, "export", str(large), exporter, "-o", str(exported(folder, source)), "--force", *chosen]
    if arguments.only_export:
        return done
    done["convert to protobuf"] = [*command, "convert", str(large), str(proto), "--force"]
    done["read protobuf"] = [*this, str(proto), "--only-read"]
    return done


def exported(folder: Path, source: Path) -> Path:
    """Where an export is for as long as it is measured."""
    return folder / f"{source.stem}-export"


def measure(source: Path, folder: Path, arguments: argparse.Namespace) -> bool:
    """Print the rows of one trace; false where something failed."""
    is_good = True
    for name, command in steps_of(source, folder, arguments).items():
        cost = run(command)
        is_good &= cost.ok
        note = "" if cost.ok else f" FAILED: {cost.output.strip().splitlines()[-1:]}"
        if name.startswith("make") and cost.ok:
            made = json.loads(cost.output.strip().splitlines()[-1])
            before, after = times_bytes(source), times_bytes(folder / f"{source.stem}.h5")
            is_good &= before <= BOUND_BYTES
            print(
                f"\n{source.stem}: {made['rows']:,} execution-steps ({made['executions']:,} executions, {made['steps']} traced steps),"
                f" {format_bytes(made['size_bytes'])} in memory, {format_bytes((folder / f'{source.stem}.h5').stat().st_size)} on disk;"
                f" the four times take {before:.2f} bytes as captured, {after:.2f} as bootstrapped\n"
            )
            print("| process | CPU time | elapsed | peak memory | on disk |\n|:---|---:|---:|---:|---:|")
        size = sum(p.stat().st_size for p in exported(folder, source).rglob("*") if p.is_file()) if name.startswith("export") else 0
        shutil.rmtree(exported(folder, source), ignore_errors=True)
        on_disk = format_bytes(size) if size else ""
        print(f"| {name}{note} | {cost.cpu_s:.1f} s | {cost.wall_s:.1f} s | {format_bytes(cost.peak_bytes)} | {on_disk} |", flush=True)
    return is_good


def size_of(trace: Trace) -> int:
    """Bytes of all columns of a trace."""
    return sum(int(getattr(table, key).nbytes) for table in trace.tables().values() for key in table.columns())


def make(source: Path, target: Path, rows: int, is_tiled: bool) -> None:
    """Make the larger trace and write it; prints one line of JSON."""
    trace = bootstrapped(load(source), rows, is_tiled)
    begin = time.process_time()
    save(trace, target, force=True)
    numbers = {"rows": len(trace.step_times), "executions": len(trace.executions), "steps": len(trace.traced_steps)}
    print(json.dumps({**numbers, "size_bytes": size_of(trace), "write_cpu_s": time.process_time() - begin}))


def main() -> int:
    """Measure and print; 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--tiled", action="store_true")
    parser.add_argument("--export", nargs="*", default=["table", "chakra", "perfetto", "perfetto:format=json", "graph", "xprof"])
    parser.add_argument("--only-export", action="store_true", help="make the trace and export it, nothing else")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only-read", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.traces[0], arguments.make, arguments.rows, arguments.tiled)
        return 0
    if arguments.only_read:
        load(arguments.traces[0])
        return 0
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        done = [measure(source, folder, arguments) for source in arguments.traces]
        return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
