"""What CUDA's driver is asked, by a driver of the same functions that computes on the host."""

import ctypes
import errno
import functools
import gc
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import partita
from partita import HostTensor
from partita_opencl.cuda import cuda_device, shared_memory, trial
from partita_opencl.cuda.argument_table import ArgumentTable
from partita_opencl.cuda.cuda_device import CudaSide
from partita_opencl.cuda.cuda_driver import FUNCTIONS, Cuda, CudaError, Stream
from partita_opencl.cuda.ptx import for_cuda
from partita_opencl.cuda.replay import Kernel, Replay, grid, launch_once
from partita_opencl.cuda.shared_memory import CudaMemory, SharedMemory, address_of
from partita_opencl.device.buffer_pool import BufferPool
from partita_opencl.device.device import Device, find_device
from partita_opencl.device.run_turns import Turns
from partita_opencl.runtime import cuda_graph, execution_plan, runner
from partita_opencl.runtime.binding import bound_plan
from partita_opencl.runtime.commands import CudaCommands, OpenClCommands, RequestQueue
from partita_opencl.runtime.driver_loops import DriverKernel
from partita_opencl.runtime.shared_kernels import SharedKernels

from ..comparison import compiled, floats
from .test_opencl_host_memory import chain
from .test_opencl_varying_shapes import counted, request_and_judge

OUT_OF_MEMORY = 2


