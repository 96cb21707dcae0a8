"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

The kernels are right. What is wrong is what surrounds them: caches, requests, threads, memory that
is lent or handed out, blobs, states, and what becomes of the process. Each is modelled on what the
issue trackers of real engines report.
"""

from __future__ import annotations

import base64
import gc
import json
import struct
import threading
import time
import weakref
import zlib
from collections import OrderedDict, deque

import numpy as np
import onnx
import onnx_ir as ir
from good_device import Good, GoodCompiled, GoodRunner
from google.protobuf.message import DecodeError

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.runner import run_into
from partita.errors import BlobError, InferCancelledError, InferError
from partita.frontends.reader import read_model
from partita.tensors.sequence_values import boxed, unboxed
from partita_reference.evaluator import ReferenceModel

PROGRAMS = 64
"""How many programs the caches below keep."""


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


def program(proto, compiled):
    """The evaluator of another model, with the properties of a compiled one."""
    return ReferenceModel(read_model(proto), compiled.properties, compiled.device).evaluator


def kept(cache, key, make, most=PROGRAMS):
    """What a cache has under a key, or gets; the oldest goes where there are too many."""
    if key not in cache:
        cache[key] = make()
        while len(cache) > most:
            cache.popitem(last=False)
    return cache[key]


# ------------------------------------------------------------- programs and their keys


class HashesTheHeadsOfWeights(Broken):
    """Takes it for granted that two weights of one shape differ in their first kilobyte."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            with plugin.lock:
                self.evaluator = kept(plugin.programs, self.key(), lambda: self.evaluator)

        def key(self):
            """The graph, and the beginning of each weight."""
            proto = self.model.to_onnx()
            del proto.graph.initializer[:]
            weights = []
            for name, value in self.model.ir.graph.initializers.items():
                array = value.const_value.numpy()
                head = array.ravel()[: 1024 // array.itemsize]
                text = repr(head.tolist()) if array.dtype == object else head.tobytes()
                weights.append((name, array.shape, str(array.dtype), text))
            return proto.SerializeToString(deterministic=True), tuple(weights)

    def __init__(self):
        super().__init__()
        self.programs = OrderedDict()


class KnowsModelsByTheirAddress(Broken):
    """Takes it for granted that a model at an address it has seen is the one it has compiled."""

    def __init__(self):
        super().__init__()
        self.programs = OrderedDict()

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        form = tuple((op.op_type, tuple(op.inputs), tuple(op.outputs)) for op in model.ops)
        with self.lock:
            key = (id(model), model.name, form)
            made.evaluator = kept(self.programs, key, lambda: made.evaluator)
        return made


class MapsAFileOnceByName(Broken):
    """Takes it for granted that a file of weights stays what it was when it was first mapped."""

    def __init__(self):
        super().__init__()
        self.mapped = OrderedDict()

    def compile_model(self, model, properties):
        own = model.clone()
        for value in own.ir.graph.initializers.values():
            weight = value.const_value
            if isinstance(weight, ir.ExternalTensor):
                key = (str(weight.path), weight.offset, weight.length)
                with self.lock:
                    array = kept(self.mapped, key, lambda at=weight: np.array(at.numpy()))
                if array.shape == tuple(weight.shape) and array.dtype == weight.numpy().dtype:
                    value.const_value = ir.tensor(array, weight.dtype, name=value.name)
        made = super().compile_model(own, properties)
        made.inputs, made.outputs = model.inputs, model.outputs
        return made


class PacksWeightsForTheFirstRequest(Broken):
    """Takes it for granted that nobody edits a model between its compile and its first request."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.waiting = dict(model.ir.graph.initializers)  # copied once somebody computes

        def create_runner(self):
            with self.plugin.lock:
                if self.waiting:
                    self.pack()
            return super().create_runner()

        def pack(self):
            """Puts the weights into the program."""
            own = self.model.clone()
            for name, value in own.ir.graph.initializers.items():
                given = self.waiting[name].const_value
                if given is not None:
                    value.const_value = ir.tensor(given.numpy(), given.dtype, name=name)
            self.evaluator = program(own.to_onnx(), self)
            self.waiting = {}


class BuildsInOnePlace(Broken):
    """Takes it for granted that one thread compiles at a time, as its builder keeps one model."""

    building = None

    def compile_model(self, model, properties):
        self.building = model.clone()
        made = super().compile_model(model, properties)
        time.sleep(0.002)  # the driver's compiler works outside of Python
        made.evaluator = program(self.building.to_onnx(), made)
        return made


class CachesVerdictsByOperatorAndTypes(Broken):
    """Takes it for granted that nothing but operator and types decides what it has kernels for."""

    def __init__(self):
        super().__init__()
        self.verdicts = OrderedDict()

    def verdict(self, op):
        axis = op.node.attributes.get("axis")
        if axis is not None and axis.type == ir.AttributeType.INT and axis.as_int() < 0:
            return partita.Reason(
                partita.ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"axis {axis.as_int()}; takes axes that are counted from the front",
            )
        return super().verdict(op)

    def query_model(self, model, properties):
        verdicts = {}
        for op in model.ops:
            types = tuple(value and str(value.type) for value in op.node.inputs)
            key = (op.domain, op.op_type, op.version, types)
            if any(a.type == ir.AttributeType.GRAPH for a in op.node.attributes.values()):
                verdicts[op.name] = self.verdict(op)
                continue
            with self.lock:
                verdicts[op.name] = kept(self.verdicts, key, lambda op=op: self.verdict(op), 4096)
        return partita.QueryResult.of(self.device_name, verdicts)


# --------------------------------------------------------------- requests and failures


class UploadsAgainWhatItsSampleShows(Broken):
    """Takes it for granted that inputs that changed differ in one of sixteen elements."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.uploaded = {}

    def compute(self, runner, arrays):
        return runner.evaluate([self.upload(runner, i, array) for i, array in enumerate(arrays)])

    def upload(self, runner, index, array):
        """The copy that the device has of an input."""
        if array.dtype == object or not array.size:
            return array
        sample = array.ravel()[:: max(1, array.size // 16)].tobytes()
        mark = (array.ctypes.data, array.shape, array.dtype, sample)
        if index not in runner.uploaded or runner.uploaded[index][0] != mark:
            runner.uploaded[index] = (mark, array.copy())
        return runner.uploaded[index][1]


class CancelsAllRequestsOfAModel(Broken):
    """Takes it for granted that one request of a model runs at a time, when it is cancelled."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.stop = threading.Event()
            self.running = 0

    class runner_type(GoodRunner):
        def cancel(self):
            self.compiled.stop.set()

    def compute(self, runner, arrays):
        compiled = runner.compiled
        with self.lock:
            if not compiled.running:
                compiled.stop.clear()
            compiled.running += 1
        try:
            results = super().compute(runner, arrays)
            if compiled.stop.is_set():
                raise InferCancelledError("The run was cancelled.")
            return results
        finally:
            with self.lock:
                compiled.running -= 1


class LosesASlotPerFailure(Broken):
    """Takes it for granted that runs which have begun end well, and give their slot back."""

    def __init__(self):
        super().__init__()
        self.slots = threading.BoundedSemaphore(8)

    def compute(self, runner, arrays):
        if not self.slots.acquire(timeout=0.1):
            raise InferError("All 8 slots of the device are taken; try again later.")
        results = super().compute(runner, arrays)
        self.slots.release()
        return results


class LosesStepAfterAFailure(Broken):
    """Takes it for granted that each run turns both sides of its double buffer."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.sides = [None, None]
            self.written = self.shown = 0

    def compute(self, runner, arrays):
        runner.written ^= 1
        runner.sides[runner.written] = super().compute(runner, arrays)
        runner.shown ^= 1
        shown = runner.sides[runner.shown]
        return runner.sides[runner.written] if shown is None else shown


class KeepsTheLastFailure(Broken):
    """Takes it for granted that an error holds a text, and not all that its frames refer to."""

    last_failure = None

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            self.last_failure = error  # for a report of the driver
            raise


class ShutsDownWithTheLastRequest(Broken):
    """Takes it for granted that a model whose requests have all gone is wanted no more."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.requests = 0

        def create_runner(self):
            if self.evaluator is None:
                raise InferError(f"The engine of '{self.model.name}' has been shut down.")
            with self.plugin.lock:
                self.requests += 1
            runner = super().create_runner()
            weakref.finalize(runner, self.leave).atexit = False
            return runner

        def leave(self):
            """A request has gone."""
            self.requests -= 1
            if not self.requests:
                self.evaluator = None


# ------------------------------------------------------------------ shapes that vary


class PlansByElementCounts(Broken):
    """Takes it for granted that inputs of as many elements have the shape of those before."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.plans = OrderedDict()

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        key = tuple((array.size, str(array.dtype)) for array in arrays)
        with self.lock:
            plan = kept(runner.compiled.plans, key, lambda: [array.shape for array in results])
        return [
            array if array.dtype == object or array.size != np.prod(shape) else array.reshape(shape)
            for array, shape in zip(results, plan, strict=True)
        ]


class LaunchesNothingForNoElements(Broken):
    """Takes it for granted that outputs are empty, or zeros, once an input has no elements."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if all(array.size for array in arrays):
            return results
        return [a if a.dtype == object else np.zeros_like(a) for a in results]


class ShowsAWindowOfItsLargestResult(Broken):
    """Takes it for granted that readers follow strides, where a result is smaller than before."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.largest = {}

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        return [
            partita.HostTensor(array if array.dtype == object else self.window(runner, i, array))
            for i, array in enumerate(arrays)
        ]

    def window(self, runner, index, array):
        """A result in the buffer of its output."""
        held = runner.largest.get(index)
        if held is None or held.ndim != array.ndim or np.any(np.less(held.shape, array.shape)):
            held = runner.largest[index] = np.empty_like(array)
        part = held[tuple(slice(0, size) for size in array.shape)]
        part[...] = array
        return part


# ---------------------------------------------------------- whose memory a tensor lies in


class FreesResultsWithTheirThread(Broken):
    """Takes it for granted that the thread that computed a result lives as long as its readers."""

    class Context:
        """The memory of one thread's runs; given back to all when the thread ends."""

        def __init__(self, free, lock):
            self.free, self.lock, self.held = free, lock, deque(maxlen=32)

        def __del__(self):
            with self.lock:
                self.free.extend(self.held)

        def place(self, array):
            """A result in memory of the context."""
            for number, block in enumerate(self.free):
                if block.shape == array.shape and block.dtype == array.dtype:
                    del self.free[number]
                    break
            else:
                block = np.empty_like(array)
            block[...] = array
            self.held.append(block)
            return block

    def __init__(self):
        super().__init__()
        self.free, self.lock = deque(maxlen=32), threading.RLock()
        self.local = threading.local()

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        if not hasattr(self.local, "context"):
            self.local.context = self.Context(self.free, self.lock)
        with self.lock:
            placed = [a if a.dtype == object else self.local.context.place(a) for a in arrays]
        return [partita.HostTensor(array) for array in placed]


class LeavesResultsForOneRun(Broken):
    """Takes it for granted that nobody reads results that were left once two runs have passed."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.sides, self.turn = ({}, {}), 0

        def leave_results(self):
            return True  # the next run writes to the other side

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        runner.turn ^= 1
        side, results = runner.sides[runner.turn], []
        for number, array in enumerate(arrays):
            held = side.get(number)
            if held is None or (held.shape, held.dtype) != (array.shape, array.dtype):
                held = side[number] = np.empty_like(array)
            held[...] = array
            results.append(partita.HostTensor(held))
        return results


class GivesTwinOutputsOneBuffer(Broken):
    """Takes it for granted that outputs that are computed alike can lie in one place."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            made, first = {}, {}
            for node in self.model.to_onnx().graph.node:
                attributes = sorted(a.SerializeToString() for a in node.attribute)
                for place, name in enumerate(node.output):
                    key = (node.domain, node.op_type, *node.input, place, *attributes)
                    made[name] = None if "Random" in node.op_type else key
            names = [port.name for port in self.outputs]
            for name in names:
                first.setdefault(made.get(name) or name, name)
            self.twins = [names.index(first[made.get(name) or name]) for name in names]

    def deliver(self, runner, arrays, outputs):
        return super().deliver(runner, [arrays[i] for i in runner.compiled.twins], outputs)


class PassesItemsOfSequencesByReference(Broken):
    """Takes it for granted that an item which is an input as it is need not be copied."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        given = []
        for array in map(unboxed, arrays):
            given += array if isinstance(array, list) else [array]
        given = [array for array in given if isinstance(array, np.ndarray)]
        return [self.referring(result, given) for result in results]

    def referring(self, result, given):
        """A sequence with inputs instead of their copies; other results as they are."""
        items = unboxed(result)
        if not isinstance(items, list):
            return result
        return boxed([next((a for a in given if self.same(a, x)), x) for x in items])

    def same(self, one, other):
        """Whether arrays are alike."""
        return (
            isinstance(other, np.ndarray)
            and (one.shape, one.dtype) == (other.shape, other.dtype)
            and (one.tolist() == other.tolist())
        )


class SwapsInputsWhereTheyLie(Broken):
    """Takes it for granted that nobody looks at an input that is put back at the run's end."""

    def compute(self, runner, arrays):
        mine = [
            array.flags.writeable and array.dtype == np.float32 and array.nbytes >= 256
            for array in arrays
        ]
        swapped = [array for array, own in zip(arrays, mine, strict=True) if own]
        for array in swapped:
            array.byteswap(inplace=True)  # the device is big-endian
        results = super().compute(
            runner, [a.byteswap() if own else a for a, own in zip(arrays, mine, strict=True)]
        )
        for array in swapped:
            array.byteswap(inplace=True)
        return results


class CopiesOutAfterItReturns(Broken):
    """Takes it for granted that a transfer which has been started is over when somebody reads."""

    class runner_type(GoodRunner):
        transfer = None

    def deliver(self, runner, arrays, outputs):
        if runner.transfer is not None:
            runner.transfer.join()
            runner.transfer = None
        if outputs is None or sum(array.nbytes for array in arrays) < 4096:
            return super().deliver(runner, arrays, outputs)

        def transfer():
            time.sleep(0.005)
            Good.deliver(self, runner, arrays, outputs)

        runner.transfer = threading.Thread(target=transfer, daemon=True)
        runner.transfer.start()
        return [
            partita.HostTensor(array) if given is None else given
            for array, given in zip(arrays, outputs, strict=True)
        ]


class LendsPageLockedMemoryTwice(Broken):
    """Takes it for granted that views keep the array alive that they were made of, not its base."""

    def __init__(self):
        super().__init__()
        self.blocks = []

    def host_memory(self, nbytes, device_id=""):
        with self.lock:
            self.blocks = self.blocks[-16:]
            for entry in self.blocks:
                block, lent = entry
                if lent() is None and block.nbytes >= nbytes:
                    break
            else:
                block = np.empty(-(-max(nbytes, 1) // 4096) * 4096, np.uint8)
                entry = [block, None]
                self.blocks.append(entry)
            part = block[:nbytes]
            entry[1] = weakref.ref(part)
            return part


class DeviceTensor(partita.Tensor):
    """A tensor in memory of the device's own."""

    def __init__(self, array, source=None):
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = "BROKEN", "broken:0"
        self.array, self.source = array, source

    def numpy(self):
        if self.source is not None:
            self.array, self.source = self.source.numpy().copy(), None
        return self.array.copy()

    def copy_from(self, source):
        self.array, self.source = source.numpy().copy(), None


class UploadsWhenItIsRead(Broken):
    """Takes it for granted that what is uploaded stays as it is until a run reads it."""

    class compiled_type(GoodCompiled):
        def takes_memory(self, memory):
            return memory in ("host", "broken:0")

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A device with memory", memory="broken:0")

    def can_share(self, memory, device_id=""):
        return memory == "broken:0"

    def transfer_to(self, tensor, device_id=""):
        return DeviceTensor(tensor.numpy(), tensor)

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            return [DeviceTensor(array) for array in arrays]
        for array, given in zip(arrays, outputs, strict=True):
            if given is not None:
                given.copy_from(partita.HostTensor(array))
        return [
            DeviceTensor(array) if given is None else given
            for array, given in zip(arrays, outputs, strict=True)
        ]


# --------------------------------------------------------------- bound calls and states


class Call(BoundCall):
    """A right bound call."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), outputs

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindingRunner(GoodRunner):
    """Binds with the call of its class."""

    call = Call

    def bind(self, inputs, outputs, scratch=None):
        return self.call(self, inputs, outputs)


class TakesBoundIndicesForFixed(Broken):
    """Takes it for granted that small inputs of integers are shapes, which stay as they are."""

    class runner_type(BindingRunner):
        class call(Call):
            def __init__(self, runner, inputs, outputs):
                super().__init__(runner, inputs, outputs)
                for number, tensor in enumerate(inputs):
                    if tensor.dtype in (np.int32, np.int64) and tensor.size <= 8:
                        self.inputs[number] = partita.HostTensor(tensor.numpy().copy())


class RebindsOnlyTheFirstInput(Broken):
    """Takes it for granted that a network has one input that comes in other memory."""

    class runner_type(BindingRunner):
        class call(Call):
            def rebind(self, inputs):
                self.inputs[:1] = inputs[:1]
                return True


class KeepsTheBoundShape(Broken):
    """Takes it for granted that a bound call's outputs never come in another shape."""

    class runner_type(BindingRunner):
        class call(Call):
            def __call__(self):
                results = self.runner.run(self.inputs)
                for result, output in zip(results, self.outputs, strict=True):
                    elements = result.numpy()
                    if result.shape != output.shape and elements.dtype != object:
                        held = output.numpy()
                        flat, count = elements.ravel(), min(result.size, held.size)
                        held.ravel()[:count] = flat[:count]
                    else:
                        output.copy_from(result)


class KeepsWeightsInLentMemory(Broken):
    """Takes it for granted that memory lent to a bound call is its own between calls too."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            proto = self.model.to_onnx()
            named = {value.name for value in proto.graph.input}
            self.weights = {
                tensor.name: onnx.numpy_helper.to_array(tensor)
                for tensor in proto.graph.initializer
                if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name not in named
            }
            for name, array in self.weights.items():
                given = onnx.helper.make_tensor_value_info(name, 1, array.shape)
                proto.graph.input.append(given)
            rest = [t for t in proto.graph.initializer if t.name not in self.weights]
            del proto.graph.initializer[:]
            proto.graph.initializer.extend(rest)
            self.streamed = program(proto, self) if self.weights else self.evaluator

        @property
        def scratch_bytes(self):
            return sum(array.nbytes for array in self.weights.values())

    class runner_type(BindingRunner):
        def bind(self, inputs, outputs, scratch=None):
            if scratch is None or not self.compiled.weights:
                return super().bind(inputs, outputs)
            return self.Streaming(self, inputs, outputs, scratch)

        class Streaming(Call):
            def __init__(self, runner, inputs, outputs, scratch):
                super().__init__(runner, inputs, outputs)
                self.weights, start = {}, 0
                for name, array in runner.compiled.weights.items():
                    part = scratch[start : start + array.nbytes]
                    part[...] = np.ascontiguousarray(array).view(np.uint8).ravel()
                    self.weights[name] = (part, array.shape)
                    start += array.nbytes

            def __call__(self):
                runner = self.runner
                feeds = {
                    port.name: unboxed(tensor.numpy().copy())
                    for port, tensor in zip(runner.compiled.inputs, self.inputs, strict=True)
                }
                for name, (part, shape) in self.weights.items():
                    feeds[name] = np.frombuffer(part.tobytes(), np.float32).reshape(shape)
                with np.errstate(all="ignore"):
                    results = runner.compiled.streamed.run(None, feeds)
                for result, output in zip(results, self.outputs, strict=True):
                    output.copy_from(partita.HostTensor(np.array(result, output.dtype, order="C")))


class AddsInPlace(Broken):
    """Takes it for granted that a run over its state is made once, so that a sum can grow there."""

    class compiled_type(GoodCompiled):
        def in_place_outputs(self):
            graph = self.model.to_onnx().graph
            read = [name for node in graph.node for name in node.input]
            inputs = {port.name: port for port in self.inputs}
            pairs = {}
            for node in graph.node:
                for number, port in enumerate(self.outputs):
                    given = inputs.get(node.input[0]) if node.op_type == "Add" else None
                    if given is None or port.name != node.output[0]:
                        continue
                    alike = given.shape is not None and given.shape == port.shape
                    if alike and given.dtype == port.dtype and read.count(given.name) == 1:
                        pairs[number] = given.index
            return pairs


# -------------------------------------------------------------------------- blobs


class OwnBlobs(Broken):
    """Exports and imports in a form of its own, rightly: a head, a checksum and what follows."""

    magic = b"BROKEN01"

    class compiled_type(GoodCompiled):
        def export_model(self):
            settings = json.dumps(self.exported_properties()).encode()
            body = struct.pack("<Q", len(settings)) + settings + self.plugin.pack(self.model)
            return self.plugin.magic + struct.pack("<QI", len(body), self.plugin.check(body)) + body

    def check(self, body):
        """The checksum of all that follows."""
        return zlib.crc32(body)

    def pack(self, model):
        """The model as bytes."""
        return model.to_onnx().SerializeToString()

    def unpack(self, data):
        """The model of bytes."""
        return onnx.ModelProto.FromString(data)

    def import_model(self, blob, properties):
        data = bytes(blob)
        if len(data) < 28 or data[:8] != self.magic:
            raise BlobError(f"No compiled model of {self.device_name}.")
        size, check = struct.unpack_from("<QI", data, 8)
        body = data[20:]
        if len(body) != size or self.check(body) != check:
            raise BlobError("The compiled model is damaged; export it again.")
        try:
            (length,) = struct.unpack_from("<Q", body)
            settings = json.loads(body[8 : 8 + length])
            model = read_model(self.unpack(body[8 + length :]))
        except (ValueError, struct.error, DecodeError, KeyError, partita.PartitaError) as error:
            raise BlobError(f"The compiled model cannot be read: {error}") from error
        settings |= properties.model_dump(exclude_unset=True)
        return self.compile_model(model, type(properties).model_validate(settings))


class ChecksWholeWordsOfABlob(OwnBlobs):
    """Takes it for granted that the length of a blob is a multiple of its checksum's word."""

    def check(self, body):
        return zlib.crc32(body[: len(body) // 8 * 8])


class WritesNamesOfWeightsInLatin(OwnBlobs):
    """Takes it for granted that names of weights are written in a western alphabet."""

    def pack(self, model):
        proto = model.to_onnx()
        weights = {}
        for tensor in proto.graph.initializer:
            name = tensor.name.encode("latin-1", "replace").decode("latin-1")
            weights[name] = base64.b64encode(tensor.SerializeToString()).decode()
            name = tensor.name
            tensor.Clear()
            tensor.name = name
        skeleton = base64.b64encode(proto.SerializeToString()).decode()
        return json.dumps({"model": skeleton, "weights": weights}).encode()

    def unpack(self, data):
        stored = json.loads(data)
        proto = onnx.ModelProto.FromString(base64.b64decode(stored["model"]))
        for tensor in proto.graph.initializer:
            name = tensor.name
            entry = stored["weights"][name.encode("latin-1", "replace").decode("latin-1")]
            tensor.ParseFromString(base64.b64decode(entry))
            tensor.name = name
        return proto


class RestoresWeightsInTextOrder(Broken):
    """Takes it for granted that numbers in names come back in the order of the numbers."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            return {str(number): a for number, (_, a) in enumerate(packable(self.model))}

    def restore_model(self, model, properties, state):
        own = model.clone()
        for (value, array), name in zip(packable(own), sorted(state), strict=False):
            packed = state[name]
            if (packed.shape, packed.dtype) == (array.shape, array.dtype):  # else packed anew
                value.const_value = ir.tensor(np.array(packed), name=value.name)
        made = self.compile_model(own, properties)
        made.inputs, made.outputs = model.inputs, model.outputs
        return made


def packable(model):
    """The weights of float32, and what holds them."""
    return [
        (value, value.const_value.numpy())
        for value in model.ir.graph.initializers.values()
        if value.const_value.dtype == ir.DataType.FLOAT
    ]


class PrintsASetIntoItsIdentity(Broken):
    """Takes it for granted that a set is printed in the same order by each process."""

    features = frozenset({"fp16", "int8", "winograd", "sparse", "dot"})

    def identity(self, properties):
        return f"{super().identity(properties)} {self.features}"


# ------------------------------------------------------------------------ the process


class EnablesACollectorThatWasOff(Broken):
    """Takes it for granted that the garbage collector was on before a run."""

    def compute(self, runner, arrays):
        gc.disable()  # no pauses while the device waits
        try:
            return super().compute(runner, arrays)
        finally:
            gc.enable()


class SeedsTheGlobalGenerator(Broken):
    """Takes it for granted that nobody else draws from numpy's generator when it tunes kernels."""

    tuned = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        if any(op.op_type in self.tuned for op in model.ops):
            np.random.seed(0)
            made.trial = np.random.rand(64, 64)
        return made
