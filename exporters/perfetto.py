"""Perfetto and Chrome traces: a step's executions on rows that never overlap, arrows for dependencies, live bytes as a counter.

Target: Perfetto v52, https://github.com/google/perfetto: its native protobuf (`schemas/perfetto_events.proto`), which keeps nanoseconds,
or with `--set format=json` the Chrome trace event format, in microseconds with three decimals
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Both open in ui.perfetto.dev, the second in
chrome://tracing too.

A slice is one execution, start to done, named like its node, in the category of its op's kind; loop bodies are there once per iteration.
Times are relative to the step's earliest start; the Unix time of 0 is kept beside them (as a clock snapshot, or as text in `otherData`),
since an epoch in microseconds leaves a JSON reader's doubles no room for fractions. Each captured worker of a device has a row; what would
overlap there gets a further row, so that slices neither overlap nor nest. Each dependency is a flow of its own, from the producer's slice
to the consumer's. Kernels and copies on a device's streams have rows of their own. The counter is what `fathom-trace memory` shows, in the
step whose allocations were recorded.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fathom_trace import digits, wire
from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportReport, Target, file_stem, read_report
from fathom_trace.lanes import disjoint
from fathom_trace.layer_map import LayerMap
from fathom_trace.layers import layer_names
from fathom_trace.memory import memory
from fathom_trace.ops import kind
from fathom_trace.options import option
from fathom_trace.phases import phases
from fathom_trace.steps import MEDIAN, STEP_DOC, LeftOut, StepView, account, notes, verify, view_steps
from fathom_trace.trace import Trace

TARGET = Target(
    name="Perfetto",
    version="v52",
    url="https://github.com/google/perfetto",
    proof=TARGET_PARSED,
    proof_detail="tests load both formats into Perfetto's own trace processor (WebAssembly, v52), which reports no error and no data loss,"
    " and compare slices, durations, flows and counters with the trace by SQL; the user interface is not run",
    how_to_run="open the file in ui.perfetto.dev (the JSON in chrome://tracing too); or trace_processor_shell FILE",
)

NATIVE, JSON = "native", "json"
SUFFIXES = {NATIVE: ".pftrace", JSON: ".json"}
COUNTER = "live bytes of step {step}"

T = TypeVar("T")
Int64 = NDArray[np.int64]

BLOCK = 32_768
"""Slices, flows or values that are turned into text or bytes at once."""

HAS_NO_TIME = "no valid time in a shown step"
IS_EXPANDED = "part of a compiled call, which is shown with the time of all its parts"


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    format: str = option(NATIVE, "native protobuf, or Chrome JSON", choices=(NATIVE, JSON))
    step: str = option(MEDIAN, STEP_DOC + "; all: every traced step, each as a process of its own")
    flows: bool = option(True, "an arrow for each dependency")
    counters: bool = option(True, "live bytes over the step whose allocations were recorded")
    plumbing: bool = option(True, "show helpers: loop and branch plumbing, feeds, fetches, constants, handles, identities")
    name: str = option("", "beginning of the file name; empty: the workload's name")


# --- what is shown ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line of the viewer: `process` is a step, `number` unique in the file."""

    number: int
    process: int
    name: str


@dataclass(eq=False)
class Slices:
    """Bars, a value in each column: times in ns after their step's start; `execution` is -1 for what ran on a device stream.

    `label`, `told` and `iteration` are numbers of the scene's labels (name and category), arguments and iterations.
    """

    row: Int64
    start_ns: Int64
    duration_ns: Int64
    label: Int64
    told: Int64
    iteration: Int64
    execution: Int64

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def joined(cls, parts: Sequence[Slices]) -> Slices:
        """Some, one after the other."""
        return cls(*(np.concatenate([np.zeros(0, np.int64), *columns]) for columns in zip(*(p.columns for p in parts), strict=True)))

    @property
    def columns(self) -> tuple[Int64, ...]:
        """The columns in order."""
        return self.row, self.start_ns, self.duration_ns, self.label, self.told, self.iteration, self.execution


Arguments = tuple[tuple[str, str], ...]


