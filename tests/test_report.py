"""Does `report` write each analysis as numbers, figures and a page that a browser shows with all its data and nothing from elsewhere?"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, browser
from handmade import Hand
from profiles import captured, timed
from small import dense, diamond, loop
from test_published import AS_PUBLISHED, RATIOS

from fathom_trace.builder import TraceBuilder
from fathom_trace.cli import run
from fathom_trace.errors import OptionError, UnknownNameError
from fathom_trace.report.analyses import Report, analyse
from fathom_trace.report.captured import CURVE_POINTS, Captured, measure, measure_files
from fathom_trace.report.figures import figures
from fathom_trace.report.numbers import numbers
from fathom_trace.report.roofline import roofline
from fathom_trace.report.traffic import Exchange, traffic
from fathom_trace.store import save
from fathom_trace.trace import Trace

TABLES = {
    "traces", "published", "stationarity", "skew", "heat_map", "similarity", "distances", "training_inference", "parallelism", "roofline",
    "memory", "traffic",
}  # fmt: skip
FIGURES = {
    "stationarity", "skew", "heat_map", "similarity", "similarity_average", "training_inference", "parallelism_memnet", "roofline",
    "memory", "traffic",
}  # fmt: skip


# --- the analyses that the paper has not --------------------------------------------------------------------------------------------


def product() -> Hand:
    """x [3, 4] times w [4, 5], and a ReLU of the product: 60 MACs, so 120 FLOPs on 48 + 80 + 60 bytes... each of 4 B an element."""
    hand = Hand()
    made = hand.op("mm", "MatMul", hand.feed("x", (3, 4)), hand.feed("w", (4, 5)), shape=(3, 5), transpose_a=False, transpose_b=False)
    hand.op("relu", "Relu", made, shape=(3, 5))
    hand.op("odd", "NewFangledOp", made, shape=(3, 5))
    hand.op("same", "Reshape", made, shape=(15,))
    return hand


def test_a_roofline_by_hand() -> None:
    """MatMul: 120 FLOPs, 4 (12 + 20 + 15) = 188 bytes, 60 ns: 2 GFLOP/s. Relu: 15 FLOPs, 120 bytes, 20 ns.

    Of 100 ns, 15 are of an op type without a rule and 5 of one that computes nothing.
    """
    found = roofline([measure(product().build(durations_ns=[0, 0, 60, 20, 15, 5]), "x.h5")])
    by_type = {p.op_type: p for p in found.points}
    assert set(by_type) == {"MatMul", "Relu"}
    assert (by_type["MatMul"].flops, by_type["MatMul"].bytes) == (120, 188)
    assert by_type["MatMul"].intensity == pytest.approx(120 / 188)
    assert by_type["MatMul"].flops_per_s == pytest.approx(2e9)
    assert found.attained_flops_per_s == pytest.approx(2e9)
    assert found.attained_bytes_per_s == pytest.approx(120 / 20 * 1e9)
    assert {why.split()[-1]: share for _, share, why in found.left_out} == {"known": pytest.approx(0.15), "bytes": pytest.approx(0.05)}


def training_of(size: int, input_ns: int = 30) -> Captured:
    """A step of 100 ns with one trained variable of `size` float32, another that is not trained, and 30 ns of preparation."""
    builder = TraceBuilder()
    node = builder.node("a", "Relu")
    builder.variable("w", "float32", (size,), trainable=True, slot_of=-1, slot_name="", node=node)
    builder.variable("step", "int64", (), trainable=False, slot_of=-1, slot_name="", node=node)
    builder.execution(node, outputs=[("float32", (2,))])
    builder.step(builder.end_structure(), start=[0], done=[100], input_preparation_ns=input_ns, input_preparation_bytes=64)
    return measure(builder.build({"workload": "x", "mode": "training"}), "x.h5")


def test_weights_on_a_ring_by_hand() -> None:
    """1000 float32 on 4 workers: each sends 2 * 3 / 4 * 4000 = 6000 bytes; at 60 GB/s that takes 100 ns, beside 100 and 30."""
    found = traffic(training_of(1000), Exchange(4, 60e9))
    assert (found.trainable_bytes, found.sent_bytes) == (4000, 6000)
    assert found.exchange_ns == pytest.approx(100)
    assert (found.input_ns, found.input_bytes, found.computation_ns) == (30, 64, 100)
    assert found.shares == pytest.approx((30 / 230, 100 / 230, 100 / 230))


def test_other_exchanges_by_hand() -> None:
    assert Exchange(4, 60e9, "server").times == 2
    assert Exchange(1, 60e9).times == 0
    assert traffic(captured("x", {"MatMul": 100}, "inference"), Exchange(4, 60e9)).exchange_ns == 0
    with pytest.raises(UnknownNameError, match="no scheme is called 'rings'; did you mean 'ring'"):
        Exchange(4, 1e9, "rings")
    with pytest.raises(OptionError, match="exchange nothing"):
        Exchange(4, 0)


def with_memory(count: int) -> Captured:
    """`count` allocations of 1 to `count` kB, 10 ns apart; each is released before the next but for the last."""
    builder = TraceBuilder()
    builder.execution(builder.node("a", "Relu"), outputs=[("float32", (2,))])
    step = builder.step(builder.end_structure(), start=[0], done=[100])
    for i in range(count):
        builder.add("allocations", step=step, execution=0, size_bytes=1000 * (i + 1), time=10 * i, buffer=-1)
        if i < count - 1:
            builder.add("allocations", step=step, execution=0, size_bytes=-1000 * (i + 1), time=10 * i + 5, buffer=-1)
    return measure(builder.build({"mode": "training", "workload": "x"}), "x.h5")


def test_the_memory_curve_is_thinned_to_the_most_in_each_interval() -> None:
    few, many = with_memory(3).memory, with_memory(5000).memory
    assert few is not None
    assert many is not None
    assert few.live_bytes.tolist() == [1000, 0, 2000, 0, 3000]
    assert (few.peak_bytes, few.peak_ns) == (3000, 20)
    assert len(many.live_bytes) == CURVE_POINTS
    assert many.live_bytes.max() == many.peak_bytes == 5_000_000
    assert np.all(np.diff(many.live_bytes) >= 0)  # the most in each interval: never the zeros between


# --- numbers ------------------------------------------------------------------------------------------------------------------------


def everything() -> Report:
    """The eight workloads in both modes, memnet also on one thread, one with allocations."""
    made = []
    for name, times in AS_PUBLISHED.items():
        steps = [{op: time + k for op, time in times.items()} for k in range(6)]
        for mode, wall in (("training", 1000 * RATIOS[name]), ("inference", 1000)):
            trace = timed(steps, untraced=[wall], workload=name, mode=mode, batch_size=4, intra_threads=2, cpu_model="A <b> & c")
            made.append(measure(trace, f"{name}-{mode}.h5"))
    made.append(
        captured(
            "memnet", {op: 2 * t for op, t in AS_PUBLISHED["memnet"].items()}, batch_size=4, intra_threads=1, cpu_model="A <b> & c"
        )
    )
    return analyse([*made, with_memory(50)])


@pytest.fixture(scope="module")
def report() -> Report:
    return everything()


def test_every_analysis_has_a_table_that_agrees_with_it(report: Report) -> None:
    tables = numbers(report)
    assert set(tables) == TABLES
    skew = [dict(zip(tables["skew"].header, row, strict=True)) for row in tables["skew"].rows]
    assert next(row["op_type"] for row in skew if row["trace"] == "autoenc training") == "MatMul"
    header, rows = tables["heat_map"].header, {row[0]: row for row in tables["heat_map"].rows}
    assert rows["MatMul"][header.index("speech training")] == pytest.approx(0.8, rel=0.01)
    assert rows["Conv2D"][header.index("speech training")] is None
    ratios = {row[1]: row[5] for row in tables["training_inference"].rows}
    assert ratios == {name: pytest.approx(ratio) for name, ratio in RATIOS.items()}
    threads = {(row[1], row[2]) for row in tables["parallelism"].rows if not row[-1]}
    assert ("Tile", 1) in threads
    assert ("Tile", 2) in threads
    assert all(row[-1] is True for row in tables["parallelism"].rows if row[2] not in (1, 2))


def test_what_was_left_out_is_said(report: Report) -> None:
    excluded = report.excluded
    assert set(excluded) == TABLES - {"traces", "published", "distances"}
    assert excluded["skew"] == ("8 traces that are not of training",)
    assert any("traces without allocation records" in text and "vgg training" in text for text in excluded["memory"])
    assert any("x training" in text for text in excluded["training_inference"])
    assert any("CTCLoss" not in text and "speech training" in text for text in excluded["roofline"])


def test_without_training_all_traces_are_profiled() -> None:
    report = analyse([captured("x", {"MatMul": 1}, "inference"), captured("y", {"Conv2D": 1}, "call")])
    assert [s.label for s in report.skew] == ["x inference", "y call"]
    assert report.excluded["skew"] == ()


# --- the command --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a folder of two traces."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    for mode, wall in (("training", 300), ("inference", 100)):
        save(timed([AS_PUBLISHED["autoenc"]] * 3, untraced=[wall], workload="autoenc", mode=mode), f"traces/autoenc-{mode}.h5")
    return tmp_path


def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)


def test_without_the_extra_numbers_are_written_and_a_line_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_engine(monkeypatch)
    assert run(["report", "traces", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "pip install 'fathom-trace[report]'" in err
    assert out.startswith("out: 2 traces, 0 figures, 13 files\n")
    assert {p.name for p in Path("out").iterdir()} == {f"{name}.csv" for name in TABLES} | {"report.json"}
    found = json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    assert found["training_inference"]["pairs"][0]["ratio"] == 3
    assert [t["label"] for t in found["traces"]] == ["autoenc inference", "autoenc training"]
    with open("out/skew.csv", encoding="utf-8") as file:
        assert float(next(csv.DictReader(file))["share"]) == pytest.approx(0.7)


def test_a_report_is_replaced_only_with_force_and_loses_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_engine(monkeypatch)
    assert run(["report", "traces", "--out", "out"]) == 0
    assert run(["report", "traces", "--out", "out"]) == 1
    assert "out exists; pass --force to replace it" in capsys.readouterr().err
    assert run(["report", "traces", "--out", "out", "--force"]) == 0
    Path("out/mine.txt").write_text("x", encoding="utf-8")
    assert run(["report", "traces", "--out", "out", "--force"]) == 1
    assert "out holds mine.txt, which no report wrote" in capsys.readouterr().err
    assert run(["report", "traces", "--out", "traces"]) == 1
    assert "traces holds files that no" in capsys.readouterr().err
    assert sorted(p.name for p in here.iterdir()) == ["out", "traces"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "empty", "--out", "out"], "empty holds no trace"),
        (["report", "nothing.h5", "--out", "out"], "nothing.h5"),
        (["report", "traces", "--out", "out", "--link", "fast"], "'fast' is not a quantity in B/s"),
        (["report", "traces", "--out", "out", "--link", "0"], "exchange nothing"),
        (["report", "traces", "--out", "out", "--scheme", "tree"], "no scheme is called 'tree'"),
        (["report", "traces", "--out", "missing/out"], "the folder"),
    ],
)
def test_what_cannot_be_reported_is_one_line(here: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not Path("out").exists()


def test_names_of_files_that_no_text_can_hold_are_escaped(tmp_path: Path) -> None:
    [captured] = measure_files([tmp_path / "\udcff\n.h5"], lambda _: diamond())
    assert str(captured.file).endswith("/\\udcff\\n.h5")
    json.dumps(captured.file).encode()


def test_a_link_that_leads_to_itself_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "loop.h5").symlink_to("loop.h5")
    assert run(["report", "loop.h5", "--out", "out"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


# --- figures and page ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report with figures and page."""
    pytest.importorskip("vl_convert")
    from fathom_trace.report.files import write

    folder = tmp_path_factory.mktemp("report")
    assert set(write(report, folder).figures) == FIGURES
    return folder


