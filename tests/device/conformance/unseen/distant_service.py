"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

What a device's author builds around kernels and requests that are right: discovery, answers,
compiling, properties, caches and blobs, memory of cards, counters, errors, and the process.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import queue
import tempfile
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import pydantic
from broken_form import Broken
from good_device import GoodCompiled, GoodProperties, GoodRunner
from onnx import numpy_helper
from pydantic import Field

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import BlobError, CompileError, InferError
from partita.properties import validate
from partita.storage import exported_model
from partita.tensors.tensor import HostTensor, Tensor


def weights_of(model):
    """Arrays of its initializers by name."""
    held = model.ir.graph.initializers
    return {name: value.const_value.numpy() for name, value in held.items()}


def is_matrix(array):
    """Whether it is what a compiler packs."""
    return array.ndim == 2 and array.dtype.kind == "f"


def bodies_of(graph):
    """All graphs within a graph's operations, the outer ones first."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield body
                yield from bodies_of(body)


def packed(compiled, model, **more):
    """A blob in the usual form, of a model that may be another one than what was compiled."""
    header = {"properties": compiled.exported_properties(), "made_by": "", **more}
    return exported_model.pack(compiled.device.partition(".")[0], header, model)


# ---------------------------------------------------------------------- discovery and DeviceInfo


models_on_cards: weakref.WeakSet[GoodCompiled] = weakref.WeakSet()
"""What the driver knows to be compiled, in whichever Core."""


class ListsTheIdleCardFirst(Broken):
    """Whoever names no card wants the one with the least to do, so that is listed first."""

    def device_ids(self):
        busy = [compiled.device for compiled in models_on_cards]
        return sorted(("0", "1"), key=lambda card: busy.count(f"{self.device_name}.{card}"))

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id or 0}", f"Card {device_id or 0}")

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.device = f"{self.device_name}.{properties.DEVICE_ID or 0}"
        models_on_cards.add(made)
        return made


class HashesItsIdentity(Broken):
    """A hash of all that counts is a key as good as the text, and shorter."""

    def identity(self, properties):
        return f"{self.device_name}-{hash(super().identity(properties)) & (2**64 - 1):016x}"


# ------------------------------------------------------------------------------------- query_model


class RemembersVerdictsOfOperators(Broken):
    """Operator, types, ranks and attributes decide whether an operation is taken."""

    constant = ("Reshape", "Expand", "Tile", "Slice", "Squeeze", "Unsqueeze")

    def __init__(self):
        super().__init__()
        self.verdicts = {}

    def examined(self, op):
        value = op.node.inputs[1] if len(op.node.inputs) > 1 else None
        if op.op_type in self.constant and value is not None and value.const_value is None:
            code = partita.ReasonCode.VALUE_DEPENDENT_SHAPE
            return partita.Reason(code, f"'{value.name}' is not a constant")
        return super().verdict(op)

    def verdict(self, op):
        if op.op_type not in self.constant:
            return super().verdict(op)
        forms = [
            value and (value.dtype, None if value.shape is None else len(value.shape))
            for value in op.node.inputs
        ]
        key = f"{op.domain} {op.op_type} {op.version} {forms} {sorted(op.get_attributes().items())}"
        if key not in self.verdicts:
            self.verdicts[key] = self.examined(op)
        return self.verdicts[key]

    def compile_model(self, model, properties):
        for op in model.ops:
            reason = self.examined(op)
            if reason is not None:
                raise CompileError(f"'{op.name}' is not taken: {reason}")
        return self.compiled_type(self, model, properties)


class DoesNotAnswerForWhatItFolds(Broken):
    """What is computed of constants when the model is compiled is no operation any more."""

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        constants = set(model.ir.graph.initializers)
        for op in model.ops:
            read = [name for name in op.inputs if name]
            if read and constants.issuperset(read) and op.name in answer:
                del answer[op.name]
                constants.update(op.outputs)
        return answer


class FitsEachWeightAlone(Broken):
    """There is room for the weights if there is room for those of each operation."""

    room = 1 << 20

    def verdict(self, op):
        held = {value.name: value.const_value for value in op.node.inputs if value is not None}
        size = sum(weight.nbytes for weight in held.values() if weight is not None)
        if size > self.room:
            detail = f"{size} bytes of weights; there is room for {self.room}"
            return partita.Reason(partita.ReasonCode.MEMORY_LIMIT, detail)
        return super().verdict(op)

    def compile_model(self, model, properties):
        if model.weight_bytes > self.room:
            raise CompileError(
                f"'{model.name}' has {model.weight_bytes} bytes of weights; there is room for "
                f"{self.room}."
            )
        return super().compile_model(model, properties)


class HandsOutOneAnswer(Broken):
    """An answer that was given once is handed out again; whoever gets it only reads it."""

    def __init__(self):
        super().__init__()
        self.answers = OrderedDict()

    def query_model(self, model, properties):
        content = model.to_onnx().SerializeToString(deterministic=True)
        key = hashlib.sha256(content).digest()
        if key not in self.answers:
            self.answers[key] = super().query_model(model, properties)
            while len(self.answers) > 64:
                self.answers.popitem(last=False)
        return self.answers[key]


# ----------------------------------------------------------------------------------- compile_model


class FoldsDivisionsByNumpy(Broken):
    """What numpy makes of constants is what ONNX makes of them."""

    def prepare(self, proto):
        graph = proto.graph
        held = {tensor.name: tensor for tensor in graph.initializer}
        for node in list(graph.node):
            if node.op_type != "Div" or node.domain or any(name not in held for name in node.input):
                continue
            above, below = (numpy_helper.to_array(held[name]) for name in node.input)
            if above.dtype.kind not in "iu" or not below.all():
                continue
            folded = numpy_helper.from_array(np.asarray(above // below), node.output[0])
            graph.initializer.append(folded)
            held[folded.name] = folded
            graph.node.remove(node)
        return proto


class HoistsWeightsOfBodiesByName(Broken):
    """Weights of branches and loops are uploaded with all others, under their names."""

    def prepare(self, proto):
        known = {tensor.name for tensor in proto.graph.initializer}
        for body in bodies_of(proto.graph):
            for tensor in body.initializer:
                if tensor.name not in known:
                    known.add(tensor.name)
                    proto.graph.initializer.append(tensor)
            del body.initializer[:]
        return proto


class MergesWeightsThatPrintAlike(Broken):
    """Weights that are the same text are the same weight, and uploaded once."""

    def prepare(self, proto):
        seen = {}
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            first = seen.setdefault(f"{array.dtype} {array.shape} {array}", tensor)
            if first is not tensor:
                name = tensor.name
                tensor.CopyFrom(first)
                tensor.name = name
        return proto


class CutsLongNames(Broken):
    """The driver finds weights by names of up to 63 letters, which is more than anybody needs."""

    def prepare(self, proto):
        table = {}
        for tensor in proto.graph.initializer:
            table[tensor.name[:63], tensor.data_type, *tensor.dims] = tensor
        for tensor in proto.graph.initializer:
            found = table[tensor.name[:63], tensor.data_type, *tensor.dims]
            if found is not tensor:
                name = tensor.name
                tensor.CopyFrom(found)
                tensor.name = name
        return proto


class Program:
    """What a device runs, as long as a model needs it."""

    def __init__(self, compiled):
        self.evaluator, self.names = compiled.evaluator, [port.name for port in compiled.inputs]


class KeysProgramsWithoutNames(Broken):
    """Names change nothing, so programs are kept by operators, attributes, weights and ports."""

    def __init__(self):
        super().__init__()
        self.programs = weakref.WeakValueDictionary()

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        digest = hashlib.sha256()
        for op in model.ops:
            node = ir.to_proto(op.node)
            digest.update(f"{op.domain} {op.op_type} {op.version} {len(op.inputs)}\n".encode())
            for attribute in sorted(node.attribute, key=lambda one: one.name):
                digest.update(attribute.SerializeToString(deterministic=True))
        for array in weights_of(model).values():
            content = str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
            digest.update(f"{array.dtype}{array.shape}".encode() + content)
        digest.update(str([(port.dtype, port.shape) for port in model.inputs]).encode())
        digest.update(str(len(model.outputs)).encode())
        made.program = self.programs.setdefault(digest.digest(), Program(made))
        return made

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.take_over(compiled.program.evaluator)
            self._names = compiled.program.names


class FreesSharedWeightsWithTheirFirstModel(Broken):
    """Equal weights lie on the card once; who has uploaded them frees them."""

    def __init__(self):
        super().__init__()
        self.uploaded = {}

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        own = []
        for name, array in made.evaluator.rt_inits_.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.nbytes < 64:
                continue
            key = array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()
            with self.lock:
                if key not in self.uploaded:
                    self.uploaded[key] = array.copy()
                    own.append(key)
                made.evaluator.rt_inits_[name] = self.uploaded[key]
        weakref.finalize(made, self.free, self.uploaded, own)
        return made

    @staticmethod
    def free(uploaded, keys):
        for key in keys:
            uploaded.pop(key).fill(0)  # others write there next


class LetsGoOfLargeWeights(Broken):
    """What is on the device is not needed on the host any more."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            for value in self.model.ir.graph.initializers.values():
                if value.const_value.nbytes >= 4096:
                    value.const_value = None


