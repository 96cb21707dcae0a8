"""Which kernels a driver builds, runs and computes rightly: tried once, in processes of their own.

Kernels come in families, and each family in forms. When a model first needs a family, its kernels
are built and run on small tensors by another process, which may die of it, and its numbers are
checked. The first form that passes is used; if none does, the device refuses the operators of the
family. What matrix units do is tried alike, and not used at all if it fails. Verdicts are kept on
disk per driver, device, processor and source.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import (
    CompileError,
    DeviceMemoryError,
    InferError,
    UnsupportedOpError,
    advised,
)
from partita.lowering import Graph
from partita.progress import progress
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.thread_limit import is_thread_refused
from partita_opencl.device.device import Device
from partita_opencl.drivers import trial_seconds, verdicts
from partita_opencl.drivers.trial_process import Answer, Json, TrialProcess
from partita_opencl.drivers.verdicts import Verdict
from partita_opencl.launches.work_sizes import Form, Tuning
from partita_opencl.properties import OpenClProperties, Precision, Tiling
from partita_opencl.trials import (
    kernel_checks,
    matrix_unit_checks,
    own_device,
    standing_processes,
)
from partita_opencl.trials.matrix_unit_checks import Units
from partita_opencl.trials.standing_processes import NoProcessError

_log = logging.getLogger(__name__)

_TOLERANCES = {Precision.F32: 1e-4, Precision.F16: 1e-2, Precision.BF16: 6e-2}
"""Largest relative errors of a family's results."""

FORMED = frozenset(
    (
        *("matmul", "block_products", "convolution", "depthwise", "convolution_transposed"),
        *("mixture", "normalization", "lrn", "cache_attention", "recurrent", "roi_align"),
    )
)
"""Families whose kernels change with the form: they sum products."""

_UNTRIED = "kernels are tried without matrix units first"


@dataclass(frozen=True)
class Mode:
    """What decides, beside the family, which kernels compute an operation.

    Attributes:
        local_tiles: Whether work is cut for local memory.
        precision: What is computed in: float32, or halves of either kind.
    """

    local_tiles: bool
    precision: Precision


def mode_of(device: Device, properties: OpenClProperties, graph: Graph) -> Mode:
    """Which kernels compute a graph on a device.

    Args:
        device: The device.
        properties: Those of the compile.
        graph: The model's graph; float16 in it decides for kernels of half precision.
    """
    precision = properties.INFERENCE_PRECISION_HINT
    if any(v.dtype == np.float16 for node in graph.nodes for v in node.outputs if v):
        precision = Precision.F16
    elif precision is Precision.BF16X3:
        precision = Precision.F32
    return Mode(Tuning.of(device.limits, properties.TILING).local_tiles, precision)


@dataclass(frozen=True)
class Fitness:
    """What a device can do with a family of kernels.

    Attributes:
        form: The form to use.
        reason: Why there is none; empty if there is.
    """

    form: Form = Form.USUAL
    reason: str = ""


@dataclass(frozen=True)
class _Task:
    """One thing to try: a family of kernels in a form, or a part of it or of what units do."""

    family: str
    form: Form
    part: int | None = None


under_trial: _Task | None = None
"""What this process tries, if it is one that tries."""

_known: dict[tuple[str, Mode, str], Fitness] = {}
_lock = InterruptSafeLock()

_objections: dict[tuple[str, Units, int], str] = {}
"""What was wrong in parts of trials of a device's units; empty for those that passed."""
_units_lock = InterruptSafeLock()


def fitness(device: Device, mode: Mode, families: Iterable[str]) -> dict[str, Fitness]:
    """What the device can do with some families; those without a verdict are tried now.

    Families without kernels of their own are fit.

    Args:
        device: The device.
        mode: As :func:`mode_of` gives it.
        families: Names of families; see `family_of`.

    Returns:
        What was found of each; it takes seconds where a family has to be tried.
    """
    wanted = dict.fromkeys(families)
    if under_trial is not None:
        return {family: Fitness(under_trial.form) for family in wanted}
    with _lock:
        new = [
            f for f in wanted if f in kernel_checks.CHECKS and _key(device, mode, f) not in _known
        ]
        if new:
            _known.update(_decide(device, mode, new))
        return {family: _known.get(_key(device, mode, family), Fitness()) for family in wanted}


def forget() -> None:
    """Lets verdicts be read again from disk."""
    with _lock, _units_lock:
        _known.clear()
        _objections.clear()


def _key(device: Device, mode: Mode, family: str) -> tuple[str, Mode, str]:
    return device.id, mode, family


