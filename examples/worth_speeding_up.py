"""Rank op types by what the whole program would gain if each became ten times faster.

python examples/worth_speeding_up.py vgg-training.h5
"""

import sys

import fathom_trace
from fathom_trace.whatif import parse_scenario


def main(file: str) -> None:
    """Print the projected speedup for each op type: by Amdahl's law, and by replaying the dependencies."""
    trace = fathom_trace.load(file)
    executed = sorted({trace.node_ops[node] for node in trace.executions.node.tolist()})
    found = [(op, fathom_trace.project(trace, parse_scenario([f"{op}=10"]))) for op in executed]
    found.sort(key=lambda pair: -pair[1].replay.speedup)
    print("Amdahl   replay   op type")
    for op, projection in found[:10]:
        print(f"{projection.amdahl.speedup:5.2f}x   {projection.replay.speedup:5.2f}x   {op}")


if __name__ == "__main__":
    main(sys.argv[1])
