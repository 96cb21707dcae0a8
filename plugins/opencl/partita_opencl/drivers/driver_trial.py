"""Which drivers are loaded: those that did the basics in a process of their own.

A driver may abort, hang, or compute nonsense when it is loaded, when its devices are listed, or
when it builds a kernel. So each is tried alone before it gets into this process, once: the verdict
is kept on disk. What it does with our kernels is tried later, by ``kernel_trial``.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.errors import advised
from partita.storage.cache_folder import CACHE_VARIABLE
from partita.system.memory_limits import more_memory
from partita.system.processors import usable_processors
from partita.system.threads import joint_work
from partita.system.threads.thread_limit import lacks_threads, more_threads
from partita_opencl.drivers import (
    cuda_trial,
    driver_view,
    early_processes,
    fork_server,
    processor_name,
    trial_seconds,
    verdicts,
)
from partita_opencl.drivers.builtin_functions import with_declarations
from partita_opencl.drivers.installed_drivers import Driver, installed, platforms
from partita_opencl.drivers.program_cache import ProgramKey, built_program
from partita_opencl.drivers.trial_process import WORKER, Answer, Json, TrialProcess, prepare
from partita_opencl.drivers.verdicts import Verdict
from partita_opencl.linking.linker_folder import linker_folder, system_linkers

_log = logging.getLogger(__name__)

SECONDS = 60.0
"""How long a driver may take for one stage of its trial, as `silence` counts it."""

_PROGRAM = ProgramKey("driver_trial.cl")
_WITH_VECTORS = ProgramKey("driver_trial.cl", (("VECTORS", None),))
_DECLARED = ProgramKey("driver_trial.cl", (("VECTORS", None), ("DECLARED", None)))
_TOLERANCE = 1e-4

_DOING = {
    "load": "while it was loaded",
    "list": "while its devices were listed",
    "compute": "while its devices built and ran a small kernel",
}
"""The stages of a trial."""

_MORE_LINKERS = (
    "it starts a linker, which comes with gcc: install that, or set "
    f"{CACHE_VARIABLE} to a folder where programs can be kept and run"
)

_OF_CUDA = "CUDA"
"""What is in the version of platforms whose devices may be CUDA's as well."""

_ITEMS, _GROUP = 256, 8
_FACTOR = np.float32(0.5)


@dataclass(frozen=True)
class Tried:
    """A driver and what its trial said.

    Attributes:
        driver: What was tried.
        verdict: The facts in it are the versions of its platforms.
    """

    driver: Driver
    verdict: Verdict

    @property
    def explanation(self) -> str:
        """Why the driver is not loaded, and what to do."""
        if self.verdict.facts.get("untried"):
            return f"the driver of '{self.driver.origin}' is not loaded: {self.verdict.reason}."
        again = f"; to try it again, delete '{self.verdict.file}'" if self.verdict.file else ""
        return (
            f"the driver of '{self.driver.origin}' is not loaded: {self.verdict.reason}. Update or "
            f"remove it{again}. docs/opencl-drivers.md lists drivers by machine."
        )


_adopted: tuple[Tried, ...] | None = None


def adopt(drivers: Sequence[Json]) -> None:
    """Lets this process load some drivers without a trial: its parent made one."""
    global _adopted
    _adopted = tuple(
        Tried(Driver(**one["driver"]), Verdict(facts={"versions": one["versions"]}))
        for one in drivers
    )


def has_adopted() -> bool:
    """Whether this process is one that tries drivers for its parent."""
    return _adopted is not None


def loaded_drivers() -> list[Json]:
    """The drivers that are loaded, as :func:`adopt` takes them in another process."""
    return [
        {"driver": vars(one.driver), "versions": one.verdict.facts.get("versions", [])}
        for one in tried()
        if one.verdict.good
    ]


@functools.cache
def tried() -> tuple[Tried, ...]:
    """The installed drivers with their verdicts; those without one are tried now, side by side."""
    if _adopted is not None:
        return _adopted
    drivers = installed()
    with (
        fork_server.ended_if_interrupted(),
        joint_work.workers(max(1, min(len(drivers), 4))) as pool,
    ):
        return tuple(pool.map(judge_driver, drivers))


def judge_driver(driver: Driver) -> Tried:
    """The verdict on a driver, without its header if it takes no programs without that."""
    found = _judge_forms(driver)
    driver = found.driver
    refusal = found.verdict.facts.get("declarations", "its trial ended before that was tried")
    if not (driver.header and found.verdict.good and refusal):
        return found
    text = "OpenCL driver '%s' parses declarations of all built-in functions for each program: %s"
    _log.info(text, driver.name, refusal)
    return replace(found, driver=replace(driver, header=""))


