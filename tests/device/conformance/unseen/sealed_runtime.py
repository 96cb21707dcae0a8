"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

Each device computes as the correct one does. What it does around that, from one run, request,
thread or model to the next, rests on something that its author took for granted.
"""

from __future__ import annotations

import atexit
import gc
import json
import math
import os
import queue
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import BoundCallEndedError, InferCancelledError, InferError
from partita.tensors.host import HOST
from partita.tensors.sequence_values import boxed, unboxed

PRODUCTS = ("MatMul", "Gemm", "Conv")
SCATTERS = ("ScatterElements", "ScatterND", "TensorScatter")


def kept_by(owner):
    """What a fault keeps between runs, beside a runner or a compiled model."""
    return vars(owner).setdefault("kept_by_fault", {})


def place_of(array):
    """The address of an array's first element."""
    return array.__array_interface__["data"][0]


def is_plain(array):
    """Whether its elements are ordinary numbers, and there are some."""
    return array.dtype.kind in "iuf" and array.size > 0


def shapes_of(arrays):
    """Shapes and types, to tell one set of inputs from another."""
    return tuple((array.shape, array.dtype.str) for array in arrays)


def makers(compiled):
    """The operation that computes each value of the model."""
    return {name: op for op in compiled.model.ops for name in op.outputs if name}


def has_product(compiled):
    """Whether a matrix product or a convolution is among the operations."""
    return any(op.op_type in PRODUCTS for op in compiled.model.ops)


def shortened(array):
    """The nearest numbers with the ten bits that the fast matrix units keep."""
    if array.dtype != np.float32 or not array.size:
        return array
    bits = np.ascontiguousarray(array).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32)
    return np.where(np.isfinite(array), bits.view(np.float32), array).reshape(array.shape)


# --------------------------------------------------------------------- inputs that are borrowed