class Texts(Generic[T]):
    """Distinct things by number, in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[T, int] = {}

    def number(self, text: T) -> int:
        """The number of one, from 0."""
        return self.numbers.setdefault(text, len(self.numbers))

    def __iter__(self) -> Iterator[T]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass
class Counter:
    """A curve: at each time (ns, ascending) its value."""

    row: int
    name: str
    times_ns: Int64
    values: Int64


@dataclass
class Scene:
    """Everything that a file shows, in columns. `slices` come so that producers precede consumers; `flows` are pairs of them.

    Several steps stand where they ran, if the trace says when that was; else they all begin at 0.
    """

    slices: Slices
    flows: tuple[Int64, Int64]
    """Producers and consumers."""
    processes: dict[int, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    labels: Texts[tuple[str, str]] = field(default_factory=Texts)
    told: Texts[Arguments] = field(default_factory=Texts)
    iterations: Texts[str] = field(default_factory=Texts)
    counters: list[Counter] = field(default_factory=list)
    origin_unix_ns: int = 0
    reversed_flows: int = 0
    """Dependencies that are not shown because the consumer began before its producer."""


def build(trace: Trace, views: Sequence[StepView], options: Options) -> tuple[Scene, dict[int, LeftOut]]:
    """The scene of some steps, and by structure which executions are in none of them, and why."""
    none = np.zeros(0, np.int64)
    scene = Scene(Slices.joined([Slices(*[none] * 7)]), (none, none), origin_unix_ns=min(v.origin_unix_ns for v in views))
    label = _Labels(trace)
    shown_somewhere: dict[int, NDArray[np.bool_]] = {}
    parts: list[Slices] = []
    pairs: list[tuple[Int64, Int64]] = []
    count = 0
    for view in views:
        shown = view.timed if options.plumbing else view.timed & ~view.helpers
        shown_somewhere[view.structure] = shown_somewhere.get(view.structure, False) | shown
        offset = view.origin_unix_ns - scene.origin_unix_ns if scene.origin_unix_ns else 0
        parts.append(_add_step(scene, view, label, np.flatnonzero(shown), offset))
        at = np.where(shown, count + np.cumsum(shown) - 1, -1)
        count += len(parts[-1])
        spans, launched = _add_spans(scene, view, at, count, offset)
        parts.append(spans)
        count += len(spans)
        if options.flows:
            consumer = np.repeat(at, np.diff(view.dependencies.offsets))
            producer = at[view.dependencies.producer]
            both = (consumer >= 0) & (producer >= 0)
            pairs += [(producer[both], consumer[both]), launched]
    scene.slices = Slices.joined(parts)
    if options.flows:
        producer, consumer = (np.concatenate(side) for side in zip(*pairs, strict=True))
        forward = scene.slices.start_ns[producer] <= scene.slices.start_ns[consumer]
        scene.flows = producer[forward], consumer[forward]
        scene.reversed_flows = len(forward) - int(np.count_nonzero(forward))
    if options.counters and len(trace.allocations):
        _add_memory(scene, trace, views)
    left_out: dict[int, LeftOut] = {}
    for view in views:
        absent = ~shown_somewhere[view.structure]
        expanded = trace.executions.parent[view.rows] >= 0
        helper = np.zeros(len(view), bool) if options.plumbing else view.helpers
        given = (IS_EXPANDED, absent & expanded), ("helper (plumbing=false)", absent & helper), (HAS_NO_TIME, absent)
        left_out[view.structure] = LeftOut.of(len(view), *given)
    return scene, left_out


class _Labels:
    """Texts of nodes and tensors."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.kinds = [kind(op) for op in trace.node_ops]
        self.phases, self.layers = phases(trace), layer_names(trace)
        of_node = [_short_device(trace.strings[d]) for d in trace.nodes.device.tolist()]
        self.devices = sorted(set(of_node))
        self.device = np.array([self.devices.index(name) for name in of_node], np.int64)

    def arguments(self, node: int, outputs: str) -> Arguments:
        """What a selected slice tells, but for its iteration."""
        told = (("op", self.trace.node_ops[node]), ("phase", self.phases[node]), ("layer", self.layers[node]), ("outputs", outputs))
        return tuple((key, text) for key, text in told if text)


def _shown_name(trace: Trace, node: int) -> str:
    """The name of a node's slices; a node without one is shown by its op type."""
    return trace.node_names[node] or trace.node_ops[node] or "(no name)"


def _short_device(name: str) -> str:
    """`CPU:0` for `/job:localhost/replica:0/task:0/device:CPU:0`."""
    return re.sub(r".*/(?:device:)?", "", name) or "CPU:0"


