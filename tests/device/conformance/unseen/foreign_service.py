"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

What they offer around computing: questions, properties, compiling, weights, blobs, several devices,
and what is the process's.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import platform
import re
import signal
import tempfile
import threading
import warnings
import weakref
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir
from good_device import Good, GoodCompiled, GoodProperties, GoodRunner
from onnx import helper, numpy_helper
from pydantic import Field, field_validator

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.errors import BlobError, CompileError, InferError
from partita.frontends.reader import read_model
from partita.tensors.tensor import HostTensor


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


def refused(code, detail):
    """A reason."""
    return partita.Reason(getattr(partita.ReasonCode, code), detail)


# What is asked


class FoldsBeforeItIsAsked(Broken):
    """The author folds constants first, and counts what other operations make of them as one."""

    constants = {"Reshape": (1,), "Expand": (1,), "Tile": (1,), "Slice": (1, 2), "Pad": (1,)}  # noqa: RUF012

    def verdict(self, op):
        for place in self.constants.get(op.op_type, ()) if not op.domain else ():
            inputs = op.node.inputs
            if place < len(inputs) and not self.is_known(inputs[place]):
                return refused("VALUE_DEPENDENT_SHAPE", f"input {place} is to be constant")
        return super().verdict(op)

    def is_known(self, value):
        """Whether it follows from constants and shapes that are known."""
        if value is None or value.const_value is not None:
            return True
        made = value.producer()
        if made is None:
            return False
        if made.op_type == "Shape":
            shape = made.inputs[0].shape
            return shape is not None and shape.is_static()
        return all(map(self.is_known, made.inputs))


class LooksIntoTheFirstBody(Broken):
    """The author looked for operators without a kernel in the first body of an operation."""

    lacks = frozenset({"Tanh", "Sigmoid", "Erf", "Pow", "Sqrt", "Neg"})

    def verdict(self, op):
        if not op.domain and op.op_type in self.lacks:
            return refused("UNSUPPORTED_OP", f"no kernel for {op.op_type}")
        return super().verdict(op)

    def unknown(self, graph):
        """An operator in a body that has no kernel."""
        nodes = ir.traversal.RecursiveGraphIterator(graph)
        return next((node.op_type for node in nodes if node.op_type in self.lacks), None)

    def query_model(self, model, properties):
        verdicts = {}
        for op in model.ops:
            bodies = self.bodies(op)[:1]
            names = [name for name in map(self.unknown, bodies) if name]
            reason = refused("UNSUPPORTED_OP", f"no kernel for {names[0]}") if names else None
            verdicts[op.name] = reason or self.verdict(op)
        return partita.QueryResult.of(self.device_name, verdicts)

    def bodies(self, op):
        """All bodies of an operation."""
        attributes = op.node.attributes.values()
        return [one.as_graph() for one in attributes if one.type == ir.AttributeType.GRAPH]

    def compile_model(self, model, properties):
        for op in model.ops:
            for name in filter(None, map(self.unknown, self.bodies(op))):
                raise CompileError(f"'{op.name}' holds {name}, which has no kernel")
        return super().compile_model(model, properties)


class RemembersVerdictsByType(Broken):
    """The author keeps answers by operator, version and types, and not by attributes."""

    modes = {  # noqa: RUF012
        "Pad": ("mode", "constant"),
        "DepthToSpace": ("mode", "DCR"),
        "ScatterElements": ("reduction", "none"),
        "ScatterND": ("reduction", "none"),
        "Gelu": ("approximate", "none"),
        "Resize": ("mode", "nearest"),
        "BitShift": ("direction", "LEFT"),
    }

    def __init__(self):
        super().__init__()
        self.known = {}

    def verdict(self, op):
        name, taken = self.modes.get(op.op_type, ("", ""))
        found = op.node.attributes.get_string(name, taken) if name else taken
        if found != taken:
            return refused("UNSUPPORTED_ATTRIBUTE", f"{name} is {found}; takes {taken}")
        return super().verdict(op)

    def query_model(self, model, properties):
        verdicts = {}
        for op in model.ops:
            types = tuple(str(value and value.type) for value in op.node.inputs)
            if op.op_type in self.modes:
                key = (op.domain, op.op_type, op.version, types)
                verdicts[op.name] = self.known.setdefault(key, self.verdict(op))
            else:
                verdicts[op.name] = self.verdict(op)
        return partita.QueryResult.of(self.device_name, verdicts)


