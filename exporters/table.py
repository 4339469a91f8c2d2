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
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace import digits
from fathom_trace.errors import ExportError
from fathom_trace.exporter import TARGET_PARSED, CheckReport, ExportReport, Target, read_report
from fathom_trace.layer_map import LayerMap
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
Mask = NDArray[np.bool_]


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
EMPTY = frozenset({*COSTS, "step", "tensor", "scheduled_ns", "start_ns", "end_ns", "done_ns", "duration_ns", "lane"})
"""Columns of integers of which a cell may be empty."""
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
    made: dict[str, tuple[Sequence[StepView], Callable[[StepView], list[Column]]]] = {
        "executions": (views, lambda view: _executions(view, labels)),
        "tensors": (structures, _tensors),
        "dependencies": (structures, _dependencies),
    }
    rows: dict[str, int] = {}
    files = []
    for name, (shown, columns_of) in made.items():
        files.append(f"{name}.{options.format}")
        if arrow is None:
            rows[name] = _write_csv(folder / files[-1], COLUMNS[name], map(columns_of, shown))
        else:
            rows[name] = _write_parquet(arrow, folder / files[-1], COLUMNS[name], map(columns_of, shown))

    first = {view.structure: view.rows.start for view in structures}

    def describe(view: StepView, node: int, members: Int64) -> Mapping[str, Any]:
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


def _write_csv(path: Path, header: Sequence[str], parts: Iterable[Sequence[Column]]) -> int:
    """Write a table whose rows come in parts; returns how many there are."""
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as out:
        out.write(",".join(header) + "\n")
        for part in parts:
            rows += _length(part)
            out.writelines(csv_text(part))
    return rows


def _length(columns: Sequence[Column]) -> int:
    """How many rows columns have."""
    return len(columns[0].values if isinstance(columns[0], Numbers) else columns[0].codes)


def csv_text(columns: Sequence[Column]) -> Iterator[str]:
    """The lines of a table, many at a time."""
    for begin in range(0, _length(columns), BLOCK):
        yield _lines(_rows(columns, slice(begin, begin + BLOCK)))


def _rows(columns: Sequence[Column], part: slice) -> list[Column]:
    """Some rows of columns; texts that had the very same codes have them still."""
    codes = {id(column.codes): column.codes[part] for column in columns if isinstance(column, Texts)}
    return [
        Texts(column.name, codes[id(column.codes)], column.words)
        if isinstance(column, Texts)
        else Numbers(column.name, column.values[part], None if column.known is None else column.known[part])
        for column in columns
    ]


def _lines(columns: Sequence[Column]) -> str:
    """Columns as lines.

    Neighbouring columns whose rows repeat become one column of distinct pieces of text, neighbouring integers that hardly do one column
    of digits; a line is a join of such pieces.
    """
    pieces = list(_pieces(columns))
    texts: list[Iterable[str]] = []
    for position, piece in enumerate(pieces):
        is_last = position == len(pieces) - 1
        if isinstance(piece, tuple):
            codes, words = piece
            before, after = "," * (position > 0), "\n" if is_last else "," * isinstance(pieces[position + 1], list)
            framed = [f"{before}{word}{after}" for word in words]
            texts.append(map(framed.__getitem__, codes.tolist()))
        else:
            lines = digits.lines([column.values for column in piece], [column.known for column in piece])
            if len(pieces) == 1:
                return lines
            texts.append(lines.splitlines(keepends=is_last))
    return "".join(chain.from_iterable(zip(*texts, strict=True)))


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


ROW_GROUP = 1 << 17
"""Rows of Parquet that are written at once."""


def _write_parquet(arrow: Any, path: Path, header: Sequence[str], parts: Iterable[Sequence[Column]]) -> int:
    """Write a table whose rows come in parts, `ROW_GROUP` at a time; returns how many there are."""
    package, parquet = arrow
    schema = package.schema([(name, package.string() if name in TEXTS else package.int64()) for name in header])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            length = _length(part)
            for begin in range(0, length, ROW_GROUP):
                rows = slice(begin, begin + ROW_GROUP)
                writer.write_table(package.table({column.name: _arrow_array(package, column, rows) for column in part}, schema))
            count += length
    return count


