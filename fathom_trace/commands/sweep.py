"""Capture workloads over modes, presets, stages, batch sizes and threads: what a report needs, one capture at a time.

Every combination of the lists is captured, each in a process of its own. A trace that an equal command made is left alone, so that a sweep
which was interrupted goes on where it ended. Then: `fathom-trace report DIR --out REPORT`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fathom_trace.arguments import add_force, add_json, at_least

EXAMPLES = (
    "fathom-trace sweep -o traces",
    "fathom-trace sweep memnet deepq seq2seq --modes training --threads 1,2 -o traces",
    "fathom-trace sweep vgg --preset tiny,seminal --stages source,optimized --steps 102 -o traces",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    count = listed(at_least(1))
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="which (default: all)")
    parser.add_argument("--modes", type=listed(str), default=[], metavar="LIST", help="training,inference (default: both)")
    parser.add_argument("--preset", type=listed(str), default=["seminal"], metavar="LIST", help="presets (default: seminal)")
    parser.add_argument("--stages", type=listed(str), default=["source"], metavar="LIST", help="source,optimized (default: source)")
    parser.add_argument("--batch-size", type=count, default=[0], metavar="LIST", help="samples in a step (default: the preset's)")
    parser.add_argument("--threads", type=count, default=[0], metavar="LIST", help="threads within an operation (default: all cores)")
    parser.add_argument("--steps", type=at_least(1), default=0, metavar="N", help="traced steps (default: 3 to 12 in about a minute)")
    parser.add_argument("--seed", type=at_least(0, 2**32 - 1), default=0, metavar="N", help="for initial values and inputs (default: 0)")
    parser.add_argument("-o", "--output", default="traces", metavar="DIR", help="the folder of the traces (default: traces)")
    parser.add_argument("--dry-run", action="store_true", help="print the captures and stop")
    add_force(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Capture; 1 when a capture failed."""
    from fathom_trace.capture.environment import STAGES
    from fathom_trace.collection import print_captures
    from fathom_trace.destination import check_writable
    from fathom_trace.errors import UnknownNameError
    from fathom_trace.sweep import DONE, FAILED, points, sweep
    from fathom_trace.terminal import print_json
    from fathom_trace.workload import MODES, choose_mode
    from fathom_trace.workloads import REGISTRY

    workloads = [REGISTRY.resolve(name) for name in arguments.workloads] or REGISTRY.names()
    modes = [choose_mode(mode) for mode in arguments.modes] or list(MODES)
    for stage in arguments.stages:
        if stage not in STAGES:
            raise UnknownNameError("stage", stage, STAGES)
    wanted = points(workloads, modes, arguments.preset, arguments.stages, arguments.batch_size, arguments.threads)
    flags = ["--seed", str(arguments.seed), *(["--steps", str(arguments.steps)] if arguments.steps else [])]
    if arguments.dry_run:
        for point in wanted:
            print(" ".join(["fathom-trace capture", point.workload, "--mode", point.mode, *point.flags, *flags, "-o", point.name]))
        return 0
    folder = Path(arguments.output)
    check_writable(folder)
    folder.mkdir(exist_ok=True)
    outcomes = sweep(wanted, folder, flags, arguments.force, lambda text: print(text, file=sys.stderr, flush=True))
    failed = sum(outcome.status == FAILED for outcome in outcomes)
    if arguments.json:
        print_json([{"name": o.point.name, "status": o.status, "problem": o.problem, "capture": o.capture} for o in outcomes])
        return 1 if failed else 0
    made = [outcome.capture for outcome in outcomes if outcome.capture is not None]
    if made:
        print_captures(made)
    there = sum(outcome.status == DONE for outcome in outcomes)
    print(f"{folder}: {len(outcomes) - failed - there} captured, {there} there already, {failed} failed")
    return 1 if failed else 0


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A type for values with commas between them."""

    def values(text: str) -> list[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    return values
