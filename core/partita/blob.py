"""The file form of a compiled model: a checked container of a JSON header and the ONNX model."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

from partita.errors import BlobError, ModelError

if TYPE_CHECKING:
    from partita.model import Model

_MAGIC = b"PARTITA\x00"
_FORMAT = 1
_PREFIX = struct.Struct("<8sII32sQ")  # magic, format, header bytes, sha256 of the rest, model bytes


def pack(device: str, header: dict[str, Any], model: Model) -> bytes:
    """Writes a blob.

    Args:
        device: Name of the plugin's device; ``unpack`` checks it.
        header: Anything JSON can hold.
        model: The model, stored as ONNX.

    Raises:
        BlobError: The model does not fit one protobuf (2 GiB).
    """
    if not model.fits_protobuf:
        raise BlobError(
            f"Model '{model.name}' cannot be exported: it has {model.weight_bytes / 2**30:.1f} GiB "
            "of weights, and a blob holds 2. Save the model, and compile it where it is needed."
        )
    payload: bytes = model.to_onnx().SerializeToString()
    head = json.dumps({**header, "device": device}).encode()
    digest = hashlib.sha256(head + payload).digest()
    return _PREFIX.pack(_MAGIC, _FORMAT, len(head), digest, len(payload)) + head + payload


def unpack(blob: bytes, device: str) -> tuple[dict[str, Any], Model]:
    """Reads a blob back, trusting nothing.

    Returns:
        The header and the model.

    Raises:
        BlobError: Not a blob, damaged, of another format version, or of another device.
    """
    from partita.reading import read_model

    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise BlobError(f"An exported model is bytes; found {type(blob).__name__}.")
    blob = bytes(blob)
    if len(blob) < _PREFIX.size or not blob.startswith(_MAGIC):
        raise BlobError("These bytes are no exported Partita model.")
    _, version, head_size, digest, model_size = _PREFIX.unpack_from(blob)
    if version != _FORMAT:
        raise BlobError(
            f"The exported model has format {version}; this version reads {_FORMAT}. Export it "
            "again."
        )
    if len(blob) != _PREFIX.size + head_size + model_size:
        raise BlobError("The exported model is cut short or has bytes too many.")
    head, payload = blob[_PREFIX.size : _PREFIX.size + head_size], blob[_PREFIX.size + head_size :]
    if hashlib.sha256(head + payload).digest() != digest:
        raise BlobError("The exported model is damaged: its checksum does not match.")
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise BlobError(f"The exported model's header is damaged: {error}") from error
    if not isinstance(header, dict) or header.get("device") != device:
        found = header.get("device") if isinstance(header, dict) else header
        raise BlobError(f"The model was exported from device '{found}', not from '{device}'.")
    try:
        return header, read_model(payload)
    except ModelError as error:
        raise BlobError(f"The exported model is damaged: {error}") from error
