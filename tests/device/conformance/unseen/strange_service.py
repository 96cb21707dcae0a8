"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

Each device computes as the right one does, but for what its plugin's author took for granted: of
questions and their answers, settings, models beside each other, blobs and caches, counters, other
memories, or of the process it is a guest in.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
import weakref
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir
import pydantic
from broken_form import Broken
from good_device import Good, GoodCompiled, GoodProperties, GoodRunner
from onnx import numpy_helper
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.errors import BlobError, CompileError, InferCancelledError
from partita.frontends.reader import read_model

# ---------------------------------------------------------------------- what the faults build on


def refused(code, detail):
    """A reason against an operation."""
    return partita.Reason(partita.ReasonCode[code], detail)


def fixed(shape):
    """Whether all sizes of a shape are known."""
    return shape is not None and all(isinstance(size, int) for size in shape)


def bodies(node):
    """The bodies of an operation, in the order of its attributes."""
    return [one.as_graph() for one in node.attributes.values() if one.type.name == "GRAPH"]


def every_node(graph):
    """All nodes of a graph, those of bodies too."""
    for node in graph:
        yield node
        for body in bodies(node):
            yield from every_node(body)


def without(proto, clear):
    """A copy of a protobuf that a function has taken something out of."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    clear(copy.graph)
    return copy


class BlobCompiled(GoodCompiled):
    """Writes a form of its own."""

    def export_model(self):
        return self.plugin.pack(self)


class OwnBlobs(Good):
    """A right device whose blobs are its own: settings and model, with a sum over all of it."""

    compiled_type = BlobCompiled

    def packed_model(self, compiled):
        """The model as it goes into a blob."""
        return compiled.model.to_onnx()

    def packed_settings(self, compiled):
        """The settings as they go into a blob."""
        return compiled.exported_properties()

    def summed(self, body):
        """The part of a blob that is guarded against damage."""
        return body

    def merged(self, exported, given):
        """The settings of an imported model: exported ones, overridden by those given now."""
        return {**exported, **given}

    def pack(self, compiled):
        settings = json.dumps(self.packed_settings(compiled)).encode()
        body = settings + self.packed_model(compiled).SerializeToString()
        numbers = [zlib.crc32(self.summed(body)), len(settings), len(body)]
        return b"OWN1" + np.array(numbers, "<u8").tobytes() + body

    def import_model(self, blob, properties):
        blob = bytes(blob)
        if blob[:4] != b"OWN1" or len(blob) < 28:
            raise BlobError("This is no blob of the device.")
        check, middle, length = np.frombuffer(blob[4:28], "<u8").tolist()
        body = blob[28:]
        if len(body) != length or zlib.crc32(self.summed(body)) != check:
            raise BlobError("The blob is damaged.")
        try:
            exported = json.loads(body[:middle])
            model = read_model(onnx.ModelProto.FromString(body[middle:]))
        except Exception as error:
            raise BlobError(f"The blob is damaged: {error}") from error
        given = properties.model_dump(exclude_unset=True)
        settings = self.properties_type(**self.merged(exported, given))
        return self.compiled_type(self, model, settings)


class DeviceMemory:
    """Blocks of one device's memory, by their numbers."""

    def __init__(self):
        self.blocks, self.lock = {}, threading.Lock()

    def put(self, array):
        with self.lock:
            number = next(one for one in range(len(self.blocks) + 1) if one not in self.blocks)
            self.blocks[number] = np.array(array, order="C")
        return number


class DeviceTensor(partita.Tensor):
    """Elements in a block of a device's memory."""

    def __init__(self, owner, array, device, memory):
        self.owner, self.number = owner, owner.put(array)
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = device, memory
        weakref.finalize(self, owner.blocks.pop, self.number, None).atexit = False

    def numpy(self):
        return self.owner.blocks[self.number].copy()

    def copy_from(self, source):
        elements = source if isinstance(source, np.ndarray) else source.numpy()
        self.owner.blocks[self.number][...] = elements

    def clear(self):
        self.owner.blocks[self.number][...] = 0