def _add_step(scene: Scene, view: StepView, label: _Labels, shown: Int64, offset_ns: int) -> Slices:
    """The slices of a step, and what they need of the scene."""
    process = len(scene.processes)
    scene.processes[process] = f"step {view.step}"
    nodes, starts, durations = view.nodes[shown], view.start_ns[shown] + offset_ns, view.duration_ns[shown]
    lanes, lane = np.unique(np.stack([label.device[nodes], view.lane[shown]], axis=1), axis=0, return_inverse=True)
    rows = np.zeros(len(shown), np.int64)
    for number, (device, worker) in enumerate(lanes.tolist()):
        members = np.flatnonzero(lane.reshape(-1) == number)
        rows[members] = _deal(scene, process, f"{label.devices[device]} worker {worker}", starts[members], durations[members])
    ran, of_slice = np.unique(nodes, return_inverse=True)
    labels = [scene.labels.number((_shown_name(view.trace, n), label.kinds[n])) for n in ran.tolist()]
    outputs, output_texts = view.output_texts
    made, of_made = np.unique(nodes * len(output_texts) + outputs[shown], return_inverse=True)
    told = [scene.told.number(label.arguments(n // len(output_texts), output_texts[n % len(output_texts)])) for n in made.tolist()]
    paths, path_texts = view.iterations
    iterations = np.array([scene.iterations.number(text) for text in path_texts], np.int64)
    return Slices(
        rows, starts, durations, np.array(labels, np.int64)[of_slice.reshape(-1)], np.array(told, np.int64)[of_made.reshape(-1)],
        iterations[paths[shown]], shown + view.rows.start,
    )  # fmt: skip


def _deal(scene: Scene, process: int, name: str, start: Int64, duration: Int64) -> Int64:
    """The row of each of some intervals, of rows of one name that are added."""
    further = disjoint(start, duration)
    count = int(further.max(initial=-1)) + 1
    rows = [_add_row(scene, process, name + f" ({k + 1})" * (k > 0)) for k in range(count)]
    return np.array(rows, np.int64)[further]


def _add_row(scene: Scene, process: int, name: str) -> int:
    scene.rows.append(Row(len(scene.rows), process, name))
    return len(scene.rows) - 1


def _add_spans(scene: Scene, view: StepView, at: Int64, count: int, offset_ns: int) -> tuple[Slices, tuple[Int64, Int64]]:
    """What ran on the streams of a device in this step, and pairs of slices, of the execution that launched it and its own.

    `at` is the slice of each execution of the step, or -1; `count` are the slices before these.
    """
    trace, spans = view.trace, view.trace.device_spans
    mine = np.flatnonzero(spans.step == view.step) if view.step is not None else np.zeros(0, np.int64)
    start, duration = spans.start[mine].astype(np.int64), (spans.end[mine] - spans.start[mine]).astype(np.int64)
    process = len(scene.processes) - 1
    rows = np.zeros(len(mine), np.int64)
    streams = {trace.strings[stream]: stream for stream in np.unique(spans.stream[mine]).tolist()}
    for name, stream in sorted(streams.items()):
        members = np.flatnonzero(spans.stream[mine] == stream)
        rows[members] = _deal(scene, process, name, start[members], duration[members])
    execution = spans.execution[mine].astype(np.int64)
    launcher = np.where(execution >= 0, at[np.clip(execution - view.rows.start, 0, len(at) - 1)], -1)
    launcher[(execution < view.rows.start) | (execution >= view.rows.stop)] = -1
    labels = [
        scene.labels.number((trace.strings[name], ("kernel", "copy")[what]))
        for name, what in zip(spans.span_name[mine].tolist(), spans.kind[mine].tolist(), strict=True)
    ]
    told = [scene.told.number((("bytes", str(n)),) if n else ()) for n in spans.size_bytes[mine].tolist()]
    none = np.full(len(mine), scene.iterations.number(""))
    made = Slices(
        rows, start - view.base_ns + offset_ns, duration, np.array(labels, np.int64), np.array(told, np.int64), none,
        np.full(len(mine), -1),
    )  # fmt: skip
    known = np.flatnonzero(launcher >= 0)
    return made, (launcher[known], count + known)


def _add_memory(scene: Scene, trace: Trace, views: Sequence[StepView]) -> None:
    """Add the curve of live bytes; beside the steps as a process of its own, where its step is not shown."""
    found = memory(trace)
    known = [v.step for v in views]
    if found.step in known:
        view = views[known.index(found.step)]
        process, base = known.index(found.step), view.base_ns
        base -= view.origin_unix_ns - scene.origin_unix_ns if scene.origin_unix_ns else 0
    else:
        process, base = len(scene.processes), StepView(trace, int(trace.steps.structure[found.step]), found.step).base_ns
        scene.processes[process] = f"step {found.step}: memory only"
    name = COUNTER.format(step=found.step)
    scene.counters.append(Counter(_add_row(scene, process, name), name, found.times_ns - base, found.live_bytes))


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write one file.

    Raises:
        ExportError: the trace has no times, so there is nothing to show.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    views = view_steps(trace, options.step, "exporter 'perfetto'", allow_all=True)
    if not any(view.timed.any() for view in views):
        raise ExportError("the trace has no times, and a timeline shows nothing else; export it as a graph instead")
    scene, left_out = build(trace, views, options)
    if not len(scene.slices):
        raise ExportError("nothing with a time is left to show; set plumbing=true")
    early = _shift(scene)
    stem = file_stem(options.name, trace.provenance)
    file = stem + SUFFIXES[options.format]
    with (folder / file).open("wb") as out:
        out.writelines(encode_native(scene) if options.format == NATIVE else encode_json(scene))
    execution = scene.slices.execution
    count = np.bincount(execution[execution >= 0], minlength=len(trace.executions))

    def describe(view: StepView, node: int, members: Int64) -> Mapping[str, Any]:
        slices = int(count[members + view.rows.start].sum())
        shown = _shown_name(view.trace, node)
        return {"place": f"{file}:{shown}", "how": "slice", "facts": {"slices": slices, "name": shown}}

    layers, skipped = account(views, left_out, describe)
    shown = {
        "slices": len(scene.slices), "flows": len(scene.flows[0]), "counter values": sum(len(c.values) for c in scene.counters),
        "rows": len(scene.rows),
    }  # fmt: skip
    report = ExportReport(
        exporter="perfetto",
        target=TARGET,
        files=(file,),
        layers=layers,
        skipped=skipped,
        settings={**asdict(options), "name": stem, "steps": [v.step for v in views], "shown": shown},
        notes=(*notes(views), *_notes(scene, views, trace, early, options)),
        provenance=dict(trace.provenance),
    )
    verify(views, report)
    return report


def _shift(scene: Scene) -> int:
    """Make all times non-negative (memory may be allocated before the first start); returns by how many ns they were shifted."""
    first = int(min([scene.slices.start_ns.min()] + [c.times_ns[0] for c in scene.counters if len(c.times_ns)]))
    if first >= 0:
        return 0
    scene.slices.start_ns = scene.slices.start_ns - first
    for counter in scene.counters:
        counter.times_ns = counter.times_ns - first
    scene.origin_unix_ns += first if scene.origin_unix_ns else 0
    return -first


def _notes(scene: Scene, views: Sequence[StepView], trace: Trace, early: int, options: Options) -> Iterable[str]:
    if early:
        yield f"times begin {early} ns before the first execution started: memory was allocated then"
    if scene.reversed_flows:
        yield f"{scene.reversed_flows} dependencies have no flow: the consumer began before its producer"
    if options.counters and not len(trace.allocations):
        yield "no counter: the trace has no allocation records (capture --memory-steps 1)"
    for counter in scene.counters:
        step = int(trace.allocations.step[0])
        if step not in [v.step for v in views]:
            yield f"'{counter.name}' is of another step than the slices, with that step's own times; --set step={step} shows both of one"


def _events(scene: Scene) -> Iterator[tuple[Int64, Int64, NDArray[np.bool_]]]:
    """Time, slice, and whether it ends, of all begins and ends in the order in which a reader needs them, some at once.

    At one time ends come before begins, but for the end of what takes no time.
    """
    start, duration = scene.slices.start_ns, scene.slices.duration_ns
    time = np.concatenate([start, start + duration])
    late = np.concatenate([np.ones(len(start), bool), duration == 0])
    event = np.concatenate([2 * np.arange(len(start)), 2 * np.arange(len(start)) + 1])
    order = np.lexsort((event, late, time))
    for begin in range(0, len(order), BLOCK):
        part = order[begin : begin + BLOCK]
        yield time[part], event[part] >> 1, (event[part] & 1).astype(bool)


class _Ends:
    """The numbers (from 1) of the flows that begin or end at each slice."""

    def __init__(self, ends: Int64, slices: int, tag: bytes) -> None:
        self.order = np.argsort(ends, kind="stable")
        self.offsets = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=slices))]).astype(np.int64)
        self.tag = np.frombuffer(tag, np.uint8)

    def fields(self, slices: Int64) -> Iterator[bytes]:
        """For each of some slices a field of type fixed64 for each flow."""
        begins, counts = self.offsets[slices], self.offsets[slices + 1] - self.offsets[slices]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        places = np.repeat(begins - bounds[:-1], counts) + np.arange(bounds[-1])
        raw = np.empty((len(places), len(self.tag) + 8), np.uint8)
        raw[:, : len(self.tag)] = self.tag
        raw[:, len(self.tag) :] = (self.order[places] + 1).astype("<u8")[:, None].view(np.uint8)
        content, edges = raw.tobytes(), (bounds * raw.shape[1]).tolist()
        return (content[a:b] for a, b in pairwise(edges))


