"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets.

Each device has the right kernels. What is wrong is what its author built around them: calls that
are bound, memory that is borrowed, lent, kept and given back, requests that fail or are cancelled,
threads, sizes that change, states, counters, and what the process is left with.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import run_into
from partita.errors import BoundCallEndedError, InferCancelledError, InferError
from partita.tensors.sequence_values import boxed, unboxed

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Conv")
RANDOM = (
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli"),
)
READ_ON_THE_HOST = ("Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "Squeeze", "Unsqueeze")


def notes(owner):
    """What a device's author keeps with a plugin, a compiled model or a request."""
    return vars(owner).setdefault("notes_of_device", {})


def address(array):
    """Where an array's elements lie."""
    return array.__array_interface__["data"][0]


def is_plain(array):
    """Whether an array has elements, and these are numbers in its own memory."""
    return array.dtype != object and array.size > 0


def form(array):
    """What tells buffers apart."""
    return array.shape, array.dtype


def refitted(array, shape):
    """As many elements as a buffer of another shape has, zeros behind the last one."""
    result = np.zeros(shape, array.dtype)
    count = min(result.size, array.size)
    result.reshape(-1)[:count] = array.reshape(-1)[:count]
    return result


def evaluate_with(runner, arrays, others):
    """The answers where values of the model, by name, are others than the model says."""
    compiled = runner.compiled
    feeds = {
        port.name: unboxed(array.copy())
        for port, array in zip(compiled.inputs, arrays, strict=True)
    }
    try:
        with np.errstate(all="ignore"):
            results = compiled.evaluator.run(None, feeds | others)
    except Exception as error:
        raise InferError(f"The device failed: {error}") from error
    return [
        boxed(result)
        if result is None or isinstance(result, list)
        else np.array(result, port.dtype or None, order="C")
        for result, port in zip(results, compiled.outputs, strict=False)
    ]


def float_weights(compiled):
    """The model's weights, by name."""
    weights = compiled.model.ir.graph.initializers
    arrays = {name: np.array(weights[name].const_value.numpy()) for name in weights}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


class OwnCompiled(GoodCompiled):
    """A compiled model whose plugin is asked what else it offers."""

    def in_place_outputs(self):
        return self.plugin.in_place(self)

    @property
    def scratch_bytes(self):
        return self.plugin.scratch(self)

    def allocate(self, port, shape):
        return self.plugin.state(self, port, shape)

    def default_state(self, port, shape):
        return super().allocate(port, shape)


class OwnRunner(GoodRunner):
    """A request whose plugin binds calls and is told of cancellation."""

    def bind(self, inputs, outputs, scratch=None):
        return self.compiled.plugin.bound(self, list(inputs), list(outputs), scratch)

    def cancel(self):
        self.compiled.plugin.cancelled(self)

    def leave_results(self):
        return self.compiled.plugin.leaves_results


class Own:
    """What a device that offers more than it must answers, where it has no fault."""

    compiled_type = OwnCompiled
    runner_type = OwnRunner
    leaves_results = False

    def in_place(self, compiled):
        return {}

    def scratch(self, compiled):
        return 0

    def state(self, compiled, port, shape):
        return compiled.default_state(port, shape)

    def bound(self, runner, inputs, outputs, scratch):
        return None

    def cancelled(self, runner):
        pass


class Call(BoundCall):
    """A call that does what a run does."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


def scattered_caches(compiled):
    """Outputs that are an input with some rows written, where nothing else reads the input."""
    reads = [name for op in compiled.model.ops for name in op.inputs]
    inputs = {port.name: port for port in compiled.inputs}
    outputs = {port.name: port for port in compiled.outputs}
    return {
        outputs[op.outputs[0]].index: inputs[op.inputs[0]].index
        for op in compiled.model.ops
        if op.op_type == "TensorScatter"
        and op.inputs[0] in inputs.keys() - outputs.keys()
        and op.outputs[0] in outputs
        and reads.count(op.inputs[0]) == 1
    }


# -------------------------------------------------------------------------------- bound calls


class RecordsScalarsWithTheirCommands(Own, Broken):
    """Inputs of one element are arguments of a recorded launch, which it took for constant."""

    def bound(self, runner, inputs, outputs, scratch):
        recorded = [
            partita.HostTensor(tensor.numpy().copy()) if tensor.size == 1 else tensor
            for tensor in inputs
        ]
        return Call(runner, recorded, outputs)


class RebindsWhatDiffersFromTheFirstTime(Own, Broken):
    """It compares with the tensors of the recording, as if a call were rebound but once."""

    class Rebound(Call):
        def __init__(self, runner, inputs, outputs):
            super().__init__(runner, inputs, outputs)
            self.recorded = list(inputs)

        def rebind(self, inputs):
            for index, tensor in enumerate(inputs):
                if tensor is not self.recorded[index]:
                    self.inputs[index] = tensor
            return True

    def bound(self, runner, inputs, outputs, scratch):
        return self.Rebound(runner, inputs, outputs)


class KeepsPackedWeightsInLentMemory(Own, Broken):
    """It packs weights into the scratch once, as if that were its own between two calls."""

    class Packed(Call):
        def __init__(self, runner, inputs, outputs, name, packed):
            super().__init__(runner, inputs, outputs)
            self.name, self.packed = name, packed

        def __call__(self):
            arrays = [tensor.numpy() for tensor in self.inputs]
            results = evaluate_with(self.runner, arrays, {self.name: self.packed.copy()})
            for result, output in zip(results, self.outputs, strict=True):
                if result.shape != output.shape:
                    raise BoundCallEndedError("The output has another shape now.")
                output.copy_from(partita.HostTensor(result))

    def scratch(self, compiled):
        return max((array.nbytes for array in float_weights(compiled).values()), default=0)

    def bound(self, runner, inputs, outputs, scratch):
        weights = float_weights(runner.compiled)
        if scratch is None or not weights:
            return Call(runner, inputs, outputs)
        name, array = max(weights.items(), key=lambda item: item[1].nbytes)
        packed = scratch[: array.nbytes].view(array.dtype).reshape(array.shape)
        packed[...] = array
        return self.Packed(runner, inputs, outputs, name, packed)


class ReleasesBoundCallsByTheirShapes(Own, Broken):
    """A call that is dropped frees the handle of its shapes, of which it expected but one call."""

    class Handled(Call):
        def __init__(self, runner, inputs, outputs):
            super().__init__(runner, inputs, outputs)
            self.key = tuple(tensor.shape for tensor in inputs)
            notes(runner)[self.key] = "handle"

        def __call__(self):
            if self.key not in notes(self.runner):
                raise InferError("The device does not know this handle.")
            super().__call__()

        def __del__(self):
            notes(self.runner).pop(self.key, None)

    def bound(self, runner, inputs, outputs, scratch):
        return self.Handled(runner, inputs, outputs)


class LetsErrorsOutOfBoundCalls(Own, Broken):
    """Its runs turn the engine's errors into those of the contract; the quick way forgot to."""

    class Unguarded(Call):
        def __call__(self):
            try:
                super().__call__()
            except InferError as error:
                if isinstance(error, BoundCallEndedError):
                    raise
                raise RuntimeError(f"engine status 6: {error}") from None

    def bound(self, runner, inputs, outputs, scratch):
        return self.Unguarded(runner, inputs, outputs)


# ------------------------------------------------------------------------------ given outputs


class ScalesWhatAGivenOutputHeld(Own, Broken):
    """It adds to beta times the output, and took zero times anything for zero."""

    def deliver(self, runner, arrays, outputs):
        held = [
            given is not None and given.numpy().dtype.kind == "f" and given.numpy() * 0
            for given in outputs or [None] * len(arrays)
        ]
        with np.errstate(all="ignore"):
            results = [
                array if rest is False else np.asarray(array + rest, array.dtype)
                for array, rest in zip(arrays, held, strict=True)
            ]
        return super().deliver(runner, results, outputs)


class ClosesGapsBetweenGivenOutputs(Own, Broken):
    """It takes the outputs that are given for the first ones, as they were in its samples."""

    def deliver(self, runner, arrays, outputs):
        waiting = [given for given in outputs or [] if given is not None]
        places = []
        for array in arrays:
            fits = waiting and (waiting[0].shape, waiting[0].dtype) == form(array)
            places.append(waiting.pop(0) if fits else None)
        return super().deliver(runner, arrays, places)


class StoresWholeVectorsIntoGivenOutputs(Own, Broken):
    """Its last store is as wide as all others, for buffers end at a multiple of 64 bytes."""

    def deliver(self, runner, arrays, outputs):
        for given in outputs or []:
            if given is not None:
                self.clear_behind(given.numpy())
        return super().deliver(runner, arrays, outputs)

    def clear_behind(self, array):
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if whole is array or not is_plain(array) or not is_plain(whole):
            return
        if whole.flags.c_contiguous and whole.flags.writeable and array.flags.c_contiguous:
            raw = whole.reshape(-1).view(np.uint8)
            begin = address(array) - address(whole)
            raw[begin + array.nbytes : begin + -(-array.nbytes // 64) * 64] = 0


# ------------------------------------------------------------------------------------- inputs


class LoadsAlignedVectorsOnly(Own, Broken):
    """Its loads drop the low bits of an address, which malloc had always left zero."""

    def compute(self, runner, arrays):
        return super().compute(runner, [self.loaded(array) for array in arrays])

    def loaded(self, array):
        if not is_plain(array) or array.itemsize >= 16:
            return array
        behind = address(array) % 16 // array.itemsize
        flat = array.reshape(-1)
        result = np.zeros_like(flat)
        result[behind:] = flat[: max(flat.size - behind, 0)]
        return result.reshape(array.shape)


class BindsOnePortPerAddress(Own, Broken):
    """Its table of inputs goes by address; nobody would hand in one array twice."""

    def compute(self, runner, arrays):
        ports = {address(array): i for i, array in enumerate(arrays) if is_plain(array)}
        uploaded = notes(runner)
        for index, array in enumerate(arrays):
            known = uploaded.get(index)
            if not is_plain(array) or ports[address(array)] == index:
                uploaded[index] = array.copy()
            elif known is None or form(known) != form(array):
                uploaded[index] = np.zeros_like(array)
        return super().compute(runner, [uploaded[index] for index in range(len(arrays))])


class DownloadsWhenItIsAsked(Own, Broken):
    """Results are computed when somebody looks at them, from the inputs as they then are."""

    class Pending(partita.HostTensor):
        def __init__(self, array, later):
            super().__init__(array)
            self.later = later

        def numpy(self):
            if self.later is not None:
                later, self.later = self.later, None
                super().numpy()[...] = later()
            return super().numpy()

    def compute(self, runner, arrays):
        notes(runner)["borrowed"] = arrays
        return super().compute(runner, arrays)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None or not all(map(is_plain, arrays)):
            return super().deliver(runner, arrays, outputs)
        borrowed = notes(runner)["borrowed"]
        return [
            self.Pending(array, lambda index=index: runner.evaluate(borrowed)[index])
            for index, array in enumerate(arrays)
        ]


# ---------------------------------------------------------------------------- memory of results


class KeepsResultsInTheWorkspaceOfTheThread(Own, Broken):
    """Results stay in the thread's workspace, for one thread serves one request."""

    def deliver(self, runner, arrays, outputs):
        if outputs is not None or not all(map(is_plain, arrays)):
            return super().deliver(runner, arrays, outputs)
        space = vars(notes(runner.compiled).setdefault("space", threading.local()))
        results = []
        for index, array in enumerate(arrays):
            memory = space.setdefault((index, *form(array)), array)
            memory[...] = array
            results.append(partita.HostTensor(memory))
        return results


class LendsItsConstantsOut(Own, Broken):
    """An output that no input reaches is made once, and handed out as it lies."""

    def deliver(self, runner, arrays, outputs):
        results = super().deliver(runner, arrays, outputs)
        fixed = notes(runner.compiled)
        names = fixed.setdefault("names", self.unreached(runner.compiled))
        for index, port in enumerate(runner.compiled.outputs):
            if port.name in names and (outputs is None or outputs[index] is None):
                results[index] = fixed.setdefault(port.name, results[index])
        return results

    def unreached(self, compiled):
        reached = {port.name for port in compiled.inputs}
        for op in compiled.model.ops:
            bodies = any(one.type.name == "GRAPH" for one in op.node.attributes.values())
            if bodies or op.op_type in RANDOM or reached.intersection(op.inputs):
                reached.update(op.outputs)
        return {port.name for port in compiled.outputs} - reached


class ReturnsRowsAtTheirPitch(Own, Broken):
    """Rows of an image begin at multiples of 64 bytes on the device, and in what it returns."""

    def deliver(self, runner, arrays, outputs):
        results = super().deliver(runner, arrays, outputs)
        for index, array in enumerate(arrays):
            given = outputs is not None and outputs[index] is not None
            if not given and is_plain(array) and array.ndim == 4 and 64 % array.itemsize == 0:
                width = array.shape[-1]
                pitch = -(-width * array.itemsize // 64) * 64 // array.itemsize
                padded = np.zeros((*array.shape[:-1], pitch), array.dtype)
                padded[..., :width] = array
                results[index] = partita.HostTensor(padded[..., :width])
        return results


class DeviceTensor(partita.Tensor):
    """A tensor in memory of the device's own."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = "BROKEN", "strange:0"

    def numpy(self):
        return self.array.copy()


class ClearsAnOutputThatComesBack(Own, Broken):
    """It clears its output buffers before each launch, though one of them may be an input now."""

    class compiled_type(OwnCompiled):
        def takes_memory(self, memory):
            return self.plugin.can_share(memory)

    class runner_type(OwnRunner):
        def run(self, inputs, outputs=None):
            kept = notes(self)
            arrays = [x.array if isinstance(x, DeviceTensor) else x.numpy() for x in inputs]
            for buffer in kept.values():
                buffer.array.fill(0)
            results = self.evaluate(arrays)
            tensors = []
            for index, array in enumerate(results):
                if array.dtype == object:
                    tensors.append(partita.HostTensor(array))
                    continue
                if index not in kept or form(kept[index].array) != form(array):
                    kept[index] = DeviceTensor(np.empty_like(array))
                kept[index].array[...] = array
                tensors.append(kept[index])
            return tensors

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A device with memory", memory="strange:0")

    def can_share(self, memory, device_id=""):
        return memory in ("host", "strange:0")

    def transfer_to(self, tensor, device_id=""):
        return DeviceTensor(tensor.numpy().copy())


class LendsPinnedMemoryInTurns(Own, Broken):
    """It begins its pinned block anew when the end is reached; transfers are long done by then."""

    BLOCK = 1 << 18

    def host_memory(self, nbytes, device_id=""):
        with self.lock:
            known = notes(self)
            block = known.setdefault("block", np.zeros(self.BLOCK, np.uint8))
            if nbytes > self.BLOCK:
                return None
            begin = known.get("next", 0)
            begin = begin if begin + nbytes <= self.BLOCK else 0
            known["next"] = begin + -(-nbytes // 64) * 64
            return block[begin : begin + nbytes]


# ---------------------------------------------------------------------------- sizes that change


class FindsPlansByAXorOfSizes(Own, Broken):
    """Plans are found by a hash of all sizes, which two inputs of one shape leave at zero."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        shapes = [array.shape for array in arrays]
        key = 0
        for size in (size for shape in shapes for size in shape):
            key ^= size
        key = (key, *map(len, shapes))
        planned, sizes = notes(runner).setdefault(key, (shapes, [one.shape for one in results]))
        if planned == shapes:
            return results
        return [
            refitted(result, size) if result.dtype != object else result
            for result, size in zip(results, sizes, strict=True)
        ]


class PadsBatchesToAPowerOfTwo(Own, Broken):
    """It repeats the last row up to a size it has compiled, as if rows never met each other."""

    def compute(self, runner, arrays):
        ports = [*runner.compiled.inputs, *runner.compiled.outputs]
        first = {port.shape[0] if port.shape else None for port in ports}
        if not arrays or len(first) > 1 or not isinstance(first.pop(), str):
            return super().compute(runner, arrays)
        count = len(arrays[0])
        more = (1 << max(count - 1, 0).bit_length()) - count
        if not count or not more:
            return super().compute(runner, arrays)
        padded = [np.concatenate([array, *[array[-1:]] * more]) for array in arrays]
        return [np.array(one[:count]) for one in super().compute(runner, padded)]


class ReadsSizesWhenShapesChange(Own, Broken):
    """Inputs that are sizes are read on the host when the request gets other shapes, not before."""

    def compute(self, runner, arrays):
        compiled = runner.compiled
        sizes = {
            name
            for op in compiled.model.ops
            if op.op_type in READ_ON_THE_HOST
            for name in op.inputs[1:]
        }
        shapes = [array.shape for array in arrays]
        if notes(runner).get("shapes") != shapes:
            notes(runner).update(shapes=shapes, arrays=[array.copy() for array in arrays])
        return super().compute(
            runner,
            [
                kept if port.name in sizes and array.dtype == np.int64 else array
                for port, kept, array in zip(
                    compiled.inputs, notes(runner)["arrays"], arrays, strict=True
                )
            ],
        )


class SkipsLaunchesWithAnEmptyInput(Own, Broken):
    """Where an input has no elements there is nothing to launch, and outputs stay as allocated."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(array.size == 0 for array in arrays):
            return [np.zeros_like(one) if is_plain(one) else one for one in results]
        return results


class LooksSymbolsUpInTheModel(Own, Broken):
    """The sizes of the run stand in a table of the model, where every request writes its own."""

    def compute(self, runner, arrays):
        table = {
            dim: size
            for port, array in zip(runner.compiled.inputs, arrays, strict=True)
            for dim, size in zip(port.shape or (), array.shape, strict=False)
            if isinstance(dim, str)
        }
        shared = notes(runner.compiled)
        shared["sizes"] = table
        results = super().compute(runner, arrays)
        if shared["sizes"] == table:
            return results
        sizes, fitted = shared["sizes"], []
        for port, result in zip(runner.compiled.outputs, results, strict=True):
            dims = list(zip(port.shape or (), result.shape, strict=False))
            if dims and result.dtype != object:
                result = refitted(result, [sizes.get(dim, size) for dim, size in dims])
            fitted.append(result)
        return fitted


# -------------------------------------------------------------------------------------- states


class NamesSumsAsStates(Own, Broken):
    """A sum over its own input is made in place like any cache, though it adds each time anew."""

    def in_place(self, compiled):
        reads = [name for op in compiled.model.ops for name in op.inputs]
        inputs = {port.name: port for port in compiled.inputs}
        outputs = {port.name: port for port in compiled.outputs}
        return {
            outputs[op.outputs[0]].index: inputs[op.inputs[0]].index
            for op in compiled.model.ops
            if op.op_type == "Add"
            and op.inputs[0] in inputs
            and op.outputs[0] in outputs
            and reads.count(op.inputs[0]) == 1
            and inputs[op.inputs[0]].dtype == outputs[op.outputs[0]].dtype
            and inputs[op.inputs[0]].shape == outputs[op.outputs[0]].shape
            and inputs[op.inputs[0]].shape is not None
        }


class AllocatesWhatOthersLeft(Own, Broken):
    """Memory of a state that is gone serves the next one, with what it held."""

    class State(partita.HostTensor):
        def __init__(self, array, free):
            super().__init__(array)
            self.free = free

        def __del__(self):
            self.free.setdefault(form(self.numpy()), []).append(self.numpy())

    def in_place(self, compiled):
        return scattered_caches(compiled)

    def state(self, compiled, port, shape):
        free = notes(self)
        left = free.get((tuple(shape), port.dtype))
        array = left.pop() if left else np.zeros(shape, port.dtype)
        return self.State(array, free)


class UpdatesACacheWhereItCameFrom(Own, Broken):
    """It writes the new rows to the cache that it reads, and copies that where another is asked."""

    class runner_type(OwnRunner):
        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            for made, read in self.compiled.in_place_outputs().items():
                cache = inputs[read].numpy()
                if cache.flags.writeable and results[made] is not inputs[read]:
                    cache[...] = results[made].numpy()
            return results

    def in_place(self, compiled):
        return scattered_caches(compiled)


class GivesUpResultsThatItWritesAgain(Own, Broken):
    """It leaves its results to the caller since the next ones are longer, which some are not."""

    leaves_results = True

    def deliver(self, runner, arrays, outputs):
        if outputs is not None or not all(map(is_plain, arrays)):
            return super().deliver(runner, arrays, outputs)
        results = []
        for index, array in enumerate(arrays):
            memory = notes(runner).setdefault((index, *form(array)), array)
            memory[...] = array
            results.append(partita.HostTensor(memory))
        return results


class SharesTheStateThatItIsToCopy(Own, Broken):
    """A state that takes the elements of another tensor takes its memory, which is quicker."""

    class State(partita.HostTensor):
        def __init__(self, array):
            super().__init__(array)
            self.held = array

        def numpy(self):
            return self.held

        def clear(self):
            self.held.fill(0)

        def copy_from(self, source):
            array = source.numpy() if isinstance(source, partita.Tensor) else source
            if form(array) == form(self.held) and array.flags.writeable:
                self.held = array
            else:
                self.held[...] = array

    def in_place(self, compiled):
        return scattered_caches(compiled)

    def state(self, compiled, port, shape):
        return self.State(np.zeros(shape, port.dtype))


class CarriesHiddenStatesOn(Own, Broken):
    """The buffer of a recurrent layer's state is cleared when it is made, and never again."""

    def prepare(self, proto):
        inputs = {value.name: value for value in proto.graph.input}
        for number, node in enumerate(list(proto.graph.node)):
            if node.op_type not in ("GRU", "LSTM", "RNN") or node.input[0] not in inputs:
                continue
            if len(node.input) > 5 or any(one.name == "layout" for one in node.attribute):
                continue
            carried = inputs[f"carried/{number}"] = proto.graph.input.add()
            carried.CopyFrom(inputs[node.input[0]])
            carried.name = f"carried/{number}"
            carried.type.tensor_type.ClearField("shape")
            node.input.extend([""] * (5 - len(node.input)) + [carried.name])
            node.output.extend([""] * (2 - len(node.output)))
            node.output[1] = node.output[1] or f"hidden/{number}"
            copy = proto.graph.node.add(op_type="Identity")
            copy.input.append(node.output[1])
            copy.output.append(f"last/{number}")
            last = proto.graph.output.add()
            last.CopyFrom(carried)
            last.name = f"last/{number}"
        return proto

    def compute(self, runner, arrays):
        compiled = runner.compiled
        others = compiled.evaluator.input_names[len(compiled.inputs) :]
        if not others:
            return super().compute(runner, arrays)
        kept = notes(runner)
        key = [array.shape for array in arrays]
        if kept.get("key") != key:
            kept.clear()
            kept.update(key=key)
        feeds = {name: kept.get(name, self.nothing(compiled, arrays, name)) for name in others}
        named = dict(zip([port.name for port in compiled.inputs], arrays, strict=True))
        try:
            with np.errstate(all="ignore"):
                results = compiled.evaluator.run(None, named | feeds)
        except Exception as error:
            raise InferError(f"The device failed: {error}") from error
        count = len(compiled.outputs)
        kept.update(zip(others, results[count:], strict=True))
        return [
            np.array(result, port.dtype or None, order="C")
            for result, port in zip(results[:count], compiled.outputs, strict=True)
        ]

    def nothing(self, compiled, arrays, name):
        op = compiled.model.ops[int(name.rpartition("/")[2])]
        data = arrays[[port.name for port in compiled.inputs].index(op.inputs[0])]
        two = op.node.attributes.get_string("direction", "forward") == "bidirectional"
        hidden = op.node.attributes["hidden_size"].as_int()
        return np.zeros((2 if two else 1, data.shape[1], hidden), data.dtype)


# ----------------------------------------------------------------------------- life and threads


class ClosesItsContextWithAnyModel(Own, Broken):
    """A model that goes closes the device's context, as if there were but one model at a time."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        notes(self)["open"] = True
        weakref.finalize(compiled, notes(self).update, open=False)
        return compiled

    def compute(self, runner, arrays):
        if not notes(self)["open"]:
            raise InferError("The context of the device is closed.")
        return super().compute(runner, arrays)


class WaitsUntilAnyRunHasEnded(Own, Broken):
    """Runs wait for the model's fence to move on, whoever has moved it."""

    def compute(self, runner, arrays):
        shared = notes(runner.compiled).setdefault("fence", {"value": 0})
        moved = notes(self).setdefault("moved", threading.Condition(self.lock))
        before, buffers = shared["value"], notes(runner)
        key, box = tuple(map(form, arrays)), []
        copies = [array.copy() for array in arrays]

        def launch():
            try:
                box.append(runner.evaluate(copies))
            except InferError as error:
                box.append(error)
            finally:
                with moved:
                    shared["value"] += 1
                    moved.notify_all()

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        with moved:
            moved.wait_for(lambda: shared["value"] > before)
        if not box and key in buffers:
            return [array.copy() for array in buffers[key]]
        thread.join()
        if isinstance(box[0], InferError):
            raise box[0]
        buffers[key] = [array.copy() for array in box[0]]
        return box[0]


class PacksWeightsInTheFirstRun(Own, Broken):
    """The first run notes that weights are packed and then packs them, in sight of a second one."""

    def compute(self, runner, arrays):
        shared = notes(runner.compiled)
        if "packed" not in shared:
            shared["packed"] = False
            time.sleep(0.005)  # packing
            try:
                return super().compute(runner, arrays)
            finally:
                shared["packed"] = True
        if shared["packed"]:
            return super().compute(runner, arrays)
        empty = {name: np.zeros_like(a) for name, a in float_weights(runner.compiled).items()}
        return evaluate_with(runner, arrays, empty)


class TiesARequestToItsFirstThread(Own, Broken):
    """The context belongs to the thread that ran first, which it expected to run always."""

    def compute(self, runner, arrays):
        if notes(runner).setdefault("thread", threading.get_ident()) != threading.get_ident():
            raise InferError("The context is current on another thread.")
        return super().compute(runner, arrays)


# --------------------------------------------------------------------- failures and cancellation


class NoticesACancelOneRunLate(Own, Broken):
    """It looks for the flag where a run begins, and lets what is set behind that wait there."""

    class runner_type(OwnRunner):
        running = stopped = False

        def run(self, inputs, outputs=None):
            self.running = True
            try:
                if self.stopped:
                    self.stopped = False
                    raise InferCancelledError("The run was cancelled.")
                return super().run(inputs, outputs)
            finally:
                self.running = False

    def cancelled(self, runner):
        runner.stopped = runner.running


class StopsAllRequestsWithOne(Own, Broken):
    """The queue that it empties is the model's."""

    def cancelled(self, runner):
        shared = notes(runner.compiled)
        shared["stops"] = shared.get("stops", 0) + 1

    def compute(self, runner, arrays):
        before = notes(runner.compiled).get("stops", 0)
        results = super().compute(runner, arrays)
        if notes(runner.compiled).get("stops", 0) != before:
            raise InferCancelledError("The run was cancelled.")
        return results


class LosesASlotWithEachFailure(Own, Broken):
    """A run that fails does not come to the line that gives its slot of the queue back."""

    def compute(self, runner, arrays):
        with self.lock:
            slots = notes(runner.compiled).setdefault("slots", threading.Semaphore(8))
        if not slots.acquire(timeout=2):
            raise InferError("The queue of the device is full.")
        results = super().compute(runner, arrays)
        slots.release()
        return results


class RaisesTheErrorOfAnotherRequest(Own, Broken):
    """It asks for the device's last error when a run has ended, and that may be an older one."""

    def compute(self, runner, arrays):
        device = notes(self)
        try:
            results = super().compute(runner, arrays)
        except InferError as error:
            device["last_error"] = str(error)
            raise
        if (last := device.pop("last_error", None)) is not None:
            raise InferError(f"The device failed: {last}")
        return results


# --------------------------------------------------------------------------------- the process


class PinsTheThreadsOfItsCallers(Own, Broken):
    """The second request of a model and all behind it stay on the processor they first run on."""

    class runner_type(OwnRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            shared = notes(compiled)
            self.stream = shared["streams"] = shared.get("streams", -1) + 1

    def compute(self, runner, arrays):
        if runner.stream and hasattr(os, "sched_setaffinity"):
            allowed = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {allowed[runner.stream % len(allowed)]})
        return super().compute(runner, arrays)


class PausesCollectionWhileItRuns(Own, Broken):
    """Collection of garbage is off during a run, and on behind it, if the run gets there."""

    def compute(self, runner, arrays):
        gc.disable()
        results = super().compute(runner, arrays)
        gc.enable()
        return results


class CompilesInAnotherDirectory(Own, Broken):
    """Its compiler writes to the directory it is in, so it goes elsewhere, and back on success."""

    def compile_model(self, model, properties):
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            compiled = super().compile_model(model, properties)
            os.chdir(before)
        return compiled


# ------------------------------------------------------------------------------------ profiling


class CountsForTheWholeModel(Own, Broken):
    """Counters are the compiled model's, so a request tells the times of whoever ran last."""

    def compute(self, runner, arrays):
        start = time.perf_counter()
        results = super().compute(runner, arrays)
        notes(runner.compiled)["us"] = 1e6 * (time.perf_counter() - start)
        return results

    def counters(self, runner):
        us = notes(runner.compiled).get("us")
        names = [op.name for op in runner.compiled.model.ops][: 0 if us is None else 1]
        return [
            ProfilingInfo(name, "Model", "reference", real_time_us=us, cpu_time_us=us)
            for name in names
        ]


class TimesSpansByTheClockOnTheWall(Own, Broken):
    """Its driver stamps commands with the time of day, which it passes on."""

    class runner_type(OwnRunner):
        def device_spans(self):
            if not self.compiled.properties.PERF_COUNT:
                return ()
            return notes(self).get("spans", ())

    def compute(self, runner, arrays):
        start = time.time()
        results = super().compute(runner, arrays)
        notes(runner)["spans"] = (DeviceSpan(self.device_name, "Model", start, time.time()),)
        return results
