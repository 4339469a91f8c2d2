"""The benchmarks that finish in minutes, one after the other in one run, as one Markdown file.

    python -m benchmarks [TRACE...] [-o benchmarks.md] [--only NAME ...] [--list]

TRACEs are what storage, exporters and critical paths are measured on; without any, tiny captures of vgg, seq2seq and speech are made first.
Each benchmark runs in a process of its own, and its table is put in the file as it is printed. One that fails, or whose libraries are not
installed, is in the file with what it said, and the exit status is 1 (a library that is missing is no failure). What takes longer is left
out: `benchmarks.large`, `benchmarks.predictions`, `benchmarks.exports`, `benchmarks.kill_points` and full-size captures.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAPTURED = ("vgg", "seq2seq", "speech")
WORKLOADS = ("alexnet", "autoenc", "deepq", "memnet", "residual", "seq2seq", "speech", "vgg")
MISSING = 3
"""Exit status of a benchmark that lacks a library."""


@dataclass(frozen=True)
class Benchmark:
    """One script: what it measures, and its arguments; `needs_traces` puts the traces first."""

    name: str
    title: str
    arguments: tuple[str, ...] = ()
    needs_traces: bool = False


BENCHMARKS = (
    Benchmark("tracing", "A traced against an untraced step", (*WORKLOADS, "--pairs", "8")),
    Benchmark("post_processing", "Post-processing of a captured step", (*CAPTURED,)),
    Benchmark("formats", "HDF5 and protobuf against other ways to hold a trace", needs_traces=True),
    Benchmark("replay", "Replays against networkx and rustworkx", ("3", "10000", "100000")),
    Benchmark("critical_path", "Critical path against HolisticTraceAnalysis and networkx"),
    Benchmark("rates", "Executions a second of each exporter", ("--limit", "60"), needs_traces=True),
    Benchmark("exporters", "Exporters against plain writers of the same", ("--repeat", "3")),
    Benchmark("startup", "Start-up of each command", ("5", "--all")),
)


def command_of(benchmark: Benchmark, traces: Sequence[Path]) -> list[str]:
    """How a benchmark is run, in the project's folder."""
    files = [str(path) for path in traces] if benchmark.needs_traces else []
    return [sys.executable, "-m", f"benchmarks.{benchmark.name}", *files, *benchmark.arguments]


def section(benchmark: Benchmark, traces: Sequence[Path]) -> tuple[str, bool]:
    """A benchmark's part of the file, and whether it went well."""
    begin = time.monotonic()
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command_of(benchmark, traces), cwd=ROOT, capture_output=True, text=True, env=environment)
    took = time.monotonic() - begin
    lines = done.stdout.strip().splitlines()
    is_table = any(line.startswith("|") for line in lines)
    text = "\n".join(lines) if is_table else "\n".join(["```", *lines, "```"]) if lines else ""
    said = done.stderr.strip().splitlines()[-1:]
    is_missing = done.returncode == MISSING or any(line.startswith("ModuleNotFoundError") for line in said)
    note = ""
    if is_missing:
        note = f"\n\nNot measured: {' '.join(said)}"
    elif done.returncode:
        note = f"\n\n**Exit status {done.returncode}**: {' '.join(said)}"
    words = " ".join([*(["TRACE..."] if benchmark.needs_traces else []), *benchmark.arguments])
    how = f"`python -m benchmarks.{benchmark.name} {words}`".replace(" `", "`")
    return f"## {benchmark.title}\n\n{how}, {took:.0f} s\n\n{text}{note}\n", is_missing or not done.returncode


def captured(folder: Path) -> list[Path]:
    """Tiny captures to measure on."""
    code = "import sys; from fathom_trace.__main__ import main; sys.exit(main())"
    made = []
    for name in CAPTURED:
        made.append(folder / f"{name}-training-tiny.h5")
        words = ["capture", name, "--mode", "training", "--preset", "tiny", "-o", str(made[-1])]
        subprocess.run(
            [sys.executable, "-c", code, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    return made


def head(traces: Sequence[Path]) -> str:
    """What the file says first: the machine and the traces."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    files = ", ".join(f"`{path.name}`" for path in traces)
    return (
        f"# Benchmarks\n\nMeasured by `python -m benchmarks` on {now}: {cores} cores, {platform.machine()}, {platform.system()}"
        f" {platform.release()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start."
        f" Compare within a table, not between runs. Traces: {files}.\n"
    )


def main() -> int:
    """Run the benchmarks; 1 when one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks.md"))
    parser.add_argument("--only", nargs="+", choices=[b.name for b in BENCHMARKS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the benchmarks and run none")
    arguments = parser.parse_args()
    chosen = [b for b in BENCHMARKS if not arguments.only or b.name in arguments.only]
    if arguments.list:
        for benchmark in chosen:
            print(f"{benchmark.name:<17}{benchmark.title}")
        return 0
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        needed = any(b.needs_traces for b in chosen)
        traces = [path.resolve() for path in arguments.traces] or (captured(Path(folder)) if needed else [])
        parts = [head(traces)]
        for benchmark in chosen:
            print(f"{benchmark.name} ...", file=sys.stderr, flush=True)
            text, went_well = section(benchmark, traces)
            is_good &= went_well
            parts.append(text)
            arguments.output.write_text("\n".join(parts), encoding="utf-8")
    print(arguments.output)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
