"""How far does tracing slow a step? Traced against untraced steps of tiny workloads, interleaved in one process.

    python -m benchmarks.tracing [WORKLOAD ...] [--pairs N]

Each row is one capture: untraced and traced steps in turn, so that a drift of the machine meets both. The ratio is that of the medians
of the client's wall time; its interval is the middle 95% of 2,000 bootstrap samples over pairs. Beside it: the RunMetadata that
TensorFlow hands over for those steps, in bytes, against the size of the whole trace file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.store import save
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_ns

BOOTSTRAP_SAMPLES = 2_000


def pairs_of(trace: Trace) -> np.ndarray:
    """Wall times in ns, [pairs, 2]: untraced, then traced."""
    walls, traced = trace.steps.client_wall_ns, trace.steps.traced
    count = min(int(np.count_nonzero(traced)), int(np.count_nonzero(~traced)))
    return np.stack([walls[~traced][:count], walls[traced][:count]], axis=1).astype(float)


def ratio_with_interval(pairs: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Ratio of medians, traced over untraced, and the bounds of its 95% bootstrap interval."""
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(pairs), (BOOTSTRAP_SAMPLES, len(pairs)))
    medians = np.median(pairs[picks], axis=1)
    low, high = np.percentile(medians[:, 1] / medians[:, 0], [2.5, 97.5])
    untraced, traced = np.median(pairs, axis=0)
    return float(traced / untraced), float(low), float(high)


def row(name: str, pair_count: int) -> str:
    """One Markdown row: capture a tiny workload and measure it."""
    trace = capture_workload(CaptureRequest(name, preset="tiny", plan=Plan(steps=pair_count, warmup=3)))
    pairs = pairs_of(trace)
    ratio, low, high = ratio_with_interval(pairs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.h5"
        save(trace, file)
        stored = file.stat().st_size
    metadata = sum(trace.provenance["run_metadata_bytes"])
    untraced, traced = np.median(pairs, axis=0)
    return (
        f"| {name} | {len(pairs)} | {int(np.diff(trace.structures.execution_offsets)[0])} | {format_ns(untraced)} | {format_ns(traced)} |"
        f" {ratio:.2f} ({low:.2f} to {high:.2f}) | {format_bytes(metadata)} | {format_bytes(stored)} | {metadata / stored:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["vgg"])
    parser.add_argument("--pairs", type=int, default=20, help="interleaved pairs (at least 7)")
    arguments = parser.parse_args()
    print(
        "| workload | pairs | executions | untraced | traced | traced/untraced (95%) | RunMetadata | trace file | RunMetadata/file |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.workloads:
        print(row(name, max(arguments.pairs, 7)), flush=True)


if __name__ == "__main__":
    main()
