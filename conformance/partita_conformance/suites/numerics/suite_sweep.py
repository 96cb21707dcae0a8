"""Suites ``types``, ``attributes``, ``opsets``, ``values`` and ``sizes``: draws varied by a table.

Each takes the draws of :mod:`partita_conformance.draws.operators` and changes one thing: the
element type to
each that the operator's schema allows, the opset to each older version of the operator, the numbers
to those that break things, the sizes to ones that no vector divides. ``attributes`` looks for a
draw in which the loss of an attribute changes the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check, ConformanceError, NotApplicableError
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import GENERATORS, draw, model_of
from partita_conformance.draws.vary import (
    GROUPS,
    INTEGERS,
    aged,
    element_types,
    revalued,
    schema_of,
    typed,
    without,
)
from partita_conformance.judging.compare import compare
from partita_conformance.judging.tolerances import ELEMENTWISE, EXACT, ROUNDED, tolerance
from partita_conformance.suites.numerics.suite_operators import claimed_compiles

Make = Callable[[Bench], Draw | None]

OPSETS = (7, 9, 11, 13)
_ATTEMPTS = 60
_VALUED = sorted((EXACT | ROUNDED | ELEMENTWISE) & GENERATORS.keys() - {"ConstantOfShape", "Range"})
"""Operators whose answers to values that break things ONNX or IEEE 754 says; of two, they would
be sizes."""
_UNORDERED = {"MaxPool", "GlobalMaxPool", "TopK", "ArgMax", "ArgMin", "Hardmax", "Unique"}
_PERIODIC = {"Sin", "Cos", "Tan", "Asin", "Acos", "Atanh"}
_CASTS = {"Cast", "CastLike"}
UNTOLD: Mapping[str, Set[str]] = {
    "special": _UNORDERED | _CASTS | {"OneHot"},
    "large": _PERIODIC | _CASTS | {"OneHot"},
    "small": {"OneHot"},
    "ties": {"OneHot"},
    **{kind: {"Pow", "Shrink"} for kind in INTEGERS},
}
"""Operators whose answers to a group of values are not said: NaN has no order, and a float beyond
the range of an integer becomes any; indices are whole."""


def sweep_checks(count: int) -> list[Check]:
    """The checks of all five suites.

    Args:
        count: Random models per operator; types and sizes take a quarter as many.
    """
    checks = []
    make: Make
    quarter = max(1, count // 4)
    for op in GENERATORS:
        first = draw(op, 0)
        for element in element_types(op, first):
            for number in range(quarter):
                make = functools.partial(_typed, op, element, number)
                what = f"{op} of {element}"
                checks.append(_check(f"types/{op}/{element}/{number}", op, make, what, element))
        for attribute in attributes_of(op, first.opset):
            make = functools.partial(telling, op, attribute)
            what = f"{op} where {attribute} matters"
            checks.append(_check(f"attributes/{op}/{attribute}", op, make, what))
        for opset in OPSETS:
            if is_another(op, opset, first.opset):
                make = functools.partial(_aged, op, opset)
                what = f"{op} of opset {opset}"
                checks.append(_check(f"opsets/{op}/{opset}", op, make, what))
        for number in range(quarter):
            make = functools.partial(_sized, op, number)
            what = f"{op} of sizes that no vector divides"
            checks.append(_check(f"sizes/{op}/{number}", op, make, what))
    for op in _VALUED:
        whole = [n for n in element_types(op, draw(op, 0)) if n in INTEGERS]
        for group in (*GROUPS, *whole):
            if op not in UNTOLD.get(group, ()):
                make = functools.partial(_valued, op, group)
                checks.append(_check(f"values/{op}/{group}", op, make, f"{op} of {group} values"))
    return checks


def _check(name: str, op: str, make: Make, summary: str, element: str = "") -> Check:
    run = functools.partial(_run, op, make)
    return Check(name, run, False, summary, op, element or "float")


def _run(op: str, make: Make, bench: Bench) -> None:
    """Compares what the device makes of a draw with what is right.

    Raises:
        NotApplicableError: There is no such draw, or nobody can say what is right.
    """
    made = make(bench)
    if made is None:
        raise NotApplicableError(f"no draw of {op} is of this kind")
    proto, feeds = model_of(op, made)
    bench.decline_unless_taken(proto)
    try:
        with np.errstate(all="ignore"):
            expected = bench.expected(proto, feeds)
    except PartitaError as error:
        raise NotApplicableError(f"no judge can compute it: {error}") from error
    request = claimed_compiles(bench, proto).create_infer_request()
    with np.errstate(all="ignore"):
        have = request.infer(feeds).to_tuple()
    shapes = [None if a is None else (str(a.dtype), a.shape) for a in made.inputs]
    what = f"{op} {made.attributes} of {shapes}"
    for index, (one, due) in enumerate(zip(have, expected, strict=True)):
        place = f"{what}, output {index}"
        dtype = np.asarray(due).dtype
        compare([one], [due], place, **tolerance(op, dtype)._asdict())
        if op in _SIGNED and dtype.kind == "f":
            other = np.signbit(one) != np.signbit(due)
            wrong = other & (np.asarray(due) == 0)
            if np.any(wrong):
                raise ConformanceError(f"{place}: {int(wrong.sum())} zeros have another sign.")


_SIGNED = frozenset(("Neg", "Abs", "Identity", "Transpose", "Reshape", "Concat", "Gather", "Slice"))
"""Operators that keep or change the sign of zero, as IEEE 754 has it."""


def answers(bench: Bench, op: str, drawn: Draw) -> Any:
    """The right outputs, or the name of the error where there are none."""
    proto, feeds = model_of(op, drawn)
    try:
        with np.errstate(all="ignore"):
            return bench.expected(proto, feeds)
    except PartitaError as error:
        return type(error).__name__


def differ(op: str, one: Any, other: Any) -> bool:
    """Whether a check would tell two answers apart."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) != isinstance(other, str)
    try:
        for have, due in zip(other, one, strict=True):
            compare([have], [due], "", **tolerance(op, np.asarray(due).dtype)._asdict())
    except (ConformanceError, ValueError):
        return True
    return False


