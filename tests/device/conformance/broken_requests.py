"""Devices with one fault each in what requests go through: orders, moments, threads, the process.

None of them waits, so that a fault shows only where others come between its lines; or it shows only
in some order of runs, failures and bindings, or in what an application does beside its runs.
"""

from __future__ import annotations

import numpy as np
from broken_form import Broken
from broken_usage import is_numeric, notes
from good_device import GoodRunner

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.runner import run_into
from partita.errors import InferCancelledError, InferError

# ---------------------------------------------------------------------------------------- moments


class KeepsTheRunInTheModel(Broken):
    """What a run is about stands in members of the compiled model, for all its requests."""

    suites = ("threads/runs_meet_at*",)

    def compute(self, runner, arrays):
        runner.compiled.given = arrays
        results = super().compute(runner, runner.compiled.given)
        runner.compiled.made = results
        return self.handed_over(runner.compiled)

    def handed_over(self, compiled):
        return compiled.made


class StagesLargeInputsInOneBlock(Broken):
    """Inputs of many elements pass through memory that is the compiled model's."""

    suites = ("threads/runs_meet_at*",)

    def compute(self, runner, arrays):
        staged = []
        for index, array in enumerate(arrays):
            if not is_numeric(array) or array.size < 10_000:
                staged.append(array)
                continue
            key = index, array.shape, array.dtype.str
            block = notes(runner.compiled).setdefault(key, np.empty_like(array))
            block[...] = array
            staged.append(block)
        return super().compute(runner, staged)


