"""Devices with one fault each in what a run leaves: of failures, first runs, texts and counters."""

from __future__ import annotations

import functools
import time

import numpy as np
from broken_form import Broken
from broken_usage import notes
from good_device import GoodCompiled, GoodRunner

import partita
from partita.contract.bound_call import BoundCall
from partita.contract.runner import run_into
from partita.errors import CompileError, InferCancelledError
from partita.tensors.sequence_values import boxed, unboxed

# ---------------------------------------------------------------------------- failed and first runs


class KeepsOutputsOfAFailure(Broken):
    """Tensors that are given for outputs are forgotten at the end of a run that succeeds."""

    suites = ("faults/outputs_given_to*",)

    class runner_type(GoodRunner):
        given = None

        def run(self, inputs, outputs=None):
            self.given = outputs or self.given
            arrays = self.compiled.plugin.compute(self, [tensor.numpy() for tensor in inputs])
            fit = self.given and all(
                one is None or one.shape == array.shape
                for one, array in zip(self.given, arrays, strict=True)
            )
            results = self.compiled.plugin.deliver(self, arrays, self.given if fit else None)
            self.given = None
            return results


class LaunchesForTheFirstSize(Broken):
    """A runner whose first run has no elements starts no blocks, in later runs either."""

    suites = ("faults/the_first_run*",)

    def compute(self, runner, arrays):
        none = notes(runner).setdefault("none", any(not array.size for array in arrays))
        results = super().compute(runner, arrays)
        return [np.zeros_like(array) for array in results] if none else results


class KeepsTheCancellationOfAFailure(Broken):
    """A cancellation is forgotten by the run that it meets, unless that fails."""

    suites = ("async/what_fails*",)

    class runner_type(GoodRunner):
        stopped = running = False

        def run(self, inputs, outputs=None):
            if self.stopped:
                self.stopped = False
                raise InferCancelledError("The run was cancelled.")
            self.running = True
            try:
                results = super().run(inputs, outputs)
            finally:
                self.running = False
            self.stopped = False
            return results

        def cancel(self):
            self.stopped = self.running


class LosesAHandlePerRefusal(Broken):
    """A model that is refused has got one of 64 handles, which goes back with compiled ones."""

    suites = ("faults/refused_models*",)
    lost = 0

    def compile_model(self, model, properties):
        if self.lost >= 64:
            raise CompileError("There is no handle left.")
        self.lost += 1
        made = super().compile_model(model, properties)
        self.lost -= 1
        return made


class GivesSlotsBackTwice(Broken):
    """A runner gives its buffers back each time it is closed."""

    suites = ("request/what_is_closed*",)

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            self.free = notes(compiled).setdefault("free", [])
            self.slot = self.free.pop() if self.free else {}

        def close(self):
            self.free.append(self.slot)

        def run(self, inputs, outputs=None):
            results = super().run(inputs, outputs)
            return results if outputs else [*map(self._in_slot, results, range(len(results)))]

        def _in_slot(self, tensor, index):
            array = tensor.numpy()
            held = self.slot.setdefault((index, array.shape, array.dtype), np.empty_like(array))
            held[...] = array
            return partita.HostTensor(held)


class _Redirecting(BoundCall):
    """A call that has its runner write to what is bound, until it has succeeded."""

    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        self.runner.bound = self.outputs
        run_into(self.runner, self.inputs, self.outputs)
        self.runner.bound = None


class StaysBoundAfterAFailure(Broken):
    """Runs behind a bound call that has failed write to its outputs."""

    suites = ("boundary/a_bound_call_that_fails*",)

    class runner_type(GoodRunner):
        bound = None

        def bind(self, inputs, outputs, scratch=None):
            return _Redirecting(self, list(inputs), list(outputs))

        def run(self, inputs, outputs=None):
            return super().run(inputs, outputs or self.bound)


# --------------------------------------------------------------------------------- chosen by firsts


class NarrowsByTheFirstRun(Broken):
    """Integers of 64 bits are computed in 32, if those of the first run fit."""

    suites = ("again/Add/plain_first",)

    def compute(self, runner, arrays):
        fit = notes(runner).setdefault(
            "fit", all(np.all(np.abs(a.astype(float)) < 2**31) for a in arrays if a.dtype == "i8")
        )
        narrow = [a.astype("i4").astype("i8") if fit and a.dtype == "i8" else a for a in arrays]
        return super().compute(runner, narrow)


