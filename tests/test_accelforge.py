"""Does AccelForge get the layers that ran, and what depends on what? By hand, then by its own reader, then by its mapper."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import ExportedLayer, read_layer_map
from fathom_trace.options import apply_settings
from fathom_trace.store import save
from fathom_trace.trace import Trace
from tests.accelforge_files import ACCELFORGE, einsums, export, mapped, projections, read
from tests.brute_force import Case
from tests.program import Program, dilated_depthwise
from tests.random_layers import random_layers
from tests.simulator_env import run_example
from tests.small import diamond


def convolution(*arguments: Any, **attributes: Any) -> Trace:
    """A trace of one convolution."""
    program = Program()
    program.convolution("c", *arguments, **attributes)
    return program.trace()


# --- cases that people ran into ---------------------------------------------------------------------------------------------------


def test_height_and_width_are_not_mixed_up(tmp_path: Path) -> None:
    """C10: 9x7, kernel (3, 1), SAME, 8 filters: OY=9, OX=7, FY=3, FX=1, 6,048 MACs; 4 * 11 * 7 elements with padding, 252 without."""
    report = export(convolution([1, 9, 7, 4], [3, 1, 4, 8], [1, 9, 7, 8], padding="SAME"), tmp_path)
    (einsum,) = einsums(tmp_path)
    assert projections(einsum) == [
        ("c_input", {"B": "b_0", "C": "c_0", "H": "oy_0 + fy_0", "W": "ox_0 + fx_0"}),
        ("c_filter", {"K": "k_0", "C": "c_0", "H": "fy_0", "W": "fx_0"}),
        ("c_output", {"B": "b_0", "C": "k_0", "H": "oy_0", "W": "ox_0"}),
    ]
    assert set(einsum["iteration_space_shape"]) == {
        "0 <= b_0 < 1", "0 <= k_0 < 8", "0 <= c_0 < 4", "0 <= oy_0 < 9", "0 <= ox_0 < 7", "0 <= fy_0 < 3", "0 <= fx_0 < 1",
    }  # fmt: skip
    (layer,) = report.layers
    assert layer.macs == 6_048
    assert layer.facts["tensors"]["input"] == {"tensor": "c_input", "bits": 32, "elements": 308, "elements_without_padding": 252}
    assert any("1 convolutions read padding" in text and "308 with it, 252 without" in text for text in report.approximations)


def test_strides_and_dilations_stay_on_their_axes(tmp_path: Path) -> None:
    """C6 and more: strides (2, 1), dilation (1, 3); 9x9, 3x3: outputs 4 and 3. An index has no offset."""
    export(convolution([1, 9, 9, 4], [3, 3, 4, 8], [1, 4, 3, 8], strides=[1, 2, 1, 1], dilations=[1, 1, 3, 1]), tmp_path)
    (einsum,) = einsums(tmp_path)
    assert projections(einsum)[0][1] == {"B": "b_0", "C": "c_0", "H": "2*oy_0 + fy_0", "W": "ox_0 + 3*fx_0"}
    assert "- 1" not in (tmp_path / "test.yaml").read_text()


def test_groups_are_a_rank(tmp_path: Path) -> None:
    """2 groups, 5x5, 27x27, 96 to 256: 223,948,800 MACs; and depthwise (C16): G=4, K=2, nothing summed over channels: 10,584 MACs."""
    program = Program()
    program.convolution("grouped", [1, 27, 27, 96], [5, 5, 48, 256], [1, 27, 27, 256], padding="SAME")
    program.convolution("depthwise", [3, 9, 9, 4], [3, 3, 4, 2], [3, 7, 7, 8], "DepthwiseConv2dNative")
    report = export(program.trace(), tmp_path)
    assert [layer.macs for layer in report.layers] == [223_948_800, 10_584]
    grouped, depthwise = einsums(tmp_path)
    assert {"0 <= g_0 < 2", "0 <= k_0 < 128", "0 <= c_0 < 48"} < set(grouped["iteration_space_shape"])
    assert projections(depthwise) == [
        ("depthwise_input", {"B": "b_1", "G": "g_1", "H": "oy_1 + fy_1", "W": "ox_1 + fx_1"}),
        ("depthwise_filter", {"G": "g_1", "K": "k_1", "H": "fy_1", "W": "fx_1"}),
        ("depthwise_output", {"B": "b_1", "G": "g_1", "C": "k_1", "H": "oy_1", "W": "ox_1"}),
    ]
    assert {"0 <= b_1 < 3", "0 <= g_1 < 4", "0 <= k_1 < 2"} < set(depthwise["iteration_space_shape"])


def test_a_dilated_depthwise_convolution_is_its_logical_layer(tmp_path: Path) -> None:
    """C9, C12: B=3, G=4, K=2, outputs 5x5, iy = oy + 2 fy: 5,400 MACs; forward and input gradient share the filter."""
    trace, ran = dilated_depthwise(training=True)
    report = export(trace, tmp_path)
    assert [layer.macs for layer in report.layers] == [5_400] * 3
    assert report.layers[0].executions == (ran["x2b"], ran["conv"], ran["y2s"])
    forward, filter_gradient, input_gradient = einsums(tmp_path)
    assert projections(forward)[0][1]["H"] == "oy_0 + 2*fy_0"
    assert {"0 <= b_0 < 3", "0 <= g_0 < 4", "0 <= k_0 < 2", "0 <= oy_0 < 5", "0 <= ox_0 < 5"} < set(forward["iteration_space_shape"])
    names = [[tensor for tensor, _ in projections(e)] for e in (forward, filter_gradient, input_gradient)]
    assert names[0][1] == names[2][1] == "dw_filter"
    assert len({tensor for row in names for tensor in row}) == 8


def test_products(tmp_path: Path) -> None:
    """C11: x[4, 6]^T dy[4, 5] is M=6, N=5, K=4, stored as [k, m]. B3: 2 x 3 products, of which the left operand has only 2."""
    program = Program()
    program.product("dw", [4, 6], [4, 5], [6, 5], transpose_a=True)
    program.product("heads", [2, 1, 7, 4], [3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2")
    report = export(program.trace(), tmp_path)
    assert [layer.macs for layer in report.layers] == [120, 840]
    transposed, batched = einsums(tmp_path)
    assert projections(transposed)[:2] == [("dw_left", {"Row": "k_0", "Column": "m_0"}), ("dw_right", {"Row": "k_0", "Column": "n_0"})]
    assert set(transposed["iteration_space_shape"]) == {"0 <= m_0 < 6", "0 <= n_0 < 5", "0 <= k_0 < 4"}
    assert projections(batched) == [
        ("heads_left", {"B0": "b0_1", "Row": "m_1", "Column": "k_1"}),
        ("heads_right", {"B1": "b1_1", "Row": "k_1", "Column": "n_1"}),
        ("heads_result", {"B0": "b0_1", "B1": "b1_1", "Row": "m_1", "Column": "n_1"}),
    ]


def test_channels_first_gives_the_same_einsum(tmp_path: Path) -> None:
    """C17 with unequal sides: in [3, 4, 9, 8] NCHW and its NHWC twin; 3 * 7 * 7 * 8 * 4 * 3 * 2 MACs."""
    first = export(convolution([3, 4, 9, 8], [3, 2, 4, 8], [3, 8, 7, 7], data_format="NCHW"), tmp_path / "first")
    last = export(convolution([3, 9, 8, 4], [3, 2, 4, 8], [3, 7, 7, 8], data_format="NHWC"), tmp_path / "last")
    assert einsums(tmp_path / "first") == einsums(tmp_path / "last")
    assert first.layers[0].macs == last.layers[0].macs == 3 * 49 * 8 * 24


def test_faults_of_other_converters(tmp_path: Path) -> None:
    """The stride is the attribute, not 9 // 5; a batch is in the rows only; [197, 768] x [768, 3072] contracts 768."""
    program = Program()
    program.convolution("strided", [1, 9, 9, 1], [1, 1, 1, 1], [1, 5, 5, 1], strides=[1, 2, 2, 1])
    program.product("dense", [197, 768], [768, 3072], [197, 3072])
    program.product("batched", [8, 7, 4], [4, 5], [8, 7, 5], "BatchMatMulV2")
    report = export(program.trace(), tmp_path)
    strided, dense, batched = einsums(tmp_path)
    assert projections(strided)[0][1]["H"] == "2*oy_0 + fy_0"
    assert set(dense["iteration_space_shape"]) == {"0 <= m_1 < 197", "0 <= n_1 < 3072", "0 <= k_1 < 768"}
    assert set(batched["iteration_space_shape"]) == {"0 <= b0_2 < 8", "0 <= m_2 < 7", "0 <= n_2 < 5", "0 <= k_2 < 4"}
    assert projections(batched)[1] == ("batched_right", {"Row": "k_2", "Column": "n_2"})
    assert [layer.macs for layer in report.layers] == [25, 464_781_312, 8 * 140]