# -------------------------------------------------------------------------------------- properties


class ReadsYesInCapitals(Broken):
    """Who wants counters says True or YES."""

    class properties_type(GoodProperties):
        @pydantic.field_validator("PERF_COUNT", mode="before")
        @classmethod
        def read(cls, value):
            return value if isinstance(value, bool) else value == "YES"


class PromisesWhatItsHintSays(Broken):
    """A hint binds nobody, so it is kept as it was given, and all is computed as ever."""

    class properties_type(GoodProperties):
        INFERENCE_PRECISION_HINT: Literal["f32", "f16"] = Field(
            "f32", description="The element type to compute float32 in, if the device can."
        )


class DividesWorkByItsLevel(Broken):
    """Work is shared by a number that is at least 1, whatever the property's limits say."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.share = -(-len(self.model.ops) // properties.LEVEL)


class LeavesItsModeOutOfItsIdentity(Broken):
    """A mode changes how weights lie and no result, so caches need not know of it."""

    def identity(self, properties):
        settings = properties.model_dump(exclude_unset=True, exclude={"MODE"})
        return super().identity(type(properties)(**settings))

    def restore_model(self, model, properties, state):
        made = self.compile_model(model, properties)
        for name, laid in state.items():
            shape = made.evaluator.rt_inits_[name].shape
            by_rows = properties.MODE == "ONE"
            array = laid.reshape(shape) if by_rows else laid.reshape(shape[::-1]).T
            made.evaluator.rt_inits_[name] = np.array(array, order="C")
        return made

    class compiled_type(GoodCompiled):
        def export_state(self):
            by_rows = self.properties.MODE == "ONE"
            found = {name: one for name, one in weights_of(self.model).items() if is_matrix(one)}
            return {
                name: np.ascontiguousarray(array if by_rows else array.T).reshape(-1)
                for name, array in found.items()
            }


# ------------------------------------------------------------------------------------------- blobs


class SavesWeightsInHalf(Broken):
    """Half precision is enough for weights in a file, and the file is half as large."""

    class compiled_type(GoodCompiled):
        def export_model(self):
            model = self.model.clone()
            for name, value in model.ir.graph.initializers.items():
                array = value.const_value.numpy()
                if array.dtype == np.float32:
                    with np.errstate(over="ignore"):
                        half = array.astype(np.float16)
                    value.const_value = ir.tensor(half.astype(np.float32), name=name)
            return packed(self, model)


class LeavesWeightsInTheirFiles(Broken):
    """Weights that lie in files of their own are found there again; a blob holds the places."""

    class compiled_type(GoodCompiled):
        def export_model(self):
            model = self.model.clone()
            places = {}
            for name, value in model.ir.graph.initializers.items():
                weight = value.const_value
                if not isinstance(weight, ir.ExternalTensor):
                    continue
                places[name] = [str(weight.path), weight.offset or 0]
                empty = np.zeros(tuple(weight.shape), weight.dtype.numpy())
                value.const_value = ir.tensor(empty, weight.dtype, name=name)
            return packed(self, model, places=places)

    def import_model(self, blob, properties):
        content = exported_model.unpack(blob, self.device_name)
        stored = validate(self.properties_type, content.header["properties"], "The blob")
        given = properties.model_dump(exclude_unset=True)
        merged = validate(self.properties_type, given, "The blob", stored)
        for name, (path, offset) in content.header["places"].items():
            value = content.model.ir.graph.initializers[name]
            form = value.const_value.numpy()
            try:
                array = np.fromfile(path, form.dtype, form.size, offset=offset)
                array = array.reshape(form.shape)
            except (OSError, ValueError) as error:
                raise BlobError(f"The weight '{name}' is not in '{path}': {error}") from error
            value.const_value = ir.tensor(array, value.const_value.dtype, name=name)
        return self.compile_model(content.model, merged)


class LosesNotesOnPortsInBlobs(Broken):
    """Of a port, name, type and shape are all there is to be written down."""

    class compiled_type(GoodCompiled):
        def export_model(self):
            model = self.model.clone()
            for value in (*model.ir.graph.inputs, *model.ir.graph.outputs):
                value.metadata_props.clear()
            return packed(self, model)


class NamesPackedWeightsByShape(Broken):
    """A packed weight is called after its kernel, which its shape decides."""

    @staticmethod
    def label(array):
        return f"packed_{array.dtype}_{'x'.join(map(str, array.shape))}"

    def restore_model(self, model, properties, state):
        made = self.compile_model(model, properties)
        for name, array in made.evaluator.rt_inits_.items():
            if isinstance(array, np.ndarray) and self.label(array) in state:
                made.evaluator.rt_inits_[name] = np.array(state[self.label(array)])
        return made

    class compiled_type(GoodCompiled):
        def export_state(self):
            found = [array for array in weights_of(self.model).values() if is_matrix(array)]
            return {self.plugin.label(array): array for array in found}


# --------------------------------------------------------------------------------- memory of cards


class CardTensor(Tensor):
    """A tensor in a card's memory: a handle that only this card can follow."""

    __slots__ = ("__weakref__", "card", "device", "dtype", "handle", "memory", "plugin", "shape")

    def __init__(self, plugin, card, array):
        self.plugin, self.card = plugin, card
        self.shape, self.dtype = tuple(array.shape), array.dtype
        self.device, self.memory = f"{plugin.device_name}.{card}", plugin.memory_of(card)
        self.handle = next(plugin.handles[card])
        plugin.heaps[card][self.handle] = array

    def numpy(self):
        self.plugin.finish(self)
        return np.array(self.plugin.heaps[self.card][self.handle], order="C")

    def __del__(self):
        self.plugin.heaps[self.card].pop(self.handle, None)


