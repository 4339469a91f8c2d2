"""Print which of several workloads spend their time alike, and how few op types take most of it.

python examples/alike.py vgg-training.h5 alexnet-training.h5 memnet-training.h5
"""

import sys
from pathlib import Path

import fathom_trace
from fathom_trace.report.captured import measure_files
from fathom_trace.report.similarity import similarity
from fathom_trace.report.skew import skew


def main(files: list[str]) -> None:
    """Print the op types that make 90% of each trace's time, then the merges of the dendrogram."""
    profiles = {c.label: c.shares() for c in measure_files(map(Path, files), fathom_trace.load)}
    for label, shares in profiles.items():
        found = skew(label, shares)
        print(f"{label}: {found.k90} op types take 90%: {', '.join(found.op_types[: found.k90])}")
    tree = similarity(profiles)
    for merge in tree.merges:
        left, right = (" + ".join(tree.labels[i] for i in side) for side in (merge.left, merge.right))
        print(f"{merge.distance:.3f}  {left} | {right}")


if __name__ == "__main__":
    main(sys.argv[1:])
