"""Does SCALE-Sim get the layers that ran? Rows by hand arithmetic, then by the real simulator's parser, then simulated."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.errors import ExportError, OptionError, UnknownNameError
from fathom_trace.exporter import ExportedLayer, read_layer_map
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.brute_force import add, count, random_case
from tests.program import Program, dilated_depthwise
from tests.scale_sim_files import SCALE_SIM, export, lines, parse, parsed_layers, simulate, values
from tests.simulator_env import run_example
from tests.small import diamond


def convolution(*arguments: Any, **attributes: Any) -> Trace:
    """A trace of one convolution."""
    program = Program()
    program.convolution("c", *arguments, **attributes)
    return program.trace()


# --- cases that people ran into ---------------------------------------------------------------------------------------------------


def small_network() -> Trace:
    """C1: Conv2D(8, 3x3, same), MaxPool2, Conv2D(4, 3x3, same), Flatten, Dense(10) on [1, 8, 8, 3]."""
    program = Program()
    program.convolution("conv1", [1, 8, 8, 3], [3, 3, 3, 8], [1, 8, 8, 8], padding="SAME", ns=100)
    program.op("pool", "MaxPool", [], [1, 4, 4, 8], ns=30)
    program.convolution("conv2", [1, 4, 4, 8], [3, 3, 8, 4], [1, 4, 4, 4], padding="SAME", ns=50)
    program.product("dense", [1, 64], [64, 10], [1, 10], ns=20)
    return program.trace()


def test_a_small_network(tmp_path: Path) -> None:
    """C1: IFMAP 10x10 with 13,824 MACs (8 * 8 * 8 * 27), 6x6 with 4,608 (4 * 4 * 4 * 72), and M=1, N=10, K=64; one pool skipped."""
    report = export(small_network(), tmp_path)
    assert lines(tmp_path, "conv") == ["conv1,10,10,3,3,3,8,1,", "conv2,6,6,3,3,8,4,1,"]
    assert lines(tmp_path, "gemm") == ["dense,1,10,64,"]
    assert [layer.macs for layer in report.layers] == [13_824, 4_608, 640]
    assert [layer.place for layer in report.layers] == ["test_conv.csv:2", "test_conv.csv:3", "test_gemm.csv:2"]
    pool = next(s for s in report.skipped if s.op == "MaxPool")
    assert (pool.executions, pool.time_ns, pool.macs) == (1, 30.0, 0)
    assert report.totals()["time_ns"] == {"exported": 170.0, "skipped": 30.0 + 6 * 10.0, "total": 260.0}


def test_a_file_has_a_header_and_every_line_ends_with_a_comma(tmp_path: Path) -> None:
    """C2: MatMul [7, 4] x [4, 5] is `NAME,7,5,4,` in a file of its own."""
    program = Program()
    program.product("NAME", [7, 4], [4, 5], [7, 5])
    export(program.trace(), tmp_path)
    assert (tmp_path / "test_gemm.csv").read_text() == "Layer name,M,N,K,\nNAME,7,5,4,\n"
    assert not (tmp_path / "test_conv.csv").exists()


def test_the_ifmap_size_is_what_the_outputs_need(tmp_path: Path) -> None:
    """C3, and layers of published networks whose padded or stored size would be wrong."""
    for name, arguments, attributes, size, macs in [
        ("a", ([1, 8, 8, 4], [3, 3, 4, 8], [1, 3, 3, 8]), {"strides": [1, 2, 2, 1]}, (7, 7), 2_592),
        ("b", ([1, 9, 9, 4], [3, 3, 4, 8], [1, 5, 5, 8]), {"strides": [1, 2, 2, 1], "padding": "SAME"}, (11, 11), 7_200),
        # ResNet-50: 7x7 stride 2 pad 3 on 224 reads 229, not 230; 1x1 stride 2 on 56 reads 55; 3x3 stride 2 pad 1 on 56 reads 57.
        ("conv1", ([1, 224, 224, 3], [7, 7, 3, 64], [1, 112, 112, 64]),
         {"strides": [1, 2, 2, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 3, 3, 3, 3, 0, 0]}, (229, 229), 118_013_952),
        ("short", ([1, 56, 56, 256], [1, 1, 256, 512], [1, 28, 28, 512]), {"strides": [1, 2, 2, 1]}, (55, 55), 102_760_448),
        ("down", ([1, 56, 56, 128], [3, 3, 128, 128], [1, 28, 28, 128]),
         {"strides": [1, 2, 2, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 1, 1, 1, 0, 0]}, (57, 57), 115_605_504),
        # AlexNet's 5x5 layer works on 27x27 (a topology once said 207): with its padding 31x31.
        ("alexnet2", ([1, 27, 27, 48], [5, 5, 48, 128], [1, 27, 27, 128]), {"padding": "SAME"}, (31, 31), 111_974_400),
    ]:  # fmt: skip
        report = export(convolution(*arguments, **attributes), tmp_path / name)
        assert values(tmp_path / name, "conv")[0][:2] == size
        assert report.layers[0].macs == macs


def test_a_batch_is_folded_or_repeated_and_never_both(tmp_path: Path) -> None:
    """C5: C3(a) with batch 3 is M=27, N=8, K=36, or the line of one image three times: 7,776 MACs = 3 * 2,592."""
    trace = convolution([3, 8, 8, 4], [3, 3, 4, 8], [3, 3, 3, 8], strides=[1, 2, 2, 1])
    folded = export(trace, tmp_path / "gemm")
    assert values(tmp_path / "gemm", "gemm") == [(27, 8, 36)]
    assert (folded.layers[0].count, folded.layers[0].macs, folded.settings["batch"]) == (1, 7_776, "gemm")
    assert "batch 3" in folded.layers[0].how
    repeated = export(trace, tmp_path / "repeat", batch="repeat")
    assert values(tmp_path / "repeat", "conv") == [(7, 7, 3, 3, 4, 8, 2)]
    assert (repeated.layers[0].count, repeated.layers[0].macs, repeated.settings["batch"]) == (3, 7_776, "repeat")
    assert "one image" in repeated.layers[0].how
    assert any("one image of their batch" in text for text in repeated.approximations)


def test_unequal_strides_make_a_product(tmp_path: Path) -> None:
    """C6: 9x9x4, 3x3, 8 filters, strides (2, 1): 4x7 outputs, M=28, N=8, K=36, 8,064 MACs; and (1, 2) likewise."""
    for strides, output in (([1, 2, 1, 1], [1, 4, 7, 8]), ([1, 1, 2, 1], [1, 7, 4, 8])):
        folder = tmp_path / str(strides[1])
        report = export(convolution([1, 9, 9, 4], [3, 3, 4, 8], output, strides=strides), folder)
        assert values(folder, "gemm") == [(28, 8, 36)]
        assert report.layers[0].macs == 8_064
        assert f"strides {strides[1]} and {strides[2]} differ" in report.layers[0].how


def test_a_stride_that_never_acts_does_not_matter(tmp_path: Path) -> None:
    """A 1-D convolution of stride 2 is one of height 1: IFMAP 1 x ((4 - 1) * 2 + 3)."""
    export(convolution([1, 1, 9, 4], [1, 3, 4, 8], [1, 1, 4, 8], strides=[1, 1, 2, 1]), tmp_path)
    assert values(tmp_path, "conv") == [(1, 9, 1, 3, 4, 8, 2)]


def test_a_layer_that_needs_much_memory_is_warned_of(tmp_path: Path) -> None:
    """C6: as many elements as the option allows are silent, one fewer warns."""
    trace = convolution([1, 9, 9, 4], [3, 3, 4, 8], [1, 7, 7, 8])
    # M=49, N=8, K=36 on 4 x 4 os: 13 * 2 * (36 + 6) - 1 cycles, each with 4 inputs, 4 filters and 4 outputs at the edges.
    held = 49 * 36 + 36 * 8 + 49 * 8 + (13 * 2 * 42 - 1) * 12
    for limit, warned in ((held, False), (held - 1, True)):
        report = export(trace, tmp_path / str(limit), array_rows="4", array_columns="4", warn_elements=str(limit))
        assert any("out of memory" in note for note in report.notes) == warned


def test_operands_are_taken_after_transposition(tmp_path: Path) -> None:
    """C11: dW = transpose(x[4, 6]) dy[4, 5] is M=6, N=5, K=4, 120 MACs."""
    program = Program()
    program.product("dw", [4, 6], [4, 5], [6, 5], transpose_a=True)
    report = export(program.trace(), tmp_path)
    assert values(tmp_path, "gemm") == [(6, 5, 4)]
    assert report.layers[0].macs == 120


def test_a_dilated_depthwise_convolution_is_its_logical_layer(tmp_path: Path) -> None:
    """C12: three executions, one layer of 4 groups M=3*5*5, N=2, K=9: 5,400 MACs; their time is kept."""
    trace, ran = dilated_depthwise()
    report = export(trace, tmp_path)
    assert values(tmp_path, "gemm") == [(75, 2, 9)] * 4
    (layer,) = report.layers
    assert (layer.macs, layer.time_ns, layer.executions) == (5_400, 30.0, (ran["x2b"], ran["conv"], ran["y2s"]))
    assert "dilation" in layer.how


def test_depthwise_is_marked_and_nothing_else_is(tmp_path: Path) -> None:
    """C16 for one image: G=4, multiplier 2: a line with 4 channels and 2 filters that SCALE-Sim makes 4 layers of."""
    program = Program()
    program.convolution("model/UDP_conv", [1, 9, 9, 4], [3, 3, 4, 8], [1, 7, 7, 8])
    program.convolution("dw", [1, 9, 11, 4], [3, 2, 4, 2], [1, 7, 10, 8], "DepthwiseConv2dNative")
    program.product("DDPP", [2, 3], [3, 4], [2, 4])
    report = export(program.trace(), tmp_path)
    assert lines(tmp_path, "conv") == ["model_UD_P_conv,9,9,3,3,4,8,1,", "DP_dw,9,11,3,2,4,2,1,"]
    assert lines(tmp_path, "gemm") == ["DD_PP,2,4,3,"]
    assert [layer.facts["layer_ids"] for layer in report.layers] == [[0, 0], [1, 4], [0, 0]]
    assert report.layers[1].macs == 7 * 10 * 8 * 6


def test_channels_first_gives_the_same_row(tmp_path: Path) -> None:
    """C17 with unequal sides: in [3, 4, 9, 8] NCHW and its NHWC twin."""
    export(convolution([1, 4, 9, 8], [3, 2, 4, 8], [1, 8, 7, 7], data_format="NCHW"), tmp_path / "first")
    export(convolution([1, 9, 8, 4], [3, 2, 4, 8], [1, 7, 7, 8], data_format="NHWC"), tmp_path / "last")
    assert values(tmp_path / "first", "conv") == values(tmp_path / "last", "conv") == [(9, 8, 3, 2, 4, 8, 1)]


def test_batched_products_have_a_line_each(tmp_path: Path) -> None:
    """B3: six of M=7, N=5, K=4, not one of M=42; merged on request, with the count."""
    for name, left, right in (("full", [2, 3, 7, 4], [2, 3, 4, 5]), ("broadcast", [2, 1, 7, 4], [3, 4, 5])):
        program = Program()
        program.product("m", left, right, [2, 3, 7, 5], "BatchMatMulV2")
        trace = program.trace()
        report = export(trace, tmp_path / name)
        assert lines(tmp_path / name, "gemm") == [f"m_b{i},7,5,4," for i in range(6)]
        assert (report.layers[0].place, report.layers[0].count, report.layers[0].macs) == ("test_gemm.csv:2-7", 1, 840)
        merged = export(trace, tmp_path / f"{name}-unique", unique="true")
        assert lines(tmp_path / f"{name}-unique", "gemm") == ["m,7,5,4,"]
        assert (merged.layers[0].count, merged.layers[0].macs) == (6, 840)


# --- faults of other converters ---------------------------------------------------------------------------------------------------


def test_groups_are_lines(tmp_path: Path) -> None:
    """2 groups, 5x5, 27x27, 96 to 256: two lines of 48 channels and 128 filters, 223,948,800 MACs (dense it would be twice that)."""
    report = export(convolution([1, 27, 27, 96], [5, 5, 48, 256], [1, 27, 27, 256], padding="SAME"), tmp_path)
    assert lines(tmp_path, "conv") == ["c_g0,31,31,5,5,48,128,1,", "c_g1,31,31,5,5,48,128,1,"]
    assert report.layers[0].macs == 223_948_800


def test_the_stride_is_the_attribute_not_a_quotient(tmp_path: Path) -> None:
    """9 to 5 with stride 2: 9 // 5 would be 1. 7 to 2 with stride 3 (7 // 2 is 3, and 8 // 2 would be 4)."""
    export(convolution([1, 9, 9, 1], [1, 1, 1, 1], [1, 5, 5, 1], strides=[1, 2, 2, 1]), tmp_path / "a")
    export(convolution([1, 7, 8, 1], [3, 3, 1, 1], [1, 2, 2, 1], strides=[1, 3, 3, 1]), tmp_path / "b")
    assert values(tmp_path / "a", "conv") == [(9, 9, 1, 1, 1, 1, 2)]
    assert values(tmp_path / "b", "conv") == [(6, 6, 3, 3, 1, 1, 3)]


