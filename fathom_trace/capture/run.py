"""The capture itself: build, lift, warm up, run traced and untraced steps in turn, assemble."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

from fathom_trace import tables as t
from fathom_trace.capture import CaptureRequest, Observe, Plan, Progress, StepValues
from fathom_trace.capture.assemble import Assembler, StepContext
from fathom_trace.capture.collector import collector_paused
from fathom_trace.capture.environment import set_intra_threads
from fathom_trace.capture.graph import GraphNode, read_graphs
from fathom_trace.capture.lift import LOOP_OPS, KnownVariable, Lifted, lift
from fathom_trace.capture.provenance import available_cores, describe
from fathom_trace.capture.session import Runner
from fathom_trace.capture.signatures import Signatures
from fathom_trace.capture.static import static_trace, variables_without_values
from fathom_trace.capture.stepstats import read_step
from fathom_trace.capture.targets import TargetRequest, load_target
from fathom_trace.errors import CaptureError
from fathom_trace.trace import Trace
from fathom_trace.workload import SYNTHETIC, Program, input_origin, synthetic_inputs

Values = Mapping[str, NDArray[Any]]

AUTO_LEAST, AUTO_MOST, AUTO_SECONDS = 3, 12, 60.0
SLOW_STEP_SECONDS = 5.0
"""With steps as slow as this, only the least number of untraced steps is timed."""


@dataclass
class Subject:
    """A program to capture. `batches` yields the inputs of one step after the other; `roles` are by input or output name."""

    concrete: Any
    input_names: Sequence[str]
    batches: Iterator[Values]
    known: Sequence[KnownVariable]
    roles: Mapping[str, str]
    is_synthetic: bool
    provenance: Mapping[str, Any]


@dataclass
class Timings:
    """Wall times in ns, and the sizes of the RunMetadata messages in bytes."""

    untraced: list[int] = field(default_factory=list)
    traced: list[int] = field(default_factory=list)
    metadata_bytes: list[int] = field(default_factory=list)


def run_workload(name: str, workload: Any, options: Any, batch_size: int, request: CaptureRequest, progress: Progress) -> Trace:
    """Build a workload and capture it."""
    plan, mode = request.plan, request.mode
    threads = _set_threads(plan)
    progress("building", 0, 1)
    specs = workload.inputs(options, mode, batch_size)
    if request.data is None:
        batches = synthetic_inputs(workload, options, mode, batch_size, request.seed)
    else:
        batches = workload.read_data(request.data, options, mode, batch_size, request.seed)
    program = _build(workload, options, mode, batch_size, request.seed, plan.is_static)
    arguments = {s.name: tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in specs}
    step: Any = program.step if hasattr(program.step, "get_concrete_function") else tf.function(program.step)
    concrete = step.get_concrete_function(**arguments)
    progress("building", 1, 1)
    origin = input_origin(workload, options)
    named = {s.name: s.role for s in specs}
    outputs = {n: n for n in t.ROLES} | dict(program.roles)
    known = [KnownVariable(v, trainable=True) for v in program.trainable]
    known += [KnownVariable(s.variable, slot_of=s.of, slot_name=s.name) for s in program.slots]
    known += [KnownVariable(v) for v in program.state]
    subject = Subject(
        concrete=concrete,
        input_names=_input_names(concrete),
        batches=batches,
        known=known,
        roles={**outputs, **named},
        is_synthetic=request.data is None and origin == SYNTHETIC,
        provenance={
            "workload": name,
            "mode": mode,
            "preset": request.preset,
            "options": _json_options(options),
            "batch_size": batch_size,
            "seed": request.seed,
            "data": str(request.data) if request.data else origin,
            "command_line": request.command_line,
        },
    )
    return run_subject(subject, plan, threads, progress)


def _build(workload: Any, options: Any, mode: str, batch_size: int, seed: int, is_static: bool) -> Program:
    """The workload's program; for a static capture with variables that have no values, unless building it reads them."""
    made: Program
    try:
        with variables_without_values() if is_static else nullcontext():
            made = workload.build(options, mode, batch_size, seed)
    except tf.errors.OpError:
        if not is_static:
            raise
        made = workload.build(options, mode, batch_size, seed)  # building it reads a variable, so its variables need values
    return made


