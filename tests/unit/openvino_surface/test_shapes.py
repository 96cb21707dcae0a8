"""Shapes, dimensions and layouts answer as OpenVINO's do."""

from __future__ import annotations

import numpy as np
import pytest

from partita.errors import ModelError
from partita.shapes.dimension import Dimension, Symbol
from partita.shapes.layout import Layout
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import AxisSet, AxisVector, Coordinate, CoordinateDiff, Shape, Strides


@pytest.mark.parametrize(
    ("given", "said", "bounds"),
    [
        ((3,), "3", (3, 3)),
        ((), "?", (0, -1)),
        ((-1,), "?", (0, -1)),
        ((2, 5), "2..5", (2, 5)),
        ((2, -1), "2..", (2, -1)),
        (("2..5",), "2..5", (2, 5)),
        (("..5",), "..5", (0, 5)),
        (("3..",), "3..", (3, -1)),
        (("?",), "?", (0, -1)),
        ((" 7 ",), "7", (7, 7)),
        ((0,), "0", (0, 0)),
        (("batch",), "batch", (0, -1)),
    ],
)
def test_dimensions(given, said, bounds):
    dim = Dimension(*given)
    assert str(dim) == dim.to_string() == said
    assert repr(dim) == f"<Dimension: {said}>"
    assert (dim.min_length, dim.max_length) == (dim.get_min_length(), dim.get_max_length())
    assert (dim.min_length, dim.max_length) == bounds
    assert dim.is_static == (bounds[0] == bounds[1]) == (not dim.is_dynamic)


@pytest.mark.parametrize("given", [(-5,), (5, 2), ("5..2",), ("",), ("1,2",), ("4x",), (1.5,)])
def test_what_is_no_dimension(given):
    with pytest.raises(ModelError, match="dimension"):
        Dimension(*given)


def test_how_dimensions_compare():
    assert Dimension(3) == 3
    assert Dimension(-1) == -1
    assert Dimension() == Dimension.dynamic()
    assert Dimension(1, 10) == Dimension(1, 10)
    assert Dimension("n") == "n"
    assert Dimension(3) != "n"
    assert Dimension(3) != 4
    assert Dimension(3) != [3]
    assert Dimension(2, 5).compatible(3)
    assert not Dimension(2, 5).compatible(Dimension(7))
    assert Dimension(3).refines(Dimension(2, 5))
    assert Dimension(2, 5).relaxes(3)
    assert not Dimension(2, 5).refines(3)
    assert Dimension().same_scheme(Dimension(1, 2))
    assert not Dimension(3).same_scheme(4)
    assert Dimension(3).get_length() == len(Dimension(3)) == int(np.int64(3))
    assert Dimension(2, 5).holds(5)
    assert not Dimension(2, 5).holds(6)
    with pytest.raises(ModelError, match=r"Dimension '2\.\.5' has no size"):
        Dimension(2, 5).get_length()


def test_symbols():
    dim = Dimension()
    assert not dim.has_symbol()
    assert dim.get_symbol() is None
    dim.set_symbol(Symbol())
    other = Dimension()
    other.set_symbol(dim.get_symbol())
    assert dim.get_symbol() == other.get_symbol() != Symbol()
    assert dim.size == dim.get_symbol()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, 3, -1, 224], "[1,3,?,224]"),
        ([1, (2, 5), "3..4", Dimension(7)], "[1,2..5,3..4,7]"),
        ("1,3,?,1..5", "[1,3,?,1..5]"),
        ("[1,3,?]", "[1,3,?]"),
        ("...", "[...]"),
        (None, "[...]"),
        ("", "[]"),
        ([], "[]"),
        (Shape([1, 2]), "[1,2]"),
        (np.array([1, 2]), "[1,2]"),
        ([1, None, "n"], "[1,?,n]"),
    ],
)
def test_partial_shapes(given, said):
    shape = PartialShape(given)
    assert str(shape) == shape.to_string() == said
    assert repr(shape) == f"<PartialShape: {said}>"
    assert PartialShape(shape) == shape


