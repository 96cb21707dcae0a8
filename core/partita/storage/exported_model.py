"""The file form of a compiled model: a checked container of a JSON header, the model and arrays."""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.identity import code_stamp
from partita.errors import BlobError, ModelError
from partita.storage.content_hash import fingerprint

if TYPE_CHECKING:
    from partita.model.model import Model

MAGIC = b"PARTITA\x00"
FORMAT = 2
PREFIX = struct.Struct("<8sII32sQ")  # magic, format, header bytes, fingerprint, bytes that follow
_ALIGNMENT = 64

_REGISTERED = 2
"""What numpy's ``dtype.isbuiltin`` says of a type that another package has registered."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Blob:
    """What a blob holds.

    Attributes:
        header: What the writer put there, with the device that wrote it under ``"device"``.
        model: What was compiled, with its weights.
        arrays: What a device computed from the model; views of the blob, not to be written.
    """

    header: dict[str, Any]
    model: Model
    arrays: dict[str, Array]


def pack(
    device: str, header: dict[str, Any], model: Model, arrays: Mapping[str, Array] | None = None
) -> bytes:
    """Writes a blob.

    Args:
        device: Name of the plugin's device; ``unpack`` checks it.
        header: Anything JSON can hold.
        model: The model, stored as ONNX.
        arrays: Arrays of numbers by name.

    Raises:
        BlobError: The model does not fit one protobuf (2 GiB).
    """
    if not model.fits_protobuf:
        raise BlobError(
            f"Model '{model.name}' cannot be exported: it has {model.weight_bytes / 2**30:.1f} GiB "
            "of weights, and a blob holds 2. Save the model, and compile it where it is needed."
        )
    parts: list[Any] = [model.to_onnx().SerializeToString()]
    directory = []
    size = _padded(len(parts[0]))
    for name, array in (arrays or {}).items():
        flat = np.ascontiguousarray(array).reshape(-1)  # has an axis, where the array may have none
        directory.append([name, str(flat.dtype), list(np.shape(array)), size])
        parts.append(flat.view(np.uint8).data)
        size += _padded(flat.nbytes)
    content = {"model": len(parts[0]), "arrays": directory, "code": code_stamp("partita")}
    head = json.dumps({"header": {**header, "device": device}, **content}).encode()
    head += b" " * (-(PREFIX.size + len(head)) % _ALIGNMENT)  # so that arrays are aligned in files
    padding = [b"\0" * (_padded(len(part)) - len(part)) for part in parts]
    body = b"".join(piece for pair in zip(parts, padding, strict=True) for piece in pair)
    digest = fingerprint(head + fingerprint(body))
    return b"".join([PREFIX.pack(MAGIC, FORMAT, len(head), digest, len(body)), head, body])


def unpack(blob: Any, device: str) -> Blob:
    """Reads a blob back, trusting nothing.

    What a blob says must agree with itself; one that agrees, and says other weights or another
    placement, is another model, of which nobody can tell that it was meant to be this one.

    Args:
        blob: Bytes, or a buffer such as a mapped file, which the arrays then keep alive.
        device: The device that is to take it.

    Raises:
        BlobError: Not a blob, damaged, at odds with itself, of another format version, or of
            another device.
    """
    from partita.frontends.reader import read_model

    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise BlobError(f"An exported model is bytes; found {type(blob).__name__}.")
    data = memoryview(blob).cast("B")
    if len(data) < PREFIX.size or data[: len(MAGIC)] != MAGIC:
        raise BlobError("These bytes are not an exported Partita model.")
    _, version, head_size, digest, body_size = PREFIX.unpack_from(data)
    if version != FORMAT:
        raise BlobError(
            f"The exported model has format {version}; this version reads {FORMAT}. Export it "
            "again."
        )
    if len(data) != PREFIX.size + head_size + body_size:
        raise BlobError("The exported model is cut short or has bytes too many.")
    head, body = data[PREFIX.size :][:head_size], data[PREFIX.size + head_size :]
    if fingerprint(bytes(head) + fingerprint(body)) != digest:
        raise BlobError("The exported model is damaged: its checksum does not match.")
    try:
        content = json.loads(bytes(head))
        header = content["header"]
        model_bytes = operator.index(content["model"])
        arrays = _arrays(body, model_bytes, content["arrays"])
        payload = bytes(body[:model_bytes])
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        raise BlobError(f"The exported model's header is damaged: {error}") from error
    if not isinstance(header, dict) or header.get("device") != device:
        found = header.get("device") if isinstance(header, dict) else header
        raise BlobError(f"The model was exported from device '{found}', not from '{device}'.")
    try:
        stale = content.get("code") != code_stamp("partita")  # then it may not be tidy any more
        return Blob(header, read_model(payload, tidy=stale), arrays)
    except ModelError as error:
        raise BlobError(f"The exported model is damaged: {error}") from error


def _arrays(body: memoryview, start: int, directory: list[Any]) -> dict[str, Array]:
    """The arrays of a directory, which may claim anything.

    Args:
        body: The model, and the arrays behind it.
        start: How many bytes the model has.
        directory: Of each array name, type, shape and place, in the order in which they lie.

    Raises:
        ValueError: One is not of numbers, or does not lie where it would have been written, right
            behind what comes before it; or bytes are left that are nobody's.
    """
    found: dict[str, Array] = {}
    end = _padded(start)
    for name, kind, shape, offset in directory:
        dtype = np.dtype(kind)
        is_sound = isinstance(name, str) and name not in found and _is_number(dtype)
        if not is_sound or min(shape, default=0) < 0 or offset != end:
            raise ValueError(f"an array '{name}' of {kind}{shape} at {offset}")
        nbytes = dtype.itemsize * math.prod(shape)
        found[name] = np.frombuffer(body[end : end + nbytes], np.uint8).view(dtype).reshape(shape)
        end += _padded(nbytes)
    if start < 0 or end != len(body):
        raise ValueError(f"the model has {start} bytes, all ends at {end} of {len(body)}")
    return found


def _is_number(dtype: np.dtype[Any]) -> bool:
    """Whether elements are numbers; those of ml_dtypes are registered with numpy."""
    return dtype.kind in "biufc" or dtype.isbuiltin == _REGISTERED


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT
