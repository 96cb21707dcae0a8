"""Every model under random affinities: how many compile, how many agree with onnxruntime.

    python benchmarks/affinities.py [--seeds 20] [--devices CPU CPU2 OPENCL REFERENCE]

Each operation is pinned to a device drawn by chance; CPU2 is the CPU plugin registered a second
time. A pin on a device that refuses the operation moves to the next one (reported by explain()).
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time

from models import cases, disagreement, session

import partita

DEVICES = ["CPU", "CPU2", "OPENCL", "REFERENCE"]


def main() -> int:
    """Prints a line per model; the exit code is 1 if anything fails or disagrees."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    logging.getLogger("partita.hetero").setLevel(logging.ERROR)  # moved pins are expected here
    logging.getLogger("partita_hetero").setLevel(logging.ERROR)
    core = partita.Core()
    for device in options.devices:
        if device == "CPU2":
            core.register_plugin("partita_cpu", "CPU2")
    failed = False
    for case in cases(options.models):
        want = session(case.path).run(None, case.feeds)
        model = core.read_model(case.path)
        good, parts, moved = 0, [], 0
        start = time.perf_counter()
        for seed in range(options.seeds):
            rng = random.Random(seed)
            for op in model.ops:
                op.affinity = rng.choice(options.devices)
            try:
                compiled = core.compile_model(model, "HETERO:" + ",".join(options.devices))
                request = compiled.create_infer_request()
                wrong = ""
                for _ in range(2):
                    wrong = wrong or disagreement(request.infer(case.feeds).to_tuple(), want)
            except partita.PartitaError as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                failed = True
                print(f"  {case.name} seed {seed}: {wrong}", flush=True)
                continue
            good += 1
            why = compiled.explain()
            parts.append(len(why.subgraph_devices))
            moved += sum(op.reason.code is partita.ReasonCode.FALLBACK for op in why.ops)
        seconds = time.perf_counter() - start
        print(
            f"{case.name:<24} {good} of {options.seeds} compile and agree; "
            f"{min(parts, default=0)} to {max(parts, default=0)} subgraphs; "
            f"{moved} pins moved; {seconds:.0f} s",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
