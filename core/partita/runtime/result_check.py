"""Checks that a device's results fit the output ports: tensors, types and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from partita.errors import PLUGIN_FAILURES, in_words, shown
from partita.model.expected_shapes import ExpectedShapes, Shape
from partita.model.model import Port, is_static
from partita.tensors.tensor import HOST, HostTensor, Tensor

_MOST = 256
"""Sets of input shapes of which it is known which results are right; the oldest go first."""

Spec = tuple[Shape, "np.dtype[Any]"]
"""Shape and type of a tensor."""


class ResultCheck:
    """Looks at the results of runs; where ports have fixed shapes, in some tenths of a microsecond.

    Args:
        ports: The outputs of what ran, a model or a submodel of it.
        due: The shapes that the values of the whole model have; judges symbols.
    """

    def __init__(self, ports: Sequence[Port], due: ExpectedShapes) -> None:
        self._ports = ports
        self._due = due
        self._fixed = _fixed(ports)
        self._declared = _Declared(ports, due)
        self._passed: dict[tuple[Shape, ...], tuple[Spec, ...]] = {}

    def is_plain(self, results: Sequence[Tensor]) -> bool:
        """Whether they are host tensors of fixed types and shapes; others may be right as well."""
        fixed = self._fixed
        if fixed is None or type(results) not in (list, tuple) or len(results) != len(fixed):
            return False
        for tensor, (dtype, shape) in zip(results, fixed, strict=True):
            if type(tensor) is not HostTensor or tensor.dtype is not dtype or tensor.shape != shape:
                return False
        return True

    def fault(
        self,
        results: Sequence[Tensor],
        shapes: tuple[Shape, ...],
    ) -> str:
        """What is wrong with results, as the end of a sentence about their device; or nothing.

        Args:
            results: What the device returned.
            shapes: The shapes of the whole model's inputs in this run.
        """
        found = _host_specs(results)
        if found is not None and self._passed.get(shapes) == found:
            return ""
        described = found is not None and self._declared.describes(found, shapes)
        fault = "" if described else self._fault(results, shapes)
        if found is not None and not fault:
            self._passed[shapes] = found
            if len(self._passed) > _MOST:
                del self._passed[next(iter(self._passed))]
        return fault

    def _fault(self, results: Sequence[Tensor], shapes: tuple[Shape, ...]) -> str:
        ports = self._ports
        if not isinstance(results, Sequence):
            return f"returned {type(results).__name__}; expected a list of {len(ports)} tensors"
        if len(results) != len(ports):
            return f"returned {len(results)} tensors; expected {len(ports)}"
        sizes: Mapping[str, int] = {} if self._fixed is not None else self._due.sizes(shapes)
        for port, tensor in zip(ports, results, strict=True):
            if type(tensor) is not HostTensor:
                if not isinstance(tensor, Tensor):
                    return f"returned {type(tensor).__name__} for '{port.name}'; expected a tensor"
                if fault := _fault_of(tensor):
                    return f"returned as '{port.name}' a tensor {fault}"
            # Not "in (None, ...)": numpy's float64 is equal to None.
            wrong_type = port.dtype is not None and port.dtype != tensor.dtype
            if wrong_type or not self._fits(port, tensor.shape, shapes, sizes):
                found = ", ".join(map(str, tensor.shape))
                return (
                    f"returned {tensor.dtype}[{found}] as '{port.name}'; expected {port.describe()}"
                )
        return ""

    def _fits(
        self,
        port: Port,
        shape: Shape,
        shapes: tuple[Shape, ...],
        sizes: Mapping[str, int],
    ) -> bool:
        """Whether a shape is the port's; a symbol stands for its size in this run's inputs."""
        due = port.shape
        if due is None or due == shape:
            return True
        if len(due) != len(shape):
            return False
        doubtful = False
        for have, want in zip(shape, due, strict=True):
            if isinstance(want, int):
                if have != want:
                    return False
            elif want is not None and sizes.get(want, have) != have:
                doubtful = True
        return not doubtful or self._due.infer(port.name, shapes) in (None, shape)


class _Declared:
    """Types, numbers and symbols of ports, to be compared with results in one look each.

    Args:
        ports: The outputs of what ran.
        due: Tells the sizes of symbols that inputs have.
    """

    def __init__(self, ports: Sequence[Port], due: ExpectedShapes) -> None:
        self._due = due
        self._kinds = [
            (port.dtype, None if port.shape is None else len(port.shape)) for port in ports
        ]
        symbols = {symbol for _, _, symbol in due.symbols}
        dims = [dim for port in ports for dim in port.shape or ()]
        told = [isinstance(dim, int) or dim in symbols for dim in dims]
        self._told = told
        self._dims: list[Any] = [*itertools.compress(dims, told)]

    def describes(self, found: Sequence[Spec], shapes: tuple[Shape, ...]) -> bool:
        """Whether they are what the ports say; ``False`` of some that are right all the same.

        Args:
            found: Shapes and types of results.
            shapes: The shapes of the whole model's inputs in this run.
        """
        if [(dtype, len(shape)) for shape, dtype in found] != self._kinds:
            return False
        size_of = self._due.sizes(shapes).get
        sizes = itertools.compress(itertools.chain(*[shape for shape, _ in found]), self._told)
        return [*sizes] == [size_of(dim, dim) for dim in self._dims]


def _fault_of(tensor: Tensor) -> str:
    """What cannot be true of a tensor of a plugin's own class; or nothing."""
    try:
        shape, dtype, memory = tensor.shape, tensor.dtype, tensor.memory
        if not (isinstance(shape, tuple) and all(isinstance(n, Integral) for n in shape)):
            return f"whose shape is {shown(shape)}; expected a tuple of sizes"
        if not isinstance(dtype, np.dtype):
            return f"whose dtype is {shown(dtype)}; expected one of numpy's"
        if not isinstance(memory, str):
            return f"whose memory is {shown(memory)}; expected the name of one"
        if memory != HOST or tensor.layout is not None:
            return ""
        array = tensor.numpy()
    except PLUGIN_FAILURES as error:
        return f"that cannot be looked at: {in_words(error)}"
    if not isinstance(array, np.ndarray):
        return f"whose elements are {shown(array)}; expected an array"
    if (array.shape, array.dtype) != (shape, dtype):
        return f"of {dtype}{list(shape)} whose elements are {array.dtype}{list(array.shape)}"
    return ""


def specs_of(tensors: Sequence[Tensor]) -> tuple[Spec, ...]:
    """Shapes and types of tensors."""
    return tuple([(tensor.shape, tensor.dtype) for tensor in tensors])


def _host_specs(results: Sequence[Tensor]) -> tuple[Spec, ...] | None:
    """Those of results that are host tensors in a list; ``None`` of others, which may be wrong."""
    if type(results) not in (list, tuple):
        return None
    for tensor in results:
        if type(tensor) is not HostTensor:
            return None
    return specs_of(results)


def _fixed(ports: Sequence[Port]) -> list[tuple[np.dtype[Any], Shape]] | None:
    """Types and shapes of ports; ``None`` if one of them is not fixed."""
    fixed = []
    for port in ports:
        if port.dtype is None or not is_static(port.shape):
            return None
        fixed.append((port.dtype, port.shape))
    return fixed
