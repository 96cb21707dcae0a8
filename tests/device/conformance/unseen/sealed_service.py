"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

They are faults of what stands around the kernels: how devices are found and asked, what settings
reach, what is kept of one model when the next one comes, blobs, counters, memory on a card, and
what a process looks like afterwards. Where a fault needs more of a device than the correct one has,
that is a base of its own, which is correct too: ``Cards``, ``Packing``, ``Sealing``,
``Reporting``.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import re
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from broken_form import Broken
from good_device import GoodCompiled, GoodProperties, GoodRunner
from onnx import numpy_helper
from pydantic import field_validator

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.execution import ExecutedStep, Execution, MemoryRange
from partita.contract.profiling import ProfilingInfo
from partita.errors import (
    BlobError,
    CompileError,
    DeviceUnavailableError,
    InferCancelledError,
    InferError,
)
from partita.frontends.reader import read_model
from partita.tensors.host import HOST


def settings(properties):
    """What was set, by name."""
    return properties.model_dump(exclude_unset=True)


def graphs(graph):
    """A graph and those in its operations, at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(body)


# ------------------------------------------------------------------- a device of two cards


class Card:
    """Memory of one card: what it holds, by handles that count from 1 on each card."""

    def __init__(self, name, memory):
        self.name, self.memory = name, memory
        self.held = {}
        self.numbers = itertools.count(1)

    def hold(self, array):
        handle = next(self.numbers)
        self.held[handle] = array
        return handle


class CardTensor(partita.Tensor):
    """A tensor on a card, which is freed with the last reference to it."""

    __slots__ = ("__weakref__", "card", "device", "dtype", "handle", "memory", "shape")

    def __init__(self, card, array):
        self.card, self.device, self.memory = card, card.name, card.memory
        self.shape, self.dtype = array.shape, array.dtype
        self.handle = card.hold(array)

    def numpy(self):
        return np.array(self.card.held[self.handle], order="C")

    def copy_from(self, source):
        np.copyto(self.card.held[self.handle], source.numpy(), casting="no")

    def __del__(self):
        self.card.held.pop(self.handle, None)


class CardRunner(GoodRunner):
    """Reads tensors of its own card by their handles, and returns what lies there."""

    def run(self, inputs, outputs=None):
        card = self.compiled.card
        arrays = [
            tensor.numpy() if tensor.memory == HOST else card.held[tensor.handle]
            for tensor in inputs
        ]
        results = super().run([partita.HostTensor(array) for array in arrays])
        return [self.compiled.plugin.upload(tensor.numpy(), card) for tensor in results]


class CardCompiled(GoodCompiled):
    """A model on one card."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.card = plugin.card(properties.DEVICE_ID)
        self.device = self.card.name

    def takes_memory(self, memory):
        return memory in (HOST, self.card.memory)

    def allocate(self, port, shape):
        return self.plugin.upload(np.zeros(shape, port.dtype or np.float32), self.card)


class Cards(Broken):
    """The base of faults that need memory of the device's own; correct itself."""

    compiled_type = CardCompiled
    runner_type = CardRunner
    tensor_type = CardTensor
    size = 1 << 30

    def __init__(self):
        super().__init__()
        name = self.device_name
        self.cards = {one: Card(f"{name}.{one}", f"{name.lower()}:{one}") for one in ("0", "1")}

    def card(self, device_id):
        return self.cards[device_id or "0"]

    def device_ids(self):
        return tuple(self.cards)

    def device_info(self, device_id):
        card = self.card(device_id)
        return DeviceInfo(card.name, "A card", memory=card.memory, memory_bytes=self.size)

    def query_model(self, model, properties):
        verdicts = {op.name: self.verdict(op) for op in model.ops}
        return partita.QueryResult.of(self.card(properties.DEVICE_ID).name, verdicts)

    def can_share(self, memory, device_id=""):
        return memory == self.card(device_id).memory

    def upload(self, array, card):
        if array.dtype.hasobject:  # texts and sequences stay with the host
            return partita.HostTensor(array)
        return self.tensor_type(card, np.array(array, order="C"))

    def transfer_to(self, tensor, device_id=""):
        card = self.card(device_id)
        return tensor if tensor.memory == card.memory else self.upload(tensor.numpy(), card)


