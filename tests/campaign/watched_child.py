"""A child process of the campaign, watched: what became of each of its cases."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NO_MEMORY = re.compile(r"bad_alloc|out of memory|cannot allocate memory|no space left", re.I)
"""What a library says that ends the process because the campaign's own limit leaves no room."""

_STARTING = 300.0
"""Seconds of processor time in which a child imports what it needs and gathers models."""


class Child:
    """A process that runs cases of one kind.

    Args:
        kind: The kind.
        first: The first seed.
        count: How many seeds.
        hang: Seconds of processor time after which a case hangs; ten times as many on the clock.
        gigabytes: Of address space that it may take.
        processors: It runs on these only; ``None`` for all.
    """

    def __init__(self, kind, first, count, hang=30.0, gigabytes=4.0, processors=None):
        self._hang = hang
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - results() closes it
        command = ["-m", "tests.campaign.child", kind, str(first), str(count), str(gigabytes)]
        self._process = subprocess.Popen(
            [sys.executable, *command, *map(str, processors or ())],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        self._first = first
        self._rest = b""

    def end(self):
        """Ends it and what it has started, unless it has ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def results(self):
        """What became of each case; of the last one, also that it died or hung."""
        with self._process.stdout, self._stderr:
            yield from self._results()
            self._process.wait()

    def _results(self):
        current = {"seed": self._first}
        started = False
        while True:
            line, why = self._line(started)
            if line is None:
                if why or self._process.wait() != 0:
                    yield {**current, **self._death(why)}
                return
            started = True
            told = json.loads(line)
            current = {"seed": told["seed"], "what": told.get("what") or current.get("what", "")}
            if "outcome" in told:
                yield {**told, "what": current["what"]}
                current = {"seed": told["seed"] + 1}

    def _death(self, why):
        """Outcome of the case at which it ended, and its last words."""
        code = self._process.returncode
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - 1000, 0))
        words = self._stderr.read().decode(errors="replace").strip()
        if not why and NO_MEMORY.search(words):
            why = "memory"
        return {
            "outcome": why or (f"signal:{-code}" if code < 0 else f"died:{code}"),
            "error": words,
        }

    def _line(self, started):
        """The next line; without one, ``None`` and why it was ended, if it was."""
        since, used = time.monotonic(), self._cpu_seconds()
        patience = self._hang if started else _STARTING
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
