"""A step as a stream of memory requests: the bursts that its executions read and write, at addresses of a compact space.

The traffic model: each distinct input is read once and each output written once, in execution order or at the execution's own time, and
nothing is reused from one op to the next; an execution's reads come before its writes. What only hands memory on makes no traffic. The
bytes are those of `costs`, rounded out to whole bursts where a piece of memory begins or ends inside one.

Addresses are TensorFlow's where it reported one, with their overlaps in time (its allocator uses memory again). Pieces that overlap form a
*region*, and regions are moved together, each to a multiple of the burst. Pieces without an address get synthetic regions behind these;
what is no longer needed is used again for as large a piece. Nothing is written here: the exporters only spell the requests.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fathom_trace.accesses import BUFFER, Accesses, Pieces, accesses
from fathom_trace.errors import ExportError
from fathom_trace.layers import layer_names
from fathom_trace.phases import PHASES, phases
from fathom_trace.steps import StepView
from fathom_trace.tables import BUFFER_SYNTHETIC
from fathom_trace.units import format_bytes

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

COMPACT, REPORTED = "compact", "reported"
BLOCK = 1 << 17
"""Requests that are made at once."""

MAX_REQUESTS = 10_000_000
_MOST_BYTES, _HIGHEST = 2.0**60, 2.0**63


@dataclass(frozen=True, eq=False)
class Regions:
    """Memory that no other region overlaps, by address. `original` is where TensorFlow had it; 0 for a synthetic one."""

    address: UInt64
    size_bytes: Int64
    original: UInt64
    is_reported: Mask
    pieces: Int64
    """How many pieces lie in it, at one time or another."""
    name: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive requests: `cycle` where they have a time."""

    execution: Int64
    is_write: Mask
    address: UInt64
    cycle: Int64 | None = None

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Stream:
    """The requests of a step. A row per access, by execution (local number): `first` is the address of its first burst, `count` how many
    bursts it makes, and after each `span` of them it begins again at the first.
    """

    view: StepView
    burst_bytes: int
    accesses: Accesses
    regions: Regions
    region: Int64
    first: UInt64
    span: Int64
    count: Int64

    @property
    def requests(self) -> int:
        """All of them."""
        return int(self.count.sum())

    @property
    def moved_bytes(self) -> int:
        """Bytes of all requests, whole bursts."""
        return self.requests * self.burst_bytes

    @cached_property
    def offsets(self) -> Int64:
        """The number of the first request of each access; one more at the end."""
        return np.concatenate([[0], np.cumsum(self.count)]).astype(np.int64)

    def per_execution(self, writes: bool | None = None) -> Int64:
        """Requests of each execution: all, or only reads or writes."""
        count = self.count if writes is None else np.where(self.accesses.is_write == writes, self.count, 0)
        return np.bincount(self.accesses.execution, count, len(self.view)).astype(np.int64)

    def bytes_per_execution(self, writes: bool) -> Int64:
        """Bytes that each execution reads or writes, as `costs` has them: not rounded to bursts."""
        size = np.where(self.accesses.is_write == writes, self.accesses.size_bytes, 0)
        return np.bincount(self.accesses.execution, size, len(self.view)).astype(np.int64)

    def per_region(self, writes: bool) -> Int64:
        """Reads or writes of each region."""
        count = np.where(self.accesses.is_write == writes, self.count, 0)
        return np.bincount(self.region, count, len(self.regions)).astype(np.int64)

    def blocks(self, rows: int = BLOCK) -> Iterator[Block]:
        """The requests in execution order."""
        for begin in range(0, self.requests, rows):
            yield self.at(np.arange(begin, min(begin + rows, self.requests)))

    def at(self, numbers: Int64) -> Block:
        """Some of the requests, by number: from 0, in execution order."""
        access = np.searchsorted(self.offsets, numbers, side="right") - 1
        within = (numbers - self.offsets[access]) % self.span[access]
        address = self.first[access] + within.astype(np.uint64) * np.uint64(self.burst_bytes)
        return Block(self.accesses.execution[access], self.accesses.is_write[access], address)

    def timed_blocks(self, begin: Int64, duration: Int64, rows: int = BLOCK) -> Iterator[Block]:
        """The requests by cycle: those of each execution evenly over its `duration` from its `begin` on (cycles, per execution).

        Request k of n is in cycle `begin + floor(k duration / n)`. Those of one cycle come in the order in which executions begin.
        """
        count = self.per_execution()
        active = np.flatnonzero(count)
        active = active[np.argsort(begin[active], kind="stable")]
        first = self.offsets[np.searchsorted(self.accesses.execution, active)]
        spread = _Spread(first, count[active], begin[active], duration[active])
        for numbers, cycles in spread.windows(rows):
            block = self.at(numbers)
            yield Block(block.execution, block.is_write, block.address, cycles)


