"""Other inputs for calls that are bound: checked and put in place by machine code.

Bound calls hold addresses of arrays. An application that brings new arrays of the same shape each
time pays for looking at them in Python more than a small model takes to run; a `taker` does it in
some tens of nanoseconds. It reads what numpy's C interface fixes of an array: type, address,
dimensions, element type and flags.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.foreign_call import c_function
from partita_cpu.jit.llvm_kernel import function_address

Taker = Callable[[Any], bool]

_NAME = "take"
_TYPE, _DATA, _NDIM, _SHAPE, _DTYPE, _FLAGS = 8, 16, 24, 32, 56, 64
"""Where CPython and numpy keep them in an array (``PyArrayObject_fields``)."""

_FIT = 0x1 | 0x100 | 0x400
"""Flags that it must have: C-contiguous, aligned, writable (as ``flags.carray``)."""

_KIND, _ELEMENTS, _DIMS, _BYTES, _RANGES, _PLACES, _LISTS = range(7)
"""Words of a plan; dimensions, ranges that must not be touched, and places follow."""


def taker(like: Array, places: Sequence[int], others: Sequence[Array]) -> Taker | None:
    """A function that puts the address of an array into words of memory, if it fits.

    It answers whether it did; the caller must then keep the array. ``None`` where arrays are not
    laid out as expected.

    Args:
        like: The array must be of this shape and type, contiguous, and no subclass.
        places: Addresses of the words.
        others: Arrays that it must not share memory with.
    """
    if not _as_expected():
        return None
    ranges = [edge for other in others for edge in _range(other)]
    head = (id(np.ndarray), id(like.dtype), like.ndim, like.nbytes, len(others), len(places))
    plan = np.array([*head, *like.shape, *ranges, *places], np.int64)
    function = c_function(_NAME, function_address(_NAME, _TEXT), False, plan.ctypes.data)

    def take(array: Any, take: Any = function, keep: object = (plan, like.dtype)) -> bool:
        found: bool = take(array)
        return found

    return take


def _range(array: Array) -> tuple[int, int]:
    start = array.ctypes.data
    return start, start + array.nbytes


@functools.cache
def _as_expected() -> bool:
    """Whether an array is laid out here as this module reads it."""
    tried = np.zeros((3, 5), np.float32)
    word, short = ctypes.c_int64.from_address, ctypes.c_int32.from_address
    start = id(tried)
    return (
        word(start + _TYPE).value == id(np.ndarray)
        and word(start + _DATA).value == tried.ctypes.data
        and short(start + _NDIM).value == 2
        and word(word(start + _SHAPE).value + 8).value == 5
        and word(start + _DTYPE).value == id(tried.dtype)
        and short(start + _FLAGS).value & _FIT == _FIT
    )


_TEXT = f"""
declare i64 @PyLong_AsLongLong(ptr)
declare void @Py_IncRef(ptr)
@_Py_TrueStruct = external global i8
@_Py_FalseStruct = external global i8

