"""Suite ``lives``: in which two ways of use ever meet, and everything is looked at each time."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.judging.requirements import ConformanceError, DeclinedError
from partita_conformance.suites.lives.code_numbers import numbers_of_code
from partita_conformance.suites.lives.dimensions import DIMENSIONS, Planner, Step
from partita_conformance.suites.lives.forms import Form, forms
from partita_conformance.suites.lives.life import lived, living, shortest

_STEPS = 34


def life_checks() -> list[Check]:
    """The checks, one per form of model."""
    said = "Two ways of use that meet in drawn steps, everything looked at behind each: {0}"
    return [
        Check(
            f"lives/{form.name.replace(' ', '_')}",
            functools.partial(_live, form, number),
            True,
            said.format(form.name),
        )
        for number, form in enumerate(_forms())
    ]


@functools.cache
def _forms() -> tuple[Form, ...]:
    return tuple(forms())


@functools.cache
def plans() -> tuple[tuple[Step, ...], ...]:
    """The steps of all lives, by form: each pair of levels meets in some of them."""
    planner = Planner(0)
    plans = (planner.steps(_STEPS, _levels(form, n)) for n, form in enumerate(_forms()))
    return tuple(map(tuple, plans))


def _levels(form: Form, number: int) -> Mapping[str, Sequence[str]]:
    """The levels of all dimensions that a form has, and some of how models are made."""
    levels = dict(DIMENSIONS)
    origins = levels["origin"]
    levels["origin"] = [*origins[:2], *(origins[2 + (number + 2 * n) % 9] for n in range(4))]
    inputs = form.protos[0].graph.input
    if not any(d.dim_param for one in inputs for d in one.type.tensor_type.shape.dim):
        levels["sizes"] = levels["sizes"][:1]
    if not inputs:
        levels.update({d: levels[d][:1] for d in ("inputs", "values", "named")})
    return levels


def _live(form: Form, number: int, bench: Bench) -> None:
    try:
        refusals = [reason for proto in form.protos for reason in bench.refusals(proto)]
    except PartitaError as reason:
        raise DeclinedError(str(reason)) from reason
    if refusals:
        raise DeclinedError(refusals[0])
    of_code = numbers_of_code(bench)
    _warm(bench, form)
    steps = plans()[number]
    made, error = lived(bench, form, of_code, steps)
    if error is None:
        return
    fewest, cause = shortest(bench, form, of_code, steps[:made], error)
    listed = " / ".join(f"{place}. {step}" for place, step in enumerate(fewest, 1))
    raise ConformanceError(f"{form.name}, behind these steps: {listed}: {_words(cause)}") from cause


def _warm(bench: Bench, form: Form) -> None:
    """Lets the framework load what it loads when it is first used, which is no step's doing."""
    if bench in _warmed:
        return
    _warmed.add(bench)
    with living(bench, form, ()) as life:
        for origin in ("in parts", "imported", "cached"):
            life.make(Step({**_PLAINEST, "origin": origin, "way": "is started"}, 0))


_warmed: weakref.WeakSet[Bench] = weakref.WeakSet()
_PLAINEST = {dimension: levels[0] for dimension, levels in DIMENSIONS.items()}


def _words(error: Exception) -> str:
    named = "" if isinstance(error, ConformanceError) else f"{type(error).__name__}: "
    return f"{named}{error}"
