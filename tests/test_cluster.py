"""Does a Dask cluster on loopback do what this machine alone does, though a worker is killed, and is every misfit one clear error?

A scheduler and its workers are processes of their own. Tests of this file use one cluster, in their order: the sweep leaves one worker.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from small import diamond

from fathom_trace import __version__
from fathom_trace.cli import run
from fathom_trace.store import load, save
from fathom_trace.sweeps.alone import only_one
from fathom_trace.sweeps.apart import Errand, capture_environment
from fathom_trace.sweeps.cluster import PROBE, Cluster, misfit, wanted_versions
from fathom_trace.sweeps.collection import MANIFEST
from fathom_trace.sweeps.engine import DONE, LOST, RUNNING
from fathom_trace.sweeps.projecting import Step, project_piece
from fathom_trace.sweeps.sweep import MADE, Point, sweep
from fathom_trace.sweeps.sweep_file import read_sweep
from fathom_trace.whatif import Settings, parse_scenario

pytestmark = pytest.mark.capture
pytest.importorskip("distributed")

ROOT = Path(__file__).parents[1]
ONE = "captures:\n  - {workloads: autoenc, modes: inference, presets: tiny, steps: 100000}\n"
FOUR = "defaults: {presets: tiny, steps: 1}\ncaptures:\n  - workloads: [autoenc, memnet]\n"


class Nodes:
    """A scheduler, and workers by address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes = [self.begin("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file))]
        self.address: str = wait_for(lambda: json.loads(self.file.read_text())["address"] if self.file.exists() else None)

    def begin(self, kind: str, *words: str, known: bool = True) -> subprocess.Popen[bytes]:
        """A process of Dask; `known` says whether it can import this package."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        environment = os.environ | {"TMPDIR": str(self.folder / "tmp"), "PYTHONPATH": str(ROOT)}
        hidden = "" if known else "sys.modules['fathom_trace'] = None; "
        start = f"import runpy, sys; {hidden}runpy.run_module('distributed.cli.dask_{kind}', run_name='__main__', alter_sys=True)"
        command = [sys.executable, "-P", "-c", start, "--host", "127.0.0.1", *words]
        with (self.folder / f"{kind}.log").open("a") as log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def add_worker(self, known: bool = True) -> subprocess.Popen[bytes]:
        """A worker of one thread that nothing starts again; of a cluster it is known when it has joined."""
        words = ["--scheduler-file", str(self.file), "--no-nanny", "--nthreads", "1", "--no-dashboard", "--death-timeout", "60"]
        self.processes.append(self.begin("worker", *words, "--local-directory", str(self.folder), known=known))
        return self.processes[-1]

    def end(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def wait_for(find: Any) -> Any:
    """What `find` finds, as soon as it does; the time limit of all tests ends the waiting."""
    while not (found := find()):
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path_factory.mktemp("cluster"))
    try:
        nodes.add_worker()
        nodes.add_worker()
        with client_of(nodes) as client:
            client.wait_for_workers(2)
        yield nodes
    finally:
        nodes.end()


@contextmanager
def client_of(nodes: Nodes) -> Iterator[Any]:
    from distributed import Client

    with Client(nodes.address, set_as_default=False) as client:
        yield client


def cluster_of(nodes: Nodes, told: Callable[[str], None]) -> Cluster:
    return Cluster(nodes.address, alone=True, tell=told, needs_tensorflow=True)


def points_of(folder: Path, text: str) -> list[Point]:
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return read_sweep(folder / "sweep.yaml")


def manifest_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return found


def test_an_interrupted_sweep_stops_its_captures_and_leaves_no_trace(nodes: Nodes, tmp_path: Path) -> None:
    """The capture would take hours: that its process is gone says that it was stopped."""

    def interrupt(text: str) -> None:
        if "runs on" in text:
            assert captures_of(nodes), "the capture has begun"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(points_of(tmp_path, ONE), tmp_path, [], False, interrupt, cluster_of(nodes, interrupt))
    wait_for(lambda: not captures_of(nodes))
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".h5"] == []
    [entry] = manifest_of(tmp_path)
    assert entry["error"] == "the sweep ended before it"
    assert [a["outcome"] for a in entry["attempts"]] == [RUNNING]


def test_scenarios_on_the_cluster_are_what_they_are_here(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A grid of 8 x 5 scenarios, and one that cannot be applied, on top of a change."""
    monkeypatch.chdir(tmp_path)
    save(diamond(), "diamond.h5")
    Path("grid.yaml").write_text(
        "g:\n  - OpB: [1, 2, 3, 5, 8, 13, 21, inf]\n  - OpC: [1, 2, 10us, remove, inf]\nbad:\n  - OpZ: 2\n", encoding="utf-8"
    )
    words = ["whatif", "diamond.h5", "grid.yaml", "--speedup", "OpA=3", "--json"]
    assert run(words) == 1
    here = capsys.readouterr()
    assert run([*words, "--scheduler", nodes.address]) == 1
    there = capsys.readouterr()
    assert there == here
    assert len(json.loads(here.out)["scenarios"]) == 40
    assert "scenario 'bad'" in here.err


def test_a_worker_works_the_step_out_once() -> None:
    """What a worker is sent is what this process has, and keeps its base from one piece to the next."""
    step: Step = pickle.loads(pickle.dumps(Step(diamond(), Settings(workers=2))))
    errand = Errand(step, None, lambda _: None)
    one = project_piece(errand, {"b": parse_scenario(["OpB=5"])})
    base = step.base
    two = project_piece(errand, {"c": parse_scenario(["OpC=2"]), "z": parse_scenario(["OpZ=2"])})
    assert step.base is base
    assert [s.replay.after_ns for s in (*one.scenarios, *two.scenarios)] == [50_000, 70_000]
    assert [name for name, _ in two.problems] == ["z"]


def test_a_capture_does_not_inherit_what_dask_set_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nanny starts its worker with one OpenMP thread and a way with memory of its own; both would change the times."""
    from dask import config

    own = {name: str(value) for name, value in config.get("distributed.nanny.pre-spawn-environ").items()}
    assert "OMP_NUM_THREADS" in own
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    assert capture_environment() == {k: v for k, v in os.environ.items() if k not in own or k == "MKL_NUM_THREADS"}


def captures_of(nodes: Nodes) -> list[int]:
    """The processes of captures, wherever they stand."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if "fathom_trace.sweeps.tied" in words and any(str(nodes.folder) in word for word in words):
            found.append(process.info["pid"])
    return found


def test_a_killed_worker_is_made_good_for_and_the_manifest_tells(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four captures. This process has the machine at first, so that the sweep waits; then the first worker to capture is killed."""
    with client_of(nodes) as client:
        pids = client.run(os.getpid)
    told: list[str] = []
    held = ExitStack()
    held.enter_context(only_one(nodes.folder / "tmp"))
    killed: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        if "waits on" in text:
            held.close()
        if "runs on" in text and not killed:
            [attempt] = [a for entry in manifest_of(tmp_path) for a in entry["attempts"] if a["outcome"] == RUNNING]
            killed.append(attempt["worker"])
            os.kill(pids[attempt["worker"]], signal.SIGKILL)

    wanted = points_of(tmp_path, FOUR)
    outcomes = sweep(wanted, tmp_path, [], False, note, cluster_of(nodes, note))

    assert [o.problem for o in outcomes] == [""] * 4
    assert [o.status for o in outcomes] == [MADE] * 4
    for outcome in outcomes:
        trace = load(outcome.file)
        assert (trace.provenance["workload"], trace.provenance["mode"]) == (outcome.point.workload, outcome.point.mode)
    entries = manifest_of(tmp_path)
    assert [(e["workload"], e["mode"], e["error"]) for e in entries] == [(p.workload, p.mode, "") for p in wanted]
    [other] = set(pids) - set(killed)
    first, *rest = [[(a["worker"], a["outcome"]) for a in e["attempts"]] for e in entries]
    assert first == [(killed[0], LOST), (other, DONE)]
    assert rest == [[(other, DONE)]] * 3
    assert entries[0]["attempts"][0]["problem"] == "its worker was lost"
    assert sum("waits on" in text for text in told) == 1
    assert sum("tried again elsewhere" in text for text in told) == 1
    times = sorted((a["began"], a["ended"]) for e in entries for a in e["attempts"])
    assert all(one[0] < one[1] <= next_one[0] for one, next_one in pairwise(times)), "never two at a moment"

    before = (tmp_path / MANIFEST).read_bytes()
    words = ["sweep", str(tmp_path / "sweep.yaml"), "-o", str(tmp_path), "--scheduler", nodes.address]
    assert run(words) == 0
    assert f"{tmp_path}: 0 captured, 4 there already, 0 failed" in capsys.readouterr().out
    assert (tmp_path / MANIFEST).read_bytes() == before


def test_a_worker_that_lacks_the_package_is_named(nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.yaml").write_text(FOUR, encoding="utf-8")
    words = ["sweep", str(tmp_path / "sweep.yaml"), "-o", str(tmp_path), "--scheduler", nodes.address]
    process = nodes.add_worker(known=False)
    with client_of(nodes) as client:
        [address] = wait_for(lambda: [a for a, pid in client.run(os.getpid).items() if pid == process.pid])
    assert run(words) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"fathom-trace: worker {address} on ")
    assert err.endswith(" has no fathom-trace; install the same there as here, fathom-trace " + __version__ + "\n")
    assert err.count("\n") == 1


def test_no_scheduler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fathom_trace.sweeps.cluster.CONNECT_S", 1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        assert run(["sweep", "autoenc", "-o", str(tmp_path), "--scheduler", address]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"fathom-trace: no Dask scheduler answers at {address}")
    assert err.count("\n") == 1
    assert run(["sweep", "autoenc", "-o", str(tmp_path), "--scheduler", "nonsense://x:1"]) == 1
    assert "no Dask scheduler answers at nonsense://x:1 (unknown address scheme 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"python": f"{sys.version_info.major}.{sys.version_info.minor}.99"}, ""),
        ({"python": "3.99.1"}, f"has python 3.99, and {sys.version_info.major}.{sys.version_info.minor} is wanted"),
        ({"tensorflow": "1.15.0"}, "has tensorflow 1.15.0, and "),
        ({"tensorflow": ""}, "has no tensorflow; install the same there as here"),
        ({"fathom-trace": "0.0.1"}, f"has fathom-trace 0.0.1, and {__version__} is wanted; install the same everywhere"),
    ],
)
def test_a_worker_of_other_versions_is_refused(changes: dict[str, str], problem: str) -> None:
    said = eval(PROBE) | changes
    found = misfit(said, wanted_versions(needs_tensorflow=True))
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
