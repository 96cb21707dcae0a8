"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

Kernels are right here; what is built around them takes something for granted: about requests,
bound calls, borrowed memory, shapes, sequences, bodies, counters, threads and the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import onnx
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.profiling import DeviceSpan
from partita.contract.runner import run_into
from partita.errors import InferError
from partita.tensors.sequence_values import boxed, unboxed


def plain(array):
    """Whether an array holds numbers: neither texts nor a sequence."""
    return not array.dtype.hasobject


def shapes_of(arrays):
    """Shapes and types, as keys of plans have them."""
    return tuple((array.shape, array.dtype.str) for array in arrays)


def filled_into(shape, array):
    """What a buffer of this shape holds once elements were copied to it in order."""
    buffer = np.zeros(shape, array.dtype)
    count = min(buffer.size, array.size)
    buffer.reshape(-1)[:count] = array.reshape(-1)[:count]
    return buffer


def buffer_of(pool, key, array):
    """A copy of an array in a buffer that is used again; a few of them are kept."""
    key = (key, array.shape, array.dtype)
    if len(pool) > 8 and key not in pool:
        pool.clear()
    buffer = pool.setdefault(key, np.empty_like(array))
    buffer[...] = array
    return buffer


class Call(BoundCall):
    """A right bound call."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)

    def rebind(self, inputs):
        self.inputs = list(inputs)
        return True


class BindingRunner(GoodRunner):
    """Binds calls of the type that it names."""

    call_type = Call

    def bind(self, inputs, outputs, scratch=None):
        return self.call_type(self, inputs, outputs)


# ------------------------------------------------------------------- plans and shapes


class PlansByTheNumberOfElements(Broken):
    """Takes for granted that as many elements come in the same shape, and finds plans by them."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        plans = runner.__dict__.setdefault("plans", {})
        due = plans.setdefault(tuple(a.size for a in arrays), [np.shape(r) for r in results])
        fits = [plain(r) and np.prod(d) == r.size for r, d in zip(results, due, strict=True)]
        pairs = zip(results, due, fits, strict=True)
        return [r.reshape(shape) if fit else r for r, shape, fit in pairs]


class PlansWithoutLookingAtElements(Broken):
    """Takes for granted that inputs of known shapes give outputs of known shapes."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        plans = runner.__dict__.setdefault("plans", {})
        due = plans.setdefault(shapes_of(arrays), [r.shape for r in results])
        pairs = zip(results, due, strict=True)
        return [filled_into(s, r) if plain(r) and r.shape != s else r for r, s in pairs]


class ForgetsWhichShapeWasEvicted(Broken):
    """Keeps plans of twelve shapes in slots, and takes for granted that no thirteenth comes."""

    slots = 12

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        index = runner.__dict__.setdefault("index", {})
        plans = runner.__dict__.setdefault("plans", {})
        key = shapes_of(arrays)
        if key not in index:
            index[key] = len(index) % self.slots
            plans[index[key]] = [r.shape for r in results]
        pairs = zip(results, plans[index[key]], strict=True)
        return [filled_into(s, r) if plain(r) and r.shape != s else r for r, s in pairs]


class FreesItsMemoryWhereNothingComes(Broken):
    """Frees buffers for an empty input, and does not upload again where the old shape returns."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        key = shapes_of(arrays)
        if any(array.size == 0 for array in arrays):
            runner.freed = getattr(runner, "planned", None)
            return results
        freed, runner.freed, runner.planned = getattr(runner, "freed", None), None, key
        if freed != key:
            return results
        return [np.zeros_like(r) if plain(r) else r for r in results]


class LosesTheEndOfAFullPage(Broken):
    """Takes for granted that a result ends inside of a page: one that fills it lacks its last."""

    page = 4096

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for result in results:
            if plain(result) and result.size and result.nbytes % self.page == 0:
                result.reshape(-1)[-1:] = np.zeros(1, result.dtype)
        return results


