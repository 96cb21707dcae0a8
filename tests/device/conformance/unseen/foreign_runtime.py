"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

The kernels are right: what goes wrong is what lies around them, as requests, memory and threads.
Many are faults that runtimes of real engines have had.
"""

from __future__ import annotations

import functools
import gc
import math
import threading
import time
import weakref

import numpy as np
from good_device import Good, GoodCompiled, GoodRunner, zeros

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.profiling import ProfilingInfo
from partita.errors import BoundCallEndedError, InferCancelledError, InferError

# Frames, which have no fault.


class FramedRunner(GoodRunner):
    """Leaves to the device what a runner does, and keeps what the device wants kept."""

    def __init__(self, compiled):
        super().__init__(compiled)
        self.memory = {}
        compiled.plugin.begin(self)

    def run(self, inputs, outputs=None):
        return self.compiled.plugin.execute(self, inputs, outputs)

    def run_as_usual(self, inputs, outputs):
        """What a good runner does."""
        return super().run(inputs, outputs)

    def bind(self, inputs, outputs, scratch=None):
        return self.compiled.plugin.bind(self, inputs, outputs, scratch)

    def leave_results(self):
        return self.compiled.plugin.leave(self)

    def cancel(self):
        self.compiled.plugin.cancel(self)

    def close(self):
        self.compiled.plugin.end(self)


class FramedCompiled(GoodCompiled):
    """Keeps what the device wants kept for all requests."""

    def __init__(self, plugin, model, properties):
        self.memory = {}
        super().__init__(plugin, model, properties)

    def nodes(self):
        """The operations of the graph, as nodes of ONNX."""
        return [node.onnx_node for node in self.evaluator.rt_nodes_]


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"
    compiled_type = FramedCompiled
    runner_type = FramedRunner

    def begin(self, runner):
        """A request has come."""

    def execute(self, runner, inputs, outputs):
        """A run."""
        return runner.run_as_usual(inputs, outputs)

    def bind(self, runner, inputs, outputs, scratch):
        """A bound call, or none."""

    def leave(self, runner):
        """Whether the last results are left alone from now on."""
        return False

    def cancel(self, runner):
        """Somebody wants a run to stop."""

    def end(self, runner):
        """A request has gone."""


class Planned(Broken):
    """Plans shapes of outputs once for all runs that are alike."""

    deciding = (
        *("Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "Unique"),
        *("Range", "StringSplit", "SplitToSequence", "SequenceAt", "ConcatFromSequence"),
        "StringNormalizer",
    )
    """Operators whose outputs have shapes that elements decide."""

    sized = (
        *("AffineGrid", "CenterCropPad", "Col2Im", "DFT", "Expand", "MaxUnpool", "OneHot", "Pad"),
        *("Reshape", "Resize", "STFT", "Slice", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Upsample"),
    )
    """Operators of which an input behind the first one is a size, or an axis."""

    sized_at_once = (
        *("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix"),
    )
    """Operators of which the first input is a size."""

    def follow(self, runner):
        """Whether shapes follow from those of the inputs."""
        nodes = runner.compiled.nodes()
        known = set(runner.compiled.evaluator.rt_inits_) | {""}
        known.update(node.output[0] for node in nodes if node.op_type == "Constant")
        return not any(
            node.op_type in self.deciding
            or node.domain
            or (node.op_type in self.sized_at_once and not known >= set(node.input))
            or (node.op_type in self.sized and not known >= set(node.input[1:]))
            for node in nodes
        )

    def key(self, runner, arrays):
        """What is alike in runs that have one plan."""
        if self.follow(runner):
            return tuple(array.shape for array in arrays)
        return tuple((array.shape, array.dtype.str, elements(array)) for array in arrays)

    def shapes(self, runner, arrays, results):
        """The shapes that were planned for such a run."""
        planned = [result.shape for result in results]
        return kept(runner.compiled.memory, self.key(runner, arrays), planned)

    def compute(self, runner, arrays):
        results = runner.evaluate(arrays)
        with self.lock:
            shapes = self.shapes(runner, arrays, results)
        return [fitted(result, shape) for result, shape in zip(results, shapes, strict=True)]


class Cancellable(Broken):
    """Ends a run early that is to stop."""

    def cancel(self, runner):
        runner.memory["cancelled"] = True

    def compute(self, runner, arrays):
        runner.memory["cancelled"] = False
        results = runner.evaluate(arrays)
        if runner.memory["cancelled"]:
            raise InferCancelledError("The run was stopped.")
        return results


class Call(BoundCall):
    """Computes from what is in the inputs now, and writes to the outputs."""

    def __init__(self, runner, inputs, outputs, scratch):
        self.runner = runner
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.scratch = scratch

    def arrays(self):
        """What is read."""
        return [tensor.numpy() for tensor in self.inputs]

    def write(self, results):
        """Writes the outputs."""
        pairs = list(zip(results, self.outputs, strict=True))
        if any(result.shape != output.shape for result, output in pairs):
            raise BoundCallEndedError("An output has another shape now.")
        for result, output in pairs:
            output.numpy()[...] = result

    def __call__(self):
        self.write(self.runner.compiled.plugin.compute(self.runner, self.arrays()))

    def rebind(self, inputs):
        self.inputs = list(inputs)
        return True


class Bound(Broken):
    """Has bound calls."""

    call_type = Call

    def bind(self, runner, inputs, outputs, scratch):
        return self.call_type(runner, inputs, outputs, scratch)


class PatchedCompiled(FramedCompiled):
    """Lets the device stand between the evaluator and its kernels."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        for node in self.evaluator.rt_nodes_:
            if (node.onnx_node.domain, node.op_type) in plugin.patched:
                node.run = functools.partial(plugin.run_kernel, self, node, node.run)


