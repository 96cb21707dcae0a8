"""Devices with one fault each in what lasts longer than a run: buffers, caches, records, settings.

Each is a kind of fault that runtimes of real engines have had; suites ``turns``, ``given``,
``members`` and their neighbours ask for it.
"""

from __future__ import annotations

import time

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner, zeros

import partita
from partita.contract.execution import ExecutedStep, Execution
from partita.contract.profiling import DeviceSpan
from partita.tensors.sequence_values import boxed, unboxed

kept_by_all: dict[str, object] = {}
"""What faults keep in the process, whichever device it is of."""


def notes(owner):
    """What a fault keeps with a request, a compiled model or a plugin."""
    return vars(owner).setdefault("notes_of_fault", {})


def is_numeric(array):
    """Whether its elements are numbers that lie in its memory."""
    return array.dtype.kind in "fiub" and array.size > 0


# ------------------------------------------------------------------------------------------ turns


class SeesChangesOfSums(Broken):
    """An input that lies where it lay is uploaded again if the sum of its elements has changed."""

    suites = ("turns/one_element*",)

    def compute(self, runner, arrays):
        seen = []
        for index, array in enumerate(arrays):
            if not is_numeric(array):
                seen.append(array)
                continue
            key = (array.ctypes.data, array.shape, round(float(np.sum(array, dtype=float)), 6))
            known = notes(runner).get(index)
            if known is None or known[0] != key:
                notes(runner)[index] = known = (key, array.copy())
            seen.append(known[1])
        return super().compute(runner, seen)


class SeesChangesInEveryOtherElement(Broken):
    """An input that lies where it lay is uploaded again if every other element says so."""

    suites = ("turns/one_element*",)

    def compute(self, runner, arrays):
        seen = []
        for index, array in enumerate(arrays):
            key = (array.ctypes.data, array.shape, array.reshape(-1)[::2].tobytes())
            known = notes(runner).get(index)
            if known is None or known[0] != key:
                notes(runner)[index] = known = (key, array.copy())
            seen.append(known[1])
        return super().compute(runner, seen)


class KnowsResultsByBytes(Broken):
    """Answers are kept by the bytes of the inputs, whatever shape these have."""

    suites = ("turns/equal_bytes_in*",)

    def compute(self, runner, arrays):
        key = b"|".join(array.tobytes() for array in arrays if is_numeric(array))
        known = notes(runner).get("known")
        if known is None or known[0] != key:
            notes(runner)["known"] = known = (key, super().compute(runner, arrays))
        return [array.copy() for array in known[1]]


class KnowsUploadsByBytes(Broken):
    """Uploads of all models are kept by their bytes and shapes, whatever type these have."""

    suites = ("turns/equal_bytes_of*",)
    uploads = None

    def compute(self, runner, arrays):
        self.uploads = {} if self.uploads is None or len(self.uploads) > 50 else self.uploads
        seen = []
        for array in arrays:
            if not is_numeric(array):
                seen.append(array)
                continue
            kept = self.uploads.setdefault(array.tobytes(), array.copy())
            wrong = kept.dtype != array.dtype
            seen.append(np.resize(kept, array.shape).astype(array.dtype) if wrong else array)
        return super().compute(runner, seen)


