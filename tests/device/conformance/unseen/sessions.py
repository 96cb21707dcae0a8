"""Devices whose sessions go wrong: the second runner, the cancelled run, the restored model.

An eleventh set, from the side of one who keeps things between runs; written before it was measured.
"""

from __future__ import annotations

import random
import threading
import time

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.profiling import ProfilingInfo
from partita.errors import InferError
from partita.model.model import Port
from unseen.serving import Binds, Call


def floats(arrays):
    """Those of float32 that are not empty."""
    return [a for a in arrays if a.dtype == np.float32 and a.size]


# ------------------------------------------------------------------------- requests of a model


class PacksWeightsAgainForEachRunner(Broken):
    """Square matrices are turned where they lie when a request is made, also by the second one."""

    suites = ("compiled/*", "request/*", "threads/*")

    class compiled_type(GoodCompiled):
        made = 0

        def create_runner(self):
            self.made += 1
            weights = self.evaluator.rt_inits_
            for name, array in weights.items():
                if self.made > 1 and array.ndim == 2 and len(set(array.shape)) == 1:
                    weights[name] = array.T.copy()
            return super().create_runner()


class WritesToTheOutputsOfTheLastRun(Broken):
    """The engine writes to the memory that it was first given, and copies from there."""

    suites = ("request/*", "sharing/*")

    def deliver(self, runner, arrays, outputs):
        first = vars(runner).setdefault("first", {})
        for place, given in enumerate(outputs or ()):
            if given is None or arrays[place].dtype == object:
                continue
            kept = first.setdefault(place, given.numpy())
            if kept.shape == arrays[place].shape and kept.dtype == arrays[place].dtype:
                kept[...] = arrays[place]
        return super().deliver(runner, arrays, outputs)


