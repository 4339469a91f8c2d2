"""The graph of a step's executions as GraphML and DOT: what ran, for how long, at what cost, and who waited for whom.

Target: GraphML 1.0, http://graphml.graphdrawing.org, written and read by networkx (Gephi, yEd, Cytoscape and igraph read it too); and
DOT as Graphviz defines it, https://graphviz.org/doc/info/lang.html.

A node is one execution, its id the row of the trace's `executions`; loop bodies are there once per iteration, so the graph has no cycle.
An edge goes from a producer to who waited for it: `data` with the bytes of the tensors read, `control` where nothing was read, `bridged`
where what lay between was left out. A cost that is not known is absent, not 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportedLayer, ExportReport, Target, read_report
from fathom_trace.layers import layer_names
from fathom_trace.ops import kind
from fathom_trace.options import option
from fathom_trace.phases import phases
from fathom_trace.steps import MEDIAN, STEP_DOC, StepView, account, bridge, notes, verify, view_steps
from fathom_trace.trace import Trace
from fathom_trace.units import format_ns

if TYPE_CHECKING:
    import networkx

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
DOT_KEYS = {"name": "node_name"}
"""Attributes that are called otherwise in DOT: pydot takes `name` for the node's id."""
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
    import networkx

    view = view_steps(trace, options.step, "exporter 'graph'")[0]
    kept = view.chosen if options.plumbing else view.chosen & ~view.helpers
    if not kept.any():
        raise ExportError("every execution of the step is a helper; set plumbing=true")
    graph = build(view, kept)
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", options.name or str(trace.provenance.get("workload") or "trace"))
    files = [f"{stem}.{suffix}" for suffix in (GRAPHML, DOT) if options.format in (suffix, BOTH)]
    for file in files:
        if file.endswith(GRAPHML):
            networkx.write_graphml_xml(graph, folder / file, encoding="utf-8")
        else:
            (folder / file).write_text("".join(dot_lines(graph)), encoding="utf-8")

    def describe(view: StepView, node: int, members: list[int]) -> Mapping[str, Any]:
        first = members[0] + view.rows.start
        more = f" and {len(members) - 1} more" * (len(members) > 1)
        edges = sum(graph.in_degree(i + view.rows.start) for i in members)
        return {"place": f"{files[0]}:node {first}{more}", "how": "node", "facts": {"edges": edges}}

    left_out = dict.fromkeys(np.flatnonzero(~kept).tolist(), "helper, bridged (plumbing=false)")
    layers, skipped = account([view], {view.structure: left_out}, describe)
    report = ExportReport(
        exporter="graph",
        target=TARGET,
        files=tuple(files),
        layers=layers,
        skipped=skipped,
        settings={**asdict(options), "name": stem, "step": view.step, "structure": view.structure, "edges": graph.number_of_edges()},
        notes=(*notes([view]), *_notes(graph, files, options)),
        provenance=dict(trace.provenance),
    )
    verify([view], report)
    return report


def _notes(graph: networkx.DiGraph[int], files: Sequence[str], options: Options) -> Iterable[str]:
    if any(file.endswith(DOT) for file in files) and len(graph) > LARGE_FOR_DOT:
        yield f"{len(graph)} nodes are too many to lay out with dot" + "; --set plumbing=false leaves out helpers" * options.plumbing
    yield "export another structure with --set step=N" if graph.graph["structures"] > 1 else "every step ran this graph"


