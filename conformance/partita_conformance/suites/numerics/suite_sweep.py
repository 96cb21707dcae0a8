"""Suites ``types``, ``attributes``, ``choices``, ``opsets``, ``values``, ``sizes``: varied draws.

Each takes draws of :mod:`partita_conformance.draws.operators` and changes one thing: the type to
each that the operator's schema allows, the opset to each older version of the operator, the numbers
to those that break things, the sizes to ones that no vector divides, or to none. ``attributes``
looks for a draw in which the loss of an attribute changes the answer, ``choices`` makes draws of
all values of attributes and of axes together with the inputs for which they matter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.casts import casts
from partita_conformance.draws.choices.every import CHOICES
from partita_conformance.draws.cover import ATTEMPTS, newest_opset, order
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.empty import EMPTY
from partita_conformance.draws.large.deep import DEEP
from partita_conformance.draws.large.long import FAR, LONG
from partita_conformance.draws.large.rows import ROWS
from partita_conformance.draws.large.squares import SQUARES, squares
from partita_conformance.draws.large.tails import TAILS
from partita_conformance.draws.operators import GENERATORS, draw
from partita_conformance.draws.quantized import quantized
from partita_conformance.draws.shapes import broadcast, without_dimensions
from partita_conformance.draws.values import (
    HALVES,
    SUBNORMAL,
    groups_of,
    quotients,
    revalued,
    scores,
    subnormal,
)
from partita_conformance.draws.vary import (
    TYPES,
    aged,
    element_types,
    schema_of,
    typed,
    variables,
    without,
)
from partita_conformance.inputs.cases_file import NodeCase
from partita_conformance.judging.tolerances import ROUNDED
from partita_conformance.suites.numerics.drawn import Make, answers, differ, draw_check

OPSETS = (7, 9, 10, 11, 13, 17)
_AGED = 2  # draws of an old opset at least
_TYPED = 6  # attempts at a draw of a type that can be judged


def sweep_checks(count: int) -> list[Check]:
    """The checks of all six suites.

    Args:
        count: Random models per operator; types and sizes take a quarter as many.
    """
    checks: list[Check] = []
    make: Make
    quarter = max(1, count // 4)
    for op in GENERATORS:
        first, newest = draw(op, 0), newest_opset(op)
        for element in element_types(op, first):
            for number in range(quarter):
                make = functools.partial(_typed, op, element, number)
                what = f"{op} of {element}"
                checks.append(draw_check(f"types/{op}/{element}/{number}", op, make, what, element))
            if groups_of(op, element) or _own(op, element):
                make = functools.partial(valued, op, element)
                what = f"{op} of values of {element} that break things"
                checks.append(draw_check(f"values/{op}/{element}", op, make, what, element))
        for variable, element in variables(op, first):
            make = functools.partial(_typed, op, element, 0, variable=variable)
            what = f"{op} where {variable} is {element}"
            checks.append(draw_check(f"types/{op}/{variable}={element}", op, make, what))
        for attribute in attributes_of(op, newest):
            make = functools.partial(_telling_draws, op, attribute)
            what = f"{op} where {attribute} matters"
            checks.append(draw_check(f"attributes/{op}/{attribute}", op, make, what))
        for opset in OPSETS:
            if is_another(op, opset, newest):
                make = functools.partial(_aged, op, opset)
                what = f"{op} of opset {opset}, in a branch too"
                checks.append(draw_check(f"opsets/{op}/{opset}", op, make, what, bodies=True))
        if op in CHOICES:
            make = functools.partial(_chosen, op)
            what = f"{op} of each choice, where it matters"
            checks.append(draw_check(f"choices/{op}", op, make, what))
        for number in range(quarter):
            make = functools.partial(_sized, op, number)
            what = f"{op} of sizes that no vector divides"
            checks.append(draw_check(f"sizes/{op}/{number}", op, make, what))
        for word, draws, what in _SHAPES:
            if draws(op):
                make = functools.partial(_shaped, op, draws)
                checks.append(draw_check(f"sizes/{op}/{word}", op, make, f"{op} {what}"))
    return checks


def case_checks(cases: Mapping[str, NodeCase]) -> list[Check]:
    """Checks of operators without draws: a node case of theirs in types that no case has."""
    checks: list[Check] = []
    seen = {(case.op, case.dtype) for case in cases.values()}
    for case in cases.values():
        found = None if case.op in GENERATORS or case.form_only else _drawn(case)
        for element in element_types(case.op, found) if found else ():
            if (case.op, element) not in seen:
                seen.add((case.op, element))
                make = functools.partial(_typed_case, case, element)
                what = f"node case {case.name} in {element}"
                name = f"operators/{case.name}/{element}"
                made = draw_check(name, case.op, make, what, element)
                checks.append(dataclasses.replace(made, values=case.values))
    return checks


_TIED = frozenset(("BitCast",))
"""Operators of which an attribute says what goes with the type."""


def _drawn(case: NodeCase) -> Draw | None:
    """A node case as a draw; ``None`` if it is of several nodes, or not of tensors alone."""
    graph = case.proto().graph
    inputs, outputs = case.runs[0]
    if len(graph.node) != 1 or graph.node[0].domain or graph.initializer:
        return None
    (node,) = graph.node
    if node.op_type in _TIED or any(one.HasField("g") for one in node.attribute):
        return None
    arrays = dict(zip((value.name for value in graph.input), inputs, strict=False))
    if not inputs or not all(isinstance(a, np.ndarray) for a in (*inputs, *outputs)):
        return None
    opset = next(one.version for one in case.proto().opset_import if not one.domain)
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    return Draw([arrays.get(name) for name in node.input], given, (), len(outputs), opset)


def _typed_case(case: NodeCase, element: str, _: Bench) -> list[tuple[str, Draw]]:
    found = _drawn(case)
    return [] if found is None else [(case.name, typed(case.op, found, element))]


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
    "GRU": {"hidden_size": "follows from the weight"},
    "RNN": {"hidden_size": "follows from the weight"},
    "LSTM": {"hidden_size": "follows from the weight", "layout": "no judge has it"},
    "Attention": {
        "qk_matmul_output_mode": "says what a fourth output holds, which is not drawn",
        "softmax_precision": "says how precisely to compute",
    },
    **{
        op: {"output_datatype": "its numbers are float32's in any type, as ONNX defines it"}
        for op in ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
    },
    "Constant": {"sparse_value": "no judge has it"},
    "QuantizeLinear": {"precision": "says how precisely to compute"},
    "LinearAttention": {"chunk_size": "says in how many parts to compute, not what"},
    "Optional": {"type": "the type of what is not there"},
    "SequenceEmpty": {"dtype": "the type of no elements"},
    **{
        op: {"seed": "which numbers a seed stands for, each engine decides"}
        for op in ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
    },
    **{
        f"{op}Like": {"seed": "which numbers a seed stands for, each engine decides"}
        for op in ("RandomNormal", "RandomUniform")
    },
    "Dropout": {"seed": "read in training only"},
    **{
        op: {"kernel_shape": "follows from the weight"}
        for op in ("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv")
    },
    "Split": {"num_outputs": "as many as the node has outputs"},
    "StringNormalizer": {"locale": "which locales there are, and what they do, systems say"},
    "Cast": {"round_mode": "matters to floats that are exponents alone"},
    "CastLike": {"round_mode": "matters to floats that are exponents alone"},
}
"""Attributes whose loss no draw shows, and why, by operator (``*``: of any)."""


@functools.cache
def _found(op: str, attribute: str) -> int | None:
    """The first attempt in which the loss of an attribute changes the answer."""
    from partita_conformance.bench.bench import Target

    judge = Bench(Target("REFERENCE"))
    for attempt in range(ATTEMPTS):
        drawn = draw(op, 0, attempt)
        if attribute in drawn.attributes:
            right = answers(judge, op, drawn)
            other = answers(judge, op, without(drawn, attribute))
            if not isinstance(right, str) and differ(op, right, other):
                return attempt
    return None


def telling(op: str, attribute: str) -> Draw | None:
    """A draw in which the loss of an attribute changes the answer; ``None`` if there is none."""
    attempt = _found(op, attribute)
    return None if attempt is None else draw(op, 0, attempt)


def _telling_draws(op: str, attribute: str, _: Bench) -> list[tuple[str, Draw]]:
    found = telling(op, attribute)
    return [] if found is None else [("", found)]


def is_another(op: str, opset: int, newest: int) -> bool:
    """Whether an old opset's operator is another version than those of newer ones tried."""
    old = schema_of(op, opset)
    if old is None or opset >= newest:
        return False
    later = [schema_of(op, n) for n in (*OPSETS, newest) if n > opset]
    return all(new is None or new.since_version != old.since_version for new in later)


