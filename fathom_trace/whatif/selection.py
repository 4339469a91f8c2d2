"""Which executions a scenario is about, as text: `Conv2D`, `kind:conv`, `layer:fc*`, `phase:backward`, `device:*GPU*`, `name:*/Conv2D`.

A plain name is an op type as TensorFlow spells it. `*`, `?` and `[...]` match as in a shell, case-sensitively. Only what ran can be
selected; a pattern that selects nothing is an error that offers the nearest name. `predicate:FILE.py` asks a function of the user's
(`predicate.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace

NOUNS = {"op": "op type", "kind": "kind", "layer": "layer", "phase": "phase", "device": "device", "name": "node"}
"""What can be selected by, with the noun for messages."""

NodeLabels = Mapping[str, Sequence[str]]
"""For each key of `NOUNS` the label of every node of the graph; empty where it has none."""


class TraceLabels(Mapping[str, Sequence[str]]):
    """The labels of a trace's nodes, each worked out when first asked for."""

    def __init__(self, trace: Trace) -> None:
        self._makers: dict[str, Callable[[], Sequence[str]]] = {
            "op": lambda: trace.node_ops,
            "kind": lambda: _kinds(trace),
            "layer": lambda: _layers(trace),
            "phase": lambda: _phases(trace),
            "name": lambda: trace.node_names,
            "device": lambda: [trace.strings[i] for i in trace.nodes.device.tolist()],
        }
        self._made: dict[str, Sequence[str]] = {}

    def __getitem__(self, key: str) -> Sequence[str]:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, eq=False)
class Executed:
    """The executions of one structure, as scenarios see them: local number `i` is row `first + i` of the trace's `executions`."""

    first: int
    nodes: NDArray[np.int64]
    labels: NodeLabels
    trace: Trace | None = field(default=None, repr=False)
    """Where they come from: for changes that look at costs, tensors or dependencies."""
    structure: int = 0
    captured: Trace | None = field(default=None, repr=False)
    """The same as it was captured, where `trace` counts steps that are alike as steps of the structure."""

    def source(self, purpose: str) -> Trace:
        """The trace that the executions come from.

        Raises:
            ScenarioError: it is not known, so that there is nothing to do `purpose` with.
        """
        if self.trace is None:
            raise ScenarioError(f"{purpose} needs the trace that the executions come from; project a trace")
        return self.trace

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def chosen(self) -> NDArray[np.bool_]:
        """False for what a part of a trace leaves outside."""
        if self.trace is None:
            return np.ones(len(self), bool)
        return self.trace.chosen[self.first : self.first + len(self)]

    @property
    def count(self) -> int:
        """How many of them count: all but what a part of a trace leaves outside."""
        return int(np.count_nonzero(self.chosen))

    @property
    def chosen_nodes(self) -> list[int]:
        """The nodes that ran, each once."""
        nodes: list[int] = np.unique(self.nodes[self.chosen]).tolist()
        return nodes

    def names(self, by: str) -> list[str]:
        """Label of each execution."""
        labels = self.labels[by]
        return [labels[n] for n in self.nodes.tolist()]


def executed(trace: Trace, structure: int, labels: NodeLabels | None = None) -> Executed:
    """The executions of a structure with their labels (the trace's own by default)."""
    rows = trace.structure_rows(structure)
    nodes = trace.executions.node[rows].astype(np.int64)
    return Executed(rows.start, nodes, TraceLabels(trace) if labels is None else labels, trace, structure)


MOST_CHARACTERS = 2_000
"""Of a pattern: to match one takes time that grows faster than its length."""


@dataclass(frozen=True)
class Selection:
    """Executions by one label: `by` is a key of `NOUNS`, `pattern` a name or a glob."""

    by: str
    pattern: str

    def __post_init__(self) -> None:
        if len(self.pattern) > MOST_CHARACTERS:
            raise ScenarioError(
                f"'{self.by}:{self.pattern}' has more than {MOST_CHARACTERS} characters; give a name or a shorter pattern"
            )

    def __str__(self) -> str:
        return self.pattern if self.by == "op" else f"{self.by}:{self.pattern}"

    def mask(self, among: Executed) -> NDArray[np.bool_]:
        """True for each selected execution.

        Raises:
            ScenarioError: none is selected; names the nearest that exists.
        """
        mask = self.matches(among)
        if not mask.any():
            labels = among.labels[self.by]
            raise ScenarioError(self._nothing({labels[n] for n in among.chosen_nodes} - {""}, among))
        return mask

    def matches(self, among: Executed) -> NDArray[np.bool_]:
        """True for each selected execution; it may be none."""
        labels = among.labels[self.by]
        ran = {labels[n] for n in among.chosen_nodes} - {""}
        chosen = {self.pattern} & ran or {name for name in ran if fnmatchcase(name, self.pattern)}
        per_node = np.array([label in chosen for label in labels], bool)
        return per_node[among.nodes] & among.chosen

    def _nothing(self, ran: set[str], among: Executed) -> str:
        noun = NOUNS[self.by]
        if any(sign in self.pattern for sign in "*?["):
            return f"no {noun} that ran matches '{self.pattern}'; {_some(noun, ran)}"
        if self.by == "op":
            for other in ("kind", "phase"):
                if self.pattern in among.labels.get(other, ()):
                    return f"no {noun} that ran is called '{self.pattern}'; did you mean '{other}:{self.pattern}'?"
        near = nearest(self.pattern, ran)
        return f"no {noun} that ran is called '{self.pattern}'; " + (f"did you mean '{near}'?" if near else _some(noun, ran))


def parse_selection(text: str) -> Selection:
    """The selection that `text` describes.

    Raises:
        ScenarioError: it selects by something unknown, or by nothing.
    """
    by, colon, pattern = text.strip().partition(":")
    if not colon:
        by, pattern = "op", by
    if by not in NOUNS:
        near = nearest(by, NOUNS) or "op"
        raise ScenarioError(f"'{text}' selects by '{by}', which is none of {', '.join(NOUNS)}; did you mean '{near}:{pattern}'?")
    if not pattern:
        raise ScenarioError(f"'{text}' names no {NOUNS[by]}; write for example Conv2D or layer:fc*")
    return Selection(by, pattern)


def nearest(name: str, known: Mapping[str, str] | set[str]) -> str:
    """The most similar known name, capitals apart: first one that begins alike to the end of either; empty if none is similar."""
    lowered = {k.lower(): k for k in sorted(known)}
    begins = [k for k in lowered if min(len(k), len(name)) > 2 and (k.startswith(name.lower()) or name.lower().startswith(k))]
    if begins:
        return lowered[max(begins, key=lambda k: -abs(len(k) - len(name)))]
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return lowered[close[0]] if close else ""


def _some(noun: str, names: set[str], most: int = 12) -> str:
    if not names:
        return f"the trace has no {noun} at all"
    shown = sorted(names)[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "there are: " + ", ".join(shown) + more


def _kinds(trace: Trace) -> Sequence[str]:
    from fathom_trace import ops

    return [ops.kind(op) for op in trace.node_ops]


def _layers(trace: Trace) -> Sequence[str]:
    from fathom_trace import layers

    return layers.layer_names(trace)


def _phases(trace: Trace) -> Sequence[str]:
    from fathom_trace import phases

    return phases.phases(trace)
