"""Fusing neighbours: `fuse:BiasAdd+Relu` makes one execution of each producer and consumer that fit, dispatched once.

A chain is fused where each execution reads an output of the one before, on the same device, and nothing else waits for the one before:
otherwise its output would have to be written anyway. The fused execution waits for everything that its parts waited for, and takes

* the time of its longest part (the default): the others hide behind it, as an epilogue does behind a product;
* with a bandwidth, `fuse:BiasAdd+Relu@20GB/s`, the time of all parts less what writing and reading each intermediate takes,
  2 x its bytes / bandwidth, and no less than the longest part.

It is dispatched with the gap of its first part. In a replay it stands where the last part stood.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import OptionError, ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.units import NS_PER_S, format_bytes, parse_quantity
from fathom_trace.whatif.recording import Bool, Float
from fathom_trace.whatif.selection import Executed, Selection, parse_selection

PREFIX = "fuse:"


@dataclass(frozen=True)
class Fuse:
    """Chains of executions, one of each selection, become one."""

    parts: tuple[Selection, ...]
    bandwidth_bytes_per_s: float | None = None
    """Of the memory that intermediates no longer pass through; None: the longest part decides."""

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ScenarioError(f"'{self}' fuses nothing; name a producer and its consumer, for example fuse:BiasAdd+Relu")
        if self.bandwidth_bytes_per_s is not None and not 0 < self.bandwidth_bytes_per_s < np.inf:
            raise ScenarioError(f"'{self}': a bandwidth is above 0 and finite, for example fuse:BiasAdd+Relu@20GB/s")

    def __str__(self) -> str:
        rate = "" if self.bandwidth_bytes_per_s is None else f"@{self.bandwidth_bytes_per_s:.12g}B/s"
        return PREFIX + "+".join(map(str, self.parts)) + rate

    @property
    def model(self) -> str:
        """How long a fused execution takes, for a note."""
        longest = "the time of its longest part"
        if self.bandwidth_bytes_per_s is None:
            return f"'{self}': each takes {longest}"
        saved = format_bytes(self.bandwidth_bytes_per_s)
        return f"'{self}': each takes the time of its parts less what its intermediates took at {saved}/s, and no less than {longest}"

    def apply(self, among: Executed, duration_ns: Float, gap_ns: Float) -> Bool:
        """Put the time of each chain on its last part and its dispatch with it."""
        trace = among.source(f"'{self}'")
        chains = find_chains(trace, among.structure, [part.mask(among) for part in self.parts])
        if not chains:
            raise ScenarioError(f"'{self}' fuses nothing: in no chain of these does each part alone read the one before")
        mask = np.zeros(len(among), bool)
        for chain in chains:
            times = duration_ns[chain]
            fused = float(times.max())
            if self.bandwidth_bytes_per_s is not None:
                passed = sum(_bytes_between(trace, among.first + a, among.first + b) for a, b in pairwise(chain.tolist()))
                fused = max(fused, float(times.sum()) - 2 * passed / self.bandwidth_bytes_per_s * NS_PER_S)
            gap = gap_ns[chain[0]]
            duration_ns[chain], gap_ns[chain] = 0.0, 0.0
            duration_ns[chain[-1]], gap_ns[chain[-1]] = fused, gap
            mask[chain] = True
        return mask


def parse_fuse(text: str) -> Fuse:
    """The fusion that `fuse:A+B` or `fuse:A+B@BANDWIDTH` describes.

    Raises:
        ScenarioError: it is malformed.
    """
    names, at, rate = text.strip().removeprefix(PREFIX).partition("@")
    bandwidth = None
    if at:
        try:
            bandwidth = parse_quantity(rate.strip().removesuffix("/s"), "B")
        except OptionError:
            raise ScenarioError(f"'{text}': '{rate}' is no bandwidth; write for example fuse:BiasAdd+Relu@20GB/s") from None
    parts = [part.strip() for part in names.split("+")]
    if not all(parts):
        raise ScenarioError(f"'{text}' lacks a part; write for example fuse:BiasAdd+Relu")
    return Fuse(tuple(parse_selection(part) for part in parts), bandwidth)


def find_chains(trace: Trace, structure: int, masks: list[Bool]) -> list[NDArray[np.int64]]:
    """The chains of a structure, local numbers each: one execution of each mask, no execution in two chains."""
    sole, has_data = _sole_consumers(trace, structure)
    devices = trace.nodes.device[trace.executions.node[trace.structure_rows(structure)]]
    taken = np.zeros(len(sole), bool)
    chains = []
    for first in np.flatnonzero(masks[0]).tolist():
        chain = [first]
        for mask in masks[1:]:
            last = chain[-1]
            then = int(sole[last])
            if then < 0 or not has_data[last] or not mask[then] or devices[then] != devices[first]:
                break
            chain.append(then)
        if len(chain) == len(masks) and not taken[chain].any():
            taken[chain] = True
            chains.append(np.array(chain, np.int64))
    return chains


def _sole_consumers(trace: Trace, structure: int) -> tuple[NDArray[np.int64], Bool]:
    """For each execution the only one that waits for it (-1: none or several), and whether that one reads an output of it."""
    depends = trace.dependencies(structure)
    count = len(depends.offsets) - 1
    consumer = np.repeat(np.arange(count), np.diff(depends.offsets))
    waiting = np.bincount(depends.producer, minlength=count)
    sole = np.full(count, -1, np.int64)
    sole[depends.producer] = consumer
    sole[waiting != 1] = -1
    rows, executions = trace.structure_rows(structure), trace.executions
    data = slice(int(executions.input_offsets[rows.start]), int(executions.input_offsets[rows.stop]))
    read = np.zeros(count, bool)
    read[trace.tensors.execution[executions.input[data]] - rows.start] = True
    return sole, read


def _bytes_between(trace: Trace, producer: int, consumer: int) -> int:
    """Bytes of the outputs of one execution that another reads, each once."""
    tensors = {t for t in trace.inputs(consumer) if int(trace.tensors.execution[t]) == producer}
    return int(sum(trace.tensors.size_bytes[t] for t in tensors))