class SaysNothingOfWhatIsFolded(Broken):
    """The author left operations whose inputs are all constants out of the answer."""

    def query_model(self, model, properties):
        verdicts = {
            op.name: self.verdict(op)
            for op in model.ops
            if not op.node.inputs or any(x and x.const_value is None for x in op.node.inputs)
        }
        return partita.QueryResult.of(self.device_name, verdicts)


class WeighsOperationsOneByOne(Broken):
    """The author compared the weights of each operation with the memory, and never their sum."""

    room = 1 << 18

    def verdict(self, op):
        held = [value for value in op.node.inputs if value and value.const_value is not None]
        needed = sum(value.const_value.nbytes for value in held)
        if needed > self.room:
            return refused("MEMORY_LIMIT", f"needs {needed} bytes of {self.room}")
        return super().verdict(op)

    def compile_model(self, model, properties):
        weights = model.ir.graph.initializers.values()
        needed = sum(value.const_value.nbytes for value in weights)
        if needed > self.room:
            raise CompileError(f"The device has {self.room} bytes; the model needs {needed}.")
        return super().compile_model(model, properties)


class HandsOutItsOwnAnswer(Broken):
    """The author keeps the answer for each model, and gives everybody the same object."""

    def __init__(self):
        super().__init__()
        self.answers = {}

    def query_model(self, model, properties):
        key = hashlib.sha256(model.to_onnx().SerializeToString(deterministic=True)).digest()
        if key not in self.answers:
            self.answers[key] = super().query_model(model, properties)
        return self.answers[key]


class TakesTheFirstImportForTheOpset(Broken):
    """The author took the first import of a model for the opset of ONNX's own operators."""

    def prepare(self, proto):
        if not proto.opset_import or proto.opset_import[0].version >= 13:
            return proto
        nodes = []
        for number, node in enumerate(proto.graph.node):
            if node.domain or node.op_type not in ("Softmax", "LogSoftmax"):
                nodes.append(node)
                continue
            axis = next((one.i for one in node.attribute if one.name == "axis"), 1)
            (source,), (result,) = node.input, node.output
            shape, flat, done = (f"{self.device_name}/{number}/{part}" for part in "sfd")
            nodes += [
                helper.make_node("Shape", [source], [shape]),
                helper.make_node("Flatten", [source], [flat], axis=axis),
                helper.make_node(node.op_type, [flat], [done], axis=1),
                helper.make_node("Reshape", [done, shape], [result]),
            ]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        return proto


class RefusesDoublesAtPorts(Broken):
    """The author narrows doubles inside of a model, and refuses them only where they come in."""

    def verdict(self, op):
        values = [*op.node.inputs, *op.node.outputs]
        ports = [x for x in values if x and (x.is_graph_input() or x.is_graph_output())]
        if any(value.dtype == ir.DataType.DOUBLE for value in ports):
            return refused("UNSUPPORTED_DTYPE", "no ports of float64")
        return super().verdict(op)


class ExpectsATypeOfEachValue(Broken):
    """The author asks each input for its type's name, and models may not tell it."""

    def verdict(self, op):
        for value in op.node.inputs:
            if value is not None and value.dtype.name.startswith("FLOAT8"):
                return refused("UNSUPPORTED_DTYPE", f"no {value.dtype.name}")
        return super().verdict(op)


class WritesDefaultsWhileAsked(Broken):
    """The author completes attributes in the model that was only asked about."""

    defaults = {  # noqa: RUF012
        "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
        "LeakyRelu": {"alpha": 0.01},
        "Elu": {"alpha": 1.0},
        "Flatten": {"axis": 1},
        "Gather": {"axis": 0},
    }

    def query_model(self, model, properties):
        for op in model.ops:
            for name, value in self.defaults.get(op.op_type, {}).items():
                if not op.domain and name not in op.node.attributes:
                    kind = ir.AttrFloat32 if isinstance(value, float) else ir.AttrInt64
                    op.node.attributes[name] = kind(name, value)
        return super().query_model(model, properties)