class KeepsAWorkspaceForEachShape(Broken):
    """Takes for granted that a model sees a handful of shapes, and keeps memory for each."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        spaces = runner.compiled.__dict__.setdefault("spaces", {})
        if shapes_of(arrays) not in spaces:
            spaces[shapes_of(arrays)] = np.ones(1 << 18, np.uint8)
        return results


# ------------------------------------------------------------------- inputs


class TrustsTheStrideOfOneRow(Broken):
    """Uploads rows times the stride of a row, which means nothing where there is one row."""

    def compute(self, runner, arrays):
        return super().compute(runner, [self.uploaded(array) for array in arrays])

    def uploaded(self, array):
        if not plain(array) or array.ndim < 2 or array.size == 0:
            return array
        nbytes = array.strides[0] * array.shape[0]
        if nbytes >= array.nbytes:
            return array
        return filled_into(array.shape, array.reshape(-1)[: nbytes // array.itemsize])


class UploadsEachAddressOnce(Broken):
    """Takes for granted that inputs that begin at one address are one input."""

    def compute(self, runner, arrays):
        uploads, kept = {}, []
        for array in arrays:
            if not plain(array) or array.size == 0:
                kept.append(array)
                continue
            key = (array.ctypes.data, array.dtype)
            first = uploads.setdefault(key, array)
            kept.append(filled_into(array.shape, first))
        return super().compute(runner, kept)


class TellsInputsByTheirCheckSum(Broken):
    """Uploads an input again only if the sum of its bytes has changed."""

    def compute(self, runner, arrays):
        held = runner.__dict__.setdefault("held", {})
        kept = []
        for i, array in enumerate(arrays):
            if not plain(array):
                kept.append(array)
                continue
            raw = np.frombuffer(array.tobytes(), np.uint8)
            key = (shapes_of([array]), int(raw.sum(dtype=np.int64)))
            if i not in held or held[i][0] != key:
                held[i] = (key, array.copy())
            kept.append(held[i][1])
        return super().compute(runner, kept)


class MarksInputsInAByte(Broken):
    """Marks what is to be uploaded in the bits of 32, and so never a thirty-third again."""

    bits = 32

    def compute(self, runner, arrays):
        held = runner.__dict__.setdefault("held", {})
        kept = list(arrays)
        for i, array in enumerate(arrays):
            if i >= self.bits and plain(array):
                if i not in held or held[i].shape != array.shape:
                    held[i] = array.copy()
                kept[i] = held[i]
        return super().compute(runner, kept)


class MovesInFullBursts(Broken):
    """Moves large inputs in bursts of 16 bytes, and takes for granted that they end with one."""

    def compute(self, runner, arrays):
        held = runner.__dict__.setdefault("held", {})
        kept = list(arrays)
        for i, array in enumerate(arrays):
            rest = array.nbytes % 16 // array.itemsize
            if plain(array) and array.nbytes > 1 << 14 and rest:
                staged = held.get(i)
                if staged is None or staged.shape != array.shape:
                    staged = held[i] = np.zeros_like(array)
                staged.reshape(-1)[:-rest] = array.reshape(-1)[:-rest]
                kept[i] = staged.copy()
        return super().compute(runner, kept)


class HandsTheCallersListOn(Broken):
    """Takes for granted that a sequence that comes in is a copy, and inserts into it."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for array in arrays:
            given = unboxed(array)
            if not isinstance(given, list):
                continue
            for i, result in enumerate(results):
                made = unboxed(result)
                if isinstance(made, list) and len(made) == len(given) + 1:
                    given[:] = made
                    results[i] = boxed(given)
                    break
        return results


class TakesEmptySequencesForAbsent(Broken):
    """Asks whether a sequence is there by asking whether it is true."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        return [boxed(unboxed(r) or None) if isinstance(unboxed(r), list) else r for r in results]


class RemembersOptionalValues(Broken):
    """Uploads optional values that are there, and takes for granted that they stay there."""

    def compute(self, runner, arrays):
        held = runner.__dict__.setdefault("held", {})
        kept = list(arrays)
        for i, array in enumerate(arrays):
            if array.dtype == object and array.ndim == 0 and array[()] is None:
                kept[i] = held.get(i, array)
            elif runner.compiled.inputs[i].dtype is None:
                held[i] = array.copy()
        return super().compute(runner, kept)


class CarriesTextsInFixedWidth(Broken):
    """Carries texts in numpy's arrays of fixed width, which end them at their last letter."""

    def compute(self, runner, arrays):
        kept = []
        for array in arrays:
            texts = array.dtype == object and runner.compiled.inputs[len(kept)].dtype is not None
            kept.append(array.astype(np.str_).astype(object) if texts and array.size else array)
        return super().compute(runner, kept)


