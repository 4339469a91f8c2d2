"""Capture a workload, have SCALE-Sim simulate what it multiplies at 1 GHz, and see what the whole step gains by it.

python examples/scale_sim_closes_the_loop.py vgg ~/.venvs/simulators/scalesim/bin/python

The second argument is a Python that has the package scalesim: `bash tests/make_simulators.sh scalesim` makes one.
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import fathom_trace
from fathom_trace.exporting import export, read_results
from fathom_trace.whatif import from_results


def main(workload: str, python: str) -> None:
    """Capture, export, simulate, bring the cycles back, project."""
    with tempfile.TemporaryDirectory() as temporary:
        file, folder = Path(temporary, "trace.h5"), Path(temporary, "export")
        capture = [sys.executable, "-m", "fathom_trace", "capture", workload, "--preset", "tiny", "-o", str(file)]
        subprocess.run(capture, check=True)
        trace = fathom_trace.load(file)
        report, _ = export(trace, "scale_sim", folder, {"unique": "true"})
        for command in (note[note.index("python -c") :] for note in report.notes if "python -c" in note):
            subprocess.run([python, *shlex.split(command)[1:]], cwd=folder, check=True)
        times = read_results(folder, folder / "results", clock_hz=1e9)
    projection = fathom_trace.project(trace, from_results(trace, times, "SCALE-Sim at 1 GHz"))
    print(f"{len(report.layers)} layers simulated for {len(times)} executions")
    print(f"the whole step gets {projection.speedup:.2f} times faster (by Amdahl {projection.amdahl.speedup:.2f})")
    print(f"{projection.untouched_share:.1%} of the op time the accelerator never touched")


if __name__ == "__main__":
    main(*sys.argv[1:])
