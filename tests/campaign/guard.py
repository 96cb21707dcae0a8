"""Tensors that end, or begin, at a page that nobody may touch: who reads beyond them dies."""

from __future__ import annotations

import ctypes
import math
import mmap
import os

import numpy as np

PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
DEVICE = {"at_end": True}
"""Whether the pages beside device CPU's own memory are behind it; else they are before."""

_KEPT = 64
"""Constants of which the copy is kept, so that what is packed once is copied once."""


def protect(address, *, forbid):
    """Forbids all access to a page, or lets it be read and written again."""
    place, size = ctypes.c_void_p(address), ctypes.c_size_t(PAGE)
    if os.name == "nt":
        no_access, read_write = 0x01, 0x04  # PAGE_NOACCESS, PAGE_READWRITE
        old = ctypes.c_ulong()
        kind = ctypes.c_ulong(no_access if forbid else read_write)
        done = ctypes.WinDLL("kernel32").VirtualProtect(place, size, kind, ctypes.byref(old))
    else:
        kind = 0 if forbid else mmap.PROT_READ | mmap.PROT_WRITE
        done = not ctypes.CDLL(None).mprotect(place, size, kind)
    if not done:
        raise OSError(f"the system does not change the protection of page {address:#x}")


def guarded(array, at_end=True):
    """A copy of an array beside an unreadable page; object arrays are returned as they are.

    Args:
        array: Of numbers.
        at_end: Whether that page is behind it; else it is before.
    """
    if array.dtype.hasobject or array.nbytes == 0:
        return array
    copy = guarded_empty(array.shape, array.dtype, at_end)
    copy[...] = array
    return copy


def guarded_empty(shape, dtype, at_end=True, alignment=1):
    """An array of zeros beside an unreadable page.

    Args:
        shape: Of the array.
        dtype: Of its elements.
        at_end: Whether that page is behind it; else it is before.
        alignment: Of its address; up to so many bytes lie between it and the page behind.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    pages = -(-nbytes // PAGE)
    try:
        area = mmap.mmap(-1, (pages + 2) * PAGE)
    except OSError as error:  # what numpy would raise
        raise MemoryError(f"There is no room for {nbytes} bytes: {error}") from error
    whole = np.frombuffer(area, np.uint8)
    for page in (0, pages + 1):
        protect(whole.ctypes.data + page * PAGE, forbid=True)
    start = PAGE if not at_end else (pages + 1) * PAGE - nbytes
    start -= start % alignment
    return whole[start : start + nbytes].view(dtype).reshape(shape)


def guard_device():
    """Puts each of device CPU's intermediate tensors, outputs and constants at guard pages too."""
    from partita.lowering import builder
    from partita_cpu.runtime import bound_program, device_model

    def aligned_empty(shape, dtype):
        if dtype.hasobject or math.prod(shape) == 0:
            return np.empty(shape, dtype)
        return guarded_empty(shape, dtype, DEVICE["at_end"], _ALIGNMENT)

    bound_program.aligned_empty = aligned_empty
    bound_program.Arena = GuardedArena
    builder.new_array = aligned_empty
    for made in ("constant", "prepack"):
        setattr(builder.Builder, made, _guarded_operand(getattr(builder.Builder, made)))
    lower = device_model.lower
    device_model.lower = lambda model: with_guarded_constants(lower(model))


def guard_opencl():
    """Puts device OPENCL's buffers at guard pages, where its kernels work in host memory."""
    from partita_opencl.device import buffer_pool, device, host_buffers
    from partita_opencl.device.host_memory import buffer_over

    class GuardedPool(buffer_pool.BufferPool):
        """Makes each buffer anew, over memory beside an unreadable page."""

        def __init__(self, context, limits, name):
            super().__init__(context, limits, name)
            self.context, self.most_bytes = context, limits.allocation_bytes

        def take(self, nbytes):
            return self.allocate(nbytes)

        def give(self, buffer):
            pass

        def allocate(self, nbytes, content=None):
            if nbytes > self.most_bytes:
                return super().allocate(nbytes, content)  # which refuses it
            memory = aligned_bytes(max(nbytes, _ALIGNMENT))
            if content is not None:
                memory[: content.nbytes] = buffer_pool.raw(content)
            return buffer_over(self.context, memory)

    def aligned_bytes(nbytes):
        return guarded_empty((nbytes,), np.dtype(np.uint8), DEVICE["at_end"], _ALIGNMENT)

    host_buffers.aligned_bytes = aligned_bytes
    device.BufferPool = GuardedPool


class GuardedArena:
    """In the place of `bound_program.Arena`: every intermediate tensor at pages of its own."""

    def __init__(self, memory, offsets):
        self._offsets = offsets
        self._memory = {}

    def address(self, operand):
        """Where an intermediate tensor starts; 0 for anything else."""
        return self._bytes(operand.root).ctypes.data if operand.root in self._offsets else 0

    def array(self, operand):
        """The memory of an intermediate tensor."""
        raw = self._bytes(operand.root)[: operand.nbytes]
        return raw.view(operand.dtype).reshape(operand.shape)

    def elements(self, arg):
        """The same for an argument of a step; one that is no intermediate tensor as it is."""
        there = getattr(arg, "root", None) in self._offsets
        return self.array(arg) if there else arg

    def _bytes(self, root):
        if root not in self._memory:
            size, kind = (root.nbytes,), np.dtype(np.uint8)
            made = np.empty(size, kind)
            if root.nbytes:
                made = guarded_empty(size, kind, DEVICE["at_end"], _ALIGNMENT)
            self._memory[root] = made
        return self._memory[root]


def _guarded_operand(make):
    """What makes the same operands of constants, which end at guard pages."""
    kept = {}

    def made(self, *args, **kwargs):
        operand = make(self, *args, **kwargs)
        array = operand.const
        if id(array) not in kept and array.nbytes and not array.dtype.hasobject:
            copy = guarded_empty(array.shape, array.dtype, DEVICE["at_end"], _ALIGNMENT)
            copy[...] = array
            while len(kept) >= _KEPT:
                kept.pop(next(iter(kept)))
            kept[id(array)] = array, copy
        if id(array) in kept:
            operand.const = kept[id(array)][1]
        return operand

    return made


def with_guarded_constants(graph):
    """The graph, its constants and those of its bodies at guard pages."""
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None and value.const is not None:
                value.const = guarded(value.const)
        for body in node.graphs():
            with_guarded_constants(body)
    return graph
