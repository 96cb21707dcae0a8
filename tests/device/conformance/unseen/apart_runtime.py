"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import tempfile
import threading
import time
import weakref
import zlib

import numpy as np
import onnx
import onnx_ir as ir
from good_device import Good, GoodCompiled, GoodProperties, GoodRunner, zeros
from onnx import numpy_helper
from pydantic import field_validator

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_model import DeviceModel
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import BlobError, CompileError, InferCancelledError, InferError, ModelError
from partita.frontends.reader import read_model
from partita.tensors.sequence_values import boxed, unboxed
from partita_reference.evaluator import ReferenceModel

NO_REPEATS = frozenset({"If", "Loop", "Scan", "Bernoulli", "Multinomial"})


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


def is_plain(array):
    """Whether an array holds numbers."""
    return not array.dtype.hasobject


# ------------------------------------------------------------------------- memory


class SizesSlotsByFourBytes(Broken):
    """The author's arena gives each input a slot of four bytes an element, as all of his had."""

    def compute(self, runner, arrays):
        starts = np.cumsum([0, *(4 * array.size for array in arrays)])
        ends = [start + array.nbytes for start, array in zip(starts, arrays, strict=False)]
        arena = bytearray(max(ends, default=0))
        slots = []
        for start, end, array in zip(starts, ends, arrays, strict=False):
            if is_plain(array):
                arena[start:end] = array.tobytes()
            slots.append((start, end))
        read = [
            np.frombuffer(bytes(arena[start:end]), array.dtype).reshape(array.shape)
            if is_plain(array)
            else array
            for (start, end), array in zip(slots, arrays, strict=True)
        ]
        return super().compute(runner, read)


class EndsRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.kept = {}


class ComparesEndsOfInputs(Broken):
    """The author took large inputs whose first and last cache lines are the same for unchanged."""

    runner_type = EndsRunner

    def compute(self, runner, arrays):
        return super().compute(runner, [self.uploaded(runner, *pair) for pair in enumerate(arrays)])

    def uploaded(self, runner, index, array):
        if not is_plain(array) or array.nbytes <= 128:
            return array
        data = array.tobytes()
        key = (array.shape, array.dtype, data[:64], data[-64:])
        if index not in runner.kept or runner.kept[index][0] != key:
            runner.kept[index] = key, array.copy()
        return runner.kept[index][1]


def clear_behind(array, width):
    """Zeros up to the next multiple of a width, as far as the memory's owner has room."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    end = array.ctypes.data + array.nbytes
    room = owner.ctypes.data + owner.nbytes - end
    count = min(-array.nbytes % width, room)
    if count > 0 and owner.flags.c_contiguous and owner.flags.writeable:
        ctypes.memset(end, 0, count)


class RoundsStoresUpToVectors(Broken):
    """The author's last store is a whole vector, since his own buffers end behind a multiple."""

    def deliver(self, runner, arrays, outputs):
        result = super().deliver(runner, arrays, outputs)
        for given in outputs or ():
            if given is not None and is_plain(given.numpy()):
                clear_behind(given.numpy(), 16)
        return result


class AddsToGivenOutputs(Broken):
    """The author's products add up where the result lies, which his allocator had made zeros."""

    def deliver(self, runner, arrays, outputs):
        makers = {name: op.op_type for op in runner.compiled.model.ops for name in op.outputs}
        sums = []
        for port, array, given in zip(
            runner.compiled.outputs, arrays, outputs or [None] * len(arrays), strict=True
        ):
            adds = given is not None and makers.get(port.name) in ("MatMul", "Gemm", "Conv")
            with np.errstate(all="ignore"):
                sums.append(given.numpy() + array if adds else array)
        return super().deliver(runner, sums, outputs)


class ReturnsChannelsLastViews(Broken):
    """The author hands out images as they lie, channels last, under the shape of the port."""

    def deliver(self, runner, arrays, outputs):
        seen = [
            np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
            if array.ndim == 4
            else array
            for array in arrays
        ]
        return super().deliver(runner, seen, outputs)


