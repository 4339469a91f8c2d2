"""Layer names from the names of nodes and variables, as TensorFlow and Keras compose them.

A node's name is a path of scopes. Before the layer stand call and loop bodies (`while/body/_12/...`), gradient scopes (`gradient_tape`)
and scopes that hold all layers (`sequential_1`); behind it stand the op and its parts. TensorFlow makes scopes unique by `_1`, `_2`, so
`shared_1/MatMul` may be of the layer `shared`; only a variable that it computes with can tell.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from itertools import product

_BODY_NUMBER = re.compile(r"_\d+")
_BODY = re.compile(r"body|cond|then|else|branch_?\d*|true|false")
_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")
_GRADIENTS = re.compile(r"gradient_tape|gradients(_\d+)?")
_SUFFIX = re.compile(r"_\d+$")

Path = tuple[str, ...]


def inner_name(name: str) -> str:
    """A node's name without the calls and loop or branch bodies around it, which repeat the scopes they stand in.

    `lstm/while/body/_12/lstm/while/MatMul` is `lstm/while/MatMul`; `cond/then/_0/MatMul`, whose body repeats none, is `cond/MatMul`.
    """
    parts = [part for part in name.removeprefix("Func/").split("/") if not _CALL.fullmatch(part)] or name.split("/")
    for place in range(len(parts) - 2, 0, -1):
        if _BODY_NUMBER.fullmatch(parts[place]) and _BODY.fullmatch(parts[place - 1]):
            before, after = parts[: place - 1], parts[place + 1 :]
            own = [part for part in before if not _GRADIENTS.fullmatch(part)]
            repeats = len(after) > 1 and bool(own) and (after[0] == own[0] or bool(_GRADIENTS.fullmatch(after[0])))
            return "/".join(after if repeats else before + after)
    return "/".join(parts)


def without_gradient(parts: Path) -> Path:
    """The path after the last gradient scope; unchanged without one."""
    for place in range(len(parts) - 1, -1, -1):
        if _GRADIENTS.fullmatch(parts[place]):
            return parts[place + 1 :]
    return parts


def forward_name(inner: str, known: Container[str]) -> str:
    """The name of the node whose gradient `inner` is, by its name; empty if that is none of `known`.

    Both spellings: `gradient_tape/fc6/MatMul/MatMul_1` and `gradients/fc6/MatMul_grad/MatMul_1` are of `fc6/MatMul`, and
    `gradient_tape/conv1/Conv2DBackpropFilter`, whose forward op the name leaves out, is of `conv1/Conv2D`.
    """
    parts = tuple(inner.split("/"))
    rest = without_gradient(parts)
    if rest == parts:
        return ""
    for place, part in enumerate(rest):
        if part.endswith("_grad"):
            name = "/".join((*rest[:place], part.removesuffix("_grad")))
            return name if name in known else ""
    for end in range(len(rest) - 1, 0, -1):
        name = "/".join(rest[:end])
        if name in known:
            return name
    last = re.sub(r"(Backprop(Input|Filter)(V2)?|Grad(V\d)?)(?=(_\d+)?$)", "", rest[-1])
    name = "/".join((*rest[:-1], last))
    return name if last != rest[-1] and name in known else ""


class LayerScopes:
    """Which scope is which layer: known from variables at first, then learnt from nodes that compute with them."""

    def __init__(self, variables: Sequence[str], trainable: Sequence[bool], serves: Sequence[int], nodes: Iterable[str]) -> None:
        """Names of all variables, whether each is trained, and the variable that it is or serves as a slot (below 0 for none).

        `nodes` are the inner names of all nodes: a scope of that name holds the parts of an op and is no layer.
        """
        self._nodes = frozenset(nodes)
        scopes = [tuple(name.partition(":")[0].split("/")[:-1]) for name in variables]
        is_weight = trainable if any(trainable) else [True] * len(scopes)
        trained = [scope for scope, is_one in zip(scopes, is_weight, strict=True) if is_one and scope]
        shared = _shared_prefix(trained)
        own = [scope[shared:] if scope in trained else scope for scope in scopes]
        self.layer_of_variable: list[str] = []
        """The layer of each variable; a slot has the layer of the variable it serves."""
        for variable, served in enumerate(serves):
            self.layer_of_variable.append("/".join(own[served if served >= 0 else variable]))
        self._prefixes: set[Path] = set()
        for scope in trained:
            self._add_layer(scope[shared:])
        self._layer_of_scope: dict[Path, str] = {}
        self._ambiguous: set[Path] = set()
        self._containers: set[Path] = {scope[:shared] for scope in trained if shared}

    def learn(self, inner: str, layer: str) -> None:
        """A node of this name computes with a variable of this layer: its scope stands for the layer."""
        scope = tuple(inner.split("/")[:-1])
        layer_path = tuple(layer.split("/"))
        self._add_layer(layer_path)
        if not scope or not _alike(scope[-1], layer_path[-1]):
            return
        if self._layer_of_scope.setdefault(scope, layer) != layer:
            self._ambiguous.add(scope)
        for place, part in enumerate(scope):
            if _alike(part, layer_path[0]):
                self._containers.add(scope[:place])
                break

    def _add_layer(self, path: Path) -> None:
        self._prefixes.update(path[:end] for end in range(1, len(path) + 1))

    def layer_of_name(self, inner: str) -> str:
        """The layer of a node by its name; empty if its name has no scope but those that hold all layers.

        The longest scope that a layer's variables prove, else the longest that some layer lies in (one of exactly that name before one
        that TensorFlow may have numbered), else the outermost scope.
        """
        scope = without_gradient(tuple(inner.split("/"))[:-1])
        scope = tuple(part.removesuffix("_grad") if part.endswith("_grad") else part for part in scope)
        for end in range(len(scope), 0, -1):
            known = scope[:end]
            if known in self._layer_of_scope and known not in self._ambiguous:
                return self._layer_of_scope[known]
        inside = self._inside(self._without_op(tuple(inner.split("/"))[:-1], scope))
        for end in range(len(inside), 0, -1):
            for path in product(*(dict.fromkeys((part, _SUFFIX.sub("", part))) for part in inside[:end])):
                if path in self._prefixes:
                    return "/".join(path)
        return inside[0] if inside else ""

    def _without_op(self, full: Path, scope: Path) -> Path:
        """The scope without trailing names of ops, whose parts lie in scopes of their own: `MatMul/ReadVariableOp`."""
        while scope and ("/".join(full) in self._nodes or "/".join(scope) in self._nodes):
            full, scope = full[:-1], scope[:-1]
        return scope

    def _inside(self, scope: Path) -> Path:
        """The scope below the longest one that holds all layers."""
        for end in range(len(scope), 0, -1):
            if scope[:end] in self._containers:
                return scope[end:]
        return scope


def _alike(scope: str, layer: str) -> bool:
    """True for the same name, but for what TensorFlow adds to make a scope unique."""
    return scope == layer or _SUFFIX.sub("", scope) == layer


def _shared_prefix(scopes: Sequence[Path]) -> int:
    """How many leading scopes all layers share, such that each keeps a name of its own."""
    if not scopes:
        return 0
    length = 0
    while all(len(scope) > length + 1 for scope in scopes) and len({scope[length] for scope in scopes}) == 1:
        length += 1
    return length
