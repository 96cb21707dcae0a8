"""Devices with a fault in how they run, written before the kit looked: memory, shapes, threads."""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar

import numpy as np
from broken_form import Broken
from good_device import GoodRunner

import partita
from partita.errors import InferError


class Aliases(Broken):
    """Of nodes of some operators, hands on memory of somebody else."""

    def nodes(self, runner):
        return {
            output: op.op_type
            for op in runner.compiled.model.ops
            for output in op.outputs
            if op.op_type in ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout")
        }


class HandsOutItsInputs(Aliases):
    """Identity and Reshape give the caller's own memory back as their output."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i, port in enumerate(runner.compiled.outputs):
            for array in arrays:
                same = port.name in self.nodes(runner) and array.dtype == results[i].dtype
                if same and array.size == results[i].size and array.dtype.kind == "f":
                    results[i] = array.reshape(results[i].shape)
        return results


class HandsOutItsWeights(Broken):
    """Outputs that depend on no input are computed once and handed out as they lie."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        known = {port.name for port in runner.compiled.inputs}
        for op in runner.compiled.model.ops:
            if known & set(op.inputs):
                known |= set(op.outputs)
        fixed = runner.compiled.__dict__.setdefault("fixed", {})
        for i, port in enumerate(runner.compiled.outputs):
            if port.name not in known and results[i].dtype != object:
                results[i] = fixed.setdefault(port.name, results[i])
        return results


class HandsOutOneArrayTwice(Broken):
    """Outputs of equal content share their memory."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i in range(1, len(results)):
            for j in range(i):
                same = results[i].shape == results[j].shape and results[i].dtype == results[j].dtype
                if same and results[i].dtype.kind == "f" and np.all(results[i] == results[j]):
                    results[i] = results[j]
        return results


class HandsOutOneBlock(Broken):
    """Outputs lie in one block, the second beginning before the first has ended."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if len(results) > 1 and all(r.dtype == np.float32 and r.size > 1 for r in results[:2]):
            first, second = results[:2]
            block = np.empty(first.size + second.size - 1, np.float32)
            block[: first.size] = first.ravel()
            block[first.size - 1 :] = second.ravel()
            results[0] = block[: first.size].reshape(first.shape)
            results[1] = block[first.size - 1 :].reshape(second.shape)
        return results


class OneBufferPerThread(Broken):
    """Requests that one thread runs share their output."""

    local = threading.local()

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        kept = self.local.__dict__.setdefault("buffers", {})
        for i, result in enumerate(results):
            if result.dtype != object:
                buffer = kept.setdefault((i, result.shape, result.dtype.str), result)
                buffer[...] = result
                results[i] = buffer
        return results


class OneBufferForAllModels(Broken):
    kept: ClassVar[dict] = {}

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i, result in enumerate(results):
            if result.dtype == np.float32:
                buffer = self.kept.setdefault((i, result.shape), result)
                buffer[...] = result
                results[i] = buffer
        return results


class PlansBySize(Broken):
    """The plan for shapes is found by the number of elements."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        plans = runner.__dict__.setdefault("plans", {})
        shapes = plans.setdefault(tuple(a.size for a in arrays), [r.shape for r in results])
        fits = all(np.prod(s) == r.size for s, r in zip(shapes, results, strict=True))
        return [r.reshape(s) for s, r in zip(shapes, results, strict=True)] if fits else results


class PlansByRank(Broken):
    """The plan of the first shape serves all others of the same rank, as far as it reaches."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        plans = runner.__dict__.setdefault("plans", {})
        sizes = plans.setdefault(tuple(a.ndim for a in arrays), [r.size for r in results])
        for size, result in zip(sizes, results, strict=True):
            result.reshape(-1)[size:] = "" if result.dtype == object else 0
        return results