def _typed(
    op: str, element: str, number: int, bench: Bench, variable: str = ""
) -> list[tuple[str, Draw]]:
    """A draw that somebody can judge, or the first; types take turns in the kinds of draws."""
    attempts = order(op)
    first = number + (0 if variable else list(TYPES).index(element))
    for turn in range(min(_TYPED, len(attempts))):
        attempt = attempts[(first + turn) % len(attempts)]
        one = typed(op, draw(op, 0, attempt), element, variable)
        if not isinstance(answers(bench, op, one), str):
            return [("", one)]
    return [("", typed(op, draw(op, number), element, variable))]


def _aged(op: str, opset: int, bench: Bench) -> list[tuple[str, Draw]]:
    """Draws that the old opset can say, in which the loss of any attribute changes the answer.

    As many as it takes, and some; attributes whose loss no attempt shows are left out.
    """
    unseen = set(attributes_of(op, opset))
    found: list[tuple[str, Draw]] = []
    for attempt in range(ATTEMPTS):
        old = aged(op, draw(op, 1, attempt), opset)
        news = unseen & old.attributes.keys() if old else set()
        if old is None or (len(found) >= _AGED and not news):
            continue
        right = answers(bench, op, old)
        if isinstance(right, str):
            continue
        seen = {n for n in news if differ(op, right, answers(bench, op, without(old, n)))}
        if seen or len(found) < _AGED:
            found.append((", ".join(sorted(seen)), old))
            unseen -= seen
        if not unseen and len(found) >= _AGED:
            break
    return found + _by_default(op, opset, bench)


