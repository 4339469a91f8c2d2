"""Trace files taken apart and put together by hand, and a trace with times as a machine produces them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from fathom_trace.builder import TraceBuilder
from fathom_trace.generated import trace_pb2
from fathom_trace.trace import Trace

OPS = ("Conv2D", "MatMul", "Relu", "BiasAdd", "Mul", "AddV2", "Conv2DBackpropFilter", "Cast")


def with_jitter(executions: int, steps: int, seed: int = 0) -> Trace:
    """Times as one worker of TensorFlow produces them, a random chain of ops, ns.

    Kernels of 3 us in the median, spread over two decades, and 25% from step to step; 2 us between ops and 0.9 us after each, both noisy;
    7 of 10 ops are queued when the one before is about to be done, the others some us later.
    """
    rng = np.random.default_rng(seed)
    builder = TraceBuilder()
    for i in range(executions):
        name = f"block{i // 9}/layer{i // 3}/{OPS[i % 8]}_{i}"
        before = [(i - k, 0) for k in (2, 1) if i >= k]
        node = builder.node(name, OPS[i % 8], inputs=before, attributes={"T": "float32", "k": i % 7}, device="/device:CPU:0")
        inputs = [builder.tensor(e) for e, _ in before]
        builder.execution(node, inputs=inputs, outputs=[("float32", [8, 16, 16, int(rng.integers(1, 64))])])
    structure = builder.end_structure()
    kernel = np.exp(rng.normal(8, 1.6, executions))
    for step in range(steps):
        kernels = kernel * np.exp(rng.normal(0, 0.25, executions))
        gaps, tails = 2000 * np.exp(rng.normal(0, 0.5, executions)), 900 * np.exp(rng.normal(0, 0.4, executions))
        done = np.cumsum(gaps + kernels + tails).astype(np.int64)
        end = (done - tails).astype(np.int64)
        start = (end - kernels).astype(np.int64)
        before_ns = np.concatenate([[0], done[:-1]])
        late = np.where(rng.random(executions) < 0.7, -40, rng.exponential(5000, executions)).astype(np.int64)
        scheduled = np.minimum(before_ns + late, start)
        builder.step(
            structure, scheduled=scheduled, start=start, end=end, done=done, origin_ns=1_796_026_610_255_867_000 + step * 10**9
        )
    return builder.build({"workload": "jitter"})


def messages(path: Path) -> list[bytes]:
    """The records of a file, split by hand: a varint length before each."""
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        length = shift = 0
        while True:
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(data[position : position + length])
        position += length
    return found


def write_records(path: Path, payloads: list[bytes]) -> None:
    """A file of these messages with an `End` that agrees with them."""
    body = b"".join(varint(len(p)) + p for p in payloads)
    end = trace_pb2.Record(end=trace_pb2.End(size_bytes=len(body), crc32=zlib.crc32(body))).SerializeToString()
    path.write_bytes(body + varint(len(end)) + end)


def varint(value: int) -> bytes:
    """`value` in groups of seven bits, the lowest first, all but the last marked."""
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])