class FarTensor(partita.Tensor):
    """An array in the memory of the device."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = "BROKEN", "broken:0"

    def numpy(self):
        return np.array(self.array, order="C")


class FarCompiled(GoodCompiled):
    def takes_memory(self, memory):
        return memory in ("host", "broken:0")


class Far(Broken):
    """A frame: a device with memory of its own."""

    compiled_type = FarCompiled

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A broken device", memory="broken:0")

    def can_share(self, memory, device_id=""):
        return memory == "broken:0"

    def transfer_to(self, tensor, device_id=""):
        return FarTensor(np.array(tensor.numpy(), order="C"))


class UploadsScalarsAsVectors(Far):
    """The author takes what ascontiguousarray() returns for the array's own shape."""

    def transfer_to(self, tensor, device_id=""):
        return FarTensor(np.ascontiguousarray(tensor.numpy()).copy())


# ------------------------------------------------------------------------- sharing


class AliasesEqualOutputs(Broken):
    """The author hands out one buffer for outputs whose bytes are the same."""

    def deliver(self, runner, arrays, outputs):
        found = {}
        same = [
            found.setdefault((array.shape, array.dtype, array.tobytes()), array)
            if is_plain(array) and array.size
            else array
            for array in arrays
        ]
        return super().deliver(runner, same, outputs)


class HandsSequenceItemsOn(Broken):
    """The author moves the items of a sequence into another one instead of copying them."""

    def compute(self, runner, arrays):
        given = [
            item
            for array in arrays
            for item in (unboxed(array) if isinstance(unboxed(array), list) else ())
            if isinstance(item, np.ndarray)
        ]
        results = []
        for result in super().compute(runner, arrays):
            items = unboxed(result)
            if isinstance(items, list):
                result = boxed([self.moved(item, given) for item in items])
            results.append(result)
        return results

    def moved(self, item, given):
        for one in given:
            if (one.shape, one.dtype) == (item.shape, item.dtype) and np.array_equal(one, item):
                return one
        return item


class LendsOnePinnedBlock(Broken):
    """The author pins one block for each size, and lends it to whoever asks for that size."""

    def __init__(self):
        super().__init__()
        self.blocks = {}

    def host_memory(self, nbytes, device_id=""):
        with self.lock:
            return self.blocks.setdefault(nbytes, np.zeros(nbytes, np.uint8))


class DeduplicatesWeightsByByteSum(Broken):
    """The author stores weights of one form once if their checksums, sums of bytes, are equal."""

    def prepare(self, proto):
        stored = {}
        for weight in proto.graph.initializer:
            if weight.data_type == onnx.TensorProto.STRING:
                continue
            data = numpy_helper.to_array(weight).tobytes()
            total = int(np.frombuffer(data, np.uint8).sum())
            first = stored.setdefault((weight.data_type, tuple(weight.dims), total), weight)
            if first is not weight:
                name = weight.name
                weight.CopyFrom(first)
                weight.name = name
        return proto


# ----------------------------------------------------------------------- lifetimes


class RingCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.rings, self.next = {}, 0


class RotatesFourOutputBuffers(Broken):
    """The author's model has four buffers for each output, enough for the requests he had."""

    compiled_type = RingCompiled

    def deliver(self, runner, arrays, outputs):
        compiled = runner.compiled
        with self.lock:
            turn, compiled.next = compiled.next, (compiled.next + 1) % 4
            lent = [
                compiled.rings.setdefault(
                    (index, turn, array.shape, array.dtype), np.empty(array.shape, array.dtype)
                )
                if is_plain(array)
                else array
                for index, array in enumerate(arrays)
            ]
        for buffer, array in zip(lent, arrays, strict=True):
            if buffer is not array:
                buffer[...] = array
        return super().deliver(runner, lent, outputs)


class GivenRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.given = {}


class RemembersGivenOutputs(Broken):
    """The author binds outputs to the first tensors that he is given, and never looks again."""

    runner_type = GivenRunner

    def deliver(self, runner, arrays, outputs):
        targets = []
        for index, (array, given) in enumerate(
            zip(arrays, outputs or [None] * len(arrays), strict=True)
        ):
            if given is not None:
                first = runner.given.setdefault(index, given)
                if first.shape == array.shape and first.dtype == array.dtype:
                    given = first
            targets.append(given)
        return super().deliver(runner, arrays, targets)


class LazyTensor(FarTensor):
    """A tensor whose elements are brought when they are asked for."""

    def __init__(self, source):
        super().__init__(source.numpy())
        self.is_there = False

    def numpy(self):
        if not self.is_there:
            self.array, self.is_there = self.array.copy(), True
        return super().numpy()


class UploadsOnFirstUse(Far):
    """The author's uploads are queued, and begin when the first kernel needs the tensor."""

    def transfer_to(self, tensor, device_id=""):
        return LazyTensor(tensor)


class LazyCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        self.plugin = plugin
        DeviceModel.__init__(self, model.clone(), properties, plugin.device_name)
        self.evaluator = None

    def create_runner(self):
        with self.plugin.lock:
            if self.evaluator is None:
                made = ReferenceModel(self.model, self.properties, self.device)
                self.evaluator = made.evaluator
        return super().create_runner()


class ReadsWeightsAtFirstRequest(Broken):
    """The author puts the weights off until a request needs them, files that are mapped too."""

    compiled_type = LazyCompiled


class OnceBound(BoundCall):
    """A call that runs, of which rebinding moves the first input alone."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), outputs

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)

    def rebind(self, inputs):
        self.inputs[:1] = inputs[:1]
        return True


class OnceBoundRunner(GoodRunner):
    def bind(self, inputs, outputs, scratch=None):
        return OnceBound(self, inputs, outputs)


class RebindsFirstInputOnly(Broken):
    """The author patches one address in recorded commands: that of the image, the first input."""

    runner_type = OnceBoundRunner


class RecordedCall(BoundCall):
    """A call in which small whole numbers are what they were when it was recorded."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.outputs = runner, outputs
        self.inputs = [self.recorded(tensor) for tensor in inputs]

    def recorded(self, tensor):
        is_small = tensor.dtype == np.int64 and tensor.size <= 16
        return partita.HostTensor(tensor.numpy().copy()) if is_small else tensor

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class RecordedRunner(GoodRunner):
    def bind(self, inputs, outputs, scratch=None):
        return RecordedCall(self, inputs, outputs)


class RecordsSmallIntegersWithTheCommands(Broken):
    """The author's graphs of commands hold few whole numbers, read on the host, as they were."""

    runner_type = RecordedRunner


class NotedRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.ticket, self.last = 0, None


class TakesTicketZeroForNone(Broken):
    """The author numbers submissions with a byte, of which 0 means that nothing was submitted."""

    runner_type = NotedRunner

    def compute(self, runner, arrays):
        runner.ticket = (runner.ticket + 1) % 256
        results = super().compute(runner, arrays)
        last, shapes = runner.last or [], [array.shape for array in results]
        if runner.ticket == 0 and shapes == [array.shape for array in last]:
            return [array.copy() for array in last]  # nobody waits: what the buffers hold
        runner.last = [array.copy() for array in results]
        return results


class ClosesTheDriverWithAnyCore(Broken):
    """The author closes the driver, of which a process has one, when a plugin is collected."""

    is_open = False
    has_compiled = False

    def compile_model(self, model, properties):
        ClosesTheDriverWithAnyCore.is_open = self.has_compiled = True
        return super().compile_model(model, properties)

    def compute(self, runner, arrays):
        if not ClosesTheDriverWithAnyCore.is_open:
            raise InferError("The driver is closed.")
        return super().compute(runner, arrays)

    def __del__(self):
        if self.has_compiled:
            ClosesTheDriverWithAnyCore.is_open = False