def attributes_of(op: str, opset: int) -> list[str]:
    """The attributes that a device could leave unread: all but those that a node must have."""
    schema = schema_of(op, opset)
    if schema is None:
        return []
    skipped = UNREAD.get(op, {}).keys() | UNREAD.get("*", {}).keys()
    return [n for n, a in schema.attributes.items() if not a.required and n not in skipped]


UNREAD: dict[str, dict[str, str]] = {
    "*": {
        "stash_type": "says how precisely to compute, and 1 is its only value in the judge",
    },
    "BatchNormalization": {
        "momentum": "read in training only",
        "training_mode": "training, which inference engines leave out",
    },
    "TopK": {"sorted": "without it any order is right"},
    "GRU": {"hidden_size": "may be told from the weight"},
    "RNN": {"hidden_size": "may be told from the weight"},
    "LSTM": {"hidden_size": "may be told from the weight", "layout": "no judge has it"},
    "Attention": {
        "qk_matmul_output_mode": "says what a fourth output holds, which is not drawn",
        "softmax_precision": "says how precisely to compute",
    },
    "HannWindow": {"output_datatype": "its numbers are float32's in any type, as ONNX defines it"},
    "Dropout": {"seed": "read in training only"},
    "Conv": {"kernel_shape": "may be told from the weight"},
    "ConvInteger": {"kernel_shape": "may be told from the weight", "group": "1 in these draws"},
    "ConvTranspose": {"kernel_shape": "may be told from the weight"},
    "Cast": {"saturate": "matters to float8 only", "round_mode": "matters to float8 only"},
    "CastLike": {"saturate": "matters to float8 only", "round_mode": "matters to float8 only"},
}
"""Attributes whose loss no draw shows, and why, by operator (``*``: of any)."""


@functools.cache
def _found(op: str, attribute: str) -> int | None:
    """The first attempt in which the loss of an attribute changes the answer."""
    from partita_conformance.bench.bench import Target

    judge = Bench(Target("REFERENCE"))
    for attempt in range(_ATTEMPTS):
        drawn = draw(op, 0, attempt)
        if attribute in drawn.attributes:
            right = answers(judge, op, drawn)
            other = answers(judge, op, without(drawn, attribute))
            if not isinstance(right, str) and differ(op, right, other):
                return attempt
    return None


def telling(op: str, attribute: str, _: Bench | None = None) -> Draw | None:
    """A draw in which the loss of an attribute changes the answer; ``None`` if there is none."""
    attempt = _found(op, attribute)
    return None if attempt is None else draw(op, 0, attempt)


def is_another(op: str, opset: int, newest: int) -> bool:
    """Whether an old opset's operator is another version than those of newer ones tried."""
    old = schema_of(op, opset)
    if old is None or opset >= newest:
        return False
    later = [schema_of(op, n) for n in (*OPSETS, newest) if n > opset]
    return all(new is None or new.since_version != old.since_version for new in later)


def _typed(op: str, element: str, number: int, bench: Bench) -> Draw:
    return typed(op, draw(op, number), element)


def _aged(op: str, opset: int, bench: Bench) -> Draw | None:
    """The first draw that the old opset can say; rather one with attributes of its own."""
    usable = None
    for attempt in range(_ATTEMPTS):
        drawn = draw(op, 1, attempt)
        old = aged(op, drawn, opset)
        if old is None or isinstance(answers(bench, op, old), str):
            continue
        usable = usable or old
        own = old.attributes.keys() - drawn.attributes.keys()
        right = answers(bench, op, old)
        if not own or all(differ(op, right, answers(bench, op, without(old, n))) for n in own):
            return old
    return usable


def _sized(op: str, number: int, bench: Bench) -> Draw:
    return draw(op, number, wide=True)


def _valued(op: str, group: str, bench: Bench) -> Draw | None:
    drawn = draw(op, 0, wide=op in ROUNDED)
    if group in INTEGERS:
        drawn = typed(op, drawn, group)
    elif "float" not in element_types(op, drawn):
        return None
    else:
        drawn = typed(op, drawn, "float")
    return revalued(op, drawn, group, 0)