def _arrow_array(package: Any, column: Column, rows: slice) -> Any:
    """Some rows of a column."""
    if isinstance(column, Texts):
        used, codes = np.unique(column.codes[rows], return_inverse=True)
        words = package.array([column.words[w] for w in used.tolist()], package.string())
        return package.DictionaryArray.from_arrays(codes.reshape(-1).astype(np.int32), words).cast(package.string())
    return package.array(column.values[rows], package.int64(), mask=None if column.known is None else ~column.known[rows])


# --- checking ---------------------------------------------------------------------------------------------------------------------

Cells = tuple[Int64, Mask] | list[str]
"""Some cells of a column: integers and where they are known, or texts."""
READ_ROWS = 8_192
"""Rows that are parsed at once."""


def check(folder: Path) -> CheckReport:
    """Parse the tables strictly, some rows at a time, and compare them with each other and with `export.json`.

    In each: the header, as many cells in every row, integers where they belong. Against the trace: rows, the rows, exact time, MACs, FLOPs
    and bytes of each node; every execution and tensor that is named exists, and producers come before who waits for them.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    report = read_report(folder)
    problems: list[str] = []
    try:
        layers = LayerMap(report["layers"])
        rows, suffix, steps = dict(report["settings"]["rows"]), str(report["settings"]["format"]), list(report["settings"]["steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / 'export.json'} is not a report of table ({error}); export again") from None
    found = _Tables()
    read: dict[str, int] = {}
    for name, columns in COLUMNS.items():
        file = f"{name}.{suffix}"
        try:
            header, blocks = _parse_parquet(folder / file) if suffix == PARQUET else _parse_csv(folder / file)
            if header != columns:
                problems.append(f"{file} has the columns {', '.join(header)}, not {', '.join(columns)}")
                continue
            count = found.add(name, blocks)
        except (OSError, ValueError, csv.Error) as error:
            problems.append(f"{file} cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:160]})")
            continue
        if count != rows.get(name):
            problems.append(f"{file} has {count} rows, export.json says {rows.get(name)}")
        else:
            read[name] = count
    if not problems:
        problems += _differences(found, layers, steps)
    facts = {f"{name} rows": count for name, count in read.items()}
    if "executions" in read:
        facts["time_ns"] = int(found.column("executions", "duration_ns").sum())
    return CheckReport(tuple(f"{name}.{suffix}" for name in read), facts, tuple(problems))


def _parse_csv(path: Path) -> tuple[tuple[str, ...], Iterator[dict[str, Cells]]]:
    """The header, and what follows."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            raise ValueError("its last line has no end")
    with path.open(encoding="utf-8", newline="") as text:
        header = next(csv.reader(text, strict=True))
    return tuple(header), _csv_blocks(path, header)


def _csv_blocks(path: Path, header: Sequence[str]) -> Iterator[dict[str, Cells]]:
    with path.open(encoding="utf-8", newline="") as text:
        reader = csv.reader(text, strict=True)
        next(reader)
        number = 2
        while rows := list(islice(reader, READ_ROWS)):
            if set(map(len, rows)) != {len(header)}:
                wrong = next(i for i, row in enumerate(rows, start=number) if len(row) != len(header))
                raise ValueError(f"row {wrong} has not {len(header)} cells")
            number += len(rows)
            columns = zip(header, zip(*rows, strict=True), strict=True)
            yield {name: list(cells) if name in TEXTS else _integers(name, cells) for name, cells in columns}


_INTEGERS = re.compile(r"(?:-?[0-9]+)?(?:\n(?:-?[0-9]+)?)*", re.ASCII)


