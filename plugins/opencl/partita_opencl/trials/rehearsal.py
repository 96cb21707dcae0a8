"""Launches of a plan, made once by another process before this one builds their programs.

A family of kernels is tried by small models. What a driver dies of may still be a fused chain, or a
kernel made for certain shapes. So each launch that the driver never made is built and run on zeros
by a process that may die of it; the numbers are the families' business. Verdicts are kept on disk
per source, options, kernel and group size. The process stays for some seconds, for the next model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.errors import CompileError, advised
from partita.lowering import Step
from partita.progress import progress
from partita.system.threads import joint_work
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_opencl.device.device import Device
from partita_opencl.drivers import driver_trial, trial_seconds, verdicts
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.drivers.trial_process import Json, TrialProcess
from partita_opencl.drivers.verdicts import Verdict
from partita_opencl.launches.steps import Launch, TensorMapBuffer
from partita_opencl.trials import rehearsed_launch, standing_processes
from partita_opencl.trials.standing_processes import NoProcessError

_SMALL_GRID = 1 << 16
"""PoCL makes other code for launches of fewer items in each dimension."""


@dataclass(frozen=True)
class Failure:
    """A launch that the driver fails at.

    Attributes:
        names: The operations that it computes.
        reason: Why it fails.
        lasts: Whether it would fail another time: whether the verdict is kept on disk.
    """

    names: frozenset[str]
    reason: str
    lasts: bool


class LaunchError(CompileError):
    """The driver fails at launches of a plan.

    Attributes:
        failures: Those launches.
        reasons: Why, by the name of each operation that they compute.
    """

    def __init__(self, device: Device, failures: Sequence[Failure]) -> None:
        self.failures = failures
        self.reasons = {name: one.reason for one in failures for name in sorted(one.names)}
        listed = "; ".join(f"'{name}': {reason}" for name, reason in list(self.reasons.items())[:5])
        super().__init__(
            f"The driver of device 'OPENCL.{device.id}' fails at {len(self.reasons)} operations: "
            f"{listed}. Run them on another device."
        )


def require(device: Device, steps: Sequence[Step]) -> None:
    """Has those launches made by another process that the driver never made.

    Args:
        device: The device.
        steps: The launches with their arguments.

    Raises:
        LaunchError: Some fail, or no process can be started to make them.
    """
    if not driver_trial.has_adopted():  # else this process is itself one that tries
        _require(device, steps, [_digest(step) for step in steps])


def _require(device: Device, steps: Sequence[Step], digests: Sequence[str]) -> None:
    found = stage_of(device.id).verdicts(device, dict(zip(digests, steps, strict=True)))
    failures = []
    for digest, step in zip(digests, steps, strict=True):
        verdict = found[digest]
        if verdict.reason:
            names = frozenset((step.op.name, *step.op.origins))
            failures.append(Failure(names, verdict.reason, verdict.file is not None))
    if failures:
        raise LaunchError(device, failures)


@contextlib.contextmanager
def beside(
    device: Device,
    steps: Sequence[Step],
    nbytes: Callable[[], int],
    further: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Has launches made, as :func:`require`, while the block runs; before it without the room.

    Those that were all made before are asked for nothing else, as those of a new shape are.

    Args:
        device: The device.
        steps: The launches with their arguments.
        nbytes: Tells what of the device's memory the block may take; it makes no launch.
        further: Has something else tried at the same time; may raise.

    Raises:
        LaunchError: Some fail, or no process can be started to make them.
    """
    if driver_trial.has_adopted():
        yield
        return
    digests = [_digest(step) for step in steps]
    is_known = further is None and stage_of(device.id).has_all(digests)
    trials: list[Callable[[], None]] = [functools.partial(_require, device, steps, digests)]
    if further is not None:
        trials.append(further)
    if is_known or not standing_processes.has_room(device, nbytes()):
        for trial in trials:
            trial()
        yield
        return
    with joint_work.workers(len(trials)) as pool:
        tried = [pool.submit(trial) for trial in trials]
        yield
        for one in reversed(tried):
            one.result()


_stages: dict[str, _Stage] = {}
"""By the device's id."""


def stage_of(device_id: str) -> _Stage:
    """Where a device's launches are rehearsed; each device has one."""
    return _stages.setdefault(device_id, _Stage())


def forget() -> None:
    """Lets verdicts be read again from disk."""
    _stages.clear()


