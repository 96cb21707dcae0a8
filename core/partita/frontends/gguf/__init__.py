"""GGUF files: decoders with quantised weights, as llama.cpp keeps them.

| module | what it holds |
| --- | --- |
| ``container`` | the file as metadata and tensors |
| ``parts`` | a model that lies in several files |
| ``block_formats`` | how elements are stored, and what blocks become |
| ``weights`` | tensors as initializers that are made when they are asked for |
| ``hyperparameters`` | what the metadata says about the decoder |
| ``rotary`` | tables for rotary embedding |
| ``feed_forward`` | the gated part of a block, experts included |
| ``graph_writer`` | writes operations with types and shapes |
| ``weight_operators`` | products and the embedding, quantised or not |
| ``decoder_graph`` | the decoder as a graph |
| ``options`` | what the caller decides |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.frontends.gguf.container import MAGIC, GgufFile
from partita.frontends.gguf.options import DecoderOptions
from partita.frontends.gguf.parts import open_file, part_paths, with_other_parts

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

__all__ = [
    "MAGIC",
    "DecoderOptions",
    "GgufFile",
    "longest_context",
    "open_file",
    "part_paths",
    "read_gguf",
]


def longest_context(file: GgufFile) -> int:
    """Positions that the decoder of a file can be read with at most.

    Raises:
        ModelFormatError: It holds no decoder that is read.
    """
    from partita.frontends.gguf.hyperparameters import hyperparameters

    return hyperparameters(file).longest


def read_gguf(
    data: memoryview, origin: str, options: DecoderOptions, path: Path | None = None
) -> ir.Model:
    """The model of a GGUF file.

    Args:
        data: The file's bytes, which have to stay as they are while the model lives.
        origin: What messages call it.
        options: What the caller decides.
        path: Where it lies, and beside it the other parts of a model in several files.

    Raises:
        ModelNotFoundError: Another part is not there.
        ModelFormatError: It is damaged, or holds what is not read.
    """
    from partita.frontends.gguf.decoder_graph import build_decoder

    return build_decoder(with_other_parts(GgufFile(data, origin), path), options)
