"""Einsum of sizes that broadcast: inferred shapes are those of what is computed."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import parser

import partita
from partita.model.inference.einsum_shapes import result_dims


def einsum(equation, x, y):
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{x}] x, float[{y}] y) => (float z) {{ z = Einsum <equation="{equation}"> (x, y) }}""")


@pytest.fixture
def untold():
    """Makes a model whose output's shape is left to inference."""

    def made(*args):
        proto = einsum(*args)
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        return proto

    return made


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
@pytest.mark.parametrize(
    ("equation", "told", "shapes"),
    [
        ("ab,ab->ab", ("1,8", "n,8"), [(1, 8), (2, 8)]),
        ("abc,b->abc", ("n,m,4", "2"), [(3, 1, 4), (2,)]),
        ("zb,ab->zab", ("2,m", "n,8"), [(2, 1), (3, 8)]),
        ("...a,...a->...a", ("1,n,1", "m,1,4"), [(1, 3, 1), (2, 1, 4)]),
        ("ab,cb->a", ("n,1", "2,5"), [(3, 1), (2, 5)]),
    ],
)
def test_a_size_of_one_takes_that_of_another_input(untold, equation, told, shapes, device):
    proto = untold(equation, *told)
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape, np.float32)
        for name, shape in zip("xy", shapes, strict=True)
    }
    (want,) = onnxruntime_results(proto, feeds)
    found = partita.Core().compile_model(proto, device)(feeds)["z"]
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_symbols_stay_where_they_are_all_that_is_told(untold):
    shapes = {
        told: partita.Core().read_model(untold("ab,ab->ab", *told)).outputs[0].partial_shape
        for told in [("n,4", "n,4"), ("n,4", "1,4"), ("n,1", "3,m"), ("n,4", "m,4")]
    }
    assert {told: str(shape) for told, shape in shapes.items()} == {
        ("n,4", "n,4"): "[n,4]",
        ("n,4", "1,4"): "[n,4]",
        ("n,1", "3,m"): "[3,m]",
        ("n,4", "m,4"): "[?,4]",
    }


@pytest.mark.parametrize(
    ("equation", "inputs"),
    [
        ("ab->a", [[2, 3], [3, 4]]),
        ("ab,c->a", [[2, 3], [3, 4]]),
        ("ab,bc->d", [[2, 3], [3, 4]]),
    ],
)
def test_nothing_is_told_of_equations_that_do_not_fit(equation, inputs):
    assert result_dims(equation, inputs) is None


def test_without_an_arrow_labels_that_come_once_are_the_result():
    assert result_dims("cb,ab", [["n", 3], [2, 3]]) == [2, "n"]