class PlansByTheFirstInput(Broken):
    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if arrays:
            plans = runner.__dict__.setdefault("plans", {})
            sizes = plans.setdefault(arrays[0].shape, [r.size for r in results])
            for size, result in zip(sizes, results, strict=True):
                result.reshape(-1)[size:] = "" if result.dtype == object else 0
        return results


class KnowsTwoShapes(Broken):
    """A third shape gets the second one's buffers."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        shapes = runner.__dict__.setdefault("shapes", [])
        now = [a.shape for a in arrays]
        if now not in shapes:
            shapes.append(now)
        if shapes.index(now) > 1:
            return [np.zeros_like(r) for r in results]
        return results


class CannotGoBack(Broken):
    """After a second shape, the first one is computed with what the second one left."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        now = [a.shape for a in arrays]
        shapes = runner.__dict__.setdefault("shapes", [])
        if now in shapes[:-1]:
            results = [np.zeros_like(r) for r in results]
        if not shapes or shapes[-1] != now:
            shapes.append(now)
        return results


class KeepsWhatWasThereForNothing(Broken):
    """Given no rows, returns the rows of the run before."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        last = runner.__dict__.get("last")
        if last is not None and any(r.size == 0 for r in results):
            return last
        runner.last = results
        return results


class BelongsToOneThread(Broken):
    """Its context belongs to the thread that compiled."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.thread = threading.get_ident()
        return compiled

    def compute(self, runner, arrays):
        if threading.get_ident() != runner.compiled.thread:
            raise InferError("invalid context")
        return super().compute(runner, arrays)


class ComputesNothingOnOtherThreads(BelongsToOneThread):
    def compute(self, runner, arrays):
        results = Broken.compute(self, runner, arrays)
        if threading.get_ident() != runner.compiled.thread:
            return [r if r.dtype == object else np.zeros_like(r) for r in results]
        return results


