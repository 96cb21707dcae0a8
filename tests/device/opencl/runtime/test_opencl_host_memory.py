"""Devices that work in host memory: kernels read and write callers' arrays, and nothing is copied.

On machines whose first OpenCL device has a memory of its own, the same tests show that it says so.
"""

import gc
import weakref

import numpy as np
import pyopencl as cl
import pytest
from onnx import TensorProto, helper

import partita
from partita import HostTensor
from partita.lowering.memory_plan import ALIGNMENT
from partita.system.large_pages import aligned_bytes
from partita_opencl.device import host_buffers, host_memory
from partita_opencl.device.device import Device, find_device
from partita_opencl.device.host_buffers import HostBuffers, page_locked
from partita_opencl.device.host_memory import works_in_host_memory
from partita_opencl.runtime.binding.request_buffers import RequestBuffers
from partita_opencl.runtime.launch_batch import KernelSequence

from ..comparison import build, compiled, core, floats


def aligned(array):
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def shares():
    return find_device("").shares_host


def chain(shape=(3, 50)):
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Exp", ["n"], ["y"])]
    return build(nodes, {"x": floats(*shape)}, ["y"])


@pytest.fixture
def by_opencl(monkeypatch):
    """Launches and copies of all cards are OpenCL's, which the test looks at."""
    monkeypatch.setattr(Device, "cuda", None)


@pytest.fixture
def copies(monkeypatch):
    """The sizes of all copies that are enqueued."""
    seen = []
    enqueue = cl.enqueue_copy

    def counted(queue, target, source, **kwargs):
        seen.append(getattr(source, "nbytes", None) or source.size)
        return enqueue(queue, target, source, **kwargs)

    monkeypatch.setattr(cl, "enqueue_copy", counted)
    return seen


def test_a_processor_s_device_shares_host_memory_and_says_so():
    device, info = find_device(""), core().device_info("OPENCL")
    is_cpu = bool(device.handle.type & cl.device_type.CPU)
    if not is_cpu:
        assert not device.shares_host
    assert (info.memory == "host") == device.shares_host
    assert core().device_api.can_share("OPENCL", "host") == device.shares_host
    tensor = HostTensor(floats(4))
    assert (core().device_api.transfer_to("OPENCL", tensor) is tensor) == device.shares_host
    assert core().device_api.can_share("OPENCL", "opencl:0")


def test_nothing_is_copied_and_addresses_stay(copies, by_opencl):
    runner = compiled(chain()).device_model.create_runner()
    x, y = aligned(floats(3, 50)), aligned(np.zeros((3, 50), np.float32))
    given, wanted = HostTensor(x), HostTensor(y)
    for seed in range(3):
        x[:] = floats(3, 50, seed=seed)
        found = runner.run([given], [wanted])
        assert found[0] is wanted
        np.testing.assert_allclose(y, np.exp(-x), rtol=1e-5)
    if shares():
        assert copies == []
        addresses = [memory.address for memory in runner.explain_execution().shared]
        assert sorted(addresses) == sorted([x.ctypes.data, y.ctypes.data])
    else:
        assert len(copies) == 6


def test_results_of_its_own_are_host_tensors_that_stay_until_the_next_run(copies):
    runner = compiled(chain()).device_model.create_runner()
    x = HostTensor(aligned(floats(3, 50)))
    (first,) = runner.run([x])
    np.testing.assert_allclose(first.numpy(), np.exp(-x.numpy()), rtol=1e-5)
    if shares():
        assert first.memory == "host"
        assert first.numpy() is first.numpy()
        assert first.numpy().ctypes.data % ALIGNMENT == 0
        assert copies == []
    other = HostTensor(aligned(floats(3, 50, seed=5)))
    (second,) = runner.run([other])
    np.testing.assert_allclose(second.numpy(), np.exp(-other.numpy()), rtol=1e-5)


@pytest.mark.parametrize("offset", [0, 4, 60, 64])
def test_memory_that_kernels_cannot_take_is_copied(offset):
    runner = compiled(chain()).device_model.create_runner()
    block = aligned_bytes(600 + offset)
    x = block[offset : offset + 600].view(np.float32).reshape(3, 50)
    x[:] = floats(3, 50)
    target = aligned_bytes(600 + offset)[offset : offset + 600].view(np.float32).reshape(3, 50)
    found = runner.run([HostTensor(x)], [HostTensor(target)])[0]
    np.testing.assert_allclose(found.numpy(), np.exp(-x), rtol=1e-5)
    np.testing.assert_allclose(target, np.exp(-x), rtol=1e-5)


