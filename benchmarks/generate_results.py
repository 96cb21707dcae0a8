"""Whether a GGUF decoder's results are right, its tokens steady and its memory small.

    python benchmarks/generate_results.py MODEL.gguf [--checks results steps memory]
    python benchmarks/generate_results.py --random 1.5B --checks steps memory

results: greedy tokens behind a prompt beside those of the decoder in float64 on the unpacked
weights (`tests/llm_reference.py`, which shares no code with Partita), and the largest difference of
the logits on the same tokens. steps: seconds of every token from an empty to a full cache, and of
prompts of lengths that no run had before. memory: the peak of a process that compiles and
fills the cache, above what it had before, beside the bytes of weights and cache; pages of the
mapped file count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from generate_options import chunk_of, model_file, model_parser

import partita
from partita.generate.decoder_ports import DecoderPorts

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

CHECKS = ("results", "steps", "memory")


def model_of(path: Path, context: int) -> partita.Model:
    """A decoder for one sequence, with room for so many tokens."""
    model = partita.Core().read_model(path, decoder=partita.DecoderOptions(context=context))
    shapes = {port.name: port.shape for port in model.inputs if port.shape}
    return model.reshape({name: (1, *shape[1:]) for name, shape in shapes.items()})


class Request:
    """One request of a decoder, whose cache it keeps."""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        self.model = model_of(path, args.context)
        config = {"INFERENCE_NUM_THREADS": args.threads} if args.device == "CPU" else {}
        if args.exact:
            config["EXECUTION_MODE_HINT"] = "ACCURACY"
        compiled = partita.Core().compile_model(self.model, args.device, config)
        self._request = compiled.create_infer_request()
        self.chunk = chunk_of(args, self.model)

    def logits(self, tokens: list[int], past: int) -> np.ndarray[Any, Any]:
        """Of the last of some tokens that follow so many others."""
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([past + len(tokens) - 1], np.int32),
            "total_sequence_length": np.array(past + len(tokens), np.int32),
        }
        found = np.asarray(self._request.infer(feeds)["logits"], np.float64)
        return found.reshape(-1, found.shape[-1])[-1]


def float64_decoder(path: Path) -> Any:
    """The decoder on unpacked weights."""
    from llm_reference import ReferenceDecoder

    from partita.frontends.gguf import open_file

    file = open_file(path)
    weights = {name: _unpacked(tensor) for name, tensor in file.tensors.items()}
    return ReferenceDecoder(dict(file.metadata), weights)


_RECORDS: dict[str, list[Any]] = {
    "F32": [("plain", "<f4")],
    "F16": [("plain", "<f2")],
    "BF16": [("high", "<u2")],
    "MXFP4": [("exponent", "u1"), ("nibbles", "u1", 16)],
    "Q4_0": [("scale", "<f2"), ("nibbles", "u1", 16)],
    "Q4_1": [("scale", "<f2"), ("least", "<f2"), ("nibbles", "u1", 16)],
    "Q8_0": [("scale", "<f2"), ("bytes", "i1", 32)],
    "Q4_K": [("scale", "<f2"), ("least", "<f2"), ("six", "u1", 12), ("nibbles", "u1", (4, 32))],
    "Q6_K": [
        ("low", "u1", (2, 64)),
        ("top", "u1", (2, 1, 32)),
        ("of16", "i1", 16),
        ("scale", "<f2"),
    ],
}


def _unpacked(tensor: Any) -> np.ndarray[Any, Any]:
    """The elements of a tensor of a file in float64."""
    kind = tensor.format.name
    if kind not in _RECORDS:
        raise SystemExit(f"Weights of {kind} are not unpacked here; {', '.join(_RECORDS)} are.")
    return element_blocks(tensor.data, kind).astype(np.float64).reshape(tensor.shape)


_E2M1 = np.array([sign * x for sign in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])
"""What four bits of MXFP4 stand for."""


def element_blocks(data: Any, kind: str) -> np.ndarray[Any, Any]:
    """The elements of bytes of blocks, by the formulas of ``ggml-quants.c``."""
    blocks = np.frombuffer(data, _RECORDS[kind])
    if kind in ("F32", "F16"):
        return np.asarray(blocks["plain"])
    if kind == "BF16":
        return np.asarray((blocks["high"].astype(np.uint32) << 16).view(np.float32))
    if kind == "MXFP4":
        places = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=-1)
        return np.asarray(2.0 ** (blocks["exponent"][:, None] - 127.0) * _E2M1[places])
    scale = blocks["scale"].astype(np.float64)[:, None]
    if kind == "Q8_0":
        return np.asarray(scale * blocks["bytes"])
    if kind == "Q6_K":
        low = np.concatenate([blocks["low"] & 15, blocks["low"] >> 4], axis=2)
        top = blocks["top"] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
        quants = (low | top.reshape(low.shape) << 4).astype(np.float64) - 32
        return np.asarray((scale * blocks["of16"])[..., None] * quants.reshape(-1, 16, 16))
    quants = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=-1)
    if kind == "Q4_0":
        return np.asarray(scale * (quants - 8.0))
    least = blocks["least"].astype(np.float64)[:, None]
    if kind == "Q4_1":
        return np.asarray(scale * quants + least)
    first, second, last = np.split(blocks["six"], 3, axis=1)
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    leasts = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    return np.asarray(
        (scale * scales)[..., None] * quants.reshape(-1, 8, 32) - (least * leasts)[..., None]
    )


def check_results(path: Path, args: argparse.Namespace) -> None:
    """Tokens and logits beside those of float64."""
    request, judge = Request(path, args), float64_decoder(path)
    vocabulary = len(judge.weights["token_embd.weight"])
    random = np.random.default_rng(0)
    prompt = random.integers(100, vocabulary - 100, args.prompt).tolist()
    expected = judge.run(prompt)[-1]
    found = request.logits(prompt, 0)
    differences, relative, first_other = [], [], None
    for number in range(args.new):
        differences.append(float(np.abs(found - expected).max()))
        relative.append(differences[-1] / float(np.abs(expected).max()))
        token = int(expected.argmax())
        if first_other is None and int(found.argmax()) != token:
            first_other = number, float(expected[token] - expected[int(found.argmax())])
        found = request.logits([token], args.prompt + number)
        expected = judge.step(token)
    same = f"all {args.new} are float64's"
    if first_other is not None:
        number, gap = first_other
        same = f"token {number} is the first other one, whose float64 logit is {gap:.2e} smaller"
    print(f"greedy tokens behind a random prompt of {args.prompt}: {same}")
    print(
        f"logits: largest difference {max(differences):.2e}, of the largest logit "
        f"{max(relative):.2e}; median {statistics.median(relative):.2e}",
        flush=True,
    )


def check_steps(path: Path, args: argparse.Namespace) -> None:
    """Every token's time, and that of prompts of new lengths."""
    request = Request(path, args)
    request.logits([1], 0)
    seconds = []
    for past in range(args.context - 1):
        start = time.perf_counter()
        request.logits([1], past)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    long = [number for number, one in enumerate(seconds) if one > 2 * median]
    print(
        f"{len(seconds)} tokens from an empty to a full cache: median {median * 1e3:.2f} ms, "
        f"longest {max(seconds) * 1e3:.2f} ms ({max(seconds) / median:.2f} times); "
        f"{len(long)} take over 2 times the median{': ' * bool(long)}{str(long[:8]) * bool(long)}"
    )
    print("| tokens of a prompt | first, ms | again, ms |")
    print("| --- " * 3 + "|")
    random = np.random.default_rng(1)
    for count in sorted(random.choice(np.arange(2, args.context), args.lengths, replace=False)):
        times = []
        for _ in range(4):
            start = time.perf_counter()
            for begin in range(0, count, request.chunk):
                request.logits([1] * min(request.chunk, int(count) - begin), begin)
            times.append(time.perf_counter() - start)
        print(f"| {count} | {times[0] * 1e3:.1f} | {min(times[1:]) * 1e3:.1f} |", flush=True)


