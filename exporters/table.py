"""Tables of a step for spreadsheets and data frames: executions with times and costs, their tensors, their dependencies.

Target: CSV as RFC 4180, https://www.rfc-editor.org/rfc/rfc4180 (UTF-8, a header, lines end with LF as Python, pandas and R take them), or
with `--set format=parquet` Apache Parquet through pyarrow (the extra `parquet`).

`executions` has a row for each execution of each exported step: times in ns after the step's earliest start, empty where there are none;
MACs, FLOPs and bytes, empty where they are not known. `tensors` has a row for each output, `dependencies` one for each tensor that an
execution read and each execution that it waited for without reading (`tensor` is empty). Rows are in the order of the trace's own tables,
and `execution` and `tensor` are row numbers there.

Of a part of a trace, an execution that is outside has a row only where one inside waits for it: its `record` is `outside`, and it has
neither times nor costs.
"""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import digits
from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportedLayer, ExportReport, Target, read_report
from fathom_trace.layers import layer_names
from fathom_trace.ops import kind
from fathom_trace.options import option
from fathom_trace.phases import phases
from fathom_trace.steps import MEDIAN, STEP_DOC, StepView, account, notes, verify, view_steps
from fathom_trace.tables import EXECUTION_KINDS, EXECUTION_OUTSIDE
from fathom_trace.trace import Trace

TARGET = Target(
    name="CSV and Parquet",
    version="RFC 4180",
    url="https://www.rfc-editor.org/rfc/rfc4180",
    proof=TARGET_PARSED,
    proof_detail="tests read the CSV with pandas and Python's csv module, and the Parquet with pyarrow where it is installed, and compare"
    " every value with the trace",
    how_to_run="pandas.read_csv(FOLDER + '/executions.csv', dtype={'iteration': str}), or any spreadsheet",
)

CSV, PARQUET = "csv", "parquet"
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    format: str = option(CSV, "text, or Parquet (needs pyarrow)", choices=(CSV, PARQUET))
    step: str = option(MEDIAN, STEP_DOC + "; all: every traced step")


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of integers; `known` is False where the cell is empty. Without `known` all are there, and are taken not to repeat."""

    name: str
    values: Int64
    known: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of texts: each cell is `words[codes]`."""

    name: str
    codes: Int64
    words: Sequence[str]


Column = Numbers | Texts
Table = dict[str, list[Column]]
COLUMNS = {
    "executions": (
        "step", "execution", "node", "op", "kind", "phase", "layer", "device", "record", "iteration", "scheduled_ns", "start_ns",
        "end_ns", "done_ns", "duration_ns", "lane", "macs", "flops", "bytes_read", "bytes_written",
    ),
    "tensors": ("tensor", "execution", "port", "dtype", "shape", "size_bytes"),
    "dependencies": ("execution", "waits_for", "tensor"),
}  # fmt: skip
"""Column names by table."""
COSTS = ("macs", "flops", "bytes_read", "bytes_written")
TEXTS = frozenset({"node", "op", "kind", "phase", "layer", "device", "record", "iteration", "dtype", "shape"})


# --- the tables -------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write a file for each table.

    Raises:
        ExportError: Parquet without pyarrow.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    views = view_steps(trace, options.step, "exporter 'table'", allow_all=True)
    arrow = _arrow() if options.format == PARQUET else None
    labels = _Labels(trace)
    structures = list({view.structure: view for view in views}.values())
    made = {
        "executions": [_executions(view, labels) for view in views],
        "tensors": [_tensors(view) for view in structures],
        "dependencies": [_dependencies(view) for view in structures],
    }
    rows: dict[str, int] = {}
    files = []
    for name, parts in made.items():
        rows[name] = sum(len(part[0].values if isinstance(part[0], Numbers) else part[0].codes) for part in parts)
        files.append(f"{name}.{options.format}")
        if arrow is None:
            with (folder / files[-1]).open("w", encoding="utf-8", newline="") as out:
                out.write(",".join(COLUMNS[name]) + "\n")
                out.writelines(chain.from_iterable(csv_text(part) for part in parts))
        else:
            _write_parquet(arrow, folder / files[-1], parts)

    first = {view.structure: view.rows.start for view in structures}

    def describe(view: StepView, node: int, members: list[int]) -> Mapping[str, Any]:
        more = f" and {len(members) - 1} more" * (len(members) > 1)
        facts = {name: int(values[members].sum()) for name, (values, _) in _costs(view).items() if name != "macs"}
        facts |= {f"unknown_{name}": int(np.count_nonzero(~known[members])) for name, (_, known) in _costs(view).items()}
        return {"place": f"{files[0]}:execution {members[0] + first[view.structure]}{more}", "how": "row of each step", "facts": facts}

    layers, skipped = account(views, {}, describe)
    report = ExportReport(
        exporter="table",
        target=TARGET,
        files=tuple(files),
        layers=layers,
        skipped=skipped,
        settings={**asdict(options), "steps": [view.step for view in views], "rows": rows},
        notes=tuple(notes(views)),
        provenance=dict(trace.provenance),
    )
    verify(views, report)
    return report