class Node(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``, as cuda.h has it."""

    _fields_ = (
        *(("func", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3)),
        *(("shared", ctypes.c_uint), ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p)),
        *(("kern", ctypes.c_void_p), ("ctx", ctypes.c_void_p)),
    )


def _at(argument, kind):
    """What an argument points to."""
    return ctypes.cast(argument, ctypes.POINTER(kind)).contents


class HostDriver:
    """The driver's functions over host memory: each takes what ``cuda.h`` says, and checks it."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.enabled: list[bool] = []
        self.pushed = 0
        self.refused = ""
        self.made: dict[str, Callable[..., int]] = {}
        self.calls: list[str] = []
        self.handles: dict[int, ctypes.Array] = {}
        self.kernels: dict[int, Callable[..., None]] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        assert name in FUNCTIONS
        self.calls.append(name)
        known = getattr(type(self), f"do_{name}", None)
        done = (lambda *_: 0) if known is None else functools.partial(known, self)
        if len(FUNCTIONS[name]) > 5:
            return done
        # Called by native code too, which is told where they are.
        return self.made.setdefault(name, ctypes.CFUNCTYPE(ctypes.c_int, *FUNCTIONS[name])(done))

    def do_cuCtxPushCurrent_v2(self, _context) -> int:
        self.pushed += 1
        return 0

    def do_cuCtxPopCurrent_v2(self, _context) -> int:
        self.pushed -= 1
        return 0

    def do_cuGraphAddKernelNode_v2(self, node, _graph, before, count, parameters) -> int:
        assert count == (1 if self.nodes else 0)
        assert not count or _at(before, ctypes.c_uint64).value == len(self.nodes)
        self.nodes.append(Node.from_buffer_copy(_at(parameters, Node)))
        self.enabled.append(True)
        _at(node, ctypes.c_void_p).value = len(self.nodes)
        return 0

    def do_cuGraphExecKernelNodeSetParams_v2(self, _graph, node, parameters) -> int:
        self.nodes[node - 1] = Node.from_buffer_copy(_at(parameters, Node))
        return 0

    def do_cuGraphNodeSetEnabled(self, _graph, node, enabled) -> int:
        self.enabled[node - 1] = bool(enabled)
        return 0

    def do_cuGraphLaunch(self, _graph, _stream) -> int:
        if self.refused:
            return OUT_OF_MEMORY
        for node, enabled in zip(self.nodes, self.enabled, strict=True):
            if enabled:
                pointers = ctypes.cast(node.params, ctypes.POINTER(ctypes.c_void_p))
                self.kernels[node.func]([*node.grid], [*node.block], pointers)
        return 0

    def do_cuLaunchKernel(self, function, *sizes_and_rest) -> int:
        *sizes, shared, _stream, pointers, extra = sizes_and_rest
        assert (shared, extra) == (0, None)
        pointers = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
        self.kernels[function.value](sizes[:3], sizes[3:], pointers)
        return 0

    def do_cuMemcpyDtoHAsync_v2(self, target, source, size, _stream) -> int:
        ctypes.memmove(target, source, size)
        return 0

    def do_cuMemCreate(self, handle, size, _kind, _flags) -> int:
        if size > 64 << 20:
            return OUT_OF_MEMORY
        _at(handle, ctypes.c_uint64).value = len(self.handles) + 1
        self.handles[_at(handle, ctypes.c_uint64).value] = (ctypes.c_ubyte * size)()
        return 0

    def do_cuMemAddressReserve(self, address, size, _alignment, _wanted, _flags) -> int:
        _at(address, ctypes.c_uint64).value = ctypes.addressof(self.handles[len(self.handles)])
        return 0

    def do_cuGetErrorName(self, status, text) -> int:
        _at(text, ctypes.c_char_p).value = (
            b"CUDA_ERROR_OUT_OF_MEMORY" if status == OUT_OF_MEMORY else b"?"
        )
        return 0


class Program:
    """Stands for an OpenCL program that CUDA has assembled."""

    def __init__(self, functions: dict[str, int]) -> None:
        self.cuda = self
        self._functions = functions

    def function(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._functions[name])


class Buffer:
    """A buffer over a host array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.cuda = CudaMemory(array.ctypes.data)


def add(grid, block, pointers) -> None:
    """target[i] = source[i] + number, by the groups of a launch."""
    count = grid[0] * block[0]
    source, target = (
        ctypes.cast(pointers[n], ctypes.POINTER(ctypes.c_uint64))[0] for n in range(2)
    )
    number = ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_float))[0]
    x, y = ((ctypes.c_float * count).from_address(one) for one in (source, target))
    y[:] = [value + number for value in x]


def replayed(driver: HostDriver, buffers: list[Buffer]) -> Replay:
    """Each of the buffers is the one before and a number more: 1, 2, and so on."""
    driver.kernels[7] = add
    kernel = Kernel(Program({"add": 7}), "add", (8,), (4,))
    steps = [
        [one, other, np.float32(n + 1).tobytes()]
        for n, (one, other) in enumerate(itertools.pairwise(buffers))
    ]
    return Replay(Cuda(driver, 0), [kernel] * len(steps), steps)


def test_kernels_of_a_graph_get_their_arguments_in_order() -> None:
    driver = HostDriver()
    buffers = [Buffer(np.full(8, value, np.float32)) for value in (10, 0, 0)]
    replay = replayed(driver, buffers)
    stream = Stream(Cuda(driver, 0))
    replay.launch(stream)
    stream.finish()
    assert buffers[2].array.tolist() == [13.0] * 8
    buffers[0].array[:] = 20
    replay.launch(stream)
    stream.finish()
    assert buffers[2].array.tolist() == [23.0] * 8
    assert driver.pushed == 0


def test_a_kernel_is_launched_once_with_its_arguments() -> None:
    driver = HostDriver()
    driver.kernels[7] = add
    one, other = (Buffer(np.full(8, value, np.float32)) for value in (10, 0))
    kernel = Kernel(Program({"add": 7}), "add", (8,), (4,))
    cuda = Cuda(driver, 0)
    launch_once(cuda, kernel, [one, other, np.float32(2).tobytes()], Stream(cuda))
    assert other.array.tolist() == [12.0] * 8
    assert driver.pushed == 0


def test_no_kernels_are_a_graph_too() -> None:
    driver = HostDriver()
    stream = Stream(Cuda(driver, 0))
    Replay(Cuda(driver, 0), [], []).launch(stream)
    stream.finish()
    assert driver.nodes == []
    assert driver.pushed == 0


def test_arguments_lie_apart_as_they_were_given() -> None:
    buffers = [Buffer(np.zeros(8, np.float32)) for _ in range(2)]
    texts = [b"\1", bytes(40), b"\2\0\0\0", bytes(range(33, 64)) + b"\0", b"\3\0"]
    given = [[texts[0], buffers[0], None], [], [*texts[1:4], *buffers, buffers[0], texts[4]]]
    table = ArgumentTable(given, address_of)
    words = [address_of(one).to_bytes(8, "little") for one in buffers]
    wanted = [texts[0], words[0], bytes(8), *texts[1:4], *words, words[0], texts[4]]
    assert table.starts == [0, 3, 3, 10]
    assert table.buffers == buffers

    def held() -> list[bytes]:
        places = zip(table.addresses.tolist(), table.sizes.tolist(), strict=True)
        return [ctypes.string_at(*place) for place in places]

    assert held() == wanted
    assert not (table.addresses % 16).any()
    table.change(2, 3, buffers[1])
    wanted[6] = words[1]
    assert held() == wanted


def test_a_refused_command_is_told_and_the_next_run_works() -> None:
    driver = HostDriver()
    buffers = [Buffer(np.full(8, value, np.float32)) for value in (10, 0, 0)]
    replay = replayed(driver, buffers)
    stream = Stream(Cuda(driver, 0))
    found = np.zeros(8, np.float32)
    driver.refused = "yes"
    replay.launch(stream)
    stream.read(found, address_of(buffers[2]))
    with pytest.raises(CudaError, match="cuGraphLaunch: CUDA_ERROR_OUT_OF_MEMORY"):
        stream.finish()
    assert driver.pushed == 0
    stream.abandon()
    driver.refused = ""
    replay.launch(stream)
    stream.read(found, address_of(buffers[2]))
    stream.finish()
    assert found.tolist() == [13.0] * 8
    assert driver.pushed == 0


def test_commands_are_handed_over_again() -> None:
    driver = HostDriver()
    buffers = [Buffer(np.full(8, value, np.float32)) for value in (10, 0, 0)]
    replay = replayed(driver, buffers)
    stream = Stream(Cuda(driver, 0))
    found = np.zeros(8, np.float32)
    replay.launch(stream)
    stream.read(found, address_of(buffers[2]))
    made = stream.finish()
    buffers[0].array[:] = 20
    made.perform()
    assert found.tolist() == [23.0] * 8
    driver.refused = "yes"
    with pytest.raises(CudaError, match="cuGraphLaunch: CUDA_ERROR_OUT_OF_MEMORY"):
        made.perform()
    assert driver.pushed == 0
    driver.refused = ""
    stream.read(found, address_of(buffers[0]))
    other = stream.finish()
    assert found.tolist() == [20.0] * 8
    made.perform()
    assert found.tolist() == [23.0] * 8
    other.perform()
    assert found.tolist() == [20.0] * 8
    assert driver.pushed == 0


def test_runs_that_wait_for_their_turn_are_handed_over_again() -> None:
    driver = HostDriver()
    side = CudaSide(Cuda(driver, 0), None)
    buffers = [Buffer(np.full(8, value, np.float32)) for value in (10, 0, 0)]
    driver.kernels[7] = add
    kernel = Kernel(Program({"add": 7}), "add", (8,), (4,))
    steps = [[*buffers[n : n + 2], np.float32(n + 1).tobytes()] for n in range(2)]
    commands = CudaCommands(side, [kernel] * 2, steps)
    queue = RequestQueue(None, side.stream())
    assert not commands.again()
    with commands.start(queue):
        commands.in_turn(commands.launch)
        commands.finish()
    buffers[0].array[:] = 20
    assert commands.again()
    assert buffers[2].array.tolist() == [23.0] * 8
    other = Buffer(np.full(8, 30, np.float32))
    commands.change(0, 0, other)
    assert not commands.again()
    with commands.start(queue):
        commands.launch()
        commands.finish()
    assert buffers[2].array.tolist() == [33.0] * 8
    driver.refused = "yes"
    with pytest.raises(CudaError, match="cuGraphLaunch: CUDA_ERROR_OUT_OF_MEMORY"):
        commands.again()
    assert driver.pushed == 0


def test_arguments_change_and_kernels_are_left_out() -> None:
    driver = HostDriver()
    buffers = [Buffer(np.full(8, value, np.float32)) for value in (10, 0, 0)]
    other = Buffer(np.zeros(8, np.float32))
    replay = replayed(driver, buffers)
    stream = Stream(Cuda(driver, 0))
    replay.change(1, 1, other)
    replay.launch(stream)
    stream.finish()
    assert other.array.tolist() == [13.0] * 8
    assert not buffers[2].array.any()
    replay.leave_out({0})
    buffers[1].array[:] = 1
    replay.launch(stream)
    stream.finish()
    assert other.array.tolist() == [3.0] * 8
    replay.leave_out(set())
    replay.launch(stream)
    stream.finish()
    assert other.array.tolist() == [13.0] * 8


def test_buffers_that_cuda_lacks_are_told() -> None:
    buffers = [Buffer(np.zeros(8, np.float32)) for _ in range(2)]
    replay = replayed(HostDriver(), buffers)
    assert replay.is_possible
    lacking = Buffer(np.zeros(8, np.float32))
    lacking.cuda = None
    replay.change(0, 1, lacking)
    assert not replay.is_possible
    replay.change(0, 1, buffers[1])
    assert replay.is_possible


@pytest.mark.parametrize(
    ("items", "of", "wanted"),
    [((64,), (16,), [4, 1, 1, 16, 1, 1]), ((8, 6, 4), (4, 3, 1), [2, 2, 4, 4, 3, 1])],
)
def test_groups_are_counted(items, of, wanted) -> None:
    assert grid(Kernel(None, "", items, of)) == wanted


def test_ptx_is_made_for_cuda() -> None:
    ptx = b".version 9.0\n.target sm_90, texmode_independent\nmov.b32 %r4, %envreg3;\n"
    ptx += b"mov.b32 %r9, %envreg6;\nmov.b32 %r1, %envreg8;\n\0\0"
    text = for_cuda(ptx)
    assert text == (
        b".version 9.0\n.target sm_90\nmov.b32 %r4, 0;\nmov.b32 %r9, %nctaid.x;\n"
        b"mov.b32 %r1, %nctaid.z;\n"
    )
    assert for_cuda(ptx + b"mov.b32 %r1, %envreg9;\n") is None  # dimensions: CUDA has no word
    assert for_cuda(b"\x7fELF") is None


@pytest.fixture
def memory(monkeypatch):
    """Memory of the first OpenCL device, whose import is a new buffer."""
    import pyopencl as cl

    device = find_device("")

    def imported(context, _descriptor, nbytes):
        return cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes), 0

    monkeypatch.setattr(shared_memory, "import_buffer", imported)
    driver = HostDriver()
    return driver, SharedMemory(Cuda(driver, 0), device.context)


def test_small_buffers_are_apart_and_used_again(memory) -> None:
    driver, made = memory
    sizes = [1, 512, 513, 700, 1500, 3000, 70_000, 1 << 20, 1 << 20, 1 << 20]
    buffers = [made.allocate(size) for size in sizes * 3]
    ranges = sorted((address_of(buffer), buffer.size) for buffer in buffers)
    assert all(start + size <= behind for (start, size), (behind, _) in itertools.pairwise(ranges))
    assert all(
        size <= buffer.size < 2 * max(size, 512)
        for size, buffer in zip(sizes * 3, buffers, strict=True)
    )
    created = driver.calls.count("cuMemCreate")
    known = {address_of(buffer) for buffer in buffers}
    del buffers
    buffers = [made.allocate(size) for size in sizes * 3]
    assert driver.calls.count("cuMemCreate") == created
    assert {address_of(buffer) for buffer in buffers} <= known


def test_large_buffers_go_back(memory) -> None:
    driver, made = memory
    buffer = made.allocate(5 << 20)
    assert buffer.size == 6 << 20
    assert driver.calls.count("cuMemUnmap") == 0
    del buffer
    assert driver.calls.count("cuMemUnmap") == driver.calls.count("cuMemAddressFree") == 1
    assert driver.pushed == 0


def test_lack_of_memory_is_told(memory) -> None:
    driver, made = memory
    with pytest.raises(CudaError, match="cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY") as told:
        made.allocate(65 << 20)
    assert told.value.is_lack_of_memory
    assert driver.pushed == 0


def test_buffers_that_the_trial_found_too_large_are_opencls() -> None:
    device = find_device("")
    cuda = Cuda(HostDriver(), 0)
    small = SharedMemory(cuda, device.context, 4 << 20)
    assert small.takes(4 << 20)
    assert not small.takes((4 << 20) + 1)
    assert SharedMemory(cuda, device.context).takes(1 << 40)
    pool = BufferPool(device.context, device.limits, "OPENCL.0", SimpleNamespace(memory=small))
    x = np.arange(3 << 19, dtype=np.int32)
    buffer = pool.allocate(x.nbytes, x)
    assert address_of(buffer) is None
    found = np.empty_like(x)
    device.read(found, buffer)
    np.testing.assert_array_equal(found, x)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("lacks", [False, True])
def test_a_trial_imports_ever_larger_buffers(monkeypatch, lacks) -> None:
    sizes = (2 << 20, 3 << 20, (65 if lacks else 5) << 20)  # of 64 MiB there are none
    monkeypatch.setattr(trial, "IMPORTS", sizes)
    monkeypatch.setattr(trial, "cuda_of", lambda _: Cuda(HostDriver(), 0))
    assert list(trial.imports(None, find_device("").context)) == list(sizes)


def test_lack_of_descriptors_is_told(memory, monkeypatch) -> None:
    driver, made = memory
    opened: list[int] = []

    def dup(descriptor: int) -> int:
        if len(opened) == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(duplicate(descriptor))
        return opened[-1]

    duplicate = os.dup
    monkeypatch.setattr(shared_memory.os, "dup", dup)
    with pytest.raises(OSError, match=r"may have \d+ descriptors, .* raise the limit"):
        made.allocate(5 << 20)
    assert "cuMemCreate" not in driver.calls
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_refused_imports_leave_nothing_open(memory, monkeypatch) -> None:
    import pyopencl as cl

    driver, made = memory
    descriptor, other = os.pipe()

    def do_export(_, told, *_rest) -> int:
        _at(told, ctypes.c_int).value = descriptor
        return 0

    monkeypatch.setattr(HostDriver, "do_cuMemExportToShareableHandle", do_export, raising=False)
    monkeypatch.setattr(shared_memory, "import_buffer", lambda *_: (None, -30))
    with pytest.raises(cl.LogicError, match="clCreateBufferWithProperties failed: -30"):
        made.allocate(5 << 20)
    assert driver.calls.count("cuMemRelease") == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    os.close(other)


class ThroughOpenCl(OpenClCommands):
    """In the place of CUDA's commands: the same kernels and arguments, by OpenCL."""

    made: ClassVar[list["ThroughOpenCl"]] = []

    def __init__(self, _side, kernels, arguments) -> None:
        made = [DriverKernel(kernel.program, kernel.name) for kernel in kernels]
        sizes = [(tuple(one.global_size), tuple(one.local_size)) for one in kernels]
        super().__init__(SharedKernels(), made, sizes, arguments, Turns())
        self.is_possible, self.launches, self.repeats, self.uploaded = True, 0, 0, 0
        self.made.append(self)

    def upload_graph(self) -> None:
        self.uploaded += 1

    def again(self) -> bool:
        self.repeats += 1
        with super().start(self.queue):
            for command in self.commands:
                command()
            super().finish()
        return True

    def start(self, queue):
        self.queue, self.commands = queue, []
        return super().start(queue)

    def upload(self, buffer, array) -> None:
        self._do(functools.partial(super().upload, buffer, array))

    def download(self, array, buffer) -> None:
        self._do(functools.partial(super().download, array, buffer))

    def launch(self) -> None:
        self.launches += 1
        self._do(super().launch)

    def _do(self, command: Callable[[], None]) -> None:
        self.commands.append(command)
        command()


@pytest.fixture
def driven_by_cuda(monkeypatch):
    """The first OpenCL device, as if CUDA had it and all programs."""
    side = SimpleNamespace(
        stream=object,
        load=lambda _, then: then()(),
        cuda=SimpleNamespace(page_locked=lambda _: None),
        read=lambda *_: False,
        write=lambda *_: False,
    )
    find_device("").pool  # noqa: B018  # made without that
    monkeypatch.setattr(ThroughOpenCl, "made", [])
    monkeypatch.setattr(Device, "cuda", side)
    monkeypatch.setattr(cuda_graph, "CudaCommands", ThroughOpenCl)


def test_a_shape_that_is_run_again_is_cudas_from_the_third_run_on(driven_by_cuda) -> None:
    runner = compiled(chain()).device_model.create_runner()
    launches = []
    for seed in range(4):
        x = floats(3, 50, seed=seed)
        (found,) = runner.run([HostTensor(x)])
        np.testing.assert_allclose(found.numpy(), np.exp(-x), rtol=1e-5)
        launches.append(sum(one.launches for one in ThroughOpenCl.made))
    assert launches == [0, 0, 1, 2]
    assert [one.uploaded for one in ThroughOpenCl.made] == [1]


def test_shapes_are_prepared_for_cuda_alone_once_it_has_the_programs(
    driven_by_cuda, monkeypatch
) -> None:
    by_opencl = counted(monkeypatch, bound_plan, "OpenClCommands")
    request, wanted = request_and_judge()
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32) for n in range(20, 0, -1)]
    request.infer([arrays[0]])
    assert len(by_opencl) == 1
    monkeypatch.setattr(execution_plan, "is_loaded", lambda _: True)
    orders = [np.arange(20), *(rng.permutation(20) for _ in range(3))]
    brought = [arrays[number] for order in orders for number in order]
    held = [(x, request.infer([x])["y"]) for x in brought]
    for x, y in held:
        np.testing.assert_allclose(y, wanted(x), rtol=1e-3, atol=1e-4)
    assert len(by_opencl) == 1
    assert len(ThroughOpenCl.made) == 20
    assert sum(one.launches for one in ThroughOpenCl.made) == len(held)


