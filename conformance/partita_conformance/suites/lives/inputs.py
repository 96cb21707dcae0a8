"""Inputs of a step: sizes, elements, and how they are held in memory."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

import partita
from partita_conformance.inputs.models import Array
from partita_conformance.suites.lives.forms import Form
from partita_conformance.suites.lives.lending import CONTIGUOUS, Lent, in_one_block
from partita_conformance.suites.lives.made import Made, User
from partita_conformance.suites.lives.monitor import Monitor

_FEW, _VECTORS = (2, 3, 4, 5, 7), (8, 16, 17, 31, 32, 33, 64, 65)
_PAGE, _CACHE = (1 << 10, 1 << 12, 1 << 14), (1 << 16, 1 << 18, 1 << 20)


class Inputs:
    """Draws inputs of one form, and remembers sizes and arrays of the steps before.

    Args:
        form: The models.
        monitor: Watches what is lent.
        of_code: Numbers in the device's code.
    """

    def __init__(self, form: Form, monitor: Monitor, of_code: Sequence[int]) -> None:
        self._form, self._monitor, self._of_code = form, monitor, of_code
        self._sizes: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._last: dict[str, Lent] = {}

    def let_go(self) -> None:
        """Lets go of the arrays of the steps before."""
        self._last = {}

    def sizes(self, level: str, made: Made, rng: random.Random) -> dict[str, int]:
        """Sizes of all symbols."""
        symbols = self._form.symbols(made.compiled.inputs)
        if made.fixed or not self._form.symbols(made.compiled.inputs):
            return dict(made.fixed)
        before = {s: self._sizes.get(s, 3) for s in symbols}
        match level:
            case "as before":
                sizes = before
            case "in another order":
                names = list(before)
                sizes = dict(zip(names, [*before.values()][::-1], strict=True))
            case "the first again" if self._first:
                sizes = dict(self._first)
            case "more":
                sizes = {s: n + rng.choice((1, 2, 9)) for s, n in before.items()}
            case "fewer":
                sizes = {s: max(1, n - rng.choice((1, 2, 9))) for s, n in before.items()}
            case "one" | "none":
                sizes = {s: rng.choice(_FEW) for s in symbols}
                sizes[rng.choice(symbols)] = int(level == "one")
            case "vectors":
                sizes = {s: rng.choice(_VECTORS) for s in symbols}
            case "of a page" | "of a cache" | "of its code":
                sizes = self._threshold(level, made, symbols, rng)
            case _:
                sizes = {s: rng.choice(_FEW) for s in symbols}
        if self._bytes(made, sizes) > self._form.most:
            sizes = {s: rng.choice(_VECTORS) for s in symbols}
        if self._form.alike:
            sizes = dict.fromkeys(sizes, max(sizes.values()) if level != "none" else 0)
        self._sizes = sizes
        self._first = self._first or sizes
        return sizes

    def _threshold(
        self, level: str, made: Made, symbols: Sequence[str], rng: random.Random
    ) -> dict[str, int]:
        """Sizes that make an input as large as some number, or one element more or less."""
        sizes = {s: rng.choice(_FEW) for s in symbols}
        chosen = rng.choice(symbols)
        numbers = {"of a page": _PAGE, "of a cache": _CACHE}.get(level) or self._of_code or _FEW
        number = rng.choice(numbers)
        ports = [p for p in made.compiled.inputs if chosen in map(str, p.shape or ())]
        port = rng.choice(ports)
        others = [
            d if isinstance(d, int) else sizes[str(d)] for d in port.shape or () if str(d) != chosen
        ]
        rest = max(1, math.prod(others))
        unit = rng.choice((1, rest, rest * (np.dtype(port.dtype).itemsize if port.dtype else 1)))
        sizes[chosen] = max(0, -(-number // unit) + rng.choice((-1, 0, 0, 1)))
        return sizes

    def _bytes(self, made: Made, sizes: Mapping[str, int]) -> int:
        counts = [
            math.prod(d if isinstance(d, int) else sizes[str(d)] for d in p.shape or ())
            for p in made.compiled.inputs
        ]
        return 8 * max(counts, default=0)

    def fresh(
        self,
        port: partita.Port,
        sizes: Mapping[str, int],
        numbers: np.random.Generator,
        values: str,
    ) -> Array:
        """Elements of an input, as :meth:`Form.array` makes them."""
        return self._form.array(port, sizes, numbers, values, self._of_code)

    def lend(
        self,
        levels: Mapping[str, str],
        made: Made,
        user: User,
        sizes: Mapping[str, int],
        rng: random.Random,
        plain: bool,
    ) -> dict[str, Lent]:
        """The inputs of a run.

        Args:
            levels: Of the step.
            made: The model.
            user: Who runs it.
            sizes: Of symbols.
            rng: Draws what is left open.
            plain: Whether they are for a runner, which takes contiguous arrays.
        """
        manner = levels["inputs"]
        if plain and manner not in CONTIGUOUS:
            manner = "new"
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        found: dict[str, Lent] = {}
        for port in made.compiled.inputs:
            if self._form.has_state and port.name == "past" and not plain:
                continue
            fresh = self.fresh(port, sizes, numbers, levels["values"])
            last = self._last.get(port.name)
            alike = last is not None and _alike(last.array, fresh)
            if port.name in self._form.special:
                alike = False
            if alike and last is not None and levels["values"] in ("as before", "one changed"):
                changed = fresh
                fresh = last.array.copy()
                if levels["values"] == "one changed" and fresh.size and not fresh.dtype.hasobject:
                    place = np.unravel_index(rng.randrange(fresh.size), fresh.shape)
                    fresh[place] = changed[place]
            found[port.name] = self._held(port, fresh, manner, last, user, rng, plain)
        if manner == "one for all":
            found = self._begin_alike(found)
        if manner == "in one block":
            lents = in_one_block([lent.array for lent in found.values()])
            found = dict(zip(found, lents, strict=True))
        self._last = {**self._last, **found}
        for lent in found.values():
            self._monitor.lend(lent)
        return found

    def _begin_alike(self, found: Mapping[str, Lent]) -> dict[str, Lent]:
        """Inputs of one type begin where the largest does; those of one shape are one array."""
        made = dict(found)
        for name, lent in found.items():
            if name in self._form.special or lent.array.dtype.hasobject:
                continue
            alike = [o for o in found.values() if o.array.dtype == lent.array.dtype]
            first = max(alike, key=lambda one: one.array.size)
            flat = first.array.reshape(-1)[: lent.array.size]
            same = _alike(first.array, lent.array)
            made[name] = first if same else Lent.over(flat.reshape(lent.array.shape))
        return made

    def _held(
        self,
        port: partita.Port,
        fresh: Array,
        manner: str,
        last: Lent | None,
        user: User,
        rng: random.Random,
        plain: bool,
    ) -> Lent:
        """An input with such elements, or where the manner says so another one like it.

        Args:
            port: The input.
            fresh: The elements.
            manner: How memory holds them.
            last: What the input read in the run before.
            user: Who infers.
            rng: The source of chance.
            plain: Whether results that the user returned himself may not be inputs.
        """
        if port.dtype is None:
            return Lent(fresh, "new", rng)
        lies = last is not None and _alike(last.array, fresh) and manner == "where they lay"
        if lies and last is not None and last.change(fresh, False, rng):
            return last
        if manner == "results" and not fresh.dtype.hasobject:
            results = self._monitor.results_of_others(user, plain)
            alike = [(array, owner) for array, owner in results if _alike(array, fresh)]
            if alike:
                array, owner = rng.choice(alike)
                return Lent.over(array, owner=owner)
        return Lent(fresh, manner, rng)


def _alike(one: Array, other: Array) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)
