"""Elementwise ops. An op that is one mathematical function counts 1 per output element, whatever the function costs a machine to evaluate:
`Exp`, `Tanh` and `Pow` count like `Add`. An op that is a formula of several, such as a gradient, counts each of them. A comparison that
picks a branch counts 1, and every element counts the longer branch.
"""

from __future__ import annotations

from fathom_trace.cost_rules.call import INPUT, VARIABLE, Call, Part, Rule, Traffic, nothing, rule, whole_inputs

_KERNEL = "the expression of TensorFlow's kernel"
_FUNCTION = "one function or comparison per output element"
_CHECKED = Traffic("the input once; it is handed on, not copied", whole_inputs, nothing)
_IN_PLACE = Traffic(
    "the variable and the value once + the variable once",
    lambda c: [Part(INPUT, 1, c.inputs[1].size_bytes), Part(VARIABLE, 0, c.inputs[1].size_bytes)],
    lambda c: [Part(VARIABLE, 0, c.inputs[1].size_bytes)],
)


def _per_element(ops: str, count: int, text: str, source: str = _KERNEL) -> Rule:
    return rule(ops, f"{count} n" if count > 1 else "n", lambda c: count * c.elements(), f"{source}: {text}" if text else source)


def _addends(call: Call) -> int:
    return (len(call.inputs) - 1) * call.elements()


def _composed(call: Call) -> int:
    return len(call.attributes["op_names"]) * call.elements()


def _elements_given(call: Call) -> int:
    return call.read_elements(1)


RULES = (
    _per_element(
        """
        Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e Cast Ceil ComplexAbs Conj Cos Cosh Dawsn Digamma
        Elu Erf Erfc Erfinv Exp Expint Expm1 Floor FresnelCos FresnelSin Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p
        LogicalNot Ndtri Neg PopulationCount Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Spence
        Sqrt Square Tan Tanh ToBool _HostCast
        """,
        1, "", _FUNCTION,
    ),
    _per_element(
        """
        Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor Div DivNoNan Equal FloorDiv FloorMod Greater GreaterEqual Igamma Igammac LeftShift
        Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan NextAfter NotEqual Polygamma Pow RealDiv RightShift Sub
        TruncateDiv TruncateMod Xdivy Zeta
        """,
        1, "operands are broadcast, so the output counts", _FUNCTION,
    ),
    _per_element("BiasAdd BiasAddV1", 1, "the bias is added to every output element", _FUNCTION),
    _per_element("Select SelectV2", 1, "one choice per output element", _FUNCTION),
    _per_element("SquaredDifference", 2, "(x - y)^2"),
    _per_element("Xlogy Xlog1py", 2, "x log(y)"),
    _per_element("ClipByValue", 2, "min(max(x, low), high)"),
    _per_element("ApproximateEqual", 3, "|x - y| < tolerance"),
    _per_element("_MklSwish", 2, "x sigmoid(x)"),
    _per_element("_MklFusedMish", 3, "x tanh(softplus(x))"),
    _per_element("ReluGrad", 2, "g [x > 0]"),
    _per_element("Relu6Grad", 4, "g ([x > 0] [x < 6])"),
    _per_element("LeakyReluGrad", 2, "x > 0 ? g : g alpha"),
    _per_element("EluGrad", 3, "y < 0 ? (y + 1) g : g"),
    _per_element("SeluGrad", 3, "y < 0 ? g (y + scale alpha) : g scale"),
    _per_element("SigmoidGrad", 3, "g y (1 - y)"),
    _per_element("TanhGrad", 3, "g (1 - y y)"),
    _per_element("SqrtGrad", 2, "0.5 g / y"),
    _per_element("RsqrtGrad", 4, "-0.5 g y y y"),
    _per_element("ReciprocalGrad InvGrad", 3, "-g y y"),
    _per_element("SoftplusGrad", 4, "g / (exp(-x) + 1)"),
    _per_element("SoftsignGrad", 4, "g / (1 + |x|)^2"),
    _per_element("ResizeBilinear", 9, "three linear interpolations a + (b - a) t"),
    rule("ResizeBilinearGrad", "14 m", lambda c: 14 * c.read_elements(),
         "two complements 1 - t; at each of four corners a product of weights, one with g, an addition"),
    rule("AddN AccumulateNV2", "(k - 1) n, of k inputs", _addends, "k tensors are added with k - 1 additions per element"),
    rule("_UnaryOpsComposition", "k n, of k op names", _composed, "each of the functions composed counts 1 per element"),
    rule("CheckNumerics CheckNumericsV2", "n", lambda c: c.elements(), "one test per element", _CHECKED),
    rule(
        "AssignAddVariableOp AssignSubVariableOp", "elements of the value", _elements_given,
        "one addition per element; the variable is read and written in place", _IN_PLACE,
    ),
)  # fmt: skip
