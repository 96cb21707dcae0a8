"""Intermediate host tensors lie where the device that copies them wants them."""

from __future__ import annotations

import numpy as np
import pytest

import partita
from partita.errors import InputError
from partita_opencl.device.device import Device, find_device

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import CHAIN, X
from .test_hetero_bound_calls import cut


class Staging(FakeDevice):
    """Has host memory of its own kind; counts what it hands out."""

    def __init__(self, name, fails=False):
        super().__init__(name, memory="m")
        self.blocks, self.fails = [], fails

    def host_memory(self, nbytes, device_id=""):
        if self.fails:
            raise KeyError("lost")
        self.blocks.append(np.zeros(nbytes, np.uint8))
        return self.blocks[-1]


def downloads_of(request):
    """Where the tensors lie that the last run has brought to the host."""
    steps = request.explain_execution().steps
    return [memory for step in steps if step.how == "download" for memory in step.writes]


def test_intermediate_tensors_lie_in_the_memory_that_the_device_offers():
    device = Staging("A")
    compiled = cut(core_with(device, FakeDevice("B")), CHAIN, "ABAB")
    requests = [compiled.create_infer_request() for _ in range(2)]
    assert len(device.blocks) == 2
    for request, block in zip(requests, device.blocks, strict=True):
        for scale in (1, 2):
            x = X * np.float32(scale)
            np.testing.assert_allclose(
                request.infer({"x": x})[0], evaluate(CHAIN, {"x": x})[0], rtol=1e-6
            )
        downloads = downloads_of(request)
        assert downloads
        for memory in downloads:
            start = memory.address - block.ctypes.data
            assert 0 <= start <= block.nbytes - memory.nbytes
    assert len(device.blocks) == 2  # nothing is allocated by runs


def test_downloads_go_to_the_same_place_every_time():
    compiled = cut(core_with(FakeDevice("A", memory="m"), FakeDevice("B")), CHAIN, "ABAB")
    request = compiled.create_infer_request()
    seen = []
    for _ in range(3):
        request.infer({"x": X})
        seen.append(downloads_of(request))
    assert seen[0]
    assert seen[0] == seen[1] == seen[2]


def test_a_device_that_fails_to_offer_memory_is_used_all_the_same():
    compiled = cut(core_with(Staging("A", fails=True), FakeDevice("B")), CHAIN, "ABAB")
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-6)
    assert "A" in compiled.get_property("EXECUTION_DEVICES")


def test_page_locked_memory_of_opencl(monkeypatch):
    device = find_device("")
    monkeypatch.setitem(vars(device), "shares_host", False)
    core = partita.Core()
    block = core.device_api.host_memory("OPENCL", 1 << 16)
    assert block.dtype == np.uint8
    assert block.nbytes == 1 << 16
    array = block[: 4 * 1000].view(np.float32)
    array[:] = np.arange(1000)
    tensor = core.device_api.transfer_to("OPENCL", partita.HostTensor(array))
    back = partita.HostTensor(block[8000:12000].view(np.float32))
    tensor.copy_to(back)
    np.testing.assert_array_equal(back.numpy(), np.arange(1000, dtype=np.float32))
    other = partita.HostTensor(np.zeros(2000, np.float32))
    tensor.copy_to(other)
    np.testing.assert_array_equal(other.numpy(), array)  # it has taken the shape
    monkeypatch.setitem(vars(device), "shares_host", True)
    assert core.device_api.host_memory("OPENCL", 100) is None
    assert core.device_api.host_memory("CPU", 100) is None


def test_a_driver_without_page_locked_memory(monkeypatch):
    import pyopencl as cl

    from partita_opencl.device import host_buffers

    def refuse(*args, **kwargs):
        raise cl.MemoryError("clCreateBuffer", cl.status_code.OUT_OF_HOST_MEMORY, "no")

    monkeypatch.setattr(cl, "Buffer", refuse)
    monkeypatch.setattr(Device, "cuda", None)
    assert host_buffers.page_locked(find_device(""), 100) is None


def test_copying_between_host_tensors():
    source = partita.HostTensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    target = partita.HostTensor(np.zeros((2, 3), np.float32))
    source.copy_to(target)
    np.testing.assert_array_equal(target.numpy(), source.numpy())
    with pytest.raises(InputError, match="cannot be copied to"):
        source.copy_to(partita.HostTensor(np.zeros((2, 3), np.float64)))


def test_outputs_of_a_whole_model_lie_there_too():
    device = Staging("A")
    compiled = core_with(device).compile_model(CHAIN, "HETERO:A", {"STRICT": True})
    request = compiled.create_infer_request()
    (block,) = device.blocks
    for scale in (1, 2, 3, 4):
        x = X * np.float32(scale)
        request.infer({"x": x})
        result = request.get_output_tensor().numpy()
        np.testing.assert_allclose(result, evaluate(CHAIN, {"x": x})[0], rtol=1e-6)
        assert 0 <= result.ctypes.data - block.ctypes.data <= block.nbytes - result.nbytes
