"""Attention masks as long as the caches' buffers, of which only the valid part counts.

A mask that is longer with every token gives each run other shapes, and calls are bound anew for
each. Here the mask has a number for each place of the buffers, so that shapes stay while the
buffers do. It is computed as before, with the length of the buffers where the number of tokens was
a size. What an element of it says of a valid key must not change by that: each operation on the way
is known to make elements of valid keys of elements of the same keys, and where the number of tokens
is computed with, as in the positions of new tokens, the number itself is put in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from partita.generate.caches.attention_sites import UnusualCacheError
from partita.generate.caches.graph_edits import GraphWriter, drop_unused, let_read
from partita.generate.caches.sums_of_sizes import (
    ONE,
    Sum,
    Sums,
    axes_of,
    computed,
    constants,
    number_of,
    numbers_of,
    plus,
    sums,
)
from partita.model.model import Model, value_shape
from partita.model.value_uses import captures

if TYPE_CHECKING:
    import onnx_ir as ir

WHOLE_MASK_KEY = "partita.mask_of_whole_caches"
"""The entry of a model's metadata that says that its mask is as long as the buffers of caches."""

_TOTAL = "tokens in all"
"""The size that is replaced."""

_EXACTLY: Sum = {_TOTAL: 1}
_FAR = 2**31 - 1
"""An end of a Slice that stands for the end of any axis."""

_ELEMENTWISE = frozenset(
    [
        *("Abs", "Add", "And", "Cast", "Div", "Equal", "Exp", "Greater", "GreaterOrEqual"),
        *("Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg"),
        *("Not", "Or", "Sqrt", "Sub", "Where", "Xor"),
    ]
)
_BIAS, _RANK = 10, 4
"""Which input of GroupQueryAttention the mask becomes, and how many axes it has."""

_Any = TypeVar("_Any")


@dataclass(frozen=True)
class _Keyed:
    """A tensor with a place for each key along some axes.

    Attributes:
        axes: These.
        rank: Of how many.
    """

    axes: frozenset[int]
    rank: int


def with_whole_mask(model: Model, size: str) -> Model:
    """A copy of a decoder whose ``attention_mask`` is as long as the buffers of its caches.

    Its input ``total_sequence_length`` says how many of these places are tokens.

    Args:
        model: What `room.with_room` makes; weights are shared.
        size: The symbol of these buffers' length, which the mask's becomes: requests take it from
            there.

    Raises:
        UnusualCacheError: The mask becomes what is added to scores in a way that is not known here.
    """
    import onnx_ir as ir

    made = model.clone()
    mask = next(value for value in made.ir.graph.inputs if value.name == "attention_mask")
    mask.shape = ir.Shape([*(value_shape(mask) or ())[:1], size])
    _Widening(made.ir.graph).run()
    made.ir.metadata_props[WHOLE_MASK_KEY] = "1"
    return made.reshape({})


