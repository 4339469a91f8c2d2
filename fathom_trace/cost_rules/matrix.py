"""Convolutions and matrix products, and what is fused into them. MACs are dense: positions in the padding count."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fathom_trace.cost_rules.call import Call, Count, Rule, UnknownPartError, none, rule

_CONV = "each output element sums over kernel positions and the input channels of its group (as many as the filter has)"
_DEPTHWISE = "each output element sums over kernel positions of one channel"
_GRADIENT = "the forward pass's products, summed over other indices: as many MACs, whatever stride and padding"

_PER_OUTPUT = "n x filter elements / output channels"
_PER_GRADIENT = "elements of the output's gradient x filter elements / output channels"

_FUSED = {
    "BiasAdd": 1, "Add": 1, "Sum": 1, "Mul": 1, "Relu": 1, "Relu6": 1, "Elu": 1, "LeakyRelu": 1, "Tanh": 1, "Sigmoid": 1,
    "_MklLeakyRelu": 1, "_FusedSwish": 2, "_MklSwish": 2, "FusedBatchNorm": 3, "GeluExact": 5, "GeluApproximate": 9, "_FusedHardSwish": 4,
}  # fmt: skip
_FUSED_TEXT = (
    "n for each fused BiasAdd, Add, Mul and activation (Swish 2 n, FusedBatchNorm 3 n + 3 channels, Gelu exact 5 n, approximate 9 n,"
    " HardSwish 4 n)"
)


def _taps(filter_shape: tuple[int, ...], kept: int) -> int:
    """Products summed for one output element: the filter without its last `kept` axes."""
    return prod(filter_shape[: len(filter_shape) - kept])


def _forward(kept: int) -> Count:
    return lambda c: c.elements() * _taps(_filter_shape(c), kept)


def _filter_shape(call: Call) -> tuple[int, ...]:
    """Filter as [kernel..., input channels of a group, output channels]."""
    shape = call.inputs[1].shape
    if str(call.attributes.get("filter_format", "HWIO")).startswith("OI"):
        return (*shape[2:], shape[1], shape[0])
    return shape


def _input_gradient(kept: int) -> Count:
    return lambda c: c.read_elements(2) * _taps(c.inputs[1].shape, kept)


def _filter_gradient(kept: int) -> Count:
    return lambda c: c.read_elements(2) * _taps(c.outputs[0].shape, kept)


def _product(left: str) -> Count:
    """M N K: M and N are in the output, K is the axis of input 0 that the attribute `left` says."""
    return lambda c: c.elements() * c.inputs[0].shape[-2 if c.flag(left) else -1]


def _fused(call: Call) -> int:
    """Operations of `fused_ops`.

    Raises:
        UnknownPartError: one of them has no formula.
    """
    names = call.attributes["fused_ops"]
    unknown = sorted(set(names) - set(_FUSED))
    if unknown:
        raise UnknownPartError(f"fused {', '.join(unknown)} has no formula")
    total = sum(_FUSED[name] for name in names) * call.elements()
    return total + (3 * call.read_elements(2) if "FusedBatchNorm" in names else 0)


def _sparse_product(call: Call) -> int:
    return call.read_elements(1) * call.outputs[0].shape[-1]


def _einsum(part: Callable[[dict[str, int], list[list[str]], list[str]], int]) -> Count:
    def count(call: Call) -> int:
        terms, arrow, result = str(call.attributes["equation"]).replace(" ", "").partition("->")
        if not arrow:
            raise ValueError("an equation without '->'")
        operands = [_labels(t, o.shape) for t, o in zip(terms.split(","), call.inputs, strict=True)]
        extents: dict[str, int] = {}
        for labels, operand in zip(operands, call.inputs, strict=True):
            for label, extent in zip(labels, operand.shape, strict=True):
                extents[label] = max(extents.get(label, 1), extent)
        return part(extents, operands, _labels(result, call.outputs[0].shape))

    return count


def _labels(term: str, shape: tuple[int, ...]) -> list[str]:
    """One label per axis; those of an ellipsis are numbered from the right, so that they broadcast."""
    before, ellipsis, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden and not ellipsis):
        raise ValueError(f"'{term}' does not label {len(shape)} axes")
    return [*before, *(f"...{i}" for i in range(hidden, 0, -1)), *after]


def _summed_first(operands: list[list[str]], result: list[str]) -> list[set[str]]:
    """Labels of each operand that are neither in the other nor in the result: TensorFlow sums over them before the product."""
    return [set(o) - set(result) - {x for j, p in enumerate(operands) if j != i for x in p} for i, o in enumerate(operands)]


def _is_elementwise(operands: list[list[str]], result: list[str]) -> bool:
    """True for two operands that are multiplied element by element: what is left of each are the result's labels."""
    left = [set(o) - s for o, s in zip(operands, _summed_first(operands, result), strict=True)]
    return all(labels == set(result) for labels in left)


