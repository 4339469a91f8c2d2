"""Small hand-made traces that several tests share."""

from __future__ import annotations

import numpy as np

from fathom_trace.builder import TraceBuilder
from fathom_trace.trace import Trace


def diamond() -> Trace:
    """Case G1: A 10 us -> (B 50 us parallel to C 30 us) -> D 10 us, as two workers ran it."""
    builder = TraceBuilder()
    nodes = {}
    for name, parents in (("A", ""), ("B", "A"), ("C", "A"), ("D", "BC")):
        nodes[name] = builder.node(name, f"Op{name}", inputs=[(nodes[p], 0) for p in parents])
    executions: dict[str, int] = {}
    for name, parents in (("A", ""), ("B", "A"), ("C", "A"), ("D", "BC")):
        inputs = [builder.tensor(executions[p]) for p in parents]
        executions[name] = builder.execution(nodes[name], inputs=inputs, outputs=[("float32", [2, 3])])
    structure = builder.end_structure()
    builder.step(structure, start=[0, 10_000, 10_000, 60_000], done=[10_000, 60_000, 40_000, 70_000], lane=[0, 0, 1, 0])
    return builder.build({"workload": "diamond", "stage": "source", "inter_threads": 2})


def loop() -> Trace:
    """A `while` loop in two steps of different structure (two trips, then one), and an untraced step: what straight lines lack."""
    builder = TraceBuilder()
    frame = builder.add("frames", frame_name=builder.string("while"), kind=0, parent=-1)
    start = builder.node("x", "Const", attributes={"dtype": "float32"})
    merge = builder.node("while/merge", "Merge", inputs=[(start, 0), (2, 0)], frame=frame)
    body = builder.node("while/body/MatMul", "MatMul", inputs=[(merge, 0)], frame=frame)
    after = builder.node("y", "Identity", inputs=[(merge, 0)])
    builder.constant(start, np.array(2.5, np.float32))
    outputs = [("float32", [2, 4])]
    for trips in (2, 1):
        last = builder.execution(start, outputs=outputs)
        for i in range(trips + 1):
            path = builder.path(0, frame, 0, i)
            last = builder.execution(merge, inputs=[builder.tensor(last)], outputs=outputs, path=path)
            if i < trips:
                last = builder.execution(body, inputs=[builder.tensor(last)], outputs=outputs, path=path)
        builder.execution(after, inputs=[builder.tensor(last)], outputs=outputs)
        times = [10 * k for k in range(2 * trips + 3)]
        builder.step(builder.end_structure(), start=times, done=[t + 7 for t in times])
    builder.untraced_step(55)
    return builder.build({"workload": "loop", "stage": "source", "inter_threads": 1})


def dense() -> Trace:
    """A layer `fc`: a product [2, 3] x [3, 5] of 30 us, then a ReLU of 10 us, on one worker."""
    builder = TraceBuilder()
    a, b = builder.node("a", "Placeholder"), builder.node("b", "Placeholder")
    attributes = {"transpose_a": False, "transpose_b": False, "T": "float32"}
    product = builder.node("fc/MatMul", "MatMul", inputs=[(a, 0), (b, 0)], attributes=attributes)
    relu = builder.node("fc/Relu", "Relu", inputs=[(product, 0)], attributes={"T": "float32"})
    operands = [builder.execution(a, outputs=[("float32", [2, 3])]), builder.execution(b, outputs=[("float32", [3, 5])])]
    middle = builder.execution(product, inputs=[builder.tensor(e) for e in operands], outputs=[("float32", [2, 5])])
    builder.execution(relu, inputs=[builder.tensor(middle)], outputs=[("float32", [2, 5])])
    builder.step(builder.end_structure(), start=[0, 0, 0, 30_000], done=[0, 0, 30_000, 40_000])
    return builder.build({"workload": "dense", "mode": "inference", "stage": "source", "inter_threads": 1})