def _judge_forms(driver: Driver) -> Tried:
    """The verdict on a driver: on the form of it that computes vectors, if there is one.

    One that starts the system's linker in vain is given ours.
    """
    verdict = driver_verdict(driver)
    if _lacks_linker(verdict):
        folder = linker_folder()
        if folder:
            driver = replace(driver, linker=folder)
            verdict = driver_verdict(driver)
        if _lacks_linker(verdict):
            return Tried(driver, replace(verdict, reason=advised(verdict.reason, _MORE_LINKERS)))
    if not _lacks_vectors(verdict):
        return Tried(driver, verdict)
    for view in driver_view.views(driver):
        other = driver_verdict(view)
        if other.good and not _lacks_vectors(other):
            _log.info("%s: %s; with %s it does", driver.name, verdict.facts["vectors"], view.form)
            return Tried(view, other)
    return Tried(driver, verdict)


def _lacks_linker(verdict: Verdict) -> bool:
    """Whether a driver failed at linking what it had compiled, as PoCL says before it aborts."""
    return "Final linking of kernel" in verdict.reason


def _lacks_vectors(verdict: Verdict) -> bool:
    return bool(verdict.facts.get("vectors"))


def driver_verdict(driver: Driver) -> Verdict:
    """What a driver's trial said, tried now if no verdict is kept."""
    subject = f"OpenCL driver {driver.name}{f' with {driver.form}' if driver.form else ''}"
    linkers = system_linkers()
    marks = [*driver.marks(), *linkers, _PROGRAM.source(), processor_name.KNOWN.decode()]
    found = verdicts.read(subject, marks)
    if found is not None:
        return found
    prepare(WORKER)  # what was never tried will have its kernels tried next
    verdict, lasts = try_driver(driver, vectors=True)
    lists = "versions" in verdict.facts
    has_other_cause = _lacks_linker(verdict) or verdict.facts.get("hangs") or driver.form
    if verdict.reason and lists and not has_other_cause:
        # It lists its devices: perhaps it computes what has no vectors of 16.
        plain, plain_lasts = try_driver(driver, vectors=False)
        lasts = lasts and plain_lasts
        if plain.good:
            verdict = Verdict(facts={**plain.facts, "vectors": verdict.reason})
        elif _lacks_linker(plain):  # a trial with another linker says more
            verdict = plain
    if verdict.reason:
        early_processes.end(driver)
        level = logging.INFO if _lacks_linker(verdict) else logging.WARNING
        _log.log(level, "OpenCL driver '%s' is not loaded: %s", driver.name, verdict.reason)
    return verdicts.write(subject, marks, verdict) if lasts else verdict


def try_driver(driver: Driver, *, vectors: bool) -> tuple[Verdict, bool]:
    """The verdict of a trial, and whether another trial would say the same."""
    stages = list(_DOING)
    facts: Json = {}
    request = {"driver": vars(driver), "vectors": vectors}
    doing = f"the trial of OpenCL driver '{driver.name}'"
    try:
        with (
            trial_seconds.logged(f"The trial of OpenCL driver {driver.name}") as seconds,
            TrialProcess(__name__, request, SECONDS, doing=doing) as process,
        ):
            for answer in process.answers():
                seconds.end(str(answer["stage"]))
                if answer["stage"] in stages:  # what comes behind them the driver need not do
                    stages.remove(str(answer["stage"]))
                facts.update(answer.get("facts", {}))
                if answer["stage"] == "list" and facts.get("card_bytes"):
                    early_processes.begin(driver, facts["versions"], facts["card_bytes"])
                if any(_OF_CUDA in version for version in facts.get("versions", ())):
                    cuda_trial.begin(driver)  # beside this one
                if answer.get("fault"):
                    lasts = not facts.get("untried")
                    facts |= {"untried": not lasts or bool(more_memory())}
                    advice = str(answer.get("advice") or more_memory())
                    return Verdict(advised(str(answer["fault"]), advice), facts), lasts
    except OSError as error:
        # EAGAIN is what a system says that starts no more.
        advice = more_threads() if isinstance(error, BlockingIOError) else ""
        reason = advised(f"no process can be started to try it ({error})", advice)
        return Verdict(reason, {"untried": True}), False
    if not stages:
        return Verdict(facts=facts), True  # however it ended: what it computed is right
    fault = f"{process.fault or 'it ended early'}, {_DOING[stages[0]]}"
    untried = process.is_transient or bool(process.advice)
    facts |= {"hangs": process.hangs, "untried": untried}
    return Verdict(advised(fault, process.advice), facts), not process.is_transient


