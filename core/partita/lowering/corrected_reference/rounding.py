"""Half precision computed as engines do: in float32, and rounded once at the end.

``onnx.reference`` computes sums of float16 in float16: the mean of 60000 and 60000 overflows there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx.defs
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun, RuntimeContextError
from onnx.reference.ops._op_list import load_op
from onnx.reference.ops.op_cast import cast_to

from partita.lowering.corrected_reference.axes import schema_of
from partita.tensors.narrowing import LONG, rounded_to_odd

Array = np.ndarray[Any, Any]

WIDENED = (
    *("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
    *("ReduceLogSumExp", "ReduceProd", "CumSum", "Mean", "Sum"),
    *("LayerNormalization", "InstanceNormalization", "BatchNormalization", "LpNormalization"),
    *("GroupNormalization", "MeanVarianceNormalization", "LRN"),
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "AveragePool", "GlobalAveragePool"),
    *("LpPool", "GlobalLpPool", "Sigmoid", "Softplus", "Elu", "Selu", "Celu", "HardSigmoid"),
    *("HardSwish", "Mish", "Gelu", "Softsign", "Tanh", "Erf", "Pow", "LSTM", "GRU", "RNN"),
    *("Resize", "GridSample", "RoiAlign", "Attention", "Det", "DeformConv", "AffineGrid"),
    "MelWeightMatrix",
    *("Softmax", "LogSoftmax", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
    "QuantizeLinear",
)
"""Operators that round more than once."""

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def widened(base: type[OpRun], op_type: str) -> type[OpRun]:
    """The operator, computed in float32 where its inputs are of half precision.

    Attributes are widened to float64, in which the original's formulas of them alone are then.
    """
    schema = schema_of(base, op_type)

    class Widened(base):  # type: ignore[valid-type,misc]  # made for each operator
        op_schema = schema  # decides which defaults there are

        def _run(self, *inputs: Any, **given: Any) -> tuple[Any, ...]:
            numbers = {n: float(v) if isinstance(v, np.floating) else v for n, v in given.items()}
            results = super()._run(*(_wide(x) for x in inputs), **numbers)
            return tuple(_narrow(schema, i, r, inputs) for i, r in enumerate(results))

    Widened.__name__ = op_type
    return Widened


def _narrow(schema: onnx.defs.OpSchema, index: int, result: Any, inputs: Sequence[Any]) -> Any:
    """A result of float32, in half precision if the first input and that of its type have it.

    Sums of whole numbers, which numpy makes wider, have the type of what they are of again.
    """
    first = getattr(inputs[0], "dtype", None)
    if first is not None and first.kind in "iu" and schema.outputs[0].type_str == "T":
        whole = index == 0 and getattr(result, "dtype", first).kind in "iu"
        return np.asarray(result).astype(first) if whole else result
    if first not in _HALVES:
        return result
    outputs, formal = schema.outputs, schema.inputs
    kind = outputs[min(index, len(outputs) - 1)].type_str
    for i, x in enumerate(inputs):
        if formal[min(i, len(formal) - 1)].type_str == kind and isinstance(x, np.ndarray):
            narrow = x.dtype in _HALVES and getattr(result, "dtype", None) == np.float32
            return result.astype(x.dtype) if narrow else result
    return result


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype in _HALVES else x


def original(op_type: str, opset: int) -> type[OpRun] | None:
    """The evaluator's own operator; ``None`` if it has none, or one made of others."""
    if not onnx.defs.has(op_type, opset):
        return None
    try:
        found = load_op("", op_type, opset, evaluator_cls=ReferenceEvaluator)
    except (ImportError, RuntimeError, ValueError, NotImplementedError, RuntimeContextError):
        return None
    return found if isinstance(found, type) and issubclass(found, OpRun) else None


class LpNormalization(OpRun):
    """The original adds up numbers of either sign where it should add up magnitudes."""

    def _run(self, x: Array, axis: int | None = -1, p: int | None = 2) -> tuple[Array]:
        along, power = -1 if axis is None else axis, 2 if p is None else p
        if power == 1:
            norm = np.abs(x).sum(axis=along, keepdims=True, dtype=x.dtype)
        else:
            norm = np.sqrt((x * x).sum(axis=along, keepdims=True, dtype=x.dtype))
        result = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
        return (result,)


class Cast(OpRun):
    """The original leaves it to ml_dtypes, which rounds twice, by way of float32."""

    def _run(
        self, x: Array, to: Any = None, saturate: Any = True, round_mode: Any = "up"
    ) -> tuple[Array]:
        return (_cast(x, to, bool(saturate), round_mode),)


class CastLike(OpRun):
    """As :class:`Cast`."""

    def _run(
        self, x: Array, like: Array, saturate: Any = True, round_mode: Any = "up"
    ) -> tuple[Array]:
        to = helper.np_dtype_to_tensor_dtype(like.dtype)
        return (_cast(x, to, bool(saturate), round_mode),)


def _cast(x: Array, to: Any, saturate: bool, round_mode: Any) -> Array:
    if x.dtype in LONG and to in _SHORT:
        x = rounded_to_odd(x)
    cast: Any = cast_to
    return np.asarray(cast(x, to, saturate, round_mode or "up"))


_SHORT = frozenset(
    (
        TensorProto.BFLOAT16,
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
    )
)
"""Floats of few digits that numpy has from ml_dtypes."""
