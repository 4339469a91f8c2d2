"""DRAMsim3 traces: the bursts that a step's executions read and write, each with the DRAM cycle in which it is asked for.

Target: DRAMsim3 1.0.0, https://github.com/umd-memsys/DRAMsim3 (source of 2021 and later). A row is `0xADDRESS READ|WRITE cycle`: the
address always in hexadecimal, the cycle in DRAM clocks (`clock_mhz`) and never falling; any other word would silently be a READ. One row
is one burst. The last row, `0x0 READ 18446744073709551615`, is asked for never: DRAMsim3 mistreats the row after which its file ends.

With `timing=execution` each execution's requests are spread evenly over its own measured time, so the trace asks as fast as the program
did; with `timing=order` one request follows the other, one a cycle: that measures the memory alone. DRAMsim3 takes at most one request a
cycle from a trace, so the bandwidth of a memory of many channels may not be reached.

`read_results` reads `dramsim3.json` and `dramsim3epoch.json` (one folder). DRAMsim3 tells when requests were done only by epoch
(`epoch_period` of its configuration, 100,000 cycles by default), so an execution's requests are placed within an epoch in proportion. In
order, an execution takes from the end of the one before it to its last request: the time that the memory alone needs. With
`timing=execution`, all times are stretched alike, by the cycle in which all requests were done over the last in which one was asked for;
a delay below one epoch is none. Totals alone cannot tell when the last request was done, since DRAMsim3 runs for as many cycles as it is
told, so without epochs there is no answer. Writes count as done when the controller has taken them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.addresses import COMPACT, MAX_REQUESTS, REPORTED, Block, Stream
from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import OWN_GRAMMAR, CheckReport, ExportedLayer, ExportReport, Target
from fathom_trace.memory_traces import (
    BURST_DOC,
    MAX_REQUESTS_DOC,
    PLACEMENT_DOC,
    Checker,
    Parsed,
    RowFinder,
    check_sizes,
    layers_of,
    report_of,
    requests_of,
    size_of,
    stem_of,
    write_regions,
)
from fathom_trace.options import option
from fathom_trace.request_text import Decimal, Fields, Hexadecimal, MalformedError, Words, blocks, fields, lines
from fathom_trace.steps import MEDIAN, STEP_DOC, StepView, verify, view_steps
from fathom_trace.trace import Trace
from fathom_trace.units import format_ns
from fathom_trace.untrusted import read_json, read_regular

TARGET = Target(
    name="DRAMsim3",
    version="1.0.0",
    url="https://github.com/umd-memsys/DRAMsim3",
    proof=OWN_GRAMMAR,
    proof_detail="built from source, so tests do not run it; a parser as strict as the format reads every row and compares requests, bytes,"
    " regions, order and each execution's rows and addresses with the trace; results are read from files that"
    " DRAMsim3 itself wrote, and by hand DRAMsim3 at commit 2981759 did as many reads and writes as whole traces have",
    how_to_run="mkdir FOLDER/results; dramsim3main CONFIG.ini -c CYCLES -t FOLDER/NAME.trace -o FOLDER/results; CYCLES is in the export's"
    " notes: it must be enough for num_reads_done and num_writes_done to reach the trace's. In CONFIG.ini set unified_queue = True in"
    " [system]: with separate queues DRAMsim3 waits for itself for ever once a write closely follows a read of the same address, as ops in"
    " place do; and in [other] epoch_period = 1000. Then fathom-trace whatif FILE --from FOLDER --clock 1600MHz (the DRAM clock)",
)

EXECUTION, ORDER = "execution", "order"
HOW = {EXECUTION: "READ and WRITE, over its own time", ORDER: "READ and WRITE, one a cycle"}
WORDS = (b"READ", b"WRITE")
NEVER = 2**64 - 1
SENTINEL = b"0x0 READ %d\n" % NEVER
CYCLES_PER_REQUEST = 4
"""A burst of 8 on a bus of both clock edges; the data bus of one channel carries no more."""


@dataclass(frozen=True)
class Options:
    """What `--set` changes."""

    step: str = option(MEDIAN, STEP_DOC)
    timing: str = option(EXECUTION, "ask over each execution's own time, or one request a cycle in order", choices=(EXECUTION, ORDER))
    clock_mhz: float = option(1600.0, "DRAM clock, half its transfer rate: 1600 for DDR4-3200")
    burst_bytes: int = option(64, BURST_DOC)
    placement: str = option(COMPACT, PLACEMENT_DOC, choices=(COMPACT, REPORTED))
    max_requests: int = option(MAX_REQUESTS, MAX_REQUESTS_DOC)
    name: str = option("", "beginning of the file names; empty: the workload's name")

    def __post_init__(self) -> None:
        check_sizes(self.burst_bytes, self.max_requests)
        if not 0.001 <= self.clock_mhz <= 1e6:
            raise OptionError(f"option 'clock_mhz' is {self.clock_mhz}; it takes a clock in MHz, for example 1600")


# --- writing ----------------------------------------------------------------------------------------------------------------------


def write(trace: Trace, folder: Path, options: Options) -> ExportReport:
    """Write the trace and its regions.

    Raises:
        ExportError: there would be too many requests, or none, or the trace has no times to ask by.
        OptionError, TraceError: there is no such step, or the trace is empty.
    """
    view = view_steps(trace, options.step, "exporter 'dramsim3'")[0]
    if options.timing == EXECUTION and not view.timed.any():
        raise ExportError("dramsim3: the trace has no times to ask for requests by; set timing=order")
    found = requests_of(view, options.burst_bytes, options.placement, options.max_requests, "dramsim3")
    stem = stem_of(trace, options.name)
    files = (f"{stem}.trace", f"{stem}_regions.csv")
    begin, duration = cycles_of(view, options.clock_mhz)
    made = found.timed_blocks(begin, duration) if options.timing == EXECUTION else _numbered(found.blocks())
    rows, last_cycle = RowFinder(len(view)), 0
    with (folder / files[0]).open("wb") as out:
        for block in made:
            out.write(spell(block))
            rows.add(block.execution, block.address)
            last_cycle = int(_cycles(block)[-1])
        out.write(SENTINEL)
    reads, writes = found.per_execution(False), found.per_execution(True)
    write_regions(folder / files[1], found, found.per_region(False), found.per_region(True))
    own = {"duration_ns": view.duration_ns.tolist()}
    common = {"timing": options.timing, "asked_cycles": last_cycle + 1}
    layers, skipped = layers_of(found, rows.found(reads, writes), files[0], HOW[options.timing], own, common)
    settings = {
        **asdict(options), "name": stem, "step": view.step, "structure": view.structure, "asked_cycles": last_cycle + 1,
        "written": size_of(found, int(reads.sum()), int(writes.sum()), rows.rows),
    }  # fmt: skip
    more = _approximations(view, options), _notes(found, last_cycle, options)
    report = report_of(TARGET, "dramsim3", found, files, layers, skipped, settings, *more)
    verify([view], report)
    return report


def cycles_of(view: StepView, clock_mhz: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The DRAM cycle in which each execution begins, and for how many it runs; without a time, none, when what precedes it is done."""
    done = np.maximum.accumulate(np.where(view.timed, view.start_ns + view.duration_ns, 0)) if len(view) else view.start_ns
    start = np.where(view.timed, view.start_ns, done)
    begin, end = (_to_cycles(ns, clock_mhz) for ns in (start, start + view.duration_ns))
    return begin, end - begin


