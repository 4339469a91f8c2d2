"""Do the benchmarks measure what they say: larger traces that are true ones, and a file that hides no failure?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small import loop
from trace_files import with_jitter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import __main__ as runner  # noqa: E402
from benchmarks.formats import columns_of, measured  # noqa: E402
from benchmarks.large import bootstrapped  # noqa: E402
from benchmarks.rates import row  # noqa: E402
from fathom_trace.checks import check  # noqa: E402

TIMES = ("scheduled", "start", "end", "done")


def test_more_steps_are_steps_of_the_same_structure() -> None:
    """30 executions and 4 steps make 120 rows, so at least 500 take 5 rounds: 20 steps, 600 rows."""
    trace = with_jitter(30, 4)
    found = bootstrapped(trace, 500, is_tiled=False)
    assert (len(found.traced_steps), len(found.step_times), len(found.executions)) == (20, 600, 30)
    assert found.executions.equals(trace.executions)
    assert check(found).is_sound
    assert int(found.steps.recorded.sum()) == 600


def test_tiled_executions_are_one_larger_structure_of_separate_rounds() -> None:
    """Five rounds of 30 executions; round k depends on what round 0 does, 30 k further on."""
    trace = with_jitter(30, 4)
    found = bootstrapped(trace, 500, is_tiled=True)
    assert (len(found.traced_steps), len(found.step_times), len(found.executions)) == (4, 600, 150)
    assert check(found).is_sound
    depends, first = found.dependencies(0), trace.dependencies(0)
    assert [depends.of(30 * k + i).tolist() for k in range(5) for i in range(30)] == [
        [p + 30 * k for p in first.of(i).tolist()] for k in range(5) for i in range(30)
    ]
    assert bootstrapped(loop(), 50, is_tiled=True).tensors.execution.max() > loop().tensors.execution.max()


def test_bootstrapped_times_lie_between_measured_ones() -> None:
    """Each execution's run, start to end, and gap, done of the one before to start, is within what the measured steps have."""
    trace = with_jitter(30, 4)
    found = bootstrapped(trace, 5_000, is_tiled=False)

    def parts(of: object) -> tuple[np.ndarray, np.ndarray]:
        columns = {key: getattr(of.step_times, key).reshape(-1, 30) for key in TIMES}  # type: ignore[attr-defined]
        before = np.hstack([np.zeros((len(columns["done"]), 1), np.int64), columns["done"][:, :-1]])
        return columns["end"] - columns["start"], columns["start"] - before

    for measured_part, made in zip(parts(trace), parts(found), strict=True):
        low, high = measured_part.min(axis=0), measured_part.max(axis=0)
        assert np.all(made >= low - 1)  # the ends of a difference are rounded apart
        assert np.all(made <= high + 1)
        assert len(np.unique(made[:, 5])) > 10


def test_every_format_is_written_and_read_and_holds_every_column() -> None:
    trace = with_jitter(30, 4)
    found = {name: (size, wrote, read) for name, size, wrote, read in measured(trace, 1)}
    assert {"HDF5", "protobuf", "raw numpy", "Chrome JSON (exporter perfetto)", "Chakra, one step"} <= found.keys()
    assert all(size > 0 for size, _, _ in found.values())
    assert found["raw numpy"][0] >= sum(values.nbytes for values in columns_of(trace).values()) / 120


def test_a_rate_counts_the_whole_step() -> None:
    cells = [cell.strip() for cell in row(with_jitter(30, 4), "table", 60).split("|")]
    assert cells[:3] == ["30", "table", "30"]
    assert cells[3].endswith(" s")


@pytest.mark.parametrize(
    ("code", "words", "went_well"),
    [
        ("print('| a |\\n|---|\\n| 1 |')", "| 1 |\n", True),
        ("print('plain words')", "```\nplain words\n```", True),
        ("import sys; print('| a |'); sys.exit('it broke')", "**Exit status 1**: it broke", False),
        ("import sys; print('no numba', file=sys.stderr); sys.exit(3)", "Not measured: no numba", True),
        ("import a_module_that_nobody_has", "Not measured: ModuleNotFoundError: No module named", True),
    ],
)
def test_the_file_says_how_each_benchmark_ended(code: str, words: str, went_well: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "command_of", lambda benchmark, traces: [sys.executable, "-c", code])
    text, found = runner.section(runner.Benchmark("x", "A title"), [])
    assert text.startswith("## A title\n")
    assert words in text
    assert found is went_well


def test_every_benchmark_of_the_runner_exists() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert listed == [b.name for b in runner.BENCHMARKS]
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in listed)
