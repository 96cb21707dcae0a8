"""Takes large weights out of a serialised model, so that no parser copies them.

A protobuf is a sequence of fields, each a number, a kind and its content. A model's weights are
fields of its graph, and their elements fields of those; here these are found by walking along the
lengths, and what is left is small enough to parse as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9
_DATA_TYPE, _LOCATION = 2, 14
_PLAIN = [[number] for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 16)]
"""Element types whose elements lie as numpy has them: numbers of whole bytes."""

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5

LARGE_BYTES = 4096
"""Weights from this size on are taken out."""

_WORTH_IT = 1 << 18
"""Models below this size are parsed as they are."""


def without_weights(data: memoryview) -> tuple[bytes | memoryview, dict[str, memoryview]]:
    """A serialised model without the elements of large weights, and these by name.

    What is no model, or an unusual one (damaged, with a graph in pieces, or with weights that share
    a name), is returned as it is.
    """
    if len(data) < _WORTH_IT:
        return data, {}
    try:
        graphs = [field for field in _fields(data) if field[0] == _GRAPH]
        if len(graphs) != 1 or graphs[0][1] != _BYTES:
            return data, {}
        _, _, start, begin, end = graphs[0]
        graph, weights = _graph(data[begin:end])
    except (IndexError, ValueError):
        return data, {}
    if not weights:
        return data, {}
    head = bytes([_GRAPH << 3 | _BYTES]) + _varint(len(graph))
    return b"".join([data[:start], head, graph, data[end:]]), weights


def _graph(graph: memoryview) -> tuple[bytes, dict[str, memoryview]]:
    """A graph without the elements of its large initializers, and these.

    Raises:
        ValueError: Two have one name.
    """
    pieces: list[bytes | memoryview] = []
    weights: dict[str, memoryview] = {}
    kept = 0
    for number, kind, start, begin, end in _fields(graph):
        if number != _INITIALIZER or kind != _BYTES or end - begin < LARGE_BYTES:
            continue
        found = _elements(graph[begin:end])
        if found is None:
            continue
        name, rest, elements = found
        if name in weights:
            raise ValueError("two weights of one name")
        weights[name] = elements
        tensor = b"".join(rest)
        pieces += [
            graph[kept:start],
            bytes([_INITIALIZER << 3 | _BYTES]) + _varint(len(tensor)),
            tensor,
        ]
        kept = end
    return b"".join([*pieces, graph[kept:]]), weights


def _elements(tensor: memoryview) -> tuple[str, list[memoryview], memoryview] | None:
    """Name, what is left, and elements; ``None`` if they are not one large field."""
    names, raw, types = [], [], []
    for number, kind, start, begin, end in _fields(tensor):
        if number == _NAME and kind == _BYTES:
            names.append(bytes(tensor[begin:end]).decode())
        elif number == _RAW_DATA and kind == _BYTES:
            raw.append((start, begin, end))
        elif number == _DATA_TYPE and kind == _VARINT:
            types.append(_number(tensor, begin)[0])
        elif number == _LOCATION:
            return None
    if len(names) != 1 or len(raw) != 1 or not names[0] or types[-1:] not in _PLAIN:
        return None
    ((start, begin, end),) = raw
    if end - begin < LARGE_BYTES:
        return None
    return names[0], [tensor[:start], tensor[end:]], tensor[begin:end]


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, kind, start, start of the content, and end of each field.

    Raises:
        IndexError: It ends in the middle of a field.
        ValueError: A kind that protobuf does not have any more.
    """
    at, end = 0, len(data)
    while at < end:
        start = at
        tag, at = _number(data, at)
        kind = tag & 7
        begin = at
        if kind == _BYTES:
            size, begin = _number(data, at)
            at = begin + size
        elif kind == _VARINT:
            _, at = _number(data, at)
        elif kind == _EIGHT:
            at += 8
        elif kind == _FOUR:
            at += 4
        else:
            raise ValueError(f"kind {kind}")
        if at > end:
            raise IndexError
        yield tag >> 3, kind, start, begin, at


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    byte: int = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of too many bytes")


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)
