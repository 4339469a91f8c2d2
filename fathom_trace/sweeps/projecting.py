"""What-if scenarios in pieces, on the workers of a cluster: the step is sent to each worker once, the answers are those of one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

from fathom_trace.errors import ClusterError
from fathom_trace.sweeps.apart import Errand
from fathom_trace.sweeps.engine import Executor, Task
from fathom_trace.trace import Trace
from fathom_trace.whatif import Comparison, Scenario, Settings, project_all
from fathom_trace.whatif.baseline import Base, base_of

Progress = Callable[[str, int, int], None]

PIECES = 16
MOST_IN_PIECE = 1000


@dataclass(frozen=True)
class Step:
    """A step of a trace, and how to replay it; a worker works its base out once."""

    trace: Trace
    settings: Settings

    @cached_property
    def base(self) -> Base:
        """The unchanged step."""
        return base_of(self.trace, self.settings)


def project_piece(errand: Errand, scenarios: Mapping[str, Scenario]) -> Comparison:
    """What some scenarios do to the step that the errand shares."""
    step: Step = errand.shared
    return project_all(step.trace, scenarios, step.settings, go_on=True, base=step.base)


def project_spread(
    step: Step, scenarios: Mapping[str, Scenario], executor: Executor, progress: Callable[[str, int, int], None]
) -> Comparison:
    """What each of `scenarios` does to a step, in their order, worked out by `executor`, whose tasks share `step`.

    Raises:
        ClusterError: the cluster cannot be used, or fails at a piece.
        ScenarioError: the trace has no times.
    """
    parts = [project_all(step.trace, {}, step.settings, base=step.base), *_pieces(scenarios, executor, progress)]
    return replace(
        parts[0],
        scenarios=tuple(scenario for part in parts for scenario in part.scenarios),
        problems=tuple(problem for part in parts for problem in part.problems),
    )


def _pieces(scenarios: Mapping[str, Scenario], executor: Executor, progress: Progress) -> Sequence[Comparison]:
    names = list(scenarios)
    size = min(MOST_IN_PIECE, max(1, math.ceil(len(names) / PIECES)))
    cuts = [names[at : at + size] for at in range(0, len(names), size)]
    tasks = [Task(str(k), project_piece, ({name: scenarios[name] for name in cut},)) for k, cut in enumerate(cuts)]
    found: dict[int, Comparison] = {}
    with closing(executor.run(tasks)) as updates:
        for update in updates:
            if update.is_over and update.problem:
                raise ClusterError(f"scenarios from '{cuts[int(update.task.name)][0]}' on could not be projected: {update.problem}")
            if update.is_over:
                found[int(update.task.name)] = update.value
                progress("scenarios", len(found), len(tasks))
    return [found[k] for k in range(len(tasks))]
