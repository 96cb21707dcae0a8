"""Nodes by their class names, as OpenVINO's module ``op`` has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.opsets.functions import constant, parameter, result
from partita.opsets.node import Node
from partita.tensors.element_type import Type
from partita.tensors.tensor import Tensor


def Parameter(element_type: Any, shape: Any) -> Node:  # noqa: N802  # OpenVINO's name
    """An input of the model."""
    return parameter(shape, element_type)


def Constant(  # noqa: N802
    element_type: Any, shape: Any = None, values: Any = None
) -> Node:
    """A constant: of a type, a shape and its elements, or of one for all; or of an array."""
    if not isinstance(element_type, Type):
        held = element_type.numpy() if isinstance(element_type, Tensor) else element_type
        return constant(held)
    elements = np.asarray(values, element_type.dtype)
    filled = elements.size == 1
    return constant(np.full(shape, elements) if filled else elements.reshape(tuple(shape)))


def Result(data: Any) -> Node:  # noqa: N802
    """An output of the model."""
    return result(data)
