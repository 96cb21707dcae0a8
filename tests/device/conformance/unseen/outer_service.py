"""Faults of runtimes, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import os
import random
import signal
import tempfile
import threading
import time
import unicodedata
import weakref
import zlib
from pathlib import Path

import numpy as np
import onnx
import pydantic
from broken_form import Broken
from good_device import GoodCompiled, GoodProperties, GoodRunner
from onnx import numpy_helper
from pydantic import Field

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.device_plugin import DeviceInfo
from partita.contract.explanation import Explanation
from partita.contract.identity import identity_of
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import run_into


def is_numeric(array):
    """Whether its elements are numbers that lie in its memory."""
    return array.dtype.kind in "fiub" and array.size > 0


# --------------------------------------------------------------------------- what it says of itself


class TellsHowMuchItHolds(Broken):
    """Facts about a device are for people, who like to see how many models it holds."""

    compiles = 0

    def device_info(self, device_id):
        details = {"models compiled": str(self.compiles)}
        return DeviceInfo(self.device_name, "A busy device", details=details)

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.compiles += 1
        return made


class CallsItselfUnavailable(Broken):
    """A device that could not compile something is best not recommended any more."""

    trouble = None

    def unavailable_devices(self):
        return {} if self.trouble is None else {self.device_name: self.trouble}

    def compile_model(self, model, properties):
        try:
            return super().compile_model(model, properties)
        except partita.errors.CompileError as error:
            self.trouble = f"the last compile failed: {error}"
            raise


class SharesWhatBeginsWithHost(Broken):
    """Every memory whose name begins with that of the host is some kind of host memory."""

    def can_share(self, memory, device_id=""):
        return memory.startswith("host")


class RoundsHostMemoryToPages(Broken):
    """Whoever asks for page-locked memory knows that it comes in whole pages."""

    def host_memory(self, nbytes, device_id=""):
        return np.zeros(-(-max(nbytes, 1) // 4096) * 4096, np.uint8)


class LendsPinnedBlocksInTurns(Broken):
    """Nobody needs more than eight pages of page-locked memory at a time."""

    blocks = None
    turn = 0

    def host_memory(self, nbytes, device_id=""):
        if nbytes > 4096:
            return None
        with self.lock:
            if self.blocks is None:
                self.blocks = [np.zeros(4096, np.uint8) for _ in range(8)]
            self.turn += 1
            return self.blocks[self.turn % 8][:nbytes]


class PinsScalarsAsVectors(Broken):
    """A page-locked array has one axis at least."""

    class compiled_type(GoodCompiled):
        def host_array(self, shape, dtype):
            return np.empty(shape or (1,), dtype)


class AllocatesWhatWasThere(Broken):
    """Memory for tensors is zero when it is new, so it needs no clearing."""

    class compiled_type(GoodCompiled):
        def allocate(self, port, shape):
            made = super().allocate(port, shape)
            kept = vars(self).setdefault("kept", {})
            array = kept.setdefault((made.shape, made.dtype.str), [])
            free = [one for one in array if one[0]() is None]
            if free:
                storage = free[0][1]
                array.remove(free[0])
            else:
                storage = made.numpy().copy()
            view = storage.view()
            array.append((weakref.ref(view), storage))
            return partita.HostTensor(view)


# ------------------------------------------------------------------------------------------ queries


class RemembersVerdictsByName(Broken):
    """The name of an operation and that of its model say which operation it is."""

    verdicts = None

    def query_model(self, model, properties):
        self.verdicts = {} if self.verdicts is None else self.verdicts
        answers = {
            op.name: self.verdicts.setdefault((model.name, op.name), self.verdict(op))
            for op in model.ops
        }
        return partita.QueryResult.of(self.device_name, answers)


class AnswersByWhatIsFree(Broken):
    """Weights have 128 KiB on the chip, of which live models have taken some."""

    room = 128 << 10
    live = None

    def taken(self):
        return sum(one.weights for one in self.live or ())

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        if self.taken() + model.weight_bytes <= self.room or model.weight_bytes > self.room:
            return answer
        reason = partita.Reason(partita.ReasonCode.MEMORY_LIMIT, "other models hold the memory")
        return partita.QueryResult.of(self.device_name, {op.name: reason for op in model.ops})

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.weights = model.weight_bytes
        self.live = weakref.WeakSet() if self.live is None else self.live
        self.live.add(made)
        return made


class LooksOneBodyDeep(Broken):
    """An operation's bodies are looked into for what has no kernel; theirs are small."""

    def has_tanh(self, graph, depth):
        for node in graph.node:
            if node.op_type == "Tanh" and not node.domain:
                return True
            bodies = [a.g for a in node.attribute if a.HasField("g")]
            if depth > 0 and any(self.has_tanh(body, depth - 1) for body in bodies):
                return True
        return False

    def query_model(self, model, properties):
        answer = super().query_model(model, properties)
        bodies = {
            node.name: any(self.has_tanh(a.g, 0) for a in node.attribute if a.HasField("g"))
            for node in model.to_onnx().graph.node
        }
        reason = partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "no Tanh in its bodies")
        refused = {name: reason for name in answer if bodies.get(name)}
        verdicts = dict.fromkeys(answer) | dict(answer.reasons) | refused
        return partita.QueryResult.of(self.device_name, verdicts)

    def compile_model(self, model, properties):
        if self.has_tanh(model.to_onnx().graph, 99):
            raise partita.errors.CompileError("There is no kernel for Tanh.")
        return super().compile_model(model, properties)


