"""A submodel's device that failed, until the request has found another one or gives up."""

from __future__ import annotations

from typing import NoReturn

from partita.errors import InferError, PartitaError, in_words
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
            PartitaError: The device's own error, with its own cause.
            InferError: The device's error is none of ours.
        """
        if isinstance(self.error, PartitaError):
            raise self.error from self.error.__cause__
        failed = f"Device '{self.submodel.device}' failed: {in_words(self.error)}"
        raise InferError(failed) from self.error