def _to_cycles(ns: NDArray[np.int64], clock_mhz: float) -> NDArray[np.int64]:
    """Whole cycles before a time, without the rounding of floating point."""
    clock_khz = round(clock_mhz * 1000)
    return ns // 1_000_000 * clock_khz + ns % 1_000_000 * clock_khz // 1_000_000


def _numbered(made: Iterable[Block]) -> Iterator[Block]:
    """One request a cycle."""
    at = 0
    for block in made:
        yield Block(block.execution, block.is_write, block.address, np.arange(at, at + len(block)))
        at += len(block)


def _cycles(block: Block) -> NDArray[np.int64]:
    assert block.cycle is not None
    return block.cycle


def spell(block: Block) -> bytes:
    """Some requests as rows."""
    words = Words(block.is_write.astype(np.int8), WORDS)
    return lines([Hexadecimal(block.address), words, Decimal(_cycles(block).astype(np.uint64))])


def _approximations(view: StepView, options: Options) -> Iterator[str]:
    if options.timing == ORDER:
        yield "requests are asked for one a cycle, the most that DRAMsim3 takes from a trace: times of the program are not in it"
        return
    yield f"each execution's requests are spread evenly over its time; cycles are whole ones of {options.clock_mhz:g} MHz, rounded down"
    untimed = int(np.count_nonzero(view.chosen & ~view.timed))
    if untimed:
        yield f"{untimed} executions have no valid time; theirs are asked for at once, when what precedes them is done"


