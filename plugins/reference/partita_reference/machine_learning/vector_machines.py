"""Probabilities of support vector machines, which ``onnx.reference`` gets wrong of three classes.

Of each two classes a machine tells which is more probable. Shares of all are those that agree best
with all pairs: Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise
Coupling", Journal of Machine Learning Research 5 (2004), algorithm 2; ended where libsvm,
scikit-learn and onnxruntime end it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.aionnxml.op_svm_classifier import SVMClassifier as OriginalClassifier

from partita_reference.empty_batches import EmptyBatchOp

Array = np.ndarray[Any, Any]

_LEAST = 1e-7
"""A pair's share is between this and the rest of 1."""

_CLOSE = 0.005
"""Times the share of one of all classes: how far from the best shares may be."""

_MOST_ROUNDS = 100
"""Or as many as there are classes."""


class SVMClassifier(EmptyBatchOp, OriginalClassifier):  # type: ignore[misc]  # onnx names it
    """The original adds up over pairs where each pair has a number of its own."""

    def _probabilities(self, scores: Array, class_count_: int) -> Array:
        settings: Any = self._svm.atts  # whose attributes are set from the operation's
        slopes, offsets = (np.asarray(x, np.float64) for x in (settings.prob_a, settings.prob_b))
        upper = np.triu_indices(class_count_, 1)
        with np.errstate(over="ignore"):
            probabilities = 1 / (1 + np.exp(scores * slopes + offsets))
        pairs = np.zeros((class_count_, class_count_))
        pairs[upper] = np.clip(probabilities, _LEAST, 1 - _LEAST)
        pairs.T[upper] = 1 - pairs[upper]
        return coupled(pairs)


def coupled(pairs: Array) -> Array:
    """The shares of all classes, which add up to 1.

    Args:
        pairs: ``pairs[i, j]`` is the share of class i where the class is i or j; 0 where i is j.
    """
    count = len(pairs)
    factors = -pairs.T * pairs
    np.fill_diagonal(factors, np.square(pairs).sum(axis=0))
    shares = np.full(count, 1 / count)
    for _ in range(max(_MOST_ROUNDS, count)):
        slopes = factors @ shares
        level = shares @ slopes
        if np.abs(slopes - level).max() < _CLOSE / count:
            break
        for place in range(count):
            own = factors[place, place]
            step = (level - slopes[place]) / own
            level = (level + step * (step * own + 2 * slopes[place])) / (1 + step) ** 2
            slopes = (slopes + step * factors[place]) / (1 + step)
            shares[place] += step
            shares /= 1 + step
    return shares