# -------------------------------------------------------------------------- shapes


class PlannedCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.plans = {}


class PlansByElementCount(Broken):
    """The author finds plans of runs by how many elements the inputs have, not by their shapes."""

    compiled_type = PlannedCompiled

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        key = tuple((array.ndim, array.size) for array in arrays)
        plans = runner.compiled.plans
        if len(plans) > 64:
            plans.clear()
        plan = plans.setdefault(key, [result.shape for result in results])
        return [
            result.reshape(shape) if result.size == np.prod(shape, dtype=int) else result
            for result, shape in zip(results, plan, strict=True)
        ]


class PadsBatchesToPowersOfTwo(Broken):
    """The author compiles for batches of 1, 2, 4, ..., and takes each row for one of its own."""

    def compute(self, runner, arrays):
        ports = runner.compiled.inputs
        found = next(
            (port for port in ports if port.shape and isinstance(port.shape[0], str)), None
        )
        if found is None or not arrays[found.index].size:
            return super().compute(runner, arrays)
        symbol, size = found.shape[0], arrays[found.index].shape[0]
        whole = 1 << (size - 1).bit_length()

        def is_batch(port):
            return bool(port.shape) and port.shape[0] == symbol

        padded = [
            np.concatenate([array, zeros(np.repeat(array[:1], whole - size, axis=0))])
            if is_batch(port)
            else array
            for port, array in zip(ports, arrays, strict=True)
        ]
        try:
            results = super().compute(runner, padded)
        except InferError:
            return super().compute(runner, arrays)
        return [
            array[:size].copy() if is_batch(port) and array.shape[0] == whole else array
            for port, array in zip(runner.compiled.outputs, results, strict=True)
        ]


class SkipsRunsWithoutElements(Broken):
    """The author launches nothing if an input has no elements, and leaves zeros in the outputs."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(is_plain(array) and not array.size for array in arrays):
            return [boxed(zeros(unboxed(result))) for result in results]
        return results


class FillingCall(BoundCall):
    """A call that leaves its outputs as long as they were."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        results = self.runner.run(self.inputs)
        for result, output in zip(results, self.outputs, strict=True):
            source, target = result.numpy().reshape(-1), output.numpy().reshape(-1)
            count = min(source.size, target.size)
            target[:count] = source[:count]


class FillingRunner(GoodRunner):
    def bind(self, inputs, outputs, scratch=None):
        return FillingCall(self, inputs, outputs)


class FillsBoundOutputsAsFarAsTheyGo(Broken):
    """The author's bound calls take shapes of outputs to follow from those of the inputs."""

    runner_type = FillingRunner


# ------------------------------------------------------------------------- threads


class StagedCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.staging = {}


class SharesStagingPerShape(Broken):
    """The author's model has one staging buffer per input and shape, whichever request uploads."""

    compiled_type = StagedCompiled

    def compute(self, runner, arrays):
        staged = [self.staged(runner.compiled.staging, *pair) for pair in enumerate(arrays)]
        time.sleep(0.0005)  # until the upload has ended
        return super().compute(runner, staged)

    def staged(self, staging, index, array):
        if not is_plain(array):
            return array
        if len(staging) > 32:
            staging.clear()
        buffer = staging.setdefault((index, array.shape, array.dtype), np.empty_like(array))
        buffer[...] = array
        return buffer


class GivesEachThreadAContext(Broken):
    """The author's driver has 24 contexts, one for each thread that ever ran something."""

    def __init__(self):
        super().__init__()
        self.contexts = set()

    def compute(self, runner, arrays):
        with self.lock:
            self.contexts.add(threading.get_native_id())
            if len(self.contexts) > 24:
                self.contexts.discard(threading.get_native_id())
                raise InferError("The driver has no context left.")
        return super().compute(runner, arrays)