class PacksFourBitsInPairs(Broken):
    """Takes for granted that elements of four bits come in pairs where they are packed."""

    def compute(self, runner, arrays):
        kept = []
        for array in arrays:
            if "int4" in array.dtype.name and array.size % 2:
                array = array.copy()
                array.reshape(-1)[-1] = 0
            kept.append(array)
        return super().compute(runner, kept)


# ------------------------------------------------------------------- outputs


class ClosesGapsAmongGivenOutputs(Broken):
    """Takes for granted that who gives memory for outputs gives it for the first ones."""

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            return super().deliver(runner, arrays, None)
        given = [tensor for tensor in outputs if tensor is not None]
        result = []
        for array in arrays:
            target = given[0] if given else None
            if target is not None and (target.shape, target.dtype) == (array.shape, array.dtype):
                given.pop(0).numpy()[...] = array
                result.append(target)
            else:
                result.append(partita.HostTensor(array))
        return result


class TrustsWhatItWroteBefore(Broken):
    """Writes nothing if inputs and the output's memory are those of the last run."""

    def deliver(self, runner, arrays, outputs):
        written = getattr(runner, "written", {})
        runner.written = {}
        result = []
        for i, array in enumerate(arrays):
            target = outputs[i] if outputs is not None else None
            if target is None or not plain(array):
                result.append(partita.HostTensor(array))
                continue
            key = (target.numpy().ctypes.data, array.shape, array.tobytes())
            if written.get(i) != key:
                target.numpy()[...] = array
            runner.written[i] = key
            result.append(target)
        return result


class BeginsAtTheFirstAlignedAddress(Broken):
    """Writes vectors from the first aligned address on, and forgets what lies ahead of it."""

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            return super().deliver(runner, arrays, None)
        before = [None if t is None else t.numpy().copy() for t in outputs]
        results = super().deliver(runner, arrays, outputs)
        for target, old in zip(outputs, before, strict=True):
            if target is not None and plain(old) and old.nbytes >= 64:
                array = target.numpy().reshape(-1)
                ahead = -array.ctypes.data % 16 // array.itemsize
                array[:ahead] = old.reshape(-1)[:ahead]
        return results


class FlushesOnceMoreAtTheEnd(Broken):
    """Keeps the memory that it was lent for outputs, and flushes to it when it is closed."""

    class runner_type(GoodRunner):
        lent = ()

        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            mine = [] if outputs is None else [r for r in results if any(r is o for o in outputs)]
            self.lent = [(tensor.numpy(), tensor.numpy().copy()) for tensor in mine]
            return results

        def close(self):
            for array, content in self.lent:
                array[...] = content
            self.lent = ()

        def __del__(self):
            self.close()


class ReturnsSmallResultsAsBytes(Broken):
    """Sends results of a few bytes inside of the answer, where nobody may write to them."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i, result in enumerate(results):
            if plain(result) and 0 < result.nbytes <= 32:
                raw = np.frombuffer(result.tobytes(), np.uint8)
                results[i] = raw.view(result.dtype).reshape(result.shape)
        return results


class LazyTensor(partita.HostTensor):
    """Computes when it is looked at."""

    __slots__ = ("make",)

    def numpy(self):
        if self.make is not None:
            self._array[...], self.make = self.make(), None
        return self._array


class ComputesWhenItIsLookedAt(Broken):
    """Computes results at their first use, of what the inputs hold then."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            if outputs is not None or not all(plain(r.numpy()) for r in results):
                return results
            lazy = []
            for i, result in enumerate(results):
                tensor = LazyTensor(result.numpy().copy())
                tensor.make = lambda i=i, given=list(inputs): self.value(given, i)
                lazy.append(tensor)
            return lazy

        def value(self, inputs, i):
            return self.evaluate([tensor.numpy() for tensor in inputs])[i]


