"""Do questions that people asked of other tools get the right answer here? One test a case, named by its number, with the value known.

Cases of the same list that other files test under their number: A5, E1 (test_stepstats), A2, E12 (test_capture), C10, C11, C16, C17
(test_loops), C1 to C6 (test_scale_sim), C19, C20 (test_addresses, test_dramsim3, test_ramulator), E4 to E6 (test_perfetto, test_xprof).
FLOPs are twice the MACs plus one per elementwise or reduction operation.
"""

from __future__ import annotations

import statistics
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom_trace import ops
from fathom_trace.builder import TraceBuilder
from fathom_trace.capture import CaptureRequest, Plan, capture, capture_request
from fathom_trace.checks import check
from fathom_trace.cli import run
from fathom_trace.costs import Costs, costs
from fathom_trace.errors import CaptureError
from fathom_trace.layers import COMPUTE, layer_links
from fathom_trace.loops import ConvolutionNest, GemmNest, layers
from fathom_trace.profile import Row, profile
from fathom_trace.store import load, save
from fathom_trace.summary import summarize
from fathom_trace.tables import BUFFER_ALLOCATOR
from fathom_trace.trace import Trace
from tests.captured_apart import capture_apart
from tests.handmade import Hand, Value

QUICK = Plan(steps=1, warmup=0)

Shape = tuple[int, ...]


def ones(*dims: int) -> Any:
    return np.ones(dims, np.float32)


def run_traced(function: Any, *args: Any, plan: Plan = QUICK) -> tuple[Trace, Costs]:
    """A capture, and the costs of what ran."""
    pytest.importorskip("tensorflow")
    trace = capture(function, *args, plan=plan)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)
    return trace, costs(trace, trace.main_structure)


def executed(trace: Trace, found: Costs, *types: str) -> list[tuple[Shape | None, int]]:
    """(output shape, FLOPs) of every execution of some op types, in order; of every convolution and product by default."""
    wanted = [i for i, op in enumerate(found.op_types) if (op in types if types else ops.kind(op) in COMPUTE)]
    return [(trace.output_shape(i + found.first), int(found.flops[i])) for i in wanted]


def rows(trace: Trace, by: str = "op") -> dict[str, Row]:
    return {row.key: row for row in profile(trace, by=by).rows}


def stored(trace: Trace, path: Path) -> str:
    save(trace, path)
    return str(path)


# --- A: what a trace holds ------------------------------------------------------------------------------------------------------


@pytest.mark.capture
def test_a1_and_c20_a_function_has_records_with_shapes_costs_and_tensors() -> None:
    """relu(x w), x [4, 6], w [6, 5]: 4 * 5 * 6 = 120 MACs; tensors of 96, 120 and 80 bytes, 296 in all.

    TensorFlow reports the address of the result; of what is fed it reports none, so none is made up.
    """
    import tensorflow as tf

    trace, found = run_traced(lambda x, w: tf.nn.relu(tf.matmul(x, w)), ones(4, 6), ones(6, 5))
    assert executed(trace, found) == [((4, 5), 240)]
    assert found.macs.sum() == 120
    assert executed(trace, found, "Relu") == [((4, 5), 20)]
    row = found.op_types.index("MatMul") + found.first
    tensors = [*trace.inputs(row), *trace.outputs(row)]
    assert [int(trace.tensors.size_bytes[i]) for i in tensors] == [4 * 6 * 4, 6 * 5 * 4, 4 * 5 * 4] == [96, 120, 80]
    assert (found.bytes_read[row - found.first], found.bytes_written[row - found.first]) == (216, 80)
    *operands, result = (int(trace.tensors.buffer[i]) for i in tensors)
    assert operands == [-1, -1]
    assert (int(trace.buffers.origin[result]), int(trace.buffers.size_bytes[result])) == (BUFFER_ALLOCATOR, 80)
    assert trace.buffers.address[result] > 0