class KeepsTheModelBeingCompiled(Broken):
    """The author's compiler is one object per plugin that holds the model it works on."""

    current = None

    def compile_model(self, model, properties):
        self.current = model
        time.sleep(0.002)  # until the driver's compiler is loaded
        return super().compile_model(self.current, properties)


# --------------------------------------------------------------------------- async


class AskedCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.asked = 0


class AskingRunner(GoodRunner):
    def cancel(self):
        self.compiled.asked += 1


class CancelsAllRequests(Broken):
    """The author stops the queue of the model, in which the runs of other requests are as well."""

    compiled_type = AskedCompiled
    runner_type = AskingRunner

    def compute(self, runner, arrays):
        before = runner.compiled.asked
        results = super().compute(runner, arrays)
        if runner.compiled.asked != before:
            raise InferCancelledError("The queue was stopped.")
        return results


class StoppedRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.is_stopped = False

    def cancel(self):
        self.is_stopped = True


class RemembersCancellation(Broken):
    """The author asks whether to stop where a run starts, and takes the wish back only there."""

    runner_type = StoppedRunner

    def compute(self, runner, arrays):
        if runner.is_stopped:
            runner.is_stopped = False
            raise InferCancelledError("The run was stopped.")
        return super().compute(runner, arrays)


# -------------------------------------------------------------------------- errors


class ReportsErrorsOfOthers(Broken):
    """The author's driver has one status for all; who failed clears it when it runs again."""

    def __init__(self):
        super().__init__()
        self.status = None

    def compute(self, runner, arrays):
        if self.status is not None and self.status[0]() in (runner, None):
            self.status = None
        try:
            results = super().compute(runner, arrays)
        except InferError as error:
            self.status = weakref.ref(runner), str(error)
            raise
        if self.status is not None:
            raise InferError(f"The driver reports: {self.status[1]}")
        return results


class LosesASlotPerFailure(Broken):
    """The author gives the slot of a run back behind its kernels, which a failure never reaches."""

    def __init__(self):
        super().__init__()
        self.slots = threading.Semaphore(16)

    def compute(self, runner, arrays):
        if not self.slots.acquire(timeout=0.5):
            raise InferError("The device's queue is full.")
        results = super().compute(runner, arrays)
        self.slots.release()
        return results


class LastRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.read, self.results = None, None


class AnswersFailuresWithLastResults(Broken):
    """The author computes nothing for the inputs before, which he notes ahead of the run."""

    runner_type = LastRunner

    def compute(self, runner, arrays):
        if not all(map(is_plain, arrays)) or any(
            op.op_type in NO_REPEATS or op.op_type.startswith("Random")
            for op in runner.compiled.model.ops
        ):
            return super().compute(runner, arrays)
        read = [(array.shape, array.dtype, array.tobytes()) for array in arrays]
        if read != runner.read or runner.results is None:
            runner.read = read
            runner.results = super().compute(runner, arrays)
        return [array.copy() for array in runner.results]


# ---------------------------------------------------------------------- properties


class ClampedProperties(GoodProperties):
    """The highest level is what the hardware has."""

    @field_validator("LEVEL")
    @classmethod
    def clamped(cls, level):
        return min(level, 9)


class ClampsLevels(Broken):
    """The author takes a level that is too high for the highest, as his command line did."""

    properties_type = ClampedProperties


class ReportsFreeMemory(Broken):
    """The author asks the driver how much memory there is, and gets what is left of it."""

    def __init__(self):
        super().__init__()
        self.models = weakref.WeakSet()

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.models.add(made)
        return made

    def device_info(self, device_id):
        used = sum(made.model.weight_bytes for made in self.models)
        return DeviceInfo(self.device_name, "A broken device", memory_bytes=(1 << 30) - used)


# --------------------------------------------------------------------------- query


