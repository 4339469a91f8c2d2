"""Project what faster operations do to the whole program: Amdahl's law, and replays of the dependencies on the captured workers and on
unlimited ones, side by side.

A change is SELECTION=FACTOR (10 is ten times faster, inf is free), SELECTION=50us (the time of each execution), SELECTION=remove,
fuse:A+B (neighbours become one execution), hardware:FILE.yaml (an accelerator takes what it covers) or threads:N. A SELECTION is an op
type (Conv2D), or kind:NAME, phase:NAME, layer:NAME, device:NAME, name:NAME; * and ? match as in file names; predicate:FILE.py asks
the function select(execution) of that file, which runs it.

SCENARIOS is a YAML file of named scenarios, each a list of changes; a change of several values, `- Conv2D: [1, 2, 4, 8]`, makes a
scenario a grid: one scenario for every combination of the values. Those that select nothing are told, and the others go on. With
--scheduler the workers of a Dask cluster take them in pieces; predicates must lie there under the same names.

Of a part of the trace, shares are of the part's own op time. Totals run from its first operation to its last: what else a step does in
between is in them as time in which no op runs, and no change shortens it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fathom_trace.arguments import add_force, add_json, add_selection, add_trace, at_least, choice_of, selected

if TYPE_CHECKING:
    from fathom_trace.trace import Trace
    from fathom_trace.whatif import Comparison, Context, ScalingModel, Scenario, Settings

MOST_TOLD = 10
"""Scenarios that cannot be applied, told one by one."""

EXAMPLES = (
    "fathom-trace whatif vgg-training.h5 --speedup Conv2D=10 --speedup 'layer:fc*=4'",
    "fathom-trace whatif vgg-training.h5 scenarios.yaml",
    "fathom-trace whatif vgg-training.h5 scenarios.yaml --scheduler tcp://head:8786 --json",
    "fathom-trace whatif vgg-training.h5 --hardware accelerator.yaml -o projected.h5",
    "fathom-trace whatif vgg-training.h5 --sweep Conv2D=1..1000",
    "fathom-trace whatif vgg-training.h5 --limits --target 5x",
    "fathom-trace whatif vgg-training.h5 --from vgg-training-scale_sim --clock 700MHz",
    "fathom-trace whatif vgg-training.h5 --from scale_sim vgg-training-scale_sim/results/vgg_gemm/COMPUTE_REPORT.csv --clock 700MHz",
    "fathom-trace whatif one.h5 --speedup threads:2 --scaling one.h5 two.h5",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_trace(parser)
    parser.add_argument("scenarios", nargs="?", metavar="SCENARIOS", help="a YAML file of named scenarios")
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="project the file's scenarios on this Dask cluster")
    parser.add_argument("--only", metavar="NAME", help="one scenario of the file, in full")
    parser.add_argument("--speedup", action="append", default=[], metavar="CHANGE", help="a change; several are applied in turn")
    parser.add_argument("--hardware", metavar="FILE", help="let an accelerator take what it covers; the same as hardware:FILE")
    parser.add_argument(
        "--sweep", metavar="SELECTION=LOW..HIGH", help="print the curve over a range of factors, on top of the changes"
    )
    parser.add_argument(
        "--limits", action="store_true", help="what each kind and layer would give if it were free, and what dominates next"
    )
    parser.add_argument("--target", metavar="FACTOR", help="the fewest kinds that must get faster for this speedup of the whole (5x)")
    parser.add_argument("--faster", metavar="FACTOR", default="inf", help="how much faster, for --target (default: inf, free)")
    parser.add_argument(
        "--scaling", nargs="+", default=[], metavar="TRACE", help="captures at several --threads, for threads:N; give FILE first"
    )
    parser.add_argument(
        "--from", dest="export", nargs="+", metavar="DIR",
        help="times from the simulator that ran this export; or EXPORTER REPORT, of which the report lies in the export; give FILE first",
    )  # fmt: skip
    parser.add_argument("--results", metavar="PATH", help="what the simulator wrote (default: DIR/results)")
    parser.add_argument("--clock", default="1GHz", metavar="F", help="the simulated clock (default: 1GHz)")
    parser.add_argument("--workers", type=at_least(1), metavar="N", help="workers of the replay (default: as captured)")
    parser.add_argument("--priority", default="captured", help="what a free worker takes first: captured (default) or critical-path")
    parser.add_argument("--top", type=at_least(1), default=10, metavar="N", help="rows to list (default: 10)")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help="write the projected step as a trace: .h5 or .pb")
    add_force(output)
    add_json(output)
    add_selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Project and print."""
    from fathom_trace.destination import check_file
    from fathom_trace.store import load, save
    from fathom_trace.terminal import print_json
    from fathom_trace.whatif import Settings, parse_scenario, parse_sweep, project, project_sweep, render, render_curve

    _refuse_together(arguments)
    context = scaling_context(arguments)
    scenario = parse_scenario(arguments.speedup, context)
    named = named_scenarios(arguments, context)
    sweep = parse_sweep(arguments.sweep) if arguments.sweep else None
    settings = Settings(workers=arguments.workers, priority=arguments.priority)
    file = check_file(Path(arguments.output), arguments.force) if arguments.output else None
    choice = choice_of(arguments)
    trace, arguments.part = selected(load(Path(arguments.file)), choice)
    if arguments.export:
        scenario = simulated(trace, arguments).then(*scenario.changes)
    if arguments.hardware:
        scenario = scenario.then(*parse_scenario([f"hardware:{arguments.hardware}"], context).changes)
    if named is not None and not arguments.only:
        on_top = {name: scenario.then(*each.changes) for name, each in named.items()}
        return _compare(trace, arguments, on_top, settings, context.scaling)
    if named is not None:
        scenario = scenario.then(*named[arguments.only].changes)
    if arguments.limits or arguments.target:
        return _limits(trace, arguments, scenario, settings)
    if sweep is None:
        projection = project(trace, scenario, settings)
        if file is not None:
            save(projection.to_trace(), file, force=arguments.force)
        _print(arguments, projection.to_dict(), render(projection, arguments.top), context.scaling)
        if file is not None and not arguments.json:
            print(f"\nprojected step: {file}")
    else:
        curve = project_sweep(trace, sweep, scenario, settings)
        unicode = "utf" in (sys.stdout.encoding or "").lower()
        if arguments.json:
            print_json({**curve.to_dict(), **_selection(arguments)})
        else:
            print(_selected(arguments) + render_curve(curve, unicode), end="")
    return 0


