"""Variants: several placements of one model, each for requests with certain input shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from partita.model.expected_shapes import InputShapes
from partita.shapes.sample_shapes import describe
from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly


def with_variants(assemblies: Sequence[Assembly], inputs: Sequence[str]) -> Assembly:
    """The first assembly, which knows the others and tells of them.

    Args:
        assemblies: With the shapes that each was planned for.
        inputs: Names of the model's inputs.
    """
    first, *others = assemblies

    def places(one: Assembly) -> str:
        described = (describe(dict(zip(inputs, shapes, strict=True))) for shapes in one.planned_for)
        return "; ".join(described)

    explanation = replace(
        first.explanation,
        planned_for=places(first),
        near={places(one): replace(one.explanation, planned_for=places(one)) for one in others},
    )
    return replace(first, explanation=explanation, variants=tuple(others))


def for_inputs(assembly: Assembly, inputs: Sequence[Tensor]) -> Assembly:
    """What requests with such inputs run: the assembly, or that of its variants that is nearest."""
    if not assembly.variants:
        return assembly
    shapes = tuple(tensor.shape for tensor in inputs)
    return min(
        (assembly, *assembly.variants),
        key=lambda one: min(distance(planned, shapes) for planned in one.planned_for),
    )


def distance(planned: InputShapes, shapes: InputShapes) -> float:
    """How far shapes are apart: the sum over axes of how many times as long one is, in doublings.

    Example:
        >>> distance(((1, 16), (1, 16)), ((1, 64), (2, 16)))
        3.0
    """
    return sum(
        abs(math.log2(max(one, 1) / max(other, 1)))
        for pair in zip(planned, shapes, strict=True)
        for one, other in zip(*pair, strict=True)
        if one != other
    )
