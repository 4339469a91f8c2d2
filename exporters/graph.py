"""The graph of a step's executions as GraphML and DOT: what ran, for how long, at what cost, and who waited for whom.

Target: GraphML 1.0, http://graphml.graphdrawing.org, written and read by networkx (Gephi, yEd, Cytoscape and igraph read it too); and
DOT as Graphviz defines it, https://graphviz.org/doc/info/lang.html.

A node is one execution, its id the row of the trace's `executions`; loop bodies are there once per iteration, so the graph has no cycle.
An edge goes from a producer to who waited for it: `data` with the bytes of the tensors read, `control` where nothing was read, `bridged`
where what lay between was left out. A cost that is not known is absent, not 0.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO
from xml.sax.saxutils import escape, unescape

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportReport, Target, file_stem, read_report
from fathom_trace.layer_map import LayerMap
from fathom_trace.layers import layer_names
from fathom_trace.ops import kind
from fathom_trace.options import option
from fathom_trace.phases import phases
from fathom_trace.steps import MEDIAN, STEP_DOC, LeftOut, StepView, account, bridge, notes, verify, view_steps
from fathom_trace.trace import Trace, distinct
from fathom_trace.units import format_ns

TARGET = Target(
    name="GraphML and DOT",
    version="1.0",
    url="http://graphml.graphdrawing.org",
    proof=TARGET_PARSED,
    proof_detail="tests read the GraphML back with networkx and the DOT with pydot, and compare nodes, edges and attributes with the trace",
    how_to_run="networkx.read_graphml(FILE), or open it in Gephi, yEd or Cytoscape; for up to some hundred nodes"
    " dot -Tsvg FILE.dot > FILE.svg",
)

BOTH, GRAPHML, DOT = "both", "graphml", "dot"
DATA, CONTROL, BRIDGED = "data", "control", "bridged"
EDGE_KINDS = (DATA, CONTROL, BRIDGED)
SHARED = ("name", "op", "kind", "phase", "layer", "device")
TEXTS = (*SHARED, "iteration", "outputs")
NUMBERS = ("start_ns", "duration_ns", "macs", "flops", "bytes")
"""Attributes of nodes, in the order in which they are written; an edge has `kind` and `size_bytes`."""
DOT_KEYS = {"name": "node_name"}
"""Attributes that are called otherwise in DOT: pydot takes `name` for the node's id."""
BLOCK = 16_384
"""Nodes or edges that are spelled at once."""
Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