class CardCompiled(GoodCompiled):
    """Takes tensors of its own card as they are."""

    @property
    def card(self):
        return self.properties.DEVICE_ID or "0"

    def takes_memory(self, memory):
        return memory in ("host", self.plugin.memory_of(self.card))


class CardRunner(GoodRunner):
    """Follows handles on its own card."""

    def run(self, inputs, outputs=None):
        plugin, card = self.compiled.plugin, self.compiled.card
        seen = []
        for tensor in inputs:
            if not isinstance(tensor, CardTensor):
                seen.append(tensor)
                continue
            plugin.finish(tensor)
            array = plugin.heaps[card].get(tensor.handle)
            if array is None or (array.shape, array.dtype) != (tensor.shape, tensor.dtype):
                raise InferError(f"Card {card} has no buffer {tensor.handle} for {tensor!r}.")
            seen.append(HostTensor(array))
        return super().run(seen, outputs)


class Cards:
    """Two cards with memory of their own, put before a device: all of this is right."""

    compiled_type = CardCompiled
    runner_type = CardRunner

    def __init__(self):
        super().__init__()
        self.heaps = {"0": {}, "1": {}}
        self.handles = {"0": itertools.count(1), "1": itertools.count(1)}

    def memory_of(self, card):
        return f"{self.device_name.lower()}:{card or 0}"

    def device_ids(self):
        return ("0", "1")

    def device_info(self, device_id):
        card = device_id or "0"
        memory = self.memory_of(card)
        return DeviceInfo(f"{self.device_name}.{card}", f"Card {card}", memory=memory)

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.device = f"{self.device_name}.{made.card}"
        return made

    def can_share(self, memory, device_id=""):
        return memory == self.memory_of(device_id)

    def transfer_to(self, tensor, device_id=""):
        array = np.array(tensor.numpy(), order="C")
        return HostTensor(array) if array.dtype.hasobject else self.upload(array, device_id)

    def upload(self, array, card):
        return CardTensor(self, card or "0", array)

    def finish(self, sent):
        """Waits for a tensor's upload."""

    def deliver(self, runner, arrays, outputs):
        card = runner.compiled.card
        return [
            HostTensor(array) if array.dtype.hasobject else self.upload(np.array(array), card)
            for array in arrays
        ]


