"""Quantization, where ``onnx.reference`` loses what is beyond int32 or takes rows for columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.defs
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op_list import load_op

Array = np.ndarray[Any, Any]

_FAR = 2.0**30
"""Steps beyond every quantized type, and within int32."""


def bounded_quantization(opset: int) -> type[OpRun] | None:
    """QuantizeLinear of an opset; ``None`` if it has none.

    The original makes the smallest number of what int32 does not hold, and of infinity.
    """
    if not onnx.defs.has("QuantizeLinear", opset):
        return None
    base: Any = load_op("", "QuantizeLinear", opset, evaluator_cls=ReferenceEvaluator)

    class QuantizeLinear(base):  # type: ignore[misc]  # made for each version
        def _run(self, x: Array, scale: Array, *rest: Any, **given: Any) -> tuple[Array]:
            most = _FAR * np.min(np.abs(scale.astype(np.float64)), initial=np.inf)
            near = np.clip(x, -most, most).astype(x.dtype) if np.isfinite(most) else x
            result: tuple[Array] = super()._run(near, scale, *rest, **given)
            return result

    QuantizeLinear.__name__ = base.__name__
    return QuantizeLinear


class MatMulInteger(OpRun):
    """The original takes zero points of rows for those of columns."""

    def _run(
        self,
        a: Array,
        b: Array,
        a_zero_point: Array | None = None,
        b_zero_point: Array | None = None,
    ) -> tuple[Array]:
        left, right = a.astype(np.int32), b.astype(np.int32)
        if a_zero_point is not None:
            rows = a_zero_point[:, None] if a_zero_point.ndim == 1 else a_zero_point
            left = left - rows.astype(np.int32)
        if b_zero_point is not None:
            right = right - b_zero_point.astype(np.int32)
        return (np.matmul(left, right),)
