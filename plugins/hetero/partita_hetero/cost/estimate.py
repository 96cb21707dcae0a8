"""Cost estimates by a roofline model, for what was not measured.

An operation takes as long as its arithmetic or its memory traffic, whichever is more. The rates are
guesses by kind of device, corrected by what was measured on the device itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.model.model import numpy_dtype, value_shape
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Work:
    """What a computation asks of a device.

    Attributes:
        flops: Arithmetic operations.
        nbytes: Bytes read and written.
    """

    flops: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a device is.

    Attributes:
        flops: Arithmetic operations a second.
        nbytes: Bytes moved a second.
    """

    flops: float
    nbytes: float

    def seconds(self, work: Work) -> float:
        """Time for some work."""
        return max(work.flops / self.flops, work.nbytes / self.nbytes)


_KINDS = {
    "gpu": Rates(5e12, 5e11),
    "accelerator": Rates(1e12, 1e11),
    "cpu": Rates(1e11, 2e10),
    "reference": Rates(1e9, 1e9),
}


def rates(kind: str, measured: Iterable[tuple[Work, float]]) -> Rates:
    """The rates of a device.

    Args:
        kind: As ``DeviceInfo.kind`` tells it.
        measured: Work that was measured on the device, with its seconds; the guess is scaled by the
            median of how far it is off.

    Example:
        >>> rates("cpu", []).seconds(Work(flops=1e9, nbytes=0))
        0.01
        >>> rates("cpu", [(Work(flops=1e9, nbytes=0), 0.02)]).seconds(Work(flops=1e10, nbytes=0))
        0.2
    """
    guess = _KINDS.get(kind, _KINDS["accelerator"])
    factors = [s / guess.seconds(w) for w, s in measured if s > 0 and guess.seconds(w) > 0]
    factor = statistics.median(factors) if factors else 1.0
    return Rates(guess.flops / factor, guess.nbytes / factor)


def work_of(op_graph: OpGraph, ops: Sequence[int]) -> Work:
    """The work of operations that are computed together; unknown sizes count as one element.

    What only passes from one to the next is not counted as traffic.
    """
    inside = {value for op in ops for value in op_graph.nodes[op].outputs}
    kept_inside = {
        value
        for value in inside
        if all(user in {op_graph.nodes[op] for op in ops} for user, _ in value.uses())
        and value.name not in op_graph.outputs
    }
    read = {
        value for op in ops for value in op_graph.nodes[op].inputs if value is not None
    } - inside
    traffic = sum(_nbytes(value) for value in read | (inside - kept_inside))
    return Work(sum(_flops(op_graph.nodes[op]) for op in ops), traffic)


def _flops(node: ir.Node) -> float:
    """Multiplications and additions; one for every element written where nothing else is known."""
    written = sum(_elements(value) for value in node.outputs)
    shapes = [_shape(value) for value in node.inputs]
    if node.op_type in ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose"):
        weights = shapes[3] if node.op_type == "QLinearConv" and len(shapes) > 3 else shapes[1]
        if len(weights) > 2:
            result = written if node.op_type != "ConvTranspose" else math.prod(shapes[0])
            return 2.0 * result * math.prod(weights[1:])
    if node.op_type in ("MatMul", "Gemm", "MatMulInteger") and len(shapes) > 1 and shapes[0]:
        transposed = node.attributes.get("transA")
        inner = shapes[0][0 if transposed is not None and transposed.value else -1]
        return 2.0 * written * inner
    if node.op_type in ("LSTM", "GRU", "RNN") and len(shapes) > 2 and len(shapes[0]) == 3:
        steps, batch, _ = shapes[0]
        return 2.0 * steps * batch * (math.prod(shapes[1]) + math.prod(shapes[2]))
    return float(written)


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    shape = None if value is None else value_shape(value)
    if shape is None and value is not None and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    if shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else 1 for dim in shape)


def _elements(value: ir.Value) -> int:
    return math.prod(_shape(value))


def _nbytes(value: ir.Value) -> int:
    dtype = numpy_dtype(value.dtype)
    return _elements(value) * (4 if dtype is None else dtype.itemsize)
