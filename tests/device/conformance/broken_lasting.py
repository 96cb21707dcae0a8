"""Devices with one fault each in blobs, failures, threads, questions, sequences, state and memory.

Each is a kind of fault that runtimes of real engines have had.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import logging
import mmap
import os
import tempfile
import threading
import time
import warnings
import zlib
from types import SimpleNamespace

import numpy as np
from broken_form import Broken
from broken_usage import kept_by_all, notes
from good_device import GoodCompiled, GoodRunner, zeros
from onnx import numpy_helper

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.runner import run_into
from partita.errors import BlobError, InferError, PartitaError
from partita.tensors.sequence_values import boxed, unboxed

# ------------------------------------------------------------------------------------------ blobs


class Packed(Broken):
    """A frame: weights are kept in the blob as arrays, and used when it is imported."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            weights = self.model.ir.graph.initializers.items()
            arrays = {n: w.const_value.numpy() for n, w in weights if w.const_value is not None}
            return self.plugin.pack({n: a for n, a in arrays.items() if a.dtype.kind in "fiub"})

    def pack(self, arrays):
        return arrays

    def unpack(self, state, model):
        return dict(state)

    def restore_model(self, model, properties, state):
        if not state:
            return self.compile_model(model, properties)
        own = threading.local() if not hasattr(self, "own") else self.own
        self.own, own.arrays = own, self.unpack(state, model)
        try:
            return self.compile_model(model, properties)
        finally:
            own.arrays = None

    def prepare(self, proto):
        arrays = getattr(getattr(self, "own", None), "arrays", None) or {}
        for weight in proto.graph.initializer:
            if weight.name in arrays:
                weight.CopyFrom(_tensor(arrays[weight.name], weight.name))
        return proto


def _tensor(array, name):
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


class RestoresTheFirstOfAName(Packed):
    """What was read back is kept by the model's name."""

    suites = ("blob/blobs_are_told*",)
    kept = None

    def unpack(self, state, model):
        self.kept = {} if self.kept is None else self.kept
        arrays = {name: array.copy() for name, array in state.items()}
        return self.kept.setdefault(model.name, arrays)


class RestoresOnce(Packed):
    """A blob's program is handed over to the device, once in a process."""

    suites = ("blob/blobs_are_told*",)
    used = None

    def unpack(self, state, model):
        self.used = set() if self.used is None else self.used
        key = b"".join(array.tobytes() for array in state.values())
        if key in self.used:
            return {name: np.zeros_like(array) for name, array in state.items()}
        self.used.add(key)
        return dict(state)


class OwnBlobs(Broken):
    """A frame: exports a head and the model."""

    class compiled_type(GoodCompiled):
        def export_model(self):
            settings = json.dumps(self.exported_properties()).encode()
            body = self.model.to_onnx().SerializeToString()
            return self.plugin.packed(settings, body)

    def packed(self, settings, body):

        head = len(settings).to_bytes(4, "little") + zlib.crc32(settings + body).to_bytes(
            4, "little"
        )
        return b"BRKN" + head + settings + body

    def parts(self, blob):

        blob = bytes(blob)
        count = int.from_bytes(blob[4:8], "little")
        settings, body = blob[12 : 12 + count], blob[12 + count :]
        if blob[:4] != b"BRKN" or zlib.crc32(settings + body) != int.from_bytes(
            blob[8:12], "little"
        ):
            raise BlobError("The blob is damaged.")
        return settings, body

    def import_model(self, blob, properties):
        settings, body = self.parts(blob)
        model = partita.Core().read_model(body)
        stored = {**json.loads(settings), **properties.model_dump(exclude_unset=True)}
        return self.compile_model(model, self.properties_type(**stored))


class ChecksumLeavesOutTheHead(OwnBlobs):
    """The head, with sizes and properties, is in no checksum."""

    suites = ("blob/damage_any*",)

    def packed(self, settings, body):

        head = len(settings).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        return b"BRKN" + head + settings + b" " * 4096 + body

    def parts(self, blob):

        blob = bytes(blob)
        count = int.from_bytes(blob[4:8], "little")
        settings, body = blob[12 : 12 + count], blob[12 + count + 4096 :]
        if zlib.crc32(body) != int.from_bytes(blob[8:12], "little") or not body:
            raise BlobError("The blob is damaged.")
        return settings, body