@pytest.fixture
def loading(driven_by_cuda, monkeypatch):
    """CUDA gets programs in the background as it does, once `allowed` is set; which it got."""
    allowed, loaded = threading.Event(), {}

    def load(_, program) -> bool:
        assert allowed.wait(60)
        loaded[id(program)] = program
        return True

    monkeypatch.setattr(cuda_device, "load", load)
    for module in (cuda_device, execution_plan):
        monkeypatch.setattr(module, "is_loaded", lambda program: id(program) in loaded)
    side = CudaSide(Cuda(HostDriver(), 0), None)
    monkeypatch.setattr(Device.cuda, "load", side.load)
    yield SimpleNamespace(allowed=allowed, loaded=loaded)
    allowed.set()
    _wait_for_background()


def _wait_for_background() -> None:
    done = threading.Event()
    cuda_device.BACKGROUND.submit(done.set)
    assert done.wait(60)


def test_graphs_are_made_beside_runs_of_many_shapes_and_requests(loading, monkeypatch) -> None:
    bound = counted(monkeypatch, runner, "BoundPlan")
    made = [request_and_judge() for _ in range(2)]

    def run(number: int) -> None:
        request, wanted = made[number]
        rng = np.random.default_rng(number)
        for visit in range(3):
            for n in rng.permutation(40) + 1:
                x = rng.standard_normal((n, 8)).astype(np.float32)
                np.testing.assert_allclose(request.infer([x])["y"], wanted(x), 1e-3, 1e-4)
            if visit == 0:
                loading.allowed.set()
            if visit == 1:
                _wait_for_background()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2)))
    assert len(bound) == len(ThroughOpenCl.made) == 2 * 40
    assert sum(one.launches for one in ThroughOpenCl.made) >= 2 * 40


