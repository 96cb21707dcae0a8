"""A model at sizes that stand for those of requests: what is measured where input shapes vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.errors import ModelError, PropertyError
from partita.model.model import Dim, Model, Port, value_shape
from partita_hetero.options.sample_shapes import Shape, describe
from partita_hetero.partition import op_graph
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.value_sizes import sizes_of
from partita_hetero.tuning.sample_inputs import read_samples

if TYPE_CHECKING:
    from partita_hetero.compile.pipeline import Compilation

BATCH, SIDE, LENGTH = 1, 224, 128
"""Sizes that are taken for what varies, if nothing else is known: of the first axis, of the sides
of pictures (inputs of four axes and more), of any other axis."""

_OTHER_SIDES = 48, 32, 64, 320, 640
"""Sides of pictures that are tried where shapes do not follow from the usual one: those of lines of
text, of what is halved again and again, and of detectors."""

_PAST = 3
"""Which input of ``GroupQueryAttention`` is the cache of its keys: (batch, heads, room, size)."""


@dataclass(frozen=True)
class SizedModel:
    """A model whose input shapes are fixed, by itself or for the sake of measuring.

    Attributes:
        model: With the same operations, in the same order, as the model that is placed.
        wiring: Its operations.
        value_bytes: Bytes of its values, where they are known.
        shapes: Input to the shape that it has here; empty if the model that is placed is fixed.
        is_guess: Whether nobody has told such sizes.
    """

    model: Model
    wiring: OpGraph
    value_bytes: Mapping[str, int | None]
    shapes: Mapping[str, Shape]
    is_guess: bool = False

    def __str__(self) -> str:
        return describe(self.shapes)


def sized_models(compilation: Compilation) -> list[SizedModel]:
    """The model at each of the sizes that it is to be measured at.

    Those are of ``HETERO_SAMPLE_INPUTS`` or ``HETERO_SAMPLE_SHAPES``. Without either there is one,
    with made-up sizes.

    Raises:
        PropertyError: Both are set, or shapes do not fit the inputs.
        InputError: The sample inputs cannot be read.
    """
    model, properties = compilation.model, compilation.devices.properties
    if all(port.is_static for port in model.inputs):
        wiring, sizes = compilation.wiring, compilation.placer.sizes
        return [SizedModel(model, wiring, sizes, {})]
    samples, wanted = properties.HETERO_SAMPLE_INPUTS, properties.HETERO_SAMPLE_SHAPES
    if samples and wanted:
        raise PropertyError(
            "HETERO_SAMPLE_INPUTS have shapes of their own: set them or HETERO_SAMPLE_SHAPES."
        )
    if samples:
        wanted = ({name: array.shape for name, array in read_samples(model, samples).items()},)
    found = {describe(shapes): shapes for shapes in (_complete(model, one) for one in wanted)}
    if not found:
        return [_guessed(model)]
    return [sized_at(model, shapes) for shapes in found.values()]


def sized_at(model: Model, shapes: Mapping[str, Shape], is_guess: bool = False) -> SizedModel:
    """A copy of the model at some shapes of its inputs."""
    fixed = model.clone()
    fixed.reshape({fixed.input(name): shape for name, shape in shapes.items()})
    return SizedModel(fixed, op_graph.build(fixed), sizes_of(fixed, {}), shapes, is_guess)


def _guessed(model: Model) -> SizedModel:
    """The model at made-up sizes; of several sides, the one from which most shapes follow.

    Shape inference stops where an operation does not take its inputs, as a model of lines of text
    where these are 224 high: a side that it does not stop at probably runs.
    """
    best = sized_at(model, _complete(model, {}), is_guess=True)
    for side in _OTHER_SIDES:
        if all(port.is_static for port in best.model.outputs):
            break
        shapes = _complete(model, {}, side)
        if shapes == best.shapes:
            break  # no side is free
        other = sized_at(model, shapes, is_guess=True)
        if len(other.value_bytes) > len(best.value_bytes):
            best = other
    return best


def _complete(model: Model, given: Mapping[str, Shape], side: int = SIDE) -> dict[str, Shape]:
    """A shape for every tensor: where none is given, by symbols that others tell, or made up.

    Raises:
        PropertyError: A shape does not fit its input, or there is no such input.
    """
    symbols: dict[Dim, int] = {}
    named: dict[str, Shape] = {}
    for key, shape in given.items():
        try:
            port = model.input(key)
        except (ModelError, LookupError) as error:
            raise PropertyError(f"HETERO_SAMPLE_SHAPES: {error}") from error
        if not _fits(port, shape):
            raise PropertyError(
                f"HETERO_SAMPLE_SHAPES: input '{port.name}' takes {port.describe()}; found "
                f"{'x'.join(map(str, shape))}."
            )
        named[port.name] = tuple(shape)
        symbols |= zip(port.shape or (), shape, strict=False)
    length = _length(model)
    return {
        port.name: named.get(port.name) or _guessed_shape(port.shape, symbols, side, length)
        for port in model.inputs
        if port.shape is not None and port.dtype is not None
    }


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


def _guessed_shape(dims: Sequence[Dim], symbols: dict[Dim, int], side: int, length: int) -> Shape:
    """A shape for an input; equal symbols get equal sizes."""
    shape = []
    for axis, dim in enumerate(dims):
        size = BATCH if axis == 0 else side if len(dims) > 3 else length
        if isinstance(dim, int):
            size = dim
        elif dim is not None:
            size = symbols.setdefault(dim, size)
        shape.append(size)
    return tuple(shape)
