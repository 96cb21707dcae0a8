"""Activations: functions of one element, with parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita.lowering.fusion.activation import CLIP_DEFAULTS
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import (
    broadcast,
    broadcast_shape,
    emit_broadcast,
    emit_map,
    gated,
    gated_in_place,
    mapped,
    mapped_with,
)
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, F32, FLOATS, HALVES, INTS, SIGNED, kernel
from partita_cpu.scalar import activations as scalar
from partita_cpu.scalar.instructions import like
from partita_cpu.scalar.math import sigmoid, softplus, tanh

_PLAIN = {
    "Relu": mapped(scalar.relu),
    "Sigmoid": mapped(sigmoid),
    "Tanh": mapped(tanh),
    "Softplus": mapped(softplus),
    "Softsign": mapped(scalar.softsign),
    "HardSwish": mapped(scalar.hard_swish),
    "Mish": mapped(scalar.mish),
    "Silu": mapped(scalar.silu),
}
_GELU = {"none": mapped(scalar.gelu), "tanh": mapped(scalar.gelu_tanh)}
_SWISH = mapped_with(scalar.swish)
_GATES = {
    ("Silu", "none"): scalar.silu,
    ("Gelu", "none"): scalar.gelu,
    ("Gelu", "tanh"): scalar.gelu_tanh,
}
_GATED = {form: gated(function) for form, function in _GATES.items()}
_GATED_IN_PLACE = {form: gated_in_place(function) for form, function in _GATES.items()}

# Kernel and the attributes that are its parameters, with their defaults.
_PARAMETRIC = {
    "LeakyRelu": (mapped_with(scalar.leaky_relu), (("alpha", 0.01), ("", 0.0))),
    "Elu": (mapped_with(scalar.elu), (("alpha", 1.0), ("", 0.0))),
    "Selu": (
        mapped_with(scalar.selu),
        (("alpha", scalar.SELU_ALPHA), ("gamma", scalar.SELU_GAMMA)),
    ),
    "Celu": (mapped_with(scalar.celu), (("alpha", 1.0), ("", 0.0))),
    "ThresholdedRelu": (mapped_with(scalar.thresholded_relu), (("alpha", 1.0), ("", 0.0))),
    "HardSigmoid": (mapped_with(scalar.hard_sigmoid), (("alpha", 0.2), ("beta", 0.5))),
    "Swish": (_SWISH, (("alpha", 1.0), ("", 0.0))),
    "QuickGelu": (_SWISH, (("alpha", 1.702), ("", 0.0))),
}


@kernel("Relu", dtypes=ALL_FLOATS | SIGNED)
@kernel("Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish", "Mish", dtypes=ALL_FLOATS)
@kernel("Silu", "HardSwish", "Mish", domain="partita", dtypes=ALL_FLOATS)
@through_float32
def plain(b: Builder, node: Node, x: Operand) -> Operand:
    """Activations without parameters."""
    return emit_map(b, _PLAIN[node.op_type], x)


@kernel("Gelu", dtypes=ALL_FLOATS)
@kernel("Gelu", domain="partita", dtypes=ALL_FLOATS)
@kernel("Gelu", domain="com.microsoft", dtypes=ALL_FLOATS)
@through_float32
def gelu(b: Builder, node: Node, x: Operand) -> Operand:
    """Gelu, exact or through tanh."""
    return emit_map(b, _GELU[node.attrs.get("approximate", "none")], x)


@kernel("Gated", domain="partita", dtypes=F32)
def gated_activation(b: Builder, node: Node, x: Operand, other: Operand) -> Operand:
    """An activation times another value of its shape; see `passes.gated_activations`."""
    form = str(node.attrs["activation"]), str(node.attrs.get("approximate", "none"))
    if node.attrs["in_place"] and x.const is None:
        if x.size:
            b.call(_GATED_IN_PLACE[form], b.flat(x), b.flat(other))
        return b.view(x, x.shape)
    y = b.empty(x.shape, x.dtype)
    if x.size:
        b.call(_GATED[form], b.flat(x), b.flat(other), b.flat(y))
    return y


@kernel(
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "ThresholdedRelu",
    "HardSigmoid",
    "Swish",
    dtypes=ALL_FLOATS,
)
@kernel("HardSigmoid", domain="partita", dtypes=ALL_FLOATS)
@kernel("QuickGelu", domain="com.microsoft", dtypes=ALL_FLOATS)
@through_float32
def parametric(b: Builder, node: Node, x: Operand) -> Operand:
    """Activations with one or two numbers as attributes."""
    function, parameters = _PARAMETRIC[node.op_type]
    numbers = [x.dtype.type(node.number(name, default)) for name, default in parameters]
    return emit_map(b, function, x, None, *numbers)


_shrink = mapped_with(scalar.shrink)
_shrink_unsigned = mapped_with(scalar.shrink_unsigned)


@kernel("Shrink", dtypes=ALL_FLOATS | INTS)
@through_float32
def shrink(b: Builder, node: Node, x: Operand) -> Operand:
    """Shrink; its parameters are floats for integers too."""
    bias, limit = node.number("bias", 0.0), node.number("lambd", 0.5)
    if x.dtype.kind in "iu" and bias == round(bias) and limit >= 0:
        wrapped = np.array(round(bias) & (2 ** (8 * x.dtype.itemsize) - 1), f"u{x.dtype.itemsize}")
        most = min(math.floor(limit), np.iinfo(x.dtype).max)
        function = _shrink if x.dtype.kind == "i" else _shrink_unsigned
        return emit_map(b, function, x, None, wrapped.view(x.dtype)[()], x.dtype.type(most))
    number = np.float32 if x.dtype == np.float32 else np.float64
    return emit_map(b, _shrink, x, None, number(bias), number(limit))


@register_jitable
def _prelu(x: Any, slope: Any) -> Any:
    return slope * x if x < like(x, 0) else x


_prelu_kernel = broadcast(_prelu)


@kernel("PRelu", dtypes=ALL_FLOATS | INTS)
@through_float32
def prelu(b: Builder, node: Node, x: Operand, slope: Operand) -> Operand:
    """LeakyRelu with a slope per element, broadcast."""
    y = b.empty(broadcast_shape(b, [x, slope]), x.dtype)
    emit_broadcast(b, _prelu_kernel, [x, slope], y)
    return y


@loop
def _clip_kernel(x: Any, low: Any, high: Any, y: Any, tid: int, nt: int) -> None:
    """A thread's share of Clip.

    Args:
        x: Elements.
        low: The lower bound, one element.
        high: The upper bound, one element.
        y: The result.
        tid: This thread.
        nt: All threads.
    """
    start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
    source, target = x[start:stop], y[start:stop]
    least, most = low[0], high[0]
    for i in range(target.size):
        target[i] = scalar.clip(source[i], least, most)


def _emit_clip(b: Builder, x: Operand, low: Operand | None, high: Operand | None) -> Operand:
    if x.dtype.kind == "f":
        least, most = -np.inf, np.inf
    else:
        least, most = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    lower = b.constant(np.full(1, least, x.dtype)) if low is None else b.view(low, (1,))
    upper = b.constant(np.full(1, most, x.dtype)) if high is None else b.view(high, (1,))
    y = b.empty(x.shape, x.dtype)
    if x.size:
        b.call(_clip_kernel, b.flat(x), lower, upper, b.flat(y))
    return y


@kernel("Clip", dtypes=FLOATS | HALVES, until=10)
@through_float32
def clip_attributes(b: Builder, node: Node, x: Operand) -> Operand:
    """Clip as it was until opset 10: the bounds are attributes, whose defaults are numbers."""
    bounds = [
        b.constant(np.full(1, node.attrs.get(name, limit), x.dtype))
        for name, limit in zip(("min", "max"), CLIP_DEFAULTS, strict=True)
    ]
    return _emit_clip(b, x, *bounds)


@kernel("Clip", dtypes=ALL_FLOATS | INTS, since=11)
@through_float32
def clip(
    b: Builder, node: Node, x: Operand, low: Operand | None = None, high: Operand | None = None
) -> Operand:
    """Clip as it is since opset 11: the bounds are optional scalars."""
    return _emit_clip(b, x, low, high)
