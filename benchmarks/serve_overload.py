"""A server with far too much to do, one whose model changes all the time, and one that is ended.

    python benchmarks/serve_overload.py
    python benchmarks/serve_overload.py --seconds 120 --times 10 --reloads 100

Printed are: requests a second and times with as many clients as the server has room for; with
requests at so many times that rate: how many were answered, refused (429) and lost, how long both
took, and the server's memory; what was lost or wrong while the model was replaced again and again;
and what was lost when the server was told to end (SIGTERM) while clients used it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from serving_load import (
    Answers,
    Process,
    binary_request,
    closed_loop,
    for_seconds,
    machine,
    open_loop,
    partita_serve,
)

import partita

WIDTH = 1024


def main() -> None:
    """Prints all parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--layers", type=int, default=16, help="of the made network")
    parser.add_argument("--clients", type=int, default=2, help="of the quiet part")
    parser.add_argument("--queue", type=int, default=2, help="requests that may wait")
    parser.add_argument("--quiet-seconds", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=120, help="of overload")
    parser.add_argument("--times", type=float, default=10, help="the quiet rate")
    parser.add_argument("--connections", type=int, default=64, help="of overload")
    parser.add_argument("--reloads", type=int, default=100)
    args = parser.parse_args()
    print(f"{machine()}; partita {partita.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.onnx"
        onnx.save(chain(args.layers), path)
        asyncio.run(overload(path, args))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(reloads(Path(folder), args))
        asyncio.run(end(Path(folder), args))


def chain(layers: int) -> onnx.ModelProto:
    """A network of so many products of WIDTH x WIDTH."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number in range(layers):
        matrix = rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"p{number}"]))
        nodes.append(helper.make_node("Relu", [f"p{number}"], [f"r{number}"]))
        last = f"r{number}"
    nodes[-1].output[0] = "y"
    return model_of(nodes, ["N", WIDTH], weights)


def model_of(nodes: list[Any], shape: list[Any], weights: list[Any]) -> onnx.ModelProto:
    """A model from x to y of one shape."""
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


async def overload(path: Path, args: argparse.Namespace) -> None:
    """Prints the quiet part, and that of overload."""
    request = binary_request("m", {"x": np.ones((1, WIDTH), np.float32)})
    limits = ["--max-queue-size", args.queue, "-d", args.device]
    with partita_serve(f"m={path}", *limits) as server:
        await closed_loop(server.address, request, args.clients, for_seconds(2))
        quiet = await closed_loop(
            server.address, request, args.clients, for_seconds(args.quiet_seconds)
        )
        print(f"\nquiet, {args.clients} clients:")
        tell(quiet)
        before = server.memory_mb()
        memory: list[float] = []
        told = asyncio.create_task(watch(server, memory))
        rate = args.times * quiet.rate
        found = await asyncio.to_thread(
            open_loop, server.address, request, rate, args.seconds, args.connections
        )
        told.cancel()
        sent = sum(map(len, found.ms.values())) + found.lost
        print(f"sent {sent / found.seconds:.0f} requests/s of {rate:.0f} that were due")
        print(f"\n{args.times:g} times as many for {args.seconds:g} s:")
        tell(found)
        ratio = found.percentile(99) / quiet.percentile(99)
        print(f"p99 of answers: {ratio:.2f} times the quiet one")
        print(
            f"memory: {before:.1f} MB before, {max(memory):.1f} at most, {memory[-1]:.1f} at last"
        )


async def watch(server: Process, memory: list[float]) -> None:
    """Notes the server's memory every second."""
    while True:
        memory.append(server.memory_mb())
        await asyncio.sleep(1)


async def reloads(folder: Path, args: argparse.Namespace) -> None:
    """Prints what was lost or wrong while a model was replaced."""
    put(folder, 0)
    request = binary_request("m", {"x": np.zeros((1, 4), np.float32)})
    known = {0.0}
    with partita_serve("--repository", folder, "--reload-seconds", 0.05, "-d", args.device) as one:
        going = True
        seen: set[float] = set()

        def right(body: bytes) -> bool:
            values = set(np.frombuffer(body[-16:], np.float32).tolist())
            seen.update(values)
            return len(values) == 1 and values <= known

        load = asyncio.create_task(closed_loop(one.address, request, 8, lambda: not going, right))
        for number in range(1, args.reloads + 1):
            known.add(float(number))
            put(folder, number)
            while number not in seen and not load.done():
                await asyncio.sleep(0.01)
        going = False
        found = await load
    print(f"\n{args.reloads} reloads under load, {len(seen)} models seen:")
    tell(found)


async def end(folder: Path, args: argparse.Namespace) -> None:
    """Prints what was lost when the server ended."""
    request = binary_request("m", {"x": np.zeros((1, 4), np.float32)})
    with partita_serve("--repository", folder, "-d", args.device) as server:
        load = asyncio.create_task(
            closed_loop(server.address, request, 32, lambda: server.process.poll() is not None)
        )
        await asyncio.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        found = await load
        server.process.wait(60)
    print("\nSIGTERM while 32 clients use it:")
    tell(found)
    print(f"exit code {server.process.returncode}")


def put(folder: Path, number: int) -> None:
    """Puts a model into the folder that adds a number."""
    weight = numpy_helper.from_array(np.float32([number]), "w")
    place = folder / "m" / "1"
    place.mkdir(parents=True, exist_ok=True)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    onnx.save(model_of(nodes, ["N", 4], [weight]), place / "new")
    (place / "new").replace(place / "model.onnx")


def tell(found: Answers) -> None:
    """Prints counts and times."""
    print(f"{'status':>8} {'count':>8} {'per s':>8} {'p50 ms':>8} {'p99 ms':>8}")
    for status, ms in sorted(found.ms.items()):
        rate = len(ms) / found.seconds
        times = [found.percentile(share, status) for share in (50, 99)]
        print(f"{status:8} {len(ms):8} {rate:8.1f} {times[0]:8.2f} {times[1]:8.2f}")
    print(f"lost {found.lost}, wrong {found.wrong}")


if __name__ == "__main__":
    main()
