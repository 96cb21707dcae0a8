"""Memory that CUDA allocated as tensors of device OPENCL; needs an NVIDIA GPU."""

import ctypes

import numpy as np
import pytest
from onnx import TensorProto, helper

import partita
from partita.errors import DeviceMemoryError
from partita_opencl.device.cuda_interop import import_memory


class Location(ctypes.Structure):
    """``CUmemLocation``"""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """``CUmemAllocationProp``"""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class CudaMemory:
    """Memory of CUDA, mapped and exported."""

    def __init__(self, nbytes):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        made = Properties(type=1, handle_types=1, location=Location(1, 0))
        granularity = ctypes.c_size_t()
        size = ctypes.byref(granularity)
        self.call("cuMemGetAllocationGranularity", size, ctypes.byref(made), 0)
        self.nbytes = -(-nbytes // granularity.value) * granularity.value
        handle, self.at = ctypes.c_uint64(), ctypes.c_uint64()
        long = ctypes.c_size_t
        self.call(
            "cuMemCreate", ctypes.byref(handle), long(self.nbytes), ctypes.byref(made), long(0)
        )
        self.call(
            "cuMemAddressReserve",
            *(ctypes.byref(self.at), long(self.nbytes), long(0), ctypes.c_uint64(0), long(0)),
        )
        self.call("cuMemMap", self.at, long(self.nbytes), long(0), handle, long(0))
        access = (ctypes.c_int * 3)(1, 0, 3)
        self.call("cuMemSetAccess", self.at, long(self.nbytes), access, long(1))
        descriptor = ctypes.c_int()
        self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, long(0))
        self.descriptor = descriptor.value

    def call(self, name, *args):
        status = getattr(self.cuda, name)(*args)
        assert status == 0, f"{name}: {status}"

    def write(self, array):
        size = ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyHtoD_v2", self.at, ctypes.c_void_p(array.ctypes.data), size)

    def read(self, array):
        size = ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), self.at, size)


def test_requests_read_and_write_what_cuda_allocated():
    x = np.random.default_rng(0).standard_normal((5, 700)).astype(np.float32)
    source, target = CudaMemory(x.nbytes), CudaMemory(x.nbytes)
    source.write(x)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy"]
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    core = partita.Core()
    runner = core.compile_model(core.read_model(model), "GPU").device_model.create_runner()
    given, wanted = (
        import_memory(memory.descriptor, memory.nbytes, x.shape, x.dtype)
        for memory in (source, target)
    )
    runner.run([given], [wanted])
    found = np.zeros_like(x)
    target.read(found)
    np.testing.assert_array_equal(found, -x)


def test_a_tensor_larger_than_the_memory():
    memory = CudaMemory(100)
    with pytest.raises(DeviceMemoryError, match="does not fit"):
        import_memory(memory.descriptor, memory.nbytes, (memory.nbytes,), np.float32)
