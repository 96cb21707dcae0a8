"""OpenVINO's operation sets, to write graphs with.

``partita.opset1`` to ``partita.opset17`` hold functions that make nodes, and ``Model(results,
parameters, name)`` makes a model of them. The nodes are layers of an OpenVINO IR that was never
written to a file: they are translated to ONNX as those of files are.

Example:
    >>> import partita as ov
    >>> from partita import opset13 as ops
    >>> x = ops.parameter([-1, 2], ov.Type.f32, name="x")
    >>> y = ops.relu(ops.add(x, [1.0, -1.0]), name="y")
    >>> print(y.output(0).partial_shape, ov.Model([y], [x], "example"))
    [?,2] <Model 'example': 2 ops, 1 inputs, 1 outputs>
"""

from __future__ import annotations

from collections.abc import Callable

from partita.opsets.functions import constant, function_of, parameter, result
from partita.opsets.node import Node
from partita.opsets.signature import NEWEST, signatures


class OperationSet:
    """The functions of one operation set, as a module has them.

    Args:
        number: Which one.
    """

    parameter = staticmethod(parameter)
    constant = staticmethod(constant)
    result = staticmethod(result)

    def __init__(self, number: int) -> None:
        self.__name__ = f"partita.opset{number}"
        self._number = number

    def __getattr__(self, name: str) -> Callable[..., Node]:
        signature = None if name.startswith("_") else signatures(self._number).get(name)
        if signature is None:
            raise AttributeError(f"{self!r} has no function '{name}'; dir() lists those it has.")
        function = function_of(signature)
        setattr(self, name, function)
        return function

    def __dir__(self) -> list[str]:
        """All functions, made and not yet made."""
        return sorted({"parameter", "constant", "result", *signatures(self._number)})

    def __repr__(self) -> str:
        return f"<operation set '{self.__name__}'>"


opset1 = OperationSet(1)
opset2 = OperationSet(2)
opset3 = OperationSet(3)
opset4 = OperationSet(4)
opset5 = OperationSet(5)
opset6 = OperationSet(6)
opset7 = OperationSet(7)
opset8 = OperationSet(8)
opset9 = OperationSet(9)
opset10 = OperationSet(10)
opset11 = OperationSet(11)
opset12 = OperationSet(12)
opset13 = OperationSet(13)
opset14 = OperationSet(14)
opset15 = OperationSet(15)
opset16 = OperationSet(16)
opset17 = OperationSet(17)

__all__ = ["OperationSet", *(f"opset{number}" for number in range(1, NEWEST + 1))]
