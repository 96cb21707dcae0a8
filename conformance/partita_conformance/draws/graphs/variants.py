"""The models of patterns: each with all its variants, on the same inputs.

A device that computes what variants share once must find what differs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from partita_conformance.draws.draw import Array
from partita_conformance.draws.graphs.patterns.every import PATTERNS
from partita_conformance.draws.graphs.patterns.pattern import Choice, Pattern
from partita_conformance.inputs.models import Sample, parse

_SIZES = {"A": 6, "B": 4, "C": 4, "D": 3, "E": 2}
_SAME = re.compile(r"(_\w+) = Identity\((\w+)\) ")
"""A value between that is another one."""
_PAIRS, _MORE = 16, 4
"""Variants with two things different and with up to three, behind those with one."""


@functools.lru_cache(maxsize=8)
def pattern(name: str, number: int = 0) -> tuple[Sample, list[str]]:
    """The model of a pattern with its variants, and what each of its outputs is."""
    found = PATTERNS[name]
    weights: dict[str, Array] = {}
    lines: list[str] = []
    outputs: list[str] = []
    words: list[str] = []
    for chosen, text in _variants(found, number, weights):
        turn = len(words)
        lines.append(_renamed(text, turn))
        outputs.append(f"{found.element}[] y{turn}")
        changed = [
            f"{slot} {value if isinstance(value, str) else value.tolist()}"
            for slot, value in chosen.items()
            if value is not found.slots[slot][0]
        ]
        words.append(f"{name}, {', '.join(changed) or 'as it is known'}")
    read = {name: array for name, array in weights.items() if any(name in one for one in lines)}
    proto = _parsed(found, lines, outputs, read)
    return Sample(name, proto, _SIZES), words


def _parsed(
    found: Pattern, lines: Sequence[str], outputs: Sequence[str], weights: Mapping[str, Array]
) -> onnx.ModelProto:
    source = f"pattern ({found.ports}) => ({', '.join(outputs)}) {{ {' '.join(lines)} }}"
    proto = parse(source, dict(weights))
    proto.opset_import[0].version = found.opset
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def _valid(found: Pattern, text: str, weights: Mapping[str, Array]) -> bool:
    """Whether choices fit each other: ONNX infers and computes what they come to."""
    output = f"{found.element}[] y0"
    read = {name: array for name, array in weights.items() if name in text}
    proto = _parsed(found, [_renamed(text, 0)], [output], read)
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    if "ConvTranspose" in text:  # whose groups ONNX's evaluator does not know
        return True
    try:
        evaluator = ReferenceEvaluator(proto)
    except RuntimeError:  # it has no such operator of this opset
        return True
    try:
        with np.errstate(all="ignore"):
            evaluator.run(None, Sample("variant", proto, _SIZES).feeds())
    except Exception:  # noqa: BLE001  # each of its operators raises what it likes
        return False
    return True


def _variants(
    found: Pattern, number: int, weights: dict[str, Array]
) -> Iterator[tuple[dict[str, Choice], str]]:
    """Choices and what they come to: the known ones, each other one, pairs of these, and more.

    A choice that only matters beside another one stands beside that one.
    """
    rng = np.random.default_rng(number)
    known = {slot: choices[0] for slot, choices in found.slots.items()}
    others = [(slot, value) for slot, choices in found.slots.items() for value in choices[1:]]
    pairs = [(a, b) for a, b in itertools.combinations(others, 2) if a[0] != b[0]]
    shuffled = [pairs[place] for place in rng.permutation(len(pairs))]
    seen: set[str] = set()

    def tried(*changed: tuple[str, Choice]) -> Iterator[tuple[dict[str, Choice], str]]:
        chosen = {**known, **dict(changed)}
        text = _filled(found, chosen, weights)
        if text not in seen and _valid(found, text, weights):
            seen.add(text)
            yield chosen, text

    yield from tried()
    for one in others:
        beside = [others[place] for place in rng.permutation(len(others))]
        made = [*tried(one)]
        for other in beside if not made else ():
            if other[0] == one[0]:
                continue
            if _filled(found, {**known, **dict([other])}, weights) != _filled(
                found, {**known, **dict([other, one])}, weights
            ):
                made = [*tried(other, one)]
            if made:
                break
        yield from made
    for pair in shuffled[:_PAIRS]:
        yield from tried(*pair)
    for _ in range(_MORE):
        yield from tried(*(others[place] for place in rng.permutation(len(others))[:3]))


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
    return _adjacent(text)


def _adjacent(text: str) -> str:
    """The text without values between that are others as they are, so that operators meet."""
    while found := _SAME.search(text):
        name, source = found.groups()
        text = re.sub(rf"\b{name}\b", source, text[: found.start()] + text[found.end() :])
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
