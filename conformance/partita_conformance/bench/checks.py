"""The register of checks: each is a function of a bench, found by its name ``suite/check``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from partita_conformance.bench.bench import Bench


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: ``suite/check``; expectations match it.
        run: Returns if the device passes; raises one of the errors of
            :mod:`partita_conformance.judging.requirements`, or anything else
            that the device let through, if it does not.
        values: Whether it compares numbers, so that a device of the right form and wrong numbers
            must fail it.
        summary: What it requires, in a sentence.
        op: For checks of one operator, which.
        dtype: For checks of one operator, the element type of its first input.
    """

    name: str
    run: Callable[[Bench], None] = field(repr=False)
    values: bool = False
    summary: str = ""
    op: str = ""
    dtype: str = ""

    @property
    def suite(self) -> str:
        """The part before the first slash."""
        return self.name.partition("/")[0]


_registered: list[Check] = []


def check(
    suite: str, values: bool = False
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Registers a function as check ``suite/function_name``; its docstring's first line is shown.

    Args:
        suite: Which group it belongs to.
        values: Whether it compares numbers.
    """

    def register(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        lines = (function.__doc__ or function.__name__).strip().splitlines()
        name = f"{suite}/{function.__name__}"
        _registered.append(Check(name, function, values, lines[0].rstrip(".")))
        return function

    return register


def registered() -> list[Check]:
    """All checks that :func:`check` registered, in the order of their modules."""
    return list(_registered)


def names_of(checks: Iterable[Check]) -> list[str]:
    """The checks' names in order."""
    return [one.name for one in checks]
