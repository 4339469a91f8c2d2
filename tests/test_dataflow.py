"""Does each record land in the right iteration, with the right producers? Hand-made graphs, no TensorFlow."""

from __future__ import annotations

import pytest

from fathom_trace.capture.dataflow import FlowAnalysis, FlowNode
from fathom_trace.errors import CaptureError


class Graph:
    """Nodes by name, and the records that a run of them would leave."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.nodes: list[FlowNode] = []
        self.back: list[tuple[str, str]] = []
        self.records: list[list[int]] = []
        self.slots: list[tuple[int, ...]] = []

    def node(self, name: str, op: str, *inputs: str, control: tuple[str, ...] = (), frame: str = "", constant: bool = False) -> None:
        self.names[name] = len(self.nodes)
        parsed = [(self.names[i.split(":")[0]], int(i.split(":")[1]) if ":" in i else 0) for i in inputs]
        self.nodes.append(FlowNode(op, parsed, [self.names[c] for c in control], frame, constant))
        self.records.append([])

    def back_edge(self, merge: str, producer: str) -> None:
        self.nodes[self.names[merge]].inputs.append((self.names[producer], 0))  # type: ignore[attr-defined]

    def ran(self, name: str, *slots: int) -> int:
        self.records[self.names[name]].append(len(self.slots))
        self.slots.append(slots or (0,))
        return len(self.slots) - 1

    def flow(self):
        return FlowAnalysis(self.nodes, self.records, self.slots).run()


def counting_loop(trips: int) -> Graph:
    """x -> while (i < trips): i = Add(i, limit), where `limit` is a constant Enter."""
    g = Graph()
    g.node("x", "Const")
    g.node("limit", "Const")
    g.node("enter", "Enter", "x", frame="loop")
    g.node("bound", "Enter", "limit", frame="loop", constant=True)
    g.node("merge", "Merge", "enter")
    g.node("less", "Less", "merge", "bound")
    g.node("cond", "LoopCond", "less")
    g.node("switch", "Switch", "merge", "cond")
    g.node("add", "Add", "switch:1", "bound")
    g.node("next", "NextIteration", "add")
    g.back_edge("merge", "next")
    g.node("exit", "Exit", "switch:0")
    g.node("y", "Identity", "exit")
    for name in ("x", "limit", "enter", "bound"):
        g.ran(name)
    for i in range(trips + 1):
        for name in ("merge", "less", "cond"):
            g.ran(name)
        g.ran("switch", 1 if i < trips else 0)
        if i < trips:
            g.ran("add")
            g.ran("next")
    g.ran("exit")
    g.ran("y")
    return g


@pytest.mark.parametrize("kept", range(5, 24))
def test_what_is_cut_off_anywhere_leaves_no_record_without_its_iteration_and_producers(kept: int) -> None:
    """A loop of three iterations (24 records after its four Enters and constants), of which only the first records are kept."""
    g = counting_loop(3)
    assert len(g.slots) > kept
    g.records = [[record for record in records if record < kept] for records in g.records]
    g.slots = g.slots[:kept]
    flow = g.flow()
    assert not flow.surplus
    assert all(producer >= 0 for record in range(kept) for producer, _ in flow.inputs[record])
    merges = g.records[g.names["merge"]]
    assert [flow.paths[flow.path[r]][3] for r in merges] == list(range(len(merges)))


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_every_iteration_gets_its_own_number(trips: int) -> None:
    g = counting_loop(trips)
    flow = g.flow()
    assert not flow.missing
    assert not flow.surplus
    iterations = [flow.paths[flow.path[r]][3] for r in g.records[g.names["merge"]]]
    assert iterations == list(range(trips + 1))
    adds = g.records[g.names["add"]]
    assert [flow.paths[flow.path[r]][3] for r in adds] == list(range(trips))


def test_iteration_depends_on_the_one_before() -> None:
    g = counting_loop(3)
    flow = g.flow()
    merges, nexts, enter = g.records[g.names["merge"]], g.records[g.names["next"]], g.records[g.names["enter"]][0]
    assert [flow.inputs[m][0][0] for m in merges] == [enter, *nexts]
    bound = g.records[g.names["bound"]][0]
    assert all(flow.inputs[r][1] == (bound, 0) for r in g.records[g.names["add"]]), "a constant Enter is seen by every iteration"
    last_switch = g.records[g.names["switch"]][-1]
    assert flow.inputs[g.records[g.names["exit"]][0]] == [(last_switch, 0)]


def test_lost_records_are_counted() -> None:
    g = counting_loop(3)
    lost = g.records[g.names["add"]].pop()
    flow = g.flow()
    assert [(m.node, m.expected, m.recorded) for m in flow.missing] == [(g.names["add"], 3, 2)]
    consumer = g.records[g.names["next"]][2]
    assert flow.inputs[consumer] == [(-1, 0)], "its consumer has no producer"
    assert lost not in g.records[g.names["add"]]


def test_surplus_records_are_counted() -> None:
    g = counting_loop(1)
    g.ran("add")
    assert [(m.node, m.expected, m.recorded) for m in g.flow().surplus] == [(g.names["add"], 1, 2)]


def test_branch_taken_differs_between_iterations() -> None:
    """x is switched by a predicate in every iteration; the Merge reads the branch that ran."""
    g = Graph()
    g.node("x", "Const")
    g.node("enter", "Enter", "x", frame="loop")
    g.node("merge", "Merge", "enter")
    g.node("cond", "LoopCond", "merge")
    g.node("switch", "Switch", "merge", "cond")
    g.node("predicate", "Greater", "switch:1")
    g.node("branch", "Switch", "switch:1", "predicate")
    g.node("then", "Relu", "branch:1")
    g.node("else", "Neg", "branch:0")
    g.node("join", "Merge", "then", "else")
    g.node("next", "NextIteration", "join")
    g.back_edge("merge", "next")
    g.node("exit", "Exit", "switch:0")
    for name in ("x", "enter"):
        g.ran(name)
    taken = [1, 0, 1]
    for slot in taken:
        g.ran("merge"), g.ran("cond"), g.ran("switch", 1), g.ran("predicate"), g.ran("branch", slot)
        g.ran("then" if slot else "else")
        g.ran("join"), g.ran("next")
    g.ran("merge"), g.ran("cond"), g.ran("switch", 0), g.ran("exit")
    flow = g.flow()
    assert not flow.missing
    thens, elses = g.records[g.names["then"]], g.records[g.names["else"]]
    assert [flow.paths[flow.path[r]][3] for r in thens] == [0, 2]
    assert [flow.paths[flow.path[r]][3] for r in elses] == [1]
    joined = [flow.inputs[r] for r in g.records[g.names["join"]]]
    assert joined == [[(thens[0], 0)], [(elses[0], 0)], [(thens[1], 0)]]


def test_nested_loop_has_one_instance_per_outer_iteration() -> None:
    """Outer loop of two iterations; the inner one runs 2 and then 0 times."""
    g = Graph()
    g.node("x", "Const")
    g.node("enter", "Enter", "x", frame="outer")
    g.node("merge", "Merge", "enter")
    g.node("cond", "LoopCond", "merge")
    g.node("switch", "Switch", "merge", "cond")
    g.node("enter2", "Enter", "switch:1", frame="inner")
    g.node("merge2", "Merge", "enter2")
    g.node("cond2", "LoopCond", "merge2")
    g.node("switch2", "Switch", "merge2", "cond2")
    g.node("body2", "Tanh", "switch2:1")
    g.node("next2", "NextIteration", "body2")
    g.back_edge("merge2", "next2")
    g.node("exit2", "Exit", "switch2:0")
    g.node("next", "NextIteration", "exit2")
    g.back_edge("merge", "next")
    g.node("exit", "Exit", "switch:0")
    g.ran("x"), g.ran("enter")
    for trips in (2, 0):
        g.ran("merge"), g.ran("cond"), g.ran("switch", 1), g.ran("enter2")
        for _ in range(trips):
            g.ran("merge2"), g.ran("cond2"), g.ran("switch2", 1), g.ran("body2"), g.ran("next2")
        g.ran("merge2"), g.ran("cond2"), g.ran("switch2", 0), g.ran("exit2"), g.ran("next")
    g.ran("merge"), g.ran("cond"), g.ran("switch", 0), g.ran("exit")
    flow = g.flow()
    assert not flow.missing
    assert not flow.surplus
    inner = [flow.paths[flow.path[r]] for r in g.records[g.names["merge2"]]]
    assert [(p[2], p[3]) for p in inner] == [(0, 0), (0, 1), (0, 2), (1, 0)], "instance, iteration"
    assert [flow.paths[p[0]][3] for p in inner] == [0, 0, 0, 1], "iteration of the outer loop"
    assert flow.frames[flow.frame_parents[flow.frames.index("inner")]] == "outer"
    nexts = g.records[g.names["next"]]
    exits = g.records[g.names["exit2"]]
    assert [flow.inputs[r] for r in nexts] == [[(exits[0], 0)], [(exits[1], 0)]]


def test_a_control_trigger_runs_in_the_iteration_that_only_ends_the_loop_too() -> None:
    """TensorFlow sends it dead tokens there, and it runs on those."""
    g = counting_loop(2)
    g.node("trigger", "ControlTrigger", control=("add",))
    for _ in range(3):
        g.ran("trigger")
    flow = g.flow()
    assert not flow.missing
    assert not flow.surplus
    triggers, adds = g.records[g.names["trigger"]], g.records[g.names["add"]]
    assert [flow.paths[flow.path[r]][3] for r in triggers] == [0, 1, 2]
    assert [[p for p in flow.control.of(r) if p >= 0] for r in triggers] == [[adds[0]], [adds[1]], []]


def test_a_loop_that_is_not_entered_has_an_instance_for_what_runs_all_the_same() -> None:
    """Outer iterations 0 and 2 enter the inner loop, for 2 trips and 1; iteration 1 does not, and iteration 3 only ends the outer loop.

    `count` enters from a constant that no branch guards, as counters of gradients do, so it and its header run there once as well; so
    does the trigger.
    """
    g = Graph()
    g.node("x", "Const")
    g.node("zero", "Const")
    g.node("enter", "Enter", "x", frame="outer")
    g.node("zero_in", "Enter", "zero", frame="outer", constant=True)
    g.node("merge", "Merge", "enter")
    g.node("cond", "LoopCond", "merge")
    g.node("switch", "Switch", "merge", "cond")
    g.node("predicate", "Greater", "switch:1")
    g.node("branch", "Switch", "switch:1", "predicate")
    g.node("enter2", "Enter", "branch:1", frame="inner")
    g.node("count", "Enter", "zero_in", frame="inner")
    g.node("merge2", "Merge", "enter2")
    g.node("count_merge", "Merge", "count")
    g.node("cond2", "LoopCond", "merge2")
    g.node("switch2", "Switch", "merge2", "cond2")
    g.node("count_switch", "Switch", "count_merge", "cond2")
    g.node("body2", "Tanh", "switch2:1")
    g.node("trigger", "ControlTrigger", control=("body2",))
    g.node("next2", "NextIteration", "body2")
    g.node("count_next", "NextIteration", "count_switch:1")
    g.back_edge("merge2", "next2")
    g.back_edge("count_merge", "count_next")
    g.node("exit2", "Exit", "switch2:0")
    g.node("else", "Neg", "branch:0")
    g.node("join", "Merge", "else", "exit2")
    g.node("next", "NextIteration", "join")
    g.back_edge("merge", "next")
    g.node("exit", "Exit", "switch:0")
    for name in ("x", "zero", "enter", "zero_in"):
        g.ran(name)
    for trips in (2, None, 1):
        g.ran("merge"), g.ran("cond"), g.ran("switch", 1), g.ran("predicate"), g.ran("branch", 0 if trips is None else 1)
        g.ran("count")
        if trips is None:
            g.ran("count_merge"), g.ran("trigger"), g.ran("else")
        else:
            g.ran("enter2")
            for i in range(trips + 1):
                slot = int(i < trips)
                g.ran("merge2"), g.ran("count_merge"), g.ran("cond2"), g.ran("switch2", slot), g.ran("count_switch", slot)
                if slot:
                    g.ran("body2"), g.ran("next2"), g.ran("count_next")
                g.ran("trigger")
            g.ran("exit2")
        g.ran("join"), g.ran("next")
    g.ran("merge"), g.ran("cond"), g.ran("switch", 0), g.ran("count"), g.ran("count_merge"), g.ran("trigger"), g.ran("exit")
    flow = g.flow()
    assert not flow.missing
    assert not flow.surplus

    def where(name: str) -> list[tuple[int, int]]:
        paths = [flow.paths[flow.path[r]] for r in g.records[g.names[name]]]
        return [(flow.paths[p[0]][3], p[3]) for p in paths]

    assert where("merge2") == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert where("trigger") == where("count_merge") == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (3, 0)]
    counts, merges = g.records[g.names["count"]], g.records[g.names["count_merge"]]
    assert [flow.inputs[merges[k]] for k in (0, 3, 4, 6)] == [[(c, 0)] for c in counts]


def test_a_cycle_that_is_no_loop_is_refused() -> None:
    g = Graph()
    g.node("a", "Relu")
    g.node("b", "Relu", "a")
    g.back_edge("a", "b")
    with pytest.raises(CaptureError, match="cycle"):
        g.flow()