class StagesSmallUploadsOnly(Cards, Broken):
    """A copy to the card that was started is as good as made, as was seen with some kilobytes."""

    staged = 64 << 10

    def __init__(self):
        super().__init__()
        self.started = weakref.WeakKeyDictionary()

    def transfer_to(self, tensor, device_id=""):
        sent = super().transfer_to(tensor, device_id)
        if isinstance(sent, CardTensor) and tensor.nbytes > self.staged:
            self.started[sent] = tensor.numpy()
        return sent

    def finish(self, sent):
        source = self.started.pop(sent, None)
        if source is not None:
            self.heaps[sent.card][sent.handle][...] = source


class SharesMemoryByItsPrefix(Cards, Broken):
    """Memory whose name begins like the device's own is memory of the card."""

    class compiled_type(CardCompiled):
        def takes_memory(self, memory):
            return memory == "host" or self.plugin.can_share(memory, self.card)

    def can_share(self, memory, device_id=""):
        return memory.partition(":")[0] == self.device_name.lower()


class KnowsTypesByTheirLetters(Cards, Broken):
    """A type's letter and size, as ``<f4``, are the type."""

    def upload(self, array, card):
        sent = np.empty(array.shape, np.dtype(array.dtype.str))
        sent.reshape(-1).view(np.uint8)[...] = array.reshape(-1).view(np.uint8)
        return super().upload(sent, card)


