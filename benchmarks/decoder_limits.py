"""A decoder that does not fit one device: what HETERO's plan predicts, and how fast it then is.

    python benchmarks/decoder_limits.py [--size 8B] [--share 0.5] [--devices OPENCL,CPU]
        [--layers 6] [--context 2048] [--tokens 100] [--rounds 3] [--precision f16] [--no-single]

The decoder of `random_decoders` has weights of 4 bits. The first device may take the given share of
their bytes, so that the others compute the rest; layers are placed by HETERO_CONTEXT. Contestants,
in turns, one token after another with a cache that is full but for one place: HETERO, and the last
device alone. Printed, for each round: milliseconds of a token (best, median, worst) and tokens a
second by the median; then what the plan predicts, and the share of it that the median of all rounds
reaches. Memory that other users of a machine take shows as rounds that differ.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from random_decoders import SIZES, decoder

import partita

WARM = 10

PROMPT = 256
"""Tokens of the runs that fill the cache: memory that nobody has written to is read faster."""


def token(compiled: partita.CompiledModel, context: int) -> Callable[[], Any]:
    """A call that computes one token at the end of the cache, which was written to before."""
    request = compiled.create_infer_request()
    for past in range(0, context, PROMPT):
        end = min(context, past + PROMPT)
        prompt = {
            "input_ids": np.zeros((1, end - past), np.int64),
            "seqlens_k": np.full(1, end - 1, np.int32),
            "total_sequence_length": np.array(end, np.int32),
        }
        request.infer(prompt)
    feeds = {
        "input_ids": np.zeros((1, 1), np.int64),
        "seqlens_k": np.full(1, context - 1, np.int32),
        "total_sequence_length": np.array(context, np.int32),
    }
    return lambda: request.infer(feeds)


def timed(call: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of calls."""
    times = []
    for number in range(WARM + count):
        began = time.perf_counter()
        call()
        if number >= WARM:
            times.append(1e3 * (time.perf_counter() - began))
    return times


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="8B", choices=SIZES)
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the size has")
    parser.add_argument("--share", type=float, default=0.5, help="of the weights' bytes")
    parser.add_argument("--devices", default="OPENCL,CPU")
    parser.add_argument("--precision", default="f16", help="of the first device; empty for its own")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-single", action="store_true", help="not the last device alone")
    args = parser.parse_args()
    sizes = SIZES[args.size]
    model = decoder(replace(sizes, layers=args.layers or sizes.layers), "q4", args.context)
    model.reshape({p.name: [1 if d == "batch" else d for d in p.shape or ()] for p in model.inputs})
    first, *_, last = args.devices.split(",")
    precision = {"INFERENCE_PRECISION_HINT": args.precision}
    config = {
        "HETERO_CONTEXT": args.context,
        "HETERO_MEMORY_LIMITS": {first: int(args.share * model.weight_bytes)},
        "DEVICE_PROPERTIES": {first: precision} if args.precision else {},
    }
    core = partita.Core()
    began = time.perf_counter()
    compiled = core.compile_model(model, f"HETERO:{args.devices}", config)
    print(f"compiled in {time.perf_counter() - began:.1f} s", flush=True)
    decision = compiled.explain().decision
    rates = None if decision is None else decision.rates
    if decision is None or rates is None:
        raise SystemExit("the decoder was not placed by its layers; see its explanation")
    print(*decision.lines(), sep="\n")
    calls = {"HETERO": token(compiled, args.context)}
    if not args.no_single:
        calls[last] = token(core.compile_model(model, last), args.context)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            found = timed(call, args.tokens)
            times[name] += found
            middle = statistics.median(found)
            three = f"{min(found):7.2f} {middle:7.2f} {max(found):7.2f} ms"
            print(f"{name:8} {three}  {1e3 / middle:7.1f} tokens/s", flush=True)
    reached = 1e3 / statistics.median(times["HETERO"])
    told = f"predicted {rates.decode:.1f} tokens/s, reached {reached:.1f}"
    print(f"{told}: {reached / rates.decode:.3f}", end="")
    if last in times:
        alone = 1e3 / statistics.median(times[last])
        print(f"; {last} alone {alone:.1f}: {reached / alone:.2f} times", end="")
    print()


if __name__ == "__main__":
    main()
