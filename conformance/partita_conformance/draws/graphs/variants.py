"""The models of patterns: each with all its variants, on the same inputs.

A device that computes what variants share once must find what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from partita_conformance.draws.draw import Array
from partita_conformance.draws.graphs.patterns import PATTERNS, Choice, Pattern
from partita_conformance.inputs.models import Sample, parse

_SIZES = {"A": 6, "B": 4, "C": 4, "D": 3, "E": 2}
_MORE = 8
"""Variants with two or three things different, behind those with one."""


def pattern(name: str, number: int = 0) -> tuple[Sample, list[str]]:
    """The model of a pattern with its variants, and what each of its outputs is."""
    found = PATTERNS[name]
    weights: dict[str, Array] = {}
    lines, outputs, words = [], [], []
    for turn, chosen in enumerate(_variants(found, number)):
        text = _filled(found, chosen, weights)
        lines.append(_renamed(text, turn))
        outputs.append(f"{found.element}[] y{turn}")
        changed = [
            f"{slot} {value if isinstance(value, str) else value.tolist()}"
            for slot, value in chosen.items()
            if value is not found.slots[slot][0]
        ]
        words.append(f"{name}, {', '.join(changed) or 'as it is known'}")
    source = f"pattern ({found.ports}) => ({', '.join(outputs)}) {{ {' '.join(lines)} }}"
    proto = parse(source, weights)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return Sample(name, proto, _SIZES), words


def _variants(found: Pattern, number: int) -> Iterator[dict[str, Choice]]:
    """The choices of each: the known ones, each other one in turn, and some of several."""
    known = {slot: choices[0] for slot, choices in found.slots.items()}
    yield known
    for slot, choices in found.slots.items():
        for value in choices[1:]:
            yield {**known, slot: value}
    rng = np.random.default_rng(number)
    slots = [slot for slot, choices in found.slots.items() if len(choices) > 1]
    for _ in range(_MORE):
        changed = rng.permutation(slots)[: int(rng.integers(2, 4))]
        other = {s: found.slots[s][int(rng.integers(1, len(found.slots[s])))] for s in changed}
        yield {**known, **other}


def _filled(found: Pattern, chosen: Mapping[str, Choice], weights: dict[str, Array]) -> str:
    """The body with choices in its slots; weights get names of their own and are kept."""
    text = found.body
    for _ in range(2):  # a choice may have slots, too
        for slot, choice in chosen.items():
            if "{" + slot + "}" not in text:
                continue
            if isinstance(choice, str):
                given = chosen[choice[2:-1]] if choice.startswith("={") else choice
                text = text.replace("{" + slot + "}", str(given))
            else:
                place = next(i for i, c in enumerate(found.slots[slot]) if c is choice)
                weights[f"{slot}{place}"] = choice
                text = text.replace("{" + slot + "}", f"{slot}{place}")
    return text


def _renamed(text: str, turn: int) -> str:
    """The text with names of its own for its values."""
    words, word = [], ""
    for character in f"{text} ":
        if character.isalnum() or character == "_":
            word += character
            continue
        if word.startswith("_") or word == "y":
            word = f"{word.strip('_')}{turn}" if word == "y" else f"v{word[1:]}{turn}"
        words += [word, character]
        word = ""
    return "".join(words)
