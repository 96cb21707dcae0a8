"""What a request did in its last run, as data: for reports, and for tests of how things are run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Host memory that a step works in.

    Attributes:
        address: Of its first byte.
        nbytes: Its size.
    """

    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """One step of a run.

    Attributes:
        name: What it computes or moves.
        how: What executes it: a kernel, ``run`` or ``bound call`` of a part, ``upload`` or
            ``download``.
        options: What the kernel was compiled with.
        writes: Host memory that holds its results and that later runs write again.
    """

    name: str
    how: str
    options: tuple[str, ...] = ()
    writes: tuple[MemoryRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """How a runner works since its last run.

    Attributes:
        steps: In the order of the plan.
        shared: Host memory that the device works in as it lies, without copies.
        parts: How the runners of submodels work, by the submodel's number.
    """

    steps: tuple[ExecutedStep, ...] = ()
    shared: tuple[MemoryRange, ...] = ()
    parts: Mapping[int, Execution] = field(default_factory=dict)

    def rows(self, part: int | None = None) -> Iterator[tuple[int | None, str, str]]:
        """Of every step, of submodels too: the submodel's number, what it does, what executes it.

        Steps of the request as a whole, which are runs and transfers, have ``None`` and come first.
        """
        for step in self.steps:
            yield part, step.name, step.how
        for number, execution in sorted(self.parts.items()):
            yield from execution.rows(number)
