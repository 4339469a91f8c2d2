"""Are the dependencies of a trace the true ones? Each program's own trace, run again in numpy, must give what TensorFlow returned.

208 generated programs (8 families x 26 seeds), two traced steps each with inputs of their own, every second program on two workers.
Along the trace's edges, in the stored order and in the order that its dependencies allow and that is most unlike it, the re-execution
gives the fetched outputs and the final variables of the step. Then edges are made wrong one by one: that must show.

Not in the trace and therefore given: what was fed, the variables before the step, constants of more than 1 KiB or of floats (a side
file, by digest), and what random ops drew. Contents of lists and optionals follow from dataflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace.capture import Plan, StepValues
from fathom_trace.checks import check
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")

from generate_programs import FAMILIES, generate  # noqa: E402
from mutate_edges import Mutator, Tally, wrong_structure  # noqa: E402
from reexecute import Reexecution  # noqa: E402

from fathom_trace.capture.lift import KnownVariable  # noqa: E402
from fathom_trace.capture.run import Subject, run_subject  # noqa: E402

SEEDS = 26
MUTATIONS_OF_EACH_KIND = 6
"""In every step, of each kind that lies in one step, as far as there are so many."""

LOOP_OPS = "Enter Exit Identity Less LoopCond Merge NextIteration NoOp Switch"
LIST_OPS = "TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem TensorListStack"
STACK_OPS = "EmptyTensorList TensorListElementShape TensorListPopBack TensorListPushBack"
OPTIONAL_OPS = "OptionalFromValue OptionalGetValue OptionalNone"
EXECUTED = {
    "branches": "AddV2 Cast Const Floor Greater Identity Merge Mean Mul NoOp Rsqrt Sin StridedSlice Sub Sum Switch _Arg _Retval _SwitchN",
    "loops": f"{LOOP_OPS} Abs AddN BiasAdd Conv2D Cumsum Einsum Elu Erf LogSoftmax LogicalAnd MatMul Max Pad Selu Sigmoid Softplus Tanh",
    "nested": f"{LOOP_OPS} ConcatV2 FloorMod GatherV2 Maximum Minimum OneHot Pack Prod RealDiv ReverseV2 Roll Softmax Split Tile TopKV2",
    "gradients": f"{LOOP_OPS} {STACK_OPS} {LIST_OPS} {OPTIONAL_OPS} AddN Cos MatMul Neg Pad Reshape ResourceApplyGradientDescent"
    " ResourceApplyMomentum RsqrtGrad SelectV2 Slice StridedSliceGrad TanhGrad Transpose ZerosLike",
    "variables": f"{LOOP_OPS} AssignAddVariableOp AssignSubVariableOp AssignVariableOp ReadVariableOp ResourceGather ResourceScatterAdd"
    " VarHandleOp _SwitchN",
    "calls": f"{LOOP_OPS} {LIST_OPS} GreaterEqual Softplus TensorListConcatV2 TensorListGather TensorListScatterIntoExistingList",
    "random": f"{LOOP_OPS} RandomStandardNormal RandomUniform RandomUniformInt TensorListReserve TensorListSetItem TensorListStack",
    "mixed": f"{LOOP_OPS} {LIST_OPS} {OPTIONAL_OPS} ReadVariableOp",
}
"""Op types that the programs of a family execute, at least."""


class Family:
    """The programs of a family: captured, re-executed, and with wrong edges; what came of it in counts."""

    def __init__(self, name: str, folder: Path) -> None:
        self.tally = Tally()
        self.ops: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.faults: list[str] = []
        for seed in range(SEEDS):
            self._program(name, seed, folder)

    def _program(self, family: str, seed: int, folder: Path) -> None:
        generated = generate(family, seed)
        side_file = folder / f"{family}-{seed}.npz"
        np.savez(side_file, **generated.constants())
        seen: list[StepValues] = []
        trace = captured(generated, seen.append, inter_threads=1 + seed % 2)
        with np.load(side_file) as held:
            constants = dict(held)
        runs = [self._step(f"{family} {seed}", Reexecution(trace, values, constants), seed) for values in seen]
        self.found["programs"] += 1
        self.found["programs on two workers at once"] += int(trace.step_times.lane.max() > 0)
        if len(trace.structures) > 1:
            self.found["programs whose steps differ in structure"] += 1
            wrong_structure(self.tally, runs[0], runs[1])
            wrong_structure(self.tally, runs[1], runs[0])

    def _step(self, name: str, run: Reexecution, seed: int) -> Reexecution:
        mutator = Mutator(run, np.random.default_rng(seed))
        for what, order in (("stored order", None), ("latest first", run.latest_first())):
            difference = run.difference(run.run(order))
            if difference:
                self.faults.append(f"{name} step {run.seen.step}, {what}: {difference}")
        self.faults += [f"{name}: nothing orders {pair}" for pair in run.unordered_accesses()]
        self.ops.update(job.op for job in run.jobs)
        self.found["executions"] += len(run.jobs)
        self.found["random executions taken as inputs"] += run.random_count
        self.found.update(features(run))
        before = len(self.tally.unnoticed)
        mutator.run(self.tally, MUTATIONS_OF_EACH_KIND)
        self.tally.unnoticed[before:] = [f"{name}: {what}" for what in self.tally.unnoticed[before:]]
        return run


def captured(generated: Any, observe: Callable[[StepValues], None], inter_threads: int) -> Trace:
    """Two traced steps of a generated program, and what the trace says of itself."""
    names = [p.op.name for p in generated.concrete.graph.inputs[: -len(generated.concrete.captured_inputs) or None]]
    known = [KnownVariable(v, bool(v.trainable)) for v in generated.variables]
    subject = Subject(generated.concrete, names, generated.batches(), known, {}, False, {})
    plan = Plan(steps=2, warmup=0, inter_threads=inter_threads, times_parallel_iterations=False)
    trace = run_subject(subject, plan, 0, lambda what, done, of: None, observe)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)
    return trace


def features(run: Reexecution) -> Counter[str]:
    """How often a step has what the families are about."""
    trace = run.trace
    found: Counter[str] = Counter()
    trips: dict[int, Counter[tuple[int, int]]] = {}
    for path in {int(trace.executions.path[job.execution]) for job in run.jobs} - {0}:
        frame, instance = int(trace.paths.frame[path]), int(trace.paths.instance[path])
        trips.setdefault(frame, Counter())[int(trace.paths.parent[path]), instance] += 1
    found["loops entered"] = sum(len(t) for t in trips.values())
    found["loops whose trip count differs between entries"] = sum(len(set(t.values())) > 1 for t in trips.values())
    sides: dict[tuple[int, int], set[int]] = {}
    cost: Counter[int] = Counter()
    for job in run.jobs:
        if job.op in ("Switch", "_SwitchN"):
            cost[job.node] += 1
            sides.setdefault((job.node, len(trace.iteration(int(trace.executions.path[job.execution])))), set()).add(job.ports[0])
    loop_switches = {job.node for job in run.jobs if job.op == "Switch" and run.jobs[run.producer[job.inputs[1]]].op == "LoopCond"}
    inside = [taken for (node, depth), taken in sides.items() if depth and node not in loop_switches]
    found["branches inside loops"] = len(inside)
    found["branches that go both ways in one step"] = sum(len(taken) > 1 for taken in inside)
    accesses = [run.accesses[k] for k in sorted(run.accesses)]
    for variable in range(len(run.names)):
        kinds = ["write" if writes else "read" for touched, _, writes in accesses if variable in touched]
        found["variables read, written and read"] += int("read write read" in " ".join(kinds))
    return found


LEAST: dict[str, dict[str, int]] = {
    "branches": {"programs whose steps differ in structure": SEEDS // 2},
    "loops": {"branches that go both ways in one step": SEEDS // 2, "programs whose steps differ in structure": SEEDS // 2},
    "nested": {"loops whose trip count differs between entries": SEEDS // 2, "branches that go both ways in one step": SEEDS // 4},
    "gradients": {
        "branches that go both ways in one step": SEEDS // 4,
        "loops whose trip count differs between entries": 2,
        "programs whose steps differ in structure": SEEDS // 2,
    },
    "variables": {"variables read, written and read": SEEDS},
    "calls": {"loops entered": SEEDS},
    "random": {"random executions taken as inputs": SEEDS},
    "mixed": {"programs whose steps differ in structure": SEEDS // 2},
}
"""What must have been met in a family for its result to mean something."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_run_again_in_numpy_gives_what_tensorflow_returned(family: str, tmp_path: Path) -> None:
    done = Family(family, tmp_path)
    trials, noticed = done.tally.trials(), done.tally.noticed()
    print(f"{family}: {dict(done.found)}")
    print(f"{family}: {len(done.ops)} op types: {' '.join(sorted(done.ops))}")
    print(f"{family}: {noticed} of {trials} wrong edges noticed; {dict(sorted(done.tally.counts.items()))}")
    print("\n".join(done.tally.unnoticed))
    assert not done.faults, "\n".join(done.faults[:20])
    assert not set(EXECUTED[family].split()) - set(done.ops)
    assert {what: done.found[what] for what, least in LEAST[family].items() if done.found[what] < least} == {}
    assert trials >= SEEDS * 8
    compared = sum(n for (_, outcome), n in done.tally.counts.items() if outcome == "ended in a comparison")
    assert compared <= 0.2 * trials, (
        "most of what is left out are counters of map_fn and scan, of which TensorFlow compares two in turn"
    )
    assert noticed >= 0.99 * trials, "\n".join(done.tally.unnoticed)


def test_the_families_are_at_least_200_programs_and_40_op_types() -> None:
    assert len(FAMILIES) * SEEDS >= 200
    assert len({op for ops in EXECUTED.values() for op in ops.split()}) >= 40
    assert set(EXECUTED) == set(LEAST) == set(FAMILIES)