LARGE_FOR_DOT = 2_000
"""Nodes from which laying out a graph takes minutes."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    format: str = option(BOTH, "files to write", choices=(BOTH, GRAPHML, DOT))
    step: str = option(MEDIAN, STEP_DOC)
    plumbing: bool = option(True, "keep helpers: loop and branch plumbing, feeds, fetches, constants, handles, identities")
    name: str = option("", "beginning of the file names; empty: the workload's name")


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write the files.

    Raises:
        ExportError: nothing is left to write.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    view = view_steps(trace, options.step, "exporter 'graph'")[0]
    kept = view.chosen if options.plumbing else view.chosen & ~view.helpers
    if not kept.any():
        raise ExportError("every execution of the step is a helper; set plumbing=true")
    graph = Graph(view, kept)
    stem = file_stem(options.name, trace.provenance)
    files = [f"{stem}.{suffix}" for suffix in (GRAPHML, DOT) if options.format in (suffix, BOTH)]
    for file in files:
        with (folder / file).open("w", encoding="utf-8", newline="") as out:
            out.writelines(graphml_text(graph) if file.endswith(GRAPHML) else dot_text(graph))
    into = np.bincount(graph.consumer, minlength=len(view))

    def describe(view: StepView, node: int, members: Int64) -> Mapping[str, Any]:
        first = members[0] + view.rows.start
        more = f" and {len(members) - 1} more" * (len(members) > 1)
        return {"place": f"{files[0]}:node {first}{more}", "how": "node", "facts": {"edges": int(into[members].sum())}}

    left_out = LeftOut.of(len(view), ("helper, bridged (plumbing=false)", ~kept))
    layers, skipped = account([view], {view.structure: left_out}, describe)
    report = ExportReport(
        exporter="graph",
        target=TARGET,
        files=tuple(files),
        layers=layers,
        skipped=skipped,
        settings={**asdict(options), "name": stem, "step": view.step, "structure": view.structure, "edges": len(graph.producer)},
        notes=(*notes([view]), *_notes(graph, files, options)),
        provenance=dict(trace.provenance),
    )
    verify([view], report)
    return report


def _notes(graph: Graph, files: Sequence[str], options: Options) -> Iterable[str]:
    count = int(np.count_nonzero(graph.kept))
    if any(file.endswith(DOT) for file in files) and count > LARGE_FOR_DOT:
        yield f"{count} nodes are too many to lay out with dot" + "; --set plumbing=false leaves out helpers" * options.plumbing
    yield "export another structure with --set step=N" if graph.structures > 1 else "every step ran this graph"


class Graph:
    """The graph of the kept executions, in columns. Edges (local numbers) are by producer, data before others, then by consumer."""

    def __init__(self, view: StepView, kept: Mask) -> None:
        self.view, self.kept = view, kept
        self.workload, self.structures = _plain(str(view.trace.provenance.get("workload") or "")), len(view.trace.structures)
        count = len(view)
        read, sizes = _read_bytes(view, kept)
        waits = bridge(view.dependencies, kept)
        pairs = np.repeat(np.arange(count), np.diff(waits.offsets)) * count + waits.producer
        pairs = pairs[kept[pairs // count] & ~_among(pairs, read)]
        direct = np.repeat(np.arange(count), np.diff(view.dependencies.offsets)) * count + view.dependencies.producer
        codes = np.where(_among(pairs, direct), EDGE_KINDS.index(CONTROL), EDGE_KINDS.index(BRIDGED))
        pairs, self.kind = np.concatenate([read, pairs]), np.concatenate([np.zeros(len(read), np.int64), codes])
        sizes = np.concatenate([sizes, np.zeros(len(codes), np.int64)])
        self.producer, self.consumer = pairs % count, pairs // count
        order = np.lexsort((self.consumer, self.kind != 0, self.producer))
        self.producer, self.consumer, self.kind, self.size_bytes = (
            column[order] for column in (self.producer, self.consumer, self.kind, sizes)
        )

    @cached_property
    def shared(self) -> dict[int, tuple[str, ...]]:
        """What the executions of a node have alike: the texts `SHARED`."""
        trace, found = self.view.trace, dict[int, tuple[str, ...]]()
        phase, layer = phases(trace), layer_names(trace)
        for node in np.unique(self.view.nodes[self.kept]).tolist():
            op, device = trace.node_ops[node], trace.strings[int(trace.nodes.device[node])]
            found[node] = tuple(_plain(t) for t in (trace.node_names[node], op, kind(op), phase[node], layer[node], device))
        return found

    @cached_property
    def numbers(self) -> dict[str, tuple[Int64, Mask]]:
        """The columns `NUMBERS`, and where they are known."""
        view, costs, always = self.view, self.view.costs, np.ones(len(self.view), bool)
        return {
            "start_ns": (view.start_ns, always), "duration_ns": (view.duration_ns, always), "macs": (costs.macs, costs.macs_known),
            "flops": (costs.flops, costs.flops_known), "bytes": (costs.bytes, costs.bytes_known),
        }  # fmt: skip

    def blocks(self) -> Iterator[tuple[list[int], list[int], list[int], list[int], list[list[int | None]]]]:
        """Kept executions, many at a time: row, node, code of the iteration, code of the outputs, and each its `NUMBERS`."""
        view, rows = self.view, np.flatnonzero(self.kept)
        for begin in range(0, len(rows), BLOCK):
            part = rows[begin : begin + BLOCK]
            columns = []
            for values, known in self.numbers.values():
                there = known[part]
                column: list[int | None] = values[part].tolist()
                columns.append(column if there.all() else [v if k else None for v, k in zip(column, there.tolist(), strict=True)])
            codes = (view.nodes[part], view.iterations[0][part], view.output_texts[0][part])
            nodes, iterations, outputs = (code.tolist() for code in codes)
            yield (part + view.rows.start).tolist(), nodes, iterations, outputs, columns

    def edges(self) -> Iterator[tuple[list[int], list[int], list[int], list[int]]]:
        """Producer, consumer, code of the kind and bytes of edges, many at a time."""
        start = self.view.rows.start
        for begin in range(0, len(self.producer), BLOCK):
            part = slice(begin, begin + BLOCK)
            columns = self.producer[part] + start, self.consumer[part] + start, self.kind[part], self.size_bytes[part]
            producer, consumer, what, size = (column.tolist() for column in columns)
            yield producer, consumer, what, size


def _among(values: Int64, ascending: Int64) -> Mask:
    """Which values are among others."""
    place = np.minimum(np.searchsorted(ascending, values), max(len(ascending) - 1, 0))
    return np.asarray(ascending[place] == values) if len(ascending) else np.zeros(len(values), bool)


def _read_bytes(view: StepView, kept: Mask) -> tuple[Int64, Int64]:
    """Who read from whom, both kept (as consumer times executions plus producer, ascending), and how many bytes of distinct tensors."""
    executions, tensors, count = view.trace.executions, view.trace.tensors, len(view)
    bounds = executions.input_offsets[view.rows.start : view.rows.stop + 1]
    reader = np.repeat(np.arange(count), np.diff(bounds))
    each = distinct(reader * len(tensors) + executions.input[int(bounds[0]) : int(bounds[-1])])
    reader, tensor = each // max(len(tensors), 1), each % max(len(tensors), 1)
    producer = tensors.execution[tensor].astype(np.int64) - view.rows.start
    wanted = np.flatnonzero(kept[reader] & kept[producer])
    pairs, sizes = reader[wanted] * count + producer[wanted], tensors.size_bytes[tensor[wanted]].astype(np.int64)
    order = np.argsort(pairs, kind="stable")
    pairs, sizes = pairs[order], sizes[order]
    begins = np.flatnonzero(np.concatenate([np.ones(min(len(pairs), 1), bool), pairs[1:] != pairs[:-1]]))
    return pairs[begins], np.add.reduceat(sizes, begins) if len(begins) else sizes


def _plain(text: str) -> str:
    """`text` with control characters spelled out, which XML cannot hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]", lambda m: f"\\x{ord(m[0]):02x}", text)


