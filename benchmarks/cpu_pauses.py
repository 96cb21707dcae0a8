"""Whether device CPU computes a decoder's layers slower between another device's turns than alone.

    python benchmarks/cpu_pauses.py [--size 8B] [--layers 10] [--context 2048] [--threads 16 15 8]

On ``HETERO:GPU,CPU`` the CPU computes its layers, waits for the GPU, and so on. Here it computes
as many layers of a random decoder (`random_decoders.py`), one token after another: at once, after
pauses in which it sleeps or looks at the clock, beside a process that keeps one processor busy, and
with fewer threads. Printed are the best, the median and the worst time of a token in milliseconds,
and what bandwidth the weights come to; before that, what the probe says by which HETERO predicts
(one row through products of weights of the same format), for weights of several sizes.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
from random_decoders import SIZES, decoder, work_of_a_token

import partita
from partita_hetero.cost.device_speed import SIDES, probe_model
from partita_hetero.cost.token_work import WeightFormat

Q4 = WeightFormat(4, 32)
PROBE_BYTES = (128 << 20, 512 << 20, 2048 << 20)
PAUSES = (0.0005, 0.002, 0.006, 0.012)
WARM, RUNS = 5, 25


def timed(call: Callable[[], Any], pause: Callable[[], None] | None = None) -> list[float]:
    """Seconds of calls, each after a pause."""
    seconds = []
    for _ in range(WARM + RUNS):
        if pause is not None:
            pause()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds[WARM:]


def report(what: str, seconds: list[float], nbytes: float) -> None:
    """Prints a row."""
    best, median, worst = min(seconds), statistics.median(seconds), max(seconds)
    rate = f"{nbytes / best / 1e9:6.1f} best, {nbytes / median / 1e9:6.1f} median GB/s"
    times = " / ".join(f"{value * 1e3:.2f}" for value in (best, median, worst))
    print(f"  {what:44} {times:>24} ms  {rate}", flush=True)


def probe(nbytes: int) -> None:
    """The probe's products, with so many bytes of weights."""
    matrix = SIDES[-1] ** 2 // 2 + 4 * SIDES[-1] ** 2 // Q4.block
    count = -(-nbytes // matrix)
    compiled = partita.Core().compile_model(probe_model(Q4, SIDES[-1], count, 1), "CPU")
    request, x = compiled.create_infer_request(), np.full((1, SIDES[-1]), 0.5, np.float32)
    report(f"probe, {nbytes >> 20} MiB", timed(lambda: request.infer({"x": x})), count * matrix)


def looking(seconds: float) -> None:
    """A pause in which this thread looks at the clock."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def busy(stop: Event) -> None:
    """Takes a processor until it is told to stop."""
    while not stop.is_set():
        for _ in range(20000):
            pass


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="8B", choices=SIZES)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, nargs="*", default=[])
    args = parser.parse_args()
    for nbytes in PROBE_BYTES:
        probe(nbytes)
    sizes = replace(SIZES[args.size], layers=args.layers, vocabulary=4096)
    model = decoder(sizes, "q4", args.context)
    one = {p.name: [1 if dim == "batch" else dim for dim in p.shape or ()] for p in model.inputs}
    model.reshape(one)
    past = args.context // 4
    nbytes = sum(work_of_a_token(model, args.context, past).weight_bytes.values())
    feeds = {
        "input_ids": np.zeros((1, 1), np.int64),
        "seqlens_k": np.full(1, past, np.int32),
        "total_sequence_length": np.array(past + 1, np.int32),
    }

    def token(threads: int = 0) -> Callable[[], Any]:
        config = {"INFERENCE_NUM_THREADS": threads} if threads else {}
        request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
        return lambda: request.infer(feeds)

    call = token()
    report("one token after another", timed(call), nbytes)
    for pause in PAUSES:
        what = f"after {pause * 1e3:g} ms"
        report(f"{what} asleep", timed(call, functools.partial(time.sleep, pause)), nbytes)
        report(f"{what} looking", timed(call, functools.partial(looking, pause)), nbytes)
    stop = multiprocessing.Event()
    other = multiprocessing.Process(target=busy, args=(stop,))
    other.start()
    report("beside a busy process", timed(call), nbytes)
    fewer = [(count, token(count)) for count in args.threads]
    for count, reduced in fewer:
        report(f"beside a busy process, {count} threads", timed(reduced), nbytes)
    stop.set()
    other.join()
    for count, reduced in fewer:
        report(f"{count} threads", timed(reduced), nbytes)


if __name__ == "__main__":
    main()
