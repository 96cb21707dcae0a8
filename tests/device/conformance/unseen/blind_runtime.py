"""Fifty faults of runtimes, written by somebody who had not read the kit.

Each device computes as the correct one does, but for one habit of a runtime, a driver's wrapper or
a remote engine. Classes that others subclass are frames, and no faults themselves.
"""

from __future__ import annotations

import collections
import ctypes
import json
import math
import os
import re
import signal
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner, zeros
from onnx import TensorProto, numpy_helper

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.runner import run_into
from partita.errors import BlobError, CompileError, InferCancelledError, InferError
from partita.frontends.reader import read_model
from partita.tensors.sequence_values import boxed, unboxed


def notes(owner):
    """What a fault keeps from one run to the next, with a request or a compiled model."""
    return vars(owner).setdefault("notes_of_fault", {})


def form(arrays):
    """The shapes and types of inputs."""
    return tuple((array.shape, array.dtype.str) for array in arrays)


# ------------------------------------------------------------------ memory of inputs and outputs


class OutputsOfAllRequestsLieInOneArena(Broken):
    """It keeps one set of output buffers per compiled model, which all its requests write to."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        arena = notes(runner.compiled)
        placed = []
        for index, array in enumerate(arrays):
            key = (index, array.shape, array.dtype.str)
            buffer = arena.setdefault(key, np.empty_like(array))
            buffer[...] = array
            placed.append(buffer)
        return super().deliver(runner, placed, outputs)


class StagesInputsOfAllThreadsInOneBuffer(Broken):
    """It copies large inputs to one staging buffer per model, whichever request is being run."""

    suites = ("*",)

    def compute(self, runner, arrays):
        staged = []
        for index, array in enumerate(arrays):
            if array.nbytes < 4096 or array.dtype.hasobject:
                staged.append(array)
                continue
            key = (index, array.shape, array.dtype.str)
            buffer = notes(runner.compiled).setdefault(key, np.empty_like(array))
            buffer[...] = array
            staged.append(buffer)
        time.sleep(0)  # the copy is queued, and other threads go on
        return super().compute(runner, staged)


class LateTensor(partita.Tensor):
    """A result that is computed when somebody looks at it."""

    def __init__(self, like, make):
        self.shape, self.dtype = like.shape, like.dtype
        self.device = self.memory = "host"
        self.make, self.array = make, None

    def numpy(self):
        if self.array is None:
            self.array = self.make()
        return self.array


class ComputesWhenResultsAreRead(Broken):
    """It queues a run and reads the inputs only when somebody looks at the results."""

    suites = ("*",)

    def compute(self, runner, arrays):
        notes(runner)["inputs"] = arrays
        return super().compute(runner, arrays)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        inputs = notes(runner)["inputs"]

        def make(index):
            return lambda: runner.evaluate(inputs)[index]

        return [LateTensor(array, make(index)) for index, array in enumerate(arrays)]


class LoadsFromAlignedAddresses(Broken):
    """It loads vectors of 16 bytes, and drops the last bits of addresses between two vectors."""

    suites = ("*",)

    def compute(self, runner, arrays):
        return super().compute(runner, [self.loaded(array) for array in arrays])

    def loaded(self, array):
        address = array.ctypes.data
        if array.dtype.hasobject or not array.nbytes or not address % 16:
            return array
        data = ctypes.string_at(address & ~15, array.nbytes)
        return np.frombuffer(data, np.uint8).view(array.dtype).reshape(array.shape)


class FillsGivenOutputsInOrder(Broken):
    """It leaves a gap out of the list of given outputs, so that those behind it move up."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is None or all(given is None for given in outputs):
            return super().deliver(runner, arrays, None)
        places = [given for given in outputs if given is not None]
        for array, given in zip(arrays, places, strict=False):
            if (array.shape, array.dtype) == (given.shape, given.dtype):
                given.numpy()[...] = array
        return [
            partita.HostTensor(array) if given is None else given
            for array, given in zip(arrays, outputs, strict=True)
        ]


