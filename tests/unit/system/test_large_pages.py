"""Memory for what is read as a whole in every run."""

import concurrent.futures
import mmap
import os
import signal
import threading
import weakref

import numpy as np
import pytest
from memory_flags import HAS_LARGE_PAGES, flags_of

from partita.system import large_pages
from partita.system.large_pages import lasting_bytes, lasting_copy


def owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("count", [0, 1, 63, 64, 100_000, 3_000_000, 5_000_000])
def test_bytes_begin_at_a_cache_line_and_are_apart(count):
    arrays = [lasting_bytes(count) for _ in range(5)]
    for number, array in enumerate(arrays):
        assert array.shape == (count,) and array.dtype == np.uint8
        assert array.ctypes.data % 64 == 0 or not count
        array[:] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()


def test_copies():
    given = np.arange(250, dtype=np.uint8)
    copy = lasting_copy(given)
    given[:] = 0
    np.testing.assert_array_equal(copy, np.arange(250))


def test_threads_get_bytes_of_their_own():
    def filled(number):
        array = lasting_bytes(70_000)
        array[:] = number
        return array

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(filled, range(200)))
    for number, array in enumerate(arrays):
        assert (array == number).all()


@pytest.mark.skipif(not HAS_LARGE_PAGES, reason="asks Linux for them")
@pytest.mark.parametrize("count", [1000, 3_000_000, 5_000_000])
def test_the_system_is_asked_for_large_pages(count):
    assert "hg" in flags_of(lasting_bytes(count))
    assert "hg" not in flags_of(np.frombuffer(mmap.mmap(-1, 8 << 20), np.uint8))


@pytest.mark.skipif(not HAS_LARGE_PAGES, reason="asks Linux for them")
def test_large_arrays_take_whole_large_pages_and_small_ones_behind_them():
    array = lasting_bytes((4 << 20) + (300 << 10))
    assert array.ctypes.data % (2 << 20) == 0 and "hg" in flags_of(array[(4 << 20) - 1 :])
    assert "hg" not in flags_of(array[4 << 20 :])
    array = lasting_bytes((5 << 20) + (300 << 10))  # of the last page more than half
    assert "hg" in flags_of(array[-1:])


def test_memory_is_given_back_with_its_last_array():
    arrays = [lasting_bytes(3_000_000) for _ in range(12)]
    last = weakref.ref(owner(arrays[2]))
    del arrays
    assert last() is None


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="numpy's memory then")
def test_arrays_of_one_size_leave_no_large_page_in_part():
    arrays, count = [lasting_bytes(768 << 10) for _ in range(640)], 768 << 10
    ends = [array.ctypes.data + byte for array in arrays for byte in (0, count - 1)]
    pages = len({end >> 21 for end in ends})
    assert pages <= 640 * count / (2 << 20) + 8  # in what was left of others', and at the end


MORE = 5
"""So many arrays of this many bytes need new memory, whatever is left."""
BYTES = 3_900_000


@pytest.mark.parametrize("missing", ["MADV_HUGEPAGE", None])
def test_systems_without_large_pages(monkeypatch, missing):
    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(large_pages.mmap, "mmap", Plain)
    if missing:
        monkeypatch.delattr(large_pages.mmap, missing, raising=False)
    arrays = [lasting_bytes(BYTES) for _ in range(MORE)]
    for number, array in enumerate(arrays):
        array[:] = number
    for number, array in enumerate(arrays):
        assert (array == number).all() and array.ctypes.data % 64 == 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="numpy's memory then")
def test_no_room_is_a_memory_error(monkeypatch):
    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(large_pages.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match=r"8388608 bytes: .*Cannot allocate memory"):
        [lasting_bytes(BYTES) for _ in range(MORE)]


@pytest.mark.skipif(
    not (hasattr(os, "fork") and hasattr(mmap, "MADV_HUGEPAGE")), reason="no fork or large pages"
)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_process_forked_while_memory_is_taken_takes_its_own(monkeypatch):
    real, entered, may_go_on = large_pages.mmap.mmap, threading.Event(), threading.Event()

    def slow(*args):
        entered.set()
        may_go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(large_pages.mmap, "mmap", slow)
    many = threading.Thread(target=lambda: [lasting_bytes(BYTES) for _ in range(MORE)])
    many.start()
    assert entered.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends a process that waits for ever
        large_pages.mmap.mmap = real
        os._exit(0 if lasting_bytes(100).size == 100 else 1)
    may_go_on.set()
    many.join()
    assert os.waitpid(child, 0)[1] == 0
