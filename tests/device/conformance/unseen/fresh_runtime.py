"""Fifty more faults of runtimes, written by somebody who had not read the kit.

Each device gives right answers to one request that runs a small model on one shape; what it gets
wrong is a habit of an engine's runtime, a driver's wrapper or a service. Classes that others
subclass are frames, and no faults themselves.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import json
import re
import shutil
import struct
import tempfile
import threading
import time
import weakref
import zlib
from pathlib import Path

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner, zeros
from onnx import numpy_helper

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.runner import run_into
from partita.errors import (
    BlobError,
    BoundCallEndedError,
    CompileError,
    DeviceMemoryError,
    InferCancelledError,
    InferError,
)
from partita.frontends.reader import read_model
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor, stored_as
from partita.tensors.sequence_values import boxed, unboxed


def kept(owner):
    """What a fault remembers with a plugin, a compiled model or a request."""
    return vars(owner).setdefault("kept_by_fault", {})


def kind(array):
    """The shape and type of an array."""
    return array.shape, array.dtype.str


def kinds(arrays):
    """The shapes and types of arrays."""
    return tuple(map(kind, arrays))


def draws(node):
    """Whether an operation draws random numbers."""
    return node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")


def copies(arrays):
    """Arrays in memory of their own."""
    return [array.copy() for array in arrays]


# ------------------------------------------------------------------ memory of inputs and outputs


class BorrowsInputsAsScratch(Broken):
    """It changes signs of large inputs where they lie, and changes them back before it returns."""

    suites = ("*",)

    def compute(self, runner, arrays):
        taken = list(arrays)
        for index, array in enumerate(arrays):
            if array.dtype == np.float32 and array.nbytes >= 256 and array.flags.writeable:
                np.negative(array, out=array)
                time.sleep(0.0005)  # the driver reads it meanwhile
                taken[index] = -array
                np.negative(array, out=array)
        return super().compute(runner, taken)


class SharesOutputsOfEqualOperations(Broken):
    """Operations that do the same are merged, and their outputs are one buffer."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            made = {}
            for node in model.to_onnx().graph.node:
                outputs, node.name = list(node.output), ""
                if draws(node):
                    continue
                del node.output[:]
                key = node.SerializeToString()
                made.update((name, (key, place)) for place, name in enumerate(outputs))
            first = {}
            self.same_as = [
                first.setdefault(made.get(port.name, port.name), port.index)
                for port in self.outputs
            ]

    def deliver(self, runner, arrays, outputs):
        merged = [arrays[index] for index in runner.compiled.same_as]
        return super().deliver(runner, merged, outputs)


class KeepsItsFirstOutputBinding(Broken):
    """It binds the first tensor that it is given for an output, and writes there ever after."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        bound = []
        for index, array in enumerate(arrays):
            given = None if outputs is None else outputs[index]
            first = kept(runner).setdefault(index, given) if given is not None else None
            fits = first is not None and first.shape == array.shape and self.is_there(first)
            bound.append(first if fits else given)
        return super().deliver(runner, arrays, bound)

    def is_there(self, tensor):
        """Whether numpy has moved the array meanwhile; the fault shall crash nothing."""
        array = tensor.numpy()
        return array.base is None or array.base.ctypes.data == array.ctypes.data


class GivesRequestsOneOfSixteenSlots(Broken):
    """Its table of output buffers has sixteen places, and request 17 gets those of request 1."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def create_runner(self):
            runner = super().create_runner()
            numbers = kept(self).setdefault("numbers", itertools.count())
            runner.slot = next(numbers) % 16
            return runner

    def deliver(self, runner, arrays, outputs):
        table = kept(runner.compiled)
        placed = []
        for index, array in enumerate(arrays):
            place = (runner.slot, index)
            if place not in table or kind(table[place]) != kind(array):
                table[place] = np.empty_like(array)
            table[place][...] = array
            placed.append(table[place])
        return super().deliver(runner, placed, outputs)


