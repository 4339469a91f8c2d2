"""A small training step by hand, as TensorFlow writes one: two convolutions, a dense layer, weight decay, gradients, an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.handmade import Hand, Shape, Value

SHAPES: dict[str, Shape] = {
    "conv1_1/kernel": (3, 3, 3, 4),
    "conv1_1/bias": (4,),
    "conv1_2/kernel": (3, 3, 4, 4),
    "conv1_2/bias": (4,),
    "fc6/kernel": (64, 5),
    "fc6/bias": (5,),
}


@dataclass
class Training:
    """The step's parts as they are built. `rename` changes every node name, so that names can be made to say nothing."""

    hand: Hand = field(default_factory=Hand)
    prefix: str = ""
    gradients: str = "gradient_tape/"
    variables: dict[str, tuple[int, Value]] = field(default_factory=dict)
    slots: dict[str, tuple[int, Value]] = field(default_factory=dict)
    complete: dict[str, Value] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """A node's name in this step."""
        return (
            self.prefix + name if not name.startswith(self.gradients) else self.gradients + self.prefix + name[len(self.gradients) :]
        )

    def op(self, name: str, op: str, *inputs: Value, shape: Shape = (), **more: object) -> Value:
        return self.hand.op(self.name(name), op, *inputs, shape=shape, **more)  # type: ignore[arg-type]

    def declare(self, slots: bool = True) -> None:
        for name, shape in SHAPES.items():
            self.variables[name] = self.hand.variable(name, shape)
        for name, shape in SHAPES.items():
            of = self.variables[name][0]
            known = {"slot_of": of, "slot_name": "momentum"} if slots else {}
            self.slots[name] = self.hand.variable(f"optimizer/{name}/momentum", shape, trainable=False, **known)  # type: ignore[arg-type]

    def read(self, name: str, scope: str) -> Value:
        return self.hand.read(self.name(f"{scope}/ReadVariableOp"), self.variables[name], SHAPES[name])

    def forward_and_backward(self) -> None:
        """Two convolutions with bias and ReLU, a dense layer, cross-entropy plus weight decay, and all gradients."""
        grad = self.gradients
        x, label = self.hand.feed("image", (2, 4, 8, 3)), self.hand.feed("label", (2,), "int32", "label")
        inputs: dict[str, Value] = {}
        kernels: dict[str, Value] = {}
        outputs: dict[str, Value] = {}
        size = (2, 4, 8, 4)
        for name in ("conv1_1", "conv1_2"):
            inputs[name], kernels[name] = x, self.read(f"{name}/kernel", f"{name}/Conv2D")
            y = self.op(f"{name}/Conv2D", "Conv2D", x, kernels[name], shape=size)
            y = self.op(f"{name}/BiasAdd", "BiasAdd", y, self.read(f"{name}/bias", f"{name}/BiasAdd"), shape=size)
            x = outputs[name] = self.op(f"{name}/Relu", "Relu", y, shape=size)
        pooled = self.op("pool1/MaxPool", "MaxPool", x, shape=(2, 4, 4, 4), ksize=[1, 1, 2, 1])
        flat = self.op("fc6/Reshape", "Reshape", pooled, self.hand.const(self.name("fc6/Reshape/shape"), (2,), "int32"), shape=(2, 64))
        kernels["fc6"] = self.read("fc6/kernel", "fc6/MatMul")
        dense = self.op("fc6/MatMul", "MatMul", flat, kernels["fc6"], shape=(2, 5))
        logits = self.op("fc6/BiasAdd", "BiasAdd", dense, self.read("fc6/bias", "fc6/BiasAdd"), shape=(2, 5))
        entropy = self.op(
            "loss/SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", logits, label,
            outputs=[("float32", (2,)), ("float32", (2, 5))],
        )  # fmt: skip
        mean = self.op("loss/Mean", "Mean", entropy, self.hand.const(self.name("loss/Const"), (1,), "int32"))
        decayed = {name: self.read(f"{name}/kernel", f"loss/L2Loss_{name}") for name in kernels}
        penalty = self.op("loss/AddN", "AddN", *(self.op(f"loss/L2Loss_{name}", "L2Loss", value) for name, value in decayed.items()))
        factor = self.hand.const(self.name("loss/mul/y"))
        loss = self.op("loss/add", "AddV2", mean, self.op("loss/mul", "Mul", penalty, factor))
        self.hand.fetch(loss, "loss")
        self.hand.fetch(logits, "logits")

        one = self.hand.const(self.name(f"{grad}ones"))
        decay = self.op(f"{grad}loss/mul/Mul", "Mul", one, factor)
        penalties = {n: self.op(f"{grad}loss/mul_{n}", "Mul", v, decay, shape=SHAPES[f"{n}/kernel"]) for n, v in decayed.items()}
        spread = self.op(f"{grad}loss/Tile", "Tile", one, self.hand.const(self.name(f"{grad}loss/Const"), (1,), "int32"), shape=(2, 1))
        backprop = Value(entropy.node, entropy.execution, 1)
        dy = self.op(f"{grad}loss/SparseSoftmaxCrossEntropyWithLogits/mul", "Mul", spread, backprop, shape=(2, 5))
        self.complete["fc6/bias"] = self.op(f"{grad}fc6/BiasAdd/BiasAddGrad", "BiasAddGrad", dy, shape=(5,))
        dx = self.op(f"{grad}fc6/MatMul/MatMul", "MatMul", dy, kernels["fc6"], shape=(2, 64), transpose_b=True)
        dw = self.op(f"{grad}fc6/MatMul/MatMul_1", "MatMul", flat, dy, shape=(64, 5), transpose_a=True)
        self.complete["fc6/kernel"] = self.op("AddN_fc6", "AddN", penalties["fc6"], dw, shape=(64, 5))
        dy = self.op(
            f"{grad}fc6/Reshape", "Reshape", dx, self.hand.const(self.name(f"{grad}fc6/Shape"), (4,), "int32"), shape=(2, 4, 4, 4)
        )
        dy = self.op(f"{grad}pool1/MaxPool/MaxPoolGrad", "MaxPoolGrad", outputs["conv1_2"], pooled, dy, shape=size, ksize=[1, 1, 2, 1])
        for name in ("conv1_2", "conv1_1"):
            dy = self.op(f"{grad}{name}/ReluGrad", "ReluGrad", dy, outputs[name], shape=size)
            self.complete[f"{name}/bias"] = self.op(f"{grad}{name}/BiasAdd/BiasAddGrad", "BiasAddGrad", dy, shape=(4,))
            kernel = SHAPES[f"{name}/kernel"]
            sizes = self.op(f"{grad}{name}/ShapeN", "ShapeN", inputs[name], kernels[name], outputs=[("int32", (4,)), ("int32", (4,))])
            second = Value(sizes.node, sizes.execution, 1)
            dw = self.op(f"{grad}{name}/Conv2DBackpropFilter", "Conv2DBackpropFilter", inputs[name], second, dy, shape=kernel)
            self.complete[f"{name}/kernel"] = self.op(f"AddN_{name}", "AddN", penalties[name], dw, shape=kernel)
            if name == "conv1_2":
                dy = self.op(f"{grad}{name}/Conv2DBackpropInput", "Conv2DBackpropInput", sizes, kernels[name], dy, shape=size)

    def clip(self) -> None:
        """Clip all gradients by their global norm."""
        squares = [self.op(f"clip/L2Loss_{i}", "L2Loss", value) for i, value in enumerate(self.complete.values())]
        packed = self.op("clip/stack", "Pack", *squares, shape=(len(squares),))
        norm = self.op("clip/Sqrt", "Sqrt", self.op("clip/Sum", "Sum", packed, self.hand.const(self.name("clip/axis"), (1,), "int32")))
        scale = self.op("clip/truediv", "RealDiv", self.hand.const(self.name("clip/limit")), norm)
        self.complete = {k: self.op(f"clip/mul_{k}", "Mul", v, scale, shape=SHAPES[k]) for k, v in self.complete.items()}
        self.hand.fetch(norm, "gradient_norm")

    def momentum(self) -> None:
        """One fused update a variable."""
        rate, factor = self.hand.const(self.name("optimizer/learning_rate")), self.hand.const(self.name("optimizer/momentum"))
        for name, gradient in self.complete.items():
            row, handle = self.variables[name]
            slot, slot_handle = self.slots[name]
            self.op(
                f"optimizer/{name}", "ResourceApplyMomentum", handle, slot_handle, rate, gradient, factor, outputs=[],
                reads=[row, slot], writes=[row, slot],
            )  # fmt: skip

    def counter(self) -> None:
        """A step counter that nothing reads."""
        row, handle = self.hand.variable("optimizer/iterations", (), trainable=False)
        value = self.hand.read(self.name("optimizer/Add/ReadVariableOp"), (row, handle), ())
        more = self.op("optimizer/Add", "AddV2", value, self.hand.const(self.name("optimizer/one")))
        self.op("optimizer/AssignVariableOp", "AssignVariableOp", handle, more, outputs=[], writes=[row])


def step(clip: bool = False, prefix: str = "") -> Training:
    """A whole step with the fused optimizer."""
    made = Training(prefix=prefix)
    made.declare()
    made.forward_and_backward()
    if clip:
        made.clip()
    made.momentum()
    made.counter()
    return made
