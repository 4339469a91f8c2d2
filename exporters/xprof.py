"""XProf profiles: a step's executions on the host's threads, with its allocations, as TensorFlow's own profiler would have recorded them.

Target: XProf 2.24.2, https://github.com/openxla/xprof (package `xprof`; also TensorBoard's profile plug-in): one XSpace
(`schemas/xprof_xspace.proto`) as PLUGIN/profile/RUN/HOST.xplane.pb, so that the export's folder is a log directory.

All is in the plane `/host:CPU`. Each captured worker of a device is a line, an event one execution, start to done, in picoseconds; what
would overlap on a line gets a further one, since XProf takes what nests for a part, and loses what overlaps. An event is called
`<op name>:<OpType>` with exactly one colon, because XProf tells op types by it: in op names, characters that XProf does not expect are
written `_`, and a `.` goes before a name that begins with none that it expects. Statistics of an event are `execution` (the row of the
trace's executions), `phase`, `layer` and `iteration`. If the step is the one whose allocations were recorded, a further line holds them as
MemoryAllocation and MemoryDeallocation events; all their statistics are integers, because XProf counts an event with a text `tf_op` as an
execution of that op. Their `addr` numbers the allocation: releases are recorded without an address.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import wire
from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportReport, Target, file_stem, read_report
from fathom_trace.lanes import disjoint
from fathom_trace.layer_map import LayerMap
from fathom_trace.layers import layer_names
from fathom_trace.memory import memory
from fathom_trace.options import option
from fathom_trace.phases import phases
from fathom_trace.steps import MEDIAN, STEP_DOC, LeftOut, StepView, account, notes, verify, view_steps
from fathom_trace.trace import Trace
from fathom_trace.untrusted import MOST_MESSAGE_BYTES, read_regular

TARGET = Target(
    name="XProf",
    version="2.24.2",
    url="https://github.com/openxla/xprof",
    proof=TARGET_PARSED,
    proof_detail="tests have XProf 2.24.2 itself make framework_op_stats, overview_page, trace_viewer and memory_profile of the file, and"
    " compare counts and total time of each op type and the peak of memory with the trace; its web pages are not looked at",
    how_to_run="xprof --logdir=FOLDER, or tensorboard --logdir=FOLDER with its profile plug-in",
)

HOST_PLANE = "/host:CPU"
PICOSECONDS = 1_000
ALLOCATION, RELEASE = "MemoryAllocation", "MemoryDeallocation"
MEMORY_LINE = "allocations"
LISTED_OPS = 500
"""Rows of XProf's table of ops, idle time among them: the ops of most time."""

HAS_NO_TIME = "no valid time in the step"
IS_EXPANDED = "part of a compiled call, which is shown with the time of all its parts"

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*", re.ASCII)
_FOREIGN = re.compile(r"[^A-Za-z0-9_.\\/>-]", re.ASCII)
_DATASET = "Iterator"
"""An op of this name is taken for a dataset, whatever its type."""

Int64 = NDArray[np.int64]

BLOCK = 16_384
"""Events that are spelled at once."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    step: str = option(MEDIAN, STEP_DOC)
    memory: bool = option(True, "allocations and releases, if the step is the one where they were recorded")
    plumbing: bool = option(True, "show helpers: loop and branch plumbing, feeds, fetches, constants, handles, identities")
    name: str = option("", "name of the run and of the host; empty: the workload's name")


def event_name(name: str, op_type: str) -> str:
    """What an execution's event is called: op name and type as XProf tells them apart."""
    known = _FOREIGN.sub("_", name)
    if not _NAME.fullmatch(known) or known == _DATASET:
        known = f".{known}"
    return f"{known}:{re.sub(r'[^A-Za-z0-9_]', '_', op_type)}"


# --- writing ----------------------------------------------------------------------------------------------------------------------


