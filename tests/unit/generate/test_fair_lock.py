"""A lock that goes to who has waited longest."""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from partita.generate.fair_lock import FairLock


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_who_leaves_it_and_comes_back_is_behind_those_who_wait():
    turns, order = FairLock(), []

    def take(name):
        with turns.place():
            order.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in ("b", "c")]
    with turns.place():
        for number, thread in enumerate(threads):
            thread.start()
            wait_for(lambda count=number + 1: turns.waiting == count)
    take("a")
    for thread in threads:
        thread.join()
    assert order == ["b", "c", "a"]


def test_an_error_inside_gives_it_back():
    turns = FairLock()
    with pytest.raises(ValueError, match="inside"), turns.place():
        raise ValueError("inside")
    with turns.place():
        assert turns.waiting == 0


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_one_who_is_interrupted_while_waiting_keeps_nobody_out(is_handed_over, monkeypatch):
    """Whether the turn came to him in the same moment or not."""
    turns = FairLock()
    waits = threading.Event()

    class Interrupted:
        """A lock whose second taking ends as Ctrl-C ends it."""

        taken = 0

        def acquire(self):
            self.taken += 1
            if self.taken == 2:
                if is_handed_over:
                    waits.set()
                    wait_for(lambda: turns.waiting == 0)
                raise KeyboardInterrupt

        def release(self):
            pass

    def hold():
        with turns.place():
            held.set()
            waits.wait(20 if is_handed_over else 0.2)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with monkeypatch.context() as patched:
        patched.setattr("partita.generate.fair_lock.threading.Lock", Interrupted)
        with pytest.raises(KeyboardInterrupt), turns.place():
            raise AssertionError("it was not interrupted")
    thread.join()
    with turns.place():
        assert turns.waiting == 0


def test_ctrl_c_between_any_two_instructions_gives_it_back():
    moments = 0
    while True:
        turns = FairLock()
        place = turns.place()
        try:
            with interrupted_after(moments):
                try:
                    with place:
                        pass
                finally:
                    with interrupted_after(None):
                        place.leave()
            break
        except KeyboardInterrupt:
            moments += 1
        is_free = threading.Event()

        def take(turns=turns, is_free=is_free):
            with turns.place():
                is_free.set()

        threading.Thread(target=take, daemon=True).start()
        assert is_free.wait(60), f"it is kept by one who was interrupted at moment {moments}"
    assert moments > 40


@contextmanager
def interrupted_after(count):
    """Raises as Ctrl-C does behind so many instructions of the lock's module; never if None."""
    left = count

    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.endswith("fair_lock.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(None if count is None else trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_leaving_again_takes_it_from_nobody():
    turns = FairLock()
    first, second = turns.place(), turns.place()
    with first:
        pass
    with second:
        first.leave()
        thread = threading.Thread(target=take_and_leave, args=(turns,))
        thread.start()
        wait_for(lambda: turns.waiting == 1)
        first.leave()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()


def take_and_leave(turns):
    with turns.place():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_others", [True, False])
def test_a_child_process_has_no_threads_in_its_line_but_its_own(is_others):
    turns, entered, leave = FairLock(), threading.Event(), threading.Event()

    def hold():
        with turns.place():
            entered.set()
            leave.wait(60)

    def fork():
        child = os.fork()
        if not child:
            signal.alarm(60)  # ends a process that waits for ever
            if is_others:
                take_and_leave(turns)
            os._exit(4 * turns.is_lost + turns.waiting)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    other = threading.Thread(target=hold)
    if is_others:
        other.start()
        assert entered.wait(60)
        found = fork()
    else:
        with turns.place():
            other.start()
            wait_for(lambda: turns.waiting == 1)
            found = fork()
    leave.set()
    other.join()
    assert found == 4 * is_others
    assert not turns.is_lost