def _einsum_macs(extents: dict[str, int], operands: list[list[str]], result: list[str]) -> int:
    if len(operands) != 2 or _is_elementwise(operands, result):
        return 0
    first = set().union(*_summed_first(operands, result))
    return prod(extent for label, extent in extents.items() if label not in first)


def _einsum_operations(extents: dict[str, int], operands: list[list[str]], result: list[str]) -> int:
    if len(operands) > 2:
        raise ValueError("more than two operands")
    summed = [
        prod(extents[label] for label in set(o)) if s else 0 for o, s in zip(operands, _summed_first(operands, result), strict=True)
    ]
    products = prod(extents[label] for label in result) if len(operands) == 2 and _is_elementwise(operands, result) else 0
    return sum(summed) + products


def _matrix(ops: str, macs_text: str, macs: Count, source: str, text: str = "0", operations: Count = none) -> Rule:
    return rule(ops, text, operations, source, macs_text=macs_text, macs=macs)


RULES = (
    _matrix("Conv Conv2D Conv3D _MklPadWithConv2D", _PER_OUTPUT, _forward(1), _CONV),
    _matrix("_FusedConv2D _FusedConv3D _MklPadWithFusedConv2D", _PER_OUTPUT, _forward(1), _CONV, _FUSED_TEXT, _fused),
    _matrix("_MklConv2DWithBias", _PER_OUTPUT, _forward(1), f"{_CONV}; the bias is added to every output", "n", lambda c: c.elements()),
    _matrix("DepthwiseConv2dNative", "n x kernel positions", _forward(2), _DEPTHWISE),
    _matrix("_FusedDepthwiseConv2dNative", "n x kernel positions", _forward(2), _DEPTHWISE, _FUSED_TEXT, _fused),
    _matrix("Conv2DBackpropInput Conv2DBackpropInputV2 Conv3DBackpropInput Conv3DBackpropInputV2",
            _PER_GRADIENT, _input_gradient(1), _GRADIENT),
    _matrix("Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2",
            _PER_GRADIENT, _filter_gradient(1), _GRADIENT),
    _matrix("_MklConv2DBackpropFilterWithBias", _PER_GRADIENT,
            _filter_gradient(1), f"{_GRADIENT}; the bias gradient sums the output's gradient", "elements of the output's gradient",
            lambda c: c.read_elements(2)),
    _matrix("DepthwiseConv2dNativeBackpropInput", "elements of the output's gradient x kernel positions", _input_gradient(2), _GRADIENT),
    _matrix("DepthwiseConv2dNativeBackpropFilter", "elements of the output's gradient x kernel positions", _filter_gradient(2), _GRADIENT),
    _matrix("MatMul", "n K", _product("transpose_a"), "K is the contracted axis of input 0, after transposes"),
    _matrix("SparseMatMul", "n K", _product("transpose_a"), "counted dense: zeros are multiplied too"),
    _matrix("_FusedMatMul", "n K", _product("transpose_a"), "K is the contracted axis of input 0, after transposes", _FUSED_TEXT, _fused),
    _matrix("BatchMatMul BatchMatMulV2 BatchMatMulV3", "n K", _product("adj_x"),
            "K is the contracted axis of input 0, after transposes; batch axes are broadcast, so the output counts"),
    _matrix("_MklFusedBatchMatMulV2", "n K", _product("adj_x"), "as BatchMatMulV2", _FUSED_TEXT, _fused),
    _matrix("SparseTensorDenseMatMul", "stored values x output columns", _sparse_product, "only the stored values are multiplied"),
    _matrix("Einsum",
            "extents of all labels but those of one operand only that the result lacks; 0 for one operand or an elementwise product",
            _einsum(_einsum_macs), "a contraction over labels; an outer product has K = 1",
            "elements of an operand summed over such labels; n for an elementwise product", _einsum(_einsum_operations)),
)  # fmt: skip