@dataclass
class _Plane:
    """Events by line, and the names that they refer to by number, from 1."""

    events: dict[str, int] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    lines: list[tuple[str, list[bytes]]] = field(default_factory=list)
    """Names, and events as fields of the line: in pieces, of many events each."""

    def event(self, name: str) -> int:
        """The number of an event's name."""
        return self.events.setdefault(name, len(self.events) + 1)

    def stat(self, name: str) -> int:
        """The number of a statistic's name, or of a text that is one's value."""
        return self.stats.setdefault(name, len(self.stats) + 1)

    def number(self, name: str, value: int) -> bytes:
        """A statistic that is an integer."""
        return wire.delimited(4, wire.integer(1, self.stat(name)) + wire.integer(4, value))

    def text(self, name: str, value: str) -> bytes:
        """A statistic that is a text."""
        return wire.delimited(4, wire.integer(1, self.stat(name)) + wire.integer(7, self.stat(value)))


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write one file.

    Raises:
        ExportError: the trace has no times, so there is nothing to show.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    view = view_steps(trace, options.step, "exporter 'xprof'")[0]
    shown = view.timed if options.plumbing else view.timed & ~view.helpers
    if not shown.any():
        raise ExportError("nothing with a time is there to show; a profile shows nothing else; export a graph instead")
    stem = file_stem(options.name, trace.provenance)
    file = f"plugins/profile/{stem}/{stem}.xplane.pb"
    plane = _Plane()
    renamed = _add_executions(plane, view, np.flatnonzero(shown))
    allocations = _add_memory(plane, view, trace) if options.memory and len(trace.allocations) else None
    (folder / file).parent.mkdir(parents=True)
    with (folder / file).open("wb") as out:
        out.writelines(encode(plane, view, stem, allocations[1] if allocations else 0))

    def describe(view: StepView, node: int, members: Int64) -> Mapping[str, Any]:
        name = event_name(trace.node_names[node], trace.node_ops[node])
        return {"place": f"{file}:{name}", "how": "event", "facts": {"event": name, "events": len(members)}}

    expanded = trace.executions.parent[view.rows] >= 0
    helper = np.zeros(len(view), bool) if options.plumbing else view.helpers
    left_out = LeftOut.of(
        len(view), (IS_EXPANDED, expanded & ~shown), ("helper (plumbing=false)", helper & ~shown), (HAS_NO_TIME, ~shown)
    )
    layers, skipped = account([view], {view.structure: left_out}, describe)
    written = {"events": int(shown.sum()), "memory events": allocations[0] if allocations else 0, "lines": len(plane.lines)}
    report = ExportReport(
        exporter="xprof",
        target=TARGET,
        files=(file,),
        layers=layers,
        skipped=skipped,
        settings={**asdict(options), "name": stem, "step": view.step, "shown": written},
        notes=(*notes([view]), *_notes(view, trace, renamed, allocations, options)),
        provenance=dict(trace.provenance),
    )
    verify([view], report)
    return report


def _add_executions(plane: _Plane, view: StepView, shown: Int64) -> int:
    """Add the executions, a line for each worker and what overlaps on it; returns how many op names are written otherwise."""
    trace, nodes = view.trace, view.nodes[shown]
    of_node = [re.sub(r".*/(?:device:)?", "", trace.strings[d]) or "CPU:0" for d in trace.nodes.device.tolist()]
    devices = sorted(set(of_node))
    device = np.array([devices.index(name) for name in of_node], np.int64)
    told = _Told(plane, view)
    lanes, lane = np.unique(np.stack([device[nodes], view.lane[shown]], axis=1), axis=0, return_inverse=True)
    for number, (place, worker) in enumerate(lanes.tolist()):
        members = shown[lane.reshape(-1) == number]
        row = disjoint(view.start_ns[members], view.duration_ns[members])
        for further in range(int(row.max(initial=-1)) + 1):
            part = members[row == further]
            part = part[np.argsort(view.start_ns[part], kind="stable")]
            name = f"{devices[place]} worker {worker}" + f" ({further + 1})" * (further > 0)
            plane.lines.append((name, [told.events(part[at : at + BLOCK]) for at in range(0, len(part), BLOCK)]))
    ran = np.unique(nodes).tolist()
    return sum(not event_name(trace.node_names[n], trace.node_ops[n]).startswith(f"{trace.node_names[n]}:") for n in ran)


