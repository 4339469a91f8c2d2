"""Captures a program: lifts it into a session, times it untraced, runs it traced, and builds the `Trace`.

Importing this package does not import TensorFlow; calling it does.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom_trace.errors import OptionError
from fathom_trace.trace import Trace
from fathom_trace.workload import DEFAULT_PRESET, choose_mode, choose_preset

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CaptureRequest", "Observe", "Plan", "Progress", "StepValues", "capture", "capture_request", "capture_workload", "is_target",
]  # fmt: skip

TARGET_SUFFIXES = (".keras", ".h5", ".hdf5", ".py")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much; never from another thread."""


@dataclass(frozen=True)
class StepValues:
    """What went into and came out of one traced step; a `Trace` itself holds no values. `step` is the step's row in it.

    `inputs` and `outputs` are by their names in `Trace.interface`, `before` and `after` the values of all variables by their names in
    `Trace.variables`.
    """

    step: int
    inputs: Mapping[str, NDArray[Any]]
    before: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, Any]
    after: Mapping[str, NDArray[Any]]


Observe = Callable[[StepValues], None]
"""Called after each traced step, between steps: what it does is in no step's time."""


def _ignore(_what: str, _done: int, _of: int) -> None:
    """No progress shown."""


@dataclass(frozen=True)
class Plan:
    """How a program is run. `steps` 0 means automatic: 3 to 12 traced steps within about a minute.

    `times_parallel_iterations`: a program with loops is also timed, untraced, with the loops' own `parallel_iterations`.
    `max_events`: keep only that many executions of a step, its first ones, and count the others as dropped; 0 keeps all.
    `is_static`: nothing is run; the trace holds what the graph alone says, without times.
    """

    steps: int = 0
    warmup: int = 1
    stage: str = "source"
    threads: int = 0
    inter_threads: int = 1
    memory_steps: int = 1
    times_parallel_iterations: bool = True
    max_events: int = 0
    is_static: bool = False

    def __post_init__(self) -> None:
        if self.is_static and self.stage != "source":
            raise OptionError(
                f"a static capture has stage source, not {self.stage}: what rewriting makes of a graph shows when it runs"
            )
        lowest = {"steps": 0, "warmup": 0, "threads": 0, "inter_threads": 1, "memory_steps": 0, "max_events": 0}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise OptionError(f"{name.replace('_', '-')} is {getattr(self, name)}; it must be at least {least}")
        # a slip of the finger must not run until the machine is full
        highest = {"steps": 1_000_000, "warmup": 1_000_000, "threads": 4096, "inter_threads": 4096}
        for name, most in highest.items():
            if getattr(self, name) > most:
                raise OptionError(f"{name.replace('_', '-')} is {getattr(self, name)}; it must be at most {most}")


@dataclass(frozen=True)
class CaptureRequest:
    """A program and how to run it, as the command line says it. `batch_size` 0 takes the workload preset's.

    `workload` is the name of one, or a user's program: a Keras file, a SavedModel folder or `file.py:callable`. For those, `shapes`
    fixes the free dimensions of inputs, `signature` picks one of a SavedModel, `loss` and `optimizer` are for training a Keras model.
    """

    workload: str
    mode: str = "training"
    preset: str = DEFAULT_PRESET
    batch_size: int = 0
    seed: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    plan: Plan = field(default_factory=Plan)
    command_line: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    signature: str = ""
    loss: str = ""
    optimizer: str = ""


def is_target(text: str) -> bool:
    """True when `text` names a file, a folder or a callable in a file, rather than a workload; the name of a workload is one first."""
    from fathom_trace.workloads import REGISTRY

    if text.replace("-", "_") in REGISTRY.files():
        return False
    return "/" in text or ":" in text or Path(text).suffix in TARGET_SUFFIXES or Path(text).is_dir()


def capture_request(request: CaptureRequest, progress: Progress = _ignore) -> Trace:
    """Capture a workload or a user's program, whichever `request.workload` names; see `capture_workload` for the errors."""
    if not is_target(request.workload):
        return capture_workload(request, progress)
    from fathom_trace.capture.environment import import_tensorflow

    choose_mode(request.mode)
    if request.settings or request.data:
        raise OptionError("--set and --data are for the workloads; a program of your own takes --shape, --loss and --optimizer")
    import_tensorflow(request.plan.stage)
    from fathom_trace.capture.run import run_target

    return run_target(request, progress)


def capture_workload(request: CaptureRequest, progress: Progress = _ignore) -> Trace:
    """Capture one of the workloads.

    Raises:
        UnknownNameError: no such workload, mode, preset, stage or option.
        OptionError: a value cannot be used.
        DataError: the data folder does not hold what the workload reads.
        CaptureError: TensorFlow is missing, or cannot run the program.
    """
    from fathom_trace.capture.environment import import_tensorflow
    from fathom_trace.options import apply_settings
    from fathom_trace.workloads import REGISTRY

    name = REGISTRY.resolve(request.workload)
    choose_mode(request.mode)
    if request.batch_size < 0:
        raise OptionError(f"batch-size is {request.batch_size}; it must be at least 1")
    import_tensorflow(request.plan.stage)
    from fathom_trace.capture.run import run_workload

    if request.shapes or request.signature or request.loss or request.optimizer:
        raise OptionError(f"--shape, --signature, --loss and --optimizer are for programs of your own; '{name}' takes --set")
    workload = REGISTRY.load(name)
    preset = choose_preset(workload, request.preset, name)
    options = apply_settings(preset.options, request.settings, name)
    batch_size = request.batch_size or preset.batch_size[request.mode]
    return run_workload(name, workload, options, batch_size, request, progress)


def capture(
    function: Any,
    *args: Any,
    name: str = "",
    stage: str = "",
    steps: int | None = None,
    plan: Plan | None = None,
    progress: Progress = _ignore,
    observe: Observe | None = None,
    **kwargs: Any,
) -> Trace:
    """Capture one call of `function(*args, **kwargs)`, a `tf.function` or a callable that can be made one.

    Every tensor argument becomes a fed input; other arguments are Python values that the function is specialised for. The call is run
    `plan.warmup` times untraced, then traced. Variables keep their values outside: each capture starts from them and changes a copy.
    `stage` and `steps` override the plan's. `observe` is shown the values of every traced step.

    Raises:
        CaptureError: TensorFlow was imported with oneDNN in the wrong state for `plan.stage`, or the function cannot be lifted or run.
    """
    from fathom_trace.capture.environment import import_tensorflow

    plan = plan or Plan()
    plan = replace(plan, stage=stage or plan.stage, steps=plan.steps if steps is None else steps)
    import_tensorflow(plan.stage)
    from fathom_trace.capture.run import run_function

    return run_function(
        function, args, kwargs, name or getattr(function, "__name__", type(function).__name__), plan, progress, observe
    )


class _CallablePackage(types.ModuleType):
    """Lets users write `fathom_trace.capture(function, *args)`: the package and the function share one name."""

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Trace:
        return capture(function, *args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
