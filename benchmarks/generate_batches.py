"""Texts beside each other in one generator: what one costs alone, and who waits for whose prompt.

    python benchmarks/generate_batches.py MODEL.gguf [--batches 1 2 4 8] [--prompt 512] [--new 32]
    python benchmarks/generate_batches.py --random 0.5B --kind F16

For each number of texts that a generator has room for: processor time of a prompt when no other
text is there, and of a token after it; of a token when all rows decode; and how long it takes from
one token of the others to the next, at most, while another text's prompt is read, and to that
text's first token. Prompts are of random tokens, all of them different. Least of the rounds.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from generate_options import model_file, model_parser

from partita.generate import Generator


def processor_ms(generator: Generator, prompts: list[list[int]], new: int) -> tuple[float, float]:
    """Milliseconds of processor time until all have a first token, and of each further token."""
    start, first = time.process_time(), 0.0
    begun: set[int] = set()
    for piece in generator.generate_batch(prompts, max_new_tokens=new):
        begun.add(piece.sequence)
        if len(begun) == len(prompts) and not first:
            first = time.process_time()
    tokens = len(prompts) * (new - 1)
    return (first - start) * 1e3, (time.process_time() - first) * 1e3 / tokens


def waits_ms(
    generator: Generator, others: list[list[int]], prompt: list[int], new: int
) -> tuple[float, float]:
    """Milliseconds from token to token of others at most while a prompt is read, and until it is.

    Args:
        generator: Has room for all.
        others: Texts that go on meanwhile.
        prompt: Of the text that comes.
        new: Tokens of others before it comes.
    """
    spans: list[float] = []
    came, read = threading.Event(), threading.Event()

    def come() -> None:
        came.wait()
        start = time.perf_counter()
        next(generator.generate(prompt, max_new_tokens=1))
        spans.append(time.perf_counter() - start)
        read.set()

    thread = threading.Thread(target=come)
    thread.start()
    last, longest, count = time.perf_counter(), 0.0, 0
    for piece in generator.generate_batch(others):
        if piece.sequence:
            continue
        now, count = time.perf_counter(), count + 1
        if came.is_set():
            longest = max(longest, now - last)
        last = now
        if count == new:
            came.set()
        if read.is_set():
            break
    thread.join()
    return longest * 1e3, spans[0] * 1e3


def measured(args: argparse.Namespace, path: Path, batch: int) -> dict[str, float]:
    """The numbers of one generator, in this process."""
    room = 2 * args.prompt + 512
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": args.threads}
    options = {"batch": batch, "chunk": args.chunk, "properties": properties}
    generator = Generator(path, args.device, room, **options)
    draw = np.random.default_rng(0)
    size = (generator.compiled_model.output("logits").shape or (1000,))[-1]
    top = size - 100 if isinstance(size, int) else 900

    def texts(count: int) -> list[list[int]]:
        return [draw.integers(100, top, args.prompt).tolist() for _ in range(count)]

    found: dict[str, list[float]] = {}
    for _ in range(args.rounds + 1):
        alone = processor_ms(generator, texts(1), args.new)
        row = dict(zip(("lone", "lone_token"), alone, strict=True))
        _, row["token"] = processor_ms(generator, texts(batch), args.new)
        if batch > 1:
            both = waits_ms(generator, texts(batch - 1), texts(1)[0], 4)
            row["gap"], row["first"] = both
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: min(values[1:]) for name, values in found.items()}  # the first is for warming up


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = model_parser(__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--new", type=int, default=32, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with model_file(args) as (path, _):
        print(
            f"{path.name}: prompts of {args.prompt}, {args.threads} threads; {os.cpu_count()} "
            f"processors, load {os.getloadavg()[0]:.1f}; milliseconds\n"
        )
        print(
            "| texts | a prompt alone, processor | a token alone, processor | a token of all, "
            "processor | longest gap while a prompt is read | first token of that |"
        )
        print("| --- " * 6 + "|")
        for batch in args.batches:
            row = measured(args, path, batch)
            cells = [
                f"{row[name]:.1f}" if name in row else ""
                for name in ("lone", "lone_token", "token", "gap", "first")
            ]
            print(f"| {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
