"""Traits of small models: what each may be, models drawn by them, and how two differ, in words."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from partita_conformance.draws.makeup.steps import STEPS

TRAITS: Mapping[str, tuple[str, ...]] = {
    "the first step": tuple(STEPS),
    "the second step": tuple(STEPS)[::-1],
    "elements": (
        *("float", "double", "float16", "int64", "int32", "int8", "uint8", "bool", "string"),
        *("bfloat16", "uint16", "int16"),
    ),
    "sizes": ("2,3", "3,2", "3,3", "1,6", "6,1", "1,1", "5,67", "130,131"),
    "an attribute": ("the first", "the second", "the third"),
    "constants are": (
        *("initializers", "nodes", "nodes of numbers", "handed on", "reshaped", "turned twice"),
        *("cast", "joined and cut", "chosen by a known condition", "listed as inputs"),
        *("sparse", "of a shape", "gathered", "in fields"),
    ),
    "constants hold": (
        *("numbers", "other numbers", "one number", "zeros", "ones", "NaN among them"),
        *("infinities among them", "zeros of either sign", "another last one", "a diagonal"),
        *("another first one", "large numbers"),
    ),
    "constants have": ("all sizes", "a row", "a column", "one element", "no axis"),
    "constants are read": (
        *("by one step each", "by both steps", "by an operation that nobody reads"),
        *("beside, by an output", "by two more"),
    ),
    "names": (
        *("short", "numbers", "of other scripts", "composed or not", "collide as identifiers"),
        *("in capitals or not", "long, other at the end", "long, other at the beginning"),
        *("like internal ones", "odd", "backwards", "numbered texts", "beginnings of each other"),
    ),
    "names of nodes": ("of their own", "none", "all the same", "those of values", "long"),
    "names in bodies": ("of their own", "those of the other branch"),
    "the graph's name": ("g", "none", "a path", "long", "of other scripts", "main_graph"),
    "form": (
        *("straight", "what is between is an output", "the input is an output"),
        *("a constant is an output", "one value is two outputs", "outputs the other way round"),
        *("the first step twice", "a diamond", "some that nobody reads", "identities in a row"),
        *("turned there and back", "of constants alone", "constants beside", "read by many"),
        *("an output is read on",),
    ),
    "the second step is": (
        *("plain", "in a branch", "in the other branch", "in a branch of a branch", "in a loop"),
        *("in a scan", "in a function", "in a function of a function", "in a known branch"),
        *("in a loop of no turns",),
    ),
    "constants of bodies stand": ("around", "inside", "inside, as nodes"),
    "ports": (
        *("fixed", "of any rows", "of any sizes", "with one that nobody reads"),
        *("with a second one", "the other way round", "of outputs of no shape"),
        *("of outputs of other symbols", "with a second one of other elements"),
    ),
    "order": ("as computed", "constants last", "initializers backwards", "unsorted"),
    "opsets": (
        *("17", "13", "21", "18", "another domain ahead", "another domain behind", "by long name"),
        *("11", "ml ahead"),
    ),
    "it says": ("nothing", "documents", "metadata", "its producer", "types of values", "of nodes"),
}
"""Trait to what it may be; the first is the plainest."""

Makeup = Mapping[str, str]
"""One choice for each trait."""
Fits = Callable[[Makeup], bool]

PLAIN: Makeup = {trait: choices[0] for trait, choices in TRAITS.items()}
_TRIED, _CANDIDATES = 60, 6


def drawn(rng: random.Random, fits: Fits, strange: float = 0.4) -> Makeup:
    """A makeup of which each trait is another than the plainest with a probability.

    Args:
        rng: What draws.
        fits: Whether a model can be made of a makeup.
        strange: The probability.
    """
    for _ in range(_TRIED):
        found = dict(PLAIN)
        for trait, choices in TRAITS.items():
            if "step" in trait.split() or rng.random() < strange:
                found[trait] = rng.choice(choices)
        if fits(found):
            return found
    return PLAIN


def covering(count: int, seed: int, fits: Fits, also: Mapping[str, Sequence[str]]) -> list[Makeup]:
    """Makeups that hold, between them, as many pairs of choices of two traits as they may.

    Args:
        count: How many makeups.
        seed: Which ones.
        fits: Whether a model can be made of a makeup.
        also: Further traits, of how a model is used, which makeups have too.
    """
    rng = random.Random(seed)  # noqa: S311  # the same models each time
    met: set[tuple[str, str, str, str]] = set()
    found: list[Makeup] = []
    while len(found) < count:
        candidates: list[tuple[int, int, Makeup]] = []
        for _ in range(_CANDIDATES):
            one = dict(drawn(rng, lambda makeup: True, 0.55))
            one.update({trait: rng.choice(choices) for trait, choices in also.items()})
            candidates.append((sum(pair not in met for pair in _pairs(one)), len(candidates), one))
        best = next((one for *_, one in sorted(candidates, reverse=True) if fits(one)), None)
        if best is not None:
            met.update(_pairs(best))
            found.append(best)
    return found


def _pairs(makeup: Makeup) -> Iterator[tuple[str, str, str, str]]:
    for (a, b), (c, d) in itertools.combinations(makeup.items(), 2):
        yield a, b, c, d


def neighbours(makeup: Makeup, trait: str, fits: Fits) -> list[Makeup]:
    """The makeups that differ from one in a trait alone, as far as models can be made of them."""
    others = ({**makeup, trait: choice} for choice in TRAITS[trait] if choice != makeup[trait])
    return [other for other in others if fits(other)]


def deviations(makeup: Makeup) -> str:
    """What is not plain about a makeup."""
    strange = (f"{trait}: {makeup[trait]}" for trait in TRAITS if makeup[trait] != PLAIN[trait])
    return "; ".join(strange) or "all plain"


def difference(one: Makeup, other: Makeup) -> str:
    """In what two makeups differ."""
    traits = [trait for trait in one if one[trait] != other.get(trait)]
    return "; ".join(f"{t}: '{one[t]}' against '{other.get(t)}'" for t in traits) or "nothing"
