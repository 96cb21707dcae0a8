"""Threads that work for one thread end soon when that one is interrupted."""

import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from partita.system.threads import joint_work
from partita.system.threads.joint_work import JointWork


class Wait:
    """Waits until it is told not to."""

    def __init__(self):
        self.begun, self.told = threading.Event(), threading.Event()

    def __call__(self):
        with joint_work.ended_by(self.told.set):
            self.begun.set()
            assert self.told.wait(60)
            joint_work.check()


def test_what_waits_is_told_and_what_has_not_begun_never_begins():
    wait, later = Wait(), []
    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        waiting = pool.submit(wait)
        queued = pool.submit(later.append, 1)
        assert wait.begun.wait(60)
        raise KeyboardInterrupt
    assert isinstance(waiting.exception(), KeyboardInterrupt)
    assert queued.cancelled()
    assert not later


def test_an_error_waits_for_all_that_was_handed_over():
    done = []
    with pytest.raises(ValueError, match="wrong"), joint_work.workers(1) as pool:
        for number in range(10):
            pool.submit(done.append, number)
        raise ValueError("wrong")
    assert done == list(range(10))


def test_work_within_work_is_given_up_with_it():
    wait = Wait()

    def within():
        with joint_work.workers(2) as pool:
            list(pool.map(lambda call: call(), [wait]))

    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        outer = pool.submit(within)
        assert wait.begun.wait(60)
        raise KeyboardInterrupt
    assert isinstance(outer.exception(), KeyboardInterrupt)


def test_what_is_cancelled_within_work_that_was_given_up_is_no_error():
    wait = Wait()

    def within():
        with joint_work.workers(1) as pool:
            pool.submit(wait)
            pool.submit(len, ()).result()

    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        outer = pool.submit(within)
        assert wait.begun.wait(60)
        raise KeyboardInterrupt
    assert isinstance(outer.exception(), KeyboardInterrupt)


def test_an_interrupt_of_the_wait_at_the_end_gives_up_too(monkeypatch):
    wait = Wait()
    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        waiting = pool.submit(wait)
        shutdown = pool.shutdown

        def interrupted(*args, **kwargs):
            monkeypatch.setattr(pool, "shutdown", shutdown)
            assert wait.begun.wait(60)
            raise KeyboardInterrupt

        monkeypatch.setattr(pool, "shutdown", interrupted)
    assert isinstance(waiting.exception(), KeyboardInterrupt)


def test_work_that_was_given_up_begins_no_wait():
    work = JointWork()
    work.check()
    work.give_up()
    with pytest.raises(KeyboardInterrupt), work.ended_by(pytest.fail):
        pytest.fail("it waits")


def test_a_thread_that_works_for_nobody_is_never_told():
    joint_work.check()
    with joint_work.ended_by(pytest.fail):
        pass


def test_an_interrupt_does_not_wait_for_a_thread_that_does_not_look():
    begun, end = threading.Event(), threading.Event()

    def computes():
        begun.set()
        assert end.wait(60)

    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        computing = pool.submit(computes)
        assert begun.wait(60)
        raise KeyboardInterrupt
    assert computing.running()
    end.set()
    assert computing.result() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_waits_for_what_others_compile_and_not_for_whom_its_thread_works():
    code = """
import os, threading
from partita.system.threads import fork_order, joint_work

def fork():
    child = os.fork()
    if not child:
        os._exit(ended.is_set())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

ended, begun = threading.Event(), threading.Event()

@fork_order.forks_wait
def compile():
    begun.set()
    ended.wait(0.5)
    ended.set()

@fork_order.forks_wait
def fork_twice():
    with joint_work.workers(1) as pool:
        print(fork(), pool.submit(fork).result())

@fork_order.forks_wait
def both(barrier):
    barrier.wait()
    fork()

fork_twice()
barrier = threading.Barrier(2)
pair = [threading.Thread(target=both, args=(barrier,)) for _ in range(2)]
for thread in pair:
    thread.start()
for thread in pair:
    thread.join()
threading.Thread(target=compile).start()
begun.wait()
print(fork())
"""
    # From Python 3.12 on, each fork of a process with threads is warned about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("0 0\n1\n", "")


def test_work_is_done_though_the_main_thread_has_ended():
    """Python waits for other threads then, whose models are compiled as before."""
    code = """
import threading
from partita.system.threads import joint_work

def work():
    threading.main_thread().join()
    with joint_work.workers(2) as pool:
        failing = pool.submit(int, "x")
        print(list(pool.map(abs, [-1, -2])), type(failing.exception()).__name__)

threading.Thread(target=work).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[1, 2] ValueError\n", "")


def test_work_may_be_handed_over_while_all_is_given_up():
    """By a thread that is about to note what it has handed over."""
    handed, looks = threading.Event(), threading.Event()

    def hand_over(pool):
        def pause(frame, event, _):
            if event == "return" and frame.f_code is ThreadPoolExecutor.submit.__code__:
                handed.set()
                looks.wait(60)

        sys.setprofile(pause)
        pool.submit(len, ())

    def look(frame, event, _):
        if event == "call" and frame.f_code is Future.cancelled.__code__:
            looks.set()
            other.join(60)

    wait = Wait()
    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        for _ in range(3):
            pool.submit(wait)
        other = threading.Thread(target=hand_over, args=(pool,))
        other.start()
        assert handed.wait(60)
        assert wait.begun.wait(60)
        sys.setprofile(look)
        raise KeyboardInterrupt
    sys.setprofile(None)
    looks.set()
    other.join()
