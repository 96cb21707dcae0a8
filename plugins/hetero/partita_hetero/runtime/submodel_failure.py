"""A submodel's device that failed, until the request has found another one or gives up."""

from __future__ import annotations

from typing import NoReturn

from partita.errors import INPUT_FAULTS, InferError, PartitaError, in_words
from partita_hetero.partition.submodels import Submodel


class SubmodelFailedError(Exception):
    """A submodel's device failed; carries which one and the device's own error."""

    def __init__(self, submodel: Submodel, error: BaseException) -> None:
        super().__init__(in_words(error))
        self.submodel = submodel
        self.error = error

    def raise_infer_error(self) -> NoReturn:
        """Gives up.

        Raises:
            PartitaError: The device's own error, with its own cause; a line says which device that
                is, if the error does not and the inputs are not at fault.
            InferError: The device's error is none of ours.
        """
        error, device = self.error, self.submodel.device
        if isinstance(error, PartitaError):
            if not isinstance(error, INPUT_FAULTS) and device not in str(error):
                count = len(self.submodel.ops)
                error.with_lines(
                    [*error.lines, f"It was device '{device}', at {count} of the operations."]
                )
            raise error from error.__cause__
        raise InferError(f"Device '{device}' failed: {in_words(error)}") from error