# --- GraphML ----------------------------------------------------------------------------------------------------------------------

NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
SCHEMA = f"{NAMESPACE} {NAMESPACE}/1.0/graphml.xsd"
BEGIN = f"""<?xml version='1.0' encoding='utf-8'?>
<graphml xmlns="{NAMESPACE}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="{SCHEMA}">
"""
"""Up to the first element, so that what begins like this declares no entities."""
ABOUT = ("workload", "step", "structures")
"""Attributes of the whole graph."""


def graphml_text(graph: Graph) -> Iterator[str]:
    """The graph in GraphML, as networkx writes it (which has all of it as objects to do so), many elements at a time."""
    keys = list(_keys(graph))
    yield BEGIN
    for number, (scope, name) in reversed(list(enumerate(keys))):
        form = "string" if name in (*TEXTS, ABOUT[0]) else "long"
        yield f'  <key id="d{number}" for="{scope}" attr.name="{name}" attr.type="{form}" />\n'
    yield '  <graph edgedefault="directed">\n'
    number_of = {key: number for number, key in enumerate(keys)}
    yield from _graphml_nodes(graph, number_of)
    yield from _graphml_edges(graph, number_of)
    step = -1 if graph.view.step is None else graph.view.step
    for name, value in zip(ABOUT, (graph.workload, step, graph.structures), strict=True):
        yield f"    {_data(number_of['graph', name], str(value))}\n"
    yield "  </graph>\n</graphml>\n"


