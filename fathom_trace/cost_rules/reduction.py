"""Reductions. A reduction of m elements counts m operations, one for each element that enters an accumulator, not m - 1 for each output:
the accumulator starts from zero (as TensorFlow's does), and the count then does not depend on which axes are reduced.
"""

from __future__ import annotations

from math import ceil, log2

from fathom_trace.cost_rules.call import INPUT, Call, Part, Traffic, rule, whole_inputs, whole_outputs

_ACCUMULATE = "each input element enters an accumulator or a comparison"
_GATHERED = Traffic(
    "the rows that the indices name and the other inputs once + each output once",
    lambda c: [
        Part(INPUT, 0, _gathered(c) * (c.inputs[0].size_bytes // max(c.inputs[0].elements, 1))),
        *whole_inputs(c, (0,)),
    ],
    whole_outputs,
)


def _gathered(call: Call) -> int:
    """Elements of the rows that input 1 names."""
    rows = call.inputs[0].shape[0]
    return call.read_elements(1) * (call.read_elements(0) // rows if rows else 0)


def _top(call: Call) -> int:
    kept = call.outputs[0].shape[-1]
    return call.read_elements() * ceil(log2(kept + 1))


RULES = (
    rule("Sum Prod Max Min All Any ArgMax ArgMin BiasAddGrad Cumsum Cumprod", "m", lambda c: c.read_elements(), _ACCUMULATE),
    rule("Mean", "m + n", lambda c: c.read_elements() + c.elements(), f"{_ACCUMULATE}; each output is divided"),
    rule("EuclideanNorm", "2 m + n", lambda c: 2 * c.read_elements() + c.elements(), "squares, their sum, a root per output"),
    rule("L2Loss", "2 m + 1", lambda c: 2 * c.read_elements() + 1, "squares, their sum, one division by 2"),
    rule("CumulativeLogsumexp", "5 m", lambda c: 5 * c.read_elements(), "max, difference, exp, log1p, sum"),
    rule("SegmentSum SegmentSumV2 SegmentProd SegmentProdV2 SegmentMax SegmentMaxV2 SegmentMin SegmentMinV2 UnsortedSegmentSum"
         " UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin", "m", lambda c: c.read_elements(), _ACCUMULATE),
    rule("SegmentMean", "m + n", lambda c: c.read_elements() + c.elements(), f"{_ACCUMULATE}; each output is divided"),
    rule("SparseSegmentSum SparseSegmentSumWithNumSegments SparseSegmentSumGrad", "indices x row elements", _gathered,
         "each gathered element is added", _GATHERED),
    rule("SparseSegmentMeanGrad SparseSegmentSqrtNGrad", "2 indices x row elements", lambda c: 2 * _gathered(c),
         "each gathered element is scaled and added", _GATHERED),
    rule("SparseSegmentMean SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments",
         "indices x row elements + n", lambda c: _gathered(c) + c.elements(),
         "each gathered element is added; each output is scaled", _GATHERED),
    rule("TopK TopKV2", "m ceil(log2(k + 1))", _top, "a heap of k: at most that many comparisons per element (an upper bound)"),
    rule("InTopK InTopKV2", "m", lambda c: c.read_elements(), "each prediction is compared with the target's"),
    rule("Bincount DenseBincount", "m", lambda c: c.read_elements(), "one addition per element"),
)  # fmt: skip