SEQUENCE = 1
CLEARED, NEEDED = 1, 2
SLICE_BEGIN, SLICE_END, COUNTER_VALUE = 1, 2, 4
REAL_TIME, BOOT_TIME = 1, 6
UNIT_BYTES = 3


def _interned(number: int, texts: Iterable[str]) -> bytes:
    """Texts, numbered from 1, as a field of InternedData."""
    return b"".join(wire.delimited(number, wire.integer(1, i) + wire.delimited(2, text)) for i, text in enumerate(texts, start=1))


def _packet(content: bytes) -> bytes:
    return b"".join((PACKET, wire.length(len(content)), content))


PACKET = wire.tag(1, wire.LENGTH)


def _interned_texts(scene: Scene) -> tuple[Texts[str], Texts[str]]:
    """Keys and texts of all arguments, numbered in the order in which slices use them."""
    keys, texts = Texts[str](), Texts[str]()
    keys.number("execution")
    uses = [(first, 0, number) for number, first in enumerate(_first_use(scene.slices.told, len(scene.told)))]
    uses += [(first, 1, number) for number, first in enumerate(_first_use(scene.slices.iteration, len(scene.iterations)))]
    told, iterations = list(scene.told), list(scene.iterations)
    for first, which, number in sorted(uses):
        pairs = told[number] if which == 0 else ((("iteration", iterations[number]),) if iterations[number] else ())
        for key, text in pairs if first < len(scene.slices) else ():
            keys.number(key)
            texts.number(text)
    return keys, texts


def _first_use(numbers: Int64, count: int) -> list[int]:
    """The first place of each of `count` numbers; behind all, of those that are nowhere."""
    first = np.full(count, len(numbers))
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return list(first.tolist())


def encode_native(scene: Scene) -> Iterator[bytes]:
    """The packets of Perfetto's protobuf format, by time."""
    sequence, tail = wire.integer(10, SEQUENCE), wire.integer(13, NEEDED)
    names, categories = Texts[str](), Texts[str]()
    for name, category in scene.labels:
        names.number(name)
        categories.number(category)
    keys, texts = _interned_texts(scene)
    interned = (_interned(1, categories), _interned(2, names), _interned(3, keys), _interned(29, texts))
    yield _packet(sequence + wire.delimited(12, b"".join(interned)) + wire.integer(13, CLEARED))
    yield from _descriptors(scene, sequence)
    if scene.origin_unix_ns:
        clocks = ((BOOT_TIME, 0), (REAL_TIME, scene.origin_unix_ns))
        fields = (wire.delimited(1, wire.integer(1, clock) + wire.integer(2, time)) for clock, time in clocks)
        yield _packet(wire.delimited(6, b"".join(fields)) + sequence)
    where = [wire.integer(11, track(row.number)) for row in scene.rows]
    closing = [sequence + wire.delimited(11, wire.integer(9, SLICE_END) + track_field) + tail for track_field in where]
    begins = _Begins(scene, (names, categories, keys, texts), where)
    for times, numbers, ends in _events(scene):
        begun = begins.contents(numbers[~ends])
        packets: list[bytes] = []
        stamps, rows = wire.varints(times), scene.slices.row[numbers].tolist()
        for stamp, row, is_end in zip(stamps, rows, ends.tolist(), strict=True):
            if is_end:
                content = b"".join((b"\x40", stamp, closing[row]))
            else:
                event = next(begun)
                content = b"".join((b"\x40", stamp, sequence, EVENT, wire.length(len(event)), event, tail))
            packets += (PACKET, wire.length(len(content)), content)
        yield b"".join(packets)
    for counter in scene.counters:
        head = wire.integer(9, COUNTER_VALUE) + wire.integer(11, track(counter.row))
        for begin in range(0, len(counter.values), BLOCK):
            part = slice(begin, begin + BLOCK)
            for time, value in zip(counter.times_ns[part].tolist(), counter.values[part].tolist(), strict=True):
                yield _packet(wire.integer(8, time) + sequence + wire.delimited(11, head + wire.integer(30, value % 2**64)) + tail)


EVENT = wire.tag(11, wire.LENGTH)


