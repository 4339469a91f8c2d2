"""Do exports stay in their folder and their grammar whatever names a trace carries? By the registry: new exporters are tested by
existing."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzzing import flaw
from fuzzing_targets import everywhere, tiny
from memory_files import Memory

from fathom_trace import exporting
from fathom_trace.errors import FathomError
from fathom_trace.exporter import REPORT_NAME, ExportReport, read_layer_map, read_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import describe_options
from fathom_trace.tables import Strings
from fathom_trace.trace import Trace

NAMES = (
    "../../../../tmp/fathom_escaped", "/tmp/fathom_escaped", "..", ".", "", "a/../../b", "C:\\x\\y", "~/x", "-rf", "nul", "CON",
    "a\0b", "\0", "a\nb",
    "a\r\nb", "\r", "a\tb", "a,b", 'a"b', "'", "a;b", "a: b", "- a", "# a", "{a}", "[a]", "*a", "&a", "!!python/object:x", "%s",
    "${HOME}", "`id`",
    "$(id)", "<a>", "</node>", "&amp;", "]]>", "<!--", "<?x?>", "a=b", "a\\", "\\", "\\n", "a\x0bb", "a\x0cb", "a\x1bb",
    "\x1b[2J", "a\x7f", "a\x85b",
    "a\u2028b", "a\u2029b", "\ufeffa", "\u202ea", "\ufffe", "日本語", "é", "e\u0301", "🚀", "x" * 300, "x" * 5000, "é" * 200, "null",
    "true", "1e999", "=1+1",
    "@x", "+1", "DP", "conv DP", "a b", " a ", "/", "//", "a//b", "layer_2", "layer", "end", "LD 0x0", "0", "node", "\u0130",
)  # fmt: skip
"""Paths, separators and signs of every format that is written, controls, what is not ASCII, lengths beyond those of file names."""

FREE = {("nodes", "node_name"), ("nodes", "device"), ("source_nodes", "node_name"), ("frames", "frame_name"), ("variables",
"variable_name"),
        ("variables", "slot_name"), ("interface", "user_name"), ("device_spans", "span_name"), ("device_spans", "stream")}  # fmt: skip
"""Columns of names that may be anything."""


def renamed(trace: Trace, seed: int) -> Trace:
    """The trace with other names in all places where a name may be anything, those of nodes each once; also those of its provenance."""
    random, texts = Random(seed), list(trace.strings.values)
    tables: dict[str, Any] = {}
    for name, table in trace.tables().items():
        changes: dict[str, Any] = {}
        for key in table.columns():
            if (name, key) in FREE and len(table):
                rows = []
                for number in range(len(table)):
                    text = random.choice(NAMES)
                    texts.append(text if random.random() < 0.5 else f"{text}/{random.choice(NAMES)}")
                    if key == "node_name":
                        texts[-1] += f"/{number}" if texts[-1] in texts[:-1] else ""
                    rows.append(len(texts) - 1)
                changes[key] = np.array(rows, np.int32)
        if changes:
            tables[name] = type(table)(**{key: changes.get(key, getattr(table, key)) for key in table.columns()})
    provenance = {
        **trace.provenance,
        "workload": random.choice(NAMES),
        "preset": random.choice(NAMES),
        "options": {random.choice(NAMES): "x"},
    }
    return trace.replace(strings=Strings.of(texts), provenance=provenance, **tables)


def memory() -> Trace:
    """Ops with variables and buffers."""
    made = Memory()
    x, y = made.op("x", "_Arg", [], [16], ns=0), made.op("y", "_Arg", [], [16], ns=0)
    made.op("A", "Neg", [x], [48], ns=100)
    made.op("B", "AddN", [x, y], [16], ns=300)
    return made.build()


@pytest.fixture(params=REGISTRY.names())
def exporter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def attempt(trace: Trace, exporter: str, folder: Path) -> tuple[ExportReport | None, str]:
    """The report of an export, or why there is none."""
    try:
        return exporting.export(trace, exporter, folder)[0], ""
    except FathomError as error:
        return None, str(error)


@pytest.mark.parametrize("make", [tiny, memory, everywhere], ids=lambda make: make.__name__)
def test_exports_stay_in_their_folder_whatever_names_a_trace_carries(exporter: str, make: Any, tmp_path: Path) -> None:
    """Files are those of the report, plain names below the folder, and the exporter's own strict parser takes them."""
    written = 0
    for seed in range(6):
        folder = tmp_path / str(seed) / "out"
        folder.parent.mkdir()
        report, message = attempt(renamed(make(), seed), exporter, folder)
        if report is None:
            assert not flaw(message), ascii(message)
            assert "its own parser refuses" not in message or make is everywhere  # whose times and sizes are none
            continue
        written += 1
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert files == {*report.files, REPORT_NAME}
        assert all(name.isascii() and name.isprintable() and len(part) <= 200 for name in files for part in Path(name).parts)
        assert [path.name for path in folder.parent.iterdir()] == ["out"]
        assert exporting.check(folder)[1].ok
        assert len(read_layer_map(folder)) == len(report.layers)
        assert read_report(folder)["provenance"]["workload"] == report.provenance["workload"]
    assert written or make is not tiny


@pytest.mark.parametrize("place", ["option", "provenance"])
def test_the_name_of_files_stays_in_the_folder(exporter: str, place: str, tmp_path: Path) -> None:
    """It is the option `name`, or else the workload's of the trace."""
    module, trace = REGISTRY.load(exporter), tiny()
    if "name" not in {option.name for option in describe_options(module.Options())}:
        assert place == "option" or exporting.export(trace.replace(provenance={"workload": ".."}), exporter, tmp_path / "out")
        return
    for number, name in enumerate(("../x", "/tmp/x", "..", ".", "", "a\0b", "a\nb", "日本", "x" * 300, "é" * 5000)):
        folder = tmp_path / str(number) / "out"
        folder.parent.mkdir()
        settings = {"name": name} if place == "option" else {}
        named = trace if place == "option" else trace.replace(provenance={"workload": name})
        report, _ = exporting.export(named, exporter, folder, settings)
        assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {*report.files, REPORT_NAME}
        assert {path.name for path in folder.parent.iterdir()} == {"out"}


def test_nothing_else_is_opened_for_writing(tmp_path: Path) -> None:
    """Asked of the interpreter itself, for all exporters."""
    opened: list[str] = []
    active = [True]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            active[0]
            and event == "open"
            and isinstance(arguments[0], str)
            and isinstance(arguments[1], str)
            and set(arguments[1]) & set("wax+")
        ):
            opened.append(arguments[0])

    sys.addaudithook(audit)
    try:
        for name in REGISTRY.names():
            exporting.export(renamed(tiny(), 3), name, tmp_path / name)
    finally:
        active[0] = False
    assert opened
    assert all(Path(path).resolve().is_relative_to(tmp_path.resolve()) for path in opened)