def check_memory(path: Path, args: argparse.Namespace) -> None:
    """A child's peak beside weights and cache."""
    names = [name for name in ("threads", "device", "context", "chunk") if getattr(args, name)]
    options = [word for name in names for word in (f"--{name}", str(getattr(args, name)))]
    command = [sys.executable, __file__, str(path), *options]
    done = subprocess.run(
        [*command, "--measure-memory"], check=True, capture_output=True, text=True
    )
    facts = json.loads(done.stdout.splitlines()[-1])
    wanted = facts["weights"] + facts["cache"]
    print(
        f"memory: {facts['peak'] / 1e6:.0f} MB at most above the {facts['before'] / 1e6:.0f} MB "
        f"of imports and compiled kernels, {facts['compiled'] / 1e6:.0f} MB until the model is "
        f"compiled; weights of the file {facts['weights'] / 1e6:.0f} MB, "
        f"cache of {args.context} tokens {facts['cache'] / 1e6:.0f} MB: "
        f"{facts['peak'] / wanted:.2f} times both, by chunks of {facts['chunk']} tokens"
    )
    whole = facts["before"] + facts["peak"]
    print(
        f"of the whole process {whole / 1e6:.0f} MB at most, {whole / wanted:.2f} times both; "
        f"{facts['anonymous'] / 1e6:.0f} MB are no pages of files in the end"
    )