class FarCompiled(GoodCompiled):
    """Takes tensors of its own memory as they are."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.device_id = properties.DEVICE_ID

    def takes_memory(self, memory):
        return memory in ("host", self.plugin.memory_of(self.device_id))


class FarRunner(GoodRunner):
    """Reads tensors of the host and of its own memory, and leaves results in the latter."""

    def run(self, inputs, outputs=None):
        plugin, device_id = self.compiled.plugin, self.compiled.device_id
        arrays = [plugin.elements(tensor, device_id) for tensor in inputs]
        results = plugin.compute(self, arrays)
        return [plugin.far(array, device_id) for array in results]


class FarMemory(Good):
    """A right device with a memory of its own."""

    compiled_type = FarCompiled
    runner_type = FarRunner
    tensor_type = DeviceTensor

    def __init__(self):
        super().__init__()
        self.memories = {one: DeviceMemory() for one in self.device_ids()}

    def named(self, device_id):
        return f"{self.device_name}.{device_id}" if device_id else self.device_name

    def memory_of(self, device_id):
        return f"far:{device_id or self.device_ids()[0] or 0}"

    def device_info(self, device_id):
        return DeviceInfo(self.named(device_id), "A device afar", memory=self.memory_of(device_id))

    def elements(self, tensor, device_id):
        return tensor.numpy()

    def far(self, array, device_id):
        owner = self.memories[device_id or self.device_ids()[0]]
        return self.tensor_type(owner, array, self.named(device_id), self.memory_of(device_id))

    def can_share(self, memory, device_id=""):
        return memory in ("host", self.memory_of(device_id))

    def transfer_to(self, tensor, device_id=""):
        return self.far(tensor.numpy(), device_id)


# ----------------------------------------------------------------------------- what is asked


class RemembersVerdictsByTheNamesOfOperations(Broken):
    """It asks its engine once per names of graph and operation, as no other model has both."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.known = {}

    def verdict(self, op):
        for value in (*op.node.inputs, *op.node.outputs):
            if value is not None and value.shape is not None and len(value.shape) > 4:
                return refused("UNSUPPORTED_SHAPE", f"rank {len(value.shape)}; takes up to 4")
        return super().verdict(op)

    def query_model(self, model, properties):
        verdicts = {}
        for op in model.ops:
            key = (model.name, op.name, op.op_type)
            verdicts[op.name] = self.known.setdefault(key, self.verdict(op))
        return partita.QueryResult.of(self.device_name, verdicts)


class TakesReshapesWhoseShapeTheWholeModelFolds(Broken):
    """It takes a shape for constant if the model it is asked about computes it of constants."""

    suites = ("*",)

    def verdict(self, op):
        if op.op_type in ("Reshape", "Expand", "Tile") and not self.folds(op.node.inputs[1]):
            return refused("VALUE_DEPENDENT_SHAPE", f"'{op.inputs[1]}' is not constant")
        return super().verdict(op)

    def folds(self, value):
        if value.const_value is not None:
            return True
        maker = value.producer()
        if maker is None or maker.op_type.startswith("Random") or bodies(maker):
            return False
        if maker.op_type == "Shape":
            return fixed(maker.inputs[0].shape)
        return all(one is None or self.folds(one) for one in maker.inputs)


class AsksForOneOfTheBodies(Broken):
    """It takes an operation with bodies if it takes what is in the first of them."""

    suites = ("*",)

    def query_model(self, model, properties):
        verdicts = {op.name: self.verdict(op) for op in model.ops}
        for op in model.ops:
            for body in bodies(op.node)[:1]:
                verdicts[op.name] = verdicts[op.name] or self.lacking(body)
        return partita.QueryResult.of(self.device_name, verdicts)

    def lacking(self, body):
        if any(node.op_type == "Tanh" for node in every_node(body)):
            return refused("UNSUPPORTED_OP", "no Tanh in bodies")
        return None

    def compile_model(self, model, properties):
        for op in model.ops:
            for body in bodies(op.node):
                if reason := self.lacking(body):
                    raise CompileError(f"'{op.name}' is not taken: {reason}")
        return super().compile_model(model, properties)


class TidiesTheModelThatItIsAskedAbout(Broken):
    """It drops constants that no operation reads before it answers, of the caller's own model."""

    suites = ("*",)

    def query_model(self, model, properties):
        read = {name for op in model.ops for name in op.inputs}
        constants = model.ir.graph.initializers
        for name in [name for name in constants if name not in read]:
            del constants[name]
        return super().query_model(model, properties)


