"""What exporters of memory traces share: which executions were written and which not, what a report says of it, and checking it again.

Beside its trace, an export has `NAME_regions.csv`: where each region lies, what it is, and its reads and writes. Rows of a trace are
numbered from 1. The map from executions to rows is in `export.json`: `first` and `last` of each execution of a layer.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.accesses import KINDS, UNRESOLVED
from fathom_trace.addresses import MAX_REQUESTS, Stream, refuse_above, stream
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import CheckReport, ExportedLayer, ExportReport, Skipped, Target, file_stem, read_report
from fathom_trace.request_text import MalformedError
from fathom_trace.steps import LeftOut, StepView, account
from fathom_trace.steps import notes as step_notes
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_share
from fathom_trace.untrusted import read_regular

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

BURST_DOC = "bytes of a request: what one burst of the memory moves (64 for DDR4, 32 for HBM2)"
PLACEMENT_DOC = "addresses of a compact space from 0, or as TensorFlow reported them (synthetic ones behind)"
MAX_REQUESTS_DOC = "refuse to write more"
TRAFFIC_MODEL = (
    "traffic model: each distinct input is read once and each output written once, reads first; nothing is reused from one op to the next,"
    " and what only hands memory on moves nothing"
)
MOVES_NOTHING = "moves no bytes: it hands memory on, holds a value, or steers"
IN_ITS_PARTS = "its parts are exported in its place"
REGION_COLUMNS = ("address", "size_bytes", "reads", "writes", "origin", "original_address", "pieces", "name")
ORIGINS = ("synthetic", "reported")


def check_sizes(burst_bytes: int, max_requests: int) -> None:
    """Check two options that all exporters of memory traces have.

    Raises:
        OptionError: one of them is out of range.
    """
    if burst_bytes < 1 or burst_bytes > 1 << 20 or burst_bytes & (burst_bytes - 1):
        raise OptionError(f"option 'burst_bytes' is {burst_bytes}; it takes a power of two from 1 to {1 << 20}, for example 64 or 32")
    if max_requests < 1:
        raise OptionError(f"option 'max_requests' is {max_requests}; it takes a number from 1 on (the default is {MAX_REQUESTS})")


def requests_of(view: StepView, burst_bytes: int, placement: str, max_requests: int, exporter: str) -> Stream:
    """The requests of a step, if they are not too many.

    Raises:
        ExportError: they are too many, or none.
    """
    found = stream(view, burst_bytes, placement)
    refuse_above(found, max_requests, exporter)
    if not found.requests:
        raise ExportError(f"{exporter}: nothing that is selected moves a byte; export a part that computes something")
    return found


def stem_of(trace: Trace, name: str) -> str:
    """The beginning of the file names."""
    return file_stem(name, trace.provenance)


# --- what a report says -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Where each execution is in a trace: `first` and `last` row, from 1; 0 for those that are in none. `reads` and `writes` in them,
    and the sum of all their addresses modulo 2**64.
    """

    first: Int64
    last: Int64
    reads: Int64
    writes: Int64
    addresses: UInt64


class RowFinder:
    """Notes where executions are while a trace is written."""

    def __init__(self, executions: int) -> None:
        self.first = np.full(executions, np.iinfo(np.int64).max)
        self.last = np.zeros(executions, np.int64)
        self.addresses = np.zeros(executions, np.uint64)
        self.rows = 0

    def add(self, execution: Int64, address: UInt64) -> None:
        """The execution and the address (or the sum of both) of each of some more rows."""
        position = np.arange(self.rows + 1, self.rows + 1 + len(execution))
        np.minimum.at(self.first, execution, position)
        np.maximum.at(self.last, execution, position)
        np.add.at(self.addresses, execution, address)
        self.rows += len(execution)

    def found(self, reads: Int64, writes: Int64) -> Rows:
        """Where they are; `reads` and `writes` are what each has."""
        return Rows(np.where(self.last > 0, self.first, 0), self.last, reads, writes, self.addresses)


