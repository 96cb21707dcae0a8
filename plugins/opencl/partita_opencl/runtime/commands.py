"""The commands of a run on their way to the device: by OpenCL's queue, or by CUDA's stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, Protocol

from partita.lowering import Array
from partita_opencl.cuda.argument_table import Argument
from partita_opencl.cuda.cuda_device import CudaSide
from partita_opencl.cuda.cuda_driver import Batch, Stream
from partita_opencl.cuda.replay import Kernel, Replay, launch_once
from partita_opencl.cuda.shared_memory import address_of
from partita_opencl.device.buffer_pool import raw
from partita_opencl.device.run_turns import Turns
from partita_opencl.runtime.driver_loops import DriverKernel
from partita_opencl.runtime.launch_batch import KernelSequence, enqueued
from partita_opencl.runtime.shared_kernels import KernelArguments, SharedKernels


class RequestQueue(NamedTuple):
    """Where a request's commands go, in order.

    Attributes:
        opencl: The ``pyopencl.CommandQueue``.
        cuda: The stream of the same device, if CUDA launches its kernels.
    """

    opencl: Any
    cuda: Stream | None = None


class SingleItemKernel:
    """A kernel of one item that is launched now and then.

    Args:
        program: The ``pyopencl.Program`` that has it.
        name: Its name.
        arguments: Buffers, and bytes of numbers.

    Attributes:
        arguments: May be changed.
    """

    def __init__(self, program: Any, name: str, arguments: list[Argument]) -> None:
        self.kernel = Kernel(program, name, (1,), (1,))
        self.arguments = arguments
        self._made: DriverKernel | None = None

    def by_opencl(self, queue: Any) -> None:
        """Enqueues it."""
        if self._made is None:
            self._made = DriverKernel(self.kernel.program, self.kernel.name)
        KernelArguments([self._made], [self.arguments]).set_all()
        KernelSequence([(self._made, (1,), (1,))]).enqueue(queue)


class Commands(Protocol):
    """Enqueues what a run consists of, in order; nothing waits before :meth:`finish`."""

    def change(self, number: int, position: int, buffer: Any) -> None:
        """Gives a kernel another buffer."""

    def leave_out(self, numbers: Set[int]) -> None:
        """Launches all kernels but these from now on."""

    def start(self, queue: RequestQueue) -> contextlib.AbstractContextManager[None]:
        """Lets the commands of the block go to a queue; after an error, it has ended them."""

    def upload(self, buffer: Any, array: Array) -> None:
        """Copies an array of bytes to a buffer."""

    def describe(self, single: SingleItemKernel) -> None:
        """Launches a kernel of one item."""

    def launch(self) -> None:
        """Launches the kernels."""

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        """Copies from buffer to buffer."""

    def download(self, array: Array, buffer: Any) -> None:
        """Copies a buffer to an array of bytes."""

    def in_turn(self, run: Callable[[], None]) -> None:
        """Has ``run`` enqueue commands behind those of all other requests that came so."""

    def finish(self) -> None:
        """Waits for the end of all."""

    def again(self) -> bool:
        """Enqueues all that the last run did, and waits for its end.

        Returns:
            ``False``, with nothing done, where that takes as long as a run, or kernels were given
            other buffers since.
        """


class OpenClCommands:
    """By a queue of OpenCL.

    Args:
        kernels: The request's kernels, with the arguments that its plans give them in turns.
        made: A kernel for each launch.
        sizes: Global and local size of each.
        arguments: By kernel, a value for each position.
        turns: Of the device.
    """

    def __init__(
        self,
        kernels: SharedKernels,
        made: Sequence[DriverKernel],
        sizes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        arguments: Sequence[Sequence[Argument]],
        turns: Turns,
    ) -> None:
        self._shared, self._turns = kernels, turns
        self._arguments = KernelArguments(made, arguments)
        self._launches = [(kernel, *size) for kernel, size in zip(made, sizes, strict=True)]
        self._sequence = KernelSequence(self._launches)
        self._left_out: Set[int] = frozenset()
        self._queue: Any = None
        self._copies: list[Any] = []

    def change(self, number: int, position: int, buffer: Any) -> None:
        """See :class:`Commands`."""
        self._arguments.change(number, position, buffer)
        if self._shared.user is self:
            self._arguments.set(number, position)

    def leave_out(self, numbers: Set[int]) -> None:
        """See :class:`Commands`."""
        if numbers == self._left_out:
            return
        self._left_out = numbers
        kept = [launch for n, launch in enumerate(self._launches) if n not in numbers]
        self._sequence = KernelSequence(kept)

    @contextlib.contextmanager
    def start(self, queue: RequestQueue) -> Any:
        """See :class:`Commands`."""
        import pyopencl as cl

        self._queue = queue.opencl
        self._copies = []  # events of copies are kept to the end: freeing one waits for its copy
        try:
            if self._shared.user is not self:
                self._shared.user = None  # nobody's, if this fails on the way
                self._arguments.set_all()
                self._shared.user = self
            yield
        except BaseException:
            with contextlib.suppress(cl.Error):
                self._queue.finish()  # kernels may work in the caller's memory, which may go
            raise
        finally:
            self._copies = []

    def upload(self, buffer: Any, array: Array) -> None:
        """See :class:`Commands`."""
        import pyopencl as cl

        copied = cl.enqueue_copy(self._queue, buffer, raw(array), is_blocking=False)
        self._copies.append(copied)

    def describe(self, single: SingleItemKernel) -> None:
        """See :class:`Commands`."""
        single.by_opencl(self._queue)

    def launch(self) -> None:
        """See :class:`Commands`."""
        self._sequence.enqueue(self._queue)

    def launch_noting(self) -> list[tuple[int, Any]]:
        """Launches the kernels one by one; the number and the event of each."""
        return [
            (number, enqueued(self._queue, launch))
            for number, launch in enumerate(self._launches)
            if number not in self._left_out
        ]

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        """See :class:`Commands`."""
        import pyopencl as cl

        cl.enqueue_copy(self._queue, target, source, byte_count=nbytes)

    def download(self, array: Array, buffer: Any) -> None:
        """See :class:`Commands`."""
        import pyopencl as cl

        self._copies.append(cl.enqueue_copy(self._queue, raw(array), buffer, is_blocking=False))

    def in_turn(self, run: Callable[[], None]) -> None:
        """See :class:`Commands`."""

        def enqueue() -> Any:
            run()
            return self._copies[-1]  # what kernels report is read last

        self._turns.enqueue(self._queue, enqueue)

    def finish(self) -> None:
        """See :class:`Commands`."""
        self._queue.finish()

    def again(self) -> bool:
        """See :class:`Commands`."""
        return False


class CudaCommands:
    """By a stream of CUDA, where the kernels are one graph.

    Args:
        side: The device for CUDA.
        kernels: What is launched; programs are loaded.
        arguments: By kernel, a value for each position.

    Raises:
        CudaError: The driver refuses a kernel.
    """

    def __init__(
        self, side: CudaSide, kernels: Sequence[Kernel], arguments: Sequence[Sequence[Argument]]
    ) -> None:
        self._side = side
        self._replay = Replay(side.cuda, kernels, arguments)
        self._stream: Stream | None = None
        self._arrays: list[Array] = []  # kept until they have been copied
        self._in_turn: Batch | None = None  # what the last run did so, and what else
        self._rest: Batch | None = None

    @property
    def is_possible(self) -> bool:
        """Whether CUDA has all buffers that the kernels are given now."""
        return self._replay.is_possible

    def upload_graph(self) -> None:
        """Copies the graph to the device, and waits for that; the first launch does it otherwise.

        Raises:
            CudaError: There is no room.
        """
        self._replay.upload(self._side.thread_stream())

    def change(self, number: int, position: int, buffer: Any) -> None:
        """See :class:`Commands`."""
        self._replay.change(number, position, buffer)

    def leave_out(self, numbers: Set[int]) -> None:
        """See :class:`Commands`."""
        self._replay.leave_out(numbers)

    @contextlib.contextmanager
    def start(self, queue: RequestQueue) -> Any:
        """See :class:`Commands`."""
        self._stream = queue.cuda
        self._in_turn = self._rest = None
        try:
            yield
        except BaseException:
            self._used.abandon()  # as in OpenCL's
            raise
        finally:
            self._arrays = []

    def upload(self, buffer: Any, array: Array) -> None:
        """See :class:`Commands`."""
        self._arrays.append(array)
        self._used.write(_address(buffer), array)

    def describe(self, single: SingleItemKernel) -> None:
        """See :class:`Commands`."""
        launch_once(self._side.cuda, single.kernel, single.arguments, self._used)

    def launch(self) -> None:
        """See :class:`Commands`."""
        self._replay.launch(self._used)

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        """See :class:`Commands`."""
        self._used.copy(_address(target), _address(source), nbytes)

    def download(self, array: Array, buffer: Any) -> None:
        """See :class:`Commands`."""
        self._used.read(array, _address(buffer))

    def in_turn(self, run: Callable[[], None]) -> None:
        """See :class:`Commands`."""
        self._in_turn = self._side.in_turn(self._used, run)

    def finish(self) -> None:
        """See :class:`Commands`."""
        self._rest = self._used.finish()

    def again(self) -> bool:
        """See :class:`Commands`."""
        if self._rest is None or self._replay.is_changed:
            return False
        try:
            if self._in_turn is not None:
                self._side.enqueue_again(self._in_turn)
            self._rest.perform()
        except BaseException:
            self._used.abandon()  # as in OpenCL's
            raise
        return True

    @property
    def _used(self) -> Stream:
        if self._stream is None:
            raise ValueError("commands before their start")
        return self._stream


def _address(buffer: Any) -> int:
    address = address_of(buffer)
    if address is None:
        raise ValueError("a buffer that CUDA does not have")
    return address
