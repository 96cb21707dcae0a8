"""Caches of another element type: a decoder's keys and values in fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from partita.errors import InputError
from partita.model.model import Model, value_shape
from partita.model.variables import Variable
from partita.tensors.cache_rows import ATTRIBUTES, row_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

CACHE_TYPES = ("float32", "float16", "bfloat16", "int8")
"""Types that caches may be given."""

_ATTENTION = "GroupQueryAttention"
_PASTS = {3: 1, 4: 2}
"""Inputs of the operator that are caches, and the outputs that they become."""


def require_known(cache_type: str | None) -> None:
    """Looks at a type that caches are to have.

    Args:
        cache_type: The type; ``None`` leaves caches as they are.

    Raises:
        InputError: It is none of `CACHE_TYPES`.
    """
    if cache_type is not None and cache_type not in CACHE_TYPES:
        known = ", ".join(CACHE_TYPES)
        raise InputError(f"Caches of type {cache_type!r} are not known; these are: {known}.")


def place_bytes(size: int, cache_type: str) -> int:
    """Bytes that a cache takes for one head of one token.

    Args:
        size: Elements of the head.
        cache_type: One of `CACHE_TYPES`; int8 has a scale beside its elements.
    """
    if cache_type == "int8":
        return int(row_bytes(size))
    return size * (4 if cache_type == "float32" else 2)


def with_cache_type(model: Model, caches: Sequence[Variable], cache_type: str) -> Model:
    """A copy of a decoder with caches of a type.

    Args:
        model: A decoder whose caches ``GroupQueryAttention`` reads and writes; weights are shared.
        caches: What its runs read and write.
        cache_type: One of `CACHE_TYPES`.

    Raises:
        InputError: The type is not known, or a cache is read otherwise, or is of int8 already.
    """
    require_known(cache_type)
    made = model.clone()
    inputs = {value.name: value for value in made.ir.graph.inputs}
    for cache in caches:
        _retype(inputs[cache.read], cache, cache_type)
    return made.reshape({})


def _retype(past: ir.Value, cache: Variable, cache_type: str) -> None:
    """Gives a cache its type, where it is read and where it is written."""
    import onnx_ir as ir

    kinds = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "int8": "INT8"}
    kind, shape = ir.DataType[kinds[cache_type]], value_shape(past)
    uses = list(past.uses())
    node = uses[0].node if len(uses) == 1 else None
    present = None
    if node is not None and node.op_type == _ATTENTION and uses[0].idx in _PASTS:
        present = node.outputs[_PASTS[uses[0].idx]]
    if node is None or present is None or present.name != cache.written or shape is None:
        readers = ", ".join(f"'{use.node.name}' ({use.node.op_type})" for use in uses[:3])
        raise InputError(
            f"Cache '{past.name}' cannot be of type {cache_type}: it is read by {readers}; this "
            f"takes a cache that {_ATTENTION} reads and writes, and nothing else. Leave its "
            "type as it is."
        )
    if past.dtype == kind:
        return
    size = shape[-1]
    if past.dtype == ir.DataType.INT8 or not isinstance(size, int):
        raise InputError(
            f"Cache '{past.name}' cannot be of type {cache_type}: it is {past.dtype} of "
            f"{list(shape)}; read the model with another type."
        )
    if cache_type == "int8":
        size = row_bytes(size)
        for name, number in ATTRIBUTES.items():
            node.attributes[name] = ir.convenience.convert_attribute(name, number)
    for value in (past, present):
        value.dtype, value.shape = kind, ir.Shape([*shape[:-1], size])
