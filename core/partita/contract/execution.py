"""How a request executed its last run, as data: for reports, and for tests of the execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """A range of host memory that a step uses.

    Attributes:
        address: The address of its first byte.
        nbytes: Its size in bytes.
    """

    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """One step of a run.

    Attributes:
        name: The operation that it computes, or the tensor that it moves.
        how: What executes it: the name of a kernel, ``run`` or ``bound call`` of a submodel,
            ``upload`` or ``download``.
        options: The options that the kernel was compiled with.
        writes: Host memory that holds its results and that later runs overwrite.
    """

    name: str
    how: str
    options: tuple[str, ...] = ()
    writes: tuple[MemoryRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """How a runner executed its last run, and executes further ones.

    Attributes:
        steps: Its steps, in the order of the plan.
        shared: Host memory that the device uses in place, without copies.
        submodels: The same of the runners of submodels, by the submodel's number.
    """

    steps: tuple[ExecutedStep, ...] = ()
    shared: tuple[MemoryRange, ...] = ()
    submodels: Mapping[int, Execution] = field(default_factory=dict)

    def rows(self, submodel: int | None = None) -> Iterator[tuple[int | None, str, str]]:
        """Submodel's number, name and ``how`` of every step, those of submodels included.

        Steps of the request as a whole, which are runs and transfers, come first; their number is
        ``None``.
        """
        for step in self.steps:
            yield submodel, step.name, step.how
        for number, execution in sorted(self.submodels.items()):
            yield from execution.rows(number)
