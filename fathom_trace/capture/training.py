"""What workloads share that needs TensorFlow: variables from their parameters, fused optimisers, the steps of a classifier.

The fused ops (`ResourceApply*`) are used directly because the op types of a step are what a trace measures: a Keras optimiser
would spell one update as a handful of elementwise ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import tensorflow as tf

from fathom_trace.parameters import Parameter, initial_value
from fathom_trace.workload import Program, Slot


def make_variables(parameters: Iterable[Parameter], seed: int) -> dict[str, Any]:
    """One `tf.Variable` a parameter, by the parameter's name and in its order."""
    return {
        p.name: tf.Variable(partial(initial_value, p, seed), shape=p.shape, dtype=tf.float32, trainable=p.trainable, name=p.name)
        for p in parameters
    }


def plain_name(variable: Any) -> str:
    """The name that the workload gave a variable, without TensorFlow's output number."""
    return str(variable.name).partition(":")[0]


@dataclass(frozen=True)
class Optimizer:
    """`apply(gradients)` adds the update to the step being traced; `slots` and `state` are the variables that it keeps."""

    apply: Callable[[Sequence[Any]], None]
    slots: tuple[Slot, ...]
    state: tuple[Any, ...] = ()


def momentum(variables: Sequence[Any], learning_rate: float, decay: float, use_nesterov: bool = False) -> Optimizer:
    """SGD with momentum: a = decay a + gradient; v = v - learning_rate a. One `ResourceApplyMomentum` a variable.

    Nesterov's form looks ahead: v = v - learning_rate (gradient + decay a) (Sutskever et al., "On the importance of initialization and
    momentum in deep learning", ICML 2013, in the variables at which gradients are taken).
    """
    slots = _slots(variables, "momentum")

    def apply(gradients: Sequence[Any]) -> None:
        with tf.name_scope("optimizer"):
            rate = tf.constant(learning_rate, name="learning_rate")
            factor = tf.constant(decay, name="momentum")
            for slot, gradient in zip(slots, gradients, strict=True):
                tf.raw_ops.ResourceApplyMomentum(
                    var=slot.of.handle,
                    accum=slot.variable.handle,
                    lr=rate,
                    grad=gradient,
                    momentum=factor,
                    use_nesterov=use_nesterov,
                    name=plain_name(slot.of),
                )

    return Optimizer(apply, slots)


def adam(variables: Sequence[Any], learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Adam (Kingma & Ba 2014, arXiv 1412.6980). One `ResourceApplyAdam` a variable; two scalar variables hold the betas' powers."""
    first, second = _slots(variables, "m"), _slots(variables, "v")
    beta1_power = tf.Variable(beta1, dtype=tf.float32, trainable=False, name="optimizer/beta1_power")
    beta2_power = tf.Variable(beta2, dtype=tf.float32, trainable=False, name="optimizer/beta2_power")

    def apply(gradients: Sequence[Any]) -> None:
        with tf.name_scope("optimizer"):
            settings = {
                "lr": tf.constant(learning_rate, name="learning_rate"),
                "beta1": tf.constant(beta1, name="beta1"),
                "beta2": tf.constant(beta2, name="beta2"),
                "epsilon": tf.constant(epsilon, name="epsilon"),
                "beta1_power": beta1_power.read_value(),
                "beta2_power": beta2_power.read_value(),
            }
            for m, v, gradient in zip(first, second, gradients, strict=True):
                tf.raw_ops.ResourceApplyAdam(
                    var=m.of.handle, m=m.variable.handle, v=v.variable.handle, grad=gradient, name=plain_name(m.of), **settings
                )
            beta1_power.assign(settings["beta1_power"] * settings["beta1"])
            beta2_power.assign(settings["beta2_power"] * settings["beta2"])

    return Optimizer(apply, first + second, (beta1_power, beta2_power))


def gradient_descent(variables: Sequence[Any], learning_rate: float) -> Optimizer:
    """Plain SGD: v = v - learning_rate gradient. The rate is a variable, so that it can be lowered between steps.

    One `ResourceApplyGradientDescent` a variable. TensorFlow has no such op for the gradient of some rows (`tf.IndexedSlices`, of what
    is gathered): as in its own optimiser those are a `Mul` and one `ResourceScatterSub`, which adds up rows that occur more than once.
    """
    rate_variable = tf.Variable(learning_rate, dtype=tf.float32, trainable=False, name="optimizer/learning_rate")

    def apply(gradients: Sequence[Any]) -> None:
        with tf.name_scope("optimizer"):
            rate = tf.convert_to_tensor(rate_variable)
            for v, gradient in zip(variables, gradients, strict=True):
                name = plain_name(v)
                if isinstance(gradient, tf.IndexedSlices):
                    rows = tf.multiply(rate, gradient.values, name=f"{name}/step")
                    tf.raw_ops.ResourceScatterSub(resource=v.handle, indices=gradient.indices, updates=rows, name=name)
                else:
                    tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=rate, delta=gradient, name=name)

    return Optimizer(apply, (), (rate_variable,))


