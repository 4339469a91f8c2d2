"""Ramulator 2.1 traces: the bursts that a step's executions read and write, in execution order.

Target: Ramulator 2.1, https://github.com/CMU-SAFARI/ramulator2. `frontend=load_store` writes a LoadStoreTrace: rows `LD 0xADDRESS` and
`ST 0xADDRESS`, without times; Ramulator sends the next row as soon as it can, replays a trace again and again, and ends once as many
requests were sent as the trace has rows, without waiting for the last of them. `padding` rows that load the lowest address can follow,
so that the reads before them are answered; a controller may still keep its last writes.

`frontend=simple_o3` writes the trace of a SimpleO3 core: rows `bubbles load [store]` in decimal, where `bubbles` instructions that access
no memory precede each row. A store only comes with a load: the k-th write of an execution is in the row of its k-th read; where it has
fewer reads, the row loads what it then stores, as a cache does that allocates on a write. Caches and address translation are the
simulator's: set the cache small to see what the trace asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fathom_trace.addresses import BLOCK, COMPACT, MAX_REQUESTS, REPORTED, Block, Stream
from fathom_trace.errors import OptionError
from fathom_trace.exporter import OWN_GRAMMAR, CheckReport, ExportReport, Target
from fathom_trace.memory_traces import (
    BURST_DOC,
    MAX_REQUESTS_DOC,
    PLACEMENT_DOC,
    Checker,
    Parsed,
    RowFinder,
    Rows,
    check_sizes,
    layers_of,
    report_of,
    requests_of,
    size_of,
    stem_of,
    write_regions,
)
from fathom_trace.options import option
from fathom_trace.request_text import Decimal, Hexadecimal, MalformedError, Words, blocks, fields, lines
from fathom_trace.steps import MEDIAN, STEP_DOC, verify, view_steps
from fathom_trace.trace import Trace

TARGET = Target(
    name="Ramulator",
    version="2.1",
    url="https://github.com/CMU-SAFARI/ramulator2",
    proof=OWN_GRAMMAR,
    proof_detail="built from source, so tests do not run it; a parser as strict as the format reads every row and compares requests, bytes,"
    " regions, order and each execution's rows and addresses with the trace; by hand, Ramulator at commit c5b1c3a"
    " was given both dialects, and sent as many reads and writes of a LoadStoreTrace as it has",
    how_to_run="in a Ramulator configuration, frontend LoadStoreTrace(clock_ratio=..., path='FOLDER/NAME.trace'), or SimpleO3 with the"
    " file among its traces",
)

LOAD_STORE, SIMPLE_O3 = "load_store", "simple_o3"
HOW = {LOAD_STORE: "LD and ST", SIMPLE_O3: "bubbles, load and store"}
WORDS = (b"LD", b"ST")
MOST_BUBBLES = 2**31 - 1
MOST_PADDING = 1_000_000

Int64 = NDArray[np.int64]
Writer = Callable[[bytes], object]


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    step: str = option(MEDIAN, STEP_DOC)
    frontend: str = option(LOAD_STORE, "Ramulator's front end that reads the trace", choices=(LOAD_STORE, SIMPLE_O3))
    bubbles: int = option(0, "with simple_o3: instructions without memory access before each load")
    padding: int = option(
        0, "with load_store: rows behind the trace that load the lowest address, so that all reads before are answered"
    )
    burst_bytes: int = option(64, BURST_DOC)
    placement: str = option(COMPACT, PLACEMENT_DOC, choices=(COMPACT, REPORTED))
    max_requests: int = option(MAX_REQUESTS, MAX_REQUESTS_DOC)
    name: str = option("", "beginning of the file names; empty: the workload's name")

    def __post_init__(self) -> None:
        check_sizes(self.burst_bytes, self.max_requests)
        if not 0 <= self.bubbles <= MOST_BUBBLES:
            raise OptionError(f"option 'bubbles' is {self.bubbles}; it takes a number from 0 to {MOST_BUBBLES}")
        if not 0 <= self.padding <= MOST_PADDING:
            raise OptionError(f"option 'padding' is {self.padding}; it takes a number of rows from 0 to {MOST_PADDING}")
        if self.bubbles and self.frontend == LOAD_STORE:
            raise OptionError("option 'bubbles' is of frontend=simple_o3; a LoadStoreTrace has none")
        if self.padding and self.frontend == SIMPLE_O3:
            raise OptionError("option 'padding' is of frontend=load_store; SimpleO3 counts instructions that retired")


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write the trace and its regions.

    Raises:
        ExportError: there would be too many requests, or none.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    view = view_steps(trace, options.step, "exporter 'ramulator'")[0]
    found = requests_of(view, options.burst_bytes, options.placement, options.max_requests, "ramulator")
    stem = stem_of(trace, options.name)
    files = (f"{stem}.trace", f"{stem}_regions.csv")
    lowest = int(found.first.min())
    with (folder / files[0]).open("wb") as out:
        if options.frontend == LOAD_STORE:
            rows, region_reads = _write_load_store(out.write, found), found.per_region(False)
            out.write(b"LD %#x\n" % lowest * options.padding)
        else:
            rows, region_reads = _write_simple_o3(out.write, found, options.bubbles)
    write_regions(folder / files[1], found, region_reads, found.per_region(True))
    count = int(rows.last.max(initial=0))
    layers, skipped = layers_of(found, rows, files[0], HOW[options.frontend], {}, {})
    extra = int(rows.reads.sum() - found.per_execution(False).sum())
    settings = {
        **asdict(options), "name": stem, "step": view.step, "structure": view.structure, "lowest": lowest, "extra_loads": extra,
        "written": size_of(found, int(rows.reads.sum()), int(rows.writes.sum()), count),
    }  # fmt: skip
    more = _approximations(extra, options), _notes(options)
    report = report_of(TARGET, "ramulator", found, files, layers, skipped, settings, *more)
    verify([view], report)
    return report


def _write_load_store(out: Writer, found: Stream) -> Rows:
    rows = RowFinder(len(found.view))
    for block in found.blocks():
        out(spell(block))
        rows.add(block.execution, block.address)
    return rows.found(found.per_execution(False), found.per_execution(True))


def spell(block: Block) -> bytes:
    """Some requests as rows of a LoadStoreTrace."""
    return lines([Words(block.is_write.astype(np.int8), WORDS), Hexadecimal(block.address)])


def _write_simple_o3(out: Writer, found: Stream, bubbles: int) -> tuple[Rows, Int64]:
    """Write the rows; returns where executions are, and the loads of each region."""
    reads, writes = found.per_execution(False), found.per_execution(True)
    rows = np.maximum(reads, writes)
    ends, begins = np.cumsum(rows), found.offsets[np.searchsorted(found.accesses.execution, np.arange(len(rows)))]
    region_reads, sums = np.zeros(len(found.regions), np.int64), np.zeros(len(rows), np.uint64)
    by_address = np.argsort(found.regions.address, kind="stable")
    address = found.regions.address[by_address]
    for at in range(0, int(ends[-1]), BLOCK):
        numbers = np.arange(at, min(at + BLOCK, int(ends[-1])))
        execution = np.searchsorted(ends, numbers, side="right")
        within = numbers - (ends - rows)[execution]
        has_write = within < writes[execution]
        write_at = begins[execution] + reads[execution] + np.minimum(within, np.maximum(writes[execution] - 1, 0))
        read_at = begins[execution] + within
        stores = found.at(np.where(has_write, write_at, begins[execution])).address
        loads = np.where(within < reads[execution], found.at(np.minimum(read_at, found.requests - 1)).address, stores)
        region_reads += np.bincount(by_address[np.searchsorted(address, loads, side="right") - 1], minlength=len(address))
        np.add.at(sums, execution, loads + np.where(has_write, stores, 0))
        before = np.full(len(numbers), bubbles, np.uint64)
        out(lines([Decimal(before), Decimal(loads), Decimal(stores, has_write)]))
    first, last = np.where(rows > 0, ends - rows + 1, 0), np.where(rows > 0, ends, 0)
    return Rows(first, last, rows, writes, sums), region_reads


def _approximations(extra: int, options: Options) -> Iterator[str]:
    yield "requests are in execution order without times: Ramulator sends each as soon as it can"
    if extra:
        yield f"{extra:,} loads are of what the same row stores: executions that write more than they read (SimpleO3 has no store alone)"
    if options.frontend == SIMPLE_O3:
        yield f"the work between two loads is {options.bubbles} instructions, whatever the op"


def _notes(options: Options) -> Iterator[str]:
    if options.frontend == LOAD_STORE and not options.padding:
        yield "Ramulator ends when the last request is sent, before it is done; --set padding=N adds N loads (64 fill its queue twice)"
    elif options.padding:
        yield f"the last {options.padding} rows are padding, and belong to no execution"


# --- checking ---------------------------------------------------------------------------------------------------------------------


def check(folder: Path) -> CheckReport:
    """Parse every row strictly, and compare with the regions and with `export.json`.

    Each row: words, addresses and numbers as they are written, each address a burst of a region. In all: requests, reads and writes of
    each region and of each execution's rows; padding last and only there.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    checker = Checker(folder, "ramulator")
    parse = _parse_simple_o3 if checker.settings.get("frontend") == SIMPLE_O3 else _parse_load_store
    return checker.check(parse(folder / checker.file, checker))


