"""How well probes of device CPU tell how fast decoders generate, from an empty cache to a full one.

    python benchmarks/decoder_rates.py [--models 135M-q4 0.2B-q8 0.5B-q4 0.2B-f16 model.gguf]
        [--threads 1 2] [--context 1024] [--rounds 3]

Models: sizes and weights of `random_decoders`, or files. In turns, for each model: the device is
probed anew, as a plan does where nothing is known, and tokens are generated with an empty cache,
half a cache and a full one, whose places were all written to before. Printed, by the medians of all
rounds: milliseconds of a token predicted and reached, and how many times as long the token took as
was predicted (beyond 1 the predicted tokens a second are too many).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from random_decoders import SIZES, decoder

import partita
from partita.generate.decoder import prepare
from partita_hetero.cost.attention_probe import AttentionShape
from partita_hetero.cost.database import Database
from partita_hetero.cost.device_speed import (
    DecoderSizes,
    DeviceSpeed,
    ProbedDevice,
    device_speed,
)
from partita_hetero.cost.machine_load import MachineLoad
from partita_hetero.cost.token_work import DecoderWork, TokenWork
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.properties import HeteroProperties

SECONDS = 0.5
"""Of tokens, in each turn."""

PROMPT = 256
"""Tokens of the runs that fill the cache."""


def read(name: str, context: int, core: partita.Core) -> partita.Model:
    """A model by its name, with one sequence and a cache of a fixed size."""
    if Path(name).exists():
        return prepare(core.read_model(name), 1, context, core, "CPU", None)
    size, _, weights = name.rpartition("-")
    if size not in SIZES:
        raise SystemExit(f"'{name}' is neither a file nor one of {', '.join(SIZES)} with weights")
    model = decoder(size, weights, context)  # type: ignore[arg-type]  # refuses others
    shapes = {port.name: port.shape or () for port in model.inputs}
    model.reshape({name: [1 if d == "batch" else d for d in dims] for name, dims in shapes.items()})
    return model


def prober(
    model: partita.Model, context: int, config: dict[str, Any], core: partita.Core
) -> tuple[Callable[[], DeviceSpeed], Callable[[int], TokenWork]]:
    """A call that probes device CPU for a decoder, and what a token behind others is."""
    op_graph = OpGraph.of(model)
    work = DecoderWork(model, op_graph, context)
    live = [op for op, constant in enumerate(op_graph.constant) if not constant]
    token = work.work(live, 1, 0)
    sizes = DecoderSizes(
        formats=set(token.products),
        weight_bytes=model.weight_bytes,
        side=work.matrix_side(live),
        layers=work.layer_products(),
        attention=AttentionShape.of(model, op_graph),
        context=context,
        token_bytes=int(sum(token.weight_bytes.values())),
        chained=token.formats_in_matrices,
    )
    properties = HeteroProperties(
        MULTI_DEVICE_PRIORITIES="CPU", HETERO_CONTEXT=context, DEVICE_PROPERTIES={"CPU": config}
    )
    devices = DeviceList(core.device_api, "HETERO", properties)

    def probe() -> DeviceSpeed:
        with tempfile.TemporaryDirectory() as folder, Database(Path(folder) / "costs") as database:
            key = database.add_device({"device": "CPU"})
            return device_speed(ProbedDevice(devices, "CPU", key, database, MachineLoad()), sizes)

    return probe, lambda past: work.work(live, 1, past)


def tokens(compiled: partita.CompiledModel, context: int) -> Callable[[int], float]:
    """A call that tells seconds of a token behind others; the whole cache was written to."""
    names = {port.name for port in compiled.inputs}
    request = compiled.create_infer_request()

    def feeds(count: int, past: int) -> dict[str, Any]:
        every = {
            "input_ids": np.zeros((1, count), np.int64),
            "seqlens_k": np.full(1, past + count - 1, np.int32),
            "total_sequence_length": np.array(past + count, np.int32),
        }
        return {name: array for name, array in every.items() if name in names}

    for past in range(0, context, PROMPT):
        request.infer(feeds(min(PROMPT, context - past), past))

    def timed(past: int) -> float:
        given, times = feeds(1, past), []
        for _ in range(3):
            request.infer(given)
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            began = time.perf_counter()
            request.infer(given)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    return timed


def compare(name: str, threads: int, args: argparse.Namespace) -> None:
    """Prints the rows of one model."""
    core, config = partita.Core(), {"INFERENCE_NUM_THREADS": threads}
    model = read(name, args.context, core)
    probe, work = prober(model, args.context, config, core)
    timed = tokens(core.compile_model(model, "CPU", config), args.context)
    lengths = {"empty": 0, "half": args.context // 2, "full": args.context - 1}
    predicted: dict[str, list[float]] = defaultdict(list)
    reached: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        speed = probe()
        for cache, past in lengths.items():
            predicted[cache].append(speed.seconds(work(past)))
            reached[cache].append(timed(past))
    for cache in lengths:
        told, took = (1e3 * statistics.median(times[cache]) for times in (predicted, reached))
        row = f"{Path(name).name} | {threads} | {cache} | {told:.3f} | {took:.3f}"
        print(f"| {row} | {took / told:.3f} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=["135M-q4", "0.2B-q8", "0.5B-q4", "0.2B-f16"]
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| model | threads | cache | predicted, ms | reached, ms | times |")
    print("| --- " * 6 + "|", flush=True)
    for name in args.models:
        for threads in args.threads:
            compare(name, threads, args)


if __name__ == "__main__":
    main()