def test_a_loop_keeps_its_length(tmp_path: Path) -> None:
    """B7: a recurrent product [2, 4] x [4, 4] that runs 5 times is one line with count 5: 5 * 32 MACs."""
    program = Program()
    a, b = program.input("a", [2, 4]), program.input("b", [4, 4])
    ran = [program.op("rnn/MatMul", "MatMul", [a, b], [2, 4], {}, ns=10 + i) for i in range(5)]
    report = export(program.trace(), tmp_path)
    (layer,) = report.layers
    assert (layer.count, layer.macs, layer.executions, layer.time_ns) == (5, 160, tuple(ran), 60.0)
    assert lines(tmp_path, "gemm") == ["rnn_MatMul,2,4,4,"]


def test_a_dense_filter_is_a_row_not_a_column(tmp_path: Path) -> None:
    """[197, 768] x [768, 3072] contracts 768: M=197, N=3072, K=768, and 197 * 3072 * 768 MACs."""
    program = Program()
    program.product("dense", [197, 768], [768, 3072], [197, 3072])
    assert export(program.trace(), tmp_path).layers[0].macs == 464_781_312
    assert values(tmp_path, "gemm") == [(197, 3072, 768)]


def test_branches_that_never_ran_are_not_exported(tmp_path: Path) -> None:
    """A node of the graph without an execution leaves no line."""
    program = Program()
    program.product("taken", [2, 3], [3, 4], [2, 4])
    program.builder.node("auxiliary/MatMul", "MatMul")
    export(program.trace(), tmp_path)
    assert lines(tmp_path, "gemm") == ["taken,2,4,3,"]