@pytest.mark.capture
def test_a2_exactly_one_chosen_call_is_traced() -> None:
    """x [2, 3] a [3, 4], then b [4, 5]: 2 * 4 * 3 = 24 and 2 * 5 * 4 = 40 MACs; of the calls, number 1 is the traced one."""
    import tensorflow as tf

    plan = Plan(steps=1, warmup=1)
    trace, found = run_traced(lambda x, a, b: tf.matmul(tf.matmul(x, a), b), ones(2, 3), ones(3, 4), ones(4, 5), plan=plan)
    assert executed(trace, found) == [((2, 4), 48), ((2, 5), 80)]
    assert trace.traced_steps == (1,)


LOOP_OF_200 = """
import numpy as np
import tensorflow as tf


def product_200_times():
    @tf.function
    def step(x, w):
        for _ in tf.range(200):
            x = tf.matmul(x, w)
        return x

    return step, [np.ones([2, 4], np.float32), np.eye(4, dtype=np.float32)]
"""


@pytest.mark.capture
def test_a19_what_a_cap_drops_is_counted_shown_and_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """200 iterations of [2, 4] x [4, 4]: 200 * 2 * 32 = 12,800 FLOPs without a cap; with one of 100, recorded + dropped = produced."""
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(LOOP_OF_200)
    words = ("capture", "loop.py:product_200_times", "--steps", "1", "--warmup", "0")
    assert run((*words, "-o", "whole.h5")) == 0
    whole = load("whole.h5")
    row = rows(whole)["MatMul"]
    assert (row.count, row.flops) == (200, 12_800)
    step = whole.traced_steps[0]
    total = int(whole.steps.produced[step])
    assert whole.steps.recorded[step] == total == len(whole.executions)
    capsys.readouterr()

    assert run((*words, "--max-events", "100", "-o", "capped.h5")) == 1
    out = capsys.readouterr().out
    capped = load("capped.h5")
    step = capped.traced_steps[0]
    assert (capped.steps.recorded[step], capped.steps.produced[step]) == (100, total)
    assert not capped.steps.complete[step]
    assert len(capped.executions) == 100
    assert f"NO: 100 recorded of {total:,}" in out
    assert f"{total - 100} executions were dropped as --max-events asks" in out
    found = check(capped)
    assert (found.causality_violations, found.unresolved_inputs) == (0, 0), "what is kept is a beginning of the step"
    kept = whole.structure_rows(whole.main_structure)
    beginning = [whole.node_names[n] for n in whole.executions.node[kept].tolist()]
    assert Counter(capped.node_names[n] for n in capped.executions.node.tolist()) <= Counter(beginning)
    assert run(("info", "capped.h5")) == 0
    assert "the trace is incomplete: 100 executions recorded" in capsys.readouterr().out


@pytest.mark.capture
def test_a24_the_taken_branch_counts_once_and_the_other_not_at_all() -> None:
    """cond(p, x [3, 4] w [4, 2], row sums broadcast to [3, 2]) + 1: 2 * 3 * 2 * 4 = 48 FLOPs, and 6 of the addition."""
    import tensorflow as tf

    def program(p: Any, x: Any, w: Any) -> Any:
        return tf.cond(p, lambda: tf.matmul(x, w), lambda: tf.broadcast_to(tf.reduce_sum(x, 1, keepdims=True), [3, 2])) + 1.0

    trace, found = run_traced(program, np.array(True), ones(3, 4), ones(4, 2))
    assert executed(trace, found, "MatMul", "AddV2") == [((3, 2), 48), ((3, 2), 6)]
    assert (int(found.flops.sum()), bool(found.flops_known.all())) == (54, True)
    table = rows(trace)
    assert (table["Sum"].count, table["BroadcastTo"].count) == (0, 0), "listed, and not executed"


