"""Tensors that end, or begin, at a page that nobody may touch: who reads beyond them dies."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import weakref

import numpy as np

PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
DEVICE = {"at_end": True}
"""Whether the pages beside device CPU's own memory are behind it; else they are before."""


def protect(address, *, forbid):
    """Forbids all access to a page, or lets it be read and written again."""
    place, size = ctypes.c_void_p(address), ctypes.c_size_t(PAGE)
    if os.name == "nt":
        no_access, read_write = 0x01, 0x04  # PAGE_NOACCESS, PAGE_READWRITE
        old = ctypes.c_ulong()
        kind = ctypes.c_ulong(no_access if forbid else read_write)
        done = _system().VirtualProtect(place, size, kind, ctypes.byref(old))
    else:
        kind = 0 if forbid else mmap.PROT_READ | mmap.PROT_WRITE
        done = not _system().mprotect(place, size, kind)
    if not done:
        raise OSError(f"the system does not change the protection of page {address:#x}")


@functools.cache
def _system():
    """The library of memory's protection; to open it makes a class, and pages are many."""
    return ctypes.WinDLL("kernel32") if os.name == "nt" else ctypes.CDLL(None)


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
    from partita.lowering.emission import buffers, builder, operand_builder
    from partita_cpu.runtime import bound_program, device_model, graph_runner, result_memory

    def aligned_empty(shape, dtype):
        if dtype.hasobject or math.prod(shape) == 0:
            return np.empty(shape, dtype)
        return guarded_empty(shape, dtype, DEVICE["at_end"], _ALIGNMENT)

    def result(memory, index, shape, dtype):
        return aligned_empty(shape, dtype)

    replace(buffers, "plan_for_sizes", lambda _: plan_apart)
    replace(bound_program, "Memory", guarded_memory)
    replace(result_memory.ResultMemory, "array", lambda _: result)
    replace(graph_runner, "aligned_empty", lambda _: aligned_empty)
    replace(operand_builder, "new_array", lambda _: aligned_empty)
    replace(builder.Builder, "constant", with_guarded_constant)
    replace(builder.Builder, "prepack", with_guarded_constant)
    replace(device_model, "lower", lambda usual: lambda model: with_guarded_constants(usual(model)))


def replace(owner, name, made):
    """Puts what is made of a thing in its place; an error if there is no such thing any more."""
    setattr(owner, name, made(getattr(owner, name)))


def guard_opencl():
    """Puts device OPENCL's buffers at guard pages, where its kernels work in host memory."""
    from partita_opencl.device import buffer_pool, device
    from partita_opencl.device.host_memory import buffer_over
    from partita_opencl.runtime.binding import request_buffers

    class GuardedPool(buffer_pool.BufferPool):
        """Makes each buffer anew, over memory beside an unreadable page."""

        def __init__(self, context, limits, name, cuda=None):
            super().__init__(context, limits, name, cuda)
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

    replace(request_buffers, "aligned_bytes", lambda _: aligned_bytes)
    device.BufferPool = GuardedPool


def plan_apart(intervals):
    """As `memory_plan.plan_for_sizes`: each tensor on pages of its own, and one between any two."""
    from partita.lowering.shapes.symbolic_size import evaluated

    offsets, start = [], PAGE
    for size, _, _ in intervals:
        offsets.append(evaluated(_offset, start, size))
        start = evaluated(_behind, start, size)
    return offsets, start


def _aligned(size):
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _offset(start, size):
    return start + -_aligned(size) % PAGE if DEVICE["at_end"] else start


def _behind(start, size):
    return start + (-(-size // PAGE) + 1) * PAGE


def guarded_memory(usual):
    """The class `bound_program.Memory` with arenas of its own, pages between tensors guarded."""

    class GuardedMemory(usual):
        def __init__(self, arena):
            super().__init__(guarded_empty((-(-arena.size // PAGE) * PAGE,), np.dtype(np.uint8)))
            self.forbidden = set()

        def load(self, program, buffers):
            super().load(program, buffers)
            for page in self.forbidden:
                protect(self.start + page, forbid=False)
            self.forbidden.clear()
            self.intermediates = tuple(program.offsets)
            for operand, offset in program.offsets.items():
                if operand.nbytes:
                    end = -(-(offset + operand.nbytes) // PAGE) * PAGE
                    self.forbidden.update((offset // PAGE * PAGE - PAGE, end))
            for page in self.forbidden:
                protect(self.start + page, forbid=True)

    return GuardedMemory


def with_guarded_constant(make):
    """What makes the same operands of constants, which end at guard pages.

    Those of weights packed for a device stay: it has their elements in a buffer of its own. An
    operand that programs share is asked for again by each of them, and is copied once: calls of the
    first program have the address of that copy, which lives as long as the operand has it.
    """
    from partita.lowering import Packed
    from partita_cpu.gemm.precision_policy import native_policy

    copies = weakref.WeakValueDictionary()

    def made(self, *args, **kwargs):
        operand = make(self, *args, **kwargs)
        if isinstance(operand, Packed):
            return operand
        policy = native_policy(self.options)
        if policy is not None:
            policy.waiting.finish()  # what is packed later would not be in the copy
        array = operand.const
        if array.nbytes and not array.dtype.hasobject and copies.get(id(array)) is not array:
            copy = guarded_empty(array.shape, array.dtype, DEVICE["at_end"], _ALIGNMENT)
            copy[...] = array
            copies[id(copy)] = operand.const = copy
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