class ReadsBlobsLate(OwnBlobs):
    """The weights are read out of the caller's buffer when the first request is made."""

    suites = ("blob/blobs_are_not*",)

    class compiled_type(OwnBlobs.compiled_type):
        blob = None

        def create_runner(self):
            if self.blob is not None:
                self.plugin.parts(self.blob)
            return super().create_runner()

    def import_model(self, blob, properties):
        made = super().import_model(blob, properties)
        made.blob = blob
        return made


class ImportedModelsDoNotCount(OwnBlobs):
    """Counters are switched on by the compiler, which an import does not call."""

    suites = ("blob/imported*",)

    def import_model(self, blob, properties):
        made = super().import_model(blob, properties)
        made.silent = True
        return made

    def counters(self, runner):
        return () if hasattr(runner.compiled, "silent") else super().counters(runner)


class StoresDoublesAsSingles(Packed):
    """Weights of double precision are stored in single precision."""

    suites = ("blob/weights*",)

    def pack(self, arrays):
        return {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items()}

    def unpack(self, state, model):
        kinds = {n: w.dtype for n, w in model.ir.graph.initializers.items()}
        return {n: a.astype(kinds[n].numpy()) if n in kinds else a for n, a in state.items()}


class CachesByNames(Packed):
    """State is looked up by the names of values, in a store of the plugin's own."""

    suites = ("blob/the_cache_tells*",)
    programs = None

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        if properties.CACHE_DIR:
            programs = kept_by_all.setdefault("programs", {})
            key = tuple(port.name for port in (*model.inputs, *model.outputs))
            made.evaluator = programs.setdefault((properties.CACHE_DIR, key), made.evaluator)
        return made


# ----------------------------------------------------------------------- faults, threads, calls


class FailuresComeWithTheNextWait(Broken):
    """A failure on a thread of its own is noticed by whoever waits next."""

    suites = ("faults/failures_are*",)

    def compute(self, runner, arrays):
        failed = notes(runner.compiled).pop("failed", None)
        if failed is not None:
            raise failed
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            if threading.current_thread() is not threading.main_thread():
                notes(runner.compiled)["failed"] = error
            raise


class CountersOfFailuresRaise(Broken):
    """Counters of a run that failed were never read back, and asking for them raises."""

    suites = ("faults/failures_are*",)

    def compute(self, runner, arrays):
        notes(runner)["events"] = None
        results = super().compute(runner, arrays)
        notes(runner)["events"] = 1.0
        return results

    def counters(self, runner):
        return super().counters(runner) if notes(runner).get("events", 1) + 0 else ()


