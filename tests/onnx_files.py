"""Exports to ONNX in tests, and what the real package makes of the models."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.simulator_env import run_in_simulator

EXPORTER: Any = REGISTRY.load("onnx")


def package() -> Any:
    """The real `onnx`, which the tests need and the package does not."""
    return importlib.import_module("onnx")


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True, exist_ok=True)
    report: ExportReport = EXPORTER.write(trace, folder, apply_settings(EXPORTER.Options(), settings, "exporter 'onnx'"))
    write_report(folder, report)
    assert EXPORTER.check(folder).problems == ()
    return report


def read(folder: Path, name: str = "test") -> Any:
    """The model as the real package reads it, after its own full check."""
    onnx = package()
    onnx.checker.check_model(str(folder / f"{name}.onnx"), full_check=True)
    return onnx.load(str(folder / f"{name}.onnx"))


def shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape that a model gives every tensor."""
    found = {v.name: extents(v) for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    return found | {t.name: tuple(t.dims) for t in model.graph.initializer}


def extents(value: Any) -> tuple[int, ...]:
    """The shape of a ValueInfoProto."""
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def inferred(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape that the real package infers for the result of every node, having forgotten what the model says."""
    onnx = package()
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    found = onnx.shape_inference.infer_shapes(bare, strict_mode=True, check_type=True)
    return {v.name: extents(v) for v in (*found.graph.value_info, *found.graph.output)}


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node: lists of integers or an integer."""
    return {a.name: package().helper.get_attribute_value(a) for a in node.attribute}


STREAM_LOAD = """
import json, logging, sys
from math import prod
logging.disable()
from stream.frontends import load_workload
found = []
for file in sys.argv[1:]:
    workload = load_workload(file)
    for node in workload.get_computation_nodes():
        sizes = [workload.get_dimension_size(dim) for dim in workload.get_dims(node)]
        found.append({"file": file, "name": node.name, "type": node.type, "macs": prod(sizes),
                      "operands": [list(t.shape) for t in node.inputs], "result": list(node.outputs[0].shape),
                      "maps": [str(m) for m in node.operand_mapping]})
print(json.dumps(found))
"""


def load_in_stream(folder: Path, *files: str) -> list[dict[str, Any]]:
    """What Stream's frontend makes of models: a row per node, with the product of its loops."""
    found: list[dict[str, Any]] = run_in_simulator("stream", STREAM_LOAD, folder, *files)
    return found


def evaluate_in_stream(report: ExportReport, folder: Path) -> list[float]:
    """Run the very command of the report's notes; returns the cycles of each model as it was told."""
    (note,) = (note for note in report.notes if note.startswith("run Stream"))
    code = note.partition('python -c "')[2].rpartition('"')[0]
    imports, _, evaluation = code.rpartition("; [")
    told = f"{imports}\nimport json, logging\nlogging.disable()\nprint(json.dumps([found.cycles for found in [{evaluation}]))"
    found: list[float] = run_in_simulator("stream", told, folder)
    return found
