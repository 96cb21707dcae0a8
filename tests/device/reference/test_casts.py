"""Casts are rounded once: on REFERENCE and on CPU, beside what exact arithmetic has."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import partita
from partita.errors import InferError
from partita.tensors.narrowing import rounded_to_odd

SHORT = {
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
}


def one_node(op_type, arrays, outputs=1, opset=21, **attributes):
    names = ["" if a is None else f"in{i}" for i, a in enumerate(arrays)]
    made = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, made, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([node], "g", infos, results)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(device, model, arrays):
    core = partita.Core()
    feeds = {f"in{i}": a for i, a in enumerate(arrays) if a is not None}
    return core.compile_model(core.read_model(model), device)(feeds).to_tuple()


def nearest(number, kind):
    """The nearest number of a type, of two as near the one whose last bit is 0."""
    around = np.array(float(number)).astype(kind)
    width = np.dtype(f"i{around.dtype.itemsize}")
    code = int(around.view(width))
    near = np.array([code - 1, code, code + 1]).astype(width).view(kind)
    return min(near, key=lambda n: (abs(Fraction(float(n)) - number), int(n.view(width)) & 1))


@pytest.mark.parametrize("device", ["REFERENCE", "CPU"])
@pytest.mark.parametrize("to", SHORT)
@pytest.mark.parametrize("source", [np.float64, np.int32, np.uint32, np.int64, np.uint64])
def test_casts_are_rounded_once(device, to, source):
    ties = [1 + 2.0**-11, 1 + 2.0**-8, 1 + 2.0**-4, 1 + 2.0**-3]
    numbers = [tie + step for tie in ties for step in (-(2.0**-40), 0, 2.0**-40)]
    if source is not np.float64:
        most = 2**8 if to in (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT16) else 2**15
        scales = [most] if to != TensorProto.BFLOAT16 else [2**22, 2**29]
        scales += [2**61] if to == TensorProto.BFLOAT16 and np.dtype(source).itemsize == 8 else []
        numbers = [int(tie * n) + k for tie in ties for n in scales for k in (-1, 0, 1)]
    x = np.array(numbers, source)
    x = np.concatenate([x, -x]) if x.dtype.kind != "u" else x
    due = [float(nearest(Fraction(n), SHORT[to])) for n in x.tolist()]
    (have,) = run(device, one_node("Cast", [x], to=to), [x])
    assert np.asarray(have).astype(np.float64).tolist() == due


def test_numbers_that_float32_has_stay_and_ends_too():
    x = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 1e300, 1e-300, -1e-300])
    found = rounded_to_odd(x)
    smallest, largest = np.float32(1e-45), np.finfo(np.float32).max
    due = np.array([0, -0.0, 1.5, np.inf, -np.inf, np.nan, largest, smallest, -smallest])
    np.testing.assert_array_equal(found, due.astype(np.float32))
    assert np.signbit(found[1])


@pytest.mark.parametrize("axes", [[3, 2], [-1, -2]])
def test_resize_takes_axes_in_any_order(axes):
    x = np.arange(48, dtype=np.float32).reshape(1, 2, 4, 6)
    scales = np.array([2, 0.5], np.float32)
    swapped = one_node("Resize", [x, None, scales], axes=axes)
    plain = one_node("Resize", [x, None, scales[::-1].copy()], axes=[2, 3])
    (have,) = run("REFERENCE", swapped, [x, None, scales])
    (due,) = run("REFERENCE", plain, [x, None, scales[::-1].copy()])
    assert have.shape == (1, 2, 2, 12)
    np.testing.assert_array_equal(have, due)


def test_parts_that_are_not_the_whole_are_refused():
    x, parts = np.arange(6, dtype=np.float32), np.array([5, 4])
    model = one_node("Split", [x, parts], 2)
    with pytest.raises(InferError, match=r"\[5, 4\]"):
        run("REFERENCE", model, [x, parts])
