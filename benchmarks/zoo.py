"""Every model on CPU, OPENCL and HETERO beside onnxruntime: agreement, ops per device, times.

    python benchmarks/zoo.py [--models zoo:magika light:resnet50] [--devices CPU HETERO:OPENCL,CPU]

Each row compares with onnxruntime, graph optimizations off, at rtol 1e-3 and atol 1e-4. Times are
medians in milliseconds after a warm-up; onnxruntime is timed with its optimizations on, in the same
process, before and not beside the others. A device that does not take the whole model is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from agreement import disagreement
from models import Case, cases, session

import partita

DEVICES = ["CPU", "OPENCL", "HETERO:OPENCL,CPU,REFERENCE"]


def median_ms(run: Callable[[], object], seconds: float) -> float:
    """Median duration of a call, for as many calls as fit, at least three."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def row(core: partita.Core, case: Case, device: str, want: list, seconds: float) -> str:
    """One device's cells of the table."""
    model = core.read_model(case.path)
    taken = core.query_model(model, device)
    if len(taken) < len(model.ops):
        return f"takes {len(taken)} of {len(model.ops)} ops"
    start = time.perf_counter()
    compiled = core.compile_model(model, device)
    request = compiled.create_infer_request()
    got = request.infer(case.feeds).to_tuple()
    compile_ms = (time.perf_counter() - start) * 1e3
    wrong = disagreement(got, want)
    median = median_ms(lambda: request.infer(case.feeds, share_outputs=True), seconds)
    why = compiled.explain()
    counts = " ".join(f"{name}:{count}" for name, count in why.ops_per_device.items())
    answer = ""
    if case.sample is not None:
        said = case.sample.answer(lambda feeds: request.infer(feeds).to_dict())
        answer = f"; {'says' if said.correct else 'WRONGLY SAYS'} {said.text}"
    verdict = f"WRONG ({wrong})" if wrong else "agrees"
    return (
        f"{verdict}; {counts} in {len(why.subgraph_devices)} subgraphs; "
        f"compile and first run {compile_ms:.0f} ms; {median:.2f} ms{answer}"
    )


def main() -> int:
    """Prints the table; the exit code is 1 if anything disagrees."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="*", default=[], help="names as the command line has them"
    )
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to time each")
    options = parser.parse_args()
    core = partita.Core()
    failed = False
    for case in cases(options.models):
        want = session(case.path).run(None, case.feeds)
        peer = session(case.path, optimized=True)
        peer_ms = median_ms(
            lambda peer=peer, case=case: peer.run(None, case.feeds), options.seconds
        )
        del peer
        print(f"{case.name:<24} onnxruntime {peer_ms:.2f} ms", flush=True)
        for device in options.devices:
            try:
                text = row(core, case, device, want, options.seconds)
            except partita.PartitaError as error:
                text = f"FAILED: {error}"
            failed |= "WRONG" in text or text.startswith("FAILED")
            print(f"  {device:<30} {text}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
