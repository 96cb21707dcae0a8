"""CPU and OPENCL on one host: shared where OPENCL is the host's processor, permuted elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import partita
from partita_opencl.device.device import find_device

from ..fakes import evaluate
from ..graphs import X
from .test_hetero_bound_calls import chain, cut
from .test_hetero_layouts import compare, compile_cut, residual_net


@pytest.fixture(params=["as it is", "apart"])
def memory(request, monkeypatch):
    if request.param == "apart":
        monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    return request.param


@pytest.mark.parametrize("executor", ["LINEAR", "PARALLEL"])
def test_a_chain_there_and_back(memory, executor):
    proto = chain(8)
    compiled = cut(partita.Core(), proto, ["CPU", "OPENCL"], {"HETERO_EXECUTOR": executor})
    request = compiled.create_infer_request()
    for scale in (1, 2, 3):
        x = X * np.float32(scale)
        have = request.infer({"v0": x})[0]
        np.testing.assert_allclose(have, evaluate(proto, {"v0": x})[0], rtol=1e-5)
    inner = [b for b in compiled.explain().boundaries if b.source and b.target]
    shared = find_device("").shares_host
    assert {b.how for b in inner} == ({"shared"} if shared else {"upload", "download"})
    assert len(compiled.device_model.assembly.plan.steps) == (8 if shared else 16)
    if shared:
        assert compiled.explain().bytes_crossing == 0


def test_kernels_of_both_work_at_the_same_addresses():
    if not find_device("").shares_host:
        assert find_device("").memory != "host"
        return
    compiled = cut(partita.Core(), chain(4), ["CPU", "OPENCL"])
    request = compiled.create_infer_request()
    for _ in range(2):
        request.infer({"v0": X})
    execution = request.explain_execution()
    crossing = {memory for step in execution.steps for memory in step.writes}
    seen = [memory for part in execution.submodels.values() for memory in part.shared]
    assert set(seen) <= crossing
    assert len(seen) == 4  # two submodels read and write one tensor each


def test_a_network_of_images(memory):
    proto = residual_net()
    device_of = lambda index, op: ("CPU", "OPENCL")[index % 2]  # noqa: E731
    compiled = compile_cut(partita.Core(), proto, device_of, "HETERO:CPU,OPENCL")
    x = np.random.default_rng(3).standard_normal((1, 4, 9, 7)).astype(np.float32)
    compare(compiled, proto, x)


def test_shapes_that_are_known_later(memory):
    proto = residual_net(batch="n", height="h")
    device_of = lambda index, op: ("CPU", "OPENCL")[index % 2]  # noqa: E731
    compiled = compile_cut(partita.Core(), proto, device_of, "HETERO:CPU,OPENCL")
    for shape in ((2, 4, 8, 7), (1, 4, 5, 7)):
        compare(compiled, proto, np.ones(shape, np.float32))
