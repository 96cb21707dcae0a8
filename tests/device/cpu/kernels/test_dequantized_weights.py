"""Constant weights of few bits that a graph makes floats of are multiplied as they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import partita

RNG = np.random.default_rng(11)
PRODUCTS = {"multiply_blocks", "multiply_unpacked_rows"}
TYPES = {
    "int4": (ml_dtypes.int4, -8, 8),
    "uint4": (ml_dtypes.uint4, 0, 16),
    "int8": (np.int8, -128, 128),
    "uint8": (np.uint8, 0, 256),
}


class Weights:
    """Levels (terms, columns), scales and zero points, and what they mean in float64.

    Args:
        kind: Type of levels.
        terms: Rows.
        columns: Columns.
        block: Terms that share a scale; 0 for all of a column, -1 for all.
        zeros: Whether there are zero points.
    """

    def __init__(self, kind, terms, columns, block, zeros=True):
        dtype, low, high = TYPES[kind]
        each = terms if block < 1 else block
        shape = -(-terms // each), 1 if block < 0 else columns
        self.block = block
        self.levels = RNG.integers(low, high, (terms, columns)).astype(dtype)
        self.scales = RNG.uniform(0.01, 0.1, shape).astype(np.float32)
        self.zeros = RNG.integers(low, high, shape).astype(dtype) if zeros else None
        points = np.zeros(shape) if self.zeros is None else self.zeros.astype(np.float64)
        numbers = np.repeat(points, each, 0)[:terms], np.repeat(self.scales, each, 0)[:terms]
        self.matrix = (self.levels.astype(np.float64) - numbers[0]) * numbers[1]

    def parameters(self, turned):
        """Scales and zero points as DequantizeLinear has them, and its attributes."""
        found = [array for array in (self.scales, self.zeros) if array is not None]
        if self.block < 0:
            return [array.reshape(()) for array in found], {}
        axis = int(turned) if self.block else int(not turned)
        if not self.block:
            return [array.reshape(-1) for array in found], {"axis": axis}
        found = [array.T if turned else array for array in found]
        return found, {"axis": axis, "block_size": self.block}


def constant(array, name):
    return ir.Value(name=name, const_value=ir.tensor(np.asarray(array, order="C"), name=name))


def node(graph, op_type, inputs, attributes=None):
    made = ir.node(op_type, inputs, attributes or {})
    graph.append(made)
    return made.outputs[0]


def dequantized(nodes, weights, turned):
    """The weights as a graph makes floats of them, by DequantizeLinear."""
    arrays, attrs = weights.parameters(turned)
    levels = weights.levels.T if turned else weights.levels
    inputs = [constant(array, f"w{i}") for i, array in enumerate((levels, *arrays))]
    return node(nodes, "DequantizeLinear", inputs, attrs), inputs


def decompressed(nodes, weights, turned):
    """The same by Cast, Sub, Mul and Reshape, as OpenVINO's tools compress weights."""
    terms, columns = weights.levels.shape
    arrays = [weights.levels, weights.scales, weights.zeros]
    if weights.block > 0:
        blocks = terms // weights.block
        shapes = [(blocks, weights.block, columns)] + [(blocks, 1, columns)] * 2
        arrays = [a if a is None else a.reshape(s) for a, s in zip(arrays, shapes, strict=True)]
        order = (2, 0, 1)
    else:
        order = (1, 0)
    if turned:
        arrays = [a if a is None else a.transpose(order) for a in arrays]
    inputs = [constant(a, f"w{i}") for i, a in enumerate(arrays) if a is not None]
    floats = node(nodes, "Cast", inputs[:1], {"to": 1})
    if weights.zeros is not None:
        floats = node(nodes, "Sub", [floats, node(nodes, "Cast", inputs[2:], {"to": 1})])
    floats = node(nodes, "Mul", [floats, inputs[1]])
    if weights.block > 0:
        shape = np.array((columns, terms) if turned else (terms, columns))
        inputs.append(constant(shape, "shape"))
        floats = node(nodes, "Reshape", [floats, inputs[-1]])
    return floats, inputs


def product(weights, form=dequantized, kind="MatMul", turned=False, bias=False, rows=5):
    """A product by weights, its right result in float64, and a compiled model's."""
    terms, columns = weights.levels.shape
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=[rows, terms])
    nodes = []
    floats, constants = form(nodes, weights, turned)
    attrs = {}
    if turned and kind == "Gemm":
        attrs = {"transB": 1}
    elif turned:
        floats = node(nodes, "Transpose", [floats], {"perm": [1, 0]})
    row = RNG.standard_normal(columns).astype(np.float32)
    inputs = [x, floats]
    if bias:
        constants.append(constant(row, "row"))
    if bias and kind == "Gemm":
        inputs.append(constants[-1])
    y = node(nodes, kind, inputs, attrs)
    if bias and kind == "MatMul":
        y = node(nodes, "Add", [y, constants[-1]])
    y.name, y.type, y.shape = "y", ir.TensorType(ir.DataType.FLOAT), ir.Shape([rows, columns])
    graph = ir.Graph(
        [x], [y], nodes=nodes, initializers=constants, opset_imports={"": 21}, name="g"
    )
    rows_in = RNG.standard_normal((rows, terms)).astype(np.float32)
    exact = rows_in.astype(np.float64) @ weights.matrix + (row if bias else 0)
    return ir.Model(graph, ir_version=10), rows_in, exact


def check(model, x, exact, hint="PERFORMANCE", tolerance=2e-4):
    """Computes it, and returns by what kernels."""
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": hint})
    request = compiled.create_infer_request()
    (y,) = request.infer({"x": x}).to_tuple()
    np.testing.assert_allclose(y, exact, rtol=0, atol=tolerance * np.abs(exact).max())
    return {step.how for step in request.explain_execution().steps}


@pytest.mark.parametrize("form", [dequantized, decompressed])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [-1, 0, 16, 32, 128])
@pytest.mark.parametrize("kind", TYPES)
def test_weights_stay_levels(kind, block, zeros, form):
    weights = Weights(kind, 384 if block else 300, 70, block, zeros)
    model, x, exact = product(weights, form, turned=zeros)
    steps = check(model, x, exact)
    assert steps & PRODUCTS


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(("kind", "turned"), [("MatMul", True), ("Gemm", True), ("Gemm", False)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_and_what_is_added(kind, turned, bias, rows):
    weights = Weights("uint4", 80, 33, 32)  # the last block is a half
    model, x, exact = product(weights, kind=kind, turned=turned, bias=bias, rows=rows)
    steps = check(model, x, exact)
    assert steps & PRODUCTS
    assert not any("add" in step or "broadcast" in step for step in steps), steps


@pytest.mark.parametrize("kind", ["int4", "uint8"])
def test_strict_products_lose_no_more_than_floats(kind):
    model, x, exact = product(Weights(kind, 256, 40, 64))
    check(model, x, exact, "ACCURACY", 2e-6)


def test_an_axis_that_a_matrix_has_not_is_refused():
    model, x, exact = product(Weights("int8", 64, 64, 0))
    (dequantize,) = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    dequantize.attributes["axis"] = ir.AttrInt64("axis", 3)
    with pytest.raises(partita.errors.PartitaError, match="axis 3"):
        check(model, x, exact)


def test_one_scale_and_one_zero_point_are_for_all():
    """A scale without dimensions beside a zero point with one ended the compile."""
    weights = Weights("uint4", 300, 70, -1)
    weights.scales, weights.zeros = weights.scales.reshape(()), weights.zeros.reshape(1)
    model, x, exact = product(weights, decompressed)
    assert check(model, x, exact) & PRODUCTS