def run_target(request: CaptureRequest, progress: Progress) -> Trace:
    """Open a user's program and capture it."""
    threads = _set_threads(request.plan)
    progress("opening", 0, 1)
    program = load_target(
        TargetRequest(
            target=request.workload,
            mode=request.mode,
            batch_size=request.batch_size,
            shapes=request.shapes,
            signature=request.signature,
            loss=request.loss,
            optimizer=request.optimizer,
            seed=request.seed,
        )
    )
    progress("opening", 1, 1)
    provenance = {
        "workload": request.workload,
        "form": program.form,
        "mode": request.mode,
        "preset": "",
        "options": {"shapes": {k: list(v) for k, v in request.shapes.items()}, "loss": request.loss, "optimizer": request.optimizer},
        "batch_size": request.batch_size,
        "seed": request.seed,
        "data": "synthetic",
        "command_line": request.command_line,
    }
    roles = {n: n for n in t.ROLES} | dict(program.roles)
    subject = Subject(program.concrete, program.input_names, program.batches, program.known, roles, True, provenance)
    return run_subject(subject, request.plan, threads, progress)


def run_function(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    plan: Plan,
    progress: Progress,
    observe: Observe | None = None,
) -> Trace:
    """Capture `function(*args, **kwargs)`."""
    threads = _set_threads(plan)
    made = function if hasattr(function, "get_concrete_function") else tf.function(function)
    given = [_as_tensor(a) for a in args]
    named = {k: _as_tensor(a) for k, a in kwargs.items()}
    concrete = made.get_concrete_function(*given, **named)
    inputs = [p.op.name for p in concrete.graph.inputs[: len(concrete.graph.inputs) - len(concrete.captured_inputs)]]
    flat = [a for a in tf.nest.flatten((given, named), expand_composites=True) if isinstance(a, tf.Tensor)]
    if len(flat) != len(inputs):
        raise CaptureError(
            f"'{name}' has {len(inputs)} tensor inputs, but {len(flat)} tensors were found in what was given;"
            " pass tensors or arrays (an iterator or a data set cannot be fed: pass one batch of it)"
        )
    values = {n: a.numpy() for n, a in zip(inputs, flat, strict=True)}

    def batches() -> Iterator[Values]:
        while True:
            yield values

    known = [KnownVariable(v, bool(v.trainable)) for v in concrete.graph.variables]
    roles = {n: n for n in t.ROLES}
    provenance = {"workload": name, "mode": "call", "preset": "", "options": {}, "batch_size": 0, "data": "given", "command_line": ""}
    return run_subject(Subject(concrete, inputs, batches(), known, roles, False, provenance), plan, threads, progress, observe)


def run_subject(subject: Subject, plan: Plan, threads: int, progress: Progress, observe: Observe | None = None) -> Trace:
    """Capture a program that is ready to run, on an intra-op pool of `threads`."""
    lifted = lift(subject.concrete, subject.input_names, subject.known)
    if plan.is_static:
        return static_trace(lifted, subject.roles, {**subject.provenance, "has_loops": _has_loops(lifted)}, plan, threads, progress)
    with Runner(lifted, plan.stage, threads, plan.inter_threads) as runner:
        progress("initialising", 0, 1)
        runner.initialise()
        progress("initialising", 1, 1)
        first = _warm_up(runner, subject, plan, progress)
        nodes, library = _executed_graph(runner, subject, plan, progress)
        assembler = Assembler(lifted, nodes, Signatures(), subject.roles, library)
        timings = _steps(runner, assembler, subject, plan, progress, observe)
    provenance = {
        **subject.provenance,
        **describe(plan, threads, any(n.op.startswith("_Mkl") for n in nodes)),
        "first_run_ns": first,
        "run_metadata_bytes": timings.metadata_bytes,
        "has_loops": _has_loops(lifted),
    }
    if plan.times_parallel_iterations and _has_loops(lifted):
        progress("timing with parallel iterations", 0, 1)
        provenance["untraced_parallel_iterations_ns"] = _parallel_iterations(subject, plan, threads)
        progress("timing with parallel iterations", 1, 1)
    progress("assembling", 0, 1)
    with collector_paused():
        trace = assembler.build(provenance)
    progress("assembling", 1, 1)
    return trace


def _warm_up(runner: Runner, subject: Subject, plan: Plan, progress: Progress) -> int:
    """Run the untraced warm-up steps; returns the wall time of the very first, in ns (0 when there is none)."""
    first = 0
    for k in range(plan.warmup):
        progress("warming up", k, plan.warmup)
        _, wall = runner.run(next(subject.batches))
        first = first or wall
    progress("warming up", plan.warmup, plan.warmup)
    return first