@pytest.mark.capture
def test_a28_a_saved_model_by_signature_and_batch(tmp_path: Path) -> None:
    """Dense(5, no bias) on [None, 6] with batch 4: 2 * 4 * 5 * 6 = 240 FLOPs, 30 weights."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, use_bias=False)])
    model.export(tmp_path / "model", verbose=False)
    request = CaptureRequest(str(tmp_path / "model"), mode="inference", signature="serving_default", batch_size=4, plan=QUICK)
    trace = capture_request(request)
    assert executed(trace, costs(trace, 0)) == [((4, 5), 240)]
    assert [trace.shapes[int(s)] for s in trace.variables.shape] == [(6, 5)]
    assert "serving_default" in trace.provenance["form"]


@pytest.mark.capture
def test_a29_every_free_dimension_is_set_by_the_user_or_an_error(tmp_path: Path) -> None:
    """Conv2D(4, 3x3, valid, no bias) on [2, 10, 12, 3]: out [2, 8, 10, 4], 2 * 8 * 10 * 4 * 27 = 17,280 MACs."""
    keras = pytest.importorskip("keras")
    file = tmp_path / "free.keras"
    keras.Sequential([keras.Input((None, None, 3), name="image"), keras.layers.Conv2D(4, 3, use_bias=False)]).save(file)
    request = CaptureRequest(str(file), mode="inference", shapes={"image": (2, 10, 12, 3)}, plan=QUICK)
    trace = capture_request(request)
    found = costs(trace, 0)
    assert (executed(trace, found), found.macs.sum()) == ([((2, 8, 10, 4), 34_560)], 17_280)
    assert all(-1 not in shape for shape in trace.shapes)
    with pytest.raises(CaptureError, match="input 'image'"):
        capture_request(CaptureRequest(str(file), mode="inference", batch_size=2, plan=QUICK))


@pytest.mark.capture
def test_a30_shapes_are_those_that_ran() -> None:
    """A mask keeps rows 0 and 3 of x [5, 3], times w [3, 4]: [2, 4], 48 FLOPs. A slice from (1, 1) to height - 1, width - 1."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.bool), tf.TensorSpec([3, 4])])
    def masked(x: Any, mask: Any, w: Any) -> Any:
        return tf.matmul(tf.boolean_mask(x, mask), w)

    trace, found = run_traced(masked, ones(5, 3), np.array([True, False, False, True, False]), ones(3, 4))
    assert executed(trace, found) == [((2, 4), 48)]
    assert executed(trace, found, "GatherV2") == [((2, 3), 0)]

    @tf.function(input_signature=[tf.TensorSpec([1, None, None, 2])])
    def cropped(x: Any) -> Any:
        return tf.slice(x, [0, 1, 1, 0], tf.stack([1, tf.shape(x)[1] - 1, tf.shape(x)[2] - 1, 2]))

    trace, found = run_traced(cropped, ones(1, 5, 6, 2))
    assert executed(trace, found, "Slice") == [((1, 4, 5, 2), 0)]


# --- B: what it costs -----------------------------------------------------------------------------------------------------------


def product_of(left: Shape, right: Shape, result: Shape, op: str = "MatMul", **attributes: Any) -> Trace:
    hand = Hand()
    hand.op("product", op, hand.feed("a", left), hand.feed("b", right), shape=result, **attributes)
    return hand.build(durations_ns=[0, 0, 1000])