class WritesAlignedOutputs(Broken):
    """Vectors are stored where an output's memory has a multiple of 16 bytes."""

    suites = ("request/*", "sharing/*", "boundary/*")

    def deliver(self, runner, arrays, outputs):
        kept = []
        for given in outputs or ():
            off = 0 if given is None else -given.numpy().__array_interface__["data"][0] % 16
            lost = 0 if given is None else -(-off // max(1, given.dtype.itemsize))
            kept.append((given, lost, lost and given.numpy().reshape(-1)[:lost].copy()))
        results = super().deliver(runner, arrays, outputs)
        for given, lost, before in kept:
            if lost:
                given.numpy().reshape(-1)[:lost] = before
        return results


class OneRunInThirtyLosesAnUpdate(Broken):
    """Two threads add to one element, and now and then one of them comes too late."""

    suites = ("request/*", "threads/*", "resources/*")
    chance = random.Random(7)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if self.chance.random() < 1 / 30:
            for array in floats(results):
                array.reshape(-1)[-1] *= np.float32(0.5)
        return results


class CancelledRunsLeaveHalfResults(Broken):
    """What a cancelled run had not computed yet is missing from the next run as well."""

    suites = ("async/*",)

    class runner_type(GoodRunner):
        running = stopped = half = False

        def cancel(self):
            self.stopped = self.running

        def run(self, inputs, outputs=None):
            self.stopped, self.running = False, True
            time.sleep(0.002)
            self.running = False
            if self.stopped:
                self.half = True
                raise InferError("stopped")
            return super().run(inputs, outputs)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if runner.half:
            runner.half = False
            for array in floats(results):
                array.reshape(-1)[array.size // 2 :] = 0
        return results


class KeepsAPlanPerShape(Broken):
    """A workspace for each shape that was ever seen."""

    suites = ("resources/*", "memory/*")

    def compute(self, runner, arrays):
        plans = vars(runner).setdefault("plans", {})
        key = tuple(a.shape for a in arrays)
        if key not in plans:
            plans[key] = np.ones(1 << 18, np.uint8)
        return super().compute(runner, arrays)


# ------------------------------------------------------------------------------- bound calls


class SwallowsFailuresOfBoundCalls(Binds):
    """Errors of calls go to a log that nobody reads."""

    suites = ("boundary/*", "faults/*")

    class call_type(Call):
        def __call__(self):
            try:
                super().__call__()
            except InferError:
                return


class RebindsTheFirstInput(Binds):
    class call_type(Call):
        def rebind(self, inputs):
            self.inputs = [inputs[0], *self.inputs[1:]] if inputs else inputs
            return True


class BoundCallsFillWhatTheyWereBoundTo(Binds):
    """Shapes are those of the time of binding, whatever the elements say now."""

    class call_type(Call):
        def __call__(self):
            for result, output in zip(self.runner.run(self.inputs), self.outputs, strict=True):
                array = result.numpy()
                if array.dtype != object and array.size:
                    array = np.resize(array, output.shape)
                np.copyto(output.numpy(), array)


class KeepsAScaleInScratch(Binds):
    """Borrowed memory holds what is prepared at binding, and is expected to hold it later."""

    class compiled_type(GoodCompiled):
        scratch_bytes = 64

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            call = Scaled(self, inputs, outputs)
            if scratch is not None:
                call.scale = scratch[:4].view(np.float32)
                call.scale[0] = 1
            return call


class Scaled(Call):
    """Multiplies what is computed by what lies in borrowed memory."""

    scale = None

    def __call__(self):
        super().__call__()
        if self.scale is not None:
            for array in floats([tensor.numpy() for tensor in self.outputs]):
                array *= self.scale[0]


# ------------------------------------------------------------------ compiling, restoring, asking


class ImportsLeaveThreads(Broken):
    """A thread reads what is restored, and waits for more."""

    suites = ("blob/*", "resources/*")
    count = 0

    def restore_model(self, model, properties, state):
        type(self).count += 1
        if self.count < 500:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        return self.compile_model(model, properties)


class NothingRunsWhileItCompiles(Broken):
    """The engine is one object, which is taken apart to compile."""

    suites = ("threads/*", "async/*")
    compiling = 0

    def compile_model(self, model, properties):
        with self.lock:
            self.compiling += 1
        try:
            time.sleep(0.002)
            return super().compile_model(model, properties)
        finally:
            with self.lock:
                self.compiling -= 1

    def compute(self, runner, arrays):
        if self.compiling:
            raise InferError("the engine is not ready")
        return super().compute(runner, arrays)


class RestoresStateInAlphabeticalOrder(Broken):
    """Weights are stored under numbers, and come back sorted as texts."""

    suites = ("blob/*",)

    class compiled_type(GoodCompiled):
        def export_state(self):
            arrays = self.evaluator.rt_inits_.values()
            kept = [a for a in arrays if a.dtype.kind in "fiub"]
            return {f"weight{i}": np.array(a) for i, a in enumerate(kept)}

    def restore_model(self, model, properties, state):
        compiled = self.compile_model(model, properties)
        weights = compiled.evaluator.rt_inits_
        names = [name for name, a in weights.items() if a.dtype.kind in "fiub"]
        for name, stored in zip(names, sorted(state), strict=False):
            if (state[stored].shape, state[stored].dtype) == (
                weights[name].shape,
                weights[name].dtype,
            ):
                weights[name] = np.array(state[stored])
        return compiled


class CountsMilliseconds(Broken):
    """The library's clock has another unit."""

    suites = ("properties/*",)

    def compute(self, runner, arrays):
        start = time.perf_counter()
        try:
            return super().compute(runner, arrays)
        finally:
            runner.elapsed = (time.perf_counter() - start) * 1e3

    def counters(self, runner):
        elapsed = getattr(runner, "elapsed", 0.0)
        first, *others = runner.compiled.model.ops
        covers = tuple(op.name for op in others)
        return [ProfilingInfo(first.name, first.op_type, "x", real_time_us=elapsed, covers=covers)]


class StopsAskingAtTheFirstRefusal(Broken):
    """What comes after an operation that is not taken is not taken either."""

    suites = ("query/*",)

    def query_model(self, model, properties):
        verdicts, refused = {}, None
        for op in model.ops:
            refused = refused or self.verdict(op)
            verdicts[op.name] = refused
        return partita.QueryResult.of(self.device_name, verdicts)


class SaysThatSizesAreUnknown(Broken):
    """Whatever is not taken has unknown sizes, it says."""

    suites = ("query/*",)

    def verdict(self, op):
        if super().verdict(op) is None:
            return None
        return partita.Reason(partita.ReasonCode.DYNAMIC_SHAPE, "dimension 0 is not known")


class RaisesTheOpsetOfTheModel(Broken):
    """Converts the caller's model to the version that it has kernels for."""

    suites = ("compiled/*", "query/*")

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        if model.ir.opset_imports.get("", 18) < 18:
            model.ir.opset_imports[""] = 18
        return compiled


class StripsColonsFromPorts(Broken):
    """Names of ports are those of nodes, as another framework has them."""

    suites = ("ports/*", "compiled/*")

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.outputs = tuple(
                Port(p.index, p.name.partition(":")[0], p.dtype, p.shape) for p in self.outputs
            )