def reads(op, name):
    """Whether an operation reads a value of an element type."""
    types = [value.dtype for value in op.node.inputs if value is not None]
    return any(dtype is not None and dtype.name == name for dtype in types)


class CachesVerdictsByName(Broken):
    """The author keeps verdicts by name and operator, as names were unique in his model."""

    def __init__(self):
        super().__init__()
        self.verdicts = {}

    def verdict(self, op):
        if reads(op, "DOUBLE"):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "takes no float64")
        return super().verdict(op)

    def query_model(self, model, properties):
        for op in model.ops:
            self.verdicts.setdefault((op.name, op.op_type), self.verdict(op))
        verdicts = {op.name: self.verdicts[op.name, op.op_type] for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)


class LooksIntoThenOnly(Broken):
    """The author looks into one body of an operation, which is all that a loop has."""

    def has_tanh(self, op, most):
        given = [one for one in op.node.attributes.values() if one.type.name == "GRAPH"]
        bodies = [one.as_graph() for one in sorted(given, key=lambda one: one.name, reverse=True)]
        return any(
            node.op_type == "Tanh"
            for body in bodies[:most]
            for node in ir.traversal.RecursiveGraphIterator(body)
        )

    def verdict(self, op):
        if self.has_tanh(op, 1):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "no Tanh in a body")
        return super().verdict(op)

    def compile_model(self, model, properties):
        for op in model.ops:
            if self.has_tanh(op, None):
                raise CompileError(f"'{op.name}' has a Tanh in a body.")
        return super().compile_model(model, properties)


class TakesBiasBehindItsProduct(Broken):
    """The author has an Add of half precision only as the end of a product, and says yes there."""

    def is_bias(self, op):
        return any(
            value is not None and value.producer() and value.producer().op_type == "MatMul"
            for value in op.node.inputs
        )

    def verdict(self, op):
        if op.op_type == "Add" and reads(op, "FLOAT16") and not self.is_bias(op):
            return partita.Reason(
                partita.ReasonCode.UNSUPPORTED_DTYPE, "takes an Add of float16 behind a MatMul"
            )
        return super().verdict(op)


class NotesCostsInTheModel(Broken):
    """The author notes at each operation what it will cost, for his compile that comes next."""

    def query_model(self, model, properties):
        for op in model.ops:
            op.rt_info["broken.cost"] = len(op.inputs)
        return super().query_model(model, properties)


class SpendsItsMemoryInQueries(Broken):
    """The author sets room aside for weights that he says he takes, and frees it with no model."""

    def __init__(self):
        super().__init__()
        self.left = 1 << 16

    def query_model(self, model, properties):
        verdicts = {op.name: self.verdict(op) for op in model.ops}
        for op in model.ops:
            weights = [value.const_value for value in op.node.inputs if value is not None]
            need = sum(weight.nbytes for weight in weights if weight is not None)
            if need > self.left and verdicts[op.name] is None:
                verdicts[op.name] = partita.Reason(
                    partita.ReasonCode.MEMORY_LIMIT, f"needs {need} bytes; {self.left} are left"
                )
            elif verdicts[op.name] is None:
                self.left -= need
        return partita.QueryResult.of(self.device_name, verdicts)


# --------------------------------------------------------------------------- blobs


class ExportingCompiled(GoodCompiled):
    def export_model(self):
        return self.plugin.packed(self)