def test_b1_flops_are_twice_the_macs_and_the_table_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[7, 3] x [3, 5]: 7 * 5 * 3 = 105 MACs, 210 FLOPs (not 7 * 5 * (2 * 3 - 1) = 175)."""
    file = stored(product_of((7, 3), (3, 5), (7, 5)), tmp_path / "product.h5")
    assert run(("ops", file, "--csv")) == 0
    assert capsys.readouterr().out.splitlines()[1] == "MatMul,1,1000.0,1.0,105,210,284", "4 * (21 + 15 + 35) bytes"
    with pytest.raises(SystemExit):
        run(("ops", "--help"))
    assert "FLOPs are twice the MACs" in " ".join(capsys.readouterr().out.split())


@pytest.mark.capture
def test_b2_and_c11_the_inner_extent_is_that_of_the_axis_which_is_contracted() -> None:
    """a [3, 7] transposed times b [3, 5]: M, N, K = 7, 5, 3. dW = x [4, 6] transposed times dy [4, 5]: 6, 5, 4 and 120 MACs."""
    import tensorflow as tf

    for left, right, (m, n, k) in (((3, 7), (3, 5), (7, 5, 3)), ((4, 6), (4, 5), (6, 5, 4))):
        trace, found = run_traced(lambda a, b: tf.matmul(a, b, transpose_a=True), ones(*left), ones(*right))
        assert executed(trace, found) == [((m, n), 2 * m * n * k)]
        ((layer,), _) = layers(trace, 0)
        assert isinstance(layer.nest, GemmNest)
        assert (layer.nest.m, layer.nest.n, layer.nest.k) == (m, n, k)
    assert 2 * 7 * 5 * 3 == 210


@pytest.mark.capture
@pytest.mark.parametrize(("left", "right"), [((2, 3, 7, 4), (2, 3, 4, 5)), ((2, 1, 7, 4), (3, 4, 5))])
def test_b3_batched_products_count_every_product(left: Shape, right: Shape) -> None:
    """Six products of 7 x 5 x 4: 840 MACs, 1,680 FLOPs; not one of M = 42, because the right side differs."""
    import tensorflow as tf

    trace, found = run_traced(tf.matmul, ones(*left), ones(*right))
    assert (executed(trace, found), found.macs.sum()) == ([((2, 3, 7, 5), 1_680)], 840)
    ((layer,), _) = layers(trace, 0)
    product = layer.nest.as_gemm()
    assert (product.repeats, product.m, product.n, product.k) == (6, 7, 5, 4)


def test_b6_a_newer_op_counts_and_an_unknown_one_is_unknown() -> None:
    """AddV2 of [3, 4] and [4]: 12 FLOPs."""
    hand = Hand()
    x = hand.feed("x", (3, 4))
    hand.op("add", "AddV2", x, hand.feed("y", (4,)), shape=(3, 4))
    hand.op("odd", "NewFangledOp", x, shape=(3, 4))
    found = profile(hand.build())
    table = {row.key: row for row in found.rows}
    assert (table["AddV2"].flops, table["NewFangledOp"].flops) == (12, None)
    assert found.uncovered == {"NewFangledOp": 1}
    assert found.coverage["flops"].executions == 3 / 4 < 1


@pytest.mark.capture
def test_b7_a_recurrent_layer_counts_every_step() -> None:
    """LSTM(4), 5 steps of 3 features, batch 2: 5 * (2 [2, 3] [3, 16] + 2 [2, 4] [4, 16]) = 5 * (192 + 256) = 2,240 FLOPs."""
    keras = pytest.importorskip("keras")
    layer = keras.layers.LSTM(4)
    layer.build((2, 5, 3))
    trace, found = run_traced(layer, ones(2, 5, 3))
    products = executed(trace, found)
    assert (len(products), sum(flops for _, flops in products)) == (10, 2_240)
    named = Counter(
        trace.node_names[n] for n, op in zip(trace.executions.node.tolist(), found.op_types, strict=True) if op == "MatMul"
    )
    assert sorted(named.values()) == [5, 5]


@pytest.mark.capture
def test_b9_and_d4_each_iteration_is_a_record_and_plumbing_can_be_hidden() -> None:
    """5 x MatMul [2, 4] [4, 4]: 5 * 2 * 32 = 320 FLOPs, one after the other; what else computes counts and compares."""
    import networkx
    import tensorflow as tf

    def program(x: Any, w: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x))[1]

    trace, found = run_traced(program, ones(2, 4), ones(4, 4))
    assert executed(trace, found) == [((2, 4), 64)] * 5
    nodes = trace.executions.node.tolist()
    assert len(set(nodes)) < len(nodes), "names repeat, records do not"
    work = Counter(op for op, flops in zip(found.op_types, found.flops, strict=True) if flops and not ops.is_plumbing(op))
    assert set(work) == {"MatMul", "AddV2", "Less"}
    assert (work["MatMul"], work["Less"]) == (5, 6), "the condition is also false once"
    products = [e for e, n in enumerate(nodes) if trace.node_ops[n] == "MatMul"]
    graph = trace.to_networkx()
    assert networkx.is_directed_acyclic_graph(graph)
    order = [[networkx.has_path(graph, a, b) for b in products] for a in products]
    assert order == [[b >= a for b in range(5)] for a in range(5)]


PRODUCT = """
import numpy as np
import tensorflow as tf