class _Told:
    """Spells events."""

    def __init__(self, plane: _Plane, view: StepView) -> None:
        self.plane, self.view = plane, view
        self.phases, self.layers, self.iterations = phases(view.trace), layer_names(view.trace), view.iterations
        self.of_node: dict[int, tuple[bytes, bytes]] = {}
        self.of_iteration: dict[int, bytes] = {}
        self.execution = wire.integer(1, plane.stat("execution")) + wire.tag(4, wire.VARINT)

    def events(self, part: Int64) -> bytes:
        """Some executions, as fields of a line."""
        view, execution = self.view, self.execution
        columns = (
            view.nodes[part].tolist(), self.iterations[0][part].tolist(), wire.varints(view.start_ns[part] * PICOSECONDS),
            wire.varints(view.duration_ns[part] * PICOSECONDS), wire.varints(part + view.rows.start),
        )  # fmt: skip
        pieces: list[bytes] = []
        for node, iteration, start, duration, number in zip(*columns, strict=True):
            name, stats = self._node(node)
            own = b"".join((STAT, wire.length(len(execution) + len(number)), execution, number))
            event = b"".join((name, b"\x10", start, b"\x18", duration, own, self._iteration(iteration), stats))
            pieces += (EVENT, wire.length(len(event)), event)
        return b"".join(pieces)

    def _node(self, node: int) -> tuple[bytes, bytes]:
        """What the events of a node have alike: its name, and statistics."""
        plane, trace = self.plane, self.view.trace
        if node not in self.of_node:
            number = wire.integer(1, plane.event(event_name(trace.node_names[node], trace.node_ops[node])))
            stats = plane.text("phase", self.phases[node])
            self.of_node[node] = (number, stats + (plane.text("layer", self.layers[node]) if self.layers[node] else b""))
        return self.of_node[node]

    def _iteration(self, code: int) -> bytes:
        text = self.iterations[1][code]
        if code not in self.of_iteration:
            self.of_iteration[code] = self.plane.text("iteration", text) if text else b""
        return self.of_iteration[code]


EVENT, STAT = wire.tag(4, wire.LENGTH), wire.tag(4, wire.LENGTH)


def _add_memory(plane: _Plane, view: StepView, trace: Trace) -> tuple[int, int] | None:
    """Add allocations and releases; returns how many, and by how many ns the first precedes the first execution. None: of another step."""
    found = memory(trace)
    if found.step != view.step or not found.blocks:
        return None
    changes = [(b.allocated_ns, 1, n, b.size_bytes) for n, b in enumerate(found.blocks, start=1)]
    changes += [(b.freed_ns, 0, n, b.size_bytes) for n, b in enumerate(found.blocks, start=1) if b.freed_ns is not None]
    changes.sort()
    early = max(view.base_ns - changes[0][0], 0)
    live = peak = 0
    numbers = {ALLOCATION: wire.integer(1, plane.event(ALLOCATION)), RELEASE: wire.integer(1, plane.event(RELEASE))}
    events = []
    for time, allocates, block, size in changes:
        live += size if allocates else -size
        peak = max(peak, live)
        stats = (
            ("index_on_host", 0), ("bytes_reserved", 0), ("bytes_allocated", max(live, 0)), ("bytes_available", 0),
            ("peak_bytes_in_use", peak), ("requested_bytes", size), ("allocation_bytes", size), ("addr", block),
        )  # fmt: skip
        told = b"".join(plane.number(name, value) for name, value in stats)
        at = wire.integer(2, (time - view.base_ns + early) * PICOSECONDS) + wire.integer(3, 0)
        events.append(wire.delimited(4, numbers[ALLOCATION if allocates else RELEASE] + at + told))
    plane.lines.append((MEMORY_LINE, events))
    return len(events), early


