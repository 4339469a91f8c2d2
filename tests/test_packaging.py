"""Does the package work the same as a wheel, as an editable install and as a checkout that is not installed?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from small import dense

import fathom_trace
from fathom_trace.store import save

ROOT = Path(__file__).parents[1]

Command = Callable[..., subprocess.CompletedProcess[str]]


def call(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program; its output is shown when it fails."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FATHOM"))}
    done = subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def build(source: Path, target: str, folder: Path) -> Path:
    """Build a distribution with the build backend of this environment, so that nothing is downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    call([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)], source)
    [made] = folder.iterdir()
    return made


def environment(folder: Path) -> Path:
    """A new virtual environment that sees this one's packages, but not its fathom_trace; returns its Python."""
    call([sys.executable, "-m", "venv", str(folder)], folder.parent)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "zz_test_environment.pth").write_text(str(Path(numpy.__file__).parents[1]) + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "dense.h5"
    save(dense(), file)
    return file


def installed(python: Path) -> Command:
    """The installed script."""
    return lambda *words, folder: call([str(python.parent / "fathom-trace"), *words], folder)


@pytest.fixture(scope="module", params=["wheel", "editable", "checkout"])
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command line in one way to have the package."""
    python = environment(tmp_path_factory.mktemp(request.param) / "venv")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    if request.param == "wheel":
        call([*pip, str(request.getfixturevalue("wheel"))], python.parent)
        return installed(python)
    if request.param == "editable":
        call([*pip, "--no-build-isolation", "--editable", str(ROOT)], python.parent)
        return installed(python)
    return lambda *words, folder: call([str(python), "-m", "fathom_trace", *words], folder, PYTHONPATH=str(ROOT))


def test_the_same_smoke_test_passes_however_the_package_is_there(command: Command, trace_file: Path, tmp_path: Path) -> None:
    assert command("--version", folder=tmp_path).stdout == f"fathom-trace {fathom_trace.__version__}\n"
    for kind in ("workloads", "exporters"):
        expected = {p.stem for p in (ROOT / kind).glob("*.py")}
        assert set(json.loads(command(kind, "--json", folder=tmp_path).stdout)) == expected
    assert json.loads(command("info", str(trace_file), "--json", folder=tmp_path).stdout)["executions"] == 4
    command("export", str(trace_file), "scale-sim", "-o", "exported", folder=tmp_path)
    exported = json.loads((tmp_path / "exported" / "export.json").read_text())
    macs = exported["totals"]["macs"]
    assert {key: macs[key] for key in ("exported", "skipped", "total")} == {"exported": 2 * 3 * 5, "skipped": 0, "total": 2 * 3 * 5}
    projected = json.loads(command("whatif", str(trace_file), "--speedup", "MatMul=3", "--json", folder=tmp_path).stdout)
    assert {e["method"]: e["speedup"] for e in projected["estimates"]} == pytest.approx(
        dict.fromkeys(("amdahl", "replay", "unlimited"), 40 / 20)
    )


def test_the_wheel_has_one_top_level_name_and_both_kinds_of_plugins(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    version = fathom_trace.__version__
    assert {n.split("/")[0] for n in names} == {"fathom_trace", f"fathom_trace-{version}.dist-info"}
    for kind in ("workloads", "exporters"):
        assert {Path(n).name for n in names if n.startswith(f"fathom_trace/{kind}/")} == {
            p.name for p in (ROOT / kind).glob("*.py")
        } | {"__init__.py"}
    assert {"fathom_trace/py.typed", f"fathom_trace-{version}.dist-info/licenses/LICENSE"} <= set(names)
    assert not [n for n in names if n.endswith((".pyc", ".h5", ".pb"))]


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    again = build(unpacked, "wheel", tmp_path / "again")
    mine, its = (zipfile.ZipFile(w) for w in (wheel, again))
    assert {n: mine.read(n) for n in mine.namelist()} == {n: its.read(n) for n in its.namelist()}


def test_both_places_that_state_the_version_agree() -> None:
    assert f'version = "{fathom_trace.__version__}"\n' in (ROOT / "pyproject.toml").read_text()


def test_every_extra_that_a_message_names_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [p for folder in ("fathom_trace", "workloads", "exporters") for p in (ROOT / folder).rglob("*.py")]
    named = {
        name for p in [*sources, ROOT / "README.md"] for name in re.findall(r"fathom-trace\[(\w+)\]", p.read_text(encoding="utf-8"))
    }
    assert "pandas" in named
    assert named <= set(extras)
    assert extras["test"][0] == f"fathom-trace[{','.join(sorted(set(extras) - {'test'}))}]"
