"""Exports to ZigZag in tests, and what the real program makes of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.simulator_env import run_in_simulator

ZIGZAG: Any = REGISTRY.load("zigzag")

PARSE = """
import json, logging, pathlib, sys, zigzag.stages.parser.workload_parser as parser
logging.disable()
mapping = pathlib.Path(parser.__file__).parents[2] / "inputs" / "mapping" / "tpu_like.yaml"
workload = parser.WorkloadParserStage([None], workload=sys.argv[1], mapping=str(mapping)).parse_workload()
def plain(items):
    return {str(key): value for key, value in items}
print(json.dumps([
    {
        "id": node.id, "name": node.name, "type": node.type, "macs": node.total_mac_count,
        "elements": plain(node.operand_size_elem.items()),
        "loops": plain(node.layer_dim_sizes.items()), "precision": plain(node.operand_precision.data.items()),
        "relations": {str(dim): [[str(loop), factor] for loop, factor in dict(factors).items()]
                      for dim, factors in node.pr_scaling_factors.items()},
        "padding": {str(k): list(v) for k, v in node.padding.data.items()},
        "constants": sorted(map(str, node.constant_operands)), "sources": plain(node.input_operand_source.items()),
        "before": sorted(other.id for other in workload.predecessors(node)),
    }
    for node in workload.node_list
]))
"""


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True, exist_ok=True)
    report: ExportReport = ZIGZAG.write(trace, folder, apply_settings(ZIGZAG.Options(), settings, "exporter 'zigzag'"))
    write_report(folder, report)
    assert ZIGZAG.check(folder).problems == ()
    return report


def read(folder: Path, name: str = "test") -> list[dict[str, Any]]:
    """The layers of the file, by another loader than the exporter's own check uses."""
    layers: list[dict[str, Any]] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return layers


def parse(folder: Path, name: str = "test") -> list[dict[str, Any]]:
    """What the real parser makes of the file: a row per layer."""
    found: list[dict[str, Any]] = run_in_simulator("zigzag", PARSE, folder, f"{name}.yaml")
    return found


def simulate(report: ExportReport, folder: Path) -> None:
    """Run the very command of the report's notes."""
    (note,) = (note for note in report.notes if note.startswith("run: "))
    run_in_simulator("zigzag", note.partition('python -c "')[2].rpartition('"')[0] + "\nprint('null')", folder)