def test_every_gradient_is_a_product_of_its_own(tmp_path: Path) -> None:
    """Conv 3x2 stride 2 of [2, 9, 8, 4] to 4 x 4 x 8: filter gradient [24, 32] x [32, 8], input gradient [32, 8] x [8, 24]."""
    program = Program()
    arguments = [2, 9, 8, 4], [3, 2, 4, 8], [2, 4, 4, 8]
    for kind in ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(kind, *arguments, kind, strides=[1, 2, 2, 1])
    report = export(program.trace(), tmp_path)
    assert values(tmp_path, "gemm") == [(32, 8, 24), (24, 8, 32), (32, 24, 8)]
    assert {layer.macs for layer in report.layers} == {2 * 16 * 8 * 24}
    assert [layer.how.partition(": ")[2] for layer in report.layers] == [
        "batch 2 in the rows",
        "filter gradient",
        "input gradient, col2im afterwards",
    ]


def test_what_cannot_be_a_line_is_a_product_with_a_reason(tmp_path: Path) -> None:
    program = Program()
    program.convolution("dilated", [1, 9, 8, 4], [3, 2, 4, 8], [1, 5, 7, 8], dilations=[1, 2, 1, 1])
    program.convolution("volume", [1, 4, 5, 6, 3], [2, 3, 2, 3, 8], [1, 3, 3, 5, 8], "Conv3D")
    report = export(program.trace(), tmp_path)
    assert values(tmp_path, "gemm") == [(35, 8, 24), (45, 8, 36)]
    assert [layer.how for layer in report.layers] == ["matrix product by im2col: dilation", "matrix product by im2col: 3-D"]


# --- the report and the options ---------------------------------------------------------------------------------------------------


def test_names_are_cleaned_and_stay_unique(tmp_path: Path) -> None:
    program = Program()
    for name in ("a/b,c:0", "a_b c/0", "日本", 'x"y', "a_b_c_0_2"):
        program.product(name, [2, 3], [3, 4], [2, 4])
    report = export(program.trace(), tmp_path)
    assert [line.split(",")[0] for line in lines(tmp_path, "gemm")] == ["a_b_c_0", "a_b_c_0_2", "__", "x_y", "a_b_c_0_2_2"]
    assert "日本" in report.layers[2].note


