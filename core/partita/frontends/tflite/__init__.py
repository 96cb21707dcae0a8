"""TFLite and circle files as models of standard operators.

A file is translated, operator by operator, to ONNX; from there on it is a model like any other.

| module | what it holds |
| --- | --- |
| ``document`` | the file as subgraphs, tensors, operators and signatures |
| ``circle_schema`` | what circle's schema has beside TFLite's |
| ``weights`` | element types, and constants as views of the file |
| ``graph`` | the walk over the operators that makes the graph |
| ``layout`` | transposes that cancel |
| ``axis_order`` | orders of axes |
| ``one_runtime`` | environment variables of ONE Runtime, as a device string and pins |
| ``translator`` | what a translator sees of one operator, and the table of translators |
| ``translators`` | translators, by what the operators do |

Operators: https://ai.google.dev/edge/litert/conversion/tensorflow/ops_compatibility
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.errors import ModelFormatError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["is_tflite", "read_tflite"]


def is_tflite(data: bytes | memoryview) -> bool:
    """Whether bytes are those of a TFLite or circle file, by the word behind the first offset."""
    return bytes(data[4:8]) in (b"TFL3", b"CIR0")


def read_tflite(data: memoryview, origin: str, signature: str | None) -> ir.Model:
    """The model of a TFLite or circle file.

    Args:
        data: The file's bytes, which have to stay as they are while the model lives.
        origin: What messages call it.
        signature: Which of its signatures; ``None`` for the file's first subgraph.

    Raises:
        ModelFormatError: It is damaged, holds what is not read, or the packages that read it are
            missing.
    """
    try:
        import flatbuffers  # noqa: F401 - asked for here, used where tables are read
        import tflite  # noqa: F401
    except ImportError as error:
        raise ModelFormatError(
            f"{origin} is read with the packages 'tflite' and 'flatbuffers' ({error}): "
            'pip install "partita[tflite]".'
        ) from error
    from partita.frontends.tflite.document import Document
    from partita.frontends.tflite.graph import build_model

    return build_model(Document(data, origin), signature)