def encode(plane: _Plane, view: StepView, host: str, early_ns: int) -> Iterator[bytes]:
    """The file, in pieces. Lines begin at the step's earliest start; that of allocations `early_ns` before it."""
    origin = view.origin_unix_ns or early_ns
    pieces = [wire.integer(1, 1) + wire.delimited(2, HOST_PLANE)]
    for number, (name, events) in enumerate(plane.lines, start=1):
        starts = origin - early_ns if name == MEMORY_LINE else origin
        head = wire.integer(1, number) + wire.delimited(2, name) + wire.integer(3, starts)
        pieces += [wire.tag(3, wire.LENGTH) + wire.varint(len(head) + sum(map(len, events))) + head, *events]
    for field_number, known in ((4, plane.events), (5, plane.stats)):
        for name, number in known.items():
            told = wire.integer(1, number) + wire.delimited(2, wire.integer(1, number) + wire.delimited(2, name))
            pieces.append(wire.delimited(field_number, told))
    yield wire.tag(1, wire.LENGTH) + wire.varint(sum(map(len, pieces)))
    yield from pieces
    yield wire.delimited(4, host)


def _notes(view: StepView, trace: Trace, renamed: int, allocations: tuple[int, int] | None, options: Options) -> Iterator[str]:
    if renamed:
        yield f"{renamed} op names are written otherwise than in the trace: XProf would not take them for op names"
    ops = len(np.unique(view.nodes[view.timed]))
    if ops >= LISTED_OPS:
        yield f"XProf's framework_op_stats lists the {LISTED_OPS} ops of most time only; {ops} ran"
    if options.memory and not len(trace.allocations):
        yield "no allocations: the trace has no allocation records (capture --memory-steps 1)"
    elif options.memory and allocations is None:
        yield f"no allocations: they were recorded in another step; --set step={int(trace.allocations.step[0])} shows both"
    elif allocations and allocations[1]:
        yield f"the first allocation precedes the first execution by {allocations[1]} ns"
    spans = int(np.count_nonzero(trace.device_spans.step == view.step)) if view.step is not None else 0
    if spans:
        yield f"{spans} kernels and copies on device streams are not shown: only what ran on the host's threads is"


# --- checking ---------------------------------------------------------------------------------------------------------------------