def _keys(graph: Graph) -> Iterator[tuple[str, str]]:
    """What the attributes are of, and their names, in the order in which they are first there."""
    yield from (("graph", name) for name in ABOUT)
    yield from (("node", name) for name in TEXTS)
    first = {name: np.flatnonzero(graph.kept & known)[:1] for name, (_, known) in graph.numbers.items()}
    present = [name for name in NUMBERS if len(first[name])]
    yield from (("node", name) for name in sorted(present, key=lambda name: int(first[name][0])))
    if len(graph.kind):
        yield "edge", "kind"
    if np.any(graph.kind == 0):
        yield "edge", "size_bytes"


def _data(key: int, text: str) -> str:
    return f'<data key="d{key}">{escape(text)}</data>' if text else f'<data key="d{key}" />'


def _graphml_nodes(graph: Graph, keys: Mapping[tuple[str, str], int]) -> Iterator[str]:
    def line(name: str, text: str) -> str:
        return f"      {_data(keys['node', name], text)}\n"

    shared = {n: "".join(map(line, SHARED, texts)) for n, texts in graph.shared.items()}
    iterations = [line("iteration", text) for text in graph.view.iterations[1]]
    outputs = [line("outputs", _plain(text)) for text in graph.view.output_texts[1]]
    heads = [f'      <data key="d{keys["node", name]}">' if ("node", name) in keys else "" for name in NUMBERS]
    for rows, nodes, paths, made, columns in graph.blocks():
        numbers = [
            [f"{head}{value}</data>\n" if value is not None else "" for value in column]
            for head, column in zip(heads, columns, strict=True)
        ]
        yield "".join(
            [
                f'    <node id="{row}">\n{shared[node]}{iterations[path]}{outputs[out]}{"".join(told)}    </node>\n'
                for row, node, path, out, *told in zip(rows, nodes, paths, made, *numbers, strict=True)
            ]
        )


def _graphml_edges(graph: Graph, keys: Mapping[tuple[str, str], int]) -> Iterator[str]:
    kinds = [f"      {_data(keys.get(('edge', 'kind'), 0), name)}\n" for name in EDGE_KINDS]
    head = f'      <data key="d{keys.get(("edge", "size_bytes"), 0)}">'
    for columns in graph.edges():
        yield "".join(
            [
                f'    <edge source="{producer}" target="{consumer}">\n{kinds[what]}'
                + ("    </edge>\n" if what else f"{head}{size}</data>\n    </edge>\n")
                for producer, consumer, what, size in zip(*columns, strict=True)
            ]
        )


# --- DOT --------------------------------------------------------------------------------------------------------------------------


def dot_text(graph: Graph) -> Iterator[str]:
    """The graph in DOT, many lines at a time: one for each node and edge; a node's label is its name, op and time."""
    yield f'digraph {_quoted(graph.workload)} {{\nnode [shape="box"];\n'
    labels = {n: f'label="{_escaped(texts[0])}\\n{_escaped(texts[1])}\\n' for n, texts in graph.shared.items()}
    shared = {
        n: "".join(f",{DOT_KEYS.get(k, k)}={_quoted(t)}" for k, t in zip(SHARED, ts, strict=True)) for n, ts in graph.shared.items()
    }
    iterations = [f",iteration={_quoted(text)}" for text in graph.view.iterations[1]]
    outputs = [f",outputs={_quoted(_plain(text))}" for text in graph.view.output_texts[1]]
    for rows, nodes, paths, made, columns in graph.blocks():
        numbers = [
            [f",{name}={value}" if value is not None else "" for value in column]
            for name, column in zip(NUMBERS, columns, strict=True)
        ]
        times = [format_ns(duration or 0) for duration in columns[NUMBERS.index("duration_ns")]]
        yield "".join(
            [
                f'{row} [{labels[node]}{time}"{shared[node]}{iterations[path]}{outputs[out]}{"".join(told)}];\n'
                for row, node, path, out, time, *told in zip(rows, nodes, paths, made, times, *numbers, strict=True)
            ]
        )
    for edges in graph.edges():
        yield "".join(
            [
                f'{producer} -> {consumer} [kind="{EDGE_KINDS[what]}",style="dashed"];\n'
                if what
                else f'{producer} -> {consumer} [kind="{DATA}",size_bytes={size}];\n'
                for producer, consumer, what, size in zip(*edges, strict=True)
            ]
        )
    yield "}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


