"""Has each target's own parser read an export and compares what it found with the trace: one function an exporter.

The exports are of one step. Each returns what was compared, in words, and raises AssertionError where target and trace differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np

from fathom_trace.exporter import ExportReport
from fathom_trace.exporters import REGISTRY
from fathom_trace.trace import Trace
from tests import accelforge_files, chakra_files, onnx_files, perfetto_processor, scale_sim_files, zigzag_files
from tests.simulator_env import run_in_simulator

XPROF_STATS = """
import json, sys
from xprof.convert.raw_to_tool_data import xspace_to_tool_data
data, _ = xspace_to_tool_data([sys.argv[1]], "framework_op_stats", {"use_saved_result": False})
print(data.decode() if isinstance(data, bytes) else data)
"""

PERFETTO_QUERIES = (
    "select name from stats where severity in ('error', 'data_loss') and value > 0",
    "select count(*) as count, sum(dur) as total from slice",
    "select count(*) as count from flow",
)

XPROF_MOST_ROWS = 500
"""Of its table, idle time included."""


def scale_sim(report: ExportReport, folder: Path, trace: Trace) -> str:
    """Multiply-accumulates of every simulated layer."""
    rows = 0
    for layer, found in scale_sim_files.parsed_layers(report, folder):
        assert sum(row["macs"] for row in found) * layer.count == layer.macs, layer.name
        rows += len(found)
    return f"{rows:,} layers, their MACs"


def zigzag(report: ExportReport, folder: Path, trace: Trace) -> str:
    """Multiply-accumulates of every layer."""
    found = zigzag_files.parse(folder, report.settings["name"])
    for layer, row in zip(report.layers, found, strict=True):
        assert row["macs"] * layer.count == layer.macs, layer.name
    return f"{len(found):,} layers, their MACs"


def accelforge(report: ExportReport, folder: Path, trace: Trace) -> str:
    """Multiply-accumulates of every einsum and the size of every operand."""
    [own] = accelforge_files.read(folder, report.files[0]).values()
    for layer in report.layers:
        einsum = own["einsums"][layer.name]
        assert einsum["computes"] * einsum["instances"] == layer.macs, layer.name
        for values in layer.facts["tensors"].values():
            assert own["tensors"][values["tensor"]]["size"] == values["elements"], (layer.name, values)
    return f"{len(report.layers):,} einsums, their MACs and operand sizes"


def onnx(report: ExportReport, folder: Path, trace: Trace) -> str:
    """The package's full check, and every result's shape as it infers it."""
    model = onnx_files.read(folder, report.settings["name"])
    results = {name for node in model.graph.node for name in node.output}
    assert onnx_files.inferred(model) == {name: shape for name, shape in onnx_files.shapes(model).items() if name in results}
    return f"{len(results):,} results, their shapes"


def chakra(report: ExportReport, folder: Path, trace: Trace) -> str:
    """A node for every execution written, acyclic, and the longest path of the exact times."""
    found = chakra_files.read_with_reference(folder, [f for f in report.files if f.endswith(".et")])
    for nodes in found.values():
        at = {n.id: n for n in nodes}
        assert len(at) == len(nodes) == sum(len(layer.executions) for layer in report.layers)
        graph = networkx.DiGraph((d, n.id) for n in nodes for d in n.deps)
        graph.add_nodes_from(at)
        assert set(graph.nodes) == set(at)
        assert networkx.is_directed_acyclic_graph(graph)
        assert sum(n.duration_ns for n in nodes) == round(sum(layer.time_ns for layer in report.layers))
    return f"{sum(map(len, found.values())):,} nodes, their dependencies and exact times"


def perfetto(report: ExportReport, folder: Path, trace: Trace) -> str:
    """Slices, their total time and flows; no error or loss that the trace processor counts."""
    step = int(report.settings["step"])
    problems, [slices], [flows] = perfetto_processor.ask(folder / report.files[0], *PERFETTO_QUERIES)
    assert problems == []
    shown = sum(len(layer.executions) for layer in report.layers)
    assert slices["count"] == shown
    assert slices["total"] == int(trace.durations(step).sum())
    return f"{shown:,} slices, their total time; {flows['count']:,} flows"


def xprof(report: ExportReport, folder: Path, trace: Trace) -> str:
    """Occurrences and time of every op, as its own table has them (of the 500 longest)."""
    module: Any = REGISTRY.load("xprof")
    [file] = folder.resolve().glob("plugins/profile/*/*.xplane.pb")
    table = run_in_simulator("xprof", XPROF_STATS, folder, str(file))[0]
    columns = [c["id"] for c in table["cols"]]
    rows = [dict(zip(columns, [c["v"] for c in row["c"]], strict=True)) for row in table["rows"]]
    count: Counter[tuple[str, str]] = Counter()
    time_ns: dict[tuple[str, str], float] = defaultdict(float)
    step = int(report.settings["step"])
    rows_of = trace.structure_rows(trace.main_structure)
    for node, duration in zip(trace.executions.node[rows_of].tolist(), trace.durations(step).tolist(), strict=True):
        op, _, op_type = module.event_name(trace.node_names[node], trace.node_ops[node]).partition(":")
        count[op_type, op] += 1
        time_ns[op_type, op] += duration
    ops = [row for row in rows if row["type"] != "IDLE"]
    assert len(ops) == len(count) or len(rows) == XPROF_MOST_ROWS
    for row in ops:
        key = row["type"], row["operation"]
        assert int(row["occurrences"]) == count[key], key
        assert np.isclose(row["total_time"], time_ns[key] / 1e3, atol=1e-3, rtol=1e-6), key
    return f"{len(ops):,} of {len(count):,} ops, their occurrences and times"


def graph(report: ExportReport, folder: Path, trace: Trace) -> str:
    """networkx reads the same executions and dependencies."""
    [file] = folder.glob("*.graphml")
    found, expected = networkx.read_graphml(file, node_type=int), trace.to_networkx()
    assert set(found.nodes) == set(expected.nodes)
    assert set(found.edges) == set(expected.edges)
    return f"{len(found):,} nodes, {found.number_of_edges():,} edges"


READERS: dict[str, Callable[[ExportReport, Path, Trace], str]] = {
    f.__name__: f for f in (scale_sim, zigzag, accelforge, onnx, chakra, perfetto, xprof, graph)
}
"""By exporter. Timeloop, DRAMsim3 and Ramulator are built from source and cannot be installed here; a table is read by any program."""
