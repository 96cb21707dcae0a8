"""Runs the conformance kit on deliberately broken plugins and prints which check caught which.

    python benchmarks/broken_plugins.py            # those that the kit's tests use
    python benchmarks/broken_plugins.py --unseen   # those written before its checks were read

Each of them is the correct device of ``tests/device/conformance`` with one realistic fault. Each
runs in a process of its own, first the checks that its fault should show in, then others, until one
fails. ``--all`` makes all checks, and prints those that none of the plugins fails.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import time
from pathlib import Path

UNSEEN = [
    f"unseen_{name}"
    for name in [
        "attributes",
        "form",
        "runs",
        "values",
        "contract",
        "numerics",
        "habits",
        "engines",
        "passes",
        "kernels",
        "remote",
        "porting",
        "serving",
        "accelerators",
        "network",
        "tails",
        "sessions",
        "known",
        "corners",
        "lifetimes",
        "lanes",
        "changes",
        "shortcuts",
        "margins",
    ]
]
"""Modules of broken plugins that were written before the kit's checks for them."""
FOLDER = Path(__file__).parents[1] / "tests" / "device" / "conformance"


def plugins(unseen):
    """The broken plugins, by where they are from."""
    import broken_form
    import test_broken_devices as tests

    if not unseen:
        return [*tests.FAULTS, *tests.ALONE]
    found = [
        cls for module in map(importlib.import_module, UNSEEN) for cls in vars(module).values()
    ]
    classes = [c for c in found if isinstance(c, type) and issubclass(c, broken_form.Broken)]
    bases = {base for cls in classes for base in cls.__mro__[1:]}
    return [c for c in dict.fromkeys(classes) if c not in bases]


def caught_by(fault, everything, draws, innocent, pipe):
    """Sends the names of the checks that a broken plugin fails, without the ``innocent`` ones."""
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
    checks = collect(chosen) if everything or apart else relevant(collect(chosen), fault)
    checks = [check for check in checks if check.name not in innocent]
    checks.sort(key=lambda check: not hint.takes(check.name))
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
    """The checks that may notice a fault: of its operators, or else of form, and some others."""
    ops = {s.split("/")[1] for s in fault.suites if s.startswith("random/")} - {"*"}
    if ops:
        form = ("request", "query", "sharing", "chains")
        of_form = [one for one in checks if not one.op and one.suite in form]
        return [one for one in checks if one.op in ops] + of_form
    form = [one for one in checks if not one.op]
    swept = [one for one in checks if one.op]
    return form + swept[::20]


def measured(fault, everything, draws, limit, innocent=()):
    """Names of the checks that a broken plugin fails, made in a child of this process.

    Args:
        fault: The broken plugin.
        everything: Whether to make all checks, not only those up to the first that fails.
        draws: Random models per operator.
        limit: Seconds.
        innocent: Names of checks that the correct device fails too, which prove nothing.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=caught_by, args=(fault, everything, draws, innocent, theirs))
    child.start()
    theirs.close()
    try:
        names = ours.recv() if ours.poll(limit) else []
    except EOFError:
        names = ["(ends the process)"]
    child.join(2)
    if child.is_alive():
        child.kill()
        child.join()
    return names


def main():
    """Prints a line per broken plugin, the count, and the checks that caught nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a broken plugin's module and name")
    parser.add_argument("--unseen", action="store_true", help="those that the kit has not seen")
    parser.add_argument("--all", action="store_true", help="make all checks of each")
    parser.add_argument("--draws", type=int, default=4, help="random models per operator (4)")
    parser.add_argument("--every", type=int, default=1, help="take each n-th only")
    parser.add_argument("--limit", type=float, default=600, help="seconds per plugin (600)")
    args = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    from partita_conformance.bench.checks import registered
    from partita_conformance.inputs.node_cases import node_cases
    from partita_conformance.runs.collect import Selection, collect

    node_cases()  # made once, for all children, as are the draws of all checks
    collect(Selection(draws=args.draws))
    faults = [f for f in plugins(args.unseen) if args.only in f"{f.__module__}.{f.__name__}"][
        :: args.every
    ]
    from good_device import Good

    Good.suites = ("*",)
    innocent = measured(Good, True, args.draws, args.limit)
    print(f"checks that the correct device fails, left out: {', '.join(innocent) or 'none'}")
    missed, used = [], set()
    for fault in faults:
        start = time.perf_counter()
        names = measured(fault, args.all, args.draws, args.limit, innocent)
        if not names:
            missed.append(fault.__name__)
        used |= set(names)
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        seconds = time.perf_counter() - start
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