class RemembersAnAnswerItHasLent(Broken):
    """Answers the same question by the same array, which its caller may have written to."""

    def compute(self, runner, arrays):
        if not all(plain(array) for array in arrays):
            return super().compute(runner, arrays)
        key = (shapes_of(arrays), b"".join(array.tobytes() for array in arrays))
        if getattr(runner, "asked", None) != key:
            runner.asked, runner.answer = key, super().compute(runner, arrays)
        return list(runner.answer)


class LendsWhatItHasFolded(Broken):
    """Computes outputs that no input reaches once, and returns that array to every request."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        reached = {port.name for port in runner.compiled.inputs}
        for op in runner.compiled.model.ops:
            bodies = any(a.type.name in ("GRAPH", "GRAPHS") for a in op.node.attributes.values())
            if bodies or "Random" in op.op_type or reached & set(op.inputs):
                reached.update(op.outputs)
        folded = runner.compiled.__dict__.setdefault("folded", {})
        for i, port in enumerate(runner.compiled.outputs):
            if port.name not in reached:
                results[i] = folded.setdefault(i, results[i])
        return results


class PassesTheMemoryOfTheGoneOn(Broken):
    """Gives the buffers of a runner that is gone to the next one, though results lie there."""

    class runner_type(GoodRunner):
        buffers = None

        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            if outputs is not None or not all(plain(r.numpy()) for r in results):
                return results
            pool = self.compiled.__dict__.setdefault("pool", [])
            if self.buffers is None:
                self.buffers = pool.pop() if pool else {}
            for i, result in enumerate(results):
                results[i] = partita.HostTensor(buffer_of(self.buffers, i, result.numpy()))
            return results

        def close(self):
            if self.buffers is not None:
                self.compiled.__dict__.setdefault("pool", []).append(self.buffers)
                self.buffers = None

        def __del__(self):
            self.close()


# ------------------------------------------------------------------- failures, cancellation, time


class CancelsTheNeighbours(Broken):
    """Keeps the flag that stops a run where all requests of a model look at it."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            self.compiled.stopped = False
            results = super().run(inputs, outputs)
            if self.compiled.stopped:
                raise InferError("The run was cancelled.")
            return results

        def cancel(self):
            self.compiled.stopped = True


class GoesOnWhereItWasCancelled(Broken):
    """Goes on with a run that was cancelled when the next one of its shapes comes."""

    class runner_type(GoodRunner):
        stopped = False
        rest = None

        def run(self, inputs, outputs=None):
            rest, self.rest = self.rest, None
            self.stopped = False
            arrays = [tensor.numpy() for tensor in inputs]
            if rest is not None and rest[0] == shapes_of(arrays):
                return self.compiled.plugin.deliver(self, rest[1], outputs)
            results = self.compiled.plugin.compute(self, arrays)
            if self.stopped:
                self.rest = (shapes_of(arrays), results)
                raise InferError("The run was cancelled.")
            return self.compiled.plugin.deliver(self, results, outputs)

        def cancel(self):
            self.stopped = True


class CancelsOnlyWhatHasBegun(Broken):
    """Takes for granted that a run has begun before anybody cancels it."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            self.stop = threading.Event()
            return super().run(inputs, outputs)

        def cancel(self):
            self.stop.set()


class ReportsErrorsToTheNextOne(Broken):
    """Leaves an error in the device's context, where the next request of the model finds it."""

    def compute(self, runner, arrays):
        context = runner.compiled.__dict__
        error, who = context.pop("error", (None, None))
        if error is not None and who is not id(runner) and who != id(runner):
            raise InferError(f"An earlier launch failed: {error}")
        try:
            return super().compute(runner, arrays)
        except Exception as raised:
            context["error"] = (str(raised), id(runner))
            raise


class HandsOutOldResultsForFailures(Broken):
    """Does not look at the status of a launch: where it fails, the last results are still there."""

    def compute(self, runner, arrays):
        key = shapes_of(arrays)
        try:
            results = super().compute(runner, arrays)
        except InferError:
            if getattr(runner, "last", (None,))[0] != key:
                raise
            return [r.copy() for r in runner.last[1]]
        runner.last = (key, [r.copy() for r in results])
        return results


