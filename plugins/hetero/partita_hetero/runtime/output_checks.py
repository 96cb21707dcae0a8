"""Checks that devices' results fit the ports and shape symbols of their submodels."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import InferError
from partita.model.expected_shapes import ExpectedShapes
from partita.runtime.result_check import ResultCheck
from partita.tensors.array_state import data_address
from partita.tensors.tensor import HOST, HostTensor, Tensor
from partita_hetero.compile.executable import Assembly


class OutputChecks:
    """Looks at the results of one request's submodels.

    Args:
        assembly: What the request runs.
        expected_shapes: The shapes that values of the model have.
        reject_nan: Whether a result must not hold NaN.
    """

    def __init__(
        self, assembly: Assembly, expected_shapes: ExpectedShapes, reject_nan: bool
    ) -> None:
        self._ports = {
            submodel.number: device_model.outputs
            for submodel, device_model in zip(assembly.submodels, assembly.compiled, strict=True)
        }
        self._devices = {one.number: one.device for one in assembly.submodels}
        self._checks = {
            number: ResultCheck(ports, expected_shapes) for number, ports in self._ports.items()
        }
        self._expected_shapes = expected_shapes
        self._reject_nan = reject_nan
        self._shapes: tuple[tuple[int, ...], ...] = ()

    def expect(self, inputs: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
        """Takes the model's inputs, whose shapes decide those of results; returns the shapes.

        Nothing is looked at, and none returned, where the model's shapes are fixed.
        """
        if self._expected_shapes.symbols:
            self._shapes = tuple([tuple(tensor.shape) for tensor in inputs])
        return self._shapes

    def are_plain(self, number: int, results: Sequence[Tensor]) -> bool:
        """Whether results are host tensors of fixed types and shapes; others may be right too."""
        return self._checks[number].is_plain(results)

    def check(
        self,
        number: int,
        results: Sequence[Tensor],
        planned: Sequence[Tensor | None],
        inputs: Sequence[Tensor | None],
    ) -> None:
        """Looks at what a submodel's device returned.

        Args:
            number: The submodel's number.
            results: What its device returned.
            planned: The tensors that it was handed for them, which fit.
            inputs: The tensors that it read.

        Raises:
            InferError: It is not what the submodel's ports promise.
        """
        if type(results) not in (list, tuple) or (
            len(results) != len(planned) or any(map(operator.is_not, results, planned))
        ):
            fault = self._checks[number].fault(results, self._shapes)
            if fault := fault or self._shared(number, results, planned, inputs):
                raise InferError(f"Device '{self._devices[number]}' {fault}.")
        if not self._reject_nan:
            return
        for port, tensor in zip(self._ports[number], results, strict=True):
            if tensor.dtype.kind == "f" and np.isnan(tensor.numpy()).any():
                raise InferError(
                    f"Device '{self._devices[number]}' returned NaN in '{port.name}', and "
                    "REJECT_NAN is set."
                )

    def _shared(
        self,
        number: int,
        results: Sequence[Tensor],
        planned: Sequence[Tensor | None],
        inputs: Sequence[Tensor | None],
    ) -> str:
        """What is wrong with a result that lies in memory of an input, which others write to.

        State that is updated in place is planned so.
        """
        if not inputs or _lie_apart(results, inputs):
            return ""
        read = [None if one is None else _span_of(one) for one in inputs]
        for port, result, place in zip(self._ports[number], results, planned, strict=True):
            written = None if result is place else _span_of(result)
            if written is None:
                continue
            first, last = written
            for index, span in enumerate(read):
                if span is None or span[0] >= last or span[1] <= first:
                    continue
                if not any(place is x for x in inputs):
                    return (
                        f"returned memory of its input {index} as '{port.name}'; expected "
                        "memory of its own"
                    )
        return ""


def _lie_apart(results: Sequence[Tensor], inputs: Sequence[Tensor | None]) -> bool:
    """Whether it is plain that no result shares memory with an input: arrays own what they lie in.

    It takes a third of the time that addresses do.
    """
    read = {id(_owner_of(one)) for one in inputs if one is not None}
    made = {id(_owner_of(one)) for one in results}
    return id(None) not in read | made and read.isdisjoint(made)


def _owner_of(tensor: Tensor) -> np.ndarray[Any, Any] | None:
    """The array in whose own memory the elements lie; ``None`` if that is not told quickly."""
    if type(tensor) is not HostTensor:
        return None
    array = tensor.numpy()
    while (base := array.base) is not None:
        if type(base) is not np.ndarray:
            return None
        array = base
    return array if array.flags.owndata else None


def _span_of(tensor: Tensor) -> tuple[int, int] | None:
    """The address of elements in host memory, and that behind their last byte, if there are any."""
    if type(tensor) is not HostTensor and tensor.memory != HOST:
        return None
    array = tensor.numpy()
    if not array.size:
        return None
    if array.flags.c_contiguous:
        start = data_address(array)
        return start, start + array.nbytes
    return np.lib.array_utils.byte_bounds(array)