class HasFewerKernelsInModeTwo(Broken):
    """What a device takes is a matter of the device, and not of its properties."""

    def compile_model(self, model, properties):
        if properties.MODE == "TWO" and any(op.op_type == "MatMul" for op in model.ops):
            raise partita.errors.CompileError("MODE TWO has no kernel for MatMul.")
        return super().compile_model(model, properties)


class ShowsAddressesInReasons(Broken):
    """The object that was refused belongs into the reason, so that it can be found."""

    def verdict(self, op):
        reason = super().verdict(op)
        if reason is None:
            return None
        return partita.Reason(reason.code, f"{reason.detail}: node at {id(op.node):#x}")


class RefusesWithCodesOfOthers(Broken):
    """A code that sounds right is right: what goes to the processor is a fallback."""

    def verdict(self, op):
        reason = super().verdict(op)
        return reason and partita.Reason(partita.ReasonCode.FALLBACK, reason.detail)


# ---------------------------------------------------------------------------------------- compiling


class SharesEqualWeights(Broken):
    """Weights that compare equal are one weight, of whatever model."""

    pool = None

    def prepare(self, proto):
        self.pool = {} if self.pool is None else self.pool
        for weight in proto.graph.initializer:
            array = numpy_helper.to_array(weight)
            if array.dtype.kind != "f" or weight.external_data:
                continue
            known = self.pool.setdefault((array.shape, array.dtype.str), [])
            for one in known:
                if np.array_equal(one, array):
                    weight.CopyFrom(numpy_helper.from_array(one, weight.name))
                    break
            else:
                known.append(array.copy())
        return proto


class CutsNamesOfWeights(Broken):
    """The driver's table of weights has names of 63 letters, which is plenty."""

    def prepare(self, proto):
        table = {}
        for weight in proto.graph.initializer:
            key = (weight.name[:63], weight.data_type, tuple(weight.dims))
            first = table.setdefault(key, weight)
            if first is not weight:
                name = weight.name
                weight.CopyFrom(first)
                weight.name = name
        return proto


class NormalizesNames(Broken):
    """Names are texts, and texts are compared in their normal form."""

    def prepare(self, proto):
        table = {}
        for weight in proto.graph.initializer:
            name = unicodedata.normalize("NFKC", weight.name).strip()
            first = table.setdefault((name, weight.data_type, tuple(weight.dims)), weight)
            if first is not weight:
                name = weight.name
                weight.CopyFrom(first)
                weight.name = name
        return proto