def measure_memory(path: Path, args: argparse.Namespace) -> None:
    """Prints bytes as JSON; for a process of its own."""
    from tiny_gguf import write_tiny_gguf

    with tempfile.TemporaryDirectory() as folder:  # what any model needs
        tiny = Path(folder) / "tiny.gguf"
        write_tiny_gguf(tiny)
        small = argparse.Namespace(**{**vars(args), "context": 64})
        Request(tiny, small).logits([1, 2, 3], 0)
    before = _status_bytes("VmHWM")
    request = Request(path, args)
    compiled = _status_bytes("VmHWM") - before
    last = args.context - 1
    for begin in range(0, last, request.chunk):
        request.logits([1] * min(request.chunk, last - begin), begin)
    request.logits([1], last)
    cache = DecoderPorts.of(request.model).cache_bytes(1, args.context)
    facts = {"before": before, "compiled": compiled, "peak": _status_bytes("VmHWM") - before}
    facts["chunk"], facts["anonymous"] = request.chunk, _status_bytes("RssAnon")
    print(json.dumps({**facts, "cache": cache, "weights": path.stat().st_size}))


def _status_bytes(key: str) -> int:
    """What the system tells of this process, as ``VmHWM``, the most that it had in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{key}:")[2].split()[0]) * 1024


def main() -> None:
    """Reads the arguments and runs the checks."""
    parser = model_parser(__doc__.splitlines()[0])
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--prompt", type=int, default=32, help="tokens, for results")
    parser.add_argument("--new", type=int, default=256, help="tokens, for results")
    parser.add_argument("--lengths", type=int, default=6, help="prompts of new lengths")
    parser.add_argument("--exact", action="store_true", help="EXECUTION_MODE_HINT=ACCURACY")
    parser.add_argument("--measure-memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure_memory:
        measure_memory(args.model, args)
        return
    with model_file(args) as (path, _):
        print(
            f"{path.name} on {args.device}, {args.threads} threads, load {os.getloadavg()[0]:.1f}"
        )
        for name in args.checks:
            {"results": check_results, "steps": check_steps, "memory": check_memory}[name](
                path, args
            )


if __name__ == "__main__":
    main()
