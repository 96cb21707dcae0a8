"""Operators that ``onnx.reference`` computes otherwise than ONNX specifies, computed rightly.

Those that devices fold constants by are in ``partita.lowering.corrected_reference``. Each class
says what is wrong with the original; a test compares it with onnxruntime. Remove one when the
oldest supported ``onnx`` has it right.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_identity import Identity as OriginalIdentity
from onnx.reference.ops.op_negative_log_likelihood_loss import (
    NegativeLogLikelihoodLoss as OriginalLikelihoodLoss,
)
from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression as OriginalSuppression
from onnx.reference.ops.op_roi_align import RoiAlign as OriginalRoiAlign
from onnx.reference.ops.op_scatter_elements import ScatterElements

from partita.lowering.corrected_reference import corrected_for as corrected_with
from partita_reference.control_flow import Loop, Scan, SequenceMap
from partita_reference.decoder import DECODER
from partita_reference.empty_batches import EMPTY_BATCHES, no_loss
from partita_reference.machine_learning.categories import CATEGORIES
from partita_reference.machine_learning.decision_trees import DECISION_TREES
from partita_reference.machine_learning.vector_machines import SVMClassifier
from partita_reference.mixture import MIXTURES
from partita_reference.quantization import (
    ConvInteger,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    bounded_quantization,
    dividing_as_scales,
)
from partita_reference.quantized_weights import QUANTIZED_WEIGHTS
from partita_reference.recurrent import GRU, LSTM, RNN
from partita_reference.regions import REGIONS
from partita_reference.resize import Resize
from partita_reference.texts.operators import (
    RegexFullMatch,
    StringNormalizer,
    StringSplit,
)
from partita_reference.texts.tokens import TfIdfVectorizer, Tokenizer

MOST_SAMPLES = 1 << 22
"""Samples of an image that are taken so."""


class Optional(OpRun):
    """The original puts the value into a list, which makes it a sequence."""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        return (x,)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res  # the original refuses None, which is the optional without a value


class Identity(OriginalIdentity):
    """The original refuses to hand on an optional without a value."""

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res


class Scatter(ScatterElements):
    """Deprecated since opset 11, and left out of the original; models still hold it."""


class DequantizeLinear(OpRun):
    """The original begins with opset 19."""

    before = 19

    def _run(
        self,
        x: np.ndarray[Any, Any],
        scale: np.ndarray[Any, Any],
        zero_point: np.ndarray[Any, Any] | None = None,
        axis: int | None = None,
        **_: Any,
    ) -> tuple[np.ndarray[Any, Any]]:
        shape = [1] * x.ndim
        if scale.ndim == 1 and scale.size > 1:
            shape[1 if axis is None else axis] = -1
        zero = 0 if zero_point is None else zero_point.astype(np.int64).reshape(shape)
        return (((x.astype(np.int64) - zero) * scale.reshape(shape)).astype(scale.dtype),)


class NegativeLogLikelihoodLoss(OriginalLikelihoodLoss):
    """The original divides by ignored targets too where it is -1 that is ignored."""

    def _run(  # type: ignore[override]  # onnx names each of them
        self,
        x: np.ndarray[Any, Any],
        target: np.ndarray[Any, Any],
        weight: np.ndarray[Any, Any] | None = None,
        **given: Any,
    ) -> tuple[Any]:
        if not len(x):  # it also makes rows of as many places as there is room for
            return (no_loss(x, target, given.get("reduction") or "mean"),)
        ones = np.ones(x.shape[1], x.dtype) if weight is None else weight
        original: Any = super()._run
        return (original(x, target, ones, **given)[0],)


class NonMaxSuppression(OriginalSuppression):
    """The original fails where limits are scalars, as ONNX describes them, or left out."""

    def _run(
        self,
        boxes: np.ndarray[Any, Any],
        scores: np.ndarray[Any, Any],
        max_output_boxes_per_class: np.ndarray[Any, Any] | None = None,
        iou_threshold: np.ndarray[Any, Any] | None = None,
        score_threshold: np.ndarray[Any, Any] | None = None,
        center_point_box: int | None = None,
    ) -> tuple[Any]:
        most = 0 if max_output_boxes_per_class is None else max_output_boxes_per_class
        overlap = 0.0 if iou_threshold is None else iou_threshold
        least = None if score_threshold is None else np.atleast_1d(score_threshold)
        limits = (np.atleast_1d(most), np.atleast_1d(overlap), least)
        original: Any = super()._run
        return (original(boxes, scores, *limits, center_point_box)[0],)


class RoiAlign(OriginalRoiAlign):
    """The original begins with opset 16, and moves regions by half a pixel before as well.

    It walks through all samples of a region in Python, of which there may be any number.
    """

    def _run(  # type: ignore[override]  # onnx names each of them
        self, x: Any, rois: Any, *others: Any, **given: Any
    ) -> tuple[Any]:
        if self.run_params["opsets"].get("", 16) < 16:
            given["coordinate_transformation_mode"] = "output_half_pixel"
        self._bound(np.asarray(rois, np.float64), given)
        original: Any = super()._run
        return (original(x, rois, *others, **given)[0],)

    @staticmethod
    def _bound(rois: np.ndarray[Any, Any], given: dict[str, Any]) -> None:
        cells = max(1, given["output_height"]) * max(1, given["output_width"])
        if given["sampling_ratio"] > 0:
            samples = float(len(rois) * cells * given["sampling_ratio"] ** 2)
        else:
            width, height = ((rois[:, 2:] - rois[:, :2]) * given["spatial_scale"]).T
            wide, high = (np.maximum(np.abs(side), 1.0) + 1.0 for side in (width, height))
            samples = float(
                np.sum((wide + given["output_width"]) * (high + given["output_height"]))
            )
        if not samples <= MOST_SAMPLES:
            raise ValueError(
                f"RoiAlign takes {samples:.3g} samples of {len(rois)} regions; up to "
                f"{MOST_SAMPLES} are taken"
            )


CORRECTED: tuple[type[OpRun], ...] = (
    ConvInteger,
    DequantizeLinear,
    DynamicQuantizeLinear,
    GRU,
    Identity,
    LSTM,
    Loop,
    MatMulInteger,
    NegativeLogLikelihoodLoss,
    NonMaxSuppression,
    Optional,
    QLinearConv,
    QLinearMatMul,
    RNN,
    RegexFullMatch,
    Resize,
    RoiAlign,
    SVMClassifier,
    Scan,
    Scatter,
    SequenceMap,
    StringNormalizer,
    StringSplit,
    TfIdfVectorizer,
)
"""Those of operators that no device folds."""


@functools.cache
def corrected_for(opset: int) -> tuple[type[OpRun], ...]:
    """The operators that an opset needs besides those that the evaluator has right."""
    quantization = bounded_quantization(opset)
    own = (*CORRECTED, *EMPTY_BATCHES, *(() if quantization is None else (quantization,)))
    shared = [
        dividing_as_scales(fixed) if opset >= 23 and fixed.__name__ == "QuantizeLinear" else fixed
        for fixed in corrected_with(opset, own)
    ]
    return (
        *shared,
        *CATEGORIES,
        *DECISION_TREES,
        *DECODER,
        *MIXTURES,
        *QUANTIZED_WEIGHTS,
        *REGIONS,
        Tokenizer,
    )
