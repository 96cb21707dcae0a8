"""Threads of numpy's products: set while somebody computes, given back behind it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import onnx
import pytest

import partita
from partita.system.threads import blas_threads as module
from partita.system.threads.blas_threads import blas_threads
from tests.interrupts import moments


class OpenBlas:
    """A number of threads, as OpenBLAS has it."""

    def __init__(self):
        self.threads = 8
        self.set_to = []

    def get(self):
        return self.threads

    def set(self, count):
        self.threads = count
        self.set_to.append(count)


@pytest.fixture
def blas(monkeypatch):
    fake = OpenBlas()
    monkeypatch.setattr(module, "openblas", lambda: fake)
    return fake


def test_it_holds_for_a_block(blas):
    with blas_threads(1):
        assert blas.threads == 1
    assert blas.threads == 8
    with blas_threads(0):
        assert blas.threads == 8
    assert blas.set_to == [1, 8]


def test_what_an_application_sets_between_blocks_is_given_back(blas):
    with blas_threads(1):
        pass
    blas.threads = 3
    with blas_threads(3), blas_threads(2):
        assert blas.threads == 2
    assert blas.threads == 3


def test_of_blocks_that_overlap_the_latest_decides(blas):
    first, second = blas_threads(1), blas_threads(2)
    first.__enter__()
    second.__enter__()
    assert blas.threads == 2
    first.__exit__(None, None, None)
    assert blas.threads == 2
    second.__exit__(None, None, None)
    assert blas.threads == 8


def test_a_block_may_end_wherever_another_one_is_in_its_end(blas):
    """Before any function that the end of the other one calls."""
    others = [blas_threads(count) for count in range(2, 10)]
    for other in others:
        other.__enter__()

    ended = []

    def elsewhere(frame, event, function):
        if frame.f_code.co_name == "settle" and event == "c_call":
            ended.append(frame.f_locals["self"].running.popitem())

    try:
        with blas_threads(1):
            sys.setprofile(elsewhere)
    finally:
        sys.setprofile(None)
    assert ended
    for other in others:
        other.__exit__(None, None, None)
    assert blas.threads == 8


def test_threads_that_come_and_go_leave_the_number_as_it_was(blas):
    def computes(count):
        for _ in range(200):
            with blas_threads(count):
                assert blas.threads in (1, 2, 3, 4)

    workers = [threading.Thread(target=computes, args=(n + 1,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert blas.threads == 8


def test_an_interrupted_block_is_over(blas):
    """At the latest with the next one, if its frames are gone by then."""
    blocks = 0

    def two_blocks():
        nonlocal blocks
        with blas_threads(2):
            assert blas.threads == 2
        assert blas.threads == 8
        blocks += 1
        with blas_threads(1):
            assert blas.threads == 1

    for _ in moments(two_blocks):
        pass
    assert blocks > 10
    assert blas.threads == 8


def test_numpys_own_library_is_found_where_its_wheel_has_one():
    found = module.openblas()
    if not list(module.libraries()):
        assert found is None
        return
    before = found.get()
    with blas_threads(before + 1):
        assert found.get() == before + 1
    assert found.get() == before


def test_the_reference_computes_with_one_thread_unless_told_otherwise(blas):
    a = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2, 2])
    b = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2, 2])
    square = onnx.helper.make_node("MatMul", ["a", "a"], ["b"])
    graph = onnx.helper.make_graph([square], "square", [a], [b])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    two = np.full((2, 2), 2, np.float32)
    for properties, set_to in (
        ({}, [1, 8]),
        ({"INFERENCE_NUM_THREADS": 3}, [3, 8]),
        ({"INFERENCE_NUM_THREADS": 0}, []),
    ):
        blas.set_to.clear()
        compiled = partita.Core().compile_model(proto, "REFERENCE", properties)
        np.testing.assert_array_equal(compiled(two)["b"], two @ two)
        assert blas.set_to == set_to
