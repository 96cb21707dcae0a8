"""PyTorch modules become models that compute the same; needs PyTorch and onnxscript."""

import logging

import numpy as np
import onnxruntime
import pytest
import torch

import partita
from partita.errors import ModelError, ModelFormatError


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 8)
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x, bias=None):
        for layer in self.layers:
            x = layer(x)
        x = x if bias is None else x + bias
        return {"last": x, "pooled": [x.mean(1), x]}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network()


@pytest.fixture(autouse=True)
def quiet():
    """PyTorch logs what it fails to trace, with the stack."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def eager(module, *args, **kwargs):
    was = module.training
    module.eval()
    with torch.no_grad():
        found = module(*args, **kwargs)
    module.train(was)
    return found


def on_onnxruntime(model, feeds):
    return onnxruntime.InferenceSession(model.to_onnx().SerializeToString()).run(None, feeds)


def test_a_module_in_training_is_converted_as_it_evaluates(network):
    x = torch.randn(2, 5, 8)
    model = partita.convert_model(network, example_input=x)
    assert network.training
    assert [port.name for port in model.outputs] == ["last", "pooled.0", "pooled.1"]
    expected = eager(network, x)
    found = partita.compile_model(model, "CPU")(x.numpy())
    np.testing.assert_allclose(found["last"], expected["last"], atol=1e-5)
    np.testing.assert_allclose(found["pooled.0"], expected["pooled"][0], atol=1e-5)
    np.testing.assert_allclose(found["pooled.1"], expected["last"], atol=1e-5)


@pytest.mark.parametrize(
    "example",
    [
        (np.ones((2, 5, 8), np.float32), np.ones((8,), np.float32)),
        {"bias": torch.ones(8), "x": torch.ones(2, 5, 8)},
    ],
)
def test_examples_by_place_and_by_name(network, example):
    model = partita.convert_model(network, example_input=example)
    assert {port.name for port in model.inputs} == {"x", "bias"}


@pytest.mark.parametrize(
    "how",
    [
        {"input": ["batch", -1, 8]},
        {"input": {"x": [None, None, 8]}},
        {"input": [["batch", "rows", 8]]},
        {"dynamic_shapes": {"x": {0: "batch", 1: torch.export.Dim.DYNAMIC}}},
    ],
)
def test_sizes_that_vary(network, how):
    model = partita.convert_model(network, example_input=torch.randn(2, 5, 8), **how)
    assert [isinstance(dim, int) for dim in model.input().shape] == [False, False, True]
    x = torch.randn(3, 7, 8)
    found = on_onnxruntime(model, {"x": x.numpy()})[0]
    np.testing.assert_allclose(found, eager(network, x)["last"], atol=1e-5)


def test_shapes_alone_make_an_example(network):
    assert partita.convert_model(network, input=[1, 3, 8]).input().shape == (1, 3, 8)


def test_an_exported_program():
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
    model = partita.convert_model(program)
    x = torch.randn(1, 3)
    found = on_onnxruntime(model, {model.input().name: x.numpy()})[0]
    np.testing.assert_allclose(found, program.module()(x).detach(), atol=1e-6)
    with pytest.raises(ModelError, match="has its inputs and shapes; give it alone"):
        partita.convert_model(program, example_input=x)


def test_operations_know_their_modules_and_pins_find_them(network, tmp_path):
    model = partita.convert_model(network, example_input=torch.randn(2, 5, 8))
    paths = {op.rt_info.get("module_path") for op in model.ops}
    assert {"layers.0.norm", "layers.1.mlp.0", "layers.1"} <= paths
    config = {"HETERO_PINS": ["path:layers.1.mlp=REFERENCE"]}
    placed = partita.Core().query_model(model, "HETERO:CPU,REFERENCE", config)
    for op in model.ops:
        inside = op.rt_info.get("module_path", "").startswith("layers.1.mlp")
        assert (placed[op.name] == "REFERENCE") == inside
    model.save(tmp_path / "saved.onnx")
    again = partita.Core().read_model(tmp_path / "saved.onnx")
    assert {op.rt_info.get("module_path") for op in again.ops} == paths
    assert not any("torch" in key for op in again.ops for key in op.node.metadata_props)


def test_narrow_weights_and_tensors_that_are_returned_twice():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.full((3,), 2.0, dtype=torch.bfloat16))

        def forward(self, x):
            y = x * self.scale
            return y, x, y, None

    model = partita.convert_model(Twice(), example_input=torch.ones(2, 3))
    found = partita.compile_model(model, "CPU")(np.ones((2, 3), np.float32)).to_tuple()
    assert [array.tolist()[0][0] for array in found] == [2.0, 1.0, 2.0]


class Attending(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1, 4, 6, 6))

    def forward(self, x):
        heads = x.view(1, 6, 4, 16).transpose(1, 2)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(heads, heads, heads, self.bias).transpose(1, 2).reshape(1, 6, -1)


def test_weights_that_ask_for_gradients_do_not_change_what_is_recorded():
    x = torch.randn(1, 6, 64)
    model = partita.convert_model(Attending(), example_input=x)
    found = on_onnxruntime(model, {"x": x.numpy()})[0]
    np.testing.assert_allclose(found, eager(Attending(), x), atol=1e-5)


def refused(module, **how):
    with pytest.raises(ModelError) as caught:
        partita.convert_model(module, **how)
    return str(caught.value)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


class Branching(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_converted_is_said(network):
    x = torch.randn(2, 5, 8)
    assert "'Network' takes an example of its inputs: convert_model(" in refused(network)
    assert "sizes that may vary; give an example" in refused(network, input=[-1, 5, 8])
    assert "of another rank" in refused(network, input=[2, 8], example_input=x)
    assert "There is no input 'y'; there are 'x'" in refused(
        network, input={"y": [1]}, example_input=x
    )
    assert "3 shapes were given for 1 inputs" in refused(
        network, input=[[2, 5, 8]] * 3, example_input=x
    )
    both = {"input": [2, 5, 8], "dynamic_shapes": {}}
    assert "Give 'input' or 'dynamic_shapes', not both" in refused(network, **both)
    assert "PyTorch cannot export 'Network'" in refused(network, example_input=torch.ones(2, 5, 9))
    assert "'Counting' writes to 'count'" in refused(Counting(), example_input=torch.ones(1))
    assert "cannot export 'Branching'" in refused(Branching(), example_input=torch.ones(1))
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(torch.nn.ReLU(), x)
    with pytest.raises(ModelFormatError, match="is a TorchScript module"):
        partita.convert_model(traced, example_input=x)


def test_weights_are_shared_unless_they_are_asked_for_copies():
    module = torch.nn.Linear(2, 1, bias=False)
    x = torch.ones(1, 2)
    shared, own = (
        partita.convert_model(module, example_input=x, share_weights=share)
        for share in (True, False)
    )
    before = eager(module, x).numpy()
    with torch.no_grad():
        module.weight.add_(1)
    after = eager(module, x).numpy()
    core = partita.Core()
    np.testing.assert_allclose(core.compile_model(shared, "CPU")(x.numpy())[0], after, rtol=1e-6)
    np.testing.assert_allclose(core.compile_model(own, "CPU")(x.numpy())[0], before, rtol=1e-6)
