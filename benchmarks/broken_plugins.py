"""Runs the conformance kit on deliberately broken plugins and prints which check caught which.

    python benchmarks/broken_plugins.py                        # those that the kit's tests use
    python benchmarks/broken_plugins.py --unseen               # those of people who had not read it
    python benchmarks/broken_plugins.py --sets blind_numerics  # those of one module
    python benchmarks/broken_plugins.py --unseen --jobs 16     # so many at a time

Each of them is the correct device of ``tests/device/conformance`` with one realistic fault. Each
runs in a process of its own, first the checks that its fault should show in, then all others, until
one fails: it is missed only if it passes the whole kit. ``--all`` goes on behind the first that
fails, and prints the checks that none of the plugins fails.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import connection
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "tests" / "device" / "conformance"


def plugins(sets):
    """The broken plugins of modules whose names match; without any, those of the kit's tests."""
    import broken_form
    import test_broken_devices as tests

    if not sets:
        return [*tests.FAULTS, *tests.ALONE]
    unseen = FOLDER / "unseen"
    modules = sorted({path.stem for pattern in sets for path in unseen.glob(f"{pattern}.py")})
    found = [
        cls
        for module in (importlib.import_module(f"unseen.{name}") for name in modules)
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, broken_form.Broken)
        and cls.__module__ == module.__name__
    ]
    frames = {base for cls in found for base in cls.__mro__[1:]}
    return [cls for cls in found if cls not in frames]


def caught_by(fault, everything, draws, innocent, only, pipe):
    """Sends the names of the checks that a broken plugin fails: of ``only``, none ``innocent``."""
    from partita_conformance.bench.bench import Target
    from partita_conformance.expectations import Expectations
    from partita_conformance.runs.collect import Selection, collect
    from partita_conformance.runs.running import InProcess, Isolated, run_expected

    logging.disable(logging.CRITICAL)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for what a plugin prints
    target = Target(fault.device_name, f"{fault.__module__}:{fault.__name__}")
    state, _ = target.presence()
    if state == "broken":
        pipe.send(["(breaks when it is made)"])
        return
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
    pipe.send(names)


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


def measured(fault, everything, draws, limit, innocent=(), only=None):
    """Names of the checks that a broken plugin fails, made in a child of this process.

    Args:
        fault: The broken plugin.
        everything: Whether to make all checks, not only those up to the first that fails.
        draws: Random models per operator.
        limit: Seconds.
        innocent: Names of checks that the correct device fails too, which prove nothing.
        only: The names of the checks to make; all if nothing is given.

    Returns:
        The names, and how many seconds it took.
    """
    start = time.perf_counter()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    args = fault, everything, draws, innocent, only, theirs
    child = context.Process(target=caught_by, args=args)
    child.start()
    theirs.close()
    try:
        connection.wait([ours, child.sentinel], limit)
        names = ours.recv() if ours.poll() else [] if child.is_alive() else ["(ends the process)"]
    except EOFError:
        names = ["(ends the process)"]
    child.join(2)
    if child.is_alive():
        child.kill()
        child.join()
    return names, time.perf_counter() - start


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
    args = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    from partita_conformance.bench.checks import registered
    from partita_conformance.inputs.node_cases import node_cases
    from partita_conformance.runs.collect import Selection, collect

    node_cases()  # made once, for all children, as are the draws of all checks
    collect(Selection(draws=args.draws))
    faults = [f for f in plugins(args.sets) if args.only in f"{f.__module__}.{f.__name__}"][
        :: args.every
    ]
    from good_device import Good

    Good.suites = ("*",)
    missed, used = [], set()

    def measure(fault, innocent=()):
        return measured(fault, args.all, args.draws, args.limit, innocent)

    with ThreadPoolExecutor(args.jobs) as pool:
        tasks = {pool.submit(measure, fault): fault for fault in faults}
        for task in as_completed(tasks):
            fault, (names, seconds) = tasks[task], task.result()
            innocent = set()
            while wrong := measured(Good, True, args.draws, args.limit, only=set(names))[0]:
                print(f"left out, since the correct device fails it: {', '.join(wrong)}")
                innocent |= set(wrong)
                names, seconds = measure(fault, innocent)
            if not names:
                missed.append(fault.__name__)
            used |= set(names)
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            line = f"{fault.__name__:40} {', '.join(names[:2]) or 'MISSED'}{more} ({seconds:.0f} s)"
            print(line, flush=True)
    share = 100 * (len(faults) - len(missed)) / max(1, len(faults))
    print(f"{len(faults) - len(missed)} of {len(faults)} broken plugins caught ({share:.1f} %)")
    print(f"missed: {', '.join(missed) or 'none'}")
    if args.all:
        idle = [check.name for check in registered() if check.name not in used]
        print(f"checks of form that none of them fails: {', '.join(idle) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
