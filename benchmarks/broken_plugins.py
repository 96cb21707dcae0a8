"""Runs the conformance kit on deliberately broken plugins and prints which check caught which.

    python benchmarks/broken_plugins.py                        # those that the kit's tests use
    python benchmarks/broken_plugins.py --unseen               # those of people who had not read it
    python benchmarks/broken_plugins.py --sets blind_numerics  # those of one module
    python benchmarks/broken_plugins.py --unseen --jobs 16     # so many at a time
    python benchmarks/broken_plugins.py --correct 20 --checks 'memory/*' 'lives/a_layer*'

Each of them is the correct device of ``tests/device/conformance`` with one realistic fault. Each
runs in a process of its own, first the checks that its fault should show in, then all others, until
one fails: it is missed only if it passes the whole kit. ``--all`` goes on behind the first that
fails, and prints the checks that none of the plugins fails. ``--correct`` runs the correct device
so many times instead, in such processes, and prints the checks that it fails.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from clean_children import results_of

FOLDER = Path(__file__).parents[1] / "tests" / "device" / "conformance"


class Measurement(NamedTuple):
    """What one child is asked for: the names of the checks that a device fails.

    Attributes:
        fault: The device's plugin.
        everything: Whether to make all checks, not only those up to the first that fails.
        draws: Random models per operator.
        innocent: Names of checks that the correct device fails too, which prove nothing.
        only: The names of the checks to make; all if nothing is given.
    """

    fault: type
    everything: bool
    draws: int
    innocent: frozenset = frozenset()
    only: frozenset | None = None


def plugins(sets):
    """The broken plugins of modules whose names match; without any, those of the kit's tests.

    They are the devices ``BROKEN`` that no other one is derived from, as frames are, and those that
    the tests name.
    """
    import test_broken_devices as tests
    from good_device import Good
    from test_unseen_devices import CAUGHT

    own = [path.stem for path in FOLDER.glob("broken_*.py")]
    unseen = [f"unseen.{path.stem}" for path in (FOLDER / "unseen").glob("*.py")]
    found = [
        cls
        for module in map(importlib.import_module, sorted(unseen if sets else own))
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Good) and cls.__module__ == module.__name__
    ]
    named = {f"{cls.__module__}.{cls.__name__}" for cls in (*tests.FAULTS, *tests.ALONE)}
    named |= {f"unseen.{module}.{name}" for module, name in CAUGHT}
    frames = {base for cls in found for base in cls.__mro__[1:]}
    return [
        cls
        for cls in found
        if cls.device_name == "BROKEN"
        and (cls not in frames or f"{cls.__module__}.{cls.__name__}" in named)
        and (not sets or any(fnmatchcase(cls.__module__, f"unseen.{pattern}") for pattern in sets))
    ]


def caught_by(asked):
    """The names of the checks that a device fails."""
    from partita_conformance.bench.bench import Target
    from partita_conformance.expectations import Expectations
    from partita_conformance.runs.collect import Selection, collect
    from partita_conformance.runs.running import InProcess, Isolated, run_expected

    logging.disable(logging.CRITICAL)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for what a plugin prints
    fault, everything, draws, innocent, only = asked
    target = Target(fault.device_name, f"{fault.__module__}:{fault.__name__}")
    state, _ = target.presence()
    if state == "broken":
        return ["(breaks when it is made)"]
    apart = fault.__name__ in ("Crashes", "Hangs")
    chosen = Selection(("random/Exp/0", "random/Relu/0") if apart else (), draws=draws)
    runner = Isolated(target, chosen, 10) if apart else InProcess(target)
    hint = Selection(tuple(fault.suites), draws=draws)
    checks = [
        check
        for check in collect(chosen)
        if check.name not in innocent and (only is None or check.name in only)
    ]
    first = {check.name for check in relevant(checks, fault)}
    checks.sort(key=lambda check: (not hint.takes(check.name), check.name not in first))
    names = []
    try:
        for check in checks:
            if run_expected(check, runner, Expectations()).bad:
                names.append(check.name)
                if not everything:
                    break
    finally:
        runner.close()
    return names


def relevant(checks, fault):
    """The checks that most likely see a fault: of its operators, or of form, and some others."""
    ops = {s.split("/")[1] for s in fault.suites if s.startswith("random/")} - {"*"}
    if ops:
        form = ("request", "query", "sharing", "chains")
        of_form = [one for one in checks if not one.op and one.suite in form]
        return [one for one in checks if one.op in ops] + of_form
    form = [one for one in checks if not one.op]
    swept = [one for one in checks if one.op]
    return form + swept[::20]


def judged(fault, everything, draws):
    """Asks for the checks that a broken plugin fails, until the correct device fails none of them.

    Yields:
        Measurements, each of which is answered with names of checks.

    Returns:
        The names, and those of checks that are left out since the correct device fails them too.
    """
    from good_device import Good

    innocent = frozenset()
    names = yield Measurement(fault, everything, draws)
    while wrong := (yield Measurement(Good, True, draws, only=frozenset(names))):
        innocent |= set(wrong)
        names = yield Measurement(fault, everything, draws, innocent)
    return names, innocent


def passed(patterns, draws):
    """Asks for the checks that the correct device fails, of those whose names match."""
    from good_device import Good

    from partita_conformance.runs.collect import Selection, collect

    only = frozenset(check.name for check in collect(Selection(tuple(patterns), draws=draws)))
    return (yield Measurement(Good, True, draws, only=only))


def main():
    """Prints a line per broken plugin, the count, and the checks that caught nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a broken plugin's module and name")
    parser.add_argument("--sets", nargs="+", default=(), help="modules of broken plugins")
    parser.add_argument(
        "--unseen", action="store_const", dest="sets", const=("*",), help="all that it had not seen"
    )
    parser.add_argument("--all", action="store_true", help="make all checks of each")
    parser.add_argument("--draws", type=int, default=4, help="random models per operator (4)")
    parser.add_argument("--every", type=int, default=1, help="take each n-th only")
    parser.add_argument("--jobs", type=int, default=1, help="plugins at a time (1)")
    parser.add_argument("--limit", type=float, default=600, help="seconds per plugin (600)")
    parser.add_argument("--correct", type=int, default=0, help="so many times the correct device")
    parser.add_argument("--checks", nargs="+", default=(), help="of the correct device (all)")
    args = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    from partita_conformance.bench.checks import registered
    from partita_conformance.inputs.node_cases import node_cases
    from partita_conformance.runs.collect import Selection, collect

    node_cases()  # made once, for all children, as are the draws of all checks
    collect(Selection(draws=args.draws))
    if args.correct:
        return correct(args)
    faults = [f for f in plugins(args.sets) if args.only in f"{f.__module__}.{f.__name__}"][
        :: args.every
    ]
    missed, used = [], set()
    tasks = [judged(fault, args.all, args.draws) for fault in faults]
    for number, (names, innocent), seconds in results_of(caught_by, tasks, args.jobs, args.limit):
        name = faults[number].__name__
        if innocent:
            wrong = ", ".join(sorted(innocent))
            print(f"{name}: left out, since the correct device fails it: {wrong}")
        if not names:
            missed.append(name)
        used |= set(names)
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        print(f"{name:40} {', '.join(names[:2]) or 'MISSED'}{more} ({seconds:.0f} s)", flush=True)
    share = 100 * (len(faults) - len(missed)) / max(1, len(faults))
    print(f"{len(faults) - len(missed)} of {len(faults)} broken plugins caught ({share:.1f} %)")
    print(f"missed: {', '.join(missed) or 'none'}")
    if args.all:
        idle = [check.name for check in registered() if check.name not in used]
        print(f"checks of form that none of them fails: {', '.join(idle) or 'none'}")
    return int(bool(missed))


def correct(args):
    """Prints which checks the correct device fails, each time that it is run."""
    bad = 0
    tasks = [passed(args.checks, args.draws) for _ in range(args.correct)]
    for number, names, seconds in results_of(caught_by, tasks, args.jobs, args.limit):
        bad += bool(names)
        print(f"{number:4} {', '.join(names) or 'passes'} ({seconds:.0f} s)", flush=True)
    print(f"the correct device passes {args.correct - bad} of {args.correct} times")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