class _Labels:
    """What is said of every node."""

    def __init__(self, trace: Trace) -> None:
        kinds = {op: kind(op) for op in set(trace.node_ops)}
        self.words: dict[str, Sequence[str]] = {
            "node": trace.node_names,
            "op": trace.node_ops,
            "kind": [kinds[op] for op in trace.node_ops],
            "phase": list(phases(trace)),
            "layer": layer_names(trace),
            "device": [trace.strings[d] for d in trace.nodes.device.tolist()],
        }


def _costs(view: StepView) -> dict[str, tuple[Int64, NDArray[np.bool_]]]:
    """The columns of costs, and where they are known."""
    costs = view.costs
    return {
        "macs": (costs.macs, costs.macs_known),
        "flops": (costs.flops, costs.flops_known),
        "bytes_read": (costs.bytes_read, costs.bytes_known),
        "bytes_written": (costs.bytes_written, costs.bytes_known),
    }


def _written(view: StepView) -> NDArray[np.bool_]:
    """Executions that have a row: those that are not outside the selection, and what they wait for."""
    chosen = view.chosen
    if chosen.all():
        return chosen
    consumer = np.repeat(chosen, np.diff(view.dependencies.offsets))
    written = chosen.copy()
    written[view.dependencies.producer[consumer]] = True
    return written


def _executions(view: StepView, labels: _Labels) -> list[Column]:
    trace, written = view.trace, _written(view)
    pick = slice(None) if written.all() else np.flatnonzero(written)
    rows = np.arange(view.rows.start, view.rows.stop)[pick]
    nodes = trace.executions.node[rows].astype(np.int64)
    paths, of_path = np.unique(trace.executions.path[rows], return_inverse=True)
    iterations = [".".join(map(str, trace.iteration(int(p)))) for p in paths]
    timed = None if view.timed[pick].all() else view.timed[pick]
    step = np.full(len(rows), -1 if view.step is None else view.step, np.int64)
    chosen = view.chosen[pick]
    return [
        Numbers("step", step, step >= 0),
        Numbers("execution", rows),
        *(Texts(name, nodes, words) for name, words in labels.words.items()),
        Texts("record", trace.executions.kind[rows].astype(np.int64), EXECUTION_KINDS),
        Texts("iteration", of_path.reshape(-1).astype(np.int64), iterations),
        *(Numbers(f"{name}_ns", view.times_ns(name)[pick], timed) for name in ("scheduled", "start", "end", "done")),
        Numbers("duration_ns", view.duration_ns[pick], timed),
        Numbers("lane", view.lane[pick], timed),
        *(Numbers(name, values[pick], known[pick] & chosen) for name, (values, known) in _costs(view).items()),
    ]


def _tensors(view: StepView) -> list[Column]:
    trace = view.trace
    bounds = trace.tensor_offsets
    rows = np.arange(int(bounds[view.rows.start]), int(bounds[view.rows.stop]))
    table = trace.tensors
    if not view.chosen.all():
        ex = trace.executions
        reader = np.repeat(np.arange(len(ex)), np.diff(ex.input_offsets))
        read = ex.input[trace.chosen[reader]]
        rows = rows[trace.chosen[table.execution[rows]] | np.isin(rows, read)]
    return [
        Numbers("tensor", rows),
        Numbers("execution", table.execution[rows].astype(np.int64)),
        Numbers("port", table.port[rows].astype(np.int64)),
        Texts("dtype", table.dtype[rows].astype(np.int64), trace.strings.values),
        Texts("shape", table.shape[rows].astype(np.int64), ["x".join(map(str, s)) for s in trace.shapes.values]),
        Numbers("size_bytes", table.size_bytes[rows].astype(np.int64), np.ones(len(rows), bool)),
    ]


