"""The contract between capture and a workload. One file in `workloads/` is one workload; it defines, at module level:

    \"\"\"One-line summary.  ... what a step is, what was decided, the citation ...\"\"\"

    CITATION: str                                   # the model's own paper
    DATA_FORMAT: str                                # what `--data DIR` must hold
    @dataclass(frozen=True) class Options: ...      # what `--set name=value` changes; `doc` in each field's metadata
    PRESETS: Mapping[str, Preset]                   # at least 'seminal' (the default), 'paper' and 'tiny'

    def inputs(options, mode, batch_size) -> tuple[InputSpec, ...]
    def build(options, mode, batch_size, seed) -> Program
    def read_data(folder, options, mode, batch_size, seed) -> Iterator[dict[str, numpy array]]

and, where values drawn from the `InputSpec` ranges are not plausible,

    def synthetic(options, mode, batch_size, seed) -> Iterator[dict[str, numpy array]]

and, where `synthetic` can yield something real (a game that is played),

    def input_origin(options) -> str                # `SYNTHETIC`, or what it is: the trace's `data` where no folder is given

`mode` is one of `MODES`. Layers carry readable name scopes (`conv1_1`, `fc6`): layer names reach the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import OptionError, UnknownNameError

MODES = ("training", "inference")
DEFAULT_PRESET = "seminal"
SYNTHETIC = "synthetic"
REQUIRED = ("CITATION", "DATA_FORMAT", "Options", "PRESETS", "inputs", "build", "read_data")

Values = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class InputSpec:
    """One input of a step: its shape with the batch, dtype and value range.

    Floats lie in [low, high), integers in [low, high]. `role` is `input`, `label` or `state`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    role: str = "input"
    doc: str = ""


@dataclass(frozen=True)
class Preset:
    """A named choice of options. `parameters` counts trainable parameters; a test builds the model and compares."""

    options: Any
    batch_size: Mapping[str, int]
    parameters: int
    doc: str = ""


@dataclass(frozen=True)
class Slot:
    """An optimiser slot: `variable` holds `name` (momentum, ...) of the trainable variable `of`."""

    variable: Any
    of: Any
    name: str


@dataclass(frozen=True)
class Program:
    """A built model: `step(**inputs)` is a `tf.function` that returns named outputs, each a tensor.

    An output whose name is a role of `tables.ROLES` (`loss`, `logits`, ...) has that role; `roles` names it for the others.
    A step is exactly the model's compute: no decoding of inputs, no evaluation.
    """

    step: Callable[..., Mapping[str, Any]]
    trainable: Sequence[Any]
    slots: Sequence[Slot] = ()
    state: Sequence[Any] = ()
    roles: Mapping[str, str] = field(default_factory=dict)


def choose_preset(workload: Any, name: str, owner: str) -> Preset:
    """The preset called `name`.

    Raises:
        UnknownNameError: the workload has none of that name.
    """
    presets: Mapping[str, Preset] = workload.PRESETS
    if name not in presets:
        raise UnknownNameError(f"preset of {owner}", name, presets)
    return presets[name]


def choose_mode(mode: str) -> str:
    """`mode`, checked.

    Raises:
        UnknownNameError: it is neither training nor inference.
    """
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    return mode


def draw(specs: Sequence[InputSpec], seed: int) -> Iterator[Values]:
    """Endless synthetic inputs, uniform in each input's range; the same sequence for the same seed."""
    generator = np.random.default_rng(seed)
    while True:
        yield {spec.name: _uniform(spec, generator) for spec in specs}


def _uniform(spec: InputSpec, generator: np.random.Generator) -> NDArray[Any]:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        single = generator.random(spec.shape, dtype=np.float32 if dtype.itemsize <= 4 else np.float64)
        return (spec.low + (spec.high - spec.low) * single).astype(dtype)
    if dtype.kind in "iub":
        return generator.integers(int(spec.low), int(spec.high), spec.shape, endpoint=True).astype(dtype)
    raise OptionError(f"input '{spec.name}' has dtype {spec.dtype}; synthetic values are made for floats, integers and booleans")


def input_origin(workload: Any, options: Any) -> str:
    """What the inputs are where no data folder is given: `SYNTHETIC`, or what the workload says."""
    return str(workload.input_origin(options)) if hasattr(workload, "input_origin") else SYNTHETIC


def synthetic_inputs(workload: Any, options: Any, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """The workload's own synthetic inputs, or uniform ones where it has none."""
    if hasattr(workload, "synthetic"):
        own: Iterator[Values] = workload.synthetic(options, mode, batch_size, seed)
        return own
    return draw(workload.inputs(options, mode, batch_size), seed)
