"""One child process of the campaign: runs cases one after another, and tells of each.

Each line to stdout is JSON: ``{"seed", "what"}`` when a case begins, ``{"seed", "outcome"}`` when
it ends. A process that dies has told which case it was at.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import resource
import sys
import traceback
import warnings

from partita.errors import PartitaError

from .patience import OutOfTime

RAW = (KeyError, IndexError, AttributeError, TypeError, ArithmeticError, AssertionError)
"""What an error of ours should not stand for: the cause was not understood."""

GENERIC = re.compile(
    r"failed to compile|failed on model|failed to answer|failed: |not a valid O\w+ \w+: \w+Error: "
)
"""What messages hold that name neither an operation nor what is wrong with it."""


def outcome_of(error):
    """``refused``, ``wrapped:...`` for one that hides a raw error, ``raw:...`` or ``memory``."""
    if not isinstance(error, PartitaError):
        own = isinstance(error, MemoryError) and raised_by_a_case(error)
        return "memory" if own else f"raw:{type(error).__name__}"
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    is_raw = isinstance(cause, RAW) and not isinstance(cause, PartitaError)
    if is_raw and GENERIC.search(str(error)):
        return f"wrapped:{type(cause).__name__}"
    return "refused"


def raised_by_a_case(error):
    """Whether it was the campaign that asked for too much: a copy beside a guard page."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not any(frame.f_globals.get("__name__", "").startswith("partita") for frame in frames)


def tell(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main(kind, first, count, gigabytes, processors):
    """Runs ``count`` cases from a seed on, on these processors; on all if none is named."""
    if processors:
        os.sched_setaffinity(0, processors)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not part of what is told
    sys.stdout = os.fdopen(out, "w")
    limit = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"tests.campaign.{kind}")
    for seed in range(first, first + count):
        tell(seed=seed, what="")
        try:
            for what in module.case(seed):
                tell(seed=seed, what=what)
            tell(seed=seed, outcome="ok")
        except OutOfTime:
            tell(seed=seed, outcome="ended")
        except Exception as error:  # noqa: BLE001 - what it is, is the outcome
            outcome = outcome_of(error)
            told = {} if outcome == "refused" else {"error": shortened(error)}
            tell(seed=seed, outcome=outcome, **told)


def shortened(error):
    """The error and where it comes from, in few lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "".join(lines)[-1200:]


if __name__ == "__main__":
    kind, first, count, gigabytes, *processors = sys.argv[1:]
    main(kind, int(first), int(count), float(gigabytes), [int(number) for number in processors])