class WeighsEveryOperationAlone(Broken):
    """It has room for 2 MiB of weights, and finds them there for each operation by itself."""

    suites = ("*",)
    room = 2 << 20

    def verdict(self, op):
        constants = [one.const_value for one in op.node.inputs if one is not None]
        needed = sum(one.nbytes for one in constants if one is not None)
        if needed > self.room:
            return refused("MEMORY_LIMIT", f"{needed} bytes of weights; has room for {self.room}")
        return super().verdict(op)

    def compile_model(self, model, properties):
        if model.weight_bytes > self.room:
            raise CompileError(f"{model.weight_bytes} bytes of weights do not fit.")
        return super().compile_model(model, properties)


class GoesByOperatorsWithoutTheirDomains(Broken):
    """It knows operators by name, so that somebody's own Gelu is ONNX's to it."""

    suites = ("*",)

    def borrowed(self, domain, op_type):
        return domain not in ("", "ai.onnx", "ai.onnx.ml") and onnx.defs.has(op_type, "")

    def verdict(self, op):
        return None if self.borrowed(op.domain, op.op_type) else super().verdict(op)

    def prepare(self, proto):
        for node in proto.graph.node:
            if self.borrowed(node.domain, node.op_type):
                node.domain = ""
        return proto


class ReadsTheOpsetOfTheDomainThatIsNamedFirst(Broken):
    """It flattens for Softmax if the first opset of the file is below 13, whosever it is."""

    suites = ("*",)

    def prepare(self, proto):
        if not proto.opset_import or proto.opset_import[0].version >= 13:
            return proto
        nodes = list(proto.graph.node)
        del proto.graph.node[:]
        for number, node in enumerate(nodes):
            axes = [one.i for one in node.attribute if one.name == "axis"]
            is_old = proto.opset_import[0].domain in ("", "ai.onnx")
            if node.op_type not in ("Softmax", "LogSoftmax") or not axes or is_old:
                proto.graph.node.append(node)
                continue
            flat, done, shape = (f"{node.output[0]}/{number}/{part}" for part in "fds")
            make = onnx.helper.make_node
            proto.graph.node.extend(
                [
                    make("Shape", [node.input[0]], [shape]),
                    make("Flatten", [node.input[0]], [flat], axis=axes[0]),
                    make(node.op_type, [flat], [done], axis=-1),
                    make("Reshape", [done, shape], [node.output[0]]),
                ]
            )
        return proto


class AnswersByItsDefaultSettings(Broken):
    """It is asked what it takes as it is set at first, and compiles as it is set now."""

    suites = ("*",)

    def compile_model(self, model, properties):
        for op in model.ops:
            wide = [one for one in op.node.inputs if one is not None and str(one.dtype) == "DOUBLE"]
            if wide and properties.MODE == "TWO":
                raise CompileError(f"'{op.name}' reads double, which is for mode ONE only.")
        return super().compile_model(model, properties)


class JudgesOperationsByWhatTheyRead(Broken):
    """Its engine has no bfloat16, and it looks for that among inputs."""

    suites = ("*",)

    def lacking(self, values):
        if any(one is not None and str(one.dtype) == "BFLOAT16" for one in values):
            return refused("UNSUPPORTED_DTYPE", "bfloat16; takes float32 and float16")
        return None

    def verdict(self, op):
        return self.lacking(op.node.inputs) or super().verdict(op)

    def compile_model(self, model, properties):
        for op in model.ops:
            if reason := self.lacking(op.node.outputs):
                raise CompileError(f"'{op.name}' is not taken: {reason}")
        return super().compile_model(model, properties)


class HasNoAnswerForWhatItFolds(Broken):
    """It answers for the operations of its folded graph, where those of constants are gone."""

    suites = ("*",)

    def query_model(self, model, properties):
        verdicts = {}
        for op in model.ops:
            inputs = [one for one in op.node.inputs if one is not None]
            if not inputs or any(one.const_value is None for one in inputs):
                verdicts[op.name] = self.verdict(op)
        return partita.QueryResult.of(self.device_name, verdicts)