class _Begins:
    """What the packets that begin slices hold. `interned` are names, categories, keys and texts, `where` the field of each row."""

    def __init__(self, scene: Scene, interned: Sequence[Texts[str]], where: Sequence[bytes]) -> None:
        names, categories, keys, texts = interned

        def argument(key: str, text: str) -> bytes:
            return wire.delimited(4, wire.integer(1, keys.number(key) + 1) + wire.integer(17, texts.number(text) + 1))

        self.slices, self.where = scene.slices, where
        self.heads = [wire.integer(3, categories.number(category) + 1) for _, category in scene.labels]
        self.ends = [wire.integer(9, SLICE_BEGIN) + wire.integer(10, names.number(name) + 1) for name, _ in scene.labels]
        self.told = [b"".join(argument(key, text) for key, text in one) for one in scene.told]
        used = set(np.unique(scene.slices.iteration).tolist())
        self.iterations = [argument("iteration", text) if text and n in used else b"" for n, text in enumerate(scene.iterations)]
        self.executed = wire.integer(1, keys.number("execution") + 1) + wire.tag(3, wire.VARINT)
        self.outgoing = _Ends(scene.flows[0], len(scene.slices), wire.tag(47, wire.FIXED64))
        self.incoming = _Ends(scene.flows[1], len(scene.slices), wire.tag(48, wire.FIXED64))

    def contents(self, numbers: Int64) -> Iterator[bytes]:
        """The TrackEvent of each of some slices."""
        row, _, _, label, told, iteration, execution = (column[numbers].tolist() for column in self.slices.columns)
        raw = wire.varints(self.slices.execution[numbers].clip(0))
        columns = row, label, told, iteration, execution, raw, self.outgoing.fields(numbers), self.incoming.fields(numbers)
        for where, name, args, turn, ran, number, outgoing, incoming in zip(*columns, strict=True):
            own = b"".join((ARGUMENT, wire.length(len(self.executed) + len(number)), self.executed, number)) if ran >= 0 else b""
            parts = self.heads[name], self.told[args], self.iterations[turn], own, self.ends[name], self.where[where]
            yield b"".join((*parts, outgoing, incoming))


ARGUMENT = wire.tag(4, wire.LENGTH)
PROCESS_TRACK, ROW_TRACK = 1_000, 1_000_000


def track(row: int) -> int:
    """The track uuid of a row."""
    return ROW_TRACK + row


def _descriptors(scene: Scene, sequence: bytes) -> Iterator[bytes]:
    """What the tracks are: a process for each step, in it a thread for each row, or a counter."""
    counters = {counter.row for counter in scene.counters}
    for process, name in scene.processes.items():
        content = wire.integer(1, process + 1) + wire.delimited(6, name)
        yield _packet(sequence + wire.delimited(60, wire.integer(1, PROCESS_TRACK + process) + wire.delimited(3, content)))
    for row in scene.rows:
        head = wire.integer(1, track(row.number))
        if row.number in counters:
            content = head + wire.delimited(2, row.name) + wire.integer(5, PROCESS_TRACK + row.process)
            content += wire.delimited(8, wire.integer(3, UNIT_BYTES))
        else:
            thread = wire.integer(1, row.process + 1) + wire.integer(2, thread_id(row.number)) + wire.delimited(5, row.name)
            content = head + wire.delimited(4, thread)
        yield _packet(sequence + wire.delimited(60, content))


def thread_id(row: int) -> int:
    """The thread number of a row: none is that of a process, which would make it the main thread."""
    return 10_000 + row


def _text(text: str) -> str:
    """A JSON string that keeps letters as they are: Perfetto does not read their escapes."""
    return json.dumps(text, ensure_ascii=False)


def encode_json(scene: Scene) -> Iterator[bytes]:
    """The lines of a Chrome trace; every time in microseconds with three decimals, whatever the display unit."""
    other = {"origin_unix_ns": str(scene.origin_unix_ns)}
    yield f'{{"displayTimeUnit":"ns","otherData":{json.dumps(other)},"traceEvents":[\n'.encode()
    counters = {counter.row for counter in scene.counters}
    lines: list[str] = []
    for process, name in scene.processes.items():
        lines.append(f'{{"ph":"M","pid":{process + 1},"name":"process_name","args":{{"name":{_text(name)}}}}}')
    for row in scene.rows:
        if row.number not in counters:
            head = f'{{"ph":"M","pid":{row.process + 1},"tid":{thread_id(row.number)}'
            lines.append(f'{head},"name":"thread_name","args":{{"name":{_text(row.name)}}}}}')
            lines.append(f'{head},"name":"thread_sort_index","args":{{"sort_index":{row.number}}}}}')
    yield ",\n".join(lines).encode()
    yield from _json_slices(scene)
    yield from _json_flows(scene)
    for counter in scene.counters:
        place, text = f'"pid":{scene.rows[counter.row].process + 1}', _text(counter.name)
        for begin in range(0, len(counter.values), BLOCK):
            part = slice(begin, begin + BLOCK)
            pairs = zip(counter.times_ns[part].tolist(), counter.values[part].tolist(), strict=True)
            made = [f'{{"ph":"C","ts":{t // 1000}.{t % 1000:03d},{place},"name":{text},"args":{{"bytes":{v}}}}}' for t, v in pairs]
            yield "".join(f",\n{line}" for line in made).encode()
    yield b"\n]}\n"


def _places(scene: Scene) -> list[str]:
    """Process and thread of each row."""
    return [f'"pid":{row.process + 1},"tid":{thread_id(row.number)}' for row in scene.rows]


def _json_slices(scene: Scene) -> Iterator[bytes]:
    """Slices as Chrome has them, each after a comma: joins of pieces that are made once or in bulk."""
    where, slices = _places(scene), scene.slices
    labels = [f',"name":{_text(name)},"cat":{_text(category)},"args":{{' for name, category in scene.labels]
    told = [",".join(f"{_text(key)}:{_text(text)}" for key, text in one) for one in scene.told]
    of_execution = [f",{text}" if text else "" for text in told]
    turns = [f',"iteration":{_text(text)}}}}}' if text else "}}" for text in scene.iterations]
    for begin in range(0, len(slices), BLOCK):
        row, start, duration, label, args, iteration, execution = (column[begin : begin + BLOCK] for column in slices.columns)
        ran = execution.tolist()
        columns = (
            digits.microseconds(start), digits.microseconds(duration), row.tolist(), label.tolist(), args.tolist(),
            iteration.tolist(), ran,
        )  # fmt: skip
        yield "".join(
            chain.from_iterable(
                (
                    ',\n{"ph":"X","ts":', at, ',"dur":', took, ",", where[place], labels[name],
                    f'"execution":{e}' if e >= 0 else "", (of_execution if e >= 0 else told)[arg], turns[turn],
                )
                for at, took, place, name, arg, turn, e in zip(*columns, strict=True)
            )
        ).encode()  # fmt: skip