def test_identical_lines_are_merged_on_request(tmp_path: Path) -> None:
    """Two equal convolutions of batch 2, a depthwise of 3 channels, a product: 2 * 2, 3 * 2 and 1 runs; MACs and executions are kept."""
    program = Program()
    for name in ("a", "b"):
        program.convolution(name, [2, 9, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8])
    program.convolution("dw", [2, 9, 8, 3], [3, 2, 3, 1], [2, 7, 7, 3], "DepthwiseConv2dNative")
    program.product("m", [2, 3], [3, 4], [2, 4])
    report = export(program.trace(), tmp_path, unique="true", batch="repeat")
    assert lines(tmp_path, "conv") == ["a,9,8,3,2,4,8,1,", "dw,9,8,3,2,1,1,1,"]
    assert [(layer.name, layer.count, layer.macs) for layer in report.layers] == [
        ("a", 4, 2 * 2 * 49 * 8 * 24), ("dw", 6, 2 * 3 * 49 * 6), ("m", 1, 24),
    ]  # fmt: skip
    assert len(report.layers[0].executions) == 2
    assert "a and 1 more" in report.layers[0].note


def test_unknown_macs_are_said_to_be_unknown(tmp_path: Path) -> None:
    program = Program()
    program.product("m", [2, 3], [3, 4], [2, 4], ns=80)
    program.op("lstm", "BlockLSTMV2", [], [3], ns=100)
    report = export(program.trace(), tmp_path)
    assert any("1 skipped executions (BlockLSTMV2) are unknown, with 50.0% of the time" in note for note in report.notes)
    assert (
        next(s.reason for s in report.skipped if s.op == "BlockLSTMV2")
        == "no loop nest is known for this op type: its MACs are unknown"
    )


def test_cycles_are_estimated(tmp_path: Path) -> None:
    """[7, 4] x [4, 5], 3 times, on 4 x 3 ws: 1 * 2 * (7 + 8 + 3 - 2) - 1 = 31 cycles a run: 93, of which 31 to simulate, 6 to 9 ms."""
    program = Program()
    a, b = program.input("a", [7, 4]), program.input("b", [4, 5])
    for _ in range(3):
        program.op("m", "MatMul", [a, b], [7, 5], {})
    report = export(program.trace(), tmp_path, array_rows="4", array_columns="3", dataflow="ws")
    assert report.layers[0].facts["cycles"] == 31
    assert report.notes[0].startswith(
        "closed form: 93 cycles for all executions on 4 x 3 ws; to simulate each file once takes 31 cycles"
    )
    assert "6.20 ms to 9.30 ms of CPU time" in report.notes[0]


def test_operands_do_not_overlap_in_memory(tmp_path: Path) -> None:
    """M * K = 12,000,000 words of input need more than the usual 10,000,000 before the filters begin."""
    program = Program()
    program.product("m", [3_000, 4_000], [4_000, 5], [3_000, 5])
    export(program.trace(), tmp_path)
    text = (tmp_path / "test_gemm.cfg").read_text()
    assert "FilterOffset = 12000000\n" in text
    assert "OfmapOffset = 22000000\n" in text


def test_options_are_checked() -> None:
    for settings, message in (
        ({"array_rows": "0"}, "option 'array_rows' is 0; it takes a whole number from 1"),
        ({"batch": "both"}, "option 'batch' of exporter is 'both'; it takes one of: gemm, repeat"),
        ({"dataflow": "rs"}, "it takes one of: os, ws, is"),
    ):
        with pytest.raises(OptionError, match=message):
            apply_settings(SCALE_SIM.Options(), settings, "exporter")
    with pytest.raises(UnknownNameError, match="did you mean 'unique'"):
        apply_settings(SCALE_SIM.Options(), {"uniqe": "true"}, "exporter")


def test_a_trace_without_products_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nothing of the trace has a loop nest .*; what may multiply: 1 x OpB"):
        SCALE_SIM.write(diamond(), tmp_path, SCALE_SIM.Options())


