"""Whether CUDA drives what an OpenCL driver lists: tried in a process of its own, for later.

What CUDA launches was launched by OpenCL before. So its trial goes on beside those of kernels, and
is waited for when the first buffer is made. The verdict is kept on disk.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.system_thread import SystemThread
from partita_opencl.cuda import trial
from partita_opencl.cuda.cuda_device import PASSED
from partita_opencl.drivers import trial_seconds, verdicts
from partita_opencl.drivers.installed_drivers import Driver, platforms
from partita_opencl.drivers.trial_process import Answer, Json, TrialProcess
from partita_opencl.drivers.verdicts import Verdict

SECONDS = 60.0
"""How long a driver may take for one stage of its trial, as `silence` counts it."""


class CudaTrialResult(NamedTuple):
    """What the trial says.

    Attributes:
        outcome: As :func:`partita_opencl.cuda.trial.outcome`; empty where there was none.
        largest: Bytes of the largest buffer that OpenCL imports; ``None`` for any.
    """

    outcome: str = ""
    largest: int | None = None


_trials: dict[Driver, Future[CudaTrialResult]] = {}
_lock = InterruptSafeLock()


def begin(driver: Driver) -> Future[CudaTrialResult]:
    """Begins the trial of an OpenCL driver, unless it has begun: what it will say."""
    with _lock:
        found = _trials.get(driver)
        if found is None:
            found = Future()
            SystemThread(_decide, driver, found)
            _trials[driver] = found  # not before: nobody is to wait for what could not be started
        return found


def of_cuda(driver: Driver) -> CudaTrialResult:
    """What the trial of an OpenCL driver says, once it has ended."""
    return begin(driver).result()


def forget() -> None:
    """Lets verdicts be read again from disk."""
    with _lock:
        _trials.clear()


def _decide(driver: Driver, found: Future[CudaTrialResult]) -> None:
    try:
        found.set_result(_verdict(driver))
    except BaseException as error:  # noqa: BLE001  # whoever waits raises it, whatever it is
        found.set_exception(error)


def _verdict(driver: Driver) -> CudaTrialResult:
    subject = f"CUDA beside OpenCL driver {driver.name}"
    marks = [*driver.marks(), trial.SOURCE, str(trial.IMPORTS)]
    kept = verdicts.read(subject, marks)
    if kept is None:
        kept, lasts = _tried(driver)
        if lasts:
            verdicts.write(subject, marks, kept)
    largest = int(kept.facts.get("imports", 0))
    outcome = str(kept.facts.get("outcome", ""))
    return CudaTrialResult(outcome, None if largest >= trial.IMPORTS[-1] else largest)


def _tried(driver: Driver) -> tuple[Verdict, bool]:
    """The facts of a trial, and whether another trial would say the same."""
    facts: Json = {}
    try:
        with (
            trial_seconds.logged(f"The trial of CUDA beside {driver.name}") as seconds,
            TrialProcess(__name__, {"driver": vars(driver)}, SECONDS) as process,
        ):
            for answer in process.answers():
                seconds.end(", ".join(f"{key} {value}" for key, value in answer.items()))
                facts.update(answer)
    except OSError as error:
        return Verdict(facts={"outcome": f"no process can be started to try it ({error})"}), False
    if not facts:
        facts["outcome"] = process.fault or "its trial ended early"
    return Verdict(facts=facts), not process.is_transient


def main(request: Json, answer: Answer) -> None:
    """The trial itself, in a process of its own: what holds if nothing follows, then more."""
    import pyopencl as cl

    answer({"outcome": "", "imports": 0})
    for platform in platforms([Driver(**request["driver"])]):
        if platform.name != trial.PLATFORM:
            continue
        # Of devices of one name, one stands for all.
        for handle in {d.name: d for d in platform.get_devices()}.values():
            answer({"outcome": "its trial ended early", "imports": 0})
            context = cl.Context([handle])
            outcome = trial.outcome(handle, context)
            answer({"outcome": outcome})
            if outcome == PASSED:
                for size in trial.imports(handle, context):
                    answer({"imports": size})
