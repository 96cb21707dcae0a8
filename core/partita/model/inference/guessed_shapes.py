"""Guessed sizes for a model whose input shapes vary, where none are given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from partita.errors import ModelError
from partita.model.expected_shapes import static_shapes
from partita.model.model import Dim, Model, Port, is_static, value_shape
from partita.tensors.element_type import Type

if TYPE_CHECKING:
    import onnx_ir as ir

Shape = tuple[int, ...]

BATCH, SIDE, LENGTH, SAMPLES = 1, 224, 128, 512
"""Sizes that are taken for what varies: of the first axis, of the sides of pictures (inputs of four
axes), of any other axis, and of the last axis of fractions: a frame of sound, since windows and
strides leave nothing of less."""

_OTHER_SIDES = 48, 32, 64, 320, 640
"""Sides of pictures that are tried where shapes do not follow from the usual one: those of lines of
text, of what is halved again and again, and of detectors."""

_LARGEST = 4096
"""The largest size that is looked for where a fixed width tells one."""

_VOLUME_SIDE = 32
"""The most for a side of volumes and films, inputs of five axes and more: they are soon huge."""

_PAST = 3
"""Which input of ``GroupQueryAttention`` is the cache of its keys: (batch, heads, room, size)."""


class _FreeSizes(NamedTuple):
    """Sizes for what varies, as of ``BATCH`` and the others."""

    batch: int
    side: int
    tokens: int
    samples: int


def guessed(model: Model, given: Mapping[str, Shape]) -> tuple[Model, dict[str, Shape]]:
    """A copy of the model at some sizes, of several guesses that from which most shapes follow.

    Shape inference stops where an operation does not take its inputs, as a model of lines of text
    where these are 224 high: sizes that it does not stop at probably run. Where a product then has
    another width than its weights, the size is looked for at which it has theirs. Sizes of 1 are
    the last guess, since inputs whose sizes depend on each other may then be repeated to fit.

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
    return _at_due_width(model, given, best[0]) or best


def _at_due_width(
    model: Model, given: Mapping[str, Shape], fixed: Model
) -> tuple[Model, dict[str, Shape]] | None:
    """A copy at the least size at which a product has the width of its weights.

    Widths grow with sizes, also where they are products of some, so that few sizes are tried.

    Args:
        model: The model.
        given: By input name the shapes that are known.
        fixed: A copy at other sizes.

    Returns:
        As for :func:`guessed`; ``None`` where all widths fit already, or no size is found.
    """
    products = [
        place
        for place, op in enumerate(fixed.ir.graph)
        if op.op_type in ("MatMul", "Gemm") and len(set(_widths(op))) == 2
    ]
    if not products:
        return None
    for kind in ("side", "length"):
        least, most = 1, _LARGEST
        found = None
        while least < most:
            size = (least + most) // 2
            shapes = complete(model, given, **{kind: size})
            sized = at_shapes(model, shapes)
            width, due = _widths(sized.ir.graph[products[0]]) or (0, 1)  # too small for windows
            if width == due:
                found = sized, shapes
            least, most = (least, size) if width >= due else (size + 1, most)
        if found:
            return found
    return None


def _widths(product: ir.Node) -> tuple[int, int] | tuple[()]:
    """The width of a product's left matrix and that of its weights, or none if not both known."""
    left, right = product.inputs[:2]
    if left is None or right is None or not right.is_initializer():
        return ()
    rows, weights = value_shape(left), value_shape(right)
    if not (is_static(rows) and len(rows) > 1 and is_static(weights) and len(weights) > 1):
        return ()
    turned = [product.attributes.get_int(name, 0) for name in ("transA", "transB")]
    return rows[-2 if turned[0] else -1], weights[-1 if turned[1] else -2]


def example_shapes(model: Model) -> dict[str, Shape]:
    """By name a shape that each value of a model may have at the same time, where one follows."""
    fixed, inputs = guessed(model, {})
    return inputs | static_shapes(fixed)


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
        length: For other axes; 0 for ``SAMPLES`` of sound, and as many tokens as caches have room
            for, ``LENGTH`` at most.

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
    free = _FreeSizes(batch, side, length or _length(model), length or SAMPLES)
    return {
        port.name: named.get(port.name) or _guessed_shape(port, sizes, free)
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


def _guessed_shape(port: Port, known: dict[Dim, int], free: _FreeSizes) -> Shape:
    """A shape for an input; equal symbols get equal sizes."""
    dims = port.shape or ()
    shape = []
    for axis, (dim, bounds) in enumerate(
        itertools.zip_longest(dims, port.bounds[: len(dims)], fillvalue=None)
    ):
        size = _free_size(port, dims, axis, free)
        if bounds is not None:
            least, most = bounds
            size = max(least, size if most is None else min(size, most))
        if isinstance(dim, int):
            size = dim
        elif dim is not None:
            size = known.setdefault(dim, size)
        shape.append(size)
    return tuple(shape)


def _free_size(port: Port, dims: tuple[Dim, ...], axis: int, free: _FreeSizes) -> int:
    match dims:
        case _ if axis == 0:
            return free.batch
        case (int(layers), _, int()) if layers > 1:  # state of a recurrent network
            return free.batch
        case (_, _) | (_, _, _):
            is_sound = axis == len(dims) - 1 and Type(port.dtype).real
            return free.samples if is_sound else free.tokens
        case (_, _, _, _):
            return free.side
        case _:
            return min(free.side, _VOLUME_SIDE)
