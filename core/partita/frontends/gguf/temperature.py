"""Factors of queries that grow with the position, so that attention stays sharp in long texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.gguf.graph_writer import Dims, GraphWriter
from partita.frontends.gguf.hyperparameters import Temperature

if TYPE_CHECKING:
    import onnx_ir as ir

_NAME = "temperature"


def query_factors(
    writer: GraphWriter, temperature: Temperature, ids: ir.Value, lengths: ir.Value
) -> ir.Value:
    """The factor of each token's queries [batch, sequence, 1].

    Args:
        writer: Writes the operations.
        temperature: How queries grow.
        ids: Tokens [batch, sequence].
        lengths: Each sequence's length after the run, less one [batch]; where the run is the
            sequence's first one it may be padded, and its first token is at position 0.
    """
    shape = ("batch", "sequence")
    one = _number(writer, "one", 1.0)

    def apply(op_type: str, inputs: list[ir.Value], name: str, dims: Dims = shape) -> ir.Value:
        return writer.apply(op_type, inputs, f"{_NAME}.{name}", dims)

    places, count = _places(writer, ids)
    last = _floats(writer, lengths, "last", ("batch",))
    behind = apply("Add", [last, one], "lengths", ("batch",))
    before = apply("Sub", [behind, count], "before", ("batch",))
    first = apply("Relu", [before], "first", ("batch",))
    axis = writer.constant("last_axis", np.array([-1], np.int64))
    column = apply("Unsqueeze", [first, axis], "column", ("batch", 1))
    positions = apply("Add", [column, places], "positions")
    parts = apply("Div", [positions, _number(writer, "step", temperature.step)], "parts")
    steps = apply("Add", [apply("Floor", [parts], "floor"), one], "steps")
    logarithm = apply("Log", [steps], "logarithm")
    grown = apply("Mul", [logarithm, _number(writer, "scale", temperature.scale)], "grown")
    factors = apply("Add", [grown, one], "factors")
    return apply("Unsqueeze", [factors, axis], "of_queries", (*shape, 1))


def _places(writer: GraphWriter, ids: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The numbers 0, 1, ... of the tokens of a run [sequence], and how many tokens it has [1]."""
    import onnx_ir as ir

    int64 = ir.DataType.INT64
    count = writer.value(f"{_NAME}.count", (1,), int64)
    writer.write("Shape", [ids], [count], start=1, end=2)
    alone = writer.value(f"{_NAME}.count_alone", (), int64)
    axis = writer.constant("first_axis", np.array([0], np.int64))
    writer.write("Squeeze", [count, axis], [alone])
    start, step = (
        writer.constant(f"{_NAME}.{name}", np.array(value, np.int64))
        for name, value in (("range_start", 0), ("range_step", 1))
    )
    places = writer.value(f"{_NAME}.range", ("sequence",), int64)
    writer.write("Range", [start, alone, step], [places])
    whole = _floats(writer, places, "places", ("sequence",))
    return whole, _floats(writer, count, "count_as_float", (1,))


def _floats(writer: GraphWriter, value: ir.Value, name: str, dims: Dims) -> ir.Value:
    import onnx_ir as ir

    return writer.apply("Cast", [value], f"{_NAME}.{name}", dims, to=ir.DataType.FLOAT)


def _number(writer: GraphWriter, name: str, value: float) -> ir.Value:
    return writer.constant(f"{_NAME}.{name}", np.array(value, np.float32))