def _refuse_together(arguments: argparse.Namespace) -> None:
    """Raise `OptionError` for what contradicts: each of these prints something of its own."""
    from fathom_trace.errors import OptionError

    several = arguments.scenarios and not arguments.only
    chosen = {
        "a scenario file without --only": several, "--sweep": arguments.sweep, "--limits or --target": arguments.limits or arguments.target,
    }  # fmt: skip
    asked = [name for name, wanted in chosen.items() if wanted]
    if len(asked) > 1:
        raise OptionError(f"{' and '.join(asked)} cannot be asked for at once; run the command for each")
    if arguments.output and asked:
        raise OptionError(f"-o writes one projected step, and {asked[0]} has several; leave one of them out")
    if arguments.scheduler and not several:
        raise OptionError("--scheduler spreads the scenarios of a file; give one after the trace, without --only")
    if arguments.only and not arguments.scenarios:
        raise OptionError("--only picks a scenario of a file; give the file after the trace")


def scaling_context(arguments: argparse.Namespace) -> Context:
    """The folder that file names start from, and the scaling model of `--scaling`."""
    from fathom_trace.store import load
    from fathom_trace.whatif import Context, fit_scaling

    model = fit_scaling([load(Path(file)) for file in arguments.scaling]) if arguments.scaling else None
    return Context(Path(), model)


def named_scenarios(arguments: argparse.Namespace, context: Context) -> dict[str, Scenario] | None:
    """The scenarios of the file, if one was given.

    Raises:
        ScenarioError: the file is wrong.
        UnknownNameError: `--only` names none of them.
    """
    from fathom_trace.errors import UnknownNameError
    from fathom_trace.whatif import read_scenarios

    if not arguments.scenarios:
        return None
    named = read_scenarios(Path(arguments.scenarios), context)
    if arguments.only and arguments.only not in named:
        raise UnknownNameError(f"scenario in {arguments.scenarios}", arguments.only, named)
    return named


def _compare(
    trace: Trace, arguments: argparse.Namespace, named: dict[str, Scenario], settings: Settings, scaling: ScalingModel | None
) -> int:
    """Print what each scenario does; 1 when one of them cannot be applied."""
    from fathom_trace.whatif import project_all, render_comparison

    spread = arguments.scheduler
    comparison = _on_cluster(trace, arguments, named, settings) if spread else project_all(trace, named, settings, go_on=True)
    _print(arguments, comparison.to_dict(), render_comparison(comparison), scaling)
    sys.stdout.flush()
    for _, problem in comparison.problems[:MOST_TOLD]:
        _tell(f"fathom-trace: {arguments.scenarios}: {problem}")
    if len(comparison.problems) > MOST_TOLD:
        _tell(f"fathom-trace: {len(comparison.problems) - MOST_TOLD:,} more scenarios cannot be applied; --json lists all")
    return 1 if comparison.problems else 0


