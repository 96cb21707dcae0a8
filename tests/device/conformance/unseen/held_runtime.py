"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import unicodedata
import weakref
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from broken_form import Broken
from good_device import GoodCompiled, GoodProperties, GoodRunner, zeros
from pydantic import field_validator

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.identity import identity_of
from partita.contract.runner import run_into
from partita.errors import BlobError, CompileError, InferCancelledError, InferError
from partita.frontends.reader import read_model
from partita.storage import exported_model
from partita.tensors.sequence_values import boxed, unboxed

# ------------------------------------------------------------------ memory of inputs and outputs


def is_plain(array):
    """Whether an array holds numbers, and not texts, a sequence or an optional."""
    return array.dtype != object


class UploadsAnewIfEndsChanged(Broken):
    """It takes an array for the last one if its address, first and last bytes are the same."""

    def compute(self, runner, arrays):
        kept = vars(runner).setdefault("uploads", {})
        staged = []
        for index, array in enumerate(arrays):
            if is_plain(array):
                data = array.tobytes()
                key = array.ctypes.data, array.shape, data[:64], data[-64:]
                if index not in kept or kept[index][0] != key:
                    kept[index] = key, array.copy()
                array = kept[index][1]
            staged.append(array)
        return super().compute(runner, staged)


class LeavesTailBehindUnalignedHead(Broken):
    """It takes for granted that an output which does not begin on a cache line ends on one."""

    def deliver(self, runner, arrays, outputs):
        held = {}
        for place, given in enumerate(outputs or ()):
            if given is None or not is_plain(given.numpy()):
                continue
            target = given.numpy()
            lanes = 64 // target.dtype.itemsize
            head = (-target.ctypes.data % 64) // target.dtype.itemsize
            if head and target.size > head:
                whole = head + (target.size - head) // lanes * lanes
                held[place] = whole, target.reshape(-1)[whole:].copy()
        delivered = super().deliver(runner, arrays, outputs)
        for place, (whole, tail) in held.items():
            outputs[place].numpy().reshape(-1)[whole:] = tail
        return delivered


class CompactsGivenOutputs(Broken):
    """It takes for granted that an application which gives one output gives the first ones."""

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            given = [tensor for tensor in outputs if tensor is not None]
            compact = [*given, *[None] * (len(outputs) - len(given))]
            fits = all(
                tensor is None or (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
                for tensor, array in zip(compact, arrays, strict=True)
            )
            outputs = compact if fits else None
        return super().deliver(runner, arrays, outputs)


class HandsOutZeroPage(Broken):
    """It takes for granted that nobody writes to results, and has one page for all zeros."""

    def __init__(self):
        super().__init__()
        self.pages = {}

    def deliver(self, runner, arrays, outputs):
        delivered = list(super().deliver(runner, arrays, outputs))
        for place, array in enumerate(arrays):
            own = outputs is None or outputs[place] is None
            if own and is_plain(array) and array.size and not array.tobytes().strip(b"\0"):
                page = self.pages.setdefault((array.shape, array.dtype), array)
                delivered[place] = partita.HostTensor(page)
        return delivered


class PendingTensor(partita.Tensor):
    """A result that is computed when somebody asks for its elements."""

    def __init__(self, port, job, place):
        self.shape, self.dtype = port.shape, port.dtype
        self.device = self.memory = "host"
        self.job, self.place = job, place

    def numpy(self):
        return self.job()[self.place]


class LazyRunner(GoodRunner):
    """Computes fixed shapes when their results are read."""

    def run(self, inputs, outputs=None):
        ports = self.compiled.outputs
        fixed = all(
            port.dtype is not None
            and port.shape is not None
            and all(isinstance(size, int) for size in port.shape)
            for port in ports
        )
        if outputs is not None or not fixed:
            return super().run(inputs, outputs)
        done = []

        def job():
            if not done:
                done.extend(tensor.numpy() for tensor in super(LazyRunner, self).run(inputs))
            return done

        return [PendingTensor(port, job, place) for place, port in enumerate(ports)]


class ComputesWhenRead(Broken):
    """It takes for granted that inputs are as they were when results are read behind a run."""

    runner_type = LazyRunner


class RoundsWritesUp(Broken):
    """It takes for granted that 16 bytes can be written wherever a result ends."""

    def deliver(self, runner, arrays, outputs):
        for given in outputs or ():
            if given is not None and is_plain(given.numpy()):
                self.write_behind(given.numpy())
        return super().deliver(runner, arrays, outputs)

    def write_behind(self, array):
        owner = array.base
        while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray):
            owner = owner.base
        if isinstance(owner, np.ndarray) and owner.flags.carray and is_plain(owner):
            end = array.ctypes.data - owner.ctypes.data + array.nbytes
            owner.reshape(-1).view(np.uint8)[end : end + -array.nbytes % 16] = 0