def _dependencies(view: StepView) -> list[Column]:
    ex, rows = view.trace.executions, view.rows
    read = slice(int(ex.input_offsets[rows.start]), int(ex.input_offsets[rows.stop]))
    waits = slice(int(ex.control_offsets[rows.start]), int(ex.control_offsets[rows.stop]))
    numbers = np.arange(rows.start, rows.stop)
    consumer = np.concatenate(
        [np.repeat(numbers, np.diff(bounds[rows.start : rows.stop + 1])) for bounds in (ex.input_offsets, ex.control_offsets)]
    )
    tensor = np.concatenate([ex.input[read], np.full(waits.stop - waits.start, -1)]).astype(np.int64)
    producer = np.concatenate([view.trace.tensors.execution[ex.input[read]], ex.control[waits]]).astype(np.int64)
    order = np.argsort(consumer, kind="stable")
    order = order[view.trace.chosen[consumer[order]]]
    tensor = tensor[order]
    return [Numbers("execution", consumer[order]), Numbers("waits_for", producer[order]), Numbers("tensor", tensor, tensor >= 0)]


# --- text -------------------------------------------------------------------------------------------------------------------------

BLOCK = 100_000
"""Rows that are turned into text at once."""

Coded = tuple[Int64, list[str]]
"""Texts by code, a code for each row."""


def csv_text(columns: Sequence[Column]) -> Iterator[str]:
    """The lines of a table, many at a time.

    Neighbouring columns whose rows repeat become one column of distinct pieces of text, neighbouring integers that hardly do one column
    of digits; a line is a join of such pieces.
    """
    pieces = list(_pieces(columns))
    count = len(pieces[0][0] if isinstance(pieces[0], tuple) else pieces[0][0].values)
    for begin in range(0, count, BLOCK):
        part = slice(begin, begin + BLOCK)
        texts: list[Iterable[str]] = []
        for position, piece in enumerate(pieces):
            is_last = position == len(pieces) - 1
            if isinstance(piece, tuple):
                codes, words = piece
                before, after = "," * (position > 0), "\n" if is_last else "," * isinstance(pieces[position + 1], list)
                framed = [f"{before}{word}{after}" for word in words]
                texts.append(map(framed.__getitem__, codes[part].tolist()))
            else:
                known = [None if column.known is None else column.known[part] for column in piece]
                lines = digits.lines([column.values[part] for column in piece], known)
                if len(pieces) == 1:
                    yield lines
                    break
                texts.append(lines.splitlines(keepends=is_last))
        else:
            yield "".join(chain.from_iterable(zip(*texts, strict=True)))


def _pieces(columns: Sequence[Column]) -> Iterator[Coded | list[Numbers]]:
    """The columns, neighbours taken together."""
    numbers: list[Numbers] = []
    coded: Coded | None = None
    for column, same in _by_codes(columns):
        further = None if isinstance(column, Numbers) and column.known is None else _code(column, same)
        if further is None and isinstance(column, Numbers):
            if coded is not None:
                yield coded
                coded = None
            numbers.append(column)
            continue
        if numbers:
            yield numbers
            numbers = []
        merged = None if coded is None or further is None else _merge(coded, further)
        if coded is not None and merged is None:
            yield coded
        coded = merged or further
    if numbers:
        yield numbers
    if coded is not None:
        yield coded


def _by_codes(columns: Sequence[Column]) -> Iterator[tuple[Column, list[Texts]]]:
    """Each column; of neighbouring texts that have the very same codes the first, with all of them."""
    at = 0
    while at < len(columns):
        column, same = columns[at], list[Texts]()
        while (
            at < len(columns) and isinstance(other := columns[at], Texts) and isinstance(column, Texts) and other.codes is column.codes
        ):
            same.append(other)
            at += 1
        at += not same
        yield column, same


