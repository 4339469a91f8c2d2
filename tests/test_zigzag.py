"""Does ZigZag get the layers that ran? Layers by hand arithmetic, then by the real program's parser, then mapped to the end."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from math import factorial
from pathlib import Path
from typing import Any

import pytest

from fathom_trace.errors import ExportError, OptionError
from fathom_trace.exporter import ExportReport, read_layer_map
from fathom_trace.loops import find_work, operand_sources
from fathom_trace.options import apply_settings
from fathom_trace.selecting import select
from fathom_trace.store import save
from fathom_trace.trace import Trace
from tests.brute_force import Case, Counted
from tests.known_layers import CHAIN_SOURCES, GRADIENTS, KNOWN, PRODUCTS, KnownConvolution, KnownProduct, chain
from tests.program import Program, dilated_depthwise
from tests.random_layers import Product, broadcast, random_layers
from tests.simulator_env import run_example
from tests.small import dense, diamond
from tests.zigzag_files import ZIGZAG, export, parse, read, simulate

ROLES = {"Conv2D": "forward", "Conv2DBackpropFilter": "filter_grad", "Conv2DBackpropInput": "input_grad"}
EQUATIONS = {
    "forward": "O[b]{g}[k][oy][ox]+=W{g}[k][c][fy][fx]*I[b]{g}[c][iy][ix]",
    "filter_grad": "O{g}[k][c][fy][fx]+=W[b]{g}[k][oy][ox]*I[b]{g}[c][iy][ix]",
    "input_grad": "O[b]{g}[c][iy][ix]+=W{g}[k][c][fy][fx]*I[b]{g}[k][oy][ox]",
}


def loops(layer: dict[str, Any]) -> dict[str, int]:
    """The loops of a layer of the file."""
    return dict(zip(layer["loop_dims"], layer["loop_sizes"], strict=True))


def only(trace: Trace, folder: Path, **settings: str) -> dict[str, Any]:
    """The one layer that a trace is exported as."""
    export(trace, folder, **settings)
    (layer,) = read(folder)
    return layer


def must_be(layer: dict[str, Any], known: KnownConvolution, role: str = "forward") -> None:
    """Check a layer of the file against what is known of it."""
    grouped = known.groups > 1
    assert layer["operator_type"] == "Conv"
    assert layer["equation"] == EQUATIONS[role].format(g="[g]" if grouped else "")
    assert loops(layer) == {
        "B": known.batch, "K": known.filters, "C": known.channels, **({"G": known.groups} if grouped else {}),
        "OY": known.output[0], "OX": known.output[1], "FY": known.kernel[0], "FX": known.kernel[1],
    }  # fmt: skip
    assert layer["dimension_relations"] == [
        f"i{x}={known.stride[axis]}*o{x}+{known.dilation[axis]}*f{x}" for x, axis in (("x", 1), ("y", 0))
    ]
    assert layer["pr_loop_dims"] == ["IX", "IY"]
    assert layer["padding"] == [list(known.pads[1]), list(known.pads[0])]


# --- cases that people ran into, and faults of other converters -----------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_a_convolution_is_its_loops(tmp_path: Path, known: KnownConvolution) -> None:
    layer = only(known.trace(), tmp_path)
    must_be(layer, known)
    (mapped,) = read_layer_map(tmp_path)
    assert mapped.macs == known.macs


@pytest.mark.parametrize("op", ["Conv2DBackpropFilter", "Conv2DBackpropInput"])
@pytest.mark.parametrize("known", GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_has_the_macs_of_its_convolution(tmp_path: Path, known: KnownConvolution, op: str) -> None:
    """B12: no zeros are inserted, whatever the stride: an input gradient scatters."""
    layer = only(known.trace(op), tmp_path)
    must_be(layer, known, ROLES[op])
    (mapped,) = read_layer_map(tmp_path)
    assert mapped.macs == known.macs


@pytest.mark.parametrize("known", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_is_its_loops(tmp_path: Path, known: KnownProduct) -> None:
    """C11: rows, columns and contraction are those after transposition; B3: a batch is a loop over both operands, no rows."""
    layer = only(known.trace(), tmp_path)
    batch = "[b]" * (known.batch > 1)
    assert layer["operator_type"] == "Gemm"
    assert layer["equation"] == f"O{batch}[d][k]+=W{batch}[c][k]*I{batch}[d][c]"
    assert loops(layer) == {**({"B": known.batch} if batch else {}), "D": known.m, "K": known.n, "C": known.k}
    (mapped,) = read_layer_map(tmp_path)
    assert mapped.macs == known.macs


def test_a_batch_of_one_side_only_is_part_of_its_rows(tmp_path: Path) -> None:
    """B3: a[2, 1, 7, 4] x b[3, 4, 5]: 840 MACs, 2 * 28 elements against 3 * 20, and no loop over both."""
    program = Program()
    program.product("m", [2, 1, 7, 4], [3, 4, 5], [2, 3, 7, 5], "BatchMatMulV2")
    layer = only(program.trace(), tmp_path)
    assert loops(layer) == {"D": 14, "K": 15, "C": 4}
    assert 14 * 15 * 4 == 840


def test_a_dilated_depthwise_convolution_is_its_logical_layer(tmp_path: Path) -> None:
    """C9 and C12: B=3, G=4, K=2, C=1, OY=OX=5, FY=FX=3, iy = 1 oy + 2 fy: 5,400 MACs of three executions, whose time is kept."""
    trace, ran = dilated_depthwise()
    layer = only(trace, tmp_path)
    assert loops(layer) == {"B": 3, "G": 4, "K": 2, "C": 1, "OY": 5, "OX": 5, "FY": 3, "FX": 3}
    assert layer["dimension_relations"] == ["ix=1*ox+2*fx", "iy=1*oy+2*fy"]
    (mapped,) = read_layer_map(tmp_path)
    assert (mapped.macs, mapped.time_ns, mapped.executions) == (5_400, 30.0, (ran["x2b"], ran["conv"], ran["y2s"]))


def test_channels_first_gives_the_same_layer(tmp_path: Path) -> None:
    """C17 with unequal sides."""
    layers = []
    for name, image, output in (("NCHW", [3, 4, 9, 8], [3, 8, 7, 7]), ("NHWC", [3, 9, 8, 4], [3, 7, 7, 8])):
        program = Program()
        program.convolution("c", image, [3, 2, 4, 8], output, data_format=name)
        layers.append(only(program.trace(), tmp_path / name))
    assert layers[0] == layers[1]


def test_three_axes(tmp_path: Path) -> None:
    """Conv3D of [2, 4, 5, 6, 3] with 2 x 3 x 2, strides 1, 2, 1."""
    program = Program()
    program.convolution("v", [2, 4, 5, 6, 3], [2, 3, 2, 3, 8], [2, 3, 2, 5, 8], "Conv3D", strides=[1, 1, 2, 1, 1])
    layer = only(program.trace(), tmp_path)
    assert layer["equation"] == "O[b][k][oz][oy][ox]+=W[k][c][fz][fy][fx]*I[b][c][iz][iy][ix]"
    assert loops(layer) == {"B": 2, "K": 8, "C": 3, "OZ": 3, "OY": 2, "OX": 5, "FZ": 2, "FY": 3, "FX": 2}
    assert layer["dimension_relations"] == ["ix=1*ox+1*fx", "iy=2*oy+1*fy", "iz=1*oz+1*fz"]
    assert (layer["pr_loop_dims"], layer["pr_loop_sizes"]) == (["IX", "IY", "IZ"], [6, 5, 4])


def test_what_windows_read_of_the_image_is_its_size(tmp_path: Path) -> None:
    """1x1 with stride 2 on 9 x 8 reads 5 x 4 of it; 3x3 with padding on 9 x 9 reads 9 x 9, its padding is no data."""
    assert only(KNOWN["stride is no quotient"].trace(), tmp_path / "a")["pr_loop_sizes"] == [4, 5]
    assert only(KNOWN["C3b"].trace(), tmp_path / "b")["pr_loop_sizes"] == [9, 9]


def test_vgg16_keeps_its_padding(tmp_path: Path) -> None:
    """13 convolutions of 3x3 on maps of 224 to 14: 15,346,630,656 MACs; without the padding they would be 13.88 G."""
    table = [(224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (56, 256, 256)]
    table += [(28, 256, 512), (28, 512, 512), (28, 512, 512), (14, 512, 512), (14, 512, 512), (14, 512, 512)]
    program = Program()
    for i, (side, channels, filters) in enumerate(table):
        program.convolution(f"c{i}", [1, side, side, channels], [3, 3, channels, filters], [1, side, side, filters], padding="SAME")
    report = export(program.trace(), tmp_path)
    assert sum(layer.macs for layer in report.layers) == 15_346_630_656
    assert ZIGZAG.check(tmp_path).facts["macs"] == 15_346_630_656


def test_a_loop_keeps_its_length(tmp_path: Path) -> None:
    """B7: a recurrent product [2, 4] x [4, 4] that runs 5 times is one layer with count 5: 5 * 32 MACs."""
    program = Program()
    a, b = program.input("a", [2, 4]), program.input("b", [4, 4])
    ran = [program.op("rnn/MatMul", "MatMul", [a, b], [2, 4], {}, ns=10 + i) for i in range(5)]
    report = export(program.trace(), tmp_path)
    (layer,) = report.layers
    assert (layer.count, layer.macs, layer.executions, layer.time_ns) == (5, 160, tuple(ran), 60.0)
    assert [x["name"] for x in read(tmp_path)] == ["rnn_MatMul"]


def test_branches_that_never_ran_are_not_exported(tmp_path: Path) -> None:
    program = Program()
    program.product("taken", [2, 3], [3, 4], [2, 4])
    program.builder.node("auxiliary/MatMul", "MatMul")
    export(program.trace(), tmp_path)
    assert [layer["name"] for layer in read(tmp_path)] == ["taken"]


def test_windows_that_read_padding_only_are_skipped_with_a_reason(tmp_path: Path) -> None:
    """One pixel behind two of padding, read in steps of 3: positions 0 and 3 are padding. 2 outputs by 3 by 1 MACs."""
    program = Program()
    pads = [0, 0, 2, 2, 0, 0, 0, 0]
    program.convolution(
        "c", [1, 1, 3, 1], [1, 1, 1, 1], [1, 2, 3, 1], strides=[1, 3, 1, 1], padding="EXPLICIT", explicit_paddings=pads
    )
    program.product("m", [2, 3], [3, 4], [2, 4])
    report = export(program.trace(), tmp_path)
    assert [layer.name for layer in report.layers] == ["m"]
    (skipped,) = (s for s in report.skipped if s.op == "Conv2D")
    assert (skipped.executions, skipped.macs, skipped.time_ns) == (1, 6, 10.0)
    assert "nothing but padding" in skipped.reason


# --- where operands come from ---------------------------------------------------------------------------------------------------------


def test_operands_come_from_the_layer_that_made_them(tmp_path: Path) -> None:
    """Through operations that are not exported; weights, feeds and shapes are constants, which carry the layer's own id."""
    report = export(chain(), tmp_path)
    assert [layer["name"] for layer in read(tmp_path)] == list(CHAIN_SOURCES)
    assert linked(tmp_path) == CHAIN_SOURCES
    # dense and what follows it have the sum of conv1's and conv2's results behind them: the last of them is the source.
    assert any(text.startswith("2 layers have an operand to which several layers contributed") for text in report.approximations)
    assert ZIGZAG.check(tmp_path).facts["links"] == 8


