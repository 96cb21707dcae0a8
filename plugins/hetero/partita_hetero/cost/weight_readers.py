"""The weights of a decoder, and who reads them: what layers have alone, and what they share.

Three kinds are told apart by how many layers read them. What one layer reads is its own. What two
read (tied weights, such as a table of tokens for embedding and head) each counts among its own, and
`tied` says so. What more read, such as tables of angles, any device has once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from partita_hetero.partition.decoder_layers import LayerOps, weights_read
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir

_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Operators that leave the elements of a constant as they are stored."""

_Key = tuple[int, int]
"""Where weights are: their address and size, or the initializer where they are made when read."""


@dataclass(frozen=True, slots=True)
class TiedTable:
    """Weights that two layers read, such as a table of tokens that embedding and head share.

    Attributes:
        layers: Indices of the two, in order.
        ops: Operations that read them.
        nbytes: What they take.
        in_one_form: Whether all read the same initializer as it is stored; else a device with a
            memory of its own has another form for each.
    """

    layers: tuple[int, int]
    ops: frozenset[int]
    nbytes: int
    in_one_form: bool


class _Weight(NamedTuple):
    """A weight as one operation reads it.

    Attributes:
        value: The initializer.
        as_stored: Whether no operation on constants between them makes another form of it.
    """

    value: ir.Value
    as_stored: bool


@dataclass
class _Readers:
    """Who reads some weights.

    Attributes:
        nbytes: What they take.
        layers: Indices of layers.
        ops: Operations.
        forms: Initializers, of which several may lie in the same memory, and whether as stored.
    """

    nbytes: int
    layers: set[int] = field(default_factory=set)
    ops: set[int] = field(default_factory=set)
    forms: set[tuple[int, bool]] = field(default_factory=set)


class WeightReaders:
    """Who reads which weights.

    Args:
        op_graph: The decoder's operations.
        layers: Its layers.
    """

    def __init__(self, op_graph: OpGraph, layers: Sequence[LayerOps]) -> None:
        self._op_graph = op_graph
        self._read_by: dict[int, list[_Weight]] = {}
        self._readers: dict[_Key, _Readers] = {}
        for index, layer in enumerate(layers):
            for op in layer.ops:
                self._add(op, index)

    def _add(self, op: int, layer: int) -> None:
        for weight in self._read(op):
            key, nbytes = _place(weight.value)
            readers = self._readers.setdefault(key, _Readers(nbytes))
            readers.layers.add(layer)
            readers.ops.add(op)
            readers.forms.add((id(weight.value), weight.as_stored))

    @property
    def shared_bytes(self) -> int:
        """What more than two layers read: each device has it once."""
        return sum(one.nbytes for one in self._readers.values() if len(one.layers) > 2)

    @property
    def tied(self) -> list[TiedTable]:
        """What two layers read; weights that the same operations read are one table."""
        found: dict[tuple[frozenset[int], bool], TiedTable] = {}
        for one in self._readers.values():
            if len(one.layers) == 2:
                first, last = sorted(one.layers)
                in_one_form = len(one.forms) == 1 and all(stored for _, stored in one.forms)
                key = frozenset(one.ops), in_one_form
                before = found[key].nbytes if key in found else 0
                found[key] = TiedTable((first, last), key[0], before + one.nbytes, in_one_form)
        return list(found.values())

    def weights(self, op: int) -> list[ir.Value]:
        """What an operation reads that is constant, through constant operations too."""
        return [weight.value for weight in self._read(op)]

    def stored_bytes(self, ops: Iterable[int]) -> int:
        """Weights that operations keep, each once, and as they are stored.

        What more than two layers share is not among them.
        """
        found: dict[_Key, int] = {}
        for op in ops:
            for value in self.weights(op):
                key, nbytes = _place(value)
                if key not in self._readers or len(self._readers[key].layers) <= 2:
                    found[key] = nbytes
        return sum(found.values())

    def read_bytes(self, op: int) -> int:
        """Weights that one operation reads, whoever else reads them."""
        return sum(dict(_place(value) for value in self.weights(op)).values())

    def _read(self, op: int) -> list[_Weight]:
        if op not in self._read_by:
            self._read_by[op] = self._found(op)
        return self._read_by[op]

    def _found(self, op: int) -> list[_Weight]:
        op_graph = self._op_graph
        found, stack, seen = [], [(op, True)], {op}
        while stack:
            reader, as_stored = stack.pop()
            for value in weights_read(op_graph.nodes[reader]):
                source = op_graph.producer.get(value.name or "")
                if value.const_value is not None:
                    found.append(_Weight(value, as_stored))
                elif source is not None and op_graph.constant[source] and source not in seen:
                    seen.add(source)
                    is_view = op_graph.nodes[source].op_type in _VIEWS
                    stack.append((source, as_stored and is_view))
        return found


def _place(value: ir.Value) -> tuple[_Key, int]:
    """Where an initializer's elements are, and their bytes."""
    import onnx_ir as ir

    tensor = value.const_value
    nbytes = 0 if tensor is None else tensor.nbytes
    array = getattr(tensor.raw, "ctypes", None) if isinstance(tensor, ir.Tensor) else None
    if array is not None and nbytes:
        return (int(array.data), nbytes), nbytes
    return (id(value), -1), nbytes