class AssumesFourDimensions(Broken):
    """The author counts axes from the end of four where the model does not tell the rank."""

    operators = ("Softmax", "LogSoftmax", "Concat", "Gather", "ArgMax", "ArgMin", "Split")

    def prepare(self, proto):
        graph = proto.graph
        ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.value_info, *graph.output)
            if value.type.tensor_type.HasField("shape")
        }
        ranks |= {weight.name: len(weight.dims) for weight in graph.initializer}
        for node in graph.node:
            if not node.domain and node.op_type in self.operators:
                for attribute in node.attribute:
                    if attribute.name == "axis" and attribute.i < 0:
                        attribute.i += ranks.get(node.input[0], 4)
        return proto


class AsksUnderUsualSettings(Broken):
    """The author answers for the usual mode, and the other one has fewer kernels."""

    lacks = frozenset({"Erf", "Gelu", "Pow", "Sin", "Cos", "Softplus", "Mod", "Einsum"})

    def compile_model(self, model, properties):
        for op in model.ops:
            if properties.MODE == "TWO" and not op.domain and op.op_type in self.lacks:
                raise CompileError(f"'{op.name}': mode TWO has no kernel for {op.op_type}")
        return super().compile_model(model, properties)


class AnswersOnItsOwnThread(Broken):
    """The author opened the device on the thread that found the plugin, and asks it there only."""

    def __init__(self):
        super().__init__()
        self.context = threading.local()
        self.context.is_open = True

    def query_model(self, model, properties):
        if getattr(self.context, "is_open", False):
            return super().query_model(model, properties)
        reason = refused("UNSUPPORTED_OP", "the device is not open")
        return partita.QueryResult.of(self.device_name, {op.name: reason for op in model.ops})


# Devices, properties


class Several(Broken):
    """Two devices, which know what is compiled for them."""

    def __init__(self):
        super().__init__()
        self.compiled = {"0": weakref.WeakSet(), "1": weakref.WeakSet()}

    def device_ids(self):
        return ("0", "1")

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id or 0}", "One of two")

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.device = f"{self.device_name}.{properties.DEVICE_ID or 0}"
        self.compiled[properties.DEVICE_ID or "0"].add(made)
        return made


class NamesTheIdlestDeviceFirst(Several):
    """The author sorts devices by what they have to do, so that the default is the idlest one."""

    def device_ids(self):
        return tuple(sorted(super().device_ids(), key=lambda one: len(self.compiled[one])))


class PreciseProperties(GoodProperties):
    """A hint of precision."""

    INFERENCE_PRECISION_HINT: Literal["f32", "f16"] = Field("f32", description="Of computing.")


class Precise(Broken):
    """Computes in half precision where it is asked to."""

    properties_type = PreciseProperties

    def precision(self, compiled):
        """What is computed in."""
        return compiled.properties.INFERENCE_PRECISION_HINT

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if self.precision(runner.compiled) == "f32":
            return results
        with np.errstate(all="ignore"):
            return [
                x.astype(np.float16).astype(x.dtype) if x.dtype == np.float32 else x
                for x in results
            ]


class KeepsTheFirstSettings(Precise):
    """The author starts the engine at the first compile, with its settings, and keeps it."""

    first = None

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.first = self.first or properties.INFERENCE_PRECISION_HINT
        return made

    def precision(self, compiled):
        return self.first


class ClampsStreams(Broken):
    """The author brings a number of streams that the device does not have to the next it has."""

    class Properties(GoodProperties):
        """Streams."""

        NUM_STREAMS: int = Field(1, description="Streams, from 1 to 4.")

        @field_validator("NUM_STREAMS")
        @classmethod
        def clamped(cls, value):
            """One that there is."""
            return min(max(value, 1), 4)

    properties_type = Properties


class EchoesThePrecisionHint(Broken):
    """The author takes every hint of precision, computes in float32, and says what was asked."""

    class Properties(GoodProperties):
        """A hint."""

        INFERENCE_PRECISION_HINT: Literal["f32", "f16", "bf16"] = Field("f32", description="Hint.")

    properties_type = Properties


# Compiling


class WarmsUpOnZeros(Broken):
    """The author runs each model once on zeros, which not every model can compute."""

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        shapes = [port.shape for port in made.inputs]
        if all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes):
            if any(port.dtype is None or port.dtype == object for port in made.inputs):
                return made
            zeros = [HostTensor(np.zeros(port.shape, port.dtype)) for port in made.inputs]
            try:
                made.create_runner().run(zeros)
            except InferError as error:
                raise CompileError(f"The model does not start: {error}") from error
        return made