# --- checking ---------------------------------------------------------------------------------------------------------------------

ABSENT = -1


class _Read:
    """A graph as parsed, in columns: texts are numbers of `words`, what is not there is `ABSENT`."""

    def __init__(self, words: dict[str, int]) -> None:
        self.words = words
        self.ids = array("q")
        self.nodes = {key: array("q") for key in (*TEXTS, *NUMBERS)}
        self.producers, self.consumers = array("q"), array("q")
        self.edges = {key: array("q") for key in ("kind", "size_bytes")}

    def word(self, text: str) -> int:
        """The number of a text."""
        return self.words.setdefault(text, len(self.words))

    def node(self, number: int, told: Mapping[str, int]) -> None:
        """One more node."""
        self.ids.append(number)
        for key, column in self.nodes.items():
            column.append(told.get(key, ABSENT))

    def edge(self, producer: int, consumer: int, told: Mapping[str, int]) -> None:
        """One more edge."""
        self.producers.append(producer)
        self.consumers.append(consumer)
        for key, column in self.edges.items():
            column.append(told.get(key, ABSENT))

    def finish(self) -> None:
        """Sort nodes and edges; raises `ValueError` where one is there twice."""
        self.columns = {key: np.frombuffer(column, np.int64) for key, column in (("id", self.ids), *self.nodes.items())}
        if np.any(self.columns["id"][1:] < self.columns["id"][:-1]):
            order = np.argsort(self.columns["id"], kind="stable")
            self.columns = {key: column[order] for key, column in self.columns.items()}
        edges = {"producer": self.producers, "consumer": self.consumers, **self.edges}
        self.links = {key: np.frombuffer(column, np.int64) for key, column in edges.items()}
        order = np.lexsort((self.links["consumer"], self.links["producer"]))
        self.links = {key: column[order] for key, column in self.links.items()}
        ids, producer, consumer = self.columns["id"], self.links["producer"], self.links["consumer"]
        if np.any(ids[1:] == ids[:-1]):
            raise ValueError(f"node {ids[1:][ids[1:] == ids[:-1]][0]} is there twice")
        twice = np.flatnonzero((producer[1:] == producer[:-1]) & (consumer[1:] == consumer[:-1]))
        if len(twice):
            raise ValueError(f"it is no simple directed graph: edge {producer[twice[0]]} -> {consumer[twice[0]]} is there twice")

    def equals(self, other: _Read) -> bool:
        """Whether nodes, edges and all attributes are the same."""
        pairs = ((self.columns, other.columns), (self.links, other.links))
        return all(np.array_equal(column, its[key]) for mine, its in pairs for key, column in mine.items())