def layers_of(
    found: Stream, rows: Rows, file: str, how: str, more: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> tuple[tuple[ExportedLayer, ...], tuple[Skipped, ...]]:
    """What was written, node by node, and what was not and why. `more` has further facts per execution, `common` of all layers alike."""
    view = found.view
    reasons = _left_out(found)
    read, written = found.bytes_per_execution(False), found.bytes_per_execution(True)

    def describe(_: StepView, __: int, members: Int64) -> Mapping[str, Any]:
        begin, end = int(rows.first[members[0]]), int(rows.last[members[0]])
        also = f" and {len(members) - 1} more" * (len(members) > 1)
        facts = {
            "first": rows.first[members].tolist(), "last": rows.last[members].tolist(), "reads": int(rows.reads[members].sum()),
            "writes": int(rows.writes[members].sum()), "address_sum": int(rows.addresses[members].sum()),
            "bytes_read": int(read[members].sum()), "bytes_written": int(written[members].sum()),
            **{key: [column[i] for i in members.tolist()] for key, column in more.items()},
        }  # fmt: skip
        return {"place": f"{file}:{begin}-{end}{also}", "how": how, "facts": {**facts, **common}}

    return account([view], {view.structure: LeftOut.by_number(len(view), reasons)}, describe)


def _left_out(found: Stream) -> dict[int, str]:
    view, costs = found.view, found.view.costs
    none = np.flatnonzero(view.chosen & (found.per_execution() == 0)).tolist()
    parents = view.trace.executions.parent[view.rows]
    calls = set((parents[parents >= 0] - view.rows.start).tolist())
    reasons = {}
    for i in none:
        if i in calls:
            reasons[i] = IN_ITS_PARTS
        elif not costs.bytes_known[i]:
            reasons[i] = f"its bytes are not known: {costs.reasons.get(costs.op_types[i], 'no rule')}"
        else:
            reasons[i] = MOVES_NOTHING
    return reasons


def approximations(found: Stream) -> Iterator[str]:
    """What the requests are but a model of."""
    yield TRAFFIC_MODEL
    table, count = found.accesses, found.count
    whole = found.requests
    exact = int(table.size_bytes.sum())
    yield f"{exact:,} bytes are rounded out to {whole:,} requests of {found.burst_bytes}: {format_bytes(found.moved_bytes)}"
    synthetic = ~found.regions.is_reported[found.region]
    if synthetic.any():
        kinds = Counter(KINDS[k] for k in table.pieces.kind[np.unique(table.piece[synthetic])].tolist())
        named = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        share = format_share(int(count[synthetic].sum()) / whole)
        yield f"{share} of the requests are at synthetic addresses, of memory without a reported one: {named}"
    part = table.size_bytes != table.span_bytes
    if part.any():
        share = format_share(int(count[part].sum()) / whole)
        yield (
            f"{share} of the requests are of a part of a tensor (a slice, rows that indices name): the trace does not tell which part, so"
            " it is taken from the beginning, again from there if more is read than there is"
        )
    if table.copied_reads:
        yield f"{table.copied_reads} reads of variables copied them, which is not counted: reading a variable moves nothing here"
    unknown = np.unique(table.piece[table.pieces.kind[table.piece] == UNRESOLVED])
    if len(unknown):
        yield f"{len(unknown)} pieces of memory are named by nothing in the trace, for example what {table.pieces.name[unknown[0]]} updates"


def notes(found: Stream) -> Iterator[str]:
    """What else a report must say: regions, unknown bytes, tensors of unknown size."""
    regions, view = found.regions, found.view
    reported = int(np.count_nonzero(regions.is_reported))
    size = int(regions.size_bytes.sum())
    yield (
        f"{len(regions)} regions of {format_bytes(size)} in all ({reported} at reported addresses); the highest address is"
        f" {int((regions.address + regions.size_bytes.astype(np.uint64)).max()) - 1:#x}: the memory must be as large"
    )
    unknown = Counter(view.costs.op_types[i] for i in np.flatnonzero(view.chosen & ~view.costs.bytes_known).tolist())
    if unknown:
        yield (
            f"the bytes of {sum(unknown.values())} executions are not known and not here: "
            + ", ".join(f"{n} {op}" for op, n in unknown.most_common(8))
        )
    texts = view.trace.strings.index.get("string")
    tensors = view.trace.tensors
    mine = (tensors.execution >= view.rows.start) & (tensors.execution < view.rows.stop)
    count = int(np.count_nonzero(mine & (tensors.dtype == texts))) if texts is not None else 0
    if count:
        yield f"{count} tensors of strings have no known size and move nothing here"


def write_regions(path: Path, found: Stream, reads: Int64, writes: Int64) -> None:
    """The regions, by address, with the reads and writes that a trace has of each."""
    regions = found.regions
    with path.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(REGION_COLUMNS)
        for i in np.argsort(regions.address, kind="stable").tolist():
            origin = ORIGINS[int(regions.is_reported[i])]
            rows.writerow(
                (int(regions.address[i]), int(regions.size_bytes[i]), int(reads[i]), int(writes[i]), origin, int(regions.original[i]),
                 int(regions.pieces[i]), regions.name[i])
            )  # fmt: skip


def size_of(found: Stream, reads: int, writes: int, rows: int) -> dict[str, Any]:
    """What `check` compares a trace with as a whole."""
    return {
        "rows": rows,
        "reads": reads,
        "writes": writes,
        "bytes_read": int(found.bytes_per_execution(False).sum()),
        "bytes_written": int(found.bytes_per_execution(True).sum()),
        "regions": len(found.regions),
    }


# --- checking ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parsed:
    """Some rows of a trace: what each reads, and what it writes (where `has_write`). `has_read` is None where every row reads or writes."""

    read_address: UInt64
    has_read: Mask
    write_address: UInt64
    has_write: Mask


class Checker:
    """Compares a parsed trace with its regions and with `export.json`."""

    def __init__(self, folder: Path, exporter: str) -> None:
        """Raises `ExportError` where there is no `export.json` of this exporter."""
        self.folder, self.problems = folder, list[str]()
        self.report = read_report(folder)
        try:
            self.layers = [ExportedLayer(**row) for row in self.report["layers"]]
            self.settings: Mapping[str, Any] = self.report["settings"]
            self.size: Mapping[str, int] = {key: int(value) for key, value in self.settings["written"].items()}
            self.burst_bytes = int(self.settings["burst_bytes"])
            self.file, self.regions_file = self.report["files"]
        except (KeyError, TypeError, ValueError) as error:
            raise ExportError(f"{folder / 'export.json'} is not a report of {exporter} ({error}); export again") from None
        self.facts: dict[str, int] = {}

    def check(self, parsed: Iterable[Parsed]) -> CheckReport:
        """What is wrong with the rows that `parsed` yields; it may raise `MalformedError` and `OSError`."""
        try:
            regions = self._regions()
            self._compare(parsed, regions)
        except MalformedError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{self.file} cannot be read ({type(error).__name__})")
        return CheckReport((self.file, self.regions_file), self.facts, tuple(self.problems))

    def _regions(self) -> NDArray[np.object_]:
        """Address, bytes, reads and writes of each region: columns of integers."""
        try:
            text = read_regular(self.folder / self.regions_file).decode()
            header, *rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
            if tuple(header) != REGION_COLUMNS or not text.endswith("\n") or any(len(row) != len(header) for row in rows):
                raise ValueError("its header or rows are not complete")
            if any(row[4] not in ORIGINS or not all(cell.isdecimal() for cell in (*row[:4], *row[5:7])) for row in rows):
                raise ValueError("a cell is no number, or no origin")
        except (OSError, ValueError, csv.Error) as error:
            raise MalformedError(f"{self.regions_file} cannot be read ({' '.join(str(error).split())[:160]})") from None
        found = np.array([[int(cell) for cell in row[:4]] for row in rows], np.object_).reshape(-1, 4)
        if len(found) != self.size["regions"]:
            self.problems.append(f"{self.regions_file} has {len(found)} regions, export.json says {self.size['regions']}")
        begin, size = found[:, 0], found[:, 1]
        if np.any(begin[1:] < begin[:-1] + size[:-1]):
            self.problems.append(f"{self.regions_file}: regions overlap, or are not by address")
        return found

    def _compare(self, parsed: Iterable[Parsed], regions: NDArray[np.object_]) -> None:
        begin = regions[:, 0].astype(np.uint64)
        burst = np.uint64(self.burst_bytes)
        last_burst = ((regions[:, 0] + regions[:, 1] - 1) // self.burst_bytes * self.burst_bytes).astype(np.uint64)
        counts = np.zeros((2, len(begin)), np.int64)
        sums = _Sums(self._spans())
        rows = 0
        for part in parsed:
            for side, (address, there) in enumerate(((part.read_address, part.has_read), (part.write_address, part.has_write))):
                used = address[there]
                region = np.searchsorted(begin // burst * burst, used, side="right") - 1
                wrong = (used % burst != 0) | (region < 0)
                wrong |= used > last_burst[np.maximum(region, 0)] if len(begin) else True
                if wrong.any() and len(self.problems) < 20:
                    row = rows + 1 + int(np.flatnonzero(there)[int(np.argmax(wrong))])
                    self.problems.append(f"{self.file}:{row}: {int(used[wrong][0]):#x} is no burst of a region")
                counts[side] += np.bincount(np.maximum(region, 0), minlength=len(begin))[: len(begin)]
            rows += len(part.has_read)
            both = np.where(part.has_read, part.read_address, 0) + np.where(part.has_write, part.write_address, 0)
            sums.add(part.has_read, part.has_write, both)
        self.facts = {"rows": rows, "reads": int(counts[0].sum()), "writes": int(counts[1].sum()), "regions": len(begin)}
        self.facts |= {key: sum(int(la.facts.get(key, 0)) for la in self.layers) for key in ("bytes_read", "bytes_written")}
        for key, value in self.facts.items():
            if value != self.size.get(key):
                self.problems.append(f"{self.file}: {value} {key}, export.json says {self.size.get(key)}")
        for side, name in enumerate(("reads", "writes")):
            differ = np.flatnonzero(counts[side] != regions[:, 2 + side].astype(np.int64))
            for region in differ[:3].tolist():
                self.problems.append(
                    f"{self.file}: {counts[side][region]} {name} of the region at {int(begin[region]):#x}, {self.regions_file} says"
                    f" {regions[region, 2 + side]}"
                )
        if not self.problems:
            self.problems += list(self._executions(sums, rows))[:10]

    def _spans(self) -> NDArray[np.int64]:
        """First and last row of every execution of every layer, as `[2, n]`.

        Raises:
            MalformedError: `export.json` does not tell them.
        """
        for layer in self.layers:
            first, last = (layer.facts.get(key) for key in ("first", "last"))
            if not isinstance(first, list) or not isinstance(last, list) or not len(first) == len(last) == len(layer.executions):
                raise MalformedError(f"{layer.name}: export.json does not tell the rows of each of its executions")
            if not all(type(a) is int and type(b) is int and 1 <= a <= b for a, b in zip(first, last, strict=True)):
                raise MalformedError(f"{layer.name}: rows in export.json are no rows")
        flat = [[row for layer in self.layers for row in layer.facts[key]] for key in ("first", "last")]
        return np.array(flat, np.int64).reshape(2, -1)

    def _executions(self, sums: _Sums, rows: int) -> Iterator[str]:
        """Layers whose executions' rows are not what `export.json` says: exactly where no other's lie between, else at least as many."""
        first, last = sums.spans
        order = np.argsort(first, kind="stable")
        reach = np.maximum.accumulate(last[order])
        if len(order) and (first[order[0]] != 1 or reach[-1] != rows or np.any(first[order][1:] > reach[:-1] + 1)):
            yield f"{self.file}: rows that belong to no execution, or executions without rows"
            return
        alone = np.ones(len(order), bool)
        alone[order[1:]] &= first[order[1:]] > reach[:-1]
        alone[order[:-1]] &= first[order[1:]] > last[order[:-1]]
        at = 0
        for layer in self.layers:
            mine = slice(at, at := at + len(layer.executions))
            exact = bool(alone[mine].all())
            for name, found in zip(("reads", "writes", "address_sum"), sums.between(mine), strict=True):
                told = int(layer.facts.get(name, -1))
                if (found != told and exact) or (found < told and name != "address_sum"):
                    yield f"{layer.name}: {found} {name} in its rows, in the trace {told}"


class _Sums:
    """Reads, writes and addresses (modulo 2**64) of spans of rows, added up while rows come by."""

    def __init__(self, spans: NDArray[np.int64]) -> None:
        """`spans` are first and last rows, from 1, as `[2, n]`."""
        self.spans = spans
        self.bounds = np.unique(np.concatenate([spans[0] - 1, spans[1]]))
        self.upto = np.zeros((3, len(self.bounds)), np.uint64)
        self.rows, self.total = 0, np.zeros(3, np.uint64)

    def add(self, *columns: NDArray[Any]) -> None:
        """Some more rows: whether each reads, whether it writes, and its address or the sum of both."""
        count = len(columns[0])
        if count:
            inside = slice(*np.searchsorted(self.bounds, (self.rows, self.rows + count), side="right"))
            for number, column in enumerate(columns):
                sums = self.total[number] + np.cumsum(column, dtype=np.uint64)
                self.upto[number, inside] = sums[self.bounds[inside] - self.rows - 1]
                self.total[number] = sums[-1]
            self.rows += count

    def between(self, which: slice) -> list[int]:
        """The three sums over some spans."""
        begin, end = (np.searchsorted(self.bounds, row) for row in (self.spans[0, which] - 1, self.spans[1, which]))
        return [int(sums[end].sum() - sums[begin].sum()) for sums in self.upto]


def report_of(
    target: Target, name: str, found: Stream, files: Sequence[str], layers: tuple[ExportedLayer, ...], skipped: tuple[Skipped, ...],
    settings: Mapping[str, Any], more_approximations: Iterable[str], more_notes: Iterable[str],
) -> ExportReport:  # fmt: skip
    """The report of an export of a memory trace."""
    return ExportReport(
        exporter=name,
        target=target,
        files=tuple(files),
        layers=layers,
        skipped=skipped,
        settings=settings,
        approximations=(*approximations(found), *more_approximations),
        notes=(*more_notes, *step_notes([found.view]), *notes(found)),
        provenance=dict(found.view.trace.provenance),
    )
