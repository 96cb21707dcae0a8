"""Runs that need all of a device take turns there, while the host waits for none of them."""

import numpy as np
import pytest

from partita_opencl.device.device import find_device
from partita_opencl.device.run_turns import Turns

cl = pytest.importorskip("pyopencl")


@pytest.fixture
def queues():
    device = find_device("")
    return [cl.CommandQueue(device.context, device.handle) for _ in range(2)]


def written(queue, buffer, number, wait_for=None):
    """Enqueues that a number is written."""
    return cl.enqueue_fill_buffer(queue, buffer, np.int32(number), 0, 4, wait_for=wait_for)


def test_a_run_begins_behind_the_end_of_the_one_before_it(queues):
    first, second = queues
    gate = cl.UserEvent(first.context)
    buffer = cl.Buffer(first.context, cl.mem_flags.READ_WRITE, 4)
    turns, events = Turns(), []
    turns.enqueue(first, lambda: written(first, buffer, 1, [gate]))
    turns.enqueue(second, lambda: events.append(written(second, buffer, 2)) or events[-1])
    found = np.zeros(1, np.int32)
    read = cl.enqueue_copy(second, found, buffer, is_blocking=False)
    try:
        # Nothing of the second has run, however long it takes: the first has not ended.
        assert events[0].command_execution_status != cl.command_execution_status.COMPLETE
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    read.wait()
    first.finish()
    assert found[0] == 2


def test_the_next_run_of_a_queue_needs_no_barrier(queues, monkeypatch):
    queue, other = queues
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4)
    barriers = []
    monkeypatch.setattr(cl, "enqueue_barrier", lambda *_, **__: barriers.append(1))
    turns = Turns()
    turns.enqueue(queue, lambda: written(queue, buffer, 1))
    turns.enqueue(queue, lambda: written(queue, buffer, 2))
    queue.finish()
    turns.enqueue(other, lambda: written(other, buffer, 3))  # all that was before has ended
    other.finish()
    assert not barriers


def test_a_run_that_fails_lets_the_next_one_in(queues):
    first, second = queues
    buffer = cl.Buffer(first.context, cl.mem_flags.READ_WRITE, 4)
    turns = Turns()

    def fails():
        written(first, buffer, 1)
        raise cl.LogicError("refused")

    with pytest.raises(cl.LogicError, match="refused"):
        turns.enqueue(first, fails)
    turns.enqueue(second, lambda: written(second, buffer, 2))
    found = np.zeros(1, np.int32)
    cl.enqueue_copy(second, found, buffer)
    assert found[0] == 2
