"""Corrections of operators that ``onnx.reference`` computes wrongly, or takes minutes for.

Devices that fold constants by it get these operators (``reference_fold``), and device REFERENCE
runs models by them and by more of its own, of operators that no device folds. Each class says what
is wrong with the original; a test compares it with onnxruntime. Remove one when the oldest
supported ``onnx`` has it right.
"""

from __future__ import annotations

import functools

import onnx.defs
from onnx.reference.op_run import OpRun

from partita.lowering.corrected_reference.arithmetic import BatchNormalization, CumSum, Pow, PRelu
from partita.lowering.corrected_reference.attention import attention_of
from partita.lowering.corrected_reference.axes import (
    NAMED_AXES,
    with_checked_axes,
    with_reduced_axes,
)
from partita.lowering.corrected_reference.element_types import BY_TYPE
from partita.lowering.corrected_reference.exact import EXACT
from partita.lowering.corrected_reference.indexing import Gather, GatherElements
from partita.lowering.corrected_reference.movement import (
    Flatten,
    Pad,
    Slice,
    Split,
    Unique,
    Unsqueeze,
)
from partita.lowering.corrected_reference.rounding import (
    WIDENED,
    Cast,
    CastLike,
    LpNormalization,
    original,
    widened,
)
from partita.lowering.corrected_reference.softmax import Hardmax, LogSoftmax, Softmax
from partita.lowering.corrected_reference.windows import (
    LRN,
    AveragePool,
    ConvTranspose,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
)
from partita.model.operator_checks import REDUCTIONS

CORRECTED: tuple[type[OpRun], ...] = (
    AveragePool,
    BatchNormalization,
    Cast,
    CastLike,
    ConvTranspose,
    CumSum,
    Flatten,
    Gather,
    GatherElements,
    GlobalLpPool,
    GlobalMaxPool,
    Hardmax,
    LRN,
    LogSoftmax,
    LpNormalization,
    LpPool,
    MaxPool,
    PRelu,
    Pad,
    Pow,
    Slice,
    Softmax,
    Split,
    Unique,
    Unsqueeze,
    *BY_TYPE,
)
"""Those of all opsets, or of all before the one that their ``before`` names."""


@functools.cache
def corrected_for(opset: int, more: tuple[type[OpRun], ...] = ()) -> tuple[type[OpRun], ...]:
    """The corrections that an opset needs.

    Args:
        opset: The version of ONNX's main domain.
        more: Further corrections of that domain; ``before`` names the first opset that does not
            need one.
    """
    attention = attention_of(opset)
    wanted = [new for new in (*CORRECTED, *more) if opset < getattr(new, "before", opset + 1)]
    wanted += [new for new in EXACT if onnx.defs.has(new.__name__, opset)]
    wanted += [] if attention is None else [attention]
    # Some are named after a version, as the original is: "Attention_24".
    needed = {new.__name__.partition("_")[0]: new for new in wanted}
    changes = (widened, WIDENED), (with_checked_axes, NAMED_AXES), (with_reduced_axes, REDUCTIONS)
    for change, names in changes:
        for name in names:
            base = needed.get(name) or original(name, opset)
            if base is not None:
                needed[name] = change(base, name)
    return tuple(needed.values())