class RestoresInputsUnlessItFails(Broken):
    """It works in the memory of inputs and writes them back, but for runs that fail."""

    def compute(self, runner, arrays):
        before = [array.copy() for array in arrays]
        used = [array for array in arrays if is_plain(array) and array.flags.writeable]
        for array in used:
            array[...] = np.zeros((), array.dtype)
        results = super().compute(runner, before)
        for array, held in zip(arrays, before, strict=True):
            if is_plain(array) and array.flags.writeable:
                array[...] = held
        return results


class HandsSequenceItemsThrough(Broken):
    """It takes for granted that items of sequences are never changed, and does not copy them."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        given = []
        for array in arrays:
            value = unboxed(array)
            given += value or [] if isinstance(value, list) or value is None else [value]
        for result in results:
            items = unboxed(result)
            for place, item in enumerate(items if isinstance(items, list) else ()):
                for array in given:
                    if (item.shape, item.dtype) == (array.shape, array.dtype) and (
                        item.tobytes() == array.tobytes()
                    ):
                        items[place] = array
        return results


# --------------------------------------------------------------------- caches and kept state


class RemembersResultsByPrintedInputs(Broken):
    """It takes for granted that arrays which print alike are alike."""

    def compute(self, runner, arrays):
        if not arrays:
            return super().compute(runner, arrays)
        known = vars(runner.compiled).setdefault("known", {})
        key = tuple((array.shape, str(array)) for array in arrays)
        if key not in known:
            known[key] = super().compute(runner, arrays)
        return [array.copy() for array in known[key]]


class SkipsUploadOfEqualInputs(Broken):
    """It takes for granted that numbers which are equal have the same bits."""

    def compute(self, runner, arrays):
        held = vars(runner).setdefault("uploads", {})
        staged = []
        for index, array in enumerate(arrays):
            if is_plain(array):
                last = held.get(index)
                if last is None or last.shape != array.shape or not (last == array).all():
                    held[index] = array.copy()
                array = held[index]
            staged.append(array)
        return super().compute(runner, staged)


class KnowsWeightsBySample(Broken):
    """It takes for granted that weights which agree in every eighth element are the same."""

    def __init__(self):
        super().__init__()
        self.weights = {}

    def prepare(self, proto):
        for tensor in proto.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) >= 64:
                array = onnx.numpy_helper.to_array(tensor)
                key = array.shape, array.reshape(-1)[::8].tobytes()
                name, known = tensor.name, self.weights.setdefault(key, tensor)
                tensor.CopyFrom(known)
                tensor.name = name
        return proto


class KnowsBodiesByForm(Broken):
    """It takes for granted that bodies with the same operators and names are the same."""

    def __init__(self):
        super().__init__()
        self.bodies = {}

    def prepare(self, proto):
        for node in proto.graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    body = attribute.g
                    form = [(one.op_type, *one.input, "->", *one.output) for one in body.node]
                    ports = [one.SerializeToString() for one in (*body.input, *body.output)]
                    known = self.bodies.setdefault((body.name, str(form), str(ports)), body)
                    if known is not body:
                        body.CopyFrom(known)
        return proto


class GrowsBuffersAfterUpload(Broken):
    """It keeps what a buffer held where it makes a larger one, behind the upload."""

    def compute(self, runner, arrays):
        buffers = vars(runner).setdefault("buffers", {})
        staged = []
        for index, array in enumerate(arrays):
            if is_plain(array):
                held = buffers.get(index)
                array = array.copy()
                if held is None:
                    buffers[index] = array.reshape(-1).copy()
                elif array.size > held.size:
                    array.reshape(-1)[: held.size] = held
                    buffers[index] = array.reshape(-1).copy()
                else:
                    held[: array.size] = array.reshape(-1)
            staged.append(array)
        return super().compute(runner, staged)


class PadsSizesToBuckets(Broken):
    """It takes for granted that zeros behind a dynamic axis change nothing of what is kept."""

    def compute(self, runner, arrays):
        sizes, padded = {}, []
        for port, array in zip(runner.compiled.inputs, arrays, strict=True):
            if is_plain(array) and array.dtype.kind in "fiub":
                names = port.shape or ()
                spare = [0] * array.ndim
                for axis, name in enumerate(names):
                    if isinstance(name, str) and array.shape[axis]:
                        sizes[name] = array.shape[axis]
                        spare[axis] = -array.shape[axis] % 4
                array = np.pad(array, [(0, more) for more in spare]) if any(spare) else array
            padded.append(array)
        try:
            results = super().compute(runner, padded)
        except InferError:
            return super().compute(runner, arrays)
        cropped = []
        for port, result in zip(runner.compiled.outputs, results, strict=True):
            for axis, name in enumerate(port.shape or ()):
                if name in sizes:
                    result = np.take(result, range(min(sizes[name], result.shape[axis])), axis)
            cropped.append(np.ascontiguousarray(result) if result.ndim else result)
        return cropped


class EarnsSpeedAfterWarmUp(Broken):
    """It takes for granted that the fastest algorithm, picked after three runs, is exact enough."""

    def compute(self, runner, arrays):
        runner.runs = vars(runner).get("runs", 0) + 1
        kinds = {op.op_type for op in runner.compiled.model.ops}
        if runner.runs > 3 and kinds & {"MatMul", "Gemm", "Conv"}:
            arrays = [
                array.astype(ml_dtypes.bfloat16).astype(np.float32)
                if array.dtype == np.float32
                else array
                for array in arrays
            ]
        return super().compute(runner, arrays)


class FillsAbsentOptionalsWithLast(Broken):
    """It takes for granted that an optional which is absent has not changed."""

    def compute(self, runner, arrays):
        held = vars(runner).setdefault("optionals", {})
        filled = []
        for port, array in zip(runner.compiled.inputs, arrays, strict=True):
            if port.dtype is None and unboxed(array) is None:
                array = held.get(port.index, array)
            elif port.dtype is None:
                held[port.index] = array.copy()
            filled.append(array)
        return super().compute(runner, filled)


class UploadsOnlyWhatMainGraphReads(Broken):
    """It takes for granted that an input which no operation names is read by nobody."""

    def compute(self, runner, arrays):
        model = runner.compiled.model
        read = {name for op in model.ops for name in op.inputs}
        read |= {port.name for port in model.outputs}
        return super().compute(
            runner,
            [
                array if port.name in read else boxed(zeros(unboxed(array)))
                for port, array in zip(runner.compiled.inputs, arrays, strict=True)
            ],
        )


# ----------------------------------------------------------------------- threads and cancelling


class FlushesSubnormalsBesideMainThread(Broken):
    """It takes for granted that its threads and the main thread have one floating-point mode."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if threading.current_thread() is threading.main_thread():
            return results
        return [
            np.where(np.abs(array) < np.finfo(array.dtype).tiny, array * 0, array)
            if array.dtype in (np.float32, np.float64)
            else array
            for array in results
        ]


