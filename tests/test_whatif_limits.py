"""Limits by kind and layer, the moving bottleneck, and the fewest kinds for a target: against arithmetic and against trying everything."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations
from pathlib import Path

import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ScenarioError
from fathom_trace.store import save
from fathom_trace.trace import Trace
from fathom_trace.whatif import Settings, find_limits, find_target, parse_scenario, project, render_limits, render_target
from fathom_trace.whatif.limits import FACTORS, IDLE, parse_factor
from tests.recordings import random_parents
from tests.test_commands import complaint, output

KINDS = {"Conv2D": "conv", "MatMul": "gemm", "Relu": "elementwise", "MaxPool": "pooling", "Sum": "reduction"}


def chain(times: dict[str, int], idle_ns: int = 0, untraced: bool = False) -> Trace:
    """Ops in a row on one worker, the first after `idle_ns`; layers are named after the ops."""
    builder = TraceBuilder()
    rows: list[int] = []
    start, done, now = [], [], idle_ns
    for k, (op, duration) in enumerate(times.items()):
        node = builder.node(f"layer_{op}/{op}", op, inputs=[(k - 1, 0)] if k else [])
        rows.append(builder.execution(node, inputs=[builder.tensor(rows[-1])] if rows else [], outputs=[("float32", [1])]))
        start.append(now)
        now += duration
        done.append(now)
    builder.step(builder.end_structure(), start, done, scheduled=[0, *start[1:]])
    return builder.build({"inter_threads": 1})


def diamond_of_kinds() -> Trace:
    """Conv2D 10 -> (MatMul 50 beside Relu 30) -> MaxPool 10 us, on two workers."""
    builder = TraceBuilder()
    rows: dict[str, int] = {}
    nodes: dict[str, int] = {}
    for op, parents in (("Conv2D", []), ("MatMul", ["Conv2D"]), ("Relu", ["Conv2D"]), ("MaxPool", ["MatMul", "Relu"])):
        nodes[op] = builder.node(op.lower(), op, inputs=[(nodes[p], 0) for p in parents])
        rows[op] = builder.execution(nodes[op], inputs=[builder.tensor(rows[p]) for p in parents], outputs=[("float32", [2])])
    builder.step(0, start=[0, 10_000, 10_000, 60_000], done=[10_000, 60_000, 40_000, 70_000], lane=[0, 0, 1, 0])
    return builder.build({"inter_threads": 2})


def random_kinds(seed: int, workers: int) -> Trace:
    """40 executions of five kinds on `workers` lanes, random dependencies."""
    rng = random.Random(seed)
    builder = TraceBuilder()
    parents = random_parents(rng, 40)
    ops = [rng.choice(list(KINDS)) for _ in range(40)]
    rows: list[int] = []
    free, end = [0] * workers, [0] * 40
    start, lane = [0] * 40, [0] * 40
    for i in range(40):
        node = builder.node(f"n{i}", ops[i], inputs=[(p, 0) for p in parents[i]])
        rows.append(builder.execution(node, inputs=[builder.tensor(rows[p]) for p in parents[i]], outputs=[("float32", [2])]))
        lane[i] = rng.randrange(workers)
        start[i] = max([free[lane[i]], *(end[p] for p in parents[i])]) + rng.randint(0, 2)
        end[i] = free[lane[i]] = start[i] + rng.randint(1, 50)
    builder.step(0, start, end, lane=lane)
    return builder.build({"inter_threads": workers})


# --- limits -------------------------------------------------------------------------------------------------------------------


def test_limits_of_the_diamond() -> None:
    """Of 70 us replayed: MatMul free leaves 50, Relu free 70, the ends free 60 each. Of 100 us added up: 50, 70, 90, 90."""
    limits = find_limits(diamond_of_kinds())
    assert (limits.before_ns, limits.workers, limits.idle_share) == (70_000, 2, 0)
    found = {k.name: (k.executions, k.share, k.amdahl, k.replay, k.unlimited) for k in limits.kinds}
    assert found == {
        "gemm": (1, 0.5, 2.0, 1.4, 1.4),
        "elementwise": (1, 0.3, pytest.approx(100 / 70), 1.0, 1.0),
        "conv": (1, 0.1, pytest.approx(100 / 90), pytest.approx(70 / 60), pytest.approx(70 / 60)),
        "pooling": (1, 0.1, pytest.approx(100 / 90), pytest.approx(70 / 60), pytest.approx(70 / 60)),
    }
    assert [k.name for k in limits.kinds] == ["gemm", "elementwise", "conv", "pooling"]


def test_every_limit_is_what_projecting_it_says() -> None:
    trace = random_kinds(3, 2)
    limits = find_limits(trace)
    assert len(limits.kinds) == 5
    for limit in limits.kinds:
        projection = project(trace, parse_scenario([f"kind:{limit.name}=inf"]))
        assert (limit.amdahl, limit.replay, limit.unlimited) == tuple(e.speedup for e in projection.estimates)


def test_limits_of_layers_and_on_top_of_a_scenario() -> None:
    """60 and 40 ns; with Conv2D twice as fast 30 and 40."""
    trace = chain({"Conv2D": 60, "MatMul": 40})
    plain, faster = find_limits(trace), find_limits(trace, scenario=parse_scenario(["Conv2D=2"]))
    assert [(k.name, k.replay) for k in plain.kinds] == [("conv", 2.5), ("gemm", pytest.approx(100 / 60))]
    assert [(k.name, k.replay) for k in plain.layers] == [("layer_Conv2D", 2.5), ("layer_MatMul", pytest.approx(100 / 60))]
    assert (faster.before_ns, faster.kinds[0].name) == (70, "gemm")
    assert faster.kinds[0].replay == pytest.approx(70 / 30)


# --- where the bottleneck goes --------------------------------------------------------------------------------------------------


def test_the_bottleneck_moves_from_what_gets_faster_to_the_next_and_to_idle() -> None:
    """60 conv, 25 gemm, 10 elementwise, 5 idle. At 2x conv has 30 of 70; at 5x 12 of 52, so that gemm leads with 25."""
    limits = find_limits(chain({"Conv2D": 60, "MatMul": 25, "Relu": 10}, idle_ns=5))
    conv = {p.factor: p for p in limits.migrations[0].points}
    assert list(conv) == list(FACTORS)
    assert (conv[1].kind, conv[1].share, conv[1].speedup) == ("conv", 0.6, 1.0)
    assert (conv[2].kind, conv[2].share, conv[2].speedup) == ("conv", pytest.approx(30 / 70), pytest.approx(100 / 70))
    assert (conv[5].kind, conv[5].share) == ("gemm", pytest.approx(25 / 52))
    assert conv[1000].speedup == pytest.approx(100 / 40.06)
    gemm = limits.migrations[1]
    assert (gemm.kind, {p.kind for p in gemm.points}) == ("gemm", {"conv"})
    alone = find_limits(chain({"Conv2D": 60}, idle_ns=5)).migrations[0]
    assert [p.kind for p in alone.points] == ["conv"] * 4 + [IDLE] * 6  # 60 / 10 = 6 > 5, 60 / 20 = 3 < 5


def test_the_critical_path_may_have_another_bottleneck_than_the_sum() -> None:
    """MatMul 50 us leads the path until Relu's 30 us branch is longer: at 2x it is 25 us."""
    gemm = next(m for m in find_limits(diamond_of_kinds()).migrations if m.kind == "gemm")
    assert [(p.factor, p.on_path, p.on_path_share) for p in gemm.points[:2]] == [
        (1, "gemm", pytest.approx(50 / 70)), (2, "elementwise", pytest.approx(30 / 50))
    ]  # fmt: skip


