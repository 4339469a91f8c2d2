"""Have AccelForge map what a step multiplies onto a small accelerator at 1 GHz, and see what the whole step gains by it.

python examples/accelforge_closes_the_loop.py vgg-training.h5 ~/.venvs/simulators/accelforge/bin/python

The second argument is a Python that has the package accelforge: `bash tests/make_simulators.sh accelforge` makes one.
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import fathom_trace
from fathom_trace.exporting import export, read_results
from fathom_trace.whatif import from_results


def main(file: str, python: str) -> None:
    """Export, map, bring the latencies back, project."""
    trace = fathom_trace.load(file)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "export")
        report, _ = export(trace, "accelforge", folder, {"unique": "true"})
        (command,) = (note.removeprefix("run: ") for note in report.notes if note.startswith("run: "))
        subprocess.run([python, *shlex.split(command)[1:]], cwd=folder, check=True, capture_output=True)
        times = read_results(folder, folder / "latency.csv", clock_hz=1e9)
    projection = fathom_trace.project(trace, from_results(trace, times, "AccelForge's architecture `simple` at 1 GHz"))
    print(f"{len(report.layers)} einsums mapped for {len(times)} executions")
    print(f"the whole step gets {projection.speedup:.2f} times faster (by Amdahl {projection.amdahl.speedup:.2f})")
    print(f"{projection.untouched_share:.1%} of the op time the accelerator never touched")


if __name__ == "__main__":
    main(*sys.argv[1:])