class TellsWhatIsFreeAsItsMemory(Cards):
    """It asks the driver how much memory there is, and takes what is left for what there is."""

    def device_info(self, device_id):
        card = self.card(device_id)
        used = sum(array.nbytes for array in list(card.held.values()))
        return DeviceInfo(card.name, "A card", memory=card.memory, memory_bytes=self.size - used)


class HidesACardThatIsBusy(Cards):
    """It opens each card to list it, which a card that holds a model does not let it do."""

    def __init__(self):
        super().__init__()
        self.open = weakref.WeakSet()

    def device_ids(self):
        busy = {compiled.card.name for compiled in list(self.open)}
        ids = tuple(one for one, card in self.cards.items() if card.name not in busy)
        if not ids:
            raise DeviceUnavailableError("No card could be opened; end what uses them.")
        return ids

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        self.open.add(compiled)
        return compiled


class ReadsEveryCardsMemory(Cards):
    """It takes whatever a card of its kind holds for readable; a handle is one card's alone."""

    def can_share(self, memory, device_id=""):
        return memory.startswith(f"{self.device_name.lower()}:")


class StagedTensor(CardTensor):
    """Downloaded by way of the card's page-locked block."""

    __slots__ = ()

    def numpy(self):
        array = self.card.held[self.handle]
        block = vars(self.card).setdefault("block", np.empty(1 << 16, np.uint8))
        if not 0 < array.nbytes <= block.nbytes:
            return super().numpy()
        staged = block[: array.nbytes].view(array.dtype).reshape(array.shape)
        staged[...] = array
        return staged


class DownloadsIntoOneBlock(Cards):
    """It hands out the page-locked block itself, as if nobody kept one tensor beside another."""

    tensor_type = StagedTensor


class LateTensor(CardTensor):
    """Uploaded when a kernel or a download first needs it."""

    __slots__ = ("source",)

    def __init__(self, card, array):
        super().__init__(card, np.empty(0))
        self.shape, self.dtype, self.source = array.shape, array.dtype, array

    def settle(self):
        if self.source is not None:
            self.card.held[self.handle] = np.array(self.source, order="C")
            self.source = None

    def numpy(self):
        self.settle()
        return super().numpy()

    def copy_from(self, source):
        self.settle()
        super().copy_from(source)


class LateRunner(CardRunner):
    """Waits for the uploads of its inputs."""

    def run(self, inputs, outputs=None):
        for tensor in inputs:
            if isinstance(tensor, LateTensor):
                tensor.settle()
        return super().run(inputs, outputs)


class UploadsWhenItIsFirstRead(Cards):
    """It only queues the copy, as if the host's array stayed as it is until the queue is at it."""

    runner_type = LateRunner

    def transfer_to(self, tensor, device_id=""):
        card = self.card(device_id)
        if tensor.memory == card.memory or tensor.dtype.hasobject:
            return tensor
        return LateTensor(card, tensor.numpy())


class KnowsUploadsByTheirObject(Cards):
    """It uploads a tensor once, and knows it again by an id that the next tensor may get."""

    def transfer_to(self, tensor, device_id=""):
        key = id(tensor), tensor.shape, tensor.dtype.str, device_id
        known = vars(self).setdefault("known", {})
        while len(known) > 16:
            known.pop(next(iter(known)))
        if key not in known:
            known[key] = super().transfer_to(tensor, device_id)
        return known[key]


# ----------------------------------------------------------------------------- discovery


class HashesItsSettings(Broken):
    """It makes a short key with Python's own hash, which every process salts anew."""

    def identity(self, properties):
        return f"{self.device_name}-{hash(super().identity(properties)):x}"


# ------------------------------------------------------------------------------- queries


class CutsNamesAtAColon(Broken):
    """Its engine puts ``:0`` behind names, so it cuts that off; exporters write it too."""

    def query_model(self, model, properties):
        verdicts = {op.name.partition(":")[0]: self.verdict(op) for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)


