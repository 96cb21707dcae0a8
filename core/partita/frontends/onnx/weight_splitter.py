"""Takes large weights out of a serialized model, so that no parser copies them.

A protobuf is a sequence of fields, each a number, a kind and its content. A model's weights are
fields of its graph, and their elements fields of those; here these are found by walking along the
lengths, and what is left is small enough to parse as it is. Weights that are nodes (``Constant``)
become initializers on the way, as exporters that write them so have hundreds.
"""

from __future__ import annotations

from partita.frontends.onnx.protobuf_fields import (
    BYTES,
    VARINT,
    Field,
    field_head,
    fields_of,
    number_at,
)

_GRAPH = 7
_NODE, _INITIALIZER, _OUTPUT = 1, 5, 12
_INFO_NAME = 1
_NODE_OUTPUT, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR, _ATTRIBUTE_TYPE = 1, 5, 20
_DATA_TYPE, _NAME, _RAW_DATA, _LOCATION = 2, 8, 9, 14
_PLAIN = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 16})
"""Element types whose elements lie as numpy has them: numbers of whole bytes."""

_OWN_FIELDS = {1: 4, 11: 10}
"""Of element types that have a field of their own, `float_data` and `double_data`, where they lie
so too."""

_ELEMENTS = frozenset({_RAW_DATA, *_OWN_FIELDS.values()})

LARGE_BYTES = 4096
"""Weights from this size on are taken out."""

_WORTH_IT = 1 << 18
"""Models below this size are parsed as they are."""


def without_weights(data: memoryview) -> tuple[bytes | memoryview, dict[str, memoryview]]:
    """A serialized model without the elements of large weights, and these by name.

    What is no model, or an unusual one (damaged, with a graph in pieces, or with weights that share
    a name), is returned as it is.
    """
    if len(data) < _WORTH_IT:
        return data, {}
    try:
        graphs = [field for field in fields_of(data) if field[0] == _GRAPH]
        if len(graphs) != 1 or graphs[0][1] != BYTES:
            return data, {}
        _, _, start, begin, end = graphs[0]
        graph, weights = _graph(data[begin:end])
    except (IndexError, ValueError):
        return data, {}
    head = field_head(_GRAPH, len(graph))
    return b"".join([data[:start], head, graph, data[end:]]), weights


def _graph(graph: memoryview) -> tuple[bytes, dict[str, memoryview]]:
    """A graph whose constants are initializers, without the elements of the large ones, and these.

    Raises:
        ValueError: Two have one name.
    """
    pieces: list[bytes | memoryview] = []
    weights: dict[str, memoryview] = {}
    fields = fields_of(graph)
    outputs = {_text(graph, field, _INFO_NAME) for field in fields if field[0] == _OUTPUT}
    kept = 0
    for number, kind, start, begin, end in fields:
        tensor: memoryview | None = None
        name = ""
        if number == _INITIALIZER and kind == BYTES:
            if end - begin < LARGE_BYTES:
                continue
            tensor = graph[begin:end]
        elif number == _NODE and kind == BYTES:
            name, tensor = _constant(graph[begin:end])
            if name in outputs:
                continue
        if tensor is None:
            continue
        found: tuple[str, memoryview] | None = None
        if len(tensor) < LARGE_BYTES:
            rest: list[memoryview | bytes] = [tensor, _named(name)]  # of two names the last counts
        else:
            found, rest = _without_elements(tensor, name)
        if found is not None:
            name, elements = found
            if name in weights:
                raise ValueError("two weights of one name")
            weights[name] = elements
        elif number == _INITIALIZER:
            continue
        size = sum(map(len, rest))
        pieces += [graph[kept:start], field_head(_INITIALIZER, size), *rest]
        kept = end
    return b"".join([*pieces, graph[kept:]]), weights


def _constant(node: memoryview) -> tuple[str, memoryview | None]:
    """Name and tensor of a node that is a constant; no tensor if it is not."""
    near = bytes(node) if len(node) <= _NEAR else bytes(node[: _NEAR // 2]) + node[-_NEAR // 2 :]
    if b"Constant" not in near:
        return "", None
    names: list[memoryview] = []
    attributes: list[memoryview] = []
    kinds: list[bytes] = []
    domain = b""
    for number, _, _, begin, end in fields_of(node):
        content = node[begin:end]
        if number == _NODE_OUTPUT:
            names.append(content)
        elif number == _ATTRIBUTE:
            attributes.append(content)
        elif number == _OP_TYPE:
            kinds.append(bytes(content))
        elif number == _DOMAIN:
            domain = bytes(content)
    if kinds != [b"Constant"] or domain not in (b"", b"ai.onnx"):
        return "", None
    if len(names) != 1 or len(attributes) != 1 or not names[0]:
        return "", None
    tensor: memoryview | None = None
    attribute = attributes[0]
    for number, kind, _, begin, end in fields_of(attribute):
        if number == _ATTRIBUTE_TENSOR and kind == BYTES and tensor is None:
            tensor = attribute[begin:end]
        elif number == _ATTRIBUTE_NAME:
            if bytes(attribute[begin:end]) != b"value":
                return "", None
        elif number != _ATTRIBUTE_TYPE:
            return "", None
    return bytes(names[0]).decode(), tensor


_NEAR = 400
"""Bytes of a node that are looked through for its operator: the first and the last of a large one.
"""


def _without_elements(
    tensor: memoryview, name: str
) -> tuple[tuple[str, memoryview] | None, list[memoryview | bytes]]:
    """Name and elements of a tensor if these are one large field, and what it is without them.

    The tensor is renamed to ``name``, unless that is empty.
    """
    rest: list[memoryview | bytes] = []
    held: list[tuple[int, memoryview]] = []
    names = [name] if name else []
    fields: tuple[int, ...] = ()  # in which elements may lie
    for number, kind, start, begin, end in fields_of(tensor):
        if number == _NAME and kind == BYTES:
            if name:
                continue
            names.append(bytes(tensor[begin:end]).decode())
        elif number in _ELEMENTS and kind == BYTES:
            held.append((number, tensor[begin:end]))
            continue
        elif number == _DATA_TYPE and kind == VARINT:
            element_type = number_at(tensor, begin)[0]
            own = _OWN_FIELDS.get(element_type, _RAW_DATA)
            fields = (_RAW_DATA, own) if element_type in _PLAIN else ()
        elif number == _LOCATION or number in _ELEMENTS:  # elsewhere, or one by one
            names = []
        rest.append(tensor[start:end])
    if name:
        rest.append(_named(name))
    if len(names) == 1 and names[0] and len(held) == 1:
        number, content = held[0]
        if number in fields and len(content) >= LARGE_BYTES:
            return (names[0], content), rest
    for number, content in held:
        rest += [field_head(number, len(content)), content]
    return None, rest


def _named(name: str) -> bytes:
    """The field that is a tensor's name."""
    encoded = name.encode()
    return field_head(_NAME, len(encoded)) + encoded


def _text(data: memoryview, field: Field, number: int) -> str:
    """The text that is a certain field of a field."""
    inner = data[field[3] : field[4]]
    found = [inner[one[3] : one[4]] for one in fields_of(inner) if one[0] == number]
    return bytes(found[-1]).decode() if found else ""
