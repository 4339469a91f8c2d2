"""Run a workload under full tracing and write what it executed. A trace that is not complete is written too, with exit status 1."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_force, add_json, add_settings, at_least

if TYPE_CHECKING:
    from fathom_trace.capture import CaptureRequest

EXAMPLES = (
    "fathom-trace capture vgg",
    "fathom-trace capture vgg --mode inference --preset tiny --batch-size 2 --set classes=10 -o vgg.h5",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("workload", metavar="WORKLOAD", help="one that `fathom-trace workloads` lists; - and _ are the same")
    parser.add_argument("--mode", default="training", help="training or inference (default: training)")
    parser.add_argument("--preset", default="seminal", metavar="P", help="a named choice of options (default: seminal)")
    parser.add_argument("--batch-size", type=at_least(1), default=0, metavar="N", help="samples in a step (default: the preset's)")
    parser.add_argument(
        "--steps", type=_steps, default=0, metavar="N", help="traced steps, or auto: 3 to 12 in about a minute (default)"
    )
    parser.add_argument("--warmup", type=at_least(0), default=1, metavar="N", help="untraced steps before them (default: 1)")
    parser.add_argument(
        "--stage", default="source", help="source: the operations that the program names; optimized: as TensorFlow runs it"
    )
    parser.add_argument("--threads", type=at_least(1), default=0, metavar="N", help="threads within an operation (default: all cores)")
    parser.add_argument(
        "--inter-threads", type=at_least(1), default=1, metavar="N", help="operations at once (default: 1, clean times)"
    )
    parser.add_argument(
        "--memory-steps", type=at_least(0), default=1, metavar="N", help="steps whose allocations are kept (default: 1)"
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="for initial values and synthetic inputs (default: 0)"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="read real inputs from there; `fathom-trace workloads NAME` says in which format"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the trace: .h5 or .pb (default: WORKLOAD-MODE.h5)")
    add_settings(parser, "workload")
    add_force(parser)
    add_json(parser)


def _steps(text: str) -> int:
    return 0 if text == "auto" else at_least(1)(text)


def run(arguments: argparse.Namespace) -> int:
    """Refuse what cannot work, capture, check, write, print a summary."""
    from fathom_trace.capture import CaptureRequest, Plan, capture_workload
    from fathom_trace.capture.environment import STAGES
    from fathom_trace.destination import check_file
    from fathom_trace.errors import UnknownNameError
    from fathom_trace.options import parse_pairs
    from fathom_trace.store import save
    from fathom_trace.summary import print_summary, summarize
    from fathom_trace.terminal import ProgressBar, print_json
    from fathom_trace.workload import choose_mode
    from fathom_trace.workloads import REGISTRY

    name = REGISTRY.resolve(arguments.workload)
    if arguments.stage not in STAGES:
        raise UnknownNameError("stage", arguments.stage, STAGES)
    request = CaptureRequest(
        workload=name,
        mode=choose_mode(arguments.mode),
        preset=arguments.preset,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        settings=parse_pairs(arguments.settings),
        data=Path(arguments.data) if arguments.data else None,
        plan=Plan(
            steps=arguments.steps,
            warmup=arguments.warmup,
            stage=arguments.stage,
            threads=arguments.threads,
            inter_threads=arguments.inter_threads,
            memory_steps=arguments.memory_steps,
        ),
        command_line=shlex.join(arguments.command_line),
    )
    file = check_file(Path(arguments.output or default_name(request)), arguments.force)
    with ProgressBar() as progress:
        trace = capture_workload(request, progress)
        progress("writing", 0, 1)
        save(trace, file, force=arguments.force)
    summary = summarize(trace, file)
    print_json(summary.to_dict()) if arguments.json else print_summary(summary)
    return 0 if summary.checks.complete else 1


def default_name(request: CaptureRequest) -> str:
    """The trace's file name: the workload, what is not the default, the mode."""
    parts = [request.workload, request.preset, request.mode, request.plan.stage]
    return "-".join(p for p in parts if p not in ("seminal", "source")) + ".h5"
