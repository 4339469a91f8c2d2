"""Do scenario files and predicates become what they say, and is every mistake in one named by file, scenario and change?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom_trace.cli import run
from fathom_trace.errors import ScenarioError
from fathom_trace.store import load, save
from fathom_trace.trace import Trace
from fathom_trace.whatif import parse_scenario, project, project_all, read_accelerator, read_scenarios, render_comparison
from fathom_trace.whatif.documents import MOST_BYTES, read_document
from fathom_trace.whatif.predicate import Predicate
from fathom_trace.whatif.scenario import Context
from fathom_trace.whatif.selection import executed
from tests.small import dense, diamond
from tests.test_commands import complaint, output

FILE = """\
b faster:
  - OpB=5
c free:   # off the critical path
  - OpC: inf
both:
  - OpB: 5
    OpC: inf
removed:
  - "name:[AD]=remove"
nothing: []
"""


def write(folder: Path, text: str, name: str = "scenarios.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- several scenarios --------------------------------------------------------------------------------------------------------


def test_each_scenario_of_a_file_is_projected(tmp_path: Path) -> None:
    """A 10 -> (B 50 beside C 30) -> D 10 us on two workers; by Amdahl 100 us."""
    named = read_scenarios(write(tmp_path, FILE))
    assert [(name, str(s)) for name, s in named.items()] == [
        ("b faster", "OpB=5"), ("c free", "OpC=inf"), ("both", "OpB=5, OpC=inf"), ("removed", "name:[AD]=remove"),
        ("nothing", "nothing changed"),
    ]  # fmt: skip
    comparison = project_all(diamond(), named)
    found = {s.name: tuple(e.after_ns / 1000 for e in s.estimates) for s in comparison.scenarios}
    assert found == {
        "b faster": (60, 50, 50), "c free": (70, 70, 70), "both": (30, 30, 30), "removed": (80, 50, 50), "nothing": (100, 70, 70),
    }  # fmt: skip
    for scenario in comparison.scenarios:
        alone = project(diamond(), named[scenario.name])
        assert scenario.estimates == alone.estimates
        assert scenario.untouched_share == alone.untouched_share
    data = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert [s["speedup"] for s in data["scenarios"]] == pytest.approx([1.4, 1, 70 / 30, 1.4, 1])


def test_a_thousand_scenarios_in_batches_are_what_each_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"s{k}:\n  - OpB={k + 1}\n" for k in range(1000))
    named = read_scenarios(write(tmp_path, text))
    whole = project_all(diamond(), named)
    for k, scenario in enumerate(whole.scenarios):
        assert scenario.replay.after_ns == pytest.approx(20_000 + max(50_000 / (k + 1), 30_000), rel=1e-12)
    monkeypatch.setattr("fathom_trace.whatif.compare.BATCH_VALUES", 28)
    assert project_all(diamond(), named) == whole


def test_the_command_prints_a_line_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(diamond(), "diamond.h5")
    write(tmp_path, FILE)
    out = output(capsys, "whatif", "diamond.h5", "scenarios.yaml")
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert lines["b faster"][-7:] == ["50.0%", "50.0", "us", "1.67x", "1.40x", "1.40x", "1.40x"]
    data = json.loads(output(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--json"))
    assert [s["name"] for s in data["scenarios"]] == ["b faster", "c free", "both", "removed", "nothing"]
    on_top = json.loads(output(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--speedup", "OpA=10", "--json"))
    assert on_top["scenarios"][0]["makespan_ns"] == 41_000
    one = json.loads(output(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--only", "both", "--json"))
    assert one["makespan_ns"] == 30_000
    assert complaint(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--only", "bath").endswith("did you mean 'both'?")
    assert "for each" in complaint(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--sweep", "OpB=1..10")
    assert "-o writes one projected step" in complaint(capsys, "whatif", "diamond.h5", "scenarios.yaml", "-o", "x.h5")
    for more in (["--limits"], ["--target", "1.2x"], ["--sweep", "OpA=1..10"]):  # are on top of the one scenario, too
        found = json.loads(output(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--only", "b faster", *more, "--json"))
        assert found.get("target", {}).get("scenario", found.get("scenario")) == "OpB=5", more
    assert "--only picks a scenario of a file" in complaint(capsys, "whatif", "diamond.h5", "--only", "x")


def test_notes_are_told_by_scenario() -> None:
    comparison = project_all(diamond(), {"twice": parse_scenario(["OpB=2", "Op*=2"])})
    assert "note: twice: executions that more than one change selects, and that they change in turn: 1" in render_comparison(
        comparison
    )


# --- mistakes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  - OpB\n", "scenarios.yaml: scenario 'a', change 1: 'OpB' is not a speedup; write for example Conv2D=10"),
        ("a:\n  - OpB=2\n  - lyer:x=2\n", "scenarios.yaml: scenario 'a', change 2: 'lyer:x' selects by 'lyer'"),
        ("a:\n  - OpB=2\n  - OpB=3\n", "scenarios.yaml: scenario 'a': 'OpB' is given twice"),
        ("a: OpB=2\n", "scenarios.yaml: scenario 'a' is no list of changes"),
        ("a:\n  - [OpB=2]\n", "scenarios.yaml: scenario 'a', change 1 is no change"),
        ("a:\n  - OpB: {x: 1}\n", "scenarios.yaml: scenario 'a', change 1 is no change"),
        ("- OpB=2\n", "scenarios.yaml holds no scenarios"),
        ("just text\n", "scenarios.yaml holds no scenarios"),
        ("", "scenarios.yaml is empty"),
        ("# nothing\n", "scenarios.yaml is empty"),
        ("a:\n  - *=4\n", "scenarios.yaml:2 is no YAML|scenarios.yaml:2: '"),
        ("a:\n  - *Conv\n", r"scenarios.yaml:2: '\*Conv' is an alias, and aliases are refused; quote what begins with \*"),
        ("a: &x\n  - OpB=2\nb: *x\n", "scenarios.yaml:1: '&x' is an anchor"),
        ("a: !!python/object/apply:os.system [echo]\n", "scenarios.yaml:1: the tag '.*os.system' is refused"),
        ("a: []\na: []\n", "scenarios.yaml:2: the key 'a' is given twice"),
        ("a: []\n---\nb: []\n", "scenarios.yaml:2: a second document begins"),
        ("a: [\n", "is no YAML"),
        ("{a: b}: []\n", "a key is no text"),
        ("a:\n  - hardware: none.yaml\n", "scenario 'a', change 1: .*none.yaml cannot be read"),
        ("a:\n  - threads: 2\n", "scenario 'a', change 1: 'threads:2' needs captures of a program at several --threads"),
    ],
)
def test_a_mistake_is_one_line_that_names_where_it_is(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        read_scenarios(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_what_selects_nothing_names_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(diamond(), "diamond.h5")
    write(tmp_path, "good:\n  - OpB=2\nbad:\n  - OpZ=2\n")
    assert run(["whatif", "diamond.h5", "scenarios.yaml", "--json"]) == 1
    out, err = capsys.readouterr()
    said = "scenario 'bad': no op type that ran is called 'OpZ'"
    assert err.startswith(f"fathom-trace: scenarios.yaml: {said}")
    assert err.count("\n") == 1
    found = json.loads(out)
    assert [(s["name"], s["makespan_ns"]) for s in found["scenarios"]] == [("good", 50_000)]
    assert [p["name"] for p in found["problems"]] == ["bad"]
    assert found["problems"][0]["problem"].startswith(said)
    with pytest.raises(ScenarioError, match=said):
        project_all(diamond(), read_scenarios(tmp_path / "scenarios.yaml"))


def test_many_that_select_nothing_are_told_shortly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(diamond(), "diamond.h5")
    write(tmp_path, "bad:\n  - OpZ: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]\n")
    assert run(["whatif", "diamond.h5", "scenarios.yaml"]) == 1
    out, err = capsys.readouterr()
    assert "0 scenarios" in out
    assert len(err.splitlines()) == 11
    assert err.splitlines()[-1] == "fathom-trace: 2 more scenarios cannot be applied; --json lists all"


# --- grids --------------------------------------------------------------------------------------------------------------------


def test_a_grid_is_a_scenario_for_every_combination(tmp_path: Path) -> None:
    """B of 50 us b times faster, C of 30 us c times, and A of 10 us in 5 us: on two workers 5 + max(50 / b, 30 / c) + 10 us."""
    named = read_scenarios(write(tmp_path, "alone: []\ngrid:\n  - OpB: [1, 2, 5]\n    OpC: [1, inf]\n  - OpA: 2\n"))
    assert list(named)[:3] == ["alone", "grid: OpB=1, OpC=1", "grid: OpB=1, OpC=inf"]
    comparison = project_all(diamond(), named)
    grid = {s.name: s.replay.after_ns for s in comparison.scenarios[1:]}
    assert grid == {f"grid: OpB={b}, OpC={c}": 15_000 + max(50_000 / b, 30_000 / float(c)) for b in (1, 2, 5) for c in ("1", "inf")}
    assert str(named["grid: OpB=2, OpC=inf"]) == "OpB=2, OpC=inf, OpA=2"


def test_a_grid_takes_every_kind_of_change(tmp_path: Path) -> None:
    named = read_scenarios(write(tmp_path, "g:\n  - fuse: [OpA+OpB, OpB+OpD]\n  - OpC: [50us, remove]\n"))
    assert [str(s) for s in named.values()] == [
        f"fuse:{pair}, OpC={c}" for pair in ("OpA+OpB", "OpB+OpD") for c in ("50000ns", "remove")
    ]


def test_a_list_of_one_value_is_that_value(tmp_path: Path) -> None:
    assert {k: str(v) for k, v in read_scenarios(write(tmp_path, "g:\n  - OpB: [2]\n")).items()} == {"g": "OpB=2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g:\n  - OpB: []\n", "scenario 'g', change 1 is no change; .*for a grid"),
        ("g:\n  - OpB: [1, [2]]\n", "scenario 'g', change 1 is no change"),
        ("g:\n  - OpB: [1, fast]\n", "scenario 'g', change 1: 'OpB=fast': 'fast' is no factor"),
        ("g:\n  - OpB: [2, 3, 2]\n", "scenario 'g', change 1: 'OpB=2' is listed twice"),
        ("g:\n  - OpB: [2, 3]\n  - OpB: [4, 5]\n", "scenario 'g': 'OpB' is given twice"),
        ("'g: OpB=2': []\ng:\n  - OpB: [2, 3]\n", "scenario 'g': there are two scenarios 'g: OpB=2'"),
    ],
)
def test_a_mistake_in_a_grid_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        read_scenarios(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_grid_too_large_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """Twelve lists of a thousand: 10^36 scenarios."""
    values = ", ".join(str(k + 1) for k in range(1000))
    text = "g:\n" + "".join(f"  - Op{k}: [{values}]\n" for k in range(12))
    with pytest.raises(ScenarioError, match=r"scenario 'g' brings more than 100,000 scenarios into the file"):
        read_scenarios(write(tmp_path, text))


def test_the_file_may_stand_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save(diamond(), "diamond.h5")
    write(tmp_path, FILE)
    wanted = output(capsys, "whatif", "diamond.h5", "scenarios.yaml", "--json", "--speedup", "OpA=10")
    for words in (
        ("diamond.h5", "--json", "scenarios.yaml", "--speedup", "OpA=10"),
        ("--json", "diamond.h5", "--speedup", "OpA=10", "scenarios.yaml"),
        ("--json", "--speedup=OpA=10", "--", "diamond.h5", "scenarios.yaml"),
    ):
        assert output(capsys, "whatif", *words) == wanted
    assert "--scheduler spreads the scenarios of a file" in complaint(capsys, "whatif", "diamond.h5", "--scheduler", "tcp://x:1")


def test_a_file_that_stands_for_an_endless_one_is_refused_at_once(tmp_path: Path) -> None:
    """Ten lists of ten aliases each would be 10^10 words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    with pytest.raises(ScenarioError, match="is an anchor, and aliases are refused"):
        read_scenarios(write(tmp_path, "\n".join(lines)))


