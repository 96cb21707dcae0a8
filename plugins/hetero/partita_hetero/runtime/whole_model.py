"""The fast path for a model that one device takes as a whole: its runner is used directly.

Also bound calls of such a model or of submodels, as long as no device fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from partita.contract.bound_call import BoundCall
from partita.contract.runner import Runner, run_into
from partita.errors import PLUGIN_FAILURES, BoundCallEndedError, InferCancelledError, in_words
from partita.model.model import Model
from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.cost import clock
from partita_hetero.partition.submodels import Submodel
from partita_hetero.runtime.drift import Paces
from partita_hetero.runtime.failover import Failover

_log = logging.getLogger("partita.hetero")


RUN = -1
"""Stands for a step where paces are those of runs of the whole model."""

CALL = -2
"""Stands for a step where paces are those of a bound call, which takes less than a run."""


def whole_model(model: Model, assembly: Assembly) -> Submodel | None:
    """The submodel that is the whole model with the same ports, if there is one.

    Its device can do all that HETERO would do for it, such as bringing inputs to its memory.
    """
    inputs = tuple(port.name for port in model.inputs)
    outputs = tuple(port.name for port in model.outputs)
    match assembly.submodels:
        case [submodel] if (submodel.inputs, submodel.outputs) == (inputs, outputs):
            return submodel
    return None


class RunWatch(Protocol):
    """What is noticed of runs.

    Attributes:
        paces: How long they take.
    """

    paces: Paces

    def look_for_nan(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Tells of NaN out of finite inputs, if this run is one to be looked at."""


class WatchedBoundCall(BoundCall):
    """A bound call, as long as the same devices run the model and do not fail.

    Args:
        runner: HETERO's runner, which finds another device.
        failover: Tells what the model is run by.
        watch: What runs of the model are watched by, and the call as well: for NaN and its pace.
        call: That of the device which runs the model whole, or of all its submodels.
        inputs: What it reads.
        outputs: What it writes.
        is_whole: Whether one device runs the model; submodels' calls are timed one by one.
    """

    def __init__(
        self,
        runner: Runner,
        failover: Failover,
        watch: RunWatch,
        call: BoundCall,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        is_whole: bool,
    ) -> None:
        self._runner = runner
        self._failover = failover
        self._assembly = failover.assembly
        self._paces = watch.paces if watch.paces.watching else None
        self._is_whole = is_whole
        symbols = failover.expected_shapes.symbols
        self._shapes = tuple(tensor.shape for tensor in inputs) if symbols else ()
        self._look_for_nan = watch.look_for_nan
        self._call = call
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self) -> None:
        """Computes the outputs; after a failure as a run does, which finds another device."""
        paces = self._paces
        if self._failover.assembly is self._assembly and (paces is None or paces.drifted is None):
            try:
                if paces is None:
                    self._call()
                else:
                    self._call_watched(paces)
                self._look_for_nan(self._inputs, self._outputs)
                return
            except (InferCancelledError, BoundCallEndedError):
                raise
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                _log.info("a bound call failed, and the request is run again: %s", in_words(error))
        run_into(self._runner, self._inputs, self._outputs)

    def _call_watched(self, paces: Paces) -> None:
        paces.begin(self._shapes)
        try:
            start = clock.seconds() if self._is_whole else 0.0
            self._call()
            if self._is_whole:
                paces.note(CALL, clock.seconds() - start)
        finally:
            paces.end()

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """Has the device read other inputs, if it can."""
        if self._failover.assembly is not self._assembly or not self._call.rebind(inputs):
            return False
        self._inputs = inputs
        return True
