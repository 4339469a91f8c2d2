"""Exports to SCALE-Sim in tests, and what the real simulator makes of the files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from fathom_trace.exporter import ExportedLayer, ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.simulator_env import run_in_simulator

SCALE_SIM: Any = REGISTRY.load("scale_sim")

PARSE = """
import json, sys
from scalesim.topology_utils import topologies
found = {}
for file in sys.argv[1:]:
    t = topologies()
    t.load_arrays(file, mnk_inputs=file.endswith("_gemm.csv"))
    t.topo_calc_hyperparams()
    found[file] = [
        {"name": t.get_layer_name(i), "macs": t.get_layer_mac_ops(i), "output": t.get_layer_ofmap_dims(i),
         "kernel": t.get_layer_filter_dims(i), "stride": t.get_layer_strides(i), "channels": t.get_layer_num_channels(i),
         "filters": t.get_layer_num_filters(i)}
        for i in range(t.get_num_layers())
    ]
print(json.dumps(found))
"""


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True, exist_ok=True)
    report: ExportReport = SCALE_SIM.write(trace, folder, apply_settings(SCALE_SIM.Options(), settings, "exporter 'scale_sim'"))
    write_report(folder, report)
    assert SCALE_SIM.check(folder).problems == ()
    return report


def lines(folder: Path, kind: str) -> list[str]:
    """The lines of the `conv` or `gemm` file after the header; none where there is no file."""
    path = folder / f"test_{kind}.csv"
    return path.read_text().splitlines()[1:] if path.exists() else []


def values(folder: Path, kind: str) -> list[tuple[int, ...]]:
    """The numbers of each line."""
    return [tuple(int(v) for v in line.split(",")[1:-1]) for line in lines(folder, kind)]


def parse(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What the real parser makes of each topology file, by file: a row per layer that it would simulate."""
    files = sorted(p.name for p in folder.glob("*_conv.csv")) + sorted(p.name for p in folder.glob("*_gemm.csv"))
    found: dict[str, list[dict[str, Any]]] = run_in_simulator("scalesim", PARSE, folder, *files)
    return found


def parsed_layers(report: ExportReport, folder: Path) -> list[tuple[ExportedLayer, list[dict[str, Any]]]]:
    """Each exported layer with the real parser's rows for it."""
    found = parse(folder)
    result = []
    for layer in report.layers:
        first, last = layer.facts["layer_ids"]
        result.append((layer, found[layer.place.partition(":")[0]][first : last + 1]))
    assert sum(len(rows) for _, rows in result) == sum(map(len, found.values()))
    return result


def simulate(report: ExportReport, folder: Path) -> dict[str, list[int]]:
    """Run the very commands of the report's notes; returns the `Total Cycles` of each layer, by topology file without suffix."""
    cycles = {}
    for note in report.notes:
        if 'python -c "' not in note:
            continue
        code = note.partition('python -c "')[2].rpartition('"')[0]
        run_in_simulator("scalesim", code + "\nprint('null')", folder)
    for path in sorted(folder.glob("results/*/COMPUTE_REPORT.csv")):
        rows = list(csv.DictReader(path.read_text().splitlines(), skipinitialspace=True))
        cycles[path.parent.name] = [int(float(row["Total Cycles"])) for row in rows]
    return cycles