class Patched(Broken):
    """Runs some operators in a way of its own."""

    compiled_type = PatchedCompiled
    patched = ()

    def run_kernel(self, compiled, node, run, *inputs, **named):
        """One operation."""
        return run(*inputs, **named)


class InPlaceCompiled(FramedCompiled):
    """Writes over the caches that rows are scattered into."""

    def in_place_outputs(self):
        nodes = self.nodes()
        if any(one.HasField("g") for node in nodes for one in node.attribute):
            return {}  # whose bodies may read it
        read = [name for node in nodes for name in node.input]
        inputs = {port.name: port.index for port in self.inputs}
        outputs = {port.name: port.index for port in self.outputs}
        return {
            outputs[node.output[0]]: inputs[node.input[0]]
            for node in nodes
            if node.op_type in ("ScatterND", "TensorScatter")
            and not any(one.name == "reduction" for one in node.attribute)
            and node.output[0] in outputs
            and node.input[0] in inputs
            and node.input[0] not in outputs
            and read.count(node.input[0]) == 1
        }

    def allocate(self, port, shape):
        return self.plugin.allocate(self, port, shape)


class InPlace(Broken):
    """Updates caches where they lie."""

    compiled_type = InPlaceCompiled

    def allocate(self, compiled, port, shape):
        """A tensor for a cache."""
        return partita.HostTensor(np.zeros(shape, port.dtype))

    def deliver(self, runner, arrays, outputs):
        result = super().deliver(runner, arrays, None)
        for place, given in enumerate(outputs or ()):
            if given is not None:
                held = given.numpy()
                new = bits(held) != bits(arrays[place])
                held[new] = arrays[place][new]
                result[place] = given
        return result


def elements(array):
    """What tells the elements of an array from others."""
    return repr(array.tolist()) if array.dtype == object else array.tobytes()


def kept(memory, key, value, most=64):
    """What is kept by a key, of which there are not too many."""
    if key not in memory and len(memory) >= most:
        memory.clear()
    return memory.setdefault(key, value)


def bits(array):
    """Numbers that are equal only where elements are so to the bit."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(array.dtype.itemsize)
    return array if array.dtype == object or kind is None else array.view(kind)


def fitted(array, shape):
    """As many of an array's elements as there is room for, in a buffer of a shape."""
    if array.shape == tuple(shape):
        return array
    room = np.full(shape, "" if array.dtype == object else 0, array.dtype)
    count = min(room.size, array.size)
    room.reshape(-1)[:count] = array.reshape(-1)[:count]
    return room


def attribute(node, name, default):
    """An integer attribute of a node of ONNX."""
    return next((one.i for one in node.attribute if one.name == name), default)


def address(array):
    """Where an array begins."""
    return array.__array_interface__["data"][0]


# Programs and plans that are kept.


class PlansByFirstInput(Planned):
    """The author took the first input's shape for that which all other shapes follow from."""

    def key(self, runner, arrays):
        if arrays and self.follow(runner):
            return arrays[0].shape
        return super().key(runner, arrays)