class WritesToTheOutputsGivenFirst(Broken):
    """It binds the output tensors of the first run, and writes there for ever after."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            return super().deliver(runner, arrays, outputs)
        bound = []
        for index, (array, given) in enumerate(zip(arrays, outputs, strict=True)):
            if given is None:
                bound.append(None)
                continue
            first = notes(runner).setdefault((index, array.shape), given)
            bound.append(first)
        tensors = super().deliver(runner, arrays, bound)
        return [
            tensor if given is None else given
            for tensor, given in zip(tensors, outputs, strict=True)
        ]


class AddsProductsToWhatTheOutputHeld(Broken):
    """It calls its library's product with a beta of one when it writes to a given output."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        products = {
            op.outputs[0] for op in runner.compiled.model.ops if op.op_type in ("MatMul", "Gemm")
        }
        if outputs is not None:
            arrays = [
                array
                if given is None or port.name not in products
                else array + given.numpy().astype(array.dtype)
                for port, array, given in zip(runner.compiled.outputs, arrays, outputs, strict=True)
            ]
        return super().deliver(runner, arrays, outputs)


class ReturnsACornerOfItsLargestBuffer(Broken):
    """It keeps a buffer of the largest size seen, and returns the part that a smaller run fills."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        placed = []
        for index, array in enumerate(arrays):
            buffer = notes(runner).get(index)
            if buffer is None or buffer.ndim != array.ndim:
                buffer = np.empty_like(array)
            sizes = tuple(map(max, buffer.shape, array.shape))
            if sizes != buffer.shape:
                buffer = np.empty(sizes, array.dtype)
            notes(runner)[index] = buffer
            part = buffer[tuple(map(slice, array.shape))] if array.ndim else buffer
            part[...] = array
            placed.append(part)
        return super().deliver(runner, placed, None)


class SkipsRunsWithAnEmptyInput(Broken):
    """It launches nothing if an input has no elements, though outputs may have some."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if any(array.size == 0 for array in arrays):
            return [boxed(zeros(unboxed(result))) for result in results]
        return results


class UploadsOneMemoryOnce(Broken):
    """It uploads two inputs that lie in the same bytes once, with the shape of the first one."""

    suites = ("*",)

    def compute(self, runner, arrays):
        uploaded = {}
        arrays = [
            uploaded.setdefault((array.ctypes.data, array.nbytes), array)
            if array.nbytes and not array.dtype.hasobject
            else array
            for array in arrays
        ]
        return super().compute(runner, arrays)


class HostMemoryIsOneBlock(Broken):
    """It lends the same page-locked block to everybody who asks for host memory."""

    suites = ("*",)
    block = np.empty(0, np.uint8)

    def host_memory(self, nbytes, device_id=""):
        if self.block.size < nbytes:
            self.block = np.zeros(nbytes, np.uint8)
        return self.block[:nbytes]


class TransfersMakeScalarsVectors(Broken):
    """It makes tensors contiguous on transfer by a function that gives scalars a dimension."""

    suites = ("*",)

    def transfer_to(self, tensor, device_id=""):
        return partita.HostTensor(np.ascontiguousarray(tensor.numpy()))


class KeepsTheArraysOfTheLastRun(Broken):
    """It holds on to the application's arrays with the model until the next run."""

    suites = ("*",)

    def compute(self, runner, arrays):
        notes(runner.compiled)["last"] = arrays
        return super().compute(runner, arrays)


# ------------------------------------------------------------------ programs and what they know


