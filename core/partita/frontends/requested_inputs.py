"""What ``convert_model`` is asked for a file's inputs, in the forms that OpenVINO's takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.errors import ModelError
from partita.model.port import Port, find_port
from partita.shapes.dimension import Dimension
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import Shape
from partita.tensors.element_type import Type


def requested_shapes(given: Any, ports: Sequence[Port], owner: str) -> dict[str, Any]:
    """Shapes by the names of inputs.

    Args:
        given: A shape for a model of one input; a mapping of input to what is asked of it; the name
            of an input; a tuple of a name and what is asked; or a list of these, by place where
            they do not name an input. Asked are a shape, an element type, or both. A text that is
            an input's name is that, before it is a dimension's.
        ports: The model's inputs.
        owner: The model, as messages name it.

    Raises:
        ModelError: No such input, more requests than inputs, or another element type than the
            input's.
    """
    names = {name for port in ports for name in port.names}
    shapes: dict[str, Any] = {}
    for key, asked in _requests(given, names):
        port = find_port(ports, key, owner)
        for one in asked:
            if _is_type(one):
                _check_type(port, one)
            elif port.name in shapes:
                raise ModelError(f"Input '{port.name}' is given two shapes; give one.")
            else:
                shapes[port.name] = one
    return shapes


def _requests(given: Any, names: set[str]) -> list[tuple[Any, tuple[Any, ...]]]:
    """For each request the input (a key, or its place) and what is asked of it."""
    if isinstance(given, Mapping):
        return [(key, _parts(asked)) for key, asked in given.items()]
    if isinstance(given, str):
        return [(given, ())] if given in names else [(None, (given,))]
    if not isinstance(given, (list, tuple)):
        return [(None, (given,))]
    if _is_named(given, names):
        return [(given[0], tuple(given[1:]))]
    if not given or any(_is_dimension(one, names) for one in given):
        return [(None, (given,))]
    found: list[tuple[Any, tuple[Any, ...]]] = []
    for place, one in enumerate(given):
        if isinstance(one, str):
            found.append((one, ()))
        elif _is_named(one, names):
            found.append((one[0], tuple(one[1:])))
        else:
            found.append((place, _parts(one)))
    return found


def _parts(asked: Any) -> tuple[Any, ...]:
    """A shape and a type that are asked for together, or what is asked for alone."""
    if isinstance(asked, tuple) and len(asked) == 2 and any(map(_is_type, asked)):
        return asked
    return (asked,)


def _is_named(given: Any, names: set[str]) -> bool:
    """Whether it is a tuple of the name of an input and what is asked of it."""
    return (
        isinstance(given, tuple)
        and len(given) in (2, 3)
        and isinstance(given[0], str)
        and given[0] in names
        and all(_is_type(one) or _is_shape(one) for one in given[1:])
    )


def _is_shape(given: Any) -> bool:
    return isinstance(given, (list, tuple, PartialShape, Shape))


def _is_type(given: Any) -> bool:
    return isinstance(given, (Type, np.dtype, type))


def _is_dimension(given: Any, names: set[str]) -> bool:
    """Whether it stands for a dimension alone; a text that names an input does not."""
    if isinstance(given, str):
        return given not in names
    return given is None or isinstance(given, (int, np.integer, Dimension))


def _check_type(port: Port, asked: Any) -> None:
    """Refuses another element type than the input's."""
    wanted = asked if isinstance(asked, Type) else Type(asked)
    if wanted not in (port.element_type, Type.dynamic):
        raise ModelError(
            f"Input '{port.name}' takes {port.element_type}, and convert_model leaves it so; found "
            f"{wanted}. To feed it tensors of another type, add a conversion: "
            f"PrePostProcessor(model).input('{port.name}').tensor().set_element_type(...)."
        )
