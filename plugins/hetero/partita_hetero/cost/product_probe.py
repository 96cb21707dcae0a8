"""Models of products that probes run: equal ones one after another, or those of a decoder's layers.

Products of a row with small matrices are bound by more than memory: some a device computes with one
thread, and for others its threads wait for one another; both depend on a matrix's rows and columns.
So a chain of a layer's own products, one after another with a norm between them, as the layer has
it, tells what each takes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from partita_hetero.cost.token_work import LayerProducts, Product, WeightFormat

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.model.model import Model

Array = np.ndarray[Any, Any]

LARGEST = 1 << 24
"""Elements of a matrix in a chain; of a larger one fewer columns are measured."""

MOST_PRODUCTS = 1024
"""In a chain."""

PERIOD = 1_000_003
"""Random numbers of which all weights are made: a prime, so that no rows are alike. To make as many
as a probe reads took most of its time."""


class ProductChain(NamedTuple):
    """Products of a decoder's layer, several times one after another.

    Attributes:
        layer: In the order of the layer; in one group are those that multiply the same value.
        repeats: How often; each product has a matrix of its own.
    """

    layer: LayerProducts
    repeats: int

    @classmethod
    def of(cls, layer: LayerProducts, nbytes: int) -> ProductChain:
        """One whose matrices take so many bytes, unless they are too many.

        Args:
            layer: Its products.
            nbytes: Of weights that the decoder reads for a token: what of them lies in a
                processor's caches is gone when the others have been read, but those of small
                decoders may stay.
        """
        own = [product for group in _measurable(layer) for product in group]
        enough = round(nbytes / sum(product.nbytes for product in own))
        return cls(layer, max(1, min(enough, MOST_PRODUCTS // len(own))))

    def __str__(self) -> str:
        """What is measured: chains of equal texts take equally long."""
        groups = [" and ".join(map(str, group)) for group in _measurable(self.layer)]
        return f"products of a layer, {self.repeats} times: {'; '.join(groups)}"

    @property
    def other_ops(self) -> int:
        """Operations between the products.

        What nothing has read yet is the same behind each time, so that each one but the first has
        as many as the second.
        """
        first, two = self._built(1).other_ops, self._built(2).other_ops
        return first + (self.repeats - 1) * (two - first)

    def model(self) -> Model:
        """A model that computes them for a row of float32."""
        return self._built(self.repeats).model()

    def _built(self, repeats: int) -> _ChainBuilder:
        builder = _ChainBuilder({product.rows for group in self.layer for product in group})
        for group in _measurable(self.layer) * repeats:
            builder.add(group)
        return builder

    def seconds(self, whole: float) -> dict[Product, float]:
        """Seconds of each product, by its share of the bytes.

        Args:
            whole: Seconds that the products of all repeats take.
        """
        read = sum(product.nbytes for group in _measurable(self.layer) for product in group)
        per_byte = whole / self.repeats / read
        return {product: product.nbytes * per_byte for group in self.layer for product in group}


def _measurable(layer: LayerProducts) -> list[list[Product]]:
    """Products with no more than the largest matrices."""
    return [
        [one.with_columns(min(one.columns, max(1, LARGEST // one.rows))) for one in group]
        for group in layer
    ]


class _ChainBuilder:
    """Writes a chain of products as a model.

    Those of a group read the value of their width that was written last. Such values are normalized
    sums, so that numbers neither grow nor vanish; each value has a reader.

    Args:
        inner: Widths that products read.
    """

    def __init__(self, inner: set[int]) -> None:
        self.other_ops = 0
        self._inner = inner
        self._inputs: dict[int, ir.Value] = {}
        self._scales: dict[int, ir.Value] = {}
        self._last: dict[int, ir.Value] = {}
        self._unread: set[int] = set()
        self._nodes: list[ir.Node] = []
        self._weights: list[ir.Value] = []

    def add(self, group: Sequence[Product]) -> None:
        """Multiplies the last value of a width with some matrices.

        Args:
            group: Products of that width.
        """
        rows = group[0].rows
        if rows not in self._last:
            self._inputs[rows] = self._last[rows] = _row(f"x{rows}", rows)
        value = self._last[rows]
        self._unread.discard(rows)
        made: dict[int, list[ir.Value]] = {}
        for product in group:
            number = len(self._nodes)
            matrix = _matrix(product, number)
            nodes = _product(product, value, matrix, f"product{number}")
            self._weights += matrix
            self._nodes += nodes
            found = _named(nodes[-1], f"y{number}", product.columns)
            made.setdefault(product.columns, []).append(found)
        for width, values in made.items():
            self._last[width] = self._joined(width, values)

    def _joined(self, width: int, values: Sequence[ir.Value]) -> ir.Value:
        """What becomes of values of a width, and of the one before if nothing has read it."""
        if width in self._unread:
            values = [self._last[width], *values]
        self._unread.add(width)
        if width not in self._inner:
            return values[0] if len(values) == 1 else self._written("Sum", values, width)
        *others, last = values
        if not others:
            attributes = {"axis": -1, "epsilon": 1e-5}
            reads = [last, self._scale(width)]
            return self._written("SimplifiedLayerNormalization", reads, width, attributes)
        one = others[0] if len(others) == 1 else self._written("Sum", others, width)
        reads, domain = [one, last, self._scale(width)], "com.microsoft"
        kind = "SkipSimplifiedLayerNormalization"
        return self._written(kind, reads, width, {"epsilon": 1e-5}, domain)

    def _scale(self, width: int) -> ir.Value:
        import onnx_ir as ir

        if width not in self._scales:
            tensor = ir.Tensor(np.ones(width, np.float32), name=f"scale{width}")
            self._scales[width] = ir.Value(
                name=tensor.name,
                shape=ir.Shape([width]),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
        return self._scales[width]

    def model(self) -> Model:
        """The model; each value that nothing reads is an output."""
        import onnx_ir as ir

        from partita.frontends.reader import read_model

        graph = ir.Graph(
            list(self._inputs.values()),
            [value for value in self._last.values() if not value.is_graph_input()],
            nodes=self._nodes,
            initializers=[*self._weights, *self._scales.values()],
            opset_imports={"": 21, "com.microsoft": 1},
            name="products of a layer",
        )
        return read_model(ir.Model(graph, ir_version=10))

    def _written(
        self,
        kind: str,
        reads: Sequence[ir.Value],
        width: int,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        import onnx_ir as ir

        name = f"{kind}{len(self._nodes)}"
        node = ir.node(kind, reads, attributes or {}, domain=domain, name=name)
        self._nodes.append(node)
        self.other_ops += 1
        return _named(node, name, width)


def probe_model(kind: WeightFormat, side: int, count: int, rows: int) -> Model:
    """A model of products one after another, each with weights of its own.

    Args:
        kind: How weights are stored.
        side: Rows and columns of each matrix of weights.
        count: How many products.
        rows: Rows of the input, float32 (rows, side), and of the output.
    """
    import onnx_ir as ir

    from partita.frontends.reader import read_model

    square = Product(kind, side, side)
    first = ir.Value(name="x", shape=ir.Shape([rows, side]), type=ir.TensorType(ir.DataType.FLOAT))
    value, nodes, weights = first, [], []
    for number in range(count):
        made = _matrix(square, number)
        weights += made
        node = _product(square, value, made, f"product{number}")
        nodes += node
        value = node[-1].outputs[0]
        value.name = f"y{number}"
        value.shape, value.dtype = ir.Shape([rows, side]), ir.DataType.FLOAT
    imports = {"": 21, "com.microsoft": 1}
    graph = ir.Graph(
        [first], [value], nodes=nodes, initializers=weights, opset_imports=imports, name="probe"
    )
    return read_model(ir.Model(graph, ir_version=10))


def _row(name: str, width: int) -> ir.Value:
    import onnx_ir as ir

    shape = ir.Shape([1, 1, width])
    return ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT))


def _named(node: ir.Node, name: str, width: int) -> ir.Value:
    """A node's first result, which is a row."""
    import onnx_ir as ir

    value = node.outputs[0]
    value.name, value.shape, value.dtype = name, ir.Shape([1, 1, width]), ir.DataType.FLOAT
    return value


