"""The layer of every node, and for every gradient the forward node it belongs to.

The graph decides before names do. A variable called `conv1_1/kernel` makes a layer `conv1_1`; whatever multiplies by it belongs to that
layer, under whatever name it runs, so a layer that is used twice is one layer. A gradient belongs to the forward product or convolution
whose operand it shares: a filter gradient reads its input, an input gradient its filter. An optimizer's node belongs to the layer whose
variable it updates. Names place what is left: `pool1/MaxPool` is of the layer `pool1`, `gradient_tape/pool1/MaxPool/MaxPoolGrad` too.
An unscoped product or convolution is a layer of its own name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom_trace.node_graph import Mask, NodeGraph, Port
from fathom_trace.ops import kind
from fathom_trace.phases import BACKWARD, FORWARD, OPTIMIZER, Phases, phases
from fathom_trace.scopes import LayerScopes, forward_name, inner_name
from fathom_trace.trace import Trace

GRAPH, NAMES, NONE = "graph", "names", ""

ROLES = ("forward", "filter_grad", "input_grad", "gradient", "optimizer", "")
"""What a node does for its layer. `gradient` is backward work that is no convolution or product; empty is of no phase."""

COMPUTE = ("conv", "conv_filter_grad", "conv_input_grad", "gemm", "batched_gemm")

_OPERANDS = {
    "Conv2DBackpropInput": (2, 1),
    "Conv2DBackpropInputV2": (2, 1),
    "Conv3DBackpropInput": (2, 1),
    "Conv3DBackpropInputV2": (2, 1),
    "DepthwiseConv2dNativeBackpropInput": (2, 1),
    "Conv2DBackpropFilter": (2, 0),
    "Conv2DBackpropFilterV2": (2, 0),
    "Conv3DBackpropFilter": (2, 0),
    "Conv3DBackpropFilterV2": (2, 0),
    "DepthwiseConv2dNativeBackpropFilter": (2, 0),
    "_MklConv2DBackpropFilterWithBias": (2, 0),
}
"""Inputs that hold the two operands, where those are not inputs 0 and 1 (the rest are sizes, biases and the like)."""

_GRADIENT_OF = {
    "ReluGrad": "Relu",
    "Relu6Grad": "Relu6",
    "LeakyReluGrad": "LeakyRelu",
    "EluGrad": "Elu",
    "SeluGrad": "Selu",
    "SigmoidGrad": "Sigmoid",
    "TanhGrad": "Tanh",
    "SoftplusGrad": "Softplus",
    "SoftsignGrad": "Softsign",
    "SqrtGrad": "Sqrt",
    "RsqrtGrad": "Rsqrt",
    "LRNGrad": "LRN",
    "MaxPoolGrad": "MaxPool",
    "MaxPoolGradV2": "MaxPoolV2",
    "MaxPool3DGrad": "MaxPool3D",
    "FusedBatchNormGrad": "FusedBatchNorm",
    "FusedBatchNormGradV2": "FusedBatchNormV2",
    "FusedBatchNormGradV3": "FusedBatchNormV3",
    "BiasAddGrad": "BiasAdd",
}
"""Gradient op types to the type whose gradient they are, where they read its input or output, or yield its variable's gradient."""

_MANY = -2


@dataclass(frozen=True, eq=False)
class LayerLinks:
    """Per node: its layer (empty if it has none), its role (`ROLES`), and the forward node it is a gradient of (-1).

    `evidence` says what told the layer, `forward_evidence` what told the forward node: `graph`, `names`, or empty where there is none.
    """

    layer: tuple[str, ...]
    role: tuple[str, ...]
    forward: NDArray[np.int64]
    evidence: tuple[str, ...]
    forward_evidence: tuple[str, ...]


def layer_names(trace: Trace) -> tuple[str, ...]:
    """The layer of every node, such as `conv1_1`; empty for a node of none."""
    return layer_links(trace).layer


