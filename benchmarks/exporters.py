"""How fast exporters write, against the plain way to write the same: ratios of CPU time, measured side by side in one run.

    python benchmarks/exporters.py [--executions 20000] [--repeat 7]

* table: its CSV text against `csv.writer.writerow` of the same rows. Both start from the same columns.
* dramsim3, ramulator: the text of their requests against `csv.writer.writerow` of the same rows, from the same addresses and cycles.
* perfetto: its Chrome JSON against `json.dumps` of the same events, which the plain writer gets ready-made as Python dicts.
* chakra: encoding all nodes against building and encoding the same nodes with the reference package (mlc-chakra 1.0.0, in the environment
  that `tests/make_simulators.sh chakra` makes), which too gets everything ready-made. Left out, with a line that says so, where it is not.

Best of the repeats. The trace is made up: a loop whose body of 200 ops runs again and again, every op reading two others.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fathom_trace.addresses import stream  # noqa: E402
from fathom_trace.builder import TraceBuilder  # noqa: E402
from fathom_trace.exporters import REGISTRY  # noqa: E402
from fathom_trace.steps import view_steps  # noqa: E402
from fathom_trace.trace import Trace  # noqa: E402
from tests.simulator_env import simulator_folder  # noqa: E402

BODY = 200
OPS = ("MatMul", "Mul", "AddV2", "Tanh", "Sigmoid", "Conv2D", "Identity", "Switch", "Reshape", "Sum")

REFERENCE = """
import io, json, sys, time
from chakra.schema.protobuf.et_def_pb2 import AttributeProto, GlobalMetadata, IOInfo, Node
from chakra.src.third_party.utils.protolib import encodeMessage
nodes = json.load(open(sys.argv[1]))
best = None
for _ in range(int(sys.argv[2])):
    begin = time.process_time()
    out = io.BytesIO()
    encodeMessage(out, GlobalMetadata(version="1.0.0"))
    for row in nodes:
        node = Node(id=row[0], name=row[1], type=row[2], data_deps=row[3], start_time_micros=row[4], duration_micros=row[5])
        node.inputs.values, node.inputs.shapes, node.inputs.types = row[6]
        node.outputs.values, node.outputs.shapes, node.outputs.types = row[7]
        for name, kind, value in row[8]:
            node.attr.append(AttributeProto(name=name, **{kind: value}))
        encodeMessage(out, node)
    took = time.process_time() - begin
    best = took if best is None else min(best, took)
