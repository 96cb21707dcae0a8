"""How many bytes the values of a model take."""

from __future__ import annotations

import math
from collections.abc import Mapping

from partita.model.model import Model, is_static, numpy_dtype, value_shape
from partita.tensors.layout import MemoryLayout


def sizes_of(model: Model, layouts: Mapping[str, MemoryLayout]) -> dict[str, int | None]:
    """Bytes of every value whose type and shape are known.

    ``layouts`` names the layout of each value that crosses in one.
    """
    sizes: dict[str, int | None] = {}
    graph = model.ir.graph
    for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]:
        dtype, shape = numpy_dtype(value.dtype), value_shape(value)
        if value.name and dtype is not None and is_static(shape):
            layout = layouts.get(value.name)
            sizes[value.name] = (layout.dtype if layout else dtype).itemsize * math.prod(shape)
    return sizes
