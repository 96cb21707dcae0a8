"""Sizes for a model whose input shapes vary, where nobody has told any."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from partita.errors import ModelError
from partita.model.model import Dim, Model, Port, is_static, value_shape

Shape = tuple[int, ...]

BATCH, SIDE, LENGTH = 1, 224, 128
"""Sizes that are taken for what varies: of the first axis, of the sides of pictures (inputs of four
axes), of any other axis."""

_OTHER_SIDES = 48, 32, 64, 320, 640
"""Sides of pictures that are tried where shapes do not follow from the usual one: those of lines of
text, of what is halved again and again, and of detectors."""

_VOLUME_SIDE = 32
"""The most for a side of volumes and films, inputs of five axes and more: they are soon huge."""

_PAST = 3
"""Which input of ``GroupQueryAttention`` is the cache of its keys: (batch, heads, room, size)."""


def guessed(model: Model, given: Mapping[str, Shape]) -> tuple[Model, dict[str, Shape]]:
    """A copy of the model at some sizes, of several guesses that from which most shapes follow.

    Shape inference stops where an operation does not take its inputs, as a model of lines of text
    where these are 224 high: sizes that it does not stop at probably run. Sizes of 1 are the last
    guess, since inputs whose sizes depend on each other may then be repeated to fit.

    Args:
        model: The model; it is not changed.
        given: By input name the shapes that are known.

    Returns:
        The copy, and the shape of each of its inputs that is a tensor of known rank.

    Raises:
        ModelError: A shape does not fit its input, or there is no such input.
    """
    best: tuple[Model, dict[str, Shape]] | None = None
    followed, tried = -1, []
    for shapes in _guesses(model, given):
        if shapes in tried:
            continue
        tried.append(shapes)
        fixed = at_shapes(model, shapes)
        count = sum(
            is_static(value_shape(v)) for node in fixed.ir.graph for v in node.outputs if v.name
        )
        if count > followed:
            best, followed = (fixed, shapes), count
        if all(port.is_static for port in fixed.outputs):
            break
    if best is None:
        raise ValueError("there is always a guess")
    return best


def at_shapes(model: Model, shapes: Mapping[str, Shape]) -> Model:
    """A copy of the model at some shapes of its inputs.

    Raises:
        ModelError: An input does not exist, or a shape does not fit it.
    """
    fixed = model.clone()
    return fixed.reshape({fixed.input(name): shape for name, shape in shapes.items()})


def complete(
    model: Model, given: Mapping[str, Shape], batch: int = BATCH, side: int = SIDE, length: int = 0
) -> dict[str, Shape]:
    """A shape for every tensor: where none is given, by symbols that others tell, or guessed.

    Args:
        model: The model.
        given: By input name the shapes that are known.
        batch: For first axes.
        side: For axes of pictures.
        length: For other axes; 0 for as many tokens as caches have room for, ``LENGTH`` at most.

    Raises:
        ModelError: A shape does not fit its input, or there is no such input.
    """
    sizes: dict[Dim, int] = {}
    named: dict[str, Shape] = {}
    for key, shape in given.items():
        port = model.input(key)
        if not _fits(port, shape):
            raise ModelError(
                f"Input '{port.name}' takes {port.describe()}; found {'x'.join(map(str, shape))}."
            )
        named[port.name] = tuple(shape)
        sizes |= zip(port.shape or (), shape, strict=False)
    length = length or _length(model)
    return {
        port.name: named.get(port.name) or _guessed_shape(port, sizes, batch, side, length)
        for port in model.inputs
        if port.shape is not None and port.dtype is not None
    }


def _guesses(model: Model, given: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
    for side in itertools.chain((SIDE,), _OTHER_SIDES):
        yield complete(model, given, side=side)
    yield complete(model, given, 1, 1, 1)


def _fits(port: Port, shape: Shape) -> bool:
    if port.shape is None:
        return True
    return len(port.shape) == len(shape) and all(
        dim == size for dim, size in zip(port.shape, shape, strict=True) if isinstance(dim, int)
    )


def _length(model: Model) -> int:
    """``LENGTH``, or as many tokens as caches of attention have room for if those are fewer."""
    pasts = [
        op.node.inputs[_PAST]
        for op in model.ops
        if op.op_type == "GroupQueryAttention" and len(op.node.inputs) > _PAST
    ]
    shapes = [value_shape(past) for past in pasts if past is not None]
    rooms = [shape[2] for shape in shapes if shape is not None and len(shape) == 4]
    return min([LENGTH, *(room for room in rooms if isinstance(room, int) and room > 0)])


def _guessed_shape(port: Port, sizes: dict[Dim, int], batch: int, side: int, length: int) -> Shape:
    """A shape for an input; equal symbols get equal sizes."""
    dims = port.shape or ()
    free = length if len(dims) < 4 else side if len(dims) == 4 else min(side, _VOLUME_SIDE)
    shape = []
    for axis, (dim, bounds) in enumerate(
        itertools.zip_longest(dims, port.bounds[: len(dims)], fillvalue=None)
    ):
        size = batch if axis == 0 else free
        if bounds is not None:
            least, most = bounds
            size = max(least, size if most is None else min(size, most))
        if isinstance(dim, int):
            size = dim
        elif dim is not None:
            size = sizes.setdefault(dim, size)
        shape.append(size)
    return tuple(shape)