print(json.dumps([best, len(out.getvalue())]))
"""


def made_up(executions: int) -> Trace:
    """A trace of about so many executions."""
    rng = random.Random(1)
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    nodes = [
        builder.node(f"model/while/body/layer_{i // 10}/{OPS[i % 10]}_{i}", OPS[i % 10], device=device, frame=frame)
        for i in range(BODY)
    ]
    shapes = [[32, 64], [32, 128], [32, 1, 1, 64]]
    done: list[int] = []
    for iteration in range(executions // BODY):
        path = builder.path(0, frame, 0, iteration)
        for i, node in enumerate(nodes):
            reads = [builder.tensor(e) for e in rng.sample(done[-40:], min(2, len(done)))]
            done.append(builder.execution(node, inputs=reads, outputs=[("float32", shapes[i % 3])], path=path))
    durations = np.array([rng.randrange(300, 200_000) for _ in done])
    finish = np.cumsum(durations + 211)
    builder.step(builder.end_structure(), start=finish - durations, done=finish, scheduled=finish - durations - 100)
    return builder.build({"workload": "benchmark"})


def best(repeat: int, *ways: Callable[[], Any]) -> list[float]:
    """Least CPU seconds of some runs of each; they alternate, so that what else the machine does touches all alike."""
    took: list[list[float]] = [[] for _ in ways]
    for _ in range(repeat):
        for times, way in zip(took, ways, strict=True):
            begin = time.process_time()
            way()
            times.append(time.process_time() - begin)
    return [min(times) for times in took]


def show(what: str, ours: float, plain: float, rows: int, asked: float) -> None:
    """One line of the result."""
    print(f"{what:<34}{1e6 * ours / rows:8.2f} us{1e6 * plain / rows:10.2f} us{plain / ours:8.2f} x   asked: {asked} x")


def cells(column: Any) -> list[Any]:
    """A column of a table as a list of its cells."""
    if hasattr(column, "words"):
        return [column.words[code] for code in column.codes.tolist()]
    if column.known is None:
        return column.values.tolist()
    return [value if known else "" for value, known in zip(column.values.tolist(), column.known.tolist(), strict=True)]


def tables(trace: Trace, repeat: int) -> None:
    """CSV of all three tables."""
    table = REGISTRY.load("table")
    [view] = view_steps(trace, "median", "benchmark")
    parts = {
        "executions": table._executions(view, table._Labels(trace)),
        "tensors": table._tensors(view),
        "dependencies": table._dependencies(view),
    }
    sums = [0.0, 0.0]
    for name, columns in parts.items():
        text = "".join(table.csv_text(columns))

        def plain(columns: list[Any] = columns) -> str:
            out = io.StringIO()
            writer = csv.writer(out, lineterminator="\n")
            for row in zip(*map(cells, columns), strict=True):
                writer.writerow(row)
            return out.getvalue()

        assert plain() == text
        count = text.count("\n")
        took = best(repeat, lambda c=columns: "".join(table.csv_text(c)), plain)
        show(f"table, {name}.csv", *took, count, 3)
        sums = [a + b for a, b in zip(sums, took, strict=True)]
    show("table, all three, by execution", *sums, len(view), 3)


def requests(repeat: int) -> None:
    """Rows of DRAMsim3 and of both dialects of Ramulator: a step of many small tensors, as addresses and cycles."""
    dramsim3, ramulator = REGISTRY.load("dramsim3"), REGISTRY.load("ramulator")
    [view] = view_steps(made_up(BODY), "median", "benchmark")
    blocks = list(stream(view, 64).timed_blocks(*dramsim3.cycles_of(view, 1600)))
    ways = {
        "dramsim3": (
            dramsim3.spell,
            lambda b: zip(map(hex, b.address.tolist()), words(b, "READ", "WRITE"), b.cycle.tolist(), strict=True),
        ),
        "ramulator, load_store": (ramulator.spell, lambda b: zip(words(b, "LD", "ST"), map(hex, b.address.tolist()), strict=True)),
    }

    def words(block: Any, read: str, write: str) -> list[str]:
        return [write if w else read for w in block.is_write.tolist()]

    for name, (spell, rows) in ways.items():

        def plain(rows: Any = rows) -> bytes:
            out = io.StringIO()
            writer = csv.writer(out, lineterminator="\n", delimiter=" ")
            for block in blocks:
                for row in rows(block):
                    writer.writerow(row)
            return out.getvalue().encode()

        text = b"".join(map(spell, blocks))
        assert plain() == text
        show(f"{name}, rows", *best(repeat, lambda s=spell: b"".join(map(s, blocks)), plain), text.count(b"\n"), 3)


def timeline(trace: Trace, repeat: int) -> None:
    """Chrome JSON, per event."""
    perfetto = REGISTRY.load("perfetto")
    views = view_steps(trace, "median", "benchmark")
    scene, _ = perfetto.build(trace, views, perfetto.Options(format="json"))
    events = json.loads(b"".join(perfetto.encode_json(scene)))["traceEvents"]

    def plain() -> str:
        out = io.StringIO()
        for event in events:
            out.write(json.dumps(event))
            out.write(",\n")
        return out.getvalue()

    show("perfetto, Chrome JSON", *best(repeat, lambda: b"".join(perfetto.encode_json(scene)), plain), len(events), 3)


def chakra(trace: Trace, repeat: int) -> None:
    """Chakra, per node."""
    exporter = REGISTRY.load("chakra")
    [view] = view_steps(trace, "median", "benchmark")
    plan = exporter._Plan(view, [], exporter.executed_collectives(view), exporter.Options())
    content = b"".join(exporter.encode(plan))
    [ours] = best(repeat, lambda: b"".join(exporter.encode(plan)))
    python = simulator_folder() / "chakra" / "bin" / "python"
    if not python.exists():
        print(f"chakra: {1e6 * ours / len(view):.2f} us a node; {python} does not exist: bash tests/make_simulators.sh chakra")
        return
    nodes = []
    with tempfile.TemporaryFile() as written:
        written.write(content)
        written.seek(0)
        for n in exporter._parse("benchmark", written, []):
            attributes = [(a.name, a.WhichOneof("value"), getattr(a, a.WhichOneof("value"))) for a in n.attr]
            sides = [[side.values, side.shapes, side.types] for side in (n.inputs, n.outputs)]
            nodes.append([n.id, n.name, n.type, list(n.data_deps), n.start_time_micros, n.duration_micros, *sides, attributes])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nodes.json"
        file.write_text(json.dumps(nodes))
        command = [str(python), "-c", REFERENCE, str(file), str(repeat)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    plain, size = json.loads(done.stdout)
    assert size == len(content), "the reference package wrote something else"
    show("chakra, nodes", ours, plain, len(view), 1.5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    trace = made_up(arguments.executions)
    print(f"{len(trace.executions)} executions; CPU time of a row, best of {arguments.repeat}\n")
    print(f"{'':<34}{'exporter':>11}{'plain':>13}{'ratio':>9}")
    tables(trace, arguments.repeat)
    requests(arguments.repeat)
    timeline(trace, arguments.repeat)
    chakra(trace, arguments.repeat)


if __name__ == "__main__":
    main()
