"""Is a projection's trace a true trace with the times of the replay, which every exporter and command takes?"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.checks import check
from fathom_trace.errors import ScenarioError
from fathom_trace.exporter import write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.memory import memory
from fathom_trace.profile import profile
from fathom_trace.store import load, save
from fathom_trace.trace import Trace
from fathom_trace.whatif import Settings, parse_scenario, project
from fathom_trace.whatif.projected import digest
from fathom_trace.whatif.replay import replay_workers
from fathom_trace.whatif.scenario import Context
from tests.recordings import random_trace
from tests.small import diamond, loop
from tests.test_commands import complaint, output
from tests.test_exporter_contract import everything
from tests.test_whatif_accelerator import ROOFLINE, sandwich


def times(trace: Trace) -> dict[str, list[int]]:
    return {key: getattr(trace.step_times, key).tolist() for key in ("scheduled", "start", "end", "done", "lane")}


def test_the_first_line_of_info_says_that_times_are_projected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, trace in (("measured.h5", diamond()), ("projected.h5", project(diamond(), parse_scenario(["OpB=5"])).to_trace())):
        save(trace, tmp_path / name)
        assert ("diamond, projected" in output(capsys, "info", str(tmp_path / name)).splitlines()[0]) is (name == "projected.h5")


def test_a_projection_longer_than_a_trace_can_hold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1e10 s are 1e19 ns, and 64 bits hold 9.2e18: the projection is told, but is no trace."""
    save(diamond(), tmp_path / "a.h5")
    words = ("whatif", str(tmp_path / "a.h5"), "--speedup", "OpB=1e10s")
    output(capsys, *words)
    assert "a trace holds times up to 1e+18 ns" in complaint(capsys, *words, "-o", str(tmp_path / "b.h5"))
    assert not (tmp_path / "b.h5").exists()


def test_the_diamond_with_b_five_times_faster() -> None:
    """A 0-10, then B 10-20 beside C 10-40, then D 40-50 us, on two workers."""
    made = project(diamond(), parse_scenario(["OpB=5"])).to_trace()
    found = times(made)
    assert found["scheduled"] == [0, 10_000, 10_000, 40_000]
    assert found["start"] == [0, 10_000, 10_000, 40_000]
    assert found["done"] == [10_000, 20_000, 40_000, 50_000]
    assert sorted(found["lane"][1:3]) == [0, 1]
    assert (len(made.steps), made.steps.span_ns[0], made.steps.client_wall_ns[0]) == (1, 50_000, 50_000)
    assert check(made).problems == []


def test_it_says_that_it_is_projected_and_from_what() -> None:
    trace = diamond()
    made = project(trace, parse_scenario(["OpB=5"]), Settings(workers=1, priority="critical-path")).to_trace()
    said = made.provenance["projected"]
    assert (said["scenario"], said["workers"], said["priority"], said["structure"]) == ("OpB=5", 1, "critical-path", 0)
    assert (said["measured_span_ns"], said["before_ns"]) == (70_000, 100_000)
    assert said["of"] == digest(trace) != digest(made)
    assert (made.provenance["workload"], made.provenance["inter_threads"]) == ("diamond", 1)
    assert "projected" not in trace.provenance
    assert (project(trace, parse_scenario([])).title, project(made, parse_scenario([])).title) == ("diamond", "diamond, projected")


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("flaws", [{}, {"invalid": 0.2, "early": 0.3}])
def test_random_traces_stay_true_and_project_to_the_same_again(workers: int, flaws: dict[str, float]) -> None:
    for seed in range(10):
        trace = random_trace(random.Random(seed), 60, 3, steps=3, inter_threads=3, **flaws)
        projection = project(trace, parse_scenario(["Op1=2.5", "Op3=7ns", "Op4=remove"]), Settings(workers=workers))
        made = projection.to_trace()
        found = check(made)
        assert (found.causality_violations, found.readiness_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0, 0)
        assert found.complete
        schedule = projection.schedule
        assert np.all(np.abs(made.step_times.start - schedule.start_ns) <= 0.5)
        assert np.all(np.abs(made.step_times.done - schedule.done_ns) <= 0.5)
        assert made.step_times.valid.tolist() == (projection.recording.timed | projection.times.changed).tolist()
        again = project(made, parse_scenario([]))
        assert again.workers == workers
        assert again.baseline.lanes_ns == made.steps.span_ns[0]
        if not flaws:
            assert abs(made.steps.span_ns[0] - projection.makespan_ns) <= 0.5


def test_copies_of_an_accelerator_are_in_the_wait(tmp_path: Path) -> None:
    """The second product is scheduled when its operands are there, and starts after the copies of their 480 and 144 bytes."""
    (tmp_path / "a.yaml").write_text(ROOFLINE)
    projection = project(sandwich(), parse_scenario(["hardware:a.yaml"], Context(tmp_path)))
    made = projection.to_trace()
    assert check(made).problems == []
    last = len(made.executions) - 1
    relu, weights = (int(made.step_times.end[made.tensors.execution[t]]) for t in made.inputs(last))
    assert made.step_times.scheduled[last] == max(relu, weights)
    assert made.step_times.start[last] >= max(relu + 580, weights + 244)
    assert made.steps.span_ns[0] == pytest.approx(projection.makespan_ns, abs=1)
    assert (made.provenance["projected"]["transfers"], made.provenance["projected"]["transfers_ns"]) == (5, 2044)


