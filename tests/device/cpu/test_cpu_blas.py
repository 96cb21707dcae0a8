"""Numpy's products and forks: a fork waits for the end of those that run, but not for ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from partita_cpu.threads import openblas
from tests.interrupts import moments, within_time


class Slow:
    """A product that ends when it is told to."""

    def __init__(self):
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self):
        openblas.matmul(self, None)

    def end(self):
        self.began.set()
        assert self.may_end.wait(30)


@pytest.fixture
def products_end(monkeypatch):
    """Products of what is no array are what its `end` does."""
    monkeypatch.setattr(openblas.np, "matmul", lambda a, b, out=None: a.end())


def test_it_is_the_product_of_numpy():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    out = np.empty((2, 4))
    assert openblas.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(openblas.matmul(a, b), a @ b)


def test_a_fork_waits_for_products_and_products_for_it(products_end):
    slow = Slow()
    product = threading.Thread(target=slow)
    product.start()
    assert slow.began.wait(30)
    closed = threading.Event()
    fork = threading.Thread(target=lambda: (openblas.gate.close(), closed.set()))
    fork.start()
    assert not closed.wait(0.2)
    slow.may_end.set()
    assert closed.wait(30)
    second = Slow()
    second.may_end.set()
    later = threading.Thread(target=second)
    later.start()
    assert not second.began.wait(0.2)
    openblas.gate.open()
    assert second.began.wait(30)
    for thread in (product, fork, later):
        thread.join()


def test_a_fork_inside_of_a_product_goes_on(monkeypatch):
    """As a signal handler's would."""
    monkeypatch.setattr(openblas, "PATIENCE_S", 0.1)

    def fork(a, b, out=None):
        openblas.gate.close()
        openblas.gate.open()

    with monkeypatch.context() as patched:
        patched.setattr(openblas.np, "matmul", fork)
        within_time(lambda: openblas.matmul(None, None), "a fork")
    np.testing.assert_array_equal(openblas.matmul(np.eye(2), np.eye(2)), np.eye(2))


def test_a_product_that_is_interrupted_keeps_no_fork_and_no_product_waiting():
    a = np.eye(2)

    def fork_and_compute():
        openblas.gate.close()
        assert not openblas.gate.running
        openblas.gate.open()
        np.testing.assert_array_equal(openblas.matmul(a, a), a)

    for interrupted in moments(lambda: openblas.matmul(a, a)):
        within_time(fork_and_compute, interrupted.where)