def test_a_source_says_whether_it_is_the_only_one() -> None:
    trace = chain()
    work = find_work(trace)
    found = operand_sources(work)
    by_name = {work.node_name(group): found[group[0].execution] for group in work.groups}
    assert by_name["conv2"]["input"].sole  # type: ignore[union-attr]
    assert not by_name["dense"]["left"].sole  # type: ignore[union-attr]
    assert by_name["conv2/dx"]["filter"] is None


def linked(folder: Path) -> dict[str, tuple[str | None, ...]]:
    """By layer of the file: the layers that I and W come from."""
    layers = read(folder)
    names = [layer["name"] for layer in layers]
    return {
        layer["name"]: tuple(None if layer["operand_source"][k] == layer["id"] else names[layer["operand_source"][k]] for k in "IW")
        for layer in layers
    }


def test_what_is_outside_a_selection_is_no_source(tmp_path: Path) -> None:
    """Without the convolutions, dense reads from no layer; with conv1 only, from conv1 through the addition, not through conv2."""
    export(select(chain(), layer="d*"), tmp_path / "without")
    assert linked(tmp_path / "without") == {
        "dense": (None, None), "dense_dx": ("dense", None), "dense_dw": (None, "dense"),
        "conv2_dw": (None, "dense_dx"), "conv2_dx": ("dense_dx", None),
    }  # fmt: skip
    export(select(chain(), layer="[cd]*[!2]"), tmp_path / "conv1 too")
    assert linked(tmp_path / "conv1 too") == {
        "conv1": (None, None), "dense": ("conv1", None), "dense_dx": ("dense", None), "dense_dw": ("conv1", "dense"),
        "conv2_dw": ("conv1", "dense_dx"), "conv2_dx": ("dense_dx", None),
    }  # fmt: skip