# --- its own parser ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("test_conv.csv", "conv1,10,10,3,3,3,8,1,", "conv1,10,10,3,3,3,8,1", "is not a name and 7 positive integers"),
        ("test_conv.csv", "conv1,10,10", "conv1,10,10.5", "is not a name and 7 positive integers"),
        ("test_conv.csv", "conv1,", "conv 1,", "is not a name and 7 positive integers"),
        ("test_conv.csv", "conv1,10,10,3,3,3,8,1,", "conv1,10,10,3,3,3,8,1,1,", "is not a name and 7 positive integers"),
        ("test_conv.csv", ",8,1,\nconv2", ",0,1,\nconv2", "is not a name and 7 positive integers"),
        ("test_conv.csv", "Layer name", "conv0", "is not the header"),
        ("test_conv.csv", "conv2", "conv1", "repeats the name conv1"),
        ("test_conv.csv", "conv2,6,6", "conv9,6,6", "test_conv.csv:3 is called conv9, but export.json has conv2 there"),
        ("test_conv.csv", "conv2", "DP_conv2", "takes it for a depthwise convolution"),
        ("test_conv.csv", "conv2,6,6,3,3,8,4,1,\n", "", "not where the layer before it ends"),
        ("test_conv.csv", "conv2,6,6,3,3,8,4,1,\n", "conv2,6,6,3,3,8,4,1,\nconv3,6,6,3,3,8,4,1,\n", "lines from 4 on belong to no layer"),
        ("test_conv.csv", "conv2,6,6,3,3,8,4,1,\n", "conv2,6,6,3,3,8,4,1,", "does not end with a line end"),
        ("test_conv.csv", "conv2,6,6,3,3", "conv2,2,6,3,3", "a filter larger than its IFMAP"),
        ("test_conv.csv", "conv2,6,6,3,3", "conv2,8,8,3,3", "output height is 6, the trace has 4"),
        ("test_conv.csv", "conv2,6,6,3,3", "conv2,8,4,5,1", "filter height is 5, the trace has 3"),
        ("test_conv.csv", "conv2,6,6,3,3,8,4,1", "conv2,9,9,3,3,8,4,2", "stride is 2, the trace has 1"),
        ("test_conv.csv", "conv2,6,6,3,3,8,4,1", "conv2,6,6,3,3,4,8,1", "channels is 4, the trace has 8"),
        ("test_gemm.csv", "dense,1,10,64,", "dense,10,1,64,", "M is 10, the trace has 1"),
        ("test_gemm.csv", "dense,1,10,64,", "dense,8,10,64,", "5120 MACs in the file, 640 in the trace"),
        ("test_gemm.cfg", "[sparsity]\nSparsitySupport = false\n", "", "lacks sparsity.sparsitysupport"),
        ("test_gemm.cfg", "Dataflow = os", "Dataflow = rs", "an unknown dataflow"),
        ("test_gemm.cfg", "[general]", "general", "cannot be read"),
        ("export.json", '"layer_ids": [\n     1,', '"layer_ids": [\n     0,', "SCALE-Sim will number its layers 1 to 1"),
        ("export.json", '"macs": 640', '"macs": 641', "640 MACs in the file, 641 in the trace"),
        ("export.json", '"role": "gemm"', '"role": "gemmm"', "export.json says too little of it"),
    ],
)  # fmt: skip
def test_check_finds(tmp_path: Path, file: str, old: str, new: str, problem: str) -> None:
    export(small_network(), tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(old) >= 1
    (tmp_path / file).write_text(text.replace(old, new, 1))
    found = SCALE_SIM.check(tmp_path)
    assert not found.ok
    assert any(problem in p for p in found.problems), found.problems


def test_check_finds_missing_and_foreign_files(tmp_path: Path) -> None:
    for name in ("test_conv.csv", "test_conv.cfg", "test_layout.csv"):
        folder = tmp_path / name
        export(small_network(), folder)
        (folder / name).unlink()
        assert not SCALE_SIM.check(folder).ok
    export(small_network(), tmp_path / "foreign")
    shutil.copy(tmp_path / "foreign" / "test_conv.csv", tmp_path / "foreign" / "other_conv.csv")
    assert SCALE_SIM.check(tmp_path / "foreign").problems == ("other_conv.csv is not in export.json",)
    with pytest.raises(ExportError, match="does not exist"):
        SCALE_SIM.check(tmp_path)


def test_a_transposed_kernel_is_found_although_it_keeps_the_macs(tmp_path: Path) -> None:
    export(convolution([1, 9, 8, 4], [3, 2, 4, 8], [1, 7, 7, 8]), tmp_path)
    path = tmp_path / "test_conv.csv"
    path.write_text(path.read_text().replace("c,9,8,3,2,", "c,8,9,2,3,"))
    assert set(SCALE_SIM.check(tmp_path).problems) == {
        "test_conv.csv: c: filter height is 2, the trace has 3", "test_conv.csv: c: filter width is 3, the trace has 2",
    }  # fmt: skip


def test_check_states_what_it_found(tmp_path: Path) -> None:
    export(small_network(), tmp_path)
    assert SCALE_SIM.check(tmp_path).facts == {
        "convolution lines": 2, "product lines": 1, "simulated layers": 3, "macs": 13_824 + 4_608 + 640,
    }  # fmt: skip


# --- results ----------------------------------------------------------------------------------------------------------------------

HEADER = (
    "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %,\n"
)  # fmt: skip


def compute_report(folder: Path, run: str, cycles: list[int]) -> Path:
    """A report as SCALE-Sim writes it."""
    path = folder / run / "COMPUTE_REPORT.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "".join(f"{i}, {2 * c}, {c}, 0, 33.1, 70.3, 30.4,\n" for i, c in enumerate(cycles)))
    return path


def test_results_are_spread_over_executions(tmp_path: Path) -> None:
    """A depthwise line is 3 simulated layers, a loop of 2 executions has count 2; a cycle is 0.5 ns."""
    program = Program()
    program.convolution("c", [1, 9, 8, 4], [3, 2, 4, 8], [1, 7, 7, 8])
    program.convolution("dw", [1, 9, 8, 3], [3, 2, 3, 1], [1, 7, 7, 3], "DepthwiseConv2dNative")
    program.convolution("d", [1, 9, 8, 4], [3, 2, 4, 8], [1, 7, 7, 8])
    a, b = program.input("a", [7, 4]), program.input("b", [4, 5])
    for _ in range(2):
        program.op("m", "MatMul", [a, b], [7, 5], {})
    trace = program.trace()
    export(trace, tmp_path)
    layer_map = read_layer_map(tmp_path)
    compute_report(tmp_path / "results", "test_conv", [100, 7, 7, 7, 50])
    compute_report(tmp_path / "results", "test_gemm", [30])
    by_node = {
        trace.node_names[int(trace.executions.node[e])]: ns
        for e, ns in SCALE_SIM.read_results(tmp_path / "results", layer_map, 0.5).items()
    }  # fmt: skip
    assert by_node == {"c": 50.0, "dw": 10.5, "d": 25.0, "m": 15.0}
    assert len(SCALE_SIM.read_results(tmp_path / "results", layer_map, 0.5)) == 5
    prefetched = SCALE_SIM.read_results(tmp_path / "results", layer_map, 1.0, column="Total Cycles (incl. prefetch)")
    assert sum(prefetched.values()) == 2 * (100 + 21 + 50 + 2 * 30)
    only = SCALE_SIM.read_results(tmp_path / "results" / "test_gemm" / "COMPUTE_REPORT.csv", layer_map, 1.0)
    assert list(only.values()) == [30.0, 30.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[: t.index("\n1, ") + 1], "line 3: test_conv.csv makes 2 layers, the report ends after 1"),
        (lambda t: t + "2, 4, 2, 0, 1, 1, 1,\n", "line 4: test_conv.csv makes 2 layers only; the report is of another export"),
        (lambda t: t[:-9], "line 3 has not 7 cells with a comma after each; the report is damaged"),
        (lambda t: t[:-1], "line 3 has no line end; the report is cut off"),
        (lambda t: t.replace("1, 14, 7", "7, 14, 7"), "line 3 is of layer '7' where layer 1 belongs"),
        (lambda t: t.replace("14, 7", "14, seven"), "line 3: 'seven' is no number of cycles"),
        (lambda t: t.replace("14, 7", "14, -7"), "line 3: '-7' is no number of cycles"),
        (lambda t: t.replace("Total Cycles (incl. prefetch), ", ""), "line 1 is not the header"),
        (lambda _: "", "line 1 is not the header"),
    ],
)
def test_a_damaged_report_names_the_line(tmp_path: Path, change: Any, message: str) -> None:
    export(small_network(), tmp_path)
    path = compute_report(tmp_path, "test_conv", [5, 7])
    path.write_text(change(path.read_text()))
    with pytest.raises(ExportError) as caught:
        SCALE_SIM.read_results(path, read_layer_map(tmp_path), 1.0)
    assert message in str(caught.value)


