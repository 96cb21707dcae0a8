"""Indices that repeat along rows of features are one index for a row, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper, parser

import partita
from partita.contract.profiling import Status
from partita.errors import InputError

SCATTER = 'y = ScatterElements <axis = {axis}, reduction = "{how}"> (x, wide, u)'
GATHER = "y = GatherElements <axis = {axis}> (x, wide)"
EXPAND = "wide = Expand(index, size) "
TILE = "wide = Tile(index, size) "


def model_of(shapes, text, size, declared=None):
    listed = {name: ", ".join(map(str, shape)) for name, shape in (declared or shapes).items()}
    kinds = {"index": "int64"}
    inputs = ", ".join(f"{kinds.get(n, 'float')}[{shape}] {n}" for n, shape in listed.items())
    results = ", ".join("abcd"[: len(shapes["x"])])
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> '
        f"g ({inputs}) => (float[{results}] y) {{ {text} }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(size), "size"))
    return model


def feeds_of(shapes, limit, rng):
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    return feeds | {"index": rng.integers(-limit, limit, shapes["index"])}


def run(model, feeds):
    request = (
        partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    )
    (found,) = request.infer(feeds).values()
    steps = [s for s in request.get_profiling_info() if s.status is Status.EXECUTED]
    return np.array(found), {step.node_type for step in steps}


@pytest.mark.parametrize("how", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("trailing", [(7,), (3, 5), (1, 33)])
def test_rows_that_are_scattered(how, trailing):
    rng = np.random.default_rng(len(trailing))
    rows, count = (9, 40) if how != "none" else (40, 9)
    shapes = {
        "x": (rows, *trailing),
        "index": (count, *[1] * len(trailing)),
        "u": (count, *trailing),
    }
    model = model_of(shapes, EXPAND + SCATTER.format(axis=0, how=how), shapes["u"])
    feeds = feeds_of(shapes, rows, rng)
    if how == "none":  # each place once: which of several stays is not said
        feeds["index"] = rng.permutation(rows)[:count].reshape(shapes["index"])
    found, kinds = run(model, feeds)
    np.testing.assert_allclose(found, onnxruntime_results(model, feeds)[0], rtol=1e-5, atol=1e-5)
    assert "Expand" not in kinds


@pytest.mark.parametrize("repeat", [EXPAND, TILE])
@pytest.mark.parametrize(
    ("leading", "trailing"), [((), (6,)), ((3,), (8,)), ((2, 3), (4,)), ((2,), (3, 5))]
)
def test_rows_that_are_gathered(repeat, leading, trailing):
    rng = np.random.default_rng(len(leading))
    axis, rows, count = len(leading), 11, 5
    shapes = {"x": (*leading, rows, *trailing), "index": (*leading, count, *[1] * len(trailing))}
    wide = (*leading, count, *trailing)
    size = wide if repeat is EXPAND else [*[1] * (axis + 1), *trailing]
    model = model_of(shapes, repeat + GATHER.format(axis=axis), size)
    feeds = feeds_of(shapes, rows, rng)
    found, kinds = run(model, feeds)
    np.testing.assert_array_equal(found, onnxruntime_results(model, feeds)[0])
    assert not {"Expand", "Tile"} & kinds


@pytest.mark.parametrize(
    ("x", "index", "wide", "axis"),
    [
        ((9, 7), (4, 1), (4, 6), 0),  # parts of rows
        ((9, 7), (1, 7), (4, 7), 0),  # one row of indices for all
        ((9, 7), (9, 1), (9, 4), 1),  # along rows
        ((5, 9, 7), (4, 3, 1), (4, 3, 7), 1),  # fewer batches
        ((9, 1), (4, 1), (4, 1), 0),  # rows of one element
    ],
)
def test_indices_that_are_none_of_rows(x, index, wide, axis):
    rng = np.random.default_rng(axis)
    for text, extra in (
        (SCATTER.format(axis=axis, how="add"), {"u": wide}),
        (GATHER.format(axis=axis), {}),
    ):
        shapes = {"x": x, "index": index, **extra}
        model = model_of(shapes, EXPAND + text, wide)
        feeds = feeds_of(shapes, x[axis], rng)
        found, kinds = run(model, feeds)
        np.testing.assert_allclose(
            found, onnxruntime_results(model, feeds)[0], rtol=1e-5, atol=1e-5
        )
        assert "Expand" in kinds or index == wide


def test_indices_that_others_read_stay():
    shapes = {"x": (9, 7), "index": (4, 1), "u": (4, 7)}
    text = EXPAND + SCATTER.format(axis=0, how="add").replace("y =", "s =")
    text += " f = Cast <to = 1> (wide) t = ReduceSum <keepdims = 0> (f) y = Add(s, t)"
    model = model_of(shapes, text, (4, 7))
    feeds = feeds_of(shapes, 9, np.random.default_rng(1))
    found, kinds = run(model, feeds)
    np.testing.assert_allclose(found, onnxruntime_results(model, feeds)[0], rtol=1e-5, atol=1e-5)
    assert "Expand" in kinds


def test_sizes_that_vary():
    rng = np.random.default_rng(2)
    text = "size_of = Shape(u) wide = Expand(index, size_of) " + SCATTER.format(axis=0, how="add")
    declared = {"x": ("N", 6), "index": ("E", 1), "u": ("E", 6)}
    request = None
    for rows, count in ((5, 8), (7, 3), (6, 20), (6, 0)):
        shapes = {"x": (rows, 6), "index": (count, 1), "u": (count, 6)}
        model = model_of(shapes, text, (1,), declared)
        request = request or partita.Core().compile_model(model, "CPU").create_infer_request()
        feeds = feeds_of(shapes, rows, rng)
        (found,) = request.infer(feeds).values()
        np.testing.assert_allclose(
            np.array(found), onnxruntime_results(model, feeds)[0], rtol=1e-5, atol=1e-5
        )


def test_an_index_that_is_out_of_range():
    shapes = {"x": (9, 7), "index": (4, 1), "u": (4, 7)}
    for text in (SCATTER.format(axis=0, how="add"), GATHER.format(axis=0)):
        names = ("x", "index", "u") if "u)" in text else ("x", "index")
        model = model_of({n: shapes[n] for n in names}, EXPAND + text, (4, 7))
        feeds = {n: np.zeros(shapes[n], np.float32) for n in names}
        with pytest.raises(InputError, match="index 9 is out of range"):
            run(model, feeds | {"index": np.array([[0], [9], [1], [2]])})