def check(folder: Path) -> CheckReport:
    """Parse the file strictly, and compare with `export.json`.

    In the file: no unknown field, one plane `/host:CPU`, every name and statistic known, each op's name with exactly one colon, nothing
    that overlaps or goes back in time on a line, memory events with integers only. Against the trace: events and exact time of each node.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    try:
        layers = LayerMap(report["layers"])
        shown = dict(report["settings"]["shown"])
        [name] = report["files"]
        files = [folder / name]
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of xprof ({error}); export again") from None
    try:
        content = read_regular(files[0], MOST_MESSAGE_BYTES)
    except OSError as error:
        return CheckReport((), {}, (f"{name} cannot be read ({type(error).__name__})",))
    problems: list[str] = []
    seen = _Seen(problems)
    seen.read(content)
    facts = {"events": len(seen.execution), "memory events": seen.memory_events, "lines": seen.lines}
    facts["time_ns"] = sum(seen.duration)
    if not problems:
        problems += [f"{facts[key]} {key}, export.json says {value}" for key, value in shown.items() if facts.get(key) != value]
        problems += _differences(seen, layers)
    return CheckReport((name,), facts, tuple(f"{name}: {text}" for text in problems))


def _differences(seen: _Seen, layers: LayerMap) -> Iterable[str]:
    execution, duration, name = (np.array(column, np.int64) for column in (seen.execution, seen.duration, seen.name))
    of = layers.layer_of(execution)
    times, counts = layers.sums(of, duration).tolist(), layers.sums(of).tolist()
    numbers: dict[Any, int] = {text: number for number, text in seen.names.items()}
    expected = np.array([numbers.get(text, -1) if isinstance(text, str) else -1 for text in layers.facts("event")] or [-1], np.int64)
    renamed = set(np.unique(of[(of >= 0) & (name != expected[of])]).tolist())
    for number, layer in enumerate(layers.layers):
        found = times[number], counts[number]
        if found != (layer.time_ns, layer.facts.get("events")):
            yield f"{layer.name}: {found[0]} ns in {found[1]} events, in the trace {layer.time_ns:.0f} in {layer.facts.get('events')}"
        if number in renamed or counts[number] < layers.counts[number]:
            yield f"{layer.name}: an event of it has another name, or is missing"
    yield from (f"'{seen.names[number]}' is of no execution that was exported" for number in np.unique(name[of < 0]).tolist())


class _Seen:
    """What a parser found, in columns: number of the name (of `names`), execution, duration in ns of each event that is one."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self.names: dict[int, str] = {}
        self.name, self.execution, self.duration = array("q"), array("q"), array("q")
        self.memory_events = self.lines = 0

    def read(self, content: bytes) -> None:
        """Parse a file."""
        from google.protobuf.message import DecodeError

        from fathom_trace.generated.xprof_xspace_pb2 import XSpace

        space = XSpace()
        try:
            space.ParseFromString(content)
        except DecodeError:
            self.problems.append("it is no XSpace, or is cut off")
            return
        size = space.ByteSize()
        space.DiscardUnknownFields()
        if space.ByteSize() != size or [p.name for p in space.planes] != [HOST_PLANE] or space.errors or space.warnings:
            self.problems.append(f"it has fields that are never written, or not the one plane {HOST_PLANE}")
            return
        [plane] = space.planes
        self.names = {number: m.name for number, m in plane.event_metadata.items()}
        self.stats = {number: m.name for number, m in plane.stat_metadata.items()}
        if any(m.id != number for group in (plane.event_metadata, plane.stat_metadata) for number, m in group.items()):
            self.problems.append("a name has another number than the one it is kept under")
        if len({line.id for line in plane.lines}) != len(plane.lines) or len({line.name for line in plane.lines}) != len(plane.lines):
            self.problems.append("two lines have one number or name")
        for line in plane.lines:
            self.lines += 1
            self._line(line)

    def _line(self, line: Any) -> None:
        end, before = 0, ""
        for event in line.events:
            name = self.names.get(event.metadata_id)
            stats = {self.stats.get(s.metadata_id): s for s in event.stats}
            if name is None or None in stats or not event.HasField("offset_ps") or min(event.offset_ps, event.duration_ps) < 0:
                self.problems.append(f"line '{line.name}': an event has no name, an unknown statistic or no time")
                return
            whole = event.offset_ps % PICOSECONDS == 0 and event.duration_ps % PICOSECONDS == 0
            if line.name == MEMORY_LINE:
                integers = all(s.WhichOneof("value") == "int64_value" for s in stats.values())
                if name not in (ALLOCATION, RELEASE) or not integers or event.duration_ps or "addr" not in stats:
                    self.problems.append(f"'{name}' is no memory event with integers only")
                self.memory_events += 1
            else:
                op, colon, op_type = name.partition(":")
                if not colon or not _NAME.fullmatch(op) or not re.fullmatch(r"[A-Z_][A-Za-z0-9_]*", op_type) or not whole:
                    self.problems.append(f"'{name}' is not <op name>:<OpType> as XProf knows it, or is not of whole ns")
                if "execution" not in stats or stats["execution"].WhichOneof("value") != "int64_value":
                    self.problems.append(f"'{name}' does not say which execution it is")
                    return
                texts = [s.ref_value for key, s in stats.items() if key != "execution"]
                if any(number not in self.stats for number in texts):
                    self.problems.append(f"'{name}' refers to a text that is not there")
                self.name.append(event.metadata_id)
                self.execution.append(stats["execution"].int64_value)
                self.duration.append(event.duration_ps // PICOSECONDS)
            if event.offset_ps < end:
                text = f"'{name}' at {event.offset_ps} ps overlaps '{before}' on line '{line.name}', or precedes it"
                self.problems.append(text)
            end, before = event.offset_ps + event.duration_ps, name