def product():
    return tf.matmul, [np.ones([4, 6], np.float32), np.ones([6, 5], np.float32)]
"""


@pytest.mark.capture
def test_b11_flops_and_bytes_are_of_one_stage_which_the_trace_names(tmp_path: Path) -> None:
    """x [4, 6] w [6, 5]: 240 FLOPs, 4 * (24 + 30 + 20) = 296 bytes, 240 / 296 = 0.811; in both stages, oneDNN's state being fixed."""
    pytest.importorskip("tensorflow")
    (tmp_path / "mine.py").write_text(PRODUCT)
    source = capture_request(CaptureRequest(f"{tmp_path}/mine.py:product", plan=QUICK))
    for stage, trace in (("source", source), ("optimized", capture_apart("mine.py:product", tmp_path, "optimized"))):
        (row,) = [row for row in profile(trace).rows if row.macs]
        assert (row.flops, row.bytes, trace.provenance["stage"]) == (240, 296, stage)
        assert row.intensity == pytest.approx(0.811, abs=5e-4)


@pytest.mark.capture
@pytest.mark.parametrize(("padding", "output", "macs"), [("VALID", 4, 13_824), ("SAME", 5, 21_600)])
def test_b12_and_b16_each_gradient_costs_what_the_convolution_does(padding: str, output: int, macs: int) -> None:
    """x [3, 9, 9, 4], 3x3, stride 2, 8 filters: 3 * 8 * 36 MACs for each of 4 * 4 = 16 or, once strided, 5 * 5 = 25 outputs."""
    import tensorflow as tf

    def program(x: Any, w: Any) -> Any:
        y = tf.nn.conv2d(x, w, 2, padding)
        return y, tf.gradients(y, [x, w])

    trace, found = run_traced(program, ones(3, 9, 9, 4), ones(3, 3, 4, 8))
    assert macs == 3 * output**2 * 8 * 36
    assert executed(trace, found, "Conv2D") == [((3, output, output, 8), 2 * macs)]
    assert executed(trace, found, "Conv2DBackpropInput") == [((3, 9, 9, 4), 2 * macs)]
    assert executed(trace, found, "Conv2DBackpropFilter") == [((3, 3, 4, 8), 2 * macs)]


@pytest.mark.capture
def test_b17_leading_axes_are_rows() -> None:
    """Dense(4, no bias) on [2, 8, 6]: M = 16, K = 6, N = 4, 768 FLOPs; the layer gives [2, 8, 4]."""
    keras = pytest.importorskip("keras")
    layer = keras.layers.Dense(4, use_bias=False, name="dense")
    layer.build((2, 8, 6))
    trace, found = run_traced(layer, ones(2, 8, 6))
    assert executed(trace, found) == [((16, 4), 768)]
    ((nest,), _) = layers(trace, 0)
    assert isinstance(nest.nest, GemmNest)
    assert (nest.nest.m, nest.nest.k, nest.nest.n) == (16, 6, 4)
    layer_of = layer_links(trace).layer
    mine = {trace.output_shape(e) for e, n in enumerate(trace.executions.node.tolist()) if layer_of[n] == "dense"}
    assert {(16, 4), (2, 8, 4)} <= mine