def test_large_and_deep_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=f"is larger than {MOST_BYTES:,} bytes"):
        read_document(write(tmp_path, "#" * (MOST_BYTES + 1)))
    with pytest.raises(ScenarioError, match="nested more than 16 deep"):
        read_document(write(tmp_path, "[" * 100_000))
    (tmp_path / "latin.yaml").write_bytes(b"a: [\xff]")
    with pytest.raises(ScenarioError, match="is not UTF-8"):
        read_document(tmp_path / "latin.yaml")
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_document(tmp_path)


def test_scalars_stay_text(tmp_path: Path) -> None:
    """YAML 1.1 would read a boolean, a float, a sexagesimal number, a date and nothing."""
    assert read_document(write(tmp_path, "a: [off, 1e3, 1:30, 2020-01-01, ~]")) == {"a": ["off", "1e3", "1:30", "2020-01-01", "~"]}


def test_json_is_yaml_too(tmp_path: Path) -> None:
    assert [str(s) for s in read_scenarios(write(tmp_path, json.dumps({"a": ["OpB=2"]}))).values()] == ["OpB=2"]


PIECES = st.sampled_from(
    [
        "a", ":", " ", "\n", "  - ", "[", "]", "{", "}", ",", "*", "&", "!", "!!", "%", "---", "'", '"', "\\", "\\U", "\\ud800", "#",
        "|", ">", "?", "OpB=2", "fuse:", "threads:", "hardware:", "covers: ", "peak: ", "link: ", "systolic: ",
        "none", "1e9", "\t", "\0", "\x85", "é",
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60))
def test_no_file_is_anything_but_read_or_refused_in_one_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        assert all(len(refusal(read, path).splitlines()) <= 1 for read in (read_scenarios, read_accelerator))


