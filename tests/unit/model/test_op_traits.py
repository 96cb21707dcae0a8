"""The traits that the table gives to operators are those that ONNX's reference evaluator shows."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from partita.model.op_traits import TRAITS, Trait, having

OF_ONNX = sorted(kind for kind in TRAITS if "::" not in kind)
PLACES = np.array([2, 0], np.int64)
ONES = np.array([1], np.int64)

SELECTING = {
    "Expand": ([np.array([2, 3, 4, 5], np.int64)], {}),
    "Flatten": ([], {}),
    "Gather": ([PLACES], {"axis": 1}),
    "Identity": ([], {}),
    "MaxPool": ([], {"kernel_shape": [2, 2]}),
    "Reshape": ([np.array([5, -1], np.int64)], {}),
    "Slice": ([ONES, np.array([3], np.int64), ONES], {}),
    "Squeeze": ([np.array([0], np.int64)], {}),
    "Transpose": ([], {"perm": [0, 2, 3, 1]}),
    "Unsqueeze": ([ONES], {}),
}


def computed(kind, inputs, **attributes):
    node = helper.make_node(kind, [f"x{n}" for n in range(len(inputs))], ["y"], **attributes)
    feeds = {f"x{n}": array for n, array in enumerate(inputs)}
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("kind", OF_ONNX)
def test_each_is_an_operator_of_onnx(kind):
    assert onnx.defs.has(kind)


@pytest.mark.parametrize("kind", sorted(having(Trait.SELECTS)))
def test_what_selects_makes_no_numbers(kind):
    others, attributes = SELECTING[kind]
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 5)).astype(np.float32)
    assert np.isin(computed(kind, [x, *others], **attributes), x).all()


@pytest.mark.parametrize("kind", sorted(having(Trait.ELEMENTWISE) & set(OF_ONNX)))
def test_what_is_element_wise_does_not_care_where_elements_lie(kind):
    rng = np.random.default_rng(0)
    count = 2 if onnx.defs.get_schema(kind).min_input == 2 or kind in ("Max", "Mean") else 1
    inputs = [rng.uniform(0.5, 2, 12).astype(np.float32) for _ in range(count)]
    order = rng.permutation(12)
    moved = computed(kind, [x[order] for x in inputs])
    np.testing.assert_allclose(moved, computed(kind, inputs)[order], rtol=1e-6)
