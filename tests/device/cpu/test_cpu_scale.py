"""Compiling takes work in proportion to the operations, counted in calls instead of seconds."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from models import model_of, node, value, weight

import partita


def chain(count, tapped):
    """Products and additions, one after another; `tapped` makes every value an output."""
    nodes, weights = [], []
    for i in range(0, count, 2):
        nodes.append(node("MatMul", [f"v{i}", f"w{i}"], f"v{i + 1}", f"product{i}"))
        nodes.append(node("Exp", [f"v{i + 1}"], f"v{i + 2}", f"exp{i}"))
        weights.append(weight(f"w{i}", np.eye(16, dtype=np.float32) / (2 + i % 3)))
    outputs = [f"v{i + 1}" for i in range(count)] if tapped else [f"v{count}"]
    outputs = [value(name, [4, 16]) for name in outputs]
    return model_of(nodes, [value("v0", [4, 16])], outputs, weights)


def calls_of(work):
    """Calls of Python functions and built-in ones."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
def test_four_times_the_operations_are_four_times_the_work(device, tapped):
    core = partita.Core()
    feeds = {"v0": np.zeros((4, 16), np.float32)}

    def work(count):
        model = core.read_model(chain(count, tapped))

        def compile_and_run():
            core.compile_model(model, device).create_infer_request().infer(feeds)

        return compile_and_run

    calls_of(work(200))  # what is done once
    small, large = calls_of(work(200)), calls_of(work(800))
    assert large < 4.4 * small
