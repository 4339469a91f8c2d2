"""Does Timeloop get the layers that ran? Problems by hand arithmetic, read by a YAML parser and run as loops; its parser's strictness."""

from __future__ import annotations

import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from fathom_trace.errors import ExportError, UnknownNameError
from fathom_trace.exporter import ExportReport, read_layer_map, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import apply_settings
from fathom_trace.trace import Trace
from tests.brute_force import Case
from tests.program import Program, dilated_depthwise
from tests.random_layers import RandomLayer, random_layers
from tests.small import diamond
from tests.touched import Touched, touch

TIMELOOP: Any = REGISTRY.load("timeloop")

CNN_LAYER: Any = {
    "dimensions": ["R", "S", "P", "Q", "C", "K", "N"],
    "data_spaces": [
        {"name": "Weights", "projection": [[["C"]], [["K"]], [["R"]], [["S"]]]},
        {
            "name": "Inputs",
            "projection": [[["N"]], [["C"]], [["R", "Wdilation"], ["P", "Wstride"]], [["S", "Hdilation"], ["Q", "Hstride"]]],
        },
        {"name": "Outputs", "projection": [[["N"]], [["K"]], [["Q"]], [["P"]]], "read_write": True},
    ],
}
"""problem-shapes/cnn_layer.yaml of Timeloop, every coefficient 1 unless the instance says otherwise."""


