"""What a translator sees of one layer, and the table in which translators stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.openvino_ir.document import Layer, Network
from partita.frontends.openvino_ir.weights import element_type
from partita.frontends.operation_site import FULL, OperationSite
from partita.function_table import entered_in

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]
Translator = Callable[["Site"], "ir.Value | Sequence[ir.Value]"]
Step = Callable[
    ["Site", "list[ir.Value]", "list[ir.Value]"],
    "tuple[Sequence[ir.Value], Sequence[ir.Value]]",
]
"""Writes a step of a scan of its states and slices: the states behind it, and its outputs."""

TRANSLATORS: dict[str, Translator] = {}
"""Layer type to what makes ONNX operations of it."""


def translates(*types: str) -> Callable[[Translator], Translator]:
    """Enters a translator into the table; it returns the value of each output port."""
    return entered_in(TRANSLATORS, *types)


class Scope(Protocol):
    """The graph that is being made, as translators see it.

    Attributes:
        net: The layers.
        depth: Number of bodies around this one.
        held: Variable to the input that holds it and, where the first run computes its beginning,
            the one that tells whether there was a run before.
        read: Variable to what it is in this run.
        assigned: Variable to what it becomes.
    """

    net: Network
    depth: int
    held: dict[str, list[ir.Value]]
    read: dict[str, ir.Value]
    assigned: dict[str, ir.Value]

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
        name: str,
    ) -> list[ir.Value]:
        """Writes an operation; the walk names its values.

        Args:
            op_type: An ONNX operator.
            inputs: What it reads; ``None`` where an optional input is left out.
            attributes: Its attributes, as Python values.
            outputs: How many values it makes.
            name: Of the layer that it is written for; the operation's name begins so.

        Returns:
            The values that it makes.
        """

    def constant(self, array: Array, name: str) -> ir.Value:
        """Writes a constant."""

    def fresh(self, name: str) -> str:
        """The name, or one like it that is not taken."""

    def is_read(self, layer: str, port: str) -> bool:
        """Whether an edge leaves an output port."""

    def input_value(self, layer: Layer, name: str) -> ir.Value:
        """A graph input of a parameter's type and shape."""

    def body(self, element_name: str, layer: Layer) -> Scope:
        """The scope of a body of a layer."""

    def empty_body(self, name: str) -> Scope:
        """The scope of a body that a translator writes, where the layer has none."""

    def follow(self, given: Mapping[str, ir.Value]) -> None:
        """Translates all layers; ``given`` holds the values of parameters, by layer id."""

    def result(self, layer: Layer) -> ir.Value:
        """The value that a ``Result`` layer returns."""

    def own(self, value: ir.Value) -> ir.Value:
        """The value as an output of this body: what comes from outside goes through an Identity."""

    def passing(self, value: ir.Value, name: str) -> ir.Graph:
        """A body that returns a value from around it."""

    def graph(self, inputs: list[ir.Value], outputs: list[ir.Value], name: str) -> ir.Graph:
        """The graph of what was written."""