def main(request: Json, answer: Answer) -> None:
    """The trial itself, in a process of its own.

    What it raises is no fault of the driver, as when pyopencl is missing.
    """
    import pyopencl as cl

    def fail(stage: str, fault: str) -> None:
        if lacks_threads(usable_processors() + 1):  # as many as drivers of processors start
            untried = {"facts": {"untried": True}, "advice": more_threads()}
            answer({"stage": stage, "fault": f"the system starts no threads ({fault})", **untried})
        else:
            answer({"stage": stage, "fault": fault})

    driver = Driver(**request["driver"])
    try:
        found = platforms([driver])
        answer({"stage": "load"})
        versions = [" ".join(p.version.split()) for p in found]
        # Of devices of one name, one stands for all.
        devices = {(p.name, d.name): d for p in found for d in p.get_devices()}
    except cl.Error as error:
        fail("list", f"no platform of it can be listed ({error})")
        return
    if not devices:
        fail("list", "it lists no device")
        return
    cards = [d for d in devices.values() if d.type & cl.device_type.GPU]
    all_cards = {"card_bytes": min(d.global_mem_size for d in cards)} if cards else {}
    facts = {"versions": versions, **(all_cards if len(cards) == len(devices) else {})}
    answer({"stage": "list", "facts": facts})
    key = _WITH_VECTORS if request["vectors"] else _PROGRAM
    fault = next(filter(None, (_fault(handle, key) for handle in devices.values())), "")
    if fault:
        fail("compute", fault)
        return
    answer({"stage": "compute"})
    if driver.header and request["vectors"]:
        faults = (_fault(handle, _DECLARED, driver.header) for handle in devices.values())
        fault = next(filter(None, faults), "")
        answer({"stage": "declare", "facts": {"declarations": fault}})


def _fault(handle: Any, key: ProgramKey, header: str = "") -> str:
    """What a device does wrong with a kernel; empty if nothing."""
    import pyopencl as cl

    try:
        off = _error(handle, key, header)
    except cl.Error as error:
        return f"device '{handle.name}' fails at a small kernel ({error})"
    if off < _TOLERANCE:
        return ""
    return f"device '{handle.name}' computes wrongly: a small kernel is {off:.2g} off"


def _error(handle: Any, key: ProgramKey, header: str) -> float:
    """The largest error of a kernel's results, relative to the largest result."""
    import pyopencl as cl

    context = cl.Context([handle])
    queue = cl.CommandQueue(context, handle)
    x = np.random.default_rng(0).uniform(-2.0, 2.0, _ITEMS).astype(np.float32)
    y = np.zeros_like(x)
    flags = cl.mem_flags
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
    target = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=y)
    # What another trial built, perhaps with a linker that is no longer there, does not count.
    key = replace(key, options=(*key.options, ("THIS_TRIAL", secrets.token_hex(8))))
    text, options = key.source(), key.build_options()
    if header:
        text, options = with_declarations(header, text, options)
    program = cl._cl._Program(context, text)
    built = built_program(program, " ".join(options), handle)
    function = cl.Kernel(built, "trial")
    function.set_args(source, target, _FACTOR)
    cl.enqueue_nd_range_kernel(queue, function, (_ITEMS,), (_GROUP,))
    cl.enqueue_copy(queue, y, target)
    queue.finish()
    wanted = _expected(x, [name for name, _ in key.options])
    return float(np.max(np.abs(y - wanted)) / np.max(np.abs(wanted)))


def _expected(values: np.ndarray[Any, Any], options: Sequence[str]) -> np.ndarray[Any, Any]:
    """What ``driver_trial.cl`` computes."""
    x = values.astype(np.float64)
    factor, there = float(_FACTOR), np.arange(len(x)) ^ 1
    result: np.ndarray[Any, Any] = factor * (x + x[there])
    if "VECTORS" in options:  # lanes 0, 1 and 3; lane 7 is x[3], and lanes 13 and 8 + 5 are x[5]
        result = 4.0 * factor * (x + 2.0 * x[there] + x[3])
    if "DECLARED" in options:
        groups = values.reshape(-1, _GROUP)
        halves = np.repeat(groups[:, 3].astype(np.float16).astype(np.float64), _GROUP)
        capped = np.tile(np.clip((np.arange(_GROUP) - 3) << 33, -3, 5), len(groups))
        rounded = np.clip(np.rint(np.float32(100.0) * values), -128, 127)
        result = result + np.exp(-np.abs(x)) + halves + capped + _GROUP + rounded
    return result
