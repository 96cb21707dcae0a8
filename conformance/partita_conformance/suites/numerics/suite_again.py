"""Suites ``again`` and ``known``: runs of an operator one after another, and of known inputs.

``again`` runs one runner on some numbers, others and the first ones again, and gives it tensors for
its outputs that hold something already; ``again/*/plain_first`` begins with plain numbers, by which
an engine may have chosen its kernels. ``known`` computes draws of which all inputs are constants,
as compilers do before any run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.choices.every import CHOICES
from partita_conformance.draws.cover import nth, order
from partita_conformance.draws.draw import Array, Draw
from partita_conformance.draws.operators import GENERATORS, draw, model_of
from partita_conformance.draws.values import groups_of
from partita_conformance.draws.vary import element_types
from partita_conformance.judging.requirements import (
    DeclinedError,
    NotApplicableError,
    require,
)
from partita_conformance.suites.feeding import host_tensors
from partita_conformance.suites.numerics.drawn import compare_results, draw_check
from partita_conformance.suites.numerics.suite_kinds import CHANCE
from partita_conformance.suites.numerics.suite_operators import claimed_compiles
from partita_conformance.suites.numerics.suite_sweep import valued

_KEPT = frozenset(("BatchNormalization", "Pad", "ScatterElements", "ScatterND", "TensorScatter"))
"""Operators that update what they are given, if an engine lets them."""
_KEPT_DRAWS = 10
_KNOWN = ("float", "int64")
"""Element types of constants: those of weights, and of sizes and places."""


def again_checks() -> list[Check]:
    """The checks of ``again``, one per operator."""
    checks = []
    for op in GENERATORS:
        if op in CHANCE:
            continue
        what = f"{op} on other numbers and the first ones again, into tensors that are given"
        element = nth(op, 0).element_type
        checks.append(Check(f"again/{op}", functools.partial(_run, op), True, what, op, element))
        make = functools.partial(_behind_plain_ones, op)
        what = f"{op} on any numbers, behind runs on plain ones: zeros, and small ones above it"
        checks.append(Check(f"again/{op}/plain_first", make, True, what, op, element))
    return checks


def known_checks() -> list[Check]:
    """The checks of ``known``, one per operator and element type."""
    checks = []
    for op in GENERATORS:
        if op in CHANCE:
            continue
        what = f"{op} of inputs that are all constants"
        checks.append(draw_check(f"known/{op}", op, functools.partial(_usual, op), what))
        for element in element_types(op, draw(op, 0)):
            if element in _KNOWN and groups_of(op, element):
                make = functools.partial(_known, op, element)
                checks.append(draw_check(f"known/{op}/{element}", op, make, what, element))
    return checks


def _usual(op: str, _: Bench) -> list[tuple[str, Draw]]:
    return [("", _of_constants(nth(op, number))) for number in range(2)]


def _known(op: str, element: str, bench: Bench) -> list[tuple[str, Draw]]:
    return [(word, _of_constants(one)) for word, one in valued(op, element, bench)]


def _of_constants(one: Draw) -> Draw:
    return dataclasses.replace(one, constant=range(len(one.inputs)))


def _run(op: str, bench: Bench) -> None:
    """Runs a draw, and one of fewer inputs if there is any, whose defaults hold nothing either."""
    first = nth(op, 0)
    if not all(isinstance(array, np.ndarray) for array in first.inputs if array is not None):
        raise NotApplicableError(f"{op} is not of tensors alone")
    fewest = min((draw(op, 0, attempt) for attempt in order(op)), key=_given)
    for one in (first, fewest) if _given(fewest) < _given(first) else (first,):
        _repeat(op, one, bench)
    for one in _with_weights(op, first):
        _repeat(op, one, bench, (False,))


def _with_weights(op: str, first: Draw) -> Iterator[Draw]:
    """Draws of which one half is part of the model, where a run might leave what it makes."""
    drawn = [first]
    if op in _KEPT:
        every = list(CHOICES[op]()) if op in CHOICES else []
        drawn += every[:: -(-len(every) // _KEPT_DRAWS)] if every else []
    for one in drawn:
        places = [place for place, array in enumerate(one.inputs) if array is not None]
        if len(places) > 1:
            yield dataclasses.replace(one, constant=places[1:])
            yield dataclasses.replace(one, constant=places[:1])


def _given(one: Draw) -> int:
    """How many inputs there are."""
    return sum(array is not None for array in one.inputs)


def _repeat(op: str, one: Draw, bench: Bench, ways: Sequence[bool] = (False, True)) -> None:
    proto, feeds = model_of(op, one)
    turns = [feeds]
    other = {name: _changed(array) for name, array in feeds.items()}
    if _expected(bench, proto, other) is not None:
        turns += [other, feeds]
    compiled = claimed_compiles(bench, proto)
    runner = compiled.device_model.create_runner()
    for given in ways:
        for numbers in turns:
            expected = _expected(bench, proto, numbers)
            if expected is None:
                raise NotApplicableError("no judge can compute it")
            inputs = host_tensors(compiled, numbers)
            outputs = [partita.HostTensor(_filled(array)) for array in expected]
            with np.errstate(all="ignore"):
                results = runner.run(inputs, outputs if given else None)
                have = [tensor.numpy() for tensor in results]
            compare_results(op, one, have, expected)
            for index, array in enumerate(have):
                plain = type(array) is np.ndarray and array.flags.c_contiguous
                require(
                    plain and array.flags.writeable, f"{op}: output {index} is not a plain array."
                )
    runner.close()


_PLAIN_DRAWS = 2
"""Choices of an operator that are tried behind plain numbers."""
_FAR = frozenset(("special", "few special", "limits", "sums", "spread", "long texts"))
"""Groups of values that are furthest from plain ones."""


def _behind_plain_ones(op: str, bench: Bench) -> None:
    """Runs draws of values that break things, and some of all choices, behind plain numbers.

    Raises:
        NotApplicableError: Nobody can say what is right of any.
        DeclinedError: The device takes none of them.
    """
    drawn = [nth(op, 0)]
    for element in _KNOWN:
        if element in element_types(op, draw(op, 0)):
            found = dict(valued(op, element, bench))
            drawn += [one for group, one in found.items() if group in _FAR]
    every = list(CHOICES[op]()) if op in CHOICES else []
    drawn += every[:: -(-len(every) // _PLAIN_DRAWS)] if every else []
    tried = 0
    declined: DeclinedError | None = None
    for number, one in enumerate(drawn):
        if all(isinstance(array, np.ndarray) for array in one.inputs if array is not None):
            forms = _PLAIN[1:] if number else _PLAIN
            try:
                tried += _on_plain_ones_first(op, one, bench, forms)
            except DeclinedError as reason:
                declined = reason
    if not tried:
        raise declined or NotApplicableError(f"no judge has {op} of plain numbers")


def _on_plain_ones_first(
    op: str, one: Draw, bench: Bench, plainer: Sequence[Callable[[Array], Array]]
) -> bool:
    """Runs a draw behind plain forms, each in a model of its own; whether there are any."""
    proto, feeds = model_of(op, one)
    due = _expected(bench, proto, feeds)
    forms = [{name: plain(array) for name, array in feeds.items()} for plain in plainer]
    dues = [_expected(bench, proto, form) for form in forms]
    if due is None or not any(one is not None for one in dues):
        return False
    for form, plain in zip(forms, dues, strict=True):
        if plain is not None:
            compiled = claimed_compiles(bench, proto)
            runner = compiled.device_model.create_runner()
            for numbers, right in ((form, plain), (feeds, due)):
                with np.errstate(all="ignore"):
                    results = runner.run(host_tensors(compiled, numbers))
                    compare_results(op, one, [tensor.numpy() for tensor in results], right)
            runner.close()
    return True


def _none(array: Array) -> Array:
    """Zeros, which are no choice, and no texts."""
    return np.full(array.shape, "" if array.dtype.hasobject else 0, array.dtype)


def _small(array: Array) -> Array:
    """Numbers between 0 and 1, small integers that are not negative, truths, and plain texts."""
    places = np.arange(array.size).reshape(array.shape)
    if array.dtype.hasobject:
        return np.resize(np.array(["a", "b"], object), array.shape)
    if array.dtype.kind in "iu":
        return np.asarray(np.abs(array.astype(np.int64)) % 128, array.dtype)
    if array.dtype.kind == "b":
        return np.ones_like(array)
    return np.asarray((places % 7 + 1) / 8, array.dtype)


_PLAIN = (_none, _small)


def _expected(bench: Bench, proto: Any, feeds: Mapping[str, Array]) -> Sequence[Any] | None:
    """The right outputs; ``None`` where nobody can say."""
    try:
        with np.errstate(all="ignore"):
            return bench.expected(proto, feeds)
    except PartitaError:
        return None


def _changed(array: Array) -> Array:
    """The numbers in another order, or one more; integers, which may be places, stay."""
    if array.dtype.kind in "iuO":
        return array
    if array.size == 1 and array.dtype.kind not in "b":
        return np.asarray(array + np.ones_like(array))
    return np.roll(array.reshape(-1), 1).reshape(array.shape)


def _filled(array: Array) -> Array:
    """An array of the same form that holds what no result should keep."""
    filler: Any = {"b": True, "O": "what was there"}.get(array.dtype.kind)
    if filler is None:
        filler = 101 if array.dtype.kind in "iu" else np.nan
    return np.full(array.shape, filler, array.dtype)
