"""Partita beside llama.cpp on decoders of several families, by every kind of weights, in turns.

    python benchmarks/generate_grid.py [--families llama gemma3] [--kinds F16 Q4_0] [--threads 2]

Decoders have random weights, some hundred million parameters of them, made anew for each row. A row
has processor time of a prompt and of a token behind it, the least of some turns, and ratios to
llama.cpp (NODE_LLAMA_CPP as for generate_peers.py) by this and by the clock. Others on the machine
disturb the first one less; several threads of llama.cpp wait for each other busily, which it
counts. ``--engine`` takes another way of Partita to compute, as generate_peers.py has them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from generate_peers import ENGINES, Setting, Turn, decoder_of, random_prompt, started, turns_of
from random_decoders import SIZES
from random_gguf import FILE_TYPES, write_random_gguf

MODELS = {
    "llama": ("llama", "0.2B"),
    "qwen2": ("qwen2", "0.2B"),
    "qwen3": ("qwen3", "0.2B-long-heads"),
    "gemma": ("gemma", "0.2B-wide-heads"),
    "gemma2": ("gemma2", "0.2B-wide-heads"),
    "gemma3": ("gemma3", "0.2B-wide-heads"),
    "mixture": ("llama", "8x20M"),
    "qwen3moe": ("qwen3", "8x20M"),
}
"""Family and size of decoders by a name for the table."""


def best(turns: list[Turn]) -> tuple[float, float, float, float]:
    """The least seconds and processor seconds of prompts and of what follows them."""
    return (
        min(turn.prefill_s for turn in turns),
        min(turn.decode_s for turn in turns),
        min(turn.prefill_cpu_s for turn in turns),
        min(turn.decode_cpu_s for turn in turns),
    )


def row(name: str, kind: str, args: argparse.Namespace) -> str:
    """A row of the table."""
    family, size = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_random_gguf(path, SIZES[size], kind, family)
        model = decoder_of(path, 1024)
        setting = Setting(path, model, 1024, args.threads, Path(folder))
        engines = started([args.engine, "llama.cpp"], setting)
        prompt = random_prompt(model, args.prompt)
        turns = turns_of(engines, prompt, args.new, args.rounds)
        own, peer = (best(turns[engine.name]) for engine in engines)
    ratios = [b / a for a, b in zip(own, peer, strict=True)]
    return (
        f"| {name} {size} | {kind} | {own[2]:.3f} | {ratios[2]:.2f} | {ratios[0]:.2f} "
        f"| {1e3 * own[3] / args.new:.2f} | {ratios[3]:.2f} | {ratios[1]:.2f} |"
    )


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=FILE_TYPES, default=list(FILE_TYPES))
    parser.add_argument("--engine", choices=ENGINES, default="partita", help="of Partita")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--new", type=int, default=32, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(
        "| decoder | weights | prompt, processor s | over llama.cpp | by the clock "
        "| token, processor ms | over llama.cpp | by the clock |"
    )
    print("| --- " * 8 + "|", flush=True)
    for name in args.families:
        for kind in args.kinds:
            print(row(name, kind, args), flush=True)


if __name__ == "__main__":
    main()