class LetsNumpyRaise(Broken):
    """It computes with numpy as the caller has it: overflows may be errors."""

    suites = ("faults/callers*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for array in results:
            if array.dtype == np.float32 and array.size:
                np.square(array, dtype=np.float32)  # to see whether it is large
        return results


class AFailureEndsTheQueue(Broken):
    """A failure puts the queue of the model into an error, for whatever runs at the time."""

    suites = ("threads/failures*",)

    def compute(self, runner, arrays):
        state = notes(runner.compiled)
        before = state.get("failures", 0)
        try:
            results = super().compute(runner, arrays)
        except InferError:
            state["failures"] = before + 1
            time.sleep(0.001)
            raise
        time.sleep(0.001)
        if state.get("failures", 0) != before:
            raise InferError("The queue is in an error.")
        return results


class MakesItsProgramWithTheFirstRequest(Broken):
    """The first request builds the program, and says so before it has ended."""

    suites = ("threads/requests_are*",)

    class compiled_type(GoodCompiled):
        built, ready = False, False

        def create_runner(self):
            if not self.built:
                self.built = True
                time.sleep(0.005)
                self.ready = True
            return super().create_runner()

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        ready = runner.compiled.ready
        return results if ready else [boxed(zeros(unboxed(array))) for array in results]


class BoundCallsMeet(Broken):
    """Bound calls of a model work in one scratch of the model's, not in what they are lent."""

    suites = ("threads/bound*",)

    class Call(BoundCall):
        def __init__(self, runner, inputs, outputs):
            self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

        def __call__(self):
            scratch = notes(self.runner.compiled)
            scratch["inputs"] = [partita.HostTensor(t.numpy().copy()) for t in self.inputs]
            time.sleep(0.001)
            run_into(self.runner, scratch["inputs"], self.outputs)

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return BoundCallsMeet.Call(self, inputs, outputs)


class RebindsAtWholeVectors(Broken):
    """Calls that are rebound load from addresses that are multiples of a vector, or just before."""

    suites = ("boundary/bound_calls_read_inputs*",)

    class Call(BoundCall):
        def __init__(self, runner, inputs, outputs):
            self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

        def rebind(self, inputs):
            self.inputs = [partita.HostTensor(self.loaded(t.numpy())) for t in inputs]
            return True

        def loaded(self, array):
            place = array.ctypes.data
            if not array.nbytes or not place % 16:
                return array
            data = ctypes.string_at(place & ~15, array.nbytes)
            return np.frombuffer(data, array.dtype).reshape(array.shape)

        def __call__(self):
            run_into(self.runner, self.inputs, self.outputs)

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return RebindsAtWholeVectors.Call(self, inputs, outputs)


class CompilesInOnePlace(Broken):
    """Compiling takes the tables of all models of the plugin for its own work."""

    suites = ("threads/models_come*",)
    compiling = 0

    def compile_model(self, model, properties):
        self.compiling += 1
        time.sleep(0.002)
        try:
            return super().compile_model(model, properties)
        finally:
            self.compiling -= 1

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        return [boxed(zeros(unboxed(a))) for a in results] if self.compiling else results


class ReadsTheModelLate(Broken):
    """Weights are read out of the model with the first request."""

    suites = ("compiled/edits_of_weights*",)

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.given, self.properties_given = model, properties

        def create_runner(self):
            if self.given is not None:
                try:
                    late = GoodCompiled(self.plugin, self.given, self.properties_given)
                    self.evaluator = late.evaluator
                except PartitaError:
                    pass
            return super().create_runner()


# -------------------------------------------------------------------------------------- questions


class DoesNotLookIntoBranches(Broken):
    """It takes every If, whatever its branches hold."""

    suites = ("query/bodies*",)

    def verdict(self, op):
        return None if op.op_type == "If" else super().verdict(op)


class CompilesMoreThanItTakes(Broken):
    """It asks only when it is queried, and refuses integers there that it compiles as well."""

    suites = ("query/refusals_hold*",)

    def query_model(self, model, properties):
        def told(op):
            value = op.node.inputs[0] if op.node.inputs else None
            if value is not None and value.dtype is not None and value.dtype.name == "INT32":
                return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "no int32")
            return self.verdict(op)

        return partita.QueryResult.of(self.device_name, {op.name: told(op) for op in model.ops})


class WantsAWholeNetwork(Broken):
    """It takes activations only where something comes before them."""

    suites = ("query/answers_hold*",)

    def verdict(self, op):
        first = op.node.inputs[0] if op.node.inputs else None
        late = op.op_type in ("Softmax", "Sigmoid", "Exp", "Not")
        if late and first is not None and first.producer() is None:
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "nothing comes before")
        return super().verdict(op)


# -------------------------------------------------------------------------- sequences and variables


