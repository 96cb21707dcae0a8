"""Whether CUDA's driver can launch for a device; see :mod:`partita_opencl.drivers.cuda_trial`.

It allocates, large and small, lets OpenCL and CUDA read what the other wrote, launches a
graph of two kernels twice, with other arguments the second time, and frees all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from partita_opencl.cuda.cuda_device import PASSED, CudaSide
from partita_opencl.cuda.cuda_driver import CudaError, cuda_of
from partita_opencl.cuda.replay import Kernel, Replay, load
from partita_opencl.cuda.shared_memory import EXTENSION, SharedMemory, address_of

PLATFORM = "NVIDIA CUDA"
"""The name of the OpenCL platform whose devices may be CUDA's as well."""

_ITEMS, _GROUP = 4096, 64
_LARGE = 3 << 20

IMPORTS = (256 << 20, 512 << 20, 1 << 30)
"""Sizes of buffers that OpenCL is tried to import, in bytes: with two H100 of one host, NVIDIA's
driver (580.159.04) ends the process at 768 MiB."""

SOURCE = """
kernel void scaled(global const float *x, global float *y, const float factor, const int count) {
  local float values[64];
  const int i = get_global_id(0), l = get_local_id(0);
  values[l] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < count) y[i] = factor * values[l ^ 1] + get_num_groups(0) + get_group_id(0);
}
"""


def outcome(handle: Any, context: Any) -> str:
    """What a trial says: :data:`PASSED`, or what is wrong.

    Args:
        handle: A ``pyopencl.Device`` of that platform.
        context: Its context.
    """
    import pyopencl as cl

    if EXTENSION not in handle.extensions.split():
        return f"OpenCL does not list {EXTENSION}"
    try:
        cuda = cuda_of(handle)
        if cuda is None:
            return "there is no CUDA driver that knows the device"
        side = CudaSide(cuda, context)
        source = cl._cl._Program(context, SOURCE)
        source._build(b"", [handle])
        program = cl.Program(source)
        if not load(cuda, program):
            return "its compiler's PTX asks for what CUDA cannot tell"
        queue = cl.CommandQueue(context, handle)
        # The second time in memory that was freed.
        return _error(side, program, queue) or _error(side, program, queue) or PASSED
    except (CudaError, cl.Error) as error:
        return str(error)


def imports(handle: Any, context: Any) -> Iterator[int]:
    """Bytes of ever larger buffers that OpenCL imports; it may end the process at the next one.

    All of :data:`IMPORTS` where the device lacks memory to try it.
    """
    import pyopencl as cl

    cuda = cuda_of(handle)
    if cuda is None:
        return
    memory = SharedMemory(cuda, context)
    for size in IMPORTS:
        try:
            _ = [memory.allocate(size) for _ in range(2)]
        except (CudaError, cl.Error) as error:
            if isinstance(error, CudaError) and error.is_lack_of_memory:
                yield IMPORTS[-1]
            return
        yield size


def _error(side: CudaSide, program: Any, queue: Any) -> str:
    import pyopencl as cl

    x = np.random.default_rng(0).uniform(-1.0, 1.0, _ITEMS).astype(np.float32)
    source, middle, target = (side.memory.allocate(n) for n in (x.nbytes, _LARGE, x.nbytes))
    other = side.memory.allocate(x.nbytes)
    numbers = [np.float32(2.0).tobytes(), np.int32(_ITEMS).tobytes()]
    steps = [[source, middle, *numbers], [middle, target, *numbers]]
    replay = Replay(side.cuda, [Kernel(program, "scaled", (_ITEMS,), (_GROUP,))] * 2, steps)
    cl.enqueue_copy(queue, source, x)
    queue.finish()
    stream = side.stream()
    place = np.arange(_ITEMS)
    groups = (_ITEMS // _GROUP + place // _GROUP).astype(np.float32)
    wanted = 2 * (2 * x + groups) + groups  # what changes places twice is where it was
    found = np.empty_like(x)
    for buffer in (target, other):
        replay.change(1, 1, buffer)
        replay.launch(stream)
        stream.finish()
        if not side.read(found, buffer) or np.max(np.abs(found - wanted)) > 1e-3:
            return "kernels that CUDA launches compute wrongly"
        cl.enqueue_copy(queue, found, buffer)
        if np.max(np.abs(found - wanted)) > 1e-3:
            return "OpenCL does not see what CUDA wrote"
    return "" if address_of(target) != address_of(other) else "two buffers are one"