def test_gradients_write_what_they_compute(tmp_path: Path) -> None:
    """B12: 3x3 stride 2 of [3, 9, 9, 4] to 4x4x8: 13,824 MACs each, and the image of the input gradient is the written tensor."""
    program = Program()
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(kind, [3, 9, 9, 4], [3, 3, 4, 8], [3, 4, 4, 8], kind, strides=[1, 2, 2, 1])
    report = export(program.trace(), tmp_path)
    assert [layer.macs for layer in report.layers] == [13_824, 13_824]
    written = [einsum["tensor_accesses"][-1] for einsum in einsums(tmp_path)]
    assert [access["output"] for access in written] == [True, True]
    assert written[0]["projection"] == {"K": "k_0", "C": "c_0", "H": "fy_0", "W": "fx_0"}
    assert written[1]["projection"] == {"B": "b_1", "C": "c_1", "H": "2*oy_1 + fy_1", "W": "2*ox_1 + fx_1"}


def test_a_loop_keeps_its_length(tmp_path: Path) -> None:
    """B7: a recurrent product [2, 4] x [4, 4] that runs 5 times is one einsum with n_instances 5: 5 * 32 MACs."""
    program = Program()
    w = program.input("w", [4, 4])
    state = program.input("h", [2, 4])
    for _ in range(5):
        state = program.op("rnn/MatMul", "MatMul", [state, w], [2, 4], {})
    program.op("last/MatMul", "MatMul", [state, w], [2, 4], {})
    report = export(program.trace(), tmp_path)
    assert [(layer.count, layer.macs, len(layer.executions)) for layer in report.layers] == [(5, 160, 5), (1, 32, 1)]
    loop, last = einsums(tmp_path)
    assert loop["n_instances"] == 5
    # the weights are the same in every run; what the loop reads and writes differs from run to run, so nothing else is shared
    assert [tensor for tensor, _ in projections(last)] == ["last_MatMul_left", "rnn_MatMul_right", "last_MatMul_result"]