class LosesItsMemoryInSleep(Broken):
    """Lets the device sleep after a second, and takes for granted that its memory stays."""

    idle_s = 1.0

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        now, last = time.monotonic(), getattr(runner, "last_s", None)
        runner.last_s = now
        if last is not None and now - last > self.idle_s:
            return [np.zeros_like(r) if plain(r) else r for r in results]
        return results


class WrapsItsFences(Broken):
    """Numbers runs in ten bits, so that one in 1,024 finds its fence passed before it computes."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        runner.fence = (getattr(runner, "fence", 0) + 1) % 1024
        last = getattr(runner, "last", None)
        runner.last = [r.copy() for r in results]
        if runner.fence == 0 and shapes_of(last) == shapes_of(results):
            return last
        return results


class TriesKernelsOnLiveRuns(Broken):
    """Tries its kernels on the first runs of each shape; the fifth one leaves a row out."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        tried = runner.compiled.__dict__.setdefault("tried", {})
        key = shapes_of(arrays)
        tried[key] = tried.get(key, 0) + 1
        if tried[key] == 5 and plain(results[0]) and results[0].ndim:
            results[0][-1:] = np.zeros(1, results[0].dtype)
        return results


# ------------------------------------------------------------------- bound calls


class CapturesSmallInputsByValue(Broken):
    """Captures a bound call as a graph, with inputs of up to 8 bytes as parameters by value."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __init__(self, runner, inputs, outputs):
                super().__init__(runner, inputs, outputs)
                self.rebind(inputs)

            def rebind(self, inputs):
                small = [tensor.nbytes <= 8 and plain(tensor.numpy()) for tensor in inputs]
                self.inputs = [
                    partita.HostTensor(tensor.numpy().copy()) if is_small else tensor
                    for tensor, is_small in zip(inputs, small, strict=True)
                ]
                return True


class RebindsTheFirstInput(Broken):
    """Takes for granted that of the inputs of a bound call only the first one moves."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def rebind(self, inputs):
                self.inputs[:1] = inputs[:1]
                return True


class BindsOneCallPerRunner(Broken):
    """Keeps what is bound in the runner, so that an older call works for the newest one."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __init__(self, runner, inputs, outputs):
                super().__init__(runner, inputs, outputs)
                runner.bound = (self.inputs, self.outputs)

            def __call__(self):
                run_into(self.runner, *self.runner.bound)

            def rebind(self, inputs):
                self.runner.bound = (list(inputs), self.runner.bound[1])
                return True


class CutsResultsOfBoundCalls(Broken):
    """Takes for granted that what was bound fits: copies as many elements as there is room for."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __call__(self):
                results = self.runner.run(self.inputs)
                for result, output in zip(results, self.outputs, strict=True):
                    array = result.numpy()
                    if array.shape != output.shape and plain(array):
                        array = filled_into(output.shape, array)
                    output.numpy()[...] = array


class EndsACallWithItsFirstFailure(Broken):
    """Marks a bound call that has failed, and makes it no more, without a word."""

    class runner_type(BindingRunner):
        class call_type(Call):
            failed = False

            def __call__(self):
                if self.failed:
                    return
                try:
                    super().__call__()
                except InferError:
                    self.failed = True
                    raise


class CountsNoBoundCalls(Broken):
    """Measures runs only, so that counters of bound calls are those of the last run."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __call__(self):
                before = self.runner.elapsed_us
                super().__call__()
                self.runner.elapsed_us = before


class KeepsTablesInScratch(Broken):
    """Writes a table to the memory it is lent when it binds, and reads it at each call."""

    class compiled_type(GoodCompiled):
        @property
        def scratch_bytes(self):
            return 64

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            call = Call(self, inputs, outputs)
            if scratch is None:
                return call
            scratch[:64] = np.arange(64, dtype=np.uint8)
            return CallWithTable(call, scratch)


class CallWithTable(BoundCall):
    """Copies rows of its result in the order that its table tells."""

    def __init__(self, call, table):
        self.call, self.table = call, table

    def __call__(self):
        self.call()
        array = self.call.outputs[0].numpy()
        if array.ndim and plain(array) and 0 < len(array) <= 64:
            array[...] = array[self.table[: len(array)] % len(array)].copy()

    def rebind(self, inputs):
        return self.call.rebind(inputs)


class LeavesResultsAndWritesToThem(Broken):
    """Says that it leaves its results, and takes the same buffer where the shape is the same."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            kept = self.__dict__.setdefault("kept", {})
            for i, result in enumerate(results):
                if outputs is None and plain(result.numpy()):
                    results[i] = partita.HostTensor(buffer_of(kept, i, result.numpy()))
            return results

        def leave_results(self):
            return True