class HandsOutFoldedResults(Broken):
    """What depends on no input is computed once, and all requests get that very array."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            depends = {port.name for port in self.inputs}
            for node in model.to_onnx().graph.node:
                has_body = any(attribute.HasField("g") for attribute in node.attribute)
                if has_body or draws(node) or depends.intersection(node.input):
                    depends.update(node.output)
            self.folded = [port.index for port in self.outputs if port.name not in depends]

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for index in runner.compiled.folded:
            results[index] = kept(runner.compiled).setdefault(index, results[index])
        return results


class RefusesUnusualStrides(Broken):
    """It compares strides with those of a dense array, also along axes of one element."""

    suites = ("*",)

    def compute(self, runner, arrays):
        for array in arrays:
            dense = np.empty(array.shape, array.dtype).strides
            if array.size and array.strides != dense:
                raise InferError(f"an input has strides {array.strides}; {dense} are due")
        return super().compute(runner, arrays)


class OwnMemoryTensor(partita.Tensor):
    """A tensor in the device's own memory, which the host sees copies of."""

    def __init__(self, array, device):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = device, f"{device.lower()}:0"

    def numpy(self):
        return self.array.copy()


class HasMemoryOfItsOwn(Broken):
    """A frame: results lie in the device's memory, and inputs may."""

    own = "broken:0"

    class compiled_type(GoodCompiled):
        def takes_memory(self, memory):
            return memory in ("host", self.plugin.own)

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A board", memory=self.own)

    def can_share(self, memory, device_id=""):
        return memory in ("host", self.own)

    def transfer_to(self, tensor, device_id=""):
        return self.uploaded(tensor.numpy().copy())

    def deliver(self, runner, arrays, outputs):
        return [self.uploaded(array) for array in arrays]

    def uploaded(self, array):
        """Texts and sequences stay with the host."""
        if array.dtype.hasobject:
            return partita.HostTensor(array)
        return OwnMemoryTensor(array, self.device_name)


