"""Print the operations on the longest path through a trace: what no number of workers can run at the same time.

python examples/longest_path.py vgg-training.h5
"""

import sys
from collections import Counter

import networkx

import fathom_trace


def main(file: str) -> None:
    """Print op types by their time on the path."""
    graph = fathom_trace.load(file).to_networkx()
    for _, consumer, edge in graph.edges(data=True):
        edge["ns"] = graph.nodes[consumer]["duration_ns"]
    path = networkx.dag_longest_path(graph, weight="ns")
    spent: Counter[str] = Counter()
    for execution in path:
        spent[graph.nodes[execution]["op"]] += graph.nodes[execution]["duration_ns"]
    print(f"{len(path)} of {graph.number_of_nodes()} executions, {sum(spent.values()) / 1e6:.3f} ms")
    for op, ns in spent.most_common(10):
        print(f"{ns / 1e6:10.3f} ms  {op}")


if __name__ == "__main__":
    main(sys.argv[1])