class _ByTheFirst(Broken):
    """A frame: one kernel is chosen by what the first run of a model holds."""

    op_type = ""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            self.chosen = {}
            for place, node in enumerate(self.evaluator.rt_nodes_):
                if node.op_type == plugin.op_type:
                    node.run = functools.partial(self.choose, place, type(node).run, node)

        def choose(self, place, run, node, *inputs, **attributes):
            plain = self.chosen.setdefault(place, self.plugin.is_plain(*inputs))
            given = self.plugin.simplified(*inputs) if plain else inputs
            return run(node, *given, **attributes)


class DropsAMaskOfTruths(_ByTheFirst):
    """A mask that is true throughout in the first run is read no more."""

    suites = ("again/Where/plain_first",)
    op_type = "Where"

    def is_plain(self, choice, one, other):
        return bool(np.all(choice))

    def simplified(self, choice, one, other):
        return np.ones_like(choice), one, other


class LooksForNoNumbersOnce(_ByTheFirst):
    """A maximum heeds NaN only if there is one in the first run."""

    suites = ("again/Max/plain_first",)
    op_type = "Max"

    def is_plain(self, *inputs):
        return not any(np.isnan(array).any() for array in inputs if array.dtype.kind == "f")

    def simplified(self, *inputs):
        return [np.where(np.isnan(a), a.dtype.type(0), a) for a in inputs]


# ------------------------------------------------------------------------------ texts and sequences


class NumbersTextsOfAllRuns(Broken):
    """Texts are numbered as they come, in all runs of a model, by two bytes."""

    suites = ("lives/there_may_be_many_texts",)

    def compute(self, runner, arrays):
        table = notes(runner.compiled)
        return super().compute(runner, [self._handed_on(table, array) for array in arrays])

    def _handed_on(self, table, array):
        if array.dtype != object or not isinstance(unboxed(array), np.ndarray):
            return array
        codes = [table.setdefault(text, len(table)) % 2**16 for text in array.reshape(-1)]
        texts = list(table)
        handed_on = np.empty(array.size, object)
        handed_on[:] = [texts[code] for code in codes]
        return handed_on.reshape(array.shape)


class ComparesTextsAtTheirEnds(Broken):
    """Texts are uploaded anew if a length, or a first or last letter, is another one."""

    suites = ("request/inputs_that_compare_equal*",)

    def compute(self, runner, arrays):
        seen = []
        for index, array in enumerate(arrays):
            if array.dtype == object and isinstance(unboxed(array), np.ndarray):
                key = [(len(text), text[:1], text[-1:]) for text in array.reshape(-1)]
                known = notes(runner).get(index)
                if known is None or known[0] != key:
                    notes(runner)[index] = known = key, array.copy()
                array = known[1]
            seen.append(array)
        return super().compute(runner, seen)


class KnowsTensorsOfSequences(Broken):
    """A sequence is uploaded anew if another tensor is in it, and not if one has changed."""

    suites = ("request/sequences_are_read_anew",)

    def compute(self, runner, arrays):
        seen = []
        for index, array in enumerate(arrays):
            tensors = unboxed(array)
            if isinstance(tensors, list):
                known = notes(runner).get(index)
                if known is None or [*map(id, known[0])] != [*map(id, tensors)]:
                    known = notes(runner)[index] = list(tensors), [t.copy() for t in tensors]
                array = boxed(known[1])
            seen.append(array)
        return super().compute(runner, seen)


# ----------------------------------------------------------------------------------------- counters


class CountsNothingOfNothing(Broken):
    """A run without elements starts nothing, and counters are those of the run before."""

    suites = ("properties/counters_are_of_the_last_run_whatever*",)

    class runner_type(GoodRunner):
        def run(self, inputs, outputs=None):
            before = self.elapsed_us
            results = super().run(inputs, outputs)
            if before and any(0 in tensor.shape for tensor in inputs):
                self.elapsed_us = before
            return results


class CountsFromTheFailure(Broken):
    """The clock of a run that fails goes on, and the next run stops it."""

    suites = ("properties/counters_are_of_the_last_run_whatever*",)

    class runner_type(GoodRunner):
        began = None

        def run(self, inputs, outputs=None):
            self.began = self.began or time.perf_counter()
            results = super().run(inputs, outputs)
            self.elapsed_us = 1e6 * (time.perf_counter() - self.began)
            self.began = None
            return results
