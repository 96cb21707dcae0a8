"""How many of ONNX's own node cases a device computes correctly, and why the others fail.

    python benchmarks/onnx_node_cases.py CPU HETERO:CPU,REFERENCE --failures
    python benchmarks/onnx_node_cases.py OPENCL --only "conv|pool" --json cases.json

A case passes as it does under ONNX's test runner: shapes, dtypes and values within its tolerances.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import time
import warnings
from pathlib import Path

NOT_TAKEN = "an operation is not taken"


def reason_of(error):
    """A short kind for a failure: what was refused, or what went wrong."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if re.search("is not taken by device|does not take|No device takes", first):
        return NOT_TAKEN
    if isinstance(error, AssertionError):
        text = " ".join(str(error).split())
        for mark in ("incorrect shape", "Mismatched", "dtype", "nan location", "not equal"):
            if mark in text:
                return f"wrong answer ({mark})"
        return "wrong answer"
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', '#', first)[:60]}"


def run_case(backend, runner, case):
    """Raises what the case raises."""
    from onnx.backend.test.runner import _normalize_tensor

    prepared = backend.prepare(case.model, "CPU")
    for inputs, expected in case.data_sets:
        outputs = prepared.run([_normalize_tensor(item) for item in inputs])
        runner.assert_similar_outputs(
            [_normalize_tensor(item) for item in expected], outputs, case.rtol, case.atol
        )


def main():
    """Prints a table for each device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devices", nargs="+", metavar="DEVICE")
    parser.add_argument("--only", default="", help="a regular expression for case names")
    parser.add_argument("--failures", action="store_true", help="list every failure")
    parser.add_argument("--json", type=Path, help="write all results to a file")
    args = parser.parse_args()

    import numpy as np
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

    from partita.onnx_backend import backend_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases divide by zero on purpose as they are made
        cases = [c for c in load_model_tests(kind="node") if re.search(args.only, c.name)]
    everything = {}
    for device in args.devices:
        backend, results, start = backend_for(device), {}, time.perf_counter()
        for case in cases:
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    run_case(backend, Runner, case)
                results[case.name] = None
            except Exception as error:  # noqa: BLE001  # each failure is a line of the table
                results[case.name] = (reason_of(error), str(error))
        passed = sum(result is None for result in results.values())
        seconds = time.perf_counter() - start
        print(f"{device}: {passed} of {len(cases)} passed in {seconds:.0f} s")
        kinds = collections.defaultdict(list)
        for name, result in results.items():
            if result is not None:
                kinds[result[0]].append(name)
        for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
            print(f"  {len(names):5}  {kind}")
            if args.failures and kind == NOT_TAKEN:
                print(f"           {' '.join(name.removeprefix('test_') for name in names)}")
            elif args.failures:
                for name in names:
                    text = " ".join(results[name][1].split())
                    print(f"           {name}: {text[:220]}")
        everything[device] = {
            name: "passed" if result is None else result[0] for name, result in results.items()
        }
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
