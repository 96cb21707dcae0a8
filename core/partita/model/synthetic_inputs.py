"""Made-up inputs that a model can compute with: indices in bounds, masks of ones, known choices.

Operators that read an input tell what its integers mean. What only changes the form of a tensor is
looked through, so that a sampling rate is found even where it is reshaped before it is compared.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InputError
from partita.model.model import Model, Port, value_shape
from partita.model.op_traits import Trait, having

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""Of operators that are known by their names."""

_PASSING = having(Trait.SELECTS) | {"Cast"}
"""Operators whose result holds elements of their first input alone, perhaps of another type."""

_EVERYTHING = np.iinfo(np.int32).max
"""An end of a Slice that leaves nothing out."""


def synthetic_inputs(
    model: Model, generator: np.random.Generator, ports: Sequence[Port] | None = None
) -> dict[str, Array]:
    """An array for each input of a model.

    Floating-point inputs get normal numbers. Integers are what the operators that read them can
    take (a choice that they know, an index in bounds, a shape); inputs with "mask" in their name
    get ones; all others 0 or 1.

    Args:
        model: The model; dimensions that are not fixed are taken as 1.
        generator: Where random elements come from.
        ports: The inputs that are wanted; by default all.

    Raises:
        InputError: An input is no tensor, or of unknown rank.
    """
    values = {value.name: value for value in model.ir.graph.inputs}
    made = {}
    for port in model.inputs if ports is None else ports:
        array = random_array(port, generator)
        if array.dtype.kind in "iub":
            meant = _meant(values[port.name], port, generator)
            if meant is None and "mask" in port.name.lower():
                meant = 1
            if meant is not None:
                array = np.broadcast_to(meant, array.shape).astype(array.dtype)
        made[port.name] = array
    return made


Answer = Array | int | None


def _meant(value: ir.Value, port: Port, generator: np.random.Generator) -> Answer:
    """What the first operator that says anything wants; a comparison says most."""
    reads = list(_reads(value))
    reads.sort(key=lambda read: read[0].op_type != "Equal")
    for node, position in reads:
        rule = _RULES.get((node.op_type, position))
        if rule is not None and node.domain in _DOMAINS:
            answer = rule(_Read(node, port, generator))
            if answer is not None:
                return answer
    return None