def _json_flows(scene: Scene) -> Iterator[bytes]:
    """Flows as Chrome has them, both ends of each, each after a comma."""
    where, slices = _places(scene), scene.slices
    for begin in range(0, len(scene.flows[0]), BLOCK):
        parts = []
        for side in scene.flows:
            members = side[begin : begin + BLOCK]
            starts = digits.microseconds(slices.start_ns[members])
            rows = slices.row[members].tolist()
            parts.append([f'{start},{where[row]},"name":"depends","cat":"flow"}}' for start, row in zip(starts, rows, strict=True)])
        count = len(parts[0])
        numbers = digits.texts(np.arange(begin + 1, begin + count + 1))
        first, last, then = [',\n{"ph":"s","id":'] * count, [',\n{"ph":"f","bp":"e","id":'] * count, [',"ts":'] * count
        columns = first, numbers, then, parts[0], last, numbers, then, parts[1]
        yield "".join(chain.from_iterable(zip(*columns, strict=True))).encode()


# --- checking ---------------------------------------------------------------------------------------------------------------------

MOST_PROBLEMS = 20


class _Seen:
    """What a parser found. Slices are columns: row, start and duration in ns, name (a number of `names`), execution or -1."""

    def __init__(self) -> None:
        self.names = Texts[str]()
        self.row, self.start, self.duration, self.name, self.execution = (array("q") for _ in range(5))
        self.flows = self.counter_values = 0
        self.rows: set[int] = set()

    def add(self, row: int, start: int, duration: int, name: int, execution: int) -> None:
        """A slice; raises `OverflowError` where a number has more than 64 bits."""
        self.row.append(row)
        self.start.append(start)
        self.duration.append(duration)
        self.name.append(name)
        self.execution.append(execution)

    @property
    def columns(self) -> tuple[Int64, ...]:
        """The slices as arrays."""
        return tuple(np.frombuffer(c, np.int64) for c in (self.row, self.start, self.duration, self.name, self.execution))


