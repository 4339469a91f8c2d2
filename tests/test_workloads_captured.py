"""Are the traces of the eight workloads true and complete, with all their work and memory accounted for? Both modes, both stages.

The workloads are captured at preset `tiny`, two steps each, once for all tests of this file: all of a stage in one process.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import networkx
import pytest

from fathom_trace import ops
from fathom_trace.checks import check
from fathom_trace.cli import run as run_command
from fathom_trace.costs import costs
from fathom_trace.layers import COMPUTE, GRAPH, layer_links
from fathom_trace.memory import memory
from fathom_trace.phases import ROLES, phases
from fathom_trace.profile import profile
from fathom_trace.rewrites import rewrites
from fathom_trace.store import save
from fathom_trace.trace import Trace
from fathom_trace.units import format_bytes, format_share
from fathom_trace.workload import MODES
from fathom_trace.workloads import REGISTRY
from tests.captured_apart import capture_workloads_apart

pytestmark = pytest.mark.capture
pytest.importorskip("tensorflow")

RUNS = [f"{name}-{mode}" for name in REGISTRY.names() for mode in MODES]
STAGES = ("source", "optimized")
LEAST_COVERAGE = {"source": 0.99, "optimized": 0.95}
MORE_CAPTURES = 2


class Captures:
    """The traces of a stage, by NAME-MODE; each is made when it is first asked for, together with the others of its stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, dict[str, Trace]] = {}

    def of(self, stage: str, run: str) -> Trace:
        if stage not in self._made:
            self._made[stage] = capture_workloads_apart(RUNS, self.folder / stage, stage)
        return self._made[stage][run]

    def again(self, stage: str, run: str) -> Trace:
        """Another capture of one of them."""
        return capture_workloads_apart([run], self.folder / f"{stage}-again", stage)[run]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    return Captures(tmp_path_factory.mktemp("workloads"))


def test_there_are_eight_workloads() -> None:
    assert len(RUNS) == 16


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("run", RUNS)
def test_dependencies_hold_and_nothing_is_missing(captures: Captures, run: str, stage: str) -> None:
    trace = captures.of(stage, run)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.invalid_times) == (0, 0, 0, 0)
    assert found.complete
    assert found.recorded == found.produced
    assert (trace.provenance["opaque_calls"], trace.provenance["unplaced_records"]) == ([], {})
    assert trace.provenance["stage"] == stage
    for structure in range(len(trace.structures)):
        graph = trace.to_networkx(structure)
        rows = trace.structure_rows(structure)
        assert set(graph) == set(range(rows.start, rows.stop)), "every producer is an execution of the structure"
        assert networkx.is_directed_acyclic_graph(graph)
        edges = graph.number_of_edges()
        assert edges == len(trace.waited_for(structure).producer), "accesses to variables are ordered by the graph itself"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("run", RUNS)
def test_executions_are_ready_when_scheduled(captures: Captures, run: str, stage: str) -> None:
    """98% within 100 us, or 95% in a step of fewer than 200 executions, where a single one is half a percent.

    Other programs on the machine may delay a worker at any moment, so the best of three captures counts. A missing edge is in all three.
    """
    trace = captures.of(stage, run)
    shares = [check(trace).readiness_share]
    least = 0.98 if check(trace).executions / len(trace.traced_steps) >= 200 else 0.95
    while max(shares) < least and len(shares) <= MORE_CAPTURES:
        shares.append(check(captures.again(stage, run)).readiness_share)
    assert max(shares) >= least, shares


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("run", RUNS)
def test_costs_are_known_for_nearly_all_of_the_time(captures: Captures, run: str, stage: str) -> None:
    trace = captures.of(stage, run)
    structure = trace.main_structure
    found = costs(trace, structure)
    coverage = found.coverage(trace.median_durations(structure))
    assert set(coverage) == {"macs", "flops", "bytes"}
    assert {name: c.time for name, c in coverage.items() if c.time is None or c.time < LEAST_COVERAGE[stage]} == {}


@pytest.mark.parametrize("run", RUNS)
def test_macs_as_optimized_and_those_removed_are_the_source_s(captures: Captures, run: str) -> None:
    found = rewrites(captures.of("source", run), captures.of("optimized", run))
    assert found.source_macs > 0
    assert found.changed == ()
    assert found.executed_macs + sum(item.macs for item in found.removed) == found.source_macs


