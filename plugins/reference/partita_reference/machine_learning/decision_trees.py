"""Decision trees, of which ``onnx.reference`` cannot follow a NaN where no node says its way."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml.op_tree_ensemble_classifier import (
    TreeEnsembleClassifier as OriginalClassifier,
)
from onnx.reference.ops.aionnxml.op_tree_ensemble_regressor import (
    TreeEnsembleRegressor as OriginalRegressor,
)


class _MissingValuesOp(OpRun):
    """The original fails at the default, by which a missing value takes a node's false branch."""

    def _run(self, x: np.ndarray[Any, Any], *others: Any, **attributes: Any) -> tuple[Any, ...]:
        if attributes.get("nodes_missing_value_tracks_true") is None:
            attributes["nodes_missing_value_tracks_true"] = [0] * len(attributes["nodes_modes"])
        original: Any = super()._run  # type: ignore[safe-super]  # the operator behind it
        return tuple(original(x, *others, **attributes))


class TreeEnsembleClassifier(_MissingValuesOp, OriginalClassifier):  # type: ignore[misc]  # onnx names it
    """Votes of trees for classes."""


class TreeEnsembleRegressor(_MissingValuesOp, OriginalRegressor):  # type: ignore[misc]  # onnx names it
    """Sums, means or extremes of what trees say."""


DECISION_TREES: tuple[type[OpRun], ...] = (TreeEnsembleClassifier, TreeEnsembleRegressor)