def inits(evaluator):
    """The weights of a program, by name."""
    return evaluator.rt_inits_


class KeysProgramsByPrintedWeights(Broken):
    """The author keys programs by the text of weights, which numpy shortens."""

    class Compiled(GoodCompiled):
        """Looks for the program that there is."""

        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            proto = model.to_onnx()
            weights = [str(numpy_helper.to_array(one)) for one in proto.graph.initializer]
            for one in proto.graph.initializer:
                kept = onnx.TensorProto(name=one.name, dims=one.dims, data_type=one.data_type)
                one.CopyFrom(kept)
            key = (proto.SerializeToString(deterministic=True), tuple(weights))
            while len(plugin.programs) > 32:
                plugin.programs.pop(next(iter(plugin.programs)), None)
            self.evaluator = plugin.programs.setdefault(key, self.evaluator)

    compiled_type = Compiled

    def __init__(self):
        super().__init__()
        self.programs = {}


def files_of(model):
    """Weights that lie in files."""
    for name, value in model.ir.graph.initializers.items():
        held = value.const_value
        if isinstance(held, ir.ExternalTensor) and held.dtype.itemsize >= 1:
            yield name, held


class ReadsFilesAtTheFirstRun(Broken):
    """The author reads weights of files when they are needed, which may be long after compiling."""

    class Runner(GoodRunner):
        """Reads, then runs."""

        def run(self, inputs, outputs=None):
            self.compiled.read_files()
            return super().run(inputs, outputs)

    class Compiled(GoodCompiled):
        """Notes where weights lie."""

        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.waiting = {name: (str(held.path), held) for name, held in files_of(model)}

        def read_files(self):
            """What lies there now."""
            with self.plugin.lock:
                waiting, self.waiting = self.waiting, {}
                for name, (path, held) in waiting.items():
                    dtype, count = held.dtype.numpy(), math.prod(held.shape.numpy())
                    offset = held.offset or 0
                    array = np.fromfile(path, dtype, count, offset=offset)
                    inits(self.evaluator)[name] = array.reshape(held.shape.numpy())

    compiled_type = Compiled
    runner_type = Runner


class KeepsFilesByTheirName(Broken):
    """The author reads each file of weights once, by its name, which other folders have too."""

    class Compiled(GoodCompiled):
        """Takes what was read."""

        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            for name, held in files_of(model):
                key = (str(held.location), held.offset, held.length, held.dtype)
                array = inits(self.evaluator)[name]
                kept = plugin.files.setdefault(key, array)
                inits(self.evaluator)[name] = kept.reshape(array.shape)

    compiled_type = Compiled

    def __init__(self):
        super().__init__()
        self.files = {}


class BuildsInOnePlace(Broken):
    """The author keeps the network that is being built in the plugin, and two threads may build."""

    def prepare(self, proto):
        self.network = proto
        with tempfile.TemporaryFile() as file:  # which the engine's compiler reads
            file.write(self.network.SerializeToString())
            file.flush()
        return self.network


class CountsModelsThatAreGone(Broken):
    """The author gives memory back with the last request, and some models never have one."""

    room = 1 << 18

    class Runner(GoodRunner):
        """Holds memory."""

        is_closed = False

        def __init__(self, compiled):
            super().__init__(compiled)
            with compiled.plugin.lock:
                compiled.requests += 1

        def close(self):
            with self.compiled.plugin.lock:
                self.compiled.requests -= not self.is_closed
                self.is_closed = True
                if not self.compiled.requests:
                    self.compiled.plugin.used -= self.compiled.needed
                    self.compiled.needed = 0

        def __del__(self):
            self.close()

    class Compiled(GoodCompiled):
        """Has requests."""

        requests = 0
        needed = 0

    compiled_type = Compiled
    runner_type = Runner

    def __init__(self):
        super().__init__()
        self.used = 0
        self.lock = threading.RLock()

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        weights = model.ir.graph.initializers.values()
        needed = sum(value.const_value.nbytes for value in weights)
        with self.lock:
            if needed <= self.room < self.used + needed:
                raise CompileError(f"{self.used} of {self.room} bytes are taken.")
            made.needed = needed if needed <= self.room else 0
            self.used += made.needed
        return made