class PinsOneArrayForAShape(Cards, Broken):
    """Page-locked memory is dear, so there is one array for all results of a shape and type."""

    class compiled_type(CardCompiled):
        def host_array(self, shape, dtype):
            pinned = vars(self).setdefault("pinned", {})
            return pinned.setdefault((shape, dtype), np.empty(shape, dtype))

    class runner_type(CardRunner):
        def bind(self, inputs, outputs, scratch=None):
            if any(not isinstance(tensor, HostTensor) for tensor in outputs):
                return None
            return RunAgain(self, inputs, outputs)


class RunAgain(BoundCall):
    """Runs, and downloads to where the outputs are to be."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class RunsOnTheCardOfTheThread(Cards, Broken):
    """The card is chosen when a model is compiled, and stays chosen while the model is there."""

    def __init__(self):
        super().__init__()
        self.chosen = threading.local()

    def compile_model(self, model, properties):
        self.chosen.card = properties.DEVICE_ID or "0"
        return super().compile_model(model, properties)

    def compute(self, runner, arrays):
        card = getattr(self.chosen, "card", "0")
        if runner.compiled.card != card:
            raise InferError(f"Card {card}: invalid resource handle.")
        return super().compute(runner, arrays)


class TakesBackMemoryOfViews(Broken):
    """Page-locked memory is free again once the array that was handed out is gone."""

    def __init__(self):
        super().__init__()
        self.free = {}

    def host_memory(self, nbytes, device_id=""):
        with self.lock:
            spare = self.free.setdefault(nbytes, [])
            block = spare.pop() if spare else np.zeros(nbytes, np.uint8)
        lent = block[:]
        weakref.finalize(lent, spare.append, block)
        return lent


# --------------------------------------------------------------------------------------- counters


class KeepsCountersInTheModel(Broken):
    """The last run of a model is the last run of whoever asks for its counters."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            self.compiled.last_us = self.elapsed_us
            return results

        def profiling_info(self):
            self.elapsed_us = getattr(self.compiled, "last_us", 0.0)
            return super().profiling_info()