# --- dependencies -----------------------------------------------------------------------------------------------------------------


def dense_step() -> Trace:
    """Two dense layers and their gradients: h = x w1, y = h w2; dw2 = h^T dy, dh = dy w2^T, dw1 = x^T dh."""
    program = Program()
    x, w1, w2, dy = (program.input(n, s) for n, s in (("x", [6, 4]), ("w1", [4, 5]), ("w2", [5, 3]), ("dy", [6, 3])))
    h = program.op("h", "MatMul", [x, w1], [6, 5], {})
    program.op("y", "MatMul", [h, w2], [6, 3], {})
    program.op("dw2", "MatMul", [h, dy], [5, 3], {"transpose_a": True})
    dh = program.op("dh", "MatMul", [dy, w2], [6, 5], {"transpose_b": True})
    program.op("dw1", "MatMul", [x, dh], [4, 5], {"transpose_a": True})
    return program.trace()


def test_a_training_step_is_one_chain(tmp_path: Path) -> None:
    """Every tensor has one name, transposed or not; rows are m (the batch), columns the width: 4 loops in all for 5 einsums."""
    export(dense_step(), tmp_path)
    assert [[(t, *p.values()) for t, p in projections(e)] for e in einsums(tmp_path)] == [
        [("h_left", "m_0", "k_0"), ("h_right", "k_0", "n_0"), ("h_result", "m_0", "n_0")],
        [("h_result", "m_0", "n_0"), ("y_right", "n_0", "n_1"), ("y_result", "m_0", "n_1")],
        [("h_result", "m_0", "n_0"), ("dw2_right", "m_0", "n_1"), ("dw2_result", "n_0", "n_1")],
        [("dw2_right", "m_0", "n_1"), ("y_right", "n_0", "n_1"), ("dh_result", "m_0", "n_0")],
        [("h_left", "m_0", "k_0"), ("dh_result", "m_0", "n_0"), ("dw1_result", "k_0", "n_0")],
    ]


def chain(padding: str, between: bool = False) -> Trace:
    """Two convolutions 3x2 in a row on [1, 8, 9, 3], perhaps with an activation between them."""
    program = Program()
    attributes = {"strides": [1, 1, 1, 1], "padding": padding}
    first, second = ((6, 8), (4, 7)) if padding == "VALID" else ((8, 9), (8, 9))
    x, v, w = program.input("x", [1, 8, 9, 3]), program.input("v", [3, 2, 3, 4]), program.input("w", [3, 2, 4, 2])
    y = program.op("one", "Conv2D", [x, v], [1, *first, 4], attributes)
    if between:
        y = program.op("relu", "Relu", [y], [1, *first, 4])
    program.op("two", "Conv2D", [y, w], [1, *second, 2], attributes)
    return program.trace()


def test_what_is_read_exactly_is_shared_and_nothing_else(tmp_path: Path) -> None:
    """A valid convolution reads what the one before wrote; one with padding reads more, and one after an activation something else."""
    export(chain("VALID"), tmp_path / "valid")
    one, two = einsums(tmp_path / "valid")
    assert projections(one)[2] == ("one_output", {"B": "b_0", "C": "k_0", "H": "oy_0", "W": "ox_0"})
    assert projections(two)[0] == ("one_output", {"B": "b_0", "C": "k_0", "H": "oy_1 + fy_1", "W": "ox_1 + fx_1"})
    for name, trace in (("padded", chain("SAME")), ("relu", chain("VALID", between=True))):
        report = export(trace, tmp_path / name)
        assert projections(einsums(tmp_path / name)[1])[0][0] == "two_input"
        assert any(text.startswith("0 of 4 operands are read under a name") for text in report.approximations)