def _decide(
    device: Device, mode: Mode, families: Sequence[str]
) -> dict[tuple[str, Mode, str], Fitness]:
    found: dict[str, Fitness] = {}
    left = list(families)
    faults: dict[str, tuple[str, Path | None]] = {}
    hanging: set[str] = set()
    for form in Form:
        others = form is not Form.USUAL
        tried = [f for f in left if not others or (f in FORMED and f not in hanging)]
        tasks = [_Task(f, form, part) for f in tried for part in _parts(device, f)]
        bad: dict[str, tuple[str, Path | None]] = {}
        for task, verdict in _verdicts(device, mode, tasks).items():
            if not verdict.good:
                bad.setdefault(task.family, (verdict.reason, verdict.file))
            if verdict.facts.get("hangs"):
                hanging.add(task.family)
        found |= {family: Fitness(form) for family in tried if family not in bad}
        faults = bad | faults
        left = [family for family in left if family not in found]
    for family, (reason, file) in faults.items():
        _tell(device, family, reason, found.get(family), file)
    found |= {family: Fitness(reason=faults[family][0]) for family in left}
    return {_key(device, mode, family): fit for family, fit in found.items()}


def _parts(device: Device, family: str) -> Sequence[int | None]:
    """What of a family is tried apart: a graphics card's compiler has little use for threads."""
    return (None,) if device.limits.is_cpu else range(kernel_checks.parts(family))


def _tell(
    device: Device, family: str, reason: str, instead: Fitness | None, file: Path | None
) -> None:
    """Logs what a device fails at, what is used instead, and how to have it tried again."""
    again = "" if file is None else f" To try it again, delete '{file}' and those beside it."
    where = f"Device 'OPENCL.{device.id}' ({device.handle.name.strip()})"
    if instead is None:
        _log.warning("%s leaves out %s: %s.%s", where, _title(family), reason, again)
    else:
        text = "%s computes %s with %s, since as usual: %s.%s"
        _log.info(text, where, _title(family), instead.form, reason, again)


def _verdicts(device: Device, mode: Mode, tasks: Sequence[_Task]) -> dict[_Task, Verdict]:
    """The verdicts on tasks, tried where there are none."""
    found: dict[_Task, Verdict] = {}
    for task in tasks:
        known = verdicts.read(*_subject(device, mode, task))
        if known is not None:
            found[task] = known
    missing = [task for task in tasks if task not in found]
    missing.sort(key=lambda task: task.family not in FORMED)  # those have the most programs
    if not missing:
        return found
    count = standing_processes.best_count(device, len(missing))
    if count > 1:
        standing_processes.open_ahead(device, count)
    failed: dict[str, tuple[Verdict, bool]] = {}

    def tried(task: _Task) -> tuple[Verdict, bool]:
        if task.family not in failed:
            verdict, lasts = _tried(device, mode, task)
            if verdict.good:
                return verdict, lasts
            failed[task.family] = verdict, lasts
        return failed[task.family]  # of what fails in one part, the others need no trial

    with (
        trial_seconds.logged(f"{len(missing)} trials of kernels, {count} at a time,"),
        progress("trying the OpenCL driver's kernels, once", len(missing)) as advance,
        standing_processes.crew(count) as pool,
    ):
        results = pool.map(tried, missing)
        for done, (task, (verdict, lasts)) in enumerate(zip(missing, results, strict=True), 1):
            subject = _subject(device, mode, task)
            found[task] = verdicts.write(*subject, verdict) if lasts else verdict
            advance(done)
    return found


def _subject(device: Device, mode: Mode, task: _Task) -> tuple[str, list[str]]:
    """What a verdict is on, and everything that it depends on."""
    subject = f"{_title(task.family)} of OPENCL ({device.handle.name.strip()})"
    marks = [device.identity, *device.driver.marks()]
    what = (repr(mode), task.form, task.family, str(task.part))
    return subject, [*marks, *what, source_digest()]


def _title(family: str) -> str:
    return f"kernels of family '{family}'" if family in kernel_checks.CHECKS else family


def source_files() -> list[Path]:
    """The files that verdicts depend on."""
    package = Path(__file__).parents[1]
    folders = "cl/*.cl", "emitters/**/*.py", "launches/*.py", "tuning/*.py"
    patterns = *folders, "trials/*_checks.py", "drivers/builtin_functions.py"
    return [file for pattern in patterns for file in sorted(package.glob(pattern))]