def test_figures_are_svg_and_png(written: Path) -> None:
    for name in FIGURES:
        root = xml.etree.ElementTree.parse(written / f"{name}.svg").getroot()
        assert root.tag.endswith("}svg")
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 3
        data = (written / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert int.from_bytes(data[16:20], "big") > 1000


def test_the_page_states_provenance_exclusions_and_facts(written: Path, report: Report) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    assert text.count("<figure data-figure=") == len(FIGURES)
    assert "A &lt;b&gt; &amp; c" in text
    assert "A <b> & c" not in text.split("<script", 1)[0]
    for label in ("vgg inference", "memnet training (1 threads)"):
        assert f"<strong>{label}</strong>" in text
    assert "2 traced steps: the first and the last, as the paper drops them" in text
    assert all(fact.criterion.split(",")[0] in text.replace("&gt;", ">") for fact in report.facts if "'" not in fact.criterion)


MARKS = """(name => {
  const svg = document.querySelector(`figure[data-figure="${name}"] svg`);
  const count = kind => svg.querySelectorAll(["path", "line", "text"].map(tag => `.mark-${kind}.role-mark > ${tag}`).join()).length;
  return Object.fromEntries(["rect", "symbol", "rule", "line", "text", "area"].map(kind => [kind, count(kind)]));
})"""

OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim() && getComputedStyle(t).opacity !== "0");
    const name = svg.closest("figure").dataset.figure, frame = svg.getBoundingClientRect();
    const turned = t => (t.getAttribute("transform") || "").match(/rotate\\((?!0\\))/);
    const flat = texts.filter(t => !turned(t)).map(t => [t.textContent, t.getBoundingClientRect()]);
    flat.forEach(([text, a], i) => {
      if (a.right > frame.right + 1 || a.left < frame.left - 1) found.push([name, text, "cut"]);
      flat.slice(i + 1).forEach(([other, b]) => {
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (width > 1 && height > 4) found.push([name, text, other]);
      });
    });
  }
  return found;
})()"""


def expected_marks(report: Report) -> dict[str, dict[str, int]]:
    """Marks that each figure must hold, counted from the analyses."""
    cells = sum(cell is not None for row in report.heat_map.cells for cell in row)
    merges = len(report.similarity["centroid"].merges)
    pairs = len(report.training_inference.pairs)
    profiled = len(report.profiled)
    times = sum(bool(ns) for t in report.traffic for ns in (t.input_ns, t.computation_ns, t.exchange_ns))
    return {
        "skew": {"line": profiled, "symbol": sum(min(len(s.op_types), 30) for s in report.skew), "rule": 1},
        "heat_map": {"rect": cells, "text": cells},
        "similarity": {"rule": 3 * merges},
        "similarity_average": {"rule": 3 * merges},
        "training_inference": {"rect": 2 * pairs, "text": 2 * pairs},
        "parallelism_memnet": {"area": 2 * len(report.parallelism[0].op_types)},
        "roofline": {"symbol": len(report.roofline.points), "line": 1},
        "memory": {"line": sum(c.memory is not None for c in report.profiled)},
        "traffic": {"symbol": times},
    }


def shows_all(found: Browser, report: Report) -> None:
    marks: dict[str, Any] = {name: found.evaluate(f"{MARKS}('{name}')") for name in FIGURES}
    for name, expected in expected_marks(report).items():
        assert {kind: marks[name][kind] for kind in expected} == expected, name
    assert marks["stationarity"]["rect"] >= len(report.profiled) - 2  # two traces have one step


@pytest.mark.simulator
def test_a_browser_shows_the_page_light_and_dark_wide_and_narrow(written: Path, report: Report, tmp_path: Path) -> None:
    """No request but the page's own, no complaint, every mark there, nothing cut, no text on other text."""
    file = written / "report.html"
    with browser(tmp_path) as found:
        for width, is_dark in ((1200, False), (360, True)):
            shade = "dark" if is_dark else "light"
            found.open(file, width, is_dark=is_dark)
            found.wait_for("document.documentElement?.dataset.drawn === 'yes'")
            assert set(found.evaluate("[...document.querySelectorAll('figure')].map(f => f.dataset.figure)")) == FIGURES
            assert set(found.evaluate("[...document.querySelectorAll('figure')].map(f => f.dataset.drawn)")) == {shade}
            shows_all(found, report)
            assert found.evaluate("document.documentElement.scrollWidth") <= width
            assert found.evaluate(OVERLAPS) == []
            background = found.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(255, 255, 255)") is not is_dark
        found.shade(is_dark=False)
        found.wait_for("[...document.querySelectorAll('figure')].every(f => f.dataset.drawn === 'light')")
        shows_all(found, report)
        assert found.requests == [file.resolve().as_uri()] * 2
        assert found.complaints == []