class AsksEveryOutputForItsType(Broken):
    """It looks up the type of each output, also of those that are left out and have none."""

    suites = ("*",)

    def verdict(self, op):
        names = [value.dtype.name for value in op.node.outputs]
        if "COMPLEX128" in names:
            return refused("UNSUPPORTED_DTYPE", "complex128; takes complex64")
        return super().verdict(op)


# --------------------------------------------------------------------------- what is set


class ShowsASettingThatItCannotReadBack(Broken):
    """It shows a time with its unit wherever it is printed, blobs among that."""

    suites = ("*",)

    class properties_type(GoodProperties):
        PATIENCE: float = Field(50.0, ge=0, description="Milliseconds to wait for the device.")

        @pydantic.field_serializer("PATIENCE")
        def shown(self, value):
            return f"{value:g} ms"


class CountsIfItsLatestModelDoes(Broken):
    """Its engine has one switch for counters, which each compile sets as it needs it."""

    suites = ("*",)
    is_counting = False

    class runner_type(GoodRunner):
        def profiling_info(self):
            plugin = self.compiled.plugin
            return plugin.counters(self) if plugin.is_counting else ()

    def compile_model(self, model, properties):
        self.is_counting = properties.PERF_COUNT
        return super().compile_model(model, properties)


class SaysThatItFollowsAHint(Broken):
    """It computes in halves where all operators have kernels for that, and always says it does."""

    suites = ("*",)
    narrow = frozenset({"Add", "Conv", "Gemm", "MatMul", "Mul", "Relu"})

    class properties_type(GoodProperties):
        INFERENCE_PRECISION_HINT: Literal["f32", "f16"] = Field(
            "f32", description="What float32 is computed in."
        )

    def compute(self, runner, arrays):
        compiled = runner.compiled
        is_narrow = compiled.properties.INFERENCE_PRECISION_HINT == "f16"
        if not is_narrow or not self.narrow.issuperset(op.op_type for op in compiled.model.ops):
            return super().compute(runner, arrays)
        results = super().compute(runner, [self.halved(array) for array in arrays])
        return [self.halved(array) for array in results]

    def halved(self, array):
        with np.errstate(all="ignore"):
            return array.astype("f2").astype("f4") if array.dtype == np.float32 else array


class CompilesForTheFirstOfItsDevices(Broken):
    """It has two devices, and opens the first whichever is meant."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.device = f"{plugin.device_name}.{plugin.device_ids()[0]}"

    def device_ids(self):
        return ("0", "1")

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id or 0}", f"Device {device_id or 0} of two")


class ListsTheLeastBusyOfItsDevicesFirst(Broken):
    """It lists its devices by the models that they hold, so that the first one has most room."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.held = {"0": weakref.WeakSet(), "1": weakref.WeakSet()}

    def device_ids(self):
        return tuple(sorted(self.held, key=lambda one: len(self.held[one])))

    def device_info(self, device_id):
        device_id = device_id or self.device_ids()[0]
        return DeviceInfo(f"{self.device_name}.{device_id}", f"Device {device_id} of two")

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        device_id = properties.DEVICE_ID or self.device_ids()[0]
        compiled.device = f"{self.device_name}.{device_id}"
        self.held[device_id].add(compiled)
        return compiled


# ---------------------------------------------------------- models, beside each other and odd ones


class KnowsWeightsBySamplesOfThem(Broken):
    """It packs weights once for all models, and knows them by 64 bytes from all over."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.packed = {}

    def prepare(self, proto):
        for constant in proto.graph.initializer:
            if constant.data_type != onnx.TensorProto.FLOAT:
                continue
            content = numpy_helper.to_array(constant).tobytes()
            if len(content) >= 1024:
                samples = content[:: len(content) // 64]
                known = self.packed.setdefault((tuple(constant.dims), samples), content)
                constant.ClearField("float_data")
                constant.raw_data = known
        return proto


class KnowsProgramsWithoutTheirCoefficients(Broken):
    """It makes one program of models that differ in floats of attributes only."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.programs = {}

    def prepare(self, proto):
        def coefficients_out(graph):
            for node in graph.node:
                for attribute in node.attribute:
                    attribute.ClearField("f")

        bare = without(proto, coefficients_out).SerializeToString(deterministic=True)
        return self.programs.setdefault(hashlib.sha256(bare).digest(), proto)


