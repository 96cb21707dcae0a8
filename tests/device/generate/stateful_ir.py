"""The small decoder as optimum writes it for OpenVINO: with state, and rows chosen by beams."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import tiny_decoder as tiny
from models import node, value, weight
from onnx import TensorProto, numpy_helper

import partita

SHAPE = f"?,{tiny.HEADS},?,{tiny.SIZE}"


def write(folder, arrays, begins=True, length=0):
    """Writes ``openvino_model.xml`` and ``openvino_model.bin``.

    Args:
        folder: Where to.
        arrays: The weights.
        begins: Whether caches say how they begin; if not, they begin without any token.
        length: Tokens with which they begin.
    """
    proto = tiny.growing(arrays)
    caches = [port.name for port in proto.graph.input if port.name.startswith("past")]
    _add_beams(proto, caches, length)
    path = folder / "openvino_model.xml"
    partita.save_model(partita.Core().read_model(proto), path, compress_to_fp16=False)
    tree = ElementTree.parse(path)  # noqa: S314  # just written here
    _Layers(tree).make_stateful(caches, begins)
    tree.write(path)


def _add_beams(proto, caches, length):
    """Beams choose rows of what is held; outputs ``begin.*`` are what runs begin with."""
    graph = proto.graph
    graph.input.append(value("beam_idx", ["batch"], TensorProto.INT32))
    sizes = {"heads": [tiny.HEADS], "length": [length], "size": [tiny.SIZE], "first": [0]}
    for name, numbers in sizes.items():
        graph.initializer.append(weight(f"begin/{name}", np.array(numbers, np.int64)))
    graph.initializer.append(numpy_helper.from_array(np.float32(0), "begin/zero"))
    parts = ["begin/batch", "begin/heads", "begin/length", "begin/size"]
    added = [
        node("Shape", ["input_ids"], "begin/ids"),
        node("Gather", ["begin/ids", "begin/first"], "begin/batch"),
        node("Concat", parts, "begin/shape", axis=0),
    ]
    for name in caches:
        begin = name.replace("past_key_values", "begin")
        for one in graph.node:
            one.input[:] = [f"{name}/rows" if read == name else read for read in one.input]
        added.append(node("Gather", [name, "beam_idx"], f"{name}/rows"))
        added.append(node("Expand", ["begin/zero", "begin/shape"], begin))
        graph.output.append(value(begin, ["batch", tiny.HEADS, "begun", tiny.SIZE]))
    for place, one in enumerate(added):
        graph.node.insert(place, one)


class _Layers:
    """The layers of an IR, by name."""

    def __init__(self, tree):
        self._layers, self._edges = tree.getroot().find("layers"), tree.getroot().find("edges")
        self._named = {layer.get("name"): layer for layer in self._layers}

    def make_stateful(self, caches, begins):
        for name in caches:
            present = self._result(name.replace("past_key_values", "present"))
            begin = self._result(name.replace("past_key_values", "begin"))
            read = self._named[name]
            variable = f"{name}{name.replace('past_key_values', 'present')}"
            self._read(read, variable)
            source = self._edges_to(begin)[0]
            if begins:
                source.set("to-layer", read.get("id"))
                source.set("to-port", "0")
                read.insert(1, begin.find("input"))
            else:
                self._edges.remove(source)
            self._layers.remove(begin)
            self._assign(present, variable)

    def _result(self, name):
        """The layer that makes a value an output."""
        for edge in self._edges:
            layer = self._by_id(edge.get("to-layer"))
            port = self._port(edge)
            if layer.get("type") == "Result" and name in (port.get("names") or "").split(","):
                return layer
        raise AssertionError(f"no result {name}")

    def _by_id(self, number):
        return next(layer for layer in self._layers if layer.get("id") == number)

    def _port(self, edge):
        ports = self._by_id(edge.get("from-layer")).find("output")
        return next(port for port in ports if port.get("id") == edge.get("from-port"))

    def _edges_to(self, layer):
        return [edge for edge in self._edges if edge.get("to-layer") == layer.get("id")]

    def _read(self, layer, variable):
        layer.set("type", "ReadValue")
        layer.set("version", "opset6")
        data = {"variable_id": variable, "variable_type": "f32", "variable_shape": SHAPE}
        layer.find("data").attrib = data
        layer.find("output")[0].set("id", "1")
        for edge in self._edges:
            if edge.get("from-layer") == layer.get("id"):
                edge.set("from-port", "1")

    def _assign(self, layer, variable):
        layer.set("type", "Assign")
        layer.set("version", "opset6")
        data = layer.find("data")
        data = ElementTree.Element("data") if data is None else data
        if data not in layer:
            layer.insert(0, data)
        data.attrib = {"variable_id": variable}
        output = ElementTree.SubElement(layer, "output")
        port = ElementTree.SubElement(output, "port", {"id": "1", "precision": "FP32"})
        for dim in (-1, tiny.HEADS, -1, tiny.SIZE):
            ElementTree.SubElement(port, "dim").text = str(dim)