@pytest.mark.simulator
def test_the_browser_would_show_a_request_and_an_error(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<!DOCTYPE html><img src='other.png'><script>console.error('x'); missing()</script>", encoding="utf-8")
    with browser(tmp_path) as found:
        found.open(page, 400)
        found.wait_for("document.readyState === 'complete'")
        assert any(address.endswith("other.png") for address in found.requests)
        assert any("missing is not defined" in text for text in found.complaints)
        assert any('"value": "x"' in text for text in found.complaints)


def test_two_stages_of_a_workload_stay_apart() -> None:
    """Two workloads, each in both modes, stages and at two numbers of threads: pairs and scalings by stage, each with its own figure."""
    made = [
        captured(name, {"MatMul": 100 // threads, "Tile": 50}, mode, stage=stage, intra_threads=threads, untraced=[100])
        for name in ("vgg", "memnet")
        for mode in ("training", "inference")
        for stage in ("source", "optimized")
        for threads in (1, 2)
    ]
    report = analyse(made)
    assert len({c.label for c in report.traces}) == len(made)
    assert {p.label for p in report.training_inference.pairs if p.workload == "vgg"} == {
        "vgg source 1", "vgg source 2", "vgg optimized 1", "vgg optimized 2",
    }  # fmt: skip
    names = [figure.name for figure in figures(report)]
    assert len(names) == len(set(names))
    assert {"parallelism_vgg_source", "parallelism_vgg_optimized"} <= set(names)
    assert report.short("vgg training (source, 1 threads)") == "vgg (source, 1 threads)"


def test_example_alike(tmp_path: Path) -> None:
    """A: MatMul 9 of 10. B: MatMul 3, Relu 4 of 7: the cosine of (9, 1) and (3, 4) is 31 / (5 sqrt(82))."""
    for name, times in (("a", {"MatMul": 9, "Relu": 1}), ("b", {"MatMul": 3, "Relu": 4})):
        save(timed([times], workload=name, mode="training"), tmp_path / f"{name}.h5")
    root = Path(__file__).parents[1]
    command = [sys.executable, str(root / "examples" / "alike.py"), str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "a training: 1 op types take 90%: MatMul",
        "b training: 2 op types take 90%: Relu, MatMul",
        f"{1 - 31 / (5 * 82**0.5):.3f}  a training | b training",
    ], done.stderr


@pytest.mark.parametrize("trace", [diamond, loop, dense])
def test_a_single_odd_trace_is_reported(trace: Callable[[], Trace], tmp_path: Path) -> None:
    """One step, several structures, overlapping lanes, unknown op types, names with quotes and markup: whatever can be drawn is."""
    pytest.importorskip("vl_convert")
    from fathom_trace.report.files import write

    made = trace()
    odd = "it's </script> \\ <i>"
    found = write(analyse([measure(made.replace(provenance={**made.provenance, "workload": odd}), "odd.h5")]), tmp_path)
    assert "skew" in found.figures
    assert "similarity" not in found.figures
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert odd not in text
    assert "It needs traces of at least two workloads." in text
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["traces"][0]["provenance"]["workload"] == odd