def build(view: StepView, kept: Any) -> networkx.DiGraph[int]:
    """The graph of the kept executions as networkx has it; texts carry no control characters."""
    import networkx

    trace, costs = view.trace, view.costs
    graph: networkx.DiGraph[int] = networkx.DiGraph(
        workload=_plain(str(trace.provenance.get("workload") or "")), step=-1 if view.step is None else view.step,
        structures=len(trace.structures),
    )  # fmt: skip
    phase, layer = phases(trace), layer_names(trace)
    shared: dict[int, dict[str, str]] = {}
    shapes = [f"[{','.join(map(str, s))}]" for s in trace.shapes.values]
    starts, durations, iterations = view.start_ns.tolist(), view.duration_ns.tolist(), view.iterations
    known = {
        "macs": (costs.macs_known, costs.macs),
        "flops": (costs.flops_known, costs.flops),
        "bytes": (costs.bytes_known, costs.bytes),
    }
    work = {
        name: [v if k else None for k, v in zip(has.tolist(), values.tolist(), strict=True)] for name, (has, values) in known.items()
    }
    for i in np.flatnonzero(kept).tolist():
        node, row = view.nodes[i], i + view.rows.start
        if node not in shared:
            op = trace.node_ops[node]
            told = {"name": trace.node_names[node], "op": op, "kind": kind(op), "phase": phase[node], "layer": layer[node]}
            told["device"] = trace.strings[int(trace.nodes.device[node])]
            shared[node] = {key: _plain(text) for key, text in told.items()}
        made = (f"{trace.strings[int(trace.tensors.dtype[t])]}{shapes[int(trace.tensors.shape[t])]}" for t in trace.outputs(row))
        own = {"iteration": iterations[i], "outputs": _plain(" ".join(made)), "start_ns": starts[i], "duration_ns": durations[i]}
        graph.add_node(row, **shared[node], **own, **{name: values[i] for name, values in work.items() if values[i] is not None})
    for i, sizes in _read_bytes(view).items():
        for p, size in sizes.items():
            if kept[i] and kept[p]:
                graph.add_edge(p + view.rows.start, i + view.rows.start, kind=DATA, size_bytes=size)
    direct = {(p, i) for i, before in enumerate(view.producers) for p in before}
    depends = bridge(view.dependencies, kept)
    for i in np.flatnonzero(kept).tolist():
        for p in depends.of(i).tolist():
            edge = (p + view.rows.start, i + view.rows.start)
            if not graph.has_edge(*edge):
                graph.add_edge(*edge, kind=CONTROL if (p, i) in direct else BRIDGED)
    return graph


def _read_bytes(view: StepView) -> dict[int, dict[int, int]]:
    """Bytes that each execution read of each producer (local numbers)."""
    trace, found = view.trace, dict[int, dict[int, int]]()
    for i in range(len(view)):
        sizes: dict[int, int] = defaultdict(int)
        for tensor in dict.fromkeys(trace.inputs(i + view.rows.start)):
            sizes[int(trace.tensors.execution[tensor]) - view.rows.start] += int(trace.tensors.size_bytes[tensor])
        found[i] = sizes
    return found


def _plain(text: str) -> str:
    """`text` with control characters spelled out, which XML cannot hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]", lambda m: f"\\x{ord(m[0]):02x}", text)


# --- DOT --------------------------------------------------------------------------------------------------------------------------


def dot_lines(graph: networkx.DiGraph[int]) -> Iterator[str]:
    """The graph in DOT: a line for each node and edge; a node's label is its name, op and time."""
    yield f"digraph {_quoted(str(graph.graph['workload']))} {{\n"
    yield 'node [shape="box"];\n'
    for node, told in graph.nodes(data=True):
        label = "\\n".join(_escaped(text) for text in (told["name"], told["op"], format_ns(told["duration_ns"])))
        yield f'{node} [label="{label}",{_attributes(told)}];\n'
    for producer, consumer, told in graph.edges(data=True):
        style = ',style="dashed"' * (told["kind"] != DATA)
        yield f"{producer} -> {consumer} [{_attributes(told)}{style}];\n"
    yield "}\n"


