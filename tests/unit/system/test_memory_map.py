"""Memory that is given back to the system, and read again when it is touched."""

import gc
import mmap
import os
import platform
import signal
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from partita.system import memory_map
from partita.system.host_memory import give_back_freed
from partita.system.memory_map import give_back, spilled


def resident_bytes():
    """Memory that the system holds for this process."""
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32, ml_dtypes.bfloat16])
def test_a_spilled_array_is_as_it_was_after_it_was_given_back(kind):
    array = np.arange(3 * 5000).reshape(3, 5000).astype(kind)
    copy = spilled(array)
    for _ in range(2):
        give_back(copy)
        np.testing.assert_array_equal(copy, array)
    assert (copy.dtype, copy.shape) == (array.dtype, array.shape)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_is_given_back_takes_no_memory():
    copy = spilled(np.ones(64 << 20, np.uint8))
    before = resident_bytes()
    give_back(copy)
    assert resident_bytes() < before - (60 << 20)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_files_end_with_their_arrays():
    def is_mapped(address):
        with Path("/proc/self/maps").open(encoding="ascii") as file:
            files = [line.split("-", 1) for line in file if "(deleted)" in line]
        return any(int(low, 16) <= address < int(rest.split()[0], 16) for low, rest in files)

    part = spilled(np.arange(1 << 20))[1000:2000]
    address = part.ctypes.data
    gc.collect()
    assert is_mapped(address)
    np.testing.assert_array_equal(part, np.arange(1000, 2000))
    del part
    gc.collect()
    assert not is_mapped(address)


@pytest.mark.parametrize("array", [np.empty((0, 3)), np.array(["a"], dtype=object)])
def test_arrays_without_bytes_stay(array):
    assert spilled(array) is array


def test_without_room_for_a_file_the_array_stays_in_memory(monkeypatch):
    def full(*_):
        raise OSError("no space left on the device")

    monkeypatch.setattr(memory_map.os, "posix_fallocate", full, raising=False)
    array = np.arange(10)
    assert spilled(array) is array


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("count", "elements"), [(600, 9_000), (40, 1 << 19)])
def test_arrays_take_no_descriptors(count, elements):
    arrays = [np.full(elements, number, np.uint16) for number in range(count)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    copies = [spilled(array) for array in arrays]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    memory_map.give_back_all()
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_all_files_are_given_back(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(64 << 20))
    array = np.frombuffer(memory_map.map_file(tmp_path / "weights"), np.uint8)
    copies = [spilled(np.ones(1 << 19, np.uint8)) for _ in range(128)]
    assert array.sum() == 0
    before = resident_bytes()
    memory_map.give_back_all()
    assert resident_bytes() < before - (120 << 20)
    assert all(copy.all() for copy in copies)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_was_freed_between_things_that_stay_is_given_back():
    arrays = [np.ones(20_000, np.uint8) for _ in range(4_000)]  # too small for pages of their own
    stay = arrays[::100]
    del arrays
    before = resident_bytes()
    give_back_freed()
    if platform.libc_ver()[0] == "glibc":
        assert resident_bytes() < before - (40 << 20)
    assert all(array.all() for array in stay)


def test_files_are_mapped_while_others_are_given_back():
    interval, end, held = sys.getswitchinterval(), threading.Event(), []
    array = spilled(np.ones(1 << 16))
    others = [spilled(np.ones(1 << 20, np.uint8)) for _ in range(50)]

    def map_more():
        while not end.is_set():
            held[:] = [spilled(np.ones(1 << 20, np.uint8)) for _ in range(5)]

    thread = threading.Thread(target=map_more)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(3000):
            give_back(array)
    finally:
        end.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert len(others) == 50 and (array == 1).all()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="nothing is spilled there")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_process_does_not_write_to_what_its_parent_spills():
    before = spilled(np.arange(1000))
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a process that waits for ever
        os.read(reads, 1)  # the parent has spilled its own
        spilled(np.zeros(1000, np.int64))
        os._exit(int(before[-1]) != 999)
    own = spilled(np.arange(1000) + 7)
    os.write(writes, b"1")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reads)
    os.close(writes)
    np.testing.assert_array_equal(own, np.arange(1000) + 7)
