"""Results of operators that work on each element, and of others that keep a shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.rule import ResultRules

ELEMENTWISE_RESULTS = ResultRules()


@ELEMENTWISE_RESULTS.shape(
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
    *("Acos", "Acosh", "Asin", "Asinh", "Atanh", "BitwiseNot", "Cosh", "Hardmax", "LRN", "Shrink"),
    *("CumProd", "MeanVarianceNormalization", "ReverseSequence", "Sinh"),
    *("CumSum", "IsInf", "IsNaN", "PRelu", "Selu", "ThresholdedRelu", "Trilu", "Tan", "Atan"),
    *("ScatterElements", "ScatterND", "GroupNormalization", "LpNormalization", "Celu", "Swish"),
    *(
        "Cast",
        "CastLike",
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "RMSNormalization",
    ),
    *(f"partita::{name}" for name in ("Gelu", "HardSigmoid", "HardSwish", "Mish", "Silu")),
    *("partita::LayerNormalization", "partita::LevelScaleShift", "partita::LevelTable"),
    *(
        "partita::LevelSoftmax",
        "partita::ChannelNormalization",
        "partita::Narrow",
        "partita::Widen",
    ),
)
def _same(node: Node, operands: Sequence[Operand]) -> Sequence[int]:
    return operands[0].shape


@ELEMENTWISE_RESULTS.shape(
    *("Add", "Div", "Mul", "Sub", "Pow", "Max", "Min", "Mean", "Sum", "And", "Or"),
    *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Xor", "Mod"),
)
def _broadcast(node: Node, operands: Any) -> Sequence[int]:
    return broadcast(*(operand.shape for operand in operands))


@ELEMENTWISE_RESULTS.shape("Where")
def _where(node: Node, operands: Any) -> Sequence[int]:
    return broadcast(*(operand.shape for operand in operands))


@ELEMENTWISE_RESULTS.outputs("Dropout")
def _dropout(node: Node, operands: Any) -> Sequence[Operand]:
    x = operands[0]
    return [Operand(x.shape, x.dtype), Operand(x.shape, np.dtype(np.bool_))][: len(node.outputs)]