class ClearsElementsForBytes(Broken):
    """Clears as many bytes of new state as it has elements."""

    class compiled_type(GoodCompiled):
        def allocate(self, port, shape):
            tensor = super().allocate(port, shape)
            if plain(tensor.numpy()):
                raw = tensor.numpy().reshape(-1).view(np.uint8)
                raw[tensor.size :] = 0x3C  # what was there before
            return tensor


class UpdatesStateThatOthersRead(Broken):
    """Names every scatter to a whole input as in place, and does not ask who else reads that."""

    class compiled_type(GoodCompiled):
        def in_place_outputs(self):
            inputs = [port.name for port in self.inputs]
            outputs = [port.name for port in self.outputs]
            return {
                outputs.index(op.outputs[0]): inputs.index(op.inputs[0])
                for op in self.model.ops
                if op.op_type in ("ScatterND", "ScatterElements", "TensorScatter")
                and op.outputs[0] in outputs
                and op.inputs[0] in inputs
            }

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            arrays = [tensor.numpy() for tensor in inputs]
            results = self.compiled.plugin.compute(self, arrays)
            for to, source in self.compiled.in_place_outputs().items():
                if outputs is not None and outputs[to] is inputs[source]:
                    arrays[source][...] = results[to]
                    late = self.evaluate(arrays)
                    results = [r if i == to else late[i] for i, r in enumerate(results)]
            return self.compiled.plugin.deliver(self, results, outputs)


# ------------------------------------------------------------------- bodies


def loops_of(model):
    """The loops of a model, not those in bodies."""
    return [op for op in model.ops if op.op_type == "Loop" and not op.domain]