class _Widening:
    """Rewrites one graph, or raises `UnusualCacheError` half-way.

    Args:
        graph: Changed in place.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._write = GraphWriter(graph, "whole_mask")
        inputs = {value.name: value for value in graph.inputs}
        self._mask, self._tokens = inputs["attention_mask"], inputs["total_sequence_length"]
        self._found: dict[ir.Value, Sums | _Keyed] = {
            self._mask: _Keyed(frozenset({1}), len(value_shape(self._mask) or ()))
        }
        mask_size = (value_shape(self._mask) or (None,))[-1]
        dims = (dim for value in graph.inputs for dim in value_shape(value) or ())
        self._symbols = {dim for dim in dims if isinstance(dim, str) and dim != mask_size}
        self._first = graph[0]
        self._shift: ir.Value | None = None

    def run(self) -> None:
        """Follows the mask and its length through all operations."""
        for node in [*self._graph]:
            self._visit(node)
        for value in self._graph.outputs:
            self._require(not self._depends(value), value.producer())
        drop_unused(self._graph)

    def _visit(self, node: ir.Node) -> None:
        self._require(not any(map(self._depends, captures(node))), node)
        found = self._shape_of(node) if node.op_type == "Shape" else None
        operands = [self._sums_of(value) for value in node.inputs]
        if found is None and len(node.outputs) == 1:
            found = computed(node, operands)
        if found is not None:
            self._found[node.outputs[0]] = found
            return
        if not any(map(self._depends, node.inputs)):
            return
        if (node.domain, node.op_type) == ("com.microsoft", "GroupQueryAttention"):
            wide = _Keyed(frozenset({_RANK - 1}), _RANK)
            for place, value in enumerate(node.inputs):
                is_bias = place == _BIAS and self._keyed(value) == wide
                self._require(is_bias or not self._depends(value), node)
            return
        rule = _RULES.get(node.op_type)
        known = not node.domain and len(node.outputs) == 1
        if known and node.op_type in _ELEMENTWISE:
            keyed = self._elementwise(node)
        else:
            self._require(known and rule is not None, node)
            keyed = rule(self, node, operands)  # type: ignore[misc]  # it is there
        if keyed is not None and keyed.axes:
            self._found[node.outputs[0]] = keyed

    def _require(self, holds: bool, node: ir.Node | None) -> None:
        if not holds:
            name = "an output" if node is None else f"'{node.name}' ({node.op_type})"
            raise UnusualCacheError(f"{name} depends on the number of tokens in an unknown way")

    def _need(self, found: _Any | None, node: ir.Node) -> _Any:
        self._require(found is not None, node)
        return found  # type: ignore[return-value]  # it was required

    # ------------------------------------------------------------------ what values are

    def _depends(self, value: ir.Value | None) -> bool:
        found = None if value is None else self._found.get(value)
        if found is None or isinstance(found, _Keyed):
            return found is not None
        return any(_TOTAL in one for one in found.reshape(-1).tolist())

    def _keyed(self, value: ir.Value | None) -> _Keyed | None:
        found = None if value is None else self._found.get(value)
        return found if isinstance(found, _Keyed) else None

    def _sums_of(self, value: ir.Value | None) -> Sums | None:
        if value is None:
            return None
        found = self._found.get(value)
        if found is None and value.const_value is not None and value.const_value.size <= 64:
            return constants(value.const_value.numpy())
        return None if isinstance(found, _Keyed) else found

    def _shape_of(self, node: ir.Node) -> Sums | None:
        """The sizes of a tensor."""
        (x,) = node.inputs
        keyed, dims = self._keyed(x), None if x is None else value_shape(x)
        if dims is None and keyed is not None:
            dims = (None,) * keyed.rank
        if dims is None:
            return None
        found = [
            _EXACTLY if keyed is not None and axis in keyed.axes else self._size(x, axis, dim)
            for axis, dim in enumerate(dims)
        ]
        given = (node.attributes.get(name) for name in ("start", "end"))
        start, end = (None if one is None else one.as_int() for one in given)
        return sums(found[start:end])

    def _size(self, x: ir.Value | None, axis: int, dim: Any) -> Sum:
        """One size that is not the number of tokens."""
        if isinstance(dim, int):
            return {ONE: dim} if dim else {}
        return {dim if dim in self._symbols else (x, axis): 1}

    def _rank(self, value: ir.Value, node: ir.Node) -> int:
        found = self._found.get(value)
        if found is not None:
            return found.rank if isinstance(found, _Keyed) else found.ndim
        return len(self._need(value_shape(value), node))

    def _is_spread(self, value: ir.Value, axis: int) -> bool:
        """Whether a tensor has one element along an axis, or has not got the axis."""
        shape = value_shape(value)
        return axis < 0 or (shape is not None and axis < len(shape) and shape[axis] == 1)

    # ------------------------------------------------------------------ what is put in

    def _as_data(self, value: ir.Value, node: ir.Node) -> ir.Value:
        """Numbers as they are for the tokens, not for all places."""
        these = self._sums_of(value)
        if these is None or not self._depends(value):
            return value
        times = [one.get(_TOTAL, 0) for one in these.reshape(-1).tolist()]
        factors = np.array(times, np.int64).reshape(these.shape)
        return self._moved(value, factors, node)

    def _moved(self, value: ir.Value, factors: Any, before: ir.Node) -> ir.Value:
        """Numbers plus factors times what tokens are more than places (less, that is)."""
        import onnx_ir as ir

        if self._shift is None:
            first, write = self._first, self._write
            tokens = write.emit(first, "Cast", self._tokens, to=ir.DataType.INT64.value)
            shape = write.emit(first, "Shape", self._mask)
            places = write.emit(first, "Gather", shape, write.const(np.array(1)), axis=0)
            self._shift = write.emit(first, "Sub", tokens, places)
        shift = self._write.emit(before, "Mul", self._shift, self._write.const(np.array(factors)))
        if value.dtype is not None and value.dtype != ir.DataType.INT64:
            shift = self._write.emit(before, "Cast", shift, to=value.dtype.value)
        return self._write.emit(before, "Add", value, shift)

    # ------------------------------------------------------------------ operations

    def _elementwise(self, node: ir.Node) -> _Keyed | None:
        inputs = [value for value in node.inputs if value is not None]
        ranks = [self._rank(value, node) for value in inputs]
        rank = max(ranks)
        pairs = [(x, self._keyed(x), rank - own) for x, own in zip(inputs, ranks, strict=True)]
        axes = {axis + skipped for _, keyed, skipped in pairs if keyed for axis in keyed.axes}
        for x, keyed, skipped in pairs:
            for axis in axes:
                own = axis - skipped
                fits = keyed is not None and own in keyed.axes
                self._require(fits or self._is_spread(x, own), node)
        if node.op_type == "Div":  # behind the tokens there may be zeros
            self._require(pairs[1][1] is None, node)
        for place, value in enumerate(node.inputs):
            if value is not None and self._keyed(value) is None:
                node.replace_input_with(place, self._as_data(value, node))
        return _Keyed(frozenset(axes), rank) if axes else None

    def _keys_among(self, dims: Sums, node: ir.Node) -> Iterator[tuple[int, bool]]:
        """Each axis of a shape, and whether it is for keys."""
        for axis, one in enumerate(dims.reshape(-1).tolist()):
            self._require(_TOTAL not in one or one == _EXACTLY, node)
            yield axis, one == _EXACTLY

    def range(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed | None:
        """Keys counted from anywhere, or positions of tokens."""
        start, limit, delta = (self._need(one, node).reshape(-1)[0] for one in operands)
        self._require(number_of(delta) == 1, node)
        size, factor = plus(limit, start, -1), start.get(_TOTAL, 0)
        if size == _EXACTLY and not factor:
            return _Keyed(frozenset({0}), 1)
        self._require(_TOTAL not in size, node)
        result = node.outputs[0]
        readers = [(use.node, use.idx) for use in result.uses()]
        behind = self._graph[self._graph.index(node) + 1]
        moved = self._moved(result, np.array(factor), behind)
        for reader, place in readers:
            reader.replace_input_with(place, moved)
        return None

    def expand(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """Elements side by side."""
        x, dims = self._need(node.inputs[0], node), self._need(operands[1], node)
        keys = dict(self._keys_among(dims, node))
        own, keyed = self._rank(x, node), self._keyed(x)
        rank = max(own, len(keys))
        axes = set()
        for axis in range(rank):
            of_x, of_dims = axis - (rank - own), axis - (rank - len(keys))
            asked = of_dims >= 0 and keys[of_dims]
            has = keyed is not None and of_x in keyed.axes
            if asked and not has:
                self._require(self._is_spread(x, of_x), node)
            if has and not asked:
                self._require(of_dims < 0 or number_of(dims[of_dims]) == 1, node)
            if asked or has:
                axes.add(axis)
        node.replace_input_with(0, self._as_data(x, node))
        return _Keyed(frozenset(axes), rank)

    def constant_of_shape(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """One element everywhere."""
        keys = dict(self._keys_among(self._need(operands[0], node), node))
        return _Keyed(frozenset(axis for axis, is_key in keys.items() if is_key), len(keys))

    def unsqueeze(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """Axes of one element among the others."""
        keyed = self._need(self._keyed(node.inputs[0]), node)
        axes = self._need(axes_of(node, operands), node)
        rank = keyed.rank + len(axes)
        added = {axis % rank for axis in axes}
        kept = [axis for axis in range(rank) if axis not in added]
        return _Keyed(frozenset(kept[axis] for axis in keyed.axes), rank)

    def squeeze(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """The same without axes of one element."""
        keyed = self._need(self._keyed(node.inputs[0]), node)
        gone = {axis % keyed.rank for axis in self._need(axes_of(node, operands), node)}
        self._require(not gone & keyed.axes, node)
        kept = [axis for axis in range(keyed.rank) if axis not in gone]
        return _Keyed(frozenset(kept.index(axis) for axis in keyed.axes), len(kept))

    def reshape(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """Rows of keys put into other axes."""
        keyed = self._need(self._keyed(node.inputs[0]), node)
        keys = dict(self._keys_among(self._need(operands[1], node), node))
        last = frozenset({len(keys) - 1})
        found = frozenset(axis for axis, is_key in keys.items() if is_key)
        self._require(keyed.axes == {keyed.rank - 1} and found == last, node)
        return _Keyed(last, len(keys))

    def transpose(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """The same with other axes first."""
        keyed = self._need(self._keyed(node.inputs[0]), node)
        perm = node.attributes.get("perm")
        order = list(range(keyed.rank))[::-1] if perm is None else list(perm.as_ints())
        return _Keyed(frozenset(order.index(axis) for axis in keyed.axes), keyed.rank)

    def slice(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """A part of other axes; of keys all up to the last token."""
        keyed = self._need(self._keyed(node.inputs[0]), node)
        self._require(len(operands) >= 4, node)
        starts, ends, places, *steps = (self._need(one, node) for one in operands[1:])
        self._require(starts.shape == ends.shape == places.shape, node)
        axes = self._need(numbers_of(places), node)
        every = zip(axes, starts.tolist(), ends.tolist(), strict=True)
        for place, (axis, start, end) in enumerate(every):
            if axis % keyed.rank not in keyed.axes:
                self._require(_TOTAL not in start and _TOTAL not in end, node)
                continue
            whole = end == _EXACTLY or (number_of(end) or 0) >= _FAR
            single = all(number_of(one.reshape(-1)[place]) == 1 for one in steps)
            self._require(number_of(start) == 0 and whole and single, node)
        return keyed

    def concat(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """Tensors alike, one behind the other along another axis."""
        keyed = self._need(self._keyed(node.inputs[0]), node)
        self._require({self._keyed(value) for value in node.inputs} == {keyed}, node)
        self._require(node.attributes["axis"].as_int() % keyed.rank not in keyed.axes, node)
        return keyed

    def trilu(self, node: ir.Node, operands: Sequence[Sums | None]) -> _Keyed:
        """A triangle; where it begins by the number of tokens, it is spelled out."""
        x = self._need(node.inputs[0], node)
        keyed = self._need(self._keyed(x), node)
        self._require(keyed.axes == {keyed.rank - 1}, node)
        shift = node.inputs[1] if len(node.inputs) > 1 else None
        if shift is not None and self._depends(shift):
            let_read(node.outputs[0], self._triangle(node, x, shift, keyed))
        return keyed

    def _triangle(self, node: ir.Node, x: ir.Value, shift: ir.Value, keyed: _Keyed) -> ir.Value:
        """What Trilu makes, by operators that take its second input as they take any other."""
        write, upper = self._write, node.attributes.get("upper")
        zero, one = write.const(np.array(0)), write.const(np.array(1))
        shape = write.emit(node, "Shape", x)
        sizes = (
            write.emit(node, "Gather", shape, write.const(np.array(axis)), axis=0)
            for axis in (keyed.rank - 2, keyed.rank - 1)
        )
        rows, columns = (write.emit(node, "Range", zero, size, one) for size in sizes)
        column = write.emit(node, "Reshape", rows, write.const([-1, 1]))
        reach = write.emit(node, "Sub", columns, column)
        begins = write.emit(node, "Reshape", self._as_data(shift, node), write.const([1, 1]))
        is_upper = upper is None or upper.as_int()
        kept = write.emit(node, "GreaterOrEqual" if is_upper else "LessOrEqual", reach, begins)
        kind = self._need(x.dtype, node)
        made = write.emit(node, "Where", kept, x, write.const(np.zeros((), kind.numpy())))
        self._found[made] = keyed
        return made


_RULES: dict[str, Callable[[_Widening, ir.Node, Sequence[Sums | None]], _Keyed | None]] = {
    "Concat": _Widening.concat,
    "ConstantOfShape": _Widening.constant_of_shape,
    "Expand": _Widening.expand,
    "Range": _Widening.range,
    "Reshape": _Widening.reshape,
    "Slice": _Widening.slice,
    "Squeeze": _Widening.squeeze,
    "Transpose": _Widening.transpose,
    "Trilu": _Widening.trilu,
    "Unsqueeze": _Widening.unsqueeze,
}
"""What is known of other operators."""
