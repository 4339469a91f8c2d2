"""Capture workloads over modes, presets, stages, batch sizes and threads: what a report needs, one capture at a time on a machine.

Every combination of the lists is captured, each in a process of its own. A trace that an equal command made is left alone, so that a sweep
which was interrupted goes on where it ended. Then: `fathom-trace report DIR --out REPORT`.

SWEEP.yaml says in place of the lists what to capture: `captures:`, a list of entries of `workloads`, `modes`, `presets`, `stages`,
`batch_sizes`, `threads`, `seeds`, `steps` and `set`, each made in every combination, and `defaults:` for what entries do not say.

With --scheduler the workers of a Dask cluster capture, at most one on a machine at any moment, with the versions of fathom-trace,
TensorFlow and Python that are here. What a lost worker had is captured elsewhere; traces of up to 500 MB come back. DIR/captures.json says
what became of each attempt, here too. A cluster has to be trusted: whoever can reach it can run code on it, and on who uses it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom_trace.arguments import add_force, add_json, at_least

if TYPE_CHECKING:
    from fathom_trace.sweeps.engine import Executor
    from fathom_trace.sweeps.sweep import Outcome, Point

LISTS = ("modes", "preset", "stages", "batch_size", "threads", "steps", "seed")
"""Arguments that say what a sweep file would say."""

EXAMPLES = (
    "fathom-trace sweep -o traces",
    "fathom-trace sweep memnet deepq seq2seq --modes training --threads 1,2 -o traces",
    "fathom-trace sweep vgg --preset tiny,seminal --stages source,optimized --steps 102 -o traces",
    "fathom-trace sweep sweep.yaml --scheduler tcp://head:8786 -o traces",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    count = listed(at_least(1))
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="which (default: all); or one SWEEP.yaml")
    parser.add_argument("--modes", type=listed(str), metavar="LIST", help="training,inference (default: both)")
    parser.add_argument("--preset", type=listed(str), metavar="LIST", help="presets (default: seminal)")
    parser.add_argument("--stages", type=listed(str), metavar="LIST", help="source,optimized (default: source)")
    parser.add_argument("--batch-size", type=count, metavar="LIST", help="samples in a step (default: the preset's)")
    parser.add_argument("--threads", type=count, metavar="LIST", help="threads within an operation (default: all cores)")
    parser.add_argument("--steps", type=at_least(1), metavar="N", help="traced steps (default: 3 to 12 in about a minute)")
    parser.add_argument("--seed", type=at_least(0), metavar="N", help="for initial values and inputs (default: 0)")
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="capture on the Dask cluster of this scheduler")
    parser.add_argument("-o", "--output", default="traces", metavar="DIR", help="the folder of the traces (default: traces)")
    parser.add_argument("--dry-run", action="store_true", help="print the captures and stop")
    add_force(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Capture; 1 when a capture failed."""
    from fathom_trace.destination import check_writable
    from fathom_trace.sweeps.sweep import check_names, sweep

    wanted, flags = chosen(arguments)
    if arguments.dry_run:
        check_names(wanted)
        for point in wanted:
            words = ["fathom-trace", "capture", point.workload, "--mode", point.mode, *point.flags, *flags, "-o", point.name]
            print(shlex.join(words))
        return 0
    folder = Path(arguments.output)
    check_writable(folder)
    folder.mkdir(exist_ok=True)
    try:
        outcomes = sweep(wanted, folder, flags, arguments.force, _tell, _executor(arguments))
    except KeyboardInterrupt:
        _tell(f"fathom-trace: interrupted; what is in {folder} stays, and the same command goes on from there")
        return 130
    return _print(arguments, folder, outcomes)


def chosen(arguments: argparse.Namespace) -> tuple[list[Point], list[str]]:
    """The captures that are asked for, and what all their commands have in common.

    Raises:
        OptionError: a file is given, and also what it would say.
        UnknownNameError: there is no such workload, mode or stage.
    """
    from fathom_trace.capture.environment import STAGES
    from fathom_trace.errors import OptionError, UnknownNameError
    from fathom_trace.sweeps.sweep import SEMINAL, SOURCE, points
    from fathom_trace.sweeps.sweep_file import SUFFIXES, read_sweep
    from fathom_trace.workload import MODES, choose_mode
    from fathom_trace.workloads import REGISTRY

    files = [name for name in arguments.workloads if name.lower().endswith(SUFFIXES)]
    if files:
        given = [f"--{name.replace('_', '-')}" for name in LISTS if getattr(arguments, name) is not None]
        given += [name for name in arguments.workloads if name != files[0]] + files[1:]
        if given:
            raise OptionError(f"{files[0]} says what to capture, so {given[0]} cannot be given too; write it into the file")
        return read_sweep(Path(files[0])), []
    workloads = [REGISTRY.resolve(name) for name in arguments.workloads] or REGISTRY.names()
    modes = [choose_mode(mode) for mode in arguments.modes or []] or list(MODES)
    stages = arguments.stages or [SOURCE]
    for stage in stages:
        if stage not in STAGES:
            raise UnknownNameError("stage", stage, STAGES)
    flags = ["--seed", str(arguments.seed or 0), *(["--steps", str(arguments.steps)] if arguments.steps else [])]
    every = points(workloads, modes, arguments.preset or [SEMINAL], stages, arguments.batch_size or [0], arguments.threads or [0])
    return every, flags


def _executor(arguments: argparse.Namespace) -> Executor | None:
    """The cluster to capture on; None: this machine."""
    if not arguments.scheduler:
        return None
    from fathom_trace.sweeps.cluster import Cluster

    return Cluster(arguments.scheduler, alone=True, tell=_tell, needs_tensorflow=True)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(arguments: argparse.Namespace, folder: Path, outcomes: Sequence[Outcome]) -> int:
    """Print what became of the captures; returns the exit status."""
    from fathom_trace.sweeps.collection import print_captures
    from fathom_trace.sweeps.engine import LOST
    from fathom_trace.sweeps.sweep import DONE, FAILED
    from fathom_trace.terminal import print_json

    failed = sum(outcome.status == FAILED for outcome in outcomes)
    if arguments.json:
        print_json([{"name": o.point.name, "status": o.status, "problem": o.problem, "capture": o.capture} for o in outcomes])
        return 1 if failed else 0
    made = [outcome.capture for outcome in outcomes if outcome.capture is not None]
    if made:
        print_captures(made)
    there = sum(outcome.status == DONE for outcome in outcomes)
    lost = sum(attempt.outcome == LOST for capture in made for attempt in capture.attempts)
    print(
        f"{folder}: {len(outcomes) - failed - there} captured, {there} there already, {failed} failed"
        + f"; {lost} attempts lost" * bool(lost)
    )
    return 1 if failed else 0


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A type for values with commas between them."""

    def values(text: str) -> list[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    return values