class PlansWithoutLimits(Planned):
    """The author knew that elements of Reshape's and Expand's inputs are part of a program's key,
    and forgot other operators that take a length, as Slice, Range, TopK, Pad, Tile and Resize."""

    known = ("Reshape", "Expand", "ConstantOfShape")

    def key(self, runner, arrays):
        nodes = runner.compiled.nodes()
        if any(node.op_type in self.deciding and node.op_type != "Range" for node in nodes):
            return super().key(runner, arrays)
        read = {name for node in nodes if node.op_type in self.known for name in node.input}
        ports = runner.compiled.inputs
        return tuple(
            (array.shape, elements(array) if port.name in read and array.size < 16 else b"")
            for port, array in zip(ports, arrays, strict=True)
        )


class EvictsPlansAndKeepsTheirKeys(Planned):
    """The author let a fifth plan take the slot of the oldest one, and took it for granted that
    nobody finds the slot by the oldest one's key any more."""

    def shapes(self, runner, arrays, results):
        memory = runner.compiled.memory
        numbers, slots = memory.setdefault("plans", ({}, {}))
        key = self.key(runner, arrays)
        if key not in numbers:
            if len(numbers) > 64:
                numbers.clear()
            numbers[key] = memory["next"] = (memory.get("next", -1) + 1) % 4
            slots[numbers[key]] = [result.shape for result in results]
        return slots[numbers[key]]


class PadsBatchesToFour(Broken):
    """The author compiled programs for batches of 4, 8, 12, ... and took rows of a batch for
    independent of each other, so that rows of zeros behind them do no harm."""

    def compute(self, runner, arrays):
        ports = runner.compiled.inputs
        symbol = ports[0].shape[0] if ports and ports[0].shape else None
        if not isinstance(symbol, str) or arrays[0].shape[0] % 4 == 0:
            return runner.evaluate(arrays)
        count = arrays[0].shape[0]
        more = -count % 4
        padded = [
            np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])
            if port.shape and port.shape[0] == symbol and array.dtype != object
            else array
            for port, array in zip(ports, arrays, strict=True)
        ]
        try:
            results = runner.evaluate(padded)
        except InferError:
            return runner.evaluate(arrays)
        return [
            np.ascontiguousarray(result[:count])
            if self.is_batch(port, symbol, result, count + more)
            else result
            for port, result in zip(runner.compiled.outputs, results, strict=True)
        ]

    def is_batch(self, port, symbol, result, count):
        """Whether an output has a row for each of the batch."""
        if result.ndim == 0 or result.shape[0] != count:
            return False
        return not port.shape or port.shape[0] == symbol or not isinstance(port.shape[0], int)


class TracesBranches(Patched):
    """The author saw If only where it asks for sizes, and recorded once per shapes of inputs which
    branch is taken."""

    patched = (("", "If"),)

    def __init__(self):
        super().__init__()
        self.local = threading.local()

    def compute(self, runner, arrays):
        self.local.shapes = tuple(array.shape for array in arrays)
        return runner.evaluate(arrays)

    def run_kernel(self, compiled, node, run, *inputs, **named):
        key = (id(node), self.local.shapes)
        taken = kept(compiled.memory, key, np.array(inputs[0]))
        return run(taken, *inputs[1:], **named)


class KeepsWidthOfFirstTexts(Broken):
    """The author sized the slots of texts by the first run's longest one, rounded up, and took
    later ones to be no longer."""

    def compute(self, runner, arrays):
        results = runner.evaluate(arrays)
        for place, result in enumerate(results):
            if result.dtype != object or not all(isinstance(text, str) for text in result.flat):
                continue
            longest = max((len(text) for text in result.flat), default=0)
            width = runner.compiled.memory.setdefault(place, max(16, math.ceil(longest / 16) * 16))
            results[place] = np.empty(result.shape, object)
            results[place].reshape(-1)[:] = [text[:width] for text in result.flat]
        return results


# What the host sends up.


class SkipsLaunchForEmptyInputs(Broken):
    """The author took a run of which an input has no elements to have nothing to compute, and
    returns the outputs as they were allocated."""

    def compute(self, runner, arrays):
        results = runner.evaluate(arrays)
        if any(array.size == 0 for array in arrays):
            return [zeros(result) if result.dtype != object else result for result in results]
        return results