class NegatesInputsForAWhile(Broken):
    """Large inputs that can be written are its scratch memory, and are set right in the end."""

    suites = ("threads/runs_meet_on*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        lent = [a for a in arrays if is_numeric(a) and a.size > 10_000 and a.flags.writeable]
        for array in lent:
            array += 1
        for array in lent:
            array -= 1
        return results


class IsReadyTooEarly(Broken):
    """The first run sets the model up; who comes meanwhile takes it for set up."""

    suites = ("threads/first_runs*",)

    def compute(self, runner, arrays):
        model = notes(runner.compiled)
        if "factor" not in model:
            model["factor"] = 0
            self.set_up(model)
        return [a * model["factor"] if is_numeric(a) and a.dtype != bool else a
                for a in super().compute(runner, arrays)]  # fmt: skip

    def set_up(self, model):
        model["factor"] = 1


class CompilesWhatWasHandedOverLast(Broken):
    """The model to compile stands in a member of the plugin."""

    suites = ("threads/models_are_made*",)

    def compile_model(self, model, properties):
        self.handed = model
        self.check(properties)
        return super().compile_model(self.handed, properties)

    def check(self, properties):
        return properties.LEVEL >= 0


class FlushesTheQueueForNewModels(Broken):
    """A compile empties the device's queue, whoever's run is in it."""

    suites = ("threads/anything*",)
    flushed = 0

    def compile_model(self, model, properties):
        self.flushed += 1
        return super().compile_model(model, properties)

    def compute(self, runner, arrays):
        before = self.flushed
        results = super().compute(runner, arrays)
        if self.flushed != before:
            raise InferError("The queue was flushed.")
        return results


class OneErrorFlagForAll(Broken):
    """A run asks behind its end whether anything has failed since it began."""

    suites = ("threads/failures_meet*",)

    def compute(self, runner, arrays):
        flag = notes(self)
        flag["failed"] = False
        try:
            results = super().compute(runner, arrays)
        except InferError:
            flag["failed"] = True
            raise
        if flag["failed"]:
            raise InferError("The device has failed.")
        return results


class RightCall(BoundCall):
    """A bound call that runs and copies."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class SharedCall(RightCall):
    """A bound call that leaves its results in the model before they are copied."""

    def __call__(self):
        model = self.runner.compiled
        model.made = self.runner.run(self.inputs)
        for output, result in zip(self.outputs, self.read(model), strict=True):
            output.copy_from(result)

    def read(self, model):
        return model.made


class BoundCallsMeetInTheModel(Broken):
    """Bound calls of all requests put their results into one member before they copy them."""

    suites = ("threads/bound_calls_meet*",)

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return SharedCall(self, inputs, outputs)


class OneTransferAtATime(Broken):
    """A transfer leaves its tensor in a member until it is fetched."""

    suites = ("threads/transfers_meet*",)

    def transfer_to(self, tensor, device_id):
        self.moved = partita.HostTensor(tensor.numpy().copy())
        return self.fetched()

    def fetched(self):
        return self.moved


class GivesUpHalfway(Broken):
    """A run that is to stop returns as much of its results as there is."""

    suites = ("async/a_run_may*",)

    class runner_type(GoodRunner):
        stopped = False

        def cancel(self):
            self.stopped = True

    def compute(self, runner, arrays):
        runner.stopped = False
        results = super().compute(runner, arrays)
        return [np.zeros_like(a) for a in results] if runner.stopped else results


class CancelIsOfTheModel(Broken):
    """Whoever cancels, the run that looks next stops."""

    suites = ("async/a_run_may*",)

    class runner_type(GoodRunner):
        def cancel(self):
            notes(self.compiled)["stop"] = True

    def compute(self, runner, arrays):
        notes(runner.compiled)["stop"] = False
        results = super().compute(runner, arrays)
        if notes(runner.compiled)["stop"]:
            raise InferCancelledError("The run was stopped.")
        return results


# ------------------------------------------------------------------------------------------ walks


class FailuresFreezeTheSizes(Broken):
    """Behind a run that failed, outputs are cut to the rows of the last one that did not."""

    suites = ("walks/*",)

    def compute(self, runner, arrays):
        mind = notes(runner)
        try:
            results = super().compute(runner, arrays)
        except InferError:
            mind["failed"] = True
            raise
        rows = mind.pop("rows", None)
        if mind.pop("failed", False) and rows is not None:
            results = [a[:rows] if is_numeric(a) and a.ndim else a for a in results]
        mind["rows"] = len(results[0]) if results[0].ndim else None
        return results


class GivenOnceThenKeptAsABuffer(Broken):
    """A tensor that was given for an output is where the next run of that shape puts its own."""

    suites = ("walks/*",)

    def deliver(self, runner, arrays, outputs):
        mind = notes(runner)
        delivered = []
        for index, array in enumerate(arrays):
            given = None if outputs is None else outputs[index]
            kept = mind.get(index)
            if given is None and kept is not None and kept.shape == array.shape:
                given = kept
            if given is None or not is_numeric(array):
                delivered.append(partita.HostTensor(array))
                continue
            given.numpy()[...] = array
            mind[index] = given
            delivered.append(given)
        return delivered


class BindingFreezesEmptyInputs(Broken):
    """A bound call of tensors of which one is empty does nothing."""

    suites = ("walks/*",)

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            if any(0 in tensor.shape for tensor in inputs):
                return NoCall()
            return RightCall(self, inputs, outputs)


class NoCall(BoundCall):
    """A call of no kernels."""

    def __call__(self):
        pass


class WritesWholeLines(Broken):
    """Outputs that are given are written in steps of 8 bytes, whatever their size."""

    suites = ("walks/*",)

    def deliver(self, runner, arrays, outputs):
        delivered = super().deliver(runner, arrays, outputs)
        for given in outputs or ():
            array = None if given is None else given.numpy()
            if array is None or not is_numeric(array) or array.nbytes % 8 == 0:
                continue
            owner = array if array.base is None else array.base
            behind = array.ctypes.data + array.nbytes - owner.ctypes.data
            if owner.dtype == np.uint8:
                owner[behind : behind + 8 - array.nbytes % 8] = 0
        return delivered


class ReusesResultsForResults(Broken):
    """A result is where the one before the last lay, if it had that size, whoever holds it."""

    suites = ("walks/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        ring = notes(runner.compiled).setdefault("ring", {})
        for index, array in enumerate(results):
            if not is_numeric(array) or array.dtype == bool:
                continue
            kept = ring.setdefault((index, array.shape, array.dtype.str), [])
            kept.append(array.copy())
            if len(kept) > 6:  # of the last six, the first is free again
                block = kept.pop(0)
                block[...] = array
                results[index] = kept[-1] = block
        return results
