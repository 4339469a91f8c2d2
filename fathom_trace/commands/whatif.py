"""Project what faster operations do to the whole program: Amdahl's law, and replays of the dependencies on the captured workers and on
unlimited ones, side by side.

A change is SELECTION=FACTOR (10 is ten times faster, inf is free), SELECTION=50us (the time of each execution) or SELECTION=remove.
A SELECTION is an op type (Conv2D), or kind:NAME, phase:NAME, layer:NAME, name:NAME; * and ? match as in file names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_json, add_trace, at_least

if TYPE_CHECKING:
    from fathom_trace.trace import Trace
    from fathom_trace.whatif import Scenario

EXAMPLES = (
    "fathom-trace whatif vgg-training.h5 --speedup Conv2D=10 --speedup 'layer:fc*=4'",
    "fathom-trace whatif vgg-training.h5 --sweep Conv2D=1..1000",
    "fathom-trace whatif vgg-training.h5 --from vgg-training-scale_sim --clock 700MHz",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("--speedup", action="append", default=[], metavar="CHANGE", help="a change; several are applied in turn")
    parser.add_argument(
        "--sweep", metavar="SELECTION=LOW..HIGH", help="print the curve over a range of factors, on top of the changes"
    )
    parser.add_argument("--from", dest="export", metavar="DIR", help="take times from the simulator that ran this export")
    parser.add_argument("--results", metavar="PATH", help="what the simulator wrote (default: DIR/results)")
    parser.add_argument("--clock", default="1GHz", metavar="F", help="the simulated clock (default: 1GHz)")
    parser.add_argument("--workers", type=at_least(1), metavar="N", help="workers of the replay (default: as captured)")
    parser.add_argument("--priority", default="captured", help="what a free worker takes first: captured (default) or critical-path")
    parser.add_argument("--top", type=at_least(1), default=10, metavar="N", help="op types to list (default: 10)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Project and print."""
    from fathom_trace.store import load
    from fathom_trace.terminal import print_json
    from fathom_trace.whatif import Settings, parse_scenario, parse_sweep, project, project_sweep, render, render_curve

    scenario = parse_scenario(arguments.speedup)
    sweep = parse_sweep(arguments.sweep) if arguments.sweep else None
    settings = Settings(workers=arguments.workers, priority=arguments.priority)
    trace = load(Path(arguments.file))
    if arguments.export:
        scenario = simulated(trace, arguments).then(*scenario.changes)
    if sweep is None:
        projection = project(trace, scenario, settings)
        print_json(projection.to_dict()) if arguments.json else print(render(projection, arguments.top), end="")
    else:
        curve = project_sweep(trace, sweep, scenario, settings)
        unicode = "utf" in (sys.stdout.encoding or "").lower()
        print_json(curve.to_dict()) if arguments.json else print(render_curve(curve, unicode), end="")
    return 0


def simulated(trace: Trace, arguments: argparse.Namespace) -> Scenario:
    """The scenario in which what was simulated takes as long as the simulator says."""
    from fathom_trace.errors import OptionError
    from fathom_trace.exporting import read_results
    from fathom_trace.units import format_count, parse_quantity
    from fathom_trace.whatif import from_results

    folder, clock_hz = Path(arguments.export), parse_quantity(arguments.clock, "Hz")
    if clock_hz <= 0:
        raise OptionError(f"the clock is '{arguments.clock}'; it must be above 0")
    times = read_results(folder, Path(arguments.results or folder / "results"), clock_hz)
    return from_results(trace, times, f"{folder} at {format_count(clock_hz, 'Hz')}")
