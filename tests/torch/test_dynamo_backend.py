"""``torch.compile(module, backend="partita")``; needs PyTorch and onnxscript."""

import logging
import sys
import threading

import pytest
import torch
from torch.utils._pytree import tree_leaves

import partita
from partita.dynamo_backend import CompiledGraph, compile_graph
from partita.frontends.reader import read_model


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, "partita")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "partita"]


@pytest.fixture
def network():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    return torch.nn.Sequential(*layers).eval()


def images(*shape):
    return torch.randn(*shape)


def agrees(one, other):
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_name_is_known_to_pytorch(network, said):
    assert "partita" in torch.compiler.list_backends()
    fast = torch.compile(network, backend="partita", options={"device": "HETERO:CPU,REFERENCE"})
    with torch.no_grad():
        agrees(fast(x := images(1, 3, 8, 8)), network(x))
    assert said() == []


def test_sizes_that_change(network, said):
    fast = torch.compile(network, backend="partita")
    with torch.no_grad():
        for size in (8, 9, 10, 12):
            agrees(fast(x := images(size - 6, 3, size, 8)), network(x))
    assert said() == []


def test_what_a_graph_returns(said):
    def several(x):
        y = x * 2
        return y, {"x": x, "again": y}, None, x.shape[1], y.to(torch.bfloat16)

    fast = torch.compile(several, backend="partita", dynamic=True)
    for columns in (3, 4):
        x = images(2, columns)
        found, expected = (tree_leaves(run(x)) for run in (fast, several))
        for one, other in zip(found, expected, strict=True):
            assert type(one) is type(other)
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert said() == []


def test_graph_breaks_part_the_function(said):
    seen = []

    @torch.compiler.disable
    def see():
        seen.append(1)

    def broken(x):
        y = torch.sin(x)
        see()
        return torch.cos(y)

    x = images(4)
    agrees(torch.compile(broken, backend="partita")(x), torch.cos(torch.sin(x)))
    assert (seen, said()) == ([1], [])


def test_weights_that_change_are_compiled_again(network):
    fast = torch.compile(network, backend="partita")
    x = images(1, 3, 8, 8)
    with torch.no_grad():
        fast(x)
        network[0].weight.mul_(2)
        agrees(fast(x), network(x))
        network[0].bias = torch.nn.Parameter(torch.ones(4))
        agrees(fast(x), network(x))


def test_gradients_are_left_to_pytorch(network, said):
    fast = torch.compile(network, backend="partita")
    x = images(1, 3, 8, 8)
    agrees(fast(x), network(x))
    fast(x).sum().backward()
    assert network[0].weight.grad is not None
    assert "may be asked for gradients; call it inside of torch.no_grad()" in said()[0]


def test_what_writes_to_its_inputs_is_left_to_pytorch(said):
    @torch.compile(backend="partita")
    def adding(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    agrees(adding(x), torch.full((3,), 2.0))
    agrees(x, torch.ones(3))
    assert "PyTorch itself runs a graph of 2 operations: 'GraphModule' writes to" in said()[0]
    adding(x)
    assert len(said()) == 1


def test_what_cannot_be_compiled_is_left_to_pytorch(said):
    fast = torch.compile(torch.fft.fft, backend="partita", options={"device": "NONE"})
    x = images(8)
    agrees(fast(x), torch.fft.fft(x))
    assert "PyTorch itself runs a graph of 1 operations" in said()[0]


def test_options_that_are_not_known():
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(ValueError, match="has no option 'devic'; it has 'device', 'config'"):
        compile_graph(graph, [torch.ones(1)], options={"devic": "CPU"})


def test_threads_that_call_a_graph_at_once():
    """One comes while the other one notes which weights it has compiled."""
    graph = torch.fx.Graph()
    weight, x = graph.placeholder("weight"), graph.placeholder("x")
    graph.output((graph.call_function(torch.mul, (x, weight)),))
    args, found = [torch.nn.Parameter(images(3)), images(3)], []

    def call():
        with torch.no_grad():
            found.extend(fast(*args))

    other = threading.Thread(target=call)

    def come(frame, event, _):
        if event == "call" and frame.f_code.co_name == "_version":
            sys.setprofile(None)
            other.start()
            other.join(1)  # it may have to wait

    def compile_model(model):
        compiled = partita.Core().compile_model(read_model(model), "CPU")
        sys.setprofile(come)
        return compiled

    fast = CompiledGraph(torch.fx.GraphModule({}, graph), args, compile_model)
    try:
        call()
    finally:
        sys.setprofile(None)
    other.join()
    assert len(found) == 2
    for y in found:
        agrees(y, args[0] * args[1])