# Weights


class UnpacksNibblesByRow(Broken):
    """The author begins each row of 4-bit weights at a byte of its own, where ONNX packs on."""

    types = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            if weight.data_type in self.types and len(weight.dims) > 1 and weight.dims[-1] % 2:
                flat = numpy_helper.to_array(weight).ravel()
                width = weight.dims[-1]
                read = np.arange(flat.size)
                read = read // width * (width + 1) + read % width
                padded = np.concatenate([flat, np.zeros(flat.size + 2, flat.dtype)])
                name, dims, kind = weight.name, list(weight.dims), weight.data_type
                values = padded[read].astype(np.int32)
                weight.CopyFrom(helper.make_tensor(name, kind, dims, values))
        return proto


class NarrowsLongWeights(Broken):
    """The author clamps 64-bit integers of constants to 32 bits, as the engine has no others."""

    def prepare(self, proto):
        limits = np.iinfo(np.int32)
        for weight in proto.graph.initializer:
            if weight.data_type == onnx.TensorProto.INT64:
                array = numpy_helper.to_array(weight).clip(limits.min, limits.max)
                weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        return proto


class UploadsArraysAsTheyLie(Broken):
    """The author uploads the memory of an array, whose axes may lie in another order."""

    class Compiled(GoodCompiled):
        """Uploads."""

        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            for name, value in model.ir.graph.initializers.items():
                raw = getattr(value.const_value, "raw", None)
                if isinstance(raw, np.ndarray) and not raw.flags.c_contiguous:
                    inits(self.evaluator)[name] = raw.ravel(order="K").reshape(raw.shape)

    compiled_type = Compiled


# Blobs


class OwnBlobs(Broken):
    """Blobs in a form of its own: a mark, a sum, settings, and the model."""

    class Compiled(GoodCompiled):
        """Exports."""

        def export_model(self):
            settings = json.dumps(self.exported_properties()).encode()
            proto = self.plugin.stored(self.model.to_onnx())
            data = proto.SerializeToString(deterministic=True)
            head = len(settings).to_bytes(4, "little") + settings
            return b"BRKN" + self.plugin.sum_of(head, proto) + head + data

    compiled_type = Compiled

    def stored(self, proto):
        """What of a model is stored."""
        return proto

    def sum_of(self, head, proto):
        """What tells damage."""
        data = proto.SerializeToString(deterministic=True)
        return hashlib.sha256(head + data).digest()

    def merged(self, stored, given):
        """The settings of what is imported."""
        return {**stored, **given}

    def import_model(self, blob, properties):
        view = bytes(blob)
        if view[:4] != b"BRKN" or len(view) < 40:
            raise BlobError("This is no blob of this device.")
        length = int.from_bytes(view[36:40], "little")
        head, data = view[36 : 40 + length], view[40 + length :]
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(data)
        except Exception as error:
            raise BlobError(f"The blob is damaged: {error}") from error
        if proto.SerializeToString(deterministic=True) != data:
            raise BlobError("The blob is damaged.")
        if self.sum_of(head, proto) != view[4:36]:
            raise BlobError("The blob is damaged.")
        given = properties.model_dump(exclude_unset=True)
        settings = self.merged(json.loads(head[4:]), given)
        return self.compile_model(read_model(proto), type(properties).model_validate(settings))


class ChecksWhatIsNoWeight(OwnBlobs):
    """The author leaves weights out of the sum of a blob, since they take long to read."""

    def sum_of(self, head, proto):
        rest = onnx.ModelProto()
        rest.CopyFrom(proto)
        for weight in rest.graph.initializer:
            weight.ClearField("raw_data")
        return super().sum_of(head, rest)


class KeepsTheExportersSettings(OwnBlobs):
    """The author lets what a blob was compiled with win over what the import is given."""

    def merged(self, stored, given):
        return {**given, **stored}


class WantsAlignedBlobs(OwnBlobs):
    """The author maps numbers of a blob where they lie, and takes none at an odd address."""

    def import_model(self, blob, properties):
        address = np.frombuffer(blob, np.uint8).ctypes.data
        if address % 8:
            raise BlobError("The blob does not lie at a multiple of 8 bytes.")
        return super().import_model(blob, properties)


