"""Shape inference that propagates values, for tensors of few elements.

Shapes are computed from other shapes, so that onnx's inference has to know values, not only their
shapes. But of any row that a Cast, an Add or a Concat reads it keeps each element, 150 bytes and
half a microsecond, whatever the row holds: an input that claims 2**31 elements takes a quarter of
an hour. So long rows, and those whose length is not known yet, are hidden from such operations:
what they read instead is of the same type, and nothing is known of its elements.
"""

from __future__ import annotations

import enum
import functools
import math
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

MOST_ELEMENTS = 128
"""Elements of a row that is followed: shapes have few, and weights that take part no more."""

MADE_UP = "unk__"
"""How onnx names dimensions that it does not know; to anyone else these names mean nothing."""

WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators into whose bodies inference goes."""

_COUNTS = frozenset({"Shape", "Size"})
"""Operators that make values of shapes, whatever they read."""

_MOST_ROUNDS = 8
"""How often what was found may show rows of which more can be found."""


def infer_following(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnx infers of a model, from the values of short rows too.

    Args:
        model: Changed in no way; types and shapes that it claims are believed.

    Raises:
        onnx.shape_inference.InferenceError: It cannot be inferred.
    """
    from onnx.shape_inference import infer_shapes

    found = infer_shapes(model)
    if _is_complete(found):
        return found
    for _ in range(_MOST_ROUNDS):
        _forget_made_up(found)
        rows = _HiddenRows(found)
        if not rows.is_any_followed:
            rows.show(found)
            break
        found = infer_shapes(found, data_prop=True)
        rows.show(found)
        lengths = rows.found(found)
        if not lengths:
            break
        if rows.is_any_rank_open or max(lengths) > MOST_ELEMENTS:
            found = infer_shapes(found)  # behind what was, or stays, hidden
    return found