define ptr @{_NAME}(ptr %self, ptr %array) nounwind {{
entry:
  %address = call i64 @PyLong_AsLongLong(ptr %self)
  %plan = inttoptr i64 %address to ptr
  %type.at = getelementptr i8, ptr %array, i64 {_TYPE}
  %type = load i64, ptr %type.at, align 8
  %type.due = load i64, ptr %plan, align 8
  %type.fits = icmp eq i64 %type, %type.due
  br i1 %type.fits, label %elements, label %no
elements:
  %dtype.at = getelementptr i8, ptr %array, i64 {_DTYPE}
  %dtype = load i64, ptr %dtype.at, align 8
  %dtype.due.at = getelementptr i64, ptr %plan, i64 {_ELEMENTS}
  %dtype.due = load i64, ptr %dtype.due.at, align 8
  %dtype.fits = icmp eq i64 %dtype, %dtype.due
  %flags.at = getelementptr i8, ptr %array, i64 {_FLAGS}
  %flags = load i32, ptr %flags.at, align 4
  %flags.due = and i32 %flags, {_FIT}
  %flags.fit = icmp eq i32 %flags.due, {_FIT}
  %ndim.at = getelementptr i8, ptr %array, i64 {_NDIM}
  %ndim.short = load i32, ptr %ndim.at, align 4
  %ndim = sext i32 %ndim.short to i64
  %ndim.due.at = getelementptr i64, ptr %plan, i64 {_DIMS}
  %ndim.due = load i64, ptr %ndim.due.at, align 8
  %ndim.fits = icmp eq i64 %ndim, %ndim.due
  %some = and i1 %dtype.fits, %flags.fit
  %all = and i1 %some, %ndim.fits
  br i1 %all, label %dims.start, label %no
dims.start:
  %shape.at = getelementptr i8, ptr %array, i64 {_SHAPE}
  %shape = load ptr, ptr %shape.at, align 8
  %lists = getelementptr i64, ptr %plan, i64 {_LISTS}
  br label %dims
dims:
  %axis = phi i64 [0, %dims.start], [%axis.next, %dim]
  %dims.done = icmp eq i64 %axis, %ndim
  br i1 %dims.done, label %ranges.start, label %dim
dim:
  %size.at = getelementptr i64, ptr %shape, i64 %axis
  %size = load i64, ptr %size.at, align 8
  %size.due.at = getelementptr i64, ptr %lists, i64 %axis
  %size.due = load i64, ptr %size.due.at, align 8
  %size.fits = icmp eq i64 %size, %size.due
  %axis.next = add i64 %axis, 1
  br i1 %size.fits, label %dims, label %no
ranges.start:
  %data.at = getelementptr i8, ptr %array, i64 {_DATA}
  %data = load i64, ptr %data.at, align 8
  %bytes.at = getelementptr i64, ptr %plan, i64 {_BYTES}
  %bytes = load i64, ptr %bytes.at, align 8
  %end = add i64 %data, %bytes
  %ranges = getelementptr i64, ptr %lists, i64 %ndim
  %ranges.count.at = getelementptr i64, ptr %plan, i64 {_RANGES}
  %ranges.count = load i64, ptr %ranges.count.at, align 8
  %ranges.words = shl i64 %ranges.count, 1
  %places = getelementptr i64, ptr %ranges, i64 %ranges.words
  br label %outputs
outputs:
  %edge = phi i64 [0, %ranges.start], [%edge.next, %output]
  %outputs.done = icmp eq i64 %edge, %ranges.words
  br i1 %outputs.done, label %write.start, label %output
output:
  %first.at = getelementptr i64, ptr %ranges, i64 %edge
  %first = load i64, ptr %first.at, align 8
  %last.at = getelementptr i64, ptr %first.at, i64 1
  %last = load i64, ptr %last.at, align 8
  %before = icmp ule i64 %end, %first
  %behind = icmp uge i64 %data, %last
  %apart = or i1 %before, %behind
  %edge.next = add i64 %edge, 2
  br i1 %apart, label %outputs, label %no
write.start:
  %places.count.at = getelementptr i64, ptr %plan, i64 {_PLACES}
  %places.count = load i64, ptr %places.count.at, align 8
  br label %writes
writes:
  %place = phi i64 [0, %write.start], [%place.next, %write]
  %writes.done = icmp eq i64 %place, %places.count
  br i1 %writes.done, label %yes, label %write
write:
  %word.at = getelementptr i64, ptr %places, i64 %place
  %word = load ptr, ptr %word.at, align 8
  store i64 %data, ptr %word, align 8
  %place.next = add i64 %place, 1
  br label %writes
yes:
  call void @Py_IncRef(ptr @_Py_TrueStruct)
  ret ptr @_Py_TrueStruct
no:
  call void @Py_IncRef(ptr @_Py_FalseStruct)
  ret ptr @_Py_FalseStruct
}}
"""
