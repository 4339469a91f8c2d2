"""What faster operations do to the whole program: scenarios, Amdahl, replay of the dependency graph, simulator results fed back.

scenario = parse_scenario(["Conv2D=10", "layer:fc*=4"])
projection = project(trace, scenario)
print(render(projection))
"""

from fathom_trace.whatif.baseline import Settings
from fathom_trace.whatif.projection import Estimate, Projection, project
from fathom_trace.whatif.render import render, render_curve
from fathom_trace.whatif.scenario import Scenario, from_results, parse_scenario
from fathom_trace.whatif.sweep import Curve, Sweep, parse_sweep, project_sweep

__all__ = [
    "Curve",
    "Estimate",
    "Projection",
    "Scenario",
    "Settings",
    "Sweep",
    "from_results",
    "parse_scenario",
    "parse_sweep",
    "project",
    "project_sweep",
    "render",
    "render_curve",
]