def check(folder: Path) -> CheckReport:
    """Parse the file strictly, a piece at a time, and compare with `export.json`.

    In the file: no unknown field or key, times in order, no slice that overlaps or nests in another of its row, every name interned, every
    flow with two ends, the first not after the second. Against the trace: the slices and the exact time of each node, and all counts.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    try:
        layers = LayerMap(report["layers"])
        shown, native = dict(report["settings"]["shown"]), report["settings"]["format"] == NATIVE
        [name] = report["files"]
        path = folder / name
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of perfetto ({error}); export again") from None
    try:
        with path.open("rb") as file:
            seen = (_parse_native if native else _parse_json)(file, problems)
    except OSError as error:
        return CheckReport((), {}, (f"{name} cannot be read ({type(error).__name__})",))
    facts = {"slices": len(seen.row), "flows": seen.flows, "counter values": seen.counter_values, "rows": len(seen.rows)}
    facts["time_ns"] = sum(seen.duration)
    if not problems:
        problems += [f"{facts[key]} {key}, export.json says {shown.get(key)}" for key in shown if facts.get(key) != shown[key]]
        problems += _overlaps(seen)
        problems += _differences(seen, layers)
    return CheckReport((name,), facts, tuple(f"{name}: {text}" for text in problems))


def _overlaps(seen: _Seen) -> Iterable[str]:
    """Slices of one row that are not one after the other."""
    row, start, duration, name, _ = seen.columns
    end = start + duration
    order = np.lexsort((end, start, row))
    wrong = (row[order[1:]] == row[order[:-1]]) & (end[order[:-1]] > start[order[1:]])
    names = list(seen.names)
    for a, b in zip(order[:-1][wrong].tolist(), order[1:][wrong].tolist(), strict=True):
        yield f"'{names[name[b]]}' at {start[b]} ns overlaps '{names[name[a]]}' on its row"


def _differences(seen: _Seen, layers: LayerMap) -> Iterable[str]:
    _, _, duration, name, execution = seen.columns
    of = layers.layer_of(execution)
    times, counts = layers.sums(of, duration).tolist(), layers.sums(of).tolist()
    shown = layers.facts("name")
    expected = np.array([seen.names.numbers.get(text, -1) if isinstance(text, str) else -1 for text in shown] or [-1], np.int64)
    renamed = set(np.unique(of[(of >= 0) & (name != expected[of])]).tolist())
    for number, layer in enumerate(layers.layers):
        found = times[number], counts[number]
        if found != (layer.time_ns, layer.facts.get("slices")):
            yield f"{layer.name}: {found[0]} ns in {found[1]} slices, in the trace {layer.time_ns:.0f} in {layer.facts.get('slices')}"
        if number in renamed:
            yield f"{layer.name}: a slice of it has another name"
    names, (_, first) = list(seen.names), np.unique(np.where((of < 0) & (execution != -1), execution, -1), return_index=True)
    yield from (f"'{names[name[i]]}' is of no execution that was exported" for i in first.tolist() if of[i] < 0 and execution[i] != -1)


def _parse_native(file: BinaryIO, problems: list[str]) -> _Seen:
    from google.protobuf.message import DecodeError

    from fathom_trace.generated.perfetto_events_pb2 import TracePacket

    state = _Reading(problems)
    seen = state.seen
    try:
        for number, (_, raw) in enumerate(wire.read_records(file, PACKET)):
            packet = TracePacket.FromString(raw)
            packet.DiscardUnknownFields()
            if packet.SerializeToString() != raw:
                problems.append("it has fields that are never written")
                return seen
            what = packet.WhichOneof("data")
            if packet.HasField("interned_data"):
                state.intern(packet.interned_data)
            elif not state.names:
                problems.append(f"packet {number} comes before the interned names")
                return seen
            elif what == "track_descriptor":
                state.describe(packet.track_descriptor)
            elif what == "track_event":
                state.event(packet, number)
            if len(problems) > MOST_PROBLEMS:
                return seen
    except (DecodeError, wire.CutOffError):
        problems.append("it is no sequence of packets, or is cut off")
        return seen
    except OverflowError:
        problems.append("it has numbers that are never written")
        return seen
    state.finish()
    return seen


class _Reading:
    """Reads packets in order."""

    def __init__(self, problems: list[str]) -> None:
        self.seen, self.problems = _Seen(), problems
        self.names: dict[int, int] = {}
        self.keys: dict[int, str] = {}
        self.texts: set[int] = set()
        self.categories: set[int] = set()
        self.counters: set[int] = set()
        self.open: dict[int, tuple[int, int, int]] = {}
        self.begun, self.ended = _FlowEnds(), _FlowEnds()
        self.clock = 0
        self.counter_clock: dict[int, int] = defaultdict(int)

    def intern(self, data: Any) -> None:
        """Names."""
        interned = {f.name: {each.iid: each.name for each in value} for f, value in data.ListFields()}
        names = interned.get("event_names", {})
        self.names = {iid: self.seen.names.number(name) for iid, name in names.items()}
        self.keys = interned.get("debug_annotation_names", {})
        self.texts = set(interned.get("debug_annotation_string_values", {}))
        self.categories = set(interned.get("event_categories", {}))

    def describe(self, descriptor: Any) -> None:
        """A track."""
        if not descriptor.HasField("process"):
            self.seen.rows.add(descriptor.uuid)
        if descriptor.HasField("counter"):
            self.counters.add(descriptor.uuid)

    def event(self, packet: Any, number: int) -> None:
        """A begin, an end or a value."""
        event, time = packet.track_event, packet.timestamp
        track_id, what = event.track_uuid, event.type
        if track_id not in self.seen.rows:
            self.problems.append(f"packet {number} is on a track that was not described")
        elif what == COUNTER_VALUE:
            if track_id not in self.counters or not event.HasField("counter_value") or time < self.counter_clock[track_id]:
                self.problems.append(f"packet {number} is no value of a counter at a later time")
            self.counter_clock[track_id] = time
            self.seen.counter_values += 1
        elif time < self.clock:
            self.problems.append(f"packet {number} goes back in time")
        elif what == SLICE_BEGIN:
            self.clock = time
            self._begin(event, time, number)
        elif what == SLICE_END and track_id in self.open:
            self.clock = time
            start, name, execution = self.open.pop(track_id)
            self.seen.add(track_id, start, time - start, name, execution)
        else:
            self.problems.append(f"packet {number} ends a slice that was not begun, or is of type {what}")

    def _begin(self, event: Any, time: int, number: int) -> None:
        track_id, name, categories = event.track_uuid, event.name_iid, event.category_iids
        if track_id in self.open:
            self.problems.append(f"packet {number} begins inside the slice '{list(self.seen.names)[self.open[track_id][1]]}'")
        unknown, execution = name not in self.names or not categories or not self.categories.issuperset(categories), -1
        for argument in event.debug_annotations:
            key = self.keys.get(argument.name_iid)
            text = argument.string_value_iid
            unknown = unknown or key is None or (text not in self.texts if text else argument.HasField("string_value_iid"))
            if key == "execution" and execution < 0:
                execution = argument.uint_value
        if unknown:
            self.problems.append(f"packet {number} uses a name that was not interned")
            return
        self.open[track_id] = (time, self.names[name], execution)
        for flow in event.terminating_flow_ids:
            self.ended.add(flow, number)
        for flow in event.flow_ids:
            self.begun.add(flow, number)

    def finish(self) -> None:
        """Everything that began has ended, and every flow once, after it began."""
        names = list(self.seen.names)
        self.problems += [f"slice '{names[name]}' has no end" for _, name, _ in self.open.values()]
        begun, began_at, again = self.begun.once()
        ended, ended_at, twice = self.ended.once()
        self.problems += [f"packet {number} begins flow {flow} again" for flow, number in again[:MOST_PROBLEMS]]
        place = np.minimum(np.searchsorted(begun, ended), max(len(begun) - 1, 0))
        known = begun[place] == ended if len(begun) else np.zeros(len(ended), bool)
        early = ~known if not len(begun) else ~known | (began_at[place] >= ended_at)
        wrong = [*zip(ended[early].tolist(), ended_at[early].tolist(), strict=True), *twice]
        self.problems += [
            f"packet {number} ends flow {flow}, which did not begin, or ended before" for flow, number in wrong[:MOST_PROBLEMS]
        ]
        lost = len(begun) - int(np.count_nonzero(known))
        if lost:
            self.problems.append(f"{lost} flows have no end")
        self.seen.flows = len(begun)


class _FlowEnds:
    """Flows that begin, or that end, and in which packet."""

    def __init__(self) -> None:
        self.flows, self.packets = array("Q"), array("q")

    def add(self, flow: int, packet: int) -> None:
        """One more."""
        self.flows.append(flow)
        self.packets.append(packet)

    def once(self) -> tuple[NDArray[np.uint64], Int64, list[tuple[int, int]]]:
        """Flows ascending and the packet of each, without those that are there again; these as pairs."""
        flows, packets = np.array(self.flows, np.uint64), np.array(self.packets, np.int64)
        order = np.argsort(flows, kind="stable")
        flows, packets = flows[order], packets[order]
        again = np.concatenate([np.zeros(min(len(flows), 1), bool), flows[1:] == flows[:-1]])
        return flows[~again], packets[~again], list(zip(flows[again].tolist(), packets[again].tolist(), strict=True))


JSON_KEYS = {
    "X": {"ph", "ts", "dur", "pid", "tid", "name", "cat", "args"}, "s": {"ph", "id", "ts", "pid", "tid", "name", "cat"},
    "f": {"ph", "bp", "id", "ts", "pid", "tid", "name", "cat"}, "C": {"ph", "ts", "pid", "name", "args"},
}  # fmt: skip
JSON_BEGIN = re.compile(rb'\{"displayTimeUnit":"ns","otherData":\{"origin_unix_ns": "[0-9]+"\},"traceEvents":\[\n')
JSON_END = b"]}\n"
READ_BYTES = 1 << 20


def _parse_json(file: BinaryIO, problems: list[str]) -> _Seen:
    """A line is an event: some of them at a time are parsed as a list."""
    state = _ReadingJson(problems)
    try:
        if not JSON_BEGIN.fullmatch(file.readline(256)):
            raise ValueError("it lacks displayTimeUnit, otherData with origin_unix_ns, or traceEvents, or has more than these")
        lines = file.readlines(READ_BYTES)
        while lines:
            following = file.readlines(READ_BYTES)
            if not following:
                if lines.pop() != JSON_END or (lines and lines[-1].endswith(b",\n")):
                    raise ValueError("its last lines are not those of a trace")
            elif not lines[-1].endswith(b",\n") and following != [JSON_END]:
                raise ValueError("a line ends without a comma")
            for event in json.loads(b"[" + b"".join(lines).removesuffix(b"\n").removesuffix(b",") + b"]", parse_float=_exact_ns):
                if not state.event(event):
                    return state.seen
            lines = following
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problems.append(f"it is no Chrome trace ({type(error).__name__}: {error})")
        return state.seen
    state.finish()
    return state.seen


class _ReadingJson:
    """Reads events in order."""

    def __init__(self, problems: list[str]) -> None:
        self.seen, self.problems, self.number = _Seen(), problems, -1
        self.places = Texts[tuple[int, int]]()
        self.place = array("q")
        self.sides = {what: (array("q"), array("q"), array("q")) for what in "sf"}

    def event(self, event: Any) -> bool:
        """One event; false where nothing that follows is worth reading."""
        self.number += 1
        what, seen = event["ph"], self.seen
        if what == "M":
            if event.get("name") == "thread_name":
                seen.rows.add(event["tid"])
            return True
        if set(event) != JSON_KEYS.get(what) or not self._is_sound(event):
            self.problems.append(f"event {self.number} has not the keys and times of a '{what}' event")
            return False
        if what == "C":
            seen.counter_values += 1
            seen.rows.add(-event["pid"])
            return True
        place, start = self.places.number((event["pid"], event["tid"])), event["ts"]
        if event["tid"] not in seen.rows:
            self.problems.append(f"event {self.number} is on a row that has no name")
        if what == "X":
            self.place.append(place)
            seen.add(event["tid"], start, event["dur"], seen.names.number(event["name"]), event["args"].get("execution", -1))
        else:
            ids, places, times = self.sides[what]
            ids.append(event["id"])
            places.append(place)
            times.append(start)
        return len(self.problems) <= MOST_PROBLEMS

    def _is_sound(self, event: Mapping[str, Any]) -> bool:
        """Whether what is compared is of the type that it is compared as."""
        arguments = event.get("args", {})
        execution = arguments.get("execution", 0) if isinstance(arguments, dict) else None
        numbers = (event["pid"], event.get("tid", 0), event["ts"], event.get("dur", 0), event.get("id", 0), execution)
        return set(map(type, numbers)) == {int} and min(numbers) >= 0 and max(numbers) < 2**63 and type(event["name"]) is str

    def finish(self) -> None:
        """Every flow has two ends, the first not after the second, and each where a slice begins."""
        (ids, places, times), (other_ids, other_places, other_times) = (
            tuple(np.array(column, np.int64) for column in self.sides[what]) for what in "sf"
        )
        self.seen.flows = len(ids)
        order, other = np.argsort(ids, kind="stable"), np.argsort(other_ids, kind="stable")
        for flows in (ids[order], other_ids[other]):
            self.problems += [
                f"an end of flow {flow} is repeated" for flow in flows[1:][flows[1:] == flows[:-1]][:MOST_PROBLEMS].tolist()
            ]
        if not np.array_equal(ids[order], other_ids[other]):
            self.problems.append("a flow has only one end")
        elif np.any(times[order] > other_times[other]):
            self.problems.append("a flow goes back in time")
        begins = np.array(self.place, np.int64), np.array(self.seen.start, np.int64)
        if _lacks(begins, (np.concatenate([places, other_places]), np.concatenate([times, other_times]))):
            self.problems.append("a flow has an end where no slice begins")


def _lacks(have: tuple[Int64, Int64], wanted: tuple[Int64, Int64]) -> bool:
    """Whether a pair of `wanted` is none of `have`."""
    times = np.unique(have[1])
    at = np.minimum(np.searchsorted(times, wanted[1]), max(len(times) - 1, 0))
    if len(wanted[1]) and (not len(times) or np.any(times[at] != wanted[1])):
        return True
    keys = np.unique(have[0] * len(times) + np.searchsorted(times, have[1]))
    found = np.minimum(np.searchsorted(keys, asked := wanted[0] * len(times) + at), max(len(keys) - 1, 0))
    return bool(len(asked) and np.any(keys[found] != asked))


def _exact_ns(text: str) -> int:
    """A number of microseconds with three decimals, in ns."""
    whole, _, fraction = text.partition(".")
    if len(fraction) != 3 or not fraction.isdecimal():
        raise ValueError(f"{text} is not in microseconds with three decimals")
    return int(whole + fraction)
