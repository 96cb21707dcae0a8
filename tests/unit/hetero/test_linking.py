"""Joining runs whose tensors are planned: which steps are bound, joined, and left alone."""

from __future__ import annotations

import numpy as np
import pytest

from partita import BoundCall, HostTensor
from partita.errors import InferCancelledError
from partita_hetero.compile.transfer_plan import PermuteKind, PermuteStep, RunStep
from partita_hetero.runtime.bound_calls import (
    BoundCallFailedError,
    Link,
    Linker,
    bind_each,
    join_lanes,
    run_links,
)
from partita_hetero.runtime.executor import Schedule


class Named(BoundCall):
    def __init__(self, names, log, joins=True, error=None):
        self.names, self.log, self.joins, self.error = names, log, joins, error

    def __call__(self):
        if self.error:
            raise self.error
        self.log.append(self.names)

    def followed_by(self, other):
        return Named(self.names + other.names, self.log) if self.joins and other.joins else None


class Part:
    def __init__(self, name, log, bindable=True, joins=True, error=None):
        self.name, self.log, self.bindable = name, log, bindable
        self.joins, self.error = joins, error
        self.seen = None

    def bind(self, inputs, outputs, scratch=None):
        self.seen = inputs, outputs
        return Named(self.name, self.log, self.joins, self.error) if self.bindable else None


def steps_of(count):
    return [RunStep(i, (i,), (i + 1,)) for i in range(count)]


def tensors(count, missing=()):
    return [None if i in missing else HostTensor(np.zeros(1)) for i in range(count)]


def never():
    return False


def blame(step, error):
    return RuntimeError(f"{step.submodel}: {error}")


def link(steps, runners, prepared, blame):
    linker = Linker(steps, runners, prepared, blame)
    for index in range(len(steps)):
        linker.add(index)
    return linker.links


def test_runs_that_follow_one_another_become_one_call():
    log = []
    parts = {i: Part("abcd"[i], log) for i in range(4)}
    prepared = tensors(5, missing={0})
    links = link(steps_of(4), parts, prepared, blame)
    assert [(one.first, one.last) for one in links] == [(0, 0), (1, 3)]
    run_links(links, lambda index: log.append(f"step {index}"), never)
    assert log == ["step 0", "bcd"]
    assert parts[2].seen == ([prepared[2]], [prepared[3]])
    assert parts[0].seen is None


def test_devices_that_cannot_bind_or_join():
    log = []
    parts = {
        0: Part("a", log, joins=False),
        1: Part("b", log),
        2: Part("c", log, bindable=False),
        3: Part("d", log),
        4: Part("e", log),
    }
    links = link(steps_of(5), parts, tensors(6), blame)
    run_links(links, lambda index: log.append(f"step {index}"), never)
    assert log == ["a", "b", "step 2", "de"]


def test_permutes_and_what_they_write_are_left_alone():
    log = []
    steps = [
        RunStep(0, (0,), (1,)),
        PermuteStep("v", PermuteKind.DOWNLOAD, "D", (1,), (2,)),
        RunStep(1, (2,), (3,)),
        RunStep(2, (3,), (4,)),
    ]
    parts = {i: Part("abc"[i], log) for i in range(3)}
    links = link(steps, parts, tensors(5, missing={2}), blame)
    run_links(links, lambda index: log.append(f"step {index}"), never)
    assert log == ["a", "step 1", "step 2", "c"]


def test_a_failure_says_only_that_there_was_one():
    cause = ValueError("broken")
    links = [Link(0, 3, Named("abc", [], error=cause))]
    with pytest.raises(BoundCallFailedError) as caught:
        run_links(links, never, never)
    assert caught.value.__cause__ is cause


def test_a_device_that_fails_to_bind_is_blamed():
    class Broken(Part):
        def bind(self, inputs, outputs, scratch=None):
            raise KeyError("lost")

    with pytest.raises(RuntimeError, match="1: 'lost'"):
        link(steps_of(2), {0: Part("a", []), 1: Broken("b", [])}, tensors(3), blame)


def test_cancelling_stops_before_the_next_call():
    log = []
    links = [Link(0, 0, None), Link(1, 4, Named("bcd", log))]
    with pytest.raises(InferCancelledError):
        run_links(links, log.append, lambda: bool(log))
    assert log == [0]
    with pytest.raises(InferCancelledError):
        run_links([Link(0, 1, Named("a", [], error=InferCancelledError("now")))], never, never)


def test_binding_each_step_by_itself():
    log = []
    parts = {i: Part("abcd"[i], log, bindable=i != 2) for i in range(4)}
    calls = bind_each(steps_of(4), parts, tensors(5, missing={0}), blame)
    assert sorted(calls) == [1, 3]
    for call in calls.values():
        call()
    assert log == ["b", "d"]

    class Broken(Part):
        def bind(self, inputs, outputs, scratch=None):
            raise KeyError("lost")

    with pytest.raises(RuntimeError, match="0: 'lost'"):
        bind_each(steps_of(1), {0: Broken("a", [])}, tensors(2), blame)


class Laned(Named):
    def together(self, calls, waits, lanes):
        if not all(isinstance(call, Laned) for call in calls):
            return None
        return [call.names for call in calls], [sorted(others) for others in waits], lanes


DIAMOND = [
    RunStep(0, (0,), (1,)),
    RunStep(1, (1,), (2,)),
    RunStep(2, (1,), (3,)),
    RunStep(3, (2, 3), (4,)),
]


def test_steps_in_lanes_become_one_call():
    calls = {index: Laned("abcd"[index], []) for index in range(4)}
    lanes = {0: "A", 1: "B", 2: "A", 3: "B"}
    joined = join_lanes(calls, Schedule(DIAMOND, lanes=lanes))
    assert joined == (["a", "b", "c", "d"], [[], [0], [0], [1, 2]], [0, 1, 0, 1])


def test_what_cannot_become_one_call():
    calls = {index: Laned("abcd"[index], []) for index in range(4)}
    lanes = {0: "A", 1: "B", 2: "A", 3: "B"}
    schedule = Schedule(DIAMOND, lanes=lanes)
    assert join_lanes({0: calls[0], 1: calls[1], 2: calls[2]}, schedule) is None  # one is not bound
    assert join_lanes(calls, Schedule(DIAMOND, lanes=dict.fromkeys(range(4), "A"))) is None
    roomy = Schedule(DIAMOND, lanes=lanes, capacity={"A": 2, "B": 1})
    assert join_lanes(calls, roomy) is None
    assert join_lanes({**calls, 2: Named("c", [])}, schedule) is None
    assert join_lanes(dict.fromkeys(range(4), Named("a", [])), schedule) is None


def test_scratch_memory_is_lent_by_step():
    seen = {}

    class Borrowing(Part):
        def bind(self, inputs, outputs, scratch=None):
            seen[self.name] = scratch
            return super().bind(inputs, outputs)

    block = np.empty(8, np.uint8)
    parts = {index: Borrowing("ab"[index], []) for index in range(2)}
    bind_each(steps_of(2), parts, tensors(3), blame, {1: block})
    assert seen["a"] is None
    assert seen["b"] is block
