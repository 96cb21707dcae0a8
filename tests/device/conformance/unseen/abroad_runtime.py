"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

The second half is of services around them.
"""

from __future__ import annotations

import collections
import functools
import gc
import json
import os
import tempfile
import threading
import time
import weakref
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from good_device import Good, GoodCompiled, GoodProperties, GoodRunner
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from pydantic import field_validator

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import (
    BlobError,
    BoundCallEndedError,
    CompileError,
    InferCancelledError,
    InferError,
)
from partita.frontends.reader import read_model


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


class Call(BoundCall):
    """A bound call that runs its runner."""

    def __init__(self, runner, inputs, outputs, scratch):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)
        self.scratch = scratch

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindingRunner(GoodRunner):
    """Offers bound calls of some type."""

    call_type = Call

    def bind(self, inputs, outputs, scratch=None):
        return self.call_type(self, inputs, outputs, scratch)


class PatchedCompiled(GoodCompiled):
    """Lets the plugin compute one operator, in bodies too."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.held = threading.local()
        self.patch(self.evaluator)

    def patch(self, evaluator):
        for node in evaluator.rt_nodes_:
            for own in vars(node).values():
                if isinstance(own, ReferenceEvaluator):
                    self.patch(own)
            if (node.onnx_node.domain, node.op_type) == ("", self.plugin.op_type):
                node.run = functools.partial(self.run_kernel, node)

    def run_kernel(self, node, *inputs, **attributes):
        held = vars(self.held).setdefault("nodes", {}).setdefault(id(node), {})
        right = functools.partial(type(node).run, node)
        return self.plugin.kernel(held, right, *inputs, **attributes)


def refused(detail, code=partita.ReasonCode.UNSUPPORTED_OP):
    """A verdict against an operation."""
    return partita.Reason(code, detail)


def address_of(array):
    """Where an array begins."""
    return array.__array_interface__["data"][0]


def copies_of(arrays):
    """Arrays of one's own."""
    return [np.array(array) for array in arrays]


def weight_bytes(op):
    """What an operation's constants take."""
    held = [value.const_value for value in op.node.inputs if value is not None]
    return sum(tensor.nbytes for tensor in held if tensor is not None)


def same_memory(model):
    """Of each value the one that it is by way of Identity."""
    origin = {}
    for op in model.ops:
        if op.op_type == "Identity" and not op.domain:
            origin[op.outputs[0]] = origin.get(op.inputs[0], op.inputs[0])
    return origin


# Runtimes


class ScalarsCall(Call):
    def __init__(self, runner, inputs, outputs, scratch):
        super().__init__(runner, inputs, outputs, scratch)
        self.inputs = [
            partita.HostTensor(np.array(tensor.numpy())) if tensor.size == 1 else tensor
            for tensor in inputs
        ]


class ScalarsRunner(BindingRunner):
    call_type = ScalarsCall


class RecordsScalarsWithTheLaunch(Broken):
    """The author passes inputs of one element as arguments, and a recorded launch has theirs."""

    runner_type = ScalarsRunner


class AddressesCall(Call):
    def rebind(self, inputs):
        moved = {}
        for old, new in zip(self.inputs, inputs, strict=True):
            moved[address_of(old.numpy())] = new
        self.inputs = [moved[address_of(old.numpy())] for old in self.inputs]
        return True


class AddressesRunner(BindingRunner):
    call_type = AddressesCall


class PatchesArgumentsByAddress(Broken):
    """The author finds the arguments to exchange by their address, which two ports may share."""

    runner_type = AddressesRunner


class CroppedCall(Call):
    def __call__(self):
        results = self.runner.run(self.inputs)
        for result, output in zip(results, self.outputs, strict=True):
            target, source = output.numpy(), result.numpy()
            count = min(target.size, source.size)
            target.reshape(-1)[:count] = source.reshape(-1)[:count]


class CroppedRunner(BindingRunner):
    call_type = CroppedCall


class CopiesWhatFitsTheBinding(Broken):
    """The author took it that outputs keep the shape that they had when they were bound."""

    runner_type = CroppedRunner


