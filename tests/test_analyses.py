"""Are the paper's analyses what they say, on examples small enough to compute by hand?"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from profiles import captured, timed
from small import loop

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import TraceError, UnknownNameError
from fathom_trace.report.analyses import analyse
from fathom_trace.report.captured import kept, measure
from fathom_trace.report.figures import figures
from fathom_trace.report.heat_map import heat_map
from fathom_trace.report.parallelism import COMPUTED, FITTED, groups_by_threads, in_no_group, scale
from fathom_trace.report.similarity import AVERAGE, cosine_distance, similarity
from fathom_trace.report.skew import skew
from fathom_trace.report.stationarity import rank_sum_p, series, stationarity
from fathom_trace.report.training_inference import training_inference

# --- what is measured of a trace ----------------------------------------------------------------------------------------------------


def test_first_and_last_steps_are_dropped_and_said_to_be() -> None:
    """Of 900, 10, 20, 30, 900 ns the middle three stay: a mean of 20."""
    found = measure(timed([{"MatMul": t} for t in (900, 10, 20, 30, 900)]), "x.h5")
    assert found.kept_steps == (1, 2, 3)
    assert found.total_ns == 20
    assert [e.what for e in found.exclusions] == ["2 traced steps"]
    assert kept((4, 5, 6, 7)) == (4, 5, 6, 7)


def test_feeds_and_fetches_are_left_out_with_their_share() -> None:
    """50 of 200 ns are of `_Arg` and `_Retval`; the rest is 100 MatMul and 50 Relu."""
    found = measure(timed([{"_Arg": 20, "MatMul": 100, "Relu": 50, "_Retval": 30}]), "x.h5")
    assert found.shares() == {"MatMul": pytest.approx(2 / 3), "Relu": pytest.approx(1 / 3)}
    [left_out] = found.exclusions
    assert (left_out.what, left_out.share) == ("_Arg, _Retval", 0.25)
    assert [row.key for row in found.rows] == ["MatMul", "Relu"]


def test_idle_time_is_the_span_without_operations() -> None:
    """Three ops of 10 ns with 5 ns after each: 2 gaps within the span."""
    found = measure(timed([{"A": 10, "B": 10, "C": 10}], gap_ns=5))
    assert found.idle_ns.tolist() == [10]
    assert found.span_ns.tolist() == [40]


def test_overlapping_operations_are_busy_once() -> None:
    """[0, 100) and [20, 50) overlap, [120, 130) does not: 20 ns of 130 are idle; op times add up to 140."""
    builder = TraceBuilder()
    for name in "abc":
        builder.execution(builder.node(name, "Relu"), outputs=[("float32", (2,))])
    builder.step(builder.end_structure(), start=[0, 20, 120], done=[100, 50, 130], lane=[0, 1, 0])
    found = measure(builder.build({}))
    assert (found.idle_ns.tolist(), found.total_ns) == ([20], 140)


def test_names_of_the_paper_have_their_times_added() -> None:
    found = captured("x", {"AddV2": 10, "BiasAdd": 20, "AddN": 30, "MatMul": 40})
    assert found.shares() == {"Add": pytest.approx(0.6), "MatMul": pytest.approx(0.4)}


def test_steps_of_another_structure_count_in_op_types_and_are_named() -> None:
    """Two trips of 7 ns in one step, one in the other: MatMul takes 14 and 7, so 21 of all op time."""
    found = measure(loop())
    assert found.type_ns[:, found.op_types.index("MatMul")].tolist() == [14, 7]
    assert [e.what for e in found.exclusions] == ["steps of 1 other structures"]


def test_a_trace_without_times_is_refused() -> None:
    with pytest.raises(TraceError, match=r"x\.h5 has no times; a report needs traces of steps that ran"):
        measure(TraceBuilder().build({}), "x.h5")


# --- figure 1: stationarity ---------------------------------------------------------------------------------------------------------


def test_statistics_of_a_series() -> None:
    """2, 4, 4, 6: mean 4, squares about it 4 + 0 + 0 + 4 = 8, so a deviation of sqrt(8 / 3).

    Neighbours' products: (-2)(0) + 0 + (0)(2) = 0, so no autocorrelation. Slope: (-1.5)(2) + (-.5)(4) + (.5)(4) + (1.5)(6) = 6, over
    2.25 + .25 + .25 + 2.25 = 5, is 1.2 a step, 3.6 over the series, 0.9 of the mean. Halves: medians 3 and 5.
    """
    found = series("x", [2, 4, 4, 6])
    assert found.mean_ns == 4
    assert found.deviation_ns == pytest.approx(math.sqrt(8 / 3))
    assert found.variation == pytest.approx(math.sqrt(8 / 3) / 4)
    assert found.autocorrelation == 0
    assert found.drift == pytest.approx(0.9)
    assert found.halves == pytest.approx(5 / 3)


def test_alternation_shows_as_negative_autocorrelation() -> None:
    """+1 and -1 in turn, n = 4: three products of -1 over four squares."""
    assert series("x", [3, 1, 3, 1]).autocorrelation == pytest.approx(-3 / 4)


def test_too_few_steps_say_nothing() -> None:
    one, two = series("x", [5]), series("x", [5, 7])
    assert (one.variation, one.autocorrelation, one.drift, one.p_value) == (None, None, None, None)
    assert two.variation == pytest.approx(math.sqrt(2) / 6)
    assert (two.autocorrelation, two.p_value) == (None, None)


def test_rank_sum_of_three_against_three_apart() -> None:
    """Of the 20 ways to choose 3 of 6 ranks only {1, 2, 3} and {4, 5, 6} are as extreme."""
    assert rank_sum_p([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)
    assert rank_sum_p([1, 5, 6], [2, 3, 4]) == pytest.approx(14 / 20)  # sum 12 against 10.5: all but 10 and 11, three ways each
    assert rank_sum_p([7, 7], [7, 7]) == 1


@pytest.mark.parametrize("seed", range(5))
def test_rank_sum_with_ties_equals_trying_every_division(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 6, 9).tolist()
    order = sorted(values)
    rank = {v: sum(i for i, w in enumerate(order, 1) if w == v) / order.count(v) for v in values}
    ranks = [rank[v] for v in values]
    centre, observed = 4 * 10 / 2, sum(ranks[:4])
    sums = [sum(c) for c in combinations(ranks, 4)]
    expected = sum(abs(s - centre) >= abs(observed - centre) - 1e-9 for s in sums) / len(sums)
    assert rank_sum_p(values[:4], values[4:]) == pytest.approx(expected)


def test_long_halves_use_the_normal_approximation() -> None:
    """50 below 50: U is 0, mean 1250, variance 50 * 50 * 101 / 12, continuity 0.5."""
    expected = math.erfc((1250 - 0.5) / math.sqrt(2 * 50 * 50 * 101 / 12))
    assert rank_sum_p(range(50), range(50, 100)) == pytest.approx(expected)


def test_stationarity_of_a_trace() -> None:
    """Steps of 10 + 30 and 20 + 40 ns (no step is dropped): totals 40 and 60 about 50. Idle: 10 of 50 and of 70.

    Operations: 10, 20 vary by sqrt(50) / 15, and 30, 40 by sqrt(50) / 35; weighted by 15 and 35 that is 2 sqrt(50) / 50.
    """
    found = stationarity(measure(timed([{"A": 10, "B": 30}, {"A": 20, "B": 40}], gap_ns=10)))
    assert found.relative.tolist() == [0.8, 1.2]
    assert found.steps.variation == pytest.approx(math.sqrt(200) / 50)
    assert found.operation_variation == pytest.approx(2 * math.sqrt(50) / 50)
    assert found.operation_relative == pytest.approx([10 / 15, 20 / 15, 30 / 35, 40 / 35])
    assert found.operation_weight == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert found.idle_share == pytest.approx((10 / 50 + 10 / 70) / 2)
    assert [s.name for s in found.op_types] == ["B", "A"]


# --- figure 2: skew -----------------------------------------------------------------------------------------------------------------


def test_skew_counts_the_types_that_make_90_percent() -> None:
    found = skew("x", {"A": 5, "B": 60, "C": 30, "D": 5, "E": 0})
    assert found.op_types == ("B", "C", "A", "D", "E")
    assert found.cumulative == pytest.approx((0.6, 0.9, 0.95, 1, 1))
    assert found.k90 == 2
    assert skew("x", {"B": 60, "C": 29, "A": 11}).k90 == 3
    assert skew("x", {"A": 1}).k90 == 1


# --- figure 3: heat map -------------------------------------------------------------------------------------------------------------


def test_heat_map_blanks_what_is_at_most_one_percent_of_the_true_total() -> None:
    """x: 1000 ns, of which Relu's 10 are 1% (blank), NoOp's 40 have no group; y: Tanh takes half."""
    x = captured("x", {"Conv2D": 600, "MatMul": 350, "Relu": 10, "NoOp": 40})
    y = captured("y", {"MatMul": 50, "Tanh": 50})
    found = heat_map([x, y])
    assert (found.op_types, found.groups) == (("Tanh", "MatMul", "Conv2D"), ("A", "B", "D"))
    assert found.cells == ((None, pytest.approx(0.35), pytest.approx(0.6)), (pytest.approx(0.5), pytest.approx(0.5), None))
    assert found.shown == pytest.approx((0.95, 1))
    assert found.ungrouped == pytest.approx((0.04, 0))
    assert found.blank == pytest.approx((0.01, 0))


# --- figure 4: similarity -----------------------------------------------------------------------------------------------------------

FOUR = {"a": {"X": 1}, "b": {"X": 3, "Y": 4}, "c": {"Y": 1}, "d": {"Z": 7}}
"""Directions (1, 0, 0), (3, 4, 0) / 5, (0, 1, 0) and (0, 0, 1): cosines a-b 0.6, b-c 0.8, all others 0."""


def test_cosine_distance() -> None:
    assert cosine_distance(np.array([1.0, 0]), np.array([3.0, 4])) == pytest.approx(0.4)
    assert cosine_distance(np.array([1.0, 2]), np.array([2.0, 4])) == pytest.approx(0)
    assert cosine_distance(np.array([0.0, 0]), np.array([2.0, 4])) == 1


def test_a_dendrogram_of_four_by_centroid() -> None:
    """b and c merge first, at 0.2. As shares they are (3, 4) / 7 and (0, 1), of mean (3, 11) / 14, of length sqrt(130) / 14.

    Its cosine with a is 3 / sqrt(130); d is at right angles to all.
    """
    found = similarity(FOUR)
    assert [(m.left, m.right) for m in found.merges] == [((1,), (2,)), ((0,), (1, 2)), ((3,), (0, 1, 2))]
    assert [m.distance for m in found.merges] == pytest.approx([0.2, 1 - 3 / math.sqrt(130), 1])
    assert found.order == (3, 0, 1, 2)
    assert found.is_cluster("bc")
    assert found.is_cluster("cab")
    assert not found.is_cluster("ab")
    assert found.between("a", "b") == pytest.approx(0.4)
    assert [pair[:2] for pair in found.pairs()[:2]] == [("b", "c"), ("a", "b")]


def test_a_dendrogram_of_four_by_average() -> None:
    """a joins b and c at the mean of 0.4 and 1."""
    found = similarity(FOUR, AVERAGE)
    assert [m.distance for m in found.merges] == pytest.approx([0.2, 0.7, 1])


@pytest.mark.parametrize("seed", range(5))
def test_average_linkage_is_that_of_scipy(seed: int) -> None:
    """Heights and clusters of twelve random profiles, by an independent implementation."""
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    values = np.random.default_rng(seed).random((12, 6)) ** 4
    found = similarity({f"w{i:02}": {f"op{k}": x for k, x in enumerate(row)} for i, row in enumerate(values.tolist())}, AVERAGE)
    tree = hierarchy.linkage(values / values.sum(axis=1, keepdims=True), "average", metric="cosine")
    members = [{i} for i in range(12)]
    for left, right, *_ in tree.tolist():
        members.append(members[int(left)] | members[int(right)])
    assert [m.distance for m in found.merges] == pytest.approx(tree[:, 2].tolist())
    assert [set(m.members) for m in found.merges] == members[12:]


def test_profiles_are_shares_so_that_long_steps_weigh_no_more() -> None:
    scaled = {**FOUR, "b": {"X": 3000, "Y": 4000}}
    assert [m.distance for m in similarity(scaled).merges] == pytest.approx([m.distance for m in similarity(FOUR).merges])


def test_one_profile_has_nothing_to_merge_and_unknown_linkage_is_refused() -> None:
    assert similarity({"a": {"X": 1}}).merges == ()
    assert similarity({"a": {"X": 1}}).order == (0,)
    with pytest.raises(UnknownNameError, match="no linkage is called 'ward'"):
        similarity(FOUR, "ward")


# --- figure 5: training against inference -------------------------------------------------------------------------------------------


def test_training_is_compared_with_inference_by_untraced_steps() -> None:
    """CPU 300 over 100 is 3; GPU 60 over 30 is 2; over CPU training 0.2 and 0.1. y has no inference; z compares batches of 8 and 1."""
    times = {"MatMul": 1}
    traces = [
        captured("x", times, untraced=[290, 300, 310], device="CPU", batch_size=8),
        captured("x", times, "inference", untraced=[100], device="CPU", batch_size=8),
        captured("x", times, untraced=[60], device="GPU", batch_size=8),
        captured("x", times, "inference", untraced=[30], device="GPU", batch_size=8),
        captured("y", times, untraced=[5], batch_size=8),
        captured("z", {"MatMul": 40}, batch_size=8),
        captured("z", {"MatMul": 10}, "inference", batch_size=1),
    ]
    found = training_inference(traces)
    assert [(p.workload, p.device, p.ratio) for p in found.pairs] == [("x", "CPU", 3), ("x", "GPU", 2), ("z", "CPU", 4)]
    assert found.pairs[0].normalized == pytest.approx((1, 1 / 3))
    assert found.pairs[1].normalized == pytest.approx((0.2, 0.1))
    assert [p.has_equal_batches for p in found.pairs] == [True, True, False]
    assert [p.label for p in found.pairs] == ["x CPU", "x GPU", "z"]
    assert found.left_out == ("y training",)
    assert found.correlation is None


def test_of_two_inferences_the_one_of_equal_batch_is_taken() -> None:
    """Training on 32 takes 400 ns; inference of 1 sample takes 10, of 32 takes 100: the ratio is 4, not 40."""
    traces = [
        captured("deepq", {"MatMul": 400}, batch_size=32),
        captured("deepq", {"MatMul": 10}, "inference", batch_size=1),
        captured("deepq", {"MatMul": 100}, "inference", batch_size=32),
    ]
    for order in (traces, traces[::-1]):
        [pair] = training_inference(order).pairs
        assert (pair.ratio, pair.has_equal_batches) == (4, True)
    assert training_inference(traces[:2]).pairs[0].ratio == 40


def test_ratios_of_two_devices_are_correlated() -> None:
    """Ratios 1, 2, 3 on CPU and 2, 4, 6 on GPU lie on a line."""
    traces = [
        captured(name, {"MatMul": 1}, mode, untraced=[wall], device=device)
        for name, ratio in (("x", 1), ("y", 2), ("z", 3))
        for device, factor in (("CPU", 1), ("GPU", 2))
        for mode, wall in (("training", ratio * factor), ("inference", 1))
    ]
    assert training_inference(traces).correlation == pytest.approx(1)


# --- figure 6: parallelism ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serial", [0, 0.2, 1])
@pytest.mark.parametrize("threads", [(1, 2), (1, 2, 4, 8), (2, 8)])
def test_a_serial_fraction_comes_back_from_exact_times(serial: float, threads: tuple[int, ...]) -> None:
    found = scale("x", {n: [1000 * (serial + (1 - serial) / n)] for n in threads}).serial
    assert found.value == pytest.approx(serial, abs=1e-12)
    assert found.method == (COMPUTED if len(threads) == 2 else FITTED)
    assert found.factor(16, 1) == pytest.approx(serial + (1 - serial) / 16)


def test_two_points_are_computed() -> None:
    """T(1) = 100, T(2) = 75: s + (1 - s) / 2 = 0.75, so s is 0.5. T(2) = 130: s is 1.6. T(2) = 40: s is -0.2, used as 0."""
    found = scale("x", {1: [100], 2: [75]})
    assert (found.serial.value, found.serial.interval) == (pytest.approx(0.5), None)
    assert found.speedup == pytest.approx((1, 4 / 3))
    assert scale("x", {1: [100], 2: [130]}).serial.value == pytest.approx(1.6)
    assert scale("x", {1: [100], 2: [40]}).serial.factor(4, 1) == pytest.approx(1 / 4)
    assert scale("x", {1: [0], 2: [0]}).serial.value == 1


def test_repeated_steps_give_an_interval() -> None:
    """T(2) = 60, 75, 90 about 75 and T(1) = 100: s is 0.5 and so uncertain that proportional gain is not excluded."""
    found = scale("x", {1: [100, 100, 100], 2: [90, 60, 75]}).serial
    assert found.value == pytest.approx(0.5)
    assert found.interval is not None
    low, high = found.interval
    assert low < 0.2 < 0.8 < high
    assert low + high == pytest.approx(1)


def test_traces_are_compared_over_threads() -> None:
    """MatMul halves from 800 ns, Tile stays at 200: 1000 and 600. At 4 threads that is 800 / 4 + 200 = 400, at 64 it is 212.5."""
    traces = [
        captured("x", {"MatMul": 800, "Tile": 200}, intra_threads=1),
        captured("x", {"MatMul": 400, "Tile": 200}, intra_threads=2),
        captured("y", {"MatMul": 1}, intra_threads=1),
        captured("x", {"MatMul": 1}, intra_threads=3, batch_size=9),
        captured("x", {"MatMul": 1}, intra_threads=4, inter_threads=2),
    ]
    [found] = groups_by_threads(traces)
    assert (found.workload, found.threads, found.repeats) == ("x", (1, 2), (1, 1))
    assert [(t.op_type, t.share, t.serial.value) for t in found.op_types] == [
        ("MatMul", pytest.approx(0.8), pytest.approx(0, abs=1e-12)),
        ("Tile", pytest.approx(0.2), pytest.approx(1)),
    ]
    assert found.whole.speedup == pytest.approx((1, 1000 / 600))
    assert dict(found.extrapolated) == {n: pytest.approx(1000 / (800 / n + 200)) for n in (4, 8, 16, 32, 64)}


def test_projections_and_parts_are_not_taken_for_measurements() -> None:
    """100 ns on 1 thread and 50 on 2 were measured; a projection of 10 ns on 1 thread, and a part of 20, belong to neither."""
    times = {"projected": {"scenario": "MatMul=10"}}, {"selection": "layer:fc"}
    traces = [captured("memnet", {"MatMul": time}, intra_threads=n) for n, time in ((1, 100), (2, 50))]
    traces += [captured("memnet", {"MatMul": time}, intra_threads=1, **more) for time, more in zip((10, 20), times, strict=True)]
    [found] = groups_by_threads(traces)
    assert (found.label, found.repeats, found.whole.time_ns) == ("memnet", (1, 1), (100, 50))
    assert in_no_group(traces) == traces[2:]
    traces += [captured("memnet", {"MatMul": time}, intra_threads=2, **more) for time, more in zip((5, 15), times, strict=True)]
    assert [(group.label, group.whole.time_ns) for group in groups_by_threads(traces)] == [
        ("memnet", (100, 50)), ("memnet layer:fc", (20, 15)),
    ]  # fmt: skip
    report = analyse(traces)
    assert {c.label for c in report.traces} == {
        "memnet training (1 threads, whole)", "memnet training (2 threads, whole)", "memnet training (1 threads, only layer:fc)",
        "memnet training (2 threads, only layer:fc)", "memnet training, projected (1 threads)", "memnet training, projected (2 threads)",
    }  # fmt: skip
    assert "projected, not measured: MatMul=10" in traces[2].setting
    assert {label for fact in report.facts for label in fact.traces if "projected" in label or "only" in label} == set()
    [share] = [fact for fact in report.facts if fact.name == "row totals"]
    assert share.traces == ("memnet training (2 threads, whole)",)


def test_figures_of_labels_alike_have_files_of_their_own() -> None:
    """Two parts whose names differ in signs only, and one whose name is longer than a file's may be."""
    parts = ("layer:fc*", "layer:fc?", "layer:" + "f" * 300)
    traces = [captured("memnet", {"MatMul": 100 // n}, intra_threads=n, selection=part) for part in parts for n in (1, 2)]
    names = [figure.name for figure in figures(analyse(traces)) if figure.analysis == "parallelism"]
    assert len(set(names)) == 3
    assert max(map(len, names)) < 150


def test_a_projection_is_no_partner_of_a_measurement() -> None:
    """Training took 40 ns, inference 10; a projected inference of 1 ns gives no ratio of 40."""
    projected = {"projected": {"scenario": "MatMul=10"}}
    traces = [
        captured("vgg", {"MatMul": 40}),
        captured("vgg", {"MatMul": 1}, mode="inference", **projected),
        captured("vgg", {"MatMul": 10}, mode="inference"),
    ]
    found = training_inference(traces)
    assert [(pair.label, pair.ratio) for pair in found.pairs] == [("vgg", 4.0)]
    assert found.left_out == (traces[1].label,)


def test_a_step_whose_operations_take_no_time_has_figures() -> None:
    found = measure(timed([{"_Arg": 0, "MatMul": 0}]), "x.h5")
    assert (found.total_ns, found.exclusions[-1].share) == (0, 0)
