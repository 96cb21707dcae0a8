"""TFLite files made by the schema's object API, and LiteRT, which judges what becomes of them."""

from __future__ import annotations

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "int16": schema.TensorType.INT16,
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int4": schema.TensorType.INT4,
    "bool": schema.TensorType.BOOL,
    "complex64": schema.TensorType.COMPLEX64,
    "resource": schema.TensorType.RESOURCE,
}


_SECOND = ("BROADCAST_TO",)
"""Operators of which LiteRT has no first version."""


class Graph:
    """A subgraph that is being written; tensors are named by their places."""

    def __init__(self, file, name="main"):
        self.file, self.table = file, schema.SubGraphT()
        self.table.name = name.encode()
        self.table.tensors, self.table.operators = [], []
        self.table.inputs, self.table.outputs = [], []

    def tensor(self, shape, dtype="float32", data=None, quantization=None, **fields):
        """Adds a tensor; ``quantization`` is scale(s), zero point(s) and an axis."""
        table = schema.TensorT()
        place = len(self.table.tensors)
        table.shape, table.type = list(shape), TYPES[str(dtype)]
        table.name = fields.pop("name", f"t{place}").encode()
        table.buffer = 0 if data is None else self.file.buffer(data)
        if quantization is not None:
            scale, zero, *axis = quantization
            table.quantization = schema.QuantizationParametersT()
            table.quantization.scale = np.atleast_1d(scale).astype(np.float32)
            table.quantization.zeroPoint = np.atleast_1d(zero).astype(np.int64)
            table.quantization.quantizedDimension = axis[0] if axis else 0
        for key, value in fields.items():
            setattr(table, key, value)
        self.table.tensors.append(table)
        return place

    def constant(self, array, quantization=None):
        """Adds a constant."""
        array = np.asarray(array)
        return self.tensor(array.shape, array.dtype, array, quantization)

    def input(self, shape, dtype="float32", quantization=None, **fields):
        """Adds an input."""
        place = self.tensor(shape, dtype, None, quantization, **fields)
        self.table.inputs.append(place)
        return place

    def op(self, code, inputs, outputs, options=None, custom=None, **fields):
        """Adds an operator; ``options`` is the name of their table, ``fields`` its fields."""
        table = schema.OperatorT()
        table.opcodeIndex = self.file.code(code)
        table.inputs, table.outputs = list(inputs), list(outputs)
        if options is not None:
            unions = [("builtinOptions", schema.BuiltinOptions)]
            unions.append(("builtinOptions2", schema.BuiltinOptions2))
            for field, union in unions:
                if hasattr(union, options):
                    setattr(table, f"{field}Type", getattr(union, options))
                    setattr(table, field, getattr(schema, f"{options}T")())
                    for key, value in fields.items():
                        assert hasattr(getattr(table, field), key), key
                        setattr(getattr(table, field), key, value)
        if custom is not None:
            table.customOptions = list(custom)
        self.table.operators.append(table)
        return outputs[0] if outputs else None

    def outputs(self, *places):
        """Says what is returned."""
        self.table.outputs = list(places)


class File:
    """A file that is being written; ``main`` is its first subgraph."""

    def __init__(self):
        self.table = schema.ModelT()
        self.table.version, self.table.description = 3, b"a test"
        self.table.buffers = [schema.BufferT()]
        self.table.operatorCodes, self.table.subgraphs, self._codes = [], [], {}
        self.main = self.graph("main")

    def graph(self, name):
        """Adds a subgraph; its place is ``len(table.subgraphs) - 1`` then."""
        graph = Graph(self, name)
        self.table.subgraphs.append(graph.table)
        return graph

    def buffer(self, array):
        """Adds the bytes of a constant."""
        self.table.buffers.append(schema.BufferT())
        raw = array.tobytes() if isinstance(array, np.ndarray) else array
        self.table.buffers[-1].data = np.frombuffer(raw, np.uint8)
        return len(self.table.buffers) - 1

    def code(self, name):
        """The place of an operator code: a builtin operator, or a custom one in lower case."""
        if name not in self._codes:
            table = schema.OperatorCodeT()
            number = getattr(schema.BuiltinOperator, name, schema.BuiltinOperator.CUSTOM)
            if number == schema.BuiltinOperator.CUSTOM:
                table.customCode = name.encode()
            table.builtinCode = number
            table.deprecatedBuiltinCode = min(number, 127)
            table.version = 2 if name in _SECOND else 1
            self._codes[name] = len(self.table.operatorCodes)
            self.table.operatorCodes.append(table)
        return self._codes[name]

    def signature(self, key, inputs, outputs, subgraph=0):
        """Adds a signature: names to places of tensors."""
        table = schema.SignatureDefT()
        table.signatureKey, table.subgraphIndex = key.encode(), subgraph
        for field, named in (("inputs", inputs), ("outputs", outputs)):
            entries = []
            for name, place in named.items():
                entry = schema.TensorMapT()
                entry.name, entry.tensorIndex = name.encode(), place
                entries.append(entry)
            setattr(table, field, entries)
        self.table.signatureDefs = [*(self.table.signatureDefs or []), table]

    def bytes(self, identifier=b"TFL3"):
        """The file."""
        return packed(self.table, identifier)


def packed(table, identifier=b"TFL3"):
    """A file of a model's table."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(table.Pack(builder), identifier)
    return bytes(builder.Output())


def litert(data, feeds, runs=1):
    """What LiteRT's own kernels (no XNNPACK) answer, a list for each run; ``feeds`` by order."""
    interpreter = Interpreter(
        model_content=data,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    answers = []
    for _ in range(runs):
        for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        answers.append(
            [interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()]
        )
    return answers


def write_tiny_tflite(path):
    """A file of one operator and one signature."""
    file = File()
    x = file.main.input((2, 3), name="x:0")
    y = file.main.op("SOFTMAX", [x], [file.main.tensor((2, 3), name="y:0")], "SoftmaxOptions")
    file.main.outputs(y)
    file.signature("serving_default", {"x": x}, {"y": y})
    path.write_bytes(file.bytes())
