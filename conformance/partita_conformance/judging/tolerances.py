"""Tolerances of an operator's results, by what it computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


EXACT = _names(
    """Abs Neg Relu Floor Ceil Round Sign Identity Max Min Clip Greater Less GreaterOrEqual
    LessOrEqual Equal And Or Xor Not Where Cast CastLike ReduceMax ReduceMin ArgMax ArgMin Hardmax
    MaxPool GlobalMaxPool Concat Split Slice Gather GatherElements GatherND Transpose Reshape
    Flatten     Squeeze Unsqueeze Expand Tile Pad TopK DepthToSpace SpaceToDepth Trilu
    OneHot Shape Size NonZero
    Compress EyeLike ConstantOfShape IsNaN IsInf BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    ReverseSequence Unique CenterCropPad Scatter Dropout MatMulInteger ConvInteger QuantizeLinear"""
)
"""Operators that move, choose or compare; they do not round."""
MOVED = _names(
    """Identity Where Concat Split Slice Gather GatherElements GatherND Transpose Reshape Flatten
    Squeeze Unsqueeze Expand Tile Pad DepthToSpace SpaceToDepth Trilu Compress ReverseSequence
    CenterCropPad Dropout"""
)
"""Operators whose results are elements of their inputs as they are, denormal numbers too."""
ROUNDED = _names("Add Sub Mul Div Sqrt Reciprocal Mod Sum Mean PRelu ThresholdedRelu Range")
"""Operators of one or two rounded operations per element."""
ELEMENTWISE = _names(
    """Sigmoid Tanh Exp Sin Cos Erf Softplus Softsign HardSwish Atan Sinh Cosh Log Asin Acosh Acos
    Asinh Atanh Tan LeakyRelu Elu Selu Celu HardSigmoid Pow Gelu Mish Swish Shrink"""
)
"""Functions of each element, which libraries compute to some units in the last place."""


CENTRED = _names(
    """LayerNormalization InstanceNormalization MeanVarianceNormalization GroupNormalization"""
)
"""Operators that take the mean away, which costs digits where the mean is large."""


OF_FEW_BITS = _names("MatMulNBits QMoE")
"""Products for which devices may round activations to bytes, unless a level asks for more."""


_NIBBLES = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


class Tolerance(NamedTuple):
    """Tolerances as :func:`partita_conformance.judging.compare.compare` takes them."""

    rtol: float
    atol: float
    of_largest: float


def tolerance(op_type: str, dtype: Any) -> Tolerance:
    """What results of an operator and of a type may be off by.

    Four units in the last place where an operator rounds once or twice, nothing where it moves
    elements; where a mean is taken away, results may be off by a share of the largest element.
    """
    kind = np.dtype(dtype)
    floats = kind.kind in "fV" and kind not in _NIBBLES
    if not floats and kind != np.dtype(ml_dtypes.bfloat16):
        return Tolerance(0, 0, 0)
    info: Any = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]  # ml_dtypes
    eps, tiny = float(info.eps), float(info.smallest_normal)
    if op_type in MOVED:
        return Tolerance(0, 0, 0)
    if op_type in EXACT:
        return Tolerance(0, tiny, 0)  # denormal numbers may be flushed to zero
    if op_type in ROUNDED:
        return Tolerance(4 * eps, tiny, 0)
    if kind == np.float64:
        return Tolerance(1e-12, 1e-12 if op_type in ELEMENTWISE else 1e-13, 0)
    if op_type in ELEMENTWISE:
        return Tolerance(max(1e-4, 4 * eps), max(1e-6, eps), 0)
    if op_type in OF_FEW_BITS:
        return Tolerance(1e-2, 1e-6, 2e-2)
    of_largest = max(3e-5, 2 * eps) if op_type in CENTRED else 8 * eps  # of sums that cancel
    return Tolerance(max(1e-4, 4 * eps), max(1e-6, eps), of_largest)