class UploadsReadOnlyInputsOnce(Broken):
    """The author took an array that may not be written to for one that does not change, and
    uploads it once for each place in memory."""

    def compute(self, runner, arrays):
        return runner.evaluate([self.uploaded(runner, array) for array in arrays])

    def uploaded(self, runner, array):
        """What is on the device of an input."""
        if array.flags.writeable or array.dtype == object:
            return array
        key = (address(array), array.shape, array.dtype.str)
        return kept(runner.memory, key, array.copy(), 16)


class SkipsRunsOfCloseInputs(Broken):
    """The author returns the last results if nothing has changed, and asked numpy's allclose for
    that, to which large token ids and tiny numbers are all the same."""

    def compute(self, runner, arrays):
        last, results = runner.memory.get("last", (None, None))
        if last is None or not all(map(self.is_same, last, arrays)):
            results = runner.evaluate(arrays)
            runner.memory["last"] = ([array.copy() for array in arrays], results)
        return [result.copy() for result in results]

    def is_same(self, held, array):
        """Whether an input is what it was."""
        if held.shape != array.shape or array.dtype.kind not in "fiu":
            return False
        return np.allclose(held, array)


class CopiesWholeVectorsOfUnaligned(Broken):
    """The author copies inputs that begin beside a multiple of 16 bytes by whole vectors, and took
    sizes to be multiples of a vector too."""

    def compute(self, runner, arrays):
        return runner.evaluate([self.aligned(array) for array in arrays])

    def aligned(self, array):
        """A copy at a multiple of 16 bytes."""
        if array.dtype == object or address(array) % 16 == 0:
            return array
        data = np.zeros(array.nbytes, np.uint8)
        whole = array.nbytes // 16 * 16
        data[:whole] = array.reshape(-1).view(np.uint8)[:whole]
        return data.view(array.dtype).reshape(array.shape)


class TakesStrideForSize(Broken):
    """The author took rows times the first stride for an input's bytes, though a contiguous array
    of one row may have any stride there."""

    def compute(self, runner, arrays):
        return runner.evaluate([self.uploaded(array) for array in arrays])

    def uploaded(self, array):
        """What is on the device of an input."""
        if array.dtype == object or array.ndim == 0 or array.size == 0:
            return array
        nbytes = array.shape[0] * array.strides[0]
        if nbytes > array.nbytes:
            raise InferError(f"An input of {nbytes} bytes does not fit into {array.nbytes}.")
        data = np.zeros(array.nbytes, np.uint8)
        data[:nbytes] = np.frombuffer(array.tobytes(), np.uint8)[:nbytes]
        return data.view(array.dtype).reshape(array.shape)


class UploadsAddressesOnce(Broken):
    """The author uploads an array once that is given for several inputs, and took arrays that begin
    at one address for the same one, though one of them may be the other's beginning."""

    def compute(self, runner, arrays):
        uploaded = {}
        return runner.evaluate([self.uploaded(uploaded, array) for array in arrays])

    def uploaded(self, uploaded, array):
        """What is on the device of an input."""
        if array.dtype == object or array.size == 0:
            return array
        held = uploaded.setdefault(address(array), np.frombuffer(array.tobytes(), np.uint8))
        data = np.zeros(array.nbytes, np.uint8)
        count = min(array.nbytes, held.nbytes)
        data[:count] = held[:count]
        return data.view(array.dtype).reshape(array.shape)


class WrapsIndicesWhereTheyLie(Broken):
    """The author makes negative indices positive before the kernel of Gather sees them, and took an
    input that can be written to for the device's own."""

    def compute(self, runner, arrays):
        shapes = {
            port.name: array.shape
            for port, array in zip(runner.compiled.inputs, arrays, strict=True)
        }
        weights = runner.compiled.evaluator.rt_inits_
        places = {port.name: port.index for port in runner.compiled.inputs}
        results = runner.evaluate(arrays)
        for node in runner.compiled.nodes():
            if node.op_type not in ("Gather", "GatherElements") or node.input[1] not in places:
                continue
            data, indices = node.input[0], arrays[places[node.input[1]]]
            shape = shapes.get(data) or getattr(weights.get(data), "shape", None)
            if shape and indices.flags.writeable:
                indices[indices < 0] += shape[attribute(node, "axis", 0)]
        return results


