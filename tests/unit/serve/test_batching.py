"""Batches without a device: a fake instance runs when the test says so, and tells what it ran."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from partita.errors import InferError
from partita_serve.models.admission import ByteLimit, QueueLimit
from partita_serve.models.batching import Batcher
from partita_serve.models.instance import Finished, Instance, Job, WaitLimit
from partita_serve.protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
)
from partita_serve.protocol.records import InferenceRequest


class FakeInstance:
    """Answers each job with its own name, once the gate is open."""

    def __init__(self):
        self.gate = threading.Event()
        self.ran = []

    def run(self, jobs):
        assert self.gate.wait(30)
        self.ran.append([job.request.id for job in jobs])
        return Finished([{"y": job.request.id} for job in jobs], 0, 0, 0, 0, ())


class Bench:
    def __init__(self, max_rows=8, most=100, delay_us=0):
        self.instance = FakeInstance()
        self.threads = ThreadPoolExecutor(1)
        self.limit = QueueLimit("m", most)
        self.told = []
        self.batcher = Batcher(
            [self.instance],
            self.threads,
            self.limit,
            max_rows,
            delay_us * 1000,
            lambda jobs, finished: self.told.append(len(jobs)),
        )

    def submit(self, name, rows=1, alike=None, priority=10, timeout_us=0):
        request = InferenceRequest("m", "", name, [])
        job = Job(request, {}, rows, alike, priority, WaitLimit(timeout_us * 1000, "which is all"))
        return asyncio.create_task(self.batcher.run(job))

    async def occupy(self):
        """Lets one job run, so that others wait."""
        first = self.submit("first", alike="first")
        await asyncio.sleep(0)
        assert self.limit.waiting == 0
        return first

    @property
    def ran(self):
        return self.instance.ran[1:]


def run(scenario, **options):
    async def whole():
        bench = Bench(**options)
        try:
            await asyncio.wait_for(scenario(bench), 30)
        finally:
            bench.instance.gate.set()
            bench.threads.shutdown()

    asyncio.run(whole())


def test_like_jobs_are_joined_up_to_the_most_rows():
    async def scenario(bench):
        first = await bench.occupy()
        others = [bench.submit(f"{i}", rows=3) for i in range(3)]
        await asyncio.sleep(0)
        assert bench.limit.waiting == 3
        bench.instance.gate.set()
        assert [(await one)["y"] for one in (first, *others)] == ["first", "0", "1", "2"]
        assert bench.ran == [["0", "1"], ["2"]]
        await asyncio.sleep(0)
        assert bench.told == [1, 2, 1]
        assert bench.limit.waiting == 0

    run(scenario)


def test_unlike_jobs_and_those_that_may_not_be_joined_run_alone():
    async def scenario(bench):
        await bench.occupy()
        several = [bench.submit(name, alike=name[0]) for name in ("a1", "b1", "a2")]
        await asyncio.sleep(0)
        bench.instance.gate.set()
        await asyncio.gather(*several)

    async def unlike(bench):
        await scenario(bench)
        assert bench.ran == [["a1", "a2"], ["b1"]]

    async def alone(bench):
        await scenario(bench)
        assert bench.ran == [["a1"], ["b1"], ["a2"]]

    run(unlike)
    run(alone, max_rows=0)


def test_priority_goes_before_arrival():
    async def scenario(bench):
        await bench.occupy()
        given = {"late": 20, "early": 1, "usual": 10, "usual too": 10}
        several = [bench.submit(name, priority=priority) for name, priority in given.items()]
        await asyncio.sleep(0)
        bench.instance.gate.set()
        await asyncio.gather(*several)
        assert bench.ran == [["early"], ["usual"], ["usual too"], ["late"]]

    run(scenario, max_rows=0)


def test_a_job_whose_time_is_over_is_never_run():
    async def scenario(bench):
        await bench.occupy()
        hasty, patient = bench.submit("hasty", timeout_us=2000), bench.submit("patient")
        with pytest.raises(DeadlineExceeded, match="'m' did not come within 2 ms, which is all; "):
            await hasty
        assert bench.limit.waiting == 1
        bench.instance.gate.set()
        await patient
        assert bench.ran == [["patient"]]

    run(scenario)


def test_a_job_that_nobody_waits_for_is_never_run():
    async def scenario(bench):
        await bench.occupy()
        gone, there = bench.submit("gone"), bench.submit("there")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert bench.limit.waiting == 1
        bench.instance.gate.set()
        await there
        assert bench.ran == [["there"]]

    run(scenario)


def test_a_full_queue_refuses_at_once():
    async def scenario(bench):
        await bench.occupy()
        waiting = [bench.submit(f"{i}") for i in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"2 requests wait for model 'm'.*max_queue_size"):
            await bench.submit("too many")
        bench.instance.gate.set()
        await asyncio.gather(*waiting)

    run(scenario, most=2)


def test_a_job_waits_for_others_only_so_long_and_not_when_there_are_enough():
    async def scenario(bench):
        bench.instance.gate.set()
        several = [bench.submit(f"{i}") for i in range(3)]
        await asyncio.gather(*several)  # a minute of delay is not waited for
        assert bench.instance.ran == [["0", "1", "2"]]

    async def lonely(bench):
        bench.instance.gate.set()
        await bench.submit("alone")
        assert bench.instance.ran == [["alone"]]

    run(scenario, max_rows=3, delay_us=60_000_000)
    run(lonely, max_rows=3, delay_us=1000)


class FakeRequest:
    """An infer request that fails for negative numbers."""

    def __init__(self):
        self.calls = []

    def create_infer_request(self):
        return self

    def infer(self, feeds):
        self.calls.append(len(feeds["x"]))
        if (feeds["x"] < 0).any():
            raise InferError("negative")
        self.outputs = {"y": feeds["x"] * 2, "all": feeds["x"].sum()[None]}
        return self

    def to_dict(self):
        return {"y": self.outputs["y"]}

    def device_spans(self):
        return ()


async def jobs_of(*rows):
    feeds = [{"x": np.asarray(row, np.float32)} for row in rows]
    request = InferenceRequest("m", "", "", [])
    return [Job(request, one, len(one["x"]), None, 10, WaitLimit()) for one in feeds]


def test_a_request_that_fails_fails_alone():
    fake = FakeRequest()
    jobs = asyncio.run(jobs_of([1, 2], [-1], [3]))
    outcomes = Instance(fake).run(jobs).outcomes
    assert fake.calls == [4, 2, 1, 1]
    assert outcomes[0]["y"].tolist() == [2, 4]
    assert isinstance(outcomes[1], InternalError)
    assert outcomes[2]["y"].tolist() == [6]
    alone = Instance(fake).run(jobs[1:2]).outcomes
    assert isinstance(alone[0], InternalError)


def test_outputs_are_parted_by_rows():
    finished = Instance(FakeRequest()).run(asyncio.run(jobs_of([1, 2], [3])))
    assert [one["y"].tolist() for one in finished.outcomes] == [[2, 4], [6]]
    assert finished.started_ns <= finished.infer_ns <= finished.inferred_ns <= finished.ended_ns


def test_outputs_without_rows_are_not_parted():
    fake = FakeRequest()
    fake.to_dict = lambda: fake.outputs
    finished = Instance(fake).run(asyncio.run(jobs_of([1], [2])))
    # Each was run again, alone, where one row is right.
    assert [one["all"].tolist() for one in finished.outcomes] == [[1], [2]]


def test_bytes_of_requests_are_counted():
    limit = ByteLimit(10)
    with limit.holding(6):
        with limit.holding(4):
            assert limit.held == 10
        with (
            pytest.raises(Overloaded, match=r"holds 6 bytes.*no room for 5 more"),
            limit.holding(5),
        ):
            pass
    assert limit.held == 0
    with pytest.raises(InvalidRequest), limit.holding(1):
        raise InvalidRequest("")
    assert limit.held == 0