def test_a_recurrent_layer_reads_what_came_first(tmp_path: Path) -> None:
    """Iterations are one layer: its sources are those of the first, which began with zeros; what follows reads the last."""
    program = Program()
    state, weights = program.input("zeros", [2, 4]), program.input("weights", [4, 4])
    for _ in range(3):
        product = program.op("rnn/MatMul", "MatMul", [state, weights], [2, 4], {})
        state = program.op("rnn/Tanh", "Tanh", [product], [2, 4])
    program.op("out", "MatMul", [state, weights], [2, 4], {})
    report = export(program.trace(), tmp_path)
    assert [layer["operand_source"] for layer in read(tmp_path)] == [{"I": 0, "W": 0}, {"I": 0, "W": 1}]
    assert any("sources of their operands are those of the first" in text for text in report.approximations)


# --- options and the report -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        ({}, {"I": 8, "W": 8, "O": 16, "O_final": 8}),
        ({"bits": "4"}, {"I": 4, "W": 4, "O": 8, "O_final": 4}),
        ({"bits": "0"}, {"I": 32, "W": 32, "O": 32, "O_final": 32}),
        ({"bits_weight": "2", "bits_partial": "24", "bits_output": "12"}, {"I": 8, "W": 2, "O": 24, "O_final": 12}),
        ({"bits": "0", "bits_input": "16"}, {"I": 16, "W": 32, "O": 32, "O_final": 32}),
    ],
)
def test_bits_of_every_operand(tmp_path: Path, settings: dict[str, str], bits: dict[str, int]) -> None:
    assert only(PRODUCTS["C2"].trace(), tmp_path, **settings)["operand_precision"] == bits