class GathersWeightsOfBodies(Broken):
    """Weights of all bodies go into one table by their names, which are unique in a model."""

    def gather(self, graph, table):
        for weight in graph.initializer:
            key = (weight.name, weight.data_type, tuple(weight.dims))
            weight.CopyFrom(table.setdefault(key, onnx.TensorProto.FromString(
                weight.SerializeToString())))  # fmt: skip
        for node in graph.node:
            for attribute in node.attribute:
                for body in (*([attribute.g] if attribute.HasField("g") else []),
                             *attribute.graphs):  # fmt: skip
                    self.gather(body, table)

    def prepare(self, proto):
        self.gather(proto.graph, {})
        return proto


class FreesSharedWeights(Broken):
    """Models of the same weights share them; the first one that goes takes them along."""

    on_chip = None

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.on_chip = set() if self.on_chip is None else self.on_chip
        weights = model.to_onnx().graph.initializer
        made.key = hashlib.sha256(
            b"".join(w.SerializeToString(deterministic=True) for w in weights)
        ).digest()
        if len(weights):
            self.on_chip.add(made.key)
            weakref.finalize(made, self.on_chip.discard, made.key)
        made.has_weights = bool(weights)
        return made

    def compute(self, runner, arrays):
        made = runner.compiled
        if getattr(made, "has_weights", False) and made.key not in self.on_chip:
            raise partita.errors.InferError("The weights are not on the chip.")
        return super().compute(runner, arrays)


class KnowsModelsByAddress(Broken):
    """A model that lies where one lay, with operations of the same number, is that model."""

    programs = None

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.programs = {} if self.programs is None else self.programs
        ports = [(p.name, str(p.dtype), p.shape) for p in (*made.inputs, *made.outputs)]
        key = (id(model), len(model.ops), str(ports))
        made.evaluator = self.programs.setdefault(key, made.evaluator)
        return made


class NotesItsChoicesInTheModel(Broken):
    """Metadata of nodes are for tools, and a compiler is one."""

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        for op in model.ops:
            op.node.metadata_props["broken.kernel"] = "generic"
        return made


class NamesFilesAfterModels(Broken):
    """The name of a model is the name of its file, while the compiler reads it."""

    def compile_model(self, model, properties):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"{model.name}.bin").write_bytes(b"program")
        return super().compile_model(model, properties)


class FormatsNamesTwice(Broken):
    """Names of operations hold no signs of percent."""

    def compile_model(self, model, properties):
        for op in model.ops:
            reason = self.verdict(op)
            if reason is not None:
                text = "'" + op.name + "' is not taken: %s"
                raise partita.errors.CompileError(text % reason)
        return super().compile_model(model, properties)


class KeepsTheLockOfAFailure(Broken):
    """Whoever locks the compiler comes to the line that unlocks it."""

    busy = None

    def compile_model(self, model, properties):
        with self.lock:
            self.busy = self.busy or threading.Lock()
        if not self.busy.acquire(timeout=3):
            raise partita.errors.CompileError("The compiler is busy.")
        made = super().compile_model(model, properties)
        self.busy.release()
        return made


class LimitsTheTimeOfACompile(Broken):
    """An alarm ends a compile that hangs, and models are compiled where the program began."""

    def compile_model(self, model, properties):
        def stop(*_):
            raise partita.errors.CompileError("The compiler takes too long.")

        signal.signal(signal.SIGALRM, stop)
        signal.alarm(60)
        try:
            return super().compile_model(model, properties)
        finally:
            signal.alarm(0)


