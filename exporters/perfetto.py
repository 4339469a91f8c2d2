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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from fathom_trace import digits, wire
from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportedLayer, ExportReport, Target, read_report
from fathom_trace.lanes import disjoint
from fathom_trace.layers import layer_names
from fathom_trace.memory import memory
from fathom_trace.ops import kind
from fathom_trace.options import option
from fathom_trace.phases import phases
from fathom_trace.steps import MEDIAN, STEP_DOC, StepView, account, notes, verify, view_steps
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


class Slice(NamedTuple):
    """One bar: times in ns after its step's start; `execution` is -1 for what ran on a device stream.

    `label` and `told` are numbers of the scene's labels (name and category) and arguments.
    """

    row: int
    start_ns: int
    duration_ns: int
    label: int
    told: int
    execution: int


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


@dataclass
class Scene:
    """Everything that a file shows. `slices` come so that producers precede consumers; `flows` are pairs of them.

    Several steps stand where they ran, if the trace says when that was; else they all begin at 0.
    """

    processes: dict[int, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    labels: Texts[tuple[str, str]] = field(default_factory=Texts)
    told: Texts[Arguments] = field(default_factory=Texts)
    flows: list[tuple[int, int]] = field(default_factory=list)
    counters: list[tuple[int, str, list[tuple[int, int]]]] = field(default_factory=list)
    """(row, name, (time ns, value) in order)"""
    origin_unix_ns: int = 0
    reversed_flows: int = 0
    """Dependencies that are not shown because the consumer began before its producer."""


def build(trace: Trace, views: Sequence[StepView], options: Options) -> tuple[Scene, dict[int, dict[int, str]]]:
    """The scene of some steps, and by structure which executions (local numbers) are in none of them, and why."""
    scene = Scene(origin_unix_ns=min(v.origin_unix_ns for v in views))
    label = _Labels(trace)
    shown_somewhere: dict[int, set[int]] = defaultdict(set)
    for view in views:
        shown = view.timed if options.plumbing else view.timed & ~view.helpers
        offset = view.origin_unix_ns - scene.origin_unix_ns if scene.origin_unix_ns else 0
        at = _add_step(scene, view, label, np.flatnonzero(shown).tolist(), offset)
        shown_somewhere[view.structure] |= set(at)
        wanted = [(at[p], at[i]) for i in at for p in view.producers[i] if p in at] + _add_spans(scene, view, at, offset)
        if options.flows:
            forward = [(a, b) for a, b in wanted if scene.slices[a].start_ns <= scene.slices[b].start_ns]
            scene.flows += forward
            scene.reversed_flows += len(wanted) - len(forward)
    if options.counters and len(trace.allocations):
        _add_memory(scene, trace, views)
    left_out: dict[int, dict[int, str]] = {}
    for view in views:
        absent = set(range(len(view))) - shown_somewhere[view.structure]
        expanded = trace.executions.parent[view.rows] >= 0
        left_out[view.structure] = {
            i: IS_EXPANDED if expanded[i] else HAS_NO_TIME if options.plumbing or not view.helpers[i] else "helper (plumbing=false)"
            for i in sorted(absent)
        }
    return scene, left_out


class _Labels:
    """Texts of nodes and tensors."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.kinds = [kind(op) for op in trace.node_ops]
        self.phases, self.layers = phases(trace), layer_names(trace)
        self.devices = [_short_device(trace.strings[d]) for d in trace.nodes.device.tolist()]
        self.shapes = [f"[{','.join(map(str, s))}]" for s in trace.shapes.values]
        self._of_node: dict[int, Arguments] = {}

    def arguments(self, node: int, execution: int, iteration: str) -> Arguments:
        """What a selected slice tells."""
        trace = self.trace
        if node not in self._of_node:
            told = (("op", trace.node_ops[node]), ("phase", self.phases[node]), ("layer", self.layers[node]))
            self._of_node[node] = tuple((key, text) for key, text in told if text)
        rows = trace.outputs(execution)
        made = [f"{trace.strings[int(trace.tensors.dtype[t])]}{self.shapes[int(trace.tensors.shape[t])]}" for t in rows]
        own = (("outputs", " ".join(made)),) if made else ()
        return self._of_node[node] + own + ((("iteration", iteration),) if iteration else ())


def _shown_name(trace: Trace, node: int) -> str:
    """The name of a node's slices; a node without one is shown by its op type."""
    return trace.node_names[node] or trace.node_ops[node] or "(no name)"


def _short_device(name: str) -> str:
    """`CPU:0` for `/job:localhost/replica:0/task:0/device:CPU:0`."""
    return re.sub(r".*/(?:device:)?", "", name) or "CPU:0"


def _add_step(scene: Scene, view: StepView, label: _Labels, shown: Sequence[int], offset_ns: int) -> dict[int, int]:
    """Add a step's slices; returns the slice of each shown execution (local numbers)."""
    process = len(scene.processes)
    scene.processes[process] = f"step {view.step}"
    starts, durations, workers = (view.start_ns + offset_ns).tolist(), view.duration_ns.tolist(), view.lane.tolist()
    lanes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i in shown:
        lanes[label.devices[view.nodes[i]], workers[i]].append(i)
    row_of: dict[int, int] = {}
    for (device, worker), members in sorted(lanes.items()):
        for further, part in enumerate(disjoint([(starts[i], durations[i], i) for i in members])):
            name = f"{device} worker {worker}" + f" ({further + 1})" * (further > 0)
            row_of |= dict.fromkeys(part, _add_row(scene, process, name))
    at: dict[int, int] = {}
    iterations = view.iterations
    labels = {n: scene.labels.number((_shown_name(view.trace, n), label.kinds[n])) for n in {view.nodes[i] for i in shown}}
    for i in shown:
        node, execution = view.nodes[i], i + view.rows.start
        at[i] = len(scene.slices)
        told = scene.told.number(label.arguments(node, execution, iterations[i]))
        scene.slices.append(Slice(row_of[i], starts[i], durations[i], labels[node], told, execution))
    return at


def _add_row(scene: Scene, process: int, name: str) -> int:
    scene.rows.append(Row(len(scene.rows), process, name))
    return len(scene.rows) - 1


def _add_spans(scene: Scene, view: StepView, at: Mapping[int, int], offset_ns: int) -> list[tuple[int, int]]:
    """Add what ran on the streams of a device in this step; returns pairs of slices, of the execution that launched it and its own."""
    trace, spans = view.trace, view.trace.device_spans
    mine = np.flatnonzero(spans.step == view.step).tolist() if view.step is not None else []
    by_stream: dict[str, list[int]] = defaultdict(list)
    for s in mine:
        by_stream[trace.strings[int(spans.stream[s])]].append(s)
    process = len(scene.processes) - 1
    row_of: dict[int, int] = {}
    for stream, members in sorted(by_stream.items()):
        intervals = [(int(spans.start[s]), int(spans.end[s] - spans.start[s]), s) for s in members]
        for further, part in enumerate(disjoint(intervals)):
            row_of |= dict.fromkeys(part, _add_row(scene, process, stream + f" ({further + 1})" * (further > 0)))
    launched = []
    for s in mine:
        start, execution = int(spans.start[s]) - view.base_ns + offset_ns, int(spans.execution[s])
        told: Arguments = (("bytes", str(int(spans.size_bytes[s]))),) if spans.size_bytes[s] else ()
        launcher = at.get(execution - view.rows.start) if execution >= 0 else None
        if launcher is not None:
            launched.append((launcher, len(scene.slices)))
        name, category = trace.strings[int(spans.span_name[s])], ("kernel", "copy")[int(spans.kind[s])]
        named, argued = scene.labels.number((name, category)), scene.told.number(told)
        scene.slices.append(Slice(row_of[s], start, int(spans.end[s] - spans.start[s]), named, argued, -1))
    return launched


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
    values = list(zip((found.times_ns - base).tolist(), found.live_bytes.tolist(), strict=True))
    scene.counters.append((_add_row(scene, process, name), name, values))


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
    if not scene.slices:
        raise ExportError("nothing with a time is left to show; set plumbing=true")
    early = _shift(scene)
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", options.name or str(trace.provenance.get("workload") or "trace"))
    file = stem + SUFFIXES[options.format]
    with (folder / file).open("wb") as out:
        out.writelines(encode_native(scene) if options.format == NATIVE else encode_json(scene))
    count: dict[int, int] = defaultdict(int)
    for each in scene.slices:
        count[each.execution] += 1

    def describe(view: StepView, node: int, members: list[int]) -> Mapping[str, Any]:
        slices = sum(count[i + view.rows.start] for i in members)
        shown = _shown_name(view.trace, node)
        return {"place": f"{file}:{shown}", "how": "slice", "facts": {"slices": slices, "name": shown}}

    layers, skipped = account(views, left_out, describe)
    shown = {
        "slices": len(scene.slices), "flows": len(scene.flows), "counter values": sum(len(values) for _, _, values in scene.counters),
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
    first = min([s.start_ns for s in scene.slices] + [values[0][0] for _, _, values in scene.counters if values])
    if first >= 0:
        return 0
    scene.slices = [s._replace(start_ns=s.start_ns - first) for s in scene.slices]
    scene.counters = [(row, name, [(time - first, value) for time, value in values]) for row, name, values in scene.counters]
    scene.origin_unix_ns += first if scene.origin_unix_ns else 0
    return -first


def _notes(scene: Scene, views: Sequence[StepView], trace: Trace, early: int, options: Options) -> Iterable[str]:
    if early:
        yield f"times begin {early} ns before the first execution started: memory was allocated then"
    if scene.reversed_flows:
        yield f"{scene.reversed_flows} dependencies have no flow: the consumer began before its producer"
    if options.counters and not len(trace.allocations):
        yield "no counter: the trace has no allocation records (capture --memory-steps 1)"
    for _, name, _ in scene.counters:
        step = int(trace.allocations.step[0])
        if step not in [v.step for v in views]:
            yield f"'{name}' is of another step than the slices, with that step's own times; --set step={step} shows both of one"


def _events(scene: Scene) -> Iterator[tuple[int, int, bool]]:
    """(time, slice, begins) of all slices in the order in which a reader needs them: at one time ends come before begins."""
    events = []
    for number, each in enumerate(scene.slices):
        end = each.start_ns + each.duration_ns
        events.append((each.start_ns, 1, number, 0))
        events.append((end, 0, number, 1) if each.duration_ns else (end, 1, number, 1))
    for time, _, number, ends in sorted(events):
        yield time, number, not ends


SEQUENCE = 1
CLEARED, NEEDED = 1, 2
SLICE_BEGIN, SLICE_END, COUNTER_VALUE = 1, 2, 4
REAL_TIME, BOOT_TIME = 1, 6
UNIT_BYTES = 3


def _interned(number: int, texts: Iterable[str]) -> bytes:
    """Texts, numbered from 1, as a field of InternedData."""
    return b"".join(wire.delimited(number, wire.integer(1, i) + wire.delimited(2, text)) for i, text in enumerate(texts, start=1))


def _packet(content: bytes) -> bytes:
    return wire.delimited(1, content)


def encode_native(scene: Scene) -> Iterator[bytes]:
    """The packets of Perfetto's protobuf format, by time."""
    sequence, tail = wire.integer(10, SEQUENCE), wire.integer(13, NEEDED)
    names, categories, keys, texts = Texts[str](), Texts[str](), Texts[str](), Texts[str]()
    out_flows: dict[int, list[bytes]] = defaultdict(list)
    in_flows: dict[int, list[bytes]] = defaultdict(list)
    for number, (producer, consumer) in enumerate(scene.flows, start=1):
        out_flows[producer].append(wire.fixed64(47, number))
        in_flows[consumer].append(wire.fixed64(48, number))
    executed = wire.integer(1, keys.number("execution") + 1) + wire.tag(3, wire.VARINT)
    executions = wire.varints([max(s.execution, 0) for s in scene.slices])
    heads = [wire.integer(3, categories.number(category) + 1) for _, category in scene.labels]
    ends = [wire.integer(9, SLICE_BEGIN) + wire.integer(10, names.number(name) + 1) for name, _ in scene.labels]
    told = [
        b"".join(
            wire.delimited(4, wire.integer(1, keys.number(key) + 1) + wire.integer(17, texts.number(text) + 1)) for key, text in one
        )
        for one in scene.told
    ]
    where = [wire.integer(11, track(row.number)) for row in scene.rows]
    begins = []
    for number, each in enumerate(scene.slices):
        own = wire.delimited(4, executed + executions[number]) if each.execution >= 0 else b""
        content = b"".join(
            (
                heads[each.label],
                told[each.told],
                own,
                ends[each.label],
                where[each.row],
                *out_flows.get(number, ()),
                *in_flows.get(number, ()),
            )
        )
        begins.append(sequence + wire.delimited(11, content) + tail)
    interned = (_interned(1, categories), _interned(2, names), _interned(3, keys), _interned(29, texts))
    yield _packet(sequence + wire.delimited(12, b"".join(interned)) + wire.integer(13, CLEARED))
    yield from _descriptors(scene, sequence)
    if scene.origin_unix_ns:
        clocks = ((BOOT_TIME, 0), (REAL_TIME, scene.origin_unix_ns))
        fields = (wire.delimited(1, wire.integer(1, clock) + wire.integer(2, time)) for clock, time in clocks)
        yield _packet(wire.delimited(6, b"".join(fields)) + sequence)
    closing = [sequence + wire.delimited(11, wire.integer(9, SLICE_END) + track_field) + tail for track_field in where]
    events = list(_events(scene))
    stamps = wire.varints([time for time, _, _ in events])
    for (_, number, starts), stamp in zip(events, stamps, strict=True):
        content = b"\x40" + stamp
        if starts:
            yield _packet(content + begins[number])
        else:
            yield _packet(content + closing[scene.slices[number].row])
    for row, _, values in scene.counters:
        head = wire.integer(9, COUNTER_VALUE) + wire.integer(11, track(row))
        for time, value in values:
            yield _packet(wire.integer(8, time) + sequence + wire.delimited(11, head + wire.integer(30, value)) + tail)


PROCESS_TRACK, ROW_TRACK = 1_000, 1_000_000


def track(row: int) -> int:
    """The track uuid of a row."""
    return ROW_TRACK + row


def _descriptors(scene: Scene, sequence: bytes) -> Iterator[bytes]:
    """What the tracks are: a process for each step, in it a thread for each row, or a counter."""
    counters = {row for row, _, _ in scene.counters}
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
    counters = {row for row, _, _ in scene.counters}
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
    lines = []
    for counter, name, values in scene.counters:
        place, text = f'"pid":{scene.rows[counter].process + 1}', _text(name)
        lines += [f'{{"ph":"C","ts":{t // 1000}.{t % 1000:03d},{place},"name":{text},"args":{{"bytes":{v}}}}}' for t, v in values]
    yield "".join(f",\n{line}" for line in lines).encode()
    yield b"\n]}\n"


def _json_slices(scene: Scene) -> Iterator[bytes]:
    """Slices and flows as Chrome has them, each after a comma: joins of pieces that are made once or in bulk."""
    columns = [np.array(column, np.int64) for column in zip(*scene.slices, strict=True)]
    starts, durations = digits.microseconds(columns[1]), digits.microseconds(columns[2])
    where = [f'"pid":{row.process + 1},"tid":{thread_id(row.number)}' for row in scene.rows]
    placed = [where[row] for row in columns[0].tolist()]
    labels = [f',"name":{_text(name)},"cat":{_text(category)},"args":{{' for name, category in scene.labels]
    told = [",".join(f"{_text(key)}:{_text(text)}" for key, text in one) for one in scene.told]
    with_execution = [f",{text}}}}}" if text else "}}" for text in told]
    alone = [f"{text}}}}}" for text in told]
    executed = [f'"execution":{e}' if e >= 0 else "" for e in columns[5].tolist()]
    ends = [(with_execution if e >= 0 else alone)[t] for e, t in zip(columns[5].tolist(), columns[4].tolist(), strict=True)]
    count = len(scene.slices)
    head, dur, comma = [',\n{"ph":"X","ts":'] * count, [',"dur":'] * count, [","] * count
    named = [labels[label] for label in columns[3].tolist()]
    yield "".join(chain.from_iterable(zip(head, starts, dur, durations, comma, placed, named, executed, ends, strict=True))).encode()
    at = [f'{start},{place},"name":"depends","cat":"flow"}}' for start, place in zip(starts, placed, strict=True)]
    count = len(scene.flows)
    numbers = digits.texts(np.arange(1, count + 1))
    producers, consumers = [at[p] for p, _ in scene.flows], [at[c] for _, c in scene.flows]
    begin, end, then = [',\n{"ph":"s","id":'] * count, [',\n{"ph":"f","bp":"e","id":'] * count, [',"ts":'] * count
    yield "".join(chain.from_iterable(zip(begin, numbers, then, producers, end, numbers, then, consumers, strict=True))).encode()


# --- checking ---------------------------------------------------------------------------------------------------------------------


@dataclass
class _Seen:
    """What a parser found: `slices` are (row, start ns, duration ns, name, execution or -1), `flows` pairs of rows of it."""

    slices: list[tuple[int, int, int, str, int]] = field(default_factory=list)
    flows: int = 0
    counter_values: int = 0
    rows: set[int] = field(default_factory=set)


def check(folder: Path) -> CheckReport:
    """Parse the file strictly, and compare with `export.json`.

    In the file: no unknown field or key, times in order, no slice that overlaps or nests in another of its row, every name interned, every
    flow with two ends, the first not after the second. Against the trace: the slices and the exact time of each node, and all counts.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    try:
        layers = [ExportedLayer(**row) for row in report["layers"]]
        shown, native = dict(report["settings"]["shown"]), report["settings"]["format"] == NATIVE
        [name] = report["files"]
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of perfetto ({error}); export again") from None
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        return CheckReport((), {}, (f"{name} cannot be read ({type(error).__name__})",))
    seen = (_parse_native if native else _parse_json)(content, problems)
    facts = {"slices": len(seen.slices), "flows": seen.flows, "counter values": seen.counter_values, "rows": len(seen.rows)}
    facts["time_ns"] = sum(s[2] for s in seen.slices)
    if not problems:
        problems += [f"{facts[key]} {key}, export.json says {shown.get(key)}" for key in shown if facts.get(key) != shown[key]]
        problems += _overlaps(seen)
        problems += _differences(seen, layers)
    return CheckReport((name,), facts, tuple(f"{name}: {text}" for text in problems))


def _overlaps(seen: _Seen) -> Iterable[str]:
    """Slices of one row that are not one after the other."""
    by_row: dict[int, list[tuple[int, int, int, str, int]]] = defaultdict(list)
    for each in seen.slices:
        by_row[each[0]].append(each)
    for members in by_row.values():
        for a, b in pairwise(sorted(members, key=lambda s: (s[1], s[1] + s[2]))):
            if a[1] + a[2] > b[1]:
                yield f"'{b[3]}' at {b[1]} ns overlaps '{a[3]}' on its row"


def _differences(seen: _Seen, layers: Sequence[ExportedLayer]) -> Iterable[str]:
    time: dict[int, int] = defaultdict(int)
    count: dict[int, int] = defaultdict(int)
    names: dict[int, str] = {}
    for _, _, duration, name, execution in seen.slices:
        time[execution] += duration
        count[execution] += 1
        names[execution] = name
    for layer in layers:
        found = sum(time[e] for e in layer.executions), sum(count[e] for e in layer.executions)
        if found != (layer.time_ns, layer.facts.get("slices")):
            yield f"{layer.name}: {found[0]} ns in {found[1]} slices, in the trace {layer.time_ns:.0f} in {layer.facts.get('slices')}"
        shown = layer.facts.get("name")
        if any(names.get(e, shown) != shown for e in layer.executions):
            yield f"{layer.name}: a slice of it has another name"
    known = {e for layer in layers for e in layer.executions} | {-1}
    yield from (f"'{names[e]}' is of no execution that was exported" for e in sorted(set(names) - known))


def _parse_native(content: bytes, problems: list[str]) -> _Seen:
    from google.protobuf.message import DecodeError

    from fathom_trace.generated.perfetto_events_pb2 import Trace as Packets

    seen, packets = _Seen(), Packets()
    try:
        packets.ParseFromString(content)
    except DecodeError:
        problems.append("it is no sequence of packets, or is cut off")
        return seen
    packets.DiscardUnknownFields()
    if packets.SerializeToString() != content:
        problems.append("it has fields that are never written")
        return seen
    interned: dict[str, dict[int, str]] = {}
    state = _Reading(seen, problems)
    for number, packet in enumerate(packets.packet):
        if not packet.HasField("interned_data") and not interned:
            problems.append(f"packet {number} comes before the interned names")
            return seen
        if packet.HasField("interned_data"):
            interned = {f.name: {each.iid: each.name for each in value} for f, value in packet.interned_data.ListFields()}
            state.names, state.keys = interned.get("event_names", {}), interned.get("debug_annotation_names", {})
            known = {iid for group in ("debug_annotation_string_values",) for iid in interned.get(group, {})}
            state.texts, state.categories = known, set(interned.get("event_categories", {}))
        elif packet.WhichOneof("data") == "track_descriptor":
            state.describe(packet.track_descriptor)
        elif packet.WhichOneof("data") == "track_event":
            state.event(packet, f"packet {number}")
        if len(problems) > 20:
            return seen
    state.finish()
    return seen


class _Reading:
    """Reads packets in order."""

    def __init__(self, seen: _Seen, problems: list[str]) -> None:
        self.seen, self.problems = seen, problems
        self.names: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        self.texts: set[int] = set()
        self.categories: set[int] = set()
        self.counters: set[int] = set()
        self.open: dict[int, tuple[int, str, int]] = {}
        self.begun: set[int] = set()
        self.ended: set[int] = set()
        self.clock = 0
        self.counter_clock: dict[int, int] = defaultdict(int)

    def describe(self, descriptor: Any) -> None:
        """A track."""
        if not descriptor.HasField("process"):
            self.seen.rows.add(descriptor.uuid)
        if descriptor.HasField("counter"):
            self.counters.add(descriptor.uuid)

    def event(self, packet: Any, where: str) -> None:
        """A begin, an end or a value."""
        event, time = packet.track_event, packet.timestamp
        track_id = event.track_uuid
        if track_id not in self.seen.rows:
            self.problems.append(f"{where} is on a track that was not described")
        elif event.type == COUNTER_VALUE:
            if track_id not in self.counters or not event.HasField("counter_value") or time < self.counter_clock[track_id]:
                self.problems.append(f"{where} is no value of a counter at a later time")
            self.counter_clock[track_id] = time
            self.seen.counter_values += 1
        elif time < self.clock:
            self.problems.append(f"{where} goes back in time")
        elif event.type == SLICE_BEGIN:
            self.clock = time
            self._begin(event, time, where)
        elif event.type == SLICE_END and track_id in self.open:
            self.clock = time
            start, name, execution = self.open.pop(track_id)
            self.seen.slices.append((track_id, start, time - start, name, execution))
        else:
            self.problems.append(f"{where} ends a slice that was not begun, or is of type {event.type}")

    def _begin(self, event: Any, time: int, where: str) -> None:
        if event.track_uuid in self.open:
            self.problems.append(f"{where} begins inside the slice '{self.open[event.track_uuid][1]}'")
        texts = {a.string_value_iid for a in event.debug_annotations if a.WhichOneof("value") == "string_value_iid"}
        keys = {a.name_iid for a in event.debug_annotations}
        unknown = texts - self.texts or keys - set(self.keys) or set(event.category_iids) - self.categories
        if unknown or event.name_iid not in self.names or not event.category_iids:
            self.problems.append(f"{where} uses a name that was not interned")
            return
        execution = next((a.uint_value for a in event.debug_annotations if self.keys[a.name_iid] == "execution"), -1)
        self.open[event.track_uuid] = (time, self.names[event.name_iid], execution)
        for flow in event.terminating_flow_ids:
            if flow not in self.begun or flow in self.ended:
                self.problems.append(f"{where} ends flow {flow}, which did not begin, or ended before")
            self.ended.add(flow)
        for flow in event.flow_ids:
            if flow in self.begun:
                self.problems.append(f"{where} begins flow {flow} again")
            self.begun.add(flow)

    def finish(self) -> None:
        """Everything that began has ended."""
        self.problems += [f"slice '{name}' has no end" for _, name, _ in self.open.values()]
        if self.begun != self.ended:
            self.problems.append(f"{len(self.begun - self.ended)} flows have no end")
        self.seen.flows = len(self.begun)


JSON_KEYS = {
    "X": {"ph", "ts", "dur", "pid", "tid", "name", "cat", "args"}, "s": {"ph", "id", "ts", "pid", "tid", "name", "cat"},
    "f": {"ph", "bp", "id", "ts", "pid", "tid", "name", "cat"}, "C": {"ph", "ts", "pid", "name", "args"},
}  # fmt: skip


def _parse_json(content: bytes, problems: list[str]) -> _Seen:
    seen = _Seen()
    try:
        whole = json.loads(content, parse_float=_exact_ns)
        events, top = whole["traceEvents"], set(whole)
        kinds = [e["ph"] for e in events]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        problems.append(f"it is no Chrome trace ({type(error).__name__}: {error})")
        return seen
    if top != {"displayTimeUnit", "otherData", "traceEvents"} or not str(whole["otherData"].get("origin_unix_ns")).isdecimal():
        problems.append("it lacks displayTimeUnit, otherData with origin_unix_ns, or traceEvents, or has more than these")
    starts: set[tuple[int, int, int]] = set()
    sides: dict[str, dict[int, tuple[int, int, int]]] = {"s": {}, "f": {}}
    for number, (what, event) in enumerate(zip(kinds, events, strict=True)):
        if what == "M":
            if event.get("name") == "thread_name":
                seen.rows.add(event["tid"])
            continue
        times = [event.get(key, 0) for key in ("ts", "dur")]
        if set(event) != JSON_KEYS.get(what) or any(type(t) is not int for t in times) or min(times) < 0:
            problems.append(f"event {number} has not the keys and times of a '{what}' event")
            return seen
        if what == "C":
            seen.counter_values += 1
            seen.rows.add(-event["pid"])
            continue
        place = (event["pid"], event["tid"], event["ts"])
        if event["tid"] not in seen.rows:
            problems.append(f"event {number} is on a row that has no name")
        if what == "X":
            starts.add(place)
            seen.slices.append((event["tid"], event["ts"], event["dur"], event["name"], event["args"].get("execution", -1)))
        elif event["id"] in sides[what]:
            problems.append(f"event {number} repeats an end of flow {event['id']}")
        else:
            sides[what][event["id"]] = place
    seen.flows = len(sides["s"])
    if set(sides["s"]) != set(sides["f"]):
        problems.append("a flow has only one end")
    elif any(place[2] > sides["f"][flow][2] for flow, place in sides["s"].items()):
        problems.append("a flow goes back in time")
    if not starts.issuperset([*sides["s"].values(), *sides["f"].values()]):
        problems.append("a flow has an end where no slice begins")
    return seen


def _exact_ns(text: str) -> int:
    """A number of microseconds with three decimals, in ns."""
    whole, _, fraction = text.partition(".")
    if len(fraction) != 3 or not fraction.isdecimal():
        raise ValueError(f"{text} is not in microseconds with three decimals")
    return int(whole + fraction)