def test_a_tensor_of_two_precisions_is_two_tensors(tmp_path: Path) -> None:
    """16 bits when written, 8 when read: a conversion lies between, which is no layer."""
    export(chain("VALID"), tmp_path / "one", bits="8")
    assert projections(einsums(tmp_path / "one")[1])[0][0] == "one_output"
    export(chain("VALID"), tmp_path / "two", bits="8", bits_output="16")
    assert projections(einsums(tmp_path / "two")[1])[0][0] == "two_input"


def test_one_loop_never_stands_for_two(tmp_path: Path) -> None:
    """x x^T reads x twice; and h x with h = x w would make rows, columns and the inner loop one: there x gets another name."""
    program = Program()
    x, w = program.input("x", [5, 5]), program.input("w", [5, 5])
    h = program.op("h", "MatMul", [x, w], [5, 5], {})
    program.op("gram", "MatMul", [x, x], [5, 5], {"transpose_b": True})
    program.op("hx", "MatMul", [h, x], [5, 5], {})
    report = export(program.trace(), tmp_path)
    assert [[tensor for tensor, _ in projections(e)] for e in einsums(tmp_path)] == [
        ["h_left", "h_right", "h_result"],
        ["h_left", "gram_right", "gram_result"],
        ["h_result", "hx_right", "hx_result"],
    ]
    assert any(
        text.startswith("2 operands that other einsums have too are under names of their own") for text in report.approximations
    )


# --- names, bits, counts ----------------------------------------------------------------------------------------------------------


def test_names_are_identifiers_and_stay_unique(tmp_path: Path) -> None:
    program = Program()
    for name in ("a/b:0", "a_b/0", "日本", "7x7/conv", "_x", "Total", "All", "no"):
        program.product(name, [2, 3], [3, 4], [2, 4])
    report = export(program.trace(), tmp_path)
    names = [layer.name for layer in report.layers]
    assert names == ["a_b_0", "a_b_0_2", "layer__", "layer_7x7_conv", "layer_x", "Total_2", "All_2", "no"]
    tensors = {tensor for einsum in einsums(tmp_path) for tensor, _ in projections(einsum)}
    assert all(name.isidentifier() for name in (*names, *tensors))
    assert len(tensors) == 24
    assert "日本" in report.layers[2].note


