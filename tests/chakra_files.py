"""Exports to Chakra in tests, read with nothing but the schema, and what the reference package makes of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fathom_trace.exporter import ExportReport, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.generated.chakra_execution_pb2 import GlobalMetadata, Node
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.simulator_env import run_in_simulator

CHAKRA: Any = REGISTRY.load("chakra")

REFERENCE = """
import json, sys
from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd
found = {}
for name in sys.argv[1:]:
    file, metadata, node, nodes = openFileRd(name), GlobalMetadata(), Node(), []
    assert decodeMessage(file, metadata)
    while decodeMessage(file, node):
        values = {a.name: (a.WhichOneof("value"), getattr(a, a.WhichOneof("value"))) for a in node.attr}
        nodes.append({"id": node.id, "name": node.name, "type": node.type, "deps": list(node.data_deps), "ctrl": list(node.ctrl_deps),
                      "start": node.start_time_micros, "duration": node.duration_micros, "attributes": values,
                      "inputs": [node.inputs.values, node.inputs.shapes, node.inputs.types],
                      "outputs": [node.outputs.values, node.outputs.shapes, node.outputs.types]})
    found[name] = {"version": metadata.version, "nodes": nodes}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Read:
    """A node as read: attributes are (kind, value) by name."""

    id: int
    name: str
    type: int
    deps: tuple[int, ...]
    ctrl: tuple[int, ...]
    start: int
    duration: int
    attributes: dict[str, tuple[str, Any]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def duration_ns(self) -> int:
        """The exact time; 0 for a collective that was added."""
        return int(self.attributes.get("duration_ns", ("", 0))[1])


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True)
    report: ExportReport = CHAKRA.write(trace, folder, apply_settings(CHAKRA.Options(), settings, "exporter 'chakra'"))
    write_report(folder, report)
    assert CHAKRA.check(folder).problems == ()
    return report


def records(content: bytes) -> list[bytes]:
    """The messages of a file, by the varint before each."""
    found, at = [], 0
    while at < len(content):
        size = shift = 0
        while True:
            byte = content[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(content[at : at + size])
        at += size
    return found


def read(path: Path) -> list[Read]:
    """The nodes of a file, in order."""
    metadata, *rest = records(path.read_bytes())
    assert GlobalMetadata.FromString(metadata).version == "1.0.0"
    return [_node(Node.FromString(raw)) for raw in rest]


def _node(n: Any) -> Read:
    attributes = {a.name: (a.WhichOneof("value"), getattr(a, a.WhichOneof("value"))) for a in n.attr}
    inputs = (n.inputs.values, n.inputs.shapes, n.inputs.types)
    outputs = (n.outputs.values, n.outputs.shapes, n.outputs.types)
    times = (n.start_time_micros, n.duration_micros)
    return Read(n.id, n.name, n.type, tuple(n.data_deps), tuple(n.ctrl_deps), *times, attributes, inputs, outputs)


def read_with_reference(folder: Path, files: Sequence[str]) -> dict[str, list[Read]]:
    """The nodes of each file, as the reference package reads them."""
    found: dict[str, Any] = run_in_simulator("chakra", REFERENCE, folder, *files)
    assert {f["version"] for f in found.values()} == {"1.0.0"}

    def node(row: dict[str, Any]) -> Read:
        row["attributes"] = {name: (kind, value) for name, (kind, value) in row["attributes"].items()}
        return Read(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})

    return {name: [node(row) for row in f["nodes"]] for name, f in found.items()}


def replay(nodes: Sequence[Read], duration_of: Any = None) -> float:
    """The time that the nodes take on unlimited resources, by dependencies alone: whoever waits for nothing more runs."""
    waiting = {n.id: set(n.deps) for n in nodes}
    took = {n.id: (n.duration_ns if duration_of is None else duration_of(n)) for n in nodes}
    end: dict[int, float] = {}
    while waiting:
        free = [i for i, deps in waiting.items() if deps <= set(end)]
        assert free, "nodes wait for each other"
        for i in free:
            end[i] = took[i] + max((end[d] for d in waiting.pop(i)), default=0)
    return max(end.values(), default=0)
