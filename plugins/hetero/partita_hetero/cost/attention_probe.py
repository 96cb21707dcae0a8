"""How fast a device attends over a cache: a short probe with the sizes of a decoder's attention.

A probe is a model of some ``GroupQueryAttention`` beside each other, each with a cache of its own.
One new token behind few others and behind many tells how fast keys and values are read, many new
tokens how fast they are multiplied. The caches are as large as a decoder's weights in all: what
lies in a processor's caches of them is gone when the weights of the next token have been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from partita.tensors.cache_rows import ATTRIBUTES, SCALE_BYTES, row_bytes
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.model.model import Model

LEAST_PLACES = 1024
"""Of a cache, at least."""

LAYERS, MOST_LAYERS = 16, 64
"""Operations of a probe, at least and at most."""

ROWS, ROWS_LAYERS = 256, 4
"""New tokens of the probe of many, and its operations, at most: they multiply for so long that
few are enough."""

PROBES = ("of one", "of one behind many", "of many", "of one alone")


class Caches(NamedTuple):
    """The caches of a probe.

    Attributes:
        layers: Operations, each with caches of keys and values.
        places: Tokens that each has room for.
    """

    layers: int
    places: int

    def tokens_of(self, probe: str) -> tuple[int, int]:
        """New tokens of a probe, and tokens in the caches after the run.

        Args:
            probe: One of `PROBES`.
        """
        many = {"of one behind many": (1, self.places), "of many": (ROWS, ROWS)}
        return many.get(probe, (1, 1))

    def layers_of(self, probe: str) -> int:
        """Operations of a probe."""
        most = {"of one alone": 1, "of many": ROWS_LAYERS}
        return min(self.layers, most.get(probe, self.layers))


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of a decoder's attention.

    Attributes:
        heads: Of queries.
        kv_heads: Of keys and values.
        size: Of a head.
        bits: Of an element of the cache; rows of 8 have scales, as `partita.tensors.cache_rows`.
    """

    heads: int
    kv_heads: int
    size: int
    bits: int

    def __str__(self) -> str:
        return f"{self.heads} heads on {self.kv_heads} of {self.size}, {self.bits} bits"

    @classmethod
    def of(cls, model: Model, op_graph: OpGraph) -> AttentionShape | None:
        """Those of a decoder's first ``GroupQueryAttention``; ``None`` if it has none."""
        ports = {port.name: port for port in model.inputs}
        for node in op_graph.nodes:
            if node.op_type != "GroupQueryAttention" or node.inputs[3] is None:
                continue
            port = ports.get(node.inputs[3].name or "")
            shape = None if port is None else port.shape
            if port is None or port.dtype is None or shape is None or len(shape) != 4:
                continue
            heads, size, bits = node.attributes["num_heads"].as_int(), shape[3], port.dtype.itemsize
            if isinstance(size, int) and isinstance(shape[1], int):
                size -= SCALE_BYTES if bits == 1 else 0
                return cls(heads, shape[1], size, 8 * bits)
        return None

    @property
    def row(self) -> int:
        """Elements of a cache for one head and token."""
        return row_bytes(self.size) if self.bits == 8 else self.size

    @property
    def place_bytes(self) -> int:
        """Bytes of keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.row * self.bits // 8

    def caches(self, nbytes: int, context: int) -> Iterator[Caches]:
        """Caches that take so many bytes in all, and ever smaller ones.

        Args:
            nbytes: What they take, if the context is long enough.
            context: Tokens that the decoder's cache holds; counts as the next power of two.
        """
        tokens = nbytes // self.place_bytes
        places = max(LEAST_PLACES, min(1 << (context - 1).bit_length(), tokens // LAYERS))
        yield Caches(min(MOST_LAYERS, max(LAYERS, tokens // places)), places)
        while places > LEAST_PLACES:
            places = max(LEAST_PLACES, places // 4)
            yield Caches(LAYERS, places)


@dataclass(frozen=True, slots=True)
class AttentionSpeed:
    """What attention does in a second.

    Attributes:
        read: Bytes of keys and values, for one new token.
        multiply: Multiplications, for many.
        op_seconds: What an operation takes over an empty cache.
    """

    read: float
    multiply: float
    op_seconds: float = 0.0


def speed_of_attention(
    shape: AttentionShape, seconds: Mapping[str, float], caches: Caches
) -> AttentionSpeed:
    """What probes tell.

    Args:
        shape: Of the probes.
        seconds: By the name of a probe.
        caches: Of the probes.
    """
    layers, places = caches
    one, behind, many, alone = (seconds[probe] for probe in PROBES)
    nbytes = layers * shape.place_bytes * (places - 1)
    few = caches.layers_of("of many")
    products = few * 2 * shape.heads * shape.size * ROWS * ROWS / 2
    op_seconds = max(0.0, one - alone) / (layers - 1)
    started = alone + (few - 1) * op_seconds
    return AttentionSpeed(
        nbytes / max(behind - one, behind / 10),
        products / max(many - started, many / 10),
        op_seconds,
    )


def attention_model(shape: AttentionShape, probe: str, caches: Caches) -> Model:
    """The model of a probe.

    Its inputs are queries, keys and values beside each other, then caches.
    """
    import onnx_ir as ir

    from partita.frontends.reader import read_model

    rows, total = caches.tokens_of(probe)
    width = shape.heads + 2 * shape.kv_heads
    quantized = ATTRIBUTES if shape.bits == 8 else {}
    first = ir.Value(
        name="x",
        shape=ir.Shape([1, rows, width * shape.size]),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    lengths = _constant("seqlens_k", np.array([total - 1], np.int32))
    whole = _constant("total_sequence_length", np.array(total, np.int32))
    attended, pasts, presents, nodes = [], [], [], []
    for number in range(caches.layers_of(probe)):
        both = [_cache(shape, caches.places, f"past.{number}.{what}") for what in ("key", "value")]
        node = ir.node(
            "GroupQueryAttention",
            [first, None, None, *both, lengths, whole],
            {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads, **quantized},
            domain="com.microsoft",
            name=f"attention{number}",
            num_outputs=3,
        )
        y, *written = node.outputs
        y.name = f"y.{number}"
        y.dtype = ir.DataType.FLOAT
        y.shape = ir.Shape([1, rows, shape.heads * shape.size])
        for value, cache in zip(written, both, strict=True):
            value.name = f"{cache.name}.present"
            value.type, value.shape = cache.type, cache.shape
        attended.append(y)
        pasts += both
        presents += written
        nodes.append(node)
    imports = {"": 21, "com.microsoft": 1}
    graph = ir.Graph(
        [first, *pasts],
        [*attended, *presents],
        nodes=nodes,
        initializers=[lengths, whole],
        opset_imports=imports,
        name="attention",
    )
    return read_model(ir.Model(graph, ir_version=10))


def _cache(shape: AttentionShape, places: int, name: str) -> ir.Value:
    """A cache as an input, which runs write to in place, as those of decoders do."""
    import onnx_ir as ir

    dtype = {32: ir.DataType.FLOAT, 16: ir.DataType.FLOAT16, 8: ir.DataType.INT8}[shape.bits]
    sizes = ir.Shape([1, shape.kv_heads, places, shape.row])
    return ir.Value(name=name, shape=sizes, type=ir.TensorType(dtype))


def _constant(name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    import onnx_ir as ir

    tensor = ir.Tensor(array, name=name)
    kind = ir.TensorType(tensor.dtype)
    return ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
