"""What an executor is: how it runs a schedule, and what planning may count on."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, Literal

from partita.errors import InferCancelledError
from partita_hetero.executors.schedule import Schedule

RunStep = Callable[[int], None]
"""Runs the step of an index; must be safe to call at the same time for independent steps."""

Cancelled = Callable[[], bool]
"""Whether the request is to stop."""


class Executor(abc.ABC):
    """A way to run the steps of a plan."""

    name: ClassVar[str]
    """The value of ``HETERO_EXECUTOR``."""

    summary: ClassVar[str]
    """What it does, in some words, for the property's description."""

    one_at_a_time: ClassVar[bool] = True
    """Whether steps never run at the same time, so that all may work in the same scratch memory."""

    keeps_order: ClassVar[bool] = False
    """Whether steps run in the plan's order, so that tensors that are dead by then share memory."""

    objective: ClassVar[Literal["LATENCY", "PARALLEL"]] = "LATENCY"
    """What the planner makes small for it: the sum of all steps, or the longest path."""

    @abc.abstractmethod
    def run(self, schedule: Schedule, run: RunStep, cancelled: Cancelled) -> None:
        """Runs every step once, after those that it waits for.

        Raises:
            InferCancelledError: The request was cancelled.
        """


def check_cancelled(cancelled: Cancelled) -> None:
    """Raises ``InferCancelledError`` if the request is to stop."""
    if cancelled():
        raise InferCancelledError("The request was cancelled.")
