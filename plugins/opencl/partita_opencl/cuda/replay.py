"""Kernels that the CUDA driver launches as one graph: OpenCL takes microseconds for each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from partita_opencl.cuda.argument_table import Argument, ArgumentTable
from partita_opencl.cuda.cuda_driver import Batch, Cuda, Stream, Word
from partita_opencl.cuda.ptx import for_cuda
from partita_opencl.cuda.shared_memory import address_of


class Kernel(NamedTuple):
    """A kernel to be launched.

    Attributes:
        program: The ``pyopencl.Program`` that has it.
        name: Its name.
        global_size: Work items by dimension.
        local_size: Work items of a group by dimension.
    """

    program: Any
    name: str
    global_size: Sequence[int]
    local_size: Sequence[int]


class _NodeParameters(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("function", Word),
        ("sizes", ctypes.c_uint * 7),
        ("arguments", Word),
        ("extra", Word),
        ("kernel", Word),
        ("context", Word),
    )


class _Module:
    """A program's machine code, until this is gone.

    Args:
        cuda: The device.
        ptx: The program.
    """

    def __init__(self, cuda: Cuda, ptx: bytes) -> None:
        self._cuda = cuda
        self._functions: dict[str, Word] = {}
        self._handle = Word()
        with cuda.current():
            cuda.call("cuModuleLoadData", ctypes.byref(self._handle), ptx)
        cuda.on_release(self, ("cuModuleUnload", self._handle))

    def function(self, name: str) -> Word:
        """A kernel."""
        found = self._functions.get(name)
        if found is None:
            found = Word()
            with self._cuda.current():
                which = self._handle, name.encode()
                self._cuda.call("cuModuleGetFunction", ctypes.byref(found), *which)
            self._functions[name] = found
        return found


def load(cuda: Cuda, program: Any) -> bool:
    """Has CUDA assemble an OpenCL program, whose attribute ``cuda`` it becomes; whether it could.

    Raises:
        CudaError: The driver refuses it.
    """
    import pyopencl as cl

    if "cuda" not in vars(program):
        ptx = for_cuda(program.get_info(cl.program_info.BINARIES)[0])
        made = None if ptx is None else _Module(cuda, ptx)
        vars(program).setdefault("cuda", made)  # another thread's may be in use already
    return is_loaded(program)


def is_loaded(program: Any) -> bool:
    """Whether CUDA has an OpenCL program."""
    # Asked for what it has not, a program of pyopencl looks for a kernel of that name.
    return vars(program).get("cuda") is not None


class _Arguments:
    """The arguments of kernels, and the pointers to them that CUDA asks for."""

    def __init__(self, values: Sequence[Sequence[Argument]]) -> None:
        self._table = ArgumentTable(values, lambda buffer: address_of(buffer) or 0)
        self._pointers = self._table.addresses.copy()
        self._unreached: set[tuple[int, int]] = set()
        if not all(map(_is_reached, self._table.buffers)):
            self._unreached = {
                (number, position)
                for number, of_kernel in enumerate(values)
                for position, value in enumerate(of_kernel)
                if not _is_reached(value)
            }

    @property
    def places(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """By kernel where the pointers to its arguments are."""
        starts = np.array(self._table.starts[:-1], np.uint64)
        return self._pointers.ctypes.data + starts * np.uint64(self._pointers.itemsize)

    def change(self, number: int, position: int, value: Argument) -> None:
        """Takes another buffer in the place of one."""
        self._table.change(number, position, value)
        if _is_reached(value):
            self._unreached.discard((number, position))
        else:
            self._unreached.add((number, position))

    @property
    def all_reached(self) -> bool:
        """Whether CUDA has all of the buffers."""
        return not self._unreached


class Replay:
    """Kernels in order, again and again, with arguments that may change in between.

    Args:
        cuda: The device; all programs are :func:`load`-ed.
        kernels: The kernels in order.
        arguments: By kernel, a value for each position.

    Raises:
        CudaError: The driver refuses a kernel.
    """

    def __init__(
        self, cuda: Cuda, kernels: Sequence[Kernel], arguments: Sequence[Sequence[Argument]]
    ) -> None:
        self._cuda = cuda
        self._arguments = _Arguments(arguments)
        self._programs = [kernel.program for kernel in kernels]  # which hold the machine code
        self._parameters = _described(kernels, self._arguments.places)
        self._nodes = np.zeros(len(kernels), np.uint64)
        self._changed: set[int] = set()
        self._left_out: Set[int] = frozenset()
        graph, self._graph = Word(), Word()
        with cuda.current():
            cuda.call("cuGraphCreate", ctypes.byref(graph), 0)
            try:
                self._add_nodes(graph.value or 0)
                cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(self._graph), graph, 0)
            finally:
                cuda.on_release(self, ("cuGraphDestroy", graph))
        cuda.on_release(self, ("cuGraphExecDestroy", self._graph))

    @property
    def is_possible(self) -> bool:
        """Whether CUDA has all buffers that the kernels are given now."""
        return self._arguments.all_reached

    @property
    def is_changed(self) -> bool:
        """Whether the next launch has more to tell the driver than the last one."""
        return bool(self._changed)

    def change(self, number: int, position: int, value: Argument) -> None:
        """Gives a kernel another buffer, from the next launch on."""
        self._arguments.change(number, position, value)
        self._changed.add(number)

    def leave_out(self, numbers: Set[int]) -> None:
        """Launches all but these from now on."""
        with self._cuda.current():
            for number in numbers ^ self._left_out:
                node = self._graph, int(self._nodes[number])
                self._cuda.call("cuGraphNodeSetEnabled", *node, int(number not in numbers))
        self._left_out = frozenset(numbers)

    def upload(self, stream: Stream) -> None:
        """Copies the graph to the device, which the first launch does otherwise.

        Raises:
            CudaError: There is no room.
        """
        stream.add("cuGraphUpload", self._graph.value or 0, stream.handle)
        stream.finish()

    def launch(self, stream: Stream) -> None:
        """Enqueues all.

        Raises:
            CudaError: The driver refuses an argument.
        """
        if self._changed:
            with self._cuda.current():
                parameters = _addresses(self._parameters)
                for number in self._changed:
                    what = int(self._nodes[number]), parameters[number]
                    self._cuda.call("cuGraphExecKernelNodeSetParams_v2", self._graph, *what)
            self._changed.clear()
        stream.add("cuGraphLaunch", self._graph.value or 0, stream.handle)

    def _add_nodes(self, graph: int) -> None:
        """Adds all kernels to a graph, each behind the one before."""
        nodes, parameters = _addresses(self._nodes), _addresses(self._parameters)
        before = [(0, 0), *((node, 1) for node in nodes)]
        calls = [
            ("cuGraphAddKernelNode_v2", node, graph, *behind, what)
            for node, behind, what in zip(nodes, before, parameters, strict=False)
        ]
        Batch(self._cuda, calls).perform()


def _described(
    kernels: Sequence[Kernel], arguments: np.ndarray[Any, np.dtype[np.uint64]]
) -> np.ndarray[Any, Any]:
    """What CUDA asks of nodes, one after another.

    Args:
        kernels: The kernels.
        arguments: By kernel where the pointers to its arguments are.
    """
    found = np.zeros(len(kernels), _NodeParameters)
    found["function"] = [kernel.program.cuda.function(kernel.name).value for kernel in kernels]
    if kernels:
        found["sizes"][:, :6] = [grid(kernel) for kernel in kernels]
    found["arguments"] = arguments
    return found


def _addresses(rows: np.ndarray[Any, Any]) -> range:
    """Where each row is."""
    start, size = rows.ctypes.data, rows.itemsize
    return range(start, start + size * len(rows), size)


def launch_once(cuda: Cuda, kernel: Kernel, arguments: Sequence[Argument], stream: Stream) -> None:
    """Enqueues one kernel, whose program is :func:`load`-ed, before what waits in the stream.

    Raises:
        CudaError: The driver refuses.
    """
    function = kernel.program.cuda.function(kernel.name)
    given = _Arguments([arguments])
    with cuda.current():
        what = function, *grid(kernel), 0, stream.handle, int(given.places[0]), None
        cuda.call("cuLaunchKernel", *what)


def grid(kernel: Kernel) -> list[int]:
    """Groups, and items of a group, by three dimensions."""
    local = [*kernel.local_size, 1, 1][:3]
    items = [*kernel.global_size, 1, 1][:3]
    return [*(item // of for item, of in zip(items, local, strict=True)), *local]


def _is_reached(value: Argument) -> bool:
    return value is None or isinstance(value, bytes) or address_of(value) is not None
