"""Transformed weights: made once, kept by content, restored only where they belong."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from partita.lowering import Builder, Operand, Packed, Prepacked
from partita.lowering.program import Elements
from partita.lowering.transformed_weights import Form


def counting(fn):
    def counted(array):
        counted.calls += 1
        return fn(array)

    counted.calls = 0
    return counted


W = np.arange(10_000, dtype=np.float32).reshape(100, 100)
SAME = Form(np.float32, W.shape)


def test_made_once_for_each_constant_and_key():
    double, triple = counting(lambda a: a * 2), counting(lambda a: a * 3)
    prepacked = Prepacked()
    for _ in range(3):
        np.testing.assert_array_equal(prepacked.operand(W, "double", double).const, W * 2)
        np.testing.assert_array_equal(prepacked.operand(W, ("times", 3.0), triple).const, W * 3)
    assert (double.calls, triple.calls) == (1, 1)
    made = prepacked.operand(W, "double", double)
    assert made.lasting and prepacked.operand(W, "double", double) is made


def test_a_key_that_stands_for_two_forms_is_refused():
    prepacked = Prepacked()
    prepacked.operand(W, "tiles", lambda a: a * 2, form=SAME)
    with pytest.raises(RuntimeError, match="'tiles' made float32"):
        prepacked.operand(W, "tiles", lambda a: a[:50], form=Form(np.float32, (50, 100)))


def test_restored_by_content_in_another_place():
    first = Prepacked()
    first.operand(W, ("tiles", (1, 2)), lambda a: a * 2, form=SAME)
    again = counting(lambda a: a * 2)
    second = Prepacked(first.state())
    same = W.copy()
    np.testing.assert_array_equal(
        second.operand(same, ("tiles", (1, 2)), again, form=SAME).const, W * 2
    )
    assert again.calls == 0
    assert second.operand(same, ("tiles", (1, 2)), again, form=SAME).const.ctypes.data % 64 == 0


@pytest.mark.parametrize(
    "other",
    [
        W + (np.arange(W.size) == 9_999).reshape(W.shape).astype(np.float32),
        W.reshape(50, 200),
        W.view(np.int32),
        -W,
    ],
)
def test_another_constant_is_not_confused_with_it(other):
    first = Prepacked()
    first.operand(W, "double", lambda a: a * 2, form=SAME)
    again = counting(lambda a: a * 2)
    form = Form(other.dtype, other.shape)
    got = Prepacked(first.state()).operand(other, "double", again, form=form).const
    np.testing.assert_array_equal(got, other * 2)
    assert again.calls == 1


def test_small_results_and_keys_of_this_process_only_are_not_kept():
    prepacked = Prepacked()
    prepacked.operand(W[:2], "small", lambda a: a * 2, form=Form(np.float32, (2, 100)))
    prepacked.operand(W, ("object", object()), lambda a: a * 2, form=SAME)
    prepacked.operand(W, "unstated", lambda a: a * 2)
    assert not prepacked.state()


def test_what_is_restored_may_be_read_only_and_unaligned():
    first = Prepacked()
    first.operand(W, "double", lambda a: a * 2, form=SAME)
    ((name, array),) = first.state().items()
    raw = np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(np.float32).reshape(W.shape)
    got = Prepacked({name: raw}).operand(W, "double", lambda a: None, form=SAME).const
    np.testing.assert_array_equal(got, W * 2)
    assert got.flags.writeable, "numba compiles kernels once more for read-only arrays"


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((99, 100), np.float32),
        np.zeros((100, 101), np.float32),
        np.zeros(10_000, np.float32),
        np.zeros((100, 100), np.float64),
        np.zeros((100, 100), np.int32),
        np.zeros(0, np.float32),
    ],
)
def test_what_is_of_another_form_is_made_anew(other):
    """Kernels read as far as the sizes say that they know."""
    first = Prepacked()
    first.operand(W, "double", lambda a: a * 2, form=SAME)
    (name,) = first.state()
    again = counting(lambda a: a * 2)
    got = Prepacked({name: other}).operand(W, "double", again, form=SAME).const
    np.testing.assert_array_equal(got, W * 2)
    assert again.calls == 1


def test_a_statement_that_is_wrong_is_noticed_when_it_is_made():
    with pytest.raises(RuntimeError, match="'double' made float32"):
        Prepacked().operand(W, "double", lambda a: a * 2, form=Form(np.float32, (100, 99)))


def test_a_result_may_have_another_shape_where_that_is_stated():
    form = Form(np.float32, W.shape, or_shape=(0,))
    assert Prepacked().operand(W, "none", lambda a: a[:0].reshape(-1), form=form).const.size == 0


def packed():
    made = Prepacked(releasable=True).operand(W, "double", lambda a: a * 2)
    assert isinstance(made, Packed)
    return made


def test_what_a_device_has_is_read_back_when_it_is_needed():
    made = packed()
    view = Builder(lambda value: None, Prepacked(), lambda *_: None).view(made, (10_000,))
    held = weakref.ref(made.const.base if made.const.base is not None else made.const)
    read_back = counting(lambda _: W * 2)
    made.elements.release(lambda: read_back(None))
    assert held() is None
    assert (
        made.is_constant and view.is_constant and (view.shape, view.nbytes) == ((10_000,), 40_000)
    )
    made.make_plain()
    assert read_back.calls == 0
    np.testing.assert_array_equal(view.const, (W * 2).reshape(-1))
    assert read_back.calls == 1


def test_what_is_made_of_packed_weights_is_found_when_their_elements_have_gone():
    prepacked = Prepacked(releasable=True)
    builder = Builder(lambda value: None, prepacked, lambda *_: None)
    made = builder.prepack(Operand(W.shape, W.dtype, W, lasting=True), "double", lambda a: a * 2)
    halves = [builder.prepack(made, "half", lambda a: a.astype(np.float16))]
    made.elements.release(lambda: W * 2)
    halves.append(builder.prepack(made, "half", lambda a: a.astype(np.float16)))
    assert halves[0] is halves[1]
    other = builder.prepack(made, "third", lambda a: a / 3)
    np.testing.assert_allclose(other.const, W.astype(np.float64) * 2 / 3, rtol=1e-6)


def test_weights_that_are_taken_as_they_are_stay_the_models():
    made = Prepacked(releasable=True).operand(W, "same", lambda a: a)
    assert not isinstance(made, Packed) and np.shares_memory(made.const, W)


def test_the_elements_of_packed_weights_are_what_was_made_of_them():
    with pytest.raises(TypeError, match="what was made of it"):
        packed().const = W
    lost = Elements(W)
    lost.release(None)
    with pytest.raises(ValueError, match="without a way"):
        lost.array()
