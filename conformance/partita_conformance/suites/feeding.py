"""What checks feed runners that they call without a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import partita


class HasInputs(Protocol):
    """A compiled model, of an application or of a device."""

    @property
    def inputs(self) -> Sequence[partita.Port]:
        """Its input ports."""


def host_tensors(model: HasInputs, feeds: Mapping[str, Any]) -> list[partita.Tensor]:
    """The inputs of a run, one per port, in order: tensors over the arrays, not copies."""
    return [partita.HostTensor(feeds[port.name]) for port in model.inputs]
