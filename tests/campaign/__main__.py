"""Runs the campaign: ``python -m tests.campaign --kinds tensors --cases 1000 --first 0``.

A case is known by its kind and its seed, and is the same whenever it is run. Cases run in child
processes, with a limit of memory; one that takes more than ``--hang`` seconds of processor time
(or ten times as many on the clock) is ended, one with a Loop, which may be endless by right, after
some seconds. What went wrong is printed with its seed, and kept in ``--log``; counts per kind and
outcome go to ``--report``. The next run starts at the seed that each kind's last line names.

Outcomes: ``ok``; ``refused`` by an error of ours; ``ended``, an endless program; ``memory``, the
limit that the campaign sets itself. Wrong are ``signal``, ``died``, ``hang`` and ``raw``, an error
that is none of ours; ``wrapped``, one of ours that hides what it could not explain, is told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.campaign.checkout import entry_points_of_the_checkout
from tests.campaign.watched_child import Child

KINDS = {
    "tensors": 5,
    "models": 6,
    "element_types": 3,
    "false_shapes": 3,
    "operators": 5,
    "blobs": 3,
    "locks": 3,
    "irs": 3,
    "ggufs": 3,
    "tflites": 3,
    "opencl": 3,
    "requests": 3,
}
"""Which kinds there are, and how many shares of the time each gets."""

BATCH = {
    "tensors": 1000,
    "models": 1000,
    "element_types": 1000,
    "false_shapes": 1000,
    "operators": 1000,
    "opencl": 400,
    "requests": 20_000,
}
"""Cases of a child process; 1600 where nothing is said."""

FINE = frozenset({"ok", "refused", "ended", "memory"})


def main():
    """Runs the cases that were asked for; returns how many of them went wrong."""
    arguments = parsed()
    with entry_points_of_the_checkout():
        return run(arguments)


def run(arguments):
    """Serves all kinds by jobs side by side, and reports."""
    started = time.monotonic()
    campaigns = [Campaign(kind, arguments) for kind in arguments.kinds]
    end = started + arguments.seconds
    jobs = [
        threading.Thread(target=work, args=(campaigns, end, number, arguments))
        for number in range(arguments.jobs)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    for campaign in campaigns:
        sys.stdout.write(campaign.line() + "\n")
    if arguments.report is not None:
        report = {
            "seconds": round(time.monotonic() - started, 1),
            "cases": sum(sum(campaign.outcomes.values()) for campaign in campaigns),
            "wrong": sum(campaign.wrong for campaign in campaigns),
            "kinds": {campaign.kind: campaign.counts() for campaign in campaigns},
            "findings": [found for campaign in campaigns for found in campaign.findings],
        }
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    return min(sum(campaign.wrong for campaign in campaigns), 100)


def parsed():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all kinds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="child processes at once")
    parser.add_argument("--hang", type=float, default=30.0, help="seconds of processor time")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="that a child may take")
    parser.add_argument("--log", type=Path, help="lines of JSON, one for each finding")
    parser.add_argument("--report", type=Path, help="JSON: counts per kind and outcome")
    return parser.parse_args()


def work(campaigns, end, number, arguments):
    """One job: a child process after another, of the kind that has had least of its share."""
    while time.monotonic() < end:
        left = [campaign for campaign in campaigns if campaign.seed < campaign.last]
        if not left:
            return
        min(left, key=lambda campaign: campaign.served).serve(end, processors(number, arguments))


def processors(number, arguments):
    """Two processors for each job where there are several; so kernels still share their work."""
    if arguments.jobs == 1:
        return None
    every = sorted(os.sched_getaffinity(0))
    return {every[(2 * number + i) % len(every)] for i in range(2)}


class Campaign:
    """The cases of one kind.

    Args:
        kind: The kind.
        arguments: Of the command.

    Attributes:
        seed: The next one that no job has taken.
        last: The seed behind the last one.
        served: Seconds that jobs have given it, per share.
        outcomes: How many cases had which outcome.
        findings: What went wrong, or was wrapped.
        wrong: How many cases went wrong.
    """

    def __init__(self, kind, arguments):
        self.kind, self._arguments = kind, arguments
        self.seed, self.last = arguments.first, arguments.first + arguments.cases
        self.served = 0.0
        self.outcomes, self.findings, self.wrong = Counter(), [], 0
        self._lock = threading.Lock()

    def serve(self, end, processors):
        """Runs one batch, or what is left of it after a case that ended its process."""
        with self._lock:
            first = self.seed
            self.seed = stop = min(first + BATCH.get(self.kind, 1600), self.last)
            self.served += 1.0 / KINDS[self.kind]  # so that no other job takes it for the least
        started = time.monotonic()
        while first < stop and time.monotonic() < end:
            first = self._run(first, stop - first, end, processors)
        with self._lock:
            self.served += (time.monotonic() - started - 1.0) / KINDS[self.kind]

    def _run(self, first, count, end, processors):
        """Runs one child; returns the seed behind the last case that it came to."""
        options = self._arguments
        child = Child(self.kind, first, count, options.hang, options.gigabytes, processors)
        for result in child.results():
            first = result["seed"] + 1
            with self._lock:
                self._take(result)
            if time.monotonic() > end:
                child.end()
                break
        return first

    def _take(self, result):
        outcome = result["outcome"].partition(":")[0]
        self.outcomes[outcome] += 1
        if outcome in FINE:
            return
        self.findings.append({"kind": self.kind, **result})
        if outcome != "wrapped":
            self.wrong += 1
            line = f"{self.kind} {result['seed']}: {result['outcome']} ({result.get('what', '')})"
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        if self._arguments.log is not None:
            with self._arguments.log.open("a") as file:
                file.write(json.dumps(self.findings[-1]) + "\n")

    def counts(self):
        """How many cases had which outcome, and which seeds were given out."""
        return {
            "cases": sum(self.outcomes.values()),
            "first": self._arguments.first,
            "next": self.seed,
            "outcomes": dict(sorted(self.outcomes.items())),
        }

    def line(self):
        """The same, to read."""
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        return (
            f"{self.kind}: {sum(self.outcomes.values())} cases, seeds {self._arguments.first} to "
            f"{self.seed - 1}: {counted}; goes on at --first {self.seed}"
        )


if __name__ == "__main__":
    sys.exit(main())