def test_bits_are_the_dtypes_or_chosen(tmp_path: Path) -> None:
    trace = convolution([1, 9, 7, 4], [3, 1, 4, 8], [1, 7, 7, 8])
    for number, (settings, common, bits) in enumerate([
        ({}, 32, [32, 32, 32]),
        ({"bits": "8"}, 8, [8, 8, 8]),
        ({"bits": "8", "bits_output": "24"}, 8, [8, 8, 24]),
        ({"bits_weight": "4", "bits_input": "4"}, 4, [4, 4, 32]),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        report = export(trace, folder, **settings)
        assert f"bits_per_value: {{All: {common}}}\n" in (folder / "test.yaml").read_text()
        assert [access.get("bits_per_value", common) for access in einsums(folder)[0]["tensor_accesses"]] == bits
        assert [report.layers[0].facts["tensors"][t]["bits"] for t in ("input", "filter", "output")] == bits
        assert any("chosen, not those that were traced" in text for text in report.approximations) == bool(settings)
    for value in ("-1", "5000"):
        with pytest.raises(OptionError, match="it takes a whole number from 1 to 4096, or 0"):
            apply_settings(ACCELFORGE.Options(), {"bits": value}, "exporter")


def test_identical_layers_are_merged_on_request(tmp_path: Path) -> None:
    """Two equal convolutions of batch 2 and a product: einsums of 2 and 1 instances; MACs, time and executions are kept."""
    program = Program()
    for name in ("a", "b"):
        program.convolution(name, [2, 9, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8], ns=30)
    program.product("m", [2, 3], [3, 4], [2, 4])
    trace = program.trace()
    report = export(trace, tmp_path / "merged", unique="true")
    assert [(la.name, la.count, la.macs, la.time_ns) for la in report.layers] == [
        ("a", 2, 2 * 2 * 49 * 8 * 24, 60.0),
        ("m", 1, 24, 10.0),
    ]
    assert "a and 1 more" in report.layers[0].note
    assert report.totals() == export(trace, tmp_path / "apart").totals()


def test_branches_that_never_ran_are_not_exported_and_pooling_is_skipped(tmp_path: Path) -> None:
    program = Program()
    program.product("taken", [2, 3], [3, 4], [2, 4])
    program.op("pool", "MaxPool", [], [1, 4, 4, 8], ns=30)
    program.builder.node("auxiliary/MatMul", "MatMul")
    report = export(program.trace(), tmp_path)
    assert [layer.name for layer in report.layers] == ["taken"]
    pool = next(s for s in report.skipped if s.op == "MaxPool")
    assert (pool.executions, pool.time_ns, pool.macs) == (1, 30.0, 0)
    with pytest.raises(ExportError, match=r"nothing of the trace has a loop nest .*; what may multiply: 1 x OpB"):
        ACCELFORGE.write(diamond(), tmp_path, ACCELFORGE.Options())


# --- its own parser ---------------------------------------------------------------------------------------------------------------


def small() -> Trace:
    """A convolution, a product, and another that reads its result."""
    program = Program()
    program.convolution("conv", [1, 9, 12, 3], [3, 2, 3, 5], [1, 4, 11, 5], strides=[1, 2, 1, 1])
    a, b, c = program.input("a", [7, 4]), program.input("b", [4, 5]), program.input("c", [5, 6])
    first = program.op("one", "MatMul", [a, b], [7, 5], {})
    program.op("two", "MatMul", [first, c], [7, 6], {})
    return program.trace()


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("test.yaml", "workload:", "workloads:", "test.yaml:1 does not begin a workload"),
        ("test.yaml", "bits_per_value: {All: 32}", "bits_per_value: {All: 0}", "test.yaml:1 does not begin a workload"),
        ("test.yaml", "bits_per_value: {All: 32}", "bits_per_value: {All: 16}", "conv_input with 16 bits, export.json says"),
        ("test.yaml", '"one"\n', '"one"\n    is_copy_operation: true\n', "test.yaml:12 does not begin an einsum"),
        ("test.yaml", "oy_0 + fy_0", "oy_0 + fy_0 - 1", "test.yaml:4 does not begin an einsum"),
        ("test.yaml", '- name: "one"', '- name: "one/x"', "test.yaml:12 does not begin an einsum"),
        ("test.yaml", '- name: "one"', '- name: "conv"', "holds other einsums than export.json lists"),
        ("test.yaml", "2*oy_0 + fy_0", "oy_0 + fy_0", "conv: input is indexed by B: b_0, C: c_0, H: oy_0 + fy_0,"),
        ("test.yaml", "H: 2*oy_0 + fy_0, W: ox_0 + fx_0", "H: oy_0 + fy_0, W: 2*ox_0 + fx_0", "C: c_0, H: oy_0 + fy_0, W: 2*ox_0 + fx_0"),
        ("test.yaml", "H: fy_0, W: fx_0", "H: fx_0, W: fy_0", "conv: filter is indexed by K: k_0, C: c_0, H: fx_0, W: fy_0"),
        ("test.yaml", "0 <= fy_0 < 3, 0 <= fx_0 < 2", "0 <= fy_0 < 2, 0 <= fx_0 < 3", "kernel_height is 2, the trace has 3"),
        ("test.yaml", "0 <= b_0 < 1, ", "", "test.yaml:4 does not begin an einsum"),
        ("test.yaml", "0 <= b_0 < 1,", "0 <= b_0 < 2,", "7920 MACs in 1 runs in the file, 3960 in 1 in the trace"),
        ("test.yaml", "n_instances: 1", "n_instances: 2", "7920 MACs in 2 runs in the file, 3960 in 1 in the trace"),
        ("test.yaml", ", output: true", "", "test.yaml:4 does not begin an einsum"),
        ("test.yaml", 'output: "conv_output"', 'output: "conv_input"', "test.yaml:4 does not begin an einsum"),
        ("test.yaml", '"one_result", projection: {Row', '"x", projection: {Row', "12 does not begin"),
        ("test.yaml", "0 <= m_1 < 7, 0 <= n_2 < 6", "0 <= m_1 < 8, 0 <= n_2 < 6", "the rank variable m_1 is below 8 in two, below 7 in"),
        ("test.yaml", '"two_right"', '"one_right"', "two takes one_right for another tensor"),
        ("export.json", '"macs": 140', '"macs": 141', "140 MACs in 1 runs in the file, 141 in 1 in the trace"),
        ("export.json", '"elements": 324', '"elements": 325', "has 324 elements, the trace 324, export.json 325"),
        ("export.json", '"role": "gemm"', '"role": "gemmm"', "export.json says too little of it"),
        ("export.json", '"elements_without_padding": 324', '"elements_without_padding": 323', "324 elements without padding"),
        ("export.json", '"name": "two"', '"name": "three"', "holds other einsums than export.json lists"),
    ],
)  # fmt: skip
def test_check_finds(tmp_path: Path, file: str, old: str, new: str, problem: str) -> None:
    export(small(), tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(old) >= 1
    (tmp_path / file).write_text(text.replace(old, new, 2 if "right" in old else 1))
    found = ACCELFORGE.check(tmp_path)
    assert not found.ok
    assert any(problem in p for p in found.problems), found.problems


def test_check_finds_missing_and_foreign_files(tmp_path: Path) -> None:
    export(small(), tmp_path / "missing")
    (tmp_path / "missing" / "test.yaml").unlink()
    assert ACCELFORGE.check(tmp_path / "missing").problems[0] == "test.yaml cannot be read (FileNotFoundError)"
    export(small(), tmp_path / "foreign")
    shutil.copy(tmp_path / "foreign" / "test.yaml", tmp_path / "foreign" / "other.yaml")
    assert ACCELFORGE.check(tmp_path / "foreign").problems == ("other.yaml is not in export.json",)
    with pytest.raises(ExportError, match="does not exist"):
        ACCELFORGE.check(tmp_path)


@pytest.mark.parametrize(
    "change",
    [('"count": 1', '"count": "1"'), ('"place": "test', '"place": 7, "x": "test'), ('"executions": [', '"executions": [0.5,')],
)
def test_a_damaged_report_is_one_clear_error(tmp_path: Path, change: tuple[str, str]) -> None:
    export(small(), tmp_path)
    path = tmp_path / "export.json"
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(ExportError, match=r"export\.json is not an export report \(.*\); export again"):
        ACCELFORGE.check(tmp_path)


def test_check_states_what_it_found(tmp_path: Path) -> None:
    """4 * 11 * 5 * 3 * 6 = 3,960, 7 * 5 * 4 = 140 and 7 * 6 * 5 = 210 MACs; 8 tensors, one of them of two einsums."""
    report = export(small(), tmp_path)
    assert ACCELFORGE.check(tmp_path).facts == {
        "einsums": 3, "instances": 3, "tensors": 8, "shared tensors": 1, "macs": 3_960 + 140 + 210,
    }  # fmt: skip
    assert read_layer_map(tmp_path) == [ExportedLayer(**vars(layer)) for layer in report.layers]


# --- results ----------------------------------------------------------------------------------------------------------------------


def looped() -> Trace:
    """A product, and one that runs 4 times."""
    program = Program()
    program.product("m", [2, 3], [3, 4], [2, 4])
    a, b = program.input("a", [7, 4]), program.input("b", [4, 5])
    for _ in range(4):
        program.op("loop", "MatMul", [a, b], [7, 5], {})
    return program.trace()


def test_results_are_spread_over_executions(tmp_path: Path) -> None:
    """24 cycles for one run, 560 for four together: of 0.5 ns 12, and 70 each; 2.4e-8 s are 24 ns whatever a cycle is."""
    trace = looped()
    report = export(trace, tmp_path)
    (tmp_path / "latency.csv").write_text("einsum,latency_cycles\nm,24\nloop,560\n")
    first, loop = (layer.executions for layer in report.layers)
    for path in (tmp_path, tmp_path / "latency.csv"):
        assert ACCELFORGE.read_results(path, read_layer_map(tmp_path), 0.5) == {first[0]: 12.0} | dict.fromkeys(loop, 70.0)
    (tmp_path / "latency.csv").write_text("einsum,latency_s\nloop,0\nm,2.4e-08\n")
    assert ACCELFORGE.read_results(tmp_path, read_layer_map(tmp_path), 0.5)[first[0]] == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("einsum,latency\nm,1\nloop,1\n", "line 1 is not einsum,latency_s or einsum,latency_cycles"),
        ("", "line 1 is not einsum,latency_s or einsum,latency_cycles"),
        ("einsum,latency_s\nm,1,2\nloop,1\n", "line 2 is not an einsum and a number"),
        ("einsum,latency_s\nm,fast\nloop,1\n", "line 2 is not an einsum and a number"),
        ("einsum,latency_s\nm,1\nloop,-1\n", "line 3: '-1' is no latency"),
        ("einsum,latency_s\nm,nan\nloop,1\n", "line 2: 'nan' is no latency"),
        ('einsum,latency_s\nm,1\nloop,"1\n', "cannot be read"),
        ("einsum,latency_s\nm,1\nm,1\nloop,1\n", "line 3 names m again"),
        ("einsum,latency_s\nm,1\n", "lacks the einsum loop"),
        ("einsum,latency_s\nm,1\nloop,1\nother,1\n", "names the einsum other, which the export does not have"),
    ],
)
def test_a_damaged_results_file_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    export(looped(), tmp_path)
    (tmp_path / "latency.csv").write_text(text)
    with pytest.raises(ExportError, match=message):
        ACCELFORGE.read_results(tmp_path, read_layer_map(tmp_path), 1.0)