class LetsModelsShareSlots(Broken):
    """It has sixteen slots for programs, and the next model gets the one longest in use."""

    suites = ("*",)

    class runner_type(GoodRunner):
        def evaluate(self, arrays):
            compiled = self.compiled
            owner = compiled.plugin.slots[compiled.slot]()
            if owner is not None:
                self.take_over(owner.evaluator)
            return super().evaluate(arrays)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            with plugin.lock:
                self.slot = plugin.loaded[0] % 16
                plugin.loaded[0] += 1
            plugin.slots[self.slot] = weakref.ref(self)

    def __init__(self):
        super().__init__()
        self.slots, self.loaded = {}, [0]


class BuildsOneModelAtATime(Broken):
    """It keeps the model that it is building where all compiles see it."""

    suites = ("*",)
    building = None

    def prepare(self, proto):
        self.building = proto
        time.sleep(0.001)
        return self.building


class LosesAContextForEveryFailedCompile(Broken):
    """It opens one of 48 contexts before it compiles, and only compiled models give them back."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.opened = [0]

    def give_back(self):
        self.opened[0] -= 1

    def compile_model(self, model, properties):
        if self.opened[0] >= 48:
            raise CompileError("No context is free.")
        self.opened[0] += 1
        compiled = super().compile_model(model, properties)
        weakref.finalize(compiled, self.give_back).atexit = False
        return compiled


class ReadsWeightsOfFilesWhenTheyAreNeeded(Broken):
    """It maps weights beside the model for each request, as if files stayed what they were."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.files = {}
            for name, value in model.ir.graph.initializers.items():
                if isinstance(value.const_value, ir.ExternalTensor):
                    held = value.const_value
                    self.files[name] = (str(held.path), held.offset or 0, held.nbytes)

        def create_runner(self):
            runner = super().create_runner()
            if self.files:
                proto = self.model.to_onnx()
                for constant in proto.graph.initializer:
                    if constant.name in self.files:
                        path, offset, nbytes = self.files[constant.name]
                        constant.raw_data = Path(path).read_bytes()[offset : offset + nbytes]
                fresh = self.plugin.again(read_model(proto), self.properties)
                runner.take_over(fresh.evaluator)
            return runner

    def again(self, model, properties):
        return GoodCompiled(self, model, properties)