def is_bias(op):
    """Whether an operation adds a constant vector."""
    values = op.node.inputs
    return (
        op.op_type == "Add"
        and len(values) == 2
        and values[1] is not None
        and values[1].const_value is not None
        and len(values[1].const_value.shape) == 1
    )


def follows_product(op):
    """Whether what it adds to is a product."""
    source = op.node.inputs[0].producer()
    return source is not None and source.op_type in ("MatMul", "Conv", "Gemm")


class TakesABiasOnlyBehindItsProduct(Broken):
    """It has biases in its products alone, and says yes to one that might be cut off from it."""

    def verdict(self, op):
        if is_bias(op) and not follows_product(op):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "adds biases to products")
        return super().verdict(op)


class RemembersAnswersByNames(Broken):
    """It asks its engine once per model, which it knows by its name and its operations' names."""

    def query_model(self, model, properties):
        key = model.name, tuple(op.name for op in model.ops)
        answers = vars(self).setdefault("answers", {})
        if key not in answers:
            answers[key] = super().query_model(model, properties)
        return answers[key]


class SettlesTheShapesOfAQuestion(Broken):
    """Its engine judges static shapes, so it makes them static, in the caller's own model."""

    def query_model(self, model, properties):
        for value in model.ir.graph.inputs:
            if value.shape is not None and not value.shape.is_static():
                value.shape = ir.Shape([n if isinstance(n, int) else 1 for n in value.shape])
        return super().query_model(model, properties)


class CountsWeightsOfModelsThatAreGone(Broken):
    """It takes what fits beside the weights of all that it has compiled, let go of or not."""

    room = 1 << 20

    def verdict(self, op):
        constants = [v.const_value for v in op.node.inputs if v is not None]
        own = sum(constant.nbytes for constant in constants if constant is not None)
        if own + vars(self).get("taken", 0) > self.room:
            return partita.Reason(partita.ReasonCode.MEMORY_LIMIT, f"{own} bytes more")
        return super().verdict(op)

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        constants = model.ir.graph.initializers.values()
        weights = sum(v.const_value.nbytes for v in constants if v.const_value is not None)
        self.taken = vars(self).get("taken", 0) + weights
        return compiled