def test_results_must_be_there(tmp_path: Path) -> None:
    export(looped(), tmp_path)
    with pytest.raises(ExportError, match=r"latency\.csv cannot be read \(FileNotFoundError\)"):
        ACCELFORGE.read_results(tmp_path, read_layer_map(tmp_path), 1.0)


# --- the real program -------------------------------------------------------------------------------------------------------------


VGG16 = [
    (224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (56, 256, 256),
    (28, 256, 512), (28, 512, 512), (28, 512, 512), (14, 512, 512), (14, 512, 512), (14, 512, 512),
]  # fmt: skip
"""Simonyan and Zisserman 2014, table 1, configuration D: side of the map, channels in, filters; all 3x3, stride 1, padded by 1."""


def published() -> tuple[Trace, list[int]]:
    """Layers whose MACs are known from elsewhere, and these."""
    program = Program()
    program.convolution("vgg/conv1_1", [1, 224, 224, 3], [3, 3, 3, 64], [1, 224, 224, 64], padding="SAME")
    program.convolution("alexnet/conv1", [1, 227, 227, 3], [11, 11, 3, 96], [1, 55, 55, 96], strides=[1, 4, 4, 1])
    program.convolution("dw", [1, 112, 112, 32], [3, 3, 32, 1], [1, 112, 112, 32], "DepthwiseConv2dNative", padding="SAME")
    program.product("gemm", [128, 512], [512, 64], [128, 64])
    program.product("heads", [12, 197, 64], [12, 64, 197], [12, 197, 197], "BatchMatMulV2")
    program.convolution("grouped", [1, 27, 27, 96], [5, 5, 48, 256], [1, 27, 27, 256], padding="SAME")
    macs = [86_704_128, 105_415_200, 3_612_672, 4_194_304, 29_805_312, 223_948_800]
    for i, (side, channels, filters) in enumerate(VGG16):
        program.convolution(
            f"vgg16/{i}", [1, side, side, channels], [3, 3, channels, filters], [1, side, side, filters], padding="SAME"
        )
        macs.append(side * side * filters * 9 * channels)
    return program.trace(), macs


@pytest.mark.simulator
def test_accelforge_agrees_with_published_layers(tmp_path: Path) -> None:
    """Among them VGG-16, which is 15.35 G; with the padding dropped it would be 13.88 G."""
    trace, macs = published()
    export(trace, tmp_path)
    found = read(tmp_path, "test.yaml")["test.yaml"]
    assert [einsum["computes"] for einsum in found["einsums"].values()] == macs
    vgg16 = sum(einsum["computes"] for name, einsum in found["einsums"].items() if name.startswith("vgg16"))
    assert vgg16 == 15_346_630_656
    assert [prod(einsum["bounds"].values()) for einsum in found["einsums"].values()] == macs
    assert found["tensors"]["vgg_conv1_1_input"] == {"size": 226 * 226 * 3, "shape": {"B": 1, "C": 3, "H": 226, "W": 226}}
    assert found["tensors"]["alexnet_conv1_input"]["shape"] == {"B": 1, "C": 3, "H": 227, "W": 227}


@pytest.mark.simulator
def test_accelforge_agrees_on_random_layers(tmp_path: Path) -> None:
    """300 random convolutions and gradients and 60 products in one workload: its own counts against brute force."""
    trace, layers = random_layers(467)
    report = export(trace, tmp_path)
    found = read(tmp_path, "test.yaml")["test.yaml"]
    by_execution = {layer.executions[0]: layer for layer in report.layers}
    assert len(by_execution) == len(found["einsums"]) == len(layers) == 360
    for number, layer in enumerate(layers):
        written = by_execution[layer.execution]
        einsum = found["einsums"][written.name]
        counted: Any = layer.counted
        assert einsum["computes"] == prod(einsum["bounds"].values()) == counted.macs == written.macs
        sizes = {operand: found["tensors"][values["tensor"]]["size"] for operand, values in written.facts["tensors"].items()}
        if not isinstance(layer.case, Case):
            assert sizes == {"left": counted.left, "right": counted.right, "result": prod(counted.output)}
            assert [einsum["bounds"][f"{v}_{number}"] for v in "mnk"] == [layer.case.m, layer.case.n, layer.case.k]
            continue
        assert sizes == {"input": counted.inputs_with_padding, "filter": counted.filters, "output": counted.outputs}
        image = next(p for tensor, _, p in einsum["accesses"] if tensor == written.facts["tensors"]["input"]["tensor"])
        for rank, letter, axis in (("W", "x", -1), ("H", "y", -2), ("D", "z", -3)):
            if len(layer.case.size) < -axis:
                continue
            output, kernel = f"o{letter}_{number}", f"f{letter}_{number}"
            assert (einsum["bounds"][output], einsum["bounds"][kernel]) == (counted.output[axis], layer.case.kernel[axis])
            terms = {t.partition("*")[2] or t: int(t.partition("*")[0]) if "*" in t else 1 for t in image[rank].split(" + ")}
            assert terms == {output: layer.case.stride[axis], kernel: layer.case.dilation[axis]}


@pytest.mark.simulator
def test_accelforge_maps_small_layers(tmp_path: Path) -> None:
    """A convolution, a depthwise one, a product and both gradients: as many MACs, and each operand moved once, in bits.

    Main memory is a hundred times dearer than the unlimited buffer, so the mapping of least energy reads every element that a layer
    touches once and writes every result once. The results' bits differ from the operands'.
    """
    program = Program()
    program.convolution("conv", [1, 9, 12, 3], [3, 2, 3, 5], [1, 4, 11, 5], strides=[1, 2, 1, 1])
    program.convolution("depthwise", [1, 6, 7, 3], [3, 2, 3, 2], [1, 4, 6, 6], "DepthwiseConv2dNative")
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(kind, [2, 7, 6, 3], [3, 2, 3, 4], [2, 3, 5, 4], kind, strides=[1, 2, 1, 1])
    program.product("product", [7, 4], [4, 5], [7, 5])
    report = export(program.trace(), tmp_path, bits="8", bits_output="16")
    names = [layer.name for layer in report.layers]
    results = mapped(tmp_path, json.dumps([[name] for name in names]))
    for layer in report.layers:
        actions = results[layer.name]["actions"]
        assert actions[f"{layer.name} MAC None compute"] == layer.macs
        assert (
            results[layer.name]["latency"][layer.name] == layer.macs
        )  # one MAC per cycle is all that takes time in this architecture
        written = einsums(tmp_path)[names.index(layer.name)]["tensor_accesses"][-1]["name"]
        for values in layer.facts["tensors"].values():
            kind = "write" if values["tensor"] == written else "read"
            moved = actions[f"{layer.name} MainMemory {values['tensor']} {kind}"]
            assert moved / values["bits"] == values["elements"], values
            assert results[layer.name]["bits"][values["tensor"]] == values["elements"] * values["bits"]


@pytest.mark.simulator
def test_accelforge_fuses_along_shared_tensors(tmp_path: Path) -> None:
    """y = (x w1) w2: mapped together, h need not go through main memory; mapped alone, each has it read or written there."""
    program = Program()
    x, w1, w2 = program.input("x", [6, 4]), program.input("w1", [4, 5]), program.input("w2", [5, 3])
    h = program.op("h", "MatMul", [x, w1], [6, 5], {})
    program.op("y", "MatMul", [h, w2], [6, 3], {})
    export(program.trace(), tmp_path, bits="8")
    actions = mapped(tmp_path, json.dumps([["h", "y"]]))["h y"]["actions"]
    through_memory = {key: value for key, value in actions.items() if " MainMemory h_result " in key and value}
    assert through_memory == {}
    assert actions["h MainMemory h_left read"] == 8 * 24
    assert actions["y MainMemory y_right read"] == 8 * 15
    assert actions["y MainMemory y_result write"] == 8 * 18


@pytest.mark.simulator
def test_the_example_closes_the_loop(tmp_path: Path) -> None:
    """`simple` computes one MAC per cycle, of 1 ns: 24 ns for m and 4 * 140 ns for the loop, instead of 10 and 4 * 10; inputs take 40.

    So a step of 90 ns takes 624, and the example, which runs the command of the notes, says that it gets 0.14 times faster.
    """
    trace = looped()
    assert trace.median_durations(trace.main_structure).sum() == 90
    save(trace, tmp_path / "looped.h5")
    lines = run_example("accelforge_closes_the_loop.py", "accelforge", "looped.h5", tmp_path)
    assert lines[0] == "2 einsums mapped for 5 executions"
    assert f"by Amdahl {90 / 624:.2f}" in lines[1]
    assert lines[2] == f"{40 / 90:.1%} of the op time the accelerator never touched"


@pytest.mark.simulator
def test_an_offset_for_the_padding_would_lose_reads(tmp_path: Path) -> None:
    """Why `check` refuses `oy + fy - 1`: with the rank's true size AccelForge leaves out what lies in the padding, MACs and all."""
    export(convolution([1, 9, 7, 4], [3, 1, 4, 8], [1, 9, 7, 8], padding="SAME"), tmp_path)
    path = tmp_path / "test.yaml"
    text = path.read_text()
    path.write_text(text.replace("oy_0 + fy_0", "oy_0 + fy_0 - 1").replace("  einsums:", "  rank_sizes: {H: 9}\n  einsums:"))
    assert read(tmp_path, "test.yaml")["test.yaml"]["einsums"]["c"]["computes"] < 6_048
    assert not ACCELFORGE.check(tmp_path).ok
