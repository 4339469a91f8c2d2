"""Run a program under full tracing and write what it executed. A trace that is not sound is written too, with exit status 1.

The program is a workload, or one of your own: a Keras file, a SavedModel folder, or file.py:callable. `all` captures every workload in
both modes into a folder, each in a process of its own, and goes on after a failure. A trace is not sound when executions are missing
from it, when its dependencies contradict its times or its graph, or when times are out of order; it says which, and what to do.
"""

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
    "fathom-trace capture vgg --mode inference --preset tiny --batch-size 2 --set classes=100 -o small.h5",
    "fathom-trace capture all --preset tiny -o traces",
    "fathom-trace capture vgg --static --batch-size 64",
    "fathom-trace capture model.keras --batch-size 4 --loss mse --optimizer sgd",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("program", metavar="WORKLOAD", help="one that `fathom-trace workloads` lists, or a program of your own")
    parser.add_argument("--mode", default="training", help="training or inference (default: training)")
    parser.add_argument("--preset", default="seminal", metavar="P", help="a workload's named choice of options (default: seminal)")
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
        "--max-events", type=at_least(1), default=0, metavar="N", help="keep a step's first N executions only (default: all)"
    )
    parser.add_argument(
        "--seed", type=at_least(0, 2**32 - 1), default=0, metavar="N", help="for initial values and synthetic inputs (default: 0)"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="read real inputs from there; `fathom-trace workloads NAME` says in which format"
    )
    parser.add_argument("--static", action="store_true", help="run nothing: what the graph alone says, with shapes, without times")
    add_settings(parser, "workload")
    own = parser.add_argument_group("programs of your own")
    own.add_argument("--shape", type=_shape, action="append", default=[], metavar="INPUT=2,3", help="the whole shape of an input")
    own.add_argument("--signature", default="", metavar="NAME", help="the signature of a SavedModel")
    own.add_argument("--loss", default="", metavar="NAME", help="what to train a Keras model by")
    own.add_argument("--optimizer", default="", metavar="NAME", help="what to train a Keras model with")
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", metavar="FILE", help="the trace: .h5 or .pb (default: WORKLOAD-MODE.h5); for all, a folder (default: traces)"
    )
    add_force(output)
    add_json(output)


def run(arguments: argparse.Namespace) -> int:
    """Refuse what cannot work, capture, check, write, print a summary."""
    if arguments.program == "all":
        return _run_all(arguments)
    from fathom_trace.capture import capture_request
    from fathom_trace.destination import check_file
    from fathom_trace.store import save
    from fathom_trace.summary import print_summary, summarize
    from fathom_trace.terminal import ProgressBar, print_json

    request = request_of(arguments)
    file = check_file(Path(arguments.output or default_name(request)), arguments.force)
    with ProgressBar() as progress:
        progress("starting TensorFlow")
        trace = capture_request(request, progress)
        progress("writing", 0, 1)
        save(trace, file, force=arguments.force)
    summary = summarize(trace, file)
    print_json(summary.to_dict()) if arguments.json else print_summary(summary)
    return 0 if summary.checks.is_sound else 1


def _run_all(arguments: argparse.Namespace) -> int:
    """Capture every workload in both modes; 1 when one of them failed."""
    import sys

    from fathom_trace.destination import check_writable
    from fathom_trace.errors import OptionError
    from fathom_trace.sweeps.collection import capture_all, print_captures
    from fathom_trace.terminal import print_json
    from fathom_trace.workloads import REGISTRY

    own = [arguments.settings, arguments.data, arguments.shape, arguments.signature, arguments.loss, arguments.optimizer]
    if any(own):
        raise OptionError("'all' takes no --set, --data or options for programs of your own: workloads differ in them")
    folder = Path(arguments.output or "traces")
    check_writable(folder)
    folder.mkdir(exist_ok=True)
    flags = [
        "--preset",
        arguments.preset,
        "--warmup",
        str(arguments.warmup),
        "--stage",
        arguments.stage,
        "--seed",
        str(arguments.seed),
    ]
    flags += ["--inter-threads", str(arguments.inter_threads), "--memory-steps", str(arguments.memory_steps)]
    flags += ["--static"] * arguments.static
    for name in ("steps", "batch_size", "threads", "max_events"):
        if getattr(arguments, name):
            flags += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    made = capture_all(REGISTRY.names(), folder, flags, arguments.force, lambda text: print(text, file=sys.stderr, flush=True))
    print_json(made) if arguments.json else print_captures(made)
    return 1 if any(c.error for c in made) else 0


def request_of(arguments: argparse.Namespace) -> CaptureRequest:
    """What the arguments ask for.

    Raises:
        UnknownNameError: there is no such workload, mode or stage.
        OptionError: a setting is malformed.
    """
    from fathom_trace.capture import CaptureRequest, Plan, is_target
    from fathom_trace.capture.environment import STAGES
    from fathom_trace.errors import UnknownNameError
    from fathom_trace.options import parse_pairs
    from fathom_trace.workload import choose_mode
    from fathom_trace.workloads import REGISTRY

    if arguments.static:
        _refuse_running(arguments)
    if arguments.stage not in STAGES:
        raise UnknownNameError("stage", arguments.stage, STAGES)
    return CaptureRequest(
        workload=arguments.program if is_target(arguments.program) else REGISTRY.resolve(arguments.program),
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
            max_events=arguments.max_events,
            is_static=arguments.static,
        ),
        command_line=shlex.join(arguments.command_line),
        shapes=dict(arguments.shape),
        signature=arguments.signature,
        loss=arguments.loss,
        optimizer=arguments.optimizer,
    )


def _refuse_running(arguments: argparse.Namespace) -> None:
    """Raise `OptionError` for what says how to run: with `--static` nothing runs."""
    from fathom_trace.errors import OptionError

    flags = ("steps", "data", "threads", "max_events")
    given = [name for name in flags if getattr(arguments, name)]
    given += [name for name in ("warmup", "inter_threads", "memory_steps") if getattr(arguments, name) != 1]
    if given:
        raise OptionError(f"--static runs nothing, so --{given[0].replace('_', '-')} has no meaning with it; leave one of them out")


def default_name(request: CaptureRequest) -> str:
    """The trace's file name: the program, what is not the default, the mode."""
    program = request.workload.rpartition(":")[2] if ".py:" in request.workload else Path(request.workload).resolve().stem
    parts = [program, request.preset, request.mode, request.plan.stage, "static" * request.plan.is_static]
    return "-".join(p for p in parts if p not in ("", "seminal", "source")) + ".h5"


def _steps(text: str) -> int:
    return 0 if text == "auto" else at_least(1)(text)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, sign, sizes = text.rpartition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape; write for example --shape image=8,224,224,3")
    return name, tuple(at_least(1)(size) for size in sizes.split(",") if size)
