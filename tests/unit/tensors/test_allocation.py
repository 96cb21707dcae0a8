"""Host memory for what lives longer than a run."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from partita.tensors import allocation
from partita.tensors.allocation import host_zeros


def touched_pages(array):
    """How many pages of an array the system holds memory for."""
    first = array.ctypes.data // mmap.PAGESIZE
    last = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * (last - first)), np.uint64)
    return int((entries >> 63).sum())


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 70, 1000)])
@pytest.mark.parametrize("kind", [np.int8, np.float32])
def test_zeros_begin_at_a_cache_line_and_can_be_written(shape, kind):
    array = host_zeros(shape, np.dtype(kind)).numpy()
    assert (array.shape, array.dtype) == (shape, kind)
    assert array.ctypes.data % 64 == 0 or not array.size
    assert not array.any()
    array[...] = 3
    assert (array == 3).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_zeros_take_memory_when_they_are_written():
    dirty = [np.full(1 << 20, 7, np.uint8) for _ in range(50)]  # what the heap hands out again
    last = np.full(1 << 20, 7, np.uint8)
    del dirty
    arrays = [host_zeros((3, 1 << 18), np.dtype(np.float32)).numpy() for _ in range(40)]
    assert max(map(touched_pages, arrays)) <= 1  # where another one begins
    arrays[20][1] = 1
    assert touched_pages(arrays[20]) >= arrays[20][1].nbytes // mmap.PAGESIZE
    assert last[-1] == 7


def test_zeros_that_share_large_pages_are_zeros_of_their_own():
    kept = []
    for number in range(30):
        array = host_zeros((3, 1 << 16), np.dtype(np.float32)).numpy()
        assert not array.any() and array.ctypes.data % 64 == 0
        array[...] = number
        kept = [*kept, array][-9:]
        for place, one in enumerate(reversed(kept)):
            assert (one == number - place).all()


def test_more_than_there_is_is_a_memory_error():
    for elements in (1 << 60, 1 << 62, 1 << 80):
        with pytest.raises(MemoryError):
            host_zeros((elements,), np.dtype(np.float32))


def test_systems_without_private_pages(monkeypatch):
    for name in ("MAP_PRIVATE", "MADV_HUGEPAGE"):
        monkeypatch.delattr(allocation.mmap, name, raising=False)
    array = host_zeros((1 << 20,), np.dtype(np.int8)).numpy()
    assert not array.any()
    array[:] = 1
