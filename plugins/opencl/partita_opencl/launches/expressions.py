"""The expression table: what each element-wise operator computes, as OpenCL C.

A template stands for one element: ``{0}``, ``{1}`` are its operands, ``{a}`` and ``{b}`` its
parameters (attributes, passed at run time so that one program serves all values). The functions
of ``prelude.cl`` may be used. Comparisons are written so that NaN passes as in ONNX Runtime.

Integers wrap around, which compilers take for impossible of signed ones: they make ``x`` of
``x * 4 / 4``. So in templates for integers ``{type}`` stands for the operands' type, and
``{wraps}`` for the unsigned one to compute in what may overflow; no narrower than ``uint``, as
narrower ones would be promoted to ``int``. ``{zero}`` is what a number is negated from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Attrs = Mapping[str, Any]


def _defaults(**defaults: float) -> Callable[[Attrs], tuple[float, ...]]:
    """Reads attributes in the order given."""
    return lambda attrs: tuple(float(attrs.get(name, value)) for name, value in defaults.items())


def _none(attrs: Attrs) -> tuple[float, ...]:
    return ()


def _wrapping(sign: str) -> str:
    """A sum, difference or product of integers."""
    return f"({{type}})(({{wraps}}){{0}} {sign} ({{wraps}}){{1}})"


@dataclass(frozen=True)
class Expression:
    """One operator.

    Attributes:
        floats: Template for float32, or ``None`` where it has none.
        ints: Template for integers, or ``None``.
        unsigned: Template for unsigned integers where it differs.
        truth: Template for booleans, or ``None``.
        parameters: Reads the parameters ``{a}``, ``{b}`` from the attributes (float32 only).
        compares: Whether the result is a boolean, whatever the operands are.
    """

    floats: str | None = None
    ints: str | None = None
    unsigned: str | None = None
    truth: str | None = None
    parameters: Callable[[Attrs], tuple[float, ...]] = field(default=_none)
    compares: bool = False


_NEGATED = "({type})({zero} - ({wraps}){0})"
_SIGNED_DIV = f"({{1}} == 0 ? 0 : {{1}} == -1 ? {_NEGATED} : {{0}} / {{1}})"
_UNSIGNED_DIV = "({1} == 0 ? 0 : {0} / {1})"
_SELU = _defaults(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)

UNARY: dict[str, Expression] = {
    "Abs": Expression("fabs({0})", f"({{0}} < 0 ? {_NEGATED} : {{0}})"),
    "Neg": Expression("-{0}", _NEGATED),
    "Sign": Expression(
        "(isnan({0}) ? {0} : (float)(({0} > 0) - ({0} < 0)))", "(({0} > 0) - ({0} < 0))"
    ),
    "Not": Expression(truth="!{0}"),
    "BitwiseNot": Expression(ints="~{0}"),
    "Ceil": Expression("ceil({0})"),
    "Floor": Expression("floor({0})"),
    "Round": Expression("rint({0})"),
    "Sqrt": Expression("sqrt({0})"),
    "Reciprocal": Expression("1.0f / {0}"),
    "Exp": Expression("exp({0})"),
    "Log": Expression("log({0})"),
    "Sin": Expression("sin({0})"),
    "Cos": Expression("cos({0})"),
    "Tan": Expression("tan({0})"),
    "Asin": Expression("asin({0})"),
    "Acos": Expression("acos({0})"),
    "Atan": Expression("atan({0})"),
    "Sinh": Expression("sinh({0})"),
    "Cosh": Expression("cosh({0})"),
    "Tanh": Expression("tanh_of({0})"),
    "Asinh": Expression("asinh({0})"),
    "Acosh": Expression("acosh({0})"),
    "Atanh": Expression("atanh({0})"),
    "Erf": Expression("erf({0})"),
    "Sigmoid": Expression("sigmoid_of({0})"),
    "Softplus": Expression("softplus_of({0})"),
    "Softsign": Expression("{0} / (1.0f + fabs({0}))"),
    "Relu": Expression("({0} < 0.0f ? 0.0f : {0})", "({0} < 0 ? 0 : {0})"),
    "LeakyRelu": Expression("({0} < 0.0f ? {a} * {0} : {0})", parameters=_defaults(alpha=0.01)),
    "Elu": Expression("({0} < 0.0f ? {a} * expm1({0}) : {0})", parameters=_defaults(alpha=1.0)),
    "Celu": Expression(
        "({0} < 0.0f ? {a} * expm1({0} / {a}) : {0})", parameters=_defaults(alpha=1.0)
    ),
    "Selu": Expression("{b} * ({0} < 0.0f ? {a} * expm1({0}) : {0})", parameters=_SELU),
    "ThresholdedRelu": Expression("({0} > {a} ? {0} : 0.0f)", parameters=_defaults(alpha=1.0)),
    "HardSigmoid": Expression(
        "activate({0}, ACT_HARD_SIGMOID, {a}, {b})", parameters=_defaults(alpha=0.2, beta=0.5)
    ),
    "HardSwish": Expression("activate({0}, ACT_HARD_SWISH, 0.0f, 0.0f)"),
    "Silu": Expression("{0} * sigmoid_of({0})"),
    "Swish": Expression("{0} * sigmoid_of({a} * {0})", parameters=_defaults(alpha=1.0)),
    "Mish": Expression("{0} * tanh_of(softplus_of({0}))"),
    "Shrink": Expression(
        "({0} < -{b} ? {0} + {a} : ({0} > {b} ? {0} - {a} : 0.0f))",
        parameters=_defaults(bias=0.0, lambd=0.5),
    ),
    "IsNaN": Expression("isnan({0})", compares=True),
}
"""Operators of one operand. Those with variants by attribute are in ``emitters/elementwise.py``."""

BINARY: dict[str, Expression] = {
    "Add": Expression("{0} + {1}", _wrapping("+")),
    "Sub": Expression("{0} - {1}", _wrapping("-")),
    "Mul": Expression("{0} * {1}", _wrapping("*")),
    # Division by zero stops the process on some CPUs, and -1 overflows: both are spelled out.
    "Div": Expression("{0} / {1}", _SIGNED_DIV, _UNSIGNED_DIV),
    "Pow": Expression("pow({0}, {1})"),
    "PRelu": Expression("({0} < 0.0f ? {1} * {0} : {0})"),
    "Max": Expression("({0} > {1} || isnan({0}) ? {0} : {1})", "({0} > {1} ? {0} : {1})"),
    "Min": Expression("({0} < {1} || isnan({0}) ? {0} : {1})", "({0} < {1} ? {0} : {1})"),
    "Equal": Expression("{0} == {1}", "{0} == {1}", truth="!{0} == !{1}", compares=True),
    "Less": Expression("{0} < {1}", "{0} < {1}", compares=True),
    "Greater": Expression("{0} > {1}", "{0} > {1}", compares=True),
    "LessOrEqual": Expression("{0} <= {1}", "{0} <= {1}", compares=True),
    "GreaterOrEqual": Expression("{0} >= {1}", "{0} >= {1}", compares=True),
    "And": Expression(truth="({0} && {1})"),
    "Or": Expression(truth="({0} || {1})"),
    "Xor": Expression(truth="(!{0} != !{1})"),
    "BitwiseAnd": Expression(ints="{0} & {1}"),
    "BitwiseOr": Expression(ints="{0} | {1}"),
    "BitwiseXor": Expression(ints="{0} ^ {1}"),
}
"""Operators of two operands that broadcast."""

FMOD = "fmod({0}, {1})"
FLOAT_MOD = "floored_mod({0}, {1})"
INT_FMOD = "({1} == 0 || {1} == -1 ? 0 : {0} % {1})"
INT_MOD = (
    "({1} == 0 || {1} == -1 ? 0 : {0} % {1} + ({0} % {1} != 0 && ({0} % {1} < 0) != ({1} < 0)"
    " ? {1} : 0))"
)
UNSIGNED_MOD = "({1} == 0 ? 0 : {0} % {1})"
IS_INF = {
    (True, True): "isinf({0})",
    (True, False): "({0} == INFINITY)",
    (False, True): "({0} == -INFINITY)",
    (False, False): "0",
}
"""By whether positive and whether negative infinities count."""