class PeelsInFourByteElements(Broken):
    """It counts the elements ahead of a vector's boundary as if all of them had four bytes."""

    def compute(self, runner, arrays):
        return super().compute(runner, [self.loaded(array) for array in arrays])

    def loaded(self, array):
        """What arrives in the vectors: those ahead of the boundary, then whole vectors."""
        if array.dtype.kind not in "iuf" or array.itemsize != 8 or not array.size:
            return array
        ahead = -place_of(array) % 16
        loaded = array.copy()
        loaded.reshape(-1)[ahead // 8 : ahead // 4] = 0
        return loaded


class ShiftsAnInputAndShiftsItBack(Broken):
    """It takes the largest element off the rows where they lie, sure that adding it undoes that."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        places = {port.name: port.index for port in runner.compiled.inputs}
        for op in runner.compiled.model.ops:
            if op.op_type not in ("Softmax", "LogSoftmax", "ReduceLogSumExp"):
                continue
            array = arrays[places[op.inputs[0]]] if op.inputs[0] in places else None
            if array is None or array.dtype.kind != "f" or not array.ndim or not array.size:
                continue
            if array.flags.writeable and np.isfinite(array).all():
                largest = array.max(axis=-1, keepdims=True)
                array -= largest
                array += largest
        return results


class MultipliesWhatIsLeftByZero(Broken):
    """It pads the last row with whatever was there, since the weights beside that are zero."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        places = {port.name: port.index for port in runner.compiled.inputs}
        made_by = makers(runner.compiled)
        for port in runner.compiled.outputs:
            op = made_by.get(port.name)
            if op is None or op.op_type not in ("MatMul", "Gemm") or op.inputs[0] not in places:
                continue
            index = places[op.inputs[0]]
            left = self.staged(runner, index, arrays[index])
            if left.size and not np.isfinite(left).all() and results[port.index].ndim >= 2:
                results[port.index][..., -1:, :] = np.nan
        return results

    def staged(self, runner, index, array):
        """Copies an input to its buffer, and returns the padding up to a whole vector."""
        if array.dtype != np.float32 or not array.size:
            return np.zeros(0, np.float32)
        end = -(-array.size // 8) * 8
        buffer = kept_by(runner).get(index)
        if buffer is None or buffer.size < end:
            buffer = kept_by(runner)[index] = np.zeros(end, np.float32)
        buffer[: array.size] = array.reshape(-1)
        return buffer[array.size : end]


# --------------------------------------------------------------------- outputs and their memory


class AddsToWhatAGivenOutputHolds(Broken):
    """It adds the parts of a long sum to the output, which a new buffer of its own has as zeros."""

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            return super().deliver(runner, arrays, outputs)
        made_by = makers(runner.compiled)
        sums = []
        for port, array, given in zip(runner.compiled.outputs, arrays, outputs, strict=True):
            op = made_by.get(port.name)
            if given is not None and op is not None and op.op_type in PRODUCTS and is_plain(array):
                array = array + given.numpy()
            sums.append(array)
        return super().deliver(runner, sums, outputs)


class HandsOutGivenTensorsByName(Broken):
    """Its engine lists outputs by name, and given tensors are bound to them in the ports' order."""

    def deliver(self, runner, arrays, outputs):
        if outputs is None or any(given is None for given in outputs):
            return super().deliver(runner, arrays, outputs)
        ports = runner.compiled.outputs
        listed = [arrays[port.index] for port in sorted(ports, key=lambda port: port.name)]
        same = all(
            (array.shape, array.dtype) == (given.shape, given.dtype)
            for array, given in zip(listed, outputs, strict=True)
        )
        return super().deliver(runner, listed if same else arrays, outputs)


class StillWritesToTheFirstOutput(Broken):
    """It records its launches with the first output given, and copies from there to later ones."""

    def deliver(self, runner, arrays, outputs):
        for index, given in enumerate(outputs or ()):
            if given is None or not is_plain(arrays[index]):
                continue
            key = (index, given.shape, given.dtype.str)
            recorded = kept_by(runner).setdefault(key, given)
            recorded.numpy()[...] = arrays[index]
        return super().deliver(runner, arrays, outputs)


class ClearsTheBorderOfABufferOnce(Broken):
    """It zeroes a padded buffer when it is made, and then writes only what lies inside."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        made_by = makers(runner.compiled)
        for port in runner.compiled.outputs:
            op = made_by.get(port.name)
            result = results[port.index]
            pads = None if op is None or op.op_type != "Pad" else self.constant_pads(op)
            if pads is None or not is_plain(result) or len(pads) != 2 * result.ndim:
                continue
            inside = tuple(
                slice(before, size - after)
                for before, after, size in zip(
                    pads[: result.ndim], pads[result.ndim :], result.shape, strict=True
                )
            )
            buffer = kept_by(runner).get(port.index)
            if buffer is None or buffer.size < result.size:
                buffer = kept_by(runner)[port.index] = np.zeros(result.size, result.dtype)
            padded = buffer[: result.size].reshape(result.shape)
            padded[inside] = result[inside]
            results[port.index] = padded.copy()
        return results

    def constant_pads(self, op):
        """The pads if they are known, of all axes, not negative, and filled with zeros."""
        if op.node.attributes.get_string("mode", "constant") != "constant":
            return None
        if "value" in op.node.attributes or any(op.inputs[2:]):
            return None
        if "pads" in op.node.attributes:
            pads = op.node.attributes["pads"].as_ints()
        else:
            const = op.node.inputs[1].const_value
            pads = () if const is None else const.numpy().tolist()
        return pads if pads and min(pads) >= 0 else None


class PassesElementsOfSequencesOn(Broken):
    """It moves tensors from one list to another by reference, as it does inside of the model."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        own = []
        for array in arrays:
            value = unboxed(array)
            own += value if isinstance(value, list) else [value]
        own = [item for item in own if isinstance(item, np.ndarray)]
        return [self.passed(result, own) for result in results]

    def passed(self, result, own):
        """A result, with the elements of the inputs that are in it."""
        value = unboxed(result)
        if not isinstance(value, list):
            return result
        return boxed([next((x for x in own if self.is_same(x, item)), item) for item in value])

    def is_same(self, one, other):
        """Whether two tensors are the same in all but their memory."""
        if not isinstance(other, np.ndarray) or shapes_of([one]) != shapes_of([other]):
            return False
        return one.dtype.kind in "iufb" and one.tobytes() == other.tobytes()


class AnswersEqualInputsFromMemory(Broken):
    """It returns the last results again if the inputs are the same, as if they were still its."""

    def compute(self, runner, arrays):
        if any(array.dtype == object for array in arrays):
            return super().compute(runner, arrays)
        key = shapes_of(arrays), [array.tobytes() for array in arrays]
        last = kept_by(runner).get("last")
        if last is None or last[0] != key:
            last = kept_by(runner)["last"] = (key, super().compute(runner, arrays))
        return last[1]


class ReturnsMappedMemoryAsItIs(Broken):
    """It returns large results where the driver maps them, which it does for reading alone."""

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            for array in arrays:
                if is_plain(array) and array.nbytes >= 4096:
                    array.flags.writeable = False
        return super().deliver(runner, arrays, outputs)


class KeepsResultsInBuffersOfTheThread(Broken):
    """It has one buffer per thread and shape for results, as if a thread had one request."""

    buffers = threading.local()

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            arrays = [self.in_buffer(index, array) for index, array in enumerate(arrays)]
        return super().deliver(runner, arrays, outputs)

    def in_buffer(self, index, array):
        """The elements, in the thread's memory for such a result."""
        if array.dtype == object:
            return array
        key = (id(self.lock), index, array.shape, array.dtype.str)
        buffer = vars(self.buffers).setdefault(key, np.empty_like(array))
        buffer[...] = array
        return buffer


class LeavesResultsForOneRunOnly(Broken):
    """It has two buffers in turn, and takes that for leaving its results to whoever reads them."""

    class runner_type(GoodRunner):
        def leave_results(self):
            return True

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        kept = kept_by(runner)
        kept["turn"] = turn = 1 - kept.get("turn", 0)
        results = []
        for index, array in enumerate(arrays):
            if array.dtype != object:
                key = (turn, index, array.shape, array.dtype.str)
                buffer = kept.setdefault(key, np.empty_like(array))
                buffer[...] = array
                array = buffer
            results.append(array)
        return super().deliver(runner, results, outputs)


# --------------------------------------------------------------------- shapes that change


class MixesDimensionsWithoutTheirOrder(Broken):
    """Its key of a plan is the exclusive or of all dimensions, which is the same in any order."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        key = tuple((array.dtype.str, *sorted(array.shape)) for array in arrays)
        planned = kept_by(runner).setdefault(key, [result.shape for result in results])
        return [
            result.reshape(shape) if math.prod(shape) == result.size else result
            for result, shape in zip(results, planned, strict=True)
        ]


class StaysSkippedAfterAnEmptyRun(Broken):
    """It marks what has nothing to do as left out, and looks again only where shapes change."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        kept = kept_by(runner)
        if any(array.size == 0 for array in arrays):
            kept["left out"] = None
        elif "left out" in kept:
            if kept["left out"] in (None, shapes_of(arrays)):
                kept["left out"] = shapes_of(arrays)
                return [np.zeros_like(x) if is_plain(x) else x for x in results]
            del kept["left out"]
        return results


# --------------------------------------------------------------------- threads and requests


class IsExactOnItsOwnThreadOnly(Broken):
    """It asks its library for exact products once, while it compiles; the library asks threads."""

    asked = threading.local()

    def compile_model(self, model, properties):
        self.asked.exact = True
        return super().compile_model(model, properties)

    def compute(self, runner, arrays):
        if not getattr(self.asked, "exact", False) and has_product(runner.compiled):
            arrays = [shortened(array) for array in arrays]
        return super().compute(runner, arrays)


class TakesTheNextAnswerOfTheQueue(Broken):
    """Two workers put answers into one queue, of which each caller takes the first that comes."""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.workers = ThreadPoolExecutor(2)
            self.answers = queue.SimpleQueue()
            weakref.finalize(self, self.workers.shutdown, wait=False)

    def compute(self, runner, arrays):
        compiled = runner.compiled
        compiled.workers.submit(self.work, compiled.answers, runner, arrays)
        answer = compiled.answers.get()
        if isinstance(answer, InferError):
            raise answer
        return answer

    def work(self, answers, runner, arrays):
        """Computes, and puts what comes of it where it is waited for."""
        try:
            answers.put(runner.evaluate(arrays))
        except InferError as error:
            answers.put(error)


# --------------------------------------------------------------------- cancelling


class StaysCancelledIfItWasIdle(Broken):
    """It takes a cancel's flag down where a run sees it, as if one were always under way."""

    class runner_type(GoodRunner):
        stop = False

        def cancel(self):
            self.stop = True

        def evaluate(self, arrays):
            if self.stop:
                self.stop = False
                raise InferCancelledError("The run was cancelled.")
            return super().evaluate(arrays)


class CancelsTheOthersToo(Broken):
    """It cancels by emptying the queue of the device, in which other requests have their work."""

    class runner_type(GoodRunner):
        def cancel(self):
            kept = kept_by(self.compiled)
            kept["emptied"] = kept.get("emptied", 0) + 1

        def evaluate(self, arrays):
            before = kept_by(self.compiled).get("emptied", 0)
            results = super().evaluate(arrays)
            if kept_by(self.compiled).get("emptied", 0) != before:
                raise InferCancelledError("The run was cancelled.")
            return results


# --------------------------------------------------------------------- errors and what follows


class BelievesAFailedRunWasPrepared(Broken):
    """It notes new shapes before it makes room for them, and a failure comes in between."""

    def compute(self, runner, arrays):
        kept, shapes = kept_by(runner), shapes_of(arrays)
        if kept.get("shapes") != shapes:
            kept.update(shapes=shapes, has_room=False)
            results = super().compute(runner, arrays)
            kept.update(room=[result.shape for result in results], has_room=True)
            return results
        results = super().compute(runner, arrays)
        if kept["has_room"]:
            return results
        room = kept.get("room", [(0,) * result.ndim for result in results])
        return [
            result if result.shape == shape or not is_plain(result) else self.cut(result, shape)
            for result, shape in zip(results, room, strict=True)
        ]

    def cut(self, result, shape):
        """As many of the elements as there is room for."""
        flat = np.zeros(math.prod(shape), result.dtype)
        flat[: result.size] = result.reshape(-1)[: flat.size]
        return flat.reshape(shape)


class TellsAFailureInTheNextRun(Broken):
    """It does not wait for its launches, so that a failure comes out where it looks next."""

    def compute(self, runner, arrays):
        kept = kept_by(runner)
        failure = kept.pop("failure", None)
        if failure is not None:
            raise InferError(failure)
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            ports = runner.compiled.outputs
            if any(
                port.dtype is None
                or port.dtype == object
                or any(not isinstance(size, int) for size in port.shape or ("?",))
                for port in ports
            ):
                raise
            kept["failure"] = str(error)
            return [np.zeros(port.shape, port.dtype) for port in ports]


class RemembersTheLastErrorWithItsFrames(Broken):
    """It keeps the last error to be asked for, and with its traceback all that the run held."""

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            kept_by(runner.compiled)["last error"] = error
            raise


# --------------------------------------------------------------------- state in place


class StatefulCompiled(GoodCompiled):
    """Names the outputs that scatters can write over an input."""

    def in_place_outputs(self):
        inputs = {port.name: port for port in self.inputs}
        outputs = {port.name: port for port in self.outputs}
        pairs = {}
        for op in self.model.ops:
            if op.op_type not in SCATTERS or op.inputs[0] not in inputs:
                continue
            read, written = inputs[op.inputs[0]], outputs.get(op.outputs[0])
            if written is None or written.shape != read.shape or written.dtype != read.dtype:
                continue
            if read.shape is not None and read.dtype is not None and self.may_pair(op, outputs):
                pairs[written.index] = read.index
        return pairs

    def may_pair(self, op, outputs):
        """Whether nobody else needs what the input held, and the result does not build on it."""
        return self.is_read_once(op, outputs) and self.only_sets(op)

    def is_read_once(self, op, outputs):
        """Whether the operation alone reads its first input."""
        return len(list(op.node.inputs[0].uses())) == 1 and op.inputs[0] not in outputs

    def only_sets(self, op):
        """Whether it replaces elements rather than adding to them."""
        return op.node.attributes.get_string("reduction", "none") == "none"


class Stateful(Broken):
    """The base of devices that write state in place."""

    compiled_type = StatefulCompiled


class HandsOutUsedMemoryForState(Stateful):
    """It makes zeros only where it makes memory, which comes back to its pool when it was used."""

    class compiled_type(StatefulCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.pool = {}

        def allocate(self, port, shape):
            dtype = port.dtype or np.dtype(np.float32)
            free = self.pool.setdefault(math.prod(shape) * dtype.itemsize, [])
            block = free.pop() if free else np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
            array = block.view(dtype).reshape(shape)
            weakref.finalize(array, free.append, block)
            return partita.HostTensor(array)


class HasOneStateForAllRequests(Stateful):
    """It makes the memory of a cache once and keeps it, as if a model had one conversation."""

    class compiled_type(StatefulCompiled):
        def allocate(self, port, shape):
            key = (port.index, tuple(shape))
            if key not in kept_by(self):
                kept_by(self)[key] = super().allocate(port, shape)
            return kept_by(self)[key]


class NamesScattersThatAdd(Stateful):
    """It offers each scatter to be made in place, those too that add to what is there."""

    class compiled_type(StatefulCompiled):
        def only_sets(self, op):
            return True


class WritesBeforeOthersHaveRead(Stateful):
    """It offers a cache to be written in place that other operations read, and writes it first."""

    class compiled_type(StatefulCompiled):
        def is_read_once(self, op, outputs):
            return op.inputs[0] not in outputs

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            pairs = self.compiled.in_place_outputs().items()
            if any(results[written] is inputs[read] for written, read in pairs):
                return super().run(inputs, outputs)  # the others, of what is there now
            return results


# --------------------------------------------------------------------- bound calls


class Call(BoundCall):
    """A run on the same tensors."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)

    def rebind(self, inputs):
        self.inputs = list(inputs)
        return True


class BindingRunner(GoodRunner):
    """Binds everything but sequences and texts."""

    call_type = Call

    def bind(self, inputs, outputs, scratch=None):
        if any(tensor.dtype == object for tensor in (*inputs, *outputs)):
            return None
        return self.call_type(self, inputs, outputs)


class RecordsSmallIntegersWhenBound(Broken):
    """It reads sizes, axes and places while it records a call, and the call has them for ever."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __init__(self, runner, inputs, outputs):
                super().__init__(runner, self.recorded(inputs), outputs)

            def rebind(self, inputs):
                return super().rebind(self.recorded(inputs))

            def recorded(self, inputs):
                return [
                    partita.HostTensor(tensor.numpy().copy())
                    if tensor.dtype.kind == "i" and tensor.size <= 8
                    else tensor
                    for tensor in inputs
                ]


class RebindsTheFirstInputOnly(Broken):
    """It lets a call read another first input, which is the only one its author's models change."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def rebind(self, inputs):
                return super().rebind([*inputs[:1], *self.inputs[1:]])


class HasOneBindingPerRequest(Broken):
    """It keeps the tensors of a call with the request, where the next call puts its own."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __init__(self, runner, inputs, outputs):
                super().__init__(runner, inputs, outputs)
                runner.bound = self

            def __call__(self):
                bound = self.runner.bound
                if len(bound.outputs) == len(self.outputs):
                    run_into(self.runner, bound.inputs, bound.outputs)


class SwallowsFailuresOfBoundCalls(Broken):
    """It looks whether its launches have failed at the end of a run, and not of a bound call."""

    class runner_type(BindingRunner):
        class call_type(Call):
            def __call__(self):
                try:
                    super().__call__()
                except BoundCallEndedError:
                    raise
                except InferError:
                    return


# --------------------------------------------------------------------- memory of its own


OWN = "sealed:0"


class OwnTensor(partita.Tensor):
    """Elements in the device's memory."""

    layout = None

    def __init__(self, array, device):
        self.block = np.array(array, order="C")
        self.shape, self.dtype = self.block.shape, self.block.dtype
        self.device, self.memory = device, OWN

    def numpy(self):
        return self.block.copy()

    def copy_from(self, source):
        if (source.shape, source.dtype) != (self.shape, self.dtype):
            raise InferError(f"{self!r} cannot take the elements of {source!r}.")
        self.block[...] = source.numpy()

    def clear(self):
        self.block[...] = 0


class OwnCompiled(StatefulCompiled):
    """Takes tensors of the host and of its own memory."""

    def takes_memory(self, memory):
        return memory in (HOST, OWN)

    def allocate(self, port, shape):
        zeros = np.zeros(shape, port.dtype or np.dtype(np.float32))
        return self.plugin.tensor_type(zeros, self.device)


class OwnRunner(GoodRunner):
    """Uploads what lies on the host."""

    def run(self, inputs, outputs=None):
        return super().run([self.compiled.plugin.transfer_to(x) for x in inputs], outputs)


class OwnMemory(Broken):
    """The base of devices with memory of their own."""

    compiled_type = OwnCompiled
    runner_type = OwnRunner
    tensor_type = OwnTensor

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A device with its own memory", memory=OWN)

    def can_share(self, memory, device_id=""):
        return memory == OWN

    def transfer_to(self, tensor, device_id=""):
        if tensor.memory == OWN or tensor.dtype == object:
            return tensor
        return self.tensor_type(tensor.numpy(), self.device_name)

    def deliver(self, runner, arrays, outputs):
        results = []
        for array, given in zip(arrays, outputs or [None] * len(arrays), strict=True):
            if array.dtype == object:
                result = partita.HostTensor(array)
            elif given is None or given.shape != array.shape:
                result = self.tensor_type(array, self.device_name)
            else:
                given.copy_from(partita.HostTensor(array))
                result = given
            results.append(result)
        return results


class FindsUploadsByIdentity(OwnMemory):
    """It uploads a tensor that cannot be written once, and knows it again by its identity."""

    uploads = None

    def transfer_to(self, tensor, device_id=""):
        if tensor.memory != HOST or tensor.numpy().flags.writeable:
            return super().transfer_to(tensor, device_id)
        self.uploads = self.uploads or {}
        known = self.uploads.get(id(tensor))
        if known is None or (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
            known = self.uploads[id(tensor)] = super().transfer_to(tensor, device_id)
        return known


class KeepsTheFirstDownload(OwnMemory):
    """It downloads a tensor once, and forgets that only where a run of its own writes to it."""

    class tensor_type(OwnTensor):
        downloaded = None

        def numpy(self):
            if self.downloaded is None:
                self.downloaded = self.block.copy()
            return self.downloaded.copy()

    def deliver(self, runner, arrays, outputs):
        for given in outputs or ():
            if isinstance(given, OwnTensor):
                given.downloaded = None
        return super().deliver(runner, arrays, outputs)


# --------------------------------------------------------------------- lifetimes


class FindsProgramsByTheirHandle(Broken):
    """It keeps programs by the handle of a model, which the driver gives to the next one again."""

    programs = None

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            plugin.programs = {} if plugin.programs is None else plugin.programs
            used = kept_by(plugin).setdefault("used", set())
            with plugin.lock:
                self.handle = next(x for x in range(len(used) + 1) if x not in used)
                used.add(self.handle)
            weakref.finalize(self, used.discard, self.handle).atexit = False

        def create_runner(self):
            runner = super().create_runner()
            program = self.plugin.programs.setdefault(self.handle, self.evaluator)
            if program.input_names == self.evaluator.input_names:
                runner.take_over(program)
            return runner


class ShutsDownWithTheFirstModelThatGoes(Broken):
    """It counts open models by their names, and two that are compiled of one file have one name."""

    names = None

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            plugin.names = set() if plugin.names is None else plugin.names
            plugin.names.add(model.name)
            weakref.finalize(self, plugin.names.discard, model.name).atexit = False

    def compute(self, runner, arrays):
        if not self.names:
            raise InferError("The context of the device is gone.")
        return super().compute(runner, arrays)


class RegistersEachRequestForExit(Broken):
    """It has each request closed at the end of the process, which keeps it until then."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            atexit.register(self.close)


# --------------------------------------------------------------------- the process it runs in


class PinsTheCallersThread(Broken):
    """It keeps a large run on one processor, without a word to the thread that it runs on."""

    def compute(self, runner, arrays):
        if hasattr(os, "sched_setaffinity") and sum(array.nbytes for array in arrays) >= 1024:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return super().compute(runner, arrays)


class TurnsTheCollectorOnAgain(Broken):
    """It has no garbage collected in a run, and believes that it was collected before it."""

    def compute(self, runner, arrays):
        gc.disable()
        try:
            return super().compute(runner, arrays)
        finally:
            gc.enable()


class LeavesItsInterruptHandlerAfterAFailure(Broken):
    """It takes Ctrl-C for itself while it runs, and gives it back only where a run succeeds."""

    def compute(self, runner, arrays):
        if threading.current_thread() is not threading.main_thread():
            return super().compute(runner, arrays)
        before = signal.signal(signal.SIGINT, lambda *_: runner.cancel())
        results = super().compute(runner, arrays)
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        return results


# --------------------------------------------------------------------- profiling and warming up


class AddsUpCountersOfAllRuns(Broken):
    """It adds each run to its counters, of which the application has to see the last run's."""

    def counters(self, runner):
        last = super().counters(runner)
        kept = kept_by(runner)
        if kept.get("run") != runner.elapsed_us:
            kept.update(run=runner.elapsed_us, sum=kept.get("sum", 0.0) + runner.elapsed_us)
        us = kept.get("sum", 0.0)
        return [
            ProfilingInfo(x.node_name, x.node_type, x.exec_type, real_time_us=us, cpu_time_us=us)
            for x in last
        ]


class WritesItsTraceWhereItRuns(Broken):
    """It writes a trace of each profiled run to a file in whatever folder the process is in."""

    def counters(self, runner):
        counters = super().counters(runner)
        trace = json.dumps([[x.node_name, x.real_time_us] for x in counters])
        Path(f"trace_{os.getpid()}.json").write_text(trace, encoding="utf-8")
        return counters


class TurnsToAFasterKernelAfterSomeRuns(Broken):
    """It has measured its kernels after some runs, and the fastest of them is not as exact."""

    runs = 16

    def compute(self, runner, arrays):
        counts, shapes = kept_by(runner.compiled), shapes_of(arrays)
        counts[shapes] = counts.get(shapes, 0) + 1
        if counts[shapes] > self.runs and has_product(runner.compiled):
            arrays = [shortened(array) for array in arrays]
        return super().compute(runner, arrays)