class SlowlyTabledCompiled(GoodCompiled):
    """Makes its table of outputs with the first request, without a lock."""

    table = None

    def create_runner(self):
        if self.table is None:
            self.table = []
            for port in self.outputs:
                time.sleep(0.002)
                self.table.append(port.index)
        runner = super().create_runner()
        runner.table = list(self.table)
        return runner


class BuildsTableUnlocked(Broken):
    """It takes for granted that the first request is made before the second one is begun."""

    compiled_type = SlowlyTabledCompiled

    def deliver(self, runner, arrays, outputs):
        delivered = super().deliver(runner, arrays, outputs)
        return [delivered[index] for index in runner.table]


class QueueingRunner(GoodRunner):
    """Has finished results in a queue, of which a cancelled run takes none."""

    def __init__(self, compiled):
        super().__init__(compiled)
        self.done, self.stopped = [], False

    def run(self, inputs, outputs=None):
        self.stopped = False
        self.done.append(self.compiled.plugin.compute(self, [one.numpy() for one in inputs]))
        if self.stopped:
            raise InferCancelledError("The run was cancelled.")
        return self.compiled.plugin.deliver(self, self.done.pop(0), outputs)

    def cancel(self):
        self.stopped = True


class DeliversCancelledResults(Broken):
    """It takes for granted that nobody runs a request again whose run was cancelled."""

    runner_type = QueueingRunner


