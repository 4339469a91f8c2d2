"""Does the trace of a real VGG-19 training step say what arithmetic says? All 143.7 million parameters, one image, one traced step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fathom_trace.capture import CaptureRequest, Plan, capture_workload
from fathom_trace.checks import check
from fathom_trace.costs import costs
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture
pytest.importorskip("tensorflow")

# Configuration E of the VGG paper, table 1: (side of the square output, channels in, channels out) of each 3x3 convolution
CONVOLUTIONS = [
    (224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128),
    (56, 128, 256), (56, 256, 256), (56, 256, 256), (56, 256, 256),
    (28, 256, 512), (28, 512, 512), (28, 512, 512), (28, 512, 512),
    (14, 512, 512), (14, 512, 512), (14, 512, 512), (14, 512, 512),
]  # fmt: skip
DENSE = [(7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)]
CONVOLUTION_MACS = sum(side * side * 9 * c * k for side, c, k in CONVOLUTIONS)
FIRST_MACS = 224 * 224 * 9 * 3 * 64
DENSE_MACS = sum(i * o for i, o in DENSE)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return capture_workload(CaptureRequest("vgg", batch_size=1, plan=Plan(steps=1, warmup=0)))


def macs_by_op(trace: Trace) -> Counter[str]:
    found: Counter[str] = Counter()
    priced = costs(trace)
    assert priced.macs_known.all()
    for execution, macs in enumerate(priced.macs.tolist()):
        found[trace.node_ops[int(trace.executions.node[execution])]] += macs
    return found


def test_arithmetic_of_this_file_is_the_published_total() -> None:
    assert CONVOLUTION_MACS + DENSE_MACS == 19_632_062_464


def test_parameters(trace: Trace) -> None:
    trainable = trace.variables.trainable
    assert trace.variables.size_bytes[trainable].sum() == 4 * 143_667_240
    assert np.count_nonzero(trace.variables.slot_of >= 0) == np.count_nonzero(trainable) == 38, "a momentum for each"


def test_invariants(trace: Trace) -> None:
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges) == (0, 0, 0)
    assert found.complete
    assert found.recorded == found.produced


def test_one_execution_for_each_layer_and_gradient(trace: Trace) -> None:
    ran = Counter(trace.node_ops[n] for n in trace.executions.node.tolist())
    assert (ran["Conv2D"], ran["Conv2DBackpropFilter"], ran["Conv2DBackpropInput"]) == (16, 16, 15)
    assert ran["MatMul"] == 3 + 3 + 3, "forward, weight gradient, input gradient"
    assert ran["ResourceApplyMomentum"] == 38


def test_macs_are_exact(trace: Trace) -> None:
    macs = macs_by_op(trace)
    assert macs["Conv2D"] == CONVOLUTION_MACS
    assert macs["Conv2DBackpropFilter"] == CONVOLUTION_MACS, "a filter gradient costs what its forward layer does"
    assert macs["Conv2DBackpropInput"] == CONVOLUTION_MACS - FIRST_MACS, "the image needs no gradient"
    assert macs["MatMul"] == 3 * DENSE_MACS
    assert macs["Conv2D"] + macs["MatMul"] // 3 == 19_632_062_464
    assert sum(macs.values()) == 3 * (CONVOLUTION_MACS + DENSE_MACS) - FIRST_MACS


def test_most_of_the_span_is_op_time(trace: Trace) -> None:
    """With one worker, the paper's op times of a traced step add up to nearly its span (no lower, no higher)."""
    for step in trace.traced_steps:
        share = trace.durations(step).sum() / trace.steps.span_ns[step]
        assert 0.90 <= share <= 1.0