def test_a_report_must_belong_to_a_file(tmp_path: Path) -> None:
    export(small_network(), tmp_path)
    layer_map = read_layer_map(tmp_path)
    path = compute_report(tmp_path, "elsewhere", [5, 7])
    with pytest.raises(ExportError, match=r"may be of test_conv or of test_gemm; put it in a folder of that name"):
        SCALE_SIM.read_results(path, layer_map, 1.0)
    compute_report(tmp_path / "results", "test_conv", [5, 7])
    with pytest.raises(ExportError, match=r"has no test_gemm/COMPUTE_REPORT\.csv; simulate test_gemm\.csv"):
        SCALE_SIM.read_results(tmp_path / "results", layer_map, 1.0)
    with pytest.raises(ExportError, match="cannot be read"):
        SCALE_SIM.read_results(tmp_path / "none.csv", [layer for layer in layer_map if "gemm" in layer.place], 1.0)
    with pytest.raises(ExportError, match="'Stall Cycles' is no column of cycles"):
        SCALE_SIM.read_results(
            path.parent.parent / "results" / "test_conv" / "COMPUTE_REPORT.csv", layer_map, 1.0, column="Stall Cycles"
        )


# --- VGG-19 -----------------------------------------------------------------------------------------------------------------------

VGG19 = [
    ("conv1_1", 224, 3, 64), ("conv1_2", 224, 64, 64),
    ("conv2_1", 112, 64, 128), ("conv2_2", 112, 128, 128),
    ("conv3_1", 56, 128, 256), ("conv3_2", 56, 256, 256), ("conv3_3", 56, 256, 256), ("conv3_4", 56, 256, 256),
    ("conv4_1", 28, 256, 512), ("conv4_2", 28, 512, 512), ("conv4_3", 28, 512, 512), ("conv4_4", 28, 512, 512),
    ("conv5_1", 14, 512, 512), ("conv5_2", 14, 512, 512), ("conv5_3", 14, 512, 512), ("conv5_4", 14, 512, 512),
]  # fmt: skip
"""Simonyan and Zisserman 2014, table 1, configuration E: name, side of the map, channels in, filters; all 3x3, stride 1, padded by 1."""

VGG19_DENSE = [("fc6", 7 * 7 * 512, 4096), ("fc7", 4096, 4096), ("fc8", 4096, 1000)]


def vgg19(batch: int) -> Trace:
    """A training step's convolutions and products of VGG-19: forward, filter gradients, and input gradients of all but the first."""
    program = Program()
    for name, side, channels, filters in VGG19:
        shapes = [batch, side, side, channels], [3, 3, channels, filters], [batch, side, side, filters]
        program.convolution(f"{name}/Conv2D", *shapes, padding="SAME")
    for name, inputs, outputs in VGG19_DENSE:
        program.product(f"{name}/MatMul", [batch, inputs], [inputs, outputs], [batch, outputs])
    for name, inputs, outputs in reversed(VGG19_DENSE):
        program.product(f"gradients/{name}/MatMul", [batch, outputs], [inputs, outputs], [batch, inputs], transpose_b=True)
        program.product(f"gradients/{name}/MatMul_1", [batch, inputs], [batch, outputs], [inputs, outputs], transpose_a=True)
    for name, side, channels, filters in reversed(VGG19):
        shapes = [batch, side, side, channels], [3, 3, channels, filters], [batch, side, side, filters]
        kinds = ("Conv2DBackpropFilter", "Conv2DBackpropInput") if name != "conv1_1" else ("Conv2DBackpropFilter",)
        for kind in kinds:
            program.convolution(f"gradients/{name}/{kind}", *shapes, kind, padding="SAME")
    return program.trace("vgg")


def vgg19_macs(name: str) -> int:
    """MACs of one layer and image, from the table."""
    for layer, side, channels, filters in VGG19:
        if layer == name:
            return side * side * filters * 9 * channels
    return next(inputs * outputs for layer, inputs, outputs in VGG19_DENSE if layer == name)


FORWARD_MACS = 19_632_062_464
"""The sum over the table: 19,508,428,800 in the convolutions and 123,633,664 in the dense layers."""


def test_the_table_of_vgg19_adds_up() -> None:
    """Some of the published values, and the sums: VGG-16 (configuration D) is the same without the fourth layers: 15.35 G."""
    assert vgg19_macs("conv1_1") == 86_704_128
    assert vgg19_macs("conv1_2") == 1_849_688_064
    assert vgg19_macs("conv5_4") == 462_422_016
    assert vgg19_macs("fc6") == 102_760_448
    assert sum(vgg19_macs(name) for name, *_ in (*VGG19, *VGG19_DENSE)) == FORWARD_MACS
    assert sum(vgg19_macs(name) for name, *_ in VGG19 if not name.endswith("_4")) == 15_346_630_656


