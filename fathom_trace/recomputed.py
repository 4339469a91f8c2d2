"""Forward work that the backward pass repeats: which nodes they are, although they read trained variables anew.

A program that keeps no activations (`tf.recompute_grad`, `keras.RematScope`) computes them once more for their gradient. What is repeated
waits for a gradient, and reads the trained variables again; so does an optimizer that decays weights. Two things tell them apart. A
layer's op between a trained variable and a value that has no variable's shape is no optimizer's, whose inputs are whole gradients and its
own state. And where shapes coincide, such as a batch as large as a layer is wide, the same op with the same variable in the same place,
with all shapes the same, is in the forward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from fathom_trace.node_graph import RESHAPES, Mask, NodeGraph, Port
from fathom_trace.ops import kind

Shaped = Callable[[Port], bool]
"""True of an output that has the shape of a trained variable, so that it could be a whole gradient."""

_CONTRACTIONS = frozenset({"conv", "conv_filter_grad", "conv_input_grad", "gemm", "batched_gemm"})


def repeated(graph: NodeGraph, forward: Mask, fed: Mask, is_variable_shaped: Shaped) -> Mask:
    """The nodes `fed` by the backward pass that repeat a forward node: layers' ops with the same variables, and what follows alike.

    `fed` nodes are neither forward nor writers.
    """
    found = np.zeros(len(graph), bool)
    found[list(_Finder(graph, forward, fed, is_variable_shaped).repeats)] = True
    return found


def layer_products(graph: NodeGraph, optimizer: Mask, beyond: Mask, is_variable_shaped: Shaped) -> Mask:
    """The nodes taken for the optimizer's that multiply a trained variable by a value of the backward pass, no whole gradient.

    `beyond` is all that the writers' inputs are computed from past the forward pass, `optimizer` the part of it taken for that.
    """
    found = np.zeros(len(graph), bool)
    for node in np.flatnonzero(optimizer).tolist():
        if kind(graph.ops[node]) in _CONTRACTIONS:
            places = [position for position, _ in trained_inputs(graph, node)]
            others = [port for position, port in enumerate(graph.producers[node]) if position not in places]
            is_partial = any(beyond[p[0]] and not optimizer[p[0]] and _is_partial(graph, p, is_variable_shaped) for p in others)
            found[node] = bool(places) and is_partial
    return found


def trained_inputs(graph: NodeGraph, node: int) -> list[tuple[int, int]]:
    """The (input position, variable) of each input of a node that is the value of a trained variable."""
    known = [(position, graph.variable(port)) for position, port in enumerate(graph.producers[node])]
    return [(position, v) for position, v in known if v >= 0 and graph.trace.variables.trainable[v]]


def _is_partial(graph: NodeGraph, port: Port, is_variable_shaped: Shaped) -> bool:
    """True for a tensor that is no whole gradient, not even one that was reshaped."""
    if not graph.shape(port):
        return False
    while not is_variable_shaped(port):
        port = graph.origin(port)
        if graph.ops[port[0]] not in RESHAPES or not graph.producers[port[0]]:
            return not is_variable_shaped(port)
        port = graph.producers[port[0]][0]
    return False


class _Finder:
    def __init__(self, graph: NodeGraph, forward: Mask, fed: Mask, is_variable_shaped: Shaped) -> None:
        self.graph, self.forward, self.fed, self.is_variable_shaped = graph, forward, fed, is_variable_shaped
        self.repeats: dict[int, int] = {}
        """For each repeating node the forward node that it repeats."""
        uses: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for node in np.flatnonzero(forward).tolist():
            for position, variable in trained_inputs(graph, node):
                uses[graph.ops[node], position, variable].append(node)
        for node in np.flatnonzero(fed).tolist():
            for position, variable in trained_inputs(graph, node):
                self._compare(node, position, uses[graph.ops[node], position, variable])
        waiting = list(self.repeats)
        while waiting:
            waiting += self._after(waiting.pop())

    def _compare(self, node: int, position: int, candidates: list[int]) -> None:
        """Note which forward node a layer's op repeats that reads a trained variable at `position`."""
        others = [port for k, port in enumerate(self.graph.producers[node]) if k != position and self.fed[port[0]]]
        is_contraction = kind(self.graph.ops[node]) in _CONTRACTIONS
        if others and (is_contraction or any(_is_partial(self.graph, port, self.is_variable_shaped) for port in others)):
            for other in candidates:
                if self._is_alike(node, other):
                    self.repeats.setdefault(node, other)

    def _after(self, node: int) -> list[int]:
        """The consumers of a repeating node that repeat a consumer of what it repeats; they are noted."""
        made = []
        for consumer, position in self.graph.consumers[node]:
            if not self.fed[consumer] or consumer in self.repeats:
                continue
            for other, place in self.graph.consumers[self.repeats[node]]:
                if (
                    place == position
                    and self.forward[other]
                    and self._is_alike(consumer, other)
                    and self._same_inputs(consumer, other)
                ):
                    self.repeats[consumer] = other
                    made.append(consumer)
                    break
        return made

    def _is_alike(self, node: int, other: int) -> bool:
        """True if two nodes have the same op type, attributes, and shapes of inputs and output."""
        graph = self.graph
        inputs, others = graph.producers[node], graph.producers[other]
        return (
            graph.ops[node] == graph.ops[other]
            and len(inputs) == len(others)
            and all(graph.shape(a) == graph.shape(b) for a, b in zip(inputs, others, strict=True))
            and graph.shape((node, 0)) == graph.shape((other, 0))
            and self._attributes(node) == self._attributes(other)
        )

    def _attributes(self, node: int) -> dict[str, object]:
        """A node's attributes without those that only annotate it."""
        return {key: value for key, value in self.graph.trace.node_attributes[node].items() if not key.startswith("_")}

    def _same_inputs(self, node: int, other: int) -> bool:
        """True if each input of one node is that of the other, repeats it, or is the same variable's or a constant."""
        graph = self.graph
        for a, b in zip(graph.producers[node], graph.producers[other], strict=True):
            is_repeated = a[1] == b[1] and self.repeats.get(a[0]) == b[0]
            is_constant = graph.ops[a[0]] == graph.ops[b[0]] == "Const"
            if not (is_repeated or is_constant or graph.origin(a) == graph.origin(b) or 0 <= graph.variable(a) == graph.variable(b)):
                return False
        return True
