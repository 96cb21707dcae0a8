"""A lock that Ctrl-C has interrupted, or another thread had before a fork, is free again."""

import ast
import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from partita.system import gc_pause, memory_map
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from tests.interrupts import moments, within_time
from tests.unit.test_architecture import sources


def take(lock):
    with lock:
        return True


def test_it_is_free_after_an_interrupt_at_any_moment():
    lock = InterruptSafeLock()
    for interrupted in moments(lambda: take(lock)):
        assert within_time(lambda: take(lock), interrupted.where)


def test_it_is_free_after_an_interrupt_that_came_before_it_was_got():
    """Python hears of it only when this thread has the lock."""
    lock, is_held, this = InterruptSafeLock(), threading.Event(), threading.get_ident()

    def comes():
        frame = sys._current_frames()[this]
        while frame is not None and frame.f_code is not take.__code__:
            frame = frame.f_back
        return frame is not None

    def hold():
        with lock:
            is_held.set()
            while not comes():
                time.sleep(1e-3)
            time.sleep(0.1)  # it waits by now
            signal.raise_signal(signal.SIGINT)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    interrupted = False
    try:
        try:
            take(lock)
        finally:
            holder.join()
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert within_time(lambda: take(lock), "the call that takes it")


def test_it_keeps_other_threads_out_and_lets_its_own_in():
    lock, found = InterruptSafeLock(), []
    with lock, lock:
        other = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert found == [False]
    other = threading.Thread(target=lambda: found.append(take(lock)))
    other.start()
    other.join()
    assert found == [False, True]


def test_no_other_lock_is_taken_by_with():
    """What is assigned `threading.Lock()` in a module is no context manager there."""
    found = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if "threading." not in text:
            continue
        tree = ast.parse(text)
        locks = {
            ast.unparse(target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and ast.unparse(node.value)
            in {f"threading.{n}()" for n in ("Lock", "RLock", "Condition")}
            for target in node.targets
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.With):
                taken = {ast.unparse(item.context_expr) for item in node.items} & locks
                found += [f"{path}:{node.lineno}: {name}" for name in sorted(taken)]
    assert found == []


@pytest.fixture
def hold():
    """Has another thread take a lock, and keep it until the test is over."""
    leave, threads = threading.Event(), []

    def begin(lock):
        is_held = threading.Event()

        def work():
            with lock:
                is_held.set()
                leave.wait(60)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        assert is_held.wait(60)

    yield begin
    leave.set()
    for thread in threads:
        thread.join()


def in_child(action):
    """What an action returns in a child process."""
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a process that waits for ever
        answer = 255
        try:
            answer = int(action())
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forks(test):
    """A test that forks while threads run."""
    warned = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")(warned)


@forks
def test_a_child_has_none_that_other_threads_had_and_its_own(hold):
    own, others = InterruptSafeLock(), InterruptSafeLock()
    hold(others)

    def are_as_they_should():
        found = [others.acquire(blocking=False)]
        asking = threading.Thread(target=lambda: found.append(own.acquire(blocking=False)))
        asking.start()
        asking.join()
        own.release()
        return found == [True, False]

    with own:
        assert in_child(are_as_they_should) == 1
    assert not others.acquire(blocking=False)


def collects_seldom():
    with gc_pause.few_collections():
        return gc.get_threshold()[0] > 100_000


def spills():
    return (memory_map.spilled(np.arange(1000)) == np.arange(1000)).all()


def locks_of(module):
    """Those of a module and of its classes."""
    inside = [vars(module), *(vars(one) for one in vars(module).values() if isinstance(one, type))]
    found = (value for names in inside for value in names.values())
    return [lock for lock in found if isinstance(lock, InterruptSafeLock)]


@forks
@pytest.mark.parametrize(("module", "action"), [(gc_pause, collects_seldom), (memory_map, spills)])
def test_a_child_does_what_another_thread_was_doing(hold, module, action):
    (lock,) = locks_of(module)
    hold(lock)
    assert in_child(action) == 1
