"""Conditions that a convolution must meet to compute with channels last on any back-end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError
from partita.lowering.geometry.windows import Window, resolve_transposed
from partita.lowering.graph import Node
from partita.lowering.program import Array


def constant_weights(node: Node, dtypes: Collection[np.dtype[Any]]) -> Array | None:
    """The weights of a convolution of images, if they and its bias are constants.

    Args:
        node: The convolution: of an image, weights (outputs, channels, y, x), or the other way
            round if it is a transposed one, and perhaps a bias.
        dtypes: Element types that weights may have.

    Returns:
        The weights; ``None`` if they are computed, empty, or of another rank or type.
    """
    w, bias = node.inputs[1], node.input(2)
    if w is None or w.const is None or w.const.ndim != 4 or not w.const.size:
        return None
    if bias is not None and (bias.const is None or bias.const.ndim != 1):
        return None
    return w.const if w.const.dtype in dtypes else None


def transposed_window(node: Node, image: Sequence[int], kernel: Sequence[int]) -> Window | None:
    """The window of a transposed convolution of one group, to which nothing is added.

    Args:
        node: The convolution.
        image: Sizes (y, x) of what it reads.
        kernel: Sizes (y, x) of its weights.

    Returns:
        The window; ``None`` for another convolution, or for one that does not fit its input,
        which is said where the node is compiled as it is.
    """
    if node.attrs.get("group", 1) != 1 or node.input(3) is not None:
        return None
    try:
        return resolve_transposed(node, image, kernel)
    except CompileError:
        return None