class _HiddenRows:
    """The rows of a model that operations which follow values no longer read.

    Args:
        model: As inference without values left it. What operations read is replaced in place.

    Attributes:
        is_any_rank_open: Whether it is not known of some of them that they are rows.
        is_any_followed: Whether inference would make values of some that are not hidden, or might
            of some that are; shapes of images, say, follow from no values.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        versions = {opset.domain: opset.version for opset in model.opset_import}
        self._follows = functools.cache(
            lambda op, domain: _follows(op, domain, versions.get(domain, 0))
        )
        self._prefix = secrets.token_hex(8)  # no file has such names
        self._rows: list[str] = []
        self._open: set[str] = set()  # those whose length is not known
        self.is_any_rank_open = self.is_any_followed = False
        self._instead: list[onnx.ValueInfoProto] = []
        self._hide(model.graph, _Rows(model.graph, None))
        model.graph.input.extend(self._instead)

    def show(self, model: onnx.ModelProto) -> None:
        """Lets operations read the rows again, of the model or of what was inferred of it."""
        if not self._rows:
            return
        if self._instead:
            del model.graph.input[-len(self._instead) :]
        for graph in _graphs_of(model.graph):
            for node in graph.node:
                if self._follows(node.op_type, node.domain) is _Follows.NOTHING:
                    continue
                for index, name in enumerate(node.input):
                    if name.startswith(self._prefix):
                        node.input[index] = self._rows[int(name[len(self._prefix) :])]

    def found(self, model: onnx.ModelProto) -> list[int]:
        """The lengths that were not known, and that inference has found out."""
        if not self._open:
            return []
        lengths = (
            _length(info.type)
            for graph in _graphs_of(model.graph)
            for infos in (graph.value_info, graph.output)
            for info in infos
            if info.name in self._open
        )
        return [length for length in lengths if length is not None]

    def _hide(self, graph: onnx.GraphProto, rows: _Rows) -> None:
        """Hides the rows of a graph and of its bodies."""
        for node in graph.node:
            op_type = node.op_type
            if op_type in WITH_BODIES:
                for body in _bodies(node):
                    self._hide(body, _Rows(body, rows))
            if op_type in _COUNTS:
                self.is_any_followed = True
            follows = self._follows(op_type, node.domain)
            if follows is _Follows.NOTHING:
                continue
            self.is_any_followed |= follows is _Follows.BY_ITS_BODY
            found = [rows.length(name) for name in node.input]
            known = [length for length in found if length is not None]
            is_joined = op_type == "Concat"
            most = sum(known) if is_joined else max(known, default=0)
            if None not in found and most <= MOST_ELEMENTS:
                if _NO_ROW not in found and node.output:
                    rows.lengths[node.output[0]] = most
                    self.is_any_followed = True
                continue
            for index, length in enumerate(found):
                if length is None or is_joined or length > MOST_ELEMENTS:
                    if length is None:
                        self.is_any_followed = True
                        kind = rows.type(node.input[index])
                        self._open.add(node.input[index])
                        self.is_any_rank_open |= kind is None or not kind.tensor_type.HasField(
                            "shape"
                        )
                    node.input[index] = self._other(node.input[index], rows)

    def _other(self, name: str, rows: _Rows) -> str:
        """The name of a value of the same type that nothing else is known of."""
        import onnx

        other = f"{self._prefix}{len(self._rows)}"
        self._rows.append(name)
        kind = rows.type(name)
        if kind is not None:
            added = onnx.ValueInfoProto(name=other, type=kind)
            for dim in added.type.tensor_type.shape.dim:
                dim.Clear()
            self._instead.append(added)
        return other


class _Rows:
    """What is known of the rows that a graph may read.

    Args:
        graph: The graph.
        outer: What is known around it, if it is a body.

    Attributes:
        lengths: How many elements inference keeps of values whatever their types say.
    """

    def __init__(self, graph: onnx.GraphProto, outer: _Rows | None) -> None:
        self._outer = outer
        self._infos = {
            info.name: info
            for infos in (graph.input, graph.value_info, graph.output)
            for info in infos
        }
        self.lengths = {
            tensor.name: math.prod(tensor.dims) if len(tensor.dims) < 2 else _NO_ROW
            for tensor in graph.initializer
        }

    def length(self, name: str) -> int | None:
        """How many elements inference would keep of a value; ``None`` if nobody knows."""
        if not name:
            return _NO_ROW
        info, kept = self._infos.get(name), self.lengths.get(name)
        if info is None and kept is None:
            return None if self._outer is None else self._outer.length(name)
        inferred = None if info is None else _length(info.type)
        if inferred is None or kept is None:
            return kept if inferred is None else inferred
        return max(inferred, kept)

    def type(self, name: str) -> onnx.TypeProto | None:
        """The type of a value, of this graph or one around it."""
        info = self._infos.get(name)
        if info is None:
            return None if self._outer is None else self._outer.type(name)
        kind: onnx.TypeProto = info.type
        return kind


_NO_ROW = -1
"""The length of what is no row, and of which inference keeps nothing."""


def _length(kind: onnx.TypeProto | None) -> int | None:
    """The length that a type tells of."""
    if kind is None:
        return None
    if not kind.HasField("tensor_type"):
        return None if kind.WhichOneof("value") is None else _NO_ROW
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    if len(dims) != 1:
        return _NO_ROW if dims else 1
    return dims[0].dim_value if dims[0].HasField("dim_value") else None


class _Follows(enum.Enum):
    """Whether inference makes values of an operator's results of those that it reads.

    It does so in the functions that some operators are, too, where they have no inference of
    their own.
    """

    NOTHING = enum.auto()
    VALUES = enum.auto()
    BY_ITS_BODY = enum.auto()


@functools.cache
def _follows(op_type: str, domain: str, version: int) -> _Follows:
    """What inference does with values that an operator reads."""
    from onnx import defs

    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return _Follows.NOTHING
    if op_type == "Shape":  # which reads none
        return _Follows.NOTHING
    if not schema.has_type_and_shape_inference_function:
        return _Follows.BY_ITS_BODY
    return _Follows.VALUES if schema.has_data_propagation_function else _Follows.NOTHING


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.type == attribute.GRAPH]


def _graphs_of(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and the bodies within it."""
    found = [graph]
    for node in graph.node:
        if node.op_type in WITH_BODIES:
            for body in _bodies(node):
                found += _graphs_of(body)
    return found


def _forget_made_up(model: onnx.ModelProto) -> None:
    """Forgets the names that inference gave to dimensions: it would not put better ones there."""
    own = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim}
    for graph in _graphs_of(model.graph):
        for infos in (graph.value_info, graph.output):
            for info in infos:
                for dim in info.type.tensor_type.shape.dim:
                    name = dim.dim_param
                    if name and name.startswith(MADE_UP) and name not in own:
                        dim.Clear()


def _is_complete(model: onnx.ModelProto) -> bool:
    """Whether inference has found all shapes, and gave no dimension a name of its own."""
    if MADE_UP.encode() in model.SerializeToString():
        return False
    for graph in _graphs_of(model.graph):
        inferred = {
            info.name
            for infos in (graph.value_info, graph.output)
            for info in infos
            if (kind := info.type).tensor_type.HasField("shape") or not kind.HasField("tensor_type")
        }
        made = [name for node in graph.node for name in node.output if name]
        if not inferred.issuperset(made):
            return False
    return True
