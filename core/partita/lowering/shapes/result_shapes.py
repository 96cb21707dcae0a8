"""Shapes and types of results of the usual operators, told without emitting anything.

A back-end's emitters tell them too, and are the judges: a graph is rewritten by these shapes, and
the walk that makes the program of it checks each one that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError
from partita.lowering.geometry.fourier import dft_axis, resolve_dft, resolve_stft
from partita.lowering.geometry.resampling import scaled
from partita.lowering.geometry.slices import taken
from partita.lowering.geometry.windows import resolve, resolve_transposed
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.decoder_results import DECODER_RULES, Rules
from partita.lowering.shapes.symbolic_size import evaluated

Operands = Sequence[Operand | None]
Rule = Callable[[Node, Any], Sequence[int] | None]
"""The shape of the one output, or ``None`` if that is not as usual."""

_RULES: dict[str, Rule] = {}
_RULES_OF_SEVERAL: dict[str, Rules] = dict(DECODER_RULES)
_BOOL = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"})
_BOOL |= {"IsInf", "IsNaN", "Xor"}
_INT64 = np.dtype(np.int64)

TOLD_BY_THE_RUN = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Operators whose results are as large as their elements say."""


def predicted(node: Node, operands: Operands) -> Sequence[Operand] | None:
    """Stand-ins for the outputs of a node; ``None`` if only its emitter knows.

    Their type is the first input's, but for operators that say otherwise.
    """
    if not operands or operands[0] is None:
        return None
    try:
        several = _RULES_OF_SEVERAL.get(node.kind)
        if several is not None:
            return several(node, operands)
        rule = _RULES.get(node.kind)
        if rule is None or any(value is not None for value in node.outputs[1:]):
            return None
        shape = rule(node, operands)
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, CompileError):
        return None  # it does not fit, as its emitter will say
    dtype = _type(node, operands)
    return None if shape is None or dtype is None else [Operand(tuple(shape), dtype)]


def _type(node: Node, operands: Any) -> np.dtype[Any] | None:
    if node.op_type in _BOOL:
        return np.dtype(np.bool_)
    if node.op_type in ("Cast", "Narrow", "Widen"):
        return None if node.outputs[0] is None else node.outputs[0].dtype
    if node.op_type in ("ArgMax", "ArgMin"):
        return _INT64
    if node.op_type == "Where":
        return operands[1].dtype  # type: ignore[no-any-return]  # of an operand
    if node.op_type == "ConstantOfShape":
        return np.asarray(node.attrs.get("value", np.float32(0))).dtype
    return operands[0].dtype  # type: ignore[no-any-return]


