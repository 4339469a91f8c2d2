"""Are neighbours fused where they can be, into executions of the stated time?"""

from __future__ import annotations

import pytest

from fathom_trace.builder import TraceBuilder
from fathom_trace.errors import ScenarioError
from fathom_trace.trace import Trace
from fathom_trace.whatif import Settings, parse_scenario, project
from fathom_trace.whatif.fusion import Fuse, parse_fuse
from fathom_trace.whatif.selection import Selection


def network(*, read_twice: bool = False, devices: tuple[str, str, str] = ("", "", "")) -> Trace:
    """Conv2D (5 + 100 ns) -> BiasAdd (3 + 20) -> Relu (2 + 30) -> Loss (1 + 10) on one lane, gap and duration each.

    Tensors are [10, 25] of 4 bytes: 1000 bytes. With `read_twice`, Loss reads the BiasAdd too.
    """
    builder = TraceBuilder()
    rows: list[int] = []
    start, done, now = [], [], 0
    for k, (op, gap, duration) in enumerate((("Conv2D", 5, 100), ("BiasAdd", 3, 20), ("Relu", 2, 30), ("Loss", 1, 10))):
        parents = [k - 1] if k else []
        if read_twice and op == "Loss":
            parents = [2, 1]
        node = builder.node(op.lower(), op, inputs=[(p, 0) for p in parents], device=devices[k] if k < 3 else "")
        rows.append(builder.execution(node, inputs=[builder.tensor(rows[p]) for p in parents], outputs=[("float32", [10, 25])]))
        start.append(now + gap)
        now += gap + duration
        done.append(now)
    builder.step(builder.end_structure(), start, done, scheduled=[0, *start[1:]])
    return builder.build({"inter_threads": 1})


def after(text: str, trace: Trace | None = None) -> tuple[float, float]:
    """The step after a fusion: on one worker, and on unlimited ones."""
    projection = project(trace or network(), parse_scenario([text]))
    return projection.replay.after_ns, projection.unlimited.after_ns


def test_a_pair_takes_its_longest_part_and_is_dispatched_once() -> None:
    """171 in all. BiasAdd (3 + 20) and Relu (2 + 30) become 3 + 30."""
    assert after("fuse:BiasAdd+Relu") == (171 - 55 + 33, 171 - 55 + 33)


def test_a_chain_of_three() -> None:
    """Conv2D (5 + 100), BiasAdd (3 + 20), Relu (2 + 30) become 5 + 100."""
    assert after("fuse:Conv2D+BiasAdd+Relu") == (116, 116)


def test_with_a_bandwidth_what_intermediates_took_is_saved() -> None:
    """BiasAdd's 1000 bytes, written and read at 100 GB/s, take 20 ns: 20 + 30 - 20 = 30, no less than the longest part.

    At 200 GB/s they take 10 ns: 20 + 30 - 10 = 40.
    """
    assert after("fuse:BiasAdd+Relu@100GB/s")[0] == 171 - 55 + 33
    assert after("fuse:BiasAdd+Relu@200GB/s")[0] == pytest.approx(171 - 55 + 3 + 40)


def test_the_model_is_said() -> None:
    assert (
        "'fuse:BiasAdd+Relu': each takes the time of its longest part"
        in project(network(), parse_scenario(["fuse:BiasAdd+Relu"])).notes
    )
    [note] = project(network(), parse_scenario(["fuse:BiasAdd+Relu@20GB/s"])).notes
    assert "less what its intermediates took at 20.0 GB/s" in note


def test_parts_are_selected_as_anything_else() -> None:
    assert after("fuse:name:bias*+Relu") == after("fuse:BiasAdd+Relu")
    projection = project(network(), parse_scenario(["fuse:BiasAdd+Relu"]))
    assert [(s.change, s.executions) for s in projection.selected] == [("fuse:BiasAdd+Relu", 2)]
    assert {o.op: (o.before_ns, o.after_ns) for o in projection.ops}["BiasAdd"] == (20, 0)


def test_a_fused_execution_waits_for_what_all_its_parts_wait_for() -> None:
    """On two workers: a (10) -> b (10), and b also reads c (40). Fused, a and b start when c has ended: 40 + 10."""
    builder = TraceBuilder()
    a = builder.execution(builder.node("a", "A"), outputs=[("float32", [1])])
    c = builder.execution(builder.node("c", "C"), outputs=[("float32", [1])])
    builder.execution(builder.node("b", "B", inputs=[(0, 0), (1, 0)]), inputs=[builder.tensor(a), builder.tensor(c)])
    builder.step(0, start=[0, 0, 40], done=[10, 40, 50], lane=[0, 1, 0])
    projection = project(builder.build({"inter_threads": 2}), parse_scenario(["fuse:A+B"]))
    assert projection.unlimited.after_ns == projection.replay.after_ns == 50
    assert projection.amdahl.after_ns == 50


@pytest.mark.parametrize(
    "trace", [network(read_twice=True), network(devices=("cpu", "cpu", "gpu"))], ids=["read by another too", "on another device"]
)
def test_what_cannot_be_fused_is_not(trace: Trace) -> None:
    with pytest.raises(ScenarioError, match=r"'fuse:BiasAdd\+Relu' fuses nothing: in no chain"):
        project(trace, parse_scenario(["fuse:BiasAdd+Relu"]))


def test_a_control_dependency_alone_is_no_reason_to_fuse() -> None:
    builder = TraceBuilder()
    a = builder.execution(builder.node("a", "A"))
    builder.execution(builder.node("b", "B", control=[0]), control=[a])
    builder.step(0, start=[0, 10], done=[10, 20])
    with pytest.raises(ScenarioError, match="fuses nothing"):
        project(builder.build(), parse_scenario(["fuse:A+B"]), Settings())


def test_text_and_back() -> None:
    for text in ("fuse:A+B", "fuse:kind:conv+BiasAdd+Relu", "fuse:A+B@20000000000B/s"):
        assert str(parse_fuse(text)) == text
    assert parse_fuse("fuse:A+B@20GB/s") == Fuse((Selection("op", "A"), Selection("op", "B")), 20e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fuse:A", "'fuse:A' fuses nothing; name a producer and its consumer"),
        ("fuse:A+", "lacks a part"),
        ("fuse:", "lacks a part"),
        ("fuse:A+B@fast", "'fast' is no bandwidth"),
        ("fuse:A+B@0GB/s", "a bandwidth is above 0"),
        ("fuse:lyer:a+B", "did you mean 'layer:a'"),
        ("fuse:BiasAdd+Rlu", "did you mean 'Relu'"),
    ],
)
def test_what_is_no_fusion_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        project(network(), parse_scenario([text]))
