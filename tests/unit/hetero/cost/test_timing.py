"""Measuring: what counts, and when it ends."""

from __future__ import annotations

import pytest

from partita_hetero.cost import timing
from partita_hetero.cost.timing import Effort, median_of, repeat


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

        def seconds(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(timing, "clock", clock)
    return clock


def calls(clock, durations):
    durations = iter(durations)

    def call():
        taken = next(durations)
        clock.now += taken
        return taken

    return call


def test_warm_runs_do_not_count(clock):
    effort = Effort(warm=3, least=2, most=2, seconds=100)
    assert repeat(calls(clock, [9, 8, 7, 1, 3]), effort) == [1, 3]


def test_warm_runs_go_on_for_their_time(clock):
    effort = Effort(warm=2, least=2, most=2, seconds=100, warm_seconds=7)
    assert repeat(calls(clock, [9, 3, 3, 3, 1, 2]), effort) == [1, 2]
    assert repeat(calls(clock, [9, 8, 1, 2]), effort) == [1, 2]


def test_no_more_runs_than_time(clock):
    effort = Effort(warm=2, least=3, most=100, seconds=10)
    assert repeat(calls(clock, [1, 1, 1, 2, 3, 4, 5, 6]), effort) == [1, 2, 3, 4, 5]


def test_what_takes_all_the_time_runs_twice(clock):
    effort = Effort(warm=3, least=3, most=100, seconds=10)
    assert repeat(calls(clock, [50, 20, 21]), effort) == [20]


def test_a_second_call_in_which_a_driver_assembles_programs_does_not_count(clock):
    effort = Effort(warm=3, least=2, most=2, seconds=0.5)
    assert repeat(calls(clock, [1, 0.6, 0.01, 0.02, 0.03]), effort) == [0.02, 0.03]
    assert repeat(calls(clock, [1, 0.6, 0.7, 0.8]), effort) == [0.7]


def test_steady_times_need_no_more_runs(clock):
    effort = Effort(warm=2, least=3, most=100, seconds=1000)
    assert repeat(calls(clock, [1, 1, 5, 5.01, 5, 7]), effort) == [5, 5.01, 5]


def test_steady_times_are_looked_at_for_their_time(clock):
    effort = Effort(warm=2, least=2, most=100, seconds=6, least_seconds=6)
    assert repeat(calls(clock, [1, 1, 2, 2, 2, 9]), effort) == [2, 2, 2]
    assert repeat(calls(clock, [1, 1, 3, 3, 3, 9]), effort) == [3, 3]
    assert median_of(calls(clock, [1, 1, 1, 1, 1, 4, 4]), effort) == (1, 4)


def test_the_median(clock):
    effort = Effort(warm=2, least=3, most=3, seconds=1000)
    assert median_of(calls(clock, [1, 1, 2, 9, 3]), effort) == (3, 3)
