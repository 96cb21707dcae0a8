"""Constants that would be larger than a model may make: the run computes them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import partita
from partita.lowering.shapes import fold_allowance

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
FIRST = "int64[1] a = {0}, int64[1] b = {1}"
LARGE = {
    "Expand": "<float[1] one = {1}, int64[1] s = {268435456}, FIRST> { t = Expand(one, s)",
    "Tile": "<float[1] one = {1}, int64[1] s = {268435456}, FIRST> { t = Tile(one, s)",
    "ConstantOfShape": "<int64[1] s = {268435456}, FIRST> { t = ConstantOfShape(s)",
    "Range": "<float z = {0}, float n = {268435456}, float d = {1}, FIRST> { t = Range(z, n, d)",
}
"""The beginnings of models that make a tensor of 1 GiB out of one number."""


@pytest.fixture
def nothing_may_be_folded(monkeypatch):
    monkeypatch.setattr(fold_allowance, "FLOOR_BYTES", 0)
    monkeypatch.setattr(fold_allowance, "BYTES_PER_WEIGHT_BYTE", 0)


def large_model(op_type):
    beginning = LARGE[op_type].replace("FIRST", FIRST)
    rest = "u = Slice(t, a, b) y = Add(x, u) }"
    return parser.parse_model(f"{HEAD} g (float[1] x) => (float[1] y) {beginning} {rest}")


def peak_of_compiling(model):
    tracemalloc.start()
    try:
        compiled = partita.Core().compile_model(model, "CPU")
        return compiled, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("op_type", LARGE)
def test_a_gigabyte_that_a_number_asks_for_is_not_made_by_compiling(op_type):
    compiled, peak = peak_of_compiling(large_model(op_type))
    assert peak < 2**26
    assert compiled.device_model.scratch_bytes >= 2**30  # where the run makes it


def test_many_constants_of_which_each_is_small_enough_are_added_up():
    names = [f"t{n}" for n in range(40)]
    lines = " ".join(f"{name} = ConstantOfShape(s)" for name in names)
    text = f"g (float[1] x) => (float[1] y) <int64[1] s = {{16777216}}, {FIRST}> {{ {lines} "
    text += f"m = Max({', '.join(names)}) u = Slice(m, a, b) y = Add(x, u) }}"
    _, peak = peak_of_compiling(parser.parse_model(HEAD + text))
    assert peak < fold_allowance.FLOOR_BYTES + 2**26


def test_what_networks_without_weights_make_is_folded():
    """As many bytes as one convolution of VGG-19 has, beside which a run would be slow."""
    text = """g (float[1, 512, 4, 4] x) => (float[1, 512, 4, 4] y) <int64[4] s = {512, 512, 3, 3}>
    { w = ConstantOfShape(s) y = Conv <pads = [1, 1, 1, 1]> (x, w) }"""
    compiled = partita.Core().compile_model(parser.parse_model(HEAD + text), "CPU")
    program = compiled.device_model.specializer.program([((1, 512, 4, 4), np.dtype("f4"))], None)
    assert "ConstantOfShape" not in {step.op.op_type for step in program.steps}


def computed(node, arrays, dtype):
    weights = [numpy_helper.from_array(x, name) for x, name in zip(arrays, node.input, strict=True)]
    y = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    graph = helper.make_graph([node], "g", [], [y], weights)
    imports = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    compiled = partita.Core().compile_model(model, "CPU")
    (found,) = compiled({}).to_tuple()
    kinds = {
        step.op.exec_type for step in compiled.device_model.specializer.program([], None).steps
    }
    assert "constant" not in kinds or not found.size
    return found


TYPES = [np.float32, np.float64, np.int16, np.int32, np.int64]


@pytest.mark.usefixtures("nothing_may_be_folded")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ends", [(0, 30_000, 1), (17, -40, -3), (5, 5, 1), (1, 9, -1)])
def test_ranges_of_the_run(dtype, ends):
    node = helper.make_node("Range", ["a", "b", "c"], ["y"])
    found = computed(node, [np.array(n, dtype) for n in ends], dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.arange(*ends).astype(dtype))


@pytest.mark.usefixtures("nothing_may_be_folded")
def test_ranges_of_fractions_of_the_run():
    ends = [np.array(n, np.float32) for n in (0.25, 9000.5, 0.1)]
    found = computed(helper.make_node("Range", ["a", "b", "c"], ["y"]), ends, np.float32)
    due = np.arange(*(float(n) for n in ends))
    np.testing.assert_allclose(found, due, rtol=1e-6)


@pytest.mark.usefixtures("nothing_may_be_folded")
@pytest.mark.parametrize("dtype", [*TYPES, np.float16, np.bool_, np.uint8, np.uint64])
@pytest.mark.parametrize("shape", [(2, 3, 1, 5), (7,), (), (0, 4)])
def test_tensors_of_one_value_of_the_run(dtype, shape):
    value = numpy_helper.from_array(np.array([1], dtype))
    node = helper.make_node("ConstantOfShape", ["s"], ["y"], value=value)
    found = computed(node, [np.array(shape, np.int64)], dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.ones(shape, dtype))