@dataclass(eq=False)
class _Spread:
    """Requests of executions that may run at the same time; a row per execution, by `begin`: its first request, how many, from when on."""

    first: Int64
    count: Int64
    begin: Int64
    duration: Int64

    def _due(self, cycle: int, rows: slice) -> Int64:
        """How many of each execution's requests come before a cycle."""
        count, duration = self.count[rows], self.duration[rows]
        passed = np.clip(cycle - self.begin[rows], 0, duration + 1)
        some = -(-passed * count // np.maximum(duration, 1))
        return np.where(passed > duration, count, np.minimum(some, count))

    def windows(self, most: int) -> Iterator[tuple[Int64, Int64]]:
        """(numbers, cycles) of consecutive requests by cycle, about `most` at once."""
        executions = len(self.first)
        sent, upto = np.zeros(executions, np.int64), np.cumsum(self.count)
        done, all_sent, cycle = 0, 0, int(self.begin.min(initial=0))
        last = int((self.begin + self.duration).max(initial=-1)) + 1
        while done < executions:
            cycle = max(cycle, int(self.begin[done])) if not sent[done] else cycle
            stop = max(int(np.searchsorted(upto, all_sent + 2 * most)) + 1, int(np.searchsorted(self.begin, cycle, side="right")))
            rows = slice(done, min(stop, executions))
            high = self._until(cycle, int(self.begin[stop]) if stop < executions else last, rows, sent[rows], most)
            until = self._due(high, rows)
            yield from self._window(rows, sent[rows], until, most)
            all_sent += int((until - sent[rows]).sum())
            sent[rows], cycle = until, high
            unfinished = np.flatnonzero(until < self.count[rows])
            done = done + int(unfinished[0]) if len(unfinished) else rows.stop

    def _until(self, cycle: int, limit: int, rows: slice, sent: Int64, most: int) -> int:
        """The last cycle up to which at most so many requests come, but at least the next; no later than `limit`."""
        if int((self._due(limit, rows) - sent).sum()) <= most:
            return limit
        low, high = cycle + 1, limit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if int((self._due(middle, rows) - sent).sum()) <= most else (low, middle)
        return low

    def _window(self, rows: slice, sent: Int64, until: Int64, most: int) -> Iterator[tuple[Int64, Int64]]:
        """The requests from `sent` to `until` of some executions, by cycle."""
        mine = np.flatnonzero(until > sent)
        begin, duration, count = self.begin[rows][mine], self.duration[rows][mine], self.count[rows][mine]
        number, start = until[mine] - sent[mine], sent[mine]
        if int(number.sum()) > 2 * most:  # more than fit, in a single cycle: the order is that of the executions
            cycle = int((begin + start * duration // count)[0])
            ends = np.cumsum(number)
            for at in range(0, int(ends[-1]), most):
                numbers = np.arange(at, min(at + most, int(ends[-1])))
                of = np.searchsorted(ends, numbers, side="right")
                yield self.first[rows][mine][of] + start[of] + numbers - (ends - number)[of], np.full(len(numbers), cycle)
            return
        within = _ranges(start, number)
        cycles = np.repeat(begin, number) + within * np.repeat(duration, number) // np.repeat(count, number)
        numbers = np.repeat(self.first[rows][mine], number) + within
        if np.any(cycles[1:] < cycles[:-1]):
            order = np.argsort(cycles, kind="stable")
            numbers, cycles = numbers[order], cycles[order]
        if len(numbers):
            yield numbers, cycles


def _ranges(start: Int64, count: Int64) -> Int64:
    """`start[i]`, `start[i] + 1`, ... `count[i]` of them, for each `i`."""
    ends = np.cumsum(count)
    within: Int64 = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - count, count)
    return within + np.repeat(start, count)


def stream(view: StepView, burst_bytes: int, placement: str = COMPACT) -> Stream:
    """The requests of a step, in bursts of so many bytes; with `placement` reported, at TensorFlow's own addresses where it told them.

    Raises:
        ExportError: the trace has sizes or addresses that do not fit in 64 bits, or nearly.
    """
    found = accesses(view)
    sizes = np.concatenate([found.pieces.size_bytes, found.size_bytes]).astype(np.float64)
    if sizes.sum() > _MOST_BYTES or np.any(found.pieces.address.astype(np.float64) + found.pieces.size_bytes > _HIGHEST):
        raise ExportError(f"no memory is as large as this trace says: {sizes.sum():.3g} bytes; the trace is damaged")
    address, regions, region = _place(view, found.pieces, burst_bytes, placement == COMPACT)
    burst = np.uint64(burst_bytes)
    begin, size = address[found.piece], found.size_bytes
    span_bytes = np.minimum(found.span_bytes, size)
    span = _bursts(begin, span_bytes, burst)
    count = np.where(size > found.span_bytes, -(-size // burst_bytes), span)
    return Stream(view, burst_bytes, found, regions, region[found.piece], begin // burst * burst, span, count)


def _bursts(begin: UInt64, size: Int64, burst: np.uint64) -> Int64:
    """Bursts that `size` bytes (at least 1) from `begin` on touch."""
    end = begin + np.maximum(size, 1).astype(np.uint64) - np.uint64(1)
    return (end // burst - begin // burst + np.uint64(1)).astype(np.int64)


# --- placement --------------------------------------------------------------------------------------------------------------------


def _place(view: StepView, pieces: Pieces, burst_bytes: int, compact: bool) -> tuple[UInt64, Regions, Int64]:
    """The address of each piece, the regions, and the region of each piece."""
    size = np.maximum(pieces.size_bytes, 1)
    address = np.zeros(len(pieces), np.uint64)
    region = np.zeros(len(pieces), np.int64)
    told = np.flatnonzero(pieces.kind == BUFFER)
    told = told[np.argsort(pieces.address[told], kind="stable")]
    begin, end = pieces.address[told], pieces.address[told] + size[told].astype(np.uint64)
    reach = np.maximum.accumulate(end) if len(told) else end
    grain = np.uint64(1 if compact else burst_bytes)  # where regions are not moved, two in one burst are one
    opens = np.concatenate([np.ones(min(len(told), 1), bool), begin[1:] // grain > (reach[:-1] - np.uint64(1)) // grain])
    number = np.cumsum(opens) - 1
    region[told] = number
    original = begin[opens]
    last = np.flatnonzero(np.concatenate([opens[1:], np.ones(min(len(told), 1), bool)]))
    extent = (reach[last] - original).astype(np.int64)
    if compact:
        moved = np.concatenate([[0], np.cumsum(_aligned(extent, burst_bytes))]).astype(np.uint64)
        address[told] = begin - original[number] + moved[:-1][number]
        base, free = moved[:-1], int(moved[-1])
    else:
        address[told] = begin
        base, free = original, _round_up(int(reach[-1]) if len(told) else 0, burst_bytes)
    is_reported = np.ones(len(original), bool)
    np.logical_and.at(is_reported, number, pieces.origin[told] != BUFFER_SYNTHETIC)
    held = np.bincount(number, minlength=len(original))

    rest = np.flatnonzero(pieces.kind != BUFFER)
    slots = _slots(view, pieces, rest, _aligned(size, burst_bytes))
    used, first, slot = np.unique(slots, return_index=True, return_inverse=True)
    slot_size = _aligned(size, burst_bytes)[rest[first]]
    slot_base = free + np.concatenate([[0], np.cumsum(slot_size)]).astype(np.int64)
    address[rest] = slot_base[:-1][slot.reshape(-1)].astype(np.uint64)
    region[rest] = len(original) + slot.reshape(-1)
    names = [pieces.name[i] for i in rest[first].tolist()]
    regions = Regions(
        address=np.concatenate([base, slot_base[:-1].astype(np.uint64)]),
        size_bytes=np.concatenate([extent, slot_size]),
        original=np.concatenate([original, np.zeros(len(used), np.uint64)]),
        is_reported=np.concatenate([is_reported, np.zeros(len(used), bool)]),
        pieces=np.concatenate([held, np.bincount(slot.reshape(-1), minlength=len(used))]).astype(np.int64),
        name=(*[""] * len(original), *names),
    )
    return address, regions, region


def _slots(view: StepView, pieces: Pieces, rest: Int64, size: Int64) -> Int64:
    """Which place each piece without an address takes: one that as large a piece has left, or a new one.

    A piece is free again when the last execution that needs it is done, and that precedes the new one in the order of executions too.
    """
    start = view.start_ns.tolist() if view.timed.all() else list(range(len(view)))
    done = (view.start_ns + view.duration_ns).tolist() if view.timed.all() else list(range(1, len(view) + 1))
    slots = np.zeros(len(rest), np.int64)
    free: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    begins, ends, sizes = pieces.begin[rest].tolist(), pieces.end[rest].tolist(), size[rest].tolist()
    count = 0
    for at in np.argsort(pieces.begin[rest], kind="stable").tolist():
        begin, end, waiting = begins[at], ends[at], free[sizes[at]]
        if waiting and begin >= 0 and waiting[0][0] <= start[begin] and waiting[0][1] < begin:
            slot = heapq.heappop(waiting)[2]
        else:
            slot, count = count, count + 1
        slots[at] = slot
        if 0 <= end < len(view):
            heapq.heappush(waiting, (done[end], end, slot))
    return slots


def _aligned(size: Int64, burst_bytes: int) -> Int64:
    return -(-size // burst_bytes) * burst_bytes


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# --- estimates --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """A part of a trace that can be exported by itself, and its requests. An empty name stands for all."""

    phase: str
    layer: str
    requests: int

    @property
    def arguments(self) -> str:
        """As the command line takes it."""
        given = (("--phase", self.phase), ("--layer", self.layer))
        return " ".join(f"{flag} {_quoted(name)}" for flag, name in given if name)


def _quoted(name: str) -> str:
    return name if name.replace("_", "").replace("/", "").replace("-", "").replace(".", "").isalnum() else f"'{name}'"


def selections(found: Stream) -> list[Selection]:
    """Every phase, every layer and every layer in a phase, with its requests, most first."""
    trace, count = found.view.trace, found.per_execution()
    phase, layer = phases(trace), layer_names(trace)
    sums: dict[tuple[str, str], int] = defaultdict(int)
    by_node = np.bincount(found.view.nodes, count, len(trace.nodes)).astype(np.int64).tolist()
    for node, requests in enumerate(by_node):
        if requests:
            for key in {(phase[node], ""), ("", layer[node]), (phase[node], layer[node])} - {("", "")}:
                sums[key] += requests
    order = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [Selection(p, la, requests) for (p, la), requests in order]


def refuse_above(found: Stream, most: int, exporter: str) -> None:
    """Check an export's size before anything is written.

    Raises:
        ExportError: it has more than `most` requests; says what parts have and which fits.
    """
    if found.requests <= most:
        return
    whole = f"{exporter}: {found.requests:,} requests ({format_bytes(found.moved_bytes)}) are more than max_requests={most:,}"
    parts = selections(found)
    of_phase = {s.phase: s.requests for s in parts if s.phase and not s.layer}
    by_phase = ", ".join(f"{p} {of_phase[p]:,}" for p in PHASES if p in of_phase)
    if not found.view.chosen.all():  # of a part, a layer alone would also be what is outside it
        parts = [s for s in parts if s.phase and s.layer] or parts
    fits = [s for s in parts if s.requests <= most]
    command = f"fathom-trace export FILE {exporter.replace('_', '-')}"
    if fits:
        layers = [s for s in fits if s.layer and not s.phase][:3]
        named = ", ".join(f"{_quoted(s.layer)} {s.requests:,}" for s in layers)
        largest = f"; the largest layers that fit: {named}" if named else ""
        advice = f"the largest part that fits has {fits[0].requests:,}: {command} {fits[0].arguments}"
    else:
        largest = ""
        least = parts[-1]
        advice = (
            f"no layer fits; the smallest part has {least.requests:,}: {command} {least.arguments} --set max_requests={least.requests}"
        )
    raise ExportError(f"{whole}; by phase: {by_phase}{largest}; {advice}")