def _notes(found: Stream, last_cycle: int, options: Options) -> Iterator[str]:
    enough = last_cycle + 1 + 2 * CYCLES_PER_REQUEST * found.requests
    yield (
        f"requests are asked for until cycle {last_cycle:,} ({format_ns((last_cycle + 1) / options.clock_mhz * 1e3)}); simulate about"
        f" -c {enough} (one channel needs at least {CYCLES_PER_REQUEST} cycles a request), more if some are not done then"
    )
    yield "in DRAMsim3's configuration set unified_queue = True in [system] and, for times of executions, epoch_period in [other] to 1000"


# --- checking ---------------------------------------------------------------------------------------------------------------------


def check(folder: Path) -> CheckReport:
    """Parse every row strictly, and compare with the regions and with `export.json`.

    Each row: address, word and cycle as they are written, the address a burst of a region, cycles never falling; the sentinel last and
    only there. In all: requests, reads and writes of each region and of each execution's rows.

    Raises:
        ExportError: there is no `export.json`, or it is none.
    """
    checker = Checker(folder, "dramsim3")
    return checker.check(_parsed(folder / checker.file, checker))


def _parsed(path: Path, checker: Checker) -> Iterator[Parsed]:
    previous, ended = 0, False
    for first, raw in blocks(path):
        if ended:
            raise MalformedError(f"{path.name}: row {first + 1} is behind the row that ends it")
        found: Fields = fields(first, raw, 3, 3)
        address, is_write, cycle = found.numbers(0, 16), found.words(1, WORDS) == 1, found.numbers(2, 10)
        ended = int(cycle[-1]) == NEVER
        if ended:
            if address[-1] or is_write[-1]:
                raise MalformedError(f"{path.name}: the last row is not '{SENTINEL.decode().strip()}'")
            address, is_write, cycle = address[:-1], is_write[:-1], cycle[:-1]
        if np.any(cycle == np.uint64(NEVER)):
            raise MalformedError(f"{path.name}: rows follow the row that ends it")
        steps = np.flatnonzero(np.concatenate([cycle[:1] < np.uint64(previous), cycle[1:] < cycle[:-1]]))
        if len(steps):
            raise MalformedError(f"{path.name}: row {first + int(steps[0]) + 1} is of an earlier cycle than the row before it")
        previous = int(cycle[-1]) if len(cycle) else previous
        yield Parsed(address, ~is_write, address, is_write)
    if not ended:
        raise MalformedError(f"{path.name} does not end with '{SENTINEL.decode().strip()}': it is cut off")
    if previous + 1 != checker.settings.get("asked_cycles"):
        raise MalformedError(
            f"{path.name}: the last cycle is {previous}, export.json says {checker.settings.get('asked_cycles')} in all"
        )


# --- results ----------------------------------------------------------------------------------------------------------------------

COUNTERS = ("num_cycles", "num_reads_done", "num_writes_done")


def read_results(path: Path, layer_map: list[ExportedLayer], cycle_ns: float) -> dict[int, float]:
    """Duration in ns of each execution, from DRAMsim3's `dramsim3.json` and `dramsim3epoch.json`; `cycle_ns` is the DRAM clock's.

    `path` is one of the two, or the folder that holds them. See the beginning of this file for what the durations are.

    Raises:
        ExportError: a file is missing or damaged, is of another export, or not all requests were done.
    """
    wanted = {"first", "last", "reads", "writes", "timing", "asked_cycles", "duration_ns"}
    if any(wanted - set(layer.facts) for layer in layer_map):
        raise ExportError(f"{path}: the export that it answers is not one of dramsim3, or of another release; export again")
    totals, epochs = _read(path)
    asked = {f"num_{side}_done": sum(int(la.facts[side]) for la in layer_map) for side in ("reads", "writes")}
    for key, expected in asked.items():
        done = sum(channel[key] for channel in totals.values())
        if done != expected:
            advice = "simulate more cycles (-c)" if done < expected else "it is of another export"
            raise ExportError(f"{path}: {key} is {done}, the export has {expected}; {advice}")
    when = _Progress(totals, epochs)
    if min(when.done.min(), when.cycles.min()) < 0:
        raise ExportError(f"{path}: the epochs have more than the totals; the two files are of different runs")
    if layer_map and layer_map[0].facts["timing"] == EXECUTION:
        late = when.cycle(sum(asked.values())) - int(layer_map[0].facts["asked_cycles"])
        stretch = 1 + late / int(layer_map[0].facts["asked_cycles"]) if late > when.epoch_cycles else 1.0
        return {e: own * stretch for la in layer_map for e, own in zip(la.executions, la.facts["duration_ns"], strict=True)}
    return {
        e: (when.cycle(last) - when.cycle(first - 1)) * cycle_ns
        for la in layer_map
        for e, first, last in zip(la.executions, la.facts["first"], la.facts["last"], strict=True)
    }