def _parse_load_store(path: Path, checker: Checker) -> Iterator[Parsed]:
    rows, padding, padded = checker.size["rows"], int(checker.settings.get("padding", 0)), 0
    for first, raw in blocks(path):
        found = fields(first, raw, 2, 2)
        is_write, address = found.words(0, WORDS) == 1, found.numbers(1, 16)
        own = max(min(rows - first, len(found)), 0)
        if is_write[own:].any() or np.any(address[own:] != np.uint64(checker.settings.get("lowest", -1))):
            raise MalformedError(f"{path.name}: a row after row {first + own} is no padding")
        padded += len(found) - own
        yield Parsed(address[:own], ~is_write[:own], address[:own], is_write[:own])
    if padded != padding:
        raise MalformedError(f"{path.name}: {padded} rows of padding, export.json says {padding}")


def _parse_simple_o3(path: Path, checker: Checker) -> Iterator[Parsed]:
    bubbles = np.uint64(checker.settings.get("bubbles", 0))
    for first, raw in blocks(path):
        found = fields(first, raw, 2, 3)
        before, loads, stores = (found.numbers(k, 10, optional=k == 2) for k in range(3))
        wrong = np.flatnonzero(before != bubbles)
        if len(wrong):
            raise MalformedError(
                f"{path.name}: row {first + int(wrong[0]) + 1} has {before[wrong[0]]} bubbles, export.json says {bubbles}"
            )
        yield Parsed(loads, np.ones(len(found), bool), stores, found.end[:, 2] > found.begin[:, 2])