@functools.cache
def source_digest() -> str:
    """The digest of all kernels, of what launches them and of what they are checked by."""
    digest = hashlib.sha256()
    for file in source_files():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _tried(device: Device, mode: Mode, task: _Task) -> tuple[Verdict, bool]:
    """The verdict of a trial, and whether another one would say the same.

    A process in which something failed tries nothing else: it may have died of it, and PoCL
    answers wrongly after a failed build.
    """
    with standing_processes.seat(device):
        try:
            process = standing_processes.lend(device)
            return _asked(device, process, mode, task)
        except NoProcessError as error:
            return Verdict(str(error)), False


def _asked(device: Device, process: TrialProcess, mode: Mode, task: _Task) -> tuple[Verdict, bool]:
    """What a process says that was lent, which is given back or closed."""
    named = [task.family, task.form, task.part]
    request = {"task": named, "local_tiles": mode.local_tiles, "precision": mode.precision}
    process.ask(request, f"the trial of {_title(task.family)} on device 'OPENCL.{device.id}'")
    answer = standing_processes.next_answer(process)
    if answer is not None:
        fault = str(answer["fault"])
        if fault:
            process.close()
        else:
            standing_processes.take_back(device, process)
        return Verdict(fault), True
    process.close()
    fault = advised(process.fault or "the process that tried it ended early", process.advice)
    return Verdict(fault, {"hangs": process.hangs}), not process.is_transient


def objections(device: Device, wanted: Mapping[Units, Iterable[int]]) -> dict[Units, str]:
    """Why each of some units is not used; empty if it is. What was not tried is tried now.

    The parts of all trials are shared by processes. What a trial said against units is told once
    in the log. Units that failed at one part are used for nothing in this process.

    Args:
        device: The device.
        wanted: By the units the parts of their trial that are needed: see
            ``needed_parts.py``. Of those without parts it is what is known.
    """
    if under_trial is not None:
        return dict.fromkeys(wanted, "" if under_trial.family in list(Units) else _UNTRIED)
    with _units_lock:
        tasks = [  # the largest tiles first, which take longest
            _Task(units, Form.USUAL, part)
            for units in reversed(list(wanted))
            for part in sorted(wanted[units], reverse=True)
            if (device.id, units, part) not in _objections
        ]
        mode = Mode(local_tiles=True, precision=Precision.F16)
        found = _verdicts(device, mode, tasks) if tasks else {}
        before = {units: _objection(device, units) for units in wanted}
        for task, verdict in found.items():
            _objections[device.id, Units(task.family), task.part or 0] = verdict.reason
        reasons = {units: _objection(device, units) for units in wanted}
        for units, reason in reasons.items():
            if reason and not before[units]:
                text = "Device 'OPENCL.%s' computes without its %s: %s"
                _log.warning(text, device.id, units, reason)
        return reasons


def _objection(device: Device, units: Units) -> str:
    """What is known to be wrong with units; empty if nothing."""
    of_units = (r for (name, one, _), r in _objections.items() if (name, one) == (device.id, units))
    return next(filter(None, of_units), "")


def perform(device: Device, request: Json, answer: Answer) -> None:
    """Tries one thing, in a process of its own.

    What it raises is no fault of the driver, as when a file of the environment is missing.
    """
    import pyopencl as cl

    global under_trial
    precision = Precision(request["precision"])
    tiling = Tiling.LOCAL if request["local_tiles"] else Tiling.REGISTERS
    family, form, part = request["task"]
    under_trial = _Task(family, Form(form), part)
    try:
        if family in list(Units):
            fault = matrix_unit_checks.fault(device.id, Units(family), part)
        else:
            fault = _fault(family, part, device.id, precision, tiling)
    except (DeviceMemoryError, cl.MemoryError):
        raise  # another time there may be room
    except (CompileError, InferError, UnsupportedOpError, cl.Error) as error:
        if _is_of_the_system(error.__cause__):
            raise  # the same
        fault = " ".join(str(error).split())
    answer({"fault": fault})


def _is_of_the_system(cause: BaseException | None) -> bool:
    """Whether a process got no memory, file or thread: no kernel is left out for that."""
    return isinstance(cause, (MemoryError, OSError)) or is_thread_refused(cause)


def _fault(
    family: str, part: int | None, device_id: str, precision: Precision, tiling: Tiling
) -> str:
    sample = kernel_checks.sample(family, part)
    config = {"INFERENCE_PRECISION_HINT": precision, "TILING": tiling}
    compiled = own_device.compile_model(sample.model(), device_id, config)
    results = compiled.create_infer_request().infer(sample.feeds)
    arrays: dict[str, Any] = {name: np.array(results[name]) for name in sample.expected}
    error = sample.error(arrays)
    return "" if error < _TOLERANCES[precision] else f"results are {error:.2g} off"