def test_what_partial_shapes_tell():
    open_, known = PartialShape([1, -1]), PartialShape([1, 2])
    assert (known.is_static, known.is_dynamic) == (True, False)
    assert (open_.is_static, open_.is_dynamic, open_.all_non_negative) == (False, True, True)
    assert known.to_shape() == known.get_shape() == (1, 2) == Shape([1, 2])
    assert known == [1, 2]
    assert open_ == [1, -1]
    assert open_ != known
    assert open_ != "[1,?]"
    assert (known.rank, PartialShape.dynamic().rank) == (2, -1)
    assert PartialShape.dynamic(Dimension(3)) == ["?", "?", "?"]
    assert PartialShape([(1, 4), (2, 5)]).get_max_shape() == [4, 5]
    assert PartialShape([(1, 4), (2, 5)]).get_min_shape() == [1, 2]
    assert open_.get_max_shape() == [1, 2**63 - 1]
    assert known[0] == known.get_dimension(0) == 1
    assert PartialShape([1, 2, 3])[1:] == [2, 3]
    assert [str(dim) for dim in open_] == ["1", "?"]
    assert open_.compatible([1, 3])
    assert PartialShape([1, 3]).refines(open_)
    assert open_.relaxes(PartialShape([1, 3]))
    assert open_.same_scheme(PartialShape([1, -1]))
    assert not open_.compatible([1, 3, 4])
    assert PartialShape.dynamic().relaxes(known)
    assert known.refines(PartialShape.dynamic())


def test_a_dimension_of_a_partial_shape_is_replaced():
    shape = PartialShape([1, 2])
    shape[0], shape[-1] = -1, (2, 4)
    assert str(shape) == "[?,2..4]"
    with pytest.raises(ModelError, match="has 2 dimensions; dimension 2 does not exist"):
        shape[2] = 1


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: PartialShape([1, -1]).to_shape(), r"Shape \[1,\?\] has dimensions without a size"),
        (lambda: len(PartialShape.dynamic()), "The rank of shape .* is not known"),
        (lambda: PartialShape(5), "A shape is a sequence of dimensions; found 5"),
        (lambda: Shape([1, -1]), r"no negative dimensions; found \[1, -1\]"),
        (lambda: Shape([1.5]), r"Shape holds whole numbers; found \[1.5\]"),
        (lambda: Shape("1,x"), "'1,x' is not a shape"),
    ],
)
def test_what_is_no_shape(ask, said):
    with pytest.raises(ModelError, match=said):
        ask()


def test_shapes_are_lists_of_sizes():
    shape = Shape("[1, 3]")
    assert shape == [1, 3]
    assert shape == (1, 3)
    assert shape == (1, 3)
    assert shape != (1, 4)
    assert shape[1:] == Shape([3])
    assert isinstance(shape[1:], Shape)
    assert (str(shape), shape.to_string(), repr(shape)) == ("[1,3]", "[1,3]", "<Shape: [1,3]>")
    assert np.zeros(shape).shape == (1, 3)
    shape[0] = 2
    assert shape == Shape([2, 3])
    assert [list(kind([1, 2])) for kind in (Strides, Coordinate, AxisVector)] == [[1, 2]] * 3
    assert CoordinateDiff([1, -1])[1] == -1
    assert AxisSet([1, 1]) == {1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NCHW", "[N,C,H,W]"),
        ("N...C", "[N,...,C]"),
        ("[n,c, height ,width]", "[N,C,HEIGHT,WIDTH]"),
        ("NC??", "[N,C,?,?]"),
        ("", "[...]"),
        ("[N,C,H,W]", "[N,C,H,W]"),
        ("**SCALAR**", "**SCALAR**"),
    ],
)
def test_layouts(text, said):
    assert str(Layout(text)) == Layout(text).to_string() == said
    assert Layout(said) == Layout(text)
    assert hash(Layout(said)) == hash(Layout(text))


def test_what_layouts_tell():
    layout = Layout("NCHW")
    assert layout == "nchw"
    assert layout != 5
    assert layout.has_name("H")
    assert not layout.has_name("Q")
    assert layout.get_index_by_name("H") == 2
    assert Layout("N...C").get_index_by_name("C") == -1
    assert (Layout().empty, layout.empty) == (True, False)
    assert Layout.scalar() == Layout("**SCALAR**")
    assert list(layout.names) == ["N", "C", "H", "W"]
    with pytest.raises(ModelError, match=r"Layout '\[N,C,H,W\]' has no dimension 'Q'"):
        layout.get_index_by_name("Q")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NN", "names the dimension 'N' twice"),
        ("N...C...", "has the dimension '.'"),
        ("[N,C", "does not close it"),
        ("[N,,C]", "has the dimension ''"),
        ("N-C", "has the dimension '-'"),
    ],
)
def test_what_is_no_layout(text, said):
    with pytest.raises(ModelError, match=said):
        Layout(text)