class TableCall(Call):
    def __init__(self, runner, inputs, outputs, scratch):
        super().__init__(runner, inputs, outputs, scratch)
        room = np.zeros(8 * len(outputs), np.uint8) if scratch is None else scratch
        self.counts = room.reshape(-1).view(np.uint8)[: 8 * len(outputs)].view(np.int64)
        self.counts[:] = [tensor.size for tensor in outputs]

    def __call__(self):
        results = self.runner.run(self.inputs)
        for result, output, count in zip(results, self.outputs, self.counts, strict=True):
            if result.shape != output.shape:
                raise BoundCallEndedError("another shape")
            count = min(max(int(count), 0), output.size)
            output.numpy().reshape(-1)[:count] = result.numpy().reshape(-1)[:count]


class TableRunner(BindingRunner):
    call_type = TableCall


class TableCompiled(GoodCompiled):
    @property
    def scratch_bytes(self):
        return 8 * len(self.outputs)


class KeepsTablesInTheScratch(Broken):
    """The author writes the table of counts to the lent scratch once, as if nobody else used it."""

    runner_type = TableRunner
    compiled_type = TableCompiled


class NotesShapesBeforeTheyAreReady(Broken):
    """The author notes the shapes of a run first, and plans the outputs once it has succeeded."""

    def compute(self, runner, arrays):
        shapes = [array.shape for array in arrays]
        own = vars(runner)
        known = own.get("noted") == shapes
        own["noted"] = shapes
        results = runner.evaluate(arrays)
        if known and own.get("planned_for") != shapes and "planned" in own:
            return [np.resize(x, y) for x, y in zip(results, own["planned"], strict=True)]
        own["planned_for"], own["planned"] = shapes, [x.shape for x in results]
        return results