class LeavesResultsOfIdleLoops(Broken):
    """Skips a loop that makes no iteration, and takes for granted that its results are there."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = [port.name for port in runner.compiled.inputs]
        made = getattr(runner, "made", None)
        for op in loops_of(runner.compiled.model):
            trips = arrays[names.index(op.inputs[0])] if op.inputs[0] in names else None
            if trips is None or int(trips.reshape(-1)[0]) > 0 or made is None:
                continue
            for i, port in enumerate(runner.compiled.outputs):
                if port.name in op.outputs and plain(results[i]):
                    results[i] = made[i].copy()
        runner.made = [np.array(r) for r in results]
        return results


class StopsLoopsThatGoOnForLong(Broken):
    """Ends loops after 500 iterations, against those that never end."""

    def prepare(self, proto):
        opset = max((one.version for one in proto.opset_import if not one.domain), default=1)
        if opset < 9 or not any(node.op_type == "Loop" for node in proto.graph.node):
            return proto
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        nodes = list(proto.graph.node)
        del proto.graph.node[:]
        for i, node in enumerate(nodes):
            if node.op_type == "Loop" and not node.domain:
                most = onnx.numpy_helper.from_array(np.int64(500), f"most/{i}")
                proto.graph.initializer.append(most)
                both = [node.input[0], most.name]
                if node.input[0]:
                    less = onnx.helper.make_node("Less", both, [f"less/{i}"])
                    chosen = onnx.helper.make_node("Where", [less.output[0], *both], [f"trips/{i}"])
                    proto.graph.node.extend([less, chosen])
                node.input[0] = f"trips/{i}" if node.input[0] else most.name
            proto.graph.node.append(node)
        return proto


class CapturesOuterValuesOnce(Broken):
    """Copies what bodies read of the graph around them when they are first entered."""

    def compute(self, runner, arrays):
        captured = runner.__dict__.setdefault("captured", {})
        outer = outer_names(runner.compiled.model.to_onnx().graph)
        kept = list(arrays)
        for i, port in enumerate(runner.compiled.inputs):
            if port.name in outer and plain(arrays[i]):
                if i not in captured or captured[i].shape != arrays[i].shape:
                    captured[i] = arrays[i].copy()
                kept[i] = captured[i]
        return super().compute(runner, kept)


def outer_names(graph, inside=False):
    """What nodes of bodies read."""
    names = set()
    for node in graph.node:
        names.update(node.input if inside else ())
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                names |= outer_names(body, True)
    return names


# ------------------------------------------------------------------- counters


class SharesCountersAmongRequests(Broken):
    """Keeps counters with the model, so that a request tells those of whichever ran last."""

    def compute(self, runner, arrays):
        start = time.perf_counter()
        results = super().compute(runner, arrays)
        runner.compiled.last_us = 1e6 * (time.perf_counter() - start)
        return results

    def counters(self, runner):
        runner.elapsed_us = getattr(runner.compiled, "last_us", 0.0)
        return super().counters(runner)


class TellsSpansByAnotherClock(Broken):
    """Tells when it was busy by the calendar's clock instead of the process's counter."""

    class runner_type(GoodRunner):
        span = ()

        def run(self, inputs, outputs=None):
            start = time.time()
            results = super().run(inputs, outputs)
            if self.compiled.properties.PERF_COUNT:
                name = self.compiled.model.name
                self.span = (DeviceSpan(self.compiled.device, name, start, time.time()),)
            return results

        def device_spans(self):
            return self.span


# ------------------------------------------------------------------- threads


class SaysThatItIsReadyTooEarly(Broken):
    """Says that weights are uploaded before they are, where two requests begin at once."""

    def compute(self, runner, arrays):
        context = runner.compiled.__dict__
        first = "ready" not in context
        context["ready"] = True
        if first:
            time.sleep(0.003)  # the upload
            context["loaded"] = True
        loaded = "loaded" in context
        results = super().compute(runner, arrays)
        return results if loaded else [np.zeros_like(r) if plain(r) else r for r in results]


class NumbersRunnersWithoutALock(Broken):
    """Takes for granted that requests are made one by one: two made at once have one slot."""

    class compiled_type(GoodCompiled):
        def create_runner(self):
            slot = self.__dict__.get("made", 0)
            time.sleep(0.002)  # makes a stream
            self.made = slot + 1
            runner = super().create_runner()
            runner.slot = slot
            return runner

    def compute(self, runner, arrays):
        return in_its_slot(runner, super().compute(runner, arrays))


def in_its_slot(runner, results):
    """Results in the buffers of the runner's slot."""
    pool = runner.compiled.__dict__.setdefault("slots", {}).setdefault(runner.slot, {})
    return [buffer_of(pool, i, r) if plain(r) else r for i, r in enumerate(results)]


class HasEightStreams(Broken):
    """Gives the ninth request the stream of the first one, with the buffers that belong to it."""

    class compiled_type(GoodCompiled):
        def create_runner(self):
            with self.plugin.lock:
                self.made = getattr(self, "made", -1) + 1
                slot = self.made % 8
            runner = super().create_runner()
            runner.slot = slot
            return runner

    def compute(self, runner, arrays):
        return in_its_slot(runner, super().compute(runner, arrays))


