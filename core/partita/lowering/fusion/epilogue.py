"""Bias, batch normalization, residual and activation move into the convolution or product before.

The result has the operator's name in domain ``partita``, inputs ``(x, w, bias, residual)`` and the
attributes of the original plus ``activation``: an :class:`~partita.lowering.Activation` or
``None``. It computes ``activation(op(x, w) + bias + residual)``. The bias has one dimension (output
channels of a convolution, columns of a product), the residual the shape of the result.
"""

from __future__ import annotations

import math

import numpy as np

from partita.lowering.fusion.activation import CLIP_DEFAULTS, Activation, ActivationCode
from partita.lowering.fusion.norm import affine_rows
from partita.lowering.fusion.rewriting import (
    Rewriter,
    fusion_pass,
    is_float,
    origins,
    other_input,
    per_channel,
    scalar,
)
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_FUSED = (*_CONVOLUTIONS, "MatMul", "Gemm")


@fusion_pass(90)
def fuse_epilogues(rewriter: Rewriter) -> None:
    """Fuses what follows every Conv, ConvTranspose, Gemm and MatMul, and what was fused before."""
    for node in rewriter.nodes():
        if node.op_type in _FUSED and node.domain in ("", "partita"):
            found: tuple[Value | None, Value | None] | None = node.inputs[1], node.input(2)
            if node.kind == "Gemm":
                found = _gemm(node)
            if found is not None:
                _Epilogue(rewriter, node, *found).fuse()


