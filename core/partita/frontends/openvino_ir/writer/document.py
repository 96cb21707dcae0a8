"""The two files of an IR as they grow: layers, edges, and the bytes of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from xml.etree import ElementTree

import numpy as np

from partita.errors import ModelError
from partita.frontends.openvino_ir.weights import Array, precision_name, type_name

if TYPE_CHECKING:
    import onnx_ir as ir

Dims = tuple[int, ...] | None
"""Dimensions, -1 where one varies; ``None`` where not even their number is known."""

_ALIGNMENT = 64
"""Constants begin at multiples of so many bytes, as processors and mapped files like it."""

_NARROW_LIMIT = 0.75
"""Weights stay float32 if more than this share of them is none of float16's numbers, as OpenVINO
decides it."""


@dataclass(frozen=True)
class Output:
    """An output port of a layer.

    Attributes:
        layer: The layer's id.
        port: The port's id in the layer.
        dtype: Element type.
        dims: Dimensions.
        constant: The elements, if it is a constant.
    """

    layer: int
    port: int
    dtype: ir.DataType
    dims: Dims
    constant: Array | None = None

    @property
    def rank(self) -> int | None:
        """The number of dimensions, if it is known."""
        return None if self.dims is None else len(self.dims)


class Document:
    """An IR that is being written.

    Args:
        name: The network's name.
        binary: Where the bytes of constants go.
        narrow: Keep weights of float32 as float16, and convert them in the network.
    """

    def __init__(self, name: str, binary: BinaryIO, narrow: bool) -> None:
        self._net = ElementTree.Element("net", {"name": name, "version": "11"})
        self._layers = ElementTree.SubElement(self._net, "layers")
        self._edges = ElementTree.SubElement(self._net, "edges")
        self._binary = binary
        self._narrow = narrow
        self._count = 0
        self._ports: dict[tuple[int, int], ElementTree.Element] = {}

    def layer(
        self,
        kind: str,
        version: str,
        name: str,
        inputs: Sequence[Output],
        outputs: Sequence[tuple[ir.DataType, Dims]],
        data: Mapping[str, str],
        notes: Sequence[str] = (),
    ) -> list[Output]:
        """Writes a layer.

        Args:
            kind: Its type.
            version: The operation set.
            name: Its name.
            inputs: What it reads.
            outputs: Element type and dimensions of what it makes.
            data: Attributes.
            notes: Keys of runtime information.

        Returns:
            Its outputs.
        """
        identifier = self._count
        self._count += 1
        layer = ElementTree.SubElement(
            self._layers,
            "layer",
            {"id": str(identifier), "name": name, "type": kind, "version": version},
        )
        if data:
            ElementTree.SubElement(layer, "data", dict(data))
        if notes:
            info = ElementTree.SubElement(layer, "rt_info")
            for note in notes:
                ElementTree.SubElement(info, "attribute", {"name": note, "version": "0"})
        if inputs:
            ports = ElementTree.SubElement(layer, "input")
            for place, source in enumerate(inputs):
                _write_port(ports, place, source.dtype, source.dims)
                edge = {"from-layer": str(source.layer), "from-port": str(source.port)}
                edge |= {"to-layer": str(identifier), "to-port": str(place)}
                ElementTree.SubElement(self._edges, "edge", edge)
        made = []
        if outputs:
            ports = ElementTree.SubElement(layer, "output")
            for place, (dtype, dims) in enumerate(outputs):
                port = len(inputs) + place
                self._ports[identifier, port] = _write_port(ports, port, dtype, dims)
                made.append(Output(identifier, port, dtype, dims))
        return made

    def constant(self, tensor: ir.TensorProtocol, name: str) -> Output:
        """Writes a constant, and its bytes.

        Raises:
            ModelError: An IR has no such element type.
        """
        import onnx_ir as ir

        array = tensor.numpy()
        if self._narrow and tensor.dtype == ir.DataType.FLOAT and _is_narrow(array):
            limit = np.finfo(np.float16).max
            short = ir.Tensor(np.clip(array, -limit, limit).astype(np.float16))
            source = self._constant(short, f"{name}_compressed")
            (found,) = self.layer(
                "Convert", "opset1", name, [source], [(tensor.dtype, array.shape)],
                {"destination_type": "f32"}, notes=["decompression"],
            )  # fmt: skip
        else:
            found = self._constant(tensor, name)
        return Output(found.layer, found.port, tensor.dtype, array.shape, array)

    def _constant(self, tensor: ir.TensorProtocol, name: str) -> Output:
        data = tensor.tobytes()
        self._binary.write(b"\0" * (-self._binary.tell() % _ALIGNMENT))
        attributes = {
            "element_type": type_name(tensor.dtype, f"'{name}'"),
            "shape": ", ".join(map(str, tensor.shape.numpy())),
            "offset": str(self._binary.tell()),
            "size": str(len(data)),
        }
        self._binary.write(data)
        dims = tuple(tensor.shape.numpy())
        return self.layer("Const", "opset1", name, [], [(tensor.dtype, dims)], attributes)[0]

    def name_port(self, output: Output, name: str) -> None:
        """Calls a tensor by one more name; the first is the one by which readers find it."""
        port = self._ports[output.layer, output.port]
        escaped = name.replace(",", "\\,")
        names = port.get("names")
        port.set("names", escaped if names is None else f"{names},{escaped}")

    def save(self, path: Path) -> None:
        """Writes the ``.xml`` file."""
        tree = ElementTree.ElementTree(self._net)
        ElementTree.indent(tree, "\t")
        tree.write(path, encoding="utf-8", xml_declaration=True)


def _write_port(
    ports: ElementTree.Element, place: int, dtype: ir.DataType, dims: Dims
) -> ElementTree.Element:
    attributes = {"id": str(place), "precision": precision_name(dtype)}
    port = ElementTree.SubElement(ports, "port", attributes)
    for dim in dims or ():
        ElementTree.SubElement(port, "dim").text = str(dim)
    return port


def _is_narrow(array: Array) -> bool:
    """Whether most elements are such as float16 can hold, though less exactly."""
    size = np.abs(array)
    tiny = np.finfo(np.float16).smallest_subnormal
    with np.errstate(invalid="ignore"):
        lost = ((size < tiny) & (size > 0)) | ((size > np.finfo(np.float16).max) & (size < np.inf))
    return bool(array.size and np.count_nonzero(lost) <= _NARROW_LIMIT * array.size)


def refuse(name: str, op_type: str, what: str) -> ModelError:
    """The error of an operation that cannot be written."""
    return ModelError(f"Operation '{name}' ({op_type}) cannot be written as an IR: {what}")