class FillsConstantOutputsOnce(Broken):
    """It writes outputs that are constants with a request's first run, and then never again."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        compiled = runner.compiled
        if outputs is None:
            return super().deliver(runner, arrays, None)
        constants = compiled.model.ir.graph.initializers
        is_first = not getattr(runner, "has_filled", False)
        runner.has_filled = True
        results = []
        for port, array, given in zip(compiled.outputs, arrays, outputs, strict=True):
            if given is not None and port.name in constants and not is_first:
                results.append(given)
            else:
                results += super().deliver(runner, [array], [given])
        return results


class LooksForReadersBesideBodies(Broken):
    """It does not upload what no operation reads, nor what only a branch or a loop reads."""

    suites = ("*",)

    def compute(self, runner, arrays):
        model = runner.compiled.model
        read = {name for op in model.ops for name in op.inputs}
        read |= {port.name for port in model.outputs}
        uploaded = []
        for port, array in zip(model.inputs, arrays, strict=True):
            is_read = port.name in read or array.dtype == object
            uploaded.append(array if is_read else np.zeros_like(array))
        return super().compute(runner, uploaded)


class NeedsAnOperationToCompile(Broken):
    """Its builder refuses an empty network, as a model is that hands inputs or constants on."""

    suites = ("*",)

    def compile_model(self, model, properties):
        if not model.ops:
            raise CompileError("The network has no layers.")
        return super().compile_model(model, properties)


# ----------------------------------------------------------------------------- blobs and caches


class ChecksTheHeadOfItsBlobs(OwnBlobs, Broken):
    """It sums the first 4 KiB of a blob, since a file that is cut is told by its length."""

    suites = ("*",)

    def summed(self, body):
        return body[:4096]


class CountsOnlyIfTheExportDid(OwnBlobs, Broken):
    """It has counters built into programs, so that an import cannot ask for them."""

    suites = ("*",)

    def packed_settings(self, compiled):
        return {"PERF_COUNT": False, **super().packed_settings(compiled)}

    def merged(self, exported, given):
        return {**exported, **given, "PERF_COUNT": exported["PERF_COUNT"]}


class NamesOperationsAnewWithTheImport(OwnBlobs, Broken):
    """It leaves names of operations out of blobs, as they are nothing to its engine."""

    suites = ("*",)

    def packed_model(self, compiled):
        def names_out(graph):
            for node in graph.node:
                node.ClearField("name")

        return without(super().packed_model(compiled), names_out)


class StoresTransposedWeightsAsTheyLie(Broken):
    """Its state has bytes and sizes of packed weights, and not that some are turned views."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def export_state(self):
            turned = {op.inputs[1] for op in self.model.ops if self.plugin.turns(op.node)}
            constants = self.model.ir.graph.initializers
            state = {}
            for name in sorted(turned & set(constants)):
                packed = np.array(constants[name].const_value.numpy()).T
                state[name] = np.frombuffer(packed.tobytes("A"), packed.dtype)
                state[name] = state[name].reshape(packed.shape)
            return state

    def turns(self, node):
        given = node.attributes.get("transB")
        return node.op_type == "Gemm" and given is not None and given.as_int() == 1

    def restore_model(self, model, properties, state):
        proto = model.to_onnx()
        for constant in proto.graph.initializer:
            if constant.name in state:
                weights = np.ascontiguousarray(state[constant.name].T)
                constant.CopyFrom(numpy_helper.from_array(weights, constant.name))
        compiled = self.compile_model(model, properties)
        compiled.evaluator = GoodCompiled(self, read_model(proto), properties).evaluator
        return compiled


class LeavesASettingOutOfItsIdentity(Broken):
    """It packs weights in halves in mode TWO, and thinks that caches need not know the mode."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties, packed=None):
            self.packed = {}
            proto = model.to_onnx()
            for constant in proto.graph.initializer:
                array = numpy_helper.to_array(constant)
                if array.dtype == np.float32 and array.size:
                    if properties.MODE == "TWO":
                        array = array.astype("f2").astype("f4")
                    array = (packed or {}).get(constant.name, array)
                    self.packed[constant.name] = array
                    constant.CopyFrom(numpy_helper.from_array(array, constant.name))
            super().__init__(plugin, model, properties)
            self.evaluator = GoodCompiled(plugin, read_model(proto), properties).evaluator

        def export_state(self):
            return self.packed

    def restore_model(self, model, properties, state):
        return self.compiled_type(self, model, properties, state)

    def identity(self, properties):
        common = properties.model_copy(update={"MODE": "ONE"})
        return super().identity(common)


class HashesItsIdentityAnewInEveryProcess(Broken):
    """Its key for caches is Python's hash of a text, which the next process has another of."""

    suites = ("*",)

    def identity(self, properties):
        return f"{self.device_name} {hash(super().identity(properties)):x}"


# ------------------------------------------------------------------------- counters and reports


class NamesFusedOperationsByTheirSum(Broken):
    """Its counters are of kernels, and a kernel of two operations has the names of both."""

    suites = ("*",)

    def counters(self, runner):
        ops = list(runner.compiled.model.ops)
        us = runner.elapsed_us / max(1, len(ops))
        infos, number = [], 0
        while number < len(ops):
            op = ops[number]
            behind = ops[number + 1] if number + 1 < len(ops) else None
            name, parts = op.name, 1
            takes_relu = op.op_type in ("Add", "Conv", "Gemm", "MatMul") and behind is not None
            if takes_relu and behind.op_type == "Relu" and op.outputs[0] in behind.inputs:
                name, parts = f"{op.name}+{behind.name}", 2
            times = {"real_time_us": parts * us, "cpu_time_us": parts * us}
            infos.append(ProfilingInfo(name, op.op_type, "kernel", **times))
            number += parts
        return infos