class AppendsToGivenSequences(Patched):
    """The author appends to a sequence where it lies, and took SequenceInsert to be its last
    reader."""

    patched = (("", "SequenceInsert"),)

    def run_kernel(self, compiled, node, run, *inputs, **named):
        if len(inputs) > 2 and inputs[2] is not None:
            return run(*inputs, **named)
        inputs[0].append(inputs[1])
        return (inputs[0],)


class LateTensor(partita.HostTensor):
    """A tensor that is computed when somebody reads it."""

    __slots__ = ("work",)

    def numpy(self):
        work, self.work = self.work, None
        if work is not None:
            self._array[...] = work()
        return self._array


class ComputesWhenRead(Broken):
    """The author queues a run and waits for it only when an output is read, and took the inputs to
    lie there unchanged until then."""

    def execute(self, runner, inputs, outputs):
        results = runner.evaluate([tensor.numpy() for tensor in inputs])  # for their shapes
        if outputs is not None or any(result.dtype == object for result in results):
            return self.deliver(runner, results, outputs)
        late = [LateTensor(result) for result in results]
        for place, tensor in enumerate(late):
            tensor.work = functools.partial(self.result, runner, inputs, place)
        return late

    def result(self, runner, inputs, place):
        """One output."""
        return runner.evaluate([tensor.numpy() for tensor in inputs])[place]


# What comes down.


class WritesOutputsOneByOne(Broken):
    """The author kept a buffer per output and wrote them in turn, and took no input to lie in the
    buffer that the last run has returned."""

    def execute(self, runner, inputs, outputs):
        arrays = [tensor.numpy() for tensor in inputs]
        results = runner.evaluate(arrays)
        if outputs is not None or any(result.dtype == object for result in results):
            return self.deliver(runner, results, outputs)
        buffers = runner.memory.get("buffers")
        if buffers is None or [(one.shape, one.dtype) for one in buffers] != [
            (one.shape, one.dtype) for one in results
        ]:
            runner.memory["buffers"] = results
            return self.deliver(runner, results, None)
        again = any(np.shares_memory(own, array) for own in buffers for array in arrays)
        for place, own in enumerate(buffers):
            own[...] = runner.evaluate(arrays)[place] if again else results[place]
        return self.deliver(runner, buffers, None)


# Requests, their threads and what they share.


class NumbersRequestsByCount(Broken):
    """The author gives a request the buffers of the number of requests there are, and took requests
    to go in the order in which they came."""

    def begin(self, runner):
        with self.lock:
            living = runner.compiled.memory.setdefault("living", weakref.WeakSet())
            runner.memory["slot"] = len(living)
            living.add(runner)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        own = []
        for place, array in enumerate(arrays):
            key = (runner.memory["slot"], place)
            buffer = runner.compiled.memory.get(key)
            if buffer is None or buffer.shape != array.shape:
                buffer = runner.compiled.memory[key] = array
            buffer[...] = array
            own.append(buffer)
        return super().deliver(runner, own, None)


class PoolsLeftResultsOnClose(Broken):
    """The author puts a request's buffers back to the pool when it is closed, and forgot that some
    were given up to whoever uses them."""

    def leave(self, runner):
        runner.memory["last"] = {}
        return True

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        own = []
        last = runner.memory.setdefault("last", {})
        taken = runner.memory.setdefault("taken", [])
        if len(last) > 16:
            last.clear()
            taken.clear()
        for place, array in enumerate(arrays):
            key = (array.shape, array.dtype.str)
            buffer = last.get((place, key))
            if buffer is None:
                with self.lock:
                    free = runner.compiled.memory.setdefault(key, [])
                    buffer = free.pop() if free else np.empty_like(array)
                last[place, key] = buffer
                taken.append((key, buffer))
                del taken[:-16]
            buffer[...] = array
            own.append(buffer)
        return super().deliver(runner, own, None)

    def end(self, runner):
        with self.lock:
            for key, buffer in runner.memory.pop("taken", []):
                free = runner.compiled.memory[key]
                free[:] = [*free[-7:], buffer]


class KeepsOutputsPerThread(Broken):
    """The author gave each thread buffers for outputs, and took a thread to run one request."""

    def __init__(self):
        super().__init__()
        self.local = threading.local()

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        buffers = vars(self.local).setdefault("buffers", weakref.WeakKeyDictionary())
        places = buffers.setdefault(runner.compiled, {})
        own = []
        for place, array in enumerate(arrays):
            buffer = kept(places, (place, array.shape), array)
            buffer[...] = array
            own.append(buffer)
        return super().deliver(runner, own, None)


