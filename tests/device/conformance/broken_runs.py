"""Devices with one fault each in how they run: inputs, outputs, shapes, threads, memory, errors."""

from __future__ import annotations

import os
import time

import numpy as np
from broken_form import Broken

import partita
from partita.errors import InferError


class WritesItsInput(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for array in arrays:
            if array.flags.writeable and array.dtype == np.float32:
                np.maximum(array, 0, out=array)  # an in-place Relu
        return results


class NeedsWritableInputs(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        if not all(array.flags.writeable for array in arrays):
            raise ValueError("buffer source array is read-only")
        return super().compute(runner, arrays)


class ReturnsItsInput(Broken):
    """Computes in place of a copy that it makes only once."""

    suites = ("request/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if arrays[0].shape == results[0].shape and arrays[0].flags.writeable:
            arrays[0][...] = results[0]
            results[0] = arrays[0]
        return results


class BindsTheFirstInput(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        runner.bound = getattr(runner, "bound", arrays)
        if [a.shape for a in runner.bound] != [a.shape for a in arrays]:
            runner.bound = arrays
        return super().compute(runner, runner.bound)


class UploadsByIdentity(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        uploads = runner.__dict__.setdefault("uploads", {})
        kept = []
        for array in arrays:
            if id(array) not in uploads:
                uploads[id(array)] = (array, array.copy())
            kept.append(uploads[id(array)][1])
        return super().compute(runner, kept)


class OneBufferForAllRequests(Broken):
    suites = ("request/results_belong_to_their_request",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        buffers = runner.compiled.__dict__.setdefault("buffers", {})
        for i, result in enumerate(results):
            buffer = buffers.setdefault((i, result.shape), np.empty_like(result))
            buffer[...] = result
            results[i] = buffer
        return results


class KeepsTheFirstShape(Broken):
    suites = ("request/shapes*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        kept = runner.__dict__.setdefault("kept", [r.copy() for r in results])
        for buffer, result in zip(kept, results, strict=True):
            rows = min(len(buffer), len(result))
            buffer[:rows] = result[:rows]
        return kept


class ReturnsDoubles(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        return [r.astype(np.float64) for r in super().compute(runner, arrays)]


class DropsDimensionsOfOne(Broken):
    suites = ("request/inputs_may_share_their_memory",)

    def compute(self, runner, arrays):
        return [np.squeeze(r) for r in super().compute(runner, arrays)]


class ReturnsAnotherLayout(Broken):
    suites = ("request/tensors_are_what_they_say",)

    def compute(self, runner, arrays):
        return [np.asfortranarray(r) for r in super().compute(runner, arrays)]


class MisstatesShapes(Broken):
    suites = ("request/*",)

    def deliver(self, runner, arrays, outputs):
        tensors = [partita.HostTensor(array) for array in arrays]
        for tensor in tensors:
            tensor.shape = (tensor.numpy().size,)
        return tensors


class CannotDoNothing(Broken):
    suites = ("request/shapes_may_change",)

    def compute(self, runner, arrays):
        if any(array.size == 0 for array in arrays):
            raise InferError("invalid work size 0")
        return super().compute(runner, arrays)


class AddsUp(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        last = getattr(runner, "last", None)
        if last is not None and last.shape == results[0].shape:
            results[0] += last  # the accumulator is not cleared
        runner.last = results[0]
        return [r.copy() for r in results]


class SwapsInputs(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        same = len(arrays) == 2 and arrays[0].shape == arrays[1].shape
        return super().compute(runner, arrays[::-1] if same else arrays)


class ReturnsGivenOutputsUntouched(Broken):
    suites = ("request/*",)

    def deliver(self, runner, arrays, outputs):
        given = outputs or [None] * len(arrays)
        return [g or partita.HostTensor(a) for g, a in zip(given, arrays, strict=True)]


class WritesHalfOfGivenOutputs(Broken):
    suites = ("request/*",)

    def deliver(self, runner, arrays, outputs):
        for array, given in zip(arrays, outputs or [], strict=False):
            if given is not None and array.ndim:
                given.numpy()[: len(array) // 2] = array[: len(array) // 2]
        given = outputs or [None] * len(arrays)
        return [g or partita.HostTensor(a) for g, a in zip(given, arrays, strict=True)]


class KeepsGivenOutputs(Broken):
    suites = ("request/results_are_kept_apart_from_given_outputs",)

    def deliver(self, runner, arrays, outputs):
        runner.given = outputs or getattr(runner, "given", None)
        return super().deliver(runner, arrays, runner.given)


class SharesMemoryOfOutputs(Broken):
    suites = ("request/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if len(results) > 1 and all(r.shape == results[0].shape for r in results):
            return [results[0]] * len(results)
        return results


class CleansNumbers(Broken):
    suites = ("request/special_numbers_pass",)

    def compute(self, runner, arrays):
        return [
            np.nan_to_num(r) if r.dtype == np.float32 else r
            for r in super().compute(runner, arrays)
        ]


class HalfPrecision(Broken):
    suites = ("random/MatMul/*", "random/Conv/*")

    def compute(self, runner, arrays):
        return [
            r.astype(np.float16).astype(np.float32) if r.dtype == np.float32 else r
            for r in super().compute(runner, arrays)
        ]


class RefusesOwnTensors(Broken):
    """Takes arrays only as long as nobody made them a tensor of the device."""

    suites = ("request/a_tensor_of_the_device_may_come_back",)

    def transfer_to(self, tensor, device_id=""):
        result = partita.HostTensor(np.array(tensor.numpy()))
        result.numpy().flags.writeable = False
        type(self).own = result.numpy().ctypes.data
        return result

    def compute(self, runner, arrays):
        if any(array.ctypes.data == getattr(type(self), "own", 0) for array in arrays):
            return [np.zeros_like(r) for r in super().compute(runner, arrays)]
        return super().compute(runner, arrays)


class RacesBetweenRequests(Broken):
    suites = ("threads/*",)

    def compute(self, runner, arrays):
        self.scratch = arrays
        time.sleep(0.001)
        return super().compute(runner, self.scratch)


class RacesBetweenCompiles(Broken):
    suites = ("threads/models_are_made_at_any_moment",)

    def compile_model(self, model, properties):
        self.current = model
        time.sleep(0.02)
        return super().compile_model(self.current, properties)


class SharesShapesBetweenThreads(Broken):
    suites = ("threads/*",)

    def compute(self, runner, arrays):
        runner.compiled.rows = len(arrays[0])
        time.sleep(0.001)
        results = super().compute(runner, arrays)
        return [r[: runner.compiled.rows] for r in results]


class FailsInCompany(Broken):
    suites = ("threads/*",)

    def compute(self, runner, arrays):
        if not self.lock.acquire(blocking=False):
            raise InferError("the device is busy")
        try:
            time.sleep(0.001)
            return super().compute(runner, arrays)
        finally:
            self.lock.release()


class ForgetsTheCallersInputs(Broken):
    """Reads inputs after the run has returned to the caller: the next run sees the last ones."""

    suites = ("async/*",)

    def compute(self, runner, arrays):
        late, runner.late = getattr(runner, "late", arrays), arrays
        return super().compute(runner, late)


class LeaksRuns(Broken):
    suites = ("memory/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        runner.__dict__.setdefault("history", []).append([r.copy() for r in results])
        return results


class LeaksRequests(Broken):
    suites = ("memory/requests_give_back",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if not hasattr(runner, "buffer"):
            runner.buffer = results[0].copy()
            runner.compiled.__dict__.setdefault("buffers", []).append(runner.buffer)
        return results


class KeepsCompiledModels(Broken):
    suites = ("memory/compiling_does_not_grow",)

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        self.__dict__.setdefault("all", []).append(compiled)
        return compiled


class KeepsEveryShape(Broken):
    suites = ("memory/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        shapes = tuple(a.shape for a in arrays)
        buffers = runner.__dict__.setdefault("buffers", {})
        buffers.setdefault(shapes, [np.ones((2, *r.shape), r.dtype) for r in results])
        return results


class KeepsTransfers(Broken):
    suites = ("memory/transfers_give_back",)

    def transfer_to(self, tensor, device_id=""):
        result = partita.HostTensor(np.array(tensor.numpy()))
        self.__dict__.setdefault("all", []).append(result)
        return result


class SwallowsErrors(Broken):
    suites = ("faults/*",)

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError:
            return [np.zeros((1, 3), np.float32) for _ in runner.compiled.outputs]


class StaysBroken(Broken):
    suites = ("faults/*",)

    def compute(self, runner, arrays):
        if getattr(runner, "broken", False):
            raise InferError("an earlier run failed")
        try:
            return super().compute(runner, arrays)
        except InferError:
            runner.broken = True
            raise


class DiesWithAFailedCompile(Broken):
    suites = ("faults/*",)
    failed = False

    def compile_model(self, model, properties):
        try:
            return super().compile_model(model, properties)
        except partita.errors.CompileError:
            self.failed = True
            raise

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        return [np.zeros_like(r) for r in results] if self.failed else results


class Crashes(Broken):
    """Ends the process when it runs Exp."""

    def compute(self, runner, arrays):
        if any(op.op_type == "Exp" for op in runner.compiled.model.ops):
            os._exit(139)
        return super().compute(runner, arrays)


class IsInterrupted(Broken):
    """Gets Ctrl-C while it runs Exp, as all processes at a terminal do."""

    def compute(self, runner, arrays):
        if any(op.op_type == "Exp" for op in runner.compiled.model.ops):
            raise KeyboardInterrupt
        return super().compute(runner, arrays)


class Hangs(Broken):
    """Never comes back from Exp."""

    def compute(self, runner, arrays):
        if any(op.op_type == "Exp" for op in runner.compiled.model.ops):
            time.sleep(600)
        return super().compute(runner, arrays)


class BreaksAtCreation(Broken):
    """Does not get beyond its constructor."""

    def __init__(self):
        raise OSError("libdevice.so: cannot open shared object file")