def test_steps_that_are_too_large_leave_the_path_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom_trace.whatif.limits.PATHS", 10)
    limits = find_limits(diamond_of_kinds())
    assert {p.on_path for m in limits.migrations for p in m.points} == {""}
    assert any("too large to look at the critical path" in note for note in limits.notes)


# --- targets ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "faster", "kinds", "after"),
    [
        (1.9, math.inf, ("conv",), 50),
        (2.1, math.inf, ("conv", "gemm"), 20),
        (5.0, math.inf, ("conv", "gemm"), 20),
        (5.1, math.inf, ("conv", "gemm", "elementwise"), 5),
        (2.0, 10, ("conv", "gemm"), 28),
        (1.5, 10, ("conv",), 55),
    ],
)
def test_the_fewest_kinds_on_one_worker(target: float, faster: float, kinds: tuple[str, ...], after: float) -> None:
    """50 conv, 30 gemm, 15 elementwise, 5 idle: 100."""
    found = find_target(chain({"Conv2D": 50, "MatMul": 30, "Relu": 15}, idle_ns=5), target, faster=faster)
    assert (found.kinds, found.after_ns, found.exact, found.reached) == (kinds, pytest.approx(after), True, True)
    assert found.speedup == pytest.approx(100 / after)


def test_other_sets_of_the_same_size_are_counted() -> None:
    """For 1.4x of 100, at most 71 are left: 30, 30 or 30 of the three must go."""
    found = find_target(chain({"Conv2D": 30, "MatMul": 30, "Relu": 30, "Sum": 10}), 1.4)
    assert (len(found.kinds), found.alternatives) == (1, 2)


