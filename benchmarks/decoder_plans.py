"""Planning decoders: how long it takes, in how much memory; and what moving weights would bring.

    python benchmarks/decoder_plans.py [--sizes 8B 70B] [--link 25] [--cpu 20 0.3] [--gpu 2000 100]

First table: for each size a plan over a device with a limit of half the weights and one without,
each in a process of its own: seconds from the sizes to the plan, and the peak of the process's
memory. Speeds are those of the command line (GB/s of memory, 10**12 multiplications a second), as
if probes had measured them; both devices are CPU, and neither runs anything.

Second table: a prompt's chunk on a layer whose weights lie in the host's memory. The host computes
it, or the weights go over the link to the other device, which then computes it; for how many tokens
the second is faster, and how much for a chunk of 512.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from random_decoders import SIZES, decoder

from partita import Core, Model
from partita.model.prompt_chunk import LARGEST_CHUNK
from partita_hetero.compile.placer import Placer
from partita_hetero.cost.database import LinkCost
from partita_hetero.cost.device_speed import DeviceSpeed
from partita_hetero.cost.token_work import PLAIN, DecoderWork, WeightFormat
from partita_hetero.partition.decoder_layers import decoder_layers
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.properties import HeteroProperties
from partita_hetero.tuning.decoders.decoder_chain import DecoderDevice, TokenRequest
from partita_hetero.tuning.decoders.decoder_plan import plan_decoder

Q4 = WeightFormat(4, 32)
CONTEXT = 8192
FAST, SLOW = "FAST", "CPU"


def speed(rates: list[float]) -> DeviceSpeed:
    """A device of some GB/s and 10**12 multiplications a second."""
    read, multiply = rates[0] * 1e9, rates[1] * 1e12
    return DeviceSpeed({PLAIN: read, Q4: read}, {PLAIN: multiply, Q4: multiply}, 3e-6)


def plan_one(size: str, args: argparse.Namespace) -> None:
    """Plans one decoder and prints a row; for a process of its own."""
    core = Core()
    core.register_plugin("partita_cpu", FAST)
    names = f"{FAST},{SLOW}"
    properties = HeteroProperties(MULTI_DEVICE_PRIORITIES=names, HETERO_CONTEXT=CONTEXT)
    start = time.perf_counter()
    model = decoder(size)
    placer = Placer(model, DeviceList(core.device_api, "HETERO", properties))
    link = LinkCost("host", FAST, 2e-5, 1e-9 / args.link)
    devices = [
        DecoderDevice(FAST, speed(args.gpu), model.weight_bytes // 2, 2e-5, (link, link)),
        DecoderDevice(SLOW, speed(args.cpu)),
    ]
    plan = plan_decoder(placer, devices, TokenRequest(CONTEXT), "LATENCY", {}).plan
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    layers = [sum(name.startswith("layer") for name in one.layers) for one in plan.devices]
    weights = model.weight_bytes / 1e9
    row = f"{weights:.2f} | {seconds:.2f} | {plan.seconds:.2f} | {peak:.0f}"
    rates = f"{layers[0]} + {layers[1]} | {plan.gap:.1%} | {plan.decode:.2f} | {plan.prefill:.0f}"
    print(f"| {size} | {row} | {rates} |", flush=True)


def streaming(model: Model, args: argparse.Namespace) -> tuple[float, float, float]:
    """Tokens from which weights on the move pay, and seconds of a chunk of a layer both ways."""
    op_graph = OpGraph.of(model)
    layer = decoder_layers(model, op_graph)[1]
    work = DecoderWork(model, op_graph, CONTEXT)
    host, other = speed(args.cpu), speed(args.gpu)
    upload = work.stored_bytes(layer.ops) / (args.link * 1e9)

    def both(tokens: int) -> tuple[float, float]:
        chunk = work.work(layer.ops, tokens, 0)
        return host.seconds(chunk), upload + other.seconds(chunk)

    first = next((t for t in range(1, LARGEST_CHUNK + 1) if both(t)[0] > both(t)[1]), float("inf"))
    return first, *both(LARGEST_CHUNK)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["1B", "8B", "70B"])
    parser.add_argument("--link", type=float, default=25.0, metavar="GB/S")
    rates = {"nargs": 2, "type": float, "metavar": ("GB/S", "T/S")}
    parser.add_argument("--cpu", default=[20.0, 0.3], **rates)
    parser.add_argument("--gpu", default=[2000.0, 100.0], **rates)
    parser.add_argument("--one", choices=SIZES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        plan_one(args.one, args)
        return
    print(
        f"cpu {args.cpu}, gpu {args.gpu} (GB/s, 10**12 multiplications/s), link {args.link} GB/s\n"
    )
    print("| size | GB | s | s of the search | peak MiB | layers | gap | decode/s | prefill/s |")
    print("| --- " * 9 + "|", flush=True)
    for size in args.sizes:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", size], check=True)
    print("\n| size | pays from tokens | host, ms of a chunk | moved, ms of a chunk | times |")
    print("| --- " * 5 + "|")
    for size in args.sizes:
        first, stays, moves = streaming(decoder(size), args)
        row = f"{first} | {stays * 1e3:.1f} | {moves * 1e3:.1f} | {stays / moves:.1f}"
        print(f"| {size} | {row} |")


if __name__ == "__main__":
    main()