def check(folder: Path) -> CheckReport:
    """Parse the files strictly, a line at a time, and compare them with each other and with `export.json`.

    In each: every edge between nodes that are there, no cycle, attributes of the right types. Against the trace: nodes, edges into each,
    exact time of each node of the executed graph, all edges.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    try:
        layers = LayerMap(report["layers"])
        files, edges = [str(f) for f in report["files"]], int(report["settings"]["edges"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of graph ({error}); export again") from None
    found: dict[str, _Read] = {}
    words: dict[str, int] = {}
    for name in files:
        read = _Read(words)
        try:
            with (folder / name).open(encoding="utf-8", newline="\n") as file:
                (_parse_graphml if name.endswith(GRAPHML) else _parse_dot)(file, read)
            read.finish()
        except (OSError, ValueError, KeyError, OverflowError) as error:
            problems.append(f"{name} cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:120]})")
            continue
        found[name] = read
        problems += [f"{name}: {text}" for text in _differences(read, layers, edges)]
    if len(found) == 2:
        one, other = found.values()
        if not one.equals(other):
            problems.append(f"{' and '.join(found)} are not the same graph")
    facts = {"nodes": 0, "edges": 0, "time_ns": 0}
    for first in list(found.values())[:1]:
        facts = {"nodes": len(first.ids), "edges": len(first.producers), "time_ns": int(first.columns["duration_ns"].clip(0).sum())}
    return CheckReport(tuple(found), facts, tuple(problems))


_KEY = re.compile(r'  <key id="(d[0-9]+)" for="(graph|node|edge)" attr\.name="([a-z_]+)" attr\.type="(string|long)" />\n')
_BEGINS = re.compile(r'    <(?:node id="([0-9]+)"|edge source="([0-9]+)" target="([0-9]+)")>\n')
_DATA = re.compile(r'<data key="(d[0-9]+)"(?: />|>([^<>]+)</data>)\n')


def _parse_graphml(file: TextIO, read: _Read) -> None:
    """The layout that is written, a line for each element, of which that is well-formed.

    Raises:
        KeyError, OverflowError, ValueError: it is anything else.
    """
    if file.readline() + file.readline() != BEGIN:
        raise ValueError("it does not begin as GraphML")
    keys: dict[str, tuple[str, str]] = {}
    line = file.readline()
    while match := _KEY.fullmatch(line):
        of = match[2], match[3]
        form = "string" if match[3] in (*TEXTS, ABOUT[0]) else "long"
        if match[1] in keys or of in keys.values() or match[4] != form:
            raise ValueError(f"attribute {match[3]} is there twice, or of another type")
        keys[match[1]] = of
        line = file.readline()
    if line != '  <graph edgedefault="directed">\n':
        raise ValueError("it is no simple directed graph")
    elements = _Elements(keys, read)
    line = file.readline()
    while match := _BEGINS.fullmatch(line):
        told, end = elements.told("node" if match[1] else "edge", file)
        if match[1] and end == "    </node>\n":
            read.node(int(match[1]), told)
        elif match[2] and end == "    </edge>\n":
            read.edge(int(match[2]), int(match[3]), told)
        else:
            raise ValueError(f"node {match[1]} or edge {match[2]} -> {match[3]} has no end")
        line = file.readline()
    about = [line, *(file.readline() for _ in ABOUT[1:])]
    found = [_DATA.fullmatch(each.removeprefix("    ")) for each in about]
    if [keys[m[1]] if m else None for m in found] != [("graph", name) for name in ABOUT] or file.read(
        32
    ) != "  </graph>\n</graphml>\n":
        raise ValueError("it does not end as a graph")


class _Elements:
    """Reads the attributes of nodes and edges; each distinct line of text is parsed once."""

    def __init__(self, keys: Mapping[str, tuple[str, str]], read: _Read) -> None:
        self.keys, self.read = keys, read
        self.texts: dict[str, tuple[str, str, int]] = {}
        self.numbers = {f'      <data key="{key}"': of for key, of in keys.items() if of[1] in NUMBERS or of == ("edge", "size_bytes")}

    def told(self, scope: str, file: TextIO) -> tuple[dict[str, int], str]:
        """What is said of an element of a kind, and the line behind it."""
        told: dict[str, int] = {}
        numbers, texts = self.numbers, self.texts
        while (line := file.readline()).startswith("      "):
            head, _, rest = line.partition(">")
            if of := numbers.get(head):
                number = rest.removesuffix("</data>\n")
                if not number.isdecimal() or not number.isascii():
                    raise ValueError(f"{of[1]} is '{number}', not an integer")
                what, name, value = *of, int(number)
            else:
                what, name, value = texts.get(line) or self._text(line)
            if what != scope or name in told:
                raise ValueError(f"a {scope} has an attribute of a {what}, or {name} twice")
            told[name] = value
        return told, line

    def _text(self, line: str) -> tuple[str, str, int]:
        match = _DATA.fullmatch(line.removeprefix("      "))
        if not match or escape(text := unescape(match[2] or "")) != (match[2] or ""):
            raise ValueError(f"'{line.strip()}' is no attribute")
        what, name = self.keys[match[1]]
        if name not in TEXTS and (what, name) != ("edge", "kind"):
            raise ValueError(f"attribute {name} is never written, or is no text")
        self.texts[line] = found = what, name, self.read.word(text)
        return found


_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_NODE = re.compile(
    rf"([0-9]+) \[label={_TEXT},(.+),iteration=({_TEXT}),outputs=({_TEXT}),start_ns=([0-9]+),duration_ns=([0-9]+)"
    r"((?:,(?:macs|flops|bytes)=[0-9]+)*)\];\n"
)
_EDGE = re.compile(r'([0-9]+) -> ([0-9]+) \[kind="([a-z]+)",(?:size_bytes=([0-9]+)|style="dashed")\];\n')
_SHARED = re.compile(",".join(f"{DOT_KEYS.get(key, key)}=({_TEXT})" for key in SHARED))


def _parse_dot(file: TextIO, read: _Read) -> None:
    """The layout that is written, a line for each node and edge.

    Raises:
        OverflowError, ValueError: it is anything else.
    """
    if not re.fullmatch(rf"digraph {_TEXT} \{{\n", file.readline()) or file.readline() != 'node [shape="box"];\n':
        raise ValueError("it does not begin and end as a digraph")
    shared: dict[str, dict[str, int]] = {}
    words: dict[str, int] = {}
    last = ""
    for number, line in enumerate(file, start=3):
        if last:
            raise ValueError(f"line {number} follows the end of the digraph")
        if match := _EDGE.fullmatch(line):
            producer, consumer, what, size = match.groups()
            read.edge(int(producer), int(consumer), {"kind": read.word(what), **({"size_bytes": int(size)} if size else {})})
        elif match := _NODE.fullmatch(line):
            node, alike, *texts, start, duration, work = match.groups()
            if alike not in shared:
                shared[alike] = dict(zip(SHARED, _words(alike, read, number), strict=True))
            for text in texts:
                if text not in words:
                    words[text] = read.word(_unquoted(text))
            told = shared[alike] | {"iteration": words[texts[0]], "outputs": words[texts[1]]}
            told["start_ns"], told["duration_ns"] = int(start), int(duration)
            for pair in work.split(",")[1:]:
                name, _, value = pair.partition("=")
                if name in told:
                    raise ValueError(f"line {number} has {name} twice")
                told[name] = int(value)
            read.node(int(node), told)
        elif line == "}\n":
            last = line
        else:
            raise ValueError(f"line {number} is neither a node nor an edge")
    if not last:
        raise ValueError("it does not begin and end as a digraph")


def _words(text: str, read: _Read, number: int) -> list[int]:
    """The texts that the executions of a node have alike."""
    match = _SHARED.fullmatch(text)
    if not match:
        raise ValueError(f"line {number} is neither a node nor an edge")
    return [read.word(_unquoted(quoted)) for quoted in match.groups()]


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _differences(found: _Read, layers: LayerMap, edges: int) -> Iterator[str]:
    ids, links = found.columns["id"], found.links
    if not np.array_equal(ids, layers.executions):
        yield f"{len(ids)} nodes, export.json has {len(layers.executions)} executions, or others"
        return
    producer, consumer = links["producer"], links["consumer"]
    if len(producer) != edges:
        yield f"{len(producer)} edges, export.json says {edges}"
    lost = ~_among(producer, ids) | ~_among(consumer, ids)
    for k in np.flatnonzero(lost).tolist():
        yield f"edge {producer[k]} -> {consumer[k]} has an end that does not exist"
    for k in np.flatnonzero(~lost & (producer >= consumer)).tolist():
        yield f"edge {producer[k]} -> {consumer[k]} goes back: producers come first"
    if not np.isin(links["kind"], [found.words.get(kind, ABSENT - 1) for kind in EDGE_KINDS]).all():
        yield "an edge is of no kind"
    of = layers.layer
    times, waits = layers.sums(of, found.columns["duration_ns"]).tolist(), layers.sums(layers.layer_of(consumer)).tolist()
    names = np.array([found.words.get(_plain(layer.name), ABSENT - 1) for layer in layers.layers] or [ABSENT], np.int64)
    renamed = set(np.unique(of[found.columns["name"] != names[of]]).tolist())
    for number, layer in enumerate(layers.layers):
        if times[number] != layer.time_ns or number in renamed:
            yield f"{layer.name}: {times[number]} ns, in the trace {layer.time_ns:.0f}, or of another name"
        if waits[number] != layer.facts.get("edges"):
            yield f"{layer.name}: {waits[number]} edges into it, in the trace {layer.facts.get('edges')}"