def _code(column: Column, same: Sequence[Texts]) -> Coded | None:
    """A column as codes and texts: texts, with others that have the same codes, or integers; None for integers that hardly repeat."""
    if isinstance(column, Texts):
        used, codes = _distinct(column.codes, len(column.words))
        return codes, [",".join(_cell(c.words[w]) for c in same) for w in used.tolist()]
    values = np.where(np.ones(1, bool) if column.known is None else column.known, column.values, np.iinfo(np.int64).min)
    used, codes = np.unique(values, return_inverse=True)
    if len(used) > _few(len(codes)):
        return None
    texts = ["" if v == np.iinfo(np.int64).min else str(v) for v in used.tolist()]
    return codes.reshape(-1).astype(np.int64), texts


def _few(rows: int) -> int:
    """How many distinct texts are worth making for so many rows."""
    return max(1_000, rows // 4)


def _merge(one: Coded, other: Coded) -> Coded | None:
    """Two neighbouring columns as one of distinct combinations, joined by a comma; None where nearly every row is one."""
    (codes, words), (more, further) = one, other
    pairs, merged = _distinct(codes * len(further) + more, len(words) * len(further))
    if len(pairs) > _few(len(codes)):
        return None
    texts = [f"{words[pair // len(further)]},{further[pair % len(further)]}" for pair in pairs.tolist()]
    return merged, texts


def _distinct(codes: Int64, limit: int) -> tuple[Int64, Int64]:
    """The codes below `limit` that occur, ascending, and each code as a number of these: `np.unique`, without sorting where few can be."""
    if limit > 4 * len(codes) + 1_000:
        used, numbers = np.unique(codes, return_inverse=True)
        return used.astype(np.int64), numbers.reshape(-1).astype(np.int64)
    occurs = np.bincount(codes, minlength=limit) > 0
    return np.flatnonzero(occurs).astype(np.int64), (np.cumsum(occurs) - 1)[codes].astype(np.int64)


def _cell(text: str) -> str:
    """A text as a cell: quoted where it would not stay one cell otherwise."""
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\r\n]', text) else text


# --- Parquet ----------------------------------------------------------------------------------------------------------------------


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ExportError("Parquet needs pyarrow; install it with: pip install 'fathom-trace[parquet]', or set format=csv") from None


def _write_parquet(arrow: Any, path: Path, parts: Sequence[Sequence[Column]]) -> None:
    package, parquet = arrow
    tables = []
    for part in parts:
        arrays = {}
        for column in part:
            if isinstance(column, Texts):
                used, codes = np.unique(column.codes, return_inverse=True)
                words = package.array([column.words[w] for w in used.tolist()], package.string())
                arrays[column.name] = package.DictionaryArray.from_arrays(codes.reshape(-1).astype(np.int32), words).cast(
                    package.string()
                )
            else:
                empty = None if column.known is None else ~column.known
                arrays[column.name] = package.array(column.values, package.int64(), mask=empty)
        tables.append(package.table(arrays))
    parquet.write_table(package.concat_tables(tables), path)


# --- checking ---------------------------------------------------------------------------------------------------------------------

Cell = int | str | None