def _by_default(op: str, opset: int, bench: Bench) -> list[tuple[str, Draw]]:
    """Draws without one attribute each whose default is another one in newer opsets.

    Of an integer's default, the answer is another than that of its neighbours.
    """
    found: list[tuple[str, Draw]] = []
    for name, default in _changed_defaults(op, opset).items():
        others = [n for n in (-1, 0, 1, 2) if n != default] if isinstance(default, int) else []
        for attempt in range(ATTEMPTS):
            old = aged(op, draw(op, 1, attempt), opset)
            if old is None or name not in old.attributes:
                continue
            shorter = without(old, name)
            right = answers(bench, op, shorter)
            changed = [old, *(_with(shorter, name, other) for other in others)]
            wrong = [answers(bench, op, one) for one in changed]
            if not isinstance(right, str) and all(differ(op, right, one) for one in wrong):
                found.append((f"without {name}", shorter))
                break
    return found


def _with(drawn: Draw, name: str, value: int) -> Draw:
    return dataclasses.replace(drawn, attributes={**drawn.attributes, name: value})


def _changed_defaults(op: str, opset: int) -> dict[str, Any]:
    """Attributes of an old opset whose default the newest one has not, or another; and which."""
    old, new = schema_of(op, opset), schema_of(op, newest_opset(op))
    assert old is not None and new is not None  # noqa: S101  # draws are of both
    found = {}
    for name in attributes_of(op, opset):
        given = old.attributes[name].default_value
        if name not in new.attributes or given != new.attributes[name].default_value:
            found[name] = helper.get_attribute_value(given) if given.type else None
    return found


