"""The XML file of an OpenVINO IR as layers, ports and edges, checked before anything uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree

from partita.errors import ModelFormatError

VERSIONS = (10, 11)
"""Versions of the format that are read: those with operation sets."""

Element = ElementTree.Element


@dataclass(frozen=True, slots=True)
class IRPort:
    """An input or output of a layer: its id, element type, dimensions (-1: unknown), and names."""

    id: str
    precision: str
    dims: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of an IR; ``data`` holds its attributes, ``element`` what else it has."""

    id: str
    name: str
    type: str
    version: str
    data: Mapping[str, str]
    inputs: tuple[IRPort, ...]
    outputs: tuple[IRPort, ...]
    element: Element

    def __str__(self) -> str:
        return f"layer '{self.name}' ({self.type}, {self.version})"


@dataclass(frozen=True, slots=True)
class Network:
    """Layers, each after those it reads, and where every input port gets its value from.

    Attributes:
        name: The graph's name.
        layers: The layers by id.
        places: Layer id to its place in the file, which orders inputs and outputs.
        sources: (layer, input port) to (layer, output port), all of them ids.
        notes: What the file notes on the model: texts by name, in dicts in dicts.
    """

    name: str
    layers: Mapping[str, Layer]
    places: Mapping[str, int]
    sources: Mapping[tuple[str, str], tuple[str, str]]
    notes: Mapping[str, Any] = field(default_factory=dict)

    def of_type(self, kind: str) -> list[Layer]:
        """The layers of a type, in the file's order."""
        found = [layer for layer in self.layers.values() if layer.type == kind]
        return sorted(found, key=lambda layer: self.places[layer.id])


MOST_DEPTH = 512
"""Tags within tags; a body in a layer's body takes four."""

MOST_TAGS = 20_000_000
"""A layer takes about ten."""


class _Builder(ElementTree.TreeBuilder):
    """Refuses document types: an IR has none, and entities in them can grow without bounds.

    And refuses trees that no IR is: very deep ones, and very large ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._count = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._count += 1
        if self._depth > MOST_DEPTH:
            raise ModelFormatError(f"tags that lie more than {MOST_DEPTH} deep")
        if self._count > MOST_TAGS:
            raise ModelFormatError(f"more than {MOST_TAGS:,} tags")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ModelFormatError("a document type, which no OpenVINO IR has")


def parse(data: bytes, origin: str) -> Network:
    """The network in the bytes of an ``.xml`` file.

    Raises:
        ModelFormatError: It is no IR, of a version that is not read, or does not hang together.
    """
    try:
        parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314  (no entities: see there)
        root = ElementTree.fromstring(data, parser)  # noqa: S314
    except ElementTree.ParseError as error:
        raise ModelFormatError(f"{origin} is not an OpenVINO IR: {error}") from error
    except ModelFormatError as error:
        raise ModelFormatError(f"{origin} is not an OpenVINO IR: it has {error}.") from error
    if root.tag != "net":
        raise ModelFormatError(
            f"{origin} is not an OpenVINO IR: its root is <{root.tag}>, not <net>."
        )
    version = root.get("version", "")
    if version not in map(str, VERSIONS):
        raise ModelFormatError(
            f"{origin} is an OpenVINO IR of version {version or 'unknown'}; versions "
            f"{VERSIONS[0]} and {VERSIONS[1]} are read. Convert the original model again."
        )
    found = network(root, origin)
    notes = root.find("rt_info")
    return found if notes is None else replace(found, notes=_notes(notes))


def _notes(element: Element) -> dict[str, Any]:
    """The notes in an element: a text where a tag has a value, and a dict where it has none."""
    return {
        child.get("name", child.tag): child.get("value", _notes(child) if len(child) else "")
        for child in element
    }


def network(element: Element, origin: str) -> Network:
    """The network of a ``<net>`` or of a body inside a layer."""
    layers = {layer.id: layer for layer in _layers(element, origin)}
    sources: dict[tuple[str, str], tuple[str, str]] = {}
    for edge in element.iterfind("edges/edge"):
        start = (_need(edge, "from-layer", origin), _need(edge, "from-port", origin))
        end = (_need(edge, "to-layer", origin), _need(edge, "to-port", origin))
        for name, _ in (start, end):
            if name not in layers:
                raise ModelFormatError(f"{origin}: an edge names layer {name}, which is not there")
        if end in sources:
            raise ModelFormatError(f"{origin}: two edges end at port {end[1]} of {layers[end[0]]}")
        sources[end] = start
    for layer in layers.values():
        for port in layer.inputs:
            if (layer.id, port.id) not in sources:
                raise ModelFormatError(f"{origin}: nothing feeds port {port.id} of {layer}")
    places = {identifier: place for place, identifier in enumerate(layers)}
    return Network(element.get("name", ""), _ordered(layers, sources, origin), places, sources)


def _layers(element: Element, origin: str) -> Iterator[Layer]:
    seen: set[str] = set()
    for found in element.iterfind("layers/layer"):
        identifier = _need(found, "id", origin)
        if identifier in seen:
            raise ModelFormatError(f"{origin} has two layers of id {identifier}")
        seen.add(identifier)
        kind = _need(found, "type", origin)
        parts = {child.tag: child for child in found}
        yield Layer(
            id=identifier,
            name=found.get("name") or f"{kind}_{identifier}",
            type=kind,
            version=found.get("version", "opset1"),
            data=dict(parts["data"].attrib) if "data" in parts else {},
            inputs=tuple(_port(port, origin) for port in parts.get("input", ())),
            outputs=tuple(_port(port, origin) for port in parts.get("output", ())),
            element=found,
        )


def _port(element: Element, origin: str) -> IRPort:
    names = element.get("names", "").replace("\\,", "\0").split(",")
    return IRPort(
        id=_need(element, "id", origin),
        precision=element.get("precision", ""),
        dims=tuple(integer(child.text, origin) for child in element if child.tag == "dim"),
        names=tuple(name.replace("\0", ",") for name in names if name),
    )


def _need(element: Element, key: str, origin: str) -> str:
    value = element.get(key)
    if value is None:
        raise ModelFormatError(f"{origin}: <{element.tag}> without '{key}'")
    return value


def integer(text: Any, origin: str) -> int:
    """The number in a text."""
    try:
        return int(text)
    except (TypeError, ValueError) as error:
        raise ModelFormatError(f"{origin}: '{text}' where a whole number is expected") from error


def _ordered(
    layers: Mapping[str, Layer], sources: Mapping[tuple[str, str], tuple[str, str]], origin: str
) -> dict[str, Layer]:
    """The layers in an order in which each comes after those it reads; files keep to none."""
    readers: dict[str, list[str]] = {identifier: [] for identifier in layers}
    missing = dict.fromkeys(layers, 0)
    for (end, _), (start, _) in sources.items():
        readers[start].append(end)
        missing[end] += 1
    ready = [identifier for identifier, count in missing.items() if not count]
    ordered: dict[str, Layer] = {}
    for identifier in ready:
        ordered[identifier] = layers[identifier]
        for reader in readers[identifier]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(ordered) < len(layers):
        rest = next(layer for identifier, layer in layers.items() if identifier not in ordered)
        raise ModelFormatError(f"{origin} has a cycle through {rest}")
    return ordered