def test_other_bits_than_the_traced_are_said(tmp_path: Path) -> None:
    text = "bits of a value: I 8, W 8, O 16, O_final 8; results are float32 in the trace"
    assert text in export(PRODUCTS["C2"].trace(), tmp_path / "a").approximations
    assert export(PRODUCTS["C2"].trace(), tmp_path / "b", bits="0").approximations == ()


def test_identical_layers_are_merged_on_request(tmp_path: Path) -> None:
    """Two equal convolutions, and one of another stride: MACs, executions and counts are kept."""
    program = Program()
    for name in ("a", "b"):
        program.convolution(name, [2, 9, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8])
    program.convolution("c", [2, 15, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8], strides=[1, 2, 1, 1])
    report = export(program.trace(), tmp_path, unique="true")
    assert [(layer.name, layer.count, layer.macs) for layer in report.layers] == [("a", 2, 2 * 98 * 8 * 24), ("c", 1, 98 * 8 * 24)]
    assert len(report.layers[0].executions) == 2
    assert report.layers[0].note == "a and 1 more"
    assert len(read(tmp_path)) == 2


def test_names_are_cleaned_and_stay_unique(tmp_path: Path) -> None:
    """ZigZag names files after layers, one file `overall` itself, and mappings after operators; YAML reads `no` and `1e5` as no names."""
    program = Program()
    for name in ("a/b,c:0", "a_b c/0", "日本", "overall", "no", "1e5", "Add"):
        program.product(name, [2, 3], [3, 4], [2, 4])
    export(program.trace(), tmp_path)
    assert [layer["name"] for layer in read(tmp_path)] == ["a_b_c_0", "a_b_c_0_2", "__", "overall_2", "no", "1e5", "Add_2"]


def test_the_cost_of_a_search_is_estimated(tmp_path: Path) -> None:
    """On 32 x 32 over K and C, [2, 9, 8, 4] to 7 x 7 x 8 by 3 x 2 leaves B, OY, OX, FY, FX: 5! orders; [2, 3] x [3, 4] leaves D: 1."""
    program = Program()
    program.convolution("c", [2, 9, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8])
    program.product("m", [2, 3], [3, 4], [2, 4])
    report = export(program.trace(), tmp_path)
    assert factorial(5) == 120
    assert any("1.33 s of CPU time: it tries 121 orders of loops, 120 of them for c" in note for note in report.notes)