def refusal(read: Callable[[Path], object], path: Path) -> str:
    """What is said against a file; empty where it is read."""
    try:
        read(path)
    except ScenarioError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', 'a: "\\ud800"'])
def test_escapes_that_are_no_characters_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScenarioError, match=r"is no YAML|half a character"):
        read_document(write(tmp_path, text))


# --- predicates ---------------------------------------------------------------------------------------------------------------


def chosen(tmp_path: Path, code: str, trace: Trace) -> list[str]:
    mask = Predicate(write(tmp_path, code, "mine.py")).mask(executed(trace, 0))
    return [trace.node_names[n] for n in trace.executions.node[mask].tolist()]


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("e.op == 'MatMul'", ["fc/MatMul"]),
        ("e.kind == 'gemm' and e.input_shapes == ((2, 3), (3, 5)) and e.output_shapes == ((2, 5),)", ["fc/MatMul"]),
        ("e.layer == 'fc'", ["fc/MatMul", "fc/Relu"]),
        ("e.duration_ns == 10_000", ["fc/Relu"]),
        ("e.attributes.get('T') == 'float32' and e.phase == 'forward' and e.device == ''", ["fc/MatMul", "fc/Relu"]),
        ("e.name.startswith('fc') and e.iteration == () and e.row == 3", ["fc/Relu"]),
    ],
)
def test_a_predicate_sees_what_ran(tmp_path: Path, condition: str, names: list[str]) -> None:
    assert chosen(tmp_path, f"def select(e):\n    return {condition}\n", dense()) == names


