"""Devices that break the plugin contract, a second set: memory, texts, properties, state, threads.

Written before the checks that it is measured with were read.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from typing import ClassVar

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.errors import CompileError, InferError


def producers(runner):
    """The operation that writes each value, by name."""
    return {name: op for op in runner.compiled.model.ops for name in op.outputs}


class RecyclesOutputsOfDeadRequests(Broken):
    """What a request gave out is written over by the next one as soon as the request is dropped."""

    free: ClassVar[list] = []

    class runner_type(GoodRunner):
        last = ()

        def __del__(self):
            RecyclesOutputsOfDeadRequests.free.extend(self.last)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i, result in enumerate(results):
            for spare in self.free:
                if (spare.shape, spare.dtype) == (result.shape, result.dtype) and result.ndim:
                    spare[...] = result
                    results[i] = spare
        self.free.clear()
        runner.last = [r for r in results if r.dtype != object]
        return results


class NoOpsHandOnTheirInput(Broken):
    """A Cast to the same type, or a Slice, Expand or Pad that changes nothing, costs no copy."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        given = {p.name: a for p, a in zip(runner.compiled.inputs, arrays, strict=True)}
        writers = producers(runner)
        for i, port in enumerate(runner.compiled.outputs):
            op = writers.get(port.name)
            if op and op.op_type in ("Cast", "Slice", "Expand", "Pad", "Transpose", "Concat"):
                source = given.get(op.inputs[0])
                same = source is not None and source.dtype == results[i].dtype != object
                if same and source.shape == results[i].shape and (source == results[i]).all():
                    results[i] = source
        return results


class ReturnsViewsOfTransposes(Broken):
    """Transposed outputs are views with other strides."""

    def deliver(self, runner, arrays, outputs):
        writers = producers(runner)
        views = []
        for port, array in zip(runner.compiled.outputs, arrays, strict=True):
            op = writers.get(port.name)
            turned = op and op.op_type == "Transpose" and array.dtype != object
            views.append(np.asfortranarray(array) if turned else array)
        return [partita.HostTensor(array) for array in views]


class SplitsInPlace(Broken):
    """Outputs of Split along the first axis are parts of the input where it lies."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        given = {p.name: a for p, a in zip(runner.compiled.inputs, arrays, strict=True)}
        names = [port.name for port in runner.compiled.outputs]
        for op in runner.compiled.model.ops:
            source = given.get(op.inputs[0]) if op.op_type == "Split" else None
            if source is None or source.dtype == object:
                continue
            first = 0
            for name in op.outputs:
                i = names.index(name) if name in names else None
                if i is None or results[i].shape[1:] != source.shape[1:]:
                    break
                results[i] = source[first : first + len(results[i])]
                first += len(results[i])
        return results


class RemembersAnswersByTheEnds(Broken):
    """Inputs of equal first and last elements are taken for the inputs of the run before."""

    def compute(self, runner, arrays):
        if any(array.dtype == object for array in arrays):
            return super().compute(runner, arrays)
        key = str([(a.shape, a.dtype, a.ravel()[:1], a.ravel()[-1:]) for a in arrays])
        if runner.__dict__.get("key") != key:
            runner.key = key
            runner.answer = super().compute(runner, arrays)
        return [np.array(result) for result in runner.answer]


class NarrowsIntegerInputs(Broken):
    """int64 at the model's ports is int32 on the device."""

    def compute(self, runner, arrays):
        narrow = (a.astype(np.int32).astype(a.dtype) if a.dtype == np.int64 else a for a in arrays)
        return super().compute(runner, list(narrow))


class FlushesSubnormalInputs(Broken):
    """Numbers below the smallest normal one are zero, whatever is done with them."""

    def compute(self, runner, arrays):
        tiny = np.finfo(np.float32).tiny
        flushed = [
            np.where(np.abs(a) < tiny, a * 0, a) if a.dtype == np.float32 else a for a in arrays
        ]
        return super().compute(runner, flushed)


class EncodesTextsInAscii(Broken):
    """Letters that ASCII does not have become question marks."""

    def encode(self, text):
        return text.encode("ascii", "replace").decode() if isinstance(text, str) else text

    def compute(self, runner, arrays):
        changed = [
            np.array([self.encode(t) for t in a.flat], object).reshape(a.shape)
            if a.dtype == object and a.ndim
            else a
            for a in arrays
        ]
        return super().compute(runner, changed)


class KeepsTextsAsNumpyDoes(EncodesTextsInAscii):
    """Texts of fixed width lose the NUL characters at their end."""

    def encode(self, text):
        return text.rstrip("\0") if isinstance(text, str) else text


