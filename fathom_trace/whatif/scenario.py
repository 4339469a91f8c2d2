"""What-if scenarios: which executions change, and what becomes of their times.

As text one change each, in the order given. A later change starts from what earlier ones left, so speedups multiply.

    Conv2D=10          ten times faster
    layer:fc*=4        every layer whose name matches, four times faster
    Conv2D=inf         free, but still dispatched
    Conv2D=50us        50 us each
    kind:pooling=remove   gone, dispatch included
    predicate:mine.py=4   what a function of yours selects (`predicate.py`: opening the file runs it)
    fuse:BiasAdd+Relu  each such producer and consumer as one execution (`fusion.py` says how long it takes)
    hardware:accelerator.yaml   what a described accelerator covers runs there (`accelerator.py`)
    threads:2          each op on that many threads (`scaling.py`: by a model fitted from captures)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.units import NS_PER_MS, NS_PER_S, NS_PER_US
from fathom_trace.whatif.accelerator import PREFIX as HARDWARE
from fathom_trace.whatif.accelerator import Accelerate, read_accelerator
from fathom_trace.whatif.fusion import PREFIX as FUSE
from fathom_trace.whatif.fusion import Fuse, parse_fuse
from fathom_trace.whatif.predicate import PREFIX as PREDICATE
from fathom_trace.whatif.predicate import Predicate
from fathom_trace.whatif.recording import Bool, Float, Int64, Recording
from fathom_trace.whatif.scaling import PREFIX as THREADS
from fathom_trace.whatif.scaling import ScalingModel, Threads, parse_threads
from fathom_trace.whatif.selection import Executed, Selection, parse_selection
from fathom_trace.whatif.transfers import ON_ACCELERATOR, Transfers, places, with_transfers

LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e12
"""Between them a factor says something about hardware; beyond them, only infinity does."""

_UNITS_NS = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}


Selector = Selection | Predicate


class Change(Protocol):
    """One change of a scenario; `str()` is how a user would write it."""

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Change the times `[executions]` in place; returns which executions were selected.

        Raises:
            ScenarioError: none was.
        """


@dataclass(frozen=True)
class Speedup:
    """The selected executions run `factor` times faster; infinite: they take no time but are still dispatched."""

    selection: Selector
    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ScenarioError(f"cannot make '{self.selection}' {self.factor:g} times faster; give a factor above 0, or inf")
        if not (LEAST_FACTOR <= self.factor <= MOST_FACTOR or self.factor == math.inf):
            raise ScenarioError(
                f"'{self.selection}' cannot be {self.factor:g} times faster; give a factor from {LEAST_FACTOR:g} to {MOST_FACTOR:g}, or inf"
            )

    def __str__(self) -> str:
        return f"{self.selection}={self.factor:.12g}"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Divide the selected durations by the factor."""
        mask = self.selection.mask(among)
        duration_ns[mask] /= self.factor
        return mask


@dataclass(frozen=True)
class SetTime:
    """The selected executions take `time_ns` each."""

    selection: Selector
    time_ns: float

    def __post_init__(self) -> None:
        if not 0 <= self.time_ns < math.inf:
            raise ScenarioError(f"'{self.selection}' cannot take {self.time_ns:g} ns; give a finite time that is not below 0")

    def __str__(self) -> str:
        return f"{self.selection}={self.time_ns:.12g}ns"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Set the selected durations."""
        mask = self.selection.mask(among)
        duration_ns[mask] = self.time_ns
        return mask