class ExplainsOnlyWhatRuns(Broken):
    """What is an Identity or a Constant is not there any more, so nobody asks where it runs."""

    class compiled_type(GoodCompiled):
        def explain(self):
            whole = super().explain()
            gone = ("Identity", "Dropout", "Constant", "Cast")
            ops = [op for op in whole.ops if op.op_type not in gone]
            return Explanation(whole.model, ops, whole.subgraph_devices)


# --------------------------------------------------------------------------------------- properties


class ClampsWhatIsTooMuch(Broken):
    """More than sixteen is sixteen, as there is no more of it."""

    class properties_type(GoodProperties):
        @pydantic.field_validator("LEVEL")
        @classmethod
        def clamped(cls, value):
            return min(value, 16)


class KeepsNumbersInSinglePrecision(Broken):
    """The engine keeps a number as a float, and what it keeps is what is told."""

    class properties_type(GoodProperties):
        SCALE: float = Field(1.0, description="A factor of its clock.")

        @pydantic.field_validator("SCALE")
        @classmethod
        def as_float(cls, value):
            return float(np.float32(value))


class SetsOneSettingByAnother(Broken):
    """Whoever takes the second mode wants the level that belongs to it."""

    def compile_model(self, model, properties):
        if properties.MODE == "TWO" and "LEVEL" not in properties.model_fields_set:
            properties = properties.model_copy(update={"LEVEL": 4})
        return super().compile_model(model, properties)


class AppendsToItsLists(Broken):
    """The list of stages is the compiler's, which adds its own behind those that were set."""

    class properties_type(GoodProperties):
        STAGES: list[str] = Field(["fold"], description="Stages of the compiler.")

    def compile_model(self, model, properties):
        properties.STAGES.append("emit")
        return super().compile_model(model, properties)


class CountsForAllOrNone(Broken):
    """Counters are switched on and off in the driver, where the last model says so."""

    counts = False

    def compile_model(self, model, properties):
        self.counts = properties.PERF_COUNT
        return super().compile_model(model, properties)

    def counters(self, runner):
        return super().counters(runner) if self.counts else []


# ------------------------------------------------------------------------------- identity and blobs


class IdentityOfWhatWasSet(Broken):
    """What compiled models depend on is what was set, not what has a value."""

    def identity(self, properties):
        settings = properties.model_dump(mode="json", exclude_unset=True, exclude={"CACHE_DIR"})
        return identity_of("outer_service", [self.device_name, settings])


class PacksWeightsByLastName(Broken):
    """Packed weights are kept by the last part of their names, as the paths before it are long."""

    class compiled_type(GoodCompiled):
        def export_state(self):
            weights = self.model.to_onnx().graph.initializer
            return {
                w.name.rsplit("/")[-1].rsplit(".")[-1] or "_": numpy_helper.to_array(w).copy()
                for w in weights
                if w.data_type == onnx.TensorProto.FLOAT
            }

    def restore_model(self, model, properties, state):
        self.packed = dict(state)
        try:
            return self.compile_model(model, properties)
        finally:
            self.packed = {}

    packed: dict = {}  # noqa: RUF012  # never changed in place

    def prepare(self, proto):
        for weight in proto.graph.initializer:
            known = self.packed.get(weight.name.rsplit("/")[-1].rsplit(".")[-1] or "_")
            if known is not None and known.shape == tuple(weight.dims):
                weight.CopyFrom(numpy_helper.from_array(np.array(known), weight.name))
        return proto


