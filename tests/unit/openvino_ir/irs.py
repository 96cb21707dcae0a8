"""A writer of small OpenVINO IRs, by the format's definition, for tests."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

import numpy as np

import partita
from partita.frontends.reader import read_model

TYPES = {
    "float32": "f32",
    "float16": "f16",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "boolean",
}
PRECISIONS = {"f32": "FP32", "f16": "FP16", "f64": "FP64", "boolean": "BOOL"}


def attributes(**values):
    return "".join(f" {key}={quoteattr(str(value))}" for key, value in values.items())


def listed(values):
    return ",".join(map(str, values))


class Net:
    """Layers one after the other; bodies share the weights of their parent.

    A value is (layer id, port id, element type, dimensions). Where ``compressed`` is set, float32
    constants lie behind a Convert, as ``openvino.save_model`` writes them by default: in float16
    where that is exact, and else in float64, so that results stay the same.
    """

    compressed = False

    def __init__(self, parent=None):
        self.layers, self.edges = [], []
        self.weights = bytearray() if parent is None else parent.weights

    def parameter(self, name, dtype, dims):
        shape = listed("?" if dim < 0 else dim for dim in dims)
        data = attributes(shape=shape, element_type=dtype)
        return self.layer("Parameter", [], [(dtype, dims)], name=name, names=name, data=data)[0]

    def const(self, array):
        array = np.asarray(array)
        if not self.compressed or array.dtype != np.float32:
            return self.stored(array)
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        exact = np.array_equal(half.astype(np.float32), array, equal_nan=True)
        kept = self.stored(half if exact else array.astype(np.float64))
        return self.op("Convert", kept, out=[("f32", array.shape)], destination_type="f32")

    def stored(self, array):
        array = np.ascontiguousarray(array).reshape(array.shape)  # it makes rows of scalars
        kind = TYPES[array.dtype.name]
        while len(self.weights) % 8:
            self.weights.append(0)
        data = attributes(
            element_type=kind, shape=listed(array.shape), offset=len(self.weights),
            size=array.nbytes,
        )  # fmt: skip
        self.weights += array.tobytes()
        return self.layer("Const", [], [(kind, array.shape)], data=data)[0]

    def op(self, kind, *inputs, out=None, version="opset1", name=None, names=None, **data):
        """A layer; ``out`` lists (type, dimensions), by default those of the first input."""
        out = [inputs[0][2:]] if out is None else out
        found = self.layer(
            kind, inputs, out, version=version, name=name, names=names, data=attributes(**data)
        )
        return found[0] if len(found) == 1 else found

    def layer(self, kind, inputs, out, version="opset1", name=None, names=None, data="", inside=""):
        number = len(self.layers)
        text = ""
        for side, ports in (("input", [value[2:] for value in inputs]), ("output", out)):
            if ports:
                text += f"<{side}>"
                for index, (dtype, dims) in enumerate(ports):
                    place = index + (len(inputs) if side == "output" else 0)
                    precision = PRECISIONS.get(dtype, dtype.upper())
                    called = (
                        attributes(names=names) if names and side == "output" and not index else ""
                    )
                    text += f'<port id="{place}" precision="{precision}"{called}>'
                    text += "".join(f"<dim>{dim}</dim>" for dim in dims) + "</port>"
                text += f"</{side}>"
        head = attributes(id=number, name=name or f"{kind}_{number}", type=kind, version=version)
        body = f"<data{data}/>" if data else ""
        self.layers.append(f"<layer{head}>{body}{text}{inside}</layer>")
        for index, value in enumerate(inputs):
            self.edges.append(
                f'<edge from-layer="{value[0]}" from-port="{value[1]}" '
                f'to-layer="{number}" to-port="{index}"/>'
            )
        return [(number, len(inputs) + index, *port) for index, port in enumerate(out)]

    def result(self, value, name=None):
        self.layer("Result", [value], [], name=name)
        return len(self.layers) - 1

    def inner(self):
        return f"<layers>{''.join(self.layers)}</layers><edges>{''.join(self.edges)}</edges>"

    def xml(self, version=11):
        return f'<?xml version="1.0"?><net name="net" version="{version}">{self.inner()}</net>'

    def bytes(self):
        return self.xml().encode()


def single(kind, x, *constants, out=None, version="opset1", inputs=(), **data):
    """The outputs of a layer of one or more inputs and constants behind them."""
    net, feeds, values = Net(), {}, []
    for place, array in enumerate([x, *inputs]):
        values.append(net.parameter(f"x{place}", TYPES[array.dtype.name], array.shape))
        feeds[f"x{place}"] = array
    values += [net.const(array) for array in constants]
    found = net.op(kind, *values, out=out, version=version, **data)
    for value in found if isinstance(found, list) else [found]:
        net.result(value)
    model = read_model(net.bytes(), weights=bytes(net.weights))
    result = partita.Core().compile_model(model, "CPU")(feeds)
    return [result[place] for place in range(len(model.outputs))]