class SequencesHaveOneShape(Broken):
    """Tensors of a sequence have the shape of the first one."""

    suites = ("request/sequences_hold_tensors*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for place, array in enumerate(results):
            value = unboxed(array)
            if isinstance(value, list) and value:
                shape = value[0].shape
                results[place] = boxed([np.resize(item, shape) for item in value])
        return results


class SequencesHoldTheInputs(Broken):
    """Tensors that come in go out with a sequence as they are."""

    suites = ("request/sequences_hold_tensors*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        came = [item for a in arrays if isinstance(unboxed(a), list) for item in unboxed(a)]
        for place, array in enumerate(results):
            value = unboxed(array)
            if isinstance(value, list):
                same = [next((c for c in came if np.array_equal(c, item)), item) for item in value]
                results[place] = boxed(same)
        return results


class AbsentOptionalsStayThere(Broken):
    """An optional that is absent is what it was when it was last there."""

    suites = ("request/optionals*",)

    def compute(self, runner, arrays):
        kept = notes(runner)
        taken = []
        for index, array in enumerate(arrays):
            if unboxed(array) is not None:
                kept[index] = array
            taken.append(kept.get(index, array))
        return super().compute(runner, taken)


class VariablesBelongToTheModel(Broken):
    """State lies in the memory of the model, which all its requests update."""

    suites = ("state/variables_are*",)

    class compiled_type(GoodCompiled):
        def in_place_outputs(self):
            read = {port.name: port for port in self.inputs}
            written = {port.name: port for port in self.outputs}
            return {written[v.written].index: read[v.read].index for v in self.model.variables}

        def allocate(self, port, shape):
            return notes(self).setdefault(port.index, super().allocate(port, shape))

    def compute(self, runner, arrays):
        return super().compute(runner, [array.copy() for array in arrays])


class VariablesThatAreSetAreForgotten(VariablesBelongToTheModel):
    """State that the application sets is overwritten by the device's own copy of it."""

    suites = ("state/variables_can*",)

    class compiled_type(VariablesBelongToTheModel.compiled_type):
        def allocate(self, port, shape):
            return GoodCompiled.allocate(self, port, shape)

    def compute(self, runner, arrays):
        pairs = runner.compiled.in_place_outputs()
        kept = notes(runner)
        given = [kept.get(i, array.copy()) for i, array in enumerate(arrays)]
        results = super().compute(runner, given)
        for made, source in pairs.items():
            kept[source] = results[made].copy()
        return results


# -------------------------------------------------------------------------- memory and the process


class KeepsAHistory(Broken):
    """The time of each run is kept for statistics, as long as the request lives."""

    suites = ("memory/nothing*",)

    def compute(self, runner, arrays):
        notes(runner).setdefault("history", []).append(SimpleNamespace(at=time.time()))
        return super().compute(runner, arrays)


class RegistersRequests(Broken):
    """Requests are entered into a table of the model, and never taken out of it."""

    suites = ("memory/nothing*",)

    class compiled_type(GoodCompiled):
        def create_runner(self):
            made = super().create_runner()
            notes(self).setdefault("requests", {})[len(notes(self)["requests"])] = object()
            return made


class RemembersErrors(Broken):
    """Texts of errors are kept for a report that nobody asks for."""

    suites = ("memory/nothing*",)

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError as error:
            notes(self).setdefault("errors", []).append(f"{time.time()}: {error}")
            raise


class LosesNativeRecords(Broken):
    """Each run takes a record of native memory and forgets it."""

    suites = ("memory/nothing*",)

    def compute(self, runner, arrays):
        malloc = ctypes.CDLL(None).malloc
        malloc.restype, malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        malloc(200)
        return super().compute(runner, arrays)


class LosesWhatFailedRunsUploaded(Broken):
    """Inputs of a run that fails stay uploaded."""

    suites = ("memory/failures*",)

    def compute(self, runner, arrays):
        uploaded = [array.copy() for array in arrays]
        try:
            return super().compute(runner, uploaded)
        except InferError:
            kept_by_all.setdefault("lost", []).append(uploaded)
            raise


class KeepsImportedStates(Packed):
    """What was read back stays in memory, in case it is asked for again."""

    suites = ("memory/imports*",)

    def unpack(self, state, model):
        arrays = {name: array.copy() for name, array in state.items()}
        kept_by_all.setdefault("restored", []).append(arrays)
        return arrays


class Setting(Broken):
    """A frame: sets something of the process in each compile."""

    suites = ("resources/the_process*",)

    def set(self):
        raise NotImplementedError

    def compile_model(self, model, properties):
        self.set()
        return super().compile_model(model, properties)


class SetsTheTemporaryFolder(Setting):
    """Temporary files go where its driver wants them."""

    def set(self):
        tempfile.tempdir = os.sep


class PrintsShortly(Setting):
    """numpy's arrays are printed with three digits, for its log."""

    def set(self):
        np.set_printoptions(precision=3)


class DisablesLogging(Setting):
    """Its engine is loud, so that all logging is off."""

    def set(self):
        logging.disable(logging.INFO)


class TunesTheCollector(Setting):
    """The collector shall come seldom."""

    def set(self):
        gc.set_threshold(50_000, 20, 20)


class SetsNativeVariables(Setting):
    """An engine's option is set in the environment beside Python's."""

    def set(self):
        ctypes.CDLL(None).setenv(b"BROKEN_ENGINE_THREADS", str(time.time()).encode(), 1)


class ShowsWarningsItsOwnWay(Setting):
    """Warnings go to its log."""

    def set(self):
        warnings.showwarning = lambda *args, **kwargs: None


class LeavesSettingsOfFailedCompiles(Broken):
    """What it sets while it compiles stays where the compile fails."""

    suites = ("resources/the_process*",)

    def compile_model(self, model, properties):
        before, builtins.round = builtins.round, lambda number, digits=None: number
        made = super().compile_model(model, properties)
        builtins.round = before
        return made


class LeavesSharedMemory(Broken):
    """Each request has a block of shared memory, which stays mapped."""

    suites = ("resources/nothing*",)

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)

            number = os.memfd_create("broken")
            os.truncate(number, 4096)
            kept_by_all.setdefault("maps", []).append(mmap.mmap(number, 4096))
            os.close(number)


class EndsWithAnError(Broken):
    """A request that ends gives back what it never took, which raises where nobody sees it."""

    suites = ("resources/nothing*",)

    class runner_type(GoodRunner):
        def __del__(self):
            raise InferError("The handle is not valid.")


class FailsOnItsThread(Broken):
    """A thread that tidies up after a run fails, after runs that failed."""

    suites = ("resources/nothing*",)

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError:
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
            raise


class TransfersThroughOneStage(Broken):
    """Transfers of all threads pass through one buffer, without a lock."""

    suites = ("threads/transfers*",)
    stage = None

    def transfer_to(self, tensor, device_id=""):
        self.stage = tensor.numpy()
        time.sleep(0.0005)
        return partita.HostTensor(self.stage.copy())


class SecondRequestsComputeInHalf(Broken):
    """Kernels of the second request are the quick ones, a little less exact."""

    suites = ("sharing/the_same*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        number = notes(runner).setdefault("number", len(notes(runner.compiled)))
        notes(runner.compiled)[number] = True
        return [
            a * np.float32(1 + 2e-5) if number and a.dtype == np.float32 else a for a in results
        ]


class BlobsLoseNumbers(OwnBlobs):
    """Properties that are numbers are not written to its blobs."""

    suites = ("blob/every_property*",)

    def packed(self, settings, body):
        stored = {n: v for n, v in json.loads(settings).items() if type(v) is not int}
        return super().packed(json.dumps(stored).encode(), body)


class ReplaysDoNotCount(Broken):
    """From the fourth run of a request on it replays a recording, which has no counters."""

    suites = ("properties/counters_come_of*",)

    def compute(self, runner, arrays):
        notes(runner)["runs"] = notes(runner).get("runs", 0) + 1
        return super().compute(runner, arrays)

    def counters(self, runner):
        return super().counters(runner) if notes(runner).get("runs", 0) < 4 else ()


class ResultsComeInTheOrderOfWaiting(Broken):
    """Runs that are under way at once hand each other's results over."""

    suites = ("async/runs_are*",)

    def compute(self, runner, arrays):
        state = notes(runner.compiled)
        with self.lock:
            state["under way"] = state.get("under way", 0) + 1
        time.sleep(0.001)
        results = super().compute(runner, arrays)
        with self.lock:
            state["under way"] -= 1
            last, state["last"] = state.get("last", results), results
        mixed = state["under way"] and [a.shape for a in last] == [a.shape for a in results]
        return last if mixed else results
