"""Prompts whose rows are rounded to int8: how far a decoder's logits and tokens are off.

    python benchmarks/int8_rows.py [--model zoo:smollm2] [--text FILE] [--groups 32 64 128]

The text is cut into prompts of so many tokens, and each is read by exact products (group 0) and by
rows in int8 by groups (DYNAMIC_QUANTIZATION_GROUP_SIZE). Behind the last token of each: how far
logits are from the exact ones, as a share of their spread; how often the most probable token is the
same; by how much the mean negative log-likelihood of the text's next token differs; and how many
tokens that follow, each the likeliest, are the same before the first that is not, on average.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from partita.generate import Generator
from partita.generate.decoder import Decoder

Array = np.ndarray[Any, Any]

TEXT = Path(__file__).parent.parent / "docs" / "architecture.md"
EVERYONE = np.ones(1, bool)
PROPERTY = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


def behind_prompts(
    running: Decoder, prompts: list[list[int]], chunk: int, new: int
) -> tuple[Array, Array]:
    """Logits behind each prompt, and the tokens that follow, each the likeliest."""
    logits, tokens = [], []
    for prompt in prompts:
        running.reset()
        for start in range(0, len(prompt), chunk):
            piece = np.array([prompt[start : start + chunk]])
            found = running.run(piece, np.array([start]), EVERYONE)[0]
        logits.append(found.astype(np.float64))
        following = [int(found.argmax())]
        for place in range(len(prompt), len(prompt) + new - 1):
            found = running.run(np.array([following[-1:]]), np.array([place]), EVERYONE)[0]
            following.append(int(found.argmax()))
        tokens.append(following)
    return np.array(logits), np.array(tokens)


def likelihood(logits: Array, following: Array) -> float:
    """The mean negative logarithm of the probability of what follows."""
    shares = logits - logits.max(-1, keepdims=True)
    shares -= np.log(np.exp(shares).sum(-1, keepdims=True))
    return float(-np.mean(shares[np.arange(len(following)), following]))


def main() -> None:
    """Prints a line for each group."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--groups", type=int, nargs="*", default=[32, 64, 128])
    parser.add_argument("--tokens", type=int, default=128, help="of a prompt")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--new", type=int, default=16, help="tokens behind each")
    parser.add_argument("--chunk", type=int, default=128, help="tokens that one run reads")
    args = parser.parse_args()
    exact: tuple[Array, Array] | None = None
    print("group   logits off   same token   likelihood   difference   tokens alike")
    for group in (0, *args.groups):
        context = args.tokens + args.new
        made = Generator(args.model, "CPU", context, chunk=args.chunk, properties={PROPERTY: group})
        if made.compiled_model.get_property(PROPERTY) != group:
            print(*made.compiled_model.explain().notes)
            return
        tokens = made.tokenizer.encode(args.text.read_text(encoding="utf-8"))
        starts = range(0, len(tokens) - args.tokens, args.tokens)[: args.prompts]
        prompts = [tokens[start : start + args.tokens] for start in starts]
        following = np.array([tokens[start + args.tokens] for start in starts])
        decoder = Decoder(made.compiled_model)
        logits, greedy = behind_prompts(decoder, prompts, args.chunk, args.new)
        exact = (logits, greedy) if exact is None else exact
        off = np.sqrt(np.mean((logits - exact[0]) ** 2)) / exact[0].std()
        same = np.mean(logits.argmax(-1) == exact[0].argmax(-1))
        alike = np.cumprod(greedy == exact[1], axis=1).sum(1).mean()
        loss, due = likelihood(logits, following), likelihood(exact[0], following)
        print(
            f"{group:>5} {off:>12.2e} {same:>12.1%} {loss:>12.4f} {loss - due:>+12.5f} "
            f"{alike:>10.1f} of {args.new}",
            flush=True,
        )


if __name__ == "__main__":
    main()