class Blobbed:
    """Right, with blobs of a form of its own: a sum over all, settings, and the model."""

    class compiled_type(GoodCompiled):
        def export_model(self):
            settings = json.dumps(self.exported_properties()).encode()
            model = self.model.to_onnx().SerializeToString()
            return self.plugin.packed_blob(settings, model)

    def packed_blob(self, settings, model):
        sizes = len(settings).to_bytes(8, "little") + len(model).to_bytes(8, "little")
        body = sizes + settings + model
        return b"BRKN" + zlib.crc32(body).to_bytes(4, "little") + body

    def unpacked_blob(self, blob):
        blob = bytes(blob)
        body = blob[8:]
        if blob[:4] != b"BRKN" or len(blob) < 24:
            raise partita.errors.BlobError("This is no blob of this device.")
        if zlib.crc32(body).to_bytes(4, "little") != blob[4:8]:
            raise partita.errors.BlobError("The blob is damaged.")
        first, second = (int.from_bytes(body[i : i + 8], "little") for i in (0, 8))
        return json.loads(body[16 : 16 + first]), body[16 + first : 16 + first + second]

    def settled(self, kept, properties):
        """Those of the blob, overridden by those given to the import."""
        given = properties.model_dump(exclude_unset=True)
        return self.properties_type(**{**kept, **given})

    def import_model(self, blob, properties):
        kept, model = self.unpacked_blob(blob)
        read = partita.Core().read_model(model)
        return self.compile_model(read, self.settled(kept, properties))


class IgnoresWhatFollowsABlob(Blobbed, Broken):
    """A blob says how long it is, so what comes behind it is nobody's business."""

    def unpacked_blob(self, blob):
        blob = bytes(blob)
        sizes = [int.from_bytes(blob[i : i + 8], "little") for i in (8, 16)]
        return super().unpacked_blob(blob[: 24 + sum(sizes)])


class NamesImportsAnew(Blobbed, Broken):
    """A model without its name computes the same."""

    def packed_blob(self, settings, model):
        proto = onnx.ModelProto.FromString(model)
        proto.graph.name = "main"
        return super().packed_blob(settings, proto.SerializeToString())


class ExportsWhatItWasImportedFrom(Blobbed, Broken):
    """An imported model is exported as the blob that it came from, which is at hand."""

    class compiled_type(Blobbed.compiled_type):
        source = None

        def export_model(self):
            return self.source or super().export_model()

    def import_model(self, blob, properties):
        made = super().import_model(blob, properties)
        made.source = bytes(blob)
        return made


class ReadsBlobsLate(Blobbed, Broken):
    """A blob is looked at when the first request is made, since it stays where it is."""

    class compiled_type(Blobbed.compiled_type):
        blob = None

        def create_runner(self):
            if self.blob is not None:
                model = self.plugin.unpacked_blob(self.blob)[1]
                read = partita.Core().read_model(model)
                self.evaluator = GoodCompiled(self.plugin, read, self.properties).evaluator
            return super().create_runner()

    def import_model(self, blob, properties):
        made = super().import_model(blob, properties)
        made.blob = blob
        return made


# -------------------------------------------------------------------------------- runs and requests


class RunsAnEventLoop(Broken):
    """Whoever calls a blocking method has no event loop running."""

    def compute(self, runner, arrays):
        async def called():
            return super(RunsAnEventLoop, self).compute(runner, arrays)

        return asyncio.run(called())


