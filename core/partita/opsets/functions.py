"""The functions of an operation set: what is called to write a graph."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import ModelError
from partita.opsets.node import Node, as_output
from partita.opsets.ports import Output
from partita.opsets.signature import REQUIRED, Argument, Signature
from partita.shapes.partial_shape import PartialShape
from partita.tensors.element_type import Type

_TYPED = ("destination_type", "output_type", "index_element_type", "count_element_type")
"""Attributes that are element types."""


def parameter(shape: Any, dtype: Any = np.float32, name: str | None = None) -> Node:
    """An input of the model.

    Args:
        shape: What :class:`partita.PartialShape` takes; symbols count as unknown.
        dtype: A :class:`partita.Type` or one of numpy's.
        name: Its friendly name, which is the input's.
    """
    dims = PartialShape(shape)
    text = "..." if dims.rank.is_dynamic else ",".join(str(_plain(dim.size)) for dim in dims)
    attributes = {"shape": text, "element_type": _type(dtype).value}
    return Node("Parameter", attributes=attributes, name=name)


def constant(value: Any, dtype: Any = None, name: str | None = None) -> Node:
    """A constant.

    Args:
        value: An array, numbers, or a tensor.
        dtype: Its element type, if it is to be another one.
        name: Its friendly name.
    """
    array = np.asarray(value, None if dtype is None else _type(dtype).dtype)
    return Node("Const", value=array, name=name)


def result(data: Any, name: str | None = None) -> Node:
    """An output of the model; its friendly name is the output's."""
    return Node("Result", [as_output(data)], name=name)


def function_of(signature: Signature) -> Callable[..., Node]:
    """What is called to write a node of a signature."""

    def write(*given: Any, name: str | None = None, **named: Any) -> Node:
        values = dict(zip((one.name for one in signature.arguments), given, strict=False))
        surplus = given[len(signature.arguments) :]
        if len(surplus) > 1 or values.keys() & named or set(named) - set(_names(signature)):
            raise ModelError(f"{signature} was called with {len(given)} arguments and {named}.")
        name = surplus[0] if surplus else name
        values |= named
        inputs: list[Output[Node]] = []
        attributes: dict[str, str] = {}
        for argument in signature.arguments:
            value = values.get(argument.name)
            if value is None and argument.default is REQUIRED:
                raise ModelError(f"{signature} was called without '{argument.name}'.")
            if argument.attribute:
                text = argument.default if value is None else _text(argument, value)
                if text is not None:
                    attributes[argument.attribute] = str(text)
            elif value is not None:
                inputs += _inputs(signature, argument, value, values)
        if signature.outputs.isdigit():
            count = int(signature.outputs)
        else:
            number = values[signature.outputs]
            count = number if isinstance(number, int) else np.size(_elements(number))
        return Node(signature.layer, inputs, attributes, version=signature.since, name=name,
                    outputs=count)  # fmt: skip

    write.__name__ = write.__qualname__ = signature.name
    write.__doc__ = f"{signature}: a node of type {signature.layer}."
    return write


def _names(signature: Signature) -> list[str]:
    return [one.name for one in signature.arguments]


def _inputs(
    signature: Signature, argument: Argument, value: Any, values: dict[str, Any]
) -> list[Output[Node]]:
    """What a node reads for one argument."""
    if argument.several:
        return [as_output(one) for one in value]
    numbers = None
    if signature.broadcasts:  # a number takes the type of the other side
        sides = [values.get(one.name) for one in signature.arguments if not one.attribute]
        nodes = [side for side in sides if isinstance(side, (Node, Output))]
        numbers = as_output(nodes[0]).element_type if nodes else None
    return [as_output(value, numbers)]


def _elements(value: Any) -> Any:
    """What tells a number of outputs: a list, or a constant."""
    if isinstance(value, (Node, Output)):
        value = as_output(value).node.value
    if value is None:
        raise ModelError("The lengths of the parts must be a constant, which tells how many.")
    return value


def _text(argument: Argument, value: Any) -> str:
    """An attribute as files have it."""
    if argument.attribute in _TYPED:
        return _type(value).value
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, enum.Enum):
        value = value.name
    if isinstance(value, str):
        return value.lower() if argument.attribute != "equation" else value
    if isinstance(value, (Sequence, np.ndarray, set)):
        return ",".join(str(getattr(one, "item", lambda one=one: one)()) for one in value)
    return str(getattr(value, "item", lambda: value)())


def _type(kind: Any) -> Type:
    try:
        found = Type(kind)
    except ValueError as error:
        raise ModelError(f"{kind!r} is not an element type; partita.Type has them.") from error
    return found


def _plain(size: int | str | None) -> int | str:
    return size if isinstance(size, int) else "?"