class _Progress:
    """When how many requests were done, over all channels."""

    def __init__(self, totals: Mapping[str, Mapping[str, int]], epochs: Sequence[Mapping[str, int]]) -> None:
        by_number: dict[int, list[Mapping[str, int]]] = defaultdict(list)
        for epoch in epochs:
            by_number[epoch["epoch_num"]].append(epoch)
        cycles, done = [], []
        for _, same in sorted(by_number.items()):
            cycles.append(max(e["num_cycles"] for e in same))
            done.append(sum(e["num_reads_done"] + e["num_writes_done"] for e in same))
        cycles.append(max(t["num_cycles"] for t in totals.values()) - sum(cycles))
        done.append(sum(t["num_reads_done"] + t["num_writes_done"] for t in totals.values()) - sum(done))
        self.cycles, self.done = np.array(cycles), np.array(done)
        self.ends, self.upto = np.cumsum(self.cycles), np.cumsum(self.done)
        self.epoch_cycles = int(self.cycles.max())

    def cycle(self, requests: int) -> float:
        """The cycle in which so many requests were done: the earliest, evenly within its epoch."""
        if requests <= 0:
            return 0.0
        epoch = int(np.searchsorted(self.upto, requests))
        before = int(self.upto[epoch] - self.done[epoch])
        return float(self.ends[epoch] - self.cycles[epoch] * (1 - (requests - before) / self.done[epoch]))


NO_EPOCHS = "totals do not tell when requests were done: set epoch_period below -c, and output_level=1"


def _read(path: Path) -> tuple[dict[str, dict[str, int]], list[dict[str, int]]]:
    """Totals by channel, and epochs."""
    if path.is_dir():
        found = sorted(path.glob("*epoch.json"))
        if len(found) != 1:
            raise ExportError(f"{path} has {len(found)} files *epoch.json where one belongs; {NO_EPOCHS}")
        epoch_file = found[0]
    else:
        epoch_file = path if path.name.endswith("epoch.json") else path.with_name(f"{path.stem}epoch.json")
    total_file = epoch_file.with_name(epoch_file.name.removesuffix("epoch.json") + ".json")
    if not total_file.is_file():
        raise ExportError(f"{path}: {total_file} does not exist; give the folder of DRAMsim3's results")
    if not epoch_file.is_file():
        raise ExportError(f"{path}: {epoch_file} does not exist; {NO_EPOCHS}")
    totals, epochs = _json(path, total_file), _json(path, epoch_file)
    if not isinstance(totals, dict) or not isinstance(epochs, list) or not totals or not epochs:
        raise ExportError(f"{path}: not DRAMsim3's statistics by channel and by epoch")
    return (
        {str(k): _counters(path, v, COUNTERS) for k, v in totals.items()},
        [_counters(path, e, (*COUNTERS, "epoch_num")) for e in epochs],
    )


def _json(path: Path, file: Path) -> Any:
    try:
        return read_json(read_regular(file))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: {file.name} is not DRAMsim3's statistics ({type(error).__name__}); simulate again") from None


def _counters(path: Path, row: Any, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        value = row.get(name) if isinstance(row, dict) else None
        if type(value) is not int or value < 0:
            raise ExportError(f"{path}: '{name}' is missing or no count; these are not DRAMsim3's statistics")
        found[name] = value
    return found