def test_a_vgg_step_has_its_convolutions_and_their_macs_by_hand(captures: Captures) -> None:
    """The tiny preset has 1/16 of VGG-19's maps on images of 32 x 32, batch 4: groups at 32, 16, 8, 4 and 2."""
    vgg = captures.of("source", "vgg-training")
    found = costs(vgg, vgg.main_structure)
    conv = parameters = 0
    depth = 3
    for extent, maps, count in ((32, 4, 2), (16, 8, 2), (8, 16, 4), (4, 32, 4), (2, 32, 4)):
        for _ in range(count):
            conv += 4 * 9 * extent * extent * depth * maps
            parameters += (9 * depth + 1) * maps
            depth = maps
    first = 4 * 9 * 32 * 32 * 3 * 4
    dense = 4 * (32 * 64 + 64 * 64 + 64 * 10)
    parameters += 33 * 64 + 65 * 64 + 65 * 10
    by_kind = {row.key: row for row in profile(vgg, by="kind").rows}
    assert [by_kind[k].count for k in ("conv", "conv_filter_grad", "conv_input_grad")] == [16, 16, 15]
    assert [by_kind[k].macs for k in ("conv", "conv_filter_grad", "conv_input_grad")] == [conv, conv, conv - first]
    by_phase = {row.key: row for row in profile(vgg, by="phase").rows}
    assert by_phase["forward"].macs == conv + dense
    assert by_phase["backward"].macs == 2 * conv - first + 2 * dense
    assert by_phase["optimizer"].macs == 0
    # Momentum is 4 operations a parameter.
    assert by_phase["optimizer"].flops == 4 * parameters == 4 * 85_566
    coverage = found.coverage(vgg.median_durations(vgg.main_structure))
    assert {(c.executions, c.time) for c in coverage.values()} == {(1.0, 1.0)}


def test_every_product_of_a_vgg_step_is_linked_by_the_graph(captures: Captures) -> None:
    vgg = captures.of("source", "vgg-training")
    links, found = layer_links(vgg), phases(vgg)
    assert found.evidence == ROLES
    names = [f"conv{g}_{i + 1}" for g, n in enumerate((2, 2, 4, 4, 4), start=1) for i in range(n)] + ["fc6", "fc7", "fc8"]
    made: Counter[tuple[str, str]] = Counter()
    for node, op in enumerate(vgg.node_ops):
        if ops.kind(op) in COMPUTE:
            made[links.layer[node], links.role[node]] += 1
            assert links.evidence[node] == GRAPH
            assert links.forward_evidence[node] == ("" if links.role[node] == "forward" else GRAPH)
    expected = {(name, role): 1 for name in names for role in ("forward", "filter_grad", "input_grad")}
    del expected["conv1_1", "input_grad"]
    assert made == expected
    updates = {links.layer[n] for n, op in enumerate(vgg.node_ops) if op == "ResourceApplyMomentum"}
    assert updates == set(names)
    assert {found[n] for n, op in enumerate(vgg.node_ops) if op == "ResourceApplyMomentum"} == {"optimizer"}


# --- memory -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "outputs"),
    [
        ("vgg-training", 4 + 4 * 4 * 10),  # a loss, logits of 4 images for 10 classes
        ("seq2seq-training", 4 + 4),  # a loss, the norm of the gradients
    ],
)
def test_memory_returns_to_what_persists_and_each_byte_of_the_peak_has_an_owner(
    captures: Captures, run: str, outputs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a step live its outputs and what it put in the place of variables' buffers; the sums are counted anew from the records."""
    trace = captures.of("source", run)
    found = memory(trace)
    records = trace.allocations
    sizes = records.size_bytes[records.step == found.step]
    assert found.unpaired_releases == 0
    assert found.final_bytes == sizes.sum(), "what was allocated and not given back"
    names = {
        trace.strings[int(v)]: int(size) for v, size in zip(trace.variables.variable_name, trace.variables.size_bytes, strict=True)
    }
    assert all(names[block.variable] == block.size_bytes for block in found.replaced())
    assert len({block.variable for block in found.replaced()}) == len(found.replaced()), "each variable at most once"
    assert (found.unexplained_bytes, found.output_bytes) == (0, outputs)

    # the curve: no allocation before its time, in whole microseconds; the peak is that of the records added up, releases first
    events = sorted(zip(records.time.tolist(), records.size_bytes.tolist(), strict=True))
    live = peak = 0
    for _, size in events:
        live += size
        peak = max(peak, live)
    assert found.peak_bytes == peak
    shares = found.peak_by_role()
    assert set(shares) == {"tensor", "temporary", "variable", "ambiguous"}
    assert sum(shares.values()) == peak
    assert shares["ambiguous"] <= 0.05 * peak

    save(trace, tmp_path / "trace.h5")
    assert run_command(("memory", str(tmp_path / "trace.h5"))) == 0
    out = capsys.readouterr().out
    assert f"ambiguous {format_bytes(shares['ambiguous'])} ({format_share(shares['ambiguous'] / peak)})" in out
    assert f"{format_bytes(found.replaced_bytes)} in place of the buffers of {len(found.replaced())} variables" in out
    assert "unexplained" not in out