def _rule(*kinds: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _rule_of_several(*kinds: str) -> Callable[[Rules], Rules]:
    def register(rule: Rules) -> Rules:
        _RULES_OF_SEVERAL.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """What shapes become together by ONNX's rules; as numpy's, and a tenth of its time.

    Raises:
        ValueError: They do not fit.
    """
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return tuple(first)
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[axis] not in (1, size):
                raise ValueError(f"shapes {shapes} do not fit each other")
            if size != 1:
                result[axis] = size
    return tuple(result)


def _constant(operand: Operand | None) -> list[int] | None:
    return None if operand is None or operand.const is None else operand.const.reshape(-1).tolist()


def _unknown(*operands: Operand | None) -> bool:
    return any(operand is not None and operand.const is None for operand in operands)


def _number(operand: Operand | None) -> Any:
    """The one element of an operand that is known; of one that is left out ``None``."""
    return None if operand is None or operand.const is None else operand.const.item()


@_rule(
    *("Abs", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *(
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Log",
        "LogSoftmax",
        "Mish",
        "Neg",
        "Not",
        "Reciprocal",
    ),
    *("Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh"),
    *("CumSum", "IsInf", "IsNaN", "PRelu", "Selu", "ThresholdedRelu", "Trilu", "Tan", "Atan"),
    *("ScatterElements", "ScatterND", "GroupNormalization", "LpNormalization", "Celu", "Swish"),
    *(
        "Cast",
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "RMSNormalization",
    ),
    *(f"partita::{name}" for name in ("Gelu", "HardSigmoid", "HardSwish", "Mish", "Silu")),
    *("partita::LayerNormalization", "partita::Narrow", "partita::Widen"),
)
def _same(node: Node, operands: Any) -> Sequence[int]:
    return operands[0].shape  # type: ignore[no-any-return]  # of an operand


@_rule(
    *("Add", "Div", "Mul", "Sub", "Pow", "Max", "Min", "Mean", "Sum", "And", "Or"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Xor", "Mod"),
)
def _broadcast(node: Node, operands: Any) -> Sequence[int]:
    return broadcast(*(operand.shape for operand in operands))


@_rule("Where")
def _where(node: Node, operands: Any) -> Sequence[int]:
    return broadcast(*(operand.shape for operand in operands))


@_rule("MatMul", "partita::MatMul")
def _matmul(node: Node, operands: Any) -> Sequence[int] | None:
    x, w = operands[0].shape, operands[1].shape
    if len(x) < 2 or len(w) < 2 or x[-1] != w[-2]:
        return None
    return (*broadcast(x[:-2], w[:-2]), x[-2], w[-1])


@_rule("Gemm")
def _gemm(node: Node, operands: Any) -> Sequence[int]:
    x, w = operands[0].shape, operands[1].shape
    flip_x, flip_w = node.attrs.get("transA", 0), node.attrs.get("transB", 0)
    return x[1 if flip_x else 0], w[0 if flip_w else 1]


@_rule("partita::Attention")
def _attention(node: Node, operands: Any) -> Sequence[int] | None:
    *first, turned = node.attrs.get("heads_first", (False,) * 4)
    shapes = [operand.shape for operand in operands[:3]]
    if any(len(shape) != 4 for shape in shapes):
        return None
    q, k, v = (
        (x[0], x[2], x[1], x[3]) if moved else x for x, moved in zip(shapes, first, strict=True)
    )
    mask = operands[3].shape if len(operands) > 3 and operands[3] is not None else ()
    around = (1,) * (4 - len(mask)) + mask
    same = q[0] == k[0] == v[0] and q[2] == k[2] == v[2] and k[1] == v[1]
    if not same or any(
        m not in (1, n) for m, n in zip(around, (q[0], q[2], q[1], k[1]), strict=True)
    ):
        return None
    return (q[0], q[2], q[1], v[3]) if turned else (*q[:3], v[3])


@_rule("Conv", "partita::Conv")
def _conv(node: Node, operands: Any) -> Sequence[int]:
    x, w = operands[0].shape, operands[1].shape
    return x[0], w[0], *resolve(node, x[2:], w[2:]).out_shape


@_rule("AveragePool", "MaxPool")
def _pool(node: Node, operands: Any) -> Sequence[int]:
    shape, kernel = operands[0].shape, node.attrs["kernel_shape"]
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    return *shape[:2], *resolve(node, shape[2:], kernel, ceil_mode=ceil_mode).out_shape


@_rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node, operands: Any) -> Sequence[int]:
    shape = operands[0].shape
    return (*shape[:2], *[1] * (len(shape) - 2))


@_rule("Transpose", "partita::Transpose")
def _transpose(node: Node, operands: Any) -> Sequence[int]:
    shape = operands[0].shape
    return [shape[axis] for axis in node.attrs.get("perm", range(len(shape) - 1, -1, -1))]


@_rule("Concat")
def _concat(node: Node, operands: Any) -> Sequence[int] | None:
    first = operands[0].shape
    axis = node.attrs["axis"]
    if any(len(operand.shape) != len(first) for operand in operands):
        return None
    size = sum(operand.shape[axis] for operand in operands)
    return [size if place == axis % len(first) else n for place, n in enumerate(first)]


@_rule("Reshape")
def _reshape(node: Node, operands: Any) -> Sequence[int] | None:
    x, dims = operands[0], _constant(operands[1])
    if dims is None or node.attrs.get("allowzero", 0):
        return None
    dims = [x.shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    if -1 in dims:
        known = -math.prod(dims)
        if not known:
            return None
        dims[dims.index(-1)] = x.size // known
    return dims if math.prod(dims) == x.size and all(n >= 0 for n in dims) else None


@_rule("Unsqueeze")
def _unsqueeze(node: Node, operands: Any) -> Sequence[int] | None:
    axes = node.attrs.get("axes") if node.version < 13 else _constant(operands[1])
    if axes is None:
        return None
    rank = operands[0].ndim + len(axes)
    new = {axis % rank for axis in axes}
    if len(new) < len(axes):
        return None
    sizes = iter(operands[0].shape)
    return [1 if axis in new else next(sizes) for axis in range(rank)]


@_rule("Squeeze")
def _squeeze(node: Node, operands: Any) -> Sequence[int] | None:
    shape, given = operands[0].shape, operands[1] if len(operands) > 1 else None
    if _unknown(given):
        return None
    axes = node.attrs.get("axes") if node.version < 13 else _constant(given)
    if axes is None:
        return [size for size in shape if size != 1]
    gone = {axis % len(shape) for axis in axes}
    return [size for axis, size in enumerate(shape) if axis not in gone]


@_rule("Gather")
def _gather(node: Node, operands: Any) -> Sequence[int]:
    x, index = operands[0].shape, operands[1].shape
    axis = node.attrs.get("axis", 0) % len(x)
    return (*x[:axis], *index, *x[axis + 1 :])


@_rule("Slice")
def _slice(node: Node, operands: Any) -> Sequence[int] | None:
    if _unknown(*operands[1:]):
        return None
    if node.version < 10:
        starts, ends, axes = (node.attrs.get(name) for name in ("starts", "ends", "axes"))
        steps: Sequence[int] | None = None
    else:
        starts, ends, axes, steps = (_constant(x) for x in [*operands[1:], None, None][:4])
    if starts is None or ends is None:
        return None
    shape = list(operands[0].shape)
    axes, steps = axes or range(len(starts)), steps or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        _, shape[axis] = taken(operands[0].shape[axis], start, end, step)
    return shape


@_rule("ConstantOfShape")
def _constant_of_shape(node: Node, operands: Any) -> Sequence[int] | None:
    return _constant(operands[0])


@_rule("Range")
def _range(node: Node, operands: Any) -> Sequence[int] | None:
    start, limit, step = (_constant(x) for x in operands)
    if operands[0].dtype.kind not in "iu" or start is None or limit is None or step is None:
        return None
    return [evaluated(count_of_range, start[0], limit[0], step[0])]


def count_of_range(start: int, limit: int, step: int) -> int:
    """How many whole numbers a Range makes; none in steps of 0."""
    return len(range(start, limit, step)) if step else 0


def length_of_range(first: float, limit: float, step: float) -> int:
    """The same of numbers of any type, none of which stands for a size."""
    return max(math.ceil((limit - first) / step), 0) if step else 0


@_rule("Expand")
def _expand(node: Node, operands: Any) -> Sequence[int] | None:
    dims = _constant(operands[1])
    return None if dims is None else broadcast(operands[0].shape, tuple(dims))


@_rule(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)
def _reduce(node: Node, operands: Any) -> Sequence[int] | None:
    shape, given = operands[0].shape, operands[1] if len(operands) > 1 else None
    if _unknown(given):
        return None
    axes = node.attrs.get("axes") if given is None else _constant(given)
    if not axes:
        if node.attrs.get("noop_with_empty_axes", 0):
            return shape  # type: ignore[no-any-return]  # of an operand
        axes = range(len(shape))
    gone = {axis % len(shape) for axis in axes}
    if node.attrs.get("keepdims", 1):
        return [1 if axis in gone else size for axis, size in enumerate(shape)]
    return [size for axis, size in enumerate(shape) if axis not in gone]


@_rule("ArgMax", "ArgMin")
def _arg(node: Node, operands: Any) -> Sequence[int]:
    shape = list(operands[0].shape)
    axis = node.attrs.get("axis", 0) % len(shape)
    return [*shape[:axis], *[1][: node.attrs.get("keepdims", 1)], *shape[axis + 1 :]]


@_rule("Flatten")
def _flatten(node: Node, operands: Any) -> Sequence[int] | None:
    shape, axis = operands[0].shape, node.attrs.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        return None
    axis = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@_rule("Pad")
def _pad(node: Node, operands: Any) -> Sequence[int] | None:
    pads, axes = node.attrs.get("pads"), None
    if node.version >= 11:
        pads = _constant(operands[1])
        axes = _constant(operands[3]) if len(operands) > 3 and operands[3] is not None else None
        if pads is None or (len(operands) > 3 and operands[3] is not None and axes is None):
            return None
    shape = list(operands[0].shape)
    axes = list(range(len(shape))) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        return None
    for axis, low, high in zip(axes, pads, pads[len(axes) :], strict=False):
        shape[axis] = shape[axis] + low + high
        if shape[axis] < 0:
            return None
    return shape


@_rule("Resize", "Upsample")
def _resize(node: Node, operands: Any) -> Sequence[int] | None:
    shape = list(operands[0].shape)
    given = [None if operand is None else operand.const for operand in operands]
    scales = given[1] if node.op_type == "Upsample" or node.version < 11 else None
    sizes = None
    if scales is None and node.version >= 11:
        scales, sizes = [*given, None, None, None][2:4]
    if "axes" in node.attrs or node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if scales is not None and scales.size == len(shape):
        factors = scales.reshape(-1).tolist()
        return [evaluated(scaled, n, factor) for n, factor in zip(shape, factors, strict=True)]
    found: Sequence[int] | None = None if sizes is None else sizes.reshape(-1).tolist()
    if found is None or len(found) != len(shape) or any(n < 0 for n in found):
        return None
    return found


@_rule("ConvTranspose", "partita::ConvTranspose")
def _conv_transpose(node: Node, operands: Any) -> Sequence[int]:
    x, w = operands[0].shape, operands[1].shape
    window = resolve_transposed(node, x[2:], w[2:])
    return x[0], w[1] * node.attrs.get("group", 1), *window.size[3 - window.rank :]


@_rule("DepthToSpace")
def _depth_to_space(node: Node, operands: Any) -> Sequence[int]:
    n, c, h, w = operands[0].shape
    size = node.attrs["blocksize"]
    return n, c // (size * size), h * size, w * size


@_rule("SpaceToDepth")
def _space_to_depth(node: Node, operands: Any) -> Sequence[int]:
    n, c, h, w = operands[0].shape
    size = node.attrs["blocksize"]
    return n, c * size * size, h // size, w // size


@_rule("Tile")
def _tile(node: Node, operands: Any) -> Sequence[int] | None:
    times = _constant(operands[1])
    if times is None or node.version < 6:
        return None
    return [n * count for n, count in zip(operands[0].shape, times, strict=True)]


@_rule("GatherElements")
def _gather_elements(node: Node, operands: Any) -> Sequence[int]:
    return operands[1].shape  # type: ignore[no-any-return]  # of an operand


@_rule("GatherND")
def _gather_nd(node: Node, operands: Any) -> Sequence[int] | None:
    x, index = operands[0].shape, operands[1].shape
    depth = node.attrs.get("batch_dims", 0) + index[-1]
    return (*index[:-1], *x[depth:]) if type(depth) is int else None


@_rule("DFT")
def _dft(node: Node, operands: Any) -> Sequence[int] | None:
    x, length, axis = [*operands, None, None][:3]
    if _unknown(length, axis):
        return None
    return resolve_dft(node, x.shape, _number(length), dft_axis(node, _number(axis))).shape


@_rule("STFT")
def _stft(node: Node, operands: Any) -> Sequence[int] | None:
    signal, step, window, length = [*operands, None, None][:4]
    if _unknown(step, length):
        return None
    size = None if window is None else window.size
    return resolve_stft(node, signal.shape, step.const.item(), size, _number(length)).shape


@_rule_of_several("Split")
def _split(node: Node, operands: Any) -> Sequence[Operand] | None:
    x, count = operands[0], len(node.outputs)
    axis = node.attrs.get("axis", 0) % x.ndim
    length = x.shape[axis]
    given = operands[1] if len(operands) > 1 else None
    sizes = node.attrs.get("split") if given is None else _constant(given)
    if given is not None and sizes is None:
        return None
    if not sizes:
        each = -(-length // count)
        sizes = [max(0, min(each, length - k * each)) for k in range(count)]
    if len(sizes) != count:
        return None
    shapes = ((*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes)
    return [Operand(shape, x.dtype) for shape in shapes]


@_rule_of_several("TopK")
def _top_k(node: Node, operands: Any) -> Sequence[Operand] | None:
    x, k = operands[0], node.attrs.get("k")
    if node.version >= 10:
        found = _constant(operands[1])
        k = found[0] if found else None
    axis = node.attrs.get("axis", -1) % x.ndim
    if k is None or k > x.shape[axis]:
        return None
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [Operand(shape, x.dtype), Operand(shape, _INT64)]


@_rule_of_several("Dropout")
def _dropout(node: Node, operands: Any) -> Sequence[Operand]:
    x = operands[0]
    return [Operand(x.shape, x.dtype), Operand(x.shape, np.dtype(np.bool_))][: len(node.outputs)]


@_rule_of_several("GRU", "LSTM", "RNN")
def _recurrent(node: Node, operands: Any) -> Sequence[Operand] | None:
    x, hidden = operands[0], operands[2].shape[2]
    if node.attrs.get("layout", 0):
        return None
    steps, batch, _ = x.shape
    directions = operands[1].shape[0]
    last = Operand((directions, batch, hidden), x.dtype)
    cells = Operand((directions, batch, hidden), x.dtype)
    whole = Operand((steps, directions, batch, hidden), x.dtype)
    return [whole, last, cells][: len(node.outputs)]