def test_options_are_checked() -> None:
    for settings, message in (
        ({"bits": "-1"}, "option 'bits' is -1; it takes a whole number from 0"),
        ({"bits_input": "0"}, "option 'bits_input' is 0; it takes a whole number from 1"),
        ({"bits_output": "4096"}, "option 'bits_output' is 4096; it takes a whole number from 1 to 1024"),
    ):
        with pytest.raises(OptionError, match=message):
            apply_settings(ZIGZAG.Options(), settings, "exporter")


def test_a_trace_without_products_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nothing of the trace has a loop nest .*; what may multiply: 1 x OpB"):
        ZIGZAG.write(diamond(), tmp_path, ZIGZAG.Options())


# --- its own parser -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('  name: "conv2"', '  name: "conv1"', "which is no name of its own"),
        ('  name: "conv2"', '  name: "a/b"', "which is no name of its own"),
        ('  name: "conv2"', '  name: "Pooling"', "which is no name of its own"),
        ("- id: 1", "- id: 7", "has the id 7"),
        ("[B, K, C, OY, OX, FY, FX]\n  loop_sizes: [2, 4, 4, 6, 5, 3, 3]", "[B, K, C, OY, OX, FX, FY]\n  loop_sizes: [2, 4, 4, 6, 5, 3, 1]",
         "loop FY is 1, the trace has 3"),
        ("loop_sizes: [2, 4, 4, 6, 5, 3, 3]", "loop_sizes: [2, 4, 4, 6, 5, 3]", "is not as ZigZag reads layers"),
        ("loop_sizes: [2, 4, 4, 6, 5, 3, 3]", "loop_sizes: [2, 4, 4, 6, 5, 3, 0]", "are not whole numbers from 1"),
        ("loop_sizes: [2, 4, 4, 6, 5, 3, 3]", "loop_sizes: [2, 4, 4, 6, 5, 3, 3.0]", "are not whole numbers from 1"),
        ("[ix=1*ox+1*fx, iy=1*oy+1*fy]\n  pr_loop_dims: [IX, IY]\n  pr_loop_sizes: [5, 6]\n  padding: [[1, 1], [1, 1]]",
         "[ix=1*ox+1*fx, iy=2*oy+1*fy]\n  pr_loop_dims: [IX, IY]\n  pr_loop_sizes: [5, 6]\n  padding: [[1, 1], [1, 1]]",
         "height stride and dilation is (2, 1), the trace has (1, 1)"),
        ("padding: [[1, 1], [1, 1]]", "padding: [[1, 1], [1, 0]]", "height padding is (1, 0), the trace has (1, 1)"),
        ("pr_loop_sizes: [5, 6]\n  padding: [[1, 1], [1, 1]]", "pr_loop_sizes: [5, 5]\n  padding: [[1, 1], [1, 1]]",
         "elements of I is 200, the trace has 240"),
        ("operand_source: {I: 0, W: 1}", "operand_source: {I: 3, W: 1}", "which is neither before it nor itself"),
        ("operand_source: {I: 0, W: 1}", "operand_source: {I: 1, W: 1}", "sources of operands is"),
        ("operand_precision: {I: 8,", "operand_precision: {I: 16,", "bits is"),
        ("operator_type: Gemm", "operator_type: MatMul", "MatMul with the equation"),
        ("O[d][k]+=W[c][k]*I[d][c]", "O[d][k]+=W[k][c]*I[d][k]", "elements of I is 20, the trace has 48"),
        ("O[d][k]+=W[c][k]*I[d][c]", "O[d][k]+=W[c][k]*I[d][c][z]", "indices"),
        ("  operator_type: Conv\n", "  operator_type: Conv\n  precision: 8\n", "its keys are"),
        ("# 7 layers\n", "", "is not a list of layers with their number in its last line"),
        ("- id: 0\n", "", "cannot be read"),
        ("- id: 0\n", "- !!python/object/apply:os.getcwd []\n- id: 0\n", "cannot be read"),
    ],
)  # fmt: skip
def test_check_finds(tmp_path: Path, old: str, new: str, problem: str) -> None:
    export(chain(), tmp_path)
    path = tmp_path / "test.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    found = ZIGZAG.check(tmp_path)
    assert any(problem in p for p in found.problems), found.problems