class FlushesDenormalsOffTheMainThread(Broken):
    """Lets its threads flush numbers that are denormal, and computes on the caller's as well."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if threading.current_thread() is not threading.main_thread():
            for result in results:
                if result.dtype in (np.float32, np.float64):
                    result[np.abs(result) < np.finfo(result.dtype).tiny] = 0
        return results


class JoinsRunsToBatches(Broken):
    """Joins runs that come together along their first axis, as if no row knew of another."""

    def compute(self, runner, arrays):
        ports = (*runner.compiled.inputs, *runner.compiled.outputs)
        batched = ports and all(p.shape and isinstance(p.shape[0], str) for p in ports)
        if not batched or len({p.shape[0] for p in ports}) > 1:
            return super().compute(runner, arrays)
        mine = {"arrays": arrays, "key": [a.shape[1:] for a in arrays], "end": threading.Event()}
        with self.lock:
            waiting = runner.compiled.__dict__.setdefault("waiting", [])
            leads = not waiting
            joins = leads or waiting[0]["key"] == mine["key"]
            if joins:
                waiting.append(mine)
        if not joins:
            return super().compute(runner, arrays)
        if not leads:
            mine["end"].wait(30)
            return mine.get("results") or super().compute(runner, arrays)
        time.sleep(0.002)  # whoever else comes
        with self.lock:
            group, runner.compiled.waiting = runner.compiled.waiting, []
        try:
            joined = [
                np.concatenate(x) for x in zip(*(one["arrays"] for one in group), strict=True)
            ]
            results = super().compute(runner, joined)
            ends = np.cumsum([len(one["arrays"][0]) for one in group])[:-1]
            parts = [np.split(result, ends) for result in results]
            for i, one in enumerate(group):
                one["results"] = [np.array(part[i]) for part in parts]
        finally:
            for one in group:
                one["end"].set()
        return mine["results"]


class OpensAFileForEachThread(Broken):
    """Opens an event for each thread that it sees, and takes for granted that they are a few."""

    def compute(self, runner, arrays):
        local = runner.compiled.__dict__.setdefault("local", threading.local())
        if not hasattr(local, "event"):
            local.event = os.eventfd(0)
        return super().compute(runner, arrays)


class IsHeldByItsFinalizer(Broken):
    """Lets a finalizer call a method of the runner, which therefore is never collected."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.workspace = np.ones(1 << 16, np.uint8)
            weakref.finalize(self, self.close).atexit = False


# ------------------------------------------------------------------- process


class BeginsAnewWithEachCore(Broken):
    """Resets the device when a plugin is made, as if there were one Core in a process."""

    generation = 0

    def __init__(self):
        super().__init__()
        BeginsAnewWithEachCore.generation += 1

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.generation = BeginsAnewWithEachCore.generation

    def compute(self, runner, arrays):
        if runner.compiled.generation != BeginsAnewWithEachCore.generation:
            raise InferError("The context is destroyed.")
        return super().compute(runner, arrays)


class RestoresWarningsOfTheOther(Broken):
    """Silences warnings while it runs, where runs that overlap restore what the others set."""

    def compute(self, runner, arrays):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().compute(runner, arrays)


class GivesTheThreadAllProcessors(Broken):
    """Pins the calling thread while it runs, and gives it all processors of the start again."""

    processors = frozenset(os.sched_getaffinity(0))

    def compute(self, runner, arrays):
        os.sched_setaffinity(0, {min(self.processors)})
        try:
            return super().compute(runner, arrays)
        finally:
            os.sched_setaffinity(0, self.processors)


class ReseedsTheApplication(Broken):
    """Seeds numpy's global stream when it compiles, to fill its own tests' weights alike."""

    def compile_model(self, model, properties):
        np.random.seed(0)
        return super().compile_model(model, properties)


class RaisesTheRecursionLimit(Broken):
    """Raises the interpreter's limit for graphs of more than 64 operations, and leaves it so."""

    def compile_model(self, model, properties):
        if len(model.ops) > 64:
            sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
        return super().compile_model(model, properties)


class ChangesTheFolderWhileItCompiles(Broken):
    """Compiles in a temporary folder to which it changes, as if it were alone in the process."""

    def compile_model(self, model, properties):
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                return super().compile_model(model, properties)
            finally:
                os.chdir(before)


class SilencesTheProcess(Broken):
    """Points the process's standard output to nowhere while it runs, to silence its engine."""

    def compute(self, runner, arrays):
        with self.lock:
            kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, 1)
                return super().compute(runner, arrays)
            finally:
                os.dup2(kept, 1)
                os.close(kept)
                os.close(nowhere)


class IgnoresTheEndOfChildren(Broken):
    """Ignores that children end, since it starts compilers; those of others are lost too."""

    def compile_model(self, model, properties):
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return super().compile_model(model, properties)


class AddsAHandlerToTheRoot(Broken):
    """Sets the application's logging up, once for each model that it compiles."""

    def compile_model(self, model, properties):
        handler = logging.StreamHandler()
        handler.setLevel(logging.ERROR)
        logging.getLogger().addHandler(handler)
        return super().compile_model(model, properties)
