"""The loop nest of a two-operand Einsum: a batched matrix product, read off its equation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fathom_trace.errors import TraceError
from fathom_trace.loops.nests import BATCHED_GEMM, GEMM, GemmNest

Shape = tuple[int, ...]


def einsum_nest(equation: str, inputs: Sequence[Shape], result: Shape) -> GemmNest | str:
    """The nest of `equation` over two operands, or why it is no matrix product.

    Labels in both operands and in the result are batch, those of one operand and the result are rows or columns, those of both
    operands only are contracted. Labels of one operand only are summed up before the product, as TensorFlow does.
    """
    terms, arrow, output = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if not arrow or len(operands) != 2 or len(inputs) != 2:
        return f"Einsum '{equation}' is not a product of two operands"
    named = [_labels(term, len(shape)) for term, shape in zip(operands, inputs, strict=True)]
    left, right = (dict(zip(labels, shape, strict=True)) for labels, shape in zip(named, inputs, strict=True))
    kept = _labels(output, len(result))
    if any(len(set(labels)) != len(labels) for labels in (*named, kept)):
        return f"Einsum '{equation}' takes a diagonal"
    for label in left.keys() & right.keys():
        if left[label] != right[label] and 1 not in (left[label], right[label]):
            raise TraceError(f"equation '{equation}' pairs extent {left[label]} with {right[label]}")
    extents = {label: left[label] if left.get(label, 1) != 1 else right.get(label, 1) for label in (*named[0], *named[1])}
    if tuple(extents.get(label, -1) for label in kept) != result:
        raise TraceError(f"equation '{equation}' on {inputs[0]} and {inputs[1]} does not give {result}")
    batch = [label for label in kept if label in left and label in right]
    rows = [label for label in kept if label not in right]
    columns = [label for label in kept if label not in left]
    contracted = [label for label in named[0] if label in right and label not in kept]
    if not rows and not columns and not contracted:
        return f"Einsum '{equation}' is elementwise"
    m, n, k = (prod(extents[label] for label in labels) for labels in (rows, columns, contracted))
    left_batch, right_batch = tuple(left[label] for label in batch), tuple(right[label] for label in batch)
    return GemmNest(BATCHED_GEMM if batch else GEMM, m, n, k, left_batch, right_batch)


def _labels(term: str, rank: int) -> list[str]:
    """One label per dimension; those under an ellipsis are numbered from the right, so that they broadcast."""
    before, ellipsis, after = term.partition("...")
    if not ellipsis:
        before, after = term, ""
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not ellipsis):
        raise TraceError(f"term '{term}' does not label {rank} dimensions")
    return [*before, *(f"...{i}" for i in range(hidden, 0, -1)), *after]