def layer_links(trace: Trace, phase: Phases | None = None, graph: NodeGraph | None = None) -> LayerLinks:
    """The layer, role and forward node of every node. `phase` and `graph` spare working them out again where the caller has them."""
    graph = graph or NodeGraph(trace)
    return _Linker(trace, graph, phase or phases(trace, graph)).links()


@dataclass(frozen=True)
class _Product:
    """A convolution or product: origins of its two operands, and the variables whose values they are (-1 for none)."""

    node: int
    first: Port
    second: Port
    first_variable: int
    second_variable: int

    @property
    def weight_is_first(self) -> bool:
        """The weights are operand 1, unless only operand 0 is a variable's value."""
        return self.first_variable >= 0 > self.second_variable

    @property
    def weight(self) -> Port:
        return self.first if self.weight_is_first else self.second

    @property
    def activation(self) -> Port:
        return self.second if self.weight_is_first else self.first

    @property
    def weight_variable(self) -> int:
        return self.first_variable if self.weight_is_first else self.second_variable


class _Linker:
    """One pass over a trace's nodes; fills `layer`, `role`, `forward` and `evidence`."""

    def __init__(self, trace: Trace, graph: NodeGraph, phase: Phases) -> None:
        self.trace, self.graph, self.phase = trace, graph, phase
        count = len(trace.nodes)
        self.layer: list[str] = [""] * count
        self.evidence: list[str] = [NONE] * count
        self.forward_evidence: list[str] = [NONE] * count
        self.forward = np.full(count, -1, np.int64)
        self.role = [_role(int(code)) for code in phase.codes]
        self.inner = [inner_name(name) for name in trace.node_names]
        self.destination, serves = self._destinations(same_size=True)
        names = [trace.strings[v] for v in trace.variables.variable_name.tolist()]
        self.scopes = LayerScopes(names, trace.variables.trainable.tolist(), serves, self.inner)

    def links(self) -> LayerLinks:
        """Everything, in the order in which one fact serves the next."""
        self._by_variable()
        products = {node: self._product(node) for node in range(len(self.layer)) if kind(self.graph.ops[node]) in COMPUTE}
        self._forward_layers(products)
        self._by_name(self.phase.is_phase(FORWARD))
        self._link_products(products)
        self._link_gradients()
        self._by_destination()
        self._by_parts()
        self._by_name(np.ones(len(self.layer), bool))
        return LayerLinks(tuple(self.layer), tuple(self.role), self.forward, tuple(self.evidence), tuple(self.forward_evidence))

    def _place(self, node: int, layer: str, evidence: str) -> None:
        if layer and not self.layer[node]:
            self.layer[node], self.evidence[node] = layer, evidence

    # --- by variables -----------------------------------------------------------------------------------------------------------

    def _by_variable(self) -> None:
        """Handles and reads of variables belong to the variable's layer; so does what writes it."""
        nodes = self.trace.nodes
        for variable, node in enumerate(self.trace.variables.node.tolist()):
            if node >= 0:
                self._place(node, self.scopes.layer_of_variable[variable], GRAPH)
        for offsets, variables in ((nodes.write_offsets, nodes.write), (nodes.read_offsets, nodes.read)):
            for node in np.flatnonzero(np.diff(offsets)).tolist():
                found = {self.scopes.layer_of_variable[v] for v in variables[offsets[node] : offsets[node + 1]].tolist()}
                if len(found) == 1:
                    self._place(node, found.pop(), GRAPH)

    def _product(self, node: int) -> _Product | None:
        inputs = self.graph.producers[node]
        a, b = _OPERANDS.get(self.graph.ops[node], (0, 1))
        if max(a, b) >= len(inputs):
            return None
        first, second = self.graph.origin(inputs[a]), self.graph.origin(inputs[b])
        return _Product(node, first, second, self.graph.variable(first), self.graph.variable(second))

    def _forward_layers(self, products: dict[int, _Product | None]) -> None:
        """Forward nodes by the variable they compute with, and from these the scopes that stand for layers."""
        for node in np.flatnonzero(self.phase.is_phase(FORWARD)).tolist():
            product, op = products.get(node), self.graph.ops[node]
            if product is not None:
                used = {product.weight_variable}
            elif kind(op) in ("elementwise", "normalization", "embedding", "recurrent"):
                used = {self.graph.variable(port) for port in self.graph.producers[node]}
                if kind(op) == "embedding":
                    used |= set(self.trace.nodes.read[self.trace.nodes.row_values("read", node)].tolist())
            else:
                continue
            layers = {self.scopes.layer_of_variable[v] for v in used if v >= 0} - {""}
            if len(layers) == 1:
                layer = layers.pop()
                self.layer[node], self.evidence[node] = layer, GRAPH
                self.scopes.learn(self.inner[node], layer)

    # --- gradients of convolutions and products ---------------------------------------------------------------------------------

    def _link_products(self, products: dict[int, _Product | None]) -> None:
        forward = [p for p in products.values() if p is not None and self.phase.codes[p.node] == FORWARD]
        backward = [p for p in products.values() if p is not None and self.phase.codes[p.node] == BACKWARD]
        by_activation: dict[object, list[_Product]] = defaultdict(list)
        by_weight: dict[object, list[_Product]] = defaultdict(list)
        for product in forward:
            by_activation[self._key(product.activation)].append(product)
            by_weight[self._key(product.weight)].append(product)
        upstream: dict[Port, set[int]] = defaultdict(set)
        for product in backward:
            self._link(product, "filter_grad", by_activation, upstream)
        for product in backward:
            self._link(product, "input_grad", by_weight, upstream)
        for product in backward:
            if self.forward[product.node] < 0:
                self._link_by_name(product.node, {p.node for p in forward})

    def _key(self, origin: Port) -> object:
        """Equal for two reads of one variable, and for one value."""
        variable = self.graph.variable(origin) if self.graph.ops[origin[0]] == "ReadVariableOp" else -1
        return ("variable", variable) if variable >= 0 else origin

    def _link(self, product: _Product, role: str, index: dict[object, list[_Product]], upstream: dict[Port, set[int]]) -> None:
        """Link a backward product to the forward one that shares its operand, if one and only one fits."""
        if self.forward[product.node] >= 0:
            return
        fits: list[tuple[_Product, Port]] = []
        for shared, other in ((product.first, product.second), (product.second, product.first)):
            for candidate in index.get(self._key(shared), ()):
                wanted = candidate.weight if role == "filter_grad" else candidate.activation
                if self._fits((product.node, 0), wanted) and self._same_size(other, (candidate.node, 0)):
                    fits.append((candidate, other))
        evidence = GRAPH
        if role == "filter_grad":
            fits = _narrow(fits, [f for f in fits if f[0].weight_variable == self.destination[product.node] >= 0])
        else:
            fits = _narrow(fits, [f for f in fits if f[0].node in upstream[f[1]]])
        if len({f[0].node for f in fits}) > 1:
            named = self._named_forward(product.node)
            fits, evidence = [f for f in fits if f[0].node in named], NAMES
        if len({f[0].node for f in fits}) != 1:
            return
        candidate, gradient = fits[0]
        upstream[gradient].add(candidate.node)
        self._set_link(product.node, candidate.node, role, evidence)

    def _fits(self, gradient: Port, operand: Port) -> bool:
        """False if both were executed and one cannot be the other's gradient: a batched product's is still to be summed over the batch."""
        first, second = self.graph.shape(gradient), self.graph.shape(operand)
        if first is None or second is None or kind(self.graph.ops[gradient[0]]) != "batched_gemm":
            return self._same_size(gradient, operand)
        return _elements(first) % max(_elements(second), 1) == 0

    def _same_size(self, a: Port, b: Port) -> bool:
        """False if both were executed and hold different numbers of elements."""
        first, second = self.graph.shape(a), self.graph.shape(b)
        return first is None or second is None or _elements(first) == _elements(second)

    def _set_link(self, node: int, forward: int, role: str, evidence: str) -> None:
        self.forward[node], self.role[node], self.forward_evidence[node] = forward, role, evidence
        if self.layer[forward]:
            told = GRAPH if evidence == self.evidence[forward] == GRAPH else NAMES
            self.layer[node], self.evidence[node] = self.layer[forward], told

    def _named_forward(self, node: int) -> set[int]:
        """Forward nodes whose name TensorFlow gives a gradient of them."""
        return set(self._names_of_forward.get(forward_name(self.inner[node], self._names_of_forward), ()))

    @property
    def _names_of_forward(self) -> dict[str, list[int]]:
        if not hasattr(self, "_by_inner_name"):
            self._by_inner_name: dict[str, list[int]] = defaultdict(list)
            for node in np.flatnonzero(self.phase.is_phase(FORWARD)).tolist():
                self._by_inner_name[self.inner[node]].append(node)
        return self._by_inner_name

    def _link_by_name(self, node: int, among: set[int] | None = None) -> None:
        named = self._named_forward(node)
        if among is not None:
            named &= among
        if len(named) == 1:
            self._set_link(node, named.pop(), self.role[node], NAMES)

    # --- other gradients --------------------------------------------------------------------------------------------------------

    def _link_gradients(self) -> None:
        uses: dict[Port, list[int]] = defaultdict(list)
        for node in np.flatnonzero(self.phase.is_phase(FORWARD)).tolist():
            if self.graph.ops[node] in _GRADIENT_OF.values():
                for port in {self.graph.origin(p) for p in self.graph.producers[node]}:
                    uses[port].append(node)
        biases = self._bias_additions()
        for node in np.flatnonzero(self.phase.is_phase(BACKWARD)).tolist():
            op = self.graph.ops[node]
            if self.forward[node] >= 0 or kind(op) in COMPUTE:
                continue
            wanted = _GRADIENT_OF.get(op, "")
            read = [self.graph.origin(p) for p in self.graph.producers[node]] if wanted else []
            found = {p[0] for p in read if self.graph.ops[p[0]] == wanted and self.phase.codes[p[0]] == FORWARD}
            found = found or {n for p in read for n in uses.get(p, ()) if self.graph.ops[n] == wanted}
            if op == "BiasAddGrad":
                found = set(biases.get(self.destination[node], ()))
            if len(found) == 1:
                self._set_link(node, found.pop(), "gradient", GRAPH)
            else:
                self._link_by_name(node)

    def _bias_additions(self) -> dict[int, list[int]]:
        """Variable to the forward BiasAdd nodes that add it."""
        found: dict[int, list[int]] = defaultdict(list)
        for node in np.flatnonzero(self.phase.is_phase(FORWARD)).tolist():
            if self.graph.ops[node] == "BiasAdd" and len(self.graph.producers[node]) > 1:
                found[self.graph.variable(self.graph.producers[node][1])].append(node)
        found.pop(-1, None)
        return found

    # --- by what it updates -----------------------------------------------------------------------------------------------------

    def _destinations(self, same_size: bool) -> tuple[list[int], list[int]]:
        """For each node, and for each variable, the one trained variable that its value ends up in; -1 none, `_MANY` several.

        A value that is kept in a slot goes on where the slot is read. `same_size` follows only steps that keep the number of elements:
        how a gradient reaches its variable, past clipping by a norm that all gradients enter.
        """
        nodes, variables = self.trace.nodes, self.trace.variables
        is_forward = self.phase.is_phase(FORWARD)
        writers: list[list[int]] = [[] for _ in range(len(variables))]
        for node in np.flatnonzero(np.diff(nodes.write_offsets)).tolist():
            for variable in nodes.write[nodes.row_values("write", node)].tolist():
                writers[variable].append(node)
        of_node = [-1] * len(self.graph)
        of_variable = [v if variables.trainable[v] else int(variables.slot_of[v]) for v in range(len(variables))]
        waiting: list[int] = []

        def join(node: int, label: int) -> None:
            joined = label if of_node[node] in (-1, label) else _MANY
            if joined != of_node[node] and not is_forward[node]:
                of_node[node] = joined
                waiting.append(node)

        for variable, label in enumerate(of_variable):
            for node in writers[variable] if label >= 0 else ():
                join(node, label)
        while waiting:
            node = waiting.pop()
            label = of_node[node]
            for position in range(len(self.graph.producers[node])):
                port = self._behind(node, position)
                if not same_size or self._keeps_size(port, node):
                    join(port[0], label)
            for variable in self.graph.values_read(node):
                if not variables.trainable[variable] and variables.slot_of[variable] < 0 and node not in writers[variable]:
                    joined = label if of_variable[variable] in (-1, label) else _MANY
                    if joined != of_variable[variable]:
                        of_variable[variable] = joined
                        for writer in writers[variable]:
                            join(writer, joined)
        return of_node, of_variable

    def _behind(self, node: int, position: int) -> Port:
        """The producer of an input; an IdentityN, which bundles values without mixing them, is looked through."""
        port = self.graph.producers[node][position]
        while self.graph.ops[port[0]] == "IdentityN" and port[1] < len(self.graph.producers[port[0]]):
            port = self.graph.producers[port[0]][port[1]]
        return port

    def _keeps_size(self, given: Port, consumer: int) -> bool:
        """True if a node's result, in a variable or at its output, has as many elements as an input of it, or sums it up."""
        nodes = self.trace.nodes
        written = nodes.write[nodes.row_values("write", consumer)].tolist()
        if self.graph.ops[consumer] == "Sum":
            return True  # of a gradient over the axes along which its variable was broadcast
        if not written:
            return self._same_size(given, (consumer, 0))
        shape = self.graph.shape(given)
        return shape is None or _elements(shape) == _elements(self.trace.shapes[int(self.trace.variables.shape[written[0]])])

    def _by_destination(self) -> None:
        """Backward nodes by the variable whose gradient they form, optimizer nodes by the variable they update."""
        anyhow, _ = self._destinations(same_size=False)
        for node in range(len(self.layer)):
            code = self.phase.codes[node]
            variable = self.destination[node]
            if code == OPTIMIZER and variable < 0:
                variable = anyhow[node]
            if variable >= 0 and (code == OPTIMIZER or (code == BACKWARD and self._forms_gradient(node))):
                self._place(node, self.scopes.layer_of_variable[variable], GRAPH)

    def _forms_gradient(self, node: int) -> bool:
        """True for what TensorFlow puts gradients together with, such as AddN: its name has the scope of no layer."""
        return not self.scopes.layer_of_name(self.inner[node])

    def _by_parts(self) -> None:
        """A call whose ops were expanded belongs to the layer that they belong to, if that is one."""
        for call, parts in self.graph.parts.items():
            found = {self.layer[part] for part in parts} - {""}
            if len(found) == 1:
                told = {self.evidence[part] for part in parts if self.layer[part]}
                self.layer[call], self.evidence[call] = found.pop(), GRAPH if told == {GRAPH} else NAMES

    # --- by names ---------------------------------------------------------------------------------------------------------------

    def _by_name(self, among: Mask) -> None:
        for node in np.flatnonzero(among).tolist():
            self._place(node, self.scopes.layer_of_name(self.inner[node]), NAMES)
            if kind(self.graph.ops[node]) in COMPUTE:
                self._place(node, self.inner[node].split("/")[-1], NAMES)


def _narrow(fits: list[tuple[_Product, Port]], closer: list[tuple[_Product, Port]]) -> list[tuple[_Product, Port]]:
    """The closer ones, if there are any."""
    return closer or fits


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _role(code: int) -> str:
    return {FORWARD: "forward", BACKWARD: "gradient", OPTIMIZER: "optimizer"}.get(code, "")
