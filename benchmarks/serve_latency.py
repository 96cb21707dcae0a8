"""What a server adds to an inference, and how many it answers for many clients.

    python benchmarks/serve_latency.py
    python benchmarks/serve_latency.py --model model.onnx --shape 1,3,48,320 --clients 32

First table: one client; the model in this process, then the same through REST (a plain socket and
tritonclient) and gRPC (tritonclient), in turns, each beside a server that answers the same bytes at
once: what sockets, gRPC and the client take for them no server can save. Second table: many
clients, requests joined by Partita's server, and onnxruntime in the simplest server of the same
framework.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from serving_load import (
    Answers,
    BlockingClient,
    Process,
    binary_request,
    closed_loop,
    for_seconds,
    machine,
    partita_serve,
    peer_server,
)
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http

import partita
from partita import zoo

HERE = Path(__file__).resolve().parent

WARM_UP = 20
"""Rounds that are not counted."""


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="an ONNX file with one input (default: zoo:ppocr-rec)")
    parser.add_argument("--shape", default="1,3,48,320", help="of its input")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--rounds", type=int, default=200, help="of the first table")
    parser.add_argument("--clients", type=int, default=32, help="of the second table")
    parser.add_argument("--seconds", type=float, default=5, help="of the second table, each")
    parser.add_argument("--turns", type=int, default=3, help="of the second table")
    parser.add_argument("--batch", type=int, default=8, help="rows that are joined at most")
    parser.add_argument("--delay-us", type=int, default=0, help="that a request waits for others")
    args = parser.parse_args()
    path = args.model or str(zoo.path("ppocr-rec"))
    shape = tuple(map(int, args.shape.split(",")))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    told = f"{machine()}; partita {partita.__version__}, onnxruntime {onnxruntime.__version__}"
    print(told, flush=True)
    one_client(path, x, args)
    many_clients(path, x, args)


def one_client(path: str, x: np.ndarray[Any, Any], args: argparse.Namespace) -> None:
    """Prints medians of one client."""
    say(f"compiling {path}")
    compiled = partita.Core().compile_model(path, args.device)
    name = compiled.inputs[0].name
    own = compiled.create_infer_request()
    say("starting the server")
    with (
        partita_serve(f"m={path}", "-d", args.device) as server,
        bare_server(server, name, x) as bare,
    ):
        ours, theirs = calls_of(server, name, x), calls_of(bare, name, x)
        say(f"one client, {args.rounds} rounds")
        times = in_turns(
            {
                "in process": lambda: own.infer({name: x}),
                **ours,
                **{f"{what}, bare": call for what, call in theirs.items()},
            },
            args.rounds,
        )
    median = {what: statistics.median(ms) for what, ms in times.items()}
    base = median["in process"]
    print(f"\none client, {Path(path).name} {list(x.shape)}, median ms of {args.rounds}")
    print("bare: the same bytes to and from a server that does nothing")
    print(f"{'':28} {'ms':>8} {'added':>8} {'bare':>8} {'added over bare':>16}")
    print(f"{'in process':28} {base:8.3f}")
    for what in ours:
        added, least = median[what] - base, median[f"{what}, bare"]
        print(f"{what:28} {median[what]:8.3f} {added:8.3f} {least:8.3f} {added - least:16.3f}")


@contextmanager
def bare_server(server: Process, name: str, x: np.ndarray[Any, Any]) -> Iterator[Process]:
    """A server that answers at once, with what the other one answers to a request."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "http", Path(folder) / "grpc"
        answers[0].write_bytes(BlockingClient(server.address).ask(binary_request("m", {name: x})))
        client = triton_grpc.InferenceServerClient(server.told["grpc"])
        tensor = triton_grpc.InferInput(name, list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        answers[1].write_bytes(client.infer("m", [tensor]).get_response().SerializeToString())
        with peer_server(str(HERE / "serve_echo.py"), *answers) as bare:
            yield bare


def calls_of(
    server: Process, name: str, x: np.ndarray[Any, Any]
) -> dict[str, Callable[[], object]]:
    """All ways to ask a server."""
    client, request = BlockingClient(server.address), binary_request("m", {name: x})
    return {
        "REST, binary, plain socket": lambda: client.ask(request),
        "REST, binary, tritonclient": over_rest(server, name, x),
        "gRPC, tritonclient": over_grpc(server, name, x),
    }


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, one after the other, again and again."""
    times: dict[str, list[float]] = {what: [] for what in calls}
    for round_number in range(rounds + WARM_UP):
        for what, call in calls.items():
            time.sleep(0.001)  # threads of the one before go to sleep
            start = time.perf_counter()
            call()
            if round_number >= WARM_UP:
                times[what].append((time.perf_counter() - start) * 1e3)
    return times


def over_rest(server: Process, name: str, x: np.ndarray[Any, Any]) -> Callable[[], object]:
    """A call by tritonclient over HTTP."""
    client = triton_http.InferenceServerClient("{}:{}".format(*server.address))
    tensor = triton_http.InferInput(name, list(x.shape), "FP32")

    def call() -> object:
        tensor.set_data_from_numpy(x)
        result = client.infer("m", [tensor])
        return result.as_numpy(result.get_response()["outputs"][0]["name"])

    return call


def over_grpc(server: Process, name: str, x: np.ndarray[Any, Any]) -> Callable[[], object]:
    """A call by tritonclient over gRPC."""
    client = triton_grpc.InferenceServerClient(server.told["grpc"])
    tensor = triton_grpc.InferInput(name, list(x.shape), "FP32")

    def call() -> object:
        tensor.set_data_from_numpy(x)
        result = client.infer("m", [tensor])
        return result.as_numpy(result.get_response().outputs[0].name)

    return call


def say(text: str) -> None:
    """Tells what goes on, apart from the tables."""
    print(f"... {text}", file=sys.stderr, flush=True)


def many_clients(path: str, x: np.ndarray[Any, Any], args: argparse.Namespace) -> None:
    """Prints requests a second and times of many clients."""
    name = partita.Core().read_model(path).inputs[0].name
    joined = ["--max-batch-size", args.batch, "--max-queue-delay-us", args.delay_us]
    servers = {
        "partita serve, batches": (
            lambda: partita_serve(f"m={path}", "-d", args.device, *joined),
            binary_request("m", {name: x}),
        ),
        "partita serve": (
            lambda: partita_serve(f"m={path}", "-d", args.device),
            binary_request("m", {name: x}),
        ),
        "onnxruntime, Starlette": (
            lambda: peer_server(str(HERE / "serve_peer.py"), path),
            binary_request("m", {name: x}, "/infer"),
        ),
    }
    found: dict[str, list[Answers]] = {what: [] for what in servers}
    for turn in range(args.turns):
        for what, (start, request) in servers.items():
            say(f"{args.clients} clients, turn {turn + 1} of {args.turns}: {what}")
            with start() as server:
                asyncio.run(closed_loop(server.address, request, args.clients, for_seconds(1)))
                found[what].append(
                    asyncio.run(
                        closed_loop(
                            server.address, request, args.clients, for_seconds(args.seconds)
                        )
                    )
                )
    print(f"\n{args.clients} clients, {Path(path).name} {list(x.shape)}, {args.turns} turns")
    print(f"{'':28} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'failed':>7}")
    for what, several in found.items():
        rate, p50, p99 = (
            statistics.median(values)
            for values in (
                [one.rate for one in several],
                [one.percentile(50) for one in several],
                [one.percentile(99) for one in several],
            )
        )
        failed = sum(
            one.lost + sum(len(ms) for status, ms in one.ms.items() if status != 200)
            for one in several
        )
        print(f"{what:28} {rate:10.1f} {p50:8.1f} {p99:8.1f} {failed:7}")


if __name__ == "__main__":
    main()
