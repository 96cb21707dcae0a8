"""A model that one device takes whole: its runner's answers are the request's, but for failures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partita.contract.bound_call import BoundCall
from partita.contract.runner import Runner, run_into
from partita.errors import BoundCallEndedError, InferCancelledError
from partita.runtime.result_check import ResultCheck
from partita.tensors.tensor import Tensor
from partita_hetero.cost import clock

if TYPE_CHECKING:
    from partita_hetero.compile.executable import Assembly
    from partita_hetero.device_model import HeteroModel
    from partita_hetero.partition.submodels import Submodel
    from partita_hetero.runtime.bound_request import Bound

_log = logging.getLogger("partita.hetero")


def whole_model(compiled: HeteroModel, assembly: Assembly) -> Submodel | None:
    """The submodel that is the whole model with the same ports, if there is one.

    Its device can do all that HETERO would do for it, such as bringing inputs to its memory.
    """
    inputs = tuple(port.name for port in compiled.inputs)
    outputs = tuple(port.name for port in compiled.outputs)
    match assembly.submodels:
        case [piece] if (piece.inputs, piece.outputs) == (inputs, outputs):
            return piece
    return None


_BOUND = 1 << 30
"""Stands for the last step where times are those of a bound call, which takes less than a run."""


class WholeRun:
    """Runs the whole model on its device.

    Args:
        piece: The submodel.
        runner: The device's.
        check: Looks at its results.

    Attributes:
        piece: The submodel.
        runner: The device's.
        run: Its ``run``.
        is_plain: Whether results are host tensors of fixed types and shapes; others may be right
            as well.
    """

    def __init__(self, piece: Submodel, runner: Runner, check: ResultCheck) -> None:
        self.piece = piece
        self.runner = runner
        self.run = runner.run
        self.is_plain = check.is_plain


class WholeBoundCall(BoundCall):
    """A device's bound call, as long as that device runs the model and does not fail.

    Args:
        runner: HETERO's runner, which finds another device.
        compiled: What it runs.
        bound: What the call belongs to; notes how long it takes.
        call: The device's.
        inputs: What it reads.
        outputs: What it writes.
    """

    def __init__(
        self,
        runner: Runner,
        compiled: HeteroModel,
        bound: Bound,
        call: BoundCall,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        self._runner = runner
        self._compiled = compiled
        self._assembly = bound.assembly
        self._paces = bound.paces if bound.paces.watching else None
        self._call = call
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self) -> None:
        """Computes the outputs; after a failure as a run does, which finds another device."""
        paces = self._paces
        if self._compiled.assembly is self._assembly and (paces is None or not paces.drifted):
            try:
                if paces is None:
                    self._call()
                else:
                    start = clock.seconds()
                    self._call()
                    paces.note(0, _BOUND, clock.seconds() - start)
                return
            except (InferCancelledError, BoundCallEndedError):
                raise
            except Exception as error:  # noqa: BLE001  # whatever a broken device raises
                _log.info("a bound call failed, and is run anew: %s", error)
        run_into(self._runner, self._inputs, self._outputs)
