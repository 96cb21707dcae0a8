"""How fast a device attends over a cache: a short probe with the sizes of a decoder's attention.

A probe is a model of some ``GroupQueryAttention`` beside each other, each with a cache of its own.
One new token behind few others and behind many tells how fast keys and values are read, many new
tokens how fast they are multiplied. The caches are as large as a decoder's weights in all: what
lies in a processor's caches of them is gone when the weights of the next token have been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.tensors.cache_rows import ATTRIBUTES, SCALE_BYTES, row_bytes
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.model.model import Model

LEAST_PLACES = 1024
"""Of a cache, at least."""

LAYERS = 16
"""Operations of a probe."""

ROWS = 256
"""New tokens of the probe of many."""

PROBES = ("of one", "of one behind many", "of many")


def tokens_of(probe: str, places: int) -> tuple[int, int]:
    """New tokens of a probe, and tokens in the caches after the run.

    Args:
        probe: One of `PROBES`.
        places: Of each cache.
    """
    return {"of one": (1, 1), "of one behind many": (1, places), "of many": (ROWS, ROWS)}[probe]


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
        """Bytes of all caches of a probe for one token."""
        return LAYERS * 2 * self.kv_heads * self.row * self.bits // 8

    def places(self, nbytes: int) -> Iterator[int]:
        """Places of caches that take so many bytes in all, and of ever smaller ones."""
        places = max(LEAST_PLACES, nbytes // self.place_bytes)
        while places > LEAST_PLACES:
            yield places
            places //= 4
        yield LEAST_PLACES


@dataclass(frozen=True, slots=True)
class AttentionSpeed:
    """What attention does in a second.

    Attributes:
        read: Bytes of keys and values, for one new token.
        multiply: Multiplications, for many.
    """

    read: float
    multiply: float


def speed_of_attention(
    shape: AttentionShape, seconds: Mapping[str, float], places: int
) -> AttentionSpeed:
    """What probes tell.

    Args:
        shape: Of the probes.
        seconds: By the name of a probe.
        places: Of each cache.
    """
    one, behind, many = (seconds[probe] for probe in PROBES)
    nbytes = shape.place_bytes * (places - 1)
    products = LAYERS * 2 * shape.heads * shape.size * ROWS * ROWS / 2
    return AttentionSpeed(
        nbytes / max(behind - one, behind / 10), products / max(many - one, many / 10)
    )


def attention_model(shape: AttentionShape, probe: str, places: int) -> Model:
    """The model of a probe.

    Its inputs are queries, keys and values beside each other, then caches.
    """
    import onnx_ir as ir

    from partita.frontends.reader import read_model

    rows, total = tokens_of(probe, places)
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
    for number in range(LAYERS):
        caches = [_cache(shape, places, f"past.{number}.{what}") for what in ("key", "value")]
        node = ir.node(
            "GroupQueryAttention",
            [first, None, None, *caches, lengths, whole],
            {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads, **quantized},
            domain="com.microsoft",
            name=f"attention{number}",
            num_outputs=3,
        )
        y, *written = node.outputs
        y.name = f"y.{number}"
        y.dtype = ir.DataType.FLOAT
        y.shape = ir.Shape([1, rows, shape.heads * shape.size])
        for value, cache in zip(written, caches, strict=True):
            value.name = f"{cache.name}.present"
            value.type, value.shape = cache.type, cache.shape
        attended.append(y)
        pasts += caches
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
