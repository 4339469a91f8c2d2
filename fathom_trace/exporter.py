"""The contract between a `Trace` and a target. One file in `exporters/` is one exporter; it defines, at module level:

    \"\"\"One-line summary.  ... the format's URL and version ...\"\"\"

    TARGET: Target
    @dataclass(frozen=True) class Options: ...      # what `--set name=value` changes; `doc` in each field's metadata

    def write(trace: Trace, folder: Path, options: Options) -> ExportReport     # files go into `folder`, which exists and is empty
    def check(folder: Path) -> CheckReport                                      # a strict parser of what `write` wrote

and, where the target answers,

    def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float) -> dict[int, float]   # execution -> duration, ns

An exporter drops nothing silently: exported + skipped = everything, by executions, by time and by MACs (`ExportReport.verify`).

A step may have millions of executions: files are written as they are made and checked piece by piece, and what is kept of every execution
is in columns, not in objects (`steps.StepView`, `steps.account`, `layer_map.LayerMap`, `wire.read_records`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from fathom_trace.errors import ExportError, one_line, printable
from fathom_trace.placing import restore
from fathom_trace.untrusted import MOST_MESSAGE_BYTES, brief, is_inside, read_json, read_regular

REQUIRED = ("TARGET", "Options", "write", "check")
REPORT_NAME = "export.json"
MOST_STEM = 100
MOST_PROBLEMS = 200
"""That a check lists one by one."""

TARGET_RAN = "target ran"
TARGET_PARSED = "target parsed"
OWN_GRAMMAR = "own grammar only"
PROOFS = (TARGET_RAN, TARGET_PARSED, OWN_GRAMMAR)


@dataclass(frozen=True)
class Target:
    """The program an exporter writes for. `proof` is the strongest check this release's own tests make of its output."""

    name: str
    version: str
    url: str
    proof: str
    proof_detail: str
    how_to_run: str


@dataclass(frozen=True)
class ExportedLayer:
    """One layer as written: `executions` are rows of the trace's executions that it stands for.

    `place` says where in the files it is (file and row), `how` what it was written as. `macs` and `time_ns` are the trace's own.
    `count` is how many times the target must run the written layer to do the executions' work. `facts` are JSON values for `check` and
    `read_results`: what the layer is in the trace (extents by axis), and how the target numbers it in its results.
    """

    name: str
    place: str
    how: str
    executions: tuple[int, ...]
    macs: int
    time_ns: float
    count: int = 1
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    macs_known: bool = True
    """False where some of its MACs are not known: `macs` is only what is."""


@dataclass(frozen=True)
class Skipped:
    """Executions that were not exported, grouped by op type and reason."""

    op: str
    reason: str
    executions: int
    macs: int
    time_ns: float
    macs_known: bool = True
    """False where `macs` is only 0 because nothing tells how many there are."""


@dataclass(frozen=True)
class ExportReport:
    """What was exported, what was not, and how far it is proven."""

    exporter: str
    target: Target
    files: tuple[str, ...]
    layers: tuple[ExportedLayer, ...]
    skipped: tuple[Skipped, ...]
    settings: Mapping[str, Any]
    approximations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    selection: Mapping[str, Any] | None = None
    """Of an export of a part of a trace: `text` says which; executions, time and MACs of the part and of the whole."""

    def totals(self) -> dict[str, dict[str, float]]:
        """Executions, time (ns) and MACs: exported, skipped and total.

        Of the MACs these are what is known; `unknown_executions` exported and skipped, of `unknown_time_ns`, may have more.
        """
        done = {
            "executions": sum(len(la.executions) for la in self.layers),
            "time_ns": sum(la.time_ns for la in self.layers),
            "macs": sum(la.macs for la in self.layers),
        }
        left = {
            "executions": sum(s.executions for s in self.skipped),
            "time_ns": sum(s.time_ns for s in self.skipped),
            "macs": sum(s.macs for s in self.skipped),
        }
        found: dict[str, dict[str, float]] = {k: {"exported": done[k], "skipped": left[k], "total": done[k] + left[k]} for k in done}
        exported = [la for la in self.layers if not la.macs_known]
        skipped = [s for s in self.skipped if not s.macs_known]
        found["macs"] |= {
            "unknown_executions": sum(len(la.executions) for la in exported) + sum(s.executions for s in skipped),
            "unknown_time_ns": sum(la.time_ns for la in exported) + sum(s.time_ns for s in skipped),
        }
        return found

    def verify(self, executions: int, time_ns: float, macs: int) -> None:
        """Exported + skipped must equal these totals of the trace.

        Raises:
            ExportError: something was dropped or counted twice: a bug in the exporter.
        """
        for key, expected in (("executions", executions), ("time_ns", time_ns), ("macs", macs)):
            found = self.totals()[key]["total"]
            if abs(found - expected) > 1e-6 * max(1.0, abs(expected)):
                raise ExportError(f"{self.exporter}: exported + skipped {key} is {found}, the trace has {expected}; please report it")

    def to_json(self) -> str:
        """The report as `export.json` holds it."""
        return "".join(self.json_pieces())

    def json_pieces(self) -> Iterator[str]:
        """`to_json` piece by piece: it may list millions of executions."""
        content = {**_shallow(self), "totals": self.totals()}
        yield from json.JSONEncoder(indent=1, allow_nan=False, default=_shallow).iterencode(content)
        yield "\n"


