"""Thread pools that start late."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from partita.system.thread_pool import LazyPool


def test_threads_start_with_the_first_task():
    before = threading.active_count()
    pool = LazyPool("lazy", 2)
    assert threading.active_count() == before
    assert pool.submit(lambda a, b: a + b, 1, 2).result() == 3
    assert pool.submit(lambda: threading.current_thread().name).result().startswith("lazy")
    pool.close()


def test_a_closed_pool_starts_again():
    pool = LazyPool("lazy", 1)
    first = pool.submit(threading.get_ident).result()
    pool.close()
    pool.close()
    assert isinstance(first, int)
    assert pool.submit(lambda: 7).result() == 7
    pool.close()


def test_errors_stay_with_the_task():
    pool = LazyPool("lazy", 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result()
    assert pool.submit(lambda: 7).result() == 7
    pool.close()


FORK = """
import os, threading
from partita.system.thread_pool import LazyPool

pool = LazyPool("lazy", 2)
held, release = threading.Event(), threading.Event()
pool.submit(lambda: (held.set(), release.wait()))
held.wait()
child = os.fork()
if child == 0:
    os._exit(7 if pool.submit(lambda: 7).result(20) == 7 else 1)
release.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pool.submit(lambda: 8).result(20))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_makes_its_own_threads():
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["7", "8"]
