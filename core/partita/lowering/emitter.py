"""Emitters: functions that record how one operator is computed, with their options and signals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from partita.lowering.program import Operand, ProgramMaker

Emitted = Operand | None | tuple[Operand | None, ...] | list[Operand]


class Emitter(Protocol):
    """How a back-end computes one operator.

    Attributes:
        emit: Called as ``emit(builder, node, *operands)``; absent optional inputs are ``None``.
            Returns the output operand, or a tuple of them.
        folds: Whether it may run at compile time if all inputs are constants (false for random
            numbers and for operators with bodies).
    """

    @property
    def emit(self) -> Callable[..., Emitted]:
        """The emitter."""

    @property
    def folds(self) -> bool:
        """Whether constants fold."""


class NeedsValue(Exception):  # noqa: N818 - a signal to the specializer, not an error
    """An emitter needs the elements of an operand that is only known at run time."""

    def __init__(self, operand: Operand) -> None:
        super().__init__("the value is only known at run time")
        self.operand = operand


class OtherSizes(Exception):  # noqa: N818 - a signal to the engine, not an error
    """A step found that a result has another size than its program was made for.

    Programs of bodies may expect the sizes of the first iteration (:attr:`Target.expect`); the run
    is then repeated with a program of :attr:`ProgramMaker.plain`.
    """


@dataclass(frozen=True)
class GraphBody:
    """A body (of Loop or Scan) that a step runs repeatedly.

    For each request the engine replaces this argument of a step by a callable that takes arrays
    (the body's inputs, then ``captures``) and returns arrays. A device's engine may give it more
    methods for its kernels.

    Attributes:
        specializer: Makes the body's programs.
        inputs: Number of the body's own inputs.
        captures: Operands of the surrounding program that the body reads; passed after the body's
            own inputs.
    """

    specializer: ProgramMaker
    inputs: int
    captures: tuple[Operand, ...]