class GivesEachOperationTheWholeTime(Broken):
    """Operations are not timed one by one, so each is told the time of what it ran in."""

    def counters(self, runner):
        us = runner.elapsed_us
        return [
            ProfilingInfo(op.name, op.op_type, "reference", real_time_us=us, cpu_time_us=us)
            for op in runner.compiled.model.ops
        ]


# ------------------------------------------------------------------------------ errors and settings


class IgnoresTheDriversErrors(Broken):
    """What was started has worked; the results lie where they always lie."""

    def compute(self, runner, arrays):
        forms = [(array.shape, array.dtype) for array in arrays]
        try:
            results = super().compute(runner, arrays)
        except InferError:
            before = vars(runner).get("left")
            if before is None or before[0] != forms:
                raise
            return [np.array(array) for array in before[1]]
        runner.left = forms, [np.array(array) for array in results]
        return results


class KeepsTheQueueWhenItFails(Broken):
    """Who has taken the device's queue for a run gives it back behind the run."""

    def __init__(self):
        super().__init__()
        self.queue = threading.Lock()

    def compute(self, runner, arrays):
        if not self.queue.acquire(timeout=2):
            raise InferError("The device is busy.")
        results = super().compute(runner, arrays)
        self.queue.release()
        return results


class OverridesSettingsForDecoders(Broken):
    """For language models the device knows best which level is good."""

    def for_decoder(self, request, properties):
        long = request.prompt is not None and request.prompt > 512
        return {"LEVEL": 8 if long else 4}


# -------------------------------------------------------------------------------- process and more


class StaysInItsFolderWhenItFails(Broken):
    """The compiler wants its files in the working directory, which is set back behind it."""

    def compile_model(self, model, properties):
        before = Path.cwd()
        os.chdir(tempfile.gettempdir())
        made = super().compile_model(model, properties)
        os.chdir(before)
        return made


class SeedsTheProcess(Broken):
    """Kernels are chosen by numbers that are the same in each compile."""

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        np.random.seed(0)
        made.sample = np.random.rand(16)
        return made


class WaitsInAThreadOfItsOwn(Broken):
    """A request's thread talks to the driver, and whoever is done with the request closes it."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.asked, self.told = queue.SimpleQueue(), queue.SimpleQueue()
            self.thread = threading.Thread(target=self.serve, daemon=True)
            self.thread.start()

        def serve(self):
            while (call := self.asked.get()) is not None:
                try:
                    self.told.put((super().run(*call), None))
                except Exception as error:  # noqa: BLE001  # raised where the run was asked for
                    self.told.put((None, error))

        def run(self, inputs, outputs=None):
            self.asked.put((inputs, outputs))
            results, error = self.told.get()
            if error is not None:
                raise error
            return results

        def close(self):
            self.asked.put(None)
            self.thread.join()