@pytest.mark.capture
def test_b18_a_bias_is_added_to_every_output_on_a_line_of_its_own() -> None:
    """Out [1, 4, 4, 6]: 96 additions, not 6."""
    import tensorflow as tf

    trace, _ = run_traced(
        lambda x, w, b: tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b), ones(1, 4, 4, 3), ones(3, 3, 3, 6), ones(6)
    )
    table = rows(trace)
    assert table["BiasAdd"].flops == 4 * 4 * 6 == 96
    assert table["Conv2D"].flops == 2 * table["Conv2D"].macs == 2 * 96 * 27


@pytest.mark.capture
def test_b20_only_the_gradients_that_ran_are_counted() -> None:
    """x [4, 6] w [6, 5], relu, sum, gradient of w alone: 240 FLOPs forward, 240 of dW (K = 4), no dX: 480, not 720."""
    import tensorflow as tf

    def program(x: Any, w: Any) -> Any:
        loss = tf.reduce_sum(tf.nn.relu(tf.matmul(x, w, name="mm")))
        return {"loss": loss, "gradient": tf.gradients(loss, w)[0]}

    trace, found = run_traced(program, ones(4, 6), ones(6, 5))
    assert executed(trace, found) == [((4, 5), 240), ((6, 5), 240)]
    links = layer_links(trace)
    forward, gradient = (n for n, op in enumerate(trace.node_ops) if op == "MatMul")
    assert (links.role[gradient], int(links.forward[gradient])) == ("filter_grad", forward)
    nests = [layer.nest for layer in layers(trace, 0)[0]]
    assert [nest.k for nest in nests if isinstance(nest, GemmNest)] == [6, 4]


