"""One life: steps with requests and runners of two models, shrunk to the shortest that fails."""

from __future__ import annotations

import contextlib
import gc
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from partita_conformance.bench.bench import Bench
from partita_conformance.judging.requirements import require
from partita_conformance.suites.lives.dimensions import DIMENSIONS, Step
from partita_conformance.suites.lives.events import Events
from partita_conformance.suites.lives.forms import Form
from partita_conformance.suites.lives.inputs import Inputs
from partita_conformance.suites.lives.made import Maker
from partita_conformance.suites.lives.monitor import Monitor, silence
from partita_conformance.suites.lives.runner_runs import OF_RUNNERS, RunnerRun
from partita_conformance.suites.lives.runs import Run
from partita_conformance.suites.lives.surroundings import Clock, Threads, process

_REPLAYS = 60
"""Lives that are made at most to find a shorter one."""


_FILES, _MOST_FILES = Path("/proc/self/fd"), 4
"""Open files of this process, and how many a device may open once, and not for each use."""


def _open_files() -> int:
    return len(list(_FILES.iterdir())) if _FILES.exists() else 0


class Life:
    """A life of requests.

    Args:
        bench: The device.
        form: The models.
        of_code: Numbers in the device's code.
        folder: For files.
    """

    def __init__(self, bench: Bench, form: Form, of_code: Sequence[int], folder: str) -> None:
        self._bench, self._form = bench, form
        self._files = _open_files()
        self._elsewhere = str(Path(folder) / "elsewhere")
        Path(self._elsewhere).mkdir()
        self.clock, self._threads = Clock(), Threads()
        self._monitor = Monitor()
        self._maker = Maker(bench, form, folder)
        self._events = Events(bench, form, self._maker, self._monitor, self.clock)
        self._inputs = Inputs(form, self._monitor, of_code)

    def end(self) -> None:
        """Lets go of everything, and looks at what is left.

        Raises:
            ConformanceError: Somebody keeps arrays that were lent or handed out.
        """
        self._monitor.end()
        self._monitor.write(random.Random(0), 1)  # noqa: S311
        self._maker.let_go()
        self._inputs.let_go()
        gc.collect()
        self._monitor.look_when_all_are_gone()
        gc.collect()
        left = self._maker.left()
        require(not left, f"{left} compiled models of these steps are there still.")
        more = _open_files() - self._files
        require(more <= _MOST_FILES, f"{more} files more than before these steps are open.")
        kept = self._monitor.kept()
        require(not kept, f"{kept} arrays are kept though all models of these steps are gone.")

    def close(self) -> None:
        """Ends its threads."""
        self._threads.close()

    def make(self, step: Step) -> None:
        """Makes a step.

        Raises:
            ConformanceError: Something is wrong behind it.
        """
        levels, rng = step.levels, random.Random(step.number)  # noqa: S311
        where = levels["process"], levels["thread"]

        def whole() -> None:
            with process(levels["process"], self._elsewhere), self._monitor.step(*where):
                self._make(levels, rng)

        self._threads.make(levels["thread"], whole)

    def _make(self, levels: Mapping[str, str], rng: random.Random) -> None:
        variant = int(levels["model"] != "itself")
        made = self._maker.made(variant, levels["origin"], rng)
        user = made.user(levels["request"])
        self._events.happen(levels["before"], made, user, rng)
        kind = RunnerRun if levels["way"] in OF_RUNNERS else Run
        run = kind(self._bench, self._form, self._monitor, self._inputs, made, user, levels, rng)
        run.make(self._events)


@contextlib.contextmanager
def living(bench: Bench, form: Form, of_code: Sequence[int]) -> Iterator[Life]:
    """A new life, with a folder of its own for as long as it lasts.

    Its working directory is one in which nothing else writes: what appears there is the device's.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        here = Path(folder) / "here"
        here.mkdir()
        life = Life(bench, form, of_code, folder)
        with contextlib.chdir(here), life.clock.installed():
            try:
                yield life
            finally:
                life.close()


def lived(
    bench: Bench, form: Form, of_code: Sequence[int], steps: Sequence[Step]
) -> tuple[int, Exception | None]:
    """Makes steps; how many were made, and what went wrong behind the last one, if anything."""
    made = 0
    try:
        with silence(), living(bench, form, of_code) as life:
            for step in steps:
                made += 1
                life.make(step)
            life.end()
    except Exception as error:  # noqa: BLE001  # whatever the device lets through is a finding
        return made, error
    return made, None


def shortest(
    bench: Bench, form: Form, of_code: Sequence[int], steps: Sequence[Step], error: Exception
) -> tuple[Sequence[Step], Exception]:
    """The fewest and plainest of some steps behind which something is still wrong, and what is."""
    best = list(steps), error
    left = _REPLAYS

    def fails(shorter: list[Step]) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        made, now = lived(bench, form, of_code, shorter)
        if now is not None:
            best = shorter[:made], now
        return now is not None

    count = 1
    while count < len(steps) and not fails(list(steps[-count:])):
        count *= 2
    place = 0
    while place < len(best[0]) - 1:
        if not fails([*best[0][:place], *best[0][place + 1 :]]):
            place += 1
    for dimension in DIMENSIONS:
        for place in range(len(best[0])):
            steps = list(best[0])
            if place < len(steps):
                plainer = steps[place].plainer(dimension)
                if plainer != steps[place]:
                    steps[place] = plainer
                    fails(steps)
    return best