def _integers(name: str, cells: Sequence[str]) -> tuple[Int64, Mask]:
    """Cells of a column of integers."""
    text = "\n".join(cells)
    if not _INTEGERS.fullmatch(text) or text.count("\n") >= len(cells):
        wrong = next((cell for cell in cells if not re.fullmatch(r"(?:-?[0-9]+)?", cell, re.ASCII)), "")
        raise ValueError(f"'{wrong}' in column {name} is no integer")
    known = np.array([bool(cell) for cell in cells], bool)
    try:
        return np.array([int(cell or 0) for cell in cells], np.int64), known
    except OverflowError:
        raise ValueError(f"column {name} has an integer of more than 64 bits") from None


def _parse_parquet(path: Path) -> tuple[tuple[str, ...], Iterator[dict[str, Cells]]]:
    package, parquet = _arrow()
    try:
        file = parquet.ParquetFile(path)
    except (package.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None
    wrong = [f.name for f in file.schema_arrow if str(f.type) != ("string" if f.name in TEXTS else "int64")]
    if wrong:
        raise ValueError(f"columns of another type: {', '.join(wrong)}")
    return tuple(file.schema_arrow.names), _parquet_blocks(package, file)


def _parquet_blocks(package: Any, file: Any) -> Iterator[dict[str, Cells]]:
    try:
        for batch in file.iter_batches(READ_ROWS):
            block: dict[str, Cells] = {}
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if name in TEXTS:
                    block[name] = [cell or "" for cell in column.to_pylist()]
                else:
                    known = column.is_valid().to_numpy(zero_copy_only=False)
                    block[name] = column.fill_null(0).to_numpy(zero_copy_only=False), known
            yield block
    except package.ArrowException as error:
        raise ValueError(str(error)) from None


KEPT: dict[str, tuple[str, ...]] = {
    "executions": ("step", "execution", "node", "record", "duration_ns", *COSTS),
    "tensors": ("tensor", "execution"),
    "dependencies": COLUMNS["dependencies"],
}
"""Columns of each table that are compared with something."""


class _Tables:
    """What was parsed and is compared: columns of integers, in which texts are numbers of `words`."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self._columns: dict[tuple[str, str], Int64] = {}
        self._known: dict[tuple[str, str], Mask] = {}

    def add(self, table: str, blocks: Iterable[Mapping[str, Cells]]) -> int:
        """The rows of a table; returns how many there are.

        Raises:
            ValueError: a cell is empty that may not be.
        """
        values: dict[str, list[Int64]] = {name: [] for name in KEPT[table]}
        there: dict[str, list[Mask]] = {name: [] for name in KEPT[table]}
        for block in blocks:
            for name, cells in block.items():
                may_be_empty = name in EMPTY and (table, name) != ("tensors", "tensor")
                if isinstance(cells, tuple) and not may_be_empty and not cells[1].all():
                    raise ValueError(f"column {name} has an empty cell")
            for name in KEPT[table]:
                cells = block[name]
                if isinstance(cells, tuple):
                    values[name].append(cells[0])
                    there[name].append(cells[1])
                else:
                    values[name].append(np.array([self.words.setdefault(cell, len(self.words)) for cell in cells], np.int64))
        for name, parts in values.items():
            self._columns[table, name] = np.concatenate([np.zeros(0, np.int64), *parts])
            self._known[table, name] = np.concatenate([np.zeros(0, bool), *there[name]])
        return len(self._columns[table, KEPT[table][0]])

    def column(self, table: str, name: str) -> Int64:
        """A column; 0 where it is not known."""
        return self._columns[table, name]

    def known(self, table: str, name: str) -> Mask:
        """Where a column of integers is known."""
        return self._known[table, name]


def _differences(found: _Tables, layers: LayerMap, steps: Sequence[Any]) -> Iterator[str]:
    execution, record = found.column("executions", "execution"), found.column("executions", "record")
    cost = np.stack([found.column("executions", name) for name in COSTS])
    known = np.stack([found.known("executions", name) for name in COSTS])
    outside = record == found.words.get(EXECUTION_KINDS[EXECUTION_OUTSIDE], -1)
    for e in execution[outside & (found.known("executions", "duration_ns") | known.any(axis=0))].tolist():
        yield f"executions: execution {e} is outside the selection and has a time or a cost"
    inside = np.flatnonzero(~outside)
    inside = inside[np.argsort(execution[inside], kind="stable")]
    again = execution[inside[1:]] == execution[inside[:-1]]
    other = again & np.any((cost[:, inside[1:]] != cost[:, inside[:-1]]) | (known[:, inside[1:]] != known[:, inside[:-1]]), axis=0)
    for e in np.unique(execution[inside[1:]][other]).tolist():
        yield f"executions: execution {e} has other costs in another step"
    first = inside[np.concatenate([np.ones(min(len(inside), 1), bool), ~again])]
    if not np.array_equal(execution[first], layers.executions):
        yield "executions: its executions are not those of export.json"
        return
    step, has_step = found.column("executions", "step"), found.known("executions", "step")
    ran = {*np.unique(step[has_step]).tolist(), *([None] if not has_step.all() else [])}
    if ran - {s for s in steps if s is None or isinstance(s, int)}:
        yield "executions: a step that export.json does not have"
    order = np.lexsort((execution, step, has_step))
    if np.any(np.all([c[order[1:]] == c[order[:-1]] for c in (execution, step, has_step)], axis=0)):
        yield "executions: an execution is there twice in one step"
    yield from _other_layers(found, layers, first, cost, known)
    yield from _other_dependencies(found, np.unique(execution))


def _other_layers(found: _Tables, layers: LayerMap, first: Int64, cost: Int64, known: Mask) -> Iterator[str]:
    """Layers whose rows do not add up to what `export.json` says; `first` are the first rows of all executions, ascending."""
    of = layers.layer_of(found.column("executions", "execution"))
    times = layers.sums(of, found.column("executions", "duration_ns")).tolist()
    names = np.array([found.words.get(layer.name, -1) for layer in layers.layers] or [-1], np.int64)
    renamed = set(np.unique(of[(of >= 0) & (found.column("executions", "node") != names[of])]).tolist())
    sums = [layers.sums(layers.layer, column[first]).tolist() for column in cost]
    unknown = [layers.sums(layers.layer, ~column[first]).tolist() for column in known]
    for number, layer in enumerate(layers.layers):
        if times[number] != layer.time_ns or number in renamed:
            yield f"executions: {layer.name}: {times[number]} ns, in the trace {layer.time_ns:.0f}, or of another name"
        for column, name in enumerate(COSTS):
            there = sums[column][number], unknown[column][number]
            expected = layer.macs if name == "macs" else layer.facts.get(name), layer.facts.get(f"unknown_{name}")
            if there != expected:
                yield f"executions: {layer.name}: {name} {there[0]} and {there[1]} unknown; in the trace {expected[0]} and" + (
                    f" {expected[1]} unknown"
                )


def _other_dependencies(found: _Tables, executions: Int64) -> Iterator[str]:
    """Tensors and dependencies that contradict each other, or name an execution that is none of `executions` (ascending)."""
    tensor, producer = found.column("tensors", "tensor"), found.column("tensors", "execution")
    if not np.isin(producer, executions).all():
        yield "tensors: an execution that is not in executions"
    order = np.argsort(tensor, kind="stable")
    tensor, producer = tensor[order], producer[order]
    execution, before, read = (found.column("dependencies", name) for name in COLUMNS["dependencies"])
    wrong = ~np.isin(execution, executions) | ~np.isin(before, executions) | (before >= execution)
    for k in np.flatnonzero(wrong).tolist():
        yield f"dependencies: execution {execution[k]} waits for {before[k]}, which does not precede it"
    place = np.minimum(np.searchsorted(tensor, read, side="right") - 1, max(len(tensor) - 1, 0))
    made = (tensor[place] == read) & (producer[place] == before) if len(tensor) else np.zeros(len(read), bool)
    for k in np.flatnonzero(~wrong & found.known("dependencies", "tensor") & ~made).tolist():
        yield f"dependencies: tensor {read[k]} is not of execution {before[k]}"