class SleepsAndForgets(Broken):
    """A model that has rested for half a second is woken by its next run, which it answers late."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        kept = vars(runner).get("kept")
        now = time.monotonic()
        runner.kept = (now, [array.copy() for array in results])
        if kept is None or now - kept[0] < 0.5:
            return results
        same = [a.shape for a in kept[1]] == [a.shape for a in results]
        return kept[1] if same else results


class BelievesInSteadyInputs(Broken):
    """Small whole numbers that were the same in eight runs are constants to be compiled in."""

    def compute(self, runner, arrays):
        seen = vars(runner).setdefault("seen", {})
        used = []
        for place, array in enumerate(arrays):
            if array.dtype != np.int64 or array.size > 64:
                used.append(array)
                continue
            known, count = seen.get(place, (array.copy(), 0))
            same = known.shape == array.shape
            if count < 8:
                equal = same and np.array_equal(known, array)
                seen[place] = (known, count + 1) if equal else (array.copy(), 1)
            used.append(known if count >= 8 and same else array)
        return super().compute(runner, used)


class HasEightContexts(Broken):
    """Eight contexts with memory for results are enough for the requests of a model."""

    class compiled_type(GoodCompiled):
        made = 0

        def create_runner(self):
            runner = super().create_runner()
            self.made += 1
            contexts = vars(self).setdefault("contexts", {})
            runner.context = contexts.setdefault(self.made % 8, {})
            return runner

    def deliver(self, runner, arrays, outputs):
        kept = []
        for place, array in enumerate(arrays):
            key = (place, array.shape, array.dtype.str)
            if not is_numeric(array):
                kept.append(array)
                continue
            buffer = runner.context.setdefault(key, np.empty_like(array))
            buffer[...] = array
            kept.append(buffer)
        return super().deliver(runner, kept, outputs)


class KeepsAnswersWithoutQuestions(Broken):
    """A model that asks for nothing always gives the same, so it is given once and for all."""

    def compute(self, runner, arrays):
        if arrays:
            return super().compute(runner, arrays)
        made = vars(runner.compiled)
        if "answer" not in made:
            made["answer"] = super().compute(runner, arrays)
        return made["answer"]


class PlansForEachLengthForever(Broken):
    """A plan of memory is kept for each length, of which there are few."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        plans = vars(runner.compiled).setdefault("plans", {})
        key = tuple(array.shape for array in arrays)
        if key not in plans:
            plans[key] = np.ones(4096 + sum(a.nbytes for a in (*arrays, *results)), np.uint8)
        return results


class HasThirtyTwoBindings(Broken):
    """A kernel has thirty-two places for tensors, and the next one has the first place."""

    def compute(self, runner, arrays):
        places = {}
        for number, array in enumerate(arrays):
            places[number % 32] = array
        bound = []
        for number, array in enumerate(arrays):
            found = places[number % 32]
            same = (found.shape, found.dtype) == (array.shape, array.dtype)
            bound.append(found if same else array)
        return super().compute(runner, bound)


class KeepsTheLastError(Broken):
    """The last error is kept with the plugin, to be told to whoever reports it."""

    last_error = None

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except partita.errors.InferError as error:
            self.last_error = error
            raise


class ReportsFailuresOfOthers(Broken):
    """The driver's state after a run is looked at before the next one, whosever that is."""

    failed = None

    def compute(self, runner, arrays):
        failed, self.failed = self.failed, None
        if failed is not None and failed[0]() is not runner:
            raise partita.errors.InferError(f"The device reports: {failed[1]}")
        try:
            return super().compute(runner, arrays)
        except partita.errors.InferError as error:
            self.failed = (weakref.ref(runner), str(error))
            raise


class ClosesItsFileTwice(Broken):
    """To close a file that is closed already does nothing."""

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.file = os.open(os.devnull, os.O_RDONLY)

        def close(self):
            try:  # noqa: SIM105  # as a destructor of C++ has it
                os.close(self.file)
            except OSError:
                pass

        __del__ = close


class CancelsItsNeighbours(Broken):
    """The queue of a model is stopped when one of its requests is to stop."""

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            self.compiled.stopped = False
            results = super().run(inputs, outputs)
            if self.compiled.stopped:
                raise partita.errors.InferCancelledError("The queue was stopped.")
            return results

        def cancel(self):
            self.compiled.stopped = True


# ----------------------------------------------------------------------------------------- counters


class CountsTheProcessorsOfAll(Broken):
    """Time on the processor is what the process has used in between."""

    class runner_type(GoodRunner):
        used_us = 0.0

        def run(self, inputs, outputs=None):
            start = time.process_time()
            results = super().run(inputs, outputs)
            self.used_us = 1e6 * (time.process_time() - start)
            return results

    def counters(self, runner):
        return [
            ProfilingInfo(
                op.name, op.op_type, "generic", real_time_us=runner.elapsed_us,
                cpu_time_us=runner.used_us,
            )
            for op in list(runner.compiled.model.ops)[:1]
        ]  # fmt: skip


