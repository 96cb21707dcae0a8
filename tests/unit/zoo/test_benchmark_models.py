"""The models that benchmarks take, and their inputs where sizes are open."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from partita.errors import InputError

PATH = Path(__file__).parents[3] / "benchmarks" / "models.py"


@pytest.fixture(scope="module")
def benchmark_models():
    """The module, which has the name of one of the tests."""
    spec = importlib.util.spec_from_file_location("benchmark_models", PATH)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look it up
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def feeds_of(benchmark_models, tmp_path):
    """The inputs of a model that reads one of a shape."""

    def made(kind, name, shape, sizes=""):
        ports = [helper.make_tensor_value_info(one, kind, shape) for one in (name, "y")]
        node = helper.make_node("Identity", [name], ["y"])
        graph = helper.make_graph([node], "g", ports[:1], ports[1:])
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, ir_version=10), path)
        [case] = benchmark_models.cases([f"{path}{sizes}"])
        return case.feeds[name]

    return made


@pytest.mark.parametrize("first", ["DynamicDimension.0", None, 1])
def test_an_open_batch_of_a_file_is_one(feeds_of, first):
    picture = feeds_of(TensorProto.FLOAT, "x", [first, 3, 4])
    assert (picture.shape, picture.dtype) == ((1, 3, 4), np.float32)
    assert picture.any()
    mask = feeds_of(TensorProto.INT64, "mask", [first, 5])
    np.testing.assert_array_equal(mask, np.ones((1, 5), np.int64))
    tokens = feeds_of(TensorProto.INT64, "tokens", [first, 5])
    assert tokens.shape == (1, 5)
    assert ((tokens >= 1) & (tokens < 1000)).all()


def test_sizes_that_would_be_guessed_are_asked_for(feeds_of):
    with pytest.raises(InputError, match=r"float32\[n, 3, h\].*name a model of the zoo as zoo:NAM"):
        feeds_of(TensorProto.FLOAT, "x", ["n", 3, "h"])
    assert feeds_of(TensorProto.FLOAT, "x", ["n", 3, "h"], "@2x3x5").shape == (2, 3, 5)
