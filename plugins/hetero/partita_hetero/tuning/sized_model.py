"""A model at sizes that stand for those of requests: what is measured where input shapes vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.errors import ModelError, PropertyError
from partita.model.inference.guessed_shapes import at_shapes, complete, guessed
from partita.model.model import Model
from partita.shapes.sample_shapes import Shape, describe
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.value_sizes import sizes_of
from partita_hetero.tuning.sample_inputs import read_samples

if TYPE_CHECKING:
    from partita_hetero.compile.pipeline import Compilation


@dataclass(frozen=True)
class SizedModel:
    """A model whose input shapes are fixed, by itself or for the sake of measuring.

    Attributes:
        model: With the same operations, in the same order, as the model that is placed.
        op_graph: Its operations.
        value_bytes: Bytes of its values, where they are known.
        shapes: Input to the shape that it has here; empty if the model that is placed is fixed.
        is_guess: Whether the sizes are guessed, because none were given.
    """

    model: Model
    op_graph: OpGraph
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
        op_graph, sizes = compilation.op_graph, compilation.placer.sizes
        return [SizedModel(model, op_graph, sizes, {})]
    samples, wanted = properties.HETERO_SAMPLE_INPUTS, properties.HETERO_SAMPLE_SHAPES
    if samples and wanted:
        raise PropertyError(
            "HETERO_SAMPLE_INPUTS have shapes of their own: set them or HETERO_SAMPLE_SHAPES."
        )
    if samples:
        wanted = ({name: array.shape for name, array in read_samples(model, samples).items()},)
    found = {describe(shapes): shapes for shapes in (_complete(model, one) for one in wanted)}
    if not found:
        return [_sized(*guessed(model, {}), is_guess=True)]
    return [sized_at(model, shapes) for shapes in found.values()]


def sized_at(model: Model, shapes: Mapping[str, Shape]) -> SizedModel:
    """A copy of the model at some shapes of its inputs."""
    return _sized(at_shapes(model, shapes), shapes)


def _sized(fixed: Model, shapes: Mapping[str, Shape], is_guess: bool = False) -> SizedModel:
    return SizedModel(fixed, OpGraph.of(fixed), sizes_of(fixed, {}), shapes, is_guess)


def _complete(model: Model, given: Mapping[str, Shape]) -> dict[str, Shape]:
    """A shape for every tensor: where none is given, by symbols that others tell, or guessed.

    Raises:
        PropertyError: A shape does not fit its input, or there is no such input.
    """
    try:
        return complete(model, given)
    except ModelError as error:
        raise PropertyError(f"HETERO_SAMPLE_SHAPES: {error}") from error