class ReturnsTooEarly(Broken):
    """A stream that nobody waits for writes the results a moment later."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(r.dtype == object for r in results):
            return results
        early = [np.zeros_like(r) for r in results]

        def finish():
            time.sleep(0.002)
            for target, source in zip(early, results, strict=True):
                target[...] = source

        threading.Thread(target=finish, daemon=True).start()
        return early


class OpensAFilePerRun(Broken):
    def compute(self, runner, arrays):
        os.dup(2)
        return super().compute(runner, arrays)


class OpensAFilePerRequest(Broken):
    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            os.dup(2)


class OpensAFilePerModel(Broken):
    def compile_model(self, model, properties):
        os.dup(2)
        return super().compile_model(model, properties)


def wait_for_ever():
    threading.Event().wait()


class StartsAThreadPerRun(Broken):
    count = 0

    def compute(self, runner, arrays):
        if StartsAThreadPerRun.count < 400:
            StartsAThreadPerRun.count += 1
            threading.Thread(target=wait_for_ever, daemon=True).start()
        return super().compute(runner, arrays)


class StartsAThreadPerModel(Broken):
    count = 0

    def compile_model(self, model, properties):
        if StartsAThreadPerModel.count < 400:
            StartsAThreadPerModel.count += 1
            threading.Thread(target=wait_for_ever, daemon=True).start()
        return super().compile_model(model, properties)


class StartsAThreadPerRequest(Broken):
    class runner_type(GoodRunner):
        count = 0

        def __init__(self, compiled):
            super().__init__(compiled)
            if StartsAThreadPerRequest.runner_type.count < 400:
                StartsAThreadPerRequest.runner_type.count += 1
                threading.Thread(target=wait_for_ever, daemon=True).start()


class RemembersItsInputs(Broken):
    """The last inputs stay alive as long as the request does."""

    def compute(self, runner, arrays):
        runner.kept = arrays
        return super().compute(runner, arrays)


class LeaksAReference(Broken):
    """An extension that forgets a Py_DECREF of its first input."""

    lost: ClassVar[list] = []

    def compute(self, runner, arrays):
        self.lost.extend(arrays[:1])
        return super().compute(runner, arrays)


class RemembersItsOutputs(Broken):
    lost: ClassVar[list] = []

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        self.lost.extend(results)
        return results


class KeepsModelsAlive(Broken):
    """A table of all models that were ever compiled."""

    table: ClassVar[list] = []

    def compile_model(self, model, properties):
        self.table.append(model)
        return super().compile_model(model, properties)


class Delivers(Broken):
    """Changes what is delivered, whatever was asked for."""

    def change(self, array):
        return array

    def deliver(self, runner, arrays, outputs):
        return [partita.HostTensor(self.change(array)) for array in arrays]


class ReturnsNarrowIndices(Delivers):
    def change(self, array):
        return array.astype(np.int32) if array.dtype == np.int64 else array


class ReturnsBytesForBools(Delivers):
    def change(self, array):
        return array.view(np.uint8) if array.dtype == bool else array


class WidensHalves(Delivers):
    def change(self, array):
        return array.astype(np.float32) if array.dtype == np.float16 else array


class ReturnsVectorsForScalars(Delivers):
    def change(self, array):
        return array.reshape(1) if array.ndim == 0 else array


class ReturnsScalarsForVectors(Delivers):
    def change(self, array):
        return array.reshape(()) if array.shape == (1,) else array


class ReturnsBigEndian(Delivers):
    def change(self, array):
        return array.astype(array.dtype.newbyteorder(">")) if array.dtype.kind in "fi" else array


class ReturnsEverySecondElement(Delivers):
    """A view with strides where an array in C order is due."""

    def change(self, array):
        if array.ndim == 0 or array.dtype == object:
            return array
        wide = np.empty((*array.shape, 2), array.dtype)
        wide[..., 0] = array
        return wide[..., 0]


class ReturnsWhatCannotBeWritten(Delivers):
    def change(self, array):
        array.setflags(write=False)
        return array


class ReturnsMatrices(Delivers):
    def change(self, array):
        return np.asmatrix(array) if array.ndim == 2 and array.dtype.kind == "f" else array


class FlattensBeyondRankFour(Delivers):
    def change(self, array):
        return array.reshape(*array.shape[:3], -1) if array.ndim > 4 and array.size else array


class FillsTheFirstOutputOnly(Broken):
    def deliver(self, runner, arrays, outputs):
        if outputs is None or len(arrays) < 2:
            return super().deliver(runner, arrays, outputs)
        return super().deliver(runner, arrays[:1], outputs[:1]) + [
            given or partita.HostTensor(array)
            for given, array in zip(outputs[1:], arrays[1:], strict=True)
        ]


class SortsItsInput(Broken):
    """TopK sorts where the input lies."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(op.op_type == "TopK" for op in runner.compiled.model.ops):
            for array in arrays[:1]:
                if array.flags.writeable:
                    array.sort(axis=-1)
        return results


class WritesIntegerInputs(Broken):
    """Negative indices are made positive in place."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for array in arrays:
            if array.dtype == np.int64 and array.flags.writeable:
                np.abs(array, out=array)
        return results


class ReadsAligned(Broken):
    """Loads of 16 bytes want addresses that are multiples of 16."""

    unit = 16

    def compute(self, runner, arrays):
        moved = []
        for array in arrays:
            if array.dtype != object and array.ctypes.data % self.unit and array.size:
                array = np.roll(array.reshape(-1), 1).reshape(array.shape)
            moved.append(array)
        return super().compute(runner, moved)


class ReadsLargeInputsByLines(ReadsAligned):
    """Inputs of more than a page are read from the cache line on that they begin in."""

    def compute(self, runner, arrays):
        moved = []
        for array in arrays:
            if array.dtype != object and array.nbytes > 4096 and array.ctypes.data % 64:
                array = np.zeros_like(array)
            moved.append(array)
        return Broken.compute(self, runner, moved)


class StartsWithZeros(Broken):
    """The first run of a request is lost."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if not runner.__dict__.setdefault("warm", False):
            runner.warm = True
            return [r if r.dtype == object else np.zeros_like(r) for r in results]
        return results


