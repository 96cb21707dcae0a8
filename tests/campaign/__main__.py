"""Runs the campaign: ``python -m tests.campaign --kinds tensors --cases 1000 --first 0``.

A case is known by its kind and its seed, and is the same whenever it is run. Cases run in child
processes, with a limit of memory; one that takes more than ``--hang`` seconds of processor time
(or ten times as many on the clock) is ended, one with a Loop, which may be endless by right, after
some seconds. What went wrong is printed with its seed, and kept in ``--log``; the next run starts
at the seed that the last line names.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

KINDS = ("tensors", "models", "blobs", "locks", "irs", "opencl")
BATCH = 400


def main():
    """Runs the cases that were asked for; returns how many of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all kinds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--hang", type=float, default=30.0)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    wrong = 0
    for number, kind in enumerate(arguments.kinds):
        left = (end - time.monotonic()) / (len(arguments.kinds) - number)
        wrong += campaign(kind, arguments, time.monotonic() + left)
    return min(wrong, 100)


def campaign(kind, arguments, end):
    """Runs the cases of one kind; returns how many went wrong."""
    outcomes, wrong = Counter(), 0
    seed, last = arguments.first, arguments.first + arguments.cases
    while seed < last and time.monotonic() < end:
        child = Child(kind, seed, min(BATCH, last - seed), arguments)
        for result in child.results():
            outcome = result["outcome"]
            outcomes[outcome.partition(":")[0]] += 1
            seed = result["seed"] + 1
            if outcome not in ("ok", "refused", "ended"):
                note(kind, result, arguments.log)
                wrong += not outcome.startswith("wrapped")
            if time.monotonic() > end:
                child.end()
                break
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    sys.stdout.write(
        f"{kind}: {sum(outcomes.values())} cases, seeds {arguments.first} to {seed - 1}: "
        f"{counted}; goes on at --first {seed}\n"
    )
    sys.stdout.flush()
    return wrong


def note(kind, result, log):
    """Prints what went wrong, and keeps it."""
    line = f"{kind} {result['seed']}: {result['outcome']} ({result.get('what', '')})"
    if not result["outcome"].startswith("wrapped"):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    if log is not None:
        with log.open("a") as file:
            file.write(json.dumps({"kind": kind, **result}) + "\n")


class Child:
    """A process that runs cases, watched."""

    def __init__(self, kind, first, count, arguments):
        self._hang = arguments.hang
        command = ["-m", "tests.campaign.child", kind, str(first), str(count)]
        self._process = subprocess.Popen(
            [sys.executable, *command, str(arguments.gigabytes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        self._first = first
        self._rest = b""

    def end(self):
        """Ends it and what it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def results(self):
        """What became of each case; of the last one, also that it died or hung."""
        with self._process.stdout:
            yield from self._results()
            self._process.wait()

    def _results(self):
        current = {"seed": self._first}
        started = False
        while True:
            line, why = self._line(started)
            if line is None:
                if why or self._process.wait() != 0:
                    code = self._process.returncode
                    died = f"signal:{-code}" if code < 0 else f"died:{code}"
                    yield {**current, "outcome": why or died}
                return
            started = True
            told = json.loads(line)
            current = {"seed": told["seed"], "what": told.get("what") or current.get("what", "")}
            if "outcome" in told:
                yield {**told, "what": current["what"]}
                current = {"seed": told["seed"] + 1}

    def _line(self, started):
        """The next line; without one, ``None`` and why it was ended, if it was."""
        since, used = time.monotonic(), self._cpu_seconds()
        patience = self._hang if started else 300.0  # it imports and gathers models first
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], 1.0)
            if ready:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return None, ""
                self._rest += data
                continue
            busy, waited = self._cpu_seconds() - used, time.monotonic() - since
            if busy > patience or waited > 10 * patience:
                self.end()
                return None, f"hang:{busy:.0f}s"
        line, _, self._rest = self._rest.partition(b"\n")
        return line, ""

    def _cpu_seconds(self):
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
