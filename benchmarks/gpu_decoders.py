"""One token after another on a graphics card: device OPENCL beside PyTorch, taking turns.

    python benchmarks/gpu_decoders.py [--size 1B] [--layers 6] [--weights f16,q4] [--context 1024]
        [--tokens 64] [--prompt 512] [--precision f16] [--without block_tiles,cache_attention]
        [--kernels]

The decoder has random weights (`random_decoders.py`), fewer layers with ``--layers``, a cache of
``--context`` tokens that is half full, and a batch of one. PyTorch computes the same layers in
float16 with a static cache, its own attention and normalization, replayed as a CUDA graph; it has
no product of 4-bit blocks, so that its float16 is the peer of every row. Calls of both bring all
logits to the host, in float32, to memory that the next call overwrites. For some seconds nothing
is measured: OpenCL launches the programs until CUDA has loaded them. Prints medians in milliseconds
per token, tokens per second, and the bytes that a token must read (weights, and the filled half of
the cache) over that time. ``--without`` prints what tokens take without the kernels of a name, one
name after another: the difference is what these kernels and their launches take. It leaves out what
OpenCL launches, so that it asks for ``PARTITA_CUDA=0``. ``--prompt`` measures so many tokens at
once, in an empty cache, by Partita alone. ``--kernels`` prints how long each kernel of a token
takes on the device, and how long nothing ran before it, as CUDA's profiler tells: to some tenths of
a microsecond, where tokens of two processes differ by ten.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from random_decoders import SIZES, Architecture, decoder, work_of_a_token

import partita
from partita_opencl.runtime import launch_batch

Call = Callable[[], Any]

LOADING_S = 5.0
"""Seconds of calls before those that are measured."""


def torch_call(sizes: Architecture, context: int, prompt: int) -> Call:
    """One token by PyTorch in float16, or a prompt in an empty cache, as a CUDA graph."""
    import torch
    from torch.nn import functional as f

    half = {"dtype": torch.float16, "device": "cuda"}

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, **half) * columns**-0.5

    width, kv = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    layers = [
        {
            "qkv": matrix(width + 2 * kv, sizes.hidden),
            "out": matrix(sizes.hidden, width),
            "gate_up": matrix(2 * sizes.intermediate, sizes.hidden),
            "down": matrix(sizes.hidden, sizes.intermediate),
            "first": torch.ones(sizes.hidden, **half),
            "second": torch.ones(sizes.hidden, **half),
            "keys": torch.randn(1, sizes.kv_heads, context, sizes.head_size, **half),
            "values": torch.randn(1, sizes.kv_heads, context, sizes.head_size, **half),
        }
        for _ in range(sizes.layers)
    ]
    table, norm = matrix(sizes.vocabulary, sizes.hidden), torch.ones(sizes.hidden, **half)
    tokens, before = (prompt, 0) if prompt else (1, context // 2)
    token = torch.zeros(tokens, dtype=torch.int64, device="cuda")
    place = torch.arange(before, before + tokens, device="cuda")
    angles = torch.arange(context, device="cuda")[:, None] * 10000.0 ** (
        -torch.arange(0, sizes.head_size, 2, device="cuda") / sizes.head_size
    )
    cos, sin = (torch.cat([x, x], 1).half() for x in (angles.cos(), angles.sin()))
    filled = before + tokens

    def heads(x: Any, count: int) -> Any:
        return x.view(1, tokens, count, sizes.head_size).transpose(1, 2)

    def rotated(x: Any) -> Any:
        left, right = x.chunk(2, -1)
        return x * cos[place] + torch.cat([-right, left], -1) * sin[place]

    def step() -> Any:
        x = table[token]
        for w in layers:
            q, k, v = f.linear(f.rms_norm(x, x.shape[-1:], w["first"]), w["qkv"]).split(
                [width, kv, kv], -1
            )
            q = rotated(heads(q, sizes.heads))
            w["keys"].index_copy_(2, place, rotated(heads(k, sizes.kv_heads)))
            w["values"].index_copy_(2, place, heads(v, sizes.kv_heads))
            mixed = f.scaled_dot_product_attention(
                q,
                w["keys"][:, :, :filled],
                w["values"][:, :, :filled],
                is_causal=tokens > 1,
                enable_gqa=True,
            )
            x = x + f.linear(mixed.transpose(1, 2).reshape(tokens, width), w["out"])
            normal = f.rms_norm(x, x.shape[-1:], w["second"])
            gate, up = f.linear(normal, w["gate_up"]).chunk(2, -1)
            x = x + f.linear(f.silu(gate) * up, w["down"])
        return f.linear(f.rms_norm(x[-1:], x.shape[-1:], norm), table).float()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        logits = step()
    host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)

    def call() -> None:
        graph.replay()
        host.copy_(logits, non_blocking=True)
        torch.cuda.synchronize()

    return call


def our_call(sizes: Architecture, weights: str, options: argparse.Namespace) -> Call:
    """One token by Partita, always at the middle of the cache, or a prompt at its beginning."""
    context, prompt = options.context, options.prompt
    model = decoder(sizes, weights, context)  # type: ignore[arg-type]  # checked by the parser
    one = {
        port.name: [1 if dim == "batch" else dim for dim in port.shape or ()]
        for port in model.inputs
    }
    model.reshape(one)
    config = {"INFERENCE_PRECISION_HINT": options.precision}
    compiled = partita.Core().compile_model(model, options.device, config)
    request = compiled.create_infer_request()
    last = prompt - 1 if prompt else context // 2
    feeds = {
        "input_ids": np.zeros((1, prompt or 1), np.int64),
        "seqlens_k": np.full(1, last, np.int32),
        "total_sequence_length": np.array(last + 1, np.int32),
    }

    def call() -> None:
        request.infer(feeds, share_outputs=True)["logits"]

    return call


@contextlib.contextmanager
def without(kernel: str) -> Iterator[None]:
    """Tokens whose results are wrong: launches of one kernel are left out."""
    whole = launch_batch.KernelSequence.enqueue
    others: dict[int, launch_batch.KernelSequence] = {}

    def enqueue(sequence: launch_batch.KernelSequence, queue: Any) -> None:
        if id(sequence) not in others:
            left = [call for call in sequence._calls if call[0].name != kernel]
            others[id(sequence)] = launch_batch.KernelSequence(left)
        whole(others[id(sequence)], queue)

    launch_batch.KernelSequence.enqueue = enqueue  # type: ignore[method-assign]  # for a while
    try:
        yield
    finally:
        launch_batch.KernelSequence.enqueue = whole  # type: ignore[method-assign]  # as it was


def print_kernels(call: Call, calls: int = 20) -> None:
    """Prints the kernels and copies of a token in order, with medians in microseconds."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            call()
    found = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    found.sort(key=lambda event: event.time_range.start)
    each = len(found) // calls
    if not each or len(found) % calls:
        print("  CUDA launched no kernels, or not the same ones for each token.")
        return
    for place in range(each):
        same = found[place::each]
        taken = statistics.median(event.time_range.elapsed_us() for event in same)
        before = [found[i - 1].time_range.end for i in range(place, len(found), each) if i]
        starts = [event.time_range.start for event in same[-len(before) :]]
        idle = statistics.median(s - e for s, e in zip(starts, before, strict=True))
        print(f"    {same[0].name[:40]:40} {taken:8.2f} us {idle:8.2f} us idle before")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", default="1B", choices=[n for n, s in SIZES.items() if not s.experts]
    )
    parser.add_argument("--layers", type=int, help="how many, in the place of the size's own")
    parser.add_argument("--weights", default="f16,q4")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=0, help="tokens at once, in an empty cache")
    parser.add_argument("--precision", default="f16", help="what Partita computes in")
    parser.add_argument("--device", default="GPU")
    parser.add_argument("--without", default="", help="kernels that are left out, one by one")
    parser.add_argument("--kernels", action="store_true", help="how long each kernel takes")
    arguments = parser.parse_args()
    sizes, kinds = SIZES[arguments.size], arguments.weights.split(",")
    if arguments.layers is not None:
        sizes = replace(sizes, layers=arguments.layers)
    calls = {f"Partita {kind}": our_call(sizes, kind, arguments) for kind in kinds}
    try:
        calls["PyTorch f16, CUDA graph"] = torch_call(sizes, arguments.context, arguments.prompt)
    except (ImportError, RuntimeError) as error:
        print(f"PyTorch is left out: {str(error).splitlines()[0]}")
    began = time.perf_counter()
    while time.perf_counter() - began < LOADING_S:
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(8):
        for name, call in calls.items():
            for _ in range(arguments.tokens // 8):
                began = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - began)
    context = arguments.context
    for name, taken in times.items():
        seconds = statistics.median(taken)
        if arguments.prompt:
            rate = f"{arguments.prompt / seconds:8.1f} tokens/s"
            print(f"  {name:26} {seconds * 1e3:8.3f} ms {rate}")
            continue
        kind = name.split()[-1] if name.startswith("Partita") else "f16"
        model = decoder(sizes, kind, context)
        nbytes = work_of_a_token(model, context, context // 2).bytes_read
        rate = f"{1 / seconds:8.1f} tokens/s {nbytes / seconds / 1e9:8.0f} GB/s"
        print(f"  {name:26} {seconds * 1e3:8.3f} ms {rate}")
    for kind in kinds if arguments.kernels else ():
        print(f"  {kind}")
        print_kernels(calls[f"Partita {kind}"])
    for kernel in filter(None, arguments.without.split(",")):
        for kind in kinds:
            taken = []
            with without(kernel):
                for _ in range(arguments.tokens):
                    began = time.perf_counter()
                    calls[f"Partita {kind}"]()
                    taken.append(time.perf_counter() - began)
            name = f"{kind} without {kernel}"
            print(f"  {name:26} {statistics.median(taken) * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
