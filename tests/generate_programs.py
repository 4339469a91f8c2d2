"""Small random TensorFlow programs, each from a seed: loops, branches, calls, lists, variables, gradients, drawn numbers.

A program keeps one [rows, columns] float64 matrix and sends it through statements. Two habits make its results hang on every edge of
its trace: numbers are irrational-looking and ops mostly do not commute; and whatever decides a branch or a trip count is also mixed
into the matrix, since a comparison alone shows only one bit of what it read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

FAMILIES = ("branches", "loops", "nested", "gradients", "variables", "calls", "random", "mixed")


@dataclass
class Generated:
    """A program ready to capture. `variables` are kept because a concrete function does not keep them alive."""

    concrete: Any
    variables: list[Any]
    seed: int
    shape: tuple[int, int]

    def batches(self) -> Iterator[dict[str, Any]]:
        """Fresh inputs for every step: trip counts and branches differ from step to step."""
        rng = np.random.default_rng([self.seed, 1])
        columns = self.shape[1]
        while True:
            yield {
                "x": rng.normal(size=self.shape),
                "u": rng.normal(size=self.shape),
                "w": rng.normal(size=(columns, columns)) * 0.6,
                "counts": rng.integers(0, 4, 4).astype(np.int32),
                "flags": rng.integers(0, 2, 4).astype(bool),
            }

    def constants(self) -> dict[str, Any]:
        """Every constant array of the program, by the SHA-256 digest of its bytes: what a trace does not keep."""
        definition = self.concrete.graph.as_graph_def()
        found = {}
        for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
            for node in nodes:
                if node.op == "Const" and node.attr["dtype"].type not in (tf.string.as_datatype_enum, tf.variant.as_datatype_enum):
                    array = tf.make_ndarray(node.attr["value"].tensor)
                    found[hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()] = array
        return found


def generate(family: str, seed: int) -> Generated:
    """The program of a family and seed."""
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    rows, columns = ((2, 3), (3, 2), (2, 4), (4, 3))[rng.integers(4)]
    writer = Writer(rng, rows, columns, seed=seed, turn=7 * seed)
    for name in ("memory", "trail"):
        writer.variables[name] = tf.Variable(rng.normal(size=(rows, columns)), trainable=False, name=name)
    writer.variables["kernel"] = tf.Variable(rng.normal(size=(columns, columns)) * 0.6, name="kernel")
    writer.variables["slot"] = tf.Variable(rng.normal(size=(columns, columns)) * 0.1, trainable=False, name="slot")

    def program(x: Any, u: Any, w: Any, counts: Any, flags: Any) -> dict[str, Any]:
        writer.given = {"u": u, "w": w, "counts": counts, "flags": flags}
        WRITERS[family](writer, x)
        return writer.outputs

    specs = {
        "x": tf.TensorSpec([rows, columns], tf.float64),
        "u": tf.TensorSpec([rows, columns], tf.float64),
        "w": tf.TensorSpec([columns, columns], tf.float64),
        "counts": tf.TensorSpec([4], tf.int32),
        "flags": tf.TensorSpec([4], tf.bool),
    }
    concrete = tf.function(program, autograph=False).get_concrete_function(**specs)
    return Generated(concrete, list(writer.variables.values()), int(rng.integers(2**31)), (rows, columns))


def tame(x: Any) -> Any:
    """Keeps numbers near one without flattening them."""
    return x * tf.math.rsqrt(0.3 + tf.reduce_mean(x * x))


@dataclass
class Writer:
    """Writes statements: each takes the matrix and returns the next one. All ops have their turn, program after program."""

    rng: Any
    rows: int
    columns: int
    variables: dict[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    is_smooth: bool = False
    seed: int = 0
    turn: int = 0

    # --- numbers ----------------------------------------------------------------------------------------------------------------

    def number(self, low: float = 0.2, high: float = 0.9) -> float:
        return float(self.rng.uniform(low, high))

    def one_of(self, *items: Any) -> Any:
        return items[self.rng.integers(len(items))]

    def array(self, *shape: int) -> Any:
        return tf.constant(self.rng.normal(size=shape))

    def score(self, x: Any) -> Any:
        """A number between -1 and 1 that any element of the matrix moves."""
        return tf.sin(tf.reduce_sum(x * self.array(*x.shape)) * 3.0)

    def straight(self, x: Any, count: int = 0) -> Any:
        ops = SMOOTH_OPS if self.is_smooth else OTHER_OPS + SMOOTH_OPS
        for _ in range(count or self.rng.integers(1, 4)):
            x = ops[self.turn % len(ops)](self, x)
            self.turn += 1
        return tame(x)

    # --- branches ---------------------------------------------------------------------------------------------------------------

    def branch(self, x: Any, inside: Callable[[Any], Any] | None = None) -> Any:
        """Taken from data; one side costs more than the other."""
        dear = self.rng.integers(2)
        if self.rng.random() < 0.25:
            taken = self.given["flags"][int(self.rng.integers(4))]
        else:
            p = self.score(x)
            x = x + p * self.number()
            taken = p > self.number(-0.3, 0.3)

        def side(k: int) -> Any:
            y = self.straight(x, 3 if k == dear else 1)
            return inside(y) if inside and k == dear else y

        return tf.cond(taken, lambda: side(1), lambda: side(0))

    def case(self, x: Any, inside: Callable[[Any], Any] | None = None) -> Any:
        """One of three, by an index from data."""
        t = (self.score(x) + 1.0) * 1.499
        x = x + t * self.number()

        def side(k: int) -> Any:
            y = self.straight(x, k + 1)
            return inside(y) if inside else y

        return tf.switch_case(tf.cast(tf.floor(t), tf.int32), [lambda k=k: side(k) for k in range(3)])

    # --- loops ------------------------------------------------------------------------------------------------------------------

    def trips(self, x: Any, outer: Any = None) -> tuple[Any, Any]:
        """A trip count from what is fed or computed, and the matrix that it was mixed into."""
        kind = self.rng.integers(3)
        if kind == 0 or (kind == 1 and outer is None):
            return self.given["counts"][int(self.rng.integers(4))], x
        if kind == 1:
            return (outer + self.given["counts"][int(self.rng.integers(4))]) % 3, x
        t = tf.abs(self.score(x)) * 2.99
        return tf.cast(tf.floor(t), tf.int32), x + t * self.number()

    def loop(self, x: Any, body: Callable[[Any, Any], Any] | None = None, outer: Any = None) -> Any:
        """A while loop of as many trips as `trips` says, or until the data says stop."""
        inner = body or (lambda y, i: self.branch(y) if self.rng.random() < 0.6 else self.straight(y))
        step = self.number()
        is_by_data = self.rng.random() < 0.3
        limit, x = (tf.constant(4), x) if is_by_data else self.trips(x, outer)

        def turn(go: Any, i: Any, y: Any) -> tuple[Any, Any, Any]:
            y, after = inner(y, i), i + 1
            y = y + tf.cast(after, tf.float64) * step
            go = after < limit
            if is_by_data:
                p = self.score(y)
                y = tame(y + p * step)
                go = tf.logical_and(go, p > -0.6)
            return go, after, y

        most = 3 if self.rng.random() < 0.2 else None
        start = tf.constant(0)
        _, i, x = tf.while_loop(
            lambda go, i, y: go,
            turn,
            (start < limit, start, x),
            maximum_iterations=most,
            parallel_iterations=int(self.rng.integers(1, 11)),
        )
        return x + tf.cast(i, tf.float64) * step

    def nest(self, x: Any) -> Any:
        """A loop in a loop, the inner one's trips hanging on the outer one's data; sometimes one more."""
        third = self.rng.random() < 0.3 and not self.is_smooth

        def innermost(y: Any, i: Any) -> Any:
            return self.loop(y, lambda z, j: self.straight(z, 1), i) if third else self.branch(y)

        def middle(y: Any, i: Any) -> Any:
            y = self.loop(y, innermost, i)
            return self.branch(y) if self.rng.random() < 0.5 else self.straight(y, 1)

        return self.loop(x, middle)

    # --- calls and lists --------------------------------------------------------------------------------------------------------

    def call(self, x: Any) -> Any:
        """One function called twice, and from within another."""
        inner = tf.function(lambda a, b: self.branch(self.straight(a, 2) - b * 0.7), autograph=False)
        outer = tf.function(lambda a, b: inner(b, self.straight(a, 1)) * 0.9 - a, autograph=False)
        x = inner(x, self.given["u"])
        return tame(outer(x, inner(self.given["u"], x)))

    def row_function(self) -> Callable[[Any], Any]:
        has_branch, scale, shift = self.rng.random() < 0.5, self.number(), self.array(self.columns)

        def function(row: Any) -> Any:
            row = tf.sin(row * scale) - shift
            if not has_branch:
                return tf.cumsum(row)
            p = self.score(row)
            row = row + p * scale
            return tf.cond(p > 0.0, lambda: tf.nn.softplus(row) - shift * row, lambda: row * 0.7)

        return function

    def call_inside(self, x: Any) -> Any:
        """A function called in a loop, and a loop in a branch."""
        inner = tf.function(lambda a, b: self.branch(a) - b * 0.7, autograph=False)
        if self.rng.random() < 0.5:
            return self.loop(x, lambda y, i: tame(inner(y, self.given["u"])))
        return self.branch(x, lambda y: self.loop(y, lambda z, i: self.straight(z, 1)))

    def mapped(self, x: Any) -> Any:
        function = self.row_function()
        if self.rng.random() < 0.5:
            return tame(tf.map_fn(function, x))
        both = tf.map_fn(lambda pair: function(pair[0]) - pair[1] * 0.3, (x, self.given["u"]), fn_output_signature=tf.float64)
        return tame(both)

    def scanned(self, x: Any) -> Any:
        function, decay = self.row_function(), self.number()
        kind = self.rng.integers(3)
        if kind == 0:
            return tame(tf.scan(lambda a, row: function(row) - a * decay, x))
        if kind == 1:
            return tame(tf.scan(lambda a, row: function(row) - a * decay, x, initializer=self.array(self.columns), reverse=True))
        return tame(x - tf.foldl(lambda a, row: function(row) - a * decay, x, initializer=self.array(self.columns)))

    def listed(self, x: Any) -> Any:
        """Rows written to a TensorArray one by one, last first, and taken out in different ways."""
        scale, kind = self.number(), self.seed % 4
        shape = [1, self.columns] if kind == 1 else [self.columns]
        rows = tf.TensorArray(tf.float64, 1, dynamic_size=True, element_shape=shape, clear_after_read=False)
        if kind == 3:
            rows = rows.scatter(tf.constant(self.rng.permutation(self.rows).astype(np.int32)), x * scale)

        def turn(i: Any, held: Any, carry: Any) -> tuple[Any, Any, Any]:
            carry = tf.sin(carry * scale) - tf.gather(x, i)
            return i - 1, held.write(i, tf.reshape(carry, shape)), carry

        first = tf.constant(self.rows - 1 - kind // 3)
        _, rows, carry = tf.while_loop(lambda i, held, carry: i >= 0, turn, (first, rows, self.array(self.columns)))
        if kind == 0:
            taken = rows.gather(tf.constant(self.rng.permutation(self.rows).astype(np.int32)))
        else:
            taken = rows.concat() if kind == 1 else rows.stack()
        taken = tf.reshape(taken, [self.rows, self.columns])
        return tame(taken * 0.5 - tf.reshape(rows.read(int(self.rng.integers(self.rows))), [self.columns]) + carry * scale)

    # --- variables --------------------------------------------------------------------------------------------------------------

    def remember(self, x: Any) -> Any:
        """Read, write, read: each kind of access, in an order that only control dependencies keep."""
        v = self.variables[self.one_of("memory", "trail")]
        kind = self.rng.integers(6)
        a, b = self.number(), self.number()
        if kind == 0:
            x = x - v * a
            v.assign(tf.sin(x) - v * b)
            return tame(x * v + a)
        if kind == 1:
            before = v.read_value()
            v.assign_add(x * a)
            return tame(v - before * b * x)
        if kind == 2:
            v.assign_sub(x * a)
            x = tame(x + v * b)
            v.assign(x * a)
            return x
        if kind == 3:
            other = self.variables["trail" if v is self.variables["memory"] else "memory"]
            kept = v.read_value()
            v.assign(other * a - x)
            other.assign(kept * b)
            return tame(x - v * other)
        if kind == 4:
            order = tf.constant(self.rng.permutation(self.rows).astype(np.int32))
            x = x - tf.gather(v, order) * a
            tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=order[:1], updates=x[:1] * b)
            return tame(x * b + v)
        v.assign(self.straight(x, 1))
        v.assign_add(v * a)
        return tame(x * b - v)

    def remember_inside(self, x: Any) -> Any:
        """Accesses in a branch, a loop or a call."""
        kind = self.rng.integers(7)
        if kind == 0:
            return self.branch(x, self.remember)
        if kind == 1:
            return self.loop(x, lambda y, i: self.remember(y))
        if kind == 2:
            return self.loop(x, lambda y, i: self.branch(self.remember(y), self.remember))
        if kind == 3:
            return self.case(x, self.remember)
        if kind == 4:
            return self.loop(x, lambda y, i: self.loop(self.remember(y), lambda z, j: self.remember(z), i))
        if kind == 5:
            return self.until(x)
        return tame(tf.function(self.remember, autograph=False)(x))

    def until(self, x: Any) -> Any:
        """A loop whose condition itself reads a variable that its body writes."""
        v, scale, weights = self.variables["memory"], self.number(), self.array(self.rows, self.columns)

        def turn(i: Any, y: Any) -> tuple[Any, Any]:
            v.assign(tf.sin(v * 1.3) - y * scale)
            y = tame(y * scale - v)
            return i + 1, y + tf.cast(i + 1, tf.float64) * scale

        return tf.while_loop(lambda i, y: tf.logical_and(i < 4, tf.reduce_sum(v * weights) > -1.0), turn, (tf.constant(0), x))[1]

    # --- gradients --------------------------------------------------------------------------------------------------------------

    def descend(self, x: Any, body: Callable[[Any], Any], is_output: bool = True) -> Any:
        """Gradients of a loss of `body` by the matrix and a trained variable, and the update of that variable."""
        kernel, slot = self.variables["kernel"], self.variables["slot"]
        was_smooth, self.is_smooth = self.is_smooth, True
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = body(tf.matmul(x, kernel) * 0.8 - x)
            loss = tf.reduce_sum(tf.sin(y * self.array(self.rows, self.columns) + 0.4))
        of_x, of_kernel = tape.gradient(loss, [x, kernel])
        self.is_smooth = was_smooth
        rate = tf.constant(self.number(0.05, 0.2), tf.float64)
        if self.rng.random() < 0.5:
            tf.raw_ops.ResourceApplyGradientDescent(var=kernel.handle, alpha=rate, delta=of_kernel)
        else:
            decay = tf.constant(self.number(), tf.float64)
            tf.raw_ops.ResourceApplyMomentum(var=kernel.handle, accum=slot.handle, lr=rate, grad=of_kernel, momentum=decay)
        if is_output:
            self.outputs["loss"], self.outputs["gradient"] = loss, of_x
        return tame(x - of_x * 0.3 + tf.matmul(x, kernel))

    # --- drawn numbers ----------------------------------------------------------------------------------------------------------

    def draw(self, kind: int, name: str) -> Any:
        if kind == 0:
            return tf.raw_ops.RandomStandardNormal(shape=[self.rows, self.columns], dtype=tf.float64, name=name)
        return tf.raw_ops.RandomUniform(shape=[self.rows, self.columns], dtype=tf.float64, name=name)

    def noise(self, x: Any) -> Any:
        """Random numbers once, in every iteration of a loop, or as a trip count. Each is fetched under the name of its op."""
        kind, scale, name = int(self.rng.integers(2)), self.number(), f"drawn_{len(self.outputs)}"
        place = self.rng.integers(3)
        if place == 0:
            self.outputs[name] = drawn = self.draw(kind, name)
            return tame(x - drawn * scale)
        if place == 1:
            low, high = tf.constant(0), tf.constant(4)
            self.outputs[name] = limit = tf.raw_ops.RandomUniformInt(shape=tf.zeros([0], tf.int32), minval=low, maxval=high, name=name)
            return tf.while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, self.branch(y)), (low, x))[1]
        limit = self.given["counts"][int(self.rng.integers(4))]
        drawn = tf.TensorArray(tf.float64, limit, element_shape=[self.rows, self.columns])

        def turn(i: Any, y: Any, held: Any) -> tuple[Any, Any, Any]:
            fresh = self.draw(kind, name)
            return i + 1, self.branch(tame(y * 0.8 - fresh * scale)), held.write(i, fresh)

        _, x, drawn = tf.while_loop(lambda i, y, held: i < limit, turn, (tf.constant(0), x, drawn))
        self.outputs[name] = drawn.stack()
        return x


def _sequence(*choices: Callable[[Writer, Any], Any], least: int = 2, most: int = 3) -> Callable[[Writer, Any], None]:
    """A program of a few statements, each one of `choices`; the first comes first in every program."""

    def write(writer: Writer, x: Any) -> None:
        for k in range(int(writer.rng.integers(least, most + 1))):
            x = (choices[0] if k == 0 else writer.one_of(*choices))(writer, x)
        writer.outputs["y"] = writer.straight(x, 1)

    return write


def _in_turn(*choices: Callable[[Writer, Any], Any]) -> Callable[[Writer, Any], None]:
    """A program of three statements, which begins with another one of `choices` for each seed."""

    def write(writer: Writer, x: Any) -> None:
        for k in range(3):
            x = choices[(writer.seed + k) % len(choices)](writer, x)
        writer.outputs["y"] = writer.straight(x, 1)

    return write


def _descent(writer: Writer, x: Any) -> None:
    bodies: list[Callable[[Any], Any]] = [
        writer.loop,
        lambda y: writer.case(writer.loop(y)),
        lambda y: writer.mapped(writer.branch(y)),
        writer.nest,
        lambda y: writer.scanned(writer.loop(y)),
    ]
    writer.outputs["y"] = writer.descend(x, bodies[writer.seed % len(bodies)])


def _training_loop(writer: Writer, x: Any) -> Any:
    """Gradients taken and applied in every iteration."""
    return writer.loop(x, lambda y, i: writer.descend(y, lambda z: writer.branch(z), is_output=False))


def _mixed(writer: Writer, x: Any) -> None:
    first = writer.one_of(_training_loop, Writer.remember_inside, Writer.noise, Writer.nest)
    x = first(writer, x)
    x = writer.one_of(Writer.call, Writer.mapped, Writer.case, Writer.scanned, Writer.remember)(writer, x)
    writer.outputs["y"] = writer.straight(x)


WRITERS: dict[str, Callable[[Writer, Any], None]] = {
    "branches": _sequence(Writer.branch, Writer.case, least=3, most=4),
    "loops": _sequence(Writer.loop, Writer.loop, Writer.branch),
    "nested": _sequence(Writer.nest, Writer.loop, least=1, most=2),
    "gradients": _descent,
    "variables": _sequence(Writer.remember_inside, Writer.remember, least=2, most=3),
    "calls": _in_turn(Writer.call, Writer.mapped, Writer.scanned, Writer.listed, Writer.call_inside),
    "random": _sequence(Writer.noise, Writer.noise, Writer.branch),
    "mixed": _mixed,
}


# --- ops --------------------------------------------------------------------------------------------------------------------------


def _permutation(g: Writer, count: int) -> Any:
    return g.rng.permutation(count).astype(np.int32)


def _image(g: Writer, x: Any) -> Any:
    """The matrix through a convolution and max pooling, as an image of one channel."""
    image = tf.nn.conv2d(tf.reshape(x, [1, g.rows, g.columns, 1]), g.array(2, 1, 1, 2), [1, 1, 1, 1], g.one_of("SAME", "VALID"))
    return x - tf.reduce_mean(image) + tf.reduce_sum(image[0, 0, :, 1])


# Gradients are taken through these only. Those of the others are constant by parts, and so would hide what they are taken at.
SMOOTH_OPS: list[Callable[[Writer, Any], Any]] = [
    lambda g, x: tf.tanh(x) * 1.3 - g.given["u"] * g.number(),
    lambda g, x: tf.sin(x * 1.1) + g.number(),
    lambda g, x: tf.sigmoid(x) - x * g.number(),
    lambda g, x: tf.nn.softplus(x) - g.number(),
    lambda g, x: tf.nn.softsign(x) * 1.7 + g.number(),
    lambda g, x: tf.nn.elu(x) - g.number(),
    lambda g, x: tf.nn.selu(x) + g.number(),
    lambda g, x: tf.exp(-x * x) + x * g.number(),
    lambda g, x: tf.sqrt(x * x + 0.5) - x * g.number(),
    lambda g, x: g.number() / (tf.square(x) + 1.0) - x,
    lambda g, x: tf.nn.softmax(x) - x * g.number(),
    lambda g, x: tf.nn.log_softmax(x) * 0.4 - x * g.number(),
    lambda g, x: (
        tf.cumsum(x, axis=int(g.rng.integers(2)), exclusive=bool(g.rng.integers(2)), reverse=bool(g.rng.integers(2))) - x * 0.4
    ),
    lambda g, x: tf.reverse(x, [int(g.rng.integers(2))]) * g.number() - x,
    lambda g, x: tf.matmul(x, g.given["w"]) - x * g.number(),
    lambda g, x: tf.transpose(tf.matmul(g.given["w"], x, transpose_a=True, transpose_b=True)),
    lambda g, x: tf.matmul(tf.matmul(x, g.given["u"], transpose_b=True), x) * 0.3 - x,
    lambda g, x: tf.gather(x, _permutation(g, g.columns), axis=1) - x * g.number(),
    lambda g, x: tf.concat(tf.split(x, g.rows, 0)[::-1], 0) * g.number() - x,
    lambda g, x: tf.pad(x, [[1, 0], [0, 1]])[:-1, 1:] - x * g.number(),
    lambda g, x: tf.stack(tf.unstack(x, axis=1)[::-1], axis=1) - x * g.number(),
    lambda g, x: x - tf.reduce_mean(x, 1, keepdims=True) * g.number(),
    lambda g, x: x - tf.reduce_max(x, 0) * g.number(),
    lambda g, x: tf.tile(x, [1, 2])[:, 1 : g.columns + 1] - x * g.number(),
    lambda g, x: tf.where(x > g.given["u"], x, g.given["u"] * g.number()) + x * 0.2,
    lambda g, x: tf.maximum(x, g.given["u"] * g.number()) - x * 0.2,
    lambda g, x: tf.math.squared_difference(x, g.given["u"]) * 0.4 - x,
    lambda g, x: tf.nn.bias_add(x, g.given["u"][0]) * g.number(),
    lambda g, x: tf.add_n([x, g.given["u"] * g.number(), x * x * 0.3]),
    lambda g, x: x[:, ::-1] * g.number() - x[::-1],
    lambda g, x: tf.squeeze(tf.matmul(tf.expand_dims(x, 0), tf.expand_dims(g.given["w"], 0)), 0) - x,
    lambda g, x: tf.einsum("ij,jk->ik", x, g.given["w"]) - x * g.number(),
    lambda g, x: x / (1.5 + tf.math.atan(x)),
    lambda g, x: x - tf.nn.l2_loss(x) * 0.1,
    lambda g, x: tf.math.log1p(x * x) - x * g.number(),
    _image,
]

OTHER_OPS: list[Callable[[Writer, Any], Any]] = [
    lambda g, x: tf.nn.leaky_relu(x, 0.3) - g.number(),
    lambda g, x: tf.nn.relu(x) - x * g.number(),
    lambda g, x: tf.pow(tf.abs(x) + 0.2, g.number(0.7, 1.4)) - x * g.number(),
    lambda g, x: tf.math.floormod(x, g.number()) - x * g.number(),
    lambda g, x: tf.math.erf(x) - g.given["u"] * g.number(),
    lambda g, x: tf.roll(x, [1], [int(g.rng.integers(2))]) * g.number() - x,
    lambda g, x: tf.math.atan2(x, g.given["u"]) - x * 0.3,
    lambda g, x: tf.math.divide_no_nan(x, tf.abs(g.given["u"]) + 0.6),
    lambda g, x: tf.one_hot(tf.argmax(x, 1), g.columns, dtype=tf.float64) * g.number() + x,
    lambda g, x: tf.math.top_k(x, g.columns)[0] * g.number() - x,
    lambda g, x: tf.math.segment_sum(x, [0] * (g.rows - 1) + [1])[1] * g.number() - x,
    lambda g, x: tf.math.unsorted_segment_sum(x, _permutation(g, g.rows) % 2, 3)[1] - x * g.number(),
    lambda g, x: tf.tensor_scatter_nd_update(x, [[1]], x[:1] * g.number()) - x * 0.3,
    lambda g, x: tf.scatter_nd([[1], [0]], x[:2] * g.number(), [g.rows, g.columns]) - x,
    lambda g, x: tf.gather_nd(x, [[1, 0]]) * g.number() - x,
    lambda g, x: tf.clip_by_value(x, -1.1, 1.2) - x * g.number(),
    lambda g, x: tf.cast(tf.cast(x * 4.3, tf.int32) % 3, tf.float64) * 0.2 - x,
    lambda g, x: tf.linalg.band_part(x, 0, -1) * g.number() - x,
    lambda g, x: tf.math.expm1(x * 0.4) - tf.math.asinh(g.given["u"]) * 0.4,
    lambda g, x: tf.reduce_prod(tf.abs(x) + 0.5, 1, keepdims=True) * 0.2 - x,
    lambda g, x: x - tf.cast(tf.reduce_any(x > 0.7, 1, keepdims=True), tf.float64) * g.number(),
    lambda g, x: tf.reduce_sum(tf.boolean_mask(x, x > 0.2)) * g.number(0.05, 0.1) - x,
    lambda g, x: tf.broadcast_to(tf.reduce_min(x, 1, keepdims=True), [g.rows, g.columns]) - x * g.number(),
]
