"""List the workloads, or describe one: what it is, its presets, its inputs, its options and the data it can read."""

from __future__ import annotations

import argparse
from types import ModuleType

from fathom_trace.arguments import add_json

EXAMPLES = ("fathom-trace workloads", "fathom-trace workloads vgg")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the workload to describe")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the list or the description."""
    from fathom_trace.terminal import print_json, print_pairs
    from fathom_trace.workloads import REGISTRY

    if arguments.name is None:
        summaries = REGISTRY.summaries()
        if arguments.json:
            print_json(summaries)
        else:
            print_pairs(list(summaries.items()))
        return 0
    name = REGISTRY.resolve(arguments.name)
    workload = REGISTRY.load(name)
    if arguments.json:
        print_json(describe(name, workload))
    else:
        _print(name, workload)
    return 0


def describe(name: str, workload: ModuleType) -> dict[str, object]:
    """What `--json` prints: presets with their options and parameter counts, and the inputs of each mode at the default preset."""
    from fathom_trace.options import describe_options
    from fathom_trace.workload import DEFAULT_PRESET, MODES

    default = workload.PRESETS[DEFAULT_PRESET]
    return {
        "name": name,
        "description": workload.__doc__,
        "citation": workload.CITATION,
        "data": workload.DATA_FORMAT,
        "presets": workload.PRESETS,
        "inputs": {mode: workload.inputs(default.options, mode, default.batch_size[mode]) for mode in MODES},
        "options": describe_options(default.options),
    }


def _print(name: str, workload: ModuleType) -> None:
    from fathom_trace.options import describe_options
    from fathom_trace.terminal import print_pairs, print_table
    from fathom_trace.workload import DEFAULT_PRESET, MODES

    print(f"{name}: {(workload.__doc__ or '').strip()}\n\n{workload.CITATION}\n\npresets")
    rows = [(key, f"{p.parameters:,}", *(str(p.batch_size[mode]) for mode in MODES), p.doc) for key, p in workload.PRESETS.items()]
    print_table(("name", "parameters", *(f"batch, {mode}" for mode in MODES), "what"), rows, indent="  ", left=(0, 4))
    default = workload.PRESETS[DEFAULT_PRESET]
    print(f"\ninputs of a training step, preset {DEFAULT_PRESET}")
    for spec in workload.inputs(default.options, "training", default.batch_size["training"]):
        closing = ")" if spec.dtype.startswith(("float", "bfloat")) else "]"
        print(f"  {spec.name}: {spec.dtype} {list(spec.shape)} in [{spec.low:g}, {spec.high:g}{closing} {spec.doc}".rstrip())
    print(f"\noptions (--set name=value), with the values of preset {DEFAULT_PRESET}")
    print_pairs([(f"{o.name}={o.default}", f"{o.doc} ({o.type})") for o in describe_options(default.options)], indent="  ")
    print(f"\ndata (--data DIR)\n  {workload.DATA_FORMAT}")