class KnowsWeightsByTheirFirstBytes(Broken):
    """It uploads weights once for all models, and compares shape, type and the first 64 bytes."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.uploaded = collections.OrderedDict()

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            if weight.data_location == TensorProto.EXTERNAL:
                continue
            array = numpy_helper.to_array(weight)
            if array.dtype.hasobject:
                continue
            key = (weight.data_type, array.shape, array.tobytes()[:64])
            known = self.uploaded.setdefault(key, array)
            while len(self.uploaded) > 256:
                self.uploaded.popitem(last=False)
            if known is not array and known.tobytes() != array.tobytes():
                weight.CopyFrom(numpy_helper.from_array(known, weight.name))
        return proto


class SharesProgramsOfAllOpsets(Broken):
    """It finds compiled programs by their graph, which does not tell the version of operators."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.programs = weakref.WeakValueDictionary()

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        key = model.to_onnx().graph.SerializeToString(deterministic=True)
        made.evaluator = self.programs.setdefault(key, made.evaluator)
        return made


class PlansShapesByNumberOfElements(Broken):
    """It plans the shapes of outputs once per number of elements of the inputs."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        plan = notes(runner).setdefault(
            tuple(array.size for array in arrays), [result.shape for result in results]
        )
        return [
            result.reshape(shape) if math.prod(shape) == result.size else result
            for result, shape in zip(results, plan, strict=True)
        ]


class HasDescriptorsForEightShapes(Broken):
    """It takes a descriptor per new shape out of a pool of eight, and gives none back."""

    suites = ("*",)

    def compute(self, runner, arrays):
        notes(runner).setdefault(form(arrays))
        if len(notes(runner)) > 8:
            raise InferError("The pool of descriptors is exhausted.")
        return super().compute(runner, arrays)


class NodeWiseCompiled(GoodCompiled):
    """Wraps the evaluator's nodes of some operators; each has a memory of its own."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        for node in self.evaluator.rt_nodes_:
            if node.onnx_node.op_type in plugin.ops:
                remember(node, plugin)


def remember(node, plugin):
    """Replaces what an evaluator's node computes by what a device makes of it."""
    original, memory = node.run, {}

    def run(*inputs, **given):
        def right(*changed):
            return original(*changed, **given)

        return tuple(plugin.fault(memory, right, inputs))

    node.run = run


class NodeWise(Broken):
    """Computes one operator with a memory of what it did before."""

    ops: ClassVar[tuple[str, ...]] = ()
    compiled_type = NodeWiseCompiled

    def fault(self, memory, right, inputs):
        """The outputs of a node; ``right(*inputs)`` gives the correct ones."""
        raise NotImplementedError


