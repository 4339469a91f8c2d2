"""Do the compiled loops give, to the last bit, what the plain ones give? Where numba (the extra `fast`) is not installed they are
tested as the plain Python that they then are.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.whatif import compiled, replay
from fathom_trace.whatif.recording import Recording
from fathom_trace.whatif.replay import PRIORITIES, makespans_ns
from tests.recordings import random_recording, recording_of
from tests.without_tensorflow import run_without_tensorflow


def both(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> tuple[list[str], list[str]]:
    """Makespans by compiled and by plain loops, as the bits of their float64."""
    results = []
    monkeypatch.setattr(replay, "compiled", lambda: compiled)
    for least in (0, sys.maxsize):
        monkeypatch.setattr(replay, "COMPILED_VALUES", least)
        results.append([float(x).hex() for x in makespans_ns(*arguments)])
    return results[0], results[1]


def scenarios(recording: Recording, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Durations and gaps that are no whole numbers, some of them 0, some longer than measured."""
    numbers = np.random.default_rng(seed)
    factors = numbers.random((count, len(recording))) * numbers.choice([0.0, 1.0, 3.0], (count, len(recording)))
    return recording.duration_ns * factors, recording.gap_ns * numbers.random((count, len(recording)))


@pytest.mark.parametrize("count", [1, 5, 6, 16, 18, 40])
@pytest.mark.parametrize("shared_gaps", [False, True])
def test_longest_paths_are_equal_to_the_last_bit(count: int, shared_gaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        recording = random_recording(random.Random(seed), 200, gaps=True, tails=True)
        duration, gap = scenarios(recording, count, seed)
        fast, plain = both(monkeypatch, recording, duration, gap[0] if shared_gaps else gap)
        assert fast == plain
        assert len(set(plain)) == count


@pytest.mark.parametrize("workers", [2, 3, 8, 10**9])
@pytest.mark.parametrize("priority", PRIORITIES)
def test_list_schedules_are_equal_to_the_last_bit(workers: int, priority: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        recording = random_recording(rng, 120, gaps=seed % 2 == 0, tails=seed % 3 == 0)
        if seed % 4 == 3:
            recording = replace(recording, exclusive=np.array([rng.choice([-1, 0, 1]) for _ in range(120)]))
        fast, plain = both(monkeypatch, recording, *scenarios(recording, 5, seed), workers, priority)
        assert fast == plain


@pytest.mark.parametrize("priority", PRIORITIES)
def test_whole_times_with_many_ties_are_scheduled_alike(priority: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal times bring out the order in which ties are broken; executions without time free others at once."""
    for seed in range(30):
        recording = random_recording(random.Random(seed), 60, gaps=seed % 2 == 0, tails=True)
        duration = np.minimum(recording.duration_ns[None], 2.0)
        for workers in (2, 3):
            fast, plain = both(monkeypatch, recording, duration, None, workers, priority)
            assert fast == plain


def test_grahams_anomaly_and_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recording_of([3.0, 2, 2, 2, 4, 4, 4, 4, 9], [[], [], [], [], [3], [3], [3], [3], [0]])
    duration = np.stack([recording.duration_ns, recording.duration_ns - 1])
    assert both(monkeypatch, recording, duration, None, 3) == ([(12.0).hex(), (13.0).hex()],) * 2
    nothing = recording_of([], [])
    for workers in (None, 2):
        assert both(monkeypatch, nothing, np.zeros((3, 0)), None, workers) == ([(0.0).hex()] * 3,) * 2


def test_compiled_loops_refuse_what_the_plain_ones_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "COMPILED_VALUES", 0)
    monkeypatch.setattr(replay, "compiled", lambda: compiled)
    recording = random_recording(random.Random(1), 10)
    with pytest.raises(ScenarioError, match="cannot replay on 0 workers"):
        makespans_ns(recording, recording.duration_ns[None], workers=0)
    with pytest.raises(UnknownNameError, match="no priority is called 'captive'; did you mean 'captured'"):
        makespans_ns(recording, recording.duration_ns[None], workers=2, priority="captive")


def test_the_compiled_loops_are_taken_where_numba_is_installed() -> None:
    assert (replay.compiled() is compiled) == compiled.IS_COMPILED == hasattr(compiled.list_makespan, "py_func")


def test_small_work_does_not_import_numba() -> None:
    code = """
import sys
from dataclasses import replace
from tests.small import diamond
from fathom_trace.whatif import parse_scenario, project
assert project(diamond(), parse_scenario(["OpB=5"])).makespan_ns == 50_000
print("numba" in sys.modules, "yaml" in sys.modules)
"""
    done = run_without_tensorflow(code)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.parametrize("workers", [None, 2])
def test_without_numba_large_work_takes_the_plain_loops(workers: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = random_recording(random.Random(2), 50, gaps=True)
    duration = scenarios(recording, 3, 2)[0]
    expected = makespans_ns(recording, duration, workers=workers)
    monkeypatch.setattr(replay, "COMPILED_VALUES", 0)
    monkeypatch.setattr(replay, "compiled", lambda: None)
    assert makespans_ns(recording, duration, workers=workers).tolist() == expected.tolist()


def test_schedules_on_unlimited_workers_and_their_critical_paths_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps that a path cannot explain, executions that end together, and durations of 0."""
    monkeypatch.setattr(replay, "compiled", lambda: compiled)
    lengths = set()
    for seed in range(40):
        recording = random_recording(random.Random(seed), 1 + 5 * seed, gaps=seed % 2 == 0, tails=seed % 3 == 0)
        duration, gap = (values[0] for values in scenarios(recording, 1, seed))
        found = []
        for least in (0, sys.maxsize):
            monkeypatch.setattr(replay, "COMPILED_VALUES", least)
            schedule = replay.replay_unlimited(recording, duration, gap)
            times = [[float(x).hex() for x in values] for values in (schedule.start_ns, schedule.end_ns, schedule.done_ns)]
            found.append((times, replay.critical_path(recording, schedule, gap)))
        assert found[0] == found[1]
        lengths.add(len(found[0][1]))
    assert len(lengths) > 10
