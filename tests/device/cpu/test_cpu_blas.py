"""Numpy's products and forks: a fork waits for the end of those that run, but not for ever."""

from __future__ import annotations

import threading
import time

import numpy as np

from partita_cpu.threads import openblas


class Slow:
    """A product that ends when it is told to."""

    def __init__(self):
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self):
        with openblas.gate:
            self.began.set()
            assert self.may_end.wait(30)


def test_it_is_the_product_of_numpy():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    out = np.empty((2, 4))
    assert openblas.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(openblas.matmul(a, b), a @ b)


def test_a_fork_waits_for_products_and_products_for_it():
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
    start = time.monotonic()
    with openblas.gate:
        openblas.gate.close()
        openblas.gate.open()
    assert time.monotonic() - start < 30
    np.testing.assert_array_equal(openblas.matmul(np.eye(2), np.eye(2)), np.eye(2))
