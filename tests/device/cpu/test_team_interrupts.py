"""Ctrl-C while a step is shared among threads: its team is free, and all its threads come again."""

import numpy as np

from partita_cpu.threads.step_team import Team
from tests.interrupts import moments, within_time


def test_a_team_that_was_interrupted_shares_the_next_step_among_all_threads():
    team = Team(3)
    shares = np.zeros(3, np.int64)

    def note(tid, nt):
        shares[tid] = nt

    def run():
        shares[:] = 0
        team.run(note)
        np.testing.assert_array_equal(shares, [3, 3, 3])

    run()
    for interrupted in moments(lambda: team.run(note)):
        within_time(run, interrupted.where)


def test_a_team_that_was_interrupted_while_its_threads_began_has_all_of_them():
    """Python's own way to begin a thread raises RuntimeError then, or leaves the thread behind."""
    teams, shares = [], np.zeros(2, np.int64)

    def note(tid, nt):
        shares[tid] = nt

    def begin():
        teams.append(Team(2))
        teams[-1].run(note)

    def run():
        shares[:] = 0
        teams[-1].run(note)
        np.testing.assert_array_equal(shares, [2, 2])

    begin()
    for interrupted in moments(begin):
        within_time(run, interrupted.where)
