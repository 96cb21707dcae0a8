"""What scripts about language models are told in the same way: a GGUF file, or a random one."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from random_decoders import SIZES
from random_gguf import FAMILIES, TYPES, write_random_gguf

from partita import Model
from partita.generate.decoder_ports import DecoderPorts
from partita.model.prompt_chunk import chunk_tokens


def model_parser(description: str) -> argparse.ArgumentParser:
    """A parser that knows which model, its context, Partita's device and the number of threads."""
    parser = argparse.ArgumentParser(description=description)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("model", type=Path, nargs="?", help="a GGUF file")
    source.add_argument("--random", choices=SIZES)
    parser.add_argument("--kind", choices=TYPES, default="Q4_0", help="of --random")
    parser.add_argument("--family", choices=FAMILIES, default="llama", help="of --random")
    parser.add_argument("--context", type=int, default=1024, help="tokens that caches hold")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--chunk", type=int, help="tokens of a prompt in one run (default: as Generator has it)"
    )
    parser.add_argument("--device", default="CPU", help="of Partita")
    return parser


def chunk_of(args: argparse.Namespace, model: Model) -> int:
    """Tokens of a prompt that one run of a decoder reads."""
    cache = DecoderPorts.of(model).cache_bytes(1, args.context)
    return int(args.chunk or chunk_tokens(model, model.weight_bytes + cache))


@contextlib.contextmanager
def model_file(args: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """The file that arguments name, made if it is random, and a folder that lasts as long."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = args.model
        if args.random:
            path = folder / f"random-{args.family}-{args.random}-{args.kind}.gguf"
            write_random_gguf(path, SIZES[args.random], args.kind, args.family)
        yield path, folder