class SumsTheRestOfALargerRun(NodeWise):
    """It sums whole tiles of eight rows, of which a larger run has left rows behind the last."""

    suites = ("*",)
    ops = ("ReduceSum",)

    def fault(self, memory, right, inputs):
        x, *others = inputs
        due = right(*inputs)
        if x is None or x.ndim == 0:
            return due
        rows = -(-x.shape[0] // 8) * 8
        key = (threading.get_ident(), x.shape[1:], x.dtype.str)
        tile = memory.get(key)
        if tile is None or tile.shape[0] < rows:
            tile = np.zeros((rows, *x.shape[1:]), x.dtype)
        memory[key] = tile
        tile[: x.shape[0]] = x
        found = right(tile[:rows], *others)
        return found if found[0].shape == due[0].shape else due


class RecurrentStateSurvivesTheRun(NodeWise):
    """It begins a recurrence that names no initial state with the last state of the run before."""

    suites = ("*",)
    ops = ("RNN", "GRU", "LSTM")

    def fault(self, memory, right, inputs):
        given = [*inputs, *[None] * (6 - len(inputs))]
        if given[5] is not None:
            return right(*inputs)
        before = memory.get((inputs[0].shape, inputs[0].dtype.str))
        if before is None:
            results = right(*inputs)
        else:
            given[5] = before
            results = right(*given)
        if len(results) > 1 and results[1] is not None:
            memory[inputs[0].shape, inputs[0].dtype.str] = results[1].copy()
        return results


class TakesTheBranchOfTheFirstRun(NodeWise):
    """It loads the branch of an If that the first run takes, and stays with it."""

    suites = ("*",)
    ops = ("If",)

    def fault(self, memory, right, inputs):
        return right(memory.setdefault("condition", np.array(inputs[0])))


class TunedKernelsRoundToHalf(Broken):
    """It changes to tuned kernels with the fifth run, which compute products in half precision."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        runs = notes(runner)["runs"] = notes(runner).get("runs", 0) + 1
        types = {op.op_type for op in runner.compiled.model.ops}
        if runs < 5 or not types & {"MatMul", "Gemm", "Conv"}:
            return results
        with np.errstate(all="ignore"):
            return [
                result.astype(np.float16).astype(np.float32)
                if result.dtype == np.float32
                else result
                for result in results
            ]


class SecondRunIsOnlyRecorded(Broken):
    """It records the second run of a shape to be replayed later, and does not execute it."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        runs, first = notes(runner).get(form(arrays), (0, None))
        if runs == 0:
            first = [result.copy() for result in results]
        notes(runner)[form(arrays)] = (runs + 1, first if runs == 0 else None)
        return first if runs == 1 else results


class ReplaysWithTheScalarsOfTheRecording(Broken):
    """It records a run as a graph of launches, in which inputs without dimensions are constants."""

    suites = ("*",)

    def compute(self, runner, arrays):
        recorded = notes(runner).setdefault(
            form(arrays), [None if array.ndim else array.copy() for array in arrays]
        )
        arrays = [
            array if scalar is None else scalar
            for array, scalar in zip(arrays, recorded, strict=True)
        ]
        return super().compute(runner, arrays)


# ------------------------------------------------------------------ names, texts and sequences


class MakesIdentifiersOfNames(Broken):
    """It feeds its engine by names in which all but letters and digits have become underscores."""

    suites = ("*",)

    def compute(self, runner, arrays):
        names = [re.sub(r"\W", "_", port.name) for port in runner.compiled.inputs]
        feeds = dict(zip(names, arrays, strict=True))
        return super().compute(runner, [feeds[name] for name in names])


class ShiftsInputsBehindUnreadOnes(Broken):
    """It drops inputs that nobody reads, and hands the others over by their old places."""

    suites = ("*",)

    def compute(self, runner, arrays):
        inputs = runner.compiled.model.ir.graph.inputs
        ports = runner.compiled.inputs
        unread = {v.name for v in inputs if not v.uses() and not v.is_graph_output()}
        read = [port.index for port in ports if port.name not in unread]
        moved = list(arrays)
        for place, index in enumerate(read):
            moved[index] = arrays[place]
        return super().compute(runner, moved)


class BindsSixteenBuffersAtMost(Broken):
    """It binds the first sixteen inputs of a model, and kernels read zeros in place of others."""

    suites = ("*",)

    def compute(self, runner, arrays):
        unbound = [boxed(zeros(unboxed(array))) for array in arrays[16:]]
        return super().compute(runner, [*arrays[:16], *unbound])


class CutsTextsAtNul(Broken):
    """It takes texts for those of C, which end at the first zero."""

    suites = ("*",)

    def compute(self, runner, arrays):
        return [self.cut(array) for array in super().compute(runner, arrays)]

    def cut(self, array):
        if array.dtype != object or not all(isinstance(text, str) for text in array.flat):
            return array
        texts = np.empty(array.shape, object)
        texts.reshape(-1)[:] = [text.partition("\0")[0] for text in array.flat]
        return texts


class ShorterSequencesKeepTheirTail(Broken):
    """It writes a sequence over that of the run before, and does not shorten that."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for index, result in enumerate(results):
            items = unboxed(result)
            if isinstance(items, list):
                kept = notes(runner).setdefault(index, [])
                kept[: len(items)] = items
                results[index] = boxed(list(kept))
        return results


# ------------------------------------------------------------------ threads, ends and failures


class LeavesADescriptorOpenPerModel(Broken):
    """It opens the device anew for every compiled model, and never closes it."""

    suites = ("*",)

    def __init__(self):
        super().__init__()
        self.opened = []

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.opened.append(Path(os.devnull).open("rb"))  # noqa: SIM115
        return made


class ThreadedRunner(GoodRunner):
    """Has a thread that waits for work."""

    def __init__(self, compiled):
        super().__init__(compiled)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class LeavesAThreadPerRequest(Broken):
    """It starts a thread for every request, which goes on waiting when the request is gone."""

    suites = ("*",)
    runner_type = ThreadedRunner


class FreeingRunner(GoodRunner):
    """Frees the program of its model with itself."""

    def run(self, inputs, outputs=None):
        if notes(self.compiled).get("freed"):
            raise InferError("The program was released.")
        return super().run(inputs, outputs)

    def __del__(self):
        notes(self.compiled)["freed"] = True


class FirstRequestToEndFreesTheProgram(Broken):
    """It frees the program of a compiled model with the first request that is dropped."""

    suites = ("*",)
    runner_type = FreeingRunner


class ReportsFailuresOneRunLate(Broken):
    """It learns of a failed run when it queues the next one, and returns zeros meanwhile."""

    suites = ("*",)

    def compute(self, runner, arrays):
        late = notes(runner).pop("failure", None)
        if late is not None:
            raise late
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            ports = runner.compiled.outputs
            if not all(port.is_static and port.dtype for port in ports):
                raise
            notes(runner)["failure"] = error
            return [np.zeros(port.shape, port.dtype) for port in ports]


class CancelledTogetherRunner(GoodRunner):
    """Stops with whichever request of the model is to stop."""

    def run(self, inputs, outputs=None):
        before = notes(self.compiled).get("cancelled", 0)
        results = super().run(inputs, outputs)
        if notes(self.compiled).get("cancelled", 0) != before:
            raise InferCancelledError("The queue was flushed.")
        return results

    def cancel(self):
        notes(self.compiled)["cancelled"] = notes(self.compiled).get("cancelled", 0) + 1


class CancelsAllRequestsOfTheModel(Broken):
    """It flushes the queue of the model to stop one request, and the others stop as well."""

    suites = ("*",)
    runner_type = CancelledTogetherRunner


class ReturnsBeforeTheLastTileIsCopied(Broken):
    """It returns large outputs while another thread still copies the second half of them."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        placed = []
        for array in arrays:
            if array.nbytes < 1 << 16 or array.dtype.hasobject:
                placed.append(array)
                continue
            buffer = np.zeros_like(array)
            half = array.size // 2
            buffer.reshape(-1)[:half] = array.reshape(-1)[:half]
            arguments = (buffer.reshape(-1)[half:], array.reshape(-1)[half:].copy())
            threading.Timer(0.002, np.copyto, arguments).start()
            placed.append(buffer)
        return super().deliver(runner, placed, None)


class OneThreadRunner(GoodRunner):
    """Has the context of the thread that made it."""

    def __init__(self, compiled):
        super().__init__(compiled)
        self.thread = threading.get_ident()

    def run(self, inputs, outputs=None):
        if threading.get_ident() != self.thread:
            raise InferError("No context of the device is current.")
        return super().run(inputs, outputs)


class RunsOnlyOnTheThreadOfTheRequest(Broken):
    """It makes its context current on the thread that creates a request, and on no other one."""

    suites = ("*",)
    runner_type = OneThreadRunner


class AnswersComeInOrderOfArrival(Broken):
    """It takes the oldest answer of its engine for that to its own question."""

    suites = ("*",)

    def compute(self, runner, arrays):
        answers = notes(runner.compiled).setdefault("answers", collections.deque())
        answers.append(super().compute(runner, arrays))
        time.sleep(0)  # the answer is on its way
        return answers.popleft()


# ------------------------------------------------------------------ bound calls


class PlainCall(BoundCall):
    """Runs on the tensors that it was bound to."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class FrozenCall(PlainCall):
    """Has copied its small inputs."""

    def __init__(self, runner, inputs, outputs):
        super().__init__(runner, inputs, outputs)
        self.inputs = [
            partita.HostTensor(tensor.numpy().copy()) if tensor.size < 16 else tensor
            for tensor in inputs
        ]


class FittingCall(PlainCall):
    """Writes as much as there is room for."""

    def __call__(self):
        for result, output in zip(self.runner.run(self.inputs), self.outputs, strict=True):
            if result.shape == output.shape:
                output.copy_from(result)
                continue
            target, source = output.numpy().reshape(-1), result.numpy().reshape(-1)
            count = min(target.size, source.size)
            target[:count] = source[:count]


class ReboundCall(PlainCall):
    """Reads another first input."""

    def rebind(self, inputs):
        self.inputs[:1] = inputs[:1]
        return True


class BindingRunner(GoodRunner):
    """Binds calls of the sort that its device makes."""

    def bind(self, inputs, outputs, scratch=None):
        return self.compiled.plugin.call_type(self, inputs, outputs)


class Binding(Broken):
    """Binds calls."""

    runner_type = BindingRunner
    call_type: ClassVar[type[PlainCall]] = PlainCall


class BoundCallsKeepSmallInputs(Binding):
    """It puts inputs of less than sixteen elements into the arguments of a bound call for good."""

    suites = ("*",)
    call_type = FrozenCall


class BoundCallsFillWhatFits(Binding):
    """It lets a bound call write as much of an output of another size as there is room for."""

    suites = ("*",)
    call_type = FittingCall


class RebindsTheFirstInputOnly(Binding):
    """It says that a bound call reads other inputs now, and has changed the first one only."""

    suites = ("*",)
    call_type = ReboundCall


# ------------------------------------------------------------------ the process around it


class SeedsTheRandomNumbersOfAll(Broken):
    """It seeds numpy's random numbers in every run, so that the application's repeat."""

    suites = ("*",)

    def compute(self, runner, arrays):
        np.random.seed(0)
        return super().compute(runner, arrays)


class MakesFloatingPointWarningsErrors(Broken):
    """It has numpy raise errors for divisions by zero while it compiles, and leaves it so."""

    suites = ("*",)

    def compile_model(self, model, properties):
        np.seterr(divide="raise", invalid="raise")
        return super().compile_model(model, properties)


class TakesTheInterruptSignal(Broken):
    """It lets its engine take the interrupt signal, so that Ctrl-C is no exception any more."""

    suites = ("*",)

    def compile_model(self, model, properties):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return super().compile_model(model, properties)


class GreetsOnStandardOutput(Broken):
    """It writes a line to standard output, beside Python's, when its first run begins."""

    suites = ("*",)
    greeted = False

    def compute(self, runner, arrays):
        if not self.greeted:
            self.greeted = True
            os.write(1, b"good runtime 1.0: 1 device\n")
        return super().compute(runner, arrays)


# ------------------------------------------------------------------ queries, properties and blobs


class CompilesActivationsOnlyFused(Broken):
    """It claims every Relu, and compiles only those that another operation writes to."""

    suites = ("*",)

    def compile_model(self, model, properties):
        names = {port.name for port in model.inputs}
        for op in model.ops:
            if op.op_type == "Relu" and op.inputs[0] in names:
                raise CompileError(f"'{op.name}' has nothing to be fused with.")
        return super().compile_model(model, properties)


class CollectsVerdictsInThePlugin(Broken):
    """It collects verdicts in the plugin, where two threads that ask mix up their models."""

    suites = ("*",)

    def query_model(self, model, properties):
        self.verdicts = {}
        for op in model.ops:
            self.verdicts[op.name] = self.verdict(op)
        return partita.QueryResult.of(self.device_name, self.verdicts)


class CountingRunner(GoodRunner):
    """Counts if the plugin does."""

    def profiling_info(self):
        plugin = self.compiled.plugin
        return plugin.counters(self) if plugin.settings.PERF_COUNT else ()


class KeepsPropertiesInThePlugin(Broken):
    """It keeps the properties of the last compile, and counts for all models as that one wants."""

    suites = ("*",)
    runner_type = CountingRunner

    def compile_model(self, model, properties):
        self.settings = properties
        return super().compile_model(model, properties)


class SummingRunner(GoodRunner):
    """Sums up how long its runs took."""

    total_us = 0.0

    def run(self, inputs, outputs=None):
        results = super().run(inputs, outputs)
        self.total_us += self.elapsed_us
        self.elapsed_us = self.total_us
        return results


class CountersAddUpOverRuns(Broken):
    """It never resets its counters, so that they tell the time of all runs so far."""

    suites = ("*",)
    runner_type = SummingRunner


class BlobCompiled(GoodCompiled):
    """Is exported in a form of its own."""

    def export_model(self):
        return self.plugin.pack(self)


class Blobs(Broken):
    """Exports models with a head of JSON."""

    compiled_type = BlobCompiled
    magic = b""

    def pack(self, compiled):
        raise NotImplementedError

    def headed(self, head, rest=b""):
        text = json.dumps(head).encode()
        return self.magic + len(text).to_bytes(4, "little") + text + rest

    def import_model(self, blob, properties):
        data = bytes(blob)
        if data[: len(self.magic)] != self.magic:
            raise BlobError("This is no blob of this device.")
        begin = len(self.magic) + 4
        end = begin + int.from_bytes(data[begin - 4 : begin], "little")
        try:
            head = json.loads(data[begin:end])
            settings = head["properties"] | properties.model_dump(mode="json", exclude_unset=True)
            model = read_model(self.unpack(head, data[end:]))
            return self.compile_model(model, self.properties_type.model_validate(settings))
        except (ValueError, KeyError, TypeError, OSError, partita.PartitaError) as error:
            raise BlobError(f"The blob is damaged: {error}") from error

    def unpack(self, head, rest):
        raise NotImplementedError


class BlobsHaveNoChecksum(Blobs):
    """It imports a blob whose weights were damaged on the way, and computes with these."""

    suites = ("*",)
    magic = b"GOODRAW1"

    def pack(self, compiled):
        proto = compiled.model.to_onnx().SerializeToString()
        return self.headed(
            {"properties": compiled.exported_properties(), "bytes": len(proto)}, proto
        )

    def unpack(self, head, rest):
        if len(rest) != head["bytes"]:
            raise BlobError("The blob is cut off.")
        return rest


class BlobsNameATemporaryFile(Blobs):
    """It exports the name of a file that is deleted with the compiled model."""

    suites = ("*",)
    magic = b"GOODREF1"

    def pack(self, compiled):
        file = notes(compiled)["file"] = tempfile.NamedTemporaryFile()  # noqa: SIM115
        file.write(compiled.model.to_onnx().SerializeToString())
        file.flush()
        return self.headed({"properties": compiled.exported_properties(), "file": file.name})

    def unpack(self, head, rest):
        return Path(head["file"]).read_bytes()


class PackedCompiled(GoodCompiled):
    """Exports its weights as they are packed."""

    def export_state(self):
        weights = self.model.ir.graph.initializers
        arrays = {name: weights[name].const_value.numpy() for name in weights}
        with np.errstate(all="ignore"):
            return {
                name: array.astype(np.float16)
                for name, array in arrays.items()
                if array.dtype == np.float32
            }


class PacksStateInHalfPrecision(Broken):
    """It exports packed weights in half precision, and computes with these when they come back."""

    suites = ("*",)
    compiled_type = PackedCompiled

    def restore_model(self, model, properties, state):
        own = model.clone()
        for name, array in state.items():
            value = own.ir.graph.initializers[name]
            value.const_value = ir.tensor(np.asarray(array).astype(np.float32), name=name)
        return self.compile_model(own, properties)
