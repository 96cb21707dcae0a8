"""Bytes and multiplications of a decoder's operations for a run of some tokens, from the graph.

Weights count as they are stored, and none of them is made or read for that. Decoding reads every
weight and the whole cache for one token; a prompt reads the weights once for many tokens, which
then count as products. Where shapes are open, the batch is 1, the capacity of the cache is the
context that was asked for, and any other open size is the number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from partita.errors import PlanError
from partita.model.model import Dim, Model, numpy_dtype, value_shape
from partita.model.value_uses import bodies
from partita_hetero.cost.weight_readers import TiedTable, WeightReaders
from partita_hetero.partition.decoder_layers import (
    MIXTURES,
    LayerOps,
    cache_inputs,
    decoder_layers,
    weights_read,
)
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir

FLOAT_BYTES = 4
"""Of an element whose type is not known."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a matrix is stored, as far as speed depends on it.

    Attributes:
        bits: Of a weight.
        block: Weights that share a scale; 0 if there are no scales.
        has_zeros: Whether each block has a zero point of its own.
    """

    bits: int
    block: int = 0
    has_zeros: bool = False

    def __str__(self) -> str:
        blocks = f", blocks of {self.block}" if self.block else ""
        return f"{self.bits} bits{blocks}{', zero points' if self.has_zeros else ''}"


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a matrix of weights, as far as speed depends on it.

    Attributes:
        kind: How the matrix is stored.
        rows: Of the matrix, which are the columns of the product's input.
        columns: Of the matrix.
    """

    kind: WeightFormat
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.rows} by {self.columns}"

    @property
    def nbytes(self) -> int:
        """What the matrix takes, with its scales and zero points."""
        kind, blocks = self.kind, 0
        if kind.block:
            blocks = -(-self.rows // kind.block) * (2 if kind.has_zeros else 1)
        return self.columns * (self.rows * kind.bits // 8 + 4 * blocks)

    @property
    def elements(self) -> int:
        """Of the matrix: multiplications for a row."""
        return self.rows * self.columns

    def with_columns(self, columns: int) -> Product:
        """The same with another number of columns."""
        return Product(self.kind, self.rows, columns)


LayerProducts = tuple[tuple[Product, ...], ...]
"""The products of a layer in its order, those beside each other that multiply the same value."""


class EqualProducts(NamedTuple):
    """Products of equal sizes.

    Attributes:
        number: How many.
        nbytes: Of their weights, as the model stores them.
    """

    number: int
    nbytes: float


@dataclass(frozen=True)
class TokenWork:
    """The work of some operations in one run.

    Attributes:
        weight_bytes: By format: weights that are read.
        products: By format: multiplications with weights.
        cache_bytes: Of past keys and values that are read.
        attention_products: Multiplications of attention itself.
        ops: How many operations are started; experts that are operations of their own become one
            where all of a layer are.
        matrices: Of the products those with one matrix, by the rows of their input, too; their
            weights and multiplications are among the others.
        attentions: How many of the operations are attention over a cache.
    """

    weight_bytes: Mapping[WeightFormat, float] = field(default_factory=dict)
    products: Mapping[WeightFormat, float] = field(default_factory=dict)
    cache_bytes: float = 0.0
    attention_products: float = 0.0
    ops: int = 0
    matrices: Mapping[tuple[Product, int], EqualProducts] = field(default_factory=dict)
    attentions: int = 0

    @property
    def bytes_read(self) -> float:
        """All that is read."""
        return sum(self.weight_bytes.values()) + self.cache_bytes

    @property
    def formats_in_matrices(self) -> set[WeightFormat]:
        """Formats of which all weights are those of products with one matrix."""
        own: dict[WeightFormat, float] = {}
        for (product, _), equal in self.matrices.items():
            own[product.kind] = own.get(product.kind, 0.0) + equal.nbytes
        return {kind for kind, nbytes in own.items() if nbytes >= self.weight_bytes[kind]}


PLAIN = WeightFormat(32)
"""What is read, or multiplied, without a matrix of weights: norms, caches, attention."""


class DecoderWork:
    """Work and memory of a decoder's operations.

    Args:
        model: The decoder.
        op_graph: Its operations.
        context: Tokens that the cache must hold.
        shrinks: Whether a cache of fixed capacity counts as if the model had been read for the
            context; if not, it takes what it takes, however little of it is asked for.

    Raises:
        PlanError: The model's cache holds less.
    """

    def __init__(
        self, model: Model, op_graph: OpGraph, context: int, shrinks: bool = False
    ) -> None:
        self._op_graph = op_graph
        self._caches: dict[str, tuple[int, ...]] = {}
        self._itemsize: dict[str, int] = {}
        pasts = cache_inputs(model)
        for port in model.inputs:
            if port.name in pasts and port.shape is not None and port.dtype is not None:
                self._caches[port.name] = _with_context(port.name, port.shape, context, shrinks)
                self._itemsize[port.name] = port.dtype.itemsize
        self.context = context
        self._layers = layers = decoder_layers(model, op_graph)
        self._chosen = _chosen_shares(layers, op_graph)
        self._mixtures = [frozenset(layer.experts) for layer in layers if layer.experts]
        self._readers = WeightReaders(op_graph, layers)
        self._width = _stream_width(op_graph)
        self._one_row = _last_rows(op_graph)

    @property
    def shared_bytes(self) -> int:
        """What more than two layers read, such as tables of angles: each device has it once."""
        return self._readers.shared_bytes

    @property
    def tied(self) -> list[TiedTable]:
        """What two layers read, which both count among their own."""
        return self._readers.tied

    def stored_bytes(self, ops: Iterable[int]) -> int:
        """Weights that operations keep, each once, and as they are stored.

        What more than two layers share is not among them.
        """
        return self._readers.stored_bytes(ops)

    def cache_bytes(self, caches: Iterable[str]) -> int:
        """What caches take at the whole context."""
        return sum(math.prod(self._caches[name]) * self._itemsize[name] for name in caches)

    def workspace_bytes(self, ops: Iterable[int], tokens: int) -> int:
        """Room for results of products while operations run, none of them given back before."""
        columns = sum(self._matrix(op)[1] for op in ops if op not in self._one_row)
        rows_of_one = sum(self._matrix(op)[1] for op in ops if op in self._one_row)
        return FLOAT_BYTES * (tokens * (columns + 2 * self._width) + rows_of_one)

    def value_bytes(self, value: ir.Value, tokens: int) -> int:
        """A value between operations; as wide as the residual stream where its shape is unknown."""
        dtype, shape = numpy_dtype(value.dtype), value_shape(value)
        itemsize = FLOAT_BYTES if dtype is None else dtype.itemsize
        if shape is None:
            return itemsize * tokens * self._width
        rest = [dim if isinstance(dim, int) else tokens for dim in shape[1:]]
        batch = [dim for dim in shape[:1] if isinstance(dim, int)]
        return itemsize * math.prod([*batch, *rest])

    def matrix_side(self, ops: Iterable[int]) -> int:
        """The side of a square matrix as large as typical ones of products; 0 if there are none.

        Half of all their weights are in larger ones.
        """
        sizes = sorted(rows * columns for rows, columns, _ in map(self._matrix, ops))
        left = sum(sizes) / 2
        for size in sizes:
            left -= size
            if left <= 0:
                return math.isqrt(size)
        return 0

    def work(self, ops: Collection[int], tokens: int, past: int) -> TokenWork:
        """What operations do in a run.

        Args:
            ops: The operations.
            tokens: New tokens.
            past: Tokens before them.
        """
        read: dict[WeightFormat, float] = {}
        products: dict[WeightFormat, float] = {}
        matrices: dict[tuple[Product, int], EqualProducts] = {}
        cache = attention = 0.0
        attentions = 0
        for op in ops:
            kind, columns, elements, share = self._reading(op, tokens)
            # Layers may share matrices, and each reads them; of tables of angles they read a row.
            nbytes = self._readers.read_bytes(op) if columns else self.stored_bytes([op])
            read[kind] = read.get(kind, 0.0) + nbytes * share
            rows = 1 if op in self._one_row else tokens
            if columns:
                products[kind] = products.get(kind, 0.0) + rows * elements
            product = self._product(op)
            if product is not None:
                number, before = matrices.get((product, rows), (0, 0.0))
                matrices[product, rows] = EqualProducts(number + 1, before + nbytes)
            seen, scored = self._attention(op, tokens, past)
            cache += seen
            attention += scored
            attentions += seen > 0
        joined = sum(len(one) - 1 for one in self._mixtures if one.issubset(ops))
        started = len(ops) - joined
        return TokenWork(read, products, cache, attention, started, matrices, attentions)

    def layer_products(self) -> list[LayerProducts]:
        """The products of each kind of layer; first of the kind with most weights.

        The head is a layer, too.
        """
        found: dict[LayerProducts, int] = {}
        for layer in self._layers:
            groups: dict[int, list[Product]] = {}
            for op in layer.ops:
                product = self._product(op)
                if product is not None:
                    groups.setdefault(id(self._op_graph.nodes[op].inputs[0]), []).append(product)
            if groups:
                own = tuple(map(tuple, groups.values()))
                nbytes = sum(product.nbytes for group in own for product in group)
                found[own] = found.get(own, 0) + nbytes
        return sorted(found, key=lambda own: found[own], reverse=True)

    # ------------------------------------------------------------------------ operations

    def _matrix(self, op: int) -> tuple[int, int, ir.Value | None]:
        """Rows and columns of the matrix that an operation multiplies with, and where it is."""
        return _matrix_of(self._op_graph.nodes[op], self._readers.weights(op))

    def _product(self, op: int) -> Product | None:
        """The product that an operation is, if its weights are one matrix in a known format."""
        node = self._op_graph.nodes[op]
        if op in self._chosen or node.op_type not in ("MatMulNBits", "MatMul", "Gemm"):
            return None
        rows, columns, value = self._matrix(op)
        if value is None or not rows * columns:
            return None
        kind = _format(node, value)
        if not kind.block and kind.bits not in (16, 32):
            return None
        shape = value_shape(node.inputs[0]) if node.inputs[0] is not None else None
        if shape is not None and shape[-1] == columns:  # a table that is transposed on the way
            rows, columns = columns, rows
        return Product(kind, rows, columns)

    def _reading(self, op: int, tokens: int) -> tuple[WeightFormat, int, float, float]:
        """Format and columns of an operation's matrix, multiplications for a token, share read."""
        node = self._op_graph.nodes[op]
        if op in self._chosen:
            return self._expert(op, tokens)
        if node.op_type in MIXTURES:
            return self._mixture(op, tokens)
        if node.op_type in ("Gather", "GatherBlockQuantized"):
            tables = map(value_shape, self._readers.weights(op))
            table = next(tables, None) or (1,)
            count = table[0] if isinstance(table[0], int) else 1
            return PLAIN, 0, 0.0, min(1.0, tokens / max(1, count))
        rows, columns, value = self._matrix(op)
        if value is None:
            return PLAIN, 0, 0.0, 1.0
        return _format(node, value), columns, float(rows * columns), 1.0

    def _mixture(self, op: int, tokens: int) -> tuple[WeightFormat, int, float, float]:
        """Of all experts, those are read that tokens are sent to; by chance each to others."""
        node = self._op_graph.nodes[op]
        matrices = node.inputs[2::3][:3] if node.op_type == "QMoE" else None  # not their scales
        weights = self._readers.weights(op)
        weights = [value for value in weights if len(value_shape(value) or ()) == 3]
        weights = [value for value in weights if matrices is None or value in matrices]
        if not weights:
            return PLAIN, 0, 0.0, 1.0
        shapes = [
            value.const_value.shape.numpy() for value in weights if value.const_value is not None
        ]
        experts = max(1, shapes[0][0])
        chosen = max(1, _number(node, "k") or 1) / experts
        bits = _number(node, "expert_weight_bits") or 4
        packing = 8 // bits if node.op_type == "QMoE" else 1
        kind = _plain_format(weights[0])
        if node.op_type == "QMoE":
            kind = WeightFormat(bits, max(0, _number(node, "block_size")) or 32)
        elements = packing * sum(math.prod(shape) for shape in shapes) * chosen
        return kind, 1, float(elements), 1 - (1 - chosen) ** tokens

    def _expert(self, op: int, tokens: int) -> tuple[WeightFormat, int, float, float]:
        """Of an expert that is an operation of its own: products in its body, run if chosen."""
        kind, elements = PLAIN, 0
        for body in bodies(self._op_graph.nodes[op]):
            for node in body:
                rows, columns, value = _matrix_of(node, weights_read(node))
                elements += rows * columns
                kind = kind if value is None else _format(node, value)
        chosen = self._chosen[op]
        return kind, 1, elements * chosen, 1 - (1 - chosen) ** tokens

    def _attention(self, op: int, tokens: int, past: int) -> tuple[float, float]:
        """Bytes of caches that are read, and multiplications of attention over them."""
        node = self._op_graph.nodes[op]
        names = [name for name in self._op_graph.reads[op] if name in self._caches]
        window = _number(node, "local_window_size")
        length = min(self.context, past + tokens)
        seen = min(length, window + tokens) if window > 0 else length
        nbytes = products = 0.0
        for name in names:
            _, heads, _, size = (1, 1, 1, *self._caches[name])[-4:]
            nbytes += heads * size * seen * self._itemsize[name]
            queries = _number(node, "num_heads") or _number(node, "q_num_heads") or heads
            products += tokens * queries * size * (seen - tokens / 2)
        return nbytes, products


def _matrix_of(node: ir.Node, weights: Sequence[ir.Value]) -> tuple[int, int, ir.Value | None]:
    """Rows and columns of the matrix that a product has among its weights, and the matrix."""
    if node.op_type == "MatMulNBits":
        return _number(node, "K"), _number(node, "N"), node.inputs[1]
    if node.op_type in ("MatMul", "Gemm", "MatMulInteger"):
        for value in weights:
            shape = () if value.const_value is None else value.const_value.shape.numpy()
            if len(shape) == 2:
                rows, columns = shape[::-1] if _number(node, "transB") else shape
                return rows, columns, value
    return 0, 0, None


def _chosen_shares(layers: Sequence[LayerOps], op_graph: OpGraph) -> dict[int, float]:
    """By expert that is an operation of its own: the share of tokens that choose it, by TopK."""
    found: dict[int, float] = {}
    for layer in layers:
        own = [op for op in layer.experts if op_graph.nodes[op].op_type == "If"]
        counts = [
            _constant(op_graph.nodes[op], 1)
            for op in layer.ops
            if op_graph.nodes[op].op_type == "TopK"
        ]
        used = next((count for count in counts if count), len(own))
        found |= dict.fromkeys(own, min(1.0, used / max(1, len(own))))
    return found


def _with_context(
    name: str, shape: tuple[Dim, ...], context: int, shrinks: bool
) -> tuple[int, ...]:
    """The shape of a cache: a fixed one must have room; open sizes are the batch and the context.

    Raises:
        PlanError: It has less room.
    """
    sizes = tuple(
        dim if isinstance(dim, int) else (1 if axis == 0 else context)
        for axis, dim in enumerate(shape)
    )
    if len(sizes) == 4 and sizes[2] < context:
        raise PlanError(
            f"A context of {context} tokens is asked for, and the cache '{name}' of the model "
            f"holds {sizes[2]}. Ask for no more, or read the model with a larger context."
        )
    if shrinks and len(sizes) == 4:
        return (*sizes[:2], context, sizes[3])
    return sizes


def _number(node: ir.Node, name: str) -> int:
    """An attribute that is a number; 0 if it is not there."""
    attribute = node.attributes.get(name)
    return int(attribute.value) if attribute is not None and attribute.value is not None else 0


def _format(node: ir.Node, value: ir.Value) -> WeightFormat:
    if node.op_type == "MatMulNBits":
        zeros = node.inputs[3] if len(node.inputs) > 3 else None
        return WeightFormat(
            _number(node, "bits") or 4, _number(node, "block_size"), zeros is not None
        )
    return _plain_format(value)


def _plain_format(value: ir.Value) -> WeightFormat:
    dtype = None if value.const_value is None else value.const_value.dtype
    return PLAIN if dtype is None else WeightFormat(int(dtype.bitwidth))


def _stream_width(op_graph: OpGraph) -> int:
    """Width of the residual stream: of most vectors of weights, which are those of norms."""
    counts: dict[int, int] = {}
    for node in op_graph.nodes:
        for value in node.inputs:
            if value is not None and value.const_value is not None:
                shape = value.const_value.shape.numpy()
                if len(shape) == 1 and "Norm" in node.op_type:
                    counts[shape[0]] = counts.get(shape[0], 0) + 1
    return max(counts, key=lambda width: counts[width], default=1)


def _last_rows(op_graph: OpGraph) -> set[int]:
    """Operations that work on the last position alone: where it is picked, and behind that."""
    found: set[int] = set()
    for op, node in enumerate(op_graph.nodes):
        if _picks_last(node) or any(source in found for source in op_graph.preds[op]):
            found.add(op)
    return found


def _picks_last(node: ir.Node) -> bool:
    """Whether an operation picks the last of the second axis, by Gather or by Slice."""
    if node.op_type == "Gather":
        return _number(node, "axis") == 1 and _constant(node, 1) == -1
    if node.op_type == "Slice":
        return _constant(node, 1) == -1 and _constant(node, 3) == 1
    return False


def _constant(node: ir.Node, index: int) -> int | None:
    """An input that is one constant integer."""
    value = node.inputs[index] if index < len(node.inputs) else None
    constant = None if value is None else value.const_value
    if constant is None or constant.size != 1:
        return None
    return int(constant.numpy().ravel()[0])