def test_a_copy_for_the_next_step_is_in_the_wall_time(tmp_path: Path) -> None:
    """A variable of 20 bytes is read at 0-1 us and written there by what is covered, until 1 + 1.02 us; its copy takes 20 us more."""
    builder = TraceBuilder()
    variable = builder.variable("w", "float32", [5])
    read = builder.node("read", "ReadVariableOp", attributes={"dtype": "float32"}, reads=[variable])
    write = builder.node("write", "AssignVariableOp", inputs=[(read, 0)], attributes={"dtype": "float32"}, writes=[variable])
    value = builder.execution(read, outputs=[("float32", [5])])
    builder.execution(write, inputs=[builder.tensor(value)])
    builder.step(builder.end_structure(), start=[0, 1000], done=[1000, 2000])
    text = 'covers: ["op:AssignVariableOp"]\npeak: 1 TFLOP/s\nbandwidth: 1 GB/s\noverhead: 1us\nlink: {bandwidth: 1 MB/s}\n'
    (tmp_path / "a.yaml").write_text(text)
    projection = project(builder.build({"inter_threads": 1}), parse_scenario(["hardware:a.yaml"], Context(tmp_path)))
    made = projection.to_trace()
    transfers = projection.times.transfer_ns
    assert transfers == 40_000  # there for the assignment, and back for the next step
    assert made.steps.client_wall_ns[0] == round(projection.makespan_ns)
    assert made.steps.span_ns[0] == pytest.approx(projection.makespan_ns - 20_000, abs=1)
    assert check(made).problems == []


def test_another_structure_keeps_its_own_executions() -> None:
    made = project(loop(), parse_scenario(["MatMul=inf"]), Settings(structure=1)).to_trace()
    assert made.traced_steps == (0,)
    assert made.main_structure == 1
    assert made.durations(0)[[made.node_ops[n] == "MatMul" for n in made.executions.node[made.structure_rows(1)]]].tolist() == [0]
    assert check(made).problems == []


def with_memory() -> Trace:
    """A (0-10 us) allocates 100 bytes at 2 us, which are released at 25 us, in the midst of B (10-30); B 200 at 12, never released."""
    builder = TraceBuilder()
    a = builder.execution(builder.node("a", "A"), outputs=[("float32", [25])])
    b = builder.execution(builder.node("b", "B", inputs=[(0, 0)]), inputs=[builder.tensor(a)], outputs=[("float32", [50])])
    step = builder.step(builder.end_structure(), start=[0, 10_000], done=[10_000, 30_000])
    for execution, size, time in ((a, 100, 2_000), (b, 200, 12_000), (a, -100, 25_000)):
        builder.add("allocations", step=step, execution=execution, size_bytes=size, time=time, buffer=-1)
    return builder.build({"inter_threads": 1})


def test_allocations_move_with_what_runs_around_them() -> None:
    """B ten times faster: 10 to 12 us. 12 us, a tenth into it, becomes 10.2, and 25 us, three quarters, 11.5."""
    made = project(with_memory(), parse_scenario(["B=10"])).to_trace()
    assert made.allocations.time.tolist() == [2_000, 10_200, 11_500]
    found = memory(made)
    assert (found.peak_bytes, found.peak_ns, found.final_bytes) == (300, 10_200, 200)


def test_spans_of_devices_are_left_out() -> None:
    builder = TraceBuilder()
    builder.execution(builder.node("a", "A"))
    step = builder.step(builder.end_structure(), start=[0], done=[10])
    builder.add(
        "device_spans", step=step, execution=0, span_name=0, stream=0, kind=0, start=0, end=5, size_bytes=0
    )  # fmt: skip
    made = project(builder.build(), parse_scenario(["A=2"])).to_trace()
    assert len(made.device_spans) == 0


@pytest.mark.parametrize("name", REGISTRY.names())
def test_every_exporter_takes_it(name: str, tmp_path: Path) -> None:
    exporter: Any = REGISTRY.load(name)
    made = project(everything(), parse_scenario(["kind:conv=10", "MaxPool=remove"])).to_trace()
    report = exporter.write(made, tmp_path, exporter.Options())
    write_report(tmp_path, report)
    assert exporter.check(tmp_path).problems == ()


def test_every_command_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save(everything(), "step.h5")
    out = output(capsys, "whatif", "step.h5", "--speedup", "kind:conv=10", "-o", "projected.h5")
    assert out.endswith("projected step: projected.h5\n")
    made = load("projected.h5")
    assert made.equals(project(load("step.h5"), parse_scenario(["kind:conv=10"])).to_trace())
    before, after = profile(load("step.h5"), by="kind"), profile(made, by="kind")
    time = {row.key: row.time_ns for row in after.rows}["conv"]
    assert time == pytest.approx({row.key: row.time_ns for row in before.rows}["conv"] / 10, abs=2)
    assert json.loads(output(capsys, "info", "projected.h5", "--json"))["provenance"]["projected"]["scenario"] == "kind:conv=10"
    assert json.loads(output(capsys, "ops", "projected.h5", "--by", "kind", "--json"))["rows"]
    assert output(capsys, "convert", "projected.h5", "projected.pb")
    assert complaint(capsys, "whatif", "step.h5", "--speedup", "kind:conv=10", "-o", "projected.h5").startswith("projected.h5 exists")
    assert "suffix" in complaint(capsys, "whatif", "step.h5", "-o", "projected.txt")


def test_more_workers_than_a_trace_can_number_are_refused() -> None:
    projection = project(diamond(), parse_scenario([]))
    schedule = replay_workers(projection.recording, 2)
    projection.__dict__["schedule"] = replace(schedule, worker=schedule.worker + 40_000)
    with pytest.raises(ScenarioError, match="workers at once"):
        projection.to_trace()