def adagrad(variables: Sequence[Any], learning_rate: float, epsilon: float = 1e-7) -> Optimizer:
    """Adagrad (Duchi et al., JMLR 12, 2011): s = s + gradient^2; v = v - learning_rate gradient / (sqrt(s) + epsilon); s begins at 0.

    One `ResourceApplyAdagradV2` a variable.
    """
    slots = _slots(variables, "square_sum")

    def apply(gradients: Sequence[Any]) -> None:
        with tf.name_scope("optimizer"):
            rate = tf.constant(learning_rate, name="learning_rate")
            small = tf.constant(epsilon, name="epsilon")
            for slot, gradient in zip(slots, gradients, strict=True):
                tf.raw_ops.ResourceApplyAdagradV2(
                    var=slot.of.handle, accum=slot.variable.handle, lr=rate, epsilon=small, grad=gradient, name=plain_name(slot.of)
                )

    return Optimizer(apply, slots)


def rmsprop(variables: Sequence[Any], learning_rate: float, decay: float, epsilon: float, is_centered: bool) -> Optimizer:
    """RMSProp without momentum: s = decay s + (1 - decay) gradient^2; v = v - learning_rate gradient / sqrt(s + epsilon).

    The centred form (Graves, arXiv 1308.0850, equations 38 to 42) keeps the mean gradient m as well and has s - m^2 in the place of s.
    All begin at 0. One `ResourceApplyRMSProp` or `ResourceApplyCenteredRMSProp` a variable, whose `mom` slot holds the last step.
    """
    means = _slots(variables, "mean_gradient") if is_centered else ()
    squares, steps = _slots(variables, "mean_square"), _slots(variables, "momentum")

    def apply(gradients: Sequence[Any]) -> None:
        with tf.name_scope("optimizer"):
            settings = {
                "lr": tf.constant(learning_rate, name="learning_rate"),
                "rho": tf.constant(decay, name="decay"),
                "momentum": tf.constant(0.0, name="momentum"),
                "epsilon": tf.constant(epsilon, name="epsilon"),
            }
            for k, (square, step, gradient) in enumerate(zip(squares, steps, gradients, strict=True)):
                settings |= {"var": square.of.handle, "ms": square.variable.handle, "mom": step.variable.handle, "grad": gradient}
                if is_centered:
                    tf.raw_ops.ResourceApplyCenteredRMSProp(mg=means[k].variable.handle, name=plain_name(square.of), **settings)
                else:
                    tf.raw_ops.ResourceApplyRMSProp(name=plain_name(square.of), **settings)

    return Optimizer(apply, means + squares + steps)


def _slots(variables: Sequence[Any], name: str) -> tuple[Slot, ...]:
    """A zero slot called `name` for each variable."""
    return tuple(
        Slot(
            tf.Variable(
                partial(tf.zeros, v.shape, v.dtype),
                shape=v.shape,
                dtype=v.dtype,
                trainable=False,
                name=f"optimizer/{plain_name(v)}/{name}",
            ),
            v,
            name,
        )
        for v in variables
    )


def dense_layers(x: Any, layers: Sequence[tuple[str, int]], variables: Mapping[str, Any], dropout: float, seed: int) -> Any:
    """Logits [batch, classes] of fully connected layers over `x` [batch, units]: ReLU and dropout after each but the last, a linear one.

    `layers` are (name, units); `NAME/kernel` and `NAME/bias` are their variables. `dropout` is the share that is dropped, 0 for none;
    each layer's seed is its own.
    """
    *hidden, (last, _classes) = layers
    for place, (name, _units) in enumerate(hidden):
        with tf.name_scope(name):
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, variables[f"{name}/kernel"]), variables[f"{name}/bias"]))
            if dropout > 0:
                x = tf.nn.dropout(x, rate=dropout, seed=seed + place)
    with tf.name_scope(last):
        return tf.nn.bias_add(tf.matmul(x, variables[f"{last}/kernel"]), variables[f"{last}/bias"])


class TrainingOptions(Protocol):
    """The options that training a classifier reads."""

    @property
    def optimizer(self) -> str:
        """`momentum` or `adam`."""

    @property
    def learning_rate(self) -> float:
        """Step size of the update."""

    @property
    def momentum(self) -> float:
        """Share of the last update that momentum keeps."""

    @property
    def weight_decay(self) -> float:
        """Factor of half the squared norm of every kernel in the loss."""


def classifier(mode: str, forward: Callable[[Any, bool], Any], variables: Mapping[str, Any], options: TrainingOptions) -> Program:
    """The program of an image classifier whose `forward(image, is_training)` gives logits [batch, classes].

    Inference returns `logits` and `probabilities`, their softmax. Training returns `loss`, the mean softmax cross-entropy plus
    `weight_decay` / 2 x the squared norm of every variable whose name's last part begins with `kernel`, and `logits`. Only trainable
    variables get gradients; the image gets none.
    """
    trainable = [v for v in variables.values() if v.trainable]
    averages = [v for v in variables.values() if not v.trainable]

    def infer(image: Any) -> dict[str, Any]:
        logits = forward(image, False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits, name="softmax")}

    if mode == "inference":
        return Program(tf.function(infer, autograph=False), trainable, state=averages)

    kernels = [v for name, v in variables.items() if name.rpartition("/")[2].startswith("kernel")]
    if options.optimizer == "adam":
        optimizer = adam(trainable, options.learning_rate)
    else:
        optimizer = momentum(trainable, options.learning_rate, options.momentum)

    def train(image: Any, label: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = forward(image, True)
            with tf.name_scope("loss"):
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
                if options.weight_decay:
                    loss += options.weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        with tf.name_scope("gradients"):
            gradients = tape.gradient(loss, trainable)
        optimizer.apply(gradients)
        return {"loss": loss, "logits": logits}

    return Program(tf.function(train, autograph=False), trainable, optimizer.slots, [*averages, *optimizer.state])