def test_a_target_out_of_reach() -> None:
    trace = chain({"Conv2D": 50, "MatMul": 45}, idle_ns=5)
    found = find_target(trace, 21.0)
    assert (found.reached, found.kinds, found.speedup) == (False, (), 20)
    assert "out of reach: with every kind free it is 20.00x" in render_target(found)
    assert find_target(trace, 19.9).kinds == ("conv", "gemm")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("target", [1.2, 1.5, 2.0, 3.0])
def test_the_search_finds_what_trying_every_set_finds(workers: int, target: float) -> None:
    for seed in range(6):
        trace = random_kinds(seed, workers)
        names = sorted({KINDS[op] for op in trace.node_ops})
        after = {}
        for size in range(1, len(names) + 1):
            for kinds in combinations(names, size):
                after[kinds] = project(trace, parse_scenario([f"kind:{k}=inf" for k in kinds])).replay
        good = [kinds for kinds, estimate in after.items() if estimate.after_ns <= estimate.before_ns / target]
        found = find_target(trace, target)
        if not found.reached:
            assert tuple(names) not in good
            continue
        fewest = min(map(len, good))
        assert len(found.kinds) == fewest
        assert found.exact
        of_that_size = [kinds for kinds in good if len(kinds) == fewest]
        assert found.alternatives == len(of_that_size) - 1
        assert found.after_ns == min(after[kinds].after_ns for kinds in of_that_size)
        assert after[tuple(sorted(found.kinds))].after_ns == found.after_ns


def test_too_many_sets_are_searched_greedily_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom_trace.whatif.limits.REPLAYS", 10)
    found = find_target(diamond_of_kinds(), 3.0)
    assert (found.exact, found.reached) == (False, True)
    assert found.speedup >= 3.0
    assert "found greedily, fewer may do" in render_target(found)


@pytest.mark.parametrize(("target", "faster"), [(1.0, 2.0), (0.5, 2.0), (math.inf, 2.0), (math.nan, 2.0), (2.0, 1.0), (2.0, 0.5)])
def test_what_is_no_target_is_refused(target: float, faster: float) -> None:
    with pytest.raises(ScenarioError, match=r"a target of .* is none|reach no target"):
        find_target(diamond_of_kinds(), target, faster=faster)


def test_factors_are_read() -> None:
    assert (parse_factor("5x", "--target"), parse_factor(" 1.5 ", "--target"), parse_factor("inf", "--faster")) == (5, 1.5, math.inf)
    for text in ("fast", "0x", "-1", "nan", "1_0"):
        with pytest.raises(ScenarioError, match="is no factor for --target; write for example 5x"):
            parse_factor(text, "--target")


# --- the command --------------------------------------------------------------------------------------------------------------


def test_the_command_prints_limits_and_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(diamond_of_kinds(), "diamond.h5")
    out = output(capsys, "whatif", "diamond.h5", "--limits", "--target", "1.4x")
    assert "gemm                  1  50.0 us  50.0%            2.00x      1.40x      1.40x\n" in out
    assert "1 kind must be free: gemm (the fewest that do; " in out
    data = json.loads(output(capsys, "whatif", "diamond.h5", "--limits", "--target", "2x", "--faster", "10", "--json"))
    assert [k["name"] for k in data["kinds"]] == ["gemm", "elementwise", "conv", "pooling"]
    assert data["target"]["kinds"] == ["gemm", "elementwise"]  # 10 + max(5, 3) + 10 = 25; gemm alone leaves 50
    assert data["target"]["after_ns"] == 25_000
    assert len(data["migrations"][0]["points"]) == len(FACTORS)
    assert "--limits or --target and --sweep" in complaint(
        capsys, "whatif", "diamond.h5", "--limits", "--sweep", "MatMul=1..9"
    ).replace("--sweep and --limits or --target", "--limits or --target and --sweep")


def test_limits_print_without_layers_and_without_bound() -> None:
    limits = find_limits(chain({"Conv2D": 50}), Settings(workers=1))
    assert "unbounded" in render_limits(limits)
    assert json.loads(json.dumps(limits.to_dict(), allow_nan=False))["kinds"][0]["replay"] is None
