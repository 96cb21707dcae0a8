"""TensorScatter against ONNX' reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from single_op import model_of, normal, run_ours, run_shared

from partita.errors import CompileError, InputError
from partita.lowering import lower_proto
from partita_cpu.kernels.movement.tensor_scatter import write_rows


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, np.float64, np.bool_])
@pytest.mark.parametrize(
    ("shape", "axis", "starts", "mode"),
    [
        ((2, 3, 6, 4), -2, None, "linear"),
        ((2, 3, 6, 4), 2, [4, 1], "linear"),
        ((2, 3, 6, 4), 2, [5, 13], "circular"),
        ((3, 6), 1, [4, 0, 2], "linear"),
        ((2, 6, 3, 4), 1, [0, 4], "circular"),
    ],
)
def test_agrees_with_reference(shape, axis, starts, mode, kind):
    new = tuple(2 if place == axis % len(shape) else n for place, n in enumerate(shape))
    inputs = [normal(1, *shape).astype(kind), normal(2, *new).astype(kind)]
    inputs += [] if starts is None else [np.array(starts)]
    model = model_of("TensorScatter", inputs, opset=24, axis=axis, mode=mode)
    feeds = {f"x{place}": x for place, x in enumerate(inputs)}
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_array_equal(run_shared(lower_proto(model), inputs)[0], expected)


def test_a_cache_in_place_is_not_copied():
    cache = np.arange(12, dtype=np.uint32)
    sizes = np.array([1, 2, 3, 1, 2, 0])  # batches, parts, places, new rows, elements, circular
    starts, wrong = np.array([1]), np.zeros(1, np.int64)
    write_rows(cache, np.array([70, 71, 72, 73], np.uint32), cache, starts, wrong, sizes, 0, 1)
    np.testing.assert_array_equal(cache, [0, 1, 70, 71, 4, 5, 6, 7, 72, 73, 10, 11])


@pytest.mark.parametrize("start", [5, -1, 2**63 - 1, -(2**63)])
def test_rows_that_do_not_fit(start):
    inputs = [normal(1, 2, 6, 4), normal(2, 2, 2, 4), np.array([0, start])]
    with pytest.raises(InputError, match=f"of batch 1 do not fit at {start}; .* may be 0 to 4"):
        run_ours("TensorScatter", inputs, opset=24)


@pytest.mark.parametrize(
    ("inputs", "attributes", "words"),
    [
        ([normal(1, 2, 6, 4), normal(2, 2, 7, 4)], {}, "7 new rows do not fit 6 places"),
        ([normal(1, 2, 6, 4), normal(2, 2, 2, 3)], {}, "update is to be of shape"),
        ([normal(1, 2, 6, 4), normal(2, 2, 2)], {}, "as many dimensions"),
        ([normal(1, 2, 6), normal(2, 2, 6)], {"axis": 0}, "axis 0 is none"),
        ([normal(1, 2, 6), normal(2, 2, 6)], {"axis": -3}, "axis -3 is none"),
        ([normal(1, 2, 6), normal(2, 2, 6), np.zeros(1, np.int64)], {}, "write_indices is to be"),
        ([normal(1, 2, 6, 1), normal(2, 2, 6, 1)], {"mode": "wild"}, "mode is 'wild'"),
    ],
)
def test_inputs_that_do_not_fit(inputs, attributes, words):
    attributes = {"axis": 1, **attributes}
    with pytest.raises(CompileError, match=words):
        run_ours("TensorScatter", inputs, opset=24, **attributes)