@dataclass(frozen=True)
class Site(OperationSite):
    """One layer with the values it reads, and the means to write operations in its place.

    Attributes:
        layer: What is to be translated.
        inputs: The values at its input ports, in order.
        scope: The graph that is being made.
    """

    layer: Layer
    inputs: list[ir.Value]
    scope: Scope

    # ------------------------------------------------------------------ attributes

    def text(self, key: str, default: str = "") -> str:
        """An attribute, in lower case: files of different tools differ in that."""
        return self.layer.data.get(key, default).strip().lower()

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes-or-no attribute."""
        return self.text(key, str(default)) in ("true", "1", "yes")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        return int(self._number(key, default, int))

    def real(self, key: str, default: float | None = None) -> float:
        """A number."""
        return float(self._number(key, default, float))

    def ints(self, key: str, default: Sequence[int] = ()) -> list[int]:
        """Whole numbers between commas."""
        return self._numbers(key, default, int)

    def floats(self, key: str) -> list[float]:
        """Numbers between commas."""
        return self._numbers(key, (), float)

    def _number(self, key: str, default: Any, kind: type) -> Any:
        found = self.layer.data.get(key)
        if found is None and default is not None:
            return default
        try:
            return kind(found)
        except (TypeError, ValueError) as error:
            raise self.error(f"attribute '{key}' is {found!r}, not a number") from error

    def _numbers(self, key: str, default: Sequence[Any], kind: type) -> list[Any]:
        found = self.layer.data.get(key)
        if found is None:
            return list(default)
        try:
            return [kind(part) for part in found.split(",") if part.strip()]
        except ValueError as error:
            raise self.error(f"attribute '{key}' is {found!r}, not numbers") from error

    def one_of(self, key: str, default: str, known: Mapping[str, Any] | Sequence[str]) -> Any:
        """What stands for an attribute's value, or the value; others are refused by name."""
        found = self.text(key, default)
        if found not in known:
            raise self.error(f"{key} '{found}' is not known; known are {', '.join(known)}")
        return known[found] if isinstance(known, Mapping) else found

    def steps(self) -> dict[str, Any]:
        """Strides and pads of windows, as ONNX's attributes."""
        known = {"explicit": None, "valid": "VALID"}
        known |= {"same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER"}
        auto = self.one_of("auto_pad", "explicit", known)
        pads = [*self.ints("pads_begin"), *self.ints("pads_end")]
        return {
            "strides": self.ints("strides") or None,
            "auto_pad": auto,
            "pads": pads if auto is None and pads else None,
        }

    # ------------------------------------------------------------------ ports

    def rank(self, index: int) -> int:
        """The number of dimensions at an input port."""
        return len(self.layer.inputs[index].dims)

    def dims(self, index: int) -> tuple[int, ...]:
        """The dimensions at an input port; -1 is unknown."""
        return self.layer.inputs[index].dims

    def precision(self, index: int) -> str:
        """The element type at an input port, as ``FP32`` or ``I64``."""
        return self.layer.inputs[index].precision

    def dtype(self, index: int) -> np.dtype[Any]:
        """The element type at an input port, as numpy's."""
        return element_type(self.precision(index), self.layer).numpy()

    @property
    def is_integer(self) -> bool:
        """Whether the first input port holds whole numbers."""
        return self.precision(0)[:1] in ("I", "U")

    def has(self, index: int) -> bool:
        """Whether there is such an input port."""
        return index < len(self.inputs)

    def read(self, index: int) -> bool:
        """Whether something reads an output port."""
        return len(self.layer.outputs) > index and self.scope.is_read(
            self.layer.id, self.layer.outputs[index].id
        )

    def axes(self, index: int, rank: int | None = None) -> list[int]:
        """Constant axes at an input port, counted from the front where the rank is given."""
        found = [int(axis) for axis in self.known(index).reshape(-1)]
        return found if rank is None else [axis + rank if axis < 0 else axis for axis in found]

    def constant(self, index: int) -> Array | None:
        """The constant at an input port, or ``None`` where it is computed.

        One behind a Convert is a constant too: so are weights kept in a narrower type.
        """
        return _held(self.inputs[index])

    def indices(self, index: int) -> ir.Value:
        """An input as int64, which ONNX wants where OpenVINO takes any whole numbers."""
        return self.as_int64(self.inputs[index], self.precision(index))

    def row(self, index: int) -> ir.Value:
        """Whole numbers as int64 of one dimension, which OpenVINO may give as a scalar."""
        array = self.constant(index)
        if array is not None:
            return self.const(array.reshape(-1), np.int64)
        value = self.indices(index)
        return value if self.rank(index) else self.emit("Reshape", value, self.const([1], np.int64))

    def as_int64(self, value: ir.Value, precision: str) -> ir.Value:
        """A value of whole numbers as int64."""
        if value.const_value is not None:
            return self.const(value.const_value.numpy().astype(np.int64))
        return value if precision == "I64" else self.emit("Cast", value, to=_int64())

    # ------------------------------------------------------------------ writing

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
    ) -> list[ir.Value]:
        """Writes an operation, named after the layer, as :meth:`OperationSite.write` says."""
        return self.scope.write(op_type, inputs, attributes, outputs, self.layer.name)

    def scan(
        self,
        step: Step,
        states: Sequence[tuple[ir.Value, Any]],
        sequences: Sequence[tuple[ir.Value, Any]],
        outputs: int,
        backwards: bool = False,
    ) -> list[ir.Value]:
        """Goes through the first axis of sequences, and hands states on from slice to slice.

        Args:
            step: Writes one step: takes a site, the states and the slices, and returns the states
                behind it and its outputs.
            states: The first ones, with their element types, as numpy's.
            sequences: With theirs.
            outputs: How many of them a step has.
            backwards: Whether to begin at the last slice; outputs keep the order of sequences.

        Returns:
            The last states, and the outputs of all steps along a new first axis.
        """
        import onnx_ir as ir

        scope = self.scope.empty_body(self.layer.name)
        held = [
            ir.Value(
                name=scope.fresh(f"{self.layer.name}/held"),
                type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))),
            )
            for _, dtype in (*states, *sequences)
        ]
        after, made = step(Site(self.layer, [], scope), held[: len(states)], held[len(states) :])
        results = [scope.own(value) for value in (*after, *made)]
        return self.emit_many(
            "Scan",
            len(results),
            *(value for value, _ in (*states, *sequences)),
            body=scope.graph(held, results, f"{self.layer.name}/step"),
            num_scan_inputs=len(sequences),
            scan_input_directions=[int(backwards)] * len(sequences),
            scan_output_directions=[int(backwards)] * outputs or None,
        )

    def const(self, array: Any, dtype: Any = None) -> ir.Value:
        """A constant."""
        return self.scope.constant(np.asarray(array, dtype), self.layer.name)

    def like(self, number: float, index: int = 0) -> ir.Value:
        """A scalar constant of an input port's element type."""
        return self.const(number, self.dtype(index))

    def output_type(self, key: str, default: str = "i64") -> ir.DataType:
        """The element type that an attribute names."""
        return element_type(self.text(key, default), self.layer)

    def as_indices(self, value: ir.Value, key: str) -> ir.Value:
        """An int64 value as the index type that an attribute names."""
        wanted = self.output_type(key)
        return value if wanted == _int64() else self.emit("Cast", value, to=wanted)

    def counting(self, count: ir.Value) -> ir.Value:
        """Numbers from 0 on, as int64; as many as an int64[1] says."""
        ends = self.const(0, np.int64), self.emit("Squeeze", count), self.const(1, np.int64)
        return self.emit("Range", *ends)

    def reversed(self, value: ir.Value, axis: int) -> ir.Value:
        """A value with one axis the other way round."""
        ends = [self.const([number], np.int64) for number in (-1, -FULL, axis, -1)]
        return self.emit("Slice", value, *ends)

    def error(self, what: str) -> ModelFormatError:
        """The error of a layer that cannot be translated."""
        return ModelFormatError(f"{self.layer}: {what}")


def _held(value: ir.Value) -> Array | None:
    """What a value holds, if it is a constant or a conversion of one."""
    import onnx_ir as ir

    types: list[ir.DataType] = []
    while value.const_value is None:
        node = value.producer()
        source = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        if node is None or source is None:
            return None
        types.append(ir.DataType(node.attributes["to"].as_int()))
        value = source
    array = value.const_value.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        for dtype in reversed(types):
            array = array.astype(dtype.numpy())
    return array


def _int64() -> ir.DataType:
    import onnx_ir as ir

    return ir.DataType.INT64