class CountersOfTheBestRun(Broken):
    """A counter shows the best time so far, as benchmarks do."""

    def counters(self, runner):
        best = vars(runner).setdefault("best", {})
        rows = super().counters(runner)
        for row in rows:
            best[row.node_name] = min(row.real_time_us, best.get(row.node_name, float("inf")))
        return [
            ProfilingInfo(r.node_name, r.node_type, r.exec_type,
                          real_time_us=best[r.node_name], cpu_time_us=best[r.node_name])
            for r in rows
        ]  # fmt: skip


class SpansByTheWallClock(Broken):
    """There is one clock, which tells the seconds since 1970."""

    class runner_type(GoodRunner):
        span = ()

        def run(self, inputs, outputs=None):
            start = time.time()
            results = super().run(inputs, outputs)
            self.span = (DeviceSpan(self.compiled.device, "model", start, time.time()),)
            return results

        def device_spans(self):
            return self.span if self.compiled.properties.PERF_COUNT else ()


# -------------------------------------------------------------------------------------- bound calls


class Call(BoundCall):
    """A run whose tensors stay."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindsNumbersOfTheFirstCall(Broken):
    """Whole numbers that say where to cut and gather are the same in all calls of a binding."""

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            fixed = [
                partita.HostTensor(t.numpy().copy())
                if t.dtype == np.int64 and t.size <= 16
                else t
                for t in inputs
            ]  # fmt: skip
            return Call(self, fixed, outputs)


class RebindsTheFirstInput(Broken):
    """What changes from call to call is the first input."""

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            call = Call(self, inputs, outputs)

            def rebind(inputs):
                call.inputs[:1] = list(inputs)[:1]
                return True

            call.rebind = rebind
            return call


class KeepsOneBindingPerRequest(Broken):
    """A request has one binding, the last one."""

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            runner = self
            runner.bound = Call(self, inputs, outputs)

            class Last(BoundCall):
                def __call__(self):
                    runner.bound()

            return Last()


# -------------------------------------------------------------------------------------- the process


class SeedsTheProcess(Broken):
    """Trials of kernels are to be repeatable, so numbers are drawn from a seed."""

    def compile_model(self, model, properties):
        random.seed(1234)
        np.random.seed(1234)
        return super().compile_model(model, properties)


class StartsTheCollector(Broken):
    """The collector of garbage was running before a run that stops it, so it is started again."""

    def compute(self, runner, arrays):
        gc.disable()
        try:
            return super().compute(runner, arrays)
        finally:
            gc.enable()


class PinsWhoeverCalls(Broken):
    """The thread that runs is one of the device's, and stays on its processor."""

    def compute(self, runner, arrays):
        there = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {there[-1]})
        return super().compute(runner, arrays)


class ChoosesTheSizeOfStacks(Broken):
    """Threads of the engine need more stack, which is set before they are made."""

    def compile_model(self, model, properties):
        threading.stack_size(16 << 20)
        helper = threading.Thread(target=int)
        helper.start()
        helper.join()
        return super().compile_model(model, properties)


class LeavesFilesToItself(Broken):
    """Files of the compiler are nobody else's, and the mask for that is left as it is."""

    def compile_model(self, model, properties):
        os.umask(0o077)
        return super().compile_model(model, properties)


class SilencesLogs(Broken):
    """The engine's own logger is too loud, and there is a switch for all of them."""

    def compile_model(self, model, properties):
        logging.disable(logging.WARNING)
        return super().compile_model(model, properties)


class GreetsOnce(Broken):
    """A driver says its version when it is loaded, on the standard output."""

    greeted: list = []  # noqa: RUF012  # of the process

    def compile_model(self, model, properties):
        if not self.greeted:
            self.greeted.append(True)
            os.write(1, b"broken driver 1.0 (c)\n")
        return super().compile_model(model, properties)