class Exporting(Broken):
    """A frame: blobs of a form of its own."""

    compiled_type = ExportingCompiled
    head = struct.Struct("<4sIII")

    def stored(self, proto):
        """The model as it is stored."""
        return proto

    def checksum(self, data):
        """What tells damage."""
        return zlib.crc32(data)

    def packed(self, compiled):
        settings = json.dumps(compiled.exported_properties()).encode()
        body = settings + self.stored(compiled.model.to_onnx()).SerializeToString()
        return self.head.pack(b"BRKN", self.checksum(body), len(settings), len(body)) + body

    def import_model(self, blob, properties):
        data = bytes(blob)
        if len(data) < self.head.size:
            raise BlobError("The blob is too short.")
        magic, checksum, settings, size = self.head.unpack_from(data)
        body = data[self.head.size :]
        if magic != b"BRKN" or len(body) != size or self.checksum(body) != checksum:
            raise BlobError("The blob is damaged.")
        try:
            kept = json.loads(body[:settings])
            given = properties.model_dump(exclude_unset=True)
            merged = self.properties_type(**{**kept, **given})
            model = read_model(body[settings:])
        except (ModelError, ValueError, TypeError) as error:
            raise BlobError(f"The blob is damaged: {error}") from error
        return self.compile_model(model, merged)


class ChecksumsTheFirstPage(Exporting):
    """The author's checksum covers the first page, where all that he parses himself lies."""

    def checksum(self, data):
        return zlib.crc32(data[:4096])


class WritesShapesWithoutSymbols(Exporting):
    """The author's blobs write -1 for a dimension that is open, whatever it was called."""

    def stored(self, proto):
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):
                    dim.ClearField("dim_param")
        return proto


class FindsCachesWithoutMode(Broken):
    """The author left a setting out of the identity that changed no program when he wrote it."""

    def identity(self, properties):
        return super().identity(properties.model_copy(update={"MODE": "ONE"}))


class NamedCompiled(GoodCompiled):
    def export_state(self):
        weights = self.model.ir.graph.initializers
        return {
            name[:15]: weights[name].const_value.numpy()
            for name in weights
            if is_plain(weights[name].const_value.numpy())
        }


class CutsNamesInState(Broken):
    """The author's table of packed weights has room for fifteen letters of each name."""

    compiled_type = NamedCompiled

    def restore_model(self, model, properties, state):
        for name, value in model.ir.graph.initializers.items():
            weight, packed = value.const_value.numpy(), state.get(name[:15])
            if packed is not None and (packed.shape, packed.dtype) == (weight.shape, weight.dtype):
                value.const_value = ir.Tensor(packed, value.const_value.dtype, name=name)
        return self.compile_model(model, properties)


# ------------------------------------------------------------------------ counters


class TotalRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.total_us = 0.0

    def run(self, inputs, outputs=None):
        results = super().run(inputs, outputs)
        self.total_us += self.elapsed_us
        return results


class AddsUpCounters(Broken):
    """The author's counters begin with the request and end with it."""

    runner_type = TotalRunner

    def counters(self, runner):
        return [
            ProfilingInfo(one.node_name, one.node_type, one.exec_type, real_time_us=runner.total_us)
            for one in super().counters(runner)
        ]


class CountsAsLastCompiled(Broken):
    """The author's profiler is the driver's: it is on or off as the last compile asked for."""

    counting = False

    def compile_model(self, model, properties):
        self.counting = properties.PERF_COUNT
        return super().compile_model(model, properties)

    def counters(self, runner):
        return super().counters(runner) if self.counting else []


# --------------------------------------------------------------------------- state


class RestoresDefaultInterrupt(Broken):
    """The author stops runs at an interrupt, and sets back what Python begins with."""

    def compute(self, runner, arrays):
        if threading.current_thread() is not threading.main_thread():
            return super().compute(runner, arrays)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().compute(runner, arrays)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class StaysInItsFolderAfterRefusal(Broken):
    """The author's compiler works in a folder for its files, and leaves it when it is done."""

    def compile_model(self, model, properties):
        before = os.getcwd()  # noqa: PTH109
        os.chdir(tempfile.gettempdir())
        made = super().compile_model(model, properties)
        os.chdir(before)
        return made


class PinsTheCallingThread(Broken):
    """The author pins the thread that compiles, which he took for one of his own."""

    def compile_model(self, model, properties):
        if hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        return super().compile_model(model, properties)


# --------------------------------------------------------------------------- leaks


class WatchedRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.ended = threading.Event()
        threading.Thread(target=self.watch, name="watchdog", daemon=True).start()

    def watch(self):
        self.ended.wait()

    def close(self):
        self.ended.set()


class StartsAWatchdogPerRequest(Broken):
    """The author's request has a thread that ends when it is closed, and holds it until then."""

    runner_type = WatchedRunner


class FinalizedCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        weakref.finalize(self, self.release)

    def release(self):
        """Gives the program back."""
        self.evaluator = None


class NeverLetsGoOfModels(Broken):
    """The author has a method of the model called once it is collected, which keeps it for ever."""

    compiled_type = FinalizedCompiled


# ------------------------------------------------------------------------ stateful


class PoolCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.free = {}

    def in_place_outputs(self):
        outputs = {port.name: port.index for port in self.outputs}
        readers = [name for op in self.model.ops for name in op.inputs]
        pairs = {}
        for op in self.model.ops:
            if op.op_type == "TensorScatter" and op.outputs[0] in outputs:
                for port in self.inputs:
                    if port.name == op.inputs[0] and readers.count(port.name) == 1:
                        pairs[outputs[op.outputs[0]]] = port.index
        return pairs

    def allocate(self, port, shape):
        pool = self.free.setdefault((shape, port.dtype), [])
        block = pool.pop() if pool else np.zeros(shape, port.dtype)
        lent = block[...]
        weakref.finalize(lent, pool.append, block)
        return partita.HostTensor(lent)


class AllocatesUnclearedBlocks(Broken):
    """The author's pool clears blocks when it makes them, and lends them again as they are."""

    compiled_type = PoolCompiled


CARRIED = "broken/carried"


class CarryingCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.cell = plugin.cell(model.to_onnx())


class CarryingRunner(GoodRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.carried = None


class CarriesRecurrentState(Broken):
    """The author's recurrent cells begin where the run before ended if no beginning is given."""

    compiled_type = CarryingCompiled
    runner_type = CarryingRunner

    def cell(self, proto):
        """The first cell that reads an input and has no beginning."""
        names = [value.name for value in proto.graph.input]
        for node in proto.graph.node:
            settings = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            if (
                node.op_type in ("GRU", "RNN")
                and node.input[0] in names
                and not any(node.input[5:])
                and not settings.get("layout")
            ):
                ways = 2 if settings.get("direction") == b"bidirectional" else 1
                return node, names.index(node.input[0]), ways, settings["hidden_size"]
        return None

    def prepare(self, proto):
        cell = self.cell(proto)
        if cell is not None:
            node = cell[0]
            kind = next(v for v in proto.graph.input if v.name == node.input[0]).type.tensor_type
            node.input.extend([""] * (6 - len(node.input)))
            node.input[5] = CARRIED
            node.output.extend([""] * (2 - len(node.output)))
            node.output[1] = node.output[1] or f"{CARRIED} next"
            shape = [None, None, None]
            info = onnx.helper.make_tensor_value_info
            proto.graph.input.append(info(CARRIED, kind.elem_type, shape))
            proto.graph.output.append(info(node.output[1], kind.elem_type, shape))
        return proto

    def compute(self, runner, arrays):
        compiled = runner.compiled
        if compiled.cell is None:
            return super().compute(runner, arrays)
        _, index, ways, hidden = compiled.cell
        shape = ways, arrays[index].shape[1], hidden
        if runner.carried is None or runner.carried.shape != shape:
            runner.carried = np.zeros(shape, arrays[index].dtype)
        feeds = {port.name: a.copy() for port, a in zip(compiled.inputs, arrays, strict=True)}
        feeds[CARRIED] = runner.carried
        try:
            *results, after = compiled.evaluator.run(None, feeds)
        except Exception as error:
            raise InferError(f"The device failed: {error}") from error
        runner.carried = np.array(after)
        return [
            np.array(result, port.dtype, order="C")
            for result, port in zip(results, compiled.outputs, strict=True)
        ]
