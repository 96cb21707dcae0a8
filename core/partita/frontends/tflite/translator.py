"""What a translator sees of one operator, and the table in which translators stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.operation_site import OperationSite
from partita.frontends.tflite import weights
from partita.frontends.tflite.document import Document
from partita.frontends.tflite.subgraph import Operator, Quantization, Tensor
from partita.function_table import entered_in

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]
Translator = Callable[["Site"], "ir.Value | Sequence[ir.Value]"]

TRANSLATORS: dict[str, Translator] = {}
"""Operator code, or name of a custom operator, to what makes ONNX operations of it."""

COMPLEX_TRANSLATORS: dict[str, Translator] = {}
"""The same of operators that read or make complex numbers.

ONNX has none: their values are floats with one more axis of two, real and imaginary parts.
"""

_FEW = 64
"""Elements of constants that are reshaped here, and that may list sizes or axes."""

_FLOATS = (0, 1, 10, 18)


def translates(*codes: str) -> Callable[[Translator], Translator]:
    """Enters a translator into the table; it returns the value of each output."""
    return entered_in(TRANSLATORS, *codes)


def translates_complex(*codes: str) -> Callable[[Translator], Translator]:
    """The same, of operators that read or make complex numbers."""
    return entered_in(COMPLEX_TRANSLATORS, *codes)


def has_complex(operator: Operator, tensors: Sequence[Tensor]) -> bool:
    """Whether an operator reads or makes complex numbers."""
    places = (*operator.inputs, *operator.outputs)
    return any(place >= 0 and tensors[place].type == weights.COMPLEX64 for place in places)


def translator_of(operator: Operator, tensors: Sequence[Tensor]) -> Translator | None:
    """What translates an operator; ``None`` if nothing does.

    Args:
        operator: The operator.
        tensors: All tensors of its subgraph.
    """
    is_complex = has_complex(operator, tensors)
    return (COMPLEX_TRANSLATORS if is_complex else TRANSLATORS).get(operator.code)


class Scope(Protocol):
    """The graph that is being made, as translators see it.

    Attributes:
        document: The file.
        depth: Number of bodies around this one.
    """

    document: Document
    depth: int

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
    ) -> list[ir.Value]:
        """Writes an operation; the walk names its values.

        Args:
            op_type: An ONNX operator.
            inputs: What it reads; ``None`` where an optional input is left out.
            attributes: Its attributes, as Python values.
            outputs: How many values it makes.

        Returns:
            The values that it makes, named after the operator that is being translated.
        """

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Writes a constant."""

    def fresh(self, name: str) -> str:
        """The name, or one like it that is not taken."""

    def once(self, key: object, make: Callable[[], ir.Value]) -> ir.Value:
        """A value that is written when it is asked for first."""

    def called(self, place: int, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Writes the operators of a subgraph here; returns what it returns."""

    def body(self) -> Scope:
        """The scope of a body."""

    def given(self, place: int) -> list[ir.Value]:
        """Fresh values for what a subgraph is given."""

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str) -> ir.Graph:
        """The body that was written; outputs from around it go through an Identity."""

    def state(self, name: str, tensor: Tensor, is_assigned: bool = True) -> ir.Value:
        """What a variable is in this run; one that nobody assigns is a constant."""

    def assign(self, name: str, value: ir.Value) -> None:
        """Says what a variable becomes."""

    def call_once(self, place: int) -> None:
        """Takes what a subgraph assigns as what variables begin with."""


@dataclass(frozen=True)
class Site(OperationSite):
    """One operator with the values it reads, and the means to write operations in its place.

    Attributes:
        operator: What is to be translated.
        tensors: All tensors of its subgraph.
        inputs: The values that it reads, in order; ``None`` where one is left out.
        scope: The graph that is being made.
    """

    operator: Operator
    tensors: Sequence[Tensor]
    inputs: Sequence[ir.Value | None]
    scope: Scope

    # ------------------------------------------------------------------ options

    def option(self, name: str, default: Any = None) -> Any:
        """An option by the name of its accessor, e.g. ``"StrideW"``.

        Args:
            name: The name.
            default: What it is if the operator has no options at all; ``None`` refuses that.
        """
        options = self.operator.options
        accessor = getattr(options, name, None)
        if options is None and default is not None:
            return default
        if accessor is None:
            kind = "no options" if options is None else type(options).__name__
            raise self.error(f"it has {kind}, which lack '{name}'")
        return accessor()

    def integer(self, name: str, default: int | None = None) -> int:
        """An option that is a whole number."""
        return int(self.option(name, default))

    def positive(self, name: str, default: int | None = None) -> int:
        """An option that is a whole number above zero, such as a stride."""
        found = self.integer(name, default)
        if not 0 < found < 1 << 20:
            raise self.error(f"'{name}' is {found}; numbers above zero are allowed")
        return found

    def real(self, name: str, default: float | None = None) -> float:
        """An option that is a number."""
        found = float(self.option(name, default))
        if not math.isfinite(found):
            raise self.error(f"'{name}' is {found}")
        return found

    def flag(self, name: str, default: bool | None = None) -> bool:
        """An option that is yes or no."""
        return bool(self.option(name, default))

    def ints(self, name: str) -> list[int]:
        """An option that is a short row of whole numbers, sizes or axes."""
        found = self.option(f"{name}AsNumpy", 0)
        if isinstance(found, int):
            return []
        if len(found) > _FEW:  # operators may share a long one, and each would read it
            raise self.error(f"'{name}' has {len(found)} numbers; at most {_FEW} are read")
        return [int(number) for number in found]

    # ------------------------------------------------------------------ tensors

    def tensor(self, index: int) -> Tensor:
        """The tensor at an input."""
        return self.tensors[self.operator.inputs[index]]

    def target(self, index: int = 0) -> Tensor:
        """The tensor at an output."""
        return self.tensors[self.operator.outputs[index]]

    def has(self, index: int) -> bool:
        """Whether there is such an input."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> ir.Value:
        """The value at an input, as it is in the file: levels where it is quantised."""
        found = self.inputs[index]
        if found is None:
            raise self.error(f"input {index} is left out")
        return found

    def dims(self, index: int) -> tuple[int, ...]:
        """The sizes at an input; -1 is unknown."""
        return self.tensor(index).dims

    def rank(self, index: int) -> int:
        """The number of dimensions at an input."""
        return len(self.dims(index))

    def dtype(self, tensor: Tensor) -> np.dtype[Any]:
        """The element type of a tensor, as numpy's."""
        return weights.element_type(tensor.type, tensor).numpy()

    def is_float(self, index: int) -> bool:
        """Whether an input holds floats, or levels that stand for such."""
        tensor = self.tensor(index)
        return tensor.type in _FLOATS or self.levels(tensor) is not None

    def axis(self, number: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= number < rank:
            raise self.error(f"axis {number} is not one of {rank}")
        return number % rank

    def constant(self, index: int) -> Array | None:
        """The constant at an input, or ``None`` where it is computed or left out."""
        held = self.inputs[index].const_value if self.has(index) else None  # type: ignore[union-attr]
        return None if held is None else held.numpy()

    def numbers(self, index: int) -> list[int]:
        """The whole numbers of a short constant."""
        array = self.known(index)
        if array.size > _FEW or array.dtype.kind not in "iu":
            raise self.error(f"input {index} is not a short list of whole numbers")
        return [int(number) for number in array.reshape(-1)]

    # ------------------------------------------------------------------ quantisation

    def levels(self, tensor: Tensor) -> Quantization | None:
        """What the levels of a tensor stand for, or ``None`` if it holds plain numbers."""
        found = tensor.quantization
        return None if tensor.type in (*_FLOATS, 6) else found

    def floats(self, index: int, perm: tuple[int, ...] | None = None) -> ir.Value:
        """The floats at an input, or those that its levels stand for.

        Args:
            index: Which input.
            perm: Another order of its axes.
        """
        tensor, value = self.tensor(index), self.value(index)

        def make() -> ir.Value:
            moved = value if perm is None else self.moved(value, perm)
            return self.dequantized(moved, tensor, perm)

        return self.scope.once((value, perm), make)

    def dequantized(
        self, value: ir.Value, tensor: Tensor, perm: tuple[int, ...] | None = None
    ) -> ir.Value:
        """What levels of a tensor stand for; the tensor's axes are in the given order there."""
        found = self.levels(tensor)
        if found is None:
            return value
        if tensor.type == 4:  # ONNX has no levels of 64 bits
            scale = self.const(found.scale.astype(np.float32))
            return self.emit("Mul", self.emit("Cast", value, to=1), scale)
        axis = found.axis if perm is None else perm.index(found.axis)
        return self.emit(
            "DequantizeLinear",
            value,
            *self._scale(found, tensor, found.scale.size > 1),
            axis=axis if found.scale.size > 1 else None,
        )

    def quantized(self, value: ir.Value, tensor: Tensor) -> ir.Value:
        """Floats as the levels of a tensor, or as they are where it holds floats."""
        found = self.levels(tensor)
        if found is None:
            return value
        if found.scale.size > 1:
            raise self.error(f"{tensor} is computed, and has a scale for each index of an axis")
        return self.emit("QuantizeLinear", value, *self._scale(found, tensor, False))

    def result(self, value: ir.Value, index: int = 0) -> ir.Value:
        """Floats as an output wants them."""
        return self.quantized(value, self.target(index))

    def same_levels(self, indices: Sequence[int], index: int = 0) -> bool:
        """Whether levels at inputs stand for the same numbers as those at an output."""
        found = self.levels(self.target(index))
        for place in indices:
            own = self.levels(self.tensor(place))
            if not (own is found is None or (own is not None and own.equals(found))):
                return False
        return True

    def carried(
        self, write: Callable[[list[ir.Value]], ir.Value], indices: Sequence[int] = (0,)
    ) -> ir.Value:
        """What an operator that only moves or picks numbers makes of inputs.

        It works on levels where these stand for the same numbers before and behind it.
        """
        if self.same_levels(indices):
            return write([self.value(index) for index in indices])
        return self.result(write([self.floats(index) for index in indices]))

    def _scale(self, found: Quantization, tensor: Tensor, per_axis: bool) -> tuple[ir.Value, ...]:
        shape = (-1,) if per_axis else ()
        zero = found.zero_point
        dtype = self.dtype(tensor)
        limits = np.iinfo(dtype)
        if zero.min() < limits.min or zero.max() > limits.max:
            raise self.error(f"{tensor} has zero points that {dtype} cannot hold")
        scale = self.const(found.scale.reshape(shape))
        if dtype == np.int32:
            if zero.any():
                raise self.error(f"{tensor} has levels of 32 bits with a zero point")
            return (scale,)
        return scale, self.const(zero.astype(dtype).reshape(shape))

    # ------------------------------------------------------------------ activations

    def activated(self, value: ir.Value, index: int = 0) -> ir.Value:
        """A value behind the activation that is fused to the operator.

        One that the levels of the output cannot leave anyway is left out.
        """
        number = self.integer("FusedActivationFunction", 0)
        if number == 4:
            return self.emit("Tanh", value)
        if number not in _BOUNDS:
            raise self.error(f"the fused activation {number} is not known")
        low, high = _BOUNDS[number]
        return self.bounded(value, low, high, index)

    def bounded(
        self, value: ir.Value, low: float | None, high: float | None, index: int = 0
    ) -> ir.Value:
        """A value between bounds, unless the levels of the output keep it there.

        Args:
            value: What is bounded, in floats if the output is quantized.
            low: The least value; ``None`` for no bound.
            high: The largest value; ``None`` for no bound.
            index: Of the operator's output whose levels may keep it there.
        """
        found = self.levels(self.target(index))
        if found is not None and found.scale.size == 1:
            limits = np.iinfo(self.dtype(self.target(index)))
            step, zero = float(found.scale[0]), int(found.zero_point[0])
            if low is not None and (limits.min - zero) * step >= low - step / 2:
                low = None
            if high is not None and (limits.max - zero) * step <= high + step / 2:
                high = None
        if low is None and high is None:
            return value
        if low == 0 and high is None:
            return self.emit("Relu", value)
        dtype = np.dtype(np.float32) if found else self.dtype(self.target(index))
        ends = [None if end is None else self.const(end, dtype) for end in (low, high)]
        return self.emit("Clip", value, *ends)

    # ------------------------------------------------------------------ writing

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
    ) -> list[ir.Value]:
        """Writes an operation, as :meth:`OperationSite.write` says."""
        return self.scope.write(op_type, inputs, attributes, outputs)

    def const(self, array: Any, dtype: Any = None) -> ir.Value:
        """A constant."""
        import onnx_ir as ir

        name = self.target().name if self.operator.outputs else self.operator.code
        return self.scope.initializer(ir.Tensor(np.asarray(array, dtype)), f"{name}/constant")

    def moved(self, value: ir.Value, perm: tuple[int, ...]) -> ir.Value:
        """A value with its axes in another order; a constant is turned as a view."""
        if perm == tuple(range(len(perm))):
            return value
        if value.const_value is not None:
            if len(value.const_value.shape) != len(perm):
                raise self.error(f"expected a constant of {len(perm)} dimensions")
            tensor = weights.transposed(value.const_value, perm)
            return self.scope.initializer(tensor, f"{value.name}/turned")
        return self.emit("Transpose", value, perm=list(perm))

    def to_last(self, value: ir.Value, rank: int = 4) -> ir.Value:
        """A value with channels first, as the file has it: channels last."""
        return self.moved(value, (0, *range(2, rank), 1))

    def channels_first(self, index: int) -> ir.Value:
        """The floats at an input with the last axis behind the first."""
        rank = self.rank(index)
        return self.floats(index, (0, rank - 1, *range(1, rank - 1)))

    def as_int64(self, value: ir.Value) -> ir.Value:
        """Whole numbers as int64."""
        return self.cast(value, 7)

    def indices(self, index: int) -> ir.Value:
        """An input as int64, which ONNX wants for sizes and axes."""
        return self.as_int64(self.value(index))

    def cast(self, value: ir.Value, number: int) -> ir.Value:
        """A value as another ONNX type, by number; constants of a few elements at once."""
        import onnx_ir as ir

        dtype = ir.DataType(number)
        if value.const_value is not None:
            if value.const_value.dtype == dtype:
                return value
            tensor = weights.cast(value.const_value, dtype)
            return self.scope.initializer(tensor, f"{value.name}/{dtype.name.lower()}")
        return self.emit("Cast", value, to=dtype)

    def reshaped(self, value: ir.Value, dims: Sequence[int]) -> ir.Value:
        """A value in another shape, in which one size may be -1; short constants at once."""
        if value.const_value is not None and value.const_value.size <= _FEW:
            return self.const(value.const_value.numpy().reshape(dims))
        return self.emit("Reshape", value, self.const(list(dims), np.int64))

    def error(self, what: str) -> ModelFormatError:
        """The error of an operator that cannot be translated."""
        return ModelFormatError(f"{self.operator}: {what}")


_BOUNDS: Mapping[int, tuple[float | None, float | None]] = {
    0: (None, None),
    1: (0.0, None),
    2: (-1.0, 1.0),
    3: (0.0, 6.0),
}
"""Number of an activation to the bounds that it keeps."""
