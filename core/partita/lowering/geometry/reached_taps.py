"""Removes the taps of a convolution that read nothing but padding.

A window dilated by 24 on an image of 14 x 14 has only one tap that ever reads the image, and a
window that is larger than its image has some that never do.
"""

from __future__ import annotations

import numpy as np

from partita.lowering.builder import Builder
from partita.lowering.geometry.windows import Window
from partita.lowering.program import Array, Operand
from partita.lowering.transformed_weights import Form


def without_padding(b: Builder, window: Window, w: Operand) -> tuple[Window, Operand]:
    """A convolution's window and weights without the taps that lie beside the input everywhere.

    Args:
        b: Keeps the smaller weights for other programs.
        window: Resolved for the input at hand.
        w: Weights (outputs, channels of a group, taps along each dimension).

    Returns:
        Both as given if there is no such tap, or if the weights are no constant.
    """
    halved = window.halved
    reached = halved[3 - window.rank :]
    taps = [high - low for low, high in reached]
    if w.const is None or taps == list(w.shape[2:]):
        return window, w

    def trim(array: Array) -> Array:
        places = (slice(None), slice(None), *(slice(low, high) for low, high in reached))
        return np.ascontiguousarray(array[places])

    form = Form(w.dtype, (*w.shape[:2], *taps))
    key = ("reached", *(place for ends in reached for place in ends))
    return window.within(halved), b.prepack(w, key, trim, form=form)