def _executed_graph(runner: Runner, subject: Subject, plan: Plan, progress: Progress) -> tuple[list[GraphNode], dict[str, Any]]:
    """The graph that TensorFlow executes and its function library.

    They come from one traced run whose times are not kept: asking for graphs makes tracing dear.
    """
    progress("reading the executed graph", 0, 1)
    _, run = runner.trace(next(subject.batches), with_graphs=True)
    metadata = config_pb2.RunMetadata.FromString(run.metadata)
    # parsed anew: a part of a message keeps all of it in memory, here all the records of a step
    graphs = [graph_pb2.GraphDef.FromString(graph.SerializeToString()) for graph in metadata.partition_graphs]
    nodes = read_graphs(graphs)
    functions = [f for g in (runner.lifted.graph_def, *graphs) for f in g.library.function]
    has_records = any(d.node_stats for d in metadata.step_stats.dev_stats)
    del run, metadata
    if not has_records:
        raise CaptureError("TensorFlow returned no op records for a traced step; the trace would be empty, so none is written")
    if plan.stage == "source" and any(n.op.startswith("_Mkl") for n in nodes):
        raise CaptureError(
            "stage 'source' needs oneDNN off, but TensorFlow executed oneDNN ops; put this line before `import tensorflow`:"
            " import os; os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'"
        )
    progress("reading the executed graph", 1, 1)
    return nodes, {f.signature.name: f for f in functions}


def _steps(runner: Runner, assembler: Assembler, subject: Subject, plan: Plan, progress: Progress, observe: Observe | None) -> Timings:
    """Traced and untraced steps in turn, so that a drift of the machine's speed meets both."""
    timings = Timings()
    planned = plan.steps or AUTO_LEAST
    done = 0
    while done < planned:
        progress("step", done, planned)
        is_plain_due = done < AUTO_LEAST or timings.untraced[-1] < SLOW_STEP_SECONDS * 1e9
        if is_plain_due:
            values, _ = _prepare(subject)
            _, wall = runner.run(values)
            timings.untraced.append(wall)
            assembler.builder.untraced_step(wall)
        values, context = _prepare(subject)
        before = runner.variable_values() if observe else {}
        outputs, run = runner.trace(values)
        timings.traced.append(run.wall_ns)
        timings.metadata_bytes.append(len(run.metadata))
        with_memory = done < plan.memory_steps
        with collector_paused():
            records = read_step(run.metadata, assembler.node_index, assembler.signatures, with_memory, plan.max_events)
            wall_ns = run.wall_ns
            del run  # its records are read: while they are assembled, and the next step runs, they are in memory no more
            step = assembler.add_step(records, context(wall_ns))
            del records
        if observe:
            fed = {name: value for name, (_, value) in runner.lifted.captured.items()}
            observe(StepValues(step, {**fed, **values}, before, outputs, runner.variable_values()))
        done += 1
        if done == 1 and not plan.steps:
            pair = (timings.untraced[0] + timings.traced[0]) / 1e9
            planned = int(min(max(AUTO_SECONDS / max(pair, 1e-9), AUTO_LEAST), AUTO_MOST))
    progress("step", done, planned)
    return timings


def _prepare(subject: Subject) -> tuple[Values, Callable[[int], StepContext]]:
    """The next step's inputs, and a function that makes its context once the wall time is known."""
    begin = time.perf_counter_ns()
    values = next(subject.batches)
    spent = time.perf_counter_ns() - begin
    size = sum(int(np.asarray(v).nbytes) for v in values.values())
    return values, lambda wall: StepContext(wall, spent, size, subject.is_synthetic)


def _parallel_iterations(subject: Subject, plan: Plan, threads: int) -> list[int]:
    """Wall times of untraced steps with the loops' own `parallel_iterations`, in ns: what setting it to 1 cost."""
    lifted = lift(subject.concrete, subject.input_names, subject.known, is_serialised=False)
    with Runner(lifted, plan.stage, threads, plan.inter_threads) as runner:
        runner.initialise()
        runner.run(next(subject.batches))
        return [runner.run(next(subject.batches))[1] for _ in range(AUTO_LEAST)]


def _has_loops(lifted: Lifted) -> bool:
    definition = lifted.graph_def
    return any(n.op in LOOP_OPS for nodes in (definition.node, *(f.node_def for f in definition.library.function)) for n in nodes)


def _set_threads(plan: Plan) -> int:
    return set_intra_threads(tf, plan.threads, available_cores())


def _input_names(concrete: Any) -> list[str]:
    """The inputs of a concrete function in the order of its graph, by the names of their specs."""
    inputs = concrete.graph.inputs
    return [str(p.op.name) for p in inputs[: len(inputs) - len(concrete.captured_inputs)]]


def _json_options(options: Any) -> dict[str, Any]:
    values = {k: getattr(options, k) for k in options.__dataclass_fields__}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def traced_ratio(traced: Sequence[int], untraced: Sequence[int]) -> float:
    """Median traced over median untraced wall time."""
    return statistics.median(traced) / statistics.median(untraced) if traced and untraced else float("nan")


def _as_tensor(argument: Any) -> Any:
    """Arrays as tensors; everything else as it is."""
    return tf.convert_to_tensor(argument) if isinstance(argument, np.ndarray | np.generic) else argument
