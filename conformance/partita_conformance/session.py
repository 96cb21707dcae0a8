"""One run from start to report: what the command line and the pytest plugin share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from partita_conformance.bench.bench import Target
from partita_conformance.bench.checks import Check, names_of
from partita_conformance.expectations import Expectations
from partita_conformance.reports import report
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import InProcess, Isolated, Outcome, run_expected


@dataclass
class Session:
    """A run of the kit on one device.

    Attributes:
        target: The device.
        selection: Which checks.
        expectations: What is not expected to pass.
        isolate: Whether checks are made in a worker process.
        timeout_s: How long one check may take, if isolated.
        outcomes: What became of the checks made so far.
    """

    target: Target
    selection: Selection = field(default_factory=Selection)
    expectations: Expectations = field(default_factory=Expectations)
    isolate: bool = True
    timeout_s: float = 120
    outcomes: list[Outcome] = field(default_factory=list)
    _runner: InProcess | Isolated | None = None
    _start: float = field(default_factory=time.perf_counter)

    def checks(self) -> list[Check]:
        """The checks to make.

        Raises:
            ExpectationsError: A pattern matches none of them, and nothing was deselected.
        """
        chosen = collect(self.selection)
        if not self.selection.patterns:
            self.expectations.require_matches(names_of(chosen))
        return chosen

    def run(self, check: Check) -> Outcome:
        """Makes one check and keeps its outcome."""
        if self._runner is None:
            self._runner = (
                Isolated(self.target, self.selection, self.timeout_s)
                if self.isolate
                else InProcess(self.target)
            )
        outcome = run_expected(check, self._runner, self.expectations)
        self.outcomes.append(outcome)
        return outcome

    def write_report(self, folder: Path) -> list[Path]:
        """Writes the report on the checks made so far; returns the files."""
        seconds = time.perf_counter() - self._start
        return report.write(folder, report.as_data(self.target, self.outcomes, seconds))

    def close(self) -> None:
        """Ends the worker process."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