class TellsChangesByXor(Broken):
    """The author uploads an input again if the exclusive or of its words is another one."""

    def compute(self, runner, arrays):
        uploaded = vars(runner).setdefault("uploaded", {})
        for index, array in enumerate(arrays):
            if array.dtype == object or array.nbytes < 64:
                continue
            words = np.frombuffer(array.tobytes().ljust(-(-array.nbytes // 8) * 8, b"\0"), np.int64)
            key = array.shape, address_of(array), int(np.bitwise_xor.reduce(words))
            if index not in uploaded or uploaded[index][0] != key:
                uploaded[index] = key, np.array(array)
            arrays[index] = uploaded[index][1]
        return runner.evaluate(arrays)


class StagesWholeVectorsOnly(Broken):
    """The author copies inputs that no vector can load by vectors of 16 bytes, without the rest."""

    def compute(self, runner, arrays):
        for index, array in enumerate(arrays):
            if array.dtype == object or array.nbytes < 16 or address_of(array) % 16 == 0:
                continue
            raw = bytearray(array.tobytes())
            rest = len(raw) % 16
            raw[len(raw) - rest :] = bytes(rest)
            arrays[index] = np.frombuffer(raw, array.dtype).reshape(array.shape)
        return runner.evaluate(arrays)


class RemembersWhereOutputsWent(Broken):
    """The author takes an output that is not given to go where it was last lent a place."""

    def deliver(self, runner, arrays, outputs):
        places = vars(runner).setdefault("places", {})
        if outputs is not None:
            outputs = list(outputs)
            for index, (array, given) in enumerate(zip(arrays, outputs, strict=True)):
                if given is not None:
                    places[index] = given
                elif index in places and places[index].shape == array.shape:
                    outputs[index] = places[index]
        return super().deliver(runner, arrays, outputs)


class Arena:
    """Blocks of a thread; they are wiped when it ends."""

    def __init__(self):
        self.blocks = collections.deque(maxlen=8)

    def __del__(self):
        for block in self.blocks:
            block.fill(0)


class FreesResultsWithTheThread(Broken):
    """The author allocates results in an arena of the thread, which ends with the thread."""

    def __init__(self):
        super().__init__()
        self.arenas = threading.local()

    def deliver(self, runner, arrays, outputs):
        arena = vars(self.arenas).setdefault("arena", None) or Arena()
        self.arenas.arena = arena
        arena.blocks.extend(array for array in arrays if array.dtype != object)
        return super().deliver(runner, arrays, outputs)


class RememberingRunner(GoodRunner):
    stopped = False

    def cancel(self):
        self.stopped = True


class TreatsCancelledRunsAsDone(Broken):
    """The author computes nothing for the inputs of the last run, even if that was cancelled."""

    runner_type = RememberingRunner

    def compute(self, runner, arrays):
        own = vars(runner)
        runner.stopped = False
        plain = all(array.dtype != object for array in arrays)
        key = [(array.shape, array.tobytes()) for array in arrays] if plain else None
        if key is not None and own.get("key") == key and "results" in own:
            return copies_of(own["results"])
        own["key"] = key
        try:
            results = runner.evaluate(arrays)
        except InferError:
            own["key"] = None
            raise
        if runner.stopped:
            raise InferCancelledError("The run was cancelled.")
        own["results"] = copies_of(results)
        return results


class StoppingRunner(GoodRunner):
    def cancel(self):
        self.compiled.stopped = True


class CancelsAllRequestsOfTheModel(Broken):
    """The author has one word to stop by for a compiled model, as his programs have one."""

    runner_type = StoppingRunner

    def compute(self, runner, arrays):
        runner.compiled.stopped = False
        results = runner.evaluate(arrays)
        if runner.compiled.stopped:
            raise InferCancelledError("The run was cancelled.")
        return results


class HashesShapesByThirtyOne(Broken):
    """The author looks programs up by a hash of all dimensions, and compares nothing else."""

    def compute(self, runner, arrays):
        key = 7
        for array in arrays:
            for size in array.shape:
                key = (31 * key + size) % (1 << 32)
        shapes = [array.shape for array in arrays]
        results = runner.evaluate(arrays)
        programs = vars(runner).setdefault("programs", {})
        made_for, formed = programs.get(key, (shapes, None))
        if made_for != shapes:
            return [np.resize(x, y) for x, y in zip(results, formed, strict=True)]
        programs[key] = shapes, [array.shape for array in results]
        return results


class ReducesOverTheCapacity(Broken):
    """The author keeps the room of the longest batch so far, and takes what lies behind for pad."""

    compiled_type = PatchedCompiled
    op_type = "ReduceMax"

    def kernel(self, held, right, data, *others, **attributes):
        results = right(data, *others, **attributes)
        room = held.get("room")
        fits = room is not None and room.ndim == data.ndim > 0 and room.shape[1:] == data.shape[1:]
        if not fits or len(room) <= len(data):
            held["room"] = np.array(data)
            return results
        room[: len(data)] = data
        whole = right(room, *others, **attributes)
        return whole if np.shape(whole[0]) == np.shape(results[0]) else results


class SkipsLaunchesOverNothing(Broken):
    """The author launches nothing for an input without elements, and outputs are what they were."""

    def compute(self, runner, arrays):
        own = vars(runner)
        results = runner.evaluate(arrays)
        last = own.get("last")
        if any(array.size == 0 for array in arrays) and last is not None:
            forms = [(x.shape, x.dtype) for x in results]
            return copies_of(last) if forms == [(x.shape, x.dtype) for x in last] else results
        own["last"] = copies_of(results)
        return results


class AddsUpCounters(Broken):
    """The author's counters go on from run to run, as those of his driver do."""

    def deliver(self, runner, arrays, outputs):
        runner.total_us = vars(runner).get("total_us", 0.0) + runner.elapsed_us
        return super().deliver(runner, arrays, outputs)

    def counters(self, runner):
        us = vars(runner).get("total_us", 0.0)
        names = [op.name for op in runner.compiled.model.ops]
        return [ProfilingInfo(name, "Model", "kernel", real_time_us=us) for name in names[:1]]


class TurnsLentImagesInPlace(Broken):
    """The author turns images to channels last where they lie, and back again behind the run."""

    def compute(self, runner, arrays):
        given = copies_of(arrays)
        turned = [a for a in arrays if a.ndim == 4 and a.dtype != object and a.flags.writeable]
        kept = copies_of(turned)
        for array in turned:
            array[...] = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).reshape(array.shape)
        results = runner.evaluate(given)
        for array, before in zip(turned, kept, strict=True):
            array[...] = before
        return results


class PassesReadOnlyInputsThrough(Broken):
    """The author copies no input to an output if nobody can write to it."""

    def compute(self, runner, arrays):
        results = runner.evaluate(arrays)
        origin = same_memory(runner.compiled.model)
        places = {port.name: index for index, port in enumerate(runner.compiled.inputs)}
        for index, port in enumerate(runner.compiled.outputs):
            place = places.get(origin.get(port.name, port.name))
            if place is not None and not arrays[place].flags.writeable:
                results[index] = arrays[place]
        return results


class AnswersTwinsWithOneTensor(Broken):
    """The author lets outputs that are one value be one tensor, once one of them has a place."""

    def deliver(self, runner, arrays, outputs):
        delivered = super().deliver(runner, arrays, outputs)
        origin = same_memory(runner.compiled.model)
        names = [origin.get(port.name, port.name) for port in runner.compiled.outputs]
        for index, given in enumerate(outputs or ()):
            twin = names.index(names[index])
            if given is None and outputs[twin] is not None:
                delivered[index] = delivered[twin]
        return delivered


class StateCompiled(GoodCompiled):
    """Names outputs that are written over a cache which nothing else reads."""

    def in_place_outputs(self):
        inputs = {port.name: index for index, port in enumerate(self.inputs)}
        outputs = {port.name: index for index, port in enumerate(self.outputs)}
        read = [name for op in self.model.ops for name in op.inputs]
        return {
            outputs[op.outputs[0]]: inputs[op.inputs[0]]
            for op in self.model.ops
            if op.op_type in ("ScatterND", "ScatterElements", "TensorScatter")
            and op.outputs[0] in outputs
            and op.inputs[0] in inputs
            and read.count(op.inputs[0]) == 1
        }


class TrustingRunner(GoodRunner):
    def run(self, inputs, outputs=None):
        inputs = list(inputs)
        own = vars(self).setdefault("own", {})
        pairs = self.compiled.in_place_outputs() if outputs is not None else {}
        states = {o: inputs[i] for o, i in pairs.items() if outputs[o] is inputs[i]}
        for index, state in states.items():
            if index in own and own[index][0] is state:
                inputs[pairs[index]] = partita.HostTensor(own[index][1])
        results = super().run(inputs, outputs)
        for index, state in states.items():
            own[index] = state, np.array(results[index].numpy())
        return results


class TrustsItsCopyOfTheState(Broken):
    """The author keeps a cache on his device, and looks no more at what the host does to it."""

    compiled_type = StateCompiled
    runner_type = TrustingRunner


class TurningRunner(GoodRunner):
    def leave_results(self):
        return True


class LeavesTwoResultsInTurn(Broken):
    """The author has two buffers by turns, and says that nobody writes to a result again."""

    runner_type = TurningRunner

    def deliver(self, runner, arrays, outputs):
        own = vars(runner)
        own["turn"] = 1 - own.get("turn", 0)
        buffers = own.setdefault("buffers", {})
        for index, array in enumerate(arrays):
            if array.dtype != object:
                buffer = buffers.get((own["turn"], index))
                if buffer is None or buffer.shape != array.shape:
                    buffer = buffers[own["turn"], index] = np.empty_like(array)
                buffer[...] = array
                arrays[index] = buffer
        return super().deliver(runner, arrays, outputs)


class DownloadsWithoutWaiting(Broken):
    """The author starts the copy of a large result to its place, and lets the run end meanwhile."""

    def deliver(self, runner, arrays, outputs):
        late = [
            (given, array)
            for given, array in zip(outputs or (), arrays, strict=False)
            if given is not None and array.nbytes >= 1 << 18 and array.dtype != object
        ]
        if not late:
            return super().deliver(runner, arrays, outputs)

        def download():
            time.sleep(0.005)
            for given, array in late:
                given.numpy()[...] = array

        threading.Thread(target=download, daemon=True).start()
        waited = [id(given) for given, _ in late]
        now = [None if id(given) in waited else given for given in outputs]
        delivered = super().deliver(runner, arrays, now)
        return [
            given if id(given) in waited else tensor
            for given, tensor in zip(outputs, delivered, strict=True)
        ]


class StoresWholeVectors(Broken):
    """The author stores the last vector of a result whole where the memory goes on behind it."""

    def deliver(self, runner, arrays, outputs):
        delivered = super().deliver(runner, arrays, outputs)
        for given in outputs or ():
            array = None if given is None else given.numpy()
            base = array
            while base is not None and isinstance(base.base, np.ndarray):
                base = base.base
            if array is None or base is array or array.dtype == object or base.dtype == object:
                continue
            if not (base.flags.c_contiguous and base.flags.writeable):
                continue
            end = address_of(array) + array.nbytes - address_of(base)
            base.reshape(-1).view(np.uint8)[end : end + -array.nbytes % 16] = 0
        return delivered


class ComparesInputsAsNumbers(Broken):
    """The author computes nothing for inputs that equal the last ones, as -0 equals 0."""

    def compute(self, runner, arrays):
        own = vars(runner)
        last = own.get("last")
        plain = all(array.dtype != object for array in arrays)
        if plain and last is not None and all(map(np.array_equal, last[0], arrays)):
            return copies_of(last[1])
        results = runner.evaluate(arrays)
        own["last"] = (copies_of(arrays), copies_of(results)) if plain else None
        return results


class WritesBordersOnce(Broken):
    """The author writes the border of a padded buffer when he makes it, then only what moves."""

    compiled_type = PatchedCompiled
    op_type = "Pad"

    def kernel(self, held, right, data, *others, **attributes):
        results = right(data, *others, **attributes)
        constant = (attributes.get("mode") or "constant") in ("constant", b"constant")
        if not constant or not others or data.dtype == object:
            return results
        inside = right(np.ones(data.shape, np.float32), others[0], None, *others[2:], **attributes)
        buffer = held.get(results[0].shape)
        if buffer is None or len(held) > 8:
            held[results[0].shape] = np.array(results[0])
            return results
        buffer[...] = np.where(inside[0] != 0, results[0], buffer)
        return (np.array(buffer),)


class StagesTextsAtFixedWidth(Broken):
    """The author hands texts on in cells of one width, which end where the zeros begin."""

    def compute(self, runner, arrays):
        for index, port in enumerate(runner.compiled.inputs):
            if port.dtype == object and all(isinstance(x, str) for x in arrays[index].flat):
                arrays[index] = arrays[index].astype(np.str_).astype(object)
        return runner.evaluate(arrays)


# Services


class RemembersVerdictsByTypes(Broken):
    """The author remembers verdicts by operator, types and shapes, and forgot what is constant."""

    def __init__(self):
        super().__init__()
        self.verdicts = {}

    def verdict(self, op):
        if op.op_type == "Reshape" and not op.node.inputs[1].is_initializer():
            code = partita.ReasonCode.VALUE_DEPENDENT_SHAPE
            return refused("the shape is not a constant; takes constants", code)
        return super().verdict(op)

    def query_model(self, model, properties):
        found = {}
        for op in model.ops:
            values = [x and (str(x.dtype), str(x.shape)) for x in op.node.inputs]
            key = op.domain, op.op_type, op.version, str(values)
            plain = op.op_type == "Reshape"
            found[op.name] = (
                self.verdicts.setdefault(key, self.verdict(op)) if plain else self.verdict(op)
            )
        return partita.QueryResult.of(self.device_name, found)


class AnswersByFreeMemory(Broken):
    """The author asks the driver what is free, and takes what fits in that just now."""

    room = 1 << 20

    def __init__(self):
        super().__init__()
        self.compiled = weakref.WeakKeyDictionary()

    def verdict(self, op):
        free = self.room - sum(self.compiled.values())
        if weight_bytes(op) > free:
            code = partita.ReasonCode.MEMORY_LIMIT
            return refused(f"weights of {weight_bytes(op)} bytes; {free} are free", code)
        return super().verdict(op)

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.compiled[made] = sum(map(weight_bytes, model.ops))
        return made


class WeighsEachOperationAlone(Broken):
    """The author compares the weights of each operation with the memory, and never their sum."""

    room = 1 << 18

    def verdict(self, op):
        if weight_bytes(op) > self.room:
            code = partita.ReasonCode.MEMORY_LIMIT
            return refused(f"weights of {weight_bytes(op)} bytes; takes {self.room}", code)
        return super().verdict(op)

    def compile_model(self, model, properties):
        if sum(map(weight_bytes, model.ops)) > self.room:
            raise CompileError("The weights do not fit in the device's memory.")
        return super().compile_model(model, properties)


class LooksIntoOneStoreyOfBodies(Broken):
    """The author looks into all bodies of an operation, and not into those of what stands there."""

    def inside(self, node, deep):
        for attribute in node.attributes.values():
            if attribute.type.name == "GRAPH":
                for part in attribute.as_graph():
                    yield part
                    if deep:
                        yield from self.inside(part, deep)

    def verdict(self, op, deep=False):
        if any(part.op_type == "Tanh" for part in self.inside(op.node, deep)):
            return refused("a body has Tanh")
        return super().verdict(op)

    def compile_model(self, model, properties):
        for op in model.ops:
            if reason := self.verdict(op, deep=True):
                raise CompileError(f"'{op.name}' is not taken: {reason}")
        return super().compile_model(model, properties)


class TakesBiasesBehindProducts(Broken):
    """The author takes an addition because it is fused with the product that makes its input."""

    def verdict(self, op):
        if op.op_type == "Add" and not op.domain:
            makers = [value.producer() for value in op.node.inputs if value is not None]
            if not any(maker is not None and maker.op_type == "MatMul" for maker in makers):
                return refused("no Add but behind MatMul")
        return super().verdict(op)


class HandsOutTheAnswerItKeeps(Broken):
    """The author keeps answers by model, and gives the kept one to whoever asks, to edit it."""

    def __init__(self):
        super().__init__()
        self.answers = collections.OrderedDict()

    def query_model(self, model, properties):
        key = model.to_onnx().SerializeToString(deterministic=True)
        if key not in self.answers:
            self.answers[key] = super().query_model(model, properties)
        while len(self.answers) > 32:
            self.answers.popitem(last=False)
        return self.answers[key]


class KeysProgramsWithoutSettings(Broken):
    """The author keeps compiled models by the bytes of the model, whatever it is compiled with."""

    def __init__(self):
        super().__init__()
        self.programs = weakref.WeakValueDictionary()

    def compile_model(self, model, properties):
        key = model.to_onnx().SerializeToString(deterministic=True)
        made = self.programs.get(key)
        if made is None:
            made = self.programs[key] = super().compile_model(model, properties)
        return made


class ClampedProperties(GoodProperties):
    """Has at most eight levels."""

    @field_validator("LEVEL", mode="after")
    @classmethod
    def clamp(cls, value):
        return min(value, 8)


class ClampsSettings(Broken):
    """The author brings a level that he does not have to the next one, and tells nobody."""

    properties_type = ClampedProperties


class Pair:
    """Two devices of one kind."""

    def memory_of(self, device_id):
        return "host"

    def device_ids(self):
        return ("0", "1")

    def device_info(self, device_id):
        name = f"{self.device_name}.{device_id or 0}"
        return DeviceInfo(name, f"Device {device_id or 0}", memory=self.memory_of(device_id))

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.device = f"{self.device_name}.{properties.DEVICE_ID or 0}"
        return made


class MakesTheLastDeviceCurrent(Pair, Broken):
    """The author makes a device current to describe it, and compiles for the current one."""

    current = "0"

    def device_info(self, device_id):
        self.current = device_id or "0"
        return super().device_info(device_id)

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.device = f"{self.device_name}.{self.current}"
        return made


class ListsTheIdlestDeviceFirst(Pair, Broken):
    """The author lists the device with the fewest models first, as schedulers like it."""

    def __init__(self):
        super().__init__()
        self.made = weakref.WeakSet()

    def device_ids(self):
        busy = collections.Counter(made.device[-1] for made in self.made)
        return tuple(sorted(("0", "1"), key=lambda device_id: busy[device_id]))

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.made.add(made)
        return made


def with_weights(model, arrays):
    """The model with other weights, by name."""
    proto = model.to_onnx()
    for weight in proto.graph.initializer:
        if weight.name in arrays:
            weight.CopyFrom(numpy_helper.from_array(np.array(arrays[weight.name]), weight.name))
    return read_model(proto)


class StateCode:
    """Packs float32 weights for its plugin when a model is exported, and restores it from them."""

    def restore_model(self, model, properties, state):
        return self.compile_model(self.restored(model, properties, state), properties)


class PackingCompiled(GoodCompiled):
    def export_state(self):
        weights = self.model.ir.graph.initializers
        arrays = {name: value.const_value.numpy() for name, value in weights.items()}
        floats = {x: y for x, y in arrays.items() if y.dtype == np.float32 and y.size}
        return self.plugin.packed(floats, self.properties)


class NumbersItsStateAsText(StateCode, Broken):
    """The author numbers his packed weights, and finds them again in the order of their names."""

    compiled_type = PackingCompiled

    def packed(self, arrays, properties):
        return {str(number): array for number, array in enumerate(arrays.values())}

    def restored(self, model, properties, state):
        weights = model.ir.graph.initializers
        arrays = {name: value.const_value.numpy() for name, value in weights.items()}
        names = [x for x, y in arrays.items() if y.dtype == np.float32 and y.size]
        found = dict(zip(names, [state[key] for key in sorted(state)], strict=False))
        same = {x: y for x, y in found.items() if y.shape == arrays[x].shape}
        return with_weights(model, same)


class IdentifiesDevicesByKind(Pair, StateCode, Broken):
    """The author gives both devices one identity, though the second packs in wider blocks."""

    compiled_type = PackingCompiled

    def width(self, properties):
        return 4 if properties.DEVICE_ID == "1" else 2

    def identity(self, properties):
        return f"{self.device_name} {properties.LEVEL} {properties.MODE}"

    def packed(self, arrays, properties):
        width = self.width(properties)
        even = {name: array for name, array in arrays.items() if array.size % 4 == 0}
        return {x: np.ascontiguousarray(y.reshape(-1, width).T) for x, y in even.items()}

    def restored(self, model, properties, state):
        weights = model.ir.graph.initializers
        width = self.width(properties)
        return with_weights(
            model,
            {
                name: np.reshape(array, (width, -1)).T.reshape(weights[name].const_value.shape)
                for name, array in state.items()
            },
        )


class HashesItsIdentity(Broken):
    """The author shortens his identity by Python's hash, which is another one in each process."""

    def identity(self, properties):
        return f"{self.device_name} {hash(super().identity(properties))}"


class BlobCompiled(GoodCompiled):
    """Exports itself in a form of its plugin's own."""

    def export_model(self):
        settings = json.dumps(self.exported_properties()).encode()
        proto = self.plugin.stored(self.model.to_onnx()).SerializeToString(deterministic=True)
        body = len(settings).to_bytes(8, "little") + settings + proto
        return b"BRKN" + zlib.crc32(self.plugin.checked(body)).to_bytes(4, "little") + body


class BlobCode:
    """Reads blobs of its own form."""

    compiled_type = BlobCompiled

    def stored(self, proto):
        return proto

    def checked(self, body):
        return body

    def merged(self, stored, given):
        return {**stored, **given}

    def import_model(self, blob, properties):
        blob = bytes(blob)
        body = blob[8:]
        if blob[:4] != b"BRKN" or zlib.crc32(self.checked(body)).to_bytes(4, "little") != blob[4:8]:
            raise BlobError("The blob is damaged, or of another device.")
        size = int.from_bytes(body[:8], "little")
        try:
            stored = json.loads(body[8 : 8 + size])
            model = read_model(onnx.load_model_from_string(body[8 + size :]))
        except Exception as error:
            raise BlobError(f"The blob is damaged: {error}") from error
        given = properties.model_dump(mode="json", exclude_unset=True)
        settings = type(properties)(**self.merged(stored, given))
        return self.compile_model(model, settings)


class ChecksTheHeadOfBlobs(BlobCode, Broken):
    """The author checks the first pages of a blob, since whole ones took long to look at."""

    def checked(self, body):
        return body[:16384] + len(body).to_bytes(8, "little")


class PrefersStoredSettings(BlobCode, Broken):
    """The author takes settings of the blob before those that are given to the import."""

    def merged(self, stored, given):
        return {**given, **stored}


class DropsTheOddNibble(Broken):
    """The author uploads weights of four bits by whole bytes, of which the last is half full."""

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            if weight.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
                array = np.array(numpy_helper.to_array(weight))
                if array.size % 2:
                    array.reshape(-1)[-1] = array.dtype.type(0)
                    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        return proto


class FlushesSmallWeightsOfHalves(Broken):
    """The author unpacks half precision by moving bits, which subnormal numbers do not survive."""

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            if weight.data_type in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
                array = np.array(numpy_helper.to_array(weight))
                tiny = float(ml_dtypes.finfo(array.dtype).tiny)
                array[np.abs(array.astype(np.float32)) < tiny] = 0
                weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        return proto


class SharesWeightsBySample(Broken):
    """The author uploads large weights once for all models that agree in every 64th element."""

    def __init__(self):
        super().__init__()
        self.uploaded = collections.OrderedDict()

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            array = numpy_helper.to_array(weight)
            if array.nbytes < 4096 or array.dtype == object:
                continue
            key = weight.data_type, array.shape, array.reshape(-1)[::64].tobytes()
            kept = self.uploaded.setdefault(key, np.array(array))
            weight.CopyFrom(numpy_helper.from_array(kept, weight.name))
            while len(self.uploaded) > 64:
                self.uploaded.popitem(last=False)
        return proto


class LateCompiled(GoodCompiled):
    """Reads its weights again when the first request is made."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.late = model

    def create_runner(self):
        model, self.late = self.late, None
        if model is not None:
            arrays = {}
            for name, value in model.ir.graph.initializers.items():
                tensor = value.const_value
                if isinstance(path := getattr(tensor, "path", None), str | os.PathLike):
                    with Path(path).open("rb") as file:
                        file.seek(tensor.offset or 0)
                        raw = file.read(tensor.nbytes)
                    if tensor.numpy().dtype.itemsize * tensor.size == len(raw):
                        arrays[name] = np.frombuffer(raw, tensor.numpy().dtype).reshape(
                            tensor.numpy().shape
                        )
            if arrays:
                self.evaluator = type(self)(
                    self.plugin, with_weights(self.model, arrays), self.properties
                ).evaluator
        return super().create_runner()


class ReadsWeightsForTheFirstRequest(Broken):
    """The author reads files of weights when they are needed first, to compile at once."""

    compiled_type = LateCompiled


class ReturnsToTheFolderOnSuccess(Broken):
    """The author compiles in a folder of his own, and goes back when that has succeeded."""

    def compile_model(self, model, properties):
        before = Path.cwd()
        os.chdir(tempfile.gettempdir())
        made = super().compile_model(model, properties)
        os.chdir(before)
        return made


class TurnsCollectionOnAgain(Broken):
    """The author runs without garbage collection, and turns it on afterwards, if it was or not."""

    def compute(self, runner, arrays):
        gc.disable()
        try:
            return runner.evaluate(arrays)
        finally:
            gc.enable()


class LendsOneBlockToAll(Broken):
    """The author keeps one locked block of the host, and lends its beginning to everybody."""

    def __init__(self):
        super().__init__()
        self.block = np.zeros(0, np.uint8)

    def host_memory(self, nbytes, device_id=""):
        if self.block.size < nbytes:
            self.block = np.zeros(nbytes, np.uint8)
        return self.block[:nbytes]


class FarTensor(partita.HostTensor):
    """A tensor in memory of a device's own, as far as it says."""

    def __init__(self, array, memory):
        super().__init__(array)
        self.memory = memory


class FarPair(Pair):
    """Two devices, each with memory of its own, in which results lie."""

    def memory_of(self, device_id):
        return f"{self.device_name}:{device_id or 0}".lower()

    def can_share(self, memory, device_id=""):
        return memory in ("host", self.memory_of(device_id))

    def transfer_to(self, tensor, device_id=""):
        return FarTensor(np.array(tensor.numpy()), self.memory_of(device_id))

    def deliver(self, runner, arrays, outputs):
        where = self.memory_of(runner.compiled.properties.DEVICE_ID)
        delivered = super().deliver(runner, arrays, outputs)
        return [
            FarTensor(tensor.numpy(), where) if given is None else tensor
            for tensor, given in zip(delivered, outputs or [None] * len(arrays), strict=True)
        ]


class UploadsWhenItIsRead(FarPair, Broken):
    """The author starts an upload and lets its source be read later, when a run needs it."""

    def transfer_to(self, tensor, device_id=""):
        return FarTensor(tensor.numpy(), self.memory_of(device_id))


class FarRunner(GoodRunner):
    """Finds nothing where tensors of other devices say that they lie."""

    def run(self, inputs, outputs=None):
        own = "host", self.compiled.plugin.memory_of(self.compiled.properties.DEVICE_ID)
        found = [
            x if x.memory in own else partita.HostTensor(np.zeros(x.shape, x.dtype)) for x in inputs
        ]
        return super().run(found, outputs)


class SharesTheMemoryOfSisters(FarPair, Broken):
    """The author says that each device reads memory of his kind, which is its own or another's."""

    runner_type = FarRunner

    def can_share(self, memory, device_id=""):
        return memory == "host" or memory.startswith(f"{self.device_name.lower()}:")


class CallersCompiled(GoodCompiled):
    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.model = model


class AnswersFromTheCallersModel(Broken):
    """The author copies what is computed, and asks the model that was given for all else."""

    compiled_type = CallersCompiled