def _shallow(part: Any) -> dict[str, Any]:
    """The fields of a dataclass, not copied."""
    if not is_dataclass(part):
        raise TypeError(f"{type(part).__name__} is no part of a report")
    return {f.name: getattr(part, f.name) for f in fields(part)}


@dataclass(frozen=True)
class CheckReport:
    """What a strict parser found in an export: `facts` are its own counts, `problems` is empty when all is well."""

    files: tuple[str, ...]
    facts: Mapping[str, Any]
    problems: tuple[str, ...] = ()
    """Each a printable line, whatever of the files it quotes."""

    def __post_init__(self) -> None:
        shown = [printable(text) for text in self.problems[:MOST_PROBLEMS]]
        more = [f"and {len(self.problems) - MOST_PROBLEMS} more"] if len(self.problems) > MOST_PROBLEMS else []
        object.__setattr__(self, "problems", (*shown, *more))

    @property
    def ok(self) -> bool:
        """True when no problem was found."""
        return not self.problems


def write_report(folder: Path, report: ExportReport) -> None:
    """Put `export.json` beside the files."""
    with (folder / REPORT_NAME).open("w", encoding="utf-8") as out:
        out.writelines(report.json_pieces())


def read_report(folder: Path) -> Mapping[str, Any]:
    """What `export.json` of an export says: the fields of `ExportReport`, and `totals`.

    Raises:
        ExportError: the file is missing or is not such a report.
    """
    path = folder / REPORT_NAME
    try:
        content = read_json(read_regular(path, MOST_MESSAGE_BYTES).decode("utf-8"), with_nan=False)
        _check_report(content)
    except (FileNotFoundError, NotADirectoryError):
        if restore(Path(os.path.realpath(folder))):
            return read_report(folder)
        raise ExportError(f"{path} does not exist; give the folder that `fathom-trace export` wrote") from None
    except (OSError, ValueError, TypeError) as error:
        raise ExportError(f"{path} is not an export report ({one_line(error)}); export again") from None
    return dict(content)


def _check_report(content: Any) -> None:
    """What every exporter's report has.

    Raises:
        ValueError: it lacks a part, a part is of another type, or a file's name leads elsewhere.
    """
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    missing = {"exporter", "layers", "skipped"} - set(content)
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    for name, kind in (
        ("exporter", str),
        ("layers", list),
        ("skipped", list),
        ("files", list),
        ("settings", dict),
        ("provenance", dict),
    ):
        if not isinstance(content.get(name, kind()), kind):
            raise ValueError(f"{name} is of another type")
    outside = [name for name in content.get("files", ()) if not isinstance(name, str) or not is_inside(name)]
    if outside:
        raise ValueError(f"'{brief(outside[0])}' is no name of a file in its folder")


def read_layer_map(folder: Path) -> list[ExportedLayer]:
    """The layer map of an export, from its `export.json`.

    Raises:
        ExportError: the file is missing or is not such a report.
    """
    rows: Sequence[Mapping[str, Any]] = read_report(folder)["layers"]
    try:
        return [checked(ExportedLayer(**{**row, "executions": tuple(row["executions"])})) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / REPORT_NAME} is not an export report ({one_line(error)}); export again") from None


def checked(layer: ExportedLayer) -> ExportedLayer:
    """The same layer.

    Raises:
        TypeError: a field of it is of another type than an exporter writes.
    """
    texts = layer.name, layer.place, layer.how, layer.note
    whole = layer.macs, layer.count, *layer.executions
    if any(type(text) is not str for text in texts) or any(type(number) is not int for number in whole):
        raise TypeError(f"layer '{brief(layer.name)}' has fields of the wrong type")
    if type(layer.time_ns) not in (int, float) or type(layer.macs_known) is not bool or not isinstance(layer.facts, dict):
        raise TypeError(f"layer '{brief(layer.name)}' has fields of the wrong type")
    if not layer.executions or layer.count < 1 or min(layer.executions) < 0:
        raise TypeError(f"layer '{brief(layer.name)}' has no executions, or stands for none")
    if not is_inside(layer.place.partition(":")[0]):
        raise TypeError(f"layer '{brief(layer.name)}' is in '{brief(layer.place)}', which is no file of the export")
    return layer


def misplaced(layer_map: Sequence[ExportedLayer], on_disk: Iterable[str]) -> list[str]:
    """What is wrong with a layer map in any format: files that it does not name among those `on_disk`, executions that it lists twice."""
    named = {layer.place.partition(":")[0] for layer in layer_map}
    problems = [f"{name} is not in {REPORT_NAME}" for name in sorted(set(on_disk) - named)]
    executions = [e for layer in layer_map for e in layer.executions]
    if len(executions) != len(set(executions)):
        problems.append(f"{REPORT_NAME} lists an execution twice")
    return problems


def file_stem(name: str, provenance: Mapping[str, Any]) -> str:
    """The beginning of an export's file names: `name`, else the workload's; letters, digits and underscores, `MOST_STEM` at most."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name or str(provenance.get("workload") or "trace"))[:MOST_STEM]


def unique_name(name: str, taken: set[str]) -> str:
    """`name`, or with the first number from 2 that makes it one that is not taken; it is taken from then on."""
    result, number = name, 1
    while result in taken:
        number += 1
        result = f"{name}_{number}"
    taken.add(result)
    return result