def test_check_compares_with_the_report(tmp_path: Path) -> None:
    export(chain(), tmp_path)
    (tmp_path / "other.yaml").write_text("[]\n# 0 layers\n")
    assert ZIGZAG.check(tmp_path).problems == ("other.yaml is not in export.json",)
    (tmp_path / "other.yaml").unlink()
    content = json.loads((tmp_path / "export.json").read_text())
    for change, problem in (
        (lambda c: c["layers"].pop(), "test.yaml has 7 layers, export.json has 6"),
        (lambda c: c["layers"][0].update(macs=1), "4320 MACs in the file, 1 in the trace"),
        (lambda c: c["layers"][0]["facts"].pop("nest"), "export.json says too little of it"),
        (lambda c: c["layers"][0]["facts"]["nest"].update(role="backward"), "export.json says too little of it"),
        (lambda c: c["layers"][0].update(executions=c["layers"][1]["executions"]), "lists an execution twice"),
    ):
        changed = json.loads(json.dumps(content))
        change(changed)
        (tmp_path / "export.json").write_text(json.dumps(changed))
        found = ZIGZAG.check(tmp_path).problems
        assert any(problem in p for p in found), found


def test_a_transposed_kernel_is_found_although_it_keeps_the_macs(tmp_path: Path) -> None:
    export(KNOWN["C10 rectangular"].trace(), tmp_path)
    path = tmp_path / "test.yaml"
    path.write_text(path.read_text().replace("loop_sizes: [1, 8, 4, 9, 7, 3, 1]", "loop_sizes: [1, 8, 4, 9, 7, 1, 3]"))
    problems = ZIGZAG.check(tmp_path).problems
    assert problems[:2] == ("test.yaml: c: loop FY is 1, the trace has 3", "test.yaml: c: loop FX is 3, the trace has 1")


# --- results --------------------------------------------------------------------------------------------------------------------------


def result(folder: Path, layer: dict[str, Any], latency: tuple[float, float, float]) -> Path:
    """A result as ZigZag 3.9.1 writes it, as far as it is read: what it computed and the layer as it took it."""
    relations = [
        re.sub("[a-z]+", lambda m: m[0].upper(), r).replace("=", " = ").replace("+", " + ")
        for r in layer.get("dimension_relations", ())
    ]
    content = {
        "outputs": {"latency": dict(zip(("data_onloading", "computation", "data_offloading"), latency, strict=True))},
        "inputs": {
            "layer": {
                "name": layer["name"], "type": layer["operator_type"],
                "equation": layer["equation"].replace("+=", " = ").replace("*", " * "), "equation_relations": relations,
                "loop_dimensions": loops(layer), "operand_precision": layer["operand_precision"],
            }
        },
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    path = folder / f"{layer['name']}_complete.json"
    path.write_text(json.dumps(content))
    return path


def recurrent(folder: Path) -> ExportReport:
    """A product that runs three times, and a dilated convolution of three executions."""
    program = Program()
    a, b = program.input("a", [7, 4]), program.input("b", [4, 5])
    for _ in range(3):
        program.op("m", "MatMul", [a, b], [7, 5], {})
    program.convolution("c", [2, 9, 8, 4], [3, 2, 4, 8], [2, 7, 7, 8])
    return export(program.trace(), folder)


def test_results_are_spread_over_executions(tmp_path: Path) -> None:
    """10 + 20 + 3 cycles of 0.5 ns for each of three products; 100 cycles for the convolution."""
    report = recurrent(tmp_path)
    for layer, latency in zip(read(tmp_path), ((10.0, 20.0, 3.0), (0.0, 100.0, 0.0)), strict=True):
        result(tmp_path / "results", layer, latency)
    found = ZIGZAG.read_results(tmp_path / "results", read_layer_map(tmp_path), 0.5)
    assert found == {**dict.fromkeys(report.layers[0].executions, 16.5), report.layers[1].executions[0]: 50.0}
    assert len(found) == 4


def test_a_layer_of_several_executions_shares_its_latency(tmp_path: Path) -> None:
    """C12: 90 cycles over SpaceToBatchND, the convolution and BatchToSpaceND."""
    trace, ran = dilated_depthwise()
    result(tmp_path / "results", only(trace, tmp_path), (0.0, 90.0, 0.0))
    found = ZIGZAG.read_results(tmp_path / "results", read_layer_map(tmp_path), 1.0)
    assert found == {ran["x2b"]: 30.0, ran["conv"]: 30.0, ran["y2s"]: 30.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: "", "is no result of ZigZag"),
        (lambda t: t[:-20], "is no result of ZigZag"),
        (lambda t: "[]", "is no result of ZigZag"),
        (lambda t: t.replace('"computation": 20.0', '"computation": -1.0'), "has a latency of [10.0, -1.0, 3.0] cycles"),
        (lambda t: t.replace('"computation": 20.0', '"computation": NaN'), "has a latency of"),
        (lambda t: t.replace('"computation": 20.0', '"computation": "20"'), "has a latency of"),
        (lambda t: t.replace('"D": 7', '"D": 8'), "is of another export: its loop_dimensions is"),
        (lambda t: t.replace('"I": 8', '"I": 16'), "is of another export: its operand_precision is"),
        (lambda t: t.replace('"name": "m"', '"name": "n"'), "is of another export: its name is n, layer m has m"),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, change: Any, message: str) -> None:
    recurrent(tmp_path)
    for layer in read(tmp_path):
        path = result(tmp_path / "results", layer, (10.0, 20.0, 3.0))
    path = tmp_path / "results" / "m_complete.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ExportError) as caught:
        ZIGZAG.read_results(tmp_path / "results", read_layer_map(tmp_path), 1.0)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_missing_result_is_named(tmp_path: Path) -> None:
    recurrent(tmp_path)
    with pytest.raises(ExportError, match=r"m_complete\.json cannot be read \(FileNotFoundError\); map the whole export"):
        ZIGZAG.read_results(tmp_path / "results", read_layer_map(tmp_path), 1.0)


