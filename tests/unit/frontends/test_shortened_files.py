"""Files that are cut short while a model has them mapped: told before their weights are read."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import ModelFormatError


def written(path):
    weights = np.ones((256, 256), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "multiplier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_a_model_whose_file_was_cut_short_is_not_compiled(tmp_path, device):
    core = partita.Core()
    cut, whole = (core.read_model(written(tmp_path / name)) for name in ("cut.onnx", "whole.onnx"))
    with (tmp_path / "cut.onnx").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ModelFormatError, match=r"'multiplier' was truncated .* weight 'w' is"):
        core.compile_model(cut, device)
    x = np.ones((1, 256), np.float32)
    np.testing.assert_array_equal(core.compile_model(whole, device)([x])[0], 256 * x)


def test_a_model_whose_file_was_replaced_is_what_it_was(tmp_path):
    core = partita.Core()
    model = core.read_model(written(tmp_path / "model.onnx"))
    (tmp_path / "other").write_bytes(b"short")
    (tmp_path / "other").replace(tmp_path / "model.onnx")
    x = np.ones((1, 256), np.float32)
    np.testing.assert_array_equal(core.compile_model(model, "CPU")([x])[0], 256 * x)
