"""Kernels of rows for floats that broadcast: random shapes at the edges of memory, beside numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import TensorProto
from sampling import examples

from partita_cpu.jit.isa import available
from partita_cpu.kernels.elementwise.broadcast_loops import loop_nest
from partita_cpu.kernels.elementwise.combined_rows import FEW, combine_nest, nest_of, row_kernel

from ..conftest import Guarded
from ..networks.test_native_layout import Net, compiled
from ..networks.test_native_passes import steps_of

FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "equal": np.equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
LEVELS = [level for level in available() if level.native]


class Shaped:
    """What `loop_nest` asks of an operand."""

    def __init__(self, shape):
        self.shape = shape


@st.composite
def shapes(draw):
    """Two shapes that broadcast, mostly of short rows."""
    rank = draw(st.integers(1, 4))
    inner = draw(st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 64, 65, 130])))
    sizes = [*draw(st.lists(st.integers(1, 9), min_size=rank - 1, max_size=rank - 1)), inner]
    repeats = draw(st.lists(st.sampled_from([None, 0, 1]), min_size=rank, max_size=rank))
    pair = [
        tuple(1 if given == which else size for size, given in zip(sizes, repeats, strict=True))
        for which in (0, 1)
    ]
    return pair, np.broadcast_shapes(*pair)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("verb", FUNCTIONS)
@examples(40)
@given(shapes=shapes(), threads=st.integers(1, 3))
def test_random_shapes(level, verb, shapes, threads):
    pair, shape = shapes
    nest = loop_nest(shape, [Shaped(own) for own in pair])
    if nest is None:
        return
    rng = np.random.default_rng(sum(shape))
    a, b = (np.rint(4 * rng.standard_normal(own)).astype(np.float32) + 0.25 for own in pair)
    name, plan = nest_of(*nest)
    guarded = Guarded()
    expected = FUNCTIONS[verb](a, b)
    y = guarded.array(np.full(shape, 77, expected.dtype))
    given_ = [guarded.array(x).reshape(-1) for x in (a, b)]
    kernel = row_kernel(level, verb, name)
    for tid in range(threads):
        combine_nest(*given_, y.reshape(-1), kernel, np.array(plan), tid, threads)
    np.testing.assert_array_equal(y, expected)
    guarded.release()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-42])
@pytest.mark.parametrize("verb", FUNCTIONS)
def test_special_numbers(special, verb):
    a = np.array([[special] * 5, [1, -2, 0, np.inf, np.nan]], np.float32)
    b = np.array([special, 0, -1, np.nan, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[verb](a, b)
    y = np.empty_like(expected)
    name, plan = nest_of(*loop_nest(a.shape, [Shaped(a.shape), Shaped(b.shape)]))
    kernel = row_kernel(LEVELS[0], verb, name)
    combine_nest(a.reshape(-1), b, y.reshape(-1), kernel, np.array(plan), 0, 1)
    np.testing.assert_array_equal(y, expected)


def test_few_rows_of_many_are_taken_along_the_longer_axis():
    _, plan = nest_of([1, 500, FEW - 6, 3], [[0, 6, 3, 1], [0, 0, 3, 1]])
    assert plan[:4] == [1, 2, 500, 3]
    assert plan[4:] == [0, 3, 6, 1, 0, 3, 0, 1, 3000, 3, 6, 0, 0]
    _, plan = nest_of([1, 500, FEW, 3], [[0, 24, 3, 1], [0, 0, 3, 1]])
    assert plan[:4] == [1, 500, FEW, 3]


@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
)
def test_networks_use_them(op):
    net = Net(3, 20, 10, 1)
    row = net.const(values=np.linspace(1, 2, 12, dtype=np.float32))
    y = net.add(op, "x", row)
    compares = op not in ("Add", "Sub", "Mul", "Div")
    model = net.model(net.add("Cast", y, to=TensorProto.FLOAT) if compares else y)
    x = np.random.default_rng(1).standard_normal((3, 20, 10, 1)).astype(np.float32)
    found = np.array(compiled(model)({"x": x})[0])
    np.testing.assert_array_equal(found, onnxruntime_results(model, {"x": x})[0])
    assert "combine_nest" in steps_of(net, y)