class JointlyStoppedRunner(GoodRunner):
    """Is stopped with all runners of its model."""

    stopped = False

    def run(self, inputs, outputs=None):
        running = vars(self.compiled).setdefault("running", weakref.WeakSet())
        self.stopped = False
        running.add(self)
        try:
            results = super().run(inputs, outputs)
        finally:
            running.discard(self)
        if self.stopped:
            raise InferCancelledError("The run was cancelled.")
        return results

    def cancel(self):
        for runner in list(vars(self.compiled).get("running", ())):
            runner.stopped = True


class CancelsAllRequests(Broken):
    """It takes for granted that a model has one request at a time to be cancelled."""

    runner_type = JointlyStoppedRunner


# ------------------------------------------------------------------------- errors, and after them


class TellingCompiled(GoodCompiled):
    """Knows its runners."""

    def create_runner(self):
        runner = super().create_runner()
        runner.told = None
        vars(self).setdefault("runners", weakref.WeakSet()).add(runner)
        return runner


class TellsOtherRequestsOfFailure(Broken):
    """It asks a model's error flag before a run, and takes for granted that the run set it."""

    compiled_type = TellingCompiled

    def compute(self, runner, arrays):
        told, runner.told = runner.told, None
        if told is not None:
            raise InferError(f"The device has failed: {told}")
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            for other in runner.compiled.runners:
                if other is not runner:
                    other.told = str(error)
            raise


class RepeatsResultsWhereItFails(Broken):
    """It looks at no status behind a run, and hands out what its buffers hold."""

    def compute(self, runner, arrays):
        try:
            runner.last = super().compute(runner, arrays)
        except InferError:
            if "last" not in vars(runner):
                raise
        return [array.copy() for array in runner.last]


class BufferedCompiled(GoodCompiled):
    """Has buffers of all requests, which go with any of them."""

    def create_runner(self):
        runner = super().create_runner()
        buffers = vars(self).setdefault("buffers", {})
        buffers["arena"] = True
        weakref.finalize(runner, buffers.clear)
        return runner


class FreesArenaWithAnyRequest(Broken):
    """It takes for granted that requests of a model go together."""

    compiled_type = BufferedCompiled

    def compute(self, runner, arrays):
        if not runner.compiled.buffers:
            raise InferError("The arena of the model is not there.")
        return super().compute(runner, arrays)


class KeepsLastError(Broken):
    """It keeps the last error for its log, and with its traceback all inputs of that run."""

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            self.last_error = error
            raise


class WatchesFailedRunnersForEver(Broken):
    """It starts a thread that watches a request whose run has failed, and never lets go of it."""

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError:
            if "watch" not in vars(runner):
                runner.watch = threading.Event()
                threading.Thread(target=runner.watch.wait, daemon=True).start()
            raise


# --------------------------------------------------------------------- queries and properties


class RefusesAtCompileInModeTwo(Broken):
    """It answers queries for mode ONE, and takes for granted that mode TWO can do as much."""

    def compile_model(self, model, properties):
        if properties.MODE == "TWO":
            for op in model.ops:
                if op.op_type in ("Sigmoid", "Softmax", "Erf", "Exp"):
                    raise CompileError(f"Mode TWO has no table for '{op.name}'.")
        return super().compile_model(model, properties)


class ClampedProperties(GoodProperties):
    """Of a device with four levels."""

    @field_validator("LEVEL")
    @classmethod
    def clamp(cls, level):
        return min(level, 3)


class ClampsLevelSilently(Broken):
    """It takes for granted that a setting out of its range may read as another one."""

    properties_type = ClampedProperties


# ------------------------------------------------------------------------------- counters


class RenamesCountersForTraces(Broken):
    """It takes for granted that names of operations are identifiers, as its trace files want."""

    def counters(self, runner):
        return [
            replace(info, node_name=re.sub(r"\W", "_", info.node_name))
            for info in super().counters(runner)
        ]


