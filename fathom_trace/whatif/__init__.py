"""What faster operations do to the whole program: scenarios, Amdahl, replay of the dependency graph, simulator results fed back.

scenario = parse_scenario(["Conv2D=10", "layer:fc*=4"])
projection = project(trace, scenario)
print(render(projection))
"""

from fathom_trace.whatif.accelerator import Accelerate, Accelerator, read_accelerator
from fathom_trace.whatif.baseline import Settings
from fathom_trace.whatif.compare import Comparison, project_all
from fathom_trace.whatif.limits import Limits, Target, find_limits, find_target
from fathom_trace.whatif.projection import Estimate, Projection, project
from fathom_trace.whatif.render import render, render_comparison, render_curve, render_limits, render_scaling, render_target
from fathom_trace.whatif.scaling import ScalingModel, fit_scaling
from fathom_trace.whatif.scenario import Context, Scenario, from_results, parse_scenario
from fathom_trace.whatif.scenario_file import read_scenarios
from fathom_trace.whatif.sweep import Curve, Sweep, parse_sweep, project_sweep

__all__ = [
    "Accelerate",
    "Accelerator",
    "Comparison",
    "Context",
    "Curve",
    "Estimate",
    "Limits",
    "Projection",
    "ScalingModel",
    "Scenario",
    "Settings",
    "Sweep",
    "Target",
    "find_limits",
    "find_target",
    "fit_scaling",
    "from_results",
    "parse_scenario",
    "parse_sweep",
    "project",
    "project_all",
    "project_sweep",
    "read_accelerator",
    "read_scenarios",
    "render",
    "render_comparison",
    "render_curve",
    "render_limits",
    "render_scaling",
    "render_target",
]