def test_b21_coverage_is_stated_and_can_be_demanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A product of 240 FLOPs (2 us) and an op that nobody knows (6 us): 50% of the ops, 25% of the time."""
    hand = Hand()
    odd = hand.op("odd", "NewFangledOp", outputs=[("float32", (4, 6)), ("float32", (6, 5))])
    hand.op("mm", "MatMul", odd, Value(odd.node, odd.execution, 1), shape=(4, 5))
    file = stored(hand.build(durations_ns=[6000, 2000]), tmp_path / "half.h5")
    assert run(("ops", file, "--min-coverage", "25")) == 0
    assert "macs 50.0% (25.0% of the time), flops 50.0% (25.0% of the time)" in capsys.readouterr().out
    assert run(("ops", file, "--min-coverage", "25.1")) == 1
    assert "fathom-trace: flops are known for 25.0% of the time, not for 25.1%\n" in capsys.readouterr().err


# --- C, E and G: layers, times, shared weights ----------------------------------------------------------------------------------


@pytest.mark.capture
@pytest.mark.parametrize(
    ("padding", "dilation", "multiplier", "size", "output", "logical", "ran"),
    [("valid", 2, 2, 9, 5, 5_400, 7_776), ("same", 3, 1, 10, 10, 10_800, 15_552)],
)
def test_c9_and_c12_a_dilated_depthwise_layer_has_its_own_macs_beside_those_of_the_op(
    padding: str, dilation: int, multiplier: int, size: int, output: int, logical: int, ran: int,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """3x3 on [3, s, s, 4]: 3 * 4 * multiplier * output^2 * 9 MACs; the op runs on dilation^2 blocks, padded to whole ones.

    9 is padded to 10: 4 * 3 images of 5 x 5 with 3 x 3 outputs, 12 * 3 * 3 * 8 * 9 = 7,776. 10 and 3 + 3 of padding, padded
    to 18: 9 * 3 images of 6 x 6 with 4 x 4 outputs, 27 * 4 * 4 * 4 * 9 = 15,552.
    """
    keras = pytest.importorskip("keras")
    options = {"dilation_rate": dilation, "depth_multiplier": multiplier, "padding": padding, "use_bias": False}
    layer = keras.layers.DepthwiseConv2D(3, name="dw", data_format="channels_last", **options)
    layer.build((3, size, size, 4))
    trace, found = run_traced(layer, ones(3, size, size, 4))
    assert logical == 3 * 4 * multiplier * output**2 * 9
    assert [flops for _, flops in executed(trace, found)] == [2 * ran], "the executed op's own cost"
    row = rows(trace, by="layer")["dw"]
    assert (row.macs, row.logical_macs) == (ran, logical)
    ((triple,), _) = layers(trace, 0)
    nest = triple.nest
    assert isinstance(nest, ConvolutionNest)
    assert (nest.batch, nest.groups, nest.filters, nest.channels, nest.macs) == (3, 4, multiplier, 1, logical)
    assert {(a.output, a.kernel, a.stride, a.dilation) for a in nest.axes} == {(output, 3, 1, dilation)}
    names = [trace.node_ops[int(trace.executions.node[e])] for e in triple.executions]
    assert names == ["SpaceToBatchND", "DepthwiseConv2dNative", "BatchToSpaceND"]
    assert run(("ops", stored(trace, tmp_path / "dw.h5"), "--by", "layer")) == 0
    assert f"dw: {logical:,} MACs as the program's layers, {ran:,} as they were executed" in capsys.readouterr().out


@pytest.mark.capture
def test_c10_height_and_width_are_told_apart() -> None:
    """x [1, 9, 7, 4], kernel (3, 1), SAME, 8 filters: 9 * 7 * 3 * 1 * 4 * 8 = 6,048 MACs; padded by 1 above and below, not beside."""
    import tensorflow as tf

    trace, found = run_traced(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), ones(1, 9, 7, 4), ones(3, 1, 4, 8))
    assert found.macs.sum() == 6_048
    ((layer,), _) = layers(trace, 0)
    assert isinstance(layer.nest, ConvolutionNest)
    height, width = layer.nest.height, layer.nest.width
    assert (height.output, height.kernel, height.pad_begin, height.pad_end) == (9, 3, 1, 1)
    assert (width.output, width.kernel, width.pad_begin, width.pad_end) == (7, 1, 0, 0)


@pytest.mark.capture
def test_e4_workers_run_one_execution_at_a_time() -> None:
    """A [0, 10], B [5, 15], C [12, 20], D [2, 4]: no two on a lane overlap, so there are at least two lanes."""
    pytest.importorskip("tensorflow")
    from fathom_trace.capture.assemble import lanes

    start, done = np.array([0, 5, 12, 2]), np.array([10, 15, 20, 4])
    lane = lanes(start, done).tolist()
    for a in range(4):
        for b in range(a):
            assert lane[a] != lane[b] or done[a] <= start[b] or done[b] <= start[a]
    assert len(set(lane)) >= 2


@pytest.mark.capture
def test_e5_nanoseconds_survive_a_date_of_today() -> None:
    """Events at 1796026610255867.25 us and 0.4 us later, 0.1 us long: 0, 400 and 100 ns after the step's origin."""
    step_stats_pb2 = pytest.importorskip("tensorflow.core.framework.step_stats_pb2")
    from tensorflow.core.protobuf import config_pb2

    from fathom_trace.capture.signatures import Signatures
    from fathom_trace.capture.stepstats import read_step

    origin = 1_796_026_610_255_867_250
    message = step_stats_pb2.StepStats()
    device = message.dev_stats.add(device="/device:CPU:0")
    for name, after in (("a", 0), ("b", 400)):
        begin = origin + after
        device.node_stats.add(
            node_name=name, all_start_nanos=begin, scheduled_nanos=begin, op_end_rel_nanos=100, all_end_rel_nanos=100
        )
    metadata = config_pb2.RunMetadata(step_stats=message)
    records = read_step(metadata.SerializeToString(), {"a": 0, "b": 1}, Signatures())
    assert (records.origin_ns, records.start.tolist(), (records.done - records.start).tolist()) == (origin, [0, 400], [100, 100])


FIRST_OF_FIVE = [73_927_000, 51_000, 3_000, 3_000, 4_000]


