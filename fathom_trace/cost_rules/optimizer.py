"""Optimisers, fused into one op a variable: the update's operations per element of the gradient, and its slots' traffic.

Each expression of TensorFlow's kernel counts once, in the order in which the update writes it (`tensorflow/core/kernels/training_ops.cc`).
The variable and its slots are as large as the gradient (for the sparse forms: the rows that it touches, taken as distinct).
"""

from __future__ import annotations

from fathom_trace.cost_rules.call import VARIABLE, Call, Count, Part, Rule, Traffic, rule, whole_inputs

_SOURCE = "tensorflow/core/kernels/training_ops.cc"


def _traffic(states: int, position: int) -> Traffic:
    def touched(call: Call) -> list[Part]:
        return [Part(VARIABLE, k, call.inputs[position].size_bytes) for k in range(states)]

    return Traffic(
        f"the inputs, and the variable and its {states - 1} slots, each as large as the gradient + the variable and its slots",
        lambda c: [*whole_inputs(c), *touched(c)],
        touched,
    )


def _update(
    name: str, states: int, gradient: int, forms: str, operations: int | Count, text: str, formula: str, once: int = 0
) -> Rule:
    """The rule of one update: `states` counts the variable and its slots, `gradient` is the gradient's input in every form.

    `forms` holds the op types' prefixes; `operations` is per element of the gradient, `once` per execution.
    """
    per_element: Count = operations if callable(operations) else lambda _: operations
    written = f"{text or operations} g" + (f" + {once}" if once else "") + ", of g gradient elements"
    return rule(
        " ".join(prefix + name for prefix in forms.split()),
        written,
        lambda c: per_element(c) * c.read_elements(gradient) + once,
        f"{_SOURCE}: {formula}",
        _traffic(states, gradient),
    )


def _nesterov(plain: int, nesterov: int) -> Count:
    return lambda c: nesterov if c.flag("use_nesterov") else plain


def _slots_kept(with_update: int, without: int) -> Count:
    return lambda c: with_update if c.attributes.get("update_slots", True) else without


_DENSE = "ResourceApply"
_BOTH = "ResourceApply ResourceSparseApply"

RULES = (
    _update("GradientDescent", 1, 2, _DENSE, 2, "", "var -= g lr"),
    _update("Momentum", 2, 3, _BOTH, _nesterov(4, 7), "4 (Nesterov 7)",
            "a = a momentum + g; var -= a lr (Nesterov: g lr + a momentum lr)"),
    _update("KerasMomentum", 2, 3, _BOTH, _nesterov(4, 7), "4 (Nesterov 7)",
            "a = a momentum - g lr; var += a (Nesterov: a momentum - g lr)"),
    _update("Adagrad", 2, 3, _BOTH, _slots_kept(6, 4), "6 (4 without update_slots)", "a += g^2; var -= g lr rsqrt(a)"),
    _update("AdagradV2", 2, 4, _BOTH, _slots_kept(7, 5), "7 (5 without update_slots)",
            "a += g^2; var -= g lr / (sqrt(a) + epsilon)"),
    _update("Adadelta", 3, 6, _BOTH, 16, "",
            "a = a rho + g^2 (1 - rho); u = sqrt(d + epsilon) rsqrt(a + epsilon) g; var -= u lr; d = d rho + u^2 (1 - rho)"),
    _update("Adam", 3, 9, _DENSE, _nesterov(12, 15), "12 (Nesterov 15)",
            "m += (g - m) (1 - b1); v += (g^2 - v) (1 - b2); var -= m alpha / (sqrt(v) + epsilon) (Nesterov: g (1 - b1) + b1 m);"
            " once: alpha = lr sqrt(1 - b2^t) / (1 - b1^t), 1 - b1, 1 - b2", once=7),
    _update("AdamWithAmsgrad", 4, 10, _DENSE, 13, "", "as Adam, with the running maximum of v", once=7),
    _update("AdaMax", 3, 8, _DENSE, 10, "",
            "m += (g - m) (1 - b1); v = max(b2 v, |g|); var -= alpha (m / (v + epsilon)); once: alpha = lr / (1 - b1^t), 1 - b1", once=3),
    _update("RMSProp", 3, 7, _BOTH, 11, "", "s += (g^2 - s) (1 - rho); m = m momentum + g lr / sqrt(s + epsilon); var -= m"),
    _update("CenteredRMSProp", 4, 8, _BOTH, 16, "",
            "s += (g^2 - s) (1 - rho); c += (g - c) (1 - rho); m = m momentum + g lr / sqrt(s - c^2 + epsilon); var -= m"),
    _update("Ftrl", 3, 3, _BOTH, 17, "",
            "n = a + g^2; l += g - (sqrt(n) - sqrt(a)) / lr var; var = |l| > l1 ? (l1 sign(l) - l) / (sqrt(n) / lr + 2 l2) : 0; a = n"),
    _update("FtrlV2", 3, 3, _BOTH, 19, "", "as Ftrl, with g + 2 shrinkage var in place of the first g"),
    _update("AddSign", 2, 6, _DENSE, 11, "", "m = m beta + g (1 - beta); var -= lr (alpha + decay sign(g) sign(m)) g"),
    _update("PowerSign", 2, 6, _DENSE, 11, "", "m = m beta + g (1 - beta); var -= lr exp(logbase decay sign(g) sign(m)) g"),
)  # fmt: skip