def check(folder: Path) -> CheckReport:
    """Parse the tables strictly, and compare them with each other and with `export.json`.

    In each: the header, as many cells in every row, integers where they belong. Against the trace: rows, the rows, exact time, MACs, FLOPs
    and bytes of each node; every execution and tensor that is named exists, and producers come before who waits for them.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    try:
        layers = [ExportedLayer(**row) for row in report["layers"]]
        rows, suffix, steps = dict(report["settings"]["rows"]), str(report["settings"]["format"]), list(report["settings"]["steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of table ({error}); export again") from None
    found: dict[str, dict[str, list[Any]]] = {}
    for name, columns in COLUMNS.items():
        file = f"{name}.{suffix}"
        try:
            table = _parse_parquet(folder / file) if suffix == PARQUET else _parse_csv(folder / file)
        except (OSError, ValueError, csv.Error) as error:
            problems.append(f"{file} cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:160]})")
            continue
        if tuple(table) != columns:
            problems.append(f"{file} has the columns {', '.join(table)}, not {', '.join(columns)}")
        elif len(table[columns[0]]) != rows.get(name):
            problems.append(f"{file} has {len(table[columns[0]])} rows, export.json says {rows.get(name)}")
        else:
            found[name] = table
    if not problems:
        problems += _differences(found, layers, steps)
    facts = {f"{name} rows": len(table[COLUMNS[name][0]]) for name, table in found.items()}
    if "executions" in found:
        facts["time_ns"] = sum(t or 0 for t in found["executions"]["duration_ns"])
    return CheckReport(tuple(f"{name}.{suffix}" for name in found), facts, tuple(problems))


def _parse_csv(path: Path) -> dict[str, list[Any]]:
    text = path.read_bytes().decode()
    if not text.endswith("\n"):
        raise ValueError("its last line has no end")
    header, *rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    if any(len(row) != len(header) for row in rows):
        wrong = next(i for i, row in enumerate(rows, start=2) if len(row) != len(header))
        raise ValueError(f"row {wrong} has not {len(header)} cells")
    columns: dict[str, list[Any]] = {}
    for name, cells in zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True):
        columns[name] = list(cells) if name in TEXTS else [_integer(name, cell) for cell in cells]
    return columns


def _integer(name: str, cell: str) -> int | None:
    if cell and not re.fullmatch(r"-?[0-9]+", cell, re.ASCII):
        raise ValueError(f"'{cell}' in column {name} is no integer")
    return int(cell) if cell else None


def _parse_parquet(path: Path) -> dict[str, list[Any]]:
    package, parquet = _arrow()
    try:
        table = parquet.read_table(path)
    except (package.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None
    wrong = [f.name for f in table.schema if str(f.type) != ("string" if f.name in TEXTS else "int64")]
    if wrong:
        raise ValueError(f"columns of another type: {', '.join(wrong)}")
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _differences(found: Mapping[str, Mapping[str, list[Any]]], layers: Sequence[ExportedLayer], steps: Sequence[Any]) -> Iterable[str]:
    table = found["executions"]
    time: dict[int, int] = defaultdict(int)
    costs: dict[int, tuple[int | None, ...]] = {}
    names: dict[int, str] = {}
    inside: set[int] = set()
    cells = zip(*(table[c] for c in ("execution", "node", "record", "duration_ns", *COSTS)), strict=True)
    for execution, name, record, duration, *cost in cells:
        time[execution] += duration or 0
        names[execution] = name
        if record == EXECUTION_KINDS[EXECUTION_OUTSIDE]:
            if duration is not None or any(value is not None for value in cost):
                yield f"executions: execution {execution} is outside the selection and has a time or a cost"
            continue
        inside.add(execution)
        if costs.setdefault(execution, tuple(cost)) != tuple(cost):
            yield f"executions: execution {execution} has other costs in another step"
    if inside != {e for layer in layers for e in layer.executions}:
        yield "executions: its executions are not those of export.json"
        return
    if set(table["step"]) - set(steps):
        yield "executions: a step that export.json does not have"
    if len(set(zip(table["step"], table["execution"], strict=True))) != len(table["step"]):
        yield "executions: an execution is there twice in one step"
    for layer in layers:
        total = sum(time[e] for e in layer.executions)
        if total != layer.time_ns or any(names[e] != layer.name for e in layer.executions):
            yield f"executions: {layer.name}: {total} ns, in the trace {layer.time_ns:.0f}, or of another name"
        for column, name in enumerate(COSTS):
            values = [costs[e][column] for e in layer.executions]
            found_sum, unknown = sum(v or 0 for v in values), values.count(None)
            expected = layer.macs if name == "macs" else layer.facts.get(name)
            if found_sum != expected or unknown != layer.facts.get(f"unknown_{name}"):
                yield f"executions: {layer.name}: {name} {found_sum} and {unknown} unknown; in the trace {expected} and" + (
                    f" {layer.facts.get(f'unknown_{name}')} unknown"
                )
    producer = dict(zip(found["tensors"]["tensor"], found["tensors"]["execution"], strict=True))
    if not set(producer.values()) <= set(names):
        yield "tensors: an execution that is not in executions"
    table = found["dependencies"]
    for execution, before, tensor in zip(table["execution"], table["waits_for"], table["tensor"], strict=True):
        if execution not in names or before not in names or before >= execution:
            yield f"dependencies: execution {execution} waits for {before}, which does not precede it"
        elif tensor is not None and producer.get(tensor) != before:
            yield f"dependencies: tensor {tensor} is not of execution {before}"
