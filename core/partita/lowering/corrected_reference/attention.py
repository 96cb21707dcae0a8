"""Attention, of which ``onnx.reference`` misreads what few models ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.defs
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op_list import load_op

_SHORT_MASKS = 24
"""The opset from which on a mask may have fewer columns than there are keys."""


def attention_of(opset: int) -> type[OpRun] | None:
    """Attention of an opset; ``None`` if it has none.

    Where the product of queries and keys is asked for, the original gives it after ``softcap``. It
    looks for infinities in the mask's type, which may be an integer one. Where later keys are
    closed, it takes as many queries for there as the mask has rows, which may be one for all. It
    fills up masks that have too few keys in opset 23 too, where ONNX has them broadcast alone.
    """
    if not onnx.defs.has("Attention", opset):
        return None
    base: Any = load_op("", "Attention", opset, evaluator_cls=ReferenceEvaluator)

    class Attention(base):  # type: ignore[misc]  # made for each version
        def _run(self, q: Any, *others: Any, **given: Any) -> tuple[Any, ...]:
            inputs = [q, *others]
            if opset < _SHORT_MASKS:
                _require_a_mask_of_all_keys(*inputs[1:5])
            if len(inputs) > 3 and inputs[3] is not None and inputs[3].dtype.kind in "iu":
                inputs[3] = inputs[3].astype(q.dtype)
            if len(inputs) > 3 and inputs[3] is not None and inputs[3].ndim > 1:
                *around, _, keys = inputs[3].shape
                inputs[3] = np.broadcast_to(inputs[3], (*around, q.shape[-2], keys))
            results: tuple[Any, ...] = super()._run(*inputs, **given)
            asked = len(self.onnx_node.output) > 3 and not given.get("qk_matmul_output_mode")
            if asked and given.get("softcap"):
                product = super()._run(*inputs, **{**given, "softcap": 0.0})[3]
                results = (*results[:3], product)
            return results

    Attention.__name__ = base.__name__
    return Attention


def _require_a_mask_of_all_keys(
    key: Any, _value: Any, mask: Any = None, past_key: Any = None
) -> None:
    keys = key.shape[-2] + (0 if past_key is None else past_key.shape[-2])
    if mask is not None and mask.shape[-1] not in (1, keys):
        raise ValueError(f"attn_mask has {mask.shape[-1]} columns for {keys} keys")
