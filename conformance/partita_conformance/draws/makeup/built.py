"""The model of a makeup, its inputs, and the expected results by the formulas of its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from partita_conformance.draws.makeup.contents import Unfit, held, numbers
from partita_conformance.draws.makeup.packaged import packaged
from partita_conformance.draws.makeup.steps import STEPS, Step
from partita_conformance.draws.makeup.traits import TRAITS, Makeup
from partita_conformance.draws.makeup.wraps import WRAPS
from partita_conformance.draws.makeup.writer import Scope, Value, Writer, body, info
from partita_conformance.inputs.models import Array

Case = tuple[dict[str, Array], list[Array]]
"""Inputs by name, and the right outputs."""
_ROWS = (None, 2, 5)
"""How many more rows there are in each case, where a model takes any number; None for as drawn."""
_KEPT = 2048


@dataclass(frozen=True)
class Built:
    """A model that was made of a makeup.

    Attributes:
        makeup: Its traits.
        proto: The model.
        cases: Inputs, and what is right for them.
    """

    makeup: Makeup = field(repr=False)
    proto: onnx.ModelProto = field(repr=False)
    cases: tuple[Case, ...] = field(repr=False)


def built(makeup: Makeup) -> Built:
    """The model of a makeup.

    Raises:
        Unfit: There is none.
    """
    made = _built(tuple(sorted(makeup.items())))
    if made is None:
        raise Unfit("two choices of a makeup exclude each other")
    return made


def fits(makeup: Makeup) -> bool:
    """Whether there is a model of a makeup."""
    return _built(tuple(sorted(makeup.items()))) is not None


@functools.lru_cache(maxsize=_KEPT)
def _built(traits: tuple[tuple[str, str], ...]) -> Built | None:
    makeup = {name: choice for name, choice in traits if name in TRAITS}
    try:
        with np.errstate(all="ignore"):
            first = Draft(makeup, 0)
            others = [Draft(makeup, number, first.writer.constants) for number in (1, 2)]
    except (Unfit, ValueError, IndexError):
        return None
    cases = tuple(model.case for model in (first, *others))
    return Built(makeup, first.proto, cases)


class Draft:
    """One model with one case: the graph is written while the numbers are computed."""

    def __init__(self, makeup: Makeup, number: int, constants: Sequence[Array] = ()) -> None:
        self.makeup, self.number = makeup, number
        self.writer = Writer(makeup, constants)
        self.functions: list[onnx.FunctionProto] = []
        self.feeds: dict[str, Array] = {}
        self.latest: Sequence[Value] = ()
        self.inputs: list[onnx.ValueInfoProto] = []
        self.element = makeup["elements"]
        rows, columns = (int(text) for text in makeup["sizes"].split(","))
        self.sizes = rows, columns
        more = _ROWS[number] or 0
        any_rows, any_sizes = makeup["ports"] == "of any rows", makeup["ports"] == "of any sizes"
        self.real = (rows + more * (any_rows or any_sizes), columns + more * any_sizes)
        self.symbols: list[int | str] | None = [*self.sizes]
        if any_rows or any_sizes:
            self.symbols = ["N", "M" if any_sizes else columns]
        self.outputs = self._write()
        self.case: Case = self.feeds, [value.array for value in self.outputs]
        self.proto = onnx.ModelProto() if number else packaged(self)

    # -------------------------------------------------------------------------------- parts

    def input(self, array: Array, shape: Sequence[int | str]) -> Value:
        """A new input of the model, of the shape that it has there, and what this case feeds it."""
        value = Value(self.writer.name(), array)
        self.feeds[value.name] = array
        self.inputs.append(info(value, shape))
        return value

    def _data(self, step: Step, which: int) -> Array:
        """A constant of the matrix's type."""
        rows, columns = self.sizes
        have, ports = self.makeup["constants have"], self.makeup["ports"]
        if step.square:
            if ports == "of any sizes":
                raise Unfit("its columns are not known")
            shape: tuple[int, ...] = (columns, columns)
        elif step.op == "Concat":
            shape = (rows, columns)
            if ports.startswith("of any"):
                raise Unfit("its rows are not known")
        else:
            rows = 1 if ports.startswith("of any") else rows
            columns = 1 if ports == "of any sizes" else columns
            shape = {
                "all sizes": (rows, columns),
                "a row": (columns,),
                "a column": (rows, 1),
                "one element": (1,),
                "no axis": (),
            }[have]
        return held(self.makeup["constants hold"], self.element, shape, 7 * which + 3)

    def _constants(self, name: str, nominal: tuple[int, ...], which: int) -> list[Value]:
        """The constants of a step, written where the writer is."""
        step, number = STEPS[name], self._attribute
        found = []
        for _ in range(step.data):
            found.append(self.writer.constant(lambda: self._data(step, which)))
        shapes = step.shapes(nominal, number)
        for place in range(len(shapes)):
            array = shapes[place]
            if step.op == "Clip":
                array = array.astype(numbers(self.element, (), 0).dtype)
            found.append(self.writer.constant(functools.partial(np.asarray, array)))
        return found

    @property
    def _attribute(self) -> int:
        return ("the first", "the second", "the third").index(self.makeup["an attribute"])

    def _given(self, step: Step) -> dict[str, Any]:
        return dict(step.given[self._attribute % len(step.given)])

    def _step(self, name: str, value: Value, constants: Sequence[Value]) -> Value:
        step, given = STEPS[name], self._given(STEPS[name])
        inputs = [value, *constants] if step.behind else [*constants, value]
        return self.writer.node(
            step.op, inputs, self.computed(name, value.array, constants), **given
        )

    def computed(self, name: str, array: Array, constants: Sequence[Value]) -> Array:
        """What a step makes of a matrix.

        Raises:
            Unfit: No matrix comes of it.
        """
        step = STEPS[name]
        arrays = [constant.array for constant in constants]
        result = np.asarray(step.compute(array, *arrays, **self._given(step)))
        if result.ndim != 2:
            raise Unfit("no matrix comes of it")
        return result

    def _checked(self, name: str) -> Step:
        step = STEPS[name]
        opset = self.makeup["opsets"]
        if self.element not in step.elements.split():
            raise Unfit(f"{name} is not of {self.element}")
        if opset == "11" and step.since > 11:
            raise Unfit(f"{name} is written otherwise in opset 11")
        if opset in ("11",) and self.element == "bfloat16":
            raise Unfit("there is no bfloat16 yet")
        return step

    # -------------------------------------------------------------------------------- graph

    def _write(self) -> list[Value]:
        makeup, form = self.makeup, self.makeup["form"]
        first, second = makeup["the first step"], makeup["the second step"]
        self._checked(first), self._checked(second)
        writer, ports = self.writer, makeup["ports"]
        data = numbers(self.element, self.real, 100 + self.number)
        if form == "of constants alone":
            if ports != "fixed":
                raise Unfit("there are no ports")
            x = writer.constant(lambda: numbers(self.element, self.sizes, 100))
        else:
            x = self.input(data, self.symbols or ())
        extra = self._further_inputs(x)
        before = self._with_second(x, extra)
        constants = self._constants(first, self.sizes, 1)
        between = self._step(first, before, constants)
        again = self._step(first, before, constants) if form == "the first step twice" else None
        link = between
        if form == "identities in a row":
            for _ in range(3):
                link = writer.node("Identity", [link], link.array)
        if form == "turned there and back":
            link = writer.node("Transpose", [link], link.array.T, perm=[1, 0])
            link = writer.node("Transpose", [link], link.array.T, perm=[1, 0])
        result, others = self._second(second, link, constants)
        outputs = self._outputs(x, constants, [*constants, *others], between, again, result)
        if ports == "with one that nobody reads":
            self.input(np.ones((2,), np.float32), (2,))
        elif extra is not None and ports.endswith("of other elements"):
            outputs.append(writer.node("Identity", [extra], extra.array))
        return self._read_otherwise([*constants, *others], outputs)

    def _further_inputs(self, x: Value) -> Value | None:
        if self.makeup["ports"] in ("with a second one", "the other way round"):
            return self.input(numbers(self.element, self.real, 200 + self.number), self.sizes)
        if self.makeup["ports"].endswith("of other elements"):
            other = "int64" if self.element != "int64" else "float"
            return self.input(numbers(other, (3,), 300 + self.number), (3,))
        return None

    def _with_second(self, x: Value, extra: Value | None) -> Value:
        if extra is None or self.makeup["ports"].endswith("of other elements"):
            return x
        return self._join(x, extra)

    def _join(self, a: Value, b: Value) -> Value:
        """Two values of one shape made one."""
        if a.array.shape != b.array.shape:
            raise Unfit("two shapes differ")
        if self.element == "string":
            both = np.concatenate([a.array, b.array])
            return self.writer.node("Concat", [a, b], both, axis=0)
        op = "Or" if self.element == "bool" else "Sub"
        result = a.array | b.array if op == "Or" else a.array - b.array
        return self.writer.node(op, [a, b], np.asarray(result).astype(a.array.dtype))

    def _outputs(
        self,
        x: Value,
        firsts: Sequence[Value],
        constants: Sequence[Value],
        between: Value,
        again: Value | None,
        result: Value,
    ) -> list[Value]:
        """The model's outputs, in the form that the makeup has for them.

        Args:
            x: The first input.
            firsts: What the first step reads beside its operand.
            constants: The constants that steps read.
            between: The result of the first step.
            again: The result of the first step once more, where the makeup computes it twice.
            result: The result of the last step.
        """
        writer, form = self.writer, self.makeup["form"]
        if form == "what is between is an output":
            return [between, result]
        if form == "outputs the other way round":
            return [result, between]
        if form == "the input is an output":
            return [result, x]
        if form == "a constant is an output":
            return [result, constants[0] if constants else self._fresh()]
        if form == "one value is two outputs":
            return [result, writer.node("Identity", [result], result.array)]
        if form == "the first step twice" and again is not None:
            return [again, result]
        if form == "a diamond":
            return [self._join(result, between)]
        if form == "some that nobody reads":
            unread = writer.node("Identity", [between], between.array)
            writer.node("Transpose", [unread], unread.array.T, perm=[1, 0])
            self._fresh()
        if form == "constants beside":
            fresh = self._fresh()
            return [result, self._step(self.makeup["the first step"], fresh, firsts)]
        if form == "read by many":
            many = [writer.node("Identity", [between], between.array) for _ in range(4)]
            return [*many[:2], result, *many[2:]]
        if form == "an output is read on":
            return [result, writer.node("Transpose", [result], result.array.T, perm=[1, 0])]
        return [result]

    def _fresh(self) -> Value:
        return self.writer.constant(lambda: numbers(self.element, self.sizes, 400))

    def _read_otherwise(self, constants: Sequence[Value], outputs: list[Value]) -> list[Value]:
        read, writer = self.makeup["constants are read"], self.writer
        if read in ("by one step each", "by both steps"):
            return outputs
        if not constants:
            raise Unfit("there are no constants")
        (one, *_), copies = constants, 2 if read == "by two more" else 1
        more = [writer.node("Identity", [one], one.array) for _ in range(copies)]
        return outputs if read == "by an operation that nobody reads" else [*outputs, *more]

    # --------------------------------------------------------------------------- second step

    def _second(
        self, name: str, link: Value, constants: Sequence[Value]
    ) -> tuple[Value, list[Value]]:
        """The second step, in whatever it is, and those of its constants that stand around it."""
        where = self.makeup["the second step is"]
        step = STEPS[name]
        nominal = self._nominal(link)
        shared: list[Value] | None = None
        if self.makeup["constants are read"] == "by both steps":
            same = STEPS[self.makeup["the first step"]]
            if not (step.data and same.data) or step.square or same.square:
                raise Unfit("the steps read other constants")
            shared = [constants[0]]
        around = where == "plain" or self.makeup["constants of bodies stand"] == "around"
        outer = shared if shared is not None else None
        if outer is None and around:
            outer = self._constants(name, nominal, 2)

        def work(value: Value) -> Value:
            own = outer if outer is not None else self._constants(name, nominal, 2)
            self.latest = own
            return self._step(name, value, own)

        result = WRAPS[where](self, name, link, work, outer or [])
        return result, list(outer or ())

    def _nominal(self, link: Value) -> tuple[int, ...]:
        """The shape for which constants are made: of the first case."""
        return tuple(self.writer.array(lambda: np.array(link.array.shape)).tolist())

    def _branch(
        self, work: Callable[[], Value], restart: int | None = None
    ) -> tuple[Any, Value, int]:
        with self.writer.inside(Scope(), restart) as begin:
            result = work()
            return body("branch", self.writer.scope, [], [result]), result, begin

    def choice(
        self, link: Value, work: Callable[[Value], Value], condition: Value, then: bool
    ) -> Value:
        """An operation ``If``: work on a value in one of its branches, none in the other one."""
        writer = self.writer

        def other() -> Value:
            return writer.node("Identity", [link], link.array)

        def mine() -> Value:
            return work(link)

        tasks = (mine, other) if then else (other, mine)
        one, first, begin = self._branch(tasks[0])
        again = begin if self.makeup["names in bodies"] == "those of the other branch" else None
        two, second, _ = self._branch(tasks[1], again)
        taken = first if condition.array else second
        return writer.node("If", [condition], taken.array, then_branch=one, else_branch=two)

    def condition(self) -> Value:
        """An input that says which branch is taken: in one of the cases the second."""
        return self.input(np.array(self.number != 1), ())
