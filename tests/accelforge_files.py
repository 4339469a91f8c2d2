"""Exports to AccelForge in tests, and what the real program makes of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.simulator_env import run_in_simulator

ACCELFORGE: Any = REGISTRY.load("accelforge")

READ = """
import json, sys
import accelforge as af
from accelforge.frontend._workload_isl._isl import get_rank_variable_bounds
found = {}
for file in sys.argv[1:]:
    workload = af.Spec.from_yaml(file).workload
    found[file] = {
        "einsums": {
            e: {"computes": workload.n_computes(e), "instances": workload.einsums[e].n_instances,
                "bounds": get_rank_variable_bounds(workload, e),
                "accesses": [[t.name, t.output, dict(t.projection)] for t in workload.einsums[e].tensor_accesses]}
            for e in workload.einsum_names
        },
        "tensors": {t: {"size": workload.get_tensor_size(t), "shape": workload.get_tensor_shape(t)} for t in workload.tensor_names},
    }
print(json.dumps(found))
"""

MAP = """
import json, sys
import accelforge as af
from accelforge.mapper.FFM.mappings import Mappings
from accelforge.util.parallel import set_n_parallel_jobs
set_n_parallel_jobs(1)
Mappings.render = lambda *arguments, **more: ""  # it would need Graphviz
found = {}
for names in json.loads(sys.argv[2]):
    spec = af.Spec.from_yaml(af.examples.arches.simple, sys.argv[1], jinja_parse_data={"MainMemoryEnergy": 100})
    spec.mapper.metrics = af.mapper.Metrics.ENERGY
    result = spec.map_workload_to_arch(einsum_names=names, print_progress=False)
    actions = result.actions(per_einsum=True, per_component=True, per_tensor=True)
    found[" ".join(names)] = {
        "latency": result.latency(per_einsum=True), "bits": result.per_tensor_size(),
        "actions": {" ".join(key): value for key, value in actions.items()},
    }
print(json.dumps(found, default=float))
"""


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True, exist_ok=True)
    report: ExportReport = ACCELFORGE.write(trace, folder, apply_settings(ACCELFORGE.Options(), settings, "exporter 'accelforge'"))
    write_report(folder, report)
    assert ACCELFORGE.check(folder).problems == ()
    return report


def einsums(folder: Path, file: str = "test.yaml") -> list[dict[str, Any]]:
    """The einsums of a file, as a YAML parser reads them."""
    found: list[dict[str, Any]] = yaml.safe_load((folder / file).read_text())["workload"]["einsums"]
    return found


def projections(einsum: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """(tensor, index by rank) of each access."""
    return [(access["name"], access["projection"]) for access in einsum["tensor_accesses"]]


def read(folder: Path, *files: str) -> dict[str, Any]:
    """What AccelForge's own reader makes of files, by file: computes, bounds and accesses by einsum; size and shape by tensor."""
    found: dict[str, Any] = run_in_simulator("accelforge", READ, folder, *files)
    return found


def mapped(folder: Path, names: str, file: str = "test.yaml") -> dict[str, Any]:
    """AccelForge's mapper on each list of einsums of a JSON list, for the least energy on its `simple` architecture."""
    found: dict[str, Any] = run_in_simulator("accelforge", MAP, folder, file, names)
    return found
