"""Is the exported graph the trace's: its executions, who waited for whom, times and costs, in both formats?"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx
import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ExportError
from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.program import Program
from tests.simulator_env import run_in_simulator
from tests.small import dense, diamond, loop

GRAPH: Any = REGISTRY.load("graph")


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    folder.mkdir()
    report: ExportReport = GRAPH.write(trace, folder, apply_settings(GRAPH.Options(), settings, "exporter 'graph'"))
    write_report(folder, report)
    assert GRAPH.check(folder).problems == ()
    return report


def graphml(folder: Path) -> Any:
    [file] = folder.glob("*.graphml")
    return networkx.read_graphml(file, node_type=int)


@pytest.mark.parametrize("make", [diamond, dense, loop])
def test_it_is_the_dependency_graph(tmp_path: Path, make: Any) -> None:
    trace = make()
    export(trace, tmp_path / "out")
    expected, found = trace.to_networkx(), graphml(tmp_path / "out")
    assert set(found.nodes) == set(expected.nodes)
    assert set(found.edges) == set(expected.edges)
    assert networkx.is_directed_acyclic_graph(found)
    for node, told in expected.nodes(data=True):
        assert (found.nodes[node]["name"], found.nodes[node]["op"]) == (told["name"], told["op"])
        assert found.nodes[node]["duration_ns"] == told["duration_ns"]
        assert found.nodes[node]["iteration"] == ".".join(map(str, told["iteration"]))


def test_what_is_said_of_a_node_and_an_edge(tmp_path: Path) -> None:
    """MatMul [2,3] x [3,5]: 30 MACs, 60 FLOPs, 4 x (6 + 15 + 10) = 124 bytes; the ReLU reads its [2,5] float32: 40 bytes."""
    export(dense(), tmp_path / "out")
    found = graphml(tmp_path / "out")
    product = next(told for _, told in found.nodes(data=True) if told["op"] == "MatMul")
    assert {key: product[key] for key in ("macs", "flops", "bytes", "start_ns", "duration_ns")} == {
        "macs": 30, "flops": 60, "bytes": 124, "start_ns": 0, "duration_ns": 30_000,
    }  # fmt: skip
    assert (product["kind"], product["layer"], product["outputs"]) == ("gemm", "fc", "float32[2,5]")
    assert found.edges[2, 3] == {"kind": "data", "size_bytes": 40}


def test_what_is_not_known_is_absent(tmp_path: Path) -> None:
    export(diamond(), tmp_path / "out")
    assert all("macs" not in told for _, told in graphml(tmp_path / "out").nodes(data=True))  # OpA to OpD: no op type that is known


def test_edges_say_what_they_are(tmp_path: Path) -> None:
    """a -> b data, a -> c control; without the identity between them d -> f is bridged."""
    builder = TraceBuilder()
    a = builder.node("a", "Relu")
    nodes = [a, builder.node("b", "Relu", inputs=[(a, 0)]), builder.node("c", "Relu", control=[a])]
    nodes.append(builder.node("d", "Relu"))
    nodes.append(builder.node("e", "Identity", inputs=[(3, 0)]))
    nodes.append(builder.node("f", "Relu", inputs=[(4, 0)]))
    for node, read, waits in zip(nodes, [[], [0], [], [], [3], [4]], [[], [], [0], [], [], []], strict=True):
        builder.execution(node, inputs=[builder.tensor(p) for p in read], control=waits, outputs=[("float32", [2])])
    builder.step(builder.end_structure(), start=range(6), done=range(1, 7))
    trace = builder.build({"workload": "edges"})
    export(trace, tmp_path / "all")
    assert kinds(tmp_path / "all") == {(0, 1): "data", (0, 2): "control", (3, 4): "data", (4, 5): "data"}
    report = export(trace, tmp_path / "bare", plumbing="false")
    assert kinds(tmp_path / "bare") == {(0, 1): "data", (0, 2): "control", (3, 5): "bridged"}
    assert [(s.op, s.executions, s.time_ns) for s in report.skipped] == [("Identity", 1, 1)]


def kinds(folder: Path) -> dict[tuple[int, int], str]:
    return {(p, c): kind for p, c, kind in graphml(folder).edges(data="kind")}


def test_names_survive(tmp_path: Path) -> None:
    """Quotes, backslashes, letters beyond ASCII; a control character, which XML cannot hold, is spelled out."""
    names = ['q"uote', "back\\slash\\", "conv/日本", "a b", "<&>", "x\0y"]
    program = Program()
    for name in names:
        program.op(name, "Relu", [], [2])
    export(program.trace(), tmp_path / "out")
    found = [told["name"] for _, told in graphml(tmp_path / "out").nodes(data=True)]
    assert found == [*names[:-1], "x\\x00y"]


def test_keys_are_unique(tmp_path: Path) -> None:
    """GraphML identifies an attribute by its key alone; nodes and edges both have a `kind`."""
    export(diamond(), tmp_path / "out")
    tree = ElementTree.parse(tmp_path / "out" / "diamond.graphml")
    keys = [e.get("id") for e in tree.iter() if e.tag.endswith("}key")]
    assert len(keys) == len(set(keys)) > 10


def test_one_format_on_request(tmp_path: Path) -> None:
    assert export(diamond(), tmp_path / "a", format="dot").files == ("diamond.dot",)
    assert export(diamond(), tmp_path / "b", format="graphml").files == ("diamond.graphml",)


def test_a_step_of_helpers_alone_is_refused(tmp_path: Path) -> None:
    program = Program()
    program.input("x", [2])
    with pytest.raises(ExportError, match="set plumbing=true"):
        export(program.trace(), tmp_path / "out", plumbing="false")


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("diamond.dot", "duration_ns=50000", "duration_ns=50001", "B: 50001 ns, in the trace 50000"),
        ("diamond.dot", "0 -> 1", "0 -> 3", "edges into it"),
        ("diamond.dot", "0 -> 1", "0 -- 1", "neither a node nor an edge"),
        ("diamond.dot", "0 -> 1", "3 -> 1", "goes back"),
        ("diamond.graphml", ">50000<", ">50001<", "B: 50001 ns, in the trace 50000"),
        ("diamond.graphml", 'edgedefault="directed"', 'edgedefault="undirected"', "no simple directed graph"),
        ("diamond.graphml", ">24<", ">25<", "not the same graph"),
    ],
)
def test_its_parser_finds_what_was_changed(tmp_path: Path, file: str, old: str, new: str, problem: str) -> None:
    export(diamond(), tmp_path / "out")
    path = tmp_path / "out" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(GRAPH.check(tmp_path / "out").problems)


READ_DOT = """
import json, sys, pydot
[graph] = pydot.graph_from_dot_file(sys.argv[1], encoding="utf-8")
nodes = {n.get_name(): n.get_attributes() for n in graph.get_nodes() if n.get_name() not in ("node", '"\\\\n"', "\\\\n")}
print(json.dumps({"type": graph.get_type(), "nodes": nodes, "edges": [[e.get_source(), e.get_destination()] for e in graph.get_edges()]}))
"""


@pytest.mark.simulator
def test_pydot_reads_the_dot(tmp_path: Path) -> None:
    trace = dense()
    export(trace, tmp_path / "out")
    found = run_in_simulator("chakra", READ_DOT, tmp_path / "out", "dense.dot")
    assert found["type"] == "digraph"
    assert sorted(map(int, found["nodes"])) == [0, 1, 2, 3]
    assert sorted((int(a), int(b)) for a, b in found["edges"]) == sorted(trace.to_networkx().edges)
    assert found["nodes"]["2"]["node_name"] == '"fc/MatMul"'
    assert found["nodes"]["2"]["duration_ns"] == "30000"
