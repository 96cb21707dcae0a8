"""Executors: the order in which a request's steps run, and which run at the same time.

To add one, put a module here whose ``EXECUTOR`` is an
:class:`~partita_hetero.executors.executor.Executor`; its name is then a value of
``HETERO_EXECUTOR``.
"""

from __future__ import annotations

import sys

from partita.system.modules import import_modules
from partita_hetero.executors.executor import Cancelled, Executor, RunStep
from partita_hetero.executors.linear import EXECUTOR as DEFAULT
from partita_hetero.executors.schedule import Schedule

__all__ = ["DEFAULT", "EXECUTORS", "Cancelled", "Executor", "RunStep", "Schedule", "executor_for"]


def _found() -> dict[str, Executor]:
    modules = import_modules(sys.modules[__name__])
    found: list[Executor] = [m.EXECUTOR for m in modules if hasattr(m, "EXECUTOR")]
    return {one.name: one for one in (DEFAULT, *found)}


EXECUTORS = _found()
"""By name, the default first."""


def executor_for(objective: str) -> Executor:
    """The first executor for what the planner makes small; the default one if there is none."""
    found = (one for one in EXECUTORS.values() if one.objective == objective)
    return next(found, DEFAULT)