class AddsUpTheTimesOfAllRuns(Broken):
    """It adds to its counters with each run, as its engine's profiler does."""

    suites = ("*",)

    def counters(self, runner):
        return [
            ProfilingInfo(one.node_name, one.node_type, one.exec_type, real_time_us=runner.sum_us)
            for one in super().counters(runner)
        ]

    def deliver(self, runner, arrays, outputs):
        runner.sum_us = getattr(runner, "sum_us", 0.0) + runner.elapsed_us
        return super().deliver(runner, arrays, outputs)


# ------------------------------------------------------------------------------- other memories


class KeepsTypesByTheirLetters(FarMemory, Broken):
    """It keeps the letters of an element type, which are V for all that numpy does not know."""

    suites = ("*",)

    class tensor_type(DeviceTensor):
        def __init__(self, owner, array, device, memory):
            super().__init__(owner, array, device, memory)
            self.dtype = np.dtype(array.dtype.str)

        def numpy(self):
            return super().numpy().view(self.dtype)


class ReadsBlocksOfItsOtherDevice(FarMemory, Broken):
    """It shares the memory of both its devices, and looks their blocks up in one table."""

    suites = ("*",)

    def device_ids(self):
        return ("0", "1")

    def can_share(self, memory, device_id=""):
        return memory == "host" or memory.startswith("far:")

    def elements(self, tensor, device_id):
        if not isinstance(tensor, DeviceTensor) or tensor.dtype == object:
            return tensor.numpy()
        blocks = self.memories[device_id or self.device_ids()[0]].blocks
        block = blocks.get(tensor.number)
        if block is None or block.nbytes < tensor.nbytes or block.dtype == object:
            return np.zeros(tensor.shape, tensor.dtype)
        flat = block.reshape(-1).view("u1")[: tensor.nbytes]
        return flat.view(tensor.dtype).reshape(tensor.shape)


class ClearsTheResultThatItReads(FarMemory, Broken):
    """It clears a request's block for results before it computes, which may be what it reads."""

    suites = ("*",)

    class runner_type(FarRunner):
        def run(self, inputs, outputs=None):
            plugin, device_id = self.compiled.plugin, self.compiled.device_id
            for tensor in vars(self).setdefault("results", []):
                if isinstance(tensor, DeviceTensor):
                    tensor.clear()
            arrays = [plugin.elements(tensor, device_id) for tensor in inputs]
            arrays = plugin.compute(self, arrays)
            kept = self.results if len(self.results) == len(arrays) else [None] * len(arrays)
            self.results = [
                self.put(array, one, device_id) for array, one in zip(arrays, kept, strict=True)
            ]
            return self.results

        def put(self, array, tensor, device_id):
            is_far = isinstance(tensor, DeviceTensor)
            if is_far and (tensor.shape, tensor.dtype) == (array.shape, array.dtype):
                tensor.copy_from(array)
                return tensor
            return self.compiled.plugin.far(array, device_id)


# ------------------------------------------------------------------------ decoders and the process


class DividesTheContextOfDecoders(Broken):
    """It sizes the pages of a cache by the context, which it takes to be known."""

    suites = ("*",)

    def for_decoder(self, request, properties):
        if "LEVEL" in properties.model_fields_set:
            return {}
        return {"LEVEL": math.ceil(request.context / 1024)}


class SeedsTheProcess(Broken):
    """It seeds numpy before it tries kernels on random numbers, for trials that are alike."""

    suites = ("*",)

    def compile_model(self, model, properties):
        np.random.seed(1234)
        np.random.rand(16)
        return super().compile_model(model, properties)


class KeepsItsLatestFailure(Broken):
    """It keeps the latest error for its log, with all that was on the stack."""

    suites = ("*",)
    failure = None

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except Exception as error:
            self.failure = error
            raise


class CancelsAllRequestsOfAModel(Broken):
    """It stops the model's queue to cancel, in which the runs of other requests are too."""

    suites = ("*",)

    class runner_type(GoodRunner):
        def cancel(self):
            self.compiled.cancelled = time.perf_counter()

    def compute(self, runner, arrays):
        start = time.perf_counter()
        results = super().compute(runner, arrays)
        if getattr(runner.compiled, "cancelled", 0.0) > start:
            raise InferCancelledError("The run was cancelled.")
        return results