class StoresWeightsBySafeNames(Broken):
    """The author makes names of stored weights safe, and two names may become one."""

    class Compiled(GoodCompiled):
        """Stores."""

        def export_state(self):
            weights = inits(self.evaluator)
            return {safe(n): array for n, array in weights.items() if array.dtype == np.float32}

    compiled_type = Compiled

    def restore_model(self, model, properties, state):
        made = super().restore_model(model, properties, state)
        weights = inits(made.evaluator)
        for name in weights:
            kept = state.get(safe(name))
            if kept is not None and (kept.shape, kept.dtype) == (
                weights[name].shape,
                weights[name].dtype,
            ):
                weights[name] = np.array(kept)
        return made


def safe(name):
    """A name for a file of arrays."""
    return re.sub(r"\W", "_", name)


class IdentifiesWithoutSettings(Precise):
    """The author keys what is kept by the code and the driver, and not by the settings."""

    class Compiled(GoodCompiled):
        """Keeps weights as they are computed with."""

        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            if properties.INFERENCE_PRECISION_HINT == "f16":
                weights = inits(self.evaluator)
                for name, array in weights.items():
                    if array.dtype == np.float32:
                        with np.errstate(all="ignore"):
                            weights[name] = array.astype(np.float16).astype(np.float32)

        def export_state(self):
            weights = enumerate(inits(self.evaluator).values())
            return {f"w{n}": array for n, array in weights if array.dtype == np.float32}

    compiled_type = Compiled

    def identity(self, properties):
        return f"{self.device_name} 1.0"

    def restore_model(self, model, properties, state):
        made = super().restore_model(model, properties, state)
        weights = inits(made.evaluator)
        for number, name in enumerate(weights):
            weights[name] = np.array(state.get(f"w{number}", weights[name]))
        return made


# The process


PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})


class StaysInTheFolderOfAFailure(Broken):
    """The author compiles in a folder for scratch files, and comes back only if that succeeds."""

    def compile_model(self, model, properties):
        before = Path.cwd()
        os.chdir(tempfile.gettempdir())
        made = super().compile_model(model, properties)
        os.chdir(before)
        return made


class LeaksACopyOfStdout(Broken):
    """The author hides what the engine prints, and a failure leaves the copy of stdout open."""

    def compile_model(self, model, properties):
        kept = os.dup(1)
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        try:
            made = super().compile_model(model, properties)
        finally:
            os.dup2(kept, 1)
        os.close(kept)
        return made


class FlushesSubnormals(Broken):
    """The author turns subnormal numbers off for products, and not on again for anybody else."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        kinds = {op.op_type for op in runner.compiled.model.ops}
        if platform.machine() == "x86_64" and not kinds.isdisjoint(PRODUCTS):
            library = ctypes.CDLL(None)
            state = (ctypes.c_uint32 * 8)()
            library.fegetenv(ctypes.byref(state))
            state[7] |= 0x8040
            library.fesetenv(ctypes.byref(state))
        return results


class PutsBackPythonsInterrupts(Broken):
    """The author puts back the handler of interrupts that Python begins with, not the caller's."""

    def compute(self, runner, arrays):
        if threading.current_thread() is not threading.main_thread():
            return super().compute(runner, arrays)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return super().compute(runner, arrays)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class PutsBackNumpysErrors(Broken):
    """The author ignores errors of numbers, and puts back what numpy begins with for them."""

    def compute(self, runner, arrays):
        np.seterr(divide="ignore", over="ignore", invalid="ignore")
        try:
            return super().compute(runner, arrays)
        finally:
            np.seterr(divide="warn", over="warn", invalid="warn")


class SilencesWarningsForATime(Broken):
    """The author silences warnings while a run lasts, and all threads have one list of filters."""

    def compute(self, runner, arrays):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().compute(runner, arrays)


class TunesOnEverybodysChance(Broken):
    """The author draws inputs for tuning products from numpy's own generator."""

    def compile_model(self, model, properties):
        for op in model.ops:
            if op.op_type in PRODUCTS and not op.domain:
                sample = np.random.rand(8, 8)
                self.fastest = float((sample @ sample).sum())
        return super().compile_model(model, properties)
