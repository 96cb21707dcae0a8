"""A lock that Ctrl-C has interrupted is free again."""

import ast
import signal
import sys
import threading
import time

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