def _on_cluster(trace: Trace, arguments: argparse.Namespace, named: dict[str, Scenario], settings: Settings) -> Comparison:
    from fathom_trace.sweeps.cluster import Cluster
    from fathom_trace.sweeps.projecting import Step, project_spread
    from fathom_trace.terminal import ProgressBar

    step = Step(trace, settings)
    with ProgressBar() as progress:
        return project_spread(step, named, Cluster(arguments.scheduler, alone=False, tell=_tell, shared=step), progress)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(arguments: argparse.Namespace, data: dict[str, object], text: str, scaling: ScalingModel | None) -> None:
    """Print a result, and the scaling model with it if captures were given for one."""
    from fathom_trace.terminal import print_json
    from fathom_trace.whatif import render_scaling

    if arguments.json:
        print_json({**data, **({"scaling": scaling.to_dict()} if scaling else {}), **_selection(arguments)})
    else:
        print(_selected(arguments) + text + ("\n" + render_scaling(scaling, arguments.top) if scaling else ""), end="")


def _limits(trace: Trace, arguments: argparse.Namespace, scenario: Scenario, settings: Settings) -> int:
    from fathom_trace.terminal import print_json
    from fathom_trace.whatif import find_limits, find_target, render_limits, render_target
    from fathom_trace.whatif.limits import parse_factor

    target, faster = parse_factor(arguments.target or "1x", "--target"), parse_factor(arguments.faster, "--faster")
    limits = find_limits(trace, settings, scenario) if arguments.limits else None
    reached = find_target(trace, target, settings, scenario, faster=faster) if arguments.target else None
    if arguments.json:
        found: dict[str, object] = limits.to_dict() if limits else {}
        print_json({**found, **({"target": reached.to_dict()} if reached else {}), **_selection(arguments)})
        return 0
    parts = [render_limits(limits, arguments.top)] if limits else []
    parts += [render_target(reached)] if reached else []
    print(_selected(arguments) + "\n".join(parts), end="")
    return 0


def _selection(arguments: argparse.Namespace) -> dict[str, object]:
    """What was selected, for JSON."""
    return {"selection": arguments.part.to_dict()} if arguments.part else {}


def _selected(arguments: argparse.Namespace) -> str:
    """What was selected, for people, and what all that follows is of."""
    if not arguments.part:
        return ""
    meaning = "shares are of its op time; totals hold all else from its first operation to its last as idle time"
    return f"selected {arguments.part}\n{meaning}\n\n"


def simulated(trace: Trace, arguments: argparse.Namespace) -> Scenario:
    """The scenario in which what was simulated takes as long as the simulator says."""
    from fathom_trace.errors import OptionError
    from fathom_trace.exporting import read_results
    from fathom_trace.units import format_count, parse_quantity
    from fathom_trace.whatif import from_results

    folder, results = simulated_export(arguments.export, arguments.results)
    clock_hz = parse_quantity(arguments.clock, "Hz")
    if clock_hz <= 0:
        raise OptionError(f"the clock is '{arguments.clock}'; it must be above 0")
    times = read_results(folder, results, clock_hz)
    return from_results(trace, times, f"{folder} at {format_count(clock_hz, 'Hz')}")


def simulated_export(given: list[str], results: str | None) -> tuple[Path, Path]:
    """The exported folder and the simulator's answer, from `--from DIR` (with `--results`) or `--from EXPORTER REPORT`.

    Raises:
        OptionError: more was given, or too much of it.
        UnknownNameError: there is no such exporter.
        ExportError: the report lies in no folder that this exporter wrote.
    """
    from fathom_trace.errors import ExportError, OptionError
    from fathom_trace.exporter import REPORT_NAME, read_report
    from fathom_trace.exporters import REGISTRY

    if len(given) == 1:
        folder = Path(given[0])
        return folder, Path(results or folder / "results")
    if len(given) > 2 or results:
        raise OptionError("--from takes an exported folder, or an exporter and its target's report; give the trace before it")
    name, report = REGISTRY.resolve(given[0]), Path(given[1])
    around = [p for p in report.absolute().parents if (p / REPORT_NAME).is_file()]
    if not around:
        raise ExportError(f"{report} lies in no exported folder; give that with --from DIR --results {report}")
    if read_report(around[0])["exporter"] != name:
        raise ExportError(f"{around[0]} is an export of {read_report(around[0])['exporter']}, not of {name}; give that name")
    return around[0], report
