"""Attention of halves that reads queries, keys and values where a product has written them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ..comparison import build, floats, int64s
from ..half_networks import check

pytestmark = pytest.mark.usefixtures("matrix_units")

COPIES = {"copy_box", "transpose_planes", "gather"}


class Spelling:
    """Nodes of a model, and its constants."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def const(self, array):
        """The name of a constant."""
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, op_type, *inputs, outputs=1, **attrs):
        """The name of what a node computes, or names."""
        names = [f"{op_type}{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attrs))
        return names if outputs > 1 else names[0]

    def parts(self, rows, way):
        """Queries, keys and values (batch, head, row, element) of rows (3, batch, head, ...)."""
        axis = self.const(int64s(0))
        if way == "split":
            pieces = self.add("Split", rows, outputs=3, axis=0, num_outputs=3)
            return [self.add("Squeeze", piece, axis) for piece in pieces]
        if way == "gather":
            places = [self.const(np.array(n, np.int64)) for n in range(3)]
            return [self.add("Gather", rows, place, axis=0) for place in places]
        ends = [self.const(int64s(n)) for n in range(4)]
        pieces = [self.add("Slice", rows, ends[n], ends[n + 1], axis) for n in range(3)]
        return [self.add("Squeeze", piece, axis) for piece in pieces]

    def attend(self, q, k, v, size, by_shape=False, mask=None):
        """Scaled dot-product attention as PyTorch's exporters spell it."""
        factor = self.const(np.array([size**-0.25], np.float32))
        if by_shape:
            shape = self.add("Shape", q)
            last = self.add("Slice", shape, self.const(int64s(-1)), self.const(int64s(2**62)))
            root = self.add("Sqrt", self.add("Cast", last, to=TensorProto.FLOAT))
            one = self.const(np.array([1], np.float32))
            factor = self.add("Sqrt", self.add("Div", one, root))
        keys = self.add("Mul", self.add("Transpose", k, perm=[0, 1, 3, 2]), factor)
        scores = self.add("MatMul", self.add("Mul", q, factor), keys)
        if mask is None:
            weights = self.add("Softmax", scores, axis=-1)
        else:
            softmax = self.add("Softmax", self.add("Add", scores, mask), axis=-1)
            zero = self.const(np.array(0, np.float32))
            weights = self.add("Where", self.add("IsNaN", softmax), zero, softmax)
        return self.add("MatMul", weights, v)

    def model(self, feeds, result):
        """The model, with rows of all heads as its result."""
        nodes = [*self.nodes, helper.make_node("Relu", [result], ["y"])]
        return build(nodes, feeds, ["y"], self.weights)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_shape", [False, True])
@pytest.mark.parametrize("way", ["split", "gather", "slice"])
@pytest.mark.parametrize(("batch", "rows", "heads", "size"), [(1, 21, 3, 16), (2, 5, 2, 24)])
def test_one_product_holds_all_three(batch, rows, heads, size, way, by_shape):
    width = heads * size
    spell = Spelling()
    product = spell.add("MatMul", "x", spell.const(floats(width, 3 * width, seed=1)))
    apart = spell.add("Reshape", product, spell.const(int64s(batch, rows, 3, heads, size)))
    q, k, v = spell.parts(spell.add("Transpose", apart, perm=[2, 0, 3, 1, 4]), way)
    mixed = spell.attend(q, k, v, size, by_shape)
    back = spell.add("Transpose", mixed, perm=[0, 2, 1, 3])
    flat = spell.add("Reshape", back, spell.const(int64s(batch, rows, width)))
    out = spell.add("MatMul", flat, spell.const(floats(width, 8, seed=2)))
    feeds = {"x": floats(batch, rows, width) / 2}
    kernels = check(spell.model(feeds, out), feeds)
    assert kernels.count("attention") == 1
    assert not COPIES & set(kernels)


def test_heads_stay_before_rows_where_nobody_turns_them():
    feeds = {"q": floats(2, 3, 9, 16), "k": floats(2, 3, 7, 16, seed=1)}
    feeds["v"] = floats(2, 3, 7, 16, seed=2)
    spell = Spelling()
    kernels = check(spell.model(feeds, spell.attend("q", "k", "v", 16)), feeds)
    assert "attention" in kernels
    assert not COPIES & set(kernels)


def test_products_whose_rows_are_heads_stay_three():
    heads, rows, size = 3, 4, 16
    spell = Spelling()
    split = spell.const(int64s(2, heads, rows, size))
    weights = [spell.const(floats(32, rows * size, seed=n)) for n in range(3)]
    q, k, v = (spell.add("Reshape", spell.add("MatMul", "x", w), split) for w in weights)
    feeds = {"x": floats(2, heads, 32) / 2}
    kernels = check(spell.model(feeds, spell.attend(q, k, v, size)), feeds)
    assert kernels.count("attention") == 1


def test_parts_that_begin_within_a_unit_are_copied():
    spell = Spelling()
    product = spell.add("MatMul", "x", spell.const(floats(16, 52, seed=1)))
    ends = [spell.const(int64s(n)) for n in (4, 20, 36, 52)]
    axis, shape = spell.const(int64s(2)), spell.const(int64s(1, 9, 1, 16))
    pieces = [spell.add("Slice", product, ends[n], ends[n + 1], axis) for n in range(3)]
    turned = [spell.add("Reshape", piece, shape) for piece in pieces]
    q, k, v = (spell.add("Transpose", piece, perm=[0, 2, 1, 3]) for piece in turned)
    feeds = {"x": floats(1, 9, 16)}
    kernels = check(spell.model(feeds, spell.attend(q, k, v, 16)), feeds)
    assert "attention" in kernels


def test_what_others_read_too_is_computed():
    spell = Spelling()
    product = spell.add("MatMul", "x", spell.const(floats(16, 48, seed=1)))
    apart = spell.add("Reshape", product, spell.const(int64s(1, 9, 3, 1, 16)))
    turned = spell.add("Transpose", apart, perm=[2, 0, 3, 1, 4])
    q, k, v = spell.parts(turned, "gather")
    mixed = spell.add("Add", spell.attend(q, k, v, 16), spell.add("Tanh", v))
    feeds = {"x": floats(1, 9, 16)}
    kernels = check(spell.model(feeds, mixed), feeds)
    assert "attention" in kernels


def test_a_row_that_may_attend_to_nothing_is_zero_where_models_say_so():
    mask = np.zeros((1, 1, 5, 7), np.float32)
    mask[..., 1, :] = -np.inf
    mask[..., 2, 3:] = -np.inf
    feeds = {"q": floats(1, 2, 5, 16), "k": floats(1, 2, 7, 16, seed=1)}
    feeds["v"] = floats(1, 2, 7, 16, seed=2)
    for given in (False, True):
        spell = Spelling()
        name = "mask" if given else spell.const(mask)
        fed = feeds | ({"mask": mask} if given else {})
        kernels = check(spell.model(fed, spell.attend("q", "k", "v", 16, mask=name)), fed)
        assert "attention" in kernels