def _chosen(op: str, _: Bench) -> list[tuple[str, Draw]]:
    return [("", one) for one in CHOICES[op]()]


def _sized(op: str, number: int, _: Bench) -> list[tuple[str, Draw]]:
    return [("", draw(op, number, wide=True))]


_SHAPES: Sequence[tuple[str, Callable[[str], list[Draw]], str]] = (
    ("empty", lambda op: EMPTY[op]() if op in EMPTY else [], "of no elements"),
    ("long", lambda op: LONG[op]() if op in LONG else [], "of rows longer than a block"),
    ("deep", lambda op: DEEP[op]() if op in DEEP else [], "of six dimensions and more"),
    ("tails", lambda op: TAILS[op]() if op in TAILS else [], "of rows that end beside a vector"),
    ("far", lambda op: FAR[op]() if op in FAR else [], "of more elements than counters hold"),
    ("rows", lambda op: ROWS[op]() if op in ROWS else [], "of more rows than 16 bits count"),
    ("scalars", without_dimensions, "of inputs without dimensions"),
    ("broadcast", broadcast, "of each input broadcast in each way"),
)
"""Further checks of sizes: the last word of their names, their draws, and what they try."""


def _shaped(op: str, draws: Callable[[str], list[Draw]], _: Bench) -> list[tuple[str, Draw]]:
    return [("", one) for one in draws(op)]


_CASTS = ("Cast", "CastLike")


def _own(op: str, element: str) -> list[tuple[str, Draw]]:
    """Draws of values of an operator's own, beside groups that several are tried with."""
    if op in _CASTS:
        return casts(op, element)
    if op in SQUARES and element in HALVES:
        like = typed(op, draw(op, 0), element).inputs[0]
        return [("squares", one) for one in squares(op, like)]
    return quantized(op, element) + quotients(op, element) + scores(op, element)


def _roomy(op: str) -> Draw:
    """The largest draw with more than one row and column: shares of one element say little."""

    def room(one: Draw) -> tuple[bool, int]:
        first = next(array for array in one.inputs if array is not None)
        return min(first.shape, default=0) > 1, first.size

    return max((draw(op, 0, n, wide=op in ROUNDED) for n in range(_TYPED)), key=room)


def valued(op: str, element: str, _: Bench) -> list[tuple[str, Draw]]:
    """Draws of an element type of values that break things, each with the name of its group."""
    usual = [typed(op, one, element) for one in (_roomy(op), *_of_another_kind(op))]
    drawn = [(group, revalued(op, x, group)) for x in usual for group in groups_of(op, element)]
    drawn += _own(op, element)
    if op in SUBNORMAL and element == "float16":
        drawn.append(("subnormal", subnormal(op, usual[0])))
    return drawn


def _of_another_kind(op: str) -> list[Draw]:
    """A second draw of operators of which one says too little.

    For those that may have a scale for each row or one for all, of the latter; for TopK, of the
    least elements, where it was of the largest, or the other way round; for Clip, of a lower limit
    above the upper one, which then is every result; for Pad, with a value to fill up with.
    """
    if op == "Pad":
        x = _roomy(op).inputs[0]
        assert x is not None  # noqa: S101  # Pad has it
        sides = np.array([1] * 2 * x.ndim, np.int64)
        return [Draw([x, sides, np.array(1 / 3, np.float32)], {}, (1, 2))]
    if op == "Clip":
        limits = np.array(0.8, np.float32), np.array(-0.5, np.float32)
        return [Draw([_roomy(op).inputs[0], *limits], {}, (1, 2))]
    if op == "TopK":
        one = _roomy(op)
        most = one.attributes.get("largest", 1)
        return [dataclasses.replace(one, attributes={**one.attributes, "largest": 1 - most})]
    if op not in ("QuantizeLinear", "DequantizeLinear"):
        return []
    of_rows = _roomy(op).inputs
    first = [None if a is None else a.reshape(-1)[0].reshape(()) for a in of_rows[1:]]
    return [Draw([of_rows[0], *first], {}, range(1, len(of_rows)), opset=_roomy(op).opset)]
