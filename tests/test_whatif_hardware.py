"""Do the hardware models give what the formulas give by hand, and what a walk through the schedule gives?"""

from __future__ import annotations

import numpy as np
import pytest

from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.whatif.hardware import roofline_ns, systolic_cycles


def test_roofline_by_hand() -> None:
    """At 2 TFLOP/s and 100 GB/s: 4 GFLOP take 2 ms; 1 MB takes 10 us; nothing takes the overhead."""
    times = roofline_ns([4e9, 4e6, 0], [1e6, 1e6, 0], 2e12, 100e9, overhead_ns=500)
    assert times.tolist() == pytest.approx([2_000_500, 10_500, 500])


def test_roofline_has_its_ridge_where_compute_and_memory_take_the_same() -> None:
    """Peak 8 FLOP/ns, bandwidth 2 B/ns: ridge at 4 FLOP/B."""
    assert roofline_ns([399, 400, 401], [100, 100, 100], 8e9, 2e9).tolist() == pytest.approx([50, 50, 50.125])


@pytest.mark.parametrize(
    ("peak", "bandwidth", "overhead", "message"),
    [
        (0, 1, 0, "a peak of 0"),
        (1, -1, 0, "a bandwidth of -1"),
        (1, 1, -1, "overhead of -1"),
        (np.nan, 1, 0, "a peak of nan"),
        (1, 1, np.nan, "overhead of nan"),
    ],
)
def test_roofline_refuses_what_is_no_hardware(peak: float, bandwidth: float, overhead: float, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        roofline_ns(1, 1, peak, bandwidth, overhead)


@pytest.mark.parametrize(
    ("dataflow", "cycles"),
    [
        ("os", 3 * 2 * (5 + 4 + 8 - 2) - 1),  # ceil(10 / 4) ceil(12 / 8) tiles; K = 5 streamed
        ("ws", 2 * 2 * (10 + 2 * 4 + 8 - 2) - 1),  # ceil(5 / 4) ceil(12 / 8) tiles; M = 10 streamed
        ("is", 2 * 2 * (12 + 2 * 4 + 8 - 2) - 1),  # ceil(5 / 4) ceil(10 / 8) tiles; N = 12 streamed
    ],
)
def test_systolic_array_by_hand(dataflow: str, cycles: int) -> None:
    """M = 10, N = 12, K = 5 on 4 rows and 8 columns."""
    assert systolic_cycles(10, 12, 5, 4, 8, dataflow).item() == cycles


def walked_output_stationary_cycles(m: int, n: int, k: int, rows: int, columns: int) -> int:
    """Cycles of one full tile after another: the operands of processing element (r, c) arrive skewed by r + c, one pair a cycle."""
    cycles = 0
    for _ in range(0, m, rows):
        for _ in range(0, n, columns):
            last = max(r + c + step for r in range(rows) for c in range(columns) for step in range(k))
            cycles += last + 1
    return cycles - 1  # numbered from 0


def test_output_stationary_equals_a_walk_through_the_array() -> None:
    numbers = np.random.default_rng(0)
    for m, n, k, rows, columns in numbers.integers(1, 12, (40, 5)).tolist():
        assert systolic_cycles(m, n, k, rows, columns) == walked_output_stationary_cycles(m, n, k, rows, columns)


def test_systolic_array_takes_whole_arrays_of_gemms() -> None:
    m, n, k = np.array([10, 1]), np.array([12, 1]), np.array([5, 1])
    assert systolic_cycles(m, n, k, 4, 8).tolist() == [89, 10]  # 6 x 15 - 1 and 1 x 11 - 1


def test_systolic_array_refuses_what_is_none() -> None:
    with pytest.raises(UnknownNameError, match="no dataflow is called 'oss'; did you mean 'os'"):
        systolic_cycles(1, 1, 1, 1, 1, "oss")
    for extents in ((0, 1, 1, 1, 1), (1, 1, 1, 0, 1), (1, 1, 1, 1, -2)):
        with pytest.raises(ScenarioError, match="an extent below 1"):
            systolic_cycles(*extents)
