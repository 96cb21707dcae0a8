"""What a PyTorch module is called with while it is exported, and which sizes may vary."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import ModelError

Shape = Sequence[Any]


@dataclass(frozen=True)
class Examples:
    """Arguments of a call, and the sizes in them that may vary.

    Attributes:
        args: Arguments by place.
        kwargs: Arguments by name.
        dynamic_shapes: As ``torch.export`` takes it; ``None`` where all sizes are fixed.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any


def examples_of(
    module: Any, example_input: Any, input_shapes: Any, dynamic_shapes: Any
) -> Examples:
    """Examples for a module, made of what a caller gave.

    Args:
        module: The module, or a program that PyTorch has exported, which needs none of the rest.
        example_input: A tensor or array, a sequence of them by place, or a mapping by name.
        input_shapes: Input name to shape, or shapes by place; -1, ``None`` or a name in one lets
            that size vary. Without ``example_input`` tensors of zeros are made of them.
        dynamic_shapes: As ``torch.export`` takes it.

    Raises:
        ModelError: There is neither an example nor a shape, or they do not fit together.
    """
    import torch

    if isinstance(module, torch.export.ExportedProgram):
        if (example_input, input_shapes, dynamic_shapes) != (None, None, None):
            raise ModelError("An exported program has its inputs and shapes; give it alone.")
        return Examples((), {}, None)
    if input_shapes is not None and dynamic_shapes is not None:
        raise ModelError("Give 'input' or 'dynamic_shapes', not both: either says what may vary.")
    if example_input is None:
        if input_shapes is None:
            raise ModelError(
                f"Exporting '{type(module).__name__}' takes an example of its inputs: "
                "convert_model(module, example_input=...)."
            )
        example_input = _zeros(input_shapes)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example_input, Mapping):
        kwargs = {str(name): _tensors(value) for name, value in example_input.items()}
    elif isinstance(example_input, (tuple, list)):
        args = tuple(map(_tensors, example_input))
    else:
        args = (_tensors(example_input),)
    if input_shapes is not None:
        names = _argument_names(module, args, kwargs)
        dynamic_shapes = _varying(dict(zip(names, (*args, *kwargs.values()), strict=True)),
                                  shapes_by_name(input_shapes, names))  # fmt: skip
    return Examples(args, kwargs, dynamic_shapes)


def shapes_by_name(shapes: Any, names: Sequence[str]) -> dict[str, Shape]:
    """Shapes by the names of inputs: given so, by place, or one for the only input.

    Raises:
        ModelError: There are more shapes than inputs, or one has another name.
    """
    if isinstance(shapes, Mapping):
        if unknown := [name for name in shapes if name not in names]:
            raise ModelError(
                f"There is no input '{unknown[0]}'; there are {', '.join(map(repr, names))}."
            )
        return dict(shapes)
    rows = _rows(shapes)
    if len(rows) > len(names):
        raise ModelError(
            f"{len(rows)} shapes were given for {len(names)} inputs "
            f"({', '.join(map(repr, names))})."
        )
    return dict(zip(names, rows, strict=False))


def _rows(shapes: Any) -> list[Shape]:
    """A list of shapes; one shape alone is a list of one."""
    rows = list(shapes)
    is_one = not rows or any(isinstance(dim, (int, np.integer, str)) or dim is None for dim in rows)
    return [rows] if is_one else rows


def _zeros(shapes: Any) -> Any:
    """Tensors of zeros of fixed shapes."""
    import torch

    def made(shape: Shape) -> Any:
        if not all(isinstance(dim, (int, np.integer)) and dim >= 0 for dim in shape):
            raise ModelError(
                f"Shape {list(shape)} has sizes that may vary; give an example too: "
                "convert_model(module, input=..., example_input=...)."
            )
        return torch.zeros([int(dim) for dim in shape])

    if isinstance(shapes, Mapping):
        return {name: made(shape) for name, shape in shapes.items()}
    return tuple(made(shape) for shape in _rows(shapes))


def _tensors(value: Any) -> Any:
    """Arrays as tensors over the same memory, also inside of sequences and mappings."""
    import torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape)
    if isinstance(value, Mapping):
        return {name: _tensors(inner) for name, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_tensors, value))
    return value


def _argument_names(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the arguments of ``forward`` that a call gives."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    names: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}_{place}" for place in range(len(value))]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            names += list(value)
        else:
            names.append(name)
    return names


def _varying(arguments: Mapping[str, Any], shapes: Mapping[str, Shape]) -> dict[str, Any] | None:
    """For each argument the axes whose size may vary, as ``torch.export`` wants them."""
    import torch

    found: dict[str, Any] = {}
    for name, value in arguments.items():
        shape = shapes.get(name)
        if shape is None or not isinstance(value, torch.Tensor):
            found[name] = None
            continue
        if len(shape) != value.dim():
            raise ModelError(
                f"The example of input '{name}' has shape {list(value.shape)}; 'input' gives "
                f"{list(shape)}, of another rank."
            )
        found[name] = {
            axis: dim if isinstance(dim, str) else torch.export.Dim.DYNAMIC
            for axis, dim in enumerate(shape)
            if isinstance(dim, str) or dim is None or dim == -1
        }
    return found if any(found.values()) else None