# --- the real program -----------------------------------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_the_real_parser_agrees_on_random_layers(tmp_path: Path) -> None:
    """300 random convolutions of every kind, their gradients and 60 products: ZigZag's own numbers against a brute-force count."""
    trace, expected = random_layers(106)
    report = export(trace, tmp_path)
    found = {layer.executions[0]: row for layer, row in zip(report.layers, parse(tmp_path), strict=True)}
    refused = 0
    for layer in expected:
        case, counted = layer.case, layer.counted
        row = found.get(layer.execution)
        if row is None:
            assert isinstance(counted, Counted)
            assert counted.inputs == 0  # windows over padding alone
            refused += 1
            continue
        assert row["macs"] == counted.macs
        if isinstance(case, Case):
            assert isinstance(counted, Counted)
            elements = {"input": counted.inputs, "filter": counted.filters, "output": counted.outputs}
            written, weight, image = {
                "forward": ("output", "filter", "input"), "filter_grad": ("filter", "output", "input"),
                "input_grad": ("input", "filter", "output"),
            }[layer.role]  # fmt: skip
            assert row["elements"] == {"O": elements[written], "W": elements[weight], "I": elements[image]}
            letters = "ZYX"[-len(case.size) :]
            assert row["loops"] == {
                "B": case.batch, "K": case.filters, "C": case.channels, **({"G": case.groups} if case.groups > 1 else {}),
                **{f"O{x}": o for x, o in zip(letters, counted.output, strict=True)},
                **{f"F{x}": k for x, k in zip(letters, case.kernel, strict=True)},
            }  # fmt: skip
            for x, stride, dilation, pads in zip(letters, case.stride, case.dilation, case.pads, strict=True):
                assert row["relations"][f"I{x}"] == [[f"O{x}", stride], [f"F{x}", dilation]]
                assert row["padding"][f"I{x}"] == list(pads)
        else:
            assert isinstance(case, Product)
            assert row["elements"] == {"O": counted.macs // case.k, "W": counted.right, "I": counted.left}  # type: ignore[union-attr]
            batch = broadcast(case.left_batch, case.right_batch)
            if case.left_batch == case.right_batch == batch:
                sizes = [row["loops"].get(name, 1) for name in "BDKC"]
                assert sizes == [counted.macs // (case.m * case.n * case.k), case.m, case.n, case.k]
    assert refused == len(expected) - len(found) < 10


@pytest.mark.simulator
def test_the_real_parser_sees_the_dependencies(tmp_path: Path) -> None:
    export(chain(), tmp_path)
    layers = parse(tmp_path)
    names = [layer["name"] for layer in layers]
    for layer in layers:
        image, weight = CHAIN_SOURCES[layer["name"]]
        assert {k: names[v] for k, v in layer["sources"].items()} == {k: v for k, v in (("I", image), ("W", weight)) if v}
        assert layer["constants"] == [k for k, v in (("I", image), ("W", weight)) if not v]
        assert {names[i] for i in layer["before"]} == {image, weight} - {None}


@pytest.mark.simulator
def test_small_layers_are_mapped_to_the_end(tmp_path: Path) -> None:
    """A convolution, a product, a filter gradient and an input gradient with stride 2, by the very command of the report.

    1 x 1 x 32 x 32 multipliers cannot do more than a MAC each in a cycle, and DRAM moves 64 bits a cycle: a layer takes at least as
    many cycles as its first loads, its loops outside the array (`computation`) and its last stores take.
    """
    program = Program()
    shapes = [2, 9, 12, 4], [3, 2, 4, 8], [2, 4, 11, 8]
    for kind in ROLES:
        program.convolution(kind, *shapes, kind, strides=[1, 2, 1, 1])
    program.product("product", [7, 4], [4, 5], [7, 5])
    report = export(program.trace(), tmp_path)
    simulate(report, tmp_path)
    found = ZIGZAG.read_results(tmp_path / "results", read_layer_map(tmp_path), 2.0)
    cycles = {layer.name: found[layer.executions[0]] / 2 for layer in report.layers}
    overall = json.loads((tmp_path / "results" / "overall_simple.json").read_text())
    assert sum(cycles.values()) == pytest.approx(overall["latency"])
    # All of K=8 and C=4 fits the array, so every loop that is left takes a cycle: B * OY * OX * FY * FX = 2 * 44 * 6; product: D = 7.
    assert all(cycles[kind] >= 2 * 44 * 6 for kind in ROLES)
    assert cycles["product"] >= 7
    assert all(count < 3 * 2 * 44 * 6 for count in cycles.values())


@pytest.mark.simulator
def test_an_input_gradient_writes_each_pixel_of_the_image_once(tmp_path: Path) -> None:
    """Stride 2: what leaves for DRAM is 2 * 9 * 12 * 4 values of 8 bits in words of 64: 108, as many as the convolution reads."""
    program = Program()
    for kind in ("Conv2D", "Conv2DBackpropInput"):
        program.convolution(kind, [2, 9, 12, 4], [3, 2, 4, 8], [2, 4, 11, 8], kind, strides=[1, 2, 1, 1])
    simulate(export(program.trace(), tmp_path), tmp_path)
    accesses = {
        kind: json.loads((tmp_path / "results" / f"{kind}_complete.json").read_text())["outputs"]["memory"]["word_accesses"]
        for kind in ("Conv2D", "Conv2DBackpropInput")
    }
    assert accesses["Conv2DBackpropInput"]["O"][-1]["wr_in_by_low"] == 2 * 9 * 12 * 4 * 8 // 64 == 108
    assert accesses["Conv2D"]["I"][-1]["rd_out_to_low"] == 108


@pytest.mark.simulator
def test_what_check_refuses_misleads_the_real_parser(tmp_path: Path) -> None:
    """Why `check` is strict: a padding or a stride of the wrong axis is accepted without a word."""
    export(KNOWN["C6 unequal strides"].trace(), tmp_path)
    path = tmp_path / "test.yaml"
    (before,) = parse(tmp_path)
    path.write_text(path.read_text().replace("[ix=1*ox+1*fx, iy=2*oy+1*fy]", "[ix=2*ox+1*fx, iy=1*oy+1*fy]"))
    (after,) = parse(tmp_path)
    assert before["macs"] == after["macs"]
    assert before["elements"]["I"] == 4 * 9 * 9
    assert after["elements"]["I"] == 4 * 9 * 6
    assert not ZIGZAG.check(tmp_path).ok


@pytest.mark.simulator
def test_the_example_closes_the_loop(tmp_path: Path) -> None:
    """A product of 30 us becomes one of less than 1 us, a ReLU of 10 us stays: 40 / 11 to 40 / 10 times faster, a quarter untouched."""
    save(dense(), tmp_path / "dense.h5")
    mapped, gained, untouched = run_example("zigzag_closes_the_loop.py", "zigzag", "dense.h5", tmp_path)
    assert mapped == "1 layers mapped for 1 executions"
    found = re.fullmatch(r"the whole step gets ([0-9.]+) times faster \(by Amdahl ([0-9.]+)\)", gained)
    assert found is not None
    assert all(40 / 11 < float(value) <= 4.0 for value in found.groups())
    assert untouched == "25.0% of the op time the accelerator never touched"


def test_every_layer_comes_after_its_sources(tmp_path: Path) -> None:
    """Ids rise by one, and operands come from lower ids."""
    export(random_layers(7, 20, 20)[0], tmp_path)
    layers = read(tmp_path)
    assert all(b["id"] == a["id"] + 1 for a, b in pairwise(layers))
