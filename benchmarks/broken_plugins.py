"""Runs the conformance kit on deliberately broken plugins and prints which check caught which.

    python benchmarks/broken_plugins.py

Each of them is the correct device of ``tests/device/conformance`` with one realistic fault.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "tests" / "device" / "conformance"


def caught_by(fault):
    """Names of the checks that a broken plugin fails."""
    from partita_conformance.bench import Target
    from partita_conformance.collect import Selection, collect
    from partita_conformance.expectations import Expectations
    from partita_conformance.running import InProcess, Isolated, run_checks

    target = Target("BROKEN", f"{fault.__module__}:{fault.__name__}")
    state, _ = target.presence()
    if state == "broken":
        return ["(breaks when it is made)"]
    patterns = tuple(p for p in fault.suites if not p.startswith("operators"))
    if fault.suites == ("*",):  # these end or stop the process
        patterns = ("random/Exp/0", "random/Relu/0")
    selection = Selection(patterns, draws=12)
    apart = fault.suites == ("*",)
    runner = Isolated(target, selection, 10) if apart else InProcess(target)
    try:
        outcomes = run_checks(collect(selection), runner, Expectations())
    finally:
        runner.close()
    return [outcome.check.name for outcome in outcomes if outcome.bad]


def main():
    """Prints a line per broken plugin, the count, and the checks that caught nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a broken plugin's name")
    args = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    from test_broken_devices import ALONE, FAULTS

    from partita_conformance.checks import registered

    faults = [f for f in (*FAULTS, *ALONE) if args.only in f.__name__]
    caught, used = 0, set()
    for fault in faults:
        names = caught_by(fault)
        caught += bool(names)
        used |= set(names)
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        print(f"{fault.__name__:36} {', '.join(names[:2]) or 'MISSED'}{more}", flush=True)
    print(f"{caught} of {len(faults)} broken plugins caught")
    idle = [check.name for check in registered() if check.name not in used]
    print(f"checks of form that none of them fails: {', '.join(idle) or 'none'}")
    return int(caught < len(faults))


if __name__ == "__main__":
    sys.exit(main())