class WearsOut(Broken):
    """Right for twenty runs of a request."""

    def compute(self, runner, arrays):
        runner.runs = getattr(runner, "runs", 0) + 1
        results = super().compute(runner, arrays)
        return results if runner.runs <= 20 else [r[..., ::-1] if r.ndim else r for r in results]


class AddsNoise(Broken):
    """Atomics: the same question gets another answer, a thousandth apart."""

    def compute(self, runner, arrays):
        runner.runs = getattr(runner, "runs", 0) + 1
        results = super().compute(runner, arrays)
        noise = 1 + 1e-3 * (runner.runs % 2)
        return [r * r.dtype.type(noise) if r.dtype.kind == "f" else r for r in results]


class BindsSymbolsForAll(Broken):
    """The size of a symbol in the first run of the process is its size for good."""

    sizes: ClassVar[dict] = {}

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for port, array in zip(runner.compiled.inputs, arrays, strict=True):
            for dim, size in zip(port.shape or (), array.shape, strict=False):
                if isinstance(dim, str) and self.sizes.setdefault(dim, size) < size:
                    return [r if r.dtype == object else np.zeros_like(r) for r in results]
        return results


class CountsInSixteenBits(Broken):
    """Element numbers beyond 65,535 wrap."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for result in results:
            if result.size > 65536 and result.dtype.kind == "f":
                result.reshape(-1)[65536:] = 0
        return results


class LaunchesTooFewBlocks(Broken):
    """A grid of 1,024 elements, whatever there is to do."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for result in results:
            if result.size > 1024 and result.dtype.kind == "f":
                result.reshape(-1)[1024:] = 0
        return results


class ForgetsTheTailOfLongRows(Broken):
    """Rows of more than 16 elements are computed by eights, without the rest."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for result in results:
            if result.ndim and result.shape[-1] > 16 and result.dtype.kind == "f":
                result[..., result.shape[-1] // 8 * 8 :] = 0
        return results


class CutsTexts(Broken):
    """Texts are as long as the longest of the first run."""

    def compute(self, runner, arrays):
        texts = arrays[0] if arrays else np.zeros(0)
        if texts.size and all(isinstance(text, str) for text in texts.flat):
            most = runner.__dict__.setdefault("most", max(len(text) for text in texts.flat))
            cut = np.array([text[:most] for text in texts.flat], object)
            arrays = [cut.reshape(texts.shape), *arrays[1:]]
        return super().compute(runner, arrays)


class FailsForGoodAfterAFault(Broken):
    """After one failed run, a request reports the same failure again."""

    class runner_type(GoodRunner):
        failure = None

        def run(self, inputs, outputs=None):
            if self.failure:
                raise self.failure
            try:
                return super().run(inputs, outputs)
            except InferError as error:
                self.failure = error
                raise


class RaisesItsOwnErrors(Broken):
    """What cannot be computed ends in an IndexError."""

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            raise IndexError("index 7 is out of bounds") from error


class RunsOneAtATime(Broken):
    """A second request that runs meanwhile is turned away."""

    busy = threading.Lock()

    def compute(self, runner, arrays):
        if not self.busy.acquire(blocking=False):
            raise InferError("device busy")
        try:
            time.sleep(0.001)
            return super().compute(runner, arrays)
        finally:
            self.busy.release()


class KeepsStateBetweenRequests(Broken):
    """An accumulator of the compiled model that a failed run does not clear."""

    def compute(self, runner, arrays):
        try:
            results = super().compute(runner, arrays)
        except InferError:
            runner.compiled.dirty = True
            raise
        if getattr(runner.compiled, "dirty", False):
            return [r + 1 if r.dtype.kind == "f" else r for r in results]
        return results
