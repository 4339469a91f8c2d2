"""Is what the documents say true: commands that parse, files that exist, the test command that CI runs, examples that run?"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from small import dense, diamond

import fathom_trace
from fathom_trace.cli import COMMANDS, command_parser
from fathom_trace.store import save

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TEST_COMMAND = "bash tests/run.sh"


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(document), re.MULTILINE | re.DOTALL)


def shell_lines(document: str) -> list[str]:
    """Everything that a reader is told to type."""
    typed = [line for block in blocks(document, "sh") for line in block.splitlines()]
    return typed + [line[2:] for block in blocks(document, "console") for line in block.splitlines() if line.startswith("$ ")]


def invocations(line: str) -> list[list[str]]:
    """The arguments of each call of `fathom-trace` in a shell line."""
    words = shlex.split(line, comments=True)
    calls: list[list[str]] = []
    current: list[str] = []
    for word in [*words, "&&"]:
        if word in ("&&", "|", ";"):
            if current and current[0].rpartition("/")[2] == "fathom-trace":
                calls.append(current[1:])
            current = []
        else:
            current.append(word)
    return calls


TYPED = [(document, line, words) for document in DOCUMENTS for line in shell_lines(document) for words in invocations(line)]


@pytest.mark.parametrize(("document", "line", "words"), TYPED, ids=[line for _, line, _ in TYPED])
def test_a_command_in_the_documents_is_one_that_the_parser_takes(document: str, line: str, words: list[str]) -> None:
    assert words[0] in COMMANDS, f"{document}: {line}"
    command_parser(words[0]).parse_args(words[1:])


def test_the_readme_shows_every_command() -> None:
    assert {words[0] for document, _, words in TYPED if document == "README.md"} == set(COMMANDS)


def test_a_wrong_command_would_be_seen() -> None:
    assert invocations("python3 -m venv x && x/bin/fathom-trace capture vgg # real") == [["capture", "vgg"]]
    with pytest.raises(SystemExit):
        command_parser("capture").parse_args(["vgg", "--no-such-option"])


def test_the_readme_gives_two_commands_for_a_fresh_machine_and_ci_runs_the_second() -> None:
    start = text_of("README.md").partition("## Start")[2].partition("\n## ")[0]
    first, second = re.findall(r"^```sh\n(.*?)\n```$", start, re.MULTILINE | re.DOTALL)
    assert "\n" not in first
    assert first.endswith("fathom-trace capture vgg")
    assert second == TEST_COMMAND
    script = text_of(".ci/run")
    assert TEST_COMMAND in script.splitlines()
    assert "set -euo pipefail" in script.splitlines()
    assert script.rstrip().endswith(TEST_COMMAND)


@pytest.mark.parametrize("script", [".ci/run", "tests/run.sh"])
def test_scripts_parse_and_stop_at_the_first_failure(script: str) -> None:
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
    assert "set -euo pipefail" in text_of(script).splitlines()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_linked_files_exist(document: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text_of(document))
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_the_text_exist(document: str) -> None:
    names = re.findall(r"`((?:fathom_trace|workloads|exporters|schemas|tests|benchmarks|examples)/[\w./]*)`", text_of(document))
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(diamond(), tmp_path / "vgg-training.h5")
    monkeypatch.chdir(tmp_path)
    [code] = blocks("README.md", "python")
    names: dict[str, object] = {}
    exec(code, names)
    assert names["graph"].number_of_nodes() == 4  # type: ignore[attr-defined]
    assert len(names["table"]) == 4  # type: ignore[arg-type]


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == fathom_trace.__version__


@pytest.mark.parametrize("folder", ["fathom_trace", "workloads", "exporters", "examples", "benchmarks"])
def test_every_module_begins_with_a_docstring(folder: str) -> None:
    files = [p for p in sorted((ROOT / folder).rglob("*.py")) if "generated" not in p.parts]
    assert files
    assert [str(p) for p in files if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))] == []


def run_example(example: Path, argument: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(example), str(argument)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_are_short_and_say_how_to_run_them() -> None:
    assert len(EXAMPLES) >= 3
    for example in EXAMPLES:
        text = example.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 40, example
        assert f"python examples/{example.name} " in text


def test_example_longest_path(tmp_path: Path) -> None:
    """A 10 us, then B 50 us (C 30 us runs beside it), then D 10 us: the longest path is A, B, D."""
    save(diamond(), tmp_path / "diamond.h5")
    lines = run_example(ROOT / "examples" / "longest_path.py", tmp_path / "diamond.h5").splitlines()
    assert lines[0] == "3 of 4 executions, 0.070 ms"
    assert [line.split()[-1] for line in lines[1:]] == ["OpB", "OpA", "OpD"]


def test_example_worth_speeding_up(tmp_path: Path) -> None:
    """B ten times faster: 10 + max(5, 30) + 10 = 50 us of 70 us; Amdahl, which adds all times up, 100 / 55."""
    save(diamond(), tmp_path / "diamond.h5")
    lines = run_example(ROOT / "examples" / "worth_speeding_up.py", tmp_path / "diamond.h5").splitlines()
    assert lines[1].split() == [f"{100 / 55:.2f}x", f"{70 / 50:.2f}x", "OpB"]


def test_example_dram_traffic(tmp_path: Path) -> None:
    """`fc` multiplies [2, 3] x [3, 5] and rectifies [2, 5], float32: 24, 60 and 40 bytes, then 40 and 40, a burst each."""
    save(dense(), tmp_path / "dense.h5")
    lines = run_example(ROOT / "examples" / "dram_traffic.py", tmp_path / "dense.h5").splitlines()
    assert lines[0] == "5 requests of 64 bytes, for 204 bytes"
    assert lines[1].split() == ["5", "fc"]
    rows = (tmp_path / "dense-dramsim3" / "dense.trace").read_text().splitlines()
    assert [row.split()[1] for row in rows[:-1]] == ["READ", "READ", "WRITE", "READ", "WRITE"]


@pytest.mark.capture
def test_example_own_function(tmp_path: Path) -> None:
    """20 iterations multiply once each, and the result once more."""
    lines = run_example(ROOT / "examples" / "own_function.py", tmp_path / "power.h5").splitlines()
    trace = fathom_trace.load(tmp_path / "power.h5")
    ran = [trace.node_ops[n] for n in trace.executions.node[trace.structure_rows(trace.main_structure)].tolist()]
    assert ran.count("MatMul") == 21
    assert lines
