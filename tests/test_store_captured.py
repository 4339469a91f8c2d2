"""Do the stores keep their promises on a trace that TensorFlow really made: size, losslessness, documented provenance?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fathom_trace import store
from fathom_trace import tables as t
from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.store.document import PROVENANCE_KEYS
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture


@pytest.fixture(scope="module")
def captured() -> Trace:
    """Twenty traced steps of VGG's tiny training."""
    pytest.importorskip("tensorflow")
    return capture_workload(CaptureRequest("vgg", preset="tiny", plan=Plan(steps=20, times_parallel_iterations=False)))


def with_steps(trace: Trace, number: int) -> Trace:
    """`trace` without its traced steps after the first `number`, and without records of memory, which one step alone has."""
    last = trace.traced_steps[number - 1]
    kept = [row for row in range(len(trace.steps)) if row <= last or row not in trace.traced_steps]
    steps = {key: getattr(trace.steps, key)[kept] for key in trace.steps.columns()}
    times = {key: getattr(trace.step_times, key)[: trace.step_rows(last).stop] for key in trace.step_times.columns()}
    return trace.replace(steps=t.Steps(**steps), step_times=t.StepTimes(**times), allocations=t.Allocations.empty())


def test_ten_more_steps_take_at_most_eight_bytes_an_execution(captured: Trace, tmp_path: Path) -> None:
    """For all columns that grow with the steps."""
    assert len(captured.traced_steps) == 20
    sizes = []
    for number in (10, 20):
        store.save(with_steps(captured, number), tmp_path / f"{number}.h5")
        sizes.append((tmp_path / f"{number}.h5").stat().st_size)
    assert (sizes[1] - sizes[0]) / (10 * len(captured.executions)) <= 8


def test_the_file_takes_a_fifth_of_what_tensorflow_recorded(captured: Trace, tmp_path: Path) -> None:
    store.save(captured, tmp_path / "a.h5")
    recorded = captured.provenance["run_metadata_bytes"]
    assert len(recorded) == 20
    assert (tmp_path / "a.h5").stat().st_size <= sum(recorded) / 5


def test_it_survives_h5_to_pb_to_h5(captured: Trace, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.h5", "b.pb", "c.h5")]
    store.save(captured, paths[0])
    store.convert(paths[0], paths[1])
    store.convert(paths[1], paths[2])
    assert all(store.load(path).equals(captured) for path in paths)


def test_every_key_of_its_provenance_is_documented(captured: Trace) -> None:
    assert set(captured.provenance) <= set(PROVENANCE_KEYS)
