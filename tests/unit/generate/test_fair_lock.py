"""A lock that goes to who has waited longest."""

import threading
import time

import pytest

from partita.generate.fair_lock import FairLock


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_who_leaves_it_and_comes_back_is_behind_those_who_wait():
    turns, order = FairLock(), []

    def take(name):
        with turns:
            order.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in ("b", "c")]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            wait_for(lambda count=number + 1: turns.waiting == count)
    take("a")
    for thread in threads:
        thread.join()
    assert order == ["b", "c", "a"]


def test_an_error_inside_gives_it_back():
    turns = FairLock()
    with pytest.raises(ValueError, match="inside"), turns:
        raise ValueError("inside")
    with turns:
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
        with turns:
            held.set()
            waits.wait(20 if is_handed_over else 0.2)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with monkeypatch.context() as patched:
        patched.setattr("partita.generate.fair_lock.threading.Lock", Interrupted)
        with pytest.raises(KeyboardInterrupt), turns:
            raise AssertionError("it was not interrupted")
    thread.join()
    with turns:
        assert turns.waiting == 0
