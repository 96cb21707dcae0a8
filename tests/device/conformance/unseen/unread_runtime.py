"""Faults of runtimes, by somebody who had read neither the kit nor its earlier sets.

Each device computes as the correct one does, but for what a plugin's author took for granted: that
memory, shapes, failures, threads or settings stay what they were when it was tried.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.runner import run_into
from partita.errors import CompileError, InferCancelledError, InferError


def notes(owner):
    """What a fault keeps from one run to the next, with a request or a compiled model."""
    return vars(owner).setdefault("notes_of_fault", {})


def address(array):
    """Where an array's elements lie."""
    return array.__array_interface__["data"][0]


def is_numeric(array):
    """Whether its elements are numbers that lie in its memory."""
    return array.dtype.kind in "fiub" and array.size > 0


# ------------------------------------------------------------------ memory of inputs and outputs


class UploadsOnlyWhereAProbeHasChanged(Broken):
    """It leaves an input that lies where it lay, if 16 elements of it are what they were."""

    suites = ("*",)

    def compute(self, runner, arrays):
        uploaded = []
        for index, array in enumerate(arrays):
            if not is_numeric(array) or array.size < 64:
                uploaded.append(array)
                continue
            probe = array.reshape(-1)[:: array.size // 16].tobytes()
            key = (address(array), array.shape, array.dtype.str, probe)
            known = notes(runner).get(index)
            if known is None or known[0] != key:
                notes(runner)[index] = known = (key, array.copy())
            uploaded.append(known[1])
        return super().compute(runner, uploaded)


class ScalesGivenOutputsByZero(Broken):
    """It multiplies what a given output holds by a beta of 0, and adds the result to it."""

    suites = ("*",)

    def deliver(self, runner, arrays, outputs):
        if outputs is not None:
            with np.errstate(all="ignore"):
                arrays = [
                    array + 0 * given.numpy()
                    if given is not None and array.dtype.kind == "f"
                    else array
                    for array, given in zip(arrays, outputs, strict=True)
                ]
        return super().deliver(runner, arrays, outputs)


class KeepsTheWidthOfTexts(Broken):
    """It has room for texts as long as the longest of a request's first run, or for 8 letters."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for index, array in enumerate(results):
            if array.dtype != object or array.ndim == 0:
                continue
            longest = max((len(text) for text in array.flat), default=0)
            width = notes(runner).setdefault(index, max(longest, 8))
            results[index] = np.array([text[:width] for text in array.flat], object).reshape(
                array.shape
            )
        return results


# ----------------------------------------------------------------------- shapes and programs


class ReadsRowsByTheWidestPitch(Broken):
    """It steps from row to row by the longest row that there ever was, in a buffer without gaps."""

    suites = ("*",)

    def compute(self, runner, arrays):
        read = []
        for index, array in enumerate(arrays):
            if not is_numeric(array) or array.ndim < 2:
                read.append(array)
                continue
            pitch = max(notes(runner).get(index, 0), array.shape[-1])
            notes(runner)[index] = pitch
            rows = array.size // array.shape[-1]
            buffer = np.zeros(rows * pitch, array.dtype)
            buffer[: array.size] = array.reshape(-1)
            read.append(
                np.ascontiguousarray(
                    buffer.reshape(rows, pitch)[:, : array.shape[-1]].reshape(array.shape)
                )
            )
        return super().compute(runner, read)


class PlansByTheNumberOfElements(Broken):
    """It finds the plan of a run, with its outputs' shapes, by the sizes of the inputs in bytes."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        key = tuple(array.nbytes for array in arrays)
        plan = notes(runner.compiled).setdefault(key, [array.shape for array in results])
        return [
            array.reshape(shape) if is_numeric(array) and array.size == np.prod(shape) else array
            for array, shape in zip(results, plan, strict=True)
        ]


class TakesSmallIntegersForConstants(Broken):
    """It specialises a program for the integers that decide shapes, and never looks at them again.

    One program per form of the inputs, for all requests of a model.
    """

    suites = ("*",)

    def compute(self, runner, arrays):
        form = tuple((array.shape, array.dtype.str) for array in arrays)
        first = notes(runner.compiled).setdefault(form, [array.copy() for array in arrays])
        arrays = [
            seen if array.dtype == np.int64 and array.size <= 8 else array
            for array, seen in zip(arrays, first, strict=True)
        ]
        return super().compute(runner, arrays)


class SplitsWhatIsNoBatch(Broken):
    """It computes 64 rows at a time where all ports begin with a dimension of one name."""

    suites = ("*",)

    def compute(self, runner, arrays):
        ports = [*runner.compiled.inputs, *runner.compiled.outputs]
        firsts = {port.shape[0] if port.shape else None for port in ports}
        rows = len(arrays[0]) if arrays and arrays[0].ndim else 0
        if len(firsts) != 1 or not isinstance(firsts.pop(), str) or rows <= 64:
            return super().compute(runner, arrays)
        parts = [
            super(SplitsWhatIsNoBatch, self).compute(
                runner, [array[start : start + 64] for array in arrays]
            )
            for start in range(0, rows, 64)
        ]
        return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


# ------------------------------------------------------------------------------- bound calls


class Bound(BoundCall):
    """A bound call that runs and copies, which is right."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, list(inputs), list(outputs)

    def __call__(self):
        run_into(self.runner, self.inputs, self.outputs)


class BindsScalarsByValue(Broken):
    """Bound calls pass inputs of one element as arguments, whose values are those of binding."""

    suites = ("*",)

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            fixed = [
                partita.HostTensor(tensor.numpy().copy()) if tensor.shape == () else tensor
                for tensor in inputs
            ]
            return Bound(self, fixed, outputs)


class RebindsTheFirstInputOnly(Broken):
    """Bound calls go on to read all inputs but the first where they lay."""

    suites = ("*",)

    class Call(Bound):
        def rebind(self, inputs):
            self.inputs[:1] = inputs[:1]
            return True

    class runner_type(GoodRunner):
        def bind(self, inputs, outputs, scratch=None):
            return RebindsTheFirstInputOnly.Call(self, inputs, outputs)


# ------------------------------------------------------------ requests, threads and cancelling


class CancelsEveryRunOfTheModel(Broken):
    """A request that is cancelled stops the queue, and with it what other requests have on it."""

    suites = ("*",)

    class runner_type(GoodRunner):
        def cancel(self):
            notes(self.compiled)["stops"] = notes(self.compiled).get("stops", 0) + 1

    def compute(self, runner, arrays):
        stops = notes(runner.compiled).get("stops", 0)
        results = super().compute(runner, arrays)
        if notes(runner.compiled).get("stops", 0) != stops:
            raise InferCancelledError("The queue was stopped.")
        return results


class FlushesSubnormalsBesideTheMainThread(Broken):
    """Its own threads set the processor to flush subnormal numbers, and requests borrow them."""

    suites = ("*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if threading.current_thread() is threading.main_thread():
            return results
        for array in results:
            if array.dtype in (np.float32, np.float64) and array.ndim:
                array[np.abs(array) < np.finfo(array.dtype).tiny] = 0
        return results


class CompilesWhicheverModelCameLast(Broken):
    """It hands the model to the compiler in a member, which another thread sets too."""

    suites = ("*",)
    handed = None

    def compile_model(self, model, properties):
        self.handed = model
        time.sleep(0.002)  # the compiler is loaded
        return super().compile_model(self.handed, properties)


class FreesTheContextWithARequestThatNeverRan(Broken):
    """Requests are counted when they first run, and no longer when they are gone."""

    suites = ("*",)

    class runner_type(GoodRunner):
        counted = False

        def __del__(self):
            context = notes(self.compiled)
            context["users"] = context.get("users", 0) - 1
            context["freed"] = context["users"] <= 0 and "used" in context

    def compute(self, runner, arrays):
        context = notes(runner.compiled)
        if not runner.counted:
            runner.counted = context["used"] = True
            context["freed"] = False
            context["users"] = context.get("users", 0) + 1
        elif context.get("freed"):
            raise InferError("The context is not valid.")
        return super().compute(runner, arrays)


# ------------------------------------------------------------------------------------ failures


class DeliversWhatAFailureLeftInTheRing(Broken):
    """A run that fails takes its slot and returns none: the next one gets the slot before its own.

    The ring is drained with the run after that.
    """

    suites = ("*",)

    def compute(self, runner, arrays):
        ring = notes(runner)
        try:
            results = super().compute(runner, arrays)
        except InferError:
            ring["behind"] = "last" in ring
            raise
        last, ring["last"] = ring.get("last"), [array.copy() for array in results]
        if ring.pop("behind", False) and [a.shape for a in last] == [a.shape for a in results]:
            return last
        return results


class LeaksTheEventOfAFailedRun(Broken):
    """It makes an event for each run, and destroys it where the run ends well."""

    suites = ("*",)

    def compute(self, runner, arrays):
        event = os.eventfd(0)
        results = super().compute(runner, arrays)
        os.close(event)
        return results


# ----------------------------------------------------- counters, properties, queries and blobs


class CountersOfWhicheverRequestRanLast(Broken):
    """The counters are the device's, and tell of the last run of any request."""

    suites = ("*",)

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        finally:
            notes(runner.compiled)["last"] = runner

    def counters(self, runner):
        return super().counters(notes(runner.compiled).get("last", runner))


class TellsThePropertiesOfTheLastCompile(Broken):
    """Compiled models ask the driver for settings, which has those of the last one compiled."""

    suites = ("*",)
    current = None

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            plugin.current = properties

        def get_property(self, name):
            if name in type(self.properties).model_fields:
                return getattr(self.plugin.current, name)
            return super().get_property(name)


class RestoresFromAStateThatIsEmpty(Broken):
    """It expects its tuned choices in every state that it is handed."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def export_state(self):
            return {"choices": np.arange(len(self.model.ops))}

    def restore_model(self, model, properties, state):
        if len(state["choices"]) != len(model.ops):
            raise CompileError("The choices are another model's.")
        return self.compile_model(model, properties)


class RemembersVerdictsByOperator(Broken):
    """It takes no doubles in MatMul, but asks itself once per operator when it is queried."""

    suites = ("*",)

    def verdict(self, op):
        if op.op_type == "MatMul":
            for value in op.node.inputs:
                if value.dtype is not None and value.dtype.name == "DOUBLE":
                    return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "no doubles")
        return super().verdict(op)

    def query_model(self, model, properties):
        known = notes(self)
        for op in model.ops:
            known.setdefault(op.op_type, self.verdict(op))
        verdicts = {op.name: known[op.op_type] for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)


# --------------------------------------------------------------------------------------- state


class AllocatesStateWithoutClearingIt(Broken):
    """Its memory for state holds what was there: only tensors that are set mean anything."""

    suites = ("*",)

    class compiled_type(GoodCompiled):
        def in_place_outputs(self):
            read = {port.name: port for port in self.inputs}
            written = {port.name: port for port in self.outputs}
            return {
                written[one.written].index: read[one.read].index
                for one in self.model.variables
                if written[one.written].shape == read[one.read].shape
            }

        def allocate(self, port, shape):
            tensor = super().allocate(port, shape)
            tensor.numpy().view(np.uint8).fill(0x3F)  # of whoever had it before
            return tensor
