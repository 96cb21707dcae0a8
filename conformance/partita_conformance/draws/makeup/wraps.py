"""Enclosing constructs of a drawn model's second step: branches, loops, scans and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from partita_conformance.draws.makeup.contents import Unfit
from partita_conformance.draws.makeup.packaged import version_of
from partita_conformance.draws.makeup.traits import Makeup
from partita_conformance.draws.makeup.writer import Scope, Value, Writer, body
from partita_conformance.inputs.models import Array

Work = Callable[[Value], Value]


class Draft(Protocol):
    """What a model that is being written shall have."""

    makeup: Makeup
    number: int
    writer: Writer
    functions: list[onnx.FunctionProto]
    latest: Sequence[Value]

    def input(self, array: Array, shape: Sequence[int | str]) -> Value:
        """A new input."""

    def computed(self, name: str, array: Array, constants: Sequence[Value]) -> Array:
        """What a step makes of a matrix."""

    def choice(self, link: Value, work: Work, condition: Value, then: bool) -> Value:
        """An operation ``If``."""

    def condition(self) -> Value:
        """An input that says which branch is taken."""


def _plain(model: Draft, name: str, link: Value, work: Work, outer: Any) -> Value:
    return work(link)


def _in_branch(then: bool, deep: bool = False, known: bool = False) -> Callable[..., Value]:
    def wrap(model: Draft, name: str, link: Value, work: Work, outer: Any) -> Value:
        condition = model.writer.weight(np.array(True)) if known else model.condition()
        if deep:
            return model.choice(
                link, lambda v: model.choice(v, work, condition, True), condition, then
            )
        return model.choice(link, work, condition, then)

    return wrap


def _in_loop(turns: int | None) -> Callable[..., Value]:
    def wrap(model: Draft, name: str, link: Value, work: Work, outer: Any) -> Value:
        writer = model.writer
        if turns is None:
            count = model.input(np.array(2 + model.number % 2), ())
        else:
            count = writer.weight(np.array(turns))
        with writer.inside(Scope()):
            number = Value(writer.name(), np.array(0))
            go = Value(writer.name(), np.array(True))
            inner = Value(writer.name(), link.array)
            on = writer.node("Identity", [go], go.array)
            made = work(inner)
            graph = body("turn", writer.scope, [number, go, inner], [on, made])
        if made.array.shape != link.array.shape:
            raise Unfit("a turn changes the shape")
        array = link.array
        for _ in range(int(count.array)):
            array = model.computed(name, array, model.latest)
        return writer.node("Loop", [count, "", link], array, body=graph)

    return wrap


def _in_scan(model: Draft, name: str, link: Value, work: Work, outer: Any) -> Value:
    writer = model.writer
    if model.makeup["opsets"] == "11":
        raise Unfit("axes are attributes in opset 11")
    axis = writer.weight(np.array([0]))
    deep = writer.node("Unsqueeze", [link, axis], link.array[None])
    twice = writer.node("Concat", [deep, deep], np.concatenate([link.array[None]] * 2), axis=0)
    with writer.inside(Scope()):
        inner = Value(writer.name(), link.array)
        made = work(inner)
        graph = body("turn", writer.scope, [inner], [made])
    both = np.stack([made.array] * 2)
    scanned = writer.node("Scan", [twice], both, body=graph, num_scan_inputs=1)
    whole = np.concatenate([made.array] * 2)
    width = writer.array(lambda: np.array([-1, made.array.shape[-1]]))
    return writer.node("Reshape", [scanned, writer.weight(width)], whole.reshape(width))


def _in_function(depth: int) -> Callable[..., Value]:
    def wrap(model: Draft, name: str, link: Value, work: Work, outer: list[Value]) -> Value:
        writer = model.writer
        with writer.inside(Scope(is_function=True)):
            result = work(link)
            nodes = writer.scope.nodes
        imports = [
            helper.make_opsetid("", version_of(model.makeup["opsets"])),
            helper.make_opsetid("local", 1),
        ]
        names = [link.name, *(value.name for value in outer)]
        inputs, outputs = names, [result.name]
        for level in range(depth):
            function = helper.make_function("local", f"F{level}", inputs, outputs, nodes, imports)
            model.functions.append(function)
            nodes = [helper.make_node(f"F{level}", inputs, outputs, "call", domain="local")]
        return writer.node(f"F{depth - 1}", [link, *outer], result.array, domain="local")

    return wrap


WRAPS: dict[str, Callable[..., Value]] = {
    "plain": _plain,
    "in a branch": _in_branch(True),
    "in the other branch": _in_branch(False),
    "in a branch of a branch": _in_branch(True, deep=True),
    "in a known branch": _in_branch(True, known=True),
    "in a loop": _in_loop(None),
    "in a loop of no turns": _in_loop(0),
    "in a scan": _in_scan,
    "in a function": _in_function(1),
    "in a function of a function": _in_function(2),
}