def test_padding_is_not_dropped(tmp_path: Path) -> None:
    """VGG-16's convolutions: written without padding, each map would be 2 smaller and the sum 13.88 G instead of 15.35 G."""
    program = Program()
    vgg16 = [row for row in VGG19 if not row[0].endswith("_4")]
    for name, side, channels, filters in vgg16:
        program.convolution(name, [1, side, side, channels], [3, 3, channels, filters], [1, side, side, filters], padding="SAME")
    export(program.trace(), tmp_path)
    written = values(tmp_path, "conv")

    def macs(dropped: int) -> int:
        return sum((h - dropped - r + 1) * (w - dropped - s + 1) * r * s * c * k for h, w, r, s, c, k, _ in written)

    assert macs(0) == 15_346_630_656
    assert macs(2) == 13_884_537_600


@pytest.mark.parametrize("batch", ["gemm", "repeat"])
def test_vgg19_training(tmp_path: Path, batch: str) -> None:
    """Batch 8: forward and filter gradients have 8 * 19,632,062,464 MACs, input gradients lack the first layer; dense layers have both."""
    report = export(vgg19(8), tmp_path, batch=batch)
    macs = {"forward": 0, "filter_grad": 0, "input_grad": 0, "gemm": 0}
    for layer in report.layers:
        macs[layer.facts["nest"]["role"]] += layer.macs
    dense = sum(vgg19_macs(name) for name, *_ in VGG19_DENSE)
    convolutions = FORWARD_MACS - dense
    assert macs == {
        "forward": 8 * convolutions, "filter_grad": 8 * convolutions, "input_grad": 8 * (convolutions - 86_704_128), "gemm": 3 * 8 * dense,
    }  # fmt: skip
    assert report.totals()["macs"]["skipped"] == 0
    assert len(report.layers) == 16 + 16 + 15 + 9


@pytest.mark.simulator
def test_the_real_parser_agrees_with_the_published_vgg19(tmp_path: Path) -> None:
    """One line an image: MACs, 3x3 kernel, stride 1, channels, filters and size of every convolution; dense layers as products."""
    report = export(vgg19(1), tmp_path)
    by_name = {layer.name: rows for layer, rows in parsed_layers(report, tmp_path)}
    for name, side, channels, filters in VGG19:
        (row,) = by_name[f"{name}_Conv2D"]
        assert row == {
            "name": f"{name}_Conv2D", "macs": vgg19_macs(name), "output": [side, side], "kernel": [3, 3], "stride": [1, 1],
            "channels": channels, "filters": filters,
        }  # fmt: skip
    for name, inputs, outputs in VGG19_DENSE:
        (row,) = by_name[f"{name}_MatMul"]
        assert (row["macs"], row["output"], row["kernel"], row["filters"]) == (inputs * outputs, [1, 1], [1, inputs], outputs)
    forward = sum(rows[0]["macs"] for layer, rows in parsed_layers(report, tmp_path) if not layer.name.startswith("gradients"))
    assert forward == FORWARD_MACS


# --- the real simulator -----------------------------------------------------------------------------------------------------------


@pytest.mark.simulator
@pytest.mark.parametrize("batch", ["gemm", "repeat"])
def test_the_real_parser_agrees_on_random_layers(tmp_path: Path, batch: str) -> None:
    """300 random convolutions of every kind, their gradients and 60 products: SCALE-Sim's own numbers against a brute-force count."""
    chance = random.Random(106)
    program, expected = Program(), {}
    while len(expected) < 300:
        case = random_case(chance)
        if chance.random() < 0.5:  # half of them such that a line can say them
            case = replace(case, stride=case.stride[:1] * len(case.size), dilation=(1,) * len(case.size))
        counted = count(case)
        if counted.macs:
            role = chance.choice(("forward", "forward", "filter_grad", "input_grad"))
            expected[add(program, f"layer{len(expected)}", case, counted.output, role)] = (case, counted, role)
    products = {}
    for i in range(60):
        m, n, k, b = (chance.randint(1, 9) for _ in range(4))
        products[program.product(f"product{i}", [b, k, m], [b, k, n], [b, m, n], "BatchMatMulV2", adj_x=True)] = (m, n, k, b)
    report = export(program.trace(), tmp_path, batch=batch)
    assert report.totals()["macs"]["total"] == sum(c.macs for _, c, _ in expected.values()) + sum(map(prod, products.values()))
    as_lines = 0
    for layer, rows in parsed_layers(report, tmp_path):
        assert sum(row["macs"] for row in rows) * layer.count == layer.macs
        (execution,) = layer.executions
        if execution in products:
            m, n, k, b = products[execution]
            assert all((row["output"], row["kernel"], row["filters"]) == ([m, 1], [1, k], n) for row in rows)
            assert layer.macs == m * n * k * b
            continue
        case, counted, role = expected[execution]
        assert layer.macs == counted.macs
        assert sum(row["macs"] for row in rows) == counted.macs // layer.count
        if "_conv.csv" in layer.place:
            as_lines += 1
            assert role == "forward"
            assert layer.count == case.batch
            assert len(rows) == case.groups
            for row in rows:
                assert tuple(row["output"]) == counted.output
                assert tuple(row["kernel"]) == case.kernel
                assert all(s == r for s, r, o in zip(case.stride, row["stride"], counted.output, strict=True) if o > 1)
                assert (row["channels"], row["filters"]) == (case.channels, case.filters)
        else:
            images, outputs, taps = case.batch, prod(counted.output), prod(case.kernel) * case.channels
            m, n, k = {
                "forward": (images * outputs, case.filters, taps),
                "filter_grad": (taps, case.filters, images * outputs),
                "input_grad": (images * outputs, taps, case.filters),
            }[role]
            assert len(rows) == case.groups
            assert all((row["output"], row["kernel"], row["filters"]) == ([m, 1], [1, k], n) for row in rows)
    assert as_lines > {"gemm": 20, "repeat": 40}[batch]


