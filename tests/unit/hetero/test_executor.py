"""Executors: each step once, after those it waits for; at the same time where it may be."""

from __future__ import annotations

import random
import threading

import pytest

from partita.errors import InferCancelledError
from partita.system.threads.task_threads import TaskThreads
from partita_hetero.compile.transfer_plan import RunStep
from partita_hetero.executors import EXECUTORS, Schedule, parallel
from partita_hetero.executors.dataflow import Dataflow
from partita_hetero.executors.linear import Linear
from partita_hetero.executors.parallel import Parallel


def schedule_of(reads):
    """Step i writes slot i and reads the slots of the steps listed for it."""
    return Schedule([RunStep(i, tuple(sources), (i,)) for i, sources in enumerate(reads)])


def random_graph(seed, count=40):
    rng = random.Random(seed)
    return [
        sorted({rng.randrange(i) for _ in range(rng.randrange(3))}) if i else []
        for i in range(count)
    ]


def never():
    return False


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("seed", range(15))
def test_every_step_once_and_after_what_it_reads(name, seed):
    reads = random_graph(seed)
    done, lock = [], threading.Lock()

    def run(index):
        with lock:
            assert set(reads[index]) <= set(done)
        with lock:
            done.append(index)

    EXECUTORS[name].run(schedule_of(reads), run, never)
    assert sorted(done) == list(range(len(reads)))


def test_steps_that_are_ready_run_at_the_same_time():
    meet = threading.Barrier(3, timeout=60)
    Parallel().run(schedule_of([[], [], []]), lambda index: meet.wait(), never)


def test_a_branch_goes_on_while_another_one_runs():
    """a (long) beside b, c, d in a row: a ends only when d has run."""
    d_ran = threading.Event()

    def run(index):
        if index == 0:
            assert d_ran.wait(60)
        elif index == 3:
            d_ran.set()

    Parallel().run(schedule_of([[], [], [1], [2]]), run, never)
    Parallel().run(schedule_of([[], [], [1], [2], [0, 3]]), run, never)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_steps_for_which_no_thread_can_be_started_run_on_those_there_are(monkeypatch, most):
    """As where a container limits them; a step of another thread may make several ready."""
    start, started, done = threading.Thread.start, [], []

    def start_if_any_is_left(thread):
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    threads = TaskThreads("few", 8)
    monkeypatch.setattr(parallel, "step_threads", threads)
    monkeypatch.setattr(threading.Thread, "start", start_if_any_is_left)
    Parallel().run(schedule_of([[], [], [], *[[0]] * 4, *[[1]] * 4]), done.append, never)
    assert (len(started), sorted(done)) == (most, list(range(11)))
    threads.close()


def test_steps_in_a_row_stay_on_the_calling_thread():
    threads = []
    reads = [[], *([i] for i in range(20))]
    Parallel().run(schedule_of(reads), lambda index: threads.append(threading.get_ident()), never)
    assert threads == [threading.get_ident()] * 21


@pytest.mark.parametrize("name", EXECUTORS)
def test_after_a_failure_nothing_starts_and_what_runs_is_waited_for(name):
    running, ended, started = threading.Event(), [], []

    def run(index):
        started.append(index)
        if index == 0:
            if name == "PARALLEL":
                assert running.wait(60)
            raise ValueError("broken")
        if index == 1:
            running.set()
            ended.append(index)

    with pytest.raises(ValueError, match="broken"):
        EXECUTORS[name].run(schedule_of([[], [], [0, 1], [2]]), run, never)
    assert not {2, 3} & set(started)
    assert ended == ([1] if 1 in started else [])


@pytest.mark.parametrize("executor", [Linear(), Dataflow(), Parallel()])
def test_cancelling_stops_before_the_next_step(executor):
    done = []
    with pytest.raises(InferCancelledError, match="was cancelled"):
        executor.run(schedule_of([[], [0], [1]]), done.append, lambda: len(done) == 2)
    assert done == [0, 1]


@pytest.mark.parametrize("executor", [Linear(), Dataflow(), Parallel()])
def test_a_plan_without_steps(executor):
    executor.run(schedule_of([]), pytest.fail, never)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_device_runs_as_many_steps_as_it_has_room_for(capacity):
    """Twelve independent steps on one device, beside twelve that occupy none."""
    steps = [RunStep(i, (), (i,)) for i in range(24)]
    schedule = Schedule(steps, devices=dict.fromkeys(range(12), "D"), capacity={"D": capacity})
    lock, now, most, done = threading.Lock(), [0], [0], []
    together = threading.Barrier(capacity, timeout=60)

    def run(index):
        if index < 12:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            together.wait()
            with lock:
                now[0] -= 1
        with lock:
            done.append(index)

    Parallel().run(schedule, run, never)
    assert sorted(done) == list(range(24))
    assert most[0] == capacity
