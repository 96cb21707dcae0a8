"""Suite ``imports``: each operator in models that are alike in all but an attribute or a number.

Two models of one name and one form are there together: of each pair of operations, one has an
attribute that the other lacks, or a weight of which one element is another one. Both are exported,
and imported in the other order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.cover import nth
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import GENERATORS, model_of
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.blobs import exported
from partita_conformance.suites.numerics.drawn import compare_results
from partita_conformance.suites.numerics.suite_beside import with_and_without
from partita_conformance.suites.numerics.suite_kinds import CHANCE


def import_checks() -> list[Check]:
    """A check for each few operators."""
    ops = [op for op in GENERATORS if op not in CHANCE]
    return [
        Check(
            f"imports/{ops[start]}_and_more",
            functools.partial(_run, ops[start : start + _TOGETHER]),
            True,
            "models that differ in attributes and weights, side by side and imported, of "
            + ", ".join(ops[start : start + _TOGETHER]),
        )
        for start in range(0, len(ops), _TOGETHER)
    ]


_TOGETHER = 9
"""Operators of a model."""


class _Part(NamedTuple):
    """A draw as a part of a model.

    Attributes:
        op: The operator.
        draw: The draw.
        proto: Its model.
        feeds: Its inputs.
        due: The right outputs.
    """

    op: str
    draw: Draw
    proto: onnx.ModelProto
    feeds: dict[str, Any]
    due: Sequence[Any]


Pair = tuple[_Part, _Part]


def _run(ops: Sequence[str], bench: Bench) -> None:
    alike: dict[tuple[int, str], list[Pair]] = {}
    for pair in itertools.chain.from_iterable(_pairs(op, bench) for op in ops):
        alike.setdefault((pair[0].draw.opset, pair[0].draw.domain), []).append(pair)
    tried = [_compare(bench, pairs) for pairs in alike.values()]
    if not any(tried):
        raise NotApplicableError(f"the device takes none of {', '.join(ops)}")


def _compare(bench: Bench, pairs: Sequence[Pair]) -> bool:
    """Compares two models, and what is imported of them; returns whether anything is taken."""
    both = [*zip(*pairs, strict=True)]
    refused = {name for side in both for name in bench.refused(_merged(side)[0])}
    taken = [pair for i, pair in enumerate(pairs) if f"{pair[0].op}/{i}" not in refused]
    if not taken:
        return False
    both = [*zip(*taken, strict=True)]
    merged = [_merged(side) for side in both]
    models = [bench.compile(proto) for proto, _ in merged]
    for which in (0, 1):
        _agree(models[which], both[which], merged[which][1])
    blobs = [exported(compiled) for compiled in models]
    core = _another_core(bench)
    imported = [core.import_model(blob, bench.device) for blob in reversed(blobs)][::-1]
    for which in (0, 1):
        _agree(imported[which], both[which], merged[which][1])
    return True


@functools.lru_cache(maxsize=1)
def _another_core(bench: Bench) -> partita.Core:
    """A core that has compiled nothing."""
    return bench.new_core()


def _agree(compiled: partita.CompiledModel, parts: Sequence[_Part], feeds: dict[str, Any]) -> None:
    """Compares the results of a model with what is right of each of its parts."""
    with np.errstate(all="ignore"):
        have = iter(compiled(feeds).to_tuple())
    for part in parts:
        compare_results(part.op, part.draw, [next(have) for _ in part.due], part.due)


def _pairs(op: str, bench: Bench) -> Iterator[Pair]:
    """Pairs of draws of an operator that somebody can judge."""
    for pair in _unlike(op):
        try:
            one, other = (_part(op, each, bench) for each in pair)
        except PartitaError:
            continue  # nobody can say what is right
        yield one, other


def _part(op: str, one: Draw, bench: Bench) -> _Part:
    proto, feeds = model_of(op, one)
    with np.errstate(all="ignore"):
        return _Part(op, one, proto, feeds, bench.expected(proto, feeds))


def _unlike(op: str) -> Iterator[tuple[Draw, Draw]]:
    """Draws with and without an attribute; of constants, and of those with another element."""
    yield from with_and_without(op)
    plain = nth(op, 0)
    fed = [i for i, a in enumerate(plain.inputs) if a is not None and i not in plain.constant]
    weighty = dataclasses.replace(plain, constant=[*plain.constant, *fed[1:]])
    yield weighty, _with_another_element(weighty)


def _with_another_element(one: Draw) -> Draw:
    """The draw with another number in the middle of each constant of floats."""
    inputs = list(one.inputs)
    for place in one.constant:
        array = inputs[place]
        if array is not None and array.dtype.kind == "f" and array.size:
            inputs[place] = array = array.copy()
            flat = array.reshape(-1)
            flat[flat.size // 2] = flat[flat.size // 2] * 0.5 + 0.25
    return dataclasses.replace(one, inputs=inputs)


def _merged(parts: Sequence[_Part]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """One model of several, which have each its inputs and outputs; and the inputs."""
    merged = onnx.ModelProto()
    merged.CopyFrom(parts[0].proto)
    merged.ClearField("graph")
    merged.graph.name = "imports"
    feeds: dict[str, Any] = {}
    for number, part in enumerate(parts):
        graph = onnx.compose.add_prefix_graph(part.proto.graph, f"{number}/", rename_nodes=False)
        for node in graph.node:
            node.name = f"{node.op_type}/{number}"
        for field in ("node", "input", "output", "initializer"):
            getattr(merged.graph, field).extend(getattr(graph, field))
        feeds |= {f"{number}/{name}": array for name, array in part.feeds.items()}
    return merged, feeds
