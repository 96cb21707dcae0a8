"""How many bytes of its weights a decoder reads for one token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.model.model import Model

if TYPE_CHECKING:
    from partita.frontends.gguf import GgufFile

_READS_ROWS = {
    "Gather",
    "GatherBlockQuantized",
    "GatherElements",
    "GroupQueryAttention",  # of tables for rotary embedding
    "MultiHeadAttention",
    "RotaryEmbedding",
}
"""Operators that read a few rows of their constants."""

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


def of_model(model: Model) -> int:
    """Bytes of the constants that operations read whole, as the model holds them."""
    read = {
        value.name: value.const_value.nbytes
        for op in model.ops
        if op.op_type not in _READS_ROWS
        for value in op.node.inputs
        if value is not None and value.is_initializer() and value.const_value is not None
    }
    return sum(read.values())


def of_gguf(file: GgufFile) -> int:
    """Bytes of the tensors that every token reads whole, as the file holds them.

    An embedding table is among them only where it is the table of the output too.
    """
    apart = _EMBEDDING if _OUTPUT in file.tensors else ""
    return sum(tensor.data.nbytes for name, tensor in file.tensors.items() if name != apart)
