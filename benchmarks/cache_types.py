"""Caches of keys and values of each type: attention's time, a decoder's errors, bytes of a token.

    python benchmarks/cache_types.py [--contexts 512 2048 8192] [--text FILE] [--tokens 256]

First a token of eight attentions (32 heads on 8 of 128 elements, each over a cache of its own)
with two threads, behind so many tokens, in turns. Then, of SmolLM2 (zoo:smollm2): bytes of a
token's keys and values; how far logits are from those of caches in float32, as a share of their
spread; how often the most probable token is the same; and by how much the mean negative
log-likelihood of the text's next tokens differs, whose exponential is the perplexity.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.generate import Generator
from partita.generate.caches.cache_types import CACHE_TYPES
from partita.generate.decoder import Decoder
from partita.tensors.cache_rows import ATTRIBUTES, encoded

Array = np.ndarray[Any, Any]

LAYERS, HEADS, KV_HEADS, SIZE = 8, 32, 8, 128
ROUNDS, TOKENS_OF_A_TURN, EVERYONE = 7, 5, np.ones(1, bool)
TEXT = Path(__file__).parent.parent / "docs" / "architecture.md"


def cache_of(numbers: Array, cache_type: str) -> Array:
    """Numbers as a cache of a type."""
    if cache_type == "int8":
        return encoded(numbers)
    return numbers.astype(ml_dtypes.bfloat16 if cache_type == "bfloat16" else cache_type)


def attentions(context: int, cache_type: str) -> Any:
    """Makes a token behind a context; a function."""
    rng = np.random.default_rng(0)
    width = (HEADS + 2 * KV_HEADS) * SIZE
    past = cache_of(rng.standard_normal((1, KV_HEADS, context, SIZE), np.float32), cache_type)
    nodes, results, feeds = [], [], {"x": rng.standard_normal((1, 1, width), np.float32)}
    attributes = ATTRIBUTES if cache_type == "int8" else {}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, width))]
    kind = numpy_helper.from_array(past[:, :0], "k").data_type
    for layer in range(LAYERS):
        names = [f"{what}.{layer}" for what in ("key", "value")]
        after = [f"present.{name}" for name in names]
        given = ["x", "", "", *names, "lengths", "total"]
        node = helper.make_node(
            "GroupQueryAttention",
            given,
            [f"y.{layer}", *after],
            f"layer.{layer}",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            **attributes,
        )
        nodes.append(node)
        shape = [1, 1, HEADS * SIZE]
        results.append(helper.make_tensor_value_info(f"y.{layer}", TensorProto.FLOAT, shape))
        for name, out in zip(names, after, strict=True):
            inputs.append(helper.make_tensor_value_info(name, kind, past.shape))
            results.append(helper.make_tensor_value_info(out, kind, past.shape))
            feeds[name] = past.copy()
    constants = [
        numpy_helper.from_array(np.array([context - 1], np.int32), "lengths"),
        numpy_helper.from_array(np.array(context, np.int32), "total"),
    ]
    graph = helper.make_graph(nodes, "attentions", inputs, results, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    core = partita.Core()
    model = core.read_model(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 2})
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, array)
        if name != "x":
            request.set_tensor(f"present.{name}", array)
    return lambda: request.infer(share_outputs=True)


def times(context: int) -> dict[str, float]:
    """Milliseconds of a token, by type."""
    steps = {cache_type: attentions(context, cache_type) for cache_type in CACHE_TYPES}
    found: dict[str, list[float]] = {cache_type: [] for cache_type in steps}
    for round_ in range(ROUNDS + 1):
        for cache_type, step in steps.items():
            for _ in range(TOKENS_OF_A_TURN):
                start = time.perf_counter()
                step()
                if round_:
                    found[cache_type].append(1e3 * (time.perf_counter() - start))
    return {cache_type: statistics.median(those) for cache_type, those in found.items()}


def logits_of(generator: Generator, tokens: list[int]) -> Array:
    """Those behind each token."""
    running, found = Decoder(generator.compiled_model), []
    for place, token in enumerate(tokens):
        found.append(running.run(np.array([[token]]), np.array([place]), EVERYONE)[0].copy())
    return np.array(found, np.float64)


def likelihood(logits: Array, tokens: list[int]) -> float:
    """The mean negative logarithm of the probability of the next token."""
    shares = logits - logits.max(-1, keepdims=True)
    shares -= np.log(np.exp(shares).sum(-1, keepdims=True))
    return float(-np.mean(shares[np.arange(len(tokens) - 1), tokens[1:]]))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--contexts", type=int, nargs="*", default=[512, 2048, 8192])
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    print("context", *(f"{name:>10}" for name in CACHE_TYPES), "  ms of eight attentions")
    for context in args.contexts:
        found = times(context)
        print(f"{context:>7}", *(f"{found[name]:>10.3f}" for name in CACHE_TYPES), flush=True)
    if not args.tokens:
        return
    exact = None
    print("\ntype       bytes a token   logits off   same token   likelihood   difference")
    for cache_type in CACHE_TYPES:
        generator = Generator("zoo:smollm2", "CPU", args.tokens, cache_type=cache_type)
        tokens = generator.tokenizer.encode(args.text.read_text())[: args.tokens]
        logits = logits_of(generator, tokens)
        exact = logits if exact is None else exact
        off = np.sqrt(np.mean((logits - exact) ** 2)) / exact.std()
        same = np.mean(logits.argmax(-1) == exact.argmax(-1))
        loss, due = likelihood(logits, tokens), likelihood(exact, tokens)
        print(
            f"{cache_type:<10} {generator.place_bytes:>13} {off:>12.2e} {same:>12.1%} "
            f"{loss:>12.4f} {loss - due:>+12.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