class LeavesTheAskedModelOnDisk(Broken):
    """Its engine reads files only, so it writes one for each question, and closes it."""

    def query_model(self, model, properties):
        descriptor, path = tempfile.mkstemp(".onnx", "engine-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(model.to_onnx().SerializeToString())
        onnx.load(path)
        return super().query_model(model, properties)


# ---------------------------------------------------------------------------- properties


class ReadsAnyTextAsYes(Broken):
    """It makes a truth value of what is given, and was tried with ``True`` and ``"YES"``."""

    class properties_type(GoodProperties):
        @field_validator("PERF_COUNT", mode="before")
        @classmethod
        def as_flag(cls, value):
            return bool(value)


class CountsAsTheLastModelWasTold(Broken):
    """Whether to count is a switch of the driver, which each compile sets for all models."""

    class runner_type(GoodRunner):
        def profiling_info(self):
            plugin = self.compiled.plugin
            return plugin.counters(self) if plugin.counting else ()

    def compile_model(self, model, properties):
        self.counting = properties.PERF_COUNT
        return super().compile_model(model, properties)


class SizesDecodersOverTheApplication(Broken):
    """It knows best how large its cache should be, whatever the application has set."""

    def for_decoder(self, request, properties):
        return {"LEVEL": (request.context or 4096) // 1024}


# ----------------------------------------------------------------------------- compiling


class KnowsWeightsByTheirBeginning(Broken):
    """It packs equal weights once, and compares type, shape and the first 256 bytes."""

    def prepare(self, proto):
        pool = vars(self).setdefault("pool", {})
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype.hasobject or array.nbytes < 256:
                continue
            key = tensor.data_type, array.shape, array.tobytes()[:256]
            while len(pool) > 32:
                pool.pop(next(iter(pool)))
            packed = pool.setdefault(key, tensor)
            if packed is not tensor:
                name = tensor.name
                tensor.CopyFrom(packed)
                tensor.name = name
        return proto


class LosesConstantsThatAnotherReaderFolds(Broken):
    """A shape is folded into its reshape, and no buffer made of it, though others may read it."""

    def compile_model(self, model, properties):
        constants = set(model.ir.graph.initializers)
        folded = {op.inputs[1] for op in model.ops if op.op_type in ("Reshape", "Expand")}
        for op in model.ops:
            own = op.inputs[:1] if op.op_type in ("Reshape", "Expand") else op.inputs
            for name in own:
                if name in folded & constants:
                    raise CompileError(f"'{op.name}' reads '{name}', which has no buffer.")
        return super().compile_model(model, properties)


class SpilledCompiled(GoodCompiled):
    """Keeps its model in a file, which each request loads."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.path = Path(plugin.folder.name, re.sub(r"\W", "_", model.name) + ".engine")
        self.path.write_bytes(self.model.to_onnx().SerializeToString())

    def create_runner(self):
        loaded = read_model(self.path.read_bytes())
        engine = GoodCompiled(self.plugin, loaded, self.properties)
        engine.inputs, engine.outputs = self.inputs, self.outputs
        return engine.create_runner()


class SpillsModelsToFilesOfTheirNames(Broken):
    """It names the file of an engine after the model, and most exporters call that the same."""

    compiled_type = SpilledCompiled

    def compile_model(self, model, properties):
        if "folder" not in vars(self):
            self.folder = tempfile.TemporaryDirectory(prefix="engines-")
        return super().compile_model(model, properties)


class CompilesInOneBuilder(Broken):
    """It has one builder, which works on one model at a time, as applications compile one."""

    def compile_model(self, model, properties):
        self.building = model
        self.kernels = {op.name: self.verdict(op) for op in self.building.ops}
        time.sleep(0.002)  # a trial of the kernels on the device
        compiled = super().compile_model(self.building, properties)
        compiled.inputs, compiled.outputs = model.inputs, model.outputs
        return compiled


class CutsNamesAfterSixtyThreeLetters(Broken):
    """Its engine keeps names in fields of 64 bytes; some exporters write whole module paths."""

    def prepare(self, proto):
        latest = {}
        for graph in graphs(proto.graph):
            for node in graph.node:
                for place, name in enumerate(node.input):
                    node.input[place] = latest.get(name[:63], name)
                latest.update({name[:63]: name for name in node.output if name})
        return proto


class LateCompiled(GoodCompiled):
    """Builds anew what it holds when the first request is made."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.given, self.built, self.lock = model, None, threading.Lock()

    def create_runner(self):
        with self.lock:
            if self.built is None:
                self.built = GoodCompiled(self.plugin, self.given, self.properties)
        return self.built.create_runner()


class BuildsWhenTheFirstRequestIsMade(Broken):
    """It made compiling quick by building later, from weights that are still the caller's."""

    compiled_type = LateCompiled


# ---------------------------------------------------------------- export, import, identity


class PackedCompiled(GoodCompiled):
    """Holds its matrices packed, and computes with what comes out of the packing."""

    def __init__(self, plugin, model, properties, state=None):
        self.packed = dict(state) if state else plugin.pack(model, properties)
        proto = plugin.unpack(model.to_onnx(), self.packed, properties)
        super().__init__(plugin, read_model(proto), properties)
        self.model = model.clone()
        self.inputs, self.outputs = model.inputs, model.outputs

    def export_state(self):
        return self.packed


class Packing(Broken):
    """The base of faults of packed weights; correct itself. Each mode has its own packing."""

    compiled_type = PackedCompiled

    def pack(self, model, properties):
        packed = {}
        for place, tensor in enumerate(model.to_onnx().graph.initializer):
            if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
                array = numpy_helper.to_array(tensor)
                laid = array.T if properties.MODE == "TWO" else array
                packed[str(place)] = np.array(laid, order="C").reshape(-1)
        return packed

    def unpack(self, proto, packed, properties):
        for place, tensor in enumerate(proto.graph.initializer):
            stored = packed.get(str(place))
            if stored is None or len(tensor.dims) != 2:
                continue
            shape = tuple(tensor.dims)
            two = properties.MODE == "TWO"
            array = stored.reshape(shape[::-1]).T if two else stored.reshape(shape)
            whole = numpy_helper.from_array(np.array(array, order="C"), tensor.name)
            proto.graph.initializer[place].CopyFrom(whole)
        return proto

    def restore_model(self, model, properties, state):
        if not state:
            return self.compile_model(model, properties)
        return self.compiled_type(self, model, properties, state)


class LeavesSettingsOutOfItsIdentity(Packing):
    """It goes by its device and driver alone; that a mode packs otherwise came later."""

    def identity(self, properties):
        return super().identity(type(properties)(DEVICE_ID=properties.DEVICE_ID))


MAGIC = b"SEALED01"


class SealedCompiled(GoodCompiled):
    """Exports in the device's own form: a seal, a head, the model."""

    def export_model(self):
        return self.plugin.sealed(self)


class Sealing(Broken):
    """The base of faults of the device's own blobs; correct itself."""

    compiled_type = SealedCompiled

    def head(self, compiled):
        """What is told of a model beside it."""
        info = self.device_info("")
        known = compiled.exported_properties()
        return {"device": info.device, "driver": info.driver, "set": known}

    def exported(self, compiled):
        """The model as it is written."""
        return compiled.model.to_onnx()

    def seal(self, head, body):
        """What must be the same when it is read."""
        return hashlib.sha256(head + body).digest()

    def sealed(self, compiled):
        head = json.dumps(self.head(compiled)).encode()
        body = self.exported(compiled).SerializeToString()
        sizes = struct.pack("<QQ", len(head), len(body))
        return MAGIC + self.seal(head, body) + sizes + head + body

    def opened(self, blob):
        """Head and model of a blob."""
        data = bytes(blob)
        if data[: len(MAGIC)] != MAGIC or len(data) < len(MAGIC) + 48:
            raise BlobError("This is no model that this device has exported.")
        seal = data[len(MAGIC) : len(MAGIC) + 32]
        start = len(MAGIC) + 48
        sizes = struct.unpack("<QQ", data[start - 16 : start])
        if start + sum(sizes) != len(data):
            raise BlobError("The exported model is cut off.")
        head, body = data[start : start + sizes[0]], data[start + sizes[0] :]
        if self.seal(head, body) != seal:
            raise BlobError("The exported model is damaged.")
        return json.loads(head), body

    def import_model(self, blob, properties):
        head, body = self.opened(blob)
        info = self.device_info("")
        if (head["device"], head["driver"]) != (info.device, info.driver):
            raise BlobError(f"The model was exported by {head['device']} {head['driver']}.")
        known = {**head["set"], **settings(properties)}
        model = read_model(body)
        return self.compile_model(model, type(properties).model_validate(known))


class SealsOnlyTheHead(Sealing):
    """It checks what it decides by, and trusts the disk with the weights."""

    def seal(self, head, body):
        return hashlib.sha256(head).digest()


class ImportsBytesAlone(Sealing):
    """It reads a blob with methods of bytes, and a cache hands it a view of mapped memory."""

    def opened(self, blob):
        if not blob.startswith(MAGIC):
            raise BlobError("This is no model that this device has exported.")
        return super().opened(blob)


class ExportsOnlyInputsThatAreRead(Sealing):
    """Its engine drops an input that no kernel reads, and with it the port of the import."""

    def exported(self, compiled):
        proto = compiled.model.to_onnx()
        read = {name for graph in graphs(proto.graph) for node in graph.node for name in node.input}
        read |= {value.name for value in proto.graph.output}
        left = [value for value in proto.graph.input if value.name in read]
        del proto.graph.input[:]
        proto.graph.input.extend(left)
        return proto


# ------------------------------------------------------------------- counters and reports


class CountsFusedOperationsTwice(Broken):
    """It says what a kernel has computed, and gives each of those its time as well."""

    def counters(self, runner):
        us = runner.elapsed_us
        names = [(op.name, op.op_type) for op in runner.compiled.model.ops]
        fused = tuple(name for name, _ in names[1:])
        return [
            ProfilingInfo(
                name, kind, "fused", real_time_us=us, cpu_time_us=us, covers=() if place else fused
            )
            for place, (name, kind) in enumerate(names)
        ]


class CountsTheLatestRequest(Broken):
    """It has one set of counters per model, where each request has a last run of its own."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            self.compiled.latest_us = self.elapsed_us
            return results

        def profiling_info(self):
            self.elapsed_us = vars(self.compiled).get("latest_us", 0.0)
            return super().profiling_info()


class BufferedRunner(GoodRunner):
    """Keeps its results in buffers, which are made anew when shapes change, and reports them."""

    buffers = ()

    def run(self, inputs, outputs=None):
        arrays = [tensor.numpy() for tensor in super().run(inputs)]
        forms = [(array.shape, array.dtype) for array in arrays]
        if forms != [(buffer.shape, buffer.dtype) for buffer in self.buffers]:
            self.buffers = [np.empty_like(array) for array in arrays]
        for buffer, array in zip(self.buffers, arrays, strict=True):
            buffer[...] = array
        return [partita.HostTensor(buffer) for buffer in self.buffers]

    def report(self):
        places = tuple(
            MemoryRange(buffer.__array_interface__["data"][0], buffer.nbytes)
            for buffer in self.buffers
            if not buffer.dtype.hasobject
        )
        return Execution((ExecutedStep(self.compiled.model.name, "run", writes=places),))

    def explain_execution(self):
        return self.report() if self.buffers else Execution()


class Reporting(Broken):
    """The base of faults of execution reports; correct itself."""

    runner_type = BufferedRunner


class ReportsThePlanOfItsFirstRun(Reporting):
    """It writes the report where it makes its plan, and makes another one for other shapes."""

    class runner_type(BufferedRunner):
        known = Execution()

        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            if not self.known.steps:
                self.known = self.report()
            return results

        def explain_execution(self):
            return self.known


# ------------------------------------------------------------------------------ failures


class TakesAFailureForACancel(Broken):
    """Its engine calls both an abort, and it was told apart where somebody had cancelled."""

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            raise InferCancelledError("The engine has aborted the run.") from error


class RaisesTheErrorOfTheRunBefore(Broken):
    """Its engine tells of a failure at the next call; the run that fails returns old results."""

    def compute(self, runner, arrays):
        late = vars(runner).pop("late", None)
        if late is not None:
            raise late
        try:
            runner.kept = super().compute(runner, arrays)
        except InferError as error:
            if "kept" not in vars(runner):
                raise
            runner.late = error
        return [array.copy() for array in runner.kept]


# ------------------------------------------------------------------- the process around it


class LeavesAWatchdogAfterAFailure(Broken):
    """Its watchdog is called off when a run has ended, if it has ended well."""

    def compute(self, runner, arrays):
        watchdog = threading.Timer(60.0, print, ("a run takes long",))
        watchdog.daemon = True
        watchdog.start()
        results = super().compute(runner, arrays)
        watchdog.cancel()
        return results


class SeedsTheProcessForItsTrials(Broken):
    """It tries kernels on random numbers, and wants them to be the same ones each time."""

    def compile_model(self, model, properties):
        np.random.seed(0)
        self.trial = np.random.rand(64)
        return super().compile_model(model, properties)


class NeverWaitsForItsCompiler(Broken):
    """It starts the assembler for each model, reads the result, and asks for no exit status."""

    def compile_model(self, model, properties):
        process = subprocess.Popen(["/bin/echo", "kernel"], stdout=subprocess.PIPE)
        with process.stdout as output:
            output.read()
        compiled = super().compile_model(model, properties)
        compiled.assembler = process
        return compiled


class KeepsEachModelForTheEnd(Broken):
    """It frees models when the process ends, and has the list of them kept for that."""

    class compiled_type(GoodCompiled):
        def release(self):
            self.evaluator = None

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        atexit.register(compiled.release)
        return compiled