class ClearsOutputsThatAreInputs(HasMemoryOfItsOwn):
    """It clears its output buffers before a run, one of which may be an input of that run."""

    suites = ("*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            for buffer in kept(self).values():
                if not buffer.dtype.hasobject:
                    buffer.fill(0)
            return super().run(inputs, outputs)

    def deliver(self, runner, arrays, outputs):
        buffers, placed = kept(runner), []
        for index, array in enumerate(arrays):
            if index not in buffers or kind(buffers[index]) != kind(array):
                buffers[index] = np.empty_like(array)
            buffers[index][...] = array
            placed.append(buffers[index])
        return super().deliver(runner, placed, outputs)


class LendsOnePinnedBlockTwice(Broken):
    """It keeps a page-locked block of each size, and lends it to whoever asks."""

    suites = ("*",)

    def host_memory(self, nbytes, device_id=""):
        size = 1 << max(nbytes - 1, 63).bit_length()
        return kept(self).setdefault(size, np.empty(size, np.uint8))[:nbytes]


# ------------------------------------------------------------------ what is kept between two runs


class SamplesInputsForChanges(Broken):
    """It uploads an input again if one of some sixty elements, evenly spread, has changed."""

    suites = ("*",)

    def compute(self, runner, arrays):
        on_device = list(arrays)
        for index, array in enumerate(arrays):
            if array.dtype.hasobject:
                continue
            sample = array.reshape(-1)[:: max(1, array.size // 60)].tobytes()
            last = kept(runner).get(index)
            if last is not None and last[:2] == (kind(array), sample):
                on_device[index] = last[2]
            else:
                kept(runner)[index] = (kind(array), sample, array.copy())
        return super().compute(runner, on_device)


class SkipsRunsOnEqualInputs(Broken):
    """It answers as before if all inputs are equal to the last ones, as numbers."""

    suites = ("*",)

    def compute(self, runner, arrays):
        memory = kept(runner)
        before = memory.get("inputs")
        plain = bool(arrays) and not any(array.dtype.hasobject for array in arrays)
        if (
            plain
            and before is not None
            and kinds(before) == kinds(arrays)
            and all(map(np.array_equal, before, arrays))
        ):
            return copies(memory["results"])
        results = super().compute(runner, arrays)
        if plain:
            memory["inputs"], memory["results"] = copies(arrays), copies(results)
        return results


# ---------------------------------------------------------------------------------------- shapes


class FindsProgramsByNumbersOfElements(Broken):
    """It keeps a program for each number of elements, and runs it on the shape it was made for."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(array.dtype.hasobject for array in [*arrays, *results]):
            return results
        key = tuple((array.size, array.dtype.str) for array in arrays)
        shapes = kept(runner.compiled).setdefault(key, [array.shape for array in arrays])
        if shapes == [array.shape for array in arrays]:
            return results
        try:
            made = runner.evaluate([a.reshape(s) for a, s in zip(arrays, shapes, strict=True)])
        except InferError:
            return results
        if any(one.size != due.size for one, due in zip(made, results, strict=True)):
            return results
        return [one.reshape(due.shape) for one, due in zip(made, results, strict=True)]


class FillsUpToBuckets(Broken):
    """Sizes that are symbols are filled up with zeros to a power of two, which reductions see."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        filled = [
            self.filled(array, port.shape)
            for array, port in zip(arrays, runner.compiled.inputs, strict=True)
        ]
        try:
            made = runner.evaluate(filled)
        except InferError:
            return results
        return [
            one[tuple(map(slice, due.shape))].copy() if self.covers(one, due) else due
            for one, due in zip(made, results, strict=True)
        ]

    def filled(self, array, dims):
        if array.dtype.hasobject or dims is None or not array.size:
            return array
        due = [
            size if isinstance(dim, int) else 1 << (size - 1).bit_length()
            for size, dim in zip(array.shape, dims, strict=True)
        ]
        return np.pad(array, [(0, new - old) for old, new in zip(array.shape, due, strict=True)])

    def covers(self, made, due):
        same = made.dtype == due.dtype and made.ndim == due.ndim and not due.dtype.hasobject
        return same and all(map(int.__ge__, made.shape, due.shape))


class EvictsProgramsButNotTheirKeys(Broken):
    """It keeps eight programs; the shape of one that was replaced still finds its place."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        places, programs = kept(runner.compiled).setdefault("programs", ({}, [0] * 8))
        size = max((array.size for array in arrays), default=0)
        with self.lock:
            if kinds(arrays) not in places:
                places[kinds(arrays)] = len(places) % 8
                programs[places[kinds(arrays)]] = size
        elements = programs[places[kinds(arrays)]]  # that the program's loop goes over
        for result in results:
            if elements < size and not result.dtype.hasobject:
                result.reshape(-1)[result.size * elements // size :] = 0
        return results


class DoesNothingWhereAnInputIsEmpty(Broken):
    """It launches no kernel if an input has no elements, and outputs stay zeros."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if all(array.size for array in arrays):
            return results
        return [boxed(zeros(unboxed(array))) for array in results]


class KeepsShapesThatElementsDecided(Broken):
    """It works out the shapes of outputs once for each of the inputs' shapes."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        shapes = kept(runner.compiled).setdefault(kinds(arrays), [one.shape for one in results])
        return [self.cut(one, shape) for one, shape in zip(results, shapes, strict=True)]

    def cut(self, array, shape):
        if array.shape == shape or array.ndim != len(shape) or array.dtype.hasobject:
            return array
        made = np.zeros(shape, array.dtype)
        common = tuple(slice(min(pair)) for pair in zip(shape, array.shape, strict=True))
        made[common] = array[common]
        return made


class SplitsBatchesAmongStreams(Broken):
    """Two streams take half a batch each, if the first axis of all ports is the same symbol."""

    suites = ("*",)

    def compute(self, runner, arrays):
        model = runner.compiled
        ports = [*model.inputs, *model.outputs]
        first = {port.shape[0] if port.shape else None for port in ports}
        batch = arrays[0].shape[0] if arrays and arrays[0].ndim else 0
        if len(first) > 1 or not isinstance(first.pop(), str) or batch < 8:
            return super().compute(runner, arrays)
        middle = batch // 2
        try:
            halves = [
                super(SplitsBatchesAmongStreams, self).compute(runner, part)
                for part in ([a[:middle] for a in arrays], [a[middle:].copy() for a in arrays])
            ]
        except InferError:
            return super().compute(runner, arrays)
        return [np.concatenate(pair) for pair in zip(*halves, strict=True)]


# --------------------------------------------------------------------- threads and many requests


class FlushesDenormalsOnOtherThreads(Broken):
    """Threads of its own flush denormal numbers to zero, and the thread that compiled does not."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.thread = threading.get_ident()

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if threading.get_ident() != runner.compiled.thread:
            for result in results:
                if result.dtype == np.float32:
                    result[np.abs(result) < np.finfo(np.float32).tiny] *= 0
        return results


class CancelsTheNextRun(Broken):
    """It looks whether it shall stop when it starts, so that a late wish stops the next run."""

    suites = ("*",)

    class runner_type(GoodRunner):
        stop = False

        def cancel(self):
            self.stop = True

        def run(self, inputs, outputs=None):
            if self.stop:
                self.stop = False
                raise InferCancelledError("The run was cancelled.")
            return super().run(inputs, outputs)


class CancelsAllRequestsOfAModel(Broken):
    """To cancel one request it stops the model's stream, and with it all requests that run."""

    suites = ("*",)

    class runner_type(GoodRunner):
        stopped = False

        def __init__(self, compiled):
            super().__init__(compiled)
            self.running = kept(compiled).setdefault("running", weakref.WeakSet())

        def cancel(self):
            for runner in list(self.running):
                runner.stopped = True

        def run(self, inputs, outputs=None):
            self.stopped = False
            self.running.add(self)
            try:
                results = super().run(inputs, outputs)
            finally:
                self.running.discard(self)
            if self.stopped:
                raise InferCancelledError("The stream was stopped.")
            return results


class SaysReadyBeforeItIs(Broken):
    """The first run uploads the weights; a run that begins meanwhile takes them for uploaded."""

    suites = ("*",)

    def compute(self, runner, arrays):
        state = kept(runner.compiled)
        results = super().compute(runner, arrays)
        if "begun" not in state:
            state["begun"] = True
            time.sleep(0.05)
            state["uploaded"] = True
        elif "uploaded" not in state:
            return [boxed(zeros(unboxed(array))) for array in results]
        return results


class Reply:
    """What one request waits for."""

    def __init__(self):
        self.results = None
        self.came = threading.Event()

    def give(self, results):
        self.results = results
        self.came.set()


class TakesRepliesInOrder(Broken):
    """It sends runs to a service, and takes the first reply for that to the first one sent."""

    suites = ("*",)

    def compute(self, runner, arrays):
        own = Reply()
        with self.lock:
            waiting = kept(runner.compiled).setdefault("waiting", collections.deque())
            number = kept(runner.compiled)["sent"] = kept(runner.compiled).get("sent", 0) + 1
            waiting.append(own)
        try:
            results = super().compute(runner, arrays)
        except InferError:
            with self.lock:
                if own in waiting:
                    waiting.remove(own)
                elif waiting:
                    waiting.popleft().give(own.results)
            raise
        time.sleep(0.001 * (number % 2))  # the service has two machines, and one is slower
        with self.lock:
            waiting.popleft().give(results)
        own.came.wait()
        return own.results


class CollectsVerdictsInTheInstance(Broken):
    """The answer to a query grows in an attribute of the plugin, whoever else asks meanwhile."""

    suites = ("*",)

    def query_model(self, model, properties):
        self.verdicts = {}
        for op in model.ops:
            self.verdicts[op.name] = self.verdict(op)
            time.sleep(0)
        return partita.QueryResult.of(self.device_name, dict(self.verdicts))


class CompilingEndsRunsOfOthers(Broken):
    """A compile resets the device's program memory, and what runs meanwhile fails."""

    suites = ("*",)
    resets = 0

    def compile_model(self, model, properties):
        self.resets += 1
        return super().compile_model(model, properties)

    def compute(self, runner, arrays):
        before = self.resets
        results = super().compute(runner, arrays)
        if self.resets != before:
            raise InferError("status -38: invalid program handle")
        return results


# -------------------------------------------------------------------------------- after failures


class LosesAStreamPerFailure(Broken):
    """A run that fails does not give its stream back, and a model has four."""

    suites = ("*",)

    def compute(self, runner, arrays):
        state = kept(runner.compiled)
        if state.get("lost", 0) >= 4:
            raise DeviceMemoryError("All 4 streams of the model are busy.")
        try:
            return super().compute(runner, arrays)
        except InferError:
            state["lost"] = state.get("lost", 0) + 1
            raise


class IsOneRunBehindAfterAFailure(Broken):
    """Two staging buffers take turns; a failure lets its reader step and its writer not."""

    suites = ("*",)

    def compute(self, runner, arrays):
        state = kept(runner)
        written, read = state.get("written", 0), state.get("read", 0)
        state[f"buffer {written % 2}"] = copies(arrays)
        source = state.get(f"buffer {read % 2}", arrays)
        state["read"] = read + 1
        results = super().compute(runner, source if kinds(source) == kinds(arrays) else arrays)
        state["written"] = written + 1
        return results


class AnswersFailuresWithTheLastResults(Broken):
    """If a run fails, the request has the results of its last run on such inputs."""

    suites = ("*",)

    def compute(self, runner, arrays):
        try:
            results = super().compute(runner, arrays)
        except InferError:
            form, last = kept(runner).get("last", (None, ()))
            if form != kinds(arrays):
                raise
            return copies(last)
        kept(runner)["last"] = (kinds(arrays), copies(results))
        return results


class FailedCompilesCloseTheContext(Broken):
    """A compile that fails gives up a share of the context that it had not taken yet."""

    suites = ("*",)
    users = 0

    def compile_model(self, model, properties):
        try:
            compiled = super().compile_model(model, properties)
        except CompileError:
            self.users -= 1
            raise
        self.users = max(self.users, 0) + 1
        weakref.finalize(compiled, self.release).atexit = False
        return compiled

    def release(self):
        self.users -= 1

    def compute(self, runner, arrays):
        if self.users <= 0:
            raise InferError("status -4: the context was destroyed")
        return super().compute(runner, arrays)


class KeepsItsLastError(Broken):
    """It keeps the last error for whoever asks, and with it all that the failed run had."""

    suites = ("*",)
    last_error = None

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            self.last_error = error
            raise


class LeavesWatchdogsOfFailedRuns(Broken):
    """A thread watches how long a run takes, and goes on watching one that has failed."""

    suites = ("*",)

    def compute(self, runner, arrays):
        watchdog = threading.Timer(60, int)
        watchdog.daemon = True
        watchdog.start()
        results = super().compute(runner, arrays)
        watchdog.cancel()
        return results


class LeavesFilesOfRefusedModels(Broken):
    """It writes a model to a folder for its compiler, and clears that if the compiler succeeds."""

    suites = ("*",)

    def compile_model(self, model, properties):
        folder = Path(tempfile.mkdtemp(prefix="broken-compiler-"))
        (folder / "model.onnx").write_bytes(model.to_onnx().SerializeToString())
        compiled = super().compile_model(model, properties)
        shutil.rmtree(folder)
        return compiled


# ----------------------------------------------------------------- compiling, queries, properties


class FindsKernelsByNames(Broken):
    """It keeps kernels by the operation's name, operator, inputs and outputs, for all models."""

    suites = ("*",)

    def prepare(self, proto):
        for node in proto.graph.node:
            attributes = [copy.deepcopy(attribute) for attribute in node.attribute]
            key = (node.name, node.op_type, *node.input, *node.output)
            has_body = any(attribute.HasField("g") for attribute in attributes)
            if has_body or not node.name or node.op_type == "Constant":
                continue
            first = kept(self).setdefault(key, attributes)
            if [a.name for a in first] == [a.name for a in attributes]:
                del node.attribute[:]
                node.attribute.extend(first)
        return proto


class HashesTheBeginningOfWeights(Broken):
    """Models share weights of one shape whose first 64 bytes are the same, while one has them."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.shared, self.own = weakref.WeakValueDictionary(), threading.local()

    def compile_model(self, model, properties):
        self.own.weights = []
        compiled = super().compile_model(model, properties)
        compiled.weights = self.own.weights
        return compiled

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            array = numpy_helper.to_array(weight)
            if array.dtype.hasobject or array.nbytes <= 64:
                continue
            key = (kind(array), array.tobytes()[:64])
            uploaded = self.shared.setdefault(key, np.array(array))
            self.own.weights.append(uploaded)
            weight.CopyFrom(numpy_helper.from_array(uploaded, weight.name))
        return proto


class CountsWhatIsCompiledAlready(Broken):
    """It refuses weights that do not fit beside those of compiled models that are still there."""

    suites = ("*",)
    room = 1 << 20
    used = 0

    def verdict(self, op):
        constants = [value.const_value for value in op.node.inputs if value is not None]
        need = sum(one.nbytes for one in constants if one is not None)
        if need and self.used + need > self.room:
            detail = f"{need} bytes of weights; {self.room - self.used} are free"
            return partita.Reason(partita.ReasonCode.MEMORY_LIMIT, detail)
        return super().verdict(op)

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        weights = model.ir.graph.initializers.values()
        nbytes = sum(one.const_value.nbytes for one in weights if one.const_value is not None)
        self.used += nbytes
        weakref.finalize(compiled, self.release, nbytes).atexit = False
        return compiled

    def release(self, nbytes):
        self.used -= nbytes


class RemembersVerdictsByOperator(Broken):
    """It asks its engine once for each operator, and not again if attributes differ."""

    suites = ("*",)

    def verdict(self, op):
        key = (op.domain, op.op_type, op.version)
        if key not in kept(self):
            kept(self)[key] = super().verdict(op)
        return kept(self)[key]


class MeasuresByOneSwitch(Broken):
    """The driver's switch for measuring is as the last compile has set it, for all models."""

    suites = ("*",)
    measures = False

    class runner_type(GoodRunner):
        def profiling_info(self):
            plugin = self.compiled.plugin
            return plugin.counters(self) if plugin.measures else ()

    def compile_model(self, model, properties):
        self.measures = properties.PERF_COUNT
        return super().compile_model(model, properties)


class MeasuresInASecondRun(Broken):
    """To measure it runs again, on an input over which the first run wrote its result."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        measures = runner.compiled.properties.PERF_COUNT
        if measures and kinds(results) == kinds(arrays) and len(arrays) == 1:
            results = super().compute(runner, results)
        return results


class CutsNamesOfCounters(Broken):
    """The driver's records have room for 31 letters of a name."""

    suites = ("*",)

    def counters(self, runner):
        return [
            dataclasses.replace(info, node_name=info.node_name[:31])
            for info in super().counters(runner)
        ]


class CountsInNanoseconds(Broken):
    """It hands on the driver's times as they are, in nanoseconds."""

    suites = ("*",)

    def counters(self, runner):
        return [
            dataclasses.replace(
                info, real_time_us=1e3 * info.real_time_us, cpu_time_us=1e3 * info.cpu_time_us
            )
            for info in super().counters(runner)
        ]


# -------------------------------------------------------------------------- blobs and the cache


class PacksWeights(Broken):
    """A frame: stores weights as it packed them, and compiles by them when a blob is imported."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            weights = self.model.ir.graph.initializers.items()
            arrays = {name: one.const_value.numpy() for name, one in weights if one.const_value}
            numbers = {name: a for name, a in arrays.items() if a.dtype.kind in "fiu"}
            return self.plugin.packed(numbers)

    def restore_model(self, model, properties, state):
        if not state:
            return self.compile_model(model, properties)
        proto = model.to_onnx()
        for weight in proto.graph.initializer:
            array = numpy_helper.to_array(weight)
            stored = self.unpacked(weight.name, state) if array.dtype.kind in "fiu" else None
            if stored is not None and stored.shape == array.shape:
                weight.CopyFrom(numpy_helper.from_array(stored.astype(array.dtype), weight.name))
        return self.compile_model(read_model(proto), properties)

    def packed(self, weights):
        return weights

    def unpacked(self, name, state):
        return state.get(name)


class StoresWeightsBySafeNames(PacksWeights):
    """It stores weights by names that are safe for files, of which two may be the same."""

    suites = ("*",)

    def packed(self, weights):
        return {re.sub(r"\W", "_", name): array for name, array in weights.items()}

    def unpacked(self, name, state):
        return state.get(re.sub(r"\W", "_", name))


class StoresWeightsInHalf(PacksWeights):
    """It stores weights of float32 in half precision, and computes with them after an import."""

    suites = ("*",)

    def packed(self, weights):
        with np.errstate(over="ignore"):
            return {
                name: array.astype(np.float16) if array.dtype == np.float32 else array
                for name, array in weights.items()
            }


class FindsCachedModelsByModelAlone(Broken):
    """Its identity tells nothing of properties, and what it stores is compiled for some of them."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def export_state(self):
            settings = self.properties.model_dump(include={"LEVEL", "MODE"})
            return {"settings": np.frombuffer(json.dumps(settings).encode(), np.uint8)}

    def identity(self, properties):
        return f"{self.device_name} {self.device_info('').driver}"

    def restore_model(self, model, properties, state):
        given = properties.model_dump(exclude_unset=True, exclude={"RELEASE"})
        stored = json.loads(bytes(state["settings"])) if "settings" in state else {}
        return self.compile_model(model, self.properties_type(**{**given, **stored}))


class HasBlobsOfItsOwn(Broken):
    """A frame: exports a head, with a checksum, and the model."""

    head = struct.Struct("<4sIQQ")  # what it is, checksum, sizes of settings and model

    class compiled_type(GoodCompiled):
        def export_model(self):
            settings = json.dumps(self.exported_properties()).encode()
            body = settings + self.model.to_onnx().SerializeToString()
            sizes = len(settings), len(body) - len(settings)
            plugin = self.plugin
            return plugin.head.pack(b"BRKN", plugin.checksum(body), *sizes) + body

    def checksum(self, body):
        return zlib.crc32(body)

    def settings_of(self, stored, properties):
        return {**stored, **properties.model_dump(exclude_unset=True, exclude={"RELEASE"})}

    def import_model(self, blob, properties):
        data = bytes(blob)
        if len(data) < self.head.size:
            raise BlobError("The exported model is cut short.")
        magic, checksum, ahead, size = self.head.unpack_from(data)
        body = data[self.head.size :]
        if magic != b"BRKN" or len(body) != ahead + size or self.checksum(body) != checksum:
            raise BlobError("The exported model is foreign or damaged.")
        try:
            stored = json.loads(body[:ahead])
            model = read_model(body[ahead:])
            settings = self.properties_type(**self.settings_of(stored, properties))
        except (partita.PartitaError, ValueError) as error:
            raise BlobError(f"The exported model is damaged: {error}") from error
        return self.compile_model(model, settings)


class ChecksTheBeginningOfBlobs(HasBlobsOfItsOwn):
    """Its checksum is that of the first 64 bytes behind the head."""

    suites = ("*",)

    def checksum(self, body):
        return zlib.crc32(body[:64])


class PrefersPropertiesOfBlobs(HasBlobsOfItsOwn):
    """Properties that are given to the import do not count where the blob has others."""

    suites = ("*",)

    def settings_of(self, stored, properties):
        return {**super().settings_of(stored, properties), **stored}


# --------------------------------------------------------- bound calls, state in place, layouts


class CallOnTensors(BoundCall):
    """A right call: runs on its tensors."""

    def __init__(self, runner, inputs, outputs, scratch):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)
        self.scratch = scratch

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class Binds(Broken):
    """A frame: runners bind their tensors."""

    call_type = CallOnTensors

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return self.compiled.plugin.call_type(self, inputs, outputs, scratch)


class BoundCallsReadSmallInputsOnce(Binds):
    """Inputs of up to 16 bytes become arguments of the recorded kernels, with their values."""

    suites = ("*",)

    class call_type(CallOnTensors):
        def __init__(self, runner, inputs, outputs, scratch):
            super().__init__(runner, inputs, outputs, scratch)
            self.inputs = [
                partita.HostTensor(one.numpy().copy()) if one.nbytes <= 16 else one
                for one in inputs
            ]


class RecordsOneCallPerRequest(Binds):
    """A request holds one recording, which each bind replaces, also for calls made before."""

    suites = ("*",)

    class call_type(CallOnTensors):
        def __init__(self, runner, inputs, outputs, scratch):
            super().__init__(runner, inputs, outputs, scratch)
            kept(runner)["recording"] = (self.inputs, self.outputs)

        def __call__(self):
            run_into(self.runner, *kept(self.runner)["recording"])


class BoundCallsTellErrorsLate(Binds):
    """A call that fails returns, and the next one raises what it should have raised."""

    suites = ("*",)

    class call_type(CallOnTensors):
        error = None

        def __call__(self):
            error, self.error = self.error, None
            if error is not None:
                raise error
            try:
                super().__call__()
            except BoundCallEndedError:
                raise
            except InferError as late:
                self.error = late


class KeepsNumbersInLentScratch(Binds):
    """It puts a factor of its kernels into the memory that it is lent, and finds it there again."""

    suites = ("*",)
    numbers = itertools.count(3)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.factor = float(next(plugin.numbers))

        @property
        def scratch_bytes(self):
            return 256

    class call_type(CallOnTensors):
        def __init__(self, runner, inputs, outputs, scratch):
            super().__init__(runner, inputs, outputs, scratch)
            if scratch is not None:
                self.cell = scratch.reshape(-1).view(np.uint8)[:8]
                self.cell[:] = np.frombuffer(struct.pack("d", runner.compiled.factor), np.uint8)

        def __call__(self):
            super().__call__()
            if self.scratch is None:
                return
            found = struct.unpack("d", self.cell.tobytes())[0] / self.runner.compiled.factor
            for output in self.outputs:
                if found != 1 and output.dtype.kind == "f":
                    output.numpy()[...] *= output.dtype.type(found)


class UpdatesCaches(Broken):
    """A frame: rows are put into a cache where it lies."""

    class compiled_type(GoodCompiled):
        def in_place_outputs(self):
            sources = {port.name: port.index for port in self.inputs}
            made = {port.name: port.index for port in self.outputs}
            pairs = {}
            for value in self.model.ir.graph.inputs:
                readers = [node for node, place in value.uses()]
                scatters = [node for node in readers if node.op_type == "TensorScatter"]
                if len(scatters) != 1 or scatters[0].inputs[0] is not value:
                    continue
                others = len(readers) > 1 or value.is_graph_output()
                result = scatters[0].outputs[0].name
                if result in made and not (others and self.plugin.looks_for_others):
                    pairs[made[result]] = sources[value.name]
            return pairs

    looks_for_others = True

    def deliver(self, runner, arrays, outputs):
        """Writes what is new, and nothing else."""
        given = outputs or [None] * len(arrays)
        results = []
        for array, target in zip(arrays, given, strict=True):
            if target is None or array.dtype.hasobject:
                results.append(partita.HostTensor(array))
                continue
            old, new = (one.view(f"V{one.itemsize}") for one in (target.numpy(), array))
            np.copyto(old, new, where=old != new)
            results.append(target)
        return results


class AllocatesCachesOfOthersBefore(UpdatesCaches):
    """A cache that is given back is the next one of its size, with what it held."""

    suites = ("*",)

    class compiled_type(UpdatesCaches.compiled_type):
        def allocate(self, port, shape):
            free = kept(self).setdefault((shape, port.dtype), [])
            array = free.pop() if free else super().allocate(port, shape).numpy()
            tensor = partita.HostTensor(array.view())
            weakref.finalize(tensor.numpy(), free.append, array).atexit = False
            return tensor


class UpdatesCachesThatOthersRead(UpdatesCaches):
    """It writes rows over a cache that another operation reads too, and does so afterwards."""

    suites = ("*",)
    looks_for_others = False

    class runner_type(GoodRunner):
        pairs = ()

        def run(self, inputs, outputs=None):
            offered = self.compiled.in_place_outputs() if outputs is not None else {}
            self.pairs = [(o, i) for o, i in offered.items() if outputs[o] is inputs[i]]
            return super().run(inputs, outputs)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if not runner.pairs:
            return results
        updated = list(arrays)
        for output, source in runner.pairs:
            updated[source] = results[output]
        again = super().compute(runner, updated)
        written = {output for output, _ in runner.pairs}
        return [results[i] if i in written else one for i, one in enumerate(again)]


CHANNELS_LAST = MemoryLayout((0, 2, 3, 1), np.dtype(np.float32))


class ChannelsLastModel(GoodCompiled):
    """A right model, which offers images with channels last."""

    chosen = None

    def layouts(self):
        ports = (*self.inputs, *self.outputs)
        fits = [p for p in ports if p.dtype == np.float32 and p.shape and len(p.shape) == 4]
        return {port: [CHANNELS_LAST] for port in fits}

    def with_layouts(self, layouts):
        other = copy.copy(self)
        other.chosen = dict(layouts)
        return other

    def layout(self, port):
        return (self.chosen or {}).get(port)


class ChannelsLastRunner(GoodRunner):
    """Takes and gives tensors in the layouts that were agreed."""

    def run(self, inputs, outputs=None):
        plain = []
        for port, tensor in zip(self.compiled.inputs, inputs, strict=True):
            layout = self.compiled.layout(port)
            stored = stored_as(tensor, layout)
            array = stored if layout is None else layout.plain(stored, tensor.dtype)
            plain.append(partita.HostTensor(array))
        results = super().run(plain)
        given = []
        for port, result in zip(self.compiled.outputs, results, strict=True):
            layout = self.compiled.layout(port)
            if layout is not None:
                result = LaidOutTensor(layout.stored(result.numpy()), result.dtype, layout)
            given.append(result)
        return given


class ChoosesLayoutsForAllAtOnce(Broken):
    """To choose layouts changes the compiled model itself, of which there may be requests."""

    suites = ("*",)
    runner_type = ChannelsLastRunner

    class compiled_type(ChannelsLastModel):
        def with_layouts(self, layouts):
            self.chosen = {**(self.chosen or {}), **layouts}
            return self
