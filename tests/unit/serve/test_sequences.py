"""Sequences without a device: a fake model counts its runs, which is its state."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from partita_serve.models.admission import QueueLimit
from partita_serve.models.batching import Batcher
from partita_serve.models.instance import Instance, Job, WaitLimit
from partita_serve.models.sequences import Sequences, SequenceStep
from partita_serve.protocol.errors import InvalidRequest, Overloaded
from partita_serve.protocol.records import InferenceRequest


class Count(dict):
    to_dict = dict.copy


class CountingRequest:
    """A request whose state is how many runs it has made."""

    def __init__(self):
        self.state = 0

    def reset_state(self):
        self.state = 0

    def infer(self, feeds):
        self.state += 1
        return Count(y=self.state)

    def device_spans(self):
        return ()


class CountingModel:
    create_infer_request = CountingRequest


class Refusing(QueueLimit):
    refuses = False

    def check(self):
        if self.refuses:
            raise Overloaded("Too many wait.")


class Bench:
    def __init__(self):
        self.threads, self.limit = ThreadPoolExecutor(1), Refusing("m", 1)
        self.sequences = Sequences("m", self._batcher, 2, 100)

    def _batcher(self):
        instances = [Instance(CountingModel)]
        return Batcher(instances, self.threads, self.limit, 0, 0, lambda *_: None)

    def start(self, name, start=False, end=False):
        return asyncio.create_task(self.sequences.run(SequenceStep(name, start, end), job()))

    async def run(self, *step):
        return (await self.start(*step))["y"]


def job():
    return Job(InferenceRequest("m", "", "", []), {}, 1, None, 0, WaitLimit())


def run(scenario):
    async def whole():
        bench = Bench()
        try:
            await asyncio.wait_for(scenario(bench), 30)
        finally:
            bench.threads.shutdown()

    asyncio.run(whole())


async def refused(bench, *step):
    bench.limit.refuses = True
    with pytest.raises(Overloaded):
        await bench.run(*step)
    bench.limit.refuses = False


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("sequence_id", 1.5, "1.5; give a whole number or a text"),
        ("sequence_id", True, "True; give a whole number or a text"),
        ("sequence_start", "true", "'true'; give true or false"),
        ("sequence_end", "false", "'false'; give true or false"),
        ("sequence_end", 0.5, "0.5; give true or false"),
    ],
)
def test_parameters_of_other_types_are_refused(key, value, told):
    with pytest.raises(InvalidRequest, match=f"Parameter '{key}' is {re.escape(told)}"):
        SequenceStep.of({"sequence_id": 3, key: value})


def test_a_sequence_whose_first_request_was_refused_has_not_begun():
    """It went on with what another client's sequence had left."""

    async def scenario(bench):
        found = [await bench.run("one", True), await bench.run("one", False, True)]
        assert found == [1, 2]
        await refused(bench, "two", True)
        with pytest.raises(InvalidRequest, match="has no sequence 'two'"):
            await bench.run("two")
        assert [await bench.run("two", True), await bench.run("two")] == [1, 2]

    run(scenario)


def test_a_sequence_whose_last_request_was_refused_is_open():
    async def scenario(bench):
        assert await bench.run("one", True) == 1
        await refused(bench, "one", False, True)
        assert await bench.run("one", False, True) == 2
        assert bench.sequences.all_ended.is_set()
        assert await bench.run("two", True) == 1
        bench.sequences.end_all()
        assert bench.sequences.all_ended.is_set()

    run(scenario)


def test_a_sequence_whose_client_has_gone_before_it_began_is_none():
    async def scenario(bench):
        task = bench.start("one", True)
        await asyncio.sleep(0)
        assert bench.sequences.holds("one")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not bench.sequences.holds("one")
        assert await bench.run("two", True) == 1

    run(scenario)


def test_what_an_ended_sequence_left_is_forgotten_whoever_comes_next():
    async def scenario(bench):
        instance = Instance(CountingModel)
        counts = [instance.run([job()]).outcomes[0]["y"] for _ in range(2)]
        instance.forget()
        counts += [instance.run([job()]).outcomes[0]["y"] for _ in range(2)]
        assert counts == [1, 2, 1, 2]

    run(scenario)
