"""Does a sweep file become the captures that it says, and is every mistake in one refused in one line that names it?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom_trace.cli import command_parser, run
from fathom_trace.errors import FathomError
from fathom_trace.sweeps.sweep import Point
from fathom_trace.sweeps.sweep_file import MOST_POINTS, read_sweep
from fathom_trace.workloads import REGISTRY

EXAMPLE = Path(__file__).parents[1] / "examples" / "sweep.yaml"


def read(folder: Path, text: str) -> list[Point]:
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return read_sweep(folder / "sweep.yaml")


def test_an_entry_is_every_combination_and_defaults_say_the_rest(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "defaults: {presets: tiny, steps: 7, set: {classes: 5}}\n"
        "captures:\n"
        "  - {workloads: [vgg, memnet], modes: training, threads: [1, 2]}\n"
        "  - {workloads: vgg, modes: [inference], presets: [paper], stages: optimized, batch_sizes: 3, seeds: [0, 4], steps: auto,\n"
        "     set: {dense: 8}}\n",
    )
    assert found == [
        *(Point(w, "training", "tiny", "source", 0, t, ("classes=5",), 0, 7) for w in ("vgg", "memnet") for t in (1, 2)),
        *(Point("vgg", "inference", "paper", "optimized", 3, 0, ("classes=5", "dense=8"), seed, 0) for seed in (0, 4)),
    ]
    assert found[-1].name == "vgg-paper-inference-optimized-batch3-classes=5-dense=8-seed4.h5"
    assert found[-1].flags == [
        "--preset", "paper", "--stage", "optimized", "--batch-size", "3", "--seed", "4", "--set", "classes=5", "--set", "dense=8",
    ]  # fmt: skip
    assert found[0].flags[-4:] == ["--steps", "7", "--set", "classes=5"]


def test_what_is_not_said_is_as_on_the_command_line(tmp_path: Path) -> None:
    found = read(tmp_path, "captures: [{}]\n")
    assert found == [Point(w, m, seed=0) for w in REGISTRY.names() for m in ("training", "inference")]
    assert [p.name for p in found] == [Point(p.workload, p.mode).name for p in found]


def test_a_capture_that_two_entries_ask_for_is_made_once(tmp_path: Path) -> None:
    assert len(read(tmp_path, "captures:\n  - {workloads: vgg}\n  - {workloads: [vgg, vgg], modes: training}\n")) == 2


def test_what_settings_hold_makes_no_path(tmp_path: Path) -> None:
    [point] = read(tmp_path, "captures: [{workloads: vgg, modes: training, set: {a: ../../x y/é}}]\n")
    assert point.settings == ("a=../../x y/é",)
    assert point.name == "vgg-training-a=.._.._x_y__.h5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "sweep.yaml is empty"),
        ("- vgg\n", "sweep.yaml is no sweep; write 'captures:'"),
        ("captures: []\n", "sweep.yaml lists no captures"),
        ("defaults: {}\n", "sweep.yaml lists no captures"),
        ("capture: [{}]\n", "sweep.yaml: no key is called 'capture'; did you mean 'captures'?"),
        ("captures: [vgg]\n", "sweep.yaml: entry 1 is no mapping"),
        ("captures: [{}, {workload: vgg}]\n", "entry 2: no key is called 'workload'; did you mean 'workloads'?"),
        ("defaults: {step: 1}\ncaptures: [{}]\n", "defaults: no key is called 'step'; did you mean 'steps'?"),
        ("captures: [{workloads: [vg]}]\n", "entry 1: workloads: no workload is called 'vg'; did you mean 'vgg'?"),
        ("captures: [{modes: train}]\n", "entry 1: modes: no mode is called 'train'; did you mean 'training'?"),
        ("captures: [{stages: [sauce]}]\n", "entry 1: stages: no stage is called 'sauce'; did you mean 'source'?"),
        ("captures: [{presets: [../x]}]\n", "entry 1: presets: '../x' is no preset's name"),
        ("captures: [{threads: [0]}]\n", "entry 1: threads: '0' is not a whole number from 1 to 1,000,000,000"),
        ("captures: [{threads: [1.5]}]\n", "entry 1: threads: '1.5' is not a whole number"),
        ("captures: [{batch_sizes: []}]\n", "entry 1: 'batch_sizes' is no list of values; write for example 'batch_sizes: "),
        ("captures: [{seeds: {a: 1}}]\n", "entry 1: 'seeds' is no list of values"),
        ("captures: [{steps: [1, 2]}]\n", "entry 1: 'steps' is one number, or auto"),
        ("captures: [{steps: -1}]\n", "entry 1: '-1' is not a whole number from 1"),
        ("captures: [{set: [a]}]\n", "entry 1: 'set' is no mapping of options to values"),
        ("captures: [{set: {a: [1]}}]\n", "entry 1: 'set' is no mapping of options to values"),
        ('captures: [{set: {a: "x\\0"}}]\n', "is no option; write for example 'set: {classes: 100}'"),
        ("captures: [{set: {-o: x}}]\n", "entry 1: '-o: x' is no option"),
        (f"captures: [{{set: {{a: {'x' * 300}}}}}]\n", "preset and settings make a file name of 3.. characters; at most 200"),
        ("captures:\n  - {workloads: vgg, steps: 1}\n  - {workloads: vgg, steps: 2}\n", "two captures of the sweep would be written to"),
        ("captures: [{workloads: &a [vgg]}, {workloads: *a}]\n", "is an anchor, and aliases are refused"),
        ("captures: [!!python/object/apply:os.system [echo]]\n", "the tag '.*os.system' is refused"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_where_it_is(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FathomError, match=message) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)
    assert "sweep.yaml" in str(error.value)


def test_too_many_captures_are_refused_before_they_are_made(tmp_path: Path) -> None:
    """Three lists of a thousand: 10^9 captures in each mode."""
    values = ", ".join(str(k + 1) for k in range(1000))
    with pytest.raises(FathomError, match=f"entry 1: more than {MOST_POINTS:,} captures in all"):
        read(tmp_path, f"captures: [{{workloads: vgg, threads: [{values}], batch_sizes: [{values}], seeds: [{values}]}}]\n")


PIECES = st.sampled_from(
    ["captures:", "defaults:", "\n", "  - ", "    ", " ", "[", "]", "{", "}", ",", ":", "workloads: ", "vgg", "threads: ", "2", "modes: ",
     "training", "set: ", "a: ", "steps: ", "auto", "presets: ", "*", "&x", "!!", "'", '"', "\\0", "-", "é", "~"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60))
def test_no_file_is_anything_but_read_or_refused_in_one_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        found, refusal = attempt(path)
    assert len(refusal.splitlines()) <= 1
    assert len({point.name for point in found}) == len(found)
    assert all(Path(point.name).name == point.name for point in found)


def attempt(path: Path) -> tuple[list[Point], str]:
    """The captures of a file, or what is said against it."""
    try:
        return read_sweep(path), ""
    except FathomError as error:
        return [], str(error)


def test_the_example_prints_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    """Two workloads in two modes at two threads; four captures of residual; two seeds of vgg."""
    import shlex

    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
    assert run(["sweep", str(EXAMPLE), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 2 * 2 + 4 + 2
    for line in lines:
        command_parser("capture").parse_args(shlex.split(line)[2:])


@pytest.mark.parametrize("words", [["--modes", "training"], ["--steps", "3"], ["--seed", "0"], ["vgg"], ["other.yaml"]])
def test_what_the_file_says_is_not_said_again(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", str(EXAMPLE), *words, "--dry-run"]) == 1
    assert f"says what to capture, so {words[0]} cannot be given too" in capsys.readouterr().err
