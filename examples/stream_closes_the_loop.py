"""Have Stream map what a step multiplies onto its TPU-like accelerator of four cores at 1 GHz, and see what the whole step gains by it.

python examples/stream_closes_the_loop.py vgg-training.h5 ~/.venvs/simulators/stream/bin/python

The second argument is a Python that has the packages stream-dse and six: `bash tests/make_simulators.sh stream` makes one.
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import fathom_trace
from fathom_trace.exporting import export, read_results
from fathom_trace.whatif import from_results

SETTINGS = {"unique": "true", "models": "one_output", "input_gradient": "product", "weights": "zeros"}


def main(file: str, python: str) -> None:
    """Export, map, bring the latencies back, project."""
    trace = fathom_trace.load(file)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "export")
        report, _ = export(trace, "onnx", folder, SETTINGS)
        (command,) = (note.partition(": ")[2] for note in report.notes if note.startswith("run Stream"))
        subprocess.run([python, *shlex.split(command)[1:]], cwd=folder, check=True, capture_output=True)
        times = read_results(folder, folder / "results", clock_hz=1e9)
    projection = fathom_trace.project(trace, from_results(trace, times, "Stream's tpu_like_quad_core at 1 GHz"))
    print(f"{len(report.layers)} layers mapped for {len(times)} executions")
    print(f"the whole step gets {projection.speedup:.2f} times faster (by Amdahl {projection.amdahl.speedup:.2f})")
    print(f"{projection.untouched_share:.1%} of the op time the accelerator never touched")


if __name__ == "__main__":
    main(*sys.argv[1:])