class _Epilogue:
    """Walks down from a node as long as the next one can be taken in."""

    def __init__(
        self, rewriter: Rewriter, node: Node, weight: Value | None, bias: Value | None
    ) -> None:
        self._rewriter = rewriter
        self._node = node
        self._group = [node]
        self._weight = weight
        self._bias = bias
        fused = node.domain == "partita"
        self._residual: Value | None = node.inputs[3] if fused else None
        self._activation: Activation | None = node.attrs["activation"] if fused else None

    def fuse(self) -> None:
        """Takes in what it can and replaces the nodes, if there is anything to take in."""
        while True:
            last = self._group[-1]
            user = self._rewriter.only_user(last.outputs[0])
            take = self._take if self._activation is None else self._take_behind
            if user is None or not take(user, last.outputs[0]):
                break
            self._group.append(user)
        if len(self._group) > 1 or self._node.kind == "Gemm":
            self._replace()

    def _replace(self) -> None:
        node, last = self._node, self._group[-1]
        attrs = {} if node.kind == "Gemm" else dict(node.attrs)
        fused = Node(
            "MatMul" if node.kind == "Gemm" else node.op_type,
            [node.inputs[0], self._weight, self._bias, self._residual],
            last.outputs[:1],
            {**attrs, "activation": self._activation},
            domain="partita",
            name=node.name,
            origins=origins(self._group),
        )
        self._rewriter.replace(self._group, fused)

    def _take(self, user: Node, value: Value | None) -> bool:
        activation = activation_of(user)
        if activation is not None and user.inputs[0] is value:
            self._activation = activation
            return True
        if self._residual is not None or any(user.outputs[1:]):
            return False
        if user.kind == "BatchNormalization":
            return user.inputs[0] is value and self._take_batch_normalization(user)
        if user.kind not in ("Add", "Sum", "Sub", "Mul", "Div"):
            return False
        other = other_input(user, value)
        if other is None or value is None:
            return False
        if other.const is None:
            return user.kind in ("Add", "Sum") and self._take_residual(other, value)
        first = user.inputs[0] is value
        return self._take_constant(user.kind, first, other.const, value)

    def _take_behind(self, user: Node, value: Value | None) -> bool:
        """One factor or summand behind bounds: it moves in front of them, and moves them too.

        ``max(x, 0) * 2 + 1`` is ``max(x * 2 + 1, 1)``, and a negative factor swaps the bounds.
        """
        bounds = None if self._activation is None else _bounds(self._activation)
        if bounds is None or self._residual is not None or any(user.outputs[1:]):
            return False
        other = other_input(user, value)
        if user.kind not in ("Add", "Sum", "Sub", "Mul", "Div") or value is None or other is None:
            return False
        number, first = scalar(other), user.inputs[0] is value
        if number is None or other.const is None or not math.isfinite(number):
            return False
        if (user.kind in ("Mul", "Div") and number == 0) or not (first or user.kind != "Div"):
            return False
        low, high = (_followed(user.kind, bound, number, first) for bound in bounds)
        if not self._take_constant(user.kind, first, other.const, value):
            return False
        self._activation = Activation(ActivationCode.CLIP, min(low, high), max(low, high))
        return True

    def _take_residual(self, other: Value, value: Value) -> bool:
        if not self._rewriter.same_shape(other, value) or other.dtype != value.dtype:
            return False
        self._residual = other
        return True

    def _take_batch_normalization(self, node: Node) -> bool:
        if not node.attrs.get("spatial", 1):
            return False
        if node.version < 7 and not node.attrs.get("is_test", 0):
            return False
        rows = affine_rows(node)
        if rows is None or rows[0].size != self._channels():
            return False
        if self._node.op_type not in _CONVOLUTIONS and self._node.kind != "Gemm":
            shape = None if node.inputs[0] is None else node.inputs[0].shape
            if shape is None or len(shape) != 2:  # its channels may be no columns
                return False
        return self._scale_and_shift(*rows)

    def _take_constant(self, kind: str, first: bool, const: Array, value: Value) -> bool:
        """Adds or multiplies a constant per channel into weights and bias."""
        row = self._per_channel(const, value)
        if row is None or (not first and kind == "Div"):
            return False
        match kind:
            case "Add" | "Sum":
                return self._scale_and_shift(None, row)
            case "Sub" if first:
                return self._scale_and_shift(None, -row)
            case "Sub":
                return self._scale_and_shift(np.full_like(row, -1.0), row)
            case "Mul":
                return self._scale_and_shift(row, None)
        return bool(np.all(row != 0)) and self._scale_and_shift(1 / row, None)

    def _channels(self) -> int | None:
        """Size of the bias; ``None`` where the weights do not tell."""
        weight = self._weight
        if weight is None or weight.shape is None or len(weight.shape) < 2:
            return None
        if self._node.op_type == "Conv":
            size = weight.shape[0]
        elif self._node.op_type == "ConvTranspose":
            groups = self._node.attrs.get("group", 1)
            size = weight.shape[1]
            size = size * groups if isinstance(size, int) else None
        else:
            size = weight.shape[1] if len(weight.shape) == 2 else None
        return size if isinstance(size, int) else None

    def _per_channel(self, const: Array, value: Value) -> Array | None:
        """A constant as one number per channel, if it broadcasts that way and widens nothing."""
        channels = self._channels()
        if channels is None or not is_float(const):
            return None
        if self._node.op_type in _CONVOLUTIONS:
            return per_channel(const, channels, self._with_rank(value))
        if const.ndim > 1 and (value.shape is None or const.ndim > len(value.shape)):
            return None
        if const.size == 1:
            return np.full(channels, float(const.reshape(-1)[0]))
        fits = const.shape[-1] == channels == const.size
        return const.reshape(channels).astype(np.float64) if fits else None

    def _with_rank(self, value: Value) -> Value:
        """A convolution's result has the rank of its weights, whether inference knows or not."""
        if value.shape is None and self._weight is not None and self._weight.shape is not None:
            return Value(value.name, value.dtype, (None,) * len(self._weight.shape))
        return value

    def _scale_and_shift(self, factor: Array | None, shift: Array | None) -> bool:
        """Makes the result ``op * factor + shift``; false if weights or bias are no constants."""
        weight = None if self._weight is None else self._weight.const
        bias = None if self._bias is None else self._bias.const
        if self._bias is not None and bias is None:
            return False
        if factor is not None and (weight is None or not is_float(weight)):
            return False
        channels = self._channels()
        if channels is None or self._weight is None:
            return False
        dtype = weight.dtype if weight is not None else self._weight.dtype
        scaled, row = self._weight, np.zeros(channels) if bias is None else bias.astype(np.float64)
        try:
            with np.errstate(over="raise"):
                if factor is not None and weight is not None:
                    factors = self._along_channels(factor.astype(weight.dtype), weight)
                    scaled = Value.constant(weight * factors, self._weight.name)
                    row = row * factor
                row = (row if shift is None else row + shift).astype(dtype)
        except FloatingPointError:  # one after the other they may stay finite
            return False
        self._weight = scaled
        if bias is not None or shift is not None:
            self._bias = Value.constant(row)
        return True

    def _along_channels(self, factor: Array, weight: Array) -> Array:
        """The factors in a shape that broadcasts over the weights."""
        ones = (1,) * (weight.ndim - 2)
        if self._node.op_type == "Conv":
            return factor.reshape(-1, 1, *ones)
        if self._node.op_type == "ConvTranspose":
            groups = int(self._node.attrs.get("group", 1))
            per_group = np.repeat(factor.reshape(groups, -1), weight.shape[0] // groups, axis=0)
            return per_group.reshape(weight.shape[0], weight.shape[1], *ones)
        return factor.reshape(1, -1)


def _bounds(activation: Activation) -> tuple[float, float] | None:
    """Between what an activation keeps numbers, if that is all that it does."""
    match activation.code:
        case ActivationCode.RELU:
            return 0.0, math.inf
        case ActivationCode.CLIP:
            return activation.alpha, activation.beta
    return None


def _followed(kind: str, bound: float, number: float, first: bool) -> float:
    """What an operator makes of a bound and a number, ``first`` if the bound is its left side."""
    match kind:
        case "Add" | "Sum":
            return bound + number
        case "Sub":
            return bound - number if first else number - bound
        case "Mul":
            return bound * number
    return bound / number


def activation_of(node: Node) -> Activation | None:
    """The activation that a node computes, or ``None`` if it is none that can be fused."""
    code, attrs = ActivationCode, node.attrs
    match node.kind:
        case "Relu":
            return Activation(code.RELU)
        case "Clip":
            return _clip(node)
        case "LeakyRelu":
            return Activation(code.LEAKY_RELU, node.number("alpha", 0.01))
        case "HardSwish":
            return Activation(code.HARD_SWISH)
        case "HardSigmoid":
            return Activation(
                code.HARD_SIGMOID, node.number("alpha", 0.2), node.number("beta", 0.5)
            )
        case "Sigmoid":
            return Activation(code.SIGMOID)
        case "Tanh":
            return Activation(code.TANH)
        case "partita::Silu":
            return Activation(code.SILU)
        case "Gelu":
            tanh = attrs.get("approximate", "none") == "tanh"
            return Activation(code.GELU_TANH if tanh else code.GELU)
        case "Mish":
            return Activation(code.MISH)
        case "Elu":
            return Activation(code.ELU, attrs.get("alpha", 1.0))
        case "Softplus":
            return Activation(code.SOFTPLUS)
    return None


def _clip(node: Node) -> Activation | None:
    if node.version < 11:
        low, high = node.attrs.get("min", CLIP_DEFAULTS[0]), node.attrs.get("max", CLIP_DEFAULTS[1])
    else:
        low = -math.inf if node.input(1) is None else scalar(node.input(1))
        high = math.inf if node.input(2) is None else scalar(node.input(2))
    if low is None or high is None or not low <= high:
        return None
    return Activation(ActivationCode.CLIP, low, high)


def _gemm(node: Node) -> tuple[Value, Value | None] | None:
    """Weights and bias that make a Gemm ``a @ b + bias``; ``None`` if it has another form."""
    attrs, weight, bias = node.attrs, node.inputs[1], node.input(2)
    if attrs.get("transA") or weight is None or weight.const is None or weight.const.ndim != 2:
        return None
    if not is_float(weight.const):
        return None
    matrix = weight.const.T if attrs.get("transB") else weight.const
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    if alpha != 1.0:
        matrix = (matrix * alpha).astype(matrix.dtype)
    row: Value | None = None
    if bias is not None:
        if bias.const is None or not is_float(bias.const):
            return None
        columns = matrix.shape[1]
        if bias.const.size != 1 and bias.const.shape[-1:] != (bias.const.size,):
            return None  # one number per row
        if bias.const.size not in (1, columns):
            return None
        flat = np.broadcast_to(bias.const.reshape(-1) * beta, (columns,))
        row = Value.constant(np.ascontiguousarray(flat, dtype=matrix.dtype), bias.name)
    return Value.constant(matrix, weight.name), row