def _reads(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Operators that read a value, or its elements in another form, bodies included."""
    stack, seen = [value], {value}
    while stack:
        for use in stack.pop().uses():
            yield use.node, use.idx
            if use.idx == 0 and use.node.op_type in _PASSING:
                result = use.node.outputs[0]
                if result not in seen:
                    seen.add(result)
                    stack.append(result)


class _Read:
    """An operator that reads an input."""

    def __init__(self, node: ir.Node, port: Port, generator: np.random.Generator) -> None:
        self.node = node
        self.shape = concrete_shape(port)
        self.generator = generator

    def constant(self, position: int) -> Array | None:
        """The elements of another input, if they are constant."""
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        if value is None or value.const_value is None or value.const_value.size == 0:
            return None
        return np.asarray(value.const_value.numpy()).reshape(-1)

    def dims(self, position: int) -> tuple[int | str | None, ...] | None:
        """The shape of another input."""
        value = self.node.inputs[position]
        return None if value is None else value_shape(value)

    def attribute(self, name: str) -> int:
        """An integer attribute that defaults to 0."""
        found = self.node.attributes.get(name)
        return 0 if found is None else found.as_int()

    def below(self, *limits: int | str | None) -> Answer:
        """Random indices below the smallest limit; ``None`` if one is not known."""
        known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
        if not known or len(known) < len(limits):
            return None
        return np.asarray(self.generator.integers(0, min(known), self.shape))


def _compared(read: _Read) -> Answer:
    """What a single element is compared with; many of them are compared to find some of them."""
    for position in (0, 1) if np.prod(read.shape, dtype=int) == 1 else ():
        constant = read.constant(position)
        if constant is not None:
            return np.asarray(constant[0])
    return None


def _index(read: _Read) -> Answer:
    dims, axis = read.dims(0), read.attribute("axis")
    if dims is None or not -len(dims) <= axis < len(dims):
        return None
    return read.below(dims[axis])


def _indices_of_leading_axes(read: _Read) -> Answer:
    dims = read.dims(0)
    return None if dims is None else read.below(*dims)


def _category(read: _Read) -> Answer:
    depth = read.constant(1)
    return None if depth is None else read.below(int(depth[0]))


def _length_of_sequences(read: _Read) -> Answer:
    dims = read.dims(0)
    length = None if dims is None or len(dims) != 3 else dims[read.attribute("layout")]
    return length if isinstance(length, int) else None


def _all_new(read: _Read) -> int:
    """Tokens of a text of which all are new, so that they fit whatever the cache has room for."""
    dims = read.dims(0)
    length = None if dims is None or len(dims) < 2 else dims[1]
    return length if isinstance(length, int) else 1


def _last_of_new(read: _Read) -> int:
    """The place of the last of these."""
    return _all_new(read) - 1


def _one_row(read: _Read) -> Answer:
    """Everything in one row, which fits any tensor."""
    return np.array([*([1] * (read.shape[0] - 1)), -1]) if len(read.shape) == 1 else None


def _always(answer: int) -> Callable[[_Read], Answer]:
    return lambda read: answer


_ONE = _always(1)

_RULES: Mapping[tuple[str, int], Callable[[_Read], Answer]] = {
    ("Equal", 0): _compared,
    ("Equal", 1): _compared,
    ("Gather", 1): _index,
    ("GatherElements", 1): _index,
    ("GatherND", 1): _indices_of_leading_axes,
    ("ScatterElements", 1): _index,
    ("ScatterND", 1): _indices_of_leading_axes,
    ("OneHot", 0): _category,
    ("LSTM", 4): _length_of_sequences,
    ("GRU", 4): _length_of_sequences,
    ("RNN", 4): _length_of_sequences,
    ("Reshape", 1): _one_row,
    ("Expand", 1): _ONE,
    ("Tile", 1): _ONE,
    ("ConstantOfShape", 0): _ONE,
    ("TopK", 1): _ONE,
    ("Range", 1): _ONE,
    ("Range", 2): _ONE,
    ("Loop", 0): _ONE,
    ("Loop", 1): _ONE,
    ("Range", 0): _always(0),
    ("Pad", 1): _always(0),
    ("Slice", 1): _always(0),
    ("Slice", 2): _always(_EVERYTHING),
    ("Slice", 4): _ONE,
    ("GroupQueryAttention", 5): _last_of_new,
    ("GroupQueryAttention", 6): _all_new,
}
"""Operator and which of its inputs, to what that input may hold."""


_WIDEST = 16
"""Bytes of an element of the widest type."""


def random_array(port: Port, generator: np.random.Generator) -> Array:
    """Made-up elements for an input: normal numbers; 0 and 1 where integers are mostly indices.

    Args:
        port: The input; dimensions that are not fixed are taken as 1.
        generator: Where they come from.

    Raises:
        InputError: The input is no tensor, of unknown rank, or larger than memory can be.
    """
    shape, dtype = concrete_shape(port), tensor_dtype(port)
    if math.prod(shape) > sys.maxsize // _WIDEST:
        raise InputError(f"Input '{port.name}' of shape {list(shape)} has no room in any memory.")
    if dtype.kind == "O":
        return np.full(shape, "partita", object)
    if dtype.kind in "biu":
        return np.asarray(generator.integers(0, 2, shape)).astype(dtype)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def concrete_shape(port: Port) -> tuple[int, ...]:
    """The shape, with 1 for what is not fixed.

    Raises:
        InputError: The rank is not known.
    """
    if port.shape is None:
        raise InputError(
            f"Input '{port.name}' has no known rank; give it as --input {port.name}=file.npy."
        )
    return tuple(dim if isinstance(dim, int) else 1 for dim in port.shape)


def tensor_dtype(port: Port) -> np.dtype[Any]:
    """The element type.

    Raises:
        InputError: It is no tensor.
    """
    if port.dtype is None:
        raise InputError(f"Input '{port.name}' is not a tensor; only tensors can be given here.")
    return port.dtype