@dataclass(frozen=True)
class Remove:
    """The selected executions vanish with their dispatch; what depended on them waits for what they waited for."""

    selection: Selector

    def __str__(self) -> str:
        return f"{self.selection}=remove"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Set the selected durations and gaps to 0."""
        mask = self.selection.mask(among)
        duration_ns[mask] = 0.0
        gap_ns[mask] = 0.0
        return mask


@dataclass(frozen=True, eq=False)
class Results:
    """Executions take the times that something else, such as a simulator, worked out for them; the rest stays as measured."""

    time_ns: Mapping[int, float]
    """By row of the trace's `executions`."""
    source: str = "results"

    def __str__(self) -> str:
        count = len(self.time_ns)
        return f"times of {count} execution{'' if count == 1 else 's'} from {self.source}"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Set the durations of the executions of this structure, and of this part, that have a result."""
        mask = np.zeros(len(among), bool)
        for row, time_ns in self.time_ns.items():
            local = row - among.first
            if 0 <= local < len(among) and among.chosen[local]:
                mask[local] = True
                duration_ns[local] = time_ns
        if not mask.any():
            raise ScenarioError(f"the {self} are of none in the steps that are projected; export this very trace and simulate that")
        return mask


@dataclass(frozen=True)
class Scenario:
    """Changes to a step, in order; without any, the step as it was measured."""

    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        return ", ".join(str(c) for c in self.changes) or "nothing changed"

    def then(self, *changes: Change) -> Scenario:
        """This scenario with more changes after it."""
        return Scenario(self.changes + changes)

    def apply(self, recording: Recording, among: Executed) -> Times:
        """The changed times.

        Raises:
            ScenarioError: a change selects nothing that ran.
        """
        duration, gap = recording.duration_ns.copy(), recording.gap_ns.copy()
        masks: list[Bool] = []
        notes: list[str] = []
        transfers: Transfers | None = None
        covered: Bool | None = None
        for number, change in enumerate(self.changes):
            if isinstance(change, Accelerate):
                if transfers is not None:
                    raise ScenarioError(f"'{change}' is a second accelerator; a scenario has one")
                placement = change.place(among)
                duration[placement.covered] = placement.time_ns[placement.covered]
                masks.append(placement.covered)
                notes += placement.notes
                transfers, covered = placement.transfers, placement.covered
                continue
            if isinstance(change, Threads):
                if any(isinstance(earlier, Threads) for earlier in self.changes[:number]):
                    raise ScenarioError(f"'{change}' is a second number of threads; a scenario has one")
                notes.append(change.note(among, duration))
            elif isinstance(change, Fuse):
                notes.append(change.model)
            masks.append(change.apply(among, duration, gap))
        return Times(duration, gap, tuple(masks), transfers, tuple(notes), covered)


@dataclass(frozen=True, eq=False)
class Times:
    """What a scenario makes of a recording, `[executions]` each, in ns; `masks` holds what each change selected."""

    duration_ns: Float
    gap_ns: Float
    masks: tuple[NDArray[np.bool_], ...]
    transfers: Transfers | None = None
    """Copies that come on top, where a change moves executions to an accelerator."""
    notes: tuple[str, ...] = ()
    covered: NDArray[np.bool_] | None = None
    """What runs on an accelerator, of which there is one."""

    @property
    def changed(self) -> Bool:
        """The executions that some change selected."""
        return np.any(self.masks, axis=0) if self.masks else np.zeros(len(self.duration_ns), bool)

    @property
    def overlap(self) -> int:
        """How many executions more than one change selected."""
        return int(np.count_nonzero(np.sum(self.masks, axis=0) > 1)) if self.masks else 0

    @property
    def transfer_ns(self) -> float:
        """Time of all copies."""
        return self.transfers.total_ns if self.transfers is not None else 0.0

    def limit(self) -> Times:
        """The same with every changed execution free; copies stay."""
        return replace(self, duration_ns=np.where(self.changed, 0.0, self.duration_ns))

    def replayed(self, recording: Recording) -> Replayed:
        """What there is to replay: the recording with the copies as executions of their own, and the times for it.

        Accelerator and link are one each: what runs there needs it for itself.
        """
        if self.covered is not None:
            recording = replace(recording, exclusive=np.where(self.covered, ON_ACCELERATOR, -1).astype(np.int64))
        if self.transfers is None or not len(self.transfers):
            return Replayed(recording, self.duration_ns, self.gap_ns, np.arange(len(recording), dtype=np.int64))
        at, _ = places(len(recording), self.transfers)
        wider = with_transfers(recording, self.transfers)
        duration, gap = wider.duration_ns.copy(), wider.gap_ns.copy()
        duration[at], gap[at] = self.duration_ns, self.gap_ns
        return Replayed(wider, duration, gap, at)


@dataclass(frozen=True, eq=False)
class Replayed:
    """A recording and the times to replay it with; `at` is where each execution of the original recording stands."""

    recording: Recording
    duration_ns: Float
    gap_ns: Float
    at: Int64


@dataclass(frozen=True)
class Context:
    """What the text of a scenario may refer to: the folder that file names start from, and the scaling model of `threads:`."""

    folder: Path = Path()
    scaling: ScalingModel | None = None


def parse_change(text: str, context: Context | None = None) -> Change:
    """The change that `text` describes.

    Raises:
        ScenarioError: it is none; `scenario.py` begins with what there is.
    """
    context = context or Context()
    given = text.strip()
    if given.startswith(FUSE):
        return parse_fuse(given)
    if given.startswith(HARDWARE):
        name = given.removeprefix(HARDWARE).strip()
        if not name:
            raise ScenarioError(f"'{text}' names no file; write for example hardware:accelerator.yaml")
        return Accelerate(read_accelerator(context.folder / name), name)
    if given.startswith(THREADS):
        return parse_threads(given, context.scaling)
    name, sign, value = text.rpartition("=")
    value = value.strip()
    if not sign or not name.strip():
        raise ScenarioError(f"'{text}' is not a speedup; write for example Conv2D=10")
    selection = _selector(name, context)
    if value == "remove":
        return Remove(selection)
    match = re.fullmatch(r"(.*?)(ns|us|ms|s)", value)
    if match and match[1]:
        return SetTime(selection, number(match[1], text) * _UNITS_NS[match[2]])
    return Speedup(selection, number(value.removesuffix("x"), text))


def _selector(text: str, context: Context) -> Selector:
    name = text.strip()
    if name.startswith(PREDICATE):
        return Predicate(context.folder / name.removeprefix(PREDICATE).strip())
    return parse_selection(text)


def parse_scenario(texts: Sequence[str], context: Context | None = None) -> Scenario:
    """The scenario of several changes.

    Raises:
        ScenarioError: one of them is malformed, or two have the same selection.
    """
    seen: dict[Selector, str] = {}
    changes: list[Change] = []
    for text in texts:
        change = parse_change(text, context)
        changes.append(change)
        if not isinstance(change, Speedup | SetTime | Remove):
            continue
        if change.selection in seen:
            raise ScenarioError(f"'{change.selection}' is given twice, as '{seen[change.selection]}' and '{text}'; give it once")
        seen[change.selection] = text
    return Scenario(tuple(changes))


def from_results(trace: Trace, time_ns: Mapping[int, float], source: str = "results") -> Scenario:
    """The scenario in which executions (rows of `trace.executions`) take the given times, as a simulator reports them.

    Raises:
        ScenarioError: there is none, one is no execution of the trace, or a time is negative or not finite.
    """
    if not time_ns:
        raise ScenarioError(f"{source} gives the time of no execution; there is nothing to project")
    for row, time in time_ns.items():
        if not 0 <= row < len(trace.executions):
            raise ScenarioError(f"{source} times execution {row}, but the trace has {len(trace.executions)}; is it of another trace?")
        if not 0 <= time < math.inf:
            raise ScenarioError(f"{source} gives execution {row} a time of {time:g} ns; a time is finite and not below 0")
    return Scenario((Results(dict(time_ns), source),))


def number(value: str, text: str) -> float:
    """`value` as a number, which may be `inf`, for the scenario `text`.

    Raises:
        ScenarioError: it is no number.
    """
    try:
        result = float(value)
    except ValueError:
        result = math.nan
    if math.isnan(result) or "_" in value or (math.isinf(result) and any(c.isdigit() for c in value)):
        raise ScenarioError(f"'{text}': '{value}' is no factor; write a number above 0, inf, a time such as 50us, or remove")
    return result
