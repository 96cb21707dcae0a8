"""Multi-head latent attention: caches hold one short vector for each token, not keys and values.

DeepSeek's models make keys and values of each head by two products of that vector. Queries are
multiplied by the first of them instead, and what attention makes of the vectors by the second:
then all heads share one head of keys, the vector, which is the head of values, too
(https://arxiv.org/abs/2405.04434, section 2.1.2). Behind a few elements that are turned by the
position and are no part of the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.gguf.graph_writer import GraphWriter
from partita.frontends.gguf.hyperparameters import Hyperparameters, LatentSizes
from partita.frontends.gguf.weight_operators import linear, multiply

if TYPE_CHECKING:
    import onnx_ir as ir


class LatentAttention:
    """What comes before attention and behind it, for one block.

    Args:
        writer: Writes the operations.
        sizes: The decoder's.
        latent: Of its attention.
        block: The block's name, e.g. ``"blk.0"``.
    """

    def __init__(
        self, writer: GraphWriter, sizes: Hyperparameters, latent: LatentSizes, block: str
    ) -> None:
        self._writer = writer
        self._sizes = sizes
        self._latent = latent
        self._block = block

    def inputs(self, normal: ir.Value) -> list[ir.Value]:
        """Queries [batch, sequence, heads * head size], keys and values, which are the same.

        Args:
            normal: The normalized stream [batch, sequence, hidden].
        """
        sizes, latent, block = self._sizes, self._latent, self._block
        rank = latent.rank
        name = f"{block}.attn_kv_a_mqa"
        stored = linear(self._writer, normal, name, sizes.head_size, sizes.hidden)
        vector, turned = self._split(stored, [rank, sizes.rotated], name)
        vector = self._normalized(vector, f"{block}.attn_kv_a_norm", rank)
        keys = self._joined([turned, vector], f"{block}.latent")
        return [self._queries(normal), keys, keys]

    def output(self, attended: ir.Value) -> ir.Value:
        """What the block adds, from what attention makes of the vectors.

        Args:
            attended: [batch, sequence, heads * head size].
        """
        sizes, latent, block = self._sizes, self._latent, self._block
        parts = self._split(
            attended, [sizes.rotated, latent.rank] * sizes.heads, f"{block}.attended"
        )
        weights = self._of_heads("attn_v_b", latent.value, latent.rank, parts[1::2])
        values = self._joined([*weights], f"{block}.values")
        width = sizes.heads * latent.value
        return linear(self._writer, values, f"{block}.attn_output", sizes.hidden, width)

    def _queries(self, normal: ir.Value) -> ir.Value:
        """Queries of all heads, each turned part before what is multiplied with vectors."""
        sizes, latent, block = self._sizes, self._latent, self._block
        writer, columns = self._writer, self._sizes.hidden
        name = f"{block}.attn_q"
        if latent.query_rank:
            columns = latent.query_rank
            normal = linear(writer, normal, f"{block}.attn_q_a", columns, sizes.hidden)
            normal = self._normalized(normal, f"{block}.attn_q_a_norm", columns)
            name = f"{block}.attn_q_b"
        rows = sizes.heads * (latent.plain + sizes.rotated)
        queries = linear(writer, normal, name, rows, columns)
        parts = self._split(queries, [latent.plain, sizes.rotated] * sizes.heads, name)
        vectors = self._of_heads("attn_k_b", latent.rank, latent.plain, parts[::2])
        pairs = zip(parts[1::2], vectors, strict=True)
        return self._joined([part for pair in pairs for part in pair], f"{block}.queries")

    def _of_heads(
        self, part: str, rows: int, columns: int, values: list[ir.Value]
    ) -> Iterator[ir.Value]:
        """The product of each head's value with the head's weight."""
        name = f"{self._block}.{part}"
        whole = self._writer.tensor(f"{name}.weight", [len(values), rows, columns])
        for head, value in enumerate(values):
            yield multiply(self._writer, value, whole.part(head), f"{name}.{head}")

    def _normalized(self, value: ir.Value, name: str, size: int) -> ir.Value:
        gamma = self._writer.vector(f"{name}.weight", size)
        operator, shape = "SimplifiedLayerNormalization", self._writer.dims(value)
        epsilon = self._sizes.epsilon
        return self._writer.apply(operator, [value, gamma], name, shape, epsilon=epsilon, axis=-1)

    def _split(self, value: ir.Value, sizes: list[int], name: str) -> list[ir.Value]:
        """Parts of a value along its last dimension."""
        writer = self._writer
        before = writer.dims(value)[:-1]
        parts = [
            writer.value(f"{name}.part_{number}", (*before, size))
            for number, size in enumerate(sizes)
        ]
        key = "_".join(map(str, sizes[:2]))
        given = writer.constant(f"sizes_{key}_of_{len(sizes)}", np.array(sizes, np.int64))
        writer.write("Split", [value, given], parts, axis=-1)
        return parts

    def _joined(self, values: list[ir.Value], name: str) -> ir.Value:
        """Values side by side along their last dimension."""
        writer = self._writer
        width = sum(int(writer.dims(value)[-1]) for value in values)
        shape = (*writer.dims(values[0])[:-1], width)
        return writer.apply("Concat", values, name, shape, axis=-1)
