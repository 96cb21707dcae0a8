"""Traits of ONNX operators that hold on every device: element-wise, data movement, and others.

The table has a row per operator. Who decides by it: made-up inputs, fusion, layouts, and HETERO's
placement and cost model.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable


class Trait(enum.Flag):
    """What an operator does with its elements.

    Attributes:
        SELECTS: Its result holds nothing but elements of its first input, as they are.
        MOVES: It only moves numbers, converts their type, or tells their count.
        ELEMENTWISE: It computes element by element, by numpy's broadcasting rules, numbers of one
            type.
        LIGHT: It costs little next to a product or a convolution, and is often fused behind one.
    """

    SELECTS = enum.auto()
    MOVES = enum.auto()
    ELEMENTWISE = enum.auto()
    LIGHT = enum.auto()


_S, _M, _E, _L = Trait.SELECTS, Trait.MOVES, Trait.ELEMENTWISE, Trait.LIGHT

_ROWS: Iterable[tuple[Trait, str]] = (
    (_S | _M | _L, "Flatten Identity Reshape Squeeze Transpose Unsqueeze"),
    (_S | _M, "Expand Gather Slice"),
    (_S, "MaxPool"),
    (_M | _L, "Cast"),
    (_M, "Concat ConstantOfShape DepthToSpace GatherElements GatherND Pad Shape Size"),
    (_M, "SpaceToDepth Split Tile"),
    (_E | _L, "Abs Add Ceil Clip Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log"),
    (_E | _L, "Max Min Mish Mul Neg PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Softplus"),
    (_E | _L, "Softsign Sqrt Sub Tanh"),
    (_E, "Celu Mean Sum ThresholdedRelu"),
    (_E, "partita::Gelu partita::HardSigmoid partita::HardSwish partita::Silu"),
    (_L, "And BatchNormalization Cos CumSum DequantizeLinear Dropout Equal Greater"),
    (_L, "GreaterOrEqual LayerNormalization Less LessOrEqual Mod Not Or QuantizeLinear ReduceMax"),
    (_L, "ReduceMean ReduceSum Sin Softmax Swish Where Xor"),
)

TRAITS: dict[str, Trait] = {kind: traits for traits, kinds in _ROWS for kind in kinds.split()}
"""Operator (``domain::name`` outside of ONNX's own domain) to its traits."""


@functools.cache
def having(trait: Trait) -> frozenset[str]:
    """The operators that have a trait.

    Example:
        >>> "Reshape" in having(Trait.SELECTS), "Conv" in having(Trait.LIGHT)
        (True, False)
    """
    return frozenset(kind for kind, traits in TRAITS.items() if trait in traits)
