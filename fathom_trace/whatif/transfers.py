"""Copies between a host and an accelerator, put into a recording as executions of their own: each follows the execution that made the
tensor, and whoever needs it on the other side waits for the copy instead. A copy holds a worker while it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fathom_trace.trace import Dependencies, distinct
from fathom_trace.whatif.recording import Float, Int64, Recording

ON_ACCELERATOR, ON_LINK = 0, 1
"""What executions need for themselves (`Recording.exclusive`)."""

Kind = TypeVar("Kind", bound="np.generic[Any]")


@dataclass(frozen=True, eq=False)
class Transfers:
    """Copies over a link, `[transfers]`, ordered by producer; the consumers of transfer `k` are `consumer[offsets[k]:offsets[k + 1]]`.

    Executions are local numbers. A copy without consumers, such as of a variable for the next step, still takes its time.
    """

    producer: Int64
    time_ns: Float
    size_bytes: Int64
    offsets: Int64
    consumer: Int64

    def __len__(self) -> int:
        return len(self.producer)

    @property
    def total_ns(self) -> float:
        """Time of all copies."""
        return float(self.time_ns.sum())

    @property
    def total_bytes(self) -> int:
        """Bytes of all copies."""
        return int(self.size_bytes.sum())


def places(count: int, transfers: Transfers) -> tuple[Int64, Int64]:
    """Where `count` executions and the transfers stand once each transfer is right behind its producer."""
    executions = np.arange(count) + np.searchsorted(transfers.producer, np.arange(count), "left")
    return executions.astype(np.int64), transfers.producer + np.arange(len(transfers)) + 1


def with_transfers(recording: Recording, transfers: Transfers) -> Recording:
    """The recording with the copies as executions; `places` says where everything went."""
    count, new = len(recording), len(transfers)
    at, copies = places(count, transfers)
    depends = recording.dependencies
    consumer = np.repeat(np.arange(count), np.diff(depends.offsets))
    copy = np.repeat(np.arange(new), np.diff(transfers.offsets))
    replaced = transfers.consumer * count + transfers.producer[copy]
    kept = ~np.isin(consumer * count + depends.producer, replaced)
    waits = np.concatenate([at[consumer[kept]], at[transfers.consumer], copies])
    waits_for = np.concatenate([at[depends.producer[kept]], copies[copy], at[transfers.producer]])
    pairs = distinct(waits * (count + new) + waits_for)
    waits, waits_for = pairs // (count + new), pairs % (count + new)
    offsets = np.searchsorted(waits, np.arange(count + new + 1)).astype(np.int64)

    def spread(values: NDArray[Kind], of_copies: NDArray[Kind]) -> NDArray[Kind]:
        result: NDArray[Kind] = np.empty(count + new, values.dtype)
        result[at], result[copies] = values, of_copies
        return result

    nothing = np.zeros(new)
    turn = np.empty(count, np.int64)
    turn[recording.order] = np.arange(count)
    # A copy takes its turn right behind its producer; copies of one producer keep their order.
    order = np.lexsort((spread(np.zeros(count), np.arange(1.0, new + 1)), spread(turn, turn[transfers.producer])))
    return replace(
        recording,
        dependencies=Dependencies(offsets, waits_for),
        duration_ns=spread(recording.duration_ns, transfers.time_ns),
        tail_ns=spread(recording.tail_ns, nothing),
        gap_ns=spread(recording.gap_ns, nothing),
        order=order.astype(np.int64),
        lane=spread(recording.lane, recording.lane[transfers.producer]),
        timed=spread(recording.timed, np.ones(new, bool)),
        exclusive=spread(np.full(count, -1, np.int64) if recording.exclusive is None else recording.exclusive, np.full(new, ON_LINK)),
    )
