"""Do the random layers cover what they say, and does the trace's loop nest agree with a brute-force count of every one?"""

from __future__ import annotations

from math import prod

import pytest

from fathom_trace.loops import ConvolutionNest, layers
from tests.brute_force import Case, Counted
from tests.random_layers import CountedProduct, Product, count_product, random_layers


def test_products_are_counted_by_their_definition() -> None:
    """Case B3: [2, 1, 7, 4] x [3, 4, 5] is 6 products of 140; the left has 2 * 28 elements, the right 3 * 20."""
    assert count_product(Product(7, 5, 4, (2, 1), (3,))) == CountedProduct(840, 56, 60, (2, 3, 7, 5))
    assert count_product(Product(6, 5, 4, left_transposed=True)) == CountedProduct(120, 24, 20, (6, 5))


def test_every_kind_is_there() -> None:
    _, found = random_layers(106)
    cases = [layer.case for layer in found if isinstance(layer.case, Case)]
    products = [layer.case for layer in found if isinstance(layer.case, Product)]
    assert (len(cases), len(products)) == (300, 60)
    for kind, there in (
        ("1-D", [c.size[0] == 1 and len(c.size) == 2 for c in cases]),
        ("3-D", [len(c.size) == 3 for c in cases]),
        ("batch", [c.batch > 1 for c in cases]),
        ("groups", [c.groups > 1 and c.channels > 1 for c in cases]),
        ("depthwise", [c.depthwise for c in cases]),
        ("dilation", [max(c.dilation) > 1 and max(c.kernel) > 1 for c in cases]),
        ("unequal strides", [c.stride[-1] != c.stride[-2] for c in cases]),
        ("rectangular kernels", [c.kernel[-1] != c.kernel[-2] for c in cases]),
        ("asymmetric padding", [any(a != b for a, b in c.pads) for c in cases]),
        ("channels first", [not c.channels_last for c in cases]),
        ("filter gradients", [layer.role == "filter_grad" for layer in found]),
        ("input gradients", [layer.role == "input_grad" for layer in found]),
        ("batched products", [p.batched for p in products]),
        ("broadcast products", [p.left_batch != p.right_batch for p in products]),
        ("transposed products", [p.left_transposed != p.right_transposed for p in products]),
    ):
        assert sum(there) >= 10, kind


@pytest.mark.parametrize("seed", [1, 106])
def test_the_nest_of_the_trace_agrees(seed: int) -> None:
    """MACs, output extents and distinct elements per operand of all 360."""
    trace, found = random_layers(seed)
    nests = {layer.execution: layer.nest for layer in layers(trace, trace.main_structure)[0]}
    assert set(nests) == {layer.execution for layer in found}
    for layer in found:
        nest, counted, case = nests[layer.execution], layer.counted, layer.case
        assert (nest.role, nest.macs) == (layer.role, counted.macs)
        if isinstance(nest, ConvolutionNest):
            assert isinstance(counted, Counted)
            assert isinstance(case, Case)
            assert tuple(a.output for a in nest.axes) == counted.output
            assert [(a.kernel, a.stride, a.dilation) for a in nest.axes] == list(
                zip(case.kernel, case.stride, case.dilation, strict=True)
            )
            assert nest.filter_elements == counted.filters
            assert nest.output_elements == counted.outputs
            assert nest.input_elements_read == counted.inputs
            assert nest.input_elements_with_padding == counted.inputs_with_padding
        else:
            assert isinstance(counted, CountedProduct)
            assert (nest.result_shape, nest.output_elements) == (counted.output, prod(counted.output))
            assert (nest.left_elements, nest.right_elements) == (counted.left, counted.right)
