"""Activations as functions of one element, for kernels of their own and for fused ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from partita.lowering import ActivationCode
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.activations import GELU_CUBIC, GELU_SLOPE
from partita_cpu.scalar.instructions import like, muladd, wide_vectors
from partita_cpu.scalar.math import below_normal, exp, expm1_below_zero, sigmoid, softplus, tanh

RELU = int(ActivationCode.RELU)
CLIP = int(ActivationCode.CLIP)
LEAKY_RELU = int(ActivationCode.LEAKY_RELU)
HARD_SWISH = int(ActivationCode.HARD_SWISH)
HARD_SIGMOID = int(ActivationCode.HARD_SIGMOID)
SIGMOID = int(ActivationCode.SIGMOID)
TANH = int(ActivationCode.TANH)
SILU = int(ActivationCode.SILU)
GELU = int(ActivationCode.GELU)
GELU_TANH = int(ActivationCode.GELU_TANH)
MISH = int(ActivationCode.MISH)
ELU = int(ActivationCode.ELU)
SOFTPLUS = int(ActivationCode.SOFTPLUS)

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


class ActivationFields(NamedTuple):
    """An activation as kernels take it.

    Attributes:
        code: `ActivationCode`.
        alpha: Its first attribute.
        beta: Its second one.
    """

    code: int
    alpha: float
    beta: float


@register_jitable
def relu(x: Any) -> Any:
    """The positive part; NaN stays."""
    zero = like(x, 0)
    return zero if x < zero else x


@register_jitable
def clip(x: Any, low: Any, high: Any) -> Any:
    """Within the bounds; ``high`` wins if they cross; NaN stays."""
    raised = low if x < low else x
    return high if raised > high else raised


@register_jitable
def leaky_relu(x: Any, alpha: Any, beta: Any) -> Any:
    """``alpha * x`` below zero."""
    return alpha * x if x < like(x, 0) else x


@register_jitable
def elu(x: Any, alpha: Any, beta: Any) -> Any:
    """``alpha * (exp(x) - 1)`` below zero."""
    zero = like(x, 0)
    below = zero if x > zero else x
    return alpha * expm1_below_zero(below) if x < zero else x


@register_jitable
def selu(x: Any, alpha: Any, gamma: Any) -> Any:
    """Scaled `elu`."""
    return gamma * elu(x, alpha, gamma)


@register_jitable
def celu(x: Any, alpha: Any, beta: Any) -> Any:
    """``elu`` with a slope of 1 at zero for every alpha."""
    zero = like(x, 0)
    below = zero if x > zero else x
    return alpha * expm1_below_zero(below / alpha) if x < zero else x


@register_jitable
def thresholded_relu(x: Any, alpha: Any, beta: Any) -> Any:
    """Zero up to ``alpha``."""
    return x if x > alpha else like(x, 0)


@register_jitable
def hard_sigmoid(x: Any, alpha: Any, beta: Any) -> Any:
    """``alpha * x + beta`` within [0, 1]."""
    return clip(alpha * x + beta, like(x, 0), like(x, 1))


@register_jitable
def hard_swish(x: Any) -> Any:
    """``x`` times a hard sigmoid of slope 1/6."""
    return x * clip(x * like(x, 1 / 6) + like(x, 0.5), like(x, 0), like(x, 1))


@register_jitable
def softsign(x: Any) -> Any:
    """``x / (1 + |x|)``."""
    return x / (like(x, 1) + abs(x))


@register_jitable
def silu(x: Any) -> Any:
    """``x * sigmoid(x)``."""
    return x * sigmoid(x)


@register_jitable
def swish(x: Any, alpha: Any, beta: Any) -> Any:
    """``x * sigmoid(alpha * x)``."""
    return x * sigmoid(alpha * x)


@register_jitable
def mish(x: Any) -> Any:
    """``x * tanh(softplus(x))``, where the tanh is a ratio of polynomials in exp(x)."""
    limit = like(x, 22)
    e = exp(limit if x > limit else x)
    w = e * (e + like(x, 2))
    return x * (w / (w + like(x, 2)))


@register_jitable
def gelu(x: Any) -> Any:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    return x * below_normal(x)


@register_jitable
def gelu_tanh(x: Any) -> Any:
    """The approximation of `gelu` through tanh: ``(1 + tanh(x)) / 2`` is ``sigmoid(2 x)``."""
    cubic = muladd(like(x, GELU_CUBIC) * x * x, x, x)
    return x * sigmoid(like(x, GELU_SLOPE) * cubic)


@register_jitable
def shrink(x: Any, bias: Any, limit: Any) -> Any:
    """Towards zero by ``bias`` outside of [-limit, limit], zero inside."""
    if x < -limit:
        return like(x, x + bias)
    return like(x, x - bias) if x > limit else like(x, 0)


@register_jitable
def shrink_unsigned(x: Any, bias: Any, limit: Any) -> Any:
    """`shrink` of a type that has no numbers below zero."""
    return like(x, x - bias) if x > limit else like(x, 0)


@loop
def activate(x: Any, code: int, alpha: Any, beta: Any) -> None:
    """Applies an `ActivationCode` in place to a contiguous piece of a fused kernel's result.

    Args:
        x: What it is applied to, of one dimension.
        code: Which activation.
        alpha: Its first parameter, where it has one.
        beta: Its second parameter, where it has one.
    """
    wide_vectors()
    n = x.size
    if code == RELU:
        for i in range(n):
            x[i] = relu(x[i])
    elif code == CLIP:
        for i in range(n):
            x[i] = clip(x[i], alpha, beta)
    elif code == LEAKY_RELU:
        for i in range(n):
            x[i] = leaky_relu(x[i], alpha, beta)
    elif code == HARD_SWISH:
        for i in range(n):
            x[i] = hard_swish(x[i])
    elif code == HARD_SIGMOID:
        for i in range(n):
            x[i] = hard_sigmoid(x[i], alpha, beta)
    elif code == SIGMOID:
        for i in range(n):
            x[i] = sigmoid(x[i])
    elif code == TANH:
        for i in range(n):
            x[i] = tanh(x[i])
    elif code == SILU:
        for i in range(n):
            x[i] = silu(x[i])
    else:
        _activate_rare(x, code, alpha)


@loop(apart=("int", "int", "int", "single", "single"))
def activate_floats(place: int, count: int, code: int, alpha: Any, beta: Any) -> None:
    """Applies an `ActivationCode` to float32 numbers from an address on.

    Args:
        place: The address.
        count: How many numbers.
        code: Which activation.
        alpha: Its first parameter, where it has one.
        beta: Its second parameter, where it has one.
    """
    activate(floats_at(place, count), code, alpha, beta)


@loop
def _activate_rare(x: Any, code: int, alpha: Any) -> None:
    wide_vectors()
    n = x.size
    if code == GELU:
        for i in range(n):
            x[i] = gelu(x[i])
    elif code == GELU_TANH:
        for i in range(n):
            x[i] = gelu_tanh(x[i])
    elif code == MISH:
        for i in range(n):
            x[i] = mish(x[i])
    elif code == ELU:
        for i in range(n):
            x[i] = elu(x[i], alpha, alpha)
    elif code == SOFTPLUS:
        for i in range(n):
            x[i] = softplus(x[i])