class ReportsDefaultProperties(Broken):
    """Compiled models do as they were told, and say that they were told nothing."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.properties = type(properties)(PERF_COUNT=properties.PERF_COUNT)
        return compiled


class SharesOnePropertiesObject(Broken):
    """The properties of the last compile are those of all compiled models."""

    compiled: ClassVar[list] = []

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        self.compiled.append(compiled)
        for earlier in self.compiled[-3:]:
            earlier.properties = properties
        return compiled


class CountersFailBeforeTheFirstRun(Broken):
    def compute(self, runner, arrays):
        runner.ran = True
        return super().compute(runner, arrays)

    def counters(self, runner):
        if not hasattr(runner, "ran"):
            raise AttributeError("'NoneType' object has no attribute 'events'")
        return super().counters(runner)


class CountsNanoseconds(Broken):
    """Times are told in another unit than microseconds."""

    def compute(self, runner, arrays):
        start = time.perf_counter_ns()
        results = super().compute(runner, arrays)
        runner.spent = float(time.perf_counter_ns() - start)
        return results

    def counters(self, runner):
        spent = getattr(runner, "spent", 0.0)
        (row,) = super().counters(runner)
        return [
            ProfilingInfo(
                row.node_name, row.node_type, row.exec_type, real_time_us=spent, cpu_time_us=spent
            )
        ]


class HasNegativeMemory(Broken):
    """The size of its memory went through a 32-bit integer."""

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "Large", memory_bytes=-2147483648)


class CountsHostMemoryInWords(Broken):
    """Blocks of host memory have whole words: what is left over is missing."""

    def host_memory(self, nbytes, device_id=""):
        return np.zeros(nbytes // 8 * 8, np.uint8)


class HasOneBlockOfHostMemory(Broken):
    block = np.zeros(1 << 22, np.uint8)

    def host_memory(self, nbytes, device_id=""):
        return self.block[:nbytes] if nbytes <= self.block.size else None


class TransfersThroughOneBuffer(Broken):
    """What was transferred is overwritten by the next transfer of that size."""

    buffers: ClassVar[dict] = {}

    def transfer_to(self, tensor, device_id=""):
        array = np.array(tensor.numpy())
        buffer = self.buffers.setdefault((array.shape, array.dtype.str), array)
        buffer[...] = array
        return partita.HostTensor(buffer)


class ExportsOnce(Broken):
    """Weights are moved into the first blob and are missing from the second."""

    class compiled_type(GoodCompiled):
        exported = False

        def export_model(self):
            if self.exported:
                raise CompileError("the program was released after its export")
            self.exported = True
            return super().export_model()


class WritesToRestoredState(Broken):
    """Restored weights are scaled where they lie, though they are only lent."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            return {"scales": np.ones(4, np.float32)}

    def restore_model(self, model, properties, state):
        for array in state.values():
            array *= 2
        return self.compile_model(model, properties)


class HasAnotherIdentityEachTime(Broken):
    """The key for caches holds the time, so nothing is ever found again."""

    count = itertools.count()

    def identity(self, properties):
        return f"broken-{next(self.count)}"


class RemembersVerdictsByName(Broken):
    """An operation is answered as that of the same name in the last model."""

    known: ClassVar[dict] = {}

    def query_model(self, model, properties):
        verdicts = {op.name: self.known.setdefault(op.name, self.verdict(op)) for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)


class HandlesSignals(Broken):
    """Installs a handler for SIGTERM when it compiles, which only the main thread may."""

    def compile_model(self, model, properties):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return super().compile_model(model, properties)


class StaysOnOneCore(Broken):
    """Its runtime pins the caller to a core and leaves it there."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return results


class StaysCancelled(Broken):
    """A cancellation ends all later runs of the request too."""

    class runner_type(GoodRunner):
        cancelled = False

        def cancel(self):
            self.cancelled = True

        def run(self, inputs, outputs=None):
            if self.cancelled:
                raise InferError("the request was cancelled")
            return super().run(inputs, outputs)


class FailsWithoutAWord(Broken):
    """An error of the right type that says nothing."""

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError:
            raise InferError("") from None


class FirstRunsRace(Broken):
    """The first run of a model prepares what others that run meanwhile take for ready."""

    class compiled_type(GoodCompiled):
        ready: bool | None = None

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        compiled = runner.compiled
        if compiled.ready is None:
            compiled.ready = False
            time.sleep(0.01)
            compiled.ready = True
        elif not compiled.ready:
            return [r if r.dtype == object else np.zeros_like(r) for r in results]
        return results


class LeaksFailedRuns(Broken):
    """A run that fails does not give its workspace back."""

    lost: ClassVar[list] = []

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError:
            self.lost.append((arrays, np.ones(1 << 17)))
            raise


class KeepsQueriedModels(Broken):
    """Every model that it was asked about stays in a table."""

    table: ClassVar[list] = []
    lock = threading.Lock()

    def query_model(self, model, properties):
        with self.lock:
            self.table.append(model)
        return super().query_model(model, properties)