def five_products(**provenance: Any) -> Trace:
    """One node that ran five times in a step, and an untraced step of 10 us."""
    builder = TraceBuilder()
    node = builder.node("loop/MatMul", "MatMul")
    for _ in FIRST_OF_FIVE:
        builder.execution(node, outputs=[("float32", (2, 2))])
    done = np.cumsum(FIRST_OF_FIVE)
    builder.untraced_step(10_000)
    builder.step(builder.end_structure(), start=done - FIRST_OF_FIVE, done=done)
    return builder.build(provenance)


def test_e15_a_slow_first_execution_is_shown_apart_and_medians_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """73,927, 51, 3, 3 and 4 us: the sum is 73,988 us, the median 4; 73,927 / 4 is above 100, and so is 2 ms over 10 us."""
    found = profile(five_products())
    (row,) = found.rows
    assert (row.time_ns, row.median_ns) == (73_988_000, 4_000)
    (first,) = found.first_runs
    assert (first.node, first.first_ns, first.median_ns, first.count) == ("loop/MatMul", 73_927_000, 4_000, 5)
    file = tmp_path / "five.h5"
    save(five_products(first_run_ns=2_000_000), file)
    summary = summarize(load(file), file)
    assert (summary.first_run_ns, summary.untraced_ns, summary.first_run_ratio) == (2_000_000, 10_000, 200)
    assert len(summary.notes) == 2
    for words in (("info", str(file)), ("ops", str(file))):
        assert run(words) == 0
        assert "MatMul 'loop/MatMul' took 73.9 ms when it first ran, 4.00 us usually" in capsys.readouterr().out


def test_e15_what_is_usual_is_not_flagged(tmp_path: Path) -> None:
    """The first of several executions may be 100 times slower, not more; a node that ran once has no usual time."""
    builder = TraceBuilder()
    for name, durations in (("at", [100, 1, 1]), ("above", [101, 1, 1]), ("once", [5_000])):
        node = builder.node(name, "MatMul")
        for _ in durations:
            builder.execution(node, outputs=[("float32", (2, 2))])
    lengths = np.array([100, 1, 1, 101, 1, 1, 5_000])
    done = np.cumsum(lengths)
    builder.step(builder.end_structure(), start=done - lengths, done=done)
    assert [first.node for first in profile(builder.build({})).first_runs] == ["above"]


@pytest.mark.capture
def test_e15_warm_up_keeps_the_first_run_out_of_every_step() -> None:
    """One warm-up and five traced steps: all five are stored, the table shows their median, the first run has a figure apart."""
    import tensorflow as tf

    trace, found = run_traced(tf.matmul, ones(4, 6), ones(6, 5), plan=Plan(steps=5, warmup=1))
    assert len(trace.traced_steps) == 5
    assert trace.provenance["first_run_ns"] > 0
    row = found.op_types.index("MatMul")
    expected = statistics.median(int(trace.durations(step)[row]) for step in trace.traced_steps)
    assert (rows(trace)["MatMul"].time_ns, rows(trace)["MatMul"].median_ns) == (expected, expected)


@pytest.mark.capture
def test_g6_a_layer_applied_twice_is_one_layer_with_one_set_of_weights() -> None:
    """Dense(6, no bias) twice on [2, 6]: two products of 2 * 2 * 36 = 144 FLOPs, 36 weights."""
    keras = pytest.importorskip("keras")
    layer = keras.layers.Dense(6, use_bias=False, name="shared")
    inputs = keras.Input((6,), batch_size=2)
    model = keras.Model(inputs, layer(layer(inputs)))
    trace, found = run_traced(model, ones(2, 6))
    assert executed(trace, found) == [((2, 6), 144)] * 2
    row = rows(trace, by="layer")["shared"]
    assert row.flops == 288
    products = [n for n, op in enumerate(trace.node_ops) if op == "MatMul"]
    assert len(products) == 2
    assert {layer_links(trace).layer[n] for n in products} == {"shared"}
    assert sum(prod(trace.shapes[int(s)]) for s in trace.variables.shape) == 36