def test_a_graph_that_was_made_beside_runs_has_the_buffers_that_they_brought(loading) -> None:
    runner = compiled(chain()).device_model.create_runner()
    for seed in range(6):
        if seed == 4:
            loading.allowed.set()
            _wait_for_background()
        x, y = floats(3, 50, seed=seed), partita.Tensor(np.zeros((3, 50), np.float32))
        runner.run([HostTensor(x)], [y])
        np.testing.assert_allclose(y.numpy(), np.exp(-x), rtol=1e-5)
    assert [(one.launches, one.uploaded) for one in ThroughOpenCl.made] == [(2, 1)]


def test_runs_go_through_opencl_where_no_thread_can_load_programs(
    loading, monkeypatch, caplog
) -> None:
    def refuse(*_) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(cuda_device.BACKGROUND, "submit", refuse)
        runner = compiled(chain()).device_model.create_runner()
        for seed in range(3):
            x = floats(3, 50, seed=seed)
            (found,) = runner.run([HostTensor(x)])
            np.testing.assert_allclose(found.numpy(), np.exp(-x), rtol=1e-5)
    assert not ThroughOpenCl.made
    assert "can't start new thread" in caplog.text


def test_no_graph_is_made_for_a_request_that_is_gone(loading) -> None:
    request, wanted = request_and_judge()
    for n in (3, 5, 7):
        x = floats(n, 8)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    del request
    gc.collect()
    loading.allowed.set()
    _wait_for_background()
    assert ThroughOpenCl.made == []
    assert len(loading.loaded) <= 1, "at most the one that was under way"