class FindsPlacesByTensor(Broken):
    """A tensor belongs to the input that it was first given for."""

    suites = ("turns/inputs_may_change*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            places = notes(self)
            for place, tensor in enumerate(inputs):
                places.setdefault(id(tensor), (place, tensor))
            ordered = sorted(inputs, key=lambda tensor: places[id(tensor)][0])
            same = [t.shape for t in ordered] == [t.shape for t in inputs]
            return super().run(ordered if same else inputs, outputs)


class PlansInTheModel(Broken):
    """The plan of a shape is the model's; a request only notices when its own shape changes."""

    suites = ("turns/requests_of*",)

    def compute(self, runner, arrays):
        shapes = [array.shape for array in arrays]
        plan = notes(runner.compiled)
        if notes(runner).get("shapes") != shapes:
            notes(runner)["shapes"] = plan["shapes"] = shapes
        if plan["shapes"] != shapes and all(map(is_numeric, arrays)):
            arrays = [np.resize(a[: s[0]], a.shape) if a.ndim and s else a
                      for a, s in zip(arrays, plan["shapes"], strict=True)]  # fmt: skip
        return super().compute(runner, arrays)


class OutputsLieInTheModel(Broken):
    """Outputs of all requests lie in one buffer of the model, of the largest size so far."""

    suites = ("turns/requests_of*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        placed = []
        for index, array in enumerate(arrays):
            if not is_numeric(array):
                placed.append(array)
                continue
            buffer = notes(runner.compiled).get((index, array.dtype))
            if buffer is None or buffer.size < array.size:
                buffer = np.empty(array.size, array.dtype)
                notes(runner.compiled)[index, array.dtype] = buffer
            view = buffer[: array.size].reshape(array.shape)
            view[...] = array
            placed.append(view)
        return super().deliver(runner, placed, None)


class KeepsTheFirstRank(Broken):
    """Results have as many dimensions as those of the first run."""

    suites = ("turns/ranks*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        ranks = notes(runner).setdefault("ranks", [array.ndim for array in results])
        return [
            array.reshape(array.shape + (1,) * (rank - array.ndim)) if rank > array.ndim else array
            for array, rank in zip(results, ranks, strict=True)
        ]


class FindsProgramsByAddress(Broken):
    """Programs are found by where the model lay, which may be another one by now."""

    suites = ("turns/models_come*",)
    programs = None

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        self.programs = {} if self.programs is None else self.programs
        place = (id(made) >> 12) % 2  # memory is given out anew in few places
        form = (place, len(model.ops), tuple(str(port) for port in model.inputs))
        made.evaluator = self.programs.setdefault(form, made.evaluator)
        return made


class CountsRunsInABytes(Broken):
    """Runs are counted in eight bits, and 0 means that there was none yet."""

    suites = ("turns/hundreds*",)

    def compute(self, runner, arrays):
        runs = notes(runner)["runs"] = (notes(runner).get("runs", 0) + 1) % 256
        results = super().compute(runner, arrays)
        return [boxed(zeros(unboxed(array))) for array in results] if runs == 0 else results


class ReturnsMemoryToItsPool(Broken):
    """What a request has lent out as results goes back to the pool when it ends."""

    suites = ("turns/results_outlive*",)
    pool = None

    class runner_type(GoodRunner):
        def __del__(self):
            self.compiled.plugin.pool.extend(notes(self).get("lent", ()))

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            return super().deliver(runner, arrays, outputs)
        self.pool = [] if self.pool is None else self.pool
        kept_by_all["pool"] = self.pool = kept_by_all.setdefault("pool", self.pool)
        placed = []
        for array in arrays:
            fitting = [i for i, one in enumerate(self.pool)
                       if (one.shape, one.dtype) == (array.shape, array.dtype)]  # fmt: skip
            place = self.pool.pop(fitting[0]) if fitting else np.empty_like(array)
            place[...] = array
            placed.append(place)
        notes(runner)["lent"] = placed
        return super().deliver(runner, placed, None)


class ConsumesTheModel(Broken):
    """Weights are moved out of the model when it is compiled."""

    suites = ("turns/one_model*",)

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        if getattr(self, "consumed", None) is model:
            made.evaluator = None
        self.consumed = model
        return made


# ------------------------------------------------------------------------------------------ given


class GivenTruthsAreBytes(Broken):
    """Outputs of bool that are given are filled with all bits set, as its hardware has truth."""

    suites = ("given/outputs_of*",)

    def deliver(self, runner, arrays, outputs):
        result = super().deliver(runner, arrays, outputs)
        for given in outputs or ():
            if given is not None and given.dtype == np.bool_ and given.numpy().size:
                given.numpy()[...] = True
        return result


class GivenScalarsAreLeft(Broken):
    """It launches a copy per row for outputs that are given; a scalar has none."""

    suites = ("given/outputs_of*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is None:
            return super().deliver(runner, arrays, None)
        result = []
        for array, given in zip(arrays, outputs, strict=True):
            if given is not None and array.ndim:
                given.numpy()[...] = array
            result.append(partita.HostTensor(array) if given is None else given)
        return result


class KnowsOneClassOfTensors(Broken):
    """It reads the array of a tensor where Partita's own class has it."""

    suites = ("given/tensors*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            return super().run([partita.HostTensor(t._array) for t in inputs], outputs)


class ComputesAsTheInputDoes(Broken):
    """Results are of the class of the first input, as numpy's functions make them."""

    suites = ("given/arrays*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            kinds = {type(tensor.numpy()) for tensor in inputs} - {np.ndarray}
            results = super().run(inputs, outputs)
            if not kinds or outputs is not None:
                return results
            kind = kinds.pop()
            return [partita.HostTensor(tensor.numpy().view(kind)) for tensor in results]


class PinsGivenOutputs(Broken):
    """Memory of outputs that were given is locked for the device once and for all."""

    suites = ("given/given*",)

    def deliver(self, runner, arrays, outputs):
        for given in outputs or ():
            if given is not None:
                notes(runner).setdefault("pinned", []).append(given.numpy())
        return super().deliver(runner, arrays, outputs)


class TransfersSixteenBitsAtLeast(Broken):
    """Elements of eight bits and less are widened on the way to the device, and stay so."""

    suites = ("given/transfers*",)

    def transfer_to(self, tensor, device_id=""):
        array = tensor.numpy()
        kinds = (np.int8, np.uint16)
        return partita.HostTensor(array.astype(np.int32) if array.dtype in kinds else array)


# ---------------------------------------------------------------------------------------- members


class AbsentDevicesWithoutWords(Broken):
    """What is absent has an empty reason."""

    suites = ("members/absent*",)

    def unavailable_devices(self):
        return {"second driver": ""}


class IdentityOfThisCore(Broken):
    """Its identity names an object of this process."""

    suites = ("members/identities*",)

    def identity(self, properties):
        return f"{super().identity(properties)} {id(self)}"


class InventsDecoderProperties(Broken):
    """It would have decoders compiled with a property that it lacks."""

    suites = ("members/decoders*",)

    def for_decoder(self, request, properties):
        return {"KV_BLOCK": 64} if (request.context or 0) > 100 else {}


class OverridesTheApplication(Broken):
    """It sets for decoders what the application has set already."""

    suites = ("members/decoders*",)

    def for_decoder(self, request, properties):
        return {"LEVEL": properties.LEVEL + 1}


class NeedsMoreAfterARun(Broken):
    """Its scratch grows while it runs, when others have planned theirs."""

    suites = ("members/compiled*",)

    class compiled_type(GoodCompiled):
        @property
        def scratch_bytes(self):
            return notes(self).get("runs", 0) * 64

    def compute(self, runner, arrays):
        notes(runner.compiled)["runs"] = notes(runner.compiled).get("runs", 0) + 1
        return super().compute(runner, arrays)


class TakesEveryMemory(Broken):
    """It says that tensors of any memory may come in as they are."""

    suites = ("members/compiled*",)

    class compiled_type(GoodCompiled):
        def takes_memory(self, memory):
            return True


class LendsItsOwnList(Broken):
    """What it answers is the list that it works with."""

    suites = ("members/facts*",)

    class compiled_type(GoodCompiled):
        devices = ("BROKEN",)

        @property
        def execution_devices(self):
            return notes(self).setdefault("devices", ["BROKEN"])


class ForgetsItsMode(Broken):
    """A model tells the mode of whichever was compiled last."""

    suites = ("members/facts*",)

    class compiled_type(GoodCompiled):
        def get_property(self, name):
            if name == "LEVEL":
                return self.properties.LEVEL + len(self.inputs) - 1 + notes(self).get("runs", 0)
            return super().get_property(name)

    def compute(self, runner, arrays):
        notes(runner.compiled)["runs"] = 1
        return super().compute(runner, arrays)


class HostArraysAreOne(Broken):
    """Page-locked arrays of one size are one."""

    suites = ("members/host*",)

    class compiled_type(GoodCompiled):
        def host_array(self, shape, dtype):
            kept = notes(self)
            return kept.setdefault((shape, dtype), np.empty(shape, dtype))


class AllocatesFromOneSlab(Broken):
    """Tensors of an input lie in the slab of the model, at the input's place."""

    suites = ("members/allocated*",)

    class compiled_type(GoodCompiled):
        def allocate(self, port, shape):
            slab = notes(self).setdefault(port.index, super().allocate(port, shape))
            slab.numpy()[...] = 0
            return slab


class PiecesWantAnotherLevel(Broken):
    """Pieces are told a level that is below the least."""

    suites = ("members/properties*",)

    class compiled_type(GoodCompiled):
        def piece_properties(self):
            return {**super().piece_properties(), "LEVEL": -1}


class SpansByAnotherClock(Broken):
    """Spans are told by the clock of the day."""

    suites = ("members/spans*",)

    class runner_type(GoodRunner):
        def device_spans(self):
            now = time.time()
            return [DeviceSpan("BROKEN", "all", now - self.elapsed_us / 1e6, now)]


class SpansOfARunBefore(Broken):
    """Spans of a queue are read before it was flushed: they are of the run before."""

    suites = ("members/spans*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            start = time.perf_counter()
            results = super().run(inputs, outputs)
            notes(self)["told"] = notes(self).get("last")
            notes(self)["last"] = [DeviceSpan("BROKEN", "all", start, time.perf_counter())]
            return results

        def device_spans(self):
            return notes(self).get("told") or ()


class StepsWithoutNames(Broken):
    """Steps that were fused have no name."""

    suites = ("members/executions*",)

    class runner_type(GoodRunner):
        def explain_execution(self):
            return Execution((ExecutedStep("", "kernel"),))