def test_a_predicate_is_a_selection_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "def select(execution):\n    return execution.op in ('OpB', 'OpC')\n", "middle.py")
    write(tmp_path / "sub", "middle free:\n  - predicate:middle.py=inf\n")
    save(diamond(), "diamond.h5")
    data = json.loads(output(capsys, "whatif", "diamond.h5", "--speedup", "predicate:sub/middle.py=inf", "--json"))
    assert (data["makespan_ns"], data["selected"][0]["executions"]) == (20_000, 2)
    data = json.loads(output(capsys, "whatif", "diamond.h5", "sub/scenarios.yaml", "--json"))
    assert data["scenarios"][0]["makespan_ns"] == 20_000


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def select(e)\n", "mine.py does not run: SyntaxError"),
        ("import nowhere\n", "mine.py does not run: ModuleNotFoundError: No module named 'nowhere', line 1"),
        ("import sys\nsys.exit(0)\n", "mine.py does not run: SystemExit"),
        ("import sys\ndef select(e):\n    sys.exit(0)\n", "mine.py failed for 'A': SystemExit"),
        ("x = 1\n", "mine.py defines no function"),
        ("select = 3\n", "mine.py defines no function"),
        ("def select(e):\n    return e.speed > 1\n", "mine.py failed for 'A': AttributeError: .*speed.*, line 2"),
        ("def select(e):\n    return 1\n", "mine.py answers int for 'A'; it must answer True or False"),
        ("def select(e):\n    return False\n", "mine.py selects none of 4 executions"),
    ],
)
def test_a_predicate_that_fails_is_one_line(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        chosen(tmp_path, code, diamond())
    assert "\n" not in str(error.value)


def test_a_predicate_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"the predicate .*none.py does not exist"):
        project(diamond(), parse_scenario(["predicate:none.py=2"], Context(tmp_path)))


def test_a_scenario_file_does_not_run_python_until_it_is_asked(tmp_path: Path) -> None:
    write(tmp_path, "open('ran', 'w')\n", "mine.py")
    read_scenarios(write(tmp_path, "a:\n  - predicate:mine.py=2\n"))
    assert not (tmp_path / "ran").exists()


def test_the_trace_is_left_alone(tmp_path: Path) -> None:
    trace = diamond()
    save(trace, tmp_path / "before.h5")
    project_all(trace, read_scenarios(write(tmp_path, FILE)))
    assert load(tmp_path / "before.h5").equals(trace)


def test_the_files_of_the_examples_are_scenarios() -> None:
    """Of `dense`, the product and the ReLU are covered, and nothing is fused."""
    named = read_scenarios(Path(__file__).parents[1] / "examples" / "scenarios.yaml")
    assert len(named) == 5
    projection = project(dense(), named["offloaded"])
    assert projection.selected[0].executions == 2
    assert projection.selected[0].change == "hardware:accelerator.yaml"
