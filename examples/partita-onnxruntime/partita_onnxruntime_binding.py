"""Bound calls of device ORT: sessions with the memory that they read and write."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import partita
from partita.errors import InferError


def bound_call(
    session: Any,
    names: Sequence[str],
    inputs: Sequence[Any],
    ports: Sequence[partita.Port],
    outputs: Sequence[Any],
) -> partita.BoundCall | None:
    """A call that reads these inputs and writes these outputs, if onnxruntime can."""
    if not all(map(_fits, outputs, ports)):
        return None
    read, written = [t.numpy() for t in inputs], [t.numpy() for t in outputs]
    if any(np.may_share_memory(a, b) for a in read for b in written):
        return None
    return OrtCall(session, dict(zip(names, read, strict=True)), written)


def _fits(tensor: Any, port: partita.Port) -> bool:
    """Whether onnxruntime can write a port's value to a tensor."""
    if not isinstance(tensor, partita.HostTensor) or not port.is_static:
        return False
    array = tensor.numpy()
    return array.shape == port.shape and array.dtype == port.dtype and array.flags.carray


class OrtCall(partita.BoundCall):
    """A run that takes no memory: that of its tensors was bound before."""

    def __init__(self, session: Any, inputs: dict[str, Any], outputs: Sequence[Any]) -> None:
        self.session, self.binding = session, session.io_binding()
        self.arrays = [*inputs.values(), *outputs]  # the binding holds addresses
        for name, a in inputs.items():
            self.binding.bind_input(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        for port, a in zip(session.get_outputs(), outputs, strict=True):
            self.binding.bind_output(port.name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)

    def __call__(self) -> None:
        try:
            self.session.run_with_iobinding(self.binding)
        except Exception as error:
            raise InferError(f"onnxruntime: {error}") from error
