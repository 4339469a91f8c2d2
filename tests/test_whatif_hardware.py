"""Do the hardware models give what the formulas give by hand, and what a walk through the schedule gives?"""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fathom_trace.cli import run
from fathom_trace.errors import ScenarioError, UnknownNameError
from fathom_trace.store import save
from fathom_trace.trace import Trace
from fathom_trace.whatif.hardware import roofline_ns, systolic_cycles
from tests.program import Program
from tests.scale_sim_files import export, simulate


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


# --- the real simulator -------------------------------------------------------------------------------------------------------


def thirty_layers(chance: random.Random) -> Trace:
    """15 random products and 15 random convolutions of one image, H != W and R != S, each of a few hundred cycles."""
    program = Program()
    for k in range(15):
        m, n, depth = (chance.randint(1, 12) for _ in range(3))
        program.product(f"product{k}", [m, depth], [depth, n], [m, n])
    for k in range(15):
        kernel = chance.sample(range(1, 4), 2)
        stride, channels, filters = chance.randint(1, 2), chance.randint(1, 3), chance.randint(1, 6)
        output = chance.sample(range(1, 5), 2)
        image = [(o - 1) * stride + size for o, size in zip(output, kernel, strict=True)]
        program.convolution(
            f"conv{k}", [1, *image, channels], [*kernel, channels, filters], [1, *output, filters], strides=[1, stride, stride, 1]
        )  # fmt: skip
    return program.trace()


@pytest.mark.simulator
@pytest.mark.parametrize(("dataflow", "rows", "columns"), [("os", 3, 5), ("ws", 5, 2), ("is", 4, 3)])
def test_thirty_random_layers_take_the_cycles_of_scale_sim(tmp_path: Path, dataflow: str, rows: int, columns: int) -> None:
    """SCALE-Sim's `Total Cycles`, layer by layer, are the closed form's of [outputs x taps] x [taps x filters]."""
    trace = thirty_layers(random.Random(dataflow))
    report = export(trace, tmp_path, dataflow=dataflow, array_rows=str(rows), array_columns=str(columns))
    cycles = simulate(report, tmp_path)
    compared = 0
    for layer in report.layers:
        first, last = layer.facts["layer_ids"]
        simulated = cycles[layer.place.partition(".")[0]][first : last + 1]
        inputs = [trace.shapes[int(trace.tensors.shape[t])] for t in trace.inputs(layer.executions[0])]
        result = trace.output_shape(layer.executions[0]) or ()
        n = result[-1]
        m, k = int(np.prod(result[:-1])), int(np.prod(inputs[1][:-1]))
        assert m * n * k == layer.macs
        assert simulated == [systolic_cycles(m, n, k, rows, columns, dataflow).item()]
        compared += 1
    assert compared == 30


@pytest.mark.simulator
def test_a_report_of_scale_sim_gives_the_speedup_of_the_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A convolution of 90 us, a pool of 30 us and a product of 60 us: what SCALE-Sim says at 1 MHz, and the pool as measured."""
    program = Program()
    program.convolution("conv", [1, 6, 5, 3], [3, 2, 3, 4], [1, 4, 4, 4], ns=90_000)
    program.op("pool", "MaxPool", [], [1, 2, 2, 4], ns=30_000)
    program.product("dense", [1, 16], [16, 10], [1, 10], ns=60_000)
    trace = program.trace()
    monkeypatch.chdir(tmp_path)
    save(trace, "step.h5")
    assert run(["export", "step.h5", "scale-sim", "--set", "array_rows=4", "--set", "array_columns=4", "--json"]) == 0
    exported = json.loads(capsys.readouterr().out)
    folder = tmp_path / "step-scale_sim"
    cycles = simulate(SimpleNamespace(notes=exported["report"]["notes"]), folder)
    simulated_us = sum(map(sum, cycles.values()))
    assert run(["whatif", "step.h5", "--from", folder.name, "--clock", "1MHz", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = float(trace.steps.span_ns[0])
    others = whole - 90_000 - 60_000
    assert found["makespan_ns"] == pytest.approx(others + 1000 * simulated_us)
    assert found["speedup"] == pytest.approx(whole / (others + 1000 * simulated_us))
    assert found["untouched_share"] == pytest.approx(others / whole)
    assert found["selected"][0]["executions"] == 2
    report = next(folder.glob("results/*_gemm/COMPUTE_REPORT.csv"))
    assert run(["whatif", "step.h5", "--from", "scale_sim", str(report), "--clock", "1MHz", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["makespan_ns"] == pytest.approx(whole - 60_000 + 1000 * sum(cycles[report.parent.name]))
    for words, message in (
        (["scale_sim", "step.h5"], "step.h5 lies in no exported folder; give that with --from DIR"),
        (["chakra", str(report)], "is an export of scale_sim, not of chakra"),
        (["scale_simm", str(report)], "did you mean 'scale_sim'?"),
        (["scale_sim", str(report), "x"], "give the trace before it"),
    ):
        assert run(["whatif", "step.h5", "--from", *words]) == 1
        assert message in capsys.readouterr().err