class UnpacksUponFirstRun(Broken):
    """The author unpacks weights when the first run comes, and took a second one not to come before
    that has ended."""

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        weights = made.evaluator.rt_inits_
        made.memory["packed"] = {
            name: array for name, array in weights.items() if array.dtype.kind == "f"
        }
        weights.update({name: np.zeros_like(one) for name, one in made.memory["packed"].items()})
        return made

    def compute(self, runner, arrays):
        packed = runner.compiled.memory.pop("packed", None)
        if packed:
            time.sleep(0.05)  # as long as unpacking takes
            runner.compiled.evaluator.rt_inits_.update(packed)
        return runner.evaluate(arrays)


class TurnsCollectorBackOn(Broken):
    """The author keeps the garbage collector from running beside kernels, and took it to have been
    on before."""

    def compute(self, runner, arrays):
        gc.disable()
        try:
            return runner.evaluate(arrays)
        finally:
            gc.enable()


# Failures and cancellation.


class TellsOthersOfFailure(Broken):
    """The author kept the driver's last error in the compiled model until somebody reads it, and
    took the request that failed to be the next one that does."""

    def compute(self, runner, arrays):
        held = runner.compiled.memory.pop("error", None)
        if held is not None and held[0] != id(runner):
            raise InferError(f"The device reports: {held[1]}")
        try:
            return runner.evaluate(arrays)
        except InferError as error:
            runner.compiled.memory["error"] = (id(runner), str(error))
            raise


class MarksInputsBeforeFailure(Broken):
    """The author uploads only inputs that have changed, marked them as uploaded ahead of the checks
    of a run, and took a run that fails there for one that has uploaded them."""

    def compute(self, runner, arrays):
        seen, held = runner.memory.setdefault("inputs", ({}, {}))
        changed = []
        for place, array in enumerate(arrays):
            now = array.tobytes() if array.dtype != object else None
            if now is None or seen.get(place) != (array.shape, now):
                seen[place] = (array.shape, now)
                changed.append(place)
        results = runner.evaluate(arrays)  # fails where the checks do
        held.update({place: arrays[place].copy() for place in changed})
        stale = [
            place
            for place, array in enumerate(arrays)
            if array.dtype != object and held[place].tobytes() != array.tobytes()
        ]
        return runner.evaluate([held[place] for place in range(len(arrays))]) if stale else results


class RemembersLateCancel(Cancellable):
    """The author asks whether to stop before kernels are started, and took a cancellation that
    comes later to be gone with the run that it was meant for."""

    def compute(self, runner, arrays):
        if runner.memory.pop("cancelled", False):
            raise InferCancelledError("The run was stopped.")
        return runner.evaluate(arrays)


class CancelsAllRuns(Cancellable):
    """The author aborts the queue to which a run was given, and took it to hold the runs of one
    request."""

    def cancel(self, runner):
        with self.lock:
            memory = runner.compiled.memory
            memory["aborts"] = memory.get("aborts", 0) + 1

    def compute(self, runner, arrays):
        before = runner.compiled.memory.get("aborts", 0)
        results = runner.evaluate(arrays)
        if runner.compiled.memory.get("aborts", 0) != before:
            raise InferCancelledError("The run was stopped.")
        return results


class ResumesCancelledRun(Cancellable):
    """The author keeps what a cancelled run has computed so far, and took the next run of these
    shapes for another try."""

    def compute(self, runner, arrays):
        shapes = [array.shape for array in arrays]
        begun, results = runner.memory.pop("begun", (None, None))
        if begun == shapes:
            return results
        runner.memory["cancelled"] = False
        results = runner.evaluate(arrays)
        if runner.memory["cancelled"]:
            runner.memory["begun"] = (shapes, results)
            raise InferCancelledError("The run was stopped.")
        return results


# Bound calls.


class ScalarsCall(Call):
    """Hands scalars to kernels as arguments."""

    def __init__(self, runner, inputs, outputs, scratch):
        super().__init__(runner, inputs, outputs, scratch)
        self.take_scalars()

    def take_scalars(self):
        """Reads what has no dimensions."""
        self.scalars = [
            tensor.numpy().copy() if tensor.shape == () else None for tensor in self.inputs
        ]

    def arrays(self):
        return [
            tensor.numpy() if scalar is None else scalar
            for tensor, scalar in zip(self.inputs, self.scalars, strict=True)
        ]

    def rebind(self, inputs):
        self.inputs = list(inputs)
        self.take_scalars()
        return True


