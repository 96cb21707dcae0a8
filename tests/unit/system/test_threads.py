"""Threads for short tasks: they start late, end when told to, and survive a fork."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading

import pytest

from partita.system.threads.sleepers import Sleepers
from partita.system.threads.task_threads import TaskThreads


def test_threads_start_with_the_first_task():
    before = set(threading.enumerate())  # of which others may end meanwhile
    threads = TaskThreads("lazy", 2)
    assert set(threading.enumerate()) <= before
    found = queue.SimpleQueue()
    threads.submit(lambda a, b: found.put(a + b), 1, 2)
    assert found.get(timeout=60) == 3
    threads.submit(lambda: found.put(threading.current_thread().name))
    assert found.get(timeout=60).startswith("lazy")
    threads.close()


def test_closed_threads_start_again():
    threads = TaskThreads("lazy", 1)
    found = queue.SimpleQueue()
    threads.submit(found.put, 6)
    threads.close()
    threads.close()
    threads.submit(found.put, 7)
    assert (found.get(timeout=60), found.get(timeout=60)) == (6, 7)
    threads.close()


def test_a_task_that_comes_while_the_threads_are_closed_is_done():
    threads, found = TaskThreads("lazy", 1), queue.SimpleQueue()
    closing = threading.Thread(target=threads.close)

    def close(frame, event, function):
        if event == "c_call" and function.__name__ == "put" and frame.f_code.co_name == "submit":
            sys.setprofile(None)
            closing.start()
            closing.join(0.1)  # it may have to wait for what is handed over now

    sys.setprofile(close)
    try:
        threads.submit(found.put, 6)
    finally:
        sys.setprofile(None)
    closing.join()
    assert found.get(timeout=60) == 6
    threads.close()


def test_others_may_lie_down_while_all_are_woken():
    """As one who is freed with garbage that is collected while those are listed who lie."""
    sleepers = Sleepers()

    def collected(phase, _):
        sleepers.wait(lambda: True)

    def lies_down(others):
        if others:
            return sleepers.wait(lambda: lies_down(others - 1))
        for count in range(4):
            gc.set_threshold(1)
            made = [[] for _ in range(count)]  # after so many more lists is the next collection
            sleepers.wake()
            assert len(made) == count
        return True

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        assert lies_down(30)  # of fewer no new tuple would be made
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)


FORK = """
import os, queue, threading
from partita.system.threads.task_threads import TaskThreads

threads = TaskThreads("lazy", 2)
held, release, found = threading.Event(), threading.Event(), queue.SimpleQueue()
threads.submit(lambda: (held.set(), release.wait()))
held.wait()
child = os.fork()
if child == 0:
    threads.submit(found.put, 7)
    os._exit(found.get(timeout=60))
release.set()
threads.submit(found.put, 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found.get(timeout=60))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_makes_its_own_threads():
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == ["7", "8"]
