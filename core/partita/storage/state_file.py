"""Files that requests save their state to: safetensors, written and read tensor by tensor.

The format is public (https://github.com/huggingface/safetensors): eight bytes with the length of a
JSON object, the object, which names for each tensor its type, shape and place, and the elements.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import BlobError
from partita.model.model import Port
from partita.tensors.tensor import HostTensor, Tensor

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
"""What the format calls element types."""

_MOST_HEADER_BYTES = 1 << 24
"""No header is longer: one of a hundred thousand variables is not."""


def save(path: str | os.PathLike[str], tensors: Sequence[tuple[Port, Tensor]]) -> None:
    """Writes tensors to a file under their ports' names; it is there whole, or as it was before.

    Args:
        path: The file.
        tensors: Each with its port; brought to the host one after another.

    Raises:
        BlobError: A tensor has a type that the format lacks, or the file cannot be written.
    """
    header: dict[str, Any] = {}
    end = 0
    for port, tensor in tensors:
        kind = _NAMES.get(tensor.dtype.name)
        if kind is None:
            raise BlobError(f"State '{port.name}' is of {tensor.dtype}, which no file can hold.")
        start, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        header[port.name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        _replace(Path(path), len(text).to_bytes(8, "little") + text, [t for _, t in tensors])
    except (OSError, ValueError) as error:
        raise BlobError(
            f"The state cannot be written to '{path}': {error}. Give the path of a file in a "
            "folder that exists, may be written and has room."
        ) from error


def _replace(target: Path, head: bytes, tensors: Sequence[Tensor]) -> None:
    """Writes a file beside its target, which it then takes the place of."""
    beside = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            file.write(head)
            for tensor in tensors:
                array = tensor.numpy()
                file.write(_bytes(array if sys.byteorder == "little" else array.byteswap()))
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def load(
    path: str | os.PathLike[str], ports: Sequence[Port], put: Callable[[Port, Tensor], None]
) -> None:
    """Reads the tensors of a file one after another, once all are known to fit their ports.

    Args:
        path: The file.
        ports: What is expected: these names, with their types and shapes.
        put: Takes each tensor.

    Raises:
        BlobError: The file cannot be read, is damaged, or holds something else.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            header, start = _header(file, size)
        except (ValueError, RecursionError) as error:
            raise BlobError(f"'{path}' is not a file of state, or is damaged: {error}") from error
        due, found = {port.name for port in ports}, header.keys() - {"__metadata__"}
        if due != found:
            wrong = ", ".join(map(repr, sorted(due ^ found)[:5]))
            raise BlobError(
                f"'{path}' holds the state of another model: {len(found)} variables; "
                f"expected {len(due)}, and {wrong} are only there or only here."
            )
        places = [(port, *_place(path, port, header[port.name], size - start)) for port in ports]
        for port, offset, shape in places:
            put(port, HostTensor(_elements(file, start + offset, shape, port)))


def _opened(path: str | os.PathLike[str]) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except (OSError, ValueError) as error:  # no file can have a name with a zero in it
        raise BlobError(
            f"The state cannot be read from '{path}': {error}. Give the path of a file that "
            "save_state() wrote."
        ) from error


def _header(file: BufferedReader, size: int) -> tuple[Mapping[str, Any], int]:
    """The file's header, and where the elements start."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(_MOST_HEADER_BYTES, size - 8):
        raise ValueError(f"its header of {length} bytes does not fit {size} bytes")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header names no tensors")
    return header, 8 + length


def _place(
    path: str | os.PathLike[str], port: Port, entry: Any, room: int
) -> tuple[int, tuple[int, ...]]:
    """Offset and shape of a tensor that fits its port and lies in the file."""
    match entry:
        case {"dtype": str() as kind, "shape": [*dims], "data_offsets": [int() as start, int()]}:
            shape, end = tuple(dims), entry["data_offsets"][1]
        case _:
            raise BlobError(f"'{path}' is damaged: it says nothing of what '{port.name}' is.")
    dtype = port.dtype or np.dtype(object)
    if kind != _NAMES.get(dtype.name) or not _fits(shape, port.shape):
        raise BlobError(
            f"'{path}' holds '{port.name}' as {kind}{list(shape)}; expected {port.describe()}."
        )
    nbytes = math.prod(shape) * dtype.itemsize
    if not 0 <= start <= end <= room or end - start != nbytes:
        raise BlobError(
            f"'{path}' is damaged: '{port.name}' needs {nbytes} bytes, but its offsets are "
            f"{start} and {end}, of {room} bytes."
        )
    return start, shape


def _fits(shape: tuple[Any, ...], due: tuple[int | str | None, ...] | None) -> bool:
    """Whether dimensions out of a file are those of a port."""
    if not all(type(dim) is int and dim >= 0 for dim in shape):
        return False
    if due is None:
        return True
    pairs = zip(shape, due, strict=False)
    return len(shape) == len(due) and all(d == w for d, w in pairs if isinstance(w, int))


def _elements(
    file: BufferedReader, start: int, shape: tuple[int, ...], port: Port
) -> np.ndarray[Any, Any]:
    array = np.empty(shape, port.dtype)
    file.seek(start)
    if file.readinto(_bytes(array)) != array.nbytes:
        raise BlobError(f"State '{port.name}' ends before its last element: the file was changed.")
    return array if sys.byteorder == "little" else array.byteswap()


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """An array's memory as bytes: some types export no buffer of their own."""
    return array.reshape(-1).view(np.uint8).data
