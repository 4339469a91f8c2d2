"""The loops of `replay.py` compiled by numba (the extra `fast`); where numba is not installed they are plain Python, and of no use.

Each does the same float64 operations in the same order as its plain loop, without fused or reordered arithmetic, so that results are
equal to the last bit. Compiled code is kept beside this file, or in the user's cache where that is not writable.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fathom_trace.whatif.recording import Bool, Float, Int64

Function = TypeVar("Function", bound=Callable[..., Any])

IS_COMPILED = importlib.util.find_spec("numba") is not None


def compiled(function: Function) -> Function:
    """The function compiled by numba; itself where that is not installed."""
    if not IS_COMPILED:
        return function
    made: Function = importlib.import_module("numba").njit(cache=True)(function)
    return made


WIDTH = 16
"""Scenarios that one pass over the dependencies takes side by side: two cache lines of their ends an execution."""

FEW = 5
"""Up to so many scenarios, one after the other is faster than side by side."""


def longest_paths(offsets: Int64, producer: Int64, base: Float, tail: Float, duration: Float, gap: Float) -> Float:
    """Makespan on unlimited workers of each scenario, `[scenarios]`, for durations `[scenarios, executions]`.

    `gap` is `[1, executions]` for all, or `[scenarios, executions]`; `base` and `tail` are the recording's.
    """
    left = len(duration) % WIDTH
    wide = len(duration) - left if left <= FEW else len(duration)
    own = len(gap) > 1
    result = np.zeros(len(duration))
    if wide:
        result[:wide] = _side_by_side(offsets, producer, base, tail, duration[:wide], gap[:wide] if own else gap)
    for k in range(wide, len(duration)):
        result[k] = _alone(offsets, producer, base, tail, duration[k], gap[k if own else 0])
    return result


@compiled
def unlimited(offsets: Int64, producer: Int64, body: Float, gap: Float) -> tuple[Float, Float]:
    """Starts and ends on unlimited workers: start = max(0, ends of dependencies) + gap, end = start + body."""
    start, end = np.empty(len(body)), np.empty(len(body))
    for i in range(len(body)):
        free = 0.0
        for edge in range(offsets[i], offsets[i + 1]):
            ended = end[producer[edge]]
            free = ended if ended > free else free
        start[i] = free + gap[i]
        end[i] = start[i] + body[i]
    return start, end


@compiled
def path_to(last: int, offsets: Int64, producer: Int64, start: Float, end: Float, gap: Float) -> Int64:
    """The executions that `last` waited for, one after the other, from itself back: of several that end last, the first."""
    path = np.empty(len(start), np.int64)
    length, current = 0, last
    while True:
        path[length] = current
        length += 1
        binding, latest = -1, 0.0
        for edge in range(offsets[current], offsets[current + 1]):
            ended = end[producer[edge]]
            if binding < 0 or ended > latest:
                binding, latest = producer[edge], ended
        if binding < 0 or start[current] > max(latest, 0.0) + gap[current]:
            return path[:length]
        current = binding


@compiled
def _alone(offsets: Int64, producer: Int64, base: Float, tail: Float, duration: Float, gap: Float) -> float:
    """Makespan of one scenario on unlimited workers."""
    end, last = np.empty(len(duration)), 0.0
    for i in range(len(duration)):
        free = 0.0
        for edge in range(offsets[i], offsets[i + 1]):
            ended = end[producer[edge]]
            free = ended if ended > free else free
        body = duration[i]
        if tail[i] != 0.0:
            body = duration[i] - tail[i] * (duration[i] / base[i] if base[i] > 0.0 else 1.0)
        body = body if body > 0.0 else 0.0
        start = free + gap[i]
        end[i] = start + body
        done = start + duration[i]
        last = done if done > last else last
    return last


@compiled
def _side_by_side(offsets: Int64, producer: Int64, base: Float, tail: Float, duration: Float, gap: Float) -> Float:
    """`longest_paths`, `WIDTH` scenarios at a time."""
    scenarios, count = duration.shape
    result = np.zeros(scenarios)
    end = np.empty((count, WIDTH))
    free, best = np.empty(WIDTH), np.empty(WIDTH)
    for first in range(0, scenarios, WIDTH):
        for b in range(WIDTH):
            best[b] = 0.0
        for i in range(count):
            for b in range(WIDTH):
                free[b] = 0.0
            for edge in range(offsets[i], offsets[i + 1]):
                p = producer[edge]
                for b in range(WIDTH):
                    free[b] = end[p, b] if end[p, b] > free[b] else free[b]
            for b in range(WIDTH):
                s = min(first + b, scenarios - 1)  # beyond the last, the last again
                took = duration[s, i]
                body = took
                if tail[i] != 0.0:
                    body = took - tail[i] * (took / base[i] if base[i] > 0.0 else 1.0)
                body = body if body > 0.0 else 0.0
                start = free[b] + gap[s if gap.shape[0] > 1 else 0, i]
                end[i, b] = start + body
                done = start + took
                best[b] = done if done > best[b] else best[b]
        for b in range(min(WIDTH, scenarios - first)):
            result[first + b] = best[b]
    return result


@compiled
def paths_ahead(offsets: Int64, consumer: Int64, gap: Float, duration: Float, body: Float) -> Float:
    """The longest path from each execution on, itself included, `[executions]`; the consumers of each as CSR."""
    count = len(duration)
    ahead = gap + duration
    for i in range(count - 1, -1, -1):
        if offsets[i] == offsets[i + 1]:
            continue
        longest = ahead[consumer[offsets[i]]]
        for edge in range(offsets[i] + 1, offsets[i + 1]):
            value = ahead[consumer[edge]]
            longest = value if value > longest else longest
        longest = (gap[i] + body[i]) + longest
        ahead[i] = longest if longest > ahead[i] else ahead[i]
    return ahead


@compiled
def _push(heap: Int64, size: int, value: int) -> int:
    """Put a value on a heap of whole numbers; returns the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= value:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = value
    return size + 1


@compiled
def _pop(heap: Int64, size: int) -> int:
    """Take the least value away and return it; the heap is one shorter."""
    least, value = heap[0], heap[size - 1]
    size -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
    return int(least)


@compiled
def _push_event(times: Float, codes: Int64, size: int, time: float, code: int) -> int:
    """Put an event on the heap of events, ordered by time and then code; returns the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and codes[parent] <= code):
            break
        times[at], codes[at] = times[parent], codes[parent]
        at = parent
    times[at], codes[at] = time, code
    return size + 1


@compiled
def _pop_event(times: Float, codes: Int64, size: int) -> int:
    """Take the first event away and return its code; the heap is one shorter."""
    first, time, code = codes[0], times[size - 1], codes[size - 1]
    size -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (times[right] < times[child] or (times[right] == times[child] and codes[right] < codes[child])):
            child = right
        if time < times[child] or (time == times[child] and code <= codes[child]):
            break
        times[at], codes[at] = times[child], codes[child]
        at = child
    times[at], codes[at] = time, code
    return int(first)


@compiled
def list_makespan(
    offsets: Int64, consumer: Int64, waits: Int64, order: Int64, needs: Int64, gap: Float, duration: Float, body: Float, workers: int
) -> float:
    """Makespan of `replay_workers`: `order` is the list, first execution first; the consumers of each execution as CSR.

    `needs` is `Recording.exclusive`, of length 0 where nothing is.
    """
    count = len(order)
    rank = np.empty(count, np.int64)
    for place in range(count):
        rank[order[place]] = place
    left = waits.copy()
    ready, ready_size = np.empty(count, np.int64), 0
    for i in range(count):
        if left[i] == 0:
            ready_size = _push(ready, ready_size, rank[i])
    kinds = needs.max() + 1 if len(needs) else 0
    taken: Bool = np.zeros(kinds, np.bool_)
    queues, queue_sizes = np.empty((kinds, count), np.int64), np.zeros(kinds, np.int64)
    free = min(workers, max(count, 1))
    times, codes, events = np.empty(2 * count), np.empty(2 * count, np.int64), 0
    has_tail: Bool = np.zeros(count, np.bool_)
    now, last = 0.0, 0.0
    while ready_size or events:
        while ready_size and free:
            i = order[_pop(ready, ready_size)]
            ready_size -= 1
            if kinds and needs[i] >= 0:
                if taken[needs[i]]:
                    queue_sizes[needs[i]] = _push(queues[needs[i]], queue_sizes[needs[i]], rank[i])
                    continue
                taken[needs[i]] = True
            free -= 1
            start = now + gap[i]
            end, done = start + body[i], start + duration[i]
            last = done if done > last else last
            has_tail[i] = end < done
            if has_tail[i]:
                events = _push_event(times, codes, events, end, i)
            events = _push_event(times, codes, events, done, ~i)
            if times[0] <= now:
                break
        if not events:
            continue
        now = times[0]
        while events and times[0] <= now:
            i = _pop_event(times, codes, events)
            events -= 1
            if i < 0:
                i = ~i
                free += 1
                if kinds and needs[i] >= 0:
                    taken[needs[i]] = False
                    if queue_sizes[needs[i]]:
                        ready_size = _push(ready, ready_size, _pop(queues[needs[i]], queue_sizes[needs[i]]))
                        queue_sizes[needs[i]] -= 1
                if has_tail[i]:
                    continue
            for edge in range(offsets[i], offsets[i + 1]):
                c = consumer[edge]
                left[c] -= 1
                if left[c] == 0:
                    ready_size = _push(ready, ready_size, rank[c])
    return last