def _attributes(told: Mapping[str, Any]) -> str:
    return ",".join(f"{DOT_KEYS.get(key, key)}={value if isinstance(value, int) else _quoted(value)}" for key, value in told.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


# --- checking ---------------------------------------------------------------------------------------------------------------------

_TEXT = r'"(?:[^"\\]|\\.)*"'
_LIST = rf"\[((?:[a-z_]+=(?:{_TEXT}|[0-9]+),?)+)\]"
_NODE, _EDGE = re.compile(rf"([0-9]+) {_LIST};"), re.compile(rf"([0-9]+) -> ([0-9]+) {_LIST};")
_PAIR = re.compile(rf"([a-z_]+)=({_TEXT}|[0-9]+),?")

NUMBERS = ("start_ns", "duration_ns", "macs", "flops", "bytes", "size_bytes")


@dataclass(frozen=True)
class _Read:
    """A graph as parsed: attributes by node, and by (producer, consumer)."""

    nodes: Mapping[int, Mapping[str, Any]]
    edges: Mapping[tuple[int, int], Mapping[str, Any]]


def check(folder: Path) -> CheckReport:
    """Parse the files strictly, and compare them with each other and with `export.json`.

    In each: every edge between nodes that are there, no cycle, attributes of the right types. Against the trace: nodes, edges into each,
    exact time of each node of the executed graph, all edges.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    try:
        layers = [ExportedLayer(**row) for row in report["layers"]]
        files, edges = [str(f) for f in report["files"]], int(report["settings"]["edges"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of graph ({error}); export again") from None
    found: dict[str, _Read] = {}
    for name in files:
        try:
            found[name] = (_parse_graphml if name.endswith(GRAPHML) else _parse_dot)(folder / name)
        except (OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{name} cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:120]})")
            continue
        problems += [f"{name}: {text}" for text in _differences(found[name], layers, edges)]
    if len(found) == 2:
        one, other = found.values()
        if one.nodes != other.nodes or one.edges != other.edges:
            problems.append(f"{' and '.join(found)} are not the same graph")
    first = next(iter(found.values()), _Read({}, {}))
    facts = {
        "nodes": len(first.nodes),
        "edges": len(first.edges),
        "time_ns": sum(n.get("duration_ns", 0) for n in first.nodes.values()),
    }
    return CheckReport(tuple(found), facts, tuple(problems))


def _parse_graphml(path: Path) -> _Read:
    import networkx

    graph = networkx.read_graphml(path, node_type=int)
    if not graph.is_directed() or graph.is_multigraph():
        raise ValueError("it is no simple directed graph")
    for told in (*(n for _, n in graph.nodes(data=True)), *(e for *_, e in graph.edges(data=True))):
        for key in NUMBERS:
            if type(told.get(key, 0)) is not int:
                raise ValueError(f"{key} is {told[key]!r}, not an integer")
        told.pop("id", None)
    return _Read(dict(graph.nodes(data=True)), {(p, c): told for p, c, told in graph.edges(data=True)})


def _parse_dot(path: Path) -> _Read:
    lines = path.read_text(encoding="utf-8").split("\n")
    if not re.fullmatch(rf"digraph {_TEXT} \{{", lines[0]) or lines[1] != 'node [shape="box"];' or lines[-2:] != ["}", ""]:
        raise ValueError("it does not begin and end as a digraph")
    nodes: dict[int, dict[str, Any]] = {}
    edges: dict[tuple[int, int], dict[str, Any]] = {}
    for number, line in enumerate(lines[2:-2], start=3):
        if match := _NODE.fullmatch(line):
            key, told = int(match[1]), _told(match[2])
            if key in nodes or not told.pop("label", None):
                raise ValueError(f"line {number}: node {key} is there twice, or has no label")
            told |= {name: told.pop(spelled) for name, spelled in DOT_KEYS.items() if spelled in told}
            nodes[key] = told
        elif match := _EDGE.fullmatch(line):
            pair, told = (int(match[1]), int(match[2])), _told(match[3])
            told.pop("style", None)
            if pair in edges:
                raise ValueError(f"line {number}: edge {pair} is there twice")
            edges[pair] = told
        else:
            raise ValueError(f"line {number} is neither a node nor an edge")
    return _Read(nodes, edges)


def _told(text: str) -> dict[str, Any]:
    return {key: re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] == '"' else int(value) for key, value in _PAIR.findall(text)}


def _differences(found: _Read, layers: Sequence[ExportedLayer], edges: int) -> Iterable[str]:
    expected = {e for layer in layers for e in layer.executions}
    if set(found.nodes) != expected:
        yield f"{len(found.nodes)} nodes, export.json has {len(expected)} executions, or others"
        return
    if len(found.edges) != edges:
        yield f"{len(found.edges)} edges, export.json says {edges}"
    into: dict[int, int] = defaultdict(int)
    for producer, consumer in found.edges:
        into[consumer] += 1
        if producer not in expected or consumer not in expected:
            yield f"edge {producer} -> {consumer} has an end that does not exist"
        elif producer >= consumer:
            yield f"edge {producer} -> {consumer} goes back: producers come first"
    if any(told.get("kind") not in (DATA, CONTROL, BRIDGED) for told in found.edges.values()):
        yield "an edge is of no kind"
    for layer in layers:
        mine = [found.nodes[e] for e in layer.executions]
        time = sum(told.get("duration_ns", -1) for told in mine)
        if time != layer.time_ns or {told.get("name") for told in mine} != {_plain(layer.name)}:
            yield f"{layer.name}: {time} ns, in the trace {layer.time_ns:.0f}, or of another name"
        waits = sum(into[e] for e in layer.executions)
        if waits != layer.facts.get("edges"):
            yield f"{layer.name}: {waits} edges into it, in the trace {layer.facts.get('edges')}"