def _matrix(product: Product, number: int) -> list[Any]:
    """Weights as initializers, which are made when a device compiles them."""
    import onnx_ir as ir

    def lazy(name: str, dtype: ir.DataType, shape: list[int], make: Any) -> ir.Value:
        def made() -> ir.TensorProtocol:
            return ir.Tensor(make(shape).astype(dtype.numpy(), copy=False), name=name)

        tensor = ir.LazyTensor(made, dtype, ir.Shape(shape), name=name)
        kept = ir.TensorType(dtype)
        return ir.Value(name=name, shape=ir.Shape(shape), type=kept, const_value=tensor)

    kind, rows, columns = product.kind, product.rows, product.columns
    if not kind.block:
        dtype = ir.DataType.FLOAT if kind.bits == 32 else ir.DataType.FLOAT16
        deviation = np.float32(rows**-0.5)
        return [
            lazy(
                f"w{number}",
                dtype,
                [rows, columns],
                lambda shape: _repeated(
                    (_normal() * deviation).astype(dtype.numpy()), number, shape
                ),
            )
        ]
    blocks = -(-rows // kind.block)
    largest = (1 << kind.bits) - 1
    scale = np.float16(12**0.5 / ((largest**2 - 1) ** 0.5 * rows**0.5))
    packed = [columns, blocks, kind.block * kind.bits // 8]
    middle = float(1 << (kind.bits - 1))
    zeros = lazy(
        f"z{number}", ir.DataType.FLOAT, [columns, blocks], lambda shape: np.full(shape, middle)
    )
    return [
        lazy(
            f"q{number}",
            ir.DataType.UINT8,
            packed,
            lambda shape: _repeated(_quants(kind.bits), number, shape),
        ),
        lazy(
            f"s{number}",
            ir.DataType.FLOAT,
            [columns * blocks],
            lambda shape: np.full(shape, scale),
        ),
        *([zeros] if kind.has_zeros else []),
    ]


@functools.cache
def _normal() -> Array:
    """Normally distributed float32."""
    return np.random.default_rng(0).standard_normal(PERIOD, np.float32)


@functools.cache
def _quants(bits: int) -> Array:
    """Bytes of quantized weights, symmetric about the zero point.

    What passes would grow from product to product else.

    Args:
        bits: 8, or 4 for two weights in a byte.
    """
    low, high = np.random.default_rng(0).integers(1, 1 << bits, (2, PERIOD), np.uint8)
    packed: Array = low if bits == 8 else low | high << 4
    return packed


def _repeated(numbers: Array, number: int, shape: list[int]) -> Array:
    """A matrix's elements: numbers again and again, from another one on for each matrix."""
    start = number * (PERIOD // MOST_PRODUCTS) % PERIOD
    return np.resize(np.concatenate([numbers[start:], numbers[:start]]), shape)


def _product(product: Product, value: Any, weights: list[Any], name: str) -> list[Any]:
    """The operations of one product, the product last."""
    import onnx_ir as ir

    kind, rows, columns = product.kind, product.rows, product.columns
    if kind.block:
        attributes = {"K": rows, "N": columns, "bits": kind.bits, "block_size": kind.block}
        inputs = [value, *weights]
        return [ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft", name=name)]
    if kind.bits == 32:
        return [ir.node("MatMul", [value, *weights], name=name)]
    cast = ir.node("Cast", weights, {"to": int(ir.DataType.FLOAT)}, name=f"{name}/cast")
    cast.outputs[0].name = f"{name}/weights"
    return [cast, ir.node("MatMul", [value, cast.outputs[0]], name=name)]