def test_a_graph_of_a_second_shape_is_made_behind_its_first_run(loading) -> None:
    loading.allowed.set()
    request, wanted = request_and_judge()
    for n, launches in ((3, []), (5, [0]), (5, [1])):
        x = floats(n, 8)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
        _wait_for_background()
        assert [one.launches for one in ThroughOpenCl.made] == launches


def test_bound_calls_hand_over_the_same_commands_until_something_else_runs(driven_by_cuda) -> None:
    runner = compiled(chain()).device_model.create_runner()
    x, y = np.zeros((3, 50), np.float32), np.zeros((3, 50), np.float32)
    call = runner.bind([HostTensor(x)], [HostTensor(y)])
    assert call is not None
    repeats = []
    for seed in range(7):
        if seed == 4:
            other = floats(3, 50, seed=9)
            (found,) = runner.run([HostTensor(other)])
            np.testing.assert_allclose(found.numpy(), np.exp(-other), rtol=1e-5)
        x[:] = floats(3, 50, seed=seed)
        call()
        np.testing.assert_allclose(y, np.exp(-x), rtol=1e-5)
        repeats.append(sum(one.repeats for one in ThroughOpenCl.made))
    assert repeats == [0, 0, 0, 1, 1, 2, 3]


def test_buffers_that_cuda_lacks_are_opencls(driven_by_cuda) -> None:
    runner = compiled(chain()).device_model.create_runner()
    for seed in range(5):
        for one in ThroughOpenCl.made:
            one.is_possible = seed != 3
        x = floats(3, 50, seed=seed)
        (found,) = runner.run([HostTensor(x)])
        np.testing.assert_allclose(found.numpy(), np.exp(-x), rtol=1e-5)
    assert [one.launches for one in ThroughOpenCl.made] == [2]


def test_a_plan_that_cuda_refuses_is_opencls(driven_by_cuda, monkeypatch, caplog) -> None:
    def refusing(*_):
        raise CudaError("cuGraphAddKernelNode_v2", "CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(cuda_graph, "CudaCommands", refusing)
    runner = compiled(chain()).device_model.create_runner()
    for seed in range(3):
        x = floats(3, 50, seed=seed)
        (found,) = runner.run([HostTensor(x)])
        np.testing.assert_allclose(found.numpy(), np.exp(-x), rtol=1e-5)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "cuGraphAddKernelNode_v2: CUDA_ERROR_INVALID_VALUE" in caplog.text
