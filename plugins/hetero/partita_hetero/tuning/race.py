"""The race: placements run alternately, and those far behind drop out."""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import PLUGIN_FAILURES, in_words
from partita_hetero.cost import clock
from partita_hetero.planner.simulation.plan import Objective
from partita_hetero.tuning.contestant import Entry, decided

RACE_SECONDS = 2.0
LEAST_ROUNDS, MOST_ROUNDS = 7, 201
"""The candidates run in turns for so long, at least and at most so many times."""

HOPELESS = 1.3
"""A candidate that was so much slower than the best one in all three first rounds runs no more."""

IN_FLIGHT = 4
"""Requests for each that is in flight at a time, when throughput is measured."""


def race(entries: Sequence[Entry], objective: Objective) -> None:
    """Runs the entries in turns, and notes their times; those far behind drop out.

    Args:
        entries: What races; one that fails is marked so, and has no times.
        objective: What is minimized; for throughput several requests run at a time.
    """
    racing = list(entries)
    start = clock.seconds()
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and (clock.seconds() - start > RACE_SECONDS or decided(racing)):
            break
        for entry in list(racing):
            try:
                entry.times.append(_seconds(entry, objective))
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                entry.failure = f"it failed: {in_words(error)}"
                entry.times.clear()
                racing.remove(entry)
        if number == 2:
            fastest = min((entry.median for entry in racing), default=0.0)
            racing = [entry for entry in racing if min(entry.times) <= HOPELESS * fastest]


def _seconds(entry: Entry, objective: Objective) -> float:
    """Seconds of one request, or between results, in one round."""
    if entry.trial is None:
        raise ValueError(f"Candidate '{entry.name}' has nothing to run.")
    if objective != "THROUGHPUT":
        return entry.trial.take_turn()
    at_once = entry.trial.requests_at_once
    return entry.trial.seconds_per_request(IN_FLIGHT * at_once, at_once)