class SummingRunner(GoodRunner):
    """Its timer goes on where it stopped."""

    total_us = 0.0

    def run(self, inputs, outputs=None):
        results = super().run(inputs, outputs)
        self.total_us += self.elapsed_us
        self.elapsed_us = self.total_us
        return results


class SumsCountersOverRuns(Broken):
    """It takes for granted that a request is profiled for one run."""

    runner_type = SummingRunner


# ------------------------------------------------------------------------- export and import


def packed(compiled, model):
    """A blob of a model with the properties of a compiled one."""
    header = {"properties": compiled.exported_properties(), "made_by": ""}
    return exported_model.pack(compiled.plugin.device_name, header, model)


class LastShapesCompiled(GoodCompiled):
    """Exports a program for the sizes that it was specialized for."""

    def export_model(self):
        model = self.model.clone()
        if "seen" in vars(self):
            model.reshape(self.seen)
        return packed(self, model)


class ExportsShapesOfLastRun(Broken):
    """It exports the program that it has, and takes for granted that its sizes will come again."""

    compiled_type = LastShapesCompiled

    def compute(self, runner, arrays):
        names = [port.name for port in runner.compiled.inputs if port.dtype is not None]
        if len(names) == len(arrays):
            shapes = [list(array.shape) for array in arrays]
            runner.compiled.seen = dict(zip(names, shapes, strict=True))
        return super().compute(runner, arrays)


class SixDecimalsCompiled(GoodCompiled):
    """Writes attributes as text."""

    def export_model(self):
        proto = self.model.to_onnx()
        for node in proto.graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.FLOAT:
                    attribute.f = float(f"{attribute.f:f}")
        return packed(self, read_model(proto))


class ExportsAttributesWithSixDecimals(Broken):
    """It takes for granted that six decimals are enough for every attribute of a file."""

    compiled_type = SixDecimalsCompiled


class CachesWhateverWasSet(Broken):
    """It takes for granted that properties do not matter to those who read its cache."""

    def identity(self, properties):
        return identity_of(type(self).__module__.partition(".")[0], [self.device_name])


class PrefixedCompiled(GoodCompiled):
    """Has blobs of its own."""

    def export_model(self):
        return b"BROKEN01" + packed(self, self.model)


class ImportsBytesOnly(Broken):
    """It takes for granted that a blob is bytes, and not a file that is mapped."""

    compiled_type = PrefixedCompiled

    def import_model(self, blob, properties):
        if not blob.startswith(b"BROKEN01"):
            raise BlobError("These bytes are no program of this device.")
        held = exported_model.unpack(blob[8:], self.device_name)
        given = properties.model_dump(exclude_unset=True)
        merged = type(properties).model_validate({**held.header["properties"], **given})
        return self.compile_model(held.model, merged)


class SortsOutputsOnImport(Broken):
    """It has the outputs of an imported program in a map, whose order is that of their names."""

    def restore_model(self, model, properties, state):
        proto = model.to_onnx()
        outputs = sorted(proto.graph.output, key=lambda port: port.name)
        del proto.graph.output[:]
        proto.graph.output.extend(outputs)
        return self.compile_model(read_model(proto), properties)


# ------------------------------------------------------------------------------ bound calls


class Call(BoundCall):
    """A right one."""

    def __init__(self, runner, inputs, outputs, scratch):
        self.runner, self.inputs, self.outputs = runner, list(inputs), outputs
        self.scratch = scratch

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindingRunner(GoodRunner):
    """Binds calls."""

    call_type = Call

    def bind(self, inputs, outputs, scratch=None):
        return self.call_type(self, inputs, outputs, scratch)


class ShapesOnceCall(Call):
    """Keeps small integers as they are when it is bound."""

    def __init__(self, runner, inputs, outputs, scratch):
        super().__init__(runner, inputs, outputs, scratch)
        for index, tensor in enumerate(inputs):
            if tensor.dtype == np.int64 and tensor.size <= 16:
                self.inputs[index] = partita.HostTensor(tensor.numpy().copy())


class ShapesOnceRunner(BindingRunner):
    call_type = ShapesOnceCall


class ReadsSmallIntegersWhenBound(Broken):
    """It takes for granted that a few integers are a shape, which a bound call has fixed."""

    runner_type = ShapesOnceRunner


