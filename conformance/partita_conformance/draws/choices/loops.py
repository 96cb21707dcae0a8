"""Systematic draws of Scan without states, over slices that broadcast from the right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from onnx import TensorProto, helper

from partita_conformance.draws.choices.numbers import numbers
from partita_conformance.draws.draw import Draw

_SLICES: tuple[list[int], ...] = ([3, 3], [3], [])


def scan() -> Iterator[Draw]:
    """Each two of a matrix, a row and a number in a slice, either first."""
    for shapes in itertools.permutations(_SLICES, 2):
        ports = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip("abd", (*shapes, max(shapes, key=len)), strict=True)
        ]
        for op in ("Sub", "Div"):
            node = helper.make_node(op, ["a", "b"], ["d"])
            body = helper.make_graph([node], "unequal", ports[:2], ports[2:])
            inputs = [numbers(3, *shape) for shape in shapes]
            yield Draw(inputs, {"body": body, "num_scan_inputs": 2})


LOOPS: Mapping[str, Callable[[], Iterator[Draw]]] = {"Scan": scan}
"""Operator to its draws."""