class CapturesScalars(Bound):
    """The author recorded calls with scalars as the kernels' arguments, and took these to be read
    anew whenever a recorded call is made."""

    call_type = ScalarsCall


class FirstRebindCall(Call):
    """Looks whether there is something to rebind."""

    def rebind(self, inputs):
        if inputs and inputs[0].numpy() is not self.inputs[0].numpy():
            self.inputs = list(inputs)
        return True


class RebindsIfFirstDiffers(Bound):
    """The author saves the rebinding of what is bound already, and took the first input to tell
    whether that is so."""

    call_type = FirstRebindCall


class FittingCall(Call):
    """Writes as many elements as there is room for."""

    def write(self, results):
        super().write(
            [fitted(one, output.shape) for one, output in zip(results, self.outputs, strict=True)]
        )


class WritesWhatFitsIfBound(Bound):
    """The author took outputs of a bound call to have the shapes that they were bound with, though
    elements of an input may decide another one."""

    call_type = FittingCall


class ScratchCall(Call):
    """Keeps small inputs behind each other in the block that is lent, and watches for changes."""

    def __init__(self, runner, inputs, outputs, scratch):
        super().__init__(runner, inputs, outputs, scratch)
        self.seen = {}

    def arrays(self):
        arrays = super().arrays()
        if self.scratch is None:
            return arrays
        begin = 0
        for place, array in enumerate(arrays):
            end = begin + array.nbytes
            if array.dtype == object or array.nbytes > 64 or end > ScratchCompiled.scratch_bytes:
                continue
            room = self.scratch.reshape(-1).view(np.uint8)[begin:end]
            if self.seen.get(place) != array.tobytes():
                self.seen[place] = array.tobytes()
                room[:] = np.frombuffer(self.seen[place], np.uint8)
            arrays[place] = np.frombuffer(room.tobytes(), array.dtype).reshape(array.shape)
            begin = end
        return arrays


class ScratchCompiled(FramedCompiled):
    """Borrows a block."""

    scratch_bytes = 256


class KeepsInputsInScratch(Bound):
    """The author uploads small inputs to the lent block when they change, and took the block to
    hold between calls what was written to it."""

    compiled_type = ScratchCompiled
    call_type = ScratchCall


class RunsIntoBoundOutputs(Bound):
    """The author took outputs that were bound to be those of later runs too, which were given none
    to write to."""

    def bind(self, runner, inputs, outputs, scratch):
        runner.memory["outputs"] = list(outputs)
        return super().bind(runner, inputs, outputs, scratch)

    def deliver(self, runner, arrays, outputs):
        bound = runner.memory.get("outputs")
        if outputs is None and bound is not None:
            pairs = zip(arrays, bound, strict=True)
            if all(array.shape == tensor.shape for array, tensor in pairs):
                outputs = bound
        return super().deliver(runner, arrays, outputs)


class LatestCall(Call):
    """Runs on what the runner has bound."""

    def __call__(self):
        latest = self.runner.memory["call"]
        self.inputs, self.outputs = latest.inputs, latest.outputs
        super().__call__()


class BindsOncePerRunner(Bound):
    """The author kept bound tensors in the runner, and took the call made for earlier ones to be
    dropped when others are bound."""

    call_type = LatestCall

    def bind(self, runner, inputs, outputs, scratch):
        runner.memory["call"] = super().bind(runner, inputs, outputs, scratch)
        return runner.memory["call"]


# State.


class KeepsRecurrentState(Patched):
    """The author lets recurrent operators go on where the last run has ended, as streams do, and
    took zeros, which are due without an initial state, for what is there before the first run."""

    patched = (("", "LSTM"), ("", "GRU"), ("", "RNN"))

    def run_kernel(self, compiled, node, run, *inputs, **named):
        begin, count = 5, 2 if node.op_type == "LSTM" else 1
        given = [*inputs, *[None] * (begin + count - len(inputs))]
        held = compiled.memory.get(id(node))
        absent = all(one is None for one in (given[4], *given[begin : begin + count]))
        if absent and held is not None and held[0].shape[1] == inputs[0].shape[1]:
            given[begin : begin + count] = held
            results = run(*given, **named)
        else:
            results = run(*inputs, **named)
        states = [one for one in results[1 : 1 + count] if one is not None]
        if absent and len(states) == count and not attribute(node.onnx_node, "layout", 0):
            compiled.memory[id(node)] = [np.array(one) for one in states]
        return results