class _Stage:
    """What is known of one device's launches."""

    def __init__(self) -> None:
        self._lock = InterruptSafeLock()
        self._known: dict[str, Verdict] = {}

    def has_all(self, digests: Iterable[str]) -> bool:
        """Whether there is a verdict on each launch."""
        return all(digest in self._known for digest in digests)

    def verdicts(self, device: Device, steps: Mapping[str, Step]) -> Mapping[str, Verdict]:
        """The verdict on each launch; those without one are made now."""
        with self._lock:
            found = {digest: self._known[digest] for digest in steps if digest in self._known}
            marks = _marks(device) if len(found) < len(steps) else []
            missing = []
            for digest, step in steps.items():
                if digest in found:
                    continue
                kept = verdicts.read(_title(device, step), [*marks, digest])
                if kept is None:
                    missing.append(digest)
                else:
                    found[digest] = self._known[digest] = kept
            launches = [rehearsed_launch.to_json(steps[digest]) for digest in missing]
            results = self._make(device, launches) if launches else []
            for digest, (verdict, lasts) in zip(missing, results, strict=True):
                if lasts:
                    title = _title(device, steps[digest])
                    verdict = verdicts.write(title, [*marks, digest], verdict)
                    self._known[digest] = verdict
                found[digest] = verdict
            return found

    def _make(self, device: Device, launches: Sequence[Json]) -> list[tuple[Verdict, bool]]:
        """Verdicts on launches, and whether they would be the same another time.

        A graphics card's compiler has little use for threads, so processes share the programs; one
        of a processor uses them itself.
        """
        shares: dict[str, list[int]] = {}
        for index, launch in enumerate(launches):
            program = "" if device.limits.is_cpu else json.dumps(launch["program"])
            shares.setdefault(program, []).append(index)
        count = standing_processes.best_count(device, len(shares))
        if count > 1:
            standing_processes.open_ahead(device, count)
        found: dict[int, tuple[Verdict, bool]] = {}
        with (
            trial_seconds.logged(f"{len(launches)} launches made first, {count} processes,"),
            progress("trying the OpenCL driver with this model, once", len(launches)) as advance,
            standing_processes.crew(count) as pool,
        ):

            def make(share: list[int]) -> None:
                for index, result in zip(share, _made(device, launches, share), strict=True):
                    found[index] = result
                    advance(len(found))

            list(pool.map(make, shares.values()))
        return [found[index] for index in range(len(launches))]


def _made(
    device: Device, launches: Sequence[Json], share: Sequence[int]
) -> Iterator[tuple[Verdict, bool]]:
    """Verdicts on some of the launches, in their order, by one process.

    Programs are built side by side first. If that fails, launches are made one by one, and by
    another process after each that fails: PoCL answers wrongly after a failed build. So they are
    after one that runs for long, which nothing but the end of its process ends.
    """
    left, side_by_side = [launches[index] for index in share], True
    while left:
        try:
            process = standing_processes.lend(device)
            answers = _ask(process, left, side_by_side)
        except NoProcessError as error:
            yield from [(Verdict(str(error)), False)] * len(left)
            return
        del left[: len(answers)]
        if not left and not answers[-1]["fault"]:
            standing_processes.take_back(device, process)
        else:
            process.close()
        yield from ((Verdict(str(a["fault"])), bool(a["lasts"])) for a in answers)
        side_by_side = False


def _ask(process: TrialProcess, launches: list[Json], side_by_side: bool) -> list[Json]:
    """What the process answers on launches, in their order; one that fails is the last.

    There is no answer on one that runs for long: it is cut down among the launches.
    """
    doing = "kernels to be built and run for the first time"
    process.ask({"launches": launches, "side_by_side": side_by_side}, doing)
    found: list[Json] = []
    for answer in standing_processes.answers(process):
        if "fault" in answer:
            found.append(answer)
        if "unfinished" in answer:
            launches[len(found)] = rehearsed_launch.cut(launches[len(found)])
            return found
        if "again" in answer or answer.get("fault") or len(found) == len(launches):
            return found
    process.close()
    if not side_by_side:  # it died of this launch
        fault = advised(process.fault or "the process that tried it ended early", process.advice)
        found.append({"fault": fault, "lasts": not process.is_transient})
    return found


def _title(device: Device, step: Step) -> str:
    return f"kernel '{_launch(step).kernel}' of OPENCL ({device.handle.name.strip()})"


def _marks(device: Device) -> list[str]:
    return [device.identity, *device.driver.marks()]


def _launch(step: Step) -> Launch:
    if not isinstance(step.fn, Launch):
        raise TypeError(f"{step.fn!r} is not a launch")
    return step.fn


def _digest(step: Step) -> str:
    """The digest of what the code of a launch depends on."""
    launch = _launch(step)
    programs = launch.program, *(a.program for a in step.args if isinstance(a, TensorMapBuffer))
    whole, group = launch.sizes
    return _code_digest(programs, launch.kernel, group, max(whole, default=0) < _SMALL_GRID)


@functools.lru_cache(4096)
def _code_digest(
    programs: tuple[ProgramKey, ...], kernel: str, group: tuple[int, ...], is_small: bool
) -> str:
    parts = [text for key in programs for text in (key.source(), *key.build_options())]
    parts += [kernel, repr(group), str(is_small)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