def tiny_program(chance: random.Random) -> Trace:
    """Convolutions (H != W, R != S), a depthwise one, both gradients and products, each of at most a few thousand cycles."""
    program = Program()
    program.convolution("conv", [1, 9, 12, 3], [3, 2, 3, 5], [1, 4, 6, 5], strides=[1, 2, 2, 1])
    program.convolution("padded", [1, 6, 5, 4], [3, 1, 4, 6], [1, 6, 5, 6], padding="SAME")
    program.convolution("dw", [1, 8, 9, 3], [3, 2, 3, 2], [1, 6, 8, 6], "DepthwiseConv2dNative")
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(f"gradients/{kind}", [2, 9, 12, 3], [3, 2, 3, 5], [2, 4, 6, 5], kind, strides=[1, 2, 2, 1])
    for i in range(4):
        m, n, k = chance.randint(1, 30), chance.randint(1, 30), chance.randint(1, 30)
        program.product(f"product{i}", [m, k], [k, n], [m, n])
    return program.trace()


@pytest.mark.simulator
@pytest.mark.parametrize(("dataflow", "rows", "columns"), [("os", 5, 7), ("ws", 7, 4), ("is", 4, 6), ("ws", 16, 16)])
def test_simulated_cycles_equal_the_closed_form(tmp_path: Path, dataflow: str, rows: int, columns: int) -> None:
    """The commands of the report run to the end; every layer's Total Cycles is the formula's, written out here again."""
    chance = random.Random(f"{dataflow}{rows}")
    trace = tiny_program(chance)
    report = export(trace, tmp_path, dataflow=dataflow, array_rows=str(rows), array_columns=str(columns))
    assert sum(layer.facts["cycles"] for layer in report.layers) < 20_000
    cycles = simulate(report, tmp_path)
    parsed = parse(tmp_path)
    assert {name.removesuffix(".csv"): len(found) for name, found in parsed.items()} == {name: len(c) for name, c in cycles.items()}
    for file, found in parsed.items():
        for row, simulated in zip(found, cycles[file.removesuffix(".csv")], strict=True):
            m, n = prod(row["output"]), row["filters"]
            k = row["macs"] // (m * n)
            assert (
                simulated
                == {
                    "os": ceil(m / rows) * ceil(n / columns) * (k + rows + columns - 2) - 1,
                    "ws": ceil(k / rows) * ceil(n / columns) * (m + 2 * rows + columns - 2) - 1,
                    "is": ceil(k / rows) * ceil(m / columns) * (n + 2 * rows + columns - 2) - 1,
                }[dataflow]
            ), row
    results = SCALE_SIM.read_results(tmp_path / "results", read_layer_map(tmp_path), 2.0)
    for layer in report.layers:
        first, last = layer.facts["layer_ids"]
        assert sum(results[e] for e in layer.executions) == 2.0 * sum(cycles[layer.place.partition(".")[0]][first : last + 1])
        assert sum(results[e] for e in layer.executions) == 2.0 * layer.facts["cycles"]


@pytest.mark.simulator
@pytest.mark.parametrize("damage", ["no trailing comma", "no header", "accidental DP"])
def test_the_faults_that_check_finds_do_mislead_the_real_parser(tmp_path: Path, damage: str) -> None:
    """Why `check` is strict: what it refuses, SCALE-Sim either dies of or takes for something else without a word."""
    report = export(small_network(), tmp_path)
    path = tmp_path / "test_conv.csv"
    text = path.read_text()
    if damage == "no trailing comma":
        path.write_text(text.replace(",\n", "\n"))
        with pytest.raises(AssertionError, match="IndexError"):
            parse(tmp_path)
    elif damage == "no header":
        path.write_text(text.partition("\n")[2])
        assert [row["name"] for row in parse(tmp_path)["test_conv.csv"]] == ["conv2"]
    else:
        path.write_text(text.replace("conv2", "UDP_conv2"))
        assert len(parse(tmp_path)["test_conv.csv"]) == 1 + 8
    assert not SCALE_SIM.check(tmp_path).ok
    assert len(report.layers) == 3


def test_the_layer_map_survives_json(tmp_path: Path) -> None:
    report = export(small_network(), tmp_path)
    assert read_layer_map(tmp_path) == [ExportedLayer(**vars(layer)) for layer in report.layers]
    assert json.loads((tmp_path / "export.json").read_text())["target"]["proof"] == "target ran"


@pytest.mark.capture
@pytest.mark.simulator
def test_the_example_goes_from_a_capture_to_the_speedup_of_the_whole_step(tmp_path: Path) -> None:
    """VGG-19 has 16 convolutions, 16 filter gradients and, but for the image, 15 input gradients; 3 dense layers have 3 products each."""
    pytest.importorskip("tensorflow")
    simulated, gained, untouched = run_example("scale_sim_closes_the_loop.py", "scalesim", "vgg", tmp_path)[-3:]
    assert simulated.endswith(f" layers simulated for {16 + 16 + 15 + 3 * 3} executions")
    found = re.fullmatch(r"the whole step gets ([0-9.]+) times faster \(by Amdahl ([0-9.]+)\)", gained)
    share = re.fullmatch(r"([0-9.]+)% of the op time the accelerator never touched", untouched)
    assert found is not None
    assert share is not None
    # what was not touched bounds what can be gained; idle time, which Amdahl keeps as well, bounds it further
    assert 1 < float(found[2]) <= 100 / float(share[1]) + 0.01