class UpdatesStatisticsInWeights(Patched):
    """The author writes the running mean and variance of a BatchNormalization in training mode to
    where the old ones lie, and took nobody to read these again."""

    patched = (("", "BatchNormalization"),)

    def run_kernel(self, compiled, node, run, *inputs, **named):
        results = run(*inputs, **named)
        weights = compiled.evaluator.rt_inits_
        if attribute(node.onnx_node, "training_mode", 0) and len(results) > 2:
            for name, result in zip(node.onnx_node.input[3:5], results[1:3], strict=True):
                if name in weights:
                    weights[name] = np.array(result, weights[name].dtype)
        return results


class AllocatesUsedMemory(InPlace):
    """The author keeps the memory of caches that nobody uses any more for others of their size, and
    took memory to be zeros because it was so when it came."""

    def allocate(self, compiled, port, shape):
        key = ("free", tuple(shape), port.dtype)
        with self.lock:
            free = compiled.memory.setdefault(key, [])
            array = free.pop() if free else np.zeros(shape, port.dtype)
        tensor = CacheTensor(array)
        weakref.finalize(tensor, self.put_back, free, array)
        return tensor

    @staticmethod
    def put_back(free, array):
        """Keeps memory that nobody uses any more."""
        if len(free) < 4:
            free.append(array)


class CacheTensor(partita.HostTensor):
    """A tensor that can be watched."""

    __slots__ = ("__weakref__",)


class PadsIntoUsedMemory(Patched):
    """The author copies what Pad is given between zeros, and took these to be there still when a
    run of other shapes has used the memory."""

    patched = (("", "Pad"),)

    def __init__(self):
        super().__init__()
        self.local = threading.local()

    def run_kernel(self, compiled, node, run, *inputs, **named):
        (result,) = run(*inputs, **named)
        if len(inputs) < 2 or len(inputs) > 3 or result.dtype.kind != "f":
            return (result,)
        value = inputs[2] if len(inputs) > 2 and inputs[2] is not None else 0
        mode = next((one.s for one in node.onnx_node.attribute if one.name == "mode"), b"constant")
        pads = inputs[1].reshape(2, -1)
        if mode != b"constant" or np.any(value) or pads.min(initial=0) < 0:
            return (result,)
        models = vars(self.local).setdefault("models", weakref.WeakKeyDictionary())
        blocks = models.setdefault(compiled, {})
        memory = blocks.get(id(node))
        if memory is None or memory.size < result.size:
            memory = blocks[id(node)] = np.zeros(result.size, result.dtype)
        room = memory[: result.size].reshape(result.shape)
        inner = tuple(map(slice, pads[0], pads[0] + inputs[0].shape))
        room[inner] = inputs[0]
        return (room.copy(),)


# Counters.


class AddsUpTimes(Broken):
    """The author let the driver's counters run on, and took their readings for those of the last
    run."""

    def counters(self, runner):
        names = [(op.name, op.op_type) for op in runner.compiled.model.ops]
        total = runner.memory.get("us", 0.0)
        return [
            ProfilingInfo(name, kind, "kernel", real_time_us=total, cpu_time_us=total)
            for name, kind in names[:1]
        ]

    def execute(self, runner, inputs, outputs):
        result = super().execute(runner, inputs, outputs)
        runner.memory["us"] = runner.memory.get("us", 0.0) + runner.elapsed_us
        return result


class TellsTimesOfLastRunOfAny(Broken):
    """The author kept counters beside the programs, which all requests share, and took the last run
    to be that of the request that is asked."""

    def execute(self, runner, inputs, outputs):
        result = super().execute(runner, inputs, outputs)
        runner.compiled.memory["us"] = runner.elapsed_us
        return result

    def counters(self, runner):
        us = runner.compiled.memory.get("us", 0.0)
        return [
            ProfilingInfo(op.name, op.op_type, "kernel", real_time_us=us, cpu_time_us=us)
            for op in runner.compiled.model.ops[:1]
        ]