def test_what_is_read_only_is_read_and_never_written():
    runner = compiled(chain()).device_model.create_runner()
    x = aligned(floats(3, 50))
    x.flags.writeable = False
    found = runner.run([HostTensor(x)])[0]
    np.testing.assert_allclose(found.numpy(), np.exp(-x), rtol=1e-5)
    np.testing.assert_array_equal(x, floats(3, 50))


def test_an_output_that_lies_in_an_input_is_written_last():
    nodes = [
        helper.make_node("Exp", ["x"], ["y"]),
        helper.make_node("Transpose", ["x"], ["z"]),
    ]
    runner = compiled(build(nodes, {"x": floats(8, 8)}, ["y", "z"])).device_model.create_runner()
    x = aligned(floats(8, 8))
    before = x.copy()
    y, z = runner.run([HostTensor(x)], [HostTensor(x), None])
    np.testing.assert_allclose(y.numpy(), np.exp(before), rtol=1e-5)
    np.testing.assert_array_equal(z.numpy(), before.T)


def test_arrays_are_let_go_after_the_run():
    runner = compiled(chain()).device_model.create_runner()
    x, y = HostTensor(aligned(floats(3, 50))), HostTensor(aligned(floats(3, 50)))
    gone = [weakref.ref(tensor.numpy()) for tensor in (x, y)]
    runner.run([x], [y])
    del x, y
    gc.collect()
    assert [array() for array in gone] == [None, None]
    again = floats(3, 50)
    np.testing.assert_allclose(
        runner.run([HostTensor(aligned(again))])[0].numpy(), np.exp(-again), rtol=1e-5
    )


def test_kernels_have_ended_when_a_run_fails(monkeypatch, by_opencl):
    """They work in arrays that the caller may let go."""
    runner = compiled(chain()).device_model.create_runner()
    finished = []
    finish = cl.CommandQueue.finish
    monkeypatch.setattr(
        cl.CommandQueue, "finish", lambda queue: finished.append(True) or finish(queue)
    )
    monkeypatch.setattr(KernelSequence, "enqueue", raising)
    with pytest.raises(RuntimeError, match="on the way"):
        runner.run([HostTensor(aligned(floats(3, 50)))])
    assert finished


def raising(*args):
    raise RuntimeError("on the way")


def test_results_larger_than_the_largest_buffer_are_refused():
    from dataclasses import replace

    from partita.errors import DeviceMemoryError

    first = find_device("")
    device = Device(0, first.handle, first.driver)
    device.limits = replace(device.limits, allocation_bytes=1000)
    assert HostBuffers(device).over("x", HostTensor(aligned(floats(300)))) is None
    with pytest.raises(DeviceMemoryError, match="largest buffer"):
        RequestBuffers(device).output(0, 1200)


def test_a_driver_that_copies_is_found_out(monkeypatch):
    """One whose buffers start as the array and go their own way."""
    device = find_device("")
    if not device.limits.is_cpu:
        assert not device.shares_host
        return
    tried = (device.context, device.handle, "OPENCL")
    assert works_in_host_memory(*tried)

    def copying(context, array, *, read_only=False):
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(context, flags, hostbuf=array)

    monkeypatch.setattr(host_memory, "buffer_over", copying)
    assert not works_in_host_memory(*tried)

    def refusing(context, array, *, read_only=False):
        raise cl.LogicError("clCreateBuffer", cl.status_code.INVALID_HOST_PTR, "no")

    monkeypatch.setattr(host_memory, "buffer_over", refusing)
    assert not works_in_host_memory(*tried)


def test_results_come_to_page_locked_memory_where_devices_have_their_own(apart, monkeypatch):
    made = []

    def noted(device, nbytes):
        made.append(page_locked(device, nbytes))
        return made[-1]

    monkeypatch.setattr(host_buffers, "page_locked", noted)
    request = compiled(chain()).create_infer_request()
    for seed in range(5):  # the first runs are not bound
        x = floats(3, 50, seed=seed)
        y = request.infer({"x": x}, share_outputs=True)["y"]
        np.testing.assert_allclose(y, np.exp(-x), rtol=1e-5)
    assert any(np.shares_memory(y, memory) for memory in made if memory is not None)


@pytest.mark.parametrize("start", range(4))  # in memory that kernels could work in, and other
def test_strings_that_nothing_reads_stay_where_they_are(start):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("names", TensorProto.STRING, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    request = partita.Core().compile_model(model, "OPENCL").create_infer_request()
    names = np.array(list("abcdefgh"), object)[start:]
    for _ in range(3):
        found = request.infer({"x": np.array([-1, 2], np.float32), "names": names})
        np.testing.assert_array_equal(found[0], [0, 2])
