"""Chain problems: the cost of each option of each task, and what a sequence of options takes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from partita.errors import PlanError

Array = np.ndarray[Any, Any]
ChainObjective = Literal["LATENCY", "THROUGHPUT"]
"""Minimized is the time of one request, or that of the busiest device in a pipeline of requests."""


@dataclass(frozen=True)
class Options:
    """The ways in which one task can be placed.

    Attributes:
        home: By option: the device that the task's input comes to and its output leaves from.
        us: By option and device: how long the task keeps the device busy.
        nbytes: By option and device: what the task keeps there all the time; above 0 wherever the
            option uses the device.
    """

    home: Array
    us: Array
    nbytes: Array

    @classmethod
    def single(cls, us: Sequence[float | None], nbytes: Sequence[int]) -> Options:
        """A task that is on one device as a whole; ``None`` where the device refuses it."""
        homes = [device for device, time in enumerate(us) if time is not None]
        times = np.zeros((len(homes), len(us)))
        memory = np.zeros((len(homes), len(us)), np.int64)
        for row, device in enumerate(homes):
            times[row, device] = us[device] or 0.0
            memory[row, device] = max(1, nbytes[device])
        return cls(np.array(homes, np.int64), times, memory)


@dataclass(frozen=True)
class TiedWeights:
    """Weights that two tasks read, such as a table of tokens that embedding and head share.

    A device on which both read them may hold them once.

    Attributes:
        tasks: Indices of the two, in order.
        nbytes: What they take; each of the two counts them among its own.
        reads: Of each of the two, by option and device: whether the option reads them there.
        within: By device: whether it holds them once in one submodel.
        across: By device: whether it does so even if tasks between are elsewhere.
    """

    tasks: tuple[int, int]
    nbytes: int
    reads: tuple[Array, Array]
    within: Array
    across: Array


@dataclass(frozen=True)
class Chain:
    """Tasks in their order, with what it takes to go from one to the next.

    Attributes:
        devices: Names.
        limits: By device: bytes that it has, or ``None``.
        fixed_bytes: By device: what it needs besides its tasks, if it has any.
        tasks: The options of each task.
        leaving_us: By boundary between two tasks, source and target device: how long the source is
            busy with handing over. Nothing where both are the same.
        arriving_us: The same of the target, launch included.
        first_us: By device: what it takes to begin there.
        last_us: By device: what it takes to end there.
        names: Of the tasks, for messages.
        tied: Weights that two of the tasks share.
    """

    devices: tuple[str, ...]
    limits: tuple[int | None, ...]
    fixed_bytes: tuple[int, ...]
    tasks: tuple[Options, ...]
    leaving_us: Array
    arriving_us: Array
    first_us: Array
    last_us: Array
    names: tuple[str, ...]
    tied: tuple[TiedWeights, ...] = ()

    def __post_init__(self) -> None:
        """Checks that everything fits together.

        Raises:
            PlanError: It does not.
        """
        count, boundaries = len(self.devices), max(0, len(self.tasks) - 1)
        shape = (boundaries, count, count)
        if not (len(self.limits) == len(self.fixed_bytes) == count):
            raise PlanError(f"A chain of {count} devices needs as many limits and fixed bytes.")
        if self.leaving_us.shape != shape or self.arriving_us.shape != shape:
            raise PlanError(
                f"A chain of {len(self.tasks)} tasks on {count} devices needs costs of moves of "
                f"shape {shape}; found {self.leaving_us.shape} and {self.arriving_us.shape}."
            )
        for name, options in zip(self.names, self.tasks, strict=True):
            if not len(options.home):
                raise PlanError(f"'{name}' has no device that takes it.")
        for tied in self.tied:
            shapes = [(len(self.tasks[task].home), count) for task in tied.tasks]
            if tied.tasks[0] >= tied.tasks[1] or [one.shape for one in tied.reads] != shapes:
                raise PlanError(
                    f"Tied weights of tasks {tied.tasks} need two in order, and who reads them in "
                    f"shapes {shapes}; found {[one.shape for one in tied.reads]}."
                )

    @property
    def unlimited(self) -> Chain:
        """The chain without limits of memory."""
        return replace(self, limits=(None,) * len(self.devices))


@dataclass(frozen=True)
class Use:
    """What a choice of options takes.

    Attributes:
        load_us: By device: how long it is busy.
        nbytes: By device: what it holds, its fixed bytes included.
    """

    load_us: Array
    nbytes: Array

    def value(self, objective: ChainObjective) -> float:
        """What is minimized."""
        return float(self.load_us.sum() if objective == "LATENCY" else self.load_us.max())


def use_of(chain: Chain, choice: Sequence[int]) -> Use:
    """What a choice takes.

    Args:
        chain: The tasks.
        choice: Option of each task.
    """
    rows = list(zip(chain.tasks, choice, strict=True))
    load = np.sum([options.us[row] for options, row in rows], axis=0)
    nbytes = np.sum([options.nbytes[row] for options, row in rows], axis=0)
    homes = [int(options.home[row]) for options, row in rows]
    load[homes[0]] += chain.first_us[homes[0]]
    load[homes[-1]] += chain.last_us[homes[-1]]
    for boundary, (source, target) in enumerate(itertools.pairwise(homes)):
        load[source] += chain.leaving_us[boundary, source, target]
        load[target] += chain.arriving_us[boundary, source, target]
    fixed = np.where(nbytes > 0, chain.fixed_bytes, 0)
    return Use(load, nbytes + fixed - held_once(chain, choice))


def held_once(chain: Chain, choice: Sequence[int]) -> Array:
    """By device: bytes of tied weights that two tasks count and the device holds once.

    Args:
        chain: The tasks.
        choice: Option of each task.
    """
    saved = np.zeros(len(chain.devices), np.int64)
    for tied in chain.tied:
        first, last = tied.tasks
        both = tied.reads[0][choice[first]] & tied.reads[1][choice[last]]
        homes = {int(chain.tasks[task].home[choice[task]]) for task in range(first, last + 1)}
        unbroken = np.array([homes == {device} for device in range(len(chain.devices))])
        saved += tied.nbytes * (both & tied.within & (tied.across | unbroken))
    return saved


def excess(chain: Chain, use: Use) -> dict[str, int]:
    """Device to the bytes that it lacks; empty if all limits are kept.

    Args:
        chain: The problem, with each device's limit in bytes.
        use: What a placement holds on each device.
    """
    return {
        name: int(held) - limit
        for name, held, limit in zip(chain.devices, use.nbytes, chain.limits, strict=True)
        if limit is not None and held > limit
    }


def blend(chains: Sequence[Chain], weights: Sequence[float]) -> Chain:
    """One chain that costs the weighted sum of several, which differ in their times alone."""

    def mixed(parts: Sequence[Array]) -> Array:
        pairs = zip(parts, weights, strict=True)
        return np.asarray(np.sum([part * share for part, share in pairs], axis=0))

    tasks = tuple(
        replace(alike[0], us=mixed([options.us for options in alike]))
        for alike in zip(*(chain.tasks for chain in chains), strict=True)
    )
    return replace(
        chains[0],
        tasks=tasks,
        leaving_us=mixed([chain.leaving_us for chain in chains]),
        arriving_us=mixed([chain.arriving_us for chain in chains]),
        first_us=mixed([chain.first_us for chain in chains]),
        last_us=mixed([chain.last_us for chain in chains]),
    )