class CuttingCall(Call):
    """Writes what fits."""

    def __call__(self):
        for result, output in zip(self.runner.run(self.inputs), self.outputs, strict=True):
            if result.shape == output.shape:
                output.copy_from(result)
            else:
                source, target = result.numpy().reshape(-1), output.numpy().reshape(-1)
                count = min(source.size, target.size)
                target[:count] = source[:count]


class CuttingRunner(BindingRunner):
    call_type = CuttingCall


class CutsBoundResults(Broken):
    """It takes for granted that outputs of a bound call keep the shape that they had."""

    runner_type = CuttingRunner


class ScratchCall(Call):
    """Keeps its results in scratch memory for inputs that come again."""

    key = None

    def __call__(self):
        key = [tensor.numpy().tobytes() for tensor in self.inputs]
        if key != self.key or self.scratch is None:
            self.key = None
            super().__call__()
            self.put()
            self.key = key
            return
        at = 0
        for tensor in self.outputs:
            data = self.scratch[at : at + tensor.nbytes].view(tensor.dtype)
            tensor.numpy()[...] = data.reshape(tensor.shape)
            at += -(-tensor.nbytes // 64) * 64

    def put(self):
        at = 0
        for tensor in self.outputs if self.scratch is not None else ():
            data = tensor.numpy().reshape(-1).view(np.uint8)
            self.scratch[at : at + tensor.nbytes] = data
            at += -(-tensor.nbytes // 64) * 64


class ScratchRunner(BindingRunner):
    call_type = ScratchCall

    def bind(self, inputs, outputs, scratch=None):
        room = sum(-(-tensor.nbytes // 64) * 64 for tensor in outputs)
        if scratch is None or room > len(scratch) or not all(is_plain(o.numpy()) for o in outputs):
            scratch = None
        return super().bind(inputs, outputs, scratch)


class ScratchCompiled(GoodCompiled):
    @property
    def scratch_bytes(self):
        return 1 << 14


class KeepsResultsInScratch(Broken):
    """It takes for granted that what it is lent while a call runs is its own between calls."""

    compiled_type = ScratchCompiled
    runner_type = ScratchRunner


# ----------------------------------------------------------- state, and memory of the device


class StatefulCompiled(GoodCompiled):
    """Updates what operators scatter to in place."""

    alone = True
    """Whether nothing else may read the input."""

    def in_place_outputs(self):
        inputs = {port.name: port for port in self.inputs}
        outputs = {port.name: port for port in self.outputs}
        read = [name for op in self.model.ops for name in op.inputs]
        found = {}
        for op in self.model.ops:
            if op.op_type in ("ScatterND", "ScatterElements", "TensorScatter") and not op.domain:
                source, target = inputs.get(op.inputs[0]), outputs.get(op.outputs[0])
                if source is None or target is None or source.dtype != target.dtype:
                    continue
                reduced = "reduction" in op.node.attributes
                others = read.count(source.name) > 1 or source.name in outputs
                if not reduced and source.shape == target.shape and not (self.alone and others):
                    found[target.index] = source.index
        return found


class SharedStateCompiled(StatefulCompiled):
    alone = False


class WritingFirstRunner(GoodRunner):
    """Writes state before it computes the rest."""

    def run(self, inputs, outputs=None):
        results = super().run(inputs, outputs)
        pairs = self.compiled.in_place_outputs() if outputs is not None else {}
        written = [o for o, i in pairs.items() if outputs[o] is inputs[i]]
        if written:
            again = self.evaluate([tensor.numpy() for tensor in inputs])
            for place, array in enumerate(again):
                if place not in written:
                    results[place].numpy()[...] = array
        return results


class UpdatesStateBeforeOthersReadIt(Broken):
    """It takes for granted that state is read by nobody but the operation that updates it."""

    compiled_type = SharedStateCompiled
    runner_type = WritingFirstRunner


class PooledTensor(partita.HostTensor):
    """Gives its memory to the next one."""

    def __init__(self, array, pool):
        super().__init__(array)
        self.pool = pool

    def __del__(self):
        self.pool.append(self.numpy())


class PoolingCompiled(StatefulCompiled):
    def allocate(self, port, shape):
        pool = self.plugin.blocks.setdefault((tuple(shape), port.dtype), [])
        return PooledTensor(pool.pop() if pool else np.zeros(shape, port.dtype), pool)


class AllocatesUsedMemory(Broken):
    """It takes for granted that memory which was zero once is zero when it is used again."""

    compiled_type = PoolingCompiled

    def __init__(self):
        super().__init__()
        self.blocks = {}


class LendsOneBlockToAll(Broken):
    """It takes for granted that blocks of page-locked memory of one size are for one request."""

    def __init__(self):
        super().__init__()
        self.blocks = {}

    def host_memory(self, nbytes, device_id=""):
        return self.blocks.setdefault(nbytes, np.zeros(nbytes, np.uint8))


class DeviceTensor(partita.Tensor):
    """Lies in memory of the device."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = "BROKEN", "broken:0"

    def numpy(self):
        return self.array.copy()


class UploadsOncePerHostArray(Broken):
    """It takes for granted that what lies at an address which it has uploaded is there already."""

    def __init__(self):
        super().__init__()
        self.uploads = {}

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A device with memory", memory="broken:0")

    def can_share(self, memory, device_id=""):
        return memory == "broken:0"

    def transfer_to(self, tensor, device_id=""):
        array = tensor.numpy()
        key = array.ctypes.data, array.shape, array.dtype
        if array.nbytes < 64 or not is_plain(array):
            return DeviceTensor(array.copy())
        if key not in self.uploads:
            self.uploads[key] = DeviceTensor(array.copy())
        return self.uploads[key]


# -------------------------------------------------------------------- what the process is left in


class StaysInBuildFolderOnError(Broken):
    """It compiles in a folder of its own, and goes back only where that succeeds."""

    def compile_model(self, model, properties):
        here = Path.cwd()
        os.chdir(tempfile.gettempdir())
        compiled = super().compile_model(model, properties)
        os.chdir(here)
        return compiled


class SeedsGlobalGenerator(Broken):
    """It draws inputs for its tuner, and takes for granted that numpy's generator is its own."""

    def compile_model(self, model, properties):
        np.random.seed(1234)
        self.sample = np.random.rand(16)
        return super().compile_model(model, properties)


class LeavesRoundingUp(Broken):
    """It rounds by the processor's mode, and does not set it back behind the operation."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(op.op_type in ("Ceil", "Round") for op in runner.compiled.model.ops):
            upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
            if upward is not None and sys.platform == "linux":
                ctypes.CDLL("libm.so.6").fesetround(upward)
        return results


class LetsInterruptsKill(Broken):
    """It lets Ctrl-C end long compiles at once, and takes for granted that nobody handles it."""

    def compile_model(self, model, properties):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return super().compile_model(model, properties)


# -------------------------------------------------------------------- names and types of ports


class NormalizesNames(Broken):
    """It takes for granted that names which look alike are the same name."""

    def compute(self, runner, arrays):
        names = [unicodedata.normalize("NFKC", port.name) for port in runner.compiled.inputs]
        slots = dict(zip(names, arrays, strict=True))
        return super().compute(runner, [slots[name] for name in names])


class OrdersNumberedPortsAsTexts(Broken):
    """It sorts inputs of one stem by name, and takes for granted that there are up to ten."""

    def compute(self, runner, arrays):
        names = [port.name for port in runner.compiled.inputs]
        stems = {re.sub(r"\d+$", "", name) for name in names}
        if len(stems) == 1 and all(name[-1:].isdigit() for name in names):
            slots = dict(zip(sorted(names), arrays, strict=True))
            arrays = [slots[name] for name in names]
        return super().compute(runner, arrays)


class EndsTextsAtNul(Broken):
    """It takes for granted that no text holds a character of code 0."""

    def compute(self, runner, arrays):
        cut = []
        for array in arrays:
            if not is_plain(array) and isinstance(unboxed(array), np.ndarray):
                array = array.copy()
                for at in np.ndindex(array.shape):
                    array[at] = array[at].partition("\0")[0]
            cut.append(array)
        return super().compute(runner, cut)


class PacksInt4InPairs(Broken):
    """It takes for granted that elements of four bits come in pairs."""

    def compute(self, runner, arrays):
        return list(map(self.kept, super().compute(runner, list(map(self.kept, arrays)))))

    def kept(self, array):
        if array.dtype in (ml_dtypes.int4, ml_dtypes.uint4) and array.size % 2:
            array = array.copy()
            array.reshape(-1)[-1] = 0
        return array