VGG16 = [
    (224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (56, 256, 256),
    (28, 256, 512), (28, 512, 512), (28, 512, 512), (14, 512, 512), (14, 512, 512), (14, 512, 512),
]  # fmt: skip
"""Simonyan and Zisserman 2014, table 1, configuration D: side of the map, channels in, filters; all 3x3, stride 1, padded by 1."""


def export(trace: Trace, folder: Path, **settings: str) -> ExportReport:
    """Write an export with its export.json; its own strict parser must find no problem."""
    folder.mkdir(parents=True, exist_ok=True)
    report: ExportReport = TIMELOOP.write(trace, folder, apply_settings(TIMELOOP.Options(), settings, "exporter 'timeloop'"))
    write_report(folder, report)
    assert TIMELOOP.check(folder).problems == ()
    return report


def convolution(*arguments: Any, **attributes: Any) -> Trace:
    """A trace of one convolution."""
    program = Program()
    program.convolution("c", *arguments, **attributes)
    return program.trace()


def instance(folder: Path, report: ExportReport, number: int = 0) -> dict[str, int]:
    """The instance of a problem."""
    values: dict[str, int] = yaml.safe_load((folder / report.files[number]).read_text())["problem"]["instance"]
    return values


def run(path: Path) -> tuple[Touched, dict[str, list[dict[str, int]]]]:
    """What a problem touches when its loops run, and each data space's indices with the values of the coefficients."""
    content = yaml.safe_load(path.read_text())
    assert list(content) == ["problem"]
    problem = content["problem"]
    assert set(problem) == {"version", "shape", "instance"}
    assert problem["version"] == 0.4
    shape = CNN_LAYER if problem["shape"] == "cnn_layer" else problem["shape"]
    values = problem["instance"]
    spaces = {
        space["name"]: [{term[0]: values[term[1]] if len(term) > 1 else 1 for term in terms} for terms in space["projection"]]
        for space in shape["data_spaces"]
    }
    assert [space["name"] for space in shape["data_spaces"] if space.get("read_write")] == ["Outputs"]
    return touch({d: values[d] for d in shape["dimensions"]}, spaces), spaces


# --- cases that people ran into ---------------------------------------------------------------------------------------------------


def test_width_is_p_and_r_height_is_q_and_s(tmp_path: Path) -> None:
    """C10: 9x7, kernel (3, 1), SAME, 8 filters: OY=9, OX=7, FY=3, FX=1, 6,048 MACs. `cnn_layer` pairs P and R with Wstride."""
    report = export(convolution([1, 9, 7, 4], [3, 1, 4, 8], [1, 9, 7, 8], padding="SAME"), tmp_path)
    assert instance(tmp_path, report) == {
        "R": 1, "S": 3, "P": 7, "Q": 9, "C": 4, "K": 8, "N": 1, "Wstride": 1, "Hstride": 1, "Wdilation": 1, "Hdilation": 1,
    }  # fmt: skip
    assert report.layers[0].macs == 6_048 == run(tmp_path / report.files[0])[0].macs
    (text,) = [text for text in report.approximations if "padding" in text]
    assert "308 with it, 252 without" in text  # 4 channels of 11 x 7, of which 9 x 7 are real


def test_strides_and_dilations_stay_on_their_axes(tmp_path: Path) -> None:
    """C6 and more: strides (2, 1) by (height, width), dilation (1, 3); 9x9, 3x3: outputs 4 and 9 - 6 = 3."""
    trace = convolution([1, 9, 9, 4], [3, 3, 4, 8], [1, 4, 3, 8], strides=[1, 2, 1, 1], dilations=[1, 1, 3, 1])
    report = export(trace, tmp_path)
    found = instance(tmp_path, report)
    assert {key: found[key] for key in ("P", "Q", "Wstride", "Hstride", "Wdilation", "Hdilation")} == {
        "P": 3, "Q": 4, "Wstride": 1, "Hstride": 2, "Wdilation": 3, "Hdilation": 1,
    }  # fmt: skip


def test_depthwise_has_a_group_and_no_channel(tmp_path: Path) -> None:
    """C16: depthwise 3x3, multiplier 2 on [3, 9, 9, 4]: N=3, G=4, M=2, P=Q=7, R=S=3: 10,584 MACs; nothing is summed over channels."""
    report = export(convolution([3, 9, 9, 4], [3, 3, 4, 2], [3, 7, 7, 8], "DepthwiseConv2dNative"), tmp_path)
    found = instance(tmp_path, report)
    assert {d: found[d] for d in "NGMPQRS"} == {"N": 3, "G": 4, "M": 2, "P": 7, "Q": 7, "R": 3, "S": 3}
    assert "C" not in found
    touched, _ = run(tmp_path / report.files[0])
    assert touched.macs == 10_584
    assert touched.elements == {"Inputs": 3 * 9 * 9 * 4, "Weights": 9 * 8, "Outputs": 3 * 7 * 7 * 8}


def test_a_dilated_depthwise_convolution_is_its_logical_layer(tmp_path: Path) -> None:
    """C9, C12: N=3, G=4, M=2, P=Q=5, dilation 2: 5,400 MACs, not the 7,776 that the op between the reshuffles does."""
    trace, _ = dilated_depthwise()
    report = export(trace, tmp_path)
    found = instance(tmp_path, report)
    assert [found[key] for key in ("N", "G", "M", "P", "Q", "R", "S", "Wdilation", "Hdilation")] == [3, 4, 2, 5, 5, 3, 3, 2, 2]
    assert report.layers[0].macs == 5_400
    assert len(report.layers[0].executions) == 3


def test_groups_are_a_dimension(tmp_path: Path) -> None:
    """2 groups, 5x5, 27x27, 96 to 256: 223,948,800 MACs with 48 channels and 128 filters in each."""
    report = export(convolution([1, 27, 27, 96], [5, 5, 48, 256], [1, 27, 27, 256], padding="SAME"), tmp_path)
    found = instance(tmp_path, report)
    assert [found[d] for d in "NGMCPQRS"] == [1, 2, 128, 48, 27, 27, 5, 5]
    assert report.layers[0].macs == 223_948_800


def test_products(tmp_path: Path) -> None:
    """C11: x[4, 6]^T dy[4, 5] is M=6, N=5, K=4. B3: two products of 3 with a broadcast left operand; 12 heads of 197 x 197 x 64."""
    program = Program()
    program.product("dw", [4, 6], [4, 5], [6, 5], transpose_a=True)
    program.product("broadcast", [2, 1, 7, 4], [3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2")
    program.product("heads", [12, 197, 64], [12, 64, 197], [12, 197, 197], "BatchMatMulV2")
    report = export(program.trace(), tmp_path)
    assert instance(tmp_path, report, 0) == {"M": 6, "N": 5, "K": 4}
    assert instance(tmp_path, report, 2) == {"B": 12, "M": 197, "N": 197, "K": 64}
    assert [layer.macs for layer in report.layers] == [120, 840, 29_805_312]
    touched, _ = run(tmp_path / report.files[1])
    assert (touched.macs, touched.elements) == (840, {"Inputs": 2 * 7 * 4, "Weights": 3 * 4 * 5, "Outputs": 6 * 7 * 5})


def test_faults_of_other_converters(tmp_path: Path) -> None:
    """C17: channels first is the same problem. The stride is the attribute, not 9 // 5; a batch is a dimension, in the rows only;
    [197, 768] x [768, 3072] contracts 768; a branch that never ran is no problem."""
    first = export(convolution([3, 4, 9, 8], [3, 2, 4, 8], [3, 8, 7, 7], data_format="NCHW"), tmp_path / "first")
    last = export(convolution([3, 9, 8, 4], [3, 2, 4, 8], [3, 7, 7, 8], data_format="NHWC"), tmp_path / "last")
    assert instance(tmp_path / "first", first) == instance(tmp_path / "last", last)
    assert first.layers[0].macs == 3 * 49 * 8 * 24
    program = Program()
    program.convolution("strided", [1, 9, 9, 1], [1, 1, 1, 1], [1, 5, 5, 1], strides=[1, 2, 2, 1])
    program.product("dense", [197, 768], [768, 3072], [197, 3072])
    program.product("batched", [8, 7, 4], [4, 5], [8, 7, 5], "BatchMatMulV2")
    program.builder.node("auxiliary/MatMul", "MatMul")
    report = export(program.trace(), tmp_path / "more")
    strided, dense, batched = (instance(tmp_path / "more", report, i) for i in range(3))
    assert (strided["Wstride"], strided["Hstride"], strided["P"], strided["Q"]) == (2, 2, 5, 5)
    assert dense == {"M": 197, "N": 3072, "K": 768}
    assert batched == {"B": 8, "M": 7, "N": 5, "K": 4}
    assert run(tmp_path / "more" / report.files[2])[0].elements == {"Inputs": 8 * 28, "Weights": 20, "Outputs": 8 * 35}


def test_padding_is_not_dropped(tmp_path: Path) -> None:
    """VGG-16's convolutions, each distinct one with its count: 15.35 G MACs; without their padding it would be 13.88 G."""
    program = Program()
    for i, (side, channels, filters) in enumerate(VGG16):
        program.convolution(f"c{i}", [1, side, side, channels], [3, 3, channels, filters], [1, side, side, filters], padding="SAME")
    report = export(program.trace(), tmp_path)
    total = 0
    for number, layer in enumerate(report.layers):
        values = instance(tmp_path, report, number)
        total += prod(values[d] for d in CNN_LAYER["dimensions"]) * layer.count
    assert total == 15_346_630_656
    assert len(report.layers) == 9


def test_gradients_write_what_they_compute(tmp_path: Path) -> None:
    """B12: 3x3 stride 2 of [3, 9, 9, 4] to 4x4x8: 13,824 MACs each; the filter gradient writes 288 elements, the input's 3*9*9*4."""
    program = Program()
    shapes = [3, 9, 9, 4], [3, 3, 4, 8], [3, 4, 4, 8]
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput"):
        program.convolution(kind, *shapes, kind, strides=[1, 2, 2, 1])
    report = export(program.trace(), tmp_path)
    image, filters, outputs = 3 * 9 * 9 * 4, 9 * 4 * 8, 3 * 4 * 4 * 8
    expected = [(image, outputs, filters), (outputs, filters, image)]
    for layer, elements in zip(report.layers, expected, strict=True):
        touched, _ = run(tmp_path / layer.place)
        assert touched.macs == layer.macs == 13_824
        assert tuple(touched.elements[s] for s in ("Inputs", "Weights", "Outputs")) == elements


def test_equal_layers_are_one_problem_with_a_count(tmp_path: Path) -> None:
    """Two nodes of one shape and a loop of 3: one problem of count 5; with unique=false one for each node."""
    program = Program()
    a, b = program.input("a", [7, 4]), program.input("b", [4, 5])
    program.op("one/MatMul", "MatMul", [a, b], [7, 5], {})
    program.op("日本", "MatMul", [a, b], [7, 5], {})
    for _ in range(3):
        program.op("loop/MatMul", "MatMul", [a, b], [7, 5], {})
    trace = program.trace()
    merged = export(trace, tmp_path / "merged")
    assert merged.files == ("layer0_one_MatMul.yaml",)
    assert [(layer.count, layer.macs, len(layer.executions)) for layer in merged.layers] == [(5, 700, 5)]
    assert "and 2 more" in merged.layers[0].note
    apart = export(trace, tmp_path / "apart", unique="false")
    assert apart.files == ("layer0_one_MatMul.yaml", "layer1__.yaml", "layer2_loop_MatMul.yaml")
    assert [layer.count for layer in apart.layers] == [1, 1, 3]
    assert merged.totals() == apart.totals()
    assert merged.totals()["executions"] == {"exported": 5, "skipped": 2, "total": 7}


def test_the_own_shape_can_be_written_out(tmp_path: Path) -> None:
    """The same problem with the shape inline touches the same elements by the same indices."""
    trace = convolution([2, 9, 12, 3], [3, 2, 3, 5], [2, 4, 11, 5], strides=[1, 2, 1, 1])
    by_name, inline = export(trace, tmp_path / "name"), export(trace, tmp_path / "inline", shape="inline")
    first, second = run(tmp_path / "name" / by_name.files[0])[0], run(tmp_path / "inline" / inline.files[0])[0]
    assert (first.macs, first.elements) == (second.macs, second.elements)
    assert "cnn_layer" not in (tmp_path / "inline" / inline.files[0]).read_text()


def test_a_trace_without_products_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nothing of the trace has a loop nest .*; what may multiply: 1 x OpB"):
        TIMELOOP.write(diamond(), tmp_path, TIMELOOP.Options())
    with pytest.raises(UnknownNameError, match="did you mean 'unique'"):
        apply_settings(TIMELOOP.Options(), {"uniqe": "true"}, "exporter")


# --- random layers ----------------------------------------------------------------------------------------------------------------


def spatial(layer: RandomLayer, found: dict[str, list[dict[str, int]]]) -> dict[str, tuple[int, int]]:
    """(stride, dilation) of each axis, from the indices of the data space that is the image."""
    image = found["Outputs" if layer.role == "input_grad" else "Inputs"]
    pairs = {"width": ("P", "R"), "height": ("Q", "S"), "depth": ("D", "T")}
    return {axis: (i[o], i[k]) for axis, (o, k) in pairs.items() for i in image if set(i) == {o, k}}


@pytest.mark.parametrize("shape", ["cnn_layer", "inline"])
def test_random_layers(tmp_path: Path, shape: str) -> None:
    """300 random convolutions and gradients and 60 products: the file's loops, when run, touch what brute force counts in the layer."""
    trace, layers = random_layers(51 if shape == "inline" else 52)
    report = export(trace, tmp_path, shape=shape, unique="false")
    by_execution = {layer.executions[0]: layer for layer in report.layers}
    assert len(by_execution) == len(layers) == 360
    named = 0
    for layer in layers:
        written = by_execution[layer.execution]
        values = instance(tmp_path, report, report.files.index(written.place))
        touched, indices = run(tmp_path / written.place)
        assert touched.macs == layer.counted.macs == written.macs
        if not isinstance(layer.case, Case):
            assert (values["M"], values["N"], values["K"]) == (layer.case.m, layer.case.n, layer.case.k)
            counted: Any = layer.counted
            assert touched.elements["Inputs"] == counted.left
            assert touched.elements["Weights"] == counted.right
            continue
        case, counted = layer.case, layer.counted
        operands = {"input": counted.inputs_with_padding, "filter": counted.filters, "output": counted.outputs}
        order = {
            "forward": ("input", "filter", "output"),
            "filter_grad": ("input", "output", "filter"),
            "input_grad": ("output", "filter", "input"),
        }
        for space, operand in zip(("Inputs", "Weights", "Outputs"), order[layer.role], strict=True):
            assert touched.elements[space] == operands[operand], (layer.name, operand)
        assert written.facts["operands"]["input"]["elements_without_padding"] == counted.inputs
        axes = ("depth", "height", "width")[-len(case.size) :]
        assert spatial(layer, indices) == dict(zip(axes, zip(case.stride, case.dilation, strict=True), strict=True))
        letters = {"width": "PR", "height": "QS", "depth": "DT"}
        for axis, output, kernel in zip(axes, counted.output, case.kernel, strict=True):
            assert (values[letters[axis][0]], values[letters[axis][1]]) == (output, kernel)
        text = (tmp_path / written.place).read_text()
        is_plain = layer.role == "forward" and case.groups == 1 and len(axes) == 2
        assert ("shape: cnn_layer\n" in text) == (is_plain and shape == "cnn_layer")
        named += is_plain
    assert named > 40


# --- its own parser ---------------------------------------------------------------------------------------------------------------


def small() -> Trace:
    """A plain convolution, a depthwise one and a product."""
    program = Program()
    program.convolution("conv", [1, 9, 12, 3], [3, 2, 3, 5], [1, 4, 11, 5], strides=[1, 2, 1, 1])
    program.convolution("dw", [1, 8, 9, 3], [3, 2, 3, 2], [1, 6, 8, 6], "DepthwiseConv2dNative")
    program.product("m", [7, 4], [4, 5], [7, 5])
    return program.trace()


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("layer0_conv.yaml", "  shape: cnn_layer", "  shpae: cnn_layer", "line 3 has the key 'shpae', which Timeloop would pass over"),
        ("layer0_conv.yaml", "version: 0.4", "version: 0.3", "is not a problem as this exporter writes it"),
        ("layer0_conv.yaml", "shape: cnn_layer", "shape: cnn_layers", "shape cnn_layers is none that this exporter writes"),
        ("layer0_conv.yaml", "Hstride: 2", "Hstide: 2", "the instance gives R, S, P, Q, C, K, N, Wstride, Hstide"),
        ("layer0_conv.yaml", "N: 1, ", "", "the instance gives R, S, P, Q, C, K, Wstride"),
        ("layer0_conv.yaml", "N: 1, ", "N: 1, N: 1, ", "the instance gives"),
        ("layer0_conv.yaml", "N: 1,", "N: 0,", "a value or the order of its lines is wrong"),
        ("layer0_conv.yaml", "Wstride: 1, Hstride: 2", "Wstride: 2, Hstride: 1", "is indexed by N, C, 2*P + R, Q + S, the trace has"),
        ("layer0_conv.yaml", "R: 2, S: 3", "R: 3, S: 2", "kernel_height (S) is 2, the trace has 3"),
        ("layer0_conv.yaml", "P: 11, Q: 4", "P: 4, Q: 11", "output_height (Q) is 11, the trace has 4"),
        ("layer0_conv.yaml", "N: 1,", "N: 2,", "1 times, 3960 in the trace"),
        ("layer1_dw.yaml", "dimensions: [N, G,", "dimensions: [N, X,", "projections use G, M, N, P, Q, R, S, declared are N, X"),
        ("layer1_dw.yaml", "[[[G]], [[M]],", "[[[G]], [[Z]],", "projections use G, M, N, P, Q, R, S, Z, declared are"),
        ("layer1_dw.yaml", "dimensions: [N, G,", "dimensions: [N, Go,", "a value or the order of its lines is wrong"),
        ("layer1_dw.yaml", "[Q, Hstride]", "[Q, Hstrid]", "projections use other coefficients than the declared"),
        ("layer1_dw.yaml", "    - {name: Wstride, default: 1}\n", "", "projections use other coefficients than the declared"),
        ("layer1_dw.yaml", "[Q, Hstride], [S, Hdilation]", "[P, Hstride], [S, Hdilation]", "the trace has"),
        ("layer1_dw.yaml", "[[N]], [[G]], [[Q, H", "[[N]], [[M]], [[Q, H", "Inputs (input) is indexed by N, M,"),
        ("layer1_dw.yaml", "      read_write: true\n", "", "its data spaces are not Inputs, Weights, Outputs, of which the last"),
        ("layer1_dw.yaml", "read_write: true", "read-write: true", "line 18 has the key 'read-write'"),
        ("layer1_dw.yaml", "name: Weights", "name: Inputs", "its data spaces are not Inputs, Weights, Outputs"),
        ("layer2_m.yaml", "M: 7, N: 5", "M: 5, N: 7", "row (M) is 5, the trace has 7"),
        ("layer2_m.yaml", "instance:", "instances:", "line 14 has the key 'instances'"),
        ("layer2_m.yaml", "    name: gemm", "    name: cnn_layer", "cnn_layer is a shape that Timeloop has already"),
        ("export.json", '"macs": 140', '"macs": 141', "140 MACs in the file, 1 times, 141 in the trace"),
        ("export.json", '"role": "gemm"', '"role": "gemmm"', "export.json says too little of it"),
        ("export.json", '"elements_without_padding": 324', '"elements_without_padding": 323', "324 elements without padding"),
        ("layer2_m.yaml", "    name: gemm", "    name: germ", "its shape is called germ, not gemm"),
        ("export.json", '"elements": 288', '"elements": 298', "has 288 elements, the trace 288, export.json 298"),
    ],
)  # fmt: skip
def test_check_finds(tmp_path: Path, file: str, old: str, new: str, problem: str) -> None:
    export(small(), tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(old) >= 1
    (tmp_path / file).write_text(text.replace(old, new, 1))
    found = TIMELOOP.check(tmp_path)
    assert not found.ok
    assert any(problem in p for p in found.problems), found.problems


def test_check_finds_missing_and_foreign_files(tmp_path: Path) -> None:
    export(small(), tmp_path / "missing")
    (tmp_path / "missing" / "layer2_m.yaml").unlink()
    assert TIMELOOP.check(tmp_path / "missing").problems == ("layer2_m.yaml cannot be read (FileNotFoundError)",)
    export(small(), tmp_path / "foreign")
    shutil.copy(tmp_path / "foreign" / "layer2_m.yaml", tmp_path / "foreign" / "layer3.yaml")
    assert TIMELOOP.check(tmp_path / "foreign").problems == ("layer3.yaml is not in export.json",)
    with pytest.raises(ExportError, match="does not exist"):
        TIMELOOP.check(tmp_path)


def test_check_states_what_it_found(tmp_path: Path) -> None:
    """4 * 11 * 5 * 3 * 6 = 3,960, 6 * 8 * 6 * 6 = 1,728 and 7 * 4 * 5 = 140 MACs."""
    report = export(small(), tmp_path)
    assert TIMELOOP.check(tmp_path).facts == {"problems": 3, "runs": 3, "macs": 3_960 + 1_728 + 140}
    assert read_layer_map(tmp_path) == list(report.layers)
    assert report.target.proof == "own grammar only"
